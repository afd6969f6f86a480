//! What must hold between the names of a route's upstreams, so that each public name means one
//! thing.

use std::collections::BTreeMap;

use super::{Aliases, Prefix, Route, Upstream};
use crate::limits::PUBLIC_NAME_CHARACTERS;

/// What an alias is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AliasKind {
    Tool,
    Prompt,
    /// A URI.
    Resource,
}

impl AliasKind {
    /// All kinds, in the order of [`Aliases`].
    pub const ALL: [AliasKind; 3] = [AliasKind::Tool, AliasKind::Prompt, AliasKind::Resource];

    fn word(self) -> &'static str {
        match self {
            AliasKind::Tool => "tool",
            AliasKind::Prompt => "prompt",
            AliasKind::Resource => "resource",
        }
    }
}

impl Aliases {
    /// Those of one kind.
    pub fn of(&self, kind: AliasKind) -> &[(String, String)] {
        match kind {
            AliasKind::Tool => &self.tools,
            AliasKind::Prompt => &self.prompts,
            AliasKind::Resource => &self.resources,
        }
    }
}

/// A name that cannot be used, or is worth a warning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameProblem {
    /// The place of the upstream in its route.
    pub upstream: usize,
    /// If it is about an alias: its kind and its place among them.
    pub alias: Option<(AliasKind, usize)>,
    pub is_warning: bool,
    pub message: String,
}

/// Checks the names of a route's upstreams and their aliases against each other. Upstreams
/// without a name are passed over.
pub fn check_names(route: &Route) -> Vec<NameProblem> {
    let mut problems = Vec::new();
    check_upstreams(route, &mut problems);
    for kind in AliasKind::ALL {
        check_aliases(route, kind, &mut problems);
    }
    problems
}

fn check_upstreams(route: &Route, problems: &mut Vec<NameProblem>) {
    let mut wrong = |upstream, message| {
        problems.push(NameProblem {
            upstream,
            alias: None,
            is_warning: false,
            message,
        });
    };
    let mut plain: Option<&Upstream> = None;
    for (index, upstream) in route.upstreams.iter().enumerate() {
        let name = &upstream.name;
        if name.is_empty() {
            continue;
        }
        let before = route.upstreams.iter().take(index);
        for other in before.filter(|other| !other.name.is_empty()) {
            if other.name == *name {
                wrong(
                    index,
                    format!("the route has two upstreams of the name {name:?}"),
                );
                break;
            }
            let both_have = route.has_prefix(upstream) && route.has_prefix(other);
            if both_have && (covers(&other.name, name) || covers(name, &other.name)) {
                wrong(
                    index,
                    format!(
                        "the upstreams {:?} and {name:?} cannot both have a prefix: one prefix begins with the other",
                        other.name
                    ),
                );
            }
        }
        if route.has_prefix(upstream) {
            continue;
        }
        match plain {
            None => plain = Some(upstream),
            Some(first) if first.name != *name => wrong(
                index,
                format!(
                    "the upstreams {:?} and {name:?} are both without a prefix: one of a route can be",
                    first.name
                ),
            ),
            Some(_) => {}
        }
    }
}

/// Whether the prefix of `longer` begins with that of `shorter`.
fn covers(shorter: &str, longer: &str) -> bool {
    let rest = longer.strip_prefix(shorter);
    rest.is_some_and(|rest| rest.starts_with('-'))
}

fn check_aliases(route: &Route, kind: AliasKind, problems: &mut Vec<NameProblem>) {
    let word = kind.word();
    // Public names with the upstream that has them.
    let mut public_names: BTreeMap<&str, &str> = BTreeMap::new();
    for (upstream_index, upstream) in route.upstreams.iter().enumerate() {
        // The upstream's own names with their public ones.
        let mut own_names: BTreeMap<&str, &str> = BTreeMap::new();
        for (index, (public, own)) in upstream.aliases.of(kind).iter().enumerate() {
            let mut note = |is_warning, message| {
                problems.push(NameProblem {
                    upstream: upstream_index,
                    alias: Some((kind, index)),
                    is_warning,
                    message,
                });
            };
            if let Some(other) = public_names.get(public.as_str()) {
                note(
                    false,
                    format!(
                        "the {word} alias {public:?} of the upstream {:?} is also one of {other:?}",
                        upstream.name
                    ),
                );
            } else {
                public_names.insert(public, &upstream.name);
            }
            if let Some(other) = own_names.get(own.as_str()) {
                note(
                    false,
                    format!("the {word} {own:?} has two aliases: {other:?} and {public:?}"),
                );
            } else {
                own_names.insert(own, public);
            }
            let length = public.chars().count();
            // URIs are not names that a model's interface would bound.
            if kind != AliasKind::Resource && length > PUBLIC_NAME_CHARACTERS {
                note(
                    true,
                    format!(
                        "the {word} alias has {length} characters: many clients take no names over {PUBLIC_NAME_CHARACTERS}"
                    ),
                );
            }
        }
    }
}

impl Prefix {
    pub(super) const ALL: [(&str, Prefix); 3] = [
        ("auto", Prefix::Auto),
        ("always", Prefix::Always),
        ("never", Prefix::Never),
    ];
}
