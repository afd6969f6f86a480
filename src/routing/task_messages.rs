//! What happens to tasks: the requests under `tasks/`, the answers that tell of a
//! task, its status and its progress after the call that created it. A task is
//! its session's alone, and dies with the server's process.

use smallvec::SmallVec;

use super::arrival::Answered;
use super::calls::{About, ReplyTo};
use super::client::{Incoming, Step, failed};
use super::letters::Note;
use super::marks::TaskNews;
use super::outcome::Outcome;
use super::session::SessionKey;
use super::shard::{Act, ShardState};
use super::tasks::{NotOwned, SessionTasks, TaskKey};
use super::upstream_id::UpstreamId;
use crate::limits::{
    TASK_ANSWER_BYTES_MAX, TASK_CURSOR_BYTES_MAX, TASK_LIST_BYTES_MAX, TASK_NEWS_BYTES_MAX,
    TASK_RESULTS_MAX,
};
use crate::wire::handshake::TasksOffer;
use crate::wire::reply::{self, Reason};
use crate::wire::scan;
use crate::wire::splice::Edit;
use crate::wire::task;
use crate::wire::version::Version;

/// Whether a raw error of the server's says that the parameters are wrong.
fn is_invalid_params(error: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
    }
    serde_json::from_slice::<Error>(error)
        .is_ok_and(|error| error.code == i64::from(reply::INVALID_PARAMS))
}

impl ShardState {
    /// What of tasks is offered to a session.
    fn tasks_offered(&self, key: SessionKey) -> TasksOffer {
        let version = self.sessions.get(key).map(|session| session.version);
        match self.handshake() {
            Some(handshake) if version == Some(Version::V2025_11_25) => handshake.tasks,
            _ => TasksOffer::default(),
        }
    }

    /// A request with `params.task`: it asks for a task.
    pub(super) fn ask_for_task(&mut self, key: SessionKey, incoming: &Incoming<'_>) -> Step {
        if !self.tasks_offered(key).is_offered {
            return Step::Answer(reply::error(
                Some(incoming.raw_id()),
                reply::INVALID_PARAMS,
                "Tasks are not offered: send the request without params.task",
            ));
        }
        let session = self.sessions.get(key);
        let owned = session.and_then(|session| session.tasks.as_deref());
        if !self.tasks.has_room(owned) || !self.calls.has_room_for_task() {
            return failed(incoming.raw_id(), Reason::Overloaded);
        }
        self.forward(key, incoming, About::NewTask, None)
    }

    /// A request under `tasks/`.
    pub(super) fn task_request(&mut self, key: SessionKey, incoming: &Incoming<'_>) -> Step {
        let refuse = |code, sentence: &str| {
            Step::Answer(reply::error(Some(incoming.raw_id()), code, sentence))
        };
        let offered = self.tasks_offered(key);
        let is_known = match incoming.envelope.method.as_ref() {
            "tasks/get" | "tasks/result" => offered.is_offered,
            "tasks/cancel" => offered.cancel,
            "tasks/list" => offered.list,
            _ => false,
        };
        if !is_known {
            return refuse(reply::METHOD_NOT_FOUND, "This is not offered");
        }
        if incoming.envelope.method == "tasks/list" {
            return self.task_list(key, incoming);
        }
        let field = incoming.envelope.task_id.as_ref();
        let Some(id) = field.and_then(|field| field.text(incoming.text)) else {
            return refuse(reply::INVALID_PARAMS, "params.taskId must be a string");
        };
        let Some(task) = self.tasks.find_own(key, &id) else {
            return refuse(reply::INVALID_PARAMS, "Task not found");
        };
        if incoming.envelope.method != "tasks/result" {
            return self.forward(key, incoming, About::Task(task), None);
        }
        let step = self.forward(key, incoming, About::TaskResult(task), None);
        if let Step::InFlight { id, .. } = &step
            && let Some(task) = self.tasks.get_mut(task)
        {
            let calls = &self.calls;
            task.results.retain(|call| calls.get(*call).is_some());
            if task.results.len() >= TASK_RESULTS_MAX {
                task.results.remove(0);
            }
            task.results.push(*id);
        }
        step
    }

    /// `tasks/list`: the server lists the tasks of all sessions, and its cursors
    /// are its own; a session has those that it was given for them.
    fn task_list(&mut self, key: SessionKey, incoming: &Incoming<'_>) -> Step {
        let Some(field) = &incoming.envelope.cursor else {
            return self.forward(key, incoming, About::TaskList, None);
        };
        let session = self.sessions.get(key);
        let known = session.and_then(|session| session.tasks.as_ref());
        let of_server = field
            .text(incoming.text)
            .and_then(|cursor| known?.cursor(&cursor));
        let Some(of_server) = of_server else {
            return Step::Answer(reply::error(
                Some(incoming.raw_id()),
                reply::INVALID_PARAMS,
                "Unknown cursor",
            ));
        };
        let raw = reply::quoted(of_server);
        let edit = Edit {
            span: field.span,
            with: &raw,
        };
        self.forward(key, incoming, About::TaskList, Some(edit))
    }

    /// The answer to a call that is about a task.
    pub(super) fn task_answer(
        &mut self,
        id: UpstreamId,
        about: About,
        line: &[u8],
        is_error: bool,
    ) -> Answered {
        let envelope = scan::scan(line).ok();
        let (result, error) = match &envelope {
            Some(envelope) => (envelope.result, envelope.error),
            None => (None, None),
        };
        let result = result.map(|span| span.of(line)).filter(|_| !is_error);
        let small = result.filter(|result| result.len() <= TASK_ANSWER_BYTES_MAX);
        match (about, result) {
            (About::NewTask, Some(_)) => {
                if let Some(created) = small.and_then(task::created) {
                    return self.created(id, &created);
                }
            }
            (About::TaskList, Some(result)) => return self.listed(id, result),
            (About::Task(task), Some(_)) => {
                let status = small.and_then(task::status);
                if status.is_some_and(task::Status::is_terminal) {
                    self.end_task(task);
                }
            }
            // It answers only when the task is over, with an error if that failed.
            (About::TaskResult(task), _) => self.end_task(task),
            // The server has forgotten it.
            (About::Task(task), None)
                if error.is_some_and(|error| is_invalid_params(error.of(line))) =>
            {
                self.end_task(task);
            }
            _ => {}
        }
        self.end_call(id).map_or(Answered::Late, Answered::Call)
    }

    /// The server has made a task for call `id`: it is the session's of that call.
    fn created(&mut self, id: UpstreamId, created: &task::Created) -> Answered {
        let Some(call) = self.calls.get(id) else {
            return Answered::Late;
        };
        let (key, token) = (call.session, call.token.clone());
        let is_terminal = created.status.is_some_and(task::Status::is_terminal);
        let slot = (!is_terminal).then_some(id);
        let known = self.tasks.find(&created.task_id);
        let is_own = self.tasks.find_own(key, &created.task_id).is_some();
        let owned = match self.sessions.get_mut(key) {
            Some(_) if known.is_some() && !is_own => Err(NotOwned::Foreign),
            Some(_) if slot.is_some() && !self.calls.has_room_for_task() => Err(NotOwned::Full),
            Some(session) => {
                let of = session.tasks.get_or_insert_default();
                self.tasks.own(key, of, &created.task_id, slot, token)
            }
            None => return Answered::Late,
        };
        match owned {
            Ok(owned) => {
                if let Some(slot) = owned.freed {
                    self.calls.end_task(slot);
                }
                if let Some(session) = self.sessions.get_mut(key) {
                    session
                        .forget_tasks(|task| owned.forgotten.iter().any(|(key, _)| *key == task));
                }
                for (_, id) in owned.forgotten {
                    self.give_back(id);
                }
                let call = match (slot, self.sessions.get_mut(key)) {
                    (Some(_), Some(session)) => {
                        session.last_used = self.now;
                        self.calls.end_as_task(session, id, owned.task)
                    }
                    _ => self.end_call(id),
                };
                call.map_or(Answered::Late, Answered::Call)
            }
            Err(refused) => {
                self.give_back(created.task_id.as_str().into());
                if refused == NotOwned::Foreign {
                    return self.foreign_task(id);
                }
                self.cancel_task(&created.task_id);
                let Some(call) = self.end_call(id) else {
                    return Answered::Late;
                };
                Answered::Instead {
                    message: reply::failure(Some(call.client_id.raw()), Reason::Overloaded),
                    outcome: Outcome::Overloaded,
                    call,
                }
            }
        }
    }

    /// The server answers call `id` with a task that another session owns. It is
    /// that session's; this one learns nothing of it.
    pub fn foreign_task(&mut self, id: UpstreamId) -> Answered {
        let Some(call) = self.unreadable_answer(id) else {
            return Answered::Late;
        };
        Answered::Instead {
            message: reply::error(
                Some(call.client_id.raw()),
                reply::INTERNAL_ERROR,
                "The upstream server gave the task an id that is in use",
            ),
            outcome: Outcome::Error,
            call,
        }
    }

    /// A claim of the task, which the hub has noted to keep the shards apart, has
    /// come to nothing or is over.
    fn give_back(&mut self, id: Box<str>) {
        if self.shards > 1 && self.epoch.is_some() {
            self.notes.push(Note::ForgetTask(id));
        }
    }

    /// The server's list of tasks: only the session's own are shown.
    fn listed(&mut self, id: UpstreamId, result: &[u8]) -> Answered {
        let Some(call) = self.end_call(id) else {
            return Answered::Late;
        };
        let key = call.session;
        let number = self.tasks.next_cursor();
        let (tasks, sessions) = (&self.tasks, &mut self.sessions);
        let mut is_kept = true;
        let list = (result.len() <= TASK_LIST_BYTES_MAX).then(|| {
            task::own_list(
                result,
                |task| tasks.find_own(key, task).is_some(),
                |cursor| match sessions.get_mut(key) {
                    Some(session) if cursor.len() <= TASK_CURSOR_BYTES_MAX => session
                        .tasks
                        .get_or_insert_default()
                        .keep_cursor(number, cursor),
                    _ => {
                        is_kept = false;
                        String::new()
                    }
                },
            )
        });
        let raw_id = call.client_id.raw();
        let (message, outcome) = match list {
            Some(Ok(list)) if is_kept => (reply::result(raw_id, &list), Outcome::Ok),
            _ => (
                reply::error(
                    Some(raw_id),
                    reply::INTERNAL_ERROR,
                    "The upstream server's list of tasks cannot be read",
                ),
                Outcome::Error,
            ),
        };
        Answered::Instead {
            call,
            message,
            outcome,
        }
    }

    /// An answer that nobody waits for. If its call asked for a task, the task is
    /// nobody's, and is cancelled.
    pub(super) fn late_answer(&mut self, id: UpstreamId, line: &[u8]) {
        if !id.asks_for_task() {
            return;
        }
        let was_orphaned = self.tasks.was_orphaned(id);
        let Some(created) = task::created_in(line) else {
            return;
        };
        let is_terminal = created.status.is_some_and(task::Status::is_terminal);
        let is_owned = self.tasks.find(&created.task_id).is_some();
        if was_orphaned && !is_terminal && !is_owned {
            self.cancel_task(&created.task_id);
        }
        self.give_back(created.task_id.into());
    }

    fn cancel_task(&mut self, id: &str) {
        let can_cancel = self.handshake().is_some_and(|known| known.tasks.cancel);
        if can_cancel && self.epoch.is_some() {
            self.notes.push(Note::CancelTask(id.into()));
        }
    }

    /// A task is terminal: its slot is free, its progress token no longer valid.
    pub(super) fn end_task(&mut self, task: TaskKey) {
        if let Some(slot) = self.tasks.end(task) {
            self.calls.end_task(slot);
        }
    }

    /// The session of these tasks ends.
    pub(super) fn cancel_tasks(&mut self, of: &SessionTasks) {
        for task in self.tasks.take_all(of) {
            if let Some(slot) = task.slot {
                self.calls.end_task(slot);
                self.cancel_task(&task.id);
            }
            self.give_back(task.id);
        }
    }

    /// The server is gone, and all tasks with it.
    pub(super) fn forget_tasks(&mut self) {
        for slot in self.tasks.clear() {
            self.calls.end_task(slot);
        }
        for session in self.sessions.iter_mut() {
            session.tasks = None;
            session.forget_tasks(|_| true);
        }
    }

    /// Tasks that sessions own.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// `notifications/tasks/status`. The task, if one of this shard's sessions owns
    /// it.
    pub fn task_status(&mut self, line: &[u8]) -> Option<TaskKey> {
        let envelope = scan::scan(line).ok()?;
        let id = envelope.task_id.as_ref()?.text(line)?;
        let task = self.tasks.find(&id)?;
        let params = envelope.params?.of(line);
        if params.len() > TASK_ANSWER_BYTES_MAX {
            return None;
        }
        if task::status(params).is_some_and(task::Status::is_terminal) {
            self.end_task(task);
        }
        Some(task)
    }

    /// The `tasks/result` calls that wait for a task, the newest first: what is
    /// said about it goes to the first of them that takes it.
    pub fn task_results(&self, task: TaskKey) -> SmallVec<[ReplyTo; 1]> {
        let task = self.tasks.get(task);
        let results = task.map_or(&[][..], |task| &task.results);
        let live = results.iter().rev().filter_map(|id| self.calls.get(*id));
        live.map(|call| call.reply_to).collect()
    }

    /// News of a task for its session's GET stream; `frame` is the whole event.
    /// False if it is too long to be kept.
    pub fn mark_task(
        &mut self,
        task: TaskKey,
        news: TaskNews,
        frame: Vec<u8>,
        acts: &mut Vec<Act>,
    ) -> bool {
        if frame.len() > TASK_NEWS_BYTES_MAX {
            return false;
        }
        let session = self.tasks.get(task).map(|known| known.session);
        let Some(session) = session.and_then(|key| self.sessions.get_mut(key)) else {
            return false;
        };
        let mut is_kept = false;
        let woken = session.mark(|marks| {
            is_kept = marks.task(task, news, frame.into_boxed_slice());
        });
        acts.extend(woken.map(Act::WakeStream));
        is_kept
    }
}

#[cfg(test)]
mod tests;
