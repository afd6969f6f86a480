//! What became of the jobs of a chain. Any thread counts, any may read.

use std::sync::atomic::{AtomicU64, Ordering};

use super::verdict::{Failure, Verdict};

/// Jobs by what came of them; each finished job is counted once.
#[derive(Debug, Default)]
pub struct HookCounters {
    passed: AtomicU64,
    rewritten: AtomicU64,
    denied: AtomicU64,
    panicked: AtomicU64,
    timed_out: AtomicU64,
    bad_rewrites: AtomicU64,
    closed: AtomicU64,
    rejected_full: AtomicU64,
}

impl HookCounters {
    /// No hook had anything to say.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// At least one hook rewrote the message, and none denied it.
    pub fn rewritten(&self) -> u64 {
        self.rewritten.load(Ordering::Relaxed)
    }

    /// A hook has denied the message.
    pub fn denied(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }

    /// Denied because a hook panicked.
    pub fn panicked(&self) -> u64 {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Denied because the time was over.
    pub fn timed_out(&self) -> u64 {
        self.timed_out.load(Ordering::Relaxed)
    }

    /// Denied because a rewrite could not be used.
    pub fn bad_rewrites(&self) -> u64 {
        self.bad_rewrites.load(Ordering::Relaxed)
    }

    /// Denied because the pool was closed first.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Never begun: too many jobs were waiting.
    pub fn rejected_full(&self) -> u64 {
        self.rejected_full.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, verdict: &Verdict, failure: Option<Failure>) {
        let counter = match (failure, verdict) {
            (Some(Failure::Panicked), _) => &self.panicked,
            (Some(Failure::TimedOut), _) => &self.timed_out,
            (Some(Failure::BadRewrite), _) => &self.bad_rewrites,
            (Some(Failure::Closed), _) => &self.closed,
            (None, Verdict::Pass) => &self.passed,
            (None, Verdict::Rewrite(_)) => &self.rewritten,
            (None, Verdict::Deny(_)) => &self.denied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_full(&self) {
        self.rejected_full.fetch_add(1, Ordering::Relaxed);
    }
}
