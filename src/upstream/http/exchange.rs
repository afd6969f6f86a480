//! One request and its response: written and read at the same time, with one retry where that
//! is safe, until it is done, broken or aborted.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use super::client::{Client, Wake, Watch};
use super::connect::{Came, Link, connect};
use super::events::{EventReader, Item};
use super::response::{BodyReader, Content, Framing, Head, HeadReader, OddSession};
use crate::limits::MESSAGES_PER_TURN;
use crate::routing::ending;
pub use crate::routing::private::Verb;
use crate::routing::time::Millis;
use crate::runtime::clock;
use crate::runtime::fair::give_way;
use crate::wire::reply::METHOD_NOT_FOUND;

/// Bytes of a refusal that are kept.
pub const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// How long the body of a refusal is waited for, milliseconds: its status says most.
const REFUSAL_MS: u64 = 2_000;

/// How long an exchange waits for a place among the connections, milliseconds.
const PLACE_MS: u64 = 10_000;

/// Bytes of an answer that is not whole that count for nothing.
const SMALL_BYTES: usize = 64 << 10;

/// How long the rest of a response is waited for that has said all, milliseconds.
const REST_MS: u64 = 1_000;

/// Bytes of events that are read before anything else is looked at: a thousand of the shortest
/// ones.
const PIECE_BYTES: usize = 8_000;

/// Reads that need not wait, on epoll, before the other tasks run.
const READS_PER_TURN: u32 = 16;

/// How often a listener without room is asked again.
const ROOM_POLL: Duration = Duration::from_millis(10);

/// What is to be sent.
#[derive(Clone)]
pub struct Request {
    pub method: Verb,
    /// `Mcp-Session-Id`
    pub session: Option<Rc<[u8]>>,
    /// `MCP-Protocol-Version`
    pub version: Option<&'static str>,
    /// Further header lines, whole: `name: value`, CR LF.
    pub fields: Rc<[u8]>,
    pub last_event_id: Option<Box<[u8]>>,
    /// Of a POST. It is given back when the response's head has come.
    pub body: Body,
    /// It is a client's call. All else has places of its own, so that calls that take long
    /// hold up no cancel and no new session.
    pub is_call: bool,
    /// The same request may safely arrive twice (a list, a read, a GET, a DELETE).
    pub may_repeat: bool,
    /// From the request's last byte to the response's head, and for each step of the request
    /// itself. 0: none.
    pub first_byte_ms: u64,
    /// Of a stream (GET) between two reads of the body, of others for all of the body. 0: none.
    pub silence_ms: u64,
}

/// The body of a request, for as long as it may have to be sent again.
#[derive(Clone, Default)]
pub struct Body(RefCell<Rc<[u8]>>);

impl Body {
    pub(super) fn get(&self) -> Rc<[u8]> {
        self.0.borrow().clone()
    }

    fn give_back(&self) {
        self.0.take();
    }
}

impl From<Rc<[u8]>> for Body {
    fn from(bytes: Rc<[u8]>) -> Body {
        Body(RefCell::new(bytes))
    }
}

impl From<&[u8]> for Body {
    fn from(bytes: &[u8]) -> Body {
        Body(RefCell::new(bytes.into()))
    }
}

/// Without values that a client or a server gave.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("has_session", &self.session.is_some())
            .field("version", &self.version)
            .field("body_bytes", &self.body.get().len())
            .field("may_repeat", &self.may_repeat)
            .finish_non_exhaustive()
    }
}

/// Who hears the response.
pub trait Listener {
    /// A head with a 2xx status: the session id that it names, if it is one that may be sent
    /// back; whether it is a stream.
    fn head(&mut self, session: Option<Result<&[u8], OddSession>>, is_stream: bool);
    /// One JSON-RPC message (or whatever came in its place): a JSON body, or the data of an
    /// SSE event.
    fn message(&mut self, text: &[u8]);
    /// The id of an event, said before its message.
    fn event_id(&mut self, id: &[u8]);
    /// A `retry:` in milliseconds.
    fn retry(&mut self, ms: u64);
    /// False: reading waits, and this is asked again every 10 ms.
    fn has_room(&self) -> bool;
    /// What was waited for has come: the rest is read only for the connection's sake, and
    /// not waited for long.
    fn is_over(&self) -> bool {
        false
    }
    /// What came was what was asked for. If not, the server and this side may not agree on
    /// which answer is whose, and the connection is not used again.
    fn is_sound(&self) -> bool {
        true
    }
}

/// How an exchange ended.
#[derive(PartialEq, Eq, Debug)]
pub enum End {
    /// A 2xx, read to its end.
    Done,
    /// 404 to a request that named a session.
    NoSession,
    /// Another status; what of its body was there, up to 64 KiB.
    Refused {
        status: u16,
        body: Vec<u8>,
    },
    /// Not answered, or not to the end.
    Broken(Fault),
    Aborted,
}

impl End {
    pub fn kind(&self) -> EndKind {
        match self {
            End::Done => EndKind::Done,
            End::NoSession => EndKind::NoSession,
            End::Refused { .. } => EndKind::Refused,
            End::Broken(_) => EndKind::Broken,
            End::Aborted => EndKind::Aborted,
        }
    }
}

impl From<End> for ending::End {
    fn from(end: End) -> ending::End {
        match end {
            End::Done => ending::End::Done,
            End::NoSession => ending::End::NoSession,
            End::Refused { status, body } => ending::End::Refused { status, body },
            End::Broken(Fault::TooLarge) => ending::End::TooLarge,
            End::Broken(Fault::Busy | Fault::Full) => ending::End::Overloaded,
            End::Broken(Fault::FirstByteTimeout | Fault::Silence) => ending::End::Late,
            End::Broken(fault) => ending::End::Broken(fault.sentence()),
            // Nobody waits for it any more.
            End::Aborted => ending::End::Done,
        }
    }
}

/// [`End`] for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndKind {
    Done,
    NoSession,
    Refused,
    Broken,
    Aborted,
    /// The future of the exchange was dropped.
    Dropped,
}

impl EndKind {
    pub const ALL: [EndKind; 6] = [
        EndKind::Done,
        EndKind::NoSession,
        EndKind::Refused,
        EndKind::Broken,
        EndKind::Aborted,
        EndKind::Dropped,
    ];

    /// Its value as a label.
    pub fn label(self) -> &'static str {
        match self {
            EndKind::Done => "done",
            EndKind::NoSession => "no_session",
            EndKind::Refused => "refused",
            EndKind::Broken => "broken",
            EndKind::Aborted => "aborted",
            EndKind::Dropped => "dropped",
        }
    }
}

/// Why an exchange was broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    #[error("the name of the MCP server cannot be resolved")]
    Resolve,
    #[error("the MCP server cannot be connected to")]
    Connect,
    #[error("the MCP server did not accept a connection in time")]
    ConnectTimeout,
    #[error("TLS with the MCP server failed")]
    Tls,
    #[error("the MCP server closed the connection without an answer")]
    Closed,
    #[error("the MCP server closed the connection in the middle of its answer")]
    Cut,
    #[error("the MCP server's answer is not well-formed")]
    Malformed,
    #[error("the MCP server's answer is too large")]
    TooLarge,
    #[error("the MCP server did not answer in time")]
    FirstByteTimeout,
    #[error("the MCP server was silent for too long in the middle of its answer")]
    Silence,
    #[error("no connection to the MCP server became free in time")]
    Busy,
    #[error("there are too many bytes of answers that are not whole")]
    Full,
}

impl Fault {
    pub const ALL: [Fault; 12] = [
        Fault::Resolve,
        Fault::Connect,
        Fault::ConnectTimeout,
        Fault::Tls,
        Fault::Closed,
        Fault::Cut,
        Fault::Malformed,
        Fault::TooLarge,
        Fault::FirstByteTimeout,
        Fault::Silence,
        Fault::Busy,
        Fault::Full,
    ];

    /// For the client whose call it was.
    pub fn sentence(self) -> &'static str {
        match self {
            Fault::Resolve => "The name of the upstream server cannot be resolved",
            Fault::Connect => "The upstream server cannot be connected to",
            Fault::ConnectTimeout => "The upstream server did not accept a connection in time",
            Fault::Tls => "TLS with the upstream server failed",
            Fault::Closed => "The upstream server closed the connection without an answer",
            Fault::Cut => "The upstream server closed the connection in the middle of its answer",
            Fault::Malformed => "The answer of the upstream server is not well-formed",
            Fault::TooLarge => {
                "The answer of the upstream server is over the limit (--max-message)"
            }
            Fault::FirstByteTimeout => "The upstream server did not answer in time",
            Fault::Silence => {
                "The upstream server was silent for too long in the middle of its answer"
            }
            Fault::Busy => "No connection to the upstream server became free in time",
            Fault::Full => "The gateway holds too many answers that are not whole",
        }
    }

    /// Its value as a label.
    pub fn label(self) -> &'static str {
        match self {
            Fault::Resolve => "resolve",
            Fault::Connect => "connect",
            Fault::ConnectTimeout => "connect_timeout",
            Fault::Tls => "tls",
            Fault::Closed => "closed",
            Fault::Cut => "cut",
            Fault::Malformed => "malformed",
            Fault::TooLarge => "too_large",
            Fault::FirstByteTimeout => "first_byte_timeout",
            Fault::Silence => "silence",
            Fault::Busy => "busy",
            Fault::Full => "full",
        }
    }
}

/// Set by whoever no longer wants an exchange. Clones are the same abort; it may serve several
/// exchanges of its thread.
#[derive(Clone, Default)]
pub struct Abort(Rc<AbortState>);

#[derive(Default)]
struct AbortState {
    is_set: Cell<bool>,
    waiting: RefCell<Slab<Option<Waker>>>,
}

impl Abort {
    pub fn new() -> Abort {
        Abort::default()
    }

    /// For good.
    pub fn set(&self) {
        self.0.is_set.set(true);
        for (_, waker) in self.0.waiting.borrow_mut().iter_mut() {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    pub fn is_set(&self) -> bool {
        self.0.is_set.get()
    }

    /// Waits until it is set.
    pub async fn wait(&self) {
        let registered = self.register();
        poll_fn(|cx| match registered.poll(cx) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    pub(super) fn register(&self) -> Registered<'_> {
        let key = self.0.waiting.borrow_mut().insert(None);
        Registered { abort: self, key }
    }
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Abort").field(&self.is_set()).finish()
    }
}

/// One that is woken by an abort.
pub(super) struct Registered<'a> {
    abort: &'a Abort,
    key: usize,
}

impl Registered<'_> {
    pub(super) fn is_set(&self) -> bool {
        self.abort.is_set()
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> bool {
        if self.is_set() {
            return true;
        }
        match self.abort.0.waiting.borrow_mut().get_mut(self.key) {
            Some(Some(waker)) => waker.clone_from(cx.waker()),
            Some(empty) => *empty = Some(cx.waker().clone()),
            None => {}
        }
        false
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.abort.0.waiting.borrow_mut().remove(self.key);
    }
}

/// Why there is no response to go on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    Aborted,
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// Why an attempt has failed.
enum Failed {
    Stop(Stop),
    /// The connection had ended before, and the request cannot have been carried out, or may
    /// be twice.
    Stale,
}

impl<T: Into<Stop>> From<T> for Failed {
    fn from(stop: T) -> Failed {
        Failed::Stop(stop.into())
    }
}

pub(super) async fn run(
    client: &Rc<Client>,
    request: &Request,
    abort: &Abort,
    listener: &mut dyn Listener,
) -> End {
    match in_turn(client, request, abort, listener).await {
        Ok(end) => end,
        Err(Stop::Aborted) => End::Aborted,
        Err(Stop::Fault(fault)) => End::Broken(fault),
    }
}

async fn in_turn(
    client: &Rc<Client>,
    request: &Request,
    abort: &Abort,
    listener: &mut dyn Listener,
) -> Result<End, Stop> {
    if abort.is_set() {
        return Err(Stop::Aborted);
    }
    if !request.is_sound() {
        return Err(Stop::Fault(Fault::Malformed));
    }
    let watch = Watch::new(client, abort);
    let places = match request.method {
        Verb::Get => &client.streams,
        Verb::Post if request.is_call => &client.calls,
        Verb::Post | Verb::Delete => &client.others,
    };
    let _place = match places.ask() {
        Ok(place) => place,
        Err(mut ticket) => {
            watch.deadline_in(PLACE_MS);
            let place = watch.race(poll_fn(|cx| ticket.poll(cx))).await;
            watch.no_deadline();
            place.map_err(|wake| wake.or(Fault::Busy))?
        }
    };
    client.upstream.resolver.used();
    let mut kept = client.pool.take();
    loop {
        let is_pooled = kept.is_some();
        let link = match kept.take() {
            Some(link) => link,
            // Boxed, so that a stream does not hold room for it.
            None => Box::pin(connect(&client.upstream, &client.counters, &watch)).await?,
        };
        let attempt = Attempt::new(client, &watch, request, link, is_pooled);
        match attempt.run(listener).await {
            Ok(end) => return Ok(end),
            Err(Failed::Stop(stop)) => return Err(stop),
            // Once: the next one is fresh.
            Err(Failed::Stale) => client.counters.retries.add(1),
        }
    }
}

impl Request {
    /// Nothing in it can end its line. Ids are checked where they come from; this is the wall
    /// behind that.
    fn is_sound(&self) -> bool {
        let session = self.session.as_deref().unwrap_or_default();
        session.iter().all(u8::is_ascii_graphic)
            && (self.fields.is_empty() || self.fields.ends_with(b"\r\n"))
    }

    /// The head, with room for a small body behind it.
    fn head(&self, client: &Client) -> Vec<u8> {
        let address = &client.upstream.address;
        let mut head =
            Vec::with_capacity(512 + self.fields.len() + self.body.get().len().min(64 << 10));
        let mut put = |parts: &[&[u8]]| {
            for part in parts {
                head.extend_from_slice(part);
            }
        };
        let (method, accept): (&[u8], &[u8]) = match self.method {
            Verb::Post => (b"POST ", b"application/json, text/event-stream"),
            Verb::Get => (b"GET ", b"text/event-stream"),
            Verb::Delete => (b"DELETE ", b"application/json, text/event-stream"),
        };
        put(&[method, address.target().as_bytes(), b" HTTP/1.1\r\nhost: "]);
        put(&[address.host_field().as_bytes(), b"\r\naccept: ", accept]);
        if self.method == Verb::Post {
            let mut number = itoa::Buffer::new();
            let length = number.format(self.body.get().len()).as_bytes();
            put(&[
                b"\r\ncontent-type: application/json\r\ncontent-length: ",
                length,
            ]);
        }
        if let Some(session) = &self.session {
            put(&[b"\r\nmcp-session-id: ", session]);
        }
        if let Some(version) = self.version {
            put(&[b"\r\nmcp-protocol-version: ", version.as_bytes()]);
        }
        // An id may be any text; one that no header can hold is not sent.
        if let Some(id) = &self.last_event_id
            && !id.is_empty()
            && !id.iter().any(u8::is_ascii_control)
        {
            put(&[b"\r\nlast-event-id: ", id]);
        }
        put(&[b"\r\n", &self.fields]);
        if !has_user_agent(&self.fields) {
            put(&[concat!("user-agent: ringway/", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes()]);
        }
        put(&[b"\r\n"]);
        head
    }
}

fn has_user_agent(fields: &[u8]) -> bool {
    const NAME: &[u8] = b"user-agent:";
    fields.split(|&byte| byte == b'\n').any(|line| {
        line.get(..NAME.len())
            .is_some_and(|name| name.eq_ignore_ascii_case(NAME))
    })
}

/// A request on one connection.
struct Attempt<'a> {
    client: &'a Rc<Client>,
    watch: &'a Watch<'a>,
    request: &'a Request,
    link: Link,
    /// The connection was there before.
    is_pooled: bool,
    sending: Sending,
    is_before_head: bool,
    /// How long the rest of the response is waited for that has said all.
    rest_ends: Option<Millis>,
    reads: u32,
    /// When all of the body has to be there.
    body_ends: Option<Millis>,
    held: Held<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    UnderWay,
    /// The kernel has taken all of the request.
    Done,
    /// It has not, and will not.
    Failed,
}

/// A body that has come whole.
enum Whole {
    /// So many of the unread bytes are it.
    InPlace(usize),
    Collected(Vec<u8>),
}

/// What an answer has counted of its client's `partial_bytes`; given back when it goes.
struct Held<'a> {
    partial: &'a Cell<usize>,
    bytes: usize,
}

impl Held<'_> {
    /// False: all together would hold more than `bytes_max`.
    fn set(&mut self, bytes: usize, bytes_max: usize) -> bool {
        let others = self.partial.get() - self.bytes;
        if bytes > self.bytes && others + bytes > bytes_max {
            return false;
        }
        self.partial.set(others + bytes);
        self.bytes = bytes;
        true
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.partial.set(self.partial.get() - self.bytes);
    }
}

impl<'a> Attempt<'a> {
    fn new(
        client: &'a Rc<Client>,
        watch: &'a Watch<'a>,
        request: &'a Request,
        mut link: Link,
        is_pooled: bool,
    ) -> Attempt<'a> {
        if request.method == Verb::Get {
            link.expect_quiet();
        }
        Attempt {
            client,
            watch,
            request,
            link,
            is_pooled,
            sending: Sending::UnderWay,
            is_before_head: true,
            rest_ends: None,
            reads: 0,
            body_ends: None,
            held: Held {
                partial: &client.partial_bytes,
                bytes: 0,
            },
        }
    }

    async fn run(mut self, listener: &mut dyn Listener) -> Result<End, Failed> {
        let head = self.head().await?;
        let names_session = self.request.session.is_some();
        let end = match head.status {
            200..=299 => self.success(&head, listener).await?,
            404 if self.request.session.is_some() => {
                let (body, whole) = self.refusal(head.body).await?;
                self.finish(&head, whole);
                // Some servers say it of a method that they do not have.
                return Ok(
                    match ending::code_of(&body) == Some(i64::from(METHOD_NOT_FOUND)) {
                        true => End::Refused { status: 404, body },
                        false => End::NoSession,
                    },
                );
            }
            status => {
                let (body, whole) = self.refusal(head.body).await?;
                self.finish(&head, whole);
                // Servers made after the TypeScript SDK's example say it this way.
                let is_unknown = status == 400 && names_session && ending::is_no_session(&body);
                return Ok(match is_unknown {
                    true => End::NoSession,
                    false => End::Refused { status, body },
                });
            }
        };
        let is_sound = listener.is_sound();
        self.finish(&head, is_sound);
        Ok(end)
    }

    /// Keeps the connection if it can carry another request, else closes it.
    fn finish(self, head: &Head, is_whole: bool) {
        if is_whole && head.keeps_alive && self.sending == Sending::Done && self.link.is_reusable()
        {
            self.watch.no_deadline();
            self.client.keep(self.link);
        }
    }

    /// Writes the request, and reads up to the end of the head.
    async fn head(&mut self) -> Result<Head, Failed> {
        let head = self.request.head(self.client);
        let body = match self.request.method {
            Verb::Post => self.request.body.get(),
            Verb::Get | Verb::Delete => Rc::default(),
        };
        self.link.send(head, &body);
        drop(body);
        self.watch.deadline_in(self.request.first_byte_ms);
        let mut reader = HeadReader::new();
        loop {
            let came = self.more(0).await;
            match came.map_err(|wake| wake.or(Fault::FirstByteTimeout))? {
                Came::Bytes => {}
                Came::End { .. } => return Err(self.ended_without_head().await),
            }
            let read = reader.read(self.link.unread()).map_err(malformed)?;
            if let Some((head, used)) = read {
                self.link.consume(used);
                self.is_before_head = false;
                self.request.body.give_back();
                return Ok(head);
            }
        }
    }

    /// The connection has ended before the response's head was there.
    async fn ended_without_head(&mut self) -> Failed {
        if !self.is_pooled || !self.link.unread().is_empty() {
            return Fault::Closed.into();
        }
        if self.sending == Sending::UnderWay && self.link.is_writing() {
            // What the kernel has not taken yet it may still take: that must be known.
            self.link.shut_down();
            let link = &mut self.link;
            let sent = self.watch.race(poll_fn(|cx| link.poll_write(cx))).await;
            match sent {
                Ok(Ok(())) => self.sending = Sending::Done,
                Ok(Err(_)) => self.sending = Sending::Failed,
                Err(wake) => return wake.or(Fault::Closed).into(),
            }
        }
        match self.request.may_repeat || self.sending != Sending::Done {
            true => Failed::Stale,
            false => Fault::Closed.into(),
        }
    }

    /// Reads more, and writes what is left of the request meanwhile: a server may answer, or
    /// refuse, before it has read all.
    async fn more(&mut self, expected: usize) -> Result<Came, Wake> {
        self.reads += 1;
        if self.reads.is_multiple_of(READS_PER_TURN) {
            give_way().await;
        }
        poll_fn(|cx| {
            if self.watch.poll_aborted(cx) {
                return Poll::Ready(Err(Wake::Aborted));
            }
            self.write_on(cx);
            match self.link.poll_read(cx, expected) {
                Poll::Ready(Ok(came)) => return Poll::Ready(Ok(came)),
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, "a connection to the HTTP server broke");
                    return Poll::Ready(Ok(Came::End { in_order: false }));
                }
                Poll::Pending => {}
            }
            match self.watch.poll_late(cx) {
                true => Poll::Ready(Err(Wake::Late)),
                false => Poll::Pending,
            }
        })
        .await
    }

    fn write_on(&mut self, cx: &mut Context<'_>) {
        if self.sending != Sending::UnderWay {
            return;
        }
        let before = self.link.sent();
        match self.link.poll_write(cx) {
            Poll::Ready(Ok(())) => self.sending = Sending::Done,
            // The answer may be there all the same, and says more than this.
            Poll::Ready(Err(_)) => self.sending = Sending::Failed,
            Poll::Pending if self.link.sent() == before => return,
            Poll::Pending => {}
        }
        if self.is_before_head {
            self.watch.deadline_in(self.request.first_byte_ms);
        }
    }

    /// Counts what this answer holds. An answer that would hold much more than all are
    /// allowed to is given up: it is the one that grows.
    fn hold(&mut self, bytes: usize) -> Result<(), Stop> {
        let bytes_max = self.client.upstream.settings.partial_bytes_max;
        match self.held.set(bytes.saturating_sub(SMALL_BYTES), bytes_max) {
            true => Ok(()),
            false => Err(Stop::Fault(Fault::Full)),
        }
    }

    /// The next bytes of the body, once the listener has room.
    /// `held` bytes of the answer have come and cannot be given on yet.
    async fn more_body(
        &mut self,
        expected: usize,
        held: usize,
        listener: &dyn Listener,
    ) -> Result<Came, Stop> {
        self.room(listener).await?;
        let is_over = listener.is_over();
        match is_over {
            // All of the rest together: a server may keep a stream open with comments.
            true => {
                let end = self
                    .rest_ends
                    .get_or_insert_with(|| clock::now().after(REST_MS));
                self.watch.deadline_at(*end);
            }
            false if self.request.method == Verb::Get || self.request.silence_ms == 0 => {
                self.watch.deadline_in(self.request.silence_ms);
            }
            false => {
                let time = self.request.silence_ms;
                let end = self
                    .body_ends
                    .get_or_insert_with(|| clock::now().after(time));
                self.watch.deadline_at(*end);
            }
        }
        self.hold(held)?;
        match self.more(expected).await {
            Err(Wake::Late) if is_over => Err(Stop::Aborted),
            came => came.map_err(|wake| wake.or(Fault::Silence)),
        }
    }

    /// Waits while the listener has no room; the server's silence does not count then.
    async fn room(&self, listener: &dyn Listener) -> Result<(), Stop> {
        while !listener.has_room() {
            self.watch.no_deadline();
            let slept = self.watch.race(monoio::time::sleep(ROOM_POLL)).await;
            slept.map_err(|_| Stop::Aborted)?;
        }
        Ok(())
    }

    /// A 2xx.
    async fn success(&mut self, head: &Head, listener: &mut dyn Listener) -> Result<End, Stop> {
        let session = head.session.as_ref();
        let session = session.map(|id| id.as_deref().map_err(|&odd| odd));
        let is_stream = head.content == Content::Events && head.body != Framing::None;
        listener.head(session, is_stream);
        if is_stream {
            self.events(head.body, listener).await?;
            return Ok(End::Done);
        }
        let whole = self.whole(head.body, listener).await?;
        if self.watch.is_aborted() {
            return Err(Stop::Aborted);
        }
        let body = match &whole {
            Whole::InPlace(length) => &self.link.unread()[..*length],
            Whole::Collected(body) => body,
        };
        // What it says of itself, or, where it says nothing that is of use, what it looks like.
        let text = trim(body);
        let is_message = match head.content {
            _ if matches!(text, b"" | b"null") => false,
            Content::Json => true,
            _ if matches!(head.status, 202 | 204) => false,
            _ if matches!(text[0], b'{' | b'[') => true,
            _ => return Err(Stop::Fault(Fault::Malformed)),
        };
        if is_message {
            listener.message(text);
        }
        if let Whole::InPlace(length) = whole {
            self.link.consume(length);
        }
        Ok(End::Done)
    }

    /// All of a body.
    async fn whole(&mut self, framing: Framing, listener: &dyn Listener) -> Result<Whole, Stop> {
        let bytes_max = self.client.upstream.settings.message_bytes_max;
        if let Framing::Length(length) = framing {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > bytes_max {
                return Err(Stop::Fault(Fault::TooLarge));
            }
            loop {
                let missing = length.saturating_sub(self.link.unread().len());
                if missing == 0 {
                    return Ok(Whole::InPlace(length));
                }
                if self
                    .more_body(missing, self.link.unread().len(), listener)
                    .await?
                    != Came::Bytes
                {
                    return Err(Stop::Fault(Fault::Cut));
                }
            }
        }
        let mut reader = BodyReader::new(framing);
        let mut body = Vec::new();
        loop {
            let used = reader.feed(self.link.unread(), |piece| {
                if body.len() <= bytes_max {
                    body.extend_from_slice(piece);
                }
            });
            self.link.consume(used.map_err(malformed)?);
            if body.len() > bytes_max {
                return Err(Stop::Fault(Fault::TooLarge));
            }
            if reader.is_done() {
                return Ok(Whole::Collected(body));
            }
            if let Came::End { in_order } = self.more_body(0, body.len(), listener).await? {
                return match in_order && reader.end() {
                    true => Ok(Whole::Collected(body)),
                    false => Err(Stop::Fault(Fault::Cut)),
                };
            }
        }
    }

    /// A stream of events, to its end.
    async fn events(&mut self, framing: Framing, listener: &mut dyn Listener) -> Result<(), Stop> {
        let bytes_max = self.client.upstream.settings.message_bytes_max;
        let mut body = BodyReader::new(framing);
        let mut events = EventReader::new(bytes_max);
        let mut messages = 0;
        loop {
            while !body.is_done() && !self.link.unread().is_empty() {
                self.room(listener).await?;
                let unread = self.link.unread();
                let piece = &unread[..unread.len().min(PIECE_BYTES)];
                let watch = self.watch;
                let mut is_too_large = false;
                let used = body.feed(piece, |data| {
                    let said = events.feed(data, |item| {
                        // A listener may have had enough in the middle.
                        if !watch.is_aborted() {
                            messages += usize::from(tell(listener, item));
                        }
                    });
                    is_too_large |= said.is_err();
                });
                let used = used.map_err(malformed)?;
                if watch.is_aborted() {
                    return Err(Stop::Aborted);
                }
                if is_too_large {
                    return Err(Stop::Fault(Fault::TooLarge));
                }
                self.link.consume(used);
                if messages >= MESSAGES_PER_TURN {
                    messages = 0;
                    give_way().await;
                }
            }
            if body.is_done() {
                return Ok(());
            }
            if let Came::End { in_order } = self.more_body(0, events.held(), listener).await? {
                return match in_order && body.end() {
                    true => Ok(()),
                    false => Err(Stop::Fault(Fault::Cut)),
                };
            }
        }
    }

    /// What there is of the body of another status than 2xx, and whether that is all. It is
    /// not waited for long.
    async fn refusal(&mut self, framing: Framing) -> Result<(Vec<u8>, bool), Stop> {
        let time = match self.request.silence_ms {
            0 => REFUSAL_MS,
            silence => silence.min(REFUSAL_MS),
        };
        self.watch.deadline_in(time);
        let mut reader = BodyReader::new(framing);
        let mut body = Vec::new();
        loop {
            let used = reader.feed(self.link.unread(), |piece| {
                let room = REFUSAL_BYTES_MAX - body.len();
                body.extend_from_slice(&piece[..piece.len().min(room)]);
            });
            let Ok(used) = used else {
                return Ok((body, false));
            };
            self.link.consume(used);
            if reader.is_done() || body.len() == REFUSAL_BYTES_MAX {
                return Ok((body, reader.is_done()));
            }
            match self.more(0).await {
                Ok(Came::Bytes) => {}
                Ok(Came::End { .. }) | Err(Wake::Late) => return Ok((body, false)),
                Err(Wake::Aborted) => return Err(Stop::Aborted),
            }
        }
    }
}

/// True if it was a message.
fn tell(listener: &mut dyn Listener, item: Item<'_>) -> bool {
    match item {
        Item::Event(event) => {
            if let Some(id) = event.id {
                listener.event_id(id);
            }
            let is_message = event.is_message && !event.data.is_empty();
            if is_message {
                listener.message(event.data);
            }
            is_message
        }
        Item::Id(id) => {
            listener.event_id(id);
            false
        }
        Item::Retry(ms) => {
            listener.retry(ms);
            false
        }
    }
}

fn malformed(what: super::response::Malformed) -> Stop {
    tracing::debug!(what = %what, "an answer of the HTTP server is not well-formed");
    Stop::Fault(Fault::Malformed)
}

/// Without the white space that JSON allows around a value.
fn trim(mut body: &[u8]) -> &[u8] {
    const SPACE: &[u8] = b" \t\r\n";
    while let [rest @ .., last] = body
        && SPACE.contains(last)
    {
        body = rest;
    }
    while let [first, rest @ ..] = body
        && SPACE.contains(first)
    {
        body = rest;
    }
    body
}
