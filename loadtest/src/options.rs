//! The command line.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::template::Template;

/// Load on an MCP endpoint, with every answer checked.
///
/// Exit codes: 0; 1 when a check failed (a foreign, lost or doubled answer, say); 2 for flags that are wrong; 3 when
/// the endpoint could not be used, or nothing was measured.
#[derive(Parser, Debug)]
#[command(name = "ringway-loadtest", version, max_term_width = 110)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it")]
pub enum Command {
    #[command(flatten)]
    Scenario(Scenario),
    /// Several gateways in front of the same server, in turn; one table.
    ///
    /// Exit code 1 when the first gateway gave a wrong answer (that others do is what the table is for), 3 when one of
    /// them could not be measured in some round.
    Compare(Compare),
    /// The same calls in an open loop straight over a server's pipe, without a gateway: what a gateway adds to.
    Pipe(Pipe),
}

#[derive(Subcommand, Debug)]
pub enum Scenario {
    /// tools/call, one after another on each connection.
    Call(Call),
    /// Calls that report their progress.
    Progress(Progress),
    /// Sessions with open streams and subscriptions; the time from a change to each delivery.
    Fanout(Fanout),
    /// Sessions with open streams, and nothing else.
    Idle(Common),
    /// initialize, one call, DELETE, and again.
    Churn(Call),
    /// Calls, lists, pings, progress and subscriptions, mixed.
    Mixed(Mixed),
    /// The same with clients that vanish, cancel, come back and do not read.
    Storm(Mixed),
}

impl Scenario {
    pub fn name(&self) -> &'static str {
        match self {
            Scenario::Call(_) => "call",
            Scenario::Progress(_) => "progress",
            Scenario::Fanout(_) => "fanout",
            Scenario::Idle(_) => "idle",
            Scenario::Churn(_) => "churn",
            Scenario::Mixed(_) => "mixed",
            Scenario::Storm(_) => "storm",
        }
    }

    pub fn common(&self) -> &Common {
        match self {
            Scenario::Call(call) | Scenario::Churn(call) => &call.common,
            Scenario::Progress(progress) => &progress.common,
            Scenario::Fanout(fanout) => &fanout.common,
            Scenario::Idle(common) => common,
            Scenario::Mixed(mixed) | Scenario::Storm(mixed) => &mixed.common,
        }
    }
}

/// What every scenario takes.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// The endpoint, like http://127.0.0.1:8080/mcp.
    #[arg(long)]
    pub url: String,
    /// Calls in flight at once.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub concurrency: u32,
    /// Connections, each with one call at a time; at least as many as calls in flight [default: that many].
    #[arg(long)]
    pub connections: Option<u32>,
    /// Sessions, shared out over the connections [default: one a connection].
    #[arg(long)]
    pub sessions: Option<u32>,
    /// Calls a second that begin, whether others have ended or not (open loop); latency counts from the intended
    /// start. Without it each call waits for the last one (closed loop).
    #[arg(long)]
    pub rate: Option<f64>,
    /// How long is measured, like 10s or 5m.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// How long is not measured before.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub warmup: Duration,
    /// Threads that make the load.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Cores to pin the threads to, like 0,2 [default: not pinned].
    #[arg(long, value_delimiter = ',', value_parser = core)]
    pub pin: Vec<usize>,
    /// A header field of every request, 'Name: value'; may be repeated.
    #[arg(long = "header", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// A bearer token.
    #[arg(long)]
    pub token: Option<String>,
    /// The protocol version that is asked for.
    #[arg(long, default_value = "2025-11-25")]
    pub protocol_version: String,
    /// The forms of answer that are taken.
    #[arg(long, value_enum, default_value_t = Accept::Both)]
    pub accept: Accept,
    /// Time for a response to be whole.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// What chance begins with, so that a run can be made again [default: another one each time].
    #[arg(long)]
    pub seed: Option<u64>,
    /// What the load runs on; auto is io_uring where the kernel allows it.
    #[arg(long, value_enum, default_value_t = Driver::Auto)]
    pub driver: Driver,
    /// A process whose CPU time and memory are told, its children apart.
    #[arg(long)]
    pub watch_pid: Option<u32>,
    /// A file for the results as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// A file for the results as a page with plots, all in one.
    #[arg(long)]
    pub report: Option<PathBuf>,
    /// No live line on stderr.
    #[arg(long)]
    pub quiet: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accept {
    Both,
    Json,
    Sse,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    Auto,
    Uring,
    Epoll,
}

/// Which tool is called, and with what.
#[derive(Args, Clone, Debug)]
pub struct Call {
    #[command(flatten)]
    pub common: Common,
    /// The tool. Its result must repeat {nonce}, if the arguments have it.
    #[arg(long, default_value = "echo")]
    pub tool: String,
    /// Its arguments, JSON with places: {nonce} is different in each call, {padding} fills it up to --payload, {count}
    /// counts the calls of a session.
    #[arg(long, default_value = r#"{"message":"{nonce}{padding}"}"#)]
    pub arguments: String,
    /// Size of {nonce} and {padding} together, bytes, at most 64 MiB.
    #[arg(long, default_value_t = 100, value_parser = payload)]
    pub payload: usize,
    /// The result need not repeat {nonce}. Foreign nonces in it are found all the same.
    #[arg(long)]
    pub no_repeat: bool,
}

/// Calls with progress.
#[derive(Args, Clone, Debug)]
pub struct Progress {
    #[command(flatten)]
    pub common: Common,
    /// The tool.
    #[arg(long, default_value = "slow")]
    pub tool: String,
    /// Its arguments; {events} is --events, and the places of `call` are there too.
    #[arg(long, default_value = r#"{"steps":{events},"interval_ms":0}"#)]
    pub arguments: String,
    /// Progress messages that each call must report; 0: any number.
    #[arg(long, default_value_t = 10)]
    pub events: u64,
}

/// Changes and who is told of them.
#[derive(Args, Clone, Debug)]
pub struct Fanout {
    #[command(flatten)]
    pub common: Common,
    /// A resource that each session subscribes to; may be repeated, then they are shared out.
    #[arg(long = "uri", default_value = "demo://clock")]
    pub uris: Vec<String>,
    /// The tool that changes a resource.
    #[arg(long, default_value = "touch")]
    pub trigger_tool: String,
    /// Its arguments; {uri} is the resource.
    #[arg(long, default_value = r#"{"uri":"{uri}"}"#)]
    pub trigger_arguments: String,
}

/// What is mixed.
#[derive(Args, Clone, Debug)]
pub struct Mixed {
    #[command(flatten)]
    pub call: MixedTools,
    #[command(flatten)]
    pub common: Common,
}

/// The tools of a mixed load.
#[derive(Args, Clone, Debug)]
pub struct MixedTools {
    /// The tool that repeats {nonce}.
    #[arg(long, default_value = "echo")]
    pub tool: String,
    /// Its arguments, as for `call`.
    #[arg(long, default_value = r#"{"message":"{nonce}{padding}"}"#)]
    pub arguments: String,
    /// Size of {nonce} and {padding} together, bytes, at most 64 MiB.
    #[arg(long, default_value_t = 100, value_parser = payload)]
    pub payload: usize,
    /// The tool that reports progress; empty: none.
    #[arg(long, default_value = "slow")]
    pub progress_tool: String,
    /// Its arguments; {events} is --events.
    #[arg(long, default_value = r#"{"steps":{events},"interval_ms":1}"#)]
    pub progress_arguments: String,
    /// Progress messages of such a call.
    #[arg(long, default_value_t = 5)]
    pub events: u64,
    /// The resource that sessions subscribe to and that is changed; empty: none.
    #[arg(long, default_value = "demo://clock")]
    pub uri: String,
    /// The tool that changes it.
    #[arg(long, default_value = "touch")]
    pub trigger_tool: String,
    /// Its arguments; {uri} is the resource.
    #[arg(long, default_value = r#"{"uri":"{uri}"}"#)]
    pub trigger_arguments: String,
}

/// What is compared, and how.
#[derive(Args, Clone, Debug)]
pub struct Compare {
    /// The gateways, TOML: see loadtest/peers.toml. Paths in it are as seen from its folder.
    pub file: PathBuf,
    /// Only these, by comma, in this order; the first one is what the others are compared with.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Threads that make the load.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Turns of each gateway.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Calls in flight at once, each with a connection and a session of its own.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,
    /// How long each turn is measured.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// How long it is not measured before.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    pub warmup: Duration,
    /// Time for a gateway to take connections.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub start_timeout: Duration,
    /// Time for a response to be whole.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// The tool, as for `call`.
    #[arg(long, default_value = "echo")]
    pub tool: String,
    /// Its arguments, as for `call`.
    #[arg(long, default_value = r#"{"message":"{nonce}{padding}"}"#)]
    pub arguments: String,
    /// Size of {nonce} and {padding} together, bytes, at most 64 MiB.
    #[arg(long, default_value_t = 100, value_parser = payload)]
    pub payload: usize,
    /// The protocol version that is asked for.
    #[arg(long, default_value = "2025-06-18")]
    pub protocol_version: String,
    /// A file for all results as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// A file for the table as a page with plots.
    #[arg(long)]
    pub report: Option<PathBuf>,
}

/// Calls over a pipe.
#[derive(Args, Clone, Debug)]
pub struct Pipe {
    /// The server's command line, after `--`.
    #[arg(last = true, required = true, num_args = 1..)]
    pub command: Vec<String>,
    /// Calls a second that begin, whether others have ended or not; latency counts from the intended start.
    #[arg(long)]
    pub rate: f64,
    /// How long is measured, like 10s or 5m.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// How long is not measured before.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub warmup: Duration,
    /// The tool, as for `call`.
    #[arg(long, default_value = "echo")]
    pub tool: String,
    /// Its arguments, as for `call`.
    #[arg(long, default_value = r#"{"message":"{nonce}{padding}"}"#)]
    pub arguments: String,
    /// Size of {nonce} and {padding} together, bytes, at most 64 MiB.
    #[arg(long, default_value_t = 100, value_parser = payload)]
    pub payload: usize,
    /// A file for the results as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Compare {
    /// The flags of each turn's load.
    pub fn common(&self, url: String) -> Common {
        Common {
            url,
            concurrency: self.concurrency,
            connections: None,
            sessions: None,
            rate: None,
            duration: self.duration,
            warmup: self.warmup,
            threads: self.threads,
            pin: Vec::new(),
            headers: Vec::new(),
            token: None,
            protocol_version: self.protocol_version.clone(),
            accept: Accept::Both,
            timeout: self.timeout,
            seed: None,
            driver: Driver::Auto,
            watch_pid: None,
            json: None,
            report: None,
            quiet: true,
        }
    }
}

fn core(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(core) if core < rustix::thread::CpuSet::MAX_CPU => Ok(core),
        _ => Err("no core has this number".into()),
    }
}

fn payload(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if bytes <= 64 << 20 => Ok(bytes),
        _ => Err("a number of bytes up to 67108864".into()),
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is 'Name: value'")?;
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("{name:?} is no name of a header"));
    }
    let value = value.trim();
    if value.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f) {
        return Err("a header's value is one line".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Why a run cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    #[error("--url {0:?} is not of the form http://HOST[:PORT]/PATH; https is not spoken here")]
    Url(String),
    #[error("{0} has no address: {1}")]
    NoAddress(String, std::io::Error),
    #[error(
        "--connections {0} is less than --concurrency {1}, and HTTP/1.1 carries one call a connection at a time"
    )]
    FewConnections(u32, u32),
    #[error(
        "--sessions {0} is less than --connections {1}; here each connection has a session of its own"
    )]
    FewSessions(u32, u32),
    #[error("--{0} must be at least 1")]
    None(&'static str),
    #[error("--rate must be from 0.001 to 1,000,000,000")]
    Rate,
    #[error("--duration must be over 0")]
    Duration,
    #[error("--{flag}: {why}")]
    Arguments {
        flag: &'static str,
        why: crate::template::NotArguments,
    },
}

/// Where the load goes.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// For the `Host` field.
    pub host: String,
    /// Path and query.
    pub target: String,
}

impl Endpoint {
    /// Reads a URL and looks its name up.
    ///
    /// # Errors
    /// When it is none of this kind, or has no address.
    pub fn new(url: &str) -> Result<Endpoint, Wrong> {
        let wrong = || Wrong::Url(url.to_owned());
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let clean = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        if host.is_empty() || host.contains('@') || !clean(host) || !clean(path) {
            return Err(wrong());
        }
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let with_port = if has_port {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        let mut addresses = with_port
            .to_socket_addrs()
            .map_err(|error| Wrong::NoAddress(host.to_owned(), error))?;
        let address = addresses.next().ok_or_else(wrong)?;
        Ok(Endpoint {
            address,
            host: host.to_owned(),
            target: path.to_owned(),
        })
    }
}

/// How a load is shared out, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub workers: u32,
    pub connections: u32,
    pub sessions: u32,
    pub threads: u32,
}

impl Common {
    /// The load's shape.
    ///
    /// # Errors
    /// When the numbers do not go together.
    pub fn shape(&self) -> Result<Shape, Wrong> {
        let connections = self.connections.unwrap_or(self.concurrency);
        let sessions = self.sessions.unwrap_or(connections);
        if connections < self.concurrency {
            return Err(Wrong::FewConnections(connections, self.concurrency));
        }
        if sessions == 0 {
            return Err(Wrong::None("sessions"));
        }
        if self.rate.is_some_and(|rate| !(1e-3..=1e9).contains(&rate)) {
            return Err(Wrong::Rate);
        }
        if self.duration.is_zero() {
            return Err(Wrong::Duration);
        }
        Ok(Shape {
            workers: self.concurrency,
            connections,
            sessions,
            // A session lives on one thread.
            threads: u32::from(self.threads).min(sessions).min(self.concurrency),
        })
    }
}

/// A tool with its arguments, as bytes of a request's `params`.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The name as JSON.
    pub name: String,
    pub arguments: Template,
}

impl Tool {
    /// # Errors
    /// When the arguments are no object.
    pub fn new(
        flag: &'static str,
        name: &str,
        arguments: &str,
        payload: usize,
    ) -> Result<Tool, Wrong> {
        let arguments =
            Template::new(arguments, payload).map_err(|why| Wrong::Arguments { flag, why })?;
        Ok(Tool {
            name: serde_json::Value::from(name).to_string(),
            arguments,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    fn call(more: &[&str]) -> Common {
        let all = [
            "ringway-loadtest",
            "call",
            "--url",
            "http://127.0.0.1:1/mcp",
        ];
        let options = Options::try_parse_from(all.iter().chain(more)).expect("flags");
        match options.command {
            Command::Scenario(scenario) => scenario.common().clone(),
            Command::Compare(_) | Command::Pipe(_) => unreachable!("call was asked for"),
        }
    }

    #[test]
    fn shape_follows_the_flags() {
        let shape = |more: &[&str]| call(more).shape().map_err(|wrong| wrong.to_string());
        let all = |workers, connections, sessions, threads| Shape {
            workers,
            connections,
            sessions,
            threads,
        };
        assert_eq!(shape(&[]), Ok(all(16, 16, 16, 1)));
        assert_eq!(
            shape(&["--concurrency", "4", "--connections", "8", "--threads", "9"]),
            Ok(all(4, 8, 8, 4))
        );
        assert_eq!(
            shape(&["--sessions", "2", "--threads", "3"]),
            Ok(all(16, 16, 2, 2))
        );
        assert!(shape(&["--connections", "8"]).is_err());
        assert!(shape(&["--rate", "0"]).is_err());
        assert!(shape(&["--duration", "0s"]).is_err());
        assert!(shape(&["--sessions", "0"]).is_err());
    }

    #[test]
    fn url_is_read() {
        let endpoint = Endpoint::new("http://127.0.0.1:8080/mcp?x=1").expect("a URL");
        assert_eq!(
            endpoint.address,
            "127.0.0.1:8080".parse().expect("an address")
        );
        assert_eq!(
            (endpoint.host.as_str(), endpoint.target.as_str()),
            ("127.0.0.1:8080", "/mcp?x=1")
        );
        assert_eq!(
            Endpoint::new("http://[::1]/mcp")
                .expect("a URL")
                .address
                .port(),
            80
        );
        for bad in [
            "https://127.0.0.1/mcp",
            "127.0.0.1/mcp",
            "http:///mcp",
            "http://a@b/",
            "http://127.0.0.1/a b",
        ] {
            assert!(Endpoint::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn header_is_one_line() {
        assert_eq!(header("X-A:  b "), Ok(("X-A".into(), "b".into())));
        for bad in ["X-A", ": b", "X A: b", "X-A: a\r\nb"] {
            assert!(header(bad).is_err(), "{bad}");
        }
    }
}
