//! What sessions had at an upstream whose seat is replaced, and what legs get that are opened
//! late.

use super::*;

/// The upstream that is replaced: one that sessions share, and one where each has its own.
fn kinds() -> [Up; 2] {
    [shared("one"), private("one")]
}

fn named(uri: &str) -> Value {
    json!({ "uri": uri })
}

/// Subscribes a session to this URI of the first server, which agrees if it is asked.
fn subscribe(bench: &Bench, session: SessionKey, id: u32, uri: &str) {
    let public = named(&format!("one-{uri}"));
    let answer = match bench.ask(session, id, "resources/subscribe", &public) {
        Sent::Call(call) => {
            agree(&bench.server("one"), uri, 1);
            bench.answer(call)
        }
        sent => sent.now(),
    };
    assert_eq!(answer["result"], json!({}));
}

/// The server has been asked for so many subscriptions to a URI, and nothing else; it agrees
/// to them. A shared one is asked once for all.
fn agree(server: &Server, uri: &str, count: usize) {
    if server.is_private() {
        let asked = requests(server);
        assert_eq!(asked.len(), count, "{asked:?}");
        for asked in asked {
            assert_eq!(asked.method(), "resources/subscribe");
            assert_eq!(asked.message["params"], named(uri));
            server.result(&asked, json!({}));
        }
    } else {
        assert_eq!(server.notes(), [format!("want {uri}")]);
        server.shard().told(uri, Told::Agreed);
    }
}

/// What the server is asked, without notifications.
fn requests(server: &Server) -> Vec<Asked> {
    let mut asked = server.asked();
    asked.retain(|asked| asked.message.get("id").is_some());
    asked
}

/// The first server comes up, and these sessions get their legs.
fn come(bench: &Bench, sessions: usize) {
    let one = bench.server("one");
    if !one.is_private() {
        one.up();
        return;
    }
    bench.tick();
    let asked = requests(&one);
    assert_eq!(asked.len(), sessions);
    for asked in asked {
        one.open(&asked, &bench.session_name(), "2025-11-25", ABILITIES);
    }
}

/// The URIs whose update is told, and whether changed lists are.
fn told(bench: &Bench, session: SessionKey, stream: ConnectionKey) -> (Vec<String>, bool) {
    let mut uris = Vec::new();
    let mut lists = false;
    for message in bench.told_messages(session, stream) {
        match message["params"]["uri"].as_str() {
            Some(uri) => uris.push(uri.to_owned()),
            None => lists = true,
        }
    }
    (uris, lists)
}

/// A session with a stream, subscribed to `a:b` at the first of these; then another server is
/// in its place, and not there yet.
fn replaced(ups: &[Up]) -> (Bench, SessionKey, ConnectionKey) {
    let mut bench = Bench::new(ups);
    let session = bench.client();
    let stream = bench.open_stream(session);
    bench.server("one").settle();
    subscribe(&bench, session, 1, "a:b");
    bench.configure_anew(ups, &["one"]);
    (bench, session, stream)
}

fn lost(server: &Server) -> u64 {
    server.shard().counters.subscriptions_lost.get()
}

#[test]
fn subscriptions_come_back_at_the_server_that_takes_the_place() {
    for up in kinds() {
        let ups = [up, shared("two")];
        let mut bench = Bench::new(&ups);
        let sessions = [bench.client(), bench.client(), bench.client()];
        let streams = sessions.map(|session| bench.open_stream(session));
        bench.server("one").settle();
        subscribe(&bench, sessions[0], 1, "a:b");
        subscribe(&bench, sessions[1], 1, "a:b");
        bench.configure_anew(&ups, &["one"]);
        come(&bench, 3);
        let one = bench.server("one");
        agree(&one, "a:b", 2);
        for (session, stream) in sessions.into_iter().zip(streams) {
            let uris = match session == sessions[2] {
                true => vec![],
                false => vec!["one-a:b".to_owned()],
            };
            assert_eq!(told(&bench, session, stream), (uris, true));
        }
        // They are what any subscription is.
        if one.is_private() {
            for stream in one.streams.borrow().clone() {
                let line = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": named("a:b")});
                one.hear(Some(stream), line.to_string().as_bytes());
            }
        } else {
            one.shard().updated(b"a:b");
        }
        let again = told(&bench, sessions[0], streams[0]);
        assert_eq!(again.0, ["one-a:b"]);
        assert_eq!(lost(&one), 0);
        bench.is_quiet();
    }
}

#[test]
fn what_is_no_longer_wanted_while_the_server_is_away_is_not_asked_for() {
    for up in kinds() {
        let ups = [up, shared("two")];
        let mut bench = Bench::new(&ups);
        let session = bench.client();
        subscribe(&bench, session, 1, "a:b");
        subscribe(&bench, session, 2, "a:c");
        bench.configure_anew(&ups, &["one"]);
        let ask = |id| bench.ask(session, id, "resources/unsubscribe", &named("one-a:b"));
        assert_eq!(ask(3).now()["result"], json!({}));
        // As long as there is no server, what it has no part in is not known.
        let again = ask(4).now();
        assert_eq!(again["error"]["data"]["reason"], "upstream_down", "{again}");
        come(&bench, 1);
        agree(&bench.server("one"), "a:c", 1);
        bench.is_quiet();
    }
}

#[test]
fn what_is_unsubscribed_while_it_is_asked_for_again_is_not_told() {
    let ups = [shared("one"), shared("two")];
    let (bench, session, stream) = replaced(&ups);
    come(&bench, 1);
    let one = bench.server("one");
    assert_eq!(one.notes(), ["want a:b"]);
    let gone = bench.ask(session, 2, "resources/unsubscribe", &named("one-a:b"));
    assert_eq!(gone.now()["result"], json!({}));
    one.shard().told("a:b", Told::Agreed);
    assert_eq!(told(&bench, session, stream).0, Vec::<String>::new());
    assert_eq!(one.notes(), ["release a:b"]);
    bench.is_quiet();
}

#[test]
fn what_the_route_denies_by_then_is_not_asked_for() {
    for up in kinds() {
        let mut bench = Bench::new(&[up.clone(), shared("two")]);
        let session = bench.client();
        let stream = bench.open_stream(session);
        bench.server("one").settle();
        subscribe(&bench, session, 1, "a:b");
        bench.configure_anew(&[up.deny("a:*"), shared("two")], &["one"]);
        come(&bench, 1);
        let one = bench.server("one");
        assert!(requests(&one).is_empty() && one.notes().is_empty());
        assert_eq!(told(&bench, session, stream), (vec![], true));
        bench.is_quiet();
    }
}

#[test]
fn a_subscription_that_the_new_server_refuses_is_counted_as_lost() {
    for up in kinds() {
        let ups = [up, shared("two")];
        let (bench, session, stream) = replaced(&ups);
        come(&bench, 1);
        let one = bench.server("one");
        if one.is_private() {
            let asked = requests(&one);
            one.error(&asked[0], -32002);
        } else {
            assert_eq!(one.notes(), ["want a:b"]);
            one.shard().told("a:b", Told::TimedOut);
        }
        assert_eq!(told(&bench, session, stream).0, Vec::<String>::new());
        assert_eq!(lost(&one), 1);
        bench.is_quiet();
    }
}

#[test]
fn two_reloads_in_a_row_lose_no_subscription() {
    for up in kinds() {
        let ups = [up, shared("two")];
        let mut bench = Bench::new(&ups);
        let session = bench.client();
        subscribe(&bench, session, 1, "a:b");
        // The first time it never comes up, the second time it is asked and does not answer.
        bench.configure_anew(&ups, &["one"]);
        bench.configure_anew(&ups, &["one"]);
        come(&bench, 1);
        bench.configure_anew(&ups, &["one"]);
        come(&bench, 1);
        agree(&bench.server("one"), "a:b", 1);
        assert!(
            bench
                .joined
                .sessions
                .borrow()
                .get(session)
                .is_some_and(|it| it.lost_uris() == 0)
        );
        bench.is_quiet();
    }
}

#[test]
fn subscriptions_at_an_upstream_of_another_name_are_not_asked_for() {
    let mut bench = Bench::new(&[shared("one"), shared("two")]);
    let session = bench.client();
    subscribe(&bench, session, 1, "a:b");
    bench.configure(&[shared("three"), shared("two")]);
    let three = bench.server("three");
    three.up();
    assert!(three.notes().is_empty());
    assert!(
        bench
            .joined
            .sessions
            .borrow()
            .get(session)
            .is_some_and(|it| it.lost_uris() == 0)
    );
    bench.is_quiet();
}

#[test]
fn what_has_not_come_back_counts_as_the_sessions() {
    let ups = [shared("one"), shared("two")];
    let mut bench = Bench::new(&ups);
    let session = bench.client();
    for (id, uri) in ["a:a", "a:b", "a:c"].into_iter().enumerate() {
        subscribe(&bench, session, id as u32, uri);
    }
    bench.subscriptions_max = 4;
    bench.configure_anew(&ups, &["one"]);
    let two = bench.server("two");
    let call = bench.begin(session, 10, "resources/subscribe", &named("two-a:a"));
    assert_eq!(two.notes(), ["want a:a"]);
    two.shard().told("a:a", Told::Agreed);
    bench.answer(call);
    let more = bench.ask(session, 11, "resources/subscribe", &named("two-a:b"));
    assert_eq!(more.now()["error"]["data"]["reason"], "overloaded");
    bench.is_quiet();
}

#[test]
fn a_leg_that_is_opened_late_gets_the_log_level() {
    for up in kinds() {
        let ups = [up, shared("two")];
        let mut bench = Bench::new(&ups);
        let session = bench.client();
        let silent = bench.client();
        let call = bench.ask(session, 1, "logging/setLevel", &json!({"level": "debug"}));
        match call {
            Sent::Call(call) => {
                let asked = requests(&bench.server("one"));
                bench.server("one").result(&asked[0], json!({}));
                bench.answer(call);
            }
            sent => drop(sent.now()),
        }
        bench.configure_anew(&ups, &["one"]);
        come(&bench, 2);
        let one = bench.server("one");
        if one.is_private() {
            let asked = requests(&one);
            assert_eq!(asked.len(), 1, "{asked:?}");
            assert_eq!(asked[0].method(), "logging/setLevel");
            assert_eq!(asked[0].message["params"], json!({"level": "debug"}));
            one.result(&asked[0], json!({}));
        } else {
            assert_eq!(one.shard().state.borrow().log_level(), Some(0));
            bench.joined.end_session(session);
            assert_eq!(one.shard().state.borrow().log_level(), None);
        }
        assert!(bench.has_leg(silent, "one"));
        bench.is_quiet();
    }
}

#[test]
fn a_level_that_there_is_not_is_forgotten() {
    let ups = [shared("one"), shared("two")];
    let mut bench = Bench::new(&ups);
    let session = bench.client();
    bench
        .ask(session, 1, "logging/setLevel", &json!({"level": "loud"}))
        .now();
    bench.configure_anew(&ups, &["one"]);
    come(&bench, 1);
    assert_eq!(bench.server("one").shard().state.borrow().log_level(), None);
    bench.is_quiet();
}

#[test]
fn a_session_that_ends_while_it_gets_things_again_leaves_nothing() {
    for up in kinds() {
        let ups = [up, shared("two")];
        let (bench, session, _) = replaced(&ups);
        come(&bench, 1);
        bench.joined.end_session(session);
        bench.is_quiet();
    }
}

#[test]
fn a_client_cannot_make_what_is_asked_again_its_own() {
    let ups = [private("one"), shared("two")];
    let (bench, session, _) = replaced(&ups);
    come(&bench, 1);
    let one = bench.server("one");
    let asked = requests(&one);
    let restoring = bench
        .joined
        .sessions
        .borrow()
        .get(session)
        .map(|it| it.restoring.clone());
    let generation = restoring.unwrap()[0].generation;
    let id = format!("ringway-again-{generation}");
    bench.notify(
        session,
        "notifications/cancelled",
        &json!({ "requestId": id }),
    );
    one.settle();
    one.result(&asked[0], json!({}));
    bench.is_quiet();
}

#[test]
fn lists_are_told_as_changed_only_if_they_can_be_others() {
    let ups = [shared("one"), private("two")];
    let mut bench = Bench::new(&ups);
    let session = bench.client();
    let stream = bench.open_stream(session);
    bench.configure(&ups);
    assert_eq!(told(&bench, session, stream), (vec![], false));
    let others: [&[Up]; 4] = [
        &[private("two"), shared("one")],
        &[private("two"), shared("one").deny("x")],
        &[private("two"), shared("one").alias("y", "x")],
        &[private("two")],
    ];
    for ups in others {
        bench.configure(ups);
        assert_eq!(told(&bench, session, stream), (vec![], true));
        bench.configure(ups);
        assert_eq!(told(&bench, session, stream), (vec![], false));
    }
    bench.is_quiet();
}

/// Answers all that the first server is asked for again until nothing more comes.
fn agree_to_all(server: &Server) -> Vec<String> {
    let mut uris = Vec::new();
    loop {
        let before = uris.len();
        for asked in requests(server) {
            let uri = asked.message["params"]["uri"].as_str().expect("a URI");
            uris.push(uri.to_owned());
            server.result(&asked, json!({}));
        }
        for note in server.notes() {
            let uri = note.strip_prefix("want ").expect("wanted");
            uris.push(uri.to_owned());
            server.shard().told(uri, Told::Agreed);
        }
        if uris.len() == before {
            uris.sort();
            return uris;
        }
    }
}

/// However many there are, and however few calls a session may have in flight.
#[test]
fn subscriptions_are_asked_for_a_few_at_a_time_and_none_is_lost() {
    for up in kinds() {
        for calls_max in [60, 6] {
            let mut bench = Bench::down(&[]);
            bench.seat_subscriptions_max = 100;
            bench.calls_max = calls_max;
            let ups = [up.clone(), shared("two")];
            bench.configure(&ups);
            bench.server("two").up();
            if !up.is_private {
                bench.server("one").up();
            }
            let session = bench.client();
            let stream = bench.open_stream(session);
            bench.server("one").settle();
            let uris: Vec<String> = (10..50).map(|it| format!("a:{it}")).collect();
            for (id, uri) in uris.iter().enumerate() {
                subscribe(&bench, session, id as u32, uri);
            }
            bench.configure_anew(&ups, &["one"]);
            come(&bench, 1);
            let one = bench.server("one");
            let at_once = one.shard().state.borrow().calls_in_flight();
            assert!((1..=16).contains(&at_once), "{at_once}");
            assert_eq!(agree_to_all(&one), uris);
            let mut updated = told(&bench, session, stream).0;
            updated.sort();
            assert_eq!(updated.len(), 40);
            assert_eq!(lost(&one), 0);
            bench.is_quiet();
        }
    }
}

#[test]
fn a_server_that_dies_while_it_is_asked_again_is_asked_when_it_is_back() {
    let ups = [shared("one"), shared("two")];
    let (bench, session, stream) = replaced(&ups);
    let one = bench.server("one");
    for _ in 0..3 {
        one.up();
        assert_eq!(one.notes(), ["want a:b"]);
        one.down();
        one.notes();
        // It is not there: nothing is asked, and nothing lost.
        bench.joined.tick(Millis(LONG / 10));
        assert!(one.notes().is_empty());
    }
    one.up();
    agree(&one, "a:b", 1);
    assert_eq!(told(&bench, session, stream).0, ["one-a:b"]);
    assert_eq!(lost(&one), 0);
    bench.is_quiet();
}

#[test]
fn what_could_not_be_asked_is_asked_after_a_pause() {
    let ups = [private("one"), shared("two")];
    let (bench, session, stream) = replaced(&ups);
    come(&bench, 1);
    let one = bench.server("one");
    let asked = requests(&one);
    one.end(
        asked[0].exchange.expect("its own"),
        End::Broken("no connection"),
    );
    assert!(requests(&one).is_empty());
    bench.joined.tick(Millis(0));
    assert!(requests(&one).is_empty(), "the pause is not over");
    bench.joined.tick(Millis(LONG / 10));
    agree(&one, "a:b", 1);
    assert_eq!(told(&bench, session, stream).0, ["one-a:b"]);
    assert_eq!(lost(&one), 0);
    bench.is_quiet();
}

#[test]
fn what_a_server_of_its_own_is_asked_again_can_be_unsubscribed() {
    let ups = [private("one"), shared("two")];
    let (bench, session, stream) = replaced(&ups);
    come(&bench, 1);
    let one = bench.server("one");
    let asked = requests(&one);
    assert_eq!(asked[0].method(), "resources/subscribe");
    let call = bench.begin(session, 2, "resources/unsubscribe", &named("one-a:b"));
    let last = requests(&one);
    assert_eq!(last[0].method(), "resources/unsubscribe");
    one.result(&last[0], json!({}));
    bench.answer(call);
    // The answer to what is not wanted any more comes last.
    one.result(&asked[0], json!({}));
    assert_eq!(one.shard().state.borrow().subscriptions(), 0);
    assert_eq!(told(&bench, session, stream).0, Vec::<String>::new());
    bench.is_quiet();
}

#[test]
fn what_is_asked_again_counts_as_the_sessions() {
    for up in kinds() {
        let ups = [up, shared("two")];
        let mut bench = Bench::new(&ups);
        let session = bench.client();
        for (id, uri) in ["a:a", "a:b", "a:c"].into_iter().enumerate() {
            subscribe(&bench, session, id as u32, uri);
        }
        bench.subscriptions_max = 3;
        bench.configure_anew(&ups, &["one"]);
        come(&bench, 1);
        for public in ["one-a:d", "two-a:a"] {
            let more = bench.ask(session, 11, "resources/subscribe", &named(public));
            assert_eq!(more.now()["error"]["data"]["reason"], "overloaded");
        }
        assert_eq!(agree_to_all(&bench.server("one")).len(), 3);
        bench.is_quiet();
    }
}
