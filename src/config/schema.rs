//! The tables of a configuration file and their keys, in one place for the reader and for the
//! test of the documentation.

use super::process::process_keys;

/// The keys of a route.
pub(super) const ROUTE: [&str; 10] = [
    "name",
    "path",
    "auth-token-file",
    "hook-timeout",
    "limits",
    "allow",
    "deny",
    "redact",
    "hooks",
    "upstreams",
];

pub(super) const LIMITS: [&str; 8] = [
    "max-sessions",
    "max-calls-per-session",
    "max-subscriptions-per-session",
    "max-tasks-per-session",
    "request-timeout",
    "request-timeout-max",
    "session-ttl",
    "session-unused-ttl",
];

/// Of `allow`, `deny` and `aliases`.
pub(super) const KINDS: [&str; 3] = ["tools", "prompts", "resources"];

pub(super) const REDACTION: [&str; 4] = ["name", "pattern", "replacement", "in"];

/// The keys of every upstream.
pub(super) const UPSTREAM: [&str; 20] = [
    "name",
    "command",
    "url",
    "prefix",
    "required",
    "start-timeout",
    "request-timeout",
    "aliases",
    "allow",
    "deny",
    "environment",
    "working-directory",
    "share",
    "ca",
    "add-headers",
    "pass-headers",
    "remove-headers",
    "connections",
    "connect-timeout",
    "idle-timeout",
];

/// Where a value stands that should not stand in the file.
pub(super) const SECRET: [&str; 2] = ["file", "env"];

/// A table and all its keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableKeys {
    /// As the documentation names it.
    pub table: &'static str,
    pub keys: Vec<String>,
}

/// All tables whose keys are fixed.
pub fn tables() -> Vec<TableKeys> {
    let of = |table, keys: &[&str]| TableKeys {
        table,
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
    };
    let mut process = process_keys();
    process.push("routes".to_owned());
    vec![
        TableKeys {
            table: "process",
            keys: process,
        },
        of("routes", &ROUTE),
        of("limits", &LIMITS),
        of("kinds", &KINDS),
        of("redact", &REDACTION),
        of("upstreams", &UPSTREAM),
        of("secret", &SECRET),
    ]
}

/// The table that has a key, for who has written it into another.
pub(super) fn table_of(key: &str) -> Option<&'static str> {
    let tables = tables().into_iter();
    // The keys of the others say little by themselves.
    let mut tables = tables.filter(|table| !["kinds", "secret"].contains(&table.table));
    let found = tables.find(|table| table.keys.iter().any(|known| known == key));
    found.map(|table| match table.table {
        "process" => "the top of the file",
        other => other,
    })
}
