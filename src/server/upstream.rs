//! The life of the server's process, or of the one session at a server over HTTP, as
//! the main thread leads it: started, up, dead, started again after a pause. The main thread is the right one for it:
//! it is not pinned and lives as long as any child.

use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use super::bridge::{BridgeOrder, Session};
use super::events::{Event, wait_for_child};
use super::hub_thread::HubOrder;
use crate::limits::CHILD_EXIT_MS;
use crate::routing::back_off::BackOff;
use crate::routing::time::Millis;
use crate::runtime::bell::Post;
use crate::runtime::clock;
use crate::upstream::child::{self, Group, ServerCommand, StartError};
use crate::upstream::http::bridge;
use crate::upstream::hub::ServerPipes;
use crate::upstream::stderr;

/// How long the pipes of a server that was killed may stay open.
const ENDING_MS: u64 = 2 * CHILD_EXIT_MS;

/// The server and where it is in its life.
pub(super) struct Upstream {
    origin: Origin,
    /// The soft limit on open files that it gets.
    open_files: u64,
    start_timeout: Duration,
    events: Sender<Event>,
    hub: Post<HubOrder>,
    /// Which child this is, counted from 1.
    number: u64,
    /// Closed when the relay of the server's stderr has ended.
    relay: Option<Receiver<()>>,
    life: Life,
    back_off: BackOff,
}

/// What the server is.
pub(super) enum Origin {
    Command(ServerCommand),
    /// At an address, in one session that all share; who leads it.
    Bridge(String, Post<BridgeOrder>),
    /// At this address, where each session goes by itself.
    Elsewhere(String),
}

/// Where the server is in its life.
enum Life {
    /// Not Ringway's to lead.
    Elsewhere,
    /// Not running; to be started then.
    Resting { start: Millis },
    /// Running, the handshake not done.
    Starting { holder: Holder, deadline: Millis },
    /// Serving since then.
    Up { holder: Holder, since: Millis },
    /// Its stdout has ended or its process has: killed, and waited for by the hub.
    Ending {
        ready: Option<Millis>,
        /// When its pipes should long have ended.
        deadline: Millis,
    },
}

/// What ends the server when it is dropped.
enum Holder {
    Process(Group),
    Session(Session),
}

impl Upstream {
    pub(super) fn new(
        origin: Origin,
        open_files: u64,
        start_timeout: Duration,
        events: Sender<Event>,
        hub: Post<HubOrder>,
    ) -> Upstream {
        let life = match &origin {
            Origin::Elsewhere(_) => Life::Elsewhere,
            Origin::Command(_) | Origin::Bridge(..) => Life::Resting {
                start: Millis::default(),
            },
        };
        Upstream {
            origin,
            open_files,
            start_timeout,
            events,
            hub,
            number: 0,
            relay: None,
            life,
            back_off: BackOff::default(),
        }
    }

    /// The server's program, for people.
    pub(super) fn name(&self) -> String {
        match &self.origin {
            Origin::Command(command) => format!("{:?}", command.label),
            Origin::Bridge(address, _) | Origin::Elsewhere(address) => address.clone(),
        }
    }

    /// Whether each session goes to the server by itself.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self.origin, Origin::Elsewhere(_))
    }

    /// Whether it is a session at a server that is not Ringway's to start.
    pub(super) fn is_bridge(&self) -> bool {
        matches!(self.origin, Origin::Bridge(..))
    }

    /// Starts the server.
    pub(super) fn start(&mut self, now: Millis) -> Result<(), StartError> {
        let (holder, pipes) = match &self.origin {
            Origin::Command(command) => {
                let started = child::start(command, self.open_files)?;
                self.number += 1;
                self.relay = Some(stderr::relay(started.stderr).map_err(StartError::Thread)?);
                wait_for_child(self.number, started.end, self.events.clone())
                    .map_err(StartError::Thread)?;
                (Holder::Process(started.group), started.pipes)
            }
            Origin::Bridge(_, post) => {
                let (pipes, bridge_pipes) = bridge::pipes().map_err(StartError::Pipes)?;
                self.number += 1;
                let session = Session::open(post, self.number, bridge_pipes);
                (Holder::Session(session), pipes)
            }
            Origin::Elsewhere(_) => return Ok(()),
        };
        self.connect(holder, pipes, now);
        Ok(())
    }

    fn connect(&mut self, holder: Holder, pipes: ServerPipes, now: Millis) {
        let timeout = u64::try_from(self.start_timeout.as_millis()).unwrap_or(u64::MAX);
        self.life = Life::Starting {
            holder,
            deadline: now.after(timeout),
        };
        if self.hub.send(HubOrder::Connect(pipes)).is_err() {
            tracing::error!("the hub does not take the pipes of the new server");
        }
        self.hub.ring();
    }

    /// The handshake is done.
    pub(super) fn opened(&mut self, now: Millis) {
        self.life = match std::mem::replace(&mut self.life, Life::Resting { start: now }) {
            Life::Starting { holder, .. } => Life::Up { holder, since: now },
            other => other,
        };
    }

    /// Something of the server has ended, or its time is up: all of it ends.
    /// The hub reports when its stdout has.
    pub(super) fn end(&mut self) {
        let ready = match &self.life {
            Life::Up { since, .. } => Some(*since),
            Life::Starting { .. } => None,
            Life::Ending { .. } | Life::Resting { .. } | Life::Elsewhere => return,
        };
        // Replacing the life drops the group, which kills what is left of it and
        // may take its time; the deadline counts from there.
        self.life = Life::Ending {
            ready,
            deadline: Millis::NEVER,
        };
        self.life = Life::Ending {
            ready,
            deadline: clock::now().after(ENDING_MS),
        };
    }

    /// Something of the server lives on and holds its pipes open, although all
    /// that is known of it was killed.
    pub(super) fn is_stuck(&self, now: Millis) -> bool {
        matches!(&self.life, Life::Ending { deadline, .. } if *deadline <= now)
    }

    /// Waits a moment for the last words of a server that has ended.
    pub(super) fn wait_for_stderr(&self) {
        if let Some(relay) = &self.relay {
            let _ = relay.recv_timeout(Duration::from_millis(500));
        }
    }

    /// The hub has seen the end of the server's stdout. Returns the pause in
    /// milliseconds before the server is started again.
    pub(super) fn closed(&mut self, now: Millis) -> u64 {
        self.end();
        let ready = match &self.life {
            Life::Ending { ready, .. } => *ready,
            _ => None,
        };
        let start = self.back_off.next_start(ready, now);
        self.life = Life::Resting { start };
        start.since(now)
    }

    /// When something is to be done if nothing is heard before.
    pub(super) fn due(&self) -> Option<Millis> {
        match &self.life {
            Life::Resting { start } => Some(*start),
            Life::Starting { deadline, .. } => Some(*deadline),
            Life::Ending { deadline, .. } => Some(*deadline),
            Life::Up { .. } | Life::Elsewhere => None,
        }
    }

    /// Does what is due. True if the server has been started.
    pub(super) fn tick(&mut self, now: Millis) -> bool {
        match &self.life {
            Life::Resting { start } if *start <= now => match self.start(now) {
                Ok(()) => return true,
                Err(error) => {
                    let start = self.back_off.next_start(None, now);
                    tracing::error!(%error, pause_ms = start.since(now), "cannot start the server again");
                    self.life = Life::Resting { start };
                }
            },
            Life::Starting { deadline, .. } if *deadline <= now => {
                tracing::error!("the server did not answer initialize in time: killing it");
                self.end();
            }
            _ => {}
        }
        false
    }

    /// Whether this is about the child that runs now.
    pub(super) fn is_current(&self, number: u64) -> bool {
        number == self.number
    }

    /// Stops the server politely: its stdin is closed, then signals. `ended`
    /// waits up to a time for the end of its process.
    pub(super) fn stop(&mut self, ended: impl FnMut(Duration) -> bool) {
        let life = std::mem::replace(
            &mut self.life,
            Life::Ending {
                ready: None,
                deadline: Millis::NEVER,
            },
        );
        if let Life::Starting { holder, .. } | Life::Up { holder, .. } = life {
            if self.hub.send(HubOrder::StopWriting).is_err() {
                tracing::warn!("the hub does not take the order to close the server's stdin");
            }
            self.hub.ring();
            match holder {
                Holder::Process(group) => group.stop(ended),
                Holder::Session(session) => session.stop(ended),
            }
        }
    }
}
