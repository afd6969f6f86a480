//! The clock of the process: time since it started. The state machines get the
//! time from here and never look themselves.

use std::sync::OnceLock;
use std::time::Instant;

use crate::routing::time::{Micros, Millis};

static START: OnceLock<Instant> = OnceLock::new();

/// The time since the first call, which is made at start.
pub fn precise() -> Micros {
    Micros(START.get_or_init(Instant::now).elapsed().as_micros() as u64)
}

/// The same in milliseconds.
pub fn now() -> Millis {
    precise().millis()
}
