//! Reading and writing pipes and eventfds on either driver. On io_uring through
//! `fs::File`, whose reads and writes are ring operations. On epoll `fs::File`
//! would block the loop; there the descriptor is non-blocking, waits are for
//! readiness and the calls are plain ones.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;

use monoio::BufResult;
use monoio::buf::{IoBuf, IoBufMut};
use monoio::fs::File;
use monoio::net::UnixStream;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::driver::Driver;

/// One direction of a pipe, or an eventfd, on the loop of this thread.
pub enum StreamFd {
    Uring(File),
    /// monoio registers the descriptor of a `UnixStream` for readiness, and
    /// that is all that is asked of it: it need not be a socket.
    Epoll(UnixStream),
}

impl StreamFd {
    /// Takes a descriptor over. Must be called on the thread of its loop.
    pub fn new(fd: OwnedFd, driver: Driver) -> io::Result<StreamFd> {
        let flags = fcntl_getfl(&fd)?;
        match driver {
            Driver::Uring => {
                // io_uring answers EAGAIN for a non-blocking descriptor.
                fcntl_setfl(&fd, flags - OFlags::NONBLOCK)?;
                Ok(StreamFd::Uring(File::from_std(fd.into())?))
            }
            Driver::Epoll => {
                fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
                let stream = UnixStream::from_std(StdUnixStream::from(fd))?;
                Ok(StreamFd::Epoll(stream))
            }
        }
    }

    /// Reads into the spare capacity behind `bytes`, of which there must be
    /// some, and appends what was read. 0 is the end.
    pub async fn read(&self, bytes: Vec<u8>) -> BufResult<usize, Vec<u8>> {
        debug_assert!(bytes.len() < bytes.capacity());
        match self {
            StreamFd::Uring(file) => {
                let spare = bytes.len()..bytes.capacity();
                let (result, slice) = file.read_at(bytes.slice_mut(spare), 0).await;
                (result, slice.into_inner())
            }
            StreamFd::Epoll(stream) => read_when_ready(stream, bytes).await,
        }
    }

    /// Writes `bytes[from..to]` or a part of it.
    pub async fn write(&self, bytes: Vec<u8>, from: usize, to: usize) -> BufResult<usize, Vec<u8>> {
        match self {
            StreamFd::Uring(file) => {
                let (result, slice) = file.write_at(bytes.slice(from..to), 0).await;
                (result, slice.into_inner())
            }
            StreamFd::Epoll(stream) => write_when_ready(stream, bytes, from, to).await,
        }
    }
}

async fn read_when_ready(stream: &UnixStream, mut bytes: Vec<u8>) -> BufResult<usize, Vec<u8>> {
    loop {
        match rustix::io::read(as_fd(stream), rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(n) => return (Ok(n), bytes),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                if let Err(error) = stream.readable(false).await {
                    return (Err(error), bytes);
                }
            }
            Err(error) => return (Err(error.into()), bytes),
        }
    }
}

async fn write_when_ready(
    stream: &UnixStream,
    bytes: Vec<u8>,
    from: usize,
    to: usize,
) -> BufResult<usize, Vec<u8>> {
    loop {
        match rustix::io::write(as_fd(stream), &bytes[from..to]) {
            Ok(n) => return (Ok(n), bytes),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                if let Err(error) = stream.writable(false).await {
                    return (Err(error), bytes);
                }
            }
            Err(error) => return (Err(error.into()), bytes),
        }
    }
}

fn as_fd(stream: &UnixStream) -> std::os::fd::BorrowedFd<'_> {
    use std::os::fd::AsRawFd;
    // SAFETY: `stream` owns the descriptor and is borrowed for as long as the
    // result, so the descriptor stays open.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(stream.as_raw_fd()) }
}
