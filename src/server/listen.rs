//! The listening sockets: one a shard on the same port.

use std::net::{SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::ServerError;

/// Binds one listener a shard. With SO_REUSEPORT a second Ringway could bind the
/// same port without a word, so a plain bind shows first that it is free.
pub(super) fn listen(
    address: SocketAddr,
    shards: usize,
) -> Result<(SocketAddr, Vec<TcpListener>), ServerError> {
    let failed = |source: std::io::Error| ServerError::Listen { address, source };
    let probe = TcpListener::bind(address).map_err(failed)?;
    let address = probe.local_addr().map_err(failed)?;
    drop(probe);
    let listeners = (0..shards)
        .map(|_| reuse_port_listener(address).map_err(|error| failed(error.into())))
        .collect::<Result<_, _>>()?;
    Ok((address, listeners))
}

fn reuse_port_listener(address: SocketAddr) -> rustix::io::Result<TcpListener> {
    use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 4_096)?;
    Ok(TcpListener::from(socket))
}
