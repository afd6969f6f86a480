//! A gateway that serves routes from a configuration file, and a client of one route. The file is the test's own:
//! it is written, replaced and reread on purpose.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Deref;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::catalogue::Kind;
use super::gateway::command_with_config;
use super::mcp::{LATEST, initialize_body, notification_body, request_body};
use super::metrics::Metrics;
use super::peer::Peer;
use super::{Gateway, Layout, Raw, Request, Response, Scratch, Session, Stream, wait_until};

/// More pages than any list of these suites may have.
const PAGES_MAX: usize = 1_100;

/// A route's part of a configuration file: its lines, then its upstreams.
pub fn route(path: &str, lines: &str, upstreams: &[String]) -> String {
    let upstreams = upstreams.concat();
    format!("[[routes]]\npath = {path:?}\n{lines}\n\n{upstreams}")
}

/// The route `/mcp` with these servers as they are.
pub fn joined(peers: &[&Peer]) -> String {
    joined_with("", peers)
}

/// The same with lines of the route's own.
pub fn joined_with(lines: &str, peers: &[&Peer]) -> String {
    let upstreams: Vec<String> = peers.iter().map(|peer| peer.toml("")).collect();
    route("/mcp", lines, &upstreams)
}

/// A gateway with its configuration file.
pub struct Served {
    gateway: Gateway,
    /// The lines before the routes.
    process: String,
    file: String,
    scratch: Scratch,
}

impl Deref for Served {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.gateway
    }
}

impl Served {
    pub fn start(layout: Layout, routes: &[String]) -> Self {
        Self::start_with(layout, "", routes)
    }

    /// The same with lines for the whole process.
    pub fn start_with(layout: Layout, lines: &str, routes: &[String]) -> Self {
        Self::start_in(Scratch::new(), layout, lines, routes)
    }

    /// The same with the file in a directory that holds others for it.
    pub fn start_in(scratch: Scratch, layout: Layout, lines: &str, routes: &[String]) -> Self {
        let process = process_lines(layout, lines);
        let file = scratch.path("ringway.toml");
        write(&scratch, &file, &format!("{process}{}", routes.concat()));
        let gateway = Gateway::start_with(command_with_config(&file));
        Self {
            gateway,
            process,
            file,
            scratch,
        }
    }

    pub fn gateway_mut(&mut self) -> &mut Gateway {
        &mut self.gateway
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    /// A path beside the configuration file.
    pub fn path(&self, name: &str) -> String {
        self.scratch.path(name)
    }

    pub fn metrics(&self) -> Metrics {
        Metrics::of(&self.gateway)
    }

    /// Puts other routes in the file and has it read again. What comes of it is the test's to wait for.
    pub fn reload(&self, routes: &[String]) {
        self.reload_text(&format!("{}{}", self.process, routes.concat()));
    }

    /// The same with a whole file as it is.
    pub fn reload_text(&self, text: &str) {
        write(&self.scratch, &self.file, text);
        self.signal(Signal::HUP);
    }

    /// Waits until the log, from `from` bytes on, holds all of these; returns what it says there.
    #[track_caller]
    pub fn wait_logged(&self, from: usize, parts: &[&str]) -> String {
        let log = self.stderr.wait_for(&format!("{parts:?}"), |log| {
            let new = log.get(from..).unwrap_or_default();
            parts.iter().all(|part| new.contains(part))
        });
        log[from..].to_owned()
    }

    /// How much the log holds now.
    pub fn logged(&self) -> usize {
        self.stderr.text().len()
    }
}

/// The lines of a file before its routes.
pub fn process_lines(layout: Layout, more: &str) -> String {
    let hub = layout
        .hub
        .map_or_else(String::new, |hub| format!("hub = {hub:?}\n"));
    format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ndriver = {:?}\nshards = {}\n{hub}{more}\n\n",
        layout.driver, layout.shards
    )
}

/// Writes a file in one step, as deployments do.
fn write(scratch: &Scratch, file: &str, text: &str) {
    let new = scratch.path("new.toml");
    std::fs::write(&new, text).expect("the scratch directory is ours");
    std::fs::rename(&new, file).expect("the scratch directory is ours");
}

/// One session at one route.
pub struct Client<'g> {
    pub gateway: &'g Gateway,
    pub path: String,
    pub session: Session,
    token: Option<String>,
    next: Cell<u64>,
}

impl<'g> Client<'g> {
    /// A session at `/mcp`.
    #[track_caller]
    pub fn open(gateway: &'g Gateway) -> Self {
        Self::open_at(gateway, "/mcp")
    }

    #[track_caller]
    pub fn open_at(gateway: &'g Gateway, path: &str) -> Self {
        Self::open_as(gateway, path, LATEST, None)
    }

    /// A session at this version, with this token.
    #[track_caller]
    pub fn open_as(gateway: &'g Gateway, path: &str, version: &str, token: Option<&str>) -> Self {
        let response = initialize(gateway, path, version, token);
        let client = Self::begun(gateway, path, token, &response);
        let said = client.notify("notifications/initialized", &json!({}));
        assert_eq!(said.status, 202, "{said}");
        client
    }

    /// The session that this answer to `initialize` begins.
    #[track_caller]
    pub fn begun(
        gateway: &'g Gateway,
        path: &str,
        token: Option<&str>,
        response: &Response,
    ) -> Self {
        let result = response.result();
        let id = response.field("mcp-session-id");
        Self {
            gateway,
            path: path.to_owned(),
            session: Session {
                id: id.unwrap_or_else(|| panic!("{response}")).to_owned(),
                version: result["protocolVersion"]
                    .as_str()
                    .expect("a version")
                    .to_owned(),
            },
            token: token.map(str::to_owned),
            next: Cell::new(1),
        }
    }

    /// The same session as if it were one of another route.
    pub fn at(&self, path: &str) -> Self {
        Self {
            gateway: self.gateway,
            path: path.to_owned(),
            session: self.session.clone(),
            token: self.token.clone(),
            next: self.next.clone(),
        }
    }

    /// A request made this client's.
    pub fn of(&self, request: Request) -> Request {
        let request = self.session.of(request).target(&self.path);
        match &self.token {
            Some(token) => request.set("Authorization", &format!("Bearer {token}")),
            None => request,
        }
    }

    pub fn post(&self, body: impl Into<Vec<u8>>) -> Request {
        self.of(Request::post(body))
    }

    pub fn next_id(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    pub fn request(&self, method: &str, params: &Value) -> Request {
        let id = self.next_id().to_string();
        self.post(request_body(&id, method, &params.to_string()))
    }

    pub fn ask(&self, method: &str, params: &Value) -> Response {
        self.gateway.ask(&self.request(method, params))
    }

    /// Sends a request whose answer is read later.
    pub fn begin(&self, method: &str, params: &Value) -> Raw {
        let mut connection = self.gateway.connect();
        connection.send(self.request(method, params).bytes());
        connection
    }

    pub fn notify(&self, method: &str, params: &Value) -> Response {
        let body = notification_body(method, &params.to_string());
        self.gateway.ask(&self.post(body))
    }

    #[track_caller]
    pub fn result(&self, method: &str, params: &Value) -> Value {
        self.ask(method, params).result()
    }

    /// The code and the message of the refusal, which must come with HTTP 200.
    #[track_caller]
    pub fn refusal(&self, method: &str, params: &Value) -> (i64, String) {
        refusal_of(&self.ask(method, params))
    }

    #[track_caller]
    pub fn call(&self, tool: &str, nonce: &str) -> Value {
        self.result("tools/call", &call(tool, nonce))
    }

    /// The text that a tool answers.
    #[track_caller]
    pub fn call_text(&self, tool: &str, nonce: &str) -> String {
        text_of(&self.call(tool, nonce))
    }

    #[track_caller]
    pub fn read(&self, uri: &str) -> Value {
        self.result("resources/read", &json!({ "uri": uri }))
    }

    #[track_caller]
    pub fn subscribe(&self, uri: &str) {
        let result = self.result("resources/subscribe", &json!({ "uri": uri }));
        assert_eq!(result, json!({}));
    }

    #[track_caller]
    pub fn unsubscribe(&self, uri: &str) {
        let result = self.result("resources/unsubscribe", &json!({ "uri": uri }));
        assert_eq!(result, json!({}));
    }

    /// One page of a list.
    #[track_caller]
    pub fn page(&self, kind: Kind, cursor: Option<&str>) -> Page {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
        Page::of(kind, &self.result(kind.method(), &params))
    }

    /// All pages of a list.
    #[track_caller]
    pub fn pages(&self, kind: Kind) -> Vec<Page> {
        let mut pages = vec![self.page(kind, None)];
        while let Some(cursor) = pages.last().and_then(|page| page.next.clone()) {
            assert!(pages.len() < PAGES_MAX, "{kind:?} never ends");
            pages.push(self.page(kind, Some(&cursor)));
        }
        pages
    }

    /// The names of all things of a kind, in the order of the list.
    #[track_caller]
    pub fn names(&self, kind: Kind) -> Vec<String> {
        let pages = self.pages(kind).into_iter();
        pages.flat_map(|page| page.names()).collect()
    }

    #[track_caller]
    pub fn has(&self, kind: Kind, name: &str) -> bool {
        self.names(kind).iter().any(|known| known == name)
    }

    #[track_caller]
    pub fn stream(&self) -> Stream {
        let get = Request::new("GET").add("Accept", "text/event-stream");
        Stream::of(self.gateway.connect(), &self.of(get))
    }

    pub fn delete(&self) -> u16 {
        self.gateway.ask(&self.of(Request::new("DELETE"))).status
    }
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page {
    pub kind: Kind,
    pub items: Vec<Value>,
    pub next: Option<String>,
}

impl Page {
    #[track_caller]
    pub fn of(kind: Kind, result: &Value) -> Self {
        let next = result.get("nextCursor");
        Self {
            kind,
            items: result[kind.member()]
                .as_array()
                .unwrap_or_else(|| panic!("no list: {result}"))
                .clone(),
            next: next.map(|next| {
                next.as_str()
                    .unwrap_or_else(|| panic!("no text: {result}"))
                    .to_owned()
            }),
        }
    }

    pub fn names(&self) -> Vec<String> {
        let names = self.items.iter();
        let names = names.map(|item| item[self.kind.key()].as_str().expect("a name"));
        names.map(str::to_owned).collect()
    }
}

/// An `initialize` at a route.
pub fn initialize(gateway: &Gateway, path: &str, version: &str, token: Option<&str>) -> Response {
    let mut request = Request::post(initialize_body("0", version)).target(path);
    if let Some(token) = token {
        request = request.set("Authorization", &format!("Bearer {token}"));
    }
    gateway.ask(&request)
}

/// The params of a call with this nonce.
pub fn call(tool: &str, nonce: &str) -> Value {
    json!({ "name": tool, "arguments": { "nonce": nonce } })
}

/// The text of a result's one content.
#[track_caller]
pub fn text_of(result: &Value) -> String {
    let content = result["content"].as_array().expect("content");
    assert_eq!(content.len(), 1, "{result}");
    content[0]["text"].as_str().expect("text").to_owned()
}

/// Code and message of a refusal inside a session.
#[track_caller]
pub fn refusal_of(response: &Response) -> (i64, String) {
    assert_eq!(response.status, 200, "{response}");
    let error = response.message()["error"].clone();
    assert!(error.is_object(), "not refused: {response}");
    (
        error["code"].as_i64().expect("a code"),
        error["message"].as_str().expect("a message").to_owned(),
    )
}

/// Whether a call was answered because its server is down.
#[track_caller]
pub fn is_down(response: &Response) -> bool {
    assert_eq!(response.status, 200, "{response}");
    let error = &response.message()["error"];
    error["code"] == -32603 && error["data"]["reason"] == "upstream_down"
}

/// Waits until a client's list of a kind is this.
#[track_caller]
pub fn wait_listed(client: &Client<'_>, kind: Kind, names: &[&str]) {
    wait_until(&format!("{kind:?} are {names:?}"), || {
        client.names(kind) == names
    });
}

/// The messages of a stream up to and with this one.
#[track_caller]
pub fn until(stream: &mut Stream, what: &str, holds: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        let Some(event) = stream.next() else {
            panic!("the stream ended before {what}: {messages:?}");
        };
        let message: Value = serde_json::from_str(&event.data).expect("JSON");
        messages.push(message.clone());
        if holds(&message) {
            return messages;
        }
    }
}

/// How often each name stands in a list.
pub fn counted(names: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name.as_str()).or_insert(0) += 1;
    }
    counts
}
