//! The binary: flags in, the server run, one sentence and an exit code out.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};
use mimalloc::MiMalloc;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::filter::LevelFilter;

use ringway::cli::{self, Cli, Command, LogFlags, LogFormat, LogLevel, ServeFlags, ServerPlace};
use ringway::config::{self, ThisMachine};
use ringway::upstream::child::ServerCommand;
use ringway::{demo, server, upstream};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Exit code for flags that do not fit, as clap uses it for those that do not parse.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return no_such_flags(&error),
    };
    match cli.command {
        Command::Serve {
            config: Some(file),
            flags,
            ..
        } => serve_file(&file, &flags.log),
        Command::Check { config } => check(&config),
        Command::Serve {
            config: None,
            flags,
            http,
            server,
        } => {
            let mut words = server.into_iter();
            let command = words.next().map(|program| ServerCommand {
                label: program.to_string_lossy().into_owned(),
                program,
                arguments: words.collect(),
                ..ServerCommand::default()
            });
            match (command, http.server()) {
                (Some(command), Ok(None)) => serve(*flags, ServerPlace::Command(command)),
                (None, Ok(Some(http))) => serve(*flags, ServerPlace::Http(http)),
                (_, Err(error)) => fail(USAGE, &error.to_string()),
                (_, Ok(_)) => fail(USAGE, "name either a command or --upstream"),
            }
        }
        Command::Demo { flags } => {
            let command = ServerCommand {
                label: "ringway demo-server".into(),
                program: "/proc/self/exe".into(),
                arguments: vec!["demo-server".into()],
                ..ServerCommand::default()
            };
            serve(*flags, ServerPlace::Command(command))
        }
        Command::DemoServer => match demo::run(&demo::DemoOptions::default()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(1, &format!("the demo server failed: {error}")),
        },
        Command::UpstreamGuard(arguments) => upstream::guard::run(arguments),
    }
}

fn serve(flags: ServeFlags, server: ServerPlace) -> ExitCode {
    let config = match flags.validate(server) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error.to_string()),
    };
    let log = start_log(config.process.log_level, config.process.log_format);
    let outcome = server::run(config);
    // What the log still holds is written before the last sentence.
    drop(log);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &error.to_string()),
    }
}

/// Serves the routes of a configuration file.
fn serve_file(path: &Path, flags: &LogFlags) -> ExitCode {
    let loaded = match config::load(path, &ThisMachine, &[]) {
        Ok(loaded) => loaded,
        Err(problems) => {
            say(&problems.shown(path));
            return fail(USAGE, "the configuration file cannot be used");
        }
    };
    let process = &loaded.file.process;
    let log = start_log(
        flags.log_level.unwrap_or(process.log_level),
        flags.log_format.unwrap_or(process.log_format),
    );
    for warning in &loaded.warnings.0 {
        tracing::warn!("{}:{warning}", path.display());
    }
    let outcome = server::run_file(path.to_owned(), loaded.file, Vec::new());
    drop(log);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &error.to_string()),
    }
}

/// Says on stdout what is wrong with a configuration file.
fn check(path: &Path) -> ExitCode {
    let (problems, code) = match config::load(path, &ThisMachine, &[]) {
        Ok(loaded) => (loaded.warnings, 0),
        Err(problems) => (problems, 1),
    };
    let mut text = problems.shown(path);
    for name in cli::variables_beside_config() {
        text.push_str(&format!(
            "warning: {name} is set, which `ringway serve` refuses beside a file\n"
        ));
    }
    if code == 0 {
        text.push_str(&format!("{} is right\n", path.display()));
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(code)
}

/// What is wrong with the flags, or the help. clap names the flag even where a variable stands
/// for it.
fn no_such_flags(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let mut named = [ContextKind::InvalidArg, ContextKind::PriorArg]
        .into_iter()
        .filter_map(|kind| error.get(kind))
        .map(ToString::to_string);
    let is_about_the_file = named.any(|argument| argument.contains("--config"));
    let variables = match error.kind() {
        ErrorKind::ArgumentConflict if is_about_the_file => cli::variables_about_config(),
        _ => Vec::new(),
    };
    if !variables.is_empty() {
        say(&format!(
            "\nset in the environment: {}\n",
            variables.join(", ")
        ));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE))
}

/// Says why the process ends.
fn fail(code: u8, sentence: &str) -> ExitCode {
    say(&format!("ringway: {sentence}\n"));
    ExitCode::from(code)
}

/// Writes text to stderr. A reader of it that stalls holds this up for a second at most.
fn say(text: &str) {
    let text = text.to_owned();
    let (done, printed) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stderr().write_all(text.as_bytes());
        let _ = done.send(());
    });
    let _ = printed.recv_timeout(Duration::from_secs(1));
}

/// The log goes to stderr through a thread of its own: a reader that stalls
/// must not stall a shard. Lines over its queue are dropped.
fn start_log(level: LogLevel, format: LogFormat) -> WorkerGuard {
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_max_level(level)
        .with_ansi(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    // The default hook writes to stderr from the thread that panicked, which may
    // be a shard.
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(%panic, %backtrace, "panicked");
    }));
    guard
}
