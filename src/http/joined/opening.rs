//! How a client's session gets its legs: all upstreams are asked at the same time when the
//! session is opened; one that has none for it then is asked again later.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::{Joined, Local, Seat};
use crate::http::response;
use crate::http::upstream::PendingOpening;
use crate::limits::{LEG_RETRY_MAX_MS, LEG_RETRY_MS, LEGS_PER_TICK};
use crate::routing::calls::ReplyTo;
use crate::routing::joined::sessions::{Leg, NewSession};
use crate::routing::joined::{Inner, Part, SeatId};
use crate::routing::private::{Opened, Opening};
use crate::routing::session::{SessionId, SessionKey, TokenId};
use crate::routing::time::Millis;
use crate::runtime::clock;
use crate::wire::handshake::Handshake;
use crate::wire::notice::Kinds;
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Envelope, Field};
use crate::wire::splice::{Edit, splice};
use crate::wire::union::{self, Share};
use crate::wire::version::Version;

/// A client's `initialize` on its way.
pub(super) struct Join {
    generation: u32,
    reply_to: ReplyTo,
    owner: TokenId,
    /// Raw.
    client_id: Box<[u8]>,
    /// The version that the client asks for.
    asked: Box<str>,
    initialize: Rc<[u8]>,
    fields: Rc<[u8]>,
    /// Nobody has still to be asked.
    are_asked: bool,
    /// With the upstreams that the route had when it was asked.
    parts: Vec<(Seat, Answer)>,
}

impl Join {
    fn is_done(&self) -> bool {
        let mut parts = self.parts.iter();
        self.are_asked && !parts.any(|(_, answer)| matches!(answer, Answer::Waiting(_)))
    }
}

/// What an upstream has said to an `initialize`.
enum Answer {
    /// One that all sessions share: from its last handshake.
    Shared(Arc<Handshake>),
    /// Asked; what is asked is given up with this.
    Waiting(#[expect(dead_code, reason = "kept to be dropped")] PendingOpening),
    Own(Box<Opening>, Box<Handshake>),
    /// This error.
    Refused(Vec<u8>),
    Absent,
}

/// An `initialize` that is being answered. If its client goes before, what was asked
/// upstream is given up.
pub struct PendingJoin {
    joined: Rc<Joined>,
    part: Part,
}

impl std::fmt::Debug for PendingJoin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.part.fmt(f)
    }
}

impl Drop for PendingJoin {
    fn drop(&mut self) {
        if let Some(join) = self.joined.take_join(self.part) {
            self.joined.give_up(join);
        }
    }
}

/// The legs that are missing at upstreams where each session has to be asked for.
#[derive(Default)]
pub(super) struct Absences {
    by_seat: HashMap<SeatId, Absence, ahash::RandomState>,
    under_way: HashMap<u32, UnderWay, ahash::RandomState>,
}

#[derive(Default)]
struct Absence {
    waiting: VecDeque<(SessionKey, SessionId)>,
    under_way: usize,
    failures: u32,
    next: Millis,
}

struct UnderWay {
    seat: SeatId,
    session: SessionKey,
    id: SessionId,
    _pending: Option<PendingOpening>,
}

impl Absences {
    pub(super) fn keep_only(&mut self, seats: &[SeatId]) {
        self.by_seat.retain(|seat, _| seats.contains(seat));
        self.under_way.retain(|_, it| seats.contains(&it.seat));
    }

    /// Sessions that wait for their turn.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.by_seat.values().map(|it| it.waiting.len()).sum()
    }

    /// Legs that are being opened.
    pub(super) fn under_way(&self) -> usize {
        let counted = self.by_seat.values().map(|it| it.under_way);
        debug_assert_eq!(self.under_way.len(), counted.sum::<usize>());
        self.under_way.len()
    }
}

impl Joined {
    /// A client's `initialize`, whose id is `id`: every upstream is asked. `None`: there is
    /// no room for another session.
    pub fn open(
        self: &Rc<Self>,
        text: &[u8],
        envelope: &Envelope<'_>,
        id: &Field,
        reply_to: ReplyTo,
        owner: TokenId,
        fields: Rc<[u8]>,
    ) -> Option<PendingJoin> {
        if self.sessions.borrow().is_full() {
            return None;
        }
        let client_id: Box<[u8]> = id.span.of(text).into();
        let asked = envelope.protocol_version.as_ref();
        let asked = asked.and_then(|field| field.text(text).map(|text| Box::from(&*text)));
        let local = self.local();
        let generation = self.generation();
        let Some(asked) = asked else {
            let message = reply::error(
                Some(&client_id),
                reply::INVALID_PARAMS,
                "initialize needs params.protocolVersion, a string",
            );
            self.ground.answer_opening(reply_to, 200, b"", &message);
            return Some(self.pending(0, generation));
        };
        let handshakes: Vec<Option<Arc<Handshake>>> = local
            .seats
            .iter()
            .map(|seat| seat.shard.state.borrow().handshake().cloned())
            .collect();
        let lowest = handshakes.iter().flatten().map(|known| known.version).min();
        let initialize = not_above(text, envelope, lowest);
        let place = self.joins.borrow_mut().insert(Join {
            generation,
            reply_to,
            owner,
            client_id,
            asked,
            initialize: initialize.clone(),
            fields: fields.clone(),
            are_asked: false,
            parts: Vec::new(),
        }) as u32;
        for (part, (seat, handshake)) in local.seats.iter().zip(handshakes).enumerate() {
            let to = Part {
                place,
                generation,
                part: part as u16,
            };
            let answer = match (seat.shard.is_private(), handshake) {
                (true, _) => ask(seat, &initialize, to.reply_to(Inner::Join), owner, &fields)
                    .map_or(Answer::Absent, Answer::Waiting),
                (false, Some(handshake)) => {
                    let upstream = local.settings.upstreams.get(part);
                    let is_required = upstream.is_some_and(|upstream| upstream.required);
                    match is_required && !seat.shard.state.borrow().is_up() {
                        true => Answer::Absent,
                        false => Answer::Shared(handshake),
                    }
                }
                (false, None) => Answer::Absent,
            };
            if let Some(join) = self.joins.borrow_mut().get_mut(place as usize) {
                join.parts.push((seat.clone(), answer));
            }
        }
        if let Some(join) = self.joins.borrow_mut().get_mut(place as usize) {
            join.are_asked = true;
        }
        let pending = self.pending(place, generation);
        self.finish_join_if_done(pending.part);
        Some(pending)
    }

    fn pending(self: &Rc<Self>, place: u32, generation: u32) -> PendingJoin {
        PendingJoin {
            joined: self.clone(),
            part: Part {
                place,
                generation,
                part: 0,
            },
        }
    }

    fn take_join(&self, part: Part) -> Option<Join> {
        let mut joins = self.joins.borrow_mut();
        let join = joins.get(part.place as usize)?;
        (join.generation == part.generation).then(|| joins.remove(part.place as usize))
    }

    /// Upstream sessions that were opened for a client that will have none are ended.
    fn give_up(&self, join: Join) {
        for (seat, answer) in join.parts {
            decline(Some(&seat), answer);
        }
    }

    /// Upstreams that are not among these will not answer any more.
    pub(super) fn forget_joins_at_others(self: &Rc<Self>, seats: &[SeatId]) {
        let mut given_up = Vec::new();
        let mut parts = Vec::new();
        for (place, join) in self.joins.borrow_mut().iter_mut() {
            for (seat, answer) in &mut join.parts {
                if !seats.contains(&seat.id) && matches!(answer, Answer::Waiting(_)) {
                    given_up.push(std::mem::replace(answer, Answer::Absent));
                }
            }
            parts.push(Part {
                place: place as u32,
                generation: join.generation,
                part: 0,
            });
        }
        drop(given_up);
        for part in parts {
            self.finish_join_if_done(part);
        }
    }

    /// What came of asking an upstream for a session.
    pub(in crate::http) fn opened(
        self: &Rc<Self>,
        seat: SeatId,
        inner: Inner,
        part: Part,
        opened: Opened,
    ) {
        let answer = match opened {
            Opened::Session { opening, handshake } => Answer::Own(opening, handshake),
            Opened::Refused { message, .. } => Answer::Refused(message),
        };
        if inner == Inner::Leg {
            self.leg_answered(seat, part, answer);
            return;
        }
        let late = {
            let mut joins = self.joins.borrow_mut();
            let join = joins.get_mut(part.place as usize);
            let join = join.filter(|join| join.generation == part.generation);
            let known = join.and_then(|join| join.parts.get_mut(usize::from(part.part)));
            match known {
                Some((of, known)) if of.id == seat && matches!(known, Answer::Waiting(_)) => {
                    Some(std::mem::replace(known, answer))
                }
                _ => {
                    drop(joins);
                    decline(self.local().seat(seat), answer);
                    return;
                }
            }
        };
        drop(late); // gives up what has been answered: nothing
        self.finish_join_if_done(part);
    }

    fn finish_join_if_done(self: &Rc<Self>, part: Part) {
        {
            let joins = self.joins.borrow();
            let join = joins.get(part.place as usize);
            let join = join.filter(|join| join.generation == part.generation);
            if !join.is_some_and(Join::is_done) {
                return;
            }
        }
        if let Some(join) = self.take_join(part) {
            self.finish_join(join);
        }
    }

    /// The answers for the upstreams that the route has now, in its order. It may have others
    /// than when it was asked: what those that are gone have given is given back.
    fn present_parts(local: &Local, parts: Vec<(Seat, Answer)>) -> Vec<(Seat, Answer)> {
        let mut answers: Vec<(Seat, Answer)> = Vec::with_capacity(local.seats.len());
        for (seat, answer) in parts {
            match local.seat(seat.id) {
                Some(_) => answers.push((seat, answer)),
                None => decline(Some(&seat), answer),
            }
        }
        for seat in &local.seats {
            if answers.iter().any(|(known, _)| known.id == seat.id) {
                continue;
            }
            let handshake = seat.shard.state.borrow().handshake().cloned();
            let handshake = handshake.filter(|_| !seat.shard.is_private());
            answers.push((
                seat.clone(),
                handshake.map_or(Answer::Absent, Answer::Shared),
            ));
        }
        answers.sort_by_key(|(seat, _)| local.place(seat.id));
        answers
    }

    fn finish_join(self: &Rc<Self>, mut join: Join) {
        let local = self.local();
        join.parts = Self::present_parts(&local, join.parts);
        let id = join.client_id.clone();
        let missing = join.parts.iter().find_map(|(seat, answer)| {
            let upstream = local.settings.upstreams.get(local.place(seat.id)?)?;
            let is_missing = matches!(answer, Answer::Refused(_) | Answer::Absent);
            (upstream.required && is_missing).then_some(&upstream.name)
        });
        let versions = join.parts.iter().filter_map(|(_, answer)| match answer {
            Answer::Shared(handshake) => Some(handshake.version),
            Answer::Own(_, handshake) => Some(handshake.version),
            Answer::Waiting(_) | Answer::Refused(_) | Answer::Absent => None,
        });
        let lowest = versions.min();
        let refusal = match (missing, lowest) {
            (Some(name), _) if join.parts.len() > 1 => Some(reply::upstream_failure(
                Some(name),
                Some(&id),
                "The upstream server is not available, and nothing works without it",
            )),
            (None, Some(_)) => None,
            _ => Some(
                only_refusal(&join)
                    .unwrap_or_else(|| reply::failure(Some(&id), Reason::UpstreamDown)),
            ),
        };
        if let Some(message) = refusal {
            self.ground
                .answer_opening(join.reply_to, 200, b"", &message);
            self.give_up(join);
            return;
        }
        if self.sessions.borrow().is_full() {
            let message = reply::failure(Some(&id), Reason::Overloaded);
            self.ground
                .answer_opening(join.reply_to, 503, b"retry-after: 1\r\n", &message);
            self.give_up(join);
            return;
        }
        let version = Version::negotiate(join.asked.as_bytes(), lowest.unwrap_or(Version::NEWEST));
        let result = {
            let shares: Vec<Share<'_>> = join
                .parts
                .iter()
                .filter_map(|(seat, answer)| {
                    let name = local.name(local.place(seat.id)?);
                    let result = match answer {
                        Answer::Shared(handshake) => handshake.result_for(version),
                        Answer::Own(_, handshake) => handshake.result_for(version),
                        _ => return None,
                    };
                    Some(Share { name, result })
                })
                .collect();
            match &shares[..] {
                [only] if local.seats.len() == 1 => only.result.to_vec(),
                _ => {
                    let tells = self.ground.config.get_streams;
                    union::union(version, &local.settings.name, tells, &shares)
                }
            }
        };
        let message = reply::result(&id, &result);
        let legs = join
            .parts
            .into_iter()
            .map(|(seat, answer)| (seat.id, open_leg(&seat, join.owner, version, answer)));
        let legs: Vec<(SeatId, Leg)> = legs.collect();
        let draw = || uuid::Uuid::new_v4().as_u128();
        let new = NewSession {
            id: SessionId::mint(self.ground.index, self.ground.shards, draw),
            owner: join.owner,
            version,
            legs,
            initialize: join.initialize,
            fields: join.fields,
        };
        let field = response::session_line(new.id);
        let key = self.sessions.borrow_mut().open(new, clock::now());
        for seat in &local.seats {
            self.want_leg(&local, key, seat);
        }
        if !self
            .ground
            .answer_opening(join.reply_to, 200, &field, &message)
        {
            // The client went, and will never know the session.
            self.end_session(key);
        }
    }

    /// Sees to it that the session has a leg at this upstream, now or later.
    pub(super) fn want_leg(&self, local: &Local, key: SessionKey, seat: &Seat) {
        let (leg, id, owner, version) = match self.sessions.borrow().get(key) {
            Some(session) => (
                session.leg(seat.id),
                session.id,
                session.owner,
                session.version,
            ),
            None => return,
        };
        if leg == Leg::Opening || self.open_leg(local, seat.id, leg).is_some() {
            return;
        }
        let mut new = Leg::Absent;
        if seat.shard.is_private() {
            new = Leg::Opening;
            let mut absences = self.absences.borrow_mut();
            let absence = absences.by_seat.entry(seat.id).or_default();
            let sessions = self.sessions.borrow();
            if absence.waiting.len() > 2 * sessions.len() + LEGS_PER_TICK {
                // Sessions come and go while none is asked for.
                let lives =
                    |(key, id): &(SessionKey, SessionId)| sessions.still(*key, *id).is_some();
                absence.waiting.retain(lives);
            }
            absence.waiting.push_back((key, id));
        } else {
            let handshake = seat.shard.state.borrow().handshake().cloned();
            if let Some(handshake) = handshake {
                new = open_leg(seat, owner, version, Answer::Shared(handshake));
            }
        }
        if new == Leg::Absent && leg == Leg::Absent {
            return;
        }
        let stream = match self.sessions.borrow_mut().get_mut(key) {
            Some(session) => {
                session.set_leg(seat.id, new);
                session.stream
            }
            None => None,
        };
        let Some(leg) = new.key() else { return };
        if let Some(stream) = stream {
            seat.shard.open_leg_stream(leg, stream.into());
        }
        self.restore(local, key, seat, leg);
    }

    /// An upstream that all sessions share has made a handshake: sessions that have no leg
    /// there get one and are told. Those whose leg has ended, because the server can do less
    /// than before, get another one; where it is the only upstream they end, because what
    /// their clients were told no longer holds.
    pub(in crate::http) fn seat_up(self: &Rc<Self>, seat: SeatId, kinds: Kinds) {
        let local = self.local();
        let Some(seat) = local.seat(seat) else { return };
        let keys = self.sessions.borrow().keys();
        for key in keys {
            let leg = self.sessions.borrow().get(key).map(|it| it.leg(seat.id));
            match leg {
                Some(Leg::Open { .. })
                    if leg
                        .and_then(|leg| self.open_leg(&local, seat.id, leg))
                        .is_none() =>
                {
                    if local.seats.len() == 1 {
                        self.end_session(key);
                        continue;
                    }
                    // One of several must not take the others' calls along.
                    self.want_leg(&local, key, seat);
                    let all = Kinds::TOOLS.with(Kinds::PROMPTS).with(Kinds::RESOURCES);
                    self.mark_changed(key, all);
                }
                Some(Leg::Absent | Leg::Opening) => {
                    self.want_leg(&local, key, seat);
                    self.mark_changed(key, kinds);
                }
                Some(leg) => {
                    if let Some(leg) = self.open_leg(&local, seat.id, leg) {
                        self.resubscribe(&local, key, seat, leg);
                    }
                }
                None => {}
            }
        }
    }

    /// Upstreams that owe sessions a leg are asked, one at a time while that fails.
    pub(super) fn open_missing_legs(self: &Rc<Self>, now: Millis) {
        if self.ground.is_draining() {
            return;
        }
        let local = self.local();
        for seat in &local.seats {
            let begin: Vec<(SessionKey, SessionId)> = {
                let mut absences = self.absences.borrow_mut();
                let Some(absence) = absences.by_seat.get_mut(&seat.id) else {
                    continue;
                };
                if absence.next > now {
                    continue;
                }
                let most = match absence.failures {
                    0 => LEGS_PER_TICK,
                    _ => 1,
                };
                let most = most.saturating_sub(absence.under_way);
                let sessions = self.sessions.borrow();
                let mut begin = Vec::new();
                while begin.len() < most
                    && let Some((key, id)) = absence.waiting.pop_front()
                {
                    if sessions.still(key, id).is_some() {
                        begin.push((key, id));
                    }
                }
                absence.under_way += begin.len();
                begin
            };
            for (key, id) in begin {
                self.begin_leg(seat, key, id);
            }
        }
    }

    fn begin_leg(self: &Rc<Self>, seat: &Seat, key: SessionKey, id: SessionId) {
        let generation = self.generation();
        let part = Part {
            place: key.0,
            generation,
            part: 0,
        };
        let known = match self.sessions.borrow().get(key) {
            Some(session) => (
                session.initialize.clone(),
                session.owner,
                session.fields.clone(),
            ),
            None => return,
        };
        let (initialize, owner, fields) = known;
        self.absences.borrow_mut().under_way.insert(
            generation,
            UnderWay {
                seat: seat.id,
                session: key,
                id,
                _pending: None,
            },
        );
        let pending = ask(seat, &initialize, part.reply_to(Inner::Leg), owner, &fields);
        match pending {
            Some(pending) => {
                let mut absences = self.absences.borrow_mut();
                if let Some(under_way) = absences.under_way.get_mut(&generation) {
                    under_way._pending = Some(pending);
                }
            }
            None => self.leg_answered(seat.id, part, Answer::Absent),
        }
    }

    fn leg_answered(self: &Rc<Self>, seat: SeatId, part: Part, answer: Answer) {
        let local = self.local();
        let taken = self
            .absences
            .borrow_mut()
            .under_way
            .remove(&part.generation);
        let is_open = matches!(answer, Answer::Own(..));
        let (Some(under_way), Some(seat)) = (taken, local.seat(seat)) else {
            decline(local.seat(seat), answer);
            return;
        };
        let (key, id) = (under_way.session, under_way.id);
        drop(under_way);
        // While draining nothing begins that would have to be ended again.
        let lives = self.sessions.borrow().still(key, id).is_some() && !self.ground.is_draining();
        {
            let mut absences = self.absences.borrow_mut();
            let absence = absences.by_seat.entry(seat.id).or_default();
            absence.under_way = absence.under_way.saturating_sub(1);
            if is_open {
                absence.failures = 0;
                absence.next = Millis(0);
            } else {
                let pause = LEG_RETRY_MS << absence.failures.min(10);
                absence.failures = absence.failures.saturating_add(1);
                absence.next = clock::now().after(pause.min(LEG_RETRY_MAX_MS));
                if lives {
                    absence.waiting.push_back((key, id));
                }
            }
        }
        if !is_open {
            return;
        }
        let sessions = self.sessions.borrow();
        let known = sessions.still(key, id).filter(|_| lives).map(|session| {
            (
                session.owner,
                session.version,
                session.was_initialized,
                session.stream,
            )
        });
        drop(sessions);
        let Some((owner, version, was_initialized, stream)) = known else {
            decline(Some(seat), answer);
            return;
        };
        let kinds = match &answer {
            Answer::Own(_, handshake) => handshake.kinds,
            _ => Kinds::NONE,
        };
        let leg = open_leg(seat, owner, version, answer);
        if let Some(session) = self.sessions.borrow_mut().get_mut(key) {
            session.set_leg(seat.id, leg);
        }
        let Some(leg) = leg.key() else { return };
        if was_initialized {
            seat.shard.say_initialized(leg);
        }
        if let Some(stream) = stream {
            seat.shard.open_leg_stream(leg, stream.into());
        }
        self.restore(&local, key, seat, leg);
        self.mark_changed(key, kinds);
    }
}

/// Asks an upstream for a session of its own.
fn ask(
    seat: &Seat,
    initialize: &[u8],
    to: ReplyTo,
    owner: TokenId,
    fields: &Rc<[u8]>,
) -> Option<PendingOpening> {
    let envelope = scan::scan(initialize).ok()?;
    let id = envelope.id?;
    seat.shard
        .open_upstream(initialize, &envelope, &id, to, owner, fields.clone())
}

/// An upstream session that was opened for nobody is ended.
fn decline(seat: Option<&Seat>, answer: Answer) {
    if let (Answer::Own(opening, _), Some(seat)) = (answer, seat) {
        seat.shard.state.borrow_mut().decline(opening);
        seat.shard.notify_hub();
    }
}

/// Opens a leg for an answer.
fn open_leg(seat: &Seat, owner: TokenId, version: Version, answer: Answer) -> Leg {
    let mut state = seat.shard.state.borrow_mut();
    let version = match &answer {
        Answer::Shared(handshake) => version.min(handshake.version),
        Answer::Own(_, handshake) => handshake.version,
        Answer::Waiting(_) | Answer::Refused(_) | Answer::Absent => return Leg::Absent,
    };
    let draw = || uuid::Uuid::new_v4().as_u128();
    let Ok(key) = state.open_leg(owner, version, clock::now(), draw) else {
        if let Answer::Own(opening, _) = answer {
            state.decline(opening);
        }
        return Leg::Absent;
    };
    if let Answer::Own(opening, handshake) = answer {
        state.adopt(key, *opening, handshake);
    }
    match state.sessions.get(key) {
        Some(session) => Leg::Open {
            key,
            id: session.id,
        },
        None => Leg::Absent,
    }
}

/// The one upstream's own words, where there is only one.
fn only_refusal(join: &Join) -> Option<Vec<u8>> {
    match &join.parts[..] {
        [(_, Answer::Refused(message))] => Some(message.clone()),
        _ => None,
    }
}

/// The client's `initialize`, asking for no newer version than `lowest`: what one upstream
/// cannot do is not asked of another.
fn not_above(text: &[u8], envelope: &Envelope<'_>, lowest: Option<Version>) -> Rc<[u8]> {
    let asked = envelope.protocol_version.as_ref();
    let asked = asked.and_then(|field| Some((field, field.text(text)?)));
    let mut out = Vec::with_capacity(text.len() + 16);
    match (asked, lowest) {
        (Some((field, asked)), Some(lowest))
            if Version::parse(asked.as_bytes()).is_none_or(|asked| asked > lowest) =>
        {
            let quoted = format!("\"{}\"", lowest.as_str());
            let edit = Edit {
                span: field.span,
                with: quoted.as_bytes(),
            };
            splice(&mut out, text, &mut [edit]);
        }
        _ => splice(&mut out, text, &mut []),
    }
    out.into()
}
