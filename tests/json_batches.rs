//! JSON-RPC batches, which exist in protocol version 2025-03-26 only: answered as one there, refused
//! everywhere else, and never half lost.

mod support;

use serde_json::Value;
use support::mcp::{Session, initialize_body, notification_body, ping_body, request_body};
use support::{Gateway, Request, Response, Upstream, on_both_drivers, on_every_layout};

fn scripted(layout: support::Layout) -> Gateway {
    layout.start(&[], Upstream::Python("scripted.py", &[]))
}

/// Batches exist in one version of the protocol only, and there they must work.
#[test]
fn batch_is_answered_as_one_on_2025_03_26() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open_at(&gateway, "2025-03-26");
        let mut connection = gateway.connect();
        let batch = |messages: &[String]| session.post(format!("[{}]", messages.join(", ")));
        let mixed = [
            support::call_body("1", "echo", r#"{"message":"one"}"#),
            notification_body("notifications/x", "{}"),
            ping_body("\"two\""),
            r#"{"jsonrpc":"2.0","id":9,"result":{}}"#.to_owned(),
            support::call_body("\"1\"", "echo", r#"{"message":"three"}"#),
            request_body("4", "tasks/list", "{}"),
        ];
        for accept in ["application/json", "text/event-stream"] {
            let response = connection.ask(&batch(&mixed).set("Accept", accept));
            assert_eq!(response.status, 200, "{response}");
            assert_eq!(response.media_type(), Some(accept), "{response}");
            let mut answers = all_answers(&response);
            answers.sort_by_key(|answer| answer["id"].to_string());
            assert_eq!(answers.len(), 4, "{response}");
            assert_eq!(answers[0]["id"], "1");
            assert_eq!(answers[0]["result"]["content"][0]["text"], "three");
            assert_eq!(answers[1]["id"], "two");
            assert_eq!(answers[2]["id"], 1);
            assert_eq!(answers[2]["result"]["content"][0]["text"], "one");
            assert_eq!(answers[3]["error"]["code"], -32601);
        }
        let silent = [
            notification_body("notifications/x", "{}"),
            notification_body("notifications/y", "{}"),
        ];
        let response = connection.ask(&batch(&silent));
        assert_eq!(response.status, 202, "{response}");
        assert!(response.body.is_empty());
        // A batch of one is still a batch: its answer is an array.
        let response = connection.ask(&batch(&[ping_body("1")]).set("Accept", "application/json"));
        assert!(response.json().is_array(), "{response}");
        let hundred: Vec<String> = (0..100).map(|id| ping_body(&id.to_string())).collect();
        let response = connection.ask(&batch(&hundred));
        assert_eq!(all_answers(&response).len(), 100, "{response}");
    });
}

/// The refusals of batches: each is an error of the whole.
#[test]
fn batch_that_must_not_be_is_refused() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open_at(&gateway, "2025-03-26");
        let mut connection = gateway.connect();
        let many: Vec<String> = (0..101).map(|id| ping_body(&id.to_string())).collect();
        for body in [
            "[]".to_owned(),
            "[ ]".to_owned(),
            format!("[{}]", initialize_body("1", "2025-03-26")),
            format!(
                "[{},{}]",
                ping_body("2"),
                initialize_body("1", "2025-03-26")
            ),
            format!("[{}]", many.join(",")),
        ] {
            let response = connection.ask(&session.post(body.as_str()));
            assert_eq!(response.status, 400, "{body}: {response}");
            assert_eq!(
                response.json()["error"]["code"],
                -32600,
                "{body}: {response}"
            );
        }
        for body in ["[", "[1,]", "[{}", "[}"] {
            connection
                .ask(&session.post(body))
                .expect_error(400, -32700, None);
        }
        for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
            let session = Session::open_at(&gateway, version);
            let response = connection.ask(&session.post(format!("[{}]", ping_body("1"))));
            assert_eq!(response.status, 400, "{version}: {response}");
            assert_eq!(
                response.json()["error"]["code"],
                -32600,
                "{version}: {response}"
            );
        }
        // Outside a session there is no version that would allow one.
        let response = connection.ask(&Request::post(format!(
            "[{}]",
            initialize_body("1", "2025-03-26")
        )));
        assert_eq!(response.status, 400, "{response}");
        assert_eq!(response.field("mcp-session-id"), None);
    });
}

/// A faulty member must not silence its neighbours, and two equal ids are one too many.
#[test]
fn faulty_members_of_a_batch_are_answered_one_by_one() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout);
        let session = Session::open_at(&gateway, "2025-03-26");
        let body = format!("[{},1,{}]", ping_body("1"), ping_body("null"));
        let response = gateway.ask(&session.post(body));
        if response.status == 200 {
            let answers = all_answers(&response);
            assert_eq!(answers.len(), 3, "{response}");
            let good: Vec<&Value> = answers.iter().filter(|answer| answer["id"] == 1).collect();
            assert_eq!(good.len(), 1, "{response}");
            assert!(good[0]["result"].is_object(), "{response}");
        } else {
            // Or the whole is refused; what may not happen is that part of it is lost.
            response.expect_error(400, -32600, None);
        }
        assert_eq!(gateway.ask(&session.post(ping_body("1"))).status, 200);
    });
}

/// The answers of a batch, in one array or in any number of events.
fn all_answers(response: &Response) -> Vec<Value> {
    response
        .messages()
        .into_iter()
        .flat_map(|message| match message {
            Value::Array(messages) => messages,
            message => vec![message],
        })
        .collect()
}
