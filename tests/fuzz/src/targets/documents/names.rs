//! What things are called on a route, written down a second time: the rules of the module
//! `naming` for a few routes of two upstreams, `one` and `two`.

use ringway::routing::joined::naming::{
    Aliases, Kind, Naming, PerKind, Prefix, Rules, UpstreamNames, UpstreamNaming,
};

/// Aliases of the routes that have some: the kind, the upstream, the public and the own name.
const ALIASES: [(Kind, usize, &str, &str); 5] = [
    (Kind::Tool, 0, "alias", "t"),
    (Kind::Tool, 1, "one-b", "b"),
    (Kind::Prompt, 1, "alias", "p"),
    (Kind::Resource, 0, "ui://alias", "ui://a"),
    (Kind::Resource, 0, "alias:a", "a"),
];

/// A route, and which of its upstreams speaks.
pub struct Route {
    pub naming: Naming,
    /// The place of the upstream that speaks.
    pub place: usize,
    prefixes: Vec<&'static str>,
    has_aliases: bool,
    has_rules: bool,
}

impl Route {
    /// The bits of `choice`: the second upstream speaks, it has no prefix, there are aliases,
    /// there are rules, there is only one upstream.
    pub fn new(choice: u8) -> Route {
        let is_one_alone = choice & 16 != 0;
        let mut route = Route {
            naming: Naming::new(&[plain("one")], &Rules::default()).expect("a route"),
            place: usize::from(choice & 1 != 0 && !is_one_alone),
            prefixes: match (is_one_alone, choice & 2 != 0) {
                (true, _) => vec![""],
                (false, true) => vec!["one-", ""],
                (false, false) => vec!["one-", "two-"],
            },
            has_aliases: choice & 4 != 0,
            has_rules: choice & 8 != 0,
        };
        let names = ["one", "two"].into_iter().zip(&route.prefixes);
        let mut upstreams: Vec<_> = names
            .map(|(name, prefix)| UpstreamNaming {
                prefix: if prefix.is_empty() {
                    Prefix::Never
                } else {
                    Prefix::Auto
                },
                ..plain(name)
            })
            .collect();
        let mut rules = Rules::default();
        if route.has_rules {
            rules.deny.tools = vec!["*-deny".into()];
            rules.deny.resources = vec!["one-ui://deny*".into()];
            for upstream in &mut upstreams {
                let all = PerKind {
                    tools: vec![],
                    prompts: vec![],
                    resources: vec!["ui://hide*".to_owned()],
                };
                upstream.rules.deny = all.map(|mut rules: Vec<String>| {
                    rules.push("hide*".into());
                    rules
                });
            }
        }
        for (kind, place, public, own) in route.aliases() {
            let aliases: &mut Aliases = &mut upstreams[place].aliases;
            let aliases = match kind {
                Kind::Tool => &mut aliases.tools,
                Kind::Prompt => &mut aliases.prompts,
                _ => &mut aliases.resources,
            };
            aliases.push((public.to_owned(), own.to_owned()));
        }
        route.naming = Naming::new(&upstreams, &rules).expect("a route");
        assert_eq!(route.naming.is_plain(), route.is_plain());
        route
    }

    /// The names of an upstream, as the route asks for them.
    pub fn names(&self, place: usize) -> UpstreamNames<'_> {
        UpstreamNames {
            naming: &self.naming,
            upstream: place,
        }
    }

    pub fn upstreams(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether all names are the same for servers and clients.
    pub fn is_plain(&self) -> bool {
        self.prefixes == [""] && !self.has_aliases && !self.has_rules
    }

    fn aliases(&self) -> impl Iterator<Item = (Kind, usize, &'static str, &'static str)> {
        let (is_any, count) = (self.has_aliases, self.prefixes.len());
        let aliases = ALIASES.into_iter();
        aliases.filter(move |(_, place, ..)| is_any && *place < count)
    }

    /// What a thing is called, denied or not.
    pub fn written(&self, kind: Kind, place: usize, own: &str) -> String {
        let mut aliases = self.aliases();
        let alias = aliases.find(|it| (it.0, it.1, it.3) == (kind, place, own));
        if let Some((.., public, _)) = alias {
            return public.to_owned();
        }
        let prefix = self.prefixes[place];
        match own.strip_prefix("ui://") {
            Some(rest) if is_uri(kind) => format!("ui://{prefix}{rest}"),
            _ => format!("{prefix}{own}"),
        }
    }

    /// What the thing is called that clients can ask for.
    pub fn public(&self, kind: Kind, place: usize, own: &str) -> Option<String> {
        let public = self.written(kind, place, own);
        let meant = self.resolved(kind, &public)?;
        (meant == (place, own.to_owned())).then_some(public)
    }

    /// What clients mean by a name.
    pub fn resolved(&self, kind: Kind, public: &str) -> Option<(usize, String)> {
        let (place, own) = self.meant(kind, public)?;
        let prefix = self.prefixes[place];
        let has_prefix_inside = is_uri(kind)
            && own.starts_with("ui://")
            && public == format!("ui://{prefix}{}", &own[5..]);
        let in_front = match has_prefix_inside {
            true => format!("{prefix}{own}"),
            false => public.to_owned(),
        };
        let is_denied = own.starts_with("hide")
            || kind == Kind::Tool && public.ends_with("-deny")
            || is_uri(kind)
                && (own.starts_with("ui://hide") || in_front.starts_with("one-ui://deny"));
        (!(self.has_rules && is_denied)).then_some((place, own))
    }

    fn meant(&self, kind: Kind, public: &str) -> Option<(usize, String)> {
        if let Some((_, place, _, own)) = self.aliases().find(|it| (it.0, it.2) == (kind, public)) {
            return Some((place, own.to_owned()));
        }
        // No name has two readings: no prefix is the beginning of another.
        let by_prefix = self
            .prefixes
            .iter()
            .enumerate()
            .find_map(|(place, prefix)| {
                if prefix.is_empty() {
                    return None;
                }
                let own = match public.strip_prefix("ui://").filter(|_| is_uri(kind)) {
                    Some(rest) => format!("ui://{}", rest.strip_prefix(prefix)?),
                    None => public.strip_prefix(prefix)?.to_owned(),
                };
                (self.written(kind, place, &own) == public).then_some((place, own))
            });
        by_prefix.or_else(|| {
            // What begins with another's prefix is that one's, also where it has an alias there.
            let place = self.prefixes.iter().position(|prefix| prefix.is_empty())?;
            let rest = public.strip_prefix("ui://").filter(|_| is_uri(kind));
            let is_others = self.prefixes.iter().any(|prefix| {
                let own = rest.unwrap_or(public).strip_prefix(prefix);
                let is_elsewhere = rest.is_none() && is_uri(kind);
                let own = own.filter(|own| !(is_elsewhere && own.starts_with("ui://")));
                own.is_some() && !prefix.is_empty()
            });
            let is_it = !is_others && self.written(kind, place, public) == public;
            is_it.then(|| (place, public.to_owned()))
        })
    }

    pub fn link(&self, place: usize, own: &str) -> String {
        self.written(Kind::Resource, place, own)
    }

    /// Of the `name` of a resource, and of the id of a task.
    pub fn with_prefix(&self, place: usize, own: &str) -> String {
        format!("{}{own}", self.prefixes[place])
    }

    pub fn task(&self, public: &str) -> Option<(usize, String)> {
        let with =
            |place: usize| Some((place, public.strip_prefix(self.prefixes[place])?.to_owned()));
        // An empty prefix is at the end.
        (0..self.prefixes.len()).find_map(with)
    }
}

fn is_uri(kind: Kind) -> bool {
    matches!(kind, Kind::Resource | Kind::Template)
}

fn plain(name: &str) -> UpstreamNaming {
    UpstreamNaming {
        name: name.into(),
        ..UpstreamNaming::default()
    }
}
