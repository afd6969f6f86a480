//! Start, run, drain, stop: the only place that knows every part. The main
//! thread leads the life of the server's process, waits for events, and decides
//! how the process ends.

mod bridge;
mod events;
mod hub_thread;
mod listen;
mod plan;
mod private;
mod shard_thread;
mod status;
mod upstream;

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGHUP;

use crate::admin::{self, Readiness};
use crate::cli::{Config, HttpServer, ServerPlace};
use crate::http::auth::Tokens;
use crate::http::token_file::{TokenCell, TokenFile, TokenFileError};
use crate::limits::{FAREWELL_MS, TICK_MS};
use crate::routing::hub::OpenError;
use crate::routing::letters::ToShard;
use crate::runtime::bell::{Post, PostError};
use crate::runtime::clock;
use crate::runtime::driver::Driver;
use crate::upstream::child::StartError;
use crate::upstream::http::{self, client::UpstreamError};
use crate::upstream::hub::HubEvent;
use crate::wire::handshake::Handshake;
use events::{Event, watch_signals};
use plan::Plan;
use status::Status;
use upstream::{Origin, Upstream};

/// Why the process ends with an error. Each is one sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}{}", taken(.source))]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(
        "cannot listen on {address} for the admin listener: {source}; choose another address with --admin, or --admin off"
    )]
    Admin {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    #[error("cannot set up {what}: {source}")]
    Setup {
        what: &'static str,
        source: std::io::Error,
    },
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("the server {0} ended before its handshake ({1})")]
    EndedEarly(String, String),
    #[error("no session at the server {0}: {1}")]
    NoSession(String, String),
    #[error("the server {0} closed its stdout before its handshake")]
    ClosedEarly(String),
    #[error("the server {0} did not answer initialize within {1:?} (--start-timeout)")]
    Silent(String, Duration),
    #[error("the handshake with the server {0} failed: {1}")]
    Handshake(String, OpenError),
    #[error("the server {0} has ended, but something of it lives on and holds its pipes open")]
    Stuck(String),
    #[error("the thread {0} has ended: {1}")]
    Thread(String, String),
}

fn taken(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another process listens there, choose another port with --listen"
        }
        _ => "",
    }
}

/// Runs until a signal or a failure. The returned error is the reason for exit
/// code 1.
pub fn run(mut config: Config) -> Result<(), ServerError> {
    clock::now();
    let setup = |what| move |source| ServerError::Setup { what, source };
    let tokens = config
        .token_file
        .as_deref()
        .map(TokenFile::open)
        .transpose()?;
    let open_files = raise_open_files();
    let (events, heard) = channel();
    watch_signals(events.clone()).map_err(setup("the signals"))?;
    let (address, listeners) = listen::listen(config.listen, config.shards)?;
    if tokens.is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            "anyone who reaches this address can use the server: set --auth-token-file, or listen on loopback"
        );
    }
    let tokens = tokens
        .map(watch_tokens)
        .transpose()
        .map_err(setup("the watch on the token file"))?;
    let banner = Banner {
        address,
        path: config.path.clone(),
        shards: config.shards,
        hub: match &config.server {
            ServerPlace::Http(server) if !server.is_shared => "none",
            _ if config.hub_is_own => "own",
            _ => "shard",
        },
    };
    let (start_timeout, drain_timeout) = (config.start_timeout, config.drain_timeout);
    let place = config.server.clone();
    let http = match &place {
        ServerPlace::Http(server) => Some(http_upstream(
            server,
            config.line_bytes_max,
            config.face.buffered_bytes_max,
        )?),
        ServerPlace::Command(_) => None,
    };
    let admin = config.admin.take();
    let (plan, posts) = Plan::new(config, tokens, listeners, events.clone(), http.clone())
        .map_err(setup("the mailboxes"))?;
    let threads = plan.threads();
    let status = Status::new(
        posts.shard_counters,
        posts.hub_counters,
        posts.http_counters,
    );
    if let Some((address, policy)) = admin {
        let failed = |source| ServerError::Admin { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        admin::start(listener, policy, status.clone()).map_err(failed)?;
        tracing::info!(%address, "admin listener");
    }
    let origin = match (place, posts.bridge) {
        (ServerPlace::Command(command), _) => Origin::Command(command),
        (ServerPlace::Http(server), Some(bridge)) => {
            Origin::Bridge(server.address.to_string(), bridge)
        }
        (ServerPlace::Http(server), None) => Origin::Elsewhere(server.address.to_string()),
    };
    let upstream = Upstream::new(origin, open_files, start_timeout, events, posts.hub);
    let mut running = Running {
        heard,
        upstream,
        status,
        shards: posts.shards,
        start_timeout,
        drain_timeout,
        process_end: None,
        deferred: VecDeque::new(),
    };
    running.upstream.start(clock::now())?;
    running.status.count_start();
    let handles = plan.start().map_err(setup("a thread"))?;
    let opened = running.open(threads);
    let outcome = match opened {
        Ok(Some((driver, handshake))) => {
            let place = running.upstream.name();
            print_line(banner.line(driver, handshake.as_deref(), &place));
            let outcome = running.serve();
            running.stop();
            outcome
        }
        Ok(None) => {
            running.stop();
            Ok(())
        }
        Err(error) => {
            // Nothing was served yet: there is nothing to wait for.
            running.upstream.end();
            running.upstream.wait_for_stderr();
            Err(error)
        }
    };
    drop(handles);
    outcome
}

/// The tokens in force, kept up with their file.
fn watch_tokens((file, tokens): (TokenFile, Tokens)) -> std::io::Result<Arc<TokenCell>> {
    let cell = TokenCell::new(tokens);
    file.watch(&cell)?;
    Ok(cell)
}

/// What the start-up line says besides the upstream.
struct Banner {
    address: SocketAddr,
    path: String,
    shards: usize,
    hub: &'static str,
}

impl Banner {
    /// `handshake`: `None` where each session makes its own, with the server at `place`.
    fn line(&self, driver: Driver, handshake: Option<&Handshake>, place: &str) -> String {
        let about = match handshake {
            Some(handshake) => format!(
                "upstream={:?} upstream-version={:?} protocol={}",
                handshake.server_name,
                handshake.server_version,
                handshake.version.as_str(),
            ),
            None => format!("upstream={place}"),
        };
        format!(
            "ringway {} listening on http://{}{} shards={} hub={} driver={driver} {about}",
            env!("CARGO_PKG_VERSION"),
            self.address,
            self.path,
            self.shards,
            self.hub,
        )
    }
}

/// Prints the start-up line from a thread of its own: a reader of our stdout
/// that stalls or is gone must not stop the main thread.
fn print_line(line: String) {
    let printing = std::thread::Builder::new()
        .name("ringway-stdout".into())
        .spawn(move || {
            if let Err(error) = writeln!(std::io::stdout(), "{line}") {
                tracing::warn!(%error, "cannot print the start-up line");
            }
        });
    if let Err(error) = printing {
        tracing::warn!(%error, "cannot print the start-up line");
    }
}

/// How the threads run, and the first handshake, where there is one.
type Opened = (Driver, Option<Arc<Handshake>>);

/// What all threads know of a server that is reached over HTTP.
fn http_upstream(
    server: &HttpServer,
    message_bytes_max: usize,
    buffered_bytes_max: usize,
) -> Result<Arc<http::Upstream>, UpstreamError> {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let settings = http::Settings {
        connections_max: server.connections_max,
        connect_timeout_ms: milliseconds(server.connect_timeout),
        idle_ms: milliseconds(server.idle_timeout),
        message_bytes_max,
        // Half of the budget: bodies and what waits have the other.
        partial_bytes_max: buffered_bytes_max / 2,
    };
    http::Upstream::new(server.address.clone(), server.ca.as_deref(), settings).map(Arc::new)
}

/// What the main thread holds while the others run.
struct Running {
    heard: Receiver<Event>,
    upstream: Upstream,
    status: Arc<Status>,
    shards: Vec<Post<ToShard>>,
    start_timeout: Duration,
    drain_timeout: Duration,
    /// How the server's process ended, once it has.
    process_end: Option<String>,
    /// What was heard while the end of the process was waited for.
    deferred: VecDeque<Event>,
}

/// How long the end of the server's process is waited for once its stdout has
/// ended: mostly the one follows the other at once.
const PROCESS_PATIENCE: Duration = Duration::from_millis(500);

impl Running {
    /// Waits for every loop and the first handshake. `None`: a signal came first.
    fn open(&mut self, threads: usize) -> Result<Option<Opened>, ServerError> {
        let deadline = Instant::now() + self.start_timeout;
        let mut ready = 0;
        let mut driver = Driver::Uring;
        let mut handshake = None;
        loop {
            if ready == threads && (handshake.is_some() || self.upstream.is_elsewhere()) {
                self.status.set_driver(driver);
                self.status.set_readiness(Readiness::Ready);
                return Ok(Some((driver, handshake.take())));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(Event::Ready(of_thread)) => {
                    ready += 1;
                    if of_thread == Driver::Epoll {
                        driver = Driver::Epoll;
                    }
                }
                Ok(Event::Hub(HubEvent::Open(outcome))) => {
                    self.upstream.opened(clock::now());
                    handshake = Some(outcome);
                }
                Ok(Event::Hub(HubEvent::Failed(error))) => {
                    return Err(ServerError::Handshake(self.upstream.name(), error));
                }
                Ok(Event::Hub(HubEvent::Closed(_) | HubEvent::Deaf)) => {
                    return Err(self.closed_early());
                }
                Ok(Event::ServerEnded { how, .. }) => return Err(self.ended_early(how)),
                Ok(Event::Signal(SIGHUP) | Event::Drained) => {}
                Ok(Event::Signal(_)) => return Ok(None),
                Ok(Event::ThreadEnded { thread, how }) => {
                    return Err(ServerError::Thread(thread, how));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let name = self.upstream.name();
                    return Err(ServerError::Silent(name, self.start_timeout));
                }
            }
        }
    }

    /// Its stdout is closed: mostly the process is about to end, and how it
    /// ended says more.
    fn closed_early(&mut self) -> ServerError {
        match self.wait_for_process(PROCESS_PATIENCE) {
            true => {
                let how = self.process_end.take().unwrap_or_default();
                self.ended_early(how)
            }
            false => ServerError::ClosedEarly(self.upstream.name()),
        }
    }

    fn ended_early(&self, how: String) -> ServerError {
        let name = self.upstream.name();
        match self.upstream.is_bridge() {
            true => ServerError::NoSession(name, how),
            false => ServerError::EndedEarly(name, how),
        }
    }

    /// Serves until a signal asks for the end, then drains.
    fn serve(&mut self) -> Result<(), ServerError> {
        loop {
            let event = match (self.deferred.pop_front(), self.upstream.due()) {
                (Some(event), _) => Some(event),
                (None, None) => self.heard.recv().ok(),
                (None, Some(due)) => {
                    let left = Duration::from_millis(due.since(clock::now()));
                    self.heard.recv_timeout(left).ok()
                }
            };
            match event {
                Some(Event::Signal(SIGHUP)) => tracing::info!("SIGHUP has no meaning yet"),
                Some(Event::Signal(signal)) => {
                    tracing::info!(signal, "draining; a second signal ends at once");
                    return self.drain();
                }
                Some(event) => self.lead_upstream(event)?,
                None => {}
            }
            if self.upstream.tick(clock::now()) {
                self.process_end = None;
                self.status.count_start();
            }
            if self.upstream.is_stuck(clock::now()) {
                return Err(ServerError::Stuck(self.upstream.name()));
            }
        }
    }

    /// What an event means for the server's life.
    fn lead_upstream(&mut self, event: Event) -> Result<(), ServerError> {
        match event {
            Event::Hub(HubEvent::Open(handshake)) => {
                self.upstream.opened(clock::now());
                self.status.set_readiness(Readiness::Ready);
                tracing::info!(
                    upstream = handshake.server_name,
                    version = handshake.server_version,
                    "the server is up again"
                );
            }
            Event::Hub(HubEvent::Failed(error)) => {
                tracing::error!(%error, "the handshake with the restarted server failed");
                self.upstream.end();
            }
            Event::Hub(HubEvent::Deaf) => {
                tracing::error!("the server has closed its stdin: ending it");
                self.upstream.end();
            }
            Event::Hub(HubEvent::Closed(error)) => {
                self.status.set_readiness(Readiness::UpstreamDown);
                // How it ended is known in a moment, unless it lives on without
                // its stdout; then it is ended.
                self.wait_for_process(PROCESS_PATIENCE);
                let pause_ms = self.upstream.closed(clock::now());
                let how = self.process_end.take();
                let error = error.map(|error| error.to_string());
                tracing::error!(
                    how,
                    error,
                    pause_ms,
                    "the server is gone, it will be started again"
                );
            }
            Event::ServerEnded { number, how } if self.upstream.is_current(number) => {
                self.process_end = Some(how);
                self.status.set_readiness(Readiness::UpstreamDown);
                // Others of its group may hold its stdout open.
                self.upstream.end();
            }
            Event::ThreadEnded { thread, how } => return Err(ServerError::Thread(thread, how)),
            Event::ServerEnded { .. } | Event::Ready(_) | Event::Drained | Event::Signal(_) => {}
        }
        Ok(())
    }

    /// New calls are refused, those in flight finish, for `--drain-timeout` at
    /// most or until a second signal.
    fn drain(&mut self) -> Result<(), ServerError> {
        self.status.set_readiness(Readiness::Draining);
        let mut deadline = Instant::now() + self.drain_timeout;
        let mut is_last = !self.upstream.is_elsewhere();
        self.tell_to_drain(deadline);
        let mut left = self.shards.len();
        while left > 0 {
            let patience = deadline.saturating_duration_since(Instant::now());
            let heard = match self.deferred.pop_front() {
                Some(event) => Ok(event),
                None => self.heard.recv_timeout(patience),
            };
            match heard {
                Ok(Event::Drained) => left -= 1,
                Ok(Event::Signal(SIGHUP)) => {}
                Ok(Event::Signal(_)) => {
                    tracing::warn!("a second signal: ending at once");
                    break;
                }
                Ok(Event::ServerEnded { number, how }) if self.upstream.is_current(number) => {
                    self.process_end = Some(how);
                    self.upstream.end();
                }
                Ok(Event::ThreadEnded { thread, how }) => {
                    return Err(ServerError::Thread(thread, how));
                }
                Ok(_) => {}
                Err(_) if is_last => {
                    tracing::warn!("calls are still in flight after --drain-timeout");
                    break;
                }
                Err(_) => {
                    // The sessions' own servers are told that it is over.
                    tracing::warn!("calls in flight after --drain-timeout are cancelled");
                    is_last = true;
                    deadline = Instant::now() + Duration::from_millis(FAREWELL_MS + TICK_MS * 4);
                    self.tell_to_drain(deadline);
                }
            }
        }
        Ok(())
    }

    fn tell_to_drain(&self, deadline: Instant) {
        for post in &self.shards {
            send_surely(post, || ToShard::Drain, deadline);
        }
    }

    /// Waits up to `patience` for the server's process to end.
    fn wait_for_process(&mut self, patience: Duration) -> bool {
        let Running {
            heard,
            process_end,
            deferred,
            ..
        } = self;
        wait_for_process(heard, process_end, deferred, patience)
    }

    /// Stops the server: its stdin is closed first.
    fn stop(&mut self) {
        let Running {
            heard,
            upstream,
            process_end,
            deferred,
            ..
        } = self;
        upstream.stop(|patience| wait_for_process(heard, process_end, deferred, patience));
        tracing::info!("stopped");
    }
}

fn wait_for_process(
    heard: &Receiver<Event>,
    process_end: &mut Option<String>,
    deferred: &mut VecDeque<Event>,
    patience: Duration,
) -> bool {
    let deadline = Instant::now() + patience;
    while process_end.is_none() {
        let left = deadline.saturating_duration_since(Instant::now());
        match heard.recv_timeout(left) {
            Ok(Event::ServerEnded { how, .. }) => *process_end = Some(how),
            Ok(event) => deferred.push_back(event),
            Err(_) => return false,
        }
    }
    true
}

/// The main thread may wait for a mailbox, unlike the others.
fn send_surely(post: &Post<ToShard>, letter: impl Fn() -> ToShard, deadline: Instant) {
    while let Err(PostError::Full(_)) = post.send(letter()) {
        if Instant::now() > deadline {
            return;
        }
        post.ring();
        std::thread::sleep(Duration::from_millis(1));
    }
    post.ring();
}

/// Raises the soft limit on open files to the hard one. Returns the soft limit
/// as it was, for the server.
fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
    limit.current.unwrap_or(u64::MAX)
}
