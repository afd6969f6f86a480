//! What one upstream is made of on every thread: the mailboxes between its hub and its seats, its
//! counters, its bridge. All of it is made before any thread hears of it, so that each has what it
//! needs from its first turn; what cannot be made changes nothing.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crossbeam_channel::Receiver as Letters;
use tracing::Span;

use super::bridge::{BridgeHandle, BridgePlan};
use super::events::Event;
use super::plan::Threads;
use super::status::SeatStatus;
use super::upstream::{Identity, Origin, Upstream};
use crate::cli::{HttpServer, ServerPlace};
use crate::limits::MAILBOX_BATCHES;
use crate::routing::joined::SeatId;
use crate::routing::letters::{Lines, ToShard};
use crate::routing::shard::ShardLimits;
use crate::runtime::bell::{Bell, Post, mailbox};
use crate::runtime::counters::Counters;
use crate::upstream::http::client::UpstreamError;
use crate::upstream::http::{self, Fields, HttpCounters};
use crate::wire::handshake::Offer;

/// What an upstream is to be.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct SeatSettings {
    pub(super) place: ServerPlace,
    /// The share of one shard.
    pub(super) limits: ShardLimits,
    /// For the server to answer the handshake.
    pub(super) start_timeout: Duration,
}

/// What holds for all upstreams.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeatBounds {
    /// Bytes of a line of a server at most.
    pub(super) line_bytes_max: usize,
    /// Bytes that a thread holds at most.
    pub(super) buffered_bytes_max: usize,
    pub(super) get_streams: bool,
    /// The soft limit on open files that servers get.
    pub(super) open_files: u64,
}

/// An upstream that the threads have not heard of.
pub(super) struct NewSeat {
    pub(super) identity: Identity,
    settings: SeatSettings,
    pub(super) shards: Vec<SeatPlan>,
    /// `None` where sessions have upstreams of their own.
    pub(super) hub: Option<HubPlan>,
    /// There where all sessions share one at a server over HTTP.
    bridge: Option<BridgeHandle>,
    pub(super) status: Arc<SeatStatus>,
}

/// What a shard's thread is told of an upstream.
#[derive(Debug)]
pub(super) struct SeatPlan {
    pub(super) seat: SeatId,
    pub(super) limits: ShardLimits,
    /// To and from the hub, if it is on another thread.
    pub(super) mail: Option<(Letters<ToShard>, Post<Lines>)>,
    pub(super) counters: Arc<Counters>,
    /// There where sessions have upstreams of their own.
    pub(super) private: Option<PrivatePlan>,
    pub(super) offer: Offer,
    pub(super) span: Span,
}

/// What a shard needs for its sessions' own upstreams.
#[derive(Debug)]
pub(super) struct PrivatePlan {
    pub(super) upstream: Arc<http::Upstream>,
    pub(super) counters: Arc<HttpCounters>,
    /// Header lines of every request.
    pub(super) added_fields: Vec<u8>,
    /// Which of the header lines of clients this upstream gets, if others may get others.
    pub(super) passed: Option<Fields>,
    /// How long the server may take to answer what is no call.
    pub(super) handshake_timeout_ms: u64,
}

/// What a hub is made of.
#[derive(Debug)]
pub(super) struct HubPlan {
    pub(super) seat: SeatId,
    /// For each shard: its mailbox, and the lines that come from it. `None`: it lives on the
    /// hub's own thread.
    pub(super) links: Vec<Option<(Post<ToShard>, Letters<Lines>)>>,
    pub(super) line_bytes_max: usize,
    pub(super) offer: Offer,
    /// How long the server may take to answer the hub's own requests.
    pub(super) request_timeout_ms: u64,
    pub(super) counters: Arc<Counters>,
    pub(super) span: Span,
}

/// Why an upstream cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum SeatError {
    #[error(transparent)]
    Http(#[from] UpstreamError),
    #[error("cannot set up its mailboxes: {0}")]
    Mailboxes(#[from] std::io::Error),
    #[error("cannot start the thread of its bridge: {0}")]
    Bridge(std::io::Error),
}

impl NewSeat {
    /// Makes what an upstream needs on these threads. `shard_counters`: those of the shards
    /// themselves, where there is but one upstream.
    ///
    /// # Errors
    /// What its server over HTTP needs is not to be had.
    pub(super) fn new(
        identity: Identity,
        settings: SeatSettings,
        bounds: &SeatBounds,
        threads: &Threads,
        shard_counters: Option<&[Arc<Counters>]>,
    ) -> Result<NewSeat, SeatError> {
        let offer = Offer {
            get_streams: bounds.get_streams,
            tasks: true,
        };
        let limits = settings.limits;
        let start_timeout_ms = milliseconds(settings.start_timeout);
        // A client's initialize is no call, but its server may be as silent about it.
        let handshake_timeout_ms = start_timeout_ms.min(limits.request_timeout_ms);
        let http = match &settings.place {
            ServerPlace::Http(server) => Some((server, http_upstream(server, bounds)?)),
            ServerPlace::Command(_) => None,
        };
        let mut bridge = None;
        let mut private = None;
        let mut http_counters = Vec::new();
        match http {
            Some((server, upstream)) if server.is_shared => {
                let counters: Arc<HttpCounters> = Arc::default();
                let bell = Bell::new()?;
                let (post, orders) = mailbox(BRIDGE_ORDERS, &bell);
                http_counters.push(("bridge".to_owned(), counters.clone()));
                let plan = BridgePlan {
                    bell,
                    orders,
                    upstream,
                    counters,
                    connections_max: server.connections_max,
                    added_fields: server.fields.added().to_vec(),
                    start_timeout_ms: handshake_timeout_ms,
                    request_timeout_ms: limits.request_timeout_ms,
                    span: identity.span.clone(),
                };
                let name = match &identity.names {
                    Some((_, upstream)) => format!("ringway-bridge-{upstream}"),
                    None => "ringway-bridge".to_owned(),
                };
                threads
                    .start_bridge(name, plan)
                    .map_err(SeatError::Bridge)?;
                bridge = Some(BridgeHandle(post));
            }
            Some((server, upstream)) => private = Some((server, upstream)),
            None => {}
        }
        let hub_counters: Arc<Counters> = Arc::default();
        let mut counters = Vec::new();
        let mut links = Vec::new();
        let mut shards = Vec::new();
        for (index, bell) in threads.bells().iter().enumerate() {
            let own = match shard_counters.and_then(|all| all.get(index)) {
                Some(own) => own.clone(),
                None => Arc::default(),
            };
            counters.push(own.clone());
            let mut mail = None;
            if private.is_none() {
                let is_local = threads.hub_is_at(index);
                let ends = (!is_local).then(|| {
                    let (to_shard, letters) = mailbox(MAILBOX_BATCHES, bell);
                    let (to_hub, lines) = mailbox(MAILBOX_BATCHES, threads.hub_bell());
                    mail = Some((letters, to_hub));
                    (to_shard, lines)
                });
                links.push(ends);
            }
            let private = private.as_ref().map(|(server, upstream)| {
                let counters: Arc<HttpCounters> = Arc::default();
                http_counters.push((format!("shard-{index}"), counters.clone()));
                PrivatePlan {
                    upstream: upstream.clone(),
                    counters,
                    added_fields: server.fields.added().to_vec(),
                    passed: identity.names.is_some().then(|| server.fields.clone()),
                    handshake_timeout_ms,
                }
            });
            shards.push(SeatPlan {
                seat: identity.seat,
                limits: seat_limits(limits, private.as_ref()),
                mail,
                counters: own,
                private,
                offer,
                span: identity.span.clone(),
            });
        }
        let hub = private.is_none().then(|| HubPlan {
            seat: identity.seat,
            links,
            line_bytes_max: bounds.line_bytes_max,
            offer,
            request_timeout_ms: limits.request_timeout_ms,
            counters: hub_counters.clone(),
            span: identity.span.clone(),
        });
        let is_private = private.is_some();
        Ok(NewSeat {
            status: SeatStatus::new(is_private, counters, hub_counters, http_counters),
            identity,
            settings,
            shards,
            hub,
            bridge,
        })
    }

    /// Gives the threads what is theirs. What is left is for the main thread to lead.
    pub(super) fn add(
        self,
        bounds: &SeatBounds,
        threads: &Threads,
        events: &Sender<Event>,
    ) -> Upstream {
        threads.add_seat(self.shards, self.hub);
        let origin = match (self.settings.place, self.bridge) {
            (ServerPlace::Command(command), _) => Origin::Command(command),
            (ServerPlace::Http(server), Some(bridge)) => {
                Origin::Bridge(server.address.to_string(), bridge)
            }
            (ServerPlace::Http(server), None) => Origin::Elsewhere(server.address.to_string()),
        };
        Upstream::new(
            self.identity,
            origin,
            (self.settings.start_timeout, bounds.open_files),
            events.clone(),
            threads.hub_post().clone(),
            self.status,
        )
    }
}

/// Orders to a bridge that wait: it takes each at once.
const BRIDGE_ORDERS: usize = 16;

fn seat_limits(limits: ShardLimits, private: Option<&PrivatePlan>) -> ShardLimits {
    let Some(private) = private else {
        return limits;
    };
    // One session must not take all connections to the server.
    let share = (private.upstream.connections_max() * 3 / 4).max(1);
    ShardLimits {
        calls_per_session_max: limits.calls_per_session_max.min(share),
        ..limits
    }
}

/// What all threads know of a server that is reached over HTTP.
fn http_upstream(
    server: &HttpServer,
    bounds: &SeatBounds,
) -> Result<Arc<http::Upstream>, UpstreamError> {
    let settings = http::Settings {
        connections_max: server.connections_max,
        connect_timeout_ms: milliseconds(server.connect_timeout),
        idle_ms: milliseconds(server.idle_timeout),
        message_bytes_max: bounds.line_bytes_max,
        // Half of the budget: bodies and what waits have the other.
        partial_bytes_max: bounds.buffered_bytes_max / 2,
    };
    http::Upstream::new(server.address.clone(), server.ca.as_deref(), settings).map(Arc::new)
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
