//! The JSON-RPC messages that Ringway itself writes: results, errors, and the
//! few requests and notifications that it sends upstream. Ids come in as raw
//! JSON, exactly as their owner spelled them.

use std::borrow::Cow;

/// JSON-RPC: the text is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// JSON-RPC: the JSON is not a valid request, or not one that is allowed here.
pub const INVALID_REQUEST: i32 = -32600;
/// JSON-RPC: there is no such method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// JSON-RPC: the parameters are wrong.
pub const INVALID_PARAMS: i32 = -32602;
/// JSON-RPC: what a gateway has to report, told apart by [`Reason`].
pub const INTERNAL_ERROR: i32 = -32603;
/// MCP SDKs: the session is unknown or has ended.
pub const SESSION_NOT_FOUND: i32 = -32001;

/// The stable words of `data.reason` in errors of Ringway's own (-32603).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The upstream server is not there.
    UpstreamDown,
    /// No answer came within `--request-timeout` or `--request-timeout-max`.
    Timeout,
    /// A limit was reached; trying again later may work.
    Overloaded,
    /// The server's answer is over `--max-message`; `overloaded` on the wire.
    TooLarge,
    /// The session ended while the call was in flight.
    SessionEnded,
    /// The client withdrew the call.
    Cancelled,
    /// Ringway is shutting down.
    Draining,
}

impl Reason {
    const ALL: [Reason; 7] = [
        Reason::UpstreamDown,
        Reason::Timeout,
        Reason::Overloaded,
        Reason::TooLarge,
        Reason::SessionEnded,
        Reason::Cancelled,
        Reason::Draining,
    ];

    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Reason::UpstreamDown => "upstream_down",
            Reason::Timeout => "timeout",
            Reason::Overloaded | Reason::TooLarge => "overloaded",
            Reason::SessionEnded => "session_ended",
            Reason::Cancelled => "cancelled",
            Reason::Draining => "draining",
        }
    }

    /// A sentence for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Reason::UpstreamDown => "The upstream server is not available",
            Reason::Timeout => "The upstream server did not answer in time",
            Reason::Overloaded => "The gateway is overloaded, try again later",
            Reason::TooLarge => {
                "The answer of the upstream server is over the limit (--max-message)"
            }
            Reason::SessionEnded => "The session has ended",
            Reason::Cancelled => "The request was cancelled",
            Reason::Draining => "The gateway is shutting down",
        }
    }
}

/// Appends a string as JSON.
pub fn json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// A string as JSON.
pub fn quoted(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    json_string(&mut out, text);
    out
}

fn envelope(out: &mut Vec<u8>, id: Option<&[u8]>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","#);
    if let Some(id) = id {
        out.extend_from_slice(br#""id":"#);
        out.extend_from_slice(id);
        out.push(b',');
    }
}

/// A result. `result` is raw JSON.
pub fn result(id: &[u8], result: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(40 + id.len() + result.len());
    envelope(&mut out, Some(id));
    out.extend_from_slice(br#""result":"#);
    out.extend_from_slice(result);
    out.push(b'}');
    out
}

/// An error. Where the id was not readable the key is left out: `"id": null`
/// crashes some clients.
pub fn error(id: Option<&[u8]>, code: i32, message: &str) -> Vec<u8> {
    let mut out = error_open(id, code, message);
    out.extend_from_slice(b"}}");
    out
}

/// An error of the gateway's own, with `data.reason`.
pub fn failure(id: Option<&[u8]>, reason: Reason) -> Vec<u8> {
    failure_at(None, id, reason)
}

/// The same about the upstream server of this name.
pub fn failure_at(upstream: Option<&str>, id: Option<&[u8]>, reason: Reason) -> Vec<u8> {
    with_reason(id, &about(upstream, reason.sentence()), reason)
}

/// The same for an upstream server that answered with nothing usable; `sentence` says
/// what it was.
pub fn upstream_failure(upstream: Option<&str>, id: Option<&[u8]>, sentence: &str) -> Vec<u8> {
    with_reason(id, &about(upstream, sentence), Reason::UpstreamDown)
}

fn with_reason(id: Option<&[u8]>, sentence: &str, reason: Reason) -> Vec<u8> {
    let mut out = error_open(id, INTERNAL_ERROR, sentence);
    out.extend_from_slice(br#","data":{"reason":""#);
    out.extend_from_slice(reason.word().as_bytes());
    out.extend_from_slice(br#""}}}"#);
    out
}

/// The word and the sentence of an error that is written like one of the gateway's own.
pub fn failure_in(error: &[u8]) -> Option<(&'static str, String)> {
    #[derive(serde::Deserialize)]
    struct Failure {
        code: i32,
        message: String,
        data: Data,
    }
    #[derive(serde::Deserialize)]
    struct Data {
        reason: String,
    }
    let failure: Failure = serde_json::from_slice(error).ok()?;
    let mut words = Reason::ALL.map(Reason::word).into_iter();
    let word = words.find(|word| *word == failure.data.reason)?;
    (failure.code == INTERNAL_ERROR).then_some((word, failure.message))
}

/// A sentence about the upstream server, with its name where one of several is meant.
fn about<'a>(upstream: Option<&str>, sentence: &'a str) -> Cow<'a, str> {
    const SUBJECT: &str = "upstream server";
    let (Some(name), Some(at)) = (upstream, sentence.find(SUBJECT)) else {
        return Cow::Borrowed(sentence);
    };
    let (subject, rest) = sentence.split_at(at + SUBJECT.len());
    Cow::Owned(format!("{subject} {name}{rest}"))
}

/// The same for a hook that failed; `sentence` says how.
pub fn hook_failure(id: &[u8], sentence: &str) -> Vec<u8> {
    let mut out = error_open(Some(id), INTERNAL_ERROR, sentence);
    out.extend_from_slice(br#","data":{"reason":"hook_failed"}}}"#);
    out
}

/// An error as it stands in a message of the server's.
pub fn raw_error(id: &[u8], error: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + id.len() + error.len());
    envelope(&mut out, Some(id));
    out.extend_from_slice(br#""error":"#);
    let start = out.len();
    out.extend_from_slice(error);
    super::splice::fold_newlines(&mut out[start..]);
    out.push(b'}');
    out
}

/// Appends a request; `params` writes its parameters.
pub fn request(out: &mut Vec<u8>, id: &[u8], method: &str, params: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id);
    out.extend_from_slice(br#","method":"#);
    json_string(out, method);
    out.extend_from_slice(br#","params":"#);
    params(out);
    out.push(b'}');
}

/// The server's own refusal of a request that Ringway made for this client: its
/// code and message, and nothing else of it.
pub fn refusal(id: &[u8], code: i64, message: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + id.len() + message.len());
    envelope(&mut out, Some(id));
    out.extend_from_slice(br#""error":{"code":"#);
    out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes());
    out.extend_from_slice(br#","message":"#);
    json_string(&mut out, message);
    out.extend_from_slice(b"}}");
    out
}

fn error_open(id: Option<&[u8]>, code: i32, message: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + id.map_or(0, <[u8]>::len) + message.len());
    envelope(&mut out, id);
    out.extend_from_slice(br#""error":{"code":"#);
    out.extend_from_slice(code.to_string().as_bytes());
    out.extend_from_slice(br#","message":"#);
    json_string(&mut out, message);
    out
}

/// The line that withdraws a call upstream, newline included.
pub fn cancelled_line(out: &mut Vec<u8>, upstream_id: &[u8], reason: &str) {
    out.extend_from_slice(
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#,
    );
    out.extend_from_slice(upstream_id);
    out.extend_from_slice(br#","reason":"#);
    json_string(out, reason);
    out.extend_from_slice(b"}}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> serde_json::Value {
        serde_json::from_slice(bytes).expect("Ringway writes JSON")
    }

    #[test]
    fn an_error_without_a_readable_id_has_no_id_key() {
        let value = parsed(&error(None, PARSE_ERROR, "not \"JSON\"\n"));
        assert!(value.get("id").is_none());
        assert_eq!(value["error"]["code"], -32700);
        assert_eq!(value["error"]["message"], "not \"JSON\"\n");
    }

    #[test]
    fn a_failure_carries_the_id_as_spelled_and_its_reason() {
        let bytes = failure(Some(br#""a-\u0041""#), Reason::Timeout);
        assert!(bytes.windows(10).any(|w| w == br#""a-\u0041""#));
        assert_eq!(parsed(&bytes)["error"]["data"]["reason"], "timeout");
    }

    #[test]
    fn a_failure_names_the_upstream_that_is_meant() {
        let message = |bytes: &[u8]| parsed(bytes)["error"]["message"].clone();
        let id = Some(&b"1"[..]);
        for (reason, sentence) in [
            (
                Reason::UpstreamDown,
                "The upstream server a\"\\\n is not available",
            ),
            (
                Reason::Timeout,
                "The upstream server a\"\\\n did not answer in time",
            ),
            (Reason::Overloaded, Reason::Overloaded.sentence()),
        ] {
            let bytes = failure_at(Some("a\"\\\n"), id, reason);
            assert_eq!(message(&bytes), sentence);
            assert_eq!(parsed(&bytes)["error"]["data"]["reason"], reason.word());
            assert_eq!(message(&failure(id, reason)), reason.sentence());
        }
        let sentence = "The answer of the upstream server is odd";
        let bytes = upstream_failure(Some("a"), id, sentence);
        assert_eq!(
            message(&bytes),
            "The answer of the upstream server a is odd"
        );
        assert_eq!(parsed(&bytes)["error"]["data"]["reason"], "upstream_down");
        assert_eq!(message(&upstream_failure(None, id, sentence)), sentence);
    }

    #[test]
    fn a_failure_is_told_from_a_servers_own_error() {
        let read = |message: &[u8]| failure_in(parsed(message)["error"].to_string().as_bytes());
        for reason in Reason::ALL {
            let message = failure_at(Some("a"), Some(b"1"), reason);
            let (word, sentence) = read(&message).unwrap();
            assert_eq!(word, reason.word());
            assert_eq!(sentence, about(Some("a"), reason.sentence()));
        }
        let message = upstream_failure(None, None, "odd");
        assert_eq!(read(&message), Some(("upstream_down", "odd".into())));
        assert_eq!(read(&error(None, INTERNAL_ERROR, "odd")), None);
        for own in [
            r#"{"code":-1,"message":"m","data":{"reason":"timeout"}}"#,
            r#"{"code":-32603,"message":"m","data":{"reason":"x"}}"#,
            r#"{"code":-32603,"message":7,"data":{"reason":"timeout"}}"#,
        ] {
            assert_eq!(failure_in(own.as_bytes()), None, "{own}");
        }
    }

    #[test]
    fn a_cancel_line_is_one_line_of_json() {
        let mut line = Vec::new();
        cancelled_line(&mut line, b"257", "timeout");
        assert_eq!(line.pop(), Some(b'\n'));
        assert!(!line.contains(&b'\n'));
        assert_eq!(parsed(&line)["params"]["requestId"], 257);
    }
}
