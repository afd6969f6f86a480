//! A shard's side of the sessions' own upstreams: orders go out to whoever carries
//! them out; what comes of them is delivered to the session's client, on the answer of
//! a call or on the GET stream.

use std::cell::RefCell;
use std::rc::Rc;

use super::connections::Streamed;
use super::response;
use super::shard::Shard;
use crate::routing::calls::ReplyTo;
use crate::routing::drops::DropReason;
use crate::routing::ending::hint_of;
use crate::routing::joined::Part;
use crate::routing::outcome::Outcome;
use crate::routing::private::{End, ExchangeKey, Heard, Opened, Order, Unopened};
use crate::routing::session::{SessionKey, TokenId};
use crate::routing::shard::Act;
use crate::routing::time::Millis;
use crate::runtime::clock;
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Envelope, Field};
use crate::wire::splice::{Edit, splice};
use crate::wire::sse;

/// What a shard has of sessions' own upstreams.
pub(super) struct OwnUpstreams {
    /// For people.
    address: String,
    /// Where orders go.
    pub(super) carry_out: Box<dyn Fn(Order)>,
    openings: RefCell<Openings>,
}

/// After a warning that sessions cannot be opened none follows for this long, milliseconds: where
/// it depends on the client, they take turns.
const WARNING_PAUSE_MS: u64 = 60_000;

/// Whether the server opens sessions, as the log knows it.
#[derive(Default)]
struct Openings {
    is_failing: bool,
    /// When there may be another warning.
    next: Millis,
}

impl Openings {
    /// Whether the log is to say that a session could not be opened.
    fn failed(&mut self, now: Millis) -> bool {
        let is_news = !self.is_failing && self.next <= now;
        if is_news {
            self.is_failing = true;
            self.next = now.after(WARNING_PAUSE_MS);
        }
        is_news
    }

    /// Whether the log is to say that sessions are opened again.
    fn worked(&mut self) -> bool {
        std::mem::take(&mut self.is_failing)
    }
}

impl OwnUpstreams {
    /// The log hears when the server opens no session, and when it does again.
    fn tell(&self, opened: &Opened) {
        let address = &self.address;
        let mut openings = self.openings.borrow_mut();
        match opened {
            Opened::Session { .. } => {
                if openings.worked() {
                    tracing::info!(address, "the server over HTTP opens sessions again");
                }
            }
            Opened::Refused { why, .. } => {
                let (status, hint, why) = match why {
                    Unopened::Status(status) => (Some(status), hint_of(*status), None),
                    Unopened::Odd(why) => {
                        let hint = "is it an MCP server, and the path of the URL right?";
                        (None, Some(hint), Some(why))
                    }
                    Unopened::Other => return,
                };
                if openings.failed(clock::now()) {
                    tracing::warn!(
                        address,
                        status,
                        why,
                        hint,
                        "the server over HTTP opens no session; more of it is not logged until it does"
                    );
                }
            }
        }
    }
}

/// An `initialize` that the server has not answered. If its client goes before, the
/// server is told.
pub struct PendingOpening {
    shard: Rc<Shard>,
    key: ExchangeKey,
}

impl std::fmt::Debug for PendingOpening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(f)
    }
}

impl Drop for PendingOpening {
    fn drop(&mut self) {
        self.shard.state.borrow_mut().abandon_opening(self.key);
        self.shard.notify_hub();
    }
}

impl Shard {
    /// Orders go to `carry_out` from now on. `address` is what the log calls the server.
    pub fn connect_upstream(&self, address: String, carry_out: Box<dyn Fn(Order)>) {
        let _ = self.upstream.set(OwnUpstreams {
            address,
            carry_out,
            openings: RefCell::default(),
        });
    }

    /// Whether sessions have upstreams of their own.
    pub fn is_private(&self) -> bool {
        self.upstream.get().is_some()
    }

    /// Header lines of this request go upstream with what the session sends.
    pub fn pass_fields(&self, session: SessionKey, passed: Option<&[u8]>) {
        if let Some(fields) = passed {
            self.state.borrow_mut().pass_fields(session, fields);
        }
    }

    /// Forwards an `initialize`. `None`: there is no room.
    pub fn open_upstream(
        self: &Rc<Self>,
        text: &[u8],
        envelope: &Envelope<'_>,
        id: &Field,
        reply_to: ReplyTo,
        owner: TokenId,
        fields: Rc<[u8]>,
    ) -> Option<PendingOpening> {
        let mut state = self.state.borrow_mut();
        if state.sessions.is_full() {
            return None;
        }
        let key = state.open_private(text, envelope, id, reply_to, owner, fields)?;
        drop(state);
        self.notify_hub();
        Some(PendingOpening {
            shard: self.clone(),
            key,
        })
    }

    /// The head of an exchange's response has come.
    pub fn upstream_head(&self, key: ExchangeKey, session: Option<Result<&[u8], ()>>) {
        self.state.borrow_mut().head(key, session);
        self.notify_hub();
    }

    /// An event of a response had an id.
    pub fn upstream_event_id(&self, key: ExchangeKey, id: &[u8]) {
        self.state.borrow_mut().event_id(key, id);
    }

    /// The server says when a stream may be opened again.
    pub fn upstream_retry(&self, key: ExchangeKey, milliseconds: u64) {
        self.state.borrow_mut().retry_after(key, milliseconds);
    }

    /// Whether the answers of this shard have room for more.
    pub fn has_room(&self) -> bool {
        self.ground.buffered_bytes() < self.ground.config.buffered_bytes_max
    }

    /// Whether nobody waits for more of an exchange.
    pub fn is_exchange_over(&self, key: ExchangeKey) -> bool {
        let mut state = self.state.borrow_mut();
        state
            .exchanges()
            .is_none_or(|exchanges| exchanges.is_over(key))
    }

    /// The end of all sessions has begun and been told upstream.
    pub fn is_upstream_quiet(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state
            .exchanges()
            .is_none_or(|exchanges| exchanges.is_empty())
    }

    /// Ends every session.
    pub fn end_all_sessions(&self) {
        let mut acts = Vec::new();
        let mut state = self.state.borrow_mut();
        for key in state.sessions.keys() {
            state.end_session(key, &mut acts);
        }
        drop(state);
        self.perform(acts);
    }

    /// A message has come in the response of an exchange. False: it was an answer to
    /// nothing that was asked.
    pub fn upstream_heard(&self, key: ExchangeKey, text: &[u8]) -> bool {
        let text = text.trim_ascii();
        let mut acts = Vec::new();
        let mut is_known = true;
        if !scan::is_batch(text) {
            is_known = self.hear(key, text, &mut acts);
        } else if self.state.borrow().takes_batches(key)
            && let Ok(spans) = scan::batch(text)
        {
            for span in spans {
                is_known &= self.hear(key, span.of(text), &mut acts);
            }
        } else {
            self.counters.dropped(DropReason::NotMessage);
        }
        self.perform(acts);
        is_known
    }

    fn hear(&self, key: ExchangeKey, text: &[u8], acts: &mut Vec<Act>) -> bool {
        let now = clock::precise();
        let room = self.ground.answers_room();
        let mut state = self.state.borrow_mut();
        match state.heard(key, text, now.millis(), acts) {
            Heard::Answer {
                call,
                id_span,
                is_error,
            } => {
                drop(state);
                let outcome = match is_error {
                    true => Outcome::Error,
                    false => Outcome::Ok,
                };
                self.counters.calls.count(call.method, outcome);
                self.counters.durations.record(now.since(call.started));
                self.deliver_line(&call, id_span, text);
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
                if let Some((joined, _)) = self.joined()
                    && joined.is_looked_at(reply_to)
                {
                    let mut message = Vec::new();
                    splice(&mut message, text, &mut [edit]);
                    drop(state);
                    joined.progress_past_hooks(reply_to, || message);
                    return true;
                }
                let bytes = text.len() + token.len() + sse::FRAME_BYTES;
                let streamed = self.ground.connections.borrow_mut().deliver_progress(
                    reply_to,
                    room,
                    bytes,
                    |out| splice(out, text, &mut [edit]),
                );
                self.count_streamed(streamed);
            }
            Heard::Message {
                session,
                reply_to,
                message,
                asked,
            } => {
                drop(state);
                self.pass_on(session, reply_to, &message, asked);
            }
            Heard::Opened(opened) => {
                drop(state);
                self.opened(opened);
            }
            Heard::Own => {}
            Heard::Dropped(reason) => {
                self.counters.dropped(reason);
                return !matches!(reason, DropReason::UnknownId | DropReason::LateAnswer);
            }
        }
        true
    }

    /// A message for a session's client: on the answer that it belongs to if that is a
    /// stream, else on the GET stream.
    fn pass_on(
        &self,
        session: SessionKey,
        reply_to: Option<ReplyTo>,
        message: &[u8],
        asked: Option<u64>,
    ) {
        let Some(message) = self.as_clients_get_it(message) else {
            return;
        };
        let message = &*message;
        if let Some(to) = reply_to {
            let room = self.ground.answers_room();
            let mut connections = self.ground.connections.borrow_mut();
            let is_taken = match asked {
                Some(_) => connections.deliver_request(to, message),
                None => {
                    let bytes = message.len() + sse::FRAME_BYTES;
                    let streamed = connections
                        .deliver_progress(to, room, bytes, |out| out.extend_from_slice(message));
                    let dropped = match streamed {
                        Streamed::Taken { own, elsewhere } => Some(own + elsewhere),
                        Streamed::NoRoom => Some(1),
                        Streamed::NoStream | Streamed::Gone => None,
                    };
                    let lost = dropped.unwrap_or_default();
                    self.counters.dropped_many(DropReason::SlowReader, lost);
                    dropped.is_some()
                }
            };
            drop(connections);
            if is_taken {
                self.ground.enforce_budget();
                return;
            }
        }
        let mut acts = Vec::new();
        let lost = self
            .state
            .borrow_mut()
            .queue(session, message, asked, &mut acts);
        self.counters.dropped_many(DropReason::SlowReader, lost);
        self.perform(acts);
    }

    /// An exchange is over.
    pub fn upstream_ended(&self, key: ExchangeKey, end: End) {
        let mut acts = Vec::new();
        let now = clock::precise().millis();
        let opened = self.state.borrow_mut().ended(key, end, now, &mut acts);
        if let Some(opened) = opened {
            self.opened(opened);
        }
        self.perform(acts);
    }

    /// An `initialize` was answered: its client gets a session, or hears why not.
    fn opened(&self, opened: Opened) {
        if let Some(upstream) = self.upstream.get() {
            upstream.tell(&opened);
        }
        let to = match &opened {
            Opened::Session { opening, .. } | Opened::Refused { opening, .. } => opening.reply_to,
        };
        if let Some((inner, part)) = Part::of(to) {
            match self.joined() {
                Some((joined, seat)) => joined.opened(seat, inner, part, opened),
                None => {
                    if let Opened::Session { opening, .. } = opened {
                        self.state.borrow_mut().decline(opening);
                    }
                }
            }
            self.notify_hub();
            return;
        }
        match opened {
            Opened::Refused {
                opening, message, ..
            } => {
                self.ground
                    .answer_opening(opening.reply_to, 200, b"", &message);
            }
            Opened::Session { opening, handshake } => {
                let (to, owner) = (opening.reply_to, opening.owner);
                let client_id = opening.client_id.clone();
                let Ok(session) = self.open_session(owner, handshake.version) else {
                    self.state.borrow_mut().decline(opening);
                    let message = reply::failure(Some(client_id.raw()), Reason::Overloaded);
                    self.ground
                        .answer_opening(to, 503, b"retry-after: 1\r\n", &message);
                    return;
                };
                let result = handshake.result_for(handshake.version);
                let message = reply::result(client_id.raw(), result);
                let mut state = self.state.borrow_mut();
                state.adopt(session, *opening, handshake);
                let fields = state.sessions.get(session).map(response::session_field);
                drop(state);
                let is_taken =
                    self.ground
                        .answer_opening(to, 200, &fields.unwrap_or_default(), &message);
                if !is_taken {
                    // The client went, and will never know the session.
                    self.end_session(session);
                }
            }
        }
        self.notify_hub();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_refused_sessions_once_until_one_is_opened() {
        let mut openings = Openings::default();
        assert!(!openings.worked(), "it has always worked");
        assert!(openings.failed(Millis(1_000)));
        assert!(!openings.failed(Millis(2_000)));
        assert!(!openings.failed(Millis(900_000)), "it is still the same");
        assert!(openings.worked());
        assert!(!openings.worked());
        assert!(openings.failed(Millis(901_000)));
    }

    #[test]
    fn clients_of_which_some_are_refused_do_not_fill_the_log() {
        let mut openings = Openings::default();
        let mut said = 0;
        for second in 0..600 {
            said += usize::from(openings.failed(Millis(second * 1_000)));
            said += usize::from(openings.worked());
        }
        assert_eq!(said, 20, "two lines a minute");
    }
}
