//! The clock of the process: time since it started. The state machines get the
//! time from here and never look themselves.

use std::sync::OnceLock;

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::routing::time::{Micros, Millis};

static START: OnceLock<Timespec> = OnceLock::new();

fn since_start(clock: ClockId) -> u64 {
    let start = START.get_or_init(|| clock_gettime(ClockId::Monotonic));
    let now = clock_gettime(clock);
    let nanoseconds = (now.tv_sec - start.tv_sec) * 1_000_000_000 + (now.tv_nsec - start.tv_nsec);
    // The coarse clock may lie before the start.
    u64::try_from(nanoseconds).unwrap_or_default()
}

/// The time since the first call of this module, to the microsecond: for
/// durations.
pub fn precise() -> Micros {
    Micros(since_start(ClockId::Monotonic) / 1_000)
}

/// The same to a few milliseconds, the kernel's own tick, for a fifth of the
/// price: for deadlines. It never runs ahead of [`precise`].
pub fn now() -> Millis {
    Millis(since_start(ClockId::MonotonicCoarse) / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_never_runs_ahead() {
        for _ in 0..1_000 {
            let coarse = now();
            assert!(coarse <= precise().millis());
        }
    }
}
