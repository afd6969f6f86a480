//! The death of the server: who is told, what lives on, and what comes after. The second child waits at a
//! gate, or behaves otherwise than the first, so that every order of events is made on purpose.

mod support;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use support::gateway::{pid_of, python, server_script};
use support::life::Life;
use support::mcp::{LATEST, initialize_body, ping_body, raw_member};
use support::process::{cpu_ms, kill};
use support::scripted::{hold_request, send_arguments};
use support::{
    Gateway, Raw, Request, Response, Script, Session, Upstream, on_both_drivers, on_every_layout,
    process_runs, wait_until,
};

fn is_down(response: &Response) -> bool {
    assert_eq!(response.status, 200, "{response}");
    let error = &response.message()["error"];
    if error.is_object() {
        assert_eq!(error["code"], -32603, "{response}");
        assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
    }
    error.is_object()
}

#[track_caller]
fn expect_down(response: &Response, id: &str) {
    assert_eq!(response.raw_id().as_deref(), Some(id), "{response}");
    assert!(is_down(response), "{response}");
}

/// Waits until calls of this session are answered by the server again.
fn wait_until_up(gateway: &Gateway, session: &Session) {
    wait_until("the server answers again", || {
        !is_down(&gateway.ask(&session.call("\"up?\"", "echo", "{}")))
    });
}

fn kill_server(pid: u32) {
    kill_process(pid_of(pid), Signal::KILL).expect("the server runs");
}

/// The worst moment: a hundred calls in flight. Each is told at once (the new child is still shut behind its
/// gate when the last of them is), the new child gets none of them, and every session is what it was.
#[test]
fn hundred_calls_are_answered_before_the_new_server_speaks_and_sessions_live_on() {
    on_every_layout(|layout| {
        let life = Life::new();
        let gateway = life.start_gated(layout);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..10).map(|_| Session::open(&gateway)).collect();
        let mut pending: Vec<(String, Raw)> = Vec::new();
        for (number, session) in sessions.iter().enumerate() {
            for id in 0..10 {
                let request = hold_request(session, &id.to_string(), &format!("k{number}-{id}"));
                let accept = ["application/json", "text/event-stream"][id % 2];
                let mut connection = gateway.connect();
                connection.send(request.set("Accept", accept).bytes());
                pending.push((id.to_string(), connection));
            }
        }
        script.wait_held_count(100);
        let old_ids: Vec<String> = script
            .received("\"hold\"")
            .iter()
            .map(|line| raw_member(line, "id").expect("a call has an id"))
            .collect();
        assert_eq!(old_ids.len(), 100);

        kill_server(script.pid());
        for (id, connection) in &mut pending {
            expect_down(&connection.response(), id);
        }

        life.open_gate();
        wait_until_up(&gateway, &sessions[0]);
        assert_eq!(life.pids("start").len(), 2);
        for ((id, connection), session) in pending
            .iter_mut()
            .zip(sessions.iter().flat_map(|s| [s; 10]))
        {
            let request = session.call(id, "echo", r#"{"message":"alive"}"#);
            let result = connection.ask(&request).result();
            assert_eq!(result["content"][0]["text"], "alive");
        }
        assert!(
            script.received("\"hold\"").is_empty(),
            "the new child got a call of the old one"
        );
        old_ids_name_nobody(&gateway, &script, &sessions[0], &old_ids);
    });
}

/// A new child that answers what its predecessor was asked must not reach the calls of today.
fn old_ids_name_nobody(gateway: &Gateway, script: &Script<'_>, session: &Session, old: &[String]) {
    let mut held = script.hold(session, "1", "today");
    let stale: Vec<String> = old
        .iter()
        .map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"stale":true}}}}"#))
        .collect();
    let mut lines: Vec<&[u8]> = stale.iter().map(|line| line.as_bytes()).collect();
    lines.push(br#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#);
    let response = gateway.ask(&session.call("2", "send", &send_arguments(&lines)));
    assert_eq!(response.result()["good"], true, "{response}");
    script.release("today");
    assert_eq!(held.response().result()["released"], "today");
}

/// While the server is away nothing hangs: handshakes come from the last one, pings from the gateway, and
/// calls are refused at once.
#[test]
fn while_the_server_is_down_everything_is_answered_at_once() {
    on_every_layout(|layout| {
        let life = Life::new();
        let gateway = life.start_gated(layout);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let before = gateway.ask(&Request::post(initialize_body("0", LATEST)));
        let mut connection = gateway.connect();
        connection.send(session.call("1", "exit", r#"{"code":0}"#).bytes());
        expect_down(&connection.response(), "1");
        // The child stands at its gate: whatever is answered now is answered without a server.
        wait_until("the second child has started", || {
            life.pids("start").len() == 2
        });
        for number in 0..20 {
            let id = number.to_string();
            expect_down(&connection.ask(&session.call(&id, "echo", "{}")), &id);
            let list = session.post(support::mcp::request_body(&id, "tools/list", "{}"));
            expect_down(&gateway.ask(&list), &id);
            let ping = connection.ask(&session.post(ping_body(&id)));
            assert_eq!(ping.result(), json!({}));
            let during = gateway.ask(&Request::post(initialize_body("0", LATEST)));
            assert_eq!(during.body, before.body, "{during}");
            let fresh = Session::open(&gateway);
            expect_down(&gateway.ask(&fresh.call("1", "echo", "{}")), "1");
            assert_eq!(gateway.ask(&fresh.delete()).status, 204);
        }
        life.open_gate();
        wait_until_up(&gateway, &session);
        // None of what was refused was kept for the new child.
        let echoes = script.received("\"echo\"");
        assert!(
            echoes.iter().all(|line| !line.contains("tools/list")),
            "{echoes:?}"
        );
        assert!(script.received("tools/list").is_empty());
    });
}

/// What clients were promised in their handshake no longer holds: each has to make a new one.
#[test]
fn sessions_end_when_the_new_server_can_do_less() {
    on_every_layout(|layout| {
        for again in [
            ["--capabilities", r#"{"tools":{}}"#],
            ["--protocol", "2025-06-18"],
        ] {
            let life = Life::new();
            let gateway = life.start(layout, &[], &[], &again);
            let sessions: Vec<Session> = (0..8).map(|_| Session::open(&gateway)).collect();
            let exit = sessions[0].call("1", "exit", r#"{"code":1}"#);
            expect_down(&gateway.ask(&exit), "1");
            for session in &sessions {
                let call = session.call("1", "echo", "{}");
                wait_until("the session ends", || gateway.ask(&call).status == 404);
                gateway.ask(&call).expect_error(404, -32001, Some("1"));
                assert_eq!(gateway.ask(&session.delete()).status, 404);
            }
            let response = gateway.ask(&Request::post(initialize_body("0", LATEST)));
            let result = response.result();
            if again[0] == "--protocol" {
                assert_eq!(result["protocolVersion"], again[1], "{response}");
            } else {
                assert!(result["capabilities"]["logging"].is_null(), "{response}");
            }
            let fresh = Session::open(&gateway);
            assert!(!is_down(&gateway.ask(&fresh.call("1", "echo", "{}"))));
        }
    });
}

/// A new server that can do more, or calls itself something else, breaks no promise.
#[test]
fn sessions_live_on_when_the_new_server_can_do_as_much_or_more() {
    on_both_drivers(|layout| {
        let more = r#"{"tools":{"listChanged":true},"logging":{},"prompts":{}}"#;
        for again in [
            vec!["--capabilities", more],
            vec!["--server-version", "2.0", "--name", "renamed"],
        ] {
            let life = Life::new();
            let arguments = [
                "--capabilities",
                r#"{"tools":{"listChanged":true},"logging":{}}"#,
            ];
            let arguments = if again[0] == "--capabilities" {
                &arguments[..]
            } else {
                &[]
            };
            let gateway = life.start(layout, &[], arguments, &again);
            let session = Session::open(&gateway);
            expect_down(
                &gateway.ask(&session.call("1", "exit", r#"{"code":1}"#)),
                "1",
            );
            wait_until_up(&gateway, &session);
            let response = gateway.ask(&Request::post(initialize_body("0", LATEST)));
            let result = response.result();
            if again[0] == "--capabilities" {
                assert!(result["capabilities"]["prompts"].is_object(), "{response}");
            } else {
                assert_eq!(result["serverInfo"]["name"], "renamed", "{response}");
            }
        }
    });
}

/// A server that nobody can hear any more is as good as dead, though its process lives.
#[test]
fn server_that_closes_its_stdout_but_lives_is_killed_and_started_again() {
    on_every_layout(|layout| {
        let life = Life::new();
        let gateway = life.start(layout, &[], &["--ignore-term"], &[]);
        let session = Session::open(&gateway);
        let response = gateway.ask(&session.call("1", "close_stdout", "{}"));
        expect_down(&response, "1");
        wait_until_up(&gateway, &session);
        let starts = life.pids("start");
        assert_eq!(starts.len(), 2);
        wait_until("the deaf process is gone", || !process_runs(starts[0]));
        assert!(process_runs(starts[1]));
    });
}

/// What a server has started may hold its stdout open after its death, also from a session of its own.
#[test]
fn grandchild_that_holds_stdout_open_goes_with_the_server() {
    on_every_layout(|layout| {
        for option in ["--grandchild", "--grandchild-session"] {
            let life = Life::new();
            let gateway = life.start(layout, &[], &[option], &[]);
            let session = Session::open(&gateway);
            expect_down(
                &gateway.ask(&session.call("1", "exit", r#"{"code":1}"#)),
                "1",
            );
            wait_until_up(&gateway, &session);
            let grandchildren = life.pids("grandchild");
            assert_eq!(grandchildren.len(), 2, "{option}");
            wait_until("the first grandchild is gone", || {
                !process_runs(grandchildren[0])
            });
            assert!(process_runs(grandchildren[1]), "{option}");
            drop(gateway);
            wait_until("the second grandchild is gone", || {
                !process_runs(grandchildren[1])
            });
        }
    });
}

/// Every pause that the gateway has announced so far, milliseconds.
fn pauses(log: &str) -> Vec<u64> {
    let plain = without_colours(log);
    plain
        .split("pause_ms=")
        .skip(1)
        .map(|rest| {
            let end = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            rest[..end].parse().expect("digits")
        })
        .collect()
}

fn without_colours(log: &str) -> String {
    let mut plain = String::new();
    let mut rest = log;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}

/// A server that cannot live any more is tried again and again, ever less often; the gateway stays up.
#[test]
fn server_that_dies_at_each_start_is_started_with_growing_pauses() {
    on_both_drivers(|layout| {
        let life = Life::new();
        let gateway = life.start(layout, &[], &[], &["--exit-at-start", "7"]);
        let session = Session::open(&gateway);
        expect_down(
            &gateway.ask(&session.call("1", "exit", r#"{"code":1}"#)),
            "1",
        );
        let cpu_before = cpu_ms(gateway.pid());
        let log = gateway
            .stderr
            .wait_for("the fifth pause", |log| pauses(log).len() >= 5);
        assert_eq!(pauses(&log)[..5], [100, 200, 400, 800, 1_600]);
        // Each pause comes after one start that failed: no other start has happened.
        let starts = life.pids("start").len();
        assert!((5..=7).contains(&starts), "{starts} starts");
        assert!(
            log.contains('7'),
            "how the server ended is in the log: {log}"
        );
        println!(
            "figure: processor time of five failed starts {} ms",
            cpu_ms(gateway.pid()) - cpu_before
        );
        assert_eq!(gateway.ask(&session.post(ping_body("2"))).status, 200);
        expect_down(&gateway.ask(&session.call("3", "echo", "{}")), "3");
        let fresh = Session::open(&gateway);
        assert_eq!(gateway.ask(&fresh.delete()).status, 204);
    });
}

/// An upgrade takes the program away for a moment: that it cannot even be run is one more failed start.
#[test]
fn command_that_is_gone_for_a_while_is_started_when_it_is_back() {
    on_both_drivers(|layout| {
        let life = Life::new();
        let program = life.scratch.path("program");
        write_program(&program);
        let gateway = layout.start(&[], Upstream::Command(&[&program]));
        let session = Session::open(&gateway);
        std::fs::remove_file(&program).expect("ours");
        expect_down(
            &gateway.ask(&session.call("1", "exit", r#"{"code":1}"#)),
            "1",
        );
        gateway
            .stderr
            .wait_for("two failed starts", |log| pauses(log).len() >= 3);
        expect_down(&gateway.ask(&session.call("2", "echo", "{}")), "2");
        write_program(&program);
        wait_until_up(&gateway, &session);
    });
}

fn write_program(path: &str) {
    use std::os::unix::fs::PermissionsExt;
    let script = server_script("scripted.py");
    let text = format!("#!/bin/sh\nexec '{}' -S '{}'\n", python(), script.display());
    // Written aside and moved: a program that is being written cannot be run.
    let aside = format!("{path}.new");
    std::fs::write(&aside, text).expect("the scratch directory is ours");
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o755)).expect("ours");
    std::fs::rename(&aside, path).expect("ours");
}

/// A restarted child that is silent or refuses the handshake is one more failed start, not a hang.
#[test]
fn restarted_server_that_never_shakes_hands_is_replaced() {
    on_both_drivers(|layout| {
        let refusal = support::hex(
            br#"{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32602,"message":"not now"}}"#,
        );
        for again in [
            vec!["--silent"],
            vec!["--exit-on-initialize", "3"],
            vec!["--initialize", &refusal],
        ] {
            let life = Life::new();
            let flags = ["--start-timeout", "3s"];
            let gateway = life.start(layout, &flags, &["--ignore-term"], &again);
            let session = Session::open(&gateway);
            expect_down(
                &gateway.ask(&session.call("1", "exit", r#"{"code":1}"#)),
                "1",
            );
            wait_until("a third child was started", || {
                expect_down(&gateway.ask(&session.call("2", "echo", "{}")), "2");
                life.pids("start").len() >= 3
            });
            let starts = life.pids("start");
            wait_until("the second child is gone", || !process_runs(starts[1]));
        }
    });
}

/// A server that lives and does not read: what waits for it is bounded, the rest is refused, and what the
/// server says meanwhile is still heard.
#[test]
fn server_that_does_not_read_is_given_a_bounded_queue_and_still_heard() {
    on_every_layout(|layout| {
        let life = Life::new();
        let gateway = life.start(layout, &["--max-buffered", "3MiB"], &[], &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        let mut held: Vec<(String, Raw)> = (0..5)
            .map(|number| {
                let key = format!("k{number}");
                let connection =
                    script.hold(&sessions[number % 4], &format!("\"h{number}\""), &key);
                (key, connection)
            })
            .collect();
        let mut stalled = gateway.connect();
        let arguments = json!({ "path": life.gate }).to_string();
        stalled.send(sessions[0].call("\"stall\"", "stall", &arguments).bytes());
        wait_until("the server stalls", || {
            std::fs::exists(format!("{}.on", life.gate)).expect("ours")
        });
        let message_text = "m".repeat(150_000);
        let echo = |number: usize| {
            let arguments = json!({ "message": format!("{number}{message_text}") }).to_string();
            sessions[number % 4].call(&number.to_string(), "echo", &arguments)
        };
        // All are sent; those that find no room are answered, the others wait for the server.
        let mut waiting: Vec<Raw> = (0..120)
            .map(|number| {
                let mut connection = gateway.connect();
                connection.send(echo(number).bytes());
                connection
            })
            .collect();
        let overloaded = wait_for_refusals(&mut waiting);
        assert!(overloaded.len() >= 20, "only {} refused", overloaded.len());
        // Small calls, pings and handshakes: answered, whatever the answer.
        let fresh = Session::open(&gateway);
        assert_eq!(gateway.ask(&fresh.post(ping_body("1"))).status, 200);
        // It speaks, still without reading.
        std::fs::write(format!("{}.speak", life.gate), "").expect("ours");
        for (key, connection) in &mut held {
            assert_eq!(connection.response().result()["released"], key.as_str());
        }
        life.open_gate();
        assert_eq!(stalled.response().result()["stalled"], true);
        let mut late = 0;
        for (number, connection) in waiting.iter_mut().enumerate() {
            if overloaded.contains(&number) {
                continue;
            }
            // One whose refusal was still on its way has it now.
            let message = connection.response().message();
            if message["error"].is_object() {
                assert_eq!(
                    message["error"]["data"]["reason"], "overloaded",
                    "{message}"
                );
                late += 1;
                continue;
            }
            let expected = format!("{number}{message_text}");
            assert!(
                message["result"]["content"][0]["text"] == expected.as_str(),
                "call {number}"
            );
        }
        println!(
            "figure: {} of 120 calls of 150 KB were kept for a server that does not read, --max-buffered 3 MiB, {layout:?}",
            120 - overloaded.len() - late
        );
    });
}

/// Reads what is answered now, and returns which connections were: each must say `overloaded`, as a
/// JSON-RPC error (200) or, when its body found no room, as 503 with a time to come back.
fn wait_for_refusals(waiting: &mut [Raw]) -> Vec<usize> {
    let mut refused = Vec::new();
    wait_until("enough calls are refused", || {
        for (number, connection) in waiting.iter_mut().enumerate() {
            if refused.contains(&number) || !connection.has_something() {
                continue;
            }
            let response = connection.response();
            let error: Value = response.message()["error"].clone();
            assert_eq!(error["data"]["reason"], "overloaded", "{response}");
            if response.status == 503 {
                assert!(response.field("retry-after").is_some(), "{response}");
            } else {
                assert_eq!(response.status, 200, "{response}");
                assert_eq!(response.raw_id(), Some(number.to_string()), "{response}");
            }
            refused.push(number);
        }
        // Everything that was sent has been read: no more refusals are to come.
        refused.len() >= 20 && waiting.iter().all(Raw::is_all_read)
    });
    refused
}

/// A server that never answers: the caller is told, the server is told with the id that it knows.
#[test]
fn call_that_is_never_answered_times_out_and_its_cancel_reaches_the_server() {
    on_every_layout(|layout| {
        let life = Life::new();
        let gateway = life.start(layout, &["--request-timeout", "2s"], &[], &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut pending: Vec<Raw> = (0..4)
            .map(|number| script.hold(&session, &format!("\"c{number}\""), &format!("k{number}")))
            .collect();
        let upstream: Vec<String> = (0..4)
            .map(|number| script.upstream_id(&format!("k{number}")))
            .collect();
        for (number, connection) in pending.iter_mut().enumerate() {
            let response = connection.response();
            let error = response.expect_error(200, -32603, Some(&format!("\"c{number}\"")));
            assert_eq!(error["data"]["reason"], "timeout", "{response}");
            let told = script.wait_received(&format!("\"requestId\":{}", upstream[number]));
            let cancel: Value = serde_json::from_str(&told).expect("JSON");
            assert_eq!(cancel["method"], "notifications/cancelled", "{told}");
            assert!(cancel.get("id").is_none(), "{told}");
        }
        assert_eq!(script.received("notifications/cancelled").len(), 4);
    });
}

/// Deaths one after the other, under load: no call is lost between two children.
#[test]
fn calls_of_many_clients_survive_repeated_deaths() {
    on_every_layout(|layout| {
        let life = Life::new();
        let gateway = life.start(layout, &[], &[], &[]);
        let session = Session::open(&gateway);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..6)
                .map(|_| {
                    scope.spawn(|| {
                        let session = Session::open(&gateway);
                        let mut connection = gateway.connect();
                        let (mut answered, mut refused) = (0_u64, 0_u64);
                        while !done.load(std::sync::atomic::Ordering::Relaxed) {
                            let text = format!("{}-{}", session.id, answered + refused);
                            let arguments = json!({ "message": text }).to_string();
                            let response = connection.ask(&session.call("1", "echo", &arguments));
                            if is_down(&response) {
                                refused += 1;
                                continue;
                            }
                            assert_eq!(response.result()["content"][0]["text"], text.as_str());
                            answered += 1;
                        }
                        (answered, refused)
                    })
                })
                .collect();
            for death in 1..=4 {
                wait_until_up(&gateway, &session);
                kill(*life.pids("start").last().expect("started"));
                wait_until("the next child has started", || {
                    life.pids("start").len() > death
                });
            }
            wait_until_up(&gateway, &session);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            for worker in workers {
                let (answered, refused) = worker.join().expect("no worker failed");
                assert!(answered > 0 && refused > 0, "{answered} {refused}");
            }
        });
    });
}
