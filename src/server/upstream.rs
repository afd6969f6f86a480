//! One upstream as the main thread leads it: its life, and the threads that launch and end its
//! server, which may take their time and must not hold the main thread up. They inherit no
//! pinning: the main thread has none.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::Span;

use super::bridge::{BridgeHandle, Session};
use super::events::Event;
use super::hub_thread::HubOrder;
use super::life::{Act, Failure, Life};
use super::status::{SeatStatus, UpstreamState};
use crate::routing::joined::SeatId;
use crate::routing::time::Millis;
use crate::runtime::bell::{Post, PostError};
use crate::runtime::clock;
use crate::upstream::child::{self, Group, ServerCommand, StartError};
use crate::upstream::http::bridge;
use crate::upstream::hub::{HubEvent, ServerPipes};
use crate::upstream::stderr;
use crate::wire::handshake::Handshake;

/// Which server of an upstream, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Number {
    pub(super) seat: SeatId,
    pub(super) start: u64,
}

/// Who an upstream is.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) seat: SeatId,
    /// The names of its route and its own; `None` where there is but one.
    pub(super) names: Option<(String, String)>,
    /// What the log says of it stands in this.
    pub(super) span: Span,
}

impl Identity {
    /// Of an upstream of a route.
    pub(super) fn named(seat: SeatId, names: (String, String)) -> Identity {
        let (route, upstream) = &names;
        Identity {
            seat,
            span: tracing::error_span!("upstream", %route, %upstream),
            names: Some(names),
        }
    }
}

/// An upstream and where its server is in its life.
pub(super) struct Upstream {
    pub(super) identity: Identity,
    origin: Origin,
    /// Without it nothing starts, and one that cannot be ended ends Ringway.
    pub(super) is_vital: bool,
    /// It came up once, or was tried and failed.
    has_settled: bool,
    /// It came up once.
    has_been_up: bool,
    /// The soft limit on open files that its process gets.
    open_files: u64,
    events: Sender<Event>,
    hub: Post<HubOrder>,
    pub(super) status: Arc<SeatStatus>,
    /// Servers so far.
    starts: u64,
    /// Of the server that was launched last; the hub gets them next.
    pipes: Option<ServerPipes>,
    life: Life<Holder>,
    /// What the hub heard last.
    handshake: Option<Arc<Handshake>>,
    /// Ends the last server.
    ending: Option<JoinHandle<()>>,
}

/// What the server is.
#[derive(Debug)]
pub(super) enum Origin {
    Command(ServerCommand),
    /// At an address, in one session that all share; who leads it.
    Bridge(String, BridgeHandle),
    /// At this address, where each session goes by itself.
    Elsewhere(String),
}

/// What ends a server when it is dropped.
#[derive(Debug)]
pub(super) enum Holder {
    Process {
        group: Group,
        /// Closed when its process has ended.
        ended: Receiver<()>,
        /// Closed when the relay of its stderr has ended.
        relay: Receiver<()>,
    },
    Session(Session),
}

/// What has gone wrong with an upstream that the whole of Ringway may have to answer for.
#[derive(Debug)]
pub(super) enum Trouble {
    Failed(Failure),
    /// It cannot be ended.
    Stuck,
}

impl Upstream {
    pub(super) fn new(
        identity: Identity,
        origin: Origin,
        (start_timeout, open_files): (Duration, u64),
        events: Sender<Event>,
        hub: Post<HubOrder>,
        status: Arc<SeatStatus>,
    ) -> Upstream {
        let life = match &origin {
            Origin::Elsewhere(_) => Life::elsewhere(),
            Origin::Command(_) | Origin::Bridge(..) => Life::new(start_timeout),
        };
        Upstream {
            identity,
            has_settled: matches!(origin, Origin::Elsewhere(_)),
            origin,
            is_vital: false,
            has_been_up: false,
            open_files,
            events,
            hub,
            status,
            starts: 0,
            pipes: None,
            life,
            handshake: None,
            ending: None,
        }
    }

    /// The server's program, for people.
    pub(super) fn name(&self) -> String {
        match &self.origin {
            Origin::Command(command) => format!("{:?}", command.label),
            Origin::Bridge(address, _) | Origin::Elsewhere(address) => address.clone(),
        }
    }

    /// Whether it is a session at a server that is not Ringway's to start.
    pub(super) fn is_bridge(&self) -> bool {
        matches!(self.origin, Origin::Bridge(..))
    }

    /// Under which name clients are told of failures that are not the shards' to tell, if its
    /// route has several.
    pub(super) fn set_upstream_name(&self, name: Option<&str>) {
        if let Origin::Bridge(_, bridge) = &self.origin {
            bridge.set_upstream_name(name.map(Arc::from));
        }
    }

    /// Whether it came up once, or was tried and failed, or is not Ringway's to start.
    pub(super) fn has_settled(&self) -> bool {
        self.has_settled
    }

    /// Whether an event is about this upstream.
    pub(super) fn is_about(&self, event: &Event) -> bool {
        let seat = match event {
            Event::Hub(seat, _) => *seat,
            Event::Launched { number, .. }
            | Event::ServerEnded { number, .. }
            | Event::Gone { number } => number.seat,
            Event::Ready(_) | Event::Signal(_) | Event::Drained | Event::ThreadEnded { .. } => {
                return false;
            }
        };
        seat == self.identity.seat
    }

    /// What an event about it means for its life.
    pub(super) fn hear(&mut self, event: Event) -> Option<Trouble> {
        let now = clock::now();
        match event {
            Event::Hub(_, HubEvent::Open(handshake)) => {
                self.handshake = Some(handshake);
                self.life.opened(now);
            }
            Event::Hub(_, HubEvent::Failed(error)) => self.life.refused(error, now),
            Event::Hub(_, HubEvent::Deaf) => self.life.deaf(now),
            Event::Hub(_, HubEvent::Closed(error)) => {
                self.life.closed(error.map(|error| error.to_string()), now);
            }
            Event::Launched { number, outcome } => {
                let (pipes, outcome) = match outcome {
                    Ok((holder, pipes)) => (Some(pipes), Ok(holder)),
                    Err(error) => (None, Err(error)),
                };
                if self.is_current(number) {
                    self.pipes = pipes;
                }
                self.life.launched(outcome, now);
            }
            Event::ServerEnded { number, how } if self.is_current(number) => {
                self.life.ended(how, now);
            }
            Event::Gone { number } if self.is_current(number) => self.life.gone(now),
            _ => {}
        }
        self.act()
    }

    fn is_current(&self, number: Number) -> bool {
        number == self.number()
    }

    fn number(&self) -> Number {
        Number {
            seat: self.identity.seat,
            start: self.starts,
        }
    }

    /// When something is to be done if nothing is heard before.
    pub(super) fn due(&self) -> Option<Millis> {
        self.life.due()
    }

    /// Does what is due.
    pub(super) fn tick(&mut self) -> Option<Trouble> {
        self.life.tick(clock::now());
        self.act()
    }

    fn act(&mut self) -> Option<Trouble> {
        let mut trouble = None;
        let span = self.identity.span.clone();
        let _in = span.enter();
        while let Some(act) = self.life.next_act() {
            match act {
                Act::Launch => self.launch(),
                Act::Connect => {
                    self.status.count_start();
                    if let Some(pipes) = self.pipes.take() {
                        self.tell_hub(HubOrder::Connect(self.identity.seat, pipes));
                    }
                }
                Act::End(holder) => self.ending = self.end(holder),
                Act::LetGo => self.tell_hub(HubOrder::LetGo(self.identity.seat)),
                Act::Up => {
                    self.log_handshake();
                    self.has_settled = true;
                    self.has_been_up = true;
                    self.status.set_state(UpstreamState::Up);
                }
                Act::Down => self.status.set_state(UpstreamState::Down),
                Act::Deaf => tracing::error!("the server has closed its stdin: ending it"),
                Act::Failed { failure, pause_ms } => {
                    self.has_settled = true;
                    self.status.set_state(UpstreamState::Down);
                    self.log_failure(&failure, pause_ms);
                    trouble = trouble.or(Some(Trouble::Failed(failure)));
                }
                Act::Gone {
                    how,
                    error,
                    pause_ms,
                } => tracing::error!(
                    how,
                    error,
                    pause_ms,
                    "the server is gone, it will be started again"
                ),
                Act::Stuck => {
                    tracing::error!(
                        "the server has ended, but something of it lives on and holds its pipes open"
                    );
                    trouble = Some(Trouble::Stuck);
                }
            }
        }
        trouble
    }

    fn log_handshake(&self) {
        let Some(handshake) = &self.handshake else {
            return;
        };
        if self.has_been_up {
            tracing::info!(
                upstream = handshake.server_name,
                version = handshake.server_version,
                "the server is up again"
            );
        } else if self.identity.names.is_some() {
            tracing::info!(
                server = handshake.server_name,
                version = handshake.server_version,
                protocol = handshake.version.as_str(),
                "the server is up"
            );
        }
    }

    fn log_failure(&self, failure: &Failure, pause_ms: Option<u64>) {
        // One that ends Ringway is its last sentence.
        if !self.has_been_up && self.is_vital {
            return;
        }
        match failure {
            Failure::Start(error) if self.starts > 1 => {
                tracing::error!(%error, pause_ms, "cannot start the server again");
            }
            Failure::Handshake(error) if self.has_been_up => {
                tracing::error!(%error, "the handshake with the restarted server failed");
            }
            Failure::Silent(_) => {
                tracing::error!("the server did not answer initialize in time: killing it");
            }
            failure => tracing::error!(
                server = %self.name(),
                error = %failure,
                pause_ms,
                "the server did not come up"
            ),
        }
    }

    /// The main thread may wait for a mailbox, unlike the others.
    fn tell_hub(&self, order: HubOrder) {
        send_surely(&self.hub, order);
    }

    fn launch(&mut self) {
        self.starts += 1;
        self.status.set_state(UpstreamState::Starting);
        let number = self.number();
        let events = self.events.clone();
        match &self.origin {
            Origin::Command(command) => {
                let command = command.clone();
                let open_files = self.open_files;
                let span = self.identity.span.clone();
                let launching = std::thread::Builder::new()
                    .name("ringway-launch".into())
                    .spawn(move || {
                        let outcome = launch(number, &command, open_files, &span, &events);
                        // If nobody hears it any more, the server ends with it.
                        let _ = events.send(Event::Launched { number, outcome });
                    });
                if let Err(error) = launching {
                    let outcome = Err(StartError::Thread(error));
                    let _ = self.events.send(Event::Launched { number, outcome });
                }
            }
            Origin::Bridge(_, bridge) => {
                let outcome = bridge::pipes().map_err(StartError::Pipes);
                let outcome = outcome.map(|(pipes, bridge_pipes)| {
                    let session = Session::open(bridge, number, bridge_pipes);
                    (Holder::Session(session), pipes)
                });
                let _ = events.send(Event::Launched { number, outcome });
            }
            Origin::Elsewhere(_) => {}
        }
    }

    /// Ends a server at once.
    fn end(&self, holder: Holder) -> Option<JoinHandle<()>> {
        let number = self.number();
        let events = self.events.clone();
        self.aside(move || {
            holder.kill(|| {
                let _ = events.send(Event::Gone { number });
            });
        })
    }

    /// Does something that may take its time on a thread of its own. Where there is none to be
    /// had, what `work` holds is dropped here.
    fn aside(&self, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
        let number = self.number();
        let span = self.identity.span.clone();
        let started = std::thread::Builder::new()
            .name("ringway-end".into())
            .spawn(move || span.in_scope(work));
        match started {
            Ok(handle) => Some(handle),
            Err(error) => {
                tracing::error!(%error, "cannot start a thread to end the server");
                let _ = self.events.send(Event::Gone { number });
                None
            }
        }
    }

    /// Stops the server politely: its stdin is closed, then signals. What is returned is done
    /// when it has ended.
    pub(super) fn stop(&mut self) -> Option<JoinHandle<()>> {
        let Some(holder) = self.life.stop() else {
            return self.ending.take();
        };
        self.tell_hub(HubOrder::StopWriting(self.identity.seat));
        self.aside(move || holder.stop())
    }

    /// Ends the server at once. What is returned is done when its last words are said.
    pub(super) fn kill(&mut self) -> Option<JoinHandle<()>> {
        match self.life.stop() {
            Some(holder) => self.end(holder),
            None => self.ending.take(),
        }
    }
}

/// Launches the server of a command.
fn launch(
    number: Number,
    command: &ServerCommand,
    open_files: u64,
    span: &Span,
    events: &Sender<Event>,
) -> Result<(Holder, ServerPipes), StartError> {
    let started = child::start(command, open_files)?;
    let relay = stderr::relay(started.stderr, span.clone()).map_err(StartError::Thread)?;
    let (alive, ended) = channel::<()>();
    let events = events.clone();
    let end = started.end;
    std::thread::Builder::new()
        .name("ringway-wait".into())
        .spawn(move || {
            let how = end.wait();
            let _ = events.send(Event::ServerEnded { number, how });
            drop(alive);
        })
        .map_err(StartError::Thread)?;
    let holder = Holder::Process {
        group: started.group,
        ended,
        relay,
    };
    Ok((holder, started.pipes))
}

impl Holder {
    /// Waits for the server, whose stdin is being closed, to end; helps it to.
    fn stop(self) {
        match self {
            Holder::Process { group, ended, .. } => {
                group.stop(|patience| has_closed(&ended, patience));
            }
            Holder::Session(session) => session.stop(),
        }
    }

    /// Ends the server, says so, and waits for what it had to say.
    fn kill(self, is_gone: impl FnOnce()) {
        match self {
            Holder::Process { group, relay, .. } => {
                drop(group);
                is_gone();
                has_closed(&relay, LAST_WORDS);
            }
            Holder::Session(session) => {
                drop(session);
                is_gone();
            }
        }
    }
}

/// How long the last words of a server that has ended are waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Waits until the other end of `alive` is dropped, for `patience` at most.
pub(super) fn has_closed(alive: &Receiver<()>, patience: Duration) -> bool {
    matches!(
        alive.recv_timeout(patience),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    )
}

/// How long a mailbox may be full before its thread counts as lost.
const MAILBOX_PATIENCE: Duration = Duration::from_secs(10);

/// Sends an order. The main thread may wait for a mailbox, unlike the others; every thread takes
/// its orders at once.
pub(super) fn send_surely<T>(post: &Post<T>, order: T) {
    let deadline = std::time::Instant::now() + MAILBOX_PATIENCE;
    let mut order = order;
    loop {
        match post.send(order) {
            Ok(()) => break,
            // The thread has ended, which ends the process.
            Err(PostError::Gone(_)) => return,
            Err(PostError::Full(back)) => {
                if std::time::Instant::now() > deadline {
                    tracing::error!("a thread does not take its orders");
                    return;
                }
                order = back;
                post.ring();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    post.ring();
}
