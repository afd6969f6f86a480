use std::borrow::Cow;

use proptest::prelude::*;

use super::*;
use crate::wire::listing::{Item, ListKind, Shown, take_page};
use crate::wire::rename::{ResultOf, edits_of_result, may_name_views as may_name};
use crate::wire::splice::{Edit, splice};

/// Puts `one-` before each, keeps what begins with `keep`, and hides what begins with `hide`.
struct Prefixed;

impl Names for Prefixed {
    fn link<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        Cow::Owned(format!("link-{own}"))
    }

    fn resource_name<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        Cow::Borrowed(own)
    }

    fn view<'a>(&'a self, own: &'a str) -> Option<Cow<'a, str>> {
        match own {
            _ if own.starts_with("hide") => None,
            _ if own.starts_with("keep") => Some(Cow::Borrowed(own)),
            _ => Some(Cow::Owned(format!("one-{own}"))),
        }
    }
}

fn in_result(of: ResultOf, text: &str) -> String {
    let whole = Span::new(0, text.len()).expect("a short text");
    let found = edits_of_result(text.as_bytes(), whole, of, &Prefixed).expect("JSON");
    let mut edits: Vec<_> = found
        .iter()
        .map(|(span, with)| Edit { span: *span, with })
        .collect();
    let mut out = Vec::new();
    splice(&mut out, text.as_bytes(), &mut edits);
    String::from_utf8(out).expect("edits leave text")
}

fn in_list(kind: ListKind, member: &str, thing: &str) -> String {
    let list = format!(r#"{{"{member}":[{thing}]}}"#);
    let show = &mut |_: &Item<'_>| Some(Shown::default());
    let mut out = Vec::new();
    take_page(kind, list.as_bytes(), show, &Prefixed, &mut out).expect("a page");
    String::from_utf8(out).expect("things are text")
}

/// What becomes of a raw `_meta`, the same in a tool of a list and in the result of one.
#[track_caller]
fn meta(raw: &str) -> String {
    let (before, behind) = (r#"{"name":"t","_meta":"#, r#", "inputSchema":{}}"#);
    let text = format!("{before}{raw}{behind}");
    let listed = in_list(ListKind::Tools, "tools", &text);
    assert_eq!(in_result(ResultOf::ToolCall, &text), listed);
    assert!(may_name(text.as_bytes()) || listed == text, "{text}");
    let inside = listed.strip_prefix(before);
    let inside = inside.and_then(|rest| rest.strip_suffix(behind));
    inside.expect("nothing else changes").to_owned()
}

#[test]
fn views_have_the_uris_that_clients_can_read_them_by() {
    assert_eq!(
        meta(
            r#"{"ui" : {"visibility":["app"], "resourceUri" : "a" }, "ui/resourceUri":"a","x":1.50}"#
        ),
        r#"{"ui" : {"visibility":["app"], "resourceUri" : "one-a" }, "ui/resourceUri":"one-a","x":1.50}"#
    );
    let same = r#"{"ui":{"resourceUri":"keep:a"},"ui/resourceUri":"keep:b"}"#;
    assert_eq!(meta(same), same);
}

#[test]
fn a_view_that_cannot_be_read_is_left_out_wherever_it_stands() {
    for (inside, left) in [
        (r#"{"resourceUri":"hide"}"#, "{}"),
        (r#"{ "resourceUri" : "hide" }"#, "{  }"),
        (r#"{"resourceUri":"hide","a":1}"#, r#"{"a":1}"#),
        (r#"{"a":1 , "resourceUri":"hide"}"#, r#"{"a":1}"#),
        (r#"{"a":1,"resourceUri":"hide","b":2}"#, r#"{"a":1,"b":2}"#),
        (r#"{"resourceUri":"hide","resourceUri":"hide2"}"#, "{}"),
        (
            r#"{"resourceUri":"hide","resourceUri":"hide","a":1,"resourceUri":"hide","resourceUri":"hide","b":2,"resourceUri":"hide"}"#,
            r#"{"a":1,"b":2}"#,
        ),
        (
            r#"{"resourceUri":"hide","resourceUri":"a","resourceUri":"hide"}"#,
            r#"{"resourceUri":"one-a"}"#,
        ),
    ] {
        let whole = format!(r#"{{"ui":{inside},"x":1}}"#);
        assert_eq!(
            meta(&whole),
            format!(r#"{{"ui":{left},"x":1}}"#),
            "{inside}"
        );
        let flat = inside.replace("resourceUri", "ui/resourceUri");
        let left = left.replace("resourceUri", "ui/resourceUri");
        assert_eq!(meta(&flat), left, "{flat}");
    }
    assert_eq!(
        meta(r#"{"ui/resourceUri":"hide","ui":{"resourceUri":"hide"}}"#),
        r#"{"ui":{}}"#
    );
}

#[test]
fn spellings_with_escapes_and_members_that_stand_twice_are_found() {
    assert_eq!(
        meta(
            r#"{"\u0075\u0069":{"\u0072esource\u0055ri":"\u0061\/\u00e9"},"u\u0069\/resourceUri":"b","ui":{"resourceUri":"c"}}"#
        ),
        "{\"\\u0075\\u0069\":{\"\\u0072esource\\u0055ri\":\"one-a/\u{e9}\"},\"u\\u0069\\/resourceUri\":\"one-b\",\"ui\":{\"resourceUri\":\"one-c\"}}"
    );
    assert_eq!(
        meta(r#"{"\u0075i":{"resource\u0055ri":"hid\u0065"},"ui\u002fresourceUri":"\u0068ide"}"#),
        r#"{"\u0075i":{}}"#
    );
    // Also where no other member says that there may be a view.
    assert_eq!(
        meta(r#"{"ui":{"resource\u0055ri":"a"}}"#),
        r#"{"ui":{"resource\u0055ri":"one-a"}}"#
    );
    let result = r#"{"_m\u0065ta":{"ui":{"resourceUri":"a"}},"_meta":{"ui/resourceUri":"b"}}"#;
    assert_eq!(
        in_result(ResultOf::ToolCall, result),
        result
            .replace(r#""a""#, r#""one-a""#)
            .replace(r#""b""#, r#""one-b""#)
    );
}

#[test]
fn what_is_no_uri_of_a_view_stays() {
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    for raw in [
        "null",
        "7",
        r#""ui/resourceUri""#,
        r#"["ui/resourceUri",{"ui/resourceUri":"a"}]"#,
        r#"{"ui":null}"#,
        r#"{"ui":[{"resourceUri":"a"}]}"#,
        r#"{"ui":{"ui":{"resourceUri":"a"},"ui/resourceUri":"a","uri":"a"}}"#,
        r#"{"resourceUri":"a","x":{"ui":{"resourceUri":"a"}},"\udc00":{"resourceUri":"a"}}"#,
        &format!(r#"{{"ui":{{"x":{deep}}},"x":{deep}}}"#),
    ] {
        assert_eq!(meta(raw), raw);
    }
}

/// Who reads it otherwise would read a name that nobody has looked at.
#[test]
fn what_others_may_take_for_the_uri_of_a_view_is_left_out() {
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    for (raw, left) in [
        (r#"{"ui/resourceUri":7,"ui":null}"#, r#"{"ui":null}"#),
        (r#"{"ui":{"resourceUri":["a"]}}"#, r#"{"ui":{}}"#),
        (
            r#"{"ui":{"resourceUri":{"resourceUri":"a"},"x":1}}"#,
            r#"{"ui":{"x":1}}"#,
        ),
        (r#"{"ui":{"resourceUri":"\ud800"}}"#, r#"{"ui":{}}"#),
        (
            r#"{"UI":{"resourceUri":"a"},"ui":{"resourceuri":"a"},"uI/ResourceUri":"a","x":1}"#,
            r#"{"ui":{},"x":1}"#,
        ),
        // The long s folds to s.
        ("{\"ui\":{\"re\u{17f}ourceUri\":\"a\"}}", r#"{"ui":{}}"#),
        (
            &format!(r#"{{"ui/resourceUri":{deep},"x":1}}"#),
            r#"{"x":1}"#,
        ),
    ] {
        assert_eq!(meta(raw), left);
    }
}

#[test]
fn meta_by_another_case_is_looked_into_too() {
    for name in ["_Meta", "_META", "_M\\u0065TA"] {
        let raw = |view: &str| format!(r#"{{"name":"t","{name}":{{"ui":{{{view}}}}}}}"#);
        for (own, left) in [("a", r#""resourceUri":"one-a""#), ("hide", "")] {
            let text = raw(&format!(r#""resourceUri":"{own}""#));
            assert!(may_name(text.as_bytes()), "{text}");
            assert_eq!(in_list(ListKind::Tools, "tools", &text), raw(left));
            assert_eq!(in_result(ResultOf::ToolCall, &text), raw(left));
        }
    }
    for text in ["", "\"_", "\"_met", r#"{"_meta2":"_mets"}"#] {
        assert!(!may_name(text.as_bytes()), "{text}");
    }
}

#[test]
fn views_are_those_of_tools_alone() {
    let meta = r#""_meta":{"ui":{"resourceUri":"hide"},"ui/resourceUri":"a"}"#;
    for (kind, member, key) in [
        (ListKind::Prompts, "prompts", "name"),
        (ListKind::Resources, "resources", "uri"),
        (ListKind::Templates, "resourceTemplates", "uriTemplate"),
        (ListKind::Tasks, "tasks", "taskId"),
    ] {
        let thing = format!(r#"{{"{key}":"x",{meta}}}"#);
        assert_eq!(in_list(kind, member, &thing), thing);
    }
    let elsewhere = format!(r#"{{"name":"t","inputSchema":{{{meta}}},"annotations":{{{meta}}}}}"#);
    assert_eq!(in_list(ListKind::Tools, "tools", &elsewhere), elsewhere);
    let whole = format!(r#"{{{meta}}}"#);
    for of in [ResultOf::Prompt, ResultOf::Read] {
        assert_eq!(in_result(of, &whole), whole);
    }
    let elsewhere = [
        r#"{"content":[{"type":"text","text":"","#,
        meta,
        r#"}],"structuredContent":{"#,
        meta,
        "}}",
    ]
    .concat();
    assert_eq!(in_result(ResultOf::ToolCall, &elsewhere), elsewhere);
}

/// JSON as it is written, for a judge that knows no places.
#[derive(Clone, Debug)]
enum Raw {
    Leaf(&'static str),
    Object(Vec<(&'static str, Raw)>),
    Array(Vec<Raw>),
}

impl Raw {
    fn text(&self) -> String {
        match self {
            Raw::Leaf(raw) => (*raw).to_owned(),
            Raw::Object(members) => {
                let members = members.iter();
                let members: Vec<_> = members
                    .map(|(name, value)| format!("{name}:{}", value.text()))
                    .collect();
                format!("{{{}}}", members.join(","))
            }
            Raw::Array(items) => {
                let items: Vec<_> = items.iter().map(Raw::text).collect();
                format!("[{}]", items.join(","))
            }
        }
    }

    /// The same with `change` of each member's decoded name and value, which may leave it out.
    fn changed(self, change: impl Fn(&str, Raw) -> Option<Raw>) -> Raw {
        let Raw::Object(members) = self else {
            return self;
        };
        let members = members.into_iter().filter_map(|(raw, value)| {
            let name: String = serde_json::from_str(raw).expect("a name");
            Some((raw, change(&name, value)?))
        });
        Raw::Object(members.collect())
    }
}

fn judged(meta: Raw) -> Raw {
    fn view(value: Raw) -> Option<Raw> {
        match value {
            Raw::Leaf(r#""a""#) => Some(Raw::Leaf(r#""one-a""#)),
            Raw::Leaf(r#""keep""#) => Some(Raw::Leaf(r#""keep""#)),
            _ => None,
        }
    }
    meta.changed(|name, value| match name {
        "ui/resourceUri" => view(value),
        "ui" => Some(value.changed(|name, value| match name {
            "resourceUri" => view(value),
            _ => Some(value),
        })),
        _ => Some(value),
    })
}

fn raw() -> impl Strategy<Value = Raw> {
    let leaf = prop::sample::select(vec![
        r#""a""#,
        r#""hide""#,
        r#""h\u0069de""#,
        r#""keep""#,
        "1.50",
        "null",
    ]);
    let name = prop::sample::select(vec![
        r#""ui""#,
        r#""\u0075i""#,
        r#""ui/resourceUri""#,
        r#""ui\/resourceUri""#,
        r#""resourceUri""#,
        r#""resource\u0055ri""#,
        r#""x""#,
    ]);
    leaf.prop_map(Raw::Leaf).prop_recursive(3, 24, 5, move |inner| {
        prop_oneof![
            4 => prop::collection::vec((name.clone(), inner.clone()), 0..5).prop_map(Raw::Object),
            1 => prop::collection::vec(inner, 0..3).prop_map(Raw::Array),
        ]
    })
}

proptest! {
    #[test]
    fn views_are_where_the_judge_finds_them(given in raw()) {
        prop_assert_eq!(meta(&given.text()), judged(given).text());
    }
}
