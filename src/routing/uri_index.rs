//! A map from URIs to values that also finds every stored URI which covers a
//! given one: equal to it, or a prefix of it that ends at a `/`, `?` or `#`.
//! The hash of a prefix is a step on the way to the hash of the whole, so one
//! pass over a URI asks for all of its prefixes, up to a number of boundaries.

use std::fmt;

use hashbrown::HashTable;
use slab::Slab;

use crate::limits::COVERING_BOUNDARIES_MAX;

/// The place of a URI in its index, valid while the entry lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UriKey(u32);

/// Values by URI.
#[derive(Debug)]
pub struct UriIndex<T> {
    entries: Slab<Entry<T>>,
    places: HashTable<u32>,
    secret: Secret,
}

#[derive(Debug)]
struct Entry<T> {
    uri: Box<str>,
    hash: u64,
    value: T,
}

impl<T> UriIndex<T> {
    /// An empty index. The secret keys the hash: who does not know it cannot
    /// choose URIs that collide.
    pub fn new(secret: u64) -> UriIndex<T> {
        UriIndex {
            entries: Slab::new(),
            places: HashTable::new(),
            secret: Secret::new(secret),
        }
    }

    /// URIs stored.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The place of this very URI.
    pub fn find(&self, uri: &str) -> Option<UriKey> {
        self.look_up(self.secret.hash(uri.as_bytes()), uri)
    }

    /// Stores a URI that is not there yet.
    pub fn insert(&mut self, uri: &str, value: T) -> UriKey {
        debug_assert!(self.find(uri).is_none(), "a URI is stored once");
        self.place(self.secret.hash(uri.as_bytes()), uri, value)
    }

    pub fn get(&self, key: UriKey) -> Option<&T> {
        let entry = self.entries.get(key.0 as usize)?;
        Some(&entry.value)
    }

    pub fn get_mut(&mut self, key: UriKey) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.0 as usize)?;
        Some(&mut entry.value)
    }

    /// The URI at a place, empty if the entry is gone.
    pub fn uri(&self, key: UriKey) -> &str {
        let entry = self.entries.get(key.0 as usize);
        entry.map_or("", |entry| &entry.uri)
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: UriKey) -> Option<(Box<str>, T)> {
        let entry = self.entries.try_remove(key.0 as usize)?;
        let table_hash = self.secret.spread(entry.hash);
        if let Ok(place) = self.places.find_entry(table_hash, |place| *place == key.0) {
            place.remove();
        }
        Some((entry.uri, entry.value))
    }

    /// Every stored URI that covers this one, the shortest first: the URI itself,
    /// and prefixes that end at one of its first [`COVERING_BOUNDARIES_MAX`]
    /// boundaries. A boundary right after the end counts: in a row of boundaries
    /// no prefix ends after the last that counts. The cost is one step a byte, at
    /// most two look-ups a boundary that counts, and the length of what is found.
    pub fn covering(&self, uri: &str, found: &mut Vec<UriKey>) {
        found.clear();
        let mut hash = EMPTY;
        let mut after_boundary = false;
        let mut boundaries = 0;
        for (end, byte) in uri.bytes().enumerate() {
            let before_boundary = is_boundary(byte);
            boundaries += usize::from(before_boundary);
            let is_end = after_boundary || before_boundary;
            if end > 0 && is_end && boundaries <= COVERING_BOUNDARIES_MAX {
                // A boundary is one byte of ASCII: a prefix that ends beside
                // it ends between two characters.
                let prefix = uri.get(..end).unwrap_or_default();
                found.extend(self.look_up(hash, prefix));
            }
            hash = self.secret.step(hash, byte);
            after_boundary = before_boundary;
        }
        found.extend(self.look_up(hash, uri));
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (UriKey, &str, &T)> {
        let entries = self.entries.iter();
        entries.map(|(place, entry)| (UriKey(place as u32), &*entry.uri, &entry.value))
    }

    fn place(&mut self, hash: u64, uri: &str, value: T) -> UriKey {
        let uri = uri.into();
        let place = self.entries.insert(Entry { uri, hash, value }) as u32;
        let UriIndex {
            entries,
            places,
            secret,
        } = self;
        places.insert_unique(secret.spread(hash), place, |other| {
            let entry = entries.get(*other as usize);
            entry.map_or(0, |entry| secret.spread(entry.hash))
        });
        UriKey(place)
    }

    fn look_up(&self, hash: u64, uri: &str) -> Option<UriKey> {
        let is_it = |place: &u32| {
            let entry = self.entries.get(*place as usize);
            entry.is_some_and(|entry| entry.hash == hash && *entry.uri == *uri)
        };
        let place = self.places.find(self.secret.spread(hash), is_it)?;
        Some(UriKey(*place))
    }
}

/// Whether `prefix` covers `uri`: it is the same, or a prefix of it that ends at a
/// boundary, be it the last of ever so many.
pub fn covers(prefix: &str, uri: &str) -> bool {
    match uri.as_bytes().strip_prefix(prefix.as_bytes()) {
        None => false,
        Some(rest) => {
            let last = prefix.as_bytes().last().copied();
            let next = rest.first().copied();
            next.is_none()
                || last.is_some_and(|last| is_boundary(last) || next.is_some_and(is_boundary))
        }
    }
}

/// Whether a URI that ends before or after this byte covers what follows.
fn is_boundary(byte: u8) -> bool {
    matches!(byte, b'/' | b'?' | b'#')
}

/// The hash of the empty text.
const EMPTY: u64 = 0;

/// 2^61 - 1, a prime: the hash is a polynomial in the bytes, modulo this.
const PRIME: u64 = (1 << 61) - 1;

/// Bases begin here, so that even the shortest texts wrap around the prime.
const BASE_MIN: u64 = 1 << 32;

/// Where the polynomial is evaluated, and what its value is mixed with.
struct Secret {
    base: u64,
    mask: u64,
}

/// The secret is not for logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    fn new(secret: u64) -> Secret {
        let base = BASE_MIN + mix(secret) % (PRIME - 1 - BASE_MIN);
        let mask = mix(!secret);
        Secret { base, mask }
    }

    /// The hash of a text that is `hash`'s and one byte more.
    fn step(&self, hash: u64, byte: u8) -> u64 {
        // Below 2^122, as both factors are below 2^61. No byte counts as 0, so
        // that texts of different lengths are different polynomials.
        let value = u128::from(hash) * u128::from(self.base) + u128::from(byte) + 1;
        // 2^61 is 1 modulo the prime: the high part counts like the low one.
        let sum = (value as u64 & PRIME) + (value >> 61) as u64;
        if sum >= PRIME { sum - PRIME } else { sum }
    }

    fn hash(&self, text: &[u8]) -> u64 {
        text.iter().fold(EMPTY, |hash, byte| self.step(hash, *byte))
    }

    /// The hash as the table needs it, every bit of use. Nothing is lost by it.
    fn spread(&self, hash: u64) -> u64 {
        mix(hash ^ self.mask)
    }
}

/// The finaliser of SplitMix64: each bit of the result depends on all bits.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn covered_by(stored: &[&str], uri: &str) -> Vec<String> {
        let mut index = UriIndex::new(7);
        for uri in stored {
            index.insert(uri, ());
        }
        let mut found = Vec::new();
        index.covering(uri, &mut found);
        found.iter().map(|key| index.uri(*key).to_owned()).collect()
    }

    #[test]
    fn a_uri_is_covered_by_itself_and_by_prefixes_that_end_at_a_boundary() {
        let stored = [
            "a:", "a:/", "a:/b", "a:/b/", "a:/bc", "a:/b?", "a:/b/c", "a:/b/c/",
        ];
        assert_eq!(
            covered_by(&stored, "a:/b/c"),
            ["a:", "a:/", "a:/b", "a:/b/", "a:/b/c"]
        );
        assert_eq!(
            covered_by(&stored, "a:/b?x"),
            ["a:", "a:/", "a:/b", "a:/b?"]
        );
        assert_eq!(covered_by(&stored, "a:/b#x"), ["a:", "a:/", "a:/b"]);
        assert_eq!(covered_by(&stored, "a:/bd"), ["a:", "a:/"]);
        assert_eq!(covered_by(&stored, "b"), [""; 0]);
    }

    #[test]
    fn the_empty_uri_covers_only_itself() {
        assert_eq!(covered_by(&["", "/"], "/"), ["/"]);
        assert_eq!(covered_by(&["", "/"], ""), [""]);
    }

    /// Lengths of what covers a URI in an index that has all of its prefixes.
    fn covering_ends(secret: u64, uri: &str) -> Vec<usize> {
        let mut index = UriIndex::new(secret);
        for end in (0..=uri.len()).filter(|end| uri.is_char_boundary(*end)) {
            index.insert(&uri[..end], end);
        }
        let mut found = Vec::new();
        index.covering(uri, &mut found);
        let ends = found.iter().map(|key| *index.get(*key).unwrap());
        ends.collect()
    }

    #[test]
    fn prefixes_are_found_up_to_the_64th_boundary_and_the_longest_uri_itself() {
        const LENGTH: usize = 8_192;
        assert_eq!(COVERING_BOUNDARIES_MAX, 64);
        // Each boundary is the end of two prefixes, one with it and one without.
        let found: Vec<usize> = (1..=64).flat_map(|n| [4 * n - 1, 4 * n]).collect();
        let uri = "abc/".repeat(LENGTH / 4);
        assert_eq!(covering_ends(7, &uri), [&found[..], &[LENGTH]].concat());
        for boundaries in [63, 64, 65] {
            let uri = format!("{}abc", "abc/".repeat(boundaries));
            let found = &found[..2 * boundaries.min(64)];
            let expected = [found, &[uri.len()]].concat();
            assert_eq!(covering_ends(7, &uri), expected, "{boundaries}");
        }
        // In a row, the boundary after an end counts too.
        for length in [63, 64, 65, 66, LENGTH] {
            let mut expected: Vec<usize> = (1..length.min(64)).collect();
            expected.push(length);
            let uri = "/".repeat(length);
            assert_eq!(covering_ends(7, &uri), expected, "{length}");
        }
    }

    #[test]
    fn a_removed_uri_is_gone_and_its_key_names_nothing() {
        let mut index = UriIndex::new(7);
        let key = index.insert("a", 1);
        let other = index.insert("b", 2);
        assert_eq!(index.remove(key), Some(("a".into(), 1)));
        assert_eq!(index.remove(key), None);
        assert_eq!((index.get(key), index.uri(key)), (None, ""));
        assert_eq!((index.find("a"), index.len()), (None, 1));
        assert_eq!(index.places.len(), 1, "nor does the table keep it");
        assert_eq!(index.get_mut(other), Some(&mut 2));
    }

    #[test]
    fn texts_of_one_hash_are_told_apart() {
        let mut index = UriIndex::new(7);
        let hash = index.secret.hash(b"a/b");
        let wrong = index.place(hash, "x", 1);
        assert_eq!(index.find("a/b"), None);
        let right = index.insert("a/b", 2);
        assert_eq!(index.find("a/b"), Some(right));
        let mut found = Vec::new();
        index.covering("a/b/c", &mut found);
        assert_eq!(found, [right]);
        assert_eq!(index.remove(wrong), Some(("x".into(), 1)));
        assert_eq!(index.find("a/b"), Some(right));
    }

    #[test]
    fn the_hash_is_the_polynomial_of_the_bytes() {
        let (secret, prime) = (Secret::new(7), u128::from(PRIME));
        let base = u128::from(secret.base);
        for text in [
            "",
            "a",
            "\0",
            "\0\0",
            "file:///a?b#c",
            &"\u{ff}/".repeat(999),
        ] {
            let expected = text.bytes().fold(0, |value, byte| {
                (value * base + u128::from(byte) + 1) % prime
            });
            assert_eq!(u128::from(secret.hash(text.as_bytes())), expected);
        }
    }

    #[test]
    fn another_secret_makes_another_hash_and_another_table() {
        let (one, two) = (Secret::new(7), Secret::new(8));
        assert_ne!(one.hash(b"ab"), two.hash(b"ab"));
        assert_ne!(one.spread(9), two.spread(9));
        for secret in [0, 1, 7, u64::MAX] {
            assert!((BASE_MIN..PRIME - 1).contains(&Secret::new(secret).base));
        }
    }

    #[test]
    fn the_table_gets_hashes_whose_upper_bits_differ() {
        let secret = Secret::new(7);
        let tops: HashSet<u64> = (0..2_000_u32)
            .map(|n| secret.spread(secret.hash(n.to_string().as_bytes())) >> 57)
            .collect();
        assert_eq!(tops.len(), 128);
    }

    fn covers(prefix: &str, uri: &str) -> bool {
        let is_boundary = |c: char| "/?#".contains(c);
        match uri.strip_prefix(prefix) {
            Some("") => true,
            Some(rest) if !prefix.is_empty() => {
                prefix.ends_with(is_boundary) || rest.starts_with(is_boundary)
            }
            _ => false,
        }
    }

    /// Whether `covering` gets as far as to this prefix: the boundaries in it and
    /// one that follows at once are not too many, or it is the URI itself.
    fn is_near(prefix: &str, uri: &str) -> bool {
        let next = uri[prefix.len()..].chars().next();
        let looked_at = prefix.chars().chain(next);
        uri == prefix || looked_at.filter(|c| "/?#".contains(*c)).count() <= 64
    }

    proptest! {
        #[test]
        fn prefixes_are_found_as_far_as_boundaries_count(
            secret: u64,
            uri in prop_oneof!["[aé/?#]{0,200}", "([aé]{1,3}[/?#]){50,80}a?"],
        ) {
            let ends = (0..=uri.len()).filter(|end| uri.is_char_boundary(*end));
            let expected: Vec<usize> = ends
                .filter(|end| covers(&uri[..*end], &uri) && is_near(&uri[..*end], &uri))
                .collect();
            prop_assert_eq!(covering_ends(secret, &uri), expected);
        }

        #[test]
        fn covering_is_what_its_definition_says(prefix in "[a/?#é]{0,4}", rest in "[a/?#é]{0,4}") {
            let uri = format!("{prefix}{rest}");
            prop_assert_eq!(super::covers(&prefix, &uri), covers(&prefix, &uri));
            prop_assert_eq!(super::covers(&uri, &prefix), covers(&uri, &prefix));
        }

        #[test]
        fn the_index_is_a_map_that_knows_who_covers_whom(
            secret: u64,
            steps in prop::collection::vec((any::<bool>(), "[aé/?#]{0,5}"), 0..200),
            asked in prop::collection::vec("[aé/?#]{0,8}", 9),
        ) {
            let (mut index, mut model) = (UriIndex::new(secret), BTreeMap::new());
            for (number, (put, uri)) in steps.into_iter().enumerate() {
                match index.find(&uri) {
                    None if put => {
                        let key = index.insert(&uri, number);
                        prop_assert!(model.insert(uri, (key, number)).is_none());
                    }
                    Some(key) if !put => {
                        let (_, number) = model.remove(&uri).unwrap();
                        prop_assert_eq!(index.remove(key), Some((uri.into(), number)));
                    }
                    found => prop_assert_eq!(found, model.get(&uri).map(|(key, _)| *key)),
                }
            }
            prop_assert_eq!(index.len(), model.len());
            let all: BTreeMap<_, _> = index
                .iter()
                .map(|(key, uri, number)| (uri.to_owned(), (key, *number)))
                .collect();
            prop_assert_eq!(&all, &model);
            let mut found = Vec::new();
            for uri in &asked {
                // In the order of the map: of two prefixes the shorter is first.
                let expected: Vec<_> = model
                    .iter()
                    .filter(|(prefix, _)| covers(prefix, uri))
                    .map(|(_, (key, _))| *key)
                    .collect();
                index.covering(uri, &mut found);
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}
