//! What an operator sees of several routes and upstreams: which one is down, and whose numbers are whose.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use support::catalogue::{Catalogue, Kind};
use support::gateway::{command_with_config, run_to_end};
use support::http::Raw;
use support::http_server::Exchange;
use support::peer::{Peer, Reached};
use support::routes::{Client, Served, call, is_down, joined, process_lines, route, wait_listed};
use support::{Gateway, Request, Response, Scratch, on_both_drivers, on_every_way, wait_until};

fn admin_address(gateway: &Gateway) -> SocketAddr {
    let said = "admin listener address=";
    let log = gateway
        .stderr
        .wait_for("the admin address", |log| log.contains(said));
    let (_, rest) = log.split_once(said).expect("waited for");
    let address = rest.split_whitespace().next().expect("an address");
    address.parse().expect("an address and a port")
}

fn get(address: SocketAddr, path: &str) -> Response {
    Raw::connect(address).ask(&Request::new("GET").target(path))
}

fn text(response: &Response) -> String {
    String::from_utf8(response.body.clone()).expect("UTF-8")
}

/// Whether readiness says this status, and of each named upstream of a route this state, each on a line.
fn is_said(address: SocketAddr, status: u16, states: &[(&str, &str, &str)]) -> bool {
    let response = get(address, "/readyz");
    let text = text(&response);
    response.status == status
        && states.iter().all(|(route, upstream, state)| {
            text.lines().any(|line| {
                let words: Vec<&str> = line
                    .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-')
                    .collect();
                [route, upstream, state]
                    .iter()
                    .all(|word| words.contains(*word))
            })
        })
}

#[track_caller]
fn wait_said(address: SocketAddr, status: u16, states: &[(&str, &str, &str)]) {
    let start = std::time::Instant::now();
    while !is_said(address, status, states) {
        let response = get(address, "/readyz");
        assert!(
            start.elapsed() < support::GUARD,
            "never said: {status} {states:?}, but {response} {}",
            text(&response)
        );
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// The sum of all samples of this name whose labels hold these, and how many there are.
fn metric(address: SocketAddr, name: &str, labels: &[&str]) -> (f64, usize) {
    let response = get(address, "/metrics");
    assert_eq!(response.status, 200, "{response}");
    let text = text(&response);
    let values: Vec<f64> = text
        .lines()
        .filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        })
        .map(|line| {
            let (_, value) = line.rsplit_once(' ').expect("a value");
            value.parse().expect("a number")
        })
        .collect();
    (values.iter().sum(), values.len())
}

fn labels(route: &str, upstream: &str) -> [String; 2] {
    [
        format!("route=\"{route}\""),
        format!("upstream=\"{upstream}\""),
    ]
}

/// The sum over the samples of one upstream of one route.
fn of(address: SocketAddr, name: &str, route: &str, upstream: &str, more: &[&str]) -> f64 {
    let own = labels(route, upstream);
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    metric(address, name, &[&own[..], more].concat()).0
}

/// A route that has somebody who serves is ready; who is down is named all the same.
#[test]
fn readiness_names_the_route_and_the_upstream_that_is_down() {
    on_every_way(|layout| {
        let peers = [
            Peer::stdio("one", Catalogue::usual()),
            Peer::http("two", Catalogue::usual()),
            Peer::shared_http("three", Catalogue::usual()),
            Peer::stdio("four", Catalogue::usual()),
        ];
        let routes = [
            route(
                "/a",
                "name = \"first\"",
                &[peers[0].toml("required = true"), peers[1].toml("")],
            ),
            route(
                "/b",
                "name = \"second\"",
                &[peers[2].toml(""), peers[3].toml("")],
            ),
        ];
        let gateway = Served::start(layout, &routes);
        let admin = admin_address(&gateway);
        let up = [
            ("first", "one", "up"),
            ("first", "two", "per-session"),
            ("second", "three", "up"),
            ("second", "four", "up"),
        ];
        wait_said(admin, 200, &up);
        // Not required, and another is there.
        peers[3].down();
        wait_said(
            admin,
            200,
            &[("second", "four", "down"), ("second", "three", "up")],
        );
        // Nobody is left on this route.
        peers[2].down();
        wait_said(
            admin,
            503,
            &[
                ("second", "four", "down"),
                ("second", "three", "down"),
                ("first", "one", "up"),
            ],
        );
        peers[3].up();
        wait_said(admin, 200, &[("second", "four", "up")]);
        // Required: without it the route is not ready, whoever else is there.
        peers[0].down();
        wait_said(
            admin,
            503,
            &[("first", "one", "down"), ("second", "four", "up")],
        );
        assert_eq!(get(admin, "/healthz").status, 200);
        peers[0].up();
        peers[2].up();
        wait_said(admin, 200, &up);
    });
}

#[test]
fn readiness_says_that_it_drains() {
    on_both_drivers(|layout| {
        let one = Peer::stdio("one", Catalogue::usual());
        let two = Peer::stdio("two", Catalogue::usual());
        one.hold(|asked| asked.calls("hold"));
        let mut gateway = Served::start(layout, &[joined(&[&one, &two])]);
        let admin = admin_address(&gateway);
        let mut connection = {
            let client = Client::open(&gateway);
            client.begin("tools/call", &call("one-hold", "n"))
        };
        let held = one.take("the call", |asked| asked.calls("hold"));
        gateway.signal(Signal::TERM);
        wait_until("readiness says that it drains", || {
            let response = get(admin, "/readyz");
            response.status == 503 && text(&response).contains("draining")
        });
        held.reply(&serde_json::json!({ "content": [] }));
        assert_eq!(connection.response().status, 200);
        assert_eq!(gateway.gateway_mut().wait().code(), Some(0));
    });
}

#[test]
fn numbers_are_those_of_their_route_and_upstream() {
    on_every_way(|layout| {
        let peers = [
            Peer::stdio("one", Catalogue::usual()),
            Peer::http("two", Catalogue::usual()),
            Peer::shared_http("three", Catalogue::usual()),
        ];
        let routes = [
            route(
                "/a",
                "",
                &[peers[0].toml(""), peers[1].toml(""), peers[2].toml("")],
            ),
            route("/b", "name = \"second\"", &[peers[0].toml("")]),
        ];
        let gateway = Served::start(layout, &routes);
        let admin = admin_address(&gateway);
        let client = Client::open_at(&gateway, "/a");
        let other = Client::open_at(&gateway, "/b");
        for (name, count) in [("one", 2), ("two", 3), ("three", 4)] {
            for number in 0..count {
                client.call_text(&format!("{name}-echo"), &number.to_string());
            }
        }
        for _ in 0..5 {
            other.call_text("echo", "n");
        }
        assert_eq!(
            client.refusal("tools/call", &call("two-nothing", "")).0,
            -32602
        );
        let ok = ["tools/call", "outcome=\"ok\""];
        for (route, name, count) in [
            ("a", "one", 2.0),
            ("a", "two", 3.0),
            ("a", "three", 4.0),
            ("second", "one", 5.0),
        ] {
            wait_until(&format!("the calls of {route} {name} are counted"), || {
                of(admin, "ringway_calls_total", route, name, &ok) == count
            });
        }
        let error = ["tools/call", "outcome=\"error\""];
        assert_eq!(of(admin, "ringway_calls_total", "a", "two", &error), 1.0);
        for (route, name) in [("a", "one"), ("a", "three"), ("second", "one")] {
            assert_eq!(of(admin, "ringway_upstream_up", route, name, &[]), 1.0);
            let restarts = "ringway_upstream_restarts_total";
            assert_eq!(of(admin, restarts, route, name, &[]), 0.0);
        }
        let pid = *peers[0].pids().first().expect("it runs");
        assert_eq!(peers[0].pids().len(), 2);
        support::process::kill(pid);
        wait_until("one of its restarts is counted", || {
            metric(
                admin,
                "ringway_upstream_restarts_total",
                &["upstream=\"one\""],
            )
            .0 == 1.0
        });
        assert_eq!(
            of(admin, "ringway_upstream_restarts_total", "a", "three", &[]),
            0.0
        );
        assert_eq!(client.delete(), 204);
        assert_eq!(other.delete(), 204);
        wait_until("no session is left", || {
            metric(admin, "ringway_sessions", &[]).0 == 0.0
        });
    });
}

/// A number that nobody adds to any more is worse than none.
#[test]
fn numbers_of_a_removed_upstream_disappear() {
    on_both_drivers(|layout| {
        for reached in Reached::ALL {
            let one = Peer::stdio("one", Catalogue::usual());
            let old = Peer::new(reached, "old", Catalogue::usual());
            let routes = |peers: &[&Peer]| [joined(peers)];
            let gateway = Served::start(layout, &routes(&[&one, &old]));
            let admin = admin_address(&gateway);
            let client = Client::open(&gateway);
            assert_eq!(client.call_text("old-echo", "n"), "old:echo:n");
            assert_eq!(client.call_text("one-echo", "n"), "one:echo:n");
            let ok = ["tools/call", "outcome=\"ok\""];
            wait_until("it is counted", || {
                of(admin, "ringway_calls_total", "mcp", "old", &ok) == 1.0
            });
            gateway.reload(&routes(&[&one]));
            wait_listed(&client, Kind::Prompts, &["ask", "delete"]);
            wait_until("nothing speaks of it", || {
                !text(&get(admin, "/metrics")).contains("upstream=\"old\"")
            });
            assert_eq!(of(admin, "ringway_calls_total", "mcp", "one", &ok), 1.0);
            assert!(!text(&get(admin, "/readyz")).contains("old"));
            // Back again it begins at nothing.
            gateway.reload(&routes(&[&one, &old]));
            wait_until("it is there again", || client.has(Kind::Tools, "old-echo"));
            assert_eq!(of(admin, "ringway_calls_total", "mcp", "old", &ok), 0.0);
            let response = client.ask("tools/call", &call("old-echo", "n"));
            assert!(!is_down(&response), "{response}");
        }
    });
}

/// A wrong path in an upstream's URL, or a key that the server does not take, is seen in the log: once, however many
/// sessions find out, and once more when it works.
#[test]
fn log_says_once_that_a_server_opens_no_session_and_that_it_does_again() {
    type Refuses = fn(Exchange);
    let ways: [(Refuses, &[&str]); 5] = [
        (
            |x| x.status("404 Not Found", None, ""),
            &["status=404", "the path of the URL"],
        ),
        (
            |x| x.status("405 Method Not Allowed", None, ""),
            &["status=405", "the path of the URL"],
        ),
        (
            |x| x.status("401 Unauthorized", None, ""),
            &["status=401", "credential"],
        ),
        (
            |x| x.status("500 Internal Server Error", None, ""),
            &["status=500"],
        ),
        (
            |x| x.message("null"),
            &["without a reply", "an MCP server", "the path of the URL"],
        ),
    ];
    on_both_drivers(|layout| {
        for (refuse, words) in ways {
            let one = Peer::stdio("one", Catalogue::usual());
            let two = Peer::http("two", Catalogue::usual());
            let refuses = Arc::new(AtomicBool::new(true));
            let now = Arc::clone(&refuses);
            two.server().on(
                move |seen| seen.is("initialize") && now.load(Ordering::SeqCst),
                refuse,
            );
            let gateway = Served::start(layout, &[joined(&[&one, &two])]);
            let clients = [(); 3].map(|()| Client::open(&gateway));
            let said = "the server over HTTP opens no session";
            let again = "the server over HTTP opens sessions again";
            let url = two.server().url();
            let log = gateway.wait_logged(0, &[said]);
            let line = log.lines().find(|line| line.contains(said));
            let line = line.expect("waited for");
            let who = ["WARN", "route=mcp", "upstream=two", &url];
            for word in who.iter().chain(words) {
                assert!(line.contains(word), "{word}: {line}");
            }
            refuses.store(false, Ordering::SeqCst);
            for client in &clients {
                wait_until("it is there", || client.has(Kind::Tools, "two-echo"));
            }
            let log = gateway.wait_logged(0, &[again]);
            assert_eq!(log.matches(said).count(), 1, "{log}");
            assert_eq!(log.matches(again).count(), 1, "{log}");
        }
    });
}

/// What all sessions share says it itself.
#[test]
fn log_says_by_which_status_a_shared_server_refuses() {
    on_both_drivers(|layout| {
        let one = Peer::stdio("one", Catalogue::usual());
        let two = Peer::shared_http("two", Catalogue::usual());
        two.server().on(
            |seen| seen.is("initialize"),
            |x| x.status("404 Not Found", None, ""),
        );
        let gateway = Served::start(layout, &[joined(&[&one, &two])]);
        let said = "the server did not come up";
        let log = gateway.wait_logged(0, &[said]);
        let line = log.lines().find(|line| line.contains(said));
        let line = line.expect("waited for");
        let url = two.server().url();
        for word in ["route=mcp", "upstream=two", &url, "status 404", "the path"] {
            assert!(line.contains(word), "{word}: {line}");
        }
        // A fault of the connection has the names too.
        two.down();
        let said = "the server over HTTP fails";
        let log = gateway.wait_logged(0, &[said]);
        let line = log.lines().find(|line| line.contains(said));
        let line = line.expect("waited for");
        for word in ["route=mcp", "upstream=two", &url] {
            assert!(line.contains(word), "{word}: {line}");
        }
    });
}

/// A command that cannot be run is named with its upstream, in the log and where it ends the start.
#[test]
fn program_that_cannot_be_run_is_named_with_its_upstream() {
    on_both_drivers(|layout| {
        let one = Peer::stdio("one", Catalogue::usual());
        let two = |more: &str| {
            format!(
                "[[routes.upstreams]]\nname = \"two\"\ncommand = [\"no-such-program\", \"x\"]\n{more}\n"
            )
        };
        let gateway = Served::start(layout, &[route("/mcp", "", &[one.toml(""), two("")])]);
        for said in [
            "the server did not come up",
            "cannot start the server again",
        ] {
            let log = gateway.wait_logged(0, &[said]);
            let line = log.lines().find(|line| line.contains(said));
            let line = line.expect("waited for");
            for word in [
                "route=mcp",
                "upstream=two",
                "cannot run \"no-such-program\"",
            ] {
                assert!(line.contains(word), "{word}: {line}");
            }
        }
        let scratch = Scratch::new();
        let file = scratch.path("ringway.toml");
        let upstreams = [one.toml(""), two("required = true")];
        let text = process_lines(layout, "") + &route("/mcp", "", &upstreams);
        std::fs::write(&file, text).expect("ours");
        let ended = run_to_end(command_with_config(&file));
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        let last = ended.stderr.lines().next_back().expect("a sentence");
        for word in ["mcp", "two", "cannot run \"no-such-program\""] {
            assert!(last.contains(word), "{word}: {last}");
        }
    });
}
