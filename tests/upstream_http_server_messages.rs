//! What the server says besides its replies, where each session has one of its own upstream: everything is that
//! session's, so everything is forwarded, in order, on the stream that it belongs to; and the client's answers go
//! back to the request that they answer, once.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use support::http_server::{
    BOTH, Exchange, HttpServer, JSON, SSE, Seen, event, expect_echo, hold, hold_with_token, open,
    progress, send, start,
};
use support::mcp::raw_member;
use support::metrics::{self, Metrics};
use support::process::resident_peak_bytes;
use support::{Base, Raw, Request, Session, Stream, on_both_drivers, on_every_layout, wait_until};

const MIB: u64 = 1 << 20;

/// What servers ask their clients, under the server's own id.
fn requests(id: &str) -> [String; 5] {
    [
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"sampling/createMessage","params":{{"maxTokens":1.50e+1,"messages":[{{"role":"user","content":{{"type":"text","text":"caf\u00e9 \/"}}}}],"_meta":{{"progressToken":{id}}}}}}}"#
        ),
        format!(
            r#"{{"jsonrpc":"2.0","method":"elicitation/create","params":{{"message":"Who?","requestedSchema":{{"z":1,"a":2}}}},"id":{id}}}"#
        ),
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#),
        format!(r#"{{ "jsonrpc" : "2.0","id" :{id}, "method":"ping","vendor":[] }}"#),
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"vendor/ask","params":{{}}}}"#),
    ]
}

const LOG: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":{"b":1.0,"a":"\u00e9"}}}"#;
const NOTICES: [&str; 7] = [
    LOG,
    r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed","params":{"_meta":{"x":1}}}"#,
    r#"{"method":"notifications/prompts/list_changed","jsonrpc":"2.0"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:\/b","title":"t"}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/vendor","params":{"n":9007199254740993}}"#,
];

/// What must come of a request of the server's: every byte but the id, which the gateway may have changed. Returns
/// the id as the client saw it.
#[track_caller]
fn expect_request(stream: &mut Stream, sent: &str) -> String {
    let seen = stream.message();
    let id = raw_member(&seen, "id").expect("a request has an id");
    let own = raw_member(sent, "id").expect("a request has an id");
    // The id stands first behind its key in each of these texts.
    let at = sent.find("\"id\"").expect("there");
    let at = at + sent[at..].find(&own).expect("there");
    let expected = format!("{}{id}{}", &sent[..at], &sent[at + own.len()..]);
    assert_eq!(seen.trim_end(), expected.trim_end());
    id
}

/// A client's answer with this raw id; `member` is its result or error.
fn answer(session: &Session, id: &str, member: &str) -> Request {
    session.post(format!(r#"{{ "jsonrpc":"2.0",{member} , "id": {id}}}"#))
}

const RESULT: &str = r#""result":{"z":1.50e+1,"a":"\u00e9 \/"}"#;
const ERROR: &str = r#""error":{"code":-1,"message":"User said \"no\"","data":[1.0]}"#;

/// The client's answer has come to the server as it was, with the server's own id, in the right session.
#[track_caller]
fn expect_answer(server: &HttpServer, upstream: &str, id: &str, member: &str, count: usize) {
    let is_it = |seen: &Seen| {
        seen.is_answer() && seen.session() == Some(upstream) && seen.id().as_deref() == Some(id)
    };
    let answers = server.wait_seen("the client's answer", count, is_it);
    let expected = format!(r#"{{ "jsonrpc":"2.0",{member} , "id": {id}}}"#);
    let last = &answers.last().expect("one at least").body;
    assert_eq!(last.trim_end(), expected);
}

/// Ids of every kind that a server may use.
const IDS: [&str; 6] = [
    "0",
    "7",
    "\"7\"",
    "\"srv-\\u0041\\/\"",
    "-9223372036854775808",
    "\"\"",
];

/// What the server asks while it works on a call is asked on that call's stream, and answered to the server.
#[test]
fn request_on_a_calls_stream_is_asked_and_answered_there() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let mut get = Stream::open(&gateway, &session);
        let mut upstream_get = server.take_get(&upstream);
        for (serial, accept) in [BOTH, SSE].into_iter().enumerate() {
            for server_id in IDS {
                let request = hold(&session, "\"call\"", "k").set("Accept", accept);
                let raw = send(&gateway, &request);
                let mut call = server.take_held("k");
                call.sse();
                let mut stream: Option<Stream> = None;
                let mut raw = Some(raw);
                for (kind, ask) in requests(server_id).iter().enumerate() {
                    call.text(&event(ask));
                    let stream = stream
                        .get_or_insert_with(|| Stream::of_answer(raw.take().expect("only once")));
                    let id = expect_request(stream, ask);
                    let member = if kind % 2 == 0 { RESULT } else { ERROR };
                    let response = gateway.ask(&answer(&session, &id, member));
                    assert_eq!(response.status, 202, "{response}");
                    let before = serial * requests("0").len();
                    expect_answer(&server, &upstream, server_id, member, before + kind + 1);
                }
                // Another of the same stream is told in order with what else is said there.
                for notice in NOTICES {
                    call.event(notice);
                }
                call.reply(r#"{"good":true}"#);
                let mut stream = stream.expect("it was begun");
                for notice in NOTICES {
                    stream.expect(notice);
                }
                stream.expect(r#"{"jsonrpc":"2.0","id":"call","result":{"good":true}}"#);
                stream.expect_end();
            }
        }
        // None of it was told twice.
        upstream_get.event(NOTICES[1]);
        get.expect(NOTICES[1]);
    });
}

/// What belongs to no call is said on the GET stream.
#[test]
fn get_stream_carries_everything_in_order() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let (other, other_upstream) = open(&gateway, &server);
        let mut stream = Stream::open(&gateway, &session);
        let mut others = Stream::open(&gateway, &other);
        let mut get = server.take_get(&upstream);
        let mut other_get = server.take_get(&other_upstream);
        assert_eq!(get.seen.field("mcp-protocol-version"), Some("2025-11-25"));
        for round in 0..3 {
            for notice in NOTICES {
                get.event(notice);
            }
            let asked: Vec<String> = (0..5)
                .map(|kind| requests(IDS[kind])[(kind + round) % 5].clone())
                .collect();
            for ask in &asked {
                get.text(&event(ask));
            }
            for notice in NOTICES {
                stream.expect(notice);
            }
            // All are asked before one is answered, and the answers come the other way round.
            let ids: Vec<String> = asked
                .iter()
                .map(|ask| expect_request(&mut stream, ask))
                .collect();
            for (kind, id) in ids.iter().enumerate().rev() {
                let member = if kind % 2 == 0 { RESULT } else { ERROR };
                let response = gateway.ask(&answer(&session, id, member));
                assert_eq!(response.status, 202, "{response}");
                expect_answer(&server, &upstream, IDS[kind], member, round + 1);
            }
        }
        // A burst in one write, changes among it that a shared server's stream would have merged.
        let burst: String = (0..500)
            .map(|step| {
                event(&LOG.replace("\"info\"", &format!("\"{step}\""))) + &event(NOTICES[1])
            })
            .collect();
        get.text(&burst);
        for step in 0..500 {
            stream.expect(&LOG.replace("\"info\"", &format!("\"{step}\"")));
            stream.expect(NOTICES[1]);
        }
        // The other session's stream has carried none of it.
        other_get.event(NOTICES[6]);
        others.expect(NOTICES[6]);
    });
}

/// Two servers' sessions may use the same id at the same time: each answer finds its own.
#[test]
fn same_id_of_two_sessions_is_two_requests() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let mut sessions: Vec<(Session, String, Stream, Exchange)> = (0..3)
            .map(|_| {
                let (session, upstream) = open(&gateway, &server);
                let stream = Stream::open(&gateway, &session);
                let get = server.take_get(&upstream);
                (session, upstream, stream, get)
            })
            .collect();
        for server_id in IDS {
            let ask = &requests(server_id)[2];
            let mut ids = Vec::new();
            for (_, _, stream, get) in &mut sessions {
                get.event(ask);
                ids.push(expect_request(stream, ask));
            }
            for (owner, (session, ..)) in sessions.iter().enumerate().rev() {
                let member = format!(r#""result":{{"owner":{owner}}}"#);
                let response = gateway.ask(&answer(session, &ids[owner], &member));
                assert_eq!(response.status, 202, "{response}");
            }
            for (owner, (_, upstream, ..)) in sessions.iter().enumerate() {
                let member = format!(r#""result":{{"owner":{owner}}}"#);
                expect_answer(&server, upstream, server_id, &member, 1);
            }
        }
    });
}

/// An answer that answers nothing must not reach the server: it could be taken for another's.
#[test]
fn answers_to_nothing_are_taken_and_go_nowhere() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let (stranger, _) = open(&gateway, &server);
        let mut stream = Stream::open(&gateway, &session);
        let mut get = server.take_get(&upstream);
        let ask = &requests("\"srv\"")[2];
        get.event(ask);
        let id = expect_request(&mut stream, ask);
        let quiet = [
            // Another session's.
            answer(&stranger, &id, RESULT),
            answer(&stranger, "\"srv\"", RESULT),
            // Ids that were never used, or are spelled as others.
            answer(&session, "12345", RESULT),
            answer(&session, "\"\"", RESULT),
            answer(&session, "[1]", RESULT),
            answer(&session, "\" srv\"", RESULT),
        ];
        for request in &quiet {
            let status = gateway.ask(request).status;
            // An id that is none may be refused; it must not be forwarded.
            assert!(matches!(status, 202 | 400), "{status}: {request:?}");
        }
        assert_eq!(gateway.ask(&answer(&session, &id, RESULT)).status, 202);
        expect_answer(&server, &upstream, "\"srv\"", RESULT, 1);
        // A second one, and one more in other words.
        for member in [RESULT, ERROR, RESULT] {
            assert_eq!(gateway.ask(&answer(&session, &id, member)).status, 202);
        }
        expect_echo(&gateway, &session);
        expect_echo(&gateway, &stranger);
        for session in [&session, &stranger] {
            assert_eq!(gateway.ask(&session.delete()).status, 204);
        }
        drop(gateway);
        assert_eq!(server.count(Seen::is_answer), 1);
    });
}

/// A server that gives up on its own request names it as its client knows it.
#[test]
fn cancel_of_the_servers_own_request_is_mapped() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let mut get_stream = Stream::open(&gateway, &session);
        let mut get = server.take_get(&upstream);
        for server_id in IDS {
            let cancel = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"reason":"late \u00e9","requestId":{server_id}}}}}"#
            );
            let ask = &requests(server_id)[0];
            // On the GET stream.
            get.event(ask);
            let id = expect_request(&mut get_stream, ask);
            get.event(&cancel);
            get_stream.expect(&cancel.replace(
                &format!("\"requestId\":{server_id}"),
                &format!("\"requestId\":{id}"),
            ));
            // On the stream of a call.
            let raw = send(&gateway, &hold(&session, "1", "k"));
            let mut call = server.take_held("k");
            call.sse();
            call.text(&event(ask));
            let mut stream = Stream::of_answer(raw);
            let id = expect_request(&mut stream, ask);
            call.text(&event(&cancel));
            stream.expect(&cancel.replace(
                &format!("\"requestId\":{server_id}"),
                &format!("\"requestId\":{id}"),
            ));
            call.reply("{}");
            stream.expect(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        }
        // One of nothing is nothing that concerns the client's own calls.
        let raw = send(&gateway, &hold_with_token(&session, "5", "k", "\"t\""));
        let mut call = server.take_held("k");
        call.sse();
        call.event(
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":@ID@}}"#,
        );
        call.event(&progress("@TOKEN@", 1));
        call.reply(r#"{"good":true}"#);
        let (before, last) = Stream::of_answer(raw).answer();
        assert!(before.contains(&progress("\"t\"", 1)), "{before:?}");
        assert!(last.contains("\"good\":true"), "{last}");
    });
}

/// A client that takes no streams on its calls is asked on its GET stream.
#[test]
fn json_only_client_is_asked_on_its_get_stream() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let mut stream = Stream::open(&gateway, &session);
        let get = server.take_get(&upstream);
        let mut raw = send(&gateway, &hold(&session, "1", "k").set("Accept", JSON));
        let mut call = server.take_held("k");
        call.sse();
        for notice in NOTICES {
            call.event(notice);
        }
        for notice in NOTICES {
            stream.expect(notice);
        }
        for (count, ask) in requests("\"srv\"").iter().enumerate() {
            call.text(&event(ask));
            let id = expect_request(&mut stream, ask);
            assert_eq!(gateway.ask(&answer(&session, &id, RESULT)).status, 202);
            expect_answer(&server, &upstream, "\"srv\"", RESULT, count + 1);
        }
        call.reply(r#"{"good":true}"#);
        let response = raw.response();
        assert_eq!(response.media_type(), Some(JSON), "{response}");
        assert_eq!(response.result()["good"], true);
        drop(get);
    });
}

/// What the client says of itself is for its server, unchanged.
#[test]
fn notifications_of_the_client_are_forwarded() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let (_, other) = open(&gateway, &server);
        let mut connection = gateway.connect();
        for body in [
            r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
            r#"{ "method":"notifications/progress","params":{"progress":1.50e+1,"progressToken":"srv-\u0041"},"jsonrpc":"2.0"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/vendor","params":{"n":9007199254740993}}"#,
        ] {
            assert_eq!(connection.ask(&session.post(body)).status, 202);
            let told = server.wait_one("the notification", |seen| seen.body.trim_end() == body);
            assert_eq!(told.session(), Some(upstream.as_str()));
        }
        let others = server.count(|seen| seen.session() == Some(&other));
        let ready = server.count(|seen| {
            seen.session() == Some(&other)
                && (seen.is("notifications/initialized") || seen.method == "GET")
        });
        assert_eq!(others, ready);
    });
}

/// The server's GET stream ends and comes back; its session and the client's stream live on.
#[test]
fn lost_get_stream_of_the_server_is_opened_again() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let mut stream = Stream::open(&gateway, &session);
        for (round, notice) in NOTICES.into_iter().take(4).enumerate() {
            let mut get = server.take_get(&upstream);
            get.event(notice);
            stream.expect(notice);
            match round {
                0 => get.end(),
                1 => get.close(),
                2 => get.reset(),
                _ => {
                    get.text("event: message\ndata: {\"jsonrpc\"");
                    get.close();
                }
            }
        }
        let mut get = server.take_get(&upstream);
        get.event(NOTICES[5]);
        stream.expect(NOTICES[5]);
        expect_echo(&gateway, &session);
        assert_eq!(server.count(|seen| seen.is("initialize")), 1);
    });
}

/// The client's stream ends and comes back; what is said then is heard.
#[test]
fn client_may_open_its_stream_again() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (session, upstream) = open(&gateway, &server);
        let mut stream = Stream::open(&gateway, &session);
        let mut get = server.take_get(&upstream);
        // Replaced by a newer one, which then is the one.
        let mut newer = Stream::open(&gateway, &session);
        stream.expect_end();
        get.event(LOG);
        newer.expect(LOG);
        drop(newer);
        wait_until("it is gone", || metrics.sum("ringway_streams", &[]) == 0.0);
        // The server's is open while the client's is.
        get.wait_cut();
        let mut again = Stream::open(&gateway, &session);
        let mut get = server.take_get(&upstream);
        get.event(NOTICES[6]);
        again.expect(NOTICES[6]);
        assert_eq!(server.count(|seen| seen.method == "GET"), 2);
    });
}

/// A server that offers no GET stream is asked once, and everything else works.
#[test]
fn server_without_a_get_stream_is_no_failure() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        server.refuse_get();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        let mut stream = Stream::open(&gateway, &session);
        expect_echo(&gateway, &session);
        // Calls have streams of their own all the same.
        let mut raw = send(&gateway, &hold(&session, "1", "k").set("Accept", JSON));
        let mut call = server.take_held("k");
        call.sse();
        call.event(LOG);
        call.reply("{}");
        stream.expect(LOG);
        assert_eq!(raw.response().result(), json!({}));
        assert!(server.count(|seen| seen.method == "GET") <= 1);
    });
}

/// A stream that carries messages cannot leave any out: one that is not read is closed, and the client knows.
#[test]
fn unread_get_stream_is_closed_and_memory_is_bounded() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (bystander, bystander_upstream) = open(&gateway, &server);
        let mut heard = Stream::open(&gateway, &bystander);
        let mut bystander_get = server.take_get(&bystander_upstream);
        let (session, upstream) = open(&gateway, &server);
        expect_echo(&gateway, &session);
        let base = Base::of(&gateway);
        let mut lazy = Raw::connect_lazily(gateway.address);
        lazy.send(session.get().bytes());
        let mut get = server.take_get(&upstream);
        let long = LOG.replace("\"info\"", &format!("\"{}\"", "i".repeat(64 * 1024)));
        let mut sent = 0;
        let streams = || metrics.sum("ringway_streams", &[]);
        wait_until("both streams are counted", || streams() == 2.0);
        // Up to 256 MiB: a gateway that keeps it all fails by its memory, one that waits by its time.
        while streams() > 1.0 && sent < 4_096 && !get.is_cut() {
            if !get.event(&long) {
                break;
            }
            sent += 1;
        }
        wait_until("the unread stream is closed", || streams() == 1.0);
        let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
        println!(
            "figure: unread GET stream: {} MiB more at the peak, {layout:?}",
            more / MIB
        );
        assert!(more < 96 * MIB, "{} MiB", more / MIB);
        assert!(sent < 4_096, "everything was taken: {sent}");
        wait_until("it is counted", || {
            metrics.sum("ringway_stream_overflows_total", &[]) == 1.0
        });
        lazy.drain();
        drop(lazy);
        // Its session lives on, and so does everybody else.
        expect_echo(&gateway, &session);
        bystander_get.event(LOG);
        heard.expect(LOG);
        get.wait_cut();
        let mut again = Stream::open(&gateway, &session);
        let mut get = server.take_get(&upstream);
        get.event(NOTICES[6]);
        loop {
            // What was being said when the stream was closed may come first.
            if again.message() == NOTICES[6] {
                break;
            }
        }
    });
}

/// A client that does not read the stream of its call holds up its own call, and nobody's memory.
#[test]
fn unread_answer_is_bounded() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let flags = [&metrics::FLAGS[..], &["--max-buffered", "16MiB"]].concat();
        let gateway = start(layout, &flags, &server);
        let (session, _) = open(&gateway, &server);
        let (bystander, _) = open(&gateway, &server);
        expect_echo(&gateway, &session);
        let base = Base::of(&gateway);
        let mut lazy = Raw::connect_lazily(gateway.address);
        lazy.send(hold_with_token(&session, "1", "k", "\"t\"").bytes());
        let mut call = server.take_held("k");
        call.sse();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                let long = LOG.replace("\"info\"", &format!("\"{}\"", "i".repeat(64 * 1024)));
                for _ in 0..4_096 {
                    if stop.load(Ordering::Relaxed) || !call.event(&long) {
                        break;
                    }
                }
                drop(call);
            });
            for _ in 0..200 {
                expect_echo(&gateway, &bystander);
            }
            let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
            println!(
                "figure: unread answer: {} MiB more at the peak, {layout:?}",
                more / MIB
            );
            assert!(more < 96 * MIB, "{} MiB", more / MIB);
            stop.store(true, Ordering::Relaxed);
            drop(lazy);
        });
        expect_echo(&gateway, &bystander);
        expect_echo(&gateway, &session);
    });
}

/// A server that asks for ever and a client that never answers: bounded, counted, and nobody else notices.
#[test]
fn unanswered_requests_of_the_server_are_bounded() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (bystander, _) = open(&gateway, &server);
        let (session, upstream) = open(&gateway, &server);
        let stream = Stream::open(&gateway, &session);
        let mut get = server.take_get(&upstream);
        let base = Base::of(&gateway);
        ask_for_long(&mut get, stream);
        let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
        println!(
            "figure: unanswered requests: {} MiB more at the peak, {layout:?}",
            more / MIB
        );
        assert!(more < 96 * MIB, "{} MiB", more / MIB);
        expect_echo(&gateway, &bystander);
        expect_echo(&gateway, &session);
        assert_eq!(gateway.ask(&session.delete()).status, 204);
    });
}

/// Asks with long ids, which something has to remember, while the client reads and does not answer.
fn ask_for_long(get: &mut Exchange, stream: Stream) {
    let stop = AtomicBool::new(false);
    let mut raw = stream.into_raw();
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if raw.has_something() && raw.read_some().is_none() {
                    return;
                }
            }
        });
        let padding = "p".repeat(900);
        for batch in 0..200 {
            let asked: String = (0..1_000)
                .map(|number| {
                    let id = format!("\"{padding}{batch}-{number}\"");
                    event(&format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#
                    ))
                })
                .collect();
            if !get.text(&asked) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
