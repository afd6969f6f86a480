//! Progress of a call: on the call's own POST stream, before its answer and in order, under the client's own
//! token, and nowhere else.

mod support;

use serde_json::{Value, json};
use support::life::Life;
use support::mcp::{call_body, call_with_token_body, raw_member};
use support::metrics::{self, Metrics};
use support::scripted::{result_arguments, send_arguments};
use support::stream::{carried_by, expect_nothing, open_many, value};
use support::{
    Gateway, Layout, Raw, Request, Script, Session, Stream, Upstream, hex, on_both_drivers,
    on_every_way, wait_until,
};

const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

/// The server's line that reports progress.
fn progress(token: &str, step: usize) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{step}}}}}"#
    )
}

/// The call of the server's tool that writes these lines.
fn send(session: &Session, id: &str, token: &str, lines: &[&str]) -> Request {
    let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
    session.call_with_token(id, "send", &send_arguments(&lines), token)
}

const REPLY: &str = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#;

/// A call that the server holds under `key`, with a token; it has arrived there.
fn hold(script: &Script<'_>, session: &Session, id: &str, key: &str, token: &str) -> Raw {
    let arguments = json!({ "key": key }).to_string();
    let call = session.call_with_token(id, "hold", &arguments, token);
    script.hold_request(&call, key)
}

/// Lets the server report progress of the call that it holds under `key`.
fn report(script: &Script<'_>, key: &str, step: usize) {
    script.say(&[&progress(&script.upstream_id(key), step)]);
}

/// A token is the client's key to its handler: another spelling or type would find none; and what else the
/// server says about its progress is the client's as well, byte for byte.
#[test]
fn token_comes_back_as_it_was_and_every_other_byte_is_the_servers() {
    let tokens = [
        "\"abc\"",
        "1",
        "\"1\"",
        "0",
        "-5",
        "9007199254740993",
        "-9223372036854775808",
        r#""a-\u0041\/\"""#,
        r#""\u0001\ud83d\ude00""#,
        "\"caf\u{e9} \u{2028}\"",
        "\"\"",
    ];
    let lines = [
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN@,"progress":1}}"#,
        r#"{ "params" : {"progress":1.50e+1,"total" : 9007199254740993,"progressToken" :@TOKEN@ , "message":"caf\u00e9 \/ \" \u2028"}, "method":"notifications\/progress","jsonrpc":"2.0","extra":{"a":[1.0,{}]} }"#,
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"message\":\"\u{2028}\u{7f} é 😀\",\"progressToken\":@TOKEN@,\"progress\":-0.0,\"_meta\":{\"progressToken\":5,\"id\":@ID@}}}",
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress\u0054oken":@TOKEN@,"x":1e400,"x":2}}"#,
    ];
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let session = Session::open(&gateway);
        for token in tokens {
            let mut stream = Stream::of(
                gateway.connect(),
                &send(&session, "\"i\"", token, &[&lines[..], &[REPLY]].concat()),
            );
            for line in lines {
                let seen = stream.message();
                // What the server's `@ID@` was is the server's own number, which only has to be left alone.
                let own = raw_upstream_id(&seen, line);
                let expected = line.replace("@TOKEN@", token).replace("@ID@", &own);
                assert_eq!(seen, expected);
            }
            stream.expect(&REPLY.replace("@ID@", "\"i\""));
            stream.expect_end();
        }
        // Raw line breaks can only stand between tokens; in an event they would be the end of it.
        let broken = "{\r\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\r\r\"params\":{\r\"progressToken\":\r@TOKEN@\r}}\r";
        let call = send(&session, "1", "\"t\"", &[broken, REPLY]);
        let mut stream = Stream::of(gateway.connect(), &call);
        let expected = broken.replace('\r', " ").replace("@TOKEN@", "\"t\"");
        assert_eq!(stream.message().trim_end(), expected.trim_end());
    });
}

/// The number that stands in `seen` where `line` has `@ID@`.
fn raw_upstream_id(seen: &str, line: &str) -> String {
    if !line.contains("@ID@") {
        return String::new();
    }
    let id = &value(seen)["params"]["_meta"]["id"];
    id.as_u64().expect("a number").to_string()
}

/// The head says stream only when there is something to stream: a call without progress is a JSON answer.
#[test]
fn answer_becomes_a_stream_at_the_first_progress_and_not_before() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let quiet = connection.ask(&send(&session, "1", "\"t\"", &[REPLY]));
        assert_eq!(quiet.media_type(), Some(JSON), "{quiet}");
        assert_eq!(quiet.result()["good"], true);
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let key = version.to_owned();
            let arguments = json!({ "key": key }).to_string();
            let call = session.call_with_token("2", "hold", &arguments, "7");
            let mut connection = gateway.connect();
            connection.send(call.version(version).bytes());
            script.wait_held(&key);
            // The server's own steps show that the gateway had every chance to begin early.
            assert!(!connection.has_something(), "{version}");
            report(&script, &key, 1);
            let mut stream = Stream::of_answer(connection);
            for (name, value) in [
                ("cache-control", "no-cache, no-transform"),
                ("x-accel-buffering", "no"),
            ] {
                assert_eq!(stream.head.field(name), Some(value), "{}", stream.head);
            }
            stream.expect(&progress("7", 1));
            // At once, not with the next one.
            report(&script, &key, 2);
            stream.expect(&progress("7", 2));
            script.release(&key);
            let (before, last) = stream.answer();
            assert!(before.is_empty(), "{before:?}");
            assert_eq!(value(&last)["result"]["released"], key.as_str());
            if version == "HTTP/1.1" {
                // The connection is as good as new.
                let mut connection = stream.into_raw();
                let next = connection.ask(&session.call("3", "echo", r#"{"message":"n"}"#));
                assert_eq!(next.result()["content"][0]["text"], "n", "{next}");
            }
        }
        // Who takes nothing but streams, and a gateway that always streams, have one from the start.
        let call = send(&session, "4", "8", &[&progress("@TOKEN@", 1), REPLY]);
        let mut stream = Stream::of(gateway.connect(), &call.set("Accept", SSE));
        stream.expect(&progress("8", 1));
        drop(script);
        let gateway = scripted(layout, &["--response-mode", "sse"]);
        let session = Session::open(&gateway);
        let call = send(&session, "4", "8", &[&progress("@TOKEN@", 1), REPLY]);
        let mut stream = Stream::of(gateway.connect(), &call);
        stream.expect(&progress("8", 1));
        let quiet = gateway.ask(&send(&session, "5", "9", &[REPLY]));
        assert!(quiet.is_sse(), "{quiet}");
    });
}

/// A fast server writes everything at once; nothing may overtake, and nothing may be lost to a reader that reads.
#[test]
fn thousand_reports_and_the_reply_in_one_write_come_whole_and_in_order() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        let line = progress("@TOKEN@", 0).replace(":0}", ":@N@}");
        let arguments = json!({
            "count": 1_000,
            "line": hex(line.as_bytes()),
            "last": hex(REPLY.as_bytes()),
        });
        for session in &sessions {
            for accept in ["application/json, text/event-stream", SSE] {
                let call = session.call_with_token("5", "repeat", &arguments.to_string(), "\"t\"");
                let mut stream = Stream::of(gateway.connect(), &call.set("Accept", accept));
                for step in 0..1_000 {
                    stream.expect(&progress("\"t\"", step));
                }
                stream.expect(&REPLY.replace("@ID@", "5"));
                stream.expect_end();
            }
        }
    });
}

/// Many calls of many sessions at once, all with the same token: each gets its own steps, all of them, in order.
#[test]
fn interleaved_reports_of_many_calls_find_their_own() {
    const CALLS: usize = 40;
    const STEPS: usize = 50;
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..8).map(|_| Session::open(&gateway)).collect();
        let keys: Vec<String> = (0..CALLS).map(|number| format!("k{number}")).collect();
        let calls: Vec<Raw> = keys
            .iter()
            .enumerate()
            .map(|(number, key)| {
                let session = &sessions[number % sessions.len()];
                let mut connection = gateway.connect();
                let arguments = json!({ "key": key }).to_string();
                let call =
                    session.call_with_token(&number.to_string(), "hold", &arguments, "\"t\"");
                connection.send(call.bytes());
                connection
            })
            .collect();
        script.wait_held_count(CALLS);
        let ids: Vec<String> = keys.iter().map(|key| script.upstream_id(key)).collect();
        for step in 0..STEPS {
            // The message names the call, so that a step that goes astray is seen.
            let lines: Vec<String> = ids
                .iter()
                .zip(&keys)
                .map(|(id, key)| marked(id, step, key))
                .collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            script.say(&lines);
        }
        assert_eq!(script.tool("release_all", &json!({}))["released"], CALLS);
        for (number, (key, connection)) in keys.iter().zip(calls).enumerate() {
            let mut stream = Stream::of_answer(connection);
            for step in 0..STEPS {
                stream.expect(&marked("\"t\"", step, key));
            }
            let (before, last) = stream.answer();
            assert!(before.is_empty(), "{before:?}");
            let last = value(&last);
            assert_eq!(last["id"], number);
            assert_eq!(last["result"]["released"], key.as_str());
        }
    });
}

fn marked(token: &str, step: usize, mark: &str) -> String {
    progress(token, step).replace(
        "\"progress\":",
        &format!("\"message\":\"{mark}\",\"progress\":"),
    )
}

/// Clients count their tokens from 0 like their ids: the same in two sessions, and in one session at once too.
#[test]
fn same_token_twice_is_two_calls_and_the_end_of_one_is_not_the_others() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let first = hold(&script, &session, "1", "first", "\"t\"");
        let second = hold(&script, &session, "2", "second", "\"t\"");
        let foreign = hold(&script, &other, "1", "foreign", "\"t\"");
        for (step, key) in [(1, "second"), (2, "first"), (3, "foreign"), (4, "first")] {
            report(&script, key, step);
        }
        let mut first = Stream::of_answer(first);
        first.expect(&progress("\"t\"", 2));
        first.expect(&progress("\"t\"", 4));
        script.release("first");
        assert_eq!(first.answer().0, [""; 0]);
        let mut second = Stream::of_answer(second);
        second.expect(&progress("\"t\"", 1));
        report(&script, "second", 5);
        second.expect(&progress("\"t\"", 5));
        assert_eq!(gateway.ask(&session.cancel("2")).status, 202);
        second.expect_end();
        let mut foreign = Stream::of_answer(foreign);
        foreign.expect(&progress("\"t\"", 3));
        report(&script, "foreign", 6);
        foreign.expect(&progress("\"t\"", 6));
        script.release("foreign");
        assert_eq!(foreign.answer().0, [""; 0]);
    });
}

/// Progress that names no living call with a token goes to nobody: not to who had the number before, not to
/// the session's other calls or its stream; and it is counted.
#[test]
fn progress_without_a_call_is_dropped_and_counted() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &metrics::FLAGS);
        let metrics = Metrics::of(&gateway);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut get = Stream::open(&gateway, &session);
        // Gone: answered, cancelled, without a token.
        let mut gone = Vec::new();
        let mut answered = hold(&script, &session, "1", "answered", "\"t\"");
        gone.push(script.upstream_id("answered"));
        script.release("answered");
        assert_eq!(answered.response().result()["released"], "answered");
        let mut cancelled = hold(&script, &session, "2", "cancelled", "\"t\"");
        gone.push(script.upstream_id("cancelled"));
        assert_eq!(gateway.ask(&session.cancel("2")).status, 202);
        cancelled.response();
        let mut without = script.hold(&session, "3", "without");
        gone.push(script.upstream_id("without"));
        // The hub's own request.
        assert_eq!(
            gateway.ask(&session.subscribe("4", "a:b")).result(),
            json!({})
        );
        let subscribe = script.wait_received("resources/subscribe");
        gone.push(raw_member(&subscribe, "id").expect("a request"));
        let invented = [
            "0",
            "1",
            "-1",
            "\"t\"",
            "\"x\"",
            "1.5",
            "1e3",
            "null",
            "true",
            "{}",
            "[1]",
            "9007199254740991",
            "18446744073709551616",
        ];
        gone.extend(invented.map(str::to_owned));
        // A call that lives, so that everything can go wrong.
        let alive = hold(&script, &session, "5", "alive", "\"t\"");
        let lines: Vec<String> = gone.iter().map(|token| progress(token, 1)).collect();
        let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        lines.push(r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
        lines
            .push(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}"#);
        script.say(&lines);
        let id = script.upstream_id("alive");
        let doubled = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progressToken":{id}}}}}"#
        );
        script.say(&[&doubled]);
        report(&script, "alive", 2);
        let mut alive = Stream::of_answer(alive);
        alive.expect(&progress("\"t\"", 2));
        script.release("without");
        let response = without.response();
        assert_eq!(response.media_type(), Some(JSON), "{response}");
        assert_eq!(response.result()["released"], "without", "{response}");
        expect_nothing(&script, &mut [&mut get]);
        script.release("alive");
        assert_eq!(alive.answer().0, [""; 0]);
        // What is no token at all may be no message at all.
        let counted = metrics.drops("progress") + metrics.drops("not_message");
        assert_eq!(counted, (gone.len() + 3) as f64);
    });
}

/// A report that comes behind its reply is too late, also in the same write: the next answer on that
/// connection must not begin with it.
#[test]
fn progress_behind_its_reply_is_dropped() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &metrics::FLAGS);
        let metrics = Metrics::of(&gateway);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for round in 1..=20 {
            let late = [REPLY, &progress("@TOKEN@", 1), &progress("@TOKEN@", 2)];
            let accept = [JSON, SSE][round % 2];
            let response =
                connection.ask(&send(&session, "1", "\"t\"", &late).set("Accept", accept));
            assert_eq!(response.result()["good"], true, "{response}");
            let both = connection.ask(&send(&session, "2", "\"t\"", &late));
            assert_eq!(both.media_type(), Some(JSON), "{both}");
            let next = session
                .call("3", "echo", r#"{"message":"n"}"#)
                .set("Accept", SSE);
            let next = connection.ask(&next);
            assert_eq!(next.result()["content"][0]["text"], "n", "{next}");
            metrics.wait_for_drops("progress", round * 4);
        }
    });
}

/// A client that only takes JSON has asked for what it cannot be given: the call ends well all the same.
#[test]
fn json_only_answers_have_no_progress_and_end_well() {
    on_every_way(|layout| {
        for (flags, accept) in [
            (&[][..], JSON),
            (
                &["--response-mode", "json"],
                "application/json, text/event-stream",
            ),
        ] {
            let gateway = scripted(layout, &[flags, &metrics::FLAGS].concat());
            let metrics = Metrics::of(&gateway);
            let session = Session::open(&gateway);
            let lines: Vec<String> = (0..10).map(|step| progress("@TOKEN@", step)).collect();
            let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            lines.push(REPLY);
            let call = send(&session, "5", "\"t\"", &lines).set("Accept", accept);
            let response = gateway.ask(&call);
            assert_eq!(response.media_type(), Some(JSON), "{response}");
            assert_eq!(response.result()["good"], true, "{response}");
            assert!(response.field("content-length").is_some(), "{response}");
            metrics.wait_for_drops("progress", 10);
        }
    });
}

/// The calls of a batch report on the batch's stream, each under its own token.
#[test]
fn calls_of_a_batch_report_on_the_batchs_stream() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open_at(&gateway, "2025-03-26");
        let held = |id: &str, key: &str, token: &str| {
            call_with_token_body(id, "hold", &json!({ "key": key }).to_string(), token)
        };
        for (serial, accept) in [SSE, "application/json, text/event-stream"]
            .into_iter()
            .enumerate()
        {
            let (one, two) = (format!("one{serial}"), format!("two{serial}"));
            let batch = format!(
                "[{},{},{}]",
                held("1", &one, "\"a\""),
                call_body("2", "echo", r#"{"message":"m"}"#),
                held("3", &two, "5"),
            );
            let mut connection = gateway.connect();
            connection.send(session.post(batch).set("Accept", accept).bytes());
            script.wait_held(&one);
            script.wait_held(&two);
            report(&script, &two, 1);
            report(&script, &one, 2);
            script.release(&two);
            report(&script, &one, 3);
            script.release(&one);
            let messages = if accept == SSE {
                Stream::of_answer(connection).rest()
            } else {
                // Whether a batch turns is the gateway's choice; that all answers come is not.
                let response = connection.response();
                response.messages().iter().map(Value::to_string).collect()
            };
            let messages: Vec<Value> = messages
                .iter()
                .flat_map(|message| match value(message) {
                    Value::Array(messages) => messages,
                    message => vec![message],
                })
                .collect();
            let at = |wanted: &dyn Fn(&Value) -> bool| messages.iter().position(wanted);
            let answer = |id: u64| at(&|message| message["id"] == id).expect("an answer");
            let step = |token: Value, step: u64| {
                at(&|message| {
                    message["params"]["progressToken"] == token
                        && message["params"]["progress"] == step
                })
            };
            assert_eq!(messages[answer(2)]["result"]["content"][0]["text"], "m");
            let (first, third) = (answer(1), answer(3));
            if accept == SSE {
                assert_eq!(messages.len(), 6, "{messages:?}");
                assert!(step(json!(5), 1).expect("a step") < third);
                let (second_step, third_step) = (step(json!("a"), 2), step(json!("a"), 3));
                assert!(
                    second_step < third_step && third_step < Some(first),
                    "{messages:?}"
                );
                assert!(second_step.is_some());
            }
        }
    });
}

/// A stream that has begun ends without an answer when its client cancels, and what comes late is nobody's.
#[test]
fn cancel_of_a_streaming_call_ends_the_stream_without_a_reply() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let connection = hold(&script, &session, "5", "k", "\"t\"");
        report(&script, "k", 1);
        let mut stream = Stream::of_answer(connection);
        stream.expect(&progress("\"t\"", 1));
        assert_eq!(gateway.ask(&session.cancel("5")).status, 202);
        stream.expect_end();
        let id = script.upstream_id("k");
        let told = script.wait_received(&format!("\"requestId\":{id}"));
        assert!(told.contains("notifications/cancelled"), "{told}");
        report(&script, "k", 2);
        script.release("k");
        let mut connection = stream.into_raw();
        let again = session.call_with_token("5", "echo", r#"{"message":"n"}"#, "\"t\"");
        let next = connection.ask(&again.set("Accept", SSE));
        assert_eq!(next.result()["content"][0]["text"], "n", "{next}");
    });
}

/// Whatever ends a call that streams, the stream says so and ends.
#[test]
fn streaming_call_that_fails_ends_with_its_error() {
    on_every_way(|layout| {
        let life = Life::new();
        let gateway = life.start(layout, &[], &[], &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let streaming = |session: &Session, key: &str| {
            let connection = hold(&script, session, "5", key, "\"t\"");
            report(&script, key, 1);
            let mut stream = Stream::of_answer(connection);
            stream.expect(&progress("\"t\"", 1));
            stream
        };
        let mut ended = streaming(&other, "ended");
        assert_eq!(gateway.ask(&other.delete()).status, 204);
        for message in ended.rest() {
            let error = &value(&message)["error"];
            assert_eq!(error["data"]["reason"], "session_ended", "{message}");
        }
        let mut dying = streaming(&session, "dying");
        gateway.ask(&session.call("6", "exit", r#"{"code":1}"#));
        let (before, last) = dying.answer();
        assert!(before.is_empty(), "{before:?}");
        assert_eq!(value(&last)["id"], 5);
        assert_eq!(value(&last)["error"]["data"]["reason"], "upstream_down");
    });
}

/// A server that reports is not silent, however long it takes; one that has stopped is.
#[test]
fn progress_puts_off_the_time_out_and_its_end_brings_it() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &["--request-timeout", "2s"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        for accept in ["application/json, text/event-stream", JSON] {
            let key = format!("k{}", accept.len());
            let arguments = json!({ "key": key }).to_string();
            let call = session.call_with_token("5", "hold", &arguments, "\"t\"");
            let connection = script.hold_request(&call.set("Accept", accept), &key);
            // More than the time-out in all.
            for step in 0..25 {
                std::thread::sleep(std::time::Duration::from_millis(100));
                report(&script, &key, step);
            }
            let message = if accept == JSON {
                // Progress that the client cannot be shown is a sign of life too.
                script.release(&key);
                let mut connection = connection;
                connection.response().message()
            } else {
                let mut stream = Stream::of_answer(connection);
                for step in 0..25 {
                    stream.expect(&progress("\"t\"", step));
                }
                value(&stream.message())
            };
            if accept == JSON {
                assert_eq!(message["result"]["released"], key.as_str(), "{message}");
            } else {
                assert_eq!(message["error"]["data"]["reason"], "timeout", "{message}");
                let id = script.upstream_id(&key);
                script.wait_received(&format!("\"requestId\":{id}"));
            }
        }
    });
}

/// A client that leaves its stream is noticed as on any other answer.
#[test]
fn client_that_leaves_its_stream_is_gone() {
    on_every_way(|layout| {
        for (mode, told) in [("cancel", 1), ("run", 0)] {
            let gateway = scripted(layout, &["--on-disconnect", mode]);
            let script = Script::new(&gateway);
            let session = Session::open(&gateway);
            let mut get = Stream::open(&gateway, &session);
            let connection = hold(&script, &session, "5", "k", "\"t\"");
            report(&script, "k", 1);
            let mut stream = Stream::of_answer(connection);
            stream.expect(&progress("\"t\"", 1));
            stream.into_raw().reset();
            if told == 1 {
                let id = script.upstream_id("k");
                script.wait_received(&format!("\"requestId\":{id}"));
            }
            // What the call says from now on is for nobody, the session's other stream included.
            report(&script, "k", 2);
            assert_eq!(carried_by(&script, &mut get), [""; 0]);
            script.release("k");
            wait_until("the id is free", || {
                gateway.ask(&session.call("5", "echo", "{}")).status == 200
            });
            assert_eq!(script.received("notifications/cancelled").len(), told);
        }
    });
}

/// Progress of one session's call is seen by nobody else, with every stream open that there is.
#[test]
fn progress_is_on_no_other_stream() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (sessions, mut gets) = open_many(&gateway, 4);
        let calls: Vec<Raw> = (0..4)
            .map(|number| {
                hold(
                    &script,
                    &sessions[number],
                    "5",
                    &format!("k{number}"),
                    "\"t\"",
                )
            })
            .collect();
        for step in 0..10 {
            report(&script, "k0", step);
        }
        expect_nothing(&script, &mut gets);
        for (number, mut connection) in calls.into_iter().enumerate() {
            script.release(&format!("k{number}"));
            if number == 0 {
                let (before, _) = Stream::of_answer(connection).answer();
                assert_eq!(before.len(), 10);
            } else {
                let response = connection.response();
                assert_eq!(response.media_type(), Some(JSON), "{response}");
            }
        }
        // A result that looks like progress is a result.
        let looks = r#"{"progressToken":"t","progress":1}"#;
        let call = session_call(&sessions[1], looks);
        assert_eq!(gateway.ask(&call).result(), value(looks));
    });
}

fn session_call(session: &Session, result: &str) -> Request {
    session.call("6", "result", &result_arguments(result.as_bytes()))
}
