//! Whether what a hook has written may take the place of what it was given. It is held to the
//! rules that messages of clients and servers are held to: read as part of a message, by the same
//! scan, it must be the whole of the one member that it replaces.

use super::point::Point;
use crate::wire::scan::scan;
use crate::wire::splice::fold_newlines;

/// Why a rewrite cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadRewrite {
    #[error("it is longer than allowed")]
    TooLong,
    #[error("it is not one JSON object that can take the place of what was there")]
    Form,
}

/// `text` as it may be sent on, without raw line breaks.
pub(super) fn checked(
    point: Point,
    mut text: Vec<u8>,
    bytes_max: usize,
) -> Result<Vec<u8>, BadRewrite> {
    if text.len() > bytes_max {
        return Err(BadRewrite::TooLong);
    }
    fold_newlines(&mut text);
    let open: &[u8] = match point {
        Point::AfterToolCall | Point::AfterPrompt | Point::AfterRead => {
            br#"{"jsonrpc":"2.0","id":1,"result":"#
        }
        Point::Progress => br#"{"jsonrpc":"2.0","method":"-","params":"#,
        Point::BeforeToolCall
        | Point::BeforePrompt
        | Point::BeforeRead
        | Point::BeforeSubscribe => br#"{"jsonrpc":"2.0","id":1,"method":"-","params":"#,
    };
    let text = trimmed(text);
    let message = [open, text.as_slice(), b"}"].concat();
    let envelope = scan(&message).map_err(|_| BadRewrite::Form)?;
    let member = envelope.params.or(envelope.result);
    // Else it holds the member's end, and more behind it.
    let is_whole = member.is_some_and(|member| member.of(&message).len() == text.len());
    if !is_whole || text.first() != Some(&b'{') {
        return Err(BadRewrite::Form);
    }
    Ok(text)
}

fn trimmed(mut text: Vec<u8>) -> Vec<u8> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    while text.last().is_some_and(is_blank) {
        text.pop();
    }
    let leading = text.iter().take_while(|byte| is_blank(byte)).count();
    if leading > 0 {
        text.drain(..leading);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(point: Point, text: &str) -> Result<String, BadRewrite> {
        checked(point, text.as_bytes().to_vec(), 1 << 20)
            .map(|text| String::from_utf8(text).expect("scanned as UTF-8"))
    }

    #[test]
    fn one_object_passes_at_every_point_without_line_breaks() {
        for point in Point::ALL {
            assert_eq!(check(point, "{}").as_deref(), Ok("{}"));
            let spread = "\n {\"a\":\r\n[1.0,\"\\n\"]} \t\n";
            assert_eq!(
                check(point, spread).as_deref(),
                Ok("{\"a\":  [1.0,\"\\n\"]}")
            );
        }
    }

    #[test]
    fn all_else_is_refused_at_every_point() {
        let deep = "{\"a\":".repeat(127) + "{}" + &"}".repeat(127);
        for point in Point::ALL {
            for text in [
                "",
                " ",
                "{",
                "[]",
                "null",
                "\"{}\"",
                "1",
                "{}{}",
                "{}}",
                "{},\"x\":{}",
                "{},\"x\":{\"y\":1}",
                "{}, \"id\":2",
                "{\"a\":\"\\u00\"}",
                "{\"a\":\"\u{1}\"}",
                &deep,
            ] {
                assert_eq!(
                    check(point, text),
                    Err(BadRewrite::Form),
                    "{point:?} {text}"
                );
            }
            assert_eq!(
                checked(point, b"{\"a\":\"\xff\"}".to_vec(), 100),
                Err(BadRewrite::Form)
            );
        }
    }

    #[test]
    fn params_that_routing_would_refuse_are_refused() {
        for text in [
            r#"{"name":"a","name":"b"}"#,
            r#"{"name":"a","Name":"b"}"#,
            r#"{"_meta":7}"#,
            r#"{"_meta":{"progressToken":{}}}"#,
        ] {
            assert_eq!(check(Point::BeforeToolCall, text), Err(BadRewrite::Form));
        }
        // A result may have any members.
        assert!(check(Point::AfterToolCall, r#"{"name":"a","name":"b"}"#).is_ok());
        assert_eq!(
            check(Point::Progress, r#"{"progressToken":[]}"#),
            Err(BadRewrite::Form)
        );
    }

    #[test]
    fn the_limit_counts_every_byte() {
        let at = |bytes_max| checked(Point::BeforeRead, b"{\"a\":1}".to_vec(), bytes_max);
        assert!(at(7).is_ok());
        assert_eq!(at(6), Err(BadRewrite::TooLong));
    }
}
