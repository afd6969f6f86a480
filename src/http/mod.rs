//! The downstream face: the listener, the request guard, the connection loop,
//! the contract of the MCP endpoint, the responses.

pub mod auth;
pub mod chunked;
pub mod codec;
pub mod connection;
pub mod connections;
pub mod endpoint;
pub mod exchange;
pub mod ground;
pub mod guard;
pub mod head;
pub mod inbound;
pub mod joined;
pub mod listener;
mod outbound;
pub mod policy;
pub mod response;
pub mod route;
pub mod shard;
pub mod stream;
pub mod token_file;
pub mod upstream;
