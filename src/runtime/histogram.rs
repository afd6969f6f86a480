//! How long calls took: one thread records, any may read. Recording is a search
//! in a short table of whole microseconds and two plain stores; what a reader
//! sees may be a call behind, but never goes back.

use super::counters::Counter;

/// Upper bounds of the buckets, inclusive, in microseconds: 1, 2.5 and 5 of each
/// decade from 100 us to 100 s, then 300 s, the default `--request-timeout`.
pub const BOUNDS_US: [u64; 20] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    300_000_000,
];

/// Buckets, the one above the last bound included.
pub const BUCKETS: usize = BOUNDS_US.len() + 1;

/// A histogram of durations with one writer.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

impl Histogram {
    /// Records one duration in microseconds. Only the owning thread may call this.
    pub fn record(&self, us: u64) {
        self.buckets[bucket(us)].add(1);
        self.sum_us.add(us);
    }

    /// What was recorded so far.
    pub fn read(&self) -> Durations {
        Durations {
            buckets: std::array::from_fn(|index| self.buckets[index].get()),
            sum_us: self.sum_us.get(),
        }
    }
}

/// The bucket of a duration: the first whose bound is not below it.
fn bucket(us: u64) -> usize {
    BOUNDS_US.partition_point(|&bound| bound < us)
}

/// The numbers of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Durations in each bucket alone, not cumulative; the last one is above
    /// every bound.
    pub buckets: [u64; BUCKETS],
    /// All durations, in microseconds.
    pub sum_us: u64,
}

impl Durations {
    /// Durations recorded. Taken from the buckets, so that it always fits them.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_and_belong_to_their_own_bucket() {
        assert!(BOUNDS_US.is_sorted_by(|a, b| a < b));
        for (index, bound) in BOUNDS_US.into_iter().enumerate() {
            assert_eq!(bucket(bound - 1), index);
            assert_eq!(bucket(bound), index);
            assert_eq!(bucket(bound + 1), index + 1);
        }
    }

    #[test]
    fn every_duration_has_a_bucket() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BOUNDS_US.len());
    }

    #[test]
    fn what_was_recorded_is_read_once_each() {
        let histogram = Histogram::default();
        for us in [0, 100, 101, 999, 400_000_000] {
            histogram.record(us);
        }
        let durations = histogram.read();
        assert_eq!(durations.count(), 5);
        assert_eq!(durations.sum_us, 400_001_200);
        assert_eq!(durations.buckets[..4], [2, 1, 0, 1]);
        assert_eq!(durations.buckets[BOUNDS_US.len()], 1);
    }

    #[test]
    fn a_reader_never_sees_a_count_go_back() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100_000).for_each(|us| histogram.record(us)));
            let mut last = 0;
            while last < 100_000 {
                let count = histogram.read().count();
                assert!(count >= last);
                last = count;
            }
        });
    }
}
