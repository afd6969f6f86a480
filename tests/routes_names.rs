//! Names over several servers behind one route: what is listed under which name, which server a name leads to, and
//! what no name may lead to. All servers here offer the same names, so that a wrong turn is a wrong answer and not an
//! unknown name; and each test looks at what the servers were asked, not only at what the client was told.

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::catalogue::{Catalogue, Kind, task};
use support::gateway::{command_with_config, run_to_end};
use support::mcp::{notification_body, request_body};
use support::peer::{Peer, Reached};
use support::routes::{
    Client, Served, call, joined, process_lines, refusal_of, route, text_of, until,
};
use support::stream::value;
use support::{
    Layout, Request, Scratch, Stream, on_both_drivers, on_every_way, on_layouts, wait_until,
};

/// One server of each kind, all with the same things.
fn three() -> [Peer; 3] {
    three_of(&Catalogue::usual())
}

fn three_of(catalogue: &Catalogue) -> [Peer; 3] {
    [
        Peer::stdio("one", catalogue.clone()),
        Peer::http("two", catalogue.clone()),
        Peer::shared_http("three", catalogue.clone()),
    ]
}

fn start(layout: Layout, peers: &[Peer]) -> Served {
    Served::start(layout, &[joined(&refs(peers))])
}

fn refs(peers: &[Peer]) -> Vec<&Peer> {
    peers.iter().collect()
}

/// The upstreams of a route with these lines each.
fn upstreams(peers: &[(&Peer, &str)]) -> Vec<String> {
    peers.iter().map(|(peer, lines)| peer.toml(lines)).collect()
}

/// `PREFIX-NAME` for every prefix in turn.
fn prefixed(prefixes: &[&str], names: &[&str]) -> Vec<String> {
    let all = prefixes.iter();
    all.flat_map(|prefix| names.iter().map(move |name| format!("{prefix}-{name}")))
        .collect()
}

fn unknown_tool(name: &str) -> (i64, String) {
    (-32602, format!("Unknown tool: {name}"))
}

fn unknown_prompt(name: &str) -> (i64, String) {
    (-32602, format!("Unknown prompt: {name}"))
}

/// Checks that a request is refused because its resource is not there, or not to be known.
#[track_caller]
fn expect_no_resource(client: &Client<'_>, method: &str, params: &Value) {
    let (code, message) = client.refusal(method, params);
    assert_eq!(code, -32002, "{method} {params}: {message}");
    let says = message.starts_with("Resource not found");
    assert!(says, "{method} {params}: {message}");
}

fn completion(of: &Value) -> Value {
    json!({ "ref": of, "argument": { "name": "id", "value": "" } })
}

fn of_prompt(name: &str) -> Value {
    completion(&json!({ "type": "ref/prompt", "name": name }))
}

fn of_template(uri: &str) -> Value {
    completion(&json!({ "type": "ref/resource", "uri": uri }))
}

fn updated(uri: &str) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": uri } })
}

/// Whether a message is this notification.
fn says(method: &'static str) -> impl Fn(&Value) -> bool {
    move |message| message["method"] == method
}

/// What each stream carries up to a change of the prompts, which the server says as a barrier. Marks that are set
/// together come in any order, so it is said again when all have heard it.
#[track_caller]
fn carried_by_all(peer: &Peer, streams: &mut [Stream]) -> Vec<Vec<Value>> {
    const BARRIER: &str = "notifications/prompts/list_changed";
    let mut carried = vec![Vec::new(); streams.len()];
    for _ in 0..2 {
        peer.say_list_changed(Kind::Prompts);
        for (stream, carried) in streams.iter_mut().zip(&mut carried) {
            let mut heard = until(stream, "the barrier", says(BARRIER));
            heard.pop();
            carried.extend(heard);
        }
    }
    carried
}

#[track_caller]
fn carried(peer: &Peer, stream: &mut Stream) -> Vec<Value> {
    carried_by_all(peer, std::slice::from_mut(stream)).remove(0)
}

// --- Which server a name leads to.

/// The heart of it: one list, and every name of it leads to the one server whose it is, under its own name there.
#[test]
fn every_listed_tool_leads_to_its_own_server() {
    on_every_way(|layout| {
        let peers = three();
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let own = ["echo", "delete", "hold", "a-b_c.d/e"];
        let listed = client.names(Kind::Tools);
        assert_eq!(listed, prefixed(&["one", "two", "three"], &own));
        for (number, name) in listed.iter().enumerate() {
            let (server, tool) = name.split_once('-').expect("a prefix");
            let nonce = format!("n{number}");
            assert_eq!(
                client.call_text(name, &nonce),
                format!("{server}:{tool}:{nonce}")
            );
        }
        for peer in &peers {
            assert_eq!(peer.names("tools/call"), own, "{}", peer.name);
        }
    });
}

#[test]
fn prompts_resources_templates_and_completions_lead_to_their_own_server() {
    on_every_way(|layout| {
        let peers = three();
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let servers = ["one", "two", "three"];
        assert_eq!(
            client.names(Kind::Prompts),
            prefixed(&servers, &["ask", "delete"])
        );
        assert_eq!(
            client.names(Kind::Resources),
            prefixed(&servers, &["file:///a", "file:///a/b", "file:///secret"])
        );
        assert_eq!(
            client.names(Kind::Templates),
            prefixed(&servers, &["file:///t/{id}", "file:///secret/{id}"])
        );
        // A resource's name is shown with its prefix as well.
        let page = client.page(Kind::Resources, None);
        assert_eq!(page.items[0]["name"], "one-file:///a");
        for peer in &peers {
            let name = &peer.name;
            let prompt = client.result("prompts/get", &json!({ "name": format!("{name}-ask") }));
            assert_eq!(
                prompt["messages"][0]["content"]["text"],
                format!("{name}:ask")
            );
            for uri in ["file:///a", "file:///t/7"] {
                let read = client.read(&format!("{name}-{uri}"));
                let content = &read["contents"][0];
                assert_eq!(content["text"], format!("{name}:{uri}"));
                // The client knows the resource by the name that it asked for.
                assert_eq!(content["uri"], format!("{name}-{uri}"));
            }
            let asked = client.result("completion/complete", &of_prompt(&format!("{name}-ask")));
            assert_eq!(
                asked["completion"]["values"],
                json!([format!("{name}:ask")])
            );
            let asked = client.result(
                "completion/complete",
                &of_template(&format!("{name}-file:///t/{{id}}")),
            );
            assert_eq!(
                asked["completion"]["values"],
                json!([format!("{name}:file:///t/{{id}}")])
            );
        }
        for peer in &peers {
            assert_eq!(peer.names("prompts/get"), ["ask"]);
            assert_eq!(peer.names("resources/read"), ["file:///a", "file:///t/7"]);
            assert_eq!(peer.count(|asked| asked.is("completion/complete")), 2);
        }
    });
}

/// A name is what its letters are, however JSON spells it; nothing else of the message changes on its way.
#[test]
fn name_in_any_spelling_is_exchanged_and_nothing_else() {
    on_both_drivers(|layout| {
        let peers = three();
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let arguments = r#"{"nonce":"x","n":1.50e+1,"big":9007199254740993,"name":"one-echo","e":"caf\u00e9 \/"}"#;
        for (peer, spelling) in peers.iter().zip([
            r"one-\u0065cho",
            r"tw\u006F\u002Decho",
            r"\u0074hree-ech\u006f",
        ]) {
            let params =
                format!(r#"{{"x":[1.0],"name":"{spelling}","arguments":{arguments},"y":null}}"#);
            let response =
                gateway.ask(&client.post(request_body(r#""i\u0041""#, "tools/call", &params)));
            assert_eq!(text_of(&response.result()), format!("{}:echo:x", peer.name));
            assert_eq!(response.raw_id().as_deref(), Some(r#""i\u0041""#));
            let asked = peer.wait_asked("the call", 1, |asked| asked.is("tools/call"));
            let expected =
                format!(r#""params":{{"x":[1.0],"name":"echo","arguments":{arguments},"y":null}}"#);
            assert!(asked[0].text.contains(&expected), "{}", asked[0].text);
        }
    });
}

#[test]
fn unknown_names_are_refused_and_reach_nobody() {
    on_both_drivers(|layout| {
        let peers = three();
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        for name in [
            "echo",
            "four-echo",
            "one",
            "onecho",
            "ONE-echo",
            "-echo",
            "",
            "one_echo",
            " one-echo",
        ] {
            assert_eq!(
                client.refusal("tools/call", &call(name, "")),
                unknown_tool(name)
            );
            assert_eq!(
                client.refusal("prompts/get", &json!({ "name": name })),
                unknown_prompt(name)
            );
            assert_eq!(
                client.refusal("completion/complete", &of_prompt(name)).0,
                -32602
            );
        }
        for uri in ["file:///a", "four-file:///a", "one", "onefile:///a"] {
            for method in ["resources/read", "resources/subscribe"] {
                expect_no_resource(&client, method, &json!({ "uri": uri }));
            }
        }
        // The server's own word about a name that is its to judge.
        assert_eq!(client.refusal("tools/call", &call("one-no", "")).0, -32602);
        for peer in &peers {
            let expected: &[&str] = if peer.name == "one" { &["no"] } else { &[] };
            assert_eq!(peer.names("tools/call"), expected);
            for method in [
                "prompts/get",
                "resources/read",
                "resources/subscribe",
                "completion/complete",
            ] {
                assert_eq!(peer.names(method), [""; 0], "{}: {method}", peer.name);
            }
        }
    });
}

/// By route and kind, never by the name; what a server refuses is not among them. A reload begins nothing anew.
#[test]
fn unknown_and_denied_names_are_counted_by_kind() {
    on_layouts(&[2], |layout| {
        let peers = three();
        let all = upstreams(&[(&peers[0], ""), (&peers[1], ""), (&peers[2], "")]);
        let with = |deny: &str| {
            let deny = format!("deny = {{ tools = [{deny:?}] }}");
            let other = [peers[0].toml("prefix = \"always\"")];
            [route("/mcp", &deny, &all), route("/b", "", &other)]
        };
        let gateway = Served::start(layout, &with("two-delete"));
        let metrics = gateway.metrics();
        let counted = |route: &str| {
            ["tool", "prompt", "resource"].map(|kind| {
                let labels = [format!("kind={kind:?}"), format!("route={route:?}")];
                let labels = labels.each_ref().map(String::as_str);
                metrics.sum("ringway_route_unknown_names_total", &labels)
            })
        };
        assert_eq!(counted("mcp"), [0.0; 3]);
        let client = Client::open(&gateway);
        for name in ["two-delete", "two-delete", "four-echo"] {
            client.refusal("tools/call", &call(name, ""));
        }
        client.refusal("prompts/get", &json!({ "name": "ask" }));
        client.refusal("completion/complete", &of_prompt("ask"));
        for method in [
            "resources/read",
            "resources/subscribe",
            "resources/unsubscribe",
        ] {
            expect_no_resource(&client, method, &json!({ "uri": "file:///a" }));
        }
        expect_no_resource(&client, "completion/complete", &of_template("file:///{id}"));
        let expected = [3.0, 2.0, 4.0];
        assert_eq!(counted("mcp"), expected);
        // What the server judges, what is right, and what is no name at all.
        client.refusal("tools/call", &call("one-no", ""));
        client.call("one-echo", "");
        client.refusal("tools/call", &json!({ "name": 7 }));
        assert_eq!(counted("mcp"), expected);
        assert_eq!(counted("b"), [0.0; 3]);
        let other = Client::open_at(&gateway, "/b");
        other.refusal("tools/call", &call("two-echo", ""));
        assert_eq!(counted("b"), [1.0, 0.0, 0.0]);

        gateway.reload(&with("one-hold"));
        wait_until("the other rule is in force", || {
            let names = client.names(Kind::Tools);
            !names.contains(&"one-hold".to_owned())
        });
        assert_eq!(counted("mcp"), expected);
        client.refusal("tools/call", &call("one-hold", ""));
        assert_eq!(counted("mcp"), [4.0, 2.0, 4.0]);

        // Each shard writes to numbers of its own: sessions come to all of them.
        let is_counted = |shard: usize| {
            let shard = format!("shard=\"{shard}\"");
            let labels = [shard.as_str(), "route=\"b\""];
            metrics.sum("ringway_route_unknown_names_total", &labels) > 0.0
        };
        let mut sessions = 0;
        while !(0..layout.shards).all(is_counted) {
            sessions += 1;
            assert!(sessions < 200, "some shard has counted nothing");
            let other = Client::open_at(&gateway, "/b");
            other.refusal("tools/call", &call("two-echo", ""));
        }
    });
}

/// A name that is missing, twice there or no text must lead nowhere: the server might read another one.
#[test]
fn ambiguous_names_are_refused_and_reach_nobody() {
    on_both_drivers(|layout| {
        let peers = three();
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        for (method, params) in [
            ("tools/call", r#"{"name":"one-echo","name":"two-echo"}"#),
            (
                "tools/call",
                r#"{"name":"one-echo","n\u0061me":"two-echo"}"#,
            ),
            ("tools/call", r#"{"arguments":{}}"#),
            ("tools/call", r#"{"name":7}"#),
            ("tools/call", r#"{"name":null}"#),
            ("prompts/get", r#"{"name":["one-ask"]}"#),
            (
                "resources/read",
                r#"{"uri":"one-file:///a","uri":"two-file:///a"}"#,
            ),
            ("resources/read", r"{}"),
            (
                "completion/complete",
                r#"{"ref":{"type":"ref/prompt","name":"one-ask","name":"two-ask"},"argument":{"name":"a","value":""}}"#,
            ),
            (
                "completion/complete",
                r#"{"ref":{"type":"ref/prompt","name":"one-ask"},"ref":{"type":"ref/prompt","name":"two-ask"},"argument":{"name":"a","value":""}}"#,
            ),
            (
                "completion/complete",
                r#"{"argument":{"name":"a","value":""}}"#,
            ),
        ] {
            let response = gateway.ask(&client.post(request_body("1", method, params)));
            let message = response.message();
            let code = message["error"]["code"].as_i64();
            assert!(
                matches!(code, Some(-32600 | -32602 | -32002)),
                "{method} {params}: {response}"
            );
        }
        for peer in &peers {
            for method in [
                "tools/call",
                "prompts/get",
                "resources/read",
                "completion/complete",
            ] {
                assert_eq!(peer.names(method), [""; 0], "{}: {method}", peer.name);
            }
        }
    });
}

// --- What comes back.

/// A link in a result is worth something only if the client can follow it.
#[test]
fn links_and_embedded_resources_can_be_followed() {
    on_both_drivers(|layout| {
        let peers = three();
        for peer in &peers {
            let link =
                json!({ "type": "resource_link", "uri": "file:///a", "name": "a", "x": [1] });
            let embedded = json!({
                "type": "resource",
                "resource": { "uri": "file:///a/b", "text": "file:///a" },
            });
            let text = json!({ "type": "text", "text": "see file:///a, \"uri\":\"file:///a\"" });
            let content = json!([link, text, embedded]);
            let of_tool = json!({
                "content": content,
                "structuredContent": { "uri": "file:///a" },
            });
            let of_prompt = json!({ "messages": [
                { "role": "user", "content": link },
                { "role": "assistant", "content": embedded },
            ]});
            peer.answer(|asked| asked.is("tools/call"), move |_| Ok(of_tool.clone()));
            peer.answer(
                |asked| asked.is("prompts/get"),
                move |_| Ok(of_prompt.clone()),
            );
        }
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        for peer in &peers {
            let name = &peer.name;
            let result = client.call(&format!("{name}-echo"), "");
            let content = &result["content"];
            let public = format!("{name}-file:///a");
            assert_eq!(content[0]["uri"], public, "{result}");
            assert_eq!(content[0]["x"], json!([1]));
            assert_eq!(content[1]["text"], "see file:///a, \"uri\":\"file:///a\"");
            assert_eq!(
                content[2]["resource"],
                json!({ "uri": format!("{public}/b"), "text": "file:///a" })
            );
            assert_eq!(result["structuredContent"], json!({ "uri": "file:///a" }));
            let prompt = client.result("prompts/get", &json!({ "name": format!("{name}-ask") }));
            let messages = &prompt["messages"];
            assert_eq!(messages[0]["content"]["uri"], public, "{prompt}");
            assert_eq!(
                messages[1]["content"]["resource"]["uri"],
                format!("{public}/b")
            );
            let followed = content[0]["uri"].as_str().expect("a URI");
            assert_eq!(
                client.read(followed)["contents"][0]["text"],
                format!("{name}:file:///a")
            );
            assert_eq!(peer.names("resources/read"), ["file:///a"]);
        }
    });
}

/// A tool, and a result of it, names its view by the URI that the client can read it by; hosts take none that does not
/// begin with `ui://`. Of a view that is denied nothing is said.
#[test]
fn views_of_tools_can_be_read_where_they_are_named() {
    on_both_drivers(|layout| {
        let tool = |name: &str, view: &str| {
            json!({
                "name": name,
                "inputSchema": { "type": "object" },
                "_meta": {
                    "ui": { "visibility": ["model", "app"], "resourceUri": view },
                    "ui/resourceUri": view,
                    "x": { "ui/resourceUri": "ui://v/a" },
                },
            })
        };
        let tools = vec![vec![
            tool("draw", "ui://v/a"),
            tool("hide", "ui://secret/b"),
        ]];
        let catalogue = Catalogue::new()
            .with_items(Kind::Tools, tools)
            .with(Kind::Resources, &["ui://v/a", "ui://secret/b"]);
        let peers = three_of(&catalogue);
        for peer in &peers {
            let result = json!({
                "content": [],
                "_meta": { "ui": { "resourceUri": "ui://v/a" }, "ui/resourceUri": "ui://secret/b", "x": 1 },
            });
            peer.answer(|asked| asked.is("tools/call"), move |_| Ok(result.clone()));
        }
        let routes = route(
            "/mcp",
            r#"deny = { resources = ["ui://three-secret*"] }"#,
            &upstreams(&[
                (
                    &peers[0],
                    "prefix = \"never\"\ndeny = { resources = [\"ui://secret*\"] }",
                ),
                (&peers[1], ""),
                (&peers[2], ""),
            ]),
        );
        let gateway = Served::start(layout, &[routes]);
        let client = Client::open(&gateway);
        let listed = client.result("tools/list", &json!({}));
        let shown = |name: &str| {
            let tools = listed["tools"].as_array().expect("a list");
            let tool = tools.iter().find(|tool| tool["name"] == name);
            let meta = tool.expect("a tool that is listed")["_meta"].clone();
            assert_eq!(meta["ui"]["visibility"], json!(["model", "app"]), "{meta}");
            assert_eq!(meta["x"], json!({ "ui/resourceUri": "ui://v/a" }), "{meta}");
            let old = meta.get("ui/resourceUri").cloned();
            assert_eq!(meta["ui"].get("resourceUri"), old.as_ref(), "{meta}");
            old.map(|old| old.as_str().expect("a URI").to_owned())
        };
        for (peer, prefix, view, other) in [
            (&peers[0], "", "ui://v/a", None),
            (&peers[1], "two-", "ui://two-v/a", Some("ui://two-secret/b")),
            (&peers[2], "three-", "ui://three-v/a", None),
        ] {
            assert_eq!(shown(&format!("{prefix}draw")).as_deref(), Some(view));
            assert_eq!(shown(&format!("{prefix}hide")).as_deref(), other);
            let result = client.call(&format!("{prefix}draw"), "");
            let mut meta = json!({ "ui": { "resourceUri": view }, "x": 1 });
            if let Some(other) = other {
                meta["ui/resourceUri"] = json!(other);
            }
            assert_eq!(result["_meta"], meta);
            let read = &client.read(view)["contents"][0];
            assert_eq!(read["uri"], view);
            assert_eq!(read["text"], format!("{}:ui://v/a", peer.name));
            assert_eq!(peer.names("resources/read"), ["ui://v/a"]);
        }
        let uris = client.names(Kind::Resources);
        let readable = [
            "ui://v/a",
            "ui://two-v/a",
            "ui://two-secret/b",
            "ui://three-v/a",
        ];
        assert_eq!(uris, readable);
        for uri in [
            "ui://secret/b",
            "ui://three-secret/b",
            "three-ui://secret/b",
            "two-ui://v/a",
        ] {
            expect_no_resource(&client, "resources/read", &json!({ "uri": uri }));
        }
    });
}

/// The same URI at each server is three resources: who asked for one of them hears of that one.
#[test]
fn updates_come_under_the_name_that_was_subscribed_to() {
    on_every_way(|layout| {
        let peers = three();
        let gateway = start(layout, &peers);
        let clients = [0, 1, 2].map(|_| Client::open(&gateway));
        let mut streams = clients.each_ref().map(Client::stream);
        for peer in &peers {
            peer.wait_listened(if peer.reached() == Reached::Http {
                3
            } else {
                1
            });
        }
        for (client, peer) in clients.iter().zip(&peers) {
            client.subscribe(&format!("{}-file:///a", peer.name));
        }
        for peer in &peers {
            peer.wait_asked("the subscription", 1, |asked| {
                asked.is("resources/subscribe") && asked.name() == "file:///a"
            });
            assert_eq!(peer.names("resources/subscribe"), ["file:///a"]);
        }
        for (number, peer) in peers.iter().enumerate() {
            peer.say_updated("file:///a");
            let own = [updated(&format!("{}-file:///a", peer.name))];
            let heard = carried_by_all(peer, &mut streams);
            assert_eq!(heard[number], own, "{}", peer.name);
            for (other, heard) in heard.iter().enumerate() {
                // A server with a session for each has said it in each, and knows best who is to hear it.
                let may_hear = other == number || peer.reached() == Reached::Http;
                let is_own = may_hear && heard[..] == own;
                assert!(heard.is_empty() || is_own, "{heard:?}");
            }
        }
        // What lies below is told under its own name.
        peers[0].say_updated("file:///a/b");
        let heard = carried_by_all(&peers[0], &mut streams);
        assert_eq!(heard, [vec![updated("one-file:///a/b")], vec![], vec![]]);
        for (client, peer) in clients.iter().zip(&peers) {
            client.unsubscribe(&format!("{}-file:///a", peer.name));
            peer.wait_asked("the end of it", 1, |asked| {
                asked.is("resources/unsubscribe") && asked.name() == "file:///a"
            });
        }
    });
}

/// Progress of two calls with one token, at two servers that count alike.
#[test]
fn progress_and_cancels_belong_to_their_call() {
    on_every_way(|layout| {
        let peers = three();
        for peer in &peers {
            peer.hold(|asked| asked.calls("hold"));
        }
        let gateway = start(layout, &peers);
        let clients = [0, 1, 2].map(|_| Client::open(&gateway));
        let mut calls = Vec::new();
        for (client, peer) in clients.iter().zip(&peers) {
            let mut params = call(&format!("{}-hold", peer.name), &peer.name);
            params["_meta"] = json!({ "progressToken": "t" });
            let body = request_body("\"same\"", "tools/call", &params.to_string());
            let mut connection = gateway.connect();
            connection.send(client.post(body).bytes());
            calls.push(connection);
        }
        let mut held: Vec<_> = peers
            .iter()
            .map(|peer| peer.take("the call", |asked| asked.calls("hold")))
            .collect();
        for step in 1..4 {
            for (peer, held) in peers.iter().zip(&mut held) {
                held.progress(step, &peer.name);
            }
        }
        for (peer, held) in peers.iter().zip(held) {
            held.reply(&json!({ "content": [{ "type": "text", "text": peer.name }] }));
        }
        for (peer, connection) in peers.iter().zip(&mut calls) {
            let messages = connection.response().messages();
            assert_eq!(messages.len(), 4, "{messages:?}");
            for (step, message) in messages[..3].iter().enumerate() {
                let params = &message["params"];
                assert_eq!(params["progressToken"], "t");
                assert_eq!(params["progress"], step + 1);
                assert_eq!(params["message"], peer.name.as_str());
            }
            assert_eq!(text_of(&messages[3]["result"]), peer.name);
        }

        // One session, one call at each server; the middle one is cancelled.
        let client = &clients[0];
        let mut connections: Vec<_> = peers
            .iter()
            .map(|peer| {
                let params = call(&format!("{}-hold", peer.name), "again");
                let id = format!("\"at {}\"", peer.name);
                let mut connection = gateway.connect();
                let body = request_body(&id, "tools/call", &params.to_string());
                connection.send(client.post(body).bytes());
                connection
            })
            .collect();
        let held: Vec<_> = peers
            .iter()
            .map(|peer| peer.take("the call", |asked| asked.has_nonce("again")))
            .collect();
        for at in [1, 2, 0] {
            let id = format!("at {}", peers[at].name);
            let said = client.notify("notifications/cancelled", &json!({ "requestId": id }));
            assert_eq!(said.status, 202);
            let response = connections[at].response();
            assert!(response.messages().is_empty(), "{response}");
            let cancel =
                peers[at].wait_asked("the cancel", 1, |asked| asked.is("notifications/cancelled"));
            assert_eq!(
                cancel[0].params()["requestId"].to_string(),
                held[at].asked.id().expect("an id")
            );
        }
    });
}

/// Two servers that count their tasks alike: the client must be able to tell them apart.
#[test]
fn tasks_of_two_servers_are_told_apart() {
    on_both_drivers(|layout| {
        let catalogue = Catalogue::usual().with(Kind::Tasks, &["task-1"]);
        let peers = three_of(&catalogue);
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let mut stream = client.stream();
        for peer in &peers {
            peer.wait_listened(1);
        }
        let mut ids = Vec::new();
        for peer in &peers {
            let mut params = call(&format!("{}-echo", peer.name), "");
            params["task"] = json!({ "ttl": 60_000 });
            let created = client.result("tools/call", &params);
            let id = created["task"]["taskId"].as_str().expect("a task");
            ids.push(id.to_owned());
        }
        let distinct: BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
        for (peer, id) in peers.iter().zip(&ids) {
            let about = json!({ "taskId": id });
            let got = client.result("tasks/get", &about);
            assert_eq!(got["taskId"], id.as_str(), "{got}");
            let result = client.result("tasks/result", &about);
            assert_eq!(text_of(&result), format!("{}:\"task-1\"", peer.name));
            for method in ["tasks/get", "tasks/result"] {
                let asked = peer.asked(|asked| asked.is(method));
                assert_eq!(asked.len(), 1, "{}", peer.name);
                assert_eq!(asked[0].params()["taskId"], "task-1");
            }
        }
        let mut listed = client.names(Kind::Tasks);
        listed.sort();
        let mut sorted = ids.clone();
        sorted.sort();
        assert_eq!(listed, sorted);
        // Another session knows none of them; what its own session at the second server knows is for that to say.
        let stranger = Client::open(&gateway);
        for (peer, id) in peers.iter().zip(&ids) {
            if peer.reached() != Reached::Http {
                let about = json!({ "taskId": id });
                assert_eq!(stranger.refusal("tasks/get", &about).0, -32602);
                assert!(!stranger.has(Kind::Tasks, id), "{id}");
            }
        }
        for (peer, id) in peers.iter().zip(&ids) {
            let status = json!({
                "jsonrpc": "2.0",
                "method": "notifications/tasks/status",
                "params": task("task-1", "input_required"),
            });
            peer.say(&status);
            let heard = until(
                &mut stream,
                "the status",
                says("notifications/tasks/status"),
            );
            let last = heard.last().expect("waited for");
            assert_eq!(last["params"]["taskId"], id.as_str(), "{heard:?}");
            let gone = client.result("tasks/cancel", &json!({ "taskId": id }));
            assert_eq!(gone["taskId"], id.as_str());
            let asked = peer.wait_asked("the cancel", 1, |asked| asked.is("tasks/cancel"));
            assert_eq!(asked[0].params()["taskId"], "task-1");
        }
    });
}

/// A route of one server is no exception, whether its names have a prefix or not.
#[test]
fn tasks_of_a_server_alone_are_found() {
    on_both_drivers(|layout| {
        for reached in Reached::ALL {
            let catalogue = Catalogue::usual().with(Kind::Tasks, &["task-1"]);
            for (lines, tool) in [("", "echo"), ("prefix = \"always\"", "one-echo")] {
                let peer = Peer::new(reached, "one", catalogue.clone());
                let gateway = Served::start(layout, &[route("/mcp", "", &[peer.toml(lines)])]);
                let client = Client::open(&gateway);
                let mut params = call(tool, "");
                params["task"] = json!({ "ttl": 60_000 });
                let created = client.result("tools/call", &params);
                let id = created["task"]["taskId"].clone();
                let about = json!({ "taskId": id });
                assert_eq!(client.result("tasks/get", &about)["taskId"], id);
                assert_eq!(
                    text_of(&client.result("tasks/result", &about)),
                    "one:\"task-1\""
                );
                assert_eq!(client.names(Kind::Tasks), [id.as_str().expect("text")]);
                assert_eq!(client.result("tasks/cancel", &about)["taskId"], id);
                let asked = peer.asked(|asked| asked.method.starts_with("tasks/"));
                let named = asked.iter().filter(|asked| !asked.is("tasks/list"));
                for asked in named {
                    assert_eq!(asked.params()["taskId"], "task-1", "{asked:?}");
                }
            }
        }
    });
}

/// One id is one request, whichever servers it goes to: the second is refused, the first is untouched.
#[test]
fn id_that_is_in_flight_at_any_server_is_refused() {
    on_every_way(|layout| {
        let tools = Catalogue::usual().capabilities(json!({ "tools": {} }));
        let one = Peer::stdio("one", tools);
        let two = Peer::http("two", Catalogue::usual());
        for peer in [&one, &two] {
            peer.hold(|asked| asked.calls("hold"));
        }
        let gateway = Served::start(layout, &[joined(&[&one, &two])]);
        let client = Client::open(&gateway);
        for (held_at, other) in [(&one, "two"), (&two, "one")] {
            let params = call(&format!("{}-hold", held_at.name), "").to_string();
            let mut first = gateway.connect();
            first.send(
                client
                    .post(request_body("\"i\"", "tools/call", &params))
                    .bytes(),
            );
            let held = held_at.take("the call", |asked| asked.calls("hold"));
            let other_call = call(&format!("{other}-echo"), "second").to_string();
            let before = [one.all().len(), two.all().len()];
            for (method, params) in [
                ("tools/call", other_call.as_str()),
                ("tools/call", params.as_str()),
                ("tools/list", "{}"),
                ("prompts/list", "{}"),
                ("prompts/get", r#"{"name":"two-ask"}"#),
            ] {
                let again = client.post(request_body(r#""\u0069""#, method, params));
                gateway.ask(&again).expect_error(400, -32600, None);
            }
            assert_eq!(
                [one.all().len(), two.all().len()],
                before,
                "a server was asked"
            );
            held.reply(&json!({ "content": [{ "type": "text", "text": "first" }] }));
            assert_eq!(text_of(&first.response().result()), "first");
            // Answered, it is free.
            let again = client.post(request_body("\"i\"", "tools/call", &other_call));
            assert_eq!(
                text_of(&gateway.ask(&again).result()),
                format!("{other}:echo:second")
            );
        }
    });
}

/// Two servers that number their own questions alike: each answer goes to the server that has asked.
#[test]
fn answers_to_the_servers_own_questions_go_back_to_them() {
    on_every_way(|layout| {
        let peers = ["two", "four"].map(|name| Peer::http(name, Catalogue::usual()));
        for peer in &peers {
            peer.hold(|asked| asked.calls("hold"));
        }
        let gateway = start(layout, &peers);
        let client = Client::open(&gateway);
        let mut streams = Vec::new();
        let mut held = Vec::new();
        for peer in &peers {
            let params = call(&format!("{}-hold", peer.name), &peer.name);
            streams.push(client.begin("tools/call", &params));
            held.push(peer.take("the call", |asked| asked.calls("hold")));
        }
        for (peer, held) in peers.iter().zip(&mut held) {
            held.say(&json!({
                "jsonrpc": "2.0",
                "id": 1,
                "method": "elicitation/create",
                "params": { "message": peer.name },
            }));
        }
        let mut streams: Vec<_> = streams.into_iter().map(Stream::of_answer).collect();
        let mut ids = Vec::new();
        for (peer, stream) in peers.iter().zip(&mut streams) {
            let question = value(&stream.message());
            assert_eq!(question["method"], "elicitation/create", "{question}");
            assert_eq!(question["params"]["message"], peer.name.as_str());
            ids.push(question["id"].clone());
        }
        assert_ne!(ids[0], ids[1], "a client could not tell them apart");
        for (peer, id) in peers.iter().zip(&ids) {
            let answer = json!({
                "jsonrpc": "2.0",
                "id": id,
                "result": { "action": "accept", "content": { "for": peer.name } },
            });
            let said = gateway.ask(&client.post(answer.to_string()));
            assert_eq!(said.status, 202, "{said}");
        }
        for (peer, held) in peers.iter().zip(held) {
            let answers = peer.wait_asked("the answer", 1, |asked| {
                asked.method.is_empty() && asked.message["result"].is_object()
            });
            assert_eq!(answers[0].message["id"], 1);
            assert_eq!(
                answers[0].message["result"]["content"]["for"],
                peer.name.as_str()
            );
            held.reply(&json!({ "content": [{ "type": "text", "text": "done" }] }));
        }
        for stream in &mut streams {
            let (_, last) = stream.answer();
            assert_eq!(text_of(&value(&last)["result"]), "done");
        }
    });
}

/// Several messages in one body, each for another server.
#[test]
fn batch_is_dealt_out_over_the_servers() {
    on_both_drivers(|layout| {
        let peers = three();
        let gateway = start(layout, &peers);
        let client = Client::open_as(&gateway, "/mcp", "2025-03-26", None);
        assert_eq!(client.session.version, "2025-03-26");
        let messages = [
            request_body("1", "tools/call", &call("three-echo", "b").to_string()),
            request_body("2", "tools/list", "{}"),
            request_body("3", "tools/call", &call("four-echo", "b").to_string()),
            notification_body("notifications/cancelled", r#"{"requestId":99}"#),
            request_body("4", "prompts/get", r#"{"name":"two-ask"}"#),
            request_body("5", "tools/call", &call("one-echo", "b").to_string()),
        ];
        let response = gateway.ask(&client.post(format!("[{}]", messages.join(","))));
        let mut answers = response.messages();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        assert_eq!(answers.len(), 5, "{response}");
        assert_eq!(text_of(&answers[0]["result"]), "three:echo:b");
        let tools = answers[1]["result"]["tools"].as_array();
        assert_eq!(tools.map(Vec::len), Some(12), "{response}");
        assert_eq!(answers[2]["error"]["code"], -32602);
        let content = &answers[3]["result"]["messages"][0]["content"];
        assert_eq!(content["text"], "two:ask");
        assert_eq!(text_of(&answers[4]["result"]), "one:echo:b");
    });
}

// --- Aliases.

/// A public fault elsewhere: an alias for a tool that also caught the prompt of its name.
#[test]
fn alias_is_for_its_own_kind_only() {
    on_both_drivers(|layout| {
        let peers = three();
        let lines = r#"aliases = { tools = { short = "echo", "file:///a" = "hold" }, prompts = { short = "delete" }, resources = { "doc:readme" = "file:///a" } }"#;
        let routes = route(
            "/mcp",
            "",
            &upstreams(&[(&peers[0], lines), (&peers[1], ""), (&peers[2], "")]),
        );
        let gateway = Served::start(layout, &[routes]);
        let client = Client::open(&gateway);
        let tools = client.names(Kind::Tools);
        assert_eq!(
            tools[..4],
            ["short", "one-delete", "file:///a", "one-a-b_c.d/e"]
        );
        assert_eq!(client.names(Kind::Prompts)[..2], ["one-ask", "short"]);
        assert_eq!(
            client.names(Kind::Resources)[..3],
            ["doc:readme", "one-file:///a/b", "one-file:///secret"]
        );
        assert_eq!(client.call_text("short", "n"), "one:echo:n");
        assert_eq!(client.call_text("file:///a", "n"), "one:hold:n");
        let prompt = client.result("prompts/get", &json!({ "name": "short" }));
        assert_eq!(prompt["messages"][0]["content"]["text"], "one:delete");
        let values = client.result("completion/complete", &of_prompt("short"));
        assert_eq!(values["completion"]["values"], json!(["one:delete"]));
        let read = client.read("doc:readme");
        assert_eq!(read["contents"][0]["text"], "one:file:///a", "{read}");
        assert_eq!(read["contents"][0]["uri"], "doc:readme");
        // What has an alias has no other name.
        for name in ["one-echo", "one-hold", "doc:readme"] {
            assert_eq!(
                client.refusal("tools/call", &call(name, "")),
                unknown_tool(name)
            );
        }
        assert_eq!(
            client.refusal("prompts/get", &json!({ "name": "one-delete" })),
            unknown_prompt("one-delete")
        );
        expect_no_resource(
            &client,
            "resources/read",
            &json!({ "uri": "one-file:///a" }),
        );
        expect_no_resource(&client, "resources/read", &json!({ "uri": "file:///a" }));
        // The tool and the prompt of the same name go on as they are.
        assert_eq!(client.call_text("one-delete", "n"), "one:delete:n");
        assert_eq!(peers[0].names("tools/call"), ["echo", "hold", "delete"]);
        assert_eq!(peers[0].names("prompts/get"), ["delete"]);
        assert_eq!(peers[0].names("resources/read"), ["file:///a"]);
    });
}

#[test]
fn aliased_resource_is_subscribed_updated_and_linked_by_its_alias() {
    on_both_drivers(|layout| {
        for reached in Reached::ALL {
            let peer = Peer::new(reached, "one", Catalogue::usual());
            let other = Peer::stdio("other", Catalogue::usual());
            peer.answer(
                |asked| asked.is("tools/call"),
                |_| Ok(json!({ "content": [{ "type": "resource_link", "uri": "file:///a", "name": "a" }] })),
            );
            let lines = r#"aliases = { resources = { "doc:readme" = "file:///a" } }"#;
            let routes = route("/mcp", "", &upstreams(&[(&peer, lines), (&other, "")]));
            let gateway = Served::start(layout, &[routes]);
            let client = Client::open(&gateway);
            let mut stream = client.stream();
            peer.wait_listened(1);
            let link = client.call("one-echo", "");
            assert_eq!(link["content"][0]["uri"], "doc:readme", "{link}");
            client.subscribe("doc:readme");
            assert_eq!(peer.names("resources/subscribe"), ["file:///a"]);
            peer.say_updated("file:///a");
            assert_eq!(carried(&peer, &mut stream), [updated("doc:readme")]);
            expect_no_resource(
                &client,
                "resources/subscribe",
                &json!({ "uri": "one-file:///a" }),
            );
            client.unsubscribe("doc:readme");
            peer.wait_asked("the end of it", 1, |asked| {
                asked.is("resources/unsubscribe") && asked.name() == "file:///a"
            });
            assert_eq!(other.names("resources/subscribe"), [""; 0]);
        }
    });
}

/// What a name of the list leads to is what the list says it is: the hidden thing is not listed, and the operator is told.
#[test]
fn alias_that_hides_another_servers_tool_is_listed_once_and_warned_of() {
    on_both_drivers(|layout| {
        let peers = three();
        let lines = r#"aliases = { tools = { two-echo = "delete" } }"#;
        let routes = route(
            "/mcp",
            "",
            &upstreams(&[(&peers[0], lines), (&peers[1], ""), (&peers[2], "")]),
        );
        let gateway = Served::start(layout, &[routes]);
        let client = Client::open(&gateway);
        for _ in 0..3 {
            let tools = client.names(Kind::Tools);
            let expected = prefixed(&["one"], &["echo"])
                .into_iter()
                .chain(["two-echo".to_owned()])
                .chain(prefixed(&["one"], &["hold", "a-b_c.d/e"]))
                .chain(prefixed(&["two"], &["delete", "hold", "a-b_c.d/e"]))
                .chain(prefixed(
                    &["three"],
                    &["echo", "delete", "hold", "a-b_c.d/e"],
                ));
            assert_eq!(tools, expected.collect::<Vec<_>>());
        }
        assert_eq!(client.call_text("two-echo", "n"), "one:delete:n");
        assert_eq!(peers[1].names("tools/call"), [""; 0]);
        // Which one is left out, and of which server.
        let warned = gateway.wait_logged(0, &["left out", "echo", "two"]);
        let lines = warned.lines();
        let lines = lines.filter(|line| line.contains("WARN") && line.contains("left out"));
        assert_eq!(lines.count(), 1, "{warned}");
    });
}

// --- Prefixes.

#[test]
fn server_alone_has_no_prefix_unless_told() {
    on_both_drivers(|layout| {
        for reached in Reached::ALL {
            let peer = Peer::new(reached, "one", Catalogue::usual());
            let routes = [
                route("/auto", "", &[peer.toml("")]),
                route("/always", "", &[peer.toml("prefix = \"always\"")]),
                route("/never", "", &[peer.toml("prefix = \"never\"")]),
            ];
            let gateway = Served::start(layout, &routes);
            for path in ["/auto", "/never"] {
                let client = Client::open_at(&gateway, path);
                assert_eq!(client.names(Kind::Tools)[0], "echo", "{path}");
                assert_eq!(client.names(Kind::Resources)[0], "file:///a", "{path}");
                assert_eq!(client.call_text("echo", path), format!("one:echo:{path}"));
                // The server's own word: what it does not know is for it to say.
                let (code, _) = client.refusal("tools/call", &call("one-echo", path));
                assert_eq!(code, -32602);
                let read = client.read("file:///a");
                assert_eq!(read["contents"][0]["uri"], "file:///a");
            }
            let client = Client::open_at(&gateway, "/always");
            assert_eq!(client.names(Kind::Tools)[0], "one-echo");
            assert_eq!(client.names(Kind::Resources)[0], "one-file:///a");
            assert_eq!(client.call_text("one-echo", "a"), "one:echo:a");
            assert_eq!(
                client.refusal("tools/call", &call("echo", "")),
                unknown_tool("echo")
            );
            assert_eq!(
                peer.names("tools/call"),
                ["echo", "one-echo", "echo", "one-echo", "echo"]
            );
        }
    });
}

/// The one without a prefix gets what no other name claims, and its own things that look like another's are hidden.
#[test]
fn server_without_a_prefix_gets_what_no_prefix_claims() {
    on_both_drivers(|layout| {
        let bare = Catalogue::new()
            .with(Kind::Tools, &["two-echo", "echo", "two", "three-x"])
            .with(Kind::Prompts, &["two-ask", "ask"])
            .with(Kind::Resources, &["two-file:///a", "file:///a"]);
        let one = Peer::stdio("one", bare);
        let two = Peer::http("two", Catalogue::usual());
        let routes = route(
            "/mcp",
            "",
            &upstreams(&[(&two, ""), (&one, "prefix = \"never\"")]),
        );
        let gateway = Served::start(layout, &[routes]);
        let client = Client::open(&gateway);
        let tools = client.names(Kind::Tools);
        let own = prefixed(&["two"], &["echo", "delete", "hold", "a-b_c.d/e"]);
        assert_eq!(tools[..4], own);
        assert_eq!(tools[4..], ["echo", "two", "three-x"]);
        assert_eq!(
            client.names(Kind::Prompts),
            ["two-ask", "two-delete", "ask"]
        );
        assert_eq!(
            client.names(Kind::Resources),
            [
                "two-file:///a",
                "two-file:///a/b",
                "two-file:///secret",
                "file:///a"
            ]
        );
        assert_eq!(client.call_text("two-echo", "n"), "two:echo:n");
        for name in ["echo", "two", "three-x"] {
            assert_eq!(client.call_text(name, "n"), format!("one:{name}:n"));
        }
        // Not known to anybody: the server without a prefix says so itself.
        let (code, message) = client.refusal("tools/call", &call("nobody", ""));
        assert_eq!((code, message.as_str()), (-32602, "Unknown tool: nobody"));
        assert_eq!(
            one.names("tools/call"),
            ["echo", "two", "three-x", "nobody"]
        );
        assert_eq!(two.names("tools/call"), ["echo"]);
    });
}

// --- What is denied.

/// A denied tool is absent and unknown, by every way that leads to it, and its server never hears of it.
#[test]
fn denied_things_are_absent_unknown_and_never_reach_their_server() {
    on_both_drivers(|layout| {
        let peers = three();
        let own =
            r#"deny = { tools = ["de*"], prompts = ["delete"], resources = ["file:///secret*"] }"#;
        let for_route = r#"deny = { tools = ["one-delete", "three-del*"], prompts = ["*-delete"], resources = ["one-file:///secret*", "*secret*"] }"#;
        let routes = route(
            "/mcp",
            for_route,
            &upstreams(&[(&peers[0], ""), (&peers[1], own), (&peers[2], "")]),
        );
        let gateway = Served::start(layout, &[routes]);
        let client = Client::open(&gateway);
        let servers = ["one", "two", "three"];
        let shown = || {
            assert_eq!(
                client.names(Kind::Tools),
                prefixed(&servers, &["echo", "hold", "a-b_c.d/e"])
            );
            assert_eq!(client.names(Kind::Prompts), prefixed(&servers, &["ask"]));
            assert_eq!(
                client.names(Kind::Resources),
                prefixed(&servers, &["file:///a", "file:///a/b"])
            );
            assert_eq!(
                client.names(Kind::Templates),
                prefixed(&servers, &["file:///t/{id}"])
            );
        };
        shown();
        let mut stream = client.stream();
        for peer in &peers {
            peer.wait_listened(1);
            peer.say_list_changed(Kind::Tools);
            until(
                &mut stream,
                "the change",
                says("notifications/tools/list_changed"),
            );
        }
        shown();
        for server in servers {
            let tool = format!("{server}-delete");
            assert_eq!(
                client.refusal("tools/call", &call(&tool, "")),
                unknown_tool(&tool)
            );
            for spelling in [
                r"-del\u0065te",
                r"\u002ddelete",
                r"-\u0064\u0065\u006c\u0065te",
            ] {
                let params = format!(r#"{{"arguments":{{}},"name":"{server}{spelling}"}}"#);
                let response = gateway.ask(&client.post(request_body("1", "tools/call", &params)));
                assert_eq!(refusal_of(&response), unknown_tool(&tool), "{spelling}");
            }
            // As a task it is the same tool.
            let as_task = json!({ "name": tool, "task": { "ttl": 1000 } });
            assert_eq!(client.refusal("tools/call", &as_task), unknown_tool(&tool));
            let prompt = json!({ "name": format!("{server}-delete") });
            assert_eq!(
                client.refusal("prompts/get", &prompt),
                unknown_prompt(&format!("{server}-delete"))
            );
            let asked = client.refusal(
                "completion/complete",
                &of_prompt(&format!("{server}-delete")),
            );
            assert_eq!(asked, unknown_prompt(&format!("{server}-delete")));
            for uri in ["file:///secret", "file:///secret/7"] {
                for method in ["resources/read", "resources/subscribe"] {
                    let params = json!({ "uri": format!("{server}-{uri}") });
                    expect_no_resource(&client, method, &params);
                }
            }
            let template = of_template(&format!("{server}-file:///secret/{{id}}"));
            expect_no_resource(&client, "completion/complete", &template);
        }
        for peer in &peers {
            let hit = peer.asked(|asked| {
                let text = asked.text.replace("\\u0065", "e");
                text.contains("delete") || text.contains("secret")
            });
            assert!(hit.is_empty(), "{}: {hit:#?}", peer.name);
            // The rest goes on.
            let echo = format!("{}-echo", peer.name);
            assert_eq!(
                client.call_text(&echo, "n"),
                format!("{}:echo:n", peer.name)
            );
        }
    });
}

/// With a list of what is allowed nothing else is there; deny wins; a kind that is not named is not restricted.
#[test]
fn only_what_is_allowed_exists() {
    on_both_drivers(|layout| {
        let peers = three();
        let lines = r#"
            allow = { tools = ["one-*", "two-echo", "*-hold"], resources = [] }
            deny = { tools = ["one-hold"] }"#;
        let own = r#"allow = { tools = ["hold", "nothing"] }"#;
        let routes = route(
            "/mcp",
            lines,
            &upstreams(&[(&peers[0], ""), (&peers[1], ""), (&peers[2], own)]),
        );
        let gateway = Served::start(layout, &[routes]);
        let client = Client::open(&gateway);
        let allowed = [
            "one-echo",
            "one-delete",
            "one-a-b_c.d/e",
            "two-echo",
            "two-hold",
            "three-hold",
        ];
        assert_eq!(client.names(Kind::Tools), allowed);
        assert_eq!(client.names(Kind::Resources), [""; 0]);
        assert_eq!(client.names(Kind::Templates), [""; 0]);
        assert_eq!(
            client.names(Kind::Prompts),
            prefixed(&["one", "two", "three"], &["ask", "delete"])
        );
        for name in allowed {
            let (server, tool) = name.split_once('-').expect("a prefix");
            assert_eq!(client.call_text(name, "n"), format!("{server}:{tool}:n"));
        }
        for name in ["one-hold", "two-delete", "three-echo", "three-nothing-else"] {
            assert_eq!(
                client.refusal("tools/call", &call(name, "")),
                unknown_tool(name)
            );
        }
        expect_no_resource(
            &client,
            "resources/read",
            &json!({ "uri": "one-file:///a" }),
        );
        assert_eq!(
            peers[0].names("tools/call"),
            ["echo", "delete", "a-b_c.d/e"]
        );
        assert_eq!(peers[1].names("tools/call"), ["echo", "hold"]);
        assert_eq!(peers[2].names("tools/call"), ["hold"]);
        assert_eq!(peers[0].names("resources/read"), [""; 0]);
    });
}

/// An alias does not open what is denied, and is itself a public name that can be.
#[test]
fn aliases_are_denied_by_their_public_or_their_own_name() {
    on_both_drivers(|layout| {
        let one = Peer::stdio("one", Catalogue::usual());
        let two = Peer::http("two", Catalogue::usual());
        let of_one = "aliases = { tools = { open = \"delete\", shut = \"echo\" } }\n\
                      deny = { tools = [\"delete\"] }";
        let of_two = "aliases = { tools = { hidden = \"echo\" } }";
        let routes = route(
            "/mcp",
            r#"deny = { tools = ["shut", "hid*"] }"#,
            &upstreams(&[(&one, of_one), (&two, of_two)]),
        );
        let gateway = Served::start(layout, &[routes]);
        let client = Client::open(&gateway);
        assert_eq!(
            client.names(Kind::Tools),
            [
                "one-hold",
                "one-a-b_c.d/e",
                "two-delete",
                "two-hold",
                "two-a-b_c.d/e"
            ]
        );
        for name in [
            "open",
            "shut",
            "hidden",
            "one-delete",
            "one-echo",
            "two-echo",
        ] {
            assert_eq!(
                client.refusal("tools/call", &call(name, "")),
                unknown_tool(name)
            );
        }
        assert_eq!(one.names("tools/call"), [""; 0]);
        assert_eq!(two.names("tools/call"), [""; 0]);
    });
}

// --- What is no configuration.

/// Names that could be read in two ways are refused before anybody is served, with both of them named.
#[test]
fn clashing_names_are_refused_at_the_start() {
    let peers = three();
    let other = Peer::stdio("one-more", Catalogue::new());
    let twin = Peer::stdio("one", Catalogue::new());
    let never = "prefix = \"never\"";
    let alias = |name: &str, own: &str| format!("aliases = {{ tools = {{ {name} = {own:?} }} }}");
    let cases: [(&str, Vec<String>, &[&str]); 6] = [
        (
            "two without a prefix",
            vec![peers[0].toml(never), peers[1].toml(never)],
            &["one", "two"],
        ),
        (
            "a name that begins another",
            vec![peers[0].toml(""), other.toml("")],
            &["one", "one-more"],
        ),
        (
            "one name twice",
            vec![peers[0].toml(""), twin.toml("")],
            &["one"],
        ),
        (
            "one alias for two",
            vec![
                peers[0].toml(&alias("short", "echo")),
                peers[1].toml(&alias("short", "hold")),
            ],
            &["short"],
        ),
        (
            "two aliases for one",
            vec![peers[0].toml(r#"aliases = { tools = { s = "echo", t = "echo" } }"#)],
            &["echo"],
        ),
        ("no upstream", Vec::new(), &["upstreams"]),
    ];
    on_both_drivers(|layout| {
        for (what, upstreams, named) in &cases {
            let scratch = Scratch::new();
            let file = scratch.path("ringway.toml");
            let text = process_lines(layout, "") + &route("/mcp", "", upstreams);
            std::fs::write(&file, text).expect("ours");
            let ended = run_to_end(command_with_config(&file));
            assert_eq!(ended.status.code(), Some(2), "{what}: {}", ended.stderr);
            assert!(ended.stdout.is_empty(), "{what}: {}", ended.stdout);
            for part in [&["ringway.toml"], *named].concat() {
                assert!(ended.stderr.contains(part), "{what}: {}", ended.stderr);
            }
        }
    });
    for peer in &peers {
        assert!(
            peer.all().is_empty(),
            "a server of a refused file was asked"
        );
    }
}

/// What no route has is nowhere.
#[test]
fn path_without_a_route_is_not_found() {
    on_both_drivers(|layout| {
        let peers = three();
        let routes = [
            route("/a", "", &[peers[0].toml("")]),
            route("/a/b", "", &[peers[1].toml("")]),
        ];
        let gateway = Served::start(layout, &routes);
        for path in ["/", "/mcp", "/a/", "/a/b/c", "/A", "/ab"] {
            let initialize = Request::post(support::mcp::initialize_body("0", "2025-11-25"));
            assert_eq!(gateway.ask(&initialize.target(path)).status, 404, "{path}");
        }
        let one = Client::open_at(&gateway, "/a");
        let two = Client::open_at(&gateway, "/a/b");
        assert_eq!(one.call_text("echo", "n"), "one:echo:n");
        assert_eq!(two.call_text("echo", "n"), "two:echo:n");
        wait_until("each has its own", || {
            peers[0].names("tools/call") == ["echo"] && peers[1].names("tools/call") == ["echo"]
        });
    });
}
