//! The hub: the one place that talks to a shared server. It reads large chunks,
//! scans each line once and routes it by the bits of its id; it gathers the
//! shards' lines in turns into one write. Reading and writing are separate
//! tasks: a server that stops reading never stops the hub.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::http::Abort;
use super::links::{Link, Links};
use crate::limits::{MESSAGES_PER_TURN, UPSTREAM_READ_BYTES, UPSTREAM_WRITE_BYTES};
use crate::routing::drops::DropReason;
use crate::routing::hub::{Heard, HubState, OpenError, Shards};
use crate::routing::letters::Kind;
use crate::routing::long_line;
use crate::routing::upstream_id::{Owner, UpstreamId};
use crate::runtime::clock;
use crate::runtime::counters::Counters;
use crate::runtime::driver::Driver;
use crate::runtime::fair::give_way;
use crate::runtime::fd::StreamFd;
use crate::runtime::notify::Notify;
use crate::runtime::tasks;
use crate::wire::handshake::Handshake;
use crate::wire::lines::{Line, LineBuffer};
use crate::wire::span::Span;

/// The hub's ends of the server's stdin and stdout.
#[derive(Debug)]
pub struct ServerPipes {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
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
    state: RefCell<HubState>,
    links: RefCell<Links>,
    /// Whose turn it is to put lines into the next write.
    turn: Cell<usize>,
    /// Rung when there may be something to write. Shards on this thread and the
    /// mailbox of the others ring it.
    pub lines_ready: Rc<Notify>,
    line_bytes_max: usize,
    report: Box<dyn Fn(HubEvent)>,
    counters: Arc<Counters>,
    stop_writing: Cell<bool>,
    /// The child that `next_pipes` are of is to be asked to end at once.
    stop_next: Cell<bool>,
    /// The pipes of the next child, and the wake-up for them.
    next_pipes: RefCell<Option<ServerPipes>>,
    pipes_ready: Notify,
    /// Lets go of the pipes of the child that is talked to.
    let_go: RefCell<Abort>,
    /// There are no more children.
    is_closing: Cell<bool>,
    /// The writing task waits for lines.
    writer_is_idle: Cell<bool>,
}

impl Hub {
    /// `state` is that of a hub with as many shards as there are links.
    pub fn new(
        state: HubState,
        links: Vec<Link>,
        lines_ready: Rc<Notify>,
        line_bytes_max: usize,
        counters: Arc<Counters>,
        report: Box<dyn Fn(HubEvent)>,
    ) -> Rc<Hub> {
        Rc::new(Hub {
            state: RefCell::new(state),
            links: RefCell::new(Links(links)),
            turn: Cell::new(0),
            lines_ready,
            line_bytes_max,
            report,
            counters,
            stop_writing: Cell::new(false),
            stop_next: Cell::new(false),
            next_pipes: RefCell::new(None),
            pipes_ready: Notify::default(),
            let_go: RefCell::default(),
            is_closing: Cell::new(false),
            writer_is_idle: Cell::new(false),
        })
    }

    /// Gives the hub the pipes of a server that has just been started.
    pub fn connect(&self, pipes: ServerPipes) {
        *self.next_pipes.borrow_mut() = Some(pipes);
        self.pipes_ready.notify();
    }

    /// Lets go of the pipes of a child that cannot be ended: as if they had ended.
    pub fn let_go(&self) {
        self.let_go.borrow().set();
    }

    /// Ends the hub: the child is asked to end, and when its stdout has ended nothing of the hub
    /// runs any more.
    pub fn close(&self) {
        self.is_closing.set(true);
        self.next_pipes.take();
        self.stop_writing();
        self.pipes_ready.notify();
    }

    /// Talks to one child after the other, until the hub is closed.
    pub async fn run(self: Rc<Hub>, driver: Driver) {
        loop {
            let pipes = self.next_pipes.borrow_mut().take();
            match pipes {
                None if self.is_closing.get() => return,
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
        self.state.borrow_mut().begin();
        let let_go = Abort::new();
        self.let_go.replace(let_go.clone());
        self.stop_writing.set(self.stop_next.take());
        self.lines_ready.notify();
        let writer = monoio::spawn(self.clone().write_contained(stdin, let_go.clone()));
        let outcome = until(&let_go, self.read(stdout, driver)).await;
        let outcome = outcome.unwrap_or(Ok(()));
        self.stop_writing();
        self.with_state(|state, links| state.end(links));
        self.flush_until_taken().await;
        (self.report)(HubEvent::Closed(outcome.err()));
        // The next child must not meet this one's writing task. A write that is
        // stuck in a full pipe fails when the server is ended.
        writer.await;
        Ok(())
    }

    /// Asks the child to end, also one that is not talked to yet.
    pub fn stop(&self) {
        match self.next_pipes.borrow().is_some() {
            true => self.stop_next.set(true),
            false => self.stop_writing(),
        }
    }

    /// Ends the writing task, which closes the server's stdin: the polite way
    /// to ask it to end.
    fn stop_writing(&self) {
        self.stop_writing.set(true);
        self.lines_ready.notify();
    }

    fn with_state<T>(&self, event: impl FnOnce(&mut HubState, &mut Links) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let outcome = event(&mut state, &mut self.links.borrow_mut());
        if state.has_lines() {
            self.lines_ready.notify();
        }
        outcome
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
        let heard = self.with_state(|state, links| state.line(text, links, clock::now()));
        match heard {
            Heard::Routed => {}
            Heard::Quoted => self.counters.quoted_ids.add(1),
            Heard::Dropped(reason) => {
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
            Heard::Opened(handshake) => {
                // Whether the server logs is known only now.
                self.lines_ready.notify();
                (self.report)(HubEvent::Open(handshake));
            }
            Heard::Failed(error) => (self.report)(HubEvent::Failed(error)),
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
            && shard < links.0.len()
        {
            links.message(shard, Kind::TooLong, id, Span { start: 0, end: 0 }, b"");
        }
    }

    fn drop_message(&self, reason: DropReason) -> u64 {
        self.counters.dropped(reason)
    }

    /// Sends what has gathered for the shards. True if all was taken.
    fn flush(&self) -> bool {
        self.with_state(|state, links| state.flush(links));
        let mut all = true;
        for link in &mut self.links.borrow_mut().0 {
            all &= link.flush();
        }
        all
    }

    /// Waits, without reading on, while a shard's overflow is over its bound.
    async fn wait_for_room(&self) {
        while self.links.borrow().0.iter().any(Link::is_over) && !self.is_closing.get() {
            monoio::time::sleep(Duration::from_millis(1)).await;
            self.flush();
        }
    }

    async fn flush_until_taken(&self) {
        while !self.flush() && !self.is_closing.get() {
            monoio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Sends again, from time to time, what a full mailbox did not take, and lets
    /// the hub's own requests know of the time. Runs as long as the hub.
    pub async fn retry_overflow(self: Rc<Hub>) {
        while !self.is_closing.get() {
            monoio::time::sleep(Duration::from_millis(20)).await;
            self.with_state(|state, links| state.tick(clock::now(), links));
            while !self.flush() && !self.is_closing.get() {
                monoio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// A server that nothing can be written to is as good as deaf, also when it
    /// is the writing task that has failed.
    async fn write_contained(self: Rc<Hub>, stdin: StreamFd, let_go: Abort) {
        let writing = until(&let_go, self.clone().write(stdin));
        if let Err(panic) = tasks::contained(writing).await {
            tracing::error!(panic = tasks::text(&*panic), "the writing task panicked");
            (self.report)(HubEvent::Deaf);
        }
    }

    async fn write(self: Rc<Hub>, stdin: StreamFd) {
        let mut bytes = Vec::new();
        let mut taken = vec![0; self.links.borrow().0.len()];
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
        let mut state = self.state.borrow_mut();
        let mut links = self.links.borrow_mut();
        let now = clock::now();
        let shards = links.0.len();
        let first = self.turn.get();
        self.turn.set((first + 1) % shards);
        state.take_lines(bytes);
        let mut notes = Vec::new();
        for step in 0..shards {
            if bytes.len() >= UPSTREAM_WRITE_BYTES {
                break;
            }
            let shard = (first + step) % shards;
            let room = UPSTREAM_WRITE_BYTES / shards;
            taken[shard] += links.0[shard].take_lines(bytes, state.epoch(), room, &mut notes);
            for (epoch, notes) in notes.drain(..) {
                state.notes(shard, epoch, notes, &mut *links, now);
            }
        }
        // The levels are known only now, and the notes have made lines.
        state.log_levels(links.0.iter().map(Link::log_level), now);
        state.take_lines(bytes);
        if links.0.iter().any(Link::has_lines) {
            self.lines_ready.notify();
        }
    }

    fn acknowledge(&self, taken: &mut [usize]) {
        let mut links = self.links.borrow_mut();
        for (link, taken) in links.0.iter_mut().zip(taken) {
            if *taken > 0 {
                link.written(std::mem::take(taken));
                link.flush();
            }
        }
    }

    /// Whether lines wait in a mailbox and the writing task does not know. While
    /// it writes it needs no telling: it looks again before it rests.
    pub fn has_news(&self) -> bool {
        self.writer_is_idle.get() && self.links.borrow().0.iter().any(Link::has_lines)
    }

    /// Tells the writing task of lines in a mailbox.
    pub fn tell_writer(&self) {
        self.writer_is_idle.set(false);
        self.lines_ready.notify();
    }
}

/// Waits for `work`, unless the pipes are to be let go of before.
async fn until<F: Future>(let_go: &Abort, work: F) -> Option<F::Output> {
    let mut stopping = pin!(let_go.wait());
    let mut work = pin!(work);
    poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        stopping.as_mut().poll(cx).map(|()| None)
    })
    .await
}
