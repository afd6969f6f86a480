//! One MCP session: its id, the fixed part of its requests, the numbers of its calls.

use std::cell::Cell;

use crate::nonce::Nonce;
use crate::options::{Accept, Common, Endpoint, Tool};
use crate::response::request_head;

/// Ids of the calls of one session begin here, so that all have the same length: requests of one kind then differ
/// in their bodies only.
const ID_BASE: u64 = 1_000_000_000;

/// What all sessions of a run have in common.
#[derive(Clone, Debug)]
pub struct Profile {
    pub endpoint: Endpoint,
    protocol_version: String,
    accept: &'static str,
    extra: Vec<(String, String)>,
}

impl Profile {
    pub fn new(endpoint: Endpoint, common: &Common) -> Profile {
        let mut extra = common.headers.clone();
        if let Some(token) = &common.token {
            extra.push(("Authorization".into(), format!("Bearer {token}")));
        }
        Profile {
            endpoint,
            protocol_version: common.protocol_version.clone(),
            accept: match common.accept {
                Accept::Both => "application/json, text/event-stream",
                Accept::Json => "application/json",
                Accept::Sse => "text/event-stream",
            },
            extra,
        }
    }

    fn head(&self, method: &str, accept: &str, session: Option<&str>, is_first: bool) -> Vec<u8> {
        let mut fields = vec![("Accept".to_owned(), accept.to_owned())];
        if method == "POST" {
            fields.push(("Content-Type".into(), "application/json".into()));
        }
        if let Some(session) = session {
            fields.push(("Mcp-Session-Id".into(), session.to_owned()));
        }
        if !is_first {
            fields.push(("MCP-Protocol-Version".into(), self.protocol_version.clone()));
        }
        fields.extend(self.extra.iter().cloned());
        request_head(method, &self.endpoint.target, &self.endpoint.host, &fields).into_bytes()
    }

    /// The request that opens a session, with id 0.
    pub fn initialize(&self, nonce: Nonce) -> Vec<u8> {
        let body = format!(
            concat!(
                r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{}","#,
                r#""capabilities":{{}},"clientInfo":{{"name":"ringway-loadtest {}","version":"{}"}}}}}}"#
            ),
            self.protocol_version,
            nonce,
            env!("CARGO_PKG_VERSION")
        );
        let mut request = self.head("POST", self.accept, None, true);
        finish(&mut request, body.as_bytes());
        request
    }

    /// An opened session; `None` where the server gives no ids.
    pub fn session(&self, id: Option<&str>, nonce: u64) -> Session {
        Session {
            nonce,
            has_id: id.is_some(),
            calls: Cell::new(0),
            post: self.head("POST", self.accept, id, false),
            get: self.head("GET", "text/event-stream", id, false),
            delete: self.head("DELETE", "application/json", id, false),
        }
    }
}

/// Appends `Content-Length`, the end of the head and the body.
fn finish(request: &mut Vec<u8>, body: &[u8]) {
    request.extend_from_slice(b"Content-Length: ");
    request.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
    request.extend_from_slice(b"\r\n\r\n");
    request.extend_from_slice(body);
}

/// Appends a tools/call; with `token` its id is its progress token too.
pub fn call_body(body: &mut Vec<u8>, tool: &Tool, id: u64, nonce: Nonce, token: bool) {
    let mut digits = itoa::Buffer::new();
    let id = digits.format(id).as_bytes();
    body.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    body.extend_from_slice(id);
    body.extend_from_slice(br#","method":"tools/call","params":{"name":"#);
    body.extend_from_slice(tool.name.as_bytes());
    body.extend_from_slice(br#","arguments":"#);
    tool.arguments.fill(body, nonce);
    if token {
        body.extend_from_slice(br#","_meta":{"progressToken":"#);
        body.extend_from_slice(id);
        body.push(b'}');
    }
    body.extend_from_slice(b"}}");
}

#[derive(Debug)]
pub struct Session {
    /// The session's part of its nonces.
    pub nonce: u64,
    /// The server has given it an id, so it can be ended.
    pub has_id: bool,
    calls: Cell<u64>,
    post: Vec<u8>,
    get: Vec<u8>,
    delete: Vec<u8>,
}

impl Session {
    /// The next id of the session, and the nonce of its call.
    pub fn next(&self) -> (u64, Nonce) {
        let call = self.calls.get() + 1;
        self.calls.set(call);
        let nonce = Nonce {
            session: self.nonce,
            call,
        };
        (ID_BASE + call, nonce)
    }

    /// A request or notification with this body.
    pub fn post(&self, request: &mut Vec<u8>, body: &[u8]) {
        request.extend_from_slice(&self.post);
        finish(request, body);
    }

    /// A tools/call; with `token` its id is its progress token too. `body` is scratch.
    pub fn call(
        &self,
        request: &mut Vec<u8>,
        body: &mut Vec<u8>,
        tool: &Tool,
        id: u64,
        nonce: Nonce,
        token: bool,
    ) {
        body.clear();
        call_body(body, tool, id, nonce, token);
        self.post(request, body);
    }

    /// A request with this method and these params.
    pub fn request(&self, request: &mut Vec<u8>, id: u64, method: &str, params: &str) {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.post(request, body.as_bytes());
    }

    pub fn notification(&self, request: &mut Vec<u8>, method: &str, params: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        self.post(request, body.as_bytes());
    }

    /// The request that opens the session's stream.
    pub fn get(&self) -> Vec<u8> {
        let mut request = self.get.clone();
        request.extend_from_slice(b"\r\n");
        request
    }

    /// The request that ends the session.
    pub fn delete(&self) -> Vec<u8> {
        let mut request = self.delete.clone();
        request.extend_from_slice(b"\r\n");
        request
    }
}
