//! A source with fixed numbers, for the tests of this module.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use super::{HubSnapshot, Readiness, RouteHealth, ShardSnapshot, Snapshot, Source};
use crate::runtime::driver::Driver;

/// So many shards where nothing has happened.
pub(crate) fn snapshot(shards: usize) -> Snapshot {
    Snapshot {
        version: "1.2.3",
        driver: Some(Driver::Uring),
        started: UNIX_EPOCH + Duration::from_millis(1_000_500),
        shards: vec![ShardSnapshot::default(); shards],
        hub: HubSnapshot::default(),
        http: Vec::new(),
        upstreams: None,
        routes: Vec::new(),
    }
}

/// One shard, and the readiness that the test wants.
pub(crate) struct Fake {
    pub(crate) readiness: Readiness,
    pub(crate) routes: Vec<RouteHealth>,
    /// The next snapshot panics.
    pub(crate) panics: AtomicBool,
}

impl Fake {
    pub(crate) fn new(readiness: Readiness) -> Fake {
        Fake {
            readiness,
            routes: Vec::new(),
            panics: AtomicBool::new(false),
        }
    }
}

impl Source for Fake {
    fn ready(&self) -> Readiness {
        self.readiness
    }

    fn routes(&self) -> Vec<RouteHealth> {
        self.routes.clone()
    }

    fn snapshot(&self) -> Snapshot {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "on purpose");
        snapshot(1)
    }
}
