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
            Some(About::Nothing | About::Subscription) => {
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
