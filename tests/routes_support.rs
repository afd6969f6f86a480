//! The programmable servers themselves, before a gateway of one server: a suite that rests on them is worth what
//! they are.

mod support;

use serde_json::json;
use support::catalogue::{Catalogue, Kind, Paging};
use support::peer::{Peer, Reached};
use support::routes::{Client, call, is_down, refusal_of, until};
use support::{Gateway, Upstream, on_both_drivers, wait_until};

fn gateway_of(layout: support::Layout, peer: &Peer) -> Gateway {
    match peer.reached() {
        Reached::Stdio => {
            let words = peer.command();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            layout.start(&[], Upstream::Command(&words))
        }
        Reached::Http => layout.start(&[], Upstream::Url(&peer.server().url())),
        Reached::SharedHttp => layout.start(&["--share"], Upstream::Url(&peer.server().url())),
    }
}

#[test]
fn answers_what_its_catalogue_says_and_keeps_what_it_was_asked() {
    on_both_drivers(|layout| {
        for reached in Reached::ALL {
            let catalogue = Catalogue::usual()
                .instructions("Say please.")
                .with_pages(Kind::Prompts, &[vec!["p1", "p2"], vec![], vec!["p3"]])
                .with_pages(Kind::Templates, &[vec!["file:///t/{id}"]])
                .paging(Kind::Templates, Paging::SameAgain);
            let peer = Peer::new(reached, "one", catalogue);
            let gateway = gateway_of(layout, &peer);
            let client = Client::open(&gateway);
            assert_eq!(client.call_text("echo", "n1"), "one:echo:n1");
            assert_eq!(client.names(Kind::Prompts), ["p1", "p2", "p3"]);
            assert_eq!(peer.count(|asked| asked.is("prompts/list")), 3);
            let second = client.page(Kind::Templates, None).next;
            let again = client.page(Kind::Templates, second.as_deref());
            assert_eq!((again.names(), &again.next), (vec![], &second));
            assert_eq!(
                client.refusal("prompts/list", &json!({ "cursor": "x" })).0,
                -32602
            );
            assert_eq!(
                client.read("file:///a")["contents"][0]["text"],
                "one:file:///a"
            );
            assert_eq!(
                client.read("file:///t/7")["contents"][0]["text"],
                "one:file:///t/7"
            );
            assert_eq!(
                client
                    .refusal("resources/read", &json!({ "uri": "file:///no" }))
                    .0,
                -32002
            );
            let unknown = client.refusal("tools/call", &call("no", ""));
            assert_eq!(unknown, (-32602, "Unknown tool: no".to_owned()));
            let completion = client.result(
                "completion/complete",
                &json!({ "ref": { "type": "ref/prompt", "name": "p1" }, "argument": { "name": "a", "value": "" } }),
            );
            assert_eq!(completion["completion"]["values"], json!(["one:p1"]));
            assert_eq!(peer.names("tools/call"), ["echo", "no"]);
        }
    });
}

#[test]
fn holds_reports_and_speaks_unasked() {
    on_both_drivers(|layout| {
        for reached in Reached::ALL {
            let peer = Peer::new(reached, "one", Catalogue::usual());
            peer.hold(|asked| asked.calls("hold"));
            let gateway = gateway_of(layout, &peer);
            let client = Client::open(&gateway);
            let mut params = call("hold", "h1");
            params["_meta"] = json!({ "progressToken": "t" });
            let mut connection = client.begin("tools/call", &params);
            let mut held = peer.take("the call", |asked| asked.has_nonce("h1"));
            held.progress(1, "one");
            held.reply(&json!({ "content": [{ "type": "text", "text": "held" }] }));
            let messages = connection.response().messages();
            assert_eq!(messages.len(), 2, "{messages:?}");
            assert_eq!(messages[0]["params"]["message"], "one");
            assert_eq!(messages[1]["result"]["content"][0]["text"], "held");

            let mut stream = client.stream();
            client.subscribe("file:///a");
            peer.wait_listened(1);
            peer.say_updated("file:///a");
            peer.say_list_changed(Kind::Tools);
            let said = |method: &'static str| {
                move |message: &serde_json::Value| message["method"] == method
            };
            until(
                &mut stream,
                "the change",
                said("notifications/tools/list_changed"),
            );
            assert_eq!(peer.names("resources/subscribe"), ["file:///a"]);
        }
    });
}

#[test]
fn dies_and_comes_back() {
    on_both_drivers(|layout| {
        for reached in Reached::ALL {
            let peer = Peer::new(reached, "one", Catalogue::usual());
            let gateway = gateway_of(layout, &peer);
            let client = Client::open(&gateway);
            let calls = |nonce: &str| client.ask("tools/call", &call("echo", nonce));
            peer.down();
            wait_until("it is down", || is_down(&calls("down")));
            peer.change(|catalogue| catalogue.add(Kind::Tools, "new"));
            peer.up();
            wait_until("it is up", || !is_down(&calls("up")));
            assert!(client.has(Kind::Tools, "new"));
            peer.die_of(|asked| asked.calls("delete"));
            assert!(is_down(&client.ask("tools/call", &call("delete", "die"))));
            peer.forget_rules();
            peer.up_again();
            wait_until("it is up again", || !is_down(&calls("again")));
            let unknown = client.ask("tools/call", &call("no", ""));
            assert_eq!(refusal_of(&unknown).0, -32602);
        }
    });
}
