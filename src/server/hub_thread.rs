//! The hub's part of a thread: its orders from the main thread, and its loop
//! where it has a thread of its own.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use crossbeam_channel::Receiver as Letters;

use super::events::{Event, spawn_vital};
use super::plan::HubPlan;
use crate::routing::hub::HubState;
use crate::runtime::bell::{Bell, BellWaiter};
use crate::runtime::driver::Driver;
use crate::runtime::fair::give_way;
use crate::runtime::notify::Notify;
use crate::upstream::hub::{Hub, ServerPipes};
use crate::upstream::links::{Link, LocalShard, Remote};

/// From the main thread to the hub.
#[derive(Debug)]
pub(super) enum HubOrder {
    /// A server has been started.
    Connect(ServerPipes),
    /// Close the server's stdin.
    StopWriting,
}

/// The thread of a hub of its own.
pub(super) async fn run(
    plan: HubPlan,
    bell: Arc<Bell>,
    driver: Driver,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let waiter = BellWaiter::new(bell, driver)?;
    let hub = start(plan, None, Rc::new(Notify::default()), driver, events);
    loop {
        match hub.take() {
            true => give_way().await,
            false => waiter.wait(|| hub.has_mail()).await?,
        }
    }
}

/// Starts the hub on this thread. `local` is the shard that lives here too,
/// which is shard 0.
pub(super) fn start(
    plan: HubPlan,
    local: Option<Rc<dyn LocalShard>>,
    lines_ready: Rc<Notify>,
    driver: Driver,
    events: Sender<Event>,
) -> HubMail {
    let mut local = local;
    let links: Vec<_> = plan
        .links
        .into_iter()
        .map(|(post, lines)| match local.take() {
            Some(shard) => Link::Local(shard),
            None => Link::Remote(Remote::new(post, lines)),
        })
        .collect();
    let reports = events.clone();
    let report = move |event| {
        let _ = reports.send(Event::Hub(event));
    };
    let seeds = ahash::RandomState::new();
    let hub = Hub::new(
        HubState::new(links.len(), plan.offer, plan.request_timeout_ms, seeds),
        links,
        lines_ready,
        plan.line_bytes_max,
        plan.counters,
        Box::new(report),
    );
    spawn_vital("hub", &events, hub.clone().run(driver));
    spawn_vital("overflow", &events, hub.clone().retry_overflow());
    HubMail {
        hub,
        orders: plan.orders,
    }
}

/// The mailboxes of the hub.
pub(super) struct HubMail {
    hub: Rc<Hub>,
    orders: Letters<HubOrder>,
}

impl HubMail {
    /// Takes the orders. Lines stay in their mailboxes, as the bound that they
    /// are, until the writing task takes them; it is told of them here. True if
    /// there was an order.
    pub(super) fn take(&self) -> bool {
        let order = self.orders.try_recv();
        let taken = order.is_ok();
        match order {
            Ok(HubOrder::Connect(pipes)) => self.hub.connect(pipes),
            Ok(HubOrder::StopWriting) => self.hub.stop(),
            Err(_) => {}
        }
        if self.hub.has_news() {
            self.hub.tell_writer();
        }
        taken
    }

    pub(super) fn has_mail(&self) -> bool {
        !self.orders.is_empty() || self.hub.has_news()
    }
}
