//! A step through JSON that has been scanned before, to find where the strings
//! stand that are to be replaced. It goes forward once, skips what nobody asks
//! for without a look inside, and never recurses by itself. Text that is no JSON
//! ends in an error or in ranges of nonsense, never outside of the text.

use std::borrow::Cow;

use memchr::memchr;

use super::depth::after_string;
use super::span::Span;

/// The text is not JSON, or not of this size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text is not JSON")]
pub struct Malformed;

/// Where one is in a text.
pub(super) struct Walk<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> Walk<'t> {
    /// From the value in `span` on; what is behind the span is not part of the text.
    pub(super) fn new(text: &'t [u8], span: Span) -> Walk<'t> {
        let text = text.get(..span.end as usize).unwrap_or_default();
        Walk {
            text,
            at: span.start as usize,
        }
    }

    /// Steps over an object. `member` gets each decoded name and must step over its
    /// value; a name that no Rust string can hold is `None`. Other values than objects
    /// are skipped.
    pub(super) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, Option<&str>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.object_with_places(|walk, name, _| member(walk, name))
    }

    /// The same; `member` gets the place of the raw name too.
    pub(super) fn object_with_places(
        &mut self,
        mut member: impl FnMut(&mut Self, Option<&str>, Span) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if self.next()? != b'{' {
            return self.skip();
        }
        self.items(b'}', |walk| {
            if walk.next()? != b'"' {
                return Err(Malformed);
            }
            let place = walk.value()?;
            let name = decoded(place.of(walk.text));
            if walk.next()? != b':' {
                return Err(Malformed);
            }
            walk.at += 1;
            member(walk, name.as_deref(), place)
        })
    }

    /// Where the value ends that was stepped over last.
    pub(super) fn end(&self) -> usize {
        self.at
    }

    /// Steps over an array, whose elements `element` must step over one by one, or over
    /// another value, which is then the only one.
    pub(super) fn one_or_many(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        match self.next()? {
            b'[' => self.items(b']', element),
            _ => element(self),
        }
    }

    /// Steps over a value.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        self.value().map(drop)
    }

    /// Steps over a value and gives its place and, if it is a string that Rust can hold,
    /// what it says.
    pub(super) fn string(&mut self) -> Result<(Span, Option<Cow<'t, str>>), Malformed> {
        let span = self.value()?;
        Ok((span, decoded(span.of(self.text))))
    }

    /// What stands between brackets, the first of which is next.
    fn items(
        &mut self,
        end: u8,
        mut item: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.at += 1;
        if self.next()? == end {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            let next = self.next()?;
            self.at += 1;
            match next {
                b',' => {}
                _ if next == end => return Ok(()),
                _ => return Err(Malformed),
            }
        }
    }

    /// The next byte that is not blank, not stepped over.
    fn next(&mut self) -> Result<u8, Malformed> {
        let rest = self.text.get(self.at..).ok_or(Malformed)?;
        let blanks = rest.iter().take_while(|byte| is_blank(**byte)).count();
        self.at += blanks;
        rest.get(blanks).copied().ok_or(Malformed)
    }

    fn value(&mut self) -> Result<Span, Malformed> {
        let first = self.next()?;
        let start = self.at;
        self.at = match first {
            b'"' => self.behind_string(start)?,
            b'{' | b'[' => self.behind_brackets(start)?,
            _ => {
                let rest = self.text.get(start..).unwrap_or_default();
                let is_end = |byte: &u8| is_blank(*byte) || b",:{}[]\"".contains(byte);
                start + rest.iter().position(is_end).unwrap_or(rest.len())
            }
        };
        Span::new(start, self.at)
            .filter(|span| !span.is_empty())
            .ok_or(Malformed)
    }

    fn behind_string(&self, start: usize) -> Result<usize, Malformed> {
        let end = after_string(self.text, start + 1);
        let is_closed = end > start + 1 && self.text.get(end - 1) == Some(&b'"');
        is_closed.then_some(end).ok_or(Malformed)
    }

    fn behind_brackets(&self, start: usize) -> Result<usize, Malformed> {
        let mut depth = 0_usize;
        let mut at = start;
        loop {
            match self.text.get(at).ok_or(Malformed)? {
                b'"' => {
                    at = self.behind_string(at)?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                return Ok(at);
            }
        }
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// What a raw string says; `None` for other values and for half a surrogate pair.
pub(super) fn decoded(raw: &[u8]) -> Option<Cow<'_, str>> {
    let content = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr(b'\\', content).is_some() {
        return serde_json::from_slice(raw).ok().map(Cow::Owned);
    }
    simdutf8::basic::from_utf8(content).ok().map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &[u8]) -> Walk<'_> {
        Walk::new(text, Span::new(0, text.len()).expect("a short text"))
    }

    /// The text again, put together from what the walk finds in it.
    fn rebuilt(walk: &mut Walk<'_>, out: &mut String) -> Result<(), Malformed> {
        match walk.next()? {
            b'{' => {
                let mut mark = '{';
                walk.object(|walk, name| {
                    out.push(mark);
                    mark = ',';
                    out.push_str(&serde_json::to_string(&name).expect("a name"));
                    out.push(':');
                    rebuilt(walk, out)
                })?;
                if mark == '{' {
                    out.push(mark);
                }
                out.push('}');
            }
            b'[' => {
                let mut mark = '[';
                walk.one_or_many(|walk| {
                    out.push(mark);
                    mark = ',';
                    rebuilt(walk, out)
                })?;
                if mark == '[' {
                    out.push(mark);
                }
                out.push(']');
            }
            _ => {
                let (span, text) = walk.string()?;
                match text {
                    Some(text) => out.push_str(&serde_json::to_string(&text).expect("a text")),
                    None => out.push_str(&String::from_utf8_lossy(span.of(walk.text))),
                }
            }
        }
        Ok(())
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            let key = prop_oneof![any::<String>(), Just("uri".to_owned())];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::btree_map(key, inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn values_are_skipped_whole() {
        for raw in [
            r#""a\"]},\\""#,
            "{}",
            "[]",
            r#"{"a":[1,{"b":"}]"}],"c":null}"#,
            "-1.5e+99",
            "true",
        ] {
            for blank in ["", " \r\n\t"] {
                let text = format!("{blank}{raw}{blank},1");
                let mut walk = whole(text.as_bytes());
                let span = walk.value().expect("a value");
                assert_eq!(span.of(text.as_bytes()), raw.as_bytes());
                assert_eq!(walk.next(), Ok(b','));
            }
        }
    }

    #[test]
    fn what_is_cut_off_is_malformed() {
        let text = br#"{"a":[1,{"b":"x\"y"}],"c":{}}"#;
        for end in 0..text.len() {
            assert_eq!(whole(&text[..end]).skip(), Err(Malformed), "{end}");
            let read = rebuilt(&mut whole(&text[..end]), &mut String::new());
            assert_eq!(read, Err(Malformed), "{end}");
        }
        for text in [
            &b"{1:2}"[..],
            b"{\"a\" 1}",
            b"{\"a\";1}",
            b"[1 2]",
            b"{\"a\":1\"b\"}",
            b"[,]",
            b"]",
        ] {
            let read = rebuilt(&mut whole(text), &mut String::new());
            assert_eq!(read, Err(Malformed), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_quote_alone_is_no_string() {
        assert_eq!(whole(b"\"").skip(), Err(Malformed));
        assert_eq!(whole(b" \"a").skip(), Err(Malformed));
        assert_eq!(whole(b"\"\"").skip(), Ok(()));
    }

    #[test]
    fn nothing_behind_the_span_is_read() {
        let text = br#"["a","b"]"#;
        let span = Span::new(1, 4).expect("a span");
        let mut walk = Walk::new(text, span);
        let (place, said) = walk.string().expect("a string");
        assert_eq!((place, said.as_deref()), (span, Some("a")));
        assert_eq!(walk.next(), Err(Malformed));
        let beyond = Span::new(4, 99).expect("a span");
        assert_eq!(Walk::new(text, beyond).skip(), Err(Malformed));
    }

    #[test]
    fn names_and_strings_are_decoded_where_rust_can_hold_them() {
        let text = br#"{"\u0061":"\u00e9","\ud800":"\udc00","b":7}"#;
        let mut seen = Vec::new();
        let mut walk = whole(text);
        let all = walk.object(|walk, name| {
            let name = name.map(str::to_owned);
            let (_, said) = walk.string()?;
            seen.push((name, said.map(Cow::into_owned)));
            Ok(())
        });
        assert_eq!(all, Ok(()));
        let text = |text: &str| Some(text.to_owned());
        let expected = [(text("a"), text("\u{e9}")), (None, None), (text("b"), None)];
        assert_eq!(seen, expected);
    }

    proptest! {
        #[test]
        fn a_walk_sees_what_a_parser_sees(value in value(), pretty in any::<bool>()) {
            let text = if pretty {
                serde_json::to_string_pretty(&value)
            } else {
                serde_json::to_string(&value)
            }.expect("a value is text");
            let mut out = String::new();
            prop_assert_eq!(rebuilt(&mut whole(text.as_bytes()), &mut out), Ok(()));
            prop_assert_eq!(out, value.to_string());
        }

        #[test]
        fn no_bytes_are_too_bad_to_be_walked(bytes in r#"[{}\[\]":,\\u0a \n]{0,40}"#) {
            let _ = rebuilt(&mut whole(bytes.as_bytes()), &mut String::new());
        }
    }
}
