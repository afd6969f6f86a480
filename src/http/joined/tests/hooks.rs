//! Hooks of a route: what they are shown at each point, and what their verdicts do. Here are
//! hooks that do what a test tells them, and one call of each kind from end to end.

mod awaited;
mod burst;

use std::sync::Mutex;

use super::*;
use crate::hooks::{Chain, Hook, HookCall, Point, Points, Pool, PoolSettings, Verdict};
use crate::http::auth::Tokens;
use crate::http::ground::Pass;
use crate::http::route::{Route, Service};
use crate::http::token_file::TokenCell;
use crate::limits::HOOK_VERDICTS_MAX;
use crate::routing::drops::DropReason;
use crate::runtime::bell::{Bell, mailbox};

type Say = dyn Fn(&mut HookCall<'_>, Point, &[u8]) -> Verdict + Send + Sync;

/// A hook that does what a test tells it.
struct Told {
    points: Points,
    is_quick: bool,
    say: Box<Say>,
}

impl Told {
    #[expect(clippy::new_ret_no_self, reason = "a hook is used behind a pointer")]
    fn new(
        points: impl Into<Points>,
        is_quick: bool,
        say: impl Fn(&mut HookCall<'_>, Point, &[u8]) -> Verdict + Send + Sync + 'static,
    ) -> Arc<dyn Hook> {
        Arc::new(Told {
            points: points.into(),
            is_quick,
            say: Box::new(say),
        })
    }
}

impl Hook for Told {
    fn name(&self) -> &str {
        "told"
    }
    fn points(&self) -> Points {
        self.points
    }
    fn is_quick(&self) -> bool {
        self.is_quick
    }
    fn before_tool_call(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.say)(call, Point::BeforeToolCall, text)
    }
    fn after_tool_call(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.say)(call, Point::AfterToolCall, text)
    }
    fn before_prompt(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.say)(call, Point::BeforePrompt, text)
    }
    fn after_prompt(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.say)(call, Point::AfterPrompt, text)
    }
    fn before_read(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.say)(call, Point::BeforeRead, text)
    }
    fn after_read(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.say)(call, Point::AfterRead, text)
    }
    fn before_subscribe(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.say)(call, Point::BeforeSubscribe, text)
    }
    fn progress(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.say)(call, Point::Progress, text)
    }
}

/// Two upstreams, one of either kind.
fn both() -> [Up; 2] {
    [shared("one"), private("two")]
}

fn hooks_within(all: Vec<Arc<dyn Hook>>, timeout: Duration) -> Hooks {
    let settings = PoolSettings {
        workers: 2,
        ..PoolSettings::default()
    };
    Hooks {
        chain: Arc::new(Chain::new(all, timeout, 1 << 20)),
        pool: Arc::new(Pool::new(settings)),
    }
}

fn hooks(all: Vec<Arc<dyn Hook>>) -> Hooks {
    hooks_within(all, HANG)
}

impl Bench {
    /// A route whose calls these hooks look at.
    fn hooked(upstreams: &[Up], hooks: Hooks) -> Bench {
        let mut bench = Bench::new(upstreams);
        bench.take_verdicts();
        bench.set_hooks(upstreams, Some(hooks));
        bench
    }

    fn take_verdicts(&mut self) {
        let (post, verdicts) = mailbox(HOOK_VERDICTS_MAX, &Bell::new().expect("a bell"));
        self.ground.set_hook_post(post);
        self.verdicts = Some(verdicts);
        let service = Service::Joined(self.joined.clone());
        let route = Route::new("/".to_owned(), None, service);
        self.ground.set_routes(vec![route], Pass::default());
    }

    /// The route is configured again, with these hooks.
    fn set_hooks(&mut self, upstreams: &[Up], hooks: Option<Hooks>) {
        self.hooks = hooks;
        self.configure(upstreams);
    }

    /// Messages that were dropped at any place.
    fn dropped(&self, reason: DropReason) -> u64 {
        let at_seats = self.servers.iter().chain(&self.gone);
        let mut all = at_seats.map(|server| &server.shard().counters);
        let of = |counters: &Counters| {
            let place = DropReason::ALL.iter().position(|known| *known == reason);
            counters.drops()[place.expect("a reason")]
        };
        of(&self.ground.counters) + all.by_ref().map(|it| of(it)).sum::<u64>()
    }
}

/// A request whose way leads past a point, to this upstream, and what its server is to read.
fn request_at(point: Point, upstream: &str) -> (&'static str, Value, Value) {
    let name = format!("{upstream}-x");
    let uri = format!("{upstream}-a:b");
    match point {
        Point::BeforeToolCall | Point::AfterToolCall => (
            "tools/call",
            json!({"name": name, "arguments": {"a": 1}}),
            json!({"name": "x", "arguments": {"a": 1}}),
        ),
        Point::Progress => (
            "tools/call",
            json!({"name": name, "_meta": {"progressToken": "mine"}}),
            json!({"name": "x"}),
        ),
        Point::BeforePrompt | Point::AfterPrompt => (
            "prompts/get",
            json!({"name": name, "arguments": {"a": "1"}}),
            json!({"name": "x", "arguments": {"a": "1"}}),
        ),
        Point::BeforeRead | Point::AfterRead => (
            "resources/read",
            json!({ "uri": uri }),
            json!({"uri": "a:b"}),
        ),
        Point::BeforeSubscribe => (
            "resources/subscribe",
            json!({ "uri": uri }),
            json!({"uri": "a:b"}),
        ),
    }
}

fn result_at(point: Point) -> Value {
    match point {
        Point::BeforeSubscribe => json!({}),
        _ => json!({"said": true}),
    }
}

/// What a call has come to.
#[derive(Debug, PartialEq)]
struct Done {
    /// The params that its server has read.
    read: Option<Value>,
    /// What came for the client, the answer last.
    messages: Vec<Value>,
}

impl Done {
    fn answer(&self) -> &Value {
        self.messages.last().expect("an answer")
    }

    fn reason(&self) -> &Value {
        &self.answer()["error"]["data"]["reason"]
    }
}

/// What the server reads of a request, without the gateway's token.
fn read(server: &Server) -> Vec<(Value, Option<Asked>)> {
    let notes = server.notes().into_iter();
    let wanted = notes.filter_map(|note| Some((json!({"uri": note.strip_prefix("want ")?}), None)));
    let asked = server.asked().into_iter().map(|asked| {
        let mut params = asked.message["params"].clone();
        if let Some(params) = params.as_object_mut() {
            params.remove("_meta");
        }
        (params, Some(asked))
    });
    wanted.chain(asked.collect::<Vec<_>>()).collect()
}

/// The server answers what it has read, after progress where the client wants that.
fn answer(server: &Server, point: Point, params: &Value, asked: Option<&Asked>) {
    match asked {
        None => {
            let uri = params["uri"].as_str().expect("a URI");
            server
                .shard()
                .told(uri, crate::routing::ledger::Told::Agreed);
        }
        Some(asked) => {
            if point == Point::Progress {
                server.progress(asked, 1);
                server.progress(asked, 2);
            }
            server.result(asked, result_at(point));
        }
    }
}

/// One call from end to end, past `point`.
fn run(bench: &Bench, session: SessionKey, id: u32, point: Point, upstream: &str) -> Done {
    let (method, params, _) = request_at(point, upstream);
    run_as(bench, session, id, point, method, &params)
}

fn run_as(
    bench: &Bench,
    session: SessionKey,
    id: u32,
    point: Point,
    method: &str,
    params: &Value,
) -> Done {
    let call = match bench.ask(session, id, method, params) {
        Sent::Call(call) => call,
        sent => {
            return Done {
                read: None,
                messages: vec![sent.now()],
            };
        }
    };
    bench.verdicts();
    let mut all = Vec::new();
    for server in &bench.servers {
        for (params, asked) in read(server) {
            answer(server, point, &params, asked.as_ref());
            all.push(params);
        }
    }
    bench.verdicts();
    assert!(all.len() <= 1, "{all:?}");
    let got = bench.got(call.connection);
    assert!(!got.cancelled);
    assert!(
        got.head.is_empty() || got.head.starts_with("HTTP/1.1 200 "),
        "{}",
        got.head
    );
    bench.ground.end_exchange(call.connection);
    bench.disconnect(call.connection);
    assert!(
        got.messages[..got.messages.len() - 1]
            .iter()
            .all(|message| message.get("id").is_none()),
        "{got:?}"
    );
    assert_eq!(got.messages.last().expect("an answer")["id"], id);
    Done {
        read: all.pop(),
        messages: got.messages,
    }
}

/// Runs `body` for each point, each kind of upstream, and hooks that are quick and not.
fn everywhere(body: impl Fn(Point, &str, bool)) {
    for point in Point::ALL {
        for upstream in ["one", "two"] {
            for is_quick in [true, false] {
                eprintln!("--- {point:?} {upstream} quick: {is_quick}");
                body(point, upstream, is_quick);
            }
        }
    }
}

fn is_before(point: Point) -> bool {
    !point.is_on_the_way_back()
}

#[test]
fn without_hooks_nothing_is_looked_at() {
    let bench = Bench::new(&both());
    let session = bench.client();
    for point in Point::ALL {
        let (method, params, _) = request_at(point, "one");
        let call = bench.begin(session, 1, method, &params);
        assert_eq!(bench.joined.held(), 0);
        for (params, asked) in read(&bench.server("one")) {
            answer(&bench.server("one"), point, &params, asked.as_ref());
        }
        bench.answers(call);
    }
}

#[test]
fn what_passes_is_as_without_hooks_and_was_shown_once() {
    everywhere(|point, upstream, is_quick| {
        let plain = Bench::new(&both());
        let expected = run(&plain, plain.client(), 7, point, upstream);
        let (_, _, own) = request_at(point, upstream);
        assert_eq!(expected.read, Some(own));
        let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
        let noted = seen.clone();
        let hook = Told::new(point, is_quick, move |_, asked, text| {
            assert_eq!(asked, point);
            let text = serde_json::from_slice(text).expect("JSON");
            noted.lock().expect("no panic").push(text);
            Verdict::Pass
        });
        let bench = Bench::hooked(&both(), hooks(vec![hook]));
        assert_eq!(run(&bench, bench.client(), 7, point, upstream), expected);
        let shown = match point {
            Point::Progress => expected.messages[..2]
                .iter()
                .map(|message| message["params"].clone())
                .collect(),
            point if is_before(point) => vec![request_at(point, upstream).1],
            _ => vec![expected.answer()["result"].clone()],
        };
        assert_eq!(*seen.lock().expect("no panic"), shown);
        bench.is_quiet();
    });
}

#[test]
fn a_rewrite_takes_the_place_of_what_was_there() {
    everywhere(|point, upstream, is_quick| {
        let name = format!("{upstream}-y");
        let uri = format!("{upstream}-c:d");
        let (with, own) = match point {
            Point::BeforeToolCall | Point::BeforePrompt => (
                json!({"name": name, "arguments": {"a": "2"}}),
                json!({"name": "y", "arguments": {"a": "2"}}),
            ),
            Point::BeforeRead | Point::BeforeSubscribe => {
                (json!({ "uri": uri }), json!({"uri": "c:d"}))
            }
            Point::Progress => (json!({"progressToken": "mine", "progress": 9}), Value::Null),
            _ => (json!({"new": true}), Value::Null),
        };
        let text = with.to_string();
        let hook = Told::new(point, is_quick, move |_, _, _| {
            Verdict::Rewrite(text.clone().into_bytes())
        });
        let bench = Bench::hooked(&both(), hooks(vec![hook]));
        let done = run(&bench, bench.client(), 7, point, upstream);
        match point {
            Point::Progress => {
                assert_eq!(done.messages.len(), 3);
                assert_eq!(done.messages[0]["params"], with);
                assert_eq!(done.messages[1]["params"], with);
                assert_eq!(done.answer()["result"], result_at(point));
            }
            point if is_before(point) => {
                assert_eq!(done.read, Some(own));
                assert_eq!(done.answer()["result"], result_at(point));
            }
            _ => assert_eq!(done.answer()["result"], with),
        }
        bench.is_quiet();
    });
}

#[test]
fn what_is_denied_goes_no_further() {
    everywhere(|point, upstream, is_quick| {
        let hook = Told::new(point, is_quick, |_, _, _| {
            Verdict::deny(-32_099, "not \"you\"")
        });
        let bench = Bench::hooked(&both(), hooks(vec![hook]));
        let session = bench.client();
        let done = run(&bench, session, 7, point, upstream);
        if point == Point::Progress {
            assert_eq!(done.messages.len(), 1, "{done:?}");
            assert_eq!(done.answer()["result"], result_at(point));
            assert_eq!(bench.dropped(DropReason::Hook), 2);
            return bench.is_quiet();
        }
        assert_eq!(done.read.is_none(), is_before(point), "{done:?}");
        assert_eq!(
            *done.answer(),
            json!({"jsonrpc": "2.0", "id": 7, "error": {"code": -32_099, "message": "not \"you\""}})
        );
        assert_eq!(bench.dropped(DropReason::Hook), 0);
        bench.is_quiet();
        // A subscription that was denied is none.
        bench.joined.end_session(session);
        assert!(bench.server("one").notes().is_empty());
    });
}

#[test]
fn a_hook_that_panics_denies() {
    everywhere(|point, upstream, is_quick| {
        let hook = Told::new(point, is_quick, |_, _, _| {
            std::panic::panic_any("on purpose")
        });
        let bench = Bench::hooked(&both(), hooks(vec![hook]));
        let done = run(&bench, bench.client(), 7, point, upstream);
        if point == Point::Progress {
            assert_eq!(done.messages.len(), 1);
            assert_eq!(bench.dropped(DropReason::Hook), 2);
        } else {
            assert_eq!(done.read.is_none(), is_before(point));
            assert_eq!(done.answer()["error"]["code"], -32_603);
            assert_eq!(done.answer()["error"]["message"], "A hook failed");
            assert_eq!(done.reason(), "hook_failed");
        }
        bench.is_quiet();
    });
}

#[test]
fn a_hook_that_does_not_answer_in_time_denies() {
    for point in Point::ALL {
        for upstream in ["one", "two"] {
            let (release, gate) = crossbeam_channel::bounded::<()>(0);
            let hook = Told::new(point, false, move |_, _, _| {
                let _ = gate.recv();
                Verdict::Pass
            });
            let hooks = hooks_within(vec![hook], Duration::from_millis(5));
            let bench = Bench::hooked(&both(), hooks.clone());
            let done = run(&bench, bench.client(), 7, point, upstream);
            let denials = hooks.chain.counters().timed_out();
            if point == Point::Progress {
                assert_eq!(done.messages.len(), 1);
                assert_eq!((bench.dropped(DropReason::Hook), denials), (2, 2));
            } else {
                assert_eq!(denials, 1);
                assert_eq!(done.read.is_none(), is_before(point));
                assert_eq!(
                    done.answer()["error"]["message"],
                    "A hook did not answer in time"
                );
                assert_eq!(done.reason(), "hook_failed");
            }
            drop(release);
            bench.is_quiet();
        }
    }
}

#[test]
fn progress_after_one_that_was_denied_comes_in_order_before_the_answer() {
    for is_quick in [true, false] {
        let hook = Told::new(
            Point::Progress,
            is_quick,
            |_, _, text| match memchr::memmem::find(text, b"\"progress\":3").is_some() {
                true => Verdict::deny(0, ""),
                false => Verdict::Pass,
            },
        );
        // The answer is looked at as well, by one that is quick.
        let other = Told::new(Point::AfterToolCall, true, |_, _, _| {
            Verdict::Rewrite(b"{\"last\":1}".to_vec())
        });
        let bench = Bench::hooked(&both(), hooks(vec![hook, other]));
        let session = bench.client();
        let (method, params, _) = request_at(Point::Progress, "one");
        let call = bench.begin(session, 1, method, &params);
        let one = bench.server("one");
        let asked = one.one();
        (1..=5).for_each(|number| one.progress(&asked, number));
        one.result(&asked, json!({}));
        bench.verdicts();
        let messages = bench.answers(call);
        let numbers: Vec<_> = messages
            .iter()
            .map(|it| &it["params"]["progress"])
            .collect();
        assert_eq!(
            numbers,
            [1, 2, 4, 5]
                .map(Value::from)
                .iter()
                .chain([&Value::Null])
                .collect::<Vec<_>>()
        );
        assert_eq!(messages[4]["result"], json!({"last": 1}));
        assert_eq!(bench.dropped(DropReason::Hook), 1);
        bench.is_quiet();
    }
}

#[test]
fn what_a_hook_keeps_lasts_for_the_call_and_no_longer() {
    for is_quick in [true, false] {
        let points = Points::from(Point::BeforeToolCall)
            .with(Point::Progress)
            .with(Point::AfterToolCall);
        let counting = || {
            Told::new(points, is_quick, |call, point, _| {
                let count = call.take::<u64>().unwrap_or_default() + 1;
                call.insert(count);
                match point {
                    Point::AfterToolCall => {
                        Verdict::Rewrite(format!("{{\"count\":{count}}}").into_bytes())
                    }
                    _ => Verdict::Pass,
                }
            })
        };
        let bench = Bench::hooked(&both(), hooks(vec![counting(), counting()]));
        let session = bench.client();
        for id in 1..3 {
            let done = run(&bench, session, id, Point::Progress, "two");
            // Before, two progress messages, after.
            assert_eq!(done.answer()["result"]["count"], 4);
        }
        bench.is_quiet();
    }
}

/// What hooks were told of calls.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    point: Point,
    upstream: Option<String>,
    identity: Option<String>,
    session: u64,
    method: String,
    name: String,
}

type Contexts = Arc<Mutex<Vec<Seen>>>;

fn noting_contexts(is_quick: bool) -> (Contexts, Arc<dyn Hook>) {
    let contexts = Contexts::default();
    let noted = contexts.clone();
    let hook = Told::new(Points::ALL, is_quick, move |call, point, _| {
        assert_eq!(call.route(), "route");
        noted.lock().expect("no panic").push(Seen {
            point,
            upstream: call.upstream().map(str::to_owned),
            identity: call.identity().map(str::to_owned),
            session: call.session(),
            method: call.method().to_owned(),
            name: call.name().to_owned(),
        });
        Verdict::Pass
    });
    (contexts, hook)
}

#[test]
fn hooks_are_told_whose_call_it_is_and_where_it_goes() {
    for is_quick in [true, false] {
        let (contexts, hook) = noting_contexts(is_quick);
        let bench = Bench::hooked(&both(), hooks(vec![hook]));
        let (ann, bob) = (bench.client(), bench.client());
        let mut sessions = Vec::new();
        for session in [ann, bob] {
            for point in Point::ALL {
                for upstream in ["one", "two"] {
                    run(&bench, session, 1, point, upstream);
                    let (method, params, _) = request_at(point, upstream);
                    let name = params.get("name").unwrap_or(&params["uri"]);
                    let mut seen = contexts.lock().expect("no panic");
                    assert!(seen.iter().any(|it| it.point == point));
                    for context in seen.drain(..) {
                        assert_eq!(context.upstream.as_deref(), Some(upstream));
                        assert_eq!(context.identity, None);
                        assert_eq!((&*context.method, &json!(context.name)), (method, name));
                        sessions.push((session, context.session));
                    }
                }
            }
        }
        for one in &sessions {
            for other in &sessions {
                assert_eq!(one.0 == other.0, one.1 == other.1);
            }
        }
        bench.is_quiet();
    }
}

#[test]
fn hooks_are_told_the_name_of_the_token() {
    let (contexts, hook) = noting_contexts(true);
    let bench = Bench::hooked(&[shared("one"), shared("two")], hooks(vec![hook]));
    let text = "ann ann-0123456789abc\nbob bob-0123456789abc\n";
    let tokens = TokenCell::new(Tokens::read(text.as_bytes()).expect("tokens"));
    let reader = Rc::new(tokens.reader());
    bench.joined.tokens.replace(Some(reader.clone()));
    for (name, id) in [("bob", 1), ("ann", 2), ("bob", 3)] {
        let bearer = format!("Bearer {name}-0123456789abc");
        let owner = reader.check(Some(bearer.as_bytes())).ok();
        let session = bench.client_of(owner.expect("a token in force"));
        run(&bench, session, id, Point::AfterRead, "two");
        let seen = std::mem::take(&mut *contexts.lock().expect("no panic"));
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|it| it.identity.as_deref() == Some(name)));
    }
}

impl Bench {
    /// The client of a token; all upstreams are shared.
    fn client_of(&self, owner: TokenId) -> SessionKey {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
        let connection = self.connect();
        let form = Form::Opening {
            manner: Manner::unread(),
            sse: false,
        };
        let to = self.ground.begin_exchange(connection, form);
        let envelope = scan::scan(text.as_bytes()).expect("a message");
        let id = envelope.id.expect("an id");
        let fields = [][..].into();
        let _pending = self
            .joined
            .open(text.as_bytes(), &envelope, &id, to, owner, fields);
        let head = self.got(connection).head;
        self.ground.end_exchange(connection);
        self.disconnect(connection);
        let mut lines = head.lines();
        let id = lines.find_map(|line| line.strip_prefix("mcp-session-id: "));
        let id = uuid::Uuid::parse_str(id.expect("a session")).expect("an id");
        self.joined
            .find(SessionId(id.as_u128()), owner)
            .expect("it is theirs")
    }
}

#[test]
fn the_result_of_a_task_is_that_of_a_tool_at_its_own_upstream() {
    let (contexts, hook) = noting_contexts(false);
    let bench = Bench::hooked(&both(), hooks(vec![hook]));
    let session = bench.client();
    let params = json!({"name": "two-x", "task": {}});
    let call = bench.begin(session, 1, "tools/call", &params);
    bench.verdicts();
    let two = bench.server("two");
    two.result(
        &two.one(),
        json!({"task": {"taskId": "one-7", "status": "working", "createdAt": "2025-11-25T10:30:00Z", "lastUpdatedAt": "2025-11-25T10:30:00Z", "ttl": 60_000}}),
    );
    bench.verdicts();
    let task = bench.answer(call)["result"]["task"]["taskId"].clone();
    let task = task.as_str().expect("a task");
    contexts.lock().expect("no panic").clear();
    let call = bench.begin(session, 2, "tasks/result", &json!({ "taskId": task }));
    two.result(&two.one(), json!({"content": []}));
    bench.verdicts();
    bench.answer(call);
    let seen = contexts.lock().expect("no panic").clone();
    let [context] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(context.point, Point::AfterToolCall);
    assert_eq!(context.upstream.as_deref(), Some("two"));
    assert_eq!((&*context.method, &*context.name), ("tasks/result", task));
}

#[test]
fn a_rewritten_name_is_resolved_like_any_other() {
    for is_quick in [true, false] {
        let name = Arc::new(Mutex::new(String::new()));
        let with = name.clone();
        let points = Points::from(Point::BeforeToolCall)
            .with(Point::BeforePrompt)
            .with(Point::BeforeRead)
            .with(Point::BeforeSubscribe);
        let hook = Told::new(points, is_quick, move |_, point, _| {
            let member = match point {
                Point::BeforeToolCall | Point::BeforePrompt => "name",
                _ => "uri",
            };
            let value = with.lock().expect("no panic").clone();
            Verdict::Rewrite(json!({ member: value }).to_string().into_bytes())
        });
        let (contexts, noting) = noting_contexts(is_quick);
        let upstreams = [
            shared("one").deny("secret*"),
            private("two").deny("secret*"),
        ];
        let bench = Bench::hooked(&upstreams, hooks(vec![hook, noting]));
        let session = bench.client();
        for (point, code) in [
            (Point::BeforeToolCall, -32_602),
            (Point::BeforePrompt, -32_602),
            (Point::BeforeRead, -32_002),
            (Point::BeforeSubscribe, -32_002),
        ] {
            for denied in ["one-secret:1", "two-secret:1", "three-x:1", "x:1"] {
                *name.lock().expect("no panic") = denied.to_owned();
                let done = run(&bench, session, 1, point, "one");
                assert_eq!(done.read, None);
                assert_eq!(done.answer()["error"]["code"], code, "{done:?}");
            }
            // Those after it are told where the call goes now.
            contexts.lock().expect("no panic").clear();
            *name.lock().expect("no panic") = "two-free:1".to_owned();
            let done = run(&bench, session, 1, point, "one");
            assert_eq!(done.answer()["result"], result_at(point));
            let seen = contexts.lock().expect("no panic");
            let last = seen.last().expect("it was asked");
            if point != Point::BeforeSubscribe {
                assert!(last.point.is_on_the_way_back());
                assert_eq!(last.upstream.as_deref(), Some("two"));
            }
        }
        bench.is_quiet();
    }
}

#[test]
fn a_rewrite_that_makes_another_call_of_it_denies() {
    everywhere(|point, upstream, is_quick| {
        let rewrites: &[&str] = match point {
            Point::Progress => &[
                r#"{"progressToken":"other","progress":1}"#,
                r#"{"progress":1}"#,
                r#"{"progressToken":7,"progress":1}"#,
                r#"{},"method":"notifications/message""#,
            ],
            point if is_before(point) => &[
                r#"{"name":"one-x","uri":"one-a:b","_meta":{"progressToken":"other"}}"#,
                r#"{"name":"one-x","uri":"one-a:b","_meta":{"progressToken":1}}"#,
                r#"{"name":"one-x"},"id":8"#,
                r#"{"name":"one-x"},"method":"tools/list""#,
                "[]",
            ],
            _ => &[r#"{},"id":8"#, r#"{},"error":{}"#, "null", ""],
        };
        for with in rewrites {
            let text = with.as_bytes().to_vec();
            let hook = Told::new(point, is_quick, move |_, _, _| {
                Verdict::Rewrite(text.clone())
            });
            let bench = Bench::hooked(&both(), hooks(vec![hook]));
            let done = run(&bench, bench.client(), 7, point, upstream);
            if point == Point::Progress {
                assert_eq!(done.messages.len(), 1, "{with}");
                assert_eq!(bench.dropped(DropReason::Hook), 2);
            } else {
                assert_eq!(done.read.is_none(), is_before(point), "{with}");
                assert_eq!(done.reason(), "hook_failed", "{with}");
            }
            bench.is_quiet();
        }
    });
}

#[test]
fn a_token_stays_in_a_rewritten_request() {
    for is_quick in [true, false] {
        let with = Arc::new(Mutex::new(String::new()));
        let text = with.clone();
        let hook = Told::new(Point::BeforeToolCall, is_quick, move |_, _, _| {
            Verdict::Rewrite(text.lock().expect("no panic").clone().into_bytes())
        });
        let bench = Bench::hooked(&both(), hooks(vec![hook]));
        let session = bench.client();
        let (method, params, _) = request_at(Point::Progress, "one");
        for without in [
            r#"{"name":"one-x"}"#,
            r#"{"name":"one-x","_meta":{"progressToken":"other"}}"#,
        ] {
            *with.lock().expect("no panic") = without.to_owned();
            let done = run_as(&bench, session, 1, Point::Progress, method, &params);
            assert_eq!(done.reason(), "hook_failed");
        }
        *with.lock().expect("no panic") =
            r#"{"_meta":{"a":1,"progressToken":"mine"},"name":"two-z"}"#.to_owned();
        let done = run_as(&bench, session, 1, Point::Progress, method, &params);
        assert_eq!(done.read, Some(json!({"name": "z"})));
        assert_eq!(done.messages.len(), 3);
        bench.is_quiet();
    }
}

#[test]
fn a_request_without_params_is_refused_as_without_hooks() {
    for is_quick in [true, false] {
        let hook = Told::new(Points::ALL, is_quick, |_, _, _| Verdict::Pass);
        let bench = Bench::hooked(&both(), hooks(vec![hook]));
        let session = bench.client();
        for method in [
            "tools/call",
            "prompts/get",
            "resources/read",
            "resources/subscribe",
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
            let answer = bench.send(session, &text).now();
            assert_eq!(code(&answer), -32_602, "{answer}");
        }
        bench.is_quiet();
    }
}

#[test]
fn the_answer_of_a_request_without_params_is_shown_all_the_same() {
    for is_quick in [true, false] {
        let hook = Told::new(Points::ALL, is_quick, |_, point, _| {
            match is_before(point) {
                true => Verdict::Pass,
                false => Verdict::deny(-1, "secret"),
            }
        });
        let upstreams = [shared("one")];
        let bench = Bench::hooked(&upstreams, hooks(vec![hook]));
        let session = bench.client();
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;
        let call = bench.send(session, text).call();
        let one = bench.server("one");
        one.result(&one.one(), json!({"secret": 1}));
        bench.verdicts();
        assert_eq!(code(&bench.answer(call)), -1);
        bench.is_quiet();
    }
}

#[test]
fn errors_of_servers_pass_and_lists_leave_nothing() {
    for is_quick in [true, false] {
        let hook = Told::new(Points::ALL, is_quick, |_, point, _| {
            match is_before(point) {
                true => Verdict::Pass,
                false => Verdict::deny(-1, "no"),
            }
        });
        let bench = Bench::hooked(&both(), hooks(vec![hook]));
        let session = bench.client();
        let call = bench.begin(session, 1, "tools/call", &json!({"name": "two-x"}));
        bench.verdicts();
        let two = bench.server("two");
        two.error(&two.one(), -5);
        bench.verdicts();
        assert_eq!(code(&bench.answer(call)), -5);
        let with_token = json!({"_meta": {"progressToken": 1}});
        let lists = [
            ("tools/list", tools(&["x"])),
            ("prompts/list", json!({"prompts": []})),
        ];
        for (method, result) in lists {
            for is_cancelled in [false, true] {
                let call = bench.begin(session, 2, method, &with_token);
                if is_cancelled {
                    bench.cancel(session, 2);
                    bench.cancelled(call);
                    bench.is_quiet();
                    for server in &bench.servers {
                        server.asked();
                    }
                    continue;
                }
                for name in ["one", "two"] {
                    let server = bench.server(name);
                    server.result(&server.one(), result.clone());
                }
                assert!(bench.answer(call)["result"].is_object());
                bench.is_quiet();
            }
        }
        bench.begin(session, 3, "tools/list", &with_token);
        bench.joined.end_session(session);
        assert_eq!(bench.joined.held(), 0);
    }
}
