//! Patterns that names are allowed or denied by: literal text in which `*`
//! stands for any run of characters, also none. There is no other special
//! character and no escape. Matching takes time in proportion to the name,
//! whatever the pattern, since names come from clients.

use std::collections::BTreeSet;

use memchr::memmem::Finder;

/// What a name must and must not match to exist.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// `None`: everything that is not denied.
    allow: Option<Patterns>,
    deny: Patterns,
}

impl Filter {
    /// An empty `allow` list allows nothing, which is another thing than none.
    pub(super) fn new(allow: Option<&[String]>, deny: &[String]) -> Filter {
        Filter {
            allow: allow.map(Patterns::new),
            deny: Patterns::new(deny),
        }
    }

    /// Whether a thing of this name exists; what is denied does not, allowed or not.
    pub(super) fn allows(&self, name: &str) -> bool {
        let is_allowed = self.allow.as_ref().is_none_or(|it| it.match_any(name));
        is_allowed && !self.denies(name)
    }

    /// Whether a name is denied.
    pub(super) fn denies(&self, name: &str) -> bool {
        self.deny.match_any(name)
    }

    /// Whether there is no name that it keeps out by a rule.
    pub(super) fn is_open(&self) -> bool {
        self.allow.is_none() && self.deny.is_empty()
    }
}

#[derive(Debug, Default)]
struct Patterns {
    /// Those without a star, found by one search however many they are.
    exact: BTreeSet<Box<str>>,
    starred: Vec<Starred>,
}

impl Patterns {
    fn new(patterns: &[String]) -> Patterns {
        let mut all = Patterns::default();
        for pattern in patterns {
            match Starred::new(pattern) {
                Some(starred) => all.starred.push(starred),
                None => drop(all.exact.insert(pattern.as_str().into())),
            }
        }
        all
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.starred.is_empty()
    }

    fn match_any(&self, name: &str) -> bool {
        self.exact.contains(name) || self.starred.iter().any(|it| it.matches(name))
    }
}

/// A pattern with at least one star.
#[derive(Debug)]
struct Starred {
    /// What stands before the first star and behind the last one.
    head: Box<str>,
    tail: Box<str>,
    /// What stands between two stars, in order, empty pieces left out.
    middle: Vec<Finder<'static>>,
}

impl Starred {
    /// `None` if there is no star in `pattern`.
    fn new(pattern: &str) -> Option<Starred> {
        let (head, rest) = pattern.split_once('*')?;
        let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
        let pieces = middle.split('*').filter(|piece| !piece.is_empty());
        Some(Starred {
            head: head.into(),
            tail: tail.into(),
            middle: pieces.map(|it| Finder::new(it).into_owned()).collect(),
        })
    }

    /// Each piece is taken where it is found first: that leaves the most for those
    /// behind it, so nothing is ever tried again.
    fn matches(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&*self.head);
        let Some(rest) = rest.and_then(|rest| rest.strip_suffix(&*self.tail)) else {
            return false;
        };
        let mut rest = rest.as_bytes();
        for piece in &self.middle {
            let Some(found) = piece.find(rest) else {
                return false;
            };
            rest = rest.get(found + piece.needle().len()..).unwrap_or_default();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn matches(pattern: &str, name: &str) -> bool {
        Patterns::new(&texts(&[pattern])).match_any(name)
    }

    #[test]
    fn a_pattern_without_a_star_is_the_whole_name() {
        assert!(matches("read", "read"));
        for other in ["", "rea", "reads", "Read", "read "] {
            assert!(!matches("read", other), "{other}");
        }
        assert!(matches("", ""));
        assert!(!matches("", "a"));
    }

    #[test]
    fn a_star_stands_for_any_run_and_nothing_else_is_special() {
        for (pattern, yes, no) in [
            ("*", &["", "a", "a*b", "\u{e9}\n"][..], &[][..]),
            ("a*", &["a", "ab", "a*"], &["", "b", "ba"]),
            ("*a", &["a", "ba", "aa"], &["", "ab"]),
            ("a*a", &["aa", "aba", "aaa"], &["a", "ab", "baa"]),
            ("*b*", &["b", "abc"], &["", "ac"]),
            ("a**b", &["ab", "axb"], &["a", "b", "abx"]),
            ("a*b*b", &["abb", "axbxb"], &["ab", "axb", "abbx"]),
            ("*ab*ab*", &["abab", "xabxabx"], &["aba", "ab", "xaab"]),
            ("a.c*", &["a.c", "a.cd"], &["abc", "abcd"]),
            ("[a]?*", &["[a]?x"], &["a", "ax"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn the_ends_of_a_pattern_never_share_bytes_of_the_name() {
        assert!(!matches("ab*bc", "abc"));
        assert!(matches("ab*bc", "abbc"));
        assert!(!matches("ab*b*bc", "abbc"));
    }

    #[test]
    fn deny_wins_and_an_empty_allow_list_allows_nothing() {
        let open = Filter::new(None, &[]);
        assert!(open.is_open() && open.allows("a"));
        let none = Filter::new(Some(&[]), &[]);
        assert!(!none.is_open() && !none.allows("a"));
        let some = Filter::new(Some(&texts(&["a*", "b"])), &texts(&["a-x", "*y"]));
        assert!(!some.is_open());
        assert!(some.allows("a") && some.allows("b") && some.allows("a-z"));
        assert!(!some.allows("a-x") && !some.allows("ay") && !some.allows("c"));
        let denied = Filter::new(None, &texts(&["a"]));
        assert!(!denied.is_open() && !denied.allows("a") && denied.allows("b"));
    }

    /// The same by trying everything.
    fn tried(pattern: &[char], name: &[char]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some(('*', rest)) => (0..=name.len()).any(|at| tried(rest, &name[at..])),
            Some((one, rest)) => name.first() == Some(one) && tried(rest, &name[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_is_what_trying_everything_gives(
            pattern in "[ab\u{e9}*]{0,8}", name in "[ab\u{e9}]{0,10}",
        ) {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &name), tried(&chars(&pattern), &chars(&name)));
        }
    }
}
