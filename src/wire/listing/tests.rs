use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn as_is(_: &Item<'_>) -> Option<Shown> {
    Some(Shown::default())
}

/// Views keep their URIs.
struct AsIs;

impl Names for AsIs {
    fn link<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        Cow::Borrowed(own)
    }

    fn resource_name<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        Cow::Borrowed(own)
    }

    fn view<'a>(&'a self, own: &'a str) -> Option<Cow<'a, str>> {
        Some(Cow::Borrowed(own))
    }
}

/// Everything is shown, with `one-` before its key and `name-` before its name.
fn renamed(item: &Item<'_>) -> Option<Shown> {
    Some(Shown {
        key: Some(format!("one-{}", item.key)),
        name: item.name.map(|name| format!("name-{name}")),
    })
}

fn taken(
    kind: ListKind,
    result: &str,
    show: &mut dyn FnMut(&Item<'_>) -> Option<Shown>,
) -> (Page, String) {
    let mut out = Vec::new();
    let page = take_page(kind, result.as_bytes(), show, &AsIs, &mut out).expect("a page");
    (page, String::from_utf8(out).expect("things are text"))
}

fn fault(result: &str) -> ListFault {
    let mut out = b"{}".to_vec();
    let page = take_page(
        ListKind::Tools,
        result.as_bytes(),
        &mut as_is,
        &AsIs,
        &mut out,
    );
    assert_eq!(out, b"{}");
    page.expect_err("a page that cannot be used")
}

#[test]
fn each_list_has_its_method_its_member_and_its_key() {
    for (kind, method, member, key, name) in [
        (ListKind::Tools, "tools/list", "tools", "name", None),
        (ListKind::Prompts, "prompts/list", "prompts", "name", None),
        (
            ListKind::Resources,
            "resources/list",
            "resources",
            "uri",
            Some("n"),
        ),
        (
            ListKind::Templates,
            "resources/templates/list",
            "resourceTemplates",
            "uriTemplate",
            Some("n"),
        ),
        (ListKind::Tasks, "tasks/list", "tasks", "taskId", None),
    ] {
        assert_eq!(ListKind::of_method(method), Some(kind));
        let name_member = if key == "name" { "" } else { r#","name":"n""# };
        let list = format!(r#"{{"{member}":[{{"{key}":"k"{name_member}}}]}}"#);
        let mut asked = Vec::new();
        let (page, out) = taken(kind, &list, &mut |item| {
            asked.push((item.key.to_owned(), item.name.map(str::to_owned)));
            renamed(item)
        });
        assert_eq!(page.shown, 1);
        assert_eq!(asked, [("k".to_owned(), name.map(str::to_owned))]);
        let name_member = match name {
            Some(_) => r#","name":"name-n""#,
            None => name_member,
        };
        assert_eq!(out, format!(r#"{{"{key}":"one-k"{name_member}}}"#));
        let answer = merged(b"7", kind, out.as_bytes(), None);
        let expected = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"{member}":[{out}]}}}}"#);
        assert_eq!(String::from_utf8(answer).as_deref(), Ok(expected.as_str()));
    }
    assert_eq!(ListKind::of_method("tools/call"), None);
    assert_eq!(ListKind::ALL.len(), 5);
}

#[test]
fn only_names_change_and_raw_line_breaks() {
    let list = "{\"_meta\":{\"tools\":[]},\"t\\u006fols\" : [ {\"x\" : 1.50E+400,\r\n\"n\\u0061me\":\"a\\u0062\" , \
        \"inputSchema\":{\"name\":\"no\",\"maximum\":123456789012345678901234567890},\
        \"title\":\"\\ud800\",\"annotations\":{\"b\":1,\"a\":-0.0}} ,\n {\"name\":\"c\"}\n], \"y\":1}";
    let (page, out) = taken(ListKind::Tools, list, &mut renamed);
    assert_eq!(
        out,
        "{\"x\" : 1.50E+400,  \"n\\u0061me\":\"one-ab\" , \
        \"inputSchema\":{\"name\":\"no\",\"maximum\":123456789012345678901234567890},\
        \"title\":\"\\ud800\",\"annotations\":{\"b\":1,\"a\":-0.0}},{\"name\":\"one-c\"}"
    );
    assert_eq!(
        (page.shown, page.unreadable, page.next_cursor),
        (2, 0, None)
    );
    let (_, out) = taken(
        ListKind::Tools,
        r#"{"tools":[{"name":"\u0061"}]}"#,
        &mut as_is,
    );
    assert_eq!(out, r#"{"name":"\u0061"}"#);
}

#[test]
fn the_name_of_a_resource_and_its_uri_change_apart() {
    let list = r#"{"resources":[{"name":"n","uri":"a:1"},{"uri":"a:2"},{"uri":"a:3","name":7}]}"#;
    let (page, out) = taken(ListKind::Resources, list, &mut renamed);
    assert_eq!(
        out,
        r#"{"name":"name-n","uri":"one-a:1"},{"uri":"one-a:2"},{"uri":"one-a:3","name":7}"#
    );
    assert_eq!(page.shown, 3);
    let only = |key: bool| {
        taken(ListKind::Resources, list, &mut |item| {
            let word = Some(format!("<{}>", item.key));
            Some(match key {
                true => Shown {
                    key: word,
                    name: None,
                },
                false => Shown {
                    key: None,
                    name: word,
                },
            })
        })
    };
    assert_eq!(
        only(true).1,
        r#"{"name":"n","uri":"<a:1>"},{"uri":"<a:2>"},{"uri":"<a:3>","name":7}"#
    );
    assert_eq!(
        only(false).1,
        r#"{"name":"<a:1>","uri":"a:1"},{"uri":"a:2"},{"uri":"a:3","name":7}"#
    );
}

#[test]
fn a_tool_has_no_name_beside_its_name() {
    let shown = Shown {
        key: None,
        name: Some("x".to_owned()),
    };
    for (kind, list) in [
        (ListKind::Tools, r#"{"tools":[{"name":"a"}]}"#),
        (ListKind::Tasks, r#"{"tasks":[{"taskId":"1","name":"a"}]}"#),
    ] {
        let (_, out) = taken(kind, list, &mut |_| Some(shown.clone()));
        assert!(out.contains(r#""name":"a""#), "{out}");
    }
}

#[test]
fn pages_of_several_servers_follow_each_other() {
    let mut out = Vec::new();
    for list in [
        r#"{"tools":[]}"#,
        r#"{"tools":[{"name":"a"},{"name":"hide"}]}"#,
        r#"{"tools":[{"name":"hide"},7]}"#,
        r#"{"tools":[{"name":"b"},{"name":"c"}],"nextCursor":"x"}"#,
    ] {
        let show = &mut |item: &Item<'_>| (item.key != "hide").then(Shown::default);
        take_page(ListKind::Tools, list.as_bytes(), show, &AsIs, &mut out).expect("a page");
    }
    assert_eq!(out, br#"{"name":"a"},{"name":"b"},{"name":"c"}"#);
    let answer = merged(br#""\u0061""#, ListKind::Tools, &out, Some("a\"b"));
    let expected = r#"{"jsonrpc":"2.0","id":"\u0061","result":{"tools":[{"name":"a"},{"name":"b"},{"name":"c"}],"nextCursor":"a\"b"}}"#;
    assert_eq!(answer, expected.as_bytes());
    let empty = merged(b"1", ListKind::Prompts, b"", None);
    assert_eq!(
        empty,
        br#"{"jsonrpc":"2.0","id":1,"result":{"prompts":[]}}"#
    );
}

#[test]
fn what_nobody_could_ask_for_is_left_out_and_counted() {
    let list = r#"{"tools":[null,7,"a",["name"],{},{"name":7},{"name":null},{"name":"\ud800"},
        {"name":"a","name":"b"},{"name":"a","n\u0061me":"a"},{"x":1,"x":2,"name":"a"},
        {"x":1e999,"name":"a","name":"b"},{"x":1e999,"name":7},{"title":"a"},{"name":"ok"}]}"#;
    let (page, out) = taken(ListKind::Tools, list, &mut as_is);
    assert_eq!(out, r#"{"name":"ok"}"#);
    assert_eq!((page.shown, page.unreadable), (1, 14));
    let declined = taken(ListKind::Tools, list, &mut |_| None).0;
    assert_eq!((declined.shown, declined.unreadable), (0, 14));
}

#[test]
fn what_some_clients_take_for_a_name_is_left_out_with_its_thing() {
    let list = r#"{"tools":[{"name":"a","Name":"b"},{"NAME":"b"},{"x":1e999,"name":"a","n\u0041me":"b"},
        {"name":"ok","URI":"b","inputSchema":{"Name":"b"}}]}"#;
    let (page, out) = taken(ListKind::Tools, list, &mut as_is);
    assert_eq!(out, r#"{"name":"ok","URI":"b","inputSchema":{"Name":"b"}}"#);
    assert_eq!((page.shown, page.unreadable), (1, 3));
    let list = r#"{"resources":[{"uri":"a","Uri":"b"},{"uri":"a","Name":"b"},{"uri":"c"}]}"#;
    let (page, out) = taken(ListKind::Resources, list, &mut as_is);
    assert_eq!(out, r#"{"uri":"c"}"#);
    assert_eq!((page.shown, page.unreadable), (1, 2));
    // Of a task only the id is a name.
    let list =
        "{\"tasks\":[{\"taskId\":\"a\",\"ta\u{17f}kid\":\"b\"},{\"taskId\":\"c\",\"Name\":7}]}";
    let (page, out) = taken(ListKind::Tasks, list, &mut as_is);
    assert_eq!(out, r#"{"taskId":"c","Name":7}"#);
    assert_eq!((page.shown, page.unreadable), (1, 1));
}

#[test]
fn a_page_that_is_no_list_is_refused_whole() {
    for text in [
        "",
        "null",
        "[]",
        r#"{"tools":[]"#,
        r#"{"tools":[]} x"#,
        r#"{"\ud800":1}"#,
    ] {
        assert_eq!(fault(text), ListFault::Form, "{text}");
    }
    for text in [
        "{}",
        r#"{"tools":{}}"#,
        r#"{"tools":null}"#,
        r#"{"prompts":[]}"#,
    ] {
        assert_eq!(fault(text), ListFault::Array, "{text}");
    }
    for text in [
        r#"{"tools":[],"tools":[]}"#,
        r#"{"x":1,"tools":[],"\u0078":1}"#,
    ] {
        assert_eq!(fault(text), ListFault::Twice, "{text}");
    }
}

#[test]
fn a_cursor_is_a_string_of_bounded_length() {
    let with = |cursor: &str| format!(r#"{{"nextCursor":{cursor},"tools":[]}}"#);
    let cursor_of = |text: &str| {
        taken(ListKind::Tools, &with(text), &mut as_is)
            .0
            .next_cursor
    };
    assert_eq!(cursor_of("null"), None);
    assert_eq!(cursor_of(r#""""#), None);
    assert_eq!(cursor_of(r#""a\u0062\n""#).as_deref(), Some("ab\n"));
    for cursor in ["7", "{}", r#"["a"]"#, "true", r#""\ud800""#] {
        assert_eq!(fault(&with(cursor)), ListFault::Cursor, "{cursor}");
    }
    let longest = "\u{e9}".repeat(LIST_CURSOR_BYTES_MAX / 2);
    let spelled = format!(r#""{}""#, "\\u00e9".repeat(LIST_CURSOR_BYTES_MAX / 2));
    assert_eq!(cursor_of(&spelled), Some(longest.clone()));
    let longer = with(&format!(r#""{longest}x""#));
    assert_eq!(fault(&longer), ListFault::CursorTooLong);
    assert_eq!(fault(r#"{"nextCursor":"a"}"#), ListFault::Array);
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
    const WORDS: [&str; 7] = [
        "name",
        "uri",
        "uriTemplate",
        "taskId",
        "resources",
        "nextCursor",
        "a",
    ];
    let text = prop_oneof![
        4 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    (text, prop::collection::vec(prop::bool::weighted(0.2), 0..5))
        .prop_map(|(text, ways)| spelled(&text, &ways))
}

fn blank() -> impl Strategy<Value = &'static str> + Clone {
    prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t")]
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => word(),
        1 => Just("null".to_owned()),
        1 => Just("-1.50E+400".to_owned()),
        1 => Just(r#""\ud800""#.to_owned()),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..5), blank())
                .prop_map(|(all, blank)| format!("[{blank}{}]", all.join(&format!("{blank},")))),
            (prop::collection::vec((word(), inner), 0..5), blank()).prop_map(|(all, blank)| {
                let members = all
                    .iter()
                    .map(|(key, value)| format!("{key}:{blank}{value}"));
                format!("{{{}{blank}}}", members.collect::<Vec<_>>().join(","))
            }),
        ]
    })
}

/// A list of resources, most of them in order.
fn list() -> impl Strategy<Value = (Vec<String>, String)> {
    let right = (word(), word(), json(), blank()).prop_map(|(uri, name, other, blank)| {
        format!(r#"{{"x":{other},{blank}"uri":{uri}{blank},"name" : {name}}}"#)
    });
    let all = prop::collection::vec(prop_oneof![3 => right, 1 => json()], 0..6);
    (all, json(), blank()).prop_map(|(all, other, blank)| {
        let list = format!(
            r#"{{"x":{other},{blank}"resources":[{blank}{}{blank}]}}"#,
            all.join(&format!("{blank},{blank}"))
        );
        (all, list)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_page_differs_from_the_servers_in_nothing_but_names((all, list) in list()) {
        let mut asked = Vec::new();
        let (page, out) = taken(ListKind::Resources, &list, &mut |item| {
            asked.push((item.key.to_owned(), item.name.map(str::to_owned)));
            renamed(item)
        });
        prop_assert_eq!(page.shown, asked.len());
        prop_assert_eq!(page.shown + page.unreadable, all.len());
        prop_assert!(!out.contains(['\n', '\r']));
        // Byte for byte: each is the server's with its two strings replaced, which are
        // found here by their being the last ones that read so at the outer level.
        let mut wanted = Vec::new();
        let mut next = asked.iter();
        for text in &all {
            let Ok(parts) = members(text.as_bytes()) else { continue };
            let Some(uri) = find(&parts, "uri").and_then(|raw| decoded(raw.as_bytes())) else {
                continue;
            };
            let name = find(&parts, "name").and_then(|raw| decoded(raw.as_bytes()));
            let (key, said) = next.next().expect("as many as were asked about");
            prop_assert_eq!(key.as_str(), uri.as_ref());
            prop_assert_eq!(said.as_deref(), name.as_deref());
            let mut text = text.clone();
            for (member, word) in [("uri", Some(uri)), ("name", name)] {
                let Some(word) = word else { continue };
                let before = if member == "uri" { "one-" } else { "name-" };
                let parts = members(text.as_bytes()).expect("members");
                let raw = find(&parts, member).expect("a member");
                let start = raw.as_ptr().addr() - text.as_ptr().addr();
                let place = start..start + raw.len();
                let mut with = Vec::new();
                json_string(&mut with, &format!("{before}{word}"));
                text.replace_range(place, &String::from_utf8(with).expect("text"));
            }
            wanted.push(text.replace(['\n', '\r'], " "));
        }
        prop_assert_eq!(&out, &wanted.join(","));
        let answer = merged(b"1", ListKind::Resources, out.as_bytes(), Some("c"));
        let is_json = serde_json::from_slice::<&serde_json::value::RawValue>(&answer).is_ok();
        prop_assert!(is_json);
    }

    #[test]
    fn any_json_is_a_page_or_a_fault(text in json(), kind in prop::sample::select(&ListKind::ALL[..])) {
        let mut out = Vec::new();
        if take_page(kind, text.as_bytes(), &mut renamed, &AsIs, &mut out).is_ok() {
            let array = [b"[", out.as_slice(), b"]"].concat();
            let things = serde_json::from_slice::<Vec<&serde_json::value::RawValue>>(&array);
            prop_assert!(things.is_ok());
        }
    }

    #[test]
    fn no_bytes_are_too_bad_to_be_read(bytes in any::<Vec<u8>>()) {
        for text in [
            bytes.clone(),
            [&br#"{"tools":["#[..], &bytes, b"]}"].concat(),
            [&br#"{"tools":[{"name":""#[..], &bytes, br#""}]}"#].concat(),
        ] {
            let mut out = Vec::new();
            if take_page(ListKind::Tools, &text, &mut renamed, &AsIs, &mut out).is_ok() {
                let array = [b"[", out.as_slice(), b"]"].concat();
                if let Ok(things) = serde_json::from_slice::<Value>(&array) {
                    for thing in things.as_array().expect("an array") {
                        prop_assert!(thing["name"].as_str().is_some_and(|it| it.starts_with("one-")));
                    }
                }
            }
        }
    }
}
