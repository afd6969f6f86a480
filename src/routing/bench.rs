//! A shard's state on a bench, for the tests of what happens in it: sessions
//! send texts, the server's answers and the ledger's words come by hand, and time
//! passes when it is told to.

use std::sync::Arc;

use serde_json::Value;

use super::arrival::{Answered, Progressed};
use super::calls::{Call, ReplyTo};
use super::client::Step;
use super::ledger::Told;
use super::letters::Note;
use super::session::{SessionKey, StreamId, TokenId};
use super::shard::{Act, Ended, ShardLimits, ShardState};
use super::stream::Work;
use super::time::{Micros, Millis};
use super::upstream_id::UpstreamId;
use crate::limits::SHARD_WINDOW_BYTES;
use crate::wire::handshake::{Handshake, Offer};
use crate::wire::reply::Reason;
use crate::wire::scan::scan;
use crate::wire::version::Version;

/// Where every call's answer goes.
pub(super) const NOWHERE: ReplyTo = ReplyTo {
    connection: 1,
    connection_generation: 1,
    exchange: 1,
    part: 0,
};

const NOTHING: Offer = Offer {
    get_streams: false,
    tasks: false,
};

const EVERYTHING: Offer = Offer {
    get_streams: true,
    tasks: true,
};

/// One shard, the only one, with its server.
pub(super) struct Bench {
    pub(super) state: ShardState,
    offer: Offer,
    draws: u128,
    pub(super) now: Millis,
}

impl Bench {
    /// With a server that has logging, and neither GET streams nor tasks.
    pub(super) fn new() -> Bench {
        Bench::offering(NOTHING, r#"{"logging":{}}"#)
    }

    /// With a server of these capabilities, and everything that Ringway offers.
    pub(super) fn with(capabilities: &str) -> Bench {
        Bench::offering(EVERYTHING, capabilities)
    }

    fn offering(offer: Offer, capabilities: &str) -> Bench {
        let limits = ShardLimits {
            sessions_max: 9,
            calls_max: 9,
            calls_per_session_max: 3,
            subscriptions_per_session_max: 2,
            tasks_per_session_max: 2,
            uri_bytes_max: 20,
            waiting_bytes_max: 10_000,
            request_timeout_ms: 1_000,
            request_timeout_max_ms: 3_000,
            session_ttl_ms: 100_000,
            session_unused_ms: 10_000,
        };
        let seeds = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let mut bench = Bench {
            state: ShardState::new(0, 1, limits, seeds, Millis(0)),
            offer,
            draws: 0,
            now: Millis(0),
        };
        assert!(bench.up(1, capabilities).is_empty());
        bench
    }

    /// Child number `epoch` is there.
    pub(super) fn up(&mut self, epoch: u64, capabilities: &str) -> Vec<Act> {
        let text = format!(r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities}}}"#);
        let handshake = Arc::new(Handshake::read(text.as_bytes(), self.offer).unwrap());
        let mut acts = Vec::new();
        self.state.upstream_up(epoch, handshake, &mut acts);
        acts
    }

    /// The child is gone.
    pub(super) fn down(&mut self) -> Vec<Ended> {
        let mut acts = Vec::new();
        self.state.upstream_down(&mut acts);
        ended(acts)
    }

    pub(super) fn session(&mut self) -> SessionKey {
        self.session_of(Version::NEWEST)
    }

    pub(super) fn session_of(&mut self, version: Version) -> SessionKey {
        self.draws += 1;
        let draw = self.draws;
        self.state
            .open_session(TokenId::ANYONE, version, self.now, || draw)
            .unwrap()
    }

    pub(super) fn end(&mut self, session: SessionKey) -> Vec<Act> {
        let mut acts = Vec::new();
        self.state.end_session(session, &mut acts);
        acts
    }

    pub(super) fn send(&mut self, session: SessionKey, text: &str) -> (Step, Vec<Ended>) {
        let envelope = scan(text.as_bytes()).unwrap();
        let mut acts = Vec::new();
        let step = self.state.message(
            session,
            text.as_bytes(),
            &envelope,
            NOWHERE,
            Micros(self.now.0 * 1_000),
            &mut acts,
        );
        (step, ended(acts))
    }

    /// Sends a request. `params` is raw JSON.
    pub(super) fn ask(&mut self, session: SessionKey, id: u32, method: &str, params: &str) -> Step {
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.send(session, &text).0
    }

    /// Sends a request that is to be in flight then.
    pub(super) fn begin(
        &mut self,
        session: SessionKey,
        id: u32,
        method: &str,
        params: &str,
    ) -> UpstreamId {
        match self.ask(session, id, method, params) {
            Step::InFlight { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    /// Withdraws the request `id`.
    pub(super) fn cancel(&mut self, session: SessionKey, id: u32) -> Vec<Ended> {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        );
        self.send(session, &text).1
    }

    /// The server answers call `id` with a text that nobody reads.
    pub(super) fn answered(&mut self, id: UpstreamId) -> Option<Call> {
        match self.state.answered(id, b"", false, self.now) {
            Answered::Call(call) => Some(call),
            _ => None,
        }
    }

    /// The server answers call `id` with this raw result.
    pub(super) fn result(&mut self, id: UpstreamId, result: &str) -> Answered {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#,
            digits(id)
        );
        self.state.answered(id, line.as_bytes(), false, self.now)
    }

    /// The server answers call `id` with an error of this code.
    pub(super) fn error(&mut self, id: UpstreamId, code: i32) -> Answered {
        let error = format!(r#"{{"code":{code},"message":"no"}}"#);
        let line = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, digits(id));
        self.state.answered(id, line.as_bytes(), true, self.now)
    }

    pub(super) fn progressed(&mut self, id: UpstreamId) -> bool {
        self.token_of_progress(id).is_some()
    }

    /// The token under which a client is told of progress, if one is.
    pub(super) fn token_of_progress(&mut self, id: UpstreamId) -> Option<String> {
        match self.state.progressed(id, self.now) {
            Progressed::Nobody => None,
            Progressed::Call { token, .. } | Progressed::Task { token, .. } => {
                Some(String::from_utf8(token.to_vec()).unwrap())
            }
        }
    }

    /// The ledger says this about a URI.
    pub(super) fn told(&mut self, uri: &str, told: Told) -> Vec<Act> {
        let mut acts = Vec::new();
        self.state.told(uri, told, &mut acts);
        acts
    }

    /// What the hub is told, as text.
    pub(super) fn notes(&mut self) -> Vec<String> {
        let notes = self.state.take_notes();
        let shown = notes.into_iter().map(|note| match note {
            Note::Want(uri) => format!("want {uri}"),
            Note::Release(uri) => format!("release {uri}"),
            Note::CancelTask(id) => format!("cancel {id}"),
            Note::ForgetTask(id) => format!("forget {id}"),
        });
        shown.collect()
    }

    pub(super) fn open_stream(&mut self, session: SessionKey, stream: StreamId) -> Vec<Act> {
        let mut acts = Vec::new();
        self.state.open_stream(session, stream, self.now, &mut acts);
        acts
    }

    /// What a stream is to do, and the events that it is to write.
    pub(super) fn stream_work(&mut self, session: SessionKey, stream: StreamId) -> (Work, String) {
        let mut events = Vec::new();
        let work = self.state.stream_work(session, stream, &mut events);
        (work, String::from_utf8(events).unwrap())
    }

    /// The write of a stream is over.
    pub(super) fn stream_wrote(
        &mut self,
        session: SessionKey,
        stream: StreamId,
        is_done: bool,
    ) -> Vec<Act> {
        let mut acts = Vec::new();
        self.state.stream_wrote(session, stream, is_done, &mut acts);
        acts
    }

    /// The lines that the server gets; they are written at once.
    pub(super) fn upstream(&mut self) -> Vec<Value> {
        let batch = self.state.outgoing.take_batch(Vec::new());
        self.state.outgoing.written(batch.len());
        batch
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    /// The server takes no lines until [`Bench::unblock`].
    pub(super) fn block(&mut self) {
        let blank = |out: &mut Vec<u8>| out.extend([b'\n'; SHARD_WINDOW_BYTES]);
        self.state.outgoing.push_control(blank);
    }

    /// The server has taken what was on the way to it.
    pub(super) fn unblock(&mut self) {
        assert!(self.upstream().is_empty());
        self.state.refill();
    }

    pub(super) fn tick(&mut self, to: u64) -> Vec<Ended> {
        let mut acts = Vec::new();
        while self.now.0 < to {
            self.now = Millis((self.now.0 + 50).min(to));
            self.state.tick(self.now, &mut acts);
        }
        ended(acts)
    }
}

/// The calls that ended without an answer.
pub(super) fn ended(acts: Vec<Act>) -> Vec<Ended> {
    let ended = acts.into_iter().filter_map(|act| match act {
        Act::End(ended) => Some(ended),
        _ => None,
    });
    ended.collect()
}

/// The reasons why they did.
pub(super) fn reasons(ended: &[Ended]) -> Vec<Reason> {
    ended.iter().map(|ended| ended.reason).collect()
}

/// The messages with which calls are answered.
pub(super) fn messages(acts: Vec<Act>) -> Vec<Value> {
    let messages = acts.into_iter().filter_map(|act| match act {
        Act::Answer { message, .. } => Some(serde_json::from_slice(&message).unwrap()),
        _ => None,
    });
    messages.collect()
}

/// The streams that are to be woken. Nothing else must be among the acts.
pub(super) fn woken(acts: Vec<Act>) -> Vec<StreamId> {
    let streams = acts.into_iter().map(|act| match act {
        Act::WakeStream(stream) => stream,
        other => panic!("{other:?}"),
    });
    streams.collect()
}

/// The streams that are to be closed. Nothing else must be among the acts.
pub(super) fn closed(acts: Vec<Act>) -> Vec<StreamId> {
    let streams = acts.into_iter().map(|act| match act {
        Act::CloseStream(stream) => stream,
        other => panic!("{other:?}"),
    });
    streams.collect()
}

/// The message with which a request is answered at once.
pub(super) fn message(step: Step) -> Value {
    match step {
        Step::Answer(message) | Step::Failed(_, message) => {
            serde_json::from_slice(&message).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// The code of the error with which a request is answered at once.
pub(super) fn code(step: Step) -> i64 {
    message(step)["error"]["code"].as_i64().unwrap()
}

/// Why a request failed at once.
pub(super) fn reason(step: Step) -> Reason {
    match step {
        Step::Failed(reason, _) => reason,
        other => panic!("{other:?}"),
    }
}

pub(super) fn stream(connection: u32) -> StreamId {
    StreamId {
        connection,
        connection_generation: 1,
    }
}

pub(super) fn id_of(line: &Value) -> UpstreamId {
    UpstreamId::read(line["id"].to_string().as_bytes())
        .unwrap()
        .id
}

pub(super) fn digits(id: UpstreamId) -> String {
    String::from_utf8(id.digits(&mut itoa::Buffer::new()).to_vec()).unwrap()
}
