//! The life of one server: launched, up, ending, at rest, launched again after a pause. Only
//! decides: what happens comes in with the time, what is to be done comes out, and nothing here
//! waits. `H` is what holds the server while it runs; to drop it is to end the server, which takes
//! its time and is for another thread to do.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::CHILD_EXIT_MS;
use crate::routing::back_off::BackOff;
use crate::routing::hub::OpenError;
use crate::routing::time::Millis;
use crate::upstream::child::StartError;

/// How long the pipes of a server that was killed may stay open.
pub(super) const ENDING_MS: u64 = 2 * CHILD_EXIT_MS;

/// How long the end of a server's process is waited for once its stdout has ended: mostly the
/// one follows the other at once, and how it ended says more.
pub(super) const CLOSING_MS: u64 = 500;

/// A server's life.
#[derive(Debug)]
pub(super) struct Life<H> {
    state: State<H>,
    start_timeout_ms: u64,
    back_off: BackOff,
    /// How the process ended that runs or ran last, once it has.
    how: Option<String>,
    /// Why reading it failed, if it did.
    error: Option<String>,
    acts: VecDeque<Act<H>>,
}

#[derive(Debug)]
enum State<H> {
    /// Not Ringway's to lead.
    Elsewhere,
    /// Not running; to be launched then.
    Resting { start: Millis },
    /// Being launched, which another thread does. That it takes too long is said once.
    Launching { deadline: Millis },
    /// Running, the handshake not done.
    Starting { holder: H, deadline: Millis },
    /// Serving since then.
    Up { holder: H, since: Millis },
    /// One of its pipes has ended: its process gets a moment to end by itself.
    Closing {
        holder: H,
        ready: Option<Millis>,
        /// It is its stdout, by the hub.
        is_closed: bool,
        until: Millis,
    },
    /// It is being ended, and waited for.
    Ending {
        ready: Option<Millis>,
        /// The hub has seen the end of its stdout.
        is_closed: bool,
        /// What held it has been dropped.
        is_gone: bool,
        /// When both should long have come.
        deadline: Millis,
    },
    /// For good.
    Stopped,
}

/// What is to be done, or told.
#[derive(Debug)]
pub(super) enum Act<H> {
    /// Launch the server.
    Launch,
    /// Give its pipes to the hub. It comes at once after [`Life::launched`].
    Connect,
    /// Drop this, on another thread.
    End(H),
    /// The hub is to let go of the server's pipes.
    LetGo,
    /// The handshake is done.
    Up,
    /// It serves no longer.
    Down,
    /// It has closed its stdin, and is ended.
    Deaf,
    /// It did not come up. If there was nothing to be ended, it is launched again after the pause.
    Failed {
        failure: Failure,
        pause_ms: Option<u64>,
    },
    /// Nothing of it is left; it will be launched again.
    Gone {
        how: Option<String>,
        error: Option<String>,
        pause_ms: u64,
    },
    /// Something of it lives on and holds its pipes open, although all that is known of it was
    /// killed.
    Stuck,
}

/// Why a server did not come up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Start(#[from] StartError),
    #[error("it ended before its handshake ({0})")]
    Ended(String),
    #[error("it closed its stdout before its handshake")]
    Closed,
    #[error("it did not answer initialize within {0:?}")]
    Silent(Duration),
    #[error("the handshake with it failed: {0}")]
    Handshake(OpenError),
}

impl<H> Life<H> {
    /// To be launched at the next tick.
    pub(super) fn new(start_timeout: Duration) -> Life<H> {
        Life {
            state: State::Resting {
                start: Millis::default(),
            },
            start_timeout_ms: u64::try_from(start_timeout.as_millis()).unwrap_or(u64::MAX),
            back_off: BackOff::default(),
            how: None,
            error: None,
            acts: VecDeque::new(),
        }
    }

    /// Of a server that is not Ringway's to lead.
    pub(super) fn elsewhere() -> Life<H> {
        Life {
            state: State::Elsewhere,
            ..Life::new(Duration::ZERO)
        }
    }

    /// What is to be done next.
    pub(super) fn next_act(&mut self) -> Option<Act<H>> {
        self.acts.pop_front()
    }

    fn start_timeout(&self) -> Duration {
        Duration::from_millis(self.start_timeout_ms)
    }

    /// The launch is over.
    pub(super) fn launched(&mut self, outcome: Result<H, StartError>, now: Millis) {
        if !matches!(self.state, State::Launching { .. }) {
            // It was stopped meanwhile.
            self.acts.extend(outcome.ok().map(Act::End));
            return;
        }
        match outcome {
            Ok(holder) => {
                self.how = None;
                self.error = None;
                self.state = State::Starting {
                    holder,
                    deadline: now.after(self.start_timeout_ms),
                };
                self.acts.push_back(Act::Connect);
            }
            Err(error) => {
                let start = self.back_off.next_start(None, now);
                self.state = State::Resting { start };
                self.acts.push_back(Act::Failed {
                    failure: error.into(),
                    pause_ms: Some(start.since(now)),
                });
            }
        }
    }

    /// The handshake is done.
    pub(super) fn opened(&mut self, now: Millis) {
        self.state = match self.take() {
            State::Starting { holder, .. } => {
                self.acts.push_back(Act::Up);
                State::Up { holder, since: now }
            }
            other => other,
        };
    }

    /// The handshake has failed.
    pub(super) fn refused(&mut self, error: OpenError, now: Millis) {
        if matches!(self.state, State::Starting { .. }) {
            self.failed(Failure::Handshake(error));
            self.end(now);
        }
    }

    /// It takes nothing any more.
    pub(super) fn deaf(&mut self, now: Millis) {
        match &self.state {
            // How it ended says more.
            State::Starting { .. } => self.close(false, now),
            State::Up { .. } => {
                self.acts.push_back(Act::Deaf);
                self.end(now);
            }
            _ => {}
        }
    }

    /// The hub has seen the end of its stdout, and whoever waited for it has been told.
    pub(super) fn closed(&mut self, error: Option<String>, now: Millis) {
        self.error = self.error.take().or(error);
        match &mut self.state {
            State::Starting { .. } | State::Up { .. } => self.close(true, now),
            State::Closing { is_closed, .. } => *is_closed = true,
            State::Ending { is_closed, .. } => {
                *is_closed = true;
                self.rest(now);
            }
            _ => {}
        }
    }

    /// Its process has ended. Others of its group may hold its stdout open.
    pub(super) fn ended(&mut self, how: String, now: Millis) {
        match &self.state {
            State::Starting { .. } => {
                self.failed(Failure::Ended(how.clone()));
                self.how = Some(how);
                self.end(now);
            }
            State::Up { .. } => {
                self.how = Some(how);
                self.end(now);
            }
            State::Closing { ready, .. } => {
                if ready.is_none() {
                    self.failed(Failure::Ended(how.clone()));
                }
                self.how = Some(how);
                self.end(now);
            }
            State::Ending { .. } => self.how = Some(how),
            _ => {}
        }
    }

    /// What held it has been dropped.
    pub(super) fn gone(&mut self, now: Millis) {
        if let State::Ending { is_gone, .. } = &mut self.state {
            *is_gone = true;
            self.rest(now);
        }
    }

    /// When something is to be done if nothing is heard before.
    pub(super) fn due(&self) -> Option<Millis> {
        let due = match &self.state {
            State::Resting { start } => *start,
            State::Launching { deadline } => *deadline,
            State::Starting { deadline, .. } => *deadline,
            State::Closing { until, .. } => *until,
            State::Ending { deadline, .. } => *deadline,
            State::Up { .. } | State::Elsewhere | State::Stopped => return None,
        };
        (due != Millis::NEVER).then_some(due)
    }

    /// Time passes.
    pub(super) fn tick(&mut self, now: Millis) {
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        match &mut self.state {
            State::Resting { .. } => {
                self.state = State::Launching {
                    deadline: now.after(self.start_timeout_ms),
                };
                self.acts.push_back(Act::Launch);
            }
            State::Launching { deadline } => {
                *deadline = Millis::NEVER;
                let silent = Failure::Silent(self.start_timeout());
                self.failed(silent);
            }
            State::Starting { .. } => {
                let silent = Failure::Silent(self.start_timeout());
                self.failed(silent);
                self.end(now);
            }
            State::Closing { ready, .. } => {
                if ready.is_none() {
                    self.failed(Failure::Closed);
                }
                self.end(now);
            }
            State::Ending {
                is_closed,
                is_gone,
                deadline,
                ..
            } => {
                *deadline = Millis::NEVER;
                // The next one is not kept waiting for what cannot be ended.
                *is_gone = true;
                self.acts.push_back(Act::Stuck);
                if !*is_closed {
                    self.acts.push_back(Act::LetGo);
                }
                self.rest(now);
            }
            State::Up { .. } | State::Elsewhere | State::Stopped => {}
        }
    }

    /// It is not to live any more. Gives what holds it, if it runs.
    pub(super) fn stop(&mut self) -> Option<H> {
        self.acts.clear();
        match self.take() {
            State::Starting { holder, .. }
            | State::Up { holder, .. }
            | State::Closing { holder, .. } => Some(holder),
            _ => None,
        }
    }

    fn take(&mut self) -> State<H> {
        std::mem::replace(&mut self.state, State::Stopped)
    }

    fn failed(&mut self, failure: Failure) {
        self.acts.push_back(Act::Failed {
            failure,
            pause_ms: None,
        });
    }

    fn close(&mut self, is_closed: bool, now: Millis) {
        let until = now.after(CLOSING_MS);
        self.state = match self.take() {
            State::Starting { holder, .. } => State::Closing {
                holder,
                ready: None,
                is_closed,
                until,
            },
            State::Up { holder, since } => {
                self.acts.push_back(Act::Down);
                State::Closing {
                    holder,
                    ready: Some(since),
                    is_closed,
                    until,
                }
            }
            other => other,
        };
    }

    /// Something of it has ended, or its time is up: all of it ends.
    fn end(&mut self, now: Millis) {
        let (holder, ready, is_closed) = match self.take() {
            State::Starting { holder, .. } => (holder, None, false),
            State::Up { holder, since } => {
                self.acts.push_back(Act::Down);
                (holder, Some(since), false)
            }
            State::Closing {
                holder,
                ready,
                is_closed,
                ..
            } => (holder, ready, is_closed),
            other => {
                self.state = other;
                return;
            }
        };
        self.acts.push_back(Act::End(holder));
        self.state = State::Ending {
            ready,
            is_closed,
            is_gone: false,
            deadline: now.after(ENDING_MS),
        };
    }

    /// If nothing of it is left, it rests before it is launched again.
    fn rest(&mut self, now: Millis) {
        let State::Ending {
            ready,
            is_closed: true,
            is_gone: true,
            ..
        } = self.state
        else {
            return;
        };
        let start = self.back_off.next_start(ready, now);
        self.state = State::Resting { start };
        self.acts.push_back(Act::Gone {
            how: self.how.take(),
            error: self.error.take(),
            pause_ms: start.since(now),
        });
    }
}
