//! What several upstreams are asked for one request of a client: lists, which are merged in
//! the order of the configuration, and the log level.

use std::rc::Rc;

use serde::Deserialize;

use super::client::Incoming;
use super::{Joined, Local, Seat};
use crate::limits::LIST_BYTES_MAX;
use crate::routing::client::{Step, UNKNOWN_LEVEL};
use crate::routing::joined::cursor::{Cursor, Key};
use crate::routing::joined::gathering::{Begun, Gathering, Progress, Question};
use crate::routing::joined::naming::{Kind, UpstreamNames};
use crate::routing::joined::{InFlight, Inner, Part, SeatId};
use crate::routing::session::SessionKey;
use crate::wire::listing::{self, ListKind, Shown};
use crate::wire::method::LOG_LEVELS;
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Kind as MessageKind};
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};

/// The member of a list's params that matters.
#[derive(Deserialize)]
struct ListParams {
    #[serde(default)]
    cursor: serde_json::Value,
}

/// One upstream that is asked.
struct Asked {
    seat: Seat,
    leg: SessionKey,
    request: Vec<u8>,
}

impl Joined {
    /// A client asks for (a page of) a list.
    pub(super) fn list(
        self: &Rc<Self>,
        local: &Local,
        incoming: &Incoming<'_>,
        kind: ListKind,
    ) -> Step<InFlight> {
        let bad_cursor = || {
            Step::Answer(reply::error(
                Some(incoming.raw_id()),
                reply::INVALID_PARAMS,
                "Invalid cursor",
            ))
        };
        let Ok(cursor) = cursor_of(incoming) else {
            return bad_cursor();
        };
        let session = match self.sessions.borrow().get(incoming.key) {
            Some(session) => session.id,
            None => return incoming.failed(Reason::SessionEnded),
        };
        let cursor = match cursor {
            None => None,
            Some(text) => {
                let key = Key::new(&local.settings.cursor_key);
                match Cursor::decode(&text, kind, &key, &local.settings.name, session.0) {
                    Ok(cursor) => Some(cursor),
                    Err(_) => return bad_cursor(),
                }
            }
        };
        for seat in &local.seats {
            self.want_leg(local, incoming.key, seat);
        }
        let legs = self.open_legs(local, incoming.key);
        let mut is_offered = false;
        let mut asked = Vec::new();
        let mut absent = Vec::new();
        for (place, seat) in local.seats.iter().enumerate() {
            let own_cursor = match &cursor {
                None => Some(None),
                Some(cursor) => {
                    let name = local.name(place);
                    let next = cursor.next.iter().find(|(of, _)| **of == *name);
                    next.map(|(_, own)| Some(&**own))
                }
            };
            let leg = legs.iter().find(|(known, _)| known.id == seat.id);
            match (leg, own_cursor) {
                (None, Some(_)) => absent.push(seat.id),
                (Some((seat, leg)), own_cursor) if seat.shard.has_list(*leg, kind) => {
                    is_offered = true;
                    asked.extend(own_cursor.map(|own_cursor| Asked {
                        seat: seat.clone(),
                        leg: *leg,
                        request: request(incoming.raw_id(), kind, own_cursor),
                    }));
                }
                _ => {}
            }
        }
        if !is_offered && cursor.is_none() {
            // One that is not there may have such a list.
            return match absent[..] {
                [] => Step::Answer(reply::error(
                    Some(incoming.raw_id()),
                    reply::METHOD_NOT_FOUND,
                    "Method not found",
                )),
                [only] => {
                    let only = local.seat(only).map(|seat| seat.shard.state.borrow());
                    let name = only.as_ref().and_then(|state| state.upstream_name());
                    incoming.failed_at(name, Reason::UpstreamDown)
                }
                _ => incoming.failed(Reason::UpstreamDown),
            };
        }
        let pages = cursor.map_or(0, |cursor| cursor.pages);
        let question = Question::List { kind, pages };
        self.gather(local, incoming, question, asked, absent)
    }

    /// `logging/setLevel`, for every upstream that has logging.
    pub(super) fn set_level(
        self: &Rc<Self>,
        local: &Local,
        incoming: &Incoming<'_>,
    ) -> Step<InFlight> {
        let level = incoming.envelope.level.as_ref();
        let level = level.and_then(|field| field.text(incoming.text));
        if !level.is_some_and(|level| LOG_LEVELS.contains(&&*level)) {
            return Step::Answer(reply::error(
                Some(incoming.raw_id()),
                reply::INVALID_PARAMS,
                UNKNOWN_LEVEL,
            ));
        }
        let asked: Vec<Asked> = self
            .open_legs(local, incoming.key)
            .into_iter()
            .filter(|(seat, leg)| seat.shard.has_logging(*leg))
            .map(|(seat, leg)| Asked {
                seat,
                leg,
                request: incoming.text.to_vec(),
            })
            .collect();
        if asked.is_empty() {
            return Step::Answer(reply::error(
                Some(incoming.raw_id()),
                reply::METHOD_NOT_FOUND,
                "No server has the logging capability",
            ));
        }
        self.gather(local, incoming, Question::Level, asked, Vec::new())
    }

    /// Asks all of these at the same time. `absent`: who would be asked too.
    fn gather(
        self: &Rc<Self>,
        local: &Local,
        incoming: &Incoming<'_>,
        question: Question,
        asked: Vec<Asked>,
        absent: Vec<SeatId>,
    ) -> Step<InFlight> {
        // Also at upstreams that are not asked.
        let legs = match self.sessions.borrow().get(incoming.key) {
            Some(session) => session.legs.clone(),
            None => return incoming.failed(Reason::SessionEnded),
        };
        if let Err(step) = self.may_begin(local, &legs, None, incoming) {
            return step;
        }
        let session_id = {
            let mut sessions = self.sessions.borrow_mut();
            let Some(session) = sessions.get_mut(incoming.key) else {
                return incoming.failed(Reason::SessionEnded);
            };
            session.gatherings += 1;
            session.id
        };
        let first = self.gatherings.borrow_mut().begin(Begun {
            session: incoming.key,
            session_id,
            reply_to: incoming.reply_to,
            client_id: incoming.raw_id().into(),
            question,
            seats: asked.iter().map(|asked| asked.seat.id).collect(),
            absent,
        });
        let mut refused = None;
        for (place, asked) in asked.iter().enumerate() {
            let part = Part {
                part: place as u16,
                ..first
            };
            let Ok(envelope) = scan::scan(&asked.request) else {
                continue;
            };
            let to = part.reply_to(Inner::Gathering);
            let step = asked
                .seat
                .shard
                .message(asked.leg, &asked.request, &envelope, to, None);
            let mut gatherings = self.gatherings.borrow_mut();
            match step {
                Step::InFlight { id, .. } => gatherings.asked(part, id),
                // A failure says why.
                Step::Answer(message) | Step::Failed(_, message) => {
                    gatherings.answered(part, Ok(message));
                }
                Step::Refused(message) => refused = Some(message),
                Step::Accepted => drop(gatherings.answered(part, Err("it was not asked"))),
            }
        }
        if let Some(message) = refused {
            // The same id is in flight: what was begun under it is undone.
            self.abandon_gathering(local, first);
            return Step::Refused(message);
        }
        let done = self.gatherings.borrow_mut().finish_if_done(first);
        match done {
            Some(done) => {
                self.gathering_over(&done);
                Step::Answer(self.conclude(local, done))
            }
            None => Step::InFlight {
                id: InFlight::Gathering(first),
                may_stream: false,
            },
        }
    }

    fn gathering_over(&self, gathering: &Gathering) {
        let mut sessions = self.sessions.borrow_mut();
        if sessions
            .still(gathering.session, gathering.session_id)
            .is_some()
            && let Some(session) = sessions.get_mut(gathering.session)
        {
            session.gatherings = session.gatherings.saturating_sub(1);
        }
    }

    /// Takes a gathering out and withdraws what was asked for it.
    fn abandon_gathering(&self, local: &Local, part: Part) -> Option<Gathering> {
        let gathering = self.gatherings.borrow_mut().take(part)?;
        self.gathering_over(&gathering);
        for (seat, id) in gathering.calls() {
            if let Some(seat) = local.seat(seat) {
                seat.shard.withdraw(id);
            }
        }
        Some(gathering)
    }

    /// Ends a gathering without an answer of the upstreams.
    pub(super) fn end_gathering(self: &Rc<Self>, part: Part, reason: Reason) {
        let local = self.local();
        if let Some(gathering) = self.abandon_gathering(&local, part) {
            let message = reply::failure(Some(&gathering.client_id), reason);
            self.ground.respond(gathering.reply_to, 200, &message);
        }
    }

    /// A part's client has cancelled it, and with it the whole.
    pub(in crate::http) fn cancelled(self: &Rc<Self>, part: Part) {
        let local = self.local();
        if let Some(gathering) = self.abandon_gathering(&local, part) {
            let error = reply::failure(Some(&gathering.client_id), Reason::Cancelled);
            self.ground.cancel(gathering.reply_to, error);
        }
    }

    /// An upstream has answered its part, or what it was asked has ended with this message.
    pub(super) fn gathered(self: &Rc<Self>, part: Part, message: Vec<u8>) {
        let message = match message.len() <= self.ground.answers_room() {
            true => Ok(message),
            false => Err("there is no room for its answer"),
        };
        let done = {
            let mut gatherings = self.gatherings.borrow_mut();
            if !gatherings.answered(part, message) {
                return;
            }
            gatherings.finish_if_done(part)
        };
        if let Some(done) = done {
            self.gathering_over(&done);
            let to = done.reply_to;
            let message = self.conclude(&self.local(), done);
            self.ground.respond(to, 200, &message);
        }
    }

    /// All have answered, or never will.
    fn conclude(&self, local: &Local, gathering: Gathering) -> Vec<u8> {
        match gathering.question {
            Question::Level => level_set(&gathering),
            Question::List { kind, pages } => self.merge(local, &gathering, kind, pages),
        }
    }

    fn merge(&self, local: &Local, gathering: &Gathering, kind: ListKind, pages: u32) -> Vec<u8> {
        let id = &gathering.client_id;
        let mut items = Vec::new();
        let mut next = Vec::new();
        let mut answered = 0;
        let mut refusal = None;
        for (seat, progress) in &gathering.parts {
            let Some(place) = local.place(*seat) else {
                continue;
            };
            let name = local.name(place);
            let left_out = |why: &str| local.left_out(place, kind, why, why);
            let message = match progress {
                Progress::Answered(message) => message,
                Progress::Failed(why) => {
                    left_out(why);
                    continue;
                }
                Progress::Waiting(_) => continue, // all have answered
            };
            if message.len() > LIST_BYTES_MAX {
                left_out("its answer is too long");
                continue;
            }
            let Ok(envelope) = scan::scan(message) else {
                left_out("its answer cannot be read");
                continue;
            };
            let Some(result) = envelope
                .result
                .filter(|_| envelope.kind == MessageKind::Result)
            else {
                let error = envelope.error.map(|error| error.of(message));
                match error.and_then(reply::failure_in) {
                    Some((word, why)) => local.left_out(place, kind, word, &why),
                    None => left_out("it answered with an error"),
                }
                refusal.get_or_insert((message, envelope.id.map(|id| id.span)));
                continue;
            };
            let mut show = |item: &listing::Item<'_>| self.shown(local, place, kind, item);
            let names = UpstreamNames {
                naming: &local.settings.naming,
                upstream: place,
            };
            match listing::take_page(kind, result.of(message), &mut show, &names, &mut items) {
                Ok(page) => {
                    answered += 1;
                    local.warn_unreadable(place, kind, page.unreadable);
                    next.extend(page.next_cursor.map(|cursor| (name.to_owned(), cursor)));
                }
                Err(fault) => left_out(&fault.to_string()),
            }
        }
        if answered == 0 && pages == 0 {
            return match refusal {
                // All that is known is what the first of them said.
                Some((message, Some(span))) => under(id, span, message),
                _ => reply::failure(Some(id), Reason::UpstreamDown),
            };
        }
        let cursor = match next.is_empty() {
            true => None,
            false => {
                let cursor = Cursor {
                    kind,
                    pages: pages + 1,
                    next,
                };
                let key = Key::new(&local.settings.cursor_key);
                let session = gathering.session_id.0;
                match cursor.encode(&key, &local.settings.name, session) {
                    Ok(text) => Some(text),
                    Err(limit) => {
                        local.warn_short(kind, limit);
                        None
                    }
                }
            }
        };
        listing::merged(id, kind, &items, cursor.as_deref())
    }

    /// Under which name a thing of an upstream is shown, if it is.
    fn shown(
        &self,
        local: &Local,
        place: usize,
        kind: ListKind,
        item: &listing::Item<'_>,
    ) -> Option<Shown> {
        let naming = &local.settings.naming;
        let Some(thing) = Kind::of_list(kind) else {
            let public = naming.public_task(place, item.key);
            let key = (*public != *item.key).then(|| public.into_owned());
            return Some(Shown { key, name: None });
        };
        match naming.shown(thing, place, item) {
            Ok(shown) => {
                local.warn_long(shown.key.as_deref().unwrap_or(item.key));
                Some(shown)
            }
            Err(absent) => {
                local.warn_absent(thing, place, item.key, absent);
                None
            }
        }
    }
}

/// The client's cursor, if it sends one.
fn cursor_of(incoming: &Incoming<'_>) -> Result<Option<String>, ()> {
    let Some(params) = incoming.envelope.params else {
        return Ok(None);
    };
    let params: ListParams = serde_json::from_slice(params.of(incoming.text)).map_err(|_| ())?;
    match params.cursor {
        serde_json::Value::Null => Ok(None),
        serde_json::Value::String(cursor) => Ok(Some(cursor)),
        _ => Err(()),
    }
}

/// The request for a page of an upstream's list.
fn request(id: &[u8], kind: ListKind, cursor: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    reply::request(&mut out, id, kind.method(), |out| match cursor {
        None => out.extend_from_slice(b"{}"),
        Some(cursor) => {
            out.extend_from_slice(br#"{"cursor":"#);
            reply::json_string(out, cursor);
            out.push(b'}');
        }
    });
    out
}

/// A server's message, whose id stands at `span`, under the client's id.
fn under(id: &[u8], span: Span, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + id.len());
    splice(&mut out, message, &mut [Edit { span, with: id }]);
    out
}

/// The level is set if any upstream has taken it; else the first one's error.
fn level_set(gathering: &Gathering) -> Vec<u8> {
    let id = &gathering.client_id;
    let mut refusal = None;
    for (_, progress) in &gathering.parts {
        let Progress::Answered(message) = progress else {
            continue;
        };
        match scan::scan(message) {
            Ok(envelope) if envelope.kind == MessageKind::Result => {
                return reply::result(id, b"{}");
            }
            Ok(envelope) => {
                if let Some(field) = envelope.id {
                    refusal.get_or_insert((message, field.span));
                }
            }
            Err(_) => {}
        }
    }
    match refusal {
        Some((message, span)) => under(id, span, message),
        None => reply::failure(Some(id), Reason::UpstreamDown),
    }
}
