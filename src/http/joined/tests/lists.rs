//! Merged lists, and the log level: what several upstreams are asked at once.

use super::*;
use crate::limits::LIST_BYTES_MAX;

fn two() -> Bench {
    Bench::new(&[shared("one"), private("two")])
}

fn resources(uris: &[&str]) -> Value {
    let items: Vec<_> = uris
        .iter()
        .map(|uri| json!({"uri": uri, "name": "n"}))
        .collect();
    json!({ "resources": items })
}

#[test]
fn all_are_asked_at_once_and_stand_in_the_order_of_the_configuration() {
    for order in [["one", "two"], ["two", "one"]] {
        let bench = two();
        let session = bench.client();
        let call = bench.begin(session, 1, "tools/list", &json!({}));
        let asked: Vec<_> = ["one", "two"].map(|it| bench.server(it).one()).into();
        for name in order {
            assert!(bench.is_silent(&call));
            let place = usize::from(name == "two");
            bench
                .server(name)
                .result(&asked[place], tools(&["x", name]));
        }
        let answer = bench.answer(call);
        assert_eq!(
            names(&answer, "tools"),
            ["one-x", "one-one", "two-x", "two-two"]
        );
        assert_eq!(answer["id"], 1);
        assert!(answer["result"].get("nextCursor").is_none());
        bench.is_quiet();
    }
}

#[test]
fn each_kind_of_list_has_public_names() {
    let bench = two();
    let session = bench.client();
    let prompts = json!({"prompts": [{"name": "p"}]});
    let list = bench.list(
        session,
        1,
        "prompts/list",
        &[("one", prompts.clone()), ("two", prompts)],
    );
    assert_eq!(names(&list, "prompts"), ["one-p", "two-p"]);
    let uris = resources(&["file:///a"]);
    let list = bench.list(
        session,
        1,
        "resources/list",
        &[("one", uris.clone()), ("two", uris)],
    );
    assert_eq!(
        names(&list, "resources"),
        ["one-file:///a", "two-file:///a"]
    );
    assert_eq!(list["result"]["resources"][1]["name"], "two-n");
    let templates = json!({"resourceTemplates": [{"uriTemplate": "file:///{x}", "name": "n"}]});
    let answers = [("one", templates.clone()), ("two", templates)];
    let list = bench.list(session, 1, "resources/templates/list", &answers);
    assert_eq!(
        names(&list, "resourceTemplates"),
        ["one-file:///{x}", "two-file:///{x}"]
    );
    bench.is_quiet();
}

#[test]
fn paging_goes_on_until_every_list_has_ended_and_asks_only_those_that_have_more() {
    let bench = two();
    let session = bench.client();
    let page = |name: &str, cursor: Option<&str>| {
        let mut page = tools(&[name]);
        if let Some(cursor) = cursor {
            page["nextCursor"] = cursor.into();
        }
        page
    };
    let first = bench.list(
        session,
        1,
        "tools/list",
        &[("one", page("a", Some("\"c1\""))), ("two", page("a", None))],
    );
    assert_eq!(names(&first, "tools"), ["one-a", "two-a"]);
    let params = json!({"cursor": first["result"]["nextCursor"]});
    let call = bench.begin(session, 2, "tools/list", &params);
    let asked = bench.server("one").one();
    assert_eq!(asked.message["params"]["cursor"], "\"c1\"");
    assert!(bench.server("two").asked().is_empty());
    bench.server("one").result(&asked, page("b", Some("c2")));
    let second = bench.answer(call);
    assert_eq!(names(&second, "tools"), ["one-b"]);
    let params = json!({"cursor": second["result"]["nextCursor"]});
    let call = bench.begin(session, 3, "tools/list", &params);
    let asked = bench.server("one").one();
    assert_eq!(asked.message["params"]["cursor"], "c2");
    bench.server("one").result(&asked, page("c", None));
    let third = bench.answer(call);
    assert_eq!(names(&third, "tools"), ["one-c"]);
    assert!(third["result"].get("nextCursor").is_none());
    bench.is_quiet();
}

#[test]
fn a_cursor_of_another_list_session_or_making_is_refused_and_nobody_is_asked() {
    let bench = two();
    let (session, other) = (bench.client(), bench.client());
    let more = json!({"tools": [], "nextCursor": "c"});
    let first = bench.list(
        session,
        1,
        "tools/list",
        &[("one", more.clone()), ("two", more)],
    );
    let cursor = first["result"]["nextCursor"].as_str().unwrap();
    let asks = [
        (session, "prompts/list", json!(cursor)),
        (other, "tools/list", json!(cursor)),
        (session, "tools/list", json!(format!("{cursor}A"))),
        (session, "tools/list", json!("c")),
        (session, "tools/list", json!("")),
        (session, "tools/list", json!(7)),
        (session, "tools/list", json!({})),
    ];
    for (session, method, cursor) in asks {
        let answer = bench
            .ask(session, 2, method, &json!({ "cursor": cursor }))
            .now();
        assert_eq!(code(&answer), -32602, "{method} {cursor}");
    }
    for name in ["one", "two"] {
        assert!(bench.server(name).asked().is_empty());
    }
    let call = bench.begin(session, 3, "tools/list", &json!({"cursor": null}));
    for name in ["one", "two"] {
        bench
            .server(name)
            .result(&bench.server(name).one(), tools(&[]));
    }
    bench.answer(call);
}

#[test]
fn a_server_that_repeats_its_cursor_does_not_keep_its_client_asking_for_ever() {
    let bench = two();
    let session = bench.client();
    let mut cursor = Value::Null;
    for page in 0.. {
        assert!(page <= 1_000, "the list goes on");
        let call = bench.begin(session, 1, "tools/list", &json!({ "cursor": cursor }));
        for name in ["one", "two"] {
            for asked in bench.server(name).asked() {
                bench
                    .server(name)
                    .result(&asked, json!({"tools": [], "nextCursor": "same"}));
            }
        }
        cursor = bench.answer(call)["result"]["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    bench.is_quiet();
}

#[test]
fn one_that_answers_an_error_is_left_out_and_if_all_do_the_first_error_is_the_answer() {
    let bench = two();
    let session = bench.client();
    let call = bench.begin(session, 1, "tools/list", &json!({}));
    bench.server("one").error(&bench.server("one").one(), -1);
    bench
        .server("two")
        .result(&bench.server("two").one(), tools(&["x"]));
    assert_eq!(names(&bench.answer(call), "tools"), ["two-x"]);
    let call = bench.begin(session, 2, "tools/list", &json!({}));
    bench.server("two").error(&bench.server("two").one(), -2);
    bench.server("one").error(&bench.server("one").one(), -1);
    let answer = bench.answer(call);
    assert_eq!((code(&answer), &answer["id"]), (-1, &json!(2)));
    bench.is_quiet();
}

#[test]
fn a_list_that_cannot_be_read_is_left_out() {
    let bench = two();
    let session = bench.client();
    for bad in [
        json!({"tools": {}}),
        json!({}),
        json!([]),
        json!({"tools": [], "nextCursor": 7}),
    ] {
        let list = bench.list(
            session,
            1,
            "tools/list",
            &[("one", bad), ("two", tools(&["x"]))],
        );
        assert_eq!(names(&list, "tools"), ["two-x"]);
    }
    bench.is_quiet();
}

#[test]
fn one_that_dies_or_is_down_is_left_out() {
    let bench = two();
    let session = bench.client();
    for two_first in [false, true] {
        let call = bench.begin(session, 1, "tools/list", &json!({}));
        bench.server("one").one();
        let asked = bench.server("two").one();
        if two_first {
            bench.server("two").result(&asked, tools(&["x"]));
            bench.server("one").down();
        } else {
            bench.server("one").down();
            assert!(bench.is_silent(&call));
            bench.server("two").result(&asked, tools(&["x"]));
        }
        assert_eq!(names(&bench.answer(call), "tools"), ["two-x"]);
        let list = bench.list(session, 2, "tools/list", &[("two", tools(&["y"]))]);
        assert_eq!(names(&list, "tools"), ["two-y"]);
        bench.server("one").up();
    }
    let call = bench.begin(session, 3, "tools/list", &json!({}));
    let asked = bench.server("two").one();
    bench.server("one").down();
    bench
        .server("two")
        .end(asked.exchange.unwrap(), End::Broken("it broke"));
    assert_eq!(code(&bench.answer(call)), -32603);
    bench.is_quiet();
}

#[test]
fn one_that_is_silent_is_left_out_when_its_time_is_over() {
    let bench = two();
    let session = bench.client();
    let call = bench.begin(session, 1, "tools/list", &json!({}));
    bench
        .server("two")
        .result(&bench.server("two").one(), tools(&["x"]));
    let asked = bench.server("one").one();
    assert!(bench.is_silent(&call));
    bench.server("one").shard().tick(Millis(LONG));
    assert_eq!(
        bench.server("one").one().method(),
        "notifications/cancelled"
    );
    assert_eq!(names(&bench.answer(call), "tools"), ["two-x"]);
    bench.server("one").result(&asked, tools(&["late"]));
    bench.is_quiet();
}

#[test]
fn a_cancel_ends_the_whole_list_whoever_has_answered_before() {
    for answered in [None, Some("one"), Some("two")] {
        let bench = two();
        let session = bench.client();
        let call = bench.begin(session, 1, "tools/list", &json!({}));
        let asked = ["one", "two"].map(|name| (name, bench.server(name).one()));
        if let Some(name) = answered {
            let (_, asked) = asked.iter().find(|(it, _)| *it == name).unwrap();
            bench.server(name).result(asked, tools(&["x"]));
        }
        bench.cancel(session, 1);
        bench.cancelled(call);
        bench.is_quiet();
        for (name, asked) in asked {
            if answered == Some(name) {
                assert!(bench.server(name).asked().is_empty());
                continue;
            }
            let told = bench.server(name).one();
            assert_eq!(told.method(), "notifications/cancelled");
            assert_eq!(told.message["params"]["requestId"], asked.message["id"]);
            bench.server(name).result(&asked, tools(&["late"]));
        }
        // The id is free.
        let list = bench.list(
            session,
            1,
            "tools/list",
            &[("one", tools(&[])), ("two", tools(&[]))],
        );
        assert!(names(&list, "tools").is_empty());
        bench.is_quiet();
    }
}

#[test]
fn the_id_of_a_list_is_not_that_of_another_request_and_the_other_way_round() {
    let bench = two();
    let session = bench.client();
    let call = bench.begin(session, 1, "tools/list", &json!({}));
    let asked = ["one", "two"].map(|name| (name, bench.server(name).one()));
    bench.server("one").result(&asked[0].1, tools(&["x"]));
    for (method, params) in [
        ("tools/call", json!({"name": "one-x"})),
        ("tools/call", json!({"name": "two-x"})),
        ("prompts/list", json!({})),
        ("logging/setLevel", json!({"level": "debug"})),
    ] {
        bench.ask(session, 1, method, &params).refused();
    }
    for name in ["one", "two"] {
        assert!(
            bench
                .server(name)
                .asked()
                .iter()
                .all(|it| it.method() == "notifications/cancelled")
        );
    }
    bench.server("two").result(&asked[1].1, tools(&["x"]));
    assert_eq!(names(&bench.answer(call), "tools"), ["one-x", "two-x"]);
    for name in ["one-x", "two-x"] {
        let call = bench.tool(session, 1, name);
        bench.ask(session, 1, "tools/list", &json!({})).refused();
        let server = bench.server(&name[..3]);
        let asked = server.asked();
        let asked = asked.iter().find(|it| it.method() == "tools/call").unwrap();
        server.result(asked, json!({}));
        assert_eq!(bench.answer(call)["id"], 1);
    }
    bench.is_quiet();
}

#[test]
fn the_id_of_a_call_at_an_upstream_without_that_list_is_refused_for_the_list_too() {
    let bench = Bench::down(&[shared("one"), shared("two")]);
    bench.server("one").up_as("2025-11-25", r#"{"tools":{}}"#);
    bench.server("two").up();
    let session = bench.client();
    let call = bench.tool(session, 1, "one-x");
    bench.ask(session, 1, "prompts/list", &json!({})).refused();
    assert!(bench.server("two").asked().is_empty());
    bench
        .server("one")
        .result(&bench.server("one").one(), json!({}));
    assert_eq!(bench.answer(call)["id"], 1);
    bench.is_quiet();
}

#[test]
fn only_those_are_asked_that_have_the_list_and_without_any_there_is_none() {
    let bench = Bench::down(&[shared("one"), shared("two")]);
    bench.server("one").up_as("2025-11-25", r#"{"tools":{}}"#);
    bench.server("two").up_as("2025-11-25", r#"{"prompts":{}}"#);
    let session = bench.client();
    let list = bench.list(session, 1, "tools/list", &[("one", tools(&["x"]))]);
    assert_eq!(names(&list, "tools"), ["one-x"]);
    assert!(bench.server("two").asked().is_empty());
    let answer = bench.ask(session, 1, "resources/list", &json!({})).now();
    assert_eq!(code(&answer), -32601);
    bench.is_quiet();
}

#[test]
fn while_one_that_may_have_the_list_is_missing_the_list_is_not_said_to_be_none() {
    for (missing, who) in [(&["two"][..], " two"), (&["two", "three"], "")] {
        let upstreams: Vec<_> = ["one"].iter().chain(missing).map(|it| shared(it)).collect();
        let bench = Bench::down(&upstreams);
        bench.server("one").up_as("2025-11-25", r#"{"tools":{}}"#);
        let session = bench.client();
        let answer = bench.ask(session, 1, "prompts/list", &json!({})).now();
        assert_eq!(answer["error"]["data"]["reason"], "upstream_down");
        let sentence = format!("The upstream server{who} is not available");
        assert_eq!(answer["error"]["message"], sentence);
    }
}

/// How often a server was left out of lists.
fn left_out(bench: &Bench, name: &str) -> u64 {
    bench.server(name).shard().counters.lists_left_out.get()
}

#[test]
fn whoever_is_left_out_is_counted_with_each_page_that_it_had_a_part_in() {
    // One that was never there, one that refuses, one that goes, one without such a list.
    let names = ["one", "two", "three", "four"];
    let bench = Bench::down(&names.map(shared));
    for name in ["two", "three"] {
        bench.server(name).up();
    }
    bench
        .server("four")
        .up_as("2025-11-25", r#"{"resources":{}}"#);
    let session = bench.client();
    let counts = || names.map(|name| left_out(&bench, name));
    let call = bench.begin(session, 1, "tools/list", &json!({}));
    let page = json!({"tools": [{"name": "x"}], "nextCursor": "c"});
    bench
        .server("three")
        .result(&bench.server("three").one(), page);
    bench.server("two").error(&bench.server("two").one(), -1);
    let first = bench.answer(call);
    assert_eq!(super::names(&first, "tools"), ["three-x"]);
    assert_eq!(counts(), [1, 1, 0, 0]);
    bench.server("three").down();
    let params = json!({"cursor": first["result"]["nextCursor"]});
    let last = bench.ask(session, 2, "tools/list", &params).now();
    assert_eq!(last["result"], json!({"tools": []}));
    assert_eq!(counts(), [1, 1, 1, 0]);
    // Nobody has it: no list has gone out that they could be left out of.
    let bench = Bench::down(&[shared("one"), shared("two")]);
    bench.server("one").up_as("2025-11-25", r#"{"tools":{}}"#);
    let session = bench.client();
    bench.ask(session, 1, "prompts/list", &json!({})).now();
    assert_eq!(left_out(&bench, "two"), 0);
}

#[test]
fn a_list_that_cannot_be_asked_of_anybody_says_why() {
    let bench = Bench::new(&[shared("one"), shared("two")]);
    let session = bench.client();
    let calls: Vec<_> = (0..20)
        .flat_map(|id| {
            [
                bench.tool(session, id, "one-x"),
                bench.tool(session, 100 + id, "two-x"),
            ]
        })
        .collect();
    let answer = bench.ask(session, 99, "tools/list", &json!({})).now();
    assert_eq!(answer["error"]["data"]["reason"], "overloaded");
    assert_eq!(answer["id"], 99);
    for name in ["one", "two"] {
        for asked in bench.server(name).asked() {
            bench.server(name).result(&asked, json!({}));
        }
    }
    calls.into_iter().for_each(|call| drop(bench.answer(call)));
    bench.ground.drain();
    let answer = bench.ask(session, 99, "tools/list", &json!({})).now();
    assert_eq!(answer["error"]["data"]["reason"], "draining");
    bench.is_quiet();
}

#[test]
fn the_lists_of_tasks_are_one_and_tell_where_each_task_is() {
    let bench = Bench::new(&[private("one"), private("two")]);
    let session = bench.client();
    let task = |id: &str| json!({"taskId": id, "status": "working", "createdAt": "2025-11-25T10:30:00Z", "ttl": 1});
    let tasks = |ids: &[&str]| json!({"tasks": ids.iter().map(|id| task(id)).collect::<Vec<_>>()});
    let answers = [("one", tasks(&["a", "c"])), ("two", tasks(&["b", "c"]))];
    let list = bench.list(session, 1, "tasks/list", &answers);
    assert_eq!(names(&list, "tasks"), ["one-a", "one-c", "two-b", "two-c"]);
    let call = bench.begin(session, 2, "tasks/get", &json!({"taskId": "two-b"}));
    bench
        .server("two")
        .result(&bench.server("two").one(), task("b"));
    bench.answer(call);
    let call = bench.begin(session, 3, "tasks/get", &json!({"taskId": "one-c"}));
    bench
        .server("one")
        .result(&bench.server("one").one(), task("c"));
    bench.answer(call);
    bench.is_quiet();
}

#[test]
fn the_log_level_goes_to_all_that_have_logging() {
    let bench = two();
    let session = bench.client();
    let call = bench.begin(session, 1, "logging/setLevel", &json!({"level": "debug"}));
    let server = bench.server("two");
    let asked = server.one();
    assert_eq!(asked.message["params"]["level"], "debug");
    server.result(&asked, json!({}));
    assert_eq!(
        bench.answer(call),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}})
    );
    assert_eq!(
        bench.server("one").shard().state.borrow().log_level(),
        Some(0)
    );
    let unknown = bench.ask(session, 2, "logging/setLevel", &json!({"level": "loud"}));
    assert_eq!(code(&unknown.now()), -32602);
    assert!(server.asked().is_empty());
    bench.is_quiet();
}

#[test]
fn answers_that_wait_for_others_are_counted_and_those_without_room_left_out() {
    let mut up = Bench::with(&[shared("one"), shared("two")], 20_000, false);
    up.servers.iter().for_each(|server| server.up());
    let bench = &mut up;
    let session = bench.client();
    let call = bench.begin(session, 1, "tools/list", &json!({}));
    let asked = ["one", "two"].map(|name| (name, bench.server(name).one()));
    let long = json!({"tools": [{"name": "x", "description": "d".repeat(10_000)}]});
    bench.server("one").result(&asked[0].1, long.clone());
    assert!(bench.joined.waiting_bytes() > 10_000);
    let huge = json!({"tools": [{"name": "x", "description": "d".repeat(30_000)}]});
    bench.server("two").result(&asked[1].1, huge);
    assert_eq!(names(&bench.answer(call), "tools"), ["one-x"]);
    bench.is_quiet();
}

#[test]
fn a_list_in_a_batch_is_answered_in_its_place() {
    let bench = two();
    let session = bench.client_as("2025-03-26");
    let connection = bench.connect();
    let mut to = bench.ground.begin_exchange(connection, Form::Bare);
    to.part = 5;
    let text = br#"{"jsonrpc":"2.0","id":"l","method":"tools/list"}"#;
    let step = bench
        .joined
        .message(session, text, &scan::scan(text).unwrap(), to);
    assert!(matches!(step, Step::InFlight { .. }));
    for name in ["one", "two"] {
        bench
            .server(name)
            .result(&bench.server(name).one(), tools(&["x"]));
    }
    let context = Context::from_waker(Waker::noop());
    match bench.ground.poll_connection(connection, &context) {
        Some(Wake::Deliveries(deliveries)) => {
            assert!(matches!(
                &deliveries[..],
                [Delivery::Message { part: 5, .. }]
            ));
        }
        other => panic!("{other:?}"),
    }
    bench.ground.end_exchange(connection);
    bench.disconnect(connection);
    bench.is_quiet();
}

/// Its thread would serve nobody while it takes that apart.
#[test]
fn a_page_that_is_too_long_is_left_out() {
    let bench = Bench::with(&[shared("one"), shared("two")], 64 << 20, false);
    bench.servers.iter().for_each(|server| server.up());
    let session = bench.client();
    for (bytes, shown) in [
        (LIST_BYTES_MAX, &["two-t"][..]),
        (LIST_BYTES_MAX / 2, &["one-t", "two-t"]),
    ] {
        let call = bench.begin(session, 1, "tools/list", &json!({}));
        let (one, two) = (bench.server("one"), bench.server("two"));
        let description = "x".repeat(bytes);
        let page = json!({"tools": [{"name": "t", "description": description}]});
        one.result(&one.one(), page);
        two.result(&two.one(), tools(&["t"]));
        assert_eq!(names(&bench.answer(call), "tools"), shown);
    }
}
