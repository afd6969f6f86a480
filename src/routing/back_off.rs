//! When to start a server again that has died: at once the first time, then
//! after pauses that double, from the start again once it has lived long enough.

use super::time::Millis;

/// The first pause, milliseconds.
pub const FIRST_MS: u64 = 100;
/// The longest pause, milliseconds.
pub const LONGEST_MS: u64 = 10_000;
/// A server that lived this long died of something new, milliseconds.
pub const STEADY_MS: u64 = 10_000;

/// The pauses between restarts.
#[derive(Clone, Copy, Debug)]
pub struct BackOff {
    pause_ms: u64,
}

impl Default for BackOff {
    fn default() -> BackOff {
        BackOff { pause_ms: FIRST_MS }
    }
}

impl BackOff {
    /// The server that was ready at `ready` (`None`: it never was) has died at
    /// `now`. When to start the next.
    pub fn next_start(&mut self, ready: Option<Millis>, now: Millis) -> Millis {
        if ready.is_some_and(|ready| now.since(ready) >= STEADY_MS) {
            self.pause_ms = FIRST_MS;
        }
        let start = now.after(self.pause_ms);
        self.pause_ms = (self.pause_ms * 2).min(LONGEST_MS);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_a_steady_life_resets_them() {
        let mut back_off = BackOff::default();
        let now = Millis(1_000_000);
        let pauses: Vec<_> = (0..9)
            .map(|_| back_off.next_start(Some(now), now).since(now))
            .collect();
        assert_eq!(
            pauses,
            [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
        );
        let early = Millis(now.0 - STEADY_MS);
        assert_eq!(back_off.next_start(Some(early), now).since(now), FIRST_MS);
        assert_eq!(back_off.next_start(None, now).since(now), 2 * FIRST_MS);
    }
}
