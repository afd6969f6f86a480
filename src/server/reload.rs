//! A configuration file in force, and reading it again: what is the same goes on untouched, what
//! is new or changed is made whole before anything changes, and what is gone is stopped aside.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use super::events::Event;
use super::plan::Threads;
use super::routes::{
    NewTokens, PlacedUpstream, RouteInForce, RouteMaker, RouteTokens, pass, place,
};
use super::seat::{NewSeat, SeatBounds};
use super::settings;
use super::shard_thread::{RoutePlan, ServicePlan};
use super::status::{RouteStatus, Serves, Status, UpstreamStatus};
use super::upstream::{Identity, Upstream};
use crate::cli::ServerPlace;
use crate::config::{self, File, Process, ThisMachine};
use crate::hooks::Hook;
use crate::http::joined::RouteSettings;
use crate::routing::joined::SeatId;
use crate::runtime::driver::Driver;

/// The configuration file, and what is in force of it.
pub(super) struct ConfigInForce {
    path: PathBuf,
    /// As at the start: it does not change while Ringway runs.
    process: Process,
    /// At the start some upstream was shared.
    needs_hub: bool,
    bounds: SeatBounds,
    address: SocketAddr,
    events: Sender<Event>,
    routes: Vec<RouteInForce>,
    /// What the file said last.
    file: Option<File>,
    next_seat: u32,
    maker: RouteMaker,
}

/// All that a file needs that is not in force, whole.
pub(super) struct Prepared {
    file: File,
    routes: Vec<Vec<PlacedUpstream>>,
    tokens: Vec<NewTokens>,
    settings: Vec<Arc<RouteSettings>>,
    seats: Vec<NewSeat>,
}

/// What a new file did to the upstreams, by `ROUTE/UPSTREAM`.
#[derive(Default, PartialEq, Debug)]
struct Change<'a> {
    kept: usize,
    added: Vec<&'a str>,
    /// Stopped, and started by the same name.
    replaced: Vec<&'a str>,
    removed: Vec<&'a str>,
}

impl<'a> Change<'a> {
    fn between(
        before: &'a BTreeMap<String, SeatId>,
        now: &'a BTreeMap<String, SeatId>,
    ) -> Change<'a> {
        let mut change = Change::default();
        for (name, seat) in now {
            match before.get(name) {
                Some(there) if there == seat => change.kept += 1,
                Some(_) => change.replaced.push(name),
                None => change.added.push(name),
            }
        }
        let is_gone = |name: &&String| !now.contains_key(*name);
        let gone = before.keys().filter(is_gone).map(String::as_str);
        change.removed.extend(gone);
        change
    }
}

impl ConfigInForce {
    pub(super) fn new(
        path: PathBuf,
        file: &File,
        bounds: SeatBounds,
        address: SocketAddr,
        events: Sender<Event>,
        hooks: Vec<Arc<dyn Hook>>,
    ) -> ConfigInForce {
        ConfigInForce {
            path,
            process: file.process.clone(),
            needs_hub: settings::needs_hub(file),
            bounds,
            address,
            events,
            routes: Vec::new(),
            file: None,
            // The first is that of an upstream that is served as it is.
            next_seat: SeatId::ONLY.0 + 1,
            maker: RouteMaker::new(hooks),
        }
    }

    /// Makes all that is new in a file. Nothing changes.
    ///
    /// # Errors
    /// All that cannot be had.
    pub(super) fn prepare(
        &mut self,
        file: File,
        threads: &Threads,
    ) -> Result<Prepared, Vec<String>> {
        let routes = place(&file, &self.process, &self.routes, &mut self.next_seat);
        let mut problems = Vec::new();
        let mut tokens = Vec::new();
        let mut settings = Vec::new();
        let mut seats = Vec::new();
        for (route, upstreams) in file.routes.iter().zip(&routes) {
            let before = self.routes.iter().find(|known| known.name == route.name);
            let token_file = route.auth_token_file.as_ref();
            match RouteTokens::prepare(token_file, before.map(|known| &known.tokens)) {
                Ok(new) => tokens.push(new),
                Err(error) => {
                    let error = error.to_string();
                    let error = error.strip_prefix("--").unwrap_or(&error);
                    problems.push(format!("route {}: {error}", route.name));
                }
            }
            match self.maker.settings(route, self.process.shards) {
                Ok(made) => settings.push(Arc::new(made)),
                Err(error) => problems.push(format!("route {}: {error}", route.name)),
            }
            for upstream in upstreams {
                if self.is_in_force(upstream.seat) {
                    continue;
                }
                let names = (route.name.clone(), upstream.name.clone());
                let identity = Identity::named(upstream.seat, names);
                let settings = upstream.settings.clone();
                match NewSeat::new(identity, settings, &self.bounds, threads, None) {
                    Ok(seat) => seats.push(seat),
                    Err(error) => problems.push(format!(
                        "route {}, upstream {}: {error}",
                        route.name, upstream.name
                    )),
                }
            }
        }
        match problems.is_empty() {
            true => Ok(Prepared {
                file,
                routes,
                tokens,
                settings,
                seats,
            }),
            false => Err(problems),
        }
    }

    fn is_in_force(&self, seat: SeatId) -> bool {
        let mut all = self.routes.iter().flat_map(|route| &route.upstreams);
        all.any(|upstream| upstream.seat == seat)
    }

    /// Puts a file into force. What is returned stops the servers that are gone.
    pub(super) fn put_into_force(
        &mut self,
        prepared: Prepared,
        threads: &Threads,
        upstreams: &mut Vec<Upstream>,
        status: &Status,
    ) -> Vec<JoinHandle<()>> {
        let Prepared {
            file,
            routes: placed,
            tokens,
            settings,
            seats,
        } = prepared;
        for seat in seats {
            upstreams.push(seat.add(&self.bounds, threads, &self.events));
        }
        let mut before = std::mem::take(&mut self.routes);
        for ((route, placed), tokens) in file.routes.iter().zip(placed).zip(tokens) {
            let known = before.iter_mut().find(|known| known.name == route.name);
            let counters = match known {
                Some(known) => {
                    tokens.take_over(&mut known.tokens);
                    known.counters.clone()
                }
                None => (0..threads.shards()).map(|_| Arc::default()).collect(),
            };
            let tokens = tokens.put_into_force();
            if tokens.cell().is_none() && !self.address.ip().is_loopback() {
                tracing::warn!(
                    route = route.name,
                    address = %self.address,
                    "anyone who reaches this address can use the route: set auth-token-file, or listen on loopback"
                );
            }
            self.routes.push(RouteInForce {
                name: route.name.clone(),
                upstreams: placed,
                tokens,
                counters,
            });
        }
        let plans: Vec<_> = file
            .routes
            .iter()
            .zip(&self.routes)
            .zip(&settings)
            .map(|((route, in_force), settings)| {
                let seats: Vec<_> = in_force.upstreams.iter().map(|it| it.seat).collect();
                let settings = settings.clone();
                RoutePlan {
                    name: route.name.clone(),
                    path: route.path.clone(),
                    tokens: in_force.tokens.cell().cloned(),
                    service: ServicePlan::Joined {
                        settings,
                        seats,
                        counters: in_force.counters.clone(),
                    },
                }
            })
            .collect();
        for route in &self.routes {
            let is_one_of_several = route.upstreams.len() > 1;
            for placed in &route.upstreams {
                let known = upstreams.iter().find(|it| it.identity.seat == placed.seat);
                if let Some(known) = known {
                    let name = is_one_of_several.then_some(&*placed.name);
                    known.set_upstream_name(name);
                }
            }
        }
        threads.set_routes(&plans.into(), &pass(&file));
        status.set_serves(self.serves(&file, upstreams));
        self.file = Some(file);
        let mut stopping = Vec::new();
        upstreams.retain_mut(|upstream| {
            let seat = upstream.identity.seat;
            let is_served = self.is_in_force(seat);
            if !is_served {
                stopping.extend(upstream.stop());
                threads.remove_seat(seat);
            }
            is_served
        });
        stopping
    }

    fn serves(&self, file: &File, upstreams: &[Upstream]) -> Serves {
        let routes = self.routes.iter().zip(&file.routes);
        let routes = routes.map(|(in_force, route)| {
            let all = in_force.upstreams.iter().zip(&route.upstreams);
            let all = all.filter_map(|(placed, upstream)| {
                let mut known = upstreams.iter();
                let known = known.find(|it| it.identity.seat == placed.seat)?;
                Some(UpstreamStatus {
                    name: upstream.name.clone(),
                    is_required: upstream.required,
                    seat: known.status.clone(),
                })
            });
            RouteStatus {
                name: route.name.clone(),
                counters: in_force.counters.clone(),
                upstreams: all.collect(),
            }
        });
        Serves::Routes(routes.collect())
    }

    /// Without the upstreams that the file requires nothing starts.
    pub(super) fn mark_vital(&self, upstreams: &mut [Upstream]) {
        for upstream in upstreams {
            upstream.is_vital = self.is_required(upstream.identity.seat);
        }
    }

    fn is_required(&self, seat: SeatId) -> bool {
        let routes = self.file.iter().flat_map(|file| &file.routes);
        let mut all = routes.zip(&self.routes).flat_map(|(route, in_force)| {
            let placed = in_force.upstreams.iter().map(|it| it.seat);
            route.upstreams.iter().zip(placed)
        });
        all.any(|(upstream, placed)| placed == seat && upstream.required)
    }

    /// Reads the file again. What is returned stops the servers that are gone.
    pub(super) fn reload(
        &mut self,
        threads: &Threads,
        upstreams: &mut Vec<Upstream>,
        status: &Status,
    ) -> Vec<JoinHandle<()>> {
        let file = self.path.display().to_string();
        let loaded = match config::load(&self.path, &ThisMachine, self.maker.hooks()) {
            Ok(loaded) => loaded,
            Err(problems) => {
                let shown = problems.0.iter().map(|problem| format!("{file}:{problem}"));
                let problems: Vec<_> = shown.collect();
                self.refuse(&problems);
                return Vec::new();
            }
        };
        for warning in &loaded.warnings.0 {
            tracing::warn!("{file}:{warning}");
        }
        let changed = settings::changed(&self.process, self.needs_hub, &loaded.file);
        if !changed.is_empty() {
            tracing::warn!(
                file,
                settings = changed.join(", "),
                "settings of the whole process are others than at the start: they need a restart"
            );
        }
        let before = self.seats();
        match self.prepare(loaded.file, threads) {
            Ok(prepared) => {
                let stopping = self.put_into_force(prepared, threads, upstreams, status);
                // One that comes later is not as vital as those of the start: others go on without.
                for upstream in upstreams {
                    upstream.is_vital &= self.is_required(upstream.identity.seat);
                }
                let now = self.seats();
                let change = Change::between(&before, &now);
                tracing::info!(
                    file,
                    routes = self.routes.len(),
                    upstreams_kept = change.kept,
                    upstreams_added = change.added.join(", "),
                    upstreams_replaced = change.replaced.join(", "),
                    upstreams_removed = change.removed.join(", "),
                    "the configuration file was read again and is in force"
                );
                stopping
            }
            Err(problems) => {
                self.refuse(&problems);
                Vec::new()
            }
        }
    }

    fn refuse(&self, problems: &[String]) {
        tracing::error!(
            file = %self.path.display(),
            problems = problems.join("; "),
            "the configuration file cannot be used: nothing changes"
        );
    }

    /// The seats by `ROUTE/UPSTREAM`.
    fn seats(&self) -> BTreeMap<String, SeatId> {
        let of_route = |route: &RouteInForce| {
            let named = |it: &PlacedUpstream| (format!("{}/{}", route.name, it.name), it.seat);
            route.upstreams.iter().map(named).collect::<Vec<_>>()
        };
        self.routes.iter().flat_map(of_route).collect()
    }

    /// The start-up lines, one a route.
    pub(super) fn banner(&self, driver: Driver, threads: &Threads) -> String {
        let is_shared = |upstream: &PlacedUpstream| match &upstream.settings.place {
            ServerPlace::Command(_) => true,
            ServerPlace::Http(server) => server.is_shared,
        };
        let mut all = self.routes.iter().flat_map(|route| &route.upstreams);
        let hub = match (threads.hub_is_own(), all.any(is_shared)) {
            (true, _) => "own",
            (false, true) => "shard",
            (false, false) => "none",
        };
        let paths = self.file.iter().flat_map(|file| &file.routes);
        let lines = self.routes.iter().zip(paths).map(|(route, from_file)| {
            let upstreams: Vec<_> = route.upstreams.iter().map(|it| it.name.as_str()).collect();
            format!(
                "ringway {} listening on http://{}{} route={} shards={} hub={hub} driver={driver} upstreams={}",
                env!("CARGO_PKG_VERSION"),
                self.address,
                from_file.path,
                route.name,
                threads.shards(),
                upstreams.join(","),
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
