//! Where a merged list goes on: the text that a client gets as `nextCursor` and
//! gives back. Nothing is kept for it. It says which upstreams have more and
//! their own cursors, and it is signed, so that what comes back is what was given
//! for this list, in this session, of this route. It is not secret: a client may
//! read in it what the servers would have told it themselves.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use crate::limits::{CURSOR_BYTES_MAX, LIST_PAGES_MAX};
use crate::wire::listing::ListKind;

/// What everything that is signed begins with: another layout or use of the key gets
/// another word.
const DOMAIN: &[u8] = b"ringway list cursor 1";

/// HMAC-SHA256, at the end of the decoded text.
const TAG_BYTES: usize = 32;

/// What cursors are signed with. Those of another key are refused, so all shards have
/// the same.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl Key {
    pub fn new(secret: &[u8; 32]) -> Key {
        Key(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub kind: ListKind,
    /// Pages of this list that have been given before.
    pub pages: u32,
    /// The upstreams that have more, by name, with their own cursors. By name, since
    /// a place in the configuration may mean another server tomorrow.
    pub next: Vec<(String, String)>,
}

/// Why a list ends before the servers' lists do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorLimit {
    #[error("the list has more than {LIST_PAGES_MAX} pages")]
    Pages,
    #[error("the cursors of the upstreams have more than {CURSOR_BYTES_MAX} bytes together")]
    Bytes,
}

/// A cursor that was not given for this list in this session, or not by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is not one of this list")]
pub struct BadCursor;

impl Cursor {
    /// The text for a client. `route` tells routes apart and `session` sessions.
    ///
    /// # Errors
    /// The list is to end here.
    pub fn encode(&self, key: &Key, route: &str, session: u128) -> Result<String, CursorLimit> {
        if self.pages > LIST_PAGES_MAX {
            return Err(CursorLimit::Pages);
        }
        let mut bytes = vec![tag_of(self.kind)];
        bytes.extend_from_slice(&self.pages.to_be_bytes());
        for (name, cursor) in &self.next {
            put(&mut bytes, name.as_bytes())?;
            put(&mut bytes, cursor.as_bytes())?;
            if bytes.len() > CURSOR_BYTES_MAX {
                return Err(CursorLimit::Bytes);
            }
        }
        let tag = hmac::sign(&key.0, &signed(route, session, &bytes));
        bytes.extend_from_slice(tag.as_ref());
        let text = URL_SAFE_NO_PAD.encode(bytes);
        let is_short = text.len() <= CURSOR_BYTES_MAX;
        is_short.then_some(text).ok_or(CursorLimit::Bytes)
    }

    /// Reads what a client gave as the cursor of a list.
    ///
    /// # Errors
    /// It is not a cursor that [`Cursor::encode`] made for the same list, session and
    /// route with the same key.
    pub fn decode(
        text: &str,
        kind: ListKind,
        key: &Key,
        route: &str,
        session: u128,
    ) -> Result<Cursor, BadCursor> {
        if text.len() > CURSOR_BYTES_MAX {
            return Err(BadCursor);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| BadCursor)?;
        let payload = bytes.len().checked_sub(TAG_BYTES).ok_or(BadCursor)?;
        let (payload, tag) = bytes.split_at_checked(payload).ok_or(BadCursor)?;
        // Compared in constant time.
        hmac::verify(&key.0, &signed(route, session, payload), tag).map_err(|_| BadCursor)?;
        let cursor = read(payload, kind).ok_or(BadCursor)?;
        (cursor.pages <= LIST_PAGES_MAX)
            .then_some(cursor)
            .ok_or(BadCursor)
    }
}

fn read(payload: &[u8], kind: ListKind) -> Option<Cursor> {
    let (tag, rest) = payload.split_first()?;
    (*tag == tag_of(kind)).then_some(())?;
    let (pages, mut rest) = rest.split_first_chunk()?;
    let mut next = Vec::new();
    while !rest.is_empty() {
        next.push((take(&mut rest)?, take(&mut rest)?));
    }
    Some(Cursor {
        kind,
        pages: u32::from_be_bytes(*pages),
        next,
    })
}

fn put(out: &mut Vec<u8>, text: &[u8]) -> Result<(), CursorLimit> {
    let len = u32::try_from(text.len()).map_err(|_| CursorLimit::Bytes)?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(text);
    Ok(())
}

fn take(bytes: &mut &[u8]) -> Option<String> {
    let (len, rest) = bytes.split_first_chunk()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (text, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).ok()
}

/// What is signed. Each part has its length before it, so that no two cursors have the
/// same.
fn signed(route: &str, session: u128, payload: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(payload.len() + route.len() + 64);
    for part in [DOMAIN, route.as_bytes(), &session.to_be_bytes(), payload] {
        all.extend_from_slice(&(part.len() as u64).to_be_bytes());
        all.extend_from_slice(part);
    }
    all
}

fn tag_of(kind: ListKind) -> u8 {
    match kind {
        ListKind::Tools => 1,
        ListKind::Prompts => 2,
        ListKind::Resources => 3,
        ListKind::Templates => 4,
        ListKind::Tasks => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> Key {
        Key::new(&[7; 32])
    }

    fn cursor(next: &[(&str, &str)]) -> Cursor {
        let owned = |(name, own): &(&str, &str)| ((*name).to_owned(), (*own).to_owned());
        Cursor {
            kind: ListKind::Tools,
            pages: 3,
            next: next.iter().map(owned).collect(),
        }
    }

    fn text_of(cursor: &Cursor) -> String {
        cursor.encode(&key(), "/mcp", 9).expect("a short cursor")
    }

    fn read_as(text: &str, kind: ListKind) -> Result<Cursor, BadCursor> {
        Cursor::decode(text, kind, &key(), "/mcp", 9)
    }

    #[test]
    fn only_the_same_list_session_route_and_key_can_read_it() {
        let given = cursor(&[("one", "a"), ("two", "")]);
        let text = text_of(&given);
        assert_eq!(read_as(&text, ListKind::Tools), Ok(given));
        for kind in ListKind::ALL {
            assert_eq!(read_as(&text, kind).is_ok(), kind == ListKind::Tools);
        }
        let tools = ListKind::Tools;
        for (key, route, session) in [
            (Key::new(&[8; 32]), "/mcp", 9),
            (key(), "/mcp2", 9),
            (key(), "/mc", 9),
            (key(), "/mcp", 8),
            (key(), "/mcp", 9 | 1 << 64),
        ] {
            let read = Cursor::decode(&text, tools, &key, route, session);
            assert_eq!(read, Err(BadCursor));
        }
    }

    #[test]
    fn every_kind_of_list_has_its_own_cursors() {
        for one in ListKind::ALL {
            let given = Cursor {
                kind: one,
                ..cursor(&[])
            };
            let text = text_of(&given);
            for other in ListKind::ALL {
                assert_eq!(read_as(&text, other).is_ok(), one == other);
            }
        }
    }

    #[test]
    fn what_is_signed_has_one_reading() {
        let session = u128::from_be_bytes([b'b'; 16]);
        let one = signed("/a", session, b"bc");
        assert_ne!(one, signed("/ab", session, b"c"));
        let moved = cursor(&[("o", "nea"), ("two", "")]);
        assert_ne!(
            text_of(&cursor(&[("one", "a"), ("two", "")])),
            text_of(&moved)
        );
    }

    #[test]
    fn a_changed_or_shortened_text_is_refused() {
        let text = text_of(&cursor(&[("one", "abc")]));
        for at in 0..text.len() {
            assert_eq!(read_as(&text[..at], ListKind::Tools), Err(BadCursor));
            for byte in *b"A_=+ \0" {
                let mut changed = text.clone().into_bytes();
                changed[at] = byte;
                let changed = String::from_utf8(changed).expect("text");
                let is_same = changed == text;
                assert_eq!(read_as(&changed, ListKind::Tools).is_ok(), is_same);
            }
        }
        for changed in [format!("{text}A"), format!("{text}="), format!("A{text}")] {
            assert_eq!(read_as(&changed, ListKind::Tools), Err(BadCursor));
        }
    }

    #[test]
    fn each_bit_of_the_text_counts() {
        let text = text_of(&cursor(&[("one", "abc")]));
        for at in 0..text.len() {
            for bit in 0..7 {
                let mut changed = text.clone().into_bytes();
                changed[at] ^= 1 << bit;
                let changed = String::from_utf8(changed).expect("text");
                assert_eq!(read_as(&changed, ListKind::Tools), Err(BadCursor));
            }
        }
    }

    #[test]
    fn what_is_signed_but_of_no_form_is_refused() {
        let sign = |payload: &[u8]| {
            let tag = hmac::sign(&key().0, &signed("/mcp", 9, payload));
            URL_SAFE_NO_PAD.encode([payload, tag.as_ref()].concat())
        };
        let good = [1, 0, 0, 0, 3, 0, 0, 0, 1, b'a', 0, 0, 0, 0];
        assert!(read_as(&sign(&good), ListKind::Tools).is_ok());
        for payload in [
            &b""[..],
            &[1],
            &[9, 0, 0, 0, 3],
            &[1, 0, 0, 0],
            &[1, 255, 255, 255, 255],
            &[1, 0, 0, 0, 3, 0],
            &[1, 0, 0, 0, 3, 0, 0, 0, 1, b'a'],
            &[1, 0, 0, 0, 3, 0, 0, 0, 9, b'a', 0, 0, 0, 0],
            &[1, 0, 0, 0, 3, 255, 255, 255, 255, b'a', 0, 0, 0, 0],
            &[1, 0, 0, 0, 3, 0, 0, 0, 1, 255, 0, 0, 0, 0],
        ] {
            assert_eq!(read_as(&sign(payload), ListKind::Tools), Err(BadCursor));
        }
    }

    #[test]
    fn a_list_has_so_many_pages_and_then_ends() {
        let mut last = cursor(&[("one", "a")]);
        last.pages = LIST_PAGES_MAX;
        assert_eq!(read_as(&text_of(&last), ListKind::Tools), Ok(last.clone()));
        last.pages += 1;
        let over = last.encode(&key(), "/mcp", 9);
        assert_eq!(over, Err(CursorLimit::Pages));
    }

    #[test]
    fn a_cursor_has_so_many_bytes_as_text_and_no_more_is_read() {
        let of = |len: usize| cursor(&[("one", &"x".repeat(len))]).encode(&key(), "/mcp", 9);
        // Kind, pages, two lengths, the name, the tag; three bytes become four.
        let longest = CURSOR_BYTES_MAX / 4 * 3 - (1 + 4 + 8 + 3 + TAG_BYTES);
        let text = of(longest).expect("a cursor that is just short enough");
        assert_eq!(text.len(), CURSOR_BYTES_MAX);
        assert!(read_as(&text, ListKind::Tools).is_ok());
        assert_eq!(of(longest + 1), Err(CursorLimit::Bytes));
        assert_eq!(of(1 << 20), Err(CursorLimit::Bytes));
        let mut payload = vec![1, 0, 0, 0, 3, 0, 0, 0, 0];
        put(&mut payload, &vec![b'x'; longest + 4]).expect("a length");
        let tag = hmac::sign(&key().0, &signed("/mcp", 9, &payload));
        let longer = URL_SAFE_NO_PAD.encode([&payload, tag.as_ref()].concat());
        assert!(longer.len() > CURSOR_BYTES_MAX);
        assert_eq!(read_as(&longer, ListKind::Tools), Err(BadCursor));
    }

    #[test]
    fn a_key_does_not_show_its_bytes() {
        assert_eq!(format!("{:?}", key()), "Key");
    }

    proptest! {
        #[test]
        fn what_was_given_comes_back(
            next in prop::collection::vec((any::<String>(), any::<String>()), 0..5),
            pages in 0..=LIST_PAGES_MAX,
            kind in prop::sample::select(&ListKind::ALL[..]),
            (secret, route, session) in (any::<[u8; 32]>(), any::<String>(), any::<u128>()),
        ) {
            let (given, key) = (Cursor { kind, pages, next }, Key::new(&secret));
            let text = given.encode(&key, &route, session).expect("a short cursor");
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            prop_assert!(text.bytes().all(is_plain));
            prop_assert_eq!(Cursor::decode(&text, kind, &key, &route, session), Ok(given));
        }

        #[test]
        fn no_text_is_too_bad_to_be_read(text in any::<String>()) {
            prop_assert_eq!(read_as(&text, ListKind::Tools), Err(BadCursor));
        }
    }
}
