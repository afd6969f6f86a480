//! The guard process: the leader of the server's process group. It waits for
//! its pipe to Ringway to end, which happens whatever way Ringway ends, and
//! then kills the group, itself included. The kernel's parent-death signal
//! would not do: it follows the spawning thread and does not reach
//! grandchildren (`npx`, `sh -c`).

use std::io::Read;

/// The hidden subcommand that runs the guard.
pub const SUBCOMMAND: &str = "upstream-guard";

/// Runs the guard. Does not return.
pub fn run() -> ! {
    // The group is stopped with SIGTERM first; the guard must outlive that.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: setting a signal to be ignored installs no handler and
        // touches no memory.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut stdin = std::io::stdin().lock();
    let mut byte = [0; 64];
    while !matches!(stdin.read(&mut byte), Ok(0)) {}
    let _ = rustix::process::kill_current_process_group(rustix::process::Signal::KILL);
    std::process::exit(0)
}
