//! The demo server from outside: lines in, lines out, first against the state
//! machine with a clock of the test's own, then over real pipes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _, pipe};
use std::os::fd::AsFd as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::dispatch::Demo;
use super::limits::{BIG_BYTES_MAX, EXTRAS_MAX, SLOW_CALLS_MAX};
use super::stdio::serve;

const START: Duration = Duration::ZERO;

fn say(demo: &mut Demo, line: impl AsRef<[u8]>) -> Vec<Value> {
    let mut out = Vec::new();
    demo.line(line.as_ref(), START, &mut out);
    parse(&out)
}

fn parse(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).expect("UTF-8");
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("one JSON value a line"))
        .collect()
}

fn request(method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string()
}

fn call(tool: &str, arguments: &Value) -> String {
    let meta = json!({"progressToken": "t"});
    request(
        "tools/call",
        &json!({"name": tool, "arguments": arguments, "_meta": meta}),
    )
}

/// All steps due at `now`.
fn fire(demo: &mut Demo, now: Duration) -> Vec<Value> {
    let mut out = Vec::new();
    while demo.fire(now, &mut out) {}
    parse(&out)
}

#[test]
fn the_handshake_takes_the_clients_version_if_it_is_known() {
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ] {
        let line = request("initialize", &json!({"protocolVersion": asked}));
        let result = &say(&mut Demo::default(), line)[0]["result"];
        assert_eq!(result["protocolVersion"], answered);
        assert_eq!(result["serverInfo"]["name"], "ringway-demo");
        assert_eq!(result["capabilities"]["resources"]["subscribe"], true);
    }
}

#[test]
fn echo_returns_id_and_text_byte_for_byte() {
    for id in [
        r#""a-\u0041""#,
        "9007199254740993",
        "1.0",
        "-0",
        r#""\ud83d\udc69""#,
    ] {
        let text = r#""1\/2 \u2028   \ud800 👩‍🚀 \n 1e21""#;
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"arguments":{{"message":{text}}},"name":"echo"}}}}"#
        );
        let mut out = Vec::new();
        Demo::default().line(line.as_bytes(), START, &mut out);
        let expected = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":{text}}}]}}}}\n"
        );
        assert_eq!(String::from_utf8(out), Ok(expected));
    }
}

#[test]
fn wrong_arguments_are_a_tools_failure_and_unknown_tools_an_error() {
    let mut demo = Demo::default();
    for (tool, arguments) in [
        ("echo", json!({})),
        ("echo", json!({"message": 1})),
        ("add", json!({"a": 1})),
        ("add", json!({"a": 1, "b": "2"})),
        ("slow", json!({"steps": 0})),
        ("slow", json!({"steps": 1001})),
        ("slow", json!({"interval_ms": 60_001})),
        ("big", json!({})),
        ("big", json!({"bytes": BIG_BYTES_MAX + 1})),
        ("big", json!({"bytes": -1})),
        ("touch", json!({})),
        ("grow", json!({"list": "roots"})),
        ("grow", json!({"list": null})),
    ] {
        let answers = say(&mut demo, call(tool, &arguments));
        assert_eq!(answers[0]["result"]["isError"], true, "{tool} {arguments}");
    }
    for tool in ["nothing", "extra-1", "extra-+1"] {
        let answers = say(&mut demo, call(tool, &json!({})));
        assert_eq!(answers[0]["error"]["code"], -32602);
    }
    assert_eq!(demo.waiting(), 0);
}

#[test]
fn every_fault_of_a_line_has_its_code_and_a_readable_id_comes_back() {
    let cases: [(&[u8], i64, Option<i64>); 9] = [
        (b"not json", -32700, None),
        (b"{\"id\":1", -32700, None),
        (
            b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
            -32600,
            None,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
            -32600,
            None,
        ),
        (
            b"{\"jsonrpc\":\"1.0\",\"id\":4,\"method\":\"ping\"}",
            -32600,
            Some(4),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":1}",
            -32600,
            Some(4),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"server/discover\"}",
            -32601,
            Some(4),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"ping\",\"params\":[]}",
            -32602,
            Some(4),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"tools/call\",\"params\":{}}",
            -32602,
            Some(4),
        ),
    ];
    for (line, code, id) in cases {
        let answers = say(&mut Demo::default(), line);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0]["error"]["code"], code);
        assert_eq!(answers[0].get("id").and_then(Value::as_i64), id);
    }
}

#[test]
fn notifications_responses_and_empty_lines_are_never_answered() {
    for line in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":""}}"#,
        "",
        " \r",
    ] {
        assert_eq!(say(&mut Demo::default(), line), Vec::<Value>::new());
    }
}

#[test]
fn slow_without_an_interval_is_one_burst_with_the_result_last() {
    let line = call("slow", &json!({"steps": 3, "interval_ms": 0}));
    let answers = say(&mut Demo::default(), line);
    assert_eq!(answers.len(), 4);
    for (index, progress) in answers[..3].iter().enumerate() {
        assert_eq!(progress["params"]["progressToken"], "t");
        assert_eq!(progress["params"]["progress"], index + 1);
        assert_eq!(progress["params"]["total"], 3);
    }
    assert_eq!(answers[3]["id"], 7);
}

#[test]
fn slow_keeps_its_schedule_while_other_calls_are_answered() {
    let mut demo = Demo::default();
    let slow = call("slow", &json!({"steps": 2, "interval_ms": 10}));
    assert!(say(&mut demo, slow).is_empty());
    assert_eq!(say(&mut demo, request("ping", &json!({}))).len(), 1);
    assert_eq!(demo.next_due(), Some(Duration::from_millis(10)));
    assert!(fire(&mut demo, Duration::from_millis(9)).is_empty());
    assert_eq!(fire(&mut demo, Duration::from_millis(12)).len(), 1);
    assert_eq!(demo.next_due(), Some(Duration::from_millis(20)));
    let last = fire(&mut demo, Duration::from_millis(20));
    assert_eq!(last[0]["params"]["progress"], 2);
    assert_eq!(last[1]["id"], 7);
    assert_eq!(demo.waiting(), 0);
}

#[test]
fn slow_after_a_stall_takes_one_step_and_does_not_catch_up_in_a_burst() {
    let mut demo = Demo::default();
    let slow = call("slow", &json!({"steps": 100, "interval_ms": 10}));
    assert!(say(&mut demo, slow).is_empty());
    assert_eq!(fire(&mut demo, Duration::from_secs(1)).len(), 1);
    assert_eq!(demo.next_due(), Some(Duration::from_millis(1010)));
}

#[test]
fn slow_without_a_token_sends_only_its_result() {
    let params = json!({"name": "slow", "arguments": {"steps": 5, "interval_ms": 0}});
    assert_eq!(
        say(&mut Demo::default(), request("tools/call", &params)).len(),
        1
    );
}

#[test]
fn a_cancelled_slow_call_says_nothing_more_however_its_id_is_spelled() {
    let mut demo = Demo::default();
    let slow = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"slow"}}"#;
    say(&mut demo, slow);
    for (id, waiting) in [(r#""b""#, 1), ("7", 1), (r#""\u0061""#, 0)] {
        let cancel = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        );
        assert!(say(&mut demo, cancel).is_empty());
        assert_eq!(demo.waiting(), waiting);
    }
    assert_eq!(demo.next_due(), None);
    assert!(fire(&mut demo, Duration::from_secs(60)).is_empty());
}

#[test]
fn an_id_that_is_running_is_refused_and_the_table_of_slow_calls_is_bounded() {
    let mut demo = Demo::default();
    let slow = |id: usize| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"slow"}}}}"#)
    };
    for id in 0..SLOW_CALLS_MAX {
        assert!(say(&mut demo, slow(id)).is_empty());
    }
    assert_eq!(say(&mut demo, slow(0))[0]["error"]["code"], -32603);
    assert_eq!(
        say(&mut demo, slow(SLOW_CALLS_MAX))[0]["error"]["code"],
        -32603
    );
    assert_eq!(demo.waiting(), SLOW_CALLS_MAX);
}

#[test]
fn big_returns_exactly_the_size_that_was_asked_for() {
    for bytes in [0, 1, 100_000] {
        let answers = say(&mut Demo::default(), call("big", &json!({"bytes": bytes})));
        let text = answers[0]["result"]["content"][0]["text"].as_str();
        assert_eq!(text.map(str::len), Some(bytes));
    }
}

#[test]
fn touch_changes_a_resource_and_tells_only_subscribers_before_its_result() {
    let mut demo = Demo::default();
    let uri = json!({"uri": "demo://clock"});
    let text = |demo: &mut Demo| {
        say(demo, request("resources/read", &uri))[0]["result"]["contents"][0]["text"].clone()
    };
    assert_eq!(text(&mut demo), "tick 0");
    assert_eq!(say(&mut demo, call("touch", &uri)).len(), 1);
    assert_eq!(text(&mut demo), "tick 1");
    for _ in 0..2 {
        assert_eq!(
            say(&mut demo, request("resources/subscribe", &uri))[0]["result"],
            json!({})
        );
    }
    let answers = say(&mut demo, call("touch", &uri));
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0]["method"], "notifications/resources/updated");
    assert_eq!(answers[0]["params"]["uri"], "demo://clock");
    say(&mut demo, request("resources/unsubscribe", &uri));
    assert_eq!(say(&mut demo, call("touch", &uri)).len(), 1);
    let missing = request("resources/read", &json!({"uri": "demo://none"}));
    assert_eq!(say(&mut demo, missing)[0]["error"]["code"], -32002);
}

#[test]
fn grow_adds_a_tool_that_can_be_called_and_stops_at_its_limit() {
    let mut demo = Demo::default();
    let answers = say(&mut demo, call("grow", &json!({})));
    assert_eq!(answers[0]["method"], "notifications/tools/list_changed");
    assert_eq!(answers[1]["id"], 7);
    let list = say(&mut demo, request("tools/list", &json!({})));
    assert_eq!(list[0]["result"]["tools"][6]["name"], "extra-1");
    let called = say(&mut demo, call("extra-1", &json!({})));
    assert_eq!(called[0]["result"]["content"][0]["text"], "extra-1");
    for _ in 1..EXTRAS_MAX {
        assert_eq!(say(&mut demo, call("grow", &json!({}))).len(), 2);
    }
    assert_eq!(
        say(&mut demo, call("grow", &json!({})))[0]["result"]["isError"],
        true
    );
}

#[test]
fn grow_changes_each_list_and_names_it_and_what_it_added_can_be_used() {
    for (list, key, method, params, place) in [
        (
            "tools",
            "name",
            "tools/call",
            json!({"name": "extra-1"}),
            "/content/0/text",
        ),
        (
            "resources",
            "uri",
            "resources/read",
            json!({"uri": "demo://extra-1"}),
            "/contents/0/text",
        ),
        (
            "prompts",
            "name",
            "prompts/get",
            json!({"name": "extra-1"}),
            "/messages/0/content/text",
        ),
    ] {
        let mut demo = Demo::default();
        let entries = |demo: &mut Demo| {
            let answers = say(demo, request(&format!("{list}/list"), &json!({})));
            answers[0]["result"][list]
                .as_array()
                .cloned()
                .expect("a list")
        };
        let before = entries(&mut demo);
        assert!(say(&mut demo, request(method, &params))[0]["error"].is_object());
        let answers = say(&mut demo, call("grow", &json!({"list": list})));
        assert_eq!(answers.len(), 2);
        assert_eq!(
            answers[0],
            json!({"jsonrpc": "2.0", "method": format!("notifications/{list}/list_changed")})
        );
        assert_eq!(answers[1]["id"], 7);
        let after = entries(&mut demo);
        assert_eq!(after[..before.len()], before);
        assert_eq!(after.len(), before.len() + 1);
        assert_eq!(after[before.len()][key], params[key]);
        let used = &say(&mut demo, request(method, &params))[0]["result"];
        assert_eq!(used.pointer(place), Some(&json!("extra-1")));
        // The other lists are as they were.
        for other in ["tools", "resources", "prompts"] {
            if other != list {
                let fresh = say(
                    &mut Demo::default(),
                    request(&format!("{other}/list"), &json!({})),
                );
                assert_eq!(
                    say(&mut demo, request(&format!("{other}/list"), &json!({}))),
                    fresh
                );
            }
        }
    }
}

#[test]
fn lists_prompts_and_levels_are_answered() {
    let mut demo = Demo::default();
    let mut result =
        |method: &str, params: Value| say(&mut demo, request(method, &params))[0]["result"].clone();
    let none = json!({});
    assert_eq!(
        result("resources/list", none.clone())["resources"][1]["uri"],
        "demo://notes"
    );
    assert_eq!(
        result("resources/templates/list", none.clone())["resourceTemplates"],
        json!([])
    );
    assert_eq!(
        result("prompts/list", none.clone())["prompts"][0]["name"],
        "greet"
    );
    let greeting = result(
        "prompts/get",
        json!({"name": "greet", "arguments": {"name": "\"Z\"\n"}}),
    );
    let text = greeting["messages"][0]["content"]["text"].as_str();
    assert!(text.is_some_and(|text| text.contains("\"Z\"\n")));
    assert_eq!(result("logging/setLevel", json!({"level": "debug"})), none);
    assert_eq!(result("ping", none.clone()), none);
    assert_eq!(
        result("logging/setLevel", json!({"level": "loud"})),
        Value::Null
    );
    assert_eq!(result("prompts/get", json!({"name": "greet"})), Value::Null);
}

#[test]
fn the_end_of_input_answers_what_was_read_and_abandons_slow_calls() {
    let (input, mut to_server) = pipe().expect("pipe");
    let (mut from_server, output) = pipe().expect("pipe");
    let server = std::thread::spawn(move || serve(input.as_fd(), output.as_fd()));
    let slow = call("slow", &json!({"steps": 1000, "interval_ms": 60_000}));
    let last = request("ping", &json!({}));
    // The last line has no newline.
    write!(to_server, "{slow}\n{last}").expect("write");
    drop(to_server);
    assert!(server.join().expect("no panic").is_ok());
    let mut said = Vec::new();
    from_server.read_to_end(&mut said).expect("read");
    assert_eq!(
        parse(&said),
        [json!({"jsonrpc": "2.0", "id": 7, "result": {}})]
    );
}

#[test]
fn a_client_that_no_longer_reads_is_a_normal_end() {
    let (input, mut to_server) = pipe().expect("pipe");
    let (from_server, output) = pipe().expect("pipe");
    drop(from_server);
    let server = std::thread::spawn(move || serve(input.as_fd(), output.as_fd()));
    writeln!(to_server, "{}", request("ping", &json!({}))).expect("write");
    assert!(server.join().expect("no panic").is_ok());
}

#[test]
fn timers_fire_over_a_pipe_while_input_is_quiet_and_large_results_pass() {
    let (input, mut to_server) = pipe().expect("pipe");
    let (from_server, output) = pipe().expect("pipe");
    let server = std::thread::spawn(move || serve(input.as_fd(), output.as_fd()));
    writeln!(
        to_server,
        "{}",
        call("slow", &json!({"steps": 3, "interval_ms": 1}))
    )
    .expect("write");
    let mut lines = BufReader::new(from_server).lines();
    for expected in [None, None, None, Some(7)] {
        let line = lines.next().expect("a line").expect("read");
        let answer: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(answer.get("id").and_then(Value::as_i64), expected);
    }
    for bytes in [BIG_BYTES_MAX, 10] {
        writeln!(to_server, "{}", call("big", &json!({"bytes": bytes}))).expect("write");
        let line = lines.next().expect("a line").expect("read");
        assert_eq!(line.bytes().filter(|byte| *byte == b'x').count(), bytes + 2);
    }
    drop(to_server);
    assert!(server.join().expect("no panic").is_ok());
}
