//! What a thread counts of a route that is of none of its upstreams.

use super::counters::Counter;
use super::has_own_lines;
use crate::routing::joined::naming::{Kind, PerKind};

/// Of one thread. Names themselves are never labels: clients choose them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct RouteCounters {
    unknown_names: PerKind<Counter>,
}

const _: () = assert!(has_own_lines::<RouteCounters>());

impl RouteCounters {
    /// Counts a request that was refused because the name that it says is unknown or denied. Only
    /// the owning thread may call this.
    pub fn unknown_name(&self, kind: Kind) {
        self.unknown_names.of(kind).add(1);
    }

    /// What was counted so far.
    pub fn unknown_names(&self) -> PerKind<u64> {
        let PerKind {
            tools,
            prompts,
            resources,
        } = &self.unknown_names;
        PerKind {
            tools: tools.get(),
            prompts: prompts.get(),
            resources: resources.get(),
        }
    }
}
