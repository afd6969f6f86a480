//! One shard's own world, reached by every task of its thread and by no other
//! thread: its routing state, its connections, its settings, its neighbours.
//! No borrow of a cell is held across a wait.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use monoio::io::{CancelHandle, Canceller};

use super::auth::Unauthorized;
use super::connections::{ConnectionKey, Connections, Delivery, Form, Phase, Wake};
use super::head::Head;
use super::policy::Policy;
use super::response::{self, DateLine};
use super::token_file::TokenReader;
use crate::routing::calls::{Call, ReplyTo};
use crate::routing::drops::DropReason;
use crate::routing::log_level::Level;
use crate::routing::outcome::Outcome;
use crate::routing::session::{SessionKey, TokenId};
use crate::routing::shard::{Ended, SessionsFull, ShardState};
use crate::routing::time::Millis;
use crate::routing::upstream_id::UpstreamId;
use crate::runtime::bell::{Post, PostError};
use crate::runtime::clock;
use crate::runtime::counters::Counters;
use crate::runtime::driver::Driver;
use crate::runtime::notify::Notify;
use crate::wire::reply::Reason;
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};
use crate::wire::version::Version;

/// In which form answers are given to clients that take both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum ResponseMode {
    /// JSON.
    Auto,
    /// JSON.
    Json,
    /// SSE.
    Sse,
}

/// The settings of the downstream face. Times in milliseconds.
#[derive(Debug)]
pub struct FaceConfig {
    /// The path of the MCP endpoint.
    pub path: String,
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
}

/// A connection on its way to the shard that owns the session it speaks for.
#[derive(Debug)]
pub struct Handover {
    pub socket: OwnedFd,
    /// What has been read of it and not been answered: it starts with the head
    /// of the request that moved it.
    pub unread: Vec<u8>,
}

/// The world of one shard.
pub struct Shard {
    pub index: usize,
    pub shards: usize,
    pub driver: Driver,
    pub config: Arc<FaceConfig>,
    pub state: RefCell<ShardState>,
    connections: RefCell<Connections>,
    /// Rung when there are lines for the hub.
    pub lines_ready: Rc<Notify>,
    /// The other shards, in their order; the own place is never used.
    pub peers: Vec<Post<Handover>>,
    pub counters: Arc<Counters>,
    /// The log level that the hub was last rung for.
    told_log_level: Cell<Option<Level>>,
    /// Ends the accept that is waiting.
    accepting: RefCell<Canceller>,
    /// There where tokens are configured.
    tokens: Option<TokenReader>,
    date: Cell<(u64, DateLine)>,
}

impl Shard {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once, by the one place that knows all parts"
    )]
    pub fn new(
        index: usize,
        shards: usize,
        driver: Driver,
        config: Arc<FaceConfig>,
        state: ShardState,
        lines_ready: Rc<Notify>,
        peers: Vec<Post<Handover>>,
        counters: Arc<Counters>,
        tokens: Option<TokenReader>,
    ) -> Rc<Shard> {
        Rc::new(Shard {
            index,
            shards,
            driver,
            config,
            state: RefCell::new(state),
            connections: RefCell::new(Connections::new(clock::now())),
            lines_ready,
            peers,
            counters,
            told_log_level: Cell::new(None),
            accepting: RefCell::default(),
            tokens,
            date: Cell::new((u64::MAX, [0; 37])),
        })
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
        let waiting = self.state.borrow().outgoing.waiting_bytes();
        self.connections.borrow().held_bytes() + waiting
    }

    /// Answers may take what bodies and waiting calls leave of the budget.
    fn enforce_budget(&self) {
        let waiting = self.state.borrow().outgoing.waiting_bytes();
        let mut connections = self.connections.borrow_mut();
        let taken = waiting + connections.body_bytes();
        let room = self.config.buffered_bytes_max.saturating_sub(taken);
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
    /// accepted, idle ones end, new calls are refused.
    pub fn drain(&self) {
        self.state.borrow_mut().drain();
        self.connections.borrow_mut().drain();
        let canceller = self.accepting.take();
        self.accepting.replace(canceller.cancel());
    }

    pub fn is_draining(&self) -> bool {
        self.connections.borrow().is_draining()
    }

    /// Nothing is in flight any more, after [`Shard::drain`].
    pub fn is_drained(&self) -> bool {
        let connections = self.connections.borrow();
        connections.is_draining()
            && self.state.borrow().calls_in_flight() == 0
            && !connections.has_busy()
    }

    /// The client of these calls is gone: with `--on-disconnect cancel` they
    /// end, else they run on and their answers are dropped.
    pub fn client_gone(&self, calls: &[UpstreamId]) {
        if !self.config.cancel_on_disconnect {
            return;
        }
        for id in calls {
            let ended = self.state.borrow_mut().withdraw(*id, Reason::Cancelled);
            ended.iter().for_each(|ended| self.tell(ended));
        }
        self.notify_hub();
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

    /// Who sends this request. Without tokens everybody is the same.
    pub fn authorize(&self, head: &Head) -> Result<TokenId, Unauthorized> {
        let Some(tokens) = &self.tokens else {
            return Ok(TokenId::ANYONE);
        };
        self.refresh_tokens();
        tokens.check(head.authorization.as_ref().map(|value| value.as_bytes()))
    }

    /// Takes over tokens that have changed: sessions of those that are gone end.
    /// Also before a check, since a busy shard's timers may be late.
    fn refresh_tokens(&self) {
        let gone = self.tokens.as_ref().map(TokenReader::refresh);
        let Some(gone) = gone.filter(|gone| !gone.is_empty()) else {
            return;
        };
        let mut ended = Vec::new();
        let sessions = self.state.borrow_mut().end_sessions_of(&gone, &mut ended);
        ended.iter().for_each(|ended| self.tell(ended));
        self.notify_hub();
        tracing::info!(
            shard = self.index,
            sessions,
            "sessions of removed tokens ended"
        );
    }

    /// Opens a session of `version`, under an id from the system's random source.
    pub fn open_session(
        &self,
        owner: TokenId,
        version: Version,
    ) -> Result<SessionKey, SessionsFull> {
        let draw = || uuid::Uuid::new_v4().as_u128();
        self.state
            .borrow_mut()
            .open_session(owner, version, clock::now(), draw)
    }

    /// The server's answer to call `id`: to the client that asked, with its own id.
    pub fn answer(&self, id: UpstreamId, id_span: Span, line: &[u8], outcome: Outcome) {
        let now = clock::precise();
        let call = self.state.borrow_mut().answered(id, now.millis());
        match call {
            Some(call) => {
                self.counters.calls.count(call.method, outcome);
                self.counters.durations.record(now.since(call.started));
                self.deliver_line(&call, id_span, line);
            }
            None => {
                self.counters.dropped(DropReason::LateAnswer);
            }
        }
    }

    fn deliver_line(&self, call: &Call, id_span: Span, line: &[u8]) {
        let client_id = call.client_id.raw();
        let mut edits = [Edit {
            span: id_span,
            with: client_id,
        }];
        let bytes = line.len() - id_span.len() + client_id.len();
        let delivered = self
            .connections
            .borrow_mut()
            .deliver(call.reply_to, |form| match form {
                Form::Json(manner) => {
                    let mut out = Vec::new();
                    response::json_head(&mut out, manner, &self.date(), bytes);
                    let head = out.len();
                    splice(&mut out, line, &mut edits);
                    debug_assert_eq!(out.len(), head + bytes, "the length was announced");
                    Delivery::Response(out)
                }
                Form::Messages | Form::Idle => {
                    let mut message = Vec::new();
                    splice(&mut message, line, &mut edits);
                    Delivery::Message {
                        part: call.reply_to.part,
                        message,
                    }
                }
            });
        match delivered {
            true => self.enforce_budget(),
            false => {
                self.counters.dropped(DropReason::ClientGone);
            }
        }
    }

    /// Tells the client of a call that ended without an answer.
    pub fn tell(&self, ended: &Ended) {
        let outcome = Outcome::from(ended.reason);
        self.counters.calls.count(ended.call.method, outcome);
        let to = ended.reply_to();
        let date = self.date();
        self.connections.borrow_mut().deliver(to, |form| {
            let message = ended.body();
            match form {
                _ if ended.reason == Reason::Cancelled => Delivery::Cancelled {
                    part: to.part,
                    error: message,
                },
                Form::Json(manner) => {
                    Delivery::Response(response::complete(manner, &date, 200, b"", &message))
                }
                Form::Messages | Form::Idle => Delivery::Message {
                    part: to.part,
                    message,
                },
            }
        });
    }

    /// The server's answer to call `id` was over `--max-message`.
    pub fn too_long(&self, id: UpstreamId) {
        let call = self.state.borrow_mut().answered(id, clock::now());
        if let Some(call) = call {
            self.tell(&Ended {
                call,
                reason: Reason::TooLarge,
            });
        }
    }

    /// The server reported progress on call `id`.
    pub fn progress(&self, id: UpstreamId) {
        self.state.borrow_mut().progressed(id, clock::now());
        self.counters.dropped(DropReason::Progress);
    }

    /// The upstream is gone: every call in flight is answered.
    pub fn upstream_down(&self) {
        let mut ended = Vec::new();
        self.state.borrow_mut().upstream_down(&mut ended);
        ended.iter().for_each(|ended| self.tell(ended));
    }

    /// Ends a session.
    pub fn end_session(&self, key: SessionKey) {
        let mut ended = Vec::new();
        self.state.borrow_mut().end_session(key, &mut ended);
        ended.iter().for_each(|ended| self.tell(ended));
        self.notify_hub();
    }

    /// Rings for the hub if there are lines for it, or another log level.
    pub fn notify_hub(&self) {
        let state = self.state.borrow();
        let log_level = state.log_level();
        if state.outgoing.has_batch() || self.told_log_level.get() != log_level {
            self.told_log_level.set(log_level);
            self.lines_ready.notify();
        }
    }

    /// `bytes` of the shard's lines have been written.
    pub fn written(&self, bytes: usize) {
        {
            let mut state = self.state.borrow_mut();
            state.outgoing.written(bytes);
            state.refill();
        }
        self.notify_hub();
    }

    fn set_gauges(&self) {
        let state = self.state.borrow();
        let counters = &self.counters;
        let connections = self.connections.borrow().len();
        counters.connections.set(connections as u64);
        counters.sessions.set(state.sessions.len() as u64);
        counters.calls_in_flight.set(state.calls_in_flight() as u64);
        counters.buffered_bytes.set(self.buffered_bytes() as u64);
    }

    /// Time passes.
    pub fn tick(&self) {
        self.set_gauges();
        let now = clock::now();
        self.refresh_tokens();
        self.connections.borrow_mut().tick(now);
        let mut ended = Vec::new();
        self.state.borrow_mut().tick(now, &mut ended);
        ended.iter().for_each(|ended| self.tell(ended));
        self.notify_hub();
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
