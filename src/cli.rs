//! Flags to a validated [`Config`]. Nothing else reads flags or the environment, but for the
//! variables that a configuration file names as secrets.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::config::{Process, RouteLimits};
use crate::http::ground::{FaceConfig, Pass, ResponseMode};
use crate::http::policy::{Policy, PolicyError};
use crate::limits::{CALLS_MAX, SHARDS_MAX};
use crate::routing::shard::ShardLimits;
use crate::runtime::cores;
use crate::runtime::driver::{DriverChoice, RingFlags};
use crate::upstream::child::ServerCommand;
use crate::upstream::http::address::{Address, AddressError, FieldError, Fields};
use crate::values::{admin, bytes, connections, duration, listen, path, pin, ring_flags};
use crate::wire::scan::ID_BYTES_MAX;

/// Ringway: an MCP gateway. Many Streamable HTTP clients in front of one or several MCP servers
#[derive(Debug, Parser)]
#[command(name = "ringway", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve an MCP server over HTTP: COMMAND, which all clients share, or one that speaks HTTP
    /// (--upstream)
    #[command(
        allow_negative_numbers = true,
        override_usage = "ringway serve [OPTIONS] -- <COMMAND>...\n       ringway serve [OPTIONS] --upstream <URL>\n       ringway serve --config <FILE>"
    )]
    Serve {
        /// A configuration file (TOML) of routes and their servers, instead of a command and all
        /// flags but those of the log
        #[arg(
            long,
            env = "RINGWAY_CONFIG",
            value_name = "FILE",
            conflicts_with_all = NOT_BESIDE_CONFIG
        )]
        config: Option<PathBuf>,
        #[command(flatten)]
        flags: Box<ServeFlags>,
        #[command(flatten)]
        http: Box<HttpFlags>,
        /// The server's command and its arguments, after `--`
        #[arg(
            last = true,
            required_unless_present_any = ["upstream", "config"],
            conflicts_with = "upstream",
            value_name = "COMMAND"
        )]
        server: Vec<OsString>,
    },
    /// Say what is wrong with a configuration file, and start nothing
    Check {
        /// The configuration file
        #[arg(long, env = "RINGWAY_CONFIG", value_name = "FILE")]
        config: PathBuf,
    },
    /// Serve the built-in demo MCP server
    #[command(allow_negative_numbers = true)]
    Demo {
        #[command(flatten)]
        flags: Box<ServeFlags>,
    },
    /// Be the demo MCP server on stdin and stdout
    DemoServer,
    #[command(name = crate::upstream::guard::SUBCOMMAND, hide = true)]
    UpstreamGuard(crate::upstream::guard::GuardArguments),
}

/// What a configuration file says in place of flags: all of `serve` but those of the log.
const NOT_BESIDE_CONFIG: [&str; 45] = [
    "listen",
    "admin",
    "path",
    "allow_origin",
    "allow_host",
    "auth_token_file",
    "on_disconnect",
    "response_mode",
    "get_streams",
    "shards",
    "hub",
    "pin",
    "driver",
    "uring_flags",
    "max_body",
    "max_message",
    "max_connections",
    "max_sessions",
    "max_calls",
    "max_calls_per_session",
    "max_subscriptions_per_session",
    "max_tasks_per_session",
    "max_uri",
    "max_id",
    "max_buffered",
    "request_timeout",
    "request_timeout_max",
    "header_timeout",
    "body_timeout",
    "idle_timeout",
    "write_timeout",
    "keep_alive",
    "start_timeout",
    "drain_timeout",
    "session_ttl",
    "session_unused_ttl",
    "upstream",
    "share",
    "upstream_ca",
    "pass_header",
    "add_header",
    "upstream_connections",
    "upstream_connect_timeout",
    "upstream_idle_timeout",
    "server",
];

/// The variables that are set and that `serve` refuses beside a configuration file, in the
/// order of the flags.
pub fn variables_beside_config() -> Vec<String> {
    variables(|id| NOT_BESIDE_CONFIG.contains(&id))
}

/// The same, with the one that names a file.
pub fn variables_about_config() -> Vec<String> {
    variables(|id| id == "config" || NOT_BESIDE_CONFIG.contains(&id))
}

/// The variables that are set for these flags of `serve`.
fn variables(is_meant: impl Fn(&str) -> bool) -> Vec<String> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve");
    let flags = serve.into_iter().flat_map(clap::Command::get_arguments);
    let meant = flags.filter(|flag| is_meant(flag.get_id().as_str()));
    let are_set = |name: &&std::ffi::OsStr| std::env::var_os(name).is_some();
    let variables = meant.filter_map(clap::Arg::get_env).filter(are_set);
    variables
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// Where the hub lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HubChoice {
    /// A thread of its own from 3 cores on, else on shard 0.
    Auto,
    /// A thread of its own.
    Own,
    /// On the thread of shard 0.
    Shard,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct ServeFlags {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(
        long,
        env = "RINGWAY_LISTEN",
        default_value = "127.0.0.1:8080", value_parser = listen,
        value_name = "ADDR:PORT"
    )]
    listen: SocketAddr,
    /// Address of the admin listener (/healthz, /readyz, /metrics), or off
    #[arg(long, env = "RINGWAY_ADMIN", default_value = "127.0.0.1:9464", value_parser = admin, value_name = "ADDR:PORT|off")]
    admin: Admin,
    /// Path of the MCP endpoint
    #[arg(long, env = "RINGWAY_PATH", default_value = "/mcp", value_parser = path)]
    path: String,
    /// Origins that browsers may call from (scheme://host[:port]); on a loopback bind those of
    /// this machine are allowed besides
    #[arg(
        long,
        env = "RINGWAY_ALLOW_ORIGIN",
        value_delimiter = ',',
        value_name = "ORIGIN"
    )]
    allow_origin: Vec<String>,
    /// Host headers to accept (host or host:port); on a loopback bind localhost, 127.0.0.1 and
    /// [::1] are accepted besides; without this flag other binds accept any
    #[arg(
        long,
        env = "RINGWAY_ALLOW_HOST",
        value_delimiter = ',',
        value_name = "HOST"
    )]
    allow_host: Vec<String>,
    /// File of bearer tokens, a line NAME TOKEN each, reread when it changes; every request needs
    /// one of them then
    #[arg(long, env = "RINGWAY_AUTH_TOKEN_FILE", value_name = "FILE")]
    auth_token_file: Option<PathBuf>,
    /// A client that vanishes while its call is in flight: let the call run, or cancel it
    #[arg(long, env = "RINGWAY_ON_DISCONNECT", default_value = "run")]
    on_disconnect: OnDisconnect,
    /// Form of answers for clients that take both: auto gives JSON, or SSE when progress comes
    /// before the answer
    #[arg(long, env = "RINGWAY_RESPONSE_MODE", default_value = "auto")]
    response_mode: ResponseMode,
    /// Whether GET opens a stream, on which clients are told of changes; with off it is answered
    /// 405, and neither listChanged nor subscribe is offered
    #[arg(long, env = "RINGWAY_GET_STREAMS", default_value = "on")]
    get_streams: Switch,

    /// Threads that serve connections [default: 1 up to 2 cores, else cores minus 1]
    #[arg(long, env = "RINGWAY_SHARDS", help_heading = "Threads")]
    shards: Option<usize>,
    /// Where the one reader of the server lives: auto is own from 3 cores on
    #[arg(
        long,
        env = "RINGWAY_HUB",
        default_value = "auto",
        help_heading = "Threads"
    )]
    hub: HubChoice,
    /// Pin threads to cores: auto (where there are enough), off, or a list like 0,2-3
    #[arg(long, env = "RINGWAY_PIN", default_value = "auto", value_parser = pin, value_name = "auto|off|LIST", help_heading = "Threads")]
    pin: Pin,
    /// I/O driver: auto is io_uring where the kernel allows it
    #[arg(
        long,
        env = "RINGWAY_DRIVER",
        default_value = "auto",
        help_heading = "Threads"
    )]
    driver: DriverChoice,
    /// io_uring set-up flags: a list of coop, single, defer; or none
    #[arg(long, env = "RINGWAY_URING_FLAGS", default_value = "coop,single", value_parser = ring_flags, value_name = "LIST", help_heading = "Threads")]
    uring_flags: RingFlags,

    /// Largest request body, bytes (like 4MiB)
    #[arg(long, env = "RINGWAY_MAX_BODY", default_value = "4MiB", value_parser = bytes, value_name = "BYTES", help_heading = "Limits")]
    max_body: usize,
    /// Longest line of the server, bytes; a longer one is skipped
    #[arg(long, env = "RINGWAY_MAX_MESSAGE", default_value = "64MiB", value_parser = bytes, value_name = "BYTES", help_heading = "Limits")]
    max_message: usize,
    /// Connections at most, over all shards
    #[arg(
        long,
        env = "RINGWAY_MAX_CONNECTIONS",
        default_value_t = 65_536,
        help_heading = "Limits"
    )]
    max_connections: usize,
    /// Sessions at most, over all shards
    #[arg(
        long,
        env = "RINGWAY_MAX_SESSIONS",
        default_value_t = 262_144,
        help_heading = "Limits"
    )]
    max_sessions: usize,
    /// Calls in flight at most, over all shards
    #[arg(
        long,
        env = "RINGWAY_MAX_CALLS",
        default_value_t = 65_536,
        help_heading = "Limits"
    )]
    max_calls: usize,
    /// Calls in flight at most in one session
    #[arg(
        long,
        env = "RINGWAY_MAX_CALLS_PER_SESSION",
        default_value_t = 8_192,
        help_heading = "Limits"
    )]
    max_calls_per_session: usize,
    /// Resource subscriptions at most in one session
    #[arg(
        long,
        env = "RINGWAY_MAX_SUBSCRIPTIONS_PER_SESSION",
        default_value_t = 1_024,
        help_heading = "Limits"
    )]
    max_subscriptions_per_session: usize,
    /// Tasks at most in one session that are not finished
    #[arg(
        long,
        env = "RINGWAY_MAX_TASKS_PER_SESSION",
        default_value_t = 256,
        help_heading = "Limits"
    )]
    max_tasks_per_session: usize,
    /// Longest resource URI in a request, bytes; a longer one is refused (-32602)
    #[arg(long, env = "RINGWAY_MAX_URI", default_value = "8KiB", value_parser = bytes, value_name = "BYTES", help_heading = "Limits")]
    max_uri: usize,
    /// Longest id or progress token of a request, bytes; at most 1KiB
    #[arg(long, env = "RINGWAY_MAX_ID", default_value = "1KiB", value_parser = bytes, value_name = "BYTES", help_heading = "Limits")]
    max_id: usize,
    /// Bytes per shard of bodies, of calls that wait for a slow server, and of answers that wait
    /// for slow clients
    #[arg(long, env = "RINGWAY_MAX_BUFFERED", default_value = "256MiB", value_parser = bytes, value_name = "BYTES", help_heading = "Limits")]
    max_buffered: usize,

    /// Silence of the server after which a call is answered timeout
    #[arg(long, env = "RINGWAY_REQUEST_TIMEOUT", default_value = "300s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    request_timeout: Duration,
    /// Age at which a call is answered timeout, whatever was heard
    #[arg(long, env = "RINGWAY_REQUEST_TIMEOUT_MAX", default_value = "3600s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    request_timeout_max: Duration,
    /// From the first byte of a request head to its end
    #[arg(long, env = "RINGWAY_HEADER_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    header_timeout: Duration,
    /// From the end of a request head to the end of its body
    #[arg(long, env = "RINGWAY_BODY_TIMEOUT", default_value = "30s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    body_timeout: Duration,
    /// Silence of a connection between two requests
    #[arg(long, env = "RINGWAY_IDLE_TIMEOUT", default_value = "75s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    idle_timeout: Duration,
    /// For a client to take the next part of a response
    #[arg(long, env = "RINGWAY_WRITE_TIMEOUT", default_value = "30s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    write_timeout: Duration,
    /// Silence of an answer or a GET stream after which it is kept alive by a blank or a comment
    #[arg(long, env = "RINGWAY_KEEP_ALIVE", default_value = "15s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    keep_alive: Duration,
    /// For the server to answer the handshake
    #[arg(long, env = "RINGWAY_START_TIMEOUT", default_value = "30s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    start_timeout: Duration,
    /// For calls in flight to finish after SIGTERM
    #[arg(long, env = "RINGWAY_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    drain_timeout: Duration,
    /// Silence after which a session ends
    #[arg(long, env = "RINGWAY_SESSION_TTL", default_value = "30m", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    session_ttl: Duration,
    /// The same for a session that was never used after initialize
    #[arg(long, env = "RINGWAY_SESSION_UNUSED_TTL", default_value = "60s", value_parser = duration, value_name = "TIME", help_heading = "Times (like 500ms, 10s, 5m)")]
    session_unused_ttl: Duration,

    #[command(flatten)]
    pub log: LogFlags,
}

/// The log. These flags may stand beside a configuration file, and win over it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Log")]
pub struct LogFlags {
    /// Form of the log on stderr [default: text]
    #[arg(long, env = "RINGWAY_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Least level of the log [default: info]
    #[arg(long, env = "RINGWAY_LOG_LEVEL")]
    pub log_level: Option<LogLevel>,
}

/// A server that is reached over HTTP.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server over HTTP")]
pub struct HttpFlags {
    /// The server's MCP endpoint (http://HOST:PORT/PATH or https://...), instead of a command
    #[arg(long, env = "RINGWAY_UPSTREAM", value_name = "URL")]
    upstream: Option<String>,
    /// One session at the server for all clients, as with a command. Without it each client's
    /// session has its own there
    #[arg(long, env = "RINGWAY_SHARE", value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    share: bool,
    /// File of certificate authorities (PEM) for https, instead of the system's
    #[arg(long, env = "RINGWAY_UPSTREAM_CA", value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
    /// Names of headers of clients that are passed to the server; by default none is
    #[arg(
        long,
        env = "RINGWAY_PASS_HEADER",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pass_header: Vec<String>,
    /// A header of every request to the server, 'Name: value'; may be repeated (in the environment:
    /// one a line). The command line can be read by other users of the machine
    #[arg(
        long,
        env = "RINGWAY_ADD_HEADER",
        value_delimiter = '\n',
        value_name = "HEADER"
    )]
    add_header: Vec<String>,
    /// Connections to the server at most, of each shard, for calls, and as many for GET streams;
    /// further calls wait
    #[arg(long, env = "RINGWAY_UPSTREAM_CONNECTIONS", default_value_t = 1_024, value_parser = connections)]
    upstream_connections: usize,
    /// For a connection to the server to be made, with the look-up of its name
    #[arg(long, env = "RINGWAY_UPSTREAM_CONNECT_TIMEOUT", default_value = "5s", value_parser = duration, value_name = "TIME")]
    upstream_connect_timeout: Duration,
    /// A connection to the server that nobody uses is closed after this
    #[arg(long, env = "RINGWAY_UPSTREAM_IDLE_TIMEOUT", default_value = "30s", value_parser = duration, value_name = "TIME")]
    upstream_idle_timeout: Duration,
}

/// The MCP server behind Ringway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerPlace {
    /// A process that speaks on its stdin and stdout.
    Command(ServerCommand),
    Http(HttpServer),
}

/// A server that is reached over HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpServer {
    pub address: Address,
    pub ca: Option<PathBuf>,
    pub fields: Fields,
    /// One session at the server for all clients.
    pub is_shared: bool,
    pub connections_max: usize,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
}

impl HttpFlags {
    /// The server that the flags name, if they name one.
    pub fn server(self) -> Result<Option<HttpServer>, ConfigError> {
        let given = [
            ("--share", self.share),
            ("--upstream-ca", self.upstream_ca.is_some()),
            ("--pass-header", !self.pass_header.is_empty()),
            ("--add-header", !self.add_header.is_empty()),
        ];
        let Some(url) = &self.upstream else {
            let lonely = given.into_iter().find(|(_, is_given)| *is_given);
            return lonely.map_or(Ok(None), |(flag, _)| Err(ConfigError::NoUpstream(flag)));
        };
        let address = Address::parse(url)?;
        if self.upstream_ca.is_some() && !address.is_tls() {
            return Err(ConfigError::CaWithoutTls);
        }
        Ok(Some(HttpServer {
            address,
            ca: self.upstream_ca,
            fields: Fields::new(&self.pass_header, &self.add_header)?,
            is_shared: self.share,
            connections_max: self.upstream_connections,
            connect_timeout: self.upstream_connect_timeout,
            idle_timeout: self.upstream_idle_timeout,
        }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// What becomes of a call whose client has vanished.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OnDisconnect {
    /// It runs on; its answer is dropped.
    Run,
    /// It is cancelled upstream.
    Cancel,
}

/// Which cores the threads are pinned to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pin {
    /// One core a thread where there are enough cores.
    Auto,
    Off,
    /// These, in turn.
    List(Vec<usize>),
}

/// Where the admin listener is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admin {
    Off,
    At(SocketAddr),
}

/// What `serve` and `demo` run with, validated.
#[derive(Debug)]
pub struct Config {
    pub process: Process,
    /// The path of the MCP endpoint.
    pub path: String,
    /// Which header lines of clients go to their upstreams.
    pub pass: Pass,
    pub token_file: Option<PathBuf>,
    pub server: ServerPlace,
}

/// Why flags that parse do not fit.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("--shards must be from 1 to {SHARDS_MAX}")]
    Shards,
    #[error("--max-calls must be from 1 to {CALLS_MAX} for each shard")]
    Calls,
    #[error("--max-id must be at most {ID_BYTES_MAX} bytes")]
    Id,
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    #[error("--pin names core {0}, which this process may not use")]
    Core(usize),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("the server's command is missing: ringway serve [flags] -- COMMAND")]
    NoCommand,
    #[error("--upstream: {0}")]
    Upstream(#[from] AddressError),
    #[error("{0} is about a server over HTTP and needs --upstream")]
    NoUpstream(&'static str),
    #[error("--upstream-ca is for an --upstream of https://")]
    CaWithoutTls,
    #[error("--pass-header or --add-header: {0}")]
    Header(#[from] FieldError),
    #[error(
        "--pass-header would do nothing with --share: all clients have one session at the server"
    )]
    PassShared,
}

impl ConfigError {
    /// The flag to be changed, without its dashes.
    pub fn flag(&self) -> &'static str {
        let flag = match self {
            ConfigError::Shards => "--shards",
            ConfigError::Calls => "--max-calls",
            ConfigError::Id => "--max-id",
            ConfigError::Zero(flag) | ConfigError::NoUpstream(flag) => flag,
            ConfigError::Core(_) => "--pin",
            ConfigError::Policy(PolicyError::Host(_)) => "--allow-host",
            ConfigError::Policy(PolicyError::Origin(_)) => "--allow-origin",
            ConfigError::NoCommand | ConfigError::Upstream(_) => "--upstream",
            ConfigError::CaWithoutTls => "--upstream-ca",
            ConfigError::Header(_) => "--add-header",
            ConfigError::PassShared => "--pass-header",
        };
        flag.trim_start_matches('-')
    }
}

impl ServeFlags {
    /// Checks the flags against each other and the machine.
    pub fn validate(self, server: ServerPlace) -> Result<Config, ConfigError> {
        let is_private = matches!(&server, ServerPlace::Http(http) if !http.is_shared);
        let process = self.process(!is_private).map_err(first)?;
        let pass = match &server {
            ServerPlace::Http(http) if http.is_shared && http.fields.passes_any() => {
                return Err(ConfigError::PassShared);
            }
            ServerPlace::Http(http) if http.fields.passes_any() => {
                let fields = http.fields.clone();
                Pass(Some(Arc::new(move |name, value, out: &mut Vec<u8>| {
                    fields.pass(name, value, out);
                })))
            }
            _ => Pass::default(),
        };
        Ok(Config {
            process,
            path: self.path,
            pass,
            token_file: self.auth_token_file,
            server,
        })
    }

    /// What the flags say of the process, checked against each other and the machine.
    /// `needs_hub`: an upstream is shared by sessions; those of their own need no hub.
    ///
    /// # Errors
    /// All that is wrong, at least one.
    pub fn process(&self, needs_hub: bool) -> Result<Process, Vec<ConfigError>> {
        let allowed = cores::allowed();
        let usable = cores::usable(&allowed);
        let default_shards = if usable <= 2 { 1 } else { usable - 1 };
        let shards = self.shards.unwrap_or(default_shards);
        let hub_is_own = match self.hub {
            _ if !needs_hub => false,
            HubChoice::Auto => usable >= 3,
            HubChoice::Own => true,
            HubChoice::Shard => false,
        };
        let mut errors = self.wrong_numbers(shards);
        // A number of shards out of its range is said; the rest is checked with one in it.
        let shards = shards.clamp(1, SHARDS_MAX);
        let threads = shards + usize::from(hub_is_own);
        let cores = assign_cores(&self.pin, threads, usable, &allowed);
        let policy = Policy::new(
            self.listen.ip().is_loopback(),
            &self.allow_host,
            &self.allow_origin,
        );
        let admin = match self.admin {
            Admin::Off => Ok(None),
            Admin::At(address) => {
                let is_loopback = address.ip().is_loopback();
                let policy = Policy::new(is_loopback, &self.allow_host, &[]);
                policy.map(|policy| Some((address, policy)))
            }
        };
        let (cores, policy, admin) = match (cores, policy, admin) {
            (Ok(cores), Ok(policy), Ok(admin)) if errors.is_empty() => (cores, policy, admin),
            (cores, policy, _) => {
                errors.extend(cores.err());
                errors.extend(policy.err().map(ConfigError::Policy));
                return Err(errors);
            }
        };
        Ok(Process {
            listen: self.listen,
            admin,
            shards,
            hub_is_own,
            cores,
            driver: self.driver,
            ring_flags: self.uring_flags,
            face: FaceConfig {
                policy,
                response_mode: self.response_mode,
                body_bytes_max: self.max_body,
                id_bytes_max: self.max_id,
                connections_max: self.max_connections.div_ceil(shards),
                header_timeout_ms: milliseconds(self.header_timeout),
                body_timeout_ms: milliseconds(self.body_timeout),
                idle_timeout_ms: milliseconds(self.idle_timeout),
                write_timeout_ms: milliseconds(self.write_timeout),
                buffered_bytes_max: self.max_buffered,
                cancel_on_disconnect: self.on_disconnect == OnDisconnect::Cancel,
                get_streams: self.get_streams == Switch::On,
                keep_alive_ms: milliseconds(self.keep_alive),
            },
            limits: self.shard_limits(shards),
            line_bytes_max: self.max_message,
            start_timeout: self.start_timeout,
            drain_timeout: self.drain_timeout,
            log_format: self.log.log_format.unwrap_or(LogFormat::Text),
            log_level: self.log.log_level.unwrap_or(LogLevel::Info),
        })
    }

    /// For the server to answer the handshake.
    pub fn start_timeout(&self) -> Duration {
        self.start_timeout
    }

    /// The bounds of a route that says nothing of them.
    pub fn route_limits(&self) -> RouteLimits {
        RouteLimits {
            max_sessions: self.max_sessions,
            max_calls_per_session: self.max_calls_per_session,
            max_subscriptions_per_session: self.max_subscriptions_per_session,
            max_tasks_per_session: self.max_tasks_per_session,
            request_timeout: self.request_timeout,
            request_timeout_max: self.request_timeout_max,
            session_ttl: self.session_ttl,
            session_unused_ttl: self.session_unused_ttl,
        }
    }

    fn wrong_numbers(&self, shards: usize) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let shards_are_wrong = !(1..=SHARDS_MAX).contains(&shards);
        if shards_are_wrong {
            errors.push(ConfigError::Shards);
        }
        for (value, name) in [
            (self.max_body, "--max-body"),
            (self.max_message, "--max-message"),
            (self.max_connections, "--max-connections"),
            (self.max_sessions, "--max-sessions"),
            (self.max_calls_per_session, "--max-calls-per-session"),
            (self.max_buffered, "--max-buffered"),
            (
                self.max_subscriptions_per_session,
                "--max-subscriptions-per-session",
            ),
            (self.max_tasks_per_session, "--max-tasks-per-session"),
            (self.max_uri, "--max-uri"),
            (self.max_id, "--max-id"),
        ] {
            if value == 0 {
                errors.push(ConfigError::Zero(name));
            }
        }
        if self.max_id > ID_BYTES_MAX {
            errors.push(ConfigError::Id);
        }
        if !shards_are_wrong && !(1..=CALLS_MAX).contains(&self.max_calls.div_ceil(shards)) {
            errors.push(ConfigError::Calls);
        }
        errors
    }

    fn shard_limits(&self, shards: usize) -> ShardLimits {
        ShardLimits {
            sessions_max: self.max_sessions.div_ceil(shards),
            calls_max: self.max_calls.div_ceil(shards),
            calls_per_session_max: self.max_calls_per_session,
            subscriptions_per_session_max: self.max_subscriptions_per_session,
            tasks_per_session_max: self.max_tasks_per_session,
            uri_bytes_max: self.max_uri,
            // A quarter: bodies get half, and answers at least the rest, so that a
            // server that takes nothing does not keep clients from being told so.
            waiting_bytes_max: self.max_buffered.div_ceil(4),
            request_timeout_ms: milliseconds(self.request_timeout),
            request_timeout_max_ms: milliseconds(self.request_timeout_max),
            session_ttl_ms: milliseconds(self.session_ttl),
            session_unused_ms: milliseconds(self.session_unused_ttl),
        }
    }
}

/// One sentence is enough for flags.
fn first(errors: Vec<ConfigError>) -> ConfigError {
    let first = errors.into_iter().next();
    first.unwrap_or(ConfigError::Shards)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// With `auto` nothing is pinned where there are fewer cores than threads: two
/// threads pinned to one core would only wait for each other.
fn assign_cores(
    pin: &Pin,
    threads: usize,
    usable: usize,
    allowed: &[usize],
) -> Result<Vec<Option<usize>>, ConfigError> {
    match pin {
        Pin::Off => Ok(vec![None; threads]),
        Pin::Auto if usable < threads || allowed.len() < threads => Ok(vec![None; threads]),
        Pin::Auto => Ok(allowed.iter().copied().take(threads).map(Some).collect()),
        Pin::List(list) => {
            if let Some(core) = list.iter().find(|core| !allowed.contains(core)) {
                return Err(ConfigError::Core(*core));
            }
            Ok(list
                .iter()
                .copied()
                .cycle()
                .take(threads)
                .map(Some)
                .collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_has_an_environment_variable_and_help() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for flag in serve.get_opts() {
            let id = flag.get_id().as_str();
            let expected = format!("RINGWAY_{}", id.to_uppercase());
            assert_eq!(
                flag.get_env().and_then(|env| env.to_str()),
                Some(&*expected)
            );
            assert!(flag.get_help().is_some(), "{id} has no help");
        }
    }

    #[test]
    fn a_configuration_file_stands_alone_but_for_the_log() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let beside = ["config", "log_format", "log_level", "help"];
        for argument in serve.get_arguments() {
            let id = argument.get_id().as_str();
            let is_listed = NOT_BESIDE_CONFIG.contains(&id);
            assert_eq!(is_listed, !beside.contains(&id), "{id}");
        }
        let parse = |rest: &[&str]| {
            let words = ["ringway", "serve", "--config", "f"];
            Cli::try_parse_from(words.iter().chain(rest)).map_err(|error| error.kind())
        };
        assert!(parse(&[]).is_ok());
        assert!(parse(&["--log-level", "warn", "--log-format", "json"]).is_ok());
        for rest in [
            &["--listen", "127.0.0.1:1"][..],
            &["--upstream", "http://h/"],
            &["--upstream-connections", "1"],
            &["--path", "/mcp"],
            &["--", "server"],
        ] {
            let refused = parse(rest).unwrap_err();
            assert_eq!(
                refused,
                clap::error::ErrorKind::ArgumentConflict,
                "{rest:?}"
            );
        }
    }

    #[test]
    fn cores_are_assigned_only_where_there_are_enough() {
        let assign = |pin, threads, usable| assign_cores(pin, threads, usable, &[0, 1, 5]);
        assert_eq!(
            assign(&Pin::Auto, 3, 3).unwrap(),
            [Some(0), Some(1), Some(5)]
        );
        assert_eq!(assign(&Pin::Auto, 4, 3).unwrap(), [None; 4]);
        assert_eq!(assign(&Pin::Auto, 3, 2).unwrap(), [None; 3]);
        assert_eq!(assign(&Pin::Off, 1, 3).unwrap(), [None]);
        let list = Pin::List(vec![5, 0]);
        assert_eq!(assign(&list, 3, 3).unwrap(), [Some(5), Some(0), Some(5)]);
        assert!(assign(&Pin::List(vec![7]), 1, 3).is_err());
    }
}
