//! Brings about every message that the server gets, and judges all that it has read.

use serde_json::{Value, json};

use crate::book::Book;
use crate::clients::create_task;
use crate::definitions::Version;
use crate::support::mcp::request_body;
use crate::support::scripted::hold_request;
use crate::support::{Gateway, Script, Session, Upstream, wait_until};

/// A server that speaks this version, and a session of it.
pub(crate) fn hears(book: &mut Book, version: Version) {
    let arguments = ["--protocol", version.name()];
    let flags = ["--request-timeout", "2s"];
    let gateway = Gateway::start(&flags, Upstream::Python("scripted.py", &arguments));
    let script = Script::new(&gateway);
    let session = Session::open_at(&gateway, version.name());
    assert_eq!(session.version, version.name());
    let ask = |method: &str, params: Value| {
        let request = session.post(request_body("\"seven\"", method, &params.to_string()));
        let response = gateway.ask(&request);
        assert_eq!(response.status, 200, "{response}");
    };
    let meta = json!({"progressToken": "token"});
    ask("tools/list", json!({}));
    ask(
        "tools/call",
        json!({"name": "echo", "arguments": {}, "_meta": meta}),
    );
    ask("resources/read", json!({"uri": "a:b"}));
    ask("prompts/get", json!({"name": "p"}));
    ask(
        "completion/complete",
        json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "v"}}),
    );
    ask("logging/setLevel", json!({"level": "debug"}));
    ask("resources/subscribe", json!({"uri": "a:b"}));
    ask("resources/unsubscribe", json!({"uri": "a:b"}));
    // Three ways to a cancel: the client's, that of time, and that of time for a subscription.
    let mut cancelled = script.hold(&session, "\"held\"", "cancelled");
    assert_eq!(gateway.ask(&session.cancel("\"held\"")).status, 202);
    cancelled.response();
    script.hold_method("resources/subscribe", "subscribe");
    let late = [
        hold_request(&session, "8", "late"),
        session.subscribe("9", "a:late"),
    ];
    let late = late.map(|request| {
        let mut connection = gateway.connect();
        connection.send(request.bytes());
        connection
    });
    for mut connection in late {
        let message = connection.response().message();
        assert_eq!(message["error"]["data"]["reason"], "timeout", "{message}");
    }
    wait_until("the server is told of three cancels", || {
        script.received("notifications/cancelled").len() == 3
    });
    wait_until("both subscriptions are given back", || {
        script.received("\"resources/unsubscribe\"").len() == 2
    });
    // Its own requests.
    script.say(&[
        r#"{"jsonrpc":"2.0","id":"its ping","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":77,"method":"roots/list"}"#,
    ]);
    script.wait_received("\"its ping\",");
    script.wait_received("\"id\":77,\"error\"");
    if version == Version::V2025_11_25 {
        tasks(&gateway, &script, &session);
    }
    for line in script.received("") {
        book.for_server(version, &line);
    }
}

/// A session's requests about its task; its end, which cancels it.
fn tasks(gateway: &Gateway, script: &Script<'_>, session: &Session) {
    let created = gateway.ask(&create_task(session, "t1", "token"));
    assert_eq!(created.result()["task"]["taskId"], "t1");
    for (method, params) in [
        ("tasks/get", r#"{"taskId":"t1"}"#),
        ("tasks/list", "{}"),
        ("tasks/result", r#"{"taskId":"t1"}"#),
    ] {
        gateway.ask(&session.post(request_body("9", method, params)));
    }
    let second = gateway.ask(&create_task(session, "t2", "token"));
    assert_eq!(second.result()["task"]["taskId"], "t2");
    assert_eq!(gateway.ask(&session.delete()).status, 204);
    script.wait_received("\"tasks/cancel\"");
}
