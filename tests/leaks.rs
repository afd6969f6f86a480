//! After everything that can happen, nothing is left: descriptors and processes are back where they were,
//! places in the tables are free again, and memory does not grow from round to round.

mod support;

use serde_json::json;
use support::mcp::ping_body;
use support::scripted::hold_request;
use support::{
    Base, Gateway, Layout, Raw, Request, Scratch, Script, Session, Upstream, on_both_drivers,
    on_every_layout, wait_until,
};

const MIB: u64 = 1 << 20;

/// A table of this size is full after a few leaks.
const TIGHT: [&str; 6] = [
    "--max-calls",
    "8",
    "--max-sessions",
    "12",
    "--max-connections",
    "40",
];

/// The same for each shard.
fn tight(layout: Layout) -> Vec<String> {
    TIGHT
        .iter()
        .map(|word| match word.parse::<usize>() {
            Ok(count) => (count * layout.shards).to_string(),
            Err(_) => (*word).to_owned(),
        })
        .collect()
}

fn start(layout: Layout, more: &[&str], arguments: &[&str]) -> Gateway {
    let tight = tight(layout);
    let mut flags: Vec<&str> = tight.iter().map(String::as_str).collect();
    flags.extend(more);
    layout.start(&flags, Upstream::Python("scripted.py", arguments))
}

/// A session and a call that both work now, on a connection of their own, and leave nothing.
fn all_is_well(gateway: &Gateway) {
    wait_until("a session and its call have a place", || {
        let initialize = Request::post(support::mcp::initialize_body("1", support::mcp::LATEST));
        let mut connection = gateway.connect();
        connection.send_to_the_wary(initialize.bytes());
        let Some(response) = connection
            .next(false)
            .filter(|response| response.status == 200)
        else {
            return false;
        };
        let session = Session {
            id: response
                .field("mcp-session-id")
                .expect("a session")
                .to_owned(),
            version: support::mcp::LATEST.to_owned(),
        };
        let answer = connection.ask(&session.call("1", "echo", r#"{"message":"m"}"#));
        assert_eq!(connection.ask(&session.delete()).status, 204);
        answer.message()["result"].is_object()
    });
}

/// Every way in which a call can end, again and again on tables that hold only a few.
#[test]
fn no_end_of_a_call_leaves_its_place_taken() {
    on_every_layout(|layout| {
        for more in [
            &["--request-timeout", "2s", "--on-disconnect", "cancel"][..],
            &["--request-timeout", "2s", "--on-disconnect", "run"][..],
        ] {
            let gateway = start(layout, more, &[]);
            all_is_well(&gateway);
            let base = Base::of(&gateway);
            for round in 0..12 {
                end_calls_in_all_ways(&gateway, round);
            }
            all_is_well(&gateway);
            base.wait_until_back(&gateway);
        }
    });
}

fn end_calls_in_all_ways(gateway: &Gateway, round: usize) {
    let script = Script::new(gateway);
    let session = Session::open(gateway);
    let accept = ["application/json", "text/event-stream"][round % 2];
    let hold = |id: &str| {
        let key = format!("{round}-{id}");
        let request = hold_request(&session, id, &key).set("Accept", accept);
        (script.hold_request(&request, &key), key)
    };
    // Answered.
    let (mut connection, key) = hold("1");
    script.release(&key);
    assert_eq!(connection.response().status, 200);
    // Cancelled.
    let (mut connection, _) = hold("2");
    assert_eq!(gateway.ask(&session.cancel("2")).status, 202);
    assert_eq!(connection.response().status, 200);
    // Its client gone, in two ways; its answer comes after.
    for id in ["3", "4"] {
        let (connection, key) = hold(id);
        if id == "3" {
            connection.reset();
        } else {
            drop(connection);
        }
        script.release(&key);
    }
    // Refused, for three reasons.
    let (mut connection, key) = hold("5");
    gateway
        .ask(&session.call("5", "echo", "{}"))
        .expect_error(400, -32600, None);
    let malformed = gateway.ask(&session.post("{\"jsonrpc\":"));
    assert_eq!(malformed.status, 400, "{malformed}");
    let unknown = Session {
        id: "00000000-0000-4000-8000-000000000000".to_owned(),
        version: session.version.clone(),
    };
    assert_eq!(gateway.ask(&unknown.call("1", "echo", "{}")).status, 404);
    script.release(&key);
    assert_eq!(connection.response().status, 200);
    // Timed out: once is enough, it takes its time.
    if round == 0 {
        let (mut connection, _) = hold("6");
        assert_eq!(connection.response().status, 200);
    }
    // Ended with its session.
    let (mut connection, _) = hold("7");
    assert_eq!(gateway.ask(&session.delete()).status, 204);
    assert_eq!(connection.response().status, 200);
    assert_eq!(gateway.ask(&script.session.delete()).status, 204);
}

/// Children that die take nothing with them and leave nothing: no pipe, no thread, no zombie.
#[test]
fn dead_servers_leave_nothing() {
    on_every_layout(|layout| {
        // A grandchild would keep the stdout open that the server closes.
        die_again_and_again(layout, &["--grandchild"], &["exit", "kill", "exit"]);
        die_again_and_again(layout, &[], &["close_stdout", "exit", "kill"]);
    });
}

fn die_again_and_again(layout: Layout, arguments: &[&str], ways: &[&str]) {
    let scratch = Scratch::new();
    let journal = scratch.path("journal");
    let gateway = start(layout, &[], &[&["--journal", &journal], arguments].concat());
    all_is_well(&gateway);
    let base = Base::of(&gateway);
    let threads = threads_of(&gateway);
    for way in ways {
        let script = Script::new(&gateway);
        let pid = script.pid();
        let session = Session::open(&gateway);
        let mut held: Vec<Raw> = (0..4)
            .map(|number| script.hold(&session, &number.to_string(), &number.to_string()))
            .collect();
        if *way == "kill" {
            support::process::kill(pid);
        } else {
            gateway.ask(&session.call("\"end\"", way, r#"{"code":1}"#));
        }
        for connection in &mut held {
            let error = &connection.response().message()["error"];
            assert_eq!(error["data"]["reason"], "upstream_down");
        }
        drop(held);
        for session in [&session, &script.session] {
            assert_eq!(gateway.ask(&session.delete()).status, 204);
        }
        all_is_well(&gateway);
        base.wait_until_back(&gateway);
    }
    wait_until("the threads are as many as before", || {
        threads_of(&gateway) == threads
    });
    let starts = std::fs::read_to_string(&journal).expect("ours");
    assert_eq!(starts.matches("start ").count(), 1 + ways.len(), "{starts}");
}

fn threads_of(gateway: &Gateway) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", gateway.pid()))
        .expect("it runs")
        .count()
}

/// Clients that do everything wrong, and go: their connections and buffers are given back.
#[test]
fn bad_clients_leave_nothing() {
    on_every_layout(|layout| {
        let gateway = start(
            layout,
            &["--header-timeout", "2s", "--body-timeout", "2s"],
            &[],
        );
        all_is_well(&gateway);
        let base = Base::of(&gateway);
        let session = Session::open(&gateway);
        let call = session.call(
            "1",
            "echo",
            &json!({ "message": "m".repeat(50_000) }).to_string(),
        );
        let bytes = call.bytes();
        for round in 0..10 {
            let cuts = [
                1,
                20,
                call.head().len(),
                call.head().len() + 10,
                bytes.len() - 1,
            ];
            for cut in cuts {
                // A place may still be taken by the one before.
                wait_until("there is a place", || {
                    let mut connection = gateway.connect();
                    connection.send_to_the_wary(session.post(ping_body("1")).bytes());
                    let response = connection.next(false);
                    if response.is_none_or(|response| response.status != 200) {
                        return false;
                    }
                    connection.send_to_the_wary(&bytes[..cut]);
                    match (round + cut) % 3 {
                        0 => connection.reset(),
                        1 => connection.half_close(),
                        _ => drop(connection),
                    }
                    true
                });
            }
            let mut connection = gateway.connect();
            connection.send_to_the_wary(b"\x16\x03\x01\x02\x00 not HTTP\r\n\r\n");
            connection.drain();
        }
        // And those that stay silent until they are sent away.
        let mut silent: Vec<Raw> = [1, call.head().len() + 10]
            .iter()
            .map(|&cut| {
                let mut connection = gateway.connect();
                connection.send(&bytes[..cut]);
                connection
            })
            .collect();
        for connection in &mut silent {
            assert_eq!(connection.response().status, 408);
            connection.drain();
        }
        drop(silent);
        all_is_well(&gateway);
        base.wait_until_back(&gateway);
    });
}

/// The same load over and over: after the first rounds memory stays where it is.
#[test]
fn memory_does_not_grow_from_round_to_round() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&["--max-buffered", "64MiB"], Upstream::Demo);
        let round = || {
            for _ in 0..20 {
                let session = Session::open(&gateway);
                let mut connection = gateway.connect();
                for id in 0..20 {
                    let arguments = json!({ "message": "m".repeat(10_000) }).to_string();
                    let request = session.call(&id.to_string(), "echo", &arguments);
                    assert_eq!(connection.ask(&request).status, 200);
                }
                let big = connection.ask(&session.call("1", "big", r#"{"bytes":2000000}"#));
                assert_eq!(big.status, 200);
                let gone = session.call("2", "big", r#"{"bytes":2000000}"#);
                let mut leaves = gateway.connect();
                leaves.send(gone.bytes());
                leaves.reset();
                assert_eq!(connection.ask(&session.delete()).status, 204);
            }
        };
        for _ in 0..5 {
            round();
        }
        let before = Base::of(&gateway);
        for _ in 0..15 {
            round();
        }
        let after = Base::of(&gateway);
        println!(
            "figure: resident after 5 rounds {} MiB, after 20 {} MiB, {}",
            before.resident_bytes / MIB,
            after.resident_bytes / MIB,
            layout.driver
        );
        assert!(
            after.resident_bytes < before.resident_bytes + 24 * MIB,
            "{before:?} then {after:?}"
        );
        before.wait_until_back(&gateway);
    });
}
