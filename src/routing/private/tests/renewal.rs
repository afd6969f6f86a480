//! A server that has forgotten a session.

use super::*;

/// The handshake that begins now.
fn handshake(desk: &mut Desk) -> (ExchangeKey, Request) {
    let (key, request) = desk.next();
    assert_eq!(json(&request)["method"], "initialize");
    assert_eq!(
        (session_of(&request), request.address.version),
        (None, None)
    );
    assert!(!request.may_repeat && !request.is_call);
    (key, request)
}

/// The server accepts it, and calls the session `name`.
fn accept(desk: &mut Desk, (key, request): (ExchangeKey, Request), name: &str) -> ExchangeKey {
    desk.head(key, name);
    assert_eq!(
        desk.hear(key, &accepted(&request, r#"{"tools":{}}"#)),
        Got::Own
    );
    assert!(desk.was_aborted(key));
    let (key, request) = desk.next();
    assert_eq!(
        (text(&request), session_of(&request)),
        (INITIALIZED, Some(name))
    );
    assert_eq!(request.address.version, Some(Version::NEWEST));
    key
}

/// A whole renewal of a session that had nothing.
fn renew(desk: &mut Desk, name: &str) {
    let handshake = handshake(desk);
    let key = accept(desk, handshake, name);
    desk.done(key);
}

/// The server agrees to a subscription, or a level.
fn agreed(desk: &mut Desk, session: SessionKey, text: &str) {
    let (id, key) = desk.call(session, text);
    assert!(matches!(desk.answer(key, id), Got::Answer(..)));
    desk.done(key);
}

const LEVEL: &str =
    r#"{"jsonrpc":"2.0","id":7,"method":"logging/setLevel","params":{"level" : "war\u006eing"}}"#;

#[test]
fn one_handshake_serves_all_calls_and_each_is_sent_once_more() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let calls = ["1", "2", "3"].map(|id| desk.call(session, &request(id)));
    for (_, key) in &calls[..2] {
        desk.end(*key, End::NoSession);
    }
    assert_eq!(desk.state.renewals, 1);
    let shake = handshake(&mut desk);
    assert!(desk.is_still());
    let early = desk.ask(session, LIST);
    let key = accept(&mut desk, shake, "two");
    desk.end(calls[2].1, End::NoSession);
    assert!(
        desk.is_still(),
        "until the server has heard the end of the handshake"
    );
    desk.done(key);
    let all = desk.all();
    let ids: Vec<_> = all.iter().map(|(_, request)| id_of(request)).collect();
    assert_eq!(ids, [calls[0].0, calls[1].0, early, calls[2].0]);
    for (key, request) in &all {
        assert_eq!(session_of(request), Some("two"));
        let got = desk.answer(*key, id_of(request));
        assert!(matches!(got, Got::Answer(..)), "{got:?}");
    }
    assert_eq!(desk.state.renewals, 1);
    assert!(desk.acts().is_empty());
}

#[test]
fn the_handshake_is_that_of_the_client() {
    let mut desk = Desk::new();
    let (key, first) = desk.initialize(INITIALIZE);
    let Got::Session(session) = desk.hear(key, &accepted(&first, r#"{"tools":{}}"#)) else {
        panic!()
    };
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    assert_eq!(text(&handshake(&mut desk).1), text(&first));
}

#[test]
fn a_call_that_is_unknown_twice_fails_and_the_session_goes_on() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    renew(&mut desk, "two");
    let (key, _) = desk.next();
    desk.end(key, End::NoSession);
    let acts = desk.acts();
    assert_eq!(ends(&acts), [pair("\"l\"", "UpstreamDown")]);
    assert_eq!(
        answers(&acts)[0]["error"]["data"]["reason"],
        "upstream_down"
    );
    assert!(desk.is_still() && desk.is_alive(session));
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    renew(&mut desk, "three");
    assert_eq!(session_of(&desk.next().1), Some("three"));
    assert_eq!(desk.state.renewals, 2);
}

#[test]
fn level_and_subscriptions_are_restored_before_anything_goes() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    agreed(&mut desk, session, LEVEL);
    agreed(&mut desk, session, &subscribe(1, "a:\\u0062"));
    agreed(&mut desk, session, &subscribe(2, "a:c\\\""));
    assert!(matches!(
        desk.send(session, &subscribe(3, "a:d")),
        Step::Failed(Reason::Overloaded, _)
    ));
    agreed(&mut desk, session, &subscribe(3, "a:b"));
    assert_eq!(desk.subscriptions(), 2);
    let (id, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    renew(&mut desk, "two");
    let mut asked = desk.all();
    assert_eq!(asked.len(), 3);
    assert!(
        asked
            .iter()
            .all(|(_, request)| session_of(request) == Some("two") && !request.is_call)
    );
    assert!(
        text(&asked[0].1)
            .ends_with(r#""method":"logging/setLevel","params":{"level":"war\u006eing"}}"#)
    );
    let uris: std::collections::BTreeSet<String> = asked[1..]
        .iter()
        .map(|(_, it)| json(it)["params"]["uri"].as_str().unwrap().into())
        .collect();
    assert_eq!(uris, ["a:b".to_owned(), "a:c\"".to_owned()].into());
    let (key, last) = asked.pop().unwrap();
    for (key, request) in asked {
        assert_eq!(
            desk.hear(key, &result(&digits(id_of(&last)), "{}")),
            Got::Dropped(DropReason::UnknownId)
        );
        assert_eq!(
            desk.hear(key, &result(&digits(id_of(&request)), "{}")),
            Got::Own
        );
        assert!(desk.is_still() && desk.was_aborted(key));
    }
    assert_eq!(
        desk.hear(key, &result(&digits(id_of(&last)), "{}")),
        Got::Own
    );
    assert_eq!(id_of(&desk.next().1), id);
    desk.open_stream(session, 1);
    let told = desk.reads(session, 1);
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(told[2], CHANGED);
    for uri in ["a:b", "a:c\\\""] {
        assert!(
            told[..2]
                .iter()
                .any(|told| told.contains("/updated") && told.contains(uri))
        );
    }
}

#[test]
fn what_is_no_level_is_not_kept() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let long = LEVEL.replace("war", &"w".repeat(100));
    agreed(&mut desk, session, &long);
    let (id, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    renew(&mut desk, "two");
    assert_eq!(id_of(&desk.next().1), id, "there is nothing to restore");
}

#[test]
fn what_was_taken_back_is_not_restored() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    agreed(&mut desk, session, &subscribe(1, "a:b"));
    agreed(
        &mut desk,
        session,
        &subscribe(1, "a:b").replace("subscribe", "unsubscribe"),
    );
    let (id, key) = desk.call(session, &subscribe(1, "a:c"));
    desk.hear(key, &error(&digits(id)));
    desk.done(key);
    let (id, key) = desk.call(session, LEVEL);
    desk.hear(key, &error(&digits(id)));
    desk.done(key);
    assert_eq!(desk.subscriptions(), 0);
    let (id, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    renew(&mut desk, "two");
    assert_eq!(id_of(&desk.next().1), id, "there is nothing to restore");
}

#[test]
fn what_the_server_refuses_the_session_no_longer_has() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    agreed(&mut desk, session, LEVEL);
    agreed(&mut desk, session, &subscribe(1, "a:b"));
    agreed(&mut desk, session, &subscribe(1, "a:c"));
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    renew(&mut desk, "two");
    let asked = desk.all();
    desk.end(asked[0].0, refused(400, ""));
    assert_eq!(
        desk.hear(asked[1].0, &error(&digits(id_of(&asked[1].1)))),
        Got::Own
    );
    desk.end(asked[2].0, End::Done);
    let lost = desk
        .acts()
        .iter()
        .filter(|act| matches!(act, Act::LostSubscription))
        .count();
    assert_eq!((lost, desk.subscriptions()), (2, 0));
    assert_eq!(
        json(&desk.next().1)["id"].to_string(),
        digits(desk_id(&desk, session))
    );
    desk.open_stream(session, 1);
    assert_eq!(desk.reads(session, 1), [CHANGED]);
}

fn desk_id(desk: &Desk, session: SessionKey) -> UpstreamId {
    let session = desk.state.sessions.get(session).unwrap();
    desk.state.calls.newest_of(session).unwrap()
}

#[test]
fn a_handshake_that_fails_ends_the_session_and_its_calls_get_404() {
    type Step = fn(&mut Desk, (ExchangeKey, Request));
    let fails: [(Step, bool); 8] = [
        (|desk, (key, _)| desk.end(key, End::Late), false),
        (|desk, (key, _)| desk.done(key), false),
        (|desk, (key, _)| desk.end(key, refused(503, "")), false),
        (
            |desk, (key, request)| {
                desk.head(key, "two");
                assert_eq!(desk.hear(key, &error(&digits(id_of(&request)))), Got::Own);
            },
            true,
        ),
        (
            |desk, (key, request)| {
                desk.head(key, "two");
                assert_eq!(
                    desk.hear(key, &accepted(&request, "{}")),
                    Got::Own,
                    "it can do less"
                );
            },
            true,
        ),
        (
            |desk, (key, request)| {
                let older =
                    accepted(&request, r#"{"tools":{}}"#).replace("2025-11-25", "2025-06-18");
                desk.head(key, "two");
                assert_eq!(desk.hear(key, &older), Got::Own);
            },
            true,
        ),
        (
            |desk, shake| {
                let key = accept(desk, shake, "two");
                desk.end(key, refused(400, ""));
            },
            true,
        ),
        (
            |desk, shake| {
                let key = accept(desk, shake, "two");
                desk.done(key);
                for (key, _) in desk.all() {
                    desk.end(key, End::NoSession);
                }
            },
            true,
        ),
    ];
    for (n, (fail, is_named)) in fails.into_iter().enumerate() {
        let mut desk = Desk::new();
        let session = desk.ready("one");
        agreed(&mut desk, session, &subscribe(1, "a:b"));
        let (_, running) = desk.call(session, &request("5"));
        let (_, key) = desk.call(session, LIST);
        desk.open_stream(session, 1);
        let (upward, _) = desk.next();
        desk.end(key, End::NoSession);
        assert!(desk.was_aborted(upward));
        let shake = handshake(&mut desk);
        desk.ask(session, &request("6"));
        fail(&mut desk, shake);
        let acts = desk.acts();
        assert_eq!(
            ends(&acts),
            [
                pair("6", "404"),
                pair("\"l\"", "404"),
                // Its own 404 is still to come.
                pair("5", "404")
            ],
            "{n}"
        );
        assert_eq!(closed(&acts), [stream(1)]);
        assert!(!desk.is_alive(session) && desk.was_aborted(running));
        let deleted: Vec<_> = desk
            .all()
            .iter()
            .map(|(_, it)| (it.verb, session_of(it).map(str::to_owned)))
            .collect();
        let due = is_named.then(|| (Verb::Delete, Some("two".to_owned())));
        assert_eq!(deleted, Vec::from_iter(due), "{n}");
    }
}

#[test]
fn a_handshake_of_a_newer_version_than_the_clients_is_none() {
    let mut desk = Desk::new();
    let (key, first) = desk.initialize(INITIALIZE);
    let older = accepted(&first, r#"{"tools":{}}"#).replace("2025-11-25", "2025-06-18");
    let Got::Session(session) = desk.hear(key, &older) else {
        panic!()
    };
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    let (key, request) = handshake(&mut desk);
    assert_eq!(
        desk.hear(key, &accepted(&request, r#"{"tools":{}}"#)),
        Got::Own
    );
    assert_eq!(ends(&desk.acts()), [pair("\"l\"", "404")]);
    assert!(!desk.is_alive(session));
}

#[test]
fn an_answer_with_another_id_is_not_that_of_the_handshake() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let (id, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    let (key, request) = handshake(&mut desk);
    for id in ["1".to_owned(), digits(UpstreamId::of_hub(77))] {
        let wrong = accepted(&request, r#"{"tools":{}}"#).replace(&digits(id_of(&request)), &id);
        assert!(matches!(
            desk.hear(key, &wrong),
            Got::Dropped(DropReason::UnknownId)
        ));
    }
    assert_eq!(
        desk.answer(key, id),
        Got::Dropped(DropReason::UnknownId),
        "the call waits"
    );
    let key = accept(&mut desk, (key, request), "two");
    desk.done(key);
    assert_eq!(id_of(&desk.next().1), id);
}

#[test]
fn calls_can_be_cancelled_meanwhile_and_the_client_may_end_the_session() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    let shake = handshake(&mut desk);
    desk.cancel(session, "\"l\"");
    assert_eq!(ends(&desk.acts()), [pair("\"l\"", "Cancelled")]);
    let key = accept(&mut desk, shake, "two");
    desk.done(key);
    assert!(desk.is_still(), "nothing waits");

    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    let (key, _) = handshake(&mut desk);
    desk.head(key, "three");
    desk.end_session(session);
    assert!(desk.was_aborted(key));
    let (_, request) = desk.next();
    assert_eq!(
        (request.verb, session_of(&request)),
        (Verb::Delete, Some("three"))
    );
}

#[test]
fn a_call_of_the_forgotten_session_that_is_cancelled_is_told_to_nobody() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let (_, running) = desk.call(session, &request("5"));
    let (_, later) = desk.call(session, &request("6"));
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    let shake = handshake(&mut desk);
    desk.cancel(session, "5");
    assert!(desk.was_aborted(running) && desk.is_still());
    let key = accept(&mut desk, shake, "two");
    desk.done(key);
    assert_eq!(json(&desk.next().1)["method"], "tools/list");
    desk.cancel(session, "6");
    assert!(desk.was_aborted(later) && desk.is_still());
    desk.cancel(session, "\"l\"");
    assert_eq!(json(&desk.next().1)["method"], "notifications/cancelled");
}

#[test]
fn the_stream_is_opened_again_at_its_beginning() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    desk.open_stream(session, 1);
    let (upward, _) = desk.next();
    desk.state.head(upward, None);
    desk.state.event_id(upward, b"old");
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    assert!(desk.was_aborted(upward));
    renew(&mut desk, "two");
    let get = desk
        .all()
        .into_iter()
        .find(|(_, request)| request.verb == Verb::Get);
    let (_, request) = get.expect("a stream");
    assert_eq!(
        (session_of(&request), &request.last_event_id),
        (Some("two"), &None)
    );
}

#[test]
fn notices_that_the_forgotten_session_had_not_taken_are_not_said_to_the_next() {
    let mut desk = Desk::new();
    let session = desk.open("one");
    let (_, call) = desk.call(session, LIST);
    desk.asked(call, "5");
    desk.say(session, INITIALIZED);
    let (first, _) = desk.next();
    desk.say(session, &result("1", "{}"));
    let waits = desk.ask(session, &request("2"));
    desk.end(call, End::NoSession);
    desk.end(first, End::NoSession);
    renew(&mut desk, "two");
    let all = desk.all();
    let ids: Vec<_> = all.iter().map(|(_, request)| id_of(request)).collect();
    assert_eq!(ids, [waits, desk_first(&desk, session, waits)]);
    for n in 0..crate::limits::NOTICES_MAX {
        desk.say(session, &log(&n.to_string()));
    }
    assert_eq!(
        desk.state.lost_notices, 0,
        "those that were lost no longer count"
    );
}

/// The other call of a session that has two.
fn desk_first(desk: &Desk, session: SessionKey, one: UpstreamId) -> UpstreamId {
    let all = desk.state.calls.all();
    all.iter()
        .find(|(id, of)| *of == session && *id != one)
        .unwrap()
        .0
}

#[test]
fn an_old_initialized_that_ends_late_lets_nothing_overtake_the_new_one() {
    let mut desk = Desk::new();
    let session = desk.open("one");
    let (_, call) = desk.call(session, LIST);
    desk.say(session, INITIALIZED);
    let (old, _) = desk.next();
    desk.end(call, End::NoSession);
    renew(&mut desk, "two");
    desk.next();
    desk.say(session, INITIALIZED);
    let (new, _) = desk.next();
    desk.say(session, &log("x"));
    desk.end(old, End::Broken("x"));
    assert!(desk.is_still());
    desk.done(new);
    assert_eq!(text(&desk.next().1), log("x"));
}

#[test]
fn a_notice_that_finds_the_session_forgotten_renews_it_and_is_not_said_again() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    desk.say(session, &log("x"));
    let (key, _) = desk.next();
    desk.end(key, End::NoSession);
    renew(&mut desk, "two");
    assert!(desk.is_still());
}

#[test]
fn what_the_forgotten_session_asks_is_no_request_of_the_next() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let (old_id, old) = desk.call(session, &request("9"));
    desk.asked(old, "1");
    let lost = desk.asked(old, "2");
    assert_eq!(
        desk.state
            .queue(session, lost.as_bytes(), Some(2), &mut desk.acts),
        0
    );
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    assert_eq!(
        desk.hear(old, &request("3")),
        Got::Dropped(DropReason::LateAnswer)
    );
    renew(&mut desk, "two");
    let (key, _) = desk.next();
    let asked = desk.asked(key, "1");
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert_eq!(
        desk.hear(old, &request("4")),
        Got::Dropped(DropReason::LateAnswer)
    );
    assert_eq!(desk.hear(old, cancel), Got::Dropped(DropReason::UnknownId));
    for n in 1..=2 {
        desk.say(session, &result(&n.to_string(), "{}"));
    }
    assert!(desk.is_still(), "the forgotten session cannot be answered");
    let id = serde_json::from_str::<Value>(&asked).unwrap()["id"].to_string();
    desk.say(session, &result(&id, "{}"));
    let (_, answer) = desk.next();
    assert_eq!(
        (text(&answer), session_of(&answer)),
        (&*result("1", "{}"), Some("two"))
    );
    assert!(
        matches!(desk.answer(old, old_id), Got::Answer(..)),
        "its answers count"
    );
    desk.open_stream(session, 1);
    assert_eq!(
        desk.reads(session, 1),
        [CHANGED],
        "the question that waited is gone"
    );
}

#[test]
fn what_the_forgotten_session_grants_late_is_asked_of_the_next() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let (before, before_key) = desk.call(session, &subscribe(1, "a:b"));
    let (after, after_key) = desk.call(session, &subscribe(2, "a:c"));
    let (level, level_key) = desk.call(session, LEVEL);
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    let shake = handshake(&mut desk);
    desk.answer(before_key, before);
    let key = accept(&mut desk, shake, "two");
    desk.done(key);
    let (first_key, first) = desk.next();
    assert_eq!(json(&first)["params"]["uri"], "a:b");
    desk.answer(level_key, level);
    let (second_key, second) = desk.next();
    assert_eq!(json(&second)["params"]["level"], "warning");
    desk.hear(first_key, &result(&digits(id_of(&first)), "{}"));
    assert!(desk.is_still(), "one is left");
    desk.hear(second_key, &result(&digits(id_of(&second)), "{}"));
    let (call, _) = desk.next();
    desk.answer(after_key, after);
    let (third_key, third) = desk.next();
    assert_eq!(
        (json(&third)["params"]["uri"].as_str(), session_of(&third)),
        (Some("a:c"), Some("two"))
    );
    assert_eq!(desk.subscriptions(), 2);
    desk.end(call, End::Done);
    desk.acts();
    desk.end(third_key, refused(500, ""));
    assert_eq!(desk.subscriptions(), 1);
    assert!(matches!(desk.acts()[..], [Act::LostSubscription]));
    assert!(desk.is_still());
}

#[test]
fn a_late_grant_that_finds_the_next_session_forgotten_too_renews_that() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let (id, key) = desk.call(session, &subscribe(2, "a:c"));
    let (second_id, second_key) = desk.call(session, &subscribe(3, "a:d"));
    desk.say(session, &log("x"));
    let (notice, _) = desk.next();
    desk.end(notice, End::NoSession);
    renew(&mut desk, "two");
    desk.answer(key, id);
    desk.answer(second_key, second_id);
    let ((first, _), (second, request)) = (desk.next(), desk.next());
    desk.end(first, End::NoSession);
    let shake = handshake(&mut desk);
    assert_eq!(
        desk.hear(second, &result(&digits(id_of(&request)), "{}")),
        Got::Own
    );
    assert!(desk.is_still(), "it says nothing about the third session");
    let key = accept(&mut desk, shake, "three");
    desk.done(key);
    assert_eq!(desk.all().len(), 2);
}

#[test]
fn a_replay_that_meets_the_next_loss_late_goes_once_more() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let calls = ["1", "2"].map(|id| desk.call(session, &request(id)));
    desk.end(calls[0].1, End::NoSession);
    renew(&mut desk, "two");
    let (replay, _) = desk.next();
    desk.say(session, &log("x"));
    let (notice, _) = desk.next();
    desk.end(notice, End::NoSession);
    let shake = handshake(&mut desk);
    desk.end(replay, End::NoSession);
    desk.end(calls[1].1, End::NoSession);
    let key = accept(&mut desk, shake, "three");
    desk.done(key);
    assert_eq!(desk.all().len(), 2);
}

#[test]
fn ids_of_tasks_of_the_forgotten_session_are_forgotten() {
    let mut desk = Desk::new();
    let session = desk.ready("one");
    let task = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{},"_meta":{"progressToken":"t"}}}"#;
    let (id, key) = desk.call(session, task);
    desk.answer(key, id);
    desk.done(key);
    let (_, key) = desk.call(session, LIST);
    desk.end(key, End::NoSession);
    renew(&mut desk, "two");
    let (key, _) = desk.next();
    assert_eq!(
        desk.hear(key, &progress(&digits(id), 1)),
        Got::Dropped(DropReason::Progress)
    );
}
