//! The MCP server that is built into the binary: `ringway demo-server` speaks
//! the legacy era over its own stdin and stdout, as a child of the gateway.
//! All decisions are in [`dispatch`], which does no I/O; only [`stdio`] touches
//! descriptors and the clock. Nothing else in the crate depends on this module.

#![forbid(unsafe_code)]

mod answer;
mod catalogue;
mod dispatch;
mod extras;
mod limits;
mod lines;
mod message;
mod slow;
mod stdio;
mod tools;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsFd;

/// Settings of the demo server. It has none yet; the type keeps the signature
/// of [`run`] stable.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct DemoOptions {}

/// Serves MCP on stdin and stdout until stdin ends or stdout can no longer be
/// written to; both are a normal end. `slow` calls that still wait for their
/// timer at that moment are abandoned.
///
/// # Errors
/// A failed read or poll of stdin.
pub fn run(_options: &DemoOptions) -> io::Result<()> {
    stdio::serve(io::stdin().as_fd(), io::stdout().as_fd())
}
