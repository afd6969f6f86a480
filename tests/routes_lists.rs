//! Lists over several servers: merged in the order of the configuration, in pages of the gateway's own, complete, and
//! over at some time whatever the servers do. A page that a server has given must not be lost because another one has
//! died, and no server may keep a client turning pages for ever; both are known faults of gateways.

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::catalogue::{Catalogue, Kind, Paging};
use support::peer::{Asked, Peer, Reached};
use support::routes::{
    Client, Page, Served, counted, joined, joined_with, refusal_of, route, until, wait_listed,
};
use support::{Layout, on_both_drivers, on_every_way, wait_until};

/// Names of this kind as a server writes them: `STEM-PAGE-NUMBER`.
fn name(kind: Kind, stem: &str, page: usize, number: usize) -> String {
    match kind {
        Kind::Resources => format!("file:///{stem}/{page}/{number}"),
        Kind::Templates => format!("file:///{stem}/{page}/{number}/{{id}}"),
        _ => format!("{stem}.{page}.{number}"),
    }
}

/// So many pages with so many things each of every kind that servers list.
fn paged(sizes: &[usize]) -> Catalogue {
    Kind::LISTED
        .into_iter()
        .fold(Catalogue::new(), |catalogue, kind| {
            catalogue.with_pages(kind, &pages(kind, sizes))
        })
}

fn pages(kind: Kind, sizes: &[usize]) -> Vec<Vec<String>> {
    let pages = sizes.iter().enumerate();
    pages
        .map(|(page, &size)| {
            (0..size)
                .map(|number| name(kind, "x", page, number))
                .collect()
        })
        .collect()
}

/// What a client is to see of a server's pages, in order.
fn shown(server: &str, kind: Kind, sizes: &[usize]) -> Vec<String> {
    let names = pages(kind, sizes).concat();
    names
        .iter()
        .map(|name| format!("{server}-{name}"))
        .collect()
}

/// The names of one server among these.
fn of_server(server: &str, names: &[String]) -> Vec<String> {
    let prefix = format!("{server}-");
    let own = names.iter().filter(|name| name.starts_with(&prefix));
    own.cloned().collect()
}

fn server_of(name: &str) -> &str {
    name.split_once('-').expect("a prefix").0
}

/// Checks that a page is in the order of the configuration.
#[track_caller]
fn expect_order(page: &Page, servers: &[&str]) {
    let names = page.names();
    let at = names.iter().map(|name| {
        let server = server_of(name);
        servers.iter().position(|known| *known == server)
    });
    let at: Vec<_> = at.collect();
    assert!(at.iter().all(Option::is_some), "{names:?}");
    assert!(at.is_sorted(), "{names:?}");
}

fn names_of(pages: &[Page]) -> Vec<String> {
    pages.iter().flat_map(Page::names).collect()
}

fn lists(kind: Kind) -> impl Fn(&Asked) -> bool + Send + Sync + 'static {
    move |asked| asked.is(kind.method())
}

/// The cursors with which a server was asked for a list, in order.
fn cursors(peer: &Peer, kind: Kind) -> Vec<Value> {
    let asked = peer.asked(lists(kind));
    let cursors = asked.iter().map(|asked| asked.params()["cursor"].clone());
    cursors.collect()
}

fn one_of_each(catalogues: [Catalogue; 3]) -> [Peer; 3] {
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

// --- Complete, in order, once.

#[test]
fn five_pages_of_each_server_come_in_order_and_once() {
    const SIZES: [usize; 5] = [2, 1, 3, 2, 1];
    on_every_way(|layout| {
        let peers = one_of_each([paged(&SIZES), paged(&SIZES), paged(&SIZES)]);
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        for kind in Kind::LISTED {
            let pages = client.pages(kind);
            for page in &pages {
                expect_order(page, &["one", "two", "three"]);
            }
            let names = names_of(&pages);
            for peer in &peers {
                assert_eq!(
                    of_server(&peer.name, &names),
                    shown(&peer.name, kind, &SIZES),
                    "{kind:?}"
                );
                // Each server has got its own cursors back, each once.
                let given = (1..5)
                    .map(|page| json!(format!("cursor of {} {} {page}", peer.name, kind.method())));
                let expected: Vec<Value> = [Value::Null].into_iter().chain(given).collect();
                assert_eq!(cursors(peer, kind), expected, "{kind:?}");
            }
            assert_eq!(names.len(), 3 * 9);
            assert!(counted(&names).values().all(|&count| count == 1));
            for cursor in pages.iter().filter_map(|page| page.next.as_ref()) {
                assert!(!cursor.contains("cursor of"), "{cursor}");
            }
        }
    });
}

/// Servers of unlike length: one has nothing, one has a single page, one has empty pages in between.
#[test]
fn pages_of_unlike_length_are_all_there() {
    on_both_drivers(|layout| {
        let sizes: [&[usize]; 3] = [&[3], &[0, 0, 2, 0, 1, 0], &[]];
        let peers = one_of_each(sizes.map(paged));
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        for kind in Kind::LISTED {
            let names = client.names(kind);
            let expected = [shown("one", kind, sizes[0]), shown("two", kind, sizes[1])];
            assert_eq!(names, expected.concat(), "{kind:?}");
        }
    });
}

/// A page that is asked for again is the same page, for a client that has lost an answer.
#[test]
fn cursor_may_be_used_again() {
    on_both_drivers(|layout| {
        let peers = one_of_each([paged(&[1, 1, 1]), paged(&[1, 1]), paged(&[1])]);
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let first = client.page(Kind::Tools, None);
        let cursor = first.next.expect("more");
        let second = client.page(Kind::Tools, Some(&cursor));
        assert_eq!(second.names(), ["one-x.1.0", "two-x.1.0"]);
        assert_eq!(
            client.page(Kind::Tools, Some(&cursor)).names(),
            second.names()
        );
        let last = client.page(Kind::Tools, second.next.as_deref());
        assert_eq!(
            (last.names(), last.next),
            (vec!["one-x.2.0".to_owned()], None)
        );
        // Spelled otherwise it is the same text.
        let spelled: String = cursor
            .chars()
            .map(|letter| format!("\\u{:04x}", letter as u32))
            .collect();
        let body = support::mcp::request_body(
            "1",
            Kind::Tools.method(),
            &format!(r#"{{"cursor":"{spelled}"}}"#),
        );
        let again = Page::of(Kind::Tools, &gateway.ask(&client.post(body)).result());
        assert_eq!(again.names(), second.names());
    });
}

/// A list takes as long as its slowest server, not as long as all of them.
#[test]
fn all_servers_are_asked_at_the_same_time() {
    on_every_way(|layout| {
        let peers = one_of_each([paged(&[1]), paged(&[1]), paged(&[1])]);
        for peer in &peers {
            peer.hold(lists(Kind::Prompts));
        }
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let mut connection = client.begin("prompts/list", &json!({}));
        let held: Vec<_> = peers
            .iter()
            .map(|peer| peer.take("the list", |_| true))
            .collect();
        assert!(!connection.has_something());
        // The last answers first: the order is that of the configuration all the same.
        for (peer, held) in peers.iter().zip(held).rev() {
            held.reply(&json!({ "prompts": [{ "name": peer.name }] }));
        }
        let page = Page::of(Kind::Prompts, &connection.response().result());
        assert_eq!(page.names(), ["one-one", "two-two", "three-three"]);
        assert_eq!(page.next, None);
    });
}

/// What a server writes of a thing stays as it is, but for the name.
#[test]
fn listed_things_keep_their_bytes() {
    on_both_drivers(|layout| {
        let peers = [
            Peer::http("two", Catalogue::usual()),
            Peer::shared_http("three", Catalogue::usual()),
        ];
        let rest = r#" , "x":1.50e+1,"big":9007199254740993,"e":"caf\u00e9 \/ \ud83d\ude00","inputSchema" : {"type":"object","name":"echo","z":[1.0,null]}}"#;
        for peer in &peers {
            peer.server().on(
                |seen| seen.is("tools/list"),
                move |exchange| {
                    exchange.reply(&format!(
                        r#"{{"_meta":{{}}, "tools" : [ {{ "name" : "t\u0065st"{rest}, 7, {{"x":1}}, {{"name":8}}, {{"name":"other"{rest} ] }}"#
                    ));
                },
            );
        }
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let response = client.ask("tools/list", &json!({}));
        let text = response.text();
        for name in ["two-test", "two-other", "three-test", "three-other"] {
            let item = format!(r#""{name}"{rest}"#);
            assert!(text.contains(&item), "{item} is not in {text}");
        }
        let page = Page::of(Kind::Tools, &response.result());
        assert_eq!(
            page.names(),
            ["two-test", "two-other", "three-test", "three-other"]
        );
    });
}

#[test]
fn large_lists_are_whole() {
    const TOOLS: usize = 2_000;
    on_both_drivers(|layout| {
        let sizes = [TOOLS, TOOLS];
        let peers = one_of_each([paged(&sizes), paged(&sizes), paged(&sizes)]);
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let names = client.names(Kind::Tools);
        assert_eq!(names.len(), 3 * 2 * TOOLS);
        for peer in &peers {
            assert_eq!(
                of_server(&peer.name, &names),
                shown(&peer.name, Kind::Tools, &sizes)
            );
        }
    });
}

/// Many at once, each page of each walk the client's own.
#[test]
fn many_lists_at_once_do_not_mix() {
    const CLIENTS: usize = 12;
    const ROUNDS: usize = 4;
    const SIZES: [usize; 4] = [3, 3, 3, 3];
    on_every_way(|layout| {
        let peers = one_of_each([paged(&SIZES), paged(&SIZES), paged(&SIZES)]);
        let gateway = start(layout, &peers);
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let gateway = &gateway;
                scope.spawn(move || {
                    let client = Client::open(gateway);
                    for round in 0..ROUNDS {
                        let kind = Kind::LISTED[(number + round) % 4];
                        let names = client.names(kind);
                        for server in ["one", "two", "three"] {
                            assert_eq!(of_server(server, &names), shown(server, kind, &SIZES));
                        }
                        assert_eq!(names.len(), 36);
                    }
                });
            }
        });
    });
}

// --- The end of it.

/// Public faults: pages without an end keep clients for ever. Whoever has an end is complete all the same.
#[test]
fn list_ends_though_a_servers_does_not() {
    on_both_drivers(|layout| {
        for endless in [Paging::Endless, Paging::SameAgain] {
            for (at, name) in ["one", "two", "three"].into_iter().enumerate() {
                let mut catalogues = [paged(&[2, 1]), paged(&[2, 1]), paged(&[2, 1])];
                catalogues[at] = paged(&[1]).paging(Kind::Tools, endless);
                let peers = one_of_each(catalogues);
                let gateway = start(layout, &peers);
                let client = Client::open(&gateway);
                let names = client.names(Kind::Tools);
                for peer in &peers {
                    let own = of_server(&peer.name, &names);
                    if peer.name == name {
                        assert!(own.contains(&format!("{name}-x.0.0")), "{own:?}");
                    } else {
                        assert_eq!(own, shown(&peer.name, Kind::Tools, &[2, 1]));
                    }
                }
                let asked = peers[at].count(lists(Kind::Tools));
                assert!(asked <= 1_001, "{asked}");
            }
        }
    });
}

/// Cursors that are none, or not to be carried: the server's list ends there, the others' do not.
#[test]
fn odd_cursors_of_a_server_end_its_own_list_only() {
    on_both_drivers(|layout| {
        let long = "c".repeat(20_000);
        for next in [json!(null), json!(7), json!(["c"]), json!({}), json!(long)] {
            let peers = one_of_each([paged(&[2, 1]), paged(&[2]), paged(&[2, 1])]);
            let odd = next.clone();
            peers[1].answer(lists(Kind::Tools), move |_| {
                Ok(json!({ "tools": [{ "name": "odd" }], "nextCursor": odd }))
            });
            let gateway = start(layout, &peers);
            let client = Client::open(&gateway);
            let names = client.names(Kind::Tools);
            for server in ["one", "three"] {
                assert_eq!(
                    of_server(server, &names),
                    shown(server, Kind::Tools, &[2, 1])
                );
            }
            if next.is_null() {
                assert_eq!(of_server("two", &names), ["two-odd"]);
            }
            assert_eq!(peers[1].count(lists(Kind::Tools)), 1, "{next}");
        }
    });
}

/// A server that cannot say what it has does not take the others' lists away.
#[test]
fn server_that_refuses_or_talks_nonsense_is_left_out() {
    on_both_drivers(|layout| {
        let nonsense: [Result<Value, Value>; 6] = [
            Err(json!({ "code": -32601, "message": "no such method here" })),
            Err(json!({ "code": -32603, "message": "broken" })),
            Ok(json!({})),
            Ok(json!({ "tools": 7, "prompts": 7 })),
            Ok(json!({ "tools": null, "nextCursor": "c" })),
            Ok(json!([])),
        ];
        for answer in nonsense {
            for at in 0..3 {
                let peers = one_of_each([paged(&[1, 1]), paged(&[1, 1]), paged(&[1, 1])]);
                let own = answer.clone();
                peers[at].answer(lists(Kind::Tools), move |_| own.clone());
                let gateway = start(layout, &peers);
                let client = Client::open(&gateway);
                let names = client.names(Kind::Tools);
                for (number, peer) in peers.iter().enumerate() {
                    let expected = match number == at {
                        true => Vec::new(),
                        false => shown(&peer.name, Kind::Tools, &[1, 1]),
                    };
                    assert_eq!(of_server(&peer.name, &names), expected, "{answer:?}");
                }
            }
        }
    });
}

/// A server without a capability has no list of that kind; the others have theirs.
#[test]
fn server_without_the_capability_is_no_hindrance() {
    on_both_drivers(|layout| {
        let only_tools = paged(&[1]).capabilities(json!({ "tools": {} }));
        let only_prompts = paged(&[1]).capabilities(json!({ "prompts": {} }));
        let peers = one_of_each([only_tools, only_prompts, paged(&[1])]);
        for peer in &peers[..2] {
            let has = if peer.name == "one" {
                "tools"
            } else {
                "prompts"
            };
            peer.answer(
                move |asked| asked.method.ends_with("/list") && !asked.method.starts_with(has),
                |_| Err(json!({ "code": -32601, "message": "Method not found" })),
            );
        }
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        assert_eq!(client.names(Kind::Tools), ["one-x.0.0", "three-x.0.0"]);
        assert_eq!(client.names(Kind::Prompts), ["two-x.0.0", "three-x.0.0"]);
        assert_eq!(client.names(Kind::Resources), ["three-file:///x/0/0"]);
    });
}

/// A public fault: the page after next is lost with the server that has died in between.
#[test]
fn death_between_two_pages_loses_no_other_page() {
    on_every_way(|layout| {
        for at in 0..3 {
            let peers = one_of_each([paged(&[1, 1, 1]), paged(&[1, 1, 1]), paged(&[1, 1, 1])]);
            let gateway = start(layout, &peers);
            let client = Client::open(&gateway);
            let first = client.page(Kind::Resources, None);
            assert_eq!(first.items.len(), 3);
            peers[at].down();
            let mut pages = vec![first];
            while let Some(cursor) = pages.last().and_then(|page| page.next.clone()) {
                assert!(pages.len() < 9, "it never ends");
                pages.push(client.page(Kind::Resources, Some(&cursor)));
            }
            let names = names_of(&pages);
            for (number, peer) in peers.iter().enumerate() {
                if number != at {
                    assert_eq!(
                        of_server(&peer.name, &names),
                        shown(&peer.name, Kind::Resources, &[1, 1, 1])
                    );
                }
            }
            assert!(
                counted(&names).values().all(|&count| count == 1),
                "{names:?}"
            );
        }
    });
}

/// The same for a server that dies of being asked for its second page.
#[test]
fn death_by_a_page_loses_no_other_page() {
    on_every_way(|layout| {
        for at in 0..3 {
            let peers = one_of_each([paged(&[1, 1, 1]), paged(&[1, 1, 1]), paged(&[1, 1, 1])]);
            peers[at]
                .die_of(|asked| asked.is("prompts/list") && asked.params().get("cursor").is_some());
            let gateway = start(layout, &peers);
            let client = Client::open(&gateway);
            let names = client.names(Kind::Prompts);
            for (number, peer) in peers.iter().enumerate() {
                let sizes: &[usize] = if number == at { &[1] } else { &[1, 1, 1] };
                assert_eq!(
                    of_server(&peer.name, &names),
                    shown(&peer.name, Kind::Prompts, sizes)
                );
            }
        }
    });
}

/// A server that does not answer costs a list its own time-out and nothing else.
#[test]
fn silent_server_is_left_out_after_its_own_timeout() {
    on_both_drivers(|layout| {
        for at in 0..3 {
            let peers = one_of_each([paged(&[1, 1]), paged(&[1, 1]), paged(&[1, 1])]);
            peers[at].hold(lists(Kind::Tools));
            let upstreams: Vec<String> = peers
                .iter()
                .enumerate()
                .map(|(number, peer)| {
                    peer.toml(if number == at {
                        "request-timeout = \"1s\""
                    } else {
                        ""
                    })
                })
                .collect();
            let gateway = Served::start(layout, &[route("/mcp", "", &upstreams)]);
            let client = Client::open(&gateway);
            let names = client.names(Kind::Tools);
            for (number, peer) in peers.iter().enumerate() {
                let expected = match number == at {
                    true => Vec::new(),
                    false => shown(&peer.name, Kind::Tools, &[1, 1]),
                };
                assert_eq!(of_server(&peer.name, &names), expected);
            }
        }
    });
}

/// What one client reads as `a` and another one as `two-b` may not be there at all; the log says so once.
#[test]
fn things_that_clients_read_differently_are_left_out() {
    on_both_drivers(|layout| {
        let odd = vec![
            json!({ "name": "a", "Name": "two-b" }),
            json!({ "name": 7 }),
            json!({ "name": "b", "URI": "x", "inputSchema": { "Name": "two-b" } }),
        ];
        let one = Peer::stdio("one", Catalogue::new().with_items(Kind::Tools, vec![odd]));
        let two = Peer::http("two", Catalogue::new().with(Kind::Tools, &["b"]));
        let gateway = Served::start(layout, &[joined(&[&one, &two])]);
        let client = Client::open(&gateway);
        for _ in 0..2 {
            assert_eq!(client.names(Kind::Tools), ["one-b", "two-b"]);
        }
        let warned = gateway.wait_logged(0, &["things are left out of tools/list"]);
        let lines = warned
            .lines()
            .filter(|line| line.contains("things are left out"));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), 1, "{warned}");
        assert!(lines[0].contains(r#"upstream="one" count=2"#), "{warned}");
    });
}

/// An operator finds in the log who is left out, and why.
#[test]
fn log_says_why_a_server_is_left_out() {
    on_both_drivers(|layout| {
        let [one, two, three] = one_of_each([paged(&[1]), paged(&[1]), paged(&[1])]);
        let four = Peer::stdio("four", paged(&[1]));
        let broken = json!({ "code": -32603, "message": "broken" });
        one.answer(lists(Kind::Tools), move |_| Err(broken.clone()));
        two.down();
        three.hold(lists(Kind::Tools));
        let silent = three.toml("request-timeout = \"1s\"");
        let upstreams = [one.toml(""), two.toml(""), silent, four.toml("")];
        let gateway = Served::start(layout, &[route("/mcp", "", &upstreams)]);
        let client = Client::open(&gateway);
        assert_eq!(client.names(Kind::Tools), shown("four", Kind::Tools, &[1]));
        four.down();
        wait_until("nobody is left", || {
            client.ask("tools/list", &json!({})).message()["error"].is_object()
        });
        for (name, why) in [
            ("one", "it answered with an error"),
            ("two", "it is not there"),
            ("three", "The upstream server three did not answer in time"),
            ("four", "The upstream server four is not available"),
        ] {
            let said = format!(
                "an upstream is left out of tools/list route=\"mcp\" upstream=\"{name}\" why=\"{why}\""
            );
            gateway.wait_logged(0, &[&said]);
            let label = format!("upstream=\"{name}\"");
            let counted = gateway
                .metrics()
                .sum("ringway_lists_left_out_total", &[&label]);
            assert!(counted >= 1.0, "{name}");
        }
    });
}

/// Who does not want a list any more wants it of no server.
#[test]
fn cancelled_list_is_cancelled_everywhere() {
    on_both_drivers(|layout| {
        let peers = one_of_each([paged(&[1]), paged(&[1]), paged(&[1])]);
        for peer in &peers {
            peer.hold(lists(Kind::Tools));
        }
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let body = support::mcp::request_body("\"l\"", "tools/list", "{}");
        let mut connection = gateway.connect();
        connection.send(client.post(body).bytes());
        let held: Vec<_> = peers
            .iter()
            .map(|peer| peer.take("the list", |_| true))
            .collect();
        let said = client.notify("notifications/cancelled", &json!({ "requestId": "l" }));
        assert_eq!(said.status, 202);
        let response = connection.response();
        assert!(response.messages().is_empty(), "{response}");
        for (peer, held) in peers.iter().zip(held) {
            let cancel =
                peer.wait_asked("the cancel", 1, |asked| asked.is("notifications/cancelled"));
            assert_eq!(
                cancel[0].params()["requestId"].to_string(),
                held.asked.id().expect("an id")
            );
        }
    });
}

// --- Cursors are nobody else's.

#[test]
fn foreign_and_forged_cursors_are_refused_and_reach_nobody() {
    on_both_drivers(|layout| {
        let sizes = [1, 1, 1];
        let peers = one_of_each([paged(&sizes), paged(&sizes), paged(&sizes)]);
        let routes = [
            joined(&peers.iter().collect::<Vec<_>>()),
            route(
                "/other",
                "",
                &[peers[0].toml(""), peers[1].toml(""), peers[2].toml("")],
            ),
        ];
        let gateway = Served::start(layout, &routes);
        let client = Client::open(&gateway);
        let cursor = client.page(Kind::Tools, None).next.expect("more");
        let counts = || {
            peers
                .each_ref()
                .map(|peer| peer.count(|asked| asked.method.ends_with("/list")))
        };
        let before = counts();
        let refused = |client: &Client<'_>, kind: Kind, cursor: &Value| {
            let (code, _) = client.refusal(kind.method(), &json!({ "cursor": cursor }));
            assert_eq!(code, -32602, "{kind:?} {cursor}");
        };
        let good = json!(cursor);
        refused(&Client::open(&gateway), Kind::Tools, &good);
        refused(&Client::open_at(&gateway, "/other"), Kind::Tools, &good);
        for kind in [Kind::Prompts, Kind::Resources, Kind::Templates, Kind::Tasks] {
            refused(&client, kind, &good);
        }
        // Every byte of it counts.
        for at in 0..cursor.len() {
            let mut bytes = cursor.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            refused(
                &client,
                Kind::Tools,
                &json!(String::from_utf8(bytes).expect("ASCII")),
            );
        }
        for forged in [
            json!(""),
            json!("x"),
            json!(cursor[1..]),
            json!(cursor[..cursor.len() - 1]),
            json!(format!("{cursor}A")),
            json!(format!("{cursor}=")),
            json!(format!(" {cursor}")),
            json!("cursor of one tools/list 1"),
            json!("\u{e9}\u{0}\u{1f600}"),
            json!("A".repeat(70_000)),
        ] {
            refused(&client, Kind::Tools, &forged);
        }
        for odd in [json!(7), json!(["x"]), json!({}), json!(true)] {
            refused(&client, Kind::Tools, &odd);
        }
        assert_eq!(counts(), before, "a server was asked");
        // After all of that it is still good.
        assert_eq!(client.page(Kind::Tools, Some(&cursor)).items.len(), 3);
    });
}

/// Two values for one cursor: no server and no gateway can say which one was meant.
#[test]
fn cursor_that_stands_twice_is_refused() {
    on_both_drivers(|layout| {
        let peers = one_of_each([paged(&[1, 1]), paged(&[1, 1]), paged(&[1, 1])]);
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let cursor = client.page(Kind::Tools, None).next.expect("more");
        for second in ["cursor", r"curs\u006fr"] {
            let params = format!(r#"{{"cursor":"{cursor}","{second}":"{cursor}"}}"#);
            let body = support::mcp::request_body("1", "tools/list", &params);
            let response = gateway.ask(&client.post(body));
            let code = response.message()["error"]["code"].as_i64();
            assert!(matches!(code, Some(-32600 | -32602)), "{response}");
        }
    });
}

// --- Coming and going.

/// A server that is not there is left out; when it comes every session is told, and finds it in the list.
#[test]
fn server_that_comes_back_is_told_of_and_listed_again() {
    on_every_way(|layout| {
        for reached in [Reached::Stdio, Reached::SharedHttp] {
            let one = Peer::new(reached, "one", paged(&[1, 1]));
            let two = Peer::stdio("two", paged(&[1, 1]));
            let gateway = Served::start(layout, &[joined(&[&one, &two])]);
            let clients = [0, 1].map(|_| Client::open(&gateway));
            let mut streams = clients.each_ref().map(Client::stream);
            let whole = ["one-x.0.0", "two-x.0.0", "one-x.1.0", "two-x.1.0"];
            assert_eq!(clients[0].names(Kind::Tools), whole);
            one.down();
            for client in &clients {
                wait_listed(client, Kind::Tools, &["two-x.0.0", "two-x.1.0"]);
                let down = client.ask("tools/call", &support::routes::call("one-x.0.0", ""));
                assert!(support::routes::is_down(&down), "{down}");
            }
            one.change(|catalogue| catalogue.add(Kind::Tools, "new"));
            one.up();
            for (client, stream) in clients.iter().zip(&mut streams) {
                // The fall may have been told as well: only a list after the last word counts.
                loop {
                    until(stream, "the change", |message| {
                        message["method"] == "notifications/tools/list_changed"
                    });
                    if client.has(Kind::Tools, "one-new") {
                        break;
                    }
                }
                assert_eq!(client.call_text("two-x.0.0", "n"), "two:x.0.0:n");
                assert_eq!(client.call_text("one-new", "n"), "one:new:n");
            }
        }
    });
}

/// The same for a server of which each session has its own: it is found again without a new session.
#[test]
fn sessions_own_server_that_comes_back_is_listed_again() {
    on_both_drivers(|layout| {
        let one = Peer::http("one", paged(&[1]));
        let two = Peer::stdio("two", paged(&[1]));
        let gateway = Served::start(layout, &[joined(&[&one, &two])]);
        let client = Client::open(&gateway);
        assert_eq!(client.names(Kind::Tools), ["one-x.0.0", "two-x.0.0"]);
        one.down();
        wait_listed(&client, Kind::Tools, &["two-x.0.0"]);
        // Who comes now has no session there yet.
        let late = Client::open(&gateway);
        assert_eq!(late.names(Kind::Tools), ["two-x.0.0"]);
        one.up();
        for client in [&client, &late] {
            wait_listed(client, Kind::Tools, &["one-x.0.0", "two-x.0.0"]);
            wait_until("its tools can be called", || {
                let response = client.ask("tools/call", &support::routes::call("one-x.0.0", "n"));
                !support::routes::is_down(&response)
            });
            assert_eq!(client.call_text("two-x.0.0", "n"), "two:x.0.0:n");
        }
    });
}

/// A server that was never there at the start is there when it comes.
#[test]
fn server_that_comes_late_is_listed_when_it_comes() {
    on_every_way(|layout| {
        for reached in Reached::ALL {
            let one = Peer::new(reached, "one", paged(&[1]));
            let two = Peer::stdio("two", paged(&[1]));
            one.down();
            let upstreams = [one.toml("start-timeout = \"1s\""), two.toml("")];
            let gateway = Served::start(layout, &[route("/mcp", "", &upstreams)]);
            let client = Client::open(&gateway);
            assert_eq!(client.names(Kind::Tools), ["two-x.0.0"]);
            one.up();
            wait_listed(&client, Kind::Tools, &["one-x.0.0", "two-x.0.0"]);
            assert_eq!(client.call_text("one-x.0.0", "n"), "one:x.0.0:n");
        }
    });
}

/// One word of one server reaches every session once, under the gateway's own hand.
#[test]
fn change_of_one_servers_list_is_told_once_to_all() {
    on_every_way(|layout| {
        let peers = one_of_each([paged(&[1]), paged(&[1]), paged(&[1])]);
        let gateway = start(layout, &peers);
        let clients = [0, 1, 2, 3].map(|_| Client::open(&gateway));
        let mut streams = clients.each_ref().map(Client::stream);
        for peer in &peers {
            peer.wait_listened(if peer.reached() == Reached::Http {
                4
            } else {
                1
            });
            peer.change(|catalogue| catalogue.add(Kind::Tools, "new"));
            peer.say_list_changed(Kind::Tools);
            for (client, stream) in clients.iter().zip(&mut streams) {
                let heard = until(stream, "the change", |_| true);
                assert_eq!(
                    heard,
                    [json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" })],
                    "{}",
                    peer.name
                );
                assert!(client.has(Kind::Tools, &format!("{}-new", peer.name)));
            }
            // Nothing came twice: the next word is the next one.
            peer.say_list_changed(Kind::Prompts);
            for stream in &mut streams {
                let heard = until(stream, "another change", |_| true);
                assert_eq!(
                    heard[0]["method"], "notifications/prompts/list_changed",
                    "{}",
                    peer.name
                );
            }
        }
    });
}

/// All pages of all servers in one set, whatever the route allows: nothing that is hidden makes a page go missing.
#[test]
fn pages_that_are_all_denied_do_not_end_the_list() {
    on_both_drivers(|layout| {
        let peers = one_of_each([paged(&[1, 1, 1]), paged(&[1, 1, 1]), paged(&[1, 1, 1])]);
        let lines = r#"deny = { tools = ["*-x.0.0", "*-x.1.0"] }"#;
        let routes = joined_with(lines, &peers.iter().collect::<Vec<_>>());
        let gateway = Served::start(layout, &[routes]);
        let client = Client::open(&gateway);
        let names: BTreeSet<String> = client.names(Kind::Tools).into_iter().collect();
        let expected = ["one", "two", "three"].map(|server| format!("{server}-x.2.0"));
        assert_eq!(names, BTreeSet::from(expected));
        let refused = client.ask("tools/call", &support::routes::call("one-x.0.0", ""));
        assert_eq!(refusal_of(&refused).0, -32602);
    });
}
