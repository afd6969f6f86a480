//! An MCP server over Streamable HTTP that does what it is told. What it is asked it answers by itself, unless a
//! rule of the test says else; a request that is held is handed to the test as an [`Exchange`], which writes the
//! answer piece by piece, so that every order of events is made on purpose. It keeps what it was asked, byte for
//! byte, and refuses to pass a test whose gateway sent what no MCP server should get.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketType, bind, recv, socket, sockopt};

use serde_json::value::RawValue;

use super::http::find;
use super::mcp::{LATEST, LEGACY_VERSIONS, raw_member};
use super::{GUARD, Gateway, Raw, Request, Session, Upstream};

pub const JSON: &str = "application/json";
pub const SSE: &str = "text/event-stream";
/// What a client accepts that takes both forms.
pub const BOTH: &str = "application/json, text/event-stream";

/// For a gateway that is soon to hold no connection to its server that nobody uses.
pub const SOON_IDLE: [&str; 2] = ["--upstream-idle-timeout", "300ms"];

/// How the server answers what no rule speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Json,
    Sse,
}

/// One request as the server read it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Counted over all requests, in the order in which they were read.
    pub serial: usize,
    /// Counted over all connections, in the order in which they were accepted.
    pub connection: usize,
    pub method: String,
    pub target: String,
    /// Names in lower case, in the order received.
    pub fields: Vec<(String, String)>,
    pub body: String,
}

impl Seen {
    /// The value of a field. Several of one name fail the test.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(known, _)| known == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "several {name} fields: {self:?}");
        value
    }

    pub fn session(&self) -> Option<&str> {
        self.field("mcp-session-id")
    }

    /// The raw text of a member of the body's message, by its path; `None` if there is none.
    pub fn raw(&self, path: &[&str]) -> Option<String> {
        if self.body.is_empty() {
            return None;
        }
        let mut text = self.body.clone();
        for key in path {
            if !text.trim_start().starts_with('{') {
                return None;
            }
            text = raw_member(&text, key)?;
        }
        Some(text)
    }

    /// The JSON-RPC method.
    pub fn rpc(&self) -> Option<String> {
        let method = self.raw(&["method"])?;
        serde_json::from_str(&method).ok()
    }

    pub fn is(&self, rpc: &str) -> bool {
        self.rpc().as_deref() == Some(rpc)
    }

    /// The raw JSON-RPC id.
    pub fn id(&self) -> Option<String> {
        self.raw(&["id"])
    }

    /// The raw progress token.
    pub fn token(&self) -> Option<String> {
        self.raw(&["params", "_meta", "progressToken"])
    }

    /// Whether it calls this tool.
    pub fn is_tool(&self, name: &str) -> bool {
        self.is("tools/call") && self.raw(&["params", "name"]) == Some(format!("\"{name}\""))
    }

    /// Whether it calls `hold` with this key.
    pub fn is_held(&self, key: &str) -> bool {
        let named = self.raw(&["params", "arguments", "key"]);
        self.is_tool("hold") && named == Some(format!("\"{key}\""))
    }

    /// Whether it is a message that wants no answer: a notification, or an answer of the client's.
    pub fn is_one_way(&self) -> bool {
        self.method == "POST" && (self.id().is_none() || self.rpc().is_none())
    }

    /// A client's answer to a request of the server's.
    pub fn is_answer(&self) -> bool {
        self.method == "POST" && self.rpc().is_none()
    }
}

type Matches = Box<dyn Fn(&Seen) -> bool + Send + Sync>;
type Action = Arc<dyn Fn(Exchange) + Send + Sync>;

struct Rule {
    matches: Matches,
    action: Action,
    /// Looked at before the session id is.
    is_first: bool,
}

struct State {
    rules: Vec<Arc<Rule>>,
    seen: Vec<Seen>,
    /// One handle a connection; `None` once it has ended.
    connections: Vec<Option<TcpStream>>,
    /// Every session id that was ever given, in order.
    given: Vec<String>,
    /// Those that are known.
    sessions: Vec<String>,
    parked: Vec<Exchange>,
    /// What the gateway sent that no server should get, and rules that panicked.
    faults: Vec<String>,
    settings: Settings,
    is_up: bool,
    is_ending: bool,
}

#[derive(Clone)]
struct Settings {
    form: Form,
    gives_sessions: bool,
    has_get: bool,
    /// Answers this version, whatever was asked for.
    version: Option<String>,
}

struct Inner {
    address: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
    /// Keeps the port while nobody listens on it.
    _port: OwnedFd,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|failed| failed.into_inner())
    }

    fn fault(&self, text: String) {
        self.lock().faults.push(text);
        self.changed.notify_all();
    }
}

pub struct HttpServer {
    inner: Arc<Inner>,
}

impl HttpServer {
    pub fn new() -> Self {
        let port = socket(AddressFamily::INET, SocketType::STREAM, None).expect("one is free");
        sockopt::set_socket_reuseaddr(&port, true).expect("a socket");
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        bind(&port, &any).expect("a port is free");
        let address = rustix::net::getsockname(&port).expect("bound");
        let address = SocketAddr::try_from(address).expect("an IPv4 address");
        let server = Self {
            inner: Arc::new(Inner {
                address,
                state: Mutex::new(State {
                    rules: Vec::new(),
                    seen: Vec::new(),
                    connections: Vec::new(),
                    given: Vec::new(),
                    sessions: Vec::new(),
                    parked: Vec::new(),
                    faults: Vec::new(),
                    settings: Settings {
                        form: Form::Json,
                        gives_sessions: true,
                        has_get: true,
                        version: None,
                    },
                    is_up: false,
                    is_ending: false,
                }),
                changed: Condvar::new(),
                _port: port,
            }),
        };
        server.up();
        server
    }

    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.inner.address)
    }

    /// Accepts connections.
    pub fn up(&self) {
        self.inner.lock().is_up = true;
        let listener = TcpListener::bind(self.inner.address).expect("the port is ours");
        let inner = Arc::clone(&self.inner);
        std::thread::spawn(move || accept(&inner, &listener));
    }

    /// Refuses connections, and ends those that are open.
    pub fn down(&self) {
        self.inner.lock().is_up = false;
        // Wakes the accepting thread, which then ends the listener.
        drop(TcpStream::connect(self.inner.address));
        super::wait_until("nobody listens", || {
            TcpStream::connect(self.inner.address).is_err()
        });
        self.end_connections();
    }

    /// Ends every connection.
    pub fn end_connections(&self) {
        let mut state = self.inner.lock();
        for connection in state.connections.iter().flatten() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        drop(parked);
    }

    /// Connections that are open.
    pub fn open_connections(&self) -> usize {
        self.inner.lock().connections.iter().flatten().count()
    }

    /// The form of the answers that no rule speaks of.
    pub fn answer_as(&self, form: Form) {
        self.inner.lock().settings.form = form;
    }

    /// Gives no session ids.
    pub fn give_no_sessions(&self) {
        self.inner.lock().settings.gives_sessions = false;
    }

    /// Answers GET with 405.
    pub fn refuse_get(&self) {
        self.inner.lock().settings.has_get = false;
    }

    /// Answers each `initialize` with this version.
    pub fn speak(&self, version: &str) {
        self.inner.lock().settings.version = Some(version.to_owned());
    }

    /// What matches is answered so; a later rule goes before an earlier one.
    pub fn on(
        &self,
        matches: impl Fn(&Seen) -> bool + Send + Sync + 'static,
        action: impl Fn(Exchange) + Send + Sync + 'static,
    ) {
        self.rule(matches, action, false);
    }

    /// The same, whether the request names a known session or not.
    pub fn on_first(
        &self,
        matches: impl Fn(&Seen) -> bool + Send + Sync + 'static,
        action: impl Fn(Exchange) + Send + Sync + 'static,
    ) {
        self.rule(matches, action, true);
    }

    /// Keeps what matches for [`HttpServer::take`], whether it names a known session or not.
    pub fn hold(&self, matches: impl Fn(&Seen) -> bool + Send + Sync + 'static) {
        self.rule(matches, Exchange::park, true);
    }

    fn rule(
        &self,
        matches: impl Fn(&Seen) -> bool + Send + Sync + 'static,
        action: impl Fn(Exchange) + Send + Sync + 'static,
        is_first: bool,
    ) {
        self.inner.lock().rules.push(Arc::new(Rule {
            matches: Box::new(matches),
            action: Arc::new(action),
            is_first,
        }));
    }

    pub fn forget_rules(&self) {
        self.inner.lock().rules.clear();
    }

    /// From now on every session id that was given is unknown, and the streams of the sessions end.
    pub fn forget_sessions(&self) {
        self.inner.lock().sessions.clear();
    }

    /// The same for one session.
    pub fn forget_session(&self, session: &str) {
        self.inner.lock().sessions.retain(|known| known != session);
    }

    /// The session ids that were given, in order.
    pub fn given(&self) -> Vec<String> {
        self.inner.lock().given.clone()
    }

    /// The session ids that are known and were not ended by DELETE.
    pub fn live(&self) -> Vec<String> {
        self.inner.lock().sessions.clone()
    }

    /// Waits for a request that is held and matches, and hands it over.
    #[track_caller]
    pub fn take(&self, what: &str, matches: impl Fn(&Seen) -> bool) -> Exchange {
        self.wait(what, |state| {
            let at = state.parked.iter().position(|held| matches(&held.seen))?;
            Some(state.parked.remove(at))
        })
    }

    /// Waits for a call of `hold` with this key, and hands it over.
    #[track_caller]
    pub fn take_held(&self, key: &str) -> Exchange {
        self.take(&format!("a call that is held as {key}"), |seen| {
            seen.is_held(key)
        })
    }

    /// Waits for the GET stream of a session; its head has been sent.
    #[track_caller]
    pub fn take_get(&self, session: &str) -> Exchange {
        self.take("a GET stream", |seen| {
            seen.method == "GET" && seen.session() == Some(session)
        })
    }

    /// The requests that match, in order.
    pub fn seen(&self, matches: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let state = self.inner.lock();
        state
            .seen
            .iter()
            .filter(|seen| matches(seen))
            .cloned()
            .collect()
    }

    pub fn count(&self, matches: impl Fn(&Seen) -> bool) -> usize {
        self.seen(matches).len()
    }

    /// Waits until exactly so many requests match; more fail the test.
    #[track_caller]
    pub fn wait_seen(
        &self,
        what: &str,
        count: usize,
        matches: impl Fn(&Seen) -> bool,
    ) -> Vec<Seen> {
        let found = self.wait(what, |state| {
            let found = state.seen.iter().filter(|seen| matches(seen));
            let found: Vec<Seen> = found.cloned().collect();
            (found.len() >= count).then_some(found)
        });
        assert_eq!(found.len(), count, "{what}: {found:#?}");
        found
    }

    /// Waits until one request matches.
    #[track_caller]
    pub fn wait_one(&self, what: &str, matches: impl Fn(&Seen) -> bool) -> Seen {
        self.wait_seen(what, 1, matches).remove(0)
    }

    #[track_caller]
    fn wait<T>(&self, what: &str, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let start = Instant::now();
        let mut state = self.inner.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return found;
            }
            let left = GUARD.saturating_sub(start.elapsed());
            if left.is_zero() {
                let seen = std::mem::take(&mut state.seen);
                drop(state);
                panic!("the server never saw: {what}; it saw {}", shown(&seen));
            }
            let waited = self.inner.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|failed| failed.into_inner()).0;
        }
    }
}

/// The last requests, one a line.
fn shown(seen: &[Seen]) -> String {
    let last = &seen[seen.len().saturating_sub(40)..];
    last.iter().fold(String::new(), |text, seen| {
        let body: String = seen.body.chars().take(160).collect();
        let session = seen
            .fields
            .iter()
            .find(|(name, _)| name == "mcp-session-id");
        let session = session.map_or("-", |(_, value)| value.as_str());
        format!("{text}\n{} {} {session} {body}", seen.serial, seen.method)
    })
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.is_ending = true;
        state.is_up = false;
        state.rules.clear();
        let faults = std::mem::take(&mut state.faults);
        let seen = shown(&state.seen);
        drop(state);
        drop(TcpStream::connect(self.inner.address));
        self.end_connections();
        if std::thread::panicking() {
            eprintln!("--- the HTTP server saw: {seen}\n--- faults: {faults:#?}");
            return;
        }
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

fn accept(inner: &Arc<Inner>, listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let mut state = inner.lock();
        if !state.is_up {
            return;
        }
        let number = state.connections.len();
        state.connections.push(stream.try_clone().ok());
        drop(state);
        let inner = Arc::clone(inner);
        std::thread::spawn(move || {
            serve(&inner, stream, number);
            inner.lock().connections[number] = None;
            inner.changed.notify_all();
        });
    }
}

/// Reads and answers the requests of one connection.
fn serve(inner: &Arc<Inner>, mut stream: TcpStream, number: usize) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_write_timeout(Some(GUARD));
    let mut unread = Vec::new();
    while let Some(mut seen) = read_request(inner, &mut stream, &mut unread, number) {
        if !unread.is_empty() {
            inner.fault(format!("bytes behind a request: {seen:?}"));
        }
        let Ok(twin) = stream.try_clone() else { return };
        let (back, kept) = mpsc::channel();
        let mut state = inner.lock();
        seen.serial = state.seen.len();
        let first_of_session = seen.is("initialize");
        if let Some(fault) = fault_of(&seen, first_of_session) {
            state.faults.push(format!("{fault}: {seen:?}"));
        }
        state.seen.push(seen.clone());
        drop(state);
        inner.changed.notify_all();
        let exchange = Exchange {
            seen,
            given: None,
            stream: twin,
            inner: Arc::clone(inner),
            back,
            is_stream: false,
        };
        let text = format!("{:?}", exchange.seen);
        if catch_unwind(AssertUnwindSafe(|| answer(exchange))).is_err() {
            inner.fault(format!("a rule panicked at {text}"));
        }
        match kept.recv() {
            Ok(Next::Request) => {}
            Ok(Next::Reset) => return,
            Err(_) => break,
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

/// The next request; `None` when the connection ends.
fn read_request(
    inner: &Inner,
    stream: &mut TcpStream,
    unread: &mut Vec<u8>,
    connection: usize,
) -> Option<Seen> {
    let head_end = loop {
        if let Some(at) = find(unread, b"\r\n\r\n") {
            break at + 4;
        }
        fill(stream, unread)?;
    };
    let head: Vec<u8> = unread.drain(..head_end).collect();
    let Ok(head) = std::str::from_utf8(&head) else {
        inner.fault(format!("a head that is no text: {head:?}"));
        return None;
    };
    let mut lines = head.trim_end_matches("\r\n").split("\r\n");
    let words: Vec<&str> = lines.next()?.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else {
        inner.fault(format!("a request line: {words:?}"));
        return None;
    };
    let mut fields = Vec::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            inner.fault(format!("no field: {line:?}"));
            return None;
        };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = fields.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(Ok(0), |(_, value)| value.parse::<usize>());
    let length = length.ok().or_else(|| {
        inner.fault(format!("a length: {head:?}"));
        None
    })?;
    while unread.len() < length {
        fill(stream, unread)?;
    }
    let body = String::from_utf8(unread.drain(..length).collect());
    let body = body.unwrap_or_else(|error| {
        inner.fault(format!("a body that is not UTF-8: {error}"));
        String::new()
    });
    Some(Seen {
        serial: 0,
        connection,
        method: method.to_owned(),
        target: target.to_owned(),
        fields,
        body,
    })
}

fn fill(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0_u8; 16 * 1024];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return None,
            Ok(count) => {
                unread.extend_from_slice(&chunk[..count]);
                return Some(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// What is wrong with a request for any MCP server.
fn fault_of(seen: &Seen, opens: bool) -> Option<&'static str> {
    let one = |name: &str| {
        let mut values = seen.fields.iter().filter(|(known, _)| known == name);
        let first = values.next().map(|(_, value)| value.as_str());
        if values.next().is_some() { None } else { first }
    };
    let accept = one("accept").unwrap_or_default();
    if one("host").is_none() {
        return Some("no Host");
    }
    if one("transfer-encoding").is_some() {
        return Some("a body without a length");
    }
    let sessions = seen
        .fields
        .iter()
        .filter(|(name, _)| name == "mcp-session-id");
    if sessions.count() > 1 {
        return Some("two session ids");
    }
    let version = one("mcp-protocol-version");
    if opens && seen.fields.iter().any(|(name, _)| name == "mcp-session-id") {
        return Some("a session id on initialize");
    }
    let is_known = version.is_some_and(|version| LEGACY_VERSIONS.contains(&version));
    // A session is also ended that was given with a version on which nobody agreed.
    let may_lack = opens || (seen.method == "DELETE" && version.is_none());
    if !is_known && !may_lack {
        return Some("no known version");
    }
    match seen.method.as_str() {
        "POST" => {
            // Values stay raw: some numbers have no type here.
            let message = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(&seen.body);
            let version = |message: &BTreeMap<_, Box<RawValue>>| {
                message
                    .get("jsonrpc")
                    .map(|version| version.get().to_owned())
            };
            if !accept.contains("application/json") || !accept.contains("text/event-stream") {
                Some("not both forms accepted")
            } else if one("content-type") != Some("application/json") {
                Some("a type that is not JSON")
            } else if one("content-length").is_none() {
                Some("no length")
            } else if !message.is_ok_and(|message| version(&message) == Some("\"2.0\"".to_owned()))
            {
                Some("not one JSON-RPC message")
            } else {
                None
            }
        }
        "GET" if !accept.contains("text/event-stream") => Some("a GET of no stream"),
        "GET" | "DELETE" if !seen.body.is_empty() => Some("a body"),
        "GET" | "DELETE" => None,
        _ => Some("a method"),
    }
}

fn answer(mut exchange: Exchange) {
    let (action, known, settings) = {
        let state = exchange.inner.lock();
        let known = match exchange.seen.session() {
            _ if exchange.seen.is("initialize") => Ok(()),
            Some(session) if state.sessions.iter().any(|known| known == session) => Ok(()),
            Some(_) => Err("404 Not Found"),
            None if state.settings.gives_sessions => Err("400 Bad Request"),
            None => Ok(()),
        };
        let rules = state.rules.clone();
        let settings = state.settings.clone();
        drop(state);
        // Looked at without the lock: what matches is the test's own code.
        let rule = rules
            .iter()
            .rev()
            .find(|rule| (rule.is_first || known.is_ok()) && (rule.matches)(&exchange.seen));
        let action = rule.map(|rule| Arc::clone(&rule.action));
        (action, known, settings)
    };
    if exchange.seen.is("initialize") && settings.gives_sessions {
        exchange.given = Some(exchange.new_session());
    }
    if let Some(action) = action {
        return action(exchange);
    }
    if let Err(status) = known {
        let body = r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"}}"#;
        return exchange.status(status, Some("application/json"), body);
    }
    match exchange.seen.method.as_str() {
        "GET" if settings.has_get => {
            exchange.sse();
            exchange.park();
        }
        "GET" => exchange.status("405 Method Not Allowed", None, ""),
        "DELETE" => {
            let session = exchange.seen.session().unwrap_or_default().to_owned();
            exchange
                .inner
                .lock()
                .sessions
                .retain(|known| *known != session);
            exchange.status("200 OK", None, "");
        }
        _ if exchange.seen.is_one_way() => exchange.accept(),
        _ => answer_request(exchange, &settings),
    }
}

fn answer_request(exchange: Exchange, settings: &Settings) {
    let method = exchange.seen.rpc().unwrap_or_default();
    let result = match method.as_str() {
        "initialize" => {
            let asked = exchange.seen.raw(&["params", "protocolVersion"]);
            let version = settings
                .version
                .as_ref()
                .map(|version| format!("\"{version}\""));
            let version = version.or(asked).unwrap_or_else(|| format!("\"{LATEST}\""));
            initialize_result(&version)
        }
        "tools/list" => r#"{"tools":[]}"#.to_owned(),
        "resources/list" => r#"{"resources":[]}"#.to_owned(),
        "prompts/list" => r#"{"prompts":[]}"#.to_owned(),
        "resources/subscribe" | "resources/unsubscribe" | "logging/setLevel" | "ping" => {
            "{}".to_owned()
        }
        "tools/call" if exchange.seen.is_tool("hold") => return exchange.park(),
        "tools/call" if exchange.seen.is_tool("echo") => {
            let text = exchange.seen.raw(&["params", "arguments", "message"]);
            let text = text.unwrap_or_else(|| "\"\"".to_owned());
            format!(r#"{{"content":[{{"type":"text","text":{text}}}]}}"#)
        }
        _ => return exchange.fail(r#"{"code":-32601,"message":"no such method here"}"#),
    };
    exchange.answer_as(settings.form, &result);
}

/// What the server says of itself; `version` is raw JSON.
pub fn initialize_result(version: &str) -> String {
    format!(
        r#"{{"serverInfo":{{"name":"scripted \u00e9 \/","version":"1.0","x":1.50e+1}},"protocolVersion":{version},"capabilities":{{"tools":{{"listChanged":true}},"resources":{{"subscribe":true,"listChanged":true}},"prompts":{{"listChanged":true}},"logging":{{}},"vendor/x":{{"b":1,"a":[2,1]}}}},"instructions":"Say \"please\" \ud83d\ude00","vendor":{{"z":9007199254740993}}}}"#
    )
}

/// What becomes of a connection after an answer.
enum Next {
    Request,
    /// Its handles are dropped as they are.
    Reset,
}

/// One request and the hand that writes its answer. Dropped without an end, it ends the connection.
pub struct Exchange {
    pub seen: Seen,
    /// The session id that the answer to an `initialize` names.
    pub given: Option<String>,
    stream: TcpStream,
    inner: Arc<Inner>,
    /// Gives the connection back to its thread, for the next request.
    back: mpsc::Sender<Next>,
    is_stream: bool,
}

impl Exchange {
    /// Writes bytes as they are. A client that is gone is no failure.
    pub fn raw(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// A text in which `@ID@` and `@TOKEN@` stand for the request's.
    pub fn fill(&self, text: &str) -> String {
        let id = self.seen.id().unwrap_or_default();
        let token = self.seen.token().unwrap_or_default();
        text.replace("@ID@", &id).replace("@TOKEN@", &token)
    }

    /// The head of an answer whose body is a stream in chunks.
    pub fn sse_head(&self) -> String {
        let session = self.session_line();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{session}\r\n"
        )
    }

    fn session_line(&self) -> String {
        let given = self.given.as_ref();
        given.map_or_else(String::new, |id| format!("mcp-session-id: {id}\r\n"))
    }

    /// Begins a stream.
    pub fn sse(&mut self) {
        let head = self.sse_head();
        self.raw(head);
        self.is_stream = true;
    }

    /// Begins a stream, unless that is done.
    pub fn begin(&mut self) {
        if !self.is_stream {
            self.sse();
        }
    }

    /// Writes a message as an event.
    pub fn event(&mut self, message: &str) -> bool {
        self.text(&event(&self.fill(message)))
    }

    /// Writes a part of the stream's text.
    pub fn text(&mut self, text: &str) -> bool {
        assert!(self.is_stream, "no stream was begun");
        self.raw(chunk(text))
    }

    /// Ends the stream; the connection lives on.
    pub fn end(mut self) {
        assert!(self.is_stream, "no stream was begun");
        self.raw("0\r\n\r\n");
        self.release();
    }

    /// The connection goes on with its next request.
    pub fn release(self) {
        let _ = self.back.send(Next::Request);
    }

    /// A whole message as the answer, in the form that was begun or as JSON.
    pub fn message(mut self, message: &str) {
        let message = self.fill(message);
        if self.is_stream {
            self.event(&message);
            return self.end();
        }
        self.status("200 OK", Some("application/json"), &message);
    }

    /// The request's result, raw JSON.
    pub fn reply(self, result: &str) {
        self.message(&format!(
            r#"{{"jsonrpc":"2.0","id":@ID@,"result":{result}}}"#
        ));
    }

    /// The request's error, raw JSON.
    pub fn fail(self, error: &str) {
        self.message(&format!(r#"{{"jsonrpc":"2.0","id":@ID@,"error":{error}}}"#));
    }

    /// The request's result in this form.
    pub fn answer_as(mut self, form: Form, result: &str) {
        if form == Form::Sse {
            self.sse();
        }
        self.reply(result);
    }

    /// Takes a message that wants no answer.
    pub fn accept(self) {
        self.status("202 Accepted", None, "");
    }

    /// A whole response.
    pub fn status(mut self, status: &str, content_type: Option<&str>, body: &str) {
        let session = self.session_line();
        let content_type =
            content_type.map_or_else(String::new, |name| format!("content-type: {name}\r\n"));
        let length = match status.starts_with("204") {
            true => String::new(),
            false => format!("content-length: {}\r\n", body.len()),
        };
        self.raw(format!(
            "HTTP/1.1 {status}\r\n{content_type}{length}{session}\r\n{body}"
        ));
        self.release();
    }

    /// Makes a session known and returns its id.
    fn new_session(&self) -> String {
        let mut state = self.inner.lock();
        let id = format!("upstream-secret-{}-!~", state.given.len());
        state.given.push(id.clone());
        state.sessions.push(id.clone());
        id
    }

    /// Keeps it for [`HttpServer::take`].
    pub fn park(self) {
        let inner = Arc::clone(&self.inner);
        let mut state = inner.lock();
        if state.is_ending {
            drop(state);
            return;
        }
        state.parked.push(self);
        drop(state);
        inner.changed.notify_all();
    }

    /// Whether the client has ended the connection.
    pub fn is_cut(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut fds, Some(&at_once)).expect("one descriptor") == 0 {
            return false;
        }
        let mut byte = [0_u8; 1];
        match recv(&self.stream, &mut byte[..], RecvFlags::PEEK) {
            Ok((count, _)) => {
                assert_eq!(count, 0, "bytes behind a request: {:?}", self.seen);
                true
            }
            Err(_) => true,
        }
    }

    /// Waits until the client has ended the connection.
    #[track_caller]
    pub fn wait_cut(&self) {
        super::wait_until("the gateway closes a response's connection", || {
            self.is_cut()
        });
    }

    /// Ends the connection.
    pub fn close(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        let zero = Some(Duration::ZERO);
        sockopt::set_socket_linger(&self.stream, zero).expect("a TCP socket");
        // The last handle to go resets.
        self.inner.lock().connections[self.seen.connection] = None;
        let _ = self.back.send(Next::Reset);
    }

    /// Ends the sending half, as a body that ends with the connection does.
    pub fn half_close(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// A message as an event of a stream.
pub fn event(message: &str) -> String {
    format!("event: message\ndata: {message}\n\n")
}

/// A chunk of a chunked body.
pub fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// A session of the gateway and the id of the server's that belongs to it. No other may be opened meanwhile.
#[track_caller]
pub fn open(gateway: &Gateway, server: &HttpServer) -> (Session, String) {
    let before = server.given().len();
    let session = Session::open(gateway);
    let given = server.given();
    assert_eq!(given.len(), before + 1, "one session upstream each");
    (session, given[before].clone())
}

/// A gateway in front of this server.
pub fn start(layout: super::Layout, flags: &[&str], server: &HttpServer) -> Gateway {
    layout.start(flags, Upstream::Url(&server.url()))
}

/// A call that the server holds under `key`.
pub fn hold(session: &Session, id: &str, key: &str) -> Request {
    session.call(id, "hold", &format!(r#"{{"key":"{key}"}}"#))
}

/// The same with a progress token.
pub fn hold_with_token(session: &Session, id: &str, key: &str, token: &str) -> Request {
    session.call_with_token(id, "hold", &format!(r#"{{"key":"{key}"}}"#), token)
}

/// Sends a request on a connection of its own.
pub fn send(gateway: &Gateway, request: &Request) -> Raw {
    let mut connection = gateway.connect();
    connection.send(request.bytes());
    connection
}

/// Asks for the tool that says the same again, and looks whether it does.
#[track_caller]
pub fn expect_echo(gateway: &Gateway, session: &Session) {
    let echo = gateway.ask(&session.call("\"echo\"", "echo", r#"{"message":"again"}"#));
    assert_eq!(echo.result()["content"][0]["text"], "again", "{echo}");
}

/// The server's message that reports progress.
pub fn progress(token: &str, step: usize) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{step}}}}}"#
    )
}
