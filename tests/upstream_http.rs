//! An MCP server over Streamable HTTP behind the gateway: the handshake that is the client's own, calls and their
//! progress, the header fields that the server gets, and the end.

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::http_server::{
    BOTH, Form, HttpServer, JSON, SSE, chunk, event, hold, hold_with_token, initialize_result,
    open, progress, send, start,
};
use support::mcp::{
    LATEST, LEGACY_VERSIONS, call_with_token_body, initialize_body, ping_body, raw_member,
    request_body,
};
use support::metrics::{self, Metrics};
use support::stream::value;
use support::{
    Layout, Raw, Request, Response, Session, Stream, on_both_drivers, on_every_layout, wait_until,
};

/// Nothing of the server's session ids may be in an answer: whoever knows one speaks to the server as that session.
#[track_caller]
fn expect_no_secret(response: &Response) {
    let shown = format!(
        "{:?} {}",
        response.fields,
        String::from_utf8_lossy(&response.body)
    );
    assert!(!shown.contains("upstream-secret"), "{shown}");
}

/// The server decides by what the client can do, so it has to hear that from the client, not from the gateway.
#[test]
fn handshake_is_the_clients_own() {
    let params = "{ \"clientInfo\" :{\"version\":\"1\",\"name\":\"caf\\u00e9 \\/ 😀\",\"x\":1.50e+1},\"capabilities\":{\"sampling\":{\"tools\":{}},\"roots\":{\"listChanged\":true},\"elicitation\":{\"url\":{},\"form\":{}},\"vendor\":[9007199254740993]},\"vendor\":{\"b\":1,\"a\":[]},\"protocolVersion\":\"2025-11-25\"}";
    on_every_layout(|layout| {
        for form in [Form::Json, Form::Sse] {
            let server = HttpServer::new();
            server.answer_as(form);
            let gateway = start(layout, &[], &server);
            for id in ["\"client-id-\\u0041\"", "0", "-7", "9007199254740993"] {
                for accept in [BOTH, JSON, SSE] {
                    let before = server.given().len();
                    let body = request_body(id, "initialize", params);
                    let response = gateway.ask(&Request::post(body).set("Accept", accept));
                    assert_eq!(response.status, 200, "{response}");
                    let text = response.text();
                    assert_eq!(raw_member(&text, "id").as_deref(), Some(id), "{text}");
                    let result = raw_member(&text, "result").expect("a result");
                    assert_eq!(result, initialize_result(&format!("\"{LATEST}\"")));
                    expect_no_secret(&response);
                    let given = server.given();
                    assert_eq!(given.len(), before + 1);
                    let session = response.field("mcp-session-id").expect("a session");
                    assert_ne!(session, given[before]);
                    let seen = server.seen(|seen| seen.is("initialize"));
                    let seen = seen.last().expect("it was asked");
                    assert_eq!(seen.raw(&["params"]).as_deref(), Some(params));
                    let own = seen.id().expect("an id");
                    assert!(own.parse::<u64>().is_ok() && own != id, "{own}");
                    assert_eq!(seen.target, "/mcp");
                    assert_eq!(seen.field("host"), Some(&*server.address().to_string()));
                    // The client's word that it is ready goes to its own session.
                    let session = Session {
                        id: session.to_owned(),
                        version: LATEST.to_owned(),
                    };
                    let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":{"x":1.0}}"#;
                    assert_eq!(gateway.ask(&session.post(ready)).status, 202);
                    let told = server.wait_one("the client is ready", |seen| {
                        seen.is("notifications/initialized")
                            && seen.session() == Some(&given[before])
                    });
                    assert_eq!(told.body, ready);
                    assert_eq!(told.field("mcp-protocol-version"), Some(LATEST));
                }
            }
            assert_eq!(server.count(|seen| seen.is("initialize")), 12);
        }
    });
}

/// The version is what server and client agree on; every later request to the server names it.
#[test]
fn version_is_the_one_that_the_server_chose() {
    on_both_drivers(|layout| {
        for chosen in LEGACY_VERSIONS {
            let server = HttpServer::new();
            server.speak(chosen);
            let gateway = start(layout, &[], &server);
            for asked in LEGACY_VERSIONS.into_iter().filter(|asked| *asked >= chosen) {
                let session = Session::open_at(&gateway, asked);
                assert_eq!(session.version, chosen);
                let echo = gateway.ask(&session.call("1", "echo", r#"{"message":"m"}"#));
                assert_eq!(echo.result()["content"][0]["text"], "m");
            }
            for seen in server.seen(|seen| !seen.is("initialize")) {
                assert_eq!(seen.field("mcp-protocol-version"), Some(chosen), "{seen:?}");
            }
        }
        for odd in ["2026-07-28", "2020-01-01", ""] {
            let server = HttpServer::new();
            server.speak(odd);
            let gateway = start(layout, &metrics::FLAGS, &server);
            let metrics = Metrics::of(&gateway);
            for accept in [BOTH, JSON] {
                let initialize = Request::post(initialize_body("\"i\"", LATEST));
                let response = gateway.ask(&initialize.set("Accept", accept));
                response.expect_error(200, -32603, Some("\"i\""));
                assert_eq!(response.field("mcp-session-id"), None, "{response}");
            }
            assert_eq!(metrics.sum("ringway_sessions", &[]), 0.0);
            assert_eq!(metrics.sum("ringway_calls_in_flight", &[]), 0.0);
        }
    });
}

/// A server that refuses the handshake says so to its client, and no session is left.
#[test]
fn refused_handshake_is_the_servers_own_error() {
    let error = r#"{"code":-32042,"message":"not \u0041 you","data":{"a":1.0}}"#;
    on_both_drivers(|layout| {
        for form in [Form::Json, Form::Sse] {
            let server = HttpServer::new();
            server.on_first(
                |seen| seen.is("initialize"),
                move |mut exchange| {
                    if form == Form::Sse {
                        exchange.sse();
                    }
                    exchange.fail(error);
                },
            );
            let gateway = start(layout, &metrics::FLAGS, &server);
            let response = gateway.ask(&Request::post(initialize_body("\"i\"", LATEST)));
            response.expect_error(200, -32042, Some("\"i\""));
            let text = response.text();
            assert_eq!(raw_member(&text, "error").as_deref(), Some(error));
            assert_eq!(response.field("mcp-session-id"), None, "{response}");
            assert_eq!(Metrics::of(&gateway).sum("ringway_sessions", &[]), 0.0);
            // The next client is another matter.
            server.forget_rules();
            Session::open(&gateway);
        }
    });
}

/// Two clients are two users to the server.
#[test]
fn each_session_has_one_of_its_own_upstream() {
    const SESSIONS: usize = 8;
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let sessions: Vec<(Session, String)> =
            (0..SESSIONS).map(|_| open(&gateway, &server)).collect();
        std::thread::scope(|scope| {
            for (owner, (session, _)) in sessions.iter().enumerate() {
                let gateway = &gateway;
                scope.spawn(move || {
                    let mut connection = gateway.connect();
                    for id in 0..20 {
                        let nonce = format!("owner {owner}");
                        let arguments = json!({ "message": nonce }).to_string();
                        let echo = session.call(&id.to_string(), "echo", &arguments);
                        let response = connection.ask(&echo);
                        expect_no_secret(&response);
                        assert_eq!(response.raw_id(), Some(id.to_string()));
                        assert_eq!(response.result()["content"][0]["text"], nonce.as_str());
                    }
                });
            }
        });
        for (owner, (session, upstream)) in sessions.iter().enumerate() {
            let own = server.seen(|seen| seen.session() == Some(upstream));
            let calls = own.iter().filter(|seen| seen.is_tool("echo"));
            let of_owner = format!("\"owner {owner}\"");
            for call in calls.clone() {
                let said = call.raw(&["params", "arguments", "message"]);
                assert_eq!(said.as_ref(), Some(&of_owner), "{call:?}");
            }
            assert_eq!(calls.count(), 20);
            assert!(
                !own.iter()
                    .any(|seen| format!("{seen:?}").contains(&session.id))
            );
        }
        assert_eq!(server.count(|seen| seen.is("initialize")), SESSIONS);
    });
}

/// Servers without state give no ids; then there is nothing to name, and nothing to end.
#[test]
fn server_without_session_ids_gets_none() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        server.give_no_sessions();
        let gateway = start(layout, &[], &server);
        let sessions: Vec<Session> = (0..3).map(|_| Session::open(&gateway)).collect();
        for session in &sessions {
            let echo = gateway.ask(&session.call("1", "echo", r#"{"message":"m"}"#));
            assert_eq!(echo.result()["content"][0]["text"], "m");
        }
        assert_eq!(gateway.ask(&sessions[0].delete()).status, 204);
        assert_eq!(
            gateway.ask(&sessions[0].call("1", "echo", "{}")).status,
            404
        );
        let echo = gateway.ask(&sessions[1].call("1", "echo", r#"{"message":"m"}"#));
        assert_eq!(echo.result()["content"][0]["text"], "m");
        drop(gateway);
        assert_eq!(server.count(|seen| seen.session().is_some()), 0);
        assert_eq!(server.count(|seen| seen.method == "DELETE"), 0);
        assert_eq!(server.count(|seen| seen.is("initialize")), 3);
    });
}

/// Id and token are the gateway's own towards the server; every other byte is the client's, and the server's.
#[test]
fn id_and_token_are_mapped_and_every_other_byte_stays() {
    let names = [
        ("1", "\"t\""),
        ("\"1\"", "1"),
        ("\"a-\\u0041\\/\\\"\"", "\"caf\u{e9} \u{2028}\""),
        ("-9223372036854775808", "9007199254740993"),
        ("\"\"", "\"\""),
    ];
    let template = "{ \"params\" : {\"_meta\": {\"b\":1.50e+1,\"progressToken\" :@TOKEN@ , \"a\":[9007199254740993,-0.0]},\"name\":\"exact\",\"arguments\":{\"z\":\"\\u00e9\\/ \u{2028}😀\",\"id\":5,\"progressToken\":\"own\"}}, \"method\":\"tools\\/call\",\"jsonrpc\":\"2.0\",\"vendor\":{\"id\":1,\"e\":1e400},\"id\": @ID@ }";
    let result = "{\"structuredContent\":{\"z\":1.0,\"a\":9007199254740993,\"id\":@ID@},\"content\":[{\"type\":\"text\",\"text\":\"\\u00e9 \\/ \u{2028} 😀\"}] , \"_meta\" :{\"progressToken\":7}}";
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        for form in [Form::Json, Form::Sse] {
            server.on(
                |seen| seen.raw(&["params", "name"]).as_deref() == Some("\"exact\""),
                move |exchange| exchange.answer_as(form, result),
            );
            for accept in [BOTH, JSON, SSE] {
                for (id, token) in names {
                    let body = template.replace("@ID@", id).replace("@TOKEN@", token);
                    let request = session.post(body.clone()).set("Accept", accept);
                    let response = gateway.ask(&request);
                    let seen = server.seen(|seen| seen.body.contains("\"exact\""));
                    let seen = seen.last().expect("it arrived");
                    let own = seen.id().expect("an id");
                    assert!(own.parse::<u64>().is_ok(), "{own}");
                    assert_eq!(seen.token().as_ref(), Some(&own));
                    let expected = template.replace("@ID@", &own).replace("@TOKEN@", &own);
                    assert_eq!(seen.body.trim_end(), expected.trim_end());
                    assert_eq!(response.raw_id().as_deref(), Some(id));
                    let told = raw_member(&response.text(), "result").expect("a result");
                    assert_eq!(told, result.replace("@ID@", &own));
                    expect_no_secret(&response);
                    if accept != BOTH {
                        assert_eq!(response.media_type(), Some(accept), "{response}");
                    }
                }
            }
        }
        // Raw line breaks can only stand between tokens.
        let broken = "{\r\n\"jsonrpc\":\"2.0\",\n\"id\":1,\r\"method\":\"tools/call\",\"params\":{\n\"name\":\"echo\",\"arguments\":{\"message\":\"m\"}}}\n";
        let echo = gateway.ask(&session.post(broken));
        assert_eq!(echo.result()["content"][0]["text"], "m");
    });
}

/// Without a token the server is given none: it must not begin to report.
#[test]
fn call_without_token_has_none_upstream() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        gateway.ask(&session.call("1", "echo", r#"{"message":"m"}"#));
        let seen = server.wait_one("the call", |seen| seen.is_tool("echo"));
        assert_eq!(seen.token(), None);
        assert_eq!(seen.raw(&["params", "_meta"]), None);
    });
}

/// The same id in two sessions is two calls, whichever ends first.
#[test]
fn same_id_in_two_sessions_is_two_calls() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let sessions: Vec<(Session, String)> = (0..4).map(|_| open(&gateway, &server)).collect();
        for form in [Form::Json, Form::Sse] {
            let mut held: Vec<Raw> = sessions
                .iter()
                .enumerate()
                .map(|(owner, (session, _))| {
                    send(&gateway, &hold(session, "\"same\"", &owner.to_string()))
                })
                .collect();
            for (owner, (_, upstream)) in sessions.iter().enumerate().rev() {
                let call = server.take_held(&owner.to_string());
                assert_eq!(call.seen.session(), Some(upstream.as_str()));
                call.answer_as(form, &json!({ "owner": owner }).to_string());
                let response = held[owner].response();
                assert_eq!(response.result()["owner"], owner);
                assert_eq!(response.raw_id().as_deref(), Some("\"same\""));
            }
            // In one session it is refused, and the first is untouched.
            let mut first = send(&gateway, &hold(&sessions[0].0, "1", "first"));
            let call = server.take_held("first");
            let second = gateway.ask(&sessions[0].0.call("1", "echo", "{}"));
            second.expect_error(400, -32600, None);
            call.answer_as(form, r#"{"first":1}"#);
            assert_eq!(first.response().result()["first"], 1);
        }
    });
}

/// Calls of one session run side by side, and are answered in the server's order.
#[test]
fn calls_of_one_session_do_not_wait_for_each_other() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let mut held: Vec<(String, Raw)> = (0..8)
            .map(|id| {
                let key = id.to_string();
                let connection = send(&gateway, &hold(&session, &key, &key));
                (key, connection)
            })
            .collect();
        let ping = gateway.ask(&session.post(ping_body("99")));
        assert_eq!(ping.result(), json!({}));
        held.reverse();
        for (key, connection) in &mut held {
            server
                .take_held(key)
                .reply(&json!({ "released": key }).to_string());
            assert_eq!(connection.response().result()["released"], key.as_str());
        }
    });
}

/// What names no call on the stream of this one is dropped and counted, whatever it looks like.
#[test]
fn answers_that_name_other_calls_hurt_nobody() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (victim, _) = open(&gateway, &server);
        let (session, _) = open(&gateway, &server);
        let mut others: Vec<Raw> = (0..2)
            .map(|id| {
                send(
                    &gateway,
                    &hold(&victim, &id.to_string(), &format!("victim {id}")),
                )
            })
            .collect();
        let victims: Vec<_> = (0..2)
            .map(|id| server.take_held(&format!("victim {id}")))
            .collect();
        let ids: Vec<String> = victims
            .iter()
            .map(|call| call.seen.id().expect("an id"))
            .collect();
        for accept in [BOTH, JSON, SSE] {
            let before = metrics.sum("ringway_drops_total", &[]);
            let mut asking = send(
                &gateway,
                &hold(&session, "\"g\"", "asking").set("Accept", accept),
            );
            let mut call = server.take_held("asking");
            let own = call.seen.id().expect("an id");
            call.sse();
            let strays: Vec<String> = ids
                .iter()
                .filter(|id| **id != own)
                .cloned()
                .chain(
                    [
                        "1",
                        "0",
                        "-@ID@",
                        "@ID@.0",
                        "\" @ID@\"",
                        "9007199254740991",
                        "99999999999999999999999",
                        "[@ID@]",
                        "null",
                    ]
                    .map(str::to_owned),
                )
                .collect();
            for id in &strays {
                call.event(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"good":false}}}}"#
                ));
            }
            for broken in [
                r#"{"jsonrpc":"2.0","id":@ID@,"id":@ID@,"result":{}}"#,
                r#"{"jsonrpc":"2.0","id":@ID@,"result":{},"error":{"code":1,"message":"m"}}"#,
                r#"{"jsonrpc":"2.0","id":@ID@,"result":{}"#,
                "no JSON",
            ] {
                call.event(broken);
            }
            let good = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#;
            let again = good.replace("true", "false");
            let both = event(&call.fill(good)) + &event(&call.fill(&again));
            call.text(&both);
            call.end();
            let response = asking.response();
            let message = response.messages().pop().expect("an answer");
            assert_eq!(message["result"]["good"], true, "{response}");
            assert_eq!(message["id"], "g", "{response}");
            assert_eq!(response.messages().len(), 1, "{response}");
            wait_until("what was dropped is counted", || {
                let more = metrics.sum("ringway_drops_total", &[]) - before;
                more >= (strays.len() + 4) as f64
            });
        }
        for (id, call) in victims.into_iter().enumerate() {
            call.reply(r#"{"unharmed":true}"#);
            let response = others[id].response();
            assert_eq!(response.result()["unharmed"], true);
            assert_eq!(response.raw_id(), Some(id.to_string()));
        }
    });
}

/// The server's own errors are the client's, unchanged.
#[test]
fn errors_of_the_server_pass_unchanged() {
    let error = r#"{"code":-32002,"message":"caf\u00e9","data":{"uri":"a:\/b","n":1.0}}"#;
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        for form in [Form::Json, Form::Sse] {
            let mut asking = send(&gateway, &hold(&session, "\"e\"", "e"));
            let mut call = server.take_held("e");
            if form == Form::Sse {
                call.sse();
            }
            call.fail(error);
            let response = asking.response();
            response.expect_error(200, -32002, Some("\"e\""));
            assert_eq!(
                raw_member(&response.text(), "error").as_deref(),
                Some(error)
            );
        }
    });
}

/// Everything in one segment: nothing may be lost, overtake, or be held back.
#[test]
fn hundred_reports_and_the_reply_in_one_write_come_whole_and_in_order() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        for (round, token) in ["\"t\"", "7", "\"7\"", "\"a-\\u0041\""]
            .into_iter()
            .enumerate()
        {
            for accept in [BOTH, SSE] {
                for in_chunks in [true, false] {
                    let request = hold_with_token(&session, "5", "burst", token);
                    let raw = send(&gateway, &request.set("Accept", accept));
                    let mut call = server.take_held("burst");
                    let mut events: Vec<String> = (0..100)
                        .map(|step| event(&call.fill(&progress("@TOKEN@", step))))
                        .collect();
                    let reply = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#;
                    events.push(event(&call.fill(reply)));
                    let body: String = match in_chunks {
                        true => events.iter().map(|event| chunk(event)).collect(),
                        false => chunk(&events.concat()),
                    };
                    // In other rounds the head comes with it, too.
                    if round % 2 == 0 {
                        call.sse();
                        call.raw(format!("{body}0\r\n\r\n"));
                    } else {
                        let head = call.sse_head();
                        call.raw(format!("{head}{body}0\r\n\r\n"));
                    }
                    call.release();
                    let mut stream = Stream::of_answer(raw);
                    for step in 0..100 {
                        stream.expect(&progress(token, step));
                    }
                    stream.expect(&reply.replace("@ID@", "5"));
                    stream.expect_end();
                }
            }
        }
    });
}

/// Each report as it comes, not with the next one.
#[test]
fn reports_arrive_while_the_call_is_in_flight() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let raw = send(&gateway, &hold_with_token(&session, "5", "k", "\"t\""));
        let mut call = server.take_held("k");
        call.sse();
        call.event(&progress("@TOKEN@", 0));
        let mut stream = Stream::of_answer(raw);
        stream.expect(&progress("\"t\"", 0));
        for step in 1..5 {
            // Cut in the middle of a line, and of a letter.
            let text = event(&call.fill(&progress("@TOKEN@", step)));
            let (front, back) = text.split_at(text.len() / 2);
            call.text(front);
            call.text(back);
            stream.expect(&progress("\"t\"", step));
        }
        call.reply("{}");
        stream.expect(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
        stream.expect_end();
    });
}

/// A client that uses its token twice confuses nobody but itself: the first call's reports stay its own.
#[test]
fn reused_token_does_not_disturb_the_first_call() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let (other, _) = open(&gateway, &server);
        let mut calls = Vec::new();
        for (key, session) in [("a", &session), ("b", &session), ("c", &other)] {
            let id = format!("\"{key}\"");
            let raw = send(&gateway, &hold_with_token(session, &id, key, "\"t\""));
            let mut call = server.take_held(key);
            call.sse();
            calls.push((id, raw, call));
        }
        for step in 0..3 {
            for (number, (_, _, call)) in calls.iter_mut().enumerate() {
                call.event(&progress("@TOKEN@", 10 * step + number));
            }
        }
        for (number, (id, raw, call)) in calls.into_iter().enumerate().rev() {
            call.reply("{}");
            let mut stream = Stream::of_answer(raw);
            for step in 0..3 {
                stream.expect(&progress("\"t\"", 10 * step + number));
            }
            stream.expect(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
            stream.expect_end();
        }
    });
}

/// Reports that name another call, or none, are dropped and counted.
#[test]
fn reports_under_another_token_are_dropped() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (victim, _) = open(&gateway, &server);
        let (session, _) = open(&gateway, &server);
        let mut others = Vec::new();
        for key in ["v0", "v1"] {
            let id = format!("\"{key}\"");
            let raw = send(&gateway, &hold_with_token(&victim, &id, key, "\"t\""));
            others.push((raw, server.take_held(key)));
        }
        // The client of this one asked for no reports.
        let silent = send(&gateway, &hold(&session, "\"s\"", "silent"));
        let mut call = server.take_held("silent");
        call.sse();
        call.event(&progress("@ID@", 1));
        call.event(&progress("\"t\"", 1));
        call.reply(r#"{"silent":true}"#);
        let mut silent = silent;
        assert_eq!(silent.response().result()["silent"], true);
        metrics.wait_for_drops("progress", 2);

        let raw = send(&gateway, &hold_with_token(&session, "\"g\"", "g", "\"t\""));
        let mut call = server.take_held("g");
        let own = call.seen.id().expect("an id");
        call.sse();
        let foreign = others
            .iter()
            .map(|(_, call)| call.seen.token().expect("a token"));
        let foreign: Vec<String> = foreign.filter(|token| *token != own).collect();
        for token in &foreign {
            call.event(&progress(token, 66));
        }
        for token in ["1", "\"t\"", "\"x\"", "9007199254740991"] {
            call.event(&progress(token, 66));
        }
        call.event(&progress("@TOKEN@", 1));
        call.reply("{}");
        let mut stream = Stream::of_answer(raw);
        stream.expect(&progress("\"t\"", 1));
        let (before, _) = stream.answer();
        assert!(before.is_empty(), "{before:?}");
        metrics.wait_for_drops("progress", 2 + foreign.len() + 4);
        for (mut raw, call) in others {
            call.reply(r#"{"unharmed":true}"#);
            assert_eq!(raw.response().result()["unharmed"], true);
        }
    });
}

/// A client that takes no streams loses its reports, not its call.
#[test]
fn json_only_client_gets_its_answer_although_there_are_reports() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let request = hold_with_token(&session, "5", "k", "\"t\"");
        let mut raw = send(&gateway, &request.set("Accept", JSON));
        let mut call = server.take_held("k");
        call.sse();
        for step in 0..100 {
            call.event(&progress("@TOKEN@", step));
        }
        call.reply(r#"{"good":true}"#);
        let response = raw.response();
        assert_eq!(response.media_type(), Some(JSON), "{response}");
        assert_eq!(response.result()["good"], true);
        assert_eq!(response.raw_id().as_deref(), Some("5"));
        let next = raw.ask(&session.call("5", "echo", r#"{"message":"n"}"#));
        assert_eq!(next.result()["content"][0]["text"], "n");
    });
}

/// How servers frame their answers is their affair.
#[test]
fn every_framing_of_an_answer_is_understood() {
    let reply = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#;
    let heads = [
        "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: @LENGTH@\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nCONTENT-TYPE:APPLICATION/JSON\r\nCONTENT-LENGTH:@LENGTH@\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n@CLOSE@",
        "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\ncontent-length: @LENGTH@\r\n\r\n@CLOSE@",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: @LENGTH@\r\n\r\n@CLOSE@",
        "HTTP/1.1 200 OK\r\ncontent-length: @LENGTH@\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n@SSE@@CLOSE@",
        "HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream;charset=utf-8\r\ncontent-length: @LENGTH@\r\n\r\n@SSE@",
    ];
    let frames = [
        "data: @REPLY@\n\n",
        "\u{feff}: hello\r\n\r\nretry: 5000\r\nid: 1\r\nevent: message\r\ndata:@REPLY@\r\n\r\n",
        "id: 1\ndata:\n\nid\rdata: @REPLY@\r\revent: other\ndata: x\n\n",
        "event: note\ndata: {}\n\ndata: @FRONT@\ndata: @BACK@\n\n: bye\n\n",
        "data: @REPLY@\n\nevent: message\nda",
    ];
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        for head in heads {
            for frame in frames {
                for byte_by_byte in [false, true] {
                    let mut raw = send(&gateway, &hold(&session, "\"f\"", "f"));
                    let mut call = server.take_held("f");
                    let message = call.fill(reply);
                    let closes = head.contains("@CLOSE@");
                    // Cut where two tokens meet: joined by a line break it is JSON all the same.
                    let (front, back) =
                        message.split_at(message.find(",\"result").expect("there") + 1);
                    let body = match head.contains("@SSE@") {
                        true => frame
                            .replace("@REPLY@", &message)
                            .replace("@FRONT@", front)
                            .replace("@BACK@", back),
                        false => message.clone(),
                    };
                    let head = head
                        .replace("@LENGTH@", &body.len().to_string())
                        .replace("@SSE@", "")
                        .replace("@CLOSE@", "");
                    let bytes = (head + &body).into_bytes();
                    if byte_by_byte {
                        for byte in bytes {
                            call.raw([byte]);
                        }
                    } else {
                        call.raw(bytes);
                    }
                    match closes {
                        true => call.close(),
                        false => call.release(),
                    }
                    let response = raw.response();
                    assert_eq!(response.result()["good"], true, "{response}");
                    assert_eq!(response.raw_id().as_deref(), Some("\"f\""));
                }
            }
        }
    });
}

/// Connections are used again, and one whose answer was not read to its end never is.
#[test]
fn connections_to_the_server_are_kept() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let mut connection = gateway.connect();
        for id in 0..50 {
            let echo = session.call(&id.to_string(), "echo", r#"{"message":"m"}"#);
            assert_eq!(connection.ask(&echo).status, 200);
        }
        let seen = server.seen(|seen| seen.is_tool("echo"));
        assert_eq!(seen.len(), 50);
        let mut used: Vec<usize> = seen.iter().map(|seen| seen.connection).collect();
        used.dedup();
        assert!(used.len() <= 2, "{used:?}");
        // The server has ended them meanwhile: nothing had been answered, so the call is as good as new.
        server.end_connections();
        wait_until("they are gone", || server.open_connections() == 0);
        let listed = connection.ask(&session.post(request_body("1", "tools/list", "{}")));
        assert_eq!(listed.result(), json!({ "tools": [] }));
        let echo = session.call("1", "echo", r#"{"message":"m"}"#);
        assert_eq!(connection.ask(&echo).result()["content"][0]["text"], "m");
    });
}

/// What a client says to the gateway is not meant for the server: not its tokens, not its cookies.
#[test]
fn no_header_of_the_clients_is_passed_by_default() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let secret = "client-header";
        let dressed = |request: Request| {
            request
                .add("Authorization", "Bearer client-header")
                .add("Cookie", "a=client-header")
                .add("X-Custom", secret)
                .add("X-Forwarded-For", secret)
                .add("Forwarded", "for=client-header")
                .add("Traceparent", secret)
                .add("Accept-Language", secret)
                .add("User-Agent", secret)
                .add("Proxy-Authorization", secret)
                .add("Origin", "http://localhost:1")
                .add("Last-Event-ID", secret)
        };
        let request = dressed(Request::post(initialize_body("1", LATEST)));
        assert_eq!(gateway.ask(&request).status, 200);
        let echo = session.call("1", "echo", r#"{"message":"m"}"#);
        assert_eq!(gateway.ask(&dressed(echo)).status, 200);
        let notice =
            session.post(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#);
        assert_eq!(gateway.ask(&dressed(notice)).status, 202);
        server.wait_one("the notification", |seen| {
            seen.is("notifications/roots/list_changed")
        });
        let _stream = Stream::of(gateway.connect(), &dressed(session.get()));
        wait_until("the server has a GET stream", || {
            server.count(|seen| seen.method == "GET") > 0
        });
        assert_eq!(gateway.ask(&dressed(session.delete())).status, 204);
        wait_until("the session ends", || {
            server.count(|seen| seen.method == "DELETE") > 0
        });
        for seen in server.seen(|_| true) {
            let shown = format!("{:?}", seen.fields);
            assert!(!shown.contains(secret), "{shown}");
            for name in [
                "origin",
                "last-event-id",
                "authorization",
                "cookie",
                "x-custom",
            ] {
                assert_eq!(seen.field(name), None, "{shown}");
            }
        }
    });
}

/// The names that the flags give, on every request of the session, with that request's value.
#[test]
fn named_headers_are_passed_and_added() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let flags = [
            "--pass-header",
            "Authorization",
            "--pass-header",
            "x-custom",
            "--pass-header",
            "X-Both",
            "--add-header",
            "X-Added: of the gateway, \"quoted\"",
            "--add-header",
            "x-both: added",
        ];
        let gateway = start(layout, &flags, &server);
        let with = |request: Request, value: &str| {
            request
                .add("AUTHORIZATION", &format!("Bearer {value}"))
                .add("X-CUSTOM", &format!("{value} \t \"x\""))
                .add("X-Both", value)
                .add("X-Other", value)
                .add("Cookie", value)
        };
        let expect = |seen: &support::http_server::Seen, value: &str| {
            let bearer = format!("Bearer {value}");
            assert_eq!(seen.field("authorization"), Some(&*bearer), "{seen:?}");
            let custom = format!("{value} \t \"x\"");
            assert_eq!(seen.field("x-custom"), Some(&*custom), "{seen:?}");
            assert_eq!(seen.field("x-both"), Some("added"), "{seen:?}");
            assert_eq!(seen.field("x-other"), None, "{seen:?}");
            assert_eq!(seen.field("cookie"), None, "{seen:?}");
        };
        let initialize = with(Request::post(initialize_body("1", LATEST)), "first");
        let response = gateway.ask(&initialize);
        let session = Session {
            id: response
                .field("mcp-session-id")
                .expect("a session")
                .to_owned(),
            version: LATEST.to_owned(),
        };
        expect(
            &server.wait_one("initialize", |seen| seen.is("initialize")),
            "first",
        );
        let echo = session.call("1", "echo", r#"{"message":"m"}"#);
        assert_eq!(gateway.ask(&with(echo, "second")).status, 200);
        expect(
            &server.wait_one("the call", |seen| seen.is_tool("echo")),
            "second",
        );
        let notice = session.post(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
        assert_eq!(gateway.ask(&with(notice, "third")).status, 202);
        expect(
            &server.wait_one("the notice", |seen| seen.is("notifications/x")),
            "third",
        );
        // A session without these fields passes none, and not those of another.
        let (bare, upstream) = open(&gateway, &server);
        let echo = bare.call("1", "echo", r#"{"message":"m"}"#);
        assert_eq!(gateway.ask(&echo).status, 200);
        for seen in server.seen(|seen| seen.session() == Some(&upstream)) {
            assert_eq!(seen.field("authorization"), None, "{seen:?}");
            assert_eq!(seen.field("x-custom"), None, "{seen:?}");
        }
        for seen in server.seen(|_| true) {
            assert_eq!(seen.field("x-added"), Some("of the gateway, \"quoted\""));
            assert_eq!(seen.field("x-both"), Some("added"));
        }
    });
}

/// What would break the protocol, or let a client speak for the gateway, is refused before anything runs.
#[test]
fn names_that_may_never_be_passed_are_refused_at_start() {
    let server = HttpServer::new();
    let url = server.url();
    let names = [
        "Host",
        "connection",
        "Keep-Alive",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
        "Proxy-Authorization",
        "Content-Type",
        "content-length",
        "Content-Encoding",
        "Accept",
        "accept-encoding",
        "Origin",
        "Mcp-Session-Id",
        "MCP-Protocol-Version",
        "mcp-anything",
        "Last-Event-ID",
        "Expect",
    ];
    let mut flags: Vec<[String; 2]> = Vec::new();
    for name in names {
        flags.push(["--pass-header".to_owned(), name.to_owned()]);
        flags.push(["--add-header".to_owned(), format!("{name}: x")]);
    }
    for name in ["", " ", "a b", "a:", "a\r\nb", "caf\u{e9}"] {
        flags.push(["--pass-header".to_owned(), name.to_owned()]);
    }
    for field in [
        "X-A",
        "",
        ": x",
        "X-A: a\r\nX-B: b",
        "X-A: a\nb",
        "X-A: a\u{1}b",
        "X A: b",
    ] {
        flags.push(["--add-header".to_owned(), field.to_owned()]);
    }
    for flags in flags {
        let command = support::gateway::command(&flags, support::Upstream::Url(&url));
        let ended = support::gateway::run_to_end(command);
        let code = ended.status.code();
        assert!(matches!(code, Some(1 | 2)), "{flags:?}: {code:?}");
        assert!(
            !ended.stderr.is_empty() && ended.stdout.is_empty(),
            "{flags:?}"
        );
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
    assert_eq!(server.count(|_| true), 0);
}

/// A URL that cannot be used is told at once, and a URL and a command exclude each other.
#[test]
fn unusable_upstreams_are_refused_at_start() {
    for url in [
        "",
        "mcp",
        "127.0.0.1:1/mcp",
        "ftp://127.0.0.1:1/mcp",
        "http://",
        "http://:80/mcp",
        "http://user:secret@127.0.0.1:1/mcp",
        "http://127.0.0.1:99999/mcp",
        "http://127.0.0.1:1/m cp",
        "http://127.0.0.1:1/mcp#part",
        "http://127.0.0.1:1/m\r\ncp",
    ] {
        let command = support::gateway::command::<&str>(&[], support::Upstream::Url(url));
        let ended = support::gateway::run_to_end(command);
        let code = ended.status.code();
        assert!(matches!(code, Some(1 | 2)), "{url:?}: {code:?}");
        assert!(
            !ended.stderr.is_empty() && ended.stdout.is_empty(),
            "{url:?}"
        );
        let said = &ended.stderr;
        assert!(
            !said.contains("panicked") && !said.contains("secret"),
            "{said}"
        );
    }
    // A header of one client's has no place in a session that all share.
    let flags = ["--share", "--pass-header", "X-Custom"];
    let url = "http://127.0.0.1:1/mcp";
    let ended = support::gateway::run_to_end(support::gateway::command(
        &flags,
        support::Upstream::Url(url),
    ));
    assert!(
        matches!(ended.status.code(), Some(1 | 2)),
        "{}",
        ended.stderr
    );
    let both = ["--upstream", url];
    let command = support::gateway::command(&both, support::Upstream::Command(&["cat"]));
    let ended = support::gateway::run_to_end(command);
    assert!(
        matches!(ended.status.code(), Some(1 | 2)),
        "{}",
        ended.stderr
    );
}

/// Sessions of the server's cost it memory until they are ended.
#[test]
fn stopped_gateway_ends_its_sessions_upstream() {
    on_every_layout(|layout| {
        for with_streams in [false, true] {
            let server = HttpServer::new();
            let mut gateway = start(layout, &[], &server);
            let sessions: Vec<(Session, String)> =
                (0..6).map(|_| open(&gateway, &server)).collect();
            let mut streams: Vec<Stream> = sessions
                .iter()
                .filter(|_| with_streams)
                .map(|(session, _)| Stream::open(&gateway, session))
                .collect();
            assert_eq!(gateway.ask(&sessions[0].0.delete()).status, 204);
            gateway.signal(Signal::TERM);
            assert_eq!(gateway.wait().code(), Some(0));
            assert_eq!(server.live(), Vec::<String>::new());
            let ended = server.seen(|seen| seen.method == "DELETE");
            assert_eq!(ended.len(), sessions.len(), "{ended:#?}");
            for seen in &ended {
                assert_eq!(seen.field("mcp-protocol-version"), Some(LATEST), "{seen:?}");
            }
            for stream in &mut streams {
                stream.expect_end();
            }
        }
    });
}

/// A call that is in flight at the stop is finished first.
#[test]
fn call_in_flight_at_the_stop_is_answered() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let mut gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let raw = send(&gateway, &hold_with_token(&session, "1", "k", "\"t\""));
        let mut call = server.take_held("k");
        call.sse();
        gateway.signal(Signal::TERM);
        gateway.stderr.wait_for("the stop", |log| {
            log.contains("drain") || log.contains("stop")
        });
        call.event(&progress("@TOKEN@", 1));
        assert_eq!(server.live().len(), 1);
        call.reply(r#"{"good":true}"#);
        let mut stream = Stream::of_answer(raw);
        stream.expect(&progress("\"t\"", 1));
        let (before, last) = stream.answer();
        assert!(before.is_empty(), "{before:?}");
        assert_eq!(value(&last)["result"]["good"], true);
        assert_eq!(gateway.wait().code(), Some(0));
        assert!(server.live().is_empty());
    });
}

/// A session that nobody uses any more ends upstream as well.
#[test]
fn expired_session_ends_upstream() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let flags = ["--session-ttl", "300ms", "--session-unused-ttl", "300ms"];
        let gateway = start(layout, &flags, &server);
        let (session, upstream) = open(&gateway, &server);
        server.wait_one("the end of the session", |seen| {
            seen.method == "DELETE" && seen.session() == Some(&upstream)
        });
        let late = gateway.ask(&session.call("1", "echo", "{}"));
        assert_eq!(late.status, 404, "{late}");
    });
}

/// The gateway starts although nobody listens there yet, and serves as soon as somebody does.
#[test]
fn server_may_come_later() {
    on_both_drivers(|layout: Layout| {
        let server = HttpServer::new();
        server.down();
        let gateway = start(layout, &[], &server);
        let response = gateway.ask(&Request::post(initialize_body("\"i\"", LATEST)));
        response.expect_error(200, -32603, Some("\"i\""));
        assert_eq!(response.field("mcp-session-id"), None, "{response}");
        server.up();
        wait_until("it serves", || {
            let response = gateway.ask(&Request::post(initialize_body("\"i\"", LATEST)));
            response.message()["result"].is_object()
        });
    });
}

/// The bodies of both directions may be large.
#[test]
fn large_messages_pass_whole() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        for form in [Form::Json, Form::Sse] {
            server.answer_as(form);
            for size in [15_000, 70_000, 3_000_000] {
                let text = "\u{e9}m".repeat(size / 3);
                let arguments = json!({ "message": text }).to_string();
                let body = call_with_token_body("1", "echo", &arguments, "\"t\"");
                let response = gateway.ask(&session.post(body));
                let result: Value = response.result();
                let told = result["content"][0]["text"].as_str().expect("text");
                assert!(told == text, "{size}: {} bytes", told.len());
            }
        }
    });
}
