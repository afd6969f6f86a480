//! Static bearer tokens: what a token file means, and whether the `Authorization` of a request
//! carries one of its tokens. Pure: no file, no clock. A token is kept only as its SHA-256 digest,
//! no error and no debug text shows one, and the time of a check does not depend on which token was
//! presented or how much of it was right.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::fmt;

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::routing::session::TokenId;
use crate::wire::reply;

/// Tokens in a file at most. Every check compares with all of them.
pub const TOKENS_MAX: usize = 1_024;
/// Bytes of a token's name at most.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of a token at least: 16 characters of the alphabet are up to 96 bits.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Bytes of a token at most; a longer one is refused unread.
pub const TOKEN_BYTES_MAX: usize = 4 << 10;

/// Why a token file cannot be used. The text names the line and never what stands there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokensError {
    /// A line that is wrong; lines count from 1.
    #[error("line {line}: {fault}")]
    Line { line: usize, fault: LineFault },
    /// Nobody could come in. On a reread it is more likely a file that is being written.
    #[error("there is no token in it")]
    Empty,
}

/// What is wrong with a line of a token file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineFault {
    #[error("expected NAME TOKEN")]
    Form,
    #[error("a name is 1 to {NAME_BYTES_MAX} letters, digits, dots, underscores and hyphens")]
    Name,
    #[error("the name stands on line {0} already")]
    NameTwice(usize),
    #[error(
        "a token is {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} letters, digits and -._~+/, \
         with = only at its end"
    )]
    Token,
    #[error("the token stands on line {0} already")]
    TokenTwice(usize),
    #[error("there are more than {TOKENS_MAX} tokens")]
    TooMany,
    #[error("too many names have come and gone: restart Ringway")]
    IdsUsedUp,
}

/// Why a request is answered with 401.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unauthorized {
    /// No bearer token was presented.
    Missing,
    /// One was presented that is not valid.
    Invalid,
}

impl Unauthorized {
    /// The fields of the answer, whole lines. RFC 6750, 3.1: a request without a token gets no
    /// error code.
    pub fn fields(self) -> &'static [u8] {
        match self {
            Unauthorized::Missing => b"www-authenticate: Bearer\r\n",
            Unauthorized::Invalid => b"www-authenticate: Bearer error=\"invalid_token\"\r\n",
        }
    }

    /// The JSON-RPC error; without an id, since the body was not looked at.
    pub fn body(self) -> Vec<u8> {
        let sentence = match self {
            Unauthorized::Missing => "Unauthorized: send a token as Authorization: Bearer",
            Unauthorized::Invalid => "Unauthorized: the token is not valid",
        };
        reply::error(None, reply::INVALID_REQUEST, sentence)
    }
}

/// A token's SHA-256 in words: a check against 1,024 tokens takes 2 us, by bytes it took 120.
type TokenDigest = [u64; 4];

/// One token.
#[derive(Clone)]
struct Entry {
    digest: TokenDigest,
    id: TokenId,
    name: Box<str>,
}

/// The tokens of one reading of the file; never changed. A name keeps its id from one reading to
/// the next, whatever its token. A name that was gone and comes back is a new one: ids are not used
/// twice, so nothing that belonged to it can come back with it.
#[derive(Clone)]
pub struct Tokens {
    entries: Vec<Entry>,
    next_id: u32,
}

impl fmt::Debug for Tokens {
    /// Names only: a digest of a weak token can be guessed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.entries.iter().map(|entry| &entry.name);
        f.debug_list().entries(names).finish()
    }
}

impl Tokens {
    /// Reads a file's text, the first of the process.
    ///
    /// # Errors
    /// The first line that is wrong, or that there is no token.
    pub fn read(text: &[u8]) -> Result<Tokens, TokensError> {
        let none = Tokens {
            entries: Vec::new(),
            next_id: TokenId::ANYONE.0 + 1,
        };
        none.reread(text)
    }

    /// Reads a later text. Names that are in `self` keep their ids.
    ///
    /// # Errors
    /// As [`Tokens::read`].
    pub fn reread(&self, text: &[u8]) -> Result<Tokens, TokensError> {
        let known: HashMap<&str, TokenId> = self
            .entries
            .iter()
            .map(|entry| (&*entry.name, entry.id))
            .collect();
        let mut reading = Reading {
            known,
            names: HashMap::new(),
            digests: HashMap::new(),
            entries: Vec::new(),
            next_id: self.next_id,
        };
        for (index, bytes) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = index + 1;
            reading
                .line(line, bytes.trim_ascii())
                .map_err(|fault| TokensError::Line { line, fault })?;
        }
        match reading.entries.is_empty() {
            true => Err(TokensError::Empty),
            false => Ok(Tokens {
                entries: reading.entries,
                next_id: reading.next_id,
            }),
        }
    }

    /// Whose token the value of an `Authorization` field carries. Takes the time of one digest of
    /// what was presented and of a comparison with every token.
    ///
    /// # Errors
    /// [`Unauthorized`], to be answered with 401.
    pub fn check(&self, authorization: Option<&[u8]>) -> Result<TokenId, Unauthorized> {
        let presented = authorization
            .and_then(bearer)
            .ok_or(Unauthorized::Missing)?;
        if presented.len() > TOKEN_BYTES_MAX {
            return Err(Unauthorized::Invalid);
        }
        let digest = digest(presented);
        let mut found = TokenId::ANYONE.0;
        for entry in &self.entries {
            // All are looked at, also behind the right one.
            let words = entry.digest.iter().zip(&digest);
            let difference = words.fold(0, |all, (known, word)| all | (known ^ word));
            found.conditional_assign(&entry.id.0, difference.ct_eq(&0));
        }
        match TokenId(found) {
            TokenId::ANYONE => Err(Unauthorized::Invalid),
            id => Ok(id),
        }
    }

    /// The ids of `before` that are not here any more.
    pub fn removed_since(&self, before: &Tokens) -> Vec<TokenId> {
        let here: HashSet<TokenId> = self.entries.iter().map(|entry| entry.id).collect();
        let ids = before.entries.iter().map(|entry| entry.id);
        ids.filter(|id| !here.contains(id)).collect()
    }

    /// The name of a token.
    pub fn name(&self, id: TokenId) -> Option<&str> {
        let entry = self.entries.iter().find(|entry| entry.id == id)?;
        Some(&entry.name)
    }

    /// How many there are; never 0.
    #[expect(clippy::len_without_is_empty, reason = "an empty set is not built")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The names and the tokens are the same, in whatever order.
    pub fn is_same(&self, other: &Tokens) -> bool {
        let sorted = |tokens: &Tokens| {
            let mut pairs: Vec<_> = tokens.entries.iter().map(|e| (e.id.0, e.digest)).collect();
            pairs.sort_unstable();
            pairs
        };
        sorted(self) == sorted(other)
    }
}

/// The state of reading one text.
struct Reading<'a> {
    known: HashMap<&'a str, TokenId>,
    /// The lines of the names and of the digests so far.
    names: HashMap<Box<str>, usize>,
    digests: HashMap<TokenDigest, usize>,
    entries: Vec<Entry>,
    next_id: u32,
}

impl Reading<'_> {
    /// Takes line number `line`, `text` without white space around it.
    fn line(&mut self, line: usize, text: &[u8]) -> Result<(), LineFault> {
        if text.is_empty() || text.starts_with(b"#") {
            return Ok(());
        }
        let mut words = text
            .split(|byte| matches!(byte, b' ' | b'\t'))
            .filter(|word| !word.is_empty());
        let (Some(name), Some(token), None) = (words.next(), words.next(), words.next()) else {
            return Err(LineFault::Form);
        };
        let name = name_of(name).ok_or(LineFault::Name)?;
        if !is_token(token) {
            return Err(LineFault::Token);
        }
        if self.entries.len() == TOKENS_MAX {
            return Err(LineFault::TooMany);
        }
        if let Some(first) = self.names.insert(name.into(), line) {
            return Err(LineFault::NameTwice(first));
        }
        let digest = digest(token);
        if let Some(first) = self.digests.insert(digest, line) {
            return Err(LineFault::TokenTwice(first));
        }
        let id = self.id(name)?;
        self.entries.push(Entry {
            digest,
            id,
            name: name.into(),
        });
        Ok(())
    }

    fn id(&mut self, name: &str) -> Result<TokenId, LineFault> {
        if let Some(id) = self.known.get(name) {
            return Ok(*id);
        }
        let id = TokenId(self.next_id);
        self.next_id = self.next_id.checked_add(1).ok_or(LineFault::IdsUsedUp)?;
        Ok(id)
    }
}

fn name_of(word: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(word).ok()?;
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    ((1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(legal)).then_some(name)
}

/// RFC 6750, 2.1: `b64token`, within the bounds.
fn is_token(word: &[u8]) -> bool {
    let padding = word.iter().rev().take_while(|byte| **byte == b'=').count();
    let body = &word[..word.len() - padding];
    (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&word.len())
        && !body.is_empty()
        && body.iter().all(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/')
        })
}

/// What stands behind the scheme `Bearer`, unchecked; `None` if it is another scheme or nothing.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(b"Bearer".len())?;
    if !scheme.eq_ignore_ascii_case(b"Bearer") || rest.first() != Some(&b' ') {
        return None;
    }
    let token = rest.trim_ascii();
    (!token.is_empty()).then_some(token)
}

/// Digests have one length, so that comparing them tells nothing about a token's.
fn digest(token: &[u8]) -> TokenDigest {
    let bytes: [u8; 32] = Sha256::digest(token).into();
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|n| u64::from_ne_bytes(words[n]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: &str = "alice-token-0123456789";
    const BOB: &str = "bob/token+0123456789~._-==";

    fn tokens() -> Tokens {
        Tokens::read(format!("alice {ALICE}\nbob {BOB}\n").as_bytes()).unwrap()
    }

    fn check(tokens: &Tokens, value: &str) -> Result<TokenId, Unauthorized> {
        tokens.check(Some(value.as_bytes()))
    }

    fn whose<'t>(tokens: &'t Tokens, value: &str) -> Option<&'t str> {
        tokens.name(check(tokens, value).ok()?)
    }

    #[test]
    fn every_token_is_found_by_its_name_wherever_it_stands() {
        let text: String = (0..TOKENS_MAX)
            .map(|n| format!("name{n} token-of-number-{n:08}\n"))
            .collect();
        let tokens = Tokens::read(text.as_bytes()).unwrap();
        assert_eq!(tokens.len(), TOKENS_MAX);
        for n in [0, 1, 511, TOKENS_MAX - 1] {
            let value = format!("Bearer token-of-number-{n:08}");
            assert_eq!(whose(&tokens, &value), Some(&*format!("name{n}")));
        }
    }

    #[test]
    fn the_scheme_has_any_case_and_one_or_more_spaces() {
        let tokens = tokens();
        for scheme in ["Bearer ", "bearer ", "BEARER ", "bEaReR    "] {
            assert_eq!(whose(&tokens, &format!("{scheme}{ALICE}")), Some("alice"));
            assert_eq!(whose(&tokens, &format!("{scheme}{BOB} ")), Some("bob"));
        }
    }

    #[test]
    fn without_a_bearer_token_the_challenge_has_no_error_code() {
        let tokens = tokens();
        assert_eq!(tokens.check(None), Err(Unauthorized::Missing));
        for value in [
            "",
            " ",
            "Bearer",
            "Bearer ",
            "Bearer    ",
            "Basic YWxpY2U6eA==",
            ALICE,
            &format!("Bearer\t{ALICE}"),
            &format!("Bearer{ALICE}"),
            &format!("Bearers {ALICE}"),
            &format!("Token {ALICE}"),
        ] {
            assert_eq!(check(&tokens, value), Err(Unauthorized::Missing), "{value}");
        }
        assert_eq!(
            Unauthorized::Missing.fields(),
            b"www-authenticate: Bearer\r\n"
        );
    }

    #[test]
    fn a_token_that_is_only_nearly_right_is_invalid() {
        let tokens = tokens();
        let long = "a".repeat(TOKEN_BYTES_MAX + 1);
        for token in [
            &ALICE[1..],
            &ALICE[..ALICE.len() - 1],
            &ALICE.to_uppercase(),
            &format!("{ALICE}="),
            &format!("{ALICE} {ALICE}"),
            &format!("{ALICE}, Bearer {BOB}"),
            &format!("\"{ALICE}\""),
            "alice",
            "x",
            &long,
        ] {
            let value = format!("Bearer {token}");
            assert_eq!(
                check(&tokens, &value),
                Err(Unauthorized::Invalid),
                "{value}"
            );
        }
        assert_eq!(
            tokens.check(Some(b"Bearer \xff\xfe\0")),
            Err(Unauthorized::Invalid)
        );
    }

    #[test]
    fn the_refusal_is_json_without_an_id() {
        for refusal in [Unauthorized::Missing, Unauthorized::Invalid] {
            let body: serde_json::Value = serde_json::from_slice(&refusal.body()).unwrap();
            assert_eq!(body["error"]["code"], -32600);
            assert!(body.get("id").is_none());
            assert!(refusal.fields().ends_with(b"\r\n"));
        }
    }

    #[test]
    fn comments_blank_lines_and_any_line_ends_are_taken() {
        let text = format!("# a\r\n\r\n  \t\n \tx.Y_9-\t {ALICE} \r\n\n#{BOB}\nb {BOB}");
        let tokens = Tokens::read(text.as_bytes()).unwrap();
        assert_eq!(tokens.len(), 2);
        assert_eq!(whose(&tokens, &format!("Bearer {ALICE}")), Some("x.Y_9-"));
        assert_eq!(whose(&tokens, &format!("Bearer {BOB}")), Some("b"));
    }

    #[test]
    fn a_bad_line_is_named_by_its_number_and_never_quoted() {
        let long_name = "n".repeat(NAME_BYTES_MAX + 1);
        let long_token = "t".repeat(TOKEN_BYTES_MAX + 1);
        let padding = "=".repeat(TOKEN_BYTES_MIN);
        for (line, fault) in [
            (ALICE.to_owned(), LineFault::Form),
            (format!("carol {BOB}x # mine"), LineFault::Form),
            (format!("{long_name} {BOB}x"), LineFault::Name),
            ("ca:rol secret-0123456789".to_owned(), LineFault::Name),
            ("cärol secret-0123456789".to_owned(), LineFault::Name),
            (
                "alice secret-0123456789".to_owned(),
                LineFault::NameTwice(2),
            ),
            (format!("carol {ALICE}"), LineFault::TokenTwice(2)),
            ("carol fifteen-letters".to_owned(), LineFault::Token),
            (format!("carol {long_token}"), LineFault::Token),
            (format!("carol {padding}"), LineFault::Token),
            ("carol secret=0123456789".to_owned(), LineFault::Token),
            ("carol secret,0123456789".to_owned(), LineFault::Token),
            ("carol sécret-0123456789".to_owned(), LineFault::Token),
        ] {
            let text = format!("\nalice {ALICE}\n{line}\nbob {BOB}\n");
            let error = Tokens::read(text.as_bytes()).unwrap_err();
            assert_eq!(error, TokensError::Line { line: 3, fault }, "{line}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("line 3"), "{shown}");
            for secret in [ALICE, BOB, "secret", "fifteen"] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
        let invalid = Tokens::read(b"alice \xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe");
        let (line, fault) = (1, LineFault::Token);
        assert_eq!(invalid.unwrap_err(), TokensError::Line { line, fault });
    }

    #[test]
    fn bounds_are_inclusive() {
        let name = "n".repeat(NAME_BYTES_MAX);
        let (short, long) = ("s".repeat(TOKEN_BYTES_MIN), "l".repeat(TOKEN_BYTES_MAX));
        let tokens = Tokens::read(format!("{name} {long}\nb {short}").as_bytes()).unwrap();
        assert_eq!(whose(&tokens, &format!("Bearer {long}")), Some(&*name));
        assert_eq!(whose(&tokens, &format!("Bearer {short}")), Some("b"));
        let text: String = (0..=TOKENS_MAX)
            .map(|n| format!("n{n} 0123456789-{n:08}\n"))
            .collect();
        let (line, fault) = (TOKENS_MAX + 1, LineFault::TooMany);
        assert_eq!(
            Tokens::read(text.as_bytes()).unwrap_err(),
            TokensError::Line { line, fault }
        );
    }

    #[test]
    fn a_file_without_a_token_is_refused() {
        for text in [&b""[..], b"\n\n", b"# nobody\n"] {
            assert_eq!(Tokens::read(text).unwrap_err(), TokensError::Empty);
        }
    }

    #[test]
    fn a_name_keeps_its_id_and_one_that_was_gone_gets_a_new_one() {
        let first = tokens();
        let alice = check(&first, &format!("Bearer {ALICE}")).unwrap();
        let bob = check(&first, &format!("Bearer {BOB}")).unwrap();
        assert!(alice != bob && alice != TokenId::ANYONE && bob != TokenId::ANYONE);

        let second = first
            .reread(b"carol carol-0123456789\nalice another-0123456789")
            .unwrap();
        assert_eq!(check(&second, "Bearer another-0123456789"), Ok(alice));
        assert_eq!(
            check(&second, &format!("Bearer {ALICE}")),
            Err(Unauthorized::Invalid)
        );
        assert_eq!(second.removed_since(&first), [bob]);
        let carol = check(&second, "Bearer carol-0123456789").unwrap();
        assert!(carol != bob && carol != alice);

        let third = second
            .reread(format!("alice {ALICE}\nbob {BOB}").as_bytes())
            .unwrap();
        let bob_again = check(&third, &format!("Bearer {BOB}")).unwrap();
        assert!(bob_again != bob && bob_again != carol);
        // A shard that slept through the second reading sees it all the same.
        assert_eq!(third.removed_since(&first), [bob]);
    }

    #[test]
    fn a_token_that_moves_to_another_name_is_the_others() {
        let first = tokens();
        let alice = check(&first, &format!("Bearer {ALICE}")).unwrap();
        let swapped = first
            .reread(format!("bob {ALICE}\nalice {BOB}").as_bytes())
            .unwrap();
        assert_eq!(check(&swapped, &format!("Bearer {BOB}")), Ok(alice));
        assert!(swapped.removed_since(&first).is_empty());
        assert!(!swapped.is_same(&first));
        let sorted = first
            .reread(format!("bob {BOB}\nalice {ALICE}").as_bytes())
            .unwrap();
        assert!(sorted.is_same(&first));
    }

    #[test]
    fn every_bit_of_the_digest_counts() {
        let value = format!("Bearer {ALICE}");
        for bit in 0..256 {
            let mut tokens = tokens();
            tokens.entries[0].digest[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(check(&tokens, &value), Err(Unauthorized::Invalid), "{bit}");
        }
    }

    #[test]
    fn debug_text_shows_names_only() {
        assert_eq!(format!("{:?}", tokens()), r#"["alice", "bob"]"#);
    }
}
