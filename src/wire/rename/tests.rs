use super::*;
use crate::wire::splice::{Edit, splice};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeSet;

/// Puts `one-` before each, and keeps what begins with `keep`.
struct Prefixed;

impl Names for Prefixed {
    fn link<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        if own.starts_with("keep") {
            return Cow::Borrowed(own);
        }
        Cow::Owned(format!("one-{own}"))
    }

    fn resource_name<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        Cow::Owned(format!("name-{own}"))
    }

    fn view<'a>(&'a self, own: &'a str) -> Option<Cow<'a, str>> {
        Some(self.link(own))
    }
}

fn whole(text: &str) -> Span {
    Span::new(0, text.len()).expect("a short text")
}

fn with_edits(text: &str, edits: &[Replacement]) -> String {
    let mut edits: Vec<Edit<'_>> = edits
        .iter()
        .map(|(span, with)| Edit { span: *span, with })
        .collect();
    let mut out = Vec::new();
    splice(&mut out, text.as_bytes(), &mut edits);
    String::from_utf8(out).expect("edits leave text")
}

fn renamed(of: ResultOf, text: &str) -> String {
    let edits = edits_of_result(text.as_bytes(), whole(text), of, &Prefixed);
    with_edits(text, &edits.expect("JSON"))
}

fn in_params(of: ParamsOf, text: &str) -> String {
    let edits = edits_of_params(text.as_bytes(), whole(text), of, &Prefixed);
    with_edits(text, &edits.expect("JSON"))
}

#[test]
fn links_and_embedded_resources_of_a_tool_call_are_renamed() {
    assert_eq!(
        renamed(
            ResultOf::ToolCall,
            r#"{"content":[{"type":"text","text":"uri","uri":"no"},
{"uri":"a:1","name":"n","title":"t","type":"resource_link", "size":1.50},
{"type":"resource","resource":{"uri":"a:2","name":"no","text":"x"},"uri":"no","name":"no"}],
"structuredContent":{"uri":"no"},"uri":"no","messages":[{"content":{"type":"resource_link","uri":"no"}}]}"#
        ),
        r#"{"content":[{"type":"text","text":"uri","uri":"no"}, {"uri":"one-a:1","name":"name-n","title":"t","type":"resource_link", "size":1.50}, {"type":"resource","resource":{"uri":"one-a:2","name":"no","text":"x"},"uri":"no","name":"no"}], "structuredContent":{"uri":"no"},"uri":"no","messages":[{"content":{"type":"resource_link","uri":"no"}}]}"#
    );
}

#[test]
fn prompt_messages_have_one_block_or_an_array_of_them() {
    assert_eq!(
        renamed(
            ResultOf::Prompt,
            r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a"}}},{"content":[{"type":"resource_link","uri":"b"},7]},7],"content":[{"type":"resource_link","uri":"no"}]}"#
        ),
        r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"one-a"}}},{"content":[{"type":"resource_link","uri":"one-b"},7]},7],"content":[{"type":"resource_link","uri":"no"}]}"#
    );
}

#[test]
fn what_was_read_has_public_uris() {
    assert_eq!(
        renamed(
            ResultOf::Read,
            r#"{"contents":[{"uri":"a","text":"\"uri\"","x":{"uri":"no"}},{"uri":"keep:b","blob":"AA"}],"uri":"no"}"#
        ),
        r#"{"contents":[{"uri":"one-a","text":"\"uri\"","x":{"uri":"no"}},{"uri":"keep:b","blob":"AA"}],"uri":"no"}"#
    );
}

#[test]
fn what_keeps_its_name_is_not_replaced() {
    let text = r#"{"contents":[{"uri":"keep:a"}]}"#;
    let edits = edits_of_result(text.as_bytes(), whole(text), ResultOf::Read, &Prefixed);
    assert_eq!(edits, Ok(Vec::new()));
}

#[test]
fn updates_and_sampling_requests_are_renamed() {
    assert_eq!(
        in_params(ParamsOf::Updated, r#"{"x":{"uri":"no"},"uri":"a"}"#),
        r#"{"x":{"uri":"no"},"uri":"one-a"}"#
    );
    let nested = r#"{"messages":[{"role":"user","content":[{"type":"tool_result","toolUseId":"1","content":[{"type":"resource_link","uri":"a","name":"n"},{"type":"tool_result","content":[{"type":"resource_link","uri":"no"}]}],"structuredContent":{"uri":"no"}},{"type":"text","text":"","content":[{"type":"resource_link","uri":"no"}]}]}],"uri":"no"}"#;
    assert_eq!(
        in_params(ParamsOf::Sampling, nested),
        nested
            .replacen(r#""uri":"a""#, r#""uri":"one-a""#, 1)
            .replacen(r#""name":"n""#, r#""name":"name-n""#, 1)
    );
}

#[test]
fn names_and_values_spelled_with_escapes_are_found_and_written_plainly() {
    let text = r#"{"c\u006fntent":[{"t\u0079pe":"resource\u005flink","\u0075\u0072\u0069":"a\n\u0022\u00e9"}]}"#;
    assert!(may_hold_uris(text.as_bytes()));
    assert_eq!(
        renamed(ResultOf::ToolCall, text),
        text.replace(r#"a\n\u0022\u00e9"#, "one-a\\n\\\"\u{e9}")
    );
}

#[test]
fn of_members_that_stand_twice_all_are_renamed() {
    assert_eq!(
        renamed(
            ResultOf::ToolCall,
            r#"{"content":[{"type":"text","type":"resource_link","type":"resource","uri":"a","\u0075ri":"b","resource":{"uri":"c","uri":"d"},"resource":{"uri":"e"}}],"content":{"type":"resource_link","uri":"f"}}"#
        ),
        r#"{"content":[{"type":"text","type":"resource_link","type":"resource","uri":"one-a","\u0075ri":"one-b","resource":{"uri":"one-c","uri":"one-d"},"resource":{"uri":"one-e"}}],"content":{"type":"resource_link","uri":"one-f"}}"#
    );
}

#[test]
fn what_has_another_form_stays() {
    for text in [
        "null",
        "7",
        r#""uri""#,
        "[]",
        "{}",
        r#"{"content":null}"#,
        r#"{"content":"uri"}"#,
        r#"{"content":[[{"type":"resource_link","uri":"a"}]]}"#,
        r#"{"content":[{"uri":"a"}]}"#,
        r#"{"content":[{"type":"Resource_Link","uri":"a"}]}"#,
        r#"{"content":[{"type":"resource_link","uri":7,"name":"n"}]}"#,
        r#"{"content":[{"type":"resource_link","name":"n"}]}"#,
        r#"{"content":[{"type":"resource_link","uri":"\ud800"}]}"#,
        r#"{"content":[{"type":"resource","resource":"a"}]}"#,
        r#"{"content":[{"type":"resource","resource":[{"uri":"a"}]}]}"#,
        r#"{"content":[{"type":["resource_link"],"uri":"a"}]}"#,
    ] {
        assert_eq!(renamed(ResultOf::ToolCall, text), text);
    }
}

#[test]
fn only_the_result_of_a_message_is_looked_into() {
    let text = r#"{"content":[{"type":"resource_link","uri":"no"}],"result":{"content":[{"type":"resource_link","uri":"a"}]}}"#;
    let start = text.find(r#":{"content""#).expect("a result") + 1;
    let result = Span::new(start, text.len() - 1).expect("a span");
    let edits = edits_of_result(text.as_bytes(), result, ResultOf::ToolCall, &Prefixed);
    let edits = edits.expect("JSON");
    assert_eq!(
        with_edits(text, &edits),
        text.replace(r#""a""#, r#""one-a""#)
    );
}

#[test]
fn text_that_is_not_json_is_an_error_and_no_panic() {
    for text in [
        "",
        "{",
        r#"{"content":[{"#,
        r#"{"content":[{"type":"resource_link""#,
        "{]",
    ] {
        let edits = edits_of_result(text.as_bytes(), whole(text), ResultOf::ToolCall, &Prefixed);
        assert_eq!(edits, Err(Malformed), "{text}");
    }
}

#[test]
fn a_result_without_a_uri_is_known_by_a_search() {
    for (text, may) in [
        (r#"{"content":[{"type":"text","text":"a"}]}"#, false),
        (
            r#"{"content":[{"type":"text","text":"a \"uri\" b \u00e9 \\"}]}"#,
            false,
        ),
        (
            r#"{"content":[{"type":"text","text":"\u0065\u007"}]}"#,
            false,
        ),
        (r#"{"curi":1,"uris":2}"#, false),
        (r#"{"uri":1}"#, true),
        (r#"{"a":1,"uri" :1}"#, true),
        (r#"[{"a":1, "uri":1}]"#, true),
        (r#"{"\u0075ri":1}"#, true),
        (r#"{"u\u0072i":1}"#, true),
        (r#"{"ur\u0069":1}"#, true),
    ] {
        assert_eq!(may_hold_uris(text.as_bytes()), may, "{text}");
    }
}

fn asked(text: &str) -> Result<Ref<'_>, RefError> {
    completion_ref(text.as_bytes(), whole(text))
}

#[test]
fn a_completion_is_asked_of_a_prompt_or_a_resource() {
    let text = r#"{"argument":{"name":"no"},"ref":{"name":"a","type":"ref/prompt"},"name":"no"}"#;
    let found = asked(text).expect("a reference");
    assert_eq!((found.kind, found.text.as_ref()), (RefKind::Prompt, "a"));
    assert_eq!(found.value.of(text.as_bytes()), br#""a""#);
    let text = r#"{ "r\u0065f" : {"t\u0079pe":"ref/res\u006furce", "\u0075ri" : "a:\u007bx}" } }"#;
    let found = asked(text).expect("a reference");
    assert_eq!(
        (found.kind, found.text.as_ref()),
        (RefKind::Resource, "a:{x}")
    );
    assert_eq!(found.value.of(text.as_bytes()), br#""a:\u007bx}""#);
}

#[test]
fn a_reference_that_can_be_read_in_two_ways_is_refused() {
    let plain = r#""type":"ref/prompt","name":"a""#;
    assert!(asked(&format!(r#"{{"ref":{{{plain}}}}}"#)).is_ok());
    for (more, error) in [
        (r#""name":"b""#, RefError::Twice),
        (r#""n\u0061me":"a""#, RefError::Twice),
        (r#""type":"ref/resource""#, RefError::Twice),
        (r#""uri":"b","uri":"c""#, RefError::Twice),
        (r#""Name":"b""#, RefError::Folded),
        (r#""TYPE":7"#, RefError::Folded),
        (r#""URI":"b""#, RefError::Folded),
    ] {
        assert_eq!(
            asked(&format!(r#"{{"ref":{{{plain},{more}}}}}"#)),
            Err(error),
            "{more}"
        );
        assert_eq!(
            asked(&format!(r#"{{"ref":{{{more},{plain}}}}}"#)),
            Err(error),
            "{more}"
        );
    }
    for (more, error) in [
        (r#""ref":{}"#, RefError::Twice),
        (r#""r\u0065f":null"#, RefError::Twice),
        (r#""Ref":{}"#, RefError::Folded),
    ] {
        assert_eq!(
            asked(&format!(r#"{{"ref":{{{plain}}},{more}}}"#)),
            Err(error),
            "{more}"
        );
        assert_eq!(
            asked(&format!(r#"{{{more},"ref":{{{plain}}}}}"#)),
            Err(error),
            "{more}"
        );
    }
}

#[test]
fn what_is_no_reference_is_refused() {
    for text in [
        "",
        "[]",
        "{}",
        r#"{"ref":"a"}"#,
        r#"{"ref":[{"type":"ref/prompt","name":"a"}]}"#,
        r#"{"ref":{"type":"ref/prompt"}}"#,
        r#"{"ref":{"type":"ref/prompt","uri":"a"}}"#,
        r#"{"ref":{"type":"ref/resource","name":"a"}}"#,
        r#"{"ref":{"type":"ref/tool","name":"a"}}"#,
        r#"{"ref":{"name":"a"}}"#,
        r#"{"ref":{"type":"ref/prompt","name":7}}"#,
        r#"{"ref":{"type":"ref/prompt","name":"\ud800"}}"#,
        r#"{"ref":{"type":"ref/prompt","name":"a""#,
        r#"{"x":{"ref":{"type":"ref/prompt","name":"a"}}}"#,
    ] {
        assert_eq!(asked(text), Err(RefError::Form), "{text}");
    }
}

/// A JSON string of `text` with characters written as escapes where `ways` says so.
fn spelled(text: &str, ways: &[bool]) -> String {
    let mut out = String::from('"');
    for (at, unit) in text.chars().enumerate() {
        let is_escaped = ways.get(at % ways.len().max(1)).copied().unwrap_or(false);
        if is_escaped || unit < ' ' || unit == '"' || unit == '\\' {
            for half in unit.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{half:04x}"));
            }
        } else {
            out.push(unit);
        }
    }
    out.push('"');
    out
}

fn word() -> impl Strategy<Value = String> + Clone {
    const WORDS: [&str; 12] = [
        "content",
        "contents",
        "messages",
        "type",
        "uri",
        "name",
        "resource",
        "resource_link",
        "tool_result",
        "keep",
        "ur",
        "\"uri\"",
    ];
    prop_oneof![
        8 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

/// A value of the words that matter, as text, without names that stand twice.
fn shape() -> impl Strategy<Value = String> {
    let string = (
        word(),
        prop::collection::vec(prop::bool::weighted(0.2), 0..5),
    )
        .prop_map(|(word, ways)| spelled(&word, &ways));
    let key = string.clone();
    let leaf = prop_oneof![
        4 => string,
        1 => Just("null".to_owned()),
        1 => Just("1.50E+400".to_owned()),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5)
                .prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec((key.clone(), inner), 0..7).prop_map(|mut members| {
                let mut names = BTreeSet::new();
                members.retain(|(key, _)| names.insert(parsed(key).to_string()));
                let members = members.iter().map(|(key, value)| format!("{key} :{value}"));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }),
        ]
    })
}

/// A result in its right form around such values.
fn result() -> impl Strategy<Value = (ResultOf, String)> {
    let kind = prop::sample::select(&["resource_link", "resource", "tool_result", "text"][..]);
    let block = (kind, shape(), shape(), shape()).prop_map(|(kind, a, b, c)| {
        format!(r#"{{"uri":{a},"type":"{kind}","resource":{{"uri":{b},"x":{c}}},"name":{b}}}"#)
    });
    let blocks = prop::collection::vec(block, 0..4).prop_map(|all| format!("[{}]", all.join(",")));
    (0..4, blocks, shape()).prop_map(|(of, blocks, other)| match of {
        0 => (
            ResultOf::ToolCall,
            format!(r#"{{"x":{other},"content":{blocks}}}"#),
        ),
        1 => (
            ResultOf::Prompt,
            format!(r#"{{"messages":[{{"content":{blocks}}},{other}]}}"#),
        ),
        2 => (
            ResultOf::Read,
            format!(r#"{{"contents":{blocks},"x":{other}}}"#),
        ),
        _ => (ResultOf::ToolCall, other),
    })
}

/// The same by a parser that knows nothing of places.
fn expected(of: ResultOf, mut result: Value) -> Value {
    fn uri(of: &mut Value) {
        if let Some(text) = of.get("uri").and_then(Value::as_str) {
            of["uri"] = Prefixed.link(text).into();
        }
    }
    fn each(value: &mut Value, change: &mut dyn FnMut(&mut Value)) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(change),
            other => change(other),
        }
    }
    fn block(value: &mut Value, may_nest: bool) {
        match value.get("type").and_then(Value::as_str) {
            Some("resource_link") if value["uri"].is_string() => {
                uri(value);
                if let Some(name) = value.get("name").and_then(Value::as_str) {
                    value["name"] = Prefixed.resource_name(name).into();
                }
            }
            Some("resource") => {
                if let Some(resource) = value.get_mut("resource") {
                    uri(resource);
                }
            }
            Some("tool_result") if may_nest => {
                if let Some(content) = value.get_mut("content") {
                    each(content, &mut |value| block(value, false));
                }
            }
            _ => {}
        }
    }
    let content = |value: &mut Value| {
        if let Some(content) = value.get_mut("content") {
            each(content, &mut |value| block(value, true));
        }
    };
    match of {
        ResultOf::ToolCall => content(&mut result),
        ResultOf::Prompt => {
            if let Some(messages) = result.get_mut("messages") {
                each(messages, &mut { content });
            }
        }
        ResultOf::Read => {
            if let Some(contents) = result.get_mut("contents") {
                each(contents, &mut uri);
            }
        }
    }
    result
}

fn parsed(text: &str) -> Value {
    // Numbers are not what this is about.
    serde_json::from_str(&text.replace("1.50E+400", "1.5")).expect("JSON")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn the_uris_that_a_parser_finds_are_renamed_and_nothing_else((of, text) in result()) {
        let edits = edits_of_result(text.as_bytes(), whole(&text), of, &Prefixed).expect("JSON");
        // The quick check never says no where there is something to do.
        prop_assert!(may_hold_uris(text.as_bytes()) || edits.is_empty(), "{}", text);
        let mut changed = with_edits(&text, &edits);
        prop_assert_eq!(parsed(&changed), expected(of, parsed(&text)), "{}", text);
        // With what was there put back it is the same, byte for byte.
        let mut edits = edits;
        edits.sort_unstable_by_key(|(span, _)| span.start);
        for (span, with) in &edits {
            let (start, end) = (span.start as usize, span.end as usize);
            changed.replace_range(start..start + with.len(), &text[start..end]);
        }
        prop_assert_eq!(changed, text);
    }
}
