//! The tasks of one shard: which session owns which task of the server's, and
//! under which upstream id its progress comes. A task that is no session's here
//! is as unknown as one that never was.

use std::collections::{HashMap, HashSet, VecDeque};

use slab::Slab;
use smallvec::SmallVec;

use super::session::SessionKey;
use super::upstream_id::UpstreamId;
use crate::limits::{ORPHANS_MAX, TASK_CURSORS_MAX};

/// A task's place in its shard's table, with a number that tells it from a later
/// one in the same place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TaskKey {
    place: u32,
    serial: u32,
}

impl TaskKey {
    /// The first task of a table.
    #[cfg(test)]
    pub const FIRST: TaskKey = TaskKey {
        place: 0,
        serial: 1,
    };
}

/// One task of the server's, owned by a session.
#[derive(Debug)]
pub struct Task {
    serial: u32,
    pub session: SessionKey,
    /// As the server spelled it, decoded.
    pub id: Box<str>,
    /// The call that created it keeps its slot, and so its progress token, until
    /// the task is terminal: `None` then.
    pub slot: Option<UpstreamId>,
    /// The client's progress token.
    pub token: Option<Box<[u8]>>,
    /// The `tasks/result` calls that wait for it, the newest last; some may have
    /// ended.
    pub results: SmallVec<[UpstreamId; 1]>,
}

impl Task {
    pub fn is_terminal(&self) -> bool {
        self.slot.is_none()
    }
}

/// What a session has of tasks.
#[derive(Default, Debug)]
pub struct SessionTasks {
    /// Oldest first.
    owned: Vec<TaskKey>,
    /// The cursors of `tasks/list` that it was given: Ringway's number, and what
    /// the server called it.
    cursors: VecDeque<(u64, Box<str>)>,
}

impl SessionTasks {
    /// Keeps a cursor of the server's; returns the one for the client.
    pub fn keep_cursor(&mut self, number: u64, of_server: &str) -> String {
        if self.cursors.len() >= TASK_CURSORS_MAX {
            self.cursors.pop_front();
        }
        self.cursors.push_back((number, of_server.into()));
        format!("tasks-{number}")
    }

    /// What the server calls a cursor that this session was given.
    pub fn cursor(&self, of_client: &str) -> Option<&str> {
        let number = of_client.strip_prefix("tasks-")?;
        let known = |(n, _): &&(u64, Box<str>)| itoa::Buffer::new().format(*n) == number;
        self.cursors.iter().find(known).map(|(_, text)| &**text)
    }
}

/// A task that a session has come to own.
#[derive(PartialEq, Eq, Debug)]
pub struct Owned {
    pub task: TaskKey,
    /// The slot of the session's own former task of this id, to be freed.
    pub freed: Option<UpstreamId>,
    /// Tasks that were forgotten for it, with their ids: nothing more is told of them.
    pub forgotten: SmallVec<[(TaskKey, Box<str>); 1]>,
}

/// Why a task cannot be a session's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotOwned {
    /// Another session of the shard has a task of this id.
    #[error("the task belongs to another session")]
    Foreign,
    /// The session has as many tasks that are not terminal as it may.
    #[error("too many tasks")]
    Full,
}

/// The tasks of a shard.
#[derive(Debug)]
pub struct Tasks {
    table: Slab<Task>,
    by_id: HashMap<Box<str>, TaskKey, ahash::RandomState>,
    next_serial: u32,
    next_cursor: u64,
    per_session_max: usize,
    /// Calls whose answer, should it come, tells of a task without an owner.
    orphans: HashSet<UpstreamId, ahash::RandomState>,
    orphans_in_order: VecDeque<UpstreamId>,
}

impl Tasks {
    pub fn new(per_session_max: usize, hasher: ahash::RandomState) -> Tasks {
        Tasks {
            table: Slab::new(),
            by_id: HashMap::with_hasher(hasher.clone()),
            next_serial: 0,
            next_cursor: 0,
            per_session_max,
            orphans: HashSet::with_hasher(hasher),
            orphans_in_order: VecDeque::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn get(&self, key: TaskKey) -> Option<&Task> {
        let task = self.table.get(key.place as usize)?;
        (task.serial == key.serial).then_some(task)
    }

    pub fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task> {
        let task = self.table.get_mut(key.place as usize)?;
        (task.serial == key.serial).then_some(task)
    }

    /// The task of this id, whoever owns it.
    pub fn find(&self, id: &str) -> Option<TaskKey> {
        self.by_id.get(id).copied()
    }

    /// The task of this id if it is the session's.
    pub fn find_own(&self, session: SessionKey, id: &str) -> Option<TaskKey> {
        let key = self.find(id)?;
        (self.get(key)?.session == session).then_some(key)
    }

    /// Whether the session may ask for another task.
    pub fn has_room(&self, of: Option<&SessionTasks>) -> bool {
        let owned = of.map_or(&[][..], |of| &of.owned);
        let live = owned.iter().filter_map(|key| self.get(*key));
        live.filter(|task| !task.is_terminal()).count() < self.per_session_max
    }

    /// Records a task that the server has made for a session. The same id again
    /// replaces the session's own former task, which the server must have
    /// forgotten. A session keeps as many terminal tasks as it may have others;
    /// beyond, the oldest terminal one is forgotten.
    pub fn own(
        &mut self,
        session: SessionKey,
        of: &mut SessionTasks,
        id: &str,
        slot: Option<UpstreamId>,
        token: Option<Box<[u8]>>,
    ) -> Result<Owned, NotOwned> {
        let known = self.find(id);
        let former = known.and_then(|key| self.get(key));
        if former.is_some_and(|task| task.session != session) {
            return Err(NotOwned::Foreign);
        }
        let gives_room = former.is_some_and(|task| !task.is_terminal());
        if slot.is_some() && !gives_room && !self.has_room(Some(of)) {
            return Err(NotOwned::Full);
        }
        let mut freed = None;
        let mut forgotten = SmallVec::new();
        if let Some(known) = known {
            of.owned.retain(|key| *key != known);
            if let Some(former) = self.forget(known) {
                freed = former.slot;
                forgotten.push((known, former.id));
            }
        }
        // At most half of them are not terminal, so there is one to forget.
        while of.owned.len() >= 2 * self.per_session_max {
            let is_over = |key: &TaskKey| self.get(*key).is_none_or(Task::is_terminal);
            let Some(place) = of.owned.iter().position(is_over) else {
                break;
            };
            let oldest = of.owned.remove(place);
            forgotten.extend(self.forget(oldest).map(|task| (oldest, task.id)));
        }
        self.next_serial = self.next_serial.wrapping_add(1);
        let serial = self.next_serial;
        let place = self.table.insert(Task {
            serial,
            session,
            id: id.into(),
            slot,
            token,
            results: SmallVec::new(),
        });
        let key = TaskKey {
            place: place as u32,
            serial,
        };
        self.by_id.insert(id.into(), key);
        of.owned.push(key);
        Ok(Owned {
            task: key,
            freed,
            forgotten,
        })
    }

    fn forget(&mut self, key: TaskKey) -> Option<Task> {
        self.get(key)?;
        let task = self.table.remove(key.place as usize);
        self.by_id.remove(&task.id);
        Some(task)
    }

    /// The task is terminal. Returns the slot to be freed.
    pub fn end(&mut self, key: TaskKey) -> Option<UpstreamId> {
        self.get_mut(key)?.slot.take()
    }

    /// Takes all tasks of a session that ends.
    pub fn take_all(&mut self, of: &SessionTasks) -> Vec<Task> {
        let owned = of.owned.iter();
        owned.filter_map(|key| self.forget(*key)).collect()
    }

    /// The server is gone, and every task with it. Returns the slots to be freed.
    pub fn clear(&mut self) -> Vec<UpstreamId> {
        self.orphans.clear();
        self.orphans_in_order.clear();
        self.by_id.clear();
        self.table.drain().filter_map(|task| task.slot).collect()
    }

    /// A number that no cursor of this shard has had.
    pub fn next_cursor(&mut self) -> u64 {
        self.next_cursor += 1;
        self.next_cursor
    }

    /// A call that asked for a task has ended without its answer.
    pub fn orphan(&mut self, call: UpstreamId) {
        if self.orphans_in_order.len() >= ORPHANS_MAX
            && let Some(oldest) = self.orphans_in_order.pop_front()
        {
            self.orphans.remove(&oldest);
        }
        if self.orphans.insert(call) {
            self.orphans_in_order.push_back(call);
        }
    }

    /// Whether a late answer is that of such a call; asked once for each.
    pub fn was_orphaned(&mut self, call: UpstreamId) -> bool {
        self.orphans.remove(&call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionKey = SessionKey(1);
    const TWO: SessionKey = SessionKey(2);

    fn tasks(per_session_max: usize) -> Tasks {
        Tasks::new(per_session_max, ahash::RandomState::with_seeds(1, 2, 3, 4))
    }

    fn slot(n: u32) -> Option<UpstreamId> {
        Some(UpstreamId::of_call(0, n, 1))
    }

    #[test]
    fn a_foreign_task_is_as_unknown_as_none() {
        let mut tasks = tasks(9);
        let mut mine = SessionTasks::default();
        let key = tasks.own(ONE, &mut mine, "t", slot(1), None).unwrap().task;
        assert_eq!(tasks.find_own(ONE, "t"), Some(key));
        assert_eq!(tasks.find_own(TWO, "t"), None);
        assert_eq!(tasks.find_own(TWO, "u"), None);
        let mut theirs = SessionTasks::default();
        assert_eq!(
            tasks.own(TWO, &mut theirs, "t", slot(2), None),
            Err(NotOwned::Foreign)
        );
        assert_eq!(tasks.find_own(ONE, "t"), Some(key));
    }

    #[test]
    fn only_tasks_that_are_not_terminal_count_and_the_oldest_terminal_ones_go() {
        let mut tasks = tasks(2);
        let mut mine = SessionTasks::default();
        let first = tasks.own(ONE, &mut mine, "1", slot(1), None).unwrap().task;
        tasks.own(ONE, &mut mine, "2", slot(2), None).unwrap();
        assert_eq!(
            tasks.own(ONE, &mut mine, "3", slot(3), None),
            Err(NotOwned::Full)
        );
        assert_eq!(tasks.end(first), slot(1));
        assert_eq!(tasks.end(first), None, "its slot is freed once");
        tasks.own(ONE, &mut mine, "3", slot(3), None).unwrap();
        tasks.own(ONE, &mut mine, "4", None, None).unwrap();
        assert_eq!(tasks.find_own(ONE, "1"), Some(first));
        let owned = tasks.own(ONE, &mut mine, "5", None, None).unwrap();
        assert_eq!(owned.forgotten.as_slice(), [(first, "1".into())]);
        assert_eq!(tasks.find_own(ONE, "1"), None);
        assert!(!tasks.has_room(Some(&mine)));
        assert_eq!(tasks.len(), 4);
        assert_eq!(tasks.take_all(&mine).len(), 4);
        assert!(tasks.is_empty() && tasks.find("2").is_none());
    }

    #[test]
    fn an_id_that_the_server_uses_again_is_a_new_task() {
        let mut tasks = tasks(1);
        let mut mine = SessionTasks::default();
        let first = tasks.own(ONE, &mut mine, "t", slot(1), None).unwrap().task;
        let second = tasks.own(ONE, &mut mine, "t", slot(2), None).unwrap();
        assert_eq!(second.freed, slot(1));
        assert_eq!(second.forgotten.as_slice(), [(first, "t".into())]);
        assert!(tasks.get(first).is_none());
        assert_eq!(tasks.find("t"), Some(second.task));
        assert_eq!(tasks.clear(), [slot(2).unwrap()]);
    }

    #[test]
    fn who_is_refused_a_task_keeps_those_that_it_has() {
        let mut tasks = tasks(1);
        let mut mine = SessionTasks::default();
        let over = tasks.own(ONE, &mut mine, "t", None, None).unwrap().task;
        tasks.own(ONE, &mut mine, "u", slot(1), None).unwrap();
        assert_eq!(
            tasks.own(ONE, &mut mine, "t", slot(2), None),
            Err(NotOwned::Full)
        );
        assert_eq!(tasks.find_own(ONE, "t"), Some(over));
        assert_eq!(tasks.take_all(&mine).len(), 2);
    }

    #[test]
    fn a_session_knows_only_cursors_that_it_was_given_lately() {
        let mut mine = SessionTasks::default();
        let cursor = mine.keep_cursor(7, "theirs");
        assert_eq!(mine.cursor(&cursor), Some("theirs"));
        for other in ["theirs", "tasks-8", "tasks-07", "tasks-", "7", ""] {
            assert_eq!(mine.cursor(other), None, "{other}");
        }
        for n in 8..8 + TASK_CURSORS_MAX as u64 {
            mine.keep_cursor(n, "x");
        }
        assert_eq!(mine.cursor(&cursor), None);
        assert_eq!(SessionTasks::default().cursor("tasks-9"), None);
    }

    #[test]
    fn orphans_are_known_once_and_bounded() {
        let mut tasks = tasks(1);
        for n in 0..2 * ORPHANS_MAX as u32 {
            tasks.orphan(UpstreamId::of_call(0, n, 1));
        }
        assert!(!tasks.was_orphaned(UpstreamId::of_call(0, 0, 1)));
        let last = UpstreamId::of_call(0, 2 * ORPHANS_MAX as u32 - 1, 1);
        assert!(tasks.was_orphaned(last));
        assert!(!tasks.was_orphaned(last));
        assert_eq!(tasks.orphans_in_order.len(), ORPHANS_MAX);
    }
}
