//! How sessions, calls and clients end with things in flight.

use super::*;

/// One of everything that a session can have in flight.
fn busy(bench: &Bench, session: SessionKey) -> (Vec<Call>, ConnectionKey) {
    let stream = bench.open_stream(session);
    bench.server("two").settle();
    let calls = vec![
        bench.tool(session, 1, "one-x"),
        bench.tool(session, 2, "two-x"),
        bench.begin(session, 3, "tools/list", &json!({})),
        bench.begin(
            session,
            4,
            "resources/subscribe",
            &json!({"uri": "one-a:b"}),
        ),
        bench.begin(session, 5, "logging/setLevel", &json!({"level": "debug"})),
    ];
    (calls, stream)
}

#[test]
fn a_session_that_ends_with_everything_in_flight_leaves_nothing() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let (session, other) = (bench.client(), bench.client());
    let (calls, stream) = busy(&bench, session);
    let (kept, _) = busy(&bench, other);
    let at_one = bench.server("one").asked();
    let at_two = bench.server("two").asked();
    bench.joined.end_session(session);
    for (call, id) in calls.into_iter().zip(1..) {
        let answer = bench.answer(call);
        assert_eq!(answer["id"], id);
        assert_eq!(code(&answer), -32603, "{answer}");
    }
    assert!(bench.to_write(session, stream).is_none());
    bench.end_stream(session, stream);
    assert_eq!(bench.joined.find(SessionId(0), TokenId::ANYONE), None);
    let two = bench.server("two");
    two.settle();
    assert_eq!(two.deleted.borrow().len(), 1);
    let cancelled = bench.server("one").asked();
    assert_eq!(cancelled.len(), 2);
    assert!(
        cancelled
            .iter()
            .all(|it| it.method() == "notifications/cancelled")
    );
    // All the answers come, also those that are late.
    for (name, asked) in [("one", at_one), ("two", at_two)] {
        for asked in asked.iter().filter(|it| it.message.get("id").is_some()) {
            bench.server(name).result(asked, tools(&[]));
        }
    }
    bench.server("one").shard().told("a:b", Told::Agreed);
    for (call, id) in kept.into_iter().zip(1..) {
        let answer = bench.answer(call);
        assert_eq!(answer["id"], id);
        assert!(answer.get("result").is_some(), "{answer}");
    }
    bench.is_quiet();
}

#[test]
fn time_ends_a_session_but_not_under_a_call_or_list() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let over = Millis(LIMITS.ttl_ms + 60_000);
    let (idle, calling, listing, streaming) = (
        bench.client(),
        bench.client(),
        bench.client(),
        bench.client(),
    );
    let call = bench.tool(calling, 1, "one-x");
    let list = bench.begin(listing, 1, "tools/list", &json!({}));
    let stream = bench.open_stream(streaming);
    bench.joined.tick(over);
    let lives = |key| bench.joined.version(key).is_some();
    assert!(!lives(idle));
    assert!(lives(calling) && lives(listing) && lives(streaming));
    bench.end_stream(streaming, stream);
    for asked in bench.server("one").asked() {
        bench.server("one").result(&asked, tools(&[]));
    }
    for asked in bench.server("two").asked() {
        bench.server("two").result(&asked, tools(&[]));
    }
    bench.answer(call);
    bench.answer(list);
    bench.joined.tick(Millis(3 * over.0));
    assert_eq!(bench.joined.sessions(), 0);
    let two = bench.server("two");
    two.settle();
    assert_eq!(two.deleted.borrow().len(), 4);
    bench.is_quiet();
}

#[test]
fn a_client_that_vanishes_cancels_nothing_unless_asked_to() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let (calls, _) = busy(&bench, session);
    let asked = ["one", "two"].map(|name| (name, bench.server(name).asked()));
    calls.into_iter().for_each(|call| bench.vanish(call));
    for (name, asked) in asked {
        assert!(bench.server(name).asked().is_empty());
        for asked in &asked {
            bench.server(name).result(asked, tools(&[]));
        }
    }
    bench.server("one").shard().told("a:b", Told::Agreed);
    bench.is_quiet();
}

#[test]
fn a_client_that_vanishes_cancels_at_every_upstream_where_that_is_asked_for() {
    let bench = Bench::with(&[shared("one"), private("two")], 1 << 20, true);
    bench.server("one").up();
    let session = bench.client();
    let (calls, _) = busy(&bench, session);
    let asked = ["one", "two"].map(|name| (name, bench.server(name).asked().len()));
    calls.into_iter().for_each(|call| bench.vanish(call));
    bench.is_quiet();
    for (name, count) in asked {
        let cancels = bench.server(name).asked();
        assert_eq!(cancels.len(), count, "{name}");
        assert!(
            cancels
                .iter()
                .all(|it| it.method() == "notifications/cancelled")
        );
    }
}

#[test]
fn while_draining_what_is_in_flight_ends_well_and_nothing_begins() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let (calls, _) = busy(&bench, session);
    bench.ground.drain();
    for method in ["tools/list", "prompts/list"] {
        let answer = bench.ask(session, 9, method, &json!({})).now();
        assert_eq!(answer["error"]["data"]["reason"], "draining");
    }
    let answer = bench
        .ask(session, 9, "tools/call", &json!({"name": "two-x"}))
        .now();
    assert_eq!(answer["error"]["data"]["reason"], "draining");
    for name in ["one", "two"] {
        for asked in bench.server(name).asked() {
            bench.server(name).result(&asked, tools(&["x"]));
        }
    }
    bench.server("one").shard().told("a:b", Told::Agreed);
    for call in calls {
        assert!(bench.answer(call).get("result").is_some());
    }
    assert_eq!(bench.ground.calls_in_flight(), 0);
    bench.is_quiet();
}

#[test]
fn a_second_drain_ends_sessions_and_tells_their_upstreams() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let at_own = bench.tool(session, 1, "two-x");
    bench.server("two").one();
    let (at_shared, list) = (
        bench.tool(session, 2, "one-x"),
        bench.begin(session, 3, "tools/list", &json!({})),
    );
    assert_eq!(bench.server("one").asked().len(), 2);
    bench.ground.drain();
    bench.ground.drain();
    let reason = |call| bench.answer(call)["error"]["data"]["reason"].clone();
    assert_eq!(reason(at_own), "session_ended");
    // What is in flight at a server that all share would hold the end up.
    assert_eq!(reason(at_shared), "draining");
    reason(list);
    assert_eq!(bench.ground.calls_in_flight(), 0);
    let cancelled = bench.server("one").asked();
    assert_eq!(cancelled.len(), 2);
    assert!(
        cancelled
            .iter()
            .all(|it| it.method() == "notifications/cancelled")
    );
    bench.server("two").settle();
    assert_eq!(bench.server("two").deleted.borrow().len(), 1);
    assert!(bench.ground.is_upstream_quiet());
}

#[test]
fn while_draining_no_leg_is_opened() {
    let bench = Bench::new(&[shared("one"), private("two"), private("three")]);
    let session = bench.client();
    let stream = bench.open_stream(session);
    let opening = bench.initialize();
    let (two, three) = (bench.server("two"), bench.server("three"));
    two.open(&two.one(), "s", "2025-11-25", ABILITIES);
    three.error(&three.one(), -32000);
    let other = bench.opened(opening).0.unwrap();
    bench.tick();
    let asked = three.one();
    bench.ground.drain();
    bench.ground.drain();
    three.open(&asked, "late", "2025-11-25", ABILITIES);
    assert!(!bench.has_leg(other, "three"));
    bench.to_write(session, stream);
    bench.tick();
    for server in [two, three] {
        assert!(server.asked().iter().all(|it| it.method() != "initialize"));
        assert!(server.sessions.borrow().is_empty(), "{}", server.name);
    }
    assert!(bench.ground.is_upstream_quiet());
}

#[test]
fn a_route_that_is_closed_ends_all_its_sessions() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let sessions = [bench.client(), bench.client()];
    let all: Vec<_> = sessions
        .iter()
        .flat_map(|session| busy(&bench, *session).0)
        .collect();
    bench.joined.close();
    assert_eq!(bench.joined.sessions(), 0);
    for call in all {
        assert_eq!(code(&bench.answer(call)), -32603);
    }
    bench.server("two").settle();
    assert_eq!(bench.server("two").deleted.borrow().len(), 2);
    bench.is_quiet();
}

#[test]
fn a_route_that_is_closed_opens_no_session_any_more() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let opening = bench.initialize();
    let two = bench.server("two");
    let asked = two.one();
    bench.joined.close();
    let (session, answer) = bench.opened(opening);
    assert!(session.is_none());
    assert_eq!(answer["error"]["data"]["reason"], "upstream_down");
    two.settle();
    assert!(!two.under_way.borrow().contains(&asked.exchange.unwrap()));
    // On a connection whose request had begun before.
    let (session, answer) = bench.opened(bench.initialize());
    assert!(session.is_none());
    assert_eq!(answer["error"]["data"]["reason"], "upstream_down");
    bench.is_quiet();
}

#[test]
fn sessions_of_a_token_that_is_gone_end_and_no_others() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    bench.joined.end_sessions_of(&[TokenId(7)]);
    assert_eq!(bench.joined.sessions(), 1);
    let call = bench.begin(session, 1, "tools/list", &json!({}));
    bench.joined.end_sessions_of(&[TokenId::ANYONE]);
    assert_eq!(bench.joined.sessions(), 0);
    assert_eq!(code(&bench.answer(call)), -32603);
    bench.is_quiet();
}

#[test]
fn a_leg_that_its_server_has_forgotten_and_does_not_take_again_is_opened_anew() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let two = bench.server("two");
    let stream = bench.open_stream(session);
    two.settle();
    let question = br#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;
    let upward = two.streams.borrow()[0];
    two.hear(Some(upward), question);
    let old = bench.told_messages(session, stream)[0]["id"].clone();
    let call = bench.tool(session, 1, "two-x");
    two.end(two.one().exchange.unwrap(), End::NoSession);
    let again = two.one();
    assert_eq!(again.method(), "initialize");
    two.error(&again, -32000);
    let answer = bench.answer(call);
    assert_eq!(answer["error"]["data"]["reason"], "upstream_down");
    let sentence = "The upstream server two is not available";
    assert_eq!(answer["error"]["message"], sentence);
    assert_eq!(bench.joined.sessions(), 1, "the client's session lives on");
    assert!(!bench.has_leg(session, "two"));
    two.sessions.borrow_mut().clear();
    let answer = bench
        .ask(session, 2, "tools/call", &json!({"name": "two-x"}))
        .now();
    assert_eq!(answer["error"]["data"]["reason"], "upstream_down");
    assert_eq!(answer["error"]["message"], sentence);
    bench.tick();
    two.open(&two.one(), "new", "2025-11-25", ABILITIES);
    assert!(bench.has_leg(session, "two"));
    two.asked();
    let call = bench.tool(session, 3, "two-x");
    let asked = two.one();
    assert_eq!(asked.session.as_deref(), Some("new"));
    two.result(&asked, json!({}));
    bench.answer(call);
    // The client may still answer what the former upstream session has asked.
    let upward = two.streams.borrow()[0];
    two.hear(Some(upward), question);
    let told = bench.told_messages(session, stream);
    let new = told.iter().find(|it| it["method"] == "roots/list").unwrap()["id"].clone();
    assert_ne!(old, new);
    bench.send(
        session,
        &json!({"jsonrpc": "2.0", "id": old, "result": {}}).to_string(),
    );
    assert!(two.asked().is_empty());
    bench.send(
        session,
        &json!({"jsonrpc": "2.0", "id": new, "result": {}}).to_string(),
    );
    assert_eq!(two.one().message["id"], "q");
    bench.is_quiet();
}

#[test]
fn a_leg_in_the_place_of_one_that_is_lost_is_its_own_sessions() {
    let mut bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let two = bench.server("two");
    let call = bench.tool(session, 1, "two-x");
    two.end(two.one().exchange.unwrap(), End::NoSession);
    two.error(&two.one(), -32000);
    bench.answer(call);
    two.sessions.borrow_mut().clear();
    let other = bench.client();
    assert_eq!(
        two.shard().state.borrow().sessions.len(),
        1,
        "in the same place"
    );
    let answer = bench.ask(session, 2, "tools/call", &json!({"name": "two-x"}));
    assert_eq!(answer.now()["error"]["data"]["reason"], "upstream_down");
    bench.joined.end_session(session);
    assert!(bench.has_leg(other, "two"));
    let call = bench.tool(other, 1, "two-x");
    two.result(&two.one(), json!({}));
    bench.answer(call);
    bench.is_quiet();
    bench.clear();
}
