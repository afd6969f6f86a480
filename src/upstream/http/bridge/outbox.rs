//! The lines on their way to the hub: gathered for few large writes, and bounded by those who
//! bring them.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::wire::splice::splice;

/// Bytes gathered into one write, about: the hub reads and writes the other pipe alike.
const WRITE_BYTES: usize = 256 << 10;

/// Bytes of lines that wait or are being written, beyond which the answers of the server are
/// not read.
const WAITING_BYTES_MAX: usize = 8 << 20;

#[derive(Default, Debug)]
pub(super) struct Outbox {
    /// What is written at once, each; the last may still grow.
    writes: VecDeque<Vec<u8>>,
    /// Of all of them, and of the one that is being written.
    bytes: usize,
}

impl Outbox {
    /// Adds a message as one line.
    pub(super) fn push(&mut self, message: &[u8]) {
        if message.trim_ascii().is_empty() {
            return;
        }
        let has_room = |write: &&mut Vec<u8>| write.len() + message.len() < WRITE_BYTES;
        if self.writes.back_mut().filter(has_room).is_none() {
            self.writes.push_back(Vec::new());
        }
        let Some(write) = self.writes.back_mut() else {
            return;
        };
        let before = write.len();
        splice(write, message, &mut []);
        write.push(b'\n');
        self.bytes += write.len() - before;
    }

    /// What is to be written next. Say [`Outbox::written`] when it is.
    pub(super) fn next_write(&mut self) -> Option<Vec<u8>> {
        self.writes.pop_front()
    }

    pub(super) fn written(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// Whether more may be brought.
    pub(super) fn has_room(&self) -> bool {
        self.bytes <= WAITING_BYTES_MAX
    }

    /// Whether all is written.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_lines_and_lines_one_write() {
        let mut outbox = Outbox::default();
        outbox.push(b" \r\n{\"a\":\r\n1}\n");
        outbox.push(b"\n \r");
        outbox.push(b"{}");
        let write = outbox.next_write().unwrap();
        assert_eq!(write, b"{\"a\":  1}\n{}\n");
        assert!(outbox.next_write().is_none());
        assert!(!outbox.is_empty());
        outbox.written(write.len());
        assert!(outbox.is_empty());
    }

    #[test]
    fn writes_and_the_whole_are_bounded() {
        let mut outbox = Outbox::default();
        let message = vec![b'x'; 1000];
        let mut messages = 0;
        while outbox.has_room() && messages < 20_000 {
            outbox.push(&message);
            messages += 1;
        }
        assert_eq!(messages, WAITING_BYTES_MAX / 1001 + 1);
        let mut lines = 0;
        while let Some(write) = outbox.next_write() {
            assert!(write.len() <= WRITE_BYTES, "{}", write.len());
            lines += write.iter().filter(|byte| **byte == b'\n').count();
            // What is being written counts.
            outbox.written(write.len());
        }
        assert_eq!(lines, messages);
        assert!(outbox.has_room() && outbox.is_empty());
        // A message over the size of a write is one of its own.
        outbox.push(b"{}");
        outbox.push(&vec![b'x'; 2 * WRITE_BYTES]);
        outbox.push(b"{}");
        let sizes = std::iter::from_fn(|| outbox.next_write().map(|write| write.len()));
        assert_eq!(sizes.collect::<Vec<_>>(), [3, 2 * WRITE_BYTES + 1, 3]);
    }
}
