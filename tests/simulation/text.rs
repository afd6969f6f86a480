//! Messages with holes, so that what must arrive is known byte by byte; the marks
//! by which everything that belongs to a session can be recognised; SSE events.

/// A part of a message.
#[derive(Clone, Debug)]
enum Piece {
    Plain(String),
    Id,
    Token,
    Cursor,
}

/// A message whose id, token and cursor are filled in by whoever passes it on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text(Vec<Piece>);

impl Text {
    /// Reads `@id`, `@token` and `@cursor` as holes.
    pub(crate) fn new(template: &str) -> Text {
        let mut pieces = Vec::new();
        let mut rest = template;
        while let Some(at) = rest.find('@') {
            pieces.push(Piece::Plain(rest[..at].into()));
            let (piece, name) = match &rest[at..] {
                hole if hole.starts_with("@id") => (Piece::Id, "@id"),
                hole if hole.starts_with("@token") => (Piece::Token, "@token"),
                hole if hole.starts_with("@cursor") => (Piece::Cursor, "@cursor"),
                hole => panic!("no such hole: {hole}"),
            };
            pieces.push(piece);
            rest = &rest[at + name.len()..];
        }
        pieces.push(Piece::Plain(rest.into()));
        Text(pieces)
    }

    pub(crate) fn fill(&self, id: &str, token: &str, cursor: &str) -> Vec<u8> {
        let mut out = String::new();
        for piece in &self.0 {
            out.push_str(match piece {
                Piece::Plain(text) => text,
                Piece::Id => id,
                Piece::Token => token,
                Piece::Cursor => cursor,
            });
        }
        out.into_bytes()
    }
}

/// What is left of a text when it has been passed on unchanged: no blanks around
/// it, raw line breaks made spaces.
pub(crate) fn passed(text: &[u8]) -> Vec<u8> {
    let text = text.trim_ascii().iter();
    text.map(|byte| {
        if matches!(byte, b'\r' | b'\n') {
            b' '
        } else {
            *byte
        }
    })
    .collect()
}

/// What marks everything about a call: its session and its own number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Nonce {
    pub(crate) session: usize,
    pub(crate) call: usize,
}

impl std::fmt::Display for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "~{}:{}~", self.session, self.call)
    }
}

impl Nonce {
    /// Every nonce in a text.
    pub(crate) fn all(text: &[u8]) -> Vec<Nonce> {
        let mut found = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.iter().position(|byte| *byte == b'~') {
            rest = &rest[at + 1..];
            if let Some(nonce) = Self::read(rest) {
                found.push(nonce);
            }
        }
        found
    }

    fn read(text: &[u8]) -> Option<Nonce> {
        let end = text.iter().take(24).position(|byte| *byte == b'~')?;
        let (session, call) = std::str::from_utf8(&text[..end]).ok()?.split_once(':')?;
        Some(Nonce {
            session: session.parse().ok()?,
            call: call.parse().ok()?,
        })
    }
}

/// The messages in the bytes of SSE events; keep-alives are comments.
pub(crate) fn events(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        if let Some(rest) = bytes.strip_prefix(b": \n") {
            bytes = rest;
            continue;
        }
        let data = bytes.strip_prefix(b"event: message\ndata: ");
        let data = data.expect("an event begins as events do");
        let end = data.iter().position(|byte| *byte == b'\n');
        let end = end.expect("an event is whole");
        found.push(&data[..end]);
        bytes = data[end..]
            .strip_prefix(b"\n\n")
            .expect("an event ends with a blank line");
    }
    found
}
