//! What a shard does with what the server says: answers and progress of its
//! calls, changes of lists. Which shard that is has been decided by
//! `server_line`; here it is decided which session, and whether it still lives.

use super::calls::{About, Call, ReplyTo};
use super::outcome::Outcome;
use super::shard::{Act, ShardState};
use super::tasks::TaskKey;
use super::time::Millis;
use super::upstream_id::UpstreamId;
use crate::wire::notice::Kinds;

/// Whose answer it was.
#[derive(Debug)]
pub enum Answered {
    /// Nobody's: the call has ended, or never was.
    Late,
    /// This call's: it gets the server's answer with its own id.
    Call(Call),
    /// This call's: it gets this message instead.
    Instead {
        call: Call,
        message: Vec<u8>,
        outcome: Outcome,
    },
}

/// Whose progress it was.
#[derive(Debug)]
pub enum Progressed<'a> {
    /// Nobody's, or nobody asked for it.
    Nobody,
    /// That of a call in flight, whose client used this token.
    Call { reply_to: ReplyTo, token: &'a [u8] },
    /// That of a task.
    Task { task: TaskKey, token: &'a [u8] },
}

impl ShardState {
    /// The server has answered call `id` with `line`. An answer that is late,
    /// repeated or foreign, or that comes before the call was sent, is nobody's.
    pub fn answered(
        &mut self,
        id: UpstreamId,
        line: &[u8],
        is_error: bool,
        now: Millis,
    ) -> Answered {
        self.now = now;
        let about = self.calls.get(id).filter(|call| call.sent);
        let answered = match about.map(|call| call.about) {
            None => Answered::Late,
            Some(About::Nothing | About::Subscription | About::OwnTaskResult) => {
                self.end_call(id).map_or(Answered::Late, Answered::Call)
            }
            Some(about) => self.task_answer(id, about, line, is_error),
        };
        if let Answered::Late = answered {
            self.late_answer(id, line);
        }
        answered
    }

    /// The server's answer to call `id` could not be read: the call ends.
    pub fn unreadable_answer(&mut self, id: UpstreamId) -> Option<Call> {
        let call = self.calls.get(id).filter(|call| call.sent)?;
        if let About::TaskResult(task) = call.about {
            self.end_task(task);
        }
        self.end_call(id)
    }

    /// The server reported progress under the token `id`: it is not silent about
    /// that call.
    pub fn progressed(&mut self, id: UpstreamId, now: Millis) -> Progressed<'_> {
        let started = self.calls.get(id).filter(|call| call.sent);
        if let Some(started) = started.map(|call| call.started) {
            self.arm_call(id, started.millis(), now);
        }
        if let Some(call) = self.calls.get(id).filter(|call| call.sent) {
            return match &call.token {
                Some(token) => Progressed::Call {
                    reply_to: call.reply_to,
                    token,
                },
                None => Progressed::Nobody,
            };
        }
        let Some(task) = self.calls.task(id) else {
            return Progressed::Nobody;
        };
        match self
            .tasks
            .get(task)
            .and_then(|known| known.token.as_deref())
        {
            Some(token) => Progressed::Task { task, token },
            None => Progressed::Nobody,
        }
    }

    /// Lists of the server have changed: every session is told once.
    pub fn changed(&mut self, kinds: Kinds, acts: &mut Vec<Act>) {
        if kinds.is_empty() {
            return;
        }
        for session in self.sessions.iter_mut() {
            acts.extend(session.mark_changed(kinds).map(Act::WakeStream));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::bench::{Bench, NOWHERE, reasons, stream, woken};
    use crate::wire::reply::Reason;

    const TOKEN: &str = r#"{"_meta":{"progressToken":"a\u0062"}}"#;

    #[test]
    fn an_answer_is_its_calls_once() {
        let mut bench = Bench::new();
        let session = bench.session();
        let id = bench.begin(session, 1, "tools/call", "{}");
        match bench.result(id, "{}") {
            Answered::Call(call) => {
                assert_eq!(call.client_id.raw(), b"1");
                assert_eq!(call.reply_to, NOWHERE);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(bench.result(id, "{}"), Answered::Late));
        assert!(matches!(bench.error(id, -32603), Answered::Late));
    }

    #[test]
    fn an_answer_that_comes_before_its_call_was_sent_is_nobodys() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.block();
        let id = bench.begin(session, 1, "tools/call", TOKEN);
        assert!(matches!(bench.result(id, "{}"), Answered::Late));
        assert!(bench.state.unreadable_answer(id).is_none());
        assert!(!bench.progressed(id));
        assert_eq!(bench.state.calls_in_flight(), 1);
        bench.unblock();
        assert!(bench.progressed(id));
        assert!(matches!(bench.result(id, "{}"), Answered::Call(_)));
    }

    #[test]
    fn a_call_that_waits_for_the_ledger_is_not_answered_by_the_server() {
        let mut bench = Bench::with(r#"{"resources":{"subscribe":true}}"#);
        let session = bench.session();
        let id = bench.begin(session, 1, "resources/subscribe", r#"{"uri":"a:b"}"#);
        assert!(matches!(bench.result(id, "{}"), Answered::Late));
        assert!(matches!(bench.error(id, -32603), Answered::Late));
        assert!(bench.state.unreadable_answer(id).is_none());
        assert_eq!(bench.state.calls_in_flight(), 1);
    }

    #[test]
    fn an_answer_after_the_end_of_its_call_or_session_is_nobodys() {
        let mut bench = Bench::new();
        let (session, other) = (bench.session(), bench.session());
        let cancelled = bench.begin(session, 1, "tools/call", TOKEN);
        let orphaned = bench.begin(other, 1, "tools/call", TOKEN);
        bench.cancel(session, 1);
        bench.end(other);
        bench.begin(session, 1, "tools/call", TOKEN);
        for id in [cancelled, orphaned] {
            assert!(!bench.progressed(id));
            assert!(bench.state.unreadable_answer(id).is_none());
            assert!(matches!(bench.result(id, "{}"), Answered::Late));
        }
        assert_eq!(bench.state.calls_in_flight(), 1);
    }

    #[test]
    fn an_answer_that_cannot_be_read_ends_its_call() {
        let mut bench = Bench::new();
        let session = bench.session();
        let id = bench.begin(session, 1, "tools/call", "{}");
        let call = bench.state.unreadable_answer(id).unwrap();
        assert_eq!(call.client_id.raw(), b"1");
        assert!(bench.state.unreadable_answer(id).is_none());
        assert_eq!(bench.state.calls_in_flight(), 0);
    }

    #[test]
    fn an_answer_keeps_its_session_as_if_the_client_had_been_heard() {
        let mut bench = Bench::new();
        bench.state.limits.request_timeout_ms = 10_000_000;
        bench.state.limits.request_timeout_max_ms = 10_000_000;
        let session = bench.session();
        let id = bench.begin(session, 1, "tools/call", "{}");
        bench.now = Millis(190_000);
        bench.result(id, "{}");
        bench.tick(285_000);
        assert!(bench.state.sessions.get(session).is_some());
        bench.tick(295_000);
        assert!(bench.state.sessions.get(session).is_none());
    }

    #[test]
    fn progress_comes_under_the_token_as_its_client_spelled_it() {
        let mut bench = Bench::new();
        let (session, other) = (bench.session(), bench.session());
        let text = bench.begin(session, 1, "tools/call", TOKEN);
        let number = bench.begin(other, 1, "x/y", r#"{"_meta":{"progressToken":7}}"#);
        assert_eq!(
            bench.token_of_progress(text).as_deref(),
            Some(r#""a\u0062""#)
        );
        assert_eq!(bench.token_of_progress(number).as_deref(), Some("7"));
        match bench.state.progressed(text, bench.now) {
            Progressed::Call { reply_to, .. } => assert_eq!(reply_to, NOWHERE),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn progress_that_nobody_asked_for_is_nobodys() {
        let mut bench = Bench::new();
        let session = bench.session();
        let silent = bench.begin(session, 1, "tools/call", "{}");
        let other_slot = UpstreamId::of_call(0, 4_000, 1);
        let other_generation = UpstreamId::of_call(0, silent.slot(), silent.generation() + 1);
        for id in [silent, other_slot, other_generation] {
            assert!(!bench.progressed(id), "{id:?}");
        }
        assert!(matches!(bench.result(silent, "{}"), Answered::Call(_)));
    }

    #[test]
    fn progress_of_one_call_does_not_keep_another() {
        let mut bench = Bench::new();
        let session = bench.session();
        let heard = bench.begin(session, 1, "tools/call", TOKEN);
        bench.begin(session, 2, "tools/call", TOKEN);
        bench.tick(800);
        assert!(bench.progressed(heard));
        assert_eq!(reasons(&bench.tick(1_500)), [Reason::Timeout]);
        assert!(bench.progressed(heard));
    }

    #[test]
    fn every_session_is_told_once_which_lists_have_changed() {
        let mut bench = Bench::new();
        let (reading, deaf) = (bench.session(), bench.session());
        bench.open_stream(reading, stream(1));
        let mut acts = Vec::new();
        bench.state.changed(Kinds::NONE, &mut acts);
        assert!(acts.is_empty());
        for kinds in [Kinds::TOOLS, Kinds::PROMPTS, Kinds::TOOLS] {
            bench.state.changed(kinds, &mut acts);
        }
        assert_eq!(woken(acts), [stream(1)]);
        bench.open_stream(deaf, stream(2));
        for (session, stream) in [(reading, stream(1)), (deaf, stream(2))] {
            let (_, events) = bench.stream_work(session, stream);
            assert_eq!(events.matches("event: ").count(), 2);
            assert_eq!(events.matches("tools/list_changed").count(), 1);
            assert_eq!(events.matches("prompts/list_changed").count(), 1);
        }
    }

    #[test]
    fn a_restarted_server_has_every_session_told_of_the_lists_that_it_has() {
        let mut bench = Bench::with(r#"{"tools":{},"resources":{}}"#);
        let session = bench.session();
        bench.open_stream(session, stream(1));
        bench.down();
        assert_eq!(
            woken(bench.up(2, r#"{"tools":{},"resources":{}}"#)),
            [stream(1)]
        );
        let (_, events) = bench.stream_work(session, stream(1));
        assert!(events.contains("tools/list_changed"));
        assert!(events.contains("resources/list_changed"));
        assert!(!events.contains("prompts"));
    }
}
