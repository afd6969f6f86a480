//! What clients do and what they make of what they get; their connections, as
//! `http::exchange` and `http::stream` have them.

use std::sync::Arc;
use std::task::{Context, Waker};

use ringway::http::connections::{ConnectionKey, Delivery, Form, Phase, Wake};
use ringway::routing::calls::ReplyTo;
use ringway::routing::client::Step;
use ringway::routing::private::ExchangeKey;
use ringway::routing::session::{SessionId, SessionKey, TokenId};
use ringway::routing::stream::Work;
use ringway::routing::upstream_id::UpstreamId;
use ringway::wire::reply::Reason;
use ringway::wire::scan::scan;

use crate::acts::manner;
use crate::checks::{Answer, Ask, Call, How, is_of_session, parsed};
use crate::client::{COMMON_IDS, request};
use crate::face::Flag;
use crate::private::server::About;
use crate::private::world::World;
use crate::text::{Nonce, events, passed};
use crate::world::place;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) shard: usize,
    /// Once it has one.
    pub(crate) id: Option<SessionId>,
    pub(crate) is_open: bool,
    /// It has heard its session's id.
    knows: bool,
    /// The connection of its newest GET stream.
    pub(crate) stream: Option<usize>,
    /// The server's requests that it has got.
    asked: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) shard: usize,
    pub(crate) key: ConnectionKey,
    pub(crate) flag: Arc<Flag>,
    waker: Waker,
    pub(crate) carries: Carries,
    /// What is being written.
    writing: Option<Vec<u8>>,
    /// The answer ends with it.
    is_last: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carries {
    /// An `initialize`.
    Opening(usize, ExchangeKey),
    Call {
        call: usize,
        id: UpstreamId,
        is_sse: bool,
        takes_sse: bool,
    },
    Stream {
        client: usize,
        session: SessionKey,
        /// It ends with what is being written.
        is_ending: bool,
    },
    Closed,
}

impl World {
    fn new_connection(&mut self, shard: usize) -> usize {
        let flag = Arc::new(Flag::default());
        let connection = Connection {
            shard,
            key: self.shards[shard].connections.open(),
            waker: flag.clone().into(),
            flag,
            carries: Carries::Closed,
            writing: None,
            is_last: false,
        };
        let is_closed = |it: &Connection| it.carries == Carries::Closed;
        match self.connections.iter().position(is_closed) {
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

    fn begin(&mut self, connection: usize, form: Form) -> ReplyTo {
        let Connection { shard, key, .. } = self.connections[connection];
        self.shards[shard].now = self.now;
        let connections = &mut self.shards[shard].connections;
        connections.enter(key, Phase::Busy);
        connections.begin(key, form)
    }

    pub(crate) fn close(&mut self, connection: usize) {
        let Connection { shard, key, .. } = self.connections[connection];
        self.shards[shard].connections.end(key);
        self.shards[shard].connections.close(key);
        self.connections[connection].carries = Carries::Closed;
        self.connections[connection].writing = None;
    }

    pub(crate) fn key_of(&self, client: usize) -> Option<SessionKey> {
        let client = &self.clients[client];
        let id = client.id.filter(|_| client.is_open && client.knows)?;
        self.shards[client.shard]
            .state
            .sessions
            .find(id, TokenId::ANYONE)
    }

    pub(crate) fn open_session(&mut self) {
        let busy = self.clients.iter().filter(|client| client.is_open);
        if busy.count() >= self.settings.clients_max {
            return;
        }
        let number = self.clients.len();
        let shard = self.dice.below(self.shards.len());
        self.clients.push(Client {
            shard,
            id: None,
            is_open: false,
            knows: false,
            stream: None,
            asked: Vec::new(),
        });
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{"sampling":{{}}}},"clientInfo":{{"name":"~{number}:0~","version":"1"}}}}}}"#
        );
        let connection = self.new_connection(shard);
        let form = Form::Opening {
            manner: manner(),
            sse: false,
        };
        let to = self.begin(connection, form);
        match self.shards[shard].open(text.as_bytes(), to) {
            Some(key) => {
                self.openings.insert(place(shard, to), number);
                self.connections[connection].carries = Carries::Opening(number, key);
                self.connections[connection].flag.set();
            }
            None => {
                self.record.tally.count("sessions refused");
                self.close(connection);
            }
        }
        self.hear_news(&About::Nothing, None);
    }

    /// Some client does something.
    pub(crate) fn act(&mut self) {
        let clients = 0..self.clients.len();
        let able: Vec<usize> = clients.filter(|it| self.key_of(*it).is_some()).collect();
        if able.is_empty() {
            return;
        }
        let client = self.dice.pick(&able);
        match self.dice.below(400) {
            0..150 => self.request(client, Ask::Plain),
            150..175 => {
                let uri = self.dice.pick(&["a:b", "a:c", "a:\"d"]).to_owned();
                let ask = match self.dice.chance(70) {
                    true => Ask::Subscribe(uri.replace('"', "\\\"")),
                    false => Ask::Unsubscribe(uri.replace('"', "\\\"")),
                };
                self.request(client, ask);
            }
            175..185 => {
                let level = self.dice.below(8);
                self.request(client, Ask::SetLevel(Some(level)));
            }
            185..210 => self.cancel(client),
            210..320 => self.answer_server(client),
            320..335 => {
                let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
                self.say(client, initialized.into());
            }
            335..355 => {
                let nonce = Nonce {
                    session: client,
                    call: 0,
                };
                self.say(
                    client,
                    format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"of":"{nonce}"}}}}"#),
                );
            }
            355..397 => self.open_stream(client),
            397..399 => self.delete(client),
            _ => self.vanish(client),
        }
    }

    /// A notification or an answer.
    fn say(&mut self, client: usize, text: String) {
        let step = self.message(client, text.as_bytes(), None);
        assert!(matches!(step, Step::Accepted), "{step:?}");
        self.hear_news(&About::Nothing, None);
    }

    fn message(&mut self, client: usize, text: &[u8], to: Option<ReplyTo>) -> Step {
        let key = self.key_of(client).expect("it is open");
        let nowhere = ReplyTo {
            connection: u32::MAX,
            connection_generation: 0,
            exchange: 0,
            part: 0,
        };
        let now = self.now;
        let shard = &mut self.shards[self.clients[client].shard];
        shard.now = now;
        let envelope = scan(text).expect("clients send messages");
        let mut acts = Vec::new();
        let to = to.unwrap_or(nowhere);
        let step = shard
            .state
            .message(key, text, &envelope, to, now, &mut acts);
        shard.perform(acts);
        step
    }

    fn request(&mut self, client: usize, ask: Ask) {
        let number = self.record.calls.len();
        let shard = self.clients[client].shard;
        let nonce = Nonce {
            session: client,
            call: number,
        };
        let id = match self.dice.chance(50) {
            true => self.dice.pick(&COMMON_IDS).to_owned(),
            false => number.to_string(),
        };
        let token = self
            .dice
            .chance(70)
            .then(|| self.dice.pick(&COMMON_IDS).to_owned());
        let pad = match self.settings.is_big && self.dice.chance(30) {
            true => self.dice.below(10_000),
            false => 0,
        };
        let text = request(&ask, nonce, token.is_some(), "", pad, &mut self.dice);
        let body = text.fill(&id, token.as_deref().unwrap_or("null"), "");
        let takes_json = self.dice.chance(80);
        let takes_sse = !takes_json || self.dice.chance(80);
        let is_sse = !takes_json;
        self.runs.push(None);
        self.record.calls.push(Call {
            nonce,
            shard,
            ask,
            id: id.clone(),
            token,
            text,
            cursor: String::new(),
            epoch: 0,
            begun_ms: self.now.millis().0,
            is_in_batch: false,
            may_stream: takes_sse,
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
        let form = match is_sse {
            true => Form::Stream,
            false => Form::Json {
                manner: manner(),
                streams: takes_sse,
            },
        };
        let duplicate = self.in_flight(client, &id);
        let connection = self.new_connection(shard);
        let to = self.begin(connection, form);
        let step = self.message(client, &body, Some(to));
        let call = &mut self.record.calls[number];
        match step {
            Step::InFlight { id, .. } => {
                assert!(duplicate.is_none(), "check 2: the id is in flight twice");
                call.in_flight = true;
                let digits = id.digits(&mut itoa::Buffer::new()).to_vec();
                call.upstream = Some(String::from_utf8(digits).expect("digits"));
                self.waiting.insert(place(shard, to), number);
                self.connections[connection].carries = Carries::Call {
                    call: number,
                    id,
                    is_sse,
                    takes_sse,
                };
                self.connections[connection].flag.set();
            }
            Step::Failed(Reason::Overloaded, _) => {
                call.answer = Answer::Replied;
                self.record.tally.count("requests over a limit");
                self.close(connection);
            }
            Step::Refused(_) => {
                assert!(duplicate.is_some(), "check 2: refused: {call:?}");
                call.answer = Answer::Replied;
                self.record.tally.count("ids in flight twice refused");
                self.close(connection);
            }
            other => panic!("check 2: {other:?}"),
        }
        self.hear_news(&About::Nothing, None);
    }

    /// The call of a session in flight under this id.
    fn in_flight(&self, client: usize, id: &str) -> Option<usize> {
        let wanted = parsed(id.as_bytes());
        let is_it = |call: &Call| {
            let is_own = call.in_flight && call.nonce.session == client;
            is_own && parsed(call.id.as_bytes()) == wanted
        };
        self.record.calls.iter().position(is_it)
    }

    fn cancel(&mut self, client: usize) {
        let id = match self.dice.chance(30) {
            true => self.dice.pick(&COMMON_IDS).to_owned(),
            false => {
                let own = self.record.calls.iter();
                let own = own.filter(|call| call.in_flight && call.nonce.session == client);
                let ids: Vec<String> = own.map(|call| call.id.clone()).collect();
                if ids.is_empty() {
                    return;
                }
                self.dice.pick(&ids)
            }
        };
        if let Some(number) = self.in_flight(client, &id) {
            self.record.calls[number].is_cancelled = true;
        }
        self.say(
            client,
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#),
        );
    }

    /// The client answers a request of the server's, perhaps again, or one that there
    /// never was.
    fn answer_server(&mut self, client: usize) {
        let asked = self.clients[client].asked.clone();
        if asked.is_empty() || self.dice.chance(5) {
            let id = self.dice.pick(&["1", "77", "\"x\"", "0"]);
            let known = asked.iter().filter_map(|number| self.asked[*number].shown);
            if !known.clone().any(|shown| shown.to_string() == id) && id != "1" {
                self.say(
                    client,
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#),
                );
            }
            return;
        }
        let number = self.dice.pick(&asked);
        let upstream = self.asked[number].upstream;
        let nonce = Nonce {
            session: client,
            call: number,
        };
        let id = self.asked[number].shown.expect("the client has got it");
        let text = match self.dice.chance(80) {
            true => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"of":"{nonce}"}}}}"#),
            false => format!(
                r#"{{"jsonrpc":"2.0","error":{{"code":-1,"message":"{nonce}"}},"id" : {id}}}"#
            ),
        };
        if self.upstreams[upstream].is_alive {
            self.asked[number].was_sent = true;
        }
        self.record.tally.count("answers of clients");
        self.say(client, text);
    }

    fn open_stream(&mut self, client: usize) {
        let session = self.key_of(client).expect("it is open");
        let place = self.clients[client].shard;
        let connection = self.new_connection(place);
        let now = self.now;
        let shard = &mut self.shards[place];
        shard.now = now;
        let key = self.connections[connection].key;
        shard.connections.enter(key, Phase::Stream);
        let mut acts = Vec::new();
        shard
            .state
            .open_stream(session, key.into(), now.millis(), &mut acts);
        shard.perform(acts);
        self.clients[client].stream = Some(connection);
        self.connections[connection].carries = Carries::Stream {
            client,
            session,
            is_ending: false,
        };
        self.connections[connection].flag.set();
        self.record.tally.count("streams opened");
        self.hear_news(&About::Nothing, None);
    }

    pub(crate) fn delete(&mut self, client: usize) {
        let Some(key) = self.key_of(client) else {
            return;
        };
        let shard = self.clients[client].shard;
        self.shards[shard].now = self.now;
        self.shards[shard].end_session(key);
        self.clients[client].is_open = false;
        self.record.tally.count("sessions deleted");
        self.hear_news(&About::Nothing, None);
    }

    /// A client is gone, with all its connections.
    fn vanish(&mut self, client: usize) {
        for connection in 0..self.connections.len() {
            let is_its_own = match self.connections[connection].carries {
                Carries::Call { call, .. } => self.record.calls[call].nonce.session == client,
                Carries::Stream { client: of, .. } | Carries::Opening(of, _) => of == client,
                Carries::Closed => false,
            };
            if is_its_own {
                self.breaks(connection);
            }
        }
        self.record.tally.count("clients that vanish");
    }

    /// A connection breaks, or its client is gone.
    pub(crate) fn breaks(&mut self, connection: usize) {
        let Connection { shard, key, .. } = self.connections[connection];
        self.shards[shard].now = self.now;
        let carries = self.connections[connection].carries;
        match carries {
            Carries::Opening(_, exchange) => {
                self.record.tally.count("openings that are abandoned");
                self.close(connection);
                self.shards[shard].state.abandon_opening(exchange);
            }
            Carries::Call { call, id, .. } => {
                self.record.tally.count("connections of calls that break");
                let call = &mut self.record.calls[call];
                if call.answer == Answer::Waiting {
                    call.answer = Answer::Gone;
                }
                self.shards[shard].client_gone(id);
                self.close(connection);
            }
            Carries::Stream {
                client, session, ..
            } => {
                self.connections[connection].carries = Carries::Closed;
                self.connections[connection].writing = None;
                self.shards[shard].stream_gone(session, key);
                let client = &mut self.clients[client];
                client.stream = client.stream.filter(|it| *it != connection);
            }
            Carries::Closed => {}
        }
        self.hear_news(&About::Nothing, None);
    }

    /// A step of one connection. True if something happened.
    pub(crate) fn go_on(&mut self, connection: usize) -> bool {
        let place = self.connections[connection].shard;
        self.shards[place].now = self.now;
        let carries = self.connections[connection].carries;
        if carries == Carries::Closed {
            return false;
        }
        if self.connections[connection].writing.is_some() {
            return self.write_goes_on(connection);
        }
        if !self.connections[connection].flag.take() {
            return false;
        }
        let happened = match carries {
            Carries::Stream {
                client, session, ..
            } => self.stream_goes_on(connection, client, session),
            _ => self.answer_goes_on(connection),
        };
        self.hear_news(&About::Nothing, None);
        happened
    }

    fn poll(&mut self, connection: usize) -> Option<Wake> {
        let Connection {
            shard, key, waker, ..
        } = &self.connections[connection];
        let cx = Context::from_waker(waker);
        self.shards[*shard].connections.poll(*key, &cx)
    }

    fn answer_goes_on(&mut self, connection: usize) -> bool {
        let Some(wake) = self.poll(connection) else {
            return false;
        };
        let entry = &mut self.connections[connection];
        match wake {
            Wake::Evicted => self.breaks(connection),
            Wake::Deadline => {}
            Wake::Events(mut queue) => {
                if let Carries::Call { is_sse, .. } = &mut entry.carries {
                    *is_sse = true;
                }
                assert!(queue.ended() <= 1, "check 2: a call ends once");
                entry.is_last = queue.ended() > 0;
                let mut bytes = Vec::new();
                while let Some((part, start)) = queue.next_part() {
                    bytes.extend_from_slice(&part[start..]);
                }
                entry.writing = Some(bytes);
            }
            Wake::Deliveries(deliveries) => {
                assert_eq!(deliveries.len(), 1, "check 2: one answer");
                let delivery = deliveries.into_iter().next().expect("one answer");
                entry.is_last = true;
                entry.writing = Some(match (delivery, &mut entry.carries) {
                    (Delivery::Response { bytes, .. }, _) => bytes,
                    (
                        Delivery::Cancelled { .. },
                        Carries::Call {
                            takes_sse: true,
                            is_sse,
                            ..
                        },
                    ) => {
                        *is_sse = true;
                        Vec::new()
                    }
                    (Delivery::Cancelled { error, .. }, _) => error,
                    (Delivery::Message { message, .. }, _) => message,
                });
            }
        }
        true
    }

    fn stream_goes_on(&mut self, connection: usize, client: usize, session: SessionKey) -> bool {
        let wake = self.poll(connection);
        let Connection { shard, key, .. } = self.connections[connection];
        let mut bytes = Vec::new();
        let work = self.shards[shard]
            .state
            .stream_work(session, key.into(), &mut bytes);
        match (work, wake) {
            (_, Some(Wake::Evicted)) => self.breaks(connection),
            (Work::Write(_), _) => {
                assert_eq!(self.clients[client].stream, Some(connection), "replaced");
                is_of_session(&bytes, client);
                self.connections[connection].writing = Some(bytes);
            }
            (Work::End, _) => {
                if let Carries::Stream { is_ending, .. } = &mut self.connections[connection].carries
                {
                    *is_ending = true;
                }
                self.connections[connection].writing = Some(Vec::new());
            }
            (Work::Rest, _) => return false,
        }
        true
    }

    fn write_goes_on(&mut self, connection: usize) -> bool {
        let is_done = match self.is_calm {
            true => true,
            false if self.dice.chance(self.settings.write_fails) => false,
            false if self.dice.chance(70) => true,
            false => return false,
        };
        if !is_done {
            self.record.tally.count("writes that fail");
            self.breaks(connection);
            return true;
        }
        let entry = &mut self.connections[connection];
        let bytes = entry.writing.take().expect("it writes");
        let Connection { shard, key, .. } = *entry;
        match entry.carries {
            Carries::Opening(client, _) => {
                self.clients[client].knows = self.clients[client].id.is_some();
                let is_refused = parsed(&bytes).get("error").is_some();
                assert_eq!(self.clients[client].knows, !is_refused);
                if is_refused {
                    self.record.tally.count("handshakes refused");
                }
                self.close(connection);
            }
            Carries::Call { call, is_sse, .. } => {
                let is_last = entry.is_last;
                match is_sse {
                    true => {
                        for message in events(&bytes) {
                            self.gets(self.record.calls[call].nonce.session, Some(call), message);
                        }
                    }
                    false => self.record.gets_reply(call, bytes.trim_ascii()),
                }
                self.shards[shard].connections.release_answers(key);
                self.connections[connection].flag.set();
                if is_last {
                    if is_sse && self.record.calls[call].answer == Answer::Waiting {
                        self.record.ends_silently(call);
                    }
                    self.is_right_failure(call, &bytes);
                    self.close(connection);
                }
            }
            Carries::Stream {
                client,
                session,
                is_ending,
            } => {
                for message in events(&bytes) {
                    self.record.tally.count("messages on GET streams");
                    self.gets(client, None, message);
                }
                let mut acts = Vec::new();
                let shard = &mut self.shards[shard];
                shard
                    .state
                    .stream_wrote(session, key.into(), true, &mut acts);
                shard.perform(acts);
                self.connections[connection].flag.set();
                if is_ending {
                    self.breaks(connection);
                }
            }
            Carries::Closed => {}
        }
        self.hear_news(&About::Nothing, None);
        true
    }

    /// A failure tells its reason.
    fn is_right_failure(&self, call: usize, bytes: &[u8]) {
        if let Some(How::Failed(reason)) = self.record.calls[call].ended
            && reason != Reason::Cancelled
        {
            let word = reason.word().as_bytes();
            assert!(bytes.windows(word.len()).any(|part| part == word));
        }
    }

    /// A client gets a message, perhaps on the answer of a call.
    fn gets(&mut self, client: usize, call: Option<usize>, message: &[u8]) {
        is_of_session(message, client);
        let value = parsed(message);
        let nonce = Nonce::all(message).first().copied();
        match value["method"].as_str() {
            None => self
                .record
                .gets_reply(call.expect("a reply to a call"), message),
            Some("notifications/progress") => {
                let call = call.expect("check 3: progress belongs to its call");
                self.record.calls[call].gets_progress(message);
            }
            Some("sampling/createMessage") => {
                let number = nonce.expect("it bears its mark").call;
                let asked = &self.asked[number];
                assert_eq!(asked.client, client, "check 1");
                let shown = asked
                    .shown
                    .expect("the gateway has passed it on")
                    .to_string();
                let due = passed(&asked.text.fill(&shown, "", ""));
                assert_eq!(
                    String::from_utf8_lossy(message),
                    String::from_utf8_lossy(&due)
                );
                let known = &mut self.clients[client].asked;
                assert!(!known.contains(&number), "asked twice");
                known.push(number);
                self.record.tally.count("requests that reached the client");
            }
            Some("notifications/message") => {
                let said = &mut self.said[nonce.expect("it bears its mark").call];
                assert_eq!(said.client, client, "check 1");
                assert!(
                    !std::mem::replace(&mut said.is_got, true),
                    "told twice: {value}"
                );
                assert_eq!(
                    String::from_utf8_lossy(message),
                    String::from_utf8_lossy(&said.text),
                    "check 8"
                );
            }
            Some("notifications/cancelled") => {
                let id = value["params"]["requestId"].as_u64();
                let own = self.asked.iter().filter(|asked| asked.client == client);
                let is_known = own
                    .filter(|asked| asked.is_withdrawn)
                    .any(|asked| asked.shown == id);
                assert!(is_known, "a request that it was to be asked: {value}");
            }
            Some(_) => {}
        }
    }
}
