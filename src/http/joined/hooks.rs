//! Hooks of a joined route: each message that one of them wants to see is shown to them
//! before it goes on, in the order in which the messages of a call came. What is shown on
//! threads of the hooks waits here for the verdict; nothing else waits for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::client::{Incoming, twice};
use super::{Joined, Local};
use crate::hooks::{CallContext, CallState, Chain, Denial, Job, Outcome, Point, Pool, Verdict};
use crate::limits::{HOOKED_PROGRESS_BYTES_MAX, HOOKED_PROGRESS_MAX};
use crate::routing::calls::{ClientId, ReplyTo};
use crate::routing::client::Step;
use crate::routing::drops::DropReason;
use crate::routing::joined::InFlight;
use crate::routing::joined::naming::Kind;
use crate::routing::session::{SessionId, SessionKey, TokenId};
use crate::runtime::bell::Post;
use crate::wire::method::PROGRESS;
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Envelope, Field, Kind as MessageKind};
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};
use crate::wire::sse;

/// The hooks of a route, and the threads for those that are not quick.
#[derive(Clone)]
pub struct Hooks {
    pub chain: Arc<Chain>,
    pub pool: Arc<Pool>,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// What comes back from the threads of the hooks.
pub struct HookAnswer {
    route: Arc<str>,
    to: ReplyTo,
    number: u64,
    outcome: Outcome,
}

impl HookAnswer {
    /// The route whose hooks have spoken.
    pub fn route(&self) -> &str {
        &self.route
    }
}

/// What the hooks keep of a call, and what waits for their verdict.
struct Line {
    session: SessionKey,
    session_id: SessionId,
    client_id: ClientId,
    context: CallContext,
    /// Those of the route when the call began: what they keep of it is theirs.
    hooks: Rc<Hooks>,
    /// Not there while it is with the hooks.
    state: Option<CallState>,
    /// The verdict that is waited for.
    number: u64,
    /// With the hooks now.
    asked: Option<Waiting>,
    waiting: VecDeque<Waiting>,
    progress_bytes: usize,
    progress: usize,
    /// What the request has become upstream.
    in_flight: Option<InFlight>,
}

impl Line {
    fn parked_as(&self) -> Parked {
        (self.session, self.client_id.value().into())
    }
}

/// A message that waits for a verdict.
enum Waiting {
    /// The client's request, whole.
    Request(Vec<u8>),
    /// A progress message for the client, whole.
    Progress(Vec<u8>),
    /// The answer for the client, whole, with its result.
    Answer(Vec<u8>, Span),
    /// One that hooks are not asked about, which ends the call.
    Last(Vec<u8>),
}

impl Waiting {
    fn point(&self, method: &str) -> Option<Point> {
        match self {
            Waiting::Request(_) => before(method),
            Waiting::Progress(_) => Some(Point::Progress),
            Waiting::Answer(..) => after(method),
            Waiting::Last(_) => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Waiting::Request(text) | Waiting::Progress(text) | Waiting::Answer(text, _) => {
                text.len()
            }
            Waiting::Last(text) => text.len(),
        }
    }

    /// The part that is shown, of a message that was scanned before.
    fn shown(&self) -> Option<Span> {
        match self {
            Waiting::Request(text) | Waiting::Progress(text) => scan::scan(text).ok()?.params,
            Waiting::Answer(_, result) => Some(*result),
            Waiting::Last(_) => None,
        }
    }

    fn text(&self) -> &[u8] {
        match self {
            Waiting::Request(text) | Waiting::Progress(text) | Waiting::Answer(text, _) => text,
            Waiting::Last(text) => text,
        }
    }
}

/// A session, and a request's id as it is compared.
type Parked = (SessionKey, Box<[u8]>);

/// The calls of a route that hooks look at, on one thread.
#[derive(Default)]
pub(super) struct Lines {
    by_reply: HashMap<ReplyTo, Line, ahash::RandomState>,
    /// Requests that no upstream knows of, by session and id: those that have not been passed
    /// on, and those that are answered while the answer is with the hooks.
    parked: HashMap<Parked, ReplyTo, ahash::RandomState>,
    /// How many of a session.
    parked_of: HashMap<SessionKey, usize, ahash::RandomState>,
    next_number: u64,
    bytes: usize,
}

impl Lines {
    pub(super) fn len(&self) -> usize {
        self.by_reply.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The sessions of which hooks look at a call.
    pub(super) fn sessions(&self) -> HashSet<SessionKey> {
        self.by_reply.values().map(|line| line.session).collect()
    }

    fn park(&mut self, id: Parked, to: ReplyTo) {
        let key = id.0;
        if self.parked.insert(id, to).is_none() {
            *self.parked_of.entry(key).or_default() += 1;
        }
    }

    fn unpark(&mut self, id: &Parked) {
        if self.parked.remove(id).is_none() {
            return;
        }
        if let Some(count) = self.parked_of.get_mut(&id.0) {
            *count -= 1;
            if *count == 0 {
                self.parked_of.remove(&id.0);
            }
        }
    }

    /// Requests of a session that no upstream knows of.
    pub(super) fn parked_of(&self, key: SessionKey) -> usize {
        self.parked_of.get(&key).copied().unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn parked(&self) -> usize {
        self.parked.len().max(self.parked_of.len())
    }
}

/// The point before a request is passed on.
fn before(method: &str) -> Option<Point> {
    match method {
        "tools/call" => Some(Point::BeforeToolCall),
        "prompts/get" => Some(Point::BeforePrompt),
        "resources/read" => Some(Point::BeforeRead),
        "resources/subscribe" => Some(Point::BeforeSubscribe),
        _ => None,
    }
}

/// The point after its result. What `tasks/result` brings is the result of a tool.
fn after(method: &str) -> Option<Point> {
    match method {
        "tools/call" | "tasks/result" => Some(Point::AfterToolCall),
        "prompts/get" => Some(Point::AfterPrompt),
        "resources/read" => Some(Point::AfterRead),
        _ => None,
    }
}

/// The method as a word that lives on.
fn known(method: &str) -> &'static str {
    const KNOWN: [&str; 6] = [
        "tools/call",
        "prompts/get",
        "resources/read",
        "resources/subscribe",
        "tasks/result",
        "completion/complete",
    ];
    KNOWN
        .into_iter()
        .find(|it| *it == method)
        .unwrap_or("other")
}

/// What is to be done with a message about which the hooks have spoken.
enum Spoken {
    Pass(Waiting),
    Denied(Waiting, Denial, bool),
}

impl Joined {
    /// A request on its way to an upstream, past the hooks if any wants to see it or what
    /// comes of it.
    pub(super) fn past_hooks(
        self: &Rc<Self>,
        local: &Local,
        incoming: &Incoming<'_>,
    ) -> Step<InFlight> {
        if self.is_held(incoming) {
            return twice();
        }
        let Some(hooks) = &local.hooks else {
            return self.dispatch(local, incoming);
        };
        let method = &*incoming.envelope.method;
        let wants = |point: Option<Point>| point.is_some_and(|point| hooks.chain.wants(point));
        let has_token = incoming.envelope.meta_progress_token.is_some();
        let is_looked_at = wants(before(method))
            || wants(after(method))
            || has_token && hooks.chain.wants(Point::Progress);
        if !is_looked_at {
            return self.dispatch(local, incoming);
        }
        let Some(line) = self.line(local, hooks, incoming) else {
            return incoming.failed(Reason::SessionEnded);
        };
        let to = incoming.reply_to;
        let point = before(method).filter(|point| hooks.chain.wants(*point));
        let (Some(point), Some(params)) = (point, incoming.envelope.params) else {
            // There is nothing to be shown yet.
            self.lines.borrow_mut().by_reply.insert(to, line);
            return self.go_on(local, incoming);
        };
        if hooks.chain.is_quick(point) {
            return self.quickly_past(local, hooks, point, line, incoming, params);
        }
        if self.ground.is_waiting_full() {
            return incoming.failed(Reason::Overloaded);
        }
        let legs = match self.sessions.borrow().get(incoming.key) {
            Some(session) => session.legs.clone(),
            None => return incoming.failed(Reason::SessionEnded),
        };
        if let Err(step) = self.may_begin(local, &legs, None, incoming) {
            return step;
        }
        {
            let mut lines = self.lines.borrow_mut();
            lines.park(line.parked_as(), to);
            lines.by_reply.insert(to, line);
        }
        let text = incoming.text.to_vec();
        if !self.ask(hooks, to, point, Waiting::Request(text)) {
            self.forget(to);
            return incoming.failed(Reason::Overloaded);
        }
        Step::InFlight {
            id: InFlight::Held(to),
            // At an upstream of the session's own anything may come before the answer.
            may_stream: has_token || local.seats.iter().any(|seat| seat.shard.is_private()),
        }
    }

    fn quickly_past(
        self: &Rc<Self>,
        local: &Local,
        hooks: &Hooks,
        point: Point,
        mut line: Line,
        incoming: &Incoming<'_>,
        params: Span,
    ) -> Step<InFlight> {
        let outcome = hooks.chain.run_here(Job {
            point,
            call: line.context.clone(),
            state: line.state.take().unwrap_or_default(),
            text: params.of(incoming.text).to_vec(),
        });
        line.state = Some(outcome.state);
        self.lines
            .borrow_mut()
            .by_reply
            .insert(incoming.reply_to, line);
        match outcome.verdict {
            Verdict::Pass => self.go_on(local, incoming),
            Verdict::Deny(denial) => {
                self.forget(incoming.reply_to);
                Step::Answer(denied(
                    incoming.raw_id(),
                    &denial,
                    outcome.failure.is_some(),
                ))
            }
            Verdict::Rewrite(with) => {
                let text = replaced(incoming.text, params, &with);
                self.go_on_with(local, incoming, &text)
            }
        }
    }

    /// The request in another form, which is read anew.
    fn go_on_with(
        self: &Rc<Self>,
        local: &Local,
        incoming: &Incoming<'_>,
        text: &[u8],
    ) -> Step<InFlight> {
        let Ok(envelope) = scan::scan(text) else {
            self.forget(incoming.reply_to);
            return Step::Answer(denied(incoming.raw_id(), &unusable(), true));
        };
        let before = (incoming.envelope, incoming.text);
        let Some(id) = envelope.id.filter(|_| is_same(before, (&envelope, text))) else {
            self.forget(incoming.reply_to);
            return Step::Answer(denied(incoming.raw_id(), &unusable(), true));
        };
        let again = Incoming {
            key: incoming.key,
            text,
            envelope: &envelope,
            id: &id,
            reply_to: incoming.reply_to,
        };
        self.go_on(local, &again)
    }

    /// Passes a request on that the hooks have let through.
    fn go_on(self: &Rc<Self>, local: &Local, incoming: &Incoming<'_>) -> Step<InFlight> {
        let step = self.dispatch(local, incoming);
        let to = incoming.reply_to;
        match step {
            // Nothing of a list is shown.
            Step::InFlight {
                id: InFlight::Gathering(_),
                ..
            } => {
                self.forget(to);
                step
            }
            Step::InFlight { id, may_stream } => {
                if let Some(line) = self.lines.borrow_mut().by_reply.get_mut(&to) {
                    line.in_flight = Some(id);
                    // Of a request that was written anew it may be another one.
                    if let InFlight::Call { seat, .. } = id {
                        let place = local.place(seat);
                        line.context.upstream = place.map(|place| local.name(place).into());
                    }
                }
                Step::InFlight {
                    id: InFlight::Held(to),
                    may_stream,
                }
            }
            other => {
                self.forget(to);
                other
            }
        }
    }

    fn line(&self, local: &Local, hooks: &Rc<Hooks>, incoming: &Incoming<'_>) -> Option<Line> {
        let sessions = self.sessions.borrow();
        let session = sessions.get(incoming.key)?;
        let method = known(&incoming.envelope.method);
        let field = match method {
            "tools/call" | "prompts/get" => incoming.envelope.name.as_ref(),
            "tasks/result" => incoming.envelope.task_id.as_ref(),
            _ => incoming.envelope.uri.as_ref(),
        };
        let name = field.and_then(|field| field.text(incoming.text));
        let name: Arc<str> = name.as_deref().unwrap_or_default().into();
        let kind = match method {
            "tools/call" => Kind::Tool,
            "prompts/get" => Kind::Prompt,
            _ => Kind::Resource,
        };
        let naming = &local.settings.naming;
        let target = match method {
            "tasks/result" => naming.task(&name),
            _ => naming.resolve(kind, &name),
        };
        let upstream = target.map(|target| Arc::from(local.name(target.upstream)));
        Some(Line {
            session: incoming.key,
            session_id: session.id,
            client_id: ClientId::read(incoming.id, incoming.text),
            context: CallContext {
                route: local.route.clone(),
                upstream,
                identity: self.identity(session.owner),
                session: self.hasher.hash_one(session.id),
                method,
                name,
            },
            hooks: hooks.clone(),
            state: Some(CallState::default()),
            number: 0,
            asked: None,
            waiting: VecDeque::new(),
            progress_bytes: 0,
            progress: 0,
            in_flight: None,
        })
    }

    /// The name of the token that opened a session.
    fn identity(&self, owner: TokenId) -> Option<Arc<str>> {
        self.tokens.borrow().as_ref()?.name(owner)
    }

    /// Whether a request of the session under this id waits for a verdict or for an answer.
    fn is_held(&self, incoming: &Incoming<'_>) -> bool {
        let lines = self.lines.borrow();
        if lines.parked.is_empty() {
            return false;
        }
        let id = ClientId::read(incoming.id, incoming.text);
        lines
            .parked
            .contains_key(&(incoming.key, id.value().into()))
    }

    /// Shows a message to the hooks, on a thread of theirs. False if they take no more.
    fn ask(&self, hooks: &Hooks, to: ReplyTo, point: Point, waiting: Waiting) -> bool {
        let Some(post) = self.ground.hook_post() else {
            return false;
        };
        let Some(shown) = waiting.shown() else {
            return false;
        };
        if !self.ground.owes_one_more() {
            return false;
        }
        let mut lines = self.lines.borrow_mut();
        lines.next_number += 1;
        let number = lines.next_number;
        let Some(line) = lines.by_reply.get_mut(&to) else {
            self.ground.owes_one_less();
            return false;
        };
        let route = line.context.route.clone();
        let job = Job {
            point,
            call: line.context.clone(),
            state: line.state.take().unwrap_or_default(),
            text: shown.of(waiting.text()).to_vec(),
        };
        line.number = number;
        let bytes = waiting.bytes();
        line.asked = Some(waiting);
        let done = move |outcome| {
            let answer = HookAnswer {
                route,
                to,
                number,
                outcome,
            };
            send(&post, answer);
        };
        match hooks.pool.submit(&hooks.chain, job, done) {
            Ok(()) => {
                lines.bytes += bytes;
                true
            }
            Err(full) => {
                self.ground.owes_one_less();
                line.state = Some(full.0.state);
                line.asked = None;
                false
            }
        }
    }

    /// The hooks have spoken.
    pub fn hook_answered(self: &Rc<Self>, answer: HookAnswer) {
        let local = self.local();
        let HookAnswer {
            to,
            number,
            outcome,
            ..
        } = answer;
        let spoken = {
            let mut lines = self.lines.borrow_mut();
            let Some(line) = lines.by_reply.get_mut(&to) else {
                return;
            };
            if line.number != number {
                return;
            }
            let Some(asked) = line.asked.take() else {
                return;
            };
            line.state = Some(outcome.state);
            lines.bytes -= asked.bytes();
            spoken(asked, outcome.verdict, outcome.failure.is_some())
        };
        self.settle(&local, to, spoken);
        self.next(&local, to);
    }

    /// Does with a message what the hooks have said.
    fn settle(self: &Rc<Self>, local: &Local, to: ReplyTo, spoken: Spoken) {
        match spoken {
            Spoken::Pass(Waiting::Request(text)) => self.resume(local, to, &text),
            Spoken::Pass(Waiting::Progress(text)) => self.stream(to, &text),
            Spoken::Pass(Waiting::Answer(text, _) | Waiting::Last(text)) => {
                if !self.finish(to, &text) {
                    self.ground.counters.dropped(DropReason::ClientGone);
                }
            }
            Spoken::Denied(Waiting::Progress(_), ..) => {
                self.ground.counters.dropped(DropReason::Hook);
            }
            Spoken::Denied(_, denial, is_failure) => {
                let id = match self.lines.borrow().by_reply.get(&to) {
                    Some(line) => line.client_id.clone(),
                    None => return,
                };
                self.finish(to, &denied(id.raw(), &denial, is_failure));
            }
        }
    }

    /// A request that was held goes on.
    fn resume(self: &Rc<Self>, local: &Local, to: ReplyTo, text: &[u8]) {
        let known = {
            let mut lines = self.lines.borrow_mut();
            let line = lines.by_reply.get(&to);
            let known = line.map(|line| {
                let id = line.client_id.clone();
                (line.session, line.session_id, id, line.parked_as())
            });
            known.map(|(key, id, client_id, parked)| {
                lines.unpark(&parked);
                (key, id, client_id)
            })
        };
        let Some((key, id, client_id)) = known else {
            return;
        };
        let client_id = client_id.raw();
        if self.sessions.borrow().still(key, id).is_none() {
            let message = reply::failure(Some(client_id), Reason::SessionEnded);
            self.finish(to, &message);
            return;
        }
        let Ok(envelope) = scan::scan(text) else {
            self.finish(to, &denied(client_id, &unusable(), true));
            return;
        };
        let Some(field) = envelope.id.filter(|id| id.span.of(text) == client_id) else {
            self.finish(to, &denied(client_id, &unusable(), true));
            return;
        };
        let incoming = Incoming {
            key,
            text,
            envelope: &envelope,
            id: &field,
            reply_to: to,
        };
        match self.go_on(local, &incoming) {
            Step::InFlight { .. } | Step::Accepted => {}
            Step::Answer(message) | Step::Failed(_, message) => {
                self.ground.respond(to, 200, &message);
            }
            Step::Refused(message) => {
                self.ground.respond(to, 400, &message);
            }
        }
    }

    fn stream(&self, to: ReplyTo, message: &[u8]) {
        let room = self.ground.answers_room();
        let bytes = message.len() + sse::FRAME_BYTES;
        let streamed =
            self.ground
                .connections
                .borrow_mut()
                .deliver_progress(to, room, bytes, |out| out.extend_from_slice(message));
        self.ground.count_streamed(streamed);
    }

    /// The last message of a call goes to its client. False if the client is gone.
    fn finish(&self, to: ReplyTo, message: &[u8]) -> bool {
        self.forget(to);
        self.ground.respond(to, 200, message)
    }

    /// Nothing more of this call is shown to the hooks.
    fn forget(&self, to: ReplyTo) {
        let mut lines = self.lines.borrow_mut();
        if let Some(line) = lines.by_reply.remove(&to) {
            let id = line.parked_as();
            if lines.parked.get(&id) == Some(&to) {
                lines.unpark(&id);
            }
            let waiting = line.waiting.iter().map(Waiting::bytes).sum::<usize>();
            let asked = line.asked.as_ref().map_or(0, Waiting::bytes);
            lines.bytes -= waiting + asked;
            let is_asked = matches!(line.asked, Some(Waiting::Progress(_)));
            let progress = line.progress + usize::from(is_asked);
            self.ground
                .counters
                .dropped_many(DropReason::SlowReader, progress);
        }
    }

    /// A message of a call comes from its upstream: it is shown to the hooks, or waits for
    /// its turn. False if they do not look at this call.
    fn arrived(self: &Rc<Self>, local: &Local, to: ReplyTo, waiting: Waiting) -> bool {
        let mut dropped = 0;
        let hooks = {
            let mut lines = self.lines.borrow_mut();
            // What waits for hooks and for upstreams has half of the budget together.
            let room = self.ground.config.buffered_bytes_max / 2;
            let is_full = lines.bytes + waiting.bytes() > room;
            let Some(line) = lines.by_reply.get_mut(&to) else {
                return false;
            };
            if line.asked.is_some() || !line.waiting.is_empty() {
                let waiting = match waiting {
                    Waiting::Progress(_) if is_full => {
                        self.ground.counters.dropped(DropReason::SlowReader);
                        return true;
                    }
                    Waiting::Answer(..) | Waiting::Last(_) if is_full => {
                        let id = Some(line.client_id.raw());
                        Waiting::Last(reply::failure(id, Reason::Overloaded))
                    }
                    waiting => waiting,
                };
                let bytes = waiting.bytes();
                let mut freed = 0;
                if matches!(waiting, Waiting::Progress(_)) {
                    line.progress += 1;
                    line.progress_bytes += bytes;
                }
                line.waiting.push_back(waiting);
                while line.progress > HOOKED_PROGRESS_MAX
                    || line.progress_bytes > HOOKED_PROGRESS_BYTES_MAX
                {
                    let is_progress = |it: &Waiting| matches!(it, Waiting::Progress(_));
                    let Some(oldest) = line.waiting.iter().position(is_progress) else {
                        break;
                    };
                    let Some(gone) = line.waiting.remove(oldest) else {
                        break;
                    };
                    line.progress -= 1;
                    line.progress_bytes -= gone.bytes();
                    freed += gone.bytes();
                    dropped += 1;
                }
                lines.bytes = lines.bytes + bytes - freed;
                drop(lines);
                let reason = DropReason::SlowReader;
                self.ground.counters.dropped_many(reason, dropped);
                return true;
            }
            line.hooks.clone()
        };
        self.show(local, &hooks, to, waiting);
        true
    }

    /// Shows a message to the hooks, here or on their threads.
    fn show(self: &Rc<Self>, local: &Local, hooks: &Hooks, to: ReplyTo, waiting: Waiting) {
        let method = match self.lines.borrow().by_reply.get(&to) {
            Some(line) => line.context.method,
            None => return,
        };
        let point = waiting.point(method);
        let Some(point) = point.filter(|point| hooks.chain.wants(*point)) else {
            self.settle(local, to, Spoken::Pass(waiting));
            return;
        };
        if !hooks.chain.is_quick(point) {
            let is_progress = matches!(waiting, Waiting::Progress(_));
            if !self.ask(hooks, to, point, waiting) {
                match is_progress {
                    true => drop(self.ground.counters.dropped(DropReason::Hook)),
                    false => self.fail(to, Reason::Overloaded),
                }
            }
            return;
        }
        let Some(shown) = waiting.shown() else {
            self.settle(local, to, Spoken::Pass(waiting));
            return;
        };
        let (call, state) = {
            let mut lines = self.lines.borrow_mut();
            let Some(line) = lines.by_reply.get_mut(&to) else {
                return;
            };
            (line.context.clone(), line.state.take().unwrap_or_default())
        };
        let outcome = hooks.chain.run_here(Job {
            point,
            call,
            state,
            text: shown.of(waiting.text()).to_vec(),
        });
        if let Some(line) = self.lines.borrow_mut().by_reply.get_mut(&to) {
            line.state = Some(outcome.state);
        }
        let spoken = spoken(waiting, outcome.verdict, outcome.failure.is_some());
        self.settle(local, to, spoken);
    }

    fn fail(&self, to: ReplyTo, reason: Reason) {
        let id = match self.lines.borrow().by_reply.get(&to) {
            Some(line) => line.client_id.clone(),
            None => return,
        };
        self.finish(to, &reply::failure(Some(id.raw()), reason));
    }

    /// What waited behind a message has its turn.
    fn next(self: &Rc<Self>, local: &Local, to: ReplyTo) {
        loop {
            let (hooks, next) = {
                let mut lines = self.lines.borrow_mut();
                let Some(line) = lines.by_reply.get_mut(&to) else {
                    return;
                };
                if line.asked.is_some() {
                    return;
                }
                let Some(next) = line.waiting.pop_front() else {
                    return;
                };
                if matches!(next, Waiting::Progress(_)) {
                    line.progress -= 1;
                    line.progress_bytes -= next.bytes();
                }
                let hooks = line.hooks.clone();
                lines.bytes -= next.bytes();
                (hooks, next)
            };
            self.show(local, &hooks, to, next);
        }
    }

    /// An upstream's answer, in the client's words: to the hooks, if they look at this call.
    pub(in crate::http) fn answer_past_hooks(
        self: &Rc<Self>,
        to: ReplyTo,
        write: impl FnOnce() -> Vec<u8>,
    ) -> bool {
        {
            let mut lines = self.lines.borrow_mut();
            let Some(line) = lines.by_reply.get_mut(&to) else {
                return false;
            };
            // The upstream knows this call no longer, but its client does.
            line.in_flight = None;
            let id = line.parked_as();
            lines.park(id, to);
        }
        let message = write();
        let waiting = match scan::scan(&message).ok().and_then(|known| known.result) {
            Some(result) => Waiting::Answer(message, result),
            None => Waiting::Last(message),
        };
        self.arrived(&self.local(), to, waiting)
    }

    /// The same with progress.
    pub(in crate::http) fn progress_past_hooks(
        self: &Rc<Self>,
        to: ReplyTo,
        write: impl FnOnce() -> Vec<u8>,
    ) -> bool {
        if !self.is_looked_at(to) {
            return false;
        }
        self.arrived(&self.local(), to, Waiting::Progress(write()))
    }

    /// Whether hooks look at the call whose answer goes there.
    pub(in crate::http) fn is_looked_at(&self, to: ReplyTo) -> bool {
        let lines = self.lines.borrow();
        !lines.by_reply.is_empty() && lines.by_reply.contains_key(&to)
    }

    /// A message that belongs to no call. If it is progress, which is of a task then, hooks that
    /// are quick are asked; past others nothing is let through that they have not seen.
    pub(in crate::http) fn progress_of_tasks_past_hooks(
        &self,
        message: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let local = self.local();
        let Some(hooks) = &local.hooks else {
            return Some(message);
        };
        let is_progress = || {
            scan::scan(&message).is_ok_and(|envelope| {
                envelope.kind == MessageKind::Notification && envelope.method == PROGRESS
            })
        };
        if !hooks.chain.wants(Point::Progress) || !is_progress() {
            return Some(message);
        }
        let waiting = Waiting::Progress(message);
        let shown = waiting
            .shown()
            .filter(|_| hooks.chain.is_quick(Point::Progress));
        let Some(shown) = shown else {
            self.ground.counters.dropped(DropReason::Hook);
            return None;
        };
        let outcome = hooks.chain.run_here(Job {
            point: Point::Progress,
            call: CallContext {
                route: local.route.clone(),
                upstream: None,
                identity: None,
                session: 0,
                method: "tasks/result",
                name: "".into(),
            },
            state: CallState::default(),
            text: shown.of(waiting.text()).to_vec(),
        });
        match spoken(waiting, outcome.verdict, outcome.failure.is_some()) {
            Spoken::Pass(Waiting::Progress(message)) => Some(message),
            _ => {
                self.ground.counters.dropped(DropReason::Hook);
                None
            }
        }
    }

    /// A call has ended without an answer of the upstream: what waits of it is nobody's.
    pub(in crate::http) fn call_over(&self, to: ReplyTo) {
        if self.lines.borrow().len() > 0 {
            self.forget(to);
        }
    }

    /// What a held request has become upstream.
    pub(super) fn what_was_held(&self, to: ReplyTo) -> Option<InFlight> {
        self.lines.borrow().by_reply.get(&to)?.in_flight
    }

    /// A client cancels a request that waits for a verdict. True if there was one.
    pub(super) fn cancel_held(&self, key: SessionKey, client_id: &ClientId) -> bool {
        let known = {
            let lines = self.lines.borrow();
            let held = lines.parked.get(&(key, client_id.value().into()));
            held.and_then(|to| Some((*to, lines.by_reply.get(to)?.client_id.clone())))
        };
        let Some((to, id)) = known else { return false };
        self.forget(to);
        let error = reply::failure(Some(id.raw()), Reason::Cancelled);
        self.ground.cancel(to, error);
        true
    }

    /// A session has ended, and what it had in flight upstream is answered: so is what waits
    /// for a verdict now.
    pub(super) fn end_held(&self, key: SessionKey) {
        let held: Vec<_> = {
            let lines = self.lines.borrow();
            let of_session = lines.by_reply.iter().filter(|(_, it)| it.session == key);
            of_session
                .map(|(to, line)| (*to, line.client_id.clone()))
                .collect()
        };
        for (to, id) in held {
            self.finish(to, &reply::failure(Some(id.raw()), Reason::SessionEnded));
        }
    }

    /// Calls that hooks look at.
    pub fn held(&self) -> usize {
        self.lines.borrow().len()
    }
}

/// A message after the verdict: what a rewrite has made of it is read again, so that it
/// cannot be anything else than what it was.
fn spoken(waiting: Waiting, verdict: Verdict, is_failure: bool) -> Spoken {
    let with = match verdict {
        Verdict::Pass => return Spoken::Pass(waiting),
        Verdict::Deny(denial) => return Spoken::Denied(waiting, denial, is_failure),
        Verdict::Rewrite(with) => with,
    };
    let Some(shown) = waiting.shown() else {
        return Spoken::Denied(waiting, unusable(), true);
    };
    let text = replaced(waiting.text(), shown, &with);
    let before = scan::scan(waiting.text()).ok();
    let after = scan::scan(&text).ok();
    let is_still = match (&before, &after) {
        (Some(before), Some(after)) => is_same((before, waiting.text()), (after, &text)),
        _ => false,
    };
    let result = after.and_then(|after| after.result);
    if !is_still {
        return Spoken::Denied(waiting, unusable(), true);
    }
    Spoken::Pass(match (waiting, result) {
        (Waiting::Request(_), _) => Waiting::Request(text),
        (Waiting::Progress(_), _) => Waiting::Progress(text),
        (Waiting::Answer(..), Some(result)) => Waiting::Answer(text, result),
        (Waiting::Answer(..) | Waiting::Last(_), _) => Waiting::Last(text),
    })
}

/// Whether a message that was written anew is of the same call still.
fn is_same(before: (&Envelope<'_>, &[u8]), after: (&Envelope<'_>, &[u8])) -> bool {
    let said = |field: fn(&Envelope<'_>) -> Option<Field>| {
        let of = |(envelope, text): (&Envelope<'_>, &[u8])| {
            field(envelope).map(|field| field.span.of(text).to_vec())
        };
        of(before) == of(after)
    };
    before.0.kind == after.0.kind
        && before.0.method == after.0.method
        && said(|envelope| envelope.id)
        && said(|envelope| envelope.progress_token)
        && said(|envelope| envelope.meta_progress_token)
}

fn replaced(text: &[u8], span: Span, with: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + with.len());
    splice(&mut out, text, &mut [Edit { span, with }]);
    out
}

fn unusable() -> Denial {
    Denial {
        code: reply::INTERNAL_ERROR,
        message: "A hook failed".to_owned(),
    }
}

/// The error of a denied request.
fn denied(id: &[u8], denial: &Denial, is_failure: bool) -> Vec<u8> {
    match is_failure {
        true => reply::hook_failure(id, &denial.message),
        false => reply::refusal(id, i64::from(denial.code), &denial.message),
    }
}

/// The mailbox has room for whatever the pool has accepted.
fn send(post: &Post<HookAnswer>, answer: HookAnswer) {
    if post.send(answer).is_err() {
        tracing::error!("a shard does not take the verdict of a hook");
    }
    post.ring();
}
