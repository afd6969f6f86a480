//! How sessions get their legs: `initialize`, legs that come later, versions.

use super::*;

#[test]
fn an_initialize_is_the_union_of_what_the_servers_can_do() {
    let bench = Bench::down(&[shared("one"), private("two")]);
    bench.server("one").up_as("2025-11-25", r#"{"tools":{}}"#);
    let opening = bench.initialize();
    assert_eq!(bench.got(opening.connection), Got::default());
    let two = bench.server("two");
    two.open(
        &two.one(),
        "s",
        "2025-11-25",
        r#"{"prompts":{"listChanged":true}}"#,
    );
    let (session, answer) = bench.opened(opening);
    let result = &answer["result"];
    assert_eq!(answer["id"], "first");
    assert_eq!(result["protocolVersion"], "2025-11-25");
    assert_eq!(result["serverInfo"]["name"], "route");
    assert!(result["capabilities"]["tools"].is_object());
    assert_eq!(result["capabilities"]["prompts"]["listChanged"], true);
    assert!(result["capabilities"].get("resources").is_none());
    let session = session.unwrap();
    assert!(bench.has_leg(session, "one") && bench.has_leg(session, "two"));
    bench.is_quiet();
}

#[test]
fn the_oldest_version_is_everybodys() {
    let bench = Bench::down(&[shared("one"), private("two")]);
    bench.server("one").up_as("2025-06-18", ABILITIES);
    let opening = bench.initialize();
    let two = bench.server("two");
    let asked = two.one();
    assert_eq!(asked.message["params"]["protocolVersion"], "2025-06-18");
    two.open(&asked, "s", "2025-03-26", ABILITIES);
    let (session, answer) = bench.opened(opening);
    assert_eq!(answer["result"]["protocolVersion"], "2025-03-26");
    let version = bench.joined.version(session.unwrap());
    assert_eq!(version.map(|it| it.as_str()), Some("2025-03-26"));
}

#[test]
fn without_a_version_there_is_an_error_and_no_session() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let text = br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    let connection = bench.connect();
    let form = Form::Opening {
        manner: Manner::unread(),
        sse: false,
    };
    let to = bench.ground.begin_exchange(connection, form);
    let envelope = scan::scan(text).unwrap();
    let id = envelope.id.unwrap();
    let pending = bench
        .joined
        .open(text, &envelope, &id, to, TokenId::ANYONE, [][..].into());
    let got = bench.got(connection);
    assert_eq!(code(&got.messages[0]), -32602);
    drop(pending);
    assert!(bench.server("two").asked().is_empty());
    bench.disconnect(connection);
    bench.is_quiet();
}

#[test]
fn one_that_is_down_or_refuses_is_left_out_of_the_session_unless_it_is_required() {
    for is_required in [false, true] {
        for down in ["one", "two"] {
            let up = |up: Up, name| match is_required && name == down {
                true => up.required(),
                false => up,
            };
            let bench = Bench::down(&[up(shared("one"), "one"), up(private("two"), "two")]);
            if down == "two" {
                bench.server("one").up();
            }
            let opening = bench.initialize();
            let two = bench.server("two");
            let asked = two.one();
            match down {
                "two" => two.error(&asked, -32000),
                _ => two.open(&asked, "s", "2025-11-25", ABILITIES),
            }
            let (session, answer) = bench.opened(opening);
            assert_eq!(session.is_some(), !is_required, "{answer}");
            if is_required {
                let sentence = answer["error"]["message"].as_str().unwrap();
                assert!(sentence.contains(down), "{sentence}");
            } else {
                let other = if down == "one" { "two" } else { "one" };
                assert!(bench.has_leg(session.unwrap(), other));
                assert!(!bench.has_leg(session.unwrap(), down));
            }
            two.settle();
            assert_eq!(
                two.sessions.borrow().len(),
                usize::from(!is_required && down == "one")
            );
            bench.is_quiet();
        }
    }
}

#[test]
fn when_none_is_there_an_initialize_fails() {
    let bench = Bench::down(&[shared("one"), private("two")]);
    let opening = bench.initialize();
    let two = bench.server("two");
    two.end(two.one().exchange.unwrap(), End::Broken("no connection"));
    let (session, answer) = bench.opened(opening);
    assert!(session.is_none());
    assert_eq!(code(&answer), -32603);
    assert_eq!(answer["id"], "first");
    bench.is_quiet();
}

#[test]
fn the_only_upstreams_own_refusal_is_passed_on() {
    let bench = Bench::down(&[private("one").alias("t", "x")]);
    let opening = bench.initialize();
    let one = bench.server("one");
    one.error(&one.one(), -31999);
    let (session, answer) = bench.opened(opening);
    assert!(session.is_none());
    assert_eq!((code(&answer), &answer["id"]), (-31999, &json!("first")));
}

#[test]
fn a_client_that_goes_before_the_answer_leaves_no_session_anywhere() {
    for answers in [vec![], vec!["two"], vec!["two", "three"]] {
        let bench = Bench::new(&[shared("one"), private("two"), private("three")]);
        let opening = bench.initialize();
        let asked = ["two", "three"].map(|name| (name, bench.server(name).one()));
        bench.disconnect(opening.connection);
        let mut pending = Some(opening);
        for (name, asked) in &asked {
            if answers.contains(name) {
                bench
                    .server(name)
                    .open(asked, name, "2025-11-25", ABILITIES);
            } else if let Some(opening) = pending.take() {
                drop(opening);
            }
        }
        drop(pending);
        for name in ["two", "three"] {
            let server = bench.server(name);
            server.settle();
            assert!(
                server.sessions.borrow().is_empty(),
                "{name} after {answers:?}"
            );
            assert!(
                server.under_way.borrow().is_empty(),
                "{name} after {answers:?}"
            );
        }
        assert_eq!(bench.joined.sessions(), 0);
        bench.is_quiet();
    }
}

#[test]
fn a_table_that_is_full_refuses_before_any_server_is_asked() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let sessions: Vec<_> = (0..LIMITS.sessions_max).map(|_| bench.client()).collect();
    let text = br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    let connection = bench.connect();
    let form = Form::Opening {
        manner: Manner::unread(),
        sse: false,
    };
    let to = bench.ground.begin_exchange(connection, form);
    let envelope = scan::scan(text).unwrap();
    let id = envelope.id.unwrap();
    let pending = bench
        .joined
        .open(text, &envelope, &id, to, TokenId::ANYONE, [][..].into());
    assert!(pending.is_none());
    assert!(bench.server("two").asked().is_empty());
    bench.joined.end_session(sessions[0]);
    bench.client();
}

#[test]
fn the_last_place_goes_to_whoever_is_answered_first() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    for _ in 1..LIMITS.sessions_max {
        bench.client();
    }
    let (first, second) = (bench.initialize(), bench.initialize());
    let two = bench.server("two");
    let asked = two.asked();
    two.open(&asked[1], "b", "2025-11-25", ABILITIES);
    two.open(&asked[0], "a", "2025-11-25", ABILITIES);
    assert!(bench.opened(second).0.is_some());
    let (session, answer) = bench.opened(first);
    assert!(session.is_none());
    assert_eq!(answer["error"]["data"]["reason"], "overloaded");
    assert_eq!(*two.deleted.borrow(), ["a"]);
    bench.is_quiet();
}

#[test]
fn a_shared_upstream_that_comes_later_joins_every_session_and_lists_are_told_once() {
    let bench = Bench::down(&[shared("one"), shared("two")]);
    bench.server("one").up();
    let (session, other) = (bench.client(), bench.client());
    let stream = bench.open_stream(session);
    assert!(bench.told(session, stream).is_empty());
    assert!(bench.is_woken(stream, || {
        bench.server("two").up_as("2025-11-25", r#"{"tools":{}}"#)
    }));
    assert!(bench.has_leg(session, "two") && bench.has_leg(other, "two"));
    assert_eq!(
        bench.told(session, stream),
        ["notifications/tools/list_changed"]
    );
    assert!(bench.told(session, stream).is_empty());
    let list = bench.list(
        session,
        1,
        "tools/list",
        &[("one", tools(&["x"])), ("two", tools(&["y"]))],
    );
    assert_eq!(names(&list, "tools"), ["one-x", "two-y"]);
    let late = bench.open_stream(other);
    assert_eq!(
        bench.told(other, late),
        ["notifications/tools/list_changed"]
    );
    bench.is_quiet();
}

#[test]
fn a_leg_of_its_own_that_is_missing_is_asked_for_again_and_lists_are_told_once() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let opening = bench.initialize();
    let two = bench.server("two");
    two.end(two.one().exchange.unwrap(), End::Broken("no connection"));
    let session = bench.opened(opening).0.unwrap();
    bench.notify(session, "notifications/initialized", &json!({}));
    let stream = bench.open_stream(session);
    assert_eq!(
        bench
            .ask(session, 1, "tools/call", &json!({"name": "two-x"}))
            .now()["error"]["data"]["reason"],
        "upstream_down"
    );
    bench.tick();
    let asked = two.one();
    assert_eq!(asked.method(), "initialize");
    assert_eq!(asked.message["params"]["clientInfo"]["name"], "c");
    two.end(asked.exchange.unwrap(), End::Broken("no connection"));
    bench.tick();
    let asked = two.one();
    two.open(&asked, "s", "2025-11-25", r#"{"tools":{}}"#);
    assert!(bench.has_leg(session, "two"));
    let told: Vec<_> = two
        .asked()
        .iter()
        .map(|it| it.method().to_owned())
        .collect();
    assert_eq!(told, ["notifications/initialized"]);
    assert_eq!(
        two.streams.borrow().len(),
        1,
        "its stream is open while the client's is"
    );
    assert_eq!(
        bench.told(session, stream),
        ["notifications/tools/list_changed"]
    );
    assert!(bench.told(session, stream).is_empty());
    bench.tick();
    assert!(two.asked().is_empty(), "it is asked once");
    let call = bench.tool(session, 2, "two-x");
    two.result(&two.one(), json!({}));
    bench.answer(call);
    bench.is_quiet();
}

#[test]
fn of_many_sessions_that_miss_a_leg_one_asks_while_that_fails_and_all_when_it_works() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let two = bench.server("two");
    let sessions: Vec<_> = (0..5)
        .map(|_| {
            let opening = bench.initialize();
            two.end(two.one().exchange.unwrap(), End::Broken("no connection"));
            bench.opened(opening).0.unwrap()
        })
        .collect();
    bench.tick();
    let asked = two.asked();
    assert_eq!(asked.len(), 5);
    for asked in asked {
        two.end(asked.exchange.unwrap(), End::Broken("no connection"));
    }
    bench.tick();
    two.open(&two.one(), "a", "2025-11-25", ABILITIES);
    bench.tick();
    let asked = two.asked();
    assert_eq!(asked.len(), 4);
    for (n, asked) in asked.iter().enumerate() {
        two.open(asked, &format!("b{n}"), "2025-11-25", ABILITIES);
    }
    assert!(
        sessions
            .iter()
            .all(|session| bench.has_leg(*session, "two"))
    );
    bench.is_quiet();
}

#[test]
fn a_session_that_ends_while_a_leg_is_opened_leaves_no_upstream_session() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let two = bench.server("two");
    let opening = bench.initialize();
    two.end(two.one().exchange.unwrap(), End::Broken("no connection"));
    let session = bench.opened(opening).0.unwrap();
    bench.tick();
    let asked = two.one();
    bench.joined.end_session(session);
    // Another one in its place.
    let other = bench.initialize();
    let other_asked = two.one();
    two.end(other_asked.exchange.unwrap(), End::Broken("no connection"));
    let other = bench.opened(other).0.unwrap();
    assert_eq!(other, session);
    two.open(&asked, "s", "2025-11-25", ABILITIES);
    assert!(!bench.has_leg(other, "two"));
    assert_eq!(*two.deleted.borrow(), ["s"]);
    bench.is_quiet();
}

#[test]
fn sessions_that_come_and_go_while_an_upstream_is_down_leave_nothing_that_waits() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let two = bench.server("two");
    for _ in 0..2_000 {
        let opening = bench.initialize();
        two.end(two.one().exchange.unwrap(), End::Broken("no connection"));
        let session = bench.opened(opening).0.unwrap();
        bench.joined.end_session(session);
    }
    let waiting = bench.joined.absences.borrow().waiting();
    assert!(waiting <= 100, "{waiting} wait");
}

#[test]
fn an_answer_after_the_initialize_is_over_is_declined() {
    let bench = Bench::new(&[private("one"), private("two").required()]);
    let opening = bench.initialize();
    let (one, two) = (bench.server("one"), bench.server("two"));
    let (at_one, at_two) = (one.one(), two.one());
    one.open(&at_one, "s", "2025-11-25", ABILITIES);
    two.error(&at_two, -32000);
    let (session, _) = bench.opened(opening);
    assert!(session.is_none());
    one.settle();
    assert_eq!(*one.deleted.borrow(), ["s"]);
    bench.is_quiet();
}

#[test]
fn a_restarted_server_that_can_do_less_ends_the_sessions_that_were_told_otherwise() {
    let mut up = shared("one");
    up.naming.prefix = Prefix::Always;
    let bench = Bench::new(&[up]);
    let session = bench.client();
    let stream = bench.open_stream(session);
    bench.server("one").down();
    bench.server("one").up();
    assert_eq!(bench.joined.sessions(), 1);
    bench.server("one").down();
    assert!(bench.is_woken(stream, || {
        bench.server("one").up_as("2025-11-25", r#"{"tools":{}}"#)
    }));
    assert_eq!(bench.joined.sessions(), 0);
    assert!(bench.to_write(session, stream).is_none());
    bench.is_quiet();
}

#[test]
fn one_of_several_that_can_do_less_takes_no_session_along() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let call = bench.tool(session, 1, "two-x");
    let stream = bench.open_stream(session);
    bench.server("one").down();
    assert!(bench.is_woken(stream, || {
        bench.server("one").up_as("2025-11-25", r#"{"tools":{}}"#)
    }));
    assert_eq!(bench.joined.sessions(), 1);
    let two = bench.server("two");
    two.result(&two.one(), json!({"content": []}));
    bench.answer(call);
    let call = bench.tool(session, 2, "one-x");
    let one = bench.server("one");
    one.result(&one.one(), json!({"content": []}));
    bench.answer(call);
}
