//! The one source of chance: everything that happens in a run is drawn from the
//! run's seed, so a run can be repeated exactly. The fuzz target `routing` gives
//! its bytes for choices; the seed goes on where they end.

/// A generator of numbers (SplitMix64).
#[derive(Debug)]
pub(crate) struct Dice {
    state: u64,
    /// Choices that come before those of the seed, the last one first.
    pub(crate) given: Vec<u8>,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice {
            state: seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5851_f42d_4c95_7f2d,
            given: Vec::new(),
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `count`, which must not be 0.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        match self.take_given(count) {
            Some(number) => number % count,
            None => (self.next() % count as u64) as usize,
        }
    }

    /// As many of the given bytes as it takes to reach every number below `count`.
    fn take_given(&mut self, count: usize) -> Option<usize> {
        let (mut number, mut reach) = (usize::from(self.given.pop()?), 1 << 8);
        while reach < count {
            number = number << 8 | usize::from(self.given.pop().unwrap_or_default());
            reach <<= 8;
        }
        Some(number)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True so often in a hundred.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// One of these, as often as its weight says.
    pub(crate) fn weighted<T: Clone>(&mut self, from: &[(usize, T)]) -> T {
        let all: usize = from.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(all);
        for (weight, choice) in from {
            if at < *weight {
                return choice.clone();
            }
            at -= weight;
        }
        unreachable!("the weights add up")
    }
}
