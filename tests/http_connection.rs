//! One HTTP/1.1 connection over time: requests split at every byte, pipelining, half-close, persistence by
//! version, `Expect` and the deadlines. What a head may look like is in `http_framing`.

mod support;

use support::mcp::{LATEST, initialize_body, notification_body, ping_body};
use support::{Gateway, Layout, Raw, Request, Session, Upstream, on_both_drivers, on_every_layout};

/// Reads end anywhere: in the middle of a line's end, of a number, of the body.
#[test]
fn request_may_be_split_at_every_byte() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let call = session.call("\"split\"", "echo", r#"{"message":"m\u00e9"}"#);
        for request in [call.clone(), call.chunked(&[3, 1, 20])] {
            let wire = request.bytes();
            // One connection for all: leftovers of one request would spoil the next.
            let mut connection = gateway.connect();
            for at in 1..wire.len() {
                connection.send(&wire[..at]);
                connection.let_it_read();
                connection.send(&wire[at..]);
                let response = connection.response();
                assert_eq!(
                    response.result()["content"][0]["text"],
                    "m\u{e9}",
                    "split at {at}"
                );
                assert_eq!(
                    response.raw_id().as_deref(),
                    Some("\"split\""),
                    "split at {at}"
                );
            }
        }
    });
}

/// The slowest honest sender: every byte in a read of its own; malformed ones must be refused all the same.
#[test]
fn request_may_come_byte_by_byte() {
    on_both_drivers(|layout| {
        // On a busy machine so many steps may take longer than a head is allowed to.
        let patience = ["--header-timeout", "5m", "--body-timeout", "5m"];
        let gateway = layout.start(&patience, Upstream::Demo);
        let session = Session::open(&gateway);
        let trickle = |connection: &mut Raw, wire: &[u8]| {
            for byte in wire {
                connection.send([*byte]);
                connection.let_it_read();
            }
        };
        let mut connection = gateway.connect();
        for request in [
            session.post(ping_body("1")),
            session.post(ping_body("1")).chunked(&[1, 2, 3]),
        ] {
            trickle(&mut connection, &request.bytes());
            assert_eq!(connection.response().status, 200);
        }
        for (wire, status) in [
            (
                &b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: a\rb"[..],
                400,
            ),
            (b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: a\n", 400),
            (b"POST /mcp HTTP/9.9\r\n\r\n", 505),
        ] {
            let mut connection = gateway.connect();
            for byte in wire {
                connection.send_to_the_wary([*byte]);
            }
            connection.send_to_the_wary("\r\n\r\n");
            assert_eq!(connection.response().status, status);
        }
    });
}

/// Clients and proxies pipeline; answers come in the order of the requests, whatever each one is.
#[test]
fn pipelined_requests_are_answered_in_order() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut wire = Vec::new();
        let mut expected = Vec::new();
        for number in 0..60 {
            let id = number.to_string();
            let request = match number % 6 {
                0 => session.call(&id, "slow", r#"{"steps":2,"interval_ms":1}"#),
                1 => session
                    .call(&id, "echo", r#"{"message":"m"}"#)
                    .chunked(&[5]),
                2 => session.post(notification_body("notifications/x", "{}")),
                3 => session
                    .post(ping_body(&id))
                    .set("Accept", "text/event-stream"),
                4 => session.post(ping_body(&id)).without("Mcp-Session-Id"),
                _ => session
                    .post(ping_body(&id))
                    .set("Content-Type", "text/plain"),
            };
            wire.extend_from_slice(&request.bytes());
            let status = [200, 200, 202, 200, 400, 415][number % 6];
            expected.push((status, (![2, 5].contains(&(number % 6))).then_some(number)));
        }
        let mut connection = gateway.connect();
        connection.send(&wire);
        for (status, id) in expected {
            let response = connection.response();
            assert_eq!(response.status, status, "{id:?}: {response}");
            if let Some(id) = id {
                assert_eq!(response.message()["id"], id, "{response}");
            }
        }
        // After a request that asks to close nothing more is read.
        let last = session.post(ping_body("1")).add("Connection", "close");
        connection.send([last.bytes(), session.post(ping_body("2")).bytes()].concat());
        let response = connection.response();
        assert_eq!(response.message()["id"], 1);
        assert!(response.lists("connection", "close"), "{response}");
        connection.expect_end();
    });
}

/// A client may end its sending half and still wait for answers (`nc`, some proxies).
#[test]
fn half_closed_connection_gets_its_answers() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let slow = session.call("1", "slow", r#"{"steps":3,"interval_ms":20}"#);
        let mut connection = gateway.connect();
        connection.send([slow.bytes(), session.post(ping_body("2")).bytes()].concat());
        connection.half_close();
        assert_eq!(connection.response().message()["id"], 1);
        assert_eq!(connection.response().message()["id"], 2);
        connection.expect_end();
        // An end inside a request is no request: nothing may be executed or answered as one.
        for cut in [1, 40] {
            let wire = slow.bytes();
            let mut connection = gateway.connect();
            connection.send(&wire[..wire.len() - cut]);
            connection.half_close();
            if let Some(response) = connection.next(false) {
                assert_eq!(response.status, 400, "{response}");
            }
            connection.expect_end();
        }
        let mut idle = gateway.connect();
        idle.half_close();
        idle.expect_end();
    });
}

/// Connection persistence by RFC 9112, section 9.3.
#[test]
fn connection_persists_as_its_version_says() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let ping = session.post(ping_body("1"));
        let closes = |request: &Request| {
            let mut connection = gateway.connect();
            let response = connection.ask(request);
            assert_eq!(response.status, 200, "{response}");
            assert_eq!(response.message()["id"], 1, "{response}");
            connection.expect_end();
            response
        };
        let stays = |request: &Request| {
            let mut connection = gateway.connect();
            for _ in 0..3 {
                let response = connection.ask(request);
                assert_eq!(response.status, 200, "{response}");
                assert!(!response.lists("connection", "close"), "{response}");
            }
        };
        stays(&ping);
        stays(&ping.clone().add("Connection", "keep-alive"));
        let response = closes(&ping.clone().add("Connection", "close"));
        assert!(response.lists("connection", "close"), "{response}");
        closes(&ping.clone().add("Connection", "x, Close"));
        closes(&ping.clone().version("HTTP/1.0"));
        stays(
            &ping
                .clone()
                .version("HTTP/1.0")
                .add("Connection", "keep-alive"),
        );
        // No chunks on 1.0: its event stream ends with the connection.
        let stream = ping
            .clone()
            .version("HTTP/1.0")
            .set("Accept", "text/event-stream");
        let response = closes(&stream);
        assert!(response.is_sse(), "{response}");
        // A refusal that leaves the framing intact leaves the connection usable.
        let mut connection = gateway.connect();
        connection
            .ask(&ping.clone().set("Content-Type", "text/plain"))
            .expect_refusal(415);
        assert_eq!(connection.ask(&ping).status, 200);
    });
}

/// curl and others wait for 100 before they send a large body, and must not wait in vain.
#[test]
fn expect_continue_is_honoured_before_the_body_and_skipped_when_refused() {
    on_every_layout(|layout| {
        let gateway = layout.start(&["--max-body", "5000"], Upstream::Demo);
        let session = Session::open(&gateway);
        let ping = session.post(ping_body("1")).add("Expect", "100-continue");
        let mut connection = gateway.connect();
        for request in [ping.clone(), ping.clone().chunked(&[4]), ping.clone()] {
            let head = request.head();
            connection.send(&head);
            assert_eq!(connection.response().status, 100);
            connection.send(&request.bytes()[head.len()..]);
            assert_eq!(connection.response().message()["id"], 1);
        }
        // The body came along: 100 may be left out, the answer may not.
        connection.send(ping.bytes());
        let mut response = connection.response();
        if response.status == 100 {
            response = connection.response();
        }
        assert_eq!(response.message()["id"], 1);
        // Refusals that need no body come instead of 100.
        for (request, status) in [
            (ping.clone().set("Content-Type", "text/plain"), 415),
            (ping.clone().set("Origin", "https://evil.example"), 403),
            (ping.clone().target("/elsewhere"), 404),
            (
                session.post("x".repeat(5001)).add("Expect", "100-continue"),
                413,
            ),
        ] {
            let mut connection = gateway.connect();
            connection.send(request.head());
            let response = connection.response();
            assert_eq!(response.status, status, "{response}");
        }
        // HTTP/1.0 knows no 100.
        let mut connection = gateway.connect();
        connection.send(ping.version("HTTP/1.0").bytes());
        assert_eq!(connection.response().status, 200);
    });
}

/// Each deadline has its own flag, so each is tried alone, the others far away.
#[test]
fn slow_senders_meet_their_deadline() {
    on_every_layout(|layout| {
        let call = |layout: Layout, flag: &str, wire: &[u8]| {
            let gateway = layout.start(&[flag, "300ms"], Upstream::Demo);
            let mut connection = gateway.connect();
            connection.send(wire);
            let answer = connection.next(false);
            connection.expect_end();
            still_serves(&gateway);
            answer
        };
        let request = Request::post(ping_body("1"));
        let head = request.head();
        let answer = call(layout, "--header-timeout", &head[..head.len() - 2]);
        answer
            .expect("an answer to half a head")
            .expect_refusal(408);
        let answer = call(layout, "--body-timeout", &request.bytes()[..head.len() + 3]);
        answer
            .expect("an answer to half a body")
            .expect_refusal(408);
        let chunked = request.chunked(&[4]);
        let cut = chunked.head().len() + 5;
        let answer = call(layout, "--body-timeout", &chunked.bytes()[..cut]);
        answer
            .expect("an answer to half a chunk")
            .expect_refusal(408);
        // Nobody asked anything on an idle connection, so nothing is answered.
        let answer = call(layout, "--idle-timeout", b"");
        assert!(answer.is_none(), "{answer:?}");
    });
}

/// A kept connection that goes idle is closed without a word: a client would take one for its next answer.
#[test]
fn idle_kept_connection_is_closed_silently() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&["--idle-timeout", "300ms"], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        // A call longer than the idle time-out is not idleness.
        let slow = session.call("1", "slow", r#"{"steps":4,"interval_ms":200}"#);
        assert_eq!(connection.ask(&slow).status, 200);
        assert_eq!(connection.ask(&session.post(ping_body("1"))).status, 200);
        connection.expect_end();
    });
}

#[track_caller]
fn still_serves(gateway: &Gateway) {
    let response = gateway.ask(&Request::post(initialize_body("1", LATEST)));
    assert_eq!(response.status, 200, "{response}");
}
