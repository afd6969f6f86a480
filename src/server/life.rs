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
pub(super) const ENDING_MS: u64 = 5 * CHILD_EXIT_MS;

/// How long it may take to end all that is known of a server, before the next one is launched
/// all the same.
const KILLING_MS: u64 = 30 * CHILD_EXIT_MS;

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
        let State::Launching { deadline } = self.state else {
            // It was stopped meanwhile.
            self.acts.extend(outcome.ok().map(Act::End));
            return;
        };
        match outcome {
            Ok(holder) => {
                // Its time counts from the launch, unless that took all of it.
                let deadline = match deadline {
                    Millis::NEVER => now.after(self.start_timeout_ms),
                    deadline => deadline,
                };
                self.state = State::Starting { holder, deadline };
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
        if let State::Ending {
            is_gone, deadline, ..
        } = &mut self.state
        {
            *is_gone = true;
            *deadline = now.after(ENDING_MS);
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
            deadline: now.after(KILLING_MS),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::back_off::{FIRST_MS, STEADY_MS};

    const START_TIMEOUT: Duration = Duration::from_secs(5);

    /// A life with a clock, and what it asked for in words. A holder is the number of its server.
    struct Scene {
        life: Life<u32>,
        now: Millis,
        next: u32,
    }

    impl Scene {
        fn new() -> Scene {
            Scene {
                life: Life::new(START_TIMEOUT),
                now: Millis(1_000),
                next: 1,
            }
        }

        /// One whose server is up.
        fn up() -> Scene {
            let mut scene = Scene::new();
            assert_eq!(scene.tick(), ["launch"]);
            assert_eq!(scene.launched(), ["connect"]);
            scene.hear(|life, now| life.opened(now));
            scene
        }

        fn hear(&mut self, event: impl FnOnce(&mut Life<u32>, Millis)) -> Vec<String> {
            event(&mut self.life, self.now);
            let mut words = Vec::new();
            while let Some(act) = self.life.next_act() {
                words.push(match act {
                    Act::Launch => "launch".into(),
                    Act::Connect => "connect".into(),
                    Act::End(number) => format!("end {number}"),
                    Act::LetGo => "let go".into(),
                    Act::Up => "up".into(),
                    Act::Down => "down".into(),
                    Act::Deaf => "deaf".into(),
                    Act::Failed { failure, pause_ms } => match pause_ms {
                        Some(pause) => format!("failed: {failure}, {pause}"),
                        None => format!("failed: {failure}"),
                    },
                    Act::Gone {
                        how,
                        error,
                        pause_ms,
                    } => format!("gone {how:?} {error:?} {pause_ms}"),
                    Act::Stuck => "stuck".into(),
                });
            }
            words
        }

        fn launched(&mut self) -> Vec<String> {
            let number = self.next;
            self.next += 1;
            self.hear(|life, now| life.launched(Ok(number), now))
        }

        fn ended(&mut self) -> Vec<String> {
            self.hear(|life, now| life.ended("code 3".into(), now))
        }

        fn closed(&mut self) -> Vec<String> {
            self.hear(|life, now| life.closed(None, now))
        }

        fn gone(&mut self) -> Vec<String> {
            self.hear(Life::gone)
        }

        fn tick(&mut self) -> Vec<String> {
            self.hear(Life::tick)
        }

        /// What comes when the next thing is due, and not a moment before.
        fn when_due(&mut self) -> Vec<String> {
            let due = self.life.due().unwrap();
            self.now = Millis(due.0 - 1);
            assert_eq!(self.tick(), [""; 0]);
            self.now = due;
            self.tick()
        }
    }

    #[test]
    fn a_server_that_dies_is_waited_for_and_launched_again_after_a_pause() {
        let mut scene = Scene::up();
        assert_eq!(scene.life.due(), None);
        // Its process first, its stdout then.
        assert_eq!(scene.ended(), ["down", "end 1"]);
        assert_eq!(scene.closed(), [""; 0]);
        let gone = format!("gone Some(\"code 3\") None {FIRST_MS}");
        assert_eq!(scene.gone(), [gone]);
        assert_eq!(scene.when_due(), ["launch"]);
        assert_eq!(scene.launched(), ["connect"]);
        assert_eq!(scene.hear(|life, now| life.opened(now)), ["up"]);
        // The other way round.
        assert_eq!(scene.closed(), ["down"]);
        assert_eq!(scene.ended(), ["end 2"]);
        let gone = format!("gone Some(\"code 3\") None {}", 2 * FIRST_MS);
        assert_eq!(scene.gone(), [gone]);
    }

    #[test]
    fn a_server_that_lives_on_without_its_stdout_is_ended_a_moment_later() {
        let mut scene = Scene::up();
        let cut = Some("cut".to_owned());
        assert_eq!(scene.hear(|life, now| life.closed(cut, now)), ["down"]);
        let began = scene.now;
        assert_eq!(scene.when_due(), ["end 1"]);
        assert_eq!(scene.now.since(began), CLOSING_MS);
        let gone = format!("gone None Some(\"cut\") {FIRST_MS}");
        assert_eq!(scene.gone(), [gone]);
    }

    #[test]
    fn a_deaf_server_is_ended_and_its_stdout_waited_for() {
        let mut scene = Scene::up();
        let said = scene.hear(Life::deaf);
        assert_eq!(said, ["deaf", "down", "end 1"]);
        assert_eq!(scene.gone(), [""; 0]);
        assert_eq!(scene.closed().len(), 1);
    }

    #[test]
    fn a_steady_life_brings_the_first_pause_back() {
        let mut scene = Scene::up();
        scene.ended();
        scene.closed();
        scene.gone();
        scene.when_due();
        scene.launched();
        scene.hear(|life, now| life.opened(now));
        scene.now = scene.now.after(STEADY_MS);
        scene.ended();
        scene.closed();
        let gone = format!("gone Some(\"code 3\") None {FIRST_MS}");
        assert_eq!(scene.gone(), [gone]);
    }

    #[test]
    fn a_start_that_fails_says_why_once() {
        let start = |event: &mut dyn FnMut(&mut Scene) -> Vec<String>| {
            let mut scene = Scene::new();
            scene.tick();
            scene.launched();
            (event(&mut scene), scene)
        };
        let (said, mut scene) = start(&mut Scene::ended);
        assert_eq!(
            said,
            ["failed: it ended before its handshake (code 3)", "end 1"]
        );
        assert_eq!(scene.closed(), [""; 0]);
        assert_eq!(scene.gone().len(), 1);

        // Closed first: how it ended says more.
        let (said, mut scene) = start(&mut Scene::closed);
        assert_eq!(said, [""; 0]);
        assert_eq!(
            scene.ended(),
            ["failed: it ended before its handshake (code 3)", "end 1"]
        );

        let (_, mut scene) = start(&mut Scene::closed);
        assert_eq!(
            scene.when_due(),
            ["failed: it closed its stdout before its handshake", "end 1"]
        );

        let (said, _) = start(&mut Scene::when_due);
        assert_eq!(
            said,
            ["failed: it did not answer initialize within 5s", "end 1"]
        );

        let (said, _) = start(&mut |scene| {
            let refused = OpenError::Refused("no".into());
            scene.hear(|life, now| life.refused(refused, now))
        });
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("failed: the handshake with it failed: "));
    }

    /// The end of what was before must not end what is now.
    #[test]
    fn nothing_is_launched_before_all_of_the_last_one_has_ended() {
        let mut scene = Scene::new();
        scene.tick();
        scene.launched();
        // Deaf before its handshake, and its stdout is still open.
        assert_eq!(scene.hear(Life::deaf), [""; 0]);
        assert_eq!(scene.ended().len(), 2);
        assert_eq!(scene.gone(), [""; 0]);
        scene.now = scene.now.after(ENDING_MS - 1);
        assert_eq!(scene.tick(), [""; 0]);
        assert_eq!(scene.closed().len(), 1);
        assert_eq!(scene.when_due(), ["launch"]);
    }

    #[test]
    fn a_deaf_server_whose_stdout_ends_too_is_not_waited_for_twice() {
        let mut scene = Scene::new();
        scene.tick();
        scene.launched();
        assert_eq!(scene.hear(Life::deaf), [""; 0]);
        assert_eq!(scene.closed(), [""; 0]);
        assert_eq!(scene.when_due().len(), 2);
        assert_eq!(scene.gone().len(), 1);
    }

    #[test]
    fn the_time_for_its_pipes_counts_from_when_nothing_holds_it() {
        let mut scene = Scene::up();
        scene.ended();
        scene.now = scene.now.after(KILLING_MS - 1);
        assert_eq!(scene.gone(), [""; 0]);
        let began = scene.now;
        assert_eq!(scene.when_due(), ["stuck", "let go"]);
        assert_eq!(scene.now.since(began), ENDING_MS);
    }

    #[test]
    fn a_server_that_cannot_be_launched_is_tried_again() {
        let mut scene = Scene::new();
        for pause in [FIRST_MS, 2 * FIRST_MS] {
            scene.now = scene.now.after(pause);
            assert_eq!(scene.tick(), ["launch"]);
            let error = StartError::Command {
                label: "x".into(),
                reason: "no".into(),
            };
            let said = scene.hear(|life, now| life.launched(Err(error), now));
            assert_eq!(said, [format!("failed: cannot run \"x\": no, {pause}")]);
        }
    }

    /// A bridge counts the same time from a moment later: what it says of it comes too late.
    #[test]
    fn the_time_for_the_handshake_counts_from_the_launch() {
        let mut scene = Scene::new();
        scene.tick();
        let began = scene.now;
        scene.now = scene.now.after(4_999);
        assert_eq!(scene.launched(), ["connect"]);
        assert_eq!(scene.when_due().len(), 2);
        assert_eq!(scene.now.since(began), 5_000);
    }

    #[test]
    fn a_launch_that_takes_too_long_is_said_once_and_waited_for() {
        let mut scene = Scene::new();
        scene.tick();
        assert_eq!(
            scene.when_due(),
            ["failed: it did not answer initialize within 5s"]
        );
        assert_eq!(scene.life.due(), None);
        assert_eq!(scene.launched(), ["connect"]);
        let began = scene.now;
        assert_eq!(scene.when_due().len(), 2);
        assert_eq!(scene.now.since(began), 5_000);
    }

    #[test]
    fn what_cannot_be_ended_does_not_hold_up_the_next_one() {
        let mut scene = Scene::up();
        scene.ended();
        let began = scene.now;
        assert_eq!(scene.when_due(), ["stuck", "let go"]);
        assert_eq!(scene.now.since(began), KILLING_MS);
        assert_eq!(scene.closed().len(), 1);
        assert_eq!(scene.when_due(), ["launch"]);

        // Its stdout has ended, and what holds it hangs.
        let mut scene = Scene::up();
        scene.closed();
        scene.ended();
        let said = scene.when_due();
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[0], "stuck");
        assert!(said[1].starts_with("gone "));
        assert_eq!(scene.gone(), [""; 0]);
    }

    #[test]
    fn one_that_is_stopped_gives_what_holds_it_and_does_nothing_more() {
        let mut scene = Scene::up();
        assert_eq!(scene.life.stop(), Some(1));
        assert_eq!(scene.life.stop(), None);
        assert_eq!(scene.life.due(), None);
        assert_eq!(scene.ended(), [""; 0]);
        assert_eq!(scene.closed(), [""; 0]);
        assert_eq!(scene.gone(), [""; 0]);

        // Stopped while it is launched: what comes then is ended.
        let mut scene = Scene::new();
        scene.tick();
        assert_eq!(scene.life.stop(), None);
        assert_eq!(scene.launched(), ["end 1"]);

        // What it had asked for is asked for no longer.
        let mut scene = Scene::up();
        scene.life.ended("x".into(), scene.now);
        assert_eq!(scene.life.stop(), None);
        assert!(scene.life.next_act().is_none());
    }

    #[test]
    fn a_server_elsewhere_has_no_life() {
        let mut life: Life<u32> = Life::elsewhere();
        life.tick(Millis(1_000_000));
        life.ended("x".into(), Millis(0));
        assert_eq!(life.due(), None);
        assert!(life.next_act().is_none());
        assert_eq!(life.stop(), None);
    }
}
