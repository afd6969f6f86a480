//! How strings are spelled in JSON: from what stands between the quotes to the text that is
//! meant, and from a place in the one to the same place in the other.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use crate::wire::reply::quoted;

/// Where the string ends whose content starts at `at`: the place of its closing quote.
pub(super) fn closing_quote(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let found = at + memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(found) == Some(&b'"') {
            return Some(found);
        }
        at = found + 2;
    }
}

/// The text that is meant. Half a surrogate pair means U+FFFD. `None`: there is an escape that
/// JSON does not have.
pub(super) fn meant(raw: &str) -> Option<Cow<'_, str>> {
    if memchr(b'\\', raw.as_bytes()).is_none() {
        return Some(Cow::Borrowed(raw));
    }
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((plain, escape)) = split_at_escape(rest) {
        let (meant, len) = read_escape(escape)?;
        text.push_str(plain);
        text.push(meant);
        rest = escape.get(len..)?;
    }
    text.push_str(rest);
    Some(Cow::Owned(text))
}

/// `text` as it stands between quotes.
pub(super) fn spelled(text: &str) -> String {
    let quoted = String::from_utf8(quoted(text)).unwrap_or_default();
    let content = quoted.get(1..quoted.len().saturating_sub(1));
    content.unwrap_or_default().to_owned()
}

/// Walks along a spelled string, forwards only, and knows the place in the meant text.
pub(super) struct Places<'a> {
    raw: &'a str,
    raw_at: usize,
    meant_at: usize,
}

impl<'a> Places<'a> {
    pub(super) fn new(raw: &'a str) -> Places<'a> {
        Places {
            raw,
            raw_at: 0,
            meant_at: 0,
        }
    }

    /// The place in the spelling of the character at `meant`, a place in the meant text that is
    /// not before the one asked for last.
    pub(super) fn of(&mut self, meant: usize) -> Option<usize> {
        loop {
            let left = meant.checked_sub(self.meant_at)?;
            let rest = self.raw.get(self.raw_at..)?;
            let near = rest.as_bytes().get(..left.min(rest.len()))?;
            let plain = memchr(b'\\', near).unwrap_or(near.len());
            self.raw_at += plain;
            self.meant_at += plain;
            if self.meant_at == meant {
                return Some(self.raw_at);
            }
            // At the end there is no escape either.
            let (character, len) = read_escape(rest.get(plain..)?)?;
            self.raw_at += len;
            self.meant_at += character.len_utf8();
        }
    }
}

fn split_at_escape(text: &str) -> Option<(&str, &str)> {
    text.split_at_checked(memchr(b'\\', text.as_bytes())?)
}

/// What the escape means that `text` begins with, and its length.
fn read_escape(text: &str) -> Option<(char, usize)> {
    let simple = match *text.as_bytes().get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return read_unicode_escape(text),
        _ => return None,
    };
    Some((simple, 2))
}

fn read_unicode_escape(text: &str) -> Option<(char, usize)> {
    let first = unit(text)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, 6));
    }
    let second = text.get(6..).and_then(unit).unwrap_or_default();
    let is_pair = (0xd800..0xdc00).contains(&first) && (0xdc00..0xe000).contains(&second);
    if !is_pair {
        return Some((char::REPLACEMENT_CHARACTER, 6));
    }
    let character = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    Some((char::from_u32(character)?, 12))
}

/// The number in the `\u` and four hex digits that `text` begins with.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    are_digits.then(|| u32::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_mean_what_json_says() {
        for (raw, text) in [
            ("", ""),
            ("plain é", "plain é"),
            (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t"),
            (r"sk\u002d\u002Da", "sk--a"),
            (r"\ud83e\uDD8A!", "🦊!"),
            (r"\ud83e", "\u{fffd}"),
            (r"\udd8a\ud83e", "\u{fffd}\u{fffd}"),
            (r"\ud800\ud83e\udd8a", "\u{fffd}🦊"),
            (r"\ud83e\n", "\u{fffd}\n"),
            (r"\ud83e\u0041", "\u{fffd}A"),
            (r"\u0000\\u0041", "\0\\u0041"),
        ] {
            assert_eq!(meant(raw).as_deref(), Some(text), "{raw}");
        }
    }

    #[test]
    fn what_is_no_escape_is_refused() {
        for raw in [
            r"\", r"\x", r"\u", r"\u004", r"\u00g0", r"\u+041", r"\é", r"\u00é",
        ] {
            assert_eq!(meant(raw), None, "{raw}");
        }
    }

    #[test]
    fn strings_end_at_the_first_quote_that_is_no_escape() {
        for (text, end) in [
            (r#"""#, Some(0)),
            (r#"ab","#, Some(2)),
            (r#"a\"b" "#, Some(4)),
            (r#"a\\""#, Some(3)),
            (r#"a\""#, None),
            (r"a\", None),
            ("", None),
        ] {
            assert_eq!(closing_quote(text.as_bytes(), 0), end, "{text}");
        }
        assert_eq!(closing_quote(b"\"", 7), None);
    }

    proptest! {
        #[test]
        fn what_is_spelled_means_the_same(text in any::<String>()) {
            let raw = spelled(&text);
            prop_assert_eq!(meant(&raw), Some(Cow::Borrowed(text.as_str())));
            prop_assert_eq!(serde_json::from_str::<String>(&format!("\"{raw}\"")).ok(), Some(text));
        }

        /// Each character of the meant text is found where it is spelled.
        #[test]
        fn places_are_those_of_the_characters(
            parts in prop::collection::vec(
                prop::sample::select(vec!["a", "é", "🦊", r"\n", r"\u00e9", r"\ud83e\udd8a", r"\ud800"]),
                0..12,
            ),
            skipped in any::<u16>(),
        ) {
            let raw = parts.concat();
            let text = meant(&raw).expect("all of them are escapes of JSON");
            let mut places = Places::new(&raw);
            let (mut raw_at, mut meant_at) = (0, 0);
            for (index, part) in parts.iter().enumerate() {
                if skipped & 1 << index == 0 {
                    prop_assert_eq!(places.of(meant_at), Some(raw_at));
                }
                raw_at += part.len();
                meant_at += meant(part).map_or(0, |it| it.len());
            }
            prop_assert_eq!(meant_at, text.len());
            prop_assert_eq!(places.of(meant_at), Some(raw.len()));
            prop_assert_eq!(places.of(meant_at + 1), None);
        }
    }
}
