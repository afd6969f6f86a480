//! The thread of a shard: its orders from the main thread, the seats of the upstreams, the
//! routes, and the hubs if they live here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crossbeam_channel::Receiver as Letters;

use super::events::{Event, spawn_vital};
use super::hub_thread::{Hubs, LocalSeat};
use super::plan::ShardPlan;
use super::private::{self, Carrier};
use super::seat::SeatPlan;
use crate::http::ground::{Ground, Handover, Pass};
use crate::http::joined::{HookAnswer, Joined, RouteSettings, Seat};
use crate::http::listener;
use crate::http::route::{Route, Service};
use crate::http::shard::Shard;
use crate::http::token_file::{TokenCell, TokenReader};
use crate::limits::{
    FAREWELL_MS, HANDOVERS_PER_TURN, HOOK_VERDICTS_MAX, LETTERS_PER_TURN, TICK_MS,
};
use crate::routing::joined::{ASKED_STRIDE, SeatId};
use crate::routing::letters::{Kind, Lines, Messages, Note, ToShard};
use crate::routing::log_level::Level;
use crate::routing::outcome::Outcome;
use crate::routing::session::TokenId;
use crate::routing::shard::ShardState;
use crate::routing::upstream_id::UpstreamId;
use crate::runtime::bell::{BellWaiter, Post, PostError, mailbox};
use crate::runtime::clock;
use crate::runtime::driver::Driver;
use crate::runtime::fair::give_way;
use crate::runtime::notify::Notify;
use crate::runtime::route_counters::RouteCounters;
use crate::upstream::links::LocalShard;
use crate::wire::span::Span;

/// From the main thread to a shard.
#[derive(Debug)]
pub(super) enum ShardOrder {
    /// There is one more upstream. No route has it yet.
    AddSeat(Box<SeatPlan>),
    /// That one is gone. No route has it any more.
    RemoveSeat(SeatId),
    /// These routes are served from now on, and these header lines of clients are passed on.
    SetRoutes(Arc<[RoutePlan]>, Pass),
    /// Clients may come.
    Open,
    /// Nothing new is begun; told so again, nothing is waited for.
    Drain,
}

/// A route, the same for every thread.
#[derive(Debug)]
pub(super) struct RoutePlan {
    /// By which a thread knows it again.
    pub(super) name: String,
    pub(super) path: String,
    pub(super) tokens: Option<Arc<TokenCell>>,
    pub(super) service: ServicePlan,
}

/// What serves a route.
#[derive(Debug)]
pub(super) enum ServicePlan {
    /// One upstream, as it is.
    Plain(SeatId),
    /// These, in this order, under names of the route's own.
    Joined {
        settings: Arc<RouteSettings>,
        seats: Vec<SeatId>,
        /// In the order of the shards.
        counters: Vec<Arc<RouteCounters>>,
    },
}

/// Runs a shard.
pub(super) async fn run(
    plan: ShardPlan,
    driver: Driver,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let ground = Ground::new(
        plan.index,
        plan.shards,
        driver,
        plan.face,
        plan.peers,
        plan.counters,
    );
    let (verdicts_post, verdicts) = mailbox(HOOK_VERDICTS_MAX, &plan.bell);
    ground.set_hook_post(verdicts_post);
    let waiter = BellWaiter::new(plan.bell, driver)?;
    let listener = listener::adopt(plan.listener, driver)?;
    let hub_orders = plan.hub_orders;
    let thread = Rc::new(Thread {
        ground: ground.clone(),
        orders: plan.orders,
        handovers: plan.handovers,
        verdicts,
        seats: RefCell::default(),
        routes: RefCell::default(),
        hubs: hub_orders.map(|orders| Hubs::new(orders, driver, events.clone())),
        opening: Rc::default(),
        events: events.clone(),
    });
    spawn_vital("tick", &events, tick(thread.clone(), events.clone()));
    let opening = thread.opening.clone();
    spawn_vital("accept", &events, async move {
        opening.wait().await;
        listener::accept(ground, listener).await;
    });
    loop {
        match thread.take() {
            true => give_way().await,
            false => waiter.wait(|| thread.has_mail()).await?,
        }
    }
}

/// What a shard's thread has, and its mailboxes.
struct Thread {
    ground: Rc<Ground>,
    orders: Letters<ShardOrder>,
    handovers: Letters<Handover>,
    /// Of hooks that run on threads of their own.
    verdicts: Letters<HookAnswer>,
    seats: RefCell<Vec<Rc<SeatHere>>>,
    routes: RefCell<Vec<RouteHere>>,
    hubs: Option<Hubs>,
    /// Rung when clients may come.
    opening: Rc<Notify>,
    events: Sender<Event>,
}

/// An upstream's seat.
struct SeatHere {
    id: SeatId,
    face: Rc<Face>,
    /// From its hub, if that is on another thread.
    letters: Option<Letters<ToShard>>,
    /// Holds what sessions have upstream, if that is their own.
    _carrier: Option<Rc<Carrier>>,
    /// Ends the task that sends its lines.
    is_removed: Rc<Cell<bool>>,
}

/// A route, so that it is known again.
struct RouteHere {
    name: String,
    route: Rc<Route>,
    tokens: Option<(Arc<TokenCell>, Rc<TokenReader>)>,
}

impl Thread {
    /// Takes a bounded number of letters. True if there were any.
    fn take(&self) -> bool {
        // What the order to a hub is about has been ordered here before.
        let hub_order = self.hubs.as_ref().and_then(Hubs::next_order);
        let mut taken = false;
        for order in self.orders.try_iter() {
            taken = true;
            self.obey(order);
        }
        if let Some(hubs) = &self.hubs {
            taken |= hubs.take(hub_order, |seat| self.local_seat(seat));
        }
        for seat in self.seats.borrow().iter() {
            let Some(letters) = &seat.letters else {
                continue;
            };
            for letter in letters.try_iter().take(LETTERS_PER_TURN) {
                taken = true;
                seat.face.letter(letter);
            }
        }
        for handover in self.handovers.try_iter().take(HANDOVERS_PER_TURN) {
            taken = true;
            listener::take_over(&self.ground, handover);
        }
        for answer in self.verdicts.try_iter().take(LETTERS_PER_TURN) {
            taken = true;
            self.ground.hook_answered(answer);
        }
        taken
    }

    fn has_mail(&self) -> bool {
        let has_letters = |seat: &Rc<SeatHere>| {
            let letters = seat.letters.as_ref();
            letters.is_some_and(|letters| !letters.is_empty())
        };
        !self.orders.is_empty()
            || !self.handovers.is_empty()
            || !self.verdicts.is_empty()
            || self.seats.borrow().iter().any(has_letters)
            || self.hubs.as_ref().is_some_and(Hubs::has_mail)
    }

    fn obey(&self, order: ShardOrder) {
        match order {
            ShardOrder::AddSeat(plan) => self.add_seat(*plan),
            ShardOrder::RemoveSeat(id) => self.remove_seat(id),
            ShardOrder::SetRoutes(routes, pass) => self.set_routes(&routes, pass),
            ShardOrder::Open => self.opening.notify(),
            ShardOrder::Drain => self.ground.drain(),
        }
    }

    fn seat(&self, id: SeatId) -> Option<Rc<SeatHere>> {
        let seats = self.seats.borrow();
        seats.iter().find(|seat| seat.id == id).cloned()
    }

    /// The seat as the hub on this thread needs it.
    fn local_seat(&self, id: SeatId) -> Option<LocalSeat> {
        let face = self.seat(id)?.face.clone();
        let lines_ready = face.shard.lines_ready.clone();
        Some((face, lines_ready))
    }

    fn add_seat(&self, plan: SeatPlan) {
        let ground = &self.ground;
        let now = clock::now();
        let seeds = ahash::RandomState::new();
        let mut state = ShardState::new(ground.index, ground.shards, plan.limits, seeds, now);
        if plan.private.is_some() {
            state = state.with_private(plan.offer, now);
            if plan.seat != SeatId::ONLY {
                let place = u64::from(plan.seat.0) % ASKED_STRIDE;
                state = state.in_place(place, ASKED_STRIDE);
            }
        }
        if ground.is_draining() {
            state.drain();
        }
        let lines_ready = Rc::new(Notify::default());
        let shard = Shard::new(ground.clone(), state, lines_ready, plan.counters);
        let is_removed = Rc::new(Cell::new(false));
        let letters = plan.mail.map(|(letters, lines)| {
            let sending = send_lines(shard.clone(), lines, is_removed.clone());
            spawn_vital("lines", &self.events, sending);
            letters
        });
        let carrier = plan
            .private
            .map(|private| private::connect(&shard, private, plan.span));
        self.seats.borrow_mut().push(Rc::new(SeatHere {
            id: plan.seat,
            face: Rc::new(Face { shard }),
            letters,
            _carrier: carrier,
            is_removed,
        }));
    }

    fn remove_seat(&self, id: SeatId) {
        let Some(seat) = self.seat(id) else { return };
        self.seats.borrow_mut().retain(|known| known.id != id);
        let shard = &seat.face.shard;
        // Its routes have let go of it before; this is for what they may have left.
        end_calls(shard);
        shard.end_all_sessions();
        self.ground.remove_seat(shard);
        seat.is_removed.set(true);
        shard.lines_ready.notify();
    }

    fn set_routes(&self, plans: &[RoutePlan], pass: Pass) {
        let mut before = self.routes.take();
        let left = plans.iter().flat_map(|plan| match &plan.service {
            ServicePlan::Plain(seat) => std::slice::from_ref(seat),
            ServicePlan::Joined { seats, .. } => seats,
        });
        let left: Vec<_> = left.copied().collect();
        for seat in self.seats.borrow().iter() {
            if !left.contains(&seat.id) {
                // Who waits for an upstream that goes hears that, and not that sessions end.
                end_calls(&seat.face.shard);
            }
        }
        let mut routes = Vec::new();
        for plan in plans {
            let known = before.iter().position(|route| route.name == plan.name);
            let known = known.map(|place| before.swap_remove(place));
            routes.extend(self.route(plan, known));
        }
        let served = routes.iter().map(|here| here.route.clone()).collect();
        self.ground.set_routes(served, pass);
        self.routes.replace(routes);
        for gone in before {
            if let Service::Joined(joined) = &gone.route.service {
                joined.close();
            }
        }
    }

    /// A route by its plan; what it had before goes on.
    fn route(&self, plan: &RoutePlan, known: Option<RouteHere>) -> Option<RouteHere> {
        let service = match (&plan.service, known.as_ref().map(|it| &it.route.service)) {
            (ServicePlan::Plain(id), _) => Service::Plain(self.seat(*id)?.face.shard.clone()),
            (
                ServicePlan::Joined {
                    settings,
                    seats,
                    counters,
                },
                known,
            ) => {
                let joined = match known {
                    Some(Service::Joined(joined)) => joined.clone(),
                    _ => {
                        let counters = counters.get(self.ground.index)?.clone();
                        Joined::new(self.ground.clone(), settings.clone(), counters)
                    }
                };
                let seats = seats.iter().filter_map(|id| {
                    let shard = self.seat(*id)?.face.shard.clone();
                    Some(Seat { id: *id, shard })
                });
                joined.configure(settings.clone(), seats.collect());
                Service::Joined(joined)
            }
        };
        let before = known.and_then(|known| known.tokens);
        let tokens = match (&plan.tokens, before) {
            (Some(cell), Some((known, reader))) if Arc::ptr_eq(cell, &known) => {
                Some((known, reader))
            }
            (Some(cell), before) => {
                if before.is_none() {
                    // Who came in without a token is nobody any more.
                    end_sessions_of(&service, &[TokenId::ANYONE]);
                }
                Some((cell.clone(), Rc::new(cell.reader())))
            }
            (None, before) => {
                if before.is_some() {
                    // Nobody can show a token any more: its sessions could not be used or ended.
                    end_sessions_of_tokens(&service);
                }
                None
            }
        };
        let reader = tokens.as_ref().map(|(_, reader)| reader.clone());
        Some(RouteHere {
            name: plan.name.clone(),
            route: Route::new(plan.path.clone(), reader, service),
            tokens,
        })
    }
}

/// Calls in flight at an upstream that goes are answered. Those of sessions with upstreams of
/// their own end with their sessions, which tells the server.
fn end_calls(shard: &Shard) {
    if !shard.is_private() {
        shard.upstream_down();
    }
}

fn end_sessions_of_tokens(service: &Service) {
    // A server that is served as it is has its tokens, or none, from start to end.
    if let Service::Joined(joined) = service {
        joined.end_sessions_of_tokens();
    }
}

fn end_sessions_of(service: &Service, owners: &[TokenId]) {
    match service {
        Service::Plain(shard) => shard.end_sessions_of(owners),
        Service::Joined(joined) => joined.end_sessions_of(owners),
    }
}

/// A seat as the hub sees it, whether letters come directly or by mail.
struct Face {
    shard: Rc<Shard>,
}

impl LocalShard for Face {
    fn letter(&self, letter: ToShard) {
        let shard = &self.shard;
        match letter {
            ToShard::Up { epoch, handshake } => shard.upstream_up(epoch, handshake),
            ToShard::Told { uri, told } => shard.told(&uri, told),
            ToShard::Messages(messages) => self.messages(&messages),
            ToShard::Large {
                kind,
                id,
                id_span,
                line,
            } => self.message(kind, id, id_span, &line),
            ToShard::Written(bytes) => shard.written(bytes),
            ToShard::Down => shard.upstream_down(),
        }
    }

    fn message(&self, kind: Kind, id: UpstreamId, span: Span, message: &[u8]) {
        match kind {
            Kind::Result => self.shard.answer(id, span, message, Outcome::Ok),
            Kind::Error => self.shard.answer(id, span, message, Outcome::Error),
            Kind::Progress => self.shard.progress(id, span, message),
            Kind::TooLong => self.shard.too_long(id),
            Kind::ForeignTask => self.shard.foreign_task(id),
            Kind::TaskStatus => self.shard.task_status(message),
            Kind::Updated => self.shard.updated(message),
            Kind::Changed(kinds) => self.shard.changed(kinds),
        }
    }

    fn take_lines(&self, empty: Vec<u8>) -> Vec<u8> {
        self.shard.state.borrow_mut().outgoing.take_batch(empty)
    }

    fn take_notes(&self) -> (u64, Vec<Note>) {
        let mut state = self.shard.state.borrow_mut();
        (state.epoch(), state.take_notes())
    }

    fn written(&self, bytes: usize) {
        self.shard.written(bytes);
    }

    fn log_level(&self) -> Option<Level> {
        self.shard.state.borrow().log_level()
    }
}

impl Face {
    fn messages(&self, messages: &Messages) {
        for (kind, id, span, message) in messages.iter() {
            self.message(kind, id, span, message);
        }
    }
}

/// Hands a shard's lines to a hub on another thread, until its seat is removed. When the hub's
/// mailbox is full the lines stay here, and the window closes behind them.
async fn send_lines(shard: Rc<Shard>, post: Post<Lines>, is_removed: Rc<Cell<bool>>) {
    let mut sent_level = None;
    loop {
        shard.lines_ready.wait().await;
        if is_removed.get() {
            return;
        }
        // Calls that are ready now join the same batch.
        give_way().await;
        let lines = {
            let mut state = shard.state.borrow_mut();
            let log_level = state.log_level();
            let has_news = state.outgoing.has_batch() || state.has_notes();
            if !has_news && log_level == sent_level {
                continue;
            }
            Lines {
                epoch: state.epoch(),
                bytes: state.outgoing.take_batch(Vec::new()),
                log_level,
                notes: state.take_notes(),
            }
        };
        let log_level = lines.log_level;
        match post.send(lines) {
            Ok(()) => {
                sent_level = log_level;
                post.ring();
                shard.counters.mailbox_to_hub.set(post.depth() as u64);
            }
            Err(PostError::Full(lines)) => {
                {
                    let mut state = shard.state.borrow_mut();
                    state.outgoing.put_back(lines.bytes);
                    state.put_notes_back(lines.notes);
                }
                monoio::time::sleep(Duration::from_millis(1)).await;
                shard.lines_ready.notify();
            }
            Err(PostError::Gone(_)) => return,
        }
    }
}

async fn tick(thread: Rc<Thread>, events: Sender<Event>) {
    let mut has_reported = false;
    let mut drained = None;
    loop {
        monoio::time::sleep(Duration::from_millis(TICK_MS)).await;
        let ground = &thread.ground;
        ground.tick();
        let handovers = thread.handovers.len();
        ground.counters.mailbox_handovers.set(handovers as u64);
        for seat in thread.seats.borrow().iter() {
            let waiting = seat.letters.as_ref().map_or(0, Letters::len);
            let counters = &seat.face.shard.counters;
            counters.mailbox_to_shard.set(waiting as u64);
        }
        if !has_reported && ground.is_drained() {
            // Servers are told that their sessions are over, if they listen.
            let since = *drained.get_or_insert_with(|| {
                ground.end_own_sessions();
                clock::now()
            });
            if ground.is_upstream_quiet() || clock::now().since(since) > FAREWELL_MS {
                has_reported = true;
                let _ = events.send(Event::Drained);
            }
        }
    }
}
