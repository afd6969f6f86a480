//! The rows of the HTTP contract that concern one request at a time: what is answered with which status,
//! media type and fields, over raw sockets. The handshake is in `handshake`, framing in `http_framing`, who
//! may talk at all in `http_policy`, calls in flight in `calls`, the JSON itself in `json_rpc`.

mod support;

use serde_json::json;
use support::mcp::{LATEST, initialize_body, notification_body, ping_body, request_body};
use support::{Request, Session, Upstream, on_both_drivers, on_every_layout};

/// The plainest row: without it nothing else means much.
#[test]
fn request_is_answered_as_json_with_its_own_id() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let response = gateway.ask(&session.call("7", "echo", r#"{"message":"hello"}"#));
        assert_eq!(response.status, 200, "{response}");
        assert_eq!(
            response.media_type(),
            Some("application/json"),
            "{response}"
        );
        assert_eq!(response.raw_id().as_deref(), Some("7"), "{response}");
        assert_eq!(response.result()["content"][0]["text"], "hello");
    });
}

/// Clients wait for the whole body of a 202: it must be empty and say so.
#[test]
fn notification_and_response_are_accepted_without_a_body() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let bodies = [
            notification_body("notifications/initialized", "{}"),
            notification_body("notifications/whatever", r#"{"a":[1,2]}"#),
            r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#.to_owned(),
            r#"{"jsonrpc":"2.0","id":5,"result":{}}"#.to_owned(),
            r#"{"jsonrpc":"2.0","id":"5","error":{"code":-1,"message":"no"}}"#.to_owned(),
        ];
        for body in bodies {
            let response = connection.ask(&session.post(body.as_str()));
            assert_eq!(response.status, 202, "{body}: {response}");
            assert!(response.body.is_empty(), "{body}: {response}");
        }
        assert_eq!(connection.ask(&session.post(ping_body("1"))).status, 200);
    });
}

/// A client that forgot its session and one whose session ended must be told apart: only the second
/// should start anew.
#[test]
fn missing_session_is_400_and_unknown_session_is_404() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let call = session.call("7", "echo", r#"{"message":"x"}"#);

        let missing = connection.ask(&call.clone().without("Mcp-Session-Id"));
        missing.expect_error(400, -32600, Some("7"));
        let missing = connection.ask(&session.delete().without("Mcp-Session-Id"));
        assert_eq!(missing.status, 400, "{missing}");

        let unknown = [
            "00000000-0000-4000-8000-000000000000",
            "no-uuid",
            &session.id.to_uppercase(),
            &session.id[1..],
            &format!("{}0", session.id),
        ]
        .map(str::to_owned);
        for id in unknown {
            if id == session.id {
                continue;
            }
            let response = connection.ask(&call.clone().set("Mcp-Session-Id", &id));
            let error = response.expect_error(404, -32001, Some("7"));
            assert_eq!(error["message"], "Session not found", "{id}");
            let response = connection.ask(&session.delete().set("Mcp-Session-Id", &id));
            assert_eq!(response.status, 404, "{id}: {response}");
            let error = &response.json()["error"];
            assert_eq!(error["code"], -32001, "{id}");
        }
        // None of that has touched the session that exists.
        assert_eq!(connection.ask(&call).status, 200);
    });
}

/// An ended session must stay ended, on every connection, for every method that names it.
#[test]
fn deleted_session_is_gone_for_everyone() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let (ended, other) = (Session::open(&gateway), Session::open(&gateway));
        let mut connections = [gateway.connect(), gateway.connect(), gateway.connect()];
        for connection in &mut connections {
            assert_eq!(connection.ask(&ended.post(ping_body("1"))).status, 200);
        }
        let response = connections[0].ask(&ended.delete());
        assert_eq!(response.status, 204, "{response}");
        for connection in &mut connections {
            connection
                .ask(&ended.post(ping_body("1")))
                .expect_error(404, -32001, Some("1"));
            assert_eq!(connection.ask(&ended.delete()).status, 404);
            assert_eq!(connection.ask(&other.post(ping_body("1"))).status, 200);
        }
    });
}

/// Which form of answer a client accepts, in all the spellings that clients send.
#[test]
fn accept_decides_the_form_of_the_answer() {
    let rows: [(Option<&str>, Option<&str>); 16] = [
        (None, Some("application/json")),
        (Some("*/*"), Some("application/json")),
        (Some("application/*"), Some("application/json")),
        (Some("application/json"), Some("application/json")),
        (Some("APPLICATION/JSON"), Some("application/json")),
        (
            Some("application/json;q=0.5, text/html"),
            Some("application/json"),
        ),
        (
            Some("text/event-stream , application/json"),
            Some("application/json"),
        ),
        (Some("text/html, */*;q=0.1"), Some("application/json")),
        (Some("text/event-stream"), Some("text/event-stream")),
        (Some("text/*"), Some("text/event-stream")),
        (
            Some("application/json;q=0, text/event-stream"),
            Some("text/event-stream"),
        ),
        (Some("application/json;q=0, */*"), Some("text/event-stream")),
        (Some("text/html"), None),
        (Some("application/json;q=0"), None),
        (Some("application/jsonx"), None),
        (Some("image/*, text/plain"), None),
    ];
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for (accept, expected) in rows {
            let with = |request: Request| match accept {
                Some(accept) => request.set("Accept", accept),
                None => request.without("Accept"),
            };
            for request in [
                session.call("1", "echo", r#"{"message":"m"}"#),
                session.post(ping_body("1")),
                Request::post(initialize_body("1", LATEST)),
            ] {
                let response = connection.ask(&with(request));
                let Some(form) = expected else {
                    response.expect_refusal(406);
                    continue;
                };
                assert_eq!(response.status, 200, "{accept:?}: {response}");
                assert_eq!(response.media_type(), Some(form), "{accept:?}: {response}");
                assert_eq!(response.message()["id"], 1, "{accept:?}: {response}");
            }
            // A notification has no answer whose form could matter.
            let notification = session.post(notification_body("notifications/x", "{}"));
            assert_eq!(
                connection.ask(&with(notification)).status,
                202,
                "{accept:?}"
            );
        }
        // Two fields of one list header are one list.
        let split = session
            .post(ping_body("1"))
            .set("Accept", "text/html")
            .add("Accept", "application/json");
        assert_eq!(connection.ask(&split).status, 200);
    });
}

/// Proxies buffer and rewrite event streams unless the head tells them not to.
#[test]
fn event_stream_answer_has_its_head_and_exactly_one_event() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let request = session
            .call("\"a\"", "echo", r#"{"message":"line\nbreak"}"#)
            .set("Accept", "text/event-stream");
        let mut connection = gateway.connect();
        // Twice on one connection: the stream must end inside the connection, not with it.
        for _ in 0..2 {
            let response = connection.ask(&request);
            assert_eq!(response.status, 200, "{response}");
            assert!(response.is_sse(), "{response}");
            assert!(response.lists("cache-control", "no-cache"), "{response}");
            assert!(
                response.lists("cache-control", "no-transform"),
                "{response}"
            );
            assert_eq!(
                response.field("x-accel-buffering"),
                Some("no"),
                "{response}"
            );
            assert_eq!(response.raw_id().as_deref(), Some("\"a\""), "{response}");
            assert_eq!(response.result()["content"][0]["text"], "line\nbreak");
        }
        // Errors of the transport are JSON whatever was asked for.
        let lost = request.without("Mcp-Session-Id");
        connection
            .ask(&lost)
            .expect_error(400, -32600, Some("\"a\""));
    });
}

/// Operators force one form; a client that cannot take it still gets the other.
#[test]
fn response_mode_forces_a_form_for_those_who_accept_both() {
    on_both_drivers(|layout| {
        for (mode, form) in [
            ("auto", "application/json"),
            ("json", "application/json"),
            ("sse", "text/event-stream"),
        ] {
            let gateway = layout.start(&["--response-mode", mode], Upstream::Demo);
            let session = Session::open(&gateway);
            let call = session.call("1", "add", r#"{"a":1,"b":2}"#);
            let both = gateway.ask(&call);
            assert_eq!(both.media_type(), Some(form), "{mode}: {both}");
            for only in ["application/json", "text/event-stream"] {
                let response = gateway.ask(&call.clone().set("Accept", only));
                assert_eq!(response.media_type(), Some(only), "{mode}: {response}");
                assert_eq!(response.message()["id"], 1, "{mode}: {response}");
            }
        }
    });
}

/// A browser form can send `text/plain` across sites; a compressed body would pass unread.
#[test]
fn body_must_be_plain_json() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let ping = session.post(ping_body("1"));
        for good in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
        ] {
            let response = connection.ask(&ping.clone().set("Content-Type", good));
            assert_eq!(response.status, 200, "{good}: {response}");
        }
        for bad in [
            "text/plain",
            "application/jsonx",
            "application/json-rpc",
            "text/plain; application/json",
            "application/x-www-form-urlencoded",
            "json",
            "",
        ] {
            let response = connection.ask(&ping.clone().set("Content-Type", bad));
            response.expect_refusal(415);
        }
        connection
            .ask(&ping.clone().without("Content-Type"))
            .expect_refusal(415);
        for coding in ["gzip", "identity", "br", "x"] {
            let response = connection.ask(&ping.clone().add("Content-Encoding", coding));
            response.expect_refusal(415);
        }
        assert_eq!(connection.ask(&ping).status, 200);
    });
}

/// The limit must hold before memory is spent, whichever way the length is told.
#[test]
fn body_over_the_limit_is_413_before_it_is_read() {
    on_every_layout(|layout| {
        let gateway = layout.start(&["--max-body", "2000"], Upstream::Demo);
        let session = Session::open(&gateway);
        let padded = |size: usize| {
            let bare = support::call_body("1", "echo", r#"{"message":""}"#).len();
            let message = format!(r#"{{"message":"{}"}}"#, "x".repeat(size - bare));
            session.call("1", "echo", &message)
        };
        assert_eq!(gateway.ask(&padded(2000)).status, 200);
        assert_eq!(gateway.ask(&padded(2000).chunked(&[7, 900])).status, 200);

        // Only the head is sent: the answer must not wait for the body.
        let mut connection = gateway.connect();
        connection.send(padded(2001).head());
        let response = connection.response();
        response.expect_refusal(413);
        assert!(
            response.to_string().contains("2000"),
            "the limit is not named: {response}"
        );
        connection.expect_end();

        // The first chunk's size line alone breaks the limit.
        let mut connection = gateway.connect();
        connection.send(padded(2001).chunked(&[]).head());
        connection.send("7d1\r\n");
        connection.response().expect_refusal(413);
        connection.expect_end();

        // Many small chunks do in the end.
        let mut connection = gateway.connect();
        connection.send(padded(2001).chunked(&[100; 30]).bytes());
        connection.response().expect_refusal(413);
        connection.expect_end();
    });
}

/// The default limit is part of the contract: 4 MiB.
#[test]
fn default_body_limit_is_four_mebibytes() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let bare = support::call_body("1", "echo", r#"{"message":""}"#).len();
        let message = "x".repeat(4 * 1024 * 1024 - bare);
        let request = session.call("1", "echo", &format!(r#"{{"message":"{message}"}}"#));
        let response = gateway.ask(&request);
        assert_eq!(response.result()["content"][0]["text"], message.as_str());
        let over = session.call("1", "echo", &format!(r#"{{"message":"{message}x"}}"#));
        let mut connection = gateway.connect();
        connection.send(over.head());
        connection.response().expect_refusal(413);
    });
}

/// What the gateway answers itself, so that nothing per session reaches a shared server.
#[test]
fn methods_of_the_gateways_own() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let mut ask = |method: &str, params: &str| {
            connection.ask(&session.post(request_body("\"x\"", method, params)))
        };
        assert_eq!(ask("ping", "{}").result(), json!({}));
        for level in [
            "debug",
            "info",
            "notice",
            "warning",
            "error",
            "critical",
            "alert",
            "emergency",
        ] {
            let response = ask("logging/setLevel", &format!(r#"{{"level":"{level}"}}"#));
            assert_eq!(response.result(), json!({}), "{level}");
        }
        for params in [
            r#"{"level":"loud"}"#,
            r#"{"level":5}"#,
            "{}",
            r#"{"level":"Debug"}"#,
        ] {
            ask("logging/setLevel", params).expect_error(200, -32602, Some("\"x\""));
        }
        // The demo server has no tasks.
        for method in ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"] {
            let response = ask(method, r#"{"taskId":"t"}"#);
            response.expect_error(200, -32601, Some("\"x\""));
        }
    });
}

/// A server without `logging` must not be promised a level.
#[test]
fn log_level_needs_a_server_that_logs() {
    on_both_drivers(|layout| {
        let arguments = ["--capabilities", r#"{"tools":{}}"#];
        let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        let session = Session::open(&gateway);
        let request = session.post(request_body("1", "logging/setLevel", r#"{"level":"info"}"#));
        gateway.ask(&request).expect_error(200, -32601, Some("1"));
    });
}

/// Methods that the gateway does not know belong to the server, and so does its refusal, byte for byte.
#[test]
fn every_other_request_is_forwarded_and_the_servers_error_passes_unchanged() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Python("scripted.py", &[]));
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for method in [
            "tools/list",
            "prompts/get",
            "completion/complete",
            "vendor/x",
            "a\\u0062c",
        ] {
            let response = connection.ask(&session.post(request_body("1", method, "{}")));
            let seen = response.result()["seen"].clone();
            assert_eq!(seen, method.replace("\\u0062", "b"), "{response}");
        }
        let error =
            r#"{"code": -32000.0e0, "message":"caf\u00e9", "data":{"n":9007199254740993,"n":1.0}}"#;
        let line = format!(r#"{{"jsonrpc":"2.0","id":@ID@,"error":{error}}}"#);
        let arguments = support::scripted::send_arguments(&[line.as_bytes()]);
        let response = connection.ask(&session.call("\"q\"", "send", &arguments));
        assert_eq!(response.status, 200, "{response}");
        let text = response.text();
        assert_eq!(
            support::mcp::raw_member(&text, "error").as_deref(),
            Some(error)
        );
        assert_eq!(response.raw_id().as_deref(), Some("\"q\""));
    });
}
