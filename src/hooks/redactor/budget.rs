//! How long the search of one text may take, as time of its own thread: a busy machine does not
//! make a text be denied. Texts that are small and quickly searched never cost a look at a clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::walk::Fault;

/// Bytes that may be searched between two looks at the clock. Searched with the slowest of
/// patterns they take some dozen milliseconds, with others less than one.
const BYTES_PER_LOOK: usize = 1 << 20;

/// What is left of the time for one text.
pub(super) struct Budget {
    max: Duration,
    /// Bytes since the last look.
    bytes: usize,
    /// The thread's time at the first look.
    began: Option<Duration>,
}

impl Budget {
    pub(super) fn new(max: Duration) -> Budget {
        Budget {
            max,
            bytes: 0,
            began: None,
        }
    }

    /// To be called before work on at most so many bytes.
    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < BYTES_PER_LOOK {
            return Ok(());
        }
        self.bytes = 0;
        let now = thread_time();
        let began = *self.began.get_or_insert(now);
        if now.saturating_sub(began) > self.max {
            return Err(Fault::TooSlow);
        }
        Ok(())
    }
}

/// What this thread has been running for.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_texts_never_run_out() {
        let mut budget = Budget::new(Duration::ZERO);
        for _ in 0..BYTES_PER_LOOK - 1 {
            assert_eq!(budget.charge(1), Ok(()));
        }
        assert_eq!(budget.began, None);
    }

    #[test]
    fn work_without_end_runs_out_and_none_overflows() {
        let mut budget = Budget::new(Duration::ZERO);
        let mut looks = 0_u64;
        // The thread's time moves on with each look.
        while budget.charge(usize::MAX).is_ok() {
            looks += 1;
            assert!(looks < 1 << 32);
        }
        assert_ne!(looks, 0);
        let mut budget = Budget::new(Duration::from_secs(3_600));
        assert!((0..1_000).all(|_| budget.charge(BYTES_PER_LOOK) == Ok(())));
    }
}
