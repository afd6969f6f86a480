//! What processes cost, as Linux's /proc tells it.

use std::fs;
use std::time::Duration;

/// CPU time (to a hundredth of a second) and memory of a process, and of all that it has started, apart.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    pub cpu: Duration,
    /// Resident memory, bytes.
    pub resident: u64,
    pub children: u32,
    /// CPU time of the children that live.
    pub children_cpu: Duration,
    pub children_resident: u64,
}

/// Looks at a process. `None`: it is not there.
pub fn look(pid: u32) -> Option<Usage> {
    let (cpu, resident) = one(pid)?;
    let mut usage = Usage {
        cpu,
        resident,
        ..Usage::default()
    };
    let mut waiting = children(pid);
    while let Some(child) = waiting.pop() {
        if let Some((cpu, resident)) = one(child) {
            usage.children += 1;
            usage.children_cpu += cpu;
            usage.children_resident += resident;
            waiting.extend(children(child));
        }
    }
    Some(usage)
}

/// CPU time of this process, all threads together.
pub fn own_cpu() -> Duration {
    one(std::process::id()).map_or(Duration::ZERO, |(cpu, _)| cpu)
}

fn one(pid: u32) -> Option<(Duration, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = rustix::param::clock_ticks_per_second();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let cpu = Duration::from_micros((number(11)? + number(12)?) * 1_000_000 / ticks);
    let resident = number(21)? * rustix::param::page_size() as u64;
    Some((cpu, resident))
}

/// A process, told from a later one of the same number by when it began.
#[derive(Clone, Debug)]
pub struct Born {
    pid: u32,
    at: String,
}

impl Born {
    fn look(pid: u32) -> Option<Born> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let (state, at) = (fields.first()?, fields.get(19)?);
        (*state != "Z").then(|| Born {
            pid,
            at: (*at).to_owned(),
        })
    }

    pub fn is(&self, pid: u32) -> bool {
        self.pid == pid
    }

    pub fn lives(&self) -> bool {
        Born::look(self.pid).is_some_and(|now| now.at == self.at)
    }

    /// Ends it at once, if it still lives.
    pub fn kill(&self) {
        if self.lives()
            && let Some(pid) = rustix::process::Pid::from_raw(self.pid.cast_signed())
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// All that a process has started and that lives.
pub fn below(pid: u32) -> Vec<Born> {
    let (mut found, mut waiting) = (Vec::new(), children(pid));
    while let Some(child) = waiting.pop() {
        found.extend(Born::look(child));
        waiting.extend(children(child));
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for task in tasks.flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(
            text.split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_seen_with_its_children() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let seen = look(std::process::id()).expect("this process");
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(seen.children >= 1 && seen.resident > 100_000, "{seen:?}");
        assert_eq!(look(u32::MAX - 1), None);
    }
}
