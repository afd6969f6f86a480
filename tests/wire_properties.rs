//! Properties of the wire format code: for any message, in any spelling that JSON allows, scan and
//! splice agree with serde_json, and every byte that is not an id or a token stays. Lines are the
//! same however the bytes arrive. Pure functions only; a failing case is printed shrunk.

use proptest::collection::vec;
use proptest::prelude::*;
use ringway::wire::depth::{DEPTH_MAX, within_depth};
use ringway::wire::lines::{Line, LineBuffer};
use ringway::wire::scan::{Envelope, Fault, Kind, scan};
use ringway::wire::splice::{Edit, splice};
use serde::de::IgnoredAny;
use serde_json::Value;

const UPSTREAM_ID: &str = "4503599627370497";

/// A JSON value before it has a spelling. Numbers are kept as text: their spelling matters.
#[derive(Clone, Debug)]
enum Json {
    Bare(&'static str),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

fn text(value: &str) -> Json {
    Json::Text(value.to_owned())
}

/// Choices of spelling, drawn from a repeated sequence of random bytes.
struct Style<'a> {
    choices: std::iter::Cycle<std::slice::Iter<'a, u8>>,
}

impl Style<'_> {
    fn choose(&mut self, of: u8) -> u8 {
        self.choices.next().expect("not empty") % of
    }

    fn blank(&mut self, out: &mut String) {
        let blanks = ["", "", "", " ", "\n", "\r\n", "\t", "\n    "];
        out.push_str(blanks[self.choose(8) as usize]);
    }

    fn string(&mut self, out: &mut String, value: &str) {
        out.push('"');
        for character in value.chars() {
            let must = matches!(character, '"' | '\\' | '\0'..='\x1f');
            match (character, self.choose(8)) {
                ('\n', 0..4) => out.push_str("\\n"),
                ('"' | '\\' | '/', 1..4) => out.extend(['\\', character]),
                (_, choice) if must || choice == 0 => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }

    fn list<T>(
        &mut self,
        out: &mut String,
        items: &[T],
        mut each: impl FnMut(&mut Self, &mut String, &T),
    ) {
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            self.blank(out);
            each(self, out, item);
            self.blank(out);
        }
    }

    fn value(&mut self, out: &mut String, value: &Json) {
        match value {
            Json::Bare(bare) => out.push_str(bare),
            Json::Text(value) => self.string(out, value),
            Json::Array(items) => {
                out.push('[');
                self.list(out, items, Self::value);
                out.push(']');
            }
            Json::Object(members) => {
                out.push('{');
                self.list(out, members, |style, out, (name, value)| {
                    style.string(out, name);
                    style.blank(out);
                    out.push(':');
                    style.blank(out);
                    style.value(out, value);
                });
                out.push('}');
            }
        }
    }
}

fn spell(value: &Json, choices: &[u8]) -> String {
    let mut style = Style {
        choices: choices.iter().cycle(),
    };
    let mut out = String::new();
    style.blank(&mut out);
    style.value(&mut out, value);
    style.blank(&mut out);
    out
}

fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z/ {}\\[\\]:,\"\\\\\n]{0,40}",
        any::<String>(),
        Just("\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{a0}\u{2028}\u{2029}".to_owned()),
        "x{0,300}",
    ]
}

fn bare() -> impl Strategy<Value = Json> {
    let bares = [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1.0",
        "1e21",
        "9007199254740993",
        "-1.5E-7",
        "0.10",
        "123456789012345678901234567890",
    ];
    prop::sample::select(bares.to_vec()).prop_map(Json::Bare)
}

/// Any value; names inside begin with `x` so that none of them means anything.
fn anything() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![bare(), content().prop_map(Json::Text)];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let member = (content().prop_map(|name| format!("x{name}")), inner.clone());
        prop_oneof![
            vec(inner, 0..6).prop_map(Json::Array),
            vec(member, 0..6).prop_map(Json::Object),
        ]
    })
}

fn id() -> impl Strategy<Value = Json> {
    let integers = ["0", "7", "-1", "9007199254740993", "18446744073709551616"];
    prop_oneof![
        prop::sample::select(integers.to_vec()).prop_map(Json::Bare),
        content()
            .prop_filter("short", |text| text.len() < 80)
            .prop_map(Json::Text),
    ]
}

/// A request, notification or result whose members stand in any order among unknown ones.
fn message() -> impl Strategy<Value = Json> {
    let meta = (prop::option::of(id()), anything()).prop_map(|(token, other)| {
        let token = token.map(|token| ("progressToken".to_owned(), token));
        Json::Object(
            token
                .into_iter()
                .chain([("xother".to_owned(), other)])
                .collect(),
        )
    });
    let params = (prop::option::of(meta), anything(), content()).prop_map(|(meta, args, name)| {
        let meta = meta.map(|meta| ("_meta".to_owned(), meta));
        let named = [
            ("arguments".to_owned(), args),
            ("name".to_owned(), Json::Text(name)),
        ];
        meta.into_iter().chain(named).collect::<Vec<_>>()
    });
    let params = params.prop_shuffle().prop_map(Json::Object);
    let call = (prop::option::of(id()), prop::option::of(params), content());
    let call = call.prop_map(|(id, params, method)| {
        let members = [
            id.map(|id| ("id", id)),
            params.map(|params| ("params", params)),
            Some(("method", Json::Text(method))),
        ];
        members.into_iter().flatten().collect::<Vec<_>>()
    });
    let result = (id(), anything()).prop_map(|(id, result)| vec![("id", id), ("result", result)]);
    let unknown = (content().prop_map(|name| format!("x{name}")), anything());
    (prop_oneof![3 => call, 1 => result], vec(unknown, 0..3))
        .prop_map(|(known, unknown)| {
            let known = known.into_iter().chain([("jsonrpc", text("2.0"))]);
            let known = known.map(|(name, value)| (name.to_owned(), value));
            known.chain(unknown).collect::<Vec<_>>()
        })
        .prop_shuffle()
        .prop_map(Json::Object)
}

fn spelled() -> impl Strategy<Value = String> {
    (message(), vec(any::<u8>(), 1..200)).prop_map(|(message, choices)| spell(&message, &choices))
}

fn edits<'a>(envelope: &Envelope<'_>) -> Vec<Edit<'a>> {
    let fields = [envelope.id, envelope.meta_progress_token];
    let with = UPSTREAM_ID.as_bytes();
    fields
        .iter()
        .flatten()
        .map(|field| Edit {
            span: field.span,
            with,
        })
        .collect()
}

fn spliced(text: &str, envelope: &Envelope<'_>) -> String {
    let mut out = Vec::new();
    splice(&mut out, text.as_bytes(), &mut edits(envelope));
    String::from_utf8(out).expect("cut between characters")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// What we read is what a server reads.
    #[test]
    fn scan_reads_what_serde_json_reads(text in spelled()) {
        let value: Value = serde_json::from_str(&text).unwrap();
        let envelope = scan(text.as_bytes()).unwrap();
        let raw = |span: ringway::wire::span::Span| -> Value {
            serde_json::from_slice(span.of(text.as_bytes())).unwrap()
        };
        prop_assert_eq!(envelope.id.map(|id| raw(id.span)), value.get("id").cloned());
        prop_assert_eq!(envelope.params.map(raw), value.get("params").cloned());
        prop_assert_eq!(envelope.result.map(raw), value.get("result").cloned());
        let token = envelope.meta_progress_token.map(|token| raw(token.span));
        prop_assert_eq!(token.as_ref(), value.pointer("/params/_meta/progressToken"));
        let name = envelope.name.and_then(|name| name.text(text.as_bytes()));
        prop_assert_eq!(name.as_deref(), value.pointer("/params/name").and_then(Value::as_str));
        let method = value.get("method").map(|method| method.as_str().unwrap());
        prop_assert_eq!(&*envelope.method, method.unwrap_or_default());
        let kind = match (method, &envelope.id) {
            (None, _) => Kind::Result,
            (_, Some(_)) => Kind::Request,
            (_, None) => Kind::Notification,
        };
        prop_assert_eq!(envelope.kind, kind);
    }

    /// The value that is passed on differs in id and token only.
    #[test]
    fn splice_replaces_id_and_token_and_nothing_else(text in spelled()) {
        let envelope = scan(text.as_bytes()).unwrap();
        let line = spliced(&text, &envelope);
        let mut expected: Value = serde_json::from_str(&text).unwrap();
        let upstream: Value = serde_json::from_str(UPSTREAM_ID).unwrap();
        if let Some(id) = expected.get_mut("id") {
            *id = upstream.clone();
        }
        if let Some(token) = expected.pointer_mut("/params/_meta/progressToken") {
            *token = upstream;
        }
        prop_assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
    }

    /// Numbers, escapes, order and every character come out as they went in.
    #[test]
    fn every_other_byte_stays(text in spelled()) {
        let envelope = scan(text.as_bytes()).unwrap();
        let line = spliced(&text, &envelope);
        prop_assert!(!line.contains(['\n', '\r']));
        // Splicing the client's own id and token back gives its text.
        let mut restored = Vec::new();
        let again = scan(line.as_bytes()).unwrap();
        let mut back: Vec<Edit<'_>> = edits(&again)
            .into_iter()
            .zip(edits(&envelope))
            .map(|(now, then)| Edit { span: now.span, with: then.span.of(text.as_bytes()) })
            .collect();
        splice(&mut restored, line.as_bytes(), &mut back);
        let folded = text.replace(['\n', '\r'], " ");
        let folded = folded.trim_matches([' ', '\t']);
        prop_assert_eq!(String::from_utf8(restored).unwrap(), folded);
    }

    /// A damaged message is refused exactly where serde_json refuses its syntax.
    #[test]
    fn damage_is_noticed_as_serde_json_notices_it(
        text in spelled(),
        at in any::<prop::sample::Index>(),
        byte in prop_oneof![any::<u8>(), prop::sample::select(b"\"\\{}[]:,u0n \n".to_vec())],
        cut in any::<bool>(),
    ) {
        let mut text = text.into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        if cut {
            text.truncate(at + 1);
        }
        let is_json = std::str::from_utf8(&text).is_ok()
            && serde_json::from_slice::<IgnoredAny>(&text).is_ok();
        let fault = scan(&text).err().map(|error| error.fault);
        let is_refused = matches!(fault, Some(Fault::NotJson | Fault::NotUtf8 | Fault::TooDeep));
        // A name may have lost one half of a surrogate pair, which syntax alone does not show.
        let may_be_undecodable = serde_json::from_slice::<Value>(&text).is_err();
        prop_assert!(is_refused != is_json || (is_refused && may_be_undecodable));
    }

    #[test]
    fn arbitrary_bytes_never_panic(text in vec(any::<u8>(), 0..300)) {
        let _ = scan(&text);
        let _ = ringway::wire::scan::batch(&text);
    }

    #[test]
    fn depth_is_what_a_plain_count_says(
        brackets in vec(prop::sample::select(b"[[[[{]}x".to_vec()), 0..600),
    ) {
        let (mut depth, mut deepest) = (0_usize, 0);
        for byte in &brackets {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            deepest = deepest.max(depth);
        }
        prop_assert_eq!(within_depth(&brackets), deepest <= DEPTH_MAX);
    }

    #[test]
    fn depth_is_that_of_the_parsed_value(
        value in anything(),
        choices in vec(any::<u8>(), 1..50),
        around in 100_usize..130,
    ) {
        fn depth(value: &Json) -> usize {
            match value {
                Json::Bare(_) | Json::Text(_) => 0,
                Json::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
                Json::Object(members) => {
                    1 + members.iter().map(|(_, value)| depth(value)).max().unwrap_or(0)
                }
            }
        }
        // Enough brackets that counting them cannot settle it.
        let wide = "[],".repeat(130);
        let text = spell(&value, &choices);
        let text = format!("{}{wide}{text}{}", "[".repeat(around), "]".repeat(around));
        let deepest = around + depth(&value).max(1);
        prop_assert_eq!(within_depth(text.as_bytes()), deepest <= DEPTH_MAX);
    }

    /// Lines are those of a plain split, whatever the reads and the limit.
    #[test]
    fn lines_do_not_depend_on_the_reads(
        stream in vec(prop::sample::select(b"ab\r\n".to_vec()), 0..400),
        reads in vec(1_usize..40, 1..50),
        chunk in 1_usize..20,
        line_bytes_max in 0_usize..12,
    ) {
        let mut expected: Vec<_> = stream
            .split(|byte| *byte == b'\n')
            .map(|line| match line.len() <= line_bytes_max {
                true => Ok(line.strip_suffix(b"\r").unwrap_or(line).to_vec()),
                false => Err(line.len()),
            })
            .collect();
        if stream.is_empty() || stream.ends_with(b"\n") {
            expected.pop();
        }
        let owned = |line: Line<'_>| match line {
            Line::Text(text) => Ok(text.to_vec()),
            Line::TooLong { bytes, .. } => Err(bytes),
        };
        let mut buffer = LineBuffer::new(chunk, line_bytes_max);
        let (mut rest, mut lines) = (&stream[..], Vec::new());
        for read in reads.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (mut bytes, filled) = buffer.lend();
            let room = bytes.capacity() - filled;
            prop_assert!(room >= chunk);
            let (now, later) = rest.split_at((*read).min(room).min(rest.len()));
            bytes.extend_from_slice(now);
            buffer.restore(bytes, filled + now.len());
            rest = later;
            while let Some(line) = buffer.next_line() {
                lines.push(owned(line));
            }
        }
        lines.extend(buffer.at_end().map(owned));
        prop_assert_eq!(lines, expected);
    }
}
