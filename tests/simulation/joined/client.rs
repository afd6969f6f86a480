//! Clients: what they do, what they get, and what must hold of it.

use std::collections::BTreeSet;
use std::task::{Context, Waker};

use ringway::http::connections::{ConnectionKey, Delivery, Form, Wake};
use ringway::http::joined::PendingJoin;
use ringway::routing::client::Step;
use ringway::routing::joined::InFlight;
use ringway::routing::session::{SessionId, SessionKey, TokenId};
use ringway::routing::stream::Work;
use ringway::wire::scan;
use serde_json::{Value, json};

use crate::acts::manner;
use crate::checks::is_of_session;
use crate::joined::world::World;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: SessionId,
    pub(crate) is_open: bool,
    stream: Option<ConnectionKey>,
    /// Replaced, and not ended yet, with a write or without.
    older: Vec<(ConnectionKey, bool)>,
    /// What it has ever asked to be told of: servers and their URIs.
    subscribed: BTreeSet<(usize, String)>,
    /// Requests of servers: the id that it knows, and theirs.
    asked: Vec<(Value, String)>,
    cursors: Vec<(&'static str, String)>,
}

#[derive(Debug)]
pub(crate) struct Opening {
    client: usize,
    connection: ConnectionKey,
    pending: Option<PendingJoin>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Waiting,
    Done,
    /// Its client went.
    Gone,
}

/// A client's request.
#[derive(Debug)]
pub(crate) struct Call {
    client: usize,
    id: usize,
    method: &'static str,
    /// The server that it is meant for.
    server: Option<usize>,
    connection: ConnectionKey,
    in_flight: Option<InFlight>,
    pub(crate) state: State,
    has_token: bool,
    streams: bool,
    is_cancelled: bool,
    /// Progress that was reported and that came.
    pub(crate) said: usize,
    got: usize,
    /// How often the route had been configured when it began.
    configured: usize,
}

const LISTS: [(&str, &str, &str); 4] = [
    ("tools/list", "tools", "name"),
    ("prompts/list", "prompts", "name"),
    ("resources/list", "resources", "uri"),
    (
        "resources/templates/list",
        "resourceTemplates",
        "uriTemplate",
    ),
];

impl World {
    fn connect(&mut self, form: Form) -> (ConnectionKey, ringway::routing::calls::ReplyTo) {
        let connection = self.ground.open_connection().expect("room");
        let to = self.ground.begin_exchange(connection, form);
        (connection, to)
    }

    fn disconnect(&mut self, connection: ConnectionKey) {
        self.ground.end_exchange(connection);
        self.ground.close_connection(connection);
    }

    pub(crate) fn open(&mut self) {
        let client = self.clients.len();
        self.clients.push(Client {
            id: SessionId(0),
            is_open: false,
            stream: None,
            older: Vec::new(),
            subscribed: BTreeSet::new(),
            asked: Vec::new(),
            cursors: Vec::new(),
        });
        let form = Form::Opening {
            manner: manner(),
            sse: self.dice.chance(20),
        };
        let (connection, to) = self.connect(form);
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":"o","method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"~{client}:0~","version":"1"}}}}}}"#
        );
        let envelope = scan::scan(text.as_bytes()).expect("a message");
        let id = envelope.id.expect("an id");
        let pending = self.joined.open(
            text.as_bytes(),
            &envelope,
            &id,
            to,
            TokenId::ANYONE,
            [][..].into(),
        );
        match pending {
            Some(pending) => self.openings.push(Opening {
                client,
                connection,
                pending: Some(pending),
            }),
            None => {
                self.tally.count("sessions over the limit");
                self.disconnect(connection);
            }
        }
    }

    pub(crate) fn key_of(&self, client: usize) -> Option<SessionKey> {
        let known = &self.clients[client];
        self.joined
            .find(known.id, TokenId::ANYONE)
            .filter(|_| known.is_open)
    }

    /// What has come on a connection: messages, the head of a response, calls that ended
    /// without a message.
    fn take(&mut self, connection: ConnectionKey) -> (Vec<Value>, String, bool) {
        let (mut messages, mut head, mut is_over) = (Vec::new(), String::new(), false);
        let context = Context::from_waker(Waker::noop());
        while let Some(wake) = self.ground.poll_connection(connection, &context) {
            match wake {
                Wake::Deliveries(deliveries) => {
                    for delivery in deliveries {
                        is_over = true;
                        match delivery {
                            Delivery::Response { bytes, .. } => {
                                let text = String::from_utf8(bytes).expect("UTF-8");
                                let (first, body) = text.split_once("\r\n\r\n").expect("a head");
                                head = first.into();
                                match body.find('{') {
                                    Some(from) => {
                                        let to = body.rfind('}').expect("an end") + 1;
                                        messages.push(
                                            serde_json::from_str(&body[from..to]).expect("JSON"),
                                        );
                                    }
                                    None => panic!("{text}"),
                                }
                            }
                            Delivery::Message { message, .. } => {
                                messages.push(serde_json::from_slice(&message).expect("JSON"));
                            }
                            Delivery::Cancelled { .. } => {}
                        }
                    }
                }
                Wake::Events(mut events) => {
                    is_over |= events.ended() > 0;
                    while let Some((bytes, start)) = events.next_part() {
                        for event in crate::text::events(&bytes[start..]) {
                            messages.push(serde_json::from_slice(event).expect("JSON"));
                        }
                    }
                }
                Wake::Deadline => {}
                Wake::Evicted => panic!("evicted"),
            }
        }
        self.ground.release_answers(connection);
        (messages, head, is_over)
    }

    pub(crate) fn look_at_opening(&mut self, at: usize) -> bool {
        let connection = self.openings[at].connection;
        let (messages, head, _) = self.take(connection);
        let [message] = &messages[..] else {
            assert!(messages.is_empty());
            return false;
        };
        let Opening { client, .. } = self.openings.remove(at);
        self.disconnect(connection);
        assert_eq!(message["id"], "o");
        is_of_session(message.to_string().as_bytes(), client);
        let field = head
            .lines()
            .find_map(|line| line.strip_prefix("mcp-session-id: "));
        let Some(id) = field else {
            assert!(message.get("error").is_some(), "{message}");
            self.has_seen(&format!("client {client}: {message}"));
            self.tally.count("initialize refused");
            return true;
        };
        assert!(message.get("result").is_some(), "{message}");
        let id = uuid::Uuid::parse_str(id).expect("an id").as_u128();
        self.clients[client].id = SessionId(id);
        // A server that can do less may have come meanwhile.
        let lives = self.joined.find(SessionId(id), TokenId::ANYONE).is_some();
        self.clients[client].is_open = lives;
        self.has_seen(&format!("client {client} has a session"));
        self.tally.count("sessions");
        if self.key_of(client).is_some() {
            self.send(
                client,
                &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            );
        }
        true
    }

    /// A message that needs no answer, or has it at once.
    fn send(&mut self, client: usize, message: &Value) -> Option<Value> {
        let key = self.key_of(client)?;
        let (connection, to) = self.connect(Form::Stream);
        let text = message.to_string();
        self.has_seen(&format!("client {client}: {text}"));
        let envelope = scan::scan(text.as_bytes()).expect("a message");
        let step = self.joined.message(key, text.as_bytes(), &envelope, to);
        self.disconnect(connection);
        match step {
            Step::Accepted => None,
            Step::Answer(message) | Step::Failed(_, message) => {
                Some(serde_json::from_slice(&message).expect("JSON"))
            }
            step => panic!("{step:?}"),
        }
    }

    fn living(&mut self) -> Option<usize> {
        let living: Vec<_> = (0..self.clients.len())
            .filter(|client| self.key_of(*client).is_some())
            .collect();
        (!living.is_empty()).then(|| self.dice.pick(&living))
    }

    pub(crate) fn act(&mut self) {
        let Some(client) = self.living() else { return };
        self.drain_calls(client);
        match self.dice.below(100) {
            0..=39 => self.call(client),
            40..=49 => self.list(client),
            50..=56 => self.cancel(client),
            57..=66 => self.open_stream(client),
            67..=84 => self.answer_question(client),
            85..=87 => {
                let unknown = ["nobody-t", "one", "nick.", "two-"];
                let name = self.dice.pick(&unknown);
                let params = json!({"name": name});
                let is_taken = self.route.iter().any(|up| {
                    self.public(up.server, "t").as_deref() == Some("t")
                        || name.starts_with(&format!("{}-", self.servers[up.server].name))
                });
                if !is_taken {
                    let text = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
                    let answer = self.send(client, &text).expect("an answer");
                    assert_eq!(answer["error"]["code"], -32602, "{answer}");
                    self.tally.count("unknown names");
                }
            }
            88..=89 => {
                let text = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
                self.send(client, &text);
            }
            90 => {
                let text = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
                assert_eq!(
                    self.send(client, &text).expect("an answer")["result"],
                    json!({})
                );
            }
            91..=97 => self.subscribe(client),
            _ => self.delete(client),
        }
    }

    pub(crate) fn delete(&mut self, client: usize) {
        if let Some(key) = self.key_of(client) {
            self.has_seen(&format!("client {client}: DELETE"));
            self.clients[client].is_open = false;
            self.joined.end_session(key);
            self.tally.count("sessions deleted");
        }
    }

    fn form(&mut self) -> (Form, bool) {
        let streams = self.dice.chance(70);
        match self.dice.chance(50) {
            true => (Form::Stream, true),
            false => (
                Form::Json {
                    manner: manner(),
                    streams,
                },
                streams,
            ),
        }
    }

    /// A request goes out. What it has come to at once is checked.
    fn begin(
        &mut self,
        client: usize,
        method: &'static str,
        server: Option<usize>,
        mut params: Value,
        token: bool,
    ) {
        let Some(key) = self.key_of(client) else {
            return;
        };
        let call = self.calls.len();
        // Few ids, so that they meet.
        let id = self.dice.below(5);
        params["_meta"] = json!({"nonce": format!("~{client}:{call}~")});
        if let Some(server) = server {
            params["_meta"]["target"] = json!(server);
        }
        if token {
            params["_meta"]["progressToken"] = json!(format!("t{call}"));
        }
        let (form, streams) = self.form();
        let (connection, to) = self.connect(form);
        let text =
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        self.has_seen(&format!("client {client} call {call}: {text}"));
        let envelope = scan::scan(text.as_bytes()).expect("a message");
        let step = self.joined.message(key, text.as_bytes(), &envelope, to);
        let same = self.calls.iter();
        let same = same.filter(|it| it.client == client && it.id == id && it.state != State::Done);
        let (waiting, any) = (
            same.clone().any(|it| it.state == State::Waiting),
            same.count(),
        );
        let mut known = Call {
            client,
            id,
            method,
            server,
            connection,
            in_flight: None,
            state: State::Waiting,
            has_token: token,
            streams,
            is_cancelled: false,
            said: 0,
            got: 0,
            configured: self.configured,
        };
        match step {
            Step::InFlight { id, .. } => {
                assert!(!waiting, "check 2: one id is in flight twice");
                known.in_flight = Some(id);
                self.calls.push(known);
                self.tally.count("calls");
            }
            Step::Refused(_) => {
                assert!(any > 0, "check 2: the id is free: {text}");
                self.tally.count("ids in flight twice refused");
                known.state = State::Done;
                self.calls.push(known);
                self.disconnect(connection);
            }
            Step::Answer(message) | Step::Failed(_, message) => {
                let message: Value = serde_json::from_slice(&message).expect("JSON");
                self.calls.push(known);
                self.reply(call, &message);
                self.disconnect(connection);
                self.tally.count("answers at once");
            }
            Step::Accepted => panic!("a request is answered"),
        }
    }

    fn call(&mut self, client: usize) {
        let up = self.dice.pick(&self.route.clone());
        let server = up.server;
        let token = self.dice.chance(50);
        let name = |world: &World, own: &str| world.public(server, own).expect("it is served");
        let own = self.dice.pick(&["t", "al", "w ü/"]);
        match self.dice.below(10) {
            0..=4 => {
                let params = json!({"name": name(self, own)});
                self.begin(client, "tools/call", Some(server), params, token);
            }
            5 => {
                let params = json!({"name": name(self, own)});
                self.begin(client, "prompts/get", Some(server), params, token);
            }
            6 => {
                let own = self.dice.pick(&["res:/x", "al:x"]);
                let params = json!({"uri": name(self, own)});
                self.begin(client, "resources/read", Some(server), params, token);
            }
            7 => {
                let reference = match self.dice.chance(50) {
                    true => json!({"type": "ref/prompt", "name": name(self, "t")}),
                    false => json!({"type": "ref/resource", "uri": name(self, "res:/{x}")}),
                };
                let params = json!({"ref": reference, "argument": {"name": "a", "value": "b"}});
                self.begin(client, "completion/complete", Some(server), params, token);
            }
            _ => {
                let level = self.dice.pick(&["debug", "error"]);
                self.begin(
                    client,
                    "logging/setLevel",
                    None,
                    json!({"level": level}),
                    false,
                );
            }
        }
    }

    fn subscribe(&mut self, client: usize) {
        let server = self.dice.pick(&self.route.clone()).server;
        let own = self.dice.pick(&["res:/u1", "res:/u2"]);
        let method = match self.dice.chance(80) {
            true => "resources/subscribe",
            false => "resources/unsubscribe",
        };
        self.clients[client].subscribed.insert((server, own.into()));
        let uri = self.public(server, own).expect("it is served");
        self.begin(client, method, Some(server), json!({ "uri": uri }), false);
    }

    fn list(&mut self, client: usize) {
        let (method, ..) = self.dice.pick(&LISTS);
        let cursors: Vec<_> = self.clients[client].cursors.clone();
        let mine: Vec<_> = cursors.iter().filter(|(of, _)| *of == method).collect();
        let params = match mine.last().filter(|_| self.dice.chance(60)) {
            Some((_, cursor)) => json!({"cursor": cursor}),
            None => json!({}),
        };
        // The session's id in a cursor is random: it is not what a seed repeats.
        let before = self.fingerprint;
        self.begin(client, method, None, params, false);
        self.fingerprint = before;
    }

    fn cancel(&mut self, client: usize) {
        let waiting: Vec<_> = (0..self.calls.len())
            .filter(|at| {
                self.calls[*at].client == client && self.calls[*at].state == State::Waiting
            })
            .collect();
        let id = match waiting.is_empty() || self.dice.chance(20) {
            true => self.dice.below(5),
            false => {
                let at = self.dice.pick(&waiting);
                self.calls[at].id
            }
        };
        for call in &mut self.calls {
            if call.client == client && call.id == id && call.state == State::Waiting {
                call.is_cancelled = true;
                self.tally.count("calls cancelled");
            }
        }
        let params = json!({"requestId": id});
        let text = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        self.send(client, &text);
        self.drain_calls(client);
        let mut cancelled = self.calls.iter().filter(|it| it.is_cancelled);
        assert!(
            cancelled.all(|it| it.state != State::Waiting),
            "check 2: cancelled, and goes on"
        );
    }

    fn answer_question(&mut self, client: usize) {
        let asked = self.clients[client].asked.clone();
        if asked.is_empty() || self.dice.chance(10) {
            // An id that nobody asked under, or that another client knows.
            let others: Vec<_> = self
                .clients
                .iter()
                .flat_map(|it| it.asked.clone())
                .collect();
            let own: Vec<_> = asked.iter().map(|(id, _)| id.clone()).collect();
            let other = others.iter().find(|(id, _)| !own.contains(id));
            if let Some((id, _)) = other {
                let text = json!({"jsonrpc": "2.0", "id": id, "result": {"to": "nobody"}});
                // It may be the id of a question that this client has not been told of yet.
                let mut mine = self.questions.iter().filter(|it| it.client == client);
                if mine.next().is_none() {
                    self.send(client, &text);
                }
            }
            return;
        }
        let (id, own) = self.dice.pick(&asked);
        let text = json!({"jsonrpc": "2.0", "id": id, "result": {"to": own}});
        self.send(client, &text);
    }

    /// Something of what has come is looked at.
    pub(crate) fn client_goes_on(&mut self) {
        if !self.openings.is_empty() && self.dice.chance(40) {
            let at = self.dice.below(self.openings.len());
            self.look_at_opening(at);
            return;
        }
        if self.clients.is_empty() {
            return;
        }
        let client = self.dice.below(self.clients.len());
        match self.dice.chance(50) {
            true => self.drain_calls(client),
            false => {
                self.read_stream(client);
            }
        }
    }

    pub(crate) fn drain_calls(&mut self, client: usize) {
        for at in 0..self.calls.len() {
            if self.calls[at].client == client && self.calls[at].state == State::Waiting {
                self.look_at_call(at);
            }
        }
    }

    /// What has come for a call. True if it is over by that.
    fn look_at_call(&mut self, at: usize) -> bool {
        let connection = self.calls[at].connection;
        let client = self.calls[at].client;
        let (messages, _, is_over) = self.take(connection);
        let mut is_replied = false;
        for message in messages {
            is_of_session(message.to_string().as_bytes(), client);
            assert!(
                !is_replied,
                "check 3: something comes behind the reply: {message}"
            );
            match message["method"].as_str() {
                Some("notifications/progress") => {
                    let call = &mut self.calls[at];
                    call.got += 1;
                    let params = &message["params"];
                    assert!(
                        call.has_token && call.streams,
                        "check 3: nobody asked for {message}"
                    );
                    assert_eq!(params["progress"], call.got, "check 3: out of order");
                    assert_eq!(params["progressToken"], format!("t{at}"));
                    assert_eq!(params["message"], format!("~{client}:{at}~"), "check 1");
                }
                Some(_) => self.hears(client, &message),
                None => {
                    is_replied = true;
                    self.reply(at, &message);
                }
            }
        }
        if is_over && !is_replied {
            assert!(
                self.calls[at].is_cancelled,
                "check 2: no reply: {:?}",
                self.calls[at]
            );
            self.calls[at].state = State::Done;
        }
        if is_over {
            self.disconnect(connection);
        }
        is_over
    }

    fn reply(&mut self, at: usize, message: &Value) {
        let text = message.to_string();
        let call = &self.calls[at];
        let (client, method, server) = (call.client, call.method, call.server);
        assert_eq!(call.state, State::Waiting, "check 2: a second reply");
        assert_eq!(
            message["id"], call.id,
            "check 2: the reply names another call"
        );
        if message.get("error").is_none() && call.streams && call.has_token {
            assert_eq!(call.got, call.said, "check 3: progress is missing");
        }
        is_of_session(text.as_bytes(), client);
        if !method.ends_with("/list") {
            self.has_seen(&format!("client {client} call {at} gets {text}"));
        }
        self.calls[at].state = State::Done;
        let result = &message["result"];
        if result.is_null() {
            let data = &message["error"]["data"];
            if let (Some(from), Some(server)) = (data["server"].as_u64(), server) {
                assert_eq!(from, server as u64, "the error of another server: {text}");
                assert_eq!(data["nonce"], format!("~{client}:{at}~"), "check 1: {text}");
            }
            self.tally.count("errors");
            return;
        }
        assert!(
            result.get("late").is_none() && result.get("foreign").is_none(),
            "check 1: {text}"
        );
        self.tally.count("replies");
        let nonce = format!("~{client}:{at}~");
        if let Some((_, member, key)) = LISTS.iter().find(|(of, ..)| *of == method) {
            self.is_merged(at, result, member, key);
            return;
        }
        let uri = match method {
            "tools/call" => {
                assert_eq!(result["content"][0]["text"], nonce, "check 1: {text}");
                &result["content"][1]["uri"]
            }
            "prompts/get" => {
                assert_eq!(result["nonce"], nonce, "check 1: {text}");
                &result["messages"][0]["content"]["uri"]
            }
            "resources/read" => {
                assert_eq!(result["contents"][0]["text"], nonce, "check 1: {text}");
                &result["contents"][0]["uri"]
            }
            "completion/complete" => {
                assert_eq!(result["nonce"], nonce, "check 1: {text}");
                &Value::Null
            }
            _ => return,
        };
        let server = server.expect("a server");
        assert_eq!(
            result["server"], server,
            "check 1: of another server: {text}"
        );
        if let Some(uri) = uri.as_str() {
            self.is_named(at, server, "res:/x", uri);
        }
    }

    /// A thing of a server has the name that the route gives it, or, if the route was
    /// configured since the call began, one that it may have had.
    fn is_named(&self, call: usize, server: usize, own: &str, public: &str) {
        if self.calls[call].configured == self.configured {
            let expected = self.public(server, own);
            assert_eq!(expected.as_deref(), Some(public), "{own} of {server}");
            return;
        }
        let name = &self.servers[server].name;
        let nicks = [format!("nick.{name}"), format!("nick:{name}")];
        let is_nick = own.starts_with("al") && nicks.iter().any(|nick| nick == public);
        let is_own = public == own || public == format!("{name}-{own}");
        assert!(is_own || is_nick, "{public} of {name}");
    }

    /// A merged list has each server's things under that server's names, together.
    fn is_merged(&mut self, call: usize, result: &Value, member: &str, key: &str) {
        let Call { client, method, .. } = self.calls[call];
        let items = result[member].as_array().expect("a list");
        let mut order = Vec::new();
        for item in items {
            let of = item["description"].as_str().expect("a description");
            let mut words = of.split(' ');
            let of: usize = words.next().expect("a number").parse().expect("a number");
            let own = item["own"].as_str().expect("its own name");
            if order.last() != Some(&of) {
                order.push(of);
            }
            self.is_named(call, of, own, item[key].as_str().expect("a name"));
        }
        if self.calls[call].configured == self.configured {
            let places = order
                .iter()
                .map(|of| self.route.iter().position(|up| up.server == *of));
            assert!(places.is_sorted(), "not in the order of the route");
        }
        let distinct: BTreeSet<_> = order.iter().collect();
        assert_eq!(
            distinct.len(),
            order.len(),
            "the things of one server stand apart"
        );
        if let Some(cursor) = result["nextCursor"].as_str() {
            self.clients[client].cursors.push((method, cursor.into()));
            self.tally.count("pages");
        }
        if order.len() > 1 {
            self.tally.count("lists of several servers");
        }
    }

    /// A message that is not about a call.
    fn hears(&mut self, client: usize, message: &Value) {
        let text = message.to_string();
        is_of_session(text.as_bytes(), client);
        self.has_seen(&format!("client {client} hears {}", message["method"]));
        let params = &message["params"];
        match message["method"].as_str() {
            Some("roots/list") => {
                let own = params["own"].as_str().expect("a question").to_owned();
                let mut known = self.clients[client].asked.iter();
                assert!(
                    known.all(|(id, _)| *id != message["id"]),
                    "an id for two questions"
                );
                self.clients[client]
                    .asked
                    .push((message["id"].clone(), own));
                self.tally.count("questions that reached the client");
            }
            Some("notifications/resources/updated") => {
                let uri = params["uri"].as_str().expect("a URI");
                let is_known = match params["server"].as_u64() {
                    Some(server) => {
                        let name = &self.servers[server as usize].name;
                        uri == format!("{name}-res:/u1") || uri == "res:/u1"
                    }
                    None => self.clients[client].subscribed.iter().any(|(server, own)| {
                        let name = &self.servers[*server].name;
                        uri == own || uri == format!("{name}-{own}")
                    }),
                };
                assert!(is_known, "check 5: told of {uri}, which it did not ask for");
                self.tally.count("updates told");
            }
            Some(_) => self.tally.count("messages told"),
            None => panic!("check 1: an answer to nothing: {text}"),
        }
    }

    fn open_stream(&mut self, client: usize) {
        let Some(key) = self.key_of(client) else {
            return;
        };
        let connection = self.ground.open_connection().expect("room");
        self.joined.open_stream(key, connection);
        if let Some(older) = self.clients[client].stream.replace(connection) {
            self.clients[client].older.push((older, false));
            self.tally.count("streams replaced");
        }
        self.tally.count("streams opened");
    }

    /// A stream does what it has to. True if something was told.
    pub(crate) fn read_stream(&mut self, client: usize) -> bool {
        // Without a session the key is that of nobody; streams end then.
        let key = self.joined.find(self.clients[client].id, TokenId::ANYONE);
        for (older, _) in std::mem::take(&mut self.clients[client].older) {
            if let Some(key) = key {
                let work = self.joined.stream_work(key, older, &mut Vec::new());
                assert_eq!(
                    work,
                    Work::End,
                    "check 5: told on a stream that was replaced"
                );
                self.joined.stream_gone(key, older);
            }
            self.ground.close_connection(older);
        }
        let Some(stream) = self.clients[client].stream else {
            return false;
        };
        let Some(key) = key else {
            self.ground.close_connection(stream);
            self.clients[client].stream = None;
            return true;
        };
        let mut out = Vec::new();
        match self.joined.stream_work(key, stream, &mut out) {
            Work::Rest => {
                let context = Context::from_waker(Waker::noop());
                self.ground.poll_connection(stream, &context);
                false
            }
            Work::Write(_) => {
                let fails = !self.is_calm && self.dice.chance(8);
                if fails {
                    self.joined.stream_wrote(key, stream, false);
                    self.joined.stream_gone(key, stream);
                    self.ground.close_connection(stream);
                    self.clients[client].stream = None;
                    self.tally.count("stream writes that fail");
                    return true;
                }
                for event in crate::text::events(&out) {
                    let message: Value = serde_json::from_slice(event).expect("JSON");
                    self.hears(client, &message);
                }
                self.joined.stream_wrote(key, stream, true);
                true
            }
            Work::End => {
                self.joined.stream_gone(key, stream);
                self.ground.close_connection(stream);
                self.clients[client].stream = None;
                self.tally.count("streams that overflowed");
                true
            }
        }
    }

    pub(crate) fn vanish(&mut self) {
        match self.dice.below(3) {
            0 if !self.openings.is_empty() => {
                let at = self.dice.below(self.openings.len());
                let Opening {
                    connection,
                    pending,
                    ..
                } = self.openings.remove(at);
                // Either may come first.
                if self.dice.chance(50) {
                    drop(pending);
                    self.disconnect(connection);
                } else {
                    self.disconnect(connection);
                    drop(pending);
                }
                self.may_end = true;
                self.tally.count("openings that are abandoned");
            }
            1 => {
                let waiting: Vec<_> = (0..self.calls.len())
                    .filter(|at| self.calls[*at].state == State::Waiting)
                    .collect();
                if waiting.is_empty() {
                    return;
                }
                let at = self.dice.pick(&waiting);
                let call = &mut self.calls[at];
                call.state = match self.cancels_on_disconnect {
                    true => State::Done,
                    false => State::Gone,
                };
                let (connection, in_flight) = (call.connection, call.in_flight);
                self.ground.close_connection(connection);
                let in_flight = in_flight.expect("in flight");
                self.joined.client_gone(&[in_flight]);
                self.tally.count("clients that vanish");
            }
            _ => {
                let client = self.living();
                let Some(client) = client else { return };
                let (Some(key), Some(stream)) =
                    (self.key_of(client), self.clients[client].stream.take())
                else {
                    return;
                };
                self.joined.stream_gone(key, stream);
                self.ground.close_connection(stream);
                self.tally.count("streams that break");
            }
        }
    }

    /// Check 7: no other session notices what happens.
    pub(crate) fn sessions_end_for_a_reason(&mut self) {
        for client in 0..self.clients.len() {
            let known = &self.clients[client];
            if known.is_open && self.joined.find(known.id, TokenId::ANYONE).is_none() {
                assert!(self.may_end, "session {client} has ended for no reason");
                self.clients[client].is_open = false;
                self.tally.count("sessions ended by a lesser server");
            }
        }
    }
}
