//! What the tasks of one thread share, whichever route they serve: the connections,
//! the budget, the settings of the process, the routes, the neighbours. No borrow of a
//! cell is held across a wait.

use std::cell::{Cell, Ref, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use monoio::io::{CancelHandle, Canceller};

use super::connections::{ConnectionKey, Connections, Delivery, Form, Phase, Streamed, Wake};
use super::joined::HookAnswer;
use super::policy::Policy;
use super::response::{self, DateLine, Manner};
use super::route::{Route, Service};
use super::shard::Shard;
use crate::limits::HOOK_VERDICTS_MAX;
use crate::routing::calls::ReplyTo;
use crate::routing::drops::DropReason;
use crate::routing::event_queue::EventQueue;
use crate::routing::time::Millis;
use crate::runtime::bell::{Post, PostError};
use crate::runtime::clock;
use crate::runtime::counters::Counters;
use crate::runtime::driver::Driver;
use crate::wire::reply::Reason;

/// In which form answers are given to clients that take both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum ResponseMode {
    /// JSON, or SSE when progress comes before the answer.
    Auto,
    /// JSON.
    Json,
    /// SSE.
    Sse,
}

/// The settings of the downstream face. Times in milliseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct FaceConfig {
    pub policy: Policy,
    pub response_mode: ResponseMode,
    /// Bytes of a request body at most.
    pub body_bytes_max: usize,
    /// Bytes of an id or a progress token at most; the scan's own bound is
    /// [`crate::wire::scan::ID_BYTES_MAX`].
    pub id_bytes_max: usize,
    /// Connections of one shard at most.
    pub connections_max: usize,
    /// From the first byte of a head to its end.
    pub header_timeout_ms: u64,
    /// From the end of a head to the end of its body.
    pub body_timeout_ms: u64,
    /// Between two requests.
    pub idle_timeout_ms: u64,
    /// For one response to be taken.
    pub write_timeout_ms: u64,
    /// Bytes of bodies, waiting calls and answers of one shard at most.
    pub buffered_bytes_max: usize,
    /// A client that vanishes cancels its call.
    pub cancel_on_disconnect: bool,
    /// GET opens a stream.
    pub get_streams: bool,
    /// Silence of an answer or a stream after which it is kept alive.
    pub keep_alive_ms: u64,
}

/// Appends a header line if it is to be passed on: name, value, where to.
type PassLine = dyn Fn(&str, &[u8], &mut Vec<u8>) + Send + Sync;

/// The rule by which header lines of clients are passed on; none by default.
#[derive(Clone, Default)]
pub struct Pass(pub Option<Arc<PassLine>>);

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pass").field(&self.0.is_some()).finish()
    }
}

/// A connection on its way to the shard that owns the session it speaks for.
#[derive(Debug)]
pub struct Handover {
    pub socket: OwnedFd,
    /// What has been read of it and not been answered: it starts with the head
    /// of the request that moved it.
    pub unread: Vec<u8>,
}

/// What one thread serves with.
pub struct Ground {
    pub index: usize,
    pub shards: usize,
    pub driver: Driver,
    pub config: Arc<FaceConfig>,
    pub(super) connections: RefCell<Connections>,
    /// The other shards, in their order; the own place is never used.
    pub peers: Vec<Post<Handover>>,
    pub counters: Arc<Counters>,
    /// Ends the accept that is waiting.
    accepting: RefCell<Canceller>,
    date: Cell<(u64, DateLine)>,
    /// The upstreams' seats on this thread.
    seats: RefCell<Vec<Rc<Shard>>>,
    routes: RefCell<Rc<[Rc<Route>]>>,
    /// Which header lines of clients some upstream gets.
    pass: RefCell<Pass>,
    /// What waits for all upstreams together took half of the budget when last looked at.
    is_waiting_full: Cell<bool>,
    /// Where the threads of hooks send their verdicts for this thread.
    hook_post: RefCell<Option<Post<HookAnswer>>>,
    /// Verdicts that have been asked for and not been taken out of the mailbox.
    verdicts_owed: Cell<usize>,
}

impl Ground {
    pub fn new(
        index: usize,
        shards: usize,
        driver: Driver,
        config: Arc<FaceConfig>,
        peers: Vec<Post<Handover>>,
        counters: Arc<Counters>,
    ) -> Rc<Ground> {
        Rc::new(Ground {
            index,
            shards,
            driver,
            config,
            connections: RefCell::new(Connections::new(clock::now())),
            peers,
            counters,
            accepting: RefCell::default(),
            date: Cell::new((u64::MAX, [0; 37])),
            seats: RefCell::default(),
            routes: RefCell::new(Rc::new([])),
            pass: RefCell::default(),
            is_waiting_full: Cell::new(false),
            hook_post: RefCell::default(),
            verdicts_owed: Cell::new(0),
        })
    }

    pub(super) fn add_seat(&self, seat: &Rc<Shard>) {
        self.seats.borrow_mut().push(seat.clone());
    }

    /// The seat is served no longer.
    pub fn remove_seat(&self, seat: &Rc<Shard>) {
        self.seats
            .borrow_mut()
            .retain(|known| !Rc::ptr_eq(known, seat));
    }

    pub(super) fn each_seat(&self, mut f: impl FnMut(&Rc<Shard>)) {
        let seats = self.seats.borrow().clone();
        seats.iter().for_each(&mut f);
    }

    /// These routes are served from now on.
    pub fn set_routes(&self, routes: Vec<Rc<Route>>, pass: Pass) {
        self.routes.replace(routes.into());
        self.pass.replace(pass);
    }

    /// The route at `path`.
    pub fn route(&self, path: &str) -> Option<Rc<Route>> {
        let routes = self.routes.borrow();
        routes.iter().find(|route| route.path == path).cloned()
    }

    /// The threads of hooks send their verdicts there, for [`Ground::hook_answered`].
    pub fn set_hook_post(&self, post: Post<HookAnswer>) {
        self.hook_post.replace(Some(post));
    }

    pub(super) fn hook_post(&self) -> Option<Post<HookAnswer>> {
        self.hook_post.borrow().clone()
    }

    /// A verdict is about to be asked for. False where the mailbox might have no room for it:
    /// verdicts that nobody has taken yet fill it, too.
    pub(super) fn owes_one_more(&self) -> bool {
        let owed = self.verdicts_owed.get();
        let has_room = owed < HOOK_VERDICTS_MAX;
        if has_room {
            self.verdicts_owed.set(owed + 1);
        }
        has_room
    }

    /// A verdict has come, or was not asked for after all.
    pub(super) fn owes_one_less(&self) {
        let owed = self.verdicts_owed.get();
        self.verdicts_owed.set(owed.saturating_sub(1));
    }

    /// Verdicts that are waited for.
    #[cfg(test)]
    pub(super) fn verdicts_owed(&self) -> usize {
        self.verdicts_owed.get()
    }

    /// The hooks of a route have spoken.
    pub fn hook_answered(&self, answer: HookAnswer) {
        self.owes_one_less();
        let routes = self.routes.borrow().clone();
        for route in routes.iter() {
            if let Service::Joined(joined) = &route.service
                && *joined.name() == *answer.route()
            {
                joined.hook_answered(answer);
                return;
            }
        }
    }

    pub fn first_route(&self) -> Option<Rc<Route>> {
        self.routes.borrow().first().cloned()
    }

    /// Not cloned: its count would be shared by all threads.
    pub fn pass(&self) -> Ref<'_, Pass> {
        self.pass.borrow()
    }

    fn waiting_bytes(&self) -> usize {
        let seats = self.seats.borrow();
        let at_seats = seats.iter().map(|seat| seat.state.borrow().waiting_bytes());
        let routes = self.routes.borrow();
        let gathered = routes.iter().map(|route| match &route.service {
            Service::Plain(_) => 0,
            Service::Joined(joined) => joined.waiting_bytes(),
        });
        at_seats.sum::<usize>() + gathered.sum::<usize>()
    }

    /// Whether so much waits for upstreams that no more is taken: each has a bound of its own,
    /// and many of them together would fill the budget.
    pub(super) fn is_waiting_full(&self) -> bool {
        self.is_waiting_full.get()
    }

    /// Calls in flight at all upstreams, or held for hooks.
    pub fn calls_in_flight(&self) -> usize {
        let seats = self.seats.borrow();
        let at_seats = seats
            .iter()
            .map(|seat| seat.state.borrow().calls_in_flight());
        let routes = self.routes.borrow();
        let held = routes.iter().map(|route| match &route.service {
            Service::Plain(_) => 0,
            Service::Joined(joined) => joined.held(),
        });
        at_seats.sum::<usize>() + held.sum::<usize>()
    }

    /// The `date` field, formatted once a second.
    pub fn date(&self) -> DateLine {
        let second = clock::now().0 / 1_000;
        let (known, line) = self.date.get();
        if known == second {
            return line;
        }
        let line = response::date_line(std::time::SystemTime::now());
        self.date.set((second, line));
        line
    }

    pub fn open_connection(&self) -> Option<ConnectionKey> {
        let mut connections = self.connections.borrow_mut();
        if connections.len() >= self.config.connections_max {
            return None;
        }
        Some(connections.open())
    }

    pub fn close_connection(&self, key: ConnectionKey) {
        self.connections.borrow_mut().close(key);
    }

    /// Where a connection is in its life. False: it is to end.
    pub fn enter(&self, key: ConnectionKey, phase: Phase) -> bool {
        self.connections.borrow_mut().enter(key, phase)
    }

    /// The connection holds `bytes` of its body. False if the shard has no room
    /// for it: bodies get half of the budget, so that they leave room for
    /// answers whatever comes.
    pub fn hold_body(&self, key: ConnectionKey, bytes: usize) -> bool {
        let room = self.config.buffered_bytes_max / 2;
        self.connections
            .borrow_mut()
            .try_hold_body(key, bytes, room)
    }

    /// The connection's body has been used.
    pub fn release_body(&self, key: ConnectionKey) {
        self.connections.borrow_mut().release_body(key);
    }

    /// The client has taken what was delivered.
    pub fn release_answers(&self, key: ConnectionKey) {
        self.connections.borrow_mut().release_answers(key);
    }

    /// Bytes that bodies, waiting calls and answers take.
    pub fn buffered_bytes(&self) -> usize {
        self.connections.borrow().held_bytes() + self.waiting_bytes()
    }

    /// Bytes that answers may take: what bodies and waiting calls leave of the budget.
    pub(super) fn answers_room(&self) -> usize {
        let taken = self.waiting_bytes() + self.connections.borrow().body_bytes();
        self.config.buffered_bytes_max.saturating_sub(taken)
    }

    /// Answers may take what bodies and waiting calls leave of the budget; over it
    /// progress goes first, then the connection with the largest backlog.
    pub(super) fn enforce_budget(&self) {
        let room = self.answers_room();
        let mut connections = self.connections.borrow_mut();
        let dropped = connections.drop_progress_over(room);
        self.counters.dropped_many(DropReason::SlowReader, dropped);
        let evicted = connections.evict_over(room);
        if evicted > 0 {
            self.counters.evicted.add(evicted as u64);
        }
    }

    /// The cancel handle of the accept that is about to begin; `None` while
    /// draining.
    pub fn accept_handle(&self) -> Option<CancelHandle> {
        let is_draining = self.connections.borrow().is_draining();
        (!is_draining).then(|| self.accepting.borrow().handle())
    }

    /// Finishes what is in flight and begins nothing new: no connection is
    /// accepted, idle ones end, new calls are refused. Told so again, it waits for
    /// nothing: all that is in flight ends, and sessions with upstreams of their own.
    pub fn drain(&self) {
        if self.is_draining() {
            self.end_own_sessions();
            self.each_seat(|seat| seat.end_calls(Reason::Draining));
            return;
        }
        self.each_seat(|seat| seat.state.borrow_mut().drain());
        self.connections.borrow_mut().drain();
        let canceller = self.accepting.take();
        self.accepting.replace(canceller.cancel());
    }

    /// Ends every session that has upstreams of its own, so that these are told.
    pub fn end_own_sessions(&self) {
        self.each_seat(|seat| {
            if seat.is_private() {
                seat.end_all_sessions();
            }
        });
    }

    /// What was ended has been told upstream.
    pub fn is_upstream_quiet(&self) -> bool {
        self.seats
            .borrow()
            .iter()
            .all(|seat| seat.is_upstream_quiet())
    }

    pub fn is_draining(&self) -> bool {
        self.connections.borrow().is_draining()
    }

    /// Nothing is in flight any more, after [`Ground::drain`].
    pub fn is_drained(&self) -> bool {
        let connections = self.connections.borrow();
        connections.is_draining() && self.calls_in_flight() == 0 && !connections.has_busy()
    }

    pub fn begin_exchange(&self, key: ConnectionKey, form: Form) -> ReplyTo {
        self.connections.borrow_mut().begin(key, form)
    }

    pub fn end_exchange(&self, key: ConnectionKey) {
        self.connections.borrow_mut().end(key);
    }

    pub fn poll_connection(&self, key: ConnectionKey, cx: &std::task::Context<'_>) -> Option<Wake> {
        self.connections.borrow_mut().poll(key, cx)
    }

    pub fn poll_deadline(&self, key: ConnectionKey, cx: &std::task::Context<'_>) -> bool {
        self.connections.borrow_mut().poll_deadline(key, cx)
    }

    pub fn set_deadline(&self, key: ConnectionKey, due: Millis) {
        self.connections.borrow_mut().set_deadline(key, due);
    }

    /// The form of the answer in progress changes, because its head goes out.
    pub fn set_form(&self, key: ConnectionKey, form: Form) {
        self.connections.borrow_mut().set_form(key, form);
    }

    /// Gives a request this message as its answer, `status` where the head of the answer
    /// is still to go out. False if its client is gone.
    pub(super) fn respond(&self, to: ReplyTo, status: u16, message: &[u8]) -> bool {
        let date = self.date();
        let delivered = self.connections.borrow_mut().deliver(
            to,
            |form| match form {
                Form::Json { manner, .. } => Delivery::Response {
                    status,
                    bytes: response::complete(manner, &date, status, b"", message),
                },
                _ => Delivery::Message {
                    part: to.part,
                    message: message.to_vec(),
                },
            },
            |events| events.reply(|out| out.extend_from_slice(message)),
        );
        if delivered {
            self.enforce_budget();
        }
        delivered
    }

    /// The whole response to an `initialize`. False if its client is gone.
    pub(super) fn answer_opening(
        &self,
        to: ReplyTo,
        status: u16,
        fields: &[u8],
        message: &[u8],
    ) -> bool {
        let date = self.date();
        let is_taken = self.connections.borrow_mut().deliver(
            to,
            |form| {
                let bytes = match form {
                    Form::Opening { manner, sse: true } if status == 200 => {
                        whole_stream(manner, &date, fields, message)
                    }
                    Form::Opening { manner, .. } => {
                        response::complete(manner, &date, status, fields, message)
                    }
                    _ => Vec::new(),
                };
                Delivery::Response { status, bytes }
            },
            |_| {},
        );
        if is_taken {
            self.enforce_budget();
        }
        is_taken
    }

    /// Counts what became of a progress message.
    pub(super) fn count_streamed(&self, streamed: Streamed) {
        count_streamed(&self.counters, streamed);
    }

    /// Tells a request that its client has cancelled it; `error` is for clients that take
    /// only JSON.
    pub(super) fn cancel(&self, to: ReplyTo, error: Vec<u8>) {
        let delivered = self.connections.borrow_mut().deliver(
            to,
            |_| Delivery::Cancelled {
                part: to.part,
                error,
            },
            EventQueue::end,
        );
        if delivered {
            self.enforce_budget();
        }
    }

    /// Wakes the task of a connection, which looks for itself what there is to do.
    pub(super) fn wake(&self, key: ConnectionKey) {
        self.connections.borrow_mut().wake(key);
    }

    /// Time passes.
    pub fn tick(&self) {
        let now = clock::now();
        let connections = self.connections.borrow().len();
        self.counters.connections.set(connections as u64);
        let waiting = self.waiting_bytes();
        self.is_waiting_full
            .set(waiting > self.config.buffered_bytes_max / 2);
        let buffered = self.connections.borrow().held_bytes() + waiting;
        self.counters.buffered_bytes.set(buffered as u64);
        let routes = self.routes.borrow().clone();
        routes.iter().for_each(|route| route.refresh_tokens());
        self.connections.borrow_mut().tick(now);
        self.each_seat(|seat| seat.tick(now));
        let mut sessions = None;
        for route in routes.iter() {
            if let Service::Joined(joined) = &route.service {
                joined.tick(now);
                sessions = Some(sessions.unwrap_or(0) + joined.sessions());
            }
        }
        if let Some(sessions) = sessions {
            self.counters.sessions.set(sessions as u64);
        }
    }

    /// Hands a connection over to shard `owner`. False if that shard's mailbox
    /// is full: the connection comes back in the error.
    pub fn hand_over(&self, owner: usize, handover: Handover) -> Result<(), Handover> {
        let peer = &self.peers[owner];
        match peer.send(handover) {
            Ok(()) => {
                peer.ring();
                self.counters.handovers.add(1);
                Ok(())
            }
            Err(PostError::Full(handover) | PostError::Gone(handover)) => Err(handover),
        }
    }
}

/// An SSE answer that is one message.
fn whole_stream(
    manner: &Manner,
    date: &response::DateLine,
    fields: &[u8],
    message: &[u8],
) -> Vec<u8> {
    let mut manner = manner.clone();
    if !manner.http11 {
        manner.close();
    }
    let mut out = Vec::new();
    response::sse_head(&mut out, &manner, date, fields);
    response::sse_message(&mut out, &manner, message);
    response::end(&mut out, manner.http11);
    out
}

/// Counts what became of a progress message.
pub(super) fn count_streamed(counters: &Counters, streamed: Streamed) {
    match streamed {
        Streamed::Taken { own, elsewhere } => {
            counters.events_progress.add(1);
            counters.dropped_many(DropReason::SlowReader, own + elsewhere);
        }
        Streamed::NoRoom => {
            counters.dropped(DropReason::SlowReader);
        }
        Streamed::NoStream => {
            counters.dropped(DropReason::Progress);
        }
        Streamed::Gone => {
            counters.dropped(DropReason::ClientGone);
        }
    }
}
