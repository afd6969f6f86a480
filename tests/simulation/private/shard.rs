//! A shard in small whose sessions have upstreams of their own: what `http::upstream`
//! does between routing and connections, on a clock that is handed in.

use ringway::http::connections::{ConnectionKey, Connections, Delivery, Form, Streamed};
use ringway::routing::calls::{Call, ReplyTo};
use ringway::routing::event_queue::EventQueue;
use ringway::routing::outcome::Outcome;
use ringway::routing::private::{End, ExchangeKey, Heard, Opened, Order};
use ringway::routing::session::{SessionId, SessionKey, TokenId};
use ringway::routing::shard::{Act, Ended, ShardState};
use ringway::routing::time::Micros;
use ringway::routing::upstream_id::UpstreamId;
use ringway::wire::handshake::Offer;
use ringway::wire::reply::{self, Reason};
use ringway::wire::scan::scan;
use ringway::wire::splice::{Edit, splice};
use ringway::wire::sse;

use crate::checks::How;
use crate::dice::Dice;
use crate::private::settings::Settings;

/// What has happened in a shard.
#[derive(Debug)]
pub(crate) enum News {
    /// A call has ended.
    Ended {
        to: ReplyTo,
        how: How,
    },
    /// A client's session is there.
    Opened {
        to: ReplyTo,
        id: SessionId,
    },
    /// Progress was heard for a call.
    Progress(ReplyTo),
    /// A message of the server's is for the client of this session; where its call's
    /// answer goes.
    Passed {
        session: SessionKey,
        on: Option<ReplyTo>,
        asked: Option<u64>,
    },
    /// Messages on answers were dropped; of this call, if that is known.
    Dropped {
        of: Option<ReplyTo>,
        count: usize,
    },
    /// Messages that waited for a GET stream were lost.
    Lost(usize),
    Evicted(usize),
    LostSubscription,
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) state: ShardState,
    pub(crate) connections: Connections,
    pub(crate) now: Micros,
    pub(crate) news: Vec<News>,
    buffered_bytes_max: usize,
    cancel_on_disconnect: bool,
    ids: Dice,
}

impl Shard {
    pub(crate) fn new(index: usize, seed: u64, settings: &Settings) -> Shard {
        let now = Micros(0);
        let hasher = ahash::RandomState::with_seeds(seed, 1, 2, index as u64);
        let shards = settings.shards;
        let state = ShardState::new(index, shards, settings.limits, hasher, now.millis());
        let offer = Offer {
            get_streams: true,
            tasks: true,
        };
        Shard {
            state: state.with_private(offer, now.millis()),
            connections: Connections::new(now.millis()),
            now,
            news: Vec::new(),
            buffered_bytes_max: settings.buffered_bytes_max,
            cancel_on_disconnect: settings.cancel_on_disconnect,
            ids: Dice::new(seed ^ 0x5e55 ^ index as u64),
        }
    }

    pub(crate) fn orders(&mut self) -> Vec<Order> {
        let exchanges = self.state.exchanges().expect("upstreams of their own");
        exchanges.take_orders()
    }

    pub(crate) fn is_over(&mut self, key: ExchangeKey) -> bool {
        let exchanges = self.state.exchanges().expect("upstreams of their own");
        exchanges.is_over(key)
    }

    pub(crate) fn has_room(&self) -> bool {
        let taken = self.connections.held_bytes() + self.state.waiting_bytes();
        taken < self.buffered_bytes_max
    }

    fn answers_room(&self) -> usize {
        let taken = self.state.waiting_bytes() + self.connections.body_bytes();
        self.buffered_bytes_max.saturating_sub(taken)
    }

    /// Forwards an `initialize`. `None`: there is no room.
    pub(crate) fn open(&mut self, text: &[u8], to: ReplyTo) -> Option<ExchangeKey> {
        if self.state.sessions.is_full() {
            return None;
        }
        let envelope = scan(text).expect("clients send messages");
        let id = envelope.id.as_ref().expect("it is a request");
        let fields = [][..].into();
        self.state
            .open_private(text, &envelope, id, to, TokenId::ANYONE, fields)
    }

    pub(crate) fn heard(&mut self, key: ExchangeKey, text: &[u8]) {
        let mut acts = Vec::new();
        self.hear(key, text.trim_ascii(), &mut acts);
        self.perform(acts);
    }

    fn hear(&mut self, key: ExchangeKey, text: &[u8], acts: &mut Vec<Act>) {
        let now = self.now.millis();
        let room = self.answers_room();
        match self.state.heard(key, text, now, acts) {
            Heard::Answer { call, id_span, .. } => {
                let edit = Edit {
                    span: id_span,
                    with: call.client_id.raw(),
                };
                let spliced = |out: &mut Vec<u8>| splice(out, text, &mut [edit]);
                self.ended(call.reply_to, How::Server);
                self.deliver(call.reply_to, spliced);
            }
            Heard::Progress {
                reply_to,
                token,
                token_span,
            } => {
                let edit = Edit {
                    span: token_span,
                    with: token,
                };
                let bytes = text.len() + token.len() + sse::FRAME_BYTES;
                let streamed = self
                    .connections
                    .deliver_progress(reply_to, room, bytes, |out| splice(out, text, &mut [edit]));
                self.news.push(News::Progress(reply_to));
                self.count(reply_to, streamed);
            }
            Heard::Message {
                session,
                reply_to,
                message,
                asked,
            } => {
                self.news.push(News::Passed {
                    session,
                    on: reply_to,
                    asked,
                });
                self.pass_on(session, reply_to, &message, asked, acts);
            }
            Heard::Opened(opened) => self.opened(opened),
            Heard::Own | Heard::Dropped(_) => {}
        }
    }

    fn pass_on(
        &mut self,
        session: SessionKey,
        reply_to: Option<ReplyTo>,
        message: &[u8],
        asked: Option<u64>,
        acts: &mut Vec<Act>,
    ) {
        if let Some(to) = reply_to {
            let is_taken = match asked {
                Some(_) => self.connections.deliver_request(to, message),
                None => {
                    let bytes = message.len() + sse::FRAME_BYTES;
                    let room = self.buffered_bytes_max;
                    let streamed = self
                        .connections
                        .deliver_progress(to, room, bytes, |out| out.extend_from_slice(message));
                    self.count(to, streamed);
                    matches!(streamed, Streamed::Taken { .. } | Streamed::NoRoom)
                }
            };
            if is_taken {
                self.enforce_budget();
                return;
            }
        }
        let lost = self.state.queue(session, message, asked, acts);
        if lost > 0 {
            self.news.push(News::Lost(lost));
        }
    }

    fn count(&mut self, to: ReplyTo, streamed: Streamed) {
        let (own, elsewhere) = match streamed {
            Streamed::Taken { own, elsewhere } => (own, elsewhere),
            Streamed::NoRoom => (1, 0),
            Streamed::NoStream | Streamed::Gone => (0, 0),
        };
        for (of, count) in [(Some(to), own), (None, elsewhere)] {
            if count > 0 {
                self.news.push(News::Dropped { of, count });
            }
        }
    }

    /// An exchange is over.
    pub(crate) fn exchange_ended(&mut self, key: ExchangeKey, end: End) {
        let mut acts = Vec::new();
        let now = self.now.millis();
        if let Some(opened) = self.state.ended(key, end, now, &mut acts) {
            self.opened(opened);
        }
        self.perform(acts);
    }

    fn opened(&mut self, opened: Opened) {
        match opened {
            Opened::Refused {
                opening, message, ..
            } => {
                self.answer_opening(opening.reply_to, 200, &message);
            }
            Opened::Session { opening, handshake } => {
                let (to, owner) = (opening.reply_to, opening.owner);
                let client_id = opening.client_id.clone();
                let ids = &mut self.ids;
                let draw = || u128::from(ids.next()) << 64 | u128::from(ids.next());
                let now = self.now.millis();
                let opened = self.state.open_session(owner, handshake.version, now, draw);
                let Ok(session) = opened else {
                    self.state.decline(opening);
                    let message = reply::failure(Some(client_id.raw()), Reason::Overloaded);
                    self.answer_opening(to, 503, &message);
                    return;
                };
                let result = handshake.result_for(handshake.version);
                let message = reply::result(client_id.raw(), result);
                self.state.adopt(session, *opening, handshake);
                let id = self.state.sessions.get(session).expect("it is there").id;
                match self.answer_opening(to, 200, &message) {
                    true => self.news.push(News::Opened { to, id }),
                    false => self.end_session(session),
                }
            }
        }
    }

    /// False if the client is gone.
    fn answer_opening(&mut self, to: ReplyTo, status: u16, message: &[u8]) -> bool {
        let bytes = message.to_vec();
        let make = |_: &Form| Delivery::Response { status, bytes };
        let is_taken = self.connections.deliver(to, make, |_| {});
        self.enforce_budget();
        is_taken
    }

    pub(crate) fn end_session(&mut self, session: SessionKey) {
        let mut acts = Vec::new();
        self.state.end_session(session, &mut acts);
        self.perform(acts);
    }

    pub(crate) fn perform(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::End(ended) => self.tell(&ended),
                Act::Answer {
                    call,
                    message,
                    outcome,
                } => self.tell_message(&call, &message, How::Own(outcome)),
                Act::CloseStream(stream) | Act::WakeStream(stream) => {
                    self.connections.wake(stream.into());
                }
                Act::LostSubscription => self.news.push(News::LostSubscription),
                Act::NotFound(call) => {
                    let id = Some(call.client_id.raw());
                    let message = reply::error(id, reply::SESSION_NOT_FOUND, "Session not found");
                    self.tell_message(&call, &message, How::Own(Outcome::SessionEnded));
                }
            }
        }
    }

    fn ended(&mut self, to: ReplyTo, how: How) {
        self.news.push(News::Ended { to, how });
    }

    fn tell(&mut self, ended: &Ended) {
        let to = ended.reply_to();
        if ended.reason != Reason::Cancelled {
            return self.tell_message(&ended.call, &ended.body(None), How::Failed(ended.reason));
        }
        self.ended(to, How::Failed(ended.reason));
        let make = |_: &Form| Delivery::Cancelled {
            part: to.part,
            error: ended.body(None),
        };
        if self.connections.deliver(to, make, EventQueue::end) {
            self.enforce_budget();
        }
    }

    fn tell_message(&mut self, call: &Call, message: &[u8], how: How) {
        self.ended(call.reply_to, how);
        self.deliver(call.reply_to, |out| out.extend_from_slice(message));
    }

    /// Without the heads of HTTP: a response is its body here.
    fn deliver(&mut self, to: ReplyTo, write: impl Fn(&mut Vec<u8>)) {
        let make = |form: &Form| {
            let mut message = Vec::new();
            write(&mut message);
            match form {
                Form::Json { .. } => Delivery::Response {
                    status: 200,
                    bytes: message,
                },
                _ => Delivery::Message {
                    part: to.part,
                    message,
                },
            }
        };
        if self
            .connections
            .deliver(to, make, |events| events.reply(&write))
        {
            self.enforce_budget();
        }
    }

    fn enforce_budget(&mut self) {
        let room = self.answers_room();
        let count = self.connections.drop_progress_over(room);
        if count > 0 {
            self.news.push(News::Dropped { of: None, count });
        }
        let evicted = self.connections.evict_over(room);
        if evicted > 0 {
            self.news.push(News::Evicted(evicted));
        }
    }

    /// The client of this call is gone.
    pub(crate) fn client_gone(&mut self, id: UpstreamId) {
        if self.cancel_on_disconnect
            && let Some(ended) = self.state.withdraw(id, Reason::Cancelled)
        {
            self.tell(&ended);
        }
    }

    pub(crate) fn stream_gone(&mut self, session: SessionKey, key: ConnectionKey) {
        self.connections.close(key);
        let mut acts = Vec::new();
        let now = self.now.millis();
        self.state.stream_gone(session, key.into(), now, &mut acts);
        self.perform(acts);
    }

    pub(crate) fn tick(&mut self, now: Micros) {
        self.now = now;
        self.connections.tick(now.millis());
        let mut acts = Vec::new();
        self.state.tick(now.millis(), &mut acts);
        self.perform(acts);
    }
}
