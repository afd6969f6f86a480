//! The nesting limit of JSON, checked on raw bytes before any parser sees them. sonic-rs has no
//! limit of its own when it skips a value: a body of 100,000 `[` overflows the stack and aborts
//! the process. The check never recurses and never allocates.

use memchr::{memchr2, memchr2_iter};

/// Deepest nesting of arrays and objects that is accepted, the outermost counted.
///
/// About where common parsers stop by themselves (serde_json reads 127 levels), and few enough
/// for the recursion of sonic-rs on any thread's stack.
pub const DEPTH_MAX: usize = 128;

/// Whether `text` nests at most [`DEPTH_MAX`] levels.
///
/// A text with no more brackets than that cannot be deeper, so nearly all messages are settled by
/// one vectorised search. The others are walked, with strings told apart. For a text that is not
/// JSON the answer covers its longest valid beginning, which is as far as a parser goes.
pub fn within_depth(text: &[u8]) -> bool {
    let openers_are_few = memchr2_iter(b'{', b'[', text).nth(DEPTH_MAX).is_none();
    openers_are_few || walked_within_depth(text)
}

fn walked_within_depth(text: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => at = after_string(text, at),
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return false;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}

/// The place behind the closing quote of the string whose content starts at `at`; at least the
/// length of the text where there is none.
pub(crate) fn after_string(text: &[u8], mut at: usize) -> usize {
    // Most strings are names: over in fewer steps than a vectorised search takes to begin.
    const STEPS: usize = 16;
    let near = at.saturating_add(STEPS).min(text.len());
    while at < near {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    while let Some(rest) = text.get(at..) {
        match memchr2(b'"', b'\\', rest) {
            Some(found) if rest[found] == b'"' => return at + found + 1,
            Some(found) => at += found + 2,
            None => return text.len(),
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> Vec<u8> {
        let mut text = vec![b'['; levels];
        text.extend(vec![b']'; levels]);
        text
    }

    #[test]
    fn the_limit_is_128_levels_exactly() {
        assert!(within_depth(&nested(DEPTH_MAX)));
        assert!(!within_depth(&nested(DEPTH_MAX + 1)));
        let mixed = "{\"a\":[".repeat(64);
        assert!(within_depth(mixed.as_bytes()));
        assert!(!within_depth(format!("{mixed}[").as_bytes()));
    }

    #[test]
    fn two_hundred_kilobytes_of_brackets_are_refused() {
        assert!(!within_depth(&vec![b'['; 200_000]));
        assert!(!within_depth(&b"{\"a\":".repeat(40_000)));
    }

    #[test]
    fn wide_texts_pass() {
        let wide = format!("[{}1]", "[{},[]],".repeat(50_000));
        assert!(within_depth(wide.as_bytes()));
    }

    #[test]
    fn brackets_in_strings_do_not_count() {
        let text = format!("[\"{}\\\"{}\\\\\"]", "[".repeat(5_000), "{".repeat(5_000));
        assert!(within_depth(text.as_bytes()));
        let then_deep = format!("[\"{}\",{}", "]".repeat(5_000), "[".repeat(128));
        assert!(!within_depth(then_deep.as_bytes()));
    }

    #[test]
    fn cut_off_strings_end_the_walk() {
        let open = "[".repeat(100) + &"{}".repeat(100);
        for tail in ["\"", "\"\\", "\"abc\\\""] {
            assert!(within_depth(format!("{open}{tail}").as_bytes()));
        }
    }
}
