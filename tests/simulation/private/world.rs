//! The world of a run: the parts, the scheduler, the orders of shards and what becomes
//! of them, time.

use std::collections::BTreeMap;

use ringway::routing::private::{ExchangeKey, Order, Request, Verb};
use ringway::routing::time::Micros;
use ringway::wire::reply::Reason;

use crate::checks::{How, Record, is_of_session, parsed};
use crate::dice::Dice;
use crate::private::client::{Client, Connection};
use crate::private::server::{About, Asked, Exchange, Said, Upstream};
use crate::private::settings::{Settings, Step};
use crate::private::shard::{News, Shard};
use crate::text::Nonce;
use crate::world::{Place, place};

pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) settings: Settings,
    pub(crate) record: Record,
    pub(crate) now: Micros,
    pub(crate) shards: Vec<Shard>,
    pub(crate) clients: Vec<Client>,
    pub(crate) connections: Vec<Connection>,
    /// The calls, and the clients, whose answer goes to a place.
    pub(crate) waiting: BTreeMap<Place, usize>,
    pub(crate) openings: BTreeMap<Place, usize>,
    /// The requests under way to the server, and their responses.
    pub(crate) exchanges: Vec<Exchange>,
    pub(crate) begun: u64,
    /// Every upstream session that ever was.
    pub(crate) upstreams: Vec<Upstream>,
    /// What the server has asked and said.
    pub(crate) asked: Vec<Asked>,
    pub(crate) said: Vec<Said>,
    /// In which upstream session the server has run each call.
    pub(crate) runs: Vec<Option<usize>>,
    pub(crate) is_calm: bool,
    steps: u64,
    is_traced: bool,
}

impl World {
    pub(crate) fn new(seed: u64, is_traced: bool) -> World {
        let mut dice = Dice::new(seed);
        let settings = Settings::draw(&mut dice);
        if is_traced {
            eprintln!("{settings:#?}");
        }
        let shards: Vec<_> = (0..settings.shards)
            .map(|index| Shard::new(index, seed, &settings))
            .collect();
        let record = Record {
            dropped_somewhere: vec![0; shards.len()],
            missing: vec![0; shards.len()],
            ..Record::default()
        };
        World {
            dice,
            settings,
            record,
            now: Micros(0),
            shards,
            clients: Vec::new(),
            connections: Vec::new(),
            waiting: BTreeMap::new(),
            openings: BTreeMap::new(),
            exchanges: Vec::new(),
            begun: 0,
            upstreams: Vec::new(),
            asked: Vec::new(),
            said: Vec::new(),
            runs: Vec::new(),
            is_calm: false,
            steps: 0,
            is_traced,
        }
    }

    /// A whole run.
    pub(crate) fn run(mut self) -> Record {
        for _ in 0..self.settings.steps {
            let what = self.dice.weighted(&self.settings.weights);
            self.step(what);
            self.is_bounded();
            self.steps += 1;
        }
        self.come_to_rest();
        let steps = self.steps as usize;
        self.record.tally.many("steps", steps);
        for shard in &self.shards {
            let state = &shard.state;
            let tally = &mut self.record.tally;
            tally.many("sessions that were renewed", state.renewals as usize);
            tally.many("streams that overflowed", state.stream_overflows as usize);
            tally.many("notices that were lost", state.lost_notices as usize);
        }
        self.record
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            let now = self.now.0 / 1_000;
            eprintln!("{:>6} {now:>9} ms  {}", self.steps, what());
        }
    }

    fn step(&mut self, what: Step) {
        let count = self.exchanges.len();
        match what {
            Step::Open => self.open_session(),
            Step::Act => self.act(),
            Step::Arrive | Step::Speak | Step::Hear | Step::Break if count == 0 => {}
            Step::Arrive => {
                let at = self.dice.below(count);
                self.arrive(at);
            }
            Step::Speak => {
                let at = self.dice.below(count);
                self.speak(at);
            }
            Step::Hear => {
                let at = self.dice.below(count);
                for _ in 0..self.dice.between(1, 4) {
                    if !self.hear(at) {
                        break;
                    }
                }
            }
            Step::Break => {
                let at = self.dice.below(count);
                self.break_exchange(at);
            }
            Step::Forget => self.forget(),
            Step::Connection => {
                if !self.connections.is_empty() {
                    let connection = self.dice.below(self.connections.len());
                    self.go_on(connection);
                }
            }
            Step::Vanish => {
                if !self.connections.is_empty() {
                    let connection = self.dice.below(self.connections.len());
                    self.breaks(connection);
                }
            }
            Step::Time => {
                let milliseconds = self.dice.pick(&[10, 100, 600, 1_500, 9_000]);
                self.pass(milliseconds);
            }
        }
    }

    pub(crate) fn pass(&mut self, milliseconds: u64) {
        self.now = Micros(self.now.0 + milliseconds * 1_000);
        for shard in &mut self.shards {
            shard.tick(self.now);
        }
        self.hear_news(&About::Nothing, None);
    }

    /// Check 7: what has a bound is within it.
    fn is_bounded(&mut self) {
        let limits = &self.settings.limits;
        for shard in &mut self.shards {
            let state = &mut shard.state;
            assert!(state.sessions.len() <= limits.sessions_max);
            assert!(state.calls_in_flight() <= limits.calls_max);
            // Twice as much waits for GET streams; own requests have no bound.
            let slack = 20_000;
            assert!(state.waiting_bytes() <= 3 * limits.waiting_bytes_max + slack);
            let sessions = state.sessions.len();
            let most = limits.subscriptions_per_session_max + limits.calls_per_session_max;
            let exchanges = state.exchanges().expect("upstreams of their own");
            assert!(exchanges.subscriptions() <= sessions * most);
            assert!(shard.connections.held_bytes() <= self.settings.buffered_bytes_max);
        }
    }

    /// What has happened in the shards, by what the server said in an exchange of this
    /// client's session, or by something else.
    pub(crate) fn hear_news(&mut self, about: &About, of: Option<usize>) {
        for shard in 0..self.shards.len() {
            for news in std::mem::take(&mut self.shards[shard].news) {
                self.trace(|| format!("shard {shard}: {news:?}"));
                self.record.has_seen(format!("{news:?}").as_bytes());
                self.hear_of(shard, news, about, of);
            }
        }
        self.sessions_end();
        self.take_orders();
    }

    fn hear_of(&mut self, shard: usize, news: News, about: &About, of: Option<usize>) {
        match news {
            News::Ended { to, how } => {
                let number = self.waiting.remove(&place(shard, to));
                let number = number.expect("check 2: a call ends once");
                let call = &mut self.record.calls[number];
                assert!(call.in_flight, "check 2: a call ends once");
                call.in_flight = false;
                call.ended = Some(how);
                if how == How::Server {
                    assert_eq!(of, Some(call.nonce.session), "check 1: another's exchange");
                    let About::Reply(answered, reply) = about else {
                        panic!("check 2: {about:?} is no reply")
                    };
                    assert_eq!(*answered, number, "check 1: another call's answer");
                    call.reply_read = Some(*reply);
                }
                self.call_ends(number, how);
            }
            News::Progress(to) => {
                let number = self.waiting[&place(shard, to)];
                let call = &mut self.record.calls[number];
                assert_eq!(of, Some(call.nonce.session), "check 1: another's exchange");
                assert!(matches!(about, About::Progress(of) if *of == number));
                call.progress_read += 1;
            }
            News::Passed { session, on, asked } => {
                let of = of.expect("check 1: a session's message");
                let client = &self.clients[of];
                let known = self.shards[shard].state.sessions.get(session);
                let id = known.map(|session| session.id);
                assert!(
                    client.is_open && client.shard == shard && id == client.id,
                    "check 1"
                );
                if let Some(on) = on {
                    let number = self.waiting[&place(shard, on)];
                    assert_eq!(self.record.calls[number].nonce.session, of, "check 1");
                    self.record.tally.count("messages on answers");
                }
                if let (Some(shown), About::Asked(number)) = (asked, about) {
                    let asked = &mut self.asked[*number];
                    assert!(asked.shown.replace(shown).is_none(), "asked once");
                }
            }
            News::Opened { to, id } => {
                let client = self.openings[&place(shard, to)];
                assert_eq!(of, Some(client), "check 1: another's handshake");
                self.clients[client].id = Some(id);
                self.clients[client].is_open = true;
                self.record.tally.count("sessions opened");
            }
            News::Dropped { of, count } => {
                self.record.tally.many("messages dropped on answers", count);
                match of.and_then(|to| self.waiting.get(&place(shard, to))) {
                    Some(call) => self.record.calls[*call].dropped += count,
                    None => self.record.dropped_somewhere[shard] += count,
                }
            }
            News::Lost(count) => self.record.tally.many("messages lost by overflow", count),
            News::Evicted(count) => self.record.tally.many("connections evicted", count),
            News::LostSubscription => self.record.tally.count("subscriptions lost"),
        }
    }

    /// Check 2: a call fails for a reason that there is.
    fn call_ends(&mut self, number: usize, how: How) {
        let call = &self.record.calls[number];
        let limits = &self.settings.limits;
        let age = self.now.millis().0 - call.begun_ms;
        let (is_so, what) = match how {
            How::Server => (true, "calls that the server answered"),
            How::Own(_) => (true, "calls that got no answer of the server"),
            How::Failed(Reason::Timeout) => {
                (age >= limits.request_timeout_ms, "calls that timed out")
            }
            How::Failed(Reason::Cancelled) => {
                let is_gone = call.answer == crate::checks::Answer::Gone;
                let is_gone = self.settings.cancel_on_disconnect && is_gone;
                (call.is_cancelled || is_gone, "calls cancelled")
            }
            How::Failed(Reason::SessionEnded) => (true, "calls that a session's end ended"),
            How::Failed(_) => (false, ""),
        };
        assert!(is_so, "check 2: {call:?} ended with {how:?}");
        self.record.tally.count(what);
    }

    fn sessions_end(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.is_open) {
            let sessions = &self.shards[client.shard].state.sessions;
            let id = client.id.expect("it is open");
            if sessions
                .find(id, ringway::routing::session::TokenId::ANYONE)
                .is_none()
            {
                client.is_open = false;
                self.record.tally.count("sessions that ended by themselves");
            }
        }
    }

    fn take_orders(&mut self) {
        for shard in 0..self.shards.len() {
            for order in self.shards[shard].orders() {
                match order {
                    Order::Begin(key, request) => self.begins(shard, key, request),
                    Order::Abort(key) => {
                        let of = |it: &&mut Exchange| it.shard == shard && it.key == key;
                        let exchange = self.exchanges.iter_mut().find(of);
                        exchange.expect("it is under way").is_aborted = true;
                        self.record.tally.count("exchanges aborted");
                    }
                }
            }
        }
        for exchange in self.exchanges.iter().filter(|it| !it.is_aborted) {
            let call = exchange.asks.map(|call| &self.record.calls[call]);
            let is_over = call.is_some_and(|call| matches!(call.ended, Some(How::Failed(_))));
            assert!(!is_over, "check 2: {call:?} goes on upstream");
        }
    }

    /// Checks 1 and 2 of what a shard sends.
    fn begins(&mut self, shard: usize, key: ExchangeKey, request: Request) {
        self.begun += 1;
        let name = request.address.session.as_deref();
        self.record.has_seen(&request.body);
        self.trace(|| {
            let body = String::from_utf8_lossy(&request.body);
            format!("exchange {}: {:?} {body}", self.begun, request.verb)
        });
        let upstream = name.map(|name| {
            let known = self
                .upstreams
                .iter()
                .position(|it| it.name.as_bytes() == name);
            known.expect("check 1: a session that the server has named")
        });
        let client = match upstream {
            Some(upstream) => self.upstreams[upstream].client,
            None => {
                Nonce::all(&request.body)
                    .first()
                    .expect("initialize")
                    .session
            }
        };
        is_of_session(&request.body, client);
        assert_eq!(shard, self.clients[client].shard);
        let at = upstream;
        if let Some(upstream) = upstream {
            let number = self.begun;
            let upstream = &mut self.upstreams[upstream];
            assert!(!upstream.is_ending, "nothing follows a DELETE");
            if request.verb == Verb::Delete {
                let is_its_own = |it: &&Exchange| it.upstream == at && !it.is_aborted;
                let under_way = self.exchanges.iter().find(is_its_own);
                assert!(under_way.is_none(), "DELETE overtakes {under_way:?}");
            }
            upstream.is_ending = request.verb == Verb::Delete;
            let is_farewell = request
                .body
                .windows(14)
                .any(|part| part == b"session_ended\"");
            let initializing = upstream.initializing;
            let is_late = self
                .exchanges
                .iter()
                .any(|it| Some(it.number) == initializing && !it.is_aborted);
            // What is restored late needs not wait: this session has been told.
            let value: serde_json::Value =
                serde_json::from_slice(&request.body).unwrap_or_default();
            let is_own =
                !request.is_call && value.get("method").is_some() && value.get("id").is_some();
            let is_free = request.verb != Verb::Post || is_farewell || is_own;
            assert!(!is_late || is_free, "something overtakes initialized");
            if value["method"] == "notifications/initialized" {
                upstream.initializing = Some(number);
            }
        }
        let asks = request.is_call.then(|| {
            let id = parsed(&request.body)["id"].to_string();
            self.call_of(&id).expect("a call that was made")
        });
        let number = self.begun;
        let exchange = Exchange::new(number, shard, key, request, client, at, asks);
        self.exchanges.push(exchange);
    }
}
