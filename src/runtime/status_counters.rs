//! HTTP answers by status: a counter with one writer for each status that is
//! given, and one for all others. The set is closed.

use super::counters::Counter;

/// The statuses that are told apart, the most frequent first, because the search
/// is from the front.
pub const STATUSES: [u16; 18] = [
    200, 202, 204, 400, 401, 403, 404, 405, 406, 408, 413, 414, 415, 417, 431, 501, 503, 505,
];

/// Kinds of status, all others included.
pub const KINDS: usize = STATUSES.len() + 1;

/// The label of a kind in metrics.
///
/// `kind` is below [`KINDS`]; the last one is `other`.
pub fn label(kind: usize) -> &'static str {
    const LABELS: [&str; KINDS] = [
        "200", "202", "204", "400", "401", "403", "404", "405", "406", "408", "413", "414", "415",
        "417", "431", "501", "503", "505", "other",
    ];
    LABELS[kind]
}

/// The answers of one shard.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct StatusCounters {
    given: [Counter; KINDS],
}

impl StatusCounters {
    /// Counts one answer. Only the owning thread may call this.
    pub fn count(&self, status: u16) {
        let kind = STATUSES.iter().position(|&known| known == status);
        self.given[kind.unwrap_or(STATUSES.len())].add(1);
    }

    /// What was counted so far, by kind.
    pub fn read(&self) -> [u64; KINDS] {
        std::array::from_fn(|kind| self.given[kind].get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_a_status_is_its_number() {
        for (kind, status) in STATUSES.into_iter().enumerate() {
            assert_eq!(label(kind), status.to_string());
        }
        assert_eq!(label(STATUSES.len()), "other");
    }

    #[test]
    fn a_status_counts_once_and_an_unknown_one_as_other() {
        let counters = StatusCounters::default();
        for status in [200, 200, 505, 0, 418, u16::MAX] {
            counters.count(status);
        }
        let read = counters.read();
        assert_eq!((read[0], read[17], read[18]), (2, 1, 3));
        assert_eq!(read.iter().sum::<u64>(), 6);
    }
}
