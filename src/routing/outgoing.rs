//! Lines of one shard on their way to the hub. While the server takes what it
//! is given, a line goes straight into the batch under construction; when it
//! does not, lines wait per session and are taken in turns, so that a session
//! with thousands of calls does not hold up the others.

use std::collections::{HashMap, VecDeque};

use super::session::SessionKey;
use super::upstream_id::UpstreamId;

/// A call's line that waits for the window.
#[derive(Debug)]
struct Waiting {
    id: UpstreamId,
    line: Vec<u8>,
}

/// The queue. Invariant: while lines wait, none is added to the batch except
/// by [`Outgoing::refill`]; so a session's lines keep their order.
#[derive(Debug)]
pub struct Outgoing {
    /// Whole lines, each with its newline, in order.
    batch: Vec<u8>,
    /// Bytes handed over and not yet written to the server.
    unwritten: usize,
    window_bytes: usize,
    queues: HashMap<SessionKey, VecDeque<Waiting>, ahash::RandomState>,
    turns: VecDeque<SessionKey>,
    waiting_bytes: usize,
    waiting_bytes_max: usize,
}

/// The queue is full: the call is answered `overloaded`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the queue to the server is full")]
pub struct Overloaded;

/// What happened to a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// It stands in the batch: whatever follows for this call follows it.
    InBatch,
    /// It waits; when its call ends before its turn it is never sent.
    Waits,
}

impl Outgoing {
    /// A queue that hands over at most `window_bytes` before they are written,
    /// and keeps at most `waiting_bytes_max` beyond.
    pub fn new(
        window_bytes: usize,
        waiting_bytes_max: usize,
        hasher: ahash::RandomState,
    ) -> Outgoing {
        Outgoing {
            batch: Vec::new(),
            unwritten: 0,
            window_bytes,
            queues: HashMap::with_hasher(hasher),
            turns: VecDeque::new(),
            waiting_bytes: 0,
            waiting_bytes_max,
        }
    }

    fn window_is_open(&self) -> bool {
        self.unwritten + self.batch.len() < self.window_bytes
    }

    /// Adds the line of a call. `write` appends the line and its newline; it
    /// is told nothing of where. `size_hint` bounds what it will append.
    pub fn push(
        &mut self,
        session: SessionKey,
        id: UpstreamId,
        size_hint: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Placed, Overloaded> {
        if self.turns.is_empty() && self.window_is_open() {
            write(&mut self.batch);
            return Ok(Placed::InBatch);
        }
        if self.waiting_bytes + size_hint > self.waiting_bytes_max {
            return Err(Overloaded);
        }
        let mut line = Vec::with_capacity(size_hint);
        write(&mut line);
        self.waiting_bytes += line.len();
        let queue = self.queues.entry(session).or_default();
        if queue.is_empty() {
            self.turns.push_back(session);
        }
        queue.push_back(Waiting { id, line });
        Ok(Placed::Waits)
    }

    /// Adds a line that must not be lost and need not wait: a cancel. There is
    /// at most one for each call that was sent, which bounds them.
    pub fn push_control(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.batch);
    }

    /// Moves waiting lines into the batch, a session a turn, as far as the
    /// window allows. `begin` says whether a call still lives (and notes that
    /// it is sent); the line of one that does not is thrown away.
    pub fn refill(&mut self, mut begin: impl FnMut(UpstreamId) -> bool) {
        while self.window_is_open() {
            let Some(session) = self.turns.pop_front() else {
                return;
            };
            let Some(queue) = self.queues.get_mut(&session) else {
                continue;
            };
            if let Some(waiting) = queue.pop_front() {
                self.waiting_bytes -= waiting.line.len();
                if begin(waiting.id) {
                    self.batch.extend_from_slice(&waiting.line);
                }
            }
            if queue.is_empty() {
                self.queues.remove(&session);
            } else {
                self.turns.push_back(session);
            }
        }
    }

    /// Whether there is something to hand over.
    pub fn has_batch(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Hands the batch over, leaving `empty` (whose capacity is kept) behind.
    pub fn take_batch(&mut self, mut empty: Vec<u8>) -> Vec<u8> {
        empty.clear();
        let batch = std::mem::replace(&mut self.batch, empty);
        self.unwritten += batch.len();
        batch
    }

    /// Takes back a batch that could not be handed over: it goes first again.
    pub fn put_back(&mut self, mut batch: Vec<u8>) {
        self.unwritten -= batch.len();
        batch.extend_from_slice(&self.batch);
        self.batch = batch;
    }

    /// `bytes` of what was handed over have been written (or thrown away).
    pub fn written(&mut self, bytes: usize) {
        self.unwritten = self.unwritten.saturating_sub(bytes);
    }

    /// Bytes handed over and not yet written.
    pub fn unwritten_bytes(&self) -> usize {
        self.unwritten
    }

    /// Bytes that wait beyond the window.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Throws everything away: the server is gone.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.queues.clear();
        self.turns.clear();
        self.waiting_bytes = 0;
        self.unwritten = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(window: usize, waiting: usize) -> Outgoing {
        Outgoing::new(window, waiting, ahash::RandomState::with_seeds(1, 2, 3, 4))
    }

    fn id(n: u32) -> UpstreamId {
        UpstreamId::of_call(0, n, 1)
    }

    fn push(queue: &mut Outgoing, session: u32, text: &str) -> Result<Placed, Overloaded> {
        queue.push(SessionKey(session), id(0), text.len(), |out| {
            out.extend_from_slice(text.as_bytes());
        })
    }

    #[test]
    fn lines_go_straight_through_while_the_window_is_open() {
        let mut queue = queue(4, 100);
        assert_eq!(push(&mut queue, 1, "a\n"), Ok(Placed::InBatch));
        assert_eq!(push(&mut queue, 1, "b\n"), Ok(Placed::InBatch));
        assert_eq!(push(&mut queue, 1, "c\n"), Ok(Placed::Waits));
        assert_eq!(queue.take_batch(Vec::new()), b"a\nb\n");
        queue.refill(|_| true);
        assert!(!queue.has_batch(), "nothing was written yet");
        queue.written(4);
        queue.refill(|_| true);
        assert_eq!(queue.take_batch(Vec::new()), b"c\n");
    }

    #[test]
    fn waiting_sessions_take_turns() {
        let mut queue = queue(1, 1_000);
        push(&mut queue, 9, "full\n").unwrap();
        for n in 0..3 {
            push(&mut queue, 1, &format!("1.{n} ")).unwrap();
        }
        push(&mut queue, 2, "2.0 ").unwrap();
        queue.take_batch(Vec::new());
        queue.written(5);
        queue.window_bytes = 1_000;
        queue.refill(|_| true);
        assert_eq!(queue.take_batch(Vec::new()), b"1.0 2.0 1.1 1.2 ");
        assert_eq!(queue.waiting_bytes(), 0);
    }

    #[test]
    fn a_line_whose_call_ended_while_it_waited_is_never_sent() {
        let mut queue = queue(1, 100);
        push(&mut queue, 1, "x\n").unwrap();
        push(&mut queue, 1, "gone\n").unwrap();
        queue.take_batch(Vec::new());
        queue.written(2);
        queue.refill(|_| false);
        assert!(!queue.has_batch());
        assert_eq!(queue.waiting_bytes(), 0);
    }

    #[test]
    fn beyond_its_bound_the_queue_refuses() {
        let mut queue = queue(1, 4);
        push(&mut queue, 1, "x\n").unwrap();
        assert_eq!(push(&mut queue, 1, "abc\n"), Ok(Placed::Waits));
        assert_eq!(push(&mut queue, 2, "d\n"), Err(Overloaded));
    }

    #[test]
    fn a_batch_that_was_put_back_stays_first() {
        let mut queue = queue(100, 100);
        push(&mut queue, 1, "a\n").unwrap();
        let batch = queue.take_batch(Vec::new());
        push(&mut queue, 1, "b\n").unwrap();
        queue.put_back(batch);
        assert_eq!(queue.take_batch(Vec::new()), b"a\nb\n");
        assert_eq!(queue.unwritten, 4);
    }
}
