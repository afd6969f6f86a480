//! Whose answer was an over-long line of the server: it was not kept, but its
//! first and last bytes were, and in what servers write the id stands in one of
//! the two. The call can then be told at once, instead of waiting for its
//! time-out.
//!
//! Only places are read that belong to the message itself if the line is JSON:
//! its very first members, and its very last. Text inside a result cannot look
//! like either.

use super::upstream_id::UpstreamId;

/// The call that a line answers of which `head` are the first bytes and `tail`
/// the last; `None` if that is not certain.
pub fn answered_call(head: &[u8], tail: &[u8]) -> Option<UpstreamId> {
    let mut head = Cursor(head);
    head.blank();
    head.token(b"{")?;
    let first = first_members(&mut head);
    if !is_answer(&mut head) {
        return None;
    }
    match (first, last_member(tail)) {
        (Some(one), None) | (None, Some(one)) => Some(one),
        _ => None,
    }
}

/// Reads past `jsonrpc` and `id` where they come first.
fn first_members(head: &mut Cursor<'_>) -> Option<UpstreamId> {
    let mut id = None;
    loop {
        let before = head.0;
        let read = match head.key(b"\"jsonrpc\"") {
            Some(()) => head.token(b"\"2.0\""),
            None => head.key(b"\"id\"").and_then(|()| {
                id = Some(UpstreamId::read(head.scalar())?.id);
                Some(())
            }),
        };
        if read.is_none() || head.token(b",").is_none() {
            head.0 = before;
            return id;
        }
    }
}

/// Whether the next member makes the message an answer.
fn is_answer(head: &mut Cursor<'_>) -> bool {
    head.key(b"\"result\"").is_some() || head.key(b"\"error\"").is_some()
}

/// Reads `,"id":N}` at the end, with `jsonrpc` before or behind it.
fn last_member(tail: &[u8]) -> Option<UpstreamId> {
    let at = memchr::memmem::rfind(tail, b",\"id\"")?;
    let mut rest = Cursor(&tail[at + 1..]);
    rest.key(b"\"id\"")?;
    let id = UpstreamId::read(rest.scalar())?.id;
    if rest.token(b",").is_some() {
        rest.key(b"\"jsonrpc\"")?;
        rest.token(b"\"2.0\"")?;
    }
    rest.token(b"}")?;
    rest.blank();
    rest.0.is_empty().then_some(id)
}

/// What is left to read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn blank(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    fn token(&mut self, token: &[u8]) -> Option<()> {
        self.blank();
        self.0 = self.0.strip_prefix(token)?;
        Some(())
    }

    /// A key and its colon; nothing is read if it is another one.
    fn key(&mut self, key: &[u8]) -> Option<()> {
        let before = self.0;
        let read = self.token(key).and_then(|()| self.token(b":"));
        if read.is_none() {
            self.0 = before;
        }
        read
    }

    /// A number or a string of digits.
    fn scalar(&mut self) -> &'a [u8] {
        self.blank();
        let is_scalar = |byte: &u8| byte.is_ascii_digit() || *byte == b'"';
        let end = self.0.iter().position(|byte| !is_scalar(byte));
        let (scalar, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        scalar
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> (UpstreamId, String) {
        let id = UpstreamId::of_call(0, 7, 9);
        let mut buffer = itoa::Buffer::new();
        let text = String::from_utf8(id.digits(&mut buffer).to_vec()).unwrap();
        (id, text)
    }

    #[test]
    fn the_id_is_read_where_servers_write_it() {
        let (id, text) = id();
        for (head, tail) in [
            (
                format!(r#"{{"jsonrpc":"2.0","id":{text},"result":{{"a"#),
                "xx}}".into(),
            ),
            (
                format!(r#" {{ "id" : "{text}" , "jsonrpc":"2.0", "error":{{"#),
                "xx}}".into(),
            ),
            (
                r#"{"result":{"a"#.into(),
                format!(r#"x"}},"jsonrpc":"2.0","id":{text}}}"#),
            ),
            (
                r#"{"jsonrpc":"2.0","result":{"a"#.into(),
                format!(r#"x"}},"id":{text},"jsonrpc":"2.0"}} "#),
            ),
        ] {
            assert_eq!(
                answered_call(head.as_bytes(), tail.as_bytes()),
                Some(id),
                "{head}"
            );
        }
    }

    #[test]
    fn text_inside_a_result_or_another_kind_of_message_names_nobody() {
        let (_, text) = id();
        let answer = r#"{"jsonrpc":"2.0","result":{"a"#;
        for (head, tail) in [
            (answer, format!(r#"x,\"id\":{text}}}"}}}}"#)),
            (answer, format!(r#"x","id":{text}}}}}"#)),
            (answer, format!(r#"x","b":"\",\"id\":{text}}}"#)),
            (
                r#"{"method":"x","params":{"a"#,
                format!(r#"x"}},"id":{text}}}"#),
            ),
            ("banner", format!(r#","id":{text}}}"#)),
            ("", String::new()),
        ] {
            assert_eq!(
                answered_call(head.as_bytes(), tail.as_bytes()),
                None,
                "{tail}"
            );
        }
    }

    #[test]
    fn two_ids_name_nobody() {
        let (_, text) = id();
        let head = format!(r#"{{"id":{text},"result":{{"#);
        let tail = format!(r#"}},"id":{text}}}"#);
        assert_eq!(answered_call(head.as_bytes(), tail.as_bytes()), None);
    }
}
