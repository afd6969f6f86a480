//! What a leg gets that is opened later than its session: the log level that the client has
//! set, and the subscriptions that the session had at the upstream before its seat was
//! replaced. Both are asked for as the client would ask; nobody waits for the answers.

use super::client::Incoming;
use super::{Joined, Local, Seat};
use crate::limits::{LEG_RETRY_MAX_MS, LEG_RETRY_MS, LEGS_PER_TICK, RESUBSCRIBING_MAX};
use crate::routing::client::Step;
use crate::routing::joined::naming::Kind;
use crate::routing::joined::sessions::{Leg, Restoring};
use crate::routing::joined::{InFlight, Inner, Part, SeatId};
use crate::routing::session::SessionKey;
use crate::routing::time::Millis;
use crate::runtime::clock;
use crate::wire::method::LOG_LEVELS;
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Kind as MessageKind};

impl Joined {
    /// The client asks for a log level: legs that are opened later get it too.
    pub(super) fn note_level(&self, incoming: &Incoming<'_>) {
        let field = incoming.envelope.level.as_ref();
        let Some(level) = field.and_then(|field| field.text(incoming.text)) else {
            return;
        };
        let known = LOG_LEVELS.iter().find(|known| **known == level);
        if let (Some(known), Some(session)) =
            (known, self.sessions.borrow_mut().get_mut(incoming.key))
        {
            session.level = Some(known);
        }
    }

    /// What sessions had at these legs, whose seats are gone, is kept for the seats that have
    /// the same upstreams now.
    pub(super) fn keep_subscriptions(
        &self,
        before: &Local,
        now: &Local,
        gone: &[(SessionKey, SeatId, Leg)],
    ) {
        for (key, seat, leg) in gone {
            let mut uris = match self.open_leg(before, *seat, *leg) {
                Some(leg) => before
                    .seat(*seat)
                    .map_or_else(Vec::new, |seat| seat.shard.state.borrow().uris_of(leg)),
                None => Vec::new(),
            };
            let place = before.place(*seat);
            let name = place.map(|place| before.name(place));
            let mut known = now.settings.upstreams.iter();
            let place = known.position(|upstream| Some(&*upstream.name) == name);
            let new = place.and_then(|place| now.seats.get(place));
            let mut sessions = self.sessions.borrow_mut();
            let Some(session) = sessions.get_mut(*key) else {
                continue;
            };
            uris.extend(session.take_lost(*seat));
            if let Some(new) = new.filter(|_| !uris.is_empty()) {
                session.lost.push((new.id, uris));
            }
        }
    }

    /// The client wants no updates any more of something that it is not subscribed to at the
    /// moment.
    pub(super) fn forget_lost(
        &self,
        local: &Local,
        incoming: &Incoming<'_>,
    ) -> Option<Step<InFlight>> {
        let field = incoming.envelope.uri.as_ref()?;
        let uri = field.text(incoming.text)?;
        let target = local.settings.naming.resolve(Kind::Resource, &uri)?;
        let seat = local.seats.get(target.upstream)?;
        let (was_lost, asked) = {
            let mut sessions = self.sessions.borrow_mut();
            let session = sessions.get_mut(incoming.key)?;
            session.forget_lost(seat.id, &target.own)
        };
        for call in asked {
            seat.shard.withdraw(call);
        }
        was_lost.then(|| Step::Answer(reply::result(incoming.raw_id(), b"{}")))
    }

    /// Asks for what the session should have at this upstream, where it has got a leg.
    pub(super) fn restore(&self, local: &Local, key: SessionKey, seat: &Seat, leg: SessionKey) {
        let level = match self.sessions.borrow().get(key) {
            Some(session) => session.level,
            None => return,
        };
        if let Some(level) = level.filter(|_| seat.shard.has_logging(leg)) {
            self.ask_again(key, seat, leg, "logging/setLevel", ("level", level), None);
        }
        self.resubscribe(local, key, seat, leg);
    }

    /// Asks for subscriptions that the session has not got again, a few at a time.
    pub(super) fn resubscribe(&self, local: &Local, key: SessionKey, seat: &Seat, leg: SessionKey) {
        let Some(place) = local.place(seat.id) else {
            return;
        };
        loop {
            let next = match self.sessions.borrow_mut().get_mut(key) {
                Some(session) => session.next_lost(seat.id, RESUBSCRIBING_MAX),
                None => return,
            };
            let Some(uri) = next else { return };
            // What the route has come to deny meanwhile is not asked for.
            let naming = &local.settings.naming;
            if naming.public(Kind::Resource, place, &uri).is_none() {
                continue;
            }
            let params = ("uri", &*uri);
            match self.ask_again(key, seat, leg, "resources/subscribe", params, Some(&uri)) {
                Asked::InFlight => {}
                Asked::Agreed => seat.shard.tell_updated(leg, &uri),
                Asked::Refused => self.lost(local, seat, &uri),
                Asked::NotNow => {
                    self.ask_later(key, seat.id, uri);
                    return;
                }
            }
        }
    }

    fn ask_again(
        &self,
        key: SessionKey,
        seat: &Seat,
        leg: SessionKey,
        method: &str,
        (name, value): (&str, &str),
        uri: Option<&str>,
    ) -> Asked {
        let generation = self.generation();
        let id = format!("\"ringway-again-{generation}\"");
        let mut text = Vec::new();
        reply::request(&mut text, id.as_bytes(), method, |out| {
            out.push(b'{');
            reply::json_string(out, name);
            out.push(b':');
            reply::json_string(out, value);
            out.push(b'}');
        });
        let Ok(envelope) = scan::scan(&text) else {
            return Asked::Refused;
        };
        let part = Part {
            place: key.0,
            generation,
            part: 0,
        };
        let to = part.reply_to(Inner::Again);
        match seat.shard.message(leg, &text, &envelope, to, None) {
            Step::InFlight { id, .. } => {
                if let (Some(uri), Some(session)) = (uri, self.sessions.borrow_mut().get_mut(key)) {
                    session.restoring.push(Restoring {
                        generation,
                        seat: seat.id,
                        uri: uri.into(),
                        call: id,
                    });
                }
                Asked::InFlight
            }
            Step::Answer(message) if is_result(&message) => Asked::Agreed,
            Step::Failed(reason, _) if passes(reason) => Asked::NotNow,
            Step::Answer(_) | Step::Refused(_) | Step::Failed(..) | Step::Accepted => {
                Asked::Refused
            }
        }
    }

    /// Takes out what was asked for, if it is waited for still.
    fn take_restoring(&self, part: Part) -> Option<(SessionKey, Restoring, Leg)> {
        let key = SessionKey(part.place);
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.get_mut(key)?;
        let mut all = session.restoring.iter();
        let found = all.position(|it| it.generation == part.generation)?;
        let restoring = session.restoring.swap_remove(found);
        let leg = session.leg(restoring.seat);
        Some((key, restoring, leg))
    }

    /// The server, or the ledger, has answered what was asked for again. Since nobody knows
    /// what has changed meanwhile, the client is told that it may have.
    pub(super) fn asked_again(&self, part: Part, message: &[u8]) {
        let Some((key, restoring, leg)) = self.take_restoring(part) else {
            return;
        };
        let local = self.local();
        let Some(seat) = local.seat(restoring.seat) else {
            return;
        };
        let leg = self.open_leg(&local, restoring.seat, leg);
        match leg.filter(|_| is_result(message)) {
            Some(leg) => {
                if let Some(session) = self.sessions.borrow_mut().get_mut(key) {
                    session.failures = 0;
                }
                seat.shard.tell_updated(leg, &restoring.uri);
            }
            None => self.lost(&local, seat, &restoring.uri),
        }
        if let Some(leg) = leg {
            self.resubscribe(&local, key, seat, leg);
        }
    }

    /// What was asked for again has failed before the server has spoken of it.
    pub(in crate::http) fn failed_again(&self, part: Part, reason: Reason) {
        let Some((key, restoring, _)) = self.take_restoring(part) else {
            return;
        };
        if passes(reason) {
            self.ask_later(key, restoring.seat, restoring.uri);
            return;
        }
        let local = self.local();
        if let Some(seat) = local.seat(restoring.seat) {
            self.lost(&local, seat, &restoring.uri);
        }
    }

    fn lost(&self, local: &Local, seat: &Seat, uri: &str) {
        seat.shard.counters.subscriptions_lost.add(1);
        local.warn_lost(seat.id, uri);
    }

    /// The subscription is asked for another time: when its server is there again, or after a
    /// pause.
    fn ask_later(&self, key: SessionKey, seat: SeatId, uri: Box<str>) {
        let mut sessions = self.sessions.borrow_mut();
        let Some(session) = sessions.get_mut(key) else {
            return;
        };
        session.put_back(seat, uri);
        if session.is_to_ask {
            return;
        }
        session.is_to_ask = true;
        let pause = LEG_RETRY_MS << session.failures.min(10);
        session.failures = session.failures.saturating_add(1);
        let due = clock::now().after(pause.min(LEG_RETRY_MAX_MS));
        self.to_ask.borrow_mut().push((due, key, session.id));
    }

    /// Sessions whose pause is over ask again.
    pub(super) fn resubscribe_due(&self, now: Millis) {
        let mut due = Vec::new();
        self.to_ask.borrow_mut().retain(|(at, key, id)| {
            let is_due = *at <= now && due.len() < LEGS_PER_TICK;
            if is_due {
                due.push((*key, *id));
            }
            !is_due
        });
        let local = self.local();
        for (key, id) in due {
            let seats: Vec<SeatId> = {
                let mut sessions = self.sessions.borrow_mut();
                if sessions.still(key, id).is_none() {
                    continue;
                }
                let Some(session) = sessions.get_mut(key) else {
                    continue;
                };
                session.is_to_ask = false;
                session.lost.iter().map(|(seat, _)| *seat).collect()
            };
            for (seat, leg) in self.open_legs(&local, key) {
                if seats.contains(&seat.id) {
                    self.resubscribe(&local, key, &seat, leg);
                }
            }
        }
    }
}

/// What has come of asking at once.
enum Asked {
    InFlight,
    Agreed,
    Refused,
    /// It may be otherwise later.
    NotNow,
}

/// Whether a failure says nothing of what was asked.
fn passes(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::UpstreamDown | Reason::Overloaded | Reason::SessionEnded
    )
}

fn is_result(message: &[u8]) -> bool {
    scan::scan(message).is_ok_and(|envelope| envelope.kind == MessageKind::Result)
}
