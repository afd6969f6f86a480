//! The client's half of HTTP/1.1: what a response's head says, and where its body ends. Bytes in, verdicts out.

use std::fmt::Write as _;

/// Longest head of a response, bytes.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Most header fields of a response.
const FIELDS_MAX: usize = 100;

/// Longest line of a chunk's size with its extensions, and of a trailer, bytes.
const LINE_BYTES_MAX: usize = 1024;

/// Why bytes are no HTTP response.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not HTTP: {0}")]
pub struct NotHttp(pub &'static str);

/// What kind of body a response says that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Media {
    Json,
    EventStream,
    Other,
}

/// How the end of a body is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// What matters here of a response's head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    pub status: u16,
    pub media: Media,
    pub framing: Framing,
    /// The connection may carry another request afterwards.
    pub keeps_alive: bool,
    /// The value of `Mcp-Session-Id`.
    pub session: Option<String>,
}

/// Reads a head from the start of `bytes`. `None`: more bytes are needed. The number is the head's length.
///
/// # Errors
/// When no further byte could make a head of it.
pub fn head(bytes: &[u8]) -> Result<Option<(Head, usize)>, NotHttp> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut read = httparse::Response::new(&mut fields);
    let length = match read.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() > HEAD_BYTES_MAX => {
            return Err(NotHttp("a head without end"));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(NotHttp("a head that cannot be read")),
    };
    let status = read.code.unwrap_or_default();
    let mut head = Head {
        status,
        media: Media::Other,
        framing: Framing::UntilClose,
        keeps_alive: read.version == Some(1),
        session: None,
    };
    let mut has_length = false;
    for field in read.headers.iter() {
        let name = field.name;
        if name.eq_ignore_ascii_case("content-type") {
            head.media = media(field.value);
        } else if name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(field.value).unwrap_or_default();
            let length = text
                .trim()
                .parse()
                .map_err(|_| NotHttp("a length that is no number"))?;
            if has_length || head.framing == Framing::Chunked {
                return Err(NotHttp("two framings of one body"));
            }
            has_length = true;
            head.framing = Framing::Length(length);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if has_length || !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(NotHttp("two framings of one body, or an unknown one"));
            }
            head.framing = Framing::Chunked;
        } else if name.eq_ignore_ascii_case("connection") {
            let value = String::from_utf8_lossy(field.value).to_ascii_lowercase();
            if value.contains("close") {
                head.keeps_alive = false;
            } else if value.contains("keep-alive") {
                head.keeps_alive = true;
            }
        } else if name.eq_ignore_ascii_case("mcp-session-id") {
            head.session = Some(String::from_utf8_lossy(field.value).into_owned());
        }
    }
    if matches!(status, 100..=199 | 204 | 304) {
        head.framing = Framing::Length(0);
    }
    if head.framing == Framing::UntilClose {
        head.keeps_alive = false;
    }
    Ok(Some((head, length)))
}

fn media(value: &[u8]) -> Media {
    let essence = value
        .split(|b| *b == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") {
        Media::Json
    } else if essence.eq_ignore_ascii_case(b"text/event-stream") {
        Media::EventStream
    } else {
        Media::Other
    }
}

/// Takes a body out of the bytes that follow its head, in whatever portions they come.
#[derive(Debug)]
pub struct Body {
    state: State,
    line: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// So many bytes to the end of the body.
    Length(usize),
    UntilClose,
    /// In the line that says how long the next chunk is.
    Size,
    /// So many bytes of a chunk, then its line break.
    Chunk(usize),
    /// In the line break behind a chunk.
    Break,
    /// In the trailers, up to an empty line.
    Trailer,
    Done,
}

impl Body {
    pub fn new(framing: Framing) -> Body {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size,
            Framing::UntilClose => State::UntilClose,
        };
        Body {
            state,
            line: Vec::new(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Appends what `bytes` holds of the body to `out`. Returns how many bytes of them belong to the body and its
    /// framing: all, unless it is done before.
    ///
    /// # Errors
    /// When the chunks are not framed as they must be.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, NotHttp> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            let rest = &bytes[at..];
            match self.state {
                State::Length(left) | State::Chunk(left) => {
                    let take = left.min(rest.len());
                    out.extend_from_slice(&rest[..take]);
                    at += take;
                    let left = left - take;
                    self.state = match self.state {
                        State::Length(_) if left == 0 => State::Done,
                        State::Length(_) => State::Length(left),
                        _ if left == 0 => State::Break,
                        _ => State::Chunk(left),
                    };
                }
                State::UntilClose => {
                    out.extend_from_slice(rest);
                    at = bytes.len();
                }
                State::Size | State::Break | State::Trailer => {
                    let Some(end) = memchr::memchr(b'\n', rest) else {
                        self.line.extend_from_slice(rest);
                        if self.line.len() > LINE_BYTES_MAX {
                            return Err(NotHttp("a line without end in a chunked body"));
                        }
                        return Ok(bytes.len());
                    };
                    self.line.extend_from_slice(&rest[..end]);
                    at += end + 1;
                    if self.line.pop() != Some(b'\r') {
                        return Err(NotHttp("a bare line feed in a chunked body"));
                    }
                    self.state = self.after_line()?;
                    self.line.clear();
                }
                State::Done => {}
            }
        }
        Ok(at)
    }

    fn after_line(&self) -> Result<State, NotHttp> {
        let line = self.line.as_slice();
        match self.state {
            State::Break if line.is_empty() => Ok(State::Size),
            State::Break => Err(NotHttp("bytes behind a chunk")),
            State::Trailer if line.is_empty() => Ok(State::Done),
            State::Trailer => Ok(State::Trailer),
            _ => {
                let digits = line
                    .split(|b| *b == b';')
                    .next()
                    .unwrap_or_default()
                    .trim_ascii();
                let text = std::str::from_utf8(digits).unwrap_or_default();
                let is_hex = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
                match usize::from_str_radix(text, 16) {
                    Ok(0) if is_hex => Ok(State::Trailer),
                    Ok(size) if is_hex => Ok(State::Chunk(size)),
                    _ => Err(NotHttp("a chunk without a size")),
                }
            }
        }
    }

    /// What it means that the connection has ended here: true when the body may end so.
    pub fn may_end(&self) -> bool {
        matches!(self.state, State::Done | State::UntilClose)
    }
}

/// The fixed part of each request of a session, up to the value of `Content-Length`.
pub fn request_head(method: &str, target: &str, host: &str, fields: &[(String, String)]) -> String {
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
    for (name, value) in fields {
        // Writing to a string cannot fail.
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (Head, usize) {
        head(bytes).expect("HTTP").expect("whole")
    }

    #[test]
    fn head_says_how_the_body_ends_and_what_it_is() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\nMcp-Session-Id: s-1\r\n\r\n{}";
        let (json, length) = read(text);
        assert_eq!(json.framing, Framing::Length(2));
        assert_eq!((json.media, json.keeps_alive), (Media::Json, true));
        assert_eq!(json.session.as_deref(), Some("s-1"));
        assert_eq!(length, text.len() - 2);
        let (stream, _) = read(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n");
        assert_eq!(
            (stream.framing, stream.media),
            (Framing::Chunked, Media::EventStream)
        );
        assert!(!stream.keeps_alive);
        let (none, _) = read(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(none.framing, Framing::Length(0));
        let (old, _) = read(b"HTTP/1.0 200 OK\r\n\r\n");
        assert_eq!((old.framing, old.keeps_alive), (Framing::UntilClose, false));
        assert_eq!(
            read(b"HTTP/1.1 204 No Content\r\n\r\n").0.framing,
            Framing::Length(0)
        );
    }

    #[test]
    fn head_that_is_not_whole_waits_and_two_framings_are_refused() {
        assert_eq!(head(b"HTTP/1.1 200 OK\r\nContent-Le"), Ok(None));
        assert!(
            head(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n").is_err()
        );
        assert!(
            head(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n")
                .is_err()
        );
        assert!(head(b"SMTP ready\r\n\r\n").is_err());
        assert!(
            head(
                &[
                    b"HTTP/1.1 200 OK\r\nX: ".to_vec(),
                    vec![b'a'; HEAD_BYTES_MAX]
                ]
                .concat()
            )
            .is_err()
        );
    }

    #[test]
    fn chunked_body_is_the_same_however_it_is_cut() {
        let bytes = b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\nHTTP/1.1";
        for step in 1..bytes.len() {
            let (mut body, mut out, mut used) = (Body::new(Framing::Chunked), Vec::new(), 0);
            for part in bytes.chunks(step) {
                used += body.feed(part, &mut out).expect("well framed");
            }
            assert!(body.is_done());
            assert_eq!(
                (out.as_slice(), used),
                (b"hello world".as_slice(), bytes.len() - 8)
            );
        }
    }

    #[test]
    fn chunked_body_with_bad_framing_is_refused() {
        for bad in [
            "x\r\n",
            "\r\n",
            "-1\r\n",
            "+5\r\nhello\r\n",
            "5\r\nhelloX\r\n",
            "5\nhello\r\n",
        ] {
            assert!(
                Body::new(Framing::Chunked)
                    .feed(bad.as_bytes(), &mut Vec::new())
                    .is_err(),
                "{bad:?}"
            );
        }
        let long = vec![b'1'; LINE_BYTES_MAX + 1];
        assert!(
            Body::new(Framing::Chunked)
                .feed(&long, &mut Vec::new())
                .is_err()
        );
    }

    #[test]
    fn body_of_a_length_leaves_what_follows() {
        let mut body = Body::new(Framing::Length(3));
        let mut out = Vec::new();
        assert_eq!(body.feed(b"ab", &mut out), Ok(2));
        assert!(!body.is_done() && !body.may_end());
        assert_eq!(body.feed(b"cdef", &mut out), Ok(1));
        assert!(body.is_done());
        assert_eq!(out, b"abc");
    }
}
