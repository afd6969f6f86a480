//! What the admin listener is told: the counters of every thread, and where the process and its
//! upstreams are in their lives, which the main thread writes.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

pub(super) use crate::admin::UpstreamState;
use crate::admin::{
    HttpSnapshot, HubSnapshot, Readiness, RouteHealth, RouteSnapshot, ShardSnapshot, Snapshot,
    Source, UpstreamHealth, UpstreamSnapshot,
};
use crate::runtime::counters::Counters;
use crate::runtime::driver::Driver;
use crate::runtime::route_counters::RouteCounters;
use crate::upstream::http::{EndKind, Fault, HttpCounters};

/// The state of the whole process, readable from any thread.
#[derive(Debug)]
pub(super) struct Status {
    started: SystemTime,
    /// What the shards count that is not of one upstream.
    shards: Vec<Arc<Counters>>,
    phase: AtomicU8,
    driver: AtomicU8,
    serves: Mutex<Arc<Serves>>,
}

/// What is served.
#[derive(Clone, Debug)]
pub(super) enum Serves {
    /// One upstream, as it is. What it counts is what the shards count.
    One(Arc<SeatStatus>),
    Routes(Vec<RouteStatus>),
}

/// A route, for those who look from outside.
#[derive(Clone, Debug)]
pub(super) struct RouteStatus {
    pub(super) name: String,
    /// In the order of the shards.
    pub(super) counters: Vec<Arc<RouteCounters>>,
    pub(super) upstreams: Vec<UpstreamStatus>,
}

#[derive(Clone, Debug)]
pub(super) struct UpstreamStatus {
    pub(super) name: String,
    pub(super) is_required: bool,
    pub(super) seat: Arc<SeatStatus>,
}

/// What one upstream counts and where its server is in its life.
#[derive(Debug)]
pub(super) struct SeatStatus {
    state: AtomicU8,
    starts: AtomicU64,
    /// In the order of the shards.
    shards: Vec<Arc<Counters>>,
    hub: Arc<Counters>,
    /// The HTTP clients of threads, by the names of these.
    http: Vec<(String, Arc<HttpCounters>)>,
}

/// Where the process is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Starting,
    Serving,
    Draining,
}

const PHASES: [Phase; 3] = [Phase::Starting, Phase::Serving, Phase::Draining];

impl SeatStatus {
    pub(super) fn new(
        is_private: bool,
        shards: Vec<Arc<Counters>>,
        hub: Arc<Counters>,
        http: Vec<(String, Arc<HttpCounters>)>,
    ) -> Arc<SeatStatus> {
        let state = match is_private {
            true => UpstreamState::PerSession,
            false => UpstreamState::Starting,
        };
        Arc::new(SeatStatus {
            state: AtomicU8::new(state as u8),
            starts: AtomicU64::new(0),
            shards,
            hub,
            http,
        })
    }

    pub(super) fn set_state(&self, state: UpstreamState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub(super) fn state(&self) -> UpstreamState {
        let state = self.state.load(Ordering::Relaxed);
        let known = UpstreamState::ALL.into_iter();
        let mut found = known.filter(|known| *known as u8 == state);
        found.next().unwrap_or(UpstreamState::Down)
    }

    /// The server has been started.
    pub(super) fn count_start(&self) {
        self.starts.fetch_add(1, Ordering::Relaxed);
    }

    fn hub(&self) -> HubSnapshot {
        HubSnapshot {
            upstream_up: self.state().serves(),
            upstream_restarts: self.starts.load(Ordering::Relaxed).saturating_sub(1),
            quoted_ids: self.hub.quoted_ids.get(),
            drops: self.hub.drops(),
        }
    }

    fn http(&self) -> Vec<(String, HttpSnapshot)> {
        let clients = self.http.iter();
        clients
            .map(|(thread, counters)| (thread.clone(), client(counters)))
            .collect()
    }
}

impl Status {
    pub(super) fn new(shards: Vec<Arc<Counters>>, serves: Serves) -> Arc<Status> {
        Arc::new(Status {
            started: SystemTime::now(),
            shards,
            phase: AtomicU8::new(Phase::Starting as u8),
            driver: AtomicU8::new(0),
            serves: Mutex::new(Arc::new(serves)),
        })
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::Relaxed)) % PHASES.len()]
    }

    pub(super) fn set_driver(&self, driver: Driver) {
        let place = match driver {
            Driver::Uring => 1,
            Driver::Epoll => 2,
        };
        self.driver.store(place, Ordering::Relaxed);
    }

    /// This is served from now on.
    pub(super) fn set_serves(&self, serves: Serves) {
        *self.serves.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(serves);
    }

    fn serves(&self) -> Arc<Serves> {
        let serves = self.serves.lock();
        serves.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RouteStatus {
    fn snapshot(&self) -> RouteSnapshot {
        let shards = self.counters.iter();
        RouteSnapshot {
            route: self.name.clone(),
            unknown_names: shards.map(|shard| shard.unknown_names()).collect(),
        }
    }

    /// Where its upstreams are, and so whether it can serve.
    fn health(&self) -> RouteHealth {
        let upstreams = self.upstreams.iter().map(|upstream| UpstreamHealth {
            name: upstream.name.clone(),
            is_required: upstream.is_required,
            state: upstream.seat.state(),
        });
        RouteHealth {
            name: self.name.clone(),
            upstreams: upstreams.collect(),
        }
    }
}

impl Source for Status {
    fn ready(&self) -> Readiness {
        match self.phase() {
            Phase::Starting => return Readiness::Starting,
            Phase::Draining => return Readiness::Draining,
            Phase::Serving => {}
        }
        let can_serve = match &*self.serves() {
            Serves::One(seat) => seat.state().serves(),
            Serves::Routes(routes) => routes.iter().all(|route| route.health().can_serve()),
        };
        match can_serve {
            true => Readiness::Ready,
            false => Readiness::UpstreamDown,
        }
    }

    fn routes(&self) -> Vec<RouteHealth> {
        match &*self.serves() {
            Serves::One(_) => Vec::new(),
            Serves::Routes(routes) => routes.iter().map(RouteStatus::health).collect(),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let shards = |shards: &[Arc<Counters>]| shards.iter().map(|it| shard(it)).collect();
        let mut snapshot = Snapshot {
            version: env!("CARGO_PKG_VERSION"),
            driver: match self.driver.load(Ordering::Relaxed) {
                1 => Some(Driver::Uring),
                2 => Some(Driver::Epoll),
                _ => None,
            },
            started: self.started,
            shards: shards(&self.shards),
            hub: HubSnapshot::default(),
            http: Vec::new(),
            upstreams: None,
            routes: Vec::new(),
        };
        match &*self.serves() {
            Serves::One(seat) => {
                snapshot.hub = HubSnapshot {
                    upstream_up: self.ready() == Readiness::Ready,
                    ..seat.hub()
                };
                snapshot.http = seat.http();
            }
            Serves::Routes(routes) => {
                let all = routes.iter().flat_map(|route| {
                    route.upstreams.iter().map(|upstream| UpstreamSnapshot {
                        route: route.name.clone(),
                        upstream: upstream.name.clone(),
                        shards: shards(&upstream.seat.shards),
                        hub: upstream.seat.hub(),
                        http: upstream.seat.http(),
                    })
                });
                snapshot.upstreams = Some(all.collect());
                snapshot.routes = routes.iter().map(RouteStatus::snapshot).collect();
            }
        }
        snapshot
    }
}

fn client(counters: &HttpCounters) -> HttpSnapshot {
    let ends = EndKind::ALL.into_iter().map(EndKind::label);
    let faults = Fault::ALL.into_iter().map(Fault::label);
    HttpSnapshot {
        connections: counters.connections.get(),
        idle: counters.idle.get(),
        waiting: counters.waiting.get(),
        connects: counters.connects.get(),
        connect_failures: counters.connect_failures.get(),
        reused: counters.reused.get(),
        retries: counters.retries.get(),
        received_bytes: counters.received_bytes.get(),
        sent_bytes: counters.sent_bytes.get(),
        ends: ends.zip(counters.ends()).collect(),
        faults: faults.zip(counters.faults()).collect(),
    }
}

fn shard(counters: &Counters) -> ShardSnapshot {
    ShardSnapshot {
        connections: counters.connections.get(),
        sessions: counters.sessions.get(),
        calls_in_flight: counters.calls_in_flight.get(),
        buffered_bytes: counters.buffered_bytes.get(),
        streams: counters.streams.get(),
        subscriptions: counters.subscriptions.get(),
        tasks: counters.tasks.get(),
        replaced_streams: counters.streams_replaced.get(),
        lost_subscriptions: counters.subscriptions_lost.get(),
        lists_left_out: counters.lists_left_out.get(),
        progress_events: counters.events_progress.get(),
        stream_events: counters.events_marks.get(),
        calls: counters.calls.read(),
        call_durations: counters.durations.read(),
        http_requests: counters.statuses.read(),
        received_bytes: counters.received_bytes.get(),
        sent_bytes: counters.sent_bytes.get(),
        drops: counters.drops(),
        exchanges: counters.exchanges.get(),
        session_renewals: counters.session_renewals.get(),
        stream_overflows: counters.stream_overflows.get(),
        lost_notices: counters.lost_notices.get(),
        handovers: counters.handovers.get(),
        evicted_connections: counters.evicted.get(),
        version_differs: counters.version_differs.get(),
        mailbox_to_shard: counters.mailbox_to_shard.get(),
        mailbox_to_hub: counters.mailbox_to_hub.get(),
        mailbox_handovers: counters.mailbox_handovers.get(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::joined::naming::Kind;

    fn seat(is_private: bool) -> Arc<SeatStatus> {
        SeatStatus::new(is_private, Vec::new(), Arc::default(), Vec::new())
    }

    fn route(name: &str, upstreams: &[(bool, &Arc<SeatStatus>)]) -> RouteStatus {
        let upstreams = upstreams.iter().map(|(is_required, seat)| UpstreamStatus {
            name: "u".into(),
            is_required: *is_required,
            seat: Arc::clone(seat),
        });
        RouteStatus {
            name: name.into(),
            counters: vec![Arc::default(), Arc::default()],
            upstreams: upstreams.collect(),
        }
    }

    #[test]
    fn one_upstream_is_ready_while_it_is_up() {
        let seat = seat(false);
        let status = Status::new(Vec::new(), Serves::One(seat.clone()));
        assert_eq!(status.ready(), Readiness::Starting);
        status.set_phase(Phase::Serving);
        seat.set_state(UpstreamState::Up);
        assert_eq!(status.ready(), Readiness::Ready);
        assert!(status.snapshot().hub.upstream_up);
        for state in [UpstreamState::Down, UpstreamState::Starting] {
            seat.set_state(state);
            assert_eq!(status.ready(), Readiness::UpstreamDown);
            assert!(!status.snapshot().hub.upstream_up);
        }
        seat.set_state(UpstreamState::Up);
        status.set_phase(Phase::Draining);
        assert_eq!(status.ready(), Readiness::Draining);
        assert!(!status.snapshot().hub.upstream_up);
        assert!(status.routes().is_empty());
        assert!(status.snapshot().upstreams.is_none());
    }

    #[test]
    fn routes_are_ready_when_each_can_serve() {
        let (one, two, own) = (seat(false), seat(false), seat(true));
        let routes = vec![
            route("a", &[(true, &one), (false, &own)]),
            route("b", &[(false, &two), (false, &own)]),
        ];
        let status = Status::new(Vec::new(), Serves::Routes(Vec::new()));
        status.set_serves(Serves::Routes(routes));
        assert_eq!(status.ready(), Readiness::Starting);
        status.set_phase(Phase::Serving);
        assert_eq!(status.ready(), Readiness::UpstreamDown);
        one.set_state(UpstreamState::Up);
        assert_eq!(status.ready(), Readiness::Ready);
        let states: Vec<_> = status
            .routes()
            .iter()
            .map(|it| it.upstreams[0].state)
            .collect();
        assert_eq!(states, [UpstreamState::Up, UpstreamState::Starting]);
        status.set_phase(Phase::Draining);
        assert_eq!(status.ready(), Readiness::Draining);
    }

    #[test]
    fn an_upstream_says_its_names_and_its_restarts() {
        let one = seat(false);
        one.set_state(UpstreamState::Up);
        for _ in 0..3 {
            one.count_start();
        }
        let routes = vec![route("a", &[(false, &one)])];
        routes[0].counters[1].unknown_name(Kind::Template);
        let status = Status::new(Vec::new(), Serves::Routes(routes));
        let route = status.snapshot().routes.remove(0);
        let unknown = route.unknown_names.iter().map(|kinds| kinds.resources);
        assert_eq!(
            (&*route.route, unknown.collect::<Vec<_>>()),
            ("a", vec![0, 1])
        );
        let upstreams = status.snapshot().upstreams.unwrap();
        assert_eq!(upstreams.len(), 1);
        assert_eq!((&*upstreams[0].route, &*upstreams[0].upstream), ("a", "u"));
        assert_eq!(upstreams[0].hub.upstream_restarts, 2);
        assert!(upstreams[0].hub.upstream_up);
    }
}
