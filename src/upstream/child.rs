//! The server's process as Ringway sees it: started through a guard process
//! (see [`super::guard`]) with pipes of its own, with nothing of Ringway's
//! inherited but those. Must be started from a thread that is not pinned: what
//! it runs on is inherited.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::guard;
use super::hub::ServerPipes;
use crate::limits::{CHILD_EXIT_MS, PIPE_BYTES};

/// The command that runs the server.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ServerCommand {
    /// What messages call the program.
    pub label: String,
    /// A name that is looked up in PATH, or a path. A relative path, and a relative entry of PATH,
    /// start at the working directory, as in a shell that has changed to it.
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// Variables that are added to those of Ringway, or take their place.
    pub environment: Vec<(OsString, OsString)>,
    /// Where the server runs; by default where Ringway does.
    pub working_directory: Option<PathBuf>,
}

/// Without the values of the environment, which may be secrets.
impl fmt::Debug for ServerCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        f.debug_struct("ServerCommand")
            .field("label", &self.label)
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .field("environment", &names)
            .field("working_directory", &self.working_directory)
            .finish()
    }
}

/// A server that has been started.
#[derive(Debug)]
pub struct Started {
    /// Says how the server ended, for one thread to wait for.
    pub end: ServerEnd,
    /// Its group, for stopping it.
    pub group: Group,
    pub pipes: ServerPipes,
    pub stderr: OwnedFd,
}

/// The server and all that came from it. Dropping it kills what is left.
#[derive(Debug)]
pub struct Group {
    guard: Child,
    socket: UnixStream,
}

/// Where the guard says how the server ended.
#[derive(Debug)]
pub struct ServerEnd(BufReader<UnixStream>);

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot run {label:?}: {reason}")]
    Command { label: String, reason: String },
    /// Its working directory is not there, or is none.
    #[error("cannot run {label:?} in {}: {error}", .directory.display())]
    Directory {
        label: String,
        directory: PathBuf,
        error: io::Error,
    },
    #[error("cannot set up the server's pipes: {0}")]
    Pipes(#[from] rustix::io::Errno),
    #[error("cannot start the guard of the server's process: {0}")]
    Guard(io::Error),
    #[error("cannot start a thread for the server: {0}")]
    Thread(io::Error),
}

/// How long the guard may take to start the server.
const GUARD_PATIENCE: Duration = Duration::from_secs(10);

/// Starts the server. `open_files` is the soft limit that it gets: Ringway has
/// raised its own, and some programs walk over all possible descriptors.
pub fn start(command: &ServerCommand, open_files: u64) -> Result<Started, StartError> {
    if let Some(directory) = &command.working_directory {
        check_directory(directory).map_err(|error| StartError::Directory {
            label: command.label.clone(),
            directory: directory.clone(),
            error,
        })?;
    }
    let (child_stdin, stdin) = pipe()?;
    let (stdout, child_stdout) = pipe()?;
    let (stderr, child_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let (socket, guards_end) = UnixStream::pair().map_err(StartError::Guard)?;
    let inherited = guards_end.as_raw_fd();
    let mut process = Command::new("/proc/self/exe");
    process
        .arg0("ringway-guard")
        .arg(guard::SUBCOMMAND)
        .arg(inherited.to_string())
        .arg(open_files.to_string())
        .arg("--")
        .arg(&command.program)
        .args(&command.arguments)
        .stdin(Stdio::from(child_stdin))
        .stdout(Stdio::from(child_stdout))
        .stderr(Stdio::from(child_stderr))
        .process_group(0);
    for (name, _) in std::env::vars_os() {
        if is_own_variable(&name) {
            process.env_remove(name);
        }
    }
    let added = command.environment.iter();
    process.envs(
        added
            .filter(|(name, _)| !is_own_variable(name))
            .map(|(name, value)| (name, value)),
    );
    if let Some(directory) = &command.working_directory {
        // The guard looks the program up from there.
        process.current_dir(directory);
    }
    // SAFETY: between fork and exec the closure makes two system calls and
    // allocates nothing.
    unsafe { process.pre_exec(move || keep_open_only(inherited)) };
    let guard = process.spawn().map_err(StartError::Guard)?;
    drop((process, guards_end));
    let group = Group {
        guard,
        socket: socket.try_clone().map_err(StartError::Guard)?,
    };
    let mut end = ServerEnd(BufReader::new(socket));
    end.wait_for_start(&command.label)?;
    Ok(Started {
        end,
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

/// Says what is wrong with a working directory; without this the guard would be blamed.
fn check_directory(directory: &Path) -> io::Result<()> {
    if !std::fs::metadata(directory)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    rustix::fs::access(directory, rustix::fs::Access::EXEC_OK).map_err(io::Error::from)
}

pub(super) fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let ends = pipe_with(PipeFlags::CLOEXEC)?;
    // Users without privilege may be refused; the default size works too.
    let _ = fcntl_setpipe_size(&ends.0, PIPE_BYTES);
    Ok(ends)
}

/// Clients' sockets come from `accept` without close-on-exec, and there is a
/// moment before it is set; so every descriptor but the standard three and
/// `kept` is marked here, in the child.
fn keep_open_only(kept: RawFd) -> io::Result<()> {
    // SAFETY: plain system calls on this process's own descriptor table.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        );
        libc::fcntl(kept, libc::F_SETFD, 0);
    }
    Ok(())
}

impl ServerEnd {
    /// Waits until the guard says that the server runs.
    fn wait_for_start(&mut self, label: &str) -> Result<(), StartError> {
        let patience = |time| self.0.get_ref().set_read_timeout(time);
        patience(Some(GUARD_PATIENCE)).map_err(StartError::Guard)?;
        let line = self.line().map_err(StartError::Guard)?;
        self.0
            .get_ref()
            .set_read_timeout(None)
            .map_err(StartError::Guard)?;
        match line.split_first() {
            Some((&guard::STARTED, _)) => Ok(()),
            Some((&guard::FAILED, reason)) => Err(StartError::Command {
                label: label.to_owned(),
                reason: String::from_utf8_lossy(reason).into_owned(),
            }),
            _ => Err(StartError::Guard(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Waits for the server's end. Says how it ended.
    pub fn wait(mut self) -> String {
        match self.line() {
            Ok(line) if line.first() == Some(&guard::ENDED) => {
                String::from_utf8_lossy(&line[1..]).into_owned()
            }
            _ => "its guard has ended".to_owned(),
        }
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        Ok(line.trim_ascii_end().to_vec())
    }
}

impl Group {
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
            }
        }
    }
}

impl Group {
    /// Whether the guard has ended. It is not reaped by this: its number stays
    /// the group's, so that the group can still be signalled.
    fn guard_has_ended(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.guard.id() as i32) else {
            return true;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }
}

impl Drop for Group {
    /// The guard kills all that is left when its socket ends. It is waited for,
    /// so that nothing of this server lives when the next is started.
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        let deadline = Instant::now() + Duration::from_millis(CHILD_EXIT_MS);
        while Instant::now() < deadline {
            if self.guard_has_ended() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A guard that was itself killed has killed nobody.
        self.signal(Signal::KILL);
        let _ = self.guard.wait();
    }
}
