//! The body of a chunked request, from whatever pieces the socket gives. Size lines, extensions
//! and trailers are checked here byte by byte, data goes through the decoder in `codec.rs`. No
//! byte of a chunk is kept before its size is known to fit the limit, and the verdict does not
//! depend on how the stream was cut.
#![forbid(unsafe_code)]

use super::codec::ChunkCodec;
use super::guard::{Refusal, is_value_byte};

/// Hexadecimal digits in one chunk size.
const SIZE_DIGITS_MAX: u8 = 16;
/// Bytes of extensions on one size line.
pub const EXTENSION_BYTES_MAX: usize = 256;
/// Bytes of extensions in one body: without it a body of one-byte chunks may carry 256 times its
/// own limit.
pub const EXTENSION_BYTES_TOTAL_MAX: usize = 16 * 1024;
/// Bytes of all trailer lines; they are read and thrown away.
pub const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// What one call of [`ChunkedBody::feed`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fed {
    /// Bytes that belonged to this body. When `done`, the rest is the next request.
    pub consumed: usize,
    /// The last chunk and the trailers have been read.
    pub done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// One chunked body in the making.
#[derive(Debug)]
pub struct ChunkedBody {
    state: State,
    codec: ChunkCodec,
    /// Bytes that may still be announced.
    room: usize,
    /// The size of the chunk that is being read.
    size: usize,
    digits: u8,
    /// Bytes of data still to come in this chunk.
    left: usize,
    extension_bytes: usize,
    extension_bytes_total: usize,
    trailer_bytes: usize,
    /// The byte before, for blanks at the end of a size line.
    last: u8,
}

impl ChunkedBody {
    /// A body of at most `limit` bytes of data.
    pub fn new(limit: usize) -> Self {
        Self {
            state: State::Size,
            codec: ChunkCodec::default(),
            room: limit,
            size: 0,
            digits: 0,
            left: 0,
            extension_bytes: 0,
            extension_bytes_total: 0,
            trailer_bytes: 0,
            last: 0,
        }
    }

    /// Reads on. Complete chunks are appended to `body`; a chunk that is not complete yet is held
    /// inside (so both together may take twice the limit for a moment).
    ///
    /// # Errors
    /// 413 as soon as a size is known to go over the limit; 400 for everything that is not
    /// exactly RFC 9112, 7.1, with white space only inside extensions; 431 for trailers over
    /// 16 KiB. The connection must close then.
    pub fn feed(&mut self, bytes: &[u8], body: &mut Vec<u8>) -> Result<Fed, Refusal> {
        let mut at = 0;
        while self.state != State::Done && at < bytes.len() {
            if self.state == State::Data {
                let piece = &bytes[at..][..self.left.min(bytes.len() - at)];
                self.codec.push(piece);
                at += piece.len();
                self.left -= piece.len();
                if self.left == 0 {
                    self.state = State::DataCr;
                }
            } else {
                self.step(bytes[at], body)?;
                at += 1;
            }
        }
        Ok(Fed {
            consumed: at,
            done: self.state == State::Done,
        })
    }

    /// Takes one byte outside of data.
    fn step(&mut self, byte: u8, body: &mut Vec<u8>) -> Result<(), Refusal> {
        match self.state {
            State::Size => self.size_byte(byte)?,
            State::Extension => self.extension_byte(byte)?,
            State::SizeLf => {
                expect(byte, b'\n')?;
                self.size_line_end();
            }
            State::DataCr => {
                expect(byte, b'\r')?;
                self.state = State::DataLf;
            }
            State::DataLf => {
                expect(byte, b'\n')?;
                self.codec.push(b"\r\n");
                let chunk = self.codec.take_chunk(self.size)?;
                body.extend_from_slice(&chunk);
                self.state = State::Size;
                (self.size, self.digits) = (0, 0);
            }
            State::TrailerStart | State::Trailer => self.trailer_byte(byte)?,
            State::TrailerLf => {
                expect(byte, b'\n')?;
                self.state = State::TrailerStart;
            }
            State::EndLf => {
                expect(byte, b'\n')?;
                self.codec.push(b"0\r\n\r\n");
                self.codec.take_chunk(0)?;
                self.state = State::Done;
            }
            State::Data | State::Done => {}
        }
        Ok(())
    }

    fn size_byte(&mut self, byte: u8) -> Result<(), Refusal> {
        match (byte, char::from(byte).to_digit(16)) {
            (_, Some(digit)) if self.digits < SIZE_DIGITS_MAX => {
                self.digits += 1;
                // Cannot overflow: the size so far is at most `room`, checked below.
                let size = (self.size as u128) << 4 | u128::from(digit);
                self.size = usize::try_from(size)
                    .ok()
                    .filter(|size| *size <= self.room)
                    .ok_or(OVER_LIMIT)?;
            }
            (b'\r', _) if self.digits > 0 => self.state = State::SizeLf,
            (b';', _) if self.digits > 0 => {
                self.state = State::Extension;
                self.extension_bytes = 0;
                self.last = byte;
            }
            _ => return Err(BAD_SIZE),
        }
        Ok(())
    }

    fn extension_byte(&mut self, byte: u8) -> Result<(), Refusal> {
        if byte == b'\r' {
            if matches!(self.last, b' ' | b'\t') {
                return Err(BAD_SIZE);
            }
            self.state = State::SizeLf;
            return Ok(());
        }
        self.extension_bytes += 1;
        self.extension_bytes_total += 1;
        self.last = byte;
        if !is_value_byte(byte) {
            return Err(BAD_SIZE);
        }
        if self.extension_bytes > EXTENSION_BYTES_MAX
            || self.extension_bytes_total > EXTENSION_BYTES_TOTAL_MAX
        {
            return Err(Refusal::bad("chunk extensions are too long"));
        }
        Ok(())
    }

    /// The size is known and within the limit. What the decoder sees is the bare size, because it
    /// knows no extensions; the last chunk goes to it when the trailers have been read, because
    /// it knows no trailers.
    fn size_line_end(&mut self) {
        if self.size == 0 {
            self.state = State::TrailerStart;
            return;
        }
        self.room -= self.size;
        self.left = self.size;
        self.state = State::Data;
        self.codec.push(format!("{:x}\r\n", self.size).as_bytes());
    }

    fn trailer_byte(&mut self, byte: u8) -> Result<(), Refusal> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(Refusal::new(431, "the trailers are over 16 KiB"));
        }
        self.state = match (self.state, byte) {
            (State::TrailerStart, b'\r') => State::EndLf,
            (_, b'\r') => State::TrailerLf,
            (State::TrailerStart, b' ' | b'\t') => return Err(BAD_TRAILER),
            _ if is_value_byte(byte) => State::Trailer,
            _ => return Err(BAD_TRAILER),
        };
        Ok(())
    }
}

const OVER_LIMIT: Refusal = Refusal::new(413, "the body is over the limit of --max-body");
const BAD_SIZE: Refusal = Refusal::bad("a chunk size must be 1 to 16 hexadecimal digits");
const BAD_TRAILER: Refusal = Refusal::bad("the trailers are malformed");

fn expect(byte: u8, wanted: u8) -> Result<(), Refusal> {
    if byte == wanted {
        Ok(())
    } else {
        Err(Refusal::bad("a chunk is not followed by CR LF"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(limit: usize, bytes: &[u8]) -> Result<(Vec<u8>, Fed), Refusal> {
        let mut body = Vec::new();
        let fed = ChunkedBody::new(limit).feed(bytes, &mut body)?;
        Ok((body, fed))
    }

    /// The same, one byte at a time, each call its own read.
    fn drip(limit: usize, bytes: &[u8]) -> Result<(Vec<u8>, Fed), Refusal> {
        let mut body = Vec::new();
        let mut reader = ChunkedBody::new(limit);
        let mut all = Fed {
            consumed: 0,
            done: false,
        };
        for byte in bytes {
            let fed = reader.feed(std::slice::from_ref(byte), &mut body)?;
            all.consumed += fed.consumed;
            all.done = fed.done;
        }
        Ok((body, all))
    }

    fn both(limit: usize, bytes: &[u8]) -> Result<(Vec<u8>, Fed), Refusal> {
        let whole = read(limit, bytes);
        assert_eq!(whole, drip(limit, bytes));
        whole
    }

    #[track_caller]
    fn refused(limit: usize, bytes: &[u8], status: u16) {
        assert_eq!(both(limit, bytes).unwrap_err().status, status);
    }

    #[test]
    fn a_body_ends_where_the_next_request_starts() {
        let bytes = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\nPOST ";
        let (body, fed) = both(11, bytes).unwrap();
        assert_eq!(body, b"hello world");
        assert!(fed.done);
        assert_eq!(&bytes[fed.consumed..], b"POST ");
    }

    #[test]
    fn data_may_look_like_framing() {
        let (body, fed) = both(64, b"C\r\n\r\n0\r\n\r\n5\r\nab\r\n0\r\n\r\n").unwrap();
        assert_eq!(body, b"\r\n0\r\n\r\n5\r\nab");
        assert!(fed.done);
    }

    #[test]
    fn an_incomplete_body_is_not_done() {
        let bytes = b"3\r\nabc\r\n0\r\nx: y\r\n\r\n";
        for end in 0..bytes.len() {
            assert!(!both(3, &bytes[..end]).unwrap().1.done, "{end}");
        }
        assert!(both(3, bytes).unwrap().1.done);
    }

    #[test]
    fn the_limit_is_known_before_the_data_comes() {
        refused(4, b"5", 413);
        refused(4, b"ffffffffffffffff", 413);
        refused(8, b"5\r\nhello\r\n4", 413);
        assert!(both(9, b"5\r\nhello\r\n4").is_ok());
        assert!(both(0, b"0\r\n\r\n").unwrap().1.done);
    }

    #[test]
    fn a_size_is_1_to_16_hexadecimal_digits() {
        let (body, _) = both(9, b"0000000000000001\r\nx\r\n").unwrap();
        assert_eq!(body, b"x");
        refused(9, b"00000000000000001\r\nx\r\n", 400);
        for bad in [
            "\r\n", "+1\r\n", "-1\r\n", "0x1\r\n", " 1\r\n", "1 \r\n", "1\t\r\n", "g\r\n",
            "1,1\r\n", "1_0\r\n",
        ] {
            refused(9, bad.as_bytes(), 400);
        }
    }

    #[test]
    fn bare_line_ends_are_refused() {
        refused(9, b"1\nx\r\n", 400);
        refused(9, b"1\rx", 400);
        refused(9, b"1;a\nx", 400);
        refused(9, b"1\r\nx\n", 400);
        refused(9, b"1\r\nx\rx", 400);
        refused(9, b"0\r\na: b\n\r\n", 400);
        refused(9, b"0\r\n\n", 400);
        refused(9, b"0\r\n\rx", 400);
    }

    #[test]
    fn data_longer_than_its_size_is_refused() {
        refused(9, b"1\r\nxy\r\n", 400);
    }

    #[test]
    fn extensions_are_bounded_and_ignored() {
        let (body, fed) = both(9, b"1;a=\"b c\"; d\r\nx\r\n0;last\r\n\r\n").unwrap();
        assert_eq!((body.as_slice(), fed.done), (&b"x"[..], true));
        refused(9, b"1;a\0\r\n", 400);
        refused(9, b"1;a \r\n", 400);
        let long = format!("1;{}", "a".repeat(EXTENSION_BYTES_MAX));
        assert!(both(9, long.as_bytes()).is_ok());
        refused(9, format!("{long}a").as_bytes(), 400);
    }

    #[test]
    fn the_extensions_of_one_body_are_bounded_together() {
        let chunk = format!("1;{}\r\nx\r\n", "a".repeat(EXTENSION_BYTES_MAX));
        let most = EXTENSION_BYTES_TOTAL_MAX / EXTENSION_BYTES_MAX;
        assert!(both(999, chunk.repeat(most).as_bytes()).is_ok());
        refused(999, chunk.repeat(most + 1).as_bytes(), 400);
    }

    #[test]
    fn trailers_are_bounded_and_ignored() {
        let bytes = b"1\r\nx\r\n0\r\nA: b\r\nContent-Length: 9\r\n\r\n!";
        let (body, fed) = both(9, bytes).unwrap();
        assert_eq!((body.as_slice(), fed.done), (&b"x"[..], true));
        assert_eq!(&bytes[fed.consumed..], b"!");
        refused(9, b"0\r\n folded\r\n", 400);
        refused(9, b"0\r\na: \0\r\n", 400);
        let long = "a: b\r\n".repeat(TRAILER_BYTES_MAX / 5 + 1);
        refused(9, format!("0\r\n{long}").as_bytes(), 431);
    }

    #[test]
    fn a_finished_body_takes_no_more() {
        let mut reader = ChunkedBody::new(9);
        let mut body = Vec::new();
        assert!(reader.feed(b"0\r\n\r\n", &mut body).unwrap().done);
        let again = reader.feed(b"GET", &mut body).unwrap();
        assert_eq!((again.consumed, again.done), (0, true));
    }

    proptest! {
        #[test]
        fn every_legal_encoding_decodes_to_its_data_however_it_is_cut(
            chunks in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 1..300), "(;[ -~]{0,20}[a-z])?", 1_usize..17),
                0..8,
            ),
            trailers in "([A-Za-z-]{1,9}: [ -~]{0,9}\r\n){0,3}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let mut stream = Vec::new();
            for (data, extension, width) in &chunks {
                let size = format!("{:0width$X}{extension}\r\n", data.len());
                stream.extend([size.as_bytes(), data, b"\r\n"].concat());
            }
            stream.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
            let end = stream.len();
            stream.extend_from_slice(b"GET / HTTP/1.1\r\n");
            let data: Vec<u8> = chunks.into_iter().flat_map(|(data, ..)| data).collect();

            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(end)).collect();
            cuts.sort_unstable();
            let (mut reader, mut body) = (ChunkedBody::new(data.len()), Vec::new());
            let mut from = 0;
            for to in cuts {
                let fed = reader.feed(&stream[from..to], &mut body).unwrap();
                prop_assert!(!fed.done && fed.consumed == to - from);
                from = to;
            }
            let fed = reader.feed(&stream[from..], &mut body).unwrap();
            prop_assert_eq!((fed.done, from + fed.consumed), (true, end));
            prop_assert_eq!(body, data);
        }

        #[test]
        fn any_bytes_give_one_verdict_however_they_are_cut(
            bytes in prop::collection::vec(prop::sample::select(b"01a;\r\n\r\n \0x".to_vec()), 0..40),
        ) {
            let _ = both(20, &bytes);
        }
    }
}
