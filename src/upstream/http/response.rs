//! The client's half of HTTP/1.1, without I/O: the head of a response, and the bytes of its body.
//! The server is not trusted: whatever leaves a doubt about where a response ends is refused, as
//! RFC 9112 lets a client do, and the connection ends. The verdict does not depend on how the
//! stream was cut into reads.
#![forbid(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;

use httparse::ParserConfig;
use memchr::memchr2;

use crate::wire::headers::is_token;

/// The whole head in bytes, the interim responses before it included.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Fields of one head.
pub const FIELDS_MAX: usize = 128;
/// Interim responses (1xx) before the response itself.
pub const INTERIM_MAX: u8 = 16;
/// An id of a session in bytes. A longer one cannot be sent back with every request.
pub const SESSION_BYTES_MAX: usize = 1024;
/// The line with the size of a chunk, its CR LF included.
pub const CHUNK_LINE_BYTES_MAX: usize = 4 * 1024;
/// All trailers of a body with the empty line behind them. They are read and thrown away.
pub const TRAILER_BYTES_MAX: usize = 16 * 1024;
/// Hexadecimal digits in the size of a chunk: those of 64 bits.
const SIZE_DIGITS_MAX: u8 = 16;

/// Why bytes are not a response. Where the next one would start is not known then: the connection
/// must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// The server named a session by an id that cannot be sent back: empty, over [`SESSION_BYTES_MAX`],
/// with other bytes than visible ASCII, or not the same in each of several fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session id is not 1 to 1,024 bytes of visible ASCII")]
pub struct OddSession;

/// How the end of the body is found (RFC 9112, 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// Content-Length, bytes; not yet compared with any limit.
    Length(u64),
    /// Transfer-Encoding: chunked.
    Chunked,
    /// The body ends with the connection.
    UntilClose,
}

/// What Content-Type says that the body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// `application/json` or `application/*+json`.
    Json,
    /// `text/event-stream`.
    Events,
    Other,
    /// No such field, or an empty one.
    Missing,
}

/// What matters of a response's head.
#[derive(Clone, PartialEq, Eq)]
pub struct Head {
    /// 200 or above: interim responses are skipped.
    pub status: u16,
    /// The connection may carry another request once the body has been read to its end.
    pub keeps_alive: bool,
    pub body: Framing,
    pub content: Content,
    /// The body has a content coding (gzip or the like), which nobody asked for. A 2xx like this is
    /// refused already; of others the status says enough.
    pub is_encoded: bool,
    /// Mcp-Session-Id.
    pub session: Option<Result<Box<[u8]>, OddSession>>,
}

/// Whoever has the id of a session may speak in it, so it is never shown.
impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = self.session.as_ref().map(|id| id.as_ref().map(|_| ".."));
        f.debug_struct("Head")
            .field("status", &self.status)
            .field("keeps_alive", &self.keeps_alive)
            .field("body", &self.body)
            .field("content", &self.content)
            .field("is_encoded", &self.is_encoded)
            .field("session", &session)
            .finish()
    }
}

/// Reads the head of one response off the front of a growing buffer. It remembers how far it has
/// looked, so that a head that comes byte by byte costs no more than one that comes at once.
#[derive(Debug, Default)]
pub struct HeadReader {
    /// Where the head begins: behind the interim ones.
    start: usize,
    /// Where its first line begins that is not whole yet.
    line: usize,
    /// No CR and no LF lies in `line..searched`.
    searched: usize,
    /// Whole lines of the head.
    lines: usize,
    interim: u8,
}

impl HeadReader {
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at what is new in `bytes`, which holds everything unread so far, from the same first
    /// byte on each call. `None`: fine so far and not complete. Otherwise the head, and how many
    /// bytes come before the body; the reader has done its work then.
    ///
    /// # Errors
    /// What is no head of HTTP/1.1 or 1.0, or more than the limits allow: as soon as the line is
    /// whole that shows it, for characters inside of a line when the head is.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
        let seen = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
        self.begins(seen)?;
        while let Some(line) = self.line(seen)? {
            if !line.is_empty() {
                continue;
            }
            let head = &seen[self.start..self.line];
            match meaning(head)? {
                Some(head) => return Ok(Some((head, self.line))),
                None if self.interim == INTERIM_MAX => {
                    return Err(Malformed("there are over 16 interim responses"));
                }
                None => {
                    self.interim += 1;
                    self.lines = 0;
                    self.start = self.line;
                    self.begins(seen)?;
                }
            }
        }
        if seen.len() == HEAD_BYTES_MAX {
            return Err(Malformed("the head is over 64 KiB"));
        }
        Ok(None)
    }

    /// What speaks another protocol is known by its first bytes, and may never send a line.
    fn begins(&self, seen: &[u8]) -> Result<(), Malformed> {
        const BEGIN: &[u8] = b"HTTP/1.";
        let begin = &seen[self.start..];
        let length = begin.len().min(BEGIN.len());
        if begin[..length] != BEGIN[..length] {
            return Err(Malformed("the response is not HTTP/1.1 or HTTP/1.0"));
        }
        Ok(())
    }

    /// The next whole line without its CR LF. What the parser would let pass is refused here: lines
    /// that end in LF alone. It knows no CR inside of a line and no folded lines, but would say so
    /// only at the end of the head.
    fn line<'a>(&mut self, seen: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        let Some(found) = memchr2(b'\r', b'\n', &seen[self.searched..]) else {
            self.searched = seen.len();
            return Ok(None);
        };
        let end = self.searched + found;
        self.searched = end;
        match seen[end..] {
            [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] => {}
            [b'\r', ..] => return Err(Malformed("a CR stands without its LF in the head")),
            _ => return Err(Malformed("a line of the head does not end in CR LF")),
        }
        let line = &seen[self.line..end];
        if matches!(line, [b' ' | b'\t', ..]) {
            return Err(Malformed("a line of the head is folded"));
        }
        // The status line is none, and neither is the empty line.
        if self.lines > FIELDS_MAX && !line.is_empty() {
            return Err(Malformed("there are over 128 header fields"));
        }
        self.lines += 1;
        self.line = end + 2;
        self.searched = self.line;
        Ok(Some(line))
    }
}

/// What a whole head means. `None`: it is an interim response.
fn meaning(bytes: &[u8]) -> Result<Option<Head>, Malformed> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut read = httparse::Response::new(&mut []);
    let end = ParserConfig::default()
        .parse_response_with_uninit_headers(&mut read, bytes, &mut fields)
        .map_err(not_http)?;
    let (httparse::Status::Complete(end), Some(minor), Some(status)) =
        (end, read.version, read.code)
    else {
        return Err(Malformed("the head has no end"));
    };
    if end != bytes.len() {
        return Err(Malformed("the head ends twice"));
    }
    match status {
        0..=99 => return Err(Malformed("the status is below 100")),
        101 => return Err(Malformed("the server switches to another protocol")),
        102..=199 | 100 => return Ok(None),
        _ => {}
    }

    let mut facts = Facts::default();
    for field in read.headers.iter() {
        facts.add(field.name, field.value)?;
    }
    let named = match (facts.is_chunked, facts.length) {
        (true, Some(_)) => {
            return Err(Malformed(
                "there are both Content-Length and Transfer-Encoding",
            ));
        }
        (true, None) if minor == 0 => {
            return Err(Malformed("Transfer-Encoding stands in HTTP/1.0"));
        }
        (true, None) => Framing::Chunked,
        (false, Some(length)) => Framing::Length(length),
        (false, None) => Framing::UntilClose,
    };
    // These two have no body, whatever their fields say (RFC 9112, 6.3).
    let has_none = matches!(status, 204 | 304);
    let body = if has_none { Framing::None } else { named };
    let is_bodiless = matches!(body, Framing::None | Framing::Length(0));
    if facts.is_encoded && status < 300 && !is_bodiless {
        return Err(Malformed(
            "the body has a content coding, which was not asked for",
        ));
    }
    // One that says that it has a body all the same may send it.
    let is_clear = !has_none || matches!(named, Framing::Length(0) | Framing::UntilClose);
    Ok(Some(Head {
        status,
        keeps_alive: minor == 1 && !facts.closes && body != Framing::UntilClose && is_clear,
        body,
        content: facts.content.unwrap_or(Content::Missing),
        is_encoded: facts.is_encoded,
        session: facts.session,
    }))
}

fn not_http(error: httparse::Error) -> Malformed {
    use httparse::Error::*;
    Malformed(match error {
        HeaderName => "a header name is not a token directly before its colon",
        HeaderValue => "a control character stands in a header value",
        NewLine => "a line of the head does not end in CR LF",
        Status | Token => "the status line is not HTTP/x.y SP status",
        TooManyHeaders => "there are over 128 header fields",
        Version => "the response is not HTTP/1.1 or HTTP/1.0",
    })
}

/// What the fields of a head say, one after another.
#[derive(Default)]
struct Facts {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    content: Option<Content>,
    is_encoded: bool,
    session: Option<Result<Box<[u8]>, OddSession>>,
}

impl Facts {
    fn add(&mut self, name: &str, value: &[u8]) -> Result<(), Malformed> {
        // Most names that a server sends are told apart by their length.
        match name.len() {
            10 if name.eq_ignore_ascii_case("connection") => {
                self.closes |= options(value).any(|option| option.eq_ignore_ascii_case(b"close"));
            }
            12 if name.eq_ignore_ascii_case("content-type") => {
                let content = content(value);
                if self.content.is_some_and(|other| other != content) {
                    return Err(Malformed("there are two content types"));
                }
                self.content = Some(content);
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                let length = number(value).ok_or(Malformed("Content-Length is not a number"))?;
                if self.length.is_some_and(|other| other != length) {
                    return Err(Malformed("there are two lengths"));
                }
                self.length = Some(length);
            }
            14 if name.eq_ignore_ascii_case("mcp-session-id") => {
                let id = session(value);
                let is_one = self.session.as_ref().is_none_or(|other| *other == id);
                self.session = Some(if is_one { id } else { Err(OddSession) });
            }
            16 if name.eq_ignore_ascii_case("content-encoding") => {
                self.is_encoded |= options(value)
                    .any(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"));
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed("Transfer-Encoding is not chunked, once"));
                }
                self.is_chunked = true;
            }
            _ => {}
        }
        Ok(())
    }
}

/// The members of a list of tokens, which knows no quotes.
fn options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Digits and nothing else, below 2^64.
fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

fn session(value: &[u8]) -> Result<Box<[u8]>, OddSession> {
    let is_sound = (1..=SESSION_BYTES_MAX).contains(&value.len())
        && value.iter().all(|byte| byte.is_ascii_graphic());
    is_sound.then(|| value.into()).ok_or(OddSession)
}

/// Parameters do not matter: JSON and events are UTF-8, and are checked to be.
fn content(value: &[u8]) -> Content {
    let essence = value.split(|byte| *byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii_end();
    let begin = b"application/";
    if value.is_empty() {
        Content::Missing
    } else if essence.eq_ignore_ascii_case(b"text/event-stream") {
        Content::Events
    } else if let Some((kind, subtype)) = essence.split_at_checked(begin.len())
        && kind.eq_ignore_ascii_case(begin)
        && is_json(subtype)
    {
        Content::Json
    } else {
        Content::Other
    }
}

fn is_json(subtype: &[u8]) -> bool {
    let suffix = b"+json";
    let split = subtype.len().checked_sub(suffix.len());
    subtype.eq_ignore_ascii_case(b"json")
        || split.is_some_and(|at| {
            subtype[at..].eq_ignore_ascii_case(suffix) && is_token(&subtype[..at])
        })
}

/// Gives the bytes of one body out of what was read from the connection.
#[derive(Debug)]
pub struct BodyReader {
    state: State,
    /// Bytes that are still to come of the body, or of the chunk.
    left: u64,
    /// Digits of the size so far.
    digits: u8,
    /// Bytes of the line with a chunk's size, or of all trailers.
    line_bytes: usize,
}

/// What the next byte may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Length,
    UntilClose,
    /// A digit of a chunk's size, or what ends it.
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The first byte of a trailer, or the CR of the empty line that ends the body.
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
    Broken,
}

impl BodyReader {
    pub fn new(framing: Framing) -> Self {
        let (state, left) = match framing {
            Framing::None | Framing::Length(0) => (State::Done, 0),
            Framing::Length(length) => (State::Length, length),
            Framing::Chunked => (State::Size, 0),
            Framing::UntilClose => (State::UntilClose, 0),
        };
        Self {
            state,
            left,
            digits: 0,
            line_bytes: 0,
        }
    }

    /// Gives what `bytes` holds of the body to `out`, in as many pieces as it has (none of them
    /// empty). Returns how many bytes belong to the body and its framing: all, unless the body is
    /// done before.
    ///
    /// # Errors
    /// Chunks that are not exactly as RFC 9112, 7.1 has them, with white space only inside of
    /// extensions, or with longer extensions and trailers than the limits allow; and each call
    /// after that. What came before has been given out.
    pub fn feed(&mut self, bytes: &[u8], mut out: impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            let rest = &bytes[at..];
            at += match self.state {
                State::Length | State::Data => {
                    // What does not fit is more than there is.
                    let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                    let piece = &rest[..rest.len().min(left)];
                    out(piece);
                    self.left -= piece.len() as u64;
                    if self.left == 0 {
                        self.state = match self.state {
                            State::Length => State::Done,
                            _ => State::DataCr,
                        };
                    }
                    piece.len()
                }
                State::UntilClose => {
                    out(rest);
                    rest.len()
                }
                _ => {
                    if let Err(malformed) = self.step(rest[0]) {
                        self.state = State::Broken;
                        return Err(malformed);
                    }
                    1
                }
            };
        }
        Ok(at)
    }

    /// The body has been read to its end. One that ends with the connection is never done before
    /// that.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The connection has ended: is the body whole?
    pub fn end(&mut self) -> bool {
        if self.state == State::UntilClose {
            self.state = State::Done;
        }
        self.is_done()
    }

    /// Takes one byte of the framing of chunks.
    fn step(&mut self, byte: u8) -> Result<(), Malformed> {
        match self.state {
            State::Size | State::Extension | State::SizeLf => self.size_byte(byte),
            State::DataCr => self.expect(byte, b'\r', State::DataLf),
            State::DataLf => self.expect(byte, b'\n', State::Size),
            State::TrailerStart | State::Trailer | State::TrailerLf | State::EndLf => {
                self.trailer_byte(byte)
            }
            State::Length | State::UntilClose | State::Data | State::Done => Ok(()),
            State::Broken => Err(Malformed("the body was malformed before")),
        }
    }

    fn expect(&mut self, byte: u8, wanted: u8, state: State) -> Result<(), Malformed> {
        if byte != wanted {
            return Err(Malformed("a line of a chunked body does not end in CR LF"));
        }
        self.state = state;
        Ok(())
    }

    fn size_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        self.line_bytes += 1;
        if self.line_bytes > CHUNK_LINE_BYTES_MAX {
            return Err(Malformed("the line with a chunk's size is over 4 KiB"));
        }
        match (self.state, byte) {
            (State::SizeLf, _) => {
                let has_data = self.left > 0;
                let next = if has_data {
                    State::Data
                } else {
                    State::TrailerStart
                };
                self.expect(byte, b'\n', next)?;
                (self.digits, self.line_bytes) = (0, 0);
            }
            (State::Extension, _) if is_text(byte) => {}
            (State::Size, _) if byte.is_ascii_hexdigit() && self.digits < SIZE_DIGITS_MAX => {
                self.digits += 1;
                // Sixteen digits are 64 bits: none is lost.
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                self.left = self.left << 4 | u64::from(digit);
            }
            (_, b'\r') if self.digits > 0 => self.state = State::SizeLf,
            (State::Size, b';') if self.digits > 0 => self.state = State::Extension,
            _ => return Err(Malformed("the size of a chunk is not 1 to 16 digits")),
        }
        Ok(())
    }

    fn trailer_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        self.line_bytes += 1;
        if self.line_bytes > TRAILER_BYTES_MAX {
            return Err(Malformed("the trailers are over 16 KiB"));
        }
        match (self.state, byte) {
            (State::EndLf, _) => return self.expect(byte, b'\n', State::Done),
            (State::TrailerLf, _) => return self.expect(byte, b'\n', State::TrailerStart),
            (State::TrailerStart, b'\r') => self.state = State::EndLf,
            (State::Trailer, b'\r') => self.state = State::TrailerLf,
            (State::TrailerStart, b' ' | b'\t') => {
                return Err(Malformed("a trailer is folded"));
            }
            _ if is_text(byte) => self.state = State::Trailer,
            _ => return Err(Malformed("a control character stands in a trailer")),
        }
        Ok(())
    }
}

/// What a trailer or the extension of a chunk may hold (RFC 9110, 5.5).
const fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
#[allow(unreachable_pub)]
#[path = "../../../tests/fuzz/src/reference/response.rs"]
mod reference;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The head that ends the bytes.
    #[track_caller]
    fn head(bytes: &str) -> Head {
        let (head, used) = both(bytes.as_bytes()).unwrap().expect("a whole head");
        assert_eq!(used, bytes.len());
        head
    }

    /// The head of a 200 with these fields.
    #[track_caller]
    fn fields(fields: &[&str]) -> Head {
        let lines: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        head(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"))
    }

    #[track_caller]
    fn refused_fields(fields: &[&str], why: &'static str) {
        let lines: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        refused(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), why);
    }

    #[track_caller]
    fn refused(bytes: &str, why: &'static str) {
        assert_eq!(both(bytes.as_bytes()), Err(Malformed(why)), "{bytes:?}");
    }

    /// Read at once and byte by byte, with one verdict.
    #[track_caller]
    fn both(bytes: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
        let whole = HeadReader::new().read(bytes);
        let mut reader = HeadReader::new();
        let mut dripped = Ok(None);
        for end in 0..=bytes.len() {
            dripped = reader.read(&bytes[..end]);
            if !matches!(dripped, Ok(None)) {
                break;
            }
        }
        assert_eq!(dripped, whole);
        whole
    }

    #[test]
    fn a_head_is_read_to_its_end_and_no_further() {
        let text =
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        let (head, used) = both(text).unwrap().unwrap();
        assert_eq!(&text[used..], b"{}");
        assert_eq!(head.status, 200);
        assert_eq!(head.body, Framing::Length(2));
        assert_eq!(head.content, Content::Json);
        assert!(head.keeps_alive && !head.is_encoded);
        assert_eq!(head.session, None);
        for end in 0..used {
            assert_eq!(both(&text[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn the_status_line_is_as_the_standard_has_it_but_for_a_blank_that_servers_forget() {
        for line in [
            "HTTP/1.1 200 OK",
            "HTTP/1.1 200 ",
            "HTTP/1.1 200",
            "HTTP/1.1 299 \u{e9} \t!",
            "HTTP/1.0 200 OK",
        ] {
            let head = head(&format!("{line}\r\n\r\n"));
            assert!(head.status < 300, "{line}");
        }
        assert_eq!(head("HTTP/1.1 999 So\r\n\r\n").status, 999);
        let version = "the response is not HTTP/1.1 or HTTP/1.0";
        for line in [
            "HTTP/2.0 200 OK",
            "HTTP/1.2 200 OK",
            "HTTP/1.10 200 OK",
            "http/1.1 200 OK",
            " HTTP/1.1 200 OK",
            "\r\nHTTP/1.1 200 OK",
            "220 mail.example ESMTP",
            "\x15\x03\x01\0\x02\x02F",
        ] {
            let is_read = HeadReader::new().read(format!("{line}\r\n\r\n").as_bytes());
            assert!(is_read.is_err(), "{line}");
        }
        refused("HTTP/2.0 200 OK\r\n\r\n", version);
        refused("220 mail.example ESMTP", version);
        refused("\r\n", version);
        let status = "the status line is not HTTP/x.y SP status";
        for line in [
            "20 OK",
            "2000 OK",
            "+20 OK",
            " 200 OK",
            "2x0 OK",
            "200\tOK",
            "200 O\x01K",
        ] {
            refused(&format!("HTTP/1.1 {line}\r\n\r\n"), status);
        }
        refused("HTTP/1.1 099 Low\r\n\r\n", "the status is below 100");
    }

    #[test]
    fn what_speaks_another_protocol_is_known_before_it_ends_a_line() {
        let refusal = Err(Malformed("the response is not HTTP/1.1 or HTTP/1.0"));
        assert_eq!(HeadReader::new().read(b"\x15\x03"), refusal);
        assert_eq!(HeadReader::new().read(b"HTTX"), refusal);
        assert_eq!(HeadReader::new().read(b"HTTP/"), Ok(None));
        let interim = b"HTTP/1.1 100 Continue\r\n\r\nS";
        assert_eq!(HeadReader::new().read(interim), refusal);
    }

    #[test]
    fn interim_responses_are_skipped_up_to_a_bound() {
        let interim = "HTTP/1.1 100 Continue\r\nContent-Length: x\r\n\r\n";
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nMcp-Session-Id: no\r\n\r\n";
        let last = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
        let answer = head(&format!("{interim}{hints}{last}"));
        assert_eq!((answer.status, answer.session), (202, None));
        assert_eq!(head(&(interim.repeat(16) + last)).status, 202);
        let over = "there are over 16 interim responses";
        refused(&interim.repeat(17), over);
        assert_eq!(both(interim.repeat(16).as_bytes()), Ok(None));
        let upgrade = "the server switches to another protocol";
        refused("HTTP/1.1 101 Switching Protocols\r\n\r\n", upgrade);
        // The bounds of a head are those of each one for fields, and of all together for bytes.
        let many = format!("HTTP/1.1 100 -\r\n{}\r\n", "a: b\r\n".repeat(128));
        assert_eq!(head(&format!("{many}{many}{last}")).status, 202);
    }

    #[test]
    fn lines_end_in_cr_lf() {
        let bare_lf = "a line of the head does not end in CR LF";
        let bare_cr = "a CR stands without its LF in the head";
        refused("HTTP/1.1 200 OK\n", bare_lf);
        refused("HTTP/1.1 200 OK\r\nA: b\n", bare_lf);
        refused("HTTP/1.1 200 OK\r\nA: b\r\n\n", bare_lf);
        refused("HTTP/1.1 200 OK\rX", bare_cr);
        refused("HTTP/1.1 200 OK\r\nA: b\rC: d\r\n", bare_cr);
        refused("HTTP/1.1 200 OK\r\nA: b\r\r\n", bare_cr);
        refused("HTTP/1.1 200 OK\r\nA: b\r\n\rX", bare_cr);
    }

    #[test]
    fn fields_are_a_token_a_colon_and_text() {
        let folded = "a line of the head is folded";
        refused_fields(&["A: b", " c"], folded);
        refused_fields(&["A: b", "\tc"], folded);
        refused_fields(&[" A: b"], folded);
        let name = "a header name is not a token directly before its colon";
        for line in [
            "A : b",
            "A\t: b",
            ": b",
            "A",
            "A b: c",
            "\u{e9}: b",
            "A\0: b",
            "(a): b",
        ] {
            refused_fields(&[line], name);
        }
        let value = "a control character stands in a header value";
        for line in ["A: b\0", "A:\0", "A: \x0b", "A: b\x7f", "A: \x1b[0m"] {
            refused_fields(&[line], value);
        }
        for byte in (0..=8).chain(10..=31).chain([127]) {
            for room in 0..70 {
                let filled = format!("A:{}{}b", "x".repeat(room), char::from(byte));
                let bytes = format!("HTTP/1.1 200 OK\r\n{filled}\r\n\r\n");
                assert!(
                    HeadReader::new().read(bytes.as_bytes()).is_err(),
                    "{filled:?}"
                );
            }
        }
        let head = fields(&["A:", "B:\t \t", "!#$%&'*+-.^_`|~09aZ: \u{e9}\t b", "a: b:c"]);
        assert_eq!(head.body, Framing::UntilClose);
    }

    #[test]
    fn a_head_has_at_most_128_fields_and_64_kib() {
        let begin = "HTTP/1.1 200 OK\r\n";
        head(&format!("{begin}{}\r\n", "a: b\r\n".repeat(128)));
        let over = "there are over 128 header fields";
        refused(&format!("{begin}{}", "a: b\r\n".repeat(129)), over);
        let filled = |bytes: usize| {
            let rest = bytes - begin.len() - "A: \r\n\r\n".len();
            format!("{begin}A: {}\r\n\r\n", "x".repeat(rest))
        };
        head(&filled(HEAD_BYTES_MAX));
        refused(&filled(HEAD_BYTES_MAX + 1), "the head is over 64 KiB");
        let interim = "HTTP/1.1 100 -\r\n\r\n";
        head(&(interim.to_owned() + &filled(HEAD_BYTES_MAX - interim.len())));
        let over = interim.to_owned() + &filled(HEAD_BYTES_MAX + 1 - interim.len());
        refused(&over, "the head is over 64 KiB");
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_looked_at_once() {
        let mut reader = HeadReader::new();
        let mut text = b"HTTP/1.1 200 OK\r\nA: ".to_vec();
        for _ in 0..100 {
            assert_eq!(reader.read(&text), Ok(None));
            text.push(b'x');
            assert_eq!(reader.searched, text.len() - 1);
            assert_eq!(reader.line, 17);
        }
    }

    #[test]
    fn what_frames_the_body_is_unambiguous() {
        assert_eq!(fields(&[]).body, Framing::UntilClose);
        assert_eq!(fields(&["Content-Length: 0"]).body, Framing::Length(0));
        let max = fields(&["content-length: 18446744073709551615"]);
        assert_eq!(max.body, Framing::Length(u64::MAX));
        let twice = fields(&["Content-Length: 7", "content-length:\t07 "]);
        assert_eq!(twice.body, Framing::Length(7));
        assert_eq!(
            fields(&["Transfer-Encoding: CHUNKED"]).body,
            Framing::Chunked
        );
        let number = "Content-Length is not a number";
        for length in [
            "",
            "+1",
            "-1",
            "1,1",
            "1 1",
            "0x1",
            "1.0",
            "18446744073709551616",
            "\u{b2}",
        ] {
            refused_fields(&[&format!("Content-Length: {length}")], number);
        }
        let lengths = "there are two lengths";
        refused_fields(&["Content-Length: 1", "Content-Length: 2"], lengths);
        let both = "there are both Content-Length and Transfer-Encoding";
        refused_fields(&["Content-Length: 1", "Transfer-Encoding: chunked"], both);
        refused_fields(&["Transfer-Encoding: chunked", "Content-Length: 0"], both);
        let coding = "Transfer-Encoding is not chunked, once";
        for other in [
            "",
            "gzip",
            "identity",
            "gzip, chunked",
            "chunked, chunked",
            "chunked;q=1",
            "xchunked",
            "\"chunked\"",
        ] {
            refused_fields(&[&format!("Transfer-Encoding: {other}")], coding);
        }
        refused_fields(
            &["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
            coding,
        );
        let old = "Transfer-Encoding stands in HTTP/1.0";
        refused("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", old);
    }

    #[test]
    fn two_statuses_have_no_body_and_a_connection_that_could_bring_one_is_not_kept() {
        for status in [204, 304] {
            for (field, keeps_alive) in [
                ("A: b", true),
                ("Content-Length: 0", true),
                ("Content-Length: 5", false),
                ("Transfer-Encoding: chunked", false),
            ] {
                let head = head(&format!("HTTP/1.1 {status} -\r\n{field}\r\n\r\n"));
                assert_eq!(
                    (head.body, head.keeps_alive),
                    (Framing::None, keeps_alive),
                    "{field}"
                );
            }
        }
        for status in [200, 202, 205, 303, 400, 404, 500, 503] {
            let head = head(&format!("HTTP/1.1 {status} -\r\n\r\n"));
            assert_eq!((head.body, head.keeps_alive), (Framing::UntilClose, false));
        }
    }

    #[test]
    fn a_connection_is_kept_where_both_sides_would() {
        let length = "Content-Length: 1";
        assert!(fields(&[length]).keeps_alive);
        assert!(fields(&[length, "Connection: keep-alive"]).keeps_alive);
        assert!(fields(&[length, "Connection: closed, x-close"]).keeps_alive);
        assert!(fields(&["Transfer-Encoding: chunked", "Connection:"]).keeps_alive);
        for close in [
            "close",
            "Close",
            "x,close",
            " , CLOSE\t, y",
            "keep-alive, close",
        ] {
            assert!(
                !fields(&[length, &format!("Connection: {close}")]).keeps_alive,
                "{close}"
            );
        }
        assert!(!fields(&[length, "Connection: close", "Connection: keep-alive"]).keeps_alive);
        let old = head("HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n");
        assert!(!old.keeps_alive);
    }

    #[test]
    fn the_content_type_says_json_or_events_whatever_its_parameters() {
        for (kind, content) in [
            ("application/json", Content::Json),
            ("Application/JSON; charset=utf-8", Content::Json),
            ("application/json\t;x", Content::Json),
            ("application/problem+json", Content::Json),
            ("APPLICATION/a.b-c+JSON;v=1", Content::Json),
            ("text/event-stream", Content::Events),
            ("Text/Event-Stream ; charset=\"utf-8\"", Content::Events),
            ("application/+json", Content::Other),
            ("application/a b+json", Content::Other),
            ("application/jsonx", Content::Other),
            ("application/x-ndjson", Content::Other),
            ("application/json, text/event-stream", Content::Other),
            ("text/json", Content::Other),
            ("image/svg+json", Content::Other),
            ("text/event-streams", Content::Other),
            ("text/plain", Content::Other),
            ("application/", Content::Other),
            (";", Content::Other),
            ("", Content::Missing),
        ] {
            assert_eq!(
                fields(&[&format!("Content-Type: {kind}")]).content,
                content,
                "{kind}"
            );
        }
        assert_eq!(fields(&[]).content, Content::Missing);
        let same = [
            "Content-Type: application/json",
            "Content-Type: application/json; a=b",
        ];
        assert_eq!(fields(&same).content, Content::Json);
        let types = "there are two content types";
        refused_fields(
            &[
                "Content-Type: application/json",
                "Content-Type: text/event-stream",
            ],
            types,
        );
        refused_fields(&["Content-Type: text/html", "Content-Type:"], types);
    }

    #[test]
    fn a_body_with_a_content_coding_is_refused_where_it_would_be_read() {
        let gzip = "Content-Encoding: gzip";
        let coded = "the body has a content coding, which was not asked for";
        refused_fields(&[gzip], coded);
        refused_fields(
            &["Content-Encoding: identity, br", "Content-Length: 1"],
            coded,
        );
        refused_fields(&["Content-Encoding: identity", gzip], coded);
        let plain = fields(&["Content-Encoding: Identity,", "Content-Encoding:"]);
        assert!(!plain.is_encoded);
        assert!(fields(&[gzip, "Content-Length: 0"]).is_encoded);
        for status in [204, 300, 404, 500] {
            let head = head(&format!("HTTP/1.1 {status} -\r\n{gzip}\r\n\r\n"));
            assert!(head.is_encoded, "{status}");
        }
    }

    #[test]
    fn the_session_is_what_can_be_sent_back() {
        let named = |id: &str| fields(&[&format!("MCP-SESSION-ID: {id}")]).session;
        assert_eq!(named("!s-1~"), Some(Ok(b"!s-1~"[..].into())));
        let longest = "x".repeat(1024);
        assert_eq!(named(&longest), Some(Ok(longest.as_bytes().into())));
        for odd in ["", "a b", "a\tb", "\u{e9}", &"x".repeat(1025)] {
            assert_eq!(named(odd), Some(Err(OddSession)), "{odd}");
        }
        let twice = fields(&["Mcp-Session-Id: a", "Mcp-Session-Id: a"]);
        assert_eq!(twice.session, Some(Ok(b"a"[..].into())));
        let two = [
            "Mcp-Session-Id: a",
            "Mcp-Session-Id: b",
            "Mcp-Session-Id: b",
        ];
        assert_eq!(fields(&two).session, Some(Err(OddSession)));
    }

    #[test]
    fn the_session_is_not_shown() {
        let head = fields(&["Mcp-Session-Id: secret"]);
        let shown = format!("{head:?}");
        assert!(
            !shown.contains("secret") && shown.contains("status: 200"),
            "{shown}"
        );
        let bytes = format!("{:?}", b"secret");
        assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
    }

    /// What a body gives, and how many bytes are of it; `None` while it is not done.
    type Read = Result<(Vec<u8>, Option<usize>), (Vec<u8>, Malformed)>;

    fn fed<'a>(framing: Framing, pieces: impl IntoIterator<Item = &'a [u8]>) -> Read {
        let mut reader = BodyReader::new(framing);
        let (mut body, mut used) = (Vec::new(), 0);
        for piece in pieces {
            let fed = reader.feed(piece, |bytes| {
                assert!(!bytes.is_empty());
                body.extend_from_slice(bytes);
            });
            match fed {
                Ok(fed) => {
                    used += fed;
                    assert!(fed == piece.len() || reader.is_done());
                }
                Err(malformed) => {
                    let again = reader.feed(b"\r\n0\r\n\r\n", |_| panic!("more of the body"));
                    assert!(again.is_err() && !reader.is_done() && !reader.end());
                    return Err((body, malformed));
                }
            }
        }
        let is_done = reader.is_done();
        let end = reader.end();
        assert_eq!(end, is_done || framing == Framing::UntilClose);
        assert_eq!(reader.is_done(), end);
        Ok((body, is_done.then_some(used)))
    }

    /// At once and byte by byte.
    #[track_caller]
    fn read(framing: Framing, bytes: &[u8]) -> Read {
        let whole = fed(framing, [bytes]);
        assert_eq!(fed(framing, bytes.chunks(1)), whole);
        whole
    }

    #[track_caller]
    fn chunked(bytes: &str) -> (Vec<u8>, Option<usize>) {
        read(Framing::Chunked, bytes.as_bytes()).unwrap()
    }

    #[track_caller]
    fn refused_chunks(bytes: &str, why: &'static str) {
        let refusal = read(Framing::Chunked, bytes.as_bytes()).unwrap_err();
        assert_eq!(refusal.1, Malformed(why), "{bytes:?}");
    }

    #[test]
    fn a_body_without_chunks_ends_where_the_head_said() {
        assert_eq!(read(Framing::None, b"next"), Ok((vec![], Some(0))));
        assert_eq!(read(Framing::Length(0), b"next"), Ok((vec![], Some(0))));
        assert_eq!(read(Framing::Length(3), b"ab"), Ok((b"ab".to_vec(), None)));
        let whole = Ok((b"abc".to_vec(), Some(3)));
        assert_eq!(read(Framing::Length(3), b"abcnext"), whole);
        let endless = Ok((b"abc".to_vec(), None));
        assert_eq!(read(Framing::Length(u64::MAX), b"abc"), endless);
        assert_eq!(read(Framing::UntilClose, b"abc"), endless);
        let mut empty = BodyReader::new(Framing::UntilClose);
        assert!(!empty.is_done() && empty.end() && empty.is_done());
        assert_eq!(empty.feed(b"late", |_| panic!("no body")), Ok(0));
        assert!(!BodyReader::new(Framing::Length(1)).end());
        assert!(!BodyReader::new(Framing::Chunked).end());
        assert!(BodyReader::new(Framing::None).end());
    }

    #[test]
    fn chunks_are_joined_and_the_next_response_is_left() {
        let text = "5\r\nhello\r\n6;x=\"\t\u{e9}\"\r\n world\r\n0\r\nT: v\r\n\r\nHTTP/1.1";
        let body = (b"hello world".to_vec(), Some(text.len() - 8));
        assert_eq!(chunked(text), body);
        assert_eq!(chunked("0\r\n\r\n"), (vec![], Some(5)));
        assert_eq!(chunked("000;\r\n\r\n"), (vec![], Some(8)));
        let framing = chunked("C\r\n\r\n0\r\n\r\n5\r\nab\r\n0\r\n\r\n");
        assert_eq!(framing, (b"\r\n0\r\n\r\n5\r\nab".to_vec(), Some(22)));
        for end in 0..text.len() - 8 {
            let part = read(Framing::Chunked, &text.as_bytes()[..end]).unwrap();
            assert_eq!(part.1, None, "{end}");
        }
    }

    #[test]
    fn the_size_of_a_chunk_is_1_to_16_digits() {
        assert_eq!(
            chunked("000000000000000a\r\n0123456789\r\n0\r\n\r\n").1,
            Some(35)
        );
        assert_eq!(chunked("FFFFffffFFFFffff\r\nx"), (b"x".to_vec(), None));
        let size = "the size of a chunk is not 1 to 16 digits";
        for bad in [
            "\r\n",
            ";a\r\n",
            "00000000000000001\r\n",
            "10000000000000000\r\n",
            "+1\r\n",
            "-1\r\n",
            "0x1\r\n",
            " 1\r\n",
            "1 \r\n",
            "1\t;a\r\n",
            "g\r\n",
            "1,1\r\n",
            "1_0\r\n",
            "1\0\r\n",
            "1;\0\r\n",
            "1;\x7f\r\n",
            "1\n",
            "1;a\n",
        ] {
            refused_chunks(bad, size);
        }
    }

    #[test]
    fn every_line_of_a_chunked_body_ends_in_cr_lf() {
        let line = "a line of a chunked body does not end in CR LF";
        for bad in [
            "1\rx",
            "1;a\rx",
            "1\r\nx\n",
            "1\r\nxy",
            "1\r\nx\rx",
            "1\r\nx1\r\n",
            "0\r\n\rx",
            "0\r\nT: v\rx",
        ] {
            refused_chunks(bad, line);
        }
        let control = "a control character stands in a trailer";
        for bad in ["0\r\n\n", "0\r\nT: v\n", "0\r\n\0", "0\r\nT\x7f"] {
            refused_chunks(bad, control);
        }
        refused_chunks("0\r\nT: v\r\n w\r\n", "a trailer is folded");
        refused_chunks("0\r\n\tT: v\r\n", "a trailer is folded");
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let line = |bytes: usize| format!("1;{}\r\n", "x".repeat(bytes - 4));
        let text = |line: &str| format!("{line}a\r\n{line}b\r\n0\r\n\r\n");
        assert_eq!(chunked(&text(&line(CHUNK_LINE_BYTES_MAX))).0, b"ab");
        let over = "the line with a chunk's size is over 4 KiB";
        refused_chunks(&text(&line(CHUNK_LINE_BYTES_MAX + 1)), over);
        let trailers = |bytes: usize| format!("0\r\nA: b\r\nT: {}\r\n\r\n", "x".repeat(bytes - 13));
        assert!(chunked(&trailers(TRAILER_BYTES_MAX)).1.is_some());
        let over = "the trailers are over 16 KiB";
        refused_chunks(&trailers(TRAILER_BYTES_MAX + 1), over);
        refused_chunks(&format!("0\r\n{}", "T: v\r\n".repeat(2731)), over);
    }

    #[test]
    fn what_came_before_a_fault_was_given_out() {
        let read = read(Framing::Chunked, b"3\r\nabc\r\n2\r\nde!");
        let why = Malformed("a line of a chunked body does not end in CR LF");
        assert_eq!(read, Err((b"abcde".to_vec(), why)));
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    const BEGINS: &[&str] = &[
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 404 Not Found\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 204\r\n",
        "HTTP/1.1 ",
    ];
    const HEAD_PIECES: &[&str] = &[
        "HTTP/1.1 200 OK\r\n",
        "content-length: 3\r\n",
        "Content-Length: 1\r\n",
        "transfer-encoding: chunked\r\n",
        "Connection: close\r\n",
        "content-type: text/event-stream\r\n",
        "content-type: application/json\r\n",
        "content-encoding: gzip\r\n",
        "mcp-session-id: a\r\n",
        "mcp-session-id: \r\n",
        "a: b\r\n",
        "\r\n\r\n",
        "\r",
        "\n",
        " ",
        ":",
    ];
    const BODY_PIECES: &[&str] = &[
        "3\r\nabc\r\n",
        "2\r\nab",
        "1;x\r\n.\r\n",
        "0\r\n",
        "0\r\n\r\n",
        "T: v\r\n",
        "\r\n",
        "\r",
        "\n",
        " ",
        "\0",
        "f",
    ];

    fn nearly_a_response() -> impl Strategy<Value = Vec<u8>> {
        let pieces = |of: &'static [&str], most: usize| {
            let pieces = prop::collection::vec(prop::sample::select(of), 0..most);
            pieces.prop_map(|pieces| pieces.concat())
        };
        let begin = prop::sample::select(BEGINS);
        let any_head = (begin, pieces(HEAD_PIECES, 8)).prop_map(|(a, b)| format!("{a}{b}\r\n"));
        let head = prop_oneof![any_head, Just(CHUNKED.to_owned())];
        let text = (head, pieces(BODY_PIECES, 8)).prop_map(|(head, body)| head + &body);
        let noise = prop::option::weighted(0.3, any::<prop::sample::Index>());
        (text, noise, 0..8).prop_map(|(text, noise, bit)| {
            let mut bytes = text.into_bytes();
            if let Some(noise) = noise {
                let at = noise.index(bytes.len());
                bytes[at] ^= 1u8 << bit;
            }
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn a_response_is_what_the_reference_reads_however_it_is_cut(
            bytes in nearly_a_response(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let mut reader = HeadReader::new();
            let mut verdict = Ok(None);
            for cut in &cuts {
                verdict = reader.read(&bytes[..*cut]);
                if !matches!(verdict, Ok(None)) {
                    break;
                }
            }
            prop_assert_eq!(&verdict, &both(&bytes));
            let expected = reference::head(&bytes);
            let (head, used) = match verdict {
                Ok(Some(whole)) => whole,
                Ok(None) => {
                    prop_assert_eq!(expected, reference::Verdict::More);
                    return Ok(());
                }
                Err(_) => {
                    prop_assert_eq!(expected, reference::Verdict::Refused);
                    return Ok(());
                }
            };
            let same = reference::Head {
                status: head.status,
                keeps_alive: head.keeps_alive,
                body: match head.body {
                    Framing::None => reference::Framing::None,
                    Framing::Length(length) => reference::Framing::Length(length),
                    Framing::Chunked => reference::Framing::Chunked,
                    Framing::UntilClose => reference::Framing::UntilClose,
                },
                content: match head.content {
                    Content::Json => reference::Content::Json,
                    Content::Events => reference::Content::Events,
                    Content::Other => reference::Content::Other,
                    Content::Missing => reference::Content::Missing,
                },
                is_encoded: head.is_encoded,
                session: head.session.map(|id| id.ok().map(Vec::from)),
            };
            let (body, end) = reference::body(&same.body, &bytes[used..]);
            prop_assert_eq!(expected, reference::Verdict::Whole(same, used));

            cuts.retain(|cut| *cut > used);
            let starts = std::iter::once(used).chain(cuts.iter().copied());
            let pieces: Vec<_> = starts.zip(&cuts).map(|(from, to)| &bytes[from..*to]).collect();
            let read = fed(head.body, pieces);
            prop_assert_eq!(&read, &fed(head.body, [&bytes[used..]]));
            prop_assert_eq!(&read, &fed(head.body, bytes[used..].chunks(1)));
            match read {
                Err((got, _)) => prop_assert_eq!((got, reference::Verdict::Refused), (body, end)),
                Ok((got, None)) => prop_assert_eq!((got, reference::Verdict::More), (body, end)),
                Ok((got, Some(used))) => {
                    prop_assert_eq!((got, reference::Verdict::Whole((), used)), (body, end));
                }
            }
        }
    }
}
