//! The events of one SSE answer that wait for their connection to take them, in
//! order, in one buffer. Progress that a client does not take is dropped, the
//! oldest first; a reply never is.

use crate::limits::PROGRESS_BYTES_MAX;
use crate::wire::sse;

#[derive(Clone, Copy, Debug)]
struct Frame {
    bytes: u32,
    is_progress: bool,
}

/// The queue of one answer.
#[derive(Default, Debug)]
pub struct EventQueue {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    progress_bytes: usize,
    ended: usize,
}

impl EventQueue {
    /// The events as they go on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.ended == 0
    }

    /// Bytes of progress that wait.
    pub fn progress_bytes(&self) -> usize {
        self.progress_bytes
    }

    /// How many calls have ended in this queue, with a reply or without.
    pub fn ended(&self) -> usize {
        self.ended
    }

    fn push(&mut self, is_progress: bool, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let before = self.bytes.len();
        sse::frame_with(&mut self.bytes, write);
        let bytes = self.bytes.len() - before;
        self.frames.push(Frame {
            bytes: bytes as u32,
            is_progress,
        });
        bytes
    }

    /// The reply that ends a call. `write` appends the message.
    pub fn reply(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.push(false, write);
        self.ended += 1;
    }

    /// A call has ended without a reply.
    pub fn end(&mut self) {
        self.ended += 1;
    }

    /// Progress of a call. Returns how many older messages were dropped for it.
    pub fn progress(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        self.progress_bytes += self.push(true, write);
        match self.progress_bytes > PROGRESS_BYTES_MAX {
            true => self.drop_progress(PROGRESS_BYTES_MAX / 2),
            false => 0,
        }
    }

    /// Drops progress, the oldest first, until at most `keep` bytes of it are
    /// left. Returns how many messages that were.
    pub fn drop_progress(&mut self, keep: usize) -> usize {
        let mut kept_bytes = Vec::new();
        let mut kept_frames = Vec::new();
        let mut dropped = 0;
        let mut at = 0;
        for frame in &self.frames {
            let end = at + frame.bytes as usize;
            if frame.is_progress && self.progress_bytes > keep {
                self.progress_bytes -= frame.bytes as usize;
                dropped += 1;
            } else {
                kept_bytes.extend_from_slice(&self.bytes[at..end]);
                kept_frames.push(*frame);
            }
            at = end;
        }
        self.bytes = kept_bytes;
        self.frames = kept_frames;
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(queue: &EventQueue) -> String {
        let text = String::from_utf8(queue.as_bytes().to_vec()).unwrap();
        text.replace("event: message\ndata: ", "")
            .replace("\n\n", ";")
    }

    #[test]
    fn events_keep_their_order() {
        let mut queue = EventQueue::default();
        queue.progress(|out| out.extend_from_slice(b"1"));
        queue.reply(|out| out.extend_from_slice(b"r"));
        queue.progress(|out| out.extend_from_slice(b"2"));
        queue.end();
        assert_eq!(text(&queue), "1;r;2;");
        assert_eq!(queue.ended(), 2);
    }

    #[test]
    fn the_oldest_progress_goes_first_and_replies_stay() {
        let mut queue = EventQueue::default();
        let big = vec![b'x'; 1_000];
        let mut dropped = 0;
        let mut sent = 0;
        queue.reply(|out| out.extend_from_slice(b"first"));
        while dropped == 0 {
            sent += 1;
            dropped += queue.progress(|out| out.extend_from_slice(&big));
        }
        queue.progress(|out| out.extend_from_slice(b"last"));
        assert!(queue.progress_bytes() <= PROGRESS_BYTES_MAX / 2 + 100);
        let text = text(&queue);
        assert!(text.starts_with("first;xxx") && text.ends_with("last;"));
        assert_eq!(text.matches(';').count(), 1 + sent - dropped + 1);
        assert_eq!(queue.drop_progress(0), sent - dropped + 1);
        assert_eq!(queue.len(), "event: message\ndata: first\n\n".len());
        assert_eq!(queue.progress_bytes(), 0);
    }
}
