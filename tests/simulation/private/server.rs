//! The model server: what arrives, what it says in its responses, and how those end.

use std::collections::VecDeque;

use ringway::routing::private::{End, ExchangeKey, Request, Verb};
use serde_json::Value;

use crate::checks::{Ask, parsed};
use crate::private::world::World;
use crate::text::{Nonce, Text, passed};

/// An upstream session.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) client: usize,
    pub(crate) name: String,
    /// The server knows it.
    pub(crate) is_alive: bool,
    /// The gateway has heard its name, and was to remember it.
    pub(crate) is_known: bool,
    /// The gateway has sent a DELETE.
    pub(crate) is_ending: bool,
    /// That was lost on its way.
    pub(crate) end_was_lost: bool,
    /// The exchange by which the client says that it is ready.
    pub(crate) initializing: Option<u64>,
    /// The ids of the requests that it has made.
    ids: usize,
}

/// A request of the server's.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) client: usize,
    pub(crate) upstream: usize,
    raw: String,
    pub(crate) text: Text,
    /// The id by which the client knows it.
    pub(crate) shown: Option<u64>,
    pub(crate) is_withdrawn: bool,
    /// The client has answered it, in time as far as it knows.
    pub(crate) was_sent: bool,
    pub(crate) is_answered: bool,
    /// Its answer was lost on its way.
    pub(crate) was_lost: bool,
}

/// A notification of the server's, as its client gets it.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) client: usize,
    pub(crate) text: Vec<u8>,
    pub(crate) is_got: bool,
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    Nothing,
    /// The reply of this call, and which of its replies.
    Reply(usize, usize),
    Progress(usize),
    Asked(usize),
}

#[derive(Debug)]
pub(crate) enum Piece {
    Head(Option<usize>),
    Message(Vec<u8>, About),
    EventId,
    Retry(u64),
    End(End),
}

/// A request on its way, and its response.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) number: u64,
    pub(crate) shard: usize,
    pub(crate) key: ExchangeKey,
    pub(crate) request: Request,
    pub(crate) client: usize,
    pub(crate) upstream: Option<usize>,
    has_arrived: bool,
    pub(crate) is_aborted: bool,
    /// The call that its request is.
    pub(crate) asks: Option<usize>,
    /// The same, once the server has it.
    call: Option<usize>,
    pieces: VecDeque<Piece>,
}

impl Exchange {
    pub(crate) fn new(
        number: u64,
        shard: usize,
        key: ExchangeKey,
        request: Request,
        client: usize,
        upstream: Option<usize>,
        asks: Option<usize>,
    ) -> Exchange {
        Exchange {
            number,
            shard,
            key,
            request,
            client,
            upstream,
            has_arrived: false,
            is_aborted: false,
            asks,
            call: None,
            pieces: VecDeque::new(),
        }
    }

    fn is_ended(&self) -> bool {
        matches!(self.pieces.back(), Some(Piece::End(_)))
    }

    /// The server says no more.
    fn ends(&mut self, end: End) {
        if !self.is_ended() {
            self.pieces.push_back(Piece::End(end));
        }
    }

    fn method(&self) -> Option<String> {
        let value: Value = serde_json::from_slice(&self.request.body).ok()?;
        Some(value["method"].as_str()?.to_owned())
    }
}

fn refusal(status: u16, body: &str) -> End {
    End::Refused {
        status,
        body: body.into(),
    }
}

impl World {
    fn fails(&mut self) -> bool {
        !self.is_calm && self.dice.chance(self.settings.refuses)
    }

    /// A request arrives. True if it had not.
    pub(crate) fn arrive(&mut self, at: usize) -> bool {
        let exchange = &mut self.exchanges[at];
        if exchange.has_arrived || exchange.is_aborted {
            return false;
        }
        exchange.has_arrived = true;
        let is_alive = exchange
            .upstream
            .is_none_or(|it| self.upstreams[it].is_alive);
        if !is_alive {
            self.lose(at);
            self.exchanges[at].ends(End::NoSession);
            self.record.tally.count("requests in forgotten sessions");
            return true;
        }
        match self.exchanges[at].request.verb {
            Verb::Delete => self.delete_arrives(at),
            Verb::Get => self.get_arrives(at),
            Verb::Post => self.post_arrives(at),
        }
        true
    }

    fn delete_arrives(&mut self, at: usize) {
        let upstream = self.exchanges[at].upstream.expect("a session");
        self.upstreams[upstream].is_alive = false;
        self.record.tally.count("sessions that were ended upstream");
        self.exchanges[at].ends(End::Done);
    }

    fn get_arrives(&mut self, at: usize) {
        let is_refused = self.settings.has_no_streams;
        let (fails, status) = (self.fails(), self.dice.pick(&[500, 503, 429]));
        let exchange = &mut self.exchanges[at];
        match (is_refused, fails) {
            (true, _) => exchange.ends(refusal(405, "")),
            (false, true) => exchange.ends(refusal(status, "")),
            (false, false) => {
                exchange.pieces.push_back(Piece::Head(None));
                self.record.tally.count("upstream streams opened");
            }
        }
    }

    fn post_arrives(&mut self, at: usize) {
        let body = self.exchanges[at].request.body.clone();
        let value = parsed(&body);
        match value["method"].as_str() {
            None => self.answer_arrives(at, &body, &value),
            Some("initialize") => return self.initialize_arrives(at, &value),
            Some("notifications/cancelled") => self.cancel_arrives(at, &value),
            Some(method) if method.starts_with("notifications/") => {}
            Some(_) => return self.call_arrives(at, &body, &value),
        }
        let fails = self.fails();
        let exchange = &mut self.exchanges[at];
        match fails {
            true => exchange.ends(refusal(500, "")),
            false => {
                exchange.pieces.push_back(Piece::Head(None));
                exchange.ends(End::Done);
            }
        }
    }

    fn initialize_arrives(&mut self, at: usize, value: &Value) {
        let client = self.exchanges[at].client;
        let id = value["id"].to_string();
        let fault = match self.fails() {
            true => self.dice.below(4),
            false => 9,
        };
        let upstream = self.upstreams.len();
        self.upstreams.push(Upstream {
            client,
            name: format!("up {client} {upstream}"),
            is_alive: true,
            is_known: false,
            is_ending: false,
            end_was_lost: false,
            initializing: None,
            ids: 0,
        });
        let version = match fault {
            0 => "1999-01-01",
            _ => "2025-11-25",
        };
        let result = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"{version}","capabilities":{{"tools":{{}},"resources":{{"subscribe":true}}}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
        );
        let error =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-1,"message":"no"}}}}"#);
        if fault == 1 {
            self.upstreams[upstream].is_alive = false;
            return self.exchanges[at].ends(refusal(500, &error));
        }
        let noise = self.dice.chance(20);
        let exchange = &mut self.exchanges[at];
        exchange.pieces.push_back(Piece::Head(Some(upstream)));
        if noise {
            let wrong = result.replace(&id, "77777777777");
            exchange
                .pieces
                .push_back(Piece::Message(wrong.into(), About::Nothing));
        }
        let answer = if fault == 2 { error } else { result };
        if fault != 3 {
            exchange
                .pieces
                .push_back(Piece::Message(answer.into(), About::Nothing));
        }
        exchange.ends(End::Done);
    }

    pub(crate) fn call_of(&self, id: &str) -> Option<usize> {
        let of = |call: &crate::checks::Call| call.upstream.as_deref() == Some(id);
        self.record.calls.iter().position(of)
    }

    /// Check 1: a cancel names a call of its own session.
    fn cancel_arrives(&mut self, at: usize, value: &Value) {
        let id = value["params"]["requestId"].to_string();
        let call = self.call_of(&id);
        let call = &mut self.record.calls[call.expect("a cancel of a call that there was")];
        call.is_void = true;
        assert_eq!(call.nonce.session, self.exchanges[at].client, "check 1");
        assert!(!call.in_flight, "check 2: cancelled, and still in flight");
        self.record.tally.count("cancels that reached the server");
    }

    /// An answer reaches the request that it answers, in the session that asked, once.
    fn answer_arrives(&mut self, at: usize, body: &[u8], value: &Value) {
        let upstream = self.exchanges[at].upstream.expect("a session");
        let raw = value["id"].to_string();
        let of = |asked: &Asked| asked.upstream == upstream && asked.raw == raw;
        let number = self.asked.iter().position(of);
        let number = number.expect("an answer to a request of this session");
        let asked = &mut self.asked[number];
        assert!(!asked.is_answered, "answered twice: {value}");
        asked.is_answered = true;
        match Nonce::all(body).first() {
            Some(nonce) => {
                assert_eq!(nonce.call, number, "the answer to another request");
                self.record.tally.count("answers that reached the server");
            }
            None => self.record.tally.count("answers in a client's place"),
        }
    }

    fn call_arrives(&mut self, at: usize, body: &[u8], value: &Value) {
        let id = value["id"].to_string();
        let is_own = self.exchanges[at].request.is_call;
        let Some(number) = self.call_of(&id) else {
            // What a forgotten session had is restored.
            assert!(!is_own, "a call that nobody made");
            let answer = match self.fails() {
                true => {
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-1,"message":"no"}}}}"#)
                }
                false => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#),
            };
            self.record.tally.count("requests that restore");
            let exchange = &mut self.exchanges[at];
            exchange.pieces.push_back(Piece::Head(None));
            exchange
                .pieces
                .push_back(Piece::Message(answer.into(), About::Nothing));
            return exchange.ends(End::Done);
        };
        let call = &self.record.calls[number];
        let token = call.token.as_ref().map_or("null", |_| &*id);
        let due = passed(&call.text.fill(&id, token, ""));
        assert_eq!(
            String::from_utf8_lossy(body),
            String::from_utf8_lossy(&due),
            "check 8: altered on the way"
        );
        let before = self.runs[number].replace(self.exchanges[at].upstream.expect("a session"));
        assert_eq!(before, None, "the server runs a call once");
        self.record.tally.count("calls that reached the server");
        let fails = self.fails();
        let (status, is_rpc) = (self.dice.pick(&[400, 500, 401]), self.dice.chance(50));
        let exchange = &mut self.exchanges[at];
        exchange.call = Some(number);
        if fails {
            let rpc = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-9,"message":"x"}}"#;
            return exchange.ends(refusal(status, if is_rpc { rpc } else { "x" }));
        }
        exchange.pieces.push_back(Piece::Head(None));
    }

    /// The server says something in a response. True if it did.
    pub(crate) fn speak(&mut self, at: usize) -> bool {
        let exchange = &self.exchanges[at];
        let is_get = exchange.request.verb == Verb::Get;
        if !exchange.has_arrived || exchange.is_ended() || exchange.pieces.len() > 20 {
            return false;
        }
        match self.dice.below(if is_get { 8 } else { 14 }) {
            0 => self.say_log(at),
            1 => self.ask(at),
            2 => self.withdraw(at),
            3 => self.say_wrong(at),
            4 => self.answer_another(at),
            5 => {
                let changed = self.dice.pick(&[
                    r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
                    r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}"#,
                    "nonsense",
                ]);
                self.says(at, changed.into(), About::Nothing);
            }
            6 if is_get => {
                let ms = self.dice.pick(&[10, 3_000]);
                let pieces = &mut self.exchanges[at].pieces;
                pieces.push_back(Piece::EventId);
                pieces.push_back(Piece::Retry(ms));
            }
            7 if is_get => self.exchanges[at].ends(End::Done),
            6..10 => self.say_progress(at),
            _ => self.answer(at),
        }
        true
    }

    fn says(&mut self, at: usize, text: Vec<u8>, about: About) {
        let pieces = &mut self.exchanges[at].pieces;
        pieces.push_back(Piece::Message(text, about));
    }

    fn pad(&mut self) -> String {
        match self.settings.is_big && self.dice.chance(30) {
            true => "x".repeat(self.dice.between(1, 200_000)),
            false => String::new(),
        }
    }

    fn say_log(&mut self, at: usize) {
        let client = self.exchanges[at].client;
        let nonce = Nonce {
            session: client,
            call: self.said.len(),
        };
        let pad = self.pad();
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\r\n\"params\":{{\"level\":\"info\",\"data\":\"{nonce}{pad}\",\"x\":1.0}}}}"
        );
        self.said.push(Said {
            client,
            text: passed(text.as_bytes()),
            is_got: false,
        });
        self.says(at, text.into_bytes(), About::Nothing);
    }

    fn ask(&mut self, at: usize) {
        let (client, upstream) = (self.exchanges[at].client, self.exchanges[at].upstream);
        let upstream = upstream.expect("a session");
        self.upstreams[upstream].ids += 1;
        let n = self.upstreams[upstream].ids;
        let raw = match self.dice.chance(50) {
            true => n.to_string(),
            false => format!("\"{n}\""),
        };
        let nonce = Nonce {
            session: client,
            call: self.asked.len(),
        };
        let text = Text::new(&format!(
            r#"{{"jsonrpc":"2.0", "id" : @id,"method":"sampling/createMessage","params":{{"of":"{nonce}"}}}}"#
        ));
        let about = About::Asked(self.asked.len());
        self.says(at, text.fill(&raw, "", ""), about);
        self.asked.push(Asked {
            client,
            upstream,
            raw,
            text,
            shown: None,
            is_withdrawn: false,
            was_sent: false,
            is_answered: false,
            was_lost: false,
        });
        self.record.tally.count("requests of the server");
    }

    fn withdraw(&mut self, at: usize) {
        let upstream = self.exchanges[at].upstream;
        let open = |asked: &&mut Asked| Some(asked.upstream) == upstream && !asked.is_answered;
        let Some(asked) = self.asked.iter_mut().rev().find(open) else {
            return;
        };
        asked.is_withdrawn = true;
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{}}}}}"#,
            asked.raw
        );
        self.says(at, text.into_bytes(), About::Nothing);
    }

    /// An id that is not of this session.
    fn say_wrong(&mut self, at: usize) {
        let client = self.exchanges[at].client;
        let others = self.record.calls.iter();
        let others = others.filter(|call| call.nonce.session != client);
        let ids: Vec<String> = others.filter_map(|call| call.upstream.clone()).collect();
        let id = match ids.is_empty() {
            true => self.dice.pick(&["257", "\"x\"", "268435456"]).to_owned(),
            false => self.dice.pick(&ids),
        };
        let text = match self.dice.chance(60) {
            true => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"of":"wrong"}}}}"#),
            false => format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progress":1,"of":"wrong"}}}}"#
            ),
        };
        self.record.tally.count("ids of other sessions");
        self.says(at, text.into_bytes(), About::Nothing);
    }

    fn say_progress(&mut self, at: usize) {
        let Some(number) = self.exchanges[at].call else {
            return;
        };
        let pad = self.pad();
        let burst = self.dice.pick(&[1, 1, 5]);
        for _ in 0..burst {
            let call = &mut self.record.calls[number];
            if call.token.is_none() {
                return;
            }
            let n = call.progress.len();
            let text = Text::new(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":{n},"of":"{}","pad":"{pad}","progressToken":@token}}}}"#,
                call.nonce
            ));
            let id = call.upstream.clone().expect("it has arrived");
            let said = text.fill("", &id, "");
            call.progress.push(text);
            self.says(at, said, About::Progress(number));
        }
    }

    /// The reply of a call, and mostly the end of its response.
    pub(crate) fn answer(&mut self, at: usize) {
        let Some(number) = self.exchanges[at].call else {
            return;
        };
        self.say_reply(at, number);
        if self.is_calm || self.dice.chance(70) {
            self.exchanges[at].ends(End::Done);
        }
    }

    fn say_reply(&mut self, at: usize, number: usize) {
        let pad = self.pad();
        let call = &mut self.record.calls[number];
        let n = call.replies.len();
        let text = Text::new(&match call.ask {
            Ask::Plain => format!(
                r#"{{"jsonrpc":"2.0","id":@id,"result":{{"of":"{}","n":{n},"x":1.00,"pad":"{pad}"}}}}"#,
                call.nonce
            ),
            _ => r#"{"jsonrpc":"2.0","result":{},"id":@id}"#.to_owned(),
        });
        let id = call.upstream.clone().expect("it has arrived");
        let said = text.fill(&id, "", "");
        call.replies.push(text);
        self.says(at, said, About::Reply(number, n));
    }

    /// The reply of another call of the session comes here.
    fn answer_another(&mut self, at: usize) {
        let upstream = self.exchanges[at].upstream;
        let others = self.exchanges.iter();
        let others = others.filter(|it| it.upstream == upstream && it.call.is_some());
        let calls: Vec<usize> = others.filter_map(|it| it.call).collect();
        if !calls.is_empty() {
            let number = self.dice.pick(&calls);
            self.say_reply(at, number);
            self.record.tally.count("replies in another response");
        }
    }

    /// What was on its way is lost.
    fn lose(&mut self, at: usize) {
        let exchange = &self.exchanges[at];
        let Some(upstream) = exchange.upstream else {
            return;
        };
        let method = exchange.method();
        if exchange.request.verb == Verb::Delete {
            self.upstreams[upstream].end_was_lost = true;
        } else if method.as_deref() == Some("notifications/cancelled") {
            let id = parsed(&exchange.request.body)["params"]["requestId"].to_string();
            let call = self.call_of(&id).expect("a call that there was");
            self.record.calls[call].is_void = true;
        } else if exchange.request.verb == Verb::Post && method.is_none() {
            let raw = parsed(&exchange.request.body)["id"].to_string();
            let of = |asked: &&mut Asked| asked.upstream == upstream && asked.raw == raw;
            if let Some(asked) = self.asked.iter_mut().find(of) {
                asked.was_lost = true;
            }
        }
    }

    /// An exchange breaks, wherever it is.
    pub(crate) fn break_exchange(&mut self, at: usize) {
        let end = match self.dice.below(4) {
            0 => End::Late,
            1 => End::TooLarge,
            2 => End::Done,
            _ => End::Broken("It broke"),
        };
        if !self.exchanges[at].has_arrived {
            self.lose(at);
        }
        self.record.tally.count("exchanges that break");
        self.ends(at, end);
    }

    /// The server forgets a session; its responses may go on.
    pub(crate) fn forget(&mut self) {
        let alive = self.upstreams.iter().enumerate();
        let alive = alive.filter(|(_, it)| it.is_alive && it.is_known);
        let alive: Vec<usize> = alive.map(|(at, _)| at).collect();
        if alive.is_empty() {
            return;
        }
        let upstream = self.dice.pick(&alive);
        self.upstreams[upstream].is_alive = false;
        self.record.tally.count("sessions forgotten");
        if self.dice.chance(50) {
            for exchange in &mut self.exchanges {
                if exchange.upstream == Some(upstream) && exchange.has_arrived {
                    exchange.ends(End::Broken("It broke"));
                }
            }
        }
    }

    fn ends(&mut self, at: usize, end: End) {
        let exchange = self.exchanges.swap_remove(at);
        self.trace(|| format!("exchange {} ends: {end:?}", exchange.number));
        let shard = &mut self.shards[exchange.shard];
        shard.now = self.now;
        shard.exchange_ended(exchange.key, end);
        self.hear_news(&About::Nothing, Some(exchange.client));
    }

    /// The gateway reads a piece of a response. False if there was none, or the
    /// exchange is over.
    pub(crate) fn hear(&mut self, at: usize) -> bool {
        let Exchange {
            shard,
            key,
            is_aborted,
            client,
            ..
        } = self.exchanges[at];
        // What has been read already when it is aborted is heard still.
        if is_aborted && (self.is_calm || self.dice.chance(70)) {
            let has_arrived = self.exchanges[at].has_arrived;
            if !has_arrived {
                self.lose(at);
            }
            self.ends(at, End::Done);
            return false;
        }
        if !self.is_calm && !self.shards[shard].has_room() {
            self.record.tally.count("reading waits for room");
            return false;
        }
        let Some(piece) = self.exchanges[at].pieces.pop_front() else {
            return false;
        };
        self.shards[shard].now = self.now;
        let mut about = About::Nothing;
        match piece {
            Piece::Head(upstream) => {
                let name = upstream.map(|upstream| {
                    let upstream = &mut self.upstreams[upstream];
                    upstream.is_known = !is_aborted;
                    upstream.name.clone()
                });
                let name = name.as_ref().map(|name| Ok(name.as_bytes()));
                self.shards[shard].state.head(key, name);
            }
            Piece::Message(text, said) => {
                about = said;
                self.shards[shard].heard(key, &text);
            }
            Piece::EventId => self.shards[shard].state.event_id(key, b"e"),
            Piece::Retry(ms) => self.shards[shard].state.retry_after(key, ms),
            Piece::End(end) => {
                self.ends(at, end);
                return false;
            }
        }
        self.hear_news(&about, Some(client));
        let is_over = self.shards[shard].is_over(key);
        if is_over && !self.exchanges[at].is_aborted && (self.is_calm || self.dice.chance(70)) {
            self.ends(at, End::Done);
            return false;
        }
        true
    }

    /// Whether an exchange still has something to come without anybody's doing.
    pub(crate) fn is_busy(&self, at: usize) -> bool {
        let exchange = &self.exchanges[at];
        !exchange.has_arrived || exchange.is_aborted || !exchange.pieces.is_empty()
    }

    /// The call that a response is yet to answer.
    pub(crate) fn owes_answer(&self, at: usize) -> bool {
        self.exchanges[at].call.is_some() && !self.exchanges[at].is_ended()
    }
}
