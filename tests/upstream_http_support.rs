//! The scripted HTTP server itself, asked without a gateway between: a suite that rests on it is worth what it is.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;
use support::http_server::{Form, HttpServer, Seen, chunk, event, initialize_result, progress};
use support::mcp::{
    LATEST, call_body, call_with_token_body, initialize_body, notification_body, request_body,
};
use support::stream::value;
use support::{Raw, Request, Session, Stream, wait_until};

fn opened(server: &HttpServer) -> Session {
    let initialize = Request::post(initialize_body("1", LATEST));
    let response = Raw::connect(server.address()).ask(&initialize);
    assert_eq!(response.status, 200, "{response}");
    let id = response.field("mcp-session-id").expect("a session");
    assert_eq!(server.live().last().map(String::as_str), Some(id));
    Session {
        id: id.to_owned(),
        version: LATEST.to_owned(),
    }
}

#[test]
fn answers_by_itself_in_both_forms() {
    let server = HttpServer::new();
    let session = opened(&server);
    for form in [Form::Json, Form::Sse] {
        server.answer_as(form);
        let mut raw = Raw::connect(server.address());
        let echo = raw.ask(&session.call("\"i\"", "echo", r#"{"message":"caf\u00e9"}"#));
        assert_eq!(echo.is_sse(), form == Form::Sse, "{echo}");
        assert_eq!(echo.result()["content"][0]["text"], "caf\u{e9}");
        assert_eq!(echo.raw_id().as_deref(), Some("\"i\""));
        let unknown = raw.ask(&session.call("1", "unknown", "{}"));
        unknown.expect_error(200, -32601, Some("1"));
        let notice = session.post(notification_body("notifications/initialized", "{}"));
        assert_eq!(raw.ask(&notice).status, 202);
        let seen = server.seen(|seen| seen.is_tool("echo"));
        assert_eq!(
            seen.last().map(|seen| seen.connection),
            Some(if form == Form::Json { 1 } else { 2 })
        );
    }
    let result = Raw::connect(server.address())
        .ask(&Request::post(request_body(
            "7",
            "initialize",
            r#"{"protocolVersion":"2025-06-18"}"#,
        )))
        .text();
    assert!(
        result.contains(&initialize_result("\"2025-06-18\"")),
        "{result}"
    );
}

#[test]
fn sessions_are_known_until_they_are_ended_or_forgotten() {
    let server = HttpServer::new();
    let (one, two) = (opened(&server), opened(&server));
    let ask = |request: &Request| Raw::connect(server.address()).ask(request).status;
    assert_eq!(ask(&one.call("1", "echo", "{}")), 200);
    assert_eq!(ask(&one.delete()), 200);
    assert_eq!(ask(&one.call("1", "echo", "{}")), 404);
    assert_eq!(ask(&two.call("1", "echo", "{}")), 200);
    server.forget_sessions();
    assert_eq!(ask(&two.call("1", "echo", "{}")), 404);
    assert_eq!(ask(&two.get()), 404);
    let without = Request::post(call_body("1", "echo", "{}")).add("MCP-Protocol-Version", LATEST);
    assert_eq!(ask(&without), 400);
    server.give_no_sessions();
    assert_eq!(ask(&without), 200);
    server.speak("2024-11-05");
    let response = Raw::connect(server.address()).ask(&Request::post(initialize_body("1", LATEST)));
    assert_eq!(response.result()["protocolVersion"], "2024-11-05");
    assert_eq!(response.field("mcp-session-id"), None);
    assert_eq!(server.given().len(), 2);
}

#[test]
fn held_calls_are_answered_by_the_tests_hand() {
    let server = HttpServer::new();
    let session = opened(&server);
    let held = |key: &str| {
        let body = call_with_token_body("5", "hold", &json!({ "key": key }).to_string(), "9");
        let mut raw = Raw::connect(server.address());
        raw.send(session.post(body).bytes());
        (raw, server.take_held(key))
    };
    let (mut raw, call) = held("json");
    assert!(!raw.has_something());
    call.reply(r#"{"a":1}"#);
    assert_eq!(raw.response().result(), json!({ "a": 1 }));
    // The connection is as good as new.
    assert_eq!(raw.ask(&session.call("1", "echo", "{}")).status, 200);

    let (raw, mut call) = held("sse");
    call.sse();
    let mut stream = Stream::of_answer(raw);
    for step in 0..3 {
        call.event(&progress("@TOKEN@", step));
        stream.expect(&progress("9", step));
    }
    call.raw(chunk(&event(&call.fill(&progress("@TOKEN@", 3)))));
    call.fail(r#"{"code":1,"message":"m"}"#);
    let (before, last) = stream.answer();
    assert_eq!(before, [progress("9", 3)]);
    assert_eq!(value(&last)["error"]["code"], 1);
    let mut raw = stream.into_raw();
    assert_eq!(raw.ask(&session.call("1", "echo", "{}")).status, 200);

    for way in 0..3 {
        let (mut raw, mut call) = held("ended");
        call.raw("HTTP/1.1 200 OK\r\n");
        match way {
            0 => call.close(),
            1 => call.reset(),
            _ => drop(call),
        }
        let rest = raw.rest();
        // A reset may take the bytes along that were not read yet.
        assert!(rest == b"HTTP/1.1 200 OK\r\n" || way == 1, "{rest:?}");
    }
    let (raw, call) = held("cut");
    assert!(!call.is_cut());
    drop(raw);
    call.wait_cut();
    let (raw, call) = held("reset");
    raw.reset();
    call.wait_cut();
}

#[test]
fn get_streams_and_rules() {
    let server = HttpServer::new();
    let session = opened(&server);
    let mut stream = Stream::of(Raw::connect(server.address()), &session.get());
    let mut get = server.take_get(&session.id);
    get.event("{}");
    stream.expect("{}");
    get.end();
    stream.expect_end();
    let mut raw = stream.into_raw();
    server.refuse_get();
    assert_eq!(raw.ask(&session.get()).status, 405);
    // A later rule goes before an earlier one; rules of sessions do not see what names none.
    server.on(|seen| seen.is("tools/list"), |x| x.reply("1"));
    server.on(|seen| seen.is("tools/list"), |x| x.reply("2"));
    let list = session.post(request_body("1", "tools/list", "{}"));
    assert_eq!(raw.ask(&list).result(), 2);
    server.forget_sessions();
    assert_eq!(raw.ask(&list).status, 404);
    server.on_first(|seen| seen.is("tools/list"), |x| x.reply("3"));
    assert_eq!(raw.ask(&list).result(), 3);
    server.forget_rules();
    server.hold(|seen| seen.is("tools/list"));
    raw.send(list.bytes());
    server
        .take("the list", |seen| seen.is("tools/list"))
        .reply("4");
    assert_eq!(raw.response().result(), 4);
    assert_eq!(
        server
            .wait_seen("lists", 4, |seen| seen.is("tools/list"))
            .len(),
        4
    );
}

#[test]
fn goes_down_and_comes_up_at_the_same_place() {
    let server = HttpServer::new();
    let session = opened(&server);
    for _ in 0..5 {
        let mut open = Raw::connect(server.address());
        open.send(session.call("1", "hold", r#"{"key":"k"}"#).bytes());
        server.take_held("k").park();
        server.down();
        open.expect_end();
        assert!(std::net::TcpStream::connect(server.address()).is_err());
        server.up();
        let mut raw = Raw::connect(server.address());
        assert_eq!(raw.ask(&session.call("1", "echo", "{}")).status, 200);
        assert!(server.open_connections() > 0);
        server.end_connections();
        raw.expect_end();
        wait_until("all are gone", || server.open_connections() == 0);
    }
}

#[test]
fn messages_are_read_byte_by_byte() {
    let server = HttpServer::new();
    let session = opened(&server);
    let body = r#"{"id": 5 ,"jsonrpc":"2.0","params":{"_meta":{"progressToken":"t"},"name":"echo","arguments":{"message":"m"}},"method":"tools\/call"}"#;
    let request = session.post(body).add("X-Odd", " two  words ");
    let mut raw = Raw::connect(server.address());
    for byte in request.bytes() {
        raw.send([byte]);
    }
    assert_eq!(raw.response().status, 200);
    let seen = server.wait_one("the call", |seen| seen.is_tool("echo"));
    assert_eq!(seen.body, body);
    assert_eq!(seen.id().as_deref(), Some("5"));
    assert_eq!(seen.token().as_deref(), Some("\"t\""));
    assert_eq!(seen.field("x-odd"), Some("two  words"));
    assert_eq!(seen.session(), Some(session.id.as_str()));
    assert!(!seen.is_one_way() && !seen.is_answer());
    let answer = session.post(r#"{"jsonrpc":"2.0","id":"srv","result":{}}"#);
    assert_eq!(raw.ask(&answer).status, 202);
    server.wait_one("the answer", |seen: &Seen| {
        seen.is_answer() && seen.is_one_way()
    });
}

/// What no MCP server should get fails the test whose gateway sent it.
#[test]
fn faults_of_a_gateway_fail_its_test() {
    let good = || Request::post(call_body("1", "echo", "{}")).add("MCP-Protocol-Version", LATEST);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            "one form only",
            good().set("Accept", "application/json").bytes(),
        ),
        ("no version", good().without("MCP-Protocol-Version").bytes()),
        (
            "an unknown version",
            good().set("MCP-Protocol-Version", "2026-07-28").bytes(),
        ),
        ("no type", good().without("Content-Type").bytes()),
        ("no Host", good().without("Host").bytes()),
        (
            "two sessions",
            good()
                .add("Mcp-Session-Id", "a")
                .add("Mcp-Session-Id", "b")
                .bytes(),
        ),
        ("chunks", good().chunked(&[5]).bytes()),
        (
            "no message",
            Request::post("[]")
                .add("MCP-Protocol-Version", LATEST)
                .bytes(),
        ),
        ("pipelining", [good().bytes(), good().bytes()].concat()),
        (
            "another method",
            Request::new("PUT")
                .add("MCP-Protocol-Version", LATEST)
                .bytes(),
        ),
        (
            "a session on initialize",
            Request::post(initialize_body("1", LATEST))
                .add("Mcp-Session-Id", "a")
                .bytes(),
        ),
        (
            "an odd request line",
            b"POST /mcp HTTP/1.0\r\n\r\n".to_vec(),
        ),
    ];
    for (what, bytes) in cases {
        let failed = catch_unwind(AssertUnwindSafe(|| {
            let server = HttpServer::new();
            server.give_no_sessions();
            let mut raw = Raw::connect(server.address());
            raw.send(bytes);
            raw.half_close();
            raw.drain();
        }));
        assert!(failed.is_err(), "{what} was let through");
    }
    let failed = catch_unwind(|| {
        let server = HttpServer::new();
        server.on_first(|_| true, |_| panic!("a rule that fails"));
        let mut raw = Raw::connect(server.address());
        raw.send(Request::post(initialize_body("1", LATEST)).bytes());
        raw.drain();
    });
    assert!(failed.is_err(), "a rule's failure was let through");
    // And nothing else does.
    let server = HttpServer::new();
    server.give_no_sessions();
    assert_eq!(Raw::connect(server.address()).ask(&good()).status, 200);
}
