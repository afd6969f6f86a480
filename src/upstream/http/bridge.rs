//! A server over HTTP that stands at the hub's pipes like one that is a process: each line of
//! the hub's is a POST, each message that comes back is a line. What is decided is in
//! [`State`]; here are the pipes, the exchanges and the clock.

mod outbox;
mod state;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

pub use state::Settings;
use state::{Act, Key, State};
use tracing::Instrument;

use super::client::Client;
use super::exchange::{Abort, End, Listener, Request};
use super::response::OddSession;
use crate::limits::{MESSAGES_PER_TURN, TICK_MS, UPSTREAM_READ_BYTES};
use crate::runtime::clock;
use crate::runtime::driver::Driver;
use crate::runtime::fair::give_way;
use crate::runtime::fd::StreamFd;
use crate::runtime::notify::Notify;
use crate::runtime::tasks;
use crate::upstream::child;
use crate::upstream::hub::ServerPipes;
use crate::wire::lines::{Line, LineBuffer};

/// How long the hub may take to read what is left at the end.
const LAST_WRITES: Duration = Duration::from_millis(1_000);

/// How long the server may take to hear that its session is over.
const FAREWELL: Duration = Duration::from_millis(2_000);

/// The bridge's ends of the pipes: it reads what would be a server's stdin, and writes what
/// would be its stdout.
#[derive(Debug)]
pub struct BridgePipes {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
}

/// Pipes between the hub and a bridge.
pub fn pipes() -> rustix::io::Result<(ServerPipes, BridgePipes)> {
    let (bridge_stdin, stdin) = child::pipe()?;
    let (stdout, bridge_stdout) = child::pipe()?;
    let bridge = BridgePipes {
        stdin: bridge_stdin,
        stdout: bridge_stdout,
    };
    Ok((ServerPipes { stdin, stdout }, bridge))
}

/// What is left of a session at the server.
pub struct Ended {
    /// A sentence about the server, without its subject's name.
    pub how: String,
    farewell: Option<Request>,
}

impl Ended {
    /// Ends the session at the server, which gets a moment to hear it.
    pub async fn say_goodbye(self, client: &Rc<Client>) {
        let Some(request) = self.farewell else { return };
        let abort = Abort::new();
        let mut nobody = Nobody;
        let mut saying = pin!(client.exchange(request, &abort, &mut nobody));
        let mut late = pin!(monoio::time::sleep(FAREWELL));
        poll_fn(|cx| match saying.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => late.as_mut().poll(cx),
        })
        .await;
    }
}

/// Opens a session at the server and leads it to its end. The pipes are closed when this is
/// done, and no exchange is left, also when it is dropped. `stop` ends it at once.
pub async fn serve(
    client: &Rc<Client>,
    settings: Settings,
    pipes: BridgePipes,
    stop: &Abort,
    driver: Driver,
) -> io::Result<Ended> {
    let stdin = StreamFd::new(pipes.stdin, driver)?;
    let stdout = StreamFd::new(pipes.stdout, driver)?;
    let bridge = Rc::new(Bridge {
        client: client.clone(),
        state: RefCell::new(State::new(settings, clock::now())),
        under_way: RefCell::default(),
        over: Abort::new(),
        lines_ready: Notify::default(),
        room: Notify::default(),
        is_reader_waiting: Cell::new(false),
    });
    let _exchanges = Exchanges(bridge.clone());
    let mut writing = pin!(bridge.write(stdout));
    let mut is_deaf = false;
    {
        let mut stopping = pin!(stop.wait());
        let mut ending = pin!(bridge.over.wait());
        let mut reading = pin!(bridge.read(stdin, driver));
        let mut ticking = pin!(bridge.tick());
        poll_fn(|cx| {
            is_deaf = writing.as_mut().poll(cx).is_ready();
            let is_over = is_deaf
                || stopping.as_mut().poll(cx).is_ready()
                || reading.as_mut().poll(cx).is_ready()
                || ticking.as_mut().poll(cx).is_ready()
                || ending.as_mut().poll(cx).is_ready();
            match is_over {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
    bridge.act(State::stop);
    let mut late = pin!(monoio::time::sleep(LAST_WRITES));
    poll_fn(|cx| {
        let is_done = is_deaf
            || stop.is_set()
            || bridge.state.borrow().outbox.is_empty()
            || writing.as_mut().poll(cx).is_ready()
            || bridge.state.borrow().outbox.is_empty();
        match is_done {
            true => Poll::Ready(()),
            false => late.as_mut().poll(cx),
        }
    })
    .await;
    let state = bridge.state.borrow();
    Ok(Ended {
        how: state.over().unwrap_or_default().to_owned(),
        farewell: state.farewell(),
    })
}

struct Bridge {
    client: Rc<Client>,
    state: RefCell<State>,
    under_way: RefCell<HashMap<Key, Abort, ahash::RandomState>>,
    /// The session has ended.
    over: Abort,
    /// There is something for the hub.
    lines_ready: Notify,
    /// There is room for lines of the hub's.
    room: Notify,
    is_reader_waiting: Cell<bool>,
}

/// Ends all exchanges when it goes.
struct Exchanges(Rc<Bridge>);

impl Drop for Exchanges {
    fn drop(&mut self) {
        self.0.act(State::stop);
    }
}

impl Bridge {
    /// Lets the state see an event, and does what it says.
    fn act(self: &Rc<Self>, event: impl FnOnce(&mut State)) {
        let (acts, has_lines, takes_lines, is_over) = {
            let mut state = self.state.borrow_mut();
            event(&mut state);
            (
                state.take_acts(),
                !state.outbox.is_empty(),
                state.takes_lines(),
                state.over().is_some(),
            )
        };
        for act in acts {
            match act {
                Act::Begin(key, request) => {
                    let abort = Abort::new();
                    self.under_way.borrow_mut().insert(key, abort.clone());
                    let exchange = UnderWay {
                        bridge: self.clone(),
                        key,
                        end: None,
                    };
                    let running = exchange.run(request, abort).in_current_span();
                    tasks::spawn("exchange", running);
                }
                Act::Abort(key) => {
                    let abort = self.under_way.borrow().get(&key).cloned();
                    if let Some(abort) = abort {
                        abort.set();
                    }
                }
            }
        }
        if has_lines {
            self.lines_ready.notify();
        }
        if takes_lines && self.is_reader_waiting.take() {
            self.room.notify();
        }
        if is_over && !self.over.is_set() {
            self.over.set();
        }
    }

    /// Reads the hub's lines, to their end.
    async fn read(self: &Rc<Self>, stdin: StreamFd, driver: Driver) {
        let mut buffer = LineBuffer::new(UPSTREAM_READ_BYTES, usize::MAX >> 8);
        loop {
            let (bytes, filled) = buffer.lend();
            let (result, bytes) = stdin.read(bytes).await;
            let count = result.unwrap_or(0);
            buffer.restore(bytes, filled + count);
            if count == 0 {
                return;
            }
            let now = clock::now();
            let mut lines = 0;
            while let Some(line) = buffer.next_line() {
                if let Line::Text(line) = line {
                    self.act(|state| state.line(line, now));
                }
                lines += 1;
                if lines % MESSAGES_PER_TURN == 0 {
                    give_way().await;
                }
            }
            while !self.state.borrow().takes_lines() {
                self.is_reader_waiting.set(true);
                self.room.wait().await;
            }
            // On epoll a read from a pipe that is never empty does not wait.
            if driver == Driver::Epoll {
                give_way().await;
            }
        }
    }

    /// Writes the lines for the hub. Returns when it does not take them any more.
    async fn write(self: &Rc<Self>, stdout: StreamFd) {
        loop {
            let next = self.state.borrow_mut().outbox.next_write();
            let Some(mut bytes) = next else {
                self.lines_ready.wait().await;
                continue;
            };
            let (mut from, to) = (0, bytes.len());
            while from < to {
                let (result, back) = stdout.write(bytes, from, to).await;
                bytes = back;
                match result {
                    Ok(count) if count > 0 => from += count,
                    _ => return,
                }
            }
            self.state.borrow_mut().outbox.written(to);
        }
    }

    async fn tick(self: &Rc<Self>) {
        loop {
            monoio::time::sleep(Duration::from_millis(TICK_MS)).await;
            self.act(|state| state.tick(clock::now()));
        }
    }
}

/// An exchange under way. When it goes, also by a panic, the state hears of its end.
struct UnderWay {
    bridge: Rc<Bridge>,
    key: Key,
    end: Option<End>,
}

impl UnderWay {
    async fn run(mut self, request: Request, abort: Abort) {
        let bridge = self.bridge.clone();
        let mut hearing = Hearing {
            bridge: &bridge,
            key: self.key,
        };
        let end = bridge.client.exchange(request, &abort, &mut hearing).await;
        self.end = Some(end);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let bridge = &self.bridge;
        bridge.under_way.borrow_mut().remove(&self.key);
        let is_alone = bridge.client.counters().connections.get() == 0;
        let end = self.end.take();
        bridge.act(|state| state.ended(self.key, end, is_alone, clock::now()));
    }
}

/// What comes goes to the state at once.
struct Hearing<'a> {
    bridge: &'a Rc<Bridge>,
    key: Key,
}

impl Listener for Hearing<'_> {
    fn head(&mut self, session: Option<Result<&[u8], OddSession>>, is_stream: bool) {
        let now = clock::now();
        self.bridge
            .act(|state| state.head(self.key, session, is_stream, now));
    }

    fn message(&mut self, text: &[u8]) {
        self.bridge
            .act(|state| state.heard(self.key, text, clock::now()));
    }

    fn event_id(&mut self, id: &[u8]) {
        self.bridge.act(|state| state.event_id(self.key, id));
    }

    fn retry(&mut self, ms: u64) {
        self.bridge.act(|state| state.retry_after(self.key, ms));
    }

    fn has_room(&self) -> bool {
        self.bridge.state.borrow().outbox.has_room()
    }

    fn is_over(&self) -> bool {
        self.bridge.state.borrow().is_exchange_over(self.key)
    }
}

/// Nobody hears how a farewell is answered.
struct Nobody;

impl Listener for Nobody {
    fn head(&mut self, _: Option<Result<&[u8], OddSession>>, _: bool) {}
    fn message(&mut self, _: &[u8]) {}
    fn event_id(&mut self, _: &[u8]) {}
    fn retry(&mut self, _: u64) {}
    fn has_room(&self) -> bool {
        true
    }
}
