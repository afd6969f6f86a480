//! The lint of a request head on its raw bytes, before any parser sees it: line ends, characters,
//! shape of the request line, and the limits of size. It touches nothing but the bytes it is
//! given. The verdict is a function of the byte stream alone, however it was cut into reads: each
//! byte is looked at once, and the first one that cannot be part of a legal head ends the matter.
#![forbid(unsafe_code)]

use std::ops::Range;

use crate::wire::headers::is_token_byte;

/// The limits of a request head.
#[derive(Debug)]
pub struct Limits;

impl Limits {
    /// The whole head in bytes, a leading empty line included. What common servers allow.
    pub const HEAD_BYTES_MAX: usize = 16 * 1024;
    /// Header fields. The decoder behind the guard has room for 96.
    pub const FIELDS_MAX: usize = 64;
    /// One field name in bytes. The decoder behind the guard panics above 65,535.
    pub const NAME_BYTES_MAX: usize = 128;
    /// The request target in bytes.
    pub const TARGET_BYTES_MAX: usize = 8 * 1024;
    /// The method in bytes; the longest registered one has 17.
    pub const METHOD_BYTES_MAX: usize = 32;
}

/// Why a request is refused before its meaning is looked at. The connection closes after the
/// answer, because where the next request starts is no longer certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {reason}")]
pub struct Refusal {
    /// HTTP status: 400, 405, 413, 414, 417, 431, 501 or 505.
    pub status: u16,
    /// One sentence for people, fit for the body of the answer.
    pub reason: &'static str,
}

impl Refusal {
    /// A refusal with this status and reason.
    pub const fn new(status: u16, reason: &'static str) -> Self {
        Self { status, reason }
    }

    /// 400, the answer to everything that has no status of its own.
    pub const fn bad(reason: &'static str) -> Self {
        Self::new(400, reason)
    }
}

/// Where a complete head lies in the bytes that were given to [`HeadGuard::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadExtent {
    /// Bytes before the request line: 0, or 2 for one empty line (RFC 9112, 2.2).
    pub skip: usize,
    /// Bytes to consume: `skip` and the head with its final CRLF CRLF. The body starts here.
    pub len: usize,
    /// Header fields in the head.
    pub fields: usize,
}

impl HeadExtent {
    /// The head proper: request line to final CRLF CRLF.
    pub fn range(&self) -> Range<usize> {
        self.skip..self.len
    }
}

/// What the next byte may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first byte of the stream.
    Start,
    /// The LF of an empty line before the request line.
    SkipLf,
    /// The first byte of the method.
    MethodStart,
    Method,
    Target,
    /// The byte at this index of `HTTP/x.y`.
    Version(u8),
    /// The CR after the version.
    VersionEnd,
    /// The LF at the end of the request line or of a field.
    LineLf,
    /// A field name, or the CR of the final empty line.
    LineStart,
    Name,
    Value,
    /// The LF of the final empty line.
    EndLf,
    Done,
}

/// The incremental lint of one head. Use a new one for each request.
#[derive(Debug, Clone)]
pub struct HeadGuard {
    state: State,
    /// Bytes already looked at.
    at: usize,
    /// Where the method, target or name that is being read began.
    start: usize,
    skip: usize,
    fields: usize,
    major: u8,
}

impl Default for HeadGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl HeadGuard {
    /// A guard that has seen nothing.
    pub const fn new() -> Self {
        Self {
            state: State::Start,
            at: 0,
            start: 0,
            skip: 0,
            fields: 0,
            major: 0,
        }
    }

    /// Looks at what is new in `bytes`, which holds everything unread so far, from the same first
    /// byte on each call. `Ok(None)`: legal so far and not complete. After an extent or a refusal
    /// the guard has done its work; asking again gives the same extent.
    ///
    /// # Errors
    /// A [`Refusal`] at the first byte that cannot be part of a legal head within the limits.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Option<HeadExtent>, Refusal> {
        let seen = &bytes[..bytes.len().min(Limits::HEAD_BYTES_MAX)];
        while self.state != State::Done {
            if self.at >= seen.len() {
                if bytes.len() > seen.len() {
                    return Err(Refusal::new(431, "the request head is over 16 KiB"));
                }
                return Ok(None);
            }
            self.step(seen)?;
        }
        Ok(Some(HeadExtent {
            skip: self.skip,
            len: self.at,
            fields: self.fields,
        }))
    }

    /// Takes one byte, or the whole run of bytes that keeps the state.
    /// `self.at < seen.len()` holds.
    fn step(&mut self, seen: &[u8]) -> Result<(), Refusal> {
        let byte = seen[self.at];
        match self.state {
            State::Start if byte == b'\r' => self.to(State::SkipLf),
            State::Start | State::MethodStart => self.method_start(byte)?,
            State::SkipLf => {
                expect(byte, b'\n', BARE_CR)?;
                self.skip = 2;
                self.to(State::MethodStart);
            }
            State::Method => self.method(seen)?,
            State::Target => self.target(seen)?,
            State::Version(index) => self.version(index, byte)?,
            State::VersionEnd => {
                expect(byte, b'\r', BAD_VERSION)?;
                self.to(State::LineLf);
            }
            State::LineLf => {
                expect(byte, b'\n', BARE_CR)?;
                self.to(State::LineStart);
            }
            State::LineStart => self.line_start(byte)?,
            State::Name => self.name(seen)?,
            State::Value => self.value(seen)?,
            State::EndLf => {
                expect(byte, b'\n', BARE_CR)?;
                self.to(State::Done);
            }
            State::Done => {}
        }
        Ok(())
    }

    /// Consumes one byte and goes to `state`.
    fn to(&mut self, state: State) {
        self.state = state;
        self.at += 1;
    }

    /// Consumes the run of bytes of `class`. Gives the byte that ends the run, if it is there.
    fn run(
        &mut self,
        seen: &[u8],
        class: u8,
        bytes_max: usize,
        over: Refusal,
    ) -> Result<Option<u8>, Refusal> {
        self.at = end_of_run(seen, self.at, class);
        if self.at - self.start > bytes_max {
            return Err(over);
        }
        Ok(seen.get(self.at).copied())
    }

    fn method_start(&mut self, byte: u8) -> Result<(), Refusal> {
        if !is_token_byte(byte) {
            return Err(BAD_METHOD);
        }
        self.start = self.at;
        self.to(State::Method);
        Ok(())
    }

    fn method(&mut self, seen: &[u8]) -> Result<(), Refusal> {
        match self.run(seen, TOKEN, Limits::METHOD_BYTES_MAX, BAD_METHOD)? {
            None => {}
            Some(b' ') => {
                self.to(State::Target);
                self.start = self.at;
            }
            Some(_) => return Err(BAD_METHOD),
        }
        Ok(())
    }

    fn target(&mut self, seen: &[u8]) -> Result<(), Refusal> {
        const OVER: Refusal = Refusal::new(414, "the request target is over 8 KiB");
        match self.run(seen, TARGET, Limits::TARGET_BYTES_MAX, OVER)? {
            None => {}
            Some(b' ') if self.at > self.start => self.to(State::Version(0)),
            Some(_) => {
                return Err(Refusal::bad(
                    "the request target must be visible ASCII without a fragment",
                ));
            }
        }
        Ok(())
    }

    fn version(&mut self, index: u8, byte: u8) -> Result<(), Refusal> {
        let legal = match index {
            5 | 7 => byte.is_ascii_digit(),
            6 => byte == b'.',
            _ => b"HTTP/".get(usize::from(index)) == Some(&byte),
        };
        if !legal {
            return Err(BAD_VERSION);
        }
        match index {
            5 => self.major = byte,
            7 if self.major != b'1' || byte > b'1' => {
                return Err(Refusal::new(505, "only HTTP/1.1 and HTTP/1.0 are served"));
            }
            _ => {}
        }
        self.to(if index == 7 {
            State::VersionEnd
        } else {
            State::Version(index + 1)
        });
        Ok(())
    }

    fn line_start(&mut self, byte: u8) -> Result<(), Refusal> {
        match byte {
            b'\r' => self.to(State::EndLf),
            b' ' | b'\t' => return Err(Refusal::bad("folded header lines are not served")),
            _ if !is_token_byte(byte) => return Err(BAD_NAME),
            _ if self.fields == Limits::FIELDS_MAX => {
                return Err(Refusal::new(431, "there are over 64 header fields"));
            }
            _ => {
                self.fields += 1;
                self.start = self.at;
                self.to(State::Name);
            }
        }
        Ok(())
    }

    fn name(&mut self, seen: &[u8]) -> Result<(), Refusal> {
        const OVER: Refusal = Refusal::new(431, "a header name is over 128 bytes");
        match self.run(seen, TOKEN, Limits::NAME_BYTES_MAX, OVER)? {
            None => {}
            Some(b':') => self.to(State::Value),
            Some(_) => return Err(BAD_NAME),
        }
        Ok(())
    }

    fn value(&mut self, seen: &[u8]) -> Result<(), Refusal> {
        self.at = end_of_run(seen, self.at, VALUE);
        match seen.get(self.at) {
            None => {}
            Some(b'\r') => self.to(State::LineLf),
            Some(b'\n') => return Err(Refusal::bad("lines must end in CR LF")),
            Some(_) => return Err(Refusal::bad("a control character stands in a header value")),
        }
        Ok(())
    }
}

const BARE_CR: Refusal = Refusal::bad("a CR stands without its LF");
const BAD_METHOD: Refusal = Refusal::bad("the method must be a token of at most 32 characters");
const BAD_VERSION: Refusal = Refusal::bad("the request line must be METHOD SP target SP HTTP/x.y");
const BAD_NAME: Refusal = Refusal::bad("a header name must be a token, directly before its colon");

fn expect(byte: u8, wanted: u8, otherwise: Refusal) -> Result<(), Refusal> {
    if byte == wanted {
        Ok(())
    } else {
        Err(otherwise)
    }
}

const TOKEN: u8 = 1;
const TARGET: u8 = 2;
const VALUE: u8 = 4;

/// The classes of each byte. A target is visible ASCII without `#`, because a fragment is never
/// sent; a value is visible bytes, space, tab and 0x80 to 0xff (RFC 9110, 5.5).
const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        let mut class = 0;
        if is_token_byte(b) {
            class |= TOKEN;
        }
        if b.is_ascii_graphic() && b != b'#' {
            class |= TARGET;
        }
        if is_value_byte(b) {
            class |= VALUE;
        }
        classes[byte] = class;
        byte += 1;
    }
    classes
};

/// What a field value, a trailer line or a chunk extension may hold.
pub(super) const fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

fn end_of_run(seen: &[u8], from: usize, class: u8) -> usize {
    let run = seen[from..]
        .iter()
        .position(|&byte| CLASSES[usize::from(byte)] & class == 0);
    run.map_or(seen.len(), |length| from + length)
}
