use super::*;
use proptest::prelude::*;

const KINDS: [Kind; 4] = [Kind::Tool, Kind::Prompt, Kind::Resource, Kind::Template];

fn upstream(name: &str) -> UpstreamNaming {
    UpstreamNaming {
        name: name.to_owned(),
        ..UpstreamNaming::default()
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |&(public, own): &(&str, &str)| (public.to_owned(), own.to_owned());
    pairs.iter().map(owned).collect()
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn naming(upstreams: &[UpstreamNaming]) -> Naming {
    Naming::new(upstreams, &Rules::default()).expect("names that can be told apart")
}

fn refused(upstreams: &[UpstreamNaming]) -> NamingError {
    Naming::new(upstreams, &Rules::default()).expect_err("names that clash")
}

fn target(upstream: usize, own: &str) -> Option<Target<'_>> {
    let own = own.into();
    Some(Target { upstream, own })
}

#[test]
fn names_of_upstreams_are_lower_case_words_of_32_bytes_at_most() {
    let longest = format!("a{}", "-9".repeat(15)) + "z";
    assert_eq!(longest.len(), UPSTREAM_NAME_CHARACTERS);
    for name in ["a", "a1", "a-b", "a--b", "z9-0", &longest] {
        naming(&[upstream(name)]);
    }
    let longer = format!("{longest}z");
    for name in [
        "", "A", "aB", "1a", "-a", "a-", "a_b", "a.b", "a b", "\u{e9}", "a\u{e9}", &longer,
    ] {
        let name = name.to_owned();
        assert_eq!(refused(&[upstream(&name)]), NamingError::Name(name));
    }
    assert_eq!(refused(&[]), NamingError::NoUpstream);
}

#[test]
fn names_that_cannot_be_told_apart_are_refused() {
    let same = [upstream("a"), upstream("b"), upstream("a")];
    assert_eq!(refused(&same), NamingError::SameName("a".to_owned()));
    let clash = NamingError::Prefixes("a".to_owned(), "a-b".to_owned());
    assert_eq!(refused(&[upstream("a"), upstream("a-b")]), clash);
    assert_eq!(refused(&[upstream("a-b"), upstream("a")]), clash);
    let mut bare = upstream("a-b");
    bare.prefix = Prefix::Never;
    assert_eq!(refused(&[upstream("a"), bare]), clash);
    naming(&[
        upstream("a"),
        upstream("ab"),
        upstream("a1-b"),
        upstream("b-a"),
    ]);
}

#[test]
fn a_single_upstream_has_a_prefix_only_if_it_is_to_have_one() {
    for (prefix, public) in [
        (Prefix::Auto, "x"),
        (Prefix::Never, "x"),
        (Prefix::Always, "one-x"),
    ] {
        let mut one = upstream("one");
        one.prefix = prefix;
        let naming = naming(&[one]);
        for kind in KINDS {
            assert_eq!(naming.public(kind, 0, "x").as_deref(), Some(public));
            assert_eq!(naming.resolve(kind, public), target(0, "x"));
        }
        assert_eq!(naming.is_plain(), public == "x");
        assert_eq!(naming.keeps_links(0), public == "x");
    }
}

#[test]
fn one_of_several_may_be_without_a_prefix_and_takes_what_no_prefix_names() {
    let mut two = upstream("two");
    two.prefix = Prefix::Never;
    let naming = naming(&[upstream("one"), two.clone(), upstream("three")]);
    for (public, upstream, own) in [
        ("one-x", 0, "x"),
        ("one-", 0, ""),
        ("one-one-x", 0, "one-x"),
        ("three-two-x", 2, "two-x"),
        ("one-file:///a", 0, "file:///a"),
        ("one", 1, "one"),
        ("two-x", 1, "two-x"),
        ("", 1, ""),
        ("thr", 1, "thr"),
        ("zzz", 1, "zzz"),
    ] {
        for kind in KINDS {
            assert_eq!(naming.resolve(kind, public), target(upstream, own));
            assert_eq!(naming.public(kind, upstream, own).as_deref(), Some(public));
        }
    }
    for kind in KINDS {
        let hidden = naming.listed(kind, 1, "three-x");
        assert_eq!(hidden, Err(Absent::Hidden { by: 2 }));
        assert_eq!(naming.public(kind, 3, "x"), None);
    }
    let mut three = upstream("three");
    three.prefix = Prefix::Never;
    let clash = refused(&[upstream("one"), two, three]);
    assert_eq!(
        clash,
        NamingError::NoPrefixTwice("two".to_owned(), "three".to_owned())
    );
}

#[test]
fn where_all_have_prefixes_a_name_without_one_means_nothing() {
    let naming = naming(&[upstream("one"), upstream("two")]);
    assert!(!naming.is_plain());
    for kind in KINDS {
        for public in ["", "x", "one", "onex", "three-x", "One-x", "-x"] {
            assert_eq!(naming.resolve(kind, public), None, "{public}");
        }
    }
}

#[test]
fn every_one_of_64_upstreams_is_found_by_its_prefix() {
    let names: Vec<String> = (0..64).map(|at| format!("u{at}")).collect();
    let upstreams: Vec<_> = names.iter().map(|name| upstream(name)).collect();
    let naming = naming(&upstreams);
    for (at, name) in names.iter().enumerate() {
        let public = format!("{name}-x-y");
        assert_eq!(naming.resolve(Kind::Tool, &public), target(at, "x-y"));
    }
}

#[test]
fn an_alias_is_the_only_name_and_only_of_its_kind() {
    let mut one = upstream("one");
    one.aliases.tools = pairs(&[("ask", "x"), ("two-y", "y")]);
    one.aliases.resources = pairs(&[("docs", "file:///a")]);
    let naming = naming(&[one, upstream("two")]);
    assert_eq!(naming.resolve(Kind::Tool, "ask"), target(0, "x"));
    assert_eq!(naming.resolve(Kind::Tool, "one-x"), None);
    assert_eq!(naming.public(Kind::Tool, 0, "x").as_deref(), Some("ask"));
    assert_eq!(naming.resolve(Kind::Prompt, "ask"), None);
    assert_eq!(naming.resolve(Kind::Prompt, "one-x"), target(0, "x"));
    // The alias of the one hides what the other would be called.
    assert_eq!(naming.resolve(Kind::Tool, "two-y"), target(0, "y"));
    let hidden = naming.listed(Kind::Tool, 1, "y");
    assert_eq!(hidden, Err(Absent::Hidden { by: 0 }));
    assert_eq!(
        naming.public(Kind::Prompt, 1, "y").as_deref(),
        Some("two-y")
    );
    assert_eq!(
        naming.resolve(Kind::Resource, "docs"),
        target(0, "file:///a")
    );
    assert_eq!(naming.resolve(Kind::Resource, "one-file:///a"), None);
    assert_eq!(naming.resolve(Kind::Template, "docs"), None);
    let template = naming.public(Kind::Template, 0, "file:///a");
    assert_eq!(template.as_deref(), Some("one-file:///a"));
    assert!(!naming.keeps_links(0));
}

#[test]
fn an_alias_of_an_upstream_without_prefix_replaces_its_own_name() {
    let mut one = upstream("one");
    one.aliases.prompts = pairs(&[("b", "a"), ("c", "b")]);
    let naming = naming(&[one]);
    assert!(!naming.is_plain());
    assert!(naming.keeps_links(0));
    let mut two = upstream("two");
    two.aliases.resources = pairs(&[("b", "a")]);
    assert!(!self::naming(&[two]).keeps_links(0));
    assert_eq!(naming.resolve(Kind::Prompt, "a"), None);
    assert_eq!(naming.resolve(Kind::Prompt, "b"), target(0, "a"));
    assert_eq!(naming.resolve(Kind::Prompt, "c"), target(0, "b"));
    let hidden = naming.listed(Kind::Prompt, 0, "c");
    assert_eq!(hidden, Err(Absent::Hidden { by: 0 }));
}

#[test]
fn aliases_that_clash_are_refused_and_both_are_named() {
    let with = |name: &str, tools: &[(&str, &str)]| {
        let mut made = upstream(name);
        made.aliases.tools = pairs(tools);
        made
    };
    let clash = refused(&[with("one", &[("x", "a")]), with("two", &[("x", "b")])]);
    let same = |other: &str| NamingError::SameAlias {
        kind: Kind::Tool,
        alias: "x".to_owned(),
        one: "one".to_owned(),
        other: other.to_owned(),
    };
    assert_eq!(clash, same("two"));
    assert_eq!(
        refused(&[with("one", &[("x", "a"), ("x", "b")])]),
        same("one")
    );
    let text = "the tool alias `x` stands twice, at the upstreams `one` and `two`";
    assert_eq!(clash.to_string(), text);
    let clash = refused(&[with("one", &[("x", "a"), ("y", "a")])]);
    let text = "the tool `a` of upstream `one` has two aliases, `x` and `y`";
    assert_eq!(clash.to_string(), text);
    let clash = refused(&[with("one", &[("", "a")])]);
    assert_eq!(
        clash.to_string(),
        "a tool of upstream `one` has an empty alias"
    );
    // Of different kinds, or of different upstreams, they are different things.
    let mut two = with("two", &[("y", "a")]);
    two.aliases.prompts = pairs(&[("x", "a")]);
    two.aliases.resources = pairs(&[("x", "a")]);
    naming(&[with("one", &[("x", "a")]), two]);
}

#[test]
fn what_is_denied_is_neither_listed_nor_resolved() {
    let mut one = upstream("one");
    one.rules.deny.tools = texts(&["rm*"]);
    one.rules.allow.prompts = Some(texts(&["a"]));
    one.rules.deny.resources = texts(&["file:///etc/*"]);
    let mut rules = Rules::default();
    rules.deny.tools = texts(&["two-secret"]);
    rules.allow.tools = Some(texts(&["one-*", "two-s*"]));
    let naming = Naming::new(&[one, upstream("two")], &rules).expect("a naming");
    for (kind, upstream, own, public, is_there) in [
        (Kind::Tool, 0, "ls", "one-ls", true),
        (Kind::Tool, 0, "rm", "one-rm", false),
        (Kind::Tool, 0, "rmdir", "one-rmdir", false),
        (Kind::Tool, 1, "secret", "two-secret", false),
        (Kind::Tool, 1, "secrets", "two-secrets", true),
        (Kind::Tool, 1, "rm", "two-rm", false),
        (Kind::Prompt, 0, "a", "one-a", true),
        (Kind::Prompt, 0, "b", "one-b", false),
        (Kind::Prompt, 1, "rm", "two-rm", true),
        (
            Kind::Resource,
            0,
            "file:///etc/x",
            "one-file:///etc/x",
            false,
        ),
        (
            Kind::Template,
            0,
            "file:///etc/{x}",
            "one-file:///etc/{x}",
            false,
        ),
        (Kind::Template, 0, "file:///{x}", "one-file:///{x}", true),
        (
            Kind::Resource,
            1,
            "file:///etc/x",
            "two-file:///etc/x",
            true,
        ),
    ] {
        let resolved = target(upstream, own).filter(|_| is_there);
        assert_eq!(naming.resolve(kind, public), resolved, "{public}");
        let listed = naming.listed(kind, upstream, own);
        let expected = if is_there {
            Ok(public.into())
        } else {
            Err(Absent::Denied)
        };
        assert_eq!(listed, expected, "{public}");
    }
}

#[test]
fn rules_see_aliases_where_they_are_public_and_own_names_where_they_are_not() {
    let mut one = upstream("one");
    one.aliases.tools = pairs(&[("ask", "x"), ("tell", "y"), ("say", "z")]);
    one.rules.deny.tools = texts(&["y", "ask"]);
    let mut rules = Rules::default();
    rules.deny.tools = texts(&["say", "x"]);
    let naming = Naming::new(&[one], &rules).expect("a naming");
    assert_eq!(naming.resolve(Kind::Tool, "ask"), target(0, "x"));
    assert_eq!(naming.resolve(Kind::Tool, "tell"), None);
    assert_eq!(naming.resolve(Kind::Tool, "say"), None);
    assert_eq!(naming.resolve(Kind::Prompt, "say"), target(0, "say"));
}

#[test]
fn a_rule_of_any_kind_makes_a_route_other_than_plain() {
    assert!(naming(&[upstream("one")]).is_plain());
    for change in [
        (|rules| rules.allow.tools = Some(Vec::new())) as fn(&mut Rules),
        |rules| rules.allow.resources = Some(texts(&["*"])),
        |rules| rules.deny.prompts = texts(&["x"]),
        |rules| rules.deny.resources = texts(&["*x"]),
    ] {
        let mut rules = Rules::default();
        change(&mut rules);
        let at_route = Naming::new(&[upstream("one")], &rules).expect("a naming");
        assert!(!at_route.is_plain(), "{rules:?}");
        let mut one = upstream("one");
        one.rules = rules;
        assert!(!naming(&[one]).is_plain());
    }
}

#[test]
fn a_link_has_a_public_form_whether_the_thing_exists_or_not() {
    let mut one = upstream("one");
    one.aliases.resources = pairs(&[("docs", "file:///a")]);
    one.rules.deny.resources = texts(&["file:///b"]);
    let mut two = upstream("two");
    two.prefix = Prefix::Never;
    let naming = naming(&[one, two]);
    assert_eq!(naming.link(0, "file:///a"), "docs");
    assert_eq!(naming.link(0, "file:///b"), "one-file:///b");
    assert_eq!(naming.link(0, "file:///c"), "one-file:///c");
    assert_eq!(naming.link(1, "one-x"), "one-x");
    assert_eq!(naming.link(7, "x"), "x");
    assert_eq!(naming.resource_name(0, "file:///a"), "one-file:///a");
    assert_eq!(naming.resource_name(1, "x"), "x");
    assert_eq!(naming.resource_name(7, "x"), "x");
    assert!(naming.keeps_links(1) && naming.keeps_links(7));
}

#[test]
fn a_thing_of_a_list_is_shown_by_what_changes_of_it() {
    let mut one = upstream("one");
    one.aliases.resources = pairs(&[("docs", "a")]);
    one.rules.deny.resources = texts(&["b"]);
    let mut two = upstream("two");
    two.prefix = Prefix::Never;
    let naming = naming(&[one, two]);
    let item = |key, name| Item { key, name };
    let shown = |key: &str, name: Option<&str>| {
        Ok(Shown {
            key: Some(key.to_owned()),
            name: name.map(str::to_owned),
        })
    };
    let resource = |upstream, item| naming.shown(Kind::Resource, upstream, &item);
    assert_eq!(
        resource(0, item("a", Some("n"))),
        shown("docs", Some("one-n"))
    );
    assert_eq!(resource(0, item("c", None)), shown("one-c", None));
    assert_eq!(resource(0, item("b", None)), Err(Absent::Denied));
    assert_eq!(resource(1, item("c", Some("n"))), Ok(Shown::default()));
    assert_eq!(
        resource(1, item("one-c", None)),
        Err(Absent::Hidden { by: 0 })
    );
    let names = UpstreamNames {
        naming: &naming,
        upstream: 0,
    };
    assert_eq!(names.link("a"), "docs");
    assert_eq!(names.resource_name("a"), "one-a");
    let kinds = ListKind::ALL.map(Kind::of_list);
    assert_eq!(kinds[..4], KINDS.map(Some));
    assert_eq!(kinds[4], None);
}

#[test]
fn a_name_without_change_is_not_copied() {
    let mut one = upstream("one");
    one.prefix = Prefix::Never;
    let naming = naming(&[one, upstream("two")]);
    let public = naming.public(Kind::Tool, 0, "x");
    assert!(matches!(public, Some(Cow::Borrowed("x"))));
    assert!(matches!(naming.link(0, "x"), Cow::Borrowed("x")));
    let public = "two-x";
    let own = naming.resolve(Kind::Tool, public).expect("a tool").own;
    assert!(matches!(own, Cow::Borrowed("x")));
}

#[test]
fn the_prefix_of_a_view_stands_behind_its_scheme() {
    let mut two = upstream("two");
    two.prefix = Prefix::Never;
    let naming = naming(&[upstream("one"), two]);
    for kind in [Kind::Resource, Kind::Template] {
        for (public, upstream, own) in [
            ("ui://one-a/b", 0, "ui://a/b"),
            ("ui://one-", 0, "ui://"),
            ("ui://one-one-a", 0, "ui://one-a"),
            ("one-UI://a", 0, "UI://a"),
            ("one-ui:/a", 0, "ui:/a"),
            // Nothing of the other is called so.
            ("one-ui://a", 1, "one-ui://a"),
            ("ui://a", 1, "ui://a"),
            ("ui://one", 1, "ui://one"),
        ] {
            assert_eq!(naming.resolve(kind, public), target(upstream, own));
            assert_eq!(naming.public(kind, upstream, own).as_deref(), Some(public));
        }
        let hidden = naming.listed(kind, 1, "ui://one-a");
        assert_eq!(hidden, Err(Absent::Hidden { by: 0 }));
    }
    for kind in [Kind::Tool, Kind::Prompt] {
        assert_eq!(naming.resolve(kind, "one-ui://a"), target(0, "ui://a"));
        assert_eq!(naming.resolve(kind, "ui://one-a"), target(1, "ui://one-a"));
    }
    assert_eq!(naming.link(0, "ui://a"), "ui://one-a");
    assert_eq!(naming.link(1, "ui://a"), "ui://a");
    let both = self::naming(&[upstream("one"), upstream("three")]);
    assert_eq!(both.resolve(Kind::Resource, "one-ui://a"), None);
    assert_eq!(both.resolve(Kind::Resource, "ui://a"), None);
}

/// Rules are by the names that the two sides use.
#[test]
fn a_view_that_is_denied_has_no_name() {
    let mut one = upstream("one");
    one.aliases.resources = pairs(&[("ui://short", "ui://a/b")]);
    one.rules.deny.resources = texts(&["ui://secret*"]);
    let mut rules = Rules::default();
    rules.deny.resources = texts(&["ui://two-*", "three-*"]);
    let ups = [one, upstream("two"), upstream("three")];
    let naming = Naming::new(&ups, &rules).expect("a naming");
    let view = |upstream, own| {
        let naming = &naming;
        let names = UpstreamNames { naming, upstream };
        names.view(own).map(Cow::into_owned)
    };
    assert_eq!(view(0, "ui://a"), Some("ui://one-a".to_owned()));
    assert_eq!(view(0, "ui://a/b"), Some("ui://short".to_owned()));
    assert_eq!(view(0, "ui://secret/a"), None);
    assert_eq!(view(1, "ui://a"), None);
    assert_eq!(naming.resolve(Kind::Resource, "ui://two-a"), None);
    // Denied as if its prefix stood in front.
    assert_eq!(view(2, "ui://a"), None);
    assert_eq!(naming.resolve(Kind::Resource, "ui://three-a"), None);
    assert_eq!(naming.resolve(Kind::Template, "ui://three-{a}"), None);
    assert_eq!(naming.resolve(Kind::Resource, "two-ui://a"), None);
    assert_eq!(naming.resolve(Kind::Resource, "ui://one-a/b"), None);
}

#[test]
fn patterns_that_no_public_name_can_have_are_known() {
    let mut one = upstream("one");
    one.aliases.tools = pairs(&[("ask", "x"), ("tell", "y")]);
    one.aliases.resources = pairs(&[("docs:a", "file:///a")]);
    let naming = naming(&[one.clone(), upstream("two")]);
    for (kind, pattern, can) in [
        (Kind::Tool, "delete", false),
        (Kind::Tool, "delete*", false),
        (Kind::Tool, "one", false),
        (Kind::Tool, "One-*", false),
        (Kind::Tool, "onex*", false),
        (Kind::Tool, "as", false),
        (Kind::Tool, "ask?*", false),
        // What has an alias is called by that alone.
        (Kind::Tool, "one-x", false),
        (Kind::Prompt, "one-x", true),
        (Kind::Prompt, "ask", false),
        (Kind::Tool, "two-x", true),
        (Kind::Tool, "*", true),
        (Kind::Tool, "*delete", true),
        (Kind::Tool, "t*delete", true),
        (Kind::Tool, "one*", true),
        (Kind::Tool, "one-del*", true),
        (Kind::Tool, "ask", true),
        (Kind::Tool, "a*k", true),
        (Kind::Tool, "a*x", false),
        (Kind::Resource, "file:///*", false),
        (Kind::Resource, "two-file:///*", true),
        (Kind::Resource, "docs:*", true),
        // A template of this text would have no alias.
        (Kind::Resource, "one-file:///a", true),
        (Kind::Resource, "ui://*", true),
        (Kind::Resource, "u*", true),
        (Kind::Resource, "ui://two-*", true),
        (Kind::Resource, "ui://twos*", false),
        (Kind::Resource, "two-ui://*", true),
        (Kind::Resource, "two-ui://a", true),
        (Kind::Resource, "twos-ui://a", false),
        (Kind::Resource, "two-u*", true),
        (Kind::Tool, "two-ui://*", true),
        (Kind::Tool, "ui://*", false),
    ] {
        assert_eq!(naming.can_match(kind, pattern), can, "{kind} {pattern}");
    }
    let mut two = upstream("two");
    two.prefix = Prefix::Never;
    let naming = self::naming(&[one, two]);
    for (pattern, can) in [("delete", true), ("delete*", true), ("one-x", false)] {
        assert_eq!(naming.can_match(Kind::Tool, pattern), can, "{pattern}");
    }
}

/// Names of few letters, so that they hide, begin and equal each other.
fn word() -> impl Strategy<Value = String> {
    "(ui://)?[ab-]{0,4}"
}

fn pattern() -> impl Strategy<Value = String> {
    "[ab*-]{1,3}"
}

fn some_rules() -> impl Strategy<Value = Rules> {
    let list = || prop::collection::vec(pattern(), 0..2);
    let allow = || prop::option::weighted(0.2, prop::collection::vec(pattern(), 0..4));
    ((allow(), allow(), allow()), (list(), list(), list())).prop_map(|(allow, deny)| Rules {
        allow: PerKind {
            tools: allow.0,
            prompts: allow.1,
            resources: allow.2,
        },
        deny: PerKind {
            tools: deny.0,
            prompts: deny.1,
            resources: deny.2,
        },
    })
}

fn some_upstream(name: &'static str) -> impl Strategy<Value = UpstreamNaming> {
    let aliases = || prop::collection::vec((word(), word()), 0..3);
    let prefix = prop_oneof![
        3 => Just(Prefix::Auto),
        2 => Just(Prefix::Always),
        2 => Just(Prefix::Never)
    ];
    (prefix, (aliases(), aliases(), aliases()), some_rules()).prop_map(
        move |(prefix, (tools, prompts, resources), rules)| UpstreamNaming {
            name: name.to_owned(),
            prefix,
            aliases: Aliases {
                tools,
                prompts,
                resources,
            },
            rules,
        },
    )
}

fn route() -> impl Strategy<Value = (Vec<UpstreamNaming>, Rules)> {
    let all = (
        some_upstream("a"),
        some_upstream("b"),
        some_upstream("ab"),
        1..=3_usize,
    );
    (all, some_rules()).prop_map(|((a, b, ab, count), rules)| {
        let mut upstreams = vec![a, b, ab];
        upstreams.truncate(count);
        (upstreams, rules)
    })
}

/// The rules of naming, read from the configuration without any index.
fn expected<'a>(
    upstreams: &'a [UpstreamNaming],
    rules: &Rules,
    kind: Kind,
    public: &str,
) -> Option<(usize, String)> {
    let aliases = |upstream: &'a UpstreamNaming| match kind {
        Kind::Tool => &upstream.aliases.tools[..],
        Kind::Prompt => &upstream.aliases.prompts[..],
        Kind::Resource => &upstream.aliases.resources[..],
        Kind::Template => &[],
    };
    let allows = |rules: &Rules, name: &str| {
        let (allow, deny) = match kind {
            Kind::Tool => (&rules.allow.tools, &rules.deny.tools),
            Kind::Prompt => (&rules.allow.prompts, &rules.deny.prompts),
            _ => (&rules.allow.resources, &rules.deny.resources),
        };
        Filter::new(allow.as_deref(), deny).allows(name)
    };
    let has_prefix = |upstream: &UpstreamNaming| match upstream.prefix {
        Prefix::Auto => upstreams.len() > 1,
        other => other == Prefix::Always,
    };
    let all = || upstreams.iter().enumerate();
    let alias = all().find_map(|(at, upstream)| {
        let pair = aliases(upstream).iter().find(|pair| pair.0 == public);
        pair.map(|(_, own)| (at, own.clone()))
    });
    let by_name = || {
        let is_uri = matches!(kind, Kind::Resource | Kind::Template);
        let by_prefix = all().find_map(|(at, upstream)| {
            let (scheme, rest) = match public.strip_prefix("ui://") {
                Some(rest) if is_uri => ("ui://", rest),
                _ => ("", public),
            };
            let rest = rest.strip_prefix(&upstream.name)?.strip_prefix('-')?;
            let own = format!("{scheme}{rest}");
            let is_elsewhere = is_uri && scheme.is_empty() && rest.starts_with("ui://");
            (has_prefix(upstream) && !is_elsewhere).then_some((at, own))
        });
        let bare = || {
            all()
                .find(|(_, it)| !has_prefix(it))
                .map(|(at, _)| (at, public.to_owned()))
        };
        let (at, own) = by_prefix.or_else(bare)?;
        let is_aliased = aliases(&upstreams[at]).iter().any(|pair| pair.1 == own);
        (!is_aliased).then_some((at, own))
    };
    let (at, own) = alias.or_else(by_name)?;
    let in_front = own.strip_prefix("ui://").map(|rest| {
        let (name, is_uri) = (
            &upstreams[at].name,
            kind != Kind::Tool && kind != Kind::Prompt,
        );
        let has_prefix = is_uri && has_prefix(&upstreams[at]);
        (has_prefix && *public == format!("ui://{name}-{rest}"))
            .then(|| format!("{name}-ui://{rest}"))
    });
    let denied = in_front
        .flatten()
        .is_some_and(|name| !Filter::new(None, &rules.deny.resources).allows(&name));
    (!denied && allows(rules, public) && allows(&upstreams[at].rules, &own)).then_some((at, own))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, max_global_rejects: 60_000, ..ProptestConfig::default() })]

    /// Of no pattern that matches a name is it said that it could not.
    #[test]
    fn what_matches_a_name_can_match(
        (upstreams, _) in route(),
        words in prop::collection::vec(word(), 1..6),
        pattern in "(ui://)?[ab*-]{0,4}(ui://)?[ab*-]{1,3}",
    ) {
        let naming = Naming::new(&upstreams, &Rules::default());
        prop_assume!(naming.is_ok());
        let naming = naming.expect("names that can be told apart");
        let filter = Filter::new(Some(std::slice::from_ref(&pattern)), &[]);
        let aliases = upstreams.iter().flat_map(|it| it.aliases.all().flatten());
        let aliases: Vec<_> = aliases.map(|(public, _)| public).collect();
        for kind in KINDS {
            let rules_of = match kind {
                Kind::Template => Kind::Resource,
                kind => kind,
            };
            for word in words.iter().chain(aliases.iter().copied()).chain([&pattern]) {
                for prefix in ["", "a-", "b-", "ab-", "ui://a-", "ui://ab-"] {
                    let public = format!("{prefix}{word}");
                    if naming.meaning(kind, &public).is_some() && filter.allows(&public) {
                        prop_assert!(naming.can_match(rules_of, &pattern), "{kind} {public}");
                    }
                }
            }
        }
    }

    #[test]
    fn names_resolve_to_what_they_were_made_of(
        (upstreams, rules) in route(),
        words in prop::collection::vec(word(), 1..6),
    ) {
        let naming = Naming::new(&upstreams, &rules);
        prop_assume!(naming.is_ok());
        let naming = naming.expect("names that can be told apart");
        let aliases = upstreams.iter().flat_map(|it| it.aliases.all().flatten());
        let aliases: Vec<&str> = aliases.flat_map(|(one, other)| [one.as_str(), other]).collect();
        for kind in KINDS {
            for word in words.iter().map(String::as_str).chain(aliases.iter().copied()) {
                for prefix in ["", "a-", "b-", "ab-", "ui://a-", "ui://ab-"] {
                    let public = format!("{prefix}{word}");
                    let found = naming.resolve(kind, &public);
                    let wanted = expected(&upstreams, &rules, kind, &public);
                    let said = found.clone().map(|it| (it.upstream, it.own.into_owned()));
                    prop_assert_eq!(said, wanted);
                    if let Some(Target { upstream, own }) = found {
                        let back = naming.public(kind, upstream, &own);
                        prop_assert_eq!(back.as_deref(), Some(public.as_str()));
                    }
                }
                for upstream in 0..upstreams.len() {
                    let Some(public) = naming.public(kind, upstream, word) else {
                        continue;
                    };
                    prop_assert_eq!(naming.resolve(kind, &public), target(upstream, word));
                }
            }
        }
    }
}
