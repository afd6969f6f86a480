//! Counters that one thread writes and any may read: a plain load and store, no
//! read-modify-write, each thread's on cache lines of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use super::call_counters::CallCounters;
use super::has_own_lines;
use super::histogram::Histogram;
use super::status_counters::StatusCounters;
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
    /// Gauges, set from time to time.
    pub connections: Counter,
    pub sessions: Counter,
    pub calls_in_flight: Counter,
    pub buffered_bytes: Counter,
    pub streams: Counter,
    pub subscriptions: Counter,
    pub tasks: Counter,
    pub mailbox_to_shard: Counter,
    pub mailbox_to_hub: Counter,
    pub mailbox_handovers: Counter,
    /// Bytes read from and written to clients.
    pub received_bytes: Counter,
    pub sent_bytes: Counter,
    /// HTTP answers by status.
    pub statuses: StatusCounters,
    /// Calls by method and outcome.
    pub calls: CallCounters,
    /// How long answered calls took.
    pub durations: Histogram,
    pub handovers: Counter,
    /// Of sessions with upstreams of their own: requests under way there (a gauge);
    /// new handshakes because the server had forgotten a session; streams closed because
    /// their client did not read; messages of clients that the server did not take.
    pub exchanges: Counter,
    pub session_renewals: Counter,
    pub stream_overflows: Counter,
    pub lost_notices: Counter,
    /// Connections that were ended because they held the most of what was over
    /// the budget.
    pub evicted: Counter,
    /// GET streams that a newer one of the same session replaced.
    pub streams_replaced: Counter,
    /// Lists of clients that went out without this upstream's part.
    pub lists_left_out: Counter,
    /// Subscriptions that a restarted server has refused.
    pub subscriptions_lost: Counter,
    /// Progress messages for clients' streams.
    pub events_progress: Counter,
    /// Events on GET streams: changes, updates, news of tasks.
    pub events_marks: Counter,
    /// Answers whose id came as a decimal string.
    pub quoted_ids: Counter,
    /// Requests whose `MCP-Protocol-Version` is supported but not the session's.
    pub version_differs: Counter,
    drops: [Counter; DropReason::ALL.len()],
}

const _: () = assert!(has_own_lines::<Counters>());

impl Counters {
    /// Counts a dropped message. Returns how many of this reason there were.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        let counter = &self.drops[reason as usize];
        counter.add(1);
        counter.get()
    }

    /// Counts several at once.
    pub fn dropped_many(&self, reason: DropReason, messages: usize) {
        if messages > 0 {
            self.drops[reason as usize].add(messages as u64);
        }
    }

    pub fn drops(&self) -> [u64; DropReason::ALL.len()] {
        std::array::from_fn(|reason| self.drops[reason].get())
    }
}
