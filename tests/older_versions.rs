//! Clients of protocol versions before the newest: a whole conversation as an SDK of the time holds it, the header
//! that names the version, what a newer version has and they are not offered, and the batches of 2025-03-26. The
//! newest version goes through the same where that shows the difference.

mod support;

use serde_json::{Value, json};
use support::mcp::{
    LATEST, LEGACY_VERSIONS, call_body, call_with_token_body, initialize_body, notification_body,
    ping_body, raw_member, request_body,
};
use support::metrics::{self, Metrics};
use support::scripted::send_arguments;
use support::stream::{BARRIER, carried_by, expect_nothing, value};
use support::{
    Gateway, Layout, Raw, Request, Response, Script, Session, Stream, Upstream, hex,
    on_both_drivers, on_every_layout, on_every_way, wait_until,
};

const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";
const BOTH: &str = "application/json, text/event-stream";
const BATCHES: &str = "2025-03-26";
const HEADER: &str = "MCP-Protocol-Version";

/// Comments on a stream would put off the end of a wait for what never comes.
const QUIET: [&str; 2] = ["--keep-alive", "10m"];

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    let flags = [&QUIET, flags].concat();
    layout.start(&flags, Upstream::Python("scripted.py", &[]))
}

/// Requests as a client of the session's version sends them: it names the version in a header if its
/// specification has that header.
fn as_of_its_time(session: &Session, request: Request) -> Request {
    match session.version.as_str() {
        "2024-11-05" | "2025-03-26" => request.without(HEADER),
        _ => request.set(HEADER, &session.version),
    }
}

/// A client of one version with its session.
struct Client<'g> {
    gateway: &'g Gateway,
    session: Session,
}

impl<'g> Client<'g> {
    /// The handshake as SDKs make it.
    fn open(gateway: &'g Gateway, version: &str) -> Self {
        let response = gateway.ask(&Request::post(initialize_body("0", version)));
        assert_eq!(response.result()["protocolVersion"], version, "{response}");
        assert_eq!(response.raw_id().as_deref(), Some("0"));
        let id = response.field("mcp-session-id").expect("a session");
        let session = Session {
            id: id.to_owned(),
            version: version.to_owned(),
        };
        let client = Self { gateway, session };
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let accepted = client.post(initialized);
        assert_eq!(accepted.status, 202, "{accepted}");
        assert!(accepted.body.is_empty(), "{accepted}");
        client
    }

    fn request(&self, body: impl Into<Vec<u8>>) -> Request {
        as_of_its_time(&self.session, self.session.post(body))
    }

    fn post(&self, body: impl Into<Vec<u8>>) -> Response {
        self.gateway.ask(&self.request(body))
    }

    /// Asks, and returns the answer after a look at its id.
    fn ask(&self, method: &str, params: &str) -> Response {
        let response = self.post(request_body("\"id 7\"", method, params));
        assert_eq!(response.raw_id().as_deref(), Some("\"id 7\""), "{response}");
        response
    }

    fn stream(&self) -> Stream {
        let get = as_of_its_time(&self.session, self.session.get());
        Stream::of(self.gateway.connect(), &get)
    }
}

/// The raw result of an answer.
#[track_caller]
fn raw_result(response: &Response) -> String {
    assert_eq!(response.status, 200, "{response}");
    raw_member(&response.text(), "result").unwrap_or_else(|| panic!("{response}"))
}

// --- A whole conversation.

/// Everything that a client of each version does from its handshake to its end.
#[test]
fn each_version_holds_a_whole_conversation() {
    on_every_way(|layout| {
        for version in LEGACY_VERSIONS {
            eprintln!("--- {version}");
            let gateway = scripted(layout, &[]);
            let script = Script::new(&gateway);
            let client = Client::open(&gateway, version);
            let mut stream = client.stream();
            assert_eq!(raw_result(&client.ask("ping", "{}")), "{}");
            asks_the_server(&client, &script);
            hears_of_progress(&client);
            sets_its_level(&client, &script);
            hears_of_changes(&client, &script, &mut stream);
            cancels(&client, &script);
            let delete = as_of_its_time(&client.session, client.session.delete());
            assert_eq!(gateway.ask(&delete).status, 204);
            stream.expect_end();
            let gone = client.post(ping_body("8"));
            gone.expect_error(404, -32001, Some("8"));
        }
    });
}

/// The requests that are the server's to answer: params and results pass as they are, whatever the version.
fn asks_the_server(client: &Client<'_>, script: &Script<'_>) {
    for (method, params) in [
        ("tools/list", "{}"),
        ("tools/list", r#"{"cursor":"c\u0061"}"#),
        ("resources/list", "{}"),
        ("resources/templates/list", "{}"),
        ("resources/read", r#"{"uri":"a:b"}"#),
        ("prompts/list", "{}"),
        ("prompts/get", r#"{"name":"p","arguments":{"a":"1"}}"#),
        (
            "completion/complete",
            r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":"v"}}"#,
        ),
    ] {
        let result = format!(r#"{{ "of":"{method}","n":1.0e0 }}"#);
        script.answer_method(method, &result);
        let before = script.received(method).len();
        assert_eq!(raw_result(&client.ask(method, params)), result);
        let lines = script.received(method);
        let of_method: Vec<&String> = lines[before..]
            .iter()
            .filter(|line| value(line)["method"] == method)
            .collect();
        assert_eq!(of_method.len(), 1, "{lines:?}");
        assert_eq!(raw_member(of_method[0], "params").as_deref(), Some(params));
        let id = raw_member(of_method[0], "id").expect("an id");
        assert!(id.parse::<u64>().is_ok(), "{id}");
    }
    let echo = client.ask(
        "tools/call",
        r#"{"name":"echo","arguments":{"message":"é"}}"#,
    );
    assert_eq!(echo.result()["content"][0]["text"], "é");
    script.rule(&json!({"method": "tools/list", "error": {"code": -32601, "message": "no"}}));
    client
        .ask("tools/list", "{}")
        .expect_error(200, -32601, Some("\"id 7\""));
}

/// Progress comes with the client's own token, string or number, and is the server's in everything else.
fn hears_of_progress(client: &Client<'_>) {
    let step = |token: &str, step: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":{step}.5,"total":9,"message":"m","progressToken":{token}}}}}"#
        )
    };
    let answer = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}"#;
    let lines = [step("@TOKEN@", 1), step("@TOKEN@", 2), answer.to_owned()];
    let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
    let arguments = send_arguments(&lines);
    for token in ["\"t\\u0061\"", "0", "-7"] {
        for accept in [SSE, BOTH] {
            let body = call_with_token_body("1", "send", &arguments, token);
            let mut stream = Stream::of(
                client.gateway.connect(),
                &client.request(body).set("Accept", accept),
            );
            let (before, last) = stream.answer();
            assert_eq!(before, [step(token, 1), step(token, 2)]);
            assert_eq!(last, answer.replace("@ID@", "1"));
        }
        // Who takes JSON alone gets the answer alone.
        let body = call_with_token_body("1", "send", &arguments, token);
        let response = client
            .gateway
            .ask(&client.request(body).set("Accept", JSON));
        assert_eq!(response.text(), answer.replace("@ID@", "1"));
    }
}

fn sets_its_level(client: &Client<'_>, script: &Script<'_>) {
    let set = client.ask("logging/setLevel", r#"{"level":"alert"}"#);
    assert_eq!(raw_result(&set), "{}");
    let told = script.wait_received("logging/setLevel");
    assert_eq!(value(&told)["params"], json!({"level": "alert"}));
    client
        .ask("logging/setLevel", r#"{"level":"loud"}"#)
        .expect_error(200, -32602, Some("\"id 7\""));
}

/// What the server says unasked, on the GET stream.
fn hears_of_changes(client: &Client<'_>, script: &Script<'_>, stream: &mut Stream) {
    for kind in ["tools", "resources", "prompts"] {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{kind}/list_changed"}}"#);
        script.say(&[&line]);
        stream.expect(&line);
    }
    let update = |uri: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
        )
    };
    let about = r#"{"uri":"a:b"}"#;
    assert_eq!(raw_result(&client.ask("resources/subscribe", about)), "{}");
    script.say(&[&update("a:other"), &update("a:b")]);
    stream.expect(&update("a:b"));
    assert_eq!(
        raw_result(&client.ask("resources/unsubscribe", about)),
        "{}"
    );
    // The server's own words about log and elicitation are for no session; nor is what was given back.
    script.say(&[
        &update("a:b"),
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"alert","data":"x"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}"#,
    ]);
    assert_eq!(carried_by(script, stream), Vec::<String>::new());
    let asked = |method: &str| script.received(&format!("\"{method}\"")).len();
    assert_eq!(asked("resources/subscribe"), 1);
    wait_until("the server is told that nobody listens", || {
        asked("resources/unsubscribe") == 1
    });
}

/// A call that its client takes back: each form has its own end.
fn cancels(client: &Client<'_>, script: &Script<'_>) {
    for (accept, key) in [(JSON, "as JSON"), (SSE, "as a stream"), (BOTH, "as either")] {
        let body = call_body("\"held\"", "hold", &json!({ "key": key }).to_string());
        let mut held = script.hold_request(&client.request(body).set("Accept", accept), key);
        let upstream = script.upstream_id(key);
        let cancel = notification_body(
            "notifications/cancelled",
            r#"{"requestId":"held","reason":"no more"}"#,
        );
        assert_eq!(client.post(cancel).status, 202);
        let response = held.response();
        match accept {
            JSON => {
                let error = response.expect_error(200, -32603, Some("\"held\""));
                assert_eq!(error["data"]["reason"], "cancelled");
            }
            _ => assert!(response.is_sse() && response.body.is_empty(), "{response}"),
        }
        script.wait_received(&format!("\"requestId\":{upstream}"));
    }
    // The ids are free again.
    let again = client.post(call_body("\"held\"", "echo", "{}"));
    assert_eq!(again.status, 200, "{again}");
}

// --- Versions.

/// The version that both sides know decides, whatever was asked for: batches and tasks go by it.
#[test]
fn session_has_the_abilities_of_the_version_it_was_given() {
    on_both_drivers(|layout| {
        for server in LEGACY_VERSIONS {
            let arguments = ["--protocol", server];
            let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
            assert_eq!(gateway.banner_word("protocol"), Some(server));
            let script = Script::new(&gateway);
            for asked in LEGACY_VERSIONS
                .into_iter()
                .chain(["2024-10-07", "2026-07-28", ""])
            {
                let given = match LEGACY_VERSIONS.contains(&asked) && asked <= server {
                    true => asked,
                    false => server,
                };
                let response = gateway.ask(&Request::post(initialize_body("1", asked)));
                let result = response.result();
                assert_eq!(result["protocolVersion"], given, "{server} {asked}");
                let offers = &result["capabilities"];
                assert_eq!(offers.get("tasks").is_some(), given == LATEST, "{result}");
                assert_eq!(offers["resources"]["subscribe"], true, "{result}");
                let session = Session {
                    id: response.field("mcp-session-id").expect("one").to_owned(),
                    version: given.to_owned(),
                };
                let batch =
                    gateway.ask(&session.post(format!("[{}]", call_body("1", "echo", "{}"))));
                match given == BATCHES {
                    true => assert_eq!(batch.messages().len(), 1, "{batch}"),
                    false => {
                        let error = batch.expect_error(400, -32600, None);
                        let message = error["message"].as_str().expect("a sentence");
                        assert!(message.contains("2025-03-26 only"), "{message}");
                    }
                }
                let tasks = gateway.ask(&session.post(request_body("2", "tasks/list", "{}")));
                match given == LATEST {
                    true => assert_eq!(tasks.status, 200, "{tasks}"),
                    false => drop(tasks.expect_error(200, -32601, Some("2"))),
                }
                assert_eq!(gateway.ask(&session.delete()).status, 204);
            }
            // One call in the batches of each session on 2025-03-26, and none of the refused ones.
            let of_that_version = match server {
                "2024-11-05" => 0,
                // Its own, the newer ones and the unknown ones.
                "2025-03-26" => 1 + 2 + 3,
                _ => 1,
            };
            assert_eq!(
                script.received("\"echo\"").len(),
                of_that_version,
                "{server}"
            );
        }
    });
}

/// The header may be left out in every version, for SDKs that do not know it; one that names another known version
/// changes nothing; one that names none is refused, and the session lives on.
#[test]
fn version_header_is_advice_in_every_version() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &metrics::FLAGS);
        let metrics = Metrics::of(&gateway);
        let script = Script::new(&gateway);
        let mut differing = 0;
        for version in LEGACY_VERSIONS {
            let session = Session::open_at(&gateway, version);
            let call = session
                .call("\"c\"", "echo", r#"{"message":"m"}"#)
                .without(HEADER);
            let get = session.get().without(HEADER);
            for header in [
                None,
                Some("2024-11-05"),
                Some(BATCHES),
                Some("2025-06-18"),
                Some(LATEST),
            ] {
                let with = |request: &Request| match header {
                    Some(header) => request.clone().set(HEADER, header),
                    None => request.clone(),
                };
                let response = gateway.ask(&with(&call));
                assert_eq!(
                    response.result()["content"][0]["text"],
                    "m",
                    "{version} {header:?}"
                );
                let notification = session.post(notification_body("x/y", "{}")).without(HEADER);
                let accepted = gateway.ask(&with(&notification));
                assert_eq!(accepted.status, 202, "{version} {header:?}");
                let mut stream = Stream::of(gateway.connect(), &with(&get));
                script.say(&[BARRIER]);
                stream.expect(BARRIER);
                // The session's own version governs, not the header's.
                let batch = with(
                    &session
                        .post(format!("[{}]", ping_body("1")))
                        .without(HEADER),
                );
                let status = if version == BATCHES { 200 } else { 400 };
                assert_eq!(gateway.ask(&batch).status, status, "{version} {header:?}");
                let task = request_body("2", "tools/call", r#"{"name":"echo","task":{}}"#);
                let task = gateway.ask(&with(&session.post(task).without(HEADER)));
                assert_eq!(
                    task.message().get("error").is_some(),
                    version != LATEST,
                    "{task}"
                );
                // The call, the notification, the stream, the batch and the task.
                differing += if header.is_some_and(|header| header != version) {
                    5
                } else {
                    0
                };
            }
            assert_eq!(
                metrics.sum("ringway_version_differs_total", &[]),
                f64::from(differing)
            );
            for header in ["2024-11-04", "2026-07-28", "1.0", "2025-03-26, 2025-06-18"] {
                gateway.ask(&call.clone().set(HEADER, header)).expect_error(
                    400,
                    -32600,
                    Some("\"c\""),
                );
                let batch = session.post(format!("[{}]", ping_body("1")));
                for nameless in [get.clone(), session.delete(), batch] {
                    let refused = gateway.ask(&nameless.set(HEADER, header));
                    refused.expect_error(400, -32600, None);
                }
            }
            assert_eq!(
                gateway.ask(&session.post(ping_body("1"))).status,
                200,
                "{version}"
            );
        }
    });
}

/// Tasks, which came with the newest version, are nothing to older ones: neither a word of the client's nor one of
/// the server's makes one.
#[test]
fn newer_features_are_not_offered_to_older_versions() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        for version in &LEGACY_VERSIONS[..3] {
            let client = Client::open(&gateway, version);
            let mut stream = client.stream();
            for method in [
                "tasks/get",
                "tasks/result",
                "tasks/cancel",
                "tasks/list",
                "tasks/x",
            ] {
                let response = client.ask(method, r#"{"taskId":"t"}"#);
                response.expect_error(200, -32601, Some("\"id 7\""));
            }
            for task in ["{}", r#"{"ttl":60000}"#, "null", "5"] {
                let params = format!(r#"{{"name":"echo","arguments":{{}},"task":{task}}}"#);
                let body = request_body("1", "tools/call", &params);
                for accept in [JSON, SSE] {
                    let refused = gateway.ask(&client.request(body.as_str()).set("Accept", accept));
                    refused.expect_error(200, -32602, Some("1"));
                }
            }
            for method in ["server/discover", "subscriptions/listen"] {
                client
                    .ask(method, "{}")
                    .expect_error(400, -32600, Some("\"id 7\""));
            }
            // A result that looks like a task of the newest version is a result.
            let result = r#"{"task":{"taskId":"t","status":"working"}}"#;
            let arguments = json!({ "hex": hex(result.as_bytes()) }).to_string();
            let response = client.post(call_body("2", "result", &arguments));
            assert_eq!(raw_result(&response), result);
            client.ask("tasks/get", r#"{"taskId":"t"}"#).expect_error(
                200,
                -32601,
                Some("\"id 7\""),
            );
            script.say(&[
                r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"t","status":"completed"}}"#,
            ]);
            expect_nothing(&script, &mut [&mut stream]);
            assert_eq!(gateway.ask(&client.session.delete()).status, 204);
        }
        // Of all this the server has read nothing but the call with the odd result.
        for text in ["\"tasks/", "\"task\":", "server/discover", "subscriptions/"] {
            let lines = script.received(text);
            let of_clients: Vec<&String> = lines
                .iter()
                .filter(|line| value(line)["params"]["name"] != "send")
                .collect();
            assert!(of_clients.is_empty(), "{of_clients:?}");
        }
    });
}

// --- Batches of 2025-03-26.

/// The messages of a batch's answer in their order, in whatever form it came; the form must be the one expected.
#[track_caller]
fn answers(response: &Response, form: &str) -> Vec<Value> {
    assert_eq!(response.status, 200, "{response}");
    assert_eq!(response.media_type(), Some(form), "{response}");
    if form == JSON {
        assert!(response.json().is_array(), "{response}");
    }
    let messages = response.messages();
    // An event carries one message, never an array.
    assert!(messages.iter().all(Value::is_object), "{response}");
    messages
}

/// An SDK of the time that sends what it has at once.
#[test]
fn batching_client_holds_a_whole_conversation() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let client = Client::open(&gateway, BATCHES);
        let mut stream = client.stream();
        script.answer_method("tools/list", r#"{"tools":[]}"#);
        let first = [
            notification_body("notifications/initialized", "{}"),
            request_body("1", "tools/list", "{}"),
            request_body("\"1\"", "resources/list", "{}"),
            request_body("2", "logging/setLevel", r#"{"level":"error"}"#),
            request_body("3", "resources/subscribe", r#"{"uri":"a:b"}"#),
            r#"{"jsonrpc":"2.0","id":3,"result":{"roots":[]}}"#.to_owned(),
            ping_body("4"),
        ];
        let response = client.post(format!("[{}]", first.join(",")));
        let answers = answers(&response, JSON);
        assert_eq!(answers.len(), 5, "{response}");
        // What Ringway answers itself comes first, in the order of the batch.
        assert_eq!(
            [&answers[0]["id"], &answers[1]["id"]],
            [&json!(2), &json!(4)]
        );
        let find = |id: Value| {
            let mut found = answers.iter().filter(|answer| answer["id"] == id);
            let one = found
                .next()
                .unwrap_or_else(|| panic!("no {id}: {response}"));
            assert!(found.next().is_none(), "{id} twice: {response}");
            one["result"].clone()
        };
        assert_eq!(find(json!(1)), json!({"tools": []}));
        assert_eq!(find(json!("1")), json!({"seen": "resources/list"}));
        assert_eq!(find(json!(3)), json!({}));
        // The server hears single lines, each with an id of its own, and nothing of the rest.
        let lines: Vec<Value> = [
            "tools/list",
            "resources/list",
            "logging/setLevel",
            "resources/subscribe",
        ]
        .map(|method| value(&script.wait_received(&format!("\"method\":\"{method}\""))))
        .into();
        let mut ids: Vec<u64> = lines
            .iter()
            .map(|line| line["id"].as_u64().expect("an id"))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4, "{lines:?}");
        assert!(script.received("\"roots\"").is_empty());
        // The subscription of the batch counts on the GET stream.
        let update = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}"#;
        script.say(&[update]);
        stream.expect(update);
        // Calls that report: one stream for all of them.
        let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN@,"progress":1}}"#;
        let answer = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}"#;
        let arguments = send_arguments(&[progress.as_bytes(), answer.as_bytes()]);
        let second = [
            call_with_token_body("5", "send", &arguments, "\"five\""),
            notification_body(
                "notifications/progress",
                r#"{"progressToken":1,"progress":1}"#,
            ),
            call_with_token_body("6", "send", &arguments, "6"),
            ping_body("7"),
            request_body("8", "resources/unsubscribe", r#"{"uri":"a:b"}"#),
        ];
        let batch = client.request(format!("[{}]", second.join(",")));
        let messages = Stream::of(gateway.connect(), &batch).rest();
        let told = |token: &str| progress.replace("@TOKEN@", token);
        let answered = |id: &str| answer.replace("@ID@", id);
        let pong = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(messages[..2], [pong("7"), pong("8")], "{messages:?}");
        let mut rest = messages[2..].to_vec();
        rest.sort();
        let mut expected = [told("\"five\""), told("6"), answered("5"), answered("6")];
        expected.sort();
        assert_eq!(rest, expected);
        for (token, id) in [("\"five\"", "5"), ("6", "6")] {
            let at = |text: &String| messages.iter().position(|message| message == text);
            assert!(at(&told(token)) < at(&answered(id)), "{messages:?}");
        }
        // A client that takes JSON alone gets the answers alone.
        let response = gateway.ask(&batch.set("Accept", JSON));
        assert_eq!(self::answers(&response, JSON).len(), 4, "{response}");
        script.say(&[update]);
        assert_eq!(carried_by(&script, &mut stream), Vec::<String>::new());
        assert_eq!(gateway.ask(&client.session.delete()).status, 204);
        stream.expect_end();
    });
}

/// Each member is answered by itself: an invalid one costs the others nothing, and one whose id cannot be read is
/// an error without an id.
#[test]
fn members_of_a_batch_are_judged_one_by_one() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let client = Client::open(&gateway, BATCHES);
        let long = format!("\"{}\"", "i".repeat(1_100));
        let call = |id: &str| call_body(id, "echo", r#"{"message":"m"}"#);
        let meta = |id: &str, member: &str| {
            request_body(id, "tools/list", &format!(r#"{{"_meta":{{{member}}}}}"#))
        };
        // The member, and the id and code of its answer; no code: it is good.
        let members: Vec<(String, Option<&str>, Option<i64>)> = vec![
            (ping_body("1"), Some("1"), None),
            ("5".to_owned(), None, Some(-32600)),
            ("[]".to_owned(), None, Some(-32600)),
            (ping_body("null"), None, Some(-32600)),
            (ping_body(&long), None, Some(-32600)),
            (
                r#"{"jsonrpc":"1.0","id":2,"method":"ping"}"#.to_owned(),
                Some("2"),
                Some(-32600),
            ),
            (request_body("3", "ping", "[]"), Some("3"), Some(-32600)),
            (
                request_body("4", "tasks/list", "{}"),
                Some("4"),
                Some(-32601),
            ),
            (
                request_body("5", "tools/call", r#"{"name":"echo","task":{}}"#),
                Some("5"),
                Some(-32602),
            ),
            (meta("6", r#""progressToken":{}"#), Some("6"), Some(-32602)),
            (
                meta(
                    "7",
                    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#,
                ),
                Some("7"),
                Some(-32600),
            ),
            (
                request_body("8", "server/discover", "{}"),
                Some("8"),
                Some(-32600),
            ),
            (
                request_body("9", "notifications/initialized", "{}"),
                Some("9"),
                Some(-32601),
            ),
            (
                request_body("10", "logging/setLevel", r#"{"level":"loud"}"#),
                Some("10"),
                Some(-32602),
            ),
            (
                request_body("11", "resources/subscribe", "{}"),
                Some("11"),
                Some(-32602),
            ),
            (ping_body("\"last\""), Some("\"last\""), None),
        ];
        // In the midst of them: what is silent, and what the server answers.
        let mut bodies: Vec<String> = members.iter().map(|(body, ..)| body.clone()).collect();
        bodies.insert(1, call("\"echo\""));
        bodies.insert(4, notification_body("x/y", "{}"));
        bodies.insert(
            6,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}"#.to_owned(),
        );
        bodies.push(call("\"last echo\""));
        for form in [JSON, SSE] {
            let batch = client.request(format!("[{}]", bodies.join(" ,\n")));
            // The client takes one form: a token of a faulty member asks for nothing.
            let response = gateway.ask(&batch.set("Accept", form));
            let answers = answers(&response, form);
            assert_eq!(answers.len(), members.len() + 2, "{response}");
            for ((body, id, code), answer) in members.iter().zip(&answers) {
                let id = id.map(value);
                assert_eq!(answer.get("id"), id.as_ref(), "{body}: {answer}");
                assert_eq!(answer["error"]["code"].as_i64(), *code, "{body}: {answer}");
                assert_eq!(
                    answer.get("result").is_some(),
                    code.is_none(),
                    "{body}: {answer}"
                );
            }
            let mut of_server: Vec<&Value> = answers[members.len()..]
                .iter()
                .map(|answer| &answer["id"])
                .collect();
            of_server.sort_by_key(|id| id.to_string());
            assert_eq!(
                of_server,
                [&json!("echo"), &json!("last echo")],
                "{response}"
            );
        }
        assert_eq!(script.received("\"echo\"").len(), 4);
        assert!(script.received("tools/list").is_empty());
    });
}

/// An id that is in flight may not be used again, in the same batch or in another message, and the first is
/// untouched.
#[test]
fn id_that_is_used_twice_in_a_batch_is_refused_once() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let client = Client::open(&gateway, BATCHES);
        let hold = |key: &str| call_body("1", "hold", &json!({ "key": key }).to_string());
        for (form, key) in [(JSON, "as JSON"), (SSE, "as a stream")] {
            let batch = format!(
                "[{},{},{}]",
                hold(key),
                hold("never"),
                call_body("\"1\"", "echo", "{}")
            );
            let mut waiting = script.hold_request(&client.request(batch).set("Accept", form), key);
            client.post(hold("never")).expect_error(400, -32600, None);
            // Another batch with that id is answered for its other members.
            let response = client.post(format!("[{},{}]", ping_body("5"), hold("never")));
            let other = answers(&response, JSON);
            assert_eq!(other[0], json!({"jsonrpc": "2.0", "id": 5, "result": {}}));
            assert_eq!(
                (other[1].get("id"), &other[1]["error"]["code"]),
                (None, &json!(-32600))
            );
            script.release(key);
            let response = waiting.response();
            let answers = answers(&response, form);
            assert_eq!(answers.len(), 3, "{response}");
            assert_eq!(
                (answers[0].get("id"), &answers[0]["error"]["code"]),
                (None, &json!(-32600))
            );
            assert_eq!(answers[1]["id"], "1", "{response}");
            assert_eq!(
                answers[2]["result"],
                json!({ "released": key }),
                "{response}"
            );
        }
    });
}

/// A call of a batch that is taken back ends, and the batch with it once the others are answered.
#[test]
fn call_of_a_batch_can_be_cancelled() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let client = Client::open(&gateway, BATCHES);
        let cancel = |id: &str| {
            notification_body(
                "notifications/cancelled",
                &format!(r#"{{"requestId":{id}}}"#),
            )
        };
        for form in [JSON, SSE] {
            let key = |name: &str| format!("{name} {form}");
            let hold = |id: &str, name: &str| {
                call_body(id, "hold", &json!({ "key": key(name) }).to_string())
            };
            let members = [
                hold("1", "outside"),
                hold("2", "inside"),
                hold("3", "kept"),
                // Takes effect at once: the call before it has begun.
                cancel("2"),
                // Names nothing of this session.
                cancel("\"3\""),
            ];
            let batch = client.request(format!("[{}]", members.join(",")));
            let mut waiting = script.hold_request(&batch.set("Accept", form), &key("kept"));
            script.wait_held(&key("outside"));
            assert_eq!(client.post(cancel("1")).status, 202);
            script.release(&key("kept"));
            let response = waiting.response();
            let mut answers = answers(&response, form);
            answers.sort_by_key(|answer| answer["id"].as_u64());
            let kept = answers.pop().expect("an answer");
            assert_eq!(
                (&kept["id"], &kept["result"]["released"]),
                (&json!(3), &json!(key("kept")))
            );
            if form == JSON {
                for (answer, id) in answers.iter().zip([1, 2]) {
                    assert_eq!(
                        (&answer["id"], &answer["error"]["data"]["reason"]),
                        (&json!(id), &json!("cancelled"))
                    );
                }
                assert_eq!(answers.len(), 2, "{response}");
            } else {
                // On a stream a cancelled call has no answer.
                assert!(answers.is_empty(), "{response}");
            }
        }
    });
}

/// The form of a batch's answer follows from what the client takes and from whether a member asks for progress; a
/// batch that asks for nothing needs no form.
#[test]
fn form_of_a_batchs_answer_is_the_one_it_needs() {
    on_every_layout(|layout| {
        for mode in ["auto", "json", "sse"] {
            let gateway = scripted(layout, &["--response-mode", mode]);
            let client = Client::open(&gateway, BATCHES);
            let plain = format!("[{},{}]", ping_body("1"), call_body("2", "echo", "{}"));
            let with_token = format!(
                "[{},{}]",
                ping_body("1"),
                call_with_token_body("2", "echo", "{}", "5")
            );
            for (accept, of_plain, of_token) in [
                (JSON, JSON, JSON),
                (SSE, SSE, SSE),
                (
                    BOTH,
                    if mode == "sse" { SSE } else { JSON },
                    if mode == "json" { JSON } else { SSE },
                ),
                (
                    "*/*",
                    if mode == "sse" { SSE } else { JSON },
                    if mode == "json" { JSON } else { SSE },
                ),
            ] {
                for (body, form) in [(&plain, of_plain), (&with_token, of_token)] {
                    let response =
                        gateway.ask(&client.request(body.as_str()).set("Accept", accept));
                    assert_eq!(
                        answers(&response, form).len(),
                        2,
                        "{mode} {accept}: {response}"
                    );
                }
            }
            let silent = format!(
                "[{},{}]",
                notification_body("notifications/initialized", "{}"),
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            );
            for accept in [JSON, SSE, "image/png"] {
                let response = gateway.ask(&client.request(silent.as_str()).set("Accept", accept));
                assert_eq!(response.status, 202, "{accept}: {response}");
                assert!(response.body.is_empty(), "{response}");
                // A faulty member wants an answer, as a request does.
                for body in [plain.as_str(), "[5]"] {
                    let response = gateway.ask(&client.request(body).set("Accept", accept));
                    let status = if accept == "image/png" { 406 } else { 200 };
                    assert_eq!(response.status, status, "{accept}: {response}");
                }
            }
        }
    });
}

/// A batch that is refused as a whole has begun nothing.
#[test]
fn refused_batch_leaves_nothing_behind() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let client = Client::open(&gateway, BATCHES);
        let call = call_body("1", "echo", r#"{"message":"never"}"#);
        let subscribe = request_body("2", "resources/subscribe", r#"{"uri":"a:never"}"#);
        let initialize = initialize_body("3", BATCHES);
        let hundred_and_one = vec![call.clone(); 101].join(",");
        let refused: Vec<(Request, u16)> = vec![
            (
                client.request(format!("[{call},{subscribe},{initialize}]")),
                400,
            ),
            (client.request(format!("[{hundred_and_one}]")), 400),
            (client.request(format!("[{call},{subscribe}")), 400),
            (
                client
                    .request(format!("[{call},{subscribe}]"))
                    .set("Accept", "image/png"),
                406,
            ),
            (
                client
                    .request(format!("[{call},{subscribe}]"))
                    .set(HEADER, "1.0"),
                400,
            ),
            (
                client
                    .request(format!("[{call},{subscribe}]"))
                    .without("Mcp-Session-Id"),
                400,
            ),
            (
                client
                    .request(format!("[{call},{subscribe}]"))
                    .set("Mcp-Session-Id", "x"),
                404,
            ),
        ];
        for (request, status) in refused {
            let response = gateway.ask(&request);
            assert_eq!(response.status, status, "{response}");
            let body = response.json();
            assert!(body.is_object() && body.get("id").is_none(), "{response}");
            assert_eq!(response.field("mcp-session-id"), None, "{response}");
        }
        let mut connection: Raw = gateway.connect();
        let good = connection.ask(&client.request(format!("[{}]", ping_body("1"))));
        assert_eq!(answers(&good, JSON).len(), 1);
        assert!(script.received("never").is_empty());
    });
}
