//! The threads that run hooks which are not quick, and the watchdog that ends a job whose time is
//! over. What must always hold: each accepted job is in `open` until somebody takes it out, and
//! who takes it out calls its `done`, once.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::chain::{Chain, Job, Outcome};
use super::panics::caught;
use super::verdict::Failure;

/// How many threads there are, and how much may wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// Threads that take jobs, at least one; each is started when there is work for it.
    pub workers: usize,
    /// Jobs that wait at most.
    pub waiting_max: usize,
    /// Bytes of their texts at most. One job may always wait, however long its text.
    pub waiting_bytes_max: usize,
    /// Threads whose hook does not come back, and for which another has been started, at most.
    /// Beyond it there are fewer workers, at last none; jobs then wait until their time is over.
    pub given_up_max: usize,
}

/// Worker threads for the jobs of all chains of the process.
///
/// Each accepted job has until its chain's timeout, from when it is accepted. A hook that takes
/// longer cannot be stopped: its job is answered, and its thread is given up and replaced.
pub struct Pool {
    shared: Arc<Shared>,
}

/// The job was not accepted: too much is waiting, or the pool is closed.
#[derive(Debug, thiserror::Error)]
#[error("too many jobs wait for the hooks")]
pub struct Full(pub Box<Job>);

struct Shared {
    settings: PoolSettings,
    state: Mutex<State>,
    /// For workers: a job waits, or the pool is closed.
    work: Condvar,
    /// For the watchdog: there is an earlier deadline than it knows, or the pool is closed.
    deadline: Condvar,
}

#[derive(Default)]
struct State {
    /// Every accepted job that has no outcome yet, the earliest deadline first.
    open: BTreeMap<Key, Open>,
    /// Those of them that no worker has taken yet, by [`Key::number`].
    waiting: BTreeMap<u64, Waiting>,
    waiting_bytes: usize,
    next_number: u64,
    /// Threads that take jobs.
    active: usize,
    /// Of these, those that have nothing to do, and those that have not begun.
    idle: usize,
    starting: usize,
    /// Threads that are in a hook whose job has been answered without them.
    stuck: usize,
    /// Threads so far, for their names.
    started: u64,
    watchdog: Watchdog,
    is_closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    deadline: Instant,
    /// Jobs in the order in which they came.
    number: u64,
}

struct Open {
    chain: Arc<Chain>,
    done: Done,
    /// The hook that it is in.
    hook: Option<usize>,
}

struct Waiting {
    deadline: Instant,
    chain: Arc<Chain>,
    job: Job,
}

type Done = Box<dyn FnOnce(Outcome) + Send>;

#[derive(Default, PartialEq, Eq)]
enum Watchdog {
    #[default]
    Absent,
    /// It looks at all deadlines before it sleeps.
    Awake,
    Asleep {
        until: Option<Instant>,
    },
}

/// A job that ended without its hooks.
struct Ended {
    open: Open,
    /// Where no hook holds it.
    job: Option<Job>,
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        PoolSettings {
            workers: 4,
            waiting_max: 16_384,
            waiting_bytes_max: 64 << 20,
            given_up_max: 64,
        }
    }
}

// === impl Pool ===

impl Pool {
    /// Starts no thread yet.
    pub fn new(settings: PoolSettings) -> Pool {
        let settings = PoolSettings {
            workers: settings.workers.max(1),
            ..settings
        };
        Pool {
            shared: Arc::new(Shared {
                settings,
                state: Mutex::default(),
                work: Condvar::new(),
                deadline: Condvar::new(),
            }),
        }
    }

    /// Has the hooks of `chain` asked about `job`. Never waits for them.
    ///
    /// `done` is called exactly once for an accepted job, on a thread of the pool or on the one
    /// that closes it, and never for one that is refused. It must not wait.
    ///
    /// # Errors
    /// [`Full`] with the job, if it was not accepted.
    pub fn submit(
        &self,
        chain: &Arc<Chain>,
        job: Job,
        done: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<(), Full> {
        let deadline = Instant::now() + chain.timeout();
        let open = Open {
            chain: Arc::clone(chain),
            done: Box::new(done),
            hook: None,
        };
        match self.shared.accept(deadline, open, job) {
            Ok(()) => Ok(()),
            Err(job) => {
                chain.counters().count_full();
                Err(Full(job))
            }
        }
    }

    /// Jobs that no worker has taken yet.
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// Threads that are in a hook whose job has been answered without them.
    pub fn given_up(&self) -> usize {
        self.shared.lock().stuck
    }

    /// Denies all jobs that have no outcome yet, and accepts none from now on. Threads end when
    /// their hooks come back; none is waited for.
    pub fn close(&self) {
        let ended = self.shared.lock().close();
        self.shared.work.notify_all();
        self.shared.deadline.notify_all();
        for job in ended {
            job.answer(Failure::Closed);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    /// No code of hooks or of callers runs under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, deadline: Instant, open: Open, job: Job) -> Result<(), Box<Job>> {
        let mut state = self.lock();
        if state.is_closed || !state.has_room(&self.settings, &job) {
            return Err(Box::new(job));
        }
        if state.watchdog == Watchdog::Absent {
            // Without it a job might never have an outcome.
            if let Err(error) = self.start_watchdog() {
                tracing::error!(%error, "no thread for the watchdog of hooks");
                return Err(Box::new(job));
            }
            state.watchdog = Watchdog::Awake;
        }
        let number = state.next_number;
        state.next_number += 1;
        state.waiting_bytes += job.text.len();
        let chain = Arc::clone(&open.chain);
        let waiting = Waiting {
            deadline,
            chain,
            job,
        };
        state.waiting.insert(number, waiting);
        state.open.insert(Key { deadline, number }, open);
        self.find_workers(&mut state);
        let is_earlier = match state.watchdog {
            Watchdog::Asleep { until } => until.is_none_or(|until| deadline < until),
            Watchdog::Awake | Watchdog::Absent => false,
        };
        drop(state);
        self.work.notify_one();
        if is_earlier {
            self.deadline.notify_one();
        }
        Ok(())
    }

    /// Starts threads for what waits, as far as there may be more.
    fn find_workers(self: &Arc<Self>, state: &mut State) {
        let threads_max = self.settings.workers + self.settings.given_up_max;
        while state.waiting.len() > state.idle + state.starting
            && state.active < self.settings.workers
            && state.active + state.stuck < threads_max
        {
            if let Err(error) = self.start_worker(state) {
                tracing::error!(%error, "no thread for hooks");
                return;
            }
        }
    }

    fn start_worker(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(self);
        thread::Builder::new()
            .name(format!("ringway-hook-{}", state.started))
            .spawn(move || shared.work())?;
        state.started += 1;
        state.active += 1;
        state.starting += 1;
        Ok(())
    }

    fn start_watchdog(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        thread::Builder::new()
            .name("ringway-hooks".to_owned())
            .spawn(move || shared.watch())?;
        Ok(())
    }
}

// === the worker ===

impl Shared {
    fn work(self: Arc<Self>) {
        let mut state = self.lock();
        state.starting -= 1;
        loop {
            if state.is_closed {
                state.active -= 1;
                return;
            }
            let Some(taken) = state.take() else {
                state.idle += 1;
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            if !self.run(taken) {
                return;
            }
            state = self.lock();
        }
    }

    /// Whether the thread is to go on as a worker.
    fn run(&self, (key, chain, job): (Key, Arc<Chain>, Job)) -> bool {
        let outcome = chain.run(job, |hook| self.lock().enter(key, hook));
        let mut state = self.lock();
        let open = state.open.remove(&key);
        let goes_on = open.is_some() || state.comes_back(&self.settings);
        drop(state);
        match open {
            Some(open) => open.answer(outcome),
            // Nobody waits for it any more.
            None => drop_quietly(outcome),
        }
        drop_quietly(chain);
        goes_on
    }
}

// === the watchdog ===

impl Shared {
    fn watch(self: Arc<Self>) {
        let mut state = self.lock();
        while !state.is_closed {
            let now = Instant::now();
            let ended = state.take_overdue(now);
            if !ended.is_empty() {
                state.watchdog = Watchdog::Awake;
                self.find_workers(&mut state);
                self.note_stuck(&state);
                drop(state);
                for job in ended {
                    job.answer(Failure::TimedOut);
                }
                state = self.lock();
                continue;
            }
            let until = state.open.keys().next().map(|key| key.deadline);
            state.watchdog = Watchdog::Asleep { until };
            state = match until {
                Some(until) => {
                    let left = until.saturating_duration_since(now);
                    let woken = self.deadline.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.deadline.wait(state);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    fn note_stuck(&self, state: &State) {
        if state.active < self.settings.workers && state.stuck > self.settings.given_up_max {
            tracing::error!(
                stuck = state.stuck,
                workers = state.active,
                "too many hooks do not come back: there are fewer threads for others"
            );
        }
    }
}

// === impl State ===

impl State {
    fn has_room(&self, settings: &PoolSettings, job: &Job) -> bool {
        let bytes = self.waiting_bytes.saturating_add(job.text.len());
        self.waiting.is_empty()
            || self.waiting.len() < settings.waiting_max && bytes <= settings.waiting_bytes_max
    }

    /// The job that has waited longest.
    fn take(&mut self) -> Option<(Key, Arc<Chain>, Job)> {
        let (number, waiting) = self.waiting.pop_first()?;
        self.waiting_bytes -= waiting.job.text.len();
        let Waiting {
            deadline,
            chain,
            job,
        } = waiting;
        Some((Key { deadline, number }, chain, job))
    }

    /// A worker is about to ask a hook. Whether somebody still waits for the outcome.
    fn enter(&mut self, key: Key, hook: usize) -> bool {
        match self.open.get_mut(&key) {
            Some(open) => {
                open.hook = Some(hook);
                true
            }
            None => false,
        }
    }

    /// A thread that was given up has come back. Whether it is needed as a worker.
    fn comes_back(&mut self, settings: &PoolSettings) -> bool {
        self.stuck -= 1;
        let is_needed = !self.is_closed && self.active < settings.workers;
        if is_needed {
            self.active += 1;
        }
        is_needed
    }

    fn take_overdue(&mut self, now: Instant) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some(first) = self.open.first_entry() {
            if first.key().deadline > now {
                break;
            }
            let (key, open) = first.remove_entry();
            ended.push(self.end(key, open));
        }
        ended
    }

    fn close(&mut self) -> Vec<Ended> {
        self.is_closed = true;
        let open = std::mem::take(&mut self.open);
        open.into_iter()
            .map(|(key, open)| self.end(key, open))
            .collect()
    }

    /// What was open ends without its hooks. Where a worker is in one, that thread is given up.
    fn end(&mut self, key: Key, open: Open) -> Ended {
        let job = self.waiting.remove(&key.number).map(|it| it.job);
        match &job {
            Some(job) => self.waiting_bytes -= job.text.len(),
            None => {
                self.active -= 1;
                self.stuck += 1;
            }
        }
        Ended { open, job }
    }
}

// === answers ===

impl Ended {
    fn answer(self, failure: Failure) {
        let Ended { open, job } = self;
        if failure == Failure::TimedOut {
            let hook = open.hook.map_or("", |hook| open.chain.name_of(hook));
            tracing::warn!(
                hook,
                was_waiting = job.is_some(),
                "a hook did not answer in time"
            );
        }
        let (state, text) = job.map(|job| (job.state, job.text)).unwrap_or_default();
        open.answer(Outcome::failed(failure, state, text));
    }
}

impl Open {
    fn answer(self, outcome: Outcome) {
        let Open { chain, done, .. } = self;
        chain.counters().count(&outcome.verdict, outcome.failure);
        if caught(|| done(outcome)).is_none() {
            tracing::error!("what was to be done with the outcome of a hook panicked");
        }
        drop_quietly(chain);
    }
}

/// Drops what hooks or their states may be part of.
fn drop_quietly(value: impl Sized) {
    let _ = caught(|| drop(value));
}

#[cfg(test)]
mod tests;
