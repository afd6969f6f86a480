//! What the hub and the shards send each other. Small messages travel in
//! batches, one buffer each; a large answer is moved whole, so that no
//! reference count is shared between cores.

use std::sync::Arc;

use super::ledger::Told;
use super::log_level::Level;
use super::upstream_id::UpstreamId;
use crate::wire::handshake::Handshake;
use crate::wire::notice::Kinds;
use crate::wire::span::Span;

/// From the hub to a shard.
#[derive(Debug)]
pub enum ToShard {
    /// The upstream is there: child number `epoch`.
    Up {
        epoch: u64,
        handshake: Arc<Handshake>,
    },
    /// Messages for calls and sessions of the shard.
    Messages(Messages),
    /// A message of at least [`crate::limits::LARGE_ANSWER_BYTES`].
    Large {
        kind: Kind,
        id: UpstreamId,
        id_span: Span,
        line: Vec<u8>,
    },
    /// This many bytes of the shard's lines have been written to the server.
    Written(usize),
    /// The upstream is gone.
    Down,
    /// What the ledger says about a URI.
    Told { uri: Box<str>, told: Told },
}

/// A batch of messages in one buffer.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    id: UpstreamId,
    /// The value to replace, within the message.
    span: Span,
    end: u32,
}

/// What a message in a batch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A result.
    Result,
    /// The server's own error.
    Error,
    Progress,
    /// The server's answer was over `--max-message`; there is no text.
    TooLong,
    /// The result of a call that asks for a task, with the id of a task that
    /// another shard's session owns.
    ForeignTask,
    /// `notifications/tasks/status`.
    TaskStatus,
    /// The text is the decoded URI of an updated resource.
    Updated,
    /// Lists have changed; there is no text.
    Changed(Kinds),
}

impl Messages {
    /// Appends a message. `span` is where the id or token stands in it.
    pub fn push(&mut self, kind: Kind, id: UpstreamId, span: Span, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.entries.push(Entry {
            kind,
            id,
            span,
            end: self.bytes.len() as u32,
        });
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that the batch takes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }

    /// The messages in their order.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, UpstreamId, Span, &[u8])> {
        let mut start = 0;
        self.entries.iter().map(move |entry| {
            let message = &self.bytes[start..entry.end as usize];
            start = entry.end as usize;
            (entry.kind, entry.id, entry.span, message)
        })
    }
}

/// From a shard to the hub: whole lines, each with its newline, meant for child
/// number `epoch`. Another child must never see them: their calls have been
/// answered, and running them again could do something twice.
#[derive(Debug)]
pub struct Lines {
    pub epoch: u64,
    pub bytes: Vec<u8>,
    /// The most verbose log level that a session of the shard asks for.
    pub log_level: Option<Level>,
    pub notes: Vec<Note>,
}

/// What a shard tells the hub beside its lines. Notes are never dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A session wants this URI, which no session of the shard has yet. Meant for
    /// the child of its batch.
    Want(Box<str>),
    /// No session of the shard holds this URI any more.
    Release(Box<str>),
    /// A task without an owner is to be cancelled. Meant for the child of its batch.
    CancelTask(Box<str>),
    /// A claim of this task is given back: no session of the shard owns it by that
    /// answer any more, or one never did. Once for each [`Kind::Result`] that tells
    /// of a task. Meant for the child of its batch.
    ForgetTask(Box<str>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_gives_its_messages_back_in_order() {
        let mut batch = Messages::default();
        let span = Span { start: 1, end: 2 };
        for (n, text) in ["first", "", "third"].iter().enumerate() {
            let id = UpstreamId::of_call(0, n as u32, 1);
            batch.push(Kind::Result, id, span, text.as_bytes());
        }
        let texts: Vec<_> = batch
            .iter()
            .map(|(_, id, _, text)| (id.slot(), text))
            .collect();
        assert_eq!(texts, [(0, &b"first"[..]), (1, b""), (2, b"third")]);
    }
}
