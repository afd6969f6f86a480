//! Brings about every message that clients get.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::book::Book;
use crate::definitions::Version;
use crate::support::life::Life;
use crate::support::mcp::{call_body, initialize_body, ping_body, request_body};
use crate::support::scripted::{hold_request, send_arguments};
use crate::support::stream::value;
use crate::support::tokens::{ALICE, TokenFile, bearer};
use crate::support::{
    Gateway, Layout, Raw, Request, Response, Script, Session, Stream, Upstream, hex, wait_until,
};

const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";
const SUBSCRIBE: &str = "resources/subscribe";

/// Small limits, so that each is soon reached.
const SMALL: &[&str] = &[
    "--max-uri",
    "64B",
    "--max-subscriptions-per-session",
    "2",
    "--max-message",
    "64KiB",
    "--max-body",
    "16KiB",
];

const LAYOUT: Layout = Layout {
    driver: "auto",
    shards: 1,
    hub: None,
};

/// Comments on a stream would put off the end of a wait for what never comes.
const QUIET: [&str; 2] = ["--keep-alive", "10m"];

fn scripted(flags: &[&str], arguments: &[&str]) -> Gateway {
    let flags = [&QUIET, flags].concat();
    LAYOUT.start(&flags, Upstream::Python("scripted.py", arguments))
}

/// Opens a session and notes the answer.
fn open(book: &mut Book, gateway: &Gateway, version: Version) -> Session {
    let response = gateway.ask(&Request::post(initialize_body("0", version.name())));
    book.answer(version, "initialize", &response);
    Session {
        id: response
            .field("mcp-session-id")
            .unwrap_or_else(|| panic!("{response}"))
            .to_owned(),
        version: version.name().to_owned(),
    }
}

/// One session's requests, whose answers are noted.
struct Asking<'a> {
    book: &'a mut Book,
    gateway: &'a Gateway,
    version: Version,
    session: Session,
}

impl Asking<'_> {
    fn ask(&mut self, method: &str, params: &str) -> Response {
        self.send(
            method,
            &self.session.post(request_body("7", method, params)),
        )
    }

    /// The same for a body as it stands.
    fn ask_raw(&mut self, body: impl Into<Vec<u8>>) -> Response {
        self.send("?", &self.session.post(body))
    }

    fn send(&mut self, method: &str, request: &Request) -> Response {
        let response = self.gateway.ask(request);
        self.book.answer(self.version, method, &response);
        response
    }

    fn note(&mut self, method: &str, response: &Response) {
        self.book.answer(self.version, method, response);
    }

    /// Notes what the server is made to say, as the session's stream tells it.
    fn note_said(&mut self, script: &Script<'_>, stream: &mut Stream, line: &str) {
        script.say(&[line]);
        let message = value(&stream.message());
        self.book.for_client(self.version, "?", 200, &message);
    }
}

/// What a session of the version can be told by a server that has everything.
pub(crate) fn in_a_session(book: &mut Book, version: Version) {
    let gateway = scripted(SMALL, &[]);
    let script = Script::new(&gateway);
    let session = open(book, &gateway, version);
    let mut asking = Asking {
        book,
        gateway: &gateway,
        version,
        session,
    };
    asking.ask("ping", "{}");
    asking.ask("logging/setLevel", r#"{"level":"info"}"#);
    // The second is not asked of the server; nor is what was not held given back.
    for _ in 0..2 {
        asking.ask(SUBSCRIBE, r#"{"uri":"a:b"}"#);
    }
    asking.ask("resources/unsubscribe", r#"{"uri":"a:other"}"#);
    on_streams(&mut asking, &script);
    refused_params(&mut asking);
    refused_messages(&mut asking);
    refused_by_the_server(&mut asking, &script);
    ended_calls(&mut asking, &script);
}

fn on_streams(asking: &mut Asking<'_>, script: &Script<'_>) {
    let mut stream = Stream::open(asking.gateway, &asking.session);
    for kind in ["tools", "resources", "prompts"] {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{kind}/list_changed"}}"#);
        asking.note_said(script, &mut stream, &line);
    }
    let line = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b","secret":1}}"#;
    asking.note_said(script, &mut stream, line);
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN@,"progress":1,"total":2}}"#;
    let answer = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}"#;
    let lines = send_arguments(&[progress.as_bytes(), answer.as_bytes()]);
    for token in ["\"a\"", "5"] {
        let request = asking.session.call_with_token("7", "send", &lines, token);
        let messages = asking.gateway.ask(&request.set("Accept", SSE)).messages();
        assert_eq!(messages.len(), 2, "{messages:?}");
        let version = asking.version;
        asking.book.for_client(version, "?", 200, &messages[0]);
    }
}

/// Params that Ringway itself refuses.
fn refused_params(asking: &mut Asking<'_>) {
    asking.ask("logging/setLevel", r#"{"level":"loud"}"#);
    let long = format!(r#"{{"uri":"a:{}"}}"#, "x".repeat(64));
    for params in ["{}", r#"{"uri":5}"#, &long] {
        asking.ask(SUBSCRIBE, params);
    }
    asking.ask("resources/read", &long);
    asking.ask("notifications/initialized", "{}");
    for token in ["true", &format!("\"{}\"", "t".repeat(1_100))] {
        let meta = format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#);
        asking.ask("tools/list", &meta);
    }
    match asking.version {
        Version::V2025_11_25 => {
            asking.ask("tasks/get", "{}");
            asking.ask("tasks/get", r#"{"taskId":"unheard-of"}"#);
            asking.ask("tasks/list", r#"{"cursor":"unheard-of"}"#);
        }
        _ => {
            asking.ask("tasks/get", r#"{"taskId":"t"}"#);
            asking.ask("tools/call", r#"{"name":"echo","task":{}}"#);
        }
    }
}

/// Messages and heads that are no good, with an id that can be read.
fn refused_messages(asking: &mut Asking<'_>) {
    for body in [
        r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":"seven","method":"ping","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":5}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":5}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"ping","method":"pong"}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"ping","Params":{}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"server/discover"}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
    ] {
        asking.ask_raw(body);
    }
    let ping = asking.session.post(ping_body("\"p\""));
    for version in ["2026-07-28", "1999-01-01"] {
        asking.send("ping", &ping.clone().set("MCP-Protocol-Version", version));
    }
    asking.send("ping", &ping.clone().without("Mcp-Session-Id"));
    asking.send(
        "ping",
        &ping.set("Mcp-Session-Id", "11111111-1111-4111-8111-111111111111"),
    );
    let initialize = Request::post(request_body("7", "initialize", "{}"));
    asking.send("initialize", &initialize);
}

/// A subscription that the server refuses, in words that Ringway passes on, and in words that it cannot read.
fn refused_by_the_server(asking: &mut Asking<'_>, script: &Script<'_>) {
    let error = json!({"code": -32002, "message": "The server's own words", "data": {"secret": 1}});
    script.rule(&json!({"method": SUBSCRIBE, "when": {"uri": "a:refused"}, "error": error}));
    let odd = json!({"code": "odd"});
    script.rule(&json!({"method": SUBSCRIBE, "when": {"uri": "a:odd"}, "error": odd}));
    asking.ask(SUBSCRIBE, r#"{"uri":"a:refused"}"#);
    asking.ask(SUBSCRIBE, r#"{"uri":"a:odd"}"#);
    // The third subscription is one too many.
    asking.ask(SUBSCRIBE, r#"{"uri":"a:c"}"#);
    asking.ask(SUBSCRIBE, r#"{"uri":"a:d"}"#);
    asking.ask("tools/call", r#"{"name":"pad","arguments":{"size":70000}}"#);
}

/// Calls that end before they are answered.
fn ended_calls(asking: &mut Asking<'_>, script: &Script<'_>) {
    let held = |session: &Session, key: &str| {
        let request = hold_request(session, "\"held\"", key).set("Accept", JSON);
        script.hold_request(&request, key)
    };
    let mut cancelled = held(&asking.session, "cancelled");
    let cancel = asking.session.cancel("\"held\"");
    assert_eq!(asking.gateway.ask(&cancel).status, 202);
    asking.note("tools/call", &cancelled.response());
    let mut ended = held(&asking.session, "ended");
    // The same id once more is an error that names none.
    asking.ask_raw(call_body("\"held\"", "echo", "{}"));
    let delete = asking.session.delete();
    assert_eq!(asking.gateway.ask(&delete).status, 204);
    asking.note("tools/call", &ended.response());
}

/// What a server without capabilities is not asked for.
pub(crate) fn without_capabilities(book: &mut Book, version: Version) {
    let gateway = scripted(
        &["--get-streams", "off"],
        &["--capabilities", r#"{"tools":{"listChanged":true}}"#],
    );
    let session = open(book, &gateway, version);
    let mut asking = Asking {
        book,
        gateway: &gateway,
        version,
        session,
    };
    asking.ask("logging/setLevel", r#"{"level":"info"}"#);
    asking.ask(SUBSCRIBE, r#"{"uri":"a:b"}"#);
    asking.ask("tasks/get", r#"{"taskId":"t"}"#);
    asking.ask("tools/call", r#"{"name":"echo","task":{}}"#);
    asking.send("?", &asking.session.get());
}

/// A call in flight when the server dies, and one while there is none.
pub(crate) fn when_the_server_is_gone(book: &mut Book, version: Version) {
    let life = Life::new();
    let gateway = life.start_gated(LAYOUT);
    let session = open(book, &gateway, version);
    let mut asking = Asking {
        book,
        gateway: &gateway,
        version,
        session,
    };
    asking.ask("tools/call", r#"{"name":"exit","arguments":{"code":0}}"#);
    wait_until("the second child has started", || {
        life.pids("start").len() == 2
    });
    asking.ask("tools/list", "{}");
    asking.ask(SUBSCRIBE, r#"{"uri":"a:b"}"#);
    life.open_gate();
}

/// Requests that are under way when the drain begins.
pub(crate) fn while_draining(book: &mut Book, version: Version) {
    let gateway = scripted(&[], &[]);
    let script = Script::new(&gateway);
    let session = open(book, &gateway, version);
    // Keeps the drain from ending.
    let mut held = script.hold(&session, "\"held\"", "held");
    let mut get = session.get().add("Content-Length", "8").bytes();
    get.extend_from_slice(b"12345678");
    let under_way = [
        ("tools/call", session.call("7", "echo", "{}").bytes()),
        (
            "initialize",
            Request::post(initialize_body("7", version.name())).bytes(),
        ),
        ("?", get),
    ]
    .map(|(method, bytes)| {
        let (first, rest) = bytes.split_at(bytes.len() - 5);
        let mut connection = gateway.connect();
        connection.send(first);
        connection.wait_until_read();
        (method, connection, rest.to_vec())
    });
    gateway.signal(Signal::TERM);
    wait_until("the listener is closed", || {
        std::net::TcpStream::connect(gateway.address).is_err()
    });
    for (method, mut connection, rest) in under_way {
        connection.send(rest);
        book.answer(version, method, &connection.response());
    }
    // A second signal ends the wait for the call.
    gateway.signal(Signal::TERM);
    if let Some(response) = held.next(false) {
        book.answer(version, "tools/call", &response);
    }
}

/// Time-outs, of a server and of clients.
pub(crate) fn in_time(book: &mut Book) {
    let flags = [
        "--request-timeout",
        "1s",
        "--header-timeout",
        "1s",
        "--body-timeout",
        "1s",
    ];
    let gateway = scripted(&flags, &[]);
    let mut slow_head = gateway.connect();
    slow_head.send("POST /mcp HTTP/1.1\r\nHost: localhost\r\n");
    let mut slow_body = gateway.connect();
    let whole = Request::post(ping_body("1")).bytes();
    slow_body.send(&whole[..whole.len() - 1]);
    let held = Version::ALL.map(|version| {
        let session = open(book, &gateway, version);
        let mut connection = gateway.connect();
        connection.send(hold_request(&session, "7", "never").bytes());
        (version, connection)
    });
    for (version, mut connection) in held {
        book.answer(version, "tools/call", &connection.response());
    }
    for connection in [&mut slow_head, &mut slow_body] {
        book.answer_to_all("?", &connection.response());
    }
}

fn task(id: &str) -> Value {
    json!({
        "taskId": id,
        "status": "working",
        "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z",
        "ttl": 60_000,
        "pollInterval": 5,
    })
}

/// Lets the session ask for a task, which the server gives this id.
pub(crate) fn create_task(session: &Session, id: &str, token: &str) -> Request {
    let result = hex(json!({ "task": task(id) }).to_string().as_bytes());
    let params = json!({
        "name": "result",
        "arguments": {"hex": result},
        "task": {"ttl": 60_000},
        "_meta": {"progressToken": token},
    });
    session.post(request_body("\"task\"", "tools/call", &params.to_string()))
}

/// What only the newest version has.
pub(crate) fn with_tasks(book: &mut Book) {
    let version = Version::V2025_11_25;
    let gateway = scripted(&["--max-tasks-per-session", "2"], &[]);
    let script = Script::new(&gateway);
    let (first, other) = (open(book, &gateway, version), open(book, &gateway, version));
    for id in ["t1", "t2"] {
        let response = gateway.ask(&create_task(&first, id, "token"));
        assert_eq!(response.result()["task"]["taskId"], id);
    }
    // A third is one too many, and one that the first session has is not for the other.
    book.answer(
        version,
        "tools/call",
        &gateway.ask(&create_task(&first, "t3", "token")),
    );
    book.answer(
        version,
        "tools/call",
        &gateway.ask(&create_task(&other, "t1", "token")),
    );
    let mut asking = Asking {
        book,
        gateway: &gateway,
        version,
        session: first,
    };
    let own_list =
        json!({"tasks": [task("t1"), task("foreign"), task("t2")], "nextCursor": "server's"});
    script.answer_method("tasks/list", &own_list.to_string());
    let listed = asking.ask("tasks/list", "{}").result();
    assert_eq!(listed["tasks"].as_array().map(Vec::len), Some(2));
    assert!(listed["nextCursor"].is_string(), "{listed}");
    script.answer_method("tasks/list", r#"{"tasks":5}"#);
    asking.ask("tasks/list", "{}");
    let mut stream = Stream::open(&gateway, &asking.session);
    let status = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{}}}"#,
        task("t1")
    );
    asking.note_said(&script, &mut stream, &status);
    // Progress after the call that made the task is over.
    let call = value(&script.wait_received("\"task\":{"));
    let progress = json!({
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": call["params"]["_meta"]["progressToken"], "progress": 1},
    });
    asking.note_said(&script, &mut stream, &progress.to_string());
}

/// Batches: answered as an array, and as a stream.
pub(crate) fn in_batches(book: &mut Book) {
    let version = Version::V2025_03_26;
    let gateway = scripted(&[], &[]);
    let session = open(book, &gateway, version);
    let good = format!("[{},{}]", ping_body("1"), ping_body("\"two\""));
    let mixed = format!(
        r#"[{},5,{},{{"jsonrpc":"1.0","id":3,"method":"ping"}},{}]"#,
        ping_body("1"),
        ping_body("null"),
        request_body("4", "tasks/list", "{}"),
    );
    for body in [good, mixed] {
        for accept in [JSON, SSE] {
            let request = session.post(body.as_str()).set("Accept", accept);
            book.batch(&gateway.ask(&request));
        }
    }
    let many: Vec<String> = (0..101).map(|id| ping_body(&id.to_string())).collect();
    for body in [
        "[]".to_owned(),
        format!("[{}]", many.join(",")),
        format!("[{}]", initialize_body("1", version.name())),
    ] {
        book.answer(version, "?", &gateway.ask(&session.post(body)));
    }
    let newer = open(book, &gateway, Version::V2025_06_18);
    let request = newer.post(format!("[{}]", ping_body("1")));
    book.answer(Version::V2025_06_18, "?", &gateway.ask(&request));
}

/// Refusals that name no request, because its id cannot be read or was not looked at.
pub(crate) fn without_an_id(book: &mut Book) {
    let gateway = scripted(SMALL, &[]);
    let session = Session::open(&gateway);
    let ping = || session.post(ping_body("1"));
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let long_id = format!("\"{}\"", "i".repeat(1_100));
    let head = |text: &str| format!("{text}\r\nHost: localhost\r\n\r\n").into_bytes();
    let long_target = format!("GET /{} HTTP/1.1", "x".repeat(9_000));
    let many_fields = (0..65).fold(ping(), |request, number| {
        request.add(&format!("X-{number}"), "x")
    });
    let requests = [
        session.post(&b"{\"\xff\"}"[..]).bytes(),
        session.post(deep).bytes(),
        session.post("{").bytes(),
        session.post("5").bytes(),
        session.post(ping_body("null")).bytes(),
        session.post(ping_body(&long_id)).bytes(),
        session.get().without("Mcp-Session-Id").bytes(),
        session.get().set("Mcp-Session-Id", "x").bytes(),
        session.get().set("Accept", JSON).bytes(),
        ping().set("Accept", "image/png").bytes(),
        ping().set("Host", "evil.example").bytes(),
        ping().add("Origin", "https://evil.example").bytes(),
        ping().target("/elsewhere").bytes(),
        Request::new("PUT").bytes(),
        head("CONNECT localhost:80 HTTP/1.1"),
        session.post("x".repeat(20_000)).bytes(),
        head(&long_target),
        ping().set("Content-Type", "text/plain").bytes(),
        ping().add("Content-Encoding", "gzip").bytes(),
        Request::post("").without("Host").bytes(),
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n".to_vec(),
        many_fields.bytes(),
        head("GET /mcp HTTP/2.0"),
    ];
    for bytes in requests {
        let mut connection = gateway.connect();
        connection.send_to_the_wary(bytes);
        book.answer(Version::V2025_11_25, "?", &connection.response());
    }
}

/// Answers to those who are one too many.
pub(crate) fn over_the_limits(book: &mut Book) {
    let flags = ["--max-sessions", "1", "--max-buffered", "8MiB"];
    let gateway = scripted(&flags, &[]);
    Session::open(&gateway);
    let second = gateway.ask(&Request::post(initialize_body("1", "2025-11-25")));
    assert_eq!(second.status, 503, "{second}");
    book.answer_to_all("initialize", &second);
    // Bodies have half of the budget; these are never finished.
    let part = Request::post("x".repeat(2_000_000)).bytes();
    let mut slow: Vec<Raw> = (0..4)
        .map(|_| {
            let mut connection = gateway.connect();
            connection.send_to_the_wary(&part[..1_900_000]);
            connection
        })
        .collect();
    let mut refused = None;
    wait_until("a body is refused", || {
        refused = slow.iter().position(Raw::has_something);
        refused.is_some()
    });
    let refused = slow
        .swap_remove(refused.expect("set by the wait above"))
        .response();
    book.answer(Version::V2025_11_25, "?", &refused);

    let gateway = scripted(&["--max-connections", "1"], &[]);
    let mut open = Vec::new();
    let mut refused = None;
    wait_until("a connection is refused", || {
        let mut connection = gateway.connect();
        connection.send_to_the_wary(Request::post(ping_body("1")).bytes());
        let response = connection.response();
        match response.status {
            503 => refused = Some(response),
            _ => open.push(connection),
        }
        refused.is_some()
    });
    let refused = refused.expect("set by the wait above");
    book.answer(Version::V2025_11_25, "?", &refused);
}

/// Without the right token.
pub(crate) fn with_tokens(book: &mut Book) {
    let file = TokenFile::two();
    let gateway = scripted(&["--auth-token-file", &file.path], &[]);
    let ping = Request::post(ping_body("1"));
    let wrong = format!("{ALICE}x");
    for request in [ping.clone(), bearer(ping, &wrong)] {
        book.answer(Version::V2025_11_25, "?", &gateway.ask(&request));
    }
}
