//! A process as `/proc` shows it: its memory, its descriptors, its descendants; and the base to which a
//! gateway has to come back once a test's clients are gone.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use super::gateway::pid_of;
use super::{GUARD, Gateway, process_runs};

/// Resident memory, bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    status_field(pid, "VmRSS") * 1_024
}

/// The most that has ever been resident, bytes.
pub fn resident_peak_bytes(pid: u32) -> u64 {
    status_field(pid, "VmHWM") * 1_024
}

fn status_field(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(':'))
    });
    let words = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    words
        .and_then(|word| word.parse().ok())
        .expect("a number in the status")
}

/// Open descriptors.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("it runs and is ours")
        .count()
}

/// All processes that came from it, those that have ended and were not reaped included.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut at = 0;
    while at < found.len() {
        found.extend(children(found[at]));
        at += 1;
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids = list.split_ascii_whitespace();
            pids.filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// Processor time used so far, milliseconds.
pub fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in parentheses");
    let ticks = rest.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|word| word.parse::<u64>().expect("ticks")).sum();
    // The unit of these fields is a hundredth of a second on every Linux.
    ticks * 10
}

/// Ends a process, if it still runs, without asking it.
pub fn kill(pid: u32) {
    if process_runs(pid) {
        let _ = kill_process(pid_of(pid), Signal::KILL);
    }
}

/// Raises this process's limit of open files as far as it may, once. Returns the limit.
pub fn raise_open_files() -> usize {
    let hard = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: hard,
        maximum: hard,
    };
    setrlimit(Resource::Nofile, raised).expect("up to the hard limit");
    hard.and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX)
}

/// What a gateway holds while nothing is going on.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    pub descriptors: usize,
    pub descendants: usize,
    pub resident_bytes: u64,
}

impl Base {
    /// Looks at a gateway that has done everything once, so that nothing is to be set up any more. What it
    /// still holds of clients that have just gone is given time to go.
    pub fn of(gateway: &Gateway) -> Self {
        let mut base = Self::now(gateway);
        let mut same = 0;
        while same < 20 {
            std::thread::sleep(Duration::from_millis(5));
            let now = Self::now(gateway);
            let holds = now.descriptors == base.descriptors && now.descendants == base.descendants;
            same = if holds { same + 1 } else { 0 };
            base = now;
        }
        base
    }

    fn now(gateway: &Gateway) -> Self {
        let pid = gateway.pid();
        Self {
            descriptors: descriptors(pid),
            descendants: descendants(pid).len(),
            resident_bytes: resident_bytes(pid),
        }
    }

    /// Waits until there are no more descriptors and processes than at this base.
    #[track_caller]
    pub fn wait_until_back(&self, gateway: &Gateway) {
        let start = Instant::now();
        loop {
            let now = Self::now(gateway);
            if now.descriptors <= self.descriptors && now.descendants == self.descendants {
                return;
            }
            assert!(
                start.elapsed() < GUARD,
                "never back at {self:?}, still {now:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
