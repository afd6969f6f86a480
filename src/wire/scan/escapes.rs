//! The one thing about strings that sonic-rs takes on trust: when it skips a string it steps over
//! the four characters after `\u` unseen, a quote or a newline among them. Checked first, so that
//! it and every other reader agree on where each string ends, this crate's depth check included.

use memchr::{memchr, memmem};

/// Whether four hexadecimal digits follow every `\u` escape of `text`.
///
/// A `\u` is an escape unless its backslash is itself escaped, that is, unless an odd number of
/// backslashes stands before it. Valid JSON has backslashes in strings only, so strings need not
/// be told apart.
pub(super) fn unicode_escapes_are_whole(text: &[u8]) -> bool {
    if memchr(b'\\', text).is_none() {
        return true;
    }
    let finder = memmem::Finder::new(b"\\u");
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| finder.find(rest)) {
        let backslash = at + found;
        let before = text[..backslash].iter().rev();
        let is_escaped = before.take_while(|byte| **byte == b'\\').count() % 2 == 1;
        at = backslash + 2;
        if is_escaped {
            continue;
        }
        // Text that was escaped to plain ASCII is one escape after another.
        loop {
            match text.get(at..at + 4) {
                Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => at += 4,
                _ => return false,
            }
            if !text[at..].starts_with(b"\\u") {
                break;
            }
            at += 2;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::unicode_escapes_are_whole as whole;

    #[test]
    fn whole_escapes_pass() {
        for text in [
            r#""plain""#,
            r#""\u0041""#,
            r#""\uABCD\uabcd\\\u0000""#,
            r#""\\u is no escape""#,
            r#""\\\\uZZ \n \" \/""#,
            r#""\ud800 alone""#,
        ] {
            assert!(whole(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn broken_escapes_are_found_wherever_they_stand() {
        for text in [
            r#""\u"aaa",[[[["#,
            r#""\u004""#,
            r#""\u00g0""#,
            r#""\\\u00 0""#,
            r#""\u0041\u004x""#,
            r#""\u0041 \\u \uxxxx""#,
            "\"\\u\n\n\n\n\"",
            "\"\\u",
        ] {
            assert!(!whole(text.as_bytes()), "{text}");
        }
    }
}
