//! What the admin listener is told: the counters of every thread, and where the
//! process and its server are in their lives, which the main thread writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::SystemTime;

use crate::admin::{HttpSnapshot, HubSnapshot, Readiness, ShardSnapshot, Snapshot, Source};
use crate::runtime::counters::Counters;
use crate::runtime::driver::Driver;
use crate::upstream::http::{EndKind, Fault, HttpCounters};

/// The state of the whole process, readable from any thread.
#[derive(Debug)]
pub(super) struct Status {
    started: SystemTime,
    shards: Vec<Arc<Counters>>,
    hub: Arc<Counters>,
    /// The HTTP clients of threads, by their names.
    http: Vec<(String, Arc<HttpCounters>)>,
    readiness: AtomicU8,
    driver: AtomicU8,
    upstream_starts: AtomicU64,
}

const READINESS: [Readiness; 4] = [
    Readiness::Starting,
    Readiness::Ready,
    Readiness::UpstreamDown,
    Readiness::Draining,
];

impl Status {
    pub(super) fn new(
        shards: Vec<Arc<Counters>>,
        hub: Arc<Counters>,
        http: Vec<(String, Arc<HttpCounters>)>,
    ) -> Arc<Status> {
        Arc::new(Status {
            started: SystemTime::now(),
            shards,
            hub,
            http,
            readiness: AtomicU8::new(0),
            driver: AtomicU8::new(0),
            upstream_starts: AtomicU64::new(0),
        })
    }

    pub(super) fn set_readiness(&self, readiness: Readiness) {
        let place = READINESS.iter().position(|known| *known == readiness);
        self.readiness
            .store(place.unwrap_or_default() as u8, Ordering::Relaxed);
    }

    pub(super) fn set_driver(&self, driver: Driver) {
        let place = match driver {
            Driver::Uring => 1,
            Driver::Epoll => 2,
        };
        self.driver.store(place, Ordering::Relaxed);
    }

    /// The server has been started.
    pub(super) fn count_start(&self) {
        self.upstream_starts.fetch_add(1, Ordering::Relaxed);
    }
}

impl Source for Status {
    fn ready(&self) -> Readiness {
        READINESS[usize::from(self.readiness.load(Ordering::Relaxed)) % READINESS.len()]
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            version: env!("CARGO_PKG_VERSION"),
            driver: match self.driver.load(Ordering::Relaxed) {
                1 => Some(Driver::Uring),
                2 => Some(Driver::Epoll),
                _ => None,
            },
            started: self.started,
            shards: self.shards.iter().map(|counters| shard(counters)).collect(),
            hub: HubSnapshot {
                upstream_up: self.ready() == Readiness::Ready,
                upstream_restarts: self
                    .upstream_starts
                    .load(Ordering::Relaxed)
                    .saturating_sub(1),
                quoted_ids: self.hub.quoted_ids.get(),
                drops: self.hub.drops(),
            },
            http: self
                .http
                .iter()
                .map(|(thread, counters)| (thread.clone(), client(counters)))
                .collect(),
        }
    }
}

fn client(counters: &HttpCounters) -> HttpSnapshot {
    let ends = EndKind::ALL.into_iter().map(EndKind::label);
    let faults = Fault::ALL.into_iter().map(Fault::label);
    HttpSnapshot {
        connections: counters.connections.get(),
        idle: counters.idle.get(),
        waiting: counters.waiting.get(),
        connects: counters.connects.get(),
        connect_failures: counters.connect_failures.get(),
        reused: counters.reused.get(),
        retries: counters.retries.get(),
        received_bytes: counters.received_bytes.get(),
        sent_bytes: counters.sent_bytes.get(),
        ends: ends.zip(counters.ends()).collect(),
        faults: faults.zip(counters.faults()).collect(),
    }
}

fn shard(counters: &Counters) -> ShardSnapshot {
    ShardSnapshot {
        connections: counters.connections.get(),
        sessions: counters.sessions.get(),
        calls_in_flight: counters.calls_in_flight.get(),
        buffered_bytes: counters.buffered_bytes.get(),
        streams: counters.streams.get(),
        subscriptions: counters.subscriptions.get(),
        tasks: counters.tasks.get(),
        replaced_streams: counters.streams_replaced.get(),
        lost_subscriptions: counters.subscriptions_lost.get(),
        progress_events: counters.events_progress.get(),
        stream_events: counters.events_marks.get(),
        calls: counters.calls.read(),
        call_durations: counters.durations.read(),
        http_requests: counters.statuses.read(),
        received_bytes: counters.received_bytes.get(),
        sent_bytes: counters.sent_bytes.get(),
        drops: counters.drops(),
        exchanges: counters.exchanges.get(),
        session_renewals: counters.session_renewals.get(),
        stream_overflows: counters.stream_overflows.get(),
        lost_notices: counters.lost_notices.get(),
        handovers: counters.handovers.get(),
        evicted_connections: counters.evicted.get(),
        version_differs: counters.version_differs.get(),
        mailbox_to_shard: counters.mailbox_to_shard.get(),
        mailbox_to_hub: counters.mailbox_to_hub.get(),
        mailbox_handovers: counters.mailbox_handovers.get(),
    }
}
