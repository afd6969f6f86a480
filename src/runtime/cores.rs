//! Which cores there are: the process's affinity mask and the cgroup's CPU
//! quota decide, not what the machine has.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may run on, by number. Empty if the kernel
/// does not say.
pub fn allowed() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .collect(),
        Err(_) => Vec::new(),
    }
}

/// How many cores' worth of CPU time there is: the allowed cores, or less where
/// a cgroup quota says so. At least 1.
pub fn usable(allowed: &[usize]) -> usize {
    let quota = quota().unwrap_or(usize::MAX);
    allowed.len().min(quota).max(1)
}

/// The CPU quota of the process's own cgroup, version 2, in whole cores
/// (rounded up). The tightest of the group and its parents counts.
fn quota() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut tightest = None;
    let mut path = std::path::PathBuf::from("/sys/fs/cgroup");
    let mut files = vec![path.join("cpu.max")];
    for part in own
        .split('/')
        .filter(|part| !part.is_empty() && *part != "..")
    {
        path.push(part);
        files.push(path.join("cpu.max"));
    }
    for file in files {
        if let Some(cores) = fs::read_to_string(file)
            .ok()
            .and_then(|text| parse_quota(&text))
        {
            tightest = Some(tightest.map_or(cores, |known: usize| known.min(cores)));
        }
    }
    tightest
}

/// Reads `cpu.max`: "QUOTA PERIOD" in microseconds, or "max PERIOD".
fn parse_quota(text: &str) -> Option<usize> {
    let mut words = text.split_whitespace();
    let quota: u64 = words.next()?.parse().ok()?;
    let period: u64 = words.next()?.parse().ok()?;
    (period > 0).then(|| quota.div_ceil(period).max(1) as usize)
}

/// Pins the calling thread to one core.
pub fn pin(core: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_rounded_up_to_whole_cores() {
        assert_eq!(parse_quota("max 100000\n"), None);
        assert_eq!(parse_quota("50000 100000\n"), Some(1));
        assert_eq!(parse_quota("250000 100000\n"), Some(3));
        assert_eq!(parse_quota("100000 0\n"), None);
        assert_eq!(parse_quota(""), None);
    }

    #[test]
    fn there_is_always_a_core_to_use() {
        assert!(usable(&allowed()) >= 1);
        assert_eq!(usable(&[]), 1);
    }
}
