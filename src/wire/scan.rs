//! What a JSON-RPC message says about its own routing, as byte ranges of its text. One validating
//! pass reads client bodies and server lines by the same rules, so that gateway, server and client
//! never read two different ids from one text. Pure: bytes in, an [`Envelope`] or a [`Fault`] out.
//!
//! Checked in this order: UTF-8, `\u` escapes, depth, then the whole text as JSON by sonic-rs.
//! Two things pass inside values though some parsers refuse them, because a gateway has no reason
//! to judge what it only carries: lone surrogates (`"\ud800"`) and numbers beyond 64-bit floats
//! (`1e999`). In member names at the three levels a lone surrogate is [`Fault::NotJson`], in
//! `method` it is [`Fault::MethodType`].

mod escapes;
pub(super) mod names;
mod visitor;

use std::borrow::Cow;

use names::{MessageName, MetaName, ParamsName};
use visitor::Reading;

use super::depth::within_depth;
use super::span::Span;

/// Longest request id and progress token, in bytes of raw JSON text with its quotes.
/// Calls in flight keep these, so their number bounds memory only if their size is bounded.
pub const ID_BYTES_MAX: usize = 1024;

/// Most messages in a batch. Enough for real clients; one body cannot fill the call table.
pub const BATCH_MESSAGES_MAX: usize = 100;

/// What kind of JSON-RPC message a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Request,
    Notification,
    Result,
    Error,
}

/// The JSON type of a value, as far as routing cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    String {
        escaped: bool,
    },
    /// `-?(0|[1-9][0-9]*)`, of any size.
    Integer,
    /// A number with a fraction or an exponent, even where its value is whole.
    Fraction,
    Bool,
    Null,
    Array,
    Object,
}

/// A member's value as it stands in the text; strings with their quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub span: Span,
    pub shape: Shape,
}

/// One message, by what routing needs to know of it. Ranges are of the scanned text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub kind: Kind,
    /// String or integer, at most [`ID_BYTES_MAX`]. Always present on a request and a result,
    /// never on a notification; absent on an error that names none or `null`.
    pub id: Option<Field>,
    /// Decoded; empty on responses.
    pub method: Cow<'a, str>,
    pub params: Option<Span>,
    // Members of `params`.
    pub name: Option<Field>,
    pub uri: Option<Field>,
    pub request_id: Option<Field>,
    pub task_id: Option<Field>,
    /// On a notification a string or integer, at most [`ID_BYTES_MAX`].
    pub progress_token: Option<Field>,
    pub level: Option<Field>,
    pub task: Option<Field>,
    pub cursor: Option<Field>,
    pub protocol_version: Option<Field>,
    // Members of `params._meta`.
    /// String or integer, at most [`ID_BYTES_MAX`].
    pub meta_progress_token: Option<Field>,
    /// `io.modelcontextprotocol/protocolVersion`
    pub meta_protocol_version: Option<Field>,
    /// `io.modelcontextprotocol/related-task`
    pub meta_related_task: Option<Field>,
    /// `io.modelcontextprotocol/subscriptionId`
    pub meta_subscription_id: Option<Field>,
    pub result: Option<Span>,
    pub error: Option<Span>,
}

/// Why a text is refused, and the id to answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", fault.sentence())]
pub struct ScanError {
    pub fault: Fault,
    /// Where the text is JSON and has exactly one id, of a valid type and length.
    pub id: Option<Field>,
}

/// The reasons for refusal. Of several, syntax wins over the object, that over the names, those
/// over the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NotUtf8,
    TooDeep,
    NotJson,
    NotObject,
    DuplicateKey,
    FoldedKey,
    /// `jsonrpc` is not `"2.0"`.
    Version,
    /// `id` is neither string nor integer; `null` is none either.
    IdType,
    IdTooLong,
    MethodType,
    /// Neither request, notification nor response, or more than one of them; a result without id.
    Shape,
    ParamsType,
    MetaType,
    /// `progressToken` is neither string nor integer.
    TokenType,
    TokenTooLong,
}

/// Scans one message.
///
/// Members are compared as decoded. At the three levels message, `params` and `params._meta` a
/// known name may appear once, and no other name may fold to it; deeper levels and unknown names
/// are the server's business.
///
/// # Errors
/// The first [`Fault`] by precedence, with the id where it was readable.
pub fn scan(text: &[u8]) -> Result<Envelope<'_>, ScanError> {
    let reading = checked(text).and_then(|text| Ok((text, visitor::read(text)?)));
    match reading {
        Ok((text, reading)) => judge(text, &reading).map_err(|fault| {
            let id = reading.message(MessageName::Id);
            let id = id.filter(|id| !reading.id_is_doubtful && id_fault(id).is_none());
            ScanError { fault, id }
        }),
        Err(fault) => Err(ScanError { fault, id: None }),
    }
}

/// The raw ranges of the messages in an array, each of them valid JSON, yet to be scanned.
///
/// Of an array with more than [`BATCH_MESSAGES_MAX`] messages one more than that is returned.
///
/// # Errors
/// [`Fault::NotObject`] if the text is JSON but no array, else the faults of syntax.
pub fn batch(text: &[u8]) -> Result<Vec<Span>, Fault> {
    visitor::read_array(checked(text)?, BATCH_MESSAGES_MAX + 1)
}

/// Whether a text, if it is JSON, is an array.
pub fn is_batch(text: &[u8]) -> bool {
    text.iter().find(|byte| !visitor::is_blank(**byte)) == Some(&b'[')
}

/// What must hold before sonic-rs may look: it trusts `\u` escapes and its own stack.
fn checked(text: &[u8]) -> Result<&str, Fault> {
    if u32::try_from(text.len()).is_err() {
        return Err(Fault::NotJson);
    }
    let checked = simdutf8::basic::from_utf8(text).map_err(|_| Fault::NotUtf8)?;
    if !escapes::unicode_escapes_are_whole(text) {
        return Err(Fault::NotJson);
    }
    if !within_depth(text) {
        return Err(Fault::TooDeep);
    }
    Ok(checked)
}

fn judge<'a>(text: &'a str, reading: &Reading<'_>) -> Result<Envelope<'a>, Fault> {
    if let Some(fault) = reading.name_fault {
        return Err(fault);
    }
    let version = reading.message(MessageName::Jsonrpc);
    if version
        .and_then(|version| version.text(text.as_bytes()))
        .as_deref()
        != Some("2.0")
    {
        return Err(Fault::Version);
    }
    let kind = kind(reading)?;
    let id = id(kind, reading)?;
    let method = match reading.message(MessageName::Method) {
        Some(method) => method.text(text.as_bytes()).ok_or(Fault::MethodType)?,
        None => Cow::Borrowed(""),
    };
    let envelope = Envelope {
        kind,
        id,
        method,
        params: reading.message(MessageName::Params).map(|field| field.span),
        name: reading.params(ParamsName::Name),
        uri: reading.params(ParamsName::Uri),
        request_id: reading.params(ParamsName::RequestId),
        task_id: reading.params(ParamsName::TaskId),
        progress_token: reading.params(ParamsName::ProgressToken),
        level: reading.params(ParamsName::Level),
        task: reading.params(ParamsName::Task),
        cursor: reading.params(ParamsName::Cursor),
        protocol_version: reading.params(ParamsName::ProtocolVersion),
        meta_progress_token: reading.meta(MetaName::ProgressToken),
        meta_protocol_version: reading.meta(MetaName::ProtocolVersion),
        meta_related_task: reading.meta(MetaName::RelatedTask),
        meta_subscription_id: reading.meta(MetaName::SubscriptionId),
        result: reading.message(MessageName::Result).map(|field| field.span),
        error: reading.message(MessageName::Error).map(|field| field.span),
    };
    match params_fault(kind, reading) {
        Some(fault) => Err(fault),
        None => Ok(envelope),
    }
}

fn kind(reading: &Reading<'_>) -> Result<Kind, Fault> {
    let has = |name| reading.message(name).is_some();
    match (
        has(MessageName::Method),
        has(MessageName::Result),
        has(MessageName::Error),
    ) {
        (true, false, false) if has(MessageName::Id) => Ok(Kind::Request),
        (true, false, false) => Ok(Kind::Notification),
        (false, true, false) if has(MessageName::Id) => Ok(Kind::Result),
        (false, false, true) => Ok(Kind::Error),
        _ => Err(Fault::Shape),
    }
}

fn id(kind: Kind, reading: &Reading<'_>) -> Result<Option<Field>, Fault> {
    let Some(id) = reading.message(MessageName::Id) else {
        return Ok(None);
    };
    // JSON-RPC 2.0 section 5: an error has a null id where the request's could not be read.
    if kind == Kind::Error && id.shape == Shape::Null {
        return Ok(None);
    }
    id_fault(&id).map_or(Ok(Some(id)), Err)
}

fn id_fault(id: &Field) -> Option<Fault> {
    match id.shape {
        Shape::String { .. } | Shape::Integer if id.span.len() <= ID_BYTES_MAX => None,
        Shape::String { .. } | Shape::Integer => Some(Fault::IdTooLong),
        _ => Some(Fault::IdType),
    }
}

fn params_fault(kind: Kind, reading: &Reading<'_>) -> Option<Fault> {
    let not_object = |field: Option<Field>| field.is_some_and(|it| it.shape != Shape::Object);
    if not_object(reading.message(MessageName::Params)) {
        return Some(Fault::ParamsType);
    }
    if not_object(reading.params(ParamsName::Meta)) {
        return Some(Fault::MetaType);
    }
    // Elsewhere `params.progressToken` has no meaning.
    let own = reading
        .params(ParamsName::ProgressToken)
        .filter(|_| kind == Kind::Notification);
    let tokens = [own, reading.meta(MetaName::ProgressToken)];
    tokens
        .iter()
        .flatten()
        .find_map(|token| match id_fault(token)? {
            Fault::IdTooLong => Some(Fault::TokenTooLong),
            _ => Some(Fault::TokenType),
        })
}

// === impl Shape ===

impl Shape {
    /// The shape of a raw value that is known to be valid JSON.
    fn of_raw(raw: &[u8], escaped: bool) -> Self {
        match raw.first() {
            Some(b'"') => Self::String { escaped },
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b't' | b'f') => Self::Bool,
            Some(b'n') => Self::Null,
            _ if raw.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E')) => Self::Fraction,
            _ => Self::Integer,
        }
    }
}

// === impl Field ===

impl Field {
    /// The decoded value of a string, borrowed where it has no escape. `text` is the text that
    /// the field was read from.
    ///
    /// `None` if the value is no string or has a lone surrogate, which no Rust string can hold.
    pub fn text<'a>(&self, text: &'a [u8]) -> Option<Cow<'a, str>> {
        let raw = self.span.of(text);
        match self.shape {
            Shape::String { escaped: true } => sonic_rs::from_slice(raw).ok().map(Cow::Owned),
            Shape::String { escaped: false } => {
                let inner = raw.get(1..raw.len().checked_sub(1)?)?;
                simdutf8::basic::from_utf8(inner).ok().map(Cow::Borrowed)
            }
            _ => None,
        }
    }
}

// === impl Fault ===

impl Fault {
    /// The JSON-RPC error code.
    pub fn code(self) -> i32 {
        match self {
            Self::NotUtf8 | Self::TooDeep | Self::NotJson => -32700,
            Self::TokenType | Self::TokenTooLong => -32602,
            _ => -32600,
        }
    }

    /// For people: what is wrong, and so what to do. Constant, safe to put into JSON as it is.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NotUtf8 => "the body is not valid UTF-8",
            Self::TooDeep => "the body nests more than 128 levels deep",
            Self::NotJson => "the body is not valid JSON",
            Self::NotObject => "the message is not a JSON object",
            Self::DuplicateKey => "a member that routing depends on appears more than once",
            Self::FoldedKey => "a member name differs from a protocol member only in letter case",
            Self::Version => "jsonrpc must be the string 2.0",
            Self::IdType => "id must be a string or an integer",
            Self::IdTooLong => "id is longer than 1024 bytes",
            Self::MethodType => "method must be a string",
            Self::Shape => "the message is not exactly one of request, notification and response",
            Self::ParamsType => "params must be an object",
            Self::MetaType => "params._meta must be an object",
            Self::TokenType => "progressToken must be a string or an integer",
            Self::TokenTooLong => "progressToken is longer than 1024 bytes",
        }
    }
}

#[cfg(test)]
mod tests;
