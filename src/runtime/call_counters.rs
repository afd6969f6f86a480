//! Calls by method and outcome: a table of counters with one writer. Both label
//! sets are closed, so that no client and no server can make the table grow.

use super::counters::Counter;
use crate::routing::outcome::{Method, Outcome};

/// Calls at one moment, indexed by method and outcome as enumerated.
pub type CallCounts = [[u64; Outcome::ALL.len()]; Method::ALL.len()];

/// How the calls of one shard ended.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CallCounters {
    ended: [[Counter; Outcome::ALL.len()]; Method::ALL.len()],
}

impl CallCounters {
    /// Counts one call. Only the owning thread may call this.
    pub fn count(&self, method: Method, outcome: Outcome) {
        self.ended[method as usize][outcome as usize].add(1);
    }

    /// What was counted so far.
    pub fn read(&self) -> CallCounts {
        std::array::from_fn(|method| {
            std::array::from_fn(|outcome| self.ended[method][outcome].get())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::reply::Reason;

    #[test]
    fn a_call_is_counted_in_its_own_cell_only() {
        let counters = CallCounters::default();
        counters.count(Method::ResourcesRead, Outcome::from(Reason::Draining));
        counters.count(Method::ResourcesRead, Outcome::Draining);
        let mut expected = CallCounts::default();
        expected[Method::ResourcesRead as usize][Outcome::Draining as usize] = 2;
        assert_eq!(counters.read(), expected);
    }
}
