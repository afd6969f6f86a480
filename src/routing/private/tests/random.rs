//! Whatever happens in whatever order: each call has one end at most, nothing of one
//! session's exchange reaches another session, a client's answer goes to the server's
//! session that asked, and nothing is left. Everything bears its session's mark; a
//! server's session is called by it too.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::routing::private::Phase;

/// Something that happens; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Event {
    Open,
    Abandon(usize),
    Ask(usize, u8),
    Say(usize, u8),
    Answer(usize, u64),
    Stream(usize, u8),
    Delete(usize),
    Head(usize),
    /// The server answers what the exchange asked.
    Reply(usize, bool),
    /// It answers something else in it.
    ReplyOther(usize, usize),
    Speak(usize, u8),
    End(usize, u8),
    Time(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let n = 0..1_000_usize;
    prop_oneof![
        3 => Just(Event::Open),
        1 => n.clone().prop_map(Event::Abandon),
        12 => (n.clone(), 0..8_u8).prop_map(|(n, kind)| Event::Ask(n, kind)),
        8 => (n.clone(), 0..4_u8).prop_map(|(n, kind)| Event::Say(n, kind)),
        5 => (n.clone(), 1..6_u64).prop_map(|(n, asked)| Event::Answer(n, asked)),
        5 => (n.clone(), 0..5_u8).prop_map(|(n, kind)| Event::Stream(n, kind)),
        1 => n.clone().prop_map(Event::Delete),
        4 => n.clone().prop_map(Event::Head),
        16 => (n.clone(), any::<bool>()).prop_map(|(n, is_good)| Event::Reply(n, is_good)),
        4 => (n.clone(), n.clone()).prop_map(|(n, other)| Event::ReplyOther(n, other)),
        12 => (n.clone(), 0..7_u8).prop_map(|(n, kind)| Event::Speak(n, kind)),
        14 => (n, 0..12_u8).prop_map(|(n, how)| Event::End(n, how)),
        2 => prop_oneof![Just(60), Just(1_100), Just(20_000)].prop_map(Event::Time),
    ]
}

/// An exchange as the I/O and the server know it.
struct Known {
    key: ExchangeKey,
    request: Request,
    /// The session whose it is, by its mark.
    of: usize,
    /// The server's session that it is in: also one that its head has named.
    name: Option<String>,
    /// Its head has come.
    has_head: bool,
}

struct CallKnown {
    of: usize,
    id: UpstreamId,
    has_ended: bool,
}

#[derive(Default)]
struct World {
    desk: Desk,
    exchanges: Vec<Known>,
    /// By `ReplyTo::exchange`.
    calls: BTreeMap<u32, CallKnown>,
    /// The marks of the sessions that are there.
    sessions: BTreeMap<u32, usize>,
    opened: usize,
    /// Names that the server gives to sessions.
    names: usize,
    asked: usize,
    answered: HashSet<String>,
    streams: HashMap<u32, u32>,
    next_stream: u32,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk::new()
    }
}

/// Every mark in a text.
fn marks(text: &str) -> Vec<usize> {
    let parts: Vec<&str> = text.split('~').collect();
    parts.iter().filter_map(|part| part.parse().ok()).collect()
}

fn chosen<T>(from: &[T], n: usize) -> Option<&T> {
    (!from.is_empty()).then(|| &from[n % from.len()])
}

impl World {
    fn session(&self, n: usize) -> Option<(SessionKey, usize)> {
        let all: Vec<_> = self.sessions.iter().collect();
        chosen(&all, n).map(|(key, of)| (SessionKey(**key), **of))
    }

    /// What a session asks or says must be its own and go to its own server's session.
    fn begins(&mut self, key: ExchangeKey, request: Request, is_over: bool) {
        let body = text(&request).to_owned();
        let mut found = marks(&body);
        found.extend(session_of(&request).map(marks).unwrap_or_default());
        let of = *found.first().expect("everything says whose it is");
        assert!(found.iter().all(|mark| *mark == of), "{request:?}");
        let value = json(&request);
        if value.get("method").is_none() && value.get("id").is_some() {
            let id = value["id"].as_str().unwrap().to_owned();
            let asker = id.split(' ').next().unwrap();
            assert_eq!(
                session_of(&request),
                Some(asker),
                "the session that asked: {body}"
            );
            assert!(self.answered.insert(id), "answered twice: {body}");
        }
        if value["method"] == "notifications/cancelled" {
            let id = value["params"]["requestId"].to_string();
            let call = self
                .calls
                .values()
                .find(|call| digits(call.id) == id)
                .unwrap();
            assert!(call.of == of && call.has_ended);
        }
        if request.is_call {
            let id = id_of(&request);
            let call = self.calls.values().find(|call| call.id == id);
            assert!(call.is_none_or(|call| call.of == of && call.has_ended == is_over));
        }
        let name = session_of(&request).map(str::to_owned);
        self.exchanges.push(Known {
            key,
            request,
            of,
            name,
            has_head: false,
        });
    }

    /// Aborted exchanges stay: the I/O may have heard something of them already.
    fn settle(&mut self) {
        let acts = self.desk.acts();
        for act in acts {
            let call = match &act {
                Act::End(ended) => &ended.call,
                Act::Answer { call, .. } | Act::NotFound(call) => call,
                _ => continue,
            };
            self.ends(call.reply_to.exchange);
        }
        let alive: HashSet<u32> = self
            .desk
            .state
            .sessions
            .keys()
            .iter()
            .map(|key| key.0)
            .collect();
        self.sessions.retain(|key, _| alive.contains(key));
        self.streams.retain(|key, _| alive.contains(key));
        let orders = self.desk.state.exchanges().unwrap().take_orders();
        let aborted: HashSet<ExchangeKey> = orders
            .iter()
            .filter_map(|order| match order {
                Order::Abort(key) => Some(*key),
                Order::Begin(..) => None,
            })
            .collect();
        for order in orders {
            if let Order::Begin(key, request) = order {
                self.begins(key, request, aborted.contains(&key));
            }
        }
    }

    fn ends(&mut self, to: u32) -> usize {
        let call = self.calls.get_mut(&to).expect("a call that was made");
        assert!(!call.has_ended, "a call ends once");
        call.has_ended = true;
        call.of
    }

    fn send(&mut self, n: usize, text: impl Fn(usize) -> String) {
        let Some((session, of)) = self.session(n) else {
            return;
        };
        let step = self.desk.send(session, &text(of));
        if let Step::InFlight { id, .. } = step {
            let has_ended = false;
            self.calls
                .insert(self.desk.exchanges, CallKnown { of, id, has_ended });
        }
    }

    fn name(&mut self, at: usize) {
        let (key, of) = (self.exchanges[at].key, self.exchanges[at].of);
        if !std::mem::replace(&mut self.exchanges[at].has_head, true) {
            self.names += 1;
            let name = format!("up~{of}~n{}", self.names);
            self.desk.head(key, &name);
            self.exchanges[at].name.get_or_insert(name);
        }
    }

    fn hear(&mut self, at: usize, said: &str) {
        let (key, of) = (self.exchanges[at].key, self.exchanges[at].of);
        let opening = self.exchanges[at].request.address.session.is_none();
        match self.desk.hear(key, said) {
            Got::Answer(to, message) => {
                assert_eq!(self.ends(to), of, "{message}");
            }
            Got::Progress(to, message) => {
                let call = &self.calls[&to];
                assert!(call.of == of && !call.has_ended, "{message}");
            }
            Got::Message(session, to, message) | Got::Asked(session, to, message) => {
                assert_eq!(self.sessions.get(&session.0), Some(&of), "{message}");
                assert!(to.is_none_or(|to| self.calls[&to].of == of));
                let asked = message.contains("ping2").then(|| {
                    let message: Value = serde_json::from_str(&message).unwrap();
                    message["id"].as_u64().unwrap()
                });
                let acts = &mut self.desk.acts;
                self.desk
                    .state
                    .queue(session, message.as_bytes(), asked, acts);
            }
            Got::Session(session) => {
                assert!(opening);
                assert!(self.sessions.insert(session.0, of).is_none());
            }
            Got::Refused(_) | Got::Own | Got::Dropped(_) => {}
        }
    }

    fn reply(&mut self, at: usize, is_good: bool) {
        let request = &self.exchanges[at].request;
        let value = json(request);
        if value.get("id").is_none() || value.get("method").is_none() {
            return;
        }
        let said = match (&value["method"], is_good) {
            (_, false) => error(&value["id"].to_string()),
            (method, true) if method == "initialize" => accepted(request, r#"{"tools":{}}"#),
            (_, true) => result(&value["id"].to_string(), "{}"),
        };
        if value["method"] == "initialize" {
            let is_full = self.desk.state.sessions.is_full();
            let is_first = !self
                .sessions
                .values()
                .any(|of| *of == self.exchanges[at].of);
            if is_full && is_first {
                return;
            }
            self.name(at);
        }
        self.hear(at, &said);
    }

    fn speak(&mut self, at: usize, kind: u8) {
        if self.exchanges[at].name.is_none() {
            self.name(at);
        }
        let known = &self.exchanges[at];
        let (of, name) = (known.of, known.name.clone().unwrap_or_default());
        let own = json(&known.request)["id"].to_string();
        let said = match kind {
            0 => log(&format!("~{of}~")),
            1 => progress(&own, 1),
            2 => CHANGED.into(),
            3 | 4 => {
                self.asked += 1;
                super::request(&format!("\"{name} {}\"", self.asked))
            }
            5 => format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":"{name} {}"}}}}"#,
                self.asked
            ),
            _ => "nonsense".into(),
        };
        self.hear(at, &said);
    }

    fn end(&mut self, at: usize, how: u8) {
        let known = self.exchanges.swap_remove(at);
        let end = match how {
            0..5 => End::Done,
            5..8 => match known.has_head {
                true => End::Done,
                false => End::NoSession,
            },
            8 => refused(405, ""),
            9 => refused(500, &error("1")),
            10 => End::Late,
            _ => End::Broken("It broke"),
        };
        self.desk.finish(known.key, end);
    }

    fn stream(&mut self, n: usize, kind: u8) {
        let Some((session, of)) = self.session(n) else {
            return;
        };
        let stream = self.streams.get(&session.0).copied();
        match (kind, stream) {
            (0 | 1, _) => {
                self.next_stream += 1;
                self.streams.insert(session.0, self.next_stream);
                self.desk.open_stream(session, self.next_stream);
            }
            (2, Some(stream)) => {
                self.streams.remove(&session.0);
                self.desk.lose_stream(session, stream);
            }
            (_, Some(stream)) => {
                let events = self.desk.takes(session, stream);
                assert!(marks(&events).iter().all(|mark| *mark == of), "{events}");
                self.desk.wrote(session, stream, kind == 3);
            }
            (_, None) => {}
        }
    }

    fn happen(&mut self, event: Event) {
        let count = self.exchanges.len();
        let at = |n: usize| (count > 0).then(|| n % count);
        match event {
            Event::Open => {
                self.opened += 1;
                let text = INITIALIZE.replace("\"c\"", &format!("\"~{}~\"", self.opened));
                self.desk.try_initialize(&text, b"");
            }
            Event::Abandon(n) => {
                let opens = |known: &&Known| known.request.address.session.is_none();
                let all: Vec<_> = self.exchanges.iter().filter(opens).collect();
                if let Some(known) = chosen(&all, n) {
                    self.desk.state.abandon_opening(known.key);
                }
            }
            Event::Ask(n, kind) => self.send(n, |of| ask(of, n % 3, kind)),
            Event::Say(n, kind) => self.send(n, |of| match kind {
                0 => INITIALIZED.into(),
                1 => log(&format!("~{of}~")),
                _ => format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{}}}}}"#,
                    n % 3
                ),
            }),
            Event::Answer(n, asked) => self.send(n, |of| result(&asked.to_string(), &format!("\"~{of}~\""))),
            Event::Stream(n, kind) => self.stream(n, kind),
            Event::Delete(n) => {
                if let Some((session, _)) = self.session(n) {
                    self.desk.end_session(session);
                }
            }
            Event::Head(n) => at(n).into_iter().for_each(|at| self.name(at)),
            Event::Reply(n, is_good) => at(n).into_iter().for_each(|at| self.reply(at, is_good)),
            Event::ReplyOther(n, other) => {
                let ids: Vec<_> = self.calls.values().map(|call| call.id).collect();
                if let (Some(at), Some(id)) = (at(n), chosen(&ids, other)) {
                    self.hear(at, &result(&digits(*id), "{}"));
                    self.hear(at, &progress(&digits(*id), 1));
                }
            }
            Event::Speak(n, kind) => at(n).into_iter().for_each(|at| self.speak(at, kind)),
            Event::End(n, how) => at(n).into_iter().for_each(|at| self.end(at, how)),
            Event::Time(milliseconds) => self.desk.pass(milliseconds),
        }
        self.settle();
    }

    fn check(&self) {
        let state = &self.desk.state;
        let known = state.private.as_ref().unwrap();
        let (mut queued, mut uris, mut waiting) = (0, 0, 0);
        for key in state.sessions.keys() {
            let private = state.sessions.get(key).unwrap().private.as_ref().unwrap();
            queued += private.queue.bytes();
            uris += private.uris.len();
            waiting += private.waiting.len();
            assert!(private.notices <= crate::limits::NOTICES_MAX);
            let may_wait = private.phase != Phase::Ready || private.upward.is_awaited;
            assert!(may_wait || private.waiting.is_empty());
        }
        assert_eq!((known.queued_bytes, known.uris), (queued, uris));
        let open = self.calls.values().filter(|call| !call.has_ended).count();
        assert_eq!(state.calls_in_flight(), open, "calls that have not ended");
        assert!(known.by_call.len() <= open && open <= known.by_call.len() + waiting);
    }
}

fn ask(of: usize, id: usize, kind: u8) -> String {
    match kind {
        0 => subscribe(id as u32, &format!("a:~{of}~/{id}")),
        1 => subscribe(id as u32, &format!("a:~{of}~/{id}")).replace("/subscribe", "/unsubscribe"),
        2 => format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"logging/setLevel","params":{{"level":"~{of}~"}}}}"#
        ),
        3 => format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"task":{{}},"x":"~{of}~","_meta":{{"progressToken":1}}}}}}"#
        ),
        _ => format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"x":"~{of}~","_meta":{{"progressToken":2}}}}}}"#
        ),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn nothing_goes_astray_and_nothing_is_left(events in prop::collection::vec(event(), 0..250)) {
        let mut world = World::default();
        for event in events {
            world.happen(event);
            world.check();
        }
        for session in world.desk.state.sessions.keys() {
            world.desk.end_session(session);
        }
        world.settle();
        prop_assert!(world.calls.values().all(|call| call.has_ended));
        // The desk ends what is under way, and looks whether anything is left.
        let keys = world.exchanges.iter().map(|known| known.key);
        world.desk.under_way.extend(keys);
    }
}
