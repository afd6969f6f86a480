//! Upstreams that come and go a thousand times leave nothing in the gateway: no descriptor, no thread, no memory.

mod support;

use support::catalogue::{Catalogue, Kind};
use support::peer::Peer;
use support::process::Base;
use support::routes::{Client, Served, route, wait_listed};
use support::{on_both_drivers, wait_until};

/// Each round brings three upstreams and takes those of the round before.
const ROUNDS: usize = 350;

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .expect("it runs")
        .count()
}

/// Servers that are nowhere: what is looked at is what Ringway has of them.
fn nowhere(round: usize) -> String {
    let url = "http://127.0.0.1:1/mcp";
    [
        ("shared", "share = true\nstart-timeout = \"50ms\"", round),
        ("own", "", round),
        ("third", "share = true\nstart-timeout = \"50ms\"", round),
    ]
    .map(|(name, more, round)| {
        format!(
            "[[routes.upstreams]]\nname = {name:?}\nurl = {url:?}\nconnect-timeout = \"{}ms\"\n{more}\n",
            1_000 + round
        )
    })
    .concat()
}

#[test]
fn a_thousand_upstreams_that_come_and_go_leave_nothing() {
    on_both_drivers(|layout| {
        let one = Peer::stdio("one", Catalogue::new().with(Kind::Prompts, &["ask"]));
        let routes = |round: usize| [route("/mcp", "", &[one.toml(""), nowhere(round)])];
        let gateway = Served::start(layout, &routes(0));
        let client = Client::open(&gateway);
        let said = "was read again and is in force";
        let count = |text: &str| text.matches(said).count();
        let round = |number: usize| {
            let before = count(&gateway.stderr.text());
            gateway.reload(&routes(number));
            wait_until("it is in force", || count(&gateway.stderr.text()) > before);
        };
        for number in 1..=20 {
            round(number);
        }
        let base = Base::of(&gateway);
        let running = threads(gateway.pid());
        for number in 21..=ROUNDS {
            round(number);
        }
        wait_listed(&client, Kind::Prompts, &["one-ask"]);
        base.wait_until_back(&gateway);
        wait_until("its threads have ended", || {
            threads(gateway.pid()) <= running
        });
        let held = support::process::resident_bytes(gateway.pid());
        let most = base.resident_bytes + (32 << 20);
        assert!(held < most, "{held} bytes, {} before", base.resident_bytes);
        assert_eq!(one.pids().len(), 1);
    });
}
