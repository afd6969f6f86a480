//! The hub: the one place that talks to a shared server. It reads large chunks,
//! scans each line once and routes it by the bits of its id; it gathers the
//! shards' lines in turns into one write. Reading and writing are separate
//! tasks: a server that stops reading never stops the hub.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::letters::{Kind, ToShard};
use super::links::Link;
use crate::limits::{
    HUB_ANSWERS_BYTES, MESSAGES_PER_TURN, UPSTREAM_READ_BYTES, UPSTREAM_WRITE_BYTES,
};
use crate::routing::drops::DropReason;
use crate::routing::log_level::LogLevel;
use crate::routing::long_line;
use crate::routing::server_line::{Route, route};
use crate::routing::upstream_id::{Owner, UpstreamId};
use crate::runtime::counters::Counters;
use crate::runtime::driver::Driver;
use crate::runtime::fair::give_way;
use crate::runtime::fd::StreamFd;
use crate::runtime::notify::Notify;
use crate::runtime::tasks;
use crate::wire::handshake::{Handshake, HandshakeError, Offer};
use crate::wire::lines::{Line, LineBuffer};
use crate::wire::reply::json_string;
use crate::wire::span::Span;
use crate::wire::version::Version;

/// The hub's ends of the server's stdin and stdout.
#[derive(Debug)]
pub struct ServerPipes {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
}

/// Why the handshake with the server failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("it refused initialize: {0}")]
    Refused(String),
}

/// What the hub reports to whoever started it.
#[derive(Debug)]
pub enum HubEvent {
    /// The handshake is done.
    Open(Arc<Handshake>),
    /// The handshake failed.
    Failed(OpenError),
    /// The server takes nothing any more: its stdin is closed. It is to be ended.
    Deaf,
    /// The server's stdout has ended, or reading it failed. Every call in
    /// flight has been answered; the server is to be ended.
    Closed(Option<io::Error>),
}

/// The hub of one shared server, on one thread.
pub struct Hub {
    links: RefCell<Vec<Link>>,
    /// Whose turn it is to put lines into the next write.
    turn: Cell<usize>,
    /// The hub's own lines to the server.
    own_lines: RefCell<Vec<u8>>,
    own_sequence: Cell<u32>,
    handshake_id: Cell<Option<UpstreamId>>,
    log_level: RefCell<LogLevel>,
    log_level_id: Cell<Option<UpstreamId>>,
    /// The server has the `logging` capability.
    has_logging: Cell<bool>,
    /// Rung when there may be something to write. Shards on this thread and the
    /// mailbox of the others ring it.
    pub lines_ready: Rc<Notify>,
    offer: Offer,
    line_bytes_max: usize,
    report: Box<dyn Fn(HubEvent)>,
    counters: Arc<Counters>,
    /// Which child this is, counted from 1.
    epoch: Cell<u64>,
    stop_writing: Cell<bool>,
    /// The pipes of the next child, and the wake-up for them.
    next_pipes: RefCell<Option<ServerPipes>>,
    pipes_ready: Notify,
    /// The writing task waits for lines.
    writer_is_idle: Cell<bool>,
}

impl Hub {
    pub fn new(
        links: Vec<Link>,
        lines_ready: Rc<Notify>,
        offer: Offer,
        line_bytes_max: usize,
        counters: Arc<Counters>,
        report: Box<dyn Fn(HubEvent)>,
    ) -> Rc<Hub> {
        let log_level = RefCell::new(LogLevel::new(links.len()));
        Rc::new(Hub {
            log_level,
            log_level_id: Cell::new(None),
            has_logging: Cell::new(false),
            links: RefCell::new(links),
            turn: Cell::new(0),
            own_lines: RefCell::default(),
            own_sequence: Cell::new(0),
            handshake_id: Cell::new(None),
            lines_ready,
            offer,
            line_bytes_max,
            report,
            counters,
            epoch: Cell::new(0),
            stop_writing: Cell::new(false),
            next_pipes: RefCell::new(None),
            pipes_ready: Notify::default(),
            writer_is_idle: Cell::new(false),
        })
    }

    /// Gives the hub the pipes of a server that has just been started.
    pub fn connect(&self, pipes: ServerPipes) {
        *self.next_pipes.borrow_mut() = Some(pipes);
        self.pipes_ready.notify();
    }

    /// Talks to one child after the other, for as long as the thread runs.
    pub async fn run(self: Rc<Hub>, driver: Driver) {
        loop {
            let pipes = self.next_pipes.borrow_mut().take();
            match pipes {
                None => self.pipes_ready.wait().await,
                Some(pipes) => {
                    if let Err(error) = self.serve(pipes, driver).await {
                        (self.report)(HubEvent::Closed(Some(error)));
                    }
                }
            }
        }
    }

    /// Talks to a server that has just been started: handshake first, then
    /// everything, until its stdout ends. Then all shards are told.
    async fn serve(self: &Rc<Hub>, pipes: ServerPipes, driver: Driver) -> io::Result<()> {
        let stdin = StreamFd::new(pipes.stdin, driver)?;
        let stdout = StreamFd::new(pipes.stdout, driver)?;
        self.epoch.set(self.epoch.get() + 1);
        self.own_lines.borrow_mut().clear();
        self.log_level.borrow_mut().restart();
        self.log_level_id.set(None);
        self.has_logging.set(false);
        self.stop_writing.set(false);
        self.begin_handshake();
        let writer = monoio::spawn(self.clone().write_contained(stdin));
        let outcome = self.read(stdout, driver).await;
        self.stop_writing();
        for link in self.links.borrow_mut().iter_mut() {
            link.letter(ToShard::Down);
        }
        self.flush_until_taken().await;
        (self.report)(HubEvent::Closed(outcome.err()));
        // The next child must not meet this one's writing task. A write that is
        // stuck in a full pipe fails when the server is ended.
        writer.await;
        Ok(())
    }

    /// Ends the writing task, which closes the server's stdin: the polite way
    /// to ask it to end.
    pub fn stop_writing(&self) {
        self.stop_writing.set(true);
        self.lines_ready.notify();
    }

    fn begin_handshake(&self) {
        let id = self.own_id();
        self.handshake_id.set(Some(id));
        let mut own = self.own_lines.borrow_mut();
        own.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        own.extend_from_slice(id.digits(&mut itoa::Buffer::new()));
        own.extend_from_slice(br#","method":"initialize","params":{"protocolVersion":"#);
        json_string(&mut own, Version::NEWEST.as_str());
        own.extend_from_slice(br#","capabilities":{},"clientInfo":{"name":"ringway","version":"#);
        json_string(&mut own, env!("CARGO_PKG_VERSION"));
        own.extend_from_slice(b"}}}\n");
        self.lines_ready.notify();
    }

    fn own_id(&self) -> UpstreamId {
        let sequence = self.own_sequence.get();
        self.own_sequence.set(sequence.wrapping_add(1));
        UpstreamId::of_hub(sequence)
    }

    fn end_handshake(&self, outcome: Result<&[u8], &[u8]>) {
        let handshake = match outcome {
            Ok(result) => Handshake::read(result, self.offer).map_err(OpenError::from),
            Err(error) => Err(OpenError::Refused(
                String::from_utf8_lossy(error).chars().take(500).collect(),
            )),
        };
        match handshake {
            Err(error) => (self.report)(HubEvent::Failed(error)),
            Ok(handshake) => {
                self.own_lines.borrow_mut().extend_from_slice(
                    b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n",
                );
                self.lines_ready.notify();
                self.has_logging.set(handshake.logging);
                let handshake = Arc::new(handshake);
                for link in self.links.borrow_mut().iter_mut() {
                    link.letter(ToShard::Up {
                        epoch: self.epoch.get(),
                        handshake: handshake.clone(),
                    });
                }
                (self.report)(HubEvent::Open(handshake));
            }
        }
    }

    async fn read(&self, stdout: StreamFd, driver: Driver) -> io::Result<()> {
        let mut buffer = LineBuffer::new(UPSTREAM_READ_BYTES, self.line_bytes_max);
        loop {
            let (bytes, filled) = buffer.lend();
            let (result, bytes) = stdout.read(bytes).await;
            buffer.restore(bytes, filled + *result.as_ref().unwrap_or(&0));
            if result? == 0 {
                if let Some(rest) = buffer.at_end() {
                    self.line(rest);
                }
                return Ok(());
            }
            let mut messages = 0;
            while let Some(line) = buffer.next_line() {
                self.line(line);
                messages += 1;
                if messages % MESSAGES_PER_TURN == 0 {
                    self.flush();
                    give_way().await;
                }
            }
            self.flush();
            self.wait_for_room().await;
            // On epoll a read from a pipe that is never empty does not wait, and
            // nobody else on this thread would get a turn.
            if driver == Driver::Epoll {
                give_way().await;
            }
        }
    }

    fn line(&self, line: Line<'_>) {
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong { bytes, head, tail } => {
                self.too_long(bytes, long_line::answered_call(head, tail));
                return;
            }
        };
        // Blanks around a message are not part of it; what is left starts and
        // ends with the message, so its length with another id is known.
        let text = text.trim_ascii();
        if text.is_empty() {
            return;
        }
        let mut links = self.links.borrow_mut();
        match route(text, links.len()) {
            Route::Answer {
                shard,
                id,
                id_span,
                quoted,
                is_error,
            } => {
                if quoted {
                    self.counters.quoted_ids.add(1);
                }
                let kind = if is_error { Kind::Error } else { Kind::Result };
                links[shard].message(kind, id, id_span, text);
            }
            Route::Progress {
                shard,
                id,
                token_span,
            } => {
                if !links[shard].message(Kind::Progress, id, token_span, text) {
                    self.drop_message(DropReason::Progress);
                }
            }
            Route::Own { id, outcome } => {
                drop(links);
                self.own_answer(id, outcome.map(|s| s.of(text)).map_err(|s| s.of(text)));
            }
            Route::Reply(reply) => self.own_line(&reply),
            Route::Drop(reason) => {
                let seen = self.drop_message(reason);
                if reason == DropReason::NotJson && (seen < 10 || seen.is_power_of_two()) {
                    let text = super::stderr::printable(text);
                    tracing::warn!(
                        seen,
                        line = text,
                        "the server wrote a line that is not JSON"
                    );
                }
            }
        }
    }

    /// An over-long line was skipped. If it is clear whose answer it was, that
    /// call is told.
    fn too_long(&self, bytes: usize, answered: Option<UpstreamId>) {
        self.drop_message(DropReason::TooLong);
        let is_known = answered.is_some();
        tracing::warn!(
            bytes,
            is_known,
            "a line of the server is over --max-message, skipped"
        );
        let mut links = self.links.borrow_mut();
        let Some(id) = answered else { return };
        if let Owner::Shard(shard) = id.owner()
            && shard < links.len()
        {
            links[shard].message(Kind::TooLong, id, Span { start: 0, end: 0 }, b"");
        }
    }

    fn own_answer(&self, id: UpstreamId, outcome: Result<&[u8], &[u8]>) {
        if self.handshake_id.get() == Some(id) {
            self.handshake_id.set(None);
            self.end_handshake(outcome);
        } else if self.log_level_id.get() == Some(id) {
            self.log_level_id.set(None);
            self.log_level.borrow_mut().answered();
            self.lines_ready.notify();
        } else {
            self.drop_message(DropReason::UnknownId);
        }
    }

    /// Answers the server. A server that asks without reading gets no more
    /// than a bounded queue.
    fn own_line(&self, message: &[u8]) {
        let mut own = self.own_lines.borrow_mut();
        if own.len() + message.len() > HUB_ANSWERS_BYTES {
            self.drop_message(DropReason::AnswerOverflow);
            return;
        }
        own.extend_from_slice(message);
        own.push(b'\n');
        self.lines_ready.notify();
    }

    fn drop_message(&self, reason: DropReason) -> u64 {
        self.counters.dropped(reason)
    }

    /// Sends what has gathered for the shards. True if all was taken.
    fn flush(&self) -> bool {
        let mut all = true;
        for link in self.links.borrow_mut().iter_mut() {
            all &= link.flush();
        }
        all
    }

    /// Waits, without reading on, while a shard's overflow is over its bound.
    async fn wait_for_room(&self) {
        while self.links.borrow().iter().any(Link::is_over) {
            monoio::time::sleep(Duration::from_millis(1)).await;
            self.flush();
        }
    }

    async fn flush_until_taken(&self) {
        while !self.flush() {
            monoio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Sends again, from time to time, what a full mailbox did not take. Runs
    /// as long as the hub.
    pub async fn retry_overflow(self: Rc<Hub>) {
        loop {
            monoio::time::sleep(Duration::from_millis(20)).await;
            while !self.flush() {
                monoio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// A server that nothing can be written to is as good as deaf, also when it
    /// is the writing task that has failed.
    async fn write_contained(self: Rc<Hub>, stdin: StreamFd) {
        if let Err(panic) = tasks::contained(self.clone().write(stdin)).await {
            tracing::error!(panic = tasks::text(&*panic), "the writing task panicked");
            (self.report)(HubEvent::Deaf);
        }
    }

    async fn write(self: Rc<Hub>, stdin: StreamFd) {
        let mut bytes = Vec::new();
        let mut taken = vec![0; self.links.borrow().len()];
        loop {
            bytes.clear();
            self.gather(&mut bytes, &mut taken);
            if self.stop_writing.get() {
                return;
            }
            if bytes.is_empty() {
                self.writer_is_idle.set(true);
                self.lines_ready.wait().await;
                self.writer_is_idle.set(false);
                continue;
            }
            let mut from = 0;
            while from < bytes.len() {
                let to = bytes.len();
                let (result, back) = stdin.write(bytes, from, to).await;
                bytes = back;
                match result {
                    Ok(n) if n > 0 => from += n,
                    _ => {
                        if !self.stop_writing.get() {
                            (self.report)(HubEvent::Deaf);
                        }
                        return;
                    }
                }
            }
            self.acknowledge(&mut taken);
        }
    }

    /// Gathers the next write: the hub's own lines, then the shards' in turns.
    fn gather(&self, bytes: &mut Vec<u8>, taken: &mut [usize]) {
        let mut links = self.links.borrow_mut();
        let shards = links.len();
        let first = self.turn.get();
        self.turn.set((first + 1) % shards);
        let own = &mut *self.own_lines.borrow_mut();
        if !own.is_empty() {
            bytes.append(own);
        }
        for step in 0..shards {
            if bytes.len() >= UPSTREAM_WRITE_BYTES {
                break;
            }
            let shard = (first + step) % shards;
            let room = UPSTREAM_WRITE_BYTES / shards;
            taken[shard] += links[shard].take_lines(bytes, self.epoch.get(), room);
        }
        if links.iter().any(Link::has_lines) {
            self.lines_ready.notify();
        }
        if self.has_logging.get() {
            self.tell_log_level(bytes, &links);
        }
    }

    /// Appends the request that tells the server its log level, if another one
    /// is wanted than it has.
    fn tell_log_level(&self, bytes: &mut Vec<u8>, links: &[Link]) {
        let mut log_level = self.log_level.borrow_mut();
        for (shard, link) in links.iter().enumerate() {
            log_level.set(shard, link.log_level());
        }
        let Some(level) = log_level.to_tell() else {
            return;
        };
        let id = self.own_id();
        self.log_level_id.set(Some(id));
        bytes.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        bytes.extend_from_slice(id.digits(&mut itoa::Buffer::new()));
        bytes.extend_from_slice(br#","method":"logging/setLevel","params":{"level":"#);
        json_string(bytes, level);
        bytes.extend_from_slice(b"}}\n");
    }

    fn acknowledge(&self, taken: &mut [usize]) {
        let mut links = self.links.borrow_mut();
        for (link, taken) in links.iter_mut().zip(taken) {
            if *taken > 0 {
                link.written(std::mem::take(taken));
                link.flush();
            }
        }
    }

    /// Whether lines wait in a mailbox and the writing task does not know. While
    /// it writes it needs no telling: it looks again before it rests.
    pub fn has_news(&self) -> bool {
        self.writer_is_idle.get() && self.links.borrow().iter().any(Link::has_lines)
    }

    /// Tells the writing task of lines in a mailbox.
    pub fn tell_writer(&self) {
        self.writer_is_idle.set(false);
        self.lines_ready.notify();
    }
}
