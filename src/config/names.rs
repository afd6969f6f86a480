//! What must hold between the names of a route's upstreams, so that each public name means one
//! thing.

use std::collections::BTreeMap;

use super::{Route, Upstream};
use crate::limits::PUBLIC_NAME_CHARACTERS;
use crate::routing::joined::naming::Kind;

/// A name that cannot be used, or is worth a warning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameProblem {
    /// The place of the upstream in its route.
    pub upstream: usize,
    /// If it is about an alias: its kind and its place among them.
    pub alias: Option<(Kind, usize)>,
    pub is_warning: bool,
    pub message: String,
}

/// Checks the names of a route's upstreams and their aliases against each other. Upstreams
/// without a name are passed over.
pub fn check_names(route: &Route) -> Vec<NameProblem> {
    let mut problems = Vec::new();
    check_upstreams(route, &mut problems);
    for kind in [Kind::Tool, Kind::Prompt, Kind::Resource] {
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
            // Also without prefixes: what is fine stays so when one gets a prefix.
            if covers(&other.name, name) || covers(name, &other.name) {
                wrong(
                    index,
                    format!(
                        "the upstreams {:?} and {name:?} cannot be told apart: the prefix of one begins with that of the other",
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

fn check_aliases(route: &Route, kind: Kind, problems: &mut Vec<NameProblem>) {
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
                        "the {kind} alias {public:?} of the upstream {:?} is also one of {other:?}",
                        upstream.name
                    ),
                );
            } else {
                public_names.insert(public, &upstream.name);
            }
            if let Some(other) = own_names.get(own.as_str()) {
                note(
                    false,
                    format!("the {kind} {own:?} has two aliases: {other:?} and {public:?}"),
                );
            } else {
                own_names.insert(own, public);
            }
            let length = public.chars().count();
            // URIs are not names that a model's interface would bound.
            if kind != Kind::Resource && length > PUBLIC_NAME_CHARACTERS {
                note(
                    true,
                    format!(
                        "the {kind} alias has {length} characters: many clients take no names over {PUBLIC_NAME_CHARACTERS}"
                    ),
                );
            }
        }
    }
}
