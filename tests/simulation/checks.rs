//! What is known of every call, and what must hold of whatever comes for it. The
//! checks of sessions and their streams are in `client`, those of the server's
//! side in `server`, those of a run's end in `world`; the numbers are those of the
//! design's list of what must always hold.

use std::collections::BTreeMap;

use ringway::routing::outcome::Outcome;
use ringway::wire::reply::Reason;
use serde_json::Value;

use crate::text::{Nonce, Text, passed};

/// How often each thing has happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn count(&mut self, what: &'static str) {
        self.many(what, 1);
    }

    pub(crate) fn many(&mut self, what: &'static str, times: usize) {
        *self.0.entry(what).or_default() += times as u64;
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        for (what, times) in &other.0 {
            self.many(what, *times as usize);
        }
    }

    pub(crate) fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, times)| (*what, *times))
    }
}

/// What a request asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    Plain,
    MakeTask,
    /// Of the task that this call has made; no call for an invented id.
    TaskGet(Option<usize>),
    TaskResult(Option<usize>),
    TaskCancel(Option<usize>),
    /// With this cursor, as the client knows it.
    TaskList(Option<String>),
    Subscribe(String),
    Unsubscribe(String),
    SetLevel(Option<usize>),
    Ping,
}

/// How the gateway has ended a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// With the server's answer.
    Server,
    /// With a message of its own.
    Own(Outcome),
    /// Without an answer of the server.
    Failed(Reason),
}

/// What its client has of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Waiting,
    Replied,
    /// The response has ended without a reply.
    Silence,
    /// The client's connection is gone.
    Gone,
}

/// A list of tasks, as the server gave it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listed {
    /// The calls that made them, and each task's text.
    pub(crate) tasks: Vec<(usize, String)>,
    pub(crate) cursor: Option<String>,
}

/// One request of a client, from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) nonce: Nonce,
    pub(crate) shard: usize,
    pub(crate) ask: Ask,
    pub(crate) id: String,
    pub(crate) token: Option<String>,
    pub(crate) text: Text,
    /// The server's name for the cursor in it.
    pub(crate) cursor: String,
    /// Which child it was begun for.
    pub(crate) epoch: u64,
    pub(crate) begun_ms: u64,
    pub(crate) is_in_batch: bool,
    /// Progress may come before its answer.
    pub(crate) may_stream: bool,
    /// The gateway has it in flight.
    pub(crate) in_flight: bool,
    pub(crate) ended: Option<How>,
    /// Its client has withdrawn it.
    pub(crate) is_cancelled: bool,
    /// Its session has unsubscribed meanwhile.
    pub(crate) is_void: bool,
    /// Its id on the way to the server, once the server has it.
    pub(crate) upstream: Option<String>,
    /// What the server has answered, and said about it.
    pub(crate) replies: Vec<Text>,
    pub(crate) progress: Vec<Text>,
    pub(crate) statuses: Vec<Vec<u8>>,
    pub(crate) listed: Listed,
    /// The tasks that its session had when it was answered, and how many servers
    /// had died by then.
    pub(crate) owned_then: Vec<usize>,
    pub(crate) deaths_then: usize,
    /// The answer that the hub read first, and how much progress before it.
    pub(crate) reply_read: Option<usize>,
    pub(crate) progress_read: usize,
    pub(crate) dropped: usize,
    /// The progress that its client has got: how many, and what may come next.
    pub(crate) got: usize,
    pub(crate) next_progress: usize,
    pub(crate) answer: Answer,
    /// The server has said that it made a task.
    pub(crate) has_task: bool,
    /// An answer of the server was too long to be read.
    pub(crate) is_too_long: bool,
    /// And that was the first that the hub read.
    pub(crate) is_too_long_read: bool,
}

/// Every call of a run.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) calls: Vec<Call>,
    pub(crate) tally: Tally,
    /// A hash of all that passed between gateway and server, and of the news.
    pub(crate) fingerprint: u64,
    /// Per shard: progress that was dropped from some queue or other, and progress
    /// that is missing although it was not dropped from its own call's.
    pub(crate) dropped_somewhere: Vec<usize>,
    pub(crate) missing: Vec<usize>,
}

/// Check 1: a text carries nothing of another session.
pub(crate) fn is_of_session(text: &[u8], session: usize) {
    for nonce in Nonce::all(text) {
        assert_eq!(
            nonce.session,
            session,
            "check 1: session {session} got what belongs to {nonce}: {}",
            String::from_utf8_lossy(text)
        );
    }
}

/// The value of a text that Ringway has written or passed on.
pub(crate) fn parsed(text: &[u8]) -> Value {
    match serde_json::from_slice(text) {
        Ok(value) => value,
        Err(error) => panic!("not JSON ({error}): {}", String::from_utf8_lossy(text)),
    }
}

impl Call {
    fn filled(&self, text: &Text) -> Vec<u8> {
        let token = self.token.as_deref().unwrap_or("null");
        passed(&text.fill(&self.id, token, ""))
    }

    fn is_progress(&self, message: &[u8], of: usize) -> bool {
        self.progress
            .get(of)
            .is_some_and(|text| self.filled(text) == message)
    }

    /// Checks 1, 3, 8: progress on the call's own stream.
    pub(crate) fn gets_progress(&mut self, message: &[u8]) {
        is_of_session(message, self.nonce.session);
        assert_eq!(
            self.answer,
            Answer::Waiting,
            "check 3: progress after the end"
        );
        assert!(self.token.is_some(), "check 3: nobody asked for progress");
        let mut next = self.next_progress..self.progress.len();
        let place = next.find(|place| self.is_progress(message, *place));
        let place = place.unwrap_or_else(|| {
            panic!(
                "check 3: out of order or altered: {}",
                String::from_utf8_lossy(message)
            )
        });
        self.next_progress = place + 1;
        self.got += 1;
    }

    /// Whether a message is progress that the server has reported for this call.
    pub(crate) fn has_said(&self, message: &[u8]) -> bool {
        (0..self.progress.len()).any(|place| self.is_progress(message, place))
            || self.statuses.iter().any(|status| status == message)
    }
}

impl Record {
    /// Something has happened that must happen again when the seed is run again.
    pub(crate) fn has_seen(&mut self, what: &[u8]) {
        for byte in what {
            self.fingerprint = (self.fingerprint ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Checks 1, 2, 3, 8: the reply that ends a call.
    pub(crate) fn gets_reply(&mut self, number: usize, message: &[u8]) {
        let call = &mut self.calls[number];
        is_of_session(message, call.nonce.session);
        assert_eq!(call.answer, Answer::Waiting, "check 2: a second reply");
        call.answer = Answer::Replied;
        let raw_id = format!(r#""id":{}"#, call.id);
        let has_id = |text: &[u8]| {
            text.windows(raw_id.len())
                .any(|part| part == raw_id.as_bytes())
        };
        match call.ended {
            Some(How::Server) => {
                let read = call.reply_read.expect("the hub has read an answer");
                let expected = call.filled(&call.replies[read]);
                assert_eq!(
                    String::from_utf8_lossy(message),
                    String::from_utf8_lossy(&expected),
                    "check 8: not what the server said"
                );
                self.tally.count("replies of the server");
                assert!(
                    call.next_progress <= call.progress_read,
                    "check 3: progress that came behind the answer"
                );
                if call.may_stream && call.token.is_some() {
                    let missing = call.progress_read - call.got;
                    self.missing[call.shard] += missing.saturating_sub(call.dropped);
                    self.tally.many("progress delivered", call.got);
                }
            }
            _ => {
                assert!(has_id(message), "check 2: the reply names another call");
                self.tally.count("replies of the gateway");
            }
        }
    }

    /// Check 2: the response has ended without a reply.
    pub(crate) fn ends_silently(&mut self, number: usize) {
        let call = &mut self.calls[number];
        assert_eq!(call.answer, Answer::Waiting, "check 2: ended twice");
        assert!(call.is_cancelled, "check 2: no reply, and nobody cancelled");
        call.answer = Answer::Silence;
    }

    /// Check 3, over all calls of a shard: what is missing was counted.
    pub(crate) fn progress_is_accounted_for(&self) {
        for (shard, missing) in self.missing.iter().enumerate() {
            let dropped = self.dropped_somewhere[shard];
            assert!(
                *missing <= dropped,
                "check 3: shard {shard}: {missing} progress messages are missing, {dropped} were dropped"
            );
        }
    }
}
