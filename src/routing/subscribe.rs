//! What happens to `resources/subscribe` and `resources/unsubscribe` in a shard,
//! and to what the ledger says about them. See `ledger` for the other half.

use indexmap::IndexSet;

use super::calls::{About, Call};
use super::client::{Incoming, Step, failed};
use super::interest::{Left, Waiter};
use super::ledger::Told;
use super::letters::Note;
use super::outcome::Outcome;
use super::session::SessionKey;
use super::shard::{Act, Ended, ShardState};
use super::uri_index::{UriKey, covers};
use crate::wire::reply::{self, Reason};

impl ShardState {
    /// The URI that a request names, decoded; else the error that answers it.
    fn uri_of(&self, incoming: &Incoming<'_>) -> Result<String, Step> {
        let refuse = |sentence| {
            let id = Some(incoming.raw_id());
            Err(Step::Answer(reply::error(
                id,
                reply::INVALID_PARAMS,
                sentence,
            )))
        };
        let offered = self
            .handshake()
            .is_some_and(|handshake| handshake.subscribe);
        if !offered {
            let message = match self.handshake() {
                None => return Err(self.down(incoming)),
                Some(_) => reply::error(
                    Some(incoming.raw_id()),
                    reply::METHOD_NOT_FOUND,
                    "Resource subscriptions are not offered",
                ),
            };
            return Err(Step::Answer(message));
        }
        let Some(field) = &incoming.envelope.uri else {
            return refuse("params.uri is missing");
        };
        if field.span.len() > self.limits.uri_bytes_max {
            return refuse("params.uri is longer than the limit (--max-uri)");
        }
        match field.text(incoming.text) {
            Some(uri) => Ok(uri.into_owned()),
            None => refuse("params.uri must be a string"),
        }
    }

    pub(super) fn subscribe(&mut self, key: SessionKey, incoming: &Incoming<'_>) -> Step {
        let uri = match self.uri_of(incoming) {
            Ok(uri) => uri,
            Err(step) => return step,
        };
        let granted = || Step::Answer(reply::result(incoming.raw_id(), b"{}"));
        if let Some(refused) = self.not_now(incoming) {
            return refused;
        }
        if self.interests.holds(key, &uri) {
            return granted();
        }
        if !self.may_ask_for_another(key, &uri) {
            return failed(incoming.raw_id(), Reason::Overloaded);
        }
        if self.interests.is_held(&uri) {
            if let Some(place) = self.interests.join(key, &uri) {
                self.note_held(key, place);
            }
            return granted();
        }
        let id = match self.begin_call(key, incoming, About::Subscription) {
            Ok(id) => id,
            Err(step) => return step,
        };
        let Some(session) = self.sessions.get_mut(key) else {
            return failed(incoming.raw_id(), Reason::SessionEnded);
        };
        session.asking += 1;
        let waiter = Waiter {
            call: id,
            session: key,
            session_id: session.id,
            is_void: false,
        };
        if self.interests.wait(waiter, &uri) {
            self.notes.push(Note::Want(uri.into()));
        }
        let now = incoming.now.millis();
        self.arm_call(id, now, now);
        Step::InFlight {
            id,
            may_stream: incoming.envelope.meta_progress_token.is_some(),
        }
    }

    pub(super) fn unsubscribe(&mut self, key: SessionKey, incoming: &Incoming<'_>) -> Step {
        let uri = match self.uri_of(incoming) {
            Ok(uri) => uri,
            Err(step) => return step,
        };
        let (held, left) = self.interests.unsubscribe(key, &uri);
        if let Some(place) = held {
            self.no_longer_held(key, &uri, place);
        }
        if left == Left::Last {
            self.notes.push(Note::Release(uri.into()));
        }
        Step::Answer(reply::result(incoming.raw_id(), b"{}"))
    }

    /// What is asked for counts until the ledger has spoken, also when the call was
    /// cancelled meanwhile; and the book of all sessions is bounded.
    fn may_ask_for_another(&self, key: SessionKey, uri: &str) -> bool {
        let session = self.sessions.get(key);
        let asking = session.map_or(0, |session| session.asking as usize);
        self.held_by(key) + asking < self.limits.subscriptions_per_session_max
            && self.interests.bytes() + uri.len() < self.limits.waiting_bytes_max
    }

    /// These no longer wait for the ledger.
    pub(super) fn settle_waiters(&mut self, waiters: &[Waiter]) {
        for waiter in waiters {
            let session = self.sessions.get_mut(waiter.session);
            if let Some(session) = session.filter(|session| session.id == waiter.session_id) {
                session.asking -= 1;
            }
        }
    }

    /// How many URIs a session holds.
    fn held_by(&self, key: SessionKey) -> usize {
        let session = self.sessions.get(key);
        let held = session.and_then(|session| session.held.as_ref());
        held.map_or(0, |held| held.len())
    }

    /// A session no longer holds a URI: it is not told of updates that came before,
    /// unless another of its subscriptions covers them.
    fn no_longer_held(&mut self, key: SessionKey, uri: &str, place: UriKey) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if let Some(held) = &mut session.held {
            held.remove(&place);
            if held.is_empty() {
                session.held = None;
            }
        }
        let interests = &mut self.interests;
        session.forget_updates(|updated| {
            covers(uri, updated) && interests.covered_by(key, updated).is_none()
        });
        if let (Some(subscribed), Some(marks)) =
            (interests.covered_by(key, uri), &mut session.marks)
        {
            marks.put_below(uri, &subscribed);
        }
    }

    fn note_held(&mut self, key: SessionKey, place: UriKey) {
        let hasher = &self.hasher;
        if let Some(session) = self.sessions.get_mut(key) {
            let held = session.held.get_or_insert_with(|| {
                Box::new(std::collections::HashSet::with_hasher(hasher.clone()))
            });
            held.insert(place);
        }
    }

    /// Subscriptions of all sessions.
    pub fn subscriptions(&self) -> usize {
        let private = self.private.as_ref();
        self.interests.held() + private.map_or(0, |exchanges| exchanges.subscriptions())
    }

    /// What the ledger says about a URI. Returns how many sessions have lost it.
    pub fn told(&mut self, uri: &str, told: Told, acts: &mut Vec<Act>) -> usize {
        match told {
            Told::Agreed => self.agreed(uri, acts),
            Told::Refused(refusal) => self.end_waiters(uri, acts, |call| Act::Answer {
                message: reply::refusal(call.client_id.raw(), refusal.code, &refusal.message),
                outcome: Outcome::Error,
                call,
            }),
            Told::TimedOut => self.fail_waiters(uri, Reason::Timeout, acts),
            Told::Overloaded => self.fail_waiters(uri, Reason::Overloaded, acts),
            Told::Updated => self.updated(uri, acts),
            Told::Lost => {
                let Some((place, sessions)) = self.interests.lose(uri) else {
                    return 0;
                };
                for key in &sessions {
                    self.no_longer_held(*key, uri, place);
                }
                return sessions.len();
            }
        }
        0
    }

    fn fail_waiters(&mut self, uri: &str, reason: Reason, acts: &mut Vec<Act>) {
        self.end_waiters(uri, acts, |call| Act::End(Ended { call, reason }));
    }

    fn end_waiters(&mut self, uri: &str, acts: &mut Vec<Act>, mut act: impl FnMut(Call) -> Act) {
        let waiters = self.interests.take_waiters(uri).unwrap_or_default();
        self.settle_waiters(&waiters);
        for waiter in waiters {
            // One that was cancelled, or whose session has ended, is no more.
            acts.extend(self.end_call(waiter.call).map(&mut act));
        }
    }

    /// The server is subscribed: those who still wait have it. If nobody is left
    /// the ledger is told to let go.
    fn agreed(&mut self, uri: &str, acts: &mut Vec<Act>) {
        let Some(waiters) = self.interests.take_waiters(uri) else {
            if !self.interests.is_held(uri) {
                self.notes.push(Note::Release(uri.into()));
            }
            return;
        };
        self.settle_waiters(&waiters);
        let mut sessions = IndexSet::with_hasher(self.hasher.clone());
        for waiter in waiters {
            let Some(call) = self.end_call(waiter.call) else {
                continue;
            };
            let key = waiter.session;
            let has_it = sessions.contains(&key);
            if !waiter.is_void
                && !has_it
                && self.held_by(key) >= self.limits.subscriptions_per_session_max
            {
                acts.push(Act::End(Ended {
                    call,
                    reason: Reason::Overloaded,
                }));
                continue;
            }
            if !waiter.is_void && !has_it {
                sessions.insert(key);
            }
            acts.push(Act::Answer {
                message: reply::result(call.client_id.raw(), b"{}"),
                outcome: Outcome::Ok,
                call,
            });
        }
        if sessions.is_empty() {
            self.notes.push(Note::Release(uri.into()));
            return;
        }
        let sessions: Vec<_> = sessions.into_iter().collect();
        let place = self.interests.hold(uri, &sessions);
        for key in sessions {
            self.note_held(key, place);
        }
    }

    /// A resource was updated: every session with a subscription that covers it
    /// has one mark then, by the longest of them.
    pub fn updated(&mut self, uri: &str, acts: &mut Vec<Act>) {
        self.updates += 1;
        let (sessions, number) = (&mut self.sessions, self.updates);
        self.interests.each_update(uri, |key, update, subscribed| {
            let Some(session) = sessions.get_mut(key) else {
                return;
            };
            if std::mem::replace(&mut session.last_update, number) == number {
                return;
            }
            let woken = session.mark(|marks| match subscribed {
                None => marks.updated(update),
                Some(subscribed) => marks.updated_below(update, subscribed),
            });
            acts.extend(woken.map(Act::WakeStream));
        });
    }

    /// One session is told that a resource which it is subscribed to may have changed.
    pub fn tell_updated(&mut self, key: SessionKey, uri: &str, acts: &mut Vec<Act>) {
        if self.is_private() {
            self.private_updated(key, uri, acts);
            return;
        }
        let Some(update) = self.interests.covered_by(key, uri) else {
            return;
        };
        if let Some(session) = self.sessions.get_mut(key) {
            let woken = session.mark(|marks| marks.updated(&update));
            acts.extend(woken.map(Act::WakeStream));
        }
    }
}

#[cfg(test)]
mod tests;
