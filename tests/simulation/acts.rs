//! What clients do: they open sessions, send requests, cancel them, open streams,
//! end their sessions or vanish; and what they get at once.

use ringway::http::connections::{Form, Phase};
use ringway::http::ground::ResponseMode;
use ringway::http::response::{Manner, OriginAnswer};
use ringway::limits::{SLOTS_BEFORE_REUSE, TASK_CURSORS_MAX};
use ringway::routing::calls::ReplyTo;
use ringway::routing::client::Step;
use ringway::routing::session::{SessionKey, TokenId};
use ringway::routing::upstream_id::UpstreamId;
use ringway::wire::method::LOG_LEVELS;
use ringway::wire::reply::{self, Reason};
use ringway::wire::scan::{batch, is_batch, scan};
use ringway::wire::version::Version;
use serde_json::Value;

use crate::checks::{Answer, Ask, Call, is_of_session, parsed};
use crate::client::{COMMON_IDS, Client, request};
use crate::face::{Carries, Exchange, GetStream, Shape};
use crate::server::URIS;
use crate::settings::Theme;
use crate::text::Nonce;
use crate::world::{World, place};

/// What a client may do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    Call,
    Batch,
    Cancel,
    Subscribe,
    Unsubscribe,
    SetLevel,
    Ping,
    MakeTask,
    AboutTask,
    ListTasks,
    OpenStream,
    Notify,
    Delete,
    Vanish,
    /// An operator takes a token away.
    Revoke,
}

fn deeds(theme: Theme) -> [(usize, Deed); 15] {
    let [calls, subscriptions, streams, tasks] = match theme {
        Theme::Calls => [60, 3, 4, 3],
        Theme::Subscriptions => [8, 50, 10, 2],
        Theme::Streams => [6, 25, 40, 6],
        Theme::Tasks => [8, 3, 8, 60],
        Theme::Mixed => [20, 20, 15, 20],
    };
    [
        (calls, Deed::Call),
        (calls / 4 + 1, Deed::Batch),
        (calls / 6 + 3, Deed::Cancel),
        (subscriptions, Deed::Subscribe),
        (subscriptions / 2 + 1, Deed::Unsubscribe),
        (4, Deed::SetLevel),
        (1, Deed::Ping),
        (tasks / 2 + 1, Deed::MakeTask),
        (tasks / 2 + 1, Deed::AboutTask),
        (tasks / 8 + 1, Deed::ListTasks),
        (streams, Deed::OpenStream),
        (2, Deed::Notify),
        (1, Deed::Delete),
        (1, Deed::Vanish),
        (usize::from(theme == Theme::Mixed), Deed::Revoke),
    ]
}

/// What a client takes, and what it gets.
struct Accept {
    takes_sse: bool,
    /// SSE from the beginning.
    is_sse: bool,
    /// JSON may turn into SSE.
    may_turn: bool,
}

/// HTTP is left out: a response is its body.
pub(crate) fn manner() -> Manner {
    Manner {
        http11: true,
        close: false,
        keep_alive_10: false,
        head_only: false,
        origin: OriginAnswer::None,
    }
}

impl World {
    fn open_clients(&self) -> Vec<usize> {
        let open = self.clients.iter().filter(|client| client.is_open);
        open.map(|client| client.number).collect()
    }

    /// `initialize`, on a shard of the kernel's choice.
    pub(crate) fn open_session(&mut self) {
        if self.open_clients().len() >= self.settings.clients_max || self.is_draining {
            return;
        }
        let place = self.dice.below(self.shards.len());
        let now = self.now_ms();
        let shard = &mut self.shards[place];
        let Some(handshake) = shard.state.handshake().cloned() else {
            return; // `upstream_down`
        };
        let asked = self.dice.weighted(&[
            (5, Version::NEWEST),
            (2, Version::V2025_03_26),
            (1, Version::V2025_06_18),
            (1, Version::V2024_11_05),
        ]);
        let version = Version::negotiate(asked.as_str().as_bytes(), handshake.version);
        let owner = TokenId(self.dice.below(3) as u32);
        let dice = &mut self.dice;
        let draw = || u128::from(dice.next()) << 64 | u128::from(dice.next());
        let is_full = shard.state.sessions.is_full();
        match shard.state.open_session(owner, version, now, draw) {
            Ok(key) => {
                let id = shard.state.sessions.get(key).expect("it was opened").id;
                assert_eq!(id.owner(self.settings.shards), place);
                let number = self.clients.len();
                let client = Client::new(number, id, owner, place, version, now.0);
                self.clients.push(client);
                self.record.tally.count("sessions");
            }
            Err(_) => assert!(is_full, "refused, and there was room"),
        }
    }

    pub(crate) fn act(&mut self) {
        let open = self.open_clients();
        if open.is_empty() {
            return self.open_session();
        }
        let client = self.dice.pick(&open);
        let deed = self.dice.weighted(&deeds(self.settings.theme));
        self.trace(|| format!("session {client}: {deed:?}"));
        match deed {
            Deed::Call => self.request(client, Ask::Plain, ""),
            Deed::Batch => self.batch(client),
            Deed::Cancel => self.cancel(client),
            Deed::Subscribe => {
                let uri = self.dice.pick(&URIS).to_owned();
                self.request(client, Ask::Subscribe(uri), "");
            }
            Deed::Unsubscribe => self.unsubscribe(client),
            Deed::SetLevel => {
                let level = self.dice.below(LOG_LEVELS.len() + 1);
                let level = (level < LOG_LEVELS.len()).then_some(level);
                self.request(client, Ask::SetLevel(level), "");
            }
            Deed::Ping => self.request(client, Ask::Ping, ""),
            Deed::MakeTask => self.request(client, Ask::MakeTask, ""),
            Deed::AboutTask => self.ask_about_a_task(client),
            Deed::ListTasks => self.list_tasks(client),
            Deed::OpenStream => self.open_stream(client),
            Deed::Notify => self.notify(client),
            Deed::Delete => self.delete(client),
            Deed::Vanish => self.vanish(client),
            Deed::Revoke if self.dice.chance(10) => self.revoke(client),
            Deed::Revoke => {}
        }
    }

    /// The token of a client is taken away: every session of its owner ends.
    fn revoke(&mut self, client: usize) {
        let owner = self.clients[client].owner;
        let theirs = |client: &&mut Client| client.is_open && client.owner == owner;
        let count = self
            .clients
            .iter_mut()
            .filter(theirs)
            .map(Client::closes)
            .count();
        let mut ended = 0;
        for shard in &mut self.shards {
            let mut acts = Vec::new();
            ended += shard.state.end_sessions_of(&[owner], &mut acts);
            shard.perform(acts);
        }
        assert_eq!(ended, count, "check 6: sessions of a token that is gone");
        self.record.tally.count("tokens taken away");
        self.hear_news();
    }

    fn unsubscribe(&mut self, client: usize) {
        let held: Vec<_> = self.clients[client].holds.keys().cloned().collect();
        let uri = match !held.is_empty() && self.dice.chance(80) {
            true => self.dice.pick(&held),
            false => self.dice.pick(&URIS).to_owned(),
        };
        self.request(client, Ask::Unsubscribe(uri), "");
    }

    fn ask_about_a_task(&mut self, client: usize) {
        let own = self.clients[client].tasks.clone();
        let foreign = |other: &&Client| other.number != client;
        let foreign = self.clients.iter().filter(foreign);
        let foreign: Vec<_> = foreign
            .flat_map(|other| other.tasks.iter().copied())
            .collect();
        let what = self.dice.below(10);
        let of = match what {
            0 | 1 if !foreign.is_empty() => {
                self.record.tally.count("foreign task ids");
                Some(self.dice.pick(&foreign))
            }
            0..3 => {
                self.record.tally.count("invented task ids");
                None
            }
            _ if own.is_empty() => return,
            _ => Some(self.dice.pick(&own)),
        };
        let id = match of {
            Some(call) => format!("task {}", self.record.calls[call].nonce),
            None => "task of nobody".to_owned(),
        };
        let ask = match self.dice.below(3) {
            0 => Ask::TaskGet(of),
            1 => Ask::TaskResult(of),
            _ => Ask::TaskCancel(of),
        };
        self.request(client, ask, &id);
    }

    fn list_tasks(&mut self, client: usize) {
        // A cursor is its shard's number: those of other shards may be one's own.
        let shard = self.clients[client].shard;
        let others = self.clients.iter().filter(|other| other.shard == shard);
        let all = others.flat_map(|other| other.cursors.iter());
        let all: Vec<_> = all.map(|(cursor, _)| cursor.clone()).collect();
        let own: Vec<_> = self.clients[client].cursors.clone();
        let cursor = match self.dice.below(10) {
            0..5 => None,
            5..8 if !own.is_empty() => Some(self.dice.pick(&own).0),
            8 if !all.is_empty() => Some(self.dice.pick(&all)),
            _ => Some("tasks-0".into()),
        };
        self.request(client, Ask::TaskList(cursor), "");
    }

    fn id_and_token(&mut self) -> (String, Option<String>) {
        let dice = &mut self.dice;
        let serial = self.record.calls.len();
        let id = match dice.chance(25) {
            true => dice.pick(&COMMON_IDS).to_owned(),
            false => format!("\"id {serial}\""),
        };
        let token = match dice.below(4) {
            0 | 1 => None,
            2 => Some(dice.pick(&COMMON_IDS).to_owned()),
            _ => Some(format!("{serial}")),
        };
        (id, token)
    }

    /// The call of a session that has this id, by value, in flight.
    fn in_flight(&self, client: usize, id: &str) -> Option<usize> {
        let value: Value = parsed(id.as_bytes());
        let mut calls = self.record.calls.iter().enumerate().rev();
        let found = calls.find(|(_, call)| {
            call.in_flight && call.nonce.session == client && parsed(call.id.as_bytes()) == value
        });
        found.map(|(number, _)| number)
    }

    fn key_of(&self, client: usize) -> SessionKey {
        let client = &self.clients[client];
        let sessions = &self.shards[client.shard].state.sessions;
        let key = sessions.find(client.id, client.owner);
        let stranger = TokenId(client.owner.0 + 1);
        assert_eq!(
            sessions.find(client.id, stranger),
            None,
            "check 1: a stranger"
        );
        key.expect("an open session is known")
    }

    fn is_heard(&mut self, client: usize) {
        let now = self.now_ms();
        let client = &mut self.clients[client];
        client.last_heard_ms = now.0;
        client.is_used = true;
    }

    /// A new call, on the record, and the text that asks for it. `task` is the id that
    /// it names, if any.
    fn new_call(&mut self, client: usize, ask: Ask, task: &str) -> (usize, Vec<u8>) {
        let number = self.record.calls.len();
        let nonce = Nonce {
            session: client,
            call: number,
        };
        let (id, token) = self.id_and_token();
        let shard = self.clients[client].shard;
        let pad = match self.settings.is_big && self.dice.chance(20) {
            true => self.dice.pick(&[5_000, 70_000, 200_000]),
            false => self.dice.pick(&[0, 0, 50]),
        };
        let text = request(&ask, nonce, token.is_some(), task, pad, &mut self.dice);
        let asked_cursor = match &ask {
            Ask::TaskList(Some(cursor)) => cursor.clone(),
            _ => String::new(),
        };
        let known = &self.clients[client].cursors;
        let of_server = known.iter().find(|(known, _)| *known == asked_cursor);
        let of_server = of_server.map_or(String::new(), |(_, cursor)| {
            Value::from(cursor.clone()).to_string()
        });
        let body = text.fill(
            &id,
            token.as_deref().unwrap_or_default(),
            &Value::from(asked_cursor).to_string(),
        );
        self.record.calls.push(Call {
            nonce,
            shard,
            ask,
            id,
            token,
            text,
            cursor: of_server,
            epoch: self.shards[shard].state.epoch(),
            begun_ms: self.now_ms().0,
            is_in_batch: false,
            may_stream: false,
            in_flight: false,
            ended: None,
            is_cancelled: false,
            is_void: false,
            upstream: None,
            replies: Vec::new(),
            progress: Vec::new(),
            statuses: Vec::new(),
            listed: Default::default(),
            owned_then: Vec::new(),
            deaths_then: 0,
            reply_read: None,
            progress_read: 0,
            dropped: 0,
            got: 0,
            next_progress: 0,
            answer: Answer::Waiting,
            has_task: false,
            is_too_long: false,
            is_too_long_read: false,
        });
        (number, body)
    }

    /// What the client accepts: whether SSE, and whether it gets that at once, or when
    /// progress comes before the answer.
    fn accept(&mut self) -> Accept {
        let takes_json = self.dice.chance(80);
        let takes_sse = !takes_json || self.dice.chance(80);
        let mode = self.settings.response_mode;
        Accept {
            takes_sse,
            is_sse: !takes_json || (takes_sse && mode == ResponseMode::Sse),
            may_turn: takes_sse && mode == ResponseMode::Auto,
        }
    }

    /// A POST with a request.
    pub(crate) fn request(&mut self, client: usize, ask: Ask, task: &str) {
        let (number, body) = self.new_call(client, ask, task);
        let accept = self.accept();
        self.record.calls[number].may_stream = accept.is_sse || accept.may_turn;
        let form = match accept.is_sse {
            true => Form::Stream,
            false => Form::Json {
                manner: manner(),
                streams: accept.may_turn,
            },
        };
        let key = self.key_of(client);
        let connection = self.free_connection(self.clients[client].shard);
        let to = self.begin(client, connection, form);
        match self.ask(client, key, number, to, &body, task) {
            Some((id, may_stream)) => {
                self.connections[connection].carries = Carries::Call(Exchange {
                    calls: vec![(number, id)],
                    missing: 1,
                    takes_sse: accept.takes_sse,
                    may_be_sse: accept.may_turn,
                    may_stream,
                    shape: if accept.is_sse {
                        Shape::Sse
                    } else {
                        Shape::Json
                    },
                    writing: None,
                    is_last: false,
                    body: Vec::new(),
                    parts: Vec::new(),
                });
                self.keep_alive(connection);
            }
            None => self.end_exchange(connection),
        }
        self.hear_news();
    }

    /// A POST with several messages, in the one version that has them.
    fn batch(&mut self, client: usize) {
        if !self.clients[client].version.has_batches() {
            return self.request(client, Ask::Plain, "");
        }
        let mut numbers = Vec::new();
        let mut texts = Vec::new();
        for _ in 0..self.dice.between(2, 5) {
            let uri = self.dice.pick(&URIS).to_owned();
            let ask = match self.dice.below(6) {
                0 => Ask::Subscribe(uri),
                1 => Ask::Unsubscribe(uri),
                2 => Ask::Ping,
                _ => Ask::Plain,
            };
            let (number, body) = self.new_call(client, ask, "");
            numbers.push(number);
            texts.push(String::from_utf8(body).expect("clients send text"));
        }
        let accept = self.accept();
        let mut calls = numbers.iter().map(|number| &self.record.calls[*number]);
        let has_token = calls.any(|call| call.token.is_some());
        let is_sse = accept.is_sse || (accept.may_turn && has_token);
        let form = if is_sse { Form::Stream } else { Form::Bare };
        let key = self.key_of(client);
        let connection = self.free_connection(self.clients[client].shard);
        let mut to = self.begin(client, connection, form);
        let body = format!("[{}]", texts.join(",\n")).into_bytes();
        assert!(is_batch(&body));
        let spans = batch(&body).expect("clients send arrays");
        let mut in_flight = Vec::new();
        for (part, (number, span)) in numbers.iter().zip(spans).enumerate() {
            to.part = part as u16;
            let call = &mut self.record.calls[*number];
            call.may_stream = is_sse;
            call.is_in_batch = true;
            let asked = self.ask(client, key, *number, to, span.of(&body), "");
            in_flight.extend(asked.map(|(id, _)| (*number, id)));
        }
        self.record.tally.count("batches");
        if in_flight.is_empty() {
            self.end_exchange(connection);
        } else {
            self.connections[connection].carries = Carries::Call(Exchange {
                missing: in_flight.len(),
                calls: in_flight,
                takes_sse: accept.takes_sse,
                may_be_sse: false,
                may_stream: false,
                shape: if is_sse { Shape::Sse } else { Shape::Array },
                writing: None,
                is_last: false,
                body: Vec::new(),
                parts: Vec::new(),
            });
            self.keep_alive(connection);
        }
        self.hear_news();
    }

    /// Asks for a call. Returns its id if it is in flight, and whether messages may come
    /// before its answer; else it has been answered.
    fn ask(
        &mut self,
        client: usize,
        key: SessionKey,
        number: usize,
        to: ReplyTo,
        text: &[u8],
        task: &str,
    ) -> Option<(UpstreamId, bool)> {
        let id = self.record.calls[number].id.clone();
        let duplicate = self.in_flight(client, &id);
        let step = self.message(client, key, to, text);
        self.trace(|| {
            let ask = &self.record.calls[number].ask;
            format!(
                "call {number} {ask:?} on {}: {}",
                to.connection,
                shown(&step)
            )
        });
        match step {
            Step::InFlight { id, may_stream } => {
                assert!(duplicate.is_none(), "check 2: the id is in flight twice");
                let call = &mut self.record.calls[number];
                call.in_flight = true;
                self.waiting.insert(place(call.shard, to), number);
                self.may_not_be_in_flight(number, task);
                return Some((id, may_stream));
            }
            Step::Answer(message) => self.gets_at_once(number, &message, task),
            Step::Failed(reason, message) => self.fails_at_once(number, reason, &message),
            Step::Refused(message) => {
                let call = &mut self.record.calls[number];
                assert!(duplicate.is_some(), "check 2: refused: {call:?}");
                assert_eq!(parsed(&message).get("id"), None);
                call.answer = Answer::Replied;
                self.record.tally.count("ids in flight twice refused");
            }
            Step::Accepted => panic!("check 2: a request without an answer"),
        }
        None
    }

    /// A request begins on a connection: where its answer is to go.
    fn begin(&mut self, client: usize, connection: usize, form: Form) -> ReplyTo {
        let key = self.connections[connection].key;
        let connections = &mut self.shards[self.clients[client].shard].connections;
        connections.enter(key, Phase::Busy);
        connections.begin(key, form)
    }

    /// Gives a message to the shard.
    fn message(&mut self, client: usize, key: SessionKey, to: ReplyTo, text: &[u8]) -> Step {
        let now = self.now;
        let shard = &mut self.shards[self.clients[client].shard];
        shard.now = now;
        let envelope = scan(text).expect("clients send messages");
        let mut acts = Vec::new();
        let step = shard
            .state
            .message(key, text, &envelope, to, now, &mut acts);
        shard.perform(acts);
        self.is_heard(client);
        step
    }

    fn post(
        &mut self,
        client: usize,
        key: SessionKey,
        connection: usize,
        body: &[u8],
    ) -> (ReplyTo, Step) {
        let to = self.begin(client, connection, Form::Stream);
        (to, self.message(client, key, to, body))
    }

    /// Checks 1 and 4: what must not be forwarded is not.
    fn may_not_be_in_flight(&mut self, number: usize, task: &str) {
        let call = &self.record.calls[number];
        let client = &self.clients[call.nonce.session];
        match &call.ask {
            Ask::TaskGet(of) | Ask::TaskResult(of) | Ask::TaskCancel(of) => {
                let is_own = of.is_some_and(|of| client.tasks.contains(&of));
                assert!(
                    is_own,
                    "check 1: {task:?} is not of session {}",
                    client.number
                );
                self.record.tally.count("requests about own tasks");
            }
            Ask::Subscribe(uri) => {
                assert!(
                    !client.holds.contains_key(uri),
                    "check 4: it holds {uri} already"
                );
            }
            Ask::Unsubscribe(_) | Ask::SetLevel(_) | Ask::Ping => {
                panic!("{:?} is in flight", call.ask)
            }
            Ask::Plain | Ask::MakeTask | Ask::TaskList(_) => {}
        }
    }

    /// What is offered to a session, as its shard knows it.
    fn is_offered(&self, call: usize) -> bool {
        let call = &self.record.calls[call];
        let client = &self.clients[call.nonce.session];
        let Some(known) = &self.known[call.shard] else {
            return false;
        };
        let tasks = known.tasks && client.version == Version::V2025_11_25;
        match &call.ask {
            Ask::SetLevel(_) => known.logging,
            Ask::Subscribe(_) | Ask::Unsubscribe(_) => known.has_subscribe(),
            Ask::MakeTask | Ask::TaskGet(_) | Ask::TaskResult(_) => tasks,
            Ask::TaskCancel(_) => tasks && known.task_cancel,
            Ask::TaskList(_) => tasks && known.task_list,
            Ask::Plain | Ask::Ping => true,
        }
    }

    /// Ringway's own answer, at once.
    fn gets_at_once(&mut self, number: usize, message: &[u8], task: &str) {
        let is_offered = self.is_offered(number);
        let moment = self.moments.next();
        let call = &mut self.record.calls[number];
        call.answer = Answer::Replied;
        is_of_session(message, call.nonce.session);
        let value = parsed(message);
        assert_eq!(
            value["id"],
            parsed(call.id.as_bytes()),
            "check 2: its own id"
        );
        let code = value["error"]["code"].as_i64().map(|code| code as i32);
        let client = &mut self.clients[call.nonce.session];
        let expected = match &call.ask {
            Ask::Plain => panic!("answered here: {value}"),
            Ask::MakeTask => (!is_offered).then_some(reply::INVALID_PARAMS),
            _ if !is_offered => Some(reply::METHOD_NOT_FOUND),
            Ask::Ping => None,
            Ask::SetLevel(None) => Some(reply::INVALID_PARAMS),
            Ask::SetLevel(level) => {
                client.level = *level;
                self.record.tally.count("log levels set");
                None
            }
            Ask::Subscribe(uri) => {
                client.is_granted(uri, moment);
                self.record.tally.count("subscriptions joined");
                None
            }
            Ask::Unsubscribe(uri) => {
                let (uri, session) = (uri.clone(), call.nonce.session);
                client.lets_go(&uri, moment);
                for call in &mut self.record.calls {
                    let is_same = call.ask == Ask::Subscribe(uri.clone());
                    call.is_void |= is_same && call.in_flight && call.nonce.session == session;
                }
                self.record.tally.count("unsubscribes");
                None
            }
            Ask::TaskGet(of) | Ask::TaskResult(of) | Ask::TaskCancel(of) => {
                let is_own = of.is_some_and(|of| client.tasks.contains(&of));
                let forgets = self.settings.forgets_tasks();
                assert!(!is_own || forgets, "check 2: {task:?} is its own");
                let known = "Task not found";
                assert_eq!(
                    value["error"]["message"], known,
                    "check 1: as unknown as none"
                );
                self.record.tally.count("unknown tasks refused");
                Some(reply::INVALID_PARAMS)
            }
            Ask::TaskList(cursor) => {
                let mut own = client.cursors.iter();
                let is_own = own.any(|(own, _)| Some(own) == cursor.as_ref());
                let forgets = client.lists > TASK_CURSORS_MAX;
                assert!(!is_own || forgets, "check 2: the cursor is its own");
                self.record.tally.count("unknown cursors refused");
                Some(reply::INVALID_PARAMS)
            }
        };
        assert_eq!(code, expected, "{value}");
    }

    /// Check 2: a request is refused for a reason that there is.
    fn fails_at_once(&mut self, number: usize, reason: Reason, message: &[u8]) {
        let limits = &self.settings.limits;
        let all = self.record.calls.iter();
        let in_flight = all.clone().filter(|call| call.in_flight).count();
        let asked = all.filter(|call| matches!(call.ask, Ask::Subscribe(_)));
        let asked = asked.count();
        let call = &mut self.record.calls[number];
        let is_subscribe = matches!(call.ask, Ask::Subscribe(_));
        call.answer = Answer::Replied;
        assert_eq!(message, reply::failure(Some(call.id.as_bytes()), reason));
        let (session, shard) = (call.nonce.session, call.shard);
        let is_so = match reason {
            Reason::UpstreamDown => call.epoch == 0,
            Reason::Draining => self.is_draining,
            Reason::Overloaded => {
                self.settings.is_small
                    || (is_subscribe && asked > limits.subscriptions_per_session_max)
                    || in_flight >= limits.calls_per_session_max
                    || self.shards[shard].state.outgoing.waiting_bytes() > 10 << 20
            }
            _ => false,
        };
        assert!(is_so, "check 2: session {session} got {reason:?}");
        self.record.tally.count(match reason {
            Reason::Overloaded => "requests over a limit",
            Reason::UpstreamDown => "requests while the server is down",
            _ => "requests while draining",
        });
    }

    /// A cancel of an own call, of an id that others use, or of one that nobody does.
    fn cancel(&mut self, client: usize) {
        let is_own = |call: &&Call| call.in_flight && call.nonce.session == client;
        let own = self.record.calls.iter().filter(is_own);
        let own: Vec<_> = own.map(|call| call.id.clone()).collect();
        let id = match own.is_empty() || self.dice.chance(30) {
            true => self
                .dice
                .pick(&["1", "\"1\"", "\"a\"", "7", "\"?\""])
                .to_owned(),
            false => self.dice.pick(&own),
        };
        let target = self.in_flight(client, &id);
        let body = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"~{client}:0~"}}}}"#
        );
        match target {
            Some(call) => self.record.calls[call].is_cancelled = true,
            None => self.record.tally.count("cancels of unknown ids"),
        }
        self.accepted(client, &body);
        if let Some(call) = target {
            let call = &self.record.calls[call];
            assert!(!call.in_flight, "check 2: a cancel ends {call:?}");
        }
    }

    /// A message that wants no answer, and must not reach the server.
    fn notify(&mut self, client: usize) {
        let body = self.dice.pick(&[
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":257,"progress":1}}"#,
            r#"{"jsonrpc":"2.0","id":257,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"s1","error":{"code":1,"message":"no"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
        ]);
        self.accepted(client, body);
    }

    fn accepted(&mut self, client: usize, body: &str) {
        let key = self.key_of(client);
        let connection = self.free_connection(self.clients[client].shard);
        let (_, step) = self.post(client, key, connection, body.as_bytes());
        assert!(matches!(step, Step::Accepted), "{step:?}");
        self.end_exchange(connection);
        self.hear_news();
    }

    pub(crate) fn open_stream(&mut self, client: usize) {
        if self.is_draining {
            return;
        }
        let key = self.key_of(client);
        let place = self.clients[client].shard;
        let connection = self.free_connection(place);
        let now = self.now;
        let shard = &mut self.shards[place];
        shard.now = now;
        let carrier = self.connections[connection].key;
        assert!(shard.connections.enter(carrier, Phase::Stream));
        let mut acts = Vec::new();
        let replaced = shard
            .state
            .open_stream(key, carrier.into(), now.millis(), &mut acts);
        shard.perform(acts);
        let before = self.clients[client].stream.replace(connection);
        assert!(before.is_none() || replaced.is_some());
        if before.is_some() {
            self.record.tally.count("streams replaced");
        }
        self.record.tally.count("streams opened");
        self.connections[connection].carries = Carries::Stream(GetStream {
            client,
            session: key,
            writing: None,
            is_limited: false,
            is_ending: false,
        });
        self.connections[connection].flag.set();
        self.keep_alive(connection);
        self.is_heard(client);
        self.hear_news();
    }

    pub(crate) fn delete(&mut self, client: usize) {
        let key = self.key_of(client);
        let place = self.clients[client].shard;
        let connection = self.free_connection(place);
        let now = self.now;
        let shard = &mut self.shards[place];
        shard.now = now;
        let mut acts = Vec::new();
        shard.state.end_session(key, &mut acts);
        shard.perform(acts);
        self.clients[client].closes();
        self.record.tally.count("sessions deleted");
        self.end_exchange(connection);
        self.hear_news();
    }

    /// A client is gone for good, with all its connections.
    pub(crate) fn vanish(&mut self, client: usize) {
        for connection in 0..self.connections.len() {
            let is_its_own = match &self.connections[connection].carries {
                Carries::Call(exchange) => {
                    self.record.calls[exchange.calls[0].0].nonce.session == client
                }
                Carries::Stream(stream) => stream.client == client,
                Carries::Nothing | Carries::Closed => false,
            };
            if is_its_own {
                self.breaks(connection);
            }
        }
        self.record.tally.count("clients that vanish");
    }

    /// Thousands of calls that come and go at once, so that the slots of calls are
    /// used again while the server still talks about the first ones.
    pub(crate) fn storm(&mut self) {
        let open = self.open_clients();
        let Some(client) = open.first().copied() else {
            return;
        };
        let place = self.clients[client].shard;
        let is_up = self.shards[place].state.epoch() > 0;
        let can = self.known[place]
            .as_ref()
            .is_some_and(|known| known.has_subscribe());
        if !is_up || !can {
            return;
        }
        self.trace(|| "storm".into());
        let key = self.key_of(client);
        let connection = self.free_connection(place);
        let begun = self.record.calls.iter().filter(|call| call.shard == place);
        let begun = begun
            .filter(|call| call.ended.is_some() || call.in_flight)
            .count();
        let wanted = SLOTS_BEFORE_REUSE.saturating_sub(begun);
        for round in 0..wanted {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":"storm","method":"resources/subscribe","params":{{"uri":"storm:{}"}}}}"#,
                round % 3
            );
            let (to, step) = self.post(client, key, connection, body.as_bytes());
            if let Step::InFlight { .. } = step {
                let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"storm"}}"#;
                self.post(client, key, connection, cancel.as_bytes());
            }
            // These calls are on no record.
            let of = |other: &ReplyTo| other.exchange == to.exchange;
            self.shards[place].news.retain(
                |(_, news)| !matches!(news, crate::shard::News::Ended { to, .. } if of(to)),
            );
        }
        self.record.tally.count("storms");
        self.end_exchange(connection);
        self.hear_news();
    }
}

fn shown(step: &Step) -> String {
    match step {
        Step::Answer(message) | Step::Failed(_, message) | Step::Refused(message) => {
            String::from_utf8_lossy(message).into_owned()
        }
        other => format!("{other:?}"),
    }
}
