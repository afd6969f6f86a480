//! The GET stream of a session: who gets one and how it looks, what it carries, what ends it, and what it must
//! not carry. What it must not carry is shown by a barrier, never by waiting.

mod support;

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use support::life::Life;
use support::mcp::{LATEST, call_body, initialize_body, notification_body, ping_body};
use support::metrics::{self, Metrics};
use support::stream::{carried, carried_by, expect_nothing};
use support::tokens::{self, ALICE, BOB, TokenFile, bearer};
use support::{
    Base, Gateway, Layout, Raw, Request, Response, Script, Session, Stream, Upstream,
    on_both_drivers, on_every_way, wait_until,
};

const TOOLS: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const PROMPTS: &str = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;
const RESOURCES: &str = r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#;

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

fn unknown_session() -> Session {
    Session {
        id: "00000000-0000-4000-8000-000000000000".to_owned(),
        version: LATEST.to_owned(),
    }
}

// --- The answer to GET.

/// Clients and proxies in between know by the head that this is a stream; it must come before any event does.
#[test]
fn get_is_answered_with_the_head_of_a_stream_at_once() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let session = Session::open(&gateway);
            // Nothing has happened that could be told: the head alone ends this wait.
            let mut stream = Stream::of(gateway.connect(), &session.get().version(version));
            let head = &stream.head;
            for (name, value) in [
                ("content-type", Some("text/event-stream")),
                ("cache-control", Some("no-cache, no-transform")),
                ("x-accel-buffering", Some("no")),
                ("connection", Some("close")),
                ("content-length", None),
                (
                    "transfer-encoding",
                    (version == "HTTP/1.1").then_some("chunked"),
                ),
            ] {
                assert_eq!(head.field(name), value, "{version}: {head}");
            }
            script.say(&[TOOLS]);
            stream.expect(TOOLS);
            assert_eq!(gateway.ask(&session.delete()).status, 204);
            stream.expect_end();
        }
    });
}

/// What a client accepts says whether it can read a stream, also when it says so in passing.
#[test]
fn get_needs_a_client_that_takes_event_streams() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let bare = session.get().without("Accept");
        let accepted = [
            "text/event-stream",
            "TEXT/Event-Stream",
            "application/json, text/event-stream",
            "text/event-stream;q=0.5, */*;q=0.1",
            "*/*",
            "text/*",
        ];
        let requests = accepted
            .iter()
            .map(|accept| bare.clone().add("Accept", accept));
        for request in requests.chain([bare.clone()]) {
            let mut stream = Stream::of(gateway.connect(), &request);
            script.say(&[TOOLS]);
            stream.expect(TOOLS);
        }
        for accept in ["application/json", "application/*", "text/html", "x/y"] {
            let response = gateway.ask(&bare.clone().add("Accept", accept));
            response.expect_refusal(406);
        }
        // A refusal leaves the session as it was.
        let mut stream = Stream::open(&gateway, &session);
        expect_nothing(&script, &mut [&mut stream]);
    });
}

/// A page in a browser may read its stream; and a client that asks to resume gets a stream that starts now.
#[test]
fn stream_can_be_read_by_pages_and_by_clients_that_resume() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let origin = "http://localhost:6274";
        let get = session
            .get()
            .add("Origin", origin)
            .add("Last-Event-ID", "none-of-ours/7");
        let mut stream = Stream::of(gateway.connect(), &get);
        let head = &stream.head;
        assert_eq!(head.field("access-control-allow-origin"), Some(origin));
        assert!(head.lists("vary", "origin"), "{head}");
        assert!(
            head.lists("access-control-expose-headers", "mcp-session-id"),
            "{head}"
        );
        expect_nothing(&script, &mut [&mut stream]);
    });
}

/// The same questions are asked as for a POST, and a refused GET opens nothing.
#[test]
fn get_is_checked_like_a_post() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        let get = session.get();
        gateway
            .ask(&get.clone().set("Host", "evil.example"))
            .expect_refusal(403);
        gateway
            .ask(&get.clone().add("Origin", "https://evil.example"))
            .expect_refusal(403);
        gateway
            .ask(&get.clone().target("/elsewhere"))
            .expect_refusal(404);
        let without = get.clone().without("Mcp-Session-Id");
        assert_eq!(gateway.ask(&without).status, 400);
        for unknown in [
            unknown_session().get(),
            get.clone().set("Mcp-Session-Id", "x"),
        ] {
            gateway.ask(&unknown).expect_error(404, -32001, None);
        }
        let ended = Session::open(&gateway);
        assert_eq!(gateway.ask(&ended.delete()).status, 204);
        gateway.ask(&ended.get()).expect_error(404, -32001, None);
        for version in ["1.0", "2026-07-28"] {
            let response = gateway.ask(&get.clone().set("MCP-Protocol-Version", version));
            assert_eq!(response.status, 400, "{response}");
        }
        // None of them has taken the stream's place.
        let script = Script::new(&gateway);
        script.say(&[TOOLS]);
        stream.expect(TOOLS);
        // The header of another version that is supported, and none, are taken as on POST.
        for request in [
            get.clone().without("MCP-Protocol-Version"),
            get.clone().set("MCP-Protocol-Version", "2025-03-26"),
        ] {
            drop(Stream::of(gateway.connect(), &request));
        }
    });
}

/// A stream tells what a session is told: it belongs to the token that opened the session.
#[test]
fn get_needs_the_token_of_the_session() {
    on_every_way(|layout| {
        let file = TokenFile::two();
        let gateway = scripted(layout, &["--auth-token-file", &file.path]);
        let hers = tokens::open(&gateway, ALICE);
        let mut stream = Stream::of(gateway.connect(), &bearer(hers.get(), ALICE));
        assert_eq!(gateway.ask(&hers.get()).status, 401);
        let wrong = gateway.ask(&bearer(hers.get(), "carol-secret-0123456789"));
        assert_eq!(wrong.status, 401, "{wrong}");
        let his = gateway.ask(&bearer(hers.get(), BOB));
        let unknown = gateway.ask(&bearer(unknown_session().get(), BOB));
        his.expect_error(404, -32001, None);
        assert_eq!(his.body, unknown.body);
        let script = Script::with_token(&gateway, ALICE);
        script.say(&[TOOLS]);
        stream.expect(TOOLS);
    });
}

/// HEAD has no stream to be the head of.
#[test]
fn head_is_405_and_get_is_among_what_is_allowed() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &[]);
        let session = Session::open(&gateway);
        let head = session.of(Request::new("HEAD").add("Accept", "text/event-stream"));
        let response = gateway.ask(&head);
        assert_eq!(response.status, 405, "{response}");
        assert_eq!(response.field("allow"), Some("GET, POST, DELETE, OPTIONS"));
    });
}

/// An operator may do without: then nothing is promised that only a stream could keep.
#[test]
fn without_get_streams_nothing_is_promised_that_needs_one() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--get-streams", "off"]);
        let script = Script::new(&gateway);
        let response = gateway.ask(&Request::post(initialize_body("1", LATEST)));
        let text = response.result().to_string();
        assert!(!text.contains("listChanged"), "{text}");
        assert!(!text.contains("subscribe"), "{text}");
        let session = Session::open(&gateway);
        let get = gateway.ask(&session.get());
        assert_eq!(get.status, 405, "{get}");
        assert_eq!(get.field("allow"), Some("POST, DELETE, OPTIONS"), "{get}");
        for request in [
            session.subscribe("1", "a:b"),
            session.unsubscribe("1", "a:b"),
        ] {
            gateway.ask(&request).expect_error(200, -32601, Some("1"));
        }
        // What the server says all the same goes to nobody and hurts nobody.
        script.say(&[
            TOOLS,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}"#,
        ]);
        assert_eq!(gateway.ask(&session.post(ping_body("2"))).status, 200);
        assert!(script.received("resources/").is_empty());
    });
}

/// A GET whose connection belongs to another shard so far moves there, as a POST would.
#[test]
fn get_on_any_connection_opens_the_stream_of_its_session() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..8).map(|_| Session::open(&gateway)).collect();
        let mut streams = Vec::new();
        for (number, session) in sessions.iter().enumerate() {
            let mut connection = gateway.connect();
            let other = &sessions[(number + 3) % sessions.len()];
            assert_eq!(connection.ask(&other.post(ping_body("1"))).status, 200);
            // Both in one write: the GET is behind a POST of yet another session.
            let third = &sessions[(number + 1) % sessions.len()];
            let call = third.call("2", "echo", r#"{"message":"m"}"#);
            connection.send([call.bytes(), session.get().bytes()].concat());
            let answer = connection.response();
            assert_eq!(answer.result()["content"][0]["text"], "m", "{answer}");
            streams.push(Stream::of_answer(connection));
        }
        script.say(&[TOOLS]);
        for (session, stream) in sessions.iter().zip(&mut streams) {
            stream.expect(TOOLS);
            assert_eq!(gateway.ask(&session.delete()).status, 204);
            stream.expect_end();
        }
    });
}

/// A stream is the last answer of its connection: what a client sends behind its GET is never answered there,
/// and cannot be smuggled in as an event.
#[test]
fn nothing_behind_a_get_is_answered() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let call = session.call("7", "echo", r#"{"message":"behind"}"#);
        let mut stream = Stream::open(&gateway, &session);
        stream.raw().send(call.bytes());
        stream.raw().wait_until_read();
        let mut next = Stream::open(&gateway, &session);
        stream.expect_end();
        // More than anybody sends by mistake: whatever becomes of that stream, it is answered nothing.
        next.raw().send_to_the_wary(call.bytes().repeat(2_000));
        script.say(&[TOOLS]);
        let mut flooded = next.into_raw();
        let mut next = Stream::open(&gateway, &session);
        let seen = flooded.rest();
        assert!(
            !String::from_utf8_lossy(&seen).contains("HTTP/1.1"),
            "answered"
        );
        script.say(&[TOOLS]);
        next.expect(TOOLS);
        assert!(script.received("behind").is_empty());
    });
}

// --- One stream a session.

/// A client that reconnects before its old connection is known to be dead must not be locked out or split.
#[test]
fn newer_get_replaces_the_older_which_ends_cleanly() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let (mut other, others) = {
            let session = Session::open(&gateway);
            (Stream::open(&gateway, &session), session)
        };
        let lines = script.received("").len();
        let mut stream = Stream::open(&gateway, &session);
        for version in ["HTTP/1.1", "HTTP/1.0", "HTTP/1.1"] {
            let get = session.get().version(version);
            let newer = Stream::of(gateway.connect(), &get);
            stream.expect_end();
            stream = newer;
            // Calls of the session are not touched by it.
            let call = session.call("1", "echo", r#"{"message":"m"}"#);
            let answer = gateway.ask(&call);
            assert_eq!(answer.result()["content"][0]["text"], "m", "{answer}");
        }
        // The server hears nothing of streams, and lives: it has read the calls alone.
        assert_eq!(script.received("").len(), lines + 3);
        script.say(&[TOOLS]);
        stream.expect(TOOLS);
        other.expect(TOOLS);
        expect_nothing(&script, &mut [&mut stream, &mut other]);
        assert_eq!(gateway.ask(&others.delete()).status, 204);
    });
}

/// Two clients with one session id, each of which opens a stream when its own has ended, cost little.
#[test]
fn streams_that_replace_each_other_for_ever_leave_nothing() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        let base = Base::of(&gateway);
        for _ in 0..200 {
            let newer = Stream::open(&gateway, &session);
            stream.expect_end();
            stream = newer;
        }
        expect_nothing(&script, &mut [&mut stream]);
        base.wait_until_back(&gateway);
    });
}

/// However a client went, its next GET is answered and told what comes from then on.
#[test]
fn stream_of_a_client_that_has_gone_blocks_no_reconnect() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let base = Base::of(&gateway);
        for _ in 0..10 {
            Stream::open(&gateway, &session).into_raw().reset();
            drop(Stream::open(&gateway, &session).into_raw());
            // The end of the client's sending half is the end of its interest.
            let mut half = Stream::open(&gateway, &session);
            half.raw().half_close();
            half.raw().drain();
            let mut stream = Stream::open(&gateway, &session);
            script.say(&[TOOLS]);
            stream.expect(TOOLS);
            stream.into_raw().reset();
        }
        base.wait_until_back(&gateway);
        // What happened while nobody was there is told when somebody comes.
        script.say(&[RESOURCES]);
        let mut stream = Stream::open(&gateway, &session);
        stream.expect(RESOURCES);
        expect_nothing(&script, &mut [&mut stream]);
    });
}

// --- The end.

/// No stream outlives its session, whoever ends it.
#[test]
fn delete_ends_the_stream_cleanly_and_no_other() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..6).map(|_| Session::open(&gateway)).collect();
        let base = Base::of(&gateway);
        let open = |session| Stream::open(&gateway, session);
        let mut streams: Vec<Stream> = sessions.iter().map(open).collect();
        for (session, stream) in sessions.iter().zip(&mut streams).step_by(2) {
            assert_eq!(gateway.ask(&session.delete()).status, 204);
            stream.expect_end();
            gateway.ask(&session.get()).expect_error(404, -32001, None);
        }
        let mut left: Vec<&mut Stream> = streams.iter_mut().skip(1).step_by(2).collect();
        script.say(&[TOOLS]);
        for stream in &mut left {
            stream.expect(TOOLS);
        }
        expect_nothing(&script, &mut left);
        drop(streams);
        base.wait_until_back(&gateway);
    });
}

/// Who loses the token loses the streams that it opened.
#[test]
fn removal_of_the_token_ends_the_streams_of_its_sessions() {
    on_every_way(|layout| {
        let file = TokenFile::two();
        let gateway = scripted(layout, &["--auth-token-file", &file.path]);
        let hers = tokens::open(&gateway, ALICE);
        let mut her_stream = Stream::of(gateway.connect(), &bearer(hers.get(), ALICE));
        let his: Vec<Session> = (0..4).map(|_| tokens::open(&gateway, BOB)).collect();
        let mut his_streams: Vec<Stream> = his
            .iter()
            .map(|session| Stream::of(gateway.connect(), &bearer(session.get(), BOB)))
            .collect();
        file.without_bob();
        for stream in &mut his_streams {
            stream.expect_end();
        }
        let script = Script::with_token(&gateway, ALICE);
        script.say(&[TOOLS]);
        her_stream.expect(TOOLS);
    });
}

/// Streams have no end of their own that a drain could wait for: they end at once, and cleanly.
#[test]
fn drain_ends_streams_at_once() {
    on_every_way(|layout| {
        let mut gateway = scripted(layout, &["--drain-timeout", "1h"]);
        let sessions: Vec<Session> = (0..6).map(|_| Session::open(&gateway)).collect();
        let open = |session| Stream::open(&gateway, session);
        let mut streams: Vec<Stream> = sessions.iter().map(open).collect();
        gateway.signal(Signal::TERM);
        for stream in &mut streams {
            stream.expect_end();
        }
        // With streams counted as calls this would take the hour.
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
    });
}

/// A call that the drain waits for keeps no stream open.
#[test]
fn drain_ends_streams_while_it_waits_for_a_call() {
    on_every_way(|layout| {
        let mut gateway = scripted(layout, &["--drain-timeout", "1h"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        let mut held = script.hold(&session, "1", "k");
        drop(script);
        gateway.signal(Signal::TERM);
        stream.expect_end();
        assert!(gateway.runs(), "it ended over a call in flight");
        gateway.signal(Signal::TERM);
        held.drain();
        assert_eq!(gateway.wait().code(), Some(0));
    });
}

const TTL: Duration = Duration::from_millis(400);
const SHORT_LIFE: [&str; 4] = ["--session-ttl", "400ms", "--session-unused-ttl", "400ms"];

/// Waits until a session has ended by itself. Each look would keep it alive, so there are long pauses between.
fn wait_until_expired(gateway: &Gateway, session: &Session) {
    wait_until("the session expires", || {
        std::thread::sleep(3 * TTL);
        gateway.ask(&session.post(ping_body("1"))).status == 404
    });
}

/// A client that only listens is there; one that has gone without a DELETE must not live for ever.
#[test]
fn open_stream_keeps_its_session_and_a_closed_one_does_not() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &SHORT_LIFE);
        let (listens, silent) = (Session::open(&gateway), Session::open(&gateway));
        // This one has never been used but for its stream.
        let response = gateway.ask(&Request::post(initialize_body("0", LATEST)));
        let fresh = Session {
            id: response
                .field("mcp-session-id")
                .expect("a session")
                .to_owned(),
            version: LATEST.to_owned(),
        };
        let mut streams = [&listens, &fresh].map(|session| Stream::open(&gateway, session));
        wait_until_expired(&gateway, &silent);
        std::thread::sleep(3 * TTL);
        let script = Script::new(&gateway);
        expect_nothing(&script, &mut streams);
        for session in [&listens, &fresh] {
            assert_eq!(gateway.ask(&session.post(ping_body("1"))).status, 200);
        }
        // Gone without a word, in both ways.
        let [first, second] = streams;
        first.into_raw().reset();
        drop(second);
        for session in [&listens, &fresh] {
            wait_until_expired(&gateway, session);
            gateway.ask(&session.get()).expect_error(404, -32001, None);
        }
    });
}

/// The same seen in the gateway's own count, without a look that could keep a session alive.
#[test]
fn sessions_of_clients_that_have_gone_are_forgotten() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[&SHORT_LIFE[..], &metrics::FLAGS].concat());
        let metrics = Metrics::of(&gateway);
        let sessions: Vec<Session> = (0..10).map(|_| Session::open(&gateway)).collect();
        let open = |session| Stream::open(&gateway, session);
        let streams: Vec<Stream> = sessions.iter().map(open).collect();
        wait_until("the sessions are counted", || {
            metrics.sum("ringway_sessions", &[]) >= 10.0
        });
        for (number, stream) in streams.into_iter().enumerate() {
            if number % 2 == 0 {
                stream.into_raw().reset();
            }
        }
        wait_until("no session is left", || {
            metrics.sum("ringway_sessions", &[]) == 0.0
        });
    });
}

// --- Keep-alives.

/// Proxies and phones cut connections that say nothing; and a comment is no event.
#[test]
fn quiet_streams_are_kept_alive_by_comments() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--keep-alive", "100ms"]);
        let script = Script::new(&gateway);
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let session = Session::open(&gateway);
            let mut stream = Stream::of(gateway.connect(), &session.get().version(version));
            stream.wait_comments(3);
            script.say(&[TOOLS]);
            stream.expect(TOOLS);
            let so_far = stream.comments;
            stream.wait_comments(so_far + 2);
            assert_eq!(gateway.ask(&session.delete()).status, 204);
            stream.expect_end();
        }
        // The answer to a POST as a stream.
        let session = Session::open(&gateway);
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let hold = session.call("5", "hold", r#"{"key":"k"}"#);
            let hold = hold.set("Accept", "text/event-stream").version(version);
            let mut stream = Stream::of(gateway.connect(), &hold);
            stream.wait_comments(3);
            script.release("k");
            let (before, last) = stream.answer();
            assert!(before.is_empty(), "{before:?}");
            assert_eq!(
                last,
                r#"{"jsonrpc":"2.0","id":5,"result":{"released": "k"}}"#
            );
        }
    });
}

/// A JSON answer has room for life signs too: blanks before the value, which every JSON reader skips.
#[test]
fn silent_call_for_a_json_client_is_kept_alive_by_blanks() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--keep-alive", "100ms"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        for (serial, (accept, token, version)) in [
            ("application/json", None, "HTTP/1.1"),
            ("application/json", Some("\"t\""), "HTTP/1.1"),
            ("application/json, text/event-stream", None, "HTTP/1.1"),
            ("application/json", None, "HTTP/1.0"),
        ]
        .into_iter()
        .enumerate()
        {
            let key = format!("k{serial}");
            let arguments = json!({ "key": key }).to_string();
            let call = match token {
                Some(token) => session.call_with_token("5", "hold", &arguments, token),
                None => session.call("5", "hold", &arguments),
            };
            let mut connection = gateway.connect();
            let call = call.set("Accept", accept).version(version);
            connection.send(call.bytes());
            wait_until("the head and two blanks have come", || {
                // A blank is a byte of a chunk: the head ends first.
                connection.has_blanks(2)
            });
            script.release(&key);
            let response = connection.response();
            assert_eq!(
                response.media_type(),
                Some("application/json"),
                "{response}"
            );
            assert_eq!(response.field("content-length"), None, "{response}");
            let blanks = response
                .body
                .iter()
                .take_while(|&&byte| byte == b' ')
                .count();
            assert!(blanks >= 2, "{response}");
            assert_eq!(response.body[blanks], b'{', "{response}");
            assert_eq!(response.result()["released"], key.as_str(), "{response}");
            assert_eq!(response.raw_id().as_deref(), Some("5"));
            if version == "HTTP/1.0" {
                assert!(response.close_delimited, "{response}");
                continue;
            }
            assert_eq!(response.field("transfer-encoding"), Some("chunked"));
            // The connection is as good as new.
            let next = connection.ask(&session.post(ping_body("6")));
            assert_eq!(next.raw_id().as_deref(), Some("6"), "{next}");
        }
    });
}

/// Who has asked for progress and takes streams gets one before a proxy loses patience.
#[test]
fn silent_call_with_a_token_becomes_a_stream_at_the_first_keep_alive() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--keep-alive", "100ms"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let call = session.call_with_token("5", "hold", r#"{"key":"k"}"#, "\"t\"");
        let mut stream = Stream::of(gateway.connect(), &call);
        stream.wait_comments(2);
        let token = script.upstream_id("k");
        script.say(&[&progress(&token)]);
        let message = stream.message();
        assert_eq!(message, progress("\"t\""));
        script.release("k");
        let (before, last) = stream.answer();
        assert!(before.is_empty(), "{before:?}");
        assert!(last.contains(r#""released": "k""#), "{last}");
        // With --response-mode json it does not.
        drop(script);
        let flags = ["--keep-alive", "100ms", "--response-mode", "json"];
        let gateway = scripted(layout, &flags);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let call = session.call_with_token("5", "hold", r#"{"key":"k"}"#, "\"t\"");
        let mut connection = gateway.connect();
        connection.send(call.bytes());
        wait_until("two blanks have come", || connection.has_blanks(2));
        script.release("k");
        let response = connection.response();
        assert_eq!(
            response.media_type(),
            Some("application/json"),
            "{response}"
        );
        assert_eq!(response.result()["released"], "k", "{response}");
    });
}

fn progress(token: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    )
}

/// Once the head is out an error can only be a JSON-RPC error in the body, and must still be one.
#[test]
fn call_that_fails_after_its_first_blank_is_answered_in_the_same_body() {
    on_every_way(|layout| {
        let flags = ["--keep-alive", "100ms", "--request-timeout", "3s"];
        let gateway = scripted(layout, &flags);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let other = Session::open(&gateway);
        let both = "application/json, text/event-stream";
        let hold = |session: &Session, id: &str, accept: &str| {
            let arguments = json!({ "key": format!("k{id}") }).to_string();
            let mut connection = gateway.connect();
            let call = session.call(id, "hold", &arguments).set("Accept", accept);
            connection.send(call.bytes());
            wait_until("blanks have come", || connection.has_blanks(1));
            script.wait_held(&format!("k{id}"));
            connection
        };
        let expect = |connection: &mut Raw, id: &str, reason: &str| {
            let response = connection.response();
            assert_eq!(
                response.media_type(),
                Some("application/json"),
                "{response}"
            );
            let error = response.expect_error(200, -32603, Some(id));
            assert_eq!(error["data"]["reason"], reason, "{response}");
        };
        let mut silent = hold(&session, "1", both);
        for (id, accept) in [("2", "application/json"), ("3", both)] {
            let mut cancelled = hold(&session, id, accept);
            assert_eq!(gateway.ask(&session.cancel(id)).status, 202);
            expect(&mut cancelled, id, "cancelled");
            let next = cancelled.ask(&session.post(ping_body("4")));
            assert_eq!(next.raw_id().as_deref(), Some("4"), "{next}");
        }
        let mut ended = hold(&other, "5", both);
        assert_eq!(gateway.ask(&other.delete()).status, 204);
        expect(&mut ended, "5", "session_ended");
        expect(&mut silent, "1", "timeout");
        let mut dying = hold(&session, "6", both);
        gateway.ask(&session.call("7", "exit", r#"{"code":1}"#));
        expect(&mut dying, "6", "upstream_down");
    });
}

/// Blanks may stand before an array as well.
#[test]
fn silent_batch_is_kept_alive_too() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--keep-alive", "100ms"]);
        let script = Script::new(&gateway);
        let session = Session::open_at(&gateway, "2025-03-26");
        let batch = format!(
            "[{},{}]",
            call_body("1", "echo", r#"{"message":"m"}"#),
            call_body("2", "hold", r#"{"key":"k"}"#)
        );
        let json_only = session
            .post(batch.as_str())
            .set("Accept", "application/json");
        let mut connection = gateway.connect();
        connection.send(json_only.bytes());
        wait_until("blanks have come", || connection.has_blanks(2));
        script.release("k");
        let response = connection.response();
        let messages = response.messages();
        assert_eq!(messages.len(), 2, "{response}");
        assert!(response.body.starts_with(b"  "), "{response}");
        assert!(response.json().is_array(), "{response}");

        let stream_only = session.post(batch).set("Accept", "text/event-stream");
        let mut stream = Stream::of(gateway.connect(), &stream_only);
        let first = stream.message();
        assert!(first.contains(r#""text": "m""#), "{first}");
        let so_far = stream.comments;
        stream.wait_comments(so_far + 2);
        script.release("k");
        let rest = stream.rest();
        assert!(
            rest.len() <= 1 && rest.concat().contains("released"),
            "{rest:?}"
        );
    });
}

// --- Lists that have changed.

/// What one session's part of the server has changed all have to read again; but of the server's own words
/// nothing may come along, since they may be another session's.
#[test]
fn list_changed_is_told_once_to_each_session_in_constant_words() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..8).map(|_| Session::open(&gateway)).collect();
        let open = |session| Stream::open(&gateway, session);
        let mut streams: Vec<Stream> = sessions.iter().map(open).collect();
        for (line, told) in [
            (
                r#"{"params":{"_meta":{"secret":"of session 3"},"x":1}, "method":"notifications/tools/list_changed","jsonrpc":"2.0"}"#,
                TOOLS,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications\/resources\/list_changed","secret":1}"#,
                RESOURCES,
            ),
            (TOOLS, TOOLS),
        ] {
            script.say(&[line]);
            // Each is told once, also the next time: one change makes one event on an unbroken stream.
            for carried in carried(&script, &mut streams) {
                assert_eq!(carried, [told], "{line}");
            }
        }
        script.say(&[PROMPTS]);
        for stream in &mut streams {
            stream.expect(PROMPTS);
        }
        expect_nothing(&script, &mut streams);
    });
}

/// Many changes at once may be told as few, but the last of them is told.
#[test]
fn many_changes_may_become_few_events_but_not_none() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        for _ in 0..20 {
            script.say(&[TOOLS; 50]);
            let carried = carried_by(&script, &mut stream);
            assert!((1..=50).contains(&carried.len()), "{}", carried.len());
            assert!(carried.iter().all(|message| message == TOOLS));
        }
    });
}

/// A session without a stream is told when it opens one: once for each kind, and not again.
#[test]
fn changes_without_a_stream_are_told_when_one_opens() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        script.say(&[TOOLS, RESOURCES, TOOLS, TOOLS]);
        // A session that comes later has read the lists as they are: nothing to tell. It also shows that the
        // server's words have been taken in everywhere.
        let late: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        let mut late: Vec<Stream> = late
            .iter()
            .map(|session| Stream::open(&gateway, session))
            .collect();
        for carried in carried(&script, &mut late) {
            assert!(
                carried.len() <= 2 && !carried.iter().any(|message| message == PROMPTS),
                "{carried:?}"
            );
        }
        for session in &sessions {
            let mut told: Vec<String> = {
                let mut stream = Stream::open(&gateway, session);
                (0..3).map(|_| stream.message()).collect()
            };
            told.sort();
            assert_eq!(told, [PROMPTS, RESOURCES, TOOLS]);
            // It has been told: the next stream starts with nothing.
            let mut stream = Stream::open(&gateway, session);
            expect_nothing(&script, &mut [&mut stream]);
        }
    });
}

/// A session that opens after a change is not told of it.
#[test]
fn new_session_is_not_told_of_older_changes() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        // One on every shard, so that all of them have taken it in.
        let witnesses: Vec<Session> = (0..8).map(|_| Session::open(&gateway)).collect();
        let open = |session: &Session| Stream::open(&gateway, session);
        let mut witnesses: Vec<Stream> = witnesses.iter().map(open).collect();
        script.say(&[TOOLS]);
        for stream in &mut witnesses {
            stream.expect(TOOLS);
        }
        let fresh: Vec<Session> = (0..8).map(|_| Session::open(&gateway)).collect();
        let mut streams: Vec<Stream> = fresh.iter().map(open).collect();
        expect_nothing(&script, &mut streams);
    });
}

/// A new server may offer other things: everybody has to look, but only at what there is.
#[test]
fn after_a_restart_every_session_is_told_of_the_kinds_that_the_server_has() {
    on_every_way(|layout| {
        let life = Life::new();
        let capabilities =
            r#"{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true}}"#;
        let gateway = life.start(layout, &[], &["--capabilities", capabilities], &[]);
        let sessions: Vec<Session> = (0..6).map(|_| Session::open(&gateway)).collect();
        let (with, without) = sessions.split_at(3);
        let open = |session: &Session| Stream::open(&gateway, session);
        let mut streams: Vec<Stream> = with.iter().map(open).collect();
        gateway.ask(&sessions[0].call("1", "exit", r#"{"code":1}"#));
        // The streams live on over the death.
        for stream in &mut streams {
            let mut told = [stream.message(), stream.message()];
            told.sort();
            assert_eq!(told, [RESOURCES, TOOLS]);
        }
        let mut late: Vec<Stream> = without.iter().map(open).collect();
        for stream in &mut late {
            let mut told = [stream.message(), stream.message()];
            told.sort();
            assert_eq!(told, [RESOURCES, TOOLS]);
        }
        streams.append(&mut late);
        let script = Script::new(&gateway);
        expect_nothing(&script, &mut streams);
    });
}

/// Where the new server can do less all sessions end, and their streams with them.
#[test]
fn streams_end_when_a_new_server_can_do_less() {
    on_every_way(|layout| {
        let life = Life::new();
        let less = ["--capabilities", r#"{"tools":{"listChanged":true}}"#];
        let gateway = life.start(layout, &[], &[], &less);
        let sessions: Vec<Session> = (0..6).map(|_| Session::open(&gateway)).collect();
        let open = |session| Stream::open(&gateway, session);
        let mut streams: Vec<Stream> = sessions.iter().map(open).collect();
        gateway.ask(&sessions[0].call("1", "exit", r#"{"code":1}"#));
        for (session, stream) in sessions.iter().zip(&mut streams) {
            stream.expect_end();
            gateway.ask(&session.get()).expect_error(404, -32001, None);
        }
    });
}

/// Whatever sessions had, when they have ended nothing of it is left: no connection, no call, no byte in a
/// queue, no subscription or task at the server; and memory stays where it was.
#[test]
fn nothing_is_left_of_streams_subscriptions_and_tasks() {
    const MIB: u64 = 1 << 20;
    on_every_way(|layout| {
        let gateway = scripted(layout, &metrics::FLAGS);
        let metrics = Metrics::of(&gateway);
        let round = |number: usize| {
            let script = Script::new(&gateway);
            for end in 0..4 {
                live_and_die(&gateway, &script, number, end);
            }
            assert_eq!(gateway.ask(&script.session.delete()).status, 204);
        };
        (0..3).for_each(round);
        let base = Base::of(&gateway);
        (3..15).for_each(round);
        base.wait_until_back(&gateway);
        for gauge in [
            "ringway_sessions",
            "ringway_calls_in_flight",
            "ringway_buffered_bytes",
        ] {
            wait_until(&format!("{gauge} is 0"), || metrics.sum(gauge, &[]) == 0.0);
        }
        let after = Base::of(&gateway).resident_bytes;
        assert!(
            after < base.resident_bytes + 16 * MIB,
            "{base:?}, then {after}"
        );
        let script = Script::new(&gateway);
        let count = |text: &str| script.received(text).len();
        wait_until("the server has no subscription and no task", || {
            count("resources/subscribe") == count("resources/unsubscribe")
                && count("tasks/cancel") == 15 * 4
        });
        assert_eq!(count("resources/subscribe"), 15 * 4 * 10);
    });
}

/// One session with everything that it can have, ended in one of four ways.
fn live_and_die(gateway: &Gateway, script: &Script<'_>, round: usize, end: usize) {
    let session = Session::open(gateway);
    let mut stream = Stream::open(gateway, &session);
    let name = format!("{round}-{end}");
    for number in 0..10 {
        let request = session.subscribe("1", &format!("a:{name}/{number}"));
        assert_eq!(gateway.ask(&request).result(), json!({}));
    }
    let task = json!({"task": {"taskId": name, "status": "working"}}).to_string();
    let params = format!(
        r#"{{"name":"result","arguments":{{"hex":"{}"}},"task":{{}},"_meta":{{"progressToken":1}}}}"#,
        support::hex(task.as_bytes())
    );
    let request = session.post(support::mcp::request_body("2", "tools/call", &params));
    assert_eq!(gateway.ask(&request).result()["task"]["taskId"], name);
    let arguments = json!({ "key": name }).to_string();
    let call = session.call_with_token("3", "hold", &arguments, "\"t\"");
    let connection = script.hold_request(&call, &name);
    let id = script.upstream_id(&name);
    let updated = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"a:{name}/1"}}}}"#
    );
    script.say(&[&progress(&id), &updated]);
    stream.expect(&updated);
    match end {
        0 => stream.into_raw().reset(),
        1 => drop(stream),
        2 => connection.half_close(),
        _ => {
            assert_eq!(gateway.ask(&session.cancel("3")).status, 202);
        }
    }
    assert_eq!(gateway.ask(&session.delete()).status, 204);
}

// --- What a stream never carries.

/// Log lines, requests to the client and whatever else names no session belong to nobody on a shared server.
#[test]
fn what_names_no_session_reaches_no_stream() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        let open = |session| Stream::open(&gateway, session);
        let mut streams: Vec<Stream> = sessions.iter().map(open).collect();
        for session in &sessions {
            let level = r#"{"level":"debug"}"#;
            let request = support::mcp::request_body("1", "logging/setLevel", level);
            assert_eq!(gateway.ask(&session.post(request)).status, 200);
        }
        script.say(&[
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"emergency","data":"secret"}}"#,
            r#"{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}"#,
            r#"{"jsonrpc":"2.0","id":"s2","method":"elicitation/create","params":{"message":"secret"}}"#,
            r#"{"jsonrpc":"2.0","id":"s3","method":"roots/list"}"#,
            r#"{"jsonrpc":"2.0","id":"s4","method":"ping"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"x"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":5}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":["a:b"]}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b","uri":"a:c"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","id":"s5"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed/x"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tools"}"#,
            r#"[{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}]"#,
            r#"{"jsonrpc":"2.0","id":123456789,"result":{"secret":1}}"#,
        ]);
        expect_nothing(&script, &mut streams);
        // The server did not wait for anybody.
        for id in ["s1", "s2", "s3", "s5"] {
            let answer = script.wait_received(&format!("\"id\":\"{id}\""));
            assert!(answer.contains("-32601"), "{answer}");
        }
        assert!(
            script
                .wait_received("\"id\":\"s4\"")
                .contains(r#""result":{}"#)
        );
        // A client that answers what nobody asked it is not heard by the server.
        for body in [
            r#"{"jsonrpc":"2.0","id":"s1","result":{"forged":true}}"#.to_owned(),
            notification_body(
                "notifications/progress",
                r#"{"progressToken":1,"forged":1}"#,
            ),
        ] {
            assert_eq!(gateway.ask(&sessions[0].post(body)).status, 202);
        }
        let echo = sessions[0].call("1", "echo", "{}");
        assert_eq!(gateway.ask(&echo).status, 200);
        assert!(script.received("forged").is_empty());
    });
}

/// Answers go to the POST that asked for them, never to the stream beside it.
#[test]
fn answers_of_calls_are_not_on_the_get_stream() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        let accepts = ["application/json", "text/event-stream"];
        for (id, accept) in accepts.iter().enumerate() {
            let call = session.call(&id.to_string(), "echo", r#"{"message":"m"}"#);
            let answer: Response = gateway.ask(&call.set("Accept", accept));
            assert_eq!(answer.result()["content"][0]["text"], "m", "{answer}");
        }
        // Nor when the client that asked is gone.
        let leaves = script.hold(&session, "9", "k");
        leaves.reset();
        script.release("k");
        expect_nothing(&script, &mut [&mut stream]);
    });
}
