use super::*;
use crate::limits::SUB_RESOURCE_MARKS_MAX;
use crate::routing::bench::{
    Bench, code, ended, message, messages, reason, reasons, stream, woken,
};
use crate::routing::ledger::Refusal;
use crate::routing::stream::Work;

fn bench() -> Bench {
    Bench::with(r#"{"resources":{"subscribe":true}}"#)
}

fn params(uri: &str) -> String {
    format!(r#"{{"uri":"{uri}"}}"#)
}

fn subscribe(bench: &mut Bench, session: SessionKey, id: u32, uri: &str) -> Step {
    bench.ask(session, id, "resources/subscribe", &params(uri))
}

/// Subscribes where the ledger must be asked, or has been.
fn begin(bench: &mut Bench, session: SessionKey, id: u32, uri: &str) {
    bench.begin(session, id, "resources/subscribe", &params(uri));
}

fn unsubscribe(bench: &mut Bench, session: SessionKey, uri: &str) -> Step {
    bench.ask(session, 99, "resources/unsubscribe", &params(uri))
}

/// A session that is subscribed to these, with a stream of its own number.
fn holder(bench: &mut Bench, number: u32, uris: &[&str]) -> SessionKey {
    let session = bench.session();
    bench.open_stream(session, stream(number));
    for uri in uris {
        if let Step::InFlight { .. } = subscribe(bench, session, 1, uri) {
            bench.told(uri, Told::Agreed);
        }
    }
    bench.notes();
    session
}

fn is_granted(step: Step) -> bool {
    message(step)["result"] == serde_json::json!({})
}

/// The URIs of which a session's stream tells.
fn updates(bench: &mut Bench, session: SessionKey, number: u32) -> Vec<String> {
    let (work, events) = bench.stream_work(session, stream(number));
    bench.stream_wrote(session, stream(number), true);
    let data = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let uris: Vec<String> = data
        .map(|data| {
            let value: serde_json::Value = serde_json::from_str(data).unwrap();
            assert_eq!(value["method"], "notifications/resources/updated");
            assert_eq!(value["params"].as_object().unwrap().len(), 1);
            value["params"]["uri"].as_str().unwrap().into()
        })
        .collect();
    let expected = match uris.len() {
        0 => Work::Rest,
        events => Work::Write(events),
    };
    assert_eq!(work, expected);
    uris
}

fn updated(bench: &mut Bench, uri: &str) -> Vec<Act> {
    let mut acts = Vec::new();
    bench.state.updated(uri, &mut acts);
    acts
}

fn no() -> Told {
    Told::Refused(Refusal {
        code: -32002,
        message: "No such \"resource\"".into(),
    })
}

#[test]
fn the_ledger_is_asked_once_and_all_who_ask_meanwhile_share_its_word() {
    let mut bench = bench();
    let (one, two) = (bench.session(), bench.session());
    begin(&mut bench, one, 1, "a:b");
    begin(&mut bench, two, 1, r"a:\u0062");
    begin(&mut bench, one, 2, "a:b");
    assert_eq!(bench.notes(), ["want a:b"]);
    assert_eq!(bench.state.subscriptions(), 0);
    let mut answers = messages(bench.told("a:b", Told::Agreed));
    answers.sort_by_key(|answer| answer["id"].as_u64());
    let ids: Vec<_> = answers.iter().map(|answer| &answer["id"]).collect();
    assert_eq!(ids, [1, 1, 2]);
    assert!(
        answers
            .iter()
            .all(|answer| answer["result"] == serde_json::json!({}))
    );
    assert_eq!(bench.state.subscriptions(), 2, "once a session");
    assert_eq!(bench.state.calls_in_flight(), 0);
    assert!(bench.notes().is_empty());
    assert!(bench.upstream().is_empty());
}

#[test]
fn who_asks_for_what_is_held_has_it_at_once() {
    let mut bench = bench();
    let one = holder(&mut bench, 1, &["a:b"]);
    let two = bench.session();
    for session in [two, two, one] {
        assert!(is_granted(subscribe(&mut bench, session, 1, "a:b")));
        assert_eq!(bench.state.subscriptions(), 2);
    }
    assert!(bench.notes().is_empty());
    bench.open_stream(two, stream(2));
    updated(&mut bench, "a:b");
    assert_eq!(updates(&mut bench, two, 2), ["a:b"]);
}

#[test]
fn the_last_one_out_releases() {
    let mut bench = bench();
    let one = holder(&mut bench, 1, &["a:b"]);
    let two = holder(&mut bench, 2, &["a:b"]);
    let stranger = bench.session();
    for (session, notes) in [
        (stranger, &[][..]),
        (one, &[]),
        (one, &[]),
        (two, &["release a:b"]),
        (two, &[]),
    ] {
        assert!(is_granted(unsubscribe(&mut bench, session, "a:b")));
        assert_eq!(bench.notes(), notes);
    }
    assert_eq!((bench.state.subscriptions(), bench.state.uris()), (0, 0));
    assert!(updated(&mut bench, "a:b").is_empty());
    assert!(bench.upstream().is_empty());
}

#[test]
fn who_unsubscribes_is_told_nothing_more() {
    let mut bench = bench();
    let one = holder(&mut bench, 1, &["a:b"]);
    let two = holder(&mut bench, 2, &["a:b"]);
    unsubscribe(&mut bench, one, "a:b");
    assert_eq!(woken(updated(&mut bench, "a:b")), [stream(2)]);
    assert!(updates(&mut bench, one, 1).is_empty());
    assert_eq!(updates(&mut bench, two, 2), ["a:b"]);
}

#[test]
fn a_refusal_reaches_all_who_wait_and_leaves_no_trace() {
    let mut bench = bench();
    let (one, two) = (bench.session(), bench.session());
    begin(&mut bench, one, 1, "a:b");
    begin(&mut bench, two, 2, "a:b");
    let answers = messages(bench.told("a:b", no()));
    assert_eq!(answers.len(), 2);
    for (answer, id) in answers.iter().zip([1, 2]) {
        let error = serde_json::json!({"code": -32002, "message": "No such \"resource\""});
        assert_eq!((&answer["id"], &answer["error"]), (&id.into(), &error));
    }
    assert_eq!((bench.state.subscriptions(), bench.state.uris()), (0, 0));
    assert!(updated(&mut bench, "a:b").is_empty());
    assert_eq!(bench.notes(), ["want a:b"]);
    for id in 3..6 {
        begin(&mut bench, one, id, "a:b");
        assert_eq!(bench.notes(), ["want a:b"], "it asks again");
        bench.told("a:b", no());
    }
}

#[test]
fn the_ledgers_time_out_is_that_of_all_who_wait() {
    let mut bench = bench();
    let (one, two) = (bench.session(), bench.session());
    begin(&mut bench, one, 1, "a:b");
    begin(&mut bench, two, 1, "a:b");
    let ended = ended(bench.told("a:b", Told::TimedOut));
    assert_eq!(reasons(&ended), [Reason::Timeout; 2]);
    assert_eq!(bench.state.uris(), 0);
    assert!(bench.upstream().is_empty(), "the ledger withdraws its own");
    bench.notes();
    begin(&mut bench, one, 1, "a:b");
    assert_eq!(bench.notes(), ["want a:b"]);
}

#[test]
fn who_waits_too_long_here_times_out_and_what_is_agreed_later_is_released() {
    let mut bench = bench();
    let session = bench.session();
    begin(&mut bench, session, 1, "a:b");
    bench.notes();
    assert_eq!(reasons(&bench.tick(1_200)), [Reason::Timeout]);
    assert!(bench.upstream().is_empty());
    assert!(bench.told("a:b", Told::Agreed).is_empty());
    assert_eq!(bench.notes(), ["release a:b"]);
}

#[test]
fn a_subscription_that_is_cancelled_while_it_is_asked_for_is_not_recorded() {
    let mut bench = bench();
    let (one, two) = (bench.session(), bench.session());
    begin(&mut bench, one, 1, "a:b");
    begin(&mut bench, two, 1, "a:b");
    bench.notes();
    assert_eq!(reasons(&bench.cancel(one, 1)), [Reason::Cancelled]);
    assert!(
        bench.upstream().is_empty(),
        "the server was not asked by it"
    );
    assert!(bench.notes().is_empty());
    assert_eq!(messages(bench.told("a:b", Told::Agreed)).len(), 1);
    assert_eq!(bench.state.subscriptions(), 1);
    assert!(bench.notes().is_empty(), "the other one has it");
}

#[test]
fn if_all_who_asked_have_cancelled_the_ledger_lets_go() {
    let mut bench = bench();
    let session = bench.session();
    begin(&mut bench, session, 1, "a:b");
    bench.cancel(session, 1);
    begin(&mut bench, session, 1, "a:b");
    bench.cancel(session, 1);
    assert_eq!(bench.notes(), ["want a:b"], "it still waits for its word");
    assert!(bench.told("a:b", Told::Agreed).is_empty());
    assert_eq!(bench.notes(), ["release a:b"]);
    assert_eq!((bench.state.subscriptions(), bench.state.uris()), (0, 0));
}

#[test]
fn a_subscription_that_is_given_up_while_it_is_asked_for_is_answered_and_not_recorded() {
    let mut bench = bench();
    let session = bench.session();
    begin(&mut bench, session, 1, "a:b");
    bench.notes();
    assert!(is_granted(unsubscribe(&mut bench, session, "a:b")));
    assert!(bench.notes().is_empty());
    let answers = messages(bench.told("a:b", Told::Agreed));
    assert_eq!(answers[0]["result"], serde_json::json!({}));
    assert_eq!(bench.notes(), ["release a:b"]);
    assert_eq!((bench.state.subscriptions(), bench.state.uris()), (0, 0));
}

#[test]
fn who_gives_up_only_gives_up_what_was_asked_before_and_by_that_session() {
    let mut bench = bench();
    let (one, two) = (bench.session(), bench.session());
    begin(&mut bench, one, 1, "a:b");
    unsubscribe(&mut bench, one, "a:b");
    begin(&mut bench, one, 2, "a:b");
    unsubscribe(&mut bench, two, "a:b");
    assert_eq!(bench.notes(), ["want a:b"]);
    assert_eq!(messages(bench.told("a:b", Told::Agreed)).len(), 2);
    assert_eq!(bench.state.subscriptions(), 1);
    assert!(bench.notes().is_empty());
}

#[test]
fn a_session_that_ends_while_it_asks_has_nothing_afterwards() {
    let mut bench = bench();
    let session = bench.session();
    begin(&mut bench, session, 1, "a:b");
    bench.notes();
    assert_eq!(reasons(&ended(bench.end(session))), [Reason::SessionEnded]);
    assert!(bench.upstream().is_empty());
    assert!(bench.notes().is_empty());
    let other = bench.session();
    assert_eq!(other, session, "the place is used again");
    assert!(bench.told("a:b", Told::Agreed).is_empty());
    assert_eq!(bench.notes(), ["release a:b"]);
    assert_eq!((bench.state.subscriptions(), bench.state.uris()), (0, 0));
}

#[test]
fn what_an_ended_session_asked_for_does_not_count_for_the_one_in_its_place() {
    let mut bench = bench();
    let session = bench.session();
    begin(&mut bench, session, 1, "a:1");
    begin(&mut bench, session, 2, "a:2");
    bench.end(session);
    let other = bench.session();
    assert_eq!(other, session, "the place is used again");
    begin(&mut bench, other, 1, "a:1");
    begin(&mut bench, other, 2, "a:3");
    bench.told("a:2", no());
    assert_eq!(
        reason(subscribe(&mut bench, other, 3, "a:4")),
        Reason::Overloaded
    );
    assert_eq!(messages(bench.told("a:1", Told::Agreed)).len(), 1);
    assert_eq!(messages(bench.told("a:3", no())).len(), 1);
    assert_eq!(bench.state.subscriptions(), 1);
    begin(&mut bench, other, 3, "a:4");
}

#[test]
fn a_session_may_have_only_so_many_and_those_it_asks_for_count() {
    let mut bench = bench();
    let (session, other) = (bench.session(), bench.session());
    begin(&mut bench, session, 1, "a:1");
    begin(&mut bench, session, 2, "a:2");
    let over = |bench: &mut Bench| reason(subscribe(bench, session, 9, "a:3"));
    assert_eq!(over(&mut bench), Reason::Overloaded);
    bench.cancel(session, 1);
    assert_eq!(over(&mut bench), Reason::Overloaded, "its word is to come");
    bench.told("a:1", Told::Agreed);
    begin(&mut bench, session, 1, "a:1");
    bench.told("a:1", Told::Agreed);
    bench.told("a:2", Told::Agreed);
    assert_eq!(over(&mut bench), Reason::Overloaded);
    assert!(is_granted(subscribe(&mut bench, session, 9, "a:1")));
    begin(&mut bench, other, 1, "a:3");
    bench.told("a:3", Told::Agreed);
    assert_eq!(over(&mut bench), Reason::Overloaded, "also to join");
    unsubscribe(&mut bench, session, "a:1");
    assert!(is_granted(subscribe(&mut bench, session, 9, "a:3")));
}

#[test]
fn the_book_of_all_sessions_is_bounded() {
    let mut bench = bench();
    bench.state.limits.waiting_bytes_max = 1_000;
    let sessions: Vec<_> = (0..3).map(|_| bench.session()).collect();
    begin(&mut bench, sessions[0], 1, "a:1");
    begin(&mut bench, sessions[1], 1, "a:2");
    let over = |bench: &mut Bench| reason(subscribe(bench, sessions[2], 1, "a:3"));
    assert_eq!(over(&mut bench), Reason::Overloaded);
    bench.cancel(sessions[0], 1);
    assert_eq!(over(&mut bench), Reason::Overloaded);
    bench.told("a:1", no());
    begin(&mut bench, sessions[2], 1, "a:3");
}

#[test]
fn an_update_reaches_who_is_subscribed_to_it_or_above_it_once_each() {
    let mut bench = bench();
    let above = holder(&mut bench, 1, &["f:/a"]);
    let at = holder(&mut bench, 2, &["f:/a/b"]);
    let both = holder(&mut bench, 3, &["f:/a", "f:/a/b"]);
    let beside = holder(&mut bench, 4, &["f:/ab"]);
    let mut streams = woken(updated(&mut bench, "f:/a/b"));
    streams.sort_by_key(|stream| stream.connection);
    assert_eq!(streams, [stream(1), stream(2), stream(3)]);
    assert!(updated(&mut bench, "f:/a/b").is_empty(), "they are awake");
    for (session, number) in [(above, 1), (at, 2), (both, 3)] {
        assert_eq!(updates(&mut bench, session, number), ["f:/a/b"]);
    }
    updated(&mut bench, "f:/a");
    assert!(updates(&mut bench, at, 2).is_empty());
    assert!(updated(&mut bench, "f:/abc").is_empty());
    assert!(updates(&mut bench, beside, 4).is_empty());
}

#[test]
fn an_update_without_a_stream_waits_for_one() {
    let mut bench = bench();
    let session = bench.session();
    begin(&mut bench, session, 1, "a:b");
    bench.told("a:b", Told::Agreed);
    assert!(updated(&mut bench, "a:b").is_empty());
    assert!(updated(&mut bench, "a:b").is_empty());
    bench.open_stream(session, stream(1));
    assert_eq!(updates(&mut bench, session, 1), ["a:b"]);
}

#[test]
fn a_restored_subscription_is_followed_by_one_update() {
    let mut bench = bench();
    let session = holder(&mut bench, 1, &["a:b"]);
    bench.down();
    bench.up(2, r#"{"resources":{"subscribe":true}}"#);
    bench.stream_work(session, stream(1));
    bench.stream_wrote(session, stream(1), true);
    assert_eq!(bench.state.subscriptions(), 1);
    assert_eq!(woken(bench.told("a:b", Told::Updated)), [stream(1)]);
    assert_eq!(updates(&mut bench, session, 1), ["a:b"]);
}

#[test]
fn a_lost_subscription_is_nobodys_and_may_be_asked_for_again() {
    let mut bench = bench();
    let one = holder(&mut bench, 1, &["a:b", "a:c"]);
    let two = holder(&mut bench, 2, &["a:b"]);
    updated(&mut bench, "a:b");
    let mut acts = Vec::new();
    assert_eq!(bench.state.told("a:b", Told::Lost, &mut acts), 2);
    assert!(updates(&mut bench, one, 1).is_empty());
    assert_eq!(bench.state.told("a:b", Told::Lost, &mut acts), 0);
    assert!(acts.is_empty());
    assert_eq!(bench.state.subscriptions(), 1);
    assert!(updated(&mut bench, "a:b").is_empty());
    assert!(is_granted(unsubscribe(&mut bench, one, "a:b")));
    assert!(
        bench
            .end(two)
            .iter()
            .all(|act| matches!(act, Act::CloseStream(_)))
    );
    assert!(bench.notes().is_empty(), "the ledger knows");
    begin(&mut bench, one, 1, "a:b");
    assert_eq!(bench.notes(), ["want a:b"]);
    assert_eq!(messages(bench.told("a:b", Told::Agreed)).len(), 1);
    bench.end(one);
    let mut notes = bench.notes();
    notes.sort();
    assert_eq!(notes, ["release a:b", "release a:c"]);
}

#[test]
fn a_word_about_a_loss_does_not_answer_those_who_ask_anew() {
    let mut bench = bench();
    let session = holder(&mut bench, 1, &["a:b"]);
    unsubscribe(&mut bench, session, "a:b");
    begin(&mut bench, session, 1, "a:b");
    assert_eq!(bench.notes(), ["release a:b", "want a:b"]);
    assert!(bench.told("a:b", Told::Lost).is_empty());
    assert!(bench.told("a:b", Told::Updated).is_empty());
    assert_eq!(messages(bench.told("a:b", Told::Agreed)).len(), 1);
}

#[test]
fn what_is_agreed_for_nobody_is_released_unless_it_is_held() {
    let mut bench = bench();
    assert!(bench.told("a:b", Told::Agreed).is_empty());
    assert_eq!(bench.notes(), ["release a:b"]);
    holder(&mut bench, 1, &["a:b"]);
    assert!(bench.told("a:b", Told::Agreed).is_empty());
    assert!(bench.notes().is_empty());
    for told in [no(), Told::TimedOut, Told::Lost, Told::Updated] {
        assert!(bench.told("x:y", told).is_empty());
    }
    assert!(bench.notes().is_empty());
    assert_eq!(bench.state.subscriptions(), 1);
}

#[test]
fn a_session_that_ends_releases_what_nobody_else_holds() {
    let mut bench = bench();
    let session = holder(&mut bench, 1, &["a:1", "a:2"]);
    let other = holder(&mut bench, 2, &["a:2"]);
    bench.end(session);
    assert_eq!(bench.notes(), ["release a:1"]);
    assert_eq!(woken(updated(&mut bench, "a:2")), [stream(2)]);
    bench.tick(300_000);
    assert!(bench.state.sessions.get(other).is_some(), "it has a stream");
    bench.end(other);
    assert_eq!(bench.notes(), ["release a:2"]);
    assert_eq!((bench.state.subscriptions(), bench.state.uris()), (0, 0));
}

#[test]
fn a_server_that_dies_ends_the_waiting_but_not_what_is_held() {
    let mut bench = bench();
    let session = holder(&mut bench, 1, &["a:1"]);
    let other = holder(&mut bench, 2, &["a:3"]);
    begin(&mut bench, session, 1, "a:2");
    unsubscribe(&mut bench, other, "a:3");
    assert_eq!(reasons(&bench.down()), [Reason::UpstreamDown]);
    assert_eq!(bench.notes(), ["release a:3"], "nobody is asked for a:2");
    assert_eq!((bench.state.subscriptions(), bench.state.uris()), (1, 1));
    let down = subscribe(&mut bench, session, 1, "a:1");
    assert_eq!(reason(down), Reason::UpstreamDown);
    assert!(is_granted(unsubscribe(&mut bench, session, "a:1")));
    assert_eq!(bench.notes(), ["release a:1"]);
    bench.up(2, r#"{"resources":{"subscribe":true}}"#);
    begin(&mut bench, session, 1, "a:2");
    begin(&mut bench, session, 2, "a:3");
    assert_eq!(bench.notes(), ["want a:2", "want a:3"]);
}

#[test]
fn what_is_wrong_with_a_request_is_said_at_once_and_nobody_is_asked() {
    let mut bench = bench();
    let session = bench.session();
    let long = params(&"x".repeat(19));
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        for params in ["{}", r#"{"uri":7}"#, r#"{"uri":null}"#, &long] {
            let step = bench.ask(session, 1, method, params);
            assert_eq!(code(step), -32602, "{method} {params}");
        }
    }
    bench.begin(session, 7, "tools/call", "{}");
    match subscribe(&mut bench, session, 7, "a:b") {
        Step::Refused(_) => {}
        other => panic!("{other:?}"),
    }
    bench.state.drain();
    assert_eq!(
        reason(subscribe(&mut bench, session, 1, "a:b")),
        Reason::Draining
    );
    assert!(bench.notes().is_empty());
    assert_eq!(bench.state.uris(), 0);
}

#[test]
fn a_server_without_subscriptions_offers_none() {
    for capabilities in [
        "{}",
        r#"{"resources":{}}"#,
        r#"{"resources":{"subscribe":false}}"#,
    ] {
        let mut bench = Bench::with(capabilities);
        let session = bench.session();
        assert_eq!(code(subscribe(&mut bench, session, 1, "a:b")), -32601);
        assert_eq!(code(unsubscribe(&mut bench, session, "a:b")), -32601);
        assert!(bench.notes().is_empty());
    }
}

#[test]
fn only_a_subscription_with_a_token_may_become_a_stream() {
    let mut bench = bench();
    let session = bench.session();
    for (id, params, expected) in [
        (1, r#"{"uri":"a:1"}"#, false),
        (2, r#"{"uri":"a:2","_meta":{"progressToken":1}}"#, true),
    ] {
        match bench.ask(session, id, "resources/subscribe", params) {
            Step::InFlight { may_stream, .. } => assert_eq!(may_stream, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_hub_that_is_overloaded_leaves_no_trace_either() {
    let mut bench = bench();
    let session = bench.session();
    begin(&mut bench, session, 1, "a:b");
    let ended = ended(bench.told("a:b", Told::Overloaded));
    assert_eq!(reasons(&ended), [Reason::Overloaded]);
    assert_eq!((bench.state.subscriptions(), bench.state.uris()), (0, 0));
    bench.notes();
    begin(&mut bench, session, 1, "a:b");
    assert_eq!(bench.notes(), ["want a:b"]);
}

#[test]
fn who_unsubscribes_is_not_told_of_an_update_before() {
    let mut bench = bench();
    let session = holder(&mut bench, 1, &["a:b", "a:c"]);
    let other = holder(&mut bench, 2, &["a:b"]);
    updated(&mut bench, "a:b");
    updated(&mut bench, "a:c");
    bench.stream_work(session, stream(1));
    updated(&mut bench, "a:b");
    unsubscribe(&mut bench, session, "a:b");
    bench.stream_wrote(session, stream(1), false);
    assert_eq!(updates(&mut bench, session, 1), ["a:c"]);
    assert_eq!(updates(&mut bench, other, 2), ["a:b"]);
}

#[test]
fn an_update_that_another_subscription_covers_is_told_all_the_same() {
    let mut bench = bench();
    let session = holder(&mut bench, 1, &["a:b", "a:b/c"]);
    updated(&mut bench, "a:b/c");
    unsubscribe(&mut bench, session, "a:b/c");
    assert_eq!(updates(&mut bench, session, 1), ["a:b/c"]);
}

#[test]
fn updates_of_what_is_no_longer_held_do_not_pile_up() {
    let mut bench = bench();
    let session = bench.session();
    for n in 0..200 {
        let uri = format!("a:{n}");
        begin(&mut bench, session, 1, &uri);
        bench.told(&uri, Told::Agreed);
        updated(&mut bench, &uri);
        updated(&mut bench, &format!("{uri}/x"));
        match n % 2 {
            0 => drop(unsubscribe(&mut bench, session, &uri)),
            _ => drop(bench.told(&uri, Told::Lost)),
        }
    }
    bench.open_stream(session, stream(1));
    let told = updates(&mut bench, session, 1);
    assert!(told.len() <= SUB_RESOURCE_MARKS_MAX);
}
