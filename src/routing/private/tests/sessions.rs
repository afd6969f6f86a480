//! Notifications on their way, and the ends of calls and sessions.

use super::*;
use crate::limits::NOTICES_MAX;

fn note(n: usize) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{{"n":{n}}}}}"#
    )
}

fn is_cancel_of(body: &Value, id: UpstreamId, reason: &str) -> bool {
    let named = body["params"]["requestId"].to_string();
    body["method"] == "notifications/cancelled"
        && named == digits(id)
        && body["params"]["reason"] == reason
}

#[test]
fn nothing_overtakes_the_word_that_a_client_is_ready() {
    for end in [End::Done, End::Late, refused(500, ""), End::Broken("x")] {
        let mut desk = Desk::new();
        let session = desk.open("up");
        let before = desk.call(session, LIST);
        desk.say(session, INITIALIZED);
        let (first, _) = desk.next();
        desk.say(session, &note(1));
        let call = desk.ask(session, &request("2"));
        desk.say(session, &note(3));
        assert!(desk.is_still());
        assert!(matches!(desk.answer(before.1, before.0), Got::Answer(..)));
        assert!(
            desk.is_still(),
            "an answer of what went before changes nothing"
        );
        desk.end(first, end);
        let bodies: Vec<_> = desk
            .all()
            .iter()
            .map(|(_, request)| text(request).to_owned())
            .collect();
        assert_eq!(bodies, [note(1), request(&digits(call)), note(3)]);
    }
}

#[test]
fn the_word_may_be_said_again() {
    let mut desk = Desk::new();
    let session = desk.open("up");
    desk.say(session, INITIALIZED);
    desk.say(session, INITIALIZED);
    desk.say(session, &note(1));
    let (first, _) = desk.next();
    assert!(desk.is_still());
    desk.done(first);
    let (second, request) = desk.next();
    assert_eq!(text(&request), INITIALIZED);
    assert!(request.may_repeat && desk.is_still());
    desk.done(second);
    assert_eq!(text(&desk.next().1), note(1));
}

#[test]
fn notices_have_a_bound_and_there_is_room_again_when_they_are_taken() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let other = desk.ready("other");
    for n in 0..NOTICES_MAX + 3 {
        desk.say(session, &note(n));
    }
    let all = desk.all();
    assert_eq!((all.len(), desk.state.lost_notices), (NOTICES_MAX, 3));
    desk.say(other, &note(0));
    assert_eq!(desk.taken().len(), 1, "another session has its own");
    for (key, _) in &all[..2] {
        desk.done(*key);
    }
    for n in 0..3 {
        desk.say(session, &note(n));
    }
    assert_eq!((desk.all().len(), desk.state.lost_notices), (2, 4));
    let long = note(1).replace("\"n\"", &format!("\"{}\"", "x".repeat(3_000_000)));
    desk.say(other, &long);
    assert_eq!((desk.all().len(), desk.state.lost_notices), (0, 5));
}

#[test]
fn a_body_is_held_until_the_server_has_taken_it() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    assert_eq!(desk.held(), 0);
    let (_, key) = desk.call(session, LIST);
    assert!(desk.held() > LIST.len());
    desk.state.head(key, None);
    assert_eq!(desk.held(), 0);
    desk.say(session, INITIALIZED);
    desk.say(session, &note(1));
    assert_eq!(desk.held(), INITIALIZED.len() + note(1).len());
    let (first, _) = desk.next();
    desk.done(first);
    assert_eq!(desk.held(), note(1).len());
    desk.taken();
    assert_eq!(desk.held(), 0);
}

#[test]
fn a_cancel_ends_the_exchange_and_reaches_the_server_with_its_own_id() {
    let mut desk = Desk::new();
    let (session, other) = (desk.ready("up"), desk.ready("other"));
    let (id, key) = desk.call(session, LIST);
    desk.cancel(other, "\"l\"");
    desk.cancel(session, "\"m\"");
    assert!(desk.acts().is_empty() && desk.is_still());
    desk.cancel(session, "\"l\"");
    assert_eq!(ends(&desk.acts()), [pair("\"l\"", "Cancelled")]);
    assert!(desk.was_aborted(key));
    let (_, cancel) = desk.next();
    assert!(is_cancel_of(&json(&cancel), id, "cancelled"));
    assert!(
        cancel.may_repeat && session_of(&cancel) == Some("up") && !text(&cancel).ends_with('\n')
    );
    desk.cancel(session, "\"l\"");
    assert!(desk.is_still());
    let (id, _) = desk.call(session, LIST);
    desk.state.withdraw(id, Reason::Cancelled);
    assert!(
        is_cancel_of(&json(&desk.next().1), id, "cancelled"),
        "also where its client is gone"
    );
}

#[test]
fn a_call_that_waits_is_never_sent() {
    let mut desk = Desk::new();
    let session = desk.open("up");
    desk.say(session, INITIALIZED);
    let (first, _) = desk.next();
    desk.ask(session, LIST);
    let stays = desk.ask(session, &request("2"));
    desk.cancel(session, "\"l\"");
    assert_eq!(ends(&desk.acts()), [pair("\"l\"", "Cancelled")]);
    assert_eq!(
        desk.held(),
        INITIALIZED.len() + request(&digits(stays)).len()
    );
    desk.done(first);
    let bodies: Vec<_> = desk
        .all()
        .iter()
        .map(|(_, request)| id_of(request))
        .collect();
    assert_eq!(bodies, [stays]);
}

#[test]
fn the_end_of_a_session_tells_of_its_calls_first_and_then_of_itself() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (first, first_key) = desk.call(session, LIST);
    let (second, second_key) = desk.call(session, &request("2"));
    desk.say(session, &note(1));
    let (notice, _) = desk.next();
    desk.open_stream(session, 1);
    let (upward, _) = desk.next();
    desk.end_session(session);
    let acts = desk.acts();
    assert_eq!(
        ends(&acts),
        [pair("2", "SessionEnded"), pair("\"l\"", "SessionEnded")]
    );
    assert_eq!(closed(&acts), [stream(1)]);
    for key in [first_key, second_key, notice, upward] {
        assert!(desk.was_aborted(key));
    }
    let farewells = desk.all();
    assert_eq!(farewells.len(), 2);
    for ((_, request), id) in farewells.iter().zip([second, first]) {
        assert!(is_cancel_of(&json(request), id, "session_ended"));
        assert_eq!(
            (session_of(request), request.verb),
            (Some("up"), Verb::Post)
        );
    }
    desk.end(farewells[1].0, End::NoSession);
    assert!(desk.is_still());
    assert!(!desk.state.exchanges().unwrap().is_empty());
    desk.end(farewells[0].0, End::Late);
    let (last, request) = desk.next();
    assert_eq!(
        (request.verb, session_of(&request)),
        (Verb::Delete, Some("up"))
    );
    assert!(request.body.is_empty() && !request.is_call);
    assert_eq!(
        desk.hear(last, &log("x")),
        Got::Dropped(DropReason::LateAnswer)
    );
    desk.end(last, End::NoSession);
    assert!(desk.is_still() && desk.state.exchanges().unwrap().is_empty());
}

#[test]
fn a_session_that_nobody_uses_ends_upstream_too() {
    let mut desk = Desk::new();
    let session = desk.open("up");
    desk.pass(9_500);
    assert!(desk.is_alive(session));
    desk.pass(2_000);
    assert!(!desk.is_alive(session));
    assert_eq!(desk.next().1.verb, Verb::Delete);
}

#[test]
fn what_comes_late_of_a_session_never_reaches_the_one_in_its_place() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (id, call) = desk.call(session, LIST);
    desk.say(session, &note(1));
    let (notice, _) = desk.next();
    desk.open_stream(session, 1);
    let (upward, _) = desk.next();
    // The I/O has not heard of the aborts yet.
    desk.end_session(session);
    let (opening, first) = desk.initialize_late();
    desk.head(opening, "next");
    let Got::Session(next) = desk.hear(opening, &accepted(&first, "{}")) else {
        panic!()
    };
    assert_eq!(next, session, "the place is used again");
    desk.say_ready(next);
    let (new_id, _) = desk.call(next, LIST);
    desk.open_stream(next, 2);
    let (new_upward, _) = desk.next();
    desk.acts();
    for key in [call, notice, upward] {
        desk.head(key, "evil");
        desk.state.event_id(key, b"evil");
        desk.state.retry_after(key, 1);
        for said in [
            log("x"),
            request("1"),
            result(&digits(id), "{}"),
            result(&digits(new_id), "{}"),
            progress(&digits(new_id), 1),
        ] {
            assert_eq!(
                desk.hear(key, &said),
                Got::Dropped(DropReason::LateAnswer),
                "{said}"
            );
        }
        desk.end(key, End::NoSession);
    }
    assert!(desk.acts().is_empty() && desk.is_still() && desk.is_alive(next));
    desk.done(new_upward);
    desk.pass(3_000);
    let reopened = desk
        .all()
        .into_iter()
        .find(|(_, request)| request.verb == Verb::Get);
    let (_, request) = reopened.expect("its own stream");
    assert_eq!(
        (session_of(&request), &request.last_event_id),
        (Some("next"), &None)
    );
}

impl Desk {
    /// An `initialize` while farewells are under way.
    fn initialize_late(&mut self) -> (ExchangeKey, Request) {
        self.taken();
        self.taken();
        self.initialize(INITIALIZE)
    }
}

#[test]
fn sessions_of_one_shard_do_not_share_what_they_pass_on() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let other = desk.ready("other");
    desk.state.pass_fields(session, b"authorization: a\r\n");
    desk.ask(other, LIST);
    assert_eq!(&*desk.next().1.address.fields, b"");
    desk.ask(session, LIST);
    assert_eq!(&*desk.next().1.address.fields, b"authorization: a\r\n");
}

#[test]
fn only_notices_that_are_harmless_twice_may_arrive_twice() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    for (said, may_repeat) in [(note(1), true), (log("x"), false), (progress("1", 1), true)] {
        desk.say(session, &said);
        let (_, request) = desk.next();
        assert_eq!((text(&request), request.may_repeat), (&*said, may_repeat));
    }
}

#[test]
fn one_session_gets_a_quarter_of_the_room_and_one_request_always() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let other = desk.ready("other");
    let long = |id: &str, bytes: usize| {
        let pad = "x".repeat(bytes);
        LIST.replace("\"l\"", &format!("{id},\"x\":\"{pad}\""))
    };
    desk.ask(session, &long("1", 2_000_000));
    let failed = |step| matches!(step, Step::Failed(Reason::Overloaded, _));
    assert!(
        failed(desk.send(session, LIST)),
        "it has more than its share"
    );
    let (key, _) = desk.next();
    desk.ask(other, &long("1", 400_000));
    assert!(failed(desk.send(other, &long("2", 400_000))));
    desk.say(session, &note(1));
    assert_eq!(desk.state.lost_notices, 1);
    desk.state.head(key, None);
    desk.ask(session, LIST);
    desk.say(session, &note(1));
    assert_eq!(desk.state.lost_notices, 1, "the server has taken it");
}

#[test]
fn each_request_goes_with_its_own_header_lines_whenever_it_goes() {
    let mut desk = Desk::new();
    let session = desk.open("one");
    desk.say(session, INITIALIZED);
    let (first, _) = desk.next();
    desk.state.pass_fields(session, b"a: 1\r\n");
    desk.ask(session, LIST);
    desk.state.pass_fields(session, b"a: 2\r\n");
    desk.ask(session, &request("2"));
    desk.done(first);
    let mut sent = desk.all();
    let fields = |request: &Request| request.address.fields.to_vec();
    assert_eq!(fields(&sent[0].1), b"a: 1\r\n");
    assert_eq!(fields(&sent[1].1), b"a: 2\r\n");
    desk.state.pass_fields(session, b"a: 3\r\n");
    desk.end(sent.remove(0).0, End::NoSession);
    let (key, shake) = desk.next();
    desk.head(key, "two");
    desk.hear(key, &accepted(&shake, r#"{"tools":{}}"#));
    let (key, _) = desk.next();
    desk.done(key);
    assert_eq!(fields(&desk.next().1), b"a: 1\r\n", "also once more");
}

#[test]
fn nobody_waits_for_more_of_a_notice_that_was_taken() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.say(session, &note(1));
    let (key, _) = desk.next();
    assert!(desk.state.exchanges().unwrap().is_over(key));
}
