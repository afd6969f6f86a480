//! The summary for people.

use std::fmt::Write as _;

use super::Report;

/// A time with the unit that reads best.
pub fn time(microseconds: f64) -> String {
    match microseconds {
        us if us < 1_000.0 => format!("{us:.1} us"),
        us if us < 1_000_000.0 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

/// Writing to a string cannot fail.
macro_rules! say {
    ($out:expr, $($text:tt)*) => { let _ = writeln!($out, $($text)*); };
}

/// A page of text.
pub fn summary(report: &Report) -> String {
    let mut out = String::new();
    let loop_kind = report.loop_kind();
    say!(
        out,
        "{} {}, {loop_kind}, connections: {}, sessions: {}, threads: {}, {}, {}",
        report.scenario,
        report.url,
        report.connections,
        report.sessions,
        report.threads,
        report.driver,
        report.protocol_version
    );
    let rate = match report.unit {
        "streams" => "open all the time".into(),
        _ => format!("{:.0} a second", report.per_second),
    };
    say!(
        out,
        "{} {} in {:.1} s: {rate}; {} of bodies; {} connections opened; seed {}",
        report.done,
        report.unit,
        report.seconds,
        mebibytes(report.bytes),
        report.connections_opened,
        report.seed
    );
    if report.progress > 0 {
        let rate = report.progress as f64 / report.seconds;
        say!(
            out,
            "{} progress messages: {rate:.0} a second",
            report.progress
        );
    }
    if report.late > 0 {
        say!(
            out,
            "{} calls began over a millisecond late: more connections, a lower rate, or a machine with less to do",
            report.late
        );
    }
    if !report.acts.is_empty() {
        let acts: Vec<String> = report
            .acts
            .iter()
            .map(|(act, count)| format!("{act} {count}"))
            .collect();
        say!(out, "acts: {}", acts.join(", "));
    }
    if !report.times.is_empty() {
        say!(
            out,
            "\n{:<14} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "time",
            "count",
            "min",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "p99.99",
            "max"
        );
    }
    for (series, times) in &report.times {
        let columns = [
            times.min,
            times.p50,
            times.p90,
            times.p99,
            times.p99_9,
            times.p99_99,
            times.max,
        ];
        let columns: Vec<String> = columns
            .iter()
            .map(|it| format!("{:>10}", time(*it)))
            .collect();
        say!(out, "{series:<14} {:>9} {}", times.count, columns.join(" "));
    }
    out.push('\n');
    say!(
        out,
        "load generator: {:.2} us of CPU of its own {}",
        report.own_cpu_us,
        each(report)
    );
    if let Some(watched) = &report.watched {
        say!(
            out,
            "process {}: {:.2} us of CPU {} ({:.2} s), memory {} before, {} at most, {} after",
            watched.pid,
            watched.cpu_us,
            each(report),
            watched.cpu_seconds,
            mebibytes(watched.resident_before),
            mebibytes(watched.resident_peak),
            mebibytes(watched.resident_after)
        );
        if watched.children > 0 {
            say!(
                out,
                "its {} children: {:.2} us of CPU {} ({:.2} s), memory {} at most",
                watched.children,
                watched.children_cpu_us,
                each(report),
                watched.children_cpu_seconds,
                mebibytes(watched.children_resident_peak)
            );
        }
    }
    if report.failures.is_empty() {
        say!(out, "failures: none");
    } else {
        say!(out, "failures:");
        for (failure, count) in &report.failures {
            say!(out, "  {count:>9}  {failure}");
        }
    }
    if report.violations.is_empty() {
        say!(out, "violations: none; every answer was its own call's");
    } else {
        say!(
            out,
            "VIOLATIONS, in {} answers while it was measured:",
            report.wrong
        );
        for (violation, count) in &report.violations {
            say!(out, "  {count:>9}  {violation}");
        }
        for shown in &report.evidence {
            say!(out, "  {}: expected {}", shown.violation, shown.expected);
            if !shown.message.is_empty() {
                say!(out, "    came: {}", shown.message);
            }
        }
    }
    out
}

fn each(report: &Report) -> &'static str {
    match report.unit {
        "calls" => "a call",
        "deliveries" => "a delivery",
        "streams" => "a stream",
        _ => "a session",
    }
}
