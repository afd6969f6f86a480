//! JSON-RPC over raw sockets: ids and tokens of every spelling, the keys that two readers could read
//! differently, what is no message, what is no JSON, and depth. The scripted server shows the very bytes
//! that reached it.

mod support;

use serde_json::Value;
use support::mcp::{Session, ping_body, request_body};
use support::{Gateway, Raw, Request, Script, Upstream, on_every_layout, unhex};

/// Ids and tokens that must come back as they were sent, byte for byte.
const KEYS: &[&str] = &[
    "0",
    "1",
    "-1",
    "-0",
    "9007199254740991",
    "9007199254740993",
    "18446744073709551616",
    "123456789012345678901234567890",
    r#""""#,
    r#""1""#,
    r#""a""#,
    r#""a-\u0041""#,
    r#""\u0000""#,
    r#""\"\\\/\b\f\n\r\t""#,
    r#""\ud83d\ude00""#,
    "\"\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{a0}\u{2028}\"",
    r#""},\"id\":5,{""#,
    r#""@ID@""#,
];

fn scripted(layout: support::Layout) -> Gateway {
    layout.start(&[], Upstream::Python("scripted.py", &[]))
}

/// Calls the `raw` tool with a body of the test's own; returns the line that the server read.
#[track_caller]
fn line_seen(connection: &mut Raw, request: &Request) -> String {
    let response = connection.ask(request);
    let result = response.result();
    let line = unhex(
        result["line"]
            .as_str()
            .unwrap_or_else(|| panic!("{response}")),
    );
    String::from_utf8(line).expect("the gateway sends UTF-8")
}

/// The id is the client's key to its answer: another spelling or type may not find its caller.
#[test]
fn id_comes_back_byte_for_byte() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let long = format!("\"{}\"", "i".repeat(1022));
        for id in KEYS.iter().copied().chain([long.as_str()]) {
            for accept in ["application/json", "text/event-stream"] {
                let call = session.call(id, "echo", "{}").set("Accept", accept);
                let response = connection.ask(&call);
                assert_eq!(response.status, 200, "{id}: {response}");
                assert_eq!(response.raw_id().as_deref(), Some(id), "{response}");
            }
            // Answers of the gateway's own and errors carry it too.
            let response = connection.ask(&session.post(ping_body(id)));
            assert_eq!(response.raw_id().as_deref(), Some(id), "{response}");
            let response = connection.ask(&session.subscribe(id, "x"));
            assert_eq!(response.status, 200, "{id}: {response}");
            assert_eq!(response.raw_id().as_deref(), Some(id), "{response}");
            let subscribe = session.post(request_body(id, "resources/subscribe", "{}"));
            connection
                .ask(&subscribe)
                .expect_error(200, -32602, Some(id));
        }
    });
}

/// The server sees one id form only: an integer that JavaScript keeps exactly, never 0, never twice.
#[test]
fn server_sees_small_unique_integer_ids_and_tokens() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let mut seen = std::collections::HashSet::new();
        for token in KEYS {
            let params = format!(r#"{{"name":"raw","_meta":{{"progressToken":{token},"x":1.0}}}}"#);
            let request = session.post(request_body(token, "tools/call", &params));
            let line = line_seen(&mut connection, &request);
            let message: Value = serde_json::from_str(&line).expect("one JSON text");
            let id = message["id"].as_u64().unwrap_or_else(|| panic!("{line}"));
            assert!(id > 0 && id < 1 << 53, "{line}");
            assert!(seen.insert(id), "given twice: {line}");
            assert_eq!(message["params"]["_meta"]["progressToken"], id, "{line}");
            // All but these two is as the client sent it.
            let restored = line.replace(&id.to_string(), token);
            assert_eq!(restored, request_body(token, "tools/call", &params));
        }
        // No token, no meta: none may be made up.
        let line = line_seen(&mut connection, &session.call("1", "raw", "{}"));
        assert!(
            !line.contains("progressToken") && !line.contains("_meta"),
            "{line}"
        );
    });
}

/// An id of any other type cannot be answered, so it must not be taken.
#[test]
fn id_of_another_type_is_refused_without_one() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let long = format!("\"{}\"", "i".repeat(1024));
        for id in [
            "null",
            "1.0",
            "1e2",
            "0.5",
            "true",
            "[]",
            "[1]",
            "{}",
            r#"{"a":1}"#,
            &long,
        ] {
            for body in [
                ping_body(id),
                request_body(id, "tools/call", r#"{"name":"echo"}"#),
            ] {
                connection
                    .ask(&session.post(body))
                    .expect_error(400, -32600, None);
            }
        }
    });
}

/// A token of another type cannot be matched to its progress; the caller is told, by its id.
#[test]
fn token_of_another_type_is_refused() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let long = format!("\"{}\"", "t".repeat(1024));
        for token in ["null", "1.0", "1e2", "true", "[]", "{}", &long] {
            let params = format!(r#"{{"name":"marker","_meta":{{"progressToken":{token}}}}}"#);
            let request = session.post(request_body("\"i\"", "tools/call", &params));
            connection
                .ask(&request)
                .expect_error(200, -32602, Some("\"i\""));
        }
        assert!(
            script.received("marker").is_empty(),
            "one reached the server"
        );
    });
}

/// Two readers that pick different ones of two keys would send a reply astray.
#[test]
fn known_key_that_appears_twice_or_folded_is_refused() {
    let rows: &[(&str, Option<&str>)] = &[
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, None),
        (r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"ping"}"#, None),
        (
            r#"{"jsonrpc":"2.0","id":1,"\u0069d":2,"method":"ping"}"#,
            None,
        ),
        (
            r#"{"jsonrpc":"2.0","\u0069\u0064":1,"id":2,"method":"ping"}"#,
            None,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"ID":2,"method":"ping"}"#, None),
        (r#"{"jsonrpc":"2.0","Id":1,"method":"ping"}"#, None),
        (r#"{"jsonrpc":"2.0","i\u0044":1,"method":"ping"}"#, None),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"x"}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"ping"}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","JSONRPC":"2.0","id":1,"method":"ping"}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{},"params":{}}"#,
            Some("1"),
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"param\u{17f}\":{}}",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","param\u017f":{}}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"name":"a","name":"b"}}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"name":"a","NAME":"b"}}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"uri":"a","ur\u0069":"b"}}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"taskid":"a"}}"#,
            Some("1"),
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"tas\u{212a}Id\":\"a\"}}",
            Some("1"),
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"reque\u{17f}tId\":\"a\"}}",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{},"_meta":{}}}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_META":{}}}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progresstoken":1}}}"#,
            Some("1"),
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"_meta\":{\"progressTo\u{212a}en\":1}}}",
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{},"Result":{}}"#,
            Some("1"),
        ),
    ];
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for (body, id) in rows {
            let response = connection.ask(&session.post(*body));
            assert_eq!(response.status, 400, "{body}: {response}");
            response.expect_error(400, -32600, *id);
        }
    });
}

/// The refusals above must not grow into refusing what is merely unusual.
#[test]
fn unusual_keys_that_nobody_can_mistake_pass() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let escaped = r#"{"jsonrpc":"2.0","\u0069\u0064":"k","m\u0065thod":"tools/call","params":{"n\u0061me":"raw","_m\u0065ta":{"progress\u0054oken":"t"}}}"#;
        let line = line_seen(&mut connection, &session.post(escaped));
        let seen: Value = serde_json::from_str(&line).expect("JSON");
        let id = seen["id"].as_u64().expect("an integer").to_string();
        let expected = escaped
            .replace(":\"k\"", &format!(":{id}"))
            .replace(":\"t\"", &format!(":{id}"));
        assert_eq!(line, expected);
        for arguments in [
            r#"{"id":1,"id":2,"ID":3,"name":"a","name":"b","_meta":{"progressToken":1.5}}"#,
            r#"{"":1,"":2,"\u0000":3}"#,
        ] {
            let line = line_seen(&mut connection, &session.call("1", "raw", arguments));
            assert!(line.contains(arguments), "{line}");
        }
        // The dotless i folds to nothing of ours: a stranger's key, so this is a notification.
        let notification = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"\u{131}d\":5}";
        assert_eq!(connection.ask(&session.post(notification)).status, 202);
        let both = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\",\"\u{131}d\":5}";
        assert_eq!(
            connection.ask(&session.post(both)).raw_id().as_deref(),
            Some("7")
        );
    });
}

/// JSON that is no JSON-RPC message gets -32600, with the id where there is one.
#[test]
fn json_that_is_no_message_is_invalid_request() {
    let rows: &[(&str, Option<&str>)] = &[
        ("1", None),
        ("null", None),
        ("\"ping\"", None),
        ("{}", None),
        (r#"{"jsonrpc":"2.0"}"#, None),
        (r#"{"jsonrpc":"2.0","id":3}"#, Some("3")),
        (r#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, Some("3")),
        (r#"{"jsonrpc":2.0,"id":3,"method":"ping"}"#, Some("3")),
        (r#"{"id":3,"method":"ping"}"#, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3,"method":5}"#, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3,"method":null}"#, Some("3")),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"ping","params":[]}"#,
            Some("3"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"ping","params":null}"#,
            Some("3"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"ping","params":"x"}"#,
            Some("3"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":["raw",{}]}"#,
            Some("3"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"ping","params":{"_meta":[]}}"#,
            Some("3"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"ping","params":{"_meta":null}}"#,
            Some("3"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"ping","result":{}}"#,
            Some("3"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"result":{},"error":{}}"#,
            Some("3"),
        ),
        (r#"{"jsonrpc":"2.0","result":{}}"#, None),
    ];
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for (body, id) in rows {
            let response = connection.ask(&session.post(*body));
            assert_eq!(response.status, 400, "{body}: {response}");
            response.expect_error(400, -32600, *id);
        }
    });
}

/// What is not JSON to every reader must not reach any: the server may be more liberal than we are.
#[test]
fn text_that_is_not_json_is_a_parse_error() {
    let call = |inside: &str| support::call_body("1", "raw", &format!("{{\"a\":{inside}}}"));
    let mut rows: Vec<Vec<u8>> = [
        String::new(),
        " ".to_owned(),
        "{".to_owned(),
        "ping".to_owned(),
        format!("{}}}", ping_body("1")),
        format!("{}{}", ping_body("1"), ping_body("2")),
        format!("{}\n{}", ping_body("1"), ping_body("2")),
        format!("\u{feff}{}", ping_body("1")),
        format!("\u{a0}{}", ping_body("1")),
        format!("{}\0", ping_body("1")),
        ping_body("01"),
        ping_body("+1"),
        ping_body("'a'"),
        call("NaN"),
        call("1."),
        call(".5"),
        call("[1,]"),
        call("\"\\x41\""),
        call("\"\\u12g4\""),
        call("\"raw \n newline\""),
        call("\"raw \t tab\""),
        call("\"raw \0 nul\""),
        call("/* c */1"),
        call("truee"),
        call("tru"),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect();
    for bad in [
        &b"\xff"[..],
        b"\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
    ] {
        let mut body = call("\"@\"").into_bytes();
        let at = body
            .iter()
            .position(|&byte| byte == b'@')
            .expect("it is there");
        body.splice(at..=at, bad.iter().copied());
        rows.push(body);
    }
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for body in &rows {
            let response = connection.ask(&session.post(body.as_slice()));
            let shown = String::from_utf8_lossy(body);
            assert_eq!(response.status, 400, "{shown:?}: {response}");
            response.expect_error(400, -32700, None);
        }
    });
}

/// A parser without a depth limit overflows its stack and takes the process with it.
#[test]
fn deep_nesting_is_refused_and_brackets_in_strings_are_not_depth() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let nested = |depth: usize, open: &str, close: &str| {
            let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            session.call("1", "raw", &format!(r#"{{"a":{deep}}}"#))
        };
        for body in [
            "[".repeat(200_000),
            "{\"a\":".repeat(40_000),
            "[{\"a\":".repeat(30_000),
        ] {
            let response = connection.ask(&session.post(body));
            response.expect_error(400, -32700, None);
        }
        // Message, params and arguments are three levels; 128 is the most there may be.
        assert_eq!(connection.ask(&nested(125, "[", "]")).status, 200);
        connection
            .ask(&nested(126, "[", "]"))
            .expect_error(400, -32700, None);
        connection
            .ask(&nested(100_000, "[", "]"))
            .expect_error(400, -32700, None);
        connection
            .ask(&nested(50_000, "{\"k\":", "}"))
            .expect_error(400, -32700, None);
        let string = format!(
            r#"{{"a":"{}","b":"\"{}"}}"#,
            "[".repeat(5000),
            "{".repeat(5000)
        );
        let line = line_seen(&mut connection, &session.call("1", "raw", &string));
        assert!(line.contains(&string), "{line}");
        let wide = format!(r#"{{"a":[{}]}}"#, vec!["[]"; 500].join(","));
        assert_eq!(connection.ask(&session.call("1", "raw", &wide)).status, 200);
    });
}
