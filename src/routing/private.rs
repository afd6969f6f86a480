//! Sessions with an upstream session of their own, as behind an HTTP server. All that
//! such a server says in a session is that session's, so all of it is passed on, its
//! requests too. What is to be done upstream comes out as [`Order`]s; what came of
//! them goes in under their keys (`heard`, `ended`).
//!
//! A client's session and its upstream session are two: the server may forget its
//! own, and is then given a new handshake (`renewal`). Everything that belongs to one
//! upstream session carries its number, the epoch.

mod client;
mod exchanges;
mod heard;
mod opening;
mod queue;
mod renewal;
mod stream;

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

pub use super::ending::End;
use exchanges::What;
pub use exchanges::{ExchangeKey, Exchanges};
pub use heard::Heard;
pub use opening::{Opened, Opening, Unopened};
use queue::Queue;
pub use stream::is_final;

use super::session::{SessionId, SessionKey};
use super::time::Millis;
use super::upstream_id::UpstreamId;
use super::wheel::Deadline;
use crate::limits::{RENEWALS_MAX, RENEWALS_MS};
use crate::wire::handshake::Handshake;
use crate::wire::version::Version;

/// The method of an HTTP request to the upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Post,
    Get,
    Delete,
}

/// To which upstream session a request goes, and with which header lines.
#[derive(Clone, Debug)]
pub struct Address {
    /// The server's session id; `None` before it has given one, or if it gives none.
    pub session: Option<Rc<[u8]>>,
    /// Known from the handshake on.
    pub version: Option<Version>,
    /// Header lines that the client's requests pass on, whole.
    pub fields: Rc<[u8]>,
}

/// A request to the upstream.
#[derive(Clone, Debug)]
pub struct Request {
    pub verb: Verb,
    pub address: Address,
    pub body: Rc<[u8]>,
    /// That it arrives twice does no harm.
    pub may_repeat: bool,
    /// It is a client's call, whose own deadline counts; others have one of their own.
    pub is_call: bool,
    /// Of a GET: the last event that was seen.
    pub last_event_id: Option<Box<[u8]>>,
}

/// What is to be done upstream.
#[derive(Clone, Debug)]
pub enum Order {
    Begin(ExchangeKey, Request),
    /// Nobody waits for the answer any more: its connection is to be closed.
    Abort(ExchangeKey),
}

/// What a session has of its upstream session.
#[derive(Debug)]
pub struct Private {
    address: Address,
    /// Which upstream session this is, counted from 1.
    epoch: u32,
    phase: Phase,
    /// What waits for the phase to be over.
    waiting: Vec<Waiting>,
    /// The request that opened the session, for another handshake.
    initialize: Rc<[u8]>,
    initialize_id: UpstreamId,
    /// What the client was told that the server can do.
    handshake: Box<Handshake>,
    /// The client has said that it is ready, and the server has heard it.
    was_initialized: bool,
    /// The log level that the client has set: raw `params.level`.
    level: Option<Box<[u8]>>,
    /// The URIs to which it is subscribed.
    uris: HashSet<Box<str>, ahash::RandomState>,
    /// The server's requests that the client has not answered, by the ids that the
    /// client knows, with the raw ids of the server.
    asked: HashMap<u64, Box<[u8]>, ahash::RandomState>,
    next_asked: u64,
    /// Progress tokens of calls that asked for a task: they are used after the call's
    /// end. The newest last.
    task_tokens: VecDeque<(UpstreamId, Box<[u8]>)>,
    upward: UpwardStream,
    queue: Queue,
    /// The exchanges under way.
    exchanges: HashSet<ExchangeKey, ahash::RandomState>,
    notices: usize,
    renewals: Renewals,
}

impl Private {
    /// URIs to which the session is subscribed.
    pub(super) fn uris(&self) -> usize {
        self.uris.len()
    }

    pub(super) fn own_uris(&self) -> impl Iterator<Item = &str> {
        self.uris.iter().map(|uri| &**uri)
    }

    pub(super) fn has_uri(&self, uri: &str) -> bool {
        self.uris.contains(uri)
    }

    /// What the client was told that the server can do.
    pub(super) fn handshake(&self) -> &Handshake {
        &self.handshake
    }
}

/// How often a session was renewed of late: a server that forgets each new session at once
/// must not make Ringway ask without end.
#[derive(Clone, Copy, Default, Debug)]
struct Renewals {
    since: Millis,
    count: u32,
}

impl Renewals {
    fn is_over(&self, now: Millis) -> bool {
        self.since.after(RENEWALS_MS) <= now
    }

    fn may_begin(&self, now: Millis) -> bool {
        self.count < RENEWALS_MAX || self.is_over(now)
    }

    fn begin(&mut self, now: Millis) {
        if self.is_over(now) {
            *self = Renewals {
                since: now,
                count: 0,
            };
        }
        self.count += 1;
    }
}

/// The upstream GET stream of a session: open while the client has one open.
#[derive(Default, Debug)]
struct UpwardStream {
    exchange: Option<ExchangeKey>,
    /// Header lines that it was opened with.
    fields: Rc<[u8]>,
    /// It is being opened, and nothing of the session goes out before: servers lose
    /// what they say on a stream that is not open yet.
    is_awaited: bool,
    /// It has been open in this upstream session.
    has_worked: bool,
    /// The server has none.
    is_refused: bool,
    last_event_id: Option<Box<[u8]>>,
    /// What the server asks for by `retry:`, milliseconds.
    retry_ms: Option<u64>,
    /// It ended so often without a message.
    failures: u32,
    /// When it is opened again, or no longer awaited.
    deadline: Deadline,
}

/// Whether messages go upstream at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Ready,
    /// `notifications/initialized` is under way: nothing may overtake it.
    Initializing,
    /// The server has forgotten the session; a new handshake is under way, then this
    /// many requests that restore what was.
    Renewing {
        restoring: usize,
    },
}

/// Something that waits for its turn.
#[derive(Debug)]
struct Waiting {
    what: What,
    body: Rc<[u8]>,
    /// Header lines of the client's request that it goes with: its own, not later ones.
    fields: Rc<[u8]>,
    may_repeat: bool,
    was_replayed: bool,
}

/// A session, and the id that tells it from a later one in the same place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Whose {
    key: SessionKey,
    id: SessionId,
}

#[cfg(test)]
mod tests;
