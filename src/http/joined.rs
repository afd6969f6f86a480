//! A route that joins one or several upstreams to one server, on one thread. A client's
//! session has a leg at each upstream (`routing/joined`); here messages go to the legs that
//! they are for, and what comes back to the client, under the names of the route.

mod client;
mod delivery;
mod gather;
mod hooks;
mod opening;
mod restore;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use slab::Slab;

use super::connections::ConnectionKey;
use super::ground::Ground;
use super::shard::Shard;
use super::token_file::TokenReader;
use crate::limits::REPLACEMENTS_LOGGED;
use crate::routing::joined::gathering::Gatherings;
use crate::routing::joined::naming::{Kind, Naming};
use crate::routing::joined::sessions::{JoinedSessions, Leg, SessionLimits};
use crate::routing::joined::{InFlight, Inner, Part, SeatId};
use crate::routing::session::{SessionId, SessionKey, StreamId, TokenId};
use crate::routing::stream::Work;
use crate::routing::time::Millis;
use crate::runtime::clock;
use crate::runtime::route_counters::RouteCounters;
use crate::wire::notice::Kinds;
use crate::wire::reply::Reason;
use crate::wire::version::Version;
pub(super) use delivery::edits;
use hooks::Lines;
pub use hooks::{HookAnswer, Hooks};
pub use opening::PendingJoin;
use opening::{Absences, Join};

/// What a route is, the same on every thread.
#[derive(Debug)]
pub struct RouteSettings {
    pub name: String,
    pub naming: Naming,
    /// In the order of the configuration, as in `naming`.
    pub upstreams: Vec<UpstreamSettings>,
    /// Of one thread.
    pub limits: SessionLimits,
    /// Signs cursors; random, the same on every thread.
    pub cursor_key: [u8; 32],
    pub hooks: Option<Hooks>,
}

/// What a route knows of one of its upstreams.
#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    pub name: String,
    /// Without it no session is opened.
    pub required: bool,
}

/// An upstream of a joined route on this thread.
#[derive(Clone)]
pub struct Seat {
    pub id: SeatId,
    pub shard: Rc<Shard>,
}

/// What the route is at the moment. Replaced whole.
pub(super) struct Local {
    /// Its name.
    route: Arc<str>,
    settings: Arc<RouteSettings>,
    /// Those of the settings, counted on this thread only.
    hooks: Option<Rc<Hooks>>,
    /// In the order of the settings.
    seats: Vec<Seat>,
}

impl Local {
    fn new(settings: Arc<RouteSettings>, seats: Vec<Seat>) -> Rc<Local> {
        Rc::new(Local {
            route: settings.name.as_str().into(),
            hooks: settings.hooks.clone().map(Rc::new),
            settings,
            seats,
        })
    }

    fn place(&self, seat: SeatId) -> Option<usize> {
        self.seats.iter().position(|known| known.id == seat)
    }

    fn seat(&self, seat: SeatId) -> Option<&Seat> {
        self.seats.iter().find(|known| known.id == seat)
    }

    fn name(&self, place: usize) -> &str {
        let upstream = self.settings.upstreams.get(place);
        upstream.map_or("", |upstream| &upstream.name)
    }
}

/// A joined route on one thread.
pub struct Joined {
    pub ground: Rc<Ground>,
    local: RefCell<Rc<Local>>,
    sessions: RefCell<JoinedSessions>,
    gatherings: RefCell<Gatherings>,
    joins: RefCell<Slab<Join>>,
    /// Legs that are to be opened.
    absences: RefCell<Absences>,
    /// Sessions that ask again for what they had, and when.
    to_ask: RefCell<Vec<(Millis, SessionKey, SessionId)>>,
    next_generation: Cell<u32>,
    /// Calls that hooks look at.
    lines: RefCell<Lines>,
    counters: Arc<RouteCounters>,
    /// Who may use the route.
    pub(super) tokens: RefCell<Option<Rc<TokenReader>>>,
    hasher: ahash::RandomState,
}

/// An upstream's seat knows the route that it belongs to.
pub struct Link {
    joined: Weak<Joined>,
    seat: SeatId,
}

impl Link {
    pub fn get(&self) -> Option<(Rc<Joined>, SeatId)> {
        Some((self.joined.upgrade()?, self.seat))
    }
}

impl Joined {
    pub fn new(
        ground: Rc<Ground>,
        settings: Arc<RouteSettings>,
        counters: Arc<RouteCounters>,
    ) -> Rc<Joined> {
        let hasher = ahash::RandomState::new();
        Rc::new(Joined {
            ground,
            sessions: RefCell::new(JoinedSessions::new(
                settings.limits,
                hasher.clone(),
                clock::now(),
            )),
            local: RefCell::new(Local::new(settings, Vec::new())),
            gatherings: RefCell::default(),
            joins: RefCell::default(),
            absences: RefCell::default(),
            to_ask: RefCell::default(),
            next_generation: Cell::new(0),
            lines: RefCell::default(),
            counters,
            tokens: RefCell::default(),
            hasher,
        })
    }

    fn local(&self) -> Rc<Local> {
        self.local.borrow().clone()
    }

    fn generation(&self) -> u32 {
        let generation = self.next_generation.get().wrapping_add(1);
        self.next_generation.set(generation);
        generation
    }

    /// The route is this from now on, with these upstreams in the order of its settings.
    /// Sessions live on: they lose what they had at upstreams that are gone, get legs at new
    /// ones, with the subscriptions that they had at one of the same name, and are told that
    /// lists have changed if these can be others.
    pub fn configure(self: &Rc<Self>, settings: Arc<RouteSettings>, seats: Vec<Seat>) {
        for seat in &seats {
            seat.shard.join(Link {
                joined: Rc::downgrade(self),
                seat: seat.id,
            });
        }
        let ids: Vec<SeatId> = seats.iter().map(|seat| seat.id).collect();
        let limits = settings.limits;
        let before = self.local.replace(Local::new(settings, seats));
        let local = self.local();
        let gone = {
            let mut sessions = self.sessions.borrow_mut();
            sessions.limits = limits;
            sessions.set_seats(&ids)
        };
        self.keep_subscriptions(&before, &local, &gone);
        for (_, seat, leg) in gone {
            if let (Some(seat), Some(key)) = (before.seat(seat), leg.key()) {
                seat.shard.end_session_as(key, Reason::UpstreamDown);
            }
        }
        for (place, seat) in local.seats.iter().enumerate() {
            let is_one_of_several = local.seats.len() > 1;
            let name = is_one_of_several.then(|| local.name(place).into());
            seat.shard.set_upstream_name(name);
            // Not the seats, which would keep each other.
            let settings = local.settings.clone();
            seat.shard.set_names(Rc::new(move |uri| {
                let public = settings.naming.public(Kind::Resource, place, uri);
                public.map(Cow::into_owned)
            }));
        }
        self.absences.borrow_mut().keep_only(&ids);
        self.forget_joins_at_others(&ids);
        let seats_before = before.seats.iter().map(|seat| seat.id);
        let is_other =
            !seats_before.eq(ids) || !before.settings.naming.is_same(&local.settings.naming);
        let keys = self.sessions.borrow().keys();
        for key in keys {
            for seat in &local.seats {
                self.want_leg(&local, key, seat);
            }
            if is_other {
                let all = Kinds::TOOLS.with(Kinds::PROMPTS).with(Kinds::RESOURCES);
                self.mark_changed(key, all);
            }
        }
    }

    /// The route is served no longer: all its sessions end, and those that are being opened
    /// are refused, also when they come from connections that have known it before.
    pub fn close(self: &Rc<Self>) {
        let keys = self.sessions.borrow().keys();
        keys.into_iter().for_each(|key| self.end_session(key));
        let settings = self.local().settings.clone();
        self.local.replace(Local::new(settings, Vec::new()));
        self.absences.borrow_mut().keep_only(&[]);
        self.forget_joins_at_others(&[]);
    }

    /// The route's name.
    pub fn name(&self) -> Arc<str> {
        self.local.borrow().route.clone()
    }

    /// Sessions on this thread.
    pub fn sessions(&self) -> usize {
        self.sessions.borrow().len()
    }

    /// Bytes that answers take while others are waited for.
    pub fn waiting_bytes(&self) -> usize {
        self.gatherings.borrow().bytes() + self.lines.borrow().bytes()
    }

    /// What several upstreams are asked, sessions and legs that are being opened.
    pub fn waiting(&self) -> usize {
        let legs = self.absences.borrow().under_way();
        self.gatherings.borrow().len() + self.joins.borrow().len() + legs
    }

    pub fn find(&self, id: SessionId, owner: TokenId) -> Option<SessionKey> {
        self.sessions.borrow().find(id, owner)
    }

    pub fn version(&self, session: SessionKey) -> Option<Version> {
        let sessions = self.sessions.borrow();
        sessions.get(session).map(|session| session.version)
    }

    /// Header lines of this request go upstream with what the session sends.
    pub fn pass_fields(&self, key: SessionKey, passed: Option<&[u8]>) {
        let Some(passed) = passed else { return };
        let legs = {
            let mut sessions = self.sessions.borrow_mut();
            let Some(session) = sessions.get_mut(key) else {
                return;
            };
            if *session.fields == *passed {
                return;
            }
            session.fields = passed.into();
            session.legs.clone()
        };
        let local = self.local();
        for (seat, leg) in legs {
            if let (Some(seat), Some(key)) = (local.seat(seat), self.open_leg(&local, seat, leg)) {
                seat.shard.pass_fields(key, Some(passed));
            }
        }
    }

    /// The session of a leg, if the upstream's seat still has it.
    fn open_leg(&self, local: &Local, seat: SeatId, leg: Leg) -> Option<SessionKey> {
        let Leg::Open { key, id } = leg else {
            return None;
        };
        let state = local.seat(seat)?.shard.state.borrow();
        (state.sessions.get(key)?.id == id).then_some(key)
    }

    /// The legs of a session that are open, with their seats.
    fn open_legs(&self, local: &Local, key: SessionKey) -> Vec<(Seat, SessionKey)> {
        let legs = match self.sessions.borrow().get(key) {
            Some(session) => session.legs.clone(),
            None => Vec::new(),
        };
        let open = legs.into_iter().filter_map(|(id, leg)| {
            let key = self.open_leg(local, id, leg)?;
            Some((local.seat(id)?.clone(), key))
        });
        open.collect()
    }

    /// The client of these calls is gone: with `--on-disconnect cancel` they
    /// end, else they run on and their answers are dropped.
    pub fn client_gone(&self, calls: &[InFlight]) {
        let local = self.local();
        for call in calls {
            match call {
                InFlight::Held(to) => match self.what_was_held(*to) {
                    Some(call) => self.client_gone(&[call]),
                    None if self.ground.config.cancel_on_disconnect => self.call_over(*to),
                    None => {}
                },
                InFlight::Call { seat, id } => {
                    if let Some(seat) = local.seat(*seat) {
                        seat.shard.client_gone(std::iter::once(*id));
                    }
                }
                InFlight::Gathering(part) => {
                    let gathering = self.gatherings.borrow();
                    let asked: Vec<_> = gathering
                        .get(*part)
                        .map_or_else(Vec::new, |gathering| gathering.calls().collect());
                    drop(gathering);
                    for (seat, id) in asked {
                        if let Some(seat) = local.seat(seat) {
                            seat.shard.client_gone(std::iter::once(id));
                        }
                    }
                }
            }
        }
    }

    /// Ends a session and all its legs.
    pub fn end_session(self: &Rc<Self>, key: SessionKey) {
        let local = self.local();
        let parts = self.gatherings.borrow().of_session(key);
        for part in parts {
            self.end_gathering(part, Reason::SessionEnded);
        }
        let legs = self.open_legs(&local, key);
        let Some(session) = self.sessions.borrow_mut().close(key) else {
            return;
        };
        for (seat, leg) in legs {
            seat.shard.end_session(leg);
        }
        self.end_held(key);
        if let Some(stream) = session.stream {
            self.ground.wake(stream.into());
        }
    }

    /// Ends every session of these owners.
    pub fn end_sessions_of(self: &Rc<Self>, gone: &[TokenId]) {
        let theirs = self
            .sessions
            .borrow()
            .of_owners(|owner| gone.contains(&owner));
        self.end_unowned(theirs);
    }

    /// Ends every session that has a token: the route has none any more.
    pub fn end_sessions_of_tokens(self: &Rc<Self>) {
        let theirs = self
            .sessions
            .borrow()
            .of_owners(|owner| owner != TokenId::ANYONE);
        self.end_unowned(theirs);
    }

    fn end_unowned(self: &Rc<Self>, keys: Vec<SessionKey>) {
        let sessions = keys.len();
        keys.into_iter().for_each(|key| self.end_session(key));
        if sessions > 0 {
            tracing::info!(
                parent: None,
                shard = self.ground.index,
                route = &*self.name(),
                sessions,
                "sessions ended because the tokens of the route are others"
            );
        }
    }

    /// Lists have changed although no upstream says so: the session is told.
    fn mark_changed(&self, key: SessionKey, kinds: Kinds) {
        let stream = match self.sessions.borrow_mut().get_mut(key) {
            Some(session) => {
                session.changed = session.changed.with(kinds);
                session.stream
            }
            None => None,
        };
        if let Some(stream) = stream {
            self.ground.wake(stream.into());
        }
    }

    /// A session's client has opened a GET stream on this connection.
    pub fn open_stream(self: &Rc<Self>, session: SessionKey, key: ConnectionKey) {
        let stream = StreamId::from(key);
        let local = self.local();
        let older = {
            let mut sessions = self.sessions.borrow_mut();
            sessions.touch(session, clock::now());
            let Some(session) = sessions.get_mut(session) else {
                drop(sessions);
                self.ground.wake(key);
                return;
            };
            let older = session.stream.replace(stream);
            if older.is_some() {
                session.replacements = session.replacements.saturating_add(1);
                self.ground.counters.streams_replaced.add(1);
            }
            if older.is_some() && session.replacements == REPLACEMENTS_LOGGED {
                tracing::warn!(
                    parent: None,
                    shard = self.ground.index,
                    replaced = REPLACEMENTS_LOGGED,
                    "clients of one session keep replacing each other's GET stream"
                );
            }
            older
        };
        for (seat, leg) in self.open_legs(&local, session) {
            seat.shard.open_leg_stream(leg, key);
        }
        if let Some(older) = older {
            self.ground.wake(older.into());
        }
    }

    /// Whether the connection carries the session's GET stream.
    pub fn is_stream(&self, session: SessionKey, key: ConnectionKey) -> bool {
        let local = self.local();
        let stream = self.sessions.borrow().get(session).map(|it| it.stream);
        // Of a leg that had too much for it, it is no longer.
        let mut legs = self.open_legs(&local, session).into_iter();
        stream == Some(Some(key.into())) && legs.all(|(seat, leg)| seat.shard.is_stream(leg, key))
    }

    /// What the GET stream on this connection has to do now: what any leg has to say.
    pub fn stream_work(
        self: &Rc<Self>,
        session: SessionKey,
        key: ConnectionKey,
        out: &mut Vec<u8>,
    ) -> Work {
        let stream = self.sessions.borrow().get(session).map(|it| it.stream);
        if stream != Some(Some(key.into())) {
            return Work::End;
        }
        let local = self.local();
        let mut events = 0;
        for (seat, leg) in self.open_legs(&local, session) {
            match seat.shard.stream_work(leg, key, out) {
                Work::Write(more) => events += more,
                Work::Rest => {}
                // Too much waited for this client: the stream is closed for all.
                Work::End => return self.close_stream(session, key, events),
            }
        }
        for seat in &local.seats {
            self.want_leg(&local, session, seat);
        }
        if let Some(known) = self.sessions.borrow_mut().get_mut(session)
            && !known.changed.is_empty()
        {
            let changed = std::mem::take(&mut known.changed);
            changed.frames(out);
            events += changed.len();
            known.writing.push((key.into(), changed));
            self.ground.counters.events_marks.add(changed.len() as u64);
        }
        match events {
            0 => Work::Rest,
            _ => Work::Write(events),
        }
    }

    fn close_stream(&self, session: SessionKey, key: ConnectionKey, events: usize) -> Work {
        if events > 0 {
            // What other legs have handed over was not written.
            self.stream_wrote(session, key, false);
        }
        Work::End
    }

    /// A write of the GET stream on this connection is over.
    pub fn stream_wrote(&self, session: SessionKey, key: ConnectionKey, is_done: bool) {
        let local = self.local();
        for (seat, leg) in self.open_legs(&local, session) {
            seat.shard.stream_wrote(leg, key, is_done);
        }
        let written = match self.sessions.borrow_mut().get_mut(session) {
            Some(known) => {
                let stream = StreamId::from(key);
                let place = known.writing.iter().position(|(it, _)| *it == stream);
                place.map(|place| known.writing.swap_remove(place).1)
            }
            None => None,
        };
        if let Some(changed) = written.filter(|_| !is_done) {
            self.mark_changed(session, changed);
        }
    }

    /// The connection of a GET stream is over.
    pub fn stream_gone(&self, session: SessionKey, key: ConnectionKey) {
        let local = self.local();
        for (seat, leg) in self.open_legs(&local, session) {
            seat.shard.stream_gone(leg, key);
        }
        let mut sessions = self.sessions.borrow_mut();
        if let Some(known) = sessions.get_mut(session)
            && known.stream == Some(key.into())
        {
            known.stream = None;
            known.last_used = clock::now();
        }
        drop(sessions);
        self.stream_wrote(session, key, false);
    }

    /// Time passes: sessions that nobody used end, legs that are missing are asked for.
    pub fn tick(self: &Rc<Self>, now: Millis) {
        let local = self.local();
        let due = self.sessions.borrow_mut().due(now);
        let with_hooks = match due.is_empty() {
            true => HashSet::new(),
            false => self.lines.borrow().sessions(),
        };
        for key in due {
            let mut busy = with_hooks.contains(&key);
            let mut last_used = Millis(0);
            for (seat, leg) in self.open_legs(&local, key) {
                if let Some(leg) = seat.shard.state.borrow().sessions.get(leg) {
                    busy |= leg.calls > 0;
                    last_used = last_used.max(leg.last_used);
                }
            }
            let is_over = self.sessions.borrow_mut().settle(key, busy, last_used, now);
            if is_over {
                self.end_session(key);
            }
        }
        self.open_missing_legs(now);
        self.resubscribe_due(now);
    }

    /// An answer that is for no connection has come.
    pub(super) fn inner(self: &Rc<Self>, inner: Inner, part: Part, message: Vec<u8>) {
        match inner {
            Inner::Gathering => self.gathered(part, message),
            Inner::Again => self.asked_again(part, &message),
            // Openings have answers of another form.
            Inner::Join | Inner::Leg => {}
        }
    }
}
