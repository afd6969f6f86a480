//! What a client says in a session of a joined route: which upstream it is for, and under
//! which name that one knows the thing.

use std::borrow::Cow;
use std::rc::Rc;

use smallvec::SmallVec;

use super::delivery::{edits, shortened};
use super::{Joined, Local, Seat};
use crate::routing::calls::{ClientId, ReplyTo};
use crate::routing::client::{Step, unsupported_era};
use crate::routing::joined::naming::{Kind, Target};
use crate::routing::joined::sessions::Leg;
use crate::routing::joined::{ASKED_STRIDE, InFlight, SeatId};
use crate::routing::session::SessionKey;
use crate::runtime::clock;
use crate::wire::listing::ListKind;
use crate::wire::method::{self, CANCELLED, INITIALIZED};
use crate::wire::rename::{self, RefKind};
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Envelope, Field, Kind as MessageKind};
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};

/// A client's request on its way to an upstream.
pub(super) struct Incoming<'a> {
    pub(super) key: SessionKey,
    pub(super) text: &'a [u8],
    pub(super) envelope: &'a Envelope<'a>,
    pub(super) id: &'a Field,
    pub(super) reply_to: ReplyTo,
}

impl Incoming<'_> {
    /// The id as its client spelled it.
    pub(super) fn raw_id(&self) -> &[u8] {
        self.id.span.of(self.text)
    }

    fn error(&self, code: i32, sentence: &str) -> Step<InFlight> {
        Step::Answer(reply::error(Some(self.raw_id()), code, sentence))
    }

    pub(super) fn failed(&self, reason: Reason) -> Step<InFlight> {
        self.failed_at(None, reason)
    }

    /// The same about the upstream of this name.
    pub(super) fn failed_at(&self, upstream: Option<&str>, reason: Reason) -> Step<InFlight> {
        let message = reply::failure_at(upstream, Some(self.raw_id()), reason);
        Step::Failed(reason, message)
    }
}

/// The error of the MCP specification for a resource that is not there.
const RESOURCE_NOT_FOUND: i32 = -32002;

impl Joined {
    /// A message of a client in its session.
    pub fn message(
        self: &Rc<Self>,
        key: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
        reply_to: ReplyTo,
    ) -> Step<InFlight> {
        self.sessions.borrow_mut().touch(key, clock::now());
        let local = self.local();
        match (&envelope.kind, &envelope.id) {
            (MessageKind::Request, Some(id)) => {
                let incoming = Incoming {
                    key,
                    text,
                    envelope,
                    id,
                    reply_to,
                };
                self.request(&local, &incoming)
            }
            (MessageKind::Notification, _) => {
                self.notification(&local, key, text, envelope, reply_to);
                Step::Accepted
            }
            (MessageKind::Result | MessageKind::Error, Some(id)) => {
                self.answer_of_client(&local, key, text, envelope, id, reply_to);
                Step::Accepted
            }
            _ => Step::Accepted,
        }
    }

    fn notification(
        &self,
        local: &Local,
        key: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
        reply_to: ReplyTo,
    ) {
        if envelope.method == INITIALIZED
            && let Some(session) = self.sessions.borrow_mut().get_mut(key)
        {
            session.was_initialized = true;
        }
        if envelope.method == CANCELLED
            && let Some(id) = &envelope.request_id
            && self.cancel_held(key, &ClientId::read(id, text))
        {
            return;
        }
        // What only one upstream can have meant, but does not say which, is for nobody.
        let is_for_all = local.seats.len() == 1
            || matches!(
                &*envelope.method,
                INITIALIZED | CANCELLED | "notifications/roots/list_changed"
            );
        if is_for_all {
            for (seat, leg) in self.open_legs(local, key) {
                seat.shard.message(leg, text, envelope, reply_to, None);
            }
        }
    }

    /// A client's answer to a request of an upstream's: the id says of which.
    fn answer_of_client(
        &self,
        local: &Local,
        key: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
        id: &Field,
        reply_to: ReplyTo,
    ) {
        let raw = std::str::from_utf8(id.span.of(text)).ok();
        let Some(asked) = raw.and_then(|raw| raw.parse::<u64>().ok()) else {
            return;
        };
        for (seat, leg) in self.open_legs(local, key) {
            if seat.shard.asked_place() != asked % ASKED_STRIDE {
                continue;
            }
            match self.in_own_words(local, &seat, text, envelope) {
                None => drop(seat.shard.message(leg, text, envelope, reply_to, None)),
                Some(own) => {
                    if let Ok(envelope) = scan::scan(&own) {
                        seat.shard.message(leg, &own, &envelope, reply_to, None);
                    }
                }
            }
        }
    }

    /// A client's answer with the upstream's own ids of tasks, if they are others.
    fn in_own_words(
        &self,
        local: &Local,
        seat: &Seat,
        text: &[u8],
        envelope: &Envelope<'_>,
    ) -> Option<Vec<u8>> {
        let naming = &local.settings.naming;
        let place = local.place(seat.id)?;
        if !naming.renames_tasks(place) || !rename::may_name_tasks(text) {
            return None;
        }
        let own = |public: &str| {
            let target = naming.task(public)?;
            (target.upstream == place).then(|| target.own.into_owned())
        };
        let replacements = rename::task_edits(text, envelope.result?, &own).ok()?;
        let mut out = Vec::with_capacity(text.len());
        splice(&mut out, text, &mut edits(&replacements));
        Some(out)
    }

    fn request(self: &Rc<Self>, local: &Local, incoming: &Incoming<'_>) -> Step<InFlight> {
        let envelope = incoming.envelope;
        match method::Request::of(&envelope.method) {
            method::Request::Initialize => {
                return Step::Refused(reply::error(
                    Some(incoming.raw_id()),
                    reply::INVALID_REQUEST,
                    "initialize must be a message of its own, outside of a session",
                ));
            }
            method::Request::Modern => {
                return Step::Refused(unsupported_era(Some(incoming.raw_id())));
            }
            method::Request::Ping => {
                return Step::Answer(reply::result(incoming.raw_id(), b"{}"));
            }
            method::Request::Notification => {
                return incoming.error(reply::METHOD_NOT_FOUND, "A notification has no id");
            }
            method::Request::SetLevel => self.note_level(incoming),
            method::Request::Unsubscribe => {
                if let Some(step) = self.forget_lost(local, incoming) {
                    return step;
                }
            }
            _ => {}
        }
        self.past_hooks(local, incoming)
    }

    /// A request that hooks have let through.
    pub(super) fn dispatch(
        self: &Rc<Self>,
        local: &Local,
        incoming: &Incoming<'_>,
    ) -> Step<InFlight> {
        let envelope = incoming.envelope;
        if local.settings.naming.is_plain() {
            return match local.seats.first() {
                Some(seat) => self.forward(local, incoming, seat, None),
                None => incoming.failed(Reason::UpstreamDown),
            };
        }
        if let Some(kind) = ListKind::of_method(&envelope.method) {
            return self.list(local, incoming, kind);
        }
        match &*envelope.method {
            "tools/call" => self.named(local, incoming, Kind::Tool),
            "prompts/get" => self.named(local, incoming, Kind::Prompt),
            "resources/read" => self.resource(local, incoming),
            "resources/subscribe" | "resources/unsubscribe" => self.subscription(local, incoming),
            "completion/complete" => self.completion(local, incoming),
            "logging/setLevel" => self.set_level(local, incoming),
            "tasks/get" | "tasks/result" | "tasks/cancel" => self.task(local, incoming),
            _ => match &local.seats[..] {
                [only] => self.forward(local, incoming, only, None),
                // Whose it is cannot be known.
                _ => incoming.error(reply::METHOD_NOT_FOUND, "Method not found"),
            },
        }
    }

    /// `tools/call`, `prompts/get`.
    fn named(&self, local: &Local, incoming: &Incoming<'_>, kind: Kind) -> Step<InFlight> {
        let field = incoming.envelope.name.as_ref();
        let Some((field, name)) = field.and_then(|field| Some((field, field.text(incoming.text)?)))
        else {
            return incoming.error(reply::INVALID_PARAMS, "params.name must be a string");
        };
        let Some(target) = local.settings.naming.resolve(kind, &name) else {
            self.counters.unknown_name(kind);
            return incoming.error(
                reply::INVALID_PARAMS,
                &match kind {
                    Kind::Prompt => format!("Unknown prompt: {}", shortened(&name)),
                    _ => format!("Unknown tool: {}", shortened(&name)),
                },
            );
        };
        self.forward_to(local, incoming, field, &name, target)
    }

    fn resource(&self, local: &Local, incoming: &Incoming<'_>) -> Step<InFlight> {
        let (field, uri) = match uri_of(incoming) {
            Ok(found) => found,
            Err(step) => return step,
        };
        match local.settings.naming.resolve(Kind::Resource, &uri) {
            Some(target) => self.forward_to(local, incoming, field, &uri, target),
            None => self.not_found(incoming, &uri),
        }
    }

    fn not_found(&self, incoming: &Incoming<'_>, uri: &str) -> Step<InFlight> {
        self.counters.unknown_name(Kind::Resource);
        incoming.error(
            RESOURCE_NOT_FOUND,
            &format!("Resource not found: {}", shortened(uri)),
        )
    }

    /// Forwards a request whose `field` names something of an upstream.
    fn forward_to(
        &self,
        local: &Local,
        incoming: &Incoming<'_>,
        field: &Field,
        public: &str,
        target: Target<'_>,
    ) -> Step<InFlight> {
        let Some(seat) = local.seats.get(target.upstream) else {
            return incoming.failed(Reason::UpstreamDown);
        };
        if target.own == public {
            return self.forward(local, incoming, seat, None);
        }
        self.forward_named(local, incoming, seat, field.span, &target.own)
    }

    /// Forwards a request whose value at `span` is `own` there.
    fn forward_named(
        &self,
        local: &Local,
        incoming: &Incoming<'_>,
        seat: &Seat,
        span: Span,
        own: &str,
    ) -> Step<InFlight> {
        let with = reply::quoted(own);
        let edit = Edit { span, with: &with };
        self.forward(local, incoming, seat, Some(edit))
    }

    /// Gives a request to the leg at an upstream. `change` replaces the one value that is
    /// said in another way there.
    fn forward(
        &self,
        local: &Local,
        incoming: &Incoming<'_>,
        seat: &Seat,
        change: Option<Edit<'_>>,
    ) -> Step<InFlight> {
        if self.ground.is_waiting_full() {
            return incoming.failed(Reason::Overloaded);
        }
        let legs: SmallVec<[_; 4]> = match self.sessions.borrow().get(incoming.key) {
            Some(session) => session.legs.iter().copied().collect(),
            None => return incoming.failed(Reason::SessionEnded),
        };
        if let Err(step) = self.may_begin(local, &legs, Some(seat.id), incoming) {
            return step;
        }
        let leg = legs.iter().find(|(id, _)| *id == seat.id);
        let leg = leg.and_then(|(id, leg)| self.open_leg(local, *id, *leg));
        let Some(leg) = leg else {
            self.want_leg(local, incoming.key, seat);
            let state = seat.shard.state.borrow();
            return incoming.failed_at(state.upstream_name(), Reason::UpstreamDown);
        };
        let Incoming {
            text,
            envelope,
            reply_to,
            ..
        } = incoming;
        let step = seat.shard.message(leg, text, envelope, *reply_to, change);
        step.map(|id| InFlight::Call { seat: seat.id, id })
    }

    /// Whether another call of the session may begin: no leg has one under this id in flight
    /// (the seat that gets the request looks at its own), and all have not too many.
    pub(super) fn may_begin(
        &self,
        local: &Local,
        legs: &[(SeatId, Leg)],
        target: Option<SeatId>,
        incoming: &Incoming<'_>,
    ) -> Result<(), Step<InFlight>> {
        let mut calls = self.lines.borrow().parked_of(incoming.key);
        for (id, leg) in legs {
            let (Some(key), Some(seat)) = (self.open_leg(local, *id, *leg), local.seat(*id)) else {
                continue;
            };
            let state = seat.shard.state.borrow();
            let of_leg = state.sessions.get(key).map_or(0, |leg| leg.calls);
            calls += of_leg;
            if of_leg > 0
                && Some(*id) != target
                && state.has_call(key, &ClientId::read(incoming.id, incoming.text))
            {
                return Err(twice());
            }
        }
        match calls < local.settings.limits.calls_max {
            true => Ok(()),
            false => Err(incoming.failed(Reason::Overloaded)),
        }
    }

    /// Forwards a request with one value replaced, where the upstream's seat reads that value
    /// itself.
    fn forward_as(
        &self,
        local: &Local,
        incoming: &Incoming<'_>,
        seat: &Seat,
        field: &Field,
        own: &str,
    ) -> Step<InFlight> {
        let with = reply::quoted(own);
        let mut text = Vec::with_capacity(incoming.text.len() + with.len());
        let edit = Edit {
            span: field.span,
            with: &with,
        };
        splice(&mut text, incoming.text, &mut [edit]);
        let Ok(envelope) = scan::scan(&text) else {
            return incoming.error(reply::INVALID_REQUEST, "The request cannot be passed on");
        };
        let Some(id) = &envelope.id else {
            return incoming.failed(Reason::UpstreamDown);
        };
        let again = Incoming {
            key: incoming.key,
            text: &text,
            envelope: &envelope,
            id,
            reply_to: incoming.reply_to,
        };
        self.forward(local, &again, seat, None)
    }

    fn subscription(&self, local: &Local, incoming: &Incoming<'_>) -> Step<InFlight> {
        let (field, uri) = match uri_of(incoming) {
            Ok(found) => found,
            Err(step) => return step,
        };
        let Some(target) = local.settings.naming.resolve(Kind::Resource, &uri) else {
            return self.not_found(incoming, &uri);
        };
        let Some(seat) = local.seats.get(target.upstream) else {
            return incoming.failed(Reason::UpstreamDown);
        };
        if incoming.envelope.method == "resources/subscribe"
            && self.has_all_subscriptions(local, incoming.key, seat, &target.own)
        {
            return incoming.failed(Reason::Overloaded);
        }
        self.forward_as(local, incoming, seat, field, &target.own)
    }

    /// Whether the session may subscribe to nothing more at any upstream.
    fn has_all_subscriptions(
        &self,
        local: &Local,
        key: SessionKey,
        target: &Seat,
        own: &str,
    ) -> bool {
        let mut all = match self.sessions.borrow().get(key) {
            Some(session) => {
                // Seats that are shared count what is asked for themselves.
                let uncounted = session.restoring.iter().filter(|it| {
                    let seat = local.seat(it.seat);
                    seat.is_some_and(|seat| seat.shard.is_private())
                });
                session.lost_uris() + uncounted.count()
            }
            None => 0,
        };
        for (seat, leg) in self.open_legs(local, key) {
            let state = seat.shard.state.borrow();
            if seat.id == target.id && state.is_subscribed(leg, own) {
                return false;
            }
            all += state.subscriptions_of(leg);
        }
        all >= local.settings.limits.subscriptions_max
    }

    fn completion(&self, local: &Local, incoming: &Incoming<'_>) -> Step<InFlight> {
        let params = incoming.envelope.params;
        let found = params.map(|params| rename::completion_ref(incoming.text, params));
        let asked = match found {
            Some(Ok(asked)) => asked,
            Some(Err(error)) => {
                return incoming.error(reply::INVALID_PARAMS, &error.to_string());
            }
            None => return incoming.error(reply::INVALID_PARAMS, "params are missing"),
        };
        let naming = &local.settings.naming;
        let target = match asked.kind {
            RefKind::Prompt => naming.resolve(Kind::Prompt, &asked.text),
            RefKind::Resource => naming
                .resolve(Kind::Resource, &asked.text)
                .or_else(|| naming.resolve(Kind::Template, &asked.text)),
        };
        let Some(target) = target else {
            return match asked.kind {
                RefKind::Prompt => {
                    self.counters.unknown_name(Kind::Prompt);
                    incoming.error(
                        reply::INVALID_PARAMS,
                        &format!("Unknown prompt: {}", shortened(&asked.text)),
                    )
                }
                RefKind::Resource => self.not_found(incoming, &asked.text),
            };
        };
        let Some(seat) = local.seats.get(target.upstream) else {
            return incoming.failed(Reason::UpstreamDown);
        };
        self.forward_named(local, incoming, seat, asked.value, &target.own)
    }

    fn task(&self, local: &Local, incoming: &Incoming<'_>) -> Step<InFlight> {
        let field = incoming.envelope.task_id.as_ref();
        let Some((field, task)) = field.and_then(|field| Some((field, field.text(incoming.text)?)))
        else {
            return incoming.error(reply::INVALID_PARAMS, "params.taskId must be a string");
        };
        let target = local.settings.naming.task(&task);
        let seat = target.and_then(|target| Some((local.seats.get(target.upstream)?, target)));
        let Some((seat, target)) = seat else {
            return incoming.error(reply::INVALID_PARAMS, "There is no such task");
        };
        match target.own == task {
            true => self.forward(local, incoming, seat, None),
            false => self.forward_as(local, incoming, seat, field, &target.own),
        }
    }
}

fn uri_of<'a>(incoming: &Incoming<'a>) -> Result<(&'a Field, Cow<'a, str>), Step<InFlight>> {
    let field = incoming.envelope.uri.as_ref();
    field
        .and_then(|field| Some((field, field.text(incoming.text)?)))
        .ok_or_else(|| incoming.error(reply::INVALID_PARAMS, "params.uri must be a string"))
}

/// The id of a request is in flight already.
pub(super) fn twice() -> Step<InFlight> {
    Step::Refused(reply::error(
        None,
        reply::INVALID_REQUEST,
        "The id of this request is in flight already in this session",
    ))
}
