//! The client that goes away in the middle of its call: what the server is told, by `--on-disconnect`, and
//! which ways of going count as gone.

mod support;

use support::mcp::ping_body;
use support::scripted::hold_request;
use support::{
    Gateway, Layout, Raw, Request, Script, Session, Upstream, on_every_layout, wait_until,
};

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";
const BOTH: &str = "application/json, text/event-stream";

/// How a client goes.
#[derive(Clone, Copy, Debug)]
enum Going {
    /// It closes its socket: the gateway sees the end, then a reset when it writes.
    Close,
    /// It is killed: reset.
    Reset,
    /// It has sent its last byte and reads on.
    HalfClose,
}

/// Lets the client go; what it keeps of its connection, if it still reads.
fn go(connection: Raw, how: Going) -> Option<Raw> {
    match how {
        Going::Close => drop(connection),
        Going::Reset => connection.reset(),
        Going::HalfClose => {
            connection.half_close();
            return Some(connection);
        }
    }
    None
}

/// The default: a tool that has begun finishes, whoever left; the server hears nothing of it.
#[test]
fn by_default_the_call_runs_on_and_the_server_is_told_nothing() {
    on_every_layout(|layout| {
        for flags in [&[][..], &["--on-disconnect", "run"][..]] {
            let gateway = scripted(layout, flags);
            let script = Script::new(&gateway);
            let session = Session::open(&gateway);
            let mut serial = 0;
            for how in [Going::Close, Going::Reset, Going::HalfClose] {
                for accept in [JSON, SSE, BOTH] {
                    serial += 1;
                    let key = format!("k{serial}");
                    let request = hold_request(&session, "5", &key).set("Accept", accept);
                    let kept = go(script.hold_request(&request, &key), how);
                    // Its id is in use until the server has answered.
                    let again = session.call("5", "echo", "{}");
                    gateway.ask(&again).expect_error(400, -32600, None);
                    script.release(&key);
                    wait_until("the id is free again", || gateway.ask(&again).status == 200);
                    if let Some(mut kept) = kept {
                        check_half_closed(&mut kept, accept, &key);
                    }
                }
            }
            assert!(script.received("notifications/cancelled").is_empty());
        }
    });
}

/// A client that has only closed its sending half: a JSON answer still comes, an SSE stream has ended.
fn check_half_closed(kept: &mut Raw, accept: &str, key: &str) {
    if accept == SSE {
        // The head was sent when the call began; nothing after the client's end.
        kept.drain();
        return;
    }
    assert_eq!(kept.response().result()["released"], key, "{accept}");
    kept.expect_end();
}

/// Opt-in: who leaves cancels, and the server is told with the id that it knows.
#[test]
fn with_cancel_the_server_is_told_with_its_own_id() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &["--on-disconnect", "cancel"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut expected = 0;
        let gone = [
            (Going::Reset, JSON),
            (Going::Reset, SSE),
            (Going::Reset, BOTH),
            (Going::Close, SSE),
            (Going::HalfClose, SSE),
        ];
        for (serial, (how, accept)) in gone.into_iter().enumerate() {
            let key = format!("k{serial}");
            let request = hold_request(&session, "5", &key).set("Accept", accept);
            let connection = script.hold_request(&request, &key);
            let upstream = script.upstream_id(&key);
            let kept = go(connection, how);
            let told = script.wait_received(&format!("\"requestId\":{upstream}"));
            assert!(told.contains("notifications/cancelled"), "{told}");
            expected += 1;
            assert_eq!(script.received("notifications/cancelled").len(), expected);
            // The id is free at once, and the late answer is nobody's.
            let echo = session.call("5", "echo", r#"{"message":"next"}"#);
            let mut connection = gateway.connect();
            let next = connection.ask(&echo);
            assert_eq!(
                next.result()["content"][0]["text"],
                "next",
                "{how:?} {accept}"
            );
            script.release(&key);
            let next = connection.ask(&echo);
            assert_eq!(
                next.result()["content"][0]["text"],
                "next",
                "{how:?} {accept}"
            );
            if let Some(mut kept) = kept {
                kept.drain();
            }
        }
    });
}

/// A client that sends its last byte and waits (curl, scripts) is not gone: its JSON answer comes.
#[test]
fn with_cancel_a_half_closed_json_client_still_gets_its_answer() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &["--on-disconnect", "cancel"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        for (serial, accept) in [JSON, BOTH].into_iter().enumerate() {
            let key = format!("k{serial}");
            let request = hold_request(&session, "5", &key).set("Accept", accept);
            let mut connection = script.hold_request(&request, &key);
            connection.half_close();
            connection.wait_until_read();
            assert_eq!(gateway.ask(&session.post(ping_body("1"))).status, 200);
            script.release(&key);
            assert_eq!(connection.response().result()["released"], key.as_str());
            connection.expect_end();
        }
        assert!(script.received("notifications/cancelled").is_empty());
    });
}

/// Who leaves takes only its own calls along: others of its session, and of its batch's neighbours, go on.
#[test]
fn with_cancel_only_the_calls_of_that_connection_end() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &["--on-disconnect", "cancel"]);
        let script = Script::new(&gateway);
        let session = Session::open_at(&gateway, "2025-03-26");
        let mut stays = script.hold(&session, "\"stays\"", "stays");
        // A batch of two: both end.
        let batch = format!(
            "[{},{}]",
            support::call_body("1", "hold", r#"{"key":"one"}"#),
            support::call_body("2", "hold", r#"{"key":"two"}"#)
        );
        let mut leaves = gateway.connect();
        leaves.send(session.post(batch).bytes());
        script.wait_held("one");
        script.wait_held("two");
        let ids = ["one", "two"].map(|key| script.upstream_id(key));
        leaves.reset();
        for id in ids {
            script.wait_received(&format!("\"requestId\":{id}"));
        }
        assert_eq!(script.received("notifications/cancelled").len(), 2);
        script.release("stays");
        assert_eq!(stays.response().result()["released"], "stays");
        for id in ["1", "2"] {
            let request: Request = session.call(id, "echo", r#"{"message":"m"}"#);
            assert_eq!(gateway.ask(&request).result()["content"][0]["text"], "m");
        }
    });
}

/// A client that has sent its next request already and is killed then: gone like any other, and what it
/// sent last never begins.
#[test]
fn with_cancel_a_reset_behind_a_pipelined_request_is_noticed() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &["--on-disconnect", "cancel"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut leaves = script.hold(&session, "1", "k");
        let id = script.upstream_id("k");
        leaves.send(session.call("2", "echo", r#"{"message":"never"}"#).bytes());
        leaves.wait_until_read();
        leaves.reset();
        script.wait_received(&format!("\"requestId\":{id}"));
        assert!(script.received("never").is_empty());
    });
}
