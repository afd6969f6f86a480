//! Ringway: an MCP gateway for Linux. Many Streamable HTTP clients in front,
//! one MCP server behind, one io_uring loop per core.
//!
//! The library exists so that the tests, the benches and the fuzz targets can
//! reach the parts; the product is the binary. Arrows between the modules go
//! one way: `server` -> `http`, `upstream` -> `runtime`, `routing` -> `wire`.

pub mod admin;
pub mod cli;
pub mod config;
pub mod demo;
pub mod hooks;
pub mod http;
pub mod limits;
pub mod routing;
pub mod runtime;
pub mod server;
pub mod upstream;
mod values;
pub mod wire;
