//! Mutations of seeds, drawn from a number: the same number gives the same text.

/// A generator of numbers (SplitMix64).
#[derive(Debug)]
pub struct Chance(pub u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `count`; 0 if that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

/// `seed` with one to eight changes, mostly few: what is changed often is seldom read to
/// its end. `words` are of the language, `others` are seeds
/// from which it may take pieces.
pub fn mutated(
    seed: &[u8],
    words: &[Vec<u8>],
    others: &[Vec<u8>],
    bytes_max: usize,
    chance: &mut Chance,
) -> Vec<u8> {
    let mut text = seed.to_vec();
    let most = 1 << chance.below(4);
    for _ in 0..1 + chance.below(most) {
        change(&mut text, words, others, chance);
    }
    text.truncate(bytes_max);
    text
}

fn change(text: &mut Vec<u8>, words: &[Vec<u8>], others: &[Vec<u8>], chance: &mut Chance) {
    let at = chance.below(text.len() + 1);
    let length = 1 + chance.below(16);
    let to = (at + length).min(text.len());
    match chance.below(9) {
        // A bit, or any other byte.
        0 if at < text.len() => text[at] ^= 1 << chance.below(8),
        1 if at < text.len() => text[at] = chance.below(256) as u8,
        2 => text.truncate(at),
        3 => drop(text.drain(at..to)),
        4 => {
            let piece = text[at..to].repeat(1 + chance.below(3));
            insert(text, at, &piece);
        }
        5 | 6 if !words.is_empty() => {
            let word = &words[chance.below(words.len())];
            match chance.below(2) {
                0 => insert(text, at, word),
                _ => drop(text.splice(at..to, word.iter().copied())),
            }
        }
        7 if !others.is_empty() => {
            let other = &others[chance.below(others.len())];
            let from = chance.below(other.len());
            match chance.below(2) {
                0 => {
                    text.truncate(at);
                    text.extend_from_slice(&other[from..]);
                }
                _ => insert(text, at, &other[from..other.len().min(from + length)]),
            }
        }
        _ => {
            let bytes: Vec<u8> = (0..length).map(|_| chance.below(256) as u8).collect();
            insert(text, at, &bytes);
        }
    }
}

fn insert(text: &mut Vec<u8>, at: usize, piece: &[u8]) {
    text.splice(at..at, piece.iter().copied());
}

/// The words of a dictionary in libFuzzer's form: one in quotes a line, with `\\`, `\"`
/// and `\xNN`.
pub fn words(dictionary: &str) -> Vec<Vec<u8>> {
    let lines = dictionary.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(word).collect()
}

fn word(line: &str) -> Vec<u8> {
    let quoted = line.find('"').map(|from| &line[from + 1..]);
    let mut rest = quoted
        .and_then(|quoted| quoted.strip_suffix('"'))
        .unwrap_or_else(|| panic!("not in quotes: {line}"));
    let mut word = Vec::new();
    while let Some(next) = rest.chars().next() {
        let hexadecimal = rest
            .strip_prefix("\\x")
            .and_then(|digits| u8::from_str_radix(digits.get(..2)?, 16).ok());
        let (bytes, length) = match hexadecimal {
            Some(byte) => (vec![byte], 4),
            None if next == '\\' => (rest.as_bytes()[1..2].to_vec(), 2),
            None => (next.to_string().into_bytes(), next.len_utf8()),
        };
        word.extend_from_slice(&bytes);
        rest = &rest[length..];
    }
    word
}
