//! Lines the demo server says: each function appends exactly one message and
//! its newline to the output. Ids and tokens are spliced as the raw JSON text
//! they came in; no line ever holds a raw newline of its own.

use std::io::Write as _;

const HEAD: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":";
const TEXT_RESULT: &[u8] = b",\"result\":{\"content\":[{\"type\":\"text\",\"text\":";

/// JSON-RPC and MCP error codes that the demo server uses.
pub(super) mod code {
    pub(crate) const PARSE: i32 = -32700;
    pub(crate) const INVALID_REQUEST: i32 = -32600;
    pub(crate) const UNKNOWN_METHOD: i32 = -32601;
    pub(crate) const INVALID_PARAMS: i32 = -32602;
    pub(crate) const INTERNAL: i32 = -32603;
    /// Legacy era only; the modern era uses [`INVALID_PARAMS`].
    pub(crate) const RESOURCE_NOT_FOUND: i32 = -32002;
}

/// A result; `result` is JSON text.
pub(super) fn result(out: &mut Vec<u8>, id: &str, result: &str) {
    out.extend_from_slice(HEAD);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"result\":");
    out.extend_from_slice(result.as_bytes());
    out.extend_from_slice(b"}\n");
}

/// A tool's result of one text; `text_json` is a JSON string, spliced as it is.
pub(super) fn tool_text_json(out: &mut Vec<u8>, id: &str, text_json: &str) {
    out.extend_from_slice(HEAD);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(TEXT_RESULT);
    out.extend_from_slice(text_json.as_bytes());
    out.extend_from_slice(b"}]}}\n");
}

/// A tool's result of one text.
pub(super) fn tool_text(out: &mut Vec<u8>, id: &str, text: &str) {
    tool_text_json(out, id, &json_string(text));
}

/// A tool's result whose text is `count` times the letter `x`.
pub(super) fn tool_text_of_size(out: &mut Vec<u8>, id: &str, count: usize) {
    out.reserve(count + id.len() + 128);
    out.extend_from_slice(HEAD);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(TEXT_RESULT);
    out.push(b'"');
    out.resize(out.len() + count, b'x');
    out.extend_from_slice(b"\"}]}}\n");
}

/// A tool's failure, said in a sentence that a model can act on.
pub(super) fn tool_failure(out: &mut Vec<u8>, id: &str, sentence: &str) {
    out.extend_from_slice(HEAD);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(TEXT_RESULT);
    out.extend_from_slice(json_string(sentence).as_bytes());
    out.extend_from_slice(b"}],\"isError\":true}}\n");
}

/// An error. Without a readable id the key is left out: `"id":null` crashes
/// some clients.
pub(super) fn error(out: &mut Vec<u8>, id: Option<&str>, code: i32, message: &str) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        out.extend_from_slice(id.as_bytes());
    }
    // A Vec takes every write.
    let _ = writeln!(
        out,
        ",\"error\":{{\"code\":{code},\"message\":{}}}}}",
        json_string(message)
    );
}

/// Progress of `step` out of `total`; `token` is JSON text.
pub(super) fn progress(out: &mut Vec<u8>, token: &str, step: u64, total: u64) {
    // A Vec takes every write.
    let _ = writeln!(
        out,
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":{token},\
         \"progress\":{step},\"total\":{total},\"message\":\"step {step} of {total}\"}}}}"
    );
}

/// Says that a resource has changed.
pub(super) fn resource_updated(out: &mut Vec<u8>, uri: &str) {
    // A Vec takes every write.
    let _ = writeln!(
        out,
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/resources/updated\",\"params\":{{\"uri\":{}}}}}",
        json_string(uri)
    );
}

/// Says that a list has changed: `tools`, `resources` or `prompts`.
pub(super) fn list_changed(out: &mut Vec<u8>, list: &str) {
    // A Vec takes every write.
    let _ = writeln!(
        out,
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/{list}/list_changed\"}}"
    );
}

/// `text` as a JSON string, quotes included.
pub(super) fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
