use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;

use super::budget::Budget;
use super::walk::{Fault, Zone, redacted};
use super::*;
use crate::hooks::{CallContext, CallState, Chain, Job};

const EVERYWHERE: Places = Places {
    arguments: true,
    results: true,
    progress: true,
};

/// What a search of `pattern` makes of `text`; the same text if nothing matches.
fn made(pattern: &str, replacement: &str, zone: Zone, text: &str) -> Result<String, Fault> {
    let search = Search::new(pattern, replacement).expect("a pattern that can be used");
    let mut budget = Budget::new(Duration::from_secs(3_600));
    let made = redacted(&search, text, zone, &mut budget)?;
    assert_ne!(
        made.as_deref(),
        Some(text),
        "told of a change where there is none"
    );
    Ok(made.unwrap_or_else(|| text.to_owned()))
}

/// The same with a key-like pattern.
fn keys(zone: Zone, text: &str) -> String {
    made("sk-[a-z]+", "[gone]", zone, text).expect("JSON")
}

#[track_caller]
fn stays(zone: Zone, text: &str) {
    assert_eq!(keys(zone, text), text);
}

// === what is found in strings ===

#[test]
fn all_that_matches_is_replaced_and_every_other_byte_stays() {
    let text = " {\"n\" : 1.00e+2,\t\"a\":\"x sk-abc, sk-d\\n\\u00e9\" ,\r\n\"b\":[null,-0,\"sk-e\",{}, []],\"b\":true} ";
    let after = " {\"n\" : 1.00e+2,\t\"a\":\"x [gone], [gone]\\n\\u00e9\" ,\r\n\"b\":[null,-0,\"[gone]\",{}, []],\"b\":true} ";
    assert_eq!(keys(Zone::Free, text), after);
}

#[test]
fn escapes_hide_nothing_and_other_escapes_stay() {
    for (text, after) in [
        (r#""sk\u002dabc""#, r#""[gone]""#),
        (r#""\u0073\u006b\u002d\u0061""#, r#""[gone]""#),
        (
            r#""\u00e9\/sk-\u0061!\u0041\ud800""#,
            r#""\u00e9\/[gone]!\u0041\ud800""#,
        ),
        (
            r#""\ud83e\udd8ask-a\ud83e\udd8a""#,
            r#""\ud83e\udd8a[gone]\ud83e\udd8a""#,
        ),
        (r#""é\\sk-a\\é""#, r#""é\\[gone]\\é""#),
    ] {
        assert_eq!(keys(Zone::Free, text), after);
    }
    // An escaped backslash begins no escape.
    stays(Zone::Free, r#""sk\\u002dabc""#);
}

#[test]
fn a_pattern_may_speak_of_what_escapes_mean() {
    let made = made("a\n\"b", "", Zone::Free, r#"["xa\n\"by","xa\\n\"b"]"#);
    assert_eq!(made.as_deref(), Ok(r#"["xy","xa\\n\"b"]"#));
}

#[test]
fn a_replacement_is_plain_text_and_is_spelled_as_json() {
    let made = made("(k)ey", "$1\"\\\n", Zone::Free, r#"["key"]"#);
    assert_eq!(made.as_deref(), Ok(r#"["$1\"\\\n"]"#));
}

#[test]
fn what_a_replacement_brings_about_is_replaced_too() {
    assert_eq!(
        made("ab", "", Zone::Free, r#""xaabby""#).as_deref(),
        Ok(r#""xy""#)
    );
    assert_eq!(
        made("ab|x-y", "-", Zone::Free, r#""xaby""#).as_deref(),
        Ok(r#""-""#)
    );
    // More often than is tried: then all of it goes.
    let deep = format!("\"_{}{}_\"", "a".repeat(50), "b".repeat(50));
    assert_eq!(made("ab", "", Zone::Free, &deep).as_deref(), Ok(r#""""#));
}

#[test]
fn anchors_speak_of_whole_strings_and_look_behind_matches() {
    let text = r#"["ab","abab","xab"]"#;
    assert_eq!(
        made("^ab", "-", Zone::Free, text).as_deref(),
        Ok(r#"["-","-ab","xab"]"#)
    );
    assert_eq!(
        made("^ab$", "-", Zone::Free, text).as_deref(),
        Ok(r#"["-","abab","xab"]"#)
    );
    assert_eq!(
        made(r"\bab\b", "-", Zone::Free, text).as_deref(),
        Ok(r#"["-","abab","xab"]"#)
    );
    // The second is not at a word's beginning, although it is where the search goes on.
    assert_eq!(
        made(r"\bab", "-c", Zone::Free, r#""abab""#).as_deref(),
        Ok(r#""-cab""#)
    );
}

#[test]
fn numbers_and_literals_are_not_searched() {
    let text = r#"{"a":4111,"b":[4111,true],"c":"4111"}"#;
    let after = r#"{"a":4111,"b":[4111,true],"c":"-"}"#;
    assert_eq!(
        made("4111|true", "-", Zone::Free, text).as_deref(),
        Ok(after)
    );
}

// === texts within strings ===

#[test]
fn json_in_a_string_is_searched_as_decoded() {
    for (text, after) in [
        (
            r#""{\"k\":\"sk\\u002dabc\",\"n\":1.0}""#,
            r#""{\"k\":\"[gone]\",\"n\":1.0}""#,
        ),
        (r#"" [\"sk\\u002dabc\"] ""#, r#"" [\"[gone]\"] ""#),
        (r#""\"sk\\u002dabc\"""#, r#""\"[gone]\"""#),
        (r#""{\"sk\\u002dabc\":0}""#, r#""{\"[gone]\":0}""#),
    ] {
        assert_eq!(keys(Zone::Free, text), after);
    }
    // No JSON: only what is written is searched.
    stays(Zone::Free, r#""{\"k\":\"sk\\u002dabc\"""#);
    stays(Zone::Free, r#""{\"k\":\"sk\\u002dabc\\q\"}""#);
    stays(Zone::Free, r#""see {\"k\":\"sk\\u002dabc\"}""#);
    assert_eq!(
        keys(Zone::Free, r#""{\"k\":\"sk-abc""#),
        r#""{\"k\":\"[gone]""#
    );
}

#[test]
fn json_in_a_string_stays_json_whatever_the_replacement() {
    let text = r#""{\"k\":\"abc\"}""#;
    let made = made("abc", "\"\\", Zone::Free, text).expect("JSON");
    let outer: String = serde_json::from_str(&made).expect("JSON");
    let inner: Value = serde_json::from_str(&outer).expect("JSON in a string");
    assert_eq!(inner["k"], "\"\\");
}

#[test]
fn a_pattern_may_span_names_and_values_of_json_in_a_string() {
    let pattern = r#""password"\s*:\s*"[^"]*""#;
    let made = made(pattern, "-", Zone::Free, r#"{"t":"{\"password\": \"x\"}"}"#);
    assert_eq!(made.as_deref(), Ok(r#"{"t":"{-}"}"#));
}

#[test]
fn texts_in_each_other_are_searched_to_the_limit() {
    let mut text = r#"["sk\u002dabc"]"#.to_owned();
    for depth in 0..=NESTED_MAX + 1 {
        let is_found = !keys(Zone::Free, &text).contains("u002d");
        assert_eq!(is_found, depth <= NESTED_MAX, "{depth}");
        text = serde_json::to_string(&[&text]).expect("a list of one string");
    }
}

// === which strings ===

#[test]
fn of_params_only_the_arguments_are_searched_with_their_names() {
    let text = r#"{"name":"sk-a","uri":"sk-a","_meta":{"progressToken":"sk-a"},"sk-a":1,"task":{"a":["sk-a"]},
        "arguments":{"sk-b":"sk-c","x":[{"name":"sk-d","type":"sk-e"}]}}"#;
    let after = r#"{"name":"sk-a","uri":"sk-a","_meta":{"progressToken":"sk-a"},"sk-a":1,"task":{"a":["sk-a"]},
        "arguments":{"[gone]":"[gone]","x":[{"name":"[gone]","type":"[gone]"}]}}"#;
    assert_eq!(keys(Zone::Params, text), after);
}

#[test]
fn arguments_are_known_however_they_are_spelled_and_how_often() {
    for name in [
        "arguments",
        "argument\\u0073",
        "Arguments",
        "ARGUMENT\u{17f}",
    ] {
        let text = format!(r#"{{"arguments":"sk-a","{name}":{{"a":"sk-b"}}}}"#);
        let after = format!(r#"{{"arguments":"[gone]","{name}":{{"a":"[gone]"}}}}"#);
        assert_eq!(keys(Zone::Params, &text), after);
    }
    stays(
        Zone::Params,
        r#"{"argument":"sk-a","arguments_":"sk-a","a":{"arguments":"sk-a"}}"#,
    );
}

#[test]
fn of_progress_only_the_message_is_searched() {
    let text =
        r#"{"progressToken":"sk-a","progress":1,"message":"at sk-b","_meta":{"message":"sk-a"}}"#;
    let after =
        r#"{"progressToken":"sk-a","progress":1,"message":"at [gone]","_meta":{"message":"sk-a"}}"#;
    assert_eq!(keys(Zone::Progress, text), after);
    assert_eq!(
        keys(Zone::Progress, r#"{"me\u0073sage":"sk-b"}"#),
        r#"{"me\u0073sage":"[gone]"}"#
    );
}

#[test]
fn all_of_a_result_is_searched() {
    let text = r#"{"content":[{"type":"text","text":"sk-a","sk-n":0},
        {"type":"resource","resource":{"uri":"file:///sk-a","mimeType":"sk-a","text":"sk-a"}}],
        "structuredContent":{"sk-n":"sk-a","x":[["sk-a"]]},"_meta":{"sk-n":"sk-a"},"other":"sk-a"}"#;
    let made = keys(Zone::Result, text);
    assert!(!made.contains("sk-"), "{made}");
    assert_eq!(
        made,
        text.replace("sk-a", "[gone]").replace("sk-n", "[gone]")
    );
}

#[test]
fn words_and_names_of_the_protocol_stay_where_it_puts_them() {
    let text = r#"{"content":[{"type":"text","text":"-","annotations":{"audience":["user","assistant"]}}],
        "messages":[{"role":"user","content":{"type":"resource_link","uri":"-","name":"-"}}]}"#;
    for pattern in [
        "[a-z]+(_link)?",
        "user|assistant|text|resource_link|content|type|role",
    ] {
        assert_eq!(made(pattern, "-", Zone::Result, text).as_deref(), Ok(text));
    }
    // Other words in these places do not, and these words in other places do not.
    let text = r#"{"content":[{"type":"sk-a","role":["user"],"text":"user"}],"structuredContent":{"type":"text"},"_meta":{"role":"user"}}"#;
    let after = r#"{"content":[{"type":"-","role":["-"],"text":"-"}],"structuredContent":{"-":"-"},"_meta":{"-":"-"}}"#;
    assert_eq!(
        made("sk-a|user|text|type|role", "-", Zone::Result, text).as_deref(),
        Ok(after)
    );
}

#[test]
fn only_long_base64_is_left_alone() {
    let long = "AAAA".repeat(16);
    let short = "AAAA".repeat(15);
    let result = |name: &str, data: &str| format!(r#"{{"content":[{{"{name}":"{data}"}}]}}"#);
    let replaced = |text: &str| made("A{20}", "-", Zone::Result, text).as_deref() != Ok(text);
    for name in ["data", "blob"] {
        assert!(!replaced(&result(name, &long)));
        assert!(!replaced(&result(name, &format!("{}==", &long[2..]))));
        assert!(replaced(&result(name, &short)));
        for suffix in [".", "A", "AA=A", "A===", "-AAA"] {
            assert!(
                replaced(&result(name, &format!("{long}{suffix}"))),
                "{suffix}"
            );
        }
    }
    assert!(replaced(&result("text", &long)));
    assert!(replaced(&format!(
        r#"{{"structuredContent":{{"data":"{long}"}}}}"#
    )));
}

#[test]
fn the_id_of_a_task_stays_and_nothing_else_of_it() {
    let related = "io.modelcontextprotocol/related-task";
    let text = format!(
        r#"{{"task":{{"taskId":"sk-a","status":"sk-b"}},"_meta":{{"{related}":{{"taskId":"sk-a","x":"sk-b"}}}}}}"#
    );
    assert_eq!(keys(Zone::Result, &text), text.replace("sk-b", "[gone]"));
    let elsewhere = r#"{"taskId":"sk-a","content":[{"task":{"taskId":"sk-a"}},{"taskId":"sk-a"}],"task":{"taskId":{"a":"sk-a"}}}"#;
    let made = keys(Zone::Result, elsewhere);
    assert_eq!(made, elsewhere.replace("sk-a", "[gone]"));
}

// === bounds and hostile texts ===

#[test]
fn what_is_not_json_is_a_fault_in_every_zone() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    for text in [
        "",
        " ",
        "{",
        "}",
        "[1",
        "[1,]x",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1]",
        "[1}",
        "{1:2}",
        "\"a",
        "\"\\\"",
        "{} {}",
        "[1 2]",
        "\"\\q\"",
        "{\"\\q\":1}",
        "{\"a\":\"\\u12\"}",
        "[,]",
        "{,}",
        "{\"a\":1,}",
        "[1,]",
        &deep,
    ] {
        for zone in [
            Zone::Free,
            Zone::Kept,
            Zone::Params,
            Zone::Progress,
            Zone::Result,
        ] {
            assert_eq!(
                made("x", "-", zone, text),
                Err(Fault::Malformed),
                "{zone:?} {text}"
            );
        }
    }
}

#[test]
fn growth_is_bounded_in_one_string_and_over_many() {
    let replacement = "-".repeat(REPLACEMENT_BYTES_MAX);
    let matches = GROWTH_BYTES_MAX / REPLACEMENT_BYTES_MAX;
    let one = |count: usize| format!("\"{}\"", "x".repeat(count));
    let many = |count: usize| format!("[{}0]", "\"x\",".repeat(count));
    for text in [&one as &dyn Fn(usize) -> String, &many] {
        assert!(made("x", &replacement, Zone::Free, &text(matches)).is_ok());
        let too_many = text(matches * 2);
        assert_eq!(
            made("x", &replacement, Zone::Free, &too_many),
            Err(Fault::TooLarge)
        );
    }
}

#[test]
fn a_search_that_would_take_the_square_of_its_text_is_given_up() {
    let search = Search::new("(?s)BEGIN.*END|KEY", "-").expect("a pattern");
    let text = format!("\"{}\"", "BEGIN KEY ".repeat(200_000));
    let mut budget = Budget::new(Duration::ZERO);
    assert_eq!(
        redacted(&search, &text, Zone::Free, &mut budget),
        Err(Fault::TooSlow)
    );
}

#[test]
fn patterns_that_cannot_be_used_are_refused() {
    let fault = |pattern: &str, replacement: &str| {
        Redactor::new("r", pattern, replacement, EVERYWHERE).err()
    };
    for pattern in [
        "", "a*", "a?", "(a|)", r"\b", r"\b|abc", "^", "(?:a{0})", "x*|y",
    ] {
        assert_eq!(
            fault(pattern, "-"),
            Some(RedactorError::MatchesEmpty),
            "{pattern}"
        );
    }
    for pattern in ["(", "[z-a]", r"\p{Nothing}", "(?=a)", r"(a)\1"] {
        assert!(
            matches!(fault(pattern, "-"), Some(RedactorError::Pattern(_))),
            "{pattern}"
        );
    }
    assert_eq!(
        fault(r"(\pL{100}){100}", "-"),
        Some(RedactorError::PatternTooLarge)
    );
    let long = "a".repeat(PATTERN_BYTES_MAX);
    assert_eq!(fault(&long, "-"), None);
    assert_eq!(
        fault(&format!("{long}a"), "-"),
        Some(RedactorError::PatternTooLong)
    );
    let long = "-".repeat(REPLACEMENT_BYTES_MAX);
    assert_eq!(fault("a", &long), None);
    assert_eq!(
        fault("a", &format!("{long}-")),
        Some(RedactorError::ReplacementTooLong)
    );
    assert_eq!(
        fault("[a-z]+", "[gone]"),
        Some(RedactorError::ReplacementMatches)
    );
    assert_eq!(
        fault("^gone$", "gone"),
        Some(RedactorError::ReplacementMatches)
    );
}

// === as a hook ===

fn asked(redactor: Redactor, point: Point, text: &[u8]) -> Verdict {
    let chain = Chain::new(vec![std::sync::Arc::new(redactor)], Duration::MAX, 1 << 20);
    assert!(chain.is_quick(point));
    let call = CallContext {
        route: "r".into(),
        upstream: None,
        identity: None,
        session: 1,
        method: "tools/call",
        name: "sk-a".into(),
    };
    let job = Job {
        point,
        call,
        state: CallState::default(),
        text: text.to_vec(),
    };
    chain.run_here(job).verdict
}

fn key_redactor(places: Places) -> Redactor {
    Redactor::new("keys", "sk-[a-z]+", "[gone]", places).expect("a pattern")
}

#[test]
fn it_is_asked_where_it_is_to_look_and_nowhere_else() {
    use Point::*;
    let only = |arguments, results, progress| {
        key_redactor(Places {
            arguments,
            results,
            progress,
        })
        .points()
    };
    assert_eq!(only(false, false, false), Points::NONE);
    assert_eq!(
        only(true, false, false),
        Points::from(BeforeToolCall).with(BeforePrompt)
    );
    assert_eq!(
        only(false, true, false),
        Points::from(AfterToolCall).with(AfterPrompt)
    );
    assert_eq!(only(false, false, true), Points::from(Progress));
}

#[test]
fn each_point_searches_its_own_part() {
    let text = br#"{"arguments":"sk-a","message":"sk-b","name":"sk-c"}"#;
    for (point, after) in [
        (
            Point::BeforeToolCall,
            r#"{"arguments":"[gone]","message":"sk-b","name":"sk-c"}"#,
        ),
        (
            Point::BeforePrompt,
            r#"{"arguments":"[gone]","message":"sk-b","name":"sk-c"}"#,
        ),
        (
            Point::AfterToolCall,
            r#"{"arguments":"[gone]","message":"[gone]","name":"[gone]"}"#,
        ),
        (
            Point::AfterPrompt,
            r#"{"arguments":"[gone]","message":"[gone]","name":"[gone]"}"#,
        ),
        (
            Point::Progress,
            r#"{"arguments":"sk-a","message":"[gone]","name":"sk-c"}"#,
        ),
    ] {
        let verdict = asked(key_redactor(EVERYWHERE), point, text);
        assert_eq!(verdict, Verdict::Rewrite(after.into()), "{point:?}");
        assert_eq!(asked(key_redactor(EVERYWHERE), point, b"{}"), Verdict::Pass);
    }
}

#[test]
fn what_cannot_be_searched_is_denied() {
    for text in [&b"{"[..], b"\"\xff\"", b""] {
        let verdict = asked(key_redactor(EVERYWHERE), Point::AfterToolCall, text);
        assert!(matches!(verdict, Verdict::Deny(_)), "{text:?}");
    }
}

// === any text ===

/// Strings that are near to matches of the patterns below.
fn near_text() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "s",
        "k",
        "-",
        "a",
        "b",
        "sk-a",
        "\\",
        "\"",
        "\n",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "é",
        "🦊",
        "\\u002d",
        "\\u0061",
        "{\"a\":\"sk\\u002da\"}",
        "[\"ab\"]",
    ]);
    prop_oneof![
        4 => prop::collection::vec(parts, 0..8).prop_map(|parts| parts.concat()),
        1 => any::<String>(),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        near_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((near_text(), inner.clone()), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
            // A text within a string.
            inner.prop_map(|inner| Value::from(inner.to_string())),
        ]
    })
}

/// The text of `value` with each character of strings spelled by an escape where `dice` says so.
fn spelled_at_random(text: &str, dice: u64) -> String {
    let mut out = String::new();
    let mut in_string = false;
    let mut chars = text.chars().peekable();
    let mut turn = 0_u32;
    while let Some(character) = chars.next() {
        turn = turn.wrapping_add(1);
        match character {
            '"' => {
                in_string = !in_string;
                out.push('"');
            }
            '\\' => {
                out.push('\\');
                out.extend(chars.next());
            }
            other if in_string && dice.rotate_left(turn) & 1 == 1 => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            other => out.push(other),
        }
    }
    out
}

/// The strings of a value that a redactor has to look at, names and texts within strings too.
fn strings(value: &Value, nested: usize, out: &mut Vec<String>) {
    match value {
        Value::String(text) => string(text, nested, out),
        Value::Array(items) => items.iter().for_each(|item| strings(item, nested, out)),
        Value::Object(members) => {
            for (name, value) in members {
                string(name, nested, out);
                strings(value, nested, out);
            }
        }
        _ => {}
    }
}

fn string(text: &str, nested: usize, out: &mut Vec<String>) {
    out.push(text.to_owned());
    if nested < NESTED_MAX
        && let Ok(inner) = serde_json::from_str::<Value>(text)
    {
        strings(&inner, nested + 1, out);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_match_is_left_and_the_form_stays(
        value in any_json(),
        dice in any::<u64>(),
        (pattern, replacement) in prop::sample::select(vec![
            ("sk-[a-z]+", "[gone]"), ("ab", ""), ("ab|a-b", "-"), ("^sk", "\"\\"), ("k\"?-", "\""), (r"\\", "/"),
        ]),
    ) {
        let text = spelled_at_random(&value.to_string(), dice);
        prop_assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(value.clone()));
        let search = Search::new(pattern, replacement).expect("a pattern");
        let mut before = Vec::new();
        strings(&value, 0, &mut before);
        let made = redacted(&search, &text, Zone::Free, &mut Budget::new(Duration::MAX));
        let made = made.map_err(|fault| TestCaseError::fail(fault.to_string()))?;
        let has_match = before.iter().any(|text| search.pattern.is_match(text));
        prop_assert_eq!(made.is_some(), has_match);
        if let Some(made) = made {
            let after: Value = serde_json::from_str(&made)
                .map_err(|error| TestCaseError::fail(format!("{error}: {made}")))?;
            let mut left = Vec::new();
            strings(&after, 0, &mut left);
            for text in left {
                prop_assert!(!search.pattern.is_match(&text), "left: {:?} in {}", text, made);
            }
            // Done once, there is nothing more to do.
            let again = redacted(&search, &made, Zone::Free, &mut Budget::new(Duration::MAX));
            prop_assert_eq!(again, Ok(None));
        }
    }

    /// Whatever the text: an answer, and JSON where JSON came in.
    #[test]
    fn no_text_panics(
        text in prop_oneof![near_text(), any_json().prop_map(|value| value.to_string())],
        cut in any::<prop::sample::Index>(),
    ) {
        let search = Search::new("[sk]-?", "\u{1}").expect("a pattern");
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        for text in [text.as_str(), &text[..*cut.get(&cuts)]] {
            for zone in [Zone::Free, Zone::Kept, Zone::Params, Zone::Progress, Zone::Result, Zone::Meta] {
                let made = redacted(&search, text, zone, &mut Budget::new(Duration::MAX));
                if serde_json::from_str::<Value>(text).is_ok() {
                    let made = made.map_err(|fault| TestCaseError::fail(fault.to_string()))?;
                    let made = made.as_deref().unwrap_or(text);
                    prop_assert!(serde_json::from_str::<Value>(made).is_ok(), "{}", made);
                }
            }
        }
    }

    /// Routing reads the same from params before and after.
    #[test]
    fn what_routing_reads_of_params_stays(
        name in near_text(), token in near_text(), arguments in any_json(),
    ) {
        let params = serde_json::json!({
            "name": name, "_meta": {"progressToken": token}, "arguments": arguments, "task": {"ttl": 1},
        });
        let search = Search::new("[a-z]", "-").expect("a pattern");
        let text = params.to_string();
        let made = redacted(&search, &text, Zone::Params, &mut Budget::new(Duration::MAX));
        let made = made.map_err(|fault| TestCaseError::fail(fault.to_string()))?.unwrap_or(text);
        let after: Value = serde_json::from_str(&made)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        for member in ["name", "_meta", "task"] {
            prop_assert_eq!(&after[member], &params[member]);
        }
    }
}
