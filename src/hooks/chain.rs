//! The hooks of a route in their order, and what comes of asking them one after the other.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Hook;
use super::call::{CallContext, CallState, HookCall};
use super::counters::HookCounters;
use super::panics::caught;
use super::point::{Point, Points};
use super::rewrite;
use super::verdict::{Failure, Verdict};

/// Longest timeout of a chain; a longer one is cut down to it.
const TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// The hooks of a route in order, made once.
///
/// On the way to the server they are asked in this order, on the way back in reverse. A rewrite
/// is what the next hook gets; the first denial ends the chain.
pub struct Chain {
    hooks: Vec<Link>,
    /// Where at least one hook is asked.
    wanted: Points,
    /// Where at least one hook is asked that is not quick.
    slow: Points,
    timeout: Duration,
    rewrite_bytes_max: usize,
    counters: Arc<HookCounters>,
}

struct Link {
    hook: Arc<dyn Hook>,
    name: Box<str>,
    points: Points,
}

/// A message that is to be shown to the hooks of a chain.
pub struct Job {
    pub point: Point,
    pub call: CallContext,
    /// What the hooks have kept of the call so far. A call has one of it, so its jobs follow each
    /// other; a second one that is begun meanwhile would need a state of its own.
    pub state: CallState,
    /// The raw JSON object: params or result.
    pub text: Vec<u8>,
}

/// What came of a job.
pub struct Outcome {
    /// For the call's next job.
    pub state: CallState,
    /// The job's own text, as it was given; empty where a hook holds it beyond its time.
    pub text: Vec<u8>,
    /// What the chain as a whole says.
    pub verdict: Verdict,
    /// Where the verdict is a denial that no hook has asked for.
    pub failure: Option<Failure>,
}

impl Chain {
    /// `timeout` is for a whole job in a [`Pool`](super::Pool), waiting for a thread included;
    /// `rewrite_bytes_max` is for each rewrite of each hook.
    pub fn new(hooks: Vec<Arc<dyn Hook>>, timeout: Duration, rewrite_bytes_max: usize) -> Chain {
        let mut wanted = Points::NONE;
        let mut slow = Points::NONE;
        let link = |hook: Arc<dyn Hook>| {
            let points = hook.points();
            wanted = wanted.and(points);
            if !hook.is_quick() {
                slow = slow.and(points);
            }
            Link {
                name: hook.name().into(),
                points,
                hook,
            }
        };
        Chain {
            hooks: hooks.into_iter().map(link).collect(),
            wanted,
            slow,
            timeout: timeout.min(TIMEOUT_MAX),
            rewrite_bytes_max,
            counters: Arc::default(),
        }
    }

    /// Counts into `counters`, so that a chain that takes another's place counts on.
    #[must_use]
    pub fn counting_into(mut self, counters: Arc<HookCounters>) -> Chain {
        self.counters = counters;
        self
    }

    /// Whether a hook is asked at `point`. Where none is, there is nothing to be done.
    pub fn wants(&self, point: Point) -> bool {
        self.wanted.has(point)
    }

    /// Whether all hooks that are asked at `point` are quick, so that [`Chain::run_here`] is the
    /// way; else it is [`Pool::submit`](super::Pool::submit).
    pub fn is_quick(&self, point: Point) -> bool {
        !self.slow.has(point)
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    pub fn counters(&self) -> &Arc<HookCounters> {
        &self.counters
    }

    /// Asks the hooks on this thread.
    pub fn run_here(&self, job: Job) -> Outcome {
        let outcome = self.run(job, |_| true);
        self.counters.count(&outcome.verdict, outcome.failure);
        outcome
    }

    /// The name of the hook with this number.
    pub(super) fn name_of(&self, hook: usize) -> &str {
        self.hooks.get(hook).map_or("", |link| &link.name)
    }

    /// Asks the hooks, without counting. Each is announced by its number to `goes_on`, which says
    /// whether the outcome is still of use; if not, what is returned is not to be used.
    pub(super) fn run(&self, job: Job, mut goes_on: impl FnMut(usize) -> bool) -> Outcome {
        let Job {
            point,
            call,
            mut state,
            text,
        } = job;
        let count = self.hooks.len();
        let mut rewritten: Option<Vec<u8>> = None;
        let mut end = None;
        for step in 0..count {
            let index = if point.is_on_the_way_back() {
                count - 1 - step
            } else {
                step
            };
            let link = &self.hooks[index];
            if !link.points.has(point) {
                continue;
            }
            if !goes_on(index) {
                break;
            }
            let current = rewritten.as_deref().unwrap_or(&text);
            match self.ask(link, index, point, &call, &mut state, current) {
                Ok(Verdict::Pass) => {}
                Ok(Verdict::Rewrite(next)) => rewritten = Some(next),
                Ok(Verdict::Deny(denial)) => end = Some((denial, None)),
                Err(failure) => end = Some((failure.denial(), Some(failure))),
            }
            if end.is_some() {
                break;
            }
        }
        let (verdict, failure) = match (end, rewritten) {
            (Some((denial, failure)), _) => (Verdict::Deny(denial), failure),
            (None, Some(rewritten)) => (Verdict::Rewrite(rewritten), None),
            (None, None) => (Verdict::Pass, None),
        };
        Outcome {
            state,
            text,
            verdict,
            failure,
        }
    }

    fn ask(
        &self,
        link: &Link,
        index: usize,
        point: Point,
        call: &CallContext,
        state: &mut CallState,
        text: &[u8],
    ) -> Result<Verdict, Failure> {
        let place = state.place(index);
        let hook = link.hook.as_ref();
        let verdict = caught(|| point.ask(hook, &mut HookCall::new(call, place), text));
        let (name, route) = (&*link.name, &*call.route);
        match verdict {
            Some(Verdict::Rewrite(next)) => {
                rewrite::checked(point, next, self.rewrite_bytes_max).map_or_else(
                    |error| {
                        tracing::error!(hook = name, route, ?point, %error, "a hook's rewrite is refused");
                        Err(Failure::BadRewrite)
                    },
                    |next| Ok(Verdict::Rewrite(next)),
                )
            }
            Some(verdict) => Ok(verdict),
            None => {
                tracing::error!(hook = name, route, ?point, "a hook panicked");
                // What it has kept may be half done.
                let kept = place.take();
                let _ = caught(|| drop(kept));
                Err(Failure::Panicked)
            }
        }
    }
}

impl Outcome {
    /// A denial that no hook has asked for.
    pub(super) fn failed(failure: Failure, state: CallState, text: Vec<u8>) -> Outcome {
        Outcome {
            state,
            text,
            verdict: Verdict::Deny(failure.denial()),
            failure: Some(failure),
        }
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.hooks.iter().map(|link| &*link.name).collect();
        f.debug_struct("Chain")
            .field("hooks", &names)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Without what the message says.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match &self.verdict {
            Verdict::Pass => "pass",
            Verdict::Rewrite(_) => "rewrite",
            Verdict::Deny(_) => "deny",
        };
        f.debug_struct("Outcome")
            .field("verdict", &verdict)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

/// Without what the message says.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("point", &self.point)
            .field("call", &self.call)
            .field("bytes", &self.text.len())
            .finish_non_exhaustive()
    }
}
