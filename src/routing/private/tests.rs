//! Sessions with upstreams of their own on a desk: client, server and I/O are played
//! by hand. A desk that goes checks that nothing is left on it.

mod calls;
mod opening;
mod random;
mod renewal;
mod sessions;
mod streams;

use std::collections::VecDeque;

use serde_json::Value;

use super::{End, ExchangeKey, Heard, Opened, Order, Request, Verb};
use crate::routing::bench::{digits, stream};
use crate::routing::calls::ReplyTo;
use crate::routing::client::Step;
use crate::routing::drops::DropReason;
use crate::routing::outcome::Outcome;
use crate::routing::session::{SessionKey, StreamId, TokenId};
use crate::routing::shard::{Act, ShardLimits, ShardState};
use crate::routing::time::{Micros, Millis};
use crate::routing::upstream_id::UpstreamId;
use crate::wire::handshake::Offer;
use crate::wire::reply::Reason;
use crate::wire::scan::scan;
use crate::wire::splice::{Edit, splice};
use crate::wire::version::Version;

const EVERYTHING: Offer = Offer {
    get_streams: true,
    tasks: true,
};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"first","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},"clientInfo":{"name":"c","version":"1"}}}"#;

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

const LIST: &str = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list"}"#;

const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// What a message of the server's turned out to be.
#[derive(PartialEq, Debug)]
enum Got {
    /// With the client's id in it; where the call's answer goes.
    Answer(u32, String),
    Progress(u32, String),
    /// For the client of this session, on the answer of this call.
    Message(SessionKey, Option<u32>, String),
    Asked(SessionKey, Option<u32>, String),
    Session(SessionKey),
    Refused(String),
    Own,
    Dropped(DropReason),
}

struct Desk {
    state: ShardState,
    now: Millis,
    draws: u128,
    exchanges: u32,
    /// What the I/O has been told to begin, and is to be looked at.
    begun: VecDeque<(ExchangeKey, Request)>,
    /// What it has begun and not ended.
    under_way: Vec<ExchangeKey>,
    /// What it was told to abort, which has ended by that.
    aborted: Vec<ExchangeKey>,
    acts: Vec<Act>,
}

impl Drop for Desk {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.clear();
        }
    }
}

impl Desk {
    fn new() -> Desk {
        Desk::offering(EVERYTHING)
    }

    fn offering(offer: Offer) -> Desk {
        let limits = ShardLimits {
            sessions_max: 5,
            calls_max: 20,
            calls_per_session_max: 6,
            subscriptions_per_session_max: 2,
            tasks_per_session_max: 2,
            uri_bytes_max: 40,
            waiting_bytes_max: 3_000_000,
            request_timeout_ms: 1_000,
            request_timeout_max_ms: 3_000,
            session_ttl_ms: 100_000,
            session_unused_ms: 10_000,
        };
        let seeds = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let state = ShardState::new(0, 1, limits, seeds, Millis(0));
        Desk {
            state: state.with_private(offer, Millis(0)),
            now: Millis(0),
            draws: 0,
            exchanges: 0,
            begun: VecDeque::new(),
            under_way: Vec::new(),
            aborted: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// Ends all that is there. Then nothing must be left.
    fn clear(&mut self) {
        for session in self.state.sessions.keys() {
            self.end_session(session);
        }
        self.settle();
        while let Some(key) = self.under_way.pop() {
            self.finish(key, End::Done);
            self.settle();
        }
        let known = self.state.private.as_ref().unwrap();
        assert!(known.is_empty() && known.by_call.is_empty() && known.ending.is_none());
        assert_eq!(
            (known.len(), known.held_bytes(), known.subscriptions()),
            (0, 0, 0)
        );
        assert!(!known.has_orders());
        assert_eq!(self.state.calls_in_flight(), 0);
        assert_eq!(self.state.streams(), 0);
        assert!(self.state.sessions.is_empty());
    }

    /// Takes over what is to be done.
    fn settle(&mut self) {
        for order in self.state.exchanges().unwrap().take_orders() {
            match order {
                Order::Begin(key, request) => {
                    self.under_way.push(key);
                    self.begun.push_back((key, request));
                }
                Order::Abort(key) => {
                    self.aborted.push(key);
                    self.begun.retain(|(begun, _)| *begun != key);
                    assert!(self.finish(key, End::Done).is_none());
                }
            }
        }
    }

    /// The next exchange that begins.
    fn next(&mut self) -> (ExchangeKey, Request) {
        self.settle();
        self.begun.pop_front().expect("an exchange begins")
    }

    /// All that begin.
    fn all(&mut self) -> Vec<(ExchangeKey, Request)> {
        self.settle();
        self.begun.drain(..).collect()
    }

    /// No exchange begins.
    fn is_still(&mut self) -> bool {
        self.settle();
        self.begun.is_empty()
    }

    fn was_aborted(&mut self, key: ExchangeKey) -> bool {
        self.settle();
        self.aborted.contains(&key)
    }

    fn acts(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.acts)
    }

    /// An exchange ends.
    fn finish(&mut self, key: ExchangeKey, end: End) -> Option<Opened> {
        self.under_way.retain(|known| *known != key);
        let now = self.now;
        self.state.ended(key, end, now, &mut self.acts)
    }

    fn end(&mut self, key: ExchangeKey, end: End) {
        assert!(self.finish(key, end).is_none());
    }

    fn done(&mut self, key: ExchangeKey) {
        self.end(key, End::Done);
    }

    /// Each exchange that begins is taken by the server at once; their bodies.
    fn taken(&mut self) -> Vec<Value> {
        let all = self.all();
        let bodies = all.iter().map(|(_, request)| json(request)).collect();
        for (key, _) in all {
            self.done(key);
        }
        bodies
    }

    fn place(&mut self) -> ReplyTo {
        self.exchanges += 1;
        ReplyTo {
            connection: 1,
            connection_generation: 1,
            exchange: self.exchanges,
            part: 0,
        }
    }

    fn try_initialize(&mut self, text: &str, fields: &[u8]) -> Option<ExchangeKey> {
        let envelope = scan(text.as_bytes()).unwrap();
        let id = envelope.id.as_ref().unwrap();
        let to = self.place();
        self.state.open_private(
            text.as_bytes(),
            &envelope,
            id,
            to,
            TokenId::ANYONE,
            fields.into(),
        )
    }

    fn initialize(&mut self, text: &str) -> (ExchangeKey, Request) {
        self.try_initialize(text, b"").expect("there is room");
        self.next()
    }

    fn head(&mut self, key: ExchangeKey, session: &str) {
        self.state.head(key, Some(Ok(session.as_bytes())));
    }

    /// A session whose server calls it `name`.
    fn open(&mut self, name: &str) -> SessionKey {
        self.open_with(name, r#"{"tools":{}}"#)
    }

    fn open_with(&mut self, name: &str, capabilities: &str) -> SessionKey {
        let (key, request) = self.initialize(INITIALIZE);
        self.head(key, name);
        match self.hear(key, &accepted(&request, capabilities)) {
            Got::Session(session) => session,
            other => panic!("{other:?}"),
        }
    }

    /// The same, and the client has said that it is ready.
    fn ready(&mut self, name: &str) -> SessionKey {
        let session = self.open(name);
        self.say_ready(session);
        session
    }

    fn say_ready(&mut self, session: SessionKey) {
        self.say(session, INITIALIZED);
        let (key, request) = self.next();
        assert_eq!(text(&request), INITIALIZED);
        self.done(key);
    }

    fn send(&mut self, session: SessionKey, text: &str) -> Step {
        let envelope = scan(text.as_bytes()).unwrap();
        let to = self.place();
        let now = Micros(self.now.0 * 1_000);
        self.state
            .message(session, text.as_bytes(), &envelope, to, now, &mut self.acts)
    }

    /// A notification or an answer.
    fn say(&mut self, session: SessionKey, text: &str) {
        assert!(matches!(self.send(session, text), Step::Accepted));
    }

    /// A request that is in flight then.
    fn ask(&mut self, session: SessionKey, text: &str) -> UpstreamId {
        match self.send(session, text) {
            Step::InFlight { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    /// A request that goes upstream at once.
    fn call(&mut self, session: SessionKey, text: &str) -> (UpstreamId, ExchangeKey) {
        let id = self.ask(session, text);
        let (key, request) = self.next();
        assert_eq!(json(&request)["id"].to_string(), digits(id));
        (id, key)
    }

    fn cancel(&mut self, session: SessionKey, id: &str) {
        self.say(
            session,
            &format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            ),
        );
    }

    /// The server says something in the response of an exchange.
    fn hear(&mut self, key: ExchangeKey, text: &str) -> Got {
        let bytes = text.as_bytes();
        let spliced = |span, with: &[u8]| {
            let mut out = Vec::new();
            splice(&mut out, bytes, &mut [Edit { span, with }]);
            String::from_utf8(out).unwrap()
        };
        let opened = match self.state.heard(key, bytes, self.now, &mut self.acts) {
            Heard::Answer {
                call,
                id_span,
                is_error,
            } => {
                assert_eq!(is_error, text.contains(r#""error""#));
                return Got::Answer(
                    call.reply_to.exchange,
                    spliced(id_span, call.client_id.raw()),
                );
            }
            Heard::Progress {
                reply_to,
                token,
                token_span,
            } => return Got::Progress(reply_to.exchange, spliced(token_span, token)),
            Heard::Message {
                session,
                reply_to,
                message,
                asked,
            } => {
                let message = String::from_utf8(message).unwrap();
                let to = reply_to.map(|to| to.exchange);
                let Some(asked) = asked else {
                    return Got::Message(session, to, message);
                };
                let shown: Value = serde_json::from_str(&message).unwrap();
                assert_eq!(shown["id"], asked);
                return Got::Asked(session, to, message);
            }
            Heard::Own => return Got::Own,
            Heard::Dropped(reason) => return Got::Dropped(reason),
            Heard::Opened(opened) => opened,
        };
        match opened {
            Opened::Refused { message, .. } => Got::Refused(String::from_utf8(message).unwrap()),
            Opened::Session { opening, handshake } => {
                self.draws += 1;
                let (draw, now) = (self.draws, self.now);
                let owner = opening.owner;
                let session = self
                    .state
                    .open_session(owner, handshake.version, now, || draw)
                    .unwrap();
                self.state.adopt(session, *opening, handshake);
                Got::Session(session)
            }
        }
    }

    /// The server answers a call.
    fn answer(&mut self, key: ExchangeKey, id: UpstreamId) -> Got {
        self.hear(key, &result(&digits(id), "{}"))
    }

    /// The server asks the client, who gets this message.
    fn asked(&mut self, key: ExchangeKey, id: &str) -> String {
        match self.hear(key, &request(id)) {
            Got::Asked(.., message) => message,
            other => panic!("{other:?}"),
        }
    }

    fn end_session(&mut self, session: SessionKey) {
        self.state.end_session(session, &mut self.acts);
    }

    fn open_stream(&mut self, session: SessionKey, by: u32) {
        let now = self.now;
        self.state
            .open_stream(session, stream(by), now, &mut self.acts);
    }

    fn lose_stream(&mut self, session: SessionKey, by: u32) {
        let now = self.now;
        self.state
            .stream_gone(session, stream(by), now, &mut self.acts);
    }

    fn queue(&mut self, session: SessionKey, message: &str) -> usize {
        self.state
            .queue(session, message.as_bytes(), None, &mut self.acts)
    }

    /// What a stream takes to write it.
    fn takes(&mut self, session: SessionKey, by: u32) -> String {
        let mut out = Vec::new();
        self.state.stream_work(session, stream(by), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn wrote(&mut self, session: SessionKey, by: u32, is_done: bool) {
        self.state
            .stream_wrote(session, stream(by), is_done, &mut self.acts);
    }

    /// What a stream writes until it has no more.
    fn reads(&mut self, session: SessionKey, by: u32) -> Vec<String> {
        let mut found = Vec::new();
        loop {
            let events = self.takes(session, by);
            if events.is_empty() {
                return found;
            }
            self.wrote(session, by, true);
            found.extend(messages(&events));
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        let until = self.now.0 + milliseconds;
        while self.now.0 < until {
            self.now = Millis((self.now.0 + 50).min(until));
            self.state.tick(self.now, &mut self.acts);
        }
    }

    fn is_alive(&self, session: SessionKey) -> bool {
        self.state.sessions.get(session).is_some()
    }

    fn held(&self) -> usize {
        self.state.private.as_ref().unwrap().held_bytes()
    }

    fn subscriptions(&self) -> usize {
        self.state.private.as_ref().unwrap().subscriptions()
    }
}

/// The server accepts an `initialize`.
fn accepted(request: &Request, capabilities: &str) -> String {
    let id = json(request)["id"].to_string();
    result(
        &id,
        &format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{"name":"s","version":"1"}}}}"#
        ),
    )
}

fn text(request: &Request) -> &str {
    std::str::from_utf8(&request.body).unwrap()
}

fn json(request: &Request) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}

fn session_of(request: &Request) -> Option<&str> {
    let session = request.address.session.as_deref();
    session.map(|session| std::str::from_utf8(session).unwrap())
}

fn id_of(request: &Request) -> UpstreamId {
    crate::routing::bench::id_of(&json(request))
}

fn result(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

fn error(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32050,"message":"no"}}}}"#)
}

/// A request, of a client or a server.
fn request(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping2"}}"#)
}

fn subscribe(id: u32, uri: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/subscribe","params":{{"uri":"{uri}"}}}}"#
    )
}

fn log(word: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":"{word}"}}}}"#
    )
}

fn progress(token: &str, n: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{n}}}}}"#
    )
}

/// The messages of events.
fn messages(events: &str) -> Vec<String> {
    let data = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    data.map(str::to_owned).collect()
}

/// How calls ended, with the ids of their clients: cancels and the like, answers of
/// Ringway's own, 404. Other acts are left out.
fn ends(acts: &[Act]) -> Vec<(String, String)> {
    let id = |call: &crate::routing::calls::Call| {
        String::from_utf8(call.client_id.raw().to_vec()).unwrap()
    };
    let ends = acts.iter().filter_map(|act| match act {
        Act::End(ended) => Some((id(&ended.call), format!("{:?}", ended.reason))),
        Act::Answer { call, outcome, .. } => Some((id(call), format!("{outcome:?}"))),
        Act::NotFound(call) => Some((id(call), "404".into())),
        Act::CloseStream(_) | Act::WakeStream(_) | Act::LostSubscription => None,
    });
    ends.collect()
}

fn closed(acts: &[Act]) -> Vec<StreamId> {
    let closed = acts.iter().filter_map(|act| match act {
        Act::CloseStream(stream) => Some(*stream),
        _ => None,
    });
    closed.collect()
}

fn woken(acts: &[Act]) -> Vec<StreamId> {
    let woken = acts.iter().filter_map(|act| match act {
        Act::WakeStream(stream) => Some(*stream),
        _ => None,
    });
    woken.collect()
}

/// The answers that Ringway gives itself.
fn answers(acts: &[Act]) -> Vec<Value> {
    let messages = acts.iter().filter_map(|act| match act {
        Act::Answer { message, .. } => Some(serde_json::from_slice(message).unwrap()),
        _ => None,
    });
    messages.collect()
}

/// An end that carries this status and body.
fn refused(status: u16, body: &str) -> End {
    End::Refused {
        status,
        body: body.into(),
    }
}

fn pair(id: &str, how: &str) -> (String, String) {
    (id.into(), how.into())
}
