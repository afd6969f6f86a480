//! Sessions: their ids, which shard owns them, and the table of one shard.
//! A session belongs to exactly one shard, and the id alone says which.

use std::collections::{HashMap, HashSet};

use slab::Slab;

use super::marks::Marks;
use super::private::Private;
use super::tasks::{SessionTasks, TaskKey};
use super::time::Millis;
use super::uri_index::UriKey;
use super::wheel::Deadline;
use crate::wire::notice::Kinds;
use crate::wire::version::Version;

/// What `Mcp-Session-Id` names: the 128 bits of a version 4 UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId(pub u128);

impl SessionId {
    /// The shard that owns the session: a pure function of the id and the
    /// number of shards, so that every shard (and later every replica) agrees.
    /// The low 32 bits of a version 4 UUID are all random.
    pub fn owner(self, shards: usize) -> usize {
        ((u64::from(self.0 as u32) * shards as u64) >> 32) as usize
    }

    /// Draws ids until one belongs to `shard`. `draw` must give random version
    /// 4 UUIDs; it is asked `shards` times on average.
    pub fn mint(shard: usize, shards: usize, mut draw: impl FnMut() -> u128) -> SessionId {
        loop {
            let id = SessionId(draw());
            if id.owner(shards) == shard {
                return id;
            }
        }
    }
}

/// A session's place in its shard's table. Only valid while the session lives;
/// the table checks a look-up against the id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionKey(pub u32);

/// The name of the bearer token under which a session was opened, as a number
/// that is never used for another name. Only its owner may use a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TokenId(pub u32);

impl TokenId {
    /// No tokens are configured: whoever asks. Never the id of a token.
    pub const ANYONE: TokenId = TokenId(0);
}

/// A GET stream: the connection that carries it. A connection carries one in its
/// life, so this names one stream for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamId {
    pub connection: u32,
    pub connection_generation: u32,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    pub owner: TokenId,
    /// The version that `initialize` settled; it governs, whatever a header says.
    pub version: Version,
    /// Calls in flight.
    pub calls: usize,
    /// The newest call in flight, the head of the list in the call table.
    pub newest_call: Option<u32>,
    /// When the client was last heard.
    pub last_used: Millis,
    /// Something came after `initialize`.
    pub used: bool,
    /// The log level that the client asked for, as a place in
    /// [`crate::wire::method::LOG_LEVELS`].
    pub log_level: Option<u8>,
    /// Its GET stream, if one is open.
    pub stream: Option<StreamId>,
    /// How often its GET stream was replaced by a newer one.
    pub replacements: u32,
    /// The lists whose change is to be told on its GET stream; apart from the
    /// other marks, because every session gets them.
    pub changed: Kinds,
    /// The number of the update that it was last told of.
    pub last_update: u64,
    /// What else is to be told there.
    pub marks: Option<Box<Marks>>,
    /// What is being written: by the stream, and by former ones that have not
    /// ended yet.
    pub writing: Vec<(StreamId, Marks)>,
    /// The URIs that it is subscribed to.
    pub held: Option<Box<HashSet<UriKey, ahash::RandomState>>>,
    /// The subscriptions that it asked for and that the ledger has not spoken of.
    pub asking: u32,
    pub tasks: Option<Box<SessionTasks>>,
    /// Where its upstream session is its own.
    pub private: Option<Box<Private>>,
}

impl Session {
    /// Sets marks. Returns the stream that is to be woken for them: one that had
    /// marks before has been woken, or writes and will look again.
    pub fn mark(&mut self, set: impl FnOnce(&mut Marks)) -> Option<StreamId> {
        let had_marks = self.has_marks();
        set(self.marks.get_or_insert_default());
        self.stream.filter(|_| !had_marks)
    }

    /// Marks lists as changed; returns the same.
    pub fn mark_changed(&mut self, kinds: Kinds) -> Option<StreamId> {
        let had_marks = self.has_marks();
        self.changed = self.changed.with(kinds);
        self.stream.filter(|_| !had_marks)
    }

    /// Nothing more is told of these tasks, not even if a write of it fails.
    pub fn forget_tasks(&mut self, is_gone: impl Fn(TaskKey) -> bool) {
        if let Some(marks) = &mut self.marks {
            marks.forget_tasks(&is_gone);
            if marks.is_empty() {
                self.marks = None;
            }
        }
        for (_, marks) in &mut self.writing {
            marks.forget_tasks(&is_gone);
        }
    }

    /// Nothing more is told of updates of these URIs.
    pub fn forget_updates(&mut self, mut is_gone: impl FnMut(&str) -> bool) {
        if let Some(marks) = &mut self.marks {
            marks.forget_updates(&mut is_gone);
            if marks.is_empty() {
                self.marks = None;
            }
        }
        for (_, marks) in &mut self.writing {
            marks.forget_updates(&mut is_gone);
        }
    }

    pub fn has_marks(&self) -> bool {
        !self.changed.is_empty() || self.marks.as_ref().is_some_and(|marks| !marks.is_empty())
    }

    /// Takes the marks of the next write.
    pub fn take_marks(&mut self) -> Marks {
        let mut taken = match &mut self.marks {
            Some(marks) => marks.take(),
            None => Marks::default(),
        };
        if self.marks.as_ref().is_some_and(|marks| marks.is_empty()) {
            self.marks = None;
        }
        taken.changed(std::mem::take(&mut self.changed));
        taken
    }
}

/// The sessions of one shard.
#[derive(Debug)]
pub struct Sessions {
    by_id: HashMap<SessionId, SessionKey, ahash::RandomState>,
    table: Slab<Session>,
    /// When each place is next looked at; see [`super::shard`]. A place keeps its entry
    /// in the wheel from one session to the next: short sessions leave none behind.
    deadlines: Vec<Deadline>,
    max: usize,
}

impl Sessions {
    /// A table for at most `max` sessions. `hasher` carries the random keys.
    pub fn new(max: usize, hasher: ahash::RandomState) -> Sessions {
        Sessions {
            by_id: HashMap::with_hasher(hasher),
            table: Slab::new(),
            deadlines: Vec::new(),
            max,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether the table has no room for another session.
    pub fn is_full(&self) -> bool {
        self.table.len() >= self.max
    }

    /// Opens a session under a fresh id.
    pub fn open(
        &mut self,
        id: SessionId,
        owner: TokenId,
        version: Version,
        now: Millis,
    ) -> SessionKey {
        let key = SessionKey(self.table.insert(Session {
            id,
            owner,
            version,
            calls: 0,
            newest_call: None,
            last_used: now,
            used: false,
            log_level: None,
            stream: None,
            replacements: 0,
            changed: Kinds::NONE,
            last_update: 0,
            marks: None,
            writing: Vec::new(),
            held: None,
            asking: 0,
            tasks: None,
            private: None,
        }) as u32);
        if key.0 as usize == self.deadlines.len() {
            self.deadlines.push(Deadline::default());
        }
        let before = self.by_id.insert(id, key);
        debug_assert!(before.is_none(), "ids are drawn from 122 random bits");
        key
    }

    /// The session `id` of `owner`; that of another is as unknown as none.
    pub fn find(&self, id: SessionId, owner: TokenId) -> Option<SessionKey> {
        let key = *self.by_id.get(&id)?;
        (self.get(key)?.owner == owner).then_some(key)
    }

    /// The sessions of these owners. Looks at every session.
    pub fn of_owners(&self, owners: &[TokenId]) -> Vec<SessionKey> {
        let theirs = self
            .table
            .iter()
            .filter(|(_, session)| owners.contains(&session.owner));
        theirs.map(|(key, _)| SessionKey(key as u32)).collect()
    }

    /// The keys of all sessions.
    pub fn keys(&self) -> Vec<SessionKey> {
        self.table
            .iter()
            .map(|(key, _)| SessionKey(key as u32))
            .collect()
    }

    pub fn get(&self, key: SessionKey) -> Option<&Session> {
        self.table.get(key.0 as usize)
    }

    /// Every session.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.table.iter_mut().map(|(_, session)| session)
    }

    pub fn get_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.table.get_mut(key.0 as usize)
    }

    /// Removes a session. Its calls must have been ended before.
    pub fn close(&mut self, key: SessionKey) -> Option<Session> {
        let session = self.table.try_remove(key.0 as usize)?;
        debug_assert_eq!(session.calls, 0);
        self.by_id.remove(&session.id);
        if let Some(deadline) = self.deadlines.get_mut(key.0 as usize) {
            deadline.clear();
        }
        Some(session)
    }

    /// When the place of a session, also of one that has ended, is next looked at.
    pub fn deadline(&mut self, key: SessionKey) -> Option<&mut Deadline> {
        self.deadlines.get_mut(key.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minting_shard_owns_what_it_mints() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u128;
        let mut draw = move || {
            state = state.wrapping_mul(0xda94_2042_e4dd_58b5).wrapping_add(1);
            state ^ (state >> 64)
        };
        for shards in [1, 2, 3, 4, 255] {
            for shard in [0, shards / 2, shards - 1] {
                let id = SessionId::mint(shard, shards, &mut draw);
                assert_eq!(id.owner(shards), shard);
            }
        }
    }

    #[test]
    fn every_id_has_an_owner_among_the_shards() {
        for shards in 1..=255 {
            assert_eq!(SessionId(0).owner(shards), 0);
            assert_eq!(SessionId(u128::MAX).owner(shards), shards - 1);
        }
    }

    #[test]
    fn a_closed_session_is_found_by_nobody() {
        let mut sessions = Sessions::new(2, ahash::RandomState::with_seeds(1, 2, 3, 4));
        let key = sessions.open(SessionId(7), TokenId::ANYONE, Version::NEWEST, Millis(0));
        assert_eq!(sessions.find(SessionId(7), TokenId::ANYONE), Some(key));
        sessions.close(key);
        assert_eq!(sessions.find(SessionId(7), TokenId::ANYONE), None);
        assert!(sessions.is_empty());
    }

    #[test]
    fn a_session_is_found_by_its_owner_only() {
        let mut sessions = Sessions::new(3, ahash::RandomState::with_seeds(1, 2, 3, 4));
        let (alice, bob) = (TokenId(1), TokenId(2));
        let hers = sessions.open(SessionId(7), alice, Version::NEWEST, Millis(0));
        let his = sessions.open(SessionId(8), bob, Version::NEWEST, Millis(0));
        assert_eq!(sessions.find(SessionId(7), alice), Some(hers));
        for stranger in [bob, TokenId::ANYONE] {
            assert_eq!(sessions.find(SessionId(7), stranger), None);
        }
        assert_eq!(sessions.of_owners(&[bob, TokenId(3)]), [his]);
    }
}
