//! The two GET streams of a session: the client's, with the messages that wait for it,
//! and the upstream's, which is open while the client's is.

use super::exchanges::{ExchangeKey, What};
use super::queue::Item;
use super::{Address, End, Phase, Verb, Waiting, Whose};
use crate::limits::{STREAM_OPEN_MS, STREAM_REOPEN_MAX_MS, STREAM_REOPEN_MS};
use crate::routing::session::{Session, SessionKey, StreamId};
use crate::routing::shard::{Act, ShardState};
use crate::routing::time::Millis;
use crate::wire::reply::{self, Reason};
use crate::wire::sse;

impl Session {
    /// Moves the next write of the session's stream behind `out`, if its upstream is its
    /// own. Returns how many messages it has.
    pub(in crate::routing) fn private_write(
        &mut self,
        stream: StreamId,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let private = self.private.as_mut()?;
        Some(private.queue.write(stream, out))
    }

    /// The write of a stream is over. Returns how many bytes it took; `None`: marks were
    /// written.
    pub(in crate::routing) fn private_wrote(
        &mut self,
        stream: StreamId,
        is_done: bool,
    ) -> Option<usize> {
        let queue = &mut self.private.as_mut()?.queue;
        let before = queue.bytes();
        queue.wrote(stream, is_done);
        Some(before - queue.bytes())
    }
}

impl ShardState {
    /// Has a message wait for the session's GET stream. Over the bound all that waits
    /// is lost and the stream is closed: what comes later would make no sense without
    /// it. Returns how many messages were lost.
    pub fn queue(
        &mut self,
        key: SessionKey,
        message: &[u8],
        asked: Option<u64>,
        acts: &mut Vec<Act>,
    ) -> usize {
        let mut frame = Vec::with_capacity(message.len() + sse::FRAME_BYTES);
        sse::frame(&mut frame, message);
        self.queue_frame(key, frame, asked, acts)
    }

    /// The same with a message that is an event already.
    pub(super) fn queue_frame(
        &mut self,
        key: SessionKey,
        frame: Vec<u8>,
        asked: Option<u64>,
        acts: &mut Vec<Act>,
    ) -> usize {
        let Some(session) = self.sessions.get_mut(key) else {
            return 1;
        };
        let stream = session.stream;
        let (Some(private), Some(exchanges)) = (session.private.as_mut(), &mut self.private) else {
            return 1;
        };
        if !self.offer.get_streams {
            // Nobody will ever take it.
            if let Some(asked) = asked {
                self.decline_asked(key, asked);
            }
            return 1;
        }
        let was_empty = private.queue.is_empty();
        let reads = stream.is_some() && private.queue.bytes() == 0;
        let is_room = exchanges.has_room_in_queues(frame.len(), reads);
        let before = private.queue.bytes();
        let item = Item {
            frame: frame.into(),
            asked,
        };
        let lost = private.queue.push(item, is_room);
        exchanges.queued_bytes = exchanges.queued_bytes - before + private.queue.bytes();
        if lost.is_empty() {
            acts.extend(stream.filter(|_| was_empty).map(Act::WakeStream));
            return 0;
        }
        session.stream = None;
        if let Some(stream) = stream {
            // Its time counts from the end of its stream.
            session.last_used = self.now;
            self.streams -= 1;
            self.stream_overflows += 1;
            acts.push(Act::CloseStream(stream));
            self.drop_upward(key);
        }
        let count = lost.len();
        for asked in lost.iter().filter_map(|item| item.asked) {
            self.decline_asked(key, asked);
        }
        count
    }

    /// A request of the server's that no client will see is answered, so that the
    /// server does not wait.
    fn decline_asked(&mut self, key: SessionKey, asked: u64) {
        let Some(private) = self.private_mut(key) else {
            return;
        };
        if let Some(id) = private.asked.remove(&asked) {
            let body = reply::failure(Some(&id), Reason::Overloaded);
            self.notice(key, What::Notice, body.into(), false);
        }
    }

    /// A client has opened a GET stream. Whoever it is, the server is asked with what this
    /// request has passed on, not with what another one had.
    pub(in crate::routing) fn stream_opened(&mut self, key: SessionKey) {
        if let Some(private) = self.private_mut(key)
            && private.upward.exchange.is_some()
            && private.upward.fields != private.address.fields
        {
            self.drop_upward(key);
        }
        self.want_upward(key);
    }

    /// Opens the upstream stream, if there is use for it.
    pub(in crate::routing) fn want_upward(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let has_stream = session.stream.is_some();
        let Some(private) = session.private.as_mut() else {
            return;
        };
        let upward = &private.upward;
        let is_possible = private.was_initialized
            && private.phase == Phase::Ready
            && upward.exchange.is_none()
            && !upward.is_refused;
        if !has_stream || !is_possible {
            return;
        }
        let last_event_id = upward.last_event_id.clone();
        if let (false, Some(exchanges)) = (upward.has_worked, &mut self.private) {
            private.upward.is_awaited = true;
            let due = self.now.after(STREAM_OPEN_MS);
            exchanges.wheel.set(&mut private.upward.deadline, key, due);
        }
        private.upward.fields = private.address.fields.clone();
        let message = Waiting {
            what: What::Stream,
            body: [][..].into(),
            fields: private.address.fields.clone(),
            may_repeat: true,
            was_replayed: false,
        };
        self.send(key, message, Verb::Get, last_event_id);
    }

    /// Closes the upstream stream.
    pub(in crate::routing) fn drop_upward(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let (Some(private), Some(exchanges)) = (session.private.as_mut(), &mut self.private) else {
            return;
        };
        private.upward.deadline.clear();
        if let Some(exchange) = private.upward.exchange.take() {
            private.exchanges.remove(&exchange);
            exchanges.abort(exchange);
        }
        self.upward_settled(key);
    }

    /// Whether the upstream stream opens is known, or no longer waited for: what waited
    /// for it goes out.
    fn upward_settled(&mut self, key: SessionKey) {
        let Some(private) = self.private_mut(key) else {
            return;
        };
        let was_awaited = std::mem::take(&mut private.upward.is_awaited);
        if was_awaited && private.phase == Phase::Ready {
            self.send_waiting(key);
        }
    }

    /// The session of an exchange that is its upstream stream.
    pub(super) fn upward_of(&mut self, key: ExchangeKey) -> Option<&mut super::UpwardStream> {
        let whose = self.whose(key)?;
        let upward = &mut self.private_mut(whose.key)?.upward;
        (upward.exchange == Some(key)).then_some(upward)
    }

    /// The upstream stream is open.
    pub(super) fn upward_head(&mut self, key: ExchangeKey) {
        if let Some(upward) = self.upward_of(key) {
            upward.has_worked = true;
            upward.deadline.clear();
            if let Some(whose) = self.whose(key) {
                self.upward_settled(whose.key);
            }
        }
    }

    /// An event of a response had this id.
    pub fn event_id(&mut self, key: ExchangeKey, id: &[u8]) {
        if let Some(upward) = self.upward_of(key) {
            upward.last_event_id = Some(id.into());
            upward.failures = 0;
        }
    }

    /// The server says after how many milliseconds a stream may be opened again.
    pub fn retry_after(&mut self, key: ExchangeKey, milliseconds: u64) {
        if let Some(upward) = self.upward_of(key) {
            upward.retry_ms = Some(milliseconds.min(STREAM_REOPEN_MAX_MS));
        }
    }

    /// The upstream stream has ended.
    pub(super) fn upward_ended(&mut self, whose: Whose, end: End) {
        let now = self.now;
        let (Some(session), Some(exchanges)) =
            (self.sessions.get_mut(whose.key), &mut self.private)
        else {
            return;
        };
        let Some(private) = session.private.as_mut() else {
            return;
        };
        let upward = &mut private.upward;
        upward.exchange = None;
        match end {
            // Some servers say 404 where they have no streams.
            End::NoSession
                if upward.has_worked
                    && private.phase == Phase::Ready
                    && private.renewals.may_begin(now) =>
            {
                self.renew(whose.key);
            }
            End::NoSession if !upward.has_worked => upward.is_refused = true,
            End::Refused { status, .. } if is_final(status) => upward.is_refused = true,
            _ => {
                let doubled = STREAM_REOPEN_MS << upward.failures.min(5);
                let pause = upward.retry_ms.unwrap_or(0).max(doubled);
                upward.failures += 1;
                let due = now.after(pause.min(STREAM_REOPEN_MAX_MS));
                exchanges.wheel.set(&mut upward.deadline, whose.key, due);
            }
        }
        self.upward_settled(whose.key);
    }

    /// Opens the streams again whose pause is over.
    pub(in crate::routing) fn private_tick(&mut self, now: Millis) {
        let fired = match &mut self.private {
            Some(exchanges) => exchanges.wheel.fired(now),
            None => return,
        };
        for entry in fired {
            let (Some(exchanges), Some(session)) =
                (&mut self.private, self.sessions.get_mut(entry.0))
            else {
                continue;
            };
            let Some(private) = session.private.as_mut() else {
                continue;
            };
            if exchanges
                .wheel
                .settle(&mut private.upward.deadline, entry, now)
            {
                self.upward_settled(entry.0);
                self.want_upward(entry.0);
            }
        }
    }

    /// What a session that is about to end has upstream is told of its end.
    pub(in crate::routing) fn private_begin_end(&mut self, key: SessionKey) -> Option<usize> {
        let address = self.private_mut(key)?.address.clone();
        let exchanges = self.private.as_mut()?;
        let ending = exchanges
            .endings
            .insert(super::exchanges::Ending { address, left: 0 });
        exchanges.ending = Some(ending);
        Some(ending)
    }

    /// Its calls have been withdrawn; the rest of it goes now.
    pub(in crate::routing) fn private_end(&mut self, key: SessionKey, ending: usize) {
        let (Some(session), Some(exchanges)) = (self.sessions.get_mut(key), &mut self.private)
        else {
            return;
        };
        let Some(private) = session.private.take() else {
            return;
        };
        exchanges.queued_bytes -= private.queue.bytes();
        exchanges.uris -= private.uris.len();
        let (waiting, under_way) = (private.waiting, private.exchanges);
        exchanges.ending = None;
        for message in waiting {
            exchanges.release(Some(key), message.body.len());
        }
        for exchange in under_way {
            exchanges.abort(exchange);
        }
        if exchanges.endings.get(ending).is_some_and(|it| it.left == 0) {
            let ending = exchanges.endings.remove(ending);
            self.forget_upstream(ending.address);
        }
    }

    /// The server has been told of one more call of an ending session.
    pub(super) fn farewell_over(&mut self, ending: usize) {
        let Some(exchanges) = &mut self.private else {
            return;
        };
        let Some(known) = exchanges.endings.get_mut(ending) else {
            return;
        };
        known.left -= 1;
        if known.left == 0 {
            let ending = exchanges.endings.remove(ending);
            self.forget_upstream(ending.address);
        }
    }

    /// Ends an upstream session that nobody uses any more.
    pub(super) fn forget_upstream(&mut self, address: Address) {
        if address.session.is_none() {
            return;
        }
        if let Some(exchanges) = &mut self.private {
            let begin = super::exchanges::Begin {
                whose: None,
                epoch: 0,
                what: What::Delete,
                body: [][..].into(),
                may_repeat: true,
                was_replayed: false,
            };
            exchanges.begin(begin, Verb::Delete, address, None);
        }
    }
}

/// Whether a refusal of a GET stream means that the server has none. Others are about this
/// moment: 409 says that the stream before has not ended yet.
pub fn is_final(status: u16) -> bool {
    status < 500 && !matches!(status, 408 | 409 | 425 | 429)
}
