//! The call table of one shard: a slot per call in flight. The slot and its
//! generation make the upstream id; a client's own id is looked up here too, so
//! that the same id twice in flight in one session is refused and a cancel
//! finds its call.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::outcome::Method;
use super::session::{Session, SessionKey};
use super::tasks::TaskKey;
use super::time::Micros;
use super::upstream_id::{GENERATION_MAX, TASK_SLOTS_FROM, UpstreamId};
use super::wheel::Deadline;
use crate::limits::SLOTS_BEFORE_REUSE;
use crate::wire::scan::{Field, Shape};

/// A client's JSON-RPC id: the raw JSON that its answer will carry, and the
/// form in which two ids are compared by value.
#[derive(Clone, Debug)]
pub struct ClientId {
    raw: SmallVec<[u8; 24]>,
    /// What an id that was spelled with escapes is compared by: its decoded form
    /// in quotes; or, for one that has none (a lone surrogate), its spelling
    /// behind a zero byte, which stands in no JSON text.
    decoded: Option<Box<[u8]>>,
}

impl ClientId {
    /// Reads an id that the scan has accepted: a string or an integer.
    pub fn read(field: &Field, text: &[u8]) -> ClientId {
        let raw = field.span.of(text);
        let decoded = match field.shape {
            Shape::String { escaped: true } => Some(match field.text(text) {
                Some(decoded) => quoted(&decoded),
                None => [b"\0", raw].concat().into_boxed_slice(),
            }),
            _ => None,
        };
        ClientId {
            raw: SmallVec::from_slice(raw),
            decoded,
        }
    }

    /// The id as its client spelled it.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Equal for equal ids, and only for those: `1` and `"1"` differ, `"a"` and
    /// `"\u0061"` do not.
    pub fn value(&self) -> &[u8] {
        self.decoded.as_deref().unwrap_or(&self.raw)
    }
}

fn quoted(text: &str) -> Box<[u8]> {
    let mut value = Vec::with_capacity(text.len() + 2);
    value.push(b'"');
    value.extend_from_slice(text.as_bytes());
    value.push(b'"');
    value.into_boxed_slice()
}

/// Where the answer of a call goes: a connection of the shard and the place in
/// its batch (0 for a single request).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReplyTo {
    pub connection: u32,
    /// Tells a connection from a later one in the same place.
    pub connection_generation: u32,
    /// Tells a request of that connection from a later one.
    pub exchange: u32,
    pub part: u16,
}

/// One downstream request that is in flight upstream.
#[derive(Debug)]
pub struct Call {
    pub session: SessionKey,
    pub client_id: ClientId,
    pub reply_to: ReplyTo,
    pub method: Method,
    /// When it began.
    pub started: Micros,
    /// It has been handed to the hub: a cancel must follow it. One that has not
    /// been cannot be answered by the server.
    pub sent: bool,
    /// The client's progress token, as it spelled it.
    pub token: Option<Box<[u8]>>,
    pub about: About,
}

/// What the answer of a call means beyond the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    Nothing,
    /// It asks for a task, which its answer names.
    NewTask,
    /// `tasks/get` or `tasks/cancel` of this task.
    Task(TaskKey),
    /// `tasks/result` of this task, which blocks until the task is done.
    TaskResult(TaskKey),
    /// `tasks/result` at the session's own upstream.
    OwnTaskResult,
    /// `tasks/list`.
    TaskList,
    /// `resources/subscribe`: it waits for the ledger, not for the server.
    Subscription,
}

impl Call {
    /// Whether messages may come before its answer, so that it should become a
    /// stream rather than be kept alive as JSON.
    pub fn may_stream(&self) -> bool {
        self.token.is_some() || matches!(self.about, About::TaskResult(_))
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    call: Option<Call>,
    /// The task that the slot's call has created, which keeps the slot.
    task: Option<TaskKey>,
    deadline: Deadline,
    /// Neighbours in the list of the session's calls.
    newer: Option<u32>,
    older: Option<u32>,
}

/// Slots of one kind: those of calls that ask for a task, or those of all others.
#[derive(Debug)]
struct Bank {
    first: u32,
    slots: Vec<Slot>,
    /// Free slots, the one that has been free longest first.
    free: VecDeque<u32>,
}

impl Bank {
    fn starting_at(first: u32) -> Bank {
        Bank {
            first,
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// A slot to use: a new one until there are `reuse_from`. `None`: all are used.
    fn take_free(&mut self, reuse_from: usize) -> Option<u32> {
        let may_grow = self.slots.len() < TASK_SLOTS_FROM as usize;
        let reuse = self.slots.len() >= reuse_from || !may_grow;
        if let Some(slot) = self.free.pop_front_if(|_| reuse) {
            return Some(slot);
        }
        if !may_grow {
            return None;
        }
        self.slots.push(Slot {
            generation: 1,
            call: None,
            task: None,
            deadline: Deadline::default(),
            newer: None,
            older: None,
        });
        Some(self.first + (self.slots.len() - 1) as u32)
    }
}

/// All slots. Their numbers tell calls that ask for a task from others, also the
/// hub, which knows nothing of calls.
#[derive(Debug)]
struct Slots {
    banks: [Bank; 2],
}

impl Default for Slots {
    fn default() -> Slots {
        Slots {
            banks: [Bank::starting_at(0), Bank::starting_at(TASK_SLOTS_FROM)],
        }
    }
}

impl Slots {
    fn used(&self) -> usize {
        let used = self.banks.iter();
        used.map(|bank| bank.slots.len() - bank.free.len()).sum()
    }

    fn bank_mut(&mut self, slot: u32) -> &mut Bank {
        &mut self.banks[usize::from(slot >= TASK_SLOTS_FROM)]
    }

    fn get(&self, slot: u32) -> Option<&Slot> {
        let bank = &self.banks[usize::from(slot >= TASK_SLOTS_FROM)];
        bank.slots.get((slot - bank.first) as usize)
    }

    fn get_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        let bank = self.bank_mut(slot);
        bank.slots.get_mut((slot - bank.first) as usize)
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let banks = self.banks.iter();
        banks.flat_map(|bank| (bank.first..).zip(&bank.slots))
    }
}

impl Index<u32> for Slots {
    type Output = Slot;

    fn index(&self, slot: u32) -> &Slot {
        let bank = &self.banks[usize::from(slot >= TASK_SLOTS_FROM)];
        &bank.slots[(slot - bank.first) as usize]
    }
}

impl IndexMut<u32> for Slots {
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        let bank = self.bank_mut(slot);
        let first = bank.first;
        &mut bank.slots[(slot - first) as usize]
    }
}

/// Why a call cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeginError {
    /// The session has a call in flight under the same id.
    #[error("the id is in flight already in this session")]
    DuplicateId,
    /// The table is full.
    #[error("too many calls in flight")]
    Full,
}

/// The calls in flight of one shard.
#[derive(Debug)]
pub struct Calls {
    shard: usize,
    slots: Slots,
    by_client_id: HashTable<u32>,
    hasher: ahash::RandomState,
    max: usize,
    /// Slots that tasks keep.
    tasks: usize,
    /// Slots exist up to here before one is used again.
    reuse_from: usize,
}

impl Calls {
    /// A table for at most `max` calls of shard `shard`.
    pub fn new(shard: usize, max: usize, hasher: ahash::RandomState) -> Calls {
        Calls {
            shard,
            slots: Slots::default(),
            by_client_id: HashTable::new(),
            hasher,
            max,
            tasks: 0,
            reuse_from: SLOTS_BEFORE_REUSE,
        }
    }

    /// Calls in flight.
    pub fn len(&self) -> usize {
        self.slots.used() - self.tasks
    }

    /// Whether another task may keep a slot.
    pub fn has_room_for_task(&self) -> bool {
        self.tasks < self.max
    }

    /// Slots that tasks keep.
    pub fn tasks(&self) -> usize {
        self.tasks
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn hash(&self, session: SessionKey, value: &[u8]) -> u64 {
        let mut state = self.hasher.build_hasher();
        session.hash(&mut state);
        value.hash(&mut state);
        state.finish()
    }

    fn slot_of(&self, session: SessionKey, client_id: &ClientId) -> Option<u32> {
        let value = client_id.value();
        let slots = &self.slots;
        self.by_client_id
            .find(self.hash(session, value), |slot| {
                matches!(&slots[*slot].call,
                    Some(call) if call.session == session && call.client_id.value() == value)
            })
            .copied()
    }

    /// Begins a call of `session`, which must be the one that `call` names.
    pub fn begin(&mut self, session: &mut Session, call: Call) -> Result<UpstreamId, BeginError> {
        if self.slot_of(call.session, &call.client_id).is_some() {
            return Err(BeginError::DuplicateId);
        }
        if self.len() >= self.max {
            return Err(BeginError::Full);
        }
        let hash = self.hash(call.session, call.client_id.value());
        let bank = &mut self.slots.banks[usize::from(call.about == About::NewTask)];
        let Some(slot) = bank.take_free(self.reuse_from) else {
            return Err(BeginError::Full);
        };
        self.link(session, slot);
        self.slots[slot].call = Some(call);
        let Calls {
            slots,
            by_client_id,
            hasher,
            ..
        } = self;
        by_client_id.insert_unique(hash, slot, |slot| {
            let call = slots[*slot].call.as_ref();
            call.map_or(0, |call| {
                let mut state = hasher.build_hasher();
                call.session.hash(&mut state);
                call.client_id.value().hash(&mut state);
                state.finish()
            })
        });
        Ok(self.id_of(slot))
    }

    fn id_of(&self, slot: u32) -> UpstreamId {
        UpstreamId::of_call(self.shard, slot, self.slots[slot].generation)
    }

    fn live(&self, id: UpstreamId) -> Option<u32> {
        let slot = self.slots.get(id.slot())?;
        (slot.generation == id.generation() && slot.call.is_some()).then_some(id.slot())
    }

    /// The call that `id` names, if it is still in flight.
    pub fn get(&self, id: UpstreamId) -> Option<&Call> {
        self.slots[self.live(id)?].call.as_ref()
    }

    pub fn get_mut(&mut self, id: UpstreamId) -> Option<&mut Call> {
        let slot = self.live(id)?;
        self.slots[slot].call.as_mut()
    }

    /// The deadline of the call in flight in `slot`, for the wheel.
    pub fn deadline(&mut self, slot: u32) -> Option<(UpstreamId, &mut Deadline)> {
        let entry = self.slots.get_mut(slot)?;
        let id = UpstreamId::of_call(self.shard, slot, entry.generation);
        Some((id, &mut entry.deadline))
    }

    /// The call of `session` that its client knows as `client_id`.
    pub fn find(&self, session: SessionKey, client_id: &ClientId) -> Option<UpstreamId> {
        self.slot_of(session, client_id)
            .map(|slot| self.id_of(slot))
    }

    /// The newest call in flight of a session.
    pub fn newest_of(&self, session: &Session) -> Option<UpstreamId> {
        session.newest_call.map(|slot| self.id_of(slot))
    }

    /// Every call in flight, in one pass over the table.
    pub fn all(&self) -> Vec<(UpstreamId, SessionKey)> {
        let slots = self.slots.iter();
        let calls = slots.filter_map(|(slot, entry)| {
            let call = entry.call.as_ref()?;
            Some((self.id_of(slot), call.session))
        });
        calls.collect()
    }

    /// Ends the call that `id` names. The slot's generation moves on, so that
    /// whatever still comes for this id finds nobody.
    pub fn end(&mut self, session: &mut Session, id: UpstreamId) -> Option<Call> {
        let call = self.take(session, id)?;
        self.free(id.slot());
        Some(call)
    }

    /// Ends the call that `id` names; its slot, and so its progress token, is kept
    /// for the task that it has created. `None` if there is no such call, or if
    /// tasks keep as many slots as calls may.
    pub fn end_as_task(
        &mut self,
        session: &mut Session,
        id: UpstreamId,
        task: TaskKey,
    ) -> Option<Call> {
        if !self.has_room_for_task() {
            return None;
        }
        let call = self.take(session, id)?;
        self.slots[id.slot()].task = Some(task);
        self.tasks += 1;
        Some(call)
    }

    /// The task that keeps the slot of `id`.
    pub fn task(&self, id: UpstreamId) -> Option<TaskKey> {
        let slot = self.slots.get(id.slot())?;
        slot.task.filter(|_| slot.generation == id.generation())
    }

    /// The task that keeps the slot of `id` no longer needs it.
    pub fn end_task(&mut self, id: UpstreamId) {
        if self.task(id).is_some() {
            self.slots[id.slot()].task = None;
            self.tasks -= 1;
            self.free(id.slot());
        }
    }

    fn take(&mut self, session: &mut Session, id: UpstreamId) -> Option<Call> {
        let slot = self.live(id)?;
        let call = self.slots[slot].call.take()?;
        let hash = self.hash(call.session, call.client_id.value());
        if let Ok(entry) = self.by_client_id.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.unlink(session, slot);
        self.slots[slot].deadline.clear();
        Some(call)
    }

    fn free(&mut self, slot: u32) {
        let entry = &mut self.slots[slot];
        entry.generation = entry.generation % GENERATION_MAX + 1;
        self.slots.bank_mut(slot).free.push_back(slot);
    }

    fn link(&mut self, session: &mut Session, slot: u32) {
        let older = session.newest_call.replace(slot);
        session.calls += 1;
        if let Some(older) = older {
            self.slots[older].newer = Some(slot);
        }
        let entry = &mut self.slots[slot];
        entry.older = older;
        entry.newer = None;
    }

    fn unlink(&mut self, session: &mut Session, slot: u32) {
        let entry = &mut self.slots[slot];
        let (older, newer) = (entry.older.take(), entry.newer.take());
        if let Some(older) = older {
            self.slots[older].newer = newer;
        }
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None => session.newest_call = older,
        }
        session.calls -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::session::{SessionId, Sessions, TokenId};
    use crate::routing::time::Millis;
    use crate::wire::scan::scan;
    use crate::wire::version::Version;

    fn seeds() -> ahash::RandomState {
        ahash::RandomState::with_seeds(1, 2, 3, 4)
    }

    fn client_id(raw: &str) -> ClientId {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{raw},"method":"m"}}"#);
        let envelope = scan(text.as_bytes()).unwrap();
        ClientId::read(&envelope.id.unwrap(), text.as_bytes())
    }

    fn call(session: SessionKey, raw: &str) -> Call {
        Call {
            session,
            client_id: client_id(raw),
            reply_to: ReplyTo {
                connection: 0,
                connection_generation: 0,
                exchange: 0,
                part: 0,
            },
            method: Method::Other,
            started: Micros(0),
            sent: false,
            token: None,
            about: About::Nothing,
        }
    }

    struct Table {
        sessions: Sessions,
        calls: Calls,
    }

    impl Table {
        fn new(max: usize) -> (Table, SessionKey, SessionKey) {
            let mut sessions = Sessions::new(9, seeds());
            let one = sessions.open(SessionId(1), TokenId::ANYONE, Version::NEWEST, Millis(0));
            let two = sessions.open(SessionId(2), TokenId::ANYONE, Version::NEWEST, Millis(0));
            let calls = Calls::new(0, max, seeds());
            (Table { sessions, calls }, one, two)
        }

        fn begin(&mut self, key: SessionKey, raw: &str) -> Result<UpstreamId, BeginError> {
            let session = self.sessions.get_mut(key).unwrap();
            self.calls.begin(session, call(key, raw))
        }

        fn end(&mut self, key: SessionKey, id: UpstreamId) -> Option<Call> {
            self.calls.end(self.sessions.get_mut(key).unwrap(), id)
        }
    }

    #[test]
    fn one_id_is_in_flight_once_a_session_by_value() {
        let (mut table, one, two) = Table::new(9);
        let first = table.begin(one, r#""a""#).unwrap();
        assert_eq!(
            table.begin(one, r#""\u0061""#),
            Err(BeginError::DuplicateId)
        );
        table.begin(two, r#""a""#).unwrap();
        table.begin(one, "1").unwrap();
        table.begin(one, r#""1""#).unwrap();
        table.begin(one, r#""\ud800""#).unwrap();
        table.begin(one, r#""\\ud800""#).unwrap();
        table.end(one, first).unwrap();
        let again = table.begin(one, r#""\u0061""#).unwrap();
        let call = table.end(one, again).unwrap();
        assert_eq!(call.client_id.raw(), br#""\u0061""#);
    }

    #[test]
    fn an_ended_calls_id_finds_nobody() {
        let (mut table, one, _) = Table::new(9);
        let id = table.begin(one, "1").unwrap();
        assert!(table.end(one, id).is_some());
        assert!(table.end(one, id).is_none());
        assert!(table.calls.get(id).is_none());
    }

    #[test]
    fn a_task_keeps_the_slot_of_its_call_until_it_ends() {
        let (mut table, one, _) = Table::new(1);
        let id = table.begin(one, "1").unwrap();
        let session = table.sessions.get_mut(one).unwrap();
        assert!(
            table
                .calls
                .end_as_task(session, id, TaskKey::FIRST)
                .is_some()
        );
        assert!(table.calls.is_empty() && table.calls.get(id).is_none());
        assert_eq!(table.calls.task(id), Some(TaskKey::FIRST));
        let next = table.begin(one, "1").unwrap();
        let session = table.sessions.get_mut(one).unwrap();
        assert!(
            table
                .calls
                .end_as_task(session, next, TaskKey::FIRST)
                .is_none(),
            "tasks are bounded like calls"
        );
        table.calls.end_task(id);
        table.calls.end_task(id);
        assert_eq!((table.calls.task(id), table.calls.tasks()), (None, 0));
        assert_eq!(table.calls.len(), 1);
    }

    #[test]
    fn a_slot_rests_until_thousands_of_others_were_used() {
        let (mut table, one, _) = Table::new(9);
        let first = table.begin(one, "1").unwrap();
        table.end(one, first);
        for _ in 1..SLOTS_BEFORE_REUSE {
            let id = table.begin(one, "1").unwrap();
            assert_ne!(id.slot(), first.slot());
            table.end(one, id);
        }
        let again = table.begin(one, "1").unwrap();
        assert_eq!(again.slot(), first.slot());
        assert_eq!(again.generation(), first.generation() + 1);
    }

    #[test]
    fn a_full_table_refuses_and_recovers() {
        let (mut table, one, _) = Table::new(2);
        let id = table.begin(one, "1").unwrap();
        table.begin(one, "2").unwrap();
        assert_eq!(table.begin(one, "3"), Err(BeginError::Full));
        table.end(one, id);
        assert!(table.begin(one, "3").is_ok());
    }

    #[test]
    fn the_list_of_a_sessions_calls_survives_any_order_of_ends() {
        let (mut table, one, two) = Table::new(99);
        let ids: Vec<_> = (0..9)
            .map(|n| table.begin(one, &n.to_string()).unwrap())
            .collect();
        table.begin(two, "1").unwrap();
        for place in [4, 0, 8, 3] {
            table.end(one, ids[place]).unwrap();
        }
        let mut left = 0;
        while let Some(id) = table.calls.newest_of(table.sessions.get(one).unwrap()) {
            table.end(one, id).unwrap();
            left += 1;
        }
        assert_eq!(left, 5);
        assert_eq!(table.sessions.get(one).unwrap().calls, 0);
        assert_eq!(table.calls.len(), 1);
    }
}
