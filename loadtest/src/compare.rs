//! Several gateways in front of the same stdio server, one after another, in rounds: what one costs beside the others.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::{self, Stop};
use crate::options::{Call, Compare, Scenario};
use crate::report::{self, Report, plot, text};
use crate::watch;

/// How often it is looked whether a gateway takes connections.
const LOOK: Duration = Duration::from_millis(50);

/// How long a gateway and what it has started may take to end after SIGTERM.
const END: Duration = Duration::from_secs(10);

/// The file: a server, and gateways to put in front of it.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub server: Server,
    pub gateway: Vec<Gateway>,
}

/// The stdio server behind each gateway.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub command: Vec<String>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    pub name: String,
    /// Its command line. `{port}` is a free port; an argument that is `{server}` becomes the server's arguments,
    /// and `{server}` within one (`--stdio={server}`) its command line as a shell reads it.
    pub command: Vec<String>,
    /// Where it then is, with `{port}`.
    pub url: String,
    /// Sessions at most, for gateways that start a server process for each.
    pub sessions: Option<u32>,
    /// A word about it for the table.
    #[serde(default)]
    pub note: String,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("{0}: {1}")]
    File(PathBuf, String),
    #[error("{0} names no gateway{1}")]
    NoGateway(PathBuf, String),
    #[error("processes cannot be looked after here: {0}")]
    House(String),
}

/// What came of one gateway, over all rounds.
#[derive(Serialize, Debug)]
pub struct Row {
    pub name: String,
    pub note: String,
    /// Each round's report; a round that did not work has none.
    pub rounds: Vec<Report>,
    /// What went wrong beside the calls.
    pub faults: Vec<String>,
}

/// The middle of several numbers: the median, or of two their mean.
fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => 0.0,
        count if count % 2 == 1 => numbers[count / 2],
        count => f64::midpoint(numbers[count / 2 - 1], numbers[count / 2]),
    }
}

impl Row {
    fn of(&self, pick: impl Fn(&Report) -> f64) -> f64 {
        middle(self.rounds.iter().map(pick).collect())
    }

    fn sum(&self, pick: impl Fn(&Report) -> u64) -> u64 {
        self.rounds.iter().map(pick).sum()
    }

    pub fn per_second(&self) -> f64 {
        self.of(|report| report.per_second)
    }

    pub fn cpu_us(&self) -> f64 {
        self.of(|report| report.watched.as_ref().map_or(0.0, |it| it.cpu_us))
    }

    fn wrong(&self) -> u64 {
        self.sum(|report| report.wrong)
    }

    fn has_violations(&self) -> bool {
        self.rounds
            .iter()
            .any(|report| !report.violations.is_empty())
    }

    /// The least and the most of the rounds.
    fn span(&self, pick: impl Fn(&Report) -> f64) -> (f64, f64) {
        let numbers = self.rounds.iter().map(pick);
        numbers.fold((f64::INFINITY, 0.0), |(least, most), it| {
            (least.min(it), most.max(it))
        })
    }

    /// What is to be said of it beside its figures.
    fn words(&self) -> String {
        let mut words = Vec::new();
        if self.wrong() > 0 {
            words.push(format!("**{} wrong**", self.wrong()));
        } else if self.has_violations() {
            words.push("**wrong ones**".into());
        } else if self.sum(|report| report.done) == 0 {
            words.push("none".into());
        } else {
            words.push("right".into());
        }
        if self.failures() > 0 {
            words.push(format!("{} failed", self.failures()));
        }
        for fault in &self.faults {
            let line = fault.lines().next().unwrap_or_default().to_owned();
            if !words.contains(&line) {
                words.push(line);
            }
        }
        if !self.note.is_empty() {
            words.push(self.note.clone());
        }
        words.join("; ")
    }

    fn failures(&self) -> u64 {
        self.sum(|report| report.failures.values().sum())
    }
}

/// Runs the comparison that the flags ask for and prints its table.
pub fn main(compare: &Compare) -> ExitCode {
    let plan = match keep_house().and_then(|()| read(compare)) {
        Ok(plan) => plan,
        Err(fault) => {
            eprintln!("ringway-loadtest: {fault}");
            return ExitCode::from(2);
        }
    };
    let mut rows: Vec<Row> = Vec::new();
    for gateway in &plan.gateway {
        rows.push(Row {
            name: gateway.name.clone(),
            note: gateway.note.clone(),
            rounds: Vec::new(),
            faults: Vec::new(),
        });
    }
    for round in 1..=compare.rounds {
        for (gateway, row) in plan.gateway.iter().zip(&mut rows) {
            match measure(compare, gateway, &plan.server) {
                Ok((report, faults)) => {
                    eprintln!(
                        "round {round}, {}: {:.0} calls/s, {} failures, {} wrong answers",
                        gateway.name,
                        report.per_second,
                        report.failures.values().sum::<u64>(),
                        report.wrong
                    );
                    row.rounds.push(report);
                    row.faults.extend(faults);
                }
                Err(fault) => {
                    eprintln!("round {round}, {}: {fault}", gateway.name);
                    row.faults.push(fault);
                }
            }
        }
    }
    print!("{}", table(compare, &rows));
    for (path, text) in [
        (
            &compare.json,
            serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n",
        ),
        (&compare.report, page(compare, &rows)),
    ] {
        let Some(path) = path else { continue };
        if let Err(error) = std::fs::write(path, text) {
            eprintln!("ringway-loadtest: {}: {error}", path.display());
            return ExitCode::from(3);
        }
    }
    if rows.first().is_some_and(Row::has_violations) {
        ExitCode::from(1)
    } else if rows.iter().any(|row| {
        row.rounds.len() < compare.rounds as usize || row.rounds.iter().any(Report::is_empty)
    }) {
        ExitCode::from(3)
    } else {
        ExitCode::SUCCESS
    }
}

fn read(compare: &Compare) -> Result<Plan, Fault> {
    let file = |why: String| Fault::File(compare.file.clone(), why);
    let text = std::fs::read_to_string(&compare.file).map_err(|error| file(error.to_string()))?;
    let mut plan: Plan = toml::from_str(&text).map_err(|error| file(error.to_string()))?;
    if let Some(unknown) = compare
        .only
        .iter()
        .find(|name| plan.gateway.iter().all(|it| it.name != **name))
    {
        return Err(Fault::NoGateway(
            compare.file.clone(),
            format!(" {unknown:?}"),
        ));
    }
    if !compare.only.is_empty() {
        let place = |name: &String| compare.only.iter().position(|only| only == name);
        plan.gateway.retain(|it| place(&it.name).is_some());
        plan.gateway.sort_by_key(|it| place(&it.name));
    }
    if plan.gateway.is_empty() {
        return Err(Fault::NoGateway(compare.file.clone(), String::new()));
    }
    Ok(plan)
}

/// One gateway's turn. The strings are what went wrong beside the calls.
fn measure(
    compare: &Compare,
    gateway: &Gateway,
    server: &Server,
) -> Result<(Report, Vec<String>), String> {
    let port = free_port().map_err(|error| format!("no free port: {error}"))?;
    let mut running = Running::start(compare, gateway, server, port)?;
    running.wait_until_ready(port, compare.start_timeout)?;
    let mut common = compare.common(gateway.url.replace("{port}", &port.to_string()));
    common.watch_pid = Some(running.child.id());
    if let Some(most) = gateway.sessions {
        common.sessions = Some(common.concurrency.min(most));
    }
    let call = Call {
        common,
        tool: compare.tool.clone(),
        arguments: compare.arguments.clone(),
        payload: compare.payload,
        no_repeat: false,
    };
    let ran = command::run(&Scenario::Call(call));
    let faults = running.end();
    match ran {
        Ok(report) => Ok((report, faults)),
        Err(Stop::Wrong(why)) => Err(why.to_string()),
        Err(Stop::NoLoad(why)) => Err(format!("{why}{}", running.last_words())),
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A gateway that runs, in a process group of its own.
struct Running {
    child: Child,
    log: PathBuf,
    has_ended: bool,
}

impl Running {
    fn start(
        compare: &Compare,
        gateway: &Gateway,
        server: &Server,
        port: u16,
    ) -> Result<Running, String> {
        let arguments = arguments(&gateway.command, &server.command, port);
        let (program, rest) = arguments.split_first().ok_or("an empty command")?;
        let log = std::env::temp_dir().join(format!(
            "ringway-loadtest-{}-{port}.log",
            std::process::id()
        ));
        let output =
            std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(resolve(compare, program));
        command
            .args(rest)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0);
        if let Some(folder) = compare
            .file
            .parent()
            .filter(|it| !it.as_os_str().is_empty())
        {
            command.current_dir(folder);
        }
        let child = command
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        Ok(Running {
            child,
            log,
            has_ended: false,
        })
    }

    fn wait_until_ready(&mut self, port: u16, most: Duration) -> Result<(), String> {
        let deadline = Instant::now() + most;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        while TcpStream::connect_timeout(&address, LOOK).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("it ended: {status}{}", self.last_words()));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "it takes no connections after {most:?}{}",
                    self.last_words()
                ));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(3).collect();
        lines
            .into_iter()
            .rev()
            .fold(String::new(), |all, line| all + "\n    " + line)
    }

    /// Ends it and all that it has started. Returns what did not end by itself.
    fn end(&mut self) -> Vec<String> {
        self.has_ended = true;
        let mut faults = Vec::new();
        if let Ok(Some(status)) = self.child.try_wait() {
            faults.push(format!("it ended under load: {status}"));
        }
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::TERM);
        let deadline = Instant::now() + END;
        // Its orphans become ours, so all that it has started is below us.
        let is_there = |child: &mut Child| {
            matches!(child.try_wait(), Ok(None)) || !watch::below(std::process::id()).is_empty()
        };
        while is_there(&mut self.child) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            faults.push("it did not end after SIGTERM".into());
        }
        if watch::below(std::process::id())
            .iter()
            .any(|born| !born.is(self.child.id()))
        {
            faults.push("it left processes behind".into());
        }
        let _ = kill_process_group(group, Signal::KILL);
        kill_all();
        let _ = self.child.wait();
        faults
    }
}

/// Ends at once what has been started, and all that that has started.
fn kill_all() {
    for born in watch::below(std::process::id()) {
        born.kill();
    }
}

/// What a gateway leaves behind becomes a child of this process, so that it is found; and a signal that ends this
/// process ends the gateway first.
fn keep_house() -> Result<(), Fault> {
    let house = |error: std::io::Error| Fault::House(error.to_string());
    rustix::process::set_child_subreaper(Pid::from_raw(1)).map_err(|error| house(error.into()))?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(house)?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            kill_all();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end();
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// A program as the file's own folder sees it, if it is a path.
fn resolve(compare: &Compare, program: &str) -> PathBuf {
    let path = Path::new(program);
    match compare.file.parent() {
        Some(folder) if program.contains('/') && path.is_relative() => {
            // Links stay: what a Python of an environment is called says which one it is.
            let joined = folder.join(path);
            std::path::absolute(&joined).unwrap_or(joined)
        }
        _ => path.to_owned(),
    }
}

fn arguments(command: &[String], server: &[String], port: u16) -> Vec<String> {
    let mut out = Vec::new();
    for argument in command {
        if argument == "{server}" {
            out.extend(server.iter().cloned());
        } else {
            let line: Vec<String> = server.iter().map(|it| shell_quoted(it)).collect();
            out.push(
                argument
                    .replace("{port}", &port.to_string())
                    .replace("{server}", &line.join(" ")),
            );
        }
    }
    out
}

fn shell_quoted(text: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&b);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The comparison as a Markdown table. Ratios are to the first gateway.
pub fn table(compare: &Compare, rows: &[Row]) -> String {
    let mut out = Vec::new();
    // Writing to a vector cannot fail.
    let _ = writeln!(
        out,
        "`tools/call` with {} bytes of text, {} in flight, {:?} measured after {:?}, {} rounds in turn; the middle of the rounds, and of the \
         calls a second the least and the most. Wrong answers are not counted as calls.\n",
        compare.payload, compare.concurrency, compare.duration, compare.warmup, compare.rounds
    );
    let (base_rate, base_cpu) = rows
        .first()
        .map_or((0.0, 0.0), |row| (row.per_second(), row.cpu_us()));
    let base = rows.first().map_or("", |row| row.name.as_str());
    let _ = writeln!(
        out,
        "| gateway | calls/s | {base} does more by | p50 | p99 | CPU a call, us | more than {base} by | memory, MiB | processes below it | answers |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        if row.rounds.is_empty() {
            let why = row
                .faults
                .first()
                .map_or("", |fault| fault.lines().next().unwrap_or_default());
            let _ = writeln!(
                out,
                "| {} | | | | | | | | | did not work: {why} |",
                row.name
            );
            continue;
        }
        let call = |pick: fn(&report::Times) -> f64| {
            text::time(row.of(|it| it.times.get("call").map_or(0.0, pick)))
        };
        let watched =
            |pick: fn(&report::Process) -> f64| row.of(|it| it.watched.as_ref().map_or(0.0, pick));
        let (least, most) = row.span(|report| report.per_second);
        let _ = writeln!(
            out,
            "| {} | {:.0} ({least:.0}-{most:.0}) | {} | {} | {} | {:.1} | {} | {:.0} | {:.0} | {} |",
            row.name,
            row.per_second(),
            times(base_rate, row.per_second()),
            call(|times| times.p50),
            call(|times| times.p99),
            row.cpu_us(),
            times(row.cpu_us(), base_cpu),
            watched(|it| it.resident_peak as f64) / f64::from(1 << 20),
            watched(|it| f64::from(it.children)),
            row.words()
        );
    }
    String::from_utf8(out).unwrap_or_default()
}

/// How many times as much.
fn times(value: f64, base: f64) -> String {
    match value / base {
        ratio if !ratio.is_finite() || ratio <= 0.0 => "-".into(),
        ratio if ratio >= 10.0 => format!("{ratio:.0} x"),
        ratio => format!("{ratio:.2} x"),
    }
}

fn page(compare: &Compare, rows: &[Row]) -> String {
    use crate::report::html::{escape, frame};
    let mut body = String::from("<h1>MCP gateways in front of the same server</h1>\n");
    let markdown = table(compare, rows);
    let (intro, lines) = markdown.split_once("\n\n").unwrap_or(("", &markdown));
    body += &format!(
        "<p class=\"sub\">{}</p><table class=\"words\">",
        escape(&intro.replace('`', ""))
    );
    for (at, line) in lines.lines().enumerate().filter(|(at, _)| *at != 1) {
        let tag = if at == 0 { "th" } else { "td" };
        let cells = line
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().replace("**", ""));
        let cells: String = cells
            .map(|cell| format!("<{tag}>{}</{tag}>", escape(&cell)))
            .collect();
        body += &format!("<tr>{cells}</tr>\n");
    }
    body += "</table>";
    let worked: Vec<&Row> = rows.iter().filter(|row| !row.rounds.is_empty()).collect();
    let bars = |pick: fn(&Row) -> f64| -> Vec<(String, f64)> {
        worked
            .iter()
            .map(|row| (row.name.clone(), pick(row)))
            .collect()
    };
    for (name, unit, pick) in [
        (
            "Calls a second",
            "calls a second, logarithmic",
            Row::per_second as fn(&Row) -> f64,
        ),
        (
            "CPU time of the gateway a call",
            "microseconds, logarithmic",
            Row::cpu_us,
        ),
    ] {
        body += &format!(
            "<h2>{name}</h2><figure>{}</figure>",
            plot::bars(&bars(pick), unit)
        );
    }
    frame("MCP gateways compared", &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn places_of_a_command_are_filled() {
        let server = ["my server".to_owned(), "--x".to_owned()];
        assert_eq!(
            arguments(&words("gw --port {port} -- {server}"), &server, 80),
            ["gw", "--port", "80", "--", "my server", "--x"]
        );
        assert_eq!(
            arguments(&["--stdio={server}".into()], &server, 80),
            ["--stdio='my server' --x"]
        );
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn ratios_and_medians_are_readable() {
        assert_eq!(
            [
                times(50.0, 1.0),
                times(1.5, 1.0),
                times(1.0, 0.0),
                times(0.0, 1.0)
            ],
            ["50 x", "1.50 x", "-", "-"]
        );
        assert_eq!(
            (middle(vec![3.0, 1.0, 2.0]), middle(vec![4.0, 1.0])),
            (2.0, 2.5)
        );
    }
}
