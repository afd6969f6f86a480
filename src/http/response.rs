//! Responses as bytes: status line, fields, body, in one buffer for one write.
//! Knows HTTP/1.1 and 1.0, CORS and SSE; knows no socket.

use ::http::HeaderValue;

use crate::routing::session::{Session, SessionId};
use crate::wire::headers::{CORS_EXPOSE_HEADERS, CORS_VARY};
use crate::wire::sse;

/// How the answers to one request are to be framed.
#[derive(Clone, Debug)]
pub struct Manner {
    /// The client speaks HTTP/1.1.
    pub http11: bool,
    /// The connection ends after this answer.
    pub close: bool,
    /// The answer must say `connection: keep-alive` (HTTP/1.0).
    pub keep_alive_10: bool,
    /// A HEAD request: fields, no body.
    pub head_only: bool,
    /// The request had an `Origin`: what is allowed to it, or nothing.
    pub origin: OriginAnswer,
}

/// What CORS asks of an answer.
#[derive(Clone, Debug)]
pub enum OriginAnswer {
    /// No `Origin` in the request.
    None,
    /// Present, and not allowed.
    Refused,
    /// Allowed: it is named in the answer.
    Allowed(HeaderValue),
}

impl Manner {
    /// The connection ends after this answer after all.
    pub fn close(&mut self) {
        self.close = true;
        self.keep_alive_10 = false;
    }

    /// For a request that could not be read: HTTP/1.1, close.
    pub fn unread() -> Manner {
        Manner {
            http11: true,
            close: true,
            keep_alive_10: false,
            head_only: false,
            origin: OriginAnswer::None,
        }
    }
}

/// One line of the head that is the same for a second: `date: …`.
pub type DateLine = [u8; 37];

/// Formats the `date` field for a moment.
pub fn date_line(moment: std::time::SystemTime) -> DateLine {
    let text = format!("date: {}\r\n", httpdate::fmt_http_date(moment));
    let mut line = [b' '; 37];
    let length = text.len().min(line.len());
    line[..length].copy_from_slice(&text.as_bytes()[..length]);
    line
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

fn status_line(out: &mut Vec<u8>, status: u16) {
    if status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends one field.
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Status line and the fields that every answer has.
fn common(out: &mut Vec<u8>, status: u16, manner: &Manner, date: &DateLine) {
    status_line(out, status);
    out.extend_from_slice(date);
    match &manner.origin {
        OriginAnswer::None => {}
        OriginAnswer::Refused => field(out, "vary", CORS_VARY.as_bytes()),
        OriginAnswer::Allowed(origin) => {
            field(out, "access-control-allow-origin", origin.as_bytes());
            field(
                out,
                "access-control-expose-headers",
                CORS_EXPOSE_HEADERS.as_bytes(),
            );
            field(out, "vary", CORS_VARY.as_bytes());
        }
    }
    if manner.close {
        out.extend_from_slice(b"connection: close\r\n");
    } else if manner.keep_alive_10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
}

/// The field that names a session.
pub fn session_field(session: &Session) -> Vec<u8> {
    session_line(session.id)
}

/// The same for a session with this id.
pub fn session_line(session: SessionId) -> Vec<u8> {
    let mut out = Vec::new();
    let mut buffer = uuid::Uuid::encode_buffer();
    let id = uuid::Uuid::from_u128(session.0)
        .hyphenated()
        .encode_lower(&mut buffer);
    field(&mut out, "mcp-session-id", id.as_bytes());
    out
}

/// A whole response. `fields` are whole lines; `body` is JSON where there is one.
pub fn complete(
    manner: &Manner,
    date: &DateLine,
    status: u16,
    fields: &[u8],
    body: &[u8],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(192 + fields.len() + body.len());
    common(&mut out, status, manner, date);
    out.extend_from_slice(fields);
    if !body.is_empty() {
        field(&mut out, "content-type", b"application/json");
    }
    // RFC 9110, 8.6: no Content-Length with 204.
    if status != 204 {
        content_length(&mut out, body.len());
    }
    out.extend_from_slice(b"\r\n");
    if !manner.head_only {
        out.extend_from_slice(body);
    }
    out
}

fn content_length(out: &mut Vec<u8>, bytes: usize) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(bytes).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The head of a JSON answer whose body of `bytes` follows in the same buffer.
pub fn json_head(out: &mut Vec<u8>, manner: &Manner, date: &DateLine, bytes: usize) {
    out.reserve(256 + bytes);
    common(out, 200, manner, date);
    out.extend_from_slice(b"content-type: application/json\r\n");
    content_length(out, bytes);
    out.extend_from_slice(b"\r\n");
}

/// The head of a JSON answer whose length is not known yet: chunked on HTTP/1.1,
/// ended by the close on 1.0.
pub fn json_head_open(out: &mut Vec<u8>, manner: &Manner, date: &DateLine) {
    common(out, 200, manner, date);
    out.extend_from_slice(b"content-type: application/json\r\n");
    if manner.http11 {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// The head of an SSE answer: chunked on HTTP/1.1, ended by the close on 1.0.
/// `fields` are whole lines.
pub fn sse_head(out: &mut Vec<u8>, manner: &Manner, date: &DateLine, fields: &[u8]) {
    common(out, 200, manner, date);
    out.extend_from_slice(fields);
    out.extend_from_slice(
        b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n",
    );
    if manner.http11 {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// A part of a body of unknown length: a chunk on HTTP/1.1, bare bytes on 1.0.
pub fn part(out: &mut Vec<u8>, http11: bool, bytes: &[u8]) {
    if bytes.is_empty() {
        return; // an empty chunk would end the body
    }
    if !http11 {
        out.extend_from_slice(bytes);
        return;
    }
    out.reserve(bytes.len() + 24);
    part_begins(out, http11, bytes.len());
    out.extend_from_slice(bytes);
    part_ends(out, http11);
}

/// What stands before a part of `bytes` that is written on its own.
pub fn part_begins(out: &mut Vec<u8>, http11: bool, bytes: usize) {
    if http11 {
        chunk_size(out, bytes);
    }
}

/// What stands behind it.
pub fn part_ends(out: &mut Vec<u8>, http11: bool) {
    if http11 {
        out.extend_from_slice(b"\r\n");
    }
}

fn chunk_size(out: &mut Vec<u8>, bytes: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - bytes.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(DIGITS[bytes >> (4 * place) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// One message as an event of an SSE answer.
pub fn sse_message(out: &mut Vec<u8>, manner: &Manner, message: &[u8]) {
    if !manner.http11 {
        sse::frame(out, message);
        return;
    }
    let bytes = message.len() + sse::FRAME_BYTES;
    out.reserve(bytes + 24);
    chunk_size(out, bytes);
    sse::frame(out, message);
    out.extend_from_slice(b"\r\n");
}

/// The end of a body of unknown length.
pub fn end(out: &mut Vec<u8>, http11: bool) {
    if http11 {
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date() -> DateLine {
        date_line(std::time::UNIX_EPOCH)
    }

    #[test]
    fn a_date_line_is_a_whole_line_of_its_fixed_length() {
        assert_eq!(&date(), b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n");
    }

    #[test]
    fn no_content_has_no_length_and_accepted_says_zero() {
        let manner = Manner::unread();
        let none = complete(&manner, &date(), 204, b"", b"");
        assert!(!String::from_utf8(none).unwrap().contains("content-length"));
        let accepted = complete(&manner, &date(), 202, b"", b"");
        assert!(
            String::from_utf8(accepted)
                .unwrap()
                .contains("content-length: 0\r\n")
        );
    }

    #[test]
    fn every_answer_to_a_request_with_an_origin_varies_by_it() {
        let mut manner = Manner::unread();
        for origin in [
            OriginAnswer::Refused,
            OriginAnswer::Allowed(HeaderValue::from_static("http://localhost")),
        ] {
            let allowed = matches!(origin, OriginAnswer::Allowed(_));
            manner.origin = origin;
            let text = String::from_utf8(complete(&manner, &date(), 403, b"", b"{}")).unwrap();
            assert!(text.contains("vary: Origin\r\n"));
            assert_eq!(text.contains("access-control-allow-origin"), allowed);
        }
    }

    #[test]
    fn a_chunk_tells_its_size_in_hexadecimal() {
        for (bytes, digits) in [
            (1, "1"),
            (15, "f"),
            (16, "10"),
            (4_096, "1000"),
            (65_535, "ffff"),
        ] {
            let mut out = Vec::new();
            part(&mut out, true, &vec![b'x'; bytes]);
            assert!(out.starts_with(format!("{digits}\r\nx").as_bytes()));
            assert!(out.ends_with(b"x\r\n"));
            assert_eq!(out.len(), bytes + digits.len() + 4);
        }
        let mut out = Vec::new();
        part(&mut out, true, b"");
        assert!(out.is_empty(), "an empty chunk would end the body");
    }

    #[test]
    fn an_event_is_one_chunk_on_http_11_and_bare_on_10() {
        let mut manner = Manner::unread();
        let mut out = Vec::new();
        sse_message(&mut out, &manner, b"{}");
        end(&mut out, manner.http11);
        assert_eq!(out, b"19\r\nevent: message\ndata: {}\n\n\r\n0\r\n\r\n");
        manner.http11 = false;
        let mut out = Vec::new();
        sse_message(&mut out, &manner, b"{}");
        end(&mut out, manner.http11);
        assert_eq!(out, b"event: message\ndata: {}\n\n");
    }
}
