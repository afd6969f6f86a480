//! The table of a shard's connections: where answers wait for their connection
//! to take them, and what wakes it. An answer names connection, generation and
//! exchange, so that it never reaches a later connection in the same place nor
//! a later request of the same connection.

use std::collections::BinaryHeap;
use std::task::{Context, Waker};

use slab::Slab;
use smallvec::SmallVec;

use crate::limits::{PROGRESS_SEGMENT_BYTES, TICK_MS};
use crate::routing::calls::ReplyTo;
use crate::routing::event_queue::EventQueue;
use crate::routing::session::StreamId;
use crate::routing::time::Millis;
use crate::routing::wheel::{Deadline, Wheel};

use super::response::Manner;

/// A connection's place in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionKey {
    place: u32,
    generation: u32,
}

impl From<ConnectionKey> for StreamId {
    fn from(key: ConnectionKey) -> StreamId {
        StreamId {
            connection: key.place,
            connection_generation: key.generation,
        }
    }
}

impl From<StreamId> for ConnectionKey {
    fn from(stream: StreamId) -> ConnectionKey {
        ConnectionKey {
            place: stream.connection,
            generation: stream.connection_generation,
        }
    }
}

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Between two requests, nothing read.
    Idle,
    /// Part of a head has been read.
    Head,
    /// A request is being served.
    Busy,
    /// It carries a GET stream.
    Stream,
}

/// In which form the answer of the request in progress is wanted.
#[derive(Debug)]
pub enum Form {
    /// No request waits for an answer.
    Idle,
    /// One JSON message: the answer is written as a whole response. With
    /// `streams` it turns into an SSE answer when progress comes before.
    Json { manner: Manner, streams: bool },
    /// Bare messages, framed by the connection: an array, or JSON whose head has
    /// gone out.
    Bare,
    /// Events of an SSE answer.
    Stream,
    /// The answer to an `initialize` that was forwarded: a whole response, because its
    /// head names the session.
    Opening { manner: Manner, sse: bool },
}

/// What has come for a connection.
#[derive(Debug)]
pub enum Delivery {
    /// A whole HTTP response, and its status.
    Response { status: u16, bytes: Vec<u8> },
    /// A JSON-RPC message for a place in the batch.
    Message { part: u16, message: Vec<u8> },
    /// The call was cancelled by its client; `error` is for clients that take
    /// only JSON.
    Cancelled { part: u16, error: Vec<u8> },
}

impl Delivery {
    fn bytes(&self) -> usize {
        match self {
            Delivery::Response { bytes, .. }
            | Delivery::Message { message: bytes, .. }
            | Delivery::Cancelled { error: bytes, .. } => bytes.len(),
        }
    }
}

/// What became of a progress message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Streamed {
    /// It waits for the connection. Of the same answer `own` older ones were dropped
    /// for it, and `elsewhere` of the largest backlogs.
    Taken { own: usize, elsewhere: usize },
    /// There is no room for it, not even in place of older ones.
    NoRoom,
    /// The answer is no stream.
    NoStream,
    /// The connection or its request is gone.
    Gone,
}

/// Why a connection was woken.
#[derive(Debug)]
pub enum Wake {
    /// These came.
    Deliveries(SmallVec<[Delivery; 1]>),
    /// These events of an SSE answer came.
    Events(Box<EventQueue>),
    /// Its deadline has passed.
    Deadline,
    /// It is to end at once: it holds the most of what is over the budget.
    Evicted,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    exchange: u32,
    form: Form,
    deliveries: SmallVec<[Delivery; 1]>,
    /// What has come for an SSE answer.
    events: Option<Box<EventQueue>>,
    deadline: Deadline,
    is_due: bool,
    phase: Phase,
    /// Bytes of its body that have been read.
    body_bytes: usize,
    /// Bytes of answers that its client has not taken.
    answer_bytes: usize,
    is_evicted: bool,
    waker: Option<Waker>,
}

impl Entry {
    /// Throws away what nobody will take. Returns the bytes of progress among it.
    fn forget(&mut self) -> usize {
        let progress = self.progress_bytes();
        self.deliveries.clear();
        self.events = None;
        progress
    }

    /// Bytes of progress that waits for the connection's task.
    fn progress_bytes(&self) -> usize {
        self.events
            .as_ref()
            .map_or(0, |events| events.progress_bytes())
    }

    /// Bytes of what waits for the connection's task.
    fn waiting_bytes(&self) -> usize {
        let deliveries: usize = self.deliveries.iter().map(Delivery::bytes).sum();
        deliveries + self.events.as_ref().map_or(0, |events| events.len())
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The connections of one shard.
#[derive(Debug)]
pub struct Connections {
    table: Slab<Entry>,
    wheel: Wheel<ConnectionKey>,
    next_generation: u32,
    is_draining: bool,
    /// The sums over all connections that are not evicted.
    body_bytes: usize,
    answer_bytes: usize,
    /// Of `answer_bytes`, progress that could still be dropped.
    progress_bytes: usize,
}

impl Connections {
    pub fn new(now: Millis) -> Connections {
        Connections {
            table: Slab::new(),
            wheel: Wheel::new(TICK_MS, now),
            next_generation: 0,
            is_draining: false,
            body_bytes: 0,
            answer_bytes: 0,
            progress_bytes: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Adds a connection.
    pub fn open(&mut self) -> ConnectionKey {
        self.next_generation = self.next_generation.wrapping_add(1);
        let generation = self.next_generation;
        let place = self.table.insert(Entry {
            generation,
            exchange: 0,
            form: Form::Idle,
            deliveries: SmallVec::new(),
            events: None,
            deadline: Deadline::default(),
            is_due: false,
            phase: Phase::Idle,
            body_bytes: 0,
            answer_bytes: 0,
            is_evicted: false,
            waker: None,
        });
        ConnectionKey {
            place: place as u32,
            generation,
        }
    }

    /// Removes a connection; what still comes for it finds nobody.
    pub fn close(&mut self, key: ConnectionKey) {
        if self.entry(key).is_some() {
            let entry = self.table.remove(key.place as usize);
            self.progress_bytes -= entry.progress_bytes();
            self.body_bytes -= entry.body_bytes;
            self.answer_bytes -= entry.answer_bytes;
        }
    }

    fn entry(&mut self, key: ConnectionKey) -> Option<&mut Entry> {
        self.table
            .get_mut(key.place as usize)
            .filter(|entry| entry.generation == key.generation)
    }

    /// A request begins: where its answers are to go.
    pub fn begin(&mut self, key: ConnectionKey, form: Form) -> ReplyTo {
        let (mut exchange, mut freed) = (0, 0);
        if let Some(entry) = self.entry(key) {
            entry.exchange = entry.exchange.wrapping_add(1);
            entry.form = form;
            freed = entry.forget();
            exchange = entry.exchange;
        }
        self.progress_bytes -= freed;
        ReplyTo {
            connection: key.place,
            connection_generation: key.generation,
            exchange,
            part: 0,
        }
    }

    /// The request is over: what still comes for it is nobody's.
    pub fn end(&mut self, key: ConnectionKey) {
        if let Some(entry) = self.entry(key) {
            entry.exchange = entry.exchange.wrapping_add(1);
            entry.form = Form::Idle;
            let freed = entry.forget();
            self.progress_bytes -= freed;
        }
    }

    /// Bytes that all connections hold.
    pub fn held_bytes(&self) -> usize {
        self.body_bytes + self.answer_bytes
    }

    /// Bytes of all bodies.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// The connection is about to hold `bytes` of its body. False, and nothing
    /// changes, if the bodies of all would be more than `bytes_max` then.
    pub fn try_hold_body(&mut self, key: ConnectionKey, bytes: usize, bytes_max: usize) -> bool {
        let all = self.body_bytes;
        let Some(entry) = self.entry(key).filter(|entry| !entry.is_evicted) else {
            return false;
        };
        let all = all - entry.body_bytes + bytes;
        let fits = all <= bytes_max;
        if fits {
            entry.body_bytes = bytes;
            self.body_bytes = all;
        }
        fits
    }

    /// The connection's body has been used.
    pub fn release_body(&mut self, key: ConnectionKey) {
        self.try_hold_body(key, 0, usize::MAX);
    }

    /// The client has taken the answers that were delivered; those that wait
    /// still count.
    pub fn release_answers(&mut self, key: ConnectionKey) {
        let Some(entry) = self.entry(key).filter(|entry| !entry.is_evicted) else {
            return;
        };
        let waiting = entry.waiting_bytes();
        let before = std::mem::replace(&mut entry.answer_bytes, waiting);
        self.answer_bytes = self.answer_bytes - before + waiting;
    }

    /// While answers take more than `bytes_max`, the connection with the largest
    /// backlog has to go. What it holds no longer counts: its task frees it on
    /// its next turn, and no other connection may pay for it until then. Returns
    /// how many went.
    pub fn evict_over(&mut self, bytes_max: usize) -> usize {
        let mut evicted = 0;
        while self.answer_bytes > bytes_max {
            let candidates = self.table.iter_mut().map(|(_, entry)| entry);
            let largest = candidates
                .filter(|entry| !entry.is_evicted)
                .max_by_key(|entry| entry.answer_bytes);
            let Some(entry) = largest else { break };
            self.answer_bytes -= std::mem::take(&mut entry.answer_bytes);
            self.body_bytes -= std::mem::take(&mut entry.body_bytes);
            entry.is_evicted = true;
            self.progress_bytes -= entry.forget();
            entry.wake();
            evicted += 1;
        }
        evicted
    }

    /// If answers take more than `bytes_max`, progress that waits is dropped until they
    /// take a sixteenth less, so that looks at all connections are rare: of the largest
    /// backlog the older half, or all of a small one, and so on. Returns how many
    /// messages went.
    pub fn drop_progress_over(&mut self, bytes_max: usize) -> usize {
        if self.answer_bytes <= bytes_max || self.progress_bytes == 0 {
            return 0;
        }
        let goal = bytes_max - bytes_max / 16;
        let backlogs = self.table.iter().map(|(at, it)| (it.progress_bytes(), at));
        let mut backlogs: BinaryHeap<(usize, usize)> = backlogs.filter(|it| it.0 > 0).collect();
        let mut dropped = 0;
        while self.answer_bytes > goal {
            let Some((progress, at)) = backlogs.pop() else {
                break;
            };
            let entry = &mut self.table[at];
            let Some(events) = &mut entry.events else {
                continue;
            };
            let before = events.len();
            let keep = match progress > PROGRESS_SEGMENT_BYTES {
                true => progress / 2,
                false => 0,
            };
            dropped += events.drop_progress(keep);
            if events.progress_bytes() > 0 {
                backlogs.push((events.progress_bytes(), at));
            }
            let freed = before - events.len();
            entry.answer_bytes -= freed;
            self.answer_bytes -= freed;
            self.progress_bytes -= freed;
        }
        dropped
    }

    /// The connection enters a phase of its life. False if it is to end instead:
    /// no request or stream is begun on a connection while draining.
    pub fn enter(&mut self, key: ConnectionKey, phase: Phase) -> bool {
        let is_draining = self.is_draining;
        match self.entry(key) {
            Some(entry) => {
                entry.phase = phase;
                !(is_draining && matches!(phase, Phase::Idle | Phase::Stream))
            }
            None => false,
        }
    }

    /// Idle connections and streams end now, the others after their answer.
    pub fn drain(&mut self) {
        self.is_draining = true;
        for (_, entry) in &mut self.table {
            if matches!(entry.phase, Phase::Idle | Phase::Stream) {
                entry.is_due = true;
                entry.wake();
            }
        }
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Whether a request is being served or a stream has not ended.
    pub fn has_busy(&self) -> bool {
        self.table
            .iter()
            .any(|(_, entry)| matches!(entry.phase, Phase::Busy | Phase::Stream))
    }

    /// The request that `to` names, if it still waits.
    fn waiting(&mut self, to: ReplyTo) -> Option<&mut Entry> {
        let key = ConnectionKey {
            place: to.connection,
            generation: to.connection_generation,
        };
        self.entry(key).filter(|entry| {
            let is_wanted = entry.exchange == to.exchange && !matches!(entry.form, Form::Idle);
            is_wanted && !entry.is_evicted
        })
    }

    /// Delivers what ends a call to the request that `to` names: `make` for JSON
    /// (it gets the form that is wanted), `event` for an SSE answer (it appends to
    /// the queue). False if the connection or its request is gone.
    pub fn deliver(
        &mut self,
        to: ReplyTo,
        make: impl FnOnce(&Form) -> Delivery,
        event: impl FnOnce(&mut EventQueue),
    ) -> bool {
        let is_draining = self.is_draining;
        let Some(entry) = self.waiting(to) else {
            return false;
        };
        let bytes = match &mut entry.form {
            Form::Stream => {
                let events = entry.events.get_or_insert_default();
                let before = events.len();
                event(events);
                events.len() - before
            }
            form => {
                if let Form::Json { manner, .. } | Form::Opening { manner, .. } = &mut *form
                    && is_draining
                {
                    manner.close();
                }
                let delivery = make(form);
                let bytes = delivery.bytes();
                entry.deliveries.push(delivery);
                bytes
            }
        };
        entry.answer_bytes += bytes;
        entry.wake();
        self.answer_bytes += bytes;
        true
    }

    /// Delivers progress to the request that `to` names; `write` appends the
    /// message, of about `bytes`. A JSON answer that may turns into an SSE answer
    /// by it. Where all answers would take more than `room`, older progress of
    /// whoever has the most goes for it; it goes itself where hardly any is left
    /// that has not been taken to be written.
    pub fn deliver_progress(
        &mut self,
        to: ReplyTo,
        room: usize,
        bytes: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Streamed {
        let Some(entry) = self.waiting(to) else {
            return Streamed::Gone;
        };
        match entry.form {
            Form::Stream => {}
            // Once the answer is there nothing comes before it any more.
            Form::Json { streams: true, .. } if entry.deliveries.is_empty() => {}
            _ => return Streamed::NoStream,
        }
        let over = (self.answer_bytes + bytes).saturating_sub(room);
        // A look at all connections has to be worth it.
        if over > 0 && self.progress_bytes < over.max(room / 256) {
            return Streamed::NoRoom;
        }
        let elsewhere = self.drop_progress_over(room.saturating_sub(bytes));
        let Some(entry) = self.waiting(to) else {
            return Streamed::Gone;
        };
        entry.form = Form::Stream;
        let events = entry.events.get_or_insert_default();
        let (all, progress) = (events.len(), events.progress_bytes());
        let own = events.progress(write);
        let (all_now, progress_now) = (events.len(), events.progress_bytes());
        entry.answer_bytes = entry.answer_bytes + all_now - all;
        entry.wake();
        self.answer_bytes = self.answer_bytes + all_now - all;
        self.progress_bytes = self.progress_bytes + progress_now - progress;
        Streamed::Taken { own, elsewhere }
    }

    /// Delivers what must not be lost before the answer to the request that `to` names:
    /// a request of the server's. A JSON answer that may turns into an SSE answer.
    /// False if the answer is no stream, or gone.
    pub fn deliver_request(&mut self, to: ReplyTo, message: &[u8]) -> bool {
        let Some(entry) = self.waiting(to) else {
            return false;
        };
        match entry.form {
            Form::Stream => {}
            Form::Json { streams: true, .. } if entry.deliveries.is_empty() => {}
            _ => return false,
        }
        entry.form = Form::Stream;
        let events = entry.events.get_or_insert_default();
        let before = events.len();
        events.message(message);
        let bytes = events.len() - before;
        entry.answer_bytes += bytes;
        entry.wake();
        self.answer_bytes += bytes;
        true
    }

    /// The form of the answer in progress changes, because its head goes out.
    pub fn set_form(&mut self, key: ConnectionKey, form: Form) {
        if let Some(entry) = self.entry(key) {
            entry.form = form;
        }
    }

    /// Wakes the task of a connection, which looks for itself what there is to do.
    pub fn wake(&mut self, key: ConnectionKey) {
        if let Some(entry) = self.entry(key) {
            entry.wake();
        }
    }

    /// What has come for the connection; else its task is woken when something does.
    pub fn poll(&mut self, key: ConnectionKey, cx: &Context<'_>) -> Option<Wake> {
        let Some(entry) = self.entry(key) else {
            return Some(Wake::Evicted);
        };
        if entry.is_evicted {
            return Some(Wake::Evicted);
        }
        if !entry.deliveries.is_empty() {
            return Some(Wake::Deliveries(std::mem::take(&mut entry.deliveries)));
        }
        if let Some(events) = entry.events.take() {
            self.progress_bytes -= events.progress_bytes();
            return Some(Wake::Events(events));
        }
        match &mut entry.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
        std::mem::take(&mut entry.is_due).then_some(Wake::Deadline)
    }

    /// Whether the connection's deadline has passed; else its task is woken
    /// when it does. What has come for it stays.
    pub fn poll_deadline(&mut self, key: ConnectionKey, cx: &Context<'_>) -> bool {
        let Some(entry) = self.entry(key) else {
            return true;
        };
        entry.waker = Some(cx.waker().clone());
        std::mem::take(&mut entry.is_due) || entry.is_evicted
    }

    /// Sets the connection's deadline; [`Millis::NEVER`] takes it away.
    pub fn set_deadline(&mut self, key: ConnectionKey, due: Millis) {
        let Connections { table, wheel, .. } = self;
        if let Some(entry) = table.get_mut(key.place as usize)
            && entry.generation == key.generation
        {
            entry.is_due = false;
            wheel.set(&mut entry.deadline, key, due);
        }
    }

    /// Time passes: connections that are due are woken.
    pub fn tick(&mut self, now: Millis) {
        for fired in self.wheel.fired(now) {
            let key = fired.0;
            let Some(entry) = self.table.get_mut(key.place as usize) else {
                continue;
            };
            if entry.generation != key.generation
                || !self.wheel.settle(&mut entry.deadline, fired, now)
            {
                continue;
            }
            entry.is_due = true;
            entry.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(_: &Form) -> Delivery {
        Delivery::Message {
            part: 0,
            message: Vec::new(),
        }
    }

    fn wake(connections: &mut Connections, key: ConnectionKey) -> Option<Wake> {
        connections.poll(key, &Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_reaches_only_the_request_that_it_names() {
        let mut connections = Connections::new(Millis(0));
        let key = connections.open();
        let first = connections.begin(key, Form::Bare);
        connections.end(key);
        assert!(
            !connections.deliver(first, message, EventQueue::end),
            "the request is over"
        );
        let second = connections.begin(key, Form::Bare);
        assert!(
            !connections.deliver(first, message, EventQueue::end),
            "a later request"
        );
        assert!(wake(&mut connections, key).is_none());
        assert!(connections.deliver(second, message, EventQueue::end));
        assert!(matches!(
            wake(&mut connections, key),
            Some(Wake::Deliveries(_))
        ));
    }

    #[test]
    fn a_later_connection_in_the_same_place_gets_nothing_of_the_former() {
        let mut connections = Connections::new(Millis(0));
        let key = connections.open();
        let to = connections.begin(key, Form::Bare);
        connections.close(key);
        let other = connections.open();
        connections.begin(other, Form::Bare);
        assert_eq!(other.place, key.place);
        assert!(!connections.deliver(to, message, EventQueue::end));
        assert!(wake(&mut connections, other).is_none());
    }

    #[test]
    fn over_the_budget_the_largest_backlog_goes_and_nobody_else() {
        let mut connections = Connections::new(Millis(0));
        let keys: Vec<_> = (0..3).map(|_| connections.open()).collect();
        for (key, bytes) in keys.iter().zip([10, 30, 20]) {
            let to = connections.begin(*key, Form::Bare);
            connections.deliver(
                to,
                |_| Delivery::Response {
                    status: 200,
                    bytes: vec![0; bytes],
                },
                EventQueue::end,
            );
        }
        assert_eq!(connections.evict_over(60), 0);
        assert_eq!(connections.evict_over(35), 1);
        assert_eq!(connections.evict_over(35), 0, "one pays once");
        let evicted: Vec<_> = keys
            .iter()
            .map(|key| matches!(wake(&mut connections, *key), Some(Wake::Evicted)))
            .collect();
        assert_eq!(evicted, [false, true, false]);
        keys.iter().for_each(|key| connections.close(*key));
        assert_eq!(connections.held_bytes(), 0);
    }

    fn json(streams: bool) -> Form {
        Form::Json {
            manner: Manner::unread(),
            streams,
        }
    }

    fn reply(connections: &mut Connections, to: ReplyTo) -> bool {
        let response = |_: &Form| Delivery::Response {
            status: 200,
            bytes: b"reply".to_vec(),
        };
        connections.deliver(to, response, |events| {
            events.reply(|out| out.extend_from_slice(b"reply"));
        })
    }

    fn progress(connections: &mut Connections, to: ReplyTo) -> Streamed {
        connections.deliver_progress(to, 1 << 20, 40, |out| {
            out.extend_from_slice(b"progress");
        })
    }

    #[test]
    fn an_answer_turns_into_a_stream_at_its_first_progress_and_keeps_the_order() {
        let mut connections = Connections::new(Millis(0));
        let key = connections.open();
        let to = connections.begin(key, json(true));
        let taken = Streamed::Taken {
            own: 0,
            elsewhere: 0,
        };
        assert_eq!(progress(&mut connections, to), taken);
        assert_eq!(progress(&mut connections, to), taken);
        assert!(reply(&mut connections, to));
        match wake(&mut connections, key) {
            Some(Wake::Events(mut events)) => {
                let mut text = String::new();
                while let Some((bytes, start)) = events.next_part() {
                    text += std::str::from_utf8(&bytes[start..]).unwrap();
                }
                assert_eq!(text.matches("progress").count(), 2);
                assert!(text.ends_with("data: reply\n\n"), "{text}");
                assert_eq!(events.ended(), 1);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn progress_without_room_takes_that_of_older_progress_of_the_largest_backlog() {
        let mut connections = Connections::new(Millis(0));
        let (slow, quick) = (connections.open(), connections.open());
        let to_slow = connections.begin(slow, Form::Stream);
        let message = vec![b'x'; 1_000];
        let frame = message.len() + "event: message\ndata: \n\n".len();
        let room = 1_000 * frame;
        let deliver = |connections: &mut Connections, to| {
            connections.deliver_progress(to, room, frame, |out| out.extend_from_slice(&message))
        };
        let none = Streamed::Taken {
            own: 0,
            elsewhere: 0,
        };
        for _ in 0..1_000 {
            assert_eq!(deliver(&mut connections, to_slow), none);
        }
        let to_quick = connections.begin(quick, Form::Stream);
        let half = Streamed::Taken {
            own: 0,
            elsewhere: 500,
        };
        assert_eq!(deliver(&mut connections, to_quick), half);
        assert_eq!(deliver(&mut connections, to_quick), none);
        assert!(matches!(
            wake(&mut connections, quick),
            Some(Wake::Events(_))
        ));
        assert!(matches!(
            wake(&mut connections, slow),
            Some(Wake::Events(_))
        ));
        // What is being written can no longer be dropped.
        let to = connections.begin(quick, Form::Stream);
        let little = connections.deliver_progress(to, 400 * frame, frame, |_| {});
        assert_eq!(little, Streamed::NoRoom);
        // Refused progress does not make a stream of an answer.
        let other = connections.open();
        let to = connections.begin(other, json(true));
        assert_eq!(
            connections.deliver_progress(to, 0, frame, |_| {}),
            Streamed::NoRoom
        );
        assert!(reply(&mut connections, to));
        assert!(matches!(
            wake(&mut connections, other),
            Some(Wake::Deliveries(_))
        ));
        connections.close(other);
        for key in [slow, quick] {
            connections.end(key);
            connections.release_answers(key);
        }
        assert_eq!(
            (connections.held_bytes(), connections.progress_bytes),
            (0, 0)
        );
    }

    #[test]
    fn many_small_backlogs_make_room_for_many_messages_at_once() {
        let mut connections = Connections::new(Millis(0));
        let room = 160_000;
        let deliver = |connections: &mut Connections, to| {
            connections.deliver_progress(to, room, 1_000, |out| out.resize(out.len() + 1_000, b'x'))
        };
        let keys: Vec<_> = (0..200).map(|_| connections.open()).collect();
        let mut dropped = 0;
        for key in &keys {
            let to = connections.begin(*key, Form::Stream);
            match deliver(&mut connections, to) {
                Streamed::Taken { own: 0, elsewhere } => {
                    assert!(elsewhere == 0 || elsewhere >= 9, "{elsewhere}");
                    dropped += elsewhere;
                }
                other => panic!("{other:?}"),
            }
            assert!(connections.held_bytes() <= room + 1_100);
        }
        assert!((40..=60).contains(&dropped), "{dropped}");
    }

    #[test]
    fn progress_of_who_is_gone_is_no_longer_counted() {
        let mut connections = Connections::new(Millis(0));
        let deliver = |connections: &mut Connections| {
            let key = connections.open();
            let to = connections.begin(key, Form::Stream);
            let write = |out: &mut Vec<u8>| out.extend_from_slice(b"progress");
            connections.deliver_progress(to, 1_000, 8, write);
            assert!(connections.progress_bytes > 0);
            key
        };
        assert_eq!((deliver(&mut connections), connections.evict_over(0)).1, 1);
        assert_eq!(connections.progress_bytes, 0);
        let key = deliver(&mut connections);
        connections.close(key);
        assert_eq!(connections.progress_bytes, 0);
        let key = deliver(&mut connections);
        connections.begin(key, Form::Stream);
        assert_eq!(connections.progress_bytes, 0);
    }

    #[test]
    fn progress_is_refused_where_it_cannot_stand_before_the_reply() {
        let mut connections = Connections::new(Millis(0));
        let key = connections.open();
        for form in [json(false), Form::Bare] {
            let to = connections.begin(key, form);
            assert_eq!(progress(&mut connections, to), Streamed::NoStream);
        }
        let to = connections.begin(key, json(true));
        assert!(reply(&mut connections, to));
        assert_eq!(progress(&mut connections, to), Streamed::NoStream);
        connections.end(key);
        assert_eq!(progress(&mut connections, to), Streamed::Gone);
    }

    #[test]
    fn over_the_budget_progress_goes_before_anybody_is_evicted() {
        let mut connections = Connections::new(Millis(0));
        let (slow, other) = (connections.open(), connections.open());
        let to = connections.begin(slow, Form::Stream);
        for _ in 0..100 {
            progress(&mut connections, to);
        }
        reply(&mut connections, to);
        let to = connections.begin(other, Form::Stream);
        reply(&mut connections, to);
        let replies = 2 * "event: message\ndata: reply\n\n".len();
        assert_eq!(connections.drop_progress_over(replies), 100);
        assert_eq!(connections.held_bytes(), replies);
        assert_eq!(connections.evict_over(replies), 0);
        match wake(&mut connections, slow) {
            Some(Wake::Events(events)) => assert_eq!(events.ended(), 1),
            other => panic!("{other:?}"),
        }
        connections.release_answers(slow);
        connections.release_answers(other);
        connections.end(other);
        connections.release_answers(other);
        assert_eq!(connections.held_bytes(), 0);
    }

    #[test]
    fn a_body_without_room_changes_nothing_and_never_evicts() {
        let mut connections = Connections::new(Millis(0));
        let (one, two) = (connections.open(), connections.open());
        assert!(connections.try_hold_body(one, 60, 100));
        assert!(!connections.try_hold_body(two, 50, 100));
        assert!(connections.try_hold_body(one, 100, 100));
        assert_eq!(connections.evict_over(0), 0);
        connections.release_body(one);
        assert!(connections.try_hold_body(two, 50, 100));
        assert_eq!(connections.held_bytes(), 50);
    }

    #[test]
    fn draining_ends_idle_connections_and_lets_busy_ones_finish() {
        let mut connections = Connections::new(Millis(0));
        let (idle, busy) = (connections.open(), connections.open());
        assert!(connections.enter(idle, Phase::Idle));
        assert!(connections.enter(busy, Phase::Busy));
        connections.drain();
        assert!(matches!(wake(&mut connections, idle), Some(Wake::Deadline)));
        assert!(wake(&mut connections, busy).is_none());
        assert!(connections.has_busy());
        assert!(!connections.enter(busy, Phase::Idle));
    }

    #[test]
    fn a_deadline_wakes_once_and_a_new_one_forgets_the_old() {
        let mut connections = Connections::new(Millis(0));
        let key = connections.open();
        connections.set_deadline(key, Millis(100));
        connections.tick(Millis(1_000));
        assert!(matches!(wake(&mut connections, key), Some(Wake::Deadline)));
        assert!(wake(&mut connections, key).is_none());
        connections.set_deadline(key, Millis(1_100));
        connections.tick(Millis(2_000));
        connections.set_deadline(key, Millis(9_000));
        assert!(wake(&mut connections, key).is_none());
    }
}
