//! The hub's side of its shards: the one that lives on the hub's own thread is
//! reached directly, the others through mailboxes. A shard that does not take
//! its letters gets an overflow of bounded bytes; progress is dropped first,
//! then the hub stops reading the server.

use std::collections::VecDeque;
use std::rc::Rc;

use crossbeam_channel::Receiver;

use crate::limits::{HUB_OVERFLOW_BYTES, LARGE_ANSWER_BYTES};
use crate::routing::hub::Shards;
use crate::routing::letters::{Kind, Lines, Messages, Note, ToShard};
use crate::routing::log_level::Level;
use crate::routing::upstream_id::UpstreamId;
use crate::runtime::bell::{Post, PostError};
use crate::wire::span::Span;

/// A shard on the hub's own thread.
pub trait LocalShard {
    /// Takes a letter at once.
    fn letter(&self, letter: ToShard);
    /// Takes a message of a call without a copy between.
    fn message(&self, kind: Kind, id: UpstreamId, span: Span, message: &[u8]);
    /// Gives the lines that are ready, leaving `empty` behind.
    fn take_lines(&self, empty: Vec<u8>) -> Vec<u8>;
    /// Gives what it has to say beside its lines, and which child that is for.
    fn take_notes(&self) -> (u64, Vec<Note>);
    /// This many bytes of its lines have been written.
    fn written(&self, bytes: usize);
    /// The most verbose log level that one of its sessions asks for.
    fn log_level(&self) -> Option<Level>;
}

/// One shard as the hub sees it.
pub enum Link {
    Local(Rc<dyn LocalShard>),
    Remote(Remote),
}

/// A shard on another thread.
pub struct Remote {
    post: Post<ToShard>,
    lines: Receiver<Lines>,
    batch: Messages,
    overflow: VecDeque<ToShard>,
    overflow_bytes: usize,
    /// Bytes written since the shard was last told.
    written: usize,
    log_level: Option<Level>,
}

impl Remote {
    pub fn new(post: Post<ToShard>, lines: Receiver<Lines>) -> Remote {
        Remote {
            post,
            lines,
            batch: Messages::default(),
            overflow: VecDeque::new(),
            overflow_bytes: 0,
            written: 0,
            log_level: None,
        }
    }

    fn queue(&mut self, letter: ToShard) {
        self.overflow_bytes += size(&letter);
        self.overflow.push_back(letter);
    }

    /// Sends what the mailbox takes. True if nothing is left.
    fn flush(&mut self) -> bool {
        if !self.batch.is_empty() {
            let batch = std::mem::take(&mut self.batch);
            self.queue(ToShard::Messages(batch));
        }
        if self.written > 0 {
            let written = std::mem::take(&mut self.written);
            self.queue(ToShard::Written(written));
        }
        let mut sent = false;
        while let Some(letter) = self.overflow.pop_front() {
            let bytes = size(&letter);
            match self.post.send(letter) {
                Ok(()) => {
                    self.overflow_bytes -= bytes;
                    sent = true;
                }
                Err(PostError::Full(letter)) => {
                    self.overflow.push_front(letter);
                    break;
                }
                // The thread has ended; the supervisor ends the process.
                Err(PostError::Gone(_)) => self.overflow_bytes -= bytes,
            }
        }
        if sent {
            self.post.ring();
        }
        self.overflow.is_empty()
    }
}

fn size(letter: &ToShard) -> usize {
    match letter {
        ToShard::Messages(messages) => messages.bytes(),
        ToShard::Large { line, .. } => line.len(),
        ToShard::Told { uri, .. } => uri.len() + size_of::<ToShard>(),
        ToShard::Up { .. } | ToShard::Written(_) | ToShard::Down => 0,
    }
}

impl Link {
    /// Hands over a message of a call. False if it was progress that the
    /// overflow had no room for.
    pub fn message(&mut self, kind: Kind, id: UpstreamId, span: Span, message: &[u8]) -> bool {
        match self {
            Link::Local(shard) => shard.message(kind, id, span, message),
            Link::Remote(remote) => {
                if kind == Kind::Progress && remote.overflow_bytes > HUB_OVERFLOW_BYTES / 2 {
                    return false;
                }
                if message.len() < LARGE_ANSWER_BYTES {
                    remote.batch.push(kind, id, span, message);
                } else {
                    let batch = std::mem::take(&mut remote.batch);
                    if !batch.is_empty() {
                        remote.queue(ToShard::Messages(batch));
                    }
                    remote.queue(ToShard::Large {
                        kind,
                        id,
                        id_span: span,
                        line: message.to_vec(),
                    });
                }
            }
        }
        true
    }

    /// Hands over a letter behind all messages so far.
    pub fn letter(&mut self, letter: ToShard) {
        match self {
            Link::Local(shard) => shard.letter(letter),
            Link::Remote(remote) => {
                remote.flush();
                remote.queue(letter);
                remote.flush();
            }
        }
    }

    /// Sends what has gathered. True if nothing is left waiting.
    pub fn flush(&mut self) -> bool {
        match self {
            Link::Local(_) => true,
            Link::Remote(remote) => remote.flush(),
        }
    }

    /// Whether the shard's overflow is over its bound.
    pub fn is_over(&self) -> bool {
        matches!(self, Link::Remote(remote) if remote.overflow_bytes > HUB_OVERFLOW_BYTES)
    }

    /// Moves the shard's next lines for child number `epoch` to the end of `out`,
    /// at most about `bytes_max`, and what it notes to `notes`, by the child that
    /// it is for. Returns how many bytes.
    pub fn take_lines(
        &mut self,
        out: &mut Vec<u8>,
        epoch: u64,
        bytes_max: usize,
        notes: &mut Vec<(u64, Vec<Note>)>,
    ) -> usize {
        let before = out.len();
        if let Link::Local(shard) = self {
            notes.extend(Some(shard.take_notes()).filter(|(_, notes)| !notes.is_empty()));
        }
        match self {
            Link::Local(shard) if out.is_empty() => {
                *out = shard.take_lines(std::mem::take(out));
            }
            Link::Local(shard) => out.extend_from_slice(&shard.take_lines(Vec::new())),
            Link::Remote(remote) => {
                while out.len() - before < bytes_max {
                    let Ok(lines) = remote.lines.try_recv() else {
                        break;
                    };
                    remote.log_level = lines.log_level;
                    if !lines.notes.is_empty() {
                        notes.push((lines.epoch, lines.notes));
                    }
                    match out.is_empty() {
                        _ if lines.epoch != epoch => {}
                        true => *out = lines.bytes,
                        false => out.extend_from_slice(&lines.bytes),
                    }
                }
            }
        }
        out.len() - before
    }

    /// `bytes` of the shard's lines have been written (or thrown away).
    pub fn written(&mut self, bytes: usize) {
        match self {
            Link::Local(shard) => shard.written(bytes),
            Link::Remote(remote) => remote.written += bytes,
        }
    }

    /// The most verbose log level that a session of the shard asks for, as far
    /// as the hub knows.
    pub fn log_level(&self) -> Option<Level> {
        match self {
            Link::Local(shard) => shard.log_level(),
            Link::Remote(remote) => remote.log_level,
        }
    }

    /// Whether lines wait in the mailbox of this shard.
    pub fn has_lines(&self) -> bool {
        matches!(self, Link::Remote(remote) if !remote.lines.is_empty())
    }
}

/// The shards, in their order.
pub struct Links(pub Vec<Link>);

impl Shards for Links {
    fn message(
        &mut self,
        shard: usize,
        kind: Kind,
        id: UpstreamId,
        span: Span,
        text: &[u8],
    ) -> bool {
        self.0[shard].message(kind, id, span, text)
    }

    fn letter(&mut self, shard: usize, letter: ToShard) {
        self.0[shard].letter(letter);
    }
}
