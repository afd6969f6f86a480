//! The parts, the scheduler, and the configuration with the names that it gives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use ringway::http::ground::{FaceConfig, Ground, Pass, ResponseMode};
use ringway::http::joined::{Joined, RouteSettings, Seat, UpstreamSettings};
use ringway::http::policy::Policy;
use ringway::http::route::{Route, Service};
use ringway::http::shard::Shard;
use ringway::routing::joined::naming::{Aliases, Naming, Prefix, Rules, UpstreamNaming};
use ringway::routing::joined::sessions::SessionLimits;
use ringway::routing::joined::{ASKED_STRIDE, SeatId};
use ringway::routing::private::Order;
use ringway::routing::shard::{ShardLimits, ShardState};
use ringway::routing::time::Millis;
use ringway::runtime::clock;
use ringway::runtime::counters::Counters;
use ringway::runtime::driver::Driver;
use ringway::wire::handshake::Offer;

use crate::checks::Tally;
use crate::dice::Dice;
use crate::joined::client::{Call, Client, Opening};
use crate::joined::server::{Question, Server};

pub(crate) const EVERYTHING: Offer = Offer {
    get_streams: true,
    tasks: false,
};

/// Longer than any run, milliseconds.
pub(crate) const LONG: u64 = 1_000_000_000_000;

/// How an upstream of the route is configured.
#[derive(Clone, Debug)]
pub(crate) struct Up {
    pub(crate) server: usize,
    pub(crate) prefix: Prefix,
    pub(crate) has_alias: bool,
    pub(crate) required: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Open,
    Act,
    Speak,
    Client,
    Tick,
    Reload,
    Vanish,
}

pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) tally: Tally,
    pub(crate) fingerprint: u64,
    pub(crate) ground: Rc<Ground>,
    pub(crate) joined: Rc<Joined>,
    pub(crate) route: Vec<Up>,
    /// How often it was configured.
    pub(crate) configured: usize,
    /// All that ever were.
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    pub(crate) calls: Vec<Call>,
    pub(crate) openings: Vec<Opening>,
    pub(crate) questions: Vec<Question>,
    pub(crate) now: u64,
    timeout_ms: u64,
    pub(crate) cancels_on_disconnect: bool,
    /// Servers fail, and sessions end by them.
    pub(crate) has_faults: bool,
    pub(crate) is_calm: bool,
    /// Sessions may end in this step, and the session that its client ends.
    pub(crate) may_end: bool,
    steps: usize,
    is_traced: bool,
}

impl World {
    pub(crate) fn new(seed: u64, is_traced: bool) -> World {
        let mut dice = Dice::new(seed ^ 0x6a09_e667);
        let cancels_on_disconnect = dice.chance(30);
        let timeout_ms = if dice.chance(25) { 1 } else { LONG };
        let has_faults = dice.chance(80);
        let config = FaceConfig {
            policy: Policy::new(true, &[], &[]).expect("a policy"),
            response_mode: ResponseMode::Auto,
            body_bytes_max: 1 << 20,
            id_bytes_max: 1_000,
            connections_max: 10_000,
            header_timeout_ms: LONG,
            body_timeout_ms: LONG,
            idle_timeout_ms: LONG,
            write_timeout_ms: LONG,
            buffered_bytes_max: 256 << 20,
            cancel_on_disconnect: cancels_on_disconnect,
            get_streams: true,
            keep_alive_ms: LONG,
        };
        let counters = Arc::new(Counters::default());
        let ground = Ground::new(0, 1, Driver::Epoll, Arc::new(config), Vec::new(), counters);
        let none = UpstreamNaming {
            name: "none".into(),
            ..UpstreamNaming::default()
        };
        let joined = Joined::new(
            ground.clone(),
            settings(vec![none], Vec::new()),
            Arc::default(),
        );
        let service = Service::Joined(joined.clone());
        let route = Route::new("/mcp".into(), None, service);
        ground.set_routes(vec![route], Pass::default());
        let mut world = World {
            dice,
            tally: Tally::default(),
            fingerprint: 0,
            ground,
            joined,
            route: Vec::new(),
            configured: 0,
            servers: Vec::new(),
            clients: Vec::new(),
            calls: Vec::new(),
            openings: Vec::new(),
            questions: Vec::new(),
            now: 60_000,
            timeout_ms,
            cancels_on_disconnect,
            has_faults,
            is_calm: false,
            may_end: false,
            steps: 0,
            is_traced,
        };
        world.reload();
        world
    }

    pub(crate) fn run(mut self) -> (Tally, u64) {
        let weights = [
            (2, Step::Open),
            (30, Step::Act),
            (36, Step::Speak),
            (26, Step::Client),
            (3, Step::Tick),
            (1, Step::Reload),
            (2, Step::Vanish),
        ];
        let steps = self.dice.between(50, 600);
        for _ in 0..steps {
            let what = self.dice.weighted(&weights);
            self.trace(|| format!("{what:?}"));
            self.may_end = false;
            match what {
                Step::Open => self.open(),
                Step::Act => self.act(),
                Step::Speak => self.speak(),
                Step::Client => self.client_goes_on(),
                Step::Tick => self.tick(),
                Step::Reload => self.reload(),
                Step::Vanish => self.vanish(),
            }
            self.pump();
            self.sessions_end_for_a_reason();
            self.steps += 1;
        }
        self.come_to_rest();
        self.tally.many("steps", steps);
        (self.tally, self.fingerprint)
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            eprintln!("{:>5}  {}", self.steps, what());
        }
    }

    /// Something has happened that must happen again when the seed is run again.
    pub(crate) fn has_seen(&mut self, what: &str) {
        self.trace(|| what.chars().take(300).collect());
        for byte in what.bytes() {
            self.fingerprint = (self.fingerprint ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Time passes: what is retried is retried, and where time-outs are short all that is in
    /// flight is late.
    pub(crate) fn tick(&mut self) {
        // Ahead of the process's clock, by which what waits is due.
        self.now = self.now.max(clock::now().0) + 60_000;
        for up in &self.route {
            self.servers[up.server].shard().tick(Millis(self.now));
        }
        self.joined.tick(Millis(self.now));
    }

    fn server(&mut self, name: &str, is_private: bool) -> usize {
        let place = self.servers.len();
        let limits = ShardLimits {
            sessions_max: 40,
            calls_max: 200,
            calls_per_session_max: 8,
            subscriptions_per_session_max: 4,
            tasks_per_session_max: 4,
            uri_bytes_max: 200,
            waiting_bytes_max: 4 << 20,
            request_timeout_ms: self.timeout_ms,
            request_timeout_max_ms: self.timeout_ms,
            session_ttl_ms: LONG,
            session_unused_ms: LONG,
        };
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, place as u64);
        let now = clock::now();
        let mut state = ShardState::new(0, 1, limits, hasher, now)
            .in_place(place as u64 % ASKED_STRIDE, ASKED_STRIDE);
        if is_private {
            state = state.with_private(EVERYTHING, now);
        }
        let counters = Arc::new(Counters::default());
        let shard = Shard::new(self.ground.clone(), state, Rc::default(), counters);
        let orders: Rc<RefCell<VecDeque<Order>>> = Rc::default();
        if is_private {
            let queue = orders.clone();
            let carry_out = move |order| queue.borrow_mut().push_back(order);
            shard.connect_upstream(String::new(), Box::new(carry_out));
        }
        let seat = Seat {
            id: SeatId(place as u32 + 1),
            shard,
        };
        self.servers
            .push(Server::new(name, place, is_private, seat, orders));
        place
    }

    /// The route gets other upstreams, in another order, with other names.
    pub(crate) fn reload(&mut self) {
        let mut names = vec!["one", "two", "three"];
        let count = self.dice.between(1, 3);
        let mut route = Vec::new();
        let mut bare = false;
        while route.len() < count {
            let name = names.remove(self.dice.below(names.len()));
            let known = self.route.iter().map(|up| up.server);
            let known = known.clone().find(|at| self.servers[*at].name == name);
            let server = match known.filter(|_| self.dice.chance(85)) {
                Some(at) => at,
                None => {
                    let is_private = self.dice.chance(50);
                    let at = self.server(name, is_private);
                    if !is_private && self.dice.chance(90) {
                        self.servers[at].up(false);
                    }
                    at
                }
            };
            let prefix = match self.dice.below(10) {
                0 | 1 if !bare => Prefix::Never,
                2 => Prefix::Always,
                _ => Prefix::Auto,
            };
            bare |= prefix == Prefix::Never || prefix == Prefix::Auto && count == 1;
            route.push(Up {
                server,
                prefix,
                has_alias: self.dice.chance(40),
                required: self.dice.chance(15),
            });
        }
        let naming = route.iter().map(|up| {
            let name = self.servers[up.server].name.clone();
            let mut aliases = Aliases::default();
            if up.has_alias {
                aliases.tools = vec![(format!("nick.{name}"), "al".into())];
                aliases.prompts = aliases.tools.clone();
                aliases.resources = vec![(format!("nick:{name}"), "al:x".into())];
            }
            UpstreamNaming {
                name,
                prefix: up.prefix,
                aliases,
                ..UpstreamNaming::default()
            }
        });
        let upstreams = route.iter().map(|up| UpstreamSettings {
            name: self.servers[up.server].name.clone(),
            required: up.required,
        });
        let settings = settings(naming.collect(), upstreams.collect());
        let seats = route.iter().map(|up| self.servers[up.server].seat.clone());
        let seats = seats.collect();
        let before = std::mem::replace(&mut self.route, route);
        let shape = format!("{:?}", self.route);
        self.has_seen(&shape);
        self.joined.configure(settings, seats);
        self.configured += 1;
        for up in before {
            if !self.is_served(up.server) {
                self.pump_server(up.server);
                self.ground.remove_seat(self.servers[up.server].shard());
                self.servers[up.server].is_gone = true;
            }
        }
        self.tally.count("reloads");
    }

    pub(crate) fn is_served(&self, server: usize) -> bool {
        self.route.iter().any(|up| up.server == server)
    }

    /// What a thing of a server is called now. `None`: the route does not have the server.
    pub(crate) fn public(&self, server: usize, own: &str) -> Option<String> {
        let up = self.route.iter().find(|up| up.server == server)?;
        let name = &self.servers[server].name;
        let has_prefix = match up.prefix {
            Prefix::Always => true,
            Prefix::Never => false,
            Prefix::Auto => self.route.len() > 1,
        };
        Some(match (up.has_alias, own, has_prefix) {
            (true, "al", _) => format!("nick.{name}"),
            (true, "al:x", _) => format!("nick:{name}"),
            (_, own, true) => format!("{name}-{own}"),
            (_, own, false) => own.into(),
        })
    }
}

fn settings(naming: Vec<UpstreamNaming>, upstreams: Vec<UpstreamSettings>) -> Arc<RouteSettings> {
    Arc::new(RouteSettings {
        name: "route".into(),
        naming: Naming::new(&naming, &Rules::default()).expect("names"),
        upstreams,
        limits: SessionLimits {
            sessions_max: 12,
            ttl_ms: LONG,
            unused_ms: LONG,
            calls_max: 10_000,
            subscriptions_max: 10_000,
        },
        cursor_key: [7; 32],
        hooks: None,
    })
}
