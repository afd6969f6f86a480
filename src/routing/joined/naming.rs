//! What the things of several upstreams are called, both ways: the public name
//! that clients know and the name that the server itself gave. The two are
//! inverse: what [`Naming::public`] gives resolves to what it was made of, and
//! nothing else does. All names are decoded text.
//!
//! A public name is an alias, or `UPSTREAM-name`, or the server's own name where
//! an upstream has no prefix; the first of these that fits decides, whether the
//! thing exists or not. Of a URI `ui://rest` the prefix stands behind the scheme,
//! `ui://UPSTREAM-rest`: hosts of MCP Apps take no view whose URI begins otherwise. Names and URIs are compared as text: nothing is
//! normalised, so a server that takes two spellings of a URI for the same needs
//! both of them denied.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

mod reach;

use super::pattern::Filter;
use crate::limits::UPSTREAM_NAME_CHARACTERS;
use crate::wire::listing::{Item, ListKind, Shown};
use crate::wire::rename::Names;

/// What is named. Names of different kinds have nothing to do with each other,
/// but resources and templates share their patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Tool,
    Prompt,
    /// Named by its URI.
    Resource,
    /// Named by its URI template. It has no aliases.
    Template,
}

impl Kind {
    /// What a list has; tasks have no names.
    pub fn of_list(list: ListKind) -> Option<Kind> {
        match list {
            ListKind::Tools => Some(Kind::Tool),
            ListKind::Prompts => Some(Kind::Prompt),
            ListKind::Resources => Some(Kind::Resource),
            ListKind::Templates => Some(Kind::Template),
            ListKind::Tasks => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Tool => "tool",
            Kind::Prompt => "prompt",
            Kind::Resource => "resource",
            Kind::Template => "resource template",
        })
    }
}

/// When the name of an upstream stands before its things' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    /// If the route has more than one upstream.
    #[default]
    Auto,
    Always,
    Never,
}

/// Something for each kind of thing that is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerKind<T> {
    pub tools: T,
    pub prompts: T,
    /// For resources, by URI, and where templates count, for these too.
    pub resources: T,
}

/// Pairs of a public name and the server's own name.
pub type Aliases = PerKind<Vec<(String, String)>>;

/// Patterns in which `*` stands for any run of characters, also none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Where there is a list, only what it matches exists; an empty list matches
    /// nothing.
    pub allow: PerKind<Option<Vec<String>>>,
    /// What one of these matches does not exist.
    pub deny: PerKind<Vec<String>>,
}

/// How the things of one upstream are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamNaming {
    /// `[a-z][a-z0-9-]{0,31}` without a `-` at the end.
    pub name: String,
    pub prefix: Prefix,
    pub aliases: Aliases,
    /// By the server's own names.
    pub rules: Rules,
}

/// Why the names of a route cannot be told apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamingError {
    #[error("a route needs at least one upstream")]
    NoUpstream,
    #[error(
        "`{0}` cannot be the name of an upstream: 1 to 32 of a-z, 0-9 and `-`, \
         a letter first and no `-` last"
    )]
    Name(String),
    #[error("two upstreams are named `{0}`")]
    SameName(String),
    #[error("the upstreams `{0}` and `{1}` cannot be told apart: names may begin with `{0}-`")]
    Prefixes(String, String),
    #[error("the upstreams `{0}` and `{1}` are both without a prefix; only one may be")]
    NoPrefixTwice(String, String),
    #[error("a {kind} of upstream `{upstream}` has an empty alias")]
    EmptyAlias { kind: Kind, upstream: String },
    #[error("the {kind} alias `{alias}` stands twice, at the upstreams `{one}` and `{other}`")]
    SameAlias {
        kind: Kind,
        alias: String,
        one: String,
        other: String,
    },
    #[error("the {kind} `{own}` of upstream `{upstream}` has two aliases, `{one}` and `{other}`")]
    TwoAliases {
        kind: Kind,
        upstream: String,
        own: String,
        one: String,
        other: String,
    },
}

/// What a public name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The upstream's place in the configuration.
    pub upstream: usize,
    /// The server's own name.
    pub own: Cow<'a, str>,
}

/// Why a thing has no public name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It is not to exist.
    Denied,
    /// The name that it would have means a thing of this upstream.
    Hidden { by: usize },
}

/// From public names to upstreams and own names.
type ByAlias = BTreeMap<Box<str>, (usize, Box<str>)>;

/// The names of one route. It does not change while the route is served.
#[derive(Debug)]
pub struct Naming {
    /// What it was made of.
    from: (Vec<UpstreamNaming>, Rules),
    upstreams: Vec<Upstream>,
    /// Each `NAME-` with its upstream, sorted. None is the beginning of another.
    prefixes: Vec<(Box<str>, usize)>,
    unprefixed: Option<usize>,
    /// Public names that are aliases.
    aliases: PerKind<ByAlias>,
    /// By public names.
    filters: PerKind<Filter>,
    is_plain: bool,
}

#[derive(Debug)]
struct Upstream {
    /// Empty, or the name with `-`.
    prefix: Box<str>,
    /// From own names to aliases.
    aliases: PerKind<BTreeMap<Box<str>, Box<str>>>,
    /// By own names.
    filters: PerKind<Filter>,
}

impl Upstream {
    /// Of a URI whose prefix stands behind `ui://`: the same with the prefix in front, as it is
    /// with all other URIs.
    fn prefix_in_front(&self, kind: Kind, public: &str, own: &str) -> Option<String> {
        let own = behind_ui(kind, own)?;
        let rest = behind_ui(kind, public)?.strip_prefix(&*self.prefix)?;
        let has_prefix = rest == own && !self.prefix.is_empty();
        has_prefix.then(|| [&*self.prefix, UI, own].concat())
    }
}

impl Naming {
    /// The naming of a route with these upstreams, whose `rules` are by public names.
    pub fn new(upstreams: &[UpstreamNaming], rules: &Rules) -> Result<Naming, NamingError> {
        check_names(upstreams)?;
        let is_single = upstreams.len() == 1;
        let mut naming = Naming {
            from: (upstreams.to_vec(), rules.clone()),
            upstreams: Vec::with_capacity(upstreams.len()),
            prefixes: Vec::new(),
            unprefixed: None,
            aliases: PerKind::default(),
            filters: filters(rules),
            is_plain: false,
        };
        for (index, upstream) in upstreams.iter().enumerate() {
            let has_prefix = match upstream.prefix {
                Prefix::Auto => !is_single,
                Prefix::Always => true,
                Prefix::Never => false,
            };
            let mut prefix: Box<str> = Box::default();
            if has_prefix {
                prefix = format!("{}-", upstream.name).into();
                naming.prefixes.push((prefix.clone(), index));
            } else if let Some(one) = naming.unprefixed.replace(index) {
                let one = name_of(upstreams, one);
                return Err(NamingError::NoPrefixTwice(one, upstream.name.clone()));
            }
            naming.upstreams.push(Upstream {
                prefix,
                aliases: PerKind::default(),
                filters: filters(&upstream.rules),
            });
            for kind in [Kind::Tool, Kind::Prompt, Kind::Resource] {
                naming.add_aliases(kind, upstreams, index)?;
            }
        }
        naming.prefixes.sort_unstable();
        naming.is_plain = is_single && naming.changes_nothing();
        Ok(naming)
    }

    /// Whether every name is the same there.
    pub fn is_same(&self, other: &Naming) -> bool {
        self.from == other.from
    }

    fn add_aliases(
        &mut self,
        kind: Kind,
        upstreams: &[UpstreamNaming],
        index: usize,
    ) -> Result<(), NamingError> {
        let (Some(given), Some(upstream)) = (upstreams.get(index), self.upstreams.get_mut(index))
        else {
            return Ok(());
        };
        let (Some(pairs), Some(aliases), Some(by_own)) = (
            given.aliases.named(kind),
            self.aliases.named_mut(kind),
            upstream.aliases.named_mut(kind),
        ) else {
            return Ok(());
        };
        for (public, own) in pairs {
            if public.is_empty() {
                let upstream = given.name.clone();
                return Err(NamingError::EmptyAlias { kind, upstream });
            }
            match aliases.entry(public.as_str().into()) {
                Entry::Vacant(entry) => drop(entry.insert((index, own.as_str().into()))),
                Entry::Occupied(entry) => {
                    return Err(NamingError::SameAlias {
                        kind,
                        alias: public.clone(),
                        one: name_of(upstreams, entry.get().0),
                        other: given.name.clone(),
                    });
                }
            }
            if let Some(one) = by_own.insert(own.as_str().into(), public.as_str().into()) {
                return Err(NamingError::TwoAliases {
                    kind,
                    upstream: given.name.clone(),
                    own: own.clone(),
                    one: one.into(),
                    other: public.clone(),
                });
            }
        }
        Ok(())
    }

    fn changes_nothing(&self) -> bool {
        let filters = self.upstreams.iter().map(|upstream| &upstream.filters);
        self.prefixes.is_empty()
            && self.aliases.all().all(BTreeMap::is_empty)
            && filters
                .chain([&self.filters])
                .all(|of| of.all().all(Filter::is_open))
    }

    /// Whether there is one upstream and every name is public as the server gave it.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Whether [`Naming::link`] and [`Naming::resource_name`] give back every name of
    /// this upstream as it is.
    pub fn keeps_links(&self, upstream: usize) -> bool {
        let upstream = self.upstreams.get(upstream);
        upstream.is_none_or(|it| it.prefix.is_empty() && it.aliases.resources.is_empty())
    }

    /// What a public name means. `None`: there is no such thing, or it is denied.
    pub fn resolve<'a>(&'a self, kind: Kind, public: &'a str) -> Option<Target<'a>> {
        let target = self.meaning(kind, public)?;
        self.is_allowed(kind, public, &target).then_some(target)
    }

    /// The public name of a thing. `None`: it is denied, or another thing hides it.
    pub fn public<'a>(&'a self, kind: Kind, upstream: usize, own: &'a str) -> Option<Cow<'a, str>> {
        self.listed(kind, upstream, own).ok()
    }

    /// The public name of a thing, or why it has none. An upstream that there is not
    /// has nothing, as if denied.
    pub fn listed<'a>(
        &'a self,
        kind: Kind,
        upstream: usize,
        own: &'a str,
    ) -> Result<Cow<'a, str>, Absent> {
        let public = self.written(kind, upstream, own).ok_or(Absent::Denied)?;
        let thing = Target {
            upstream,
            own: Cow::Borrowed(own),
        };
        if !self.is_allowed(kind, &public, &thing) {
            return Err(Absent::Denied);
        }
        match self.meaning(kind, &public) {
            Some(meant) if meant == thing => Ok(public),
            Some(meant) => Err(Absent::Hidden { by: meant.upstream }),
            // An aliased thing of an upstream is what its prefixed name would mean, and
            // `written` gave the alias of an aliased one: not reached.
            None => Err(Absent::Denied),
        }
    }

    /// What a thing is called in a list, or why it is not in it.
    pub fn shown(&self, kind: Kind, upstream: usize, item: &Item<'_>) -> Result<Shown, Absent> {
        let changed = |public: Cow<'_, str>, own: &str| match public == own {
            true => None,
            false => Some(public.into_owned()),
        };
        Ok(Shown {
            key: changed(self.listed(kind, upstream, item.key)?, item.key),
            name: item
                .name
                .and_then(|own| changed(self.resource_name(upstream, own), own)),
        })
    }

    /// The form that clients see of a URI which an upstream mentions, be it of a thing
    /// that exists or not: links in content are not filtered. Whether the URI can be
    /// read is found out by [`Naming::resolve`] when it is.
    pub fn link<'a>(&'a self, upstream: usize, own: &'a str) -> Cow<'a, str> {
        let public = self.written(Kind::Resource, upstream, own);
        public.unwrap_or(Cow::Borrowed(own))
    }

    /// The form that clients see of the `name` of a resource, template or link. Nothing
    /// is found by it, so it has a prefix at most.
    pub fn resource_name<'a>(&self, upstream: usize, own: &'a str) -> Cow<'a, str> {
        match self.upstreams.get(upstream) {
            Some(upstream) => prefixed(&upstream.prefix, own),
            None => Cow::Borrowed(own),
        }
    }

    /// The id by which clients know a task of an upstream.
    pub fn public_task<'a>(&self, upstream: usize, own: &'a str) -> Cow<'a, str> {
        self.resource_name(upstream, own)
    }

    /// Whose task clients mean by an id.
    pub fn task<'a>(&self, public: &'a str) -> Option<Target<'a>> {
        if let Some(target) = self.by_prefix(public) {
            return Some(target);
        }
        Some(Target {
            upstream: self.unprefixed?,
            own: Cow::Borrowed(public),
        })
    }

    /// Whether clients know tasks of this upstream by other ids than it does.
    pub fn renames_tasks(&self, upstream: usize) -> bool {
        let upstream = self.upstreams.get(upstream);
        upstream.is_some_and(|it| !it.prefix.is_empty())
    }

    /// The name that a thing has if nothing hides or denies it.
    fn written<'a>(&'a self, kind: Kind, upstream: usize, own: &'a str) -> Option<Cow<'a, str>> {
        let upstream = self.upstreams.get(upstream)?;
        if let Some(alias) = upstream.alias(kind, own) {
            return Some(Cow::Borrowed(alias));
        }
        match behind_ui(kind, own) {
            Some(rest) if !upstream.prefix.is_empty() => {
                Some(Cow::Owned([UI, &*upstream.prefix, rest].concat()))
            }
            _ => Some(prefixed(&upstream.prefix, own)),
        }
    }

    /// What a public name means, denied or not.
    fn meaning<'a>(&'a self, kind: Kind, public: &'a str) -> Option<Target<'a>> {
        if let Some((upstream, own)) = self.aliases.named(kind).and_then(|it| it.get(public)) {
            return Some(Target {
                upstream: *upstream,
                own: Cow::Borrowed(own),
            });
        }
        let target = match self.by_prefix_of(kind, public) {
            Some(target) => target,
            None => Target {
                upstream: self.unprefixed?,
                own: Cow::Borrowed(public),
            },
        };
        // What has an alias is known by that alone.
        let upstream = self.upstreams.get(target.upstream)?;
        let has_alias = upstream.alias(kind, &target.own).is_some();
        (!has_alias).then_some(target)
    }

    /// The same by the prefix alone, at the place that it has in names of this kind.
    fn by_prefix_of<'a>(&self, kind: Kind, public: &'a str) -> Option<Target<'a>> {
        let Some(rest) = behind_ui(kind, public) else {
            let target = self.by_prefix(public)?;
            // Its prefix would stand elsewhere.
            return behind_ui(kind, &target.own).is_none().then_some(target);
        };
        let target = self.by_prefix(rest)?;
        Some(Target {
            upstream: target.upstream,
            own: Cow::Owned([UI, &*target.own].concat()),
        })
    }

    /// No prefix is the beginning of another, so the one that `public` begins with, if
    /// any, is the last of those that sort before it.
    fn by_prefix<'a>(&self, public: &'a str) -> Option<Target<'a>> {
        let behind = self.prefixes.partition_point(|(it, _)| **it <= *public);
        let (prefix, upstream) = self.prefixes.get(behind.checked_sub(1)?)?;
        Some(Target {
            upstream: *upstream,
            own: Cow::Borrowed(public.strip_prefix(&**prefix)?),
        })
    }

    fn is_allowed(&self, kind: Kind, public: &str, target: &Target<'_>) -> bool {
        let Some(upstream) = self.upstreams.get(target.upstream) else {
            return false;
        };
        let filter = self.filters.of(kind);
        // Who denies `NAME-*` means all of that server.
        let in_front = upstream.prefix_in_front(kind, public, &target.own);
        filter.allows(public)
            && in_front.is_none_or(|name| !filter.denies(&name))
            && upstream.filters.of(kind).allows(&target.own)
    }
}

/// The names of one upstream's resources, for what it says.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamNames<'n> {
    pub naming: &'n Naming,
    pub upstream: usize,
}

impl Names for UpstreamNames<'_> {
    fn link<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        self.naming.link(self.upstream, own)
    }

    fn resource_name<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        self.naming.resource_name(self.upstream, own)
    }

    fn view<'a>(&'a self, own: &'a str) -> Option<Cow<'a, str>> {
        self.naming.public(Kind::Resource, self.upstream, own)
    }
}

impl Upstream {
    fn alias(&self, kind: Kind, own: &str) -> Option<&str> {
        self.aliases.named(kind)?.get(own).map(|alias| &**alias)
    }
}

impl<T> PerKind<T> {
    /// The same for each kind.
    pub fn map<U>(self, mut make: impl FnMut(T) -> U) -> PerKind<U> {
        PerKind {
            tools: make(self.tools),
            prompts: make(self.prompts),
            resources: make(self.resources),
        }
    }

    /// That which counts for `kind`; templates go with resources.
    pub fn of(&self, kind: Kind) -> &T {
        match kind {
            Kind::Tool => &self.tools,
            Kind::Prompt => &self.prompts,
            Kind::Resource | Kind::Template => &self.resources,
        }
    }

    /// The same for names that stand for one thing, of which templates have none.
    fn named(&self, kind: Kind) -> Option<&T> {
        (kind != Kind::Template).then(|| self.of(kind))
    }

    fn named_mut(&mut self, kind: Kind) -> Option<&mut T> {
        match kind {
            Kind::Tool => Some(&mut self.tools),
            Kind::Prompt => Some(&mut self.prompts),
            Kind::Resource => Some(&mut self.resources),
            Kind::Template => None,
        }
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        [&self.tools, &self.prompts, &self.resources].into_iter()
    }
}

/// How the URIs of the views of MCP Apps begin.
const UI: &str = "ui://";

/// What stands behind the scheme of such a URI.
fn behind_ui(kind: Kind, text: &str) -> Option<&str> {
    match kind {
        Kind::Resource | Kind::Template => text.strip_prefix(UI),
        Kind::Tool | Kind::Prompt => None,
    }
}

fn prefixed<'a>(prefix: &str, own: &'a str) -> Cow<'a, str> {
    if prefix.is_empty() {
        return Cow::Borrowed(own);
    }
    Cow::Owned([prefix, own].concat())
}

fn filters(rules: &Rules) -> PerKind<Filter> {
    let Rules { allow, deny } = rules;
    PerKind {
        tools: Filter::new(allow.tools.as_deref(), &deny.tools),
        prompts: Filter::new(allow.prompts.as_deref(), &deny.prompts),
        resources: Filter::new(allow.resources.as_deref(), &deny.resources),
    }
}

/// All prefixes that there could be must differ, also of those that have none: a
/// name that is fine stays so when a prefix is configured.
fn check_names(upstreams: &[UpstreamNaming]) -> Result<(), NamingError> {
    if upstreams.is_empty() {
        return Err(NamingError::NoUpstream);
    }
    for (index, UpstreamNaming { name, .. }) in upstreams.iter().enumerate() {
        if !is_upstream_name(name) {
            return Err(NamingError::Name(name.clone()));
        }
        for UpstreamNaming { name: other, .. } in upstreams.iter().take(index) {
            if other == name {
                return Err(NamingError::SameName(name.clone()));
            }
            for (short, long) in [(name, other), (other, name)] {
                let rest = long.strip_prefix(short.as_str());
                if rest.is_some_and(|rest| rest.starts_with('-')) {
                    return Err(NamingError::Prefixes(short.clone(), long.clone()));
                }
            }
        }
    }
    Ok(())
}

/// Whether an upstream can have this name: `[a-z][a-z0-9-]{0,31}` without a `-` at the end.
/// They become part of URI schemes, which clients write in lower case.
pub fn is_upstream_name(name: &str) -> bool {
    let is_inside = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    name.len() <= UPSTREAM_NAME_CHARACTERS
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(is_inside)
        && !name.ends_with('-')
}

fn name_of(upstreams: &[UpstreamNaming], index: usize) -> String {
    let upstream = upstreams.get(index);
    upstream.map(|it| it.name.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
