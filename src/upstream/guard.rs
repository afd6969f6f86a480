//! The guard process: Ringway's own binary, the parent of the server and the
//! leader of its process group. It is tied to Ringway by a socket whose end it
//! notices whatever way Ringway ends, kill -9 included; then it kills all that
//! came from the server. It is a child subreaper, so that descendants that left
//! the group (setsid) come to it and are found. The kernel's parent-death signal
//! alone would not do: it follows the spawning thread and does not reach
//! grandchildren (`npx`, `sh -c`).
//!
//! On the socket it says one line when the server has been started or could not
//! be ([`STARTED`], [`FAILED`]), and one when the server has ended ([`ENDED`]).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, set_child_subreaper,
    setrlimit, waitpid,
};

/// The hidden subcommand that runs the guard.
pub const SUBCOMMAND: &str = "upstream-guard";

/// First byte of the line that says that the server runs; its pid follows.
pub const STARTED: u8 = b'S';
/// First byte of the line that says why it could not be started.
pub const FAILED: u8 = b'F';
/// First byte of the line that says how it ended.
pub const ENDED: u8 = b'E';

/// What the guard is told on its command line.
#[derive(Debug, clap::Args)]
pub struct GuardArguments {
    /// The socket to Ringway.
    socket: RawFd,
    /// The server's soft limit on open files.
    open_files: u64,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Signals that Ringway sends to the whole group, or a terminal to its own: the
/// guard outlives them, the server gets them.
const PASSED_ON: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Runs the guard. Does not return.
pub fn run(arguments: GuardArguments) -> ! {
    // SAFETY: Ringway has left this descriptor open for the guard, and nothing
    // else in this process knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(arguments.socket) };
    let _ = rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC);
    let socket = UnixStream::from(socket);
    set_signals(libc::SIG_IGN);
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    match start_server(&arguments) {
        Ok(server) => {
            say(&socket, STARTED, &server.to_string());
            release_standard_streams();
            watch_socket(&socket);
            wait_for_all(&socket, server)
        }
        Err(error) => {
            say(&socket, FAILED, &error.to_string());
            std::process::exit(1)
        }
    }
}

fn set_signals(action: libc::sighandler_t) {
    for signal in PASSED_ON {
        // SAFETY: neither action installs a handler.
        unsafe { libc::signal(signal, action) };
    }
}

/// A line is short enough that the socket takes it at once.
fn say(mut socket: &UnixStream, kind: u8, text: &str) {
    let line = format!("{}{}\n", kind as char, text.replace('\n', " "));
    let _ = socket.write_all(line.as_bytes());
}

fn start_server(arguments: &GuardArguments) -> io::Result<u32> {
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let open_files = arguments.open_files;
    let mut command = Command::new(program);
    command.args(rest);
    // SAFETY: between fork and exec the closure makes system calls only.
    unsafe { command.pre_exec(move || before_exec(open_files)) };
    // Not waited for through `Child`: `wait_for_all` reaps it with the others.
    Ok(command.spawn()?.id())
}

/// The server starts with the signals and limits that Ringway was started with,
/// and does not outlive a guard that is killed.
fn before_exec(open_files: u64) -> io::Result<()> {
    set_signals(libc::SIG_DFL);
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(open_files),
            maximum: limit.maximum,
        },
    );
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    Ok(())
}

/// The pipes belong to the server: their ends must be seen when it closes them.
fn release_standard_streams() {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else {
        return;
    };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

/// Waits, on a thread of its own, for the end of the socket, and kills all that
/// is left then.
fn watch_socket(socket: &UnixStream) {
    let Ok(mut socket) = socket.try_clone() else {
        kill_descendants()
    };
    std::thread::spawn(move || {
        let mut byte = [0; 64];
        while matches!(socket.read(&mut byte), Ok(n) if n > 0) {}
        kill_descendants()
    });
}

/// Reaps whatever ends; says it of the server.
fn wait_for_all(socket: &UnixStream, server: u32) -> ! {
    loop {
        match waitpid(None, WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_pid() as u32 == server => {
                let how = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => format!("exit status: {code}"),
                    (_, Some(signal)) => format!("signal: {signal}"),
                    _ => "it ended".to_owned(),
                };
                say(socket, ENDED, &how);
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No process is left; the other thread ends this one.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Kills all descendants, also those that are born meanwhile, and ends.
fn kill_descendants() -> ! {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock();
    for round in 0..1_000 {
        let left = descendants(std::process::id());
        if left.is_empty() {
            break;
        }
        for pid in left.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        // At first without a pause: processes that keep forking are to be outrun.
        if round > 100 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    // Where /proc does not list children, the group is what is known; it holds
    // the guard itself, so this ends it too.
    let _ = rustix::process::kill_current_process_group(Signal::KILL);
    std::process::exit(0)
}

/// All processes below `pid` that have not ended.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(children(parent));
        next += 1;
    }
    found.retain(|pid| !is_dead(*pid));
    found
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let mut pids = Vec::new();
    for list in lists {
        pids.extend(
            list.split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    pids
}

/// A process that has ended and waits to be reaped.
fn is_dead(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}
