//! One shard's own world, reached by every task of its thread and by no other
//! thread: its routing state, its connections, its settings, its neighbours.
//! No borrow of a cell is held across a wait.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use monoio::io::{CancelHandle, Canceller};

use super::auth::Unauthorized;
use super::connections::{ConnectionKey, Connections, Delivery, Form, Phase, Streamed, Wake};
use super::head::Head;
use super::policy::Policy;
use super::response::{self, DateLine};
use super::token_file::TokenReader;
use crate::limits::REPLACEMENTS_LOGGED;
use crate::routing::arrival::{Answered, Progressed};
use crate::routing::calls::{Call, ReplyTo};
use crate::routing::drops::DropReason;
use crate::routing::event_queue::EventQueue;
use crate::routing::ledger::Told;
use crate::routing::log_level::Level;
use crate::routing::marks::TaskNews;
use crate::routing::outcome::Outcome;
use crate::routing::private::Order;
use crate::routing::session::{SessionKey, TokenId};
use crate::routing::shard::{Act, Ended, SessionsFull, ShardState};
use crate::routing::stream::Work;
use crate::routing::tasks::TaskKey;
use crate::routing::time::{Micros, Millis};
use crate::routing::upstream_id::UpstreamId;
use crate::runtime::bell::{Post, PostError};
use crate::runtime::clock;
use crate::runtime::counters::Counters;
use crate::runtime::driver::Driver;
use crate::runtime::notify::Notify;
use crate::wire::handshake::Handshake;
use crate::wire::notice::Kinds;
use crate::wire::reply::{self, Reason};
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};
use crate::wire::sse;
use crate::wire::version::Version;

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
    /// GET opens a stream.
    pub get_streams: bool,
    /// Silence of an answer or a stream after which it is kept alive.
    pub keep_alive_ms: u64,
    /// Which header lines of clients go to their upstreams.
    pub pass: Pass,
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

/// The world of one shard.
pub struct Shard {
    pub index: usize,
    pub shards: usize,
    pub driver: Driver,
    pub config: Arc<FaceConfig>,
    pub state: RefCell<ShardState>,
    pub(super) connections: RefCell<Connections>,
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
    /// Where orders go, if sessions have upstreams of their own.
    pub(super) upstream: OnceCell<Box<dyn Fn(Order)>>,
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
            upstream: OnceCell::new(),
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
        let waiting = self.state.borrow().waiting_bytes();
        self.connections.borrow().held_bytes() + waiting
    }

    /// Bytes that answers may take: what bodies and waiting calls leave of the budget.
    pub(super) fn answers_room(&self) -> usize {
        let waiting = self.state.borrow().waiting_bytes();
        let taken = waiting + self.connections.borrow().body_bytes();
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
    /// nothing: sessions with upstreams of their own end, with all that is in flight.
    pub fn drain(&self) {
        if self.is_draining() && self.is_private() {
            self.end_all_sessions();
            return;
        }
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
        let mut acts = Vec::new();
        let sessions = self.state.borrow_mut().end_sessions_of(&gone, &mut acts);
        self.perform(acts);
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

    /// Does what the routing state asks for, and lets the hub know of what is for it.
    pub fn perform(&self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::End(ended) => self.tell(&ended),
                Act::Answer {
                    call,
                    message,
                    outcome,
                } => self.tell_message(&call, &message, outcome),
                Act::CloseStream(stream) | Act::WakeStream(stream) => {
                    self.connections.borrow_mut().wake(stream.into());
                }
                Act::LostSubscription => self.counters.subscriptions_lost.add(1),
                Act::NotFound(call) => {
                    self.counters
                        .calls
                        .count(call.method, Outcome::SessionEnded);
                    let id = Some(call.client_id.raw());
                    let message = reply::error(id, reply::SESSION_NOT_FOUND, "Session not found");
                    self.respond(call.reply_to, 404, &message);
                }
            }
        }
        self.notify_hub();
    }

    /// The server's answer to call `id`: to the client that asked, with its own id.
    pub fn answer(&self, id: UpstreamId, id_span: Span, line: &[u8], outcome: Outcome) {
        let now = clock::precise();
        let is_error = outcome == Outcome::Error;
        let answered = self
            .state
            .borrow_mut()
            .answered(id, line, is_error, now.millis());
        match answered {
            Answered::Call(call) => {
                self.counters.calls.count(call.method, outcome);
                self.counters.durations.record(now.since(call.started));
                self.deliver_line(&call, id_span, line);
            }
            other => self.answer_instead(other, now),
        }
    }

    /// The server's answer to call `id` is a task of another shard's session.
    pub fn foreign_task(&self, id: UpstreamId) {
        let answered = self.state.borrow_mut().foreign_task(id);
        self.answer_instead(answered, clock::precise());
    }

    fn answer_instead(&self, answered: Answered, now: Micros) {
        match answered {
            Answered::Instead {
                call,
                message,
                outcome,
            } => {
                self.counters.durations.record(now.since(call.started));
                self.tell_message(&call, &message, outcome);
            }
            Answered::Call(_) => {} // got the server's answer
            Answered::Late => {
                self.counters.dropped(DropReason::LateAnswer);
            }
        }
        self.notify_hub();
    }

    pub(super) fn deliver_line(&self, call: &Call, id_span: Span, line: &[u8]) {
        let client_id = call.client_id.raw();
        let edit = Edit {
            span: id_span,
            with: client_id,
        };
        let bytes = line.len() - id_span.len() + client_id.len();
        let delivered = self.connections.borrow_mut().deliver(
            call.reply_to,
            |form| match form {
                Form::Json { manner, .. } => {
                    let mut out = Vec::new();
                    response::json_head(&mut out, manner, &self.date(), bytes);
                    let head = out.len();
                    splice(&mut out, line, &mut [edit]);
                    debug_assert_eq!(out.len(), head + bytes, "the length was announced");
                    Delivery::Response {
                        status: 200,
                        bytes: out,
                    }
                }
                _ => {
                    let mut message = Vec::new();
                    splice(&mut message, line, &mut [edit]);
                    Delivery::Message {
                        part: call.reply_to.part,
                        message,
                    }
                }
            },
            |events| events.reply(|out| splice(out, line, &mut [edit])),
        );
        match delivered {
            true => self.enforce_budget(),
            false => {
                self.counters.dropped(DropReason::ClientGone);
            }
        }
    }

    /// Tells the client of a call that ended without an answer.
    pub fn tell(&self, ended: &Ended) {
        if ended.reason != Reason::Cancelled {
            self.tell_message(&ended.call, &ended.body(), Outcome::from(ended.reason));
            return;
        }
        self.counters
            .calls
            .count(ended.call.method, Outcome::Cancelled);
        let to = ended.reply_to();
        let delivered = self.connections.borrow_mut().deliver(
            to,
            |_| Delivery::Cancelled {
                part: to.part,
                error: ended.body(),
            },
            EventQueue::end,
        );
        if delivered {
            self.enforce_budget();
        }
    }

    /// Answers a call with a message of Ringway's own.
    fn tell_message(&self, call: &Call, message: &[u8], outcome: Outcome) {
        self.counters.calls.count(call.method, outcome);
        self.respond(call.reply_to, 200, message);
    }

    /// Gives a request this message as its answer, `status` where the head of the answer
    /// is still to go out.
    fn respond(&self, to: ReplyTo, status: u16, message: &[u8]) {
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
    }

    /// The server's answer to call `id` was over `--max-message`.
    pub fn too_long(&self, id: UpstreamId) {
        let call = self.state.borrow_mut().unreadable_answer(id);
        if let Some(call) = call {
            self.tell(&Ended {
                call,
                reason: Reason::TooLarge,
            });
        }
    }

    /// The server reported progress under the token `id`, which stands at
    /// `token_span`: to the client of that call, with its own token.
    pub fn progress(&self, id: UpstreamId, token_span: Span, line: &[u8]) {
        let room = self.answers_room();
        let mut state = self.state.borrow_mut();
        let edit = |token| Edit {
            span: token_span,
            with: token,
        };
        match state.progressed(id, clock::now()) {
            Progressed::Nobody => {
                self.counters.dropped(DropReason::Progress);
            }
            Progressed::Call { reply_to, token } => {
                let bytes = line.len() + token.len() + sse::FRAME_BYTES;
                let mut connections = self.connections.borrow_mut();
                let streamed = connections.deliver_progress(reply_to, room, bytes, |out| {
                    splice(out, line, &mut [edit(token)]);
                });
                self.count_streamed(streamed);
            }
            Progressed::Task { task, token } => {
                let mut message = Vec::new();
                splice(&mut message, line, &mut [edit(token)]);
                drop(state);
                self.task_news(task, TaskNews::Progress, &message);
            }
        }
    }

    pub(super) fn count_streamed(&self, streamed: Streamed) {
        match streamed {
            Streamed::Taken { own, elsewhere } => {
                self.counters.events_progress.add(1);
                self.counters
                    .dropped_many(DropReason::SlowReader, own + elsewhere);
            }
            Streamed::NoRoom => {
                self.counters.dropped(DropReason::SlowReader);
            }
            Streamed::NoStream => {
                self.counters.dropped(DropReason::Progress);
            }
            Streamed::Gone => {
                self.counters.dropped(DropReason::ClientGone);
            }
        }
    }

    /// The server told the status of a task.
    pub fn task_status(&self, line: &[u8]) {
        let task = self.state.borrow_mut().task_status(line);
        if let Some(task) = task {
            let mut message = Vec::new();
            splice(&mut message, line, &mut []);
            self.task_news(task, TaskNews::Status, &message);
        } else {
            self.counters.dropped(DropReason::Task);
        }
    }

    /// News of a task: on the answer of a `tasks/result` that waits for it, else on
    /// the GET stream of its session.
    fn task_news(&self, task: TaskKey, news: TaskNews, message: &[u8]) {
        let results = self.state.borrow().task_results(task);
        for reply_to in results {
            let room = self.answers_room();
            let bytes = message.len() + sse::FRAME_BYTES;
            let streamed =
                self.connections
                    .borrow_mut()
                    .deliver_progress(reply_to, room, bytes, |out| out.extend_from_slice(message));
            if let Streamed::Taken { .. } = streamed {
                self.count_streamed(streamed);
                return;
            }
        }
        let mut frame = Vec::with_capacity(message.len() + sse::FRAME_BYTES);
        sse::frame(&mut frame, message);
        let mut acts = Vec::new();
        let is_kept = self
            .state
            .borrow_mut()
            .mark_task(task, news, frame, &mut acts);
        if !is_kept {
            self.counters.dropped(DropReason::Task);
        }
        self.perform(acts);
    }

    /// A resource was updated.
    pub fn updated(&self, uri: &[u8]) {
        let Ok(uri) = std::str::from_utf8(uri) else {
            return; // the hub decoded it
        };
        let mut acts = Vec::new();
        self.state.borrow_mut().updated(uri, &mut acts);
        self.perform(acts);
    }

    /// Lists have changed.
    pub fn changed(&self, kinds: Kinds) {
        let mut acts = Vec::new();
        self.state.borrow_mut().changed(kinds, &mut acts);
        self.perform(acts);
    }

    /// What the ledger says about a URI.
    pub fn told(&self, uri: &str, told: Told) {
        let mut acts = Vec::new();
        let lost = self.state.borrow_mut().told(uri, told, &mut acts);
        if lost > 0 {
            self.counters.subscriptions_lost.add(lost as u64);
            tracing::warn!(
                shard = self.index,
                ?uri,
                sessions = lost,
                "the restarted server no longer takes a subscription"
            );
        }
        self.perform(acts);
    }

    /// The upstream is there.
    pub fn upstream_up(&self, epoch: u64, handshake: Arc<Handshake>) {
        let mut acts = Vec::new();
        self.state
            .borrow_mut()
            .upstream_up(epoch, handshake, &mut acts);
        self.perform(acts);
    }

    /// The upstream is gone: every call in flight is answered.
    pub fn upstream_down(&self) {
        let mut acts = Vec::new();
        self.state.borrow_mut().upstream_down(&mut acts);
        self.perform(acts);
    }

    /// A session's client has opened a GET stream on this connection.
    pub fn open_stream(&self, session: SessionKey, key: ConnectionKey) {
        let mut acts = Vec::new();
        let replaced =
            self.state
                .borrow_mut()
                .open_stream(session, key.into(), clock::now(), &mut acts);
        if replaced.is_some() {
            self.counters.streams_replaced.add(1);
        }
        if replaced == Some(REPLACEMENTS_LOGGED) {
            tracing::warn!(
                shard = self.index,
                replaced = REPLACEMENTS_LOGGED,
                "clients of one session keep replacing each other's GET stream"
            );
        }
        self.perform(acts);
    }

    /// What the GET stream on this connection has to do now.
    pub fn stream_work(&self, session: SessionKey, key: ConnectionKey, out: &mut Vec<u8>) -> Work {
        let work = self
            .state
            .borrow_mut()
            .stream_work(session, key.into(), out);
        if let Work::Write(events) = work {
            self.counters.events_marks.add(events as u64);
        }
        work
    }

    /// Whether the connection carries the session's GET stream.
    pub fn is_stream(&self, session: SessionKey, key: ConnectionKey) -> bool {
        self.state.borrow().is_stream(session, key.into())
    }

    /// A write of the GET stream on this connection is over.
    pub fn stream_wrote(&self, session: SessionKey, key: ConnectionKey, is_done: bool) {
        let mut acts = Vec::new();
        self.state
            .borrow_mut()
            .stream_wrote(session, key.into(), is_done, &mut acts);
        self.perform(acts);
    }

    /// The connection of a GET stream is over.
    pub fn stream_gone(&self, session: SessionKey, key: ConnectionKey) {
        let mut acts = Vec::new();
        self.state
            .borrow_mut()
            .stream_gone(session, key.into(), clock::now(), &mut acts);
        self.perform(acts);
    }

    /// The form of the answer in progress changes, because its head goes out.
    pub fn set_form(&self, key: ConnectionKey, form: Form) {
        self.connections.borrow_mut().set_form(key, form);
    }

    /// Ends a session.
    pub fn end_session(&self, key: SessionKey) {
        let mut acts = Vec::new();
        self.state.borrow_mut().end_session(key, &mut acts);
        self.perform(acts);
    }

    /// Rings for the hub if there are lines for it, or another log level; hands over
    /// what is to be done at the sessions' own upstreams.
    pub fn notify_hub(&self) {
        if let Some(upstream) = self.upstream.get() {
            let orders = match self.state.borrow_mut().exchanges() {
                Some(exchanges) => exchanges.take_orders(),
                None => Vec::new(),
            };
            orders.into_iter().for_each(upstream);
            return;
        }
        let state = self.state.borrow();
        let log_level = state.log_level();
        if state.outgoing.has_batch() || state.has_notes() || self.told_log_level.get() != log_level
        {
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
        counters.streams.set(state.streams() as u64);
        counters.subscriptions.set(state.subscriptions() as u64);
        counters.tasks.set(state.tasks() as u64);
        counters.exchanges.set(state.exchanges_under_way() as u64);
        counters.session_renewals.set(state.renewals);
        counters.stream_overflows.set(state.stream_overflows);
        counters.lost_notices.set(state.lost_notices);
        counters.buffered_bytes.set(self.buffered_bytes() as u64);
    }

    /// Time passes.
    pub fn tick(&self) {
        self.set_gauges();
        let now = clock::now();
        self.refresh_tokens();
        self.connections.borrow_mut().tick(now);
        let mut acts = Vec::new();
        self.state.borrow_mut().tick(now, &mut acts);
        self.perform(acts);
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
