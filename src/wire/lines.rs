//! Newline framing of a server's stdout. It owns the buffer and does no I/O: the buffer is lent
//! out for a read and comes back with more bytes in it. New bytes are searched once, and a partial
//! line is moved at most once for each time that the buffer doubles.

use memchr::memchr;

/// A buffer of up to this capacity is kept for the next long line; a larger one is given back.
/// Holds a line of 1 MiB, whose repeated growth would cost page faults on every such line.
const KEPT_BYTES_MAX: usize = 2 << 20;

/// Bytes that are kept of either end of an over-long line.
pub const ENDS_BYTES: usize = 256;

/// One line of the stream, without its LF and a CR before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    Text(&'a [u8]),
    /// A line over the limit, reported once, when its end has been seen. `bytes` is its length
    /// without the LF; of its text only the first and last [`ENDS_BYTES`] were kept.
    TooLong {
        bytes: usize,
        head: &'a [u8],
        tail: &'a [u8],
    },
}

/// Assembles lines from reads of any size.
///
/// The invariant: `start <= searched <= filled <= capacity`, where `filled` is `bytes.len()`. The
/// room for a read is the spare capacity behind it, which completion-based readers fill directly,
/// so it is never zeroed.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// The first byte not yet handed out as a line.
    start: usize,
    /// No LF lies in `start..searched`.
    searched: usize,
    /// Length so far of the over-long line that is being skipped.
    skipped: Option<usize>,
    /// The ends of the over-long line, as far as they were seen.
    head: Vec<u8>,
    tail: Vec<u8>,
    is_lent: bool,
    read_chunk_bytes: usize,
    line_bytes_max: usize,
}

impl LineBuffer {
    /// `read_chunk_bytes`: the least room that a read gets (64 KiB is enough for a pipe).
    /// `line_bytes_max`: the longest line that is handed out, without its LF. Memory stays below
    /// four times the two together.
    pub fn new(read_chunk_bytes: usize, line_bytes_max: usize) -> Self {
        let read_chunk_bytes = read_chunk_bytes.max(1);
        let buffer = Self {
            bytes: Vec::with_capacity(first_capacity(read_chunk_bytes)),
            start: 0,
            searched: 0,
            skipped: None,
            head: Vec::new(),
            tail: Vec::new(),
            is_lent: false,
            read_chunk_bytes,
            line_bytes_max,
        };
        buffer.check();
        buffer
    }

    /// Lends the buffer out for a read. The second value is `filled`: the read goes into the
    /// spare capacity from there on, at least `read_chunk_bytes`, and must not touch what lies
    /// before. Take all lines first: bytes of untaken ones add to the memory bound.
    ///
    /// Until [`Self::restore`] no other method may be called: there is nothing to look into.
    pub fn lend(&mut self) -> (Vec<u8>, usize) {
        self.make_room();
        self.check();
        self.is_lent = true;
        let filled = self.bytes.len();
        (std::mem::take(&mut self.bytes), filled)
    }

    /// Takes the lent buffer back. `filled` counts all its valid bytes, those from before the
    /// read included; bytes of the vector behind that are ignored.
    ///
    /// # Panics
    /// If nothing was lent, or the vector cannot be what was: shorter than `filled`, or `filled`
    /// less than what has been searched already.
    pub fn restore(&mut self, bytes: Vec<u8>, filled: usize) {
        assert!(self.is_lent, "nothing was lent");
        assert!(
            self.searched <= filled && filled <= bytes.len(),
            "not the buffer that was lent"
        );
        self.is_lent = false;
        self.bytes = bytes;
        self.bytes.truncate(filled);
        self.check();
    }

    /// The next whole line, if one has been read.
    pub fn next_line(&mut self) -> Option<Line<'_>> {
        self.check();
        let Some(found) = memchr(b'\n', &self.bytes[self.searched..]) else {
            self.searched = self.bytes.len();
            self.skip_if_too_long();
            self.check();
            return None;
        };
        let (start, end) = (self.start, self.searched + found);
        self.start = end + 1;
        self.searched = end + 1;
        self.check();
        Some(self.line(start, end))
    }

    /// The unterminated rest at the end of the stream, if any. What is left behind is an empty
    /// buffer. Take all whole lines first.
    pub fn at_end(&mut self) -> Option<Line<'_>> {
        let (start, end) = (self.start, self.bytes.len());
        self.start = end;
        self.searched = end;
        self.check();
        (start < end || self.skipped.is_some()).then(|| self.line(start, end))
    }

    fn line(&mut self, start: usize, end: usize) -> Line<'_> {
        let bytes = self.skipped.unwrap_or(0) + (end - start);
        if bytes > self.line_bytes_max {
            self.keep_ends(start, end);
            self.skipped = None;
            return Line::TooLong {
                bytes,
                head: &self.head,
                tail: &self.tail,
            };
        }
        let text = &self.bytes[start..end];
        Line::Text(text.strip_suffix(b"\r").unwrap_or(text))
    }

    /// Drops what has been read of a line once it is over the limit.
    fn skip_if_too_long(&mut self) {
        let bytes = self.skipped.unwrap_or(0) + (self.bytes.len() - self.start);
        if bytes > self.line_bytes_max {
            self.keep_ends(self.start, self.bytes.len());
            self.skipped = Some(bytes);
            self.start = self.bytes.len();
        }
    }

    /// Keeps the ends of an over-long line, of which `start..end` is the part now in the buffer.
    fn keep_ends(&mut self, start: usize, end: usize) {
        let part = &self.bytes[start..end];
        if self.skipped.is_none() {
            self.head.clear();
            self.tail.clear();
        }
        let missing = ENDS_BYTES - self.head.len();
        self.head
            .extend_from_slice(&part[..missing.min(part.len())]);
        self.tail
            .extend_from_slice(&part[part.len().saturating_sub(ENDS_BYTES)..]);
        let surplus = self.tail.len().saturating_sub(ENDS_BYTES);
        self.tail.drain(..surplus);
    }

    /// Makes room for a read, by forgetting handed-out lines where that is enough, else by
    /// doubling; and lets go of a buffer that one huge line has left behind.
    fn make_room(&mut self) {
        let pending = self.bytes.len() - self.start;
        let needed = pending + self.read_chunk_bytes;
        let first = first_capacity(self.read_chunk_bytes);
        let is_oversized = self.bytes.capacity() > KEPT_BYTES_MAX.max(first) && needed <= first;
        if is_oversized || needed > self.bytes.capacity() {
            let mut larger = Vec::with_capacity(needed.next_power_of_two().max(first));
            larger.extend_from_slice(&self.bytes[self.start..]);
            self.bytes = larger;
        } else if pending == 0 || self.bytes.capacity() - self.bytes.len() < self.read_chunk_bytes {
            // A partial line that is moved here starts at 0 afterwards: it cannot get here again
            // without the buffer having doubled.
            self.bytes.drain(..self.start);
        } else {
            return;
        }
        self.searched -= self.start;
        self.start = 0;
    }

    fn check(&self) {
        debug_assert!(!self.is_lent, "the buffer is lent out");
        debug_assert!(self.start <= self.searched);
        debug_assert!(self.searched <= self.bytes.len());
        debug_assert!(self.bytes.len() <= self.bytes.capacity());
    }
}

/// Twice the least read, so that a read seldom waits for a partial line to be moved.
fn first_capacity(read_chunk_bytes: usize) -> usize {
    read_chunk_bytes.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Taken {
        Text(Vec<u8>),
        TooLong(usize),
    }

    fn taken(line: Line<'_>) -> Taken {
        match line {
            Line::Text(text) => Taken::Text(text.to_vec()),
            Line::TooLong { bytes, .. } => Taken::TooLong(bytes),
        }
    }

    fn feed(buffer: &mut LineBuffer, chunk: &[u8]) -> Vec<Taken> {
        let (mut bytes, filled) = buffer.lend();
        assert_eq!(bytes.len(), filled);
        assert!(bytes.capacity() - filled >= chunk.len());
        let place = bytes.as_ptr();
        bytes.extend_from_slice(chunk);
        assert_eq!(place, bytes.as_ptr(), "there was room");
        buffer.restore(bytes, filled + chunk.len());
        let mut lines = Vec::new();
        while let Some(line) = buffer.next_line() {
            lines.push(taken(line));
        }
        lines
    }

    fn text(line: &str) -> Taken {
        Taken::Text(line.as_bytes().to_vec())
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_arrive() {
        let stream = b"one\r\n\n{\"two\":2}\nthree\rx\r\r\nrest";
        let lines = ["one", "", "{\"two\":2}", "three\rx\r"].map(text);
        for chunk in 1..=stream.len() {
            let mut buffer = LineBuffer::new(chunk, 100);
            let mut all = Vec::new();
            for part in stream.chunks(chunk) {
                all.extend(feed(&mut buffer, part));
            }
            assert_eq!(all, lines, "chunks of {chunk}");
            assert_eq!(buffer.at_end().map(taken), Some(text("rest")));
            assert_eq!(buffer.at_end().map(taken), None);
        }
    }

    #[test]
    fn an_over_long_line_is_reported_once_and_the_next_one_is_whole() {
        let mut buffer = LineBuffer::new(8, 10);
        let mut all = Vec::new();
        for part in b"0123456789\n0123456789a\nshort\n".chunks(8) {
            all.extend(feed(&mut buffer, part));
        }
        assert_eq!(all, [text("0123456789"), Taken::TooLong(11), text("short")]);
        let mut all = Vec::new();
        for _ in 0..1_000 {
            all.extend(feed(&mut buffer, b"abcdefgh"));
        }
        assert_eq!(all, []);
        assert!(buffer.bytes.capacity() <= 64, "nothing of it is kept");
        assert_eq!(
            feed(&mut buffer, b"x\nnext\n"),
            [Taken::TooLong(8_001), text("next")]
        );
    }

    #[test]
    fn the_ends_of_an_over_long_line_are_kept_however_it_arrives() {
        let line: Vec<u8> = (0..2_000u32).map(|n| b'a' + (n % 23) as u8).collect();
        let stream = [&line[..], b"\n"].concat();
        for chunk in [1, 7, 300, 2_001] {
            let mut buffer = LineBuffer::new(chunk, 1_000);
            let mut ends = None;
            for part in stream.chunks(chunk) {
                let (mut bytes, filled) = buffer.lend();
                bytes.extend_from_slice(part);
                buffer.restore(bytes, filled + part.len());
                if let Some(Line::TooLong { head, tail, .. }) = buffer.next_line() {
                    ends = Some((head.to_vec(), tail.to_vec()));
                }
            }
            let expected = (line[..256].to_vec(), line[2_000 - 256..].to_vec());
            assert_eq!(ends, Some(expected), "chunks of {chunk}");
        }
    }

    #[test]
    fn an_over_long_rest_is_reported_at_the_end() {
        let mut buffer = LineBuffer::new(8, 10);
        assert_eq!(feed(&mut buffer, b"01234567"), []);
        assert_eq!(feed(&mut buffer, b"01234567"), []);
        assert_eq!(buffer.at_end().map(taken), Some(Taken::TooLong(16)));
        assert_eq!(buffer.at_end().map(taken), None);
    }

    #[test]
    fn a_long_line_is_moved_a_bounded_number_of_times() {
        let mut buffer = LineBuffer::new(1 << 10, 64 << 20);
        let mut places = std::collections::HashSet::new();
        for _ in 0..8 << 10 {
            assert_eq!(feed(&mut buffer, &[b'x'; 1 << 10]), []);
            places.insert((buffer.bytes.as_ptr().addr(), buffer.bytes.capacity()));
        }
        assert!(places.len() <= 14, "{} places for 8 MiB", places.len());
        assert_eq!(buffer.searched, 8 << 20);
    }

    #[test]
    fn a_huge_line_does_not_leave_a_huge_buffer() {
        let mut buffer = LineBuffer::new(64 << 10, 64 << 20);
        for _ in 0..160 {
            feed(&mut buffer, &[b'x'; 64 << 10]);
        }
        assert!(buffer.bytes.capacity() >= 10 << 20);
        assert_eq!(
            feed(&mut buffer, b"\nrest"),
            [Taken::Text(vec![b'x'; 160 * (64 << 10)])]
        );
        assert_eq!(feed(&mut buffer, b" of a line\n"), [text("rest of a line")]);
        assert_eq!(buffer.bytes.capacity(), 128 << 10);
    }

    #[test]
    fn a_reader_may_lengthen_the_vector_beyond_what_it_filled() {
        let mut buffer = LineBuffer::new(16, 100);
        let (mut bytes, filled) = buffer.lend();
        bytes.resize(bytes.capacity(), 0);
        bytes[filled..filled + 5].copy_from_slice(b"a\nb\nc");
        buffer.restore(bytes, filled + 5);
        assert_eq!(buffer.next_line(), Some(Line::Text(b"a")));
        assert_eq!(buffer.next_line(), Some(Line::Text(b"b")));
        assert_eq!(buffer.next_line(), None);
        assert_eq!(buffer.at_end(), Some(Line::Text(b"c")));
    }

    #[test]
    #[should_panic(expected = "not the buffer")]
    fn another_buffer_is_not_taken_back() {
        let mut buffer = LineBuffer::new(16, 100);
        feed(&mut buffer, b"partial");
        let _ = buffer.lend();
        buffer.restore(Vec::new(), 0);
    }
}
