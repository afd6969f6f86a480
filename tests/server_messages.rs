//! What the server says besides the replies that are wanted: strays, repeats, requests of its own and
//! notifications. None of it may reach a call or a client that it does not belong to; and what clients say
//! beside their requests may not reach the server.

mod support;

use support::mcp::{Session, notification_body, raw_member};
use support::scripted::send_arguments;
use support::{Gateway, Script, Upstream, on_every_layout};

fn scripted(layout: support::Layout) -> Gateway {
    layout.start(&[], Upstream::Python("scripted.py", &[]))
}

/// A server that repeats, invents or misspells an id must hit nobody but the call it names.
#[test]
fn server_lines_that_name_no_call_are_dropped() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let good = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#;
        let stray: &[&str] = &[
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":-@ID@,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":@ID@.0,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":@ID@e0,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":" @ID@","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"0@ID@","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":9007199254740991,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":99999999999999999999999,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":[@ID@],"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":@ID@,"id":@ID@,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":@ID@,"ID":5,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":@ID@,"result":{},"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":@ID@,"result":{},"error":{"code":1,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":@ID@,"result":{}"#,
            r#"{"jsonrpc":"2.0","id":@ID@,"result":{}}}"#,
            r#"[{"jsonrpc":"2.0","id":@ID@,"result":{}}]"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@ID@,"progress":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x","progress":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"secret"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":@ID@}}"#,
            r#"{"jsonrpc":"2.0","method":"vendor/unheard-of"}"#,
        ];
        for accept in ["application/json", "text/event-stream"] {
            for line in stray {
                let arguments = send_arguments(&[line.as_bytes(), good.as_bytes()]);
                let request = session
                    .call("\"g\"", "send", &arguments)
                    .set("Accept", accept);
                let response = connection.ask(&request);
                assert_eq!(response.result()["good"], true, "{line}: {response}");
            }
            // The reply again, and again with other words, must not become the next call's reply.
            let again = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":false}}"#;
            let lines = [good.as_bytes(), again.as_bytes(), again.as_bytes()];
            let request = session
                .call("\"g\"", "send", &send_arguments(&lines))
                .set("Accept", accept);
            for _ in 0..20 {
                let response = connection.ask(&request);
                assert_eq!(response.result()["good"], true, "{response}");
            }
        }
        // Some servers answer with the id as a string: that one is taken.
        let string = r#"{"jsonrpc":"2.0","id":"@ID@","result":{"s":1}}"#;
        let request = session.call("\"g\"", "send", &send_arguments(&[string.as_bytes()]));
        let response = connection.ask(&request);
        assert_eq!(response.result()["s"], 1);
        assert_eq!(response.raw_id().as_deref(), Some("\"g\""));
    });
}

/// A server that asks its client something must not wait for ever: there is no one client to ask.
#[test]
fn server_requests_are_answered_by_the_gateway() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for (number, (method, refused)) in [
            ("ping", false),
            ("sampling/createMessage", true),
            ("elicitation/create", true),
            ("roots/list", true),
            ("vendor/x", true),
        ]
        .into_iter()
        .enumerate()
        {
            // Also with an id that looks like one of the gateway's own calls.
            for (marker, id) in [
                (format!("\"srv-\\u0041{number}\""), None),
                (format!("{}", 77_000_000 + number), None),
                ("@ID@".to_owned(), Some(())),
            ] {
                let ask = format!(
                    r#"{{"jsonrpc":"2.0","id":{marker},"method":"{method}","params":{{}}}}"#
                );
                let good = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#;
                let arguments = send_arguments(&[ask.as_bytes(), good.as_bytes()]);
                let response = connection.ask(&session.call("1", "send", &arguments));
                assert_eq!(response.result()["good"], true, "{method}: {response}");
                if id.is_some() {
                    continue;
                }
                let answer = script.wait_received(&format!(r#""id":{marker}"#));
                assert_eq!(raw_member(&answer, "id").as_deref(), Some(marker.as_str()));
                if refused {
                    let error = raw_member(&answer, "error").unwrap_or_else(|| panic!("{answer}"));
                    assert!(error.contains("-32601"), "{answer}");
                } else {
                    assert_eq!(
                        raw_member(&answer, "result").as_deref(),
                        Some("{}"),
                        "{answer}"
                    );
                }
            }
        }
    });
}

/// What concerns one session's client must not reach a server that all of them share.
#[test]
fn client_notifications_and_responses_never_reach_the_server() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for body in [
            notification_body("notifications/initialized", r#"{"mark":"secret-mark"}"#),
            notification_body(
                "notifications/roots/list_changed",
                r#"{"mark":"secret-mark"}"#,
            ),
            notification_body(
                "notifications/cancelled",
                r#"{"requestId":5,"reason":"secret-mark"}"#,
            ),
            notification_body(
                "notifications/progress",
                r#"{"progressToken":1,"progress":1,"message":"secret-mark"}"#,
            ),
            r#"{"jsonrpc":"2.0","id":1,"result":{"mark":"secret-mark"}}"#.to_owned(),
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"secret-mark"}}"#.to_owned(),
        ] {
            assert_eq!(connection.ask(&session.post(body)).status, 202);
        }
        // The server reads in order, so its answer to a later call shows that nothing came before it.
        assert_eq!(connection.ask(&session.call("1", "echo", "{}")).status, 200);
        assert!(script.received("secret-mark").is_empty());
        // Nor does the client's own handshake: the gateway has made its own, once.
        assert_eq!(script.received("\"suite\"").len(), 0);
        assert_eq!(script.received("\"initialize\"").len(), 1);
        assert_eq!(script.received("notifications/initialized").len(), 1);
    });
}
