//! One route of a configuration file.

use crate::hooks::redactor;
use crate::hooks::{Redactor, RedactorError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use regex::Regex;

use super::document::{Table, Value, shortened};
use super::names::check_names;
use super::schema::{KINDS, LIMITS, REDACTION, ROUTE};
use super::sources::{FileKind, Sources};
use super::upstream::{self, UpstreamPlaces};
use super::{Redaction, RedactionPlace, Route, RouteLimits, Selection};
use crate::limits::{PATTERNS_MAX, REDACTIONS_MAX, UPSTREAMS_MAX};
use crate::routing::joined::naming::{Kind, PerKind};
use crate::values;

/// For the hooks of one point to answer, where a route says nothing else.
const HOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// What takes the place of text that is found, where a redaction says nothing else.
const REPLACEMENT: &str = "[redacted]";

/// Characters of the name of a route or a redaction at most: it is a label of metrics.
const NAME_CHARACTERS_MAX: usize = 64;

/// What routes and upstreams have that say nothing else.
pub(super) struct Defaults {
    pub(super) limits: RouteLimits,
    pub(super) start_timeout: Duration,
}

/// Where the parts of a route stand that must fit to others.
pub(super) struct Places {
    /// `None`: the name is that of the path.
    pub(super) name: Option<usize>,
    pub(super) path: usize,
}

/// Reads a route. What cannot be read is noted and replaced, so that the rest is looked at too.
/// `None`: it is no table.
pub(super) fn read<'d>(
    value: &Value<'d>,
    defaults: &Defaults,
    sources: &Sources<'_>,
) -> Option<(Route, Places)> {
    let mut table = value.table(&ROUTE)?;
    let path = table.take_required("path");
    let mut places = Places {
        name: None,
        path: path.as_ref().map_or(table.at(), Value::at),
    };
    let path_text = path.as_ref().and_then(|path| path.parsed(values::path));
    let name = match table.take("name") {
        Some(name) => {
            places.name = Some(name.at());
            name.parsed(label)
        }
        None => {
            let from_path = path_text.as_deref().map(name_of_path);
            if from_path.as_ref().is_some_and(|name| label(name).is_err()) {
                table.error(format!(
                    "{}.name is missing: the path gives no name",
                    value.path()
                ));
            }
            from_path.filter(|name| label(name).is_ok())
        }
    };
    let token_file = table.take("auth-token-file");
    let hook_timeout = table.take("hook-timeout");
    let limits = table.take("limits");
    let limits = limits.map_or(Some(defaults.limits), |limits| {
        read_limits(&limits, defaults.limits)
    });
    let limits = limits.unwrap_or(defaults.limits);
    let (allow, allow_places) = selection(&mut table, "allow");
    let (deny, deny_places) = selection(&mut table, "deny");
    let redact = table.take("redact");
    let hooks = table.take("hooks");
    let upstreams = table.take_required("upstreams");
    table.finish();
    let (upstreams, upstream_places) = upstreams
        .and_then(|list| read_upstreams(&list, defaults, &limits, sources))
        .unwrap_or_default();
    let route = Route {
        name: name.unwrap_or_default(),
        path: path_text.unwrap_or_default(),
        auth_token_file: token_file.and_then(|file| {
            existing_file(&file, sources, |path| {
                let checked = sources.machine.check_tokens(path);
                checked.map_err(|fault| format!("{}: {fault}", path.display()))
            })
        }),
        hook_timeout: hook_timeout
            .and_then(|time| time.parsed(values::duration))
            .unwrap_or(HOOK_TIMEOUT),
        limits,
        allow,
        deny,
        redact: redact
            .and_then(|list| redactions(&list))
            .unwrap_or_default(),
        hooks: hooks
            .and_then(|list| hook_names(&list, sources))
            .unwrap_or_default(),
        upstreams,
    };
    note_names(value, &route, &upstream_places);
    note_patterns(&route, [&allow_places, &deny_places]);
    Some((route, places))
}

/// The name of a route that has none: its path, with `-` for the slashes inside.
fn name_of_path(path: &str) -> String {
    path.trim_matches('/').replace('/', "-")
}

/// A name for metrics and logs.
fn label(text: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match (1..=NAME_CHARACTERS_MAX).contains(&text.len()) && text.bytes().all(is_part) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "must be 1 to {NAME_CHARACTERS_MAX} characters of a-z, A-Z, 0-9, -, _ and ."
        )),
    }
}

/// The path of a file or directory.
pub(super) fn file_path(value: &Value<'_>, sources: &Sources<'_>) -> Option<PathBuf> {
    let text = value.text()?;
    if text.is_empty() || text.contains('\0') {
        value.wrong("must be the path of a file");
        return None;
    }
    Some(sources.path(text))
}

/// The path of a file without which nothing can start. `check` says what is wrong inside.
pub(super) fn existing_file(
    value: &Value<'_>,
    sources: &Sources<'_>,
    check: impl Fn(&Path) -> Result<(), String>,
) -> Option<PathBuf> {
    let path = file_path(value, sources)?;
    match sources.machine.look(&path) {
        Ok(FileKind::File) => {
            if let Err(fault) = check(&path) {
                value.wrong(fault);
            }
        }
        Ok(_) => value.wrong(format_args!("{} is not a regular file", path.display())),
        Err(error) => value.wrong(format_args!("cannot read {}: {error}", path.display())),
    }
    Some(path)
}

fn read_limits(value: &Value<'_>, defaults: RouteLimits) -> Option<RouteLimits> {
    let mut table = value.table(&LIMITS)?;
    let mut count = |key, default| {
        let value = table.take(key);
        let count = value.and_then(|value| value.count(1..=usize::MAX));
        count.unwrap_or(default)
    };
    let max_sessions = count("max-sessions", defaults.max_sessions);
    let max_calls_per_session = count("max-calls-per-session", defaults.max_calls_per_session);
    let max_subscriptions_per_session = count(
        "max-subscriptions-per-session",
        defaults.max_subscriptions_per_session,
    );
    let max_tasks_per_session = count("max-tasks-per-session", defaults.max_tasks_per_session);
    let mut time = |key, default| {
        let value = table.take(key);
        let time = value.and_then(|value| value.parsed(values::duration));
        time.unwrap_or(default)
    };
    let limits = RouteLimits {
        max_sessions,
        max_calls_per_session,
        max_subscriptions_per_session,
        max_tasks_per_session,
        request_timeout: time("request-timeout", defaults.request_timeout),
        request_timeout_max: time("request-timeout-max", defaults.request_timeout_max),
        session_ttl: time("session-ttl", defaults.session_ttl),
        session_unused_ttl: time("session-unused-ttl", defaults.session_unused_ttl),
    };
    table.finish();
    Some(limits)
}

/// Where the patterns of a selection stand, in their order.
pub(super) type SelectionPlaces<'d> = PerKind<Vec<Value<'d>>>;

/// `allow` or `deny`.
pub(super) fn selection<'d>(
    table: &mut Table<'d>,
    key: &'static str,
) -> (Selection, SelectionPlaces<'d>) {
    let mut places = SelectionPlaces::default();
    let kinds = table.take(key).and_then(|value| value.table(&KINDS));
    let Some(mut kinds) = kinds else {
        return (Selection::default(), places);
    };
    let mut patterns = |kind, places: &mut Vec<Value<'d>>| {
        let list = kinds.take(kind)?;
        let (patterns, items) = read_patterns(&list);
        *places = items;
        Some(patterns)
    };
    let selection = Selection {
        tools: patterns("tools", &mut places.tools),
        prompts: patterns("prompts", &mut places.prompts),
        resources: patterns("resources", &mut places.resources),
    };
    kinds.finish();
    (selection, places)
}

fn read_patterns<'d>(value: &Value<'d>) -> (Vec<String>, Vec<Value<'d>>) {
    let mut patterns = Vec::new();
    for (text, item) in value.texts(PATTERNS_MAX).unwrap_or_default() {
        match text {
            "" => item.wrong("a pattern must not be empty"),
            _ => patterns.push((text.to_owned(), item)),
        }
    }
    patterns.into_iter().unzip()
}

fn hook_names(value: &Value<'_>, sources: &Sources<'_>) -> Option<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for (name, item) in value.texts(REDACTIONS_MAX)? {
        if names.iter().any(|known| known == name) {
            item.wrong("the hook is named twice");
            continue;
        }
        if !sources.hooks.iter().any(|hook| hook.name() == name) {
            let name = shortened(name);
            item.wrong(match sources.hooks {
                [] => format!(
                    "there is no hook {name:?}: this program has none, only one that embeds Ringway can"
                ),
                _ => format!("there is no hook {name:?} in this program"),
            });
        }
        names.push(name.to_owned());
    }
    Some(names)
}

fn redactions(value: &Value<'_>) -> Option<Vec<Redaction>> {
    let items = value.list()?;
    if items.len() > REDACTIONS_MAX {
        value.wrong(format_args!("at most {REDACTIONS_MAX} can be used"));
        return None;
    }
    let mut redactions: Vec<Redaction> = Vec::new();
    for item in items {
        let Some((redaction, name_at)) = redaction(&item) else {
            continue;
        };
        let is_known = |other: &Redaction| other.name == redaction.name;
        if !redaction.name.is_empty() && redactions.iter().any(is_known) {
            let message = format!(
                "{}.name: {:?} is also the name of another redaction of the route",
                item.path(),
                redaction.name
            );
            item.notes().error(name_at, message);
        }
        redactions.push(redaction);
    }
    Some(redactions)
}

/// A redaction, and where its name stands.
fn redaction(value: &Value<'_>) -> Option<(Redaction, usize)> {
    let mut table = value.table(&REDACTION)?;
    let name = table.take_required("name");
    let pattern = table.take_required("pattern");
    let replacement = table.take("replacement");
    let places = table.take("in");
    table.finish();
    let name_at = name.as_ref().map_or(0, Value::at);
    let redaction = Redaction {
        name: name.and_then(|name| name.parsed(label)).unwrap_or_default(),
        pattern: pattern
            .and_then(|pattern| pattern.parsed(checked_pattern))
            .unwrap_or_default(),
        replacement: match replacement {
            Some(text) => text.text().unwrap_or_default().to_owned(),
            None => REPLACEMENT.to_owned(),
        },
        places: match places {
            Some(places) => redaction_places(&places),
            None => RedactionPlace::ALL.map(|(_, place)| place).to_vec(),
        },
    };
    if !redaction.pattern.is_empty()
        && let Err(error) = redaction.redactor()
    {
        value.wrong(error);
    }
    Some((redaction, name_at))
}

impl Redaction {
    /// What redacts.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn redactor(&self) -> Result<Redactor, RedactorError> {
        let has = |place| self.places.contains(&place);
        let places = redactor::Places {
            arguments: has(RedactionPlace::Arguments),
            results: has(RedactionPlace::Results),
            progress: has(RedactionPlace::Progress),
        };
        Redactor::new(self.name.clone(), &self.pattern, &self.replacement, places)
    }
}

impl RedactionPlace {
    const ALL: [(&str, RedactionPlace); 3] = [
        ("arguments", RedactionPlace::Arguments),
        ("results", RedactionPlace::Results),
        ("progress", RedactionPlace::Progress),
    ];
}

fn redaction_places(value: &Value<'_>) -> Vec<RedactionPlace> {
    let mut places = Vec::new();
    let Some(items) = value.list() else {
        return places;
    };
    if items.is_empty() {
        value.wrong("names no place: expected some of arguments, results, progress");
    }
    for item in items {
        let place = item.parsed(|text| choice(text, &RedactionPlace::ALL));
        places.extend(place.filter(|place| !places.contains(place)));
    }
    places
}

/// One of a few words.
pub(super) fn choice<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        format!("expected one of {}", words.join(", "))
    })
}

fn checked_pattern(text: &str) -> Result<String, String> {
    match Regex::new(text) {
        Ok(pattern) if pattern.is_match("") => {
            Err("the pattern matches empty text, so it would match everywhere".to_owned())
        }
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            // The last line says what is wrong; those before it draw the pattern.
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            let reason = last.strip_prefix("error: ").unwrap_or(last);
            Err(format!("is no regular expression: {reason}"))
        }
    }
}

type Upstreams = (Vec<super::Upstream>, Vec<UpstreamPlaces>);

fn read_upstreams(
    value: &Value<'_>,
    defaults: &Defaults,
    limits: &RouteLimits,
    sources: &Sources<'_>,
) -> Option<Upstreams> {
    let items = value.list()?;
    match items.len() {
        0 => value.wrong("there must be at least one upstream"),
        count if count > UPSTREAMS_MAX => {
            value.wrong(format_args!(
                "a route can have at most {UPSTREAMS_MAX} upstreams"
            ));
            return None;
        }
        _ => {}
    }
    let read = |item: &Value<'_>| upstream::read(item, defaults, limits, sources);
    Some(items.iter().filter_map(read).unzip())
}

/// Notes names that clash, where they stand.
fn note_names(value: &Value<'_>, route: &Route, places: &[UpstreamPlaces]) {
    let problems = check_names(route);
    // The names themselves have been looked at where they stand.
    let are_read =
        !route.upstreams.is_empty() && route.upstreams.iter().all(|it| !it.name.is_empty());
    if are_read
        && problems.iter().all(|problem| problem.is_warning)
        && let Err(error) = route.naming()
    {
        value.notes().error(value.at(), error.to_string());
    }
    for problem in problems {
        let upstream = places.get(problem.upstream);
        let at = upstream.map_or(value.at(), |upstream| match problem.alias {
            Some((kind, index)) => upstream.alias(kind, index),
            None => upstream.name,
        });
        match problem.is_warning {
            true => value.notes().warning(at, problem.message),
            false => value.notes().error(at, problem.message),
        }
    }
}

/// Notes patterns of the route that match no public name, whatever the servers list: what should
/// be denied by one would be there. Those of an upstream are by the server's own names, of which
/// nothing is known.
fn note_patterns(route: &Route, places: [&SelectionPlaces<'_>; 2]) {
    // Where names clash, that has been noted.
    let Ok(naming) = route.naming() else { return };
    let rules = [(&route.allow, false), (&route.deny, true)];
    for ((selection, denies), places) in rules.into_iter().zip(places) {
        for kind in [Kind::Tool, Kind::Prompt, Kind::Resource] {
            let patterns = selection.of(kind).iter().flatten();
            for (pattern, item) in patterns.zip(places.of(kind)) {
                if !naming.can_match(kind, pattern) {
                    let shown = shortened(pattern);
                    let message = format!(
                        "{shown:?} matches nothing: the public name of a {kind} is its alias if it has one, else it begins with the prefix of its upstream"
                    );
                    match denies {
                        true => item.wrong(message),
                        false => item.odd(message),
                    }
                }
            }
        }
    }
}
