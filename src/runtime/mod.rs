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
pub mod status_counters;
pub mod tasks;
