//! The report as one page, with its plots in it: it needs nothing from elsewhere, and prints well.

use std::fmt::Write as _;

use super::text::{mebibytes, time};
use super::{Report, Times, plot};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:900px;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em;margin-bottom:0}h2{font-size:1.1em;margin:2em 0 .4em}\
p.sub{color:#555;margin-top:.2em}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th,td{text-align:right;padding:.25em .6em;border-bottom:1px solid #ddd}\
th:first-child,td:first-child,.words td:last-child,.words th:last-child{text-align:left}th{font-weight:600;color:#555}\
.big{display:flex;flex-wrap:wrap;gap:2em;margin:1.2em 0}\
.big div{font-size:1.6em;font-weight:600}.big span{display:block;font-size:.55em;font-weight:400;color:#555}\
.bad{color:#a40000}.good{color:#22662b}\
svg{max-width:100%;height:auto}pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f6f6;padding:.6em}\
@media print{body{margin:0;max-width:none;font-size:11px}figure,table,pre{break-inside:avoid}}\
figure{margin:.5em 0}";

/// Text that may come from a server, as text.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Writing to a string cannot fail.
macro_rules! say {
    ($out:expr, $($text:tt)*) => { let _ = writeln!($out, $($text)*); };
}

/// The frame of every page.
pub fn frame(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{}</title>\n<style>{STYLE}</style></head><body>\n{body}</body></html>\n",
        escape(title)
    )
}

pub fn page(report: &Report) -> String {
    let mut out = String::new();
    let title = format!("{} load on {}", report.scenario, report.url);
    let loop_kind = report.loop_kind();
    say!(out, "<h1>{}</h1>", escape(&title));
    say!(
        out,
        "<p class=\"sub\">{} UTC, {loop_kind}, connections: {}, sessions: {}, threads: {}, {}, MCP {}, seed {}; {}</p>",
        escape(&report.started),
        report.connections,
        report.sessions,
        report.threads,
        report.driver,
        escape(&report.protocol_version),
        report.seed,
        escape(&report.tool)
    );
    headline(&mut out, report);
    if !report.times.is_empty() {
        table(&mut out, report);
        let curves: Vec<(&str, &Times)> = report
            .times
            .iter()
            .map(|(name, times)| (name.as_str(), times))
            .collect();
        figure(&mut out, "Time by percentile", &plot::quantiles(&curves));
    }
    if report.over_time.iter().any(|point| point.per_second > 0.0) {
        figure(
            &mut out,
            "Throughput over time",
            &plot::rate(&report.over_time, report.unit),
        );
        let name = if report.unit == "deliveries" {
            "Delivery times over time"
        } else {
            "Times over time"
        };
        figure(&mut out, name, &plot::times(&report.over_time));
    }
    costs(&mut out, report);
    counts(&mut out, "Failures", &report.failures);
    counts(&mut out, "Violations", &report.violations);
    for shown in &report.evidence {
        say!(
            out,
            "<p class=\"bad\">{}, expected {}</p>",
            escape(&shown.violation),
            escape(&shown.expected)
        );
        if !shown.message.is_empty() {
            say!(out, "<pre>{}</pre>", escape(&shown.message));
        }
    }
    frame(&title, &out)
}

fn headline(out: &mut String, report: &Report) {
    say!(out, "<div class=\"big\">");
    if report.unit == "streams" {
        say!(
            out,
            "<div>{}<span>streams open all the time</span></div>",
            report.done
        );
    } else {
        say!(
            out,
            "<div>{:.0}<span>{} a second</span></div>",
            report.per_second,
            report.unit
        );
    }
    let main = ["call", "delivery", "session"]
        .into_iter()
        .find_map(|name| report.times.get(name));
    if let Some(times) = main {
        say!(out, "<div>{}<span>median</span></div>", time(times.p50));
        say!(out, "<div>{}<span>99 %</span></div>", time(times.p99));
    }
    if let Some(watched) = &report.watched {
        say!(
            out,
            "<div>{:.2} us<span>CPU of the watched process, each</span></div>",
            watched.cpu_us
        );
    }
    let failed: u64 = report.failures.values().sum();
    let violations = report.wrong.max(u64::from(!report.violations.is_empty()));
    let class = |count: u64| if count == 0 { "good" } else { "bad" };
    say!(
        out,
        "<div class=\"{}\">{failed}<span>failures</span></div>",
        class(failed)
    );
    say!(
        out,
        "<div class=\"{}\">{violations}<span>wrong answers</span></div>",
        class(violations)
    );
    say!(out, "</div>");
}

fn table(out: &mut String, report: &Report) {
    say!(
        out,
        "<table><tr><th>time</th><th>count</th><th>min</th><th>50 %</th><th>90 %</th><th>99 %</th><th>99.9 %</th><th>99.99 %</th><th>max</th></tr>"
    );
    for (name, it) in &report.times {
        let times = [it.min, it.p50, it.p90, it.p99, it.p99_9, it.p99_99, it.max];
        let cells: String = times
            .iter()
            .map(|us| format!("<td>{}</td>", time(*us)))
            .collect();
        say!(
            out,
            "<tr><td>{}</td><td>{}</td>{cells}</tr>",
            escape(name),
            it.count
        );
    }
    say!(out, "</table>");
}

fn figure(out: &mut String, name: &str, svg: &str) {
    say!(out, "<h2>{name}</h2><figure>{svg}</figure>");
}

fn costs(out: &mut String, report: &Report) {
    say!(
        out,
        "<h2>What it cost</h2><table><tr><th>process</th><th>CPU</th><th>CPU each</th><th>memory, most</th></tr>"
    );
    if let Some(it) = &report.watched {
        say!(
            out,
            "<tr><td>watched, {}</td><td>{:.2} s</td><td>{:.2} us</td><td>{}</td></tr>",
            it.pid,
            it.cpu_seconds,
            it.cpu_us,
            mebibytes(it.resident_peak)
        );
        say!(
            out,
            "<tr><td>its {} children</td><td>{:.2} s</td><td>{:.2} us</td><td>{}</td></tr>",
            it.children,
            it.children_cpu_seconds,
            it.children_cpu_us,
            mebibytes(it.children_resident_peak)
        );
    }
    say!(
        out,
        "<tr><td>load generator</td><td></td><td>{:.2} us</td><td></td></tr></table>",
        report.own_cpu_us
    );
}

fn counts(out: &mut String, name: &str, counts: &std::collections::BTreeMap<String, u64>) {
    say!(out, "<h2>{name}</h2>");
    if counts.is_empty() {
        say!(out, "<p class=\"good\">None.</p>");
        return;
    }
    say!(out, "<table>");
    for (what, count) in counts {
        say!(out, "<tr><td>{}</td><td>{count}</td></tr>", escape(what));
    }
    say!(out, "</table>");
}
