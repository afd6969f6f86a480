//! What happens to a client's message inside its session: answered here,
//! refused, forwarded to the server, or accepted in silence. One place to read
//! what each method does.

use smallvec::SmallVec;

use super::calls::{About, BeginError, Call, ClientId, ReplyTo};
use super::log_level::Level;
use super::outcome::Method;
use super::outgoing::Placed;
use super::session::SessionKey;
use super::shard::{Act, Ended, ShardState};
use super::time::Micros;
use super::upstream_id::UpstreamId;
use crate::wire::method::{CANCELLED, LOG_LEVELS, Request};
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{Envelope, Field, Kind};
use crate::wire::splice::{Edit, splice};

/// What a client hears that asks for a log level which there is not.
pub const UNKNOWN_LEVEL: &str =
    "level must be one of debug, info, notice, warning, error, critical, alert, emergency";

/// What to do with a client's message.
#[derive(Debug)]
pub enum Step<Id = UpstreamId> {
    /// Nothing to say: 202.
    Accepted,
    /// The answer is this JSON-RPC message, HTTP 200.
    Answer(Vec<u8>),
    /// The call could not be forwarded: the answer is this JSON-RPC error of the
    /// gateway's own, HTTP 200.
    Failed(Reason, Vec<u8>),
    /// The message breaks the protocol: HTTP 400 with this JSON-RPC error.
    Refused(Vec<u8>),
    /// This call is in flight; its answer comes later.
    InFlight {
        id: Id,
        /// Messages may come before the answer.
        may_stream: bool,
    },
}

impl<Id> Step<Id> {
    /// The same with another name for the call in flight.
    pub fn map<Other>(self, name: impl FnOnce(Id) -> Other) -> Step<Other> {
        match self {
            Step::Accepted => Step::Accepted,
            Step::Answer(message) => Step::Answer(message),
            Step::Failed(reason, message) => Step::Failed(reason, message),
            Step::Refused(body) => Step::Refused(body),
            Step::InFlight { id, may_stream } => Step::InFlight {
                id: name(id),
                may_stream,
            },
        }
    }
}

/// A client's request on its way.
pub(in crate::routing) struct Incoming<'a> {
    pub(super) text: &'a [u8],
    pub(super) envelope: &'a Envelope<'a>,
    pub(super) id: &'a Field,
    reply_to: ReplyTo,
    pub(super) now: Micros,
    /// Replaces one more value of what goes upstream.
    pub(super) change: Option<Edit<'a>>,
}

impl Incoming<'_> {
    /// The id as its client spelled it.
    pub(super) fn raw_id(&self) -> &[u8] {
        self.id.span.of(self.text)
    }
}

impl ShardState {
    /// A message of `session`. What it does to other calls (a cancel) goes to `acts`.
    pub fn message(
        &mut self,
        session: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
        reply_to: ReplyTo,
        now: Micros,
        acts: &mut Vec<Act>,
    ) -> Step {
        self.message_with(session, text, envelope, reply_to, now, None, acts)
    }

    /// The same; `change` replaces one value of a request that is forwarded, behind the
    /// text that its meaning was read from.
    #[expect(
        clippy::too_many_arguments,
        reason = "a message with all that belongs to it"
    )]
    pub fn message_with(
        &mut self,
        session: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
        reply_to: ReplyTo,
        now: Micros,
        change: Option<Edit<'_>>,
        acts: &mut Vec<Act>,
    ) -> Step {
        self.touch(session, now.millis());
        match envelope.kind {
            Kind::Request => match &envelope.id {
                Some(id) => self.request(
                    session,
                    &Incoming {
                        text,
                        envelope,
                        id,
                        reply_to,
                        now,
                        change,
                    },
                ),
                None => Step::Accepted, // the scan gives every request an id
            },
            Kind::Notification if self.is_private() => {
                self.private_notification(session, text, envelope, acts);
                Step::Accepted
            }
            Kind::Notification => {
                if envelope.method == CANCELLED {
                    acts.extend(self.cancel(session, text, envelope).map(Act::End));
                }
                Step::Accepted
            }
            Kind::Result | Kind::Error if self.is_private() => {
                self.private_answer(session, text, envelope);
                Step::Accepted
            }
            // A shared server asks clients nothing, so there is nothing to answer.
            Kind::Result | Kind::Error => Step::Accepted,
        }
    }

    fn request(&mut self, session: SessionKey, incoming: &Incoming<'_>) -> Step {
        let id = incoming.raw_id();
        match Request::of(&incoming.envelope.method) {
            Request::Initialize => Step::Refused(reply::error(
                Some(id),
                reply::INVALID_REQUEST,
                "initialize must be a message of its own, outside of a session",
            )),
            Request::Modern => Step::Refused(unsupported_era(Some(id))),
            Request::Ping => Step::Answer(reply::result(id, b"{}")),
            Request::Notification => Step::Answer(reply::error(
                Some(id),
                reply::METHOD_NOT_FOUND,
                "A notification has no id",
            )),
            _ if self.is_private() => self.private_request(session, incoming),
            Request::SetLevel => Step::Answer(self.set_level(session, incoming)),
            Request::Subscribe => self.subscribe(session, incoming),
            Request::Unsubscribe => self.unsubscribe(session, incoming),
            Request::Tasks => self.task_request(session, incoming),
            Request::Forwarded if incoming.envelope.task.is_some() => {
                self.ask_for_task(session, incoming)
            }
            Request::Forwarded => self.forward(session, incoming, About::Nothing, None),
        }
    }

    fn set_level(&mut self, session: SessionKey, incoming: &Incoming<'_>) -> Vec<u8> {
        let id = incoming.raw_id();
        let Some(handshake) = self.handshake() else {
            return reply::failure_at(self.upstream_name(), Some(id), Reason::UpstreamDown);
        };
        if !handshake.logging {
            return reply::error(
                Some(id),
                reply::METHOD_NOT_FOUND,
                "The server has no logging capability",
            );
        }
        let level = incoming.envelope.level.as_ref();
        let level = level.and_then(|field| field.text(incoming.text));
        let place = level.and_then(|level| LOG_LEVELS.iter().position(|known| *known == level));
        let Some(place) = place else {
            return reply::error(Some(id), reply::INVALID_PARAMS, UNKNOWN_LEVEL);
        };
        if let Some(session) = self.sessions.get_mut(session) {
            let before = session.log_level.replace(place as Level);
            self.log_levels.change(before, session.log_level);
        }
        reply::result(id, b"{}")
    }

    /// Why a request is not forwarded, if so.
    pub(super) fn refused(&self, incoming: &Incoming<'_>) -> Option<Step> {
        let uri = incoming.envelope.uri.as_ref();
        if uri.map_or(0, |uri| uri.span.len()) > self.limits.uri_bytes_max {
            let id = Some(incoming.raw_id());
            let sentence = "params.uri is longer than the limit (--max-uri)";
            return Some(Step::Answer(reply::error(
                id,
                reply::INVALID_PARAMS,
                sentence,
            )));
        }
        self.not_now(incoming)
    }

    /// Why no call can begin at the moment, if so.
    pub(super) fn not_now(&self, incoming: &Incoming<'_>) -> Option<Step> {
        if self.is_draining {
            return Some(failed(incoming.raw_id(), Reason::Draining));
        }
        let is_down = self.epoch.is_none();
        is_down.then(|| self.down(incoming))
    }

    /// The server is not there.
    pub(super) fn down(&self, incoming: &Incoming<'_>) -> Step {
        let (name, reason) = (self.upstream_name(), Reason::UpstreamDown);
        let message = reply::failure_at(name, Some(incoming.raw_id()), reason);
        Step::Failed(reason, message)
    }

    /// Takes a slot for a call that has not been sent.
    pub(super) fn begin_call(
        &mut self,
        key: SessionKey,
        incoming: &Incoming<'_>,
        about: About,
    ) -> Result<UpstreamId, Step> {
        let Some(session) = self.sessions.get_mut(key) else {
            return Err(failed(incoming.raw_id(), Reason::SessionEnded));
        };
        if session.calls >= self.limits.calls_per_session_max {
            return Err(failed(incoming.raw_id(), Reason::Overloaded));
        }
        let token = incoming.envelope.meta_progress_token.as_ref();
        let call = Call {
            session: key,
            client_id: ClientId::read(incoming.id, incoming.text),
            reply_to: incoming.reply_to,
            method: Method::of(&incoming.envelope.method),
            started: incoming.now,
            sent: false,
            token: token.map(|field| field.span.of(incoming.text).into()),
            about,
        };
        self.calls
            .begin(session, call)
            .map_err(|error| match error {
                BeginError::DuplicateId => Step::Refused(reply::error(
                    None,
                    reply::INVALID_REQUEST,
                    "The id of this request is in flight already in this session",
                )),
                BeginError::Full => failed(incoming.raw_id(), Reason::Overloaded),
            })
    }

    /// Sends a request on to the server, under the id of its call. `change`
    /// replaces one more value of it.
    pub(super) fn forward(
        &mut self,
        key: SessionKey,
        incoming: &Incoming<'_>,
        about: About,
        change: Option<Edit<'_>>,
    ) -> Step {
        let envelope = incoming.envelope;
        if let Some(refused) = self.refused(incoming) {
            return refused;
        }
        let id = match self.begin_call(key, incoming, about) {
            Ok(id) => id,
            Err(step) => return step,
        };
        let mut buffer = itoa::Buffer::new();
        let digits = id.digits(&mut buffer);
        let added = change.map_or(0, |edit| edit.with.len())
            + incoming.change.map_or(0, |edit| edit.with.len());
        let size_hint = incoming.text.len() + 48 + added;
        let placed = self.outgoing.push(key, id, size_hint, |out| {
            let of_id = |field: &Field| Edit {
                span: field.span,
                with: digits,
            };
            let mut edits = SmallVec::<[Edit<'_>; 4]>::new();
            edits.push(of_id(incoming.id));
            edits.extend(envelope.meta_progress_token.as_ref().map(of_id));
            edits.extend(change);
            edits.extend(incoming.change);
            splice(out, incoming.text, &mut edits);
            out.push(b'\n');
        });
        match placed {
            Ok(placed) => {
                let mut may_stream = false;
                if let Some(call) = self.calls.get_mut(id) {
                    call.sent = placed == Placed::InBatch;
                    may_stream = call.may_stream();
                }
                let now = incoming.now.millis();
                self.arm_call(id, now, now);
                Step::InFlight { id, may_stream }
            }
            Err(_) => {
                self.withdraw(id, Reason::Overloaded);
                failed(incoming.raw_id(), Reason::Overloaded)
            }
        }
    }

    /// `notifications/cancelled`: ends the call of the same session that it
    /// names. Anything else is ignored, as the protocol says.
    pub(super) fn cancel(
        &mut self,
        session: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
    ) -> Option<Ended> {
        let request_id = envelope.request_id.as_ref()?;
        let id = self
            .calls
            .find(session, &ClientId::read(request_id, text))?;
        self.withdraw(id, Reason::Cancelled)
    }
}

pub(super) fn failed(id: &[u8], reason: Reason) -> Step {
    Step::Failed(reason, reply::failure(Some(id), reason))
}

/// The refusal of modern-era requests. Its code makes clients that probe fall
/// back to `initialize`; -32020 to -32022 would not.
pub fn unsupported_era(id: Option<&[u8]>) -> Vec<u8> {
    reply::error(
        id,
        reply::INVALID_REQUEST,
        "This gateway speaks protocol versions 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25: open a session with initialize",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::bench::{Bench, ended, id_of};

    const CALL: &str = r#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"echo","_meta":{"progressToken":"x"}}}"#;

    #[test]
    fn id_and_token_go_upstream_as_the_same_integer_and_come_back_to_the_call() {
        let mut bench = Bench::new();
        let session = bench.session();
        assert!(matches!(bench.send(session, CALL).0, Step::InFlight { .. }));
        let lines = bench.upstream();
        assert_eq!(lines[0]["id"], lines[0]["params"]["_meta"]["progressToken"]);
        let call = bench.answered(id_of(&lines[0])).unwrap();
        assert_eq!(call.client_id.raw(), br#""x""#);
        assert!(bench.answered(id_of(&lines[0])).is_none());
    }

    #[test]
    fn a_cancel_reaches_the_server_with_its_own_id_and_only_for_the_same_session() {
        let mut bench = Bench::new();
        let (session, other) = (bench.session(), bench.session());
        bench.send(session, CALL);
        let call = bench.upstream().remove(0);
        let cancel =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}"#;
        assert!(bench.send(other, cancel).1.is_empty());
        assert!(bench.upstream().is_empty());
        let ended = bench.send(session, cancel).1;
        assert_eq!(ended[0].reason, Reason::Cancelled);
        let line = bench.upstream().remove(0);
        assert_eq!(line["params"]["requestId"], call["id"]);
        assert!(bench.answered(id_of(&call)).is_none());
        assert!(matches!(bench.send(session, CALL).0, Step::InFlight { .. }));
    }

    #[test]
    fn an_id_in_flight_twice_is_refused_without_an_id_and_the_first_lives() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.send(session, CALL);
        match bench.send(session, CALL).0 {
            Step::Refused(body) => {
                let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert!(value.get("id").is_none());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.state.calls_in_flight(), 1);
    }

    #[test]
    fn silence_ends_a_call_progress_keeps_it_and_age_ends_it_all_the_same() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.send(session, CALL);
        let id = id_of(&bench.upstream()[0]);
        for moment in [900, 1_800, 2_700] {
            assert!(bench.tick(moment).is_empty());
            assert!(bench.progressed(id));
        }
        let ended = bench.tick(3_200);
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].reason, Reason::Timeout);
        assert_eq!(bench.upstream()[0]["method"], "notifications/cancelled");
        assert!(!bench.progressed(id));
    }

    #[test]
    fn a_session_may_have_only_so_many_calls_in_flight() {
        let mut bench = Bench::new();
        let session = bench.session();
        for id in 0..3 {
            bench.send(
                session,
                &CALL.replace(r#""id":"x""#, &format!(r#""id":{id}"#)),
            );
        }
        match bench.send(session, CALL).0 {
            Step::Failed(reason, _) => assert_eq!(reason, Reason::Overloaded),
            other => panic!("{other:?}"),
        }
        let other = bench.session();
        assert!(matches!(bench.send(other, CALL).0, Step::InFlight { .. }));
    }

    #[test]
    fn a_uri_over_the_limit_is_refused() {
        let mut bench = Bench::new();
        let session = bench.session();
        let read = |uri: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{{"uri":"{uri}"}}}}"#
            )
        };
        assert!(matches!(
            bench.send(session, &read(&"x".repeat(19))).0,
            Step::Answer(_)
        ));
        assert!(matches!(
            bench.send(session, &read(&"x".repeat(18))).0,
            Step::InFlight { .. }
        ));
    }

    #[test]
    fn an_ended_session_leaves_nothing_and_the_server_is_told() {
        let mut bench = Bench::new();
        let session = bench.session();
        for id in 0..3 {
            bench.send(
                session,
                &CALL.replace(r#""id":"x""#, &format!(r#""id":{id}"#)),
            );
        }
        bench.upstream();
        let ended = ended(bench.end(session));
        assert_eq!(ended.len(), 3);
        assert!(ended.iter().all(|e| e.reason == Reason::SessionEnded));
        assert_eq!(bench.upstream().len(), 3);
        assert_eq!(bench.state.calls_in_flight(), 0);
        assert!(bench.state.sessions.is_empty());
    }

    #[test]
    fn sessions_end_by_themselves_but_not_under_a_call() {
        let mut bench = Bench::new();
        let unused = bench.session();
        let used = bench.session();
        let busy = bench.session();
        bench.send(used, r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        bench.state.limits.request_timeout_ms = 10_000_000;
        bench.state.limits.request_timeout_max_ms = 10_000_000;
        bench.send(busy, CALL);
        bench.tick(13_000);
        assert!(bench.state.sessions.get(unused).is_none());
        assert!(bench.state.sessions.get(used).is_some());
        bench.tick(125_000);
        assert!(bench.state.sessions.get(used).is_none());
        assert!(bench.state.sessions.get(busy).is_some());
    }

    #[test]
    fn when_the_upstream_dies_every_call_ends_and_new_ones_are_refused() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.send(session, CALL);
        assert_eq!(bench.down()[0].reason, Reason::UpstreamDown);
        assert!(bench.upstream().is_empty());
        match bench.send(session, CALL).0 {
            Step::Failed(reason, _) => assert_eq!(reason, Reason::UpstreamDown),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_restarted_upstream_keeps_sessions_unless_it_can_do_less() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.down();
        bench.up(2, r#"{"logging":{},"tools":{}}"#);
        assert!(matches!(bench.send(session, CALL).0, Step::InFlight { .. }));
        bench.down();
        bench.up(3, r#"{"logging":{}}"#);
        assert!(bench.state.sessions.is_empty());
    }

    #[test]
    fn a_sessions_log_level_counts_while_it_lives() {
        let mut bench = Bench::new();
        let session = bench.session();
        let set = |level: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{{"level":"{level}"}}}}"#
            )
        };
        bench.send(session, &set("error"));
        assert_eq!(bench.state.log_level(), Some(4));
        bench.send(session, &set("loud"));
        bench.send(session, &set("debug"));
        assert_eq!(bench.state.log_level(), Some(0));
        bench.end(session);
        assert_eq!(bench.state.log_level(), None);
    }

    #[test]
    fn what_a_shared_server_must_not_hear_stays_here() {
        let mut bench = Bench::new();
        let session = bench.session();
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"tasks/list"}"#,
            r#"{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"a:b"}}"#,
            r#"{"jsonrpc":"2.0","id":5,"method":"server/discover"}"#,
            r#"{"jsonrpc":"2.0","id":6,"method":"initialize"}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"task":{}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":8,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":9,"error":{"code":1,"message":"x"}}"#,
            r#"{"jsonrpc":"2.0","id":10,"method":"notifications/cancelled","params":{"requestId":257}}"#,
        ] {
            assert!(
                !matches!(bench.send(session, text).0, Step::InFlight { .. }),
                "{text}"
            );
        }
        assert!(bench.upstream().is_empty());
    }
}
