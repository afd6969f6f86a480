//! What a leg gets that is opened later than its session: the log level that the client has
//! set, and the subscriptions that the session had at the upstream before its seat was
//! replaced. Both are asked for as the client would ask; nobody waits for the answers.

use super::client::Incoming;
use super::{Joined, Local, Seat};
use crate::routing::client::Step;
use crate::routing::joined::naming::Kind;
use crate::routing::joined::sessions::{Leg, Restoring};
use crate::routing::joined::{InFlight, Inner, Part, SeatId};
use crate::routing::session::SessionKey;
use crate::wire::method::LOG_LEVELS;
use crate::wire::reply;
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
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.get_mut(incoming.key)?;
        session
            .forget_lost(seat.id, &target.own)
            .then(|| Step::Answer(reply::result(incoming.raw_id(), b"{}")))
    }

    /// Asks for what the session should have at this upstream, where it has a leg now.
    pub(super) fn restore(&self, local: &Local, key: SessionKey, seat: &Seat, leg: SessionKey) {
        let (level, lost) = match self.sessions.borrow_mut().get_mut(key) {
            Some(session) => (session.level, session.take_lost(seat.id)),
            None => return,
        };
        if let Some(level) = level.filter(|_| seat.shard.has_logging(leg)) {
            self.ask_again(key, seat, leg, "logging/setLevel", ("level", level), None);
        }
        let Some(place) = local.place(seat.id) else {
            return;
        };
        for uri in lost {
            // What the route has come to deny meanwhile is not asked for.
            let naming = &local.settings.naming;
            if naming.public(Kind::Resource, place, &uri).is_some() {
                let method = "resources/subscribe";
                self.ask_again(key, seat, leg, method, ("uri", &uri), Some(&uri));
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
    ) {
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
            return;
        };
        let part = Part {
            place: key.0,
            generation,
            part: 0,
        };
        if let (Some(uri), Some(session)) = (uri, self.sessions.borrow_mut().get_mut(key)) {
            session.restoring.push(Restoring {
                generation,
                seat: seat.id,
                uri: uri.into(),
            });
        }
        let to = part.reply_to(Inner::Again);
        match seat.shard.message(leg, &text, &envelope, to, None) {
            Step::InFlight { .. } => {}
            Step::Answer(message) => self.asked_again(part, Some(&message)),
            Step::Refused(_) | Step::Failed(..) | Step::Accepted => self.asked_again(part, None),
        }
    }

    /// What was asked for again is answered, or never will be (`None`). Since nobody knows
    /// what has changed meanwhile, the client is told that it may have.
    pub(super) fn asked_again(&self, part: Part, message: Option<&[u8]>) {
        let key = SessionKey(part.place);
        let (restoring, leg) = {
            let mut sessions = self.sessions.borrow_mut();
            let Some(session) = sessions.get_mut(key) else {
                return;
            };
            let mut all = session.restoring.iter();
            let Some(found) = all.position(|it| it.generation == part.generation) else {
                return;
            };
            let restoring = session.restoring.swap_remove(found);
            let leg = session.leg(restoring.seat);
            (restoring, leg)
        };
        let local = self.local();
        let Some(seat) = local.seat(restoring.seat) else {
            return;
        };
        let is_agreed = message
            .and_then(|message| scan::scan(message).ok())
            .is_some_and(|envelope| envelope.kind == MessageKind::Result);
        match self.open_leg(&local, restoring.seat, leg) {
            Some(leg) if is_agreed => seat.shard.tell_updated(leg, &restoring.uri),
            _ => {
                seat.shard.counters.subscriptions_lost.add(1);
                local.warn_lost(restoring.seat, &restoring.uri);
            }
        }
    }
}
