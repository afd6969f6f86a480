//! The decisions: state machines that take an event and the time and say what
//! to do. Nothing here names a socket, a thread, a clock or a random source;
//! what a machine needs comes in as an argument.

#![forbid(unsafe_code)]

pub mod arrival;
pub mod back_off;
#[cfg(test)]
mod bench;
pub mod calls;
pub mod client;
pub mod drops;
pub mod ending;
pub mod event_queue;
pub mod hub;
pub mod interest;
pub mod joined;
pub mod ledger;
pub mod letters;
pub mod log_level;
pub mod long_line;
pub mod marks;
pub mod outcome;
pub mod outgoing;
pub mod private;
pub mod server_line;
pub mod session;
pub mod shard;
pub mod stream;
mod subscribe;
mod task_messages;
pub mod tasks;
pub mod time;
pub mod upstream_id;
pub mod uri_index;
pub mod wheel;
