//! Another configuration while sessions live: upstreams added, taken away, in another order.

use super::*;

#[test]
fn an_upstream_more_joins_every_session_and_prefixes_come_with_it() {
    for more in [shared("two"), private("two")] {
        let mut bench = Bench::new(&[shared("one")]);
        let session = bench.client();
        let stream = bench.open_stream(session);
        let call = bench.tool(session, 1, "x");
        bench.configure(&[shared("one"), more.clone()]);
        if more.is_private {
            bench.tick();
            let two = bench.server("two");
            two.open(&two.one(), "s", "2025-11-25", ABILITIES);
            assert_eq!(two.one().method(), "notifications/initialized");
        } else {
            bench.server("two").up();
        }
        assert!(bench.has_leg(session, "two"));
        let mut told = bench.told(session, stream);
        told.sort();
        assert_eq!(
            told,
            ["prompts", "resources", "tools"].map(|it| format!("notifications/{it}/list_changed"))
        );
        let one = bench.server("one");
        one.result(
            &one.one(),
            json!({"content": [{"type": "resource_link", "uri": "a:b", "name": "c"}]}),
        );
        // Under the names that the client is told of now.
        assert_eq!(bench.answer(call)["result"]["content"][0]["uri"], "one-a:b");
        let gone = bench
            .ask(session, 2, "tools/call", &json!({"name": "x"}))
            .now();
        assert_eq!(code(&gone), -32602);
        let call = bench.tool(session, 3, "one-x");
        let asked = one.one();
        assert_eq!(asked.message["params"]["name"], "x");
        one.result(&asked, json!({}));
        bench.answer(call);
        bench.is_quiet();
    }
}

#[test]
fn updates_of_what_was_subscribed_before_come_under_the_new_name() {
    for up in [shared("one"), private("one")] {
        let mut bench = Bench::new(&[up.clone()]);
        let session = bench.client();
        let stream = bench.open_stream(session);
        let one = bench.server("one");
        one.settle();
        let call = bench.begin(
            session,
            1,
            "resources/subscribe",
            &json!({"uri": "file:///a"}),
        );
        if up.is_private {
            one.result(&one.one(), json!({}));
        } else {
            one.notes();
            one.shard().told("file:///a", Told::Agreed);
        }
        bench.answer(call);
        bench.configure(&[up.clone(), shared("two")]);
        bench.told(session, stream);
        if up.is_private {
            let upward = one.streams.borrow()[0];
            one.hear(
                Some(upward),
                br#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}"#,
            );
        } else {
            one.shard().updated(b"file:///a");
        }
        let events = bench.told_messages(session, stream);
        assert_eq!(
            events[0]["params"]["uri"], "one-file:///a",
            "private: {}",
            up.is_private
        );
        bench.is_quiet();
    }
}

#[test]
fn an_upstream_that_is_taken_away_ends_what_it_was_asked_and_nothing_else() {
    for gone in ["one", "two"] {
        let ups = [shared("one"), private("two"), shared("three")];
        let mut bench = Bench::new(&ups);
        let session = bench.client();
        let stream = bench.open_stream(session);
        let lost = bench.tool(session, 1, &format!("{gone}-x"));
        let kept = bench.tool(session, 2, "three-x");
        let list = bench.begin(session, 3, "tools/list", &json!({}));
        let left: Vec<_> = ups
            .iter()
            .filter(|up| up.naming.name != gone)
            .cloned()
            .collect();
        bench.configure(&left);
        assert_eq!(
            bench.answer(lost)["error"]["data"]["reason"],
            "upstream_down"
        );
        for server in &bench.servers {
            for asked in server.asked() {
                match asked.method() {
                    "tools/list" => server.result(&asked, tools(&[&server.name])),
                    "tools/call" => server.result(&asked, json!({})),
                    _ => {}
                }
            }
        }
        assert_eq!(bench.answer(kept)["id"], 2);
        let shown = names(&bench.answer(list), "tools");
        let expected: Vec<_> = left
            .iter()
            .map(|up| up.naming.name.clone())
            .map(|it| format!("{it}-{it}"))
            .collect();
        assert_eq!(shown, expected);
        let unknown = bench.ask(
            session,
            4,
            "tools/call",
            &json!({"name": format!("{gone}-x")}),
        );
        assert_eq!(code(&unknown.now()), -32602);
        assert_eq!(bench.told(session, stream).len(), 3);
        if gone == "two" {
            assert_eq!(bench.server("two").deleted.borrow().len(), 1);
        }
        bench.is_quiet();
    }
}

#[test]
fn a_list_whose_every_upstream_is_taken_away_is_answered() {
    let mut bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let list = bench.begin(session, 1, "tools/list", &json!({}));
    bench.configure(&[shared("three")]);
    assert_eq!(
        bench.answer(list)["error"]["data"]["reason"],
        "upstream_down"
    );
    bench.is_quiet();
}

#[test]
fn an_upstream_that_is_taken_away_is_freed() {
    let mut bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let seats = ["one", "two"].map(|name| Rc::downgrade(bench.server(name).shard()));
    bench.configure(&[shared("three")]);
    assert_eq!(bench.server("two").deleted.borrow().len(), 1);
    bench.gone.clear();
    assert!(seats.iter().all(|seat| seat.upgrade().is_none()));
    assert_eq!(
        bench.joined.version(session).map(|it| it.as_str()),
        Some("2025-11-25")
    );
}

#[test]
fn another_order_changes_only_the_order() {
    let mut bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let lists = [("one", tools(&["x"])), ("two", tools(&["y"]))];
    let list = bench.list(session, 1, "tools/list", &lists);
    assert_eq!(names(&list, "tools"), ["one-x", "two-y"]);
    let call = bench.tool(session, 2, "two-x");
    let under_way = bench.begin(session, 3, "tools/list", &json!({}));
    bench.configure(&[private("two"), shared("one")]);
    for name in ["one", "two"] {
        for asked in bench.server(name).asked() {
            match asked.method() {
                "tools/list" => bench.server(name).result(&asked, tools(&["z"])),
                _ => bench.server(name).result(&asked, json!({})),
            }
        }
    }
    assert_eq!(bench.answer(call)["id"], 2);
    let mut both = names(&bench.answer(under_way), "tools");
    both.sort();
    assert_eq!(both, ["one-z", "two-z"]);
    let list = bench.list(session, 4, "tools/list", &lists);
    assert_eq!(names(&list, "tools"), ["two-y", "one-x"]);
    bench.is_quiet();
}

#[test]
fn a_cursor_goes_on_after_another_order_and_leaves_out_who_is_gone() {
    let mut bench = Bench::new(&[shared("one"), shared("two")]);
    let session = bench.client();
    let more = json!({"tools": [], "nextCursor": "c"});
    let first = bench.list(
        session,
        1,
        "tools/list",
        &[("one", more.clone()), ("two", more)],
    );
    bench.configure(&[shared("three"), shared("two")]);
    bench.server("three").up();
    let params = json!({"cursor": first["result"]["nextCursor"]});
    let call = bench.begin(session, 2, "tools/list", &params);
    assert!(bench.server("three").asked().is_empty());
    let asked = bench.server("two").one();
    assert_eq!(asked.message["params"]["cursor"], "c");
    bench.server("two").result(&asked, tools(&["x"]));
    assert_eq!(names(&bench.answer(call), "tools"), ["two-x"]);
    bench.is_quiet();
}

#[test]
fn an_initialize_that_is_under_way_is_answered_whatever_the_configuration_becomes() {
    let two = [shared("one"), private("two")];
    let after: [&[Up]; 5] = [
        &[shared("one"), private("two"), shared("three")],
        &[shared("one"), private("two"), private("three")],
        &[shared("one")],
        &[shared("one"), private("three")],
        &[private("two"), shared("one")],
    ];
    for after in after {
        let mut bench = Bench::new(&two);
        let opening = bench.initialize();
        let asked = bench.server("two").one();
        bench.configure(after);
        for server in &bench.servers {
            if !server.is_private() && server.name != "one" {
                server.up();
            }
        }
        let still = after.iter().any(|up| up.naming.name == "two");
        if still {
            bench
                .server("two")
                .open(&asked, "s", "2025-11-25", ABILITIES);
        }
        let shape: Vec<_> = after.iter().map(|up| &*up.naming.name).collect();
        let (session, answer) = bench.opened(opening);
        let session = session.unwrap_or_else(|| panic!("{shape:?}: {answer}"));
        bench.notify(session, "notifications/initialized", &json!({}));
        bench.tick();
        for server in bench.servers.iter().filter(|it| it.is_private()) {
            for asked in server.asked() {
                if asked.method() == "initialize" {
                    server.open(&asked, "t", "2025-11-25", ABILITIES);
                }
            }
        }
        for up in after {
            assert!(
                bench.has_leg(session, &up.naming.name),
                "{shape:?}: {}",
                up.naming.name
            );
        }
        bench.tick();
        for server in &bench.servers {
            let sessions = server.shard().state.borrow().sessions.len();
            assert_eq!(sessions, 1, "{shape:?}: {}", server.name);
        }
        bench.is_quiet();
    }
}

#[test]
fn a_leg_that_is_being_opened_at_an_upstream_that_goes_is_given_up() {
    let mut bench = Bench::new(&[shared("one"), private("two")]);
    let two = bench.server("two");
    let opening = bench.initialize();
    two.end(two.one().exchange.unwrap(), End::Broken("no connection"));
    let session = bench.opened(opening).0.unwrap();
    bench.tick();
    let asked = two.one();
    bench.configure(&[shared("one"), shared("three")]);
    assert!(two.under_way.borrow().is_empty());
    two.end(asked.exchange.unwrap(), End::Done);
    assert!(!bench.has_leg(session, "two"));
    bench.is_quiet();
}

#[test]
fn subscriptions_at_an_upstream_that_is_taken_away_are_released() {
    let mut bench = Bench::new(&[shared("one"), shared("two")]);
    let session = bench.client();
    let one = bench.server("one");
    let call = bench.begin(
        session,
        1,
        "resources/subscribe",
        &json!({"uri": "one-a:b"}),
    );
    one.notes();
    one.shard().told("a:b", Told::Agreed);
    bench.answer(call);
    bench.configure(&[shared("two")]);
    assert_eq!(one.notes(), ["release a:b"]);
    bench.is_quiet();
}

#[test]
fn a_task_outlives_a_reload_with_its_upstream() {
    let mut bench = Bench::new(&[shared("one")]);
    let session = bench.client();
    let one = bench.server("one");
    let call = bench.begin(session, 1, "tools/call", &json!({"name": "x", "task": {}}));
    let task =
        json!({"taskId": "t", "status": "working", "createdAt": "2025-11-25T10:30:00Z", "ttl": 1});
    one.result(&one.one(), json!({ "task": task }));
    bench.answer(call);
    bench.configure(&[shared("one"), shared("two")]);
    let call = bench.begin(session, 2, "tasks/get", &json!({"taskId": "t"}));
    one.result(&one.one(), task);
    bench.answer(call);
    bench.is_quiet();
}

#[test]
fn a_bare_upstream_gives_its_names_up_to_what_comes_with_a_prefix() {
    let mut bench = Bench::new(&[shared("one").bare(), shared("two")]);
    let session = bench.client();
    let lists = [("one", tools(&["x", "two-x"])), ("two", tools(&["x"]))];
    let list = bench.list(session, 1, "tools/list", &lists);
    assert_eq!(
        names(&list, "tools"),
        ["x", "two-x"],
        "what another one's name hides is left out"
    );
    bench.configure(&[shared("one").bare()]);
    let list = bench.list(session, 2, "tools/list", &[("one", tools(&["x", "two-x"]))]);
    assert_eq!(names(&list, "tools"), ["x", "two-x"]);
    let call = bench.tool(session, 3, "two-x");
    assert_eq!(bench.server("one").one().message["params"]["name"], "two-x");
    bench.cancel(session, 3);
    bench.cancelled(call);
    bench.is_quiet();
}
