//! What a run counts: times by kind, errors by kind, violations, and the same over time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::check::Violations;

/// What a time is the time of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Series {
    /// From the start of a call (in an open loop: its intended start) to its reply.
    Call,
    /// The same of a request without a tool: a ping, a list.
    Request,
    /// From a trigger to an event on a stream.
    Delivery,
    /// The `initialize` request.
    Initialize,
    /// The DELETE of a session.
    Delete,
    /// Initialize, one call and DELETE together.
    Session,
    /// From the start of a call to its first progress.
    FirstProgress,
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Series::Call => "call",
            Series::Request => "other request",
            Series::Delivery => "delivery",
            Series::Initialize => "initialize",
            Series::Delete => "delete",
            Series::Session => "session",
            Series::FirstProgress => "first progress",
        })
    }
}

/// Most kinds of failure that are told apart: a server may put anything into its errors.
const KINDS_MAX: usize = 100;

/// Why something was not answered with a result.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Failure {
    Connect(String),
    /// The connection ended in the middle of a response or before it.
    Closed,
    /// No whole response within `--timeout`.
    TimedOut,
    NotHttp(&'static str),
    /// An HTTP status where an answer was to come.
    Status(u16),
    /// A JSON-RPC error.
    Error(i64, String),
    /// A result with `isError`.
    ToolError,
    /// A response without the reply.
    NoReply,
    /// `initialize` gave no session id.
    NoSession,
    /// A stream was not told of a change in time.
    NotTold,
    /// Fewer steps of progress than asked for.
    LostProgress,
    /// A stream ended by itself.
    StreamEnded,
    /// Of more kinds than are told apart.
    More,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connect(why) => write!(f, "no connection: {why}"),
            Failure::Closed => f.write_str("connection closed"),
            Failure::TimedOut => f.write_str("timed out"),
            Failure::NotHttp(why) => write!(f, "not HTTP: {why}"),
            Failure::Status(status) => write!(f, "HTTP {status}"),
            Failure::Error(code, reason) => write!(f, "error {code}: {reason}"),
            Failure::ToolError => f.write_str("tool error"),
            Failure::NoReply => f.write_str("no reply"),
            Failure::NoSession => f.write_str("no session id"),
            Failure::NotTold => f.write_str("change not told"),
            Failure::LostProgress => f.write_str("progress missing"),
            Failure::StreamEnded => f.write_str("stream ended"),
            Failure::More => f.write_str("of other kinds"),
        }
    }
}

/// Times from a nanosecond to an hour, three digits.
pub fn histogram() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3);
    histogram.expect("bounds that are right")
}

/// Times of a slot: two digits, which is what a plot shows.
fn small_histogram() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1_000, 3_600_000_000_000, 2);
    histogram.expect("bounds that are right")
}

/// A piece of a run.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Which one, from the start of the run.
    pub number: usize,
    /// Calls or deliveries that ended in it.
    pub done: u64,
    pub failed: u64,
    /// Their times, nanoseconds.
    pub times: Histogram<u64>,
}

impl Slot {
    pub fn new(number: usize) -> Slot {
        Slot {
            number,
            done: 0,
            failed: 0,
            times: small_histogram(),
        }
    }

    pub fn merge(&mut self, other: &Slot) {
        self.done += other.done;
        self.failed += other.failed;
        // Both have the same bounds.
        let _ = self.times.add(&other.times);
    }
}

/// The sums of a thread, and of all of them in the end.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub times: BTreeMap<Series, Histogram<u64>>,
    pub failures: BTreeMap<Failure, u64>,
    pub violations: Violations,
    /// Steps of progress that came in order.
    pub progress: u64,
    /// Calls whose answer was wrong, in the window; they are neither done nor failed.
    pub wrong: u64,
    /// Bytes of bodies that came.
    pub bytes: u64,
    /// Calls that began after their intended start by more than a millisecond (open loop).
    pub late: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// What the scenario did besides, by name (`cancel`, `disconnect`, ...).
    pub acts: BTreeMap<&'static str, u64>,
}

impl Totals {
    pub fn merge(&mut self, other: Totals) {
        for (series, times) in other.times {
            let own = self.times.entry(series).or_insert_with(histogram);
            let _ = own.add(times);
        }
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        for (act, count) in other.acts {
            *self.acts.entry(act).or_default() += count;
        }
        self.violations.merge(other.violations);
        self.progress += other.progress;
        self.wrong += other.wrong;
        self.bytes += other.bytes;
        self.late += other.late;
        self.connections += other.connections;
    }

    pub fn count(&self, series: Series) -> u64 {
        self.times.get(&series).map_or(0, Histogram::len)
    }

    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}

/// When a run measures.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// When the load begins.
    pub start: Instant,
    /// When the warm-up is over and times count.
    pub from: Instant,
    /// When no new call begins.
    pub to: Instant,
    /// The length of a slot.
    pub slot: Duration,
}

impl Window {
    /// Nothing is measured: before and after a load.
    pub fn never() -> Window {
        let far = Instant::now() + Duration::from_secs(10 * 365 * 86_400);
        Window {
            start: far,
            from: far,
            to: far,
            slot: Duration::from_secs(1),
        }
    }
}

/// Takes what happens on a thread. Violations count from the first byte; times and failures in the window.
#[derive(Debug)]
pub struct Recorder<S> {
    window: Window,
    pub totals: Totals,
    slot: Slot,
    send: S,
}

impl<S: FnMut(Slot)> Recorder<S> {
    /// `send` takes each slot that is over.
    pub fn new(window: Window, send: S) -> Self {
        Recorder {
            window,
            totals: Totals::default(),
            slot: Slot::new(0),
            send,
        }
    }

    /// The load begins.
    pub fn begin(&mut self, window: Window) {
        self.window = window;
    }

    pub fn window(&self) -> Window {
        self.window
    }

    /// A time that ended at `end`.
    pub fn time(&mut self, series: Series, start: Instant, end: Instant) {
        if end < self.window.from || end > self.window.to {
            return;
        }
        let nanoseconds = end
            .saturating_duration_since(start)
            .as_nanos()
            .try_into()
            .unwrap_or(u64::MAX);
        let times = self.totals.times.entry(series).or_insert_with(histogram);
        times.saturating_record(nanoseconds);
        if matches!(series, Series::Call | Series::Delivery) {
            let slot = self.slot(end);
            slot.done += 1;
            slot.times.saturating_record(nanoseconds);
        }
    }

    pub fn fail(&mut self, failure: Failure, end: Instant) {
        if end < self.window.from {
            return;
        }
        let failures = &mut self.totals.failures;
        let is_new = failures.len() >= KINDS_MAX && !failures.contains_key(&failure);
        let kind = if is_new { Failure::More } else { failure };
        *failures.entry(kind).or_default() += 1;
        self.slot(end).failed += 1;
    }

    /// An answer that was wrong, whatever else it was.
    pub fn wrong(&mut self, end: Instant) {
        if end >= self.window.from && end <= self.window.to {
            self.totals.wrong += 1;
            self.slot(end).failed += 1;
        }
    }

    /// The slot of a time; those before it are sent.
    fn slot(&mut self, at: Instant) -> &mut Slot {
        let since = at.saturating_duration_since(self.window.from).as_nanos();
        let number = (since / self.window.slot.as_nanos().max(1)) as usize;
        if number > self.slot.number {
            let full = std::mem::replace(&mut self.slot, Slot::new(number));
            (self.send)(full);
        }
        &mut self.slot
    }

    /// Time has passed, whether anything happened or not.
    pub fn tick(&mut self, now: Instant) {
        if now >= self.window.from {
            self.slot(now);
        }
    }

    /// The end of the thread's work.
    pub fn finish(&mut self) -> Totals {
        let number = self.slot.number + 1;
        let last = std::mem::replace(&mut self.slot, Slot::new(number));
        (self.send)(last);
        std::mem::take(&mut self.totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_in_the_window_and_slots_are_sent_when_they_are_over() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let window = Window {
            start,
            from: at(100),
            to: at(1_000),
            slot: Duration::from_millis(100),
        };
        let mut slots = Vec::new();
        let mut recorder = Recorder::new(window, |slot: Slot| {
            slots.push((slot.number, slot.done, slot.failed))
        });
        recorder.time(Series::Call, at(0), at(50));
        recorder.fail(Failure::Closed, at(50));
        recorder.time(Series::Call, at(100), at(150));
        recorder.time(Series::Call, at(100), at(160));
        recorder.fail(Failure::Closed, at(170));
        recorder.time(Series::Session, at(100), at(180));
        recorder.tick(at(340));
        recorder.time(Series::Call, at(100), at(350));
        recorder.time(Series::Call, at(100), at(1_001));
        let totals = recorder.finish();
        assert_eq!(slots, [(0, 2, 1), (2, 1, 0)]);
        assert_eq!(
            (totals.count(Series::Call), totals.count(Series::Session)),
            (3, 1)
        );
        assert_eq!(totals.failed(), 1);
        let p50 = totals.times[&Series::Call].value_at_quantile(0.5);
        assert!((59_900_000..60_100_000).contains(&p50), "{p50}");
    }

    #[test]
    fn totals_add_up() {
        let start = Instant::now();
        let window = Window {
            start,
            from: start,
            to: start + Duration::from_secs(1),
            slot: Duration::from_secs(1),
        };
        let mut all = Totals::default();
        for _ in 0..2 {
            let mut recorder = Recorder::new(window, |_| {});
            recorder.time(Series::Call, start, start + Duration::from_millis(1));
            recorder.fail(Failure::Status(503), start);
            recorder.totals.progress = 3;
            *recorder.totals.acts.entry("cancel").or_default() += 1;
            all.merge(recorder.finish());
        }
        assert_eq!(
            (all.count(Series::Call), all.failed(), all.progress),
            (2, 2, 6)
        );
        assert_eq!(all.acts["cancel"], 2);
    }
}
