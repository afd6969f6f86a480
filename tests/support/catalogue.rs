//! What a programmable server offers: its tools, prompts, resources, templates and tasks in pages, and what it
//! answers when it is asked by itself. One value of JSON, which a test may change while the server runs. Pure: a
//! message goes in, a result or an error comes out.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::mcp::{LATEST, LEGACY_VERSIONS};

/// One kind of list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
    Tasks,
}

impl Kind {
    /// Those that a server lists by itself.
    pub const LISTED: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// The method that lists it.
    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
            Self::Tasks => "tasks/list",
        }
    }

    /// The member of the result that holds the list.
    pub fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
            Self::Tasks => "tasks",
        }
    }

    /// The member of an item by which it is asked for.
    pub fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
            Self::Tasks => "taskId",
        }
    }

    /// An item as servers write it.
    fn item(self, name: &str) -> Value {
        match self {
            Self::Tools => json!({
                "name": name,
                "description": format!("does {name}"),
                "inputSchema": { "type": "object" },
            }),
            Self::Prompts => json!({ "name": name, "description": format!("asks {name}") }),
            Self::Resources => json!({ "uri": name, "name": name }),
            Self::Templates => json!({ "uriTemplate": name, "name": name }),
            Self::Tasks => json!({ "taskId": name, "status": "working" }),
        }
    }
}

/// How the pages of a list follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paging {
    /// Each page names the next, the last names none.
    Ends,
    /// Each page names another one, for ever; beyond the given pages they are empty.
    Endless,
    /// Each page names the same one again.
    SameAgain,
}

#[derive(Clone, Debug)]
pub struct Catalogue {
    pub version: Option<String>,
    pub capabilities: Value,
    pub instructions: Option<String>,
    pages: BTreeMap<Kind, Vec<Vec<Value>>>,
    paging: BTreeMap<Kind, Paging>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self::new()
    }
}

impl Catalogue {
    /// An empty one that can do everything.
    pub fn new() -> Self {
        Self {
            version: None,
            capabilities: json!({
                "tools": { "listChanged": true },
                "prompts": { "listChanged": true },
                "resources": { "listChanged": true, "subscribe": true },
                "completions": {},
                "logging": {},
                "tasks": { "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } },
            }),
            instructions: None,
            pages: BTreeMap::new(),
            paging: BTreeMap::new(),
        }
    }

    /// One whose things are the usual ones of these suites: the same names at every server, so that a name that is
    /// taken to the wrong server does not show itself by being unknown there.
    pub fn usual() -> Self {
        Self::new()
            .with(Kind::Tools, &["echo", "delete", "hold", "a-b_c.d/e"])
            .with(Kind::Prompts, &["ask", "delete"])
            .with(
                Kind::Resources,
                &["file:///a", "file:///a/b", "file:///secret"],
            )
            .with(Kind::Templates, &["file:///t/{id}", "file:///secret/{id}"])
    }

    /// One page of this kind.
    pub fn with(self, kind: Kind, names: &[&str]) -> Self {
        self.with_pages(kind, &[names])
    }

    /// These pages of this kind.
    pub fn with_pages<S: AsRef<str>, P: AsRef<[S]>>(self, kind: Kind, pages: &[P]) -> Self {
        let pages = pages.iter().map(|page| {
            let names = page.as_ref().iter();
            names.map(|name| kind.item(name.as_ref())).collect()
        });
        let pages = pages.collect();
        self.with_items(kind, pages)
    }

    /// These pages of items as they are.
    pub fn with_items(mut self, kind: Kind, pages: Vec<Vec<Value>>) -> Self {
        self.pages.insert(kind, pages);
        self
    }

    pub fn paging(mut self, kind: Kind, paging: Paging) -> Self {
        self.paging.insert(kind, paging);
        self
    }

    pub fn instructions(mut self, text: &str) -> Self {
        self.instructions = Some(text.to_owned());
        self
    }

    pub fn capabilities(mut self, capabilities: Value) -> Self {
        self.capabilities = capabilities;
        self
    }

    pub fn version(mut self, version: &str) -> Self {
        self.version = Some(version.to_owned());
        self
    }

    /// Adds a thing to the last page.
    pub fn add(&mut self, kind: Kind, name: &str) {
        let pages = self.pages.entry(kind).or_default();
        if pages.is_empty() {
            pages.push(Vec::new());
        }
        if let Some(page) = pages.last_mut() {
            page.push(kind.item(name));
        }
    }

    pub fn remove(&mut self, kind: Kind, name: &str) {
        for page in self.pages.entry(kind).or_default() {
            page.retain(|item| item[kind.key()] != name);
        }
    }

    fn has(&self, kind: Kind, name: &str) -> bool {
        let pages = self.pages.get(&kind).into_iter().flatten();
        pages.flatten().any(|item| item[kind.key()] == name)
    }

    /// Whether a URI is listed or could be made of a template.
    fn has_resource(&self, uri: &str) -> bool {
        let templates = self.pages.get(&Kind::Templates).into_iter().flatten();
        self.has(Kind::Resources, uri)
            || templates.flatten().any(|item| {
                let template = item["uriTemplate"].as_str().unwrap_or_default();
                let fixed = template.split('{').next().unwrap_or_default();
                uri.starts_with(fixed)
            })
    }

    /// What the server called `name` answers by itself: a result, or an error object. `serial` counts its tasks.
    pub fn answer(&self, name: &str, message: &Value, serial: usize) -> Result<Value, Value> {
        let method = message["method"].as_str().unwrap_or_default();
        let params = &message["params"];
        let asked = params["name"].as_str().unwrap_or_default();
        let uri = params["uri"].as_str().unwrap_or_default();
        match method {
            "initialize" => Ok(self.initialize(name, params)),
            "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
                Ok(json!({}))
            }
            "tools/call" if !self.has(Kind::Tools, asked) => {
                Err(refusal(name, -32602, &format!("Unknown tool: {asked}")))
            }
            "tools/call" if params["task"].is_object() => Ok(json!({
                "task": task(&format!("task-{serial}"), "working"),
            })),
            "tools/call" => Ok(said(name, asked, &params["arguments"])),
            "prompts/get" if self.has(Kind::Prompts, asked) => Ok(json!({
                "messages": [{
                    "role": "user",
                    "content": { "type": "text", "text": format!("{name}:{asked}") },
                }],
            })),
            "prompts/get" => Err(refusal(name, -32602, &format!("Unknown prompt: {asked}"))),
            "resources/read" if self.has_resource(uri) => Ok(json!({
                "contents": [{ "uri": uri, "mimeType": "text/plain", "text": format!("{name}:{uri}") }],
            })),
            "resources/read" => Err(refusal(name, -32002, "Resource not found")),
            "completion/complete" => {
                let of = &params["ref"];
                let of = of["name"]
                    .as_str()
                    .or(of["uri"].as_str())
                    .unwrap_or_default();
                Ok(json!({ "completion": { "values": [format!("{name}:{of}")] } }))
            }
            "tasks/get" => Ok(task(
                params["taskId"].as_str().unwrap_or_default(),
                "working",
            )),
            "tasks/cancel" => Ok(task(
                params["taskId"].as_str().unwrap_or_default(),
                "cancelled",
            )),
            "tasks/result" => Ok(json!({
                "content": [{ "type": "text", "text": format!("{name}:{}", params["taskId"]) }],
            })),
            _ => self.page(name, method, params),
        }
    }

    fn initialize(&self, name: &str, params: &Value) -> Value {
        let asked = params["protocolVersion"].as_str().unwrap_or(LATEST);
        let known = LEGACY_VERSIONS.contains(&asked);
        let version = self.version.as_deref();
        let version = version.unwrap_or(if known { asked } else { LATEST });
        let mut result = json!({
            "protocolVersion": version,
            "capabilities": self.capabilities,
            "serverInfo": { "name": name, "version": "1.0" },
        });
        if let Some(instructions) = &self.instructions {
            result["instructions"] = json!(instructions);
        }
        result
    }

    fn page(&self, name: &str, method: &str, params: &Value) -> Result<Value, Value> {
        let kinds = [Kind::LISTED.as_slice(), &[Kind::Tasks]].concat();
        let Some(kind) = kinds.into_iter().find(|kind| kind.method() == method) else {
            return Err(refusal(name, -32601, "no such method here"));
        };
        let pages = self.pages.get(&kind).map_or(&[][..], Vec::as_slice);
        let paging = self.paging.get(&kind).copied().unwrap_or(Paging::Ends);
        // A cursor names the server, the kind and the page, so that one that has gone astray is refused.
        let mark = format!("cursor of {name} {method} ");
        let at = match params.get("cursor") {
            None => 0,
            Some(cursor) => {
                let page = cursor.as_str().and_then(|text| text.strip_prefix(&mark));
                let page = page.and_then(|text| text.parse::<usize>().ok());
                page.ok_or_else(|| refusal(name, -32602, "no such cursor here"))?
            }
        };
        let mut result = json!({ kind.member(): pages.get(at).cloned().unwrap_or_default() });
        let next = match paging {
            Paging::Ends => (at + 1 < pages.len()).then_some(at + 1),
            Paging::Endless => Some(at + 1),
            Paging::SameAgain => Some(1),
        };
        if let Some(next) = next {
            result["nextCursor"] = json!(format!("{mark}{next}"));
        }
        Ok(result)
    }
}

/// What a tool answers: who was asked, for what, with which arguments.
pub fn said(server: &str, tool: &str, arguments: &Value) -> Value {
    let nonce = arguments["nonce"].as_str().unwrap_or_default();
    json!({ "content": [{ "type": "text", "text": format!("{server}:{tool}:{nonce}") }] })
}

/// A task as a server describes it.
pub fn task(id: &str, status: &str) -> Value {
    json!({
        "taskId": id,
        "status": status,
        "ttl": 60_000,
        "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z",
    })
}

/// A server's own refusal, which says whose it is.
fn refusal(server: &str, code: i64, message: &str) -> Value {
    json!({ "code": code, "message": message, "data": { "server": server } })
}
