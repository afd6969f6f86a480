//! One shard's routing state: its sessions, its calls in flight, the lines on
//! their way to the hub, the deadlines. Events come in with the time; what is
//! to be done comes out as values. The I/O around it lives in `http` and
//! `upstream`.

use std::sync::Arc;

use super::calls::{About, Call, Calls, ClientId, ReplyTo};
use super::interest::{Interests, ShownUris};
use super::letters::Note;
use super::log_level::{Asked, Level};
use super::outcome::Outcome;
use super::outgoing::Outgoing;
use super::private::Exchanges;
use super::session::{SessionId, SessionKey, Sessions, StreamId, TokenId};
use super::tasks::Tasks;
use super::time::Millis;
use super::upstream_id::UpstreamId;
use super::wheel::Wheel;
use crate::limits::{SHARD_WINDOW_BYTES, TICK_MS};
use crate::wire::handshake::{Handshake, Offer};
use crate::wire::reply::{self, Reason};
use crate::wire::version::Version;

/// The bounds of one shard. Counts and bytes are the shard's own share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardLimits {
    pub sessions_max: usize,
    pub calls_max: usize,
    pub calls_per_session_max: usize,
    pub subscriptions_per_session_max: usize,
    /// Tasks of a session that are not terminal.
    pub tasks_per_session_max: usize,
    /// Bytes of `params.uri` as it stands in a request.
    pub uri_bytes_max: usize,
    /// Bytes of lines that wait for the server.
    pub waiting_bytes_max: usize,
    /// Silence after which a call is answered `timeout`, milliseconds.
    pub request_timeout_ms: u64,
    /// Age at which a call is answered `timeout` whatever was heard, milliseconds.
    pub request_timeout_max_ms: u64,
    /// Silence after which a session ends, milliseconds.
    pub session_ttl_ms: u64,
    /// The same for a session that was never used after `initialize`.
    pub session_unused_ms: u64,
}

/// A call that ended without an answer from the server.
#[derive(Debug)]
pub struct Ended {
    pub call: Call,
    pub reason: Reason,
}

impl Ended {
    /// The JSON-RPC error that tells the client. `upstream`: the server's name, where clients
    /// are told it.
    pub fn body(&self, upstream: Option<&str>) -> Vec<u8> {
        reply::failure_at(upstream, Some(self.call.client_id.raw()), self.reason)
    }

    pub fn reply_to(&self) -> ReplyTo {
        self.call.reply_to
    }
}

/// What is to be done for clients after an event.
#[derive(Debug)]
pub enum Act {
    /// A call has ended without an answer of the server.
    End(Ended),
    /// A call is answered with this message of Ringway's own.
    Answer {
        call: Call,
        message: Vec<u8>,
        outcome: Outcome,
    },
    /// A GET stream is over: it ends cleanly.
    CloseStream(StreamId),
    /// A GET stream has something to write.
    WakeStream(StreamId),
    /// A call whose session is over upstream: 404.
    NotFound(Call),
    /// The server no longer takes a subscription that a session had.
    LostSubscription,
}

/// The table of sessions is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("too many sessions")]
pub struct SessionsFull;

/// The routing state of one shard.
#[derive(Debug)]
pub struct ShardState {
    pub(super) shard: usize,
    pub(super) shards: usize,
    pub sessions: Sessions,
    pub(super) calls: Calls,
    pub outgoing: Outgoing,
    pub(super) log_levels: Asked,
    pub(super) interests: Interests,
    pub(super) tasks: Tasks,
    /// What the hub is to be told; it waits here however long the hub takes.
    pub(super) notes: Vec<Note>,
    pub(super) hasher: ahash::RandomState,
    /// What clients are told of the server that is not there: its name among several.
    pub(super) upstream_name: Option<Arc<str>>,
    /// The last handshake: `initialize` is answered from it also while the
    /// upstream is down.
    handshake: Option<Arc<Handshake>>,
    /// Updates of resources so far.
    pub(super) updates: u64,
    /// When something happened last.
    pub(super) now: Millis,
    /// Which child the calls go to, while one is there.
    pub(super) epoch: Option<u64>,
    pub(super) is_draining: bool,
    /// Sessions with an open GET stream.
    pub(super) streams: usize,
    pub(super) limits: ShardLimits,
    /// Where sessions have upstreams of their own.
    pub(super) private: Option<Exchanges>,
    pub(super) offer: Offer,
    /// Of sessions with upstreams of their own: new handshakes after the server had
    /// forgotten a session; streams that were closed because their client did not read;
    /// notifications and answers that were lost because the server takes nothing.
    pub renewals: u64,
    pub stream_overflows: u64,
    pub lost_notices: u64,
    /// Ids that servers' requests have for clients are multiples of the second and this.
    pub(super) asked_place: (u64, u64),
    /// How many times that, where several upstreams share the ids.
    pub(super) next_asked: u64,
    call_wheel: Wheel<u32>,
    session_wheel: Wheel<SessionKey>,
}

impl ShardState {
    /// The state of shard `shard` of `shards`, before the upstream is there.
    /// `hasher` carries random keys, so that clients cannot aim at collisions.
    pub fn new(
        shard: usize,
        shards: usize,
        limits: ShardLimits,
        hasher: ahash::RandomState,
        now: Millis,
    ) -> ShardState {
        ShardState {
            shard,
            shards,
            sessions: Sessions::new(limits.sessions_max, hasher.clone()),
            calls: Calls::new(shard, limits.calls_max, hasher.clone()),
            outgoing: Outgoing::new(SHARD_WINDOW_BYTES, limits.waiting_bytes_max, hasher.clone()),
            log_levels: Asked::default(),
            interests: Interests::new(hasher.clone()),
            tasks: Tasks::new(limits.tasks_per_session_max, hasher.clone()),
            notes: Vec::new(),
            hasher,
            upstream_name: None,
            handshake: None,
            updates: 0,
            now,
            epoch: None,
            is_draining: false,
            streams: 0,
            limits,
            private: None,
            offer: Offer {
                get_streams: false,
                tasks: false,
            },
            renewals: 0,
            stream_overflows: 0,
            lost_notices: 0,
            asked_place: (0, 1),
            next_asked: 1,
            call_wheel: Wheel::new(TICK_MS, now),
            session_wheel: Wheel::new(TICK_MS * 20, now),
        }
    }

    /// The same for sessions with upstreams of their own; there is no child then.
    pub fn with_private(mut self, offer: Offer, now: Millis) -> ShardState {
        let bytes_max = self.limits.waiting_bytes_max;
        self.private = Some(Exchanges::new(bytes_max, self.hasher.clone(), now));
        self.offer = offer;
        self.epoch = Some(1);
        self
    }

    /// The same as one of several upstreams of sessions: what servers ask of clients has ids
    /// that are `place` more than a multiple of `stride`.
    pub fn in_place(mut self, place: u64, stride: u64) -> ShardState {
        self.asked_place = (place, stride);
        self
    }

    /// How clients know the URIs of the server.
    pub fn set_names(&mut self, names: ShownUris) {
        self.interests.set_names(names);
    }

    /// Under which name clients are told of a failure of the server, if there are several.
    pub fn set_upstream_name(&mut self, name: Option<Arc<str>>) {
        self.upstream_name = name;
    }

    pub fn upstream_name(&self) -> Option<&str> {
        self.upstream_name.as_deref()
    }

    /// The place that the ids of servers' requests tell.
    pub fn asked_place(&self) -> u64 {
        self.asked_place.0
    }

    /// What is under way with the sessions' own upstreams.
    pub fn exchanges(&mut self) -> Option<&mut Exchanges> {
        self.private.as_mut()
    }

    /// Bytes that wait for the server, and for GET streams of sessions with upstreams of
    /// their own.
    pub fn waiting_bytes(&self) -> usize {
        let private = self.private.as_ref();
        self.outgoing.waiting_bytes() + private.map_or(0, Exchanges::held_bytes)
    }

    /// Requests under way at the sessions' own upstreams.
    pub fn exchanges_under_way(&self) -> usize {
        self.private.as_ref().map_or(0, Exchanges::len)
    }

    /// Child number `epoch` is there, with the outcome of its handshake. If it
    /// can do less than the one before, every session ends: what the client
    /// was told in its handshake no longer holds. Else every session is told
    /// that all lists may have changed.
    pub fn upstream_up(&mut self, epoch: u64, handshake: Arc<Handshake>, acts: &mut Vec<Act>) {
        let before = self.handshake.replace(handshake.clone());
        self.epoch = Some(epoch);
        match before {
            None => {}
            Some(before) if handshake.is_less_than(&before) => {
                for key in self.sessions.keys() {
                    self.end_session(key, acts);
                }
            }
            Some(_) => self.changed(handshake.kinds, acts),
        }
    }

    /// Whether the server is there.
    pub fn is_up(&self) -> bool {
        self.epoch.is_some()
    }

    /// From now on new calls are answered `draining`.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Which child the lines in the batch are for.
    pub fn epoch(&self) -> u64 {
        self.epoch.unwrap_or_default()
    }

    /// The upstream is gone, and its tasks with it: every call in flight ends, new
    /// ones are refused. Subscriptions stay: the ledger restores them.
    pub fn upstream_down(&mut self, acts: &mut Vec<Act>) {
        self.epoch = None;
        self.outgoing.clear();
        for (id, session) in self.calls.all() {
            if let Some(session) = self.sessions.get_mut(session)
                && let Some(call) = self.calls.end(session, id)
            {
                session.last_used = self.now;
                acts.push(Act::End(Ended {
                    call,
                    reason: Reason::UpstreamDown,
                }));
            }
        }
        let waiters = self.interests.forget_waiters();
        self.settle_waiters(&waiters);
        self.notes.retain(|note| matches!(note, Note::Release(_)));
        self.forget_tasks();
    }

    /// Call slots that tasks keep.
    pub fn task_slots(&self) -> usize {
        self.calls.tasks()
    }

    /// URIs that sessions want or have.
    pub fn uris(&self) -> usize {
        self.interests.len()
    }

    /// Calls in flight.
    pub fn calls_in_flight(&self) -> usize {
        self.calls.len()
    }

    /// The last handshake, also while the upstream is down; `None` before the
    /// first.
    pub fn handshake(&self) -> Option<&Arc<Handshake>> {
        self.handshake.as_ref()
    }

    /// Opens a session of `version`. `draw` gives random version 4 UUIDs.
    pub fn open_session(
        &mut self,
        owner: TokenId,
        version: Version,
        now: Millis,
        draw: impl FnMut() -> u128,
    ) -> Result<SessionKey, SessionsFull> {
        if self.sessions.is_full() {
            return Err(SessionsFull);
        }
        let id = SessionId::mint(self.shard, self.shards, draw);
        let key = self.sessions.open(id, owner, version, now);
        // Using it brings the other limit into force, which may be the nearer one.
        let limits = self.limits;
        let due = now.after(limits.session_unused_ms.min(limits.session_ttl_ms));
        if let Some(deadline) = self.sessions.deadline(key) {
            self.session_wheel.set(deadline, key, due);
        }
        Ok(key)
    }

    /// Opens a session that is a leg of another, which decides when it ends.
    pub fn open_leg(
        &mut self,
        owner: TokenId,
        version: Version,
        now: Millis,
        draw: impl FnMut() -> u128,
    ) -> Result<SessionKey, SessionsFull> {
        if self.sessions.is_full() {
            return Err(SessionsFull);
        }
        let id = SessionId::mint(self.shard, self.shards, draw);
        Ok(self.sessions.open(id, owner, version, now))
    }

    /// Whether the session has a call in flight under this id.
    pub fn has_call(&self, session: SessionKey, id: &ClientId) -> bool {
        self.calls.find(session, id).is_some()
    }

    /// Subscriptions that a session has or has asked for.
    pub fn subscriptions_of(&self, key: SessionKey) -> usize {
        let Some(session) = self.sessions.get(key) else {
            return 0;
        };
        let held = session.held.as_ref().map_or(0, |held| held.len());
        let own = session.private.as_ref().map_or(0, |it| it.uris());
        held + own + session.asking as usize
    }

    /// The URIs that a session is subscribed to.
    pub fn uris_of(&self, key: SessionKey) -> Vec<Box<str>> {
        let Some(session) = self.sessions.get(key) else {
            return Vec::new();
        };
        let held = session.held.iter().flat_map(|held| held.iter());
        let held = held.map(|place| Box::from(self.interests.uri(*place)));
        let own = session.private.iter().flat_map(|it| it.own_uris());
        held.chain(own.map(Box::from)).collect()
    }

    /// Whether a session is subscribed to a URI.
    pub fn is_subscribed(&self, key: SessionKey, uri: &str) -> bool {
        let session = self.sessions.get(key);
        let private = session.and_then(|session| session.private.as_ref());
        self.interests.holds(key, uri) || private.is_some_and(|it| it.has_uri(uri))
    }

    /// What the server can do, as the session's client was told.
    pub fn handshake_of(&self, session: SessionKey) -> Option<&Handshake> {
        let session = self.sessions.get(session)?;
        match &session.private {
            Some(private) => Some(private.handshake()),
            None => self.handshake.as_deref(),
        }
    }

    /// The session's client was heard.
    pub fn touch(&mut self, key: SessionKey, now: Millis) {
        self.now = now;
        if let Some(session) = self.sessions.get_mut(key) {
            session.last_used = now;
            session.used = true;
        }
    }

    /// Ends a session: its calls and tasks end, its subscriptions are released,
    /// its stream is closed, the server is told, nothing is left.
    pub fn end_session(&mut self, key: SessionKey, acts: &mut Vec<Act>) {
        self.end_session_as(key, Reason::SessionEnded, acts);
    }

    /// The same; `reason` is what calls in flight are answered.
    pub fn end_session_as(&mut self, key: SessionKey, reason: Reason, acts: &mut Vec<Act>) {
        let ending = self.private_begin_end(key);
        loop {
            let Some(session) = self.sessions.get(key) else {
                return;
            };
            match self.calls.newest_of(session) {
                Some(id) => acts.extend(self.withdraw(id, reason).map(Act::End)),
                None => break,
            }
        }
        if let Some(ending) = ending {
            self.private_end(key, ending);
        }
        let Some(session) = self.sessions.close(key) else {
            return;
        };
        self.log_levels.change(session.log_level, None);
        if let Some(stream) = session.stream {
            self.streams -= 1;
            acts.push(Act::CloseStream(stream));
        }
        for uri in session.held.iter().flat_map(|held| held.iter()) {
            let released = self.interests.leave(key, *uri);
            self.notes.extend(released.map(Note::Release));
        }
        if let Some(tasks) = &session.tasks {
            self.cancel_tasks(tasks);
        }
    }

    /// The most verbose log level that a session of this shard asks for.
    pub fn log_level(&self) -> Option<Level> {
        self.log_levels.most_verbose()
    }

    /// Ends every session of these owners. Returns how many there were.
    pub fn end_sessions_of(&mut self, owners: &[TokenId], acts: &mut Vec<Act>) -> usize {
        let theirs = self.sessions.of_owners(owners);
        theirs.iter().for_each(|key| self.end_session(*key, acts));
        theirs.len()
    }

    /// Whether the hub is to be told something beside lines.
    pub fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Takes what the hub is to be told.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Takes back what could not be handed over: it goes first again.
    pub fn put_notes_back(&mut self, mut notes: Vec<Note>) {
        notes.append(&mut self.notes);
        self.notes = notes;
    }

    /// Ends a call from this side. The server is told if it had been asked; a
    /// call that still waits for its turn is never sent.
    pub fn withdraw(&mut self, id: UpstreamId, reason: Reason) -> Option<Ended> {
        let call = self.end_call(id)?;
        if self.private.is_some() {
            self.private_withdraw(call.session, id, reason);
        } else if call.sent {
            if call.about == About::NewTask {
                self.tasks.orphan(id);
            }
            let mut buffer = itoa::Buffer::new();
            let digits = id.digits(&mut buffer);
            self.outgoing
                .push_control(|out| reply::cancelled_line(out, digits, reason.word()));
        }
        Some(Ended { call, reason })
    }

    /// Ends all calls from this side.
    pub fn end_calls(&mut self, reason: Reason, acts: &mut Vec<Act>) {
        for (id, _) in self.calls.all() {
            acts.extend(self.withdraw(id, reason).map(Act::End));
        }
    }

    pub(super) fn end_call(&mut self, id: UpstreamId) -> Option<Call> {
        let session = self.calls.get(id)?.session;
        let session = self.sessions.get_mut(session)?;
        session.last_used = self.now;
        self.calls.end(session, id)
    }

    /// Sets the deadline of a call last heard of at `heard`. One that waits for a
    /// task to be done may be silent.
    pub(super) fn arm_call(&mut self, id: UpstreamId, started: Millis, heard: Millis) {
        let mut due = started.after(self.limits.request_timeout_max_ms);
        let about = self.calls.get(id).map(|call| call.about);
        if !matches!(about, Some(About::TaskResult(_) | About::OwnTaskResult)) {
            due = due.min(heard.after(self.limits.request_timeout_ms));
        }
        if let Some((_, deadline)) = self.calls.deadline(id.slot()) {
            self.call_wheel.set(deadline, id.slot(), due);
        }
    }

    /// Moves lines that wait into the batch, as far as the window allows.
    pub fn refill(&mut self) {
        let calls = &mut self.calls;
        self.outgoing.refill(|id| match calls.get_mut(id) {
            Some(call) => {
                call.sent = true;
                true
            }
            None => false,
        });
    }

    /// Time passes: calls that are due end with `timeout`, sessions that nobody
    /// used end.
    pub fn tick(&mut self, now: Millis, acts: &mut Vec<Act>) {
        self.now = now;
        for entry in self.call_wheel.fired(now) {
            let Some((id, deadline)) = self.calls.deadline(entry.0) else {
                continue;
            };
            if self.call_wheel.settle(deadline, entry, now) {
                acts.extend(self.withdraw(id, Reason::Timeout).map(Act::End));
            }
        }
        for entry in self.session_wheel.fired(now) {
            self.settle_session(entry, now, acts);
        }
        self.private_tick(now);
    }

    fn settle_session(&mut self, entry: (SessionKey, Millis), now: Millis, acts: &mut Vec<Act>) {
        let key = entry.0;
        let limits = self.limits;
        // Also where the session has ended: the place has no entry any more then.
        let deadline = self.sessions.deadline(key);
        if !deadline.is_some_and(|deadline| self.session_wheel.settle(deadline, entry, now)) {
            return;
        }
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let allowed = match session.used {
            true => limits.session_ttl_ms,
            false => limits.session_unused_ms,
        };
        let is_busy = session.calls > 0 || session.stream.is_some();
        let due = match is_busy {
            false => session.last_used.after(allowed),
            true => now.after(allowed),
        };
        if due <= now {
            self.end_session(key, acts);
        } else if let Some(deadline) = self.sessions.deadline(key) {
            self.session_wheel.set(deadline, key, due);
        }
    }
}
#[cfg(test)]
mod tests {
    use crate::routing::bench::Bench;

    #[test]
    fn short_sessions_leave_one_entry_a_place_and_the_next_one_in_it_ends_in_time() {
        let mut bench = Bench::new();
        for _ in 0..1_000 {
            let session = bench.session();
            bench.end(session);
        }
        assert_eq!(bench.state.session_wheel.entries(), 1);
        bench.tick(50_000);
        assert_eq!(bench.state.session_wheel.entries(), 0);
        let session = bench.session();
        assert_eq!(bench.state.session_wheel.entries(), 1);
        bench.tick(59_000);
        assert!(bench.state.sessions.get(session).is_some());
        bench.tick(65_000);
        assert!(bench.state.sessions.get(session).is_none());
    }
}
