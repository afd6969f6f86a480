//! What a thread has of the HTTP upstream: its connections, its places, its deadlines, its
//! counters; and what all threads share.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use super::address::Address;
use super::connect::Link;
use super::exchange::{self, Abort, End, EndKind, Fault, Listener, Registered, Request, Stop};
use super::pool::{Places, Pool};
use super::resolve::Resolver;
use super::tls::{TlsError, TlsSettings};
use crate::limits::TICK_MS;
use crate::routing::time::Millis;
use crate::runtime::clock;
use crate::runtime::counters::Counter;
use crate::runtime::tasks;

/// What all threads share about the upstream.
#[derive(Debug)]
pub struct Upstream {
    pub(super) address: Address,
    pub(super) tls: Option<TlsSettings>,
    pub(super) resolver: Resolver,
    pub(super) settings: Settings,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Of one thread, each of calls and of streams (GET), and an eighth of it besides for what is
    /// neither; further exchanges wait in turn.
    pub connections_max: usize,
    /// For all addresses together, with the look-up and the TLS handshake.
    pub connect_timeout_ms: u64,
    /// A kept connection is closed after this.
    pub idle_ms: u64,
    /// Of one message, bytes.
    pub message_bytes_max: usize,
    /// Of all answers of one thread that have not come whole, bytes; what each has of the
    /// first 64 KiB does not count.
    pub partial_bytes_max: usize,
}

/// Why there can be no upstream.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the thread that looks names up cannot be started: {0}")]
    Resolver(std::io::Error),
}

impl Upstream {
    /// `ca`: a file of root certificates to be used instead of the system's. Starts to look
    /// the name up.
    pub fn new(
        address: Address,
        ca: Option<&Path>,
        settings: Settings,
    ) -> Result<Upstream, UpstreamError> {
        let tls = match address.is_tls() {
            true => Some(TlsSettings::new(address.host(), ca)?),
            false => None,
        };
        let resolver = Resolver::new(&address).map_err(UpstreamError::Resolver)?;
        Ok(Upstream {
            address,
            tls,
            resolver,
            settings,
        })
    }

    /// Connections for calls that one thread may have.
    pub fn connections_max(&self) -> usize {
        self.settings.connections_max
    }

    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// What one thread's client counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct HttpCounters {
    /// Connections that were made, and what was not to be had at any address.
    pub connects: Counter,
    pub connect_failures: Counter,
    /// Exchanges that began on a connection that was there.
    pub reused: Counter,
    /// Those of them that began again on a fresh one.
    pub retries: Counter,
    pub received_bytes: Counter,
    pub sent_bytes: Counter,
    /// Gauges: open connections, those of them that nobody uses, exchanges that wait for a
    /// place.
    pub connections: Counter,
    pub idle: Counter,
    pub waiting: Counter,
    ends: [Counter; EndKind::ALL.len()],
    faults: [Counter; Fault::ALL.len()],
}

const _: () =
    assert!(align_of::<HttpCounters>() >= 128 && size_of::<HttpCounters>().is_multiple_of(128));

impl HttpCounters {
    /// Exchanges by how they ended, in the order of [`EndKind::ALL`].
    pub fn ends(&self) -> [u64; EndKind::ALL.len()] {
        std::array::from_fn(|kind| self.ends[kind].get())
    }

    /// Broken ones by what broke them, in the order of [`Fault::ALL`].
    pub fn faults(&self) -> [u64; Fault::ALL.len()] {
        std::array::from_fn(|fault| self.faults[fault].get())
    }
}

/// One thread's client.
pub struct Client {
    pub(super) upstream: Arc<Upstream>,
    pub(super) counters: Arc<HttpCounters>,
    pub(super) pool: Pool,
    pub(super) calls: Rc<Places>,
    /// Of what is neither a call nor a stream.
    pub(super) others: Rc<Places>,
    pub(super) streams: Rc<Places>,
    watched: RefCell<Slab<Watched>>,
    /// What answers hold that have not come whole.
    pub(super) partial_bytes: Cell<usize>,
    is_ticking: Cell<bool>,
    /// The last exchange got no whole answer.
    is_failing: Cell<bool>,
}

/// An exchange as the ticker sees it.
struct Watched {
    deadline: Millis,
    is_late: bool,
    waker: Option<Waker>,
}

impl Client {
    pub fn new(upstream: Arc<Upstream>, counters: Arc<HttpCounters>) -> Rc<Client> {
        let connections_max = upstream.settings.connections_max.max(1);
        Rc::new(Client {
            pool: Pool::new(connections_max, counters.clone()),
            calls: Places::new(connections_max, counters.clone()),
            others: Places::new(connections_max / 8 + 8, counters.clone()),
            streams: Places::new(connections_max, counters.clone()),
            upstream,
            counters,
            watched: RefCell::default(),
            partial_bytes: Cell::new(0),
            is_ticking: Cell::new(false),
            is_failing: Cell::new(false),
        })
    }

    /// One request and its whole response. Never panics, whatever comes; ends at once when
    /// `abort` is set, and then the connection is closed. What it holds is released by
    /// ownership, also when the future is dropped at any await.
    pub async fn exchange(
        self: &Rc<Self>,
        request: Request,
        abort: &Abort,
        listener: &mut dyn Listener,
    ) -> End {
        let mut counting = Counting {
            counters: &self.counters,
            kind: EndKind::Dropped,
        };
        let end = exchange::run(self, &request, abort, listener).await;
        counting.kind = end.kind();
        self.tell(&end);
        if let End::Broken(fault) = end {
            self.counters.faults[fault as usize].add(1);
        }
        end
    }

    /// The log hears when the server cannot be used any more, and when it can again.
    fn tell(&self, end: &End) {
        match end {
            End::Broken(fault @ (Fault::Busy | Fault::Full | Fault::TooLarge)) => {
                tracing::debug!(%fault, "an exchange with the server over HTTP was given up");
            }
            End::Broken(fault) if !self.is_failing.replace(true) => {
                let address = &self.upstream.address;
                tracing::warn!(%address, %fault, "the server over HTTP fails; more of it is not logged until it works again");
            }
            End::Done | End::NoSession | End::Refused { .. } if self.is_failing.replace(false) => {
                tracing::info!(address = %self.upstream.address, "the server over HTTP answers again");
            }
            _ => {}
        }
    }

    /// Closes the connections that nobody uses.
    pub fn close_idle(&self) {
        self.pool.clear();
    }

    pub fn counters(&self) -> &Arc<HttpCounters> {
        &self.counters
    }

    /// Keeps a connection for the next exchange.
    pub(super) fn keep(self: &Rc<Self>, link: Link) {
        self.pool.put(link, clock::now());
        self.tick_from_now();
    }

    /// Makes sure that the ticker runs. There is none while nothing has a deadline.
    fn tick_from_now(self: &Rc<Self>) {
        if !self.is_ticking.replace(true) {
            let ticking = Ticking(Rc::downgrade(self));
            tasks::spawn("http-ticker", ticking.run());
        }
    }

    /// One tick: tells who is late, closes what was kept too long. False when nothing is left
    /// to wait for.
    fn tick(&self, now: Millis) -> bool {
        let mut any_left = self.pool.expire(now, self.upstream.settings.idle_ms);
        for (_, watched) in self.watched.borrow_mut().iter_mut() {
            if watched.deadline <= now {
                watched.deadline = Millis::NEVER;
                watched.is_late = true;
                if let Some(waker) = watched.waker.take() {
                    waker.wake();
                }
            }
            any_left |= watched.deadline != Millis::NEVER;
        }
        any_left
    }

    #[cfg(test)]
    pub(super) fn is_ticking(&self) -> bool {
        self.is_ticking.get()
    }

    /// Exchanges that are under way.
    #[cfg(test)]
    pub(super) fn exchanges(&self) -> usize {
        self.watched.borrow().len()
    }
}

/// Counts an exchange when it is over, also when its future is dropped.
struct Counting<'a> {
    counters: &'a HttpCounters,
    kind: EndKind,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.counters.ends[self.kind as usize].add(1);
    }
}

/// The ticker of a client that may be gone.
struct Ticking(Weak<Client>);

impl Ticking {
    async fn run(self) {
        loop {
            monoio::time::sleep(Duration::from_millis(TICK_MS)).await;
            let Some(client) = self.0.upgrade() else {
                return;
            };
            if !client.tick(clock::now()) {
                return;
            }
        }
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        if let Some(client) = self.0.upgrade() {
            client.is_ticking.set(false);
        }
    }
}

/// Why an exchange does not go on waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wake {
    Aborted,
    /// Its deadline has passed.
    Late,
}

impl Wake {
    /// `fault` is what being late means.
    pub(super) fn or(self, fault: Fault) -> Stop {
        match self {
            Wake::Aborted => Stop::Aborted,
            Wake::Late => Stop::Fault(fault),
        }
    }
}

/// What ends the waits of one exchange: its deadline, and its abort.
pub(super) struct Watch<'a> {
    client: &'a Rc<Client>,
    key: usize,
    abort: Registered<'a>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(client: &'a Rc<Client>, abort: &'a Abort) -> Watch<'a> {
        let key = client.watched.borrow_mut().insert(Watched {
            deadline: Millis::NEVER,
            is_late: false,
            waker: None,
        });
        Watch {
            client,
            key,
            abort: abort.register(),
        }
    }

    pub(super) fn deadline_at(&self, deadline: Millis) {
        if let Some(watched) = self.client.watched.borrow_mut().get_mut(self.key) {
            watched.deadline = deadline;
            watched.is_late = false;
        }
        if deadline != Millis::NEVER {
            self.client.tick_from_now();
        }
    }

    /// 0: none.
    pub(super) fn deadline_in(&self, milliseconds: u64) {
        self.deadline_at(match milliseconds {
            0 => Millis::NEVER,
            milliseconds => clock::now().after(milliseconds),
        });
    }

    pub(super) fn no_deadline(&self) {
        self.deadline_at(Millis::NEVER);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.abort.is_set()
    }

    pub(super) fn poll_aborted(&self, cx: &Context<'_>) -> bool {
        self.abort.poll(cx)
    }

    pub(super) fn poll_late(&self, cx: &Context<'_>) -> bool {
        let mut watched = self.client.watched.borrow_mut();
        let Some(watched) = watched.get_mut(self.key) else {
            return true;
        };
        if watched.deadline != Millis::NEVER {
            match &mut watched.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                empty => *empty = Some(cx.waker().clone()),
            }
        }
        watched.is_late
    }

    /// Waits for `future`, unless it is time to stop before.
    pub(super) async fn race<F: Future>(&self, future: F) -> Result<F::Output, Wake> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.poll_aborted(cx) {
                return Poll::Ready(Err(Wake::Aborted));
            }
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            match self.poll_late(cx) {
                true => Poll::Ready(Err(Wake::Late)),
                false => Poll::Pending,
            }
        })
        .await
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.client.watched.borrow_mut().remove(self.key);
    }
}
