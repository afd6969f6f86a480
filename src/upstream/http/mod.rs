//! The upstream that speaks Streamable HTTP: a client of HTTP/1.1.

pub mod address;
pub mod bridge;
pub mod client;
mod connect;
pub mod events;
pub mod exchange;
mod pool;
pub mod resolve;
pub mod response;
#[cfg(test)]
mod tests;
pub mod tls;

pub use address::{Address, Fields};
pub use client::{Client, HttpCounters, Settings, Upstream};
pub use exchange::{Abort, Body, End, EndKind, Fault, Listener, Request, Verb};
pub use response::OddSession;
