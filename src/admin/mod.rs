//! What an operator looks at: `/healthz`, `/readyz` and `/metrics` on a listener
//! and threads of their own. It reads plain numbers that the data path leaves
//! behind and never takes part in it: a scrape costs the shards nothing but the
//! cache misses of its reads.
#![forbid(unsafe_code)]

mod answer;
mod connection;
mod health;
mod listener;
mod metrics;
mod snapshot;

pub use health::{RouteHealth, UpstreamHealth, UpstreamState};
pub use listener::{CONNECTIONS_MAX, start};
pub use snapshot::{
    DropCounts, HttpSnapshot, HubSnapshot, RouteSnapshot, ShardSnapshot, Snapshot, UpstreamSnapshot,
};

/// Where the answers come from. Every method is called on a thread of the admin
/// listener; it must return at once and take no lock that the data path takes.
pub trait Source: Send + Sync {
    /// Whether new clients should be sent here.
    fn ready(&self) -> Readiness;
    /// The routes of a configuration file, in its order; none without one.
    fn routes(&self) -> Vec<RouteHealth>;
    /// The numbers of this moment.
    fn snapshot(&self) -> Snapshot;
}

/// What `/readyz` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    Ready,
    /// The first handshake with the server is not done.
    Starting,
    /// The server has ended or is being started again; with a configuration file: that of a route
    /// that cannot serve without it.
    UpstreamDown,
    /// Ringway is shutting down.
    Draining,
}

impl Readiness {
    /// The word in the answer.
    pub fn word(self) -> &'static str {
        match self {
            Readiness::Ready => "ready",
            Readiness::Starting => "starting",
            Readiness::UpstreamDown => "upstream_down",
            Readiness::Draining => "draining",
        }
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
