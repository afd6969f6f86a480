//! A server over HTTP that does everything wrong: it refuses, hangs, ends in the middle, sends rubbish or without
//! end, sends its clients elsewhere, and names sessions oddly. Each time the calls concerned are answered by a
//! JSON-RPC error with status 200, it is counted, and nobody else notices.

mod support;

use serde_json::json;
use support::http_server::{
    BOTH, Exchange, Form, HttpServer, JSON, SOON_IDLE, SSE, Seen, chunk, event, expect_echo, hold,
    hold_with_token, initialize_result, open, progress, send, start,
};
use support::mcp::{LATEST, initialize_body, raw_member};
use support::metrics::{self, Metrics};
use support::process::resident_peak_bytes;
use support::{
    Base, Gateway, Raw, Request, Response, Session, Stream, on_both_drivers, on_every_layout,
    wait_until,
};

const MIB: u64 = 1 << 20;

/// A session whose call is in flight at the server while another session has its trouble.
struct Bystander {
    session: Session,
    raw: Raw,
    call: Exchange,
}

impl Bystander {
    fn new(gateway: &Gateway, server: &HttpServer) -> Self {
        let (session, _) = open(gateway, server);
        let raw = send(
            gateway,
            &hold_with_token(&session, "1", "bystander", "\"t\""),
        );
        let mut call = server.take_held("bystander");
        call.sse();
        call.event(&progress("@TOKEN@", 1));
        Self { session, raw, call }
    }

    /// It has noticed nothing: its stream goes on, and other calls of its session do as well.
    fn expect_well(mut self, gateway: &Gateway) {
        assert!(!self.call.is_cut());
        expect_echo(gateway, &self.session);
        self.call.event(&progress("@TOKEN@", 2));
        self.call.reply(r#"{"unharmed":true}"#);
        let mut stream = Stream::of_answer(self.raw);
        stream.expect(&progress("\"t\"", 1));
        stream.expect(&progress("\"t\"", 2));
        stream.expect(r#"{"jsonrpc":"2.0","id":1,"result":{"unharmed":true}}"#);
        stream.expect_end();
    }
}

/// A whole response of these parts, the connection kept.
fn respond(mut exchange: Exchange, bytes: &str) {
    let bytes = exchange.fill(bytes);
    exchange.raw(bytes);
    exchange.release();
}

/// The same, and then the end of the connection.
fn respond_and_close(mut exchange: Exchange, bytes: &str) {
    let bytes = exchange.fill(bytes);
    exchange.raw(bytes);
    exchange.close();
}

fn json_body(exchange: Exchange, body: &str) {
    exchange.message(body);
}

fn stream_of(mut exchange: Exchange, text: &str) {
    exchange.sse();
    let text = exchange.fill(text);
    exchange.text(&text);
    exchange.end();
}

type Fault = (&'static str, fn(Exchange));

/// What a server may do instead of answering.
const FAULTS: &[Fault] = &[
    ("closed before the head", Exchange::close),
    ("reset before the head", Exchange::reset),
    ("closed inside the head", |x| {
        respond_and_close(x, "HTTP/1.1 200 OK\r\ncontent-type: applic")
    }),
    ("closed behind the head", |x| {
        respond_and_close(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n",
        )
    }),
    ("reset inside the body", |mut x| {
        x.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{\"json");
        x.reset();
    }),
    ("closed inside the body", |x| {
        respond_and_close(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{}}",
        )
    }),
    ("closed inside a chunk", |x| {
        respond_and_close(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n500\r\n{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{}}",
        )
    }),
    ("closed before the last chunk", |x| {
        respond_and_close(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
        )
    }),
    ("a body cut short that ends with the connection", |x| {
        respond_and_close(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"resu",
        )
    }),
    ("a stream that ends at once", |x| {
        stream_of(x, ": hello\n\n")
    }),
    ("a stream that ends inside an event", |x| {
        stream_of(x, "data: {\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{}}\n")
    }),
    ("a stream that is closed inside an event", |mut x| {
        x.sse();
        x.text("event: message\ndata: {\"jso");
        x.close();
    }),
    ("a stream that is closed between events", |mut x| {
        x.sse();
        x.text(&event(
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
        ));
        x.close();
    }),
    ("a stream that is reset", |mut x| {
        x.sse();
        x.reset();
    }),
    ("an answer under another event type", |x| {
        stream_of(
            x,
            "event: other\ndata: {\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{}}\n\n",
        )
    }),
    ("no HTTP", |x| {
        respond_and_close(x, "SSH-2.0-OpenSSH_9.2p1\r\n\r\n")
    }),
    ("binary rubbish", |mut x| {
        x.raw(b"\x15\x03\x01\x00\x02\x02\x46\x00\xff\xfe\r\n\r\n");
        x.close();
    }),
    ("another version of HTTP", |x| {
        respond(x, "HTTP/2 200\r\ncontent-length: 0\r\n\r\n")
    }),
    ("a status of two digits", |x| {
        respond(x, "HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n")
    }),
    ("a field without a colon", |x| {
        respond(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type\r\ncontent-length: 0\r\n\r\n",
        )
    }),
    ("two lengths", |x| {
        respond(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\ncontent-length: 4\r\n\r\n{}{}",
        )
    }),
    ("a length and chunks", |x| {
        respond(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        )
    }),
    ("a length that is none", |x| {
        respond(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: -2\r\n\r\n{}",
        )
    }),
    ("a chunk without a size", |x| {
        respond(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        )
    }),
    ("a chunk of more than there is", |x| {
        respond(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        )
    }),
    ("a folded field", |x| {
        respond(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n more\r\ncontent-length: 2\r\n\r\n{}",
        )
    }),
    ("an encoding", |x| {
        respond(
            x,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x0b\x08\x00",
        )
    }),
    ("other protocols", |x| {
        respond_and_close(
            x,
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        )
    }),
    ("interim answers for ever", |mut x| {
        for _ in 0..1_000 {
            x.raw("HTTP/1.1 102 Processing\r\n\r\n");
        }
        x.close();
    }),
    ("301", |x| elsewhere(x, "301 Moved Permanently")),
    ("302", |x| elsewhere(x, "302 Found")),
    ("303", |x| elsewhere(x, "303 See Other")),
    ("307", |x| elsewhere(x, "307 Temporary Redirect")),
    ("308", |x| elsewhere(x, "308 Permanent Redirect")),
    ("304", |x| respond(x, "HTTP/1.1 304 Not Modified\r\n\r\n")),
    ("400", |x| {
        x.status("400 Bad Request", Some("text/plain"), "bad")
    }),
    ("401", |x| {
        x.status(
            "401 Unauthorized",
            Some(JSON),
            r#"{"error":"invalid_token"}"#,
        )
    }),
    ("403", |x| x.status("403 Forbidden", None, "")),
    ("405", |x| x.status("405 Method Not Allowed", None, "")),
    ("406", |x| x.status("406 Not Acceptable", None, "")),
    ("429", |x| {
        x.status("429 Too Many Requests", Some("text/html"), "<html>")
    }),
    ("500", |x| {
        x.status("500 Internal Server Error", Some("text/html"), "<html>")
    }),
    ("500 with JSON", |x| {
        x.status(
            "500 Internal Server Error",
            Some(JSON),
            r#"{"detail":"oh"}"#,
        )
    }),
    ("500 with broken JSON", |x| {
        x.status("500 Internal Server Error", Some(JSON), r#"{"jsonrpc"#)
    }),
    ("502", |x| x.status("502 Bad Gateway", None, "")),
    ("503", |x| {
        x.status("503 Service Unavailable", Some(SSE), "data: x\n\n")
    }),
    ("599", |x| x.status("599 What", None, "")),
    ("202 to a call", Exchange::accept),
    ("204 to a call", |x| x.status("204 No Content", None, "")),
    ("nothing", |x| x.status("200 OK", Some(JSON), "")),
    ("null", |x| json_body(x, "null")),
    ("broken JSON", |x| {
        json_body(x, r#"{"jsonrpc":"2.0","id":@ID@,"result":{}"#)
    }),
    ("JSON that is no message", |x| {
        json_body(x, r#"{"result":1}"#)
    }),
    ("a number", |x| json_body(x, "17")),
    ("no UTF-8", |mut x| {
        x.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n");
        x.raw(b"\"\xff\xfe\"");
        x.release();
    }),
    ("deep nesting", |x| json_body(x, &"[".repeat(100_000))),
    ("a notification only", |x| {
        json_body(
            x,
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
        )
    }),
    ("an answer to something else", |x| {
        json_body(x, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)
    }),
    ("an answer without an id", |x| {
        json_body(x, r#"{"jsonrpc":"2.0","result":{}}"#)
    }),
    ("an answer with id and result twice", |x| {
        json_body(
            x,
            r#"{"jsonrpc":"2.0","id":@ID@,"id":@ID@,"result":{},"result":{}}"#,
        )
    }),
    ("a page", |x| {
        x.status("200 OK", Some("text/html"), "<html>it works</html>")
    }),
    ("no type", |x| x.status("200 OK", None, "hello")),
];

/// Sends the client elsewhere, to this server itself.
fn elsewhere(exchange: Exchange, status: &str) {
    let head = format!("HTTP/1.1 {status}\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n");
    respond(exchange, &head);
}

/// The call's own error, in whatever form its client takes; and its connection is good for the next call.
#[track_caller]
fn expect_fault(response: &Response, id: &str) {
    assert_eq!(response.status, 200, "{response}");
    let message = response.messages().pop().expect("an answer");
    assert_eq!(message["error"]["code"], -32603, "{response}");
    let reason = message["error"]["data"]["reason"].as_str();
    assert!(
        matches!(reason, Some("upstream_down" | "overloaded")),
        "{response}"
    );
    let text = message["error"]["message"].as_str().unwrap_or_default();
    assert!(!text.is_empty(), "{response}");
    assert_eq!(message["id"].to_string(), id, "{response}");
    assert!(
        !response.to_string().contains("upstream-secret"),
        "{response}"
    );
}

/// How often something went wrong with the server.
fn troubles(metrics: &Metrics) -> f64 {
    let calls = |labels: &[&str]| metrics.sum("ringway_calls_total", labels);
    calls(&[]) - calls(&["outcome=\"ok\""])
}

#[test]
fn whatever_goes_wrong_with_an_answer_is_the_calls_own_error() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (session, _) = open(&gateway, &server);
        for (number, (what, fault)) in FAULTS.iter().enumerate() {
            eprintln!("--- {what}");
            let bystander = Bystander::new(&gateway, &server);
            let before = troubles(&metrics);
            let accept = [BOTH, JSON, SSE][number % 3];
            let request = hold_with_token(&session, "\"f\"", "f", "\"t\"");
            let mut raw = send(&gateway, &request.set("Accept", accept));
            fault(server.take_held("f"));
            expect_fault(&raw.response(), "\"f\"");
            assert_eq!(troubles(&metrics), before + 1.0, "{what}");
            let next = raw.ask(&session.call("\"f\"", "echo", r#"{"message":"n"}"#));
            assert_eq!(next.result()["content"][0]["text"], "n", "{what}: {next}");
            bystander.expect_well(&gateway);
        }
        // A call is not sent twice, whatever became of it, and nobody went elsewhere.
        assert_eq!(server.count(|seen| seen.is_held("f")), FAULTS.len());
        assert_eq!(server.count(|seen| seen.target != "/mcp"), 0);
    });
}

/// The same at the handshake: no session comes of it.
#[test]
fn whatever_goes_wrong_with_a_handshake_leaves_no_session() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        for (what, fault) in FAULTS {
            eprintln!("--- {what}");
            server.forget_rules();
            let fault = *fault;
            server.on_first(|seen| seen.is("initialize"), fault);
            let response = gateway.ask(&Request::post(initialize_body("\"f\"", LATEST)));
            expect_fault(&response, "\"f\"");
            assert_eq!(response.field("mcp-session-id"), None, "{what}: {response}");
        }
        server.forget_rules();
        expect_echo(&gateway, &Session::open(&gateway));
        wait_until("nothing is left of the others", || {
            metrics.sum("ringway_sessions", &[]) == 1.0
                && metrics.sum("ringway_calls_in_flight", &[]) == 0.0
        });
        assert_eq!(server.count(|seen| seen.target != "/mcp"), 0);
    });
}

/// Many servers answer a refused request with an HTTP error that holds a JSON-RPC error: that one is the client's.
#[test]
fn json_rpc_errors_under_an_error_status_are_passed_on() {
    let error = r#"{"code":-32602,"message":"caf\u00e9 \/","data":{"b":1.0,"a":[]}}"#;
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        for status in [
            "400 Bad Request",
            "403 Forbidden",
            "422 No",
            "500 Oh",
            "503 Not now",
        ] {
            for id in ["\"id\":@ID@,", "\"id\":null,", ""] {
                for accept in [BOTH, JSON, SSE] {
                    let bystander = Bystander::new(&gateway, &server);
                    let mut raw = send(
                        &gateway,
                        &hold(&session, "\"f\"", "f").set("Accept", accept),
                    );
                    let call = server.take_held("f");
                    let body = format!(r#"{{"jsonrpc":"2.0",{id}"error":{error}}}"#);
                    let body = call.fill(&body);
                    call.status(status, Some("application/json; charset=utf-8"), &body);
                    let response = raw.response();
                    response.expect_error(200, -32602, Some("\"f\""));
                    let told = raw_member(&response.text(), "error");
                    assert_eq!(told.as_deref(), Some(error), "{status} {id}");
                    bystander.expect_well(&gateway);
                }
            }
        }
        expect_echo(&gateway, &session);
    });
}

/// An error status with another call's id, or with a result, is not what it says.
#[test]
fn error_status_cannot_answer_another_call() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (victim, _) = open(&gateway, &server);
        let (session, _) = open(&gateway, &server);
        let mut others: Vec<(Raw, Exchange)> = ["v0", "v1"]
            .into_iter()
            .map(|key| {
                let raw = send(&gateway, &hold(&victim, &format!("\"{key}\""), key));
                (raw, server.take_held(key))
            })
            .collect();
        for (_, other) in &others {
            let id = other.seen.id().expect("an id");
            for member in [
                r#""error":{"code":-1,"message":"m"}"#,
                r#""result":{"bad":1}"#,
            ] {
                let mut raw = send(&gateway, &hold(&session, "\"f\"", "f"));
                let call = server.take_held("f");
                let body = format!(r#"{{"jsonrpc":"2.0","id":{id},{member}}}"#);
                call.status("500 Oh", Some(JSON), &body);
                let response = raw.response();
                let message = response.message();
                assert!(
                    message["error"].is_object() && message["id"] == "f",
                    "{response}"
                );
            }
        }
        for (raw, call) in &mut others {
            assert!(!call.is_cut());
            assert!(!raw.has_something());
        }
        for (mut raw, call) in others {
            call.reply(r#"{"unharmed":true}"#);
            assert_eq!(raw.response().result()["unharmed"], true);
        }
    });
}

/// A server that says nothing, says half, or never stops saying nothing: the time-out ends each.
#[test]
fn hanging_server_is_a_time_out() {
    let ways: [Fault; 6] = [
        ("before the head", |x| x.park()),
        ("inside the status line", |mut x| {
            x.raw("HTTP/1.1 2");
            x.park();
        }),
        ("inside the head", |mut x| {
            x.raw("HTTP/1.1 200 OK\r\nconten");
            x.park();
        }),
        ("behind interim answers", |mut x| {
            x.raw("HTTP/1.1 100 Continue\r\n\r\n");
            x.park();
        }),
        ("inside the body", |mut x| {
            x.raw(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{",
            );
            x.park();
        }),
        ("inside an event", |mut x| {
            x.sse();
            x.text("data: {");
            x.park();
        }),
    ];
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let flags = ["--admin", "127.0.0.1:0", "--request-timeout", "300ms"];
        let gateway = start(layout, &flags, &server);
        let metrics = Metrics::of(&gateway);
        let (session, _) = open(&gateway, &server);
        let (other, _) = open(&gateway, &server);
        for (count, (what, hang)) in ways.into_iter().enumerate() {
            eprintln!("--- {what}");
            let accept = [BOTH, JSON, SSE][count % 3];
            let mut raw = send(&gateway, &hold(&session, "5", "k").set("Accept", accept));
            hang(server.take_held("k"));
            expect_echo(&gateway, &other);
            let error = raw.response().expect_error(200, -32603, Some("5"));
            assert_eq!(error["data"]["reason"], "timeout", "{what}");
            server.take_held("k").wait_cut();
            let timeouts = metrics.sum("ringway_calls_total", &["outcome=\"timeout\""]);
            assert_eq!(timeouts, (count + 1) as f64, "{what}");
            expect_echo(&gateway, &session);
        }
        // The same at the handshake.
        server.hold(|seen| seen.is("initialize"));
        let mut raw = send(&gateway, &Request::post(initialize_body("\"i\"", LATEST)));
        let handshake = server.take("the handshake", |seen| seen.is("initialize"));
        let response = raw.response();
        response.expect_error(200, -32603, Some("\"i\""));
        assert_eq!(response.field("mcp-session-id"), None, "{response}");
        handshake.wait_cut();
    });
}

/// Nothing listens: each call says so at once, and sessions outlive it.
#[test]
fn refused_connections_are_the_calls_own_errors() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        let (session, upstream) = open(&gateway, &server);
        let mut stream = Stream::open(&gateway, &session);
        server.take_get(&upstream).park();
        let mut raw = send(&gateway, &hold(&session, "1", "k"));
        server.take_held("k").park();
        let before = troubles(&metrics);
        server.down();
        expect_fault(&raw.response(), "1");
        for id in 0..20 {
            let id = id.to_string();
            expect_fault(&gateway.ask(&session.call(&id, "echo", "{}")), &id);
        }
        let response = gateway.ask(&Request::post(initialize_body("\"i\"", LATEST)));
        expect_fault(&response, "\"i\"");
        assert!(troubles(&metrics) >= before + 21.0);
        server.up();
        expect_echo(&gateway, &session);
        let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1}}"#;
        server.take_get(&upstream).event(log);
        stream.expect(log);
    });
}

/// What may come without end is cut off where the limit is.
#[test]
fn endless_answers_are_cut_off() {
    let ways: [Fault; 8] = [
        ("a JSON body with a length of 10 GB", |mut x| {
            x.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10000000000\r\n\r\n\"");
            pour(x, &"a".repeat(64 * 1024));
        }),
        ("a JSON body in chunks", |mut x| {
            x.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\"\r\n");
            pour(x, &chunk(&"a".repeat(64 * 1024)));
        }),
        ("a JSON body that ends with the connection", |mut x| {
            x.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n\"");
            pour(x, &"a".repeat(64 * 1024));
        }),
        ("an event", |mut x| {
            x.sse();
            x.text("data: ");
            pour(x, &chunk(&"a".repeat(64 * 1024)));
        }),
        ("lines of an event", |mut x| {
            x.sse();
            pour(
                x,
                &chunk(&"data: aaaaaaaaaaaaaaaaaaaaaaaaa\n".repeat(2_000)),
            );
        }),
        ("a head", |mut x| {
            x.raw("HTTP/1.1 200 OK\r\n");
            pour(x, &"x-field: aaaaaaaaaaaaaaaaaaaaa\r\n".repeat(2_000));
        }),
        ("an error's body", |mut x| {
            x.raw("HTTP/1.1 500 Oh\r\ncontent-type: application/json\r\ncontent-length: 10000000000\r\n\r\n\"");
            pour(x, &"a".repeat(64 * 1024));
        }),
        ("trailers", |mut x| {
            x.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n");
            pour(x, &"x-field: aaaaaaaaaaaaaaaaaaaaa\r\n".repeat(2_000));
        }),
    ];
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let flags = ["--admin", "127.0.0.1:0", "--max-message", "1MiB"];
        let gateway = start(layout, &flags, &server);
        let metrics = Metrics::of(&gateway);
        let (session, _) = open(&gateway, &server);
        expect_echo(&gateway, &session);
        let base = Base::of(&gateway);
        for (what, endless) in ways {
            eprintln!("--- {what}");
            let bystander = Bystander::new(&gateway, &server);
            let before = troubles(&metrics);
            let mut raw = send(&gateway, &hold(&session, "5", "k"));
            let call = server.take_held("k");
            let pouring = std::thread::spawn(move || endless(call));
            expect_fault(&raw.response(), "5");
            assert_eq!(troubles(&metrics), before + 1.0, "{what}");
            bystander.expect_well(&gateway);
            pouring.join().expect("the gateway closes the connection");
            expect_echo(&gateway, &session);
        }
        let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
        println!(
            "figure: endless answers: {} MiB more at the peak, {layout:?}",
            more / MIB
        );
        assert!(more < 64 * MIB, "{} MiB", more / MIB);
    });
}

/// Writes the same again and again, up to 10 GB, until the gateway has closed the connection.
fn pour(mut exchange: Exchange, text: &str) {
    let times = 10_000_000_000 / text.len();
    for _ in 0..times {
        if !exchange.raw(text) {
            return;
        }
    }
    panic!("10 GB were taken");
}

/// A stream without end whose every message is small: bounded by whoever reads it, and cut off with its call.
#[test]
fn endless_streams_of_small_things_end_with_their_call() {
    on_both_drivers(|layout| {
        for text in [
            ": a comment\n".repeat(1_000),
            "retry: 5\nid: 7\n\n".repeat(1_000),
            "\n".repeat(9_000),
        ] {
            let server = HttpServer::new();
            let gateway = start(layout, &SOON_IDLE, &server);
            let (session, _) = open(&gateway, &server);
            let (other, _) = open(&gateway, &server);
            expect_echo(&gateway, &session);
            let base = Base::of(&gateway);
            let mut raw = send(&gateway, &hold(&session, "5", "k"));
            let mut call = server.take_held("k");
            call.sse();
            let pouring = std::thread::spawn(move || while call.text(&text) {});
            for _ in 0..100 {
                expect_echo(&gateway, &other);
            }
            assert_eq!(gateway.ask(&session.cancel("5")).status, 202);
            let response = raw.response();
            assert_eq!(response.status, 200, "{response}");
            pouring.join().expect("the gateway closes the connection");
            let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
            assert!(more < 64 * MIB, "{} MiB", more / MIB);
            base.wait_until_back(&gateway);
        }
    });
}

/// What servers say to what wants no answer is nobody's concern.
#[test]
fn every_answer_to_a_notification_is_taken() {
    let ways: [Fault; 16] = [
        ("200 null", |x| x.status("200 OK", Some(JSON), "null")),
        ("200 null without a type", |x| {
            x.status("200 OK", None, "null")
        }),
        ("200 nothing", |x| x.status("200 OK", None, "")),
        ("200 nothing as JSON", |x| {
            x.status("200 OK", Some(JSON), "")
        }),
        ("200 and an object", |x| {
            x.status("200 OK", Some(JSON), "{}")
        }),
        ("200 and words", |x| {
            x.status("200 OK", Some("text/plain"), "thanks")
        }),
        ("204", |x| x.status("204 No Content", None, "")),
        ("202 with a body", |x| {
            x.status("202 Accepted", Some("text/plain"), "Accepted")
        }),
        ("202 with null", |x| {
            x.status("202 Accepted", Some(JSON), "null")
        }),
        ("an empty stream", |x| stream_of(x, "")),
        ("an error", |x| {
            x.status(
                "200 OK",
                Some(JSON),
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"m"}}"#,
            )
        }),
        ("400", |x| x.status("400 Bad Request", None, "")),
        ("500", |x| {
            x.status(
                "500 Oh",
                Some(JSON),
                r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"m"}}"#,
            )
        }),
        ("closed", Exchange::close),
        ("rubbish", |x| respond_and_close(x, "rubbish\r\n\r\n")),
        ("elsewhere", |x| elsewhere(x, "307 Temporary Redirect")),
    ];
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        // The client's first notification has been answered when a call is.
        expect_echo(&gateway, &session);
        server.hold(Seen::is_one_way);
        let mut connection = gateway.connect();
        for (what, say) in ways {
            eprintln!("--- {what}");
            let bystander_call = send(&gateway, &hold(&session, "1", "k"));
            let call = server.take_held("k");
            let notice = session.post(r#"{"jsonrpc":"2.0","method":"notifications/vendor"}"#);
            let response = connection.ask(&notice);
            assert_eq!(response.status, 202, "{what}: {response}");
            assert!(response.body.is_empty(), "{what}: {response}");
            say(server.take("the notification", |seen| seen.is("notifications/vendor")));
            expect_echo(&gateway, &session);
            call.reply(r#"{"unharmed":true}"#);
            let mut bystander_call = bystander_call;
            assert_eq!(
                bystander_call.response().result()["unharmed"],
                true,
                "{what}"
            );
        }
        assert_eq!(server.count(|seen| seen.target != "/mcp"), 0);
        assert_eq!(server.count(|seen| seen.is("initialize")), 1);
        assert_eq!(
            server.count(|seen| seen.is("notifications/vendor")),
            ways.len()
        );
    });
}

/// A session id goes back into a head: what could not stand there is refused, and never sent.
#[test]
fn odd_session_ids_are_refused() {
    let long = "x".repeat(1_025);
    let odd: Vec<Vec<u8>> = [
        &b""[..],
        b" ",
        b"a b",
        b"a\tb",
        b"caf\xc3\xa9",
        b"\x01",
        b"a\x7f",
        b"a\x00b",
        long.as_bytes(),
    ]
    .iter()
    .map(|id| id.to_vec())
    .collect();
    let longest = "~!\"#,;=\\".repeat(128);
    on_both_drivers(|layout| {
        for form in [Form::Json, Form::Sse] {
            let server = HttpServer::new();
            let gateway = start(layout, &metrics::FLAGS, &server);
            let metrics = Metrics::of(&gateway);
            for id in odd.clone() {
                eprintln!("--- {:?}", String::from_utf8_lossy(&id));
                server.forget_rules();
                server.on_first(|seen| seen.is("initialize"), named(form, id));
                let response = gateway.ask(&Request::post(initialize_body("\"i\"", LATEST)));
                response.expect_error(200, -32603, Some("\"i\""));
                assert_eq!(response.field("mcp-session-id"), None, "{response}");
            }
            assert_eq!(metrics.sum("ringway_sessions", &[]), 0.0);
            assert_eq!(server.count(|seen| seen.session().is_some()), 0);
            // The longest and oddest that is allowed comes back as it was.
            server.forget_rules();
            let own = longest.clone();
            server.on_first(
                |seen| !seen.is("initialize") && seen.is_one_way(),
                Exchange::accept,
            );
            server.on_first(|seen| seen.is("initialize"), named(form, own.into_bytes()));
            let session = Session::open(&gateway);
            let told = server.wait_one("the client is ready", |seen| {
                seen.is("notifications/initialized")
            });
            assert_eq!(told.session(), Some(longest.as_str()));
            drop(session);
        }
    });
}

/// Answers a handshake with this session id.
fn named(form: Form, id: Vec<u8>) -> impl Fn(Exchange) + Send + Sync + 'static {
    move |mut exchange| {
        let result = initialize_result("\"2025-11-25\"");
        let message = format!(r#"{{"jsonrpc":"2.0","id":@ID@,"result":{result}}}"#);
        let message = exchange.fill(&message);
        let (content_type, body) = match form {
            Form::Json => (JSON, message),
            Form::Sse => (SSE, event(&message)),
        };
        exchange.raw(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nmcp-session-id: "
        ));
        exchange.raw(&id);
        exchange.raw(format!("\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        exchange.release();
    }
}

/// Two names for one session, and another name later: the first one that was given is the session's.
#[test]
fn session_id_in_later_answers_changes_nothing() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, upstream) = open(&gateway, &server);
        let (_, other) = open(&gateway, &server);
        for id in [other.as_str(), "else", "caf\u{e9}", ""] {
            let mut raw = send(&gateway, &hold(&session, "1", "k"));
            let call = server.take_held("k");
            let body = call.fill(r#"{"jsonrpc":"2.0","id":@ID@,"result":{}}"#);
            let head = format!(
                "HTTP/1.1 200 OK\r\nmcp-session-id: {id}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            respond(call, &(head + &body));
            assert_eq!(raw.response().result(), json!({}));
            expect_echo(&gateway, &session);
        }
        let calls = server.seen(|seen| seen.is("tools/call"));
        assert!(calls.iter().all(|seen| seen.session() == Some(&upstream)));
    });
}

/// The reply is the end of the call, although the server keeps its stream open or says more.
#[test]
fn stream_that_stays_open_behind_the_reply_holds_nothing_up() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[metrics::FLAGS, SOON_IDLE].concat(), &server);
        let metrics = Metrics::of(&gateway);
        let (session, _) = open(&gateway, &server);
        expect_echo(&gateway, &session);
        let base = Base::of(&gateway);
        let mut calls = Vec::new();
        for accept in [BOTH, JSON, SSE] {
            let request = hold_with_token(&session, "1", "k", "\"t\"").set("Accept", accept);
            let mut raw = send(&gateway, &request);
            let mut call = server.take_held("k");
            call.sse();
            call.event(r#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#);
            assert_eq!(raw.response().result()["good"], true);
            call.event(&progress("@TOKEN@", 1));
            let next = raw.ask(&session.call("1", "echo", r#"{"message":"n"}"#));
            assert_eq!(next.result()["content"][0]["text"], "n");
            calls.push(call);
        }
        assert_eq!(metrics.sum("ringway_calls_in_flight", &[]), 0.0);
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        for call in &calls {
            call.wait_cut();
        }
        base.wait_until_back(&gateway);
    });
}

/// Bytes behind an answer are the beginning of nobody's.
#[test]
fn bytes_behind_an_answer_are_not_the_next_calls() {
    on_every_layout(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &[], &server);
        let (session, _) = open(&gateway, &server);
        for round in 0..20 {
            let mut raw = send(&gateway, &hold(&session, "1", "k"));
            let call = server.take_held("k");
            let answer = |text: &str| {
                let body = format!(r#"{{"jsonrpc":"2.0","id":@ID@,"result":{{"is":"{text}"}}}}"#);
                let body = call.fill(&body);
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            };
            let first = answer("first");
            let second = if round % 2 == 0 {
                answer("second")
            } else {
                "\r\n".to_owned()
            };
            respond(call, &(first + &second));
            assert_eq!(raw.response().result()["is"], "first");
            let next = raw.ask(&session.call("1", "echo", r#"{"message":"n"}"#));
            assert_eq!(next.result()["content"][0]["text"], "n");
        }
    });
}

/// The GET stream may fail in every way without an effect on calls; it is asked for again, but not in a hurry.
#[test]
fn whatever_goes_wrong_with_the_get_stream_hurts_no_call() {
    on_both_drivers(|layout| {
        for (what, fault) in FAULTS {
            // These are ways to say that there is none.
            if matches!(*what, "405" | "406") {
                continue;
            }
            eprintln!("--- {what}");
            let server = HttpServer::new();
            let gateway = start(layout, &[], &server);
            let fault = *fault;
            server.on(|seen| seen.method == "GET", fault);
            let (session, upstream) = open(&gateway, &server);
            let stream = Stream::open(&gateway, &session);
            for _ in 0..20 {
                expect_echo(&gateway, &session);
            }
            wait_until("it is asked for", || {
                server.count(|seen| seen.method == "GET") > 0
            });
            let asked = server.count(|seen| seen.method == "GET");
            assert!(asked < 50, "{what}: asked {asked} times");
            assert_eq!(server.count(|seen| seen.is("initialize")), 1, "{what}");
            assert_eq!(gateway.ask(&session.delete()).status, 204);
            server.wait_one("the end", |seen| {
                seen.method == "DELETE" && seen.session() == Some(&upstream)
            });
            drop(stream);
        }
    });
}

/// The client's DELETE is answered whatever the server makes of its own.
#[test]
fn whatever_goes_wrong_with_the_end_of_a_session_it_ends() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        let gateway = start(layout, &metrics::FLAGS, &server);
        let metrics = Metrics::of(&gateway);
        for (what, fault) in FAULTS {
            eprintln!("--- {what}");
            server.forget_rules();
            let fault = *fault;
            server.on_first(|seen| seen.method == "DELETE", fault);
            let (session, _) = open(&gateway, &server);
            assert_eq!(gateway.ask(&session.delete()).status, 204, "{what}");
            assert_eq!(
                gateway.ask(&session.call("1", "echo", "{}")).status,
                404,
                "{what}"
            );
        }
        wait_until("no session is left", || {
            metrics.sum("ringway_sessions", &[]) == 0.0
        });
        server.forget_rules();
        let (session, _) = open(&gateway, &server);
        expect_echo(&gateway, &session);
    });
}
