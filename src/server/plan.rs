//! The threads and the mailboxes between them: everything is made here before
//! the first thread starts, so that each has what it needs from its first turn.

use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use crossbeam_channel::Receiver as Letters;

use super::bridge::{self, BridgeOrder, BridgePlan};
use super::events::Event;
use super::hub_thread::{self, HubOrder};
use super::shard_thread;
use crate::cli::{Config, ServerPlace};
use crate::http::ground::{FaceConfig, Handover, Pass};
use crate::http::token_file::{TokenCell, TokenReader};
use crate::limits::{HANDOVERS_MAX, MAILBOX_BATCHES};
use crate::routing::letters::{Lines, ToShard};
use crate::routing::shard::ShardLimits;
use crate::runtime::bell::{Bell, Post, mailbox};
use crate::runtime::cores;
use crate::runtime::counters::Counters;
use crate::runtime::driver::{Driver, DriverChoice, Loop, RingFlags};
use crate::runtime::tasks;
use crate::upstream::http::{self, HttpCounters};
use crate::wire::handshake::Offer;

/// What the main thread keeps of the plan.
pub(super) struct Posts {
    pub(super) shard_counters: Vec<Arc<Counters>>,
    pub(super) hub_counters: Arc<Counters>,
    /// Of the threads that have an HTTP client, with their names in metrics.
    pub(super) http_counters: Vec<(String, Arc<HttpCounters>)>,
    pub(super) hub: Post<HubOrder>,
    /// There where all sessions share one at a server over HTTP.
    pub(super) bridge: Option<Post<BridgeOrder>>,
    pub(super) shards: Vec<Post<ToShard>>,
}

/// Everything that the threads are made of, before they start.
pub(super) struct Plan {
    shards: Vec<ShardPlan>,
    /// `None` where sessions have upstreams of their own.
    hub: Option<HubPlan>,
    /// Its bell, if the hub has a thread of its own.
    own_hub: Option<Arc<Bell>>,
    /// There where all sessions share one at a server over HTTP.
    bridge: Option<BridgePlan>,
    cores: Vec<Option<usize>>,
    driver: DriverChoice,
    ring_flags: RingFlags,
    events: Sender<Event>,
}

/// What a shard's thread is made of.
pub(super) struct ShardPlan {
    pub(super) index: usize,
    pub(super) shards: usize,
    pub(super) bell: Arc<Bell>,
    pub(super) listener: TcpListener,
    pub(super) face: Arc<FaceConfig>,
    pub(super) path: String,
    pub(super) pass: Pass,
    pub(super) limits: ShardLimits,
    pub(super) peers: Vec<Post<Handover>>,
    pub(super) handovers: Letters<Handover>,
    pub(super) letters: Letters<ToShard>,
    pub(super) lines: Post<Lines>,
    pub(super) counters: Arc<Counters>,
    pub(super) tokens: Option<TokenReader>,
    /// There where sessions have upstreams of their own.
    pub(super) private: Option<PrivatePlan>,
}

/// What a shard needs for its sessions' own upstreams.
pub(super) struct PrivatePlan {
    pub(super) upstream: Arc<http::Upstream>,
    pub(super) counters: Arc<HttpCounters>,
    /// Header lines of every request.
    pub(super) added_fields: Vec<u8>,
    /// How long the server may take to answer what is no call.
    pub(super) handshake_timeout_ms: u64,
}

/// What the hub is made of.
pub(super) struct HubPlan {
    /// For each shard: its mailbox, and the lines that come from it.
    pub(super) links: Vec<(Post<ToShard>, Letters<Lines>)>,
    pub(super) orders: Letters<HubOrder>,
    pub(super) line_bytes_max: usize,
    pub(super) offer: Offer,
    /// How long the server may take to answer the hub's own requests.
    pub(super) request_timeout_ms: u64,
    pub(super) counters: Arc<Counters>,
}

impl Plan {
    pub(super) fn new(
        config: Config,
        tokens: Option<Arc<TokenCell>>,
        listeners: Vec<TcpListener>,
        events: Sender<Event>,
        upstream: Option<Arc<http::Upstream>>,
    ) -> std::io::Result<(Plan, Posts)> {
        let shards = config.shards;
        let bells = (0..shards)
            .map(|_| Bell::new())
            .collect::<Result<Vec<_>, _>>()?;
        let own_hub = config.hub_is_own.then(Bell::new).transpose()?;
        let hub_bell = own_hub.as_ref().unwrap_or(&bells[0]);
        let (to_hub, orders) = mailbox(HUB_ORDERS, hub_bell);
        let private = match (&config.server, &upstream) {
            (ServerPlace::Http(server), Some(upstream)) if !server.is_shared => {
                Some((upstream.clone(), server.fields.added().to_vec()))
            }
            _ => None,
        };
        let handshake_timeout_ms =
            u64::try_from(config.start_timeout.as_millis()).unwrap_or(u64::MAX);
        // A client's initialize is no call, but its server may be as silent about it.
        let handshake_timeout_ms = handshake_timeout_ms.min(config.limits.request_timeout_ms);
        let is_private = private.is_some();
        let mut to_bridge = None;
        let mut bridge = None;
        if let (ServerPlace::Http(server), Some(upstream)) = (&config.server, &upstream)
            && server.is_shared
        {
            let bell = Bell::new()?;
            let (post, orders) = mailbox(BRIDGE_ORDERS, &bell);
            to_bridge = Some(post);
            bridge = Some(BridgePlan {
                bell,
                orders,
                upstream: upstream.clone(),
                counters: Arc::default(),
                connections_max: server.connections_max,
                added_fields: server.fields.added().to_vec(),
                start_timeout_ms: handshake_timeout_ms,
                request_timeout_ms: config.limits.request_timeout_ms,
            });
        }
        let face = Arc::new(config.face);
        let (peers, handovers): (Vec<_>, Vec<_>) = bells
            .iter()
            .map(|bell| mailbox(HANDOVERS_MAX, bell))
            .unzip();
        let hub_counters: Arc<Counters> = Arc::default();
        let mut links = Vec::new();
        let mut shard_plans = Vec::new();
        let mut to_shards = Vec::new();
        for (index, ((bell, listener), handovers)) in
            bells.iter().zip(listeners).zip(handovers).enumerate()
        {
            let (post, letters) = mailbox(MAILBOX_BATCHES, bell);
            let (lines, from_shard) = mailbox(MAILBOX_BATCHES, hub_bell);
            to_shards.push(post.clone());
            links.push((post, from_shard));
            shard_plans.push(ShardPlan {
                index,
                shards,
                bell: bell.clone(),
                listener,
                face: face.clone(),
                path: config.path.clone(),
                pass: config.pass.clone(),
                limits: config.limits,
                peers: peers.clone(),
                handovers,
                letters,
                lines,
                counters: Arc::default(),
                tokens: tokens.as_ref().map(TokenCell::reader),
                private: private.as_ref().map(|(upstream, fields)| PrivatePlan {
                    upstream: upstream.clone(),
                    counters: Arc::default(),
                    added_fields: fields.clone(),
                    handshake_timeout_ms,
                }),
            });
        }
        let plan = Plan {
            shards: shard_plans,
            hub: (!is_private).then(|| HubPlan {
                links,
                orders,
                line_bytes_max: config.line_bytes_max,
                offer: Offer {
                    get_streams: face.get_streams,
                    tasks: true,
                },
                request_timeout_ms: config.limits.request_timeout_ms,
                counters: hub_counters.clone(),
            }),
            own_hub,
            bridge,
            cores: config.cores,
            driver: config.driver,
            ring_flags: config.ring_flags,
            events,
        };
        let posts = Posts {
            http_counters: plan
                .shards
                .iter()
                .filter_map(|shard| {
                    let counters = shard.private.as_ref()?.counters.clone();
                    Some((format!("shard-{}", shard.index), counters))
                })
                .chain(
                    plan.bridge
                        .iter()
                        .map(|bridge| ("bridge".to_owned(), bridge.counters.clone())),
                )
                .collect(),
            shard_counters: plan
                .shards
                .iter()
                .map(|shard| shard.counters.clone())
                .collect(),
            hub_counters,
            hub: to_hub,
            bridge: to_bridge,
            shards: to_shards,
        };
        Ok((plan, posts))
    }

    /// Threads that the plan starts.
    pub(super) fn threads(&self) -> usize {
        self.shards.len() + usize::from(self.own_hub.is_some()) + usize::from(self.bridge.is_some())
    }

    /// Starts the threads: the shards', the hub's if it has one, the
    /// bridge's if there is one.
    pub(super) fn start(self) -> std::io::Result<Vec<JoinHandle<()>>> {
        let mut hub = self.hub;
        let mut cores = self.cores.into_iter();
        let mut handles = Vec::new();
        let spawner = Spawner {
            driver: self.driver,
            ring_flags: self.ring_flags,
            events: self.events,
        };
        for shard in self.shards {
            let local_hub = match (shard.index, &self.own_hub) {
                (0, None) => hub.take(),
                _ => None,
            };
            let name = format!("ringway-shard-{}", shard.index);
            let core = cores.next().flatten();
            handles.push(spawner.spawn(name, core, move |driver, events| {
                shard_thread::run(shard, local_hub, driver, events)
            })?);
        }
        if let (Some(bell), Some(hub)) = (self.own_hub, hub.take()) {
            let core = cores.next().flatten();
            let name = "ringway-hub".into();
            handles.push(spawner.spawn(name, core, move |driver, events| {
                hub_thread::run(hub, bell, driver, events)
            })?);
        }
        if let Some(bridge) = self.bridge {
            let name = "ringway-bridge".into();
            handles.push(spawner.spawn(name, None, move |driver, events| {
                bridge::run(bridge, driver, events)
            })?);
        }
        Ok(handles)
    }
}

/// Orders from the main thread to the hub that wait: one to begin, one to end.
const HUB_ORDERS: usize = 4;

/// The same to the bridge: it takes each at once.
const BRIDGE_ORDERS: usize = 16;

/// Starts threads with a loop each, and says when one ends: none may.
struct Spawner {
    driver: DriverChoice,
    ring_flags: RingFlags,
    events: Sender<Event>,
}

impl Spawner {
    fn spawn<F>(
        &self,
        name: String,
        core: Option<usize>,
        work: impl FnOnce(Driver, Sender<Event>) -> F + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>>
    where
        F: Future<Output = std::io::Result<()>>,
    {
        let (choice, flags, events) = (self.driver, self.ring_flags, self.events.clone());
        std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                if let Some(core) = core
                    && let Err(error) = cores::pin(core)
                {
                    tracing::warn!(core, %error, "cannot pin {name}");
                }
                let run = || -> std::io::Result<()> {
                    let mut event_loop = Loop::new(choice, flags)?;
                    let driver = event_loop.driver();
                    tracing::info!(%driver, ?core, "{name} runs");
                    let _ = events.send(Event::Ready(driver));
                    event_loop.block_on(work(driver, events.clone()))
                };
                let how = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                    Ok(Ok(())) => "its work is done".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => format!("it panicked: {}", tasks::text(&*panic)),
                };
                let _ = events.send(Event::ThreadEnded { thread: name, how });
            })
    }
}
