//! One gateway process: started on a free loopback port, its output captured, ended by its process id on
//! drop (SIGTERM, then SIGKILL). It inherits no `RINGWAY_*` variable from whoever runs the tests, and a
//! panic in its log or an end that needs SIGKILL fails the test that owns it.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::{GUARD, Raw, Request, Response, wait_until};

/// The server behind the gateway.
pub enum Upstream<'a> {
    /// The demo server in the binary.
    Demo,
    /// A Python server of `tests/servers`, with its arguments.
    Python(&'a str, &'a [&'a str]),
    /// Any command.
    Command(&'a [&'a str]),
    /// A server over HTTP, at this URL.
    Url(&'a str),
}

/// What a process wrote to one of its outputs so far.
#[derive(Clone, Default)]
pub struct Log(Arc<(Mutex<LogText>, Condvar)>);

#[derive(Default)]
struct LogText {
    bytes: Vec<u8>,
    ended: bool,
}

impl Log {
    fn follow(mut source: impl Read + Send + 'static) -> (Self, JoinHandle<()>) {
        let log = Self::default();
        let writer = log.clone();
        let thread = std::thread::spawn(move || {
            let mut chunk = [0_u8; 16 * 1024];
            loop {
                let count = source.read(&mut chunk).unwrap_or(0);
                let (text, changed) = &*writer.0;
                let mut text = text
                    .lock()
                    .expect("no reader panics while it holds the log");
                text.bytes.extend_from_slice(&chunk[..count]);
                text.ended = count == 0;
                changed.notify_all();
                if text.ended {
                    return;
                }
            }
        });
        (log, thread)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.0.lock().expect("the log's lock").bytes.clone()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Waits until the whole text satisfies `condition`; returns the text.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        let (text, changed) = &*self.0;
        let mut guard = text.lock().expect("the log's lock");
        loop {
            let seen = String::from_utf8_lossy(&guard.bytes).into_owned();
            if condition(&seen) {
                return seen;
            }
            let left = GUARD.saturating_sub(start.elapsed());
            if left.is_zero() || guard.ended {
                // Others read the log too, also while this test ends.
                drop(guard);
                panic!("never logged: {what}\n--- log:\n{seen}");
            }
            guard = changed.wait_timeout(guard, left).expect("the log's lock").0;
        }
    }
}

/// What a gateway said that ended by itself.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

pub struct Gateway {
    child: Child,
    pub address: SocketAddr,
    /// The start-up line as printed.
    pub banner: String,
    pub stdout: Log,
    pub stderr: Log,
    followers: Vec<JoinHandle<()>>,
    ended: bool,
}

impl Gateway {
    /// Starts a gateway and waits for its start-up line. `--listen 127.0.0.1:0` unless the flags say else.
    pub fn start<S: AsRef<str>>(flags: &[S], upstream: Upstream<'_>) -> Self {
        Self::start_with(command(flags, upstream))
    }

    /// Starts a prepared command (see [`command`]) and waits for its start-up line.
    pub fn start_with(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the gateway's binary starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (stderr, stderr_follower) = Log::follow(child.stderr.take().expect("stderr is piped"));
        let (first_line, banner) = mpsc::channel();
        // The first line is read apart so that its arrival can be waited for.
        let mut stdout = BufReader::new(stdout);
        let (rest_sender, rest_receiver) = mpsc::channel();
        let stdout_follower = std::thread::spawn(move || {
            let mut line = Vec::new();
            let _ = stdout.read_until(b'\n', &mut line);
            let _ = first_line.send(line);
            let _ = rest_sender.send(stdout);
        });
        let banner = banner.recv_timeout(GUARD);
        let banner = banner.map(|line| String::from_utf8_lossy(&line).into_owned());
        let address = banner.as_deref().ok().and_then(address_of);
        let Some(address) = address else {
            let _ = child.kill();
            let status = child.wait();
            panic!(
                "no start-up line: {banner:?}, {status:?}\n--- stderr:\n{}",
                stderr.text()
            );
        };
        let rest = rest_receiver.recv().expect("the reader handed its pipe on");
        let (stdout, rest_follower) = Log::follow(rest);
        Self {
            child,
            address,
            banner: banner.unwrap_or_default().trim_end_matches('\n').to_owned(),
            stdout,
            stderr,
            followers: vec![stderr_follower, stdout_follower, rest_follower],
            ended: false,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> Raw {
        Raw::connect(self.address)
    }

    /// One request on a connection of its own.
    pub fn ask(&self, request: &Request) -> Response {
        self.connect().ask(request)
    }

    /// A word of the start-up line, as in `shards=2`; quotes are kept.
    pub fn banner_word(&self, key: &str) -> Option<&str> {
        let at = self.banner.find(&format!(" {key}="))? + key.len() + 2;
        let rest = &self.banner[at..];
        Some(rest.split(' ').next().unwrap_or(rest))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(pid_of(self.child.id()), signal).expect("the gateway's own pid");
    }

    /// Waits for the gateway to end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the gateway ends", || {
            status = self.child.try_wait().expect("the gateway is our child");
            status.is_some()
        });
        self.ended = true;
        status.expect("set by the wait above")
    }

    pub fn runs(&mut self) -> bool {
        !self.ended
            && self
                .child
                .try_wait()
                .expect("the gateway is our child")
                .is_none()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let mut killed = false;
        if self.runs() {
            self.signal(Signal::TERM);
            let start = Instant::now();
            while self.runs() {
                if start.elapsed() > GUARD {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    killed = true;
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        let log = self.stderr.text();
        if std::thread::panicking() {
            eprintln!("--- gateway: {}\n--- its log:\n{log}", self.banner);
            return;
        }
        assert!(
            !killed,
            "the gateway did not end at SIGTERM\n--- its log:\n{log}"
        );
        assert!(
            !log.contains("panicked at"),
            "a thread of the gateway panicked\n--- its log:\n{log}"
        );
    }
}

/// The command line of a gateway, outputs piped and the environment free of `RINGWAY_*`.
pub fn command<S: AsRef<str>>(flags: &[S], upstream: Upstream<'_>) -> Command {
    let mut command = bare();
    let is_demo = matches!(upstream, Upstream::Demo);
    command.arg(if is_demo { "demo" } else { "serve" });
    if !flags.iter().any(|flag| flag.as_ref() == "--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(flags.iter().map(AsRef::as_ref));
    match upstream {
        Upstream::Demo => {}
        Upstream::Python(script, arguments) => {
            command.args(["--", python(), "-S"]);
            command.arg(server_script(script));
            command.args(arguments);
        }
        Upstream::Command(words) => {
            command.arg("--").args(words);
        }
        Upstream::Url(url) => {
            command.args(["--upstream", url]);
        }
    }
    command
}

/// The command line of a gateway that gets all from a configuration file.
pub fn command_with_config(file: &str) -> Command {
    let mut command = bare();
    // Beside a file no setting of the environment may stand.
    command.env_remove("RINGWAY_ADMIN");
    command.args(["serve", "--config", file]);
    command
}

/// The binary alone: no arguments, outputs piped, the environment free of `RINGWAY_*` but for the admin
/// listener, which is off: gateways that run side by side would all want its port.
pub fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RINGWAY_") {
            command.env_remove(name);
        }
    }
    command
        .env("RINGWAY_ADMIN", "off")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command that is expected to end by itself.
pub fn run_to_end(mut command: Command) -> Ended {
    let mut child = command.spawn().expect("the gateway's binary starts");
    let (stdout, stdout_follower) = Log::follow(child.stdout.take().expect("stdout is piped"));
    let (stderr, stderr_follower) = Log::follow(child.stderr.take().expect("stderr is piped"));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("our child") {
            break status;
        }
        if start.elapsed() > GUARD {
            let _ = child.kill();
            let _ = child.wait();
            panic!(
                "it did not end by itself: {command:?}\n--- stdout:\n{}\n--- stderr:\n{}",
                stdout.text(),
                stderr.text()
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    // A grandchild that was left behind may hold the pipes open: then these joins hang, which a test of
    // orphans wants to see as a failure of its own. So the logs are only read up to the process's end.
    if status.code().is_some() {
        wait_until("its outputs end with it", || {
            stdout_follower.is_finished() && stderr_follower.is_finished()
        });
    }
    Ended {
        status,
        stdout: stdout.text(),
        stderr: stderr.text(),
    }
}

/// The path of a server script of `tests/servers`.
pub fn server_script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/servers")
        .join(name)
}

/// The real interpreter: a wrapper found on the path (as version managers install) costs a shell a start.
pub fn python() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let output = Command::new("python3")
            .args(["-S", "-c", "import sys; print(sys.executable)"])
            .output()
            .expect("python3 is on the path");
        String::from_utf8(output.stdout)
            .expect("a UTF-8 path")
            .trim()
            .to_owned()
    })
}

pub fn pid_of(pid: u32) -> Pid {
    let raw = i32::try_from(pid).expect("process ids fit");
    Pid::from_raw(raw).expect("a process id is not zero")
}

/// The listening address in a start-up line.
fn address_of(banner: &str) -> Option<SocketAddr> {
    let rest = banner.split_once(" listening on http://")?.1;
    let authority = rest.split('/').next()?;
    let port = authority.rsplit_once(':')?.1.parse().ok()?;
    // A gateway bound to every address is reached over loopback all the same.
    let host = match authority.rsplit_once(':')?.0 {
        "0.0.0.0" => "127.0.0.1",
        host => host.trim_start_matches('[').trim_end_matches(']'),
    };
    Some(SocketAddr::new(host.parse().ok()?, port))
}
