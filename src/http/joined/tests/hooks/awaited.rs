//! What happens to a call while a verdict about it is awaited. Nothing runs meanwhile but what a
//! test does: verdicts wait in their mailbox until it takes them.

use super::*;
use crate::limits::{HOOKED_PROGRESS_BYTES_MAX, HOOKED_PROGRESS_MAX};

fn passing(points: impl Into<Points>) -> Arc<dyn Hook> {
    Told::new(points, false, |_, _, _| Verdict::Pass)
}

/// A call about which a verdict is awaited.
struct Awaited {
    call: Call,
    /// What its server has read, if it has.
    asked: Option<Asked>,
}

/// Brings a request so far that its verdict at `point` is awaited.
fn await_at(bench: &Bench, session: SessionKey, id: &str, point: Point, upstream: &str) -> Awaited {
    let (method, params, _) = request_at(point, upstream);
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
    let call = bench.send(session, &text).call();
    let server = bench.server(upstream);
    let asked = (!is_before(point)).then(|| {
        let asked = server.one();
        match point {
            Point::Progress => server.progress(&asked, 1),
            _ => server.result(&asked, result_at(point)),
        }
        asked
    });
    assert_eq!(bench.ground.verdicts_owed(), 1);
    assert!(bench.is_silent(&call));
    Awaited { call, asked }
}

/// The verdict comes, and all that follows; what the client gets.
fn go_on(bench: &Bench, awaited: Awaited, point: Point, upstream: &str) -> Vec<Value> {
    bench.verdicts();
    let server = bench.server(upstream);
    match (point, awaited.asked) {
        (Point::Progress, Some(asked)) => server.result(&asked, result_at(point)),
        _ => {
            for (params, asked) in read(&server) {
                answer(&server, point, &params, asked.as_ref());
            }
        }
    }
    bench.verdicts();
    bench.answers(awaited.call)
}

/// Runs `body` for each point and each kind of upstream, with a hook that is not quick there.
fn at_each(body: impl Fn(&Bench, SessionKey, Point, &str)) {
    for point in Point::ALL {
        for upstream in ["one", "two"] {
            eprintln!("--- {point:?} {upstream}");
            let bench = Bench::hooked(&both(), hooks(vec![passing(point)]));
            let session = bench.client();
            body(&bench, session, point, upstream);
            bench.verdicts();
            bench.is_quiet();
        }
    }
}

fn reasons(messages: &[Value]) -> Vec<&Value> {
    let reason = |message: &'_ Value| -> bool { message.get("id").is_some() };
    let answers = messages.iter().filter(|message| reason(message));
    answers
        .map(|answer| &answer["error"]["data"]["reason"])
        .collect()
}

#[test]
fn its_id_is_taken_for_every_other_request() {
    at_each(|bench, session, point, upstream| {
        let awaited = await_at(bench, session, "\"a\"", point, upstream);
        for id in ["\"a\"", "\"\\u0061\""] {
            for (method, params) in [
                ("tools/call", r#"{"name":"one-x"}"#),
                ("tools/call", r#"{"name":"two-x"}"#),
                ("prompts/get", r#"{"name":"two-x"}"#),
                ("resources/read", r#"{"uri":"one-a:b"}"#),
                ("resources/subscribe", r#"{"uri":"two-a:b"}"#),
                ("tools/list", "{}"),
            ] {
                let text = format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
                );
                let refused = bench.send(session, &text).refused();
                assert_eq!(code(&refused), -32_600, "{text}");
                assert!(refused.get("id").is_none());
            }
        }
        assert!(bench.server("one").asked().is_empty());
        assert!(bench.server("two").asked().is_empty());
        // That of another session is not.
        let other = bench.client();
        let others = await_again(bench, other, "\"a\"", point, upstream);
        for awaited in [awaited, others] {
            let messages = go_on(bench, awaited, point, upstream);
            assert_eq!(
                messages.last().expect("an answer")["result"],
                result_at(point)
            );
        }
    });
}

#[test]
fn an_id_that_is_in_flight_upstream_is_refused_before_hooks_are_asked() {
    let point = Point::BeforePrompt;
    let bench = Bench::hooked(&both(), hooks(vec![passing(point)]));
    let session = bench.client();
    for upstream in ["one", "two"] {
        let call = bench.tool(session, 1, &format!("{upstream}-x"));
        let asked = bench.server(upstream).one();
        let (method, params, _) = request_at(point, "one");
        bench.ask(session, 1, method, &params).refused();
        assert_eq!(bench.ground.verdicts_owed(), 0);
        // The cancel is for the one that is in flight.
        bench.cancel(session, 1);
        bench.cancelled(call);
        assert_eq!(
            bench.server(upstream).one().method(),
            "notifications/cancelled"
        );
        drop(asked);
    }
    bench.is_quiet();
}

#[test]
fn its_client_may_cancel_it() {
    at_each(|bench, session, point, upstream| {
        let Awaited { call, asked } = await_at(bench, session, "\"a\"", point, upstream);
        bench.notify(
            session,
            "notifications/cancelled",
            &json!({"requestId": "a"}),
        );
        bench.cancelled(call);
        let told = bench.server(upstream).asked();
        match point {
            Point::Progress => assert_eq!(told[0].method(), "notifications/cancelled"),
            _ => assert!(told.is_empty(), "{told:?}"),
        }
        bench.is_quiet();
        // The verdict comes too late, and another call under the id is not touched by it.
        let again = await_again(bench, session, "\"a\"", point, upstream);
        let messages = go_on(bench, again, point, upstream);
        assert_eq!(
            messages.last().expect("an answer")["result"],
            result_at(point)
        );
        drop(asked);
    });
}

/// The same as [`await_at`] where the verdict about another call is owed still.
fn await_again(bench: &Bench, session: SessionKey, id: &str, point: Point, up: &str) -> Awaited {
    let (method, params, _) = request_at(point, up);
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
    let call = bench.send(session, &text).call();
    let asked = (!is_before(point)).then(|| {
        let asked = bench.server(up).one();
        match point {
            Point::Progress => bench.server(up).progress(&asked, 1),
            _ => bench.server(up).result(&asked, result_at(point)),
        }
        asked
    });
    Awaited { call, asked }
}

#[test]
fn a_cancel_finds_it_however_its_id_is_spelled() {
    at_each(|bench, session, point, upstream| {
        let awaited = await_at(bench, session, "\"\\u0061\"", point, upstream);
        bench.notify(
            session,
            "notifications/cancelled",
            &json!({"requestId": "a"}),
        );
        bench.cancelled(awaited.call);
        bench.server(upstream).asked();
    });
}

#[test]
fn a_cancel_after_the_verdict_goes_upstream() {
    at_each(|bench, session, point, upstream| {
        if !is_before(point) {
            return;
        }
        let awaited = await_at(bench, session, "1", point, upstream);
        bench.verdicts();
        let server = bench.server(upstream);
        let read = read(&server);
        assert_eq!(read.len(), 1);
        bench.cancel(session, 1);
        bench.cancelled(awaited.call);
        match &read[0].1 {
            Some(_) => assert_eq!(server.one().method(), "notifications/cancelled"),
            // A subscription that nobody waits for any more is given up once it is there.
            None => {
                let agreed = crate::routing::ledger::Told::Agreed;
                server.shard().told("a:b", agreed);
            }
        }
        bench.is_quiet();
    });
}

#[test]
fn its_session_may_end() {
    at_each(|bench, session, point, upstream| {
        let awaited = await_at(bench, session, "1", point, upstream);
        bench.joined.end_session(session);
        let messages = bench.answers(awaited.call);
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert_eq!(reasons(&messages), ["session_ended"]);
        bench.is_quiet();
        bench.verdicts();
        let told = bench.server(upstream).asked();
        let is_cancel = |asked: &Asked| asked.method() == "notifications/cancelled";
        assert!(told.iter().all(is_cancel), "{told:?}");
        if upstream == "one" {
            assert_eq!(told.len(), usize::from(point == Point::Progress));
        }
    });
}

#[test]
fn a_session_that_ends_answers_each_of_its_calls_once() {
    let bench = Bench::hooked(&both(), hooks(vec![passing(Points::ALL)]));
    let (session, other) = (bench.client(), bench.client());
    let mut calls = Vec::new();
    for (id, point) in Point::ALL.into_iter().enumerate() {
        let (method, params, _) = request_at(point, "one");
        calls.push(bench.begin(session, id as u32, method, &params));
    }
    bench.verdicts();
    // Half of them are upstream; of the others the verdict is awaited.
    for (id, point) in Point::ALL.into_iter().enumerate() {
        let (method, params, _) = request_at(point, "two");
        calls.push(bench.begin(session, 100 + id as u32, method, &params));
    }
    let (method, params, _) = request_at(Point::BeforeRead, "two");
    let kept = bench.begin(other, 1, method, &params);
    bench.joined.end_session(session);
    for call in calls {
        let messages = bench.answers(call);
        assert_eq!(reasons(&messages), ["session_ended"]);
    }
    bench.verdicts();
    let two = bench.server("two");
    two.result(&two.one(), json!({}));
    bench.verdicts();
    assert_eq!(bench.answer(kept)["result"], json!({}));
    bench.is_quiet();
}

#[test]
fn time_does_not_end_a_session_under_it() {
    at_each(|bench, session, point, upstream| {
        let awaited = await_at(bench, session, "1", point, upstream);
        bench.joined.tick(Millis(LIMITS.ttl_ms + 60_000));
        assert!(bench.joined.version(session).is_some());
        let messages = go_on(bench, awaited, point, upstream);
        assert_eq!(
            messages.last().expect("an answer")["result"],
            result_at(point)
        );
    });
}

#[test]
fn its_client_may_go() {
    for cancels in [false, true] {
        for point in Point::ALL {
            for upstream in ["one", "two"] {
                let mut bench = Bench::with(&both(), 1 << 20, cancels);
                bench.server("one").up();
                bench.take_verdicts();
                bench.set_hooks(&both(), Some(hooks(vec![passing(point)])));
                let session = bench.client();
                let Awaited { call, asked } = await_at(&bench, session, "1", point, upstream);
                bench.vanish(call);
                bench.verdicts();
                let server = bench.server(upstream);
                let read = read(&server);
                match (cancels, point) {
                    (true, Point::Progress) => {
                        let asked = read[0].1.as_ref().expect("a line");
                        assert_eq!(asked.method(), "notifications/cancelled");
                    }
                    (true, _) => assert!(read.is_empty()),
                    (false, point) if is_before(point) => {
                        let (params, asked) = &read[0];
                        answer(&server, point, params, asked.as_ref());
                    }
                    (false, Point::Progress) => {
                        server.result(&asked.expect("a line"), json!({}));
                        bench.verdicts();
                        // The progress and the answer.
                        assert_eq!(bench.dropped(DropReason::ClientGone), 2);
                    }
                    (false, _) => assert_eq!(bench.dropped(DropReason::ClientGone), 1),
                }
                bench.verdicts();
                bench.is_quiet();
            }
        }
    }
}

#[test]
fn its_time_may_be_over_upstream() {
    at_each(|bench, session, point, upstream| {
        let awaited = await_at(bench, session, "1", point, upstream);
        let server = bench.server(upstream);
        server.shard().tick(Millis(LONG));
        server.settle();
        if point != Point::Progress {
            // Upstream it is not yet, or no longer.
            let messages = go_on(bench, awaited, point, upstream);
            assert_eq!(messages[0]["result"], result_at(point));
            return;
        }
        let messages = bench.answers(awaited.call);
        assert_eq!(messages.len(), 1);
        assert_eq!(reasons(&messages), ["timeout"]);
        assert_eq!(bench.dropped(DropReason::SlowReader), 1);
        server.asked();
    });
}

#[test]
fn its_upstream_may_go_down() {
    for point in Point::ALL {
        let bench = Bench::hooked(&both(), hooks(vec![passing(point)]));
        let session = bench.client();
        let awaited = await_at(&bench, session, "1", point, "one");
        bench.server("one").down();
        if point != Point::Progress {
            assert!(bench.is_silent(&awaited.call), "{point:?}");
        }
        bench.verdicts();
        let messages = bench.answers(awaited.call);
        assert_eq!(messages.len(), 1, "{messages:?}");
        match is_before(point) || point == Point::Progress {
            true => assert_eq!(reasons(&messages), ["upstream_down"]),
            false => assert_eq!(messages[0]["result"], result_at(point)),
        }
        bench.is_quiet();
        bench.server("one").up();
    }
}

#[test]
fn its_route_may_get_other_hooks() {
    for has_others in [false, true] {
        for upstream in ["one", "two"] {
            let old = Told::new(Points::ALL, false, |call, point, _| {
                let count = call.take::<u32>().unwrap_or_default() + 1;
                call.insert(count);
                match point {
                    Point::AfterToolCall => {
                        Verdict::Rewrite(format!("{{\"old\":{count}}}").into_bytes())
                    }
                    _ => Verdict::Pass,
                }
            });
            let mut bench = Bench::hooked(&both(), hooks(vec![old]));
            let session = bench.client();
            let awaited = await_at(&bench, session, "1", Point::BeforeToolCall, upstream);
            let new = Told::new(Points::ALL, true, |_, _, _| Verdict::deny(-9, "new"));
            bench.set_hooks(&both(), has_others.then(|| hooks(vec![new])));
            // Its id is taken also where there are no hooks any more.
            let params = json!({"name": "two-x"});
            bench.ask(session, 1, "tools/call", &params).refused();
            let done = bench.ask(
                session,
                2,
                "tools/call",
                &json!({"name": format!("{upstream}-x")}),
            );
            match has_others {
                true => assert_eq!(code(&done.now()), -9),
                false => {
                    let server = bench.server(upstream);
                    server.result(&server.one(), json!({"new": 1}));
                    assert_eq!(bench.answer(done.call())["result"], json!({"new": 1}));
                }
            }
            let messages = go_on(&bench, awaited, Point::BeforeToolCall, upstream);
            assert_eq!(messages[0]["result"], json!({"old": 2}));
            bench.is_quiet();
        }
    }
}

#[test]
fn its_upstream_may_be_taken_from_the_route() {
    let others = [shared("three"), private("four")];
    for point in Point::ALL {
        for gone in [shared("one"), private("one")] {
            let all = [&[gone.clone()][..], &others].concat();
            let mut bench = Bench::hooked(&all, hooks(vec![passing(point)]));
            let session = bench.client();
            let awaited = await_at(&bench, session, "1", point, "one");
            bench.configure(&others);
            bench.verdicts();
            let messages = bench.answers(awaited.call);
            assert_eq!(messages.len(), 1, "{point:?} {messages:?}");
            match point {
                Point::Progress => assert_eq!(reasons(&messages), ["upstream_down"]),
                Point::BeforeToolCall | Point::BeforePrompt => {
                    assert_eq!(code(&messages[0]), -32_602);
                }
                Point::BeforeRead | Point::BeforeSubscribe => {
                    assert_eq!(code(&messages[0]), -32_002);
                }
                _ => assert_eq!(messages[0]["result"], result_at(point)),
            }
            let told = bench.server("one").asked();
            assert!(
                told.iter()
                    .all(|it| it.method() == "notifications/cancelled")
            );
            bench.is_quiet();
        }
    }
}

#[test]
fn a_route_that_is_closed_answers_it() {
    at_each(|bench, session, point, upstream| {
        let awaited = await_at(bench, session, "1", point, upstream);
        bench.joined.close();
        assert_eq!(reasons(&bench.answers(awaited.call)), ["session_ended"]);
        bench.server(upstream).asked();
    });
}

#[test]
fn a_drain_waits_for_it() {
    at_each(|bench, session, point, upstream| {
        let awaited = await_at(bench, session, "1", point, upstream);
        bench.ground.drain();
        assert!(bench.ground.calls_in_flight() > 0);
        assert!(!bench.ground.is_drained());
        let messages = go_on(bench, awaited, point, upstream);
        match is_before(point) {
            true => assert_eq!(reasons(&messages), ["draining"]),
            false => assert_eq!(
                messages.last().expect("an answer")["result"],
                result_at(point)
            ),
        }
        assert_eq!(bench.ground.calls_in_flight(), 0);
    });
}

#[test]
fn requests_of_a_batch_are_each_decided_for_themselves() {
    let points = Points::from(Point::BeforeToolCall).with(Point::AfterRead);
    let hook = Told::new(points, false, |call, _, _| match call.name() {
        "one-no" => Verdict::deny(-7, "no"),
        _ => Verdict::Pass,
    });
    let bench = Bench::hooked(&both(), hooks(vec![hook]));
    let session = bench.client();
    let connection = bench.connect();
    let first = bench.ground.begin_exchange(connection, Form::Bare);
    for (part, (method, params)) in [
        ("tools/call", r#"{"name":"one-no"}"#),
        ("tools/call", r#"{"name":"one-x"}"#),
        ("tools/call", r#"{"name":"two-x"}"#),
        ("resources/read", r#"{"uri":"two-a:b"}"#),
        // The id of the second.
        ("tools/call", r#"{"name":"two-x"}"#),
    ]
    .into_iter()
    .enumerate()
    {
        let id = if part == 4 { 1 } else { part };
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let envelope = scan::scan(text.as_bytes()).expect("a message");
        let to = crate::routing::calls::ReplyTo {
            part: part as u16,
            ..first
        };
        let step = bench
            .joined
            .message(session, text.as_bytes(), &envelope, to);
        match part {
            4 => assert!(matches!(step, Step::Refused(_))),
            _ => assert!(matches!(step, Step::InFlight { .. })),
        }
    }
    bench.verdicts();
    for name in ["one", "two"] {
        let server = bench.server(name);
        for asked in server.asked() {
            server.result(&asked, json!({ "by": name }));
        }
    }
    bench.verdicts();
    let mut got = bench.got(connection).messages;
    got.sort_by_key(|message| message["id"].as_u64());
    assert_eq!(got.len(), 4, "{got:?}");
    assert_eq!(code(&got[0]), -7);
    for (message, by) in got[1..].iter().zip(["one", "two", "two"]) {
        assert_eq!(message["result"]["by"], by);
    }
    bench.ground.end_exchange(connection);
    bench.disconnect(connection);
    bench.is_quiet();
}

#[test]
fn of_progress_that_waits_the_oldest_goes_when_there_is_too_much() {
    for upstream in ["one", "two"] {
        let bench = Bench::hooked(&both(), hooks(vec![passing(Point::Progress)]));
        let session = bench.client();
        let awaited = await_at(&bench, session, "1", Point::Progress, upstream);
        let server = bench.server(upstream);
        let asked = awaited.asked.as_ref().expect("a line");
        let sent = HOOKED_PROGRESS_MAX as u32 + 44;
        (2..=sent).for_each(|number| server.progress(asked, number));
        assert!(bench.joined.waiting_bytes() > 0);
        let messages = go_on(&bench, awaited, Point::Progress, upstream);
        let numbers: Vec<_> = messages
            .iter()
            .filter_map(|message| message["params"]["progress"].as_u64())
            .collect();
        // The first is with the hooks.
        let expected: Vec<u64> = [1].into_iter().chain(45..=u64::from(sent)).collect();
        assert_eq!(numbers, expected);
        assert_eq!(messages.len(), numbers.len() + 1);
        assert_eq!(bench.dropped(DropReason::SlowReader), 43);
        bench.is_quiet();
    }
}

#[test]
fn progress_that_waits_is_bounded_in_bytes() {
    let mut bench = Bench::with(&both(), 1 << 24, false);
    bench.server("one").up();
    bench.take_verdicts();
    bench.set_hooks(&both(), Some(hooks(vec![passing(Point::Progress)])));
    let session = bench.client();
    let awaited = await_at(&bench, session, "1", Point::Progress, "one");
    let one = bench.server("one");
    let asked = awaited.asked.as_ref().expect("a line");
    let token = &asked.message["params"]["_meta"]["progressToken"];
    let pad = "p".repeat(HOOKED_PROGRESS_BYTES_MAX / 8);
    for number in 2..=20 {
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{number},"message":"{pad}"}}}}"#
        );
        one.hear(None, line.as_bytes());
        assert!(bench.joined.waiting_bytes() < HOOKED_PROGRESS_BYTES_MAX + 1_000);
    }
    let messages = go_on(&bench, awaited, Point::Progress, "one");
    let dropped = bench.dropped(DropReason::SlowReader);
    assert_eq!(messages.len() as u64 + dropped, 21);
    assert_eq!(messages.len(), 9, "{dropped}");
    bench.is_quiet();
}

#[test]
fn an_answer_for_which_there_is_no_room_is_told_so() {
    let budget = 100_000;
    let mut bench = Bench::with(&both(), budget, false);
    bench.server("one").up();
    bench.take_verdicts();
    bench.set_hooks(&both(), Some(hooks(vec![passing(Point::Progress)])));
    let session = bench.client();
    let awaited = await_at(&bench, session, "1", Point::Progress, "one");
    let one = bench.server("one");
    let asked = awaited.asked.as_ref().expect("a line");
    one.result(asked, json!({"text": "x".repeat(budget / 2)}));
    assert!(bench.joined.waiting_bytes() < 1_000);
    bench.verdicts();
    let messages = bench.answers(awaited.call);
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0]["params"]["progress"], 1);
    assert_eq!(reasons(&messages), ["overloaded"]);
    bench.is_quiet();
}

#[test]
fn requests_are_not_held_where_there_is_no_room() {
    let budget = 100_000;
    let mut bench = Bench::with(&both(), budget, false);
    bench.server("one").up();
    bench.take_verdicts();
    bench.set_hooks(&both(), Some(hooks(vec![passing(Point::BeforeToolCall)])));
    let session = bench.client();
    let text = "x".repeat(budget / 2);
    let first = bench.begin(
        session,
        1,
        "tools/call",
        &json!({"name": "one-x", "arguments": {"text": text}}),
    );
    assert!(bench.ground.buffered_bytes() > budget / 2);
    bench.ground.tick();
    let params = json!({"name": "one-x"});
    let answer = bench.ask(session, 2, "tools/call", &params).now();
    assert_eq!(answer["error"]["data"]["reason"], "overloaded");
    bench.cancel(session, 1);
    bench.cancelled(first);
    bench.ground.tick();
    let third = bench.begin(session, 3, "tools/call", &params);
    bench.verdicts();
    let one = bench.server("one");
    one.result(&one.one(), json!({}));
    bench.answer(third);
    bench.is_quiet();
}

#[test]
fn without_a_way_back_for_verdicts_nothing_is_held() {
    let mut bench = Bench::new(&both());
    bench.set_hooks(&both(), Some(hooks(vec![passing(Points::ALL)])));
    let session = bench.client();
    for point in Point::ALL.into_iter().filter(|point| is_before(*point)) {
        let (method, params, _) = request_at(point, "one");
        let answer = bench.ask(session, 1, method, &params).now();
        assert_eq!(answer["error"]["data"]["reason"], "overloaded");
    }
    bench.is_quiet();
}

#[test]
fn it_counts_as_one_of_its_session_s_calls() {
    let point = Point::BeforeToolCall;
    let mut bench = Bench::hooked(&both(), hooks(vec![passing(point)]));
    bench.session_calls_max = 2;
    bench.configure(&both());
    let (session, other) = (bench.client(), bench.client());
    let params = json!({"name": "one-x"});
    let mut calls = vec![
        bench.begin(session, 1, "tools/call", &params),
        bench.begin(session, 2, "tools/call", &params),
    ];
    for method in ["tools/call", "tools/list"] {
        let answer = bench.ask(session, 3, method, &params).now();
        assert_eq!(answer["error"]["data"]["reason"], "overloaded");
    }
    calls.push(bench.begin(other, 1, "tools/call", &params));
    bench.verdicts();
    let one = bench.server("one");
    for asked in one.asked() {
        one.result(&asked, json!({}));
    }
    for call in calls {
        assert_eq!(bench.answer(call)["result"], json!({}));
    }
    bench.is_quiet();
}
