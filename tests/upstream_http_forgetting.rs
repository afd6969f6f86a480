//! A server that has forgotten a session, as after a restart: one new handshake for all that wait, with what the
//! session had told the server before, and each call once more; a client whose session cannot be brought back is
//! told by 404, on which it starts anew.

mod support;

use serde_json::json;
use support::http_server::{
    BOTH, Exchange, Form, HttpServer, JSON, SSE, Seen, expect_echo, hold, open, send, start,
};
use support::mcp::{LATEST, initialize_body, raw_member, request_body};
use support::metrics::{self, Metrics};
use support::{
    Gateway, Raw, Request, Response, Session, Stream, on_both_drivers, on_every_layout, wait_until,
};

const GONE: &str = r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"}}"#;

/// Answers as a server does that does not know the session.
fn forgotten(exchange: Exchange) {
    exchange.status("404 Not Found", Some("application/json"), GONE);
}

#[track_caller]
fn expect_gone(response: &Response) {
    assert_eq!(response.status, 404, "{response}");
    let message: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
    assert_eq!(message["error"]["code"], -32001, "{response}");
}

fn set_level(gateway: &Gateway, session: &Session, level: &str) {
    let params = format!(r#"{{"level":"{level}"}}"#);
    let request = session.post(request_body("\"level\"", "logging/setLevel", &params));
    assert_eq!(gateway.ask(&request).result(), json!({}));
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

/// The handshakes that the server was asked for.
fn handshakes(server: &HttpServer) -> Vec<Seen> {
    server.seen(|seen| seen.is("initialize"))
}

/// A session whose server has 20 of its calls, none of them answered.
fn with_waiting(gateway: &Gateway, session: &Session) -> Vec<(String, Raw)> {
    (0..20)
        .map(|number| {
            let accept = [BOTH, JSON, SSE][number % 3];
            let id = number.to_string();
            let request = hold(session, &id, &id).set("Accept", accept);
            (id, send(gateway, &request))
        })
        .collect()
}

/// Many calls find the session gone at once: one handshake for all, and no call is lost or doubled.
#[test]
fn one_handshake_brings_all_waiting_calls_back() {
    on_every_layout(|layout| {
        for form in [Form::Json, Form::Sse] {
            let server = HttpServer::new();
            server.answer_as(form);
            let gateway = start(layout, &[], &server);
            // The client's own words at the handshake, which the second must say again.
            let params = r#"{"protocolVersion":"2025-11-25","vendor":1.50e+1,"capabilities":{"roots":{},"sampling":{}},"clientInfo":{"version":"1","name":"caf\u00e9"}}"#;
            let body = request_body("\"i\"", "initialize", params);
            let response = gateway.ask(&Request::post(body));
            let session = Session {
                id: response
                    .field("mcp-session-id")
                    .expect("a session")
                    .to_owned(),
                version: LATEST.to_owned(),
            };
            let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
            assert_eq!(gateway.ask(&session.post(ready)).status, 202);
            let first = server.given().remove(0);
            set_level(&gateway, &session, "warning");
            for uri in ["a:1", "a:2", "a:3"] {
                assert_eq!(
                    gateway.ask(&session.subscribe("\"s\"", uri)).result(),
                    json!({})
                );
            }
            assert_eq!(
                gateway.ask(&session.unsubscribe("\"s\"", "a:2")).result(),
                json!({})
            );

            let mut waiting = with_waiting(&gateway, &session);
            let calls: Vec<Exchange> = (0..20)
                .map(|id| server.take_held(&id.to_string()))
                .collect();
            server.hold(|seen| seen.is("initialize"));
            server.forget_sessions();
            calls.into_iter().for_each(forgotten);
            let handshake = server.take("the new handshake", |seen| seen.is("initialize"));
            assert_eq!(handshake.seen.session(), None);
            assert_eq!(handshake.seen.raw(&["params"]).as_deref(), Some(params));
            // Who comes meanwhile waits for the same one.
            for id in 20..25 {
                let id = id.to_string();
                let raw = send(&gateway, &hold(&session, &id, &id));
                raw.wait_until_read();
                waiting.push((id, raw));
            }
            let second = handshake.given.clone().expect("a session");
            let result = support::http_server::initialize_result("\"2025-11-25\"");
            handshake.answer_as(form, &result);
            for (id, raw) in &mut waiting {
                let call = server.take_held(id);
                assert_eq!(call.seen.session(), Some(second.as_str()));
                call.answer_as(form, &json!({ "answered": id }).to_string());
                let response = raw.response();
                assert_eq!(response.result()["answered"], id.as_str());
                assert_eq!(response.raw_id().as_ref(), Some(&*id));
            }
            assert_eq!(handshakes(&server).len(), 2);
            for id in 0..25 {
                let times = server.count(|seen| seen.is_held(&id.to_string()));
                assert_eq!(times, if id < 20 { 2 } else { 1 }, "call {id}");
            }
            // What the server knew of the session it knows again, and it was told in order.
            let again = server.seen(|seen| seen.session() == Some(&second));
            assert!(again[0].is("notifications/initialized"), "{:?}", again[0]);
            let level = again.iter().filter(|seen| seen.is("logging/setLevel"));
            let level: Vec<_> = level.map(|seen| seen.raw(&["params", "level"])).collect();
            assert_eq!(level, [Some("\"warning\"".to_owned())]);
            let told = again.iter().filter(|seen| seen.is("resources/subscribe"));
            let mut told: Vec<_> = told
                .filter_map(|seen| seen.raw(&["params", "uri"]))
                .collect();
            told.sort();
            assert_eq!(told, ["\"a:1\"", "\"a:3\""]);
            // The client has the session that it had.
            expect_echo(&gateway, &session);
            assert_eq!(gateway.ask(&session.delete()).status, 204);
            server.wait_one("the end", |seen| seen.method == "DELETE");
            assert_eq!(
                server.count(|seen| seen.session() == Some(&first) && seen.method == "DELETE"),
                0
            );
        }
    });
}

/// Each kind of request may be the one that finds out.
#[test]
fn whichever_request_finds_out_is_answered() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let (other, other_upstream) = open(&gateway, &server);
        let requests = [
            session.call("1", "echo", r#"{"message":"m"}"#),
            session.post(request_body("1", "tools/list", "{}")),
            session.subscribe("1", "a:1"),
            session.unsubscribe("1", "a:1"),
            session.post(request_body(
                "1",
                "logging/setLevel",
                r#"{"level":"error"}"#,
            )),
        ];
        for (round, request) in requests.iter().enumerate() {
            let own = server.given().into_iter().rfind(|id| *id != other_upstream);
            server.forget_session(&own.expect("a session"));
            let response = gateway.ask(request);
            assert!(response.message()["result"].is_object(), "{response}");
            assert_eq!(handshakes(&server).len(), 3 + round);
        }
        // A notification finds out as well. It may be lost: it told of a state that the new session does not have.
        let own = server.given().into_iter().rfind(|id| *id != other_upstream);
        server.forget_session(&own.expect("a session"));
        let notice = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
        assert_eq!(gateway.ask(&session.post(notice)).status, 202);
        wait_until("another handshake", || {
            handshakes(&server).len() == 3 + requests.len()
        });
        expect_echo(&gateway, &session);
        // The other session has noticed nothing.
        expect_echo(&gateway, &other);
        let of_other = server.seen(|seen| seen.session() == Some(&other_upstream));
        assert!(of_other.iter().any(|seen| seen.is_tool("echo")));
        assert!(server.live().contains(&other_upstream));
    });
}

/// The server's GET stream is one of the new session's, and the client's lives on.
#[test]
fn get_stream_follows_to_the_new_session() {
    on_every_layout(|layout| {
        let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1}}"#;
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let mut stream = Stream::open(&gateway, &session);
        let mut get = server.take_get(&upstream);
        get.event(log);
        stream.expect(log);
        // A call finds out.
        server.forget_sessions();
        get.close();
        expect_echo(&gateway, &session);
        let mut get = server.take_get(&server.given()[1]);
        get.event(log);
        let heard = until(&mut stream, log);
        assert!(
            heard.iter().all(|message| message.contains("list_changed")),
            "{heard:?}"
        );
        // The GET itself finds out.
        server.forget_sessions();
        get.close();
        wait_until("a third session", || server.given().len() == 3);
        let mut get = server.take_get(&server.given()[2]);
        get.event(log);
        let heard = until(&mut stream, log);
        assert!(
            heard.iter().all(|message| message.contains("list_changed")),
            "{heard:?}"
        );
        expect_echo(&gateway, &session);
        assert_eq!(handshakes(&server).len(), 3);
    });
}

type Failure = (&'static str, fn(Exchange));

/// Ways in which the new handshake does not bring the session back.
fn failures() -> [Failure; 6] {
    [
        ("refused", |exchange| {
            exchange.fail(r#"{"code":-1,"message":"no"}"#)
        }),
        ("500", |exchange| {
            exchange.status("500 Internal Server Error", None, "")
        }),
        ("404", forgotten),
        ("closed", Exchange::close),
        ("garbage", |mut exchange| {
            exchange.raw("no HTTP at all\r\n\r\n");
            exchange.close();
        }),
        ("a version that nobody asked for", |exchange| {
            let result = support::http_server::initialize_result("\"2026-07-28\"");
            exchange.reply(&result);
        }),
    ]
}

/// Who cannot be helped is told so by the one status that says "start anew".
#[test]
fn session_that_cannot_be_brought_back_ends() {
    on_every_layout(|layout| {
        for (why, fail) in failures() {
            eprintln!("--- {why}");
            let server = HttpServer::new();
            let gateway = start(layout, &metrics::FLAGS, &server);
            let metrics = Metrics::of(&gateway);
            let (other, _) = open(&gateway, &server);
            let (session, upstream) = open(&gateway, &server);
            let mut stream = Stream::open(&gateway, &session);
            server.take_get(&upstream).park();
            let waiting = with_waiting(&gateway, &session);
            let calls: Vec<Exchange> = (0..20)
                .map(|id| server.take_held(&id.to_string()))
                .collect();
            server.hold(|seen| seen.is("initialize"));
            server.forget_session(&upstream);
            calls.into_iter().for_each(forgotten);
            fail(server.take("the new handshake", |seen| seen.is("initialize")));
            // A handshake may be tried again where nothing can run twice; it fails as well.
            server.on_first(|seen| seen.is("initialize"), fail);
            for (number, (id, mut raw)) in waiting.into_iter().enumerate() {
                let response = raw.response();
                // Who takes nothing but streams may have been promised one by the head already.
                if number % 3 == 2 && response.status == 200 {
                    response.expect_error(200, -32001, Some(&id));
                } else {
                    expect_gone(&response);
                }
            }
            let heard = stream.rest();
            assert!(heard.is_empty(), "{heard:?}");
            expect_gone(&gateway.ask(&session.call("1", "echo", "{}")));
            expect_gone(&gateway.ask(&session.get()));
            expect_gone(&gateway.ask(&session.delete()));
            wait_until("the session has left nothing", || {
                metrics.sum("ringway_sessions", &[]) == 1.0
                    && metrics.sum("ringway_calls_in_flight", &[]) == 0.0
            });
            // The client starts anew, and the other has noticed nothing.
            expect_echo(&gateway, &other);
            server.forget_rules();
            expect_echo(&gateway, &Session::open(&gateway));
        }
    });
}

/// A server that forgets the new session too has had its chance: no call is sent a third time.
#[test]
fn call_is_sent_twice_at_most() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let waiting = with_waiting(&gateway, &session);
        let calls: Vec<Exchange> = (0..20)
            .map(|id| server.take_held(&id.to_string()))
            .collect();
        server.forget_session(&upstream);
        calls.into_iter().for_each(forgotten);
        let again: Vec<Exchange> = (0..20)
            .map(|id| server.take_held(&id.to_string()))
            .collect();
        again.into_iter().for_each(forgotten);
        for (id, mut raw) in waiting {
            let response = raw.response();
            if response.status == 200 {
                let error = response.expect_error(200, -32603, Some(&id));
                assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
            } else {
                expect_gone(&response);
            }
            assert_eq!(server.count(|seen| seen.is_held(&id)), 2);
        }
    });
}

/// The calls were already on their way again when the server forgot once more.
#[test]
fn server_that_forgets_during_the_handshake_is_no_endless_loop() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        expect_echo(&gateway, &session);
        // Every session is forgotten as soon as it was given.
        server.on_first(|seen| !seen.is("initialize"), forgotten);
        let response = gateway.ask(&session.post(request_body("1", "tools/list", "{}")));
        expect_gone(&response);
        let tried = handshakes(&server).len();
        assert!((2..=4).contains(&tried), "{tried} handshakes");
        let calls = server.count(|seen| seen.is("tools/list"));
        assert!((1..=2).contains(&calls), "{calls} calls");
        server.forget_rules();
        expect_echo(&gateway, &Session::open(&gateway));
    });
}

/// What a restored subscription was refused is gone; the session is not.
#[test]
fn refused_restoration_does_not_end_the_session() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        set_level(&gateway, &session, "warning");
        assert_eq!(
            gateway.ask(&session.subscribe("1", "a:1")).result(),
            json!({})
        );
        server.on(
            |seen| seen.is("resources/subscribe") || seen.is("logging/setLevel"),
            |exchange| exchange.fail(r#"{"code":-32002,"message":"no longer"}"#),
        );
        server.forget_sessions();
        expect_echo(&gateway, &session);
        assert_eq!(handshakes(&server).len(), 2);
    });
}

/// A call that was cut short while it waited for the handshake is not sent again.
#[test]
fn cancelled_while_waiting_is_not_sent_again() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let mut cancelled = send(&gateway, &hold(&session, "1", "cancelled"));
        let mut kept = send(&gateway, &hold(&session, "2", "kept"));
        let calls = [server.take_held("cancelled"), server.take_held("kept")];
        server.hold(|seen| seen.is("initialize"));
        server.forget_sessions();
        calls.into_iter().for_each(forgotten);
        let handshake = server.take("the new handshake", |seen| seen.is("initialize"));
        assert_eq!(gateway.ask(&session.cancel("1")).status, 202);
        cancelled.response();
        let result = support::http_server::initialize_result("\"2025-11-25\"");
        handshake.reply(&result);
        server.take_held("kept").reply(r#"{"kept":true}"#);
        assert_eq!(kept.response().result()["kept"], true);
        expect_echo(&gateway, &session);
        assert_eq!(server.count(|seen| seen.is_held("cancelled")), 1);
    });
}

/// A session that ends while it is being brought back ends on both sides.
#[test]
fn end_of_the_session_while_it_is_brought_back() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (session, _) = open(&gateway, &server);
        let mut raw = send(&gateway, &hold(&session, "1", "k").set("Accept", JSON));
        let call = server.take_held("k");
        server.hold(|seen| seen.is("initialize"));
        server.forget_sessions();
        forgotten(call);
        let handshake = server.take("the new handshake", |seen| seen.is("initialize"));
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        let response = raw.response();
        if response.status == 200 {
            let reason = &response.message()["error"]["data"]["reason"];
            assert_eq!(reason, "session_ended", "{response}");
        } else {
            expect_gone(&response);
        }
        // Either the handshake is cut off, or what it brings is ended at once.
        let second = handshake.given.clone().expect("a session");
        if handshake.is_cut() {
            drop(handshake);
        } else {
            let result = support::http_server::initialize_result("\"2025-11-25\"");
            handshake.reply(&result);
        }
        wait_until("nothing is left", || {
            metrics.sum("ringway_sessions", &[]) == 0.0
                && metrics.sum("ringway_calls_in_flight", &[]) == 0.0
        });
        assert_eq!(server.count(|seen| seen.is_held("k")), 1);
        let _ = second;
    });
}

/// Sessions forget one by one, all are brought back, and nothing is mixed up.
#[test]
fn many_sessions_are_brought_back_at_once() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let sessions: Vec<Session> = (0..16).map(|_| Session::open(&gateway)).collect();
        for round in 1..4 {
            server.forget_sessions();
            std::thread::scope(|scope| {
                for (owner, session) in sessions.iter().enumerate() {
                    for caller in 0..3 {
                        let gateway = &gateway;
                        scope.spawn(move || {
                            let nonce = format!("{owner} {caller} {round}");
                            let arguments = json!({ "message": nonce }).to_string();
                            let id = format!("\"{caller}\"");
                            let response = gateway.ask(&session.call(&id, "echo", &arguments));
                            let text = &response.result()["content"][0]["text"];
                            assert_eq!(text, nonce.as_str());
                            assert_eq!(raw_member(&response.text(), "id"), Some(id));
                        });
                    }
                }
            });
            assert_eq!(handshakes(&server).len(), 16 * (round + 1));
        }
    });
}

/// 404 to the handshake itself is a wrong address, not a forgotten session.
#[test]
fn not_found_at_the_first_handshake_is_an_error() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        server.on_first(
            |_| true,
            |exchange| exchange.status("404 Not Found", None, ""),
        );
        let gateway = start(layout, &[], &server);
        let response = gateway.ask(&Request::post(initialize_body("\"i\"", LATEST)));
        response.expect_error(200, -32603, Some("\"i\""));
        assert_eq!(response.field("mcp-session-id"), None, "{response}");
        assert_eq!(handshakes(&server).len(), 1);
    });
}
