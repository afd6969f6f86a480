//! Ten thousand connections, thousands of calls, a thousand readers that have stopped: memory stays bounded,
//! nothing hangs, and another client works meanwhile. Figures are printed, not asserted; the bounds on memory
//! are generous and absolute.

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::json;
use support::mcp::{LATEST, call_body, initialize_body, ping_body};
use support::process::{cpu_ms, raise_open_files, resident_bytes, resident_peak_bytes};
use support::{Base, Gateway, Layout, Raw, Request, Script, Session, Upstream, on_both_drivers};

const MIB: u64 = 1 << 20;

fn scripted(layout: Layout) -> Gateway {
    layout.start(&[], Upstream::Python("scripted.py", &[]))
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
    let mut stuck: Vec<Raw> = Vec::new();
    for number in 0..count {
        let mut connection = Raw::connect_lazily(gateway.address);
        let request = session.call(&number.to_string(), "big", &arguments);
        connection.send(request.bytes());
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
        .iter_mut()
        .filter_map(|connection| connection.count_to_end(bytes))
        .count();
    println!(
        "figure: {whole} of {count} got all once they read on, {}",
        layout.driver
    );
    drop(stuck);
    whole
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
        let gateway = scripted(layout);
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
