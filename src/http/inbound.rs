//! The reading side of a connection: one buffer, and at most one read that is
//! armed, polled and never dropped while the connection goes on (a dropped
//! io_uring read loses the bytes that it was given).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use monoio::BufResult;
use monoio::buf::IoBufMut;
use monoio::io::{AsyncReadRent, OwnedReadHalf};
use monoio::net::TcpStream;

use crate::limits::{PIPELINED_BYTES_MAX, READ_BYTES_MAX, READ_BYTES_MIN};

type Half = OwnedReadHalf<TcpStream>;
type Armed = Pin<Box<dyn Future<Output = (Half, BufResult<usize, Vec<u8>>)>>>;

/// Invariant: exactly one of `half` and `armed` is there, and `bytes` is here
/// when `half` is.
pub struct Inbound {
    half: Option<Half>,
    armed: Option<Armed>,
    bytes: Vec<u8>,
    /// Bytes before this have been used.
    used: usize,
    ended: bool,
}

impl Inbound {
    /// `unread` are bytes that were read before.
    pub fn new(half: Half, unread: Vec<u8>) -> Inbound {
        Inbound {
            half: Some(half),
            armed: None,
            bytes: unread,
            used: 0,
            ended: false,
        }
    }

    /// What has been read and not been used. Empty while a read is armed that
    /// was started with nothing unread.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Uses the first `n` unread bytes.
    pub fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.unread().len());
        self.used += n;
        if self.used == self.bytes.len() && self.armed.is_none() {
            self.bytes.clear();
            self.used = 0;
            if self.bytes.capacity() > READ_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
    }

    /// Bytes that the buffer takes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The client has sent its last byte.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether a read is armed.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Reads on, behind what is unread. Ready with the number of new bytes, 0 at
    /// the end. `expected` is how many more bytes are known to come; it sizes
    /// the buffer, which still only grows as bytes arrive.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, expected: usize) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Ok(0));
        }
        if self.armed.is_none() {
            self.arm(expected);
        }
        let Some(armed) = &mut self.armed else {
            return Poll::Ready(Ok(0));
        };
        let (half, (result, bytes)) = match armed.as_mut().poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(done) => done,
        };
        self.armed = None;
        self.half = Some(half);
        self.bytes = bytes;
        if matches!(result, Ok(0)) {
            self.ended = true;
        }
        Poll::Ready(result)
    }

    /// Polls a read that watches for the client's end while a request is in
    /// progress. What arrives is a later request and is kept; once something is
    /// kept no further read is started, so that it stays bounded.
    pub fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.armed.is_none() && (self.ended || !self.unread().is_empty()) {
            return Poll::Pending;
        }
        self.poll_read(cx, 0)
    }

    fn arm(&mut self, expected: usize) {
        let Some(mut half) = self.half.take() else {
            return;
        };
        let mut bytes = std::mem::take(&mut self.bytes);
        if self.used > 0 {
            bytes.drain(..self.used);
            self.used = 0;
        }
        make_room(&mut bytes, expected);
        self.armed = Some(Box::pin(async move {
            let spare = bytes.len()..bytes.capacity();
            let (result, slice) = half.read(bytes.slice_mut(spare)).await;
            (half, (result, slice.into_inner()))
        }));
    }

    /// Gives up the reading side with what is unread, if no read is armed.
    pub fn take(&mut self) -> Option<(Half, Vec<u8>)> {
        let half = self.half.take()?;
        let mut unread = std::mem::take(&mut self.bytes);
        unread.drain(..std::mem::take(&mut self.used));
        Some((half, unread))
    }
}

/// Makes room behind `bytes`: at least one byte, at first little, then as much
/// again as is there, at most what is expected or one read.
fn make_room(bytes: &mut Vec<u8>, expected: usize) {
    let spare = bytes.capacity() - bytes.len();
    if spare >= expected.clamp(1, READ_BYTES_MIN) {
        return;
    }
    let most = expected.max(PIPELINED_BYTES_MAX.saturating_sub(bytes.len()));
    let room = bytes
        .len()
        .clamp(READ_BYTES_MIN, READ_BYTES_MAX.max(bytes.len()));
    bytes.reserve(room.min(most.max(1)));
}
