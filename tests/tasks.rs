//! Tasks on a shared server: each belongs to the session that asked for it, and to every other session it is as
//! unknown as one that never was. What becomes of a task that nobody wants any more is told to the server.

mod support;

use serde_json::{Value, json};
use support::life::Life;
use support::mcp::{raw_member, request_body};
use support::metrics::{self, Metrics};
use support::stream::{carried, carried_by, expect_nothing, open_many, value};
use support::{
    Gateway, Layout, Raw, Request, Response, Script, Session, Stream, Upstream, hex,
    on_both_drivers, on_every_way, wait_until,
};

const SSE: &str = "text/event-stream";

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

/// A task as the server describes it; the spelling is odd so that a rewritten one is seen.
fn task(id: &str, status: &str) -> String {
    format!(
        r#"{{ "status":"{status}","taskId" : "{id}","ttl":6.0e4,"createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","statusMessage":"caf\u00e9" }}"#
    )
}

fn created(id: &str, status: &str) -> String {
    format!(r#"{{"_meta":{{"n":1.0}},"task":{}}}"#, task(id, status))
}

/// The call that makes the server create a task.
fn create(session: &Session, id: &str, task: &str) -> Request {
    create_with(session, id, task, "")
}

/// The same with more members of the params.
fn create_with(session: &Session, id: &str, task: &str, more: &str) -> Request {
    let result = hex(created(task, "working").as_bytes());
    session.post(request_body(
        id,
        "tools/call",
        &format!(
            r#"{{"name":"result","arguments":{{"hex":"{result}"}},"task":{{"ttl":60000}}{more}}}"#
        ),
    ))
}

/// Lets a session have a task.
#[track_caller]
fn own(gateway: &Gateway, session: &Session, task: &str) {
    let response = gateway.ask(&create(session, "\"create\"", task));
    assert_eq!(response.result()["task"]["taskId"], task, "{response}");
}

/// A request about a task.
fn about(session: &Session, id: &str, method: &str, task: &str) -> Request {
    session.post(request_body(
        id,
        method,
        &format!(r#"{{"taskId":"{task}"}}"#),
    ))
}

fn list(session: &Session, id: &str, params: &str) -> Request {
    session.post(request_body(id, "tasks/list", params))
}

/// The server's word about a task's status.
fn status(id: &str, status: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{}}}"#,
        task(id, status)
    )
}

fn progress(token: &str, step: usize) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{step}}}}}"#
    )
}

/// What the server was asked with this method, about which tasks, in order.
fn asked(script: &Script<'_>, method: &str) -> Vec<String> {
    let lines = script.received("tasks");
    let of_method = lines.iter().filter_map(|line| {
        let message = value(line);
        let task = message["params"]["taskId"]
            .as_str()
            .unwrap_or("?")
            .to_owned();
        (message["method"] == method).then_some(task)
    });
    of_method.collect()
}

#[track_caller]
fn wait_cancelled(script: &Script<'_>, expected: &[&str]) {
    let mut seen = Vec::new();
    wait_until(
        &format!("the server is told to cancel {expected:?}"),
        || {
            seen = asked(script, "tasks/cancel");
            seen.len() >= expected.len()
        },
    );
    seen.sort();
    assert_eq!(seen, expected);
}

// --- Who may use tasks.

/// Tasks exist in one version of the protocol, and only where the server has them.
#[test]
fn tasks_are_for_sessions_of_their_version_and_servers_that_have_them() {
    on_every_way(|layout| {
        let bare = ["--capabilities", r#"{"tools":{}}"#];
        for (arguments, version) in [
            (&[][..], "2025-06-18"),
            (&[][..], "2025-03-26"),
            (&bare[..], "2025-11-25"),
        ] {
            let gateway = layout.start(&[], Upstream::Python("scripted.py", arguments));
            let script = Script::new(&gateway);
            let session = Session::open_at(&gateway, version);
            for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
                let response = gateway.ask(&about(&session, "1", method, "t1"));
                response.expect_error(200, -32601, Some("1"));
            }
            let response = gateway.ask(&create(&session, "2", "t1"));
            response.expect_error(200, -32602, Some("2"));
            assert!(script.received("task").is_empty());
            let plain = session.call("3", "echo", r#"{"message":"m"}"#);
            assert_eq!(gateway.ask(&plain).result()["content"][0]["text"], "m");
        }
    });
}

/// A task is made by the server and belongs to who asked; its answers are the server's, byte for byte.
#[test]
fn session_uses_its_own_task() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let response = gateway.ask(&create(&session, "1", r"t\u002d1"));
        let text = response.text();
        assert_eq!(
            raw_member(&text, "result").as_deref(),
            Some(created(r"t\u002d1", "working").as_str())
        );
        let call = script.wait_received("\"tools/call\"");
        assert!(call.contains(r#""task":{"ttl":60000}"#), "{call}");
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            script.answer_method(method, &task("t-1", "working"));
            // However the client spells it.
            for id in ["t-1", r"\u0074-1"] {
                let response = gateway.ask(&about(&session, "2", method, id));
                assert_eq!(
                    raw_member(&response.text(), "result").as_deref(),
                    Some(task("t-1", "working").as_str()),
                    "{response}"
                );
                assert_eq!(response.raw_id().as_deref(), Some("2"));
            }
            assert_eq!(asked(&script, method), ["t-1", "t-1"]);
        }
        // The server's own refusal passes unchanged.
        let error = json!({"code": -32603, "message": "m", "data": {"x": 1}});
        script.rule(&json!({"method": "tasks/get", "error": error}));
        let response = gateway.ask(&about(&session, "3", "tasks/get", "t-1"));
        assert_eq!(response.message()["error"], error);
    });
}

/// Another session's task must look like one that does not exist, to the letter, and the server must not be
/// asked about it.
#[test]
fn foreign_task_is_as_unknown_as_none() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let owner = Session::open(&gateway);
        own(&gateway, &owner, "hers");
        // On every shard.
        let others: Vec<Session> = (0..6).map(|_| Session::open(&gateway)).collect();
        own(&gateway, &others[0], "his");
        for other in &others {
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                let foreign = gateway.ask(&about(other, "1", method, "hers"));
                foreign.expect_error(200, -32602, Some("1"));
                for invented in ["never", "", "HERS", "hers ", "her"] {
                    let unknown = gateway.ask(&about(other, "1", method, invented));
                    // But for the name itself, should the answer repeat it.
                    let text = unknown
                        .text()
                        .replace(&format!("\"{invented}\""), "\"hers\"");
                    assert_eq!(text, foreign.text());
                    assert_eq!(unknown.fields.len(), foreign.fields.len());
                }
            }
        }
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            for params in [
                "{}",
                r#"{"taskId":null}"#,
                r#"{"taskId":5}"#,
                r#"{"taskId":["hers"]}"#,
            ] {
                let response = gateway.ask(&owner.post(request_body("2", method, params)));
                response.expect_error(200, -32602, Some("2"));
            }
            let bare = owner.post(format!(r#"{{"jsonrpc":"2.0","id":2,"method":"{method}"}}"#));
            gateway.ask(&bare).expect_error(200, -32602, Some("2"));
            assert!(asked(&script, method).is_empty(), "{method}");
        }
        // Nor is it anybody's when its session has ended.
        assert_eq!(gateway.ask(&owner.delete()).status, 204);
        wait_cancelled(&script, &["hers"]);
        let response = gateway.ask(&about(&others[0], "3", "tasks/get", "hers"));
        response.expect_error(200, -32602, Some("3"));
        assert!(asked(&script, "tasks/get").is_empty());
    });
}

/// A server may offer some of it.
#[test]
fn list_and_cancel_need_a_server_that_has_them() {
    on_every_way(|layout| {
        for (tasks, list_code, cancel_code) in [
            ("{}", -32601, -32601),
            (r#"{"list":{}}"#, 0, -32601),
            (r#"{"cancel":{}}"#, -32601, 0),
        ] {
            let capabilities = format!(r#"{{"tools":{{}},"tasks":{tasks}}}"#);
            let arguments = ["--capabilities", &capabilities];
            let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
            let script = Script::new(&gateway);
            let session = Session::open(&gateway);
            own(&gateway, &session, "t");
            script.answer_method("tasks/list", r#"{"tasks":[]}"#);
            for (request, code) in [
                (list(&session, "1", "{}"), list_code),
                (about(&session, "1", "tasks/cancel", "t"), cancel_code),
                (about(&session, "1", "tasks/get", "t"), 0),
                (about(&session, "1", "tasks/result", "t"), 0),
            ] {
                let response = gateway.ask(&request);
                if code == 0 {
                    response.result();
                } else {
                    response.expect_error(200, code, Some("1"));
                }
            }
        }
    });
}

// --- The list.

/// The server lists everybody's tasks; a session sees its own, as the server wrote them.
#[test]
fn list_shows_the_session_its_own_tasks_only() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..3).map(|_| Session::open(&gateway)).collect();
        for (session, tasks) in sessions.iter().zip([&["a1", "a2"][..], &["b1"], &[]]) {
            for task in tasks {
                own(&gateway, session, task);
            }
        }
        // A member of no session, one with two ids, one without, and what is no task at all.
        let page = format!(
            r#"{{ "x":1.50,"tasks" : [ {},{}, {},{{"taskId":"a1","status":"working","taskId":"b1"}},{{"status":"working"}},{{"taskId":5}},5,null, {} ],"_meta":{{"y":[ ]}} }}"#,
            task("a1", "working"),
            task("nobody", "working"),
            task("b1", "completed"),
            task(r"\u00612", "failed")
        );
        script.answer_method("tasks/list", &page);
        let expected = [
            vec![task("a1", "working"), task(r"\u00612", "failed")],
            vec![task("b1", "completed")],
            vec![],
        ];
        for (session, expected) in sessions.iter().zip(expected) {
            let response = gateway.ask(&list(session, "7", "{}"));
            let result = raw_member(&response.text(), "result").expect("a result");
            assert_eq!(
                raw_elements(&raw_member(&result, "tasks").expect("a list")),
                expected
            );
            // Any other member may tell of other sessions' tasks.
            for other in ["x", "_meta", "nextCursor"] {
                assert_eq!(raw_member(&result, other), None, "{result}");
            }
            for name in ["nobody", "\"a1\"", r"\u00612", "\"b1\""] {
                let is_own = expected.concat().contains(name);
                assert_eq!(result.contains(name), is_own, "{name}: {result}");
            }
        }
        // What is no list cannot be filtered, and so is not shown.
        for broken in [
            r#"{"tasks":{"a1":1}}"#,
            r#"{"x":"secret"}"#,
            "[]",
            r#""secret""#,
        ] {
            script.answer_method("tasks/list", broken);
            let response = gateway.ask(&list(&sessions[0], "8", "{}"));
            assert!(
                response.message()["error"].is_object(),
                "{broken}: {response}"
            );
            assert!(!response.text().contains("secret"), "{response}");
        }
    });
}

fn raw_elements(array: &str) -> Vec<String> {
    let elements: Vec<Box<serde_json::value::RawValue>> =
        serde_json::from_str(array).expect("a list");
    elements
        .iter()
        .map(|element| element.get().to_owned())
        .collect()
}

/// The server's cursor may tell of others' tasks: a session gets one of the gateway's own, which serves nobody
/// else and cannot be invented.
#[test]
fn cursor_is_the_gateways_own_and_only_for_its_session() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        for (number, session) in sessions.iter().enumerate() {
            own(&gateway, session, &format!("t{number}"));
        }
        let secret = "after:t2/\\u00e9";
        let page = |task_id: &str, next: &str| {
            format!(r#"{{"tasks":[{}]{next}}}"#, task(task_id, "working"))
        };
        script.rule(&json!({
            "method": "tasks/list",
            "when": {},
            "result": hex(page("t0", &format!(r#","nextCursor":"{secret}""#)).as_bytes()),
        }));
        script.rule(&json!({
            "method": "tasks/list",
            "when": {"cursor": "after:t2/é"},
            "result": hex(page("t0", "").as_bytes()),
        }));
        let first = gateway.ask(&list(&sessions[0], "1", "{}"));
        assert!(!first.text().contains("after"), "{first}");
        let cursor = first.result()["nextCursor"]
            .as_str()
            .expect("a cursor")
            .to_owned();
        assert!(!cursor.is_empty());
        let with = |cursor: &str| json!({ "cursor": cursor }).to_string();
        let second = gateway.ask(&list(&sessions[0], "2", &with(&cursor)));
        let second = second.result();
        assert_eq!(
            second["tasks"].as_array().map(Vec::len),
            Some(1),
            "{second}"
        );
        assert!(second["nextCursor"].is_null(), "{second}");
        let lists = script.received("\"tasks/list\"");
        assert_eq!(value(&lists[1])["params"]["cursor"], "after:t2/é");
        // Everything else that could be a cursor is refused, and the server is not asked.
        for (number, session) in sessions.iter().enumerate() {
            let mut invented = vec!["after:t2/é", "", "0", "tasks-0", "tasks-999999"];
            if number > 0 {
                invented.push(&cursor);
            }
            for cursor in invented
                .into_iter()
                .filter(|other| number > 0 || *other != cursor)
            {
                let response = gateway.ask(&list(session, "3", &with(cursor)));
                response.expect_error(200, -32602, Some("3"));
            }
            for params in [r#"{"cursor":5}"#, r#"{"cursor":{}}"#] {
                let response = gateway.ask(&list(session, "3", params));
                response.expect_error(200, -32602, Some("3"));
            }
        }
        assert_eq!(script.received("\"tasks/list\"").len(), 2);
        // Without params it is the first page, as ever.
        let bare = sessions[0].post(r#"{"jsonrpc":"2.0","id":4,"method":"tasks/list"}"#);
        assert_eq!(
            gateway.ask(&bare).result()["tasks"]
                .as_array()
                .map(Vec::len),
            Some(1)
        );
        // A cursor that is no text is not passed on.
        script.answer_method("tasks/list", r#"{"tasks":[],"nextCursor":{"secret":1}}"#);
        let response = gateway.ask(&list(&sessions[1], "5", "{}"));
        assert!(!response.text().contains("secret"), "{response}");
    });
}

// --- Status and progress.

/// Who waits for the task's result hears how it goes on that very stream.
#[test]
fn status_and_progress_come_on_the_open_result_request() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let mut gets = [&session, &other].map(|session| Stream::open(&gateway, session));
        let token = r#","_meta":{"progressToken":"p\u0041"}"#;
        let response = gateway.ask(&create_with(&session, "1", "t", token));
        assert_eq!(response.result()["task"]["taskId"], "t");
        own(&gateway, &other, "other");
        let call = value(&script.received("\"tools/call\"")[0]);
        let upstream = call["params"]["_meta"]["progressToken"].to_string();
        script.hold_method("tasks/result", "r @TASK@");
        let result = script.hold_request(&about(&session, "2", "tasks/result", "t"), "r t");
        let others = script.hold_request(&about(&other, "2", "tasks/result", "other"), "r other");
        script.say(&[&status("t", "input_required"), &progress(&upstream, 1)]);
        script.say(&[&progress(&upstream, 2), &status("t", "completed")]);
        expect_nothing(&script, &mut gets);
        script.release_with("r t", r#"{"content":[],"_meta":{"n":1.0}}"#);
        let (before, last) = Stream::of_answer(result).answer();
        let before: Vec<Value> = before.iter().map(|message| value(message)).collect();
        assert_eq!(before.len(), 4, "{before:?}");
        assert_eq!(before[0], value(&status("t", "input_required")));
        assert_eq!(before[1], value(&progress("\"pA\"", 1)));
        assert_eq!(before[2], value(&progress("\"pA\"", 2)));
        assert_eq!(before[3], value(&status("t", "completed")));
        assert_eq!(
            raw_member(&last, "result").as_deref(),
            Some(r#"{"content":[],"_meta":{"n":1.0}}"#)
        );
        // The other session's waits on, and has heard nothing.
        let mut others = others;
        assert!(!others.has_something());
        script.release("r other");
        assert_eq!(others.response().result()["released"], "r other");
    });
}

/// Without such a request the session's GET stream is the place, and no other session's.
#[test]
fn status_and_progress_come_on_the_get_stream_otherwise() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (sessions, mut gets) = open_many(&gateway, 4);
        let token = r#","_meta":{"progressToken":5}"#;
        gateway
            .ask(&create_with(&sessions[1], "1", "t", token))
            .result();
        let call = value(&script.received("\"tools/call\"")[0]);
        let upstream = call["params"]["_meta"]["progressToken"].to_string();
        script.say(&[&status("t", "working")]);
        let all = carried(&script, &mut gets);
        assert_eq!(all[1].len(), 1, "{all:?}");
        assert_eq!(value(&all[1][0]), value(&status("t", "working")));
        assert!(
            all.iter()
                .enumerate()
                .all(|(number, one)| number == 1 || one.is_empty())
        );
        script.say(&[&progress(&upstream, 7)]);
        let all = carried(&script, &mut gets);
        assert_eq!(all[1], [progress("5", 7)], "{all:?}");
        assert!(
            all.iter()
                .enumerate()
                .all(|(number, one)| number == 1 || one.is_empty())
        );
        // A task that has ended has no progress any more.
        script.say(&[&status("t", "failed")]);
        let all = carried(&script, &mut gets);
        assert_eq!(value(&all[1][0]), value(&status("t", "failed")));
        script.say(&[&progress(&upstream, 8)]);
        expect_nothing(&script, &mut gets);
    });
}

/// A session without any stream is told the last word about each of its tasks when it opens one.
#[test]
fn last_status_of_each_task_is_told_when_a_stream_opens() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        // On every shard one that shows that the server's words have been taken in.
        let others: Vec<Session> = (0..6).map(|_| Session::open(&gateway)).collect();
        let mut streams: Vec<Stream> = others
            .iter()
            .map(|session| Stream::open(&gateway, session))
            .collect();
        own(&gateway, &session, "t1");
        own(&gateway, &session, "t2");
        own(&gateway, &others[0], "foreign");
        script.say(&[
            &status("t1", "input_required"),
            &status("t2", "working"),
            &status("t1", "working"),
            &status("t1", "completed"),
        ]);
        expect_nothing(&script, &mut streams);
        let mut stream = Stream::open(&gateway, &session);
        let mut told = carried_by(&script, &mut stream);
        told.retain(|message| *message != support::stream::BARRIER);
        let mut told: Vec<String> = told.iter().map(|one| value(one).to_string()).collect();
        told.sort();
        let mut expected =
            [status("t1", "completed"), status("t2", "working")].map(|one| value(&one).to_string());
        expected.sort();
        assert_eq!(told, expected);
    });
}

/// A status of a task that is nobody's is nobody's.
#[test]
fn status_of_an_unknown_task_is_dropped_and_counted() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &metrics::FLAGS);
        let metrics = Metrics::of(&gateway);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &session);
        own(&gateway, &session, "t");
        script.say(&[
            &status("never", "working"),
            &status("T", "working"),
            &status("t ", "completed"),
        ]);
        expect_nothing(&script, &mut [&mut stream]);
        if layout.shards == 1 {
            // With more of them none can know that no other has the task.
            metrics.wait_for_drops("task", 3);
        }
        script.say(&[
            r#"{"jsonrpc":"2.0","method":"notifications/tasks/status"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"status":"working"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":5}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"t","taskId":"t","status":"completed"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":["t"]}"#,
        ]);
        expect_nothing(&script, &mut [&mut stream]);
        script.say(&[&status("t", "working")]);
        assert_eq!(value(&stream.message()), value(&status("t", "working")));
    });
}

/// A result may take hours; the time-out of silent calls is not for it.
#[test]
fn waiting_for_a_result_does_not_time_out() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &["--request-timeout", "500ms"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        own(&gateway, &session, "t");
        script.hold_method("tasks/result", "r");
        let mut result = script.hold_request(&about(&session, "1", "tasks/result", "t"), "r");
        // Calls that began later time out before: three times over.
        for round in 0..3 {
            let hold = session.call(
                "2",
                "hold",
                &json!({ "key": round.to_string() }).to_string(),
            );
            let response = gateway.ask(&hold);
            let error = response.expect_error(200, -32603, Some("2"));
            assert_eq!(error["data"]["reason"], "timeout", "{response}");
        }
        assert!(!result.has_something());
        script.release("r");
        assert_eq!(result.response().result()["released"], "r");
    });
}

// --- The end of tasks.

/// What a session leaves behind goes on costing the server until it is told; what has ended is left alone.
#[test]
fn end_of_the_session_cancels_its_tasks_that_are_not_over() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--session-ttl", "1500ms"]);
        let script = Script::new(&gateway);
        let (session, silent) = (Session::open(&gateway), Session::open(&gateway));
        let other = Session::open(&gateway);
        let mut stream = Stream::open(&gateway, &other);
        own(&gateway, &other, "kept");
        for task in [
            "told",
            "seen",
            "cancelled",
            "running",
            "waiting",
            "answered",
            "forgotten",
        ] {
            own(&gateway, &session, task);
        }
        script.say(&[
            &status("told", "completed"),
            &status("waiting", "input_required"),
        ]);
        script.answer_method("tasks/get", &task("seen", "failed"));
        let get = about(&session, "1", "tasks/get", "seen");
        assert_eq!(gateway.ask(&get).result()["status"], "failed");
        script.answer_method("tasks/cancel", &task("cancelled", "cancelled"));
        let cancel = about(&session, "2", "tasks/cancel", "cancelled");
        assert_eq!(gateway.ask(&cancel).result()["status"], "cancelled");
        // A result ends a task, and so does a server that does not know it any more.
        let result = about(&session, "3", "tasks/result", "answered");
        assert!(gateway.ask(&result).result().is_object());
        let error = json!({"code": -32602, "message": "no such task"});
        script.rule(&json!({"method": "tasks/get", "error": error}));
        let get = gateway.ask(&about(&session, "4", "tasks/get", "forgotten"));
        get.expect_error(200, -32602, Some("4"));
        // The status of `told` is on its way to the session's shard.
        expect_nothing(&script, &mut [&mut stream]);
        let ping = session.post(support::mcp::ping_body("3"));
        assert_eq!(gateway.ask(&ping).status, 200);
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        wait_cancelled(&script, &["cancelled", "running", "waiting"]);
        // The same when it goes without a word.
        own(&gateway, &silent, "silent");
        wait_cancelled(&script, &["cancelled", "running", "silent", "waiting"]);
        script.say(&[&status("kept", "working")]);
        assert_eq!(value(&stream.message()), value(&status("kept", "working")));
    });
}

/// A task that is made for a call that nobody waits for any more is nobody's: it is cancelled.
#[test]
fn task_of_a_call_that_is_over_is_cancelled() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--request-timeout", "2s"]);
        let script = Script::new(&gateway);
        let (session, ending) = (Session::open(&gateway), Session::open(&gateway));
        let hold = |session: &Session, id: &str, key: &str| {
            let params = format!(r#"{{"name":"hold","arguments":{{"key":"{key}"}},"task":{{}}}}"#);
            let request = session.post(request_body(id, "tools/call", &params));
            script.hold_request(&request, key)
        };
        let make = |key: &str| script.release_with(key, &created(&format!("t-{key}"), "working"));
        let mut cancelled = hold(&session, "1", "cancelled");
        assert_eq!(gateway.ask(&session.cancel("1")).status, 202);
        cancelled.response();
        make("cancelled");
        wait_cancelled(&script, &["t-cancelled"]);
        let mut ended = hold(&ending, "1", "ended");
        assert_eq!(gateway.ask(&ending.delete()).status, 204);
        ended.response();
        make("ended");
        wait_cancelled(&script, &["t-cancelled", "t-ended"]);
        let mut late = hold(&session, "2", "late");
        let response = late.response();
        let error = response.expect_error(200, -32603, Some("2"));
        assert_eq!(error["data"]["reason"], "timeout", "{response}");
        make("late");
        wait_cancelled(&script, &["t-cancelled", "t-ended", "t-late"]);
        // It was never the session's.
        let get = gateway.ask(&about(&session, "3", "tasks/get", "t-cancelled"));
        get.expect_error(200, -32602, Some("3"));
        // One whose result is no task needs no cancel, nor one that is over at once.
        let mut plain = hold(&session, "4", "plain");
        assert_eq!(gateway.ask(&session.cancel("4")).status, 202);
        plain.response();
        script.release("plain");
        let echo = gateway.ask(&session.call("5", "echo", "{}"));
        assert_eq!(echo.status, 200, "{echo}");
        assert_eq!(asked(&script, "tasks/cancel").len(), 3);
    });
}

/// A client that has left its call has a task all the same: its session can find it.
#[test]
fn task_of_a_client_that_has_left_is_its_sessions() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let params = r#"{"name":"hold","arguments":{"key":"k"},"task":{}}"#;
        let request = session.post(request_body("1", "tools/call", params));
        script.hold_request(&request, "k").reset();
        script.release_with("k", &created("t", "working"));
        script.answer_method("tasks/get", &task("t", "working"));
        wait_until("the session has the task", || {
            let response = gateway.ask(&about(&session, "2", "tasks/get", "t"));
            response.message()["result"].is_object()
        });
        assert!(asked(&script, "tasks/cancel").is_empty());
    });
}

/// A new server knows nothing of the old one's tasks, and a name that comes again is another task.
#[test]
fn death_of_the_server_is_the_end_of_all_tasks() {
    on_every_way(|layout| {
        let life = Life::new();
        let gateway = life.start(layout, &[], &[], &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        own(&gateway, &session, "t");
        script.hold_method("tasks/result", "r");
        let mut waiting = script.hold_request(&about(&session, "1", "tasks/result", "t"), "r");
        gateway.ask(&other.call("1", "exit", r#"{"code":1}"#));
        let response = waiting.response();
        let error = response.expect_error(200, -32603, Some("1"));
        assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
        wait_until("the server answers again", || {
            let answer = gateway.ask(&other.call("2", "echo", "{}")).message();
            answer["result"].is_object()
        });
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let response = gateway.ask(&about(&session, "2", method, "t"));
            response.expect_error(200, -32602, Some("2"));
        }
        // The name is free for who gets it next.
        own(&gateway, &other, "t");
        let foreign = gateway.ask(&about(&session, "3", "tasks/get", "t"));
        foreign.expect_error(200, -32602, Some("3"));
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        assert!(
            gateway
                .ask(&about(&other, "4", "tasks/get", "t"))
                .result()
                .is_object()
        );
        assert!(asked(&script, "tasks/cancel").is_empty());
    });
}

/// Tasks cost the server: over the limit none is asked for, and one that is over makes room.
#[test]
fn tasks_over_the_sessions_limit_are_overloaded() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--max-tasks-per-session", "2"]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let refused = |response: &Response| {
            let error = response.expect_error(200, -32603, Some("9"));
            assert_eq!(error["data"]["reason"], "overloaded", "{response}");
        };
        own(&gateway, &session, "t1");
        own(&gateway, &session, "t2");
        refused(&gateway.ask(&create(&session, "9", "t3")));
        let made = script.received("\"tools/call\"").len();
        assert_eq!(made, 2, "the server was asked for one too many");
        // Other calls, and other sessions, have room.
        let echo = gateway.ask(&session.call("1", "echo", r#"{"message":"m"}"#));
        assert_eq!(echo.result()["content"][0]["text"], "m");
        own(&gateway, &other, "t3");
        // Over by the server's word, by what the client was shown, by a cancel.
        script.say(&[&status("t1", "completed")]);
        wait_until("the place is free", || {
            let response = gateway.ask(&create(&session, "9", "t4"));
            response.message()["result"].is_object()
        });
        refused(&gateway.ask(&create(&session, "9", "t5")));
        script.answer_method("tasks/get", &task("t2", "cancelled"));
        gateway
            .ask(&about(&session, "1", "tasks/get", "t2"))
            .result();
        own(&gateway, &session, "t5");
        refused(&gateway.ask(&create(&session, "9", "t6")));
        script.answer_method("tasks/cancel", &task("t4", "cancelled"));
        gateway
            .ask(&about(&session, "1", "tasks/cancel", "t4"))
            .result();
        own(&gateway, &session, "t6");
        // A task that was over when it was made takes none.
        script.say(&[&status("t6", "failed")]);
        wait_until("the place is free", || {
            let result = hex(created("done", "completed").as_bytes());
            let params =
                format!(r#"{{"name":"result","arguments":{{"hex":"{result}"}},"task":{{}}}}"#);
            let request = session.post(request_body("9", "tools/call", &params));
            gateway.ask(&request).message()["result"].is_object()
        });
        own(&gateway, &session, "t7");
        refused(&gateway.ask(&create(&session, "9", "t8")));
    });
}

/// A call that only looks like a task's, and a server that answers otherwise than asked, make no task.
#[test]
fn only_a_task_that_was_asked_for_is_a_task() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let (session, other) = (Session::open(&gateway), Session::open(&gateway));
        let result = hex(created("unasked", "working").as_bytes());
        let unasked = session.call("1", "result", &json!({ "hex": result }).to_string());
        assert_eq!(gateway.ask(&unasked).result()["task"]["taskId"], "unasked");
        let get = gateway.ask(&about(&session, "2", "tasks/get", "unasked"));
        get.expect_error(200, -32602, Some("2"));
        for odd in [
            r#"{"task":null}"#,
            r#"{"task":{"taskId":5}}"#,
            r#"{"task":{"taskId":""}}"#,
            r#"{"task":{"taskId":"odd","taskId":"odd2"}}"#,
            r#"{"task":{"taskId":"odd"},"task":{"taskId":"odd2"}}"#,
            r#"{"task":["odd"]}"#,
            r#"{"content":[]}"#,
            "[]",
        ] {
            let params = format!(
                r#"{{"name":"result","arguments":{{"hex":"{}"}},"task":{{}}}}"#,
                hex(odd.as_bytes())
            );
            let request = session.post(request_body("3", "tools/call", &params));
            // The answer is the server's, whatever it is.
            let response = gateway.ask(&request);
            assert_eq!(raw_member(&response.text(), "result").as_deref(), Some(odd));
            for name in ["", "odd", "odd2", "5"] {
                let get = gateway.ask(&about(&session, "4", "tasks/get", name));
                get.expect_error(200, -32602, Some("4"));
            }
        }
        // A server that gives one name twice must not open the first one's task to the second.
        own(&gateway, &session, "twice");
        let again = gateway.ask(&create(&other, "5", "twice"));
        assert_eq!(again.status, 200, "{again}");
        script.answer_method("tasks/get", &task("twice", "working"));
        let mine = gateway.ask(&about(&session, "6", "tasks/get", "twice"));
        assert!(mine.message()["result"].is_object(), "{mine}");
        assert_eq!(gateway.ask(&session.delete()).status, 204);
    });
}

/// Batches, streams and JSON are all the same to a task.
#[test]
fn task_can_be_made_over_a_stream() {
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let request = create(&session, "1", "t").set("Accept", SSE);
        let response = gateway.ask(&request);
        assert!(response.is_sse(), "{response}");
        assert_eq!(response.result()["task"]["taskId"], "t");
        script.answer_method("tasks/result", r#"{"content":[]}"#);
        let result = about(&session, "2", "tasks/result", "t").set("Accept", SSE);
        let mut connection: Raw = gateway.connect();
        let response = connection.ask(&result);
        assert_eq!(response.result(), json!({"content": []}));
        assert_eq!(gateway.ask(&session.delete()).status, 204);
    });
}
