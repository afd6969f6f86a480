//! What the main thread does while the others run: it leads the lives of the upstreams, waits for
//! events, and decides how the process ends.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGHUP;

use super::events::Event;
use super::life::Failure;
use super::plan::Threads;
use super::reload::ConfigInForce;
use super::status::{Phase, Status};
use super::upstream::{Trouble, Upstream};
use super::{Banner, ServerError, print_line};
use crate::limits::{FAREWELL_MS, TICK_MS};
use crate::runtime::clock;
use crate::runtime::driver::Driver;
use crate::upstream::hub::HubEvent;
use crate::wire::handshake::Handshake;

/// What is served.
pub(super) enum Mode {
    /// One upstream, as it is.
    One { banner: Banner },
    /// The routes of a configuration file.
    Routes(Box<ConfigInForce>),
}

/// What the main thread holds.
pub(super) struct Running {
    heard: Receiver<Event>,
    upstreams: Vec<Upstream>,
    threads: Threads,
    status: Arc<Status>,
    drain_timeout: Duration,
    mode: Mode,
    /// The threads that stop what was removed.
    stopping: Vec<JoinHandle<()>>,
    /// The configuration file is to be read again.
    is_reload_due: bool,
}

/// How the start ends.
enum Opened {
    /// How the threads run, and the first handshake where there is one upstream with one.
    Serving(Driver, Option<Arc<Handshake>>),
    /// A signal came first.
    Stopped,
}

impl Running {
    pub(super) fn new(
        heard: Receiver<Event>,
        upstreams: Vec<Upstream>,
        threads: Threads,
        status: Arc<Status>,
        drain_timeout: Duration,
        mode: Mode,
    ) -> Running {
        Running {
            heard,
            upstreams,
            threads,
            status,
            drain_timeout,
            mode,
            stopping: Vec::new(),
            is_reload_due: false,
        }
    }

    /// From the start to the end.
    pub(super) fn run(mut self) -> Result<(), ServerError> {
        match self.open() {
            Ok(Opened::Serving(driver, handshake)) => {
                self.status.set_driver(driver);
                self.status.set_phase(Phase::Serving);
                self.threads.open();
                print_line(self.banner(driver, handshake.as_deref()));
                let outcome = self.serve();
                self.stop();
                outcome
            }
            Ok(Opened::Stopped) => {
                self.stop();
                Ok(())
            }
            Err(error) => {
                match self.mode {
                    // Nothing was served yet: there is nothing to wait for.
                    Mode::One { .. } => self.kill(),
                    // It is not the fault of the others.
                    Mode::Routes(_) => self.stop(),
                }
                Err(error)
            }
        }
    }

    fn banner(&self, driver: Driver, handshake: Option<&Handshake>) -> String {
        match &self.mode {
            Mode::One { banner } => {
                let place = self.upstreams.first().map(Upstream::name);
                banner.line(driver, handshake, &place.unwrap_or_default())
            }
            Mode::Routes(config) => config.banner(driver, &self.threads),
        }
    }

    /// Waits for every loop, and for every upstream until it is up or was tried.
    fn open(&mut self) -> Result<Opened, ServerError> {
        let mut ready = 0;
        let mut driver = Driver::Uring;
        let mut handshake = None;
        loop {
            let is_ready = ready == self.threads.count();
            let event = match is_ready {
                // The time of the servers begins when they can be heard.
                false => self.heard.recv().ok(),
                true => {
                    for place in 0..self.upstreams.len() {
                        let trouble = self.upstreams[place].tick();
                        self.judge_start(place, trouble)?;
                    }
                    if self.upstreams.iter().all(Upstream::has_settled) {
                        return Ok(Opened::Serving(driver, handshake));
                    }
                    self.next_event()
                }
            };
            match event {
                Some(Event::Ready(of_thread)) => {
                    ready += 1;
                    if of_thread == Driver::Epoll {
                        driver = Driver::Epoll;
                    }
                }
                Some(Event::Signal(SIGHUP)) => self.is_reload_due = true,
                Some(Event::Signal(_)) => return Ok(Opened::Stopped),
                Some(Event::ThreadEnded { thread, how }) => {
                    return Err(ServerError::Thread(thread, how));
                }
                Some(event) => {
                    if let Event::Hub(_, HubEvent::Open(outcome)) = &event {
                        handshake = Some(outcome.clone());
                    }
                    let (place, trouble) = self.hear(event);
                    self.judge_start(place, trouble)?;
                }
                None => {}
            }
        }
    }

    /// The next event; `None`: something is due before.
    fn next_event(&self) -> Option<Event> {
        let due = self.upstreams.iter().filter_map(Upstream::due).min();
        match due {
            None => self.heard.recv().ok(),
            Some(due) => {
                let left = Duration::from_millis(due.since(clock::now()));
                self.heard.recv_timeout(left).ok()
            }
        }
    }

    /// Gives an event to the upstream that it is about. Returns its place too.
    fn hear(&mut self, event: Event) -> (usize, Option<Trouble>) {
        let place = self.upstreams.iter().position(|it| it.is_about(&event));
        match place {
            Some(place) => (place, self.upstreams[place].hear(event)),
            None => {
                // A server that came when its upstream was gone is ended.
                if matches!(event, Event::Launched { .. }) {
                    let ending = std::thread::Builder::new().name("ringway-end".into());
                    self.stopping.extend(ending.spawn(move || drop(event)));
                }
                (0, None)
            }
        }
    }

    /// What trouble at the start means: without an upstream that is required there is none.
    fn judge_start(&self, place: usize, trouble: Option<Trouble>) -> Result<(), ServerError> {
        let Some(upstream) = self.upstreams.get(place).filter(|it| it.is_vital) else {
            return Ok(());
        };
        let error = match trouble {
            None => return Ok(()),
            Some(Trouble::Failed(failure)) => failed(upstream, failure),
            Some(Trouble::Stuck) => ServerError::Stuck(upstream.name()),
        };
        Err(about(upstream, error))
    }

    /// Serves until a signal asks for the end, then drains.
    fn serve(&mut self) -> Result<(), ServerError> {
        loop {
            if std::mem::take(&mut self.is_reload_due) {
                self.reload();
            }
            for place in 0..self.upstreams.len() {
                let trouble = self.upstreams[place].tick();
                self.judge(place, trouble)?;
            }
            match self.next_event() {
                Some(Event::Signal(SIGHUP)) => self.is_reload_due = true,
                Some(Event::Signal(signal)) => {
                    tracing::info!(signal, "draining; a second signal ends at once");
                    return self.drain();
                }
                Some(Event::ThreadEnded { thread, how }) => {
                    return Err(ServerError::Thread(thread, how));
                }
                Some(event) => {
                    let (place, trouble) = self.hear(event);
                    self.judge(place, trouble)?;
                }
                None => {}
            }
        }
    }

    /// What trouble means while Ringway serves: others go on without one that is not required.
    fn judge(&self, place: usize, trouble: Option<Trouble>) -> Result<(), ServerError> {
        match (trouble, self.upstreams.get(place)) {
            (Some(Trouble::Stuck), Some(upstream)) if upstream.is_vital => {
                Err(about(upstream, ServerError::Stuck(upstream.name())))
            }
            _ => Ok(()),
        }
    }

    /// Reads the configuration file again.
    fn reload(&mut self) {
        self.stopping.retain(|stopping| !stopping.is_finished());
        match &mut self.mode {
            Mode::One { .. } => tracing::info!("SIGHUP has no meaning without --config"),
            Mode::Routes(config) => {
                let stopping = config.reload(&self.threads, &mut self.upstreams, &self.status);
                self.stopping.extend(stopping);
            }
        }
    }

    /// New calls are refused, those in flight finish, for `--drain-timeout` at
    /// most or until a second signal.
    fn drain(&mut self) -> Result<(), ServerError> {
        self.status.set_phase(Phase::Draining);
        let mut deadline = Instant::now() + self.drain_timeout;
        let mut is_last = false;
        self.threads.drain();
        let mut left = self.threads.shards();
        while left > 0 {
            let patience = deadline.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(patience) {
                Ok(Event::Drained) => left -= 1,
                Ok(Event::Signal(SIGHUP)) => {}
                Ok(Event::Signal(_)) => {
                    tracing::warn!("a second signal: ending at once");
                    break;
                }
                Ok(Event::ThreadEnded { thread, how }) => {
                    return Err(ServerError::Thread(thread, how));
                }
                Ok(event @ (Event::ServerEnded { .. } | Event::Hub(_, HubEvent::Deaf))) => {
                    // Others of its group may hold its stdout open.
                    self.hear(event);
                }
                Ok(_) => {}
                Err(_) if is_last => {
                    tracing::warn!("not all could be told of it in time");
                    break;
                }
                Err(_) => {
                    // Clients and servers are told that it is over.
                    tracing::warn!("calls in flight after --drain-timeout are cancelled");
                    is_last = true;
                    deadline = Instant::now() + Duration::from_millis(FAREWELL_MS + TICK_MS * 4);
                    self.threads.drain();
                }
            }
        }
        Ok(())
    }

    /// Stops all servers: their stdins are closed first. Each has its own time for it.
    fn stop(&mut self) {
        let stopping = self.upstreams.iter_mut().filter_map(Upstream::stop);
        self.stopping.extend(stopping);
        self.join();
        tracing::info!("stopped");
    }

    fn kill(&mut self) {
        let ending = self.upstreams.iter_mut().filter_map(Upstream::kill);
        self.stopping.extend(ending);
        self.join();
    }

    fn join(&mut self) {
        for stopping in self.stopping.drain(..) {
            let _ = stopping.join();
        }
    }
}

/// Why the start fails with an upstream that did not come up.
fn failed(upstream: &Upstream, failure: Failure) -> ServerError {
    let name = upstream.name();
    match failure {
        Failure::Start(error) => ServerError::Start(error),
        Failure::Ended(how) if upstream.is_bridge() => ServerError::NoSession(name, how),
        Failure::Ended(how) => ServerError::EndedEarly(name, how),
        Failure::Closed => ServerError::ClosedEarly(name),
        Failure::Silent(timeout) => ServerError::Silent(name, timeout),
        Failure::Handshake(error) => ServerError::Handshake(name, error),
    }
}

/// The error with the names of the upstream, if it has any.
fn about(upstream: &Upstream, error: ServerError) -> ServerError {
    match &upstream.identity.names {
        None => error,
        Some((route, upstream)) => ServerError::Of {
            about: format!("the upstream {upstream} of the route {route} is required"),
            source: Box::new(error),
        },
    }
}
