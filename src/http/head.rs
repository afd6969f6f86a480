//! What a request head means: method, target, framing, persistence and the few header fields that
//! Ringway acts on. A [`Head`] is a pure function of the head's bytes, so it may be kept and used
//! again for an equal head. What is left ambiguous by HTTP (two lengths, two hosts, two sessions)
//! never becomes a `Head`: it is refused here and the connection closes.
#![forbid(unsafe_code)]

use std::rc::Rc;

use ::http::header::{ACCEPT, HeaderMap, HeaderValue};
use ::http::request::Parts;
use ::http::uri::{Authority, PathAndQuery};
use ::http::{Uri, Version};

use super::codec;
use super::guard::{HeadExtent, Refusal};
use crate::wire::headers::{self, Accept};

/// The methods that Ringway tells apart. CONNECT is refused in [`read`] (405).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Delete,
    Options,
    /// Any other token.
    Other,
}

/// How the end of the body is found (RFC 9112, 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// Content-Length, bytes; below 10^18, not yet compared with any limit.
    Length(u64),
    /// Transfer-Encoding: chunked.
    Chunked,
}

/// `Mcp-Session-Id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionHeader {
    /// No such field.
    Absent,
    /// Not an id that Ringway gives out; to be answered like an id that is not known.
    Malformed,
    /// The bits of a UUID in its canonical spelling.
    Id(u128),
}

/// A request head that passed every check of framing and syntax. Values are slices of one private
/// copy of the head, so a clone copies no text.
#[derive(Debug, Clone)]
pub struct Head {
    /// The method.
    pub method: Method,
    target: PathAndQuery,
    /// The authority of an absolute-form target; it must pass the Host check like `host` itself.
    pub absolute_authority: Option<Authority>,
    /// HTTP/1.1, otherwise 1.0.
    pub http11: bool,
    /// How the body ends.
    pub framing: Framing,
    /// The connection ends after this answer (RFC 9112, 9.3).
    pub close: bool,
    /// HTTP/1.0 that asked to keep the connection: the answer must say `connection: keep-alive`.
    pub keep_alive_10: bool,
    /// The client waits for `100 Continue` before it sends a body that it has announced.
    pub expect_continue: bool,
    /// `Host`, syntactically legal.
    pub host: HeaderValue,
    /// `Origin`, raw.
    pub origin: Option<HeaderValue>,
    /// `Mcp-Session-Id`.
    pub session: SessionHeader,
    /// `MCP-Protocol-Version`, raw.
    pub protocol_version: Option<HeaderValue>,
    /// All `Accept` fields as one list.
    pub accept: Accept,
    /// There is a `Content-Type`.
    pub content_type_present: bool,
    /// `Content-Type` is JSON in UTF-8.
    pub content_type_json: bool,
    /// There is a `Content-Encoding`, of whatever value.
    pub content_encoded: bool,
    /// `Authorization`, raw. Never to be logged.
    pub authorization: Option<HeaderValue>,
    /// `Last-Event-ID`, raw.
    pub last_event_id: Option<HeaderValue>,
    /// A CORS preflight: OPTIONS with `Origin` and `Access-Control-Request-Method`.
    pub preflight: bool,
    /// Header lines that are passed on upstream, whole.
    pub passed: Option<Rc<[u8]>>,
}

impl Head {
    /// The path without its query, undecoded; `*` for an asterisk-form target.
    pub fn path(&self) -> &str {
        self.target.path()
    }
}

/// Reads the head that the guard found. `bytes` starts where the guard's bytes started and may go
/// on behind the head.
///
/// # Errors
/// 400 for anything ambiguous or malformed, 405 for CONNECT, 417 for an unknown expectation, 501
/// for an unknown transfer coding.
pub fn read(bytes: &[u8], extent: HeadExtent) -> Result<Head, Refusal> {
    read_passing(bytes, extent, None)
}

/// Appends a field's line if it is to be passed on: name in lower case, value, where to.
type PassLine<'a> = &'a dyn Fn(&str, &[u8], &mut Vec<u8>);

/// The same; `pass` says which fields are passed on.
///
/// # Errors
/// As [`read`].
pub fn read_passing(
    bytes: &[u8],
    extent: HeadExtent,
    pass: Option<PassLine<'_>>,
) -> Result<Head, Refusal> {
    let head = bytes
        .get(extent.range())
        .ok_or(Refusal::bad("the request head is incomplete"))?;
    let parts = codec::decode_head(head, extent.fields)?;
    let http11 = parts.version == Version::HTTP_11;
    let method = method(&parts)?;
    let (target, absolute_authority) = target(parts.uri, method)?;
    let fields = Fields::gather(&parts.headers)?;
    let framing = fields.framing(http11)?;
    let close = fields.close || (!http11 && !fields.keep_alive);
    Ok(Head {
        method,
        target,
        absolute_authority,
        http11,
        framing,
        close,
        keep_alive_10: !http11 && !close,
        expect_continue: fields.expects_continue(http11, framing)?,
        host: fields.host()?,
        origin: fields.origin.cloned(),
        session: fields
            .session
            .map_or(SessionHeader::Absent, |value| session(value.as_bytes())),
        protocol_version: fields.protocol_version.cloned(),
        accept: if fields.accept {
            let values = parts.headers.get_all(ACCEPT);
            headers::accept(values.iter().map(HeaderValue::as_bytes))
        } else {
            Accept::ANY
        },
        content_type_present: fields.content_type.is_some(),
        content_type_json: fields
            .content_type
            .is_some_and(|value| headers::is_json_media_type(value.as_bytes())),
        content_encoded: fields.content_encoding,
        authorization: fields.authorization.cloned().map(|mut value| {
            value.set_sensitive(true); // its debug text is not the value
            value
        }),
        last_event_id: fields.last_event_id.cloned(),
        preflight: method == Method::Options && fields.origin.is_some() && fields.preflight_method,
        passed: pass.map(|pass| {
            let mut lines = Vec::new();
            for (name, value) in &parts.headers {
                pass(name.as_str(), value.as_bytes(), &mut lines);
            }
            lines.into()
        }),
    })
}

fn method(parts: &Parts) -> Result<Method, Refusal> {
    Ok(match parts.method.as_str() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "DELETE" => Method::Delete,
        "OPTIONS" => Method::Options,
        "CONNECT" => return Err(Refusal::new(405, "CONNECT is not served")),
        _ => Method::Other,
    })
}

/// Origin-form, absolute-form, or `*` for OPTIONS (RFC 9112, 3.2).
fn target(uri: Uri, method: Method) -> Result<(PathAndQuery, Option<Authority>), Refusal> {
    const BAD_TARGET: Refusal =
        Refusal::bad("the request target must be a path, an http URI, or * for OPTIONS");
    let uri = uri.into_parts();
    let target = uri.path_and_query.ok_or(BAD_TARGET)?;
    match (uri.scheme, uri.authority) {
        (None, None) if target.as_str().starts_with('/') => Ok((target, None)),
        (None, None) if target == "*" && method == Method::Options => Ok((target, None)),
        (Some(scheme), Some(authority)) if matches!(scheme.as_str(), "http" | "https") => {
            headers::authority(authority.as_str().as_bytes()).ok_or(BAD_TARGET)?;
            Ok((target, Some(authority)))
        }
        _ => Err(BAD_TARGET),
    }
}

/// The 36 bytes of a lower-case hyphenated UUID; any other spelling of one is not an id of ours.
fn session(value: &[u8]) -> SessionHeader {
    if value.len() != 36 {
        return SessionHeader::Malformed;
    }
    let mut id = 0;
    for (index, byte) in value.iter().enumerate() {
        let digit = match byte {
            b'-' if matches!(index, 8 | 13 | 18 | 23) => continue,
            _ if matches!(index, 8 | 13 | 18 | 23) => return SessionHeader::Malformed,
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return SessionHeader::Malformed,
        };
        id = id << 4 | u128::from(digit);
    }
    SessionHeader::Id(id)
}

/// The fields that matter, from one pass over the map.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a HeaderValue>,
    content_length: Option<&'a HeaderValue>,
    transfer_encoding: Option<&'a HeaderValue>,
    origin: Option<&'a HeaderValue>,
    session: Option<&'a HeaderValue>,
    protocol_version: Option<&'a HeaderValue>,
    content_type: Option<&'a HeaderValue>,
    authorization: Option<&'a HeaderValue>,
    last_event_id: Option<&'a HeaderValue>,
    accept: bool,
    content_encoding: bool,
    preflight_method: bool,
    close: bool,
    keep_alive: bool,
    continues: bool,
    unknown_expectation: bool,
}

impl<'a> Fields<'a> {
    fn gather(map: &'a HeaderMap) -> Result<Self, Refusal> {
        let mut fields = Self::default();
        for (name, value) in map {
            fields.take(name.as_str(), value)?;
        }
        Ok(fields)
    }

    /// `name` is in lower case.
    fn take(&mut self, name: &str, value: &'a HeaderValue) -> Result<(), Refusal> {
        match name {
            "host" => once(&mut self.host, value, "there are two Host headers"),
            "content-length" => once(
                &mut self.content_length,
                value,
                "there are two Content-Length headers",
            ),
            "transfer-encoding" => once(
                &mut self.transfer_encoding,
                value,
                "there are two Transfer-Encoding headers",
            ),
            "origin" => once(&mut self.origin, value, "there are two Origin headers"),
            "mcp-session-id" => once(
                &mut self.session,
                value,
                "there are two Mcp-Session-Id headers",
            ),
            "mcp-protocol-version" => once(
                &mut self.protocol_version,
                value,
                "there are two MCP-Protocol-Version headers",
            ),
            "content-type" => once(
                &mut self.content_type,
                value,
                "there are two Content-Type headers",
            ),
            "authorization" => once(
                &mut self.authorization,
                value,
                "there are two Authorization headers",
            ),
            "last-event-id" => once(
                &mut self.last_event_id,
                value,
                "there are two Last-Event-ID headers",
            ),
            _ => {
                self.take_list(name, value.as_bytes());
                Ok(())
            }
        }
    }

    /// The fields that may come several times.
    fn take_list(&mut self, name: &str, value: &[u8]) {
        match name {
            "accept" => self.accept = true,
            "content-encoding" => self.content_encoding = true,
            "access-control-request-method" => self.preflight_method = true,
            "connection" => {
                for option in headers::list(value) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            "expect" => {
                for expectation in headers::list(value) {
                    let known = expectation.eq_ignore_ascii_case(b"100-continue");
                    self.continues |= known;
                    self.unknown_expectation |= !known;
                }
            }
            _ => {}
        }
    }

    fn host(&self) -> Result<HeaderValue, Refusal> {
        let host = self.host.ok_or(Refusal::bad("there is no Host header"))?;
        headers::authority(host.as_bytes()).ok_or(Refusal::bad("the Host header is malformed"))?;
        Ok(host.clone())
    }

    fn framing(&self, http11: bool) -> Result<Framing, Refusal> {
        match (self.transfer_encoding, self.content_length) {
            (None, None) => Ok(Framing::None),
            (None, Some(length)) => content_length(length.as_bytes()).map(Framing::Length),
            (Some(_), Some(_)) => Err(Refusal::bad(
                "Transfer-Encoding and Content-Length exclude each other",
            )),
            (Some(_), None) if !http11 => {
                Err(Refusal::bad("HTTP/1.0 does not know Transfer-Encoding"))
            }
            (Some(coding), None) => transfer_coding(coding.as_bytes()),
        }
    }

    /// HTTP/1.0 clients cannot wait for a 100, so theirs is ignored (RFC 9110, 10.1.1); nor does
    /// a request without a body.
    fn expects_continue(&self, http11: bool, framing: Framing) -> Result<bool, Refusal> {
        if !http11 {
            return Ok(false);
        }
        if self.unknown_expectation {
            return Err(Refusal::new(417, "the only expectation is 100-continue"));
        }
        let body = !matches!(framing, Framing::None | Framing::Length(0));
        Ok(self.continues && body)
    }
}

fn once<'a>(
    slot: &mut Option<&'a HeaderValue>,
    value: &'a HeaderValue,
    twice: &'static str,
) -> Result<(), Refusal> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::bad(twice)),
    }
}

/// 1 to 18 digits: no sign, no list, no white space, and no overflow in 64 bits.
fn content_length(value: &[u8]) -> Result<u64, Refusal> {
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::bad("the Content-Length must be 1 to 18 digits"));
    }
    Ok(value
        .iter()
        .fold(0, |length, digit| length * 10 + u64::from(digit - b'0')))
}

/// A legal list with a coding that is not known is answered 501, every other fault 400.
fn transfer_coding(value: &[u8]) -> Result<Framing, Refusal> {
    let chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    if chunked(value) {
        return Ok(Framing::Chunked);
    }
    let legal = headers::list(value).all(headers::is_token);
    if legal && headers::list(value).any(|coding| !chunked(coding)) {
        return Err(Refusal::new(501, "the only transfer coding is chunked"));
    }
    Err(Refusal::bad("the Transfer-Encoding must be chunked, once"))
}
