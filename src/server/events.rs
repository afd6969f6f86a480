//! What the main thread hears, from the hub, the shards, the waiting thread of
//! the server's process, and the kernel.

use std::sync::mpsc::Sender;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::upstream::{Holder, Number};
use crate::routing::joined::SeatId;
use crate::runtime::driver::Driver;
use crate::runtime::tasks;
use crate::upstream::child::StartError;
use crate::upstream::hub::{HubEvent, ServerPipes};

/// Something that the main thread decides about.
#[derive(Debug)]
pub(super) enum Event {
    Hub(SeatId, HubEvent),
    /// A thread's loop is set up on this driver.
    Ready(Driver),
    /// A server has been launched, or could not be.
    Launched {
        number: Number,
        outcome: Result<(Holder, ServerPipes), StartError>,
    },
    /// The process or session of a server has ended.
    ServerEnded {
        number: Number,
        how: String,
    },
    /// Nothing holds that server any more.
    Gone {
        number: Number,
    },
    Signal(i32),
    /// A shard has finished what was in flight.
    Drained,
    /// A thread has ended: none may.
    ThreadEnded {
        thread: String,
        how: String,
    },
}

/// Spawns a task that its thread cannot do without: when it panics the process
/// is to end. A task that comes to its end has done its work.
pub(super) fn spawn_vital(
    name: &'static str,
    events: &Sender<Event>,
    task: impl Future<Output = ()> + 'static,
) {
    let events = events.clone();
    monoio::spawn(async move {
        if let Err(panic) = tasks::contained(task).await {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            let how = format!("its task {name} panicked: {}", tasks::text(&*panic));
            let _ = events.send(Event::ThreadEnded { thread, how });
        }
    });
}

/// Turns signals into events.
pub(super) fn watch_signals(events: Sender<Event>) -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new()
        .name("ringway-signals".into())
        .spawn(move || {
            for signal in &mut signals {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}
