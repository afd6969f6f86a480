//! What the bridge decides, without I/O: what a line of the hub's means for the server, what
//! a message or the end of an exchange means for the hub. Lines, heads, messages, ends and
//! the time go in; exchanges to be begun or aborted come out, and lines for the hub.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexSet;

use super::super::exchange::{End, Fault, Request, Verb};
use super::super::response::OddSession;
use super::outbox::Outbox;
use crate::limits::{STREAM_OPEN_MS, STREAM_REOPEN_MAX_MS, STREAM_REOPEN_MS};
use crate::routing::ending::{self, error_in, failure_of};
use crate::routing::private::is_final;
use crate::routing::time::Millis;
use crate::routing::upstream_id::UpstreamId;
use crate::wire::handshake::{Handshake, Offer};
use crate::wire::method::{CANCELLED, INITIALIZED, PROGRESS, may_repeat};
use crate::wire::notice::{Kinds, updated_message};
use crate::wire::scan::{self, Envelope, Field, Kind};
use crate::wire::version::Version;

/// Lines that wait for a connection, and their bytes, beyond which the hub's pipe is not read.
const WAITING_MAX: usize = 4_096;
const WAITING_BYTES_MAX: usize = 8 << 20;

/// Pause before a server is asked again that cannot be reached yet, milliseconds.
const RETRY_MS: u64 = 250;

/// A stream that was open this long ended for something new, milliseconds.
const STEADY_MS: u64 = 10_000;

/// How much longer than the call itself its exchange may be silent, milliseconds: whose call it
/// is counts first, and says so.
const GRACE_MS: u64 = 5_000;

/// How long the rest of a response may take whose answer has come, milliseconds.
const REST_MS: u64 = 5_000;

/// What is repeated of a server's error that comes with a refusal.
const ERROR_CHARACTERS: usize = 1_000;

/// How often the exchanges are looked through for those that take too long, milliseconds.
const SWEEP_MS: u64 = 1_000;

/// Names an exchange; no two ever have the same.
pub(super) type Key = u64;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Act {
    Begin(Key, Request),
    /// Nobody waits for it any more: its connection is to be closed.
    Abort(Key),
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Under which name clients are told of its failures, if there are several servers. It may
    /// change while a session lives.
    pub upstream_name: Rc<RefCell<Option<Arc<str>>>>,
    /// Exchanges under way at most, besides the GET stream.
    pub connections_max: usize,
    /// Header lines of every request.
    pub added_fields: Rc<[u8]>,
    /// How long the server may take for the handshake and for what is no request.
    pub start_timeout_ms: u64,
    /// How long it may be silent about a request.
    pub request_timeout_ms: u64,
}

/// One session at the server, from its handshake to its end.
pub(super) struct State {
    settings: Settings,
    began: Millis,
    phase: Phase,
    /// How it ended.
    over: Option<String>,
    /// The hub's `initialize`.
    opening: Option<Opening>,
    session: Option<Rc<[u8]>>,
    version: Option<Version>,
    /// The lists that the server has.
    kinds: Kinds,
    under_way: HashMap<Key, Exchange, ahash::RandomState>,
    /// POSTs under way, and those of them that are requests.
    posts: usize,
    calls: usize,
    /// The requests under way.
    by_id: HashMap<UpstreamId, Key, ahash::RandomState>,
    requests: VecDeque<Waiting>,
    /// Notifications and answers. They go before requests, because a request under way may
    /// wait for one.
    notices: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// What the server has agreed to tell the changes of.
    uris: IndexSet<Box<str>, ahash::RandomState>,
    stream: Stream,
    sweep: Millis,
    last_key: Key,
    acts: Vec<Act>,
    pub(super) outbox: Outbox,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// `initialize` has not been answered.
    Opening,
    /// It has; the hub has yet to say that it is initialized.
    Opened,
    /// That is on its way: nothing may overtake it.
    Initializing,
    /// The GET stream is being opened: what the server would say there before it is open
    /// nobody hears, so it is not given reason to until then.
    Listening {
        until: Millis,
    },
    Ready,
}

struct Opening {
    line: Rc<[u8]>,
    id: Box<[u8]>,
    /// When it is sent again, and why it has to be.
    retry: Millis,
    failure: Option<String>,
}

/// The GET stream.
#[derive(Debug)]
struct Stream {
    exchange: Option<Key>,
    /// Open since.
    open: Option<Millis>,
    /// It was open before.
    has_worked: bool,
    last_event_id: Option<Box<[u8]>>,
    /// What the server asks for by `retry:`, milliseconds.
    retry_ms: u64,
    /// It has ended so often, one time soon after the other.
    failures: u32,
    /// When it is opened.
    due: Millis,
}

struct Exchange {
    what: What,
    /// Nobody waits for more of it.
    is_over: bool,
    /// When something of it was last heard, or it was over.
    heard: Millis,
}

enum What {
    Initialize,
    Initialized,
    /// A request of the hub's; `named`: its id, if it is one of Ringway's.
    Call {
        id: Box<[u8]>,
        named: Option<UpstreamId>,
        wish: Option<Wish>,
    },
    Notice,
    Stream,
}

/// What holds once the server has agreed.
enum Wish {
    Subscribe(Box<str>),
    Unsubscribe(Box<str>),
}

/// A line that waits for its turn.
struct Waiting {
    what: What,
    line: Rc<[u8]>,
    may_repeat: bool,
    since: Millis,
}

impl State {
    pub(super) fn new(settings: Settings, now: Millis) -> State {
        State {
            settings,
            began: now,
            phase: Phase::Opening,
            over: None,
            opening: None,
            session: None,
            version: None,
            kinds: Kinds::NONE,
            under_way: HashMap::default(),
            posts: 0,
            calls: 0,
            by_id: HashMap::default(),
            requests: VecDeque::new(),
            notices: VecDeque::new(),
            waiting_bytes: 0,
            uris: IndexSet::default(),
            stream: Stream {
                exchange: None,
                open: None,
                has_worked: false,
                last_event_id: None,
                retry_ms: 0,
                failures: 0,
                due: Millis::NEVER,
            },
            sweep: now.after(SWEEP_MS),
            last_key: 0,
            acts: Vec::new(),
            outbox: Outbox::default(),
        }
    }

    /// What is to be done, in this order.
    pub(super) fn take_acts(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.acts)
    }

    /// How the session ended, once it has.
    pub(super) fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// Whether the hub's pipe is to be read.
    pub(super) fn takes_lines(&self) -> bool {
        self.requests.len() + self.notices.len() < WAITING_MAX
            && self.waiting_bytes < WAITING_BYTES_MAX
    }

    /// Whether nobody waits for more of an exchange.
    pub(super) fn is_exchange_over(&self, key: Key) -> bool {
        self.under_way
            .get(&key)
            .is_none_or(|exchange| exchange.is_over)
    }

    /// A line of the hub's, without its end.
    pub(super) fn line(&mut self, line: &[u8], now: Millis) {
        let line = line.trim_ascii();
        if line.is_empty() || self.over.is_some() {
            return;
        }
        let waiting = |what, may_repeat| Waiting {
            what,
            line: line.into(),
            may_repeat,
            since: now,
        };
        let Ok(envelope) = scan::scan(line) else {
            // The hub's lines are sound. If one is not, that is for the server to say.
            self.wait(waiting(What::Notice, false), now);
            return;
        };
        match (envelope.kind, &*envelope.method, &envelope.id) {
            (Kind::Request, "initialize", Some(id)) => {
                self.opening = Some(Opening {
                    line: line.into(),
                    id: id.span.of(line).into(),
                    retry: Millis::NEVER,
                    failure: None,
                });
                self.open(now);
            }
            (Kind::Request, method, Some(id)) => {
                let id = id.span.of(line);
                let call = What::Call {
                    id: id.into(),
                    named: UpstreamId::read(id).map(|named| named.id),
                    wish: wish_of(&envelope, line),
                };
                self.wait(waiting(call, may_repeat(method)), now);
            }
            (Kind::Notification, INITIALIZED, _) => {
                self.phase = Phase::Initializing;
                let timeout = self.settings.start_timeout_ms;
                let request = self.request(Verb::Post, line.into(), true, timeout);
                self.begin(What::Initialized, request, now);
            }
            (Kind::Notification, CANCELLED, _) => {
                if self.cancel(&envelope, line) {
                    self.wait(waiting(What::Notice, true), now);
                }
            }
            _ => self.wait(waiting(What::Notice, false), now),
        }
    }

    /// The hub says no more: the end.
    pub(super) fn stop(&mut self) {
        self.end("its stdin was closed".into());
    }

    /// The request that ends the session at the server, if there is use for it.
    pub(super) fn farewell(&self) -> Option<Request> {
        self.session.as_ref()?;
        Some(self.request(Verb::Delete, Rc::default(), true, 0))
    }

    /// The head of a response with a status of success.
    pub(super) fn head(
        &mut self,
        key: Key,
        session: Option<Result<&[u8], OddSession>>,
        is_stream: bool,
        now: Millis,
    ) {
        let Some(exchange) = self.under_way.get_mut(&key) else {
            return;
        };
        exchange.heard = now;
        match exchange.what {
            What::Initialize => match session {
                Some(Err(odd)) => self.end(odd.to_string()),
                Some(Ok(id)) => self.session = Some(id.into()),
                None => {}
            },
            What::Initialized => self.initialized(now),
            What::Stream => {
                if is_stream {
                    self.stream_open(now);
                }
                self.ready(now);
            }
            What::Call { .. } | What::Notice => {}
        }
    }

    /// A message has come in the response of an exchange.
    pub(super) fn heard(&mut self, key: Key, text: &[u8], now: Millis) {
        let Some(exchange) = self.under_way.get_mut(&key) else {
            return;
        };
        exchange.heard = now;
        if matches!(exchange.what, What::Stream) {
            self.stream.failures = 0;
        }
        let text = text.trim_ascii();
        self.outbox.push(text);
        // What it cannot read the hub drops, and counts.
        let Ok(envelope) = scan::scan(text) else {
            return;
        };
        match envelope.kind {
            Kind::Result | Kind::Error => self.answered(key, &envelope, text, now),
            Kind::Notification if envelope.method == PROGRESS => {
                let call = envelope
                    .progress_token
                    .and_then(|token| self.call(&token, text));
                if let Some(call) = call.and_then(|call| self.under_way.get_mut(&call)) {
                    call.heard = now;
                }
            }
            Kind::Request | Kind::Notification => {}
        }
    }

    /// An event of a response had an id.
    pub(super) fn event_id(&mut self, key: Key, id: &[u8]) {
        if self.stream.exchange == Some(key) {
            self.stream.last_event_id = Some(id.into());
        }
    }

    /// The server says after how many milliseconds a stream may be opened again.
    pub(super) fn retry_after(&mut self, key: Key, milliseconds: u64) {
        if self.stream.exchange == Some(key) {
            self.stream.retry_ms = milliseconds;
        }
    }

    /// An exchange is over. `None`: Ringway failed to make it. `is_alone`: there is no
    /// connection to the server now.
    pub(super) fn ended(&mut self, key: Key, end: Option<End>, is_alone: bool, now: Millis) {
        let Some(exchange) = self.under_way.remove(&key) else {
            return;
        };
        self.posts -= usize::from(!matches!(exchange.what, What::Stream));
        if let What::Call { named, .. } = &exchange.what {
            self.calls -= 1;
            self.forget(key, *named);
        }
        if self.over.is_some() {
            return;
        }
        let has_no_streams = matches!(exchange.what, What::Stream) && !self.stream.has_worked;
        if matches!(end, Some(End::NoSession)) && !has_no_streams {
            // There is nobody to say goodbye to.
            self.session = None;
            self.end("it does not know the session any more".into());
            return;
        }
        let unreachable = match end {
            Some(End::Broken(fault)) if is_alone && is_unreachable(fault) => Some(fault),
            _ => None,
        };
        match exchange.what {
            What::Initialize if exchange.is_over => {}
            What::Initialize => {
                self.not_opened(end, now);
                return;
            }
            What::Initialized => self.initialized(now),
            What::Call { .. } if exchange.is_over => {}
            What::Call { id, .. } => {
                let sentence = "Ringway failed to ask the upstream server";
                let end = end.map_or(ending::End::Broken(sentence), Into::into);
                let failure = self.failure_of(&id, end);
                self.outbox.push(&failure);
            }
            What::Notice => {}
            What::Stream => {
                self.stream_ended(end, now);
                self.ready(now);
            }
        }
        match unreachable {
            Some(fault) => {
                self.session = None;
                self.end(fault.to_string());
            }
            None => self.pump(now),
        }
    }

    /// Time passes.
    pub(super) fn tick(&mut self, now: Millis) {
        if self.over.is_some() {
            return;
        }
        if self.phase == Phase::Opening {
            self.tick_opening(now);
            return;
        }
        if let Phase::Listening { until } = self.phase
            && until <= now
        {
            self.ready(now);
        }
        if self.stream.due <= now {
            self.open_stream(now);
        }
        if self.sweep <= now {
            self.sweep = now.after(SWEEP_MS);
            self.sweep(now);
        }
    }

    fn failure_of(&self, id: &[u8], end: ending::End) -> Vec<u8> {
        failure_of(self.settings.upstream_name.borrow().as_deref(), id, end)
    }

    fn end(&mut self, how: String) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(how);
        self.acts.clear();
        self.acts
            .extend(self.under_way.keys().copied().map(Act::Abort));
        self.requests.clear();
        self.notices.clear();
        self.waiting_bytes = 0;
    }

    /// `timeout_ms` is for the head, and for each part of the body. 0: none.
    fn request(&self, method: Verb, body: Rc<[u8]>, may_repeat: bool, timeout_ms: u64) -> Request {
        Request {
            method,
            session: self.session.clone(),
            version: self.version.map(Version::as_str),
            fields: self.settings.added_fields.clone(),
            last_event_id: None,
            body: body.into(),
            // Its own order says what may go out beside what.
            is_call: true,
            may_repeat,
            first_byte_ms: timeout_ms,
            silence_ms: timeout_ms,
        }
    }

    fn begin(&mut self, what: What, request: Request, now: Millis) -> Key {
        self.last_key += 1;
        let key = self.last_key;
        self.posts += usize::from(!matches!(what, What::Stream));
        if let What::Call { named, .. } = &what {
            self.calls += 1;
            if let Some(id) = named {
                self.by_id.insert(*id, key);
            }
        }
        self.under_way.insert(
            key,
            Exchange {
                what,
                is_over: false,
                heard: now,
            },
        );
        self.acts.push(Act::Begin(key, request));
        key
    }

    fn wait(&mut self, waiting: Waiting, now: Millis) {
        self.waiting_bytes += waiting.line.len();
        match waiting.what {
            What::Call { .. } => self.requests.push_back(waiting),
            _ => self.notices.push_back(waiting),
        }
        self.pump(now);
    }

    /// Begins what there is a connection for.
    fn pump(&mut self, now: Millis) {
        if self.phase != Phase::Ready || self.over.is_some() {
            return;
        }
        // One is kept for what a request under way may wait for.
        let posts_max = self.settings.connections_max.max(1);
        let calls_max = (posts_max - 1).max(1);
        while self.posts < posts_max {
            let next = match self.notices.pop_front() {
                None if self.calls < calls_max => self.requests.pop_front(),
                notice => notice,
            };
            let Some(next) = next else { return };
            self.waiting_bytes -= next.line.len();
            let timeout_ms = match next.what {
                // Whose call it is counts the time.
                What::Call { .. } => 0,
                _ => self.settings.start_timeout_ms,
            };
            let request = self.request(Verb::Post, next.line, next.may_repeat, timeout_ms);
            self.begin(next.what, request, now);
        }
    }

    /// The request under way that an id or a token names.
    fn call(&self, field: &Field, text: &[u8]) -> Option<Key> {
        let named = UpstreamId::read(field.span.of(text))?;
        self.by_id.get(&named.id).copied()
    }

    fn forget(&mut self, key: Key, named: Option<UpstreamId>) {
        if let Some(id) = named
            && self.by_id.get(&id) == Some(&key)
        {
            self.by_id.remove(&id);
        }
    }

    /// A request is withdrawn. False: the server has never heard of it.
    fn cancel(&mut self, envelope: &Envelope<'_>, line: &[u8]) -> bool {
        let Some(field) = &envelope.request_id else {
            return true;
        };
        let Some(id) = UpstreamId::read(field.span.of(line)).map(|named| named.id) else {
            return true;
        };
        if let Some(key) = self.by_id.remove(&id) {
            if let Some(exchange) = self.under_way.get_mut(&key) {
                exchange.is_over = true;
            }
            self.acts.push(Act::Abort(key));
            return true;
        }
        let is_it = |waiting: &Waiting| matches!(waiting.what, What::Call { named, .. } if named == Some(id));
        match self.requests.iter().position(is_it) {
            Some(at) => {
                let gone = self.requests.remove(at);
                self.waiting_bytes -= gone.map_or(0, |gone| gone.line.len());
                false
            }
            None => true,
        }
    }

    /// Sends `initialize`.
    fn open(&mut self, now: Millis) {
        let Some(opening) = &mut self.opening else {
            return;
        };
        opening.retry = Millis::NEVER;
        let line = opening.line.clone();
        self.session = None;
        let timeout = self.settings.start_timeout_ms;
        let request = self.request(Verb::Post, line, false, timeout);
        self.begin(What::Initialize, request, now);
    }

    /// Gives up a moment before the main thread does, so that the reason is known.
    fn tick_opening(&mut self, now: Millis) {
        let timeout = self.settings.start_timeout_ms;
        let patience = timeout - (timeout / 10).min(RETRY_MS);
        let Some(opening) = &self.opening else { return };
        if let Some(failure) = &opening.failure
            && self.began.after(patience) <= now
        {
            let how = failure.clone();
            self.end(how);
        } else if opening.retry <= now {
            self.open(now);
        }
    }

    /// `initialize` has no answer.
    fn not_opened(&mut self, end: Option<End>, now: Millis) {
        let (how, may_change) = match end {
            Some(End::Broken(fault)) => (
                fault.to_string(),
                is_unreachable(fault) || fault == Fault::Closed,
            ),
            Some(End::Refused { status, body }) => {
                // A reverse proxy whose server is yet to come.
                let may_change = matches!(status, 502..=504);
                let mut how = format!("it answered initialize with HTTP status {status}");
                if let Some(error) = error_in(&body) {
                    let error = String::from_utf8_lossy(error);
                    let error = error.chars().take(ERROR_CHARACTERS);
                    let error: String = error.filter(|letter| !letter.is_control()).collect();
                    how = format!("{how} and the error {error}");
                } else if let Some(hint) = ending::hint_of(status) {
                    how = format!("{how}: {hint}");
                }
                (how, may_change)
            }
            _ => ("it answered initialize with nothing".into(), false),
        };
        match &mut self.opening {
            Some(opening) if may_change => {
                opening.failure = Some(how);
                opening.retry = now.after(RETRY_MS);
            }
            _ => self.end(how),
        }
    }

    /// The server knows that the handshake is done, or never will.
    fn initialized(&mut self, now: Millis) {
        if self.phase == Phase::Initializing {
            let until = now.after(STREAM_OPEN_MS);
            self.phase = Phase::Listening { until };
            self.open_stream(now);
        }
    }

    fn open_stream(&mut self, now: Millis) {
        self.stream.due = Millis::NEVER;
        let request = self.request(Verb::Get, Rc::default(), true, 0);
        let request = Request {
            last_event_id: self.stream.last_event_id.clone(),
            first_byte_ms: self.settings.start_timeout_ms,
            ..request
        };
        self.stream.exchange = Some(self.begin(What::Stream, request, now));
    }

    /// What waits may go.
    fn ready(&mut self, now: Millis) {
        if matches!(self.phase, Phase::Listening { .. }) {
            self.phase = Phase::Ready;
            self.pump(now);
        }
    }

    /// An answer has come, wherever it came.
    fn answered(&mut self, key: Key, envelope: &Envelope<'_>, text: &[u8], now: Millis) {
        let Some(id) = &envelope.id else { return };
        if self.phase == Phase::Opening {
            self.opened(
                key,
                id.span.of(text),
                envelope.result.map(|span| span.of(text)),
                now,
            );
            return;
        }
        let Some(call) = self.call(id, text) else {
            return;
        };
        let Some(exchange) = self.under_way.get_mut(&call) else {
            return;
        };
        exchange.is_over = true;
        exchange.heard = now;
        let What::Call { named, wish, .. } = &mut exchange.what else {
            return;
        };
        let (named, wish) = (*named, wish.take());
        self.forget(call, named);
        if envelope.kind == Kind::Result {
            match wish {
                Some(Wish::Subscribe(uri)) => {
                    self.uris.insert(uri);
                }
                Some(Wish::Unsubscribe(uri)) => {
                    self.uris.swap_remove(&uri);
                }
                None => {}
            }
        }
    }

    /// `initialize` has been answered.
    fn opened(&mut self, key: Key, id: &[u8], result: Option<&[u8]>, now: Millis) {
        let Some(exchange) = self.under_way.get_mut(&key) else {
            return;
        };
        if self
            .opening
            .as_ref()
            .is_none_or(|opening| *opening.id != *id)
        {
            return;
        }
        exchange.is_over = true;
        exchange.heard = now;
        self.phase = Phase::Opened;
        let everything = Offer {
            get_streams: true,
            tasks: true,
        };
        // What is wrong with one the hub says.
        if let Some(Ok(handshake)) = result.map(|result| Handshake::read(result, everything)) {
            self.version = Some(handshake.version);
            self.kinds = handshake.kinds;
        }
    }

    /// The GET stream is open. What was said while there was none nobody has heard.
    fn stream_open(&mut self, now: Millis) {
        self.stream.open = Some(now);
        if !std::mem::replace(&mut self.stream.has_worked, true) {
            return;
        }
        for message in self.kinds.messages() {
            self.outbox.push(message);
        }
        for uri in &self.uris {
            self.outbox.push(&updated_message(uri));
        }
    }

    fn stream_ended(&mut self, end: Option<End>, now: Millis) {
        let stream = &mut self.stream;
        stream.exchange = None;
        let opened = stream.open.take();
        match end {
            // Some servers say 404 where they have no streams.
            Some(End::NoSession) => return,
            Some(End::Refused { status, .. }) if is_final(status) => return,
            // An answer that is no stream.
            Some(End::Done) if opened.is_none() => return,
            _ => {}
        }
        if opened.is_some_and(|opened| now.since(opened) >= STEADY_MS) {
            stream.failures = 0;
        }
        let doubled = STREAM_REOPEN_MS << stream.failures.min(5);
        stream.failures += 1;
        let pause = stream.retry_ms.max(doubled).min(STREAM_REOPEN_MAX_MS);
        stream.due = now.after(pause);
    }

    /// Ends what takes too long: the hub does not wait for it any more.
    fn sweep(&mut self, now: Millis) {
        let patience = self.settings.request_timeout_ms.saturating_add(GRACE_MS);
        let is_late = |since: Millis, patience: u64| since.after(patience) <= now;
        for (key, exchange) in &mut self.under_way {
            let What::Call { id, named, .. } = &exchange.what else {
                let is_stream = matches!(exchange.what, What::Stream);
                if !is_stream && is_late(exchange.heard, patience) {
                    self.acts.push(Act::Abort(*key));
                }
                continue;
            };
            if exchange.is_over {
                if is_late(exchange.heard, REST_MS) {
                    self.acts.push(Act::Abort(*key));
                }
            } else if is_late(exchange.heard, patience) {
                exchange.is_over = true;
                let name = self.settings.upstream_name.borrow();
                let failure = failure_of(name.as_deref(), id, ending::End::Late);
                self.outbox.push(&failure);
                self.acts.push(Act::Abort(*key));
                if let Some(id) = named {
                    self.by_id.remove(id);
                }
            }
        }
        while let Some(first) = self.requests.front()
            && is_late(first.since, patience)
        {
            self.waiting_bytes -= first.line.len();
            self.requests.pop_front();
        }
    }

    /// Exchanges under way.
    #[cfg(test)]
    pub(super) fn exchanges(&self) -> usize {
        self.under_way.len()
    }
}

/// There was no way to the server.
fn is_unreachable(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Resolve | Fault::Connect | Fault::ConnectTimeout | Fault::Tls
    )
}

fn wish_of(envelope: &Envelope<'_>, line: &[u8]) -> Option<Wish> {
    let uri = || envelope.uri?.text(line).map(Box::from);
    match &*envelope.method {
        "resources/subscribe" => uri().map(Wish::Subscribe),
        "resources/unsubscribe" => uri().map(Wish::Unsubscribe),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
