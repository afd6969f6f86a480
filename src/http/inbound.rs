//! The reading side of a connection: one buffer, and at most one read that is
//! armed, polled and never dropped while the connection goes on (a dropped
//! io_uring read loses the bytes that it was given).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use monoio::BufResult;
use monoio::buf::IoBufMut;
use monoio::io::{AsyncReadRent, CancelableAsyncReadRent, Canceller, OwnedReadHalf};
use monoio::net::TcpStream;

use crate::limits::{PIPELINED_BYTES_MAX, READ_BYTES_MAX, READ_BYTES_MIN};

type Half = OwnedReadHalf<TcpStream>;
type Reading = Pin<Box<dyn Future<Output = (Half, BufResult<usize, Vec<u8>>)>>>;

/// A read that is under way.
struct Armed {
    reading: Reading,
    /// There for a read that goes on while a request is being served: what is
    /// unread by then may belong to another shard, so it can be called back.
    canceller: Option<Canceller>,
}

/// Invariant: exactly one of `half` and `armed` is there.
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

    /// What has been read and not been used.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Uses the first `n` unread bytes.
    pub fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.unread().len());
        self.used += n;
        if self.used == self.bytes.len() {
            self.bytes.clear();
            self.used = 0;
            if self.bytes.capacity() > READ_BYTES_MAX {
                self.bytes = Vec::new();
            }
        } else if self.bytes.capacity() > 2 * READ_BYTES_MAX
            && self.unread().len() <= READ_BYTES_MAX
        {
            // A few bytes behind a large body must not keep its room, which no
            // longer counts against the budget.
            self.bytes = self.unread().to_vec();
            self.used = 0;
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
        self.poll_armed(cx)
    }

    /// Polls a read that watches for the client's end while a request is being
    /// served. What arrives is of later requests and is kept, up to a bound;
    /// beyond it nothing is read until they are served.
    pub fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.armed.is_none() {
            match self.unread().len() {
                _ if self.ended => return Poll::Pending,
                0 => self.arm(0),
                unread if unread < PIPELINED_BYTES_MAX => self.arm_ahead(),
                _ => return Poll::Pending,
            }
        }
        self.poll_armed(cx)
    }

    fn poll_armed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(armed) = &mut self.armed else {
            return Poll::Pending;
        };
        match armed.reading.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready((half, (result, bytes))) => Poll::Ready(self.take_in(half, result, bytes)),
        }
    }

    /// A read is done: what it brought goes behind what is unread.
    fn take_in(
        &mut self,
        half: Half,
        result: io::Result<usize>,
        bytes: Vec<u8>,
    ) -> io::Result<usize> {
        self.armed = None;
        self.half = Some(half);
        if self.unread().is_empty() {
            self.bytes = bytes;
            self.used = 0;
        } else {
            self.bytes.reserve_exact(bytes.len());
            self.bytes.extend_from_slice(&bytes);
        }
        if matches!(result, Ok(0)) {
            self.ended = true;
        }
        result
    }

    /// Starts a read behind what is unread, in the same buffer.
    fn arm(&mut self, expected: usize) {
        let Some(mut half) = self.half.take() else {
            return;
        };
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..std::mem::take(&mut self.used));
        make_room(&mut bytes, expected);
        let reading = Box::pin(async move {
            let spare = bytes.len()..bytes.capacity();
            let (result, slice) = half.read(bytes.slice_mut(spare)).await;
            (half, (result, slice.into_inner()))
        });
        self.armed = Some(Armed {
            reading,
            canceller: None,
        });
    }

    /// Starts a read into a buffer of its own: what is unread stays at hand.
    fn arm_ahead(&mut self) {
        let Some(mut half) = self.half.take() else {
            return;
        };
        let canceller = Canceller::new();
        let handle = canceller.handle();
        let reading = Box::pin(async move {
            let bytes = Vec::with_capacity(READ_BYTES_MIN);
            let done = half.cancelable_read(bytes, handle).await;
            (half, done)
        });
        self.armed = Some(Armed {
            reading,
            canceller: Some(canceller),
        });
    }

    /// Gives up the reading side with all that has been read. A read that is
    /// under way is called back and waited for, so that no byte is lost.
    pub async fn take(&mut self) -> Option<(Half, Vec<u8>)> {
        if let Some(armed) = self.armed.take() {
            // Only reads ahead are under way when a head has been found.
            armed.canceller?.cancel();
            let (half, (result, bytes)) = armed.reading.await;
            // An error is the cancel itself, or will be met again by the owner.
            let _ = self.take_in(half, result, bytes);
        }
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
    bytes.reserve_exact(room.min(most.max(1)));
}
