//! Lines out of chunks: one buffer that is read into, and complete lines handed
//! out of it without a copy. It does no I/O. It holds at most one line of
//! `line_max` bytes and one read; a longer line is skipped to its end and
//! reported once.

use super::limits::READ_BYTES;

/// What [`LineBuffer::next_line`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// One line without its newline.
    Complete(&'a [u8]),
    /// A line over the limit has begun; the rest of it will be skipped.
    TooLong,
    /// No complete line is left: read more.
    Partial,
}

/// Framing buffer. Invariant, in this order:
/// `start <= scanned <= end <= bytes.len()`.
#[derive(Debug)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    /// First byte not handed out yet.
    start: usize,
    /// No newline lies in `start..scanned`, so a long line is searched once.
    scanned: usize,
    /// End of what has been read.
    end: usize,
    line_max: usize,
    /// True until the end of a line that was too long.
    skipping: bool,
}

impl LineBuffer {
    /// An empty buffer for lines of at most `line_max` bytes.
    pub(super) fn new(line_max: usize) -> Self {
        Self {
            bytes: vec![0; READ_BYTES],
            start: 0,
            scanned: 0,
            end: 0,
            line_max,
            skipping: false,
        }
    }

    /// Room for the next read, never empty. Call it when no line is left.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.scanned = 0;
            self.end = 0;
            if self.bytes.len() > 4 * READ_BYTES {
                self.bytes = vec![0; READ_BYTES];
            }
        } else if self.start > 0 {
            // Only the beginning of one line is left, and it moves once: from
            // then on it starts at 0.
            self.bytes.copy_within(self.start..self.end, 0);
            self.scanned -= self.start;
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() - self.end < READ_BYTES / 2 {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Takes note of `count` bytes that were read into [`Self::space`].
    pub(super) fn filled(&mut self, count: usize) {
        self.end = self.bytes.len().min(self.end + count);
    }

    /// The next complete line.
    pub(super) fn next_line(&mut self) -> Line<'_> {
        loop {
            let Some(offset) = memchr::memchr(b'\n', &self.bytes[self.scanned..self.end]) else {
                self.scanned = self.end;
                return self.without_newline();
            };
            let newline = self.scanned + offset;
            let line = self.start..newline;
            self.start = newline + 1;
            self.scanned = self.start;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if line.len() > self.line_max {
                return Line::TooLong;
            }
            return Line::Complete(&self.bytes[line]);
        }
    }

    /// What is left when the input has ended without a newline.
    pub(super) fn remainder(&self) -> &[u8] {
        if self.skipping {
            &[]
        } else {
            &self.bytes[self.start..self.end]
        }
    }

    fn without_newline(&mut self) -> Line<'_> {
        if self.skipping {
            self.start = self.end;
            return Line::Partial;
        }
        if self.end - self.start > self.line_max {
            self.skipping = true;
            self.start = self.end;
            return Line::TooLong;
        }
        Line::Partial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(buffer: &mut LineBuffer, mut input: &[u8], lines: &mut Vec<String>) {
        while !input.is_empty() {
            let space = buffer.space();
            let count = space.len().min(input.len());
            space[..count].copy_from_slice(&input[..count]);
            buffer.filled(count);
            input = &input[count..];
            loop {
                match buffer.next_line() {
                    Line::Complete(line) => lines.push(String::from_utf8_lossy(line).into_owned()),
                    Line::TooLong => lines.push("TOO LONG".into()),
                    Line::Partial => break,
                }
            }
        }
    }

    #[test]
    fn lines_are_the_same_wherever_the_chunks_are_cut() {
        let input = b"one\n\ntwo three\nfour\nrest";
        for cut in 0..=input.len() {
            let mut buffer = LineBuffer::new(100);
            let mut lines = Vec::new();
            feed(&mut buffer, &input[..cut], &mut lines);
            feed(&mut buffer, &input[cut..], &mut lines);
            assert_eq!(lines, ["one", "", "two three", "four"], "cut at {cut}");
            assert_eq!(buffer.remainder(), b"rest");
        }
    }

    #[test]
    fn a_line_over_the_limit_is_reported_once_and_the_next_one_is_whole() {
        for size in [11, 300_000, 1_500_000] {
            let mut buffer = LineBuffer::new(10);
            let mut lines = Vec::new();
            let mut input = vec![b'x'; size];
            input.extend_from_slice(b"\nnext\n");
            feed(&mut buffer, &input, &mut lines);
            assert_eq!(lines, ["TOO LONG", "next"], "{size} bytes");
        }
    }

    #[test]
    fn a_line_larger_than_many_reads_arrives_whole_and_its_room_is_given_back() {
        let mut buffer = LineBuffer::new(8 << 20);
        let mut lines = Vec::new();
        let mut input = vec![b'y'; 5 << 20];
        input.push(b'\n');
        feed(&mut buffer, &input, &mut lines);
        assert_eq!(lines[0].len(), 5 << 20);
        assert_eq!(buffer.space().len(), READ_BYTES);
    }
}
