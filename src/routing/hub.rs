//! The state of the hub, without its I/O: the handshake with the server, the
//! ledger of subscriptions, the log level, the hub's own lines to the server. A
//! line of the server goes in, messages for shards come out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexSet;

use super::drops::DropReason;
use super::ledger::{self, Ask, Ledger, Refusal, Told};
use super::letters::{Kind, Note, ToShard};
use super::log_level::{Level, LogLevel};
use super::server_line::{Route, route};
use super::time::Millis;
use super::upstream_id::UpstreamId;
use crate::limits::{
    HUB_ANSWERS_BYTES, LEDGER_REQUESTS_MAX, ORPHANS_MAX, TASK_ANSWER_BYTES_MAX,
    UPDATED_URI_BYTES_MAX,
};
use crate::wire::handshake::{Handshake, HandshakeError, Offer};
use crate::wire::notice::Kinds;
use crate::wire::reply::{self, json_string};
use crate::wire::span::Span;
use crate::wire::task;
use crate::wire::version::Version;

/// Where the hub puts what is for a shard. Of one shard everything arrives in
/// this order.
pub trait Shards {
    /// A message. False if it was progress for which there was no room.
    fn message(
        &mut self,
        shard: usize,
        kind: Kind,
        id: UpstreamId,
        span: Span,
        text: &[u8],
    ) -> bool;
    /// A letter.
    fn letter(&mut self, shard: usize, letter: ToShard);
}

/// Why the handshake with the server failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("it refused initialize: {0}")]
    Refused(String),
}

/// What a line meant beside what has gone to the shards.
#[derive(Debug)]
pub enum Heard {
    /// It went where it belongs.
    Routed,
    /// The same; its id came as a decimal string.
    Quoted,
    /// Nobody gets it.
    Dropped(DropReason),
    /// It ended the handshake.
    Opened(Arc<Handshake>),
    /// It ended the handshake, which failed.
    Failed(OpenError),
}

/// The hub of one shared server.
#[derive(Debug)]
pub struct HubState {
    shards: usize,
    offer: Offer,
    /// Which child this is, counted from 1.
    epoch: u64,
    sequence: u32,
    handshake_id: Option<UpstreamId>,
    log_level: LogLevel,
    log_level_id: Option<UpstreamId>,
    has_logging: bool,
    ledger: Ledger,
    /// Tasks without an owner that the server was asked to cancel.
    cancels: HashSet<UpstreamId, ahash::RandomState>,
    /// The shards whose sessions own tasks, where there are several shards, and how
    /// often each has claimed its task: it gives every claim back once, so that one
    /// given back late takes nothing from a newer one.
    tasks: HashMap<Box<str>, (usize, u32), ahash::RandomState>,
    /// How long the server may take to answer.
    timeout_ms: u64,
    log_level_due: Millis,
    /// The hub's own lines to the server.
    lines: Vec<u8>,
    /// What has changed since the last [`HubState::flush`]: a server that says so
    /// a thousand times at once costs each session one mark.
    changed: Kinds,
    updated: IndexSet<Box<str>, ahash::RandomState>,
}

/// The range of a message that has none to replace.
const NO_SPAN: Span = Span { start: 0, end: 0 };

impl HubState {
    /// `hasher` carries random keys. `timeout_ms` is how long the server may take
    /// to answer a request of the ledger.
    pub fn new(
        shards: usize,
        offer: Offer,
        timeout_ms: u64,
        hasher: ahash::RandomState,
    ) -> HubState {
        HubState {
            shards,
            offer,
            epoch: 0,
            sequence: 0,
            handshake_id: None,
            log_level: LogLevel::new(shards),
            log_level_id: None,
            has_logging: false,
            ledger: Ledger::new(hasher.hash_one(1u64), timeout_ms),
            cancels: HashSet::with_hasher(hasher.clone()),
            tasks: HashMap::with_hasher(hasher.clone()),
            timeout_ms,
            log_level_due: Millis::NEVER,
            lines: Vec::new(),
            changed: Kinds::NONE,
            updated: IndexSet::with_hasher(hasher),
        }
    }

    /// Which child the hub talks to, counted from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Tasks that sessions own, as far as the hub has to know.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Requests to cancel a task that the server has not answered.
    pub fn cancels(&self) -> usize {
        self.cancels.len()
    }

    fn next_id(sequence: &mut u32) -> UpstreamId {
        let id = UpstreamId::of_hub(*sequence);
        *sequence = sequence.wrapping_add(1);
        id
    }

    /// A new child is there: the handshake begins.
    pub fn begin(&mut self) {
        self.epoch += 1;
        self.lines.clear();
        self.log_level.restart();
        self.log_level_id = None;
        self.has_logging = false;
        self.cancels.clear();
        let id = Self::next_id(&mut self.sequence);
        self.handshake_id = Some(id);
        self.request(id, "initialize", |out| {
            out.extend_from_slice(br#"{"protocolVersion":"#);
            json_string(out, Version::NEWEST.as_str());
            out.extend_from_slice(
                br#","capabilities":{},"clientInfo":{"name":"ringway","version":"#,
            );
            json_string(out, env!("CARGO_PKG_VERSION"));
            out.extend_from_slice(b"}}");
        });
    }

    fn request(&mut self, id: UpstreamId, method: &str, params: impl FnOnce(&mut Vec<u8>)) {
        let out = &mut self.lines;
        reply::request(out, id.digits(&mut itoa::Buffer::new()), method, params);
        out.push(b'\n');
    }

    /// The child is gone: every shard is told.
    pub fn end(&mut self, shards: &mut impl Shards) {
        self.flush(shards);
        self.ledger.down();
        self.lines.clear();
        self.cancels.clear();
        self.tasks.clear();
        self.handshake_id = None;
        for shard in 0..self.shards {
            shards.letter(shard, ToShard::Down);
        }
    }

    /// Whether there are lines for the server.
    pub fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Moves the hub's own lines behind `out`.
    pub fn take_lines(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.lines);
        if self.lines.capacity() > HUB_ANSWERS_BYTES {
            self.lines = Vec::new();
        }
    }

    /// The server has written a line: `text` without blanks around it.
    pub fn line(&mut self, text: &[u8], shards: &mut impl Shards, now: Millis) -> Heard {
        match route(text, self.shards) {
            Route::Answer {
                shard,
                id,
                id_span,
                quoted,
                is_error,
            } => {
                let kind = match is_error {
                    true => Kind::Error,
                    false if id.asks_for_task() && !self.claim_task(shard, text) => {
                        Kind::ForeignTask
                    }
                    false => Kind::Result,
                };
                shards.message(shard, kind, id, id_span, text);
                match quoted {
                    true => Heard::Quoted,
                    false => Heard::Routed,
                }
            }
            Route::Progress {
                shard,
                id,
                token_span,
            } => match shards.message(shard, Kind::Progress, id, token_span, text) {
                true => Heard::Routed,
                false => Heard::Dropped(DropReason::SlowReader),
            },
            Route::TaskStatus(_) if text.len() > TASK_ANSWER_BYTES_MAX => {
                Heard::Dropped(DropReason::Task)
            }
            Route::TaskStatus(task) => {
                let shard = match self.shards {
                    1 => Some(0),
                    _ => self.tasks.get(&task).map(|(owner, _)| *owner),
                };
                let Some(shard) = shard else {
                    return Heard::Dropped(DropReason::Task);
                };
                let nobody = UpstreamId::of_hub(0);
                shards.message(shard, Kind::TaskStatus, nobody, NO_SPAN, text);
                Heard::Routed
            }
            Route::Changed(kinds) if self.offer.get_streams => {
                self.changed = self.changed.with(kinds);
                Heard::Routed
            }
            Route::Updated(uri) if self.offer.get_streams && uri.len() <= UPDATED_URI_BYTES_MAX => {
                if self.ledger.holders(&uri).is_empty() {
                    return Heard::Dropped(DropReason::Change);
                }
                self.updated.insert(uri);
                Heard::Routed
            }
            Route::Changed(_) | Route::Updated(_) => Heard::Dropped(DropReason::Change),
            Route::Own { id, outcome } => {
                let outcome = outcome.map(|s| s.of(text)).map_err(|s| s.of(text));
                self.own_answer(id, outcome, shards, now)
            }
            Route::Reply(message) => self.reply(&message),
            Route::Drop(reason) => Heard::Dropped(reason),
        }
    }

    /// A call of `shard` that asks for a task has this result. False if it names a
    /// task of another shard's session; those of its own shard it knows itself.
    fn claim_task(&mut self, shard: usize, text: &[u8]) -> bool {
        if self.shards == 1 {
            return true;
        }
        let Some(created) = task::created_in(text) else {
            return true;
        };
        let claim = self.tasks.entry(created.task_id.into());
        let (owner, claims) = claim.or_insert((shard, 0));
        let is_own = *owner == shard;
        *claims += u32::from(is_own);
        is_own
    }

    /// Answers the server. A server that asks without reading gets no more than
    /// a bounded queue.
    fn reply(&mut self, message: &[u8]) -> Heard {
        if self.lines.len() + message.len() > HUB_ANSWERS_BYTES {
            return Heard::Dropped(DropReason::AnswerOverflow);
        }
        self.lines.extend_from_slice(message);
        self.lines.push(b'\n');
        Heard::Routed
    }

    fn own_answer(
        &mut self,
        id: UpstreamId,
        outcome: Result<&[u8], &[u8]>,
        shards: &mut impl Shards,
        now: Millis,
    ) -> Heard {
        if self.handshake_id == Some(id) {
            self.handshake_id = None;
            return self.opened(outcome, shards, now);
        }
        if self.log_level_id == Some(id) {
            self.log_level_id = None;
            self.log_level.answered();
            return Heard::Routed;
        }
        if self.cancels.remove(&id) {
            return Heard::Routed;
        }
        let outcome = outcome.map(drop).map_err(refusal);
        let is_known = self.with_ledger(shards, |ledger, next_id, acts| {
            ledger.answered(id, outcome, now, next_id, acts)
        });
        match is_known {
            true => Heard::Routed,
            false => Heard::Dropped(DropReason::UnknownId),
        }
    }

    fn opened(
        &mut self,
        outcome: Result<&[u8], &[u8]>,
        shards: &mut impl Shards,
        now: Millis,
    ) -> Heard {
        let handshake = match outcome {
            Ok(result) => Handshake::read(result, self.offer).map_err(OpenError::from),
            Err(error) => Err(OpenError::Refused(
                String::from_utf8_lossy(error).chars().take(500).collect(),
            )),
        };
        let handshake = match handshake {
            Ok(handshake) => Arc::new(handshake),
            Err(error) => return Heard::Failed(error),
        };
        self.lines
            .extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        self.has_logging = handshake.logging;
        for shard in 0..self.shards {
            let letter = ToShard::Up {
                epoch: self.epoch,
                handshake: handshake.clone(),
            };
            shards.letter(shard, letter);
        }
        let subscribe = handshake.subscribe;
        self.with_ledger(shards, |ledger, next_id, acts| {
            ledger.up(subscribe, now, next_id, acts);
        });
        Heard::Opened(handshake)
    }

    /// What shard `shard` notes, in the batch for child number `epoch`.
    pub fn notes(
        &mut self,
        shard: usize,
        epoch: u64,
        notes: Vec<Note>,
        shards: &mut impl Shards,
        now: Millis,
    ) {
        let is_current = epoch == self.epoch;
        for note in notes {
            match note {
                Note::Want(uri) if is_current && self.ledger.requests() >= LEDGER_REQUESTS_MAX => {
                    let told = Told::Overloaded;
                    shards.letter(shard, ToShard::Told { uri, told });
                }
                Note::Want(uri) if is_current => {
                    self.with_ledger(shards, |ledger, next_id, acts| {
                        ledger.want(shard, &uri, now, next_id, acts);
                    });
                }
                Note::Release(uri) => self.with_ledger(shards, |ledger, next_id, acts| {
                    ledger.release(shard, &uri, now, next_id, acts);
                }),
                Note::CancelTask(id) if is_current => self.cancel_task(&id),
                Note::ForgetTask(id) if is_current => self.forget_task(shard, &id),
                // The shard has answered those who waited; the task is no more.
                Note::Want(_) | Note::CancelTask(_) | Note::ForgetTask(_) => {}
            }
        }
    }

    fn forget_task(&mut self, shard: usize, task: &str) {
        let known = self.tasks.get_mut(task);
        if let Some((_, claims)) = known.filter(|(owner, _)| *owner == shard) {
            *claims -= 1;
            if *claims == 0 {
                self.tasks.remove(task);
            }
        }
    }

    fn cancel_task(&mut self, task: &str) {
        let id = Self::next_id(&mut self.sequence);
        if self.cancels.len() >= ORPHANS_MAX {
            // A server that never answers these: its late answers are unknown then.
            self.cancels.clear();
        }
        self.cancels.insert(id);
        self.request(id, "tasks/cancel", |out| {
            out.extend_from_slice(br#"{"taskId":"#);
            json_string(out, task);
            out.push(b'}');
        });
    }

    /// Time passes.
    pub fn tick(&mut self, now: Millis, shards: &mut impl Shards) {
        if self.log_level_id.is_some() && self.log_level_due <= now {
            self.log_level_id = None;
            self.log_level.answered();
        }
        self.with_ledger(shards, |ledger, next_id, acts| {
            ledger.tick(now, next_id, acts);
        });
    }

    fn with_ledger<T>(
        &mut self,
        shards: &mut impl Shards,
        event: impl FnOnce(&mut Ledger, &mut dyn FnMut() -> UpstreamId, &mut Vec<ledger::Act>) -> T,
    ) -> T {
        let mut acts = Vec::new();
        let sequence = &mut self.sequence;
        let outcome = event(&mut self.ledger, &mut || Self::next_id(sequence), &mut acts);
        for act in acts {
            match act {
                ledger::Act::Send { id, ask, uri } => {
                    let method = match ask {
                        Ask::Subscribe => "resources/subscribe",
                        Ask::Unsubscribe => "resources/unsubscribe",
                    };
                    self.request(id, method, |out| {
                        out.extend_from_slice(br#"{"uri":"#);
                        json_string(out, &uri);
                        out.push(b'}');
                    });
                }
                ledger::Act::Withdraw { id } => {
                    let mut buffer = itoa::Buffer::new();
                    let digits = id.digits(&mut buffer);
                    let reason = reply::Reason::Timeout.word();
                    reply::cancelled_line(&mut self.lines, digits, reason);
                }
                ledger::Act::Tell { shard, uri, told } => {
                    shards.letter(shard, ToShard::Told { uri, told });
                }
            }
        }
        outcome
    }

    /// Tells the shards what has changed since the last time. Call it after each
    /// batch of lines.
    pub fn flush(&mut self, shards: &mut impl Shards) {
        let nobody = UpstreamId::of_hub(0);
        let changed = std::mem::take(&mut self.changed);
        if !changed.is_empty() {
            for shard in 0..self.shards {
                shards.message(shard, Kind::Changed(changed), nobody, NO_SPAN, b"");
            }
        }
        for uri in self.updated.drain(..) {
            // Asked again: who has let go since is not told.
            for shard in self.ledger.holders(&uri).iter() {
                shards.message(shard, Kind::Updated, nobody, NO_SPAN, uri.as_bytes());
            }
        }
    }

    /// The most verbose log level of each shard's sessions, in the shards' order.
    /// If the server is to be told another one than it has, the request for it is
    /// among the hub's lines then.
    pub fn log_levels(&mut self, levels: impl Iterator<Item = Option<Level>>, now: Millis) {
        if !self.has_logging {
            return;
        }
        for (shard, level) in levels.enumerate() {
            self.log_level.set(shard, level);
        }
        let Some(level) = self.log_level.to_tell() else {
            return;
        };
        let id = Self::next_id(&mut self.sequence);
        self.log_level_id = Some(id);
        self.log_level_due = now.after(self.timeout_ms);
        self.request(id, "logging/setLevel", |out| {
            out.extend_from_slice(br#"{"level":"#);
            json_string(out, level);
            out.push(b'}');
        });
    }
}

/// Characters of a server's own error message that clients are told at most.
const REFUSAL_CHARACTERS_MAX: usize = 1_000;

/// Code and message of a raw error; nothing else of it is for others.
fn refusal(error: &[u8]) -> Refusal {
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
        message: String,
    }
    match serde_json::from_slice::<Error>(error) {
        Ok(error) => Refusal {
            code: error.code,
            message: error.message.chars().take(REFUSAL_CHARACTERS_MAX).collect(),
        },
        Err(_) => Refusal {
            code: i64::from(reply::INTERNAL_ERROR),
            message: "The upstream server refused".into(),
        },
    }
}

#[cfg(test)]
mod tests;
