use serde_json::{Value, json};

use super::*;
use crate::routing::bench::{Bench, code, digits, ended, message, reason, reasons, stream, woken};
use crate::routing::stream::Work;

const TASKS: &str = r#"{"tasks":{"list":{},"cancel":{},"requests":{}}}"#;
const TASK: &str = r#"{"task":{},"_meta":{"progressToken":"t"}}"#;

fn bench() -> Bench {
    Bench::with(TASKS)
}

fn made(task: &str, status: &str) -> String {
    format!(r#"{{"task":{{"taskId":"{task}","status":"{status}","ttl":1}}}}"#)
}

/// A session asks for a task, and gets this one.
fn create(bench: &mut Bench, session: SessionKey, task: &str) -> UpstreamId {
    let id = bench.begin(session, 1, "tools/call", TASK);
    match bench.result(id, &made(task, "working")) {
        Answered::Call(call) => assert_eq!(call.client_id.raw(), b"1"),
        other => panic!("{other:?}"),
    }
    bench.upstream();
    id
}

fn named(task: &str) -> String {
    format!(r#"{{"taskId":"{task}"}}"#)
}

/// A request about a task that is to be in flight then.
fn begin(bench: &mut Bench, session: SessionKey, method: &str, task: &str) -> UpstreamId {
    bench.begin(session, 2, method, &named(task))
}

fn is_known(bench: &mut Bench, session: SessionKey, task: &str) -> bool {
    match bench.ask(session, 8, "tasks/get", &named(task)) {
        Step::InFlight { .. } => {
            bench.cancel(session, 8);
            true
        }
        step => {
            assert_eq!(code(step), -32602);
            false
        }
    }
}

fn status(bench: &mut Bench, task: &str, status: &str) -> Option<TaskKey> {
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{{"taskId":"{task}","status":"{status}"}}}}"#
    );
    bench.state.task_status(line.as_bytes())
}

fn mark(bench: &mut Bench, task: TaskKey, news: TaskNews, frame: &str) -> Vec<Act> {
    let mut acts = Vec::new();
    let frame = frame.as_bytes().to_vec();
    assert!(bench.state.mark_task(task, news, frame, &mut acts));
    acts
}

/// The message with which a call is answered instead of the server's.
fn instead(answered: Answered) -> (Value, Outcome) {
    match answered {
        Answered::Instead {
            message, outcome, ..
        } => (serde_json::from_slice(&message).unwrap(), outcome),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_task_is_its_sessions_alone() {
    let mut bench = bench();
    let (session, other) = (bench.session(), bench.session());
    create(&mut bench, session, "a");
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (1, 1));
    assert_eq!(bench.state.calls_in_flight(), 0, "its id is free");
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let id = begin(&mut bench, session, method, "a");
        let line = bench.upstream().remove(0);
        assert_eq!(line["id"].to_string(), digits(id));
        assert_eq!(line["params"], json!({"taskId": "a"}));
        bench.cancel(session, 2);
        bench.upstream();
        let foreign = message(bench.ask(other, 2, method, &named("a")));
        let unknown = message(bench.ask(other, 2, method, &named("never")));
        assert_eq!(foreign["error"]["code"], -32602);
        assert_eq!(foreign, unknown);
    }
    assert!(bench.upstream().is_empty());
}

#[test]
fn a_task_id_is_compared_as_it_is_meant() {
    let mut bench = bench();
    let session = bench.session();
    create(&mut bench, session, r"\u0061");
    begin(&mut bench, session, "tasks/get", r"a");
    assert!(!is_known(&mut bench, session, "A"));
}

#[test]
fn a_request_that_names_no_task_is_wrong() {
    let mut bench = bench();
    let session = bench.session();
    create(&mut bench, session, "7");
    for params in [
        "{}",
        r#"{"taskId":7}"#,
        r#"{"taskId":null}"#,
        r#"{"taskId":["7"]}"#,
    ] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            assert_eq!(code(bench.ask(session, 2, method, params)), -32602);
        }
    }
    assert_eq!(code(bench.ask(session, 2, "tasks/x", &named("7"))), -32601);
    assert!(bench.upstream().is_empty());
}

#[test]
fn tasks_are_offered_only_to_sessions_of_their_version() {
    let mut bench = bench();
    let session = bench.session_of(Version::V2025_06_18);
    for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
        assert_eq!(code(bench.ask(session, 1, method, &named("a"))), -32601);
    }
    assert_eq!(code(bench.ask(session, 1, "tools/call", TASK)), -32602);
    assert!(bench.upstream().is_empty());
}

#[test]
fn only_what_the_server_has_of_tasks_is_offered() {
    for (capabilities, offered) in [
        ("{}", [false; 3]),
        (r#"{"tasks":{}}"#, [true, false, false]),
        (r#"{"tasks":{"list":{}}}"#, [true, true, false]),
        (
            r#"{"tasks":{"cancel":{},"list":false}}"#,
            [true, false, true],
        ),
    ] {
        let mut bench = Bench::with(capabilities);
        let session = bench.session();
        let [task, list, cancel] = offered;
        match bench.ask(session, 1, "tools/call", TASK) {
            Step::InFlight { id, .. } if task => {
                bench.result(id, &made("a", "working"));
            }
            step => assert!(!task && code(step) == -32602, "{capabilities}"),
        }
        bench.upstream();
        for (method, offered) in [
            ("tasks/get", task),
            ("tasks/list", list),
            ("tasks/cancel", cancel),
        ] {
            match bench.ask(session, 2, method, &named("a")) {
                Step::InFlight { .. } => assert!(offered, "{method} {capabilities}"),
                step => assert!(!offered && code(step) == -32601, "{method} {capabilities}"),
            }
            bench.cancel(session, 2);
        }
    }
}

#[test]
fn an_answer_without_a_task_makes_none() {
    let mut bench = bench();
    let session = bench.session();
    for result in [
        r#"{"content":[]}"#,
        r#"{"task":{"status":"working"}}"#,
        "[]",
    ] {
        let id = bench.begin(session, 1, "tools/call", TASK);
        assert!(matches!(bench.result(id, result), Answered::Call(_)));
    }
    let id = bench.begin(session, 1, "tools/call", TASK);
    assert!(matches!(bench.error(id, -32603), Answered::Call(_)));
    let id = bench.begin(session, 1, "tools/call", "{}");
    let unasked = bench.result(id, &made("a", "working"));
    assert!(matches!(unasked, Answered::Call(_)));
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (0, 0));
    assert_eq!(bench.state.calls_in_flight(), 0);
    assert!(!is_known(&mut bench, session, "a"));
}

#[test]
fn an_id_that_another_session_has_is_refused_and_its_owner_keeps_it() {
    let mut bench = bench();
    let (session, other) = (bench.session(), bench.session());
    let slot = create(&mut bench, session, "a");
    let id = bench.begin(other, 1, "tools/call", TASK);
    let (message, outcome) = instead(bench.result(id, &made("a", "working")));
    assert_eq!((&message["id"], outcome), (&json!(1), Outcome::Error));
    assert_eq!(message["error"]["code"], -32603);
    assert!(!message.to_string().contains(r#""a""#));
    assert!(
        bench.notes().is_empty(),
        "the owner's task is not cancelled"
    );
    assert!(!is_known(&mut bench, other, "a"));
    assert!(is_known(&mut bench, session, "a"));
    assert!(bench.progressed(slot) && !bench.progressed(id));
    assert_eq!(bench.state.calls_in_flight(), 0);
}

#[test]
fn an_id_that_the_server_uses_again_is_the_sessions_new_task() {
    let mut bench = bench();
    let session = bench.session();
    let former = create(&mut bench, session, "a");
    let task = status(&mut bench, "a", "working").unwrap();
    mark(&mut bench, task, TaskNews::Status, "former");
    let slot = create(&mut bench, session, "a");
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (1, 1));
    assert!(!bench.progressed(former) && bench.progressed(slot));
    bench.open_stream(session, stream(1));
    assert_eq!(bench.stream_work(session, stream(1)).0, Work::Rest);
}

#[test]
fn a_session_may_have_only_so_many_tasks_that_are_not_over() {
    let mut bench = bench();
    let (session, other) = (bench.session(), bench.session());
    create(&mut bench, session, "a");
    create(&mut bench, session, "b");
    let step = bench.ask(session, 1, "tools/call", TASK);
    assert_eq!(reason(step), Reason::Overloaded);
    assert!(bench.upstream().is_empty());
    create(&mut bench, other, "c");
    status(&mut bench, "a", "completed").unwrap();
    create(&mut bench, session, "d");
    status(&mut bench, "b", "completed").unwrap();
    create(&mut bench, session, "e");
    assert!(
        is_known(&mut bench, session, "a"),
        "as many are kept that are over"
    );
    status(&mut bench, "d", "completed").unwrap();
    create(&mut bench, session, "f");
    assert!(!is_known(&mut bench, session, "a"), "forgotten for it");
    assert!(is_known(&mut bench, session, "b"));
    assert!(bench.notes().is_empty());
}

#[test]
fn a_task_over_the_limit_is_cancelled_and_its_call_refused() {
    let mut bench = bench();
    let session = bench.session();
    let calls = [1, 2, 3].map(|id| bench.begin(session, id, "tools/call", TASK));
    bench.result(calls[0], &made("a", "working"));
    bench.result(calls[1], &made("b", "working"));
    let (message, outcome) = instead(bench.result(calls[2], &made("c", "working")));
    assert_eq!(message["id"], 3);
    assert_eq!(message["error"]["data"]["reason"], "overloaded");
    assert_eq!(outcome, Outcome::Overloaded);
    assert_eq!(bench.notes(), ["cancel c"]);
    assert!(!is_known(&mut bench, session, "c"));
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (2, 2));
}

#[test]
fn tasks_of_all_sessions_keep_no_more_slots_than_there_are_calls() {
    let mut bench = bench();
    for n in 0..9 {
        let session = bench.session();
        create(&mut bench, session, &n.to_string());
    }
    assert_eq!(bench.state.task_slots(), 9);
    let session = SessionKey(0);
    let step = bench.ask(session, 1, "tools/call", TASK);
    assert_eq!(reason(step), Reason::Overloaded);
    assert!(bench.upstream().is_empty());
    let id = bench.begin(session, 1, "tools/call", "{}");
    assert!(bench.answered(id).is_some(), "other calls have room");
    status(&mut bench, "5", "failed").unwrap();
    create(&mut bench, session, "more");
}

#[test]
fn a_task_that_is_made_beyond_the_slots_is_cancelled() {
    let mut bench = bench();
    let late = bench.session();
    let id = bench.begin(late, 1, "tools/call", TASK);
    for n in 0..8 {
        let session = bench.session();
        create(&mut bench, session, &n.to_string());
    }
    create(&mut bench, SessionKey(1), "8");
    let (_, outcome) = instead(bench.result(id, &made("late", "working")));
    assert_eq!(outcome, Outcome::Overloaded);
    assert_eq!(bench.notes(), ["cancel late"]);
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (9, 9));
}

#[test]
fn the_end_of_a_task_frees_its_slot_however_it_is_learnt() {
    type End = fn(&mut Bench, SessionKey);
    let ends: [(&str, End); 10] = [
        ("completed status", |bench, _| {
            assert!(status(bench, "a", "completed").is_some());
        }),
        ("failed status", |bench, _| {
            assert!(status(bench, "a", "failed").is_some());
        }),
        ("cancelled status", |bench, _| {
            assert!(status(bench, "a", "cancelled").is_some());
        }),
        ("tasks/get", |bench, session| {
            let id = begin(bench, session, "tasks/get", "a");
            let answer = bench.result(id, r#"{"taskId":"a","status":"failed"}"#);
            assert!(matches!(answer, Answered::Call(_)));
        }),
        ("tasks/cancel", |bench, session| {
            let id = begin(bench, session, "tasks/cancel", "a");
            let answer = bench.result(id, r#"{"taskId":"a","status":"cancelled"}"#);
            assert!(matches!(answer, Answered::Call(_)));
        }),
        ("tasks/result", |bench, session| {
            let id = begin(bench, session, "tasks/result", "a");
            let answer = bench.result(id, r#"{"content":[]}"#);
            assert!(matches!(answer, Answered::Call(_)));
        }),
        ("an error of tasks/result", |bench, session| {
            let id = begin(bench, session, "tasks/result", "a");
            assert!(matches!(bench.error(id, 7), Answered::Call(_)));
        }),
        (
            "tasks/get of one that the server has forgotten",
            |bench, session| {
                let id = begin(bench, session, "tasks/get", "a");
                assert!(matches!(bench.error(id, -32602), Answered::Call(_)));
            },
        ),
        ("tasks/result that cannot be read", |bench, session| {
            let id = begin(bench, session, "tasks/result", "a");
            assert!(bench.state.unreadable_answer(id).is_some());
        }),
        ("a second tasks/result", |bench, session| {
            let first = begin(bench, session, "tasks/result", "a");
            let second = bench.begin(session, 3, "tasks/result", &named("a"));
            bench.result(first, "{}");
            bench.result(second, "{}");
        }),
    ];
    for (how, end) in ends {
        let mut bench = bench();
        let session = bench.session();
        let slot = create(&mut bench, session, "a");
        end(&mut bench, session);
        assert_eq!(
            (bench.state.tasks(), bench.state.task_slots()),
            (1, 0),
            "{how}"
        );
        assert_eq!(bench.state.calls_in_flight(), 0, "{how}");
        assert!(!bench.progressed(slot), "{how}");
        assert!(is_known(&mut bench, session, "a"), "{how}");
        bench.end(session);
        assert!(bench.notes().is_empty(), "{how}");
        assert_eq!(bench.state.tasks(), 0, "{how}");
    }
}

#[test]
fn a_task_lives_on_through_what_does_not_say_that_it_is_over() {
    let mut bench = bench();
    let session = bench.session();
    let slot = create(&mut bench, session, "a");
    for word in ["working", "input_required", "Completed", "x"] {
        assert!(status(&mut bench, "a", word).is_some());
        for method in ["tasks/get", "tasks/cancel"] {
            let id = begin(&mut bench, session, method, "a");
            bench.result(id, &format!(r#"{{"taskId":"a","status":"{word}"}}"#));
        }
    }
    let id = begin(&mut bench, session, "tasks/get", "a");
    bench.error(id, -32603);
    let id = begin(&mut bench, session, "tasks/get", "a");
    assert!(bench.state.unreadable_answer(id).is_some());
    let id = begin(&mut bench, session, "tasks/result", "a");
    bench.cancel(session, 2);
    assert!(matches!(bench.result(id, "{}"), Answered::Late));
    assert_eq!(bench.state.task_slots(), 1);
    assert!(bench.progressed(slot));
}

#[test]
fn a_task_that_is_over_when_it_is_made_keeps_no_slot() {
    let mut bench = bench();
    let session = bench.session();
    for task in ["a", "b", "c", "d", "e"] {
        let id = bench.begin(session, 1, "tools/call", TASK);
        let answer = bench.result(id, &made(task, "completed"));
        assert!(matches!(answer, Answered::Call(_)));
        assert!(!bench.progressed(id));
    }
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (4, 0));
    assert_eq!(bench.state.calls_in_flight(), 0);
    assert!(
        !is_known(&mut bench, session, "a"),
        "the oldest is forgotten"
    );
    assert!(is_known(&mut bench, session, "b"));
}

#[test]
fn a_list_shows_the_session_its_own_tasks_and_ringways_cursor() {
    let mut bench = bench();
    let (session, other) = (bench.session(), bench.session());
    create(&mut bench, session, "a");
    create(&mut bench, other, "b");
    let id = bench.begin(session, 2, "tasks/list", "{}");
    assert_eq!(bench.upstream()[0]["params"], json!({}));
    let list = r#"{"tasks":[{"taskId":"a","x":1},{"taskId":"b","secret":2},{"taskId":"c"}],"nextCursor":"theirs"}"#;
    let (shown, outcome) = instead(bench.result(id, list));
    assert_eq!((&shown["id"], outcome), (&json!(2), Outcome::Ok));
    assert_eq!(shown["result"]["tasks"], json!([{"taskId": "a", "x": 1}]));
    let cursor = shown["result"]["nextCursor"].as_str().unwrap().to_owned();
    assert_ne!(cursor, "theirs");

    let next = format!(r#"{{"cursor":"{cursor}","_meta":{{"x":1}}}}"#);
    bench.begin(session, 2, "tasks/list", &next);
    let line = bench.upstream().remove(0);
    assert_eq!(
        line["params"],
        json!({"cursor": "theirs", "_meta": {"x": 1}})
    );
    assert_eq!(code(bench.ask(other, 2, "tasks/list", &next)), -32602);
    for cursor in [r#""theirs""#, r#""""#, "7", "null", r#""tasks-99""#] {
        let params = format!(r#"{{"cursor":{cursor}}}"#);
        assert_eq!(code(bench.ask(other, 3, "tasks/list", &params)), -32602);
    }
    assert!(bench.upstream().is_empty());
}

#[test]
fn two_pages_have_two_cursors() {
    let mut bench = bench();
    let session = bench.session();
    let mut cursors = Vec::new();
    for theirs in ["x", "y"] {
        let id = bench.begin(session, 1, "tasks/list", "{}");
        let list = format!(r#"{{"tasks":[],"nextCursor":"{theirs}"}}"#);
        let (shown, _) = instead(bench.result(id, &list));
        cursors.push(shown["result"]["nextCursor"].as_str().unwrap().to_owned());
    }
    bench.upstream();
    for (cursor, theirs) in cursors.iter().zip(["x", "y"]) {
        let params = format!(r#"{{"cursor":"{cursor}"}}"#);
        bench.begin(session, 1, "tasks/list", &params);
        assert_eq!(bench.upstream()[0]["params"]["cursor"], theirs);
        bench.cancel(session, 1);
        bench.upstream();
    }
}

#[test]
fn a_list_that_cannot_be_read_shows_nothing_of_it() {
    let mut bench = bench();
    let session = bench.session();
    for list in [r#"{"secret":1}"#, r#"{"tasks":"secret"}"#, r#"["secret"]"#] {
        let id = bench.begin(session, 1, "tasks/list", "{}");
        let (message, outcome) = instead(bench.result(id, list));
        assert_eq!((&message["id"], outcome), (&json!(1), Outcome::Error));
        assert_eq!(message["error"]["code"], -32603);
        assert!(!message.to_string().contains("secret"));
    }
    let id = bench.begin(session, 1, "tasks/list", "{}");
    assert!(matches!(bench.error(id, -32603), Answered::Call(_)));
}

#[test]
fn progress_of_a_task_comes_under_the_token_of_the_call_that_made_it() {
    let mut bench = bench();
    let session = bench.session();
    let slot = create(&mut bench, session, "a");
    let task = status(&mut bench, "a", "working").unwrap();
    match bench.state.progressed(slot, bench.now) {
        crate::routing::arrival::Progressed::Task { task: known, token } => {
            assert_eq!((known, token), (task, &br#""t""#[..]));
        }
        other => panic!("{other:?}"),
    }
    let id = bench.begin(session, 1, "tools/call", r#"{"task":{}}"#);
    bench.result(id, &made("silent", "working"));
    assert!(!bench.progressed(id), "its client asked for none");
    assert!(matches!(bench.result(slot, "{}"), Answered::Late));
    assert_eq!(bench.state.task_slots(), 2);
}

#[test]
fn a_task_is_not_timed_out_like_the_call_that_made_it() {
    let mut bench = bench();
    let session = bench.session();
    let slot = create(&mut bench, session, "a");
    assert!(bench.tick(9_000).is_empty());
    assert!(bench.progressed(slot));
    assert!(bench.upstream().is_empty());
}

#[test]
fn a_call_that_waits_for_a_task_may_be_silent_but_not_for_ever() {
    let mut bench = bench();
    let session = bench.session();
    create(&mut bench, session, "a");
    bench.begin(session, 2, "tasks/result", &named("a"));
    assert!(bench.tick(2_900).is_empty());
    assert_eq!(reasons(&bench.tick(3_200)), [Reason::Timeout]);
    begin(&mut bench, session, "tasks/get", "a");
    assert_eq!(reasons(&bench.tick(4_400)), [Reason::Timeout]);
}

#[test]
fn a_session_that_ends_cancels_its_tasks_that_are_not_over() {
    let mut bench = bench();
    let (session, other) = (bench.session(), bench.session());
    create(&mut bench, session, "over");
    create(&mut bench, session, "open");
    create(&mut bench, other, "foreign");
    status(&mut bench, "over", "completed");
    bench.end(session);
    assert_eq!(bench.notes(), ["cancel open"]);
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (1, 1));
    assert!(status(&mut bench, "open", "working").is_none());
    let next = bench.session();
    assert_eq!(next, session, "the place is used again");
    assert!(!is_known(&mut bench, next, "open"));
    assert!(is_known(&mut bench, other, "foreign"));
}

#[test]
fn a_server_without_cancel_is_not_asked_to() {
    let mut bench = Bench::with(r#"{"tasks":{"list":{}}}"#);
    let session = bench.session();
    create(&mut bench, session, "a");
    bench.end(session);
    assert!(bench.notes().is_empty());
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (0, 0));
}

#[test]
fn a_task_whose_call_ended_before_its_answer_is_cancelled_once() {
    let ends: [fn(&mut Bench, SessionKey) -> Vec<Reason>; 3] = [
        |bench, session| reasons(&bench.cancel(session, 1)),
        |bench, _| reasons(&bench.tick(1_200)),
        |bench, session| reasons(&ended(bench.end(session))),
    ];
    let expected = [Reason::Cancelled, Reason::Timeout, Reason::SessionEnded];
    for (end, expected) in ends.into_iter().zip(expected) {
        let mut bench = bench();
        let session = bench.session();
        let id = bench.begin(session, 1, "tools/call", TASK);
        assert_eq!(end(&mut bench, session), [expected]);
        assert!(bench.notes().is_empty(), "its name is not known yet");
        for notes in [&["cancel a"][..], &[]] {
            let answer = bench.result(id, &made("a", "working"));
            assert!(matches!(answer, Answered::Late));
            assert_eq!(bench.notes(), notes, "{expected:?}");
        }
        assert_eq!((bench.state.tasks(), bench.state.task_slots()), (0, 0));
    }
}

#[test]
fn a_late_answer_that_leaves_no_task_behind_cancels_nothing() {
    let mut bench = bench();
    let (session, other) = (bench.session(), bench.session());
    create(&mut bench, other, "foreign");
    for result in [
        made("a", "completed"),
        made("foreign", "working"),
        r#"{"content":[]}"#.into(),
    ] {
        let id = bench.begin(session, 1, "tools/call", TASK);
        bench.cancel(session, 1);
        assert!(matches!(bench.result(id, &result), Answered::Late));
    }
    let id = bench.begin(session, 1, "tools/call", TASK);
    bench.cancel(session, 1);
    assert!(matches!(bench.error(id, -32603), Answered::Late));
    let id = bench.begin(session, 1, "tools/call", "{}");
    bench.cancel(session, 1);
    bench.result(id, &made("a", "working"));
    bench.block();
    let unsent = bench.begin(session, 1, "tools/call", TASK);
    bench.cancel(session, 1);
    bench.result(unsent, &made("a", "working"));
    assert!(bench.notes().is_empty());
    assert!(is_known(&mut bench, other, "foreign"));
}

#[test]
fn a_server_that_dies_takes_all_tasks_along() {
    let mut bench = bench();
    let session = bench.session();
    let slot = create(&mut bench, session, "a");
    create(&mut bench, session, "over");
    let over = status(&mut bench, "over", "completed").unwrap();
    let open = status(&mut bench, "a", "working").unwrap();
    let id = bench.begin(session, 2, "tasks/list", "{}");
    let (shown, _) = instead(bench.result(id, r#"{"tasks":[],"nextCursor":"x"}"#));
    let cursor = shown["result"]["nextCursor"].clone();
    let orphan = bench.begin(session, 3, "tools/call", TASK);
    bench.cancel(session, 3);
    bench.begin(session, 2, "tasks/result", &named("a"));
    bench.open_stream(session, stream(1));
    mark(&mut bench, over, TaskNews::Status, "written");
    bench.stream_work(session, stream(1));
    mark(&mut bench, open, TaskNews::Progress, "marked");
    bench.state.notes.push(Note::CancelTask("z".into()));

    assert_eq!(reasons(&bench.down()), [Reason::UpstreamDown]);
    assert_eq!((bench.state.tasks(), bench.state.task_slots()), (0, 0));
    assert!(!is_known(&mut bench, session, "a"));
    bench.up(2, TASKS);
    bench.stream_wrote(session, stream(1), false);
    assert_eq!(bench.stream_work(session, stream(1)).0, Work::Rest);
    assert!(!bench.progressed(slot));
    assert!(status(&mut bench, "a", "working").is_none());
    assert!(!is_known(&mut bench, session, "over"));
    let params = format!(r#"{{"cursor":{cursor}}}"#);
    assert_eq!(code(bench.ask(session, 2, "tasks/list", &params)), -32602);
    bench.result(orphan, &made("b", "working"));
    assert!(bench.notes().is_empty());
    create(&mut bench, session, "a");
    create(&mut bench, session, "b");
}

#[test]
fn news_of_a_task_go_to_the_calls_that_wait_for_it_the_newest_first() {
    let mut bench = bench();
    let session = bench.session();
    create(&mut bench, session, "a");
    create(&mut bench, session, "b");
    let task = status(&mut bench, "a", "working").unwrap();
    assert!(bench.state.task_results(task).is_empty());
    let wait = |bench: &mut Bench, id, task| {
        let id = bench.begin(session, id, "tasks/result", &named(task));
        let call = bench.state.calls.get_mut(id).unwrap();
        call.reply_to.exchange = id.slot();
        assert!(call.may_stream());
        id
    };
    let first = wait(&mut bench, 2, "a");
    let second = wait(&mut bench, 3, "a");
    wait(&mut bench, 4, "b");
    let waiting = |bench: &Bench| -> Vec<u32> {
        let results = bench.state.task_results(task);
        results.iter().map(|reply_to| reply_to.exchange).collect()
    };
    assert_eq!(waiting(&bench), [second.slot(), first.slot()]);
    bench.cancel(session, 3);
    assert_eq!(waiting(&bench), [first.slot()]);
    let third = wait(&mut bench, 3, "a");
    assert_eq!(waiting(&bench), [third.slot(), first.slot()]);
    let known = bench.state.tasks.get(task).unwrap();
    assert_eq!(known.results.len(), 2, "those that ended do not pile up");
    status(&mut bench, "a", "completed");
    assert_eq!(waiting(&bench).len(), 2, "they are answered yet");
    bench.end(session);
    assert!(waiting(&bench).is_empty());
}

#[test]
fn news_of_a_task_are_marked_for_its_sessions_stream_the_last_of_each_kind() {
    let mut bench = bench();
    let (session, other) = (bench.session(), bench.session());
    create(&mut bench, session, "a");
    let task = status(&mut bench, "a", "working").unwrap();
    bench.open_stream(session, stream(1));
    bench.open_stream(other, stream(2));
    let acts = mark(&mut bench, task, TaskNews::Status, "s1.");
    assert_eq!(woken(acts), [stream(1)]);
    for (news, frame) in [
        (TaskNews::Progress, "p1."),
        (TaskNews::Status, "s2."),
        (TaskNews::Progress, "p2."),
    ] {
        assert!(mark(&mut bench, task, news, frame).is_empty());
    }
    let (work, events) = bench.stream_work(session, stream(1));
    assert_eq!((work, &*events), (Work::Write(2), "s2.p2."));
    assert_eq!(bench.stream_work(other, stream(2)).0, Work::Rest);
}

#[test]
fn news_too_long_or_of_a_task_that_is_no_more_are_not_kept() {
    let mut bench = bench();
    let session = bench.session();
    create(&mut bench, session, "a");
    let task = status(&mut bench, "a", "working").unwrap();
    let mut acts = Vec::new();
    for (bytes, is_kept) in [
        (TASK_NEWS_BYTES_MAX, true),
        (TASK_NEWS_BYTES_MAX + 1, false),
    ] {
        let frame = vec![b'x'; bytes];
        let kept = bench
            .state
            .mark_task(task, TaskNews::Status, frame, &mut acts);
        assert_eq!(kept, is_kept);
    }
    bench.end(session);
    let kept = bench
        .state
        .mark_task(task, TaskNews::Status, Vec::new(), &mut acts);
    assert!(!kept && acts.is_empty());
}

#[test]
fn tasks_that_come_and_go_do_not_pile_their_news_up() {
    let mut bench = bench();
    let session = bench.session();
    for n in 0..50 {
        let name = n.to_string();
        create(&mut bench, session, &name);
        let task = status(&mut bench, &name, "completed").unwrap();
        mark(&mut bench, task, TaskNews::Status, "x");
        mark(&mut bench, task, TaskNews::Progress, "y");
    }
    bench.open_stream(session, stream(1));
    assert_eq!(bench.stream_work(session, stream(1)).0, Work::Write(8));
    assert_eq!(bench.state.task_slots(), 0);
}

#[test]
fn a_status_that_names_no_known_task_is_nobodys() {
    let mut bench = bench();
    let session = bench.session();
    create(&mut bench, session, "a");
    assert!(status(&mut bench, "b", "completed").is_none());
    for params in [
        r#"{"status":"completed"}"#,
        r#"{"taskId":7,"status":"completed"}"#,
        r#"{"task":{"taskId":"a"},"status":"completed"}"#,
    ] {
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{params}}}"#
        );
        assert!(
            bench.state.task_status(line.as_bytes()).is_none(),
            "{params}"
        );
    }
    assert!(bench.state.task_status(b"{").is_none());
    let long = format!("working\",\"x\":\"{}", "x".repeat(TASK_ANSWER_BYTES_MAX));
    assert!(status(&mut bench, "a", &long).is_none());
    assert_eq!(bench.state.task_slots(), 1);
}

#[test]
fn a_task_that_is_over_when_it_is_made_needs_no_room() {
    let mut bench = bench();
    let session = bench.session();
    let calls = [1, 2, 3].map(|id| bench.begin(session, id, "tools/call", TASK));
    bench.result(calls[0], &made("a", "working"));
    bench.result(calls[1], &made("b", "working"));
    let answer = bench.result(calls[2], &made("c", "completed"));
    assert!(matches!(answer, Answered::Call(_)));
    assert!(bench.notes().is_empty());
    assert_eq!(bench.state.task_slots(), 2);
    for task in ["a", "b"] {
        assert!(is_known(&mut bench, session, task), "it is not over");
    }
}
