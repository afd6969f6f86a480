//! The messages that wait for a session's GET stream, in order and bounded in bytes.

use std::collections::VecDeque;

use crate::limits::{STREAM_QUEUE_BYTES_MAX, STREAM_WRITE_BYTES};
use crate::routing::session::StreamId;

/// A message as it goes on the wire, and the server's request that it carries, if it
/// does, by the id that the client knows.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) frame: Box<[u8]>,
    pub(super) asked: Option<u64>,
}

/// What waits, and what is being written.
#[derive(Default, Debug)]
pub(super) struct Queue {
    waiting: VecDeque<Item>,
    /// By the stream, and by former ones that have not ended yet.
    writing: Vec<(StreamId, Vec<Item>)>,
    bytes: usize,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that wait or are being written.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message. What could not be kept comes back: all, once it is too much, or
    /// if there `is_room` for nothing.
    #[must_use]
    pub(super) fn push(&mut self, item: Item, is_room: bool) -> Vec<Item> {
        self.bytes += item.frame.len();
        self.waiting.push_back(item);
        // One message may be longer than all that is kept otherwise.
        match !is_room || self.bytes > STREAM_QUEUE_BYTES_MAX && self.waiting.len() > 1 {
            true => self.clear(),
            false => Vec::new(),
        }
    }

    /// Takes all that waits.
    pub(super) fn clear(&mut self) -> Vec<Item> {
        let items: Vec<Item> = std::mem::take(&mut self.waiting).into();
        self.bytes -= items.iter().map(|item| item.frame.len()).sum::<usize>();
        items
    }

    /// Moves the next write of `stream` behind `out`. Returns how many messages it has.
    pub(super) fn write(&mut self, stream: StreamId, out: &mut Vec<u8>) -> usize {
        let mut taken = Vec::new();
        while let Some(item) = self.waiting.front() {
            let is_full = !out.is_empty() && out.len() + item.frame.len() > STREAM_WRITE_BYTES;
            if is_full {
                break;
            }
            out.extend_from_slice(&item.frame);
            taken.extend(self.waiting.pop_front());
        }
        let count = taken.len();
        if count > 0 {
            self.writing.push((stream, taken));
        }
        count
    }

    /// The write of `stream` is over. If it failed its messages wait again, first.
    pub(super) fn wrote(&mut self, stream: StreamId, is_done: bool) {
        let place = self
            .writing
            .iter()
            .position(|(writer, _)| *writer == stream);
        let Some(place) = place else { return };
        let (_, items) = self.writing.swap_remove(place);
        match is_done {
            true => self.bytes -= items.iter().map(|item| item.frame.len()).sum::<usize>(),
            false => items
                .into_iter()
                .rev()
                .for_each(|item| self.waiting.push_front(item)),
        }
    }

    /// Takes out the messages that carry these requests of the server's.
    pub(super) fn forget(&mut self, is_gone: impl Fn(u64) -> bool) {
        let bytes = &mut self.bytes;
        self.waiting.retain(|item| {
            let is_gone = item.asked.is_some_and(&is_gone);
            if is_gone {
                *bytes -= item.frame.len();
            }
            !is_gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(connection: u32) -> StreamId {
        StreamId {
            connection,
            connection_generation: 1,
        }
    }

    fn item(text: &str) -> Item {
        Item {
            frame: text.as_bytes().into(),
            asked: None,
        }
    }

    fn written(queue: &mut Queue, by: u32) -> String {
        let mut out = Vec::new();
        queue.write(stream(by), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn messages_keep_their_order_also_when_a_write_fails() {
        let mut queue = Queue::default();
        for text in ["a", "b"] {
            assert!(queue.push(item(text), true).is_empty());
        }
        assert_eq!(written(&mut queue, 1), "ab");
        assert!(queue.push(item("c"), true).is_empty());
        queue.wrote(stream(1), false);
        assert_eq!(written(&mut queue, 2), "abc");
        queue.wrote(stream(1), true);
        assert_eq!(queue.bytes(), 3);
        queue.wrote(stream(2), true);
        assert_eq!((queue.bytes(), queue.is_empty()), (0, true));
    }

    #[test]
    fn what_is_too_much_comes_back_whole() {
        let mut queue = Queue::default();
        let long = "x".repeat(STREAM_QUEUE_BYTES_MAX / 4);
        for _ in 0..4 {
            assert!(queue.push(item(&long), true).is_empty());
        }
        assert_eq!(queue.push(item("y"), true).len(), 5);
        assert_eq!((queue.bytes(), queue.is_empty()), (0, true));
        let huge = "x".repeat(STREAM_QUEUE_BYTES_MAX * 2);
        assert!(
            queue.push(item(&huge), true).is_empty(),
            "one is kept however long"
        );
        assert_eq!(queue.push(item("y"), true).len(), 2);
        assert_eq!(queue.push(item("z"), false).len(), 1);
    }

    #[test]
    fn a_write_is_bounded_but_takes_one_message_at_least() {
        let mut queue = Queue::default();
        let long = "x".repeat(STREAM_WRITE_BYTES);
        for text in [&long, "y", &long] {
            assert!(queue.push(item(text), true).is_empty());
        }
        assert_eq!(written(&mut queue, 1).len(), long.len());
        queue.wrote(stream(1), true);
        assert_eq!(written(&mut queue, 1), "y");
    }

    #[test]
    fn requests_that_were_withdrawn_do_not_go_out() {
        let mut queue = Queue::default();
        for asked in [None, Some(1), Some(2)] {
            let item = Item { asked, ..item("z") };
            assert!(queue.push(item, true).is_empty());
        }
        queue.forget(|asked| asked == 1);
        assert_eq!((written(&mut queue, 1).len(), queue.bytes()), (2, 2));
    }
}
