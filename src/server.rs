//! Start, run, drain, stop: the only place that knows every part. The main
//! thread leads the lives of the upstreams, waits for events, and decides
//! how the process ends.

mod bridge;
mod events;
mod hub_thread;
mod life;
mod listen;
mod plan;
mod private;
mod reload;
mod routes;
mod running;
mod seat;
mod settings;
mod shard_thread;
mod status;
#[cfg(test)]
mod tests;
mod upstream;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tracing::Span;

use crate::admin;
use crate::cli::{Config, ServerPlace};
use crate::config::{self, Process};
use crate::hooks::Hook;
use crate::http::auth::Tokens;
use crate::http::policy::Policy;
use crate::http::token_file::{TokenCell, TokenFile, TokenFileError};
use crate::routing::hub::OpenError;
use crate::routing::joined::SeatId;
use crate::runtime::clock;
use crate::runtime::driver::Driver;
use crate::upstream::child::StartError;
use crate::upstream::http::client::UpstreamError;
use crate::wire::handshake::Handshake;
use events::{Event, watch_signals};
use plan::{Threads, ThreadsPlan};
use reload::ConfigInForce;
use running::{Mode, Running};
use seat::{NewSeat, SeatBounds, SeatError, SeatSettings};
use shard_thread::{RoutePlan, ServicePlan};
use status::{Serves, Status};
use upstream::Identity;

/// Why the process ends with an error. Each is one sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}{}", taken(.source))]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(
        "cannot listen on {address} for the admin listener: {source}; choose another address with --admin (`admin` in a configuration file), or `off`"
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
    /// Something of a configuration file. What is wrong is said of its route or upstream.
    #[error("{about}: {source}")]
    Of {
        about: String,
        source: Box<ServerError>,
    },
    #[error("{}", .0.join("; "))]
    Routes(Vec<String>),
}

impl From<SeatError> for ServerError {
    fn from(error: SeatError) -> ServerError {
        match error {
            SeatError::Http(error) => ServerError::Upstream(error),
            SeatError::Mailboxes(source) => ServerError::Setup {
                what: "the mailboxes",
                source,
            },
            SeatError::Bridge(source) => ServerError::Setup {
                what: "a thread",
                source,
            },
        }
    }
}

fn taken(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another process listens there, choose another port with --listen (`listen` in a configuration file)"
        }
        _ => "",
    }
}

/// What every start begins with.
struct Start {
    events: Sender<Event>,
    heard: Receiver<Event>,
    /// The soft limit on open files as it was, for the servers.
    open_files: u64,
    address: SocketAddr,
    listeners: Vec<TcpListener>,
}

impl Start {
    fn new(listen: SocketAddr, shards: usize) -> Result<Start, ServerError> {
        let open_files = raise_open_files();
        let (events, heard) = channel();
        watch_signals(events.clone()).map_err(setup("the signals"))?;
        let (address, listeners) = listen::listen(listen, shards)?;
        Ok(Start {
            events,
            heard,
            open_files,
            address,
            listeners,
        })
    }
}

fn setup(what: &'static str) -> impl Fn(std::io::Error) -> ServerError {
    move |source| ServerError::Setup { what, source }
}

fn seat_bounds(process: &Process, start: &Start) -> SeatBounds {
    SeatBounds {
        line_bytes_max: process.line_bytes_max,
        buffered_bytes_max: process.face.buffered_bytes_max,
        get_streams: process.face.get_streams,
        open_files: start.open_files,
    }
}

fn threads_plan(process: &Process, listeners: Vec<TcpListener>) -> ThreadsPlan {
    ThreadsPlan {
        hub_is_own: process.hub_is_own,
        cores: process.cores.clone(),
        driver: process.driver,
        ring_flags: process.ring_flags,
        face: process.face.clone(),
        listeners,
    }
}

/// Serves one server as it is. Runs until a signal or a failure. The returned error is the
/// reason for exit code 1.
pub fn run(config: Config) -> Result<(), ServerError> {
    clock::now();
    let tokens = config
        .token_file
        .as_deref()
        .map(TokenFile::open)
        .transpose()?;
    let process = config.process;
    let start = Start::new(process.listen, process.shards)?;
    let address = start.address;
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
        shards: process.shards,
        hub: match &config.server {
            ServerPlace::Http(server) if !server.is_shared => "none",
            _ if process.hub_is_own => "own",
            _ => "shard",
        },
    };
    let bounds = seat_bounds(&process, &start);
    let settings = SeatSettings {
        place: config.server,
        limits: process.limits,
        start_timeout: process.start_timeout,
    };
    let plan = threads_plan(&process, start.listeners);
    let mut threads = Threads::new(plan, start.events.clone()).map_err(setup("the mailboxes"))?;
    let identity = Identity {
        seat: SeatId::ONLY,
        names: None,
        span: Span::none(),
    };
    let counters = threads.counters().to_vec();
    let seat = NewSeat::new(identity, settings, &bounds, &threads, Some(&counters))?;
    let status = Status::new(counters, Serves::One(seat.status.clone()));
    start_admin(process.admin, &status)?;
    let handles = threads.start().map_err(setup("a thread"))?;
    let mut upstream = seat.add(&bounds, &threads, &start.events);
    upstream.is_vital = true;
    let routes = [RoutePlan {
        name: String::new(),
        path: config.path,
        tokens,
        service: ServicePlan::Plain(SeatId::ONLY),
    }];
    threads.set_routes(&routes.into(), &config.pass);
    let mode = Mode::One { banner };
    let running = Running::new(
        start.heard,
        vec![upstream],
        threads,
        status,
        process.drain_timeout,
        mode,
    );
    let outcome = running.run();
    drop(handles);
    outcome
}

/// Serves the routes of a configuration file, which is read again when a SIGHUP asks for it.
/// Runs until a signal or a failure. The returned error is the reason for exit code 1.
pub fn run_file(
    path: PathBuf,
    file: config::File,
    hooks: Vec<Arc<dyn Hook>>,
) -> Result<(), ServerError> {
    clock::now();
    let process = file.process.clone();
    let start = Start::new(process.listen, process.shards)?;
    let bounds = seat_bounds(&process, &start);
    let plan = threads_plan(&process, start.listeners);
    let mut threads = Threads::new(plan, start.events.clone()).map_err(setup("the mailboxes"))?;
    let status = Status::new(threads.counters().to_vec(), Serves::Routes(Vec::new()));
    let mut in_force = ConfigInForce::new(path, &file, bounds, start.address, start.events, hooks);
    let prepared = in_force
        .prepare(file, &threads)
        .map_err(ServerError::Routes)?;
    start_admin(process.admin, &status)?;
    let handles = threads.start().map_err(setup("a thread"))?;
    let mut upstreams = Vec::new();
    in_force.put_into_force(prepared, &threads, &mut upstreams, &status);
    in_force.mark_vital(&mut upstreams);
    let mode = Mode::Routes(Box::new(in_force));
    let running = Running::new(
        start.heard,
        upstreams,
        threads,
        status,
        process.drain_timeout,
        mode,
    );
    let outcome = running.run();
    drop(handles);
    outcome
}

fn start_admin(
    admin: Option<(SocketAddr, Policy)>,
    status: &Arc<Status>,
) -> Result<(), ServerError> {
    let Some((address, policy)) = admin else {
        return Ok(());
    };
    let failed = |source| ServerError::Admin { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    admin::start(listener, policy, status.clone()).map_err(failed)?;
    tracing::info!(%address, "admin listener");
    Ok(())
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
