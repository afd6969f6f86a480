//! The events of one SSE answer that wait for their connection to take them, in
//! order. Progress that a client does not take is dropped, the oldest first; a
//! reply never is, and is never copied for what happens to others.

use std::collections::VecDeque;

use crate::limits::{PROGRESS_BYTES_MAX, PROGRESS_SEGMENT_BYTES};
use crate::wire::sse;

/// A part of the queue.
#[derive(Debug)]
enum Segment {
    Reply(Vec<u8>),
    Progress(Run),
}

/// Progress messages that stand together, in one buffer.
#[derive(Default, Debug)]
struct Run {
    bytes: Vec<u8>,
    /// Bytes before this have been dropped.
    start: usize,
    /// The lengths of the messages that are left.
    messages: VecDeque<u32>,
}

/// The queue of one answer.
#[derive(Default, Debug)]
pub struct EventQueue {
    segments: VecDeque<Segment>,
    bytes: usize,
    progress_bytes: usize,
    ended: usize,
}

impl EventQueue {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.ended == 0
    }

    /// Bytes of progress that wait.
    pub fn progress_bytes(&self) -> usize {
        self.progress_bytes
    }

    /// How many calls have ended in this queue, with a reply or without.
    pub fn ended(&self) -> usize {
        self.ended
    }

    /// The reply that ends a call. `write` appends the message.
    pub fn reply(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        sse::frame_with(&mut bytes, write);
        self.bytes += bytes.len();
        self.segments.push_back(Segment::Reply(bytes));
        self.ended += 1;
    }

    /// A message before the reply that is never dropped.
    pub fn message(&mut self, message: &[u8]) {
        self.reply(|out| out.extend_from_slice(message));
        self.ended -= 1;
    }

    /// A call has ended without a reply.
    pub fn end(&mut self) {
        self.ended += 1;
    }

    /// Progress of a call. Returns how many older messages were dropped for it.
    pub fn progress(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let has_room = matches!(self.segments.back(),
            Some(Segment::Progress(run)) if run.bytes.len() < PROGRESS_SEGMENT_BYTES);
        if !has_room {
            // What counts as waiting is what is there, not what a full run has grown to.
            if let Some(Segment::Progress(full)) = self.segments.back_mut() {
                full.bytes.shrink_to_fit();
            }
            self.segments.push_back(Segment::Progress(Run::default()));
        }
        if let Some(Segment::Progress(run)) = self.segments.back_mut() {
            let before = run.bytes.len();
            sse::frame_with(&mut run.bytes, write);
            let bytes = run.bytes.len() - before;
            run.messages.push_back(bytes as u32);
            self.bytes += bytes;
            self.progress_bytes += bytes;
        }
        match self.progress_bytes > PROGRESS_BYTES_MAX {
            true => self.drop_progress(PROGRESS_BYTES_MAX / 2),
            false => 0,
        }
    }

    /// Drops progress, the oldest first, until at most `keep` bytes of it are
    /// left. Returns how many messages that were.
    pub fn drop_progress(&mut self, keep: usize) -> usize {
        let mut dropped = 0;
        for segment in &mut self.segments {
            let Segment::Progress(run) = segment else {
                continue;
            };
            while self.progress_bytes > keep {
                let Some(bytes) = run.messages.pop_front() else {
                    break;
                };
                let bytes = bytes as usize;
                run.start += bytes;
                self.progress_bytes -= bytes;
                self.bytes -= bytes;
                dropped += 1;
            }
        }
        if dropped > 0 {
            self.segments.retain(|segment| match segment {
                Segment::Reply(_) => true,
                Segment::Progress(run) => !run.messages.is_empty(),
            });
        }
        dropped
    }

    /// Takes the next part of what goes on the wire: a whole number of events, and
    /// where they begin in it.
    pub fn next_part(&mut self) -> Option<(Vec<u8>, usize)> {
        let part = match self.segments.pop_front()? {
            Segment::Reply(bytes) => (bytes, 0),
            Segment::Progress(run) => {
                self.progress_bytes -= run.bytes.len() - run.start;
                (run.bytes, run.start)
            }
        };
        self.bytes -= part.0.len() - part.1;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(queue: &mut EventQueue) -> String {
        let mut all = Vec::new();
        while let Some((bytes, start)) = queue.next_part() {
            all.extend_from_slice(&bytes[start..]);
        }
        assert_eq!((queue.len(), queue.progress_bytes()), (0, 0));
        let text = String::from_utf8(all).unwrap();
        text.replace("event: message\ndata: ", "")
            .replace("\n\n", ";")
    }

    #[test]
    fn events_keep_their_order() {
        let mut queue = EventQueue::default();
        queue.progress(|out| out.extend_from_slice(b"1"));
        queue.progress(|out| out.extend_from_slice(b"2"));
        queue.reply(|out| out.extend_from_slice(b"r"));
        queue.progress(|out| out.extend_from_slice(b"3"));
        queue.end();
        assert_eq!(queue.ended(), 2);
        assert_eq!(text(&mut queue), "1;2;r;3;");
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
            dropped += queue.progress(|out| {
                out.extend_from_slice(format!("{sent} ").as_bytes());
                out.extend_from_slice(&big);
            });
        }
        queue.progress(|out| out.extend_from_slice(b"last"));
        assert!(queue.progress_bytes() <= PROGRESS_BYTES_MAX / 2 + 100);
        let text = text(&mut queue);
        let oldest = format!("first;{} xxx", dropped + 1);
        assert!(text.starts_with(&oldest) && text.ends_with("last;"));
        assert_eq!(text.matches(';').count(), 1 + sent - dropped + 1);
    }

    #[test]
    fn all_progress_can_go_from_between_replies() {
        let mut queue = EventQueue::default();
        for _ in 0..3 {
            queue.progress(|out| out.extend_from_slice(b"p"));
            queue.reply(|out| out.extend_from_slice(b"r"));
        }
        assert_eq!(queue.drop_progress(usize::MAX), 0);
        assert_eq!(queue.drop_progress(0), 3);
        assert_eq!(queue.progress_bytes(), 0);
        assert_eq!(text(&mut queue), "r;r;r;");
    }
}
