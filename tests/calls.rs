//! Calls in flight: one reply each, and what a cancel, a time-out, a limit, a vanished client or the end of
//! the session does to them. The scripted server holds a call until it is told to release it, so that every
//! order of events is made on purpose and nothing depends on time.

mod support;

use serde_json::json;
use support::mcp::ping_body;
use support::{
    Gateway, Layout, Raw, Request, Script, Session, Upstream, on_both_drivers, on_every_layout,
    wait_until,
};

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

/// Sends a call that the server holds under `key`, and waits until it does.
fn hold(gateway: &Gateway, script: &Script<'_>, request: &Request, key: &str) -> Raw {
    let mut connection = gateway.connect();
    connection.send(request.bytes());
    script.wait_held(key);
    connection
}

fn hold_request(session: &Session, id: &str, key: &str) -> Request {
    session.call(id, "hold", &json!({ "key": key }).to_string())
}

/// The upstream id of the held call with this key, as the server read it.
fn upstream_id(script: &Script<'_>, key: &str) -> String {
    let line = script.wait_received(&format!("\"key\":\"{key}\""));
    support::mcp::raw_member(&line, "id").expect("a call has an id")
}

/// Two calls of one id would make the reply a lottery; other types and other sessions are other ids.
#[test]
fn same_id_in_flight_twice_is_refused_and_the_first_is_untouched() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let mut number = hold(
            &gateway,
            &script,
            &hold_request(&session, "1", "number"),
            "number",
        );
        let mut string = hold(
            &gateway,
            &script,
            &hold_request(&session, "\"1\"", "string"),
            "string",
        );
        let mut foreign = hold(
            &gateway,
            &script,
            &hold_request(&other, "1", "foreign"),
            "foreign",
        );
        let mut connection = gateway.connect();
        // The same string in another spelling is the same id to every JSON reader.
        for id in ["1", "\"1\"", r#""\u0031""#] {
            let second = session.call(id, "echo", r#"{"message":"second"}"#);
            for accept in ["application/json", "text/event-stream"] {
                let response = connection.ask(&second.clone().set("Accept", accept));
                response.expect_error(400, -32600, None);
            }
        }
        for (key, connection, id) in [
            ("foreign", &mut foreign, "1"),
            ("string", &mut string, "\"1\""),
            ("number", &mut number, "1"),
        ] {
            script.release(key);
            let response = connection.response();
            assert_eq!(response.result()["released"], key);
            assert_eq!(response.raw_id().as_deref(), Some(id));
        }
        // Once answered the id is free.
        assert_eq!(connection.ask(&session.call("1", "echo", "{}")).status, 200);
    });
}

/// A cancelled call ends at once for its client and is named to the server by the server's own id.
#[test]
fn cancelled_call_ends_at_once_and_its_id_is_free() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        for (serial, accept) in [
            "application/json",
            "text/event-stream",
            "application/json, text/event-stream",
        ]
        .into_iter()
        .enumerate()
        {
            for id in ["5", r#""c-\u0041""#] {
                let key = format!("k{serial}-{}", id.len());
                let request = hold_request(&session, id, &key).set("Accept", accept);
                let mut connection = hold(&gateway, &script, &request, &key);
                let upstream = upstream_id(&script, &key);
                // Another spelling of the same string names the same call.
                let named = id.replace("\\u0041", "A");
                assert_eq!(gateway.ask(&session.cancel(&named)).status, 202);
                let response = connection.response();
                if accept == "application/json" {
                    let error = response.expect_error(200, -32603, Some(id));
                    assert_eq!(error["data"]["reason"], "cancelled", "{response}");
                } else {
                    assert_eq!(response.status, 200, "{response}");
                    assert!(response.is_sse(), "{response}");
                    assert!(response.messages().is_empty(), "{response}");
                }
                let told = script.wait_received(&format!("\"requestId\":{upstream}"));
                assert!(told.contains("notifications/cancelled"), "{told}");
                // The connection lives on, the id is free, and the late reply hits nobody.
                let echo = session.call(id, "echo", r#"{"message":"next"}"#);
                let next = connection.ask(&echo);
                assert_eq!(next.result()["content"][0]["text"], "next", "{next}");
                script.release(&key);
                let next = connection.ask(&echo);
                assert_eq!(next.result()["content"][0]["text"], "next", "{next}");
            }
        }
    });
}

/// A session may cancel its own calls only, and only those that are in flight.
#[test]
fn cancel_of_anything_else_is_ignored() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, stranger) = (Session::open(&gateway), Session::open(&gateway));
        let mut connection = hold(
            &gateway,
            &script,
            &hold_request(&session, "5", "mine"),
            "mine",
        );
        let upstream = upstream_id(&script, "mine");
        for cancel in [
            stranger.cancel("5"),
            stranger.cancel(&upstream),
            session.cancel(&upstream),
            session.cancel("\"5\""),
            session.cancel("6"),
            session.cancel("5.0"),
            session.cancel("null"),
            session.cancel("[5]"),
            session.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}"#),
            session.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#),
        ] {
            let response = gateway.ask(&cancel);
            assert_eq!(response.status, 202, "{response}");
        }
        script.release("mine");
        assert_eq!(connection.response().result()["released"], "mine");
        assert!(script.received("notifications/cancelled").is_empty());
    });
}

/// Silence ends in an answer, not in a hang; and the answer that comes too late is nobody's.
#[test]
fn silent_call_times_out_and_its_late_reply_is_dropped() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &["--request-timeout", "400ms"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        for accept in ["application/json", "text/event-stream"] {
            let key = &accept[..4];
            let request = hold_request(&session, "5", key).set("Accept", accept);
            let mut connection = gateway.connect();
            let response = connection.ask(&request);
            let error = response.expect_error(200, -32603, Some("5"));
            assert_eq!(error["data"]["reason"], "timeout", "{response}");
            script.wait_held(key);
            script.release(key);
            let echo = session.call("5", "echo", r#"{"message":"next"}"#);
            let next = connection.ask(&echo);
            assert_eq!(next.result()["content"][0]["text"], "next", "{next}");
        }
    });
}

/// The longest time is a limit of its own: progress may put off the first, never the second.
#[test]
fn longest_time_holds_although_the_server_reports_progress() {
    on_both_drivers(|layout| {
        let flags = ["--request-timeout", "10s", "--request-timeout-max", "500ms"];
        let gateway = layout.start(&flags, Upstream::Demo);
        let session = Session::open(&gateway);
        let params = r#"{"name":"slow","arguments":{"steps":1000,"interval_ms":50},"_meta":{"progressToken":"t"}}"#;
        let request = session.post(support::mcp::request_body("5", "tools/call", params));
        let json = gateway.ask(&request.clone().set("Accept", "application/json"));
        let error = json.expect_error(200, -32603, Some("5"));
        assert_eq!(error["data"]["reason"], "timeout", "{json}");
        // The same behind some progress.
        let stream = gateway.ask(&request);
        let messages = stream.messages();
        assert!(messages.len() >= 2, "{stream}");
        let last = messages.last().expect("some");
        assert_eq!(last["id"], 5, "{stream}");
        assert_eq!(last["error"]["data"]["reason"], "timeout", "{stream}");
    });
}

/// One greedy session must not take all the room; a place that is free again is given again.
#[test]
fn calls_over_the_sessions_limit_are_overloaded() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &["--max-calls-per-session", "2"]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let mut first = hold(&gateway, &script, &hold_request(&session, "1", "a"), "a");
        let mut second = hold(&gateway, &script, &hold_request(&session, "2", "b"), "b");
        let third = session.call("3", "echo", "{}");
        let response = gateway.ask(&third);
        let error = response.expect_error(200, -32603, Some("3"));
        assert_eq!(error["data"]["reason"], "overloaded", "{response}");
        // What the gateway answers itself takes no place, and neither do other sessions' calls.
        assert_eq!(gateway.ask(&session.post(ping_body("4"))).status, 200);
        assert!(gateway.ask(&other.call("3", "echo", "{}")).result()["content"].is_array());
        script.release("a");
        assert_eq!(first.response().result()["released"], "a");
        assert!(gateway.ask(&third).result()["content"].is_array());
        script.release("b");
        assert_eq!(second.response().result()["released"], "b");
    });
}

/// The table of all calls is bounded as well.
#[test]
fn calls_over_the_gateways_limit_are_overloaded() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &["--max-calls", "3"]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..3).map(|_| Session::open(&gateway)).collect();
        // Two are held so that a third place is left for the script's own commands.
        let mut held: Vec<Raw> = sessions[..2]
            .iter()
            .enumerate()
            .map(|(number, session)| {
                let key = format!("k{number}");
                hold(&gateway, &script, &hold_request(session, "1", &key), &key)
            })
            .collect();
        let mut last = gateway.connect();
        last.send(hold_request(&sessions[2], "1", "k2").bytes());
        // The script cannot ask whether that one is held: every place is taken once it has arrived.
        last.wait_until_read();
        let mut refused = None;
        wait_until("a call is refused as overloaded", || {
            let response = gateway.ask(&sessions[0].call("9", "echo", "{}"));
            let over = response.message()["error"].is_object();
            if over {
                refused = Some(response);
            }
            over
        });
        let error = refused
            .expect("set by the wait above")
            .expect_error(200, -32603, Some("9"));
        assert_eq!(error["data"]["reason"], "overloaded");
        // A cancel needs no place, and gives one back.
        assert_eq!(gateway.ask(&sessions[2].cancel("1")).status, 202);
        assert_eq!(last.response().status, 200);
        for (number, connection) in held.iter_mut().enumerate() {
            let key = format!("k{number}");
            script.release(&key);
            assert_eq!(connection.response().result()["released"], key.as_str());
        }
    });
}

/// The end of a session ends its calls, for the client and for the server, and nobody else's.
#[test]
fn end_of_the_session_ends_its_calls() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let json_only = hold_request(&session, "1", "json").set("Accept", "application/json");
        let mut json = hold(&gateway, &script, &json_only, "json");
        let stream_only = hold_request(&session, "2", "sse").set("Accept", "text/event-stream");
        let mut stream = hold(&gateway, &script, &stream_only, "sse");
        let mut others = hold(
            &gateway,
            &script,
            &hold_request(&other, "1", "other"),
            "other",
        );
        let named = [upstream_id(&script, "json"), upstream_id(&script, "sse")];
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        let response = json.response();
        let error = response.expect_error(200, -32603, Some("1"));
        assert_eq!(error["data"]["reason"], "session_ended", "{response}");
        // A stream may end with that error or without a message; it must end.
        let response = stream.response();
        for message in response.messages() {
            assert_eq!(
                message["error"]["data"]["reason"], "session_ended",
                "{response}"
            );
        }
        for upstream in named {
            let told = script.wait_received(&format!("\"requestId\":{upstream}"));
            assert!(told.contains("notifications/cancelled"), "{told}");
        }
        script.release("json");
        script.release("sse");
        script.release("other");
        assert_eq!(others.response().result()["released"], "other");
    });
}

/// A client that is gone must cost nothing but its own call, whose reply must not reach anyone.
#[test]
fn vanished_client_leaves_no_trace() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &["--max-calls-per-session", "3"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        for round in 0..6 {
            let key = format!("gone{round}");
            let accept = ["application/json", "text/event-stream"][round % 2];
            let request = hold_request(&session, "5", &key).set("Accept", accept);
            let connection = hold(&gateway, &script, &request, &key);
            if round % 3 == 0 {
                drop(connection);
            } else {
                connection.reset();
            }
            script.release(&key);
            // The call ran on until its reply came: only then are its id and its place free again.
            wait_until("the id is free again", || {
                let response = gateway.ask(&session.call("5", "echo", r#"{"message":"x"}"#));
                response.status == 200 && response.result()["content"][0]["text"] == "x"
            });
        }
    });
}

/// Another session's bytes must never be next in a connection's queue after an abort.
#[test]
fn reply_after_reconnect_goes_nowhere() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let gone = hold(
            &gateway,
            &script,
            &hold_request(&session, "1", "gone"),
            "gone",
        );
        gone.reset();
        let mut fresh = hold(
            &gateway,
            &script,
            &hold_request(&other, "1", "fresh"),
            "fresh",
        );
        script.release("gone");
        script.release("fresh");
        assert_eq!(fresh.response().result()["released"], "fresh");
        let next = fresh.ask(&other.call("1", "echo", r#"{"message":"n"}"#));
        assert_eq!(next.result()["content"][0]["text"], "n");
    });
}

/// Calls of one session on several connections run side by side: a held one must not block the others.
#[test]
fn replies_come_in_the_servers_order_not_the_clients() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut held: Vec<(String, Raw)> = (0..8)
            .map(|number| {
                let key = format!("k{number}");
                let request = hold_request(&session, &number.to_string(), &key);
                let connection = hold(&gateway, &script, &request, &key);
                (key, connection)
            })
            .collect();
        held.reverse();
        for (key, connection) in &mut held {
            script.release(key);
            assert_eq!(connection.response().result()["released"], key.as_str());
        }
    });
}

/// A request that comes while an earlier one on its connection is in flight waits for its turn.
#[test]
fn pipelined_request_waits_for_the_call_before_it() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut connection = hold(
            &gateway,
            &script,
            &hold_request(&session, "1", "first"),
            "first",
        );
        connection.send(session.post(ping_body("2")).bytes());
        connection.send(
            session
                .call("3", "echo", r#"{"message":"third"}"#)
                .chunked(&[4])
                .bytes(),
        );
        connection.half_close();
        script.release("first");
        assert_eq!(connection.response().result()["released"], "first");
        assert_eq!(connection.response().raw_id().as_deref(), Some("2"));
        assert_eq!(connection.response().raw_id().as_deref(), Some("3"));
        connection.expect_end();
    });
}
