//! Ten thousand connections that end where nobody expects it, on both sides of the gateway: whatever they were in
//! the middle of, nothing of it is left.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::json;
use support::http_server::{
    BOTH, Exchange, HttpServer, JSON, SSE, chunk, event, expect_echo, progress, start,
};
use support::{
    Base, GUARD, Gateway, Layout, Raw, Request, Response, Session, Stream, on_layouts, wait_until,
};

const DROPS: usize = 10_000;
const CALLERS: usize = 8;
/// Calls of one session before it is ended.
const CALLS_PER_SESSION: usize = 25;

/// A sequence that is the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = usize::try_from((mixed ^ (mixed >> 31)) >> 33).expect("31 bits");
        mixed % sides
    }
}

/// What the server makes of a call; the client knows it by the same seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    Json,
    Stream,
    /// The connection ends somewhere.
    Cut,
    /// Nothing comes until the gateway closes the connection, which the client brings about.
    Wait,
}

impl Plan {
    fn of(dice: &mut Dice) -> Self {
        match dice.roll(8) {
            0 => Self::Json,
            1 | 2 => Self::Stream,
            3..=5 => Self::Cut,
            _ => Self::Wait,
        }
    }
}

/// Carries out the plan of a call's seed.
fn play(mut call: Exchange) {
    let seed = call
        .seen
        .raw(&["params", "arguments", "seed"])
        .expect("a seed");
    let mut dice = Dice(seed.parse().expect("a number"));
    let plan = Plan::of(&mut dice);
    let reply = call.fill(r#"{"jsonrpc":"2.0","id":@ID@,"result":{"done":true}}"#);
    let ask = format!(r#"{{"jsonrpc":"2.0","id":"ask {seed}","method":"roots/list"}}"#);
    let said: String = (0..dice.roll(6))
        .map(|step| match step {
            3 => event(&ask),
            _ => event(&call.fill(&progress("@TOKEN@", step))),
        })
        .collect();
    let streamed = format!(
        "{}{}{}0\r\n\r\n",
        call.sse_head(),
        chunk(&(said + ": \n")),
        chunk(&event(&reply))
    );
    match plan {
        Plan::Json => call.message(&reply),
        Plan::Stream => {
            call.raw(streamed);
            call.release();
        }
        Plan::Cut => {
            let whole = match dice.roll(3) {
                0 => format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{reply}",
                    reply.len()
                ),
                _ => streamed,
            };
            call.raw(&whole[..dice.roll(whole.len())]);
            match dice.roll(2) {
                0 => call.close(),
                _ => call.reset(),
            }
        }
        Plan::Wait => {
            let length = streamed.find(&event(&reply)).expect("there");
            call.raw(&streamed[..[0, 20, length][dice.roll(3)]]);
            wait_until(&format!("the call of seed {seed} is cut upstream"), || {
                call.is_cut()
            });
        }
    }
}

fn leave(raw: Raw, dice: &mut Dice) {
    match dice.roll(2) {
        0 => drop(raw),
        _ => raw.reset(),
    }
}

/// One call that ends in some way; whether a connection was dropped over it.
fn one_call(gateway: &Gateway, session: &Session, seed: usize) -> bool {
    let plan = Plan::of(&mut Dice(seed as u64));
    let mut dice = Dice(!(seed as u64));
    let id = seed.to_string();
    let arguments = json!({ "seed": seed }).to_string();
    let call = session.call_with_token(&id, "random", &arguments, &id);
    let call = call.set("Accept", [BOTH, JSON, SSE][dice.roll(3)]);
    let bytes = call.bytes();
    let mut raw = gateway.connect();
    match dice.roll(5) {
        // Somewhere inside the request.
        0 => {
            raw.send(&bytes[..dice.roll(bytes.len())]);
            leave(raw, &mut dice);
            true
        }
        // At once, or when something has come.
        1 => {
            raw.send(bytes);
            leave(raw, &mut dice);
            true
        }
        2 if plan != Plan::Wait => {
            raw.send(bytes);
            let _ = raw.next_head();
            leave(raw, &mut dice);
            true
        }
        _ => {
            raw.send(bytes);
            let response = match plan {
                Plan::Wait => cancelled(gateway, session, &id, &mut raw),
                _ => raw.response(),
            };
            assert_eq!(response.status, 200, "{response}");
            plan == Plan::Cut
        }
    }
}

/// The answer of a call that is cancelled until it comes: a cancel that is quicker than its call is ignored.
fn cancelled(gateway: &Gateway, session: &Session, id: &str, raw: &mut Raw) -> Response {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut aside = gateway.connect();
            wait_until("the cancelled call ends", || {
                assert_eq!(aside.ask(&session.cancel(id)).status, 202);
                has_ended.load(Ordering::Relaxed)
            });
        });
        let response = raw.response();
        has_ended.store(true, Ordering::Relaxed);
        response
    })
}

/// The session's stream, opened and left.
fn one_stream(gateway: &Gateway, session: &Session, dice: &mut Dice) {
    let mut raw = gateway.connect();
    raw.send(session.get().bytes());
    if dice.roll(2) == 0 {
        assert_eq!(raw.next_head().map(|head| head.status), Some(200));
    }
    leave(raw, dice);
}

fn caller(gateway: &Gateway, number: usize, drops: &AtomicUsize) {
    let mut dice = Dice(number as u64);
    let mut round = 0;
    while drops.load(Ordering::Relaxed) < DROPS {
        let session = Session::open(gateway);
        let stream = (dice.roll(2) == 0).then(|| Stream::open(gateway, &session));
        assert_eq!(
            gateway.ask(&session.subscribe("\"s\"", "a:1")).result(),
            json!({})
        );
        for _ in 0..CALLS_PER_SESSION {
            round += 1;
            let seed = number * 1_000_000 + round;
            if one_call(gateway, &session, seed) {
                drops.fetch_add(1, Ordering::Relaxed);
            }
            if dice.roll(10) == 0 {
                one_stream(gateway, &session, &mut dice);
                drops.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Some calls may still be there.
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        drop(stream);
    }
}

/// The gauges that are not zero; those that say something else than how much there is are left out.
fn gauges(gateway: &Gateway) -> Vec<String> {
    let said = "admin listener address=";
    let log = gateway
        .stderr
        .wait_for("the admin address", |log| log.contains(said));
    let (_, rest) = log.split_once(said).expect("waited for");
    let address = rest.split_whitespace().next().expect("an address");
    let mut raw = Raw::connect(address.parse().expect("an address and a port"));
    let response = raw.ask(&Request::new("GET").target("/metrics"));
    let text = String::from_utf8(response.body).expect("UTF-8");
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" gauge"))
        .filter(|name| !name.ends_with("_info"))
        .filter(|name| !matches!(*name, "ringway_start_time_seconds" | "ringway_upstream_up"))
        .collect();
    assert!(names.contains(&"ringway_calls_in_flight"), "{names:?}");
    text.lines()
        .filter(|line| {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            names.contains(&name) && !line.ends_with(" 0")
        })
        .map(str::to_owned)
        .collect()
}

fn drop_everywhere(layout: Layout, on_disconnect: &str) {
    let server = HttpServer::new();
    let flags = [
        "--admin",
        "127.0.0.1:0",
        "--on-disconnect",
        on_disconnect,
        "--upstream-idle-timeout",
        "1s",
        // What makes a client known as gone that has ended its sending half only.
        "--keep-alive",
        "100ms",
    ];
    let gateway = start(layout, &flags, &server);
    server.on(|seen| seen.is_tool("random"), play);
    // Everything has been done once, and its connections are closed.
    let warm = Session::open(&gateway);
    drop(Stream::open(&gateway, &warm));
    expect_echo(&gateway, &warm);
    assert_eq!(gateway.ask(&warm.delete()).status, 204);
    server.end_connections();
    let base = Base::of(&gateway);

    let drops = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..CALLERS {
            let (gateway, drops) = (&gateway, &drops);
            scope.spawn(move || caller(gateway, number, drops));
        }
    });
    let drops = drops.into_inner();
    assert!(drops >= DROPS, "{drops}");
    let start = Instant::now();
    loop {
        let left = gauges(&gateway);
        if left.is_empty() {
            break;
        }
        assert!(start.elapsed() < GUARD, "never back at zero: {left:#?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(server.live(), Vec::<String>::new());
    base.wait_until_back(&gateway);
    expect_echo(&gateway, &Session::open(&gateway));
    println!(
        "figure: {drops} drops, {} requests upstream, {layout:?}",
        server.count(|_| true)
    );
}

/// Calls of vanished clients are cancelled.
#[test]
fn nothing_is_left_of_ten_thousand_drops() {
    on_layouts(&[1, 2], |layout| drop_everywhere(layout, "cancel"));
}
