//! Every bound of the gateway, reached on purpose: what is over it gets the answer that the contract names,
//! what is under it does not notice, and the place is free again afterwards. Crowds have a suite of their own.

mod support;

use std::time::Duration;

use serde_json::json;
use support::mcp::{LATEST, initialize_body, ping_body, request_body};
use support::{
    Gateway, Layout, Raw, Request, Response, Scratch, Script, Session, Upstream, on_every_layout,
    wait_until,
};

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

/// A full gateway says so to the next client, and takes it once there is room.
#[test]
fn connections_over_the_limit_get_503_and_a_place_when_one_is_free() {
    on_every_layout(|layout| {
        // Connections land on a shard at random: the limit is each shard's share.
        let gateway = layout.start(&["--max-connections", "8"], Upstream::Demo);
        let mut open: Vec<Raw> = Vec::new();
        let mut refused = Vec::new();
        wait_until("a connection is refused", || {
            let mut connection = gateway.connect();
            connection.send_to_the_wary(Request::post(initialize_body("1", LATEST)).bytes());
            let response = connection.response();
            if response.status == 200 {
                open.push(connection);
            } else {
                refused.push((connection, response));
            }
            !refused.is_empty()
        });
        assert!(open.len() <= 8, "{} connections are open", open.len());
        let (mut connection, response) = refused.remove(0);
        response.expect_refusal(503);
        assert!(response.field("retry-after").is_some(), "{response}");
        connection.drain();
        for connection in &mut open {
            let again = connection.ask(&Request::post(initialize_body("2", LATEST)));
            assert_eq!(again.status, 200, "{again}");
        }
        open.clear();
        wait_until("there is room again", || {
            let mut connection = gateway.connect();
            connection.send_to_the_wary(Request::post(initialize_body("3", LATEST)).bytes());
            connection
                .next(false)
                .is_some_and(|response| response.status == 200)
        });
    });
}

/// Sessions are memory that a client can leave behind: bounded, and freed by DELETE.
#[test]
fn sessions_over_the_limit_get_503_and_a_place_when_one_ends() {
    on_every_layout(|layout| {
        let limit = 6 * layout.shards;
        let gateway = layout.start(&["--max-sessions", &limit.to_string()], Upstream::Demo);
        let initialize = Request::post(initialize_body("1", LATEST));
        let mut open = Vec::new();
        let mut refused = None;
        wait_until("a session is refused", || {
            let response = gateway.ask(&initialize);
            match response.status {
                200 => open.push(session_of(&response)),
                _ => refused = Some(response),
            }
            refused.is_some()
        });
        assert!(open.len() <= limit, "{} sessions are open", open.len());
        let refused = refused.expect("set by the wait above");
        let error = refused.expect_error(503, -32603, Some("1"));
        assert_eq!(error["data"]["reason"], "overloaded", "{refused}");
        assert!(refused.field("retry-after").is_some(), "{refused}");
        assert!(refused.field("mcp-session-id").is_none(), "{refused}");
        for session in &open {
            assert_eq!(gateway.ask(&session.post(ping_body("1"))).status, 200);
            assert_eq!(gateway.ask(&session.delete()).status, 204);
        }
        assert_eq!(gateway.ask(&initialize).status, 200);
    });
}

fn session_of(response: &Response) -> Session {
    Session {
        id: response
            .field("mcp-session-id")
            .expect("a session")
            .to_owned(),
        version: LATEST.to_owned(),
    }
}

/// A client that opens sessions and never uses them must not keep them for half an hour.
#[test]
fn session_that_is_never_used_ends_early_and_a_used_one_does_not() {
    on_every_layout(|layout| {
        let gateway = layout.start(&["--session-unused-ttl", "1s"], Upstream::Demo);
        let used = Session::open(&gateway);
        wait_until_ended(&gateway, || {
            session_of(&gateway.ask(&Request::post(initialize_body("1", LATEST))))
        });
        assert_eq!(gateway.ask(&used.post(ping_body("1"))).status, 200);
    });
}

/// Waits until a session that nobody uses is gone. Asking would be use, so each is left in peace for a
/// while before it is asked once; `open` gives a new one for each longer while.
fn wait_until_ended(gateway: &Gateway, open: impl Fn() -> Session) {
    for seconds in [2, 3, 5, 8, 13] {
        let session = open();
        std::thread::sleep(Duration::from_secs(seconds));
        let response = gateway.ask(&session.post(ping_body("1")));
        if response.status == 404 {
            response.expect_error(404, -32001, Some("1"));
            return;
        }
    }
    panic!("the session never ends");
}

/// Silence ends a session, a call in flight is not silence, and neither does the end take the call's id.
#[test]
fn silent_session_ends_but_not_under_a_call_in_flight() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &["--session-ttl", "1s"]);
        let held = Script::new(&gateway);
        let busy = Session::open(&gateway);
        let mut call = held.hold(&busy, "1", "busy");
        wait_until_ended(&gateway, || Session::open(&gateway));
        // The script's own session has ended as well by now; a new one frees the call.
        Script::new(&gateway).release("busy");
        assert_eq!(call.response().result()["released"], "busy");
        // The answer counts as use: the session still lives.
        assert_eq!(call.ask(&busy.post(ping_body("2"))).status, 200);
    });
}

/// Bodies that come slowly are the cheapest way to fill a memory: over the budget a body is refused, with
/// a time to come back, and those that were there first are finished.
#[test]
fn slow_bodies_over_the_budget_get_503_and_the_first_ones_finish() {
    on_every_layout(|layout| {
        // Bodies get half of it.
        let flags = ["--max-buffered", "8MiB", "--pin", "off"];
        let gateway = layout.start(&flags, Upstream::Demo);
        let other = Session::open(&gateway);
        let session = Session::open(&gateway);
        let message = "m".repeat(900_000);
        let arguments = json!({ "message": message }).to_string();
        let mut slow: Vec<(Raw, Vec<u8>)> = Vec::new();
        let mut refused = Vec::new();
        for number in 0..(20 * layout.shards) {
            let request = session.call(&number.to_string(), "echo", &arguments);
            let bytes = request.bytes();
            let (first, rest) = bytes.split_at(800_000);
            let mut connection = gateway.connect();
            connection.send_to_the_wary(first);
            slow.push((connection, rest.to_vec()));
        }
        wait_until("bodies are refused", || {
            for number in (0..slow.len()).rev() {
                if slow[number].0.has_something() {
                    refused.push(slow.swap_remove(number).0.response());
                }
            }
            // Five times 800 KB fit into 4 MiB, six times do not.
            slow.len() <= 5 * layout.shards
        });
        for response in &refused {
            response.expect_refusal(503);
            assert!(response.field("retry-after").is_some(), "{response}");
            assert_eq!(response.json()["error"]["data"]["reason"], "overloaded");
        }
        assert_eq!(
            gateway
                .ask(&other.call("1", "echo", r#"{"message":"m"}"#))
                .status,
            200
        );
        println!(
            "figure: {} of {} bodies of 900 KB fit --max-buffered 8 MiB, {layout:?}",
            slow.len(),
            20 * layout.shards
        );
        assert!(!slow.is_empty(), "not one body was let in");
        let mut finished = 0;
        for (mut connection, rest) in slow {
            connection.send_to_the_wary(&rest);
            // The last part may find the room taken, and an answer that needs room takes that of the largest.
            let response = connection.next(false);
            let Some(response) = response.filter(|response| response.status != 503) else {
                continue;
            };
            let text = response.result()["content"][0]["text"].clone();
            assert!(text == message.as_str(), "another body's text");
            finished += 1;
        }
        assert!(finished > layout.shards, "only {finished} were finished");
        // All room is free again.
        let request = session.call("1", "echo", &arguments);
        assert_eq!(gateway.ask(&request).status, 200);
    });
}

/// One more answer than the budget has room for: the reader with the largest backlog goes, and only it.
#[test]
fn reader_with_the_largest_backlog_goes_and_nobody_else() {
    on_every_layout(|layout| {
        // Room for the one that does not read, not for it and a burst of others.
        let flags = ["--max-buffered", "6020000"];
        let gateway = scripted(layout, &flags);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let idle: Vec<Raw> = (0..20)
            .map(|_| {
                let mut connection = gateway.connect();
                assert_eq!(connection.ask(&session.post(ping_body("1"))).status, 200);
                connection
            })
            .collect();
        let key = "k".repeat(2_000);
        let mut held: Vec<Raw> = (0..200)
            .map(|number| {
                let mut connection = gateway.connect();
                let arguments = json!({ "key": format!("{number}-{key}") }).to_string();
                let id = format!("\"h{number}\"");
                connection.send(session.call(&id, "hold", &arguments).bytes());
                connection
            })
            .collect();
        script.wait_held_count(200);
        let mut lazy = Raw::connect_lazily(gateway.address);
        let pad = session.call("\"lazy\"", "pad", r#"{"size":6000000}"#);
        lazy.send(pad.bytes());
        // The server answers in order, so its answer to this shows that the large one has come before.
        assert_eq!(gateway.ask(&session.call("1", "echo", "{}")).status, 200);
        script.tool("release_all", &json!({}));
        for (number, connection) in held.iter_mut().enumerate() {
            let response = connection
                .next(false)
                .unwrap_or_else(|| panic!("the connection of call {number} was closed"));
            let expected = format!("{number}-{key}");
            assert!(
                response.result()["released"] == expected.as_str(),
                "call {number}"
            );
        }
        for (number, mut connection) in idle.into_iter().enumerate() {
            connection.send_to_the_wary(session.post(ping_body("2")).bytes());
            let response = connection
                .next(false)
                .unwrap_or_else(|| panic!("the idle connection {number} was closed"));
            assert_eq!(response.status, 200);
        }
    });
}

/// The limit of all calls is shared by all sessions, and one session's limit is its own.
#[test]
fn calls_over_either_limit_are_refused_inside_the_session() {
    on_every_layout(|layout| {
        let scratch = Scratch::new();
        let journal = scratch.path("journal");
        let limit = 20 * layout.shards;
        let flags = [
            "--max-calls",
            &limit.to_string(),
            "--max-calls-per-session",
            "5",
        ];
        let gateway = layout.start(
            &flags,
            Upstream::Python("scripted.py", &["--journal", &journal]),
        );
        let sessions: Vec<Session> = (0..(12 * layout.shards))
            .map(|_| Session::open(&gateway))
            .collect();
        let mut pending = Vec::new();
        for (number, session) in sessions.iter().enumerate() {
            for id in 0..7 {
                let mut connection = gateway.connect();
                let arguments = json!({ "key": format!("{number}-{id}") }).to_string();
                connection.send(session.call(&id.to_string(), "hold", &arguments).bytes());
                connection.let_it_read();
                pending.push((id, connection));
            }
        }
        let mut refused = 0;
        wait_until("what is over the limits is refused", || {
            pending.retain_mut(|(id, connection)| {
                if !connection.has_something() {
                    return true;
                }
                let response = connection.response();
                let error = response.expect_error(200, -32603, Some(&id.to_string()));
                assert_eq!(error["data"]["reason"], "overloaded", "{response}");
                // The connection is not to blame, and lives on.
                assert_eq!(
                    connection.ask(&sessions[0].post(ping_body("1"))).status,
                    200
                );
                refused += 1;
                false
            });
            pending.len() <= limit
        });
        // No session holds more than its share, and the gateway holds what its limit allows.
        assert!(refused >= 2 * sessions.len(), "{refused} refused");
        for session in &sessions {
            assert_eq!(gateway.ask(&session.delete()).status, 204);
        }
        for (id, connection) in &mut pending {
            let response = connection.response();
            let error = response.expect_error(200, -32603, Some(&id.to_string()));
            let reason = &error["data"]["reason"];
            assert!(
                reason == "session_ended" || reason == "overloaded",
                "{response}"
            );
        }
        let fresh = Session::open(&gateway);
        assert!(gateway.ask(&fresh.call("1", "echo", "{}")).result()["content"].is_array());
    });
}

/// An id over the limit is not a readable id; a token over it is refused with the id.
#[test]
fn ids_and_tokens_over_the_limit_are_refused() {
    on_every_layout(|layout| {
        let gateway = layout.start(&["--max-id", "16"], Upstream::Demo);
        let session = Session::open(&gateway);
        let ask = |id: &str, token: &str| {
            let meta = format!(
                r#"{{"name":"echo","arguments":{{"message":"m"}},"_meta":{{"progressToken":{token}}}}}"#
            );
            gateway.ask(&session.post(request_body(id, "tools/call", &meta)))
        };
        let (fits, over) = ("\"12345678901234\"", "\"123456789012345\"");
        assert!(ask(fits, fits).message()["result"].is_object());
        ask(over, "1").expect_error(400, -32600, None);
        ask("7", over).expect_error(200, -32602, Some("7"));
        assert!(ask("8", "8").message()["result"].is_object());
    });
}
