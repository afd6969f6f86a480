//! The upstream face: the server's process, and the hub that talks to it. The
//! hub parses what the server says and hands each message to its owner shard.

pub mod child;
pub mod guard;
pub mod http;
pub mod hub;
pub mod links;
pub mod stderr;
