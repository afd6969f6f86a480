//! The threads of the data path: the shards', the hubs', the bridges'. They start with nothing to
//! serve, and are told by orders what there is.

use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use crossbeam_channel::Receiver as Letters;

use super::bridge::{self, BridgePlan};
use super::events::Event;
use super::hub_thread::{self, HubOrder};
use super::seat::{HubPlan, SeatPlan};
use super::shard_thread::{self, RoutePlan, ShardOrder};
use super::upstream::send_surely;
use crate::http::ground::{FaceConfig, Handover, Pass};
use crate::limits::HANDOVERS_MAX;
use crate::routing::joined::SeatId;
use crate::runtime::bell::{Bell, Post, mailbox};
use crate::runtime::cores;
use crate::runtime::counters::Counters;
use crate::runtime::driver::{Driver, DriverChoice, Loop, RingFlags};
use crate::runtime::tasks;

/// What the threads are made of, whatever they serve.
#[derive(Debug)]
pub(super) struct ThreadsPlan {
    pub(super) hub_is_own: bool,
    /// The core of each shard, then that of an own hub; `None`: not pinned.
    pub(super) cores: Vec<Option<usize>>,
    pub(super) driver: DriverChoice,
    pub(super) ring_flags: RingFlags,
    pub(super) face: FaceConfig,
    /// One a shard.
    pub(super) listeners: Vec<TcpListener>,
}

/// The threads, as the main thread reaches them.
pub(super) struct Threads {
    bells: Vec<Arc<Bell>>,
    orders: Vec<Post<ShardOrder>>,
    counters: Vec<Arc<Counters>>,
    /// Of the thread on which hubs live.
    hub_bell: Arc<Bell>,
    hub_is_own: bool,
    hub: Post<HubOrder>,
    /// What has not been started.
    waiting: Option<Waiting>,
    spawner: Spawner,
}

struct Waiting {
    shards: Vec<ShardPlan>,
    hub_orders: Letters<HubOrder>,
    cores: Vec<Option<usize>>,
}

/// What a shard's thread is made of.
pub(super) struct ShardPlan {
    pub(super) index: usize,
    pub(super) shards: usize,
    pub(super) bell: Arc<Bell>,
    pub(super) listener: TcpListener,
    pub(super) face: Arc<FaceConfig>,
    pub(super) peers: Vec<Post<Handover>>,
    pub(super) handovers: Letters<Handover>,
    pub(super) orders: Letters<ShardOrder>,
    /// Orders to hubs, if they live here.
    pub(super) hub_orders: Option<Letters<HubOrder>>,
    pub(super) counters: Arc<Counters>,
}

impl Threads {
    /// Makes the threads' mailboxes; none is started.
    pub(super) fn new(plan: ThreadsPlan, events: Sender<Event>) -> std::io::Result<Threads> {
        let shards = plan.listeners.len();
        let bells = (0..shards)
            .map(|_| Bell::new())
            .collect::<Result<Vec<_>, _>>()?;
        let hub_bell = match (plan.hub_is_own, bells.first()) {
            (false, Some(bell)) => bell.clone(),
            _ => Bell::new()?,
        };
        let (hub, hub_orders) = mailbox(ORDERS_MAX, &hub_bell);
        let face = Arc::new(plan.face);
        let (peers, handovers): (Vec<_>, Vec<_>) = bells
            .iter()
            .map(|bell| mailbox(HANDOVERS_MAX, bell))
            .unzip();
        let mut orders = Vec::new();
        let mut counters = Vec::new();
        let mut shard_plans = Vec::new();
        let parts = bells.iter().zip(plan.listeners).zip(handovers);
        for (index, ((bell, listener), handovers)) in parts.enumerate() {
            let (post, letters) = mailbox(ORDERS_MAX, bell);
            let own: Arc<Counters> = Arc::default();
            orders.push(post);
            counters.push(own.clone());
            shard_plans.push(ShardPlan {
                index,
                shards,
                bell: bell.clone(),
                listener,
                face: face.clone(),
                peers: peers.clone(),
                handovers,
                orders: letters,
                hub_orders: None,
                counters: own,
            });
        }
        Ok(Threads {
            bells,
            orders,
            counters,
            hub_bell,
            hub_is_own: plan.hub_is_own,
            hub,
            waiting: Some(Waiting {
                shards: shard_plans,
                hub_orders,
                cores: plan.cores,
            }),
            spawner: Spawner {
                driver: plan.driver,
                ring_flags: plan.ring_flags,
                events,
            },
        })
    }

    /// Starts the threads of the shards and of the hubs, if they have one.
    pub(super) fn start(&mut self) -> std::io::Result<Vec<JoinHandle<()>>> {
        let mut handles = Vec::new();
        let Some(waiting) = self.waiting.take() else {
            return Ok(handles);
        };
        let mut hub_orders = Some(waiting.hub_orders);
        let mut cores = waiting.cores.into_iter();
        for mut shard in waiting.shards {
            if !self.hub_is_own {
                shard.hub_orders = hub_orders.take();
            }
            let name = format!("ringway-shard-{}", shard.index);
            let core = cores.next().flatten();
            let work = move |driver, events| shard_thread::run(shard, driver, events);
            handles.push(self.spawner.spawn(name, core, Vital::Always, work)?);
        }
        if let Some(orders) = hub_orders {
            let core = cores.next().flatten();
            let bell = self.hub_bell.clone();
            let work = move |driver, events| hub_thread::run(orders, bell, driver, events);
            let name = "ringway-hub".into();
            handles.push(self.spawner.spawn(name, core, Vital::Always, work)?);
        }
        Ok(handles)
    }

    /// How many threads say that they are ready.
    pub(super) fn count(&self) -> usize {
        self.orders.len() + usize::from(self.hub_is_own)
    }

    pub(super) fn shards(&self) -> usize {
        self.orders.len()
    }

    /// What each shard counts.
    pub(super) fn counters(&self) -> &[Arc<Counters>] {
        &self.counters
    }

    pub(super) fn bells(&self) -> &[Arc<Bell>] {
        &self.bells
    }

    pub(super) fn hub_bell(&self) -> &Arc<Bell> {
        &self.hub_bell
    }

    pub(super) fn hub_post(&self) -> &Post<HubOrder> {
        &self.hub
    }

    pub(super) fn hub_is_own(&self) -> bool {
        self.hub_is_own
    }

    /// Whether hubs live on the thread of that shard.
    pub(super) fn hub_is_at(&self, shard: usize) -> bool {
        !self.hub_is_own && shard == 0
    }

    /// Tells the threads of an upstream.
    pub(super) fn add_seat(&self, shards: Vec<SeatPlan>, hub: Option<HubPlan>) {
        for (post, plan) in self.orders.iter().zip(shards) {
            send_surely(post, ShardOrder::AddSeat(Box::new(plan)));
        }
        // After the shards: a hub looks for the seat on its own thread.
        if let Some(plan) = hub {
            send_surely(&self.hub, HubOrder::Add(Box::new(plan)));
        }
    }

    /// An upstream is served no longer.
    pub(super) fn remove_seat(&self, seat: SeatId) {
        send_surely(&self.hub, HubOrder::Remove(seat));
        for post in &self.orders {
            send_surely(post, ShardOrder::RemoveSeat(seat));
        }
    }

    /// These routes are served from now on.
    pub(super) fn set_routes(&self, routes: &Arc<[RoutePlan]>, pass: &Pass) {
        for post in &self.orders {
            let order = ShardOrder::SetRoutes(routes.clone(), pass.clone());
            send_surely(post, order);
        }
    }

    /// Clients may come.
    pub(super) fn open(&self) {
        for post in &self.orders {
            send_surely(post, ShardOrder::Open);
        }
    }

    /// Nothing new is begun; told so again, nothing is waited for.
    pub(super) fn drain(&self) {
        for post in &self.orders {
            send_surely(post, ShardOrder::Drain);
        }
    }

    /// Starts the thread of a bridge. It ends with the bridge's handle.
    pub(super) fn start_bridge(&self, name: String, plan: BridgePlan) -> std::io::Result<()> {
        let work = move |driver, events| bridge::run(plan, driver, events);
        let started = self.spawner.spawn(name, None, Vital::UntilDone, work);
        started.map(drop)
    }
}

/// Orders to one thread that wait; each is taken at once.
const ORDERS_MAX: usize = 64;

/// Starts threads with a loop each, and says when one ends.
struct Spawner {
    driver: DriverChoice,
    ring_flags: RingFlags,
    events: Sender<Event>,
}

/// Whether a thread may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Vital {
    /// It may not.
    Always,
    /// When its work is done.
    UntilDone,
}

impl Spawner {
    fn spawn<F>(
        &self,
        name: String,
        core: Option<usize>,
        vital: Vital,
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
                    if vital == Vital::Always {
                        let _ = events.send(Event::Ready(driver));
                    }
                    event_loop.block_on(work(driver, events.clone()))
                };
                let how = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                    Ok(Ok(())) if vital == Vital::UntilDone => return,
                    Ok(Ok(())) => "its work is done".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => format!("it panicked: {}", tasks::text(&*panic)),
                };
                let _ = events.send(Event::ThreadEnded { thread: name, how });
            })
    }
}
