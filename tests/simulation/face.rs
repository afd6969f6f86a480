//! What clients' connections do, as `http::exchange` and `http::stream` do it: they
//! wait until they are woken, take what has come, write it, which takes its time
//! or fails, and go on. And what the client makes of what it gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake as Wakes, Waker};

use ringway::http::connections::{ConnectionKey, Delivery, Form, Phase, Wake};
use ringway::routing::session::SessionKey;
use ringway::routing::stream::Work;
use ringway::routing::time::Millis;
use ringway::routing::upstream_id::UpstreamId;
use ringway::wire::reply::{self, Reason};
use serde_json::Value;

use crate::checks::{Answer, Ask, How, is_of_session, parsed};
use crate::text::{Nonce, events};
use crate::world::World;

/// Whether a connection's task has been woken: one that is not looks at nothing,
/// so a wake-up that is lost shows.
#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wakes for Flag {
    fn wake(self: Arc<Self>) {
        self.set();
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) shard: usize,
    pub(crate) key: ConnectionKey,
    pub(crate) flag: Arc<Flag>,
    waker: Waker,
    pub(crate) carries: Carries,
}

impl Connection {
    /// Bytes of the answers of a batch that wait for further ones.
    pub(crate) fn gathered_bytes(&self) -> usize {
        match &self.carries {
            Carries::Call(exchange) => exchange.parts.iter().map(Vec::len).sum(),
            _ => 0,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Carries {
    Nothing,
    Call(Exchange),
    Stream(GetStream),
    Closed,
}

/// In what form the answer goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Json,
    /// JSON whose head has gone out.
    Kept,
    /// The answers of a batch, as one array of JSON.
    Array,
    Sse,
}

/// The calls whose answers a connection waits for.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// One, or those of a batch.
    pub(crate) calls: Vec<(usize, UpstreamId)>,
    /// How many of them have not ended.
    pub(crate) missing: usize,
    pub(crate) takes_sse: bool,
    pub(crate) may_be_sse: bool,
    pub(crate) may_stream: bool,
    pub(crate) shape: Shape,
    pub(crate) writing: Option<Vec<u8>>,
    /// The answer ends with what is being written.
    pub(crate) is_last: bool,
    /// What the client has got of JSON.
    pub(crate) body: Vec<u8>,
    /// The answers of a batch so far.
    pub(crate) parts: Vec<Vec<u8>>,
}

/// A GET stream.
#[derive(Debug)]
pub(crate) struct GetStream {
    pub(crate) client: usize,
    pub(crate) session: SessionKey,
    /// What is being written, and when it was taken; a keep-alive was never.
    pub(crate) writing: Option<(Vec<u8>, Option<u64>)>,
    /// It is over, and its client has only so much time to take the rest.
    pub(crate) is_limited: bool,
    pub(crate) is_ending: bool,
}

/// The part of an array that a delivery is.
fn part(delivery: Delivery) -> Vec<u8> {
    match delivery {
        Delivery::Message { message, .. } => message,
        Delivery::Cancelled { error, .. } => error,
        Delivery::Response { .. } => panic!("check 2: a whole response for a batch"),
    }
}

impl World {
    /// A connection of the shard that is free, or a new one.
    pub(crate) fn free_connection(&mut self, shard: usize) -> usize {
        let is_free = |connection: &Connection| {
            connection.shard == shard && matches!(connection.carries, Carries::Nothing)
        };
        let free = self.connections.iter().position(is_free);
        if let Some(free) = free.filter(|_| self.dice.chance(70)) {
            return free;
        }
        let flag = Arc::new(Flag::default());
        let connection = Connection {
            shard,
            key: self.shards[shard].connections.open(),
            waker: flag.clone().into(),
            flag,
            carries: Carries::Nothing,
        };
        let closed = |connection: &Connection| matches!(connection.carries, Carries::Closed);
        match self.connections.iter().position(closed) {
            Some(place) => {
                self.connections[place] = connection;
                place
            }
            None => {
                self.connections.push(connection);
                self.connections.len() - 1
            }
        }
    }

    fn deadline_in(&mut self, connection: usize, milliseconds: u64) {
        let due = self.now_ms().after(milliseconds);
        let Connection { shard, key, .. } = self.connections[connection];
        self.shards[shard].connections.set_deadline(key, due);
    }

    /// It is to be kept alive while nothing comes; it looks what there is.
    pub(crate) fn keep_alive(&mut self, connection: usize) {
        self.deadline_in(connection, self.settings.keep_alive_ms);
        self.connections[connection].flag.set();
    }

    /// The request is over; another one may come.
    pub(crate) fn end_exchange(&mut self, connection: usize) {
        let Connection { shard, key, .. } = self.connections[connection];
        let connections = &mut self.shards[shard].connections;
        connections.end(key);
        connections.release_answers(key);
        connections.set_deadline(key, Millis::NEVER);
        self.connections[connection].carries = match connections.enter(key, Phase::Idle) {
            true => Carries::Nothing,
            false => {
                connections.close(key);
                Carries::Closed
            }
        };
    }

    /// A step of one connection. True if something happened.
    pub(crate) fn go_on(&mut self, connection: usize) -> bool {
        let place = self.connections[connection].shard;
        self.shards[place].now = self.now;
        let happened = match &self.connections[connection].carries {
            Carries::Nothing | Carries::Closed => false,
            Carries::Call(exchange) if exchange.writing.is_some() => self.write_goes_on(connection),
            Carries::Call(_) => self.call_goes_on(connection),
            Carries::Stream(stream) if stream.writing.is_some() => {
                self.stream_write_goes_on(connection)
            }
            Carries::Stream(_) => self.stream_goes_on(connection),
        };
        self.hear_news();
        happened
    }

    fn poll(&mut self, connection: usize) -> Option<Wake> {
        let Connection {
            shard, key, waker, ..
        } = &self.connections[connection];
        let cx = Context::from_waker(waker);
        self.shards[*shard].connections.poll(*key, &cx)
    }

    fn is_due(&mut self, connection: usize) -> bool {
        let Connection {
            shard, key, waker, ..
        } = &self.connections[connection];
        let cx = Context::from_waker(waker);
        self.shards[*shard].connections.poll_deadline(*key, &cx)
    }

    fn exchange(&mut self, connection: usize) -> &mut Exchange {
        match &mut self.connections[connection].carries {
            Carries::Call(exchange) => exchange,
            other => panic!("no call: {other:?}"),
        }
    }

    fn write(&mut self, connection: usize, bytes: Vec<u8>, is_last: bool) {
        let exchange = self.exchange(connection);
        exchange.writing = Some(bytes);
        exchange.is_last = is_last;
        self.deadline_in(connection, self.settings.write_timeout_ms);
    }

    fn call_goes_on(&mut self, connection: usize) -> bool {
        if !self.connections[connection].flag.take() {
            return false;
        }
        let Some(wake) = self.poll(connection) else {
            return false;
        };
        let Connection { shard, key, .. } = self.connections[connection];
        let exchange = self.exchange(connection);
        match wake {
            Wake::Evicted => self.breaks(connection),
            Wake::Deadline => match exchange.shape {
                Shape::Json if exchange.may_stream && exchange.may_be_sse => {
                    exchange.shape = Shape::Sse;
                    self.shards[shard].connections.set_form(key, Form::Stream);
                    self.write(connection, b": \n".to_vec(), false);
                }
                Shape::Json | Shape::Kept => {
                    exchange.shape = Shape::Kept;
                    self.shards[shard].connections.set_form(key, Form::Bare);
                    self.write(connection, b" ".to_vec(), false);
                }
                Shape::Array => self.write(connection, b" ".to_vec(), false),
                Shape::Sse => self.write(connection, b": \n".to_vec(), false),
            },
            Wake::Events(mut events) => {
                let is_open = matches!(exchange.shape, Shape::Kept | Shape::Array);
                assert!(!is_open, "check 3: events behind JSON");
                exchange.shape = Shape::Sse;
                assert!(
                    events.ended() <= exchange.missing,
                    "check 2: a call ends once"
                );
                exchange.missing -= events.ended();
                let is_last = exchange.missing == 0;
                let mut bytes = Vec::new();
                while let Some((part, start)) = events.next_part() {
                    bytes.extend_from_slice(&part[start..]);
                }
                self.write(connection, bytes, is_last);
            }
            Wake::Deliveries(deliveries) if exchange.shape == Shape::Array => {
                assert!(
                    deliveries.len() <= exchange.missing,
                    "check 2: a call ends once"
                );
                exchange.missing -= deliveries.len();
                exchange.parts.extend(deliveries.into_iter().map(part));
                match exchange.missing {
                    0 => {
                        let parts = exchange.parts.join(&b","[..]);
                        self.write(connection, [b"[", &parts[..], b"]"].concat(), true);
                    }
                    _ => self.keep_alive(connection),
                }
            }
            Wake::Deliveries(deliveries) => {
                assert_eq!(deliveries.len(), 1, "check 2: one answer");
                assert_ne!(exchange.shape, Shape::Sse, "check 2: JSON behind events");
                let delivery = deliveries.into_iter().next().expect("one answer");
                let bytes = match delivery {
                    Delivery::Response { bytes, .. } => {
                        assert_eq!(exchange.shape, Shape::Json);
                        bytes
                    }
                    Delivery::Message { message, .. } => message,
                    Delivery::Cancelled { .. }
                        if exchange.takes_sse && exchange.shape == Shape::Json =>
                    {
                        exchange.shape = Shape::Sse;
                        Vec::new()
                    }
                    Delivery::Cancelled { error, .. } => error,
                };
                self.write(connection, bytes, true);
            }
        }
        true
    }

    /// Whether a write is done: `None` if not yet.
    fn outcome_of_write(&mut self, connection: usize) -> Option<bool> {
        if self.is_calm {
            return Some(true);
        }
        if self.is_due(connection) || self.dice.chance(self.settings.faults.write_fails) {
            return Some(false);
        }
        self.dice.chance(80).then_some(true)
    }

    fn write_goes_on(&mut self, connection: usize) -> bool {
        match self.outcome_of_write(connection) {
            None => return false,
            Some(false) => {
                self.record.tally.count("writes that fail");
                self.breaks(connection);
                return true;
            }
            Some(true) => {}
        }
        let exchange = self.exchange(connection);
        let bytes = exchange.writing.take().expect("it writes");
        let (is_last, shape) = (exchange.is_last, exchange.shape);
        let calls: Vec<_> = exchange.calls.iter().map(|(call, _)| *call).collect();
        match shape {
            Shape::Sse => {
                for message in events(&bytes) {
                    self.gets_event(&calls, message);
                }
            }
            Shape::Json | Shape::Kept | Shape::Array => exchange.body.extend_from_slice(&bytes),
        }
        let Connection { shard, key, .. } = self.connections[connection];
        if !is_last {
            // An array is counted until all of it is taken.
            if shape == Shape::Sse {
                self.shards[shard].connections.release_answers(key);
            }
            self.keep_alive(connection);
            return true;
        }
        let exchange = self.exchange(connection);
        let body = std::mem::take(&mut exchange.body);
        let parts = std::mem::take(&mut exchange.parts);
        match shape {
            Shape::Sse => {
                for call in calls {
                    if self.record.calls[call].answer == Answer::Waiting {
                        self.record.ends_silently(call);
                    }
                }
            }
            Shape::Json | Shape::Kept => self.gets_reply(calls[0], body.trim_ascii()),
            Shape::Array => {
                let array = parsed(&body);
                assert_eq!(array.as_array().map(Vec::len), Some(calls.len()));
                for part in parts {
                    let call = self.whose(&calls, &part);
                    self.gets_reply(call, &part);
                }
            }
        }
        self.end_exchange(connection);
        true
    }

    /// Which of the calls of one POST a message is for.
    fn whose(&self, calls: &[usize], message: &[u8]) -> usize {
        if let [call] = calls {
            return *call;
        }
        let value = parsed(message);
        let is_for = |call: &&usize| match value.get("id") {
            Some(id) => parsed(self.record.calls[**call].id.as_bytes()) == *id,
            None => Nonce::all(message).iter().any(|nonce| nonce.call == **call),
        };
        *calls
            .iter()
            .find(is_for)
            .expect("check 1: a call of the batch")
    }

    /// An event on the stream of these calls.
    fn gets_event(&mut self, calls: &[usize], message: &[u8]) {
        let number = self.whose(calls, message);
        let value = parsed(message);
        if value.get("method").is_none() {
            return self.gets_reply(number, message);
        }
        let call = &mut self.record.calls[number];
        is_of_session(message, call.nonce.session);
        if let Ask::TaskResult(Some(of)) = call.ask {
            assert_eq!(call.answer, Answer::Waiting, "check 3: news after the end");
            let is_own = call.token.is_some() && call.has_said(message);
            if !is_own {
                let maker = &self.record.calls[of];
                assert!(maker.has_said(message), "check 8: not said: {value}");
                self.record.tally.count("task news on answers");
                return;
            }
        }
        self.record.calls[number].gets_progress(message);
    }

    fn gets_reply(&mut self, number: usize, message: &[u8]) {
        self.record.gets_reply(number, message);
        let call = &self.record.calls[number];
        let raw = Some(call.id.as_bytes());
        match call.ended {
            Some(How::Failed(reason)) => {
                assert_eq!(message, reply::failure(raw, reason));
                assert!(reason != Reason::Cancelled || call.is_cancelled);
            }
            Some(How::Own(_)) => self.gets_own_answer(number, &parsed(message)),
            Some(How::Server) => {}
            None => panic!("check 2: a reply to a call that has not ended"),
        }
    }

    /// Ringway's answer to a call that had to wait for the server.
    fn gets_own_answer(&mut self, number: usize, value: &Value) {
        let call = &self.record.calls[number];
        assert_eq!(value["id"], parsed(call.id.as_bytes()));
        match &call.ask {
            Ask::Subscribe(_) => {
                let is_refusal = value["error"]["code"] == -32002
                    || value["error"]["code"] == reply::METHOD_NOT_FOUND;
                assert!(is_refusal || value["result"] == Value::Object(Default::default()));
            }
            Ask::MakeTask => {
                assert!(self.settings.forgets_tasks() || self.settings.limits.calls_max < 10);
                self.record.tally.count("tasks over the limit");
            }
            Ask::TaskList(_) => self.gets_list(number, value),
            other => panic!("{other:?} is answered with {value}"),
        }
    }

    /// Check 1: the session's own tasks, all of them, and nothing else.
    fn gets_list(&mut self, number: usize, value: &Value) {
        let call = &self.record.calls[number];
        let forgets = self.settings.forgets_tasks();
        let own = |(of, _): &&(usize, String)| call.owned_then.contains(of);
        let expected: Vec<Value> = call
            .listed
            .tasks
            .iter()
            .filter(own)
            .map(|(_, text)| parsed(text.as_bytes()))
            .collect();
        let tasks = value["result"]["tasks"].as_array().expect("a list");
        if forgets {
            assert!(tasks.iter().all(|task| expected.contains(task)));
        } else {
            assert_eq!(*tasks, expected, "check 1: its own tasks");
        }
        let members = value["result"].as_object().expect("an object").keys();
        let is_known = |name: &String| name == "tasks" || name == "nextCursor";
        assert!(
            members.into_iter().all(is_known),
            "check 1: more than its own"
        );
        let shown = value["result"].get("nextCursor").and_then(Value::as_str);
        assert_eq!(shown.is_some(), call.listed.cursor.is_some());
        let client = &mut self.clients[call.nonce.session];
        if let (Some(shown), Some(of_server)) = (shown, &call.listed.cursor) {
            assert_ne!(shown, of_server, "check 1: a cursor of the server's");
            if client.is_open && client.deaths == call.deaths_then {
                client.cursors.push((shown.to_owned(), of_server.clone()));
            }
        }
        self.record.tally.count("lists of tasks");
    }

    /// A connection breaks, or its client is gone.
    pub(crate) fn breaks(&mut self, connection: usize) {
        self.trace(|| format!("connection {connection} breaks"));
        let Connection { shard, key, .. } = self.connections[connection];
        let now = self.now;
        self.shards[shard].now = now;
        let carries = std::mem::replace(&mut self.connections[connection].carries, Carries::Closed);
        match carries {
            Carries::Call(exchange) => {
                for (call, id) in exchange.calls {
                    let call = &mut self.record.calls[call];
                    if call.answer == Answer::Waiting {
                        call.answer = Answer::Gone;
                    }
                    self.shards[shard].client_gone(id);
                }
                self.record.tally.count("connections of calls that break");
                self.shards[shard].connections.end(key);
                self.shards[shard].connections.close(key);
            }
            Carries::Stream(stream) => {
                if let Some((bytes, Some(taken))) = &stream.writing {
                    let moment = self.moments.next();
                    self.clients[stream.client].is_not_told(&events(bytes), *taken, moment);
                    self.record.tally.count("stream writes that fail");
                }
                self.stream_is_over(connection, stream.client, stream.session);
            }
            Carries::Nothing => self.shards[shard].connections.close(key),
            Carries::Closed => {}
        }
        self.hear_news();
    }

    /// As the stream's task is dropped: the place is closed, the session told.
    fn stream_is_over(&mut self, connection: usize, client: usize, session: SessionKey) {
        let Connection { shard, key, .. } = self.connections[connection];
        let now = self.now.millis();
        let shard = &mut self.shards[shard];
        shard.connections.close(key);
        let mut acts = Vec::new();
        shard.state.stream_gone(session, key.into(), now, &mut acts);
        shard.perform(acts);
        self.connections[connection].carries = Carries::Closed;
        let client = &mut self.clients[client];
        if client.stream == Some(connection) {
            client.stream = None;
            client.last_heard_ms = now.0;
        }
    }

    fn stream(&mut self, connection: usize) -> &mut GetStream {
        match &mut self.connections[connection].carries {
            Carries::Stream(stream) => stream,
            other => panic!("no stream: {other:?}"),
        }
    }

    fn stream_goes_on(&mut self, connection: usize) -> bool {
        if !self.connections[connection].flag.take() {
            return false;
        }
        let wake = self.poll(connection);
        let Connection { shard, key, .. } = self.connections[connection];
        let GetStream {
            client, session, ..
        } = *self.stream(connection);
        let mut bytes = Vec::new();
        let state = &mut self.shards[shard].state;
        let work = state.stream_work(session, key.into(), &mut bytes);
        let is_draining = self.shards[shard].connections.is_draining();
        match (work, wake) {
            (_, Some(Wake::Evicted)) => self.breaks(connection),
            (Work::Write(count), _) => {
                let moment = self.moments.next();
                self.trace(|| {
                    format!(
                        "stream {connection} of session {client} takes at {moment}: {}",
                        String::from_utf8_lossy(&bytes)
                    )
                });
                let messages = events(&bytes);
                assert_eq!(messages.len(), count);
                let owner = &mut self.clients[client];
                assert!(owner.is_open, "check 1: a stream outlives its session");
                assert_eq!(
                    owner.stream,
                    Some(connection),
                    "check 5: session {client} is told on a stream that was replaced"
                );
                owner.takes(&messages, moment, &self.record);
                self.stream(connection).writing = Some((bytes, Some(moment)));
            }
            (Work::End, _) => self.stream_ends(connection),
            (Work::Rest, _) if is_draining => self.stream_ends(connection),
            (Work::Rest, Some(Wake::Deadline)) => {
                self.stream(connection).writing = Some((b": \n".to_vec(), None));
            }
            (Work::Rest, _) => return false,
        }
        // A write waits for nothing but itself, and for its end.
        self.connections[connection].flag.set();
        true
    }

    fn stream_ends(&mut self, connection: usize) {
        let stream = self.stream(connection);
        stream.is_ending = true;
        stream.writing = Some((Vec::new(), None));
    }

    fn stream_write_goes_on(&mut self, connection: usize) -> bool {
        let Connection { shard, key, .. } = self.connections[connection];
        let GetStream {
            client, session, ..
        } = *self.stream(connection);
        let is_due = self.is_due(connection);
        let is_over = self.shards[shard].connections.is_draining()
            || !self.shards[shard].state.is_stream(session, key.into());
        if is_over && !self.stream(connection).is_limited {
            self.stream(connection).is_limited = true;
            self.deadline_in(connection, ringway::limits::LINGER_MS);
        }
        let is_late = is_due && self.stream(connection).is_limited;
        let fails = self.settings.faults.write_fails;
        let is_done = match self.is_calm {
            true => true,
            // Slow readers are the rule here.
            false if is_late || self.dice.chance(fails) => false,
            false if self.dice.chance(40) => true,
            false => return false,
        };
        let Some((bytes, taken)) = self.stream(connection).writing.take() else {
            return false;
        };
        let messages = events(&bytes);
        if let Some(taken) = taken {
            self.trace(|| format!("stream {connection}: {is_done}"));
            match is_done {
                true => self.clients[client].is_told(&messages, taken),
                false => {
                    let moment = self.moments.next();
                    self.clients[client].is_not_told(&messages, taken, moment);
                    self.record.tally.count("stream writes that fail");
                }
            }
            self.record
                .tally
                .many("events on GET streams", messages.len());
            let shard = &mut self.shards[shard];
            let mut acts = Vec::new();
            shard
                .state
                .stream_wrote(session, key.into(), is_done, &mut acts);
            shard.perform(acts);
        }
        if !is_done || self.stream(connection).is_ending {
            self.stream_is_over(connection, client, session);
            return true;
        }
        self.keep_alive(connection);
        true
    }

    /// Some connection breaks.
    pub(crate) fn break_one(&mut self) {
        if !self.connections.is_empty() {
            let connection = self.dice.below(self.connections.len());
            self.breaks(connection);
        }
    }
}
