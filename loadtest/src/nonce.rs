//! Nonces: a text in each payload that says whose call it is. All have one form and one length, so that any of them
//! is found in any message, and requests of one kind keep their length.

use std::fmt;
use std::sync::LazyLock;

use memchr::memmem::Finder;

/// What every nonce begins with.
const PREFIX: &str = "rwlt";

/// Length of a nonce, bytes.
pub const NONCE_BYTES: usize = PREFIX.len() + 16 + 1 + 10 + 1;

static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(PREFIX));

/// The nonce of one call: its session, and which call of the session it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Nonce {
    pub session: u64,
    pub call: u64,
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}-{:010x}.", self.session, self.call)
    }
}

/// Calls `on` with every nonce in a text, and with what follows it.
pub fn find<'a>(text: &'a [u8], mut on: impl FnMut(Nonce, &'a [u8])) {
    for at in FINDER.find_iter(text) {
        if let Some(nonce) = text.get(at..at + NONCE_BYTES).and_then(read) {
            on(nonce, &text[at + NONCE_BYTES..]);
        }
    }
}

fn read(text: &[u8]) -> Option<Nonce> {
    let text = std::str::from_utf8(text)
        .ok()?
        .strip_prefix(PREFIX)?
        .strip_suffix('.')?;
    let (session, call) = text.split_once('-')?;
    Some(Nonce {
        session: u64::from_str_radix(session, 16).ok()?,
        call: u64::from_str_radix(call, 16).ok()?,
    })
}

/// Numbers that look like chance and come again with the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// True once in `odds`.
    pub fn once_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nonce_of_a_text_is_found() {
        let one = Nonce {
            session: 0xabcd,
            call: 7,
        };
        let two = Nonce {
            session: u64::MAX,
            call: 0xff_ffff_ffff,
        };
        let text = format!(
            "{{\"a\":\"{one}xx\",\"rwlt\":\"rwlt{two}{}",
            &one.to_string()[..20]
        );
        let mut found = Vec::new();
        find(text.as_bytes(), |nonce, _| found.push(nonce));
        assert_eq!(found, [one, two]);
        assert_eq!(one.to_string().len(), NONCE_BYTES);
    }
}
