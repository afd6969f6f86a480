//! A client's `initialize`, from its way to the server to a session or a refusal.

use super::*;
use crate::routing::private::Unopened;

#[test]
fn it_is_forwarded_as_it_is_under_an_id_of_ringways_own() {
    let mut desk = Desk::new();
    let text_in = INITIALIZE.replace("\"id\"", " \"x\": 1.0, \"id\"\t");
    let key = desk.try_initialize(&text_in, b"a: b\r\n").unwrap();
    let (begun, request) = desk.next();
    assert_eq!(
        (begun, request.verb, request.may_repeat),
        (key, Verb::Post, false)
    );
    assert!(!request.is_call && request.last_event_id.is_none());
    assert_eq!(
        (session_of(&request), request.address.version),
        (None, None)
    );
    assert_eq!(&*request.address.fields, b"a: b\r\n");
    let id = json(&request)["id"].to_string();
    assert_eq!(text(&request), text_in.replace("\"first\"", &id));

    desk.head(key, "up");
    let got = desk.hear(key, &accepted(&request, "{}"));
    let Got::Session(session) = got else {
        panic!("{got:?}")
    };
    assert!(
        desk.was_aborted(key),
        "its response is at its end, whatever the server thinks"
    );
    desk.state.pass_fields(session, b"a: c\r\n");
    desk.ask(session, LIST);
    let (key, request) = desk.next();
    assert_eq!(session_of(&request), Some("up"));
    assert_eq!(request.address.version, Some(Version::NEWEST));
    assert_eq!(&*request.address.fields, b"a: c\r\n");
    desk.end(key, End::Late);
    desk.end_session(session);
    let (_, request) = desk.next();
    assert_eq!(
        (request.verb, session_of(&request)),
        (Verb::Delete, Some("up"))
    );
    assert_eq!(&*request.address.fields, b"a: c\r\n");
}

#[test]
fn a_version_that_nobody_knows_is_not_offered_and_a_known_one_is() {
    let mut desk = Desk::new();
    for (asked, offered) in [
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("2099-01-01", "2025-11-25"),
        ("2025-03-2\\u0036", "2025-03-26"),
    ] {
        let (key, request) = desk.initialize(&INITIALIZE.replace("2025-11-25", asked));
        assert_eq!(json(&request)["params"]["protocolVersion"], offered);
        desk.state.abandon_opening(key);
    }
}

#[test]
fn the_servers_own_version_governs_the_session() {
    let mut desk = Desk::new();
    let (key, request) = desk.initialize(INITIALIZE);
    let older = accepted(&request, "{}").replace("2025-11-25", "2025-03-26");
    let Got::Session(session) = desk.hear(key, &older) else {
        panic!()
    };
    desk.ask(session, LIST);
    assert_eq!(desk.next().1.address.version, Version::parse(b"2025-03-26"));
}

#[test]
fn an_error_reaches_the_client_with_its_own_id_and_a_session_that_it_names_ends() {
    let mut desk = Desk::new();
    let (key, request) = desk.initialize(INITIALIZE);
    desk.head(key, "up");
    let id = digits(id_of(&request));
    assert_eq!(
        desk.hear(key, &error(&id)),
        Got::Refused(error("\"first\""))
    );
    let (_, request) = desk.next();
    assert_eq!(
        (request.verb, session_of(&request)),
        (Verb::Delete, Some("up"))
    );
}

#[test]
fn a_session_id_that_cannot_be_sent_back_is_refused() {
    let mut desk = Desk::new();
    let (key, request) = desk.initialize(INITIALIZE);
    desk.state.head(key, Some(Err(())));
    let got = desk.hear(key, &accepted(&request, "{}"));
    assert!(
        matches!(got, Got::Refused(message) if message.contains("visible ASCII") && message.contains("\"first\""))
    );
    assert!(desk.is_still() && desk.state.sessions.is_empty());
}

#[test]
fn a_server_without_session_ids_is_never_told_of_an_end() {
    let mut desk = Desk::new();
    let (key, request) = desk.initialize(INITIALIZE);
    desk.state.head(key, None);
    let Got::Session(session) = desk.hear(key, &accepted(&request, "{}")) else {
        panic!()
    };
    let (_, key) = desk.call(session, LIST);
    desk.done(key);
    desk.end_session(session);
    assert!(desk.is_still());
}

#[test]
fn a_handshake_that_ringway_cannot_read_is_refused_and_its_session_ends() {
    let mut desk = Desk::new();
    for (from, to) in [
        ("2025-11-25", "1999-01-01"),
        (r#""protocolVersion""#, r#""other""#),
    ] {
        let (key, request) = desk.initialize(INITIALIZE);
        desk.head(key, "up");
        let got = desk.hear(key, &accepted(&request, "{}").replace(from, to));
        assert!(matches!(got, Got::Refused(message) if message.contains("handshake")));
        let (key, request) = desk.next();
        assert_eq!(
            (request.verb, session_of(&request)),
            (Verb::Delete, Some("up"))
        );
        desk.done(key);
    }
}

#[test]
fn a_client_that_goes_leaves_nothing_whenever_it_goes() {
    let mut desk = Desk::new();
    let (key, _) = desk.initialize(INITIALIZE);
    desk.state.abandon_opening(key);
    assert!(desk.was_aborted(key) && desk.is_still(), "before the head");

    let (key, _) = desk.initialize(INITIALIZE);
    desk.head(key, "up");
    desk.state.abandon_opening(key);
    assert!(desk.was_aborted(key));
    let (end, request) = desk.next();
    assert_eq!(
        (request.verb, session_of(&request)),
        (Verb::Delete, Some("up"))
    );
    desk.state.abandon_opening(end);
    assert!(!desk.was_aborted(end), "it is no opening");
    desk.done(end);

    let (key, request) = desk.initialize(INITIALIZE);
    let Got::Session(session) = desk.hear(key, &accepted(&request, "{}")) else {
        panic!()
    };
    desk.state.abandon_opening(key);
    assert!(desk.is_alive(session), "it was answered before");

    let (key, _) = desk.initialize(INITIALIZE);
    assert!(desk.finish(key, End::Late).is_some());
    desk.state.abandon_opening(key);
    assert!(desk.is_still());

    let (id, call) = desk.call(session, LIST);
    desk.state.abandon_opening(call);
    assert!(
        matches!(desk.answer(call, id), Got::Answer(..)),
        "a call is no opening"
    );
}

#[test]
fn an_exchange_that_ends_without_an_answer_says_why() {
    let own = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"mine"}}"#;
    let odd = || Unopened::Odd("It ended its answer to initialize without a reply".into());
    let (other, status) = (Unopened::Other, Unopened::Status);
    for (end, code, says, reason) in [
        (End::Done, -32603, "without a reply", odd()),
        (End::NoSession, -32603, "know the session", status(404)),
        (End::TooLarge, -32603, "over the limit", other.clone()),
        (End::Late, -32603, "in time", other.clone()),
        (End::Overloaded, -32603, "overloaded", other.clone()),
        (End::Broken("It broke"), -32603, "It broke", other),
        (refused(401, "no"), -32603, "HTTP status 401", status(401)),
        (refused(400, own), -32600, "mine", status(400)),
    ] {
        let mut desk = Desk::new();
        let (key, _) = desk.initialize(INITIALIZE);
        desk.head(key, "up");
        let Some(Opened::Refused { message, why, .. }) = desk.finish(key, end) else {
            panic!()
        };
        assert_eq!(why, reason);
        let message: Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(
            (&message["id"], &message["error"]["code"]),
            (&"first".into(), &code.into())
        );
        assert!(
            message["error"]["message"].as_str().unwrap().contains(says),
            "{message}"
        );
        assert_eq!(desk.next().1.verb, Verb::Delete);
    }
}

#[test]
fn what_is_not_the_answer_is_dropped_and_the_answer_still_counts() {
    let mut desk = Desk::new();
    let other = desk.ready("other");
    let (id, call) = desk.call(other, LIST);
    let (key, request) = desk.initialize(INITIALIZE);
    let wrong = accepted(&request, "{}").replace(&digits(id_of(&request)), &digits(id));
    let answer_like = super::request(&digits(id_of(&request)));
    for text in [&*wrong, "\"x\"", &log("x"), CHANGED, &answer_like] {
        let got = desk.hear(key, text);
        assert!(matches!(got, Got::Dropped(_)), "{text}: {got:?}");
    }
    assert_eq!(desk.hear(key, "banner"), Got::Dropped(DropReason::NotJson));
    assert!(matches!(
        desk.hear(key, &accepted(&request, "{}")),
        Got::Session(_)
    ));
    assert!(
        matches!(desk.hear(key, &accepted(&request, "{}")), Got::Dropped(_)),
        "it comes once"
    );
    assert!(matches!(desk.answer(call, id), Got::Answer(..)));
}

#[test]
fn without_room_nothing_is_forwarded_and_a_session_that_finds_none_ends_upstream() {
    let mut desk = Desk::new();
    desk.state.limits.waiting_bytes_max = 600;
    desk.state = ShardState::new(
        0,
        1,
        desk.state.limits,
        ahash::RandomState::new(),
        Millis(0),
    )
    .with_private(EVERYTHING, Millis(0));
    let keys = [(); 4].map(|()| desk.try_initialize(INITIALIZE, b""));
    let begun = keys.iter().flatten().count();
    assert!((1..4).contains(&begun), "{begun}");
    desk.settle();
    let (key, request) = desk.begun.pop_front().unwrap();
    desk.head(key, "up");
    let reply = accepted(&request, "{}");
    let heard = desk
        .state
        .heard(key, reply.as_bytes(), Millis(0), &mut desk.acts);
    let Heard::Opened(Opened::Session { opening, .. }) = heard else {
        panic!("{heard:?}")
    };
    desk.state.decline(opening);
    assert_eq!(desk.all().pop().unwrap().1.verb, Verb::Delete);
    assert!(
        desk.try_initialize(INITIALIZE, b"").is_some(),
        "there is room again"
    );
}
