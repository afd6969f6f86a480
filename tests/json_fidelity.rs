//! Every byte that is not an id, a token or gateway metadata passes unchanged, both ways: the scripted
//! server shows the very bytes that it was sent, and sends the very bytes that it is told. Only raw CR and
//! LF, which can stand between tokens alone, become spaces.

mod support;

use support::mcp::{Session, initialize_body, raw_member};
use support::scripted::{result_arguments, send_arguments};
use support::{Gateway, Raw, Request, Upstream, on_both_drivers, on_every_layout, unhex};

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

/// JSON values that libraries like to rewrite.
const DELICATE: &[&str] = &[
    "9007199254740993",
    "-9223372036854775809",
    "1.0",
    "1e21",
    "1E+2",
    "0.1000000000000000055511151231257827",
    "-0.0",
    "1e999",
    "123456789012345678901234567890.5",
    "\"\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}\u{200d}\u{1f466}\"",
    "\"a\u{a0}b\"",
    "\"a\u{2028}b\u{2029}c\u{85}d\"",
    "\"\u{feff}\u{fffd}\u{7f}\"",
    r#""\u0041\/\u00e9\ud83d\ude00\"\\""#,
    r#""\u2028\u0000\u001f""#,
    r#""\ud800""#,
    r#""caf\u0065\u0301 e\u0301""#,
    r#"{"z":1,"a":2,"z":3,"":4}"#,
    "{ \"spaced\" :\t[ 1 ,2 , { } ] }",
    "[[],{},\"\",null,true,false]",
];

/// The server must read what the client wrote: the gateway is no JSON library.
#[test]
fn request_reaches_the_server_byte_for_byte() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for value in DELICATE {
            let body = format!(
                r#"{{"params":{{"arguments":{{"v":{value}}},"x":{value},"name":"raw"}},"extra":{value},"method":"tools/call","id":"k","jsonrpc":"2.0"}}"#
            );
            let line = line_seen(&mut connection, &session.post(body.as_str()));
            let id = raw_member(&line, "id").expect("an id");
            assert_eq!(line, body.replace("\"k\"", &id), "{value}");
        }
    });
}

/// The client must read what the server wrote, in either form of answer.
#[test]
fn result_reaches_the_client_byte_for_byte() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        for value in DELICATE {
            let call = session.call("\"k\"", "result", &result_arguments(value.as_bytes()));
            for accept in ["application/json", "text/event-stream"] {
                let text = connection.ask(&call.clone().set("Accept", accept)).text();
                assert_eq!(
                    text,
                    format!(r#"{{"jsonrpc":"2.0","id":"k","result":{value}}}"#)
                );
            }
            // Another order of keys, keys that nobody knows, blanks: all the server's own business.
            let line =
                format!(r#"{{ "x":{value}, "result" : {value},"id" : @ID@ ,"jsonrpc":"2.0" }}"#);
            let arguments = send_arguments(&[line.as_bytes()]);
            let response = connection.ask(&session.call("\"k\"", "send", &arguments));
            assert_eq!(response.text().trim(), line.replace("@ID@", "\"k\""));
        }
    });
}

/// The initialize result is the one that is edited: what is not edited must survive there too.
#[test]
fn initialize_result_keeps_the_servers_bytes() {
    let result = concat!(
        r#"{ "serverInfo":{"version":"1.0","name":"caf\u00e9 "#,
        "\u{2028}",
        r#"","n":9007199254740993}, "capabilities" : {"tools":{"listChanged":true,"x":1e21},"y":1.0},"#,
        r#" "protocolVersion" : "2025-11-25","_meta":{"z":-0.0,"a":"\/"}}"#,
    );
    on_both_drivers(|layout| {
        let line = format!(r#"{{"jsonrpc":"2.0","id":@ID@,"result":{result}}}"#);
        let arguments = ["--initialize", &support::hex(line.as_bytes())];
        let flags = ["--get-streams", "off"];
        let gateway = layout.start(&flags, Upstream::Python("scripted.py", &arguments));
        let response = gateway.ask(&Request::post(initialize_body("\"i\"", "2025-06-18")));
        let seen = response.text();
        for kept in [
            "{\"version\":\"1.0\",\"name\":\"caf\\u00e9 \u{2028}\",\"n\":9007199254740993}",
            r#""x":1e21"#,
            r#""y":1.0"#,
            r#"{"z":-0.0,"a":"\/"}"#,
        ] {
            assert!(seen.contains(kept), "{kept} not in {seen}");
        }
        assert_eq!(response.result()["protocolVersion"], "2025-06-18");
        assert!(!seen.contains("listChanged"), "{seen}");
        // With streams nothing has to be taken out.
        let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        let response = gateway.ask(&Request::post(initialize_body("\"i\"", "2025-11-25")));
        let seen = response.text();
        let kept = r#"{"tools":{"listChanged":true,"x":1e21},"y":1.0}"#;
        assert!(seen.contains(kept), "{seen}");
    });
}

/// A raw newline would cut the line in two: half a message of one client in front of another's.
#[test]
fn raw_newlines_become_spaces_both_ways() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let pretty = "{\r\n  \"jsonrpc\": \"2.0\",\n\t\"id\": \"k\",\r  \"method\": \"tools/call\",\n\
            \"params\": {\n\"name\": \"raw\",\n\n\r\n\"arguments\": {\"a\": \"\\n\"\n}\n}\n}\r\n";
        let line = line_seen(&mut connection, &session.post(pretty));
        let id = raw_member(&line, "id").expect("an id");
        let expected = pretty.replace(['\r', '\n'], " ").replace("\"k\"", &id);
        assert_eq!(line.trim(), expected.trim());

        let server = "{\r\"jsonrpc\":\"2.0\",\r\"id\":@ID@,\r\r\"result\":{\r\"a\":\"\\r\"}}\r";
        for accept in ["application/json", "text/event-stream"] {
            let arguments = send_arguments(&[server.as_bytes()]);
            let request = session.call("5", "send", &arguments).set("Accept", accept);
            let response = connection.ask(&request);
            let expected = server.replace('\r', " ").replace("@ID@", "5");
            assert_eq!(response.text().trim(), expected.trim(), "{response}");
        }
    });
}
