//! What ends a call before its answer comes: the client's cancel, the end of its session, time-outs, the client's
//! absence. The server behind is told by its own id, and the connection of its answer is closed.

mod support;

use support::http_server::{
    BOTH, Exchange, HttpServer, JSON, SOON_IDLE, SSE, Seen, expect_echo, hold, hold_with_token,
    open, progress, send, start,
};
use support::mcp::notification_body;
use support::metrics::{self, Metrics};
use support::stream::value;
use support::{
    Base, Gateway, Response, Session, Stream, on_both_drivers, on_every_layout, wait_until,
};

/// Whether it cancels the request with this raw id.
fn cancels(seen: &Seen, id: &str) -> bool {
    seen.is("notifications/cancelled") && seen.raw(&["params", "requestId"]).as_deref() == Some(id)
}

/// The server has been told, in the right session, once; and the answer's connection is gone.
#[track_caller]
fn expect_cancelled(server: &HttpServer, call: &Exchange) {
    call.wait_cut();
    let id = call.seen.id().expect("a call has an id");
    let told = server.wait_one("the cancel", |seen| cancels(seen, &id));
    assert_eq!(told.session(), call.seen.session(), "{told:?}");
}

/// What the client gets of a call that was cut short for this reason.
#[track_caller]
fn expect_cut(response: &Response, accept: &str, id: &str, reason: &str) {
    assert_eq!(response.status, 200, "{response}");
    if accept == JSON {
        let error = response.expect_error(200, -32603, Some(id));
        assert_eq!(error["data"]["reason"], reason, "{response}");
        return;
    }
    assert!(response.is_sse(), "{response}");
    for message in response.messages() {
        assert_eq!(message["error"]["data"]["reason"], reason, "{response}");
    }
}

/// Brings the server's answer as far as this: nothing, its head, a first message.
fn begin(call: &mut Exchange, how_far: usize) {
    if how_far > 0 {
        call.sse();
    }
    if how_far > 1 {
        call.event(r#"{"jsonrpc":"2.0","method":"notifications/vendor"}"#);
    }
}

#[test]
fn cancelled_call_ends_at_once_on_both_sides() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let (other, _) = open(&gateway, &server);
        let mut bystander = send(&gateway, &hold(&other, "5", "bystander"));
        let unharmed = server.take_held("bystander");
        for how_far in 0..2 {
            for accept in [BOTH, JSON, SSE] {
                for id in ["5", r#""c-\u0041""#] {
                    let request = hold_with_token(&session, id, "k", "\"t\"");
                    let mut raw = send(&gateway, &request.set("Accept", accept));
                    let mut call = server.take_held("k");
                    begin(&mut call, how_far);
                    // Another spelling of the same string names the same call.
                    let named = id.replace("\\u0041", "A");
                    let params = format!(r#"{{"reason":"enough \u00e9","requestId": {named}}}"#);
                    let body = notification_body("notifications/cancelled", &params);
                    assert_eq!(gateway.ask(&session.post(body)).status, 202);
                    let response = raw.response();
                    if accept == JSON {
                        expect_cut(&response, accept, id, "cancelled");
                    } else {
                        assert!(
                            response.is_sse() && response.messages().is_empty(),
                            "{response}"
                        );
                    }
                    expect_cancelled(&server, &call);
                    assert_eq!(call.seen.session(), Some(upstream.as_str()));
                    call.reply("{}");
                    // The connection lives on, and the id is free.
                    let echo = session.call(id, "echo", r#"{"message":"n"}"#);
                    assert_eq!(raw.ask(&echo).result()["content"][0]["text"], "n");
                }
            }
        }
        assert_eq!(server.count(|seen| seen.is("notifications/cancelled")), 12);
        assert!(!unharmed.is_cut());
        unharmed.reply(r#"{"unharmed":true}"#);
        assert_eq!(bystander.response().result()["unharmed"], true);
    });
}

/// Behind some progress the stream ends without a reply.
#[test]
fn stream_of_a_cancelled_call_ends_without_a_reply() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let raw = send(&gateway, &hold_with_token(&session, "5", "k", "\"t\""));
        let mut call = server.take_held("k");
        call.sse();
        call.event(&progress("@TOKEN@", 1));
        let mut stream = Stream::of_answer(raw);
        stream.expect(&progress("\"t\"", 1));
        assert_eq!(gateway.ask(&session.cancel("5")).status, 202);
        stream.expect_end();
        expect_cancelled(&server, &call);
        expect_echo(&gateway, &session);
    });
}

/// A session cancels its own calls only, and only those that are in flight.
#[test]
fn cancel_of_anything_else_is_ignored() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let (stranger, _) = open(&gateway, &server);
        let mut raw = send(&gateway, &hold(&session, "5", "k"));
        let mut call = server.take_held("k");
        call.sse();
        let upstream = call.seen.id().expect("an id");
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
            assert_eq!(gateway.ask(&cancel).status, 202);
        }
        expect_echo(&gateway, &session);
        assert!(!call.is_cut());
        call.reply(r#"{"good":true}"#);
        assert_eq!(raw.response().result()["good"], true);
        // Too late: it has ended.
        assert_eq!(gateway.ask(&session.cancel("5")).status, 202);
        expect_echo(&gateway, &session);
        assert_eq!(server.count(|seen| seen.is("notifications/cancelled")), 0);
    });
}

/// The end of a session is the end of all its calls, and of the server's session.
#[test]
fn end_of_the_session_ends_its_calls_on_both_sides() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (other, _) = open(&gateway, &server);
        let mut bystander = send(&gateway, &hold(&other, "1", "bystander"));
        let unharmed = server.take_held("bystander");
        for how_far in 0..3 {
            let (session, upstream) = open(&gateway, &server);
            let mut stream = Stream::open(&gateway, &session);
            let get = server.take_get(&upstream);
            let mut calls = Vec::new();
            for (id, accept) in [BOTH, JSON, SSE].into_iter().enumerate() {
                let id = id.to_string();
                let request = hold(&session, &id, &id).set("Accept", accept);
                let raw = send(&gateway, &request);
                let mut call = server.take_held(&id);
                begin(&mut call, how_far);
                calls.push((id, accept, raw, call));
            }
            // What was said before the end may have become part of the answers: it is read with them.
            assert_eq!(gateway.ask(&session.delete()).status, 204);
            for (id, accept, raw, call) in &mut calls {
                let response = raw.response();
                if *accept == JSON {
                    expect_cut(&response, accept, id, "session_ended");
                } else {
                    let last = response.messages().pop();
                    let reason = last.as_ref().map(|last| &last["error"]["data"]["reason"]);
                    let named = reason.is_some_and(|reason| reason == "session_ended");
                    let silent = last.is_none_or(|last| last["method"].is_string());
                    assert!(named || silent, "{response}");
                }
                call.wait_cut();
            }
            let mut ended = stream.rest();
            ended.retain(|message| !message.contains("notifications/vendor"));
            assert!(ended.is_empty(), "{ended:?}");
            get.wait_cut();
            server.wait_one("the end of the session", |seen| {
                seen.method == "DELETE" && seen.session() == Some(&upstream)
            });
            assert_eq!(gateway.ask(&session.call("9", "echo", "{}")).status, 404);
        }
        wait_until("one call is left", || {
            metrics.sum("ringway_calls_in_flight", &[]) == 1.0
        });
        assert!(!unharmed.is_cut());
        unharmed.reply(r#"{"unharmed":true}"#);
        assert_eq!(bystander.response().result()["unharmed"], true);
    });
}

/// Silence ends in an answer, and the server need not go on.
#[test]
fn silent_call_times_out_on_both_sides() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &["--request-timeout", "400ms"], &server);
        let (session, upstream) = open(&gateway, &server);
        for how_far in 0..2 {
            for accept in [BOTH, JSON, SSE] {
                let request = hold_with_token(&session, "5", "k", "\"t\"").set("Accept", accept);
                let mut raw = send(&gateway, &request);
                let mut call = server.take_held("k");
                begin(&mut call, how_far);
                let response = raw.response();
                let error = response.expect_error(200, -32603, Some("5"));
                assert_eq!(error["data"]["reason"], "timeout", "{response}");
                expect_cancelled(&server, &call);
                call.reply("{}");
                let echo = session.call("5", "echo", r#"{"message":"n"}"#);
                assert_eq!(raw.ask(&echo).result()["content"][0]["text"], "n");
            }
        }
        // Half a head is silence, too.
        let mut raw = send(&gateway, &hold(&session, "5", "k"));
        let mut call = server.take_held("k");
        call.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconte");
        let error = raw.response().expect_error(200, -32603, Some("5"));
        assert_eq!(error["data"]["reason"], "timeout", "{error}");
        call.wait_cut();
        assert_eq!(call.seen.session(), Some(upstream.as_str()));
        expect_echo(&gateway, &session);
    });
}

/// Reports put off the time-out of silence, but not the longest time.
#[test]
fn longest_time_holds_although_the_server_reports_progress() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let flags = [
            "--request-timeout",
            "300ms",
            "--request-timeout-max",
            "1200ms",
        ];
        let gateway = start(layout, &flags, &server);
        let (session, _) = open(&gateway, &server);
        let raw = send(&gateway, &hold_with_token(&session, "5", "k", "\"t\""));
        let mut call = server.take_held("k");
        call.sse();
        let mut step = 0;
        wait_until("the call is cut", || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            call.event(&progress("@TOKEN@", step));
            step += 1;
            call.is_cut()
        });
        let mut stream = Stream::of_answer(raw);
        let (before, last) = stream.answer();
        // More than the silence alone would have let through.
        assert!(before.len() > 15, "{}", before.len());
        assert_eq!(value(&last)["error"]["data"]["reason"], "timeout", "{last}");
        expect_cancelled(&server, &call);
    });
}

fn vanish(gateway: &Gateway, session: &Session, server: &HttpServer, round: usize) -> Exchange {
    let accept = [BOTH, JSON, SSE][round % 3];
    let raw = send(gateway, &hold(session, "5", "gone").set("Accept", accept));
    let mut call = server.take_held("gone");
    begin(&mut call, (round / 3) % 2);
    // The end of a client's sending half is not its end while its answer may come as JSON.
    match accept {
        SSE if round.is_multiple_of(2) => drop(raw),
        _ => raw.reset(),
    }
    call
}

/// A client that is gone has not cancelled: the call runs on, and its answer is nobody's.
#[test]
fn call_of_a_vanished_client_runs_on() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let flags = [metrics::FLAGS, SOON_IDLE].concat();
        let gateway = start(layout, &flags, &server);
        let metrics = Metrics::of(&gateway);
        let (session, _) = open(&gateway, &server);
        expect_echo(&gateway, &session);
        let base = Base::of(&gateway);
        for round in 0..12 {
            let none = || metrics.sum("ringway_connections", &[]) == 0.0;
            wait_until("no connection is open", none);
            let call = vanish(&gateway, &session, &server, round);
            wait_until("the gateway has noticed", none);
            assert!(!call.is_cut());
            call.reply(r#"{"late":true}"#);
            wait_until("the id is free again", || {
                let next = gateway.ask(&session.call("5", "echo", r#"{"message":"n"}"#));
                next.status == 200 && next.result()["content"][0]["text"] == "n"
            });
        }
        assert_eq!(server.count(|seen| seen.is("notifications/cancelled")), 0);
        // One whose connection was still being closed may have been written to nobody instead.
        let gone = metrics.drops("client_gone");
        assert!((6.0..=12.0).contains(&gone), "{gone}");
        base.wait_until_back(&gateway);
    });
}

/// Where the flag says so it has.
#[test]
fn call_of_a_vanished_client_is_cancelled_where_asked_for() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let flags = [["--on-disconnect", "cancel"], SOON_IDLE].concat();
        let gateway = start(layout, &flags, &server);
        let (session, _) = open(&gateway, &server);
        expect_echo(&gateway, &session);
        let base = Base::of(&gateway);
        for round in 0..12 {
            let call = vanish(&gateway, &session, &server, round);
            expect_cancelled(&server, &call);
            drop(call);
            wait_until("the id is free again", || {
                gateway
                    .ask(&session.call("5", "echo", r#"{"message":"n"}"#))
                    .status
                    == 200
            });
        }
        base.wait_until_back(&gateway);
    });
}

/// Another session's bytes must never be next in a queue after an abort, nor the old answer the next call's.
#[test]
fn late_answers_go_nowhere() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let (other, _) = open(&gateway, &server);
        for round in 0..6 {
            let mut raw = send(&gateway, &hold(&session, "1", "old"));
            let mut old = server.take_held("old");
            begin(&mut old, round % 3);
            assert_eq!(gateway.ask(&session.cancel("1")).status, 202);
            let mut fresh = send(&gateway, &hold(&other, "1", "fresh"));
            let call = server.take_held("fresh");
            raw.response();
            old.reply(r#"{"old":true}"#);
            call.reply(r#"{"fresh":true}"#);
            assert_eq!(fresh.response().result()["fresh"], true);
            let next = raw.ask(&session.call("1", "echo", r#"{"message":"n"}"#));
            assert_eq!(next.result()["content"][0]["text"], "n");
        }
    });
}
