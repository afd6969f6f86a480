//! The configuration file: TOML text to validated values. It says the same as the flags of
//! `serve`, and which routes there are with which upstreams. Nothing here reads anything but that
//! file and the files that it names, and nothing starts anything. All problems that can be
//! found are found, each with its line.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::ServerPlace;
use crate::routing::joined::naming::{Naming, NamingError, PerKind, Rules, UpstreamNaming};

mod document;
mod load;
mod names;
mod problem;
mod process;
mod route;
mod schema;
mod sources;
#[cfg(test)]
mod tests;
mod upstream;

pub use crate::routing::joined::naming::{Aliases, Prefix};
pub use load::{Loaded, load, parse};
pub use names::{NameProblem, check_names};
pub use problem::{Problem, Problems, Severity};
pub use process::Process;
pub use schema::{TableKeys, tables};
pub use sources::{FileKind, Machine, Program, Sources, ThisMachine};

/// What a configuration file says.
#[derive(Clone, PartialEq, Debug)]
pub struct File {
    pub process: Process,
    /// At least one, in the order of the file.
    pub routes: Vec<Route>,
}

/// A path of the listener, and what is served there: to clients one MCP server.
#[derive(Clone, PartialEq, Debug)]
pub struct Route {
    /// Unique in the file.
    pub name: String,
    /// Begins with `/`. Unique in the file.
    pub path: String,
    /// Bearer tokens; without it everybody may come in.
    pub auth_token_file: Option<PathBuf>,
    /// For the hooks of one point to answer.
    pub hook_timeout: Duration,
    pub limits: RouteLimits,
    /// What exists, by public names.
    pub allow: Selection,
    /// What does not exist although it is allowed, by public names.
    pub deny: Selection,
    /// In the order of the file.
    pub redact: Vec<Redaction>,
    /// Names of hooks that the program has besides, in the order in which they are asked.
    pub hooks: Vec<String>,
    /// At least one, in the order of the file, with names that are unique here.
    pub upstreams: Vec<Upstream>,
}

/// The bounds of one route, over all shards. What the route does not say is as for the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteLimits {
    pub max_sessions: usize,
    pub max_calls_per_session: usize,
    pub max_subscriptions_per_session: usize,
    /// Tasks of a session that are not finished.
    pub max_tasks_per_session: usize,
    /// Silence of the server after which a call is answered timeout.
    pub request_timeout: Duration,
    /// Age at which a call is answered timeout, whatever was heard.
    pub request_timeout_max: Duration,
    /// Silence after which a session ends.
    pub session_ttl: Duration,
    /// The same for a session that was never used after `initialize`.
    pub session_unused_ttl: Duration,
}

/// Patterns of names by kind: literal text in which `*` stands for any run of characters, also
/// for none. `None`: not named. To allow it is to allow everything, to deny it is to deny nothing.
pub type Selection = PerKind<Option<Vec<String>>>;

/// Text that is replaced in what passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redaction {
    /// In logs and metrics. Unique in the route.
    pub name: String,
    /// A regular expression that has been compiled once to see that it can be.
    pub pattern: String,
    pub replacement: String,
    /// At least one, each once.
    pub places: Vec<RedactionPlace>,
}

/// Where text is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedactionPlace {
    /// What clients send with calls.
    Arguments,
    /// What servers answer.
    Results,
    /// The messages of progress.
    Progress,
}

/// One MCP server of a route.
#[derive(Clone, PartialEq, Debug)]
pub struct Upstream {
    /// `[a-z][a-z0-9-]{0,31}`, not ending in `-`.
    pub name: String,
    pub place: ServerPlace,
    pub prefix: Prefix,
    /// Without it the route neither starts nor answers `initialize`.
    pub required: bool,
    /// For the server to answer the handshake.
    pub start_timeout: Duration,
    /// Silence of the server after which a call is answered timeout.
    pub request_timeout: Duration,
    pub aliases: Aliases,
    /// What exists, by the server's own names.
    pub allow: Selection,
    /// What does not exist although it is allowed, by the server's own names.
    pub deny: Selection,
}

/// What a route or an upstream allows and denies.
fn rules(allow: &Selection, deny: &Selection) -> Rules {
    Rules {
        allow: allow.clone(),
        deny: deny.clone().map(Option::unwrap_or_default),
    }
}

impl Upstream {
    fn naming(&self) -> UpstreamNaming {
        UpstreamNaming {
            name: self.name.clone(),
            prefix: self.prefix,
            aliases: self.aliases.clone(),
            rules: rules(&self.allow, &self.deny),
        }
    }

    /// Whether each client session has an upstream session that is its own.
    pub fn is_private(&self) -> bool {
        matches!(&self.place, ServerPlace::Http(server) if !server.is_shared)
    }
}

impl Route {
    /// How its things are named.
    ///
    /// # Errors
    /// They cannot be told apart, which [`check_names`] has found before.
    pub fn naming(&self) -> Result<Naming, NamingError> {
        let upstreams: Vec<_> = self.upstreams.iter().map(Upstream::naming).collect();
        Naming::new(&upstreams, &rules(&self.allow, &self.deny))
    }

    /// Whether things of that upstream have a prefix for clients.
    pub fn has_prefix(&self, upstream: &Upstream) -> bool {
        match upstream.prefix {
            Prefix::Auto => self.upstreams.len() > 1,
            Prefix::Always => true,
            Prefix::Never => false,
        }
    }
}
