//! A GET stream on its connection: a small task of its own that waits for its
//! session's marks, writes them, keeps the stream alive, and ends with the
//! session, with a newer stream, or with the client. While it is idle it holds no
//! write buffer and one small armed read, by which a vanished client is noticed.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use monoio::BufResult;
use monoio::io::{AsyncReadRent, AsyncWriteRent, OwnedReadHalf, OwnedWriteHalf};
use monoio::net::TcpStream;

use super::connections::{ConnectionKey, Phase, Wake};
use super::ground::Ground;
use super::route::Service;
use super::{outbound, response};
use crate::limits::{LINGER_MS, STREAM_IGNORED_BYTES_MAX};
use crate::routing::session::SessionKey;
use crate::routing::stream::Work;
use crate::runtime::clock;
use crate::wire::sse;

/// A stream that a session has been told of. However its connection ends, the
/// session learns of it.
pub struct OpenStream {
    ground: Rc<Ground>,
    service: Service,
    session: SessionKey,
    key: ConnectionKey,
}

impl OpenStream {
    /// The session's stream is the connection at `key` from now on.
    pub fn new(
        ground: Rc<Ground>,
        service: Service,
        session: SessionKey,
        key: ConnectionKey,
    ) -> OpenStream {
        service.open_stream(session, key);
        OpenStream {
            ground,
            service,
            session,
            key,
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.service.stream_gone(self.session, self.key);
    }
}

type Half = OwnedReadHalf<TcpStream>;
type Reading = Pin<Box<dyn Future<Output = (Half, BufResult<usize, Vec<u8>>)>>>;

/// Bytes of the buffer in which a stream's client is not expected to send anything.
const READ_BYTES: usize = 64;

fn read(mut half: Half, bytes: Vec<u8>) -> Reading {
    Box::pin(async move {
        let done = half.read(bytes).await;
        (half, done)
    })
}

/// The task of a GET stream.
pub struct Stream {
    open: OpenStream,
    /// There until the client has ended.
    reading: Option<Reading>,
    write: OwnedWriteHalf<TcpStream>,
    http11: bool,
    ignored: usize,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.open.ground.close_connection(self.open.key);
    }
}

/// What a stream has to do next.
enum Next {
    /// These bytes are events: write them.
    Events(Vec<u8>),
    KeepAlive,
    /// The stream ends cleanly.
    End,
    /// The client is gone.
    Gone,
}

impl Stream {
    /// The stream takes over the place of its connection in the table.
    pub fn new(
        open: OpenStream,
        half: Half,
        write: OwnedWriteHalf<TcpStream>,
        http11: bool,
    ) -> Stream {
        Stream {
            open,
            reading: Some(read(half, Vec::with_capacity(READ_BYTES))),
            write,
            http11,
            ignored: 0,
        }
    }

    /// Runs to the end. `head` is the head of the response.
    pub async fn run(mut self, head: Vec<u8>) {
        if !self.write(head).await {
            return;
        }
        loop {
            match self.next().await {
                Next::Events(events) => {
                    let mut bytes = Vec::new();
                    response::part(&mut bytes, self.http11, &events);
                    drop(events);
                    let is_done = self.write(bytes).await;
                    let OpenStream {
                        service,
                        session,
                        key,
                        ..
                    } = &self.open;
                    service.stream_wrote(*session, *key, is_done);
                    if !is_done {
                        return;
                    }
                }
                Next::KeepAlive => {
                    let mut bytes = Vec::new();
                    response::part(&mut bytes, self.http11, sse::KEEP_ALIVE);
                    if !self.write(bytes).await {
                        return;
                    }
                }
                Next::End => {
                    self.end().await;
                    return;
                }
                Next::Gone => return,
            }
        }
    }

    async fn next(&mut self) -> Next {
        let keep_alive = self.open.ground.config.keep_alive_ms;
        self.deadline_in(keep_alive);
        poll_fn(|cx| {
            if self.poll_client(cx).is_ready() {
                return Poll::Ready(Next::Gone);
            }
            let OpenStream {
                ground,
                service,
                session,
                key,
            } = &self.open;
            let wake = ground.poll_connection(*key, cx);
            let mut events = Vec::new();
            let work = service.stream_work(*session, *key, &mut events);
            match (work, wake) {
                (_, Some(Wake::Evicted)) => Poll::Ready(Next::Gone),
                (Work::Write(_), _) => Poll::Ready(Next::Events(events)),
                (Work::End, _) => Poll::Ready(Next::End),
                (Work::Rest, _) if ground.is_draining() => Poll::Ready(Next::End),
                (Work::Rest, Some(Wake::Deadline)) => Poll::Ready(Next::KeepAlive),
                (Work::Rest, _) => Poll::Pending,
            }
        })
        .await
    }

    fn deadline_in(&self, milliseconds: u64) {
        let due = clock::now().after(milliseconds);
        self.open.ground.set_deadline(self.open.key, due);
    }

    /// Ready when the client has ended or is gone. What it sends is ignored, up to
    /// a bound.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(reading) = &mut self.reading else {
                return Poll::Ready(());
            };
            let Poll::Ready((half, (result, mut bytes))) = reading.as_mut().poll(cx) else {
                return Poll::Pending;
            };
            self.reading = None;
            match result {
                Ok(n) if n > 0 => {
                    self.open.ground.counters.received_bytes.add(n as u64);
                    self.ignored += n;
                    if self.ignored > STREAM_IGNORED_BYTES_MAX {
                        return Poll::Ready(());
                    }
                    bytes.clear();
                    self.reading = Some(read(half, bytes));
                }
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Writes all of `bytes`, however long the client takes: what waits meanwhile
    /// are marks. A stream that is over does not wait for a client that does not
    /// read. False if not all was written; the connection must end then.
    async fn write(&mut self, bytes: Vec<u8>) -> bool {
        let Stream { open, write, .. } = self;
        let OpenStream {
            ground,
            service,
            session,
            key,
        } = open;
        let mut is_limited = false;
        let gives_up = |cx: &Context<'_>| {
            let is_due = ground.poll_deadline(*key, cx);
            if is_due && is_limited {
                return true;
            }
            let is_over = ground.is_draining() || !service.is_stream(*session, *key);
            if is_over && !is_limited {
                is_limited = true;
                ground.set_deadline(*key, clock::now().after(LINGER_MS));
            }
            false
        };
        let sent = &ground.counters.sent_bytes;
        outbound::write_all(write, bytes, sent, || {}, gives_up).await
    }

    /// Ends the response, and reads on for a moment, so that what the client has
    /// sent does not make the kernel throw its end away.
    async fn end(&mut self) {
        let mut bytes = Vec::new();
        response::end(&mut bytes, self.http11);
        if !self.write(bytes).await || self.write.shutdown().await.is_err() {
            return;
        }
        self.open.ground.enter(self.open.key, Phase::Idle);
        self.deadline_in(LINGER_MS);
        poll_fn(|cx| {
            let is_gone = self.poll_client(cx).is_ready();
            let is_late = self.open.ground.poll_deadline(self.open.key, cx);
            match is_gone || is_late {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
