//! What the data path runs on: pinned threads with a loop each, mailboxes and
//! wake-ups between them, the clock, counters. Knows nothing of HTTP or MCP.

pub mod bell;
pub mod call_counters;
pub mod clock;
pub mod cores;
pub mod counters;
pub mod driver;
pub mod fair;
pub mod fd;
pub mod histogram;
pub mod notify;
pub mod route_counters;
pub mod status_counters;
pub mod tasks;

/// Bytes that two threads never share unless they mean to: two cache lines, because
/// processors fetch them in pairs. `repr(align(128))` has to repeat the number.
pub const LINE_BYTES: usize = 128;

/// Whether values of `T` have their cache lines to themselves, wherever they stand.
pub const fn has_own_lines<T>() -> bool {
    align_of::<T>() >= LINE_BYTES && size_of::<T>().is_multiple_of(LINE_BYTES)
}
