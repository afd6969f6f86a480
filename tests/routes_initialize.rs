//! A session over several servers: what `initialize` says of all of them, whom it waits for, and what ends with it.
//! One server's trouble is nobody else's: a session begins, lives and ends with those that are there.

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::catalogue::{Catalogue, Kind};
use support::gateway::{command_with_config, run_to_end};
use support::mcp::{LATEST, request_body};
use support::peer::{Asked, Peer, Reached};
use support::routes::{
    Client, Served, call, initialize, is_down, joined, process_lines, route, text_of, until,
    wait_listed,
};
use support::stream::value;
use support::{Layout, Request, Scratch, on_both_drivers, on_every_way, process_runs, wait_until};

fn three() -> [Peer; 3] {
    three_of([Catalogue::usual(), Catalogue::usual(), Catalogue::usual()])
}

fn three_of(catalogues: [Catalogue; 3]) -> [Peer; 3] {
    let [one, two, three] = catalogues;
    [
        Peer::stdio("one", one),
        Peer::http("two", two),
        Peer::shared_http("three", three),
    ]
}

fn start(layout: Layout, peers: &[Peer]) -> Served {
    Served::start(layout, &[joined(&peers.iter().collect::<Vec<_>>())])
}

/// The route `/mcp` in which each server has lines of its own.
fn with_lines(peers: &[(&Peer, &str)]) -> String {
    let upstreams: Vec<String> = peers.iter().map(|(peer, lines)| peer.toml(lines)).collect();
    route("/mcp", "", &upstreams)
}

/// These servers, of which one is not waited for long. Who is to be there has all the time that a busy machine takes.
fn impatient_of(peers: &[Peer], at: usize) -> Vec<String> {
    let peers = peers.iter().enumerate();
    let upstreams = peers.map(|(number, peer)| match number == at {
        true => peer.toml("start-timeout = \"1s\""),
        false => peer.toml(""),
    });
    upstreams.collect()
}

fn opens(asked: &Asked) -> bool {
    asked.is("initialize")
}

/// The reason word of a refused `initialize`, which opens no session.
#[track_caller]
fn refused_because(response: &support::Response) -> Value {
    assert_eq!(response.field("mcp-session-id"), None, "{response}");
    assert_eq!(response.status, 200, "{response}");
    let message = response.message();
    assert_eq!(message["error"]["code"], -32603, "{response}");
    message["error"]["data"]["reason"].clone()
}

/// An answer that says that this server is not available.
#[track_caller]
fn expect_down(response: &support::Response, peer: &Peer) {
    assert!(is_down(response), "{response}");
    let message = response.message()["error"]["message"].to_string();
    let named = format!("upstream server {} ", peer.name);
    assert!(message.contains(&named), "{message}");
}

// --- What it says.

#[test]
fn capabilities_are_those_of_any_server() {
    on_every_way(|layout| {
        let peers = three_of([
            json!({ "tools": {}, "resources": { "subscribe": true } }),
            json!({ "prompts": { "listChanged": true }, "tools": {} }),
            json!({ "tools": { "listChanged": true }, "resources": { "listChanged": true }, "completions": {}, "logging": {} }),
        ]
        .map(|own| Catalogue::usual().capabilities(own)));
        let gateway = start(layout, &peers);
        let result = initialize(&gateway, "/mcp", LATEST, None).result();
        let all = &result["capabilities"];
        assert_eq!(all["tools"]["listChanged"], true, "{result}");
        assert_eq!(all["prompts"]["listChanged"], true, "{result}");
        assert_eq!(all["resources"]["listChanged"], true, "{result}");
        assert_eq!(all["resources"]["subscribe"], true, "{result}");
        assert!(all["completions"].is_object(), "{result}");
        assert!(all["logging"].is_object(), "{result}");
        assert!(all.get("tasks").is_none(), "nobody has tasks: {result}");
        assert!(result["serverInfo"]["name"].is_string(), "{result}");
        // The shared ones were asked at the start, the third for this session.
        for peer in &peers {
            assert_eq!(peer.count(opens), 1, "{}", peer.name);
        }
    });
}

/// What no server has is not promised.
#[test]
fn capabilities_of_nobody_are_not_promised() {
    on_both_drivers(|layout| {
        let peers = ["one", "two"].map(|name| {
            Peer::stdio(
                name,
                Catalogue::usual().capabilities(json!({ "tools": {} })),
            )
        });
        let gateway = start(layout, &peers);
        let result = initialize(&gateway, "/mcp", LATEST, None).result();
        let all = result["capabilities"].as_object().expect("an object");
        assert!(all.contains_key("tools"));
        for none in ["prompts", "resources", "completions", "logging", "tasks"] {
            assert!(!all.contains_key(none), "{none}: {result}");
        }
    });
}

#[test]
fn instructions_of_all_servers_are_joined_in_order() {
    on_both_drivers(|layout| {
        let peers = three_of([
            Catalogue::usual().instructions("First: say \"please\"."),
            Catalogue::usual(),
            Catalogue::usual().instructions("Third \u{1f600}\nline."),
        ]);
        let gateway = start(layout, &peers);
        let result = initialize(&gateway, "/mcp", LATEST, None).result();
        let text = result["instructions"].as_str().expect("text");
        let first = text.find("First: say \"please\".").expect(text);
        let third = text.find("Third \u{1f600}\nline.").expect(text);
        assert!(first < third, "{text}");

        let silent = ["one", "two"].map(|name| Peer::stdio(name, Catalogue::usual()));
        let gateway = start(layout, &silent);
        let result = initialize(&gateway, "/mcp", LATEST, None).result();
        assert!(result.get("instructions").is_none(), "{result}");
    });
}

/// A session speaks what all of its servers speak, and each server hears its own version.
#[test]
fn version_is_the_lowest_of_all() {
    on_both_drivers(|layout| {
        for versions in [
            ["2025-03-26", "2025-11-25", "2025-06-18"],
            ["2025-11-25", "2025-03-26", "2025-06-18"],
            ["2025-06-18", "2025-11-25", "2025-03-26"],
        ] {
            let peers = three_of(versions.map(|version| Catalogue::usual().version(version)));
            let gateway = start(layout, &peers);
            for (asked, given) in [
                (LATEST, "2025-03-26"),
                ("2025-03-26", "2025-03-26"),
                ("2024-11-05", "2024-11-05"),
            ] {
                if asked == "2024-11-05" && versions[1] != "2025-11-25" {
                    // A server of each session that insists on another version than it was asked for.
                    continue;
                }
                let result = initialize(&gateway, "/mcp", asked, None).result();
                let version = result["protocolVersion"].as_str().expect("text");
                assert!(version <= given, "{asked}: {result}");
            }
            let client = Client::open(&gateway);
            assert_eq!(client.session.version, "2025-03-26", "{versions:?}");
            for peer in &peers {
                let text = client.call_text(&format!("{}-echo", peer.name), "v");
                assert_eq!(text, format!("{}:echo:v", peer.name));
            }
            for (peer, version) in peers[1..].iter().zip(&versions[1..]) {
                let calls = peer.server().seen(|seen| seen.is("tools/call"));
                assert_eq!(
                    calls[0].field("mcp-protocol-version"),
                    Some(*version),
                    "{}",
                    peer.name
                );
            }
        }
    });
}

/// The gateway's handshakes: one with each shared server for all, one with each other for each session.
#[test]
fn each_server_is_greeted_as_often_as_it_must() {
    on_every_way(|layout| {
        let peers = three();
        let gateway = start(layout, &peers);
        let clients: Vec<Client<'_>> = (0..5).map(|_| Client::open(&gateway)).collect();
        for (peer, count) in peers.iter().zip([1, 5, 1]) {
            let what = "the handshakes";
            assert_eq!(peer.wait_asked(what, count, opens).len(), count);
            peer.wait_asked("that they are done", count, |asked| {
                asked.is("notifications/initialized")
            });
        }
        // What a client says of itself reaches only the server that is its own.
        for client in &clients {
            let said = client.notify("notifications/roots/list_changed", &json!({}));
            assert_eq!(said.status, 202);
        }
        peers[1].wait_asked("the news", 5, |asked| {
            asked.is("notifications/roots/list_changed")
        });
        for peer in [&peers[0], &peers[2]] {
            assert!(peer.asked(|asked| asked.text.contains("roots")).is_empty());
        }
        // A ping is the gateway's own.
        assert_eq!(clients[0].result("ping", &json!({})), json!({}));
        for peer in &peers {
            assert_eq!(peer.count(|asked| asked.is("ping")), 0, "{}", peer.name);
        }
    });
}

/// Whoever logs is told how much.
#[test]
fn log_level_reaches_every_server_that_logs() {
    on_both_drivers(|layout| {
        let silent = Catalogue::usual().capabilities(json!({ "tools": {} }));
        let peers = [
            Peer::stdio("one", Catalogue::usual()),
            Peer::http("two", Catalogue::usual()),
            Peer::shared_http("three", Catalogue::usual()),
            Peer::stdio("four", silent),
        ];
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let debug = json!({ "level": "debug" });
        assert_eq!(client.result("logging/setLevel", &debug), json!({}));
        for peer in &peers[..3] {
            wait_until(&format!("{} is told", peer.name), || {
                peer.count(|asked| {
                    asked.is("logging/setLevel") && asked.params()["level"] == "debug"
                }) == 1
            });
        }
        let wrong = json!({ "level": "loud" });
        assert_eq!(client.refusal("logging/setLevel", &wrong).0, -32602);
        assert_eq!(peers[3].count(|asked| asked.is("logging/setLevel")), 0);
    });
}

#[test]
fn start_line_names_each_route_and_its_upstreams() {
    on_every_way(|layout| {
        let peers = three();
        let routes = [
            route("/a", "", &[peers[0].toml(""), peers[1].toml("")]),
            route("/b/c", "name = \"other\"", &[peers[2].toml("")]),
        ];
        let gateway = Served::start(layout, &routes);
        let first = gateway.banner.clone();
        let second = gateway
            .stdout
            .wait_for("a line for the second route", |text| text.ends_with('\n'));
        assert!(
            first.contains(&format!("http://{}/a ", gateway.address)),
            "{first}"
        );
        assert!(first.contains(" route=a "), "{first}");
        assert!(first.ends_with(" upstreams=one,two"), "{first}");
        assert!(
            second.contains(&format!("http://{}/b/c ", gateway.address)),
            "{second}"
        );
        assert!(second.contains(" route=other "), "{second}");
        assert!(second.ends_with(" upstreams=three\n"), "{second}");
        for line in [first.as_str(), second.trim_end()] {
            assert!(
                line.contains(&format!(" shards={} ", layout.shards)),
                "{line}"
            );
            assert!(line.contains(" driver="), "{line}");
        }
        assert_eq!(second.lines().count(), 1, "{second}");
    });
}

// --- Whom it waits for.

/// A public fault: one server that is down takes the whole gateway's `initialize` with it.
#[test]
fn session_begins_with_those_that_are_there() {
    on_every_way(|layout| {
        for at in 0..3 {
            let peers = three();
            peers[at].down();
            let upstreams = impatient_of(&peers, at);
            let gateway = Served::start(layout, &[route("/mcp", "", &upstreams)]);
            let client = Client::open(&gateway);
            for (number, peer) in peers.iter().enumerate() {
                let name = format!("{}-echo", peer.name);
                if number == at {
                    let response = client.ask("tools/call", &call(&name, ""));
                    expect_down(&response, peer);
                } else {
                    assert_eq!(
                        client.call_text(&name, "n"),
                        format!("{}:echo:n", peer.name)
                    );
                }
            }
        }
    });
}

/// Refusals and nonsense instead of a handshake are as good as a server that is down.
#[test]
fn server_that_refuses_the_handshake_is_left_out() {
    on_both_drivers(|layout| {
        let answers: [Result<Value, Value>; 4] = [
            Err(json!({ "code": -32603, "message": "broken" })),
            Ok(json!({})),
            Ok(json!({ "protocolVersion": 7, "capabilities": {} })),
            Ok(json!([])),
        ];
        for answer in answers {
            for at in 0..3 {
                let peers = three();
                let own = answer.clone();
                peers[at].answer(opens, move |_| own.clone());
                let upstreams = impatient_of(&peers, at);
                let gateway = Served::start(layout, &[route("/mcp", "", &upstreams)]);
                let client = Client::open(&gateway);
                let mut expected: Vec<String> = peers
                    .iter()
                    .map(|peer| format!("{}-ask", peer.name))
                    .collect();
                expected.remove(at);
                let listed = client.names(Kind::Prompts);
                let asks: Vec<_> = listed.iter().filter(|name| name.ends_with("ask")).collect();
                assert_eq!(asks, expected.iter().collect::<Vec<_>>(), "{answer:?}");
            }
        }
        for status in [
            "401 Unauthorized",
            "404 Not Found",
            "500 Internal Server Error",
        ] {
            let peers = three();
            peers[1].server().on_first(
                |seen| seen.is("initialize"),
                move |exchange| {
                    exchange.status(status, None, "");
                },
            );
            let gateway = start(layout, &peers);
            let client = Client::open(&gateway);
            assert_eq!(client.call_text("one-echo", "n"), "one:echo:n", "{status}");
            assert_eq!(
                client.call_text("three-echo", "n"),
                "three:echo:n",
                "{status}"
            );
        }
    });
}

/// A server that does not answer the handshake holds nobody up beyond its own time-out: all other time-outs here are
/// longer than a test may take.
#[test]
fn slow_server_holds_nobody_up_beyond_its_own_timeout() {
    const LONG: &str = "start-timeout = \"10m\"";
    on_every_way(|layout| {
        for at in 0..3 {
            let peers = three();
            peers[at].hold(opens);
            let upstreams: Vec<String> = peers
                .iter()
                .enumerate()
                .map(|(number, peer)| {
                    peer.toml(if number == at {
                        "start-timeout = \"1s\""
                    } else {
                        LONG
                    })
                })
                .collect();
            let gateway = Served::start_with(layout, LONG, &[route("/mcp", "", &upstreams)]);
            let client = Client::open(&gateway);
            let tools = client.names(Kind::Tools);
            for (number, peer) in peers.iter().enumerate() {
                let name = format!("{}-echo", peer.name);
                assert_eq!(tools.contains(&name), number != at, "{tools:?}");
            }
            assert!(peers[at].count(opens) >= 1);
            // It is asked again, and is there when it answers.
            peers[at].forget_rules();
            let name = format!("{}-echo", peers[at].name);
            wait_until("it is there", || client.has(Kind::Tools, &name));
            assert_eq!(
                client.call_text(&name, "late"),
                format!("{}:echo:late", peers[at].name)
            );
        }
    });
}

/// Two that are slow are waited for at the same time.
#[test]
fn handshakes_of_a_session_are_made_at_the_same_time() {
    on_both_drivers(|layout| {
        let peers = ["two", "four", "six"].map(|name| Peer::http(name, Catalogue::usual()));
        for peer in &peers {
            peer.hold(opens);
        }
        let gateway = start(layout, &peers);
        let mut connection = gateway.connect();
        let body = support::mcp::initialize_body("0", LATEST);
        connection.send(Request::post(body).bytes());
        let held: Vec<_> = peers
            .iter()
            .map(|peer| peer.take("the handshake", opens))
            .collect();
        assert!(!connection.has_something());
        for (peer, held) in peers.iter().zip(held).rev() {
            held.reply(&json!({
                "protocolVersion": LATEST,
                "capabilities": { "tools": {} },
                "serverInfo": { "name": peer.name, "version": "1" },
                "instructions": peer.name,
            }));
        }
        let result = connection.response().result();
        let text = result["instructions"].as_str().expect("text");
        let at = ["two", "four", "six"].map(|name| text.find(name).expect(text));
        assert!(at.is_sorted(), "{text}");
    });
}

/// Without a server that is required there is no start: the operator is told which one.
#[test]
fn required_server_that_is_not_there_ends_the_start() {
    on_both_drivers(|layout| {
        for reached in [Reached::Stdio, Reached::SharedHttp] {
            let one = Peer::stdio("one", Catalogue::usual());
            let two = Peer::new(reached, "needed", Catalogue::usual());
            two.down();
            let text = process_lines(layout, "")
                + &route(
                    "/mcp",
                    "name = \"our-route\"",
                    &[
                        one.toml(""),
                        two.toml("required = true\nstart-timeout = \"1s\""),
                    ],
                );
            let scratch = Scratch::new();
            let file = scratch.path("ringway.toml");
            std::fs::write(&file, text).expect("ours");
            let ended = run_to_end(command_with_config(&file));
            assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
            assert!(ended.stdout.is_empty(), "{}", ended.stdout);
            for part in ["our-route", "needed"] {
                assert!(ended.stderr.contains(part), "{}", ended.stderr);
            }
            for pid in one.pids() {
                one.wait_ended(pid);
            }
        }
    });
}

/// Later on it ends no session that is there, but none begins; and none of the half that was begun is left.
#[test]
fn no_session_begins_without_a_required_server() {
    on_every_way(|layout| {
        for at in 0..3 {
            let peers = three();
            let upstreams: Vec<String> = peers
                .iter()
                .enumerate()
                .map(|(number, peer)| peer.toml(if number == at { "required = true" } else { "" }))
                .collect();
            let gateway = Served::start(layout, &[route("/mcp", "", &upstreams)]);
            let client = Client::open(&gateway);
            peers[at].down();
            let name = format!("{}-echo", peers[at].name);
            wait_until("it is down", || {
                is_down(&client.ask("tools/call", &call(&name, "")))
            });
            wait_until("no session begins", || {
                let response = initialize(&gateway, "/mcp", LATEST, None);
                let begins = response.field("mcp-session-id").is_some();
                if begins {
                    // Its shard had not heard of it yet; another one may have.
                    let early = Client::begun(&gateway, "/mcp", None, &response);
                    assert_eq!(early.delete(), 204);
                } else {
                    assert_eq!(refused_because(&response), "upstream_down", "{response}");
                }
                !begins
            });
            // The session that was there lives on with the others.
            for (number, peer) in peers.iter().enumerate() {
                if number != at {
                    let name = format!("{}-echo", peer.name);
                    assert_eq!(
                        client.call_text(&name, "n"),
                        format!("{}:echo:n", peer.name)
                    );
                }
            }
            if at != 1 {
                let own = peers[1].sessions_of(|asked| asked.is("tools/call"));
                wait_until("what was begun is ended", || {
                    BTreeSet::from_iter(peers[1].live()) == own
                });
            }
            peers[at].up();
            wait_until("sessions begin again", || {
                let response = initialize(&gateway, "/mcp", LATEST, None);
                response.field("mcp-session-id").is_some()
            });
        }
    });
}

// --- One server's trouble.

/// Calls at the server that dies are answered at once, calls at the others are not touched.
#[test]
fn death_of_one_server_answers_its_own_calls_only() {
    on_every_way(|layout| {
        for at in 0..3 {
            let peers = three();
            for peer in &peers {
                peer.hold(|asked| asked.calls("hold"));
            }
            let gateway = start(layout, &peers);
            let clients = [0, 1].map(|_| Client::open(&gateway));
            let mut connections = Vec::new();
            for client in &clients {
                for peer in &peers {
                    let params = call(&format!("{}-hold", peer.name), "n");
                    connections.push(client.begin("tools/call", &params));
                }
            }
            for peer in &peers {
                wait_until("both are held", || peer.held_count() == 2);
            }
            peers[at].down();
            for round in [0, 3] {
                let response = connections[round + at].response();
                expect_down(&response, &peers[at]);
            }
            for (number, peer) in peers.iter().enumerate() {
                if number == at {
                    continue;
                }
                for _ in 0..2 {
                    let held = peer.take("the call", |asked| asked.calls("hold"));
                    held.reply(&json!({ "content": [{ "type": "text", "text": "held" }] }));
                }
                for round in [0, 3] {
                    let response = connections[round + number].response();
                    assert_eq!(text_of(&response.result()), "held");
                }
            }
        }
    });
}

/// A shared server that was started again is told what is still wanted of it.
#[test]
fn subscriptions_are_restored_at_the_server_that_comes_back() {
    on_every_way(|layout| {
        for reached in [Reached::Stdio, Reached::SharedHttp] {
            let one = Peer::new(reached, "one", Catalogue::usual());
            let two = Peer::stdio("two", Catalogue::usual());
            let gateway = Served::start(layout, &[joined(&[&one, &two])]);
            let client = Client::open(&gateway);
            let mut stream = client.stream();
            client.subscribe("one-file:///a");
            client.subscribe("two-file:///a");
            let subscribes = |asked: &Asked| asked.is("resources/subscribe");
            one.wait_asked("the subscription", 1, subscribes);
            one.down();
            wait_until("it is down", || {
                is_down(&client.ask("tools/call", &call("one-echo", "")))
            });
            one.up();
            one.wait_asked("the subscription again", 2, subscribes);
            assert_eq!(one.names("resources/subscribe"), ["file:///a", "file:///a"]);
            until(&mut stream, "that it may have changed", |message| {
                message["method"] == "notifications/resources/updated"
                    && message["params"]["uri"] == "one-file:///a"
            });
            assert_eq!(two.count(subscribes), 1);
        }
    });
}

/// A server that has forgotten a session of its own is greeted again; the client's session and the others' are what
/// they were.
#[test]
fn forgotten_session_at_one_server_is_renewed_there_only() {
    on_both_drivers(|layout| {
        let peers = ["two", "four"].map(|name| Peer::http(name, Catalogue::usual()));
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        assert_eq!(client.call_text("two-echo", "a"), "two:echo:a");
        peers[0].server().forget_sessions();
        assert_eq!(client.call_text("two-echo", "b"), "two:echo:b");
        assert_eq!(client.call_text("four-echo", "c"), "four:echo:c");
        assert_eq!(peers[0].count(opens), 2);
        assert_eq!(peers[1].count(opens), 1);
        assert_eq!(client.names(Kind::Prompts).len(), 4);
    });
}

// --- Whose is what.

/// Many sessions at once at all servers, with the same ids and tokens: each gets its own, its reports before its answer.
#[test]
fn sessions_are_isolated_under_load() {
    const SESSIONS: usize = 12;
    const CALLS: usize = 30;
    on_every_way(|layout| {
        let peers = [
            Peer::stdio("one", Catalogue::usual()),
            Peer::http("two", Catalogue::usual()),
            Peer::shared_http("three", Catalogue::usual()),
            Peer::http("four", Catalogue::usual()),
        ];
        let gateway = start(layout, &peers);
        std::thread::scope(|scope| {
            for session in 0..SESSIONS {
                let (gateway, peers) = (&gateway, &peers);
                scope.spawn(move || {
                    let client = Client::open(gateway);
                    let mut connection = gateway.connect();
                    for number in 0..CALLS {
                        let peer = &peers[(session + number) % peers.len()];
                        let nonce = format!("nonce-{session}-{number}");
                        let params = call(&format!("{}-echo", peer.name), &nonce);
                        let id = (number % 3).to_string();
                        let body = request_body(&id, "tools/call", &params.to_string());
                        let response = connection.ask(&client.post(body));
                        assert_eq!(
                            text_of(&response.result()),
                            format!("{}:echo:{nonce}", peer.name)
                        );
                        assert_eq!(response.raw_id(), Some(id));
                        if number % 10 == 0 {
                            assert_eq!(client.names(Kind::Prompts).len(), 8);
                        }
                    }
                });
            }
        });
        for peer in &peers {
            let calls = peer.asked(|asked| asked.is("tools/call"));
            assert_eq!(calls.len(), SESSIONS * CALLS / peers.len(), "{}", peer.name);
            if peer.reached() != Reached::Http {
                continue;
            }
            // One upstream session a session, and never another's word in it.
            for upstream in peer.sessions_of(|asked| asked.is("tools/call")) {
                let of_it = calls
                    .iter()
                    .filter(|asked| asked.session.as_ref() == Some(&upstream));
                let owners: BTreeSet<String> = of_it
                    .map(|asked| {
                        let nonce = asked.params()["arguments"]["nonce"].as_str();
                        let mut parts = nonce.expect("a nonce").split('-');
                        parts.nth(1).expect("a session").to_owned()
                    })
                    .collect();
                assert_eq!(owners.len(), 1, "{}: {owners:?}", peer.name);
            }
            assert_eq!(
                peer.sessions_of(|asked| asked.is("tools/call")).len(),
                SESSIONS
            );
        }
    });
}

/// Reports of many calls at all servers at once.
#[test]
fn progress_under_load_is_the_calls_own() {
    const ROUNDS: usize = 8;
    on_every_way(|layout| {
        let peers = three();
        for peer in &peers {
            peer.hold(|asked| asked.calls("hold"));
        }
        let gateway = start(layout, &peers);
        let clients: Vec<Client<'_>> = (0..ROUNDS).map(|_| Client::open(&gateway)).collect();
        let mut waiting = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            for peer in &peers {
                let nonce = format!("{}-{number}", peer.name);
                let mut params = call(&format!("{}-hold", peer.name), &nonce);
                params["_meta"] = json!({ "progressToken": 1 });
                waiting.push((nonce, client.begin("tools/call", &params)));
            }
        }
        for peer in &peers {
            wait_until("all are held", || peer.held_count() == ROUNDS);
            for _ in 0..ROUNDS {
                let mut held = peer.take("a call", |asked| asked.calls("hold"));
                let nonce = held.asked.params()["arguments"]["nonce"].clone();
                for step in 1..4 {
                    held.progress(step, nonce.as_str().expect("a nonce"));
                }
                held.reply(&json!({ "content": [{ "type": "text", "text": nonce }] }));
            }
        }
        for (nonce, mut connection) in waiting {
            let messages = connection.response().messages();
            assert_eq!(messages.len(), 4, "{messages:?}");
            for message in &messages[..3] {
                assert_eq!(message["params"]["message"], nonce.as_str());
                assert_eq!(message["params"]["progressToken"], 1);
            }
            assert_eq!(text_of(&messages[3]["result"]), nonce);
        }
    });
}

/// What goes on one session's streams is none of the others'.
#[test]
fn word_of_a_sessions_own_server_is_heard_in_that_session_only() {
    on_every_way(|layout| {
        let peers = ["two", "four"].map(|name| Peer::http(name, Catalogue::usual()));
        let gateway = start(layout, &peers);
        let clients = [0, 1].map(|_| Client::open(&gateway));
        let mut streams = clients.each_ref().map(Client::stream);
        for peer in &peers {
            peer.wait_listened(2);
        }
        let log = |text: &str| {
            json!({
                "jsonrpc": "2.0",
                "method": "notifications/message",
                "params": { "level": "info", "data": text },
            })
        };
        for peer in &peers {
            for (number, client) in clients.iter().enumerate() {
                let nonce = format!("{}-{number}", peer.name);
                client.call_text(&format!("{}-echo", peer.name), &nonce);
                let own = peer.sessions_of(|asked| asked.has_nonce(&nonce));
                assert_eq!(own.len(), 1);
                peer.say_in(own.first().expect("one"), &log(&nonce));
            }
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let heard: BTreeSet<String> = (0..2)
                .map(|_| {
                    let message = value(&stream.message());
                    assert_eq!(message["method"], "notifications/message", "{message}");
                    message["params"]["data"].as_str().expect("text").to_owned()
                })
                .collect();
            let expected = ["two", "four"].map(|name| format!("{name}-{number}"));
            assert_eq!(heard, BTreeSet::from(expected));
        }
    });
}

// --- What ends with it.

#[test]
fn delete_ends_all_that_the_session_had_anywhere() {
    on_every_way(|layout| {
        let peers = [
            Peer::stdio("one", Catalogue::usual()),
            Peer::http("two", Catalogue::usual()),
            Peer::shared_http("three", Catalogue::usual()),
            Peer::http("four", Catalogue::usual()),
        ];
        for peer in &peers {
            peer.hold(|asked| asked.calls("hold"));
        }
        let gateway = start(layout, &peers);
        let stays = Client::open(&gateway);
        let client = Client::open(&gateway);
        let mut stream = client.stream();
        for peer in [&peers[1], &peers[3]] {
            assert_eq!(peer.live().len(), 2);
        }
        for peer in &peers {
            client.subscribe(&format!("{}-file:///a", peer.name));
        }
        stays.subscribe("three-file:///a");
        let calls: Vec<_> = peers
            .iter()
            .map(|peer| client.begin("tools/call", &call(&format!("{}-hold", peer.name), "n")))
            .collect();
        let held: Vec<_> = peers
            .iter()
            .map(|peer| peer.take("the call", |asked| asked.calls("hold")))
            .collect();
        assert_eq!(client.delete(), 204);
        stream.expect_end();
        for mut call in calls {
            let response = call.response();
            let messages = response.messages();
            assert!(
                messages.iter().all(|one| one["error"].is_object()),
                "{response}"
            );
        }
        for peer in [&peers[1], &peers[3]] {
            wait_until("its session is ended", || peer.live().len() == 1);
        }
        peers[0].wait_asked("the end of the subscription", 1, |asked| {
            asked.is("resources/unsubscribe") && asked.name() == "file:///a"
        });
        for (peer, held) in [&peers[0], &peers[2]].into_iter().zip([&held[0], &held[2]]) {
            let cancel =
                peer.wait_asked("the cancel", 1, |asked| asked.is("notifications/cancelled"));
            assert_eq!(
                cancel[0].params()["requestId"].to_string(),
                held.asked.id().expect("an id")
            );
        }
        // What another session wants stays.
        assert_eq!(peers[2].count(|asked| asked.is("resources/unsubscribe")), 0);
        assert_eq!(peers[2].count(|asked| asked.is("DELETE")), 0);
        for peer in &peers {
            let text = stays.call_text(&format!("{}-echo", peer.name), "n");
            assert_eq!(text, format!("{}:echo:n", peer.name));
        }
        let gone = client.ask("tools/list", &json!({}));
        gone.expect_error(404, -32001, Some(&(client.next_id() - 1).to_string()));
    });
}

/// The end of a session in the middle of what several servers are asked for it.
#[test]
fn session_that_ends_while_its_lists_are_gathered_takes_nothing_with_it() {
    on_every_way(|layout| {
        let peers = three();
        for peer in &peers {
            peer.hold(|asked| asked.method.ends_with("/list") || asked.is("logging/setLevel"));
        }
        let gateway = start(layout, &peers);
        let stays = Client::open(&gateway);
        let client = Client::open(&gateway);
        let mut pending: Vec<_> = ["tools/list", "prompts/list", "resources/templates/list"]
            .map(|method| client.begin(method, &json!({})))
            .into();
        let level = json!({ "level": "debug" });
        pending.push(client.begin("logging/setLevel", &level));
        for peer in &peers {
            wait_until("all is held", || peer.held_count() == 4);
        }
        // One part is answered before, the others never.
        let page = peers[0].take("a list", |asked| asked.is("tools/list"));
        page.reply(&json!({ "tools": [] }));
        assert_eq!(client.delete(), 204);
        for mut connection in pending {
            let response = connection.response();
            assert!(response.message()["error"].is_object(), "{response}");
        }
        wait_until("its own session upstream is ended", || {
            peers[1].live().len() == 1
        });
        for peer in &peers {
            peer.forget_rules();
        }
        assert_eq!(stays.names(Kind::Tools).len(), 12);
        assert_eq!(Client::open(&gateway).names(Kind::Prompts).len(), 6);
    });
}

/// A session that nobody uses ends by itself, with all that it had.
#[test]
fn session_that_nobody_uses_ends_everywhere() {
    on_every_way(|layout| {
        let peers = three();
        let upstreams: Vec<String> = peers.iter().map(|peer| peer.toml("")).collect();
        let limits = "limits = { session-ttl = \"3s\", session-unused-ttl = \"3s\" }";
        let gateway = Served::start(layout, &[route("/mcp", limits, &upstreams)]);
        let used = Client::open(&gateway);
        used.subscribe("one-file:///a");
        used.subscribe("three-file:///a");
        let _unused = initialize(&gateway, "/mcp", LATEST, None).result();
        wait_until("both are ended", || peers[1].live().is_empty());
        assert_eq!(peers[1].given_count(), 2);
        for peer in [&peers[0], &peers[2]] {
            peer.wait_asked("the end of the subscription", 1, |asked| {
                asked.is("resources/unsubscribe")
            });
        }
        assert_eq!(used.ask("tools/list", &json!({})).status, 404);
    });
}

#[test]
fn stop_ends_every_server_and_every_session() {
    on_every_way(|layout| {
        let peers = [
            Peer::stdio("one", Catalogue::usual()),
            Peer::http("two", Catalogue::usual()),
            Peer::shared_http("three", Catalogue::usual()),
            Peer::stdio("four", Catalogue::usual()),
        ];
        let mut gateway = start(layout, &peers);
        let clients = [0, 1, 2].map(|_| {
            let client = Client::open(&gateway);
            let names = client.names(Kind::Tools);
            assert_eq!(names.len(), 16);
            client.session.id.clone()
        });
        assert_eq!(clients.iter().collect::<BTreeSet<_>>().len(), 3);
        let pids = [peers[0].pid(), peers[3].pid()];
        assert_eq!(peers[1].live().len(), 3);
        gateway.signal(Signal::TERM);
        let status = gateway.gateway_mut().wait();
        assert_eq!(status.code(), Some(0), "{}", gateway.stderr.text());
        for pid in pids {
            assert!(!process_runs(pid), "{pid}");
        }
        assert!(peers[1].live().is_empty(), "{:?}", peers[1].live());
        assert!(peers[2].live().is_empty(), "{:?}", peers[2].live());
    });
}

/// Whoever waits when the time for the drain is over is told so, whatever kind of server it is at, and nothing is
/// waited for beyond that.
#[test]
fn calls_are_told_when_the_drain_runs_out_of_time() {
    on_every_way(|layout| {
        for kinds in [&[0][..], &[1], &[2], &[0, 1], &[0, 1, 2]] {
            let peers = three();
            let peers: Vec<&Peer> = kinds.iter().map(|at| &peers[*at]).collect();
            let upstreams: Vec<String> = peers
                .iter()
                .map(|peer| peer.toml("prefix = \"always\""))
                .collect();
            let routes = [route("/mcp", "", &upstreams)];
            let mut gateway = Served::start_with(layout, "drain-timeout = \"500ms\"", &routes);
            let client = Client::open(&gateway);
            let mut calls = Vec::new();
            for peer in &peers {
                peer.hold(|asked| asked.calls("hold"));
                let params = call(&format!("{}-hold", peer.name), "n");
                calls.push((*peer, client.begin("tools/call", &params)));
                wait_until("it is held", || peer.held_count() == 1);
            }
            drop(client);
            gateway.signal(Signal::TERM);
            for (peer, connection) in &mut calls {
                let response = connection.response();
                let reason = match peer.reached() {
                    Reached::Http => "session_ended",
                    Reached::Stdio | Reached::SharedHttp => "draining",
                };
                assert_eq!(refused_because(&response), reason, "{response}");
            }
            let status = gateway.gateway_mut().wait();
            let log = gateway.stderr.text();
            assert_eq!(status.code(), Some(0), "{log}");
            let said = "calls in flight after --drain-timeout are cancelled";
            assert_eq!(log.matches(said).count(), 1, "{log}");
            assert!(!log.contains("could be told"), "{log}");
        }
    });
}

// --- Routes beside each other.

/// A session is one of its route: elsewhere it is as unknown as one that never was.
#[test]
fn session_of_one_route_is_unknown_on_another() {
    on_every_way(|layout| {
        let peers = three();
        let routes = [
            route("/a", "", &[peers[0].toml(""), peers[1].toml("")]),
            route("/b", "", &[peers[0].toml(""), peers[2].toml("")]),
        ];
        let gateway = Served::start(layout, &routes);
        // Several, so that both shards own some.
        for _ in 0..4 {
            let client = Client::open_at(&gateway, "/a");
            let stranger = client.at("/b");
            let response = stranger.ask("tools/list", &json!({}));
            assert_eq!(response.status, 404, "{response}");
            assert_eq!(response.message()["error"]["code"], -32001, "{response}");
            let get = stranger.of(Request::new("GET").add("Accept", "text/event-stream"));
            assert_eq!(gateway.ask(&get).status, 404);
            assert_eq!(stranger.delete(), 404);
            let said = stranger.notify("notifications/cancelled", &json!({ "requestId": 1 }));
            assert_eq!(said.status, 404);
            // It was not ended by that.
            assert_eq!(client.call_text("one-echo", "n"), "one:echo:n");
        }
        // Two routes with one command have a process each.
        assert_eq!(peers[0].pids().len(), 2);
    });
}

#[test]
fn token_of_one_route_opens_no_other() {
    on_every_way(|layout| {
        let peers = three();
        let scratch = Scratch::new();
        for (file, text) in [
            ("tokens-a", "alice alice-secret-0123456789\n"),
            (
                "tokens-b",
                "bob bob-secret-0123456789\nbeth beth-secret-0123456789\n",
            ),
        ] {
            let path = scratch.path(file);
            std::fs::write(&path, text).expect("ours");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
                .expect("our file");
        }
        let routes = [
            // Relative to the configuration file.
            route("/a", "auth-token-file = \"tokens-a\"", &[peers[0].toml("")]),
            route("/b", "auth-token-file = \"tokens-b\"", &[peers[1].toml("")]),
            route("/open", "", &[peers[2].toml("")]),
        ];
        let gateway = Served::start_in(scratch, layout, "", &routes);
        let (alice, bob) = ("alice-secret-0123456789", "bob-secret-0123456789");
        for (path, token, status) in [
            ("/a", Some(alice), 200),
            ("/b", Some(bob), 200),
            ("/open", None, 200),
            ("/a", Some(bob), 401),
            ("/b", Some(alice), 401),
            ("/a", None, 401),
            ("/b", None, 401),
        ] {
            let response = initialize(&gateway, path, LATEST, token);
            assert_eq!(response.status, status, "{path} {token:?}: {response}");
        }
        // Whether there is such a path need not be told to everybody.
        let nowhere = initialize(&gateway, "/nowhere", LATEST, None);
        assert!(matches!(nowhere.status, 401 | 404), "{nowhere}");
        let client = Client::open_as(&gateway, "/b", LATEST, Some(bob));
        assert_eq!(client.call_text("echo", "n"), "two:echo:n");
        // Another name's token of the same route does not reach it.
        let stolen = client
            .of(Request::post(request_body("1", "tools/list", "{}")))
            .set("Authorization", "Bearer beth-secret-0123456789");
        assert_eq!(gateway.ask(&stolen).status, 404);
        // What the gateway is told is not for the servers.
        for peer in &peers[1..] {
            let told = peer
                .server()
                .seen(|seen| seen.field("authorization").is_some());
            assert!(told.is_empty(), "{told:?}");
        }
        assert!(!gateway.stderr.text().contains("secret"));
    });
}

/// One route's limit is reached, the other goes on.
#[test]
fn limits_are_the_routes_own() {
    on_both_drivers(|layout| {
        let peers = three();
        peers[0].hold(|asked| asked.calls("hold"));
        let routes = [
            route(
                "/small",
                "limits = { max-sessions = 2, max-calls-per-session = 1, max-subscriptions-per-session = 1 }",
                &[peers[0].toml(""), peers[1].toml("")],
            ),
            route("/large", "", &[peers[2].toml("")]),
        ];
        let gateway = Served::start(layout, &routes);
        let clients = [0, 1].map(|_| Client::open_at(&gateway, "/small"));
        let refused = initialize(&gateway, "/small", LATEST, None);
        assert_eq!(refused.status, 503, "{refused}");
        for _ in 0..4 {
            let _ = Client::open_at(&gateway, "/large");
        }
        let mut first = clients[0].begin("tools/call", &call("one-hold", "n"));
        let held = peers[0].take("the call", |asked| asked.calls("hold"));
        // The limit is that of the session, whichever server it asks.
        let second = clients[0].ask("tools/call", &call("two-echo", ""));
        assert_eq!(
            second.message()["error"]["data"]["reason"],
            "overloaded",
            "{second}"
        );
        assert_eq!(clients[1].call_text("two-echo", "n"), "two:echo:n");
        held.reply(&json!({ "content": [{ "type": "text", "text": "held" }] }));
        assert_eq!(text_of(&first.response().result()), "held");
        clients[0].subscribe("one-file:///a");
        let over = clients[0].ask("resources/subscribe", &json!({ "uri": "two-file:///a" }));
        assert_eq!(
            over.message()["error"]["data"]["reason"],
            "overloaded",
            "{over}"
        );
        assert_eq!(clients[0].delete(), 204);
        wait_until("there is room again", || {
            initialize(&gateway, "/small", LATEST, None).status == 200
        });
    });
}

// --- How servers are reached.

#[test]
fn command_gets_its_environment_and_its_directory() {
    on_both_drivers(|layout| {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.path("srv")).expect("ours");
        let directory = std::fs::canonicalize(scratch.path("srv")).expect("it is there");
        let one = Peer::stdio("one", Catalogue::usual());
        let two = Peer::stdio("two", Catalogue::usual());
        let lines = "environment = { KEY = \"v\u{e9} =1\" }\nworking-directory = \"srv\"";
        let routes = with_lines(&[(&one, lines), (&two, "")]);
        let gateway = Served::start_in(scratch, layout, "", &[routes]);
        let client = Client::open(&gateway);
        assert_eq!(client.call_text("one-echo", "n"), "one:echo:n");
        let hello = one.hello();
        assert_eq!(hello["environment"]["KEY"], "v\u{e9} =1");
        assert_eq!(hello["directory"], directory.to_str().expect("UTF-8"));
        let other = two.hello();
        assert!(other["environment"].get("KEY").is_none());
        assert_ne!(other["directory"], hello["directory"]);
        assert!(other["environment"]["PATH"].is_string());
    });
}

/// Which of a client's header lines a server gets is the operator's to say, server by server.
#[test]
fn header_lines_go_to_the_servers_that_are_to_have_them() {
    on_both_drivers(|layout| {
        let scratch = Scratch::new();
        std::fs::write(scratch.path("secret"), "from-file\n").expect("ours");
        let peers = ["two", "four", "six"].map(|name| Peer::http(name, Catalogue::usual()));
        let lines = "pass-headers = [\"x-*\", \"authorization\"]\n\
                     remove-headers = [\"x-internal\"]\n\
                     add-headers = { \"X-Key\" = \"plain\", \"X-File\" = { file = \"secret\" } }";
        let routes = with_lines(&[
            (&peers[0], lines),
            (&peers[1], "pass-headers = [\"x-tenant\"]"),
            (&peers[2], ""),
        ]);
        let gateway = Served::start_in(scratch, layout, "", &[routes]);
        let client = Client::open(&gateway);
        for peer in &peers {
            let request = client
                .request("tools/call", &call(&format!("{}-echo", peer.name), "n"))
                .add("X-Tenant", "t1")
                .add("X-Internal", "no")
                .add("Authorization", "Bearer of-the-client");
            assert_eq!(gateway.ask(&request).status, 200);
        }
        let seen = peers.each_ref().map(|peer| {
            let mut seen = peer.server().seen(|seen| seen.is("tools/call"));
            assert_eq!(seen.len(), 1);
            seen.remove(0)
        });
        let fields = |at: usize| {
            ["x-tenant", "x-internal", "authorization", "x-key", "x-file"]
                .map(|name| seen[at].field(name).unwrap_or("-"))
        };
        assert_eq!(
            fields(0),
            ["t1", "-", "Bearer of-the-client", "plain", "from-file"]
        );
        assert_eq!(fields(1), ["t1", "-", "-", "-", "-"]);
        assert_eq!(fields(2), ["-"; 5]);
        assert!(!gateway.stderr.text().contains("from-file"));
        wait_listed(
            &client,
            Kind::Prompts,
            &[
                "two-ask",
                "two-delete",
                "four-ask",
                "four-delete",
                "six-ask",
                "six-delete",
            ],
        );
    });
}
