//! What every suite shares: a gateway process, a raw HTTP connection, MCP message bodies and a server that
//! does what it is told. Nothing here knows a test's verdict; it starts, sends, reads and waits. Whatever
//! a suite starts is ended when its handle is dropped, and a gateway whose log shows a panic fails its test.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each suite is a crate of its own and uses its own part of this module"
)]

pub mod catalogue;
pub mod gateway;
pub mod http;
pub mod http_server;
pub mod life;
pub mod mcp;
pub mod metrics;
pub mod peer;
pub mod process;
pub mod routes;
pub mod scripted;
pub mod stream;
pub mod tokens;

use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

pub use gateway::{Gateway, Upstream};
pub use http::{Raw, Request, Response};
pub use http_server::HttpServer;
pub use mcp::{Session, call_body};
pub use process::Base;
pub use scripted::Script;
pub use stream::Stream;

/// How long a wait may take before it counts as a hang. A failure guard: no test passes because of it.
pub const GUARD: Duration = Duration::from_secs(40);

/// One way of running the gateway: the same contract must hold in each.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub driver: &'static str,
    pub shards: usize,
    /// Where the hub lives; `None` leaves it to the gateway.
    pub hub: Option<&'static str>,
}

impl Layout {
    /// Starts a gateway in this layout on a free loopback port.
    pub fn start(&self, flags: &[&str], upstream: Upstream<'_>) -> Gateway {
        Gateway::start(&self.flags(flags), upstream)
    }

    /// The layout's own flags, then `more`.
    pub fn flags(&self, more: &[&str]) -> Vec<String> {
        let mut flags = vec![
            "--driver".to_owned(),
            self.driver.to_owned(),
            "--shards".to_owned(),
            self.shards.to_string(),
        ];
        if let Some(hub) = self.hub {
            flags.extend(["--hub".to_owned(), hub.to_owned()]);
        }
        flags.extend(more.iter().map(|&flag| flag.to_owned()));
        flags
    }
}

/// Runs `body` on io_uring and on epoll, each with one shard and with two.
pub fn on_every_layout(body: impl Fn(Layout)) {
    on_layouts(&[1, 2], body);
}

/// Runs `body` on io_uring and on epoll with one shard: for what cannot depend on the number of shards.
pub fn on_both_drivers(body: impl Fn(Layout)) {
    on_layouts(&[1], body);
}

/// Runs `body` on io_uring and on epoll with each of the given numbers of shards.
pub fn on_layouts(shards: &[usize], body: impl Fn(Layout)) {
    for driver in drivers() {
        for &shards in shards {
            run(
                Layout {
                    driver,
                    shards,
                    hub: None,
                },
                &body,
            );
        }
    }
}

/// Runs `body` on io_uring and on epoll, with the hub on the only shard, on one of two and on a thread of its
/// own beside two: every way that a message of the server can take to its session.
pub fn on_every_way(body: impl Fn(Layout)) {
    for driver in drivers() {
        for (shards, hub) in [(1, "shard"), (2, "shard"), (2, "own")] {
            let hub = Some(hub);
            run(
                Layout {
                    driver,
                    shards,
                    hub,
                },
                &body,
            );
        }
    }
}

fn run(layout: Layout, body: impl Fn(Layout)) {
    // Shown by the test runner only when the test fails: it says which layout did.
    eprintln!("--- {layout:?}");
    body(layout);
}

/// The drivers to test: both, unless this machine forbids io_uring. In CI that would hide half of the
/// suite, so there it is a failure.
fn drivers() -> Vec<&'static str> {
    if io_uring_allowed() {
        return vec!["uring", "epoll"];
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "io_uring is not allowed on this machine: CI must test both drivers"
    );
    eprintln!("io_uring is not allowed on this machine: only epoll is tested");
    vec!["epoll"]
}

/// Asks the kernel for the smallest ring.
fn io_uring_allowed() -> bool {
    // `struct io_uring_params` is 120 bytes, all of which may be zero.
    let mut params = [0_u32; 30];
    // SAFETY: the kernel reads and writes exactly one `io_uring_params` behind the pointer, which is valid
    // for that size during the call.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, params.as_mut_ptr()) };
    let Ok(ring) = i32::try_from(ring) else {
        return false;
    };
    if ring < 0 {
        return false;
    }
    // SAFETY: the call above has just opened this descriptor and nobody else knows it.
    drop(unsafe { OwnedFd::from_raw_fd(ring) });
    true
}

/// Waits until `condition` holds, and fails the test with `what` when it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    // Most conditions hold within microseconds: only after that is it worth sleeping between two looks.
    while !condition() {
        let waited = start.elapsed();
        assert!(waited < GUARD, "never came true: {what}");
        if waited < Duration::from_millis(1) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Whether a process still runs. A zombie that nobody has reaped yet does not.
pub fn process_runs(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The state follows the command's name, which stands in parentheses and may contain some itself.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd hex text");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits"))
        .collect()
}

/// A directory of this test process alone, removed on drop.
pub struct Scratch(std::path::PathBuf);

impl Scratch {
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("ringway-test-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a UTF-8 path").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
