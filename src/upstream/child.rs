//! The server's process: started with pipes of its own, in a process group that
//! a guard watches, with nothing of Ringway's inherited but those pipes. Must
//! be started from a thread that is not pinned and lives as long as the child.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

use super::guard;
use super::hub::ServerPipes;
use crate::limits::{CHILD_EXIT_MS, PIPE_BYTES};

/// The command that runs the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCommand {
    /// The server's name in messages.
    pub label: String,
    pub program: OsString,
    pub arguments: Vec<OsString>,
}

/// A server that has been started.
#[derive(Debug)]
pub struct Started {
    /// The process, for one thread to wait for.
    pub process: Child,
    /// Its group, for stopping it.
    pub group: Group,
    pub pipes: ServerPipes,
    pub stderr: OwnedFd,
}

/// The server's process group. Dropping it kills what is left of the group.
#[derive(Debug)]
pub struct Group {
    guard: Child,
    /// The server's own process, which its waiting thread reaps.
    server: u32,
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot run {label:?}: {source}")]
    Command { label: String, source: io::Error },
    #[error("cannot set up the server's pipes: {0}")]
    Pipes(#[from] rustix::io::Errno),
    #[error("cannot start the guard of the server's process group: {0}")]
    Guard(io::Error),
    #[error("cannot start a thread for the server: {0}")]
    Thread(io::Error),
}

/// Starts the server. `open_files` is the soft limit that it gets: Ringway has
/// raised its own, and some programs walk over all possible descriptors.
pub fn start(command: &ServerCommand, open_files: u64) -> Result<Started, StartError> {
    let guard = start_guard().map_err(StartError::Guard)?;
    let mut group = Group { guard, server: 0 };
    let (child_stdin, stdin) = pipe()?;
    let (stdout, child_stdout) = pipe()?;
    let (stderr, child_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut process = Command::new(&command.program);
    process
        .args(&command.arguments)
        .stdin(Stdio::from(child_stdin))
        .stdout(Stdio::from(child_stdout))
        .stderr(Stdio::from(child_stderr))
        .process_group(group.guard.id() as i32);
    for (name, _) in std::env::vars_os() {
        if is_own_variable(&name) {
            process.env_remove(name);
        }
    }
    // SAFETY: between fork and exec the closure makes two system calls and
    // allocates nothing.
    unsafe { process.pre_exec(move || before_exec(open_files)) };
    let process = process.spawn().map_err(|source| StartError::Command {
        label: command.label.clone(),
        source,
    })?;
    group.server = process.id();
    Ok(Started {
        process,
        group,
        pipes: ServerPipes { stdin, stdout },
        stderr,
    })
}

/// Ringway's own settings are not the server's business; a token among them
/// would be a leak.
fn is_own_variable(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"RINGWAY_")
}

fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let ends = pipe_with(PipeFlags::CLOEXEC)?;
    // Users without privilege may be refused; the default size works too.
    let _ = fcntl_setpipe_size(&ends.0, PIPE_BYTES);
    Ok(ends)
}

/// Clients' sockets come from `accept` without close-on-exec, and there is a
/// moment before it is set; so every descriptor but the standard three is
/// marked here, in the child.
fn close_on_exec() -> io::Result<()> {
    // SAFETY: a plain system call on this process's own descriptor table.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    Ok(())
}

fn before_exec(open_files: u64) -> io::Result<()> {
    close_on_exec()?;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit {
            current: Some(open_files),
            maximum: limit.maximum,
        },
    );
    Ok(())
}

fn start_guard() -> io::Result<Child> {
    let mut guard = Command::new("/proc/self/exe");
    // SAFETY: as for the server itself. The guard is started again with every
    // server, when there are clients' sockets to inherit.
    unsafe { guard.pre_exec(close_on_exec) };
    guard
        .arg0("ringway-guard")
        .arg(guard::SUBCOMMAND)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

impl Group {
    /// The processes of the group that Ringway itself waits for.
    pub fn processes(&self) -> [u32; 2] {
        [self.guard.id(), self.server]
    }

    fn signal(&self, signal: Signal) {
        // The guard leads the group and is not reaped before it is dropped, so
        // the number cannot belong to somebody else.
        if let Some(group) = Pid::from_raw(self.guard.id() as i32) {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Waits for the server, whose stdin has been closed, to end by itself;
    /// asks it with SIGTERM; kills it. `ended` waits up to a time for its end
    /// and says whether it came.
    pub fn stop(self, mut ended: impl FnMut(Duration) -> bool) {
        let patience = Duration::from_millis(CHILD_EXIT_MS);
        if !ended(patience) {
            tracing::warn!("the server did not end when its stdin was closed: sending SIGTERM");
            self.signal(Signal::TERM);
            if !ended(patience) {
                tracing::warn!("the server did not end at SIGTERM: killing it");
                self.signal(Signal::KILL);
                ended(patience);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.guard.wait();
        kill_orphans(self.server);
    }
}

/// Descendants that left the group come to Ringway when their parents die (it
/// is a child subreaper); none may outlive the server. `server` itself is
/// reaped by the thread that waits for it.
fn kill_orphans(server: u32) {
    let deadline = Instant::now() + Duration::from_millis(500);
    while Instant::now() < deadline {
        let mut orphans = children();
        orphans.retain(|pid| *pid != server as i32);
        if orphans.is_empty() {
            return;
        }
        for pid in orphans.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reaps descendants of the server that came to Ringway and have ended. `own`
/// are those that others wait for.
pub fn reap_orphans(own: &[u32]) {
    for pid in children() {
        if own.contains(&(pid as u32)) {
            continue;
        }
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn children() -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let lists = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}
