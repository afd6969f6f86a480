//! A configuration that is read again (SIGHUP): what is new appears, what is gone ends, what is unchanged does not
//! notice, its calls in flight least of all. A file that cannot be used changes nothing.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use support::catalogue::{Catalogue, Kind};
use support::mcp::{LATEST, request_body};
use support::peer::{Asked, Peer, Reached};
use support::process::{Base, descendants};
use support::routes::{
    Client, Served, call, initialize, is_down, joined, joined_with, process_lines, route, text_of,
    until, wait_listed,
};
use support::{Layout, Scratch, Stream, on_both_drivers, on_every_way, process_runs, wait_until};

/// With a tool and a prompt only, so that lists are short.
fn small() -> Catalogue {
    Catalogue::new()
        .with(Kind::Tools, &["echo", "hold"])
        .with(Kind::Prompts, &["ask"])
        .with(Kind::Resources, &["file:///a"])
}

fn peer(reached: Reached, name: &str) -> Peer {
    let peer = Peer::new(reached, name, small());
    peer.hold(|asked| asked.calls("hold"));
    peer
}

/// Waits until the session's prompts are those of these servers.
#[track_caller]
fn wait_servers(client: &Client<'_>, servers: &[&str]) {
    let names: Vec<String> = servers.iter().map(|name| format!("{name}-ask")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    wait_listed(client, Kind::Prompts, &names);
}

#[track_caller]
fn expect_echo(client: &Client<'_>, server: &str) {
    let text = client.call_text(&format!("{server}-echo"), "n");
    assert_eq!(text, format!("{server}:echo:n"));
}

#[track_caller]
fn wait_tools_changed(stream: &mut Stream) {
    until(stream, "the change", |message| {
        message["method"] == "notifications/tools/list_changed"
    });
}

fn held_text() -> Value {
    json!({ "content": [{ "type": "text", "text": "held" }] })
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .expect("it runs")
        .count()
}

// --- What is new, what is gone.

#[test]
fn new_upstream_appears_in_sessions_that_are_there() {
    on_every_way(|layout| {
        for reached in Reached::ALL {
            let one = peer(Reached::Stdio, "one");
            let two = peer(Reached::Http, "two");
            let new = peer(reached, "new");
            let gateway = Served::start(layout, &[joined(&[&one, &two])]);
            let clients = [0, 1].map(|_| Client::open(&gateway));
            let mut streams = clients.each_ref().map(Client::stream);
            wait_servers(&clients[0], &["one", "two"]);
            gateway.reload(&[joined(&[&one, &new, &two])]);
            for (client, stream) in clients.iter().zip(&mut streams) {
                wait_tools_changed(stream);
                // In the order of the file.
                wait_servers(client, &["one", "new", "two"]);
                for server in ["one", "new", "two"] {
                    expect_echo(client, server);
                }
                client.subscribe("new-file:///a");
            }
            let late = Client::open(&gateway);
            wait_servers(&late, &["one", "new", "two"]);
            assert_eq!(one.pids().len(), 1);
            assert_eq!(two.given_count(), 3);
        }
    });
}

/// Its calls in flight are answered, its process and its sessions are ended, its names are unknown.
#[test]
fn removed_upstream_is_gone_with_all_that_it_had() {
    on_every_way(|layout| {
        for reached in Reached::ALL {
            let one = peer(Reached::Stdio, "one");
            let old = peer(reached, "old");
            let gateway = Served::start(layout, &[joined(&[&old, &one])]);
            let clients = [0, 1].map(|_| Client::open(&gateway));
            let mut streams = clients.each_ref().map(Client::stream);
            let mut calls = Vec::new();
            for client in &clients {
                wait_servers(client, &["old", "one"]);
                client.subscribe("old-file:///a");
                calls.push(client.begin("tools/call", &call("old-hold", "n")));
            }
            wait_until("both are held", || old.held_count() == 2);
            gateway.reload(&[joined_with("", &[&one])]);
            for call in &mut calls {
                let response = call.response();
                assert!(is_down(&response), "{response}");
            }
            for (client, stream) in clients.iter().zip(&mut streams) {
                wait_tools_changed(stream);
                // Alone it has no prefix: the names are new.
                wait_listed(client, Kind::Prompts, &["ask"]);
                assert_eq!(client.call_text("echo", "n"), "one:echo:n");
            }
            match reached {
                Reached::Stdio => {
                    let pid = old.pids()[0];
                    wait_until("its process has ended", || !process_runs(pid));
                    assert_eq!(old.pids().len(), 1, "it was started again");
                }
                _ => wait_until("its sessions are ended", || old.live().is_empty()),
            }
            assert_eq!(one.pids().len(), 1);
            let client = &clients[0];
            let unknown = client.refusal("resources/read", &json!({ "uri": "old-file:///a" }));
            assert_eq!(unknown.0, -32002);
        }
    });
}

#[test]
fn unchanged_upstream_keeps_its_process_its_sessions_and_its_calls() {
    on_every_way(|layout| {
        let peers = [
            peer(Reached::Stdio, "one"),
            peer(Reached::Http, "two"),
            peer(Reached::SharedHttp, "three"),
        ];
        let other = peer(Reached::Stdio, "other");
        let all: Vec<&Peer> = peers.iter().collect();
        let gateway = Served::start(layout, &[joined(&[&all[..], &[&other]].concat())]);
        let client = Client::open(&gateway);
        let mut stream = client.stream();
        let pid = peers[0].pid();
        let mut calls = Vec::new();
        for peer in &peers {
            client.subscribe(&format!("{}-file:///a", peer.name));
            let mut params = call(&format!("{}-hold", peer.name), "n");
            params["_meta"] = json!({ "progressToken": "t" });
            calls.push(client.begin("tools/call", &params));
        }
        let mut held: Vec<_> = peers
            .iter()
            .map(|peer| peer.take("the call", |asked| asked.calls("hold")))
            .collect();
        for held in &mut held {
            held.progress(1, "before");
        }
        gateway.reload(&[joined(&all)]);
        wait_servers(&client, &["one", "two", "three"]);
        gateway.reload(&[joined(&[&[&other], &all[..]].concat())]);
        wait_servers(&client, &["other", "one", "two", "three"]);
        for (mut call, mut held) in calls.into_iter().zip(held) {
            held.progress(2, "after");
            held.reply(&held_text());
            let messages = call.response().messages();
            assert_eq!(messages.len(), 3, "{messages:?}");
            assert_eq!(messages[0]["params"]["message"], "before");
            assert_eq!(messages[1]["params"]["message"], "after");
            assert_eq!(text_of(&messages[2]["result"]), "held");
        }
        assert_eq!(peers[0].pid(), pid);
        for peer in &peers {
            assert_eq!(
                peer.count(|asked| asked.is("initialize")),
                1,
                "{}",
                peer.name
            );
            assert_eq!(peer.count(|asked| asked.is("DELETE")), 0, "{}", peer.name);
            // Nor are their subscriptions touched.
            assert_eq!(peer.names("resources/subscribe"), ["file:///a"]);
            assert_eq!(peer.count(|asked| asked.is("resources/unsubscribe")), 0);
            peer.say_updated("file:///a");
            until(&mut stream, "the update", |message| {
                message["params"]["uri"] == format!("{}-file:///a", peer.name)
            });
        }
    });
}

/// Another command, another environment: it is another server, under the same name.
#[test]
fn changed_upstream_is_started_anew() {
    on_every_way(|layout| {
        let one = peer(Reached::Stdio, "one");
        let two = peer(Reached::Stdio, "two");
        let with = |lines: &str| route("/mcp", "", &[one.toml(""), two.toml(lines)]);
        let gateway = Served::start(layout, &[with("")]);
        let client = Client::open(&gateway);
        let (kept, old) = (one.pid(), two.pid());
        let mut held_call = client.begin("tools/call", &call("two-hold", "n"));
        let _held = two.take("the call", |asked| asked.calls("hold"));
        gateway.reload(&[with("environment = { KEY = \"new\" }")]);
        let response = held_call.response();
        assert!(is_down(&response), "{response}");
        two.wait_ended(old);
        wait_servers(&client, &["one", "two"]);
        expect_echo(&client, "two");
        expect_echo(&client, "one");
        assert_eq!(two.hello()["environment"]["KEY"], "new");
        assert_eq!(two.pids().len(), 2);
        assert_eq!(one.pids(), [kept]);
    });
}

/// Its subscriptions are asked for again at what takes its place, and so is the log level; a file that has not changed
/// is not told of.
#[test]
fn sessions_get_again_what_they_had_at_an_upstream_that_is_replaced() {
    on_every_way(|layout| {
        for reached in Reached::ALL {
            let one = peer(reached, "one");
            let two = peer(Reached::Stdio, "two");
            let gateway = Served::start(layout, &[joined(&[&one, &two])]);
            let clients = [0, 1].map(|_| Client::open(&gateway));
            let mut streams = clients.each_ref().map(Client::stream);
            for client in &clients {
                wait_servers(client, &["one", "two"]);
            }
            clients[0].subscribe("one-file:///a");
            let debug = json!({ "level": "debug" });
            assert_eq!(clients[0].result("logging/setLevel", &debug), json!({}));
            let is_level =
                |asked: &Asked| asked.is("logging/setLevel") && asked.params()["level"] == "debug";
            let is_subscribe = |asked: &Asked| asked.is("resources/subscribe");
            one.wait_asked("the level", 1, is_level);
            one.wait_asked("the subscription", 1, is_subscribe);
            let other = |time: &str| {
                let more = format!("request-timeout = {time:?}");
                route("/mcp", "", &[one.toml(&more), two.toml("")])
            };
            gateway.reload(&[other("50s")]);
            one.wait_asked("the level again", 2, is_level);
            one.wait_asked("the subscription again", 2, is_subscribe);
            assert_eq!(one.names("resources/subscribe"), ["file:///a", "file:///a"]);
            until(&mut streams[0], "that it may have changed", |message| {
                message["method"] == "notifications/resources/updated"
                    && message["params"]["uri"] == "one-file:///a"
            });
            wait_tools_changed(&mut streams[1]);
            wait_servers(&clients[0], &["one", "two"]);
            expect_echo(&clients[0], "one");
            assert_eq!(two.count(is_subscribe), 0);
        }
    });
}

/// What a route allows is in force for sessions that are there, and costs no server its life.
#[test]
fn new_rules_of_a_route_hold_at_once() {
    on_every_way(|layout| {
        let peers = [peer(Reached::Stdio, "one"), peer(Reached::Http, "two")];
        let all: Vec<&Peer> = peers.iter().collect();
        let gateway = Served::start(layout, &[joined(&all)]);
        let client = Client::open(&gateway);
        let mut stream = client.stream();
        expect_echo(&client, "one");
        let lines = "deny = { tools = [\"one-*\"] }";
        gateway.reload(&[joined_with(lines, &all)]);
        wait_tools_changed(&mut stream);
        wait_listed(&client, Kind::Tools, &["two-echo", "two-hold"]);
        let refused = client.refusal("tools/call", &call("one-echo", "denied"));
        assert_eq!(refused, (-32602, "Unknown tool: one-echo".to_owned()));
        gateway.reload(&[joined(&all)]);
        wait_tools_changed(&mut stream);
        wait_until("it is there again", || client.has(Kind::Tools, "one-echo"));
        expect_echo(&client, "one");
        assert_eq!(peers[0].count(|asked| asked.has_nonce("denied")), 0);
        assert_eq!(peers[0].pids().len(), 1);
        assert_eq!(peers[1].given_count(), 1);
    });
}

/// What was subscribed to before is told under the name that it has now.
#[test]
fn updates_follow_the_names_of_the_new_file() {
    on_both_drivers(|layout| {
        for reached in Reached::ALL {
            let one = peer(reached, "one");
            let two = peer(Reached::Stdio, "two");
            let gateway = Served::start(layout, &[joined(&[&one])]);
            let client = Client::open(&gateway);
            let mut stream = client.stream();
            one.wait_listened(1);
            client.subscribe("file:///a");
            for (peers, uri) in [
                (vec![&one, &two], "one-file:///a"),
                (vec![&one], "file:///a"),
            ] {
                gateway.reload(&[joined(&peers)]);
                let renamed = if peers.len() == 1 { "ask" } else { "one-ask" };
                wait_until("the names are new", || client.has(Kind::Prompts, renamed));
                one.say_updated("file:///a");
                let heard = until(&mut stream, "the update", |message| {
                    message["method"] == "notifications/resources/updated"
                });
                assert_eq!(heard.last().expect("one")["params"]["uri"], uri);
                // A shared server is asked once; the server of a session may hear it again.
                client.subscribe(uri);
                let asked = one.names("resources/subscribe");
                assert!(asked.iter().all(|uri| uri == "file:///a"), "{asked:?}");
                if reached != Reached::Http {
                    assert_eq!(asked.len(), 1, "{reached:?}");
                }
            }
        }
    });
}

#[test]
fn order_of_the_file_is_the_order_of_lists() {
    on_both_drivers(|layout| {
        let peers = [
            peer(Reached::Stdio, "one"),
            peer(Reached::Http, "two"),
            peer(Reached::SharedHttp, "three"),
        ];
        let [one, two, three] = &peers;
        let gateway = Served::start(layout, &[joined(&[one, two, three])]);
        let client = Client::open(&gateway);
        for order in [[three, one, two], [two, three, one], [one, two, three]] {
            gateway.reload(&[joined(&order)]);
            wait_servers(&client, &order.map(|peer| peer.name.as_str()));
        }
        assert_eq!(one.pids().len(), 1);
    });
}

/// A page of the old order is still a page: nothing that stays is lost.
#[test]
fn cursor_outlives_a_server_that_was_removed() {
    on_both_drivers(|layout| {
        let pages = [vec!["x"], vec!["y"], vec!["z"]];
        let paged =
            |name: &str| Peer::stdio(name, Catalogue::new().with_pages(Kind::Tools, &pages));
        let peers = ["one", "two", "three"].map(paged);
        let [one, two, three] = &peers;
        let gateway = Served::start(layout, &[joined(&[one, two, three])]);
        let client = Client::open(&gateway);
        let first = client.page(Kind::Tools, None);
        let cursor = first.next.expect("more");
        gateway.reload(&[joined(&[three, one])]);
        wait_listed(
            &client,
            Kind::Tools,
            &["three-x", "one-x", "three-y", "one-y", "three-z", "one-z"],
        );
        let second = client.page(Kind::Tools, Some(&cursor));
        let mut names = second.names();
        names.sort();
        assert_eq!(names, ["one-y", "three-y"]);
        assert_eq!(
            client.page(Kind::Tools, second.next.as_deref()).items.len(),
            2
        );
    });
}

// --- Routes.

#[test]
fn routes_come_and_go() {
    on_every_way(|layout| {
        let peers = [
            peer(Reached::Stdio, "one"),
            peer(Reached::Stdio, "two"),
            peer(Reached::Http, "three"),
        ];
        let a = route("/a", "", &[peers[0].toml("")]);
        let b = route("/b", "", &[peers[1].toml(""), peers[2].toml("")]);
        let gateway = Served::start(layout, std::slice::from_ref(&a));
        let stays = Client::open_at(&gateway, "/a");
        assert_eq!(initialize(&gateway, "/b", LATEST, None).status, 404);
        gateway.reload(&[a.clone(), b]);
        wait_until("the new route is there", || {
            initialize(&gateway, "/b", LATEST, None).status == 200
        });
        let client = Client::open_at(&gateway, "/b");
        wait_servers(&client, &["two", "three"]);
        let mut stream = client.stream();
        let mut held_call = client.begin("tools/call", &call("two-hold", "n"));
        let _held = peers[1].take("the call", |asked| asked.calls("hold"));
        let pid = peers[1].pid();
        gateway.reload(&[a]);
        let response = held_call.response();
        assert!(response.message()["error"].is_object(), "{response}");
        while stream.next().is_some() {}
        wait_until("the route is gone", || {
            client.ask("tools/list", &json!({})).status == 404
        });
        // Each thread takes the new routes when it comes to them.
        wait_until("the path is gone everywhere", || {
            let again = || initialize(&gateway, "/b", LATEST, None).status;
            (0..8).all(|_| again() == 404)
        });
        wait_until("its process has ended", || !process_runs(pid));
        wait_until("its sessions are ended", || peers[2].live().is_empty());
        assert_eq!(stays.call_text("echo", "n"), "one:echo:n");
        assert_eq!(peers[0].pids().len(), 1);
    });
}

#[test]
fn token_file_of_a_route_may_be_another() {
    on_both_drivers(|layout| {
        let one = peer(Reached::Stdio, "one");
        let scratch = Scratch::new();
        let (alice, bob) = ("alice-secret-0123456789", "bob-secret-0123456789");
        for (file, text) in [
            ("a", format!("alice {alice}\n")),
            ("b", format!("bob {bob}\n")),
            ("bad", format!("bob {bob}\nalice hidden\n")),
        ] {
            let path = scratch.path(file);
            std::fs::write(&path, text).expect("ours");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
                .expect("our file");
        }
        let with = |file: &str| joined_with(&format!("auth-token-file = {file:?}"), &[&one]);
        let gateway = Served::start_in(scratch, layout, "", &[with("a")]);
        let client = Client::open_as(&gateway, "/mcp", LATEST, Some(alice));
        gateway.reload(&[with("b")]);
        wait_until("the new tokens are in force", || {
            initialize(&gateway, "/mcp", LATEST, Some(bob)).status == 200
        });
        assert_eq!(
            initialize(&gateway, "/mcp", LATEST, Some(alice)).status,
            401
        );
        assert_eq!(client.ask("tools/list", &json!({})).status, 401);
        let missing = gateway.logged();
        gateway.reload(&[with("no-such-file")]);
        gateway.wait_logged(missing, &["ERROR", "no-such-file"]);
        let bad = gateway.logged();
        gateway.reload(&[with("bad")]);
        let told = gateway.wait_logged(bad, &["ERROR", "/bad: line 2: "]);
        assert!(!told.contains("hidden"), "{told}");
        assert_eq!(initialize(&gateway, "/mcp", LATEST, Some(bob)).status, 200);
        assert_eq!(
            initialize(&gateway, "/mcp", LATEST, Some(alice)).status,
            401
        );
        assert_eq!(initialize(&gateway, "/mcp", LATEST, None).status, 401);
    });
}

/// Whose a session is cannot be shown where there are no tokens, and what is nobody's can belong to no token: it
/// ends, with its stream, so that nothing more comes on it.
#[test]
fn sessions_end_where_tokens_come_to_a_route_or_go_from_it() {
    on_both_drivers(|layout| {
        let peers = [Reached::Stdio, Reached::Http]
            .into_iter()
            .zip(["one", "two"])
            .map(|(reached, name)| peer(reached, name));
        let peers: Vec<_> = peers.collect();
        let scratch = Scratch::new();
        let alice = "alice-secret-0123456789";
        let path = scratch.path("a");
        std::fs::write(&path, format!("alice {alice}\n")).expect("ours");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("our file");
        let upstreams: Vec<_> = peers.iter().map(|peer| peer.toml("")).collect();
        let of = |more: &str| route("/mcp", more, &upstreams);
        let tokens = of("auth-token-file = \"a\"");
        let gateway = Served::start_in(scratch, layout, "", std::slice::from_ref(&tokens));
        for (token, then) in [(Some(alice), of("")), (None, tokens)] {
            let client = Client::open_as(&gateway, "/mcp", LATEST, token);
            let mut stream = client.stream();
            client.subscribe("one-file:///a");
            assert_eq!(peers[1].live().len(), 1);
            gateway.reload(&[then]);
            stream.expect_end();
            wait_until("its session upstream is ended", || {
                peers[1].live().is_empty()
            });
        }
        // Another one with the same token goes on.
        let client = Client::open_as(&gateway, "/mcp", LATEST, Some(alice));
        expect_echo(&client, "one");
    });
}

/// Sessions and lists that are under way while the configuration changes beneath them.
#[test]
fn what_is_under_way_is_answered_over_a_reload() {
    on_both_drivers(|layout| {
        let one = peer(Reached::Stdio, "one");
        let slow = peer(Reached::Http, "slow");
        let more = peer(Reached::Stdio, "more");
        for (before, after) in [
            (vec![&one, &slow], vec![&one, &slow, &more]),
            (vec![&one, &slow, &more], vec![&one, &slow]),
            (vec![&one, &slow, &more], vec![&more, &slow, &one]),
            (vec![&one, &slow, &more], vec![&one, &more]),
        ] {
            let gateway = Served::start(layout, &[joined(&before)]);
            let client = Client::open(&gateway);
            slow.hold(|asked| asked.is("initialize") || asked.is("tools/list"));
            let mut opening = gateway.connect();
            let body = support::mcp::initialize_body("0", LATEST);
            opening.send(support::Request::post(body).bytes());
            let handshake = slow.take("the handshake", |asked| asked.is("initialize"));
            let mut list = client.begin("tools/list", &json!({}));
            let page = slow.take("the list", |asked| asked.is("tools/list"));
            slow.forget_rules();
            gateway.reload(&[joined(&after)]);
            let names: Vec<&str> = after.iter().map(|peer| peer.name.as_str()).collect();
            wait_servers(&client, &names);
            handshake.reply(&json!({
                "protocolVersion": LATEST,
                "capabilities": { "tools": {}, "prompts": {} },
                "serverInfo": { "name": "slow", "version": "1" },
            }));
            page.reply(&json!({ "tools": [{ "name": "late" }] }));
            let response = opening.response();
            assert!(response.field("mcp-session-id").is_some(), "{response}");
            let tools = list.response().result();
            assert!(tools["tools"].is_array(), "{tools}");
            let stays = after.iter().any(|peer| peer.name == "slow");
            assert_eq!(tools.to_string().contains("slow-late"), stays, "{tools}");
            let late = Client::open(&gateway);
            wait_servers(&late, &names);
        }
    });
}

// --- Files that are no good, and those that change nothing.

#[test]
fn file_that_cannot_be_used_changes_nothing_and_is_logged() {
    on_both_drivers(|layout| {
        let peers = [peer(Reached::Stdio, "one"), peer(Reached::Http, "two")];
        let all: Vec<&Peer> = peers.iter().collect();
        let gateway = Served::start(layout, &[joined(&all)]);
        let client = Client::open(&gateway);
        let mut connection = client.begin("tools/call", &call("one-hold", "n"));
        let held = peers[0].take("the call", |asked| asked.calls("hold"));
        let head = process_lines(layout, "");
        let good = joined(&[&peers[1]]);
        let cases: [(String, &[&str]); 6] = [
            ("not [ toml".to_owned(), &[]),
            (
                format!(
                    "{head}{good}\n[[routes]]\npath = \"/mcp\"\n{}",
                    peers[0].toml("")
                ),
                &["/mcp"],
            ),
            (
                format!("{head}{}", joined_with("alow = { tools = [] }", &all)),
                &["alow", "allow"],
            ),
            (
                format!(
                    "{head}{}",
                    route(
                        "/mcp",
                        "",
                        &[
                            peers[0].toml("prefix = \"never\""),
                            peers[1].toml("prefix = \"never\"")
                        ]
                    )
                ),
                &["one", "two"],
            ),
            (
                format!(
                    "{head}{}",
                    route("/mcp", "", &[peers[0].toml("start-timeout = \"soon\"")])
                ),
                &["start-timeout"],
            ),
            (String::new(), &[]),
        ];
        for (text, named) in cases {
            let from = gateway.logged();
            gateway.reload_text(&text);
            let log = gateway.wait_logged(from, &[&["ERROR", "ringway.toml"], named].concat());
            let errors = log.lines().filter(|line| line.contains("ERROR"));
            assert!(errors.count() >= 1, "{log}");
            wait_servers(&client, &["one", "two"]);
            expect_echo(&client, "one");
            expect_echo(&client, "two");
        }
        let from = gateway.logged();
        std::fs::remove_file(gateway.file()).expect("it is there");
        gateway.signal(rustix::process::Signal::HUP);
        gateway.wait_logged(from, &["ERROR", "ringway.toml"]);
        held.reply(&held_text());
        assert_eq!(text_of(&connection.response().result()), "held");
        assert_eq!(peers[0].pids().len(), 1);
        assert_eq!(peers[1].given_count(), 1);
        // And a good one is taken again.
        gateway.reload(&[joined(&[&peers[1], &peers[0]])]);
        wait_servers(&client, &["two", "one"]);
    });
}

/// A second server gives the first one's names a prefix, which a deny by the old name would not
/// match any more.
#[test]
fn second_server_frees_nothing_that_is_denied() {
    on_both_drivers(|layout| {
        let peers = [peer(Reached::Stdio, "one"), peer(Reached::Http, "two")];
        let all: Vec<&Peer> = peers.iter().collect();
        let plain = r#"deny = { tools = ["hold"] }"#;
        let gateway = Served::start(layout, &[joined_with(plain, &[&peers[0]])]);
        let client = Client::open(&gateway);
        wait_listed(&client, Kind::Tools, &["echo"]);
        let from = gateway.logged();
        gateway.reload(&[joined_with(plain, &all)]);
        gateway.wait_logged(from, &["ERROR", "deny.tools[0]", "hold"]);
        wait_listed(&client, Kind::Tools, &["echo"]);
        let refused = client.refusal("tools/call", &call("hold", "denied"));
        assert_eq!(refused, (-32602, "Unknown tool: hold".to_owned()));
        gateway.reload(&[joined_with(r#"deny = { tools = ["*-hold"] }"#, &all)]);
        wait_listed(&client, Kind::Tools, &["one-echo", "two-echo"]);
        for peer in &peers {
            assert_eq!(peer.count(|asked| asked.has_nonce("denied")), 0);
        }
    });
}

/// One line says what became of which upstream.
#[test]
fn log_names_the_upstreams_that_a_new_file_changes() {
    on_both_drivers(|layout| {
        let peers = ["one", "two", "old", "new"].map(|name| peer(Reached::Stdio, name));
        let [one, two, old, new] = &peers;
        let gateway = Served::start(layout, &[joined(&[one, two, old])]);
        let other = two.toml("request-timeout = \"50s\"");
        let from = gateway.logged();
        gateway.reload(&[route("/mcp", "", &[one.toml(""), other, new.toml("")])]);
        let told = [
            "upstreams_kept=1",
            r#"upstreams_added="mcp/new""#,
            r#"upstreams_replaced="mcp/two""#,
            r#"upstreams_removed="mcp/old""#,
        ];
        gateway.wait_logged(from, &[&told.join(" ")]);
    });
}

/// What is the process's own needs a restart: said, and not done by half.
#[test]
fn settings_of_the_process_are_warned_of() {
    on_both_drivers(|layout| {
        let one = peer(Reached::Stdio, "one");
        let two = peer(Reached::Http, "two");
        let gateway = Served::start(layout, &[joined(&[&one])]);
        let client = Client::open(&gateway);
        let from = gateway.logged();
        let text = process_lines(layout, "max-body = \"1MiB\"") + &joined(&[&one, &two]);
        gateway.reload_text(&text);
        gateway.wait_logged(from, &["WARN", "max-body", "restart"]);
        // The routes of that file are in force.
        wait_servers(&client, &["one", "two"]);
    });
}

/// A new server that does not come up is no reason to stop, whatever it is to the route.
#[test]
fn new_required_server_that_is_dead_ends_nothing() {
    on_both_drivers(|layout| {
        let one = peer(Reached::Stdio, "one");
        let two = peer(Reached::Stdio, "needed");
        two.down();
        let gateway = Served::start(layout, &[joined(&[&one])]);
        let client = Client::open(&gateway);
        let from = gateway.logged();
        let needed = two.toml("required = true\nstart-timeout = \"1s\"");
        gateway.reload(&[route("/mcp", "", &[one.toml(""), needed])]);
        gateway.wait_logged(from, &["needed"]);
        wait_servers(&client, &["one"]);
        expect_echo(&client, "one");
        wait_until("no session begins", || {
            initialize(&gateway, "/mcp", LATEST, None)
                .field("mcp-session-id")
                .is_none()
        });
        two.up();
        wait_servers(&client, &["one", "needed"]);
        let _ = Client::open(&gateway);
    });
}

#[test]
fn last_of_several_signals_counts() {
    on_both_drivers(|layout| {
        let peers = ["one", "two", "three"].map(|name| peer(Reached::Stdio, name));
        let [one, two, three] = &peers;
        let gateway = Served::start(layout, &[joined(&[one, two])]);
        let client = Client::open(&gateway);
        for _ in 0..10 {
            gateway.reload(&[joined(&[one, three])]);
            gateway.reload(&[joined(&[one, two])]);
            gateway.reload(&[joined(&[one, two, three])]);
        }
        wait_servers(&client, &["one", "two", "three"]);
        assert_eq!(one.pids().len(), 1);
        wait_until("each server has one process", || {
            descendants(gateway.pid())
                .into_iter()
                .filter(|pid| peers.iter().any(|peer| peer.pids().contains(pid)))
                .filter(|&pid| process_runs(pid))
                .count()
                == 3
        });
    });
}

// --- Under load.

/// Calls at a server that stays are answered, each of them, whatever comes and goes beside it.
#[test]
fn reload_under_load_loses_no_call_of_unchanged_servers() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 8;
    on_every_way(|layout| {
        let stay = [
            peer(Reached::Stdio, "one"),
            peer(Reached::Http, "two"),
            peer(Reached::SharedHttp, "three"),
        ];
        let other = [
            peer(Reached::Stdio, "four"),
            peer(Reached::Http, "five"),
            peer(Reached::SharedHttp, "six"),
        ];
        let staying: Vec<&Peer> = stay.iter().collect();
        let gateway = Served::start(layout, &[joined(&staying)]);
        let watcher = Client::open(&gateway);
        let is_over = AtomicBool::new(false);
        let all_open = Barrier::new(CLIENTS + 1);
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let (gateway, is_over, done, all_open) = (&gateway, &is_over, &done, &all_open);
                scope.spawn(move || {
                    let client = Client::open(gateway);
                    all_open.wait();
                    let mut connection = gateway.connect();
                    let mut serial = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let server = ["one", "two", "three"][serial % 3];
                        let nonce = format!("{number}-{serial}");
                        let params = call(&format!("{server}-echo"), &nonce);
                        let body = request_body("1", "tools/call", &params.to_string());
                        let response = connection.ask(&client.post(body));
                        assert_eq!(
                            text_of(&response.result()),
                            format!("{server}:echo:{nonce}"),
                            "{response}"
                        );
                        serial += 1;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            all_open.wait();
            // Whatever fails here, the threads must come to their end.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for round in 0..ROUNDS {
                    let before = done.load(Ordering::Relaxed);
                    let more = &other[round % 3];
                    gateway.reload(&[joined(&[&staying[..], &[more]].concat())]);
                    wait_servers(&watcher, &["one", "two", "three", &more.name]);
                    gateway.reload(&[joined(&staying)]);
                    wait_servers(&watcher, &["one", "two", "three"]);
                    wait_until("calls go on", || {
                        done.load(Ordering::Relaxed) > before + CLIENTS
                    });
                }
            }));
            is_over.store(true, Ordering::Relaxed);
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
        let calls: usize = stay
            .iter()
            .map(|peer| peer.count(|asked| asked.is("tools/call")))
            .sum();
        assert_eq!(calls, done.load(Ordering::Relaxed));
        assert_eq!(stay[0].pids().len(), 1);
        assert_eq!(stay[1].given_count(), CLIENTS + 1);
        assert_eq!(stay[2].given_count(), 1);
    });
}

/// Coming and going leaves nothing behind.
#[test]
fn reloads_leave_nothing_behind() {
    const ROUNDS: usize = 12;
    on_every_way(|layout: Layout| {
        let one = peer(Reached::Stdio, "one");
        let other = [
            peer(Reached::Stdio, "four"),
            peer(Reached::Http, "five"),
            peer(Reached::SharedHttp, "six"),
        ];
        let gateway = Served::start(layout, &[joined(&[&one])]);
        let client = Client::open(&gateway);
        let round = || {
            let all: Vec<&Peer> = [&one].into_iter().chain(&other).collect();
            gateway.reload(&[joined(&all)]);
            wait_servers(&client, &["one", "four", "five", "six"]);
            for server in ["one", "four", "five", "six"] {
                expect_echo(&client, server);
            }
            gateway.reload(&[joined(&[&one])]);
            wait_listed(&client, Kind::Prompts, &["ask"]);
            for pid in other[0].pids() {
                wait_until("its process has ended", || !process_runs(pid));
            }
            for peer in &other[1..] {
                wait_until("its sessions are ended", || peer.live().is_empty());
            }
        };
        round();
        let base = Base::of(&gateway);
        let running = threads(gateway.pid());
        for _ in 0..ROUNDS {
            round();
        }
        base.wait_until_back(&gateway);
        wait_until("its threads have ended", || {
            threads(gateway.pid()) <= running
        });
    });
}

/// A failure names its server for as long as the route has several.
#[test]
fn failure_names_the_server_while_there_are_several() {
    on_both_drivers(|layout| {
        for reached in [Reached::Http, Reached::SharedHttp] {
            let one = peer(reached, "one");
            let two = peer(Reached::Stdio, "two");
            let (alone, both) = ([joined(&[&one])], [joined(&[&one, &two])]);
            one.server().on(
                |seen| seen.is_tool("echo"),
                |exchange| exchange.status("500 Internal Server Error", None, ""),
            );
            let gateway = Served::start(layout, &alone);
            let client = Client::open(&gateway);
            let said = |name: &str| client.refusal("tools/call", &call(name, "n")).1;
            let plain = "The upstream server answered with HTTP status 500";
            let named = "The upstream server one answered with HTTP status 500";
            assert_eq!(said("echo"), plain);
            gateway.reload(&both);
            wait_servers(&client, &["one", "two"]);
            wait_until("it is named", || said("one-echo") == named);
            gateway.reload(&alone);
            wait_listed(&client, Kind::Prompts, &["ask"]);
            wait_until("it is not named", || said("echo") == plain);
        }
    });
}
