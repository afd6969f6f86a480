//! The routes of a configuration file as they are in force: which upstream has which seat, and
//! what becomes of them when the file is read again.

use std::path::PathBuf;
use std::sync::Arc;

use super::seat::{SeatSettings, milliseconds};
use crate::cli::ServerPlace;
use crate::config::{self, Process, RedactionPlace};
use crate::hooks::redactor::Places;
use crate::hooks::{Chain, Hook, Pool, Redactor};
use crate::http::auth::Tokens;
use crate::http::ground::Pass;
use crate::http::joined::{Hooks, RouteSettings, UpstreamSettings};
use crate::http::token_file::{TokenCell, TokenFile, TokenFileError};
use crate::limits::{HOOK_POOL, HOOK_REWRITE_BYTES_MAX};
use crate::routing::joined::SeatId;
use crate::routing::joined::naming::{Naming, PerKind, Prefix, Rules, UpstreamNaming};
use crate::routing::joined::sessions::SessionLimits;
use crate::routing::shard::ShardLimits;

/// A route that is in force.
#[derive(Debug)]
pub(super) struct RouteInForce {
    pub(super) name: String,
    pub(super) upstreams: Vec<PlacedUpstream>,
    pub(super) tokens: RouteTokens,
}

/// An upstream and its seat.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PlacedUpstream {
    pub(super) name: String,
    pub(super) seat: SeatId,
    pub(super) settings: SeatSettings,
}

/// Gives every upstream of a file its seat, in the order of the file: the one that it has if what
/// its seat is made of is the same, else a new one.
pub(super) fn place(
    file: &config::File,
    process: &Process,
    before: &[RouteInForce],
    next: &mut u32,
) -> Vec<Vec<PlacedUpstream>> {
    let routes = file.routes.iter().map(|route| {
        let known = before.iter().find(|known| known.name == route.name);
        let known = known.map_or(&[][..], |known| &known.upstreams);
        let upstreams = route.upstreams.iter().map(|upstream| {
            let settings = seat_settings(process, route, upstream);
            let is_same =
                |it: &&PlacedUpstream| it.name == upstream.name && it.settings == settings;
            if let Some(same) = known.iter().find(is_same) {
                return same.clone();
            }
            let seat = SeatId(*next);
            *next += 1;
            PlacedUpstream {
                name: upstream.name.clone(),
                seat,
                settings,
            }
        });
        upstreams.collect()
    });
    routes.collect()
}

/// What the seat of an upstream is made of.
fn seat_settings(
    process: &Process,
    route: &config::Route,
    upstream: &config::Upstream,
) -> SeatSettings {
    let limits = &route.limits;
    SeatSettings {
        place: upstream.place.clone(),
        limits: ShardLimits {
            sessions_max: limits.max_sessions.div_ceil(process.shards),
            calls_per_session_max: limits.max_calls_per_session,
            subscriptions_per_session_max: limits.max_subscriptions_per_session,
            tasks_per_session_max: limits.max_tasks_per_session,
            request_timeout_ms: milliseconds(upstream.request_timeout),
            request_timeout_max_ms: milliseconds(limits.request_timeout_max),
            session_ttl_ms: milliseconds(limits.session_ttl),
            session_unused_ms: milliseconds(limits.session_unused_ttl),
            ..process.limits
        },
        start_timeout: upstream.start_timeout,
    }
}

/// What all routes are made with.
pub(super) struct RouteMaker {
    cursor_key: [u8; 32],
    pool: Arc<Pool>,
    /// Those that a configuration file may name.
    hooks: Vec<Arc<dyn Hook>>,
}

impl RouteMaker {
    pub(super) fn new(hooks: Vec<Arc<dyn Hook>>) -> RouteMaker {
        let mut cursor_key = [0; 32];
        for half in cursor_key.chunks_exact_mut(16) {
            half.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        }
        RouteMaker {
            cursor_key,
            pool: Arc::new(Pool::new(HOOK_POOL)),
            hooks,
        }
    }

    /// What a route is, the same on every thread.
    ///
    /// # Errors
    /// Why it cannot be so.
    pub(super) fn settings(
        &self,
        route: &config::Route,
        shards: usize,
    ) -> Result<RouteSettings, String> {
        let upstreams: Vec<UpstreamNaming> = route.upstreams.iter().map(naming_of).collect();
        let rules = rules(&route.allow, &route.deny);
        let naming = Naming::new(&upstreams, &rules).map_err(|error| error.to_string())?;
        let limits = &route.limits;
        Ok(RouteSettings {
            name: route.name.clone(),
            naming,
            upstreams: route
                .upstreams
                .iter()
                .map(|upstream| UpstreamSettings {
                    name: upstream.name.clone(),
                    required: upstream.required,
                })
                .collect(),
            limits: SessionLimits {
                sessions_max: limits.max_sessions.div_ceil(shards),
                ttl_ms: milliseconds(limits.session_ttl),
                unused_ms: milliseconds(limits.session_unused_ttl),
            },
            cursor_key: self.cursor_key,
            hooks: self.hooks(route)?,
        })
    }

    /// The redactors stand nearest to the client, then the hooks that the route names.
    fn hooks(&self, route: &config::Route) -> Result<Option<Hooks>, String> {
        let mut hooks: Vec<Arc<dyn Hook>> = Vec::new();
        for redaction in &route.redact {
            let has = |place| redaction.places.contains(&place);
            let places = Places {
                arguments: has(RedactionPlace::Arguments),
                results: has(RedactionPlace::Results),
                progress: has(RedactionPlace::Progress),
            };
            let (pattern, with) = (&redaction.pattern, &redaction.replacement);
            let redactor = Redactor::new(redaction.name.clone(), pattern, with, places)
                .map_err(|error| format!("redaction {}: {error}", redaction.name))?;
            hooks.push(Arc::new(redactor));
        }
        for name in &route.hooks {
            let known = self.hooks.iter().find(|hook| hook.name() == name);
            let known = known.ok_or_else(|| format!("there is no hook named {name}"))?;
            hooks.push(known.clone());
        }
        if hooks.is_empty() {
            return Ok(None);
        }
        let chain = Chain::new(hooks, route.hook_timeout, HOOK_REWRITE_BYTES_MAX);
        Ok(Some(Hooks {
            chain: Arc::new(chain),
            pool: self.pool.clone(),
        }))
    }
}

fn naming_of(upstream: &config::Upstream) -> UpstreamNaming {
    UpstreamNaming {
        name: upstream.name.clone(),
        prefix: match upstream.prefix {
            config::Prefix::Auto => Prefix::Auto,
            config::Prefix::Always => Prefix::Always,
            config::Prefix::Never => Prefix::Never,
        },
        aliases: PerKind {
            tools: upstream.aliases.tools.clone(),
            prompts: upstream.aliases.prompts.clone(),
            resources: upstream.aliases.resources.clone(),
        },
        rules: rules(&upstream.allow, &upstream.deny),
    }
}

fn rules(allow: &config::Selection, deny: &config::Selection) -> Rules {
    let denied = |patterns: &Option<Vec<String>>| patterns.clone().unwrap_or_default();
    Rules {
        allow: PerKind {
            tools: allow.tools.clone(),
            prompts: allow.prompts.clone(),
            resources: allow.resources.clone(),
        },
        deny: PerKind {
            tools: denied(&deny.tools),
            prompts: denied(&deny.prompts),
            resources: denied(&deny.resources),
        },
    }
}

/// Which header lines of clients some upstream gets. Each takes its own out of them.
pub(super) fn pass(file: &config::File) -> Pass {
    let upstreams = file.routes.iter().flat_map(|route| &route.upstreams);
    let fields = upstreams.filter_map(|upstream| match &upstream.place {
        ServerPlace::Http(server) if !server.is_shared && server.fields.passes_any() => {
            Some(server.fields.clone())
        }
        _ => None,
    });
    let mut all: Vec<_> = Vec::new();
    for fields in fields {
        if !all.contains(&fields) {
            all.push(fields);
        }
    }
    if all.is_empty() {
        return Pass::default();
    }
    Pass(Some(Arc::new(move |name, value, out: &mut Vec<u8>| {
        // The first that takes it has written it.
        let _ = all.iter().any(|fields| fields.pass(name, value, out));
    })))
}

/// The settings that hold for the process have changed: they need a restart. A hub's place
/// depends on whether the first file had a shared upstream, and is as it was.
pub(super) fn needs_restart(process: &Process, new: &Process) -> bool {
    let new = Process {
        hub_is_own: process.hub_is_own,
        cores: process.cores.clone(),
        ..new.clone()
    };
    *process != new
}

/// The tokens of a route. Its cell stays as long as the route, also while there is no file, so
/// that no id is used for two names.
#[derive(Clone, Debug, Default)]
pub(super) struct RouteTokens {
    path: Option<PathBuf>,
    cell: Option<Arc<TokenCell>>,
    /// The file is watched while this is held.
    watch: Option<Arc<()>>,
}

/// Tokens that have been read and are not in force.
#[derive(Debug)]
pub(super) struct NewTokens {
    tokens: RouteTokens,
    read: Option<(TokenFile, Tokens)>,
}

impl RouteTokens {
    /// What is in force of them.
    pub(super) fn cell(&self) -> Option<&Arc<TokenCell>> {
        self.cell.as_ref().filter(|_| self.path.is_some())
    }

    /// Reads the file of a route, if it is another one than before.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn prepare(
        path: Option<&PathBuf>,
        before: Option<&RouteTokens>,
    ) -> Result<NewTokens, TokenFileError> {
        let before = before.cloned().unwrap_or_default();
        if before.path.as_ref() == path {
            return Ok(NewTokens {
                tokens: before,
                read: None,
            });
        }
        let read = match (path, &before.cell) {
            (None, _) => None,
            (Some(path), None) => Some(TokenFile::open(path)?),
            (Some(path), Some(cell)) => Some(TokenFile::open_after(path, &cell.current())?),
        };
        Ok(NewTokens {
            tokens: RouteTokens {
                path: path.cloned(),
                cell: before.cell,
                watch: None,
            },
            read,
        })
    }
}

impl NewTokens {
    /// Other tokens take the place of these: their file is not watched any more.
    pub(super) fn take_over(&self, before: &mut RouteTokens) {
        if before.path != self.tokens.path {
            before.watch = None;
        }
    }

    /// Puts them into force.
    pub(super) fn put_into_force(self) -> RouteTokens {
        let mut tokens = self.tokens;
        let Some((file, read)) = self.read else {
            return tokens;
        };
        let cell = match tokens.cell.take() {
            Some(cell) => {
                cell.publish(read);
                cell
            }
            None => TokenCell::new(read),
        };
        let wanted: Arc<()> = Arc::default();
        if let Err(error) = file.watch_while(&cell, &wanted) {
            tracing::error!(%error, "cannot watch the token file: a change of it is not seen");
        }
        tokens.cell = Some(cell);
        tokens.watch = Some(wanted);
        tokens
    }
}
