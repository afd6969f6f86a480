//! What a session's own upstream says, and how its exchanges end. A message belongs to
//! the session whose exchange brought it, whatever ids it names: an id of another
//! session's call is as unknown here as one that never was.

use super::exchanges::{Exchange, ExchangeKey, What, Wish};
use super::opening::Opened;
use super::{End, Phase, Waiting, Whose};
use crate::limits::{ASKED_MAX, TASK_TOKENS_MAX};
use crate::routing::calls::{Call, ReplyTo};
use crate::routing::drops::DropReason;
use crate::routing::ending::failure_of;
use crate::routing::outcome::Outcome;
use crate::routing::session::SessionKey;
use crate::routing::shard::{Act, ShardState};
use crate::routing::time::Millis;
use crate::routing::upstream_id::{Owner, UpstreamId};
use crate::wire::method::{CANCELLED, PROGRESS};
use crate::wire::notice::Kinds;
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Envelope, Kind};
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};

/// What a message of an upstream session is.
#[derive(Debug)]
pub enum Heard<'a> {
    /// The answer of a call: it gets the message with its own id at `id_span`.
    Answer {
        call: Call,
        id_span: Span,
        is_error: bool,
    },
    /// Progress of a call, whose client used this token.
    Progress {
        reply_to: ReplyTo,
        token: &'a [u8],
        token_span: Span,
    },
    /// For the client: on the answer of a call if that is a stream, else on the GET
    /// stream: see [`ShardState::queue`].
    Message {
        session: SessionKey,
        reply_to: Option<ReplyTo>,
        message: Vec<u8>,
        /// It is a request of the server's, which the client knows by this id.
        asked: Option<u64>,
    },
    /// An `initialize` was answered.
    Opened(Opened),
    /// It was Ringway's own.
    Own,
    Dropped(DropReason),
}

impl ShardState {
    /// The head of a response has come: the request has arrived. `session` is the
    /// session id in it; `Err`: one that cannot be used.
    pub fn head(&mut self, key: ExchangeKey, session: Option<Result<&[u8], ()>>) {
        if let Some(exchanges) = &mut self.private {
            exchanges.taken(key);
        }
        self.upward_head(key);
        let Some(session) = session else { return };
        self.opening_head(key, session);
        self.renewal_head(key, session);
    }

    /// The session of an exchange, if both still are.
    pub(super) fn whose(&self, key: ExchangeKey) -> Option<Whose> {
        let whose = self.private.as_ref()?.get(key)?.whose?;
        let session = self.sessions.get(whose.key)?;
        (session.id == whose.id).then_some(whose)
    }

    /// Whether the server may put several messages into one in this exchange's session.
    pub fn takes_batches(&self, key: ExchangeKey) -> bool {
        let session = self
            .whose(key)
            .and_then(|whose| self.sessions.get(whose.key));
        session.is_some_and(|session| session.version.has_batches())
    }

    /// A message has come in the response of an exchange.
    pub fn heard(
        &mut self,
        key: ExchangeKey,
        text: &[u8],
        now: Millis,
        acts: &mut Vec<Act>,
    ) -> Heard<'_> {
        self.now = now;
        let Some(exchange) = self.private.as_ref().and_then(|known| known.get(key)) else {
            return Heard::Dropped(DropReason::LateAnswer);
        };
        let (is_open, call) = match &exchange.what {
            What::Open(_) => (true, None),
            What::Call { id, .. } => (false, Some(*id)),
            _ => (false, None),
        };
        let is_stream = matches!(exchange.what, What::Stream);
        let envelope = match scan::scan(text) {
            Ok(envelope) => envelope,
            Err(error) if error.fault.code() == reply::PARSE_ERROR => {
                return Heard::Dropped(DropReason::NotJson);
            }
            Err(_) => return Heard::Dropped(DropReason::NotMessage),
        };
        if is_open {
            return match self.opening_heard(key, text, &envelope) {
                Some(opened) => Heard::Opened(opened),
                // There is no session yet that it could belong to.
                None => Heard::Dropped(DropReason::Other),
            };
        }
        let Some(whose) = self.whose(key) else {
            return Heard::Dropped(DropReason::LateAnswer);
        };
        if is_stream && let Some(upward) = self.upward_of(key) {
            upward.failures = 0;
        }
        let is_current = self.is_current(key, whose);
        match envelope.kind {
            Kind::Result | Kind::Error => self.private_answered(key, whose, text, &envelope, acts),
            // The session in which the server asked is forgotten: it cannot be answered.
            Kind::Request if !is_current => Heard::Dropped(DropReason::LateAnswer),
            Kind::Request => self.private_asked(whose, call, text, &envelope),
            Kind::Notification if envelope.method == CANCELLED && !is_current => {
                Heard::Dropped(DropReason::UnknownId)
            }
            Kind::Notification if envelope.method == PROGRESS => {
                self.private_progress(whose, call, text, &envelope)
            }
            Kind::Notification => self.private_noted(whose, call, text, &envelope),
        }
    }

    /// Whether an exchange is of the upstream session that there is now.
    pub(super) fn is_current(&self, key: ExchangeKey, whose: Whose) -> bool {
        let exchange = self.private.as_ref().and_then(|known| known.get(key));
        let session = self.sessions.get(whose.key);
        let private = session.and_then(|session| session.private.as_ref());
        exchange.map(|exchange| exchange.epoch) == private.map(|private| private.epoch)
    }

    /// The call of this session that an id names.
    fn own_call(&self, whose: Whose, raw: &[u8]) -> Option<UpstreamId> {
        let id = UpstreamId::read(raw)?.id;
        let call = self.calls.get(id)?;
        let is_own = id.owner() == Owner::Shard(self.shard) && call.session == whose.key;
        (is_own && call.sent).then_some(id)
    }

    fn private_answered(
        &mut self,
        key: ExchangeKey,
        whose: Whose,
        text: &[u8],
        envelope: &Envelope<'_>,
        acts: &mut Vec<Act>,
    ) -> Heard<'_> {
        let Some(field) = &envelope.id else {
            return Heard::Dropped(DropReason::UnknownId);
        };
        let raw = field.span.of(text);
        let is_error = envelope.kind == Kind::Error;
        let Some(id) = self.own_call(whose, raw) else {
            let result = envelope.result.map(|span| span.of(text));
            return match self.renewal_heard(key, whose, raw, result, acts) {
                true => Heard::Own,
                false => Heard::Dropped(DropReason::UnknownId),
            };
        };
        let exchange = self
            .private
            .as_ref()
            .and_then(|exchanges| exchanges.by_call.get(&id).copied());
        let is_current = exchange.is_some_and(|exchange| self.is_current(exchange, whose));
        let wish = match exchange {
            Some(own) if own == key => self.spend(own),
            // It came in another response: nothing more is to be had from its own.
            Some(own) => self.let_go(whose.key, own),
            None => None,
        };
        if !is_error && let Some(wish) = wish {
            let forgotten = Some(wish.clone()).filter(|_| !is_current);
            self.grant(whose.key, id, wish);
            if let Some(wish) = forgotten {
                self.grant_again(whose.key, wish);
            }
        }
        if let Some(private) = self.private_mut(whose.key)
            && !private.was_initialized
        {
            // A client that never says so is ready all the same.
            private.was_initialized = true;
            self.want_upward(whose.key);
        }
        match self.end_call(id) {
            Some(call) => Heard::Answer {
                call,
                id_span: field.span,
                is_error,
            },
            None => Heard::Dropped(DropReason::LateAnswer),
        }
    }

    /// The answer of a call has come: what still comes in its response is nobody's.
    fn spend(&mut self, key: ExchangeKey) -> Option<Wish> {
        self.private.as_mut()?.spend(key)
    }

    /// Nothing more is wanted of a call's exchange, if it has one, or of its turn.
    pub(super) fn let_go_of(&mut self, key: SessionKey, id: UpstreamId) {
        let exchanges = self.private.as_ref();
        match exchanges.and_then(|exchanges| exchanges.by_call.get(&id).copied()) {
            Some(exchange) => {
                self.let_go(key, exchange);
            }
            None => self.unwait(key, id),
        }
    }

    /// The answer of a call has come elsewhere.
    fn let_go(&mut self, key: SessionKey, exchange: ExchangeKey) -> Option<Wish> {
        self.private_mut(key)?.exchanges.remove(&exchange);
        match self.private.as_mut()?.abort(exchange)?.what {
            What::Call { wish, .. } => wish,
            _ => None,
        }
    }

    /// The server has agreed.
    fn grant(&mut self, key: SessionKey, id: UpstreamId, wish: Wish) {
        let (Some(session), Some(exchanges)) = (self.sessions.get_mut(key), &mut self.private)
        else {
            return;
        };
        let Some(private) = session.private.as_mut() else {
            return;
        };
        match wish {
            Wish::Subscribe(uri) => exchanges.uris += usize::from(private.uris.insert(uri)),
            Wish::Unsubscribe(uri) => exchanges.uris -= usize::from(private.uris.remove(&uri)),
            Wish::Level(level) => private.level = Some(level),
            Wish::Task(token) => {
                if private.task_tokens.len() >= TASK_TOKENS_MAX {
                    private.task_tokens.pop_front();
                }
                private.task_tokens.push_back((id, token));
            }
        }
    }

    pub(super) fn private_mut(&mut self, key: SessionKey) -> Option<&mut super::Private> {
        self.sessions.get_mut(key)?.private.as_deref_mut()
    }

    /// Where a message of a call's response goes.
    fn reply_to(&self, call: Option<UpstreamId>) -> Option<ReplyTo> {
        Some(self.calls.get(call?)?.reply_to)
    }

    fn private_progress(
        &mut self,
        whose: Whose,
        call: Option<UpstreamId>,
        text: &[u8],
        envelope: &Envelope<'_>,
    ) -> Heard<'_> {
        let Some(field) = &envelope.progress_token else {
            return Heard::Dropped(DropReason::Progress);
        };
        let raw = field.span.of(text);
        if let Some(id) = self.own_call(whose, raw) {
            if let Some(started) = self.calls.get(id).map(|call| call.started.millis()) {
                self.arm_call(id, started, self.now);
            }
            return match self
                .calls
                .get(id)
                .and_then(|call| Some((call.reply_to, call.token.as_deref()?)))
            {
                Some((reply_to, token)) => Heard::Progress {
                    reply_to,
                    token,
                    token_span: field.span,
                },
                None => Heard::Dropped(DropReason::Progress),
            };
        }
        // A task outlives the call that asked for it, and so does its token.
        let named = UpstreamId::read(raw).map(|named| named.id);
        let reply_to = self.reply_to(call);
        let Some(private) = self.private_mut(whose.key) else {
            return Heard::Dropped(DropReason::Progress);
        };
        let token = private
            .task_tokens
            .iter()
            .find(|(id, _)| Some(*id) == named);
        let Some((_, token)) = token else {
            return Heard::Dropped(DropReason::Progress);
        };
        let edit = Edit {
            span: field.span,
            with: token,
        };
        Heard::Message {
            session: whose.key,
            reply_to,
            message: spliced(text, &mut [edit]),
            asked: None,
        }
    }

    /// A request of the server's: to the client, under an id of Ringway's own.
    fn private_asked(
        &mut self,
        whose: Whose,
        call: Option<UpstreamId>,
        text: &[u8],
        envelope: &Envelope<'_>,
    ) -> Heard<'_> {
        let reply_to = self.reply_to(call);
        let (place, stride) = self.asked_place;
        let of_seat = self.next_asked;
        let (Some(field), Some(private)) = (&envelope.id, self.private_mut(whose.key)) else {
            return Heard::Dropped(DropReason::Other);
        };
        let raw = field.span.of(text);
        if private.asked.len() >= ASKED_MAX {
            let body = reply::failure(Some(raw), Reason::Overloaded);
            self.notice(whose.key, What::Notice, body.into(), false);
            return Heard::Dropped(DropReason::SlowReader);
        }
        // A client's session may have another leg later, whose ids are not to be those that
        // it knows from this one.
        let number = match stride {
            1 => private.next_asked,
            _ => of_seat,
        };
        let asked = number * stride + place;
        private.next_asked += 1;
        private.asked.insert(asked, raw.into());
        self.next_asked += 1;
        let mut buffer = itoa::Buffer::new();
        let edit = Edit {
            span: field.span,
            with: buffer.format(asked).as_bytes(),
        };
        Heard::Message {
            session: whose.key,
            reply_to,
            message: spliced(text, &mut [edit]),
            asked: Some(asked),
        }
    }

    fn private_noted(
        &mut self,
        whose: Whose,
        call: Option<UpstreamId>,
        text: &[u8],
        envelope: &Envelope<'_>,
    ) -> Heard<'_> {
        let is_change = envelope.method == "notifications/resources/updated"
            || Kinds::of(&envelope.method).is_some();
        if is_change && !self.offer.get_streams {
            return Heard::Dropped(DropReason::Change);
        }
        if envelope.method == CANCELLED {
            return self.private_uncalled(whose, call, text, envelope);
        }
        Heard::Message {
            session: whose.key,
            reply_to: self.reply_to(call),
            message: spliced(text, &mut []),
            asked: None,
        }
    }

    /// The server withdraws a request of its own.
    fn private_uncalled(
        &mut self,
        whose: Whose,
        call: Option<UpstreamId>,
        text: &[u8],
        envelope: &Envelope<'_>,
    ) -> Heard<'_> {
        let reply_to = self.reply_to(call);
        let (Some(field), Some(private)) = (&envelope.request_id, self.private_mut(whose.key))
        else {
            return Heard::Dropped(DropReason::UnknownId);
        };
        let raw = field.span.of(text);
        let asked = private.asked.iter().find(|(_, id)| ***id == *raw);
        let Some(asked) = asked.map(|(asked, _)| *asked) else {
            return Heard::Dropped(DropReason::UnknownId);
        };
        private.asked.remove(&asked);
        let mut buffer = itoa::Buffer::new();
        let edit = Edit {
            span: field.span,
            with: buffer.format(asked).as_bytes(),
        };
        Heard::Message {
            session: whose.key,
            reply_to,
            message: spliced(text, &mut [edit]),
            asked: None,
        }
    }

    /// An exchange is over.
    pub fn ended(
        &mut self,
        key: ExchangeKey,
        end: End,
        now: Millis,
        acts: &mut Vec<Act>,
    ) -> Option<Opened> {
        self.now = now;
        let whose = self.whose(key);
        let exchange = self.private.as_mut()?.remove(key)?;
        if let What::Open(opening) = exchange.what {
            return Some(self.opening_ended(opening, end));
        }
        if let What::Farewell { ending } = exchange.what {
            self.farewell_over(ending);
            return None;
        }
        let whose = whose?;
        let private = self.private_mut(whose.key)?;
        private.exchanges.remove(&key);
        let is_forgotten = matches!(end, End::NoSession);
        match &exchange.what {
            What::Call { .. } if is_forgotten => self.forgotten(whose, exchange, acts),
            What::Call { id, .. } => self.call_unanswered(*id, end, acts),
            What::Notice | What::Initialized => {
                private.notices = private.notices.saturating_sub(1);
                // One of a forgotten session says nothing about the present one's.
                let is_current = exchange.epoch == private.epoch;
                let is_first = is_current && matches!(exchange.what, What::Initialized);
                if is_forgotten {
                    self.forgotten(whose, exchange, acts);
                } else if is_first {
                    self.initialized(whose.key);
                }
            }
            What::Stream => self.upward_ended(whose, end),
            What::Renew { .. } | What::RenewInitialized | What::Restore { .. } => {
                self.renewal_ended(whose, exchange, end, acts);
            }
            What::Spent | What::Delete | What::Open(_) | What::Farewell { .. } => {}
        }
        None
    }

    /// The client is ready, as far as the server has heard: nothing waits any more.
    fn initialized(&mut self, key: SessionKey) {
        let Some(private) = self.private_mut(key) else {
            return;
        };
        private.was_initialized = true;
        let is_over = private.phase == Phase::Initializing;
        if is_over {
            private.phase = Phase::Ready;
        }
        // First, so that nothing overtakes it.
        self.want_upward(key);
        if is_over {
            self.send_waiting(key);
        }
    }

    /// Sends what has waited.
    pub(super) fn send_waiting(&mut self, key: SessionKey) {
        let Some(private) = self.private_mut(key) else {
            return;
        };
        let waiting = std::mem::take(&mut private.waiting);
        for message in waiting {
            if let Some(exchanges) = &mut self.private {
                exchanges.release(Some(key), message.body.len());
            }
            self.submit_again(key, message);
        }
    }

    fn call_unanswered(&mut self, id: UpstreamId, end: End, acts: &mut Vec<Act>) {
        let outcome = match end {
            End::Refused { .. } => Outcome::Error,
            End::TooLarge | End::Overloaded => Outcome::Overloaded,
            End::Late => Outcome::Timeout,
            _ => Outcome::UpstreamDown,
        };
        if let Some(call) = self.end_call(id) {
            let message = failure_of(self.upstream_name(), call.client_id.raw(), end);
            acts.push(Act::Answer {
                call,
                message,
                outcome,
            });
        }
    }

    /// The server does not know the session of this request: it is made known again,
    /// and the request sent once more.
    fn forgotten(&mut self, whose: Whose, exchange: Exchange, acts: &mut Vec<Act>) {
        let now = self.now;
        let Some(private) = self.private_mut(whose.key) else {
            return;
        };
        let is_current = exchange.epoch == private.epoch;
        let is_enough = exchange.was_replayed || !private.renewals.may_begin(now);
        if is_current && is_enough {
            if let What::Call { id, .. } = exchange.what {
                self.call_unanswered(id, End::NoSession, acts);
            }
            return;
        }
        if is_current {
            self.renew(whose.key);
        }
        if let What::Call { id, .. } = &exchange.what
            && let Some(call) = self.calls.get_mut(*id)
        {
            call.sent = false;
        }
        if !matches!(exchange.what, What::Call { .. }) {
            // The new handshake says it again; an answer means nothing to a new session.
            return;
        }
        let body = exchange.body;
        self.submit_again(
            whose.key,
            Waiting {
                what: exchange.what,
                body,
                fields: exchange.fields,
                may_repeat: exchange.may_repeat,
                was_replayed: true,
            },
        );
    }
}

fn spliced(text: &[u8], edits: &mut [Edit<'_>]) -> Vec<u8> {
    let mut message = Vec::with_capacity(text.len() + 16);
    splice(&mut message, text, edits);
    message
}
