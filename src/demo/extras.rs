//! The entries that the tool `grow` has added to one list, `extra-1` and so on.
//! They differ in nothing but their number, so that a number is all the state.

use super::limits::EXTRAS_MAX;

const PREFIX: &str = "extra-";

#[derive(Debug, Default)]
pub(super) struct Extras {
    count: usize,
}

impl Extras {
    /// Adds one entry and returns its name; `None` if the list is full.
    pub(super) fn add(&mut self) -> Option<String> {
        if self.count >= EXTRAS_MAX {
            return None;
        }
        self.count += 1;
        Some(format!("{PREFIX}{}", self.count))
    }

    /// True for the name of an entry that was added.
    pub(super) fn holds(&self, name: &str) -> bool {
        name.strip_prefix(PREFIX)
            .filter(|digits| !digits.starts_with(['0', '+']))
            .and_then(|digits| digits.parse::<usize>().ok())
            .is_some_and(|number| number <= self.count)
    }

    /// The names in the order in which they were added.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        (1..=self.count).map(|number| format!("{PREFIX}{number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_names_that_were_added_are_held() {
        let mut extras = Extras::default();
        assert!(!extras.holds("extra-1"));
        assert_eq!(extras.add().as_deref(), Some("extra-1"));
        assert_eq!(extras.add().as_deref(), Some("extra-2"));
        assert!(extras.names().eq(["extra-1", "extra-2"]));
        assert!(extras.names().all(|name| extras.holds(&name)));
        for name in ["extra-3", "extra-0", "extra-01", "extra-+1", "extra-", "1"] {
            assert!(!extras.holds(name), "{name}");
        }
    }

    #[test]
    fn a_full_list_takes_no_more() {
        let mut extras = Extras::default();
        assert_eq!(
            std::iter::from_fn(|| extras.add())
                .take(EXTRAS_MAX + 1)
                .count(),
            EXTRAS_MAX
        );
        assert_eq!(extras.names().count(), EXTRAS_MAX);
    }
}
