//! One session at a server over HTTP for all sessions of the gateway: what holds for a shared server on stdio holds
//! for this one, and its one GET stream comes back when it is lost.

mod support;

use rustix::process::Signal;
use serde_json::json;
use support::http_server::{
    BOTH, Exchange, Form, HttpServer, JSON, SSE, Seen, event, expect_echo, hold, hold_with_token,
    progress, send,
};
use support::mcp::{call_with_token_body, initialize_body, request_body};
use support::metrics::{self, Metrics};
use support::stream::value;
use support::{
    Gateway, Layout, Raw, Request, Response, Session, Stream, on_both_drivers, on_every_layout,
    on_every_way, on_layouts, wait_until,
};

const TOOLS: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const PROMPTS: &str = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;
const RESOURCES: &str = r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#;
const LOG: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"secret"}}"#;

fn start(layout: Layout, flags: &[&str], server: &HttpServer) -> Gateway {
    support::http_server::start(layout, &[&["--share"], flags].concat(), server)
}

fn updated(uri: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
    )
}

/// The one GET stream of the server's one session.
fn take_get(server: &HttpServer) -> Exchange {
    server.take("the GET stream", |seen| seen.method == "GET")
}

/// What a stream carries before this message.
fn until(stream: &mut Stream, message: &str) -> Vec<String> {
    let mut before = Vec::new();
    loop {
        let next = stream.message();
        if next == message {
            return before;
        }
        before.push(next);
    }
}

/// What a stream carries before the barrier, which is said twice: marks that are set together come in any order.
fn carried(get: &mut Exchange, stream: &mut Stream) -> Vec<String> {
    let mut before = Vec::new();
    for _ in 0..2 {
        get.event(PROMPTS);
        before.extend(until(stream, PROMPTS));
    }
    before
}

/// Two clients, one session upstream, whose handshake is the gateway's own.
#[test]
fn all_sessions_share_one_upstream() {
    on_every_layout(|layout| {
        for form in [Form::Json, Form::Sse] {
            let server = HttpServer::new();
            server.answer_as(form);
            let gateway = start(layout, &[], &server);
            let sessions: Vec<Session> = (0..8).map(|_| Session::open(&gateway)).collect();
            for session in &sessions {
                expect_echo(&gateway, session);
            }
            let handshake = server.wait_one("the handshake", |seen| seen.is("initialize"));
            assert_eq!(
                handshake.raw(&["params", "capabilities"]).as_deref(),
                Some("{}")
            );
            assert!(!handshake.body.contains("suite"), "{handshake:?}");
            let given = server.given();
            assert_eq!(given.len(), 1);
            let others = server.seen(|seen| !seen.is("initialize"));
            assert!(others.iter().all(|seen| seen.session() == Some(&given[0])));
            assert_eq!(server.count(|seen| seen.is("notifications/initialized")), 1);
            wait_until("one GET stream", || {
                server.count(|seen| seen.method == "GET") == 1
            });
            // The end of one session is none of the server's.
            assert_eq!(gateway.ask(&sessions[0].delete()).status, 204);
            expect_echo(&gateway, &sessions[1]);
            assert_eq!(server.count(|seen| seen.method == "DELETE"), 0);
            for session in &sessions {
                assert!(!format!("{:?}", server.seen(|_| true)).contains(&session.id));
            }
        }
    });
}

/// The server's own words at the handshake, and never its session's id.
#[test]
fn clients_handshake_is_answered_from_the_gateways_own() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        for version in support::mcp::LEGACY_VERSIONS {
            let response = gateway.ask(&Request::post(initialize_body("\"i\"", version)));
            let result = response.result();
            assert_eq!(result["protocolVersion"], version);
            assert_eq!(result["instructions"], "Say \"please\" \u{1f600}");
            let shown = format!("{response} {:?}", response.fields);
            assert!(!shown.contains("upstream-secret"), "{shown}");
        }
        assert_eq!(server.count(|seen| seen.is("initialize")), 1);
    });
}

/// Many sessions with the same ids and tokens at once: each gets its own, its reports before its answer.
#[test]
fn every_answer_is_the_sessions_own() {
    const SESSIONS: usize = 16;
    const CONNECTIONS: usize = 3;
    const CALLS: usize = 24;
    on_layouts(&[1, 2, 4], |layout| {
        let server = HttpServer::new();
        server.on(
            |seen| seen.is_tool("report"),
            |mut call| {
                let nonce = call.seen.raw(&["params", "arguments", "nonce"]);
                let nonce = nonce.expect("a nonce");
                call.sse();
                let reports: String = (0..5)
                    .map(|step| {
                        let report = progress("@TOKEN@", step);
                        let report = report.replace("}}", &format!(",\"message\":{nonce}}}}}"));
                        event(&call.fill(&report))
                    })
                    .collect();
                call.text(&reports);
                call.reply(&format!(r#"{{"nonce":{nonce}}}"#));
            },
        );
        let gateway = start(layout, &[], &server);
        let sessions: Vec<Session> = (0..SESSIONS).map(|_| Session::open(&gateway)).collect();
        std::thread::scope(|scope| {
            for (owner, session) in sessions.iter().enumerate() {
                for connection in 0..CONNECTIONS {
                    let gateway = &gateway;
                    scope.spawn(move || {
                        let mut raw = gateway.connect();
                        for call in 0..CALLS {
                            let id = call * CONNECTIONS + connection;
                            one_report(&mut raw, session, owner, id);
                        }
                    });
                }
            }
        });
        assert_eq!(server.given().len(), 1);
    });
}

fn one_report(raw: &mut Raw, session: &Session, owner: usize, number: usize) {
    let id = match number % 3 {
        0 => format!("\"{number}\""),
        _ => number.to_string(),
    };
    let nonce = format!(
        "owner {owner} {} call {number} {}",
        session.id,
        "p".repeat(number % 5 * 900)
    );
    let arguments = json!({ "nonce": nonce }).to_string();
    let accept = [BOTH, SSE, JSON][number % 3];
    let request = session.call_with_token(&id, "report", &arguments, &id);
    let response: Response = raw.ask(&request.set("Accept", accept));
    let mut messages = response.messages();
    let last = messages.pop().expect("an answer");
    assert_eq!(last["result"]["nonce"], nonce.as_str(), "{response}");
    assert_eq!(last["id"].to_string(), id, "{response}");
    assert_eq!(
        messages.len(),
        if accept == JSON { 0 } else { 5 },
        "{response}"
    );
    for (step, report) in messages.iter().enumerate() {
        assert_eq!(
            report["params"]["progressToken"].to_string(),
            id,
            "{report}"
        );
        assert_eq!(report["params"]["progress"], step, "{report}");
        assert_eq!(report["params"]["message"], nonce.as_str(), "{report}");
    }
}

/// Wherever a message comes: its id or token says whose it is, not the stream that it comes on.
#[test]
fn messages_on_any_stream_find_their_call() {
    on_every_way(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (one, two) = (Session::open(&gateway), Session::open(&gateway));
        let raws = [
            send(&gateway, &hold_with_token(&one, "1", "one", "\"t\"")),
            send(&gateway, &hold_with_token(&two, "1", "two", "\"t\"")),
        ];
        let (mut first, mut second) = (server.take_held("one"), server.take_held("two"));
        let mut get = take_get(&server);
        first.sse();
        second.sse();
        let tokens = [&first, &second].map(|call| call.seen.token().expect("a token"));
        let ids = [&first, &second].map(|call| call.seen.id().expect("an id"));
        let mut streams = Vec::new();
        get.event(&progress(&tokens[0], 1));
        first.event(&progress(&tokens[1], 1));
        for raw in raws {
            streams.push(Stream::of_answer(raw));
        }
        for stream in &mut streams {
            stream.expect(&progress("\"t\"", 1));
        }
        get.event(&format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{{"whose":2}}}}"#,
            ids[1]
        ));
        let (before, last) = streams[1].answer();
        assert!(before.is_empty(), "{before:?}");
        assert_eq!(value(&last)["result"]["whose"], 2);
        // What then comes for it is late.
        second.reply(r#"{"whose":"late"}"#);
        metrics.wait_for_drops("late_answer", 1);
        for stray in ["5", "\"x\"", "9007199254740991"] {
            first.event(&format!(
                r#"{{"jsonrpc":"2.0","id":{stray},"result":{{}}}}"#
            ));
            first.event(&progress(stray, 7));
        }
        first.reply(r#"{"whose":1}"#);
        let (before, last) = streams[0].answer();
        assert!(before.is_empty(), "{before:?}");
        assert_eq!(value(&last)["result"]["whose"], 1);
    });
}

/// A hundred reports and the reply in one segment, also of a server whose answers are shared.
#[test]
fn burst_comes_whole_and_in_order() {
    on_every_way(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let session = Session::open(&gateway);
        for accept in [BOTH, SSE] {
            let request = hold_with_token(&session, "5", "burst", "\"t\"").set("Accept", accept);
            let raw = send(&gateway, &request);
            let mut call = server.take_held("burst");
            let reports: String = (0..100)
                .map(|step| event(&call.fill(&progress("@TOKEN@", step))))
                .collect();
            let reply = event(&call.fill(r#"{"jsonrpc":"2.0","id":@ID@,"result":{}}"#));
            call.sse();
            call.text(&(reports + &reply));
            call.end();
            let mut stream = Stream::of_answer(raw);
            for step in 0..100 {
                stream.expect(&progress("\"t\"", step));
            }
            stream.expect(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
            stream.expect_end();
        }
    });
}

/// Changes go to those whom they concern; what is one client's alone goes to nobody.
#[test]
fn changes_are_told_and_the_rest_is_nobodys() {
    on_every_way(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (one, two) = (Session::open(&gateway), Session::open(&gateway));
        let (mut first, mut second) = (Stream::open(&gateway, &one), Stream::open(&gateway, &two));
        let mut get = take_get(&server);
        for session in [&one, &two] {
            assert_eq!(
                gateway.ask(&session.subscribe("1", "a:both")).result(),
                json!({})
            );
        }
        assert_eq!(
            gateway.ask(&one.subscribe("1", "a:one")).result(),
            json!({})
        );
        // Each URI once upstream.
        let told = server.seen(|seen| seen.is("resources/subscribe"));
        assert_eq!(told.len(), 2, "{told:#?}");

        get.event(TOOLS);
        get.event(&updated("a:both"));
        get.event(&updated("a:one"));
        get.event(&updated("a:none"));
        get.event(LOG);
        let mut heard = carried(&mut get, &mut first);
        heard.sort();
        let mut expected = vec![TOOLS.to_owned(), updated("a:both"), updated("a:one")];
        expected.sort();
        assert_eq!(heard, expected);
        // On another thread the barrier may be told once, and before what it follows: it is a mark.
        let mut heard = Vec::new();
        while heard.len() < 2 {
            let message = second.message();
            if message != PROMPTS {
                heard.push(message);
            }
        }
        heard.sort();
        assert_eq!(heard, vec![updated("a:both"), TOOLS.to_owned()]);
        metrics.wait_for_drops("log_message", 1);

        // A change is one on a call's stream as well.
        let mut raw = send(&gateway, &hold(&one, "1", "k"));
        let mut call = server.take_held("k");
        call.sse();
        call.event(RESOURCES);
        call.event(LOG);
        call.reply("{}");
        let response = raw.response();
        assert_eq!(response.messages().len(), 1, "{response}");
        first.expect(RESOURCES);
        let before = until(&mut second, RESOURCES);
        assert!(
            before.iter().all(|message| message == PROMPTS),
            "{before:?}"
        );
        metrics.wait_for_drops("log_message", 2);

        // The last one out is told to the server.
        assert_eq!(
            gateway.ask(&one.unsubscribe("1", "a:both")).result(),
            json!({})
        );
        assert_eq!(server.count(|seen| seen.is("resources/unsubscribe")), 0);
        assert_eq!(gateway.ask(&two.delete()).status, 204);
        let told = server.wait_one("the unsubscribe", |seen| seen.is("resources/unsubscribe"));
        assert_eq!(told.raw(&["params", "uri"]).as_deref(), Some("\"a:both\""));
    });
}

/// There is no one client to ask: the server hears so at once, by a request of its own.
#[test]
fn requests_of_the_server_are_answered_by_the_gateway() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        let mut get = take_get(&server);
        let mut raw = send(&gateway, &hold(&session, "1", "k"));
        let mut call = server.take_held("k");
        call.sse();
        for (number, method) in [
            "ping",
            "sampling/createMessage",
            "elicitation/create",
            "roots/list",
            "vendor/x",
        ]
        .into_iter()
        .enumerate()
        {
            for (side, id) in [
                format!("\"srv-\\u0041{number}\""),
                (77 + number).to_string(),
            ]
            .into_iter()
            .enumerate()
            {
                let ask =
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{}}}}"#);
                match side {
                    0 => get.event(&ask),
                    _ => call.event(&ask),
                };
                let is_it = |seen: &Seen| seen.is_answer() && seen.id().as_ref() == Some(&id);
                let answer = server.wait_one("the gateway's answer", is_it);
                match method {
                    "ping" => assert_eq!(answer.raw(&["result"]).as_deref(), Some("{}")),
                    _ => assert_eq!(answer.raw(&["error", "code"]).as_deref(), Some("-32601")),
                }
            }
        }
        call.reply(r#"{"good":true}"#);
        let response = raw.response();
        assert_eq!(response.messages().len(), 1, "{response}");
        assert!(carried(&mut get, &mut stream).is_empty());
    });
}

/// What concerns one session's client must not reach a server that all of them share.
#[test]
fn words_of_the_clients_never_reach_the_server() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let session = Session::open(&gateway);
        let mut raw = gateway.connect();
        for body in [
            r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":{"mark":"secret-mark"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{"mark":"secret-mark"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5,"reason":"secret-mark"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"secret-mark"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"mark":"secret-mark"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"secret-mark"}}"#,
        ] {
            let request = session.post(body).add("Authorization", "secret-mark");
            assert_eq!(raw.ask(&request).status, 202);
        }
        let echo = session.call("1", "echo", r#"{"message":"m"}"#);
        let echo = echo
            .add("Cookie", "secret-mark")
            .add("Origin", "http://localhost");
        assert_eq!(raw.ask(&echo).status, 200);
        expect_echo(&gateway, &session);
        for seen in server.seen(|_| true) {
            assert!(!format!("{seen:?}").contains("secret-mark"), "{seen:?}");
        }
        assert_eq!(server.count(|seen| seen.is("notifications/initialized")), 1);
    });
}

/// A cancelled call of one session is no other's.
#[test]
fn cancel_is_told_by_the_servers_id() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (one, two) = (Session::open(&gateway), Session::open(&gateway));
        let mut cut = send(&gateway, &hold(&one, "1", "cut"));
        let mut kept = send(&gateway, &hold(&two, "1", "kept"));
        let (mut first, second) = (server.take_held("cut"), server.take_held("kept"));
        first.sse();
        assert_eq!(gateway.ask(&two.cancel("2")).status, 202);
        assert_eq!(gateway.ask(&one.cancel("1")).status, 202);
        let response = cut.response();
        assert!(
            response.is_sse() && response.messages().is_empty(),
            "{response}"
        );
        let told = server.wait_one("the cancel", |seen| seen.is("notifications/cancelled"));
        assert_eq!(told.raw(&["params", "requestId"]), first.seen.id());
        first.wait_cut();
        assert!(!second.is_cut());
        second.reply(r#"{"kept":true}"#);
        assert_eq!(kept.response().result()["kept"], true);
    });
}

/// What was said while there was no GET stream nobody heard: so it is told that anything may have changed.
#[test]
fn lost_get_stream_comes_back_and_changes_are_told() {
    on_every_way(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        assert_eq!(
            gateway.ask(&session.subscribe("1", "a:1")).result(),
            json!({})
        );
        let mut get = take_get(&server);
        assert!(carried(&mut get, &mut stream).is_empty());
        for round in 0..3 {
            match round {
                0 => get.end(),
                1 => get.close(),
                _ => get.reset(),
            }
            get = take_get(&server);
            let mut heard: Vec<String> = (0..4).map(|_| stream.message()).collect();
            heard.sort();
            let mut expected = vec![
                TOOLS.to_owned(),
                PROMPTS.to_owned(),
                RESOURCES.to_owned(),
                updated("a:1"),
            ];
            expected.sort();
            assert_eq!(heard, expected);
            assert!(carried(&mut get, &mut stream).is_empty());
        }
        assert_eq!(server.count(|seen| seen.is("initialize")), 1);
        assert_eq!(server.count(|seen| seen.is("resources/subscribe")), 1);
    });
}

/// Down and up again: calls say so at once, sessions live on, and the server is told anew what it has to know.
#[test]
fn server_that_was_down_is_told_everything_again() {
    on_every_way(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        assert_eq!(
            gateway.ask(&session.subscribe("1", "a:1")).result(),
            json!({})
        );
        let level = request_body("1", "logging/setLevel", r#"{"level":"error"}"#);
        assert_eq!(gateway.ask(&session.post(level)).result(), json!({}));
        server.wait_one("the level", |seen| seen.is("logging/setLevel"));
        let mut raw = send(&gateway, &hold(&session, "1", "k"));
        server.take_held("k").park();
        server.down();
        server.forget_sessions();
        let error = raw.response().expect_error(200, -32603, Some("1"));
        assert_eq!(error["data"]["reason"], "upstream_down");
        wait_until("it is known to be down", || {
            metrics.sum("ringway_upstream_up", &[]) == 0.0
        });
        let response = gateway.ask(&session.call("2", "echo", "{}"));
        let error = response.expect_error(200, -32603, Some("2"));
        assert_eq!(error["data"]["reason"], "upstream_down");
        // A client that comes now gets the last handshake.
        let late = Session::open(&gateway);
        server.up();
        wait_until("it is up again", || {
            let echo = gateway.ask(&late.call("1", "echo", "{}"));
            echo.message()["result"].is_object()
        });
        assert_eq!(server.given().len(), 2);
        let second = server.given()[1].clone();
        let again = |seen: &Seen| seen.session() == Some(&second);
        server.wait_one("the subscription", |seen| {
            again(seen) && seen.is("resources/subscribe")
        });
        let level = server.wait_one("the level", |seen| {
            again(seen) && seen.is("logging/setLevel")
        });
        assert_eq!(
            level.raw(&["params", "level"]).as_deref(),
            Some("\"error\"")
        );
        let mut heard: Vec<String> = (0..4).map(|_| stream.message()).collect();
        heard.sort();
        let mut expected = vec![
            TOOLS.to_owned(),
            PROMPTS.to_owned(),
            RESOURCES.to_owned(),
            updated("a:1"),
        ];
        expected.sort();
        assert_eq!(heard, expected);
        expect_echo(&gateway, &session);
        assert_eq!(metrics.sum("ringway_upstream_up", &[]), 1.0);
    });
}

/// A server that has forgotten the session that all share is as one that was started again.
#[test]
fn forgotten_session_is_opened_again_for_all() {
    on_every_way(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        assert_eq!(
            gateway.ask(&sessions[0].subscribe("1", "a:1")).result(),
            json!({})
        );
        server.forget_sessions();
        for session in &sessions {
            wait_until("calls are answered again", || {
                let response = gateway.ask(&session.call("1", "echo", "{}"));
                assert_eq!(response.status, 200, "{response}");
                let message = response.message();
                let reason = &message["error"]["data"]["reason"];
                assert!(
                    message["result"].is_object() || reason == "upstream_down",
                    "{response}"
                );
                message["result"].is_object()
            });
        }
        assert_eq!(server.given().len(), 2);
        let second = server.given()[1].clone();
        server.wait_one("the subscription", |seen| {
            seen.session() == Some(&second) && seen.is("resources/subscribe")
        });
    });
}

/// What a server does instead of answering, and how it is called.
type Fault = (&'static str, fn(Exchange));

/// One call's trouble is that call's; the others' go on.
#[test]
fn fault_of_one_answer_is_that_calls_own() {
    let faults: [Fault; 8] = [
        ("closed", Exchange::close),
        ("500", |x| x.status("500 Oh", None, "")),
        ("elsewhere", |x| {
            x.status("307 Temporary Redirect", None, "")
        }),
        ("garbage", |mut x| {
            x.raw("garbage\r\n\r\n");
            x.close();
        }),
        ("202", Exchange::accept),
        ("null", |x| x.message("null")),
        ("not JSON", |x| x.message("{")),
        ("no answer", |mut x| {
            x.sse();
            x.end();
        }),
    ];
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (one, two) = (Session::open(&gateway), Session::open(&gateway));
        for (what, fault) in faults {
            eprintln!("--- {what}");
            let mut kept = send(&gateway, &hold(&two, "1", "kept"));
            let mut other = server.take_held("kept");
            other.sse();
            let mut raw = send(&gateway, &hold(&one, "\"f\"", "f"));
            fault(server.take_held("f"));
            let response = raw.response();
            response.expect_error(200, -32603, Some("\"f\""));
            expect_echo(&gateway, &one);
            assert!(!other.is_cut(), "{what}");
            other.reply(r#"{"kept":true}"#);
            assert_eq!(kept.response().result()["kept"], true, "{what}");
        }
        assert_eq!(server.given().len(), 1);
    });
}

/// The stop ends the one session.
#[test]
fn stopped_gateway_ends_the_session() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let mut gateway = start(layout, &[], &server);
        let session = Session::open(&gateway);
        expect_echo(&gateway, &session);
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.wait().code(), Some(0));
        assert!(server.live().is_empty());
        assert_eq!(server.count(|seen| seen.method == "DELETE"), 1);
    });
}

/// Large ones in both directions.
#[test]
fn large_messages_pass_whole() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let session = Session::open(&gateway);
        for form in [Form::Json, Form::Sse] {
            server.answer_as(form);
            let text = "\u{e9}m".repeat(1_000_000);
            let arguments = json!({ "message": text }).to_string();
            let body = call_with_token_body("1", "echo", &arguments, "\"t\"");
            let result = gateway.ask(&session.post(body)).result();
            assert!(result["content"][0]["text"] == text.as_str());
        }
    });
}
