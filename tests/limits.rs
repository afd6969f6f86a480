//! Every bound of the gateway, reached on purpose: what is over it gets the answer that the contract names,
//! what is under it does not notice, and memory stays bounded. Figures are printed, not asserted; bounds on
//! memory are generous and absolute.

mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::json;
use support::mcp::{LATEST, call_body, initialize_body, ping_body};
use support::process::{cpu_ms, raise_open_files, resident_bytes, resident_peak_bytes};
use support::{
    Base, Gateway, Layout, Raw, Request, Response, Scratch, Script, Session, Upstream,
    on_both_drivers, on_every_layout, wait_until,
};

const MIB: u64 = 1 << 20;

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

/// The crowds share this process's descriptors: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static CROWD: Mutex<()> = Mutex::new(());
    CROWD.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// How many connections of `wanted` both processes can hold, with some to spare.
fn crowd(wanted: usize) -> usize {
    let limit = raise_open_files();
    let count = wanted.min(limit.saturating_sub(1_000));
    if count < wanted {
        println!(
            "figure: only {count} of {wanted} connections, the limit of open files is {limit}"
        );
    }
    count
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
        let flags = ["--max-buffered", "4MiB", "--pin", "off"];
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
                    refused.push(slow.remove(number).0.response());
                }
            }
            refused.len() >= 10 && slow.iter().all(|(connection, _)| connection.is_all_read())
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
            "figure: {} of {} bodies of 900 KB fit --max-buffered 4 MiB, {layout:?}",
            slow.len(),
            20 * layout.shards
        );
        assert!(!slow.is_empty(), "not one body was let in");
        for (mut connection, rest) in slow {
            connection.send_to_the_wary(&rest);
            let response = connection.response();
            if response.status == 503 {
                // Its last part may find the room taken by the others.
                continue;
            }
            let text = response.result()["content"][0]["text"].clone();
            assert!(text == message.as_str(), "another body's text");
        }
        // All room is free again.
        let request = session.call("1", "echo", &arguments);
        assert_eq!(gateway.ask(&request).status, 200);
    });
}

/// Connects with a small receive buffer, so that what the client does not read stays with the gateway.
fn connect_lazily(address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a descriptor is free");
    sockopt::set_socket_recv_buffer_size(&fd, 4_096).expect("a socket");
    connect(&fd, &address).expect("the gateway accepts");
    TcpStream::from(fd)
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
        let mut lazy = connect_lazily(gateway.address);
        let pad = session.call("\"lazy\"", "pad", r#"{"size":6000000}"#);
        lazy.write_all(&pad.bytes()).expect("the gateway reads");
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

/// A thousand clients that stop reading in the middle of a MiB. The kernel takes a MiB for each, so little
/// of it is the gateway's; nobody else may notice.
#[test]
fn thousand_clients_that_stop_reading_in_a_mebibyte_hurt_nobody() {
    let _alone = alone();
    on_both_drivers(|layout| {
        stuck_readers(layout, crowd(1_000), 1 << 20);
    });
}

/// The same with more than the kernel takes: over the budget the largest backlogs go, the others are kept.
#[test]
fn clients_that_stop_reading_cost_no_more_than_the_budget() {
    let _alone = alone();
    on_both_drivers(|layout| {
        let whole = stuck_readers(layout, 120, 8 << 20);
        assert!(
            whole >= 4,
            "only {whole} of the 8 backlogs that had room were kept"
        );
        assert!(whole < 60, "{whole} backlogs of 8 MiB were kept");
    });
}

/// `count` clients ask for `bytes` and read nothing; returns how many got all of it when they read on.
fn stuck_readers(layout: Layout, count: usize, bytes: usize) -> usize {
    let gateway = layout.start(&["--max-buffered", "64MiB"], Upstream::Demo);
    let (session, other) = (Session::open(&gateway), Session::open(&gateway));
    let mut bystander = gateway.connect();
    let mut ask = |text: &str| {
        let echo = other.call("1", "echo", &json!({ "message": text }).to_string());
        let answer = bystander.ask(&echo);
        assert_eq!(
            answer.result()["content"][0]["text"].as_str(),
            Some(text),
            "{answer}"
        );
    };
    ask("first");
    let idle: Vec<Raw> = (0..50)
        .map(|_| {
            let mut connection = gateway.connect();
            assert_eq!(connection.ask(&session.post(ping_body("1"))).status, 200);
            connection
        })
        .collect();
    let base = Base::of(&gateway);
    let arguments = json!({ "bytes": bytes }).to_string();
    let mut stuck: Vec<TcpStream> = Vec::new();
    for number in 0..count {
        let mut connection = connect_lazily(gateway.address);
        let request = session.call(&number.to_string(), "big", &arguments);
        connection
            .write_all(&request.bytes())
            .expect("the gateway reads");
        stuck.push(connection);
        if number % 20 == 0 {
            ask("between");
        }
    }
    // The server answers in order: all large answers have come when this one has.
    ask("last");
    let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
    println!(
        "figure: {count} readers stuck in {bytes} bytes: {} MiB more at the peak, --max-buffered 64 MiB, {}",
        more / MIB,
        layout.driver
    );
    assert!(more < 400 * MIB, "{} MiB", more / MIB);
    for (number, mut connection) in idle.into_iter().enumerate() {
        connection.send_to_the_wary(session.post(ping_body("2")).bytes());
        let response = connection
            .next(false)
            .unwrap_or_else(|| panic!("the idle connection {number} was closed"));
        assert_eq!(response.status, 200);
    }
    let whole = stuck
        .iter()
        .filter(|stream| is_whole(stream, bytes))
        .count();
    println!(
        "figure: {whole} of {count} got all once they read on, {}",
        layout.driver
    );
    drop(stuck);
    whole
}

/// Reads on to the end of one response of so many bytes; false if the gateway had closed the connection.
fn is_whole(stream: &TcpStream, bytes: usize) -> bool {
    use std::io::Read;
    stream
        .set_read_timeout(Some(support::GUARD))
        .expect("not zero");
    let mut stream = stream;
    let mut chunk = vec![0_u8; 256 << 10];
    let mut seen = 0;
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return false,
            Ok(count) => seen += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("neither the answer nor the end came: {error}"),
        }
        if seen > bytes {
            return true;
        }
    }
}

/// Ten thousand bodies under way at once, of clients that send a little and then nothing.
#[test]
fn ten_thousand_slow_bodies_are_bounded_and_hurt_nobody() {
    let _alone = alone();
    on_both_drivers(|layout| {
        let count = crowd(10_000);
        let gateway = layout.start(&["--max-buffered", "64MiB"], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut bystander = gateway.connect();
        let echo = session.call("1", "echo", r#"{"message":"m"}"#);
        assert_eq!(bystander.ask(&echo).status, 200);
        let base = Base::of(&gateway);
        let body = call_body(
            "1",
            "echo",
            &json!({ "message": "m".repeat(200_000) }).to_string(),
        );
        let bytes = session.post(body).bytes();
        // Each has sent what fits a small buffer: the meanest size, since it costs the client little.
        let part = &bytes[..30_000];
        let mut slow = Vec::with_capacity(count);
        for number in 0..count {
            let mut stream = TcpStream::connect(gateway.address).expect("the gateway accepts");
            // A refusal may have come and gone in the middle of it.
            let _ = stream.write_all(part);
            slow.push(stream);
            if number % 100 == 0 {
                assert_eq!(bystander.ask(&echo).status, 200);
            }
        }
        assert_eq!(bystander.ask(&echo).status, 200);
        let peak = resident_peak_bytes(gateway.pid());
        let more = peak.saturating_sub(base.resident_bytes);
        println!(
            "figure: {count} slow bodies of 30 KB so far: {} MiB more at the peak ({} KiB each), --max-buffered 64 MiB, {}",
            more / MIB,
            more / 1_024 / count as u64,
            layout.driver
        );
        assert!(more < 1_200 * MIB, "{} MiB", more / MIB);
        drop(slow);
        base.wait_until_back(&gateway);
        assert_eq!(bystander.ask(&echo).status, 200);
    });
}

/// Connections that say nothing cost memory only, and little of it.
#[test]
fn ten_thousand_idle_connections_cost_little_and_no_time() {
    let _alone = alone();
    on_both_drivers(|layout| {
        let count = crowd(10_000);
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut bystander = gateway.connect();
        let ping = session.post(ping_body("1"));
        assert_eq!(bystander.ask(&ping).status, 200);
        let base = Base::of(&gateway);
        let mut idle = Vec::with_capacity(count);
        for number in 0..count {
            let mut connection = gateway.connect();
            assert_eq!(connection.ask(&ping).status, 200);
            idle.push(connection);
            if number % 500 == 0 {
                assert_eq!(bystander.ask(&ping).status, 200);
            }
        }
        let more = resident_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
        println!(
            "figure: idle connection {:.1} KiB, {}",
            more as f64 / 1_024.0 / count as f64,
            layout.driver
        );
        assert!(more < 400 * MIB, "{} MiB", more / MIB);
        let (cpu, start) = (cpu_ms(gateway.pid()), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        let share = (cpu_ms(gateway.pid()) - cpu) as f64 / start.elapsed().as_millis() as f64;
        println!(
            "figure: processor with {count} idle connections {:.1} % of a core, {}",
            share * 100.0,
            layout.driver
        );
        let echo = session.call("1", "echo", r#"{"message":"m"}"#);
        assert_eq!(bystander.ask(&echo).status, 200);
        for connection in idle.iter_mut().step_by(97) {
            assert_eq!(connection.ask(&ping).status, 200);
        }
        drop(idle);
        base.wait_until_back(&gateway);
    });
}

/// Sessions without a connection cost memory only.
#[test]
fn idle_session_costs_little() {
    let _alone = alone();
    on_both_drivers(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let mut connection = gateway.connect();
        let initialize = Request::post(initialize_body("1", LATEST)).bytes();
        let mut open = |count: usize| {
            for _ in 0..count {
                connection.send(&initialize);
                assert_eq!(connection.response().status, 200);
            }
        };
        open(100);
        let before = resident_bytes(gateway.pid());
        open(20_000);
        let more = resident_bytes(gateway.pid()).saturating_sub(before);
        println!(
            "figure: idle session {} bytes, {}",
            more / 20_000,
            layout.driver
        );
        assert!(more < 100 * MIB, "{} MiB", more / MIB);
    });
}

/// Five thousand calls in flight at once, all answered, each with its own answer.
#[test]
fn five_thousand_calls_in_flight_are_all_answered() {
    let _alone = alone();
    on_both_drivers(|layout| {
        let count = crowd(5_000);
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..10).map(|_| Session::open(&gateway)).collect();
        let mut bystander = gateway.connect();
        let echo = sessions[0].call("\"e\"", "echo", r#"{"message":"m"}"#);
        assert_eq!(bystander.ask(&echo).status, 200);
        let base = Base::of(&gateway);
        let mut held: Vec<Raw> = (0..count)
            .map(|number| {
                let mut connection = gateway.connect();
                let session = &sessions[number % 10];
                let arguments = json!({ "key": number.to_string() }).to_string();
                connection.send(
                    session
                        .call(&number.to_string(), "hold", &arguments)
                        .bytes(),
                );
                if number % 100 == 0 {
                    assert_eq!(bystander.ask(&echo).status, 200);
                }
                connection
            })
            .collect();
        script.wait_held_count(count);
        let more = resident_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
        println!(
            "figure: call in flight with its connection {:.1} KiB, {}",
            more as f64 / 1_024.0 / count as f64,
            layout.driver
        );
        assert!(more < 300 * MIB, "{} MiB", more / MIB);
        assert_eq!(bystander.ask(&echo).status, 200);
        assert_eq!(script.tool("release_all", &json!({}))["released"], count);
        for (number, connection) in held.iter_mut().enumerate() {
            let response = connection.response();
            assert_eq!(
                response.result()["released"],
                number.to_string(),
                "{response}"
            );
        }
        drop(held);
        base.wait_until_back(&gateway);
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
