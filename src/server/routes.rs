//! The routes of a configuration file as they are in force: which upstream has which seat, and
//! what becomes of them when the file is read again.

use std::path::PathBuf;
use std::sync::Arc;

use super::seat::{SeatSettings, milliseconds};
use crate::cli::ServerPlace;
use crate::config::{self, Process};
use crate::hooks::{Chain, Hook, Pool};
use crate::http::auth::Tokens;
use crate::http::ground::Pass;
use crate::http::joined::{Hooks, RouteSettings, UpstreamSettings};
use crate::http::token_file::{TokenCell, TokenFile, TokenFileError};
use crate::limits::{HOOK_POOL, HOOK_REWRITE_BYTES_MAX};
use crate::routing::joined::SeatId;
use crate::routing::joined::sessions::SessionLimits;
use crate::routing::shard::ShardLimits;
use crate::runtime::route_counters::RouteCounters;

/// A route that is in force.
#[derive(Debug)]
pub(super) struct RouteInForce {
    pub(super) name: String,
    pub(super) upstreams: Vec<PlacedUpstream>,
    pub(super) tokens: RouteTokens,
    /// In the order of the shards.
    pub(super) counters: Vec<Arc<RouteCounters>>,
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
            // The route counts its sessions and their time itself.
            calls_per_session_max: limits.max_calls_per_session,
            subscriptions_per_session_max: limits.max_subscriptions_per_session,
            tasks_per_session_max: limits.max_tasks_per_session,
            request_timeout_ms: milliseconds(upstream.request_timeout),
            request_timeout_max_ms: milliseconds(limits.request_timeout_max),
            ..process.limits
        },
        start_timeout: upstream.start_timeout,
    }
}

/// What all routes are made with.
pub(super) struct RouteMaker {
    cursor_key: [u8; 32],
    pool: Arc<Pool>,
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

    /// Those that a configuration file may name.
    pub(super) fn hooks(&self) -> &[Arc<dyn Hook>] {
        &self.hooks
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
        let naming = route.naming().map_err(|error| error.to_string())?;
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
                calls_max: limits.max_calls_per_session,
                subscriptions_max: limits.max_subscriptions_per_session,
            },
            cursor_key: self.cursor_key,
            hooks: self.hooks_of(route)?,
        })
    }

    /// The redactors stand nearest to the client, then the hooks that the route names.
    fn hooks_of(&self, route: &config::Route) -> Result<Option<Hooks>, String> {
        let mut hooks: Vec<Arc<dyn Hook>> = Vec::new();
        for redaction in &route.redact {
            let redactor = redaction
                .redactor()
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

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    const ONE: &str = "[[routes.upstreams]]\nname = \"one\"\ncommand = [\"x\"]\n";
    const TWO: &str = "[[routes.upstreams]]\nname = \"two\"\ncommand = [\"x\"]\n";

    fn route(path: &str, rest: &str) -> String {
        format!("[[routes]]\npath = {path:?}\n{rest}")
    }

    /// The seats of one text after another, in the order of the last one's file.
    fn seats(texts: &[String]) -> Vec<Vec<u32>> {
        let mut next = 1;
        let mut in_force: Vec<RouteInForce> = Vec::new();
        for text in texts {
            let file = file(text);
            let process = file.process.clone();
            let placed = place(&file, &process, &in_force, &mut next);
            let routes = file.routes.iter().zip(placed);
            in_force = routes
                .map(|(route, upstreams)| RouteInForce {
                    name: route.name.clone(),
                    upstreams,
                    tokens: RouteTokens::default(),
                    counters: Vec::new(),
                })
                .collect();
        }
        let seats = in_force.iter().map(|route| &route.upstreams);
        seats
            .map(|all| all.iter().map(|upstream| upstream.seat.0).collect())
            .collect()
    }

    #[test]
    fn what_is_the_same_keeps_its_seat_wherever_it_stands() {
        let before = route("/a", &[ONE, TWO].concat()) + &route("/b", ONE);
        assert_eq!(seats(std::slice::from_ref(&before)), [vec![1, 2], vec![3]]);
        assert_eq!(
            seats(&[before.clone(), before.clone()]),
            [vec![1, 2], vec![3]]
        );
        let turned = route("/b", ONE) + &route("/a", &[TWO, ONE].concat());
        assert_eq!(seats(&[before, turned]), [vec![3], vec![2, 1]]);
    }

    #[test]
    fn what_only_names_and_rules_are_about_changes_no_seat() {
        let before = route("/a", ONE);
        for more in [
            "prefix = \"always\"",
            "required = true",
            "allow = { tools = [\"a\"] }",
            "deny = { prompts = [\"a\"] }",
            "aliases = { tools = { a = \"b\" } }",
        ] {
            let after = route("/a", &format!("{ONE}{more}\n"));
            assert_eq!(seats(&[before.clone(), after]), [vec![1]], "{more}");
        }
        // Another path and other tokens are the route's.
        let named = |path: &str| route(path, &format!("name = \"a\"\n{ONE}"));
        assert_eq!(seats(&[named("/a"), named("/b")]), [vec![1]]);
    }

    #[test]
    fn what_is_another_has_a_seat_that_none_had_before() {
        let before = route("/a", ONE);
        for after in [
            route("/a", &format!("{ONE}environment = {{ A = \"b\" }}\n")),
            route("/a", &format!("{ONE}start-timeout = \"9s\"\n")),
            route("/a", &format!("{ONE}request-timeout = \"9s\"\n")),
            route(
                "/a",
                &format!("limits = {{ max-calls-per-session = 9 }}\n{ONE}"),
            ),
            route("/a", &ONE.replace("[\"x\"]", "[\"x\", \"y\"]")),
            route("/a", &ONE.replace("\"one\"", "\"other\"")),
            route("/b", ONE),
        ] {
            assert_eq!(
                seats(&[before.clone(), after.clone()]),
                [vec![2]],
                "{after}"
            );
            // Back again it is a third one.
            let texts = [before.clone(), after, before.clone()];
            assert_eq!(seats(&texts), [vec![3]]);
        }
    }

    #[test]
    fn limits_are_the_routes_and_the_upstreams_own() {
        let text = format!(
            "shards = 2\nmax-uri = 77\n{}{}request-timeout = \"3s\"\nstart-timeout = \"4s\"\n{TWO}",
            route(
                "/a",
                "limits = { max-sessions = 11, max-calls-per-session = 12, \
                 max-subscriptions-per-session = 13, max-tasks-per-session = 14, \
                 request-timeout = \"15s\", request-timeout-max = \"16s\", \
                 session-ttl = \"17s\", session-unused-ttl = \"18s\" }\n"
            ),
            ONE,
        );
        let file = file(&text);
        let placed = place(&file, &file.process, &[], &mut 1);
        let of = |index: usize| &placed[0][index].settings;
        let limits = of(0).limits;
        assert_eq!(limits.calls_per_session_max, 12);
        assert_eq!(limits.subscriptions_per_session_max, 13);
        assert_eq!(limits.tasks_per_session_max, 14);
        assert_eq!(limits.request_timeout_ms, 3_000);
        assert_eq!(limits.request_timeout_max_ms, 16_000);
        assert_eq!(limits.uri_bytes_max, 77);
        assert_eq!(limits.calls_max, file.process.limits.calls_max);
        assert_eq!(of(0).start_timeout.as_secs(), 4);
        assert_eq!(of(1).limits.request_timeout_ms, 15_000);
        assert_eq!(of(1).start_timeout, file.process.start_timeout);
    }

    #[test]
    fn header_lines_are_passed_if_some_upstream_gets_them() {
        let http = |name: &str, rest: &str| {
            format!(
                "[[routes.upstreams]]\nname = {name:?}\nurl = \"http://127.0.0.1:1/mcp\"\n{rest}\n"
            )
        };
        let passed = |text: &str| {
            let pass = pass(&file(text));
            let mut out = Vec::new();
            if let Some(pass) = pass.0 {
                for name in ["authorization", "x-one", "x-two"] {
                    pass(name, b"v", &mut out);
                }
            }
            String::from_utf8(out).unwrap()
        };
        let none = route("/a", &http("one", ""));
        assert!(pass(&file(&none)).0.is_none());
        let several = route("/a", &http("one", "pass-headers = [\"x-*\"]"))
            + &route(
                "/b",
                &[
                    http("one", "pass-headers = [\"x-one\"]"),
                    http("two", "pass-headers = [\"authorization\"]"),
                ]
                .concat(),
            );
        assert_eq!(
            passed(&several),
            "authorization: v\r\nx-one: v\r\nx-two: v\r\n"
        );
        let one = route("/a", &http("one", "pass-headers = [\"x-one\"]"));
        assert_eq!(passed(&one), "x-one: v\r\n");
    }

    /// A token file of one test, removed when this goes.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, text: &str) -> Scratch {
            let name = format!("ringway-routes-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, text).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn change(before: &mut RouteTokens, path: Option<&PathBuf>) -> RouteTokens {
        let new = RouteTokens::prepare(path, Some(before)).unwrap();
        new.take_over(before);
        new.put_into_force()
    }

    fn owner(tokens: &RouteTokens, token: &str) -> Option<u32> {
        let value = format!("Bearer {token}");
        let reader = tokens.cell()?.reader();
        reader.check(Some(value.as_bytes())).ok().map(|id| id.0)
    }

    /// A session belongs to an id: another name with it would be in somebody's session.
    #[test]
    fn no_id_of_a_token_is_used_again_for_another_name() {
        let alice = Scratch::new("alice", "alice alice-0123456789ab\n");
        let bob = Scratch::new("bob", "bob bob-0123456789abcd\n");
        let mut first = change(&mut RouteTokens::default(), Some(&alice.0));
        let id = owner(&first, "alice-0123456789ab").unwrap();
        let mut none = change(&mut first, None);
        assert!(none.cell().is_none());
        let mut second = change(&mut none, Some(&bob.0));
        assert_eq!(owner(&second, "alice-0123456789ab"), None);
        let other = owner(&second, "bob-0123456789abcd").unwrap();
        assert_ne!(id, other);
        let third = change(&mut second, Some(&alice.0));
        assert_ne!(owner(&third, "alice-0123456789ab"), Some(other));
        assert!(owner(&third, "alice-0123456789ab").is_some());
        assert_eq!(owner(&third, "bob-0123456789abcd"), None);
    }

    #[test]
    fn tokens_of_the_same_file_stay_and_a_bad_file_changes_nothing() {
        let alice = Scratch::new("same", "alice alice-0123456789ab\n");
        let bad = Scratch::new("bad", "no token\n");
        let mut first = change(&mut RouteTokens::default(), Some(&alice.0));
        assert!(RouteTokens::prepare(Some(&bad.0), Some(&first)).is_err());
        let again = change(&mut first, Some(&alice.0));
        assert!(Arc::ptr_eq(first.cell().unwrap(), again.cell().unwrap()));
        assert!(first.watch.is_some() && again.watch.is_some());
    }
}
