//! The model servers, what they say, and what they check of what they are told.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use ringway::http::joined::Seat;
use ringway::http::shard::Shard;
use ringway::routing::ledger::{Refusal, Told};
use ringway::routing::letters::Note;
use ringway::routing::outcome::Outcome;
use ringway::routing::private::{End, ExchangeKey, Order, Request, Verb};
use ringway::routing::upstream_id::UpstreamId;
use ringway::wire::handshake::Handshake;
use ringway::wire::notice::Kinds;
use ringway::wire::scan::{self, Kind};
use serde_json::{Value, json};

use crate::checks::is_of_session;
use crate::joined::world::{EVERYTHING, World};
use crate::text::Nonce;

const ABILITIES: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"completions":{},"logging":{}}"#;

const LESS: &str = r#"{"tools":{"listChanged":true},"logging":{}}"#;

/// A request that a server has got.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    message: Value,
    exchange: Option<ExchangeKey>,
    session: Option<String>,
    /// Progress that it has reported.
    said: usize,
}

/// A session at a server where each client has its own.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    client: usize,
    pub(crate) is_alive: bool,
}

/// What a server has asked a client.
#[derive(Debug)]
pub(crate) struct Question {
    server: usize,
    session: String,
    pub(crate) client: usize,
    own_id: String,
    is_answered: bool,
}

pub(crate) struct Server {
    pub(crate) name: String,
    place: usize,
    pub(crate) is_private: bool,
    pub(crate) seat: Seat,
    orders: Rc<RefCell<VecDeque<Order>>>,
    pub(crate) pending: Vec<Pending>,
    /// What it has answered, or was told to forget.
    finished: Vec<Pending>,
    pub(crate) under_way: Vec<ExchangeKey>,
    /// Those of them whose responses have not begun.
    unbegun: Vec<ExchangeKey>,
    pub(crate) streams: Vec<(ExchangeKey, Option<String>)>,
    pub(crate) sessions: BTreeMap<String, Upstream>,
    pub(crate) is_up: bool,
    epoch: u64,
    is_lesser: bool,
    /// What it was asked to tell of, and has not answered yet; what it tells of.
    pub(crate) wanted: Vec<String>,
    pub(crate) held: BTreeSet<String>,
    /// The route has it no longer.
    pub(crate) is_gone: bool,
}

impl Server {
    pub(crate) fn new(
        name: &str,
        place: usize,
        is_private: bool,
        seat: Seat,
        orders: Rc<RefCell<VecDeque<Order>>>,
    ) -> Server {
        Server {
            name: name.into(),
            place,
            is_private,
            seat,
            orders,
            pending: Vec::new(),
            finished: Vec::new(),
            under_way: Vec::new(),
            unbegun: Vec::new(),
            streams: Vec::new(),
            sessions: BTreeMap::new(),
            is_up: is_private,
            epoch: 0,
            is_lesser: false,
            wanted: Vec::new(),
            held: BTreeSet::new(),
            is_gone: false,
        }
    }

    pub(crate) fn shard(&self) -> &Rc<Shard> {
        &self.seat.shard
    }

    fn handshake(&self, is_lesser: bool) -> String {
        let abilities = if is_lesser { LESS } else { ABILITIES };
        format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{abilities},"serverInfo":{{"name":"{}","version":"1"}}}}"#,
            self.name
        )
    }

    /// A new child. True if sessions end by that.
    pub(crate) fn up(&mut self, is_lesser: bool) -> bool {
        let ends = is_lesser && !self.is_lesser && self.epoch > 0;
        self.is_lesser = is_lesser;
        self.epoch += 1;
        self.is_up = true;
        let text = self.handshake(is_lesser);
        let handshake = Handshake::read(text.as_bytes(), EVERYTHING).expect("a handshake");
        self.shard().upstream_up(self.epoch, Arc::new(handshake));
        ends
    }

    fn down(&mut self) {
        self.is_up = false;
        self.shard().upstream_down();
        self.finished.append(&mut self.pending);
        self.wanted.clear();
        // A ledger would restore these; nothing is lost without a word.
        let held = std::mem::take(&mut self.held);
        held.iter()
            .for_each(|uri| self.shard().told(uri, Told::Lost));
    }

    fn take(&mut self, at: usize) -> Pending {
        let pending = self.pending.remove(at);
        self.finished.push(pending.clone());
        if self.finished.len() > 20 {
            self.finished.remove(0);
        }
        pending
    }

    /// What the server says about a request.
    fn say(&mut self, pending: &Pending, member: &str, value: &Value) {
        let id = &pending.message["id"];
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{value}}}"#);
        self.hear(pending.exchange, line.as_bytes());
    }

    /// The head of a response goes out.
    fn begin_response(&mut self, key: ExchangeKey) {
        if let Some(place) = self.unbegun.iter().position(|known| *known == key) {
            self.unbegun.swap_remove(place);
            self.shard().upstream_head(key, None);
        }
    }

    fn hear(&mut self, exchange: Option<ExchangeKey>, line: &[u8]) {
        if let Some(key) = exchange {
            self.begin_response(key);
            self.shard().upstream_heard(key, line);
            return;
        }
        let envelope = scan::scan(line).expect("a message");
        let field = match envelope.kind {
            Kind::Notification => envelope.progress_token,
            _ => envelope.id,
        };
        let span = field.expect("an id").span;
        let id = UpstreamId::read(span.of(line)).expect("an id").id;
        match envelope.kind {
            Kind::Result => self.shard().answer(id, span, line, Outcome::Ok),
            Kind::Error => self.shard().answer(id, span, line, Outcome::Error),
            _ => self.shard().progress(id, span, line),
        }
    }
}

impl Pending {
    fn nonce(&self) -> String {
        let nonce = self.message["params"]["_meta"]["nonce"].as_str();
        nonce.unwrap_or_default().into()
    }

    fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }
}

impl World {
    /// What the gateway sends arrives.
    pub(crate) fn pump(&mut self) {
        for server in 0..self.servers.len() {
            self.pump_server(server);
        }
    }

    pub(crate) fn pump_server(&mut self, at: usize) {
        if self.servers[at].is_private {
            loop {
                let next = self.servers[at].orders.borrow_mut().pop_front();
                match next {
                    None => return,
                    Some(Order::Begin(key, request)) => self.carry_out(at, key, &request),
                    Some(Order::Abort(key)) => self.abort(at, key),
                }
            }
        }
        let shard = self.servers[at].shard().clone();
        let batch = shard.state.borrow_mut().outgoing.take_batch(Vec::new());
        shard.written(batch.len());
        for line in batch
            .split(|byte| *byte == b'\n')
            .filter(|it| !it.is_empty())
        {
            let message = serde_json::from_slice(line).expect("JSON");
            self.told(at, message, None, None);
        }
        let notes = shard.state.borrow_mut().take_notes();
        for note in notes {
            let server = &mut self.servers[at];
            match note {
                Note::Want(uri) => {
                    assert!(!server.held.contains(&*uri), "check 4: wanted twice: {uri}");
                    assert!(server.is_up, "wanted of a server that is down");
                    server.wanted.push(uri.into());
                }
                Note::Release(uri) => {
                    assert!(server.held.remove(&*uri), "check 4: not held: {uri}");
                }
                note => panic!("{note:?}"),
            }
        }
    }

    fn abort(&mut self, at: usize, key: ExchangeKey) {
        let server = &mut self.servers[at];
        server.unbegun.retain(|known| *known != key);
        server.under_way.retain(|known| *known != key);
        server.streams.retain(|(known, _)| *known != key);
        server.pending.retain(|it| it.exchange != Some(key));
        let shard = server.shard().clone();
        shard.upstream_ended(key, End::Done);
    }

    fn carry_out(&mut self, at: usize, key: ExchangeKey, request: &Request) {
        let session = request.address.session.as_ref();
        let session = session.map(|id| String::from_utf8(id.to_vec()).expect("ASCII"));
        let shard = self.servers[at].shard().clone();
        let is_known = session.as_ref().is_none_or(|session| {
            let known = self.servers[at].sessions.get(session);
            known.expect("a session that it gave").is_alive
        });
        if request.verb == Verb::Delete {
            let session = session.expect("a session ends");
            self.trace(|| format!("server {at}: DELETE {session}"));
            let known = self.servers[at].sessions.get_mut(&session).expect("known");
            known.is_alive = false;
            shard.upstream_ended(key, End::Done);
            return;
        }
        if !is_known {
            shard.upstream_ended(key, End::NoSession);
            return;
        }
        self.servers[at].under_way.push(key);
        self.servers[at].unbegun.push(key);
        if request.verb == Verb::Get || self.dice.chance(30) {
            self.servers[at].begin_response(key);
        }
        if request.verb == Verb::Get {
            self.servers[at].streams.push((key, session));
            return;
        }
        let message: Value = serde_json::from_slice(&request.body).expect("JSON");
        if !self.told(at, message, Some(key), session) {
            self.end(at, key, End::Done);
        }
    }

    pub(crate) fn end(&mut self, at: usize, key: ExchangeKey, end: End) {
        let server = &mut self.servers[at];
        if matches!(end, End::Done) {
            server.begin_response(key);
        }
        server.unbegun.retain(|known| *known != key);
        server.under_way.retain(|known| *known != key);
        server.streams.retain(|(known, _)| *known != key);
        server.pending.retain(|it| it.exchange != Some(key));
        let shard = server.shard().clone();
        shard.upstream_ended(key, end);
    }

    /// A server is told something. True if it is a request.
    fn told(
        &mut self,
        at: usize,
        message: Value,
        exchange: Option<ExchangeKey>,
        session: Option<String>,
    ) -> bool {
        let text = message.to_string();
        self.has_seen(&format!("server {at} {}: {text}", self.servers[at].name));
        let server = &self.servers[at];
        if let Some(session) = &session {
            // Check 1: an upstream session is one client's.
            is_of_session(text.as_bytes(), server.sessions[session].client);
        }
        let params = &message["params"];
        let target = &params["_meta"]["target"];
        if !target.is_null() {
            assert_eq!(
                *target,
                json!(at),
                "check 1: meant for another server: {text}"
            );
        }
        let Some(method) = message["method"].as_str() else {
            self.answered(at, &message, session.as_deref());
            return false;
        };
        if message.get("id").is_none() {
            if method == "notifications/cancelled" {
                let id = &params["requestId"];
                let of = |it: &Pending| it.message["id"] == *id && it.session == session;
                let place = server.pending.iter().position(of);
                if let Some(place) = place {
                    self.servers[at].take(place);
                    self.tally.count("cancels that reached a server");
                }
            }
            return false;
        }
        match method {
            "tools/call" | "prompts/get" => {
                let name = params["name"].as_str().expect("a name");
                assert!(
                    ["t", "al", "w ü/"].contains(&name),
                    "not a name of its own: {text}"
                );
            }
            "resources/read" => {
                let uri = params["uri"].as_str().expect("a URI");
                assert!(
                    ["res:/x", "al:x"].contains(&uri),
                    "not a URI of its own: {text}"
                );
            }
            "resources/subscribe" | "resources/unsubscribe" => {
                let uri = params["uri"].as_str().expect("a URI");
                assert!(uri.starts_with("res:/"), "not a URI of its own: {text}");
            }
            "completion/complete" => {
                let name = &params["ref"]["name"];
                assert!(*name == "t" || params["ref"]["uri"] == "res:/{x}", "{text}");
            }
            "initialize" => assert!(session.is_none()),
            _ => {
                let cursor = params["cursor"].as_str();
                if let Some(cursor) = cursor {
                    // Cursors are by the names of servers. Through a plain route all is passed on as it is, also what is older.
                    let is_older = self.route.len() == 1;
                    let mut named = self.servers.iter().filter(|it| it.name == server.name);
                    let is_own = named.any(|it| cursor == format!("c {}", it.place));
                    assert!(is_own || is_older, "another server's cursor: {cursor}");
                }
            }
        }
        let known = server.pending.iter();
        let mut same = known.filter(|it| it.session == session && it.exchange.is_none());
        assert!(
            same.all(|it| it.message["id"] != message["id"]),
            "an id comes twice: {text}"
        );
        self.servers[at].pending.push(Pending {
            message,
            exchange,
            session,
            said: 0,
        });
        true
    }

    /// A client's answer to something that the server asked.
    fn answered(&mut self, at: usize, message: &Value, session: Option<&str>) {
        let own = message["id"].as_str().expect("an id of its own");
        let question = self.questions.iter_mut().find(|it| it.own_id == own);
        let question = question.expect("an answer to nothing that was asked");
        assert_eq!(question.server, at, "an answer for another server");
        assert_eq!(
            Some(&*question.session),
            session,
            "an answer in another session"
        );
        assert!(!question.is_answered, "a second answer");
        question.is_answered = true;
        if let Some(own_id) = message["result"]["to"].as_str() {
            assert_eq!(own_id, own, "the answer to another question");
            self.tally.count("answers that reached a server");
        }
    }

    /// Some server says something.
    pub(crate) fn speak(&mut self) {
        let at = match self.dice.chance(95) {
            true => self.dice.pick(&self.route).server,
            false => self.dice.below(self.servers.len()),
        };
        let count = self.servers[at].pending.len();
        let is_up = self.servers[at].is_up;
        let what = match is_up || self.dice.chance(80) {
            true => self.dice.below(100),
            // It comes again soon.
            false => 99,
        };
        match what {
            0..=49 if count > 0 && is_up => {
                let pending = self.dice.below(count);
                self.answer(at, pending);
            }
            50..=63 if count > 0 && is_up => {
                let pending = self.dice.below(count);
                self.report(at, pending);
            }
            64..=68 if is_up => self.answer_again(at),
            69..=73 if is_up => self.answer_of_another(at),
            74..=90 if is_up => self.say_on_a_stream(at),
            91..=95 => {
                self.decide(at);
            }
            96..=99 if self.has_faults && !self.servers[at].is_gone => self.fail(at),
            _ => {}
        }
    }

    /// The result for a request.
    fn result(&mut self, at: usize, pending: &Pending) -> Value {
        let nonce = pending.nonce();
        let client = pending
            .session
            .as_ref()
            .map(|session| self.servers[at].sessions[session].client);
        let mark = client.map_or(String::new(), |client| format!("~{client}:0~"));
        let link = json!({"type": "resource_link", "uri": "res:/x", "name": "n"});
        let item = |member: &str, key: &str, names: &[&str]| {
            let items: Vec<_> = names
                .iter()
                .map(|name| {
                    let mut item = json!({"description": format!("{at} {mark}")});
                    item["name"] = json!("n");
                    item["own"] = json!(name);
                    item[key] = json!(name);
                    item
                })
                .collect();
            json!({ member: items })
        };
        let mut result = match pending.method() {
            "tools/call" => json!({"content": [{"type": "text", "text": nonce}, link]}),
            "prompts/get" => {
                json!({"messages": [{"role": "user", "content": link}], "nonce": nonce})
            }
            "resources/read" => json!({"contents": [{"uri": "res:/x", "text": nonce}]}),
            "tools/list" => item("tools", "name", &["t", "al", "w ü/"]),
            "prompts/list" => item("prompts", "name", &["t"]),
            "resources/list" => item("resources", "uri", &["res:/x", "al:x"]),
            "resources/templates/list" => item("resourceTemplates", "uriTemplate", &["res:/{x}"]),
            "resources/subscribe" | "resources/unsubscribe" | "logging/setLevel" => json!({}),
            _ => json!({ "nonce": nonce }),
        };
        let is_list = pending.method().ends_with("/list");
        if is_list && self.dice.chance(40) {
            result["nextCursor"] = json!(format!("c {at}"));
        }
        if !is_list {
            result["server"] = json!(at);
        }
        result
    }

    pub(crate) fn answer(&mut self, at: usize, pending: usize) {
        let is_open = self.servers[at].pending[pending].method() == "initialize";
        if is_open {
            self.answer_initialize(at, pending);
            return;
        }
        let pending = self.servers[at].take(pending);
        let is_broken = !self.is_calm && self.has_faults && self.dice.chance(5);
        if let Some(key) = pending.exchange.filter(|_| is_broken) {
            self.tally.count("exchanges that break");
            let may_forget = self.servers[at].unbegun.contains(&key) && self.dice.chance(50);
            match pending.session.clone().filter(|_| may_forget) {
                Some(session) => {
                    // It has forgotten the session; the gateway asks again under the same id.
                    self.servers[at].finished.pop();
                    let known = self.servers[at].sessions.get_mut(&session).expect("known");
                    known.is_alive = false;
                    self.tally.count("sessions forgotten");
                    self.end(at, key, End::NoSession);
                }
                None => self.end(at, key, End::Broken("it broke")),
            }
            return;
        }
        let (member, value) = match self.dice.chance(15) {
            true => {
                let error = json!({"code": -1, "message": "no", "data": {"server": at, "nonce": pending.nonce()}});
                ("error", error)
            }
            false => ("result", self.result(at, &pending)),
        };
        self.servers[at].say(&pending, member, &value);
        if let Some(key) = pending.exchange
            && self.servers[at].under_way.contains(&key)
        {
            self.end(at, key, End::Done);
        }
        self.tally.count("answers of servers");
    }

    fn answer_initialize(&mut self, at: usize, pending: usize) {
        let pending = self.servers[at].take(pending);
        let key = pending.exchange.expect("an exchange");
        let fails = !self.is_calm && self.has_faults && self.dice.chance(30);
        if fails {
            self.tally.count("handshakes that fail");
            match self.dice.chance(50) {
                true => {
                    self.servers[at].say(&pending, "error", &json!({"code": -1, "message": "no"}))
                }
                false => self.end(at, key, End::Broken("it broke")),
            }
            return;
        }
        let named = Nonce::all(pending.message.to_string().as_bytes());
        let client = named.first().expect("the client says who it is").session;
        let session = format!("up-{at}-{}", self.servers[at].sessions.len());
        let upstream = Upstream {
            client,
            is_alive: true,
        };
        self.servers[at].sessions.insert(session.clone(), upstream);
        self.servers[at].unbegun.retain(|known| *known != key);
        let shard = self.servers[at].shard().clone();
        shard.upstream_head(key, Some(Ok(session.as_bytes())));
        let result = serde_json::from_str(&self.servers[at].handshake(false)).expect("JSON");
        if !self.is_calm && self.has_faults && self.dice.chance(10) {
            self.end(at, key, End::Broken("it broke behind its head"));
            return;
        }
        self.servers[at].say(&pending, "result", &result);
        if self.servers[at].under_way.contains(&key) {
            self.end(at, key, End::Done);
        }
        self.tally.count("handshakes");
    }

    fn report(&mut self, at: usize, pending: usize) {
        let known = &mut self.servers[at].pending[pending];
        let token = known.message["params"]["_meta"]["progressToken"].clone();
        if token.is_null() {
            return;
        }
        known.said += 1;
        let known = known.clone();
        let nonce = known.nonce();
        let call = Nonce::all(nonce.as_bytes())[0].call;
        self.calls[call].said = known.said;
        let line = json!({
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": token, "progress": known.said, "message": nonce},
        });
        self.servers[at].hear(known.exchange, line.to_string().as_bytes());
        self.tally.count("progress of servers");
    }

    /// An answer that comes again, or for what was cancelled.
    fn answer_again(&mut self, at: usize) {
        let count = self.servers[at].finished.len();
        if count == 0 {
            return;
        }
        let place = self.dice.below(count);
        let late = self.servers[at].finished[place].clone();
        let value = json!({"late": true});
        if late.exchange.is_none() {
            self.servers[at].say(&late, "result", &value);
            self.tally.count("late answers");
            return;
        }
        // In a response that is under way in the same session.
        let pending = self.servers[at].pending.iter();
        let same = pending
            .clone()
            .find(|it| it.session == late.session && it.session.is_some());
        if let Some(exchange) = same.and_then(|it| it.exchange) {
            let late = Pending {
                exchange: Some(exchange),
                ..late
            };
            self.servers[at].say(&late, "result", &value);
            self.tally.count("late answers");
        }
    }

    /// An answer under the id of what another session, or another server, was asked.
    fn answer_of_another(&mut self, at: usize) {
        let other = self.dice.below(self.servers.len());
        let (here, there) = (&self.servers[at], &self.servers[other]);
        if !here.is_private || here.pending.is_empty() || there.pending.is_empty() {
            return;
        }
        let own = &here.pending[self.dice.below(here.pending.len())];
        let foreign = &there.pending[self.dice.below(there.pending.len())];
        let is_own =
            |it: &Pending| it.session == own.session && it.message["id"] == foreign.message["id"];
        if own.session.is_none() || here.pending.iter().any(is_own) {
            return;
        }
        let wrong = Pending {
            exchange: own.exchange,
            ..foreign.clone()
        };
        self.servers[at].say(&wrong, "result", &json!({"foreign": true}));
        self.tally.count("ids of others");
    }

    /// Something that is not about a call.
    fn say_on_a_stream(&mut self, at: usize) {
        let changed = [
            (Kinds::TOOLS, "notifications/tools/list_changed"),
            (Kinds::RESOURCES, "notifications/resources/list_changed"),
        ];
        let (kinds, method) = self.dice.pick(&changed);
        if !self.servers[at].is_private {
            let uris: Vec<_> = self.servers[at].held.iter().cloned().collect();
            let shard = self.servers[at].shard().clone();
            match self.dice.chance(50) && !uris.is_empty() {
                true => {
                    let uri = self.dice.pick(&uris);
                    shard.updated(uri.as_bytes());
                    self.tally.count("updates said");
                }
                false => shard.changed(kinds),
            }
            return;
        }
        let server = &self.servers[at];
        let own = server.streams.iter().cloned();
        let calls = server.pending.iter().filter(|it| it.session.is_some());
        let calls = calls.filter_map(|it| Some((it.exchange?, it.session.clone())));
        let all: Vec<_> = own.chain(calls).collect();
        if all.is_empty() {
            return;
        }
        let (exchange, session) = self.dice.pick(&all);
        let Some(session) = session else { return };
        let client = self.servers[at].sessions[&session].client;
        let nonce = format!("~{client}:0~");
        let message = match self.dice.below(10) {
            0..=2 => json!({"jsonrpc": "2.0", "method": method}),
            3..=5 => {
                let own_id = format!("q{}", self.questions.len());
                self.questions.push(Question {
                    server: at,
                    session,
                    client,
                    own_id: own_id.clone(),
                    is_answered: false,
                });
                let params = json!({"nonce": nonce, "own": own_id, "server": at});
                json!({"jsonrpc": "2.0", "id": own_id, "method": "roots/list", "params": params})
            }
            6 => {
                let data = format!("{nonce}{}", "d".repeat(300_000));
                let params = json!({"level": "info", "data": data});
                json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
            }
            7 => {
                let params = json!({"uri": "res:/u1", "nonce": nonce, "server": at});
                json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params})
            }
            _ => {
                let params = json!({"level": "info", "data": nonce});
                json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
            }
        };
        self.servers[at].hear(Some(exchange), message.to_string().as_bytes());
        self.tally.count("messages of servers");
    }

    /// Whether it tells of a resource that it was asked to.
    pub(crate) fn decide(&mut self, at: usize) -> bool {
        if self.servers[at].wanted.is_empty() {
            return false;
        }
        let uri = self.servers[at].wanted.remove(0);
        let shard = self.servers[at].shard().clone();
        let told = match self.dice.chance(75) {
            true => {
                self.servers[at].held.insert(uri.clone());
                Told::Agreed
            }
            false => Told::Refused(Refusal {
                code: -1,
                message: "no".into(),
            }),
        };
        shard.told(&uri, told);
        true
    }

    fn fail(&mut self, at: usize) {
        let server = &mut self.servers[at];
        if server.is_private {
            let keys: Vec<_> = server.streams.iter().map(|(key, _)| *key).collect();
            if !keys.is_empty() {
                let key = self.dice.pick(&keys);
                self.end(at, key, End::Broken("it broke"));
                self.tally.count("upstream streams that break");
            }
            return;
        }
        match server.is_up {
            true => {
                server.down();
                self.tally.count("servers that die");
            }
            false => {
                let is_lesser = self.dice.chance(25) || self.servers[at].is_lesser;
                if self.servers[at].up(is_lesser) {
                    self.may_end = true;
                    self.tally.count("servers that can do less");
                }
                self.tally.count("servers started");
            }
        }
    }

    /// Down servers come again as they were.
    pub(crate) fn revive(&mut self) {
        for at in 0..self.servers.len() {
            let server = &mut self.servers[at];
            if !server.is_up && !server.is_gone {
                let is_lesser = server.is_lesser;
                server.up(is_lesser);
            }
        }
    }
}

impl Server {
    pub(crate) fn place(&self) -> usize {
        self.place
    }
}
