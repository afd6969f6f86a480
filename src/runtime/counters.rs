//! Counters that one thread writes and any may read: a plain load and store, no
//! read-modify-write, each thread's on cache lines of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::routing::drops::DropReason;

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call this.
    pub fn add(&self, n: u64) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before.wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value. Only the owning thread may call this.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one thread of the data path counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    pub connections: Counter,
    pub requests: Counter,
    pub calls: Counter,
    pub answers: Counter,
    pub handovers: Counter,
    /// Connections that were ended because they held the most of what was over
    /// the budget.
    pub evicted: Counter,
    /// Answers whose id came as a decimal string.
    pub quoted_ids: Counter,
    /// Requests whose `MCP-Protocol-Version` is supported but not the session's.
    pub version_differs: Counter,
    drops: [Counter; DropReason::ALL.len()],
}

impl Counters {
    /// Counts a dropped message. Returns how many of this reason there were.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        let counter = &self.drops[reason as usize];
        counter.add(1);
        counter.get()
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }
}
