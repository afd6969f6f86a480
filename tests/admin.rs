//! The admin listener of a gateway that runs: what it says while the gateway starts, serves, loses its
//! server and drains, and that its numbers are those of what was done.

mod support;

use std::net::SocketAddr;

use rustix::process::{Signal, kill_process};
use support::gateway::pid_of;
use support::http::Raw;
use support::life::Life;
use support::mcp::ping_body;
use support::{Gateway, Request, Response, Session, on_every_layout, wait_until};

/// Where the admin listener is, by the gateway's own log.
fn admin_address(gateway: &Gateway) -> SocketAddr {
    let log = gateway.stderr.wait_for("the admin address", |log| {
        log.contains("admin listener address=")
    });
    let (_, rest) = log
        .split_once("admin listener address=")
        .expect("waited for");
    let address = rest.split_whitespace().next().expect("an address");
    address.parse().expect("an address and a port")
}

fn get(address: SocketAddr, path: &str) -> Response {
    let request = Request::new("GET").target(path);
    Raw::connect(address).ask(&request)
}

fn ready_word(address: SocketAddr) -> (u16, String) {
    let response = get(address, "/readyz");
    let text = String::from_utf8_lossy(&response.body).trim().to_owned();
    (response.status, text)
}

/// The sum of all samples of this name whose labels hold `labels`.
fn metric(address: SocketAddr, name: &str, labels: &[&str]) -> f64 {
    let response = get(address, "/metrics");
    assert_eq!(response.status, 200, "{response}");
    let text = String::from_utf8(response.body.clone()).expect("UTF-8");
    let samples = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    });
    let values = samples.map(|line| line.rsplit_once(' ').expect("a value").1);
    values
        .map(|value| value.parse::<f64>().expect("a number"))
        .sum()
}

/// A load balancer asks this before it sends anybody here; a wrong word sends clients to a dead end.
#[test]
fn readiness_follows_the_servers_life_and_the_drain() {
    on_every_layout(|layout| {
        let life = Life::new();
        let gated = ["--gate", &life.gate];
        let flags = ["--admin", "127.0.0.1:0"];
        let mut gateway = life.start(layout, &flags, &[], &gated);
        let admin = admin_address(&gateway);
        assert_eq!(ready_word(admin), (200, "ready".into()));
        assert_eq!(get(admin, "/healthz").status, 200);

        let server = *life.pids("start").last().expect("it has started");
        kill_process(pid_of(server), Signal::KILL).expect("it runs");
        wait_until("readiness says no", || {
            ready_word(admin) == (503, "upstream_down".into())
        });
        assert_eq!(get(admin, "/healthz").status, 200);
        life.open_gate();
        wait_until("readiness says yes", || ready_word(admin).0 == 200);
        assert_eq!(metric(admin, "ringway_upstream_restarts_total", &[]), 1.0);

        let session = Session::open(&gateway);
        let mut held = gateway.connect();
        held.send(session.call("1", "hold", r#"{"key":"k"}"#).bytes());
        wait_until("the call is in flight", || {
            metric(admin, "ringway_calls_in_flight", &[]) == 1.0
        });
        gateway.signal(Signal::TERM);
        wait_until("readiness says that it drains", || {
            ready_word(admin) == (503, "draining".into())
        });
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
    });
}

/// Numbers that are not those of what was done are worse than none.
#[test]
fn metrics_count_what_was_done() {
    on_every_layout(|layout| {
        let flags = ["--admin", "127.0.0.1:0"];
        let gateway = layout.start(&flags, support::Upstream::Demo);
        let admin = admin_address(&gateway);
        let session = Session::open(&gateway);
        for id in 0..7 {
            let call = session.call(&id.to_string(), "echo", r#"{"message":"m"}"#);
            assert_eq!(gateway.ask(&call).status, 200);
        }
        let unknown = session.call("\"u\"", "no-such-tool", "{}");
        assert!(gateway.ask(&unknown).message()["error"].is_object());
        assert_eq!(gateway.ask(&session.post(ping_body("1"))).status, 200);
        assert_eq!(gateway.ask(&session.post("{")).status, 400);

        let calls = |labels: &[&str]| metric(admin, "ringway_calls_total", labels);
        assert_eq!(calls(&["tools/call", "outcome=\"ok\""]), 7.0);
        assert_eq!(calls(&["tools/call", "outcome=\"error\""]), 1.0);
        assert_eq!(calls(&["outcome=\"timeout\""]), 0.0);
        let count = metric(admin, "ringway_call_duration_seconds_count", &[]);
        assert_eq!(count, 8.0);
        assert_eq!(metric(admin, "ringway_http_requests_total", &["400"]), 1.0);
        assert!(metric(admin, "ringway_received_bytes_total", &[]) > 1_000.0);
        assert!(metric(admin, "ringway_sent_bytes_total", &[]) > 1_000.0);
        assert_eq!(metric(admin, "ringway_upstream_up", &[]), 1.0);
        wait_until("the session is counted", || {
            metric(admin, "ringway_sessions", &[]) == 1.0
        });
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        wait_until("its end is counted", || {
            metric(admin, "ringway_sessions", &[]) == 0.0
        });
        let driver = format!(
            "driver=\"{}\"",
            gateway.banner_word("driver").expect("told")
        );
        assert_eq!(metric(admin, "ringway_driver_info", &[&driver]), 1.0);
    });
}

/// It listens beside the clients' port, for people and scrapers of this machine only.
#[test]
fn admin_listener_answers_only_what_it_should() {
    on_every_layout(|layout| {
        let flags = ["--admin", "127.0.0.1:0"];
        let gateway = layout.start(&flags, support::Upstream::Demo);
        let admin = admin_address(&gateway);
        let ask = |request: Request| Raw::connect(admin).ask(&request);
        assert_eq!(ask(Request::new("POST").target("/metrics")).status, 405);
        assert_eq!(ask(Request::new("GET").target("/mcp")).status, 404);
        let foreign = Request::new("GET").target("/metrics");
        assert_eq!(ask(foreign.set("Host", "evil.example")).status, 403);
        let with_origin = Request::new("GET")
            .target("/healthz")
            .add("Origin", "http://localhost");
        let response = ask(with_origin);
        assert!(
            response.field("access-control-allow-origin").is_none(),
            "{response}"
        );
        assert_eq!(
            gateway.ask(&Request::new("GET").target("/metrics")).status,
            404
        );
    });
}
