//! MCP as text: message bodies, a session as an HTTP client knows it, SSE decoding, and the raw text of a
//! JSON member. Bodies are built as text, not through a JSON library, so that a test decides each byte.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::{Gateway, Request};

pub const LATEST: &str = "2025-11-25";
pub const LEGACY_VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

pub fn initialize_body(id: &str, version: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{}},"clientInfo":{{"name":"suite","version":"1"}}}}}}"#
    )
}

/// A request; `id` and `params` are raw JSON.
pub fn request_body(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// A notification; `params` is raw JSON.
pub fn notification_body(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

/// A `tools/call`; `id` and `arguments` are raw JSON.
pub fn call_body(id: &str, tool: &str, arguments: &str) -> String {
    request_body(
        id,
        "tools/call",
        &format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#),
    )
}

/// A `tools/call` with a progress token; `id`, `arguments` and `token` are raw JSON.
pub fn call_with_token_body(id: &str, tool: &str, arguments: &str, token: &str) -> String {
    let params = format!(
        r#"{{"name":"{tool}","arguments":{arguments},"_meta":{{"progressToken":{token}}}}}"#
    );
    request_body(id, "tools/call", &params)
}

pub fn ping_body(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)
}

/// A session as a client knows it.
#[derive(Clone, Debug)]
pub struct Session {
    pub id: String,
    pub version: String,
}

impl Session {
    pub fn open(gateway: &Gateway) -> Self {
        Self::open_at(gateway, LATEST)
    }

    /// Opens a session at a protocol version and says that it is initialized.
    pub fn open_at(gateway: &Gateway, version: &str) -> Self {
        let response = gateway.ask(&Request::post(initialize_body("0", version)));
        let result = response.result();
        let session = Self {
            id: response
                .field("mcp-session-id")
                .unwrap_or_else(|| panic!("no session id: {response}"))
                .to_owned(),
            version: result["protocolVersion"]
                .as_str()
                .unwrap_or_else(|| panic!("no version: {response}"))
                .to_owned(),
        };
        let initialized = session.post(notification_body("notifications/initialized", "{}"));
        assert_eq!(gateway.ask(&initialized).status, 202);
        session
    }

    /// A POST in this session.
    pub fn post(&self, body: impl Into<Vec<u8>>) -> Request {
        self.of(Request::post(body))
    }

    pub fn call(&self, id: &str, tool: &str, arguments: &str) -> Request {
        self.post(call_body(id, tool, arguments))
    }

    pub fn cancel(&self, id: &str) -> Request {
        self.post(notification_body(
            "notifications/cancelled",
            &format!(r#"{{"requestId":{id}}}"#),
        ))
    }

    pub fn delete(&self) -> Request {
        self.of(Request::new("DELETE"))
    }

    /// The GET that opens this session's stream.
    pub fn get(&self) -> Request {
        self.of(Request::new("GET").add("Accept", "text/event-stream"))
    }

    pub fn subscribe(&self, id: &str, uri: &str) -> Request {
        self.about_uri(id, "resources/subscribe", uri)
    }

    pub fn unsubscribe(&self, id: &str, uri: &str) -> Request {
        self.about_uri(id, "resources/unsubscribe", uri)
    }

    fn about_uri(&self, id: &str, method: &str, uri: &str) -> Request {
        self.post(request_body(id, method, &format!(r#"{{"uri":"{uri}"}}"#)))
    }

    /// A `tools/call` with a progress token; `id`, `arguments` and `token` are raw JSON.
    pub fn call_with_token(&self, id: &str, tool: &str, arguments: &str, token: &str) -> Request {
        self.post(call_with_token_body(id, tool, arguments, token))
    }

    /// Any request, made this session's.
    pub fn of(&self, request: Request) -> Request {
        request
            .add("Mcp-Session-Id", &self.id)
            .add("MCP-Protocol-Version", &self.version)
    }
}

/// One event of an SSE stream.
#[derive(Debug)]
pub struct Event {
    pub name: String,
    pub data: String,
    pub id: Option<String>,
}

/// Decodes a whole SSE body by the rules of the HTML standard. An unfinished event is a failure here.
pub fn events(body: &[u8]) -> Vec<Event> {
    let text = std::str::from_utf8(body).expect("SSE is UTF-8");
    let mut events = Vec::new();
    let (mut name, mut data, mut id) = (String::new(), Vec::new(), None);
    for line in text
        .split_terminator('\n')
        .map(|line| line.trim_end_matches('\r'))
    {
        if line.is_empty() {
            if !data.is_empty() {
                let name = std::mem::take(&mut name);
                let data = std::mem::take(&mut data).join("\n");
                events.push(Event {
                    name,
                    data,
                    id: id.clone(),
                });
            }
            name.clear();
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => {}
            "event" => value.clone_into(&mut name),
            "data" => data.push(value.to_owned()),
            "id" => id = Some(value.to_owned()),
            "retry" => {}
            other => panic!("an unknown SSE field {other:?} in {text:?}"),
        }
    }
    assert!(data.is_empty(), "an unfinished event in {text:?}");
    events
}

/// The raw text of one member of a JSON object; `None` when the key is absent.
pub fn raw_member(object: &str, key: &str) -> Option<String> {
    let members: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(object).unwrap_or_else(|error| panic!("{error}: {object}"));
    members.get(key).map(|value| value.get().to_owned())
}
