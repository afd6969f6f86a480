//! Cases of the scan, each a text that some client, server or attacker could send.

use super::*;

fn ok(text: &str) -> Envelope<'_> {
    scan(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

fn fault(text: impl AsRef<[u8]>) -> Fault {
    refused(text.as_ref()).fault
}

fn refused(text: &[u8]) -> ScanError {
    match scan(text) {
        Err(error) => error,
        Ok(envelope) => panic!("{} passed as {envelope:?}", text.escape_ascii()),
    }
}

fn raw(field: Option<Field>, text: &str) -> Option<&str> {
    field.map(|field| std::str::from_utf8(field.span.of(text.as_bytes())).unwrap())
}

/// A request with `members` in place of nothing but `jsonrpc` and `method`.
fn request(members: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"m",{members}}}"#)
}

const CALL: &str = r#" {"jsonrpc" : "2.0", "id":7,
    "method":"tools/call","params":{ "name":"echo","arguments":{"id":1,"x":[{"method":2}]},
    "_meta" : {"progressToken":"t-1", "other":{}} , "uri":"file:///a"} } "#;

#[test]
fn a_call_gives_its_kind_and_ranges() {
    let call = ok(CALL);
    assert_eq!((call.kind, &*call.method), (Kind::Request, "tools/call"));
    assert_eq!(raw(call.id, CALL), Some("7"));
    assert_eq!(call.id.unwrap().shape, Shape::Integer);
    assert_eq!(raw(call.name, CALL), Some("\"echo\""));
    assert_eq!(raw(call.uri, CALL), Some("\"file:///a\""));
    assert_eq!(raw(call.meta_progress_token, CALL), Some("\"t-1\""));
    let params = call.params.unwrap().of(CALL.as_bytes());
    assert!(params.starts_with(b"{ \"name\"") && params.ends_with(b"\"file:///a\"}"));
    assert_eq!(
        (call.result, call.error, call.progress_token),
        (None, None, None)
    );
}

#[test]
fn notifications_and_responses_are_told_apart() {
    let text = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#;
    let cancel = ok(text);
    assert_eq!((cancel.kind, cancel.id), (Kind::Notification, None));
    assert_eq!(raw(cancel.request_id, text), Some("\"a\""));

    let text = r#"{"result":{"a":[1]},"id":"x","jsonrpc":"2.0"}"#;
    let result = ok(text);
    assert_eq!((result.kind, &*result.method), (Kind::Result, ""));
    assert_eq!(result.result.unwrap().of(text.as_bytes()), br#"{"a":[1]}"#);

    let text = r#"{"id":1,"jsonrpc":"2.0","error":{"code":-1,"message":""}}"#;
    let error = ok(text);
    assert_eq!(error.kind, Kind::Error);
    assert_eq!(
        error.error.unwrap().of(text.as_bytes()),
        br#"{"code":-1,"message":""}"#
    );
    assert_eq!(ok(r#"{"jsonrpc":"2.0","error":{}}"#).id, None);
    assert_eq!(ok(r#"{"jsonrpc":"2.0","id":null,"error":{}}"#).id, None);
}

#[test]
fn every_known_member_has_its_place() {
    let text = request(
        r#""id":1,"params":{"name":1,"uri":2,"requestId":3,"taskId":4,"progressToken":5,
        "level":6,"task":{},"cursor":8,"protocolVersion":9,"_meta":{"progressToken":10,
        "io.modelcontextprotocol/protocolVersion":11,"io.modelcontextprotocol/related-task":12,
        "io.modelcontextprotocol/subscriptionId":13}}"#,
    );
    let it = ok(&text);
    let fields = [
        it.name,
        it.uri,
        it.request_id,
        it.task_id,
        it.progress_token,
        it.level,
        it.task,
        it.cursor,
        it.protocol_version,
        it.meta_progress_token,
        it.meta_protocol_version,
        it.meta_related_task,
        it.meta_subscription_id,
    ];
    let raws: Vec<_> = fields
        .iter()
        .map(|field| raw(*field, &text).unwrap())
        .collect();
    let expected = [
        "1", "2", "3", "4", "5", "6", "{}", "8", "9", "10", "11", "12", "13",
    ];
    assert_eq!(raws, expected);
}

#[test]
fn escaped_strings_keep_their_place_in_the_text() {
    let text = r#"{"jsonrpc":"2\u002e0","\u0069d":"a-\u0041","method":"tools\/call",
        "par\u0061ms":{"n\u0061me":"\"\\","_m\u0065ta":{"progressToken" :"\u00e9\n"}}}"#;
    let call = ok(text);
    assert_eq!(raw(call.id, text), Some(r#""a-\u0041""#));
    assert_eq!(call.id.unwrap().shape, Shape::String { escaped: true });
    assert_eq!(call.id.unwrap().text(text.as_bytes()).unwrap(), "a-A");
    assert_eq!(call.method, "tools/call");
    assert_eq!(raw(call.name, text), Some(r#""\"\\""#));
    assert_eq!(raw(call.meta_progress_token, text), Some(r#""\u00e9\n""#));
    assert_eq!(
        call.meta_progress_token
            .unwrap()
            .text(text.as_bytes())
            .unwrap(),
        "\u{e9}\n"
    );
    let params = call.params.unwrap().of(text.as_bytes());
    assert!(params.starts_with(b"{\"n\\u0061me") && params.ends_with(b"}}"));
}

#[test]
fn a_known_name_twice_is_refused_at_all_three_levels() {
    for members in [
        r#""id":1,"id":1"#,
        r#""id":1,"\u0069d":2"#,
        r#""id":1,"method":"m""#,
        r#""id":1,"params":{},"params":{}"#,
        r#""id":1,"params":null,"params":{}"#,
        r#""id":1,"params":{"name":"a","x":0,"n\u0061me":"b"}"#,
        r#""id":1,"params":{"_meta":{},"_meta":{}}"#,
        r#""id":1,"params":{"_meta":{"progressToken":1,"progressToken":1}}"#,
    ] {
        assert_eq!(fault(request(members)), Fault::DuplicateKey, "{members}");
    }
    ok(&request(
        r#""id":1,"x":1,"x":2,"params":{"y":1,"y":2,"arguments":{"id":1,"id":2}}"#,
    ));
}

#[test]
fn a_name_that_folds_to_a_known_one_is_refused_at_all_three_levels() {
    for members in [
        r#""ID":1"#,
        r#""id":1,"Id":1"#,
        r#""id":1,"PARAMS":{}"#,
        r#""id":1,"\u0049D":1"#,
        r#""id":1,"param\u017f":{}"#,
        r#""id":1,"params":{"Uri":1}"#,
        "\"id\":1,\"params\":{\"ta\u{17f}k\":1}",
        "\"id\":1,\"params\":{\"tas\u{212a}\":1}",
        r#""id":1,"params":{"_meta":{"progressto\u212aen":1}}"#,
        r#""id":1,"params":{"_meta":{"io.ModelContextProtocol/related-task":1}}"#,
    ] {
        assert_eq!(fault(request(members)), Fault::FoldedKey, "{members}");
    }
    ok(&request(
        "\"\u{131}d\":1,\"params\":{\"arguments\":{\"ID\":1}}",
    ));
}

#[test]
fn the_id_is_reported_only_where_there_is_exactly_one() {
    let id = |text: &str| {
        let error = refused(text.as_bytes());
        raw(error.id, text).map(str::to_owned)
    };
    assert_eq!(
        id(&request(r#""id":5,"params":{"name":1,"name":2}"#)),
        Some("5".into())
    );
    assert_eq!(
        id(&request(r#""params":[],"id":"x""#)),
        Some("\"x\"".into())
    );
    assert_eq!(id(r#"{"id":5,"method":"m"}"#), Some("5".into()));
    for members in [
        r#""id":5,"id":5"#,
        r#""id":5,"ID":5"#,
        r#""ID":5"#,
        r#""id":null"#,
        r#""id":[1]"#,
        r#""id":5,"x":tru"#,
    ] {
        assert_eq!(id(&request(members)), None, "{members}");
    }
}

#[test]
fn ids_are_strings_or_integers_of_any_size_up_to_a_limit() {
    let longest = format!("\"{}\"", "x".repeat(ID_BYTES_MAX - 2));
    for id in [
        "0",
        "-0",
        "-1",
        "9007199254740993",
        "123456789012345678901234567890",
        "\"\"",
        "\"\\ud800\"",
        &longest,
    ] {
        let text = request(&format!("\"id\":{id}"));
        assert_eq!(raw(ok(&text).id, &text), Some(id));
    }
    for id in ["null", "true", "1.0", "1e3", "-1E1", "[]", "{}", "1e999"] {
        let error = refused(request(&format!("\"id\":{id}")).as_bytes());
        assert_eq!((error.fault, error.id), (Fault::IdType, None), "{id}");
    }
    let long = request(&format!("\"id\":\"{}\"", "x".repeat(ID_BYTES_MAX - 1)));
    assert_eq!(fault(long), Fault::IdTooLong);
    assert_eq!(
        fault(request(&format!("\"id\":{}", "1".repeat(1025)))),
        Fault::IdTooLong
    );
}

#[test]
fn tokens_are_strings_or_integers() {
    let meta = |token: &str| {
        request(&format!(
            r#""id":1,"params":{{"_meta":{{"progressToken":{token}}}}}"#
        ))
    };
    for token in ["1.5", "1e3", "null", "false", "[1]", "{}"] {
        assert_eq!(fault(meta(token)), Fault::TokenType, "{token}");
        let own = request(&format!(r#""params":{{"progressToken":{token}}}"#));
        assert_eq!(fault(own), Fault::TokenType, "{token}");
        ok(&request(&format!(
            r#""id":1,"params":{{"progressToken":{token}}}"#
        )));
    }
    assert_eq!(fault(meta(&"7".repeat(1025))), Fault::TokenTooLong);
    assert_eq!(Fault::TokenType.code(), -32602);
    for token in ["9007199254740993", "\"\\u0041\""] {
        let text = meta(token);
        assert_eq!(raw(ok(&text).meta_progress_token, &text), Some(token));
    }
}

#[test]
fn params_and_meta_are_objects_or_absent() {
    for value in [
        "null",
        "[]",
        r#"["u","n"]"#,
        "1",
        "1e999",
        r#""\ud800""#,
        "true",
        "\"{}\"",
    ] {
        assert_eq!(
            fault(request(&format!("\"params\":{value}"))),
            Fault::ParamsType,
            "{value}"
        );
        let meta = request(&format!("\"id\":1,\"params\":{{\"_meta\" :\t{value}}}"));
        assert_eq!(fault(meta), Fault::MetaType, "{value}");
    }
    ok(&request(r#""params" : { }"#));
    ok(&request(r#""params":{"_meta":{ }}"#));
}

#[test]
fn the_message_is_exactly_one_kind_of_message() {
    let cases = [
        (r#"{"jsonrpc":"2.0"}"#, Fault::Shape),
        (r#"{"jsonrpc":"2.0","id":1}"#, Fault::Shape),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","result":{}}"#,
            Fault::Shape,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
            Fault::Shape,
        ),
        (r#"{"jsonrpc":"2.0","result":{}}"#, Fault::Shape),
        (r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, Fault::IdType),
        (r#"{"jsonrpc":"2.0","id":1.0,"error":{}}"#, Fault::IdType),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, Fault::MethodType),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#,
            Fault::MethodType,
        ),
        (r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#, Fault::Version),
        (r#"{"jsonrpc":2.0,"id":1,"method":"m"}"#, Fault::Version),
        (r#"{"id":1,"method":"m"}"#, Fault::Version),
        ("{}", Fault::Version),
    ];
    for (text, expected) in cases {
        assert_eq!(fault(text), expected, "{text}");
        assert_eq!(expected.code(), -32600);
    }
}

#[test]
fn json_of_another_kind_is_not_an_object_and_the_rest_is_not_json() {
    for text in [
        "[]",
        " [1]",
        "1",
        "\"x\"",
        "null",
        "1e999",
        r#"[{"jsonrpc":"2.0"}]"#,
    ] {
        assert_eq!(fault(text), Fault::NotObject, "{text}");
    }
    let valid = request("\"id\":1");
    let texts = [
        "",
        " ",
        "{",
        "}",
        "[",
        "[1,]",
        "[,1]",
        "{,}",
        "nul",
        "01",
        "+1",
        ".5",
        "1.",
        "'a'",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1 \"b\":2}",
        "/**/{}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":\"",
        "\u{feff}{}",
        "\u{a0}{}",
        "{}\u{a0}",
        "{}x",
        "{}{}",
        "{}\0",
        "\u{c}{}",
        "{\"\\ud800\":1}",
    ];
    for text in texts {
        assert_eq!(fault(text), Fault::NotJson, "{text:?}");
    }
    for cut in 0..valid.len() {
        assert_eq!(fault(&valid[..cut]), Fault::NotJson, "{}", &valid[..cut]);
    }
}

#[test]
fn a_syntax_error_anywhere_wins_over_faults_of_meaning() {
    for members in [
        r#""id":null,"id":2,"x":tru"#,
        r#""ID":1,"params":[1,]"#,
        r#""id":1,"params":{"_meta":{"progressToken":1.5},"arguments":{"a":nul}}"#,
    ] {
        assert_eq!(fault(request(members)), Fault::NotJson, "{members}");
    }
}

#[test]
fn raw_control_characters_in_strings_are_refused_also_where_skipped() {
    for control in ["\n", "\r", "\t", "\0", "\u{1f}"] {
        for pad in [0, 1, 31, 32, 33, 64, 200] {
            let pad = "x".repeat(pad);
            for members in [
                format!("\"id\":1,\"y\":\"{pad}{control}{pad}\""),
                format!("\"id\":1,\"y\":[{{\"{pad}{control}\":1}}]"),
                format!("\"id\":1,\"params\":{{\"arguments\":{{\"a\":\"\\\"{pad}{control}\"}}}}"),
                format!("\"id\":\"{pad}{control}\""),
                format!("\"{pad}{control}{pad}\":1"),
            ] {
                assert_eq!(fault(request(&members)), Fault::NotJson, "{members:?}");
            }
        }
    }
}

#[test]
fn unicode_escapes_cannot_hide_a_quote_or_a_line_break() {
    // sonic-rs steps over four characters after \u unseen when it skips a string.
    for members in [
        "\"x\":\"\\u\n\n\n\n\"",
        r#""x":"\u":1,"id":2"#,
        r#""x":"\u"aa","id":7"#,
        r#""x":{"\uzzzz":1}"#,
    ] {
        assert_eq!(fault(request(members)), Fault::NotJson, "{members:?}");
    }
    let hidden_depth = format!(r#"["\u"aaa",{}"#, "[".repeat(200_000));
    assert_eq!(fault(hidden_depth), Fault::NotJson);
}

#[test]
fn invalid_utf8_is_refused_wherever_it_stands() {
    for bad in [
        &b"\xff"[..],
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf4\x90\x80\x80",
    ] {
        let mut text = br#"{"jsonrpc":"2.0","id":1,"method":"m","x":""#.to_vec();
        text.extend_from_slice(bad);
        text.extend_from_slice(b"\"}");
        assert_eq!(fault(&text), Fault::NotUtf8);
    }
}

#[test]
fn depth_is_bounded_before_any_parser_looks() {
    for text in ["[".repeat(200_000), "{\"a\":".repeat(100_000)] {
        let error = refused(text.as_bytes());
        assert_eq!((error.fault, error.fault.code()), (Fault::TooDeep, -32700));
        assert_eq!(batch(text.as_bytes()), Err(Fault::TooDeep));
    }
    let nested = |levels: usize| {
        request(&format!(
            "\"id\":1,\"x\":{}{}",
            "[".repeat(levels),
            "]".repeat(levels)
        ))
    };
    ok(&nested(127));
    assert_eq!(fault(nested(128)), Fault::TooDeep);
}

#[test]
fn values_are_carried_that_some_parsers_refuse() {
    ok(&request(
        r#""id":1,"params":{"name":"\ud800","arguments":["\udc00\ud800",1e999,-1e-999]}"#,
    ));
    let text = request(r#""id":1,"params":{"uri":"\ud800"}"#);
    assert_eq!(ok(&text).uri.unwrap().text(text.as_bytes()), None);
}

#[test]
fn batches_give_the_range_of_each_message() {
    let text = br#" [ {"a":[1,2]} ,7,"\u0041,]" ] "#;
    let raws: Vec<_> = batch(text)
        .unwrap()
        .iter()
        .map(|span| span.of(text))
        .collect();
    assert_eq!(raws, [&br#"{"a":[1,2]}"#[..], b"7", br#""\u0041,]""#]);
    assert!(is_batch(text) && is_batch(b"\n[") && !is_batch(b"{") && !is_batch(b" "));
    assert_eq!(batch(b"[]"), Ok(vec![]));
    assert_eq!(batch(b"{}"), Err(Fault::NotObject));
    for text in ["[", "[1,]", "[,]", "[1 2]", "[1]]", "", "[\"\\u12\"]"] {
        assert_eq!(batch(text.as_bytes()), Err(Fault::NotJson), "{text}");
    }
    assert_eq!(batch(b"[\"\xff\"]"), Err(Fault::NotUtf8));
    let many = format!("[{}0]", "0,".repeat(100_000));
    assert_eq!(
        batch(many.as_bytes()).unwrap().len(),
        BATCH_MESSAGES_MAX + 1
    );
}

#[test]
fn faults_have_the_codes_of_the_contract() {
    for fault in [Fault::NotUtf8, Fault::TooDeep, Fault::NotJson] {
        assert_eq!(fault.code(), -32700);
    }
    for fault in [
        Fault::NotObject,
        Fault::IdTooLong,
        Fault::FoldedKey,
        Fault::MetaType,
    ] {
        assert_eq!(fault.code(), -32600);
        assert!(
            fault
                .sentence()
                .bytes()
                .all(|byte| byte.is_ascii_graphic() || byte == b' ')
        );
    }
    assert_eq!(Fault::TokenTooLong.code(), -32602);
}
