//! What a run has to say: for people, for programs, and as a page with plots.

pub mod html;
pub mod live;
pub mod plot;
pub mod text;

use std::collections::BTreeMap;
use std::time::SystemTime;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::command::Watched;
use crate::engine::Outcome;
use crate::options::{Scenario, Shape};
use crate::record::{Series, Slot};

/// Points of a percentile plot: so many to each further nine.
const POINTS_A_NINE: u32 = 12;
const NINES: u32 = 5;

/// All of a run. Times are in microseconds.
#[derive(Serialize, Clone, Debug)]
pub struct Report {
    pub tool: String,
    pub scenario: &'static str,
    pub url: String,
    /// When it began, UTC.
    pub started: String,
    pub protocol_version: String,
    pub concurrency: u32,
    pub connections: u32,
    pub sessions: u32,
    pub threads: u32,
    /// Of an open loop.
    pub rate: Option<f64>,
    pub seed: u64,
    pub driver: &'static str,
    /// How long was measured, seconds.
    pub seconds: f64,
    /// What is counted: calls, deliveries, sessions, or streams that were open in the end.
    pub unit: &'static str,
    pub done: u64,
    pub per_second: f64,
    pub times: BTreeMap<String, Times>,
    pub over_time: Vec<Point>,
    /// Calls whose answer was wrong, while it was measured; neither done nor failed.
    pub wrong: u64,
    pub failures: BTreeMap<String, u64>,
    /// What was wrong, from the first byte on; one answer can be wrong in several ways.
    pub violations: BTreeMap<String, u64>,
    pub evidence: Vec<Shown>,
    pub progress: u64,
    /// Of bodies that came.
    pub bytes: u64,
    /// Calls of an open loop that began over a millisecond late.
    pub late: u64,
    pub connections_opened: u64,
    pub acts: BTreeMap<&'static str, u64>,
    /// The load generator's own CPU time a unit.
    pub own_cpu_us: f64,
    pub watched: Option<Process>,
}

/// Times of one kind, microseconds.
#[derive(Serialize, Clone, Debug)]
pub struct Times {
    pub count: u64,
    pub min: f64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
    /// Quantiles and their times, for a plot.
    pub curve: Vec<(f64, f64)>,
}

/// A piece of the run.
#[derive(Serialize, Clone, Debug)]
pub struct Point {
    /// Its end, seconds from the beginning.
    pub second: f64,
    pub per_second: f64,
    pub failed: u64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// A violation with what shows it.
#[derive(Serialize, Clone, Debug)]
pub struct Shown {
    pub violation: String,
    pub expected: String,
    pub message: String,
}

/// The watched process, over the time that was measured.
#[derive(Serialize, Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub cpu_seconds: f64,
    /// CPU time a unit, microseconds.
    pub cpu_us: f64,
    pub resident_before: u64,
    pub resident_peak: u64,
    pub resident_after: u64,
    pub children: u32,
    pub children_cpu_seconds: f64,
    pub children_cpu_us: f64,
    pub children_resident_peak: u64,
}

impl Report {
    pub fn new(
        scenario: &Scenario,
        shape: Shape,
        started: SystemTime,
        outcome: &Outcome,
        slots: &[Slot],
        watched: &Watched,
    ) -> Report {
        let (totals, window) = (&outcome.totals, outcome.window);
        let common = scenario.common();
        let seconds = window.to.duration_since(window.from).as_secs_f64();
        let (unit, series) = match scenario {
            Scenario::Fanout(_) => ("deliveries", Series::Delivery),
            Scenario::Churn(_) => ("sessions", Series::Session),
            _ => ("calls", Series::Call),
        };
        let (unit, done) = match scenario {
            Scenario::Idle(_) => ("streams", outcome.streams),
            _ => (unit, totals.count(series)),
        };
        let each = |cpu: std::time::Duration| match done + totals.wrong {
            0 => 0.0,
            count => cpu.as_secs_f64() * 1e6 / count as f64,
        };
        let slot = window.slot.as_secs_f64();
        let whole = slots
            .iter()
            .filter(|it| (it.number + 1) as f64 * slot <= seconds + slot / 2.0);
        let evidence = totals.violations.evidence().iter().map(|it| Shown {
            violation: it.violation.to_string(),
            expected: it.expected.clone(),
            message: it.message.clone(),
        });
        Report {
            tool: concat!("ringway-loadtest ", env!("CARGO_PKG_VERSION")).into(),
            scenario: scenario.name(),
            url: common.url.clone(),
            started: humantime::format_rfc3339_seconds(started).to_string(),
            protocol_version: common.protocol_version.clone(),
            concurrency: common.concurrency,
            connections: shape.connections,
            sessions: shape.sessions,
            threads: shape.threads,
            rate: common.rate,
            seed: outcome.seed,
            driver: outcome.driver,
            seconds,
            unit,
            done,
            per_second: done as f64 / seconds,
            times: totals
                .times
                .iter()
                .map(|(series, times)| (series.to_string(), Times::new(times)))
                .collect(),
            over_time: whole.map(|it| Point::new(it, slot)).collect(),
            wrong: totals.wrong,
            failures: totals
                .failures
                .iter()
                .map(|(failure, count)| (failure.to_string(), *count))
                .collect(),
            violations: totals
                .violations
                .counts()
                .map(|(kind, count)| (kind.to_string(), count))
                .collect(),
            evidence: evidence.collect(),
            progress: totals.progress,
            bytes: totals.bytes,
            late: totals.late,
            connections_opened: totals.connections,
            acts: totals.acts.clone(),
            own_cpu_us: each(watched.own_cpu),
            watched: watched.pid.map(|pid| {
                let cpu = watched.after.cpu.saturating_sub(watched.before.cpu);
                let children = watched
                    .after
                    .children_cpu
                    .saturating_sub(watched.before.children_cpu);
                Process {
                    pid,
                    cpu_seconds: cpu.as_secs_f64(),
                    cpu_us: each(cpu),
                    resident_before: watched.before.resident,
                    resident_peak: watched.resident_peak,
                    resident_after: watched.after.resident,
                    children: watched.after.children,
                    children_cpu_seconds: children.as_secs_f64(),
                    children_cpu_us: each(children),
                    children_resident_peak: watched.children_resident_peak,
                }
            }),
        }
    }

    /// What the load was like, in words.
    pub fn loop_kind(&self) -> String {
        match (self.scenario, self.rate) {
            ("idle", _) => "no calls".into(),
            ("fanout", None) => "one change when the last was told".into(),
            ("fanout", Some(rate)) => format!("{rate} changes a second at most"),
            (_, Some(rate)) => format!("open loop at {rate}/s"),
            (_, None) => format!("closed loop, {} in flight", self.concurrency),
        }
    }

    /// Nothing came of the run.
    pub fn is_empty(&self) -> bool {
        self.done + self.wrong == 0
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    (nanoseconds as f64 / 100.0).round() / 10.0
}

impl Times {
    pub fn new(times: &Histogram<u64>) -> Times {
        let at = |quantile: f64| microseconds(times.value_at_quantile(quantile));
        let mut curve = vec![(0.0, at(0.0))];
        for step in 1..=POINTS_A_NINE * NINES {
            let quantile = 1.0 - 10f64.powf(-f64::from(step) / f64::from(POINTS_A_NINE));
            // Beyond what was counted the curve would only repeat the maximum.
            if (1.0 - quantile) * (times.len() as f64) < 1.0 {
                break;
            }
            curve.push((quantile, at(quantile)));
        }
        Times {
            count: times.len(),
            min: microseconds(times.min()),
            mean: microseconds(times.mean() as u64),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: microseconds(times.max()),
            curve,
        }
    }
}

impl Point {
    fn new(slot: &Slot, length: f64) -> Point {
        let at = |quantile: f64| match slot.done {
            0 => 0.0,
            _ => microseconds(slot.times.value_at_quantile(quantile)),
        };
        Point {
            second: (slot.number + 1) as f64 * length,
            per_second: slot.done as f64 / length,
            failed: slot.failed,
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// The report for programs.
pub fn json(report: &Report) -> String {
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}
