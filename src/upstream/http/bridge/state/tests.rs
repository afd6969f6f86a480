use super::*;

/// A state with a clock, and what it has begun.
struct Script {
    state: State,
    upstream_name: Rc<RefCell<Option<Arc<str>>>>,
    now: Millis,
    begun: Vec<(Key, Request)>,
    aborted: Vec<Key>,
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":268435456,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
const READY: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const RESULT: &str = r#"{"jsonrpc":"2.0","id":268435456,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"prompts":{}},"serverInfo":{"name":"s","version":"1"}}}"#;

/// An id of a call, which says a shard, a slot and a generation.
fn id_of(slot: u32) -> u64 {
    u64::from(1u32) | u64::from(slot) << 8 | 1 << 28
}

fn call(slot: u32, method: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{{}}}}"#,
        id_of(slot)
    )
}

fn about_uri(slot: u32, method: &str, uri: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":"resources/{method}","params":{{"uri":"{uri}"}}}}"#,
        id_of(slot)
    )
}

fn cancel(slot: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{}}}}}"#,
        id_of(slot)
    )
}

fn result(slot: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id_of(slot))
}

const CHANGE: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

impl Script {
    fn new(connections_max: usize) -> Script {
        let upstream_name = Rc::default();
        let settings = Settings {
            upstream_name: Rc::clone(&upstream_name),
            connections_max,
            added_fields: b"x-added: 1\r\n"[..].into(),
            start_timeout_ms: 10_000,
            request_timeout_ms: 60_000,
        };
        Script {
            upstream_name,
            state: State::new(settings, Millis(1_000)),
            now: Millis(1_000),
            begun: Vec::new(),
            aborted: Vec::new(),
        }
    }

    /// One whose handshake is done; the GET stream is refused.
    fn ready(connections_max: usize) -> Script {
        let mut script = Script::with_stream(connections_max);
        let get = script.begun.pop().unwrap().0;
        script.end(get, refused(405, ""));
        script
    }

    /// The same with its GET stream under way, last in `begun`.
    fn with_stream(connections_max: usize) -> Script {
        let mut script = Script::new(connections_max);
        let key = script.begin(INITIALIZE);
        script.head(key, Some("s-1"), false);
        script.hear(key, RESULT);
        script.end(key, End::Done);
        assert_eq!(script.lines(), [RESULT]);
        let key = script.begin(READY);
        script.head(key, None, false);
        script.end(key, End::Done);
        assert_eq!(script.begun.last().unwrap().1.method, Verb::Get);
        script
    }

    /// The same with a stream that is slow to open.
    fn with_slow_stream(connections_max: usize) -> Script {
        let mut script = Script::with_stream(connections_max);
        script.pass(STREAM_OPEN_MS);
        script
    }

    fn acts(&mut self) {
        for act in self.state.take_acts() {
            match act {
                Act::Begin(key, request) => self.begun.push((key, request)),
                Act::Abort(key) => self.aborted.push(key),
            }
        }
    }

    fn line(&mut self, line: &str) {
        self.state.line(line.as_bytes(), self.now);
        self.acts();
    }

    /// A line that becomes an exchange at once.
    fn begin(&mut self, line: &str) -> Key {
        let before = self.begun.len();
        self.line(line);
        assert_eq!(self.begun.len(), before + 1, "{line}");
        let (key, request) = &self.begun[before];
        assert_eq!(&*request.body.get(), line.as_bytes());
        *key
    }

    fn head(&mut self, key: Key, session: Option<&str>, is_stream: bool) {
        let session = session.map(|id| Ok(id.as_bytes()));
        self.state.head(key, session, is_stream, self.now);
        self.acts();
    }

    fn hear(&mut self, key: Key, text: &str) {
        self.state.heard(key, text.as_bytes(), self.now);
        self.acts();
    }

    fn end(&mut self, key: Key, end: End) {
        self.state.ended(key, Some(end), false, self.now);
        self.acts();
    }

    fn end_alone(&mut self, key: Key, end: End) {
        self.state.ended(key, Some(end), true, self.now);
        self.acts();
    }

    fn tick(&mut self) {
        self.state.tick(self.now);
        self.acts();
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now = self.now.after(milliseconds);
        self.tick();
    }

    /// The lines for the hub since the last time.
    fn lines(&mut self) -> Vec<String> {
        let mut text = String::new();
        while let Some(write) = self.state.outbox.next_write() {
            self.state.outbox.written(write.len());
            text.push_str(std::str::from_utf8(&write).unwrap());
        }
        text.lines().map(str::to_owned).collect()
    }

    /// The one line for the hub, an error for this call.
    fn failure(&mut self, slot: u32) -> serde_json::Value {
        let lines = self.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(line["id"], id_of(slot));
        line["error"].clone()
    }
}

fn refused(status: u16, body: &str) -> End {
    End::Refused {
        status,
        body: body.into(),
    }
}

#[test]
fn handshake_comes_alone_and_names_the_session_from_then_on() {
    let mut script = Script::new(8);
    let key = script.begin(INITIALIZE);
    let request = &script.begun[0].1;
    assert!(request.session.is_none() && request.version.is_none());
    assert_eq!(&*request.fields, b"x-added: 1\r\n");
    assert!(!request.may_repeat);
    assert_eq!(
        (request.first_byte_ms, request.silence_ms),
        (10_000, 10_000)
    );
    // Nothing overtakes it, nor what follows it.
    script.line(&call(1, "tools/list"));
    script.head(key, Some("s-1"), true);
    assert!(!script.state.is_exchange_over(key));
    script.hear(key, RESULT);
    assert!(script.state.is_exchange_over(key));
    assert_eq!(script.begun.len(), 1);
    let key = script.begin(READY);
    let request = &script.begun[1].1;
    assert_eq!(request.session.as_deref(), Some(&b"s-1"[..]));
    assert_eq!(request.version, Some("2025-06-18"));
    script.line(&call(2, "tools/call"));
    script.tick();
    assert_eq!(script.begun.len(), 2);
    // And what the server says on the GET stream is not to be missed.
    script.head(key, None, false);
    script.pass(STREAM_OPEN_MS - 1);
    assert_eq!(script.begun.len(), 3);
    let get = script.begun[2].0;
    script.head(get, None, true);
    let begun: Vec<_> = script.begun[2..].iter().map(|(_, it)| it).collect();
    assert_eq!(begun.len(), 3);
    assert_eq!(begun[0].method, Verb::Get);
    assert_eq!(&*begun[1].body.get(), call(1, "tools/list").as_bytes());
    assert_eq!(&*begun[2].body.get(), call(2, "tools/call").as_bytes());
    assert_eq!([begun[1].may_repeat, begun[2].may_repeat], [true, false]);
    for request in begun {
        assert_eq!(request.session.as_deref(), Some(&b"s-1"[..]));
        assert_eq!(request.version, Some("2025-06-18"));
        assert_eq!(&*request.fields, b"x-added: 1\r\n");
        assert_eq!(request.silence_ms, 0, "{request:?}");
    }
    let farewell = script.state.farewell().unwrap();
    assert_eq!(farewell.method, Verb::Delete);
    assert_eq!(farewell.session.as_deref(), Some(&b"s-1"[..]));
}

#[test]
fn refused_initialized_does_not_hold_the_session_up() {
    for end in [refused(400, ""), End::Broken(Fault::Malformed), End::Done] {
        let mut script = Script::new(8);
        let key = script.begin(INITIALIZE);
        script.hear(key, RESULT);
        script.end(key, End::Done);
        let key = script.begin(READY);
        script.end(key, end);
        script.line(&call(1, "tools/call"));
        assert_eq!(script.begun.last().unwrap().1.method, Verb::Get);
        // A server that opens its stream only when it has something to say.
        script.pass(STREAM_OPEN_MS);
        assert_eq!(script.begun.last().unwrap().1.method, Verb::Post);
        assert!(script.state.over().is_none());
        // A server without sessions has none to end.
        assert!(script.state.farewell().is_none());
    }
}

#[test]
fn server_that_is_not_there_yet_is_asked_again_until_the_time_is_over() {
    let ends: [fn() -> End; 4] = [
        || End::Broken(Fault::Connect),
        || End::Broken(Fault::Resolve),
        || End::Broken(Fault::Closed),
        || refused(503, "soon"),
    ];
    for end in ends {
        let mut script = Script::new(8);
        let mut key = script.begin(INITIALIZE);
        let mut asked = 1;
        loop {
            // Also when there is no connection at all.
            script.end_alone(key, end());
            script.pass(RETRY_MS - 1);
            if script.state.over().is_some() {
                break;
            }
            assert_eq!(script.begun.len(), asked, "not before its time");
            script.pass(1);
            if script.state.over().is_some() {
                break;
            }
            asked += 1;
            assert_eq!(script.begun.len(), asked);
            key = script.begun[asked - 1].0;
        }
        assert!((35..=40).contains(&asked), "{asked}");
        assert!(
            script.now < Millis(11_000),
            "before the main thread gives up"
        );
        assert!(script.lines().is_empty());
        let how = script.state.over().unwrap();
        assert!(
            how.starts_with("the ") || how.contains("status 503: "),
            "{how}"
        );
    }
    // One that comes up meanwhile is none the worse.
    let mut script = Script::new(8);
    let key = script.begin(INITIALIZE);
    script.end_alone(key, End::Broken(Fault::Connect));
    script.pass(RETRY_MS);
    let key = script.begun[1].0;
    script.hear(key, RESULT);
    script.end(key, End::Done);
    script.pass(60_000);
    assert!(script.state.over().is_none());
    assert_eq!(script.begun.len(), 2);
}

#[test]
fn handshake_that_cannot_be_made_is_the_end_at_once() {
    for (end, how) in [
        (
            refused(401, "no"),
            "it answered initialize with HTTP status 401: it asks for a credential, or does not take the one that it got",
        ),
        (
            refused(404, ""),
            "it answered initialize with HTTP status 404: nothing takes MCP messages there: is the path of the URL right?",
        ),
        (
            // In the server's own words, on one line.
            refused(
                400,
                "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-1,\n\"message\":\"go away\"}}",
            ),
            r#"it answered initialize with HTTP status 400 and the error {"code":-1,"message":"go away"}"#,
        ),
        (
            refused(429, ""),
            "it answered initialize with HTTP status 429",
        ),
        (End::Done, "it answered initialize with nothing"),
        (
            End::Broken(Fault::Malformed),
            "the MCP server's answer is not well-formed",
        ),
        (End::Broken(Fault::Tls), "TLS with the MCP server failed"),
    ] {
        let mut script = Script::new(8);
        let key = script.begin(INITIALIZE);
        let may_change = end == End::Broken(Fault::Tls);
        script.end(key, end);
        if may_change {
            script.pass(10_000);
        }
        assert_eq!(script.state.over(), Some(how));
        assert!(script.lines().is_empty());
    }
    // A session id that cannot be sent back.
    let mut script = Script::new(8);
    let key = script.begin(INITIALIZE);
    script
        .state
        .head(key, Some(Err(OddSession)), false, script.now);
    script.acts();
    assert!(
        script
            .state
            .over()
            .is_some_and(|how| how.contains("session id"))
    );
    assert_eq!(script.aborted, [key]);
}

#[test]
fn message_becomes_a_line_wherever_it_comes() {
    let mut script = Script::with_stream(8);
    let get = script.begun.last().unwrap().0;
    script.head(get, None, true);
    let (one, two) = (script.begin(&call(1, "a")), script.begin(&call(2, "b")));
    script.hear(
        get,
        "{\"jsonrpc\":\"2.0\",\r\n\"method\":\"notifications/x\"}\n",
    );
    script.hear(one, "not JSON");
    script.hear(one, " ");
    // The answer of the one on the exchange of the other.
    script.hear(one, &result(2));
    assert_eq!(
        script.lines(),
        [
            r#"{"jsonrpc":"2.0",  "method":"notifications/x"}"#,
            "not JSON",
            &result(2)
        ]
    );
    assert!(script.state.is_exchange_over(two) && !script.state.is_exchange_over(one));
    script.end(two, End::Broken(Fault::Cut));
    assert!(script.lines().is_empty(), "its answer has come");
    script.end(one, End::Broken(Fault::Cut));
    assert_eq!(script.failure(1)["data"]["reason"], "upstream_down");
    // What an exchange says that is over nobody hears.
    script.hear(one, &result(1));
    assert!(script.lines().is_empty());
}

#[test]
fn each_end_without_an_answer_has_its_error() {
    let error = r#"{"jsonrpc":"2.0","id":"x","error":{"code":7,"message":"m","data":[1]}}"#;
    for (end, code, reason) in [
        (End::Done, -32603, "upstream_down"),
        (End::Broken(Fault::Closed), -32603, "upstream_down"),
        (End::Broken(Fault::TooLarge), -32603, "overloaded"),
        (End::Broken(Fault::Silence), -32603, "timeout"),
        (End::Broken(Fault::Connect), -32603, "upstream_down"),
        (refused(500, "oh"), -32603, "upstream_down"),
        (refused(400, error), 7, ""),
    ] {
        let mut script = Script::ready(8);
        let key = script.begin(&call(1, "a"));
        script.end(key, end);
        let failure = script.failure(1);
        assert_eq!(failure["code"], code);
        match reason {
            "" => assert_eq!(failure["data"], serde_json::json!([1])),
            _ => assert_eq!(failure["data"]["reason"], reason),
        }
        assert!(script.state.over().is_none());
        assert_eq!(script.state.exchanges(), 0);
    }
    // One that Ringway failed to make.
    let mut script = Script::ready(8);
    let key = script.begin(&call(1, "a"));
    script.state.ended(key, None, false, script.now);
    assert_eq!(script.failure(1)["data"]["reason"], "upstream_down");
    // Notifications and answers have none.
    let key = script.begin(r#"{"jsonrpc":"2.0","id":"s","result":{}}"#);
    script.end(key, refused(400, error));
    assert!(script.lines().is_empty());
}

#[test]
fn an_error_names_the_server_while_it_is_one_of_several() {
    let mut script = Script::ready(8);
    for (name, sentence) in [
        (None, "The upstream server answered with HTTP status 500"),
        (
            Some("one"),
            "The upstream server one answered with HTTP status 500",
        ),
        (None, "The upstream server answered with HTTP status 500"),
    ] {
        *script.upstream_name.borrow_mut() = name.map(Arc::from);
        let key = script.begin(&call(1, "a"));
        script.end(key, refused(500, "oh"));
        assert_eq!(script.failure(1)["message"], sentence);
    }
    // One that never comes.
    *script.upstream_name.borrow_mut() = Some("one".into());
    script.begin(&call(1, "a"));
    script.pass(100_000);
    let sentence = "The upstream server one did not answer in time";
    assert_eq!(script.failure(1)["message"], sentence);
}

#[test]
fn cancel_is_told_and_ends_the_exchange() {
    let mut script = Script::ready(2);
    let key = script.begin(&call(1, "a"));
    script.line(&call(2, "b"));
    assert_eq!(script.begun.last().unwrap().0, key, "one waits");
    // One that the server never heard of is not told.
    script.line(&cancel(2));
    assert_eq!(
        (script.begun.last().unwrap().0, script.aborted.len()),
        (key, 0)
    );
    let told = script.begin(&cancel(1));
    assert_eq!(script.aborted, [key]);
    script.end(key, End::Aborted);
    script.end(told, End::Done);
    assert!(script.lines().is_empty());
    assert_eq!(script.state.exchanges(), 0);
    // An answer that crosses it is the hub's to drop, and one of a name that is unknown too.
    script.begin(&cancel(1));
    script.begin(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}"#,
    );
    assert_eq!(script.aborted, [key]);
}

#[test]
fn requests_wait_in_turn_and_notices_do_not_wait_for_them() {
    let mut script = Script::ready(3);
    let first = script.begun.len();
    for slot in 0..6 {
        script.line(&call(slot, "a"));
    }
    assert_eq!(script.begun.len(), first + 2);
    let notice = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
    script.begin(notice);
    script.line(notice);
    assert_eq!(script.begun.len(), first + 3);
    // A place goes to what waits for least.
    let key = script.begun[first].0;
    script.hear(key, &result(0));
    assert_eq!(
        script.begun.len(),
        first + 3,
        "its connection is not free yet"
    );
    script.end(key, End::Done);
    assert_eq!(
        &*script.begun.last().unwrap().1.body.get(),
        notice.as_bytes()
    );
    for at in [first + 2, first + 3, first + 1] {
        let key = script.begun[at].0;
        script.end(key, End::Done);
    }
    let bodies: Vec<_> = script.begun[first + 4..]
        .iter()
        .map(|(_, it)| it.body.get())
        .collect();
    assert_eq!(
        bodies,
        [
            call(2, "a").as_bytes().into(),
            call(3, "a").as_bytes().into()
        ] as [Rc<[u8]>; 2]
    );
    // With one connection they share it.
    let mut script = Script::ready(1);
    let key = script.begin(&call(1, "a"));
    script.line(&call(2, "a"));
    script.line(notice);
    script.end(key, End::Done);
    assert_eq!(
        &*script.begun.last().unwrap().1.body.get(),
        notice.as_bytes()
    );
    let key = script.begun.last().unwrap().0;
    script.end(key, End::Done);
    assert_eq!(
        &*script.begun.last().unwrap().1.body.get(),
        call(2, "a").as_bytes()
    );
}

#[test]
fn pipe_is_not_read_while_too_much_waits() {
    let mut script = Script::ready(1);
    let mut key = script.begin(&call(0, "a"));
    for slot in 0..WAITING_MAX as u32 {
        assert!(script.state.takes_lines());
        script.line(&call(slot, "a"));
    }
    assert!(!script.state.takes_lines());
    script.end(key, End::Done);
    assert!(script.state.takes_lines());
    // The same by bytes.
    let mut script = Script::ready(1);
    key = script.begin(&call(0, "a"));
    let large = call(1, &"a".repeat(WAITING_BYTES_MAX / 2));
    script.line(&large);
    assert!(script.state.takes_lines());
    script.line(&large);
    assert!(!script.state.takes_lines());
    script.line(&cancel(1));
    assert!(script.state.takes_lines());
    script.end(key, End::Done);
    let key = script.begun.last().unwrap().0;
    script.end(key, End::Done);
    assert_eq!(script.state.waiting_bytes, 0);
}

#[test]
fn forgotten_session_is_the_end_of_all() {
    let notice = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
    for line in [&*call(1, "a"), notice] {
        let mut script = Script::ready(2);
        let other = script.begin(&call(2, "b"));
        let key = match line == notice {
            true => script.begin(line),
            false => {
                script.end(other, End::Done);
                script.lines();
                script.begin(line)
            }
        };
        script.line(&call(3, "c"));
        let begun = script.begun.len();
        script.end(key, End::NoSession);
        assert_eq!(
            script.state.over(),
            Some("it does not know the session any more")
        );
        assert!(script.lines().is_empty(), "the hub answers them");
        assert!(script.state.farewell().is_none());
        assert_eq!(script.begun.len(), begun, "nothing begins any more");
        if line == notice {
            assert_eq!(script.aborted, [other]);
            script.end(other, End::Aborted);
        }
        script.line(&call(4, "d"));
        script.pass(60_000);
        assert_eq!(script.begun.len(), begun);
        assert_eq!(script.state.exchanges(), 0);
        assert!(script.lines().is_empty());
    }
}

#[test]
fn server_that_cannot_be_reached_at_all_is_down() {
    let mut script = Script::ready(8);
    let key = script.begin(&call(1, "a"));
    script.end(key, End::Broken(Fault::ConnectTimeout));
    assert!(script.state.over().is_none(), "others have connections");
    let key = script.begin(&call(2, "a"));
    script.end_alone(key, End::Broken(Fault::Closed));
    assert!(script.state.over().is_none(), "it was there");
    script.lines();
    let key = script.begin(&call(3, "a"));
    script.end_alone(key, End::Broken(Fault::Connect));
    assert_eq!(
        script.state.over(),
        Some("the MCP server cannot be connected to")
    );
    assert_eq!(script.failure(3)["data"]["reason"], "upstream_down");
    assert!(script.state.farewell().is_none());
}

#[test]
fn stop_aborts_what_is_under_way_and_says_nothing_of_it() {
    let mut script = Script::with_slow_stream(8);
    let get = script.begun.last().unwrap().0;
    let key = script.begin(&call(1, "a"));
    script.state.stop();
    script.acts();
    script.aborted.sort_unstable();
    assert_eq!(script.aborted, [get, key]);
    script.end(get, End::Aborted);
    script.end(key, End::Aborted);
    assert!(script.lines().is_empty());
    assert_eq!(script.state.exchanges(), 0);
    assert!(script.state.farewell().is_some());
    script.state.stop();
    assert_eq!(script.state.over(), Some("its stdin was closed"));
}

#[test]
fn streams_that_a_server_does_not_have_are_not_asked_for_again() {
    for end in [
        refused(405, ""),
        refused(404, ""),
        refused(401, ""),
        End::NoSession,
        End::Done,
    ] {
        let mut script = Script::with_stream(8);
        let get = script.begun.last().unwrap().0;
        script.end(get, end);
        let begun = script.begun.len();
        script.pass(100_000);
        assert_eq!(script.begun.len(), begun);
        assert!(script.state.over().is_none());
    }
}

/// The pause before the stream is opened again.
fn pause(script: &mut Script) -> u64 {
    let begun = script.begun.len();
    let since = script.now;
    while script.begun.len() == begun {
        script.pass(50);
        assert!(script.now.since(since) < 100_000, "never");
    }
    assert_eq!(script.begun.last().unwrap().1.method, Verb::Get);
    script.now.since(since)
}

#[test]
fn lost_stream_comes_back_after_pauses_that_double() {
    let mut script = Script::with_stream(8);
    let mut pauses = Vec::new();
    for end in 0..8 {
        let get = script.begun.last().unwrap().0;
        match end % 3 {
            0 => script.end(get, End::Broken(Fault::Cut)),
            1 => script.end(get, refused(503, "")),
            _ => script.end(get, refused(429, "")),
        }
        pauses.push(pause(&mut script));
    }
    assert_eq!(
        pauses,
        [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    );
    // One that says something, or lasts, counts as new.
    let get = script.begun.last().unwrap().0;
    script.head(get, None, true);
    script.hear(get, CHANGE);
    script.end(get, End::Done);
    assert_eq!(pause(&mut script), 1_000);
    let get = script.begun.last().unwrap().0;
    script.head(get, None, true);
    script.end(get, End::Done);
    assert_eq!(pause(&mut script), 2_000);
    let get = script.begun.last().unwrap().0;
    script.head(get, None, true);
    script.now = script.now.after(STEADY_MS);
    script.end(get, End::Done);
    assert_eq!(pause(&mut script), 1_000);
}

#[test]
fn server_says_when_and_from_where_its_stream_goes_on() {
    let mut script = Script::with_stream(8);
    assert!(script.begun.last().unwrap().1.last_event_id.is_none());
    let get = script.begun.last().unwrap().0;
    script.head(get, None, true);
    script.state.event_id(get, b"e-1");
    script.state.retry_after(get, 5_000);
    let call = script.begin(&call(1, "a"));
    script.state.event_id(call, b"other");
    script.state.retry_after(call, 9_000);
    script.end(get, End::Done);
    assert_eq!(pause(&mut script), 5_000);
    let request = &script.begun.last().unwrap().1;
    assert_eq!(request.last_event_id.as_deref(), Some(&b"e-1"[..]));
    let get = script.begun.last().unwrap().0;
    script.state.retry_after(get, u64::MAX);
    script.end(get, End::Done);
    // An answer that is no stream.
    script.pass(100_000);
    let get = script.begun.last().unwrap().0;
    script.head(get, None, true);
    script.state.retry_after(get, u64::MAX);
    script.end(get, End::Done);
    assert_eq!(
        script
            .begun
            .iter()
            .filter(|(_, it)| it.method == Verb::Get)
            .count(),
        2
    );
}

#[test]
fn changes_are_told_when_the_stream_is_back_and_only_then() {
    let mut script = Script::with_stream(8);
    let get = script.begun.last().unwrap().0;
    // One that fails before it ever was open is not lost.
    script.end(get, refused(503, ""));
    pause(&mut script);
    let get = script.begun.last().unwrap().0;
    script.head(get, None, true);
    assert!(script.lines().is_empty());
    for (slot, method, uri) in [
        (1, "subscribe", "a:\\u0041"),
        (2, "subscribe", "a:b"),
        (3, "subscribe", "a:no"),
        (4, "subscribe", "a:late"),
        (5, "unsubscribe", "a:b"),
    ] {
        let key = script.begin(&about_uri(slot, method, uri));
        match slot {
            3 => script.hear(
                key,
                &format!(
                    r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":1,"message":""}}}}"#,
                    id_of(3)
                ),
            ),
            4 => continue,
            _ => script.hear(key, &result(slot)),
        }
        script.end(key, End::Done);
    }
    script.lines();
    script.end(get, End::Broken(Fault::Cut));
    pause(&mut script);
    assert!(script.lines().is_empty(), "not before it is open");
    let get = script.begun.last().unwrap().0;
    script.head(get, None, true);
    assert_eq!(
        script.lines(),
        [
            CHANGE,
            r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:A"}}"#,
        ]
    );
    // A stream that had been open is not missing: 404 means the session now.
    script.end(get, End::NoSession);
    assert!(script.state.over().is_some());
}

#[test]
fn exchange_that_nobody_waits_for_is_ended() {
    let mut script = Script::ready(2);
    let slow = script.begin(&call(1, "a"));
    script.line(&call(2, "b"));
    // Progress of it keeps it, on whatever exchange.
    script.pass(50_000);
    let notice = script.begin(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    script.hear(
        notice,
        &format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{},"progress":1}}}}"#,
            id_of(1)
        ),
    );
    script.end(notice, End::Done);
    script.lines();
    script.pass(60_000);
    assert!(script.aborted.is_empty());
    // What waits for a connection too long is forgotten.
    assert_eq!(script.state.waiting_bytes, 0);
    script.pass(GRACE_MS);
    assert_eq!(script.aborted, [slow]);
    assert_eq!(script.failure(1)["data"]["reason"], "timeout");
    script.end(slow, End::Aborted);
    assert!(script.lines().is_empty());
    // One whose answer came elsewhere gets a moment to end.
    let key = script.begin(&call(3, "a"));
    let other = script.begin(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    script.hear(other, &result(3));
    script.pass(REST_MS - 1);
    assert_eq!(script.aborted, [slow]);
    script.pass(SWEEP_MS);
    assert_eq!(script.aborted, [slow, key]);
}

#[test]
fn lines_that_are_no_messages_are_the_servers_to_judge() {
    let mut script = Script::ready(2);
    script.begin("not JSON");
    let begun = script.begun.len();
    script.line("  ");
    assert_eq!(script.begun.len(), begun);
}

/// Whatever comes in whatever order: no exchange is begun twice, none is left, and each call
/// that got no answer got an error unless it was withdrawn or the session is over.
#[test]
fn any_order_of_events_leaves_nothing() {
    for seed in 0..2_000_u64 {
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut roll = move |sides: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice % sides
        };
        let mut script = Script::with_slow_stream(1 + roll(4) as usize);
        script
            .begun
            .retain(|(_, request)| request.method == Verb::Get);
        let mut open: Vec<Key> = Vec::new();
        let mut seen = 0;
        let mut slots = 0_u32;
        let mut cancelled = std::collections::HashSet::new();
        for _ in 0..60 {
            while seen < script.begun.len() {
                assert!(!open.contains(&script.begun[seen].0), "seed {seed}");
                open.push(script.begun[seen].0);
                seen += 1;
            }
            let posts = script
                .begun
                .iter()
                .filter(|(key, it)| open.contains(key) && it.method == Verb::Post);
            assert!(
                posts.count() <= script.state.settings.connections_max,
                "seed {seed}"
            );
            let any = match open.len() as u64 {
                0 => 0,
                count => open[roll(count) as usize],
            };
            match roll(10) {
                0..=2 => {
                    script.line(&call(slots, "a"));
                    slots += 1;
                }
                3 => {
                    let slot = roll(u64::from(slots) + 1) as u32;
                    if slot < slots {
                        cancelled.insert(slot);
                        script.line(&cancel(slot));
                    }
                }
                4 if slots > 0 => script.hear(any, &result(roll(u64::from(slots)) as u32)),
                5 => script.head(any, None, roll(2) == 0),
                6 => script.pass(roll(3_000)),
                7 if seed % 7 == 0 && roll(20) == 0 => {
                    script.state.stop();
                    script.acts();
                }
                _ => {
                    let end = match roll(4) {
                        0 => End::Done,
                        1 => refused(500, ""),
                        2 => End::Broken(Fault::Cut),
                        _ => End::Aborted,
                    };
                    open.retain(|key| *key != any);
                    script.end(any, end);
                }
            }
        }
        // All ends; what begins meanwhile ends too.
        while let Some((key, _)) = script
            .begun
            .iter()
            .find(|(key, _)| script.state.under_way.contains_key(key))
        {
            let key = *key;
            script.end(key, End::Done);
        }
        assert_eq!(script.state.exchanges(), 0, "seed {seed}");
        assert_eq!(
            (script.state.posts, script.state.calls),
            (0, 0),
            "seed {seed}"
        );
        assert!(script.state.by_id.is_empty(), "seed {seed}");
        assert_eq!(script.state.waiting_bytes, 0, "seed {seed}");
        if script.state.over().is_none() {
            let answered: std::collections::HashSet<u64> = script
                .lines()
                .iter()
                .filter_map(|line| {
                    serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_u64()
                })
                .collect();
            for slot in (0..slots).filter(|slot| !cancelled.contains(slot)) {
                assert!(answered.contains(&id_of(slot)), "seed {seed}, call {slot}");
            }
        }
    }
}
