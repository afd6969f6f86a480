//! Each scenario for about a second against Ringway with its demo server, on both drivers and one and two shards: no
//! wrong answer, no failure that is not the scenario's own, and Ringway's tables empty afterwards.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A guard against a hang: nothing is expected to take long.
const GUARD: Duration = Duration::from_secs(60);

/// What must be back at zero when all clients have gone.
const TABLES: [&str; 7] = [
    "ringway_connections",
    "ringway_sessions",
    "ringway_calls_in_flight",
    "ringway_buffered_bytes",
    "ringway_streams",
    "ringway_subscriptions",
    "ringway_tasks",
];

/// The gateway: RINGWAY_BIN, or the build beside this test, which is made if need be.
fn binary() -> &'static PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(named) = std::env::var_os("RINGWAY_BIN") {
            return named.into();
        }
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            "ringway",
            "--bin",
            "ringway",
        ]);
        let status = build.current_dir(root).status().expect("cargo");
        assert!(status.success(), "ringway was not built");
        let beside = std::env::current_exe()
            .expect("this test")
            .with_file_name("../ringway");
        std::fs::canonicalize(&beside).expect("ringway's binary")
    })
}

struct Gateway {
    child: Child,
    url: String,
    admin: String,
}

impl Gateway {
    fn start(flags: &[&str]) -> Gateway {
        let mut command = Command::new(binary());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RINGWAY_") {
                command.env_remove(name);
            }
        }
        command.args([
            "demo",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--session-unused-ttl",
            "2s",
        ]);
        command.args(["--session-ttl", "2s"]).args(flags);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("ringway");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let line = lines.next().expect("a start-up line").expect("text");
        let url = line
            .split(' ')
            .find(|word| word.starts_with("http://"))
            .expect("a URL")
            .to_owned();
        let mut log = BufReader::new(child.stderr.take().expect("stderr")).lines();
        let said = log.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, rest) = line.split_once("admin listener address=")?;
            rest.split_whitespace().next().map(str::to_owned)
        });
        // The rest of the log is read away, so that nobody waits for it.
        std::thread::spawn(move || log.map_while(Result::ok).for_each(drop));
        Gateway {
            child,
            url,
            admin: said.expect("the admin address"),
        }
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.admin).expect("the admin listener");
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.admin
        );
        stream.write_all(request.as_bytes()).expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        text
    }

    /// The samples of the tables that are not zero.
    fn left(&self) -> Vec<String> {
        let metrics = self.metrics();
        for table in TABLES {
            assert!(
                metrics.lines().any(|line| line.starts_with(table)),
                "no metric {table}"
            );
        }
        let of_tables = metrics.lines().filter(|line| {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            TABLES.contains(&name)
        });
        of_tables
            .filter(|line| !line.ends_with(" 0"))
            .map(str::to_owned)
            .collect()
    }

    fn wait_until_empty(&self, scenario: &str) {
        let start = Instant::now();
        while !self.left().is_empty() {
            assert!(start.elapsed() < GUARD, "{scenario}: {:?}", self.left());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Its guard ends what it has started.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(gateway: &Gateway, scenario: &str, more: &[&str]) -> Value {
    let file = std::env::temp_dir().join(format!(
        "ringway-loadtest-{}-{scenario}.json",
        gateway.child.id()
    ));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway-loadtest"));
    command.args([
        scenario,
        "--url",
        &gateway.url,
        "--duration",
        "1s",
        "--warmup",
        "100ms",
    ]);
    command
        .args(["--watch-pid", &gateway.child.id().to_string(), "--json"])
        .arg(&file)
        .args(more);
    let output = command.output().expect("the load generator");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{scenario}: {text}");
    let json = serde_json::from_slice(&std::fs::read(&file).expect("JSON")).expect("JSON");
    let _ = std::fs::remove_file(&file);
    json
}

fn each_scenario(flags: &[&str]) {
    let gateway = Gateway::start(flags);
    let both: &[&str] = &["--threads", "2"];
    for (scenario, more) in [
        (
            "call",
            &["--sessions", "64", "--connections", "32"] as &[&str],
        ),
        ("call", &["--rate", "500"]),
        ("call", &["--accept", "sse", "--payload", "100000"]),
        ("progress", both),
        (
            "fanout",
            &[
                "--sessions",
                "60",
                "--threads",
                "2",
                "--uri",
                "demo://clock",
                "--uri",
                "demo://notes",
            ],
        ),
        ("idle", &["--sessions", "200"]),
        ("churn", both),
        ("mixed", both),
        ("storm", both),
    ] {
        let report = load(&gateway, scenario, more);
        assert_eq!(
            report["failures"],
            serde_json::json!({}),
            "{scenario} {more:?}"
        );
        assert!(report["done"].as_u64() > Some(0), "{scenario} {more:?}");
        gateway.wait_until_empty(scenario);
    }
}

#[test]
fn each_scenario_is_right_on_io_uring_with_two_shards() {
    each_scenario(&["--driver", "uring", "--shards", "2"]);
}

#[test]
fn each_scenario_is_right_on_epoll_with_one_shard() {
    each_scenario(&["--driver", "epoll", "--shards", "1"]);
}

/// Runs `ringway-loadtest pipe` in front of a command. The exit code and the report.
fn pipe(command: &[&str]) -> (Option<i32>, Value) {
    let report = std::env::temp_dir().join(format!(
        "ringway-pipe-{}-{}.json",
        std::process::id(),
        command.len()
    ));
    let done = Command::new(env!("CARGO_BIN_EXE_ringway-loadtest"))
        .args(["pipe", "--rate", "500", "--duration", "300ms"])
        .args(["--warmup", "100ms", "--json"])
        .arg(&report)
        .arg("--")
        .args(command)
        .stdout(Stdio::null())
        .status()
        .expect("it runs");
    let text = std::fs::read(&report).unwrap_or_default();
    let _ = std::fs::remove_file(&report);
    (
        done.code(),
        serde_json::from_slice(&text).unwrap_or_default(),
    )
}

#[test]
fn a_bare_pipe_is_measured_and_its_answers_are_checked() {
    let server = binary().to_str().expect("a path");
    let (code, report) = pipe(&[server, "demo-server"]);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["call"]["count"], 150);
    assert_eq!(report["violations"], 0);
    // It says back what it hears: no answer at all.
    let (code, report) = pipe(&["cat"]);
    assert_eq!(code, Some(1), "{report}");
    assert!(
        report["violations"].as_u64().is_some_and(|wrong| wrong > 0),
        "{report}"
    );
    // It ends at once.
    assert_eq!(pipe(&["true", "x", "y"]).0, Some(3));
}
