//! The end that an operator asks for: what is in flight finishes, nothing new begins, then the server ends
//! and the process with it. A second signal, or the drain's own time, ends it at once.

mod support;

use std::net::TcpStream;

use rustix::process::Signal;
use support::mcp::{LATEST, initialize_body, ping_body};
use support::scripted::hold_request;
use support::{
    Gateway, Layout, Raw, Request, Response, Scratch, Script, Session, Upstream, on_both_drivers,
    on_every_layout, process_runs, wait_until,
};

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

/// Waits until nobody is let in any more: from then on every shard drains or is about to.
fn wait_until_closed(gateway: &Gateway) {
    wait_until("the listener is closed", || {
        TcpStream::connect(gateway.address).is_err()
    });
}

#[track_caller]
fn expect_draining(response: &Response, id: &str) {
    let error = response.expect_error(200, -32603, Some(id));
    assert_eq!(error["data"]["reason"], "draining", "{response}");
}

/// Nobody new is let in, who is idle is sent away, who waits for an answer gets it.
#[test]
fn calls_in_flight_finish_while_nothing_new_begins() {
    on_every_layout(|layout| {
        // The first gate opens for a call that holds the server's answer back until the drain has begun.
        let scratch = Scratch::new();
        let gate = scratch.path("gate");
        let mut gateway = scripted(layout, &[]);
        let session = Session::open(&gateway);
        let mut idle: Vec<Raw> = (0..4).map(|_| gateway.connect()).collect();
        let mut used = gateway.connect();
        assert_eq!(used.ask(&session.post(ping_body("1"))).status, 200);
        idle.push(used);
        let (mut json, mut sse, mut pipelined) =
            (gateway.connect(), gateway.connect(), gateway.connect());
        let stall = |id: &str| {
            let arguments = serde_json::json!({ "path": gate }).to_string();
            session.call(id, "stall", &arguments)
        };
        json.send(stall("1").set("Accept", "application/json").bytes());
        sse.send(stall("2").set("Accept", "text/event-stream").bytes());
        pipelined.send(stall("3").bytes());
        pipelined.send(session.call("4", "echo", "{}").bytes());
        // A connection whose request is not read yet is idle, and ends.
        for connection in [&json, &sse, &pipelined] {
            connection.wait_until_read();
        }
        wait_until("the server has a call", || {
            std::fs::exists(format!("{gate}.on")).expect("ours")
        });
        gateway.signal(Signal::TERM);
        wait_until_closed(&gateway);
        for connection in &mut idle {
            connection.expect_end();
        }
        assert!(gateway.runs(), "it ended over calls in flight");
        std::fs::write(&gate, "").expect("ours");
        for (connection, id) in [(&mut json, "1"), (&mut sse, "2")] {
            let response = connection.response();
            assert_eq!(response.result()["stalled"], true, "{response}");
            assert_eq!(response.raw_id().as_deref(), Some(id));
            connection.expect_end();
        }
        let response = pipelined.response();
        assert_eq!(response.result()["stalled"], true, "{response}");
        // That answer said that it is the last one: the client asks elsewhere.
        assert!(response.lists("connection", "close"), "{response}");
        pipelined.expect_end();
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
    });
}

/// A client that is told `connection: close` opens a new connection for its next call, and elsewhere.
#[test]
fn answer_of_a_call_in_flight_says_that_the_connection_closes() {
    on_every_layout(|layout| {
        let scratch = Scratch::new();
        let gate = scratch.path("gate");
        let mut gateway = scripted(layout, &[]);
        let session = Session::open(&gateway);
        let arguments = serde_json::json!({ "path": gate }).to_string();
        let mut connection = gateway.connect();
        let stall = session.call("1", "stall", &arguments);
        connection.send(stall.set("Accept", "application/json").bytes());
        wait_until("the server has the call", || {
            std::fs::exists(format!("{gate}.on")).expect("ours")
        });
        gateway.signal(Signal::TERM);
        wait_until_closed(&gateway);
        std::fs::write(&gate, "").expect("ours");
        let response = connection.response();
        assert_eq!(response.result()["stalled"], true, "{response}");
        assert!(response.lists("connection", "close"), "{response}");
        connection.expect_end();
        assert_eq!(gateway.wait().code(), Some(0));
    });
}

/// On a connection whose request was under way when the drain began, a call, a handshake and a ping are
/// answered with what they are told from then on.
#[test]
fn requests_under_way_when_the_drain_begins_are_told_so() {
    on_every_layout(|layout| {
        let mut gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        // Keeps the drain from ending.
        let mut held = script.hold(&session, "\"held\"", "held");
        drop(script);
        let halves = [
            session.call("1", "echo", "{}"),
            Request::post(initialize_body("2", LATEST)),
            session.post(ping_body("3")),
        ]
        .map(|request| {
            let bytes = request.bytes();
            let (first, rest) = bytes.split_at(bytes.len() - 5);
            let mut connection = gateway.connect();
            connection.send(first);
            connection.wait_until_read();
            (connection, rest.to_vec())
        });
        let mut halves = halves.into_iter().map(|(mut connection, rest)| {
            wait_until_closed(&gateway);
            connection.send(&rest);
            (connection.response(), connection)
        });
        gateway.signal(Signal::TERM);
        let (response, mut connection) = halves.next().expect("three");
        expect_draining(&response, "1");
        assert!(response.lists("connection", "close"), "{response}");
        connection.expect_end();
        let (response, mut connection) = halves.next().expect("three");
        expect_draining(&response, "2");
        assert!(response.field("mcp-session-id").is_none(), "{response}");
        connection.expect_end();
        let (response, mut connection) = halves.next().expect("three");
        assert_eq!(response.status, 200, "{response}");
        connection.expect_end();
        drop(halves);
        // The held call is the only one left; a second signal ends the wait for it.
        assert!(gateway.runs());
        gateway.signal(Signal::TERM);
        if let Some(response) = held.next(false) {
            response.expect_error(200, -32603, Some("\"held\""));
        }
        held.expect_end();
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
    });
}

/// The order that loses nothing: clients first, then the server, by closing its stdin.
#[test]
fn server_ends_after_the_last_call_and_in_order() {
    on_every_layout(|layout| {
        let scratch = Scratch::new();
        let journal = scratch.path("journal");
        let arguments = ["--journal", &journal];
        let mut gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let pid = script.pid();
        let mut busy = script.hold(&session, "1", "k");
        // A release that is half sent when the drain begins would be refused: it is held back by the server.
        let gate = scratch.path("gate");
        let mut stalled = gateway.connect();
        let stall = serde_json::json!({ "path": gate }).to_string();
        stalled.send(session.call("2", "stall", &stall).bytes());
        wait_until("the server has the call", || {
            std::fs::exists(format!("{gate}.on")).expect("ours")
        });
        drop(script);
        gateway.signal(Signal::TERM);
        wait_until_closed(&gateway);
        let events = std::fs::read_to_string(&journal).expect("ours");
        assert!(!events.contains("eof") && process_runs(pid), "{events}");
        std::fs::write(format!("{gate}.speak"), "").expect("ours");
        assert_eq!(busy.response().result()["released"], "k");
        std::fs::write(&gate, "").expect("ours");
        assert_eq!(stalled.response().result()["stalled"], true);
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
        assert!(!process_runs(pid));
        let events = std::fs::read_to_string(&journal).expect("ours");
        assert!(events.ends_with("eof\n"), "{events}");
    });
}

/// A call that never ends must not keep the operator waiting for ever.
#[test]
fn drain_ends_with_its_time_although_a_call_is_in_flight() {
    on_every_layout(|layout| {
        for flags in [vec!["--drain-timeout", "500ms"], vec![]] {
            let mut gateway = scripted(layout, &flags);
            let script = Script::new(&gateway);
            let session = Session::open(&gateway);
            let accepts = ["application/json", "text/event-stream"];
            let mut held: Vec<Raw> = accepts
                .iter()
                .enumerate()
                .map(|(number, accept)| {
                    let id = format!("\"h{number}\"");
                    let request = hold_request(&session, &id, &format!("k{number}"));
                    script.hold_request(&request.set("Accept", accept), &format!("k{number}"))
                })
                .collect();
            drop(script);
            gateway.signal(Signal::TERM);
            wait_until_closed(&gateway);
            if flags.is_empty() {
                assert!(gateway.runs(), "it did not wait for its calls");
                gateway.signal(Signal::INT);
            }
            for (number, connection) in held.iter_mut().enumerate() {
                if number == 0 && !flags.is_empty() {
                    expect_draining(&connection.response(), "\"h0\"");
                }
                // Told or cut off: never left hanging, and never given a result.
                else if number == 0
                    && let Some(response) = connection.next(false)
                {
                    response.expect_error(200, -32603, Some("\"h0\""));
                }
                connection.drain();
            }
            assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
        }
    });
}

/// A closed terminal or a log rotation sends SIGHUP: it means nothing yet, and least of all the end.
#[test]
fn hangup_is_ignored() {
    on_every_layout(|layout| {
        let mut gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut held = script.hold(&session, "1", "k");
        for _ in 0..5 {
            gateway.signal(Signal::HUP);
            assert_eq!(gateway.ask(&session.call("2", "echo", "{}")).status, 200);
        }
        script.release("k");
        assert_eq!(held.response().result()["released"], "k");
        let mut held = script.hold(&session, "1", "k2");
        drop(script);
        // Nor does it count as the second signal.
        gateway.signal(Signal::TERM);
        wait_until_closed(&gateway);
        gateway.signal(Signal::HUP);
        let before = gateway.stderr.text();
        assert!(!before.contains("ending at once"), "{before}");
        assert!(gateway.runs());
        gateway.signal(Signal::TERM);
        let _ = held.next(false);
        assert_eq!(gateway.wait().code(), Some(0));
    });
}

/// Without calls in flight there is nothing to wait for, whatever clients do with their connections.
#[test]
fn idle_connections_and_half_a_head_do_not_keep_the_gateway() {
    on_both_drivers(|layout| {
        let mut gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut half = gateway.connect();
        let head = session.post(ping_body("1")).head();
        half.send(&head[..20]);
        half.wait_until_read();
        let mut idle = gateway.connect();
        gateway.signal(Signal::TERM);
        idle.expect_end();
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
        half.drain();
    });
}

/// The server may die while the last calls finish: they are told, it is not started again, and the gateway
/// still ends well.
#[test]
fn death_of_the_server_during_the_drain_answers_the_last_calls() {
    on_every_layout(|layout| {
        let scratch = Scratch::new();
        let journal = scratch.path("journal");
        let arguments = ["--journal", &journal];
        let mut gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let pid = script.pid();
        let mut held = script.hold(&session, "1", "k");
        drop(script);
        gateway.signal(Signal::TERM);
        wait_until_closed(&gateway);
        support::process::kill(pid);
        let response = held.response();
        let error = response.expect_error(200, -32603, Some("1"));
        assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
        held.expect_end();
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
        let events = std::fs::read_to_string(&journal).expect("ours");
        assert_eq!(events.matches("start").count(), 1, "{events}");
    });
}

/// A stop that comes while the server is down waits for nobody.
#[test]
fn stop_between_two_servers_ends_at_once() {
    on_both_drivers(|layout| {
        let scratch = Scratch::new();
        let journal = scratch.path("journal");
        let again = r#"["--exit-at-start","1"]"#;
        let arguments = ["--journal", &journal, "--again", again];
        let mut gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        let session = Session::open(&gateway);
        let response = gateway.ask(&session.call("1", "exit", r#"{"code":1}"#));
        assert_eq!(
            response.message()["error"]["data"]["reason"],
            "upstream_down"
        );
        gateway
            .stderr
            .wait_for("a pause", |log| log.contains("started again"));
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
    });
}
