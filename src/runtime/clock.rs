//! The clock of the process: milliseconds since it started. The state machines
//! get the time from here and never look themselves.

use std::sync::OnceLock;
use std::time::Instant;

use crate::routing::time::Millis;

static START: OnceLock<Instant> = OnceLock::new();

/// The time since the first call, which is made at start.
pub fn now() -> Millis {
    Millis(START.get_or_init(Instant::now).elapsed().as_millis() as u64)
}
