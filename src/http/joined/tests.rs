//! A joined route on a bench: clients, servers and the I/O between them are played by hand.
//! There are no sockets and no runtime: a connection is an entry of the table, and what was
//! delivered to it is looked at. A bench that goes checks that nothing is left on it.

mod calls;
mod endings;
mod hooks;
mod lists;
mod opening;
mod reload;
mod restore;
mod streams;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crossbeam_channel::Receiver;
use serde_json::{Value, json};

use super::{HookAnswer, Hooks, Joined, PendingJoin, RouteSettings, Seat, UpstreamSettings};
use crate::http::connections::{ConnectionKey, Delivery, Form, Wake};
use crate::http::ground::{FaceConfig, Ground, ResponseMode};
use crate::http::policy::Policy;
use crate::http::response::Manner;
use crate::http::shard::Shard;
use crate::routing::client::Step;
use crate::routing::joined::naming::{Aliases, Naming, Prefix, Rules, UpstreamNaming};
use crate::routing::joined::sessions::{Leg, SessionLimits};
use crate::routing::joined::{ASKED_STRIDE, InFlight, SeatId};
use crate::routing::ledger::Told;
use crate::routing::letters::Note;
use crate::routing::outcome::Outcome;
use crate::routing::private::{End, ExchangeKey, Order, Request, Verb};
use crate::routing::session::{SessionId, SessionKey, TokenId};
use crate::routing::shard::{ShardLimits, ShardState};
use crate::routing::stream::Work;
use crate::routing::time::Millis;
use crate::routing::upstream_id::UpstreamId;
use crate::runtime::clock;
use crate::runtime::counters::Counters;
use crate::runtime::driver::Driver;
use crate::wire::handshake::{Handshake, Offer};
use crate::wire::scan;

const EVERYTHING: Offer = Offer {
    get_streams: true,
    tasks: true,
};

/// What a server of the bench can do, unless a test says otherwise.
const ABILITIES: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"completions":{},"logging":{},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}"#;

/// How long a wait for another thread may take before it counts as a hang.
const HANG: Duration = Duration::from_secs(60);

/// Longer than any time-out of the bench, milliseconds.
const LONG: u64 = 100_000_000;

/// How an upstream is configured.
#[derive(Clone)]
struct Up {
    naming: UpstreamNaming,
    required: bool,
    is_private: bool,
}

impl Up {
    fn new(name: &str, is_private: bool) -> Up {
        let naming = UpstreamNaming {
            name: name.into(),
            ..UpstreamNaming::default()
        };
        Up {
            naming,
            required: false,
            is_private,
        }
    }

    fn required(mut self) -> Up {
        self.required = true;
        self
    }

    fn bare(mut self) -> Up {
        self.naming.prefix = Prefix::Never;
        self
    }

    fn alias(mut self, public: &str, own: &str) -> Up {
        let pair = || vec![(public.to_owned(), own.to_owned())];
        self.naming.aliases = match own.contains(':') {
            true => Aliases {
                resources: pair(),
                ..Aliases::default()
            },
            false => Aliases {
                tools: pair(),
                prompts: pair(),
                ..Aliases::default()
            },
        };
        self
    }

    fn deny(mut self, pattern: &str) -> Up {
        self.naming.rules.deny.tools.push(pattern.into());
        self.naming.rules.deny.prompts.push(pattern.into());
        self.naming.rules.deny.resources.push(pattern.into());
        self
    }
}

/// An upstream that all sessions share.
fn shared(name: &str) -> Up {
    Up::new(name, false)
}

/// An upstream where each session has one of its own.
fn private(name: &str) -> Up {
    Up::new(name, true)
}

/// What a server has been asked.
#[derive(Clone, Debug)]
struct Asked {
    message: Value,
    /// Of an upstream where each session has its own.
    exchange: Option<ExchangeKey>,
    /// The upstream session that it was asked in.
    session: Option<String>,
}

impl Asked {
    fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }
}

/// A server with its seat.
struct Server {
    name: String,
    seat: Seat,
    orders: Rc<RefCell<VecDeque<Order>>>,
    under_way: RefCell<Vec<ExchangeKey>>,
    /// The GET streams that the gateway has open.
    streams: RefCell<Vec<ExchangeKey>>,
    /// Upstream sessions that were ended.
    deleted: RefCell<Vec<String>>,
    /// Requests of a bench where each session has its own that came and were not looked at.
    came: RefCell<Vec<Asked>>,
    /// Opened and not ended.
    sessions: RefCell<Vec<String>>,
    epoch: RefCell<u64>,
}

impl Server {
    fn shard(&self) -> &Rc<Shard> {
        &self.seat.shard
    }

    /// Carries out what is to be done at sessions' own upstreams. Notifications arrive at
    /// once.
    fn settle(&self) {
        loop {
            let next = self.orders.borrow_mut().pop_front();
            match next {
                None => return,
                Some(Order::Begin(key, request)) => self.begin(key, &request),
                Some(Order::Abort(key)) => {
                    self.under_way.borrow_mut().retain(|known| *known != key);
                    self.streams.borrow_mut().retain(|known| *known != key);
                    self.came
                        .borrow_mut()
                        .retain(|asked| asked.exchange != Some(key));
                    self.shard().upstream_ended(key, End::Done);
                }
            }
        }
    }

    fn begin(&self, key: ExchangeKey, request: &Request) {
        let session = request.address.session.as_ref();
        let session = session.map(|id| String::from_utf8(id.to_vec()).expect("ASCII"));
        match request.verb {
            Verb::Delete => {
                let session = session.expect("a session ends");
                self.sessions.borrow_mut().retain(|known| *known != session);
                self.deleted.borrow_mut().push(session);
                self.shard().upstream_ended(key, End::Done);
                return;
            }
            Verb::Get => self.streams.borrow_mut().push(key),
            Verb::Post => {
                let message: Value = serde_json::from_slice(&request.body).expect("JSON");
                let is_request = message.get("id").is_some() && message.get("method").is_some();
                self.came.borrow_mut().push(Asked {
                    message,
                    exchange: Some(key),
                    session,
                });
                if !is_request {
                    self.shard().upstream_head(key, None);
                    self.shard().upstream_ended(key, End::Done);
                    return;
                }
            }
        }
        self.under_way.borrow_mut().push(key);
        self.shard().upstream_head(key, None);
    }

    fn is_private(&self) -> bool {
        self.shard().is_private()
    }

    /// All that the server has been told since it was asked last.
    fn asked(&self) -> Vec<Asked> {
        if self.is_private() {
            self.settle();
            return self.came.take();
        }
        let batch = self
            .shard()
            .state
            .borrow_mut()
            .outgoing
            .take_batch(Vec::new());
        self.shard().written(batch.len());
        batch
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| Asked {
                message: serde_json::from_slice(line).expect("JSON"),
                exchange: None,
                session: None,
            })
            .collect()
    }

    /// The one request that it was asked.
    fn one(&self) -> Asked {
        let mut asked = self.asked();
        assert_eq!(asked.len(), 1, "{}: {asked:?}", self.name);
        asked.remove(0)
    }

    fn hear(&self, exchange: Option<ExchangeKey>, line: &[u8]) {
        match exchange {
            Some(key) => {
                self.shard().upstream_heard(key, line);
            }
            None => {
                let envelope = scan::scan(line).expect("a message");
                let id = |field: Option<scan::Field>| {
                    let span = field.expect("an id").span;
                    (UpstreamId::read(span.of(line)).expect("an id").id, span)
                };
                match envelope.kind {
                    scan::Kind::Result | scan::Kind::Error => {
                        let outcome = match envelope.kind {
                            scan::Kind::Error => Outcome::Error,
                            _ => Outcome::Ok,
                        };
                        let (id, span) = id(envelope.id);
                        self.shard().answer(id, span, line, outcome);
                    }
                    _ if envelope.method == "notifications/progress" => {
                        let (id, span) = id(envelope.progress_token);
                        self.shard().progress(id, span, line);
                    }
                    _ if envelope.method == "notifications/tasks/status" => {
                        self.shard().task_status(line);
                    }
                    _ => panic!("{}", envelope.method),
                }
            }
        }
        self.settle();
    }

    fn say(&self, asked: &Asked, member: &str, value: &Value) {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{},"{member}":{value}}}"#,
            asked.message["id"]
        );
        self.hear(asked.exchange, line.as_bytes());
        if let Some(key) = asked.exchange {
            self.end(key, End::Done);
        }
    }

    /// Answers with a result.
    fn result(&self, asked: &Asked, result: Value) {
        self.say(asked, "result", &result);
    }

    /// Answers with an error of this code.
    fn error(&self, asked: &Asked, code: i32) {
        self.say(asked, "error", &json!({"code": code, "message": "no"}));
    }

    fn progress(&self, asked: &Asked, progress: u32) {
        let token = &asked.message["params"]["_meta"]["progressToken"];
        let line = json!({
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": token, "progress": progress},
        });
        self.hear(asked.exchange, line.to_string().as_bytes());
    }

    /// An exchange is over.
    fn end(&self, key: ExchangeKey, end: End) {
        self.under_way.borrow_mut().retain(|known| *known != key);
        self.streams.borrow_mut().retain(|known| *known != key);
        self.shard().upstream_ended(key, end);
        self.settle();
    }

    /// Answers an `initialize` with a session.
    fn open(&self, asked: &Asked, session: &str, version: &str, abilities: &str) {
        assert_eq!(asked.method(), "initialize");
        self.sessions.borrow_mut().push(session.into());
        let key = asked.exchange.expect("an exchange");
        self.shard()
            .upstream_head(key, Some(Ok(session.as_bytes())));
        let result = format!(
            r#"{{"protocolVersion":"{version}","capabilities":{abilities},"serverInfo":{{"name":"{}","version":"1"}}}}"#,
            self.name
        );
        self.result(asked, serde_json::from_str(&result).expect("JSON"));
    }

    /// A new child with these abilities; all sessions share it.
    fn up_as(&self, version: &str, abilities: &str) {
        let text = format!(
            r#"{{"protocolVersion":"{version}","capabilities":{abilities},"serverInfo":{{"name":"{}","version":"1"}}}}"#,
            self.name
        );
        let handshake = Handshake::read(text.as_bytes(), EVERYTHING).expect("a handshake");
        *self.epoch.borrow_mut() += 1;
        let epoch = *self.epoch.borrow();
        self.shard().upstream_up(epoch, Arc::new(handshake));
    }

    fn up(&self) {
        self.up_as("2025-11-25", ABILITIES);
    }

    fn down(&self) {
        self.shard().upstream_down();
    }

    /// What the hub is told of subscriptions and tasks.
    fn notes(&self) -> Vec<String> {
        let notes = self.shard().state.borrow_mut().take_notes();
        let shown = notes.into_iter().map(|note| match note {
            Note::Want(uri) => format!("want {uri}"),
            Note::Release(uri) => format!("release {uri}"),
            Note::CancelTask(id) => format!("cancel {id}"),
            Note::ForgetTask(id) => format!("forget {id}"),
        });
        shown.collect()
    }
}

/// A client's request that is in flight.
struct Call {
    connection: ConnectionKey,
    in_flight: InFlight,
}

/// What a request has come to at once.
enum Sent {
    Accepted,
    Now(Value),
    /// HTTP 400.
    Refused(Value),
    Call(Call),
}

impl Sent {
    fn call(self) -> Call {
        match self {
            Sent::Call(call) => call,
            Sent::Accepted => panic!("accepted"),
            Sent::Now(message) | Sent::Refused(message) => panic!("{message}"),
        }
    }

    fn now(self) -> Value {
        match self {
            Sent::Now(message) => message,
            Sent::Accepted => panic!("accepted"),
            Sent::Refused(message) => panic!("refused: {message}"),
            Sent::Call(call) => panic!("{:?}", call.in_flight),
        }
    }

    fn refused(self) -> Value {
        match self {
            Sent::Refused(message) => message,
            Sent::Accepted => panic!("accepted"),
            Sent::Now(message) => panic!("{message}"),
            Sent::Call(call) => panic!("{:?}", call.in_flight),
        }
    }
}

/// What has come on a connection.
#[derive(Debug, Default, PartialEq)]
struct Got {
    messages: Vec<Value>,
    /// Of a response.
    head: String,
    cancelled: bool,
    /// Calls that have ended in an SSE answer.
    ended: usize,
}

/// An `initialize` on its way.
struct Opening {
    connection: ConnectionKey,
    _pending: Option<PendingJoin>,
}

struct Bench {
    ground: Rc<Ground>,
    joined: Rc<Joined>,
    servers: Vec<Rc<Server>>,
    /// Of former configurations.
    gone: Vec<Rc<Server>>,
    connections: RefCell<Vec<ConnectionKey>>,
    next_seat: u32,
    next_session: RefCell<u32>,
    calls_max: usize,
    session_calls_max: usize,
    subscriptions_max: usize,
    seat_subscriptions_max: usize,
    hooks: Option<Hooks>,
    /// From the threads of the hooks.
    verdicts: Option<Receiver<HookAnswer>>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.clear();
        }
    }
}

const LIMITS: SessionLimits = SessionLimits {
    sessions_max: 20,
    ttl_ms: 10_000_000,
    unused_ms: 5_000_000,
    calls_max: 10_000,
    subscriptions_max: 10_000,
};

impl Bench {
    /// A route with these upstreams; those that are shared are up.
    fn new(upstreams: &[Up]) -> Bench {
        let mut bench = Bench::down(upstreams);
        bench.servers.iter().for_each(|server| {
            if !server.is_private() {
                server.up();
            }
        });
        bench.next_session = RefCell::new(0);
        bench
    }

    /// The same before any is there.
    fn down(upstreams: &[Up]) -> Bench {
        Bench::with(upstreams, 1 << 20, false)
    }

    fn with(upstreams: &[Up], buffered_bytes_max: usize, cancel_on_disconnect: bool) -> Bench {
        let config = FaceConfig {
            policy: Policy::new(true, &[], &[]).expect("a policy"),
            response_mode: ResponseMode::Auto,
            body_bytes_max: 1 << 20,
            id_bytes_max: 1_000,
            connections_max: 20_000,
            header_timeout_ms: LONG,
            body_timeout_ms: LONG,
            idle_timeout_ms: LONG,
            write_timeout_ms: LONG,
            buffered_bytes_max,
            cancel_on_disconnect,
            get_streams: true,
            keep_alive_ms: LONG,
        };
        let counters = Arc::new(Counters::default());
        let ground = Ground::new(0, 1, Driver::Epoll, Arc::new(config), Vec::new(), counters);
        let joined = Joined::new(ground.clone(), settings(&[], &[]), Arc::default());
        let mut bench = Bench {
            ground,
            joined,
            servers: Vec::new(),
            gone: Vec::new(),
            connections: RefCell::default(),
            next_seat: 1,
            next_session: RefCell::default(),
            calls_max: 60,
            session_calls_max: LIMITS.calls_max,
            subscriptions_max: LIMITS.subscriptions_max,
            seat_subscriptions_max: 4,
            hooks: None,
            verdicts: None,
        };
        bench.configure(upstreams);
        bench
    }

    /// The route has these upstreams from now on. A server is known by its name.
    fn configure(&mut self, upstreams: &[Up]) {
        self.configure_anew(upstreams, &[]);
    }

    /// The same; these are other servers than those of their names were.
    fn configure_anew(&mut self, upstreams: &[Up], anew: &[&str]) {
        let mut before = std::mem::take(&mut self.servers);
        for up in upstreams {
            let known = before.iter().position(|it| it.name == up.naming.name);
            let known = known.filter(|_| !anew.contains(&&*up.naming.name));
            let server = match known {
                Some(place) => before.remove(place),
                None => self.server_of(up),
            };
            self.servers.push(server);
        }
        let seats = self.servers.iter().map(|server| server.seat.clone());
        let mut settings = settings(upstreams, &[]);
        let own = Arc::get_mut(&mut settings).expect("ours");
        own.hooks = self.hooks.clone();
        own.limits.calls_max = self.session_calls_max;
        own.limits.subscriptions_max = self.subscriptions_max;
        self.joined.configure(settings, seats.collect());
        for server in &before {
            server.settle();
            self.ground.remove_seat(server.shard());
        }
        self.gone.append(&mut before);
        self.servers.iter().for_each(|server| server.settle());
    }

    fn server_of(&mut self, up: &Up) -> Rc<Server> {
        let limits = ShardLimits {
            sessions_max: 30,
            calls_max: self.calls_max,
            calls_per_session_max: self.calls_max.div_ceil(3),
            subscriptions_per_session_max: self.seat_subscriptions_max,
            tasks_per_session_max: 4,
            uri_bytes_max: 200,
            waiting_bytes_max: 200_000 * self.calls_max / 60,
            request_timeout_ms: LONG / 10,
            request_timeout_max_ms: LONG / 10,
            session_ttl_ms: LONG * 10,
            session_unused_ms: LONG * 10,
        };
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let now = clock::now();
        let mut state = ShardState::new(0, 1, limits, hasher, now)
            .in_place(u64::from(self.next_seat), ASKED_STRIDE);
        if up.is_private {
            state = state.with_private(EVERYTHING, now);
        }
        let counters = Arc::new(Counters::default());
        let shard = Shard::new(self.ground.clone(), state, Rc::default(), counters);
        let orders: Rc<RefCell<VecDeque<Order>>> = Rc::default();
        if up.is_private {
            let queue = orders.clone();
            let carry_out = move |order| queue.borrow_mut().push_back(order);
            shard.connect_upstream(String::new(), Box::new(carry_out));
        }
        let seat = Seat {
            id: SeatId(self.next_seat),
            shard,
        };
        self.next_seat += 1;
        Rc::new(Server {
            name: up.naming.name.clone(),
            seat,
            orders,
            under_way: RefCell::default(),
            streams: RefCell::default(),
            deleted: RefCell::default(),
            came: RefCell::default(),
            sessions: RefCell::default(),
            epoch: RefCell::default(),
        })
    }

    fn server(&self, name: &str) -> Rc<Server> {
        let mut all = self.servers.iter().chain(&self.gone);
        all.find(|server| server.name == name)
            .expect("a server")
            .clone()
    }

    fn connect(&self) -> ConnectionKey {
        let key = self.ground.open_connection().expect("room");
        self.connections.borrow_mut().push(key);
        key
    }

    fn disconnect(&self, key: ConnectionKey) {
        self.connections.borrow_mut().retain(|known| *known != key);
        self.ground.close_connection(key);
    }

    /// A client's `initialize`, which asks for the newest version.
    fn initialize(&self) -> Opening {
        self.initialize_as("2025-11-25")
    }

    fn initialize_as(&self, version: &str) -> Opening {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":"first","method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{}},"clientInfo":{{"name":"c","version":"1"}}}}}}"#
        );
        let connection = self.connect();
        let form = Form::Opening {
            manner: Manner::unread(),
            sse: false,
        };
        let reply_to = self.ground.begin_exchange(connection, form);
        let envelope = scan::scan(text.as_bytes()).expect("a message");
        let id = envelope.id.expect("an id");
        let pending = self.joined.open(
            text.as_bytes(),
            &envelope,
            &id,
            reply_to,
            TokenId::ANYONE,
            [][..].into(),
        );
        Opening {
            connection,
            _pending: Some(pending.expect("room")),
        }
    }

    /// What an `initialize` was answered: the session, if there is one, and the message.
    fn opened(&self, opening: Opening) -> (Option<SessionKey>, Value) {
        let got = self.got(opening.connection);
        self.ground.end_exchange(opening.connection);
        self.disconnect(opening.connection);
        let field = got
            .head
            .lines()
            .find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = field.map(|id| {
            let id = uuid::Uuid::parse_str(id).expect("an id");
            let id = SessionId(id.as_u128());
            self.joined.find(id, TokenId::ANYONE).expect("a session")
        });
        let [message] = &got.messages[..] else {
            panic!("{got:?}");
        };
        (session, message.clone())
    }

    /// Takes the next verdict of the hooks' threads.
    fn verdict(&self) {
        let verdicts = self.verdicts.as_ref().expect("hooks");
        let answer = verdicts.recv_timeout(HANG).expect("a verdict");
        self.ground.hook_answered(answer);
    }

    /// Takes all that are owed.
    fn verdicts(&self) {
        while self.ground.verdicts_owed() > 0 {
            self.verdict();
        }
    }

    /// Sessions of servers are numbered.
    fn session_name(&self) -> String {
        *self.next_session.borrow_mut() += 1;
        format!("upstream-{}", self.next_session.borrow())
    }

    /// A client with a session; every upstream has given it one.
    fn client(&self) -> SessionKey {
        self.client_as("2025-11-25")
    }

    fn client_as(&self, version: &str) -> SessionKey {
        let opening = self.initialize_as(version);
        for server in self.servers.iter().filter(|server| server.is_private()) {
            server.open(&server.one(), &self.session_name(), version, ABILITIES);
        }
        let (session, message) = self.opened(opening);
        let session = session.unwrap_or_else(|| panic!("{message}"));
        self.notify(session, "notifications/initialized", &json!({}));
        for server in self.servers.iter().filter(|server| server.is_private()) {
            assert_eq!(server.one().method(), "notifications/initialized");
        }
        session
    }

    fn form(&self) -> Form {
        Form::Json {
            manner: Manner::unread(),
            streams: true,
        }
    }

    /// A client sends a message.
    fn send(&self, session: SessionKey, text: &str) -> Sent {
        let connection = self.connect();
        let sent = self.send_on(connection, session, text);
        if !matches!(sent, Sent::Call(_)) {
            self.ground.end_exchange(connection);
            self.disconnect(connection);
        }
        sent
    }

    fn send_on(&self, connection: ConnectionKey, session: SessionKey, text: &str) -> Sent {
        let reply_to = self.ground.begin_exchange(connection, self.form());
        let envelope = scan::scan(text.as_bytes()).expect("a message");
        let step = self
            .joined
            .message(session, text.as_bytes(), &envelope, reply_to);
        let read = |message: &[u8]| serde_json::from_slice(message).expect("JSON");
        match step {
            Step::Accepted => Sent::Accepted,
            Step::Answer(message) | Step::Failed(_, message) => Sent::Now(read(&message)),
            Step::Refused(message) => Sent::Refused(read(&message)),
            Step::InFlight { id, .. } => Sent::Call(Call {
                connection,
                in_flight: id,
            }),
        }
    }

    /// A client sends a request.
    fn ask(&self, session: SessionKey, id: u32, method: &str, params: &Value) -> Sent {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(session, &message.to_string())
    }

    /// One that is to be in flight then.
    fn begin(&self, session: SessionKey, id: u32, method: &str, params: &Value) -> Call {
        self.ask(session, id, method, params).call()
    }

    fn tool(&self, session: SessionKey, id: u32, name: &str) -> Call {
        self.begin(session, id, "tools/call", &json!({ "name": name }))
    }

    fn notify(&self, session: SessionKey, method: &str, params: &Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        assert!(matches!(
            self.send(session, &message.to_string()),
            Sent::Accepted
        ));
    }

    fn cancel(&self, session: SessionKey, id: u32) {
        self.notify(
            session,
            "notifications/cancelled",
            &json!({ "requestId": id }),
        );
    }

    /// What has come on a connection.
    fn got(&self, connection: ConnectionKey) -> Got {
        let mut got = Got::default();
        let context = Context::from_waker(Waker::noop());
        while let Some(wake) = self.ground.poll_connection(connection, &context) {
            match wake {
                Wake::Deliveries(deliveries) => {
                    for delivery in deliveries {
                        match delivery {
                            Delivery::Response { bytes, .. } => {
                                let text = String::from_utf8(bytes).expect("UTF-8");
                                let (head, body) = text.split_once("\r\n\r\n").expect("a head");
                                got.head = head.into();
                                got.messages.push(serde_json::from_str(body).expect("JSON"));
                            }
                            Delivery::Message { message, .. } => {
                                got.messages
                                    .push(serde_json::from_slice(&message).expect("JSON"));
                            }
                            Delivery::Cancelled { .. } => got.cancelled = true,
                        }
                    }
                }
                Wake::Events(mut events) => {
                    got.ended += events.ended();
                    while let Some((bytes, start)) = events.next_part() {
                        got.messages.extend(messages_of(&bytes[start..]));
                    }
                }
                Wake::Deadline => {}
                Wake::Evicted => panic!("evicted"),
            }
        }
        self.ground.release_answers(connection);
        got
    }

    /// The one answer of a call, whose exchange ends by it.
    fn answer(&self, call: Call) -> Value {
        let mut messages = self.answers(call);
        assert_eq!(messages.len(), 1, "{messages:?}");
        messages.remove(0)
    }

    /// All that came for a call, of which the last is its answer.
    fn answers(&self, call: Call) -> Vec<Value> {
        let got = self.got(call.connection);
        assert!(!got.cancelled);
        self.ground.end_exchange(call.connection);
        self.disconnect(call.connection);
        got.messages
    }

    fn is_silent(&self, call: &Call) -> bool {
        self.got(call.connection) == Got::default()
    }

    /// A call was cancelled by its client.
    fn cancelled(&self, call: Call) {
        let got = self.got(call.connection);
        assert!(got.messages.is_empty(), "{got:?}");
        assert!(got.cancelled || got.ended == 1, "{got:?}");
        self.ground.end_exchange(call.connection);
        self.disconnect(call.connection);
    }

    /// The client of a call goes.
    fn vanish(&self, call: Call) {
        self.disconnect(call.connection);
        self.joined.client_gone(&[call.in_flight]);
    }

    /// A list that every server answers; the merged one.
    fn list(&self, session: SessionKey, id: u32, method: &str, answers: &[(&str, Value)]) -> Value {
        let call = self.begin(session, id, method, &json!({}));
        for (name, result) in answers {
            let server = self.server(name);
            server.result(&server.one(), result.clone());
        }
        self.answer(call)
    }

    /// A client opens a GET stream.
    fn open_stream(&self, session: SessionKey) -> ConnectionKey {
        let connection = self.connect();
        self.joined.open_stream(session, connection);
        connection
    }

    /// What a stream is to write; it is not written yet.
    fn to_write(&self, session: SessionKey, stream: ConnectionKey) -> Option<Vec<Value>> {
        let mut out = Vec::new();
        match self.joined.stream_work(session, stream, &mut out) {
            Work::Rest => {
                assert!(out.is_empty());
                Some(Vec::new())
            }
            Work::Write(events) => {
                let messages = messages_of(&out);
                assert_eq!(messages.len(), events);
                Some(messages)
            }
            Work::End => None,
        }
    }

    /// All that a stream tells now, as methods; it is written.
    fn told(&self, session: SessionKey, stream: ConnectionKey) -> Vec<String> {
        let mut methods = Vec::new();
        for message in self.told_messages(session, stream) {
            methods.push(message["method"].as_str().unwrap_or("answer").to_owned());
        }
        methods
    }

    fn told_messages(&self, session: SessionKey, stream: ConnectionKey) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let more = self.to_write(session, stream).expect("a stream");
            if more.is_empty() {
                return all;
            }
            all.extend(more);
            self.joined.stream_wrote(session, stream, true);
        }
    }

    fn end_stream(&self, session: SessionKey, stream: ConnectionKey) {
        self.joined.stream_gone(session, stream);
        self.disconnect(stream);
    }

    fn is_woken(&self, connection: ConnectionKey, f: impl FnOnce()) -> bool {
        struct Bell(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Bell {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let bell = Arc::new(Bell(false.into()));
        let waker = Waker::from(bell.clone());
        let none = self
            .ground
            .poll_connection(connection, &Context::from_waker(&waker));
        assert!(none.is_none());
        f();
        bell.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether a session has a leg at a server.
    fn has_leg(&self, session: SessionKey, name: &str) -> bool {
        let server = self.server(name);
        let leg = match self.joined.sessions.borrow().get(session) {
            Some(known) => known.leg(server.seat.id),
            None => return false,
        };
        let Leg::Open { key, id } = leg else {
            return false;
        };
        let state = server.shard().state.borrow();
        state.sessions.get(key).is_some_and(|known| known.id == id)
    }

    /// Time passes at once: legs that are missing are asked for.
    fn tick(&self) {
        self.joined.tick(Millis(LONG / 100));
        self.servers.iter().for_each(|server| server.settle());
    }

    /// Nothing is in flight: sessions, and what they are subscribed to, are all there is.
    fn is_quiet(&self) {
        assert_eq!(self.joined.gatherings.borrow().len(), 0, "gatherings");
        assert_eq!(self.joined.waiting_bytes(), 0, "bytes of gatherings");
        assert_eq!(self.joined.held(), 0, "calls with the hooks");
        assert_eq!(self.joined.lines.borrow().parked(), 0, "parked requests");
        assert_eq!(self.joined.joins.borrow().len(), 0, "joins");
        assert_eq!(self.joined.waiting(), 0, "what several are asked");
        for key in self.joined.sessions.borrow().keys() {
            let sessions = self.joined.sessions.borrow();
            assert_eq!(sessions.get(key).map(|it| it.gatherings), Some(0));
            let restoring = sessions.get(key).map(|it| it.restoring.len());
            assert_eq!(restoring, Some(0), "what is asked for again");
        }
        for server in self.servers.iter().chain(&self.gone) {
            server.settle();
            let state = server.shard().state.borrow();
            assert_eq!(state.calls_in_flight(), 0, "calls of {}", server.name);
        }
        let connections = self.ground.connections.borrow();
        assert_eq!(connections.held_bytes(), 0, "bytes of answers");
    }

    /// Ends all that is there. Then nothing must be left.
    fn clear(&mut self) {
        let keys = self.joined.sessions.borrow().keys();
        keys.into_iter()
            .for_each(|key| self.joined.end_session(key));
        let connections = self.connections.take();
        connections
            .iter()
            .for_each(|key| self.ground.close_connection(*key));
        for server in self.servers.iter().chain(&self.gone) {
            server.settle();
            while let Some(key) = { server.under_way.borrow_mut().pop() } {
                server.end(key, End::Done);
            }
            while !server.asked().is_empty() {}
            for note in server.notes() {
                if let Some(uri) = note.strip_prefix("want ") {
                    server.shard().told(uri, Told::Agreed);
                }
            }
            server.notes();
        }
        self.verdicts();
        // What no session waits for any more is forgotten when its turn comes.
        self.tick();
        self.is_quiet();
        assert_eq!(self.joined.sessions(), 0);
        let absences = self.joined.absences.borrow();
        if !self.ground.is_draining() {
            assert_eq!(absences.waiting(), 0);
        }
        for server in self.servers.iter().chain(&self.gone) {
            let name = &server.name;
            let opened = server.sessions.borrow();
            assert!(
                opened.is_empty(),
                "{name} was not told of the end of {opened:?}"
            );
            let mut state = server.shard().state.borrow_mut();
            assert!(state.sessions.is_empty(), "legs at {name}");
            let counts = [
                state.streams(),
                state.subscriptions(),
                state.tasks(),
                state.task_slots(),
                state.uris(),
                state.waiting_bytes(),
                state.exchanges_under_way(),
            ];
            assert_eq!(counts, [0; 7], "{name}");
            assert!(state.exchanges().is_none_or(|it| it.is_empty()), "{name}");
        }
        assert_eq!(self.ground.buffered_bytes(), 0);
        assert!(self.ground.connections.borrow().is_empty());
    }
}

fn settings(upstreams: &[Up], deny: &[&str]) -> Arc<RouteSettings> {
    let naming: Vec<_> = upstreams.iter().map(|up| up.naming.clone()).collect();
    let mut rules = Rules::default();
    rules.deny.tools = deny.iter().map(|it| (*it).to_owned()).collect();
    let none = UpstreamNaming {
        name: "none".into(),
        ..UpstreamNaming::default()
    };
    let naming = match naming.is_empty() {
        true => vec![none],
        false => naming,
    };
    Arc::new(RouteSettings {
        name: "route".into(),
        naming: Naming::new(&naming, &rules).expect("names"),
        upstreams: upstreams
            .iter()
            .map(|up| UpstreamSettings {
                name: up.naming.name.clone(),
                required: up.required,
            })
            .collect(),
        limits: LIMITS,
        cursor_key: [7; 32],
        hooks: None,
    })
}

/// The messages in SSE events.
fn messages_of(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).expect("UTF-8");
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// The names in a merged list.
fn names(answer: &Value, list: &str) -> Vec<String> {
    let member = match list {
        "resources" => "uri",
        "resourceTemplates" => "uriTemplate",
        "tasks" => "taskId",
        _ => "name",
    };
    let items = answer["result"][list]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    items
        .iter()
        .map(|item| item[member].as_str().expect("a name").to_owned())
        .collect()
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"]
        .as_i64()
        .unwrap_or_else(|| panic!("{answer}"))
}

fn tools(names: &[&str]) -> Value {
    let tools: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    json!({ "tools": tools })
}
