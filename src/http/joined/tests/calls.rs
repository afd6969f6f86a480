//! Requests to one upstream: under which name it is asked, under which name the client hears
//! of it, whose ids they are.

use super::*;
use crate::wire::reply::Reason;

fn two() -> Bench {
    Bench::new(&[shared("one"), private("two")])
}

#[test]
fn a_tool_is_called_under_its_own_name_and_each_answer_has_its_clients_id() {
    let bench = two();
    let session = bench.client();
    let first = bench.tool(session, 1, "one-x");
    let second = bench.tool(session, 2, "two-one-x");
    for (name, own, text) in [("two", "one-x", "b"), ("one", "x", "a")] {
        let server = bench.server(name);
        let asked = server.one();
        assert_eq!(asked.message["params"]["name"], own);
        server.result(
            &asked,
            json!({ "content": [{"type": "text", "text": text}] }),
        );
    }
    for (call, id, text) in [(first, 1, "a"), (second, 2, "b")] {
        let answer = bench.answer(call);
        assert_eq!(answer["id"], id);
        assert_eq!(answer["result"]["content"][0]["text"], text);
    }
    bench.is_quiet();
}

#[test]
fn what_nobody_has_is_unknown_and_no_server_is_asked() {
    let bench = Bench::new(&[
        shared("one").deny("secret*"),
        private("two").alias("t", "x"),
    ]);
    let session = bench.client();
    let asks = [
        (
            "tools/call",
            json!({"name": "x"}),
            -32602,
            "Unknown tool: x",
        ),
        (
            "tools/call",
            json!({"name": "two-x"}),
            -32602,
            "Unknown tool: two-x",
        ),
        (
            "tools/call",
            json!({"name": "one-secret-1"}),
            -32602,
            "Unknown tool: one-secret-1",
        ),
        (
            "prompts/get",
            json!({"name": "two-x"}),
            -32602,
            "Unknown prompt: two-x",
        ),
        (
            "tools/call",
            json!({"name": 7}),
            -32602,
            "params.name must be a string",
        ),
        (
            "resources/read",
            json!({"uri": "file:///a"}),
            -32002,
            "Resource not found: file:///a",
        ),
        (
            "resources/read",
            json!({"uri": "one-secret:a"}),
            -32002,
            "Resource not found: one-secret:a",
        ),
        (
            "resources/subscribe",
            json!({"uri": "one-secret:a"}),
            -32002,
            "Resource not found: one-secret:a",
        ),
        (
            "resources/unsubscribe",
            json!({"uri": "x:a"}),
            -32002,
            "Resource not found: x:a",
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "one-secret"}, "argument": {"name": "a", "value": "b"}}),
            -32602,
            "Unknown prompt: one-secret",
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/resource", "uri": "one-secret:{x}"}, "argument": {"name": "a", "value": "b"}}),
            -32002,
            "Resource not found: one-secret:{x}",
        ),
        (
            "tasks/get",
            json!({"taskId": "t"}),
            -32602,
            "There is no such task",
        ),
        ("x/y", json!({}), -32601, "Method not found"),
    ];
    for (method, params, error, sentence) in asks {
        let answer = bench.ask(session, 1, method, &params).now();
        assert_eq!(code(&answer), error, "{method} {params}");
        assert_eq!(answer["error"]["message"], sentence);
        assert_eq!(answer["id"], 1);
    }
    for name in ["one", "two"] {
        assert!(bench.server(name).asked().is_empty());
    }
}

#[test]
fn an_alias_wins_over_a_prefix_and_is_the_only_name() {
    let bench = Bench::new(&[shared("one").alias("two-x", "y"), private("two")]);
    let session = bench.client();
    let call = bench.tool(session, 1, "two-x");
    let asked = bench.server("one").one();
    assert_eq!(asked.message["params"]["name"], "y");
    bench.server("one").result(&asked, json!({"content": []}));
    bench.answer(call);
    assert_eq!(
        code(
            &bench
                .ask(session, 2, "tools/call", &json!({"name": "one-y"}))
                .now()
        ),
        -32602
    );
    let lists = [("one", tools(&["y", "z"])), ("two", tools(&["x", "w"]))];
    let list = bench.list(session, 3, "tools/list", &lists);
    assert_eq!(names(&list, "tools"), ["two-x", "one-z", "two-w"]);
    bench.is_quiet();
}

#[test]
fn prompts_reads_and_links_have_public_names_both_ways() {
    for up in [shared("one"), private("one")] {
        let bench = Bench::new(&[up, shared("two")]);
        let session = bench.client();
        let server = bench.server("one");

        let call = bench.begin(session, 1, "prompts/get", &json!({"name": "one-p"}));
        let asked = server.one();
        assert_eq!(asked.message["params"]["name"], "p");
        let content = json!({"type": "resource", "resource": {"uri": "file:///a", "text": "t"}});
        server.result(
            &asked,
            json!({"messages": [{"role": "user", "content": content}]}),
        );
        let answer = bench.answer(call);
        assert_eq!(
            answer["result"]["messages"][0]["content"]["resource"]["uri"],
            "one-file:///a"
        );

        let call = bench.begin(
            session,
            2,
            "resources/read",
            &json!({"uri": "one-file:///a"}),
        );
        let asked = server.one();
        assert_eq!(asked.message["params"]["uri"], "file:///a");
        server.result(
            &asked,
            json!({"contents": [{"uri": "file:///a", "text": "t"}]}),
        );
        assert_eq!(
            bench.answer(call)["result"]["contents"][0]["uri"],
            "one-file:///a"
        );

        let call = bench.tool(session, 3, "one-t");
        let asked = server.one();
        let link = json!({"type": "resource_link", "uri": "file:///a", "name": "a"});
        server.result(&asked, json!({ "content": [link] }));
        let link = bench.answer(call)["result"]["content"][0].clone();
        assert_eq!(
            (&link["uri"], &link["name"]),
            (&json!("one-file:///a"), &json!("one-a"))
        );
        bench.is_quiet();
    }
}

#[test]
fn a_name_with_escapes_is_the_name_that_it_spells() {
    let bench = two();
    let session = bench.client();
    let text =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\u006fne-\u0078\n"}}"#;
    let call = bench.send(session, text).call();
    let asked = bench.server("one").one();
    assert_eq!(asked.message["params"]["name"], "x\n");
    bench.server("one").result(&asked, json!({}));
    bench.answer(call);
}

#[test]
fn completions_go_where_their_prompt_or_template_is() {
    let bench = two();
    let session = bench.client();
    let refs = [
        (
            json!({"type": "ref/prompt", "name": "one-p"}),
            "one",
            json!({"type": "ref/prompt", "name": "p"}),
        ),
        (
            json!({"type": "ref/resource", "uri": "two-file:///{x}"}),
            "two",
            json!({"type": "ref/resource", "uri": "file:///{x}"}),
        ),
    ];
    for (public, name, own) in refs {
        let params = json!({"ref": public, "argument": {"name": "a", "value": "b"}});
        let call = bench.begin(session, 1, "completion/complete", &params);
        let server = bench.server(name);
        let asked = server.one();
        assert_eq!(asked.message["params"]["ref"], own);
        server.result(&asked, json!({"completion": {"values": ["c"]}}));
        assert_eq!(bench.answer(call)["result"]["completion"]["values"][0], "c");
    }
    bench.is_quiet();
}

#[test]
fn progress_comes_before_its_answer_under_the_clients_token() {
    let bench = two();
    let session = bench.client();
    for (id, name) in [(1, "one"), (2, "two")] {
        let params = json!({"name": format!("{name}-x"), "_meta": {"progressToken": "t"}});
        let call = bench.begin(session, id, "tools/call", &params);
        let server = bench.server(name);
        let asked = server.one();
        assert_eq!(asked.message["params"]["name"], "x");
        server.progress(&asked, 1);
        server.progress(&asked, 2);
        server.result(&asked, json!({"content": []}));
        let answers = bench.answers(call);
        assert_eq!(answers.len(), 3);
        for (n, progress) in answers[..2].iter().enumerate() {
            assert_eq!(
                progress["params"],
                json!({"progressToken": "t", "progress": n + 1})
            );
        }
        assert_eq!(answers[2]["id"], id);
    }
    bench.is_quiet();
}

#[test]
fn a_cancel_reaches_the_server_that_was_asked_and_no_other() {
    let bench = two();
    let session = bench.client();
    let kept = bench.tool(session, 1, "one-x");
    let gone = bench.tool(session, 2, "two-x");
    let kept_asked = bench.server("one").one();
    let asked = bench.server("two").one();
    bench.cancel(session, 2);
    let told = bench.server("two").one();
    assert_eq!(told.method(), "notifications/cancelled");
    assert_eq!(told.message["params"]["requestId"], asked.message["id"]);
    assert!(bench.server("one").asked().is_empty());
    bench.cancelled(gone);
    bench.server("one").result(&kept_asked, json!({}));
    assert_eq!(bench.answer(kept)["id"], 1);
    bench.is_quiet();
}

#[test]
fn an_id_in_flight_at_another_upstream_is_refused_and_the_first_call_lives() {
    for (first, second) in [("one-x", "two-x"), ("two-x", "one-x"), ("one-x", "one-y")] {
        let bench = two();
        let session = bench.client();
        let call = bench.tool(session, 1, first);
        let refusal = bench
            .ask(session, 1, "tools/call", &json!({"name": second}))
            .refused();
        assert_eq!(code(&refusal), -32600);
        let server = bench.server(&first[..3]);
        let asked = server.one();
        server.result(&asked, json!({}));
        assert_eq!(bench.answer(call)["id"], 1);
        for name in ["one", "two"] {
            assert!(bench.server(name).asked().is_empty(), "{name} was asked");
        }
        // Another session's ids are its own.
        let other = bench.client();
        let (a, b) = (bench.tool(session, 1, first), bench.tool(other, 1, first));
        for asked in server.asked() {
            server.result(&asked, json!({}));
        }
        bench.answer(a);
        bench.answer(b);
        bench.is_quiet();
    }
}

#[test]
fn a_call_at_an_upstream_that_is_down_fails_and_the_others_work() {
    let bench = two();
    let session = bench.client();
    bench.server("one").down();
    let answer = bench
        .ask(session, 1, "tools/call", &json!({"name": "one-x"}))
        .now();
    assert_eq!(answer["error"]["data"]["reason"], "upstream_down");
    let call = bench.tool(session, 1, "two-x");
    bench
        .server("two")
        .result(&bench.server("two").one(), json!({}));
    bench.answer(call);
    bench.is_quiet();
}

/// The sentence of a failure that says so.
fn sentence(answer: &Value, reason: &str) -> String {
    assert_eq!(answer["error"]["data"]["reason"], reason, "{answer}");
    answer["error"]["message"].as_str().unwrap().to_owned()
}

/// What a server's failures are to clients: it dies under a call, it is down, it is silent.
fn failures(bench: &Bench, session: SessionKey, name: &str, later: Millis) -> [String; 3] {
    let one = bench.server("one");
    let call = bench.tool(session, 1, name);
    one.down();
    let lost = sentence(&bench.answer(call), "upstream_down");
    let params = json!({ "name": name });
    let down = bench.ask(session, 2, "tools/call", &params).now();
    one.up();
    let call = bench.tool(session, 3, name);
    one.shard().tick(later);
    let late = sentence(&bench.answer(call), "timeout");
    [lost, sentence(&down, "upstream_down"), late]
}

#[test]
fn a_failure_says_which_of_several_servers_it_was() {
    let mut bench = Bench::new(&[shared("one")]);
    let session = bench.client();
    let plain = [Reason::UpstreamDown, Reason::UpstreamDown, Reason::Timeout];
    let said = failures(&bench, session, "x", Millis(LONG));
    assert_eq!(said, plain.map(Reason::sentence));
    bench.configure(&[shared("one"), shared("two")]);
    bench.server("two").up();
    let named = [
        "The upstream server one is not available",
        "The upstream server one is not available",
        "The upstream server one did not answer in time",
    ];
    let said = failures(&bench, session, "one-x", Millis(2 * LONG));
    assert_eq!(said, named);
    // What it was asked when it was taken away.
    let call = bench.tool(session, 4, "one-x");
    bench.configure(&[shared("two")]);
    let answer = bench.answer(call);
    assert_eq!(sentence(&answer, "upstream_down"), named[0]);
    bench.is_quiet();
}

#[test]
fn a_failure_of_a_sessions_own_server_says_which_it_was() {
    let mut bench = Bench::new(&[private("one")]);
    let session = bench.client();
    for (name, who) in [("x", ""), ("one-x", " one")] {
        let one = bench.server("one");
        let ask = || (bench.tool(session, 1, name), one.one().exchange.unwrap());
        let (call, exchange) = ask();
        let body = Vec::new();
        one.end(exchange, End::Refused { status: 500, body });
        assert_eq!(
            sentence(&bench.answer(call), "upstream_down"),
            format!("The upstream server{who} answered with HTTP status 500")
        );
        let (call, exchange) = ask();
        one.end(exchange, End::Broken("TLS with the upstream server failed"));
        assert_eq!(
            sentence(&bench.answer(call), "upstream_down"),
            format!("TLS with the upstream server{who} failed")
        );
        let (call, exchange) = ask();
        one.end(exchange, End::Late);
        assert_eq!(
            sentence(&bench.answer(call), "timeout"),
            format!("The upstream server{who} did not answer in time")
        );
        bench.configure(&[private("one"), shared("two")]);
        bench.server("two").up();
    }
    bench.is_quiet();
}

#[test]
fn a_server_that_dies_ends_its_calls_and_no_others() {
    let bench = two();
    let session = bench.client();
    let (lost, kept) = (
        bench.tool(session, 1, "one-x"),
        bench.tool(session, 2, "two-x"),
    );
    let late = bench.server("one").one();
    bench.server("one").down();
    assert_eq!(
        bench.answer(lost)["error"]["data"]["reason"],
        "upstream_down"
    );
    bench.server("one").up();
    bench.server("one").result(&late, json!({"late": true}));
    assert!(bench.is_silent(&kept));
    bench
        .server("two")
        .result(&bench.server("two").one(), json!({}));
    assert_eq!(bench.answer(kept)["id"], 2);
    bench.is_quiet();
}

#[test]
fn an_answer_of_another_server_under_the_same_id_is_nobodys() {
    let bench = Bench::new(&[private("one"), private("two")]);
    let session = bench.client();
    let (first, second) = (
        bench.tool(session, 1, "one-x"),
        bench.tool(session, 2, "two-x"),
    );
    let (one, two) = (bench.server("one").one(), bench.server("two").one());
    // The first slots of both seats: the ids are the same number.
    assert_eq!(one.message["id"], two.message["id"]);
    bench.server("two").result(&two, json!({"of": "two"}));
    assert!(bench.is_silent(&first));
    bench.server("one").result(&one, json!({"of": "one"}));
    assert_eq!(bench.answer(first)["result"]["of"], "one");
    assert_eq!(bench.answer(second)["result"]["of"], "two");
    bench.is_quiet();
}

#[test]
fn subscriptions_reach_their_server_and_updates_come_under_public_names() {
    let bench = Bench::new(&[shared("one"), private("two")]);
    let session = bench.client();
    let stream = bench.open_stream(session);
    let one = bench.server("one");
    let call = bench.begin(
        session,
        1,
        "resources/subscribe",
        &json!({"uri": "one-file:///a"}),
    );
    assert_eq!(one.notes(), ["want file:///a"]);
    one.shard().told("file:///a", Told::Agreed);
    assert_eq!(bench.answer(call)["result"], json!({}));
    let two = bench.server("two");
    two.settle();
    let call = bench.begin(
        session,
        2,
        "resources/subscribe",
        &json!({"uri": "two-file:///a"}),
    );
    let asked = two.one();
    assert_eq!(asked.message["params"]["uri"], "file:///a");
    two.result(&asked, json!({}));
    bench.answer(call);

    one.shard().updated(b"file:///a");
    one.shard().updated(b"file:///a/b");
    let events = bench.told_messages(session, stream);
    let uris: Vec<_> = events
        .iter()
        .map(|it| it["params"]["uri"].as_str().unwrap())
        .collect();
    assert_eq!(uris, ["one-file:///a", "one-file:///a/b"]);
    let upward = two.streams.borrow()[0];
    two.hear(
        Some(upward),
        br#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}"#,
    );
    let events = bench.told_messages(session, stream);
    assert_eq!(events[0]["params"]["uri"], "two-file:///a");

    let answer = bench.ask(
        session,
        3,
        "resources/unsubscribe",
        &json!({"uri": "one-file:///a"}),
    );
    assert_eq!(answer.now()["result"], json!({}));
    assert_eq!(one.notes(), ["release file:///a"]);
    one.shard().updated(b"file:///a");
    assert!(bench.told(session, stream).is_empty());
    bench.is_quiet();
}

#[test]
fn a_task_is_asked_of_the_upstream_that_made_it() {
    for (name, up) in [("one", shared("one")), ("one", private("one"))] {
        let bench = Bench::new(&[up, shared("other")]);
        let session = bench.client();
        let stranger = bench.client();
        let server = bench.server(name);
        let params = json!({"name": "one-x", "task": {"ttl": 60000}});
        let call = bench.begin(session, 1, "tools/call", &params);
        let asked = server.one();
        assert_eq!(asked.message["params"]["name"], "x");
        let task = json!({"taskId": "t", "status": "working", "createdAt": "2025-11-25T10:30:00Z", "ttl": 1});
        server.result(&asked, json!({ "task": task }));
        assert_eq!(bench.answer(call)["result"]["task"]["taskId"], "one-t");
        let foreign = bench
            .ask(stranger, 1, "tasks/get", &json!({"taskId": "t"}))
            .now();
        assert_eq!(code(&foreign), -32602);
        for (id, method) in [(2, "tasks/get"), (3, "tasks/result"), (4, "tasks/cancel")] {
            let call = bench.begin(session, id, method, &json!({"taskId": "one-t"}));
            let asked = server.one();
            assert_eq!(asked.method(), method);
            assert_eq!(asked.message["params"]["taskId"], "t");
            let result = match method {
                "tasks/result" => {
                    json!({
                        "content": [{"type": "resource_link", "uri": "a:b", "name": "c"}],
                        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}},
                    })
                }
                _ => task.clone(),
            };
            server.result(&asked, result);
            let answer = bench.answer(call);
            if method == "tasks/result" {
                assert_eq!(answer["result"]["content"][0]["uri"], "one-a:b");
                let meta = &answer["result"]["_meta"];
                let related = &meta["io.modelcontextprotocol/related-task"];
                assert_eq!(related["taskId"], "one-t");
            } else {
                assert_eq!(answer["result"]["taskId"], "one-t");
            }
        }
        bench.is_quiet();
    }
}

#[test]
fn a_task_of_the_only_upstream_is_found_also_under_a_prefix() {
    let mut up = shared("one");
    up.naming.prefix = Prefix::Always;
    let bench = Bench::new(&[up]);
    let session = bench.client();
    let server = bench.server("one");
    let params = json!({"name": "one-x", "task": {"ttl": 60000}});
    let call = bench.begin(session, 1, "tools/call", &params);
    let task =
        json!({"taskId": "t", "status": "working", "createdAt": "2025-11-25T10:30:00Z", "ttl": 1});
    server.result(&server.one(), json!({ "task": task }));
    bench.answer(call);
    let call = bench.begin(session, 2, "tasks/get", &json!({"taskId": "one-t"}));
    server.result(&server.one(), task);
    assert_eq!(bench.answer(call)["result"]["taskId"], "one-t");
    bench.is_quiet();
}

#[test]
fn tasks_of_two_upstreams_under_one_id_are_told_apart() {
    let bench = Bench::new(&[shared("one"), shared("two")]);
    let session = bench.client();
    let task =
        json!({"taskId": "t", "status": "working", "createdAt": "2025-11-25T10:30:00Z", "ttl": 1});
    for (id, name) in [(1, "one"), (2, "two")] {
        let params = json!({"name": format!("{name}-x"), "task": {}});
        let call = bench.begin(session, id, "tools/call", &params);
        let server = bench.server(name);
        server.result(&server.one(), json!({ "task": task }));
        bench.answer(call);
    }
    for (id, name) in [(3, "one"), (4, "two")] {
        let params = json!({"taskId": format!("{name}-t")});
        let call = bench.begin(session, id, "tasks/get", &params);
        let server = bench.server(name);
        let asked = server.one();
        assert_eq!(asked.message["params"]["taskId"], "t");
        server.result(&asked, task.clone());
        bench.answer(call);
    }
    let unknown = bench.ask(session, 5, "tasks/get", &json!({"taskId": "t"}));
    assert_eq!(code(&unknown.now()), -32602);
}

#[test]
fn servers_of_several_upstreams_ask_and_only_the_asker_gets_the_answer_once() {
    let bench = Bench::new(&[private("one"), private("two")]);
    let session = bench.client();
    let stream = bench.open_stream(session);
    let question = br#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"resource_link","uri":"a:b","name":"n"}}],"maxTokens":1}}"#;
    for name in ["one", "two"] {
        let server = bench.server(name);
        server.settle();
        let upward = server.streams.borrow()[0];
        server.hear(Some(upward), question);
    }
    let asked = bench.told_messages(session, stream);
    assert_eq!(asked.len(), 2);
    let ids: Vec<u64> = asked.iter().map(|it| it["id"].as_u64().unwrap()).collect();
    assert_ne!(ids[0], ids[1]);
    for (message, name) in asked.iter().zip(["one", "two"]) {
        let content = &message["params"]["messages"][0]["content"];
        assert_eq!(content["uri"], format!("{name}-a:b"));
    }
    let answer = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"n":1}}}}"#);
    let stranger = bench.client();
    for text in [
        answer(&ids[1].to_string()),
        answer("\"x\""),
        answer("99999"),
    ] {
        assert!(matches!(bench.send(stranger, &text), Sent::Accepted));
    }
    for name in ["one", "two"] {
        assert!(bench.server(name).asked().is_empty());
    }
    for _ in 0..2 {
        assert!(matches!(
            bench.send(session, &answer(&ids[1].to_string())),
            Sent::Accepted
        ));
    }
    let told = bench.server("two").one();
    assert_eq!(told.message["id"], "q");
    assert!(bench.server("one").asked().is_empty());
    bench.send(session, &answer(&ids[0].to_string()));
    assert_eq!(bench.server("one").one().message["id"], "q");
    bench.is_quiet();
}

#[test]
fn a_server_asks_on_the_answer_of_the_call_that_it_asks_about() {
    let bench = Bench::new(&[private("one"), private("two")]);
    let session = bench.client();
    let call = bench.tool(session, 1, "two-x");
    let server = bench.server("two");
    let asked = server.one();
    server.hear(
        asked.exchange,
        br#"{"jsonrpc":"2.0","id":5,"method":"roots/list"}"#,
    );
    let question = bench.got(call.connection);
    assert_eq!(question.messages[0]["method"], "roots/list");
    let id = question.messages[0]["id"].clone();
    let text = json!({"jsonrpc": "2.0", "id": id, "result": {"roots": []}});
    bench.send(session, &text.to_string());
    assert_eq!(server.one().message["id"], 5);
    assert!(bench.server("one").asked().is_empty());
    server.result(&asked, json!({}));
    bench.answer(call);
    bench.is_quiet();
}

#[test]
fn what_only_one_upstream_can_have_meant_goes_to_none_and_what_all_mean_to_all() {
    let bench = Bench::new(&[private("one"), private("two")]);
    let session = bench.client();
    bench.notify(session, "notifications/roots/list_changed", &json!({}));
    for name in ["one", "two"] {
        assert_eq!(
            bench.server(name).one().method(),
            "notifications/roots/list_changed"
        );
    }
    bench.notify(
        session,
        "notifications/progress",
        &json!({"progressToken": 1, "progress": 1}),
    );
    for name in ["one", "two"] {
        assert!(bench.server(name).asked().is_empty());
    }
}

#[test]
fn a_plain_route_passes_on_what_it_does_not_know() {
    for up in [shared("one"), private("one")] {
        let bench = Bench::new(&[up]);
        let session = bench.client();
        let server = bench.server("one");
        let call = bench.begin(session, 1, "x/y", &json!({"z": 1}));
        let asked = server.one();
        assert_eq!(
            (asked.method(), &asked.message["params"]),
            ("x/y", &json!({"z": 1}))
        );
        server.result(&asked, json!({"w": 2}));
        assert_eq!(bench.answer(call)["result"]["w"], 2);
        bench.is_quiet();
    }
}

#[test]
fn one_client_that_has_too_much_in_flight_at_one_upstream_can_use_the_other() {
    let bench = Bench::new(&[shared("one"), shared("two")]);
    let session = bench.client();
    let calls: Vec<_> = (0..20).map(|id| bench.tool(session, id, "one-x")).collect();
    let answer = bench
        .ask(session, 99, "tools/call", &json!({"name": "one-x"}))
        .now();
    assert_eq!(answer["error"]["data"]["reason"], "overloaded");
    let call = bench.tool(session, 99, "two-x");
    bench
        .server("two")
        .result(&bench.server("two").one(), json!({}));
    bench.answer(call);
    for asked in bench.server("one").asked() {
        bench.server("one").result(&asked, json!({}));
    }
    for (id, call) in calls.into_iter().enumerate() {
        assert_eq!(bench.answer(call)["id"], id);
    }
    bench.is_quiet();
}
