//! The line that is seen while a load runs.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};

use crate::options::Common;
use crate::record::{Slot, Window};

/// How often the line is written anew.
const EVERY: Duration = Duration::from_millis(250);

pub struct Live {
    bar: Option<ProgressBar>,
    window: Option<Window>,
    /// What was counted since the line was last written.
    since: Instant,
    done: u64,
    failed: u64,
    times: Option<Histogram<u64>>,
}

impl Live {
    /// Only a terminal gets the line, unless it is to be quiet.
    pub fn new(common: &Common, is_terminal: bool) -> Live {
        let bar = (is_terminal && !common.quiet).then(|| {
            let bar = ProgressBar::new((common.warmup + common.duration).as_millis() as u64);
            let style = ProgressStyle::with_template("{bar:30} {elapsed} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message("preparing");
            bar
        });
        Live {
            bar,
            window: None,
            since: Instant::now(),
            done: 0,
            failed: 0,
            times: None,
        }
    }

    pub fn begin(&mut self, window: Window) {
        self.window = Some(window);
        self.since = Instant::now();
    }

    pub fn slot(&mut self, slot: &Slot) {
        let (Some(bar), Some(window)) = (&self.bar, self.window) else {
            return;
        };
        self.done += slot.done;
        self.failed += slot.failed;
        match &mut self.times {
            // All slots have the same bounds.
            Some(times) => drop(times.add(&slot.times)),
            empty => *empty = Some(slot.times.clone()),
        }
        let elapsed = self.since.elapsed();
        if elapsed < EVERY {
            return;
        }
        let rate = self.done as f64 / elapsed.as_secs_f64();
        let p99 = self
            .times
            .as_ref()
            .map_or(0, |times| times.value_at_quantile(0.99));
        bar.set_position(window.start.elapsed().as_millis() as u64);
        bar.set_message(format!(
            "{rate:.0}/s, p99 {:.2} ms, {} failed",
            p99 as f64 / 1e6,
            self.failed
        ));
        self.since = Instant::now();
        self.done = 0;
        self.times = None;
    }

    pub fn end(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
