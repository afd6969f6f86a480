//! The numbers of one moment, as plain values: what the metrics are made from.
//! Each number was read on its own while the shards went on, so that sums of
//! different ones may be apart by what happened meanwhile.

use std::time::SystemTime;

use crate::routing::drops::DropReason;
use crate::routing::joined::naming::PerKind;
use crate::runtime::call_counters::CallCounts;
use crate::runtime::driver::Driver;
use crate::runtime::histogram::Durations;
use crate::runtime::status_counters;

/// Messages dropped, indexed by [`DropReason`] as enumerated.
pub type DropCounts = [u64; DropReason::ALL.len()];

/// The whole process.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Ringway's own version.
    pub version: &'static str,
    /// What the loops run on; `None` until they run.
    pub driver: Option<Driver>,
    /// When the process started.
    pub started: SystemTime,
    /// In the order of the shards.
    pub shards: Vec<ShardSnapshot>,
    pub hub: HubSnapshot,
    /// Of each thread that has an HTTP client, with its name.
    pub http: Vec<(String, HttpSnapshot)>,
    /// With a configuration file: what its upstreams count, in its order. What is above is then
    /// of the shards themselves only.
    pub upstreams: Option<Vec<UpstreamSnapshot>>,
    /// What its routes count besides, in its order.
    pub routes: Vec<RouteSnapshot>,
}

/// What a route counts that is of none of its upstreams.
#[derive(Clone, Debug, Default)]
pub struct RouteSnapshot {
    pub route: String,
    /// Requests refused because the name that they say is unknown or denied, in the order of the
    /// shards.
    pub unknown_names: Vec<PerKind<u64>>,
}

/// One upstream of a route.
#[derive(Clone, Debug, Default)]
pub struct UpstreamSnapshot {
    pub route: String,
    pub upstream: String,
    /// In the order of the shards.
    pub shards: Vec<ShardSnapshot>,
    pub hub: HubSnapshot,
    /// Of each thread that has an HTTP client, with its name.
    pub http: Vec<(String, HttpSnapshot)>,
}

/// The HTTP client of one thread, where the server is reached over HTTP.
#[derive(Clone, Debug, Default)]
pub struct HttpSnapshot {
    /// Connections to the server that are open, and those of them that nobody uses.
    pub connections: u64,
    pub idle: u64,
    /// Requests that wait for a connection.
    pub waiting: u64,
    pub connects: u64,
    pub connect_failures: u64,
    /// Requests on a connection that was there; those of them that began again.
    pub reused: u64,
    pub retries: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Requests by how they ended.
    pub ends: Vec<(&'static str, u64)>,
    /// Broken ones by what broke them.
    pub faults: Vec<(&'static str, u64)>,
}

/// One shard. Counts only rise for as long as the process runs.
#[derive(Clone, Debug, Default)]
pub struct ShardSnapshot {
    /// Connections of clients that are open.
    pub connections: u64,
    /// Sessions that are alive.
    pub sessions: u64,
    /// Calls that wait for the server's answer.
    pub calls_in_flight: u64,
    /// Bytes held in bodies, queues and replies.
    pub buffered_bytes: u64,
    /// GET streams that are open.
    pub streams: u64,
    /// Resource subscriptions of all sessions.
    pub subscriptions: u64,
    /// Tasks that sessions own, finished ones included until they are forgotten.
    pub tasks: u64,
    /// Calls that have ended.
    pub calls: CallCounts,
    /// How long the calls took that have ended.
    pub call_durations: Durations,
    /// HTTP requests answered, by [`status_counters::label`].
    pub http_requests: [u64; status_counters::KINDS],
    /// Bytes read from clients.
    pub received_bytes: u64,
    /// Bytes written to clients.
    pub sent_bytes: u64,
    pub drops: DropCounts,
    /// Requests under way at the sessions' own upstreams.
    pub exchanges: u64,
    /// New handshakes because the server had forgotten a session.
    pub session_renewals: u64,
    /// GET streams closed because their client did not read what came in order.
    pub stream_overflows: u64,
    /// Notifications and answers of clients that their server did not take.
    pub lost_notices: u64,
    /// Connections handed over to other shards.
    pub handovers: u64,
    /// Connections ended because they held the most of what was over the budget.
    pub evicted_connections: u64,
    /// GET streams that a newer one of the same session replaced.
    pub replaced_streams: u64,
    /// Subscriptions that a restarted server has refused.
    pub lost_subscriptions: u64,
    /// Lists of clients that went out without an upstream's part.
    pub lists_left_out: u64,
    /// Progress messages put on clients' streams.
    pub progress_events: u64,
    /// Events put on GET streams.
    pub stream_events: u64,
    /// Requests whose `MCP-Protocol-Version` is supported but not the session's.
    pub version_differs: u64,
    /// Batches from the hub that wait for this shard.
    pub mailbox_to_shard: u64,
    /// Batches of this shard's lines that wait for the hub.
    pub mailbox_to_hub: u64,
    /// Connections of other shards that wait for this one.
    pub mailbox_handovers: u64,
}

/// The hub and its server.
#[derive(Clone, Debug, Default)]
pub struct HubSnapshot {
    /// The server runs and its handshake is done.
    pub upstream_up: bool,
    /// Times that the server was started again.
    pub upstream_restarts: u64,
    /// Answers of the server whose id came as a decimal string.
    pub quoted_ids: u64,
    pub drops: DropCounts,
}
