//! Bytes to meaning and back: JSON-RPC envelopes, splices, lines, SSE frames,
//! header rules and the vocabulary of MCP. No I/O, no state that outlives a
//! call, no clock.

#![forbid(unsafe_code)]

pub mod depth;
mod document;
pub mod handshake;
pub mod headers;
pub mod lines;
pub mod listing;
pub mod method;
pub mod notice;
pub mod rename;
pub mod reply;
pub mod scan;
pub mod span;
pub mod splice;
pub mod sse;
pub mod task;
pub mod union;
pub mod version;
mod views;
mod walk;
