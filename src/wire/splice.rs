//! Replacing ids and tokens in a scanned text. Every other byte stays as the sender wrote it;
//! only raw line breaks become spaces, since the stdio framing gives them a meaning of its own.
//! In valid JSON they stand between tokens only, so the value is the same.

use memchr::memchr2;

use super::span::Span;

/// One replacement: the bytes of `span` give way to `with`.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    pub span: Span,
    pub with: &'a [u8],
}

/// Appends `text` to `out` with `edits` made, raw line breaks turned to spaces and blanks around
/// the whole text left out. No newline is added. The edits are sorted in place.
///
/// # Panics
/// If edits overlap or lie outside the text. An edit left out would send a client's own id
/// upstream, where it may name another session's call, so there is nothing sound to go on with.
pub fn splice(out: &mut Vec<u8>, text: &[u8], edits: &mut [Edit<'_>]) {
    edits.sort_unstable_by_key(|edit| edit.span.start);
    let added: usize = edits.iter().map(|edit| edit.with.len()).sum();
    out.reserve(text.len() + added);
    let from = out.len();
    let (mut at, end) = without_blanks(text);
    for edit in edits {
        let (start, stop) = (edit.span.start as usize, edit.span.end as usize);
        assert!(
            at <= start && start <= stop && stop <= end,
            "an edit out of place"
        );
        out.extend_from_slice(&text[at..start]);
        out.extend_from_slice(edit.with);
        at = stop;
    }
    out.extend_from_slice(&text[at..end]);
    fold_newlines(&mut out[from..]);
}

/// Turns every CR and LF into a space.
pub fn fold_newlines(mut bytes: &mut [u8]) {
    // Pretty-printed text has a line break every few dozen bytes: plain steps of this size spare
    // a search for each. Text without any is only searched, never written.
    const STEP: usize = 256;
    while let Some(found) = memchr2(b'\n', b'\r', bytes) {
        let from_break = &mut bytes[found..];
        let step = STEP.min(from_break.len());
        let (step, rest) = from_break.split_at_mut(step);
        for byte in step {
            let is_break = *byte == b'\n' || *byte == b'\r';
            *byte = if is_break { b' ' } else { *byte };
        }
        bytes = rest;
    }
}

/// The range of `text` between its leading and trailing JSON whitespace.
fn without_blanks(text: &[u8]) -> (usize, usize) {
    let is_solid = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    let start = text.iter().position(is_solid).unwrap_or(text.len());
    let end = text
        .iter()
        .rposition(is_solid)
        .map_or(start, |last| last + 1);
    (start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u32, end: u32) -> Span {
        Span { start, end }
    }

    #[test]
    fn edits_are_made_in_any_order_and_all_else_stays() {
        let text = br#" {"id": "a", "n": 1.0, "t":[7] } "#;
        let mut edits = [
            Edit {
                span: span(28, 29),
                with: b"99",
            },
            Edit {
                span: span(8, 11),
                with: b"12345",
            },
        ];
        let mut out = b"before\n".to_vec();
        splice(&mut out, text, &mut edits);
        assert_eq!(out, b"before\n{\"id\": 12345, \"n\": 1.0, \"t\":[99] }");
    }

    #[test]
    fn raw_line_breaks_become_spaces_and_escaped_ones_stay() {
        let mut out = Vec::new();
        splice(&mut out, b"\r\n{\r\n \"a\":\n\"x\\n\\r\"\r}\n\n", &mut []);
        assert_eq!(out, br#"{   "a": "x\n\r" }"#);
    }

    #[test]
    fn long_text_with_line_breaks_far_apart_is_folded_whole() {
        for gap in [1, 2, 255, 256, 257, 1000] {
            let mut bytes = vec![b'x'; 5000];
            for at in (0..bytes.len()).step_by(gap) {
                bytes[at] = if at % 2 == 0 { b'\n' } else { b'\r' };
            }
            let kept = bytes.iter().filter(|byte| **byte == b'x').count();
            fold_newlines(&mut bytes);
            assert!(bytes.iter().all(|byte| matches!(byte, b'x' | b' ')));
            assert_eq!(bytes.iter().filter(|byte| **byte == b'x').count(), kept);
        }
    }

    #[test]
    fn blank_and_empty_texts_give_nothing() {
        for text in [&b""[..], b" ", b"\r\n\t "] {
            let mut out = Vec::new();
            splice(&mut out, text, &mut []);
            assert_eq!(out, b"");
        }
    }

    #[test]
    #[should_panic(expected = "out of place")]
    fn overlapping_edits_are_a_bug_that_shows() {
        let mut edits = [
            Edit {
                span: span(1, 4),
                with: b"",
            },
            Edit {
                span: span(3, 5),
                with: b"",
            },
        ];
        splice(&mut Vec::new(), b"abcdef", &mut edits);
    }
}
