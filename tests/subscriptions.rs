//! Subscriptions to resources: what the one shared server is told for all sessions, what each of them is
//! answered, who hears of an update, and that nothing is left when nobody wants it any more.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::life::Life;
use support::mcp::{ping_body, request_body};
use support::metrics::{self, Metrics};
use support::stream::{carried, carried_by, expect_nothing, open_many, value};
use support::tokens::{self, ALICE, BOB, TokenFile, bearer};
use support::{
    Gateway, Layout, Raw, Request, Response, Script, Session, Stream, Upstream, on_both_drivers,
    on_every_way, wait_until,
};

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

/// The server's line that a resource was updated, with more than a client is to see.
fn update(uri: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"title":"secret","uri":"{uri}","_meta":{{"secret":1}}}},"x":"secret"}}"#
    )
}

/// What a client sees of it.
fn updated(uri: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
    )
}

/// What the server was asked about subscriptions, in order: `+uri` and `-uri`.
fn asked(script: &Script<'_>) -> Vec<String> {
    let lines = script.received("scribe");
    let asked = lines.iter().filter_map(|line| {
        let message = value(line);
        let uri = message["params"]["uri"].as_str().unwrap_or("?").to_owned();
        match message["method"].as_str() {
            Some(SUBSCRIBE) => Some(format!("+{uri}")),
            Some(UNSUBSCRIBE) => Some(format!("-{uri}")),
            _ => None,
        }
    });
    asked.collect()
}

/// Waits until the server was asked this, in this order, and nothing else.
#[track_caller]
fn wait_asked(script: &Script<'_>, expected: &[&str]) {
    let mut seen = Vec::new();
    wait_until(&format!("the server is asked {expected:?}"), || {
        seen = asked(script);
        seen.len() >= expected.len()
    });
    assert_eq!(seen, expected);
}

/// A call of this session that comes back: whatever the session made the gateway send has been sent before.
fn round_trip(gateway: &Gateway, session: &Session) {
    let call = session.call("\"round trip\"", "echo", r#"{"message":"m"}"#);
    assert_eq!(gateway.ask(&call).result()["content"][0]["text"], "m");
}

#[track_caller]
fn subscribe(gateway: &Gateway, session: &Session, uri: &str) {
    let response = gateway.ask(&session.subscribe("\"s\"", uri));
    assert_eq!(response.result(), json!({}), "{response}");
}

#[track_caller]
fn unsubscribe(gateway: &Gateway, session: &Session, uri: &str) {
    let response = gateway.ask(&session.unsubscribe("\"u\"", uri));
    assert_eq!(response.result(), json!({}), "{response}");
}

// --- What the server is told.

/// One server, many who want the same: it is asked once, in the gateway's own words, and told once when the
/// last has lost interest.
#[test]
fn server_is_asked_once_for_all_and_told_when_the_last_is_out() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..6).map(|_| Session::open(&gateway)).collect();
        let params = r#"{"x":[1.0],"uri":"file:///a","_meta":{"progressToken":"t","secret":"s"}}"#;
        let first = sessions[0].post(request_body(r#""i\u0041""#, SUBSCRIBE, params));
        let response = gateway.ask(&first);
        assert_eq!(
            value(&response.text()),
            json!({"jsonrpc": "2.0", "id": "iA", "result": {}})
        );
        assert_eq!(response.raw_id().as_deref(), Some(r#""i\u0041""#));
        let line = value(&script.wait_received(SUBSCRIBE));
        assert_eq!(line["params"], json!({ "uri": "file:///a" }), "{line}");
        assert!(line["id"].is_u64(), "{line}");
        for session in &sessions {
            // Twice is once.
            subscribe(&gateway, session, "file:///a");
            subscribe(&gateway, session, "file:///a");
        }
        wait_asked(&script, &["+file:///a"]);
        for session in &sessions[1..] {
            unsubscribe(&gateway, session, "file:///a");
            unsubscribe(&gateway, session, "file:///a");
            round_trip(&gateway, session);
        }
        assert_eq!(asked(&script), ["+file:///a"]);
        unsubscribe(&gateway, &sessions[0], "file:///a");
        wait_asked(&script, &["+file:///a", "-file:///a"]);
        let line = value(&script.wait_received(UNSUBSCRIBE));
        assert_eq!(line["params"], json!({ "uri": "file:///a" }), "{line}");
        // And anew.
        subscribe(&gateway, &sessions[3], "file:///a");
        wait_asked(&script, &["+file:///a", "-file:///a", "+file:///a"]);
    });
}

/// Nothing to give back, nothing to tell.
#[test]
fn unsubscribe_without_a_subscription_is_answered_and_nothing_else() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (holder, session) = (Session::open(&gateway), Session::open(&gateway));
        subscribe(&gateway, &holder, "file:///a");
        for uri in ["file:///a", "file:///never", "file:///a/b"] {
            unsubscribe(&gateway, &session, uri);
        }
        round_trip(&gateway, &session);
        round_trip(&gateway, &holder);
        assert_eq!(asked(&script), ["+file:///a"]);
        let mut stream = Stream::open(&gateway, &holder);
        script.say(&[&update("file:///a")]);
        stream.expect(&updated("file:///a"));
    });
}

/// A URI is what its letters are, however JSON spells them.
#[test]
fn spellings_of_one_uri_are_one_subscription() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 4);
        let spellings = [
            r"file:///caf\u00e9",
            r"file:\/\/\/caf\u00E9",
            "file:///café",
            r"\u0066ile:///caf\u00e9",
        ];
        for (session, spelling) in sessions.iter().zip(spellings) {
            subscribe(&gateway, session, spelling);
        }
        assert_eq!(asked(&script), ["+file:///café"]);
        script.say(&[&update(r"\u0066ile:/\/\/café")]);
        for carried in carried(&script, &mut streams) {
            assert_eq!(carried.len(), 1, "{carried:?}");
            assert_eq!(value(&carried[0]), value(&updated("file:///café")));
        }
        // And each can be given back in any of them.
        for (session, spelling) in sessions.iter().zip(spellings.iter().rev()) {
            unsubscribe(&gateway, session, spelling);
        }
        wait_asked(&script, &["+file:///café", "-file:///café"]);
    });
}

/// While the server thinks, nobody is told that it has agreed; then all are told what it said.
#[test]
fn those_who_ask_meanwhile_share_the_outcome() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..6).map(|_| Session::open(&gateway)).collect();
        script.hold_method(SUBSCRIBE, "s @URI@");
        let ask_all = |uri: &str| -> Vec<Raw> {
            let ask = |session: &Session| {
                let mut connection = gateway.connect();
                connection.send(session.subscribe("1", uri).bytes());
                connection.wait_until_read();
                connection
            };
            let waiting: Vec<Raw> = sessions.iter().map(ask).collect();
            script.wait_held(&format!("s {uri}"));
            for session in &sessions {
                round_trip(&gateway, session);
            }
            for connection in &waiting {
                assert!(
                    !connection.has_something(),
                    "answered before the server was"
                );
            }
            waiting
        };
        for mut connection in {
            let waiting = ask_all("a:good");
            script.release_with("s a:good", r#"{"secret":1}"#);
            waiting
        } {
            assert_eq!(connection.response().result(), json!({}));
        }
        let refused = ask_all("a:bad");
        script.release_with_error(
            "s a:bad",
            &json!({"code": -32002, "message": "no \"such\" thing", "data": {"secret": 1}}),
        );
        for mut connection in refused {
            let response = connection.response();
            let error = response.expect_error(200, -32002, Some("1"));
            assert_eq!(
                error,
                json!({"code": -32002, "message": "no \"such\" thing"})
            );
        }
        assert_eq!(asked(&script), ["+a:good", "+a:bad"]);
    });
}

/// A refusal leaves nothing behind: no phantom that gets updates, none that is given back, and the next who
/// asks is asked for.
#[test]
fn refusal_leaves_no_trace() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--max-subscriptions-per-session", "1"]);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 3);
        let error = json!({"code": 7, "message": "not for you", "data": "secret"});
        script.rule(&json!({"method": SUBSCRIBE, "error": error}));
        for session in &sessions {
            let response = gateway.ask(&session.subscribe("1", "a:b"));
            let error = response.expect_error(200, 7, Some("1"));
            assert_eq!(error, json!({"code": 7, "message": "not for you"}));
        }
        assert_eq!(asked(&script), ["+a:b"; 3]);
        script.say(&[&update("a:b"), &update("a:b/c")]);
        expect_nothing(&script, &mut streams);
        unsubscribe(&gateway, &sessions[0], "a:b");
        round_trip(&gateway, &sessions[0]);
        assert_eq!(asked(&script), ["+a:b"; 3]);
        // It took no place either, and asks again.
        script.forget_rules();
        subscribe(&gateway, &sessions[1], "a:b");
        assert_eq!(asked(&script), ["+a:b"; 4]);
        script.say(&[&update("a:b")]);
        let carried = carried(&script, &mut streams);
        assert_eq!(carried[1], [updated("a:b")]);
        assert!(
            carried[0].is_empty() && carried[2].is_empty(),
            "{carried:?}"
        );
    });
}

/// Subscribe and unsubscribe of one URI never overlap at the server, in whatever order clients change their
/// minds.
#[test]
fn subscribe_waits_for_an_unsubscribe_that_is_under_way() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 2);
        script.hold_method(UNSUBSCRIBE, "u");
        subscribe(&gateway, &sessions[0], "a:b");
        unsubscribe(&gateway, &sessions[0], "a:b");
        script.wait_held("u");
        let mut waiting: Vec<Raw> = Vec::new();
        for session in &sessions {
            let mut connection = gateway.connect();
            connection.send(session.subscribe("1", "a:b").bytes());
            connection.wait_until_read();
            round_trip(&gateway, session);
            waiting.push(connection);
        }
        assert_eq!(asked(&script), ["+a:b", "-a:b"]);
        // Others are not kept waiting.
        subscribe(&gateway, &sessions[1], "a:other");
        script.release("u");
        for connection in &mut waiting {
            assert_eq!(connection.response().result(), json!({}));
        }
        assert_eq!(asked(&script), ["+a:b", "-a:b", "+a:other", "+a:b"]);
        script.say(&[&update("a:b")]);
        for carried in carried(&script, &mut streams) {
            assert_eq!(carried, [updated("a:b")]);
        }
    });
}

/// A server that hangs on one URI must not stop the others.
#[test]
fn different_uris_never_wait_for_each_other() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        script.rule(&json!({"method": SUBSCRIBE, "when": {"uri": "a:slow"}, "hold": "slow"}));
        let mut waiting = script.hold_request(&session.subscribe("1", "a:slow"), "slow");
        for session in [&session, &other] {
            for uri in ["a:quick", "a:slow/below", "a:"] {
                subscribe(&gateway, session, uri);
            }
            unsubscribe(&gateway, session, "a:quick");
        }
        assert!(!waiting.has_something());
        script.release("slow");
        assert_eq!(waiting.response().result(), json!({}));
    });
}

/// What cannot be a subscription is refused by the gateway, before the server hears of it.
#[test]
fn faulty_subscriptions_are_refused() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--max-uri", "20"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let long = format!(r#"{{"uri":"{}"}}"#, "u".repeat(21));
        for method in [SUBSCRIBE, UNSUBSCRIBE] {
            for params in [
                "{}",
                r#"{"uri":null}"#,
                r#"{"uri":5}"#,
                r#"{"uri":["a:b"]}"#,
                r#"{"uri":{"a":"b"}}"#,
                r#"{"URL":"a:b"}"#,
                &long,
            ] {
                let response = gateway.ask(&session.post(request_body("1", method, params)));
                response.expect_error(200, -32602, Some("1"));
            }
            let bare = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
            gateway
                .ask(&session.post(bare))
                .expect_error(200, -32602, Some("1"));
            // Half a character is no text that a server could be sent back as it was.
            let half = session.post(request_body("1", method, r#"{"uri":"a:\ud800"}"#));
            let response = gateway.ask(&half);
            assert!(response.message()["error"].is_object(), "{response}");
        }
        round_trip(&gateway, &session);
        assert!(script.received("scribe").is_empty());
        // Its quotation marks may count.
        subscribe(&gateway, &session, &"u".repeat(18));
    });
}

/// A server that has no subscriptions must not be asked for one.
#[test]
fn server_without_subscriptions_is_not_asked() {
    on_every_way(|layout| {
        for resources in [r#""resources":{"listChanged":true},"#, ""] {
            let capabilities = format!(r#"{{{resources}"tools":{{}}}}"#);
            let arguments = ["--capabilities", &capabilities];
            let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
            let script = Script::new(&gateway);
            let session = Session::open(&gateway);
            for request in [
                session.subscribe("1", "a:b"),
                session.unsubscribe("1", "a:b"),
            ] {
                gateway.ask(&request).expect_error(200, -32601, Some("1"));
            }
            round_trip(&gateway, &session);
            assert!(script.received("scribe").is_empty());
        }
    });
}

/// One greedy session must not take all the room, and gets its own back.
#[test]
fn subscriptions_over_the_sessions_limit_are_overloaded() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--max-subscriptions-per-session", "2"]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let refused = |response: &Response| {
            let error = response.expect_error(200, -32603, Some("3"));
            assert_eq!(error["data"]["reason"], "overloaded", "{response}");
        };
        subscribe(&gateway, &session, "a:1");
        subscribe(&gateway, &session, "a:2");
        refused(&gateway.ask(&session.subscribe("3", "a:3")));
        // What it has it may ask for again; and others have places of their own.
        subscribe(&gateway, &session, "a:1");
        subscribe(&gateway, &other, "a:3");
        unsubscribe(&gateway, &session, "a:1");
        subscribe(&gateway, &session, "a:3");
        refused(&gateway.ask(&session.subscribe("3", "a:1")));
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        wait_asked(&script, &["+a:1", "+a:2", "+a:3", "-a:1", "-a:2"]);
    });
}

/// A wish that is not answered yet counts as well, or a thousand at once would pass.
#[test]
fn wishes_under_way_count_for_the_limit() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &["--max-subscriptions-per-session", "3"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        script.hold_method(SUBSCRIBE, "@URI@");
        let waiting: Vec<Raw> = (0..3)
            .map(|number| {
                let request = session.subscribe(&number.to_string(), &format!("a:{number}"));
                script.hold_request(&request, &format!("a:{number}"))
            })
            .collect();
        let response = gateway.ask(&session.subscribe("3", "a:3"));
        let error = response.expect_error(200, -32603, Some("3"));
        assert_eq!(error["data"]["reason"], "overloaded", "{response}");
        script.tool("release_all", &json!({}));
        for mut connection in waiting {
            assert_eq!(connection.response().result(), json!({}));
        }
    });
}

// --- Time-outs and cancels.

/// A server that is silent about a subscription may have made it: it is told to forget it, both ways.
#[test]
fn silent_server_is_told_to_forget_the_subscription() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--request-timeout", "1s"]);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 4);
        script.hold_method(SUBSCRIBE, "s");
        let mut waiting: Vec<Raw> = sessions
            .iter()
            .map(|session| {
                let mut connection = gateway.connect();
                connection.send(session.subscribe("1", "a:b").bytes());
                connection
            })
            .collect();
        for connection in &mut waiting {
            let response = connection.response();
            let error = response.expect_error(200, -32603, Some("1"));
            assert_eq!(error["data"]["reason"], "timeout", "{response}");
        }
        let id = support::mcp::raw_member(&script.wait_received(SUBSCRIBE), "id").expect("one");
        let cancel = script.wait_received(&format!("\"requestId\":{id}"));
        assert!(cancel.contains("notifications/cancelled"), "{cancel}");
        wait_asked(&script, &["+a:b", "-a:b"]);
        // It agrees after all: too late.
        script.release("s");
        script.say(&[&update("a:b")]);
        expect_nothing(&script, &mut streams);
        script.forget_rules();
        subscribe(&gateway, &sessions[0], "a:b");
        wait_asked(&script, &["+a:b", "-a:b", "+a:b"]);
    });
}

/// Who takes a wish back has no subscription, whatever the server says later; who shared it keeps it.
#[test]
fn cancelled_subscribe_leaves_no_subscription() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 4);
        script.hold_method(SUBSCRIBE, "s @URI@");
        for (serial, accept) in ["application/json", "text/event-stream"].iter().enumerate() {
            let uri = format!("a:alone{serial}");
            let key = format!("s {uri}");
            let request = sessions[0].subscribe("5", &uri).set("Accept", accept);
            let mut waiting = script.hold_request(&request, &key);
            assert_eq!(gateway.ask(&sessions[0].cancel("5")).status, 202);
            let response = waiting.response();
            if serial == 0 {
                let error = response.expect_error(200, -32603, Some("5"));
                assert_eq!(error["data"]["reason"], "cancelled", "{response}");
            } else {
                assert!(response.messages().is_empty(), "{response}");
            }
            script.release(&key);
            wait_until("the server is told to forget it", || {
                asked(&script).contains(&format!("-{uri}"))
            });
        }
        // Shared: on the same shard or another, one of four stays, and is answered.
        let ask = |session: &Session| {
            let mut connection = gateway.connect();
            connection.send(session.subscribe("5", "a:shared").bytes());
            connection.wait_until_read();
            round_trip(&gateway, session);
            connection
        };
        let mut waiting: Vec<Raw> = sessions.iter().map(ask).collect();
        script.wait_held("s a:shared");
        for (session, connection) in sessions.iter().zip(&mut waiting).take(3) {
            assert_eq!(gateway.ask(&session.cancel("5")).status, 202);
            connection.response();
        }
        script.release("s a:shared");
        assert_eq!(waiting[3].response().result(), json!({}));
        script.say(&[
            &update("a:shared"),
            &update("a:alone0"),
            &update("a:alone1"),
        ]);
        let carried = carried(&script, &mut streams);
        assert_eq!(carried[3], [updated("a:shared")]);
        assert!(carried[..3].iter().all(Vec::is_empty), "{carried:?}");
        assert!(!asked(&script).contains(&"-a:shared".to_owned()));
    });
}

/// A session that ends while its wish is under way must not leave a subscription that nobody owns.
#[test]
fn end_of_the_session_takes_its_open_wish_back() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        script.hold_method(SUBSCRIBE, "@URI@");
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        for (number, session) in sessions.iter().enumerate() {
            let uri = format!("a:{number}");
            let mut waiting = script.hold_request(&session.subscribe("1", &uri), &uri);
            assert_eq!(gateway.ask(&session.delete()).status, 204);
            let response = waiting.response();
            let error = response.expect_error(200, -32603, Some("1"));
            assert_eq!(error["data"]["reason"], "session_ended", "{response}");
            script.release(&uri);
            wait_until("the server is told to forget it", || {
                asked(&script).contains(&format!("-{uri}"))
            });
        }
    });
}

// --- The end of a session.

/// A thousand subscriptions go with their session, and no other session's.
#[test]
fn delete_releases_all_subscriptions() {
    const COUNT: usize = 1_000;
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let mut connection = gateway.connect();
        for number in 0..COUNT {
            let request = session.subscribe(&number.to_string(), &format!("a:{number}"));
            assert_eq!(connection.ask(&request).result(), json!({}));
        }
        subscribe(&gateway, &other, "a:7");
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        let mut seen = Vec::new();
        wait_until("all but one are released", || {
            seen = asked(&script);
            seen.len() >= 2 * COUNT - 1
        });
        let mut released: Vec<&String> = seen.iter().filter(|one| one.starts_with('-')).collect();
        released.sort();
        released.dedup();
        assert_eq!(released.len(), COUNT - 1);
        assert!(!seen.contains(&"-a:7".to_owned()));
        let mut stream = Stream::open(&gateway, &other);
        script.say(&[&update("a:8"), &update("a:7")]);
        assert_eq!(carried_by(&script, &mut stream), [updated("a:7")]);
    });
}

/// A client that goes without a word, and one whose token was taken away, leave nothing either.
#[test]
fn expiry_and_removal_of_the_token_release_all_subscriptions() {
    on_every_way(|layout| {
        let file = TokenFile::two();
        let flags = ["--auth-token-file", &file.path, "--session-ttl", "1s"];
        let gateway = scripted(layout, &flags);
        let script = Script::with_token(&gateway, ALICE);
        let as_alice = |request: Request| bearer(request, ALICE);
        let silent = tokens::open(&gateway, ALICE);
        for uri in ["a:silent", "a:both"] {
            let response = gateway.ask(&as_alice(silent.subscribe("1", uri)));
            assert_eq!(response.result(), json!({}));
        }
        // Kept by its stream.
        let hers = tokens::open(&gateway, ALICE);
        let mut stream = Stream::of(gateway.connect(), &as_alice(hers.get()));
        let response = gateway.ask(&as_alice(hers.subscribe("1", "a:both")));
        assert_eq!(response.result(), json!({}));
        wait_until("the silent session has expired", || {
            asked(&script).contains(&"-a:silent".to_owned())
        });
        let his: Vec<Session> = (0..4).map(|_| tokens::open(&gateway, BOB)).collect();
        let mut his_streams = Vec::new();
        for session in &his {
            for uri in ["a:his", "a:both"] {
                let response = gateway.ask(&bearer(session.subscribe("1", uri), BOB));
                assert_eq!(response.result(), json!({}));
            }
            his_streams.push(Stream::of(gateway.connect(), &bearer(session.get(), BOB)));
        }
        file.without_bob();
        wait_until("his are released", || {
            asked(&script).contains(&"-a:his".to_owned())
        });
        for stream in &mut his_streams {
            stream.expect_end();
        }
        let seen = asked(&script);
        assert_eq!(
            seen,
            ["+a:silent", "+a:both", "-a:silent", "+a:his", "-a:his"]
        );
        script.say(&[&update("a:both")]);
        stream.expect(&updated("a:both"));
    });
}

// --- Updates.

/// Who has subscribed hears it, with the URI and not a byte more; nobody else does.
#[test]
fn update_goes_to_its_subscribers_with_the_uri_only() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &metrics::FLAGS);
        let metrics = Metrics::of(&gateway);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 8);
        for session in &sessions[..4] {
            subscribe(&gateway, session, "file:///a");
        }
        for session in &sessions[2..6] {
            subscribe(&gateway, session, "file:///b");
        }
        script.say(&[
            &update("file:///a"),
            &update("file:///b"),
            &update("file:///c"),
        ]);
        for (number, mut carried) in carried(&script, &mut streams).into_iter().enumerate() {
            carried.sort();
            let a = (number < 4).then(|| updated("file:///a"));
            let b = (2..6).contains(&number).then(|| updated("file:///b"));
            let expected: Vec<String> = a.into_iter().chain(b).collect();
            assert_eq!(carried, expected, "session {number}");
        }
        assert!(metrics.drops("change") >= 1.0, "c is wanted by nobody");
        // Who has left hears it no more.
        unsubscribe(&gateway, &sessions[3], "file:///a");
        script.say(&[&update("file:///a")]);
        let carried = carried(&script, &mut streams);
        assert_eq!(carried[0], [updated("file:///a")]);
        assert!(carried[3].is_empty(), "{carried:?}");
    });
}

/// A server may name what has changed inside a resource: who has the whole has the part, and is told the part.
#[test]
fn update_of_a_part_reaches_who_subscribed_to_the_whole() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 5);
        subscribe(&gateway, &sessions[0], "file:///a");
        subscribe(&gateway, &sessions[1], "file:///a/");
        subscribe(&gateway, &sessions[2], "file:///a");
        subscribe(&gateway, &sessions[2], "file:///a/b");
        subscribe(&gateway, &sessions[3], "file:///a/b/c");
        subscribe(&gateway, &sessions[4], "file:///ab");
        let heard_by = |uri: &str, streams: &mut Vec<Stream>| -> Vec<usize> {
            script.say(&[&update(uri)]);
            let carried = carried(&script, streams);
            for carried in &carried {
                // Once each, however many of a session's subscriptions cover it.
                assert!(
                    carried.is_empty() || *carried == [updated(uri)],
                    "{uri}: {carried:?}"
                );
            }
            (0..carried.len())
                .filter(|&number| !carried[number].is_empty())
                .collect()
        };
        for (uri, heard) in [
            ("file:///a", vec![0, 2]),
            ("file:///a/b", vec![0, 1, 2]),
            ("file:///a/b/c", vec![0, 1, 2, 3]),
            ("file:///a/b/c/d", vec![0, 1, 2, 3]),
            ("file:///a?x=1", vec![0, 2]),
            ("file:///a#part", vec![0, 2]),
            ("file:///a/b?x/y#z", vec![0, 1, 2]),
            ("file:///a//", vec![0, 1, 2]),
            ("file:///ab", vec![4]),
            ("file:///ab/c", vec![4]),
            ("file:///abc", vec![]),
            ("file:///a.txt", vec![]),
            ("file:///a%2fb", vec![]),
            ("file:///", vec![]),
            ("file:///b/a", vec![]),
            ("FILE:///a", vec![]),
        ] {
            assert_eq!(heard_by(uri, &mut streams), heard, "{uri}");
        }
    });
}

/// Without a stream a session is told when it opens one: once for each URI.
#[test]
fn updates_without_a_stream_are_told_when_one_opens() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        // A witness beside each, so that all shards have taken in what the server has said.
        let (witnesses, mut streams) = open_many(&gateway, 8);
        for session in sessions.iter().chain(&witnesses) {
            for uri in ["a:1", "a:2", "a:3", "a:4"] {
                subscribe(&gateway, session, uri);
            }
        }
        let lines = [update("a:1"), update("a:2"), update("a:3")];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        for _ in 0..3 {
            script.say(&lines);
        }
        carried(&script, &mut streams);
        for session in &sessions {
            let mut stream = Stream::open(&gateway, session);
            let mut told = carried_by(&script, &mut stream);
            told.retain(|message| *message != support::stream::BARRIER);
            told.sort();
            assert_eq!(told, [updated("a:1"), updated("a:2"), updated("a:3")]);
            drop(stream);
            let mut stream = Stream::open(&gateway, session);
            expect_nothing(&script, &mut [&mut stream]);
        }
    });
}

/// What has been given back is told no more, not even what happened before: else a session that takes and gives
/// back gathers marks beyond any limit.
#[test]
fn updates_of_what_was_given_back_are_forgotten() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--max-subscriptions-per-session", "2"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let (witnesses, mut streams) = open_many(&gateway, 8);
        subscribe(&gateway, &session, "a:kept");
        for number in 0..20 {
            let uri = format!("a:{number}");
            subscribe(&gateway, &session, &uri);
            for witness in &witnesses {
                subscribe(&gateway, witness, &uri);
            }
            script.say(&[&update("a:kept"), &update(&uri)]);
            // All shards have taken it in.
            for stream in &mut streams {
                stream.expect(&updated(&uri));
            }
            unsubscribe(&gateway, &session, &uri);
            for witness in &witnesses {
                unsubscribe(&gateway, witness, &uri);
            }
        }
        let mut stream = Stream::open(&gateway, &session);
        let mut told = carried_by(&script, &mut stream);
        told.retain(|message| *message != support::stream::BARRIER);
        assert_eq!(told, [updated("a:kept")]);
    });
}

/// A resource may have parts without number: of those a session without a stream is told some, or the whole.
#[test]
fn updates_of_many_parts_without_a_stream_are_bounded() {
    const PARTS: usize = 2_000;
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let (_witnesses, mut streams) = open_many(&gateway, 8);
        subscribe(&gateway, &session, "a:b");
        let lines: Vec<String> = (0..PARTS)
            .map(|part| update(&format!("a:b/{part}")))
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        script.say(&lines);
        expect_nothing(&script, &mut streams);
        let mut stream = Stream::open(&gateway, &session);
        let mut told = carried_by(&script, &mut stream);
        told.retain(|message| *message != support::stream::BARRIER);
        assert!(told.len() < PARTS / 2, "{}", told.len());
        assert!(told.contains(&updated("a:b")), "{told:?}");
        let mut once = told.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), told.len(), "twice");
    });
}

/// Requests of a batch are requests: each is answered.
#[test]
fn batch_may_subscribe_and_unsubscribe() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open_at(&gateway, "2025-03-26");
        script.rule(&json!({"method": SUBSCRIBE, "when": {"uri": "a:bad"}, "error": {"code": 7, "message": "no"}}));
        let body = |id: &str, method: &str, uri: &str| {
            request_body(id, method, &format!(r#"{{"uri":"{uri}"}}"#))
        };
        let batch = [
            body("1", SUBSCRIBE, "a:b"),
            body("2", SUBSCRIBE, "a:bad"),
            body("3", SUBSCRIBE, "a:b"),
            body("4", UNSUBSCRIBE, "a:other"),
            ping_body("5"),
        ];
        for accept in ["application/json", "text/event-stream"] {
            let request = session.post(format!("[{}]", batch.join(",")));
            let response = gateway.ask(&request.set("Accept", accept));
            let mut answers: Vec<Value> = response
                .messages()
                .into_iter()
                .flat_map(|message| match message {
                    Value::Array(messages) => messages,
                    message => vec![message],
                })
                .collect();
            answers.sort_by_key(|answer| answer["id"].as_u64());
            assert_eq!(answers.len(), 5, "{response}");
            assert_eq!(answers[1]["error"]["code"], 7, "{response}");
            for answer in [0, 2, 3, 4] {
                assert_eq!(answers[answer]["result"], json!({}), "{response}");
            }
        }
        let mut seen = asked(&script);
        seen.sort();
        assert_eq!(seen, ["+a:b", "+a:bad", "+a:bad"]);
    });
}

/// After the last of many updates everybody who wants it is told at least once.
#[test]
fn many_updates_may_become_few_events_but_not_none() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 4);
        let uris: Vec<String> = (0..50).map(|number| format!("a:{number}")).collect();
        for session in &sessions {
            for uri in &uris {
                subscribe(&gateway, session, uri);
            }
        }
        let lines: Vec<String> = uris.iter().map(|uri| update(uri)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).cycle().take(500).collect();
        script.say(&lines);
        for carried in carried(&script, &mut streams) {
            for uri in &uris {
                let count = carried.iter().filter(|one| **one == updated(uri)).count();
                assert!((1..=10).contains(&count), "{uri}: {count}");
            }
        }
    });
}

// --- The death of the server.

/// A new server knows of no subscription: it is asked for all that is wanted, and what may have changed
/// meanwhile is told.
#[test]
fn subscriptions_are_restored_after_a_restart() {
    on_every_way(|layout| {
        let life = Life::new();
        let refuse = json!([{"method": SUBSCRIBE, "when": {"uri": "a:refused"}, "error": {"code": 1, "message": "no"}}]);
        let again = ["--gate", &life.gate, "--rules", &refuse.to_string()];
        let gateway = life.start(layout, &[], &[], &again);
        let (sessions, mut streams) = open_many(&gateway, 4);
        let quiet = Session::open(&gateway);
        for session in sessions.iter().chain([&quiet]) {
            subscribe(&gateway, session, "a:1");
            subscribe(&gateway, session, "a:refused");
        }
        subscribe(&gateway, &sessions[0], "a:2");
        subscribe(&gateway, &sessions[1], "a:given/back");
        let leaves = Session::open(&gateway);
        subscribe(&gateway, &leaves, "a:left");
        gateway.ask(&sessions[0].call("1", "exit", r#"{"code":1}"#));
        wait_until("the second child has started", || {
            life.pids("start").len() == 2
        });

        // It is down: new wishes are refused at once, old ones can be given back.
        let response = gateway.ask(&sessions[2].subscribe("7", "a:new"));
        let error = response.expect_error(200, -32603, Some("7"));
        assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
        unsubscribe(&gateway, &sessions[1], "a:given/back");
        unsubscribe(&gateway, &sessions[1], "a:never");
        assert_eq!(gateway.ask(&leaves.delete()).status, 204);
        assert_eq!(gateway.ask(&sessions[2].post(ping_body("8"))).status, 200);
        life.open_gate();

        let lists = |message: &String| message.contains("list_changed");
        for (number, stream) in streams.iter_mut().enumerate() {
            let more = usize::from(number == 0);
            // Three kinds of lists, and each URI once.
            let mut told: Vec<String> = (0..4 + more).map(|_| stream.message()).collect();
            told.retain(|message| !lists(message));
            told.sort();
            let expected = [updated("a:1"), updated("a:2")];
            assert_eq!(told, expected[..1 + more]);
        }
        let script = Script::new(&gateway);
        let mut seen = asked(&script);
        // What was given back may reach the hub just after it has restored: the server is asked to
        // forget it then. Below it is seen that nobody is told of it.
        seen.retain(|line| !line.ends_with("a:given/back") && !line.ends_with("a:left"));
        seen.sort();
        assert_eq!(seen, ["+a:1", "+a:2", "+a:refused"]);
        let mut late = Stream::open(&gateway, &quiet);
        let mut told: Vec<String> = (0..4).map(|_| late.message()).collect();
        told.retain(|message| !lists(message));
        assert_eq!(told, [updated("a:1")]);
        streams.push(late);
        script.say(&[
            &update("a:refused"),
            &update("a:given/back"),
            &update("a:1"),
        ]);
        for carried in carried(&script, &mut streams) {
            assert_eq!(carried, [updated("a:1")]);
        }
        // What was refused is gone: it is asked for anew when somebody wants it.
        script.forget_rules();
        subscribe(&gateway, &sessions[3], "a:refused");
        script.say(&[&update("a:refused")]);
        streams[3].expect(&updated("a:refused"));
    });
}

/// Who waits for the server's word when it dies is told, and has no subscription at the next one.
#[test]
fn wish_under_way_when_the_server_dies_is_answered_and_forgotten() {
    on_every_way(|layout| {
        let life = Life::new();
        let gateway = life.start(layout, &[], &[], &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        script.hold_method(SUBSCRIBE, "s");
        let mut waiting: Vec<Raw> = sessions
            .iter()
            .map(|session| {
                let mut connection = gateway.connect();
                connection.send(session.subscribe("1", "a:b").bytes());
                connection.wait_until_read();
                connection
            })
            .collect();
        script.wait_held("s");
        gateway.ask(&sessions[0].call("2", "exit", r#"{"code":1}"#));
        for connection in &mut waiting {
            let response = connection.response();
            let error = response.expect_error(200, -32603, Some("1"));
            assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
        }
        wait_until("the server answers again", || {
            let answer = gateway.ask(&sessions[0].call("3", "echo", "{}")).message();
            answer["result"].is_object()
        });
        for session in &sessions {
            round_trip(&gateway, session);
        }
        assert_eq!(asked(&script), [""; 0]);
    });
}

// --- All together.

/// Clients that change their minds all the time, then stop: the server's subscriptions are exactly what is
/// wanted, it was never told the same twice, and at the end it has none.
#[test]
fn after_any_to_and_fro_the_server_has_exactly_what_is_wanted() {
    const URIS: usize = 5;
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..12).map(|_| Session::open(&gateway)).collect();
        let wanted: Vec<Vec<bool>> = std::thread::scope(|scope| {
            let workers: Vec<_> = sessions
                .iter()
                .enumerate()
                .map(|(number, session)| {
                    let gateway = &gateway;
                    scope.spawn(move || change_minds(gateway, session, number as u64 + 1, URIS))
                })
                .collect();
            let done = workers.into_iter().map(|worker| worker.join());
            done.map(|wanted| wanted.expect("no worker failed"))
                .collect()
        });
        let union: Vec<bool> = (0..URIS)
            .map(|uri| wanted.iter().any(|wanted| wanted[uri]))
            .collect();
        let mut has = Vec::new();
        wait_until("the server has what is wanted", || {
            has = held_by_the_server(&script, URIS);
            has == union
        });
        for session in &sessions {
            assert_eq!(gateway.ask(&session.delete()).status, 204);
        }
        wait_until("the server has none", || {
            held_by_the_server(&script, URIS) == vec![false; URIS]
        });
    });
}

/// Sixty changes at random; returns which URIs are wanted in the end.
fn change_minds(gateway: &Gateway, session: &Session, seed: u64, uris: usize) -> Vec<bool> {
    let mut wanted = vec![false; uris];
    let mut state = seed;
    let mut connection = gateway.connect();
    for _ in 0..60 {
        // Knuth's linear congruential generator; its upper bits are good enough.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let pick = usize::try_from(state >> 40).expect("24 bits");
        let uri = pick % uris;
        let name = format!("a:{uri}");
        wanted[uri] = (pick >> 8) % 2 == 0;
        let request = if wanted[uri] {
            session.subscribe("1", &name)
        } else {
            session.unsubscribe("1", &name)
        };
        assert_eq!(connection.ask(&request).result(), json!({}));
    }
    wanted
}

/// What the server holds by what it was asked, which must alternate for each URI.
fn held_by_the_server(script: &Script<'_>, uris: usize) -> Vec<bool> {
    let mut held = vec![false; uris];
    for one in asked(script) {
        let (sign, uri) = one.split_at(1);
        let uri: usize = uri.trim_start_matches("a:").parse().expect("a number");
        assert_ne!(held[uri], sign == "+", "{one} twice");
        held[uri] = sign == "+";
    }
    held
}

/// A wish that its client has left behind is the session's all the same; it ends with the session.
#[test]
fn client_that_leaves_before_the_answer_leaves_nothing_for_ever() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--session-ttl", "1s"]);
        let script = Script::new(&gateway);
        script.hold_method(SUBSCRIBE, "@URI@");
        for number in 0..4 {
            let session = Session::open(&gateway);
            let uri = format!("a:{number}");
            let waiting = script.hold_request(&session.subscribe("1", &uri), &uri);
            waiting.reset();
        }
        // The server takes its time: longer than the sessions live.
        std::thread::sleep(Duration::from_millis(100));
        script.tool("release_all", &json!({}));
        wait_until("the server has none", || {
            held_by_the_server(&script, 4) == vec![false; 4] && asked(&script).len() == 8
        });
    });
}

/// An update must be a thing of the whole: what is not one harms nobody.
#[test]
fn faulty_updates_are_dropped() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (sessions, mut streams) = open_many(&gateway, 2);
        subscribe(&gateway, &sessions[0], "a:b");
        let long = update(&format!("a:b/{}", "/".repeat(100_000)));
        script.say(&[
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":null}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":["a:b"]}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":{"a:b":1}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b","uri":"a:b"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b","URI":"a:b"}}"#,
            r#"{"jsonrpc":"2.0","id":5,"method":"notifications/resources/updated","params":{"uri":"a:b"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:\ud800"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":""}}"#,
        ]);
        expect_nothing(&script, &mut streams);
        // Over any bound that a URI may have: told or dropped, as long as all else goes on.
        script.say(&[&long]);
        let carried = carried(&script, &mut streams);
        assert!(carried[1].is_empty() && carried[0].len() <= 1);
        script.say(&[&update("a:b")]);
        streams[0].expect(&updated("a:b"));
        let unheard: Value = gateway.ask(&sessions[1].post(ping_body("1"))).result();
        assert_eq!(unheard, json!({}));
    });
}
