//! Accepting connections, in a task of its own that is never raced against
//! anything (a dropped accept loses a connection).

use std::io;
use std::net::TcpListener as StdListener;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use monoio::io::AsyncWriteRentExt;
use monoio::net::{TcpListener, TcpStream};
use rustix::io::{FdFlags, fcntl_setfd};

use super::connection;
use super::ground::{Ground, Handover};
use super::response::{self, Manner};
use crate::runtime::driver::Driver;
use crate::runtime::tasks;

/// Puts a listener on the loop of this thread.
pub fn adopt(listener: StdListener, driver: Driver) -> io::Result<TcpListener> {
    // io_uring answers EAGAIN for a non-blocking listener, epoll needs one.
    listener.set_nonblocking(driver == Driver::Epoll)?;
    TcpListener::from_std(listener)
}

/// Accepts until the shard drains; then the listener is closed.
pub async fn accept(ground: Rc<Ground>, listener: TcpListener) {
    while let Some(handle) = ground.accept_handle() {
        match listener.cancelable_accept(handle).await {
            Ok((stream, _)) => admit(&ground, stream),
            Err(_) if ground.is_draining() => return,
            Err(error) => {
                // Out of descriptors: accepting again at once would spin.
                tracing::warn!(%error, "cannot accept a connection");
                monoio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn admit(ground: &Rc<Ground>, stream: TcpStream) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "a connection ended before it began");
        return;
    }
    start(ground, stream, Vec::new());
}

/// Takes a connection that another shard has handed over.
pub fn take_over(ground: &Rc<Ground>, handover: Handover) {
    let stream = std::net::TcpStream::from(handover.socket);
    let adopted = stream
        .set_nonblocking(ground.driver == Driver::Epoll)
        .and_then(|()| TcpStream::from_std(stream));
    match adopted {
        Ok(stream) => start(ground, stream, handover.unread),
        Err(error) => tracing::warn!(%error, "a connection was lost on its way between shards"),
    }
}

fn start(ground: &Rc<Ground>, stream: TcpStream, unread: Vec<u8>) {
    match ground.open_connection() {
        Some(key) => {
            let ground = ground.clone();
            tasks::spawn("connection", connection::serve(ground, key, stream, unread));
        }
        None => {
            tasks::spawn("refuse", refuse(ground.clone(), stream));
        }
    }
}

/// Over `--max-connections`: an answer, and the end. The answer is small enough
/// for an empty socket buffer, so this does not wait for the client.
async fn refuse(ground: Rc<Ground>, mut stream: TcpStream) {
    let body = br#"{"jsonrpc":"2.0","error":{"code":-32603,"message":"Too many connections","data":{"reason":"overloaded"}}}"#;
    let response = response::complete(
        &Manner::unread(),
        &ground.date(),
        503,
        b"retry-after: 1\r\n",
        body,
    );
    ground.counters.statuses.count(503);
    let (result, _) = stream.write_all(response).await;
    if let Err(error) = result {
        tracing::debug!(%error, "a refused connection was gone");
    }
}

/// Refuses a connection that its owner shard did not take.
pub fn refuse_handover(ground: &Rc<Ground>, handover: Handover) {
    if let Ok(stream) = TcpStream::from_std(std::net::TcpStream::from(handover.socket)) {
        tasks::spawn("refuse", refuse(ground.clone(), stream));
    }
}

/// Accepted sockets come without these.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let fd = borrow(stream);
    fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    // A peer that vanished without a word is found after this, even while
    // nothing but keep-alives is sent to it.
    rustix::net::sockopt::set_tcp_user_timeout(fd, 60_000)?;
    Ok(())
}

fn borrow(stream: &TcpStream) -> std::os::fd::BorrowedFd<'_> {
    use std::os::fd::AsRawFd;
    // SAFETY: `stream` owns the descriptor and is borrowed for as long as the
    // result, so the descriptor stays open.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(stream.as_raw_fd()) }
}

/// Turns a stream whose two halves have come together again into its descriptor.
pub fn into_descriptor(stream: TcpStream) -> OwnedFd {
    use std::os::fd::{FromRawFd, IntoRawFd};
    // SAFETY: the descriptor is given up by the stream and owned by nobody else.
    unsafe { OwnedFd::from_raw_fd(stream.into_raw_fd()) }
}
