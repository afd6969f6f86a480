//! What a session has yet to be told on its GET stream: a set of marks, not a
//! queue of messages. Marks are bounded and one event each however often
//! something happens, so a slow reader costs no more than an idle one.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use indexmap::IndexSet;

use super::tasks::TaskKey;
use crate::limits::{
    SESSION_NEWS_BYTES_MAX, STREAM_WRITE_BYTES, SUB_RESOURCE_EVENT_BYTES_MAX,
    SUB_RESOURCE_MARKS_MAX,
};
use crate::wire::notice::{self, Kinds};

/// An update of one resource, encoded once for all sessions of a shard.
#[derive(Debug)]
pub struct Update {
    uri: Box<str>,
    frame: Box<[u8]>,
    hash: u64,
}

impl Update {
    /// `hasher` must be the same for all updates that meet in one set.
    #[cfg(test)]
    pub fn new(uri: &str, hasher: &ahash::RandomState) -> Rc<Update> {
        Update::shown_as(uri, Some(uri), hasher)
    }

    /// The same of a URI that clients know as `shown`. `None`: they are not told of it.
    pub fn shown_as(uri: &str, shown: Option<&str>, hasher: &ahash::RandomState) -> Rc<Update> {
        Rc::new(Update {
            uri: uri.into(),
            frame: shown.map(notice::updated_frame).unwrap_or_default().into(),
            hash: hasher.hash_one(uri),
        })
    }
}

impl Update {
    /// Whether nobody is told of it.
    pub fn is_hidden(&self) -> bool {
        self.frame.is_empty()
    }
}

/// An update in a set: equal by URI.
#[derive(Clone, Debug)]
struct ByUri(Rc<Update>);

impl Hash for ByUri {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl PartialEq for ByUri {
    fn eq(&self, other: &ByUri) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || self.0.uri == other.0.uri
    }
}

impl Eq for ByUri {}

/// Passes a hash on that is one already.
#[derive(Clone, Copy, Default, Debug)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a message about a task tells; the last of each counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskNews {
    Status,
    Progress,
}

#[derive(Debug)]
struct TaskMark {
    task: TaskKey,
    news: TaskNews,
    frame: Box<[u8]>,
}

/// The marks of one session.
#[derive(Default, Debug)]
pub struct Marks {
    kinds: Kinds,
    updates: IndexSet<ByUri, std::hash::BuildHasherDefault<Hashed>>,
    /// How many of `updates` name a resource below a subscribed one.
    below: usize,
    tasks: Vec<TaskMark>,
    /// Bytes of all events of tasks.
    task_bytes: usize,
}

impl Marks {
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.updates.is_empty() && self.tasks.is_empty()
    }

    /// Events that these marks make.
    pub fn len(&self) -> usize {
        self.kinds.len() + self.updates.len() + self.tasks.len()
    }

    /// Lists have changed.
    pub fn changed(&mut self, kinds: Kinds) {
        self.kinds = self.kinds.with(kinds);
    }

    /// A resource that the session is subscribed to was updated.
    pub fn updated(&mut self, update: &Rc<Update>) {
        self.updates.insert(ByUri(update.clone()));
    }

    /// A resource below a subscribed one was updated. Where too many of these
    /// are marked, the subscribed one stands for all further ones.
    pub fn updated_below(&mut self, update: &Rc<Update>, subscribed: &Rc<Update>) {
        let is_small = update.frame.len() <= SUB_RESOURCE_EVENT_BYTES_MAX;
        if is_small && self.below < SUB_RESOURCE_MARKS_MAX {
            if self.updates.insert(ByUri(update.clone())) {
                self.below += 1;
            }
        } else if !self.updates.contains(&ByUri(update.clone())) {
            self.updated(subscribed);
        }
    }

    /// There is news of a task: `frame` is the whole event. False if there is no
    /// room for it; what was known before is forgotten then all the same.
    pub fn task(&mut self, task: TaskKey, news: TaskNews, frame: Box<[u8]>) -> bool {
        let is_known = |mark: &TaskMark| mark.task == task && mark.news == news;
        let place = self.tasks.iter().position(is_known);
        if let Some(place) = place {
            let mark = self.tasks.remove(place);
            self.task_bytes -= mark.frame.len();
        }
        if self.task_bytes + frame.len() > SESSION_NEWS_BYTES_MAX {
            return false;
        }
        self.task_bytes += frame.len();
        self.tasks.push(TaskMark { task, news, frame });
        true
    }

    /// Forgets the updates of these URIs.
    pub fn forget_updates(&mut self, mut is_gone: impl FnMut(&str) -> bool) {
        self.updates.retain(|update| !is_gone(&update.0.uri));
        self.below = self.below.min(self.updates.len());
    }

    /// The update of `uri`, of a subscription that is gone, is one below
    /// `subscribed` from now on.
    pub fn put_below(&mut self, uri: &str, subscribed: &Rc<Update>) {
        let place = self.updates.iter().position(|update| *update.0.uri == *uri);
        if let Some(update) = place.and_then(|place| self.updates.shift_remove_index(place)) {
            self.updated_below(&update.0, subscribed);
        }
    }

    /// Forgets these tasks.
    pub fn forget_tasks(&mut self, is_gone: impl Fn(TaskKey) -> bool) {
        self.tasks.retain(|mark| !is_gone(mark.task));
        self.task_bytes = self.tasks.iter().map(|mark| mark.frame.len()).sum();
    }

    /// Takes the marks of the next write out, at most about
    /// [`STREAM_WRITE_BYTES`] of events.
    pub fn take(&mut self) -> Marks {
        let kinds = std::mem::take(&mut self.kinds);
        let mut bytes = 0;
        let mut fits = |frame: &[u8]| {
            let has_room = bytes < STREAM_WRITE_BYTES;
            bytes += frame.len();
            has_room
        };
        let updates = self
            .updates
            .iter()
            .take_while(|update| fits(&update.0.frame));
        let updates = updates.count();
        let tasks = self
            .tasks
            .iter()
            .take_while(|mark| fits(&mark.frame))
            .count();
        let updates: IndexSet<_, _> = self.updates.drain(..updates).collect();
        if self.updates.is_empty() {
            self.below = 0;
            self.updates = IndexSet::default();
        }
        let tasks: Vec<_> = self.tasks.drain(..tasks).collect();
        let task_bytes = tasks.iter().map(|mark| mark.frame.len()).sum();
        self.task_bytes -= task_bytes;
        Marks {
            kinds,
            updates,
            below: 0,
            tasks,
            task_bytes,
        }
    }

    /// Appends the events.
    pub fn frames(&self, out: &mut Vec<u8>) {
        self.kinds.frames(out);
        for update in &self.updates {
            out.extend_from_slice(&update.0.frame);
        }
        for mark in &self.tasks {
            out.extend_from_slice(&mark.frame);
        }
    }

    /// The write of these marks failed: they are set again. What has come since
    /// is newer.
    pub fn set_again(&mut self, failed: Marks) {
        self.changed(failed.kinds);
        for update in failed.updates {
            // It may name a resource below a subscribed one: counted as if it did.
            self.below += usize::from(self.updates.insert(update));
        }
        for mark in failed.tasks {
            let is_newer = |known: &TaskMark| known.task == mark.task && known.news == mark.news;
            if !self.tasks.iter().any(is_newer) {
                self.task_bytes += mark.frame.len();
                self.tasks.push(mark);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hasher() -> ahash::RandomState {
        ahash::RandomState::with_seeds(1, 2, 3, 4)
    }

    fn text(marks: &Marks) -> String {
        let mut out = Vec::new();
        marks.frames(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_happens_often_is_told_once() {
        let mut marks = Marks::default();
        for _ in 0..9 {
            marks.changed(Kinds::TOOLS);
            marks.updated(&Update::new("a:b", &hasher()));
            marks.task(TaskKey::FIRST, TaskNews::Status, b"s"[..].into());
        }
        marks.task(TaskKey::FIRST, TaskNews::Status, b"t"[..].into());
        assert_eq!(marks.len(), 3);
        let taken = marks.take();
        assert!(marks.is_empty());
        let text = text(&taken);
        assert_eq!(text.matches("list_changed").count(), 1);
        assert_eq!(text.matches("a:b").count(), 1);
        assert!(text.ends_with("}\n\nt"));
    }

    #[test]
    fn a_failed_write_sets_its_marks_again_but_not_over_newer_ones() {
        let mut marks = Marks::default();
        marks.changed(Kinds::PROMPTS);
        marks.updated(&Update::new("a:b", &hasher()));
        marks.task(TaskKey::FIRST, TaskNews::Progress, b"old"[..].into());
        let taken = marks.take();
        marks.task(TaskKey::FIRST, TaskNews::Progress, b"new"[..].into());
        marks.set_again(taken);
        assert_eq!(marks.len(), 3);
        assert!(text(&marks).ends_with("new"));
    }

    #[test]
    fn many_updates_below_a_subscription_become_one_of_the_subscription() {
        let mut marks = Marks::default();
        let subscribed = Update::new("a:b", &hasher());
        for n in 0..10 * SUB_RESOURCE_MARKS_MAX {
            let update = Update::new(&format!("a:b/{n}"), &hasher());
            marks.updated_below(&update, &subscribed);
        }
        assert_eq!(marks.len(), SUB_RESOURCE_MARKS_MAX + 1);
    }

    #[test]
    fn writes_that_fail_again_and_again_do_not_pile_marks_up() {
        let mut marks = Marks::default();
        let subscribed = Update::new("a:b", &hasher());
        for n in 0..1_000 {
            let update = Update::new(&format!("a:b/{n}"), &hasher());
            marks.updated_below(&update, &subscribed);
            let taken = marks.take();
            marks.set_again(taken);
        }
        assert!(marks.len() <= SUB_RESOURCE_MARKS_MAX + 1);
    }

    #[test]
    fn a_write_is_bounded_and_nothing_is_lost_between_writes() {
        let mut marks = Marks::default();
        for n in 0..2_000 {
            marks.updated(&Update::new(&format!("a:{n}"), &hasher()));
        }
        let mut told = 0;
        while !marks.is_empty() {
            let taken = marks.take();
            assert!(text(&taken).len() < STREAM_WRITE_BYTES + 1_000);
            told += taken.len();
        }
        assert_eq!(told, 2_000);
    }
}
