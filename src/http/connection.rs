//! One connection: read a head, answer the request, again. One request at a
//! time, answered in order; every wait has a deadline or ends with its call.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use monoio::io::{AsyncWriteRent, OwnedWriteHalf, Splitable};
use monoio::net::TcpStream;
use smallvec::SmallVec;

use super::connections::{ConnectionKey, Delivery, Phase, Wake};
use super::exchange::After;
use super::ground::{Ground, Handover};
use super::guard::{HeadExtent, HeadGuard, Refusal};
use super::head::{self, Head};
use super::inbound::Inbound;
use super::response::{self, Manner};
use super::route::Service;
use super::stream::{OpenStream, Stream};
use super::{exchange, listener, outbound};
use crate::limits::{LINGER_BYTES_MAX, LINGER_MS, READ_BYTES_MIN, REQUESTS_PER_TURN};
use crate::routing::event_queue::EventQueue;
use crate::runtime::clock;
use crate::runtime::driver::Driver;
use crate::runtime::fair::give_way;
use crate::runtime::tasks;
use crate::wire::reply;

/// One connection of a shard. Its place in the table is given up when it is
/// dropped, also by a panic.
pub struct Connection {
    pub ground: Rc<Ground>,
    pub key: ConnectionKey,
    /// What serves the request in progress.
    pub service: Option<Service>,
    pub inbound: Inbound,
    last_head: Option<LastHead>,
    /// There until the connection is given away.
    outbound: Option<OwnedWriteHalf<TcpStream>>,
    /// Its place in the table belongs to a stream now.
    is_given_away: bool,
}

/// The head that came last. Clients mostly send the same bytes again; a head is
/// a pure function of its bytes, and an empty line stands only at its end, so
/// equal bytes need neither guard nor decoder.
struct LastHead {
    bytes: Box<[u8]>,
    head: Rc<Head>,
    extent: HeadExtent,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_given_away {
            self.ground.close_connection(self.key);
        }
    }
}

/// What came of waiting for the client's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// More bytes are unread.
    Bytes,
    /// The client has sent its last byte.
    End,
    /// The connection is broken.
    Broken,
    /// The deadline has passed.
    Late,
}

/// What came while a call was in flight.
#[derive(Debug)]
pub enum Event {
    Deliveries(SmallVec<[Delivery; 1]>),
    /// For an SSE answer.
    Events(Box<EventQueue>),
    /// Nothing, for as long as a keep-alive allows.
    Quiet,
    /// The client has sent its last byte.
    End,
    Broken,
}

/// Serves a connection to its end. `unread` was read on another shard.
pub async fn serve(ground: Rc<Ground>, key: ConnectionKey, stream: TcpStream, unread: Vec<u8>) {
    let (read, write) = stream.into_split();
    let connection = Connection {
        ground,
        key,
        service: None,
        inbound: Inbound::new(read, unread),
        last_head: None,
        outbound: Some(write),
        is_given_away: false,
    };
    if let Err(panic) = tasks::contained(connection.run()).await {
        tracing::error!(
            panic = tasks::text(&*panic),
            "a connection's task panicked; the connection is closed"
        );
    }
}

impl Connection {
    async fn run(mut self) {
        let mut served = 0usize;
        loop {
            let (head, extent) = match self.next_head().await {
                Ok(Some(found)) => found,
                Ok(None) => return,
                Err(refusal) => {
                    self.refuse(refusal).await;
                    return;
                }
            };
            self.ground.enter(self.key, Phase::Busy);
            // Boxed, so that an idle connection does not hold room for it.
            let after = Box::pin(exchange::exchange(&mut self, &head, extent)).await;
            self.ground.release_body(self.key);
            self.ground.release_answers(self.key);
            // On epoll reads and writes that need not wait do not, and a client
            // that sends without a pause would keep the loop to itself.
            served += 1;
            if self.ground.driver == Driver::Epoll && served.is_multiple_of(REQUESTS_PER_TURN) {
                give_way().await;
            }
            match after {
                After::Stream { open, manner } => {
                    self.carry_stream(open, manner).await;
                    return;
                }
                After::Next => {}
                After::Close => {
                    self.linger().await;
                    return;
                }
                After::Drop => return,
                After::HandOver(owner) => {
                    self.hand_over(owner).await;
                    return;
                }
            }
        }
    }

    fn deadline_in(&self, milliseconds: u64) {
        self.ground
            .set_deadline(self.key, clock::now().after(milliseconds));
    }

    /// The next request's head, `None` when there is none to come.
    async fn next_head(&mut self) -> Result<Option<(Rc<Head>, HeadExtent)>, Refusal> {
        let mut guard = HeadGuard::new();
        let mut has_begun = false;
        let is_idle = self.inbound.unread().is_empty();
        self.deadline_in(self.ground.config.idle_timeout_ms);
        if is_idle && !self.ground.enter(self.key, Phase::Idle) {
            return Ok(None);
        }
        loop {
            if let Some(found) = self.find_head(&mut guard)? {
                return Ok(Some(found));
            }
            if !has_begun && !self.inbound.unread().is_empty() {
                has_begun = true;
                self.ground.enter(self.key, Phase::Head);
                self.deadline_in(self.ground.config.header_timeout_ms);
            }
            match self.read(0).await {
                Came::Bytes => {}
                Came::End if has_begun => {
                    return Err(Refusal::bad("the request ended in the middle of its head"));
                }
                Came::Late if has_begun => {
                    return Err(Refusal::new(408, "the request head did not come in time"));
                }
                Came::End | Came::Late | Came::Broken => return Ok(None),
            }
        }
    }

    /// The head that stands first in the unread bytes, if it is complete.
    fn find_head(
        &mut self,
        guard: &mut HeadGuard,
    ) -> Result<Option<(Rc<Head>, HeadExtent)>, Refusal> {
        let unread = self.inbound.unread();
        if let Some(last) = &self.last_head
            && unread.starts_with(&last.bytes)
        {
            return Ok(Some((last.head.clone(), last.extent)));
        }
        let Some(extent) = guard.advance(unread)? else {
            return Ok(None);
        };
        let pass = self.ground.pass();
        let pass = pass.0.as_deref();
        let pass = pass.map(|pass| pass as &dyn Fn(&str, &[u8], &mut Vec<u8>));
        let head = Rc::new(head::read_passing(unread, extent, pass)?);
        self.last_head = Some(LastHead {
            bytes: unread[..extent.len].into(),
            head: head.clone(),
            extent,
        });
        Ok(Some((head, extent)))
    }

    /// Reads on, until bytes come, the end, or the deadline.
    pub async fn read(&mut self, expected: usize) -> Came {
        let Connection {
            ground,
            key,
            inbound,
            ..
        } = self;
        poll_fn(|cx| {
            match inbound.poll_read(cx, expected) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Came::End),
                Poll::Ready(Ok(n)) => {
                    ground.counters.received_bytes.add(n as u64);
                    return Poll::Ready(Came::Bytes);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Came::Broken),
                Poll::Pending => {}
            }
            match ground.poll_connection(*key, cx) {
                Some(Wake::Deadline) => Poll::Ready(Came::Late),
                Some(Wake::Evicted) => Poll::Ready(Came::Broken),
                Some(Wake::Deliveries(_) | Wake::Events(_)) | None => Poll::Pending,
            }
        })
        .await
    }

    /// Waits for what comes for the request in progress, with a read armed so
    /// that a vanished client is noticed.
    pub async fn event(&mut self) -> Event {
        let Connection {
            ground,
            key,
            inbound,
            ..
        } = self;
        let had_ended = inbound.has_ended();
        poll_fn(|cx| {
            match ground.poll_connection(*key, cx) {
                Some(Wake::Deliveries(deliveries)) => {
                    return Poll::Ready(Event::Deliveries(deliveries));
                }
                Some(Wake::Events(events)) => return Poll::Ready(Event::Events(events)),
                Some(Wake::Deadline) => return Poll::Ready(Event::Quiet),
                Some(Wake::Evicted) => return Poll::Ready(Event::Broken),
                None => {}
            }
            loop {
                match inbound.poll_watch(cx) {
                    Poll::Ready(Err(_)) => return Poll::Ready(Event::Broken),
                    Poll::Ready(Ok(0)) if !had_ended => return Poll::Ready(Event::End),
                    // Once ended no further read is started, so this ends.
                    Poll::Ready(Ok(n)) => ground.counters.received_bytes.add(n as u64),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// The request in progress waits for its call, whose own time-out counts; it
    /// only has to be kept alive.
    pub fn keep_alive_deadline(&self) {
        self.deadline_in(self.ground.config.keep_alive_ms);
    }

    /// Counts what the body takes so far against the shard's budget: the read
    /// buffer, and `decoded` bytes put together from chunks. False if there is
    /// no room.
    pub fn hold_body(&self, decoded: usize) -> bool {
        let bytes = self.inbound.capacity() + decoded;
        bytes <= READ_BYTES_MIN || self.ground.hold_body(self.key, bytes)
    }

    /// The time for a body begins.
    pub fn body_deadline(&self) {
        self.deadline_in(self.ground.config.body_timeout_ms);
    }

    /// Writes all of `bytes`. False if the connection is broken or the client
    /// does not take them in time; the connection must end then.
    pub async fn write(&mut self, bytes: Vec<u8>) -> bool {
        let Connection {
            ground,
            key,
            outbound,
            ..
        } = self;
        let Some(outbound) = outbound else {
            return false;
        };
        let time = ground.config.write_timeout_ms;
        let begin_step = || ground.set_deadline(*key, clock::now().after(time));
        let gives_up = |cx: &Context<'_>| ground.poll_deadline(*key, cx);
        let sent = &ground.counters.sent_bytes;
        outbound::write_all(outbound, bytes, sent, begin_step, gives_up).await
    }

    /// Answers a request whose head cannot be used, and ends.
    async fn refuse(&mut self, refusal: Refusal) {
        self.ground.counters.statuses.count(refusal.status);
        let body = reply::error(None, reply::INVALID_REQUEST, refusal.reason);
        let date = self.ground.date();
        let fields = match refusal.status {
            405 => exchange::allowed(self.ground.config.get_streams),
            _ => b"",
        };
        let response = response::complete(&Manner::unread(), &date, refusal.status, fields, &body);
        if self.write(response).await {
            self.linger().await;
        }
    }

    /// Closes our side and reads on for a moment, so that what the client still
    /// sends does not make the kernel throw our answer away.
    async fn linger(&mut self) {
        let Some(outbound) = &mut self.outbound else {
            return;
        };
        if outbound.shutdown().await.is_err() {
            return;
        }
        self.deadline_in(LINGER_MS);
        let mut left = LINGER_BYTES_MAX;
        loop {
            let n = self.inbound.unread().len();
            self.inbound.consume(n);
            left = left.saturating_sub(n);
            if left == 0 || self.read(0).await != Came::Bytes {
                return;
            }
        }
    }

    /// Gives the connection to a task of its own that carries the GET stream of a
    /// session: this task, with all that requests need, ends.
    async fn carry_stream(mut self, open: OpenStream, mut manner: Manner) {
        let (Some((read, _ignored)), Some(write)) =
            (self.inbound.take().await, self.outbound.take())
        else {
            return;
        };
        self.is_given_away = true;
        // What is on this connection after a stream would wait for its end.
        manner.close();
        let mut head = Vec::new();
        response::sse_head(&mut head, &manner, &self.ground.date(), b"");
        self.ground.counters.statuses.count(200);
        let stream = Stream::new(open, read, write, manner.http11);
        tasks::spawn("stream", stream.run(head));
    }

    /// Gives the connection, with what is unread, to the shard that owns the
    /// session that it speaks for.
    async fn hand_over(mut self, owner: usize) {
        let (Some((read, unread)), Some(write)) = (self.inbound.take().await, self.outbound.take())
        else {
            return;
        };
        let Ok(stream) = write.reunite(read) else {
            return;
        };
        let handover = Handover {
            socket: listener::into_descriptor(stream),
            unread,
        };
        if let Err(handover) = self.ground.hand_over(owner, handover) {
            tracing::warn!(owner, "a shard takes no more connections, one is closed");
            listener::refuse_handover(&self.ground, handover);
        }
    }
}
