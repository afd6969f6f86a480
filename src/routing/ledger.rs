//! The global subscription book: for each URI what the server has been told
//! and which shards want it. The server is asked once for all of them, one
//! request at a time for a URI, and different URIs never wait for each other.
//! A URI is on the book while somebody holds it or a request about it is in
//! flight; so the book is as long as what the sessions may ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use super::time::Millis;
use super::upstream_id::UpstreamId;
use super::uri_index::{UriIndex, UriKey};
use crate::wire::reply::METHOD_NOT_FOUND;

/// A set of shards, at most 255 of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShardSet([u64; 4]);

impl ShardSet {
    /// Adds a shard. False: it was there.
    pub fn insert(&mut self, shard: usize) -> bool {
        debug_assert!(shard < 255, "an upstream id has room for 255 shards");
        let is_new = !self.contains(shard);
        if let Some(word) = self.0.get_mut(shard / 64) {
            *word |= 1 << (shard % 64);
        }
        is_new
    }

    /// Takes a shard out. False: it was not there.
    pub fn remove(&mut self, shard: usize) -> bool {
        let was_there = self.contains(shard);
        if let Some(word) = self.0.get_mut(shard / 64) {
            *word &= !(1 << (shard % 64));
        }
        was_there
    }

    pub fn contains(&self, shard: usize) -> bool {
        let word = self.0.get(shard / 64).copied().unwrap_or(0);
        word >> (shard % 64) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// The shards, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        let words = self.0.into_iter().enumerate();
        words.flat_map(|(place, word)| {
            let rests = iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
            let ones = rests.take_while(|rest| *rest != 0);
            ones.map(move |rest| place * 64 + rest.trailing_zeros() as usize)
        })
    }

    /// Empties the set and returns what was in it.
    pub fn take(&mut self) -> ShardSet {
        std::mem::take(self)
    }

    /// Adds all shards of another set.
    pub fn add(&mut self, other: ShardSet) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }
}

/// What the server is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    Subscribe,
    Unsubscribe,
}

/// Why the server refused, in its own words.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Refusal {
    pub code: i64,
    pub message: String,
}

/// What a shard is told about a URI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// It asked, and the server is subscribed.
    Agreed,
    /// It asked, and the server said no: nothing is recorded.
    Refused(Refusal),
    /// It asked, and the server was silent.
    TimedOut,
    /// It asked while the server owed too many answers; never said by the ledger
    /// itself, but by the hub before it asks it.
    Overloaded,
    /// It holds the URI. The subscription was restored; what has changed in
    /// the meantime is unknown.
    Updated,
    /// It held the URI, which could not be restored.
    Lost,
}

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// Goes to the server; its answer is to be reported to [`Ledger::answered`].
    Send {
        id: UpstreamId,
        ask: Ask,
        uri: Box<str>,
    },
    /// The server is to forget this request.
    Withdraw { id: UpstreamId },
    Tell {
        shard: usize,
        uri: Box<str>,
        told: Told,
    },
}

/// The book.
#[derive(Debug)]
pub struct Ledger {
    book: UriIndex<Entry>,
    child: Child,
    /// The requests in flight: when each is due, and whose it is.
    requests: BTreeMap<UpstreamId, (Millis, UriKey)>,
    /// The same requests, the one that is due first in front.
    deadlines: BTreeSet<(Millis, UpstreamId)>,
    timeout_ms: u64,
}

/// The server process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Child {
    Gone,
    /// It has no subscriptions to offer.
    Unable,
    Able,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// Who has been told that the server agreed. While the server is being
    /// asked these are the ones for whom the subscription is restored.
    holders: ShardSet,
    /// Who waits for an outcome. Nobody is in both sets.
    asking: ShardSet,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A request is in flight.
    Subscribing,
    /// There is at least one holder, and nobody asks.
    Subscribed,
    /// A request is in flight. Nobody holds the URI; it is subscribed anew if
    /// somebody has asked by the time it is answered.
    Unsubscribing,
    /// Held while the server is down.
    Parked,
}

/// How a request of ours ended.
enum End {
    Agreed,
    Refused(Refusal),
    Silent,
}

impl Ledger {
    /// An empty book, with no child yet. The secret keys the index of URIs; a
    /// request that has not been answered for `timeout_ms` is given up.
    pub fn new(secret: u64, timeout_ms: u64) -> Ledger {
        Ledger {
            book: UriIndex::new(secret),
            child: Child::Gone,
            requests: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            timeout_ms,
        }
    }

    /// A shard asks for a URI. It asks once, until it is told the outcome;
    /// after [`Told::Agreed`] it holds the URI until it releases it or is told
    /// [`Told::Lost`]. While the child is gone nothing happens: the shard has
    /// answered its callers itself.
    pub fn want(
        &mut self,
        shard: usize,
        uri: &str,
        now: Millis,
        next_id: &mut dyn FnMut() -> UpstreamId,
        acts: &mut Vec<Act>,
    ) {
        match self.child {
            Child::Gone => return,
            Child::Unable => {
                acts.push(tell(shard, uri, Told::Refused(unable())));
                return;
            }
            Child::Able => {}
        }
        let Some(key) = self.book.find(uri) else {
            let mut entry = Entry {
                state: State::Subscribing,
                holders: ShardSet::default(),
                asking: ShardSet::default(),
            };
            entry.asking.insert(shard);
            let key = self.book.insert(uri, entry);
            self.send(key, Ask::Subscribe, now, next_id, acts);
            return;
        };
        let Some(entry) = self.book.get_mut(key) else {
            return;
        };
        if entry.state == State::Subscribed {
            entry.holders.insert(shard);
        }
        if entry.holders.contains(shard) {
            acts.push(tell(shard, uri, Told::Agreed));
        } else {
            entry.asking.insert(shard);
        }
    }

    /// The last session of a shard that held a URI is gone; in any state, also
    /// while the child is. Of a shard that does not hold it nothing is changed.
    pub fn release(
        &mut self,
        shard: usize,
        uri: &str,
        now: Millis,
        next_id: &mut dyn FnMut() -> UpstreamId,
        acts: &mut Vec<Act>,
    ) {
        let Some(key) = self.book.find(uri) else {
            return;
        };
        let Some(entry) = self.book.get_mut(key) else {
            return;
        };
        if !entry.holders.remove(shard) || !entry.holders.is_empty() {
            return;
        }
        match entry.state {
            State::Subscribed => self.send(key, Ask::Unsubscribe, now, next_id, acts),
            State::Parked => drop(self.book.remove(key)),
            // The answer to the request in flight decides.
            State::Subscribing | State::Unsubscribing => {}
        }
    }

    /// The server has answered one of the ledger's requests. False: it is none
    /// of them, or one that was given up.
    pub fn answered(
        &mut self,
        id: UpstreamId,
        outcome: Result<(), Refusal>,
        now: Millis,
        next_id: &mut dyn FnMut() -> UpstreamId,
        acts: &mut Vec<Act>,
    ) -> bool {
        let Some((due, key)) = self.requests.remove(&id) else {
            return false;
        };
        self.deadlines.remove(&(due, id));
        let end = match outcome {
            Ok(()) => End::Agreed,
            Err(refusal) => End::Refused(refusal),
        };
        self.ended(key, end, now, next_id, acts);
        true
    }

    /// A new child is there; with `subscribe` it has the capability. Every URI
    /// that is held is asked for again, or lost.
    pub fn up(
        &mut self,
        subscribe: bool,
        now: Millis,
        next_id: &mut dyn FnMut() -> UpstreamId,
        acts: &mut Vec<Act>,
    ) {
        // Whatever the last child was asked, this one knows nothing of it.
        self.down();
        let parked: Vec<UriKey> = self.book.iter().map(|(key, ..)| key).collect();
        if subscribe {
            self.child = Child::Able;
            for key in parked {
                self.send(key, Ask::Subscribe, now, next_id, acts);
            }
            return;
        }
        self.child = Child::Unable;
        for key in parked {
            if let Some((uri, entry)) = self.book.remove(key) {
                tell_all(entry.holders, &uri, &Told::Lost, acts);
            }
        }
    }

    /// The child is gone. The shards answer their waiting callers themselves,
    /// so those who asked are forgotten without a word; what is held stays on
    /// the book.
    pub fn down(&mut self) {
        self.child = Child::Gone;
        self.requests.clear();
        self.deadlines.clear();
        let keys: Vec<UriKey> = self.book.iter().map(|(key, ..)| key).collect();
        for key in keys {
            match self.book.get_mut(key) {
                Some(entry) if !entry.holders.is_empty() => {
                    entry.state = State::Parked;
                    entry.asking.take();
                }
                _ => drop(self.book.remove(key)),
            }
        }
    }

    /// Gives up the requests that are overdue.
    pub fn tick(
        &mut self,
        now: Millis,
        next_id: &mut dyn FnMut() -> UpstreamId,
        acts: &mut Vec<Act>,
    ) {
        // Whoever asked is told so, hence no URI is asked for again and again.
        while let Some((due, id)) = self.deadlines.first().copied()
            && due <= now
        {
            self.deadlines.remove(&(due, id));
            if let Some((_, key)) = self.requests.remove(&id) {
                acts.push(Act::Withdraw { id });
                self.ended(key, End::Silent, now, next_id, acts);
            }
        }
    }

    /// The shards that hold a URI which covers this one, for an update may
    /// name a sub-resource. None while the child is gone.
    pub fn holders(&self, uri: &str) -> ShardSet {
        let (mut shards, mut covering) = (ShardSet::default(), Vec::new());
        self.book.covering(uri, &mut covering);
        for entry in covering.into_iter().filter_map(|key| self.book.get(key)) {
            if entry.state != State::Parked {
                shards.add(entry.holders);
            }
        }
        shards
    }

    /// URIs on the book.
    pub fn len(&self) -> usize {
        self.book.len()
    }

    pub fn is_empty(&self) -> bool {
        self.book.is_empty()
    }

    /// Requests in flight.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// The URIs that the server is subscribed to, as far as the ledger knows.
    pub fn subscribed(&self) -> impl Iterator<Item = &str> {
        let entries = self.book.iter();
        entries.filter_map(|(_, uri, entry)| (entry.state == State::Subscribed).then_some(uri))
    }

    fn send(
        &mut self,
        key: UriKey,
        ask: Ask,
        now: Millis,
        next_id: &mut dyn FnMut() -> UpstreamId,
        acts: &mut Vec<Act>,
    ) {
        if let Some(entry) = self.book.get_mut(key) {
            entry.state = match ask {
                Ask::Subscribe => State::Subscribing,
                Ask::Unsubscribe => State::Unsubscribing,
            };
        }
        let (id, due) = (next_id(), now.after(self.timeout_ms));
        self.requests.insert(id, (due, key));
        self.deadlines.insert((due, id));
        let uri = self.book.uri(key).into();
        acts.push(Act::Send { id, ask, uri });
    }

    /// The request about a URI has ended, and no other is in flight for it.
    fn ended(
        &mut self,
        key: UriKey,
        end: End,
        now: Millis,
        next_id: &mut dyn FnMut() -> UpstreamId,
        acts: &mut Vec<Act>,
    ) {
        let uri: Box<str> = self.book.uri(key).into();
        let Some(entry) = self.book.get_mut(key) else {
            return;
        };
        if entry.state == State::Unsubscribing {
            // Whatever the server said, it is not asked again for the same.
            if entry.asking.is_empty() {
                self.book.remove(key);
            } else {
                self.send(key, Ask::Subscribe, now, next_id, acts);
            }
            return;
        }
        let (asking, restored) = (entry.asking.take(), entry.holders.take());
        match end {
            End::Agreed => {
                entry.state = State::Subscribed;
                entry.holders.add(asking);
                entry.holders.add(restored);
                let is_held = !entry.holders.is_empty();
                tell_all(asking, &uri, &Told::Agreed, acts);
                tell_all(restored, &uri, &Told::Updated, acts);
                if !is_held {
                    self.send(key, Ask::Unsubscribe, now, next_id, acts);
                }
            }
            End::Refused(refusal) => {
                self.book.remove(key);
                tell_all(asking, &uri, &Told::Refused(refusal), acts);
                tell_all(restored, &uri, &Told::Lost, acts);
            }
            End::Silent => {
                tell_all(asking, &uri, &Told::TimedOut, acts);
                tell_all(restored, &uri, &Told::Lost, acts);
                // It may be subscribed all the same.
                self.send(key, Ask::Unsubscribe, now, next_id, acts);
            }
        }
    }
}

fn unable() -> Refusal {
    Refusal {
        code: i64::from(METHOD_NOT_FOUND),
        message: "The server has no resource subscriptions".into(),
    }
}

fn tell(shard: usize, uri: &str, told: Told) -> Act {
    let uri = uri.into();
    Act::Tell { shard, uri, told }
}

fn tell_all(shards: ShardSet, uri: &str, told: &Told, acts: &mut Vec<Act>) {
    acts.extend(shards.iter().map(|shard| tell(shard, uri, told.clone())));
}

#[cfg(test)]
mod tests;
