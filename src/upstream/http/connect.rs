//! Connections to the server: made over its addresses in turn, with TLS where the URL says
//! so; then a [`Link`], which reads and writes plain bytes whichever it is.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use monoio::BufResult;
use monoio::buf::{IoBuf, IoBufMut, Slice};
use monoio::io::{AsyncReadRent, AsyncWriteRent, OwnedReadHalf, OwnedWriteHalf, Splitable};
use monoio::net::TcpStream;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

use super::client::{HttpCounters, Upstream, Wake, Watch};
use super::exchange::{Fault, Stop};
use super::resolve::Addresses;
use super::tls::Tls;
use crate::runtime::clock;

/// First read buffer of an exchange, bytes: the whole answer to most calls.
const READ_BYTES: usize = 16 << 10;

/// The same for a stream that mostly waits: there may be thousands.
const QUIET_READ_BYTES: usize = 4 << 10;

/// A read buffer that is filled grows to this, bytes.
const READ_BYTES_MAX: usize = 64 << 10;

/// A body whose length is known gets so much room at once, bytes; more when it has come.
const EXPECTED_BYTES: usize = 256 << 10;

/// A body up to this goes behind its head in one buffer and one write, bytes; so much is
/// sealed at once.
const ONE_WRITE_BYTES: usize = 64 << 10;

/// How often an exchange looks whether the first addresses have come.
const RESOLVE_POLL: Duration = Duration::from_millis(10);

/// Makes a connection. The time for it is that of all addresses together, the names and the
/// TLS handshakes included.
pub(super) async fn connect(
    upstream: &Upstream,
    counters: &Arc<HttpCounters>,
    watch: &Watch<'_>,
) -> Result<Link, Stop> {
    let made = attempts(upstream, counters, watch).await;
    watch.no_deadline();
    match &made {
        Ok(_) => counters.connects.add(1),
        Err(Stop::Aborted) => {}
        Err(Stop::Fault(_)) => {
            counters.connect_failures.add(1);
            upstream.resolver.failed();
        }
    }
    made
}

async fn attempts(
    upstream: &Upstream,
    counters: &Arc<HttpCounters>,
    watch: &Watch<'_>,
) -> Result<Link, Stop> {
    let end = clock::now().after(upstream.settings.connect_timeout_ms);
    watch.deadline_at(end);
    let addresses = known_addresses(upstream, watch).await?;
    let mut fault = Fault::ConnectTimeout;
    for (index, &address) in addresses.iter().enumerate() {
        let now = clock::now();
        if now >= end {
            break;
        }
        // One that does not answer must leave time for those behind it.
        let share = end.since(now) / (addresses.len() - index) as u64;
        watch.deadline_at(now.after(share.max(1)));
        let made = watch.race(open(upstream, counters, address)).await;
        match made {
            Ok(Ok(link)) => {
                if index > 0 {
                    upstream.resolver.worked(address);
                }
                return Ok(link);
            }
            Ok(Err(failed)) => {
                tracing::debug!(%address, error = %failed.error, "the HTTP server cannot be connected to");
                fault = failed.fault;
            }
            Err(Wake::Late) => {
                tracing::debug!(%address, "the HTTP server does not answer a connect in time");
                fault = Fault::ConnectTimeout;
            }
            Err(Wake::Aborted) => return Err(Stop::Aborted),
        }
    }
    Err(Stop::Fault(fault))
}

async fn known_addresses(upstream: &Upstream, watch: &Watch<'_>) -> Result<Vec<SocketAddr>, Stop> {
    let mut may_ask = true;
    loop {
        match upstream.resolver.addresses(may_ask) {
            Addresses::Known(addresses) => return Ok(addresses),
            Addresses::None => return Err(Stop::Fault(Fault::Resolve)),
            // The look-up ends on another thread, which cannot wake a task of this one.
            Addresses::Coming => watch
                .race(monoio::time::sleep(RESOLVE_POLL))
                .await
                .map_err(|wake| wake.or(Fault::Resolve))?,
        }
        may_ask = false;
    }
}

struct Failed {
    fault: Fault,
    error: io::Error,
}

/// One address: TCP, then TLS.
async fn open(
    upstream: &Upstream,
    counters: &Arc<HttpCounters>,
    address: SocketAddr,
) -> Result<Link, Failed> {
    let by = |fault| move |error| Failed { fault, error };
    let stream = TcpStream::connect_addr(address)
        .await
        .map_err(by(Fault::Connect))?;
    let socket = Socket::new(stream).map_err(by(Fault::Connect))?;
    let tls = match &upstream.tls {
        None => None,
        Some(settings) => {
            let tls =
                Tls::new(settings).map_err(|error| by(Fault::Tls)(io::Error::other(error)))?;
            Some(Box::new(tls))
        }
    };
    let mut link = Link::new(socket, tls, counters.clone());
    poll_fn(|cx| link.poll_handshake(cx))
        .await
        .map_err(by(Fault::Tls))?;
    Ok(link)
}

type ReadHalf = OwnedReadHalf<TcpStream>;
type WriteHalf = OwnedWriteHalf<TcpStream>;
type Reading = Pin<Box<dyn Future<Output = (ReadHalf, BufResult<usize, Vec<u8>>)>>>;
type Writing = Pin<Box<dyn Future<Output = (WriteHalf, BufResult<usize, Slice<Chunk>>)>>>;

/// Bytes to be written.
enum Chunk {
    Owned(Vec<u8>),
    Shared(Rc<[u8]>),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Owned(bytes) => bytes,
            Chunk::Shared(bytes) => bytes,
        }
    }
}

// SAFETY: both kinds keep their bytes on the heap, at an address that moving the chunk does
// not change, and nothing writes to them: the vector is owned, and an `Rc` that is shared
// gives no access to write.
unsafe impl IoBuf for Chunk {
    fn read_ptr(&self) -> *const u8 {
        self.bytes().as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.bytes().len()
    }
}

/// What came of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    Bytes,
    /// The connection has ended: in order, so that a body that ends with it is whole, or not.
    End {
        in_order: bool,
    },
}

/// The TCP connection. Operations that are under way are polled and never dropped while it
/// goes on: a dropped one loses bytes. It is closed, for the server too, when it is dropped.
///
/// Invariants: exactly one of `read` and `reading` is there, and of `write` and `writing`.
struct Socket {
    fd: RawFd,
    read: Option<ReadHalf>,
    reading: Option<Reading>,
    write: Option<WriteHalf>,
    writing: Option<Writing>,
    /// What is to be written next; with `writing` that comes before.
    queue: VecDeque<Chunk>,
    /// Room for the next read.
    room: usize,
    /// Bytes that the kernel has taken.
    sent: u64,
}

impl Socket {
    fn new(stream: TcpStream) -> io::Result<Socket> {
        let fd = stream.as_raw_fd();
        // SAFETY: `stream` owns the descriptor and outlives the borrow.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, Duration::from_secs(30))?;
        sockopt::set_tcp_keepintvl(socket, Duration::from_secs(10))?;
        // A server that vanished without a word is found after this.
        sockopt::set_tcp_user_timeout(socket, 60_000)?;
        let (read, write) = stream.into_split();
        Ok(Socket {
            fd,
            read: Some(read),
            reading: None,
            write: Some(write),
            writing: None,
            queue: VecDeque::new(),
            room: READ_BYTES,
            sent: 0,
        })
    }

    fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: the halves, or the futures that hold them, own the descriptor; they are
        // parts of `self`, which is borrowed for as long as the result.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Nothing is under way, and the server has neither said anything nor closed.
    fn is_quiet(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        self.reading.is_none()
            && self.writing.is_none()
            && matches!(
                rustix::net::recv(self.borrow(), &mut [0u8; 1], flags),
                Err(rustix::io::Errno::AGAIN)
            )
    }

    /// Reads on behind `bytes`, which are given back with the result. `expected` is how many
    /// more are known to come.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Vec<u8>,
        expected: usize,
    ) -> Poll<io::Result<usize>> {
        if self.reading.is_none() {
            let Some(mut half) = self.read.take() else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            let mut bytes = std::mem::take(bytes);
            self.make_room(&mut bytes, expected);
            self.reading = Some(Box::pin(async move {
                let spare = bytes.len()..bytes.capacity();
                let (result, slice) = half.read(bytes.slice_mut(spare)).await;
                (half, (result, slice.into_inner()))
            }));
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Pending;
        };
        let (half, (result, read)) = ready!(reading.as_mut().poll(cx));
        self.reading = None;
        self.read = Some(half);
        if read.len() == read.capacity() {
            self.room = (2 * self.room).min(READ_BYTES_MAX);
        }
        *bytes = read;
        Poll::Ready(result)
    }

    fn make_room(&self, bytes: &mut Vec<u8>, expected: usize) {
        let (room, least) = match expected {
            // What comes byte by byte must not move the buffer with each byte.
            0 => (self.room, self.room / 2),
            // As much again as is there: the server may claim any length.
            expected => (
                expected.min(bytes.len().max(EXPECTED_BYTES)),
                expected.min(READ_BYTES_MAX),
            ),
        };
        if bytes.capacity() - bytes.len() < least {
            bytes.reserve_exact(room);
        }
    }

    /// Writes all of the queue.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(writing) = &mut self.writing {
                let (half, (result, slice)) = ready!(writing.as_mut().poll(cx));
                self.writing = None;
                self.write = Some(half);
                let n = match result {
                    Ok(n) if n > 0 => n,
                    failed => {
                        // What comes behind a gap must never be written.
                        self.queue.clear();
                        let error = failed.err().unwrap_or(io::ErrorKind::WriteZero.into());
                        return Poll::Ready(Err(error));
                    }
                };
                self.sent += n as u64;
                let from = slice.begin() + n;
                let chunk = slice.into_inner();
                if from < chunk.bytes_init() {
                    self.begin_write(chunk, from);
                    continue;
                }
            }
            match self.queue.pop_front() {
                Some(chunk) => self.begin_write(chunk, 0),
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    fn begin_write(&mut self, chunk: Chunk, from: usize) {
        if let Some(mut half) = self.write.take() {
            self.writing = Some(Box::pin(async move {
                let done = half.write(chunk.slice(from..)).await;
                (half, done)
            }));
        }
    }

    /// Makes what is under way end.
    fn shut_down(&self) {
        // One that the server has closed is as good.
        let _ = rustix::net::shutdown(self.borrow(), Shutdown::Both);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.writing.is_some() || !self.queue.is_empty() {
            // Half a request is in the way of the connection's end, for as long as the server
            // does not read; a reset is not.
            let _ = sockopt::set_socket_linger(self.borrow(), Some(Duration::ZERO));
        }
        if self.reading.is_some() || self.writing.is_some() {
            // On io_uring an operation that is under way holds the socket open until it has been
            // cancelled; the server must not wait for that.
            self.shut_down();
        }
    }
}

/// One connection to the server, with or without TLS.
pub(super) struct Link {
    socket: Socket,
    tls: Option<Box<Tls>>,
    /// What came from the socket and was not opened yet; empty without TLS.
    sealed: Vec<u8>,
    /// Plain bytes that came; those before `used` have been used.
    bytes: Vec<u8>,
    used: usize,
    /// Plain bytes that are to be sealed and written; empty without TLS. Then from where in
    /// the first of them.
    unsealed: VecDeque<Chunk>,
    unsealed_from: usize,
    counters: Arc<HttpCounters>,
}

impl Link {
    fn new(socket: Socket, tls: Option<Box<Tls>>, counters: Arc<HttpCounters>) -> Link {
        counters.connections.set(counters.connections.get() + 1);
        Link {
            socket,
            tls,
            sealed: Vec::new(),
            bytes: Vec::new(),
            used: 0,
            unsealed: VecDeque::new(),
            unsealed_from: 0,
            counters,
        }
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let Some(tls) = &mut self.tls else {
                return Poll::Ready(Ok(()));
            };
            let out = tls.take_out()?;
            if !out.is_empty() {
                self.socket.queue.push_back(Chunk::Owned(out));
            }
            ready!(self.socket.poll_write(cx))?;
            if !tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.socket.poll_read(cx, &mut self.sealed, 0))? == 0 {
                let text = "the server closed the connection during the TLS handshake";
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, text);
                return Poll::Ready(Err(error));
            }
            self.open_sealed()?;
        }
    }

    /// Opens what has come, and says nothing of what is still incomplete.
    fn open_sealed(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        let opened = tls.take_in(&self.sealed, &mut self.bytes);
        self.sealed.clear();
        // An alert that says what is wrong, or new keys.
        let out = tls.take_out()?;
        if !out.is_empty() {
            if opened.is_err() {
                self.send_at_once(&out);
            } else {
                self.socket.queue.push_back(Chunk::Owned(out));
            }
        }
        opened
    }

    /// Last words, if the kernel takes them without waiting.
    fn send_at_once(&self, bytes: &[u8]) {
        if self.socket.writing.is_none() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(self.socket.borrow(), bytes, flags);
        }
    }

    /// Begins to write a request. Nothing happens before [`Link::poll_write`].
    pub(super) fn send(&mut self, mut head: Vec<u8>, body: &Rc<[u8]>) {
        let queue = match self.tls {
            Some(_) => &mut self.unsealed,
            None => &mut self.socket.queue,
        };
        if body.len() <= ONE_WRITE_BYTES {
            head.extend_from_slice(body);
            queue.push_back(Chunk::Owned(head));
        } else {
            queue.push_back(Chunk::Owned(head));
            queue.push_back(Chunk::Shared(body.clone()));
        }
    }

    /// Writes on. Ready when the kernel has taken all.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.socket.sent;
        let done = self.poll_sealed_write(cx);
        self.counters.sent_bytes.add(self.socket.sent - before);
        done
    }

    fn poll_sealed_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_write(cx))?;
            let (Some(tls), Some(chunk)) = (&mut self.tls, self.unsealed.front()) else {
                return Poll::Ready(Ok(()));
            };
            let rest = &chunk.bytes()[self.unsealed_from..];
            let piece = &rest[..rest.len().min(ONE_WRITE_BYTES)];
            tls.seal(piece)?;
            self.socket.queue.push_back(Chunk::Owned(tls.take_out()?));
            if piece.len() == rest.len() {
                self.unsealed.pop_front();
                self.unsealed_from = 0;
            } else {
                self.unsealed_from += piece.len();
            }
        }
    }

    /// Bytes that the kernel has taken since the connection was made.
    pub(super) fn sent(&self) -> u64 {
        self.socket.sent
    }

    /// A write is in the kernel's hands, so that it may yet be done.
    pub(super) fn is_writing(&self) -> bool {
        self.socket.writing.is_some()
    }

    /// Makes what is under way end, one way or the other.
    pub(super) fn shut_down(&self) {
        self.socket.shut_down();
    }

    /// For a stream that mostly waits.
    pub(super) fn expect_quiet(&mut self) {
        self.socket.room = QUIET_READ_BYTES;
    }

    /// Reads on, behind what is unread.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        expected: usize,
    ) -> Poll<io::Result<Came>> {
        if self.used > 0 && self.socket.reading.is_none() {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        loop {
            let is_sealed = self.tls.is_some();
            if self.tls.as_ref().is_some_and(|tls| tls.has_ended()) {
                return Poll::Ready(Ok(Came::End { in_order: true }));
            }
            let (into, expected) = match is_sealed {
                true => (&mut self.sealed, 0),
                false => (&mut self.bytes, expected),
            };
            let n = ready!(self.socket.poll_read(cx, into, expected))?;
            self.counters.received_bytes.add(n as u64);
            if n == 0 {
                // Without the word of TLS somebody on the way may have cut the rest off.
                let in_order = !is_sealed;
                return Poll::Ready(Ok(Came::End { in_order }));
            }
            if !is_sealed {
                return Poll::Ready(Ok(Came::Bytes));
            }
            let before = self.bytes.len();
            self.open_sealed()?;
            if !self.socket.queue.is_empty()
                && let Poll::Ready(Err(error)) = self.socket.poll_write(cx)
            {
                return Poll::Ready(Err(error));
            }
            if self.bytes.len() > before {
                return Poll::Ready(Ok(Came::Bytes));
            }
        }
    }

    /// What came and has not been used. Empty while a read is under way.
    pub(super) fn unread(&self) -> &[u8] {
        self.bytes.get(self.used..).unwrap_or_default()
    }

    /// Uses the first `n` unread bytes.
    pub(super) fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.unread().len());
        self.used += n;
        if self.used >= self.bytes.len() {
            self.bytes.clear();
            self.used = 0;
        }
    }

    /// Whether another request may follow: all that came was used, all was written, and
    /// nothing is under way.
    pub(super) fn is_reusable(&self) -> bool {
        self.unread().is_empty()
            && self.unsealed.is_empty()
            && self.socket.queue.is_empty()
            && self.socket.reading.is_none()
            && self.socket.writing.is_none()
            && !self.tls.as_ref().is_some_and(|tls| tls.has_ended())
    }

    /// Gives up its buffers for the time that it is not used.
    pub(super) fn rest(&mut self) {
        self.bytes = Vec::new();
        self.sealed = Vec::new();
        self.used = 0;
        self.socket.room = READ_BYTES;
    }

    /// Whether a connection that was kept can still be used.
    pub(super) fn is_alive(&self) -> bool {
        self.socket.is_quiet()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let open = &self.counters.connections;
        open.set(open.get().saturating_sub(1));
        let is_idle = self.socket.queue.is_empty() && self.socket.writing.is_none();
        if let Some(tls) = &mut self.tls
            && is_idle
            && !tls.is_handshaking()
            && let Ok(last) = tls.close()
        {
            self.send_at_once(&last);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;
    use crate::runtime::driver::{DriverChoice, Loop, RingFlags};

    #[test]
    fn a_socket_is_set_up() {
        for choice in [DriverChoice::Auto, DriverChoice::Epoll] {
            let mut event_loop = Loop::new(choice, RingFlags::BEST).unwrap();
            event_loop.block_on(async {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                let stream = TcpStream::connect_addr(address).await.unwrap();
                let socket = Socket::new(stream).unwrap();
                let fd = socket.borrow();
                assert!(sockopt::tcp_nodelay(fd).unwrap());
                assert!(sockopt::socket_keepalive(fd).unwrap());
                assert_eq!(sockopt::tcp_keepidle(fd).unwrap().as_secs(), 30);
                assert_eq!(sockopt::tcp_user_timeout(fd).unwrap(), 60_000);
                assert!(fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
                assert!(socket.is_quiet());
            });
        }
    }

    #[test]
    fn room_grows_with_what_comes() {
        let mut event_loop = Loop::new(DriverChoice::Auto, RingFlags::BEST).unwrap();
        event_loop.block_on(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let stream = TcpStream::connect_addr(address).await.unwrap();
            let mut socket = Socket::new(stream).unwrap();
            let mut bytes = Vec::new();
            socket.make_room(&mut bytes, 0);
            assert_eq!(bytes.capacity(), READ_BYTES);
            // Byte by byte it moves seldom.
            let mut moves = 0;
            for _ in 0..60_000 {
                let before = bytes.capacity();
                socket.make_room(&mut bytes, 0);
                moves += usize::from(bytes.capacity() != before);
                bytes.push(0);
            }
            assert!(moves < 20, "{moves}");
            // A length that is only claimed gets little.
            let mut bytes = Vec::new();
            socket.make_room(&mut bytes, 1 << 30);
            assert_eq!(bytes.capacity(), EXPECTED_BYTES);
            bytes.resize(EXPECTED_BYTES, 0);
            socket.make_room(&mut bytes, 1 << 30);
            assert_eq!(bytes.capacity(), 2 * EXPECTED_BYTES);
            // The last of it gets no more than it needs.
            let mut bytes = vec![0; 100_000];
            bytes.shrink_to_fit();
            socket.make_room(&mut bytes, 10);
            assert_eq!(bytes.capacity(), 100_010);
            socket.room = READ_BYTES_MAX;
            let mut bytes = Vec::new();
            socket.make_room(&mut bytes, 0);
            assert_eq!(bytes.capacity(), READ_BYTES_MAX);
        });
    }
}
