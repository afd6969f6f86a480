//! What a client says in a session with an upstream of its own: requests become calls,
//! notifications and answers are passed on.

use std::rc::Rc;

use smallvec::SmallVec;

use super::exchanges::{Begin, What, Wish};
use super::{Address, Phase, Verb, Waiting, Whose};
use crate::limits::{LEVEL_BYTES_MAX, NOTICES_MAX};
use crate::routing::calls::About;
use crate::routing::client::{Incoming, Step, failed};
use crate::routing::session::SessionKey;
use crate::routing::shard::{Act, ShardState};
use crate::routing::upstream_id::UpstreamId;
use crate::wire::method::{self, CANCELLED, INITIALIZED};
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{Envelope, Field};
use crate::wire::splice::{Edit, splice};

impl ShardState {
    /// Whether sessions have upstreams of their own here.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// The header lines that this session's requests pass on from now on.
    pub fn pass_fields(&mut self, key: SessionKey, fields: &[u8]) {
        let session = self.sessions.get_mut(key);
        if let Some(private) = session.and_then(|session| session.private.as_mut())
            && *private.address.fields != *fields
        {
            private.address.fields = fields.into();
        }
    }

    /// A client's request that its server is to answer.
    pub(in crate::routing) fn private_request(
        &mut self,
        key: SessionKey,
        incoming: &Incoming<'_>,
    ) -> Step {
        let id = incoming.raw_id();
        let envelope = incoming.envelope;
        let raw = |field: &Option<Field>| field.as_ref().map(|field| field.span.of(incoming.text));
        let uri = || {
            let field = envelope.uri.as_ref()?;
            field.text(incoming.text).map(|text| Box::from(&*text))
        };
        let wish = match method::Request::of(&envelope.method) {
            method::Request::Subscribe if !self.offer.get_streams => {
                return Step::Answer(reply::error(
                    Some(id),
                    reply::METHOD_NOT_FOUND,
                    "There are no subscriptions here: GET streams are off",
                ));
            }
            method::Request::Subscribe => uri().map(Wish::Subscribe),
            method::Request::Unsubscribe => uri().map(Wish::Unsubscribe),
            // What is no level is the server's to refuse, and not kept.
            method::Request::SetLevel => raw(&envelope.level)
                .filter(|raw| raw.len() <= LEVEL_BYTES_MAX)
                .map(|raw| Wish::Level(raw.into())),
            _ if envelope.task.is_some() => {
                raw(&envelope.meta_progress_token).map(|raw| Wish::Task(raw.into()))
            }
            _ => None,
        };
        self.private_forward(key, incoming, wish)
    }

    fn private_forward(
        &mut self,
        key: SessionKey,
        incoming: &Incoming<'_>,
        wish: Option<Wish>,
    ) -> Step {
        let raw_id = incoming.raw_id();
        if let Some(refused) = self.refused(incoming) {
            return refused;
        }
        if self.has_all_subscriptions(key, wish.as_ref()) {
            return failed(raw_id, Reason::Overloaded);
        }
        let room = self
            .private
            .as_ref()
            .is_some_and(|exchanges| exchanges.has_room(Some(key), incoming.text.len()));
        if !room {
            return failed(raw_id, Reason::Overloaded);
        }
        let about = match incoming.envelope.method == "tasks/result" {
            true => About::OwnTaskResult,
            false => About::Nothing,
        };
        let id = match self.begin_call(key, incoming, about) {
            Ok(id) => id,
            Err(step) => return step,
        };
        let mut buffer = itoa::Buffer::new();
        let digits = id.digits(&mut buffer);
        let of_id = |field: &Field| Edit {
            span: field.span,
            with: digits,
        };
        let mut edits = SmallVec::<[Edit<'_>; 3]>::new();
        edits.push(of_id(incoming.id));
        edits.extend(incoming.envelope.meta_progress_token.as_ref().map(of_id));
        edits.extend(incoming.change);
        let mut body = Vec::with_capacity(incoming.text.len() + 48);
        splice(&mut body, incoming.text, &mut edits);
        let may_repeat = method::may_repeat(&incoming.envelope.method);
        self.submit(key, What::Call { id, wish }, body.into(), may_repeat);
        let now = incoming.now.millis();
        self.arm_call(id, now, now);
        Step::InFlight {
            id,
            may_stream: true,
        }
    }

    /// Whether the session may subscribe to nothing more.
    fn has_all_subscriptions(&self, key: SessionKey, wish: Option<&Wish>) -> bool {
        let session = self.sessions.get(key);
        match (wish, session.and_then(|session| session.private.as_ref())) {
            (Some(Wish::Subscribe(uri)), Some(private)) => {
                let max = self.limits.subscriptions_per_session_max;
                private.uris.len() >= max && !private.uris.contains(uri)
            }
            _ => false,
        }
    }

    /// A client's notification.
    pub(in crate::routing) fn private_notification(
        &mut self,
        key: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
        acts: &mut Vec<Act>,
    ) {
        if envelope.method == CANCELLED {
            acts.extend(self.cancel(key, text, envelope).map(Act::End));
            return;
        }
        let mut body = Vec::with_capacity(text.len());
        splice(&mut body, text, &mut []);
        let is_first = envelope.method == INITIALIZED;
        let what = match is_first {
            true => What::Initialized,
            false => What::Notice,
        };
        let may_repeat = method::is_harmless_twice(&envelope.method);
        self.notice(key, what, body.into(), may_repeat);
    }

    /// A client's answer to a request of its server: once, with the server's own id.
    /// Any other is accepted and goes nowhere.
    pub(in crate::routing) fn private_answer(
        &mut self,
        key: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
    ) {
        let Some(field) = &envelope.id else { return };
        let asked = asked_of(field.span.of(text));
        let session = self.sessions.get_mut(key);
        let Some(private) = session.and_then(|session| session.private.as_mut()) else {
            return;
        };
        let Some(server_id) = asked.and_then(|asked| private.asked.remove(&asked)) else {
            return;
        };
        let mut body = Vec::with_capacity(text.len() + server_id.len());
        let edit = Edit {
            span: field.span,
            with: &server_id,
        };
        splice(&mut body, text, &mut [edit]);
        // The server knows no request any more that it has the answer of.
        self.notice(key, What::Notice, body.into(), true);
    }

    /// Sends a message that nobody waits for the answer of. Over the bound it is lost:
    /// a server that takes nothing must not make a session grow.
    pub(super) fn notice(&mut self, key: SessionKey, what: What, body: Rc<[u8]>, may_repeat: bool) {
        let Some(exchanges) = &self.private else {
            return;
        };
        let has_room = exchanges.has_room(Some(key), body.len());
        let session = self.sessions.get_mut(key);
        let Some(private) = session.and_then(|session| session.private.as_mut()) else {
            return;
        };
        if private.notices >= NOTICES_MAX || !has_room {
            self.lost_notices += 1;
            return;
        }
        private.notices += 1;
        self.submit(key, what, body, may_repeat);
    }

    /// Sends a message, or has it wait until nothing may overtake it any more.
    pub(super) fn submit(&mut self, key: SessionKey, what: What, body: Rc<[u8]>, may_repeat: bool) {
        let fields = self.fields_of(key);
        self.submit_again(
            key,
            Waiting {
                what,
                body,
                fields,
                may_repeat,
                was_replayed: false,
            },
        );
    }

    /// The header lines that the client's last request has passed on.
    pub(super) fn fields_of(&self, key: SessionKey) -> Rc<[u8]> {
        let session = self.sessions.get(key);
        let private = session.and_then(|session| session.private.as_ref());
        private.map_or_else(Rc::default, |private| private.address.fields.clone())
    }

    pub(super) fn submit_again(&mut self, key: SessionKey, message: Waiting) {
        let session = self.sessions.get_mut(key);
        let Some(private) = session.and_then(|session| session.private.as_mut()) else {
            return;
        };
        if private.phase != Phase::Ready || private.upward.is_awaited {
            if let Some(exchanges) = &mut self.private {
                exchanges.hold(Some(key), message.body.len());
            }
            private.waiting.push(message);
            return;
        }
        if matches!(message.what, What::Initialized) {
            private.phase = Phase::Initializing;
        }
        self.send(key, message, Verb::Post, None);
    }

    /// Begins an exchange of a session at once.
    pub(super) fn send(
        &mut self,
        key: SessionKey,
        message: Waiting,
        verb: Verb,
        last_event_id: Option<Box<[u8]>>,
    ) {
        let Some(exchanges) = &mut self.private else {
            return;
        };
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let id = session.id;
        let Some(private) = session.private.as_mut() else {
            return;
        };
        let is_renewal = matches!(message.what, What::Renew { .. });
        let address = Address {
            session: private.address.session.clone().filter(|_| !is_renewal),
            version: private.address.version.filter(|_| !is_renewal),
            fields: message.fields,
        };
        if let What::Call { id, .. } = &message.what
            && let Some(call) = self.calls.get_mut(*id)
        {
            call.sent = true;
        }
        let is_stream = matches!(message.what, What::Stream);
        let begin = Begin {
            whose: Some(Whose { key, id }),
            epoch: private.epoch,
            what: message.what,
            body: message.body,
            may_repeat: message.may_repeat,
            was_replayed: message.was_replayed,
        };
        let exchange = exchanges.begin(begin, verb, address, last_event_id);
        private.exchanges.insert(exchange);
        if is_stream {
            private.upward.exchange = Some(exchange);
        }
    }

    /// A call that was not sent, or is to be sent again, waits no longer.
    pub(super) fn unwait(&mut self, key: SessionKey, id: UpstreamId) {
        let (Some(exchanges), Some(session)) = (&mut self.private, self.sessions.get_mut(key))
        else {
            return;
        };
        let Some(private) = session.private.as_mut() else {
            return;
        };
        let is_it =
            |waiting: &Waiting| matches!(&waiting.what, What::Call { id: of, .. } if *of == id);
        if let Some(place) = private.waiting.iter().position(is_it) {
            exchanges.release(Some(key), private.waiting.remove(place).body.len());
        }
    }

    /// A call has ended on this side: the server is told if it had been asked, and
    /// the connection that carries its answer is closed.
    pub(in crate::routing) fn private_withdraw(
        &mut self,
        key: SessionKey,
        id: UpstreamId,
        reason: Reason,
    ) {
        let Some(exchanges) = &mut self.private else {
            return;
        };
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let Some(private) = session.private.as_mut() else {
            return;
        };
        let Some(exchange) = exchanges.by_call.get(&id).copied() else {
            self.unwait(key, id);
            return;
        };
        let aborted = exchanges.abort(exchange);
        private.exchanges.remove(&exchange);
        if aborted.is_some_and(|aborted| aborted.epoch != private.epoch) {
            // The session in which it was asked is forgotten: there is nobody to tell.
            return;
        }
        let mut body = Vec::new();
        let mut buffer = itoa::Buffer::new();
        reply::cancelled_line(&mut body, id.digits(&mut buffer), reason.word());
        body.pop(); // the newline of a line
        match exchanges.ending {
            // Never dropped: there is one for each call at most.
            None => {
                private.notices += 1;
                self.submit(key, What::Notice, body.into(), true);
            }
            Some(ending) => {
                let address = private.address.clone();
                if let Some(known) = exchanges.endings.get_mut(ending) {
                    known.left += 1;
                }
                let begin = Begin {
                    whose: None,
                    epoch: 0,
                    what: What::Farewell { ending },
                    body: body.into(),
                    may_repeat: true,
                    was_replayed: false,
                };
                exchanges.begin(begin, Verb::Post, address, None);
            }
        }
    }
}

/// The id of a server's request as the client knows it.
pub(super) fn asked_of(raw: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(raw).ok()?;
    let is_plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}
