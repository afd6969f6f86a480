//! The GET streams: the client's with its queue, and the server's.

use super::*;
use crate::limits::{
    STREAM_OPEN_MS, STREAM_QUEUE_BYTES_MAX, STREAM_REOPEN_MAX_MS, STREAM_REOPEN_MS,
};

/// The upstream stream that opens now.
fn upward(desk: &mut Desk) -> (ExchangeKey, Request) {
    let (key, request) = desk.next();
    assert_eq!(request.verb, Verb::Get);
    assert!(request.body.is_empty() && request.may_repeat && !request.is_call);
    (key, request)
}

#[test]
fn the_servers_stream_is_open_while_the_clients_is_once_the_client_is_ready() {
    let mut desk = Desk::new();
    let session = desk.open("up");
    desk.open_stream(session, 1);
    assert!(desk.is_still(), "it is not ready");
    desk.say_ready(session);
    let (key, request) = upward(&mut desk);
    assert_eq!(
        (session_of(&request), &request.last_event_id),
        (Some("up"), &None)
    );
    desk.open_stream(session, 2);
    assert_eq!(closed(&desk.acts()), [stream(1)]);
    desk.lose_stream(session, 1);
    assert!(
        desk.is_still() && !desk.was_aborted(key),
        "the newer one has it"
    );
    desk.lose_stream(session, 2);
    assert!(desk.was_aborted(key));
    desk.pass(60_000);
    assert!(desk.is_still());
    desk.open_stream(session, 3);
    upward(&mut desk);
}

#[test]
fn a_client_that_never_says_so_is_ready_with_its_first_answer() {
    let mut desk = Desk::new();
    let session = desk.open("up");
    let (id, key) = desk.call(session, LIST);
    desk.open_stream(session, 1);
    assert!(desk.is_still());
    desk.answer(key, id);
    upward(&mut desk);

    let other = desk.ready("other");
    assert!(desk.is_still(), "it has no stream");
    desk.open_stream(other, 2);
    upward(&mut desk);
}

#[test]
fn it_is_opened_again_after_a_pause_that_grows_behind_the_last_event() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.open_stream(session, 1);
    let (mut key, _) = upward(&mut desk);
    let mut pause = STREAM_REOPEN_MS;
    for (n, end) in [
        End::Done,
        End::Broken("x"),
        End::Late,
        refused(503, ""),
        refused(429, ""),
        End::Done,
    ]
    .into_iter()
    .enumerate()
    {
        if n == 1 {
            desk.state.head(key, None);
            desk.state.event_id(key, b"e1");
            pause = STREAM_REOPEN_MS;
        }
        desk.end(key, end);
        desk.pass(pause - 50);
        assert!(desk.is_still(), "{n}");
        desk.pass(150);
        let (again, request) = upward(&mut desk);
        let last = request.last_event_id.as_deref();
        assert_eq!(last, (n > 0).then_some(&b"e1"[..]), "{n}");
        (key, pause) = (again, (pause * 2).min(STREAM_REOPEN_MAX_MS));
    }
    desk.end(key, End::Done);
    desk.pass(STREAM_REOPEN_MAX_MS + 100);
    let (key, _) = upward(&mut desk);
    desk.hear(key, &log("x"));
    desk.end(key, End::Done);
    desk.pass(STREAM_REOPEN_MS + 100);
    upward(&mut desk);
}

#[test]
fn a_server_may_ask_for_a_longer_pause_but_not_for_any() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.open_stream(session, 1);
    let (key, _) = upward(&mut desk);
    desk.state.retry_after(key, 5_000);
    desk.end(key, End::Done);
    desk.pass(4_900);
    assert!(desk.is_still());
    desk.pass(200);
    let (key, _) = upward(&mut desk);
    desk.state.retry_after(key, u64::MAX);
    desk.end(key, End::Done);
    desk.pass(STREAM_REOPEN_MAX_MS + 100);
    let (key, _) = upward(&mut desk);
    desk.state.retry_after(key, 0);
    desk.end(key, End::Done);
    desk.pass(500);
    assert!(desk.is_still(), "not at once");
}

#[test]
fn a_pause_ends_with_the_clients_stream_and_a_new_one_does_not_wait() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.open_stream(session, 1);
    let (key, _) = upward(&mut desk);
    desk.done(key);
    desk.lose_stream(session, 1);
    desk.pass(5_000);
    assert!(desk.is_still());
    desk.open_stream(session, 2);
    let (key, _) = upward(&mut desk);
    desk.done(key);
    desk.open_stream(session, 3);
    upward(&mut desk);
    desk.pass(5_000);
    assert!(desk.is_still(), "there is one");
}

#[test]
fn a_server_without_streams_is_asked_once() {
    for end in [refused(405, ""), End::NoSession, refused(400, "")] {
        let mut desk = Desk::new();
        let session = desk.ready("up");
        desk.open_stream(session, 1);
        let (key, _) = upward(&mut desk);
        desk.end(key, end);
        desk.pass(60_000);
        desk.open_stream(session, 2);
        assert!(desk.is_still() && desk.is_alive(session));
        assert_eq!(desk.state.renewals, 0);
    }
}

#[test]
fn a_stream_that_has_worked_and_is_unknown_means_a_forgotten_session() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.open_stream(session, 1);
    let (key, _) = upward(&mut desk);
    desk.state.head(key, None);
    desk.done(key);
    desk.pass(1_200);
    let (key, _) = upward(&mut desk);
    desk.end(key, End::NoSession);
    let (_, request) = desk.next();
    assert_eq!(
        (json(&request)["method"].as_str(), session_of(&request)),
        (Some("initialize"), None)
    );
}

#[test]
fn what_comes_there_is_passed_on_and_answers_count() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.open_stream(session, 1);
    let (key, _) = upward(&mut desk);
    desk.state.head(key, None);
    let (id, call) = desk.call(session, LIST);
    assert_eq!(
        desk.hear(key, &log("x")),
        Got::Message(session, None, log("x"))
    );
    assert_eq!(
        desk.hear(key, CHANGED),
        Got::Message(session, None, CHANGED.into())
    );
    assert_eq!(
        desk.hear(key, &request("5")),
        Got::Asked(session, None, request("1"))
    );
    assert!(matches!(desk.answer(key, id), Got::Answer(..)));
    assert!(desk.state.exchanges().unwrap().is_over(call));
    assert!(!desk.state.exchanges().unwrap().is_over(key));
    desk.state.event_id(call, b"call");
    desk.end(key, End::Done);
    desk.pass(1_200);
    assert_eq!(
        upward(&mut desk).1.last_event_id,
        None,
        "the call's event ids are not the stream's"
    );
}

#[test]
fn messages_wait_in_order_for_a_stream_and_survive_failed_writes() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    for word in ["a", "b"] {
        assert_eq!(desk.queue(session, &log(word)), 0);
    }
    assert!(desk.acts().is_empty(), "nobody is there to be woken");
    desk.open_stream(session, 1);
    assert_eq!(messages(&desk.takes(session, 1)), [log("a"), log("b")]);
    desk.queue(session, &log("c"));
    assert_eq!(woken(&desk.acts()), [stream(1)]);
    desk.queue(session, &log("d"));
    assert!(desk.acts().is_empty(), "it has been woken");
    desk.lose_stream(session, 1);
    assert_eq!(desk.takes(session, 1), "");
    desk.open_stream(session, 2);
    let all = ["a", "b", "c", "d"].map(log);
    assert_eq!(messages(&desk.takes(session, 2)), all);
    desk.wrote(session, 2, false);
    assert_eq!(woken(&desk.acts()), [stream(2)]);
    assert_eq!(desk.reads(session, 2), all);
    assert_eq!(desk.state.exchanges().unwrap().queued_bytes, 0);
}

#[test]
fn over_the_bound_all_is_lost_the_stream_closed_and_the_server_told() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.open_stream(session, 1);
    let (key, _) = upward(&mut desk);
    desk.asked(key, "\"q\"");
    let queue = |desk: &mut Desk, asked| {
        let text = request("1");
        desk.state
            .queue(session, text.as_bytes(), asked, &mut desk.acts)
    };
    assert_eq!(queue(&mut desk, Some(1)), 0);
    let half = log(&"x".repeat(STREAM_QUEUE_BYTES_MAX / 2));
    assert_eq!(desk.queue(session, &half), 0);
    desk.acts();
    desk.pass(150_000);
    assert_eq!(desk.queue(session, &half), 3);
    assert_eq!(closed(&desk.acts()), [stream(1)]);
    assert!(desk.was_aborted(key));
    assert_eq!((desk.state.stream_overflows, desk.state.streams()), (1, 0));
    let answer = json(&desk.next().1);
    assert_eq!(
        (&answer["id"], &answer["error"]["data"]["reason"]),
        (&"q".into(), &"overloaded".into())
    );
    assert_eq!(desk.state.exchanges().unwrap().queued_bytes, 0);
    desk.pass(65_000);
    assert!(
        desk.is_alive(session),
        "its time counts from the end of its stream"
    );
    desk.say(session, &result("1", "{}"));
    assert!(desk.is_still(), "it has been answered");
    desk.open_stream(session, 2);
    upward(&mut desk);
    assert_eq!(desk.queue(session, &log("new")), 0);
    assert_eq!(desk.reads(session, 2), [log("new")]);
}

#[test]
fn one_message_may_be_longer_than_the_bound() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let long = log(&"x".repeat(STREAM_QUEUE_BYTES_MAX + 1));
    assert_eq!(desk.queue(session, &long), 0);
    assert_eq!(desk.queue(session, &log("x")), 2);
    assert_eq!(desk.state.stream_overflows, 0, "there was no stream");
}

#[test]
fn the_queues_of_all_sessions_share_a_bound() {
    let mut desk = Desk::new();
    let sessions = [
        desk.ready("a"),
        desk.ready("b"),
        desk.ready("c"),
        desk.ready("d"),
    ];
    let long = log(&"x".repeat(900_000));
    for session in &sessions[..3] {
        assert_eq!(desk.queue(*session, &long), 0);
    }
    assert_eq!(desk.queue(sessions[3], &long), 1);
    desk.open_stream(sessions[0], 1);
    assert_eq!(desk.reads(sessions[0], 1), std::slice::from_ref(&long));
    assert_eq!(desk.queue(sessions[3], &long), 0);
    desk.end_session(sessions[1]);
    assert_eq!(desk.queue(sessions[0], &long), 0);
}

#[test]
fn what_a_stream_of_an_ended_session_wrote_changes_nothing() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.queue(session, &log("secret"));
    desk.open_stream(session, 1);
    assert_eq!(messages(&desk.takes(session, 1)), [log("secret")]);
    desk.end_session(session);
    desk.taken();
    let next = desk.ready("next");
    assert_eq!(next, session);
    desk.lose_stream(session, 1);
    desk.open_stream(next, 2);
    assert_eq!(desk.takes(next, 2), "");
    assert_eq!(
        desk.queue(SessionKey(99), "x"),
        1,
        "there is no such session"
    );
}

#[test]
fn nothing_goes_out_before_the_servers_stream_is_open_or_known_not_to_open() {
    type Settle = fn(&mut Desk, SessionKey, ExchangeKey);
    let settles: [Settle; 6] = [
        |desk, _, key| desk.state.head(key, None),
        |desk, _, key| desk.end(key, refused(405, "")),
        |desk, _, key| desk.end(key, End::NoSession),
        |desk, _, key| desk.end(key, End::Broken("x")),
        |desk, session, _| desk.lose_stream(session, 1),
        |desk, _, _| {
            desk.pass(STREAM_OPEN_MS - 100);
            assert!(desk.is_still());
            desk.pass(300);
        },
    ];
    for settle in settles {
        let mut desk = Desk::new();
        desk.state.limits.request_timeout_ms = 100_000;
        desk.state.limits.request_timeout_max_ms = 100_000;
        let session = desk.ready("up");
        desk.open_stream(session, 1);
        let (key, _) = upward(&mut desk);
        desk.say(session, &log("1"));
        let id = desk.ask(session, LIST);
        desk.ask(session, &request("2"));
        desk.cancel(session, "2");
        assert!(desk.is_still());
        let other = desk.open("other");
        desk.say_ready(other);
        settle(&mut desk, session, key);
        let bodies: Vec<_> = desk
            .all()
            .iter()
            .map(|(_, it)| text(it).to_owned())
            .collect();
        assert_eq!(bodies, [log("1"), LIST.replace("\"l\"", &digits(id))]);
    }
}

#[test]
fn the_stream_comes_before_what_waited_for_the_client_to_be_ready() {
    let mut desk = Desk::new();
    let session = desk.open("up");
    desk.open_stream(session, 1);
    desk.say(session, INITIALIZED);
    desk.ask(session, LIST);
    let (first, _) = desk.next();
    desk.done(first);
    let (key, _) = upward(&mut desk);
    assert!(desk.is_still());
    desk.state.head(key, None);
    assert_eq!(json(&desk.next().1)["method"], "tools/list");
}

#[test]
fn one_that_has_worked_is_opened_again_beside_the_rest() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.open_stream(session, 1);
    let (key, _) = upward(&mut desk);
    desk.state.head(key, None);
    desk.done(key);
    desk.pass(1_200);
    upward(&mut desk);
    desk.call(session, LIST);
}

#[test]
fn without_streams_nothing_waits_for_one_and_the_server_is_told() {
    let mut desk = Desk::offering(Offer {
        get_streams: false,
        tasks: true,
    });
    let session = desk.ready("up");
    let (_, key) = desk.call(session, LIST);
    let asked = desk.asked(key, "\"q\"");
    assert_eq!(desk.queue(session, &log("x")), 1);
    assert_eq!(
        desk.state
            .queue(session, asked.as_bytes(), Some(1), &mut desk.acts),
        1
    );
    assert_eq!(
        json(&desk.next().1)["error"]["data"]["reason"],
        "overloaded"
    );
    assert_eq!(desk.state.exchanges().unwrap().queued_bytes, 0);
}
