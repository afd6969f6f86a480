//! Which of a route's patterns can match anything at all.

use std::ops::Bound;

use super::super::pattern::Filter;
use super::{Kind, Naming, UI, behind_ui};

impl Naming {
    /// Whether a pattern of the route's rules could match a public name, whatever the servers
    /// list. Those of resources are for templates too.
    pub fn can_match(&self, kind: Kind, pattern: &str) -> bool {
        let kinds = match kind {
            Kind::Resource => &[Kind::Resource, Kind::Template][..],
            _ => &[kind],
        };
        let Some((head, _)) = pattern.split_once('*') else {
            let mut means = kinds.iter().map(|kind| self.meaning(*kind, pattern));
            // Or it is denied with the prefix in front.
            let in_front = self.by_prefix(pattern);
            let in_front = in_front.is_some_and(|it| behind_ui(kind, &it.own).is_some());
            return in_front || means.any(|target| target.is_some());
        };
        self.unprefixed.is_some()
            || self.some_prefix_fits(kind, head)
            || self.some_alias_fits(kind, head, pattern)
    }

    /// Whether names with a prefix may begin with `head`.
    fn some_prefix_fits(&self, kind: Kind, head: &str) -> bool {
        let fits = |begin: &str| begin.starts_with(head) || head.starts_with(begin);
        self.prefixes.iter().any(|(prefix, _)| {
            fits(prefix) || behind_ui(kind, UI).is_some() && fits(&[UI, prefix].concat())
        })
    }

    /// Whether an alias matches a pattern that begins with `head`.
    fn some_alias_fits(&self, kind: Kind, head: &str, pattern: &str) -> bool {
        let filter = Filter::new(Some(&[pattern.to_owned()]), &[]);
        self.aliases.named(kind).is_some_and(|aliases| {
            let behind = aliases.range::<str, _>((Bound::Included(head), Bound::Unbounded));
            let aliases = behind.map(|(alias, _)| alias);
            let mut with_head = aliases.take_while(|alias| alias.starts_with(head));
            with_head.any(|alias| filter.allows(alias))
        })
    }
}
