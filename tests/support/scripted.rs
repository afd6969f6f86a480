//! The test's hand on `tests/servers/scripted.py`, the server that does what it is told. Its commands are
//! ordinary tool calls through the gateway, in a session of its own, so that a test can wait for what the
//! server has seen and decide what it says next.

use std::cell::{Cell, RefCell};

use serde_json::{Value, json};

use super::mcp::raw_member;
use super::{Gateway, Raw, Request, Session, hex, tokens, unhex, wait_until};

pub struct Script<'g> {
    gateway: &'g Gateway,
    pub session: Session,
    /// The token that its session was opened with, where the gateway asks for one.
    token: Option<&'g str>,
    next_id: Cell<u64>,
    seen: RefCell<Vec<String>>,
}

impl<'g> Script<'g> {
    pub fn new(gateway: &'g Gateway) -> Self {
        Self::of(gateway, Session::open(gateway), None)
    }

    /// The same at a gateway that asks for tokens.
    pub fn with_token(gateway: &'g Gateway, token: &'g str) -> Self {
        Self::of(gateway, tokens::open(gateway, token), Some(token))
    }

    fn of(gateway: &'g Gateway, session: Session, token: Option<&'g str>) -> Self {
        Self {
            gateway,
            session,
            token,
            next_id: Cell::new(1_000_000),
            seen: RefCell::default(),
        }
    }

    /// Calls a tool of the server and returns its result.
    pub fn tool(&self, name: &str, arguments: &Value) -> Value {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let mut request = self
            .session
            .call(&id.to_string(), name, &arguments.to_string());
        if let Some(token) = self.token {
            request = tokens::bearer(request, token);
        }
        self.gateway.ask(&request).result()
    }

    /// Waits until the server has read the call that it holds under `key`.
    pub fn wait_held(&self, key: &str) {
        wait_until(&format!("the server holds {key}"), || {
            let held = self.tool("held", &json!({}));
            held["keys"]
                .as_array()
                .expect("a list")
                .iter()
                .any(|held| held == key)
        });
    }

    /// Sends a call that the server holds under `key` and waits until it does; returns its connection.
    pub fn hold(&self, session: &Session, id: &str, key: &str) -> Raw {
        self.hold_request(&hold_request(session, id, key), key)
    }

    /// The same for a call as the test has built it.
    pub fn hold_request(&self, request: &Request, key: &str) -> Raw {
        let mut connection = self.gateway.connect();
        connection.send(request.bytes());
        self.wait_held(key);
        connection
    }

    /// Waits until the server holds this many calls.
    pub fn wait_held_count(&self, count: usize) {
        wait_until(&format!("the server holds {count} calls"), || {
            self.tool("held", &json!({}))["keys"]
                .as_array()
                .map(Vec::len)
                == Some(count)
        });
    }

    /// The id that the server has read with the call that it holds under `key`.
    pub fn upstream_id(&self, key: &str) -> String {
        let line = self.wait_received(&format!("\"key\":\"{key}\""));
        raw_member(&line, "id").expect("a call has an id")
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        let pid = self.tool("process", &json!({}))["pid"].as_u64();
        u32::try_from(pid.expect("a number")).expect("process ids fit")
    }

    /// Lets the server answer the call that it holds under `key` with the result `{"released": key}`.
    pub fn release(&self, key: &str) {
        let result = self.tool("release", &json!({ "key": key }));
        assert_eq!(result["released"], true, "the server holds no {key}");
    }

    /// Lets the server answer the request that it holds under `key` with this result, raw JSON.
    pub fn release_with(&self, key: &str, result: &str) {
        let arguments = json!({ "key": key, "result": hex(result.as_bytes()) });
        let released = self.tool("release", &arguments);
        assert_eq!(released["released"], true, "the server holds no {key}");
    }

    /// Lets the server refuse the request that it holds under `key`.
    pub fn release_with_error(&self, key: &str, error: &Value) {
        let released = self.tool("release", &json!({ "key": key, "error": error }));
        assert_eq!(released["released"], true, "the server holds no {key}");
    }

    /// Gives the server a rule (see `scripted.py`) for requests to come.
    pub fn rule(&self, rule: &Value) {
        self.tool("rule", rule);
    }

    /// From now on the server holds what it is asked by `method`, under `key`.
    pub fn hold_method(&self, method: &str, key: &str) {
        self.rule(&json!({ "method": method, "hold": key }));
    }

    /// From now on the server answers `method` with this result, raw JSON.
    pub fn answer_method(&self, method: &str, result: &str) {
        self.rule(&json!({ "method": method, "result": hex(result.as_bytes()) }));
    }

    pub fn forget_rules(&self) {
        self.tool("forget_rules", &json!({}));
    }

    /// Lets the server write these lines, in one write.
    pub fn say(&self, lines: &[&str]) {
        let reply = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"said":true}}"#;
        let lines: Vec<String> = lines
            .iter()
            .chain([&reply])
            .map(|line| hex(line.as_bytes()))
            .collect();
        assert_eq!(self.tool("send", &json!({ "lines": lines }))["said"], true);
    }

    /// The lines that contain `text` among those the server has read, this script's own polls left out.
    pub fn received(&self, text: &str) -> Vec<String> {
        let result = self.tool("received", &json!({ "containing": hex(text.as_bytes()) }));
        result["lines"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|line| {
                let bytes = unhex(line.as_str().expect("hex text"));
                String::from_utf8(bytes).expect("the gateway sends UTF-8")
            })
            .collect()
    }

    /// Waits until the server has read a line that contains `text`; returns the first.
    pub fn wait_received(&self, text: &str) -> String {
        wait_until(&format!("the server reads a line with {text}"), || {
            *self.seen.borrow_mut() = self.received(text);
            !self.seen.borrow().is_empty()
        });
        self.seen.borrow_mut().remove(0)
    }
}

/// A call that the server holds under `key`.
pub fn hold_request(session: &Session, id: &str, key: &str) -> Request {
    session.call(id, "hold", &json!({ "key": key }).to_string())
}

/// The arguments of the `send` tool: whole lines, in which `@ID@` and `@TOKEN@` stand for the call's.
pub fn send_arguments(lines: &[&[u8]]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| hex(line)).collect();
    json!({ "lines": lines }).to_string()
}

/// The arguments of the `result` tool: the raw bytes of the result.
pub fn result_arguments(result: &[u8]) -> String {
    json!({ "hex": hex(result) }).to_string()
}
