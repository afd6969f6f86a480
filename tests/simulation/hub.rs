//! The hub in small: the real state of the hub, with what `upstream::hub` and
//! `upstream::links` do around it. A shard is reached directly or by mailbox; a
//! mailbox that is full makes an overflow, which drops progress first and keeps
//! the order of all else.

use std::collections::VecDeque;

use ringway::routing::hub::{HubState, Shards};
use ringway::routing::letters::{Kind, Lines, Messages, Note, ToShard};
use ringway::routing::log_level::Level;
use ringway::routing::time::Millis;
use ringway::routing::upstream_id::UpstreamId;
use ringway::wire::handshake::Offer;
use ringway::wire::span::Span;

use crate::settings::Settings;
use crate::shard::Shard;

/// One shard as the hub sees it.
#[derive(Debug, Default)]
pub(crate) struct Link {
    is_local: bool,
    /// From the shard.
    pub(crate) lines: VecDeque<Lines>,
    batch: Messages,
    overflow: VecDeque<ToShard>,
    overflow_bytes: usize,
    written: usize,
    log_level: Option<Level>,
}

/// A write to the server that is not done yet.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) bytes: Vec<u8>,
    taken: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) state: HubState,
    pub(crate) links: Vec<Link>,
    pub(crate) writing: Option<Writing>,
    /// The handshake with the present child is done.
    pub(crate) has_opened: bool,
    /// The child whose end it has told the shards.
    pub(crate) ended: Option<u64>,
    turn: usize,
    mailbox_max: usize,
    overflow_bytes_max: usize,
    large_bytes: usize,
}

/// The shards, for the time of one event.
pub(crate) struct Doors<'a> {
    links: &'a mut [Link],
    shards: &'a mut [Shard],
    mailbox_max: usize,
    overflow_bytes_max: usize,
    large_bytes: usize,
}

impl Link {
    fn queue(&mut self, letter: ToShard) {
        self.overflow_bytes += size(&letter);
        self.overflow.push_back(letter);
    }

    /// Sends what the mailbox takes. True if something went.
    fn flush(&mut self, shard: &mut Shard, mailbox_max: usize) -> bool {
        if !self.batch.is_empty() {
            let batch = std::mem::take(&mut self.batch);
            self.queue(ToShard::Messages(batch));
        }
        if self.written > 0 {
            let written = std::mem::take(&mut self.written);
            self.queue(ToShard::Written(written));
        }
        let mut sent = false;
        while shard.letters.len() < mailbox_max
            && let Some(letter) = self.overflow.pop_front()
        {
            self.overflow_bytes -= size(&letter);
            shard.letters.push_back(letter);
            sent = true;
        }
        sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.batch.is_empty() && self.overflow.is_empty()
    }
}

fn size(letter: &ToShard) -> usize {
    match letter {
        ToShard::Messages(messages) => messages.bytes(),
        ToShard::Large { line, .. } => line.len(),
        _ => 0,
    }
}

impl Shards for Doors<'_> {
    fn message(
        &mut self,
        shard: usize,
        kind: Kind,
        id: UpstreamId,
        span: Span,
        text: &[u8],
    ) -> bool {
        let link = &mut self.links[shard];
        if link.is_local {
            self.shards[shard].message(kind, id, span, text);
            return true;
        }
        if kind == Kind::Progress && link.overflow_bytes > self.overflow_bytes_max / 2 {
            return false;
        }
        if text.len() < self.large_bytes {
            link.batch.push(kind, id, span, text);
            return true;
        }
        let batch = std::mem::take(&mut link.batch);
        if !batch.is_empty() {
            link.queue(ToShard::Messages(batch));
        }
        link.queue(ToShard::Large {
            kind,
            id,
            id_span: span,
            line: text.to_vec(),
        });
        true
    }

    fn letter(&mut self, shard: usize, letter: ToShard) {
        let link = &mut self.links[shard];
        let shard = &mut self.shards[shard];
        if link.is_local {
            shard.letter(letter);
            return;
        }
        link.flush(shard, self.mailbox_max);
        link.queue(letter);
        link.flush(shard, self.mailbox_max);
    }
}

impl Hub {
    pub(crate) fn new(seed: u64, settings: &Settings) -> Hub {
        let offer = Offer {
            get_streams: true,
            tasks: true,
        };
        let hasher = ahash::RandomState::with_seeds(seed, 3, 4, 5);
        let timeout_ms = settings.limits.request_timeout_ms;
        let mut links: Vec<_> = (0..settings.shards).map(|_| Link::default()).collect();
        links[0].is_local = settings.hub_is_local;
        Hub {
            state: HubState::new(settings.shards, offer, timeout_ms, hasher),
            links,
            writing: None,
            has_opened: false,
            ended: None,
            turn: 0,
            mailbox_max: settings.mailbox_max,
            overflow_bytes_max: settings.overflow_bytes_max,
            large_bytes: settings.large_bytes,
        }
    }

    pub(crate) fn with<T>(
        &mut self,
        shards: &mut [Shard],
        event: impl FnOnce(&mut HubState, &mut Doors<'_>) -> T,
    ) -> T {
        let mut doors = Doors {
            links: &mut self.links,
            shards,
            mailbox_max: self.mailbox_max,
            overflow_bytes_max: self.overflow_bytes_max,
            large_bytes: self.large_bytes,
        };
        event(&mut self.state, &mut doors)
    }

    /// Takes a shard's lines into its mailbox. They come back if it is full.
    pub(crate) fn post(&mut self, shard: usize, lines: Lines) -> Result<(), Lines> {
        let link = &mut self.links[shard];
        if link.lines.len() >= self.mailbox_max {
            return Err(lines);
        }
        link.lines.push_back(lines);
        Ok(())
    }

    pub(crate) fn is_local(&self, shard: usize) -> bool {
        self.links[shard].is_local
    }

    /// Whether some shard's overflow is over its bound: the server is not read.
    pub(crate) fn is_over(&self) -> bool {
        let max = self.overflow_bytes_max;
        self.links.iter().any(|link| link.overflow_bytes > max)
    }

    /// Fills the mailboxes. True if something went.
    pub(crate) fn fill_mailboxes(&mut self, shards: &mut [Shard]) -> bool {
        let mut sent = false;
        for (link, shard) in self.links.iter_mut().zip(shards) {
            sent |= !link.is_local && link.flush(shard, self.mailbox_max);
        }
        sent
    }

    fn tell_levels(&mut self, shards: &[Shard], now: Millis) {
        let links = self.links.iter().zip(shards);
        let levels = links.map(|(link, shard)| match link.is_local {
            true => shard.state.log_level(),
            false => link.log_level,
        });
        self.state.log_levels(levels, now);
    }

    /// Gathers the next write, if none is under way. `most` bounds what is taken of
    /// each mailbox. True if there is one now.
    pub(crate) fn gather(&mut self, shards: &mut [Shard], now: Millis, most: usize) -> bool {
        if self.writing.is_some() {
            return false;
        }
        let mut bytes = Vec::new();
        let mut taken = vec![0; shards.len()];
        let first = self.turn;
        self.turn = (first + 1) % shards.len();
        self.tell_levels(shards, now);
        self.state.take_lines(&mut bytes);
        for step in 0..shards.len() {
            let shard = (first + step) % shards.len();
            let before = bytes.len();
            for (epoch, notes) in self.take_lines(shard, shards, &mut bytes, most) {
                self.with(shards, |state, doors| {
                    state.notes(shard, epoch, notes, doors, now);
                });
            }
            taken[shard] = bytes.len() - before;
        }
        self.tell_levels(shards, now);
        self.state.take_lines(&mut bytes);
        if bytes.is_empty() {
            return false;
        }
        self.writing = Some(Writing { bytes, taken });
        true
    }

    fn take_lines(
        &mut self,
        shard: usize,
        shards: &mut [Shard],
        out: &mut Vec<u8>,
        most: usize,
    ) -> Vec<(u64, Vec<Note>)> {
        let link = &mut self.links[shard];
        let mut notes = Vec::new();
        if link.is_local {
            let state = &mut shards[shard].state;
            notes.push((state.epoch(), state.take_notes()));
            out.extend_from_slice(&state.outgoing.take_batch(Vec::new()));
            return notes;
        }
        for _ in 0..most {
            let Some(lines) = link.lines.pop_front() else {
                break;
            };
            link.log_level = lines.log_level;
            notes.push((lines.epoch, lines.notes));
            if lines.epoch == self.state.epoch() {
                out.extend_from_slice(&lines.bytes);
            }
        }
        notes
    }

    /// The write is done.
    pub(crate) fn acknowledge(&mut self, writing: Writing, shards: &mut [Shard]) {
        for (shard, taken) in writing.taken.into_iter().enumerate() {
            match self.links[shard].is_local {
                _ if taken == 0 => {}
                true => shards[shard].written(taken),
                false => self.links[shard].written += taken,
            }
        }
        self.fill_mailboxes(shards);
    }
}
