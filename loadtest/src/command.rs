//! A run from its flags to its exit code.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::engine::{self, News, NoLoad, Outcome};
use crate::options::{Call, Command, Common, Endpoint, Options, Scenario, Shape, Tool, Wrong};
use crate::record::{Slot, Window};
use crate::report::{self, Report, live::Live};
use crate::scenarios::Kind;
use crate::scenarios::calls::Calls;
use crate::scenarios::churn::Churn;
use crate::scenarios::mixed::Mixed;
use crate::scenarios::streams::{Resource, Streams};
use crate::session::Profile;
use crate::watch::{self, Usage};
use crate::{compare, pipe};

/// Descriptors that a run needs besides its connections.
const DESCRIPTORS_BESIDES: u64 = 100;

/// How often a watched process is looked at for its peak.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// Runs what the flags say and prints it. The exit code is as the help says.
pub fn main(options: &Options) -> ExitCode {
    let scenario = match &options.command {
        Command::Compare(compare) => return compare::main(compare),
        Command::Pipe(pipe) => return pipe::main(pipe),
        Command::Scenario(scenario) => scenario,
    };
    let report = match run(scenario) {
        Ok(report) => report,
        Err(Stop::Wrong(why)) => {
            eprintln!("ringway-loadtest: {why}");
            return ExitCode::from(2);
        }
        Err(Stop::NoLoad(why)) => {
            eprintln!("ringway-loadtest: {why}");
            return ExitCode::from(3);
        }
    };
    print!("{}", report::text::summary(&report));
    let common = scenario.common();
    let files = [
        (&common.json, report::json(&report)),
        (&common.report, report::html::page(&report)),
    ];
    for (path, text) in files {
        let Some(path) = path else { continue };
        if let Err(error) = std::fs::write(path, text) {
            eprintln!("ringway-loadtest: {}: {error}", path.display());
            return ExitCode::from(3);
        }
    }
    if !report.violations.is_empty() {
        return ExitCode::from(1);
    }
    if report.is_empty() {
        eprintln!("ringway-loadtest: nothing was measured");
        return ExitCode::from(3);
    }
    ExitCode::SUCCESS
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    #[error(transparent)]
    Wrong(#[from] Wrong),
    #[error(transparent)]
    NoLoad(#[from] NoLoad),
}

/// Runs a scenario.
///
/// # Errors
/// When its flags do not go together, or it cannot begin.
pub fn run(scenario: &Scenario) -> Result<Report, Stop> {
    let common = scenario.common();
    let shape = common.shape()?;
    let profile = Profile::new(Endpoint::new(&common.url)?, common);
    raise_descriptors(
        u64::from(shape.connections) + 2 * u64::from(shape.sessions) + DESCRIPTORS_BESIDES,
    )?;
    let started = SystemTime::now();
    let watcher = Watcher::new(common.watch_pid)?;
    let mut live = Live::new(common, std::io::stderr().is_terminal());
    let mut slots: Vec<Slot> = Vec::new();
    let on = |news: News| match news {
        News::Begun(window) => {
            live.begin(window);
            watcher.begin(window);
        }
        News::Slot(slot) => {
            live.slot(&slot);
            let number = slot.number;
            while slots.len() <= number {
                slots.push(Slot::new(slots.len()));
            }
            slots[number].merge(&slot);
        }
    };
    let outcome = work(scenario, common, shape, &profile, on)?;
    live.end();
    let watched = watcher.end();
    Ok(Report::new(
        scenario, shape, started, &outcome, &slots, &watched,
    ))
}

fn work(
    scenario: &Scenario,
    common: &Common,
    shape: Shape,
    profile: &Profile,
    on: impl FnMut(News),
) -> Result<Outcome, Stop> {
    let with_uri = |text: &str, uri: &str| text.replace("{uri}", &json_inner(uri));
    let outcome = match scenario {
        Scenario::Call(call) => {
            let kind = kind_of(call)?;
            engine::run(&Calls { kind }, common, shape, profile, 0, on)
        }
        Scenario::Churn(call) => {
            let kind = kind_of(call)?;
            engine::run(&Churn { kind }, common, shape, profile, 0, on)
        }
        Scenario::Progress(progress) => {
            let kind = slow(
                "arguments",
                &progress.tool,
                &progress.arguments,
                progress.events,
            )?;
            engine::run(&Calls { kind }, common, shape, profile, 0, on)
        }
        Scenario::Idle(_) => engine::run(
            &Streams { resources: vec![] },
            common,
            shape,
            profile,
            0,
            on,
        ),
        Scenario::Fanout(fanout) => {
            let mut resources = Vec::new();
            for uri in &fanout.uris {
                let arguments = with_uri(&fanout.trigger_arguments, uri);
                let trigger = Tool::new("trigger-arguments", &fanout.trigger_tool, &arguments, 0)?;
                resources.push(Resource {
                    uri: uri.clone(),
                    trigger,
                });
            }
            let count = resources.len();
            engine::run(&Streams { resources }, common, shape, profile, count, on)
        }
        Scenario::Mixed(mixed) | Scenario::Storm(mixed) => {
            let tools = &mixed.call;
            if shape.sessions < shape.connections {
                return Err(Wrong::FewSessions(shape.sessions, shape.connections).into());
            }
            let mut work = Mixed {
                echo: echo(
                    "arguments",
                    &tools.tool,
                    &tools.arguments,
                    tools.payload,
                    true,
                )?,
                slow: None,
                resource: None,
                is_storm: matches!(scenario, Scenario::Storm(_)),
            };
            if !tools.progress_tool.is_empty() {
                let arguments = &tools.progress_arguments;
                work.slow = Some(slow(
                    "progress-arguments",
                    &tools.progress_tool,
                    arguments,
                    tools.events,
                )?);
            }
            if !tools.uri.is_empty() {
                let arguments = with_uri(&tools.trigger_arguments, &tools.uri);
                let trigger = Tool::new("trigger-arguments", &tools.trigger_tool, &arguments, 0)?;
                let uri = tools.uri.clone();
                work.resource = Some(Resource { uri, trigger });
            }
            engine::run(&work, common, shape, profile, 1, on)
        }
    };
    Ok(outcome?)
}

/// A text as it stands between the quotes of a JSON string.
fn json_inner(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn kind_of(call: &Call) -> Result<Kind, Wrong> {
    let repeats = !call.no_repeat;
    echo(
        "arguments",
        &call.tool,
        &call.arguments,
        call.payload,
        repeats,
    )
}

fn echo(
    flag: &'static str,
    tool: &str,
    arguments: &str,
    payload: usize,
    repeats: bool,
) -> Result<Kind, Wrong> {
    let tool = Tool::new(flag, tool, arguments, payload)?;
    let repeats = repeats && tool.arguments.has_nonce();
    Ok(Kind {
        padding: tool.arguments.padding().into(),
        tool,
        repeats,
        progress: None,
    })
}

fn slow(flag: &'static str, tool: &str, arguments: &str, events: u64) -> Result<Kind, Wrong> {
    let arguments = arguments.replace("{events}", &events.to_string());
    let tool = Tool::new(flag, tool, &arguments, 0)?;
    let expected = (events > 0).then_some(events);
    Ok(Kind {
        tool,
        repeats: false,
        padding: "".into(),
        progress: Some(expected),
    })
}

/// Raises the limit of open descriptors as far as it goes.
fn raise_descriptors(needed: u64) -> Result<(), NoLoad> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < needed => Err(NoLoad(format!(
            "{needed} open descriptors are needed, and {most} is the most that is allowed (ulimit -n)"
        ))),
        _ => Ok(()),
    }
}

/// What a watched process used, and what the load generator did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Watched {
    pub pid: Option<u32>,
    pub before: Usage,
    pub after: Usage,
    pub resident_peak: u64,
    pub children_resident_peak: u64,
    /// CPU time of the load generator itself.
    pub own_cpu: Duration,
}

/// Looks at processes at the beginning and the end of the measuring, and between.
struct Watcher {
    state: Arc<(Mutex<Watched>, AtomicBool)>,
    pid: Option<u32>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Watcher {
    fn new(pid: Option<u32>) -> Result<Watcher, NoLoad> {
        if let Some(pid) = pid
            && watch::look(pid).is_none()
        {
            return Err(NoLoad(format!("--watch-pid {pid}: no such process")));
        }
        Ok(Watcher {
            state: Arc::default(),
            pid,
            threads: Mutex::default(),
        })
    }

    /// Looks from the end of the warm-up to the end of the window, on a thread of its own.
    fn begin(&self, window: Window) {
        let (state, pid) = (Arc::clone(&self.state), self.pid);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(window.from.saturating_duration_since(Instant::now()));
            let own_before = watch::own_cpu();
            let mut seen = Watched {
                pid,
                ..Watched::default()
            };
            if let Some(usage) = pid.and_then(watch::look) {
                (seen.before, seen.after) = (usage, usage);
            }
            while !state.1.load(Ordering::Relaxed) {
                let left = window.to.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                std::thread::sleep(left.min(WATCH_EVERY));
                if let Some(usage) = pid.and_then(watch::look) {
                    seen.after = usage;
                    seen.resident_peak = seen.resident_peak.max(usage.resident);
                    seen.children_resident_peak =
                        seen.children_resident_peak.max(usage.children_resident);
                }
            }
            seen.own_cpu = watch::own_cpu().saturating_sub(own_before);
            *state
                .0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner) = seen;
        });
        self.threads
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(thread);
    }

    fn end(self) -> Watched {
        self.state.1.store(true, Ordering::Relaxed);
        let threads = self
            .threads
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for thread in threads {
            let _ = thread.join();
        }
        *self
            .state
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
