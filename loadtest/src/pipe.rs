//! Calls straight to a stdio server, without HTTP and without a gateway: what there is to add to.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::check::{self, Violations};
use crate::nonce::Nonce;
use crate::options::{Pipe, Tool};
use crate::record::histogram;
use crate::report::{Times, text};
use crate::session::call_body;

/// The first id of a call; those below are of the handshake.
const ID_BASE: u64 = 1_000_000_000;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Wrong(#[from] crate::options::Wrong),
    #[error("{0}: {1}")]
    Start(String, std::io::Error),
    #[error("the server's pipe: {0}")]
    Pipe(#[from] std::io::Error),
    #[error("the server ended before it had answered all")]
    Ended,
}

/// What came of it, times in microseconds.
#[derive(Serialize, Debug)]
pub struct Outcome {
    pub command: Vec<String>,
    /// Calls a second that began.
    pub rate: f64,
    pub seconds: f64,
    pub call: Times,
    pub violations: u64,
}

/// Runs what the flags say and prints it.
pub fn main(pipe: &Pipe) -> ExitCode {
    let outcome = match run(pipe) {
        Ok(outcome) => outcome,
        Err(fault) => {
            eprintln!("ringway-loadtest: {fault}");
            return ExitCode::from(if matches!(fault, Fault::Wrong(_)) {
                2
            } else {
                3
            });
        }
    };
    println!(
        "{} calls at {}/s over a pipe: p50 {}, p99 {}, p99.9 {}, max {}; {} wrong answers",
        outcome.call.count,
        outcome.rate,
        text::time(outcome.call.p50),
        text::time(outcome.call.p99),
        text::time(outcome.call.p99_9),
        text::time(outcome.call.max),
        outcome.violations,
    );
    if let Some(path) = &pipe.json {
        let text = serde_json::to_string_pretty(&outcome).unwrap_or_default() + "\n";
        if let Err(error) = std::fs::write(path, text) {
            eprintln!("ringway-loadtest: {}: {error}", path.display());
            return ExitCode::from(3);
        }
    }
    ExitCode::from(u8::from(outcome.violations > 0))
}

/// The server, ended when this goes.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls on a fixed grid of starts, each latency from the intended start to the whole line of the answer. One thread
/// writes and one reads, so that a slow answer holds up no start.
///
/// # Errors
/// When the server cannot be started, or ends.
pub fn run(pipe: &Pipe) -> Result<Outcome, Fault> {
    let rate = pipe.rate;
    if !(0.001..=1e9).contains(&rate) {
        return Err(crate::options::Wrong::Rate.into());
    }
    let tool = Tool::new("arguments", &pipe.tool, &pipe.arguments, pipe.payload)?;
    let mut command = Command::new(&pipe.command[0]);
    command
        .args(&pipe.command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let start = command
        .spawn()
        .map_err(|error| Fault::Start(pipe.command[0].clone(), error))?;
    let mut server = Server(start);
    let (Some(mut to), Some(from)) = (server.0.stdin.take(), server.0.stdout.take()) else {
        return Err(Fault::Ended);
    };
    let mut from = BufReader::with_capacity(1 << 16, from);
    shake_hands(&mut to, &mut from)?;
    // Sleeps end on the nanosecond, not some fifty microseconds later as by default.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let grid = Grid {
        start: Instant::now() + Duration::from_millis(10),
        rate,
        warmup: pipe.warmup,
        end: pipe.warmup + pipe.duration,
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&mut from, &tool, &grid));
        let wrote = write(&mut to, &tool, &grid);
        let read = reader.join().unwrap_or(Err(Fault::Ended));
        wrote?;
        let (times, violations) = read?;
        Ok(Outcome {
            command: pipe.command.clone(),
            rate,
            seconds: pipe.duration.as_secs_f64(),
            call: Times::new(&times),
            violations: violations.total(),
        })
    })
}

/// When each call is to begin.
struct Grid {
    start: Instant,
    rate: f64,
    warmup: Duration,
    end: Duration,
}

impl Grid {
    fn after(&self, count: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "calls stay far below 2^52")]
        Duration::from_secs_f64(count as f64 / self.rate)
    }

    /// Calls of the whole run.
    fn calls(&self) -> impl Iterator<Item = u64> {
        (0u64..).take_while(|count| self.after(*count) < self.end)
    }
}

fn nonce(count: u64) -> Nonce {
    Nonce {
        session: 0,
        call: count,
    }
}

fn write(to: &mut ChildStdin, tool: &Tool, grid: &Grid) -> Result<(), Fault> {
    let mut line = Vec::new();
    for count in grid.calls() {
        let wait = (grid.start + grid.after(count)).saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        line.clear();
        call_body(&mut line, tool, ID_BASE + count, nonce(count), false);
        line.push(b'\n');
        to.write_all(&line)?;
    }
    Ok(())
}

fn read(
    from: &mut BufReader<ChildStdout>,
    tool: &Tool,
    grid: &Grid,
) -> Result<(hdrhistogram::Histogram<u64>, Violations), Fault> {
    let (mut times, mut violations) = (histogram(), Violations::default());
    let mut line = Vec::new();
    for count in grid.calls() {
        line.clear();
        if from.read_until(b'\n', &mut line)? == 0 {
            return Err(Fault::Ended);
        }
        let now = Instant::now();
        let repeats = tool.arguments.has_nonce();
        let mut check = check::Call::new(ID_BASE + count, nonce(count), repeats, false)
            .with_padding(tool.arguments.padding());
        check.message(line.trim_ascii_end(), &mut violations);
        check.end(&mut violations);
        if grid.after(count) >= grid.warmup {
            let time = now.saturating_duration_since(grid.start + grid.after(count));
            times.saturating_record(time.as_nanos().try_into().unwrap_or(u64::MAX));
        }
    }
    Ok((times, violations))
}

fn shake_hands(to: &mut ChildStdin, from: &mut BufReader<ChildStdout>) -> Result<(), Fault> {
    to.write_all(
        concat!(
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
            r#""capabilities":{},"clientInfo":{"name":"ringway-loadtest","version":"0"}}}"#,
            "\n"
        )
        .as_bytes(),
    )?;
    let mut line = Vec::new();
    if from.read_until(b'\n', &mut line)? == 0 {
        return Err(Fault::Ended);
    }
    to.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
    Ok(())
}
