//! The hubs' part of a thread: one hub a shared upstream, the orders from the main thread, and
//! the loop where they have a thread of their own.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crossbeam_channel::Receiver as Letters;
use tracing::Instrument;

use super::events::{Event, spawn_vital};
use super::life::ENDING_MS;
use super::seat::HubPlan;
use crate::routing::hub::HubState;
use crate::routing::joined::SeatId;
use crate::runtime::bell::{Bell, BellWaiter};
use crate::runtime::driver::Driver;
use crate::runtime::fair::give_way;
use crate::runtime::notify::Notify;
use crate::upstream::hub::{Hub, ServerPipes};
use crate::upstream::links::{Link, LocalShard, Remote};

/// From the main thread to the hubs.
#[derive(Debug)]
pub(super) enum HubOrder {
    /// There is one more shared upstream.
    Add(Box<HubPlan>),
    /// That one is gone: its server is asked to end, and nothing of it is told any more.
    Remove(SeatId),
    /// A server has been started.
    Connect(SeatId, ServerPipes),
    /// Close the server's stdin.
    StopWriting(SeatId),
    /// Let go of the pipes of a server that cannot be ended.
    LetGo(SeatId),
}

/// The seat of a shared upstream on the hubs' own thread: who takes letters there, and the bell
/// that it rings.
pub(super) type LocalSeat = (Rc<dyn LocalShard>, Rc<Notify>);

/// The thread of hubs of their own.
pub(super) async fn run(
    orders: Letters<HubOrder>,
    bell: Arc<Bell>,
    driver: Driver,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let waiter = BellWaiter::new(bell, driver)?;
    let hubs = Hubs::new(orders, driver, events);
    loop {
        let order = hubs.next_order();
        match hubs.take(order, |_| None) {
            true => give_way().await,
            false => waiter.wait(|| hubs.has_mail()).await?,
        }
    }
}

/// The hubs of a thread and their mailboxes.
pub(super) struct Hubs {
    orders: Letters<HubOrder>,
    hubs: RefCell<Vec<(SeatId, Rc<Hub>)>>,
    driver: Driver,
    events: Sender<Event>,
}

/// How long the stdout of a server that was removed is waited for: longer than it takes to end
/// it.
const REMOVED_MS: u64 = 2 * ENDING_MS;

impl Hubs {
    pub(super) fn new(orders: Letters<HubOrder>, driver: Driver, events: Sender<Event>) -> Hubs {
        Hubs {
            orders,
            hubs: RefCell::default(),
            driver,
            events,
        }
    }

    /// The next order, to be given to [`Hubs::take`]. What it is about has been ordered of the
    /// shards before.
    pub(super) fn next_order(&self) -> Option<HubOrder> {
        self.orders.try_recv().ok()
    }

    /// Does what was ordered. Lines stay in their mailboxes, as the bound that they are, until
    /// the writing tasks take them; these are told of them here. True if there was an order.
    pub(super) fn take(
        &self,
        order: Option<HubOrder>,
        local: impl FnOnce(SeatId) -> Option<LocalSeat>,
    ) -> bool {
        let taken = order.is_some();
        match order {
            Some(HubOrder::Add(plan)) => {
                let local = local(plan.seat);
                self.add(*plan, local);
            }
            Some(HubOrder::Remove(seat)) => self.remove(seat),
            Some(HubOrder::Connect(seat, pipes)) => {
                if let Some(hub) = self.hub(seat) {
                    hub.connect(pipes);
                }
            }
            Some(HubOrder::StopWriting(seat)) => {
                if let Some(hub) = self.hub(seat) {
                    hub.stop();
                }
            }
            Some(HubOrder::LetGo(seat)) => {
                if let Some(hub) = self.hub(seat) {
                    hub.let_go();
                }
            }
            None => {}
        }
        for (_, hub) in self.hubs.borrow().iter() {
            if hub.has_news() {
                hub.tell_writer();
            }
        }
        taken
    }

    pub(super) fn has_mail(&self) -> bool {
        let hubs = self.hubs.borrow();
        !self.orders.is_empty() || hubs.iter().any(|(_, hub)| hub.has_news())
    }

    fn hub(&self, seat: SeatId) -> Option<Rc<Hub>> {
        let hubs = self.hubs.borrow();
        let found = hubs.iter().find(|(known, _)| *known == seat);
        found.map(|(_, hub)| hub.clone())
    }

    fn add(&self, plan: HubPlan, local: Option<LocalSeat>) {
        if plan.links.iter().any(Option::is_none) && local.is_none() {
            // A later order, which the shard has had already, takes it away again.
            return;
        }
        let (local, lines_ready) = local.unzip();
        let lines_ready = lines_ready.unwrap_or_default();
        let mut local = local;
        let links: Vec<_> = plan
            .links
            .into_iter()
            .filter_map(|ends| match ends {
                Some((post, lines)) => Some(Link::Remote(Remote::new(post, lines))),
                // There is one at most, and its shard has been told of it before.
                None => local.take().map(Link::Local),
            })
            .collect();
        let (seat, reports) = (plan.seat, self.events.clone());
        let report = move |event| {
            let _ = reports.send(Event::Hub(seat, event));
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
        let span = plan.span;
        let running = hub.clone().run(self.driver).instrument(span.clone());
        spawn_vital("hub", &self.events, running);
        let retrying = hub.clone().retry_overflow().instrument(span);
        spawn_vital("overflow", &self.events, retrying);
        self.hubs.borrow_mut().push((seat, hub));
    }

    fn remove(&self, seat: SeatId) {
        let Some(hub) = self.hub(seat) else { return };
        self.hubs.borrow_mut().retain(|(known, _)| *known != seat);
        hub.close();
        // The server is being ended; one that cannot be must leave nothing here.
        let hub = Rc::downgrade(&hub);
        spawn_vital("removed", &self.events, async move {
            monoio::time::sleep(Duration::from_millis(REMOVED_MS)).await;
            if let Some(hub) = hub.upgrade() {
                hub.let_go();
            }
        });
    }
}
