//! Calls, their progress and the server's requests: ids and tokens out and back.

use super::*;
use crate::limits::{ASKED_MAX, TASK_TOKENS_MAX};

const CALL: &str = "\n {\"jsonrpc\":\"2.0\",\"id\" : \"\\u0061\",\"method\":\"tools/call\",\r\n\"params\":{\"n\":1.00,\"_meta\":{\"progressToken\":\"t\"}}}";

const TASK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{},"_meta":{"progressToken":"t"}}}"#;

/// The same slot, another one's id.
fn elsewhere(id: UpstreamId) -> [UpstreamId; 2] {
    [
        UpstreamId::of_call(1, id.slot(), id.generation()),
        UpstreamId::of_hub(id.generation() - 1),
    ]
}

#[test]
fn id_and_token_go_out_as_one_number_and_come_back_and_nothing_else_changes() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let id = desk.ask(session, CALL);
    let to = desk.exchanges;
    let (key, request) = desk.next();
    assert!(request.is_call && !request.may_repeat && request.verb == Verb::Post);
    let number = digits(id);
    assert_eq!(
        text(&request),
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\" : {number},\"method\":\"tools/call\",  \"params\":{{\"n\":1.00,\"_meta\":{{\"progressToken\":{number}}}}}}}"
        )
    );
    desk.state.head(key, None);
    let said = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"progress\":1e0 ,\"progressToken\":{number}}}}}"
    );
    assert_eq!(
        desk.hear(key, &said),
        Got::Progress(to, said.replace(&number, "\"t\""))
    );
    let said = format!("{{\"result\":{{\"x\":1.0}}, \"id\" :\"{number}\",\"jsonrpc\":\"2.0\"}}");
    let due = said.replace(&format!("\"{number}\""), "\"\\u0061\"");
    assert_eq!(desk.hear(key, &said), Got::Answer(to, due));
    assert!(desk.state.exchanges().unwrap().is_over(key));
    let late = desk.hear(key, &progress(&number, 2));
    assert_eq!(
        late,
        Got::Dropped(DropReason::Progress),
        "nothing comes after the answer"
    );
    desk.done(key);
}

#[test]
fn what_may_arrive_twice_is_said_to() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    desk.ask(session, LIST);
    assert!(desk.next().1.may_repeat);
    desk.ask(session, CALL);
    assert!(!desk.next().1.may_repeat);
}

#[test]
fn an_id_of_anybody_elses_call_is_unknown() {
    let mut desk = Desk::new();
    let (session, other) = (desk.ready("up"), desk.ready("other"));
    let (id, key) = desk.call(session, CALL);
    let (others, others_key) = desk.call(other, CALL);
    for foreign in elsewhere(id).into_iter().chain([others]) {
        let number = digits(foreign);
        for (said, reason) in [
            (result(&number, "{}"), DropReason::UnknownId),
            (error(&number), DropReason::UnknownId),
            (progress(&number, 1), DropReason::Progress),
        ] {
            assert_eq!(desk.hear(key, &said), Got::Dropped(reason), "{said}");
        }
    }
    for odd in ["1", "null", "\"x\"", "1.5"] {
        assert!(
            matches!(desk.hear(key, &result(odd, "{}")), Got::Dropped(_)),
            "{odd}"
        );
    }
    let first = desk.answer(key, id);
    assert!(matches!(first, Got::Answer(..)), "{first:?}");
    assert_eq!(
        desk.answer(key, id),
        Got::Dropped(DropReason::UnknownId),
        "once"
    );
    assert!(matches!(desk.answer(others_key, others), Got::Answer(..)));
}

#[test]
fn an_answer_counts_in_whichever_exchange_of_its_session_it_comes() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (first, first_key) = desk.call(session, CALL);
    let (second, second_key) = desk.call(session, LIST);
    assert!(matches!(desk.answer(first_key, second), Got::Answer(..)));
    let exchanges = desk.state.exchanges().unwrap();
    assert!(exchanges.is_over(second_key) && !exchanges.is_over(first_key));
    assert!(
        desk.was_aborted(second_key),
        "nothing more is to be had there"
    );
    desk.done(second_key);
    assert!(desk.acts().is_empty(), "it has its answer");
    assert!(matches!(desk.answer(first_key, first), Got::Answer(..)));
}

#[test]
fn late_answers_and_those_of_calls_that_were_not_sent_are_nobodys() {
    let mut desk = Desk::new();
    let session = desk.open("up");
    desk.say(session, INITIALIZED);
    let (first, _) = desk.next();
    let id = desk.ask(session, CALL);
    assert!(
        matches!(desk.answer(first, id), Got::Dropped(_)),
        "it waits"
    );
    desk.done(first);
    let (key, _) = desk.next();
    let (_, other_key) = desk.call(session, LIST);
    desk.cancel(session, "\"a\"");
    assert_eq!(ends(&desk.acts()), [pair("\"\\u0061\"", "Cancelled")]);
    assert_eq!(desk.answer(key, id), Got::Dropped(DropReason::LateAnswer));
    assert_eq!(
        desk.answer(other_key, id),
        Got::Dropped(DropReason::UnknownId)
    );
}

#[test]
fn a_call_whose_exchange_ends_without_an_answer_gets_one() {
    let own = r#" {"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"mine","data":1.0}}"#;
    for (end, outcome, code, says) in [
        (End::Done, Outcome::UpstreamDown, -32603, "without a reply"),
        (End::TooLarge, Outcome::Overloaded, -32603, "over the limit"),
        (End::Late, Outcome::Timeout, -32603, "in time"),
        (End::Overloaded, Outcome::Overloaded, -32603, "overloaded"),
        (
            End::Broken("It broke"),
            Outcome::UpstreamDown,
            -32603,
            "It broke",
        ),
        (
            refused(500, "{}"),
            Outcome::Error,
            -32603,
            "HTTP status 500",
        ),
        (refused(400, own), Outcome::Error, -32000, "mine"),
    ] {
        let mut desk = Desk::new();
        let session = desk.ready("up");
        let (id, key) = desk.call(session, CALL);
        let (other, other_key) = desk.call(session, LIST);
        desk.end(key, end);
        let acts = desk.acts();
        assert_eq!(ends(&acts), [pair("\"\\u0061\"", &format!("{outcome:?}"))]);
        let message = answers(&acts).remove(0);
        assert_eq!(
            (&message["id"], &message["error"]["code"]),
            (&"a".into(), &code.into())
        );
        assert!(
            message["error"]["message"].as_str().unwrap().contains(says),
            "{message}"
        );
        assert!(desk.is_still(), "there is nothing to cancel");
        assert_eq!(
            desk.answer(other_key, id),
            Got::Dropped(DropReason::UnknownId)
        );
        assert!(matches!(desk.answer(other_key, other), Got::Answer(..)));
    }
}

#[test]
fn calls_have_bounds() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    for n in 0..6 {
        desk.ask(session, &request(&n.to_string()));
    }
    let failed = |step| matches!(step, Step::Failed(Reason::Overloaded, _));
    assert!(failed(desk.send(session, LIST)));
    let other = desk.ready_beside("other");
    let pad = "x".repeat(desk.state.limits.waiting_bytes_max);
    let long = LIST.replace("\"l\"", &format!("\"l\",\"x\":\"{pad}\""));
    assert!(failed(desk.send(other, &long)));
    let long_uri = subscribe(1, &"u".repeat(50));
    assert!(matches!(desk.send(other, &long_uri), Step::Answer(_)));
    desk.ask(other, LIST);
    assert!(
        matches!(desk.send(other, LIST), Step::Refused(_)),
        "the id is in flight"
    );
    desk.state.drain();
    assert!(matches!(
        desk.send(other, CALL),
        Step::Failed(Reason::Draining, _)
    ));
}

impl Desk {
    /// A session beside ones with calls that nobody looks at.
    fn ready_beside(&mut self, name: &str) -> SessionKey {
        self.all();
        self.ready(name)
    }
}

#[test]
fn what_needs_no_server_is_answered_here() {
    let mut desk = Desk::offering(Offer {
        get_streams: false,
        tasks: false,
    });
    let session = desk.ready("up");
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"initialize"}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"server/discover"}"#,
        r#"{"jsonrpc":"2.0","id":4,"method":"notifications/initialized"}"#,
        &subscribe(5, "a:b"),
    ] {
        assert!(
            matches!(desk.send(session, text), Step::Answer(_) | Step::Refused(_)),
            "{text}"
        );
    }
    assert!(desk.is_still());
    let (_, key) = desk.call(session, LIST);
    assert_eq!(
        desk.hear(key, CHANGED),
        Got::Dropped(DropReason::Change),
        "no stream carries it"
    );
}

#[test]
fn progress_keeps_a_call_alive_until_it_is_too_old() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (id, key) = desk.call(session, CALL);
    for n in 1..4 {
        desk.pass(900);
        assert!(matches!(
            desk.hear(key, &progress(&digits(id), n)),
            Got::Progress(..)
        ));
        assert!(desk.acts().is_empty());
    }
    desk.pass(500);
    assert_eq!(ends(&desk.acts()), [pair("\"\\u0061\"", "Timeout")]);
    assert!(desk.was_aborted(key));
    let cancel = json(&desk.next().1);
    assert_eq!(cancel["params"]["requestId"].to_string(), digits(id));
    assert_eq!(cancel["params"]["reason"], "timeout");
}

#[test]
fn progress_that_nobody_asked_for_is_dropped() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (id, key) = desk.call(session, LIST);
    assert_eq!(
        desk.hear(key, &progress(&digits(id), 1)),
        Got::Dropped(DropReason::Progress)
    );
    for token in ["\"t\"", "5", "null"] {
        let got = desk.hear(key, &progress(token, 1));
        assert!(matches!(got, Got::Dropped(_)), "{token}: {got:?}");
    }
}

#[test]
fn a_token_that_is_used_again_does_not_disturb_the_first_call() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (first, first_key) = desk.call(session, CALL);
    let first_to = desk.exchanges;
    let again = CALL.replace("\\u0061", "b");
    let (second, second_key) = desk.call(session, &again);
    let second_to = desk.exchanges;
    assert_ne!(first, second);
    let said = progress("\"t\"", 1);
    assert_eq!(
        desk.hear(first_key, &progress(&digits(first), 1)),
        Got::Progress(first_to, said.clone())
    );
    assert_eq!(
        desk.hear(first_key, &progress(&digits(second), 1)),
        Got::Progress(second_to, said.clone())
    );
    desk.answer(second_key, second);
    assert_eq!(
        desk.hear(first_key, &progress(&digits(first), 1)),
        Got::Progress(first_to, said)
    );
}

#[test]
fn a_tasks_progress_goes_on_after_the_answer_and_the_newest_tokens_are_kept() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (refused, key) = desk.call(session, TASK);
    desk.hear(key, &error(&digits(refused)));
    let mut ids = Vec::new();
    for _ in 0..=TASK_TOKENS_MAX {
        let (id, key) = desk.call(session, TASK);
        assert!(matches!(
            desk.hear(key, &progress(&digits(id), 0)),
            Got::Progress(..)
        ));
        desk.answer(key, id);
        desk.done(key);
        ids.push(id);
    }
    let (_, key) = desk.call(session, LIST);
    let to = Some(desk.exchanges);
    for id in &ids[1..] {
        let got = desk.hear(key, &progress(&digits(*id), 1));
        assert_eq!(got, Got::Message(session, to, progress("\"t\"", 1)));
    }
    for gone in [refused, ids[0]] {
        let got = desk.hear(key, &progress(&digits(gone), 1));
        assert_eq!(got, Got::Dropped(DropReason::Progress));
    }
    let other = desk.ready("other");
    let (_, key) = desk.call(other, LIST);
    let got = desk.hear(key, &progress(&digits(ids[5]), 1));
    assert_eq!(
        got,
        Got::Dropped(DropReason::Progress),
        "it is another session's"
    );
}

#[test]
fn a_servers_request_is_answered_once_by_its_own_client_under_its_own_id() {
    let mut desk = Desk::new();
    let (session, other) = (desk.ready("up"), desk.ready("other"));
    let (_, key) = desk.call(session, LIST);
    let to = Some(desk.exchanges);
    let (_, others_key) = desk.call(other, LIST);
    let raw = "\"\\u0071 x\"";
    let got = desk.hear(key, &request(raw));
    assert_eq!(got, Got::Asked(session, to, request("1")));
    assert_eq!(
        desk.asked(key, raw),
        request("2"),
        "the server may use an id again"
    );
    assert_eq!(
        desk.asked(others_key, "9"),
        request("1"),
        "each session counts for itself"
    );
    for wrong in [
        "3",
        "\"1\"",
        "01",
        "1.0",
        "-1",
        "0",
        "null",
        "18446744073709551617",
    ] {
        if scan(result(wrong, "{}").as_bytes()).is_ok() {
            desk.say(session, &result(wrong, "{}"));
        }
    }
    desk.say(
        session,
        &request("1")
            .replace("ping2", "notifications/x")
            .replace("\"id\":1,", ""),
    );
    assert_eq!(desk.taken().len(), 1, "only the notification is passed on");
    desk.say(session, &result("1", "{\"x\":1.0}"));
    let (key, answer) = desk.next();
    assert_eq!(text(&answer), result(raw, "{\"x\":1.0}"));
    assert_eq!(session_of(&answer), Some("up"));
    assert!(answer.may_repeat && !answer.is_call);
    desk.done(key);
    desk.say(session, &result("1", "{}"));
    assert!(desk.is_still(), "once");
    desk.say(other, &error("1"));
    let (_, answer) = desk.next();
    assert_eq!(
        (text(&answer), session_of(&answer)),
        (&*error("9"), Some("other"))
    );
    desk.say(session, &error("2"));
    assert_eq!(text(&desk.next().1), error(raw));
}

#[test]
fn a_request_that_the_server_withdraws_can_no_longer_be_answered() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (_, key) = desk.call(session, LIST);
    let to = Some(desk.exchanges);
    desk.asked(key, "7");
    let cancel = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"x"}}}}"#
        )
    };
    assert_eq!(
        desk.hear(key, &cancel("1")),
        Got::Dropped(DropReason::UnknownId)
    );
    assert_eq!(
        desk.hear(key, &cancel("7")),
        Got::Message(session, to, cancel("1"))
    );
    assert_eq!(
        desk.hear(key, &cancel("7")),
        Got::Dropped(DropReason::UnknownId)
    );
    desk.say(session, &result("1", "{}"));
    assert!(desk.is_still());
}

#[test]
fn a_server_that_asks_too_much_is_answered_in_the_clients_place() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (_, key) = desk.call(session, LIST);
    for n in 0..ASKED_MAX {
        desk.asked(key, &n.to_string());
    }
    assert_eq!(
        desk.hear(key, &request("\"much\"")),
        Got::Dropped(DropReason::SlowReader)
    );
    let answer = json(&desk.next().1);
    assert_eq!(
        (&answer["id"], &answer["error"]["data"]["reason"]),
        (&"much".into(), &"overloaded".into())
    );
    desk.say(session, &result("1", "{}"));
    assert_eq!(json(&desk.next().1)["id"], 0);
    desk.asked(key, "\"again\"");
}

#[test]
fn messages_are_passed_on_as_they_are() {
    let mut desk = Desk::new();
    let session = desk.ready("up");
    let (id, key) = desk.call(session, LIST);
    let to = desk.exchanges;
    let said = log("x").replace(",\"params\"", " ,\n\"params\"");
    let got = desk.hear(key, &said);
    assert_eq!(
        got,
        Got::Message(session, Some(to), said.replace('\n', " "))
    );
    desk.answer(key, id);
    assert_eq!(
        desk.hear(key, &log("y")),
        Got::Message(session, None, log("y"))
    );
    for (said, reason) in [
        ("{}", DropReason::NotMessage),
        ("[]", DropReason::NotMessage),
        ("not json", DropReason::NotJson),
    ] {
        assert_eq!(desk.hear(key, said), Got::Dropped(reason), "{said}");
    }
    desk.done(key);
    assert_eq!(
        desk.hear(key, &log("z")),
        Got::Dropped(DropReason::LateAnswer)
    );
}
