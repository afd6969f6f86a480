//! An upstream's seat on one thread: the routing state of its sessions there, reached by
//! every task of the thread and by no other thread. No borrow of a cell is held across a
//! wait.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::connections::{ConnectionKey, Delivery, Form, Streamed};
use super::ground::{self, Ground};
use super::joined::{self, Joined, Link};
use super::response;
use super::upstream::OwnUpstreams;
use crate::limits::REPLACEMENTS_LOGGED;
use crate::routing::arrival::{Answered, Progressed};
use crate::routing::calls::{Call, ReplyTo};
use crate::routing::client::Step;
use crate::routing::drops::DropReason;
use crate::routing::interest::{ShowUri, ShownUris};
use crate::routing::joined::{Inner, Part, SeatId};
use crate::routing::ledger::Told;
use crate::routing::log_level::Level;
use crate::routing::marks::TaskNews;
use crate::routing::outcome::{Method, Outcome};
use crate::routing::session::{SessionKey, TokenId};
use crate::routing::shard::{Act, Ended, SessionsFull, ShardState};
use crate::routing::stream::Work;
use crate::routing::tasks::TaskKey;
use crate::routing::time::{Micros, Millis};
use crate::routing::upstream_id::UpstreamId;
use crate::runtime::clock;
use crate::runtime::counters::Counters;
use crate::runtime::notify::Notify;
use crate::wire::handshake::Handshake;
use crate::wire::listing::ListKind;
use crate::wire::notice::Kinds;
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Envelope};
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};
use crate::wire::sse;
use crate::wire::version::Version;

/// One upstream's seat on a thread: its sessions, its calls, what goes to it.
pub struct Shard {
    pub ground: Rc<Ground>,
    pub state: RefCell<ShardState>,
    /// Rung when there are lines for the hub.
    pub lines_ready: Rc<Notify>,
    pub counters: Arc<Counters>,
    /// The log level that the hub was last rung for.
    told_log_level: Cell<Option<Level>>,
    /// There if sessions have upstreams of their own.
    pub(super) upstream: OnceCell<OwnUpstreams>,
    /// The joined route that it belongs to.
    joined: RefCell<Option<Link>>,
}

impl Shard {
    pub fn new(
        ground: Rc<Ground>,
        state: ShardState,
        lines_ready: Rc<Notify>,
        counters: Arc<Counters>,
    ) -> Rc<Shard> {
        let shard = Rc::new(Shard {
            ground: ground.clone(),
            state: RefCell::new(state),
            lines_ready,
            counters,
            told_log_level: Cell::new(None),
            upstream: OnceCell::new(),
            joined: RefCell::default(),
        });
        ground.add_seat(&shard);
        shard
    }

    /// The client of these calls is gone: with `--on-disconnect cancel` they
    /// end, else they run on and their answers are dropped.
    pub fn client_gone(&self, calls: impl Iterator<Item = UpstreamId>) {
        if !self.ground.config.cancel_on_disconnect {
            return;
        }
        for id in calls {
            let ended = self.state.borrow_mut().withdraw(id, Reason::Cancelled);
            ended.iter().for_each(|ended| self.tell(ended));
        }
        self.notify_hub();
    }

    /// The seat belongs to this joined route from now on.
    pub(super) fn join(&self, link: Link) {
        self.joined.replace(Some(link));
    }

    pub(super) fn joined(&self) -> Option<(Rc<Joined>, SeatId)> {
        self.joined.borrow().as_ref()?.get()
    }

    /// How clients know the URIs of this upstream.
    pub(super) fn set_names(&self, names: Rc<ShowUri>) {
        self.state.borrow_mut().set_names(ShownUris(Some(names)));
    }

    /// Under which name clients are told of a failure of the server, if there are several.
    pub(super) fn set_upstream_name(&self, name: Option<Arc<str>>) {
        self.state.borrow_mut().set_upstream_name(name);
    }

    /// The place in its route that the ids of its server's requests tell.
    pub(super) fn asked_place(&self) -> u64 {
        self.state.borrow().asked_place()
    }

    /// Whether the server of a leg has this list.
    pub(super) fn has_list(&self, leg: SessionKey, kind: ListKind) -> bool {
        let state = self.state.borrow();
        state.handshake_of(leg).is_some_and(|known| match kind {
            ListKind::Tools => known.kinds.has(Kinds::TOOLS),
            ListKind::Prompts => known.kinds.has(Kinds::PROMPTS),
            ListKind::Resources | ListKind::Templates => known.kinds.has(Kinds::RESOURCES),
            ListKind::Tasks => known.tasks.is_offered && known.tasks.list,
        })
    }

    /// A resource may have changed: the session of a leg is told, if it is subscribed to it.
    pub(super) fn tell_updated(&self, leg: SessionKey, uri: &str) {
        let mut acts = Vec::new();
        self.state.borrow_mut().tell_updated(leg, uri, &mut acts);
        self.perform(acts);
    }

    /// Whether the server of a leg has logging.
    pub(super) fn has_logging(&self, leg: SessionKey) -> bool {
        let state = self.state.borrow();
        state.handshake_of(leg).is_some_and(|known| known.logging)
    }

    /// Withdraws a call that nobody waits for any more.
    pub(super) fn withdraw(&self, id: UpstreamId) {
        let ended = self.state.borrow_mut().withdraw(id, Reason::Cancelled);
        if let Some(ended) = ended {
            let method = ended.call.method;
            self.counters.calls.count(method, Outcome::Cancelled);
        }
        self.notify_hub();
    }

    /// The client of a leg that was opened later is ready.
    pub(super) fn say_initialized(&self, leg: SessionKey) {
        let text = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        if let Ok(envelope) = scan::scan(text) {
            let nobody = ReplyTo {
                connection: u32::MAX,
                connection_generation: 0,
                exchange: u32::MAX,
                part: 0,
            };
            self.message(leg, text, &envelope, nobody, None);
        }
    }

    /// Gives a client's message to the routing state, and does what it asks for. `change`
    /// replaces one value of a message that goes upstream.
    pub fn message(
        &self,
        session: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
        reply_to: ReplyTo,
        change: Option<Edit<'_>>,
    ) -> Step {
        let mut acts = Vec::new();
        let step = self.state.borrow_mut().message_with(
            session,
            text,
            envelope,
            reply_to,
            clock::precise(),
            change,
            &mut acts,
        );
        self.perform(acts);
        if let Step::Failed(reason, _) = &step {
            let method = Method::of(&envelope.method);
            self.counters.calls.count(method, Outcome::from(*reason));
        }
        step
    }

    /// Ends every session of these owners.
    pub fn end_sessions_of(&self, gone: &[TokenId]) {
        let mut acts = Vec::new();
        let sessions = self.state.borrow_mut().end_sessions_of(gone, &mut acts);
        self.perform(acts);
        if sessions > 0 {
            tracing::info!(
                shard = self.ground.index,
                sessions,
                "sessions of removed tokens ended"
            );
        }
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
                    self.ground.connections.borrow_mut().wake(stream.into());
                }
                Act::LostSubscription => self.counters.subscriptions_lost.add(1),
                Act::NotFound(call) => {
                    self.counters
                        .calls
                        .count(call.method, Outcome::SessionEnded);
                    let id = Some(call.client_id.raw());
                    let message = reply::error(id, reply::SESSION_NOT_FOUND, "Session not found");
                    match self.joined() {
                        None => self.respond(call.reply_to, 404, &message),
                        Some(_) if self.fails_again(call.reply_to, Reason::UpstreamDown) => {}
                        // The client's own session lives on.
                        Some(_) => {
                            let state = self.state.borrow();
                            let (name, reason) = (state.upstream_name(), Reason::UpstreamDown);
                            let message = reply::failure_at(name, id, reason);
                            drop(state);
                            self.respond(call.reply_to, 200, &message);
                        }
                    }
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
        if let Some((joined, seat)) = self.joined() {
            if let Some((inner, part)) = Part::of(call.reply_to) {
                joined.inner(inner, part, line.to_vec());
                return;
            }
            let replacements = joined.renames(seat, call, line);
            let write = || {
                let mut message = Vec::with_capacity(line.len() + 64);
                let mut edits = joined::edits(&replacements);
                edits.push(Edit {
                    span: id_span,
                    with: call.client_id.raw(),
                });
                splice(&mut message, line, &mut edits);
                message
            };
            if joined.answer_past_hooks(call.reply_to, write) {
                return;
            }
            if !replacements.is_empty() {
                if !self.ground.respond(call.reply_to, 200, &write()) {
                    self.counters.dropped(DropReason::ClientGone);
                }
                return;
            }
        }
        let client_id = call.client_id.raw();
        let edit = Edit {
            span: id_span,
            with: client_id,
        };
        let bytes = line.len() - id_span.len() + client_id.len();
        let delivered = self.ground.connections.borrow_mut().deliver(
            call.reply_to,
            |form| match form {
                Form::Json { manner, .. } => {
                    let mut out = Vec::new();
                    response::json_head(&mut out, manner, &self.ground.date(), bytes);
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
            true => self.ground.enforce_budget(),
            false => {
                self.counters.dropped(DropReason::ClientGone);
            }
        }
    }

    /// Tells the client of a call that ended without an answer.
    pub fn tell(&self, ended: &Ended) {
        if self.fails_again(ended.reply_to(), ended.reason) {
            let outcome = Outcome::from(ended.reason);
            self.counters.calls.count(ended.call.method, outcome);
            return;
        }
        let body = ended.body(self.state.borrow().upstream_name());
        if ended.reason != Reason::Cancelled {
            self.tell_message(&ended.call, &body, Outcome::from(ended.reason));
            return;
        }
        self.counters
            .calls
            .count(ended.call.method, Outcome::Cancelled);
        match (Part::of(ended.reply_to()), self.joined()) {
            (None, joined) => {
                if let Some((joined, _)) = joined {
                    joined.call_over(ended.reply_to());
                }
                self.ground.cancel(ended.reply_to(), body);
            }
            (Some((Inner::Gathering, part)), Some((joined, _))) => joined.cancelled(part),
            (Some(_), _) => {}
        }
    }

    /// A call has failed before its server has answered it. True if it asked for what a leg had
    /// before: then nobody is to be told.
    fn fails_again(&self, to: ReplyTo, reason: Reason) -> bool {
        let Some((Inner::Again, part)) = Part::of(to) else {
            return false;
        };
        if let Some((joined, _)) = self.joined() {
            joined.failed_again(part, reason);
        }
        true
    }

    /// Answers a call with a message of Ringway's own.
    fn tell_message(&self, call: &Call, message: &[u8], outcome: Outcome) {
        self.counters.calls.count(call.method, outcome);
        let failure = match outcome {
            Outcome::UpstreamDown => Some(Reason::UpstreamDown),
            Outcome::Overloaded => Some(Reason::Overloaded),
            _ => None,
        };
        if failure.is_some_and(|reason| self.fails_again(call.reply_to, reason)) {
            return;
        }
        self.respond(call.reply_to, 200, message);
    }

    /// Gives a request this message as its answer.
    fn respond(&self, to: ReplyTo, status: u16, message: &[u8]) {
        match (Part::of(to), self.joined()) {
            (None, joined) => {
                if let Some((joined, _)) = joined {
                    joined.call_over(to);
                }
                self.ground.respond(to, status, message);
            }
            (Some((inner, part)), Some((joined, _))) => {
                joined.inner(inner, part, message.to_vec());
            }
            (Some(_), None) => {}
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
        let room = self.ground.answers_room();
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
                if let Some((joined, _)) = self.joined()
                    && joined.is_looked_at(reply_to)
                {
                    let mut message = Vec::new();
                    splice(&mut message, line, &mut [edit(token)]);
                    drop(state);
                    joined.progress_past_hooks(reply_to, || message);
                    return;
                }
                let bytes = line.len() + token.len() + sse::FRAME_BYTES;
                let mut connections = self.ground.connections.borrow_mut();
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
        ground::count_streamed(&self.counters, streamed);
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

    /// What a client gets of a message that answers no call of its: a joined route has other
    /// names, and hooks. `None`: nothing, which is counted.
    pub(super) fn as_clients_get_it<'m>(&self, message: &'m [u8]) -> Option<Cow<'m, [u8]>> {
        let Some((joined, seat)) = self.joined() else {
            return Some(Cow::Borrowed(message));
        };
        let Some(renamed) = joined.renamed(seat, message.to_vec()) else {
            self.counters.dropped(DropReason::Change);
            return None;
        };
        joined.progress_of_tasks_past_hooks(renamed).map(Cow::Owned)
    }

    /// News of a task: on the answer of a `tasks/result` that waits for it, else on
    /// the GET stream of its session.
    fn task_news(&self, task: TaskKey, news: TaskNews, message: &[u8]) {
        let Some(message) = self.as_clients_get_it(message) else {
            return;
        };
        let message = &*message;
        let results = self.state.borrow().task_results(task);
        for reply_to in results {
            let room = self.ground.answers_room();
            let bytes = message.len() + sse::FRAME_BYTES;
            let streamed = self.ground.connections.borrow_mut().deliver_progress(
                reply_to,
                room,
                bytes,
                |out| out.extend_from_slice(message),
            );
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
                shard = self.ground.index,
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
        let kinds = handshake.kinds;
        self.state
            .borrow_mut()
            .upstream_up(epoch, handshake, &mut acts);
        self.perform(acts);
        if let Some((joined, seat)) = self.joined() {
            joined.seat_up(seat, kinds);
        }
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
                shard = self.ground.index,
                replaced = REPLACEMENTS_LOGGED,
                "clients of one session keep replacing each other's GET stream"
            );
        }
        self.perform(acts);
    }

    /// The GET stream of a leg's session is on this connection.
    pub(super) fn open_leg_stream(&self, leg: SessionKey, key: ConnectionKey) {
        let mut acts = Vec::new();
        self.state
            .borrow_mut()
            .open_stream(leg, key.into(), clock::now(), &mut acts);
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

    /// Ends a session.
    pub fn end_session(&self, key: SessionKey) {
        let mut acts = Vec::new();
        self.state.borrow_mut().end_session(key, &mut acts);
        self.perform(acts);
    }

    /// Ends a session; calls in flight are answered with `reason`.
    pub(super) fn end_session_as(&self, key: SessionKey, reason: Reason) {
        let mut acts = Vec::new();
        self.state
            .borrow_mut()
            .end_session_as(key, reason, &mut acts);
        self.perform(acts);
    }

    /// Ends all calls in flight; they are answered with `reason`, and the server is told.
    pub(super) fn end_calls(&self, reason: Reason) {
        let mut acts = Vec::new();
        self.state.borrow_mut().end_calls(reason, &mut acts);
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
            orders.into_iter().for_each(&upstream.carry_out);
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
        counters.sessions.set(state.sessions.len() as u64);
        counters.calls_in_flight.set(state.calls_in_flight() as u64);
        counters.streams.set(state.streams() as u64);
        counters.subscriptions.set(state.subscriptions() as u64);
        counters.tasks.set(state.tasks() as u64);
        counters.exchanges.set(state.exchanges_under_way() as u64);
        counters.session_renewals.set(state.renewals);
        counters.stream_overflows.set(state.stream_overflows);
        counters.lost_notices.set(state.lost_notices);
    }

    /// Time passes.
    pub fn tick(&self, now: Millis) {
        self.set_gauges();
        let mut acts = Vec::new();
        self.state.borrow_mut().tick(now, &mut acts);
        self.perform(acts);
    }
}
