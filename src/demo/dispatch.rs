//! The demo server as a state machine: a line and the time go in, lines come
//! out. No I/O and no clock, so its tests need neither. Every request gets
//! exactly one answer unless it is cancelled; notifications get none.

use std::time::Duration;

use super::answer::{self, code};
use super::catalogue::{self, Prompts, Resources};
use super::limits::ID_BYTES_MAX;
use super::message::{Fault, Message, Params, Shape};
use super::slow::SlowCalls;
use super::tools::{Call, Tools};

/// A fault of a request: the JSON-RPC error to answer with.
struct Refusal(i32, String);

/// The whole server.
#[derive(Debug, Default)]
pub(super) struct Demo {
    tools: Tools,
    resources: Resources,
    prompts: Prompts,
    slow: SlowCalls,
}

impl Demo {
    /// Takes one line without its newline; appends what is to be said at once.
    /// `now` is the time since the server's start.
    pub(super) fn line(&mut self, line: &[u8], now: Duration, out: &mut Vec<u8>) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let message = match Message::parse(line) {
            Ok(message) => message,
            Err(Fault::Syntax) => return answer::error(out, None, code::PARSE, "Parse error"),
            Err(Fault::Shape) => {
                let text = "Invalid request: one JSON object with unique keys is expected";
                return answer::error(out, None, code::INVALID_REQUEST, text);
            }
        };
        let is_response = message.result.0.is_some() || message.error.0.is_some();
        if message.method.0.is_none() && is_response {
            // This server asks nothing, so no response is expected.
            return;
        }
        self.message(message, now, out);
    }

    /// Answers a line that was too long to be read.
    pub(super) fn too_long(out: &mut Vec<u8>) {
        answer::error(out, None, code::INVALID_REQUEST, "The line is too long");
    }

    /// When [`Self::fire`] has something to do next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.slow.next_due()
    }

    /// Does one thing that is due. False: nothing is due at `now`.
    pub(super) fn fire(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        self.slow.fire(now, out)
    }

    fn message(&mut self, message: Message<'_>, now: Duration, out: &mut Vec<u8>) {
        // A null id cannot be answered usefully: it is the same as none.
        let id = message.id.0.filter(|id| *id != "null");
        let refuse = |out: &mut Vec<u8>, text: &str| {
            let id = id.filter(|id| id.len() <= ID_BYTES_MAX);
            answer::error(out, id, code::INVALID_REQUEST, text);
        };
        if message.jsonrpc.text().as_deref() != Some("2.0") {
            return refuse(out, "Invalid request: jsonrpc must be \"2.0\"");
        }
        let Some(method) = message.method.text() else {
            return refuse(out, "Invalid request: method must be a string");
        };
        match id {
            Some(id) if id.len() > ID_BYTES_MAX => refuse(out, "Invalid request: id is too long"),
            Some(id) => {
                if let Err(Refusal(code, text)) =
                    self.request(&method, id, message.params, now, out)
                {
                    answer::error(out, Some(id), code, &text);
                }
            }
            None if message.id.0.is_some() => refuse(out, "Invalid request: id must not be null"),
            None => self.notification(&method, &message.params),
        }
    }

    fn notification(&mut self, method: &str, params: &Shape<Params<'_>>) {
        if method == "notifications/cancelled"
            && let Shape::Object(params) = params
            && let Some(id) = params.request_id.0
        {
            self.slow.cancel(id);
        }
    }

    /// Answers one request, or says why not. `slow` is answered later.
    fn request(
        &mut self,
        method: &str,
        id: &str,
        params: Shape<Params<'_>>,
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let params = match params {
            Shape::Object(params) => params,
            Shape::Absent => Params::default(),
            Shape::Other => return Err(invalid("params must be an object")),
        };
        match method {
            "tools/call" => return self.call(id, params, now, out),
            "initialize" => {
                let version = params.protocol_version.text();
                answer::result(out, id, &catalogue::handshake(version.as_deref()));
            }
            "ping" => answer::result(out, id, "{}"),
            "tools/list" => answer::result(out, id, &self.tools.list()),
            "resources/list" => answer::result(out, id, &self.resources.list()),
            "resources/templates/list" => {
                answer::result(out, id, catalogue::RESOURCE_TEMPLATES);
            }
            "resources/read" => answer::result(out, id, &self.read(&params)?),
            "resources/subscribe" => {
                let subscribed = self.resources.subscribe(&uri(&params)?);
                subscribed.map_err(|error| invalid(&error.to_string()))?;
                answer::result(out, id, "{}");
            }
            "resources/unsubscribe" => {
                self.resources.unsubscribe(&uri(&params)?);
                answer::result(out, id, "{}");
            }
            "prompts/list" => answer::result(out, id, &self.prompts.list()),
            "prompts/get" => answer::result(out, id, &self.prompt(&params)?),
            "logging/setLevel" => {
                if !params.level.text().is_some_and(|l| catalogue::is_level(&l)) {
                    return Err(invalid("level must be a log level"));
                }
                answer::result(out, id, "{}");
            }
            _ => return Err(Refusal(code::UNKNOWN_METHOD, "Method not found".into())),
        }
        Ok(())
    }

    fn call(
        &mut self,
        id: &str,
        params: Params<'_>,
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let name = params.name.text();
        let name = name.ok_or_else(|| invalid("name must be a string"))?;
        let arguments = match params.arguments {
            Shape::Object(arguments) => arguments,
            Shape::Absent => Default::default(),
            Shape::Other => return Err(invalid("arguments must be an object")),
        };
        let token = match params.meta {
            Shape::Object(meta) => meta.progress_token.0,
            Shape::Absent => None,
            Shape::Other => return Err(invalid("_meta must be an object")),
        };
        if token.is_some_and(|token| token.len() > ID_BYTES_MAX) {
            return Err(invalid("progressToken is too long"));
        }
        let call = Call {
            id,
            token,
            arguments,
            now,
        };
        self.tools.call(
            &name,
            &call,
            &mut self.resources,
            &mut self.prompts,
            &mut self.slow,
            out,
        );
        Ok(())
    }

    fn read(&self, params: &Params<'_>) -> Result<String, Refusal> {
        let uri = uri(params)?;
        let found = self.resources.read(&uri);
        found.ok_or_else(|| Refusal(code::RESOURCE_NOT_FOUND, "Resource not found".into()))
    }

    fn prompt(&self, params: &Params<'_>) -> Result<String, Refusal> {
        let name = params.name.text().unwrap_or_default();
        if name != "greet" {
            let found = self.prompts.get(&name);
            return found.ok_or_else(|| invalid("there is no such prompt"));
        }
        let Shape::Object(arguments) = &params.arguments else {
            return Err(invalid("the prompt needs the argument name"));
        };
        let name = arguments.name.text();
        let name = name.ok_or_else(|| invalid("the argument name must be a string"))?;
        Ok(catalogue::greeting(&name))
    }

    /// `slow` calls that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.slow.len()
    }
}

fn invalid(text: &str) -> Refusal {
    Refusal(code::INVALID_PARAMS, format!("Invalid params: {text}"))
}

fn uri<'a>(params: &Params<'a>) -> Result<std::borrow::Cow<'a, str>, Refusal> {
    let uri = params.uri.text();
    uri.ok_or_else(|| invalid("uri must be a string"))
}
