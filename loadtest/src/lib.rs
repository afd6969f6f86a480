//! A load generator for MCP over Streamable HTTP. It drives any endpoint, and while it measures it checks that each
//! answer is the one of its own call: what a fast gateway that mixes its clients up is worth is nothing.
//!
//! What decides is free of I/O: `response`, `sse`, `message` read, `check` judges, `record` counts. `connection`,
//! `session` and `pace` are the I/O around it, `scenarios` what is done with them, `engine` the threads, `report`
//! what is told in the end.

pub mod check;
pub mod command;
pub mod compare;
pub mod connection;
pub mod engine;
pub mod message;
pub mod nonce;
pub mod options;
pub mod pace;
pub mod pipe;
pub mod record;
pub mod report;
pub mod response;
pub mod scenarios;
pub mod session;
pub mod sse;
pub mod template;
pub mod watch;
