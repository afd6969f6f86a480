//! The sessions of a joined route on one shard, and their legs.

use std::collections::HashMap;
use std::rc::Rc;

use slab::Slab;

use super::SeatId;
use crate::limits::TICK_MS;
use crate::routing::session::{SessionId, SessionKey, StreamId, TokenId};
use crate::routing::time::Millis;
use crate::routing::upstream_id::UpstreamId;
use crate::routing::wheel::{Deadline, Wheel};
use crate::wire::notice::Kinds;
use crate::wire::version::Version;

/// What a session has at one upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leg {
    /// A session of the upstream's seat; the id tells it from a later one in its place.
    Open { key: SessionKey, id: SessionId },
    /// None at the moment.
    Absent,
    /// None, and one is asked for.
    Opening,
}

impl Leg {
    pub fn key(self) -> Option<SessionKey> {
        match self {
            Leg::Open { key, .. } => Some(key),
            Leg::Absent | Leg::Opening => None,
        }
    }
}

/// A subscription that a later leg has been asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restoring {
    /// Tells what is asked from what is asked later.
    pub generation: u32,
    pub seat: SeatId,
    /// The server's own.
    pub uri: Box<str>,
    pub call: UpstreamId,
}

/// One session of a client.
#[derive(Debug)]
pub struct JoinedSession {
    pub id: SessionId,
    pub owner: TokenId,
    pub version: Version,
    /// By upstreams, in the order of the route.
    pub legs: Vec<(SeatId, Leg)>,
    /// The client's `initialize`, for legs that are opened later.
    pub initialize: Rc<[u8]>,
    /// Header lines that the client's last request passes on.
    pub fields: Rc<[u8]>,
    /// The client has said that it is ready.
    pub was_initialized: bool,
    pub last_used: Millis,
    /// Something came after `initialize`.
    pub used: bool,
    pub stream: Option<StreamId>,
    pub replacements: u32,
    /// What several upstreams are being asked.
    pub gatherings: usize,
    /// The log level that the client has asked for.
    pub level: Option<&'static str>,
    /// Subscriptions at upstreams where it has no leg, by the servers' own URIs.
    pub lost: Vec<(SeatId, Vec<Box<str>>)>,
    /// Those of them that have been asked for again.
    pub restoring: Vec<Restoring>,
    /// It is noted that it asks for them again later.
    pub is_to_ask: bool,
    /// How often in a row that could not be done.
    pub failures: u32,
    /// Lists that have changed although no upstream says so.
    pub changed: Kinds,
    /// The same, being written: by the stream, and by former ones that have not ended yet.
    pub writing: Vec<(StreamId, Kinds)>,
}

impl JoinedSession {
    /// The leg at an upstream.
    pub fn leg(&self, seat: SeatId) -> Leg {
        let found = self.legs.iter().find(|(known, _)| *known == seat);
        found.map_or(Leg::Absent, |(_, leg)| *leg)
    }

    pub fn set_leg(&mut self, seat: SeatId, leg: Leg) {
        if let Some((_, known)) = self.legs.iter_mut().find(|(known, _)| *known == seat) {
            *known = leg;
        }
    }

    /// Takes out the subscriptions that it has not got again at this upstream.
    pub fn take_lost(&mut self, seat: SeatId) -> Vec<Box<str>> {
        let mut taken = Vec::new();
        self.lost.retain_mut(|(of, uris)| {
            let is_it = *of == seat;
            if is_it {
                taken.append(uris);
            }
            !is_it
        });
        self.restoring.retain_mut(|it| {
            let is_it = it.seat == seat;
            if is_it {
                taken.push(std::mem::take(&mut it.uri));
            }
            !is_it
        });
        taken
    }

    /// The next subscription to ask this upstream for, unless so many are asked for.
    pub fn next_lost(&mut self, seat: SeatId, most: usize) -> Option<Box<str>> {
        let asked = self.restoring.iter().filter(|it| it.seat == seat).count();
        let place = self.lost.iter().position(|(of, _)| *of == seat)?;
        let (_, uris) = self.lost.get_mut(place).filter(|_| asked < most)?;
        let next = uris.pop();
        if uris.is_empty() {
            self.lost.swap_remove(place);
        }
        next
    }

    /// It could not be asked for.
    pub fn put_back(&mut self, seat: SeatId, uri: Box<str>) {
        match self.lost.iter_mut().find(|(of, _)| *of == seat) {
            // Others have their turn before.
            Some((_, uris)) => uris.insert(0, uri),
            None => self.lost.push((seat, vec![uri])),
        }
    }

    /// The client wants this no longer. Returns whether it was not there to be unsubscribed,
    /// and the calls that ask for it.
    pub fn forget_lost(&mut self, seat: SeatId, uri: &str) -> (bool, Vec<UpstreamId>) {
        let mut asked = Vec::new();
        self.restoring.retain(|it| {
            let is_it = it.seat == seat && *it.uri == *uri;
            if is_it {
                asked.push(it.call);
            }
            !is_it
        });
        let mut was_lost = false;
        for (of, uris) in &mut self.lost {
            if *of == seat {
                let before = uris.len();
                uris.retain(|known| **known != *uri);
                was_lost |= uris.len() < before;
            }
        }
        self.lost.retain(|(_, uris)| !uris.is_empty());
        (was_lost, asked)
    }

    /// Subscriptions that it has not got again, without those that are being asked for.
    pub fn lost_uris(&self) -> usize {
        self.lost.iter().map(|(_, uris)| uris.len()).sum()
    }
}

/// How long sessions live. Milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    /// On this shard.
    pub sessions_max: usize,
    /// Silence after which a session ends.
    pub ttl_ms: u64,
    /// The same for a session that was never used after `initialize`.
    pub unused_ms: u64,
    /// Calls in flight of one session, at all upstreams together.
    pub calls_max: usize,
    /// Subscriptions of one session, at all upstreams together.
    pub subscriptions_max: usize,
}

/// The sessions of a route on one shard.
#[derive(Debug)]
pub struct JoinedSessions {
    by_id: HashMap<SessionId, SessionKey, ahash::RandomState>,
    table: Slab<JoinedSession>,
    /// When each place is next looked at; a place keeps its entry in the wheel from one
    /// session to the next.
    deadlines: Vec<Deadline>,
    wheel: Wheel<SessionKey>,
    pub limits: SessionLimits,
}

/// What opens a session.
#[derive(Debug)]
pub struct NewSession {
    pub id: SessionId,
    pub owner: TokenId,
    pub version: Version,
    pub legs: Vec<(SeatId, Leg)>,
    pub initialize: Rc<[u8]>,
    pub fields: Rc<[u8]>,
}

impl JoinedSessions {
    pub fn new(limits: SessionLimits, hasher: ahash::RandomState, now: Millis) -> JoinedSessions {
        JoinedSessions {
            by_id: HashMap::with_hasher(hasher),
            table: Slab::new(),
            deadlines: Vec::new(),
            wheel: Wheel::new(TICK_MS * 20, now),
            limits,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.table.len() >= self.limits.sessions_max
    }

    pub fn open(&mut self, new: NewSession, now: Millis) -> SessionKey {
        let id = new.id;
        let key = SessionKey(self.table.insert(JoinedSession {
            id,
            owner: new.owner,
            version: new.version,
            legs: new.legs,
            initialize: new.initialize,
            fields: new.fields,
            was_initialized: false,
            last_used: now,
            used: false,
            stream: None,
            replacements: 0,
            gatherings: 0,
            level: None,
            lost: Vec::new(),
            restoring: Vec::new(),
            is_to_ask: false,
            failures: 0,
            changed: Kinds::NONE,
            writing: Vec::new(),
        }) as u32);
        if key.0 as usize == self.deadlines.len() {
            self.deadlines.push(Deadline::default());
        }
        self.by_id.insert(id, key);
        // Using it brings the other limit into force, which may be the nearer one.
        let due = now.after(self.limits.unused_ms.min(self.limits.ttl_ms));
        self.wake_at(key, due);
        key
    }

    fn wake_at(&mut self, key: SessionKey, due: Millis) {
        if let Some(deadline) = self.deadlines.get_mut(key.0 as usize) {
            self.wheel.set(deadline, key, due);
        }
    }

    /// The session `id` of `owner`; that of another is as unknown as none.
    pub fn find(&self, id: SessionId, owner: TokenId) -> Option<SessionKey> {
        let key = *self.by_id.get(&id)?;
        (self.get(key)?.owner == owner).then_some(key)
    }

    pub fn get(&self, key: SessionKey) -> Option<&JoinedSession> {
        self.table.get(key.0 as usize)
    }

    pub fn get_mut(&mut self, key: SessionKey) -> Option<&mut JoinedSession> {
        self.table.get_mut(key.0 as usize)
    }

    /// The session at `key`, if it still is the one with this id.
    pub fn still(&self, key: SessionKey, id: SessionId) -> Option<&JoinedSession> {
        self.get(key).filter(|session| session.id == id)
    }

    pub fn keys(&self) -> Vec<SessionKey> {
        let keys = self.table.iter().map(|(key, _)| SessionKey(key as u32));
        keys.collect()
    }

    /// The sessions whose owners match.
    pub fn of_owners(&self, matches: impl Fn(TokenId) -> bool) -> Vec<SessionKey> {
        let theirs = self
            .table
            .iter()
            .filter(|(_, session)| matches(session.owner));
        theirs.map(|(key, _)| SessionKey(key as u32)).collect()
    }

    pub fn close(&mut self, key: SessionKey) -> Option<JoinedSession> {
        let session = self.table.try_remove(key.0 as usize)?;
        self.by_id.remove(&session.id);
        if let Some(deadline) = self.deadlines.get_mut(key.0 as usize) {
            deadline.clear();
        }
        Some(session)
    }

    /// The client was heard.
    pub fn touch(&mut self, key: SessionKey, now: Millis) {
        if let Some(session) = self.get_mut(key) {
            session.last_used = now;
            session.used = true;
        }
    }

    /// Sessions whose time may be over now. Each is to be told about by
    /// [`JoinedSessions::settle`].
    pub fn due(&mut self, now: Millis) -> Vec<SessionKey> {
        let mut due = Vec::new();
        for entry in self.wheel.fired(now) {
            let Some(deadline) = self.deadlines.get_mut(entry.0.0 as usize) else {
                continue;
            };
            if self.wheel.settle(deadline, entry, now) && self.table.contains(entry.0.0 as usize) {
                due.push(entry.0);
            }
        }
        due
    }

    /// `busy`: something of the session is in flight; `last_used`: when something of it
    /// ended last. True if its time is over: it is to be ended.
    #[must_use]
    pub fn settle(&mut self, key: SessionKey, busy: bool, last_used: Millis, now: Millis) -> bool {
        let limits = self.limits;
        let Some(session) = self.get(key) else {
            return false;
        };
        let allowed = match session.used {
            true => limits.ttl_ms,
            false => limits.unused_ms,
        };
        let is_busy = busy || session.stream.is_some() || session.gatherings > 0;
        let due = match is_busy {
            true => now.after(allowed),
            false => session.last_used.max(last_used).after(allowed),
        };
        if due > now {
            self.wake_at(key, due);
        }
        due <= now
    }

    /// The route has these upstreams now, in this order. Returns the legs of each session at
    /// upstreams that are gone.
    pub fn set_seats(&mut self, seats: &[SeatId]) -> Vec<(SessionKey, SeatId, Leg)> {
        let mut gone = Vec::new();
        for (key, session) in &mut self.table {
            let before = std::mem::take(&mut session.legs);
            let leg = |seat: &SeatId| {
                let found = before.iter().find(|(known, _)| known == seat);
                (*seat, found.map_or(Leg::Absent, |(_, leg)| *leg))
            };
            session.legs = seats.iter().map(leg).collect();
            for (seat, leg) in before {
                if !seats.contains(&seat) {
                    gone.push((SessionKey(key as u32), seat, leg));
                }
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SeatId = SeatId(1);
    const B: SeatId = SeatId(2);

    fn sessions() -> JoinedSessions {
        let limits = SessionLimits {
            sessions_max: 3,
            ttl_ms: 100_000,
            unused_ms: 50_000,
            calls_max: 10,
            subscriptions_max: 10,
        };
        JoinedSessions::new(
            limits,
            ahash::RandomState::with_seeds(1, 2, 3, 4),
            Millis(0),
        )
    }

    fn open(sessions: &mut JoinedSessions, id: u128, owner: TokenId) -> SessionKey {
        let new = NewSession {
            id: SessionId(id),
            owner,
            version: Version::NEWEST,
            legs: vec![(A, Leg::Absent), (B, Leg::Absent)],
            initialize: Rc::default(),
            fields: Rc::default(),
        };
        sessions.open(new, Millis(0))
    }

    #[test]
    fn a_session_is_found_by_its_owner_while_it_lives() {
        let mut sessions = sessions();
        let key = open(&mut sessions, 7, TokenId(1));
        assert_eq!(sessions.find(SessionId(7), TokenId(1)), Some(key));
        assert_eq!(sessions.find(SessionId(7), TokenId(2)), None);
        assert_eq!(sessions.of_owners(|it| it == TokenId(1)), [key]);
        assert!(sessions.close(key).is_some());
        assert_eq!(sessions.find(SessionId(7), TokenId(1)), None);
        let later = open(&mut sessions, 8, TokenId(1));
        assert_eq!(later, key, "the place is used again");
        assert!(sessions.still(key, SessionId(7)).is_none());
        assert!(sessions.still(key, SessionId(8)).is_some());
    }

    #[test]
    fn time_ends_what_is_not_used() {
        let mut sessions = sessions();
        let unused = open(&mut sessions, 1, TokenId::ANYONE);
        let used = open(&mut sessions, 2, TokenId::ANYONE);
        sessions.touch(used, Millis(1_000));
        let mut ended = Vec::new();
        for second in 1..=200 {
            let now = Millis(second * 1_000);
            for key in sessions.due(now) {
                if sessions.settle(key, false, Millis(0), now) {
                    ended.push((key, second));
                    sessions.close(key);
                }
            }
        }
        assert_eq!(ended.len(), 2, "{ended:?}");
        assert!(ended[0].0 == unused && (50..60).contains(&ended[0].1));
        assert!(ended[1].0 == used && (101..110).contains(&ended[1].1));
    }

    #[test]
    fn what_is_in_flight_keeps_a_session_and_its_end_counts() {
        let mut sessions = sessions();
        let key = open(&mut sessions, 1, TokenId::ANYONE);
        let now = Millis(60_000);
        assert!(!sessions.settle(key, true, Millis(0), now));
        assert!(!sessions.settle(key, false, Millis(20_000), now));
        sessions.get_mut(key).unwrap().gatherings = 1;
        assert!(!sessions.settle(key, false, Millis(0), now));
        sessions.get_mut(key).unwrap().gatherings = 0;
        assert!(sessions.settle(key, false, Millis(0), now));
    }

    #[test]
    fn legs_follow_the_upstreams_of_the_route() {
        let mut sessions = sessions();
        let key = open(&mut sessions, 1, TokenId::ANYONE);
        let leg = Leg::Open {
            key: SessionKey(4),
            id: SessionId(5),
        };
        let session = sessions.get_mut(key).unwrap();
        session.set_leg(A, leg);
        let gone = sessions.set_seats(&[SeatId(3), B]);
        assert_eq!(gone, [(key, A, leg)]);
        let session = sessions.get(key).unwrap();
        assert_eq!(session.legs, [(SeatId(3), Leg::Absent), (B, Leg::Absent)]);
    }
}
