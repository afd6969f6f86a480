//! A server that has forgotten a session: one new handshake for all that wait, then
//! the log level and the subscriptions as they were, then what waited, once more each.
//! If that fails the client's session is over, as if it had been told so itself.

use super::exchanges::{Exchange, ExchangeKey, What, Wish};
use super::{End, Phase, Verb, Waiting, Whose};
use crate::routing::session::SessionKey;
use crate::routing::shard::{Act, ShardState};
use crate::routing::upstream_id::UpstreamId;
use crate::wire::handshake::Handshake;
use crate::wire::notice;
use crate::wire::reply::{self, json_string};

impl ShardState {
    /// Begins another handshake. Nothing goes upstream meanwhile.
    pub(super) fn renew(&mut self, key: SessionKey) {
        let now = self.now;
        let Some(private) = self.private_mut(key) else {
            return;
        };
        private.phase = Phase::Renewing { restoring: 0 };
        private.renewals.begin(now);
        self.drop_upward(key);
        let Some(private) = self.private_mut(key) else {
            return;
        };
        private.epoch += 1;
        private.address.session = None;
        // What the forgotten session asked, it can no longer be told.
        private.asked.clear();
        let (calls, notices): (Vec<_>, Vec<_>) = std::mem::take(&mut private.waiting)
            .into_iter()
            .partition(|message| matches!(message.what, What::Call { .. }));
        private.waiting = calls;
        private.notices -= notices.len();
        let unsaid: usize = notices.iter().map(|notice| notice.body.len()).sum();
        let before = private.queue.bytes();
        private.queue.forget(|_| true);
        let forgotten = before - private.queue.bytes();
        private.task_tokens.clear();
        private.upward = super::UpwardStream::default();
        let (id, body) = (private.initialize_id, private.initialize.clone());
        self.renewals += 1;
        if let Some(exchanges) = &mut self.private {
            exchanges.dequeued(forgotten);
            exchanges.release(Some(key), unsaid);
        }
        self.send_own(key, What::Renew { id }, body);
    }

    /// Sends something of Ringway's own, past what waits.
    fn send_own(&mut self, key: SessionKey, what: What, body: std::rc::Rc<[u8]>) {
        let message = Waiting {
            what,
            body,
            fields: self.fields_of(key),
            may_repeat: false,
            was_replayed: true,
        };
        self.send(key, message, Verb::Post, None);
    }

    /// The head of the answer to a new handshake names a session.
    pub(super) fn renewal_head(&mut self, key: ExchangeKey, session: Result<&[u8], ()>) {
        let is_renewal = matches!(
            self.private
                .as_ref()
                .and_then(|known| known.get(key))
                .map(|it| &it.what),
            Some(What::Renew { .. })
        );
        let whose = self.whose(key).filter(|_| is_renewal);
        if let Some(private) = whose.and_then(|whose| self.private_mut(whose.key)) {
            private.address.session = session.ok().map(Into::into);
        }
    }

    /// An answer has come in a session, with an id that is no call's. True if it was
    /// that of a request of Ringway's own; `result` is there unless it is an error.
    pub(super) fn renewal_heard(
        &mut self,
        key: ExchangeKey,
        whose: Whose,
        raw_id: &[u8],
        result: Option<&[u8]>,
        acts: &mut Vec<Act>,
    ) -> bool {
        let Some(exchange) = self.private.as_ref().and_then(|known| known.get(key)) else {
            return false;
        };
        let expected = match &exchange.what {
            What::Renew { id } | What::Restore { id, .. } => *id,
            _ => return false,
        };
        if UpstreamId::read(raw_id).map(|named| named.id) != Some(expected) {
            return false;
        }
        let is_current = self.is_current(key, whose);
        let exchange = self.private.as_mut().and_then(|known| known.abort(key));
        if let Some(private) = self.private_mut(whose.key) {
            private.exchanges.remove(&key);
        }
        match exchange.map(|exchange| exchange.what) {
            Some(What::Renew { .. }) => match self.is_as_before(whose.key, result) {
                true => self.announce(whose.key),
                false => self.lost(whose.key, acts),
            },
            Some(What::Restore { uri, .. }) if is_current => {
                self.restored(whose.key, uri, result.is_some(), acts);
            }
            _ => {}
        }
        true
    }

    /// Whether the server that answered can do what the client was told.
    fn is_as_before(&self, key: SessionKey, result: Option<&[u8]>) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        let Some(private) = session.private.as_ref() else {
            return false;
        };
        let handshake = result.and_then(|result| Handshake::read(result, self.offer).ok());
        handshake.is_some_and(|handshake| {
            handshake.version == session.version && !handshake.is_less_than(&private.handshake)
        })
    }

    /// The new handshake is done: the server is told so.
    fn announce(&mut self, key: SessionKey) {
        let body = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        self.send_own(key, What::RenewInitialized, body[..].into());
    }

    /// An exchange of a new handshake ended without its answer.
    pub(super) fn renewal_ended(
        &mut self,
        whose: Whose,
        exchange: Exchange,
        end: End,
        acts: &mut Vec<Act>,
    ) {
        let Some(private) = self.private_mut(whose.key) else {
            return;
        };
        // Only what was granted late can be of an earlier session.
        if exchange.epoch != private.epoch {
            return;
        }
        let is_renewing = matches!(private.phase, Phase::Renewing { .. });
        match (exchange.what, end) {
            (What::RenewInitialized, End::Done) => self.restore(whose.key, acts),
            (What::Restore { .. }, End::NoSession) if !is_renewing => self.renew(whose.key),
            // Forgotten again, in the middle of it.
            (_, End::NoSession) => self.lost(whose.key, acts),
            (What::Restore { uri, .. }, _) => self.restored(whose.key, uri, false, acts),
            _ => self.lost(whose.key, acts),
        }
    }

    /// Asks for what the forgotten session had.
    fn restore(&mut self, key: SessionKey, acts: &mut Vec<Act>) {
        let Some(private) = self.private_mut(key) else {
            return;
        };
        private.was_initialized = true;
        let level = private.level.clone();
        let uris: Vec<Box<str>> = private.uris.iter().cloned().collect();
        let count = uris.len() + usize::from(level.is_some());
        private.phase = Phase::Renewing { restoring: count };
        if count == 0 {
            self.renewed(key, acts);
            return;
        }
        if let Some(level) = level {
            self.set_level_again(key, &level);
        }
        for uri in uris {
            self.subscribe_again(key, uri);
        }
    }

    fn set_level_again(&mut self, key: SessionKey, level: &[u8]) {
        self.ask_again(key, None, "logging/setLevel", |out| {
            out.extend_from_slice(br#"{"level":"#);
            out.extend_from_slice(level);
        });
    }

    fn subscribe_again(&mut self, key: SessionKey, uri: Box<str>) {
        self.ask_again(key, Some(uri.clone()), "resources/subscribe", |out| {
            out.extend_from_slice(br#"{"uri":"#);
            json_string(out, &uri);
        });
    }

    /// The server agreed to this in a session that it has forgotten meanwhile.
    pub(super) fn grant_again(&mut self, key: SessionKey, wish: Wish) {
        let Some(private) = self.private_mut(key) else {
            return;
        };
        if !matches!(wish, Wish::Subscribe(_) | Wish::Level(_)) {
            return;
        }
        match &mut private.phase {
            // It is among what is to be restored.
            Phase::Renewing { restoring: 0 } => return,
            Phase::Renewing { restoring } => *restoring += 1,
            Phase::Ready | Phase::Initializing => {}
        }
        match wish {
            Wish::Subscribe(uri) => self.subscribe_again(key, uri),
            Wish::Level(level) => self.set_level_again(key, &level),
            Wish::Unsubscribe(_) | Wish::Task(_) => {}
        }
    }

    /// `params` writes an object without its end.
    fn ask_again(
        &mut self,
        key: SessionKey,
        uri: Option<Box<str>>,
        method: &str,
        params: impl FnOnce(&mut Vec<u8>),
    ) {
        let Some(exchanges) = &mut self.private else {
            return;
        };
        let id = exchanges.own_id();
        let mut body = Vec::new();
        reply::request(
            &mut body,
            id.digits(&mut itoa::Buffer::new()),
            method,
            |out| {
                params(out);
                out.push(b'}');
            },
        );
        self.send_own(key, What::Restore { id, uri }, body.into());
    }

    /// One of the things is restored, or refused: then the session no longer has it.
    fn restored(
        &mut self,
        key: SessionKey,
        uri: Option<Box<str>>,
        is_agreed: bool,
        acts: &mut Vec<Act>,
    ) {
        let Some(private) = self.private_mut(key) else {
            return;
        };
        let mut is_last = false;
        if let Phase::Renewing { restoring } = &mut private.phase {
            *restoring = restoring.saturating_sub(1);
            is_last = *restoring == 0;
        }
        match uri {
            Some(uri) if is_agreed => self.private_updated(key, &uri, acts),
            Some(uri) => {
                if private.uris.remove(&uri)
                    && let Some(exchanges) = &mut self.private
                {
                    exchanges.uris -= 1;
                }
                acts.push(Act::LostSubscription);
            }
            None => {}
        }
        if is_last {
            self.renewed(key, acts);
        }
    }

    /// What the session is subscribed to may have changed.
    pub(in crate::routing) fn private_updated(
        &mut self,
        key: SessionKey,
        uri: &str,
        acts: &mut Vec<Act>,
    ) {
        if let Some(shown) = self.interests.shown(uri) {
            self.queue_frame(key, notice::updated_frame(&shown), None, acts);
        }
    }

    /// All is as it was: what may have changed meanwhile is told, and what waited goes.
    fn renewed(&mut self, key: SessionKey, acts: &mut Vec<Act>) {
        let get_streams = self.offer.get_streams;
        let Some(private) = self.private_mut(key) else {
            return;
        };
        private.phase = Phase::Ready;
        let kinds = private.handshake.kinds;
        if get_streams && !kinds.is_empty() {
            let mut frames = Vec::new();
            kinds.frames(&mut frames);
            self.queue_frame(key, frames, None, acts);
        }
        self.want_upward(key);
        self.send_waiting(key);
    }

    /// There is no upstream session any more, and none to be had.
    fn lost(&mut self, key: SessionKey, acts: &mut Vec<Act>) {
        // Also those whose own 404 is still on its way.
        while let Some(id) = self
            .sessions
            .get(key)
            .and_then(|session| self.calls.newest_of(session))
        {
            self.let_go_of(key, id);
            acts.extend(self.end_call(id).map(Act::NotFound));
        }
        self.end_session(key, acts);
    }
}
