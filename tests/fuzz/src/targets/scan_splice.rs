//! Scan and splice against serde_json: what the gateway reads as id, method and token is
//! what a server would read, whether it takes the first or the last of equal names or
//! folds their case, and what it passes on is one line with the same JSON value.
//!
//! The input is the body of a request, or a line of the server.

use ringway::limits::TASK_ANSWER_BYTES_MAX;
use ringway::wire::scan::{
    BATCH_MESSAGES_MAX, Envelope, Fault, Field, ID_BYTES_MAX, Kind, batch, is_batch, scan,
};
use ringway::wire::span::Span;
use ringway::wire::splice::{Edit, splice};
use ringway::wire::task;
use serde_json::Value;
use serde_json::value::RawValue;

use super::results;
use crate::json::{Members, is_json};

const UPSTREAM_ID: &[u8] = b"4503599627370497";

pub fn scan_splice(text: &[u8]) {
    if is_batch(text) {
        check_batch(text);
    }
    match scan(text) {
        Ok(envelope) => {
            assert!(is_json(text), "accepted what is not JSON");
            check_reading(text, &envelope);
            check_splice(text, &envelope);
            check_result(text, &envelope);
        }
        Err(error) => {
            if let Some(id) = error.id {
                check_id(text, id);
            }
            check_refusal(text, error.fault);
        }
    }
}

/// The tasks that an answer tells of are those of its result.
fn check_result(text: &[u8], envelope: &Envelope<'_>) {
    let result = envelope.result.map(|result| result.of(text));
    let created = match result {
        Some(result) if result.len() <= TASK_ANSWER_BYTES_MAX => task::created(result),
        _ => None,
    };
    assert_eq!(task::created_in(text), created);
    if let Some(result) = result {
        results::check(result, 0);
    }
}

fn check_refusal(text: &[u8], fault: Fault) {
    match fault {
        Fault::NotUtf8 => assert!(std::str::from_utf8(text).is_err()),
        Fault::TooDeep => assert!(serde_json::from_slice::<Value>(text).is_err()),
        // The documented difference: names at the three levels must be decodable.
        Fault::NotJson => assert!(!is_json(text) || has_surrogate_escape(text)),
        Fault::NotObject => {
            assert!(is_json(text));
            assert!(serde_json::from_slice::<Members<'_>>(text).is_err());
        }
        _ => assert!(serde_json::from_slice::<Members<'_>>(text).is_ok()),
    }
    if let Ok(value) = serde_json::from_slice::<Value>(text) {
        assert!(!matches!(
            fault,
            Fault::NotUtf8 | Fault::TooDeep | Fault::NotJson
        ));
        assert!(fault != Fault::NotObject || !value.is_object());
    }
}

fn has_surrogate_escape(text: &[u8]) -> bool {
    let is_surrogate = |five: &[u8]| {
        let [b'\\', b'u', b'd' | b'D', high, _] = five else {
            return false;
        };
        high.is_ascii_alphabetic() || matches!(high, b'8' | b'9')
    };
    text.windows(5).any(is_surrogate)
}

fn members_of(raw: &str) -> Members<'_> {
    serde_json::from_str(raw).expect("an object that serde_json reads too")
}

/// The one member that any server could take for `name`.
fn only<'a>(members: &Members<'a>, name: &str) -> Option<&'a str> {
    let fold = |name: &str| -> String {
        let folded = name.chars().flat_map(char::to_lowercase);
        folded
            .map(|c| if c == '\u{17f}' { 's' } else { c })
            .collect()
    };
    let mut alike = members.0.iter().filter(|(it, _)| fold(it) == fold(name));
    let first = alike.next();
    assert!(alike.next().is_none(), "two members for {name}");
    let (spelling, raw) = first?;
    assert_eq!(spelling, name, "another spelling");
    Some(raw.get())
}

fn raw(text: &[u8], field: Option<Field>) -> Option<&str> {
    field.map(|field| std::str::from_utf8(field.span.of(text)).expect("on character boundaries"))
}

fn check_id(text: &[u8], id: Field) {
    let members = members_of(std::str::from_utf8(text).expect("UTF-8"));
    assert_eq!(only(&members, "id"), raw(text, Some(id)));
}

fn check_reading(text: &[u8], envelope: &Envelope<'_>) {
    let message = members_of(std::str::from_utf8(text).expect("UTF-8"));
    let version: String =
        serde_json::from_str(only(&message, "jsonrpc").expect("jsonrpc")).unwrap();
    assert_eq!(version, "2.0");
    match only(&message, "id") {
        Some("null") => assert_eq!((envelope.kind, envelope.id), (Kind::Error, None)),
        id => assert_eq!(id, raw(text, envelope.id)),
    }
    let own_token = (envelope.kind == Kind::Notification).then_some(envelope.progress_token);
    for id in [
        envelope.id,
        own_token.flatten(),
        envelope.meta_progress_token,
    ] {
        assert!(
            raw(text, id).is_none_or(is_id),
            "neither string nor integer"
        );
    }
    match only(&message, "method") {
        Some(method) => {
            assert_eq!(
                serde_json::from_str::<String>(method).unwrap(),
                envelope.method
            );
            let has_id = envelope.id.is_some();
            assert_eq!(envelope.kind == Kind::Request, has_id);
            assert_eq!(envelope.kind == Kind::Notification, !has_id);
        }
        None => assert_eq!(envelope.method, ""),
    }
    let span = |span: Option<Span>| {
        span.map(|span| std::str::from_utf8(span.of(text)).expect("on character boundaries"))
    };
    assert_eq!(only(&message, "result"), span(envelope.result));
    assert_eq!(only(&message, "error"), span(envelope.error));
    assert_eq!(only(&message, "params"), span(envelope.params));
    let params = members_of(only(&message, "params").unwrap_or("{}"));
    for (name, field) in [
        ("name", envelope.name),
        ("uri", envelope.uri),
        ("requestId", envelope.request_id),
        ("taskId", envelope.task_id),
        ("progressToken", envelope.progress_token),
        ("level", envelope.level),
        ("task", envelope.task),
        ("cursor", envelope.cursor),
        ("protocolVersion", envelope.protocol_version),
    ] {
        check_field(text, name, only(&params, name), field);
    }
    let meta = members_of(only(&params, "_meta").unwrap_or("{}"));
    for (name, field) in [
        ("progressToken", envelope.meta_progress_token),
        (
            "io.modelcontextprotocol/protocolVersion",
            envelope.meta_protocol_version,
        ),
        (
            "io.modelcontextprotocol/related-task",
            envelope.meta_related_task,
        ),
        (
            "io.modelcontextprotocol/subscriptionId",
            envelope.meta_subscription_id,
        ),
    ] {
        check_field(text, name, only(&meta, name), field);
    }
}

/// JSON-RPC and MCP take strings and integers for ids and tokens.
fn is_id(raw: &str) -> bool {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (raw.starts_with('"') || is_integer) && raw.len() <= ID_BYTES_MAX
}

fn check_field(text: &[u8], name: &str, expected: Option<&str>, field: Option<Field>) {
    assert_eq!(expected, raw(text, field), "{name}");
    if let (Some(expected), Some(field)) = (expected, field) {
        let decoded = serde_json::from_str::<String>(expected).ok();
        assert_eq!(decoded.as_deref(), field.text(text).as_deref(), "{name}");
    }
}

fn check_splice(text: &[u8], envelope: &Envelope<'_>) {
    let own_token = envelope
        .progress_token
        .filter(|_| envelope.kind == Kind::Notification);
    let fields = [own_token, envelope.meta_progress_token, envelope.id];
    let mut edits: Vec<_> = fields
        .iter()
        .flatten()
        .map(|field| Edit {
            span: field.span,
            with: UPSTREAM_ID,
        })
        .collect();
    let mut line = Vec::new();
    splice(&mut line, text, &mut edits);
    assert!(
        !line.iter().any(|byte| matches!(byte, b'\n' | b'\r')),
        "one line"
    );

    let again = scan(&line).expect("what is passed on is accepted too");
    assert_eq!(
        (again.kind, &again.method),
        (envelope.kind, &envelope.method)
    );
    for (before, after) in [
        (envelope.id, again.id),
        (envelope.meta_progress_token, again.meta_progress_token),
        (
            own_token,
            again.progress_token.filter(|_| own_token.is_some()),
        ),
    ] {
        let expected = before.map(|_| std::str::from_utf8(UPSTREAM_ID).expect("ASCII"));
        assert_eq!(raw(&line, after), expected);
    }

    if let Ok(mut value) = serde_json::from_slice::<Value>(text) {
        let replace = |at: Option<&mut Value>, is_edited: bool| {
            if let (Some(at), true) = (at, is_edited) {
                *at = serde_json::from_slice(UPSTREAM_ID).expect("a number");
            }
        };
        replace(value.get_mut("id"), envelope.id.is_some());
        replace(
            value.pointer_mut("/params/progressToken"),
            own_token.is_some(),
        );
        let meta_token = value.pointer_mut("/params/_meta/progressToken");
        replace(meta_token, envelope.meta_progress_token.is_some());
        assert_eq!(serde_json::from_slice::<Value>(&line).expect("JSON"), value);
    }
}

fn check_batch(text: &[u8]) {
    match batch(text) {
        Ok(spans) => {
            let text_ = std::str::from_utf8(text).expect("UTF-8");
            let elements: Vec<&RawValue> = serde_json::from_str(text_).expect("an array");
            assert_eq!(spans.len(), elements.len().min(BATCH_MESSAGES_MAX + 1));
            for (span, element) in spans.iter().zip(elements) {
                assert_eq!(span.of(text), element.get().as_bytes());
                let _ = scan(span.of(text));
            }
        }
        Err(Fault::NotUtf8) => assert!(std::str::from_utf8(text).is_err()),
        Err(Fault::TooDeep) => assert!(serde_json::from_slice::<Value>(text).is_err()),
        Err(fault) => {
            assert_eq!(fault, Fault::NotJson);
            assert!(!is_json(text));
        }
    }
}
