//! A session's GET stream, which tells what all its legs have to say.

use super::*;

fn two() -> Bench {
    Bench::new(&[shared("one"), private("two")])
}

const CHANGED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// The stream that the gateway has open at a server.
fn upward(server: &Server) -> ExchangeKey {
    server.settle();
    let streams = server.streams.borrow();
    assert_eq!(streams.len(), 1);
    streams[0]
}

#[test]
fn one_stream_tells_what_every_leg_says_and_only_to_its_session() {
    let bench = two();
    let (session, other) = (bench.client(), bench.client());
    let (stream, silent) = (bench.open_stream(session), bench.open_stream(other));
    let two = bench.server("two");
    two.settle();
    let streams = two.streams.borrow().clone();
    assert_eq!(streams.len(), 2);
    let message =
        br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    assert!(bench.is_woken(stream, || two.hear(Some(streams[0]), message)));
    assert_eq!(bench.told(session, stream), ["notifications/message"]);
    assert!(bench.told(other, silent).is_empty());
    bench
        .server("one")
        .shard()
        .changed(crate::wire::notice::Kinds::TOOLS);
    two.hear(Some(streams[0]), CHANGED);
    let changed = "notifications/tools/list_changed";
    assert_eq!(bench.told(session, stream), [changed, changed]);
    assert_eq!(bench.told(other, silent), [changed]);
    bench.is_quiet();
}

#[test]
fn a_write_that_fails_is_told_again_on_the_next_stream() {
    let bench = two();
    let session = bench.client();
    let stream = bench.open_stream(session);
    bench
        .server("one")
        .shard()
        .changed(crate::wire::notice::Kinds::TOOLS);
    let two = bench.server("two");
    two.hear(Some(upward(&two)), CHANGED);
    bench
        .joined
        .mark_changed(session, crate::wire::notice::Kinds::PROMPTS);
    let first = bench.to_write(session, stream).unwrap();
    assert_eq!(first.len(), 3);
    bench.joined.stream_wrote(session, stream, false);
    bench.end_stream(session, stream);
    let next = bench.open_stream(session);
    assert_eq!(bench.to_write(session, next).unwrap(), first);
    // Gone without a word of how its write went.
    bench.end_stream(session, next);
    let last = bench.open_stream(session);
    assert_eq!(bench.to_write(session, last).unwrap(), first);
    bench.joined.stream_wrote(session, last, true);
    bench.end_stream(session, last);
    let none = bench.open_stream(session);
    assert!(bench.told(session, none).is_empty());
    bench.is_quiet();
}

#[test]
fn what_a_replaced_stream_could_not_write_goes_to_the_newer_one() {
    use crate::wire::notice::Kinds;
    for more in [false, true] {
        let bench = two();
        let session = bench.client();
        let older = bench.open_stream(session);
        bench.joined.mark_changed(session, Kinds::TOOLS);
        assert_eq!(bench.to_write(session, older).unwrap().len(), 1);
        let newer = bench.open_stream(session);
        assert!(bench.to_write(session, older).is_none(), "it is replaced");
        let mut expected = vec!["notifications/tools/list_changed"];
        if more {
            bench.joined.mark_changed(session, Kinds::PROMPTS);
            assert_eq!(
                bench.told(session, newer),
                ["notifications/prompts/list_changed"]
            );
        } else {
            assert!(bench.told(session, newer).is_empty());
        }
        assert!(bench.is_woken(newer, || bench.joined.stream_wrote(session, older, false)));
        assert_eq!(bench.told(session, newer), std::mem::take(&mut expected));
        bench.end_stream(session, older);
        assert!(bench.told(session, newer).is_empty());
        bench.is_quiet();
    }
}

#[test]
fn a_stream_that_one_leg_has_too_much_for_ends_for_all_and_nothing_of_the_others_is_lost() {
    for shared_first in [true, false] {
        let ups = match shared_first {
            true => [shared("one"), private("two")],
            false => [private("two"), shared("one")],
        };
        let bench = Bench::with(&ups, 16 << 20, false);
        bench.server("one").up();
        let session = bench.client();
        let stream = bench.open_stream(session);
        let two = bench.server("two");
        let key = upward(&two);
        bench
            .server("one")
            .shard()
            .changed(crate::wire::notice::Kinds::TOOLS);
        let long = json!({
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"level": "info", "data": "d".repeat(100_000)},
        });
        for _ in 0..4 {
            two.hear(Some(key), long.to_string().as_bytes());
        }
        assert!(
            !bench.joined.is_stream(session, stream),
            "a write in progress must not wait"
        );
        assert!(bench.to_write(session, stream).is_none());
        assert!(
            two.streams.borrow().is_empty(),
            "nor does the server's stream go on"
        );
        bench.end_stream(session, stream);
        let next = bench.open_stream(session);
        assert_eq!(
            bench.told(session, next),
            ["notifications/tools/list_changed"]
        );
        bench.is_quiet();
    }
}

#[test]
fn what_waits_for_a_stream_is_counted_and_goes_with_the_session() {
    let bench = two();
    let session = bench.client();
    let stream = bench.open_stream(session);
    let two = bench.server("two");
    two.hear(Some(upward(&two)), CHANGED);
    assert!(bench.ground.buffered_bytes() > 0);
    bench.joined.end_session(session);
    assert_eq!(bench.ground.buffered_bytes(), 0);
    assert!(bench.to_write(session, stream).is_none());
    bench.end_stream(session, stream);
    bench.is_quiet();
}

#[test]
fn a_stream_of_an_ended_session_does_nothing_to_the_one_in_its_place() {
    let bench = two();
    let session = bench.client();
    let stream = bench.open_stream(session);
    bench
        .joined
        .mark_changed(session, crate::wire::notice::Kinds::TOOLS);
    bench.to_write(session, stream).unwrap();
    bench.joined.end_session(session);
    let other = bench.client();
    assert_eq!(other, session);
    let newer = bench.open_stream(other);
    bench.joined.stream_wrote(session, stream, false);
    bench.end_stream(session, stream);
    assert!(bench.joined.is_stream(other, newer));
    assert!(bench.told(other, newer).is_empty());
    assert!(!bench.joined.is_stream(session, stream));
    bench.is_quiet();
}

#[test]
fn a_stream_of_a_session_that_ended_before_it_is_opened_ends() {
    let bench = two();
    let session = bench.client();
    bench.joined.end_session(session);
    let stream = bench.open_stream(session);
    assert!(bench.to_write(session, stream).is_none());
    bench.end_stream(session, stream);
}
