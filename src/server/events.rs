//! What the main thread hears, from the hub, the shards, the waiting thread of
//! the server's process, and the kernel.

use std::process::Child;
use std::sync::mpsc::Sender;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use crate::runtime::driver::Driver;
use crate::upstream::hub::HubEvent;

/// Something that the main thread decides about.
#[derive(Debug)]
pub(super) enum Event {
    Hub(HubEvent),
    /// A thread's loop is set up on this driver.
    Ready(Driver),
    /// The process of child number `number` has ended.
    ServerEnded {
        number: u64,
        how: String,
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

/// Turns signals into events. SIGHUP is taken so that it does not end the
/// process; it means nothing yet.
pub(super) fn watch_signals(events: Sender<Event>) -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD])?;
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

/// Waits for the process of child number `number` on a thread of its own.
pub(super) fn wait_for_child(
    number: u64,
    mut process: Child,
    events: Sender<Event>,
) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("ringway-wait".into())
        .spawn(move || {
            let how = match process.wait() {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            let _ = events.send(Event::ServerEnded { number, how });
        })?;
    Ok(())
}
