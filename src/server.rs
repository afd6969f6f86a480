//! Start, run, stop: the only place that knows every part. The main thread
//! starts the server's process (it is not pinned and lives as long as that
//! process), waits for events, and decides how the process ends.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ExitStatus};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver as Letters;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::Config;
use crate::http::listener;
use crate::http::shard::{FaceConfig, Handover, Shard};
use crate::limits::{HANDOVERS_MAX, MAILBOX_BATCHES, TICK_MS};
use crate::routing::shard::ShardState;
use crate::routing::upstream_id::UpstreamId;
use crate::runtime::bell::{Bell, BellWaiter, Post, PostError, mailbox};
use crate::runtime::clock;
use crate::runtime::cores;
use crate::runtime::counters::Counters;
use crate::runtime::driver::{Driver, DriverChoice, Loop, RingFlags};
use crate::runtime::fair::give_way;
use crate::runtime::notify::Notify;
use crate::runtime::tasks;
use crate::upstream::child::{self, Group, ServerCommand, StartError};
use crate::upstream::hub::{Hub, HubEvent, OpenError, ServerPipes};
use crate::upstream::letters::{Kind, Lines, Messages, ToShard};
use crate::upstream::links::{Link, LocalShard, Remote};
use crate::upstream::stderr;
use crate::wire::handshake::{Handshake, Offer};
use crate::wire::span::Span;

/// What this stage of Ringway offers of what a server offers.
const OFFER: Offer = Offer {
    get_streams: false,
    tasks: false,
};

/// Why the process ends with an error. Each is one sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}{}", taken(.source))]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("{0}")]
    Start(#[from] StartError),
    #[error("cannot set up {what}: {source}")]
    Setup {
        what: &'static str,
        source: std::io::Error,
    },
    #[error("the server {0} ended before its handshake ({1})")]
    EndedEarly(Name, String),
    #[error("the server {0} closed its stdout before its handshake")]
    ClosedEarly(Name),
    #[error("the server {0} did not answer initialize within {1:?} (--start-timeout)")]
    Silent(Name, Duration),
    #[error("the handshake with the server {0} failed: {1}")]
    Handshake(Name, OpenError),
    #[error("the server {0} has ended ({1})")]
    Ended(Name, String),
    #[error("the thread {0} has ended: {1}")]
    Thread(String, String),
}

fn taken(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another process listens there, choose another port with --listen"
        }
        _ => "",
    }
}

/// The server's command as people know it.
#[derive(Clone, Debug)]
pub struct Name(String);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl From<&ServerCommand> for Name {
    fn from(command: &ServerCommand) -> Name {
        Name(command.program.to_string_lossy().into_owned())
    }
}

/// What the main thread hears.
enum Event {
    Hub(HubEvent),
    /// A thread's loop is set up on this driver.
    Ready(Driver),
    ServerEnded(String),
    Signal(i32),
    ThreadEnded {
        thread: String,
        how: String,
    },
}

/// Runs until a signal or a failure. The returned error is the reason for exit
/// code 1.
pub fn run(config: Config) -> Result<(), ServerError> {
    clock::now();
    let setup = |what| move |source| ServerError::Setup { what, source };
    let open_files = raise_open_files();
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let (events, heard) = channel();
    watch_signals(events.clone()).map_err(setup("the signals"))?;
    let (address, listeners) = listen(config.listen, config.shards)?;
    let name = Name::from(&config.server);
    let started = child::start(&config.server, open_files)?;
    stderr::relay(started.stderr).map_err(setup("the relay of stderr"))?;
    wait_for_child(started.process, events.clone()).map_err(setup("the wait for the server"))?;
    let threads = config.shards + usize::from(config.hub_is_own);
    let start_timeout = config.start_timeout;
    let path = config.face.path.clone();
    let hub_word = if config.hub_is_own { "own" } else { "shard" };
    let shards = config.shards;
    let plan =
        Plan::new(config, listeners, started.pipes, events).map_err(setup("the mailboxes"))?;
    let stopper = plan.stopper.clone();
    let handles = plan.start().map_err(setup("a thread"))?;
    let mut running = Running {
        name,
        heard,
        stopper,
        group: Some(started.group),
        server_has_ended: None,
        is_open: false,
    };
    let outcome = running
        .open(threads, start_timeout)
        .and_then(|opened| match opened {
            Some((driver, handshake)) => {
                println!(
                    "ringway {} listening on http://{address}{path} shards={shards} hub={hub_word} driver={driver} upstream={:?} upstream-version={:?} protocol={}",
                    env!("CARGO_PKG_VERSION"),
                    handshake.server_name,
                    handshake.server_version,
                    handshake.version.as_str(),
                );
                running.until_end()
            }
            None => Ok(()),
        });
    match &outcome {
        // Nothing was served yet: there is nothing to wait for.
        Err(_) if !running.is_open => drop(running.group.take()),
        _ => running.stop(),
    }
    drop(handles);
    outcome
}

/// What the main thread holds while the others run.
struct Running {
    name: Name,
    heard: Receiver<Event>,
    stopper: Stopper,
    group: Option<Group>,
    server_has_ended: Option<String>,
    /// The handshake is done and clients are served.
    is_open: bool,
}

impl Running {
    /// Waits for every loop and the handshake. `None`: a signal came first.
    fn open(
        &mut self,
        threads: usize,
        start_timeout: Duration,
    ) -> Result<Option<(Driver, Arc<Handshake>)>, ServerError> {
        let deadline = Instant::now() + start_timeout;
        let mut ready = 0;
        let mut driver = Driver::Uring;
        let mut handshake = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(Event::Ready(of_thread)) => {
                    ready += 1;
                    if of_thread == Driver::Epoll {
                        driver = Driver::Epoll;
                    }
                }
                Ok(Event::Hub(HubEvent::Open(outcome))) => handshake = Some(outcome),
                Ok(Event::Hub(HubEvent::Failed(error))) => {
                    return Err(ServerError::Handshake(self.name.clone(), error));
                }
                Ok(Event::Hub(HubEvent::Closed(_))) => return Err(self.closed_early()),
                Ok(Event::ServerEnded(how)) => {
                    self.server_has_ended = Some(how.clone());
                    return Err(ServerError::EndedEarly(self.name.clone(), how));
                }
                Ok(Event::Signal(_)) => return Ok(None),
                Ok(Event::ThreadEnded { thread, how }) => {
                    return Err(ServerError::Thread(thread, how));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(ServerError::Silent(self.name.clone(), start_timeout));
                }
            }
            if ready == threads
                && let Some(handshake) = handshake.take()
            {
                self.is_open = true;
                return Ok(Some((driver, handshake)));
            }
        }
    }

    /// Its stdout is closed: mostly the process is about to end, and how it
    /// ended says more.
    fn closed_early(&mut self) -> ServerError {
        match self.wait_for_server(Duration::from_millis(500)) {
            true => {
                let how = self.server_has_ended.clone().unwrap_or_default();
                ServerError::EndedEarly(self.name.clone(), how)
            }
            false => ServerError::ClosedEarly(self.name.clone()),
        }
    }

    fn until_end(&mut self) -> Result<(), ServerError> {
        loop {
            match self.heard.recv() {
                Ok(Event::Signal(signal)) => {
                    tracing::info!(signal, "stopping");
                    return Ok(());
                }
                Ok(Event::Hub(HubEvent::Closed(error))) => {
                    if let Some(error) = error {
                        tracing::error!(%error, "cannot read the server's stdout");
                    }
                    // The shards have answered their calls; let the answers go out.
                    self.wait_for_server(Duration::from_millis(500));
                    let how = self
                        .server_has_ended
                        .clone()
                        .unwrap_or_else(|| "it closed its stdout".to_owned());
                    return Err(ServerError::Ended(self.name.clone(), how));
                }
                Ok(Event::ServerEnded(how)) => self.server_has_ended = Some(how),
                Ok(Event::ThreadEnded { thread, how }) => {
                    return Err(ServerError::Thread(thread, how));
                }
                Ok(Event::Hub(_) | Event::Ready(_)) => {}
                Err(_) => return Ok(()),
            }
        }
    }

    /// Waits up to `patience` for the server's process to end.
    fn wait_for_server(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.server_has_ended.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(Event::ServerEnded(how)) => self.server_has_ended = Some(how),
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Stops the server: its stdin is closed first.
    fn stop(&mut self) {
        self.stopper.stop();
        if let Some(group) = self.group.take() {
            group.stop(|patience| self.wait_for_server(patience));
        }
    }
}

/// Raises the soft limit on open files to the hard one. Returns the soft limit
/// as it was, for the server.
fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
    limit.current.unwrap_or(u64::MAX)
}

fn watch_signals(events: Sender<Event>) -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new()
        .name("ringway-signals".into())
        .spawn(move || {
            for signal in &mut signals {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}

fn wait_for_child(mut process: Child, events: Sender<Event>) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("ringway-wait".into())
        .spawn(move || {
            let how = match process.wait() {
                Ok(status) => describe(status),
                Err(error) => error.to_string(),
            };
            let _ = events.send(Event::ServerEnded(how));
        })?;
    Ok(())
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

/// Binds one listener a shard. With SO_REUSEPORT a second Ringway could bind the
/// same port without a word, so a plain bind shows first that it is free.
fn listen(
    address: SocketAddr,
    shards: usize,
) -> Result<(SocketAddr, Vec<TcpListener>), ServerError> {
    let failed = |source: std::io::Error| ServerError::Listen { address, source };
    let probe = TcpListener::bind(address).map_err(failed)?;
    let address = probe.local_addr().map_err(failed)?;
    drop(probe);
    let listeners = (0..shards)
        .map(|_| reuse_port_listener(address).map_err(|error| failed(error.into())))
        .collect::<Result<_, _>>()?;
    Ok((address, listeners))
}

fn reuse_port_listener(address: SocketAddr) -> rustix::io::Result<TcpListener> {
    use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 4_096)?;
    Ok(TcpListener::from(socket))
}

/// Asks the hub to close the server's stdin.
#[derive(Clone)]
struct Stopper(Post<Stop>);

/// The letter that does it.
struct Stop;

impl Stopper {
    fn stop(&self) {
        if let Err(PostError::Full(_)) = self.0.send(Stop) {
            tracing::debug!("the hub has been asked to stop already");
        }
        self.0.ring();
    }
}

/// Everything that the threads are made of, before they start.
struct Plan {
    shards: Vec<ShardPlan>,
    hub: HubPlan,
    /// Its bell, if the hub has a thread of its own.
    own_hub: Option<Arc<Bell>>,
    stopper: Stopper,
    cores: Vec<Option<usize>>,
    driver: DriverChoice,
    ring_flags: RingFlags,
    events: Sender<Event>,
}

struct ShardPlan {
    index: usize,
    shards: usize,
    bell: Arc<Bell>,
    listener: TcpListener,
    face: Arc<FaceConfig>,
    limits: crate::routing::shard::ShardLimits,
    peers: Vec<Post<Handover>>,
    handovers: Letters<Handover>,
    letters: Letters<ToShard>,
    lines: Post<Lines>,
}

struct HubPlan {
    /// For each shard: its mailbox, and the lines that come from it.
    posts: Vec<(Post<ToShard>, Letters<Lines>)>,
    stops: Letters<Stop>,
    pipes: ServerPipes,
    line_bytes_max: usize,
}

impl Plan {
    fn new(
        config: Config,
        listeners: Vec<TcpListener>,
        pipes: ServerPipes,
        events: Sender<Event>,
    ) -> std::io::Result<Plan> {
        let shards = config.shards;
        let bells = (0..shards)
            .map(|_| Bell::new())
            .collect::<Result<Vec<_>, _>>()?;
        let own_hub = config.hub_is_own.then(Bell::new).transpose()?;
        let hub_bell = own_hub.as_ref().unwrap_or(&bells[0]);
        let (stop, stops) = mailbox(1, hub_bell);
        let face = Arc::new(config.face);
        let (peers, handovers): (Vec<_>, Vec<_>) = bells
            .iter()
            .map(|bell| mailbox(HANDOVERS_MAX, bell))
            .unzip();
        let mut posts = Vec::new();
        let mut shard_plans = Vec::new();
        for (index, ((bell, listener), handovers)) in
            bells.iter().zip(listeners).zip(handovers).enumerate()
        {
            let (post, letters) = mailbox(MAILBOX_BATCHES, bell);
            let (lines, from_shard) = mailbox(MAILBOX_BATCHES, hub_bell);
            posts.push((post, from_shard));
            shard_plans.push(ShardPlan {
                index,
                shards,
                bell: bell.clone(),
                listener,
                face: face.clone(),
                limits: config.limits,
                peers: peers.clone(),
                handovers,
                letters,
                lines,
            });
        }
        Ok(Plan {
            shards: shard_plans,
            hub: HubPlan {
                posts,
                stops,
                pipes,
                line_bytes_max: config.line_bytes_max,
            },
            own_hub,
            stopper: Stopper(stop),
            cores: config.cores,
            driver: config.driver,
            ring_flags: config.ring_flags,
            events,
        })
    }

    /// Starts the threads: the hub's, if it has one, and the shards'.
    fn start(self) -> std::io::Result<Vec<JoinHandle<()>>> {
        let mut hub = Some(self.hub);
        let mut cores = self.cores.into_iter();
        let mut handles = Vec::new();
        let spawner = Spawner {
            driver: self.driver,
            ring_flags: self.ring_flags,
            events: self.events,
        };
        for shard in self.shards {
            let local_hub = match (shard.index, &self.own_hub) {
                (0, None) => hub.take(),
                _ => None,
            };
            let name = format!("ringway-shard-{}", shard.index);
            let core = cores.next().flatten();
            handles.push(spawner.spawn(name, core, move |driver, events| {
                run_shard(shard, local_hub, driver, events)
            })?);
        }
        if let (Some(bell), Some(hub)) = (self.own_hub, hub.take()) {
            let core = cores.next().flatten();
            handles.push(
                spawner.spawn("ringway-hub".into(), core, move |driver, events| {
                    run_own_hub(hub, bell, driver, events)
                })?,
            );
        }
        Ok(handles)
    }
}

/// Starts threads with a loop each, and says when one ends: none may.
struct Spawner {
    driver: DriverChoice,
    ring_flags: RingFlags,
    events: Sender<Event>,
}

impl Spawner {
    fn spawn<F>(
        &self,
        name: String,
        core: Option<usize>,
        work: impl FnOnce(Driver, Sender<Event>) -> F + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>>
    where
        F: Future<Output = std::io::Result<()>>,
    {
        let (choice, flags, events) = (self.driver, self.ring_flags, self.events.clone());
        std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                if let Some(core) = core
                    && let Err(error) = cores::pin(core)
                {
                    tracing::warn!(core, %error, "cannot pin {name}");
                }
                let run = || -> std::io::Result<()> {
                    let mut event_loop = Loop::new(choice, flags)?;
                    let driver = event_loop.driver();
                    tracing::info!(%driver, ?core, "{name} runs");
                    let _ = events.send(Event::Ready(driver));
                    event_loop.block_on(work(driver, events.clone()))
                };
                let how = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                    Ok(Ok(())) => "its work is done".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => format!("it panicked: {}", tasks::text(&*panic)),
                };
                let _ = events.send(Event::ThreadEnded { thread: name, how });
            })
    }
}

/// The thread of a shard, and of the hub if it lives here.
async fn run_shard(
    plan: ShardPlan,
    hub: Option<HubPlan>,
    driver: Driver,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let lines_ready = Rc::new(Notify::default());
    let state = ShardState::new(
        plan.index,
        plan.shards,
        plan.limits,
        ahash::RandomState::new(),
        clock::now(),
    );
    let shard = Shard::new(
        plan.index,
        plan.shards,
        driver,
        plan.face,
        state,
        lines_ready.clone(),
        plan.peers,
        Arc::new(Counters::default()),
    );
    let waiter = BellWaiter::new(plan.bell, driver)?;
    let listener = listener::adopt(plan.listener, driver)?;
    let opening = Rc::new(Notify::default());
    let mail = ShardMail {
        shard: shard.clone(),
        letters: plan.letters,
        handovers: plan.handovers,
        opening: opening.clone(),
    };
    let hub = hub.map(|plan| {
        let local = Rc::new(Local {
            shard: shard.clone(),
            opening: opening.clone(),
        });
        start_hub(plan, Some(local), lines_ready.clone(), driver, events)
    });
    let is_local = hub.is_some();
    if !is_local {
        tasks::spawn("lines", send_lines(shard.clone(), plan.lines));
    }
    tasks::spawn("tick", tick(shard.clone()));
    tasks::spawn("accept", accept_when_open(shard, opening, listener));
    loop {
        let busy = mail.take() | hub.as_ref().is_some_and(HubMail::take);
        if busy {
            give_way().await;
        } else {
            waiter
                .wait(|| mail.has_mail() || hub.as_ref().is_some_and(HubMail::has_mail))
                .await?;
        }
    }
}

/// The thread of a hub of its own.
async fn run_own_hub(
    plan: HubPlan,
    bell: Arc<Bell>,
    driver: Driver,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let waiter = BellWaiter::new(bell, driver)?;
    let hub = start_hub(plan, None, Rc::new(Notify::default()), driver, events);
    loop {
        match hub.take() {
            true => give_way().await,
            false => waiter.wait(|| hub.has_mail()).await?,
        }
    }
}

fn start_hub(
    plan: HubPlan,
    local: Option<Rc<Local>>,
    lines_ready: Rc<Notify>,
    driver: Driver,
    events: Sender<Event>,
) -> HubMail {
    let mut local = local;
    let links = plan
        .posts
        .into_iter()
        .map(|(post, lines)| match local.take() {
            Some(shard) => Link::Local(shard), // shard 0 comes first
            None => Link::Remote(Remote::new(post, lines)),
        })
        .collect();
    let counters = Arc::new(Counters::default());
    let report = move |event| {
        let _ = events.send(Event::Hub(event));
    };
    let hub = Hub::new(
        links,
        lines_ready,
        OFFER,
        plan.line_bytes_max,
        counters,
        Box::new(report),
    );
    let serving = hub.clone();
    let pipes = plan.pipes;
    tasks::spawn("hub", async move {
        if let Err(error) = serving.serve(pipes, driver).await {
            tracing::error!(%error, "cannot talk to the server");
        }
    });
    tasks::spawn("overflow", hub.clone().retry_overflow());
    HubMail {
        hub,
        stops: plan.stops,
    }
}

/// The mailboxes of the hub.
struct HubMail {
    hub: Rc<Hub>,
    stops: Letters<Stop>,
}

impl HubMail {
    /// Lines stay in their mailboxes, as the bound that they are, until the
    /// writing task takes them. True if a letter was taken.
    fn take(&self) -> bool {
        if self.stops.try_recv().is_ok() {
            self.hub.stop_writing();
        }
        if self.hub.has_news() {
            self.hub.tell_writer();
        }
        false
    }

    fn has_mail(&self) -> bool {
        !self.stops.is_empty() || self.hub.has_news()
    }
}

/// The mailboxes of a shard.
struct ShardMail {
    shard: Rc<Shard>,
    letters: Letters<ToShard>,
    handovers: Letters<Handover>,
    opening: Rc<Notify>,
}

impl ShardMail {
    /// Takes a bounded number of letters. True if there were any.
    fn take(&self) -> bool {
        let mut taken = false;
        for _ in 0..16 {
            let Ok(letter) = self.letters.try_recv() else {
                break;
            };
            taken = true;
            handle_letter(&self.shard, letter, &self.opening);
        }
        for _ in 0..64 {
            let Ok(handover) = self.handovers.try_recv() else {
                break;
            };
            taken = true;
            listener::take_over(&self.shard, handover);
        }
        taken
    }

    fn has_mail(&self) -> bool {
        !self.letters.is_empty() || !self.handovers.is_empty()
    }
}

fn handle_letter(shard: &Rc<Shard>, letter: ToShard, opening: &Notify) {
    match letter {
        ToShard::Up(handshake) => {
            shard.state.borrow_mut().upstream_up(handshake);
            opening.notify();
        }
        ToShard::Messages(messages) => deliver_all(shard, &messages),
        ToShard::Large { id, id_span, line } => shard.answer(id, id_span, &line),
        ToShard::Written(bytes) => shard.written(bytes),
        ToShard::Down => shard.upstream_down(),
    }
}

fn deliver_all(shard: &Shard, messages: &Messages) {
    for (kind, id, span, message) in messages.iter() {
        deliver(shard, kind, id, span, message);
    }
}

fn deliver(shard: &Shard, kind: Kind, id: UpstreamId, span: Span, message: &[u8]) {
    match kind {
        Kind::Answer => shard.answer(id, span, message),
        Kind::Progress => shard.progress(id),
    }
}

/// The shard on the hub's own thread, as the hub sees it.
struct Local {
    shard: Rc<Shard>,
    opening: Rc<Notify>,
}

impl LocalShard for Local {
    fn letter(&self, letter: ToShard) {
        handle_letter(&self.shard, letter, &self.opening);
    }

    fn message(&self, kind: Kind, id: UpstreamId, span: Span, message: &[u8]) {
        deliver(&self.shard, kind, id, span, message);
    }

    fn take_lines(&self, empty: Vec<u8>) -> Vec<u8> {
        self.shard.state.borrow_mut().outgoing.take_batch(empty)
    }

    fn written(&self, bytes: usize) {
        self.shard.written(bytes);
    }
}

/// Hands a shard's lines to a hub on another thread. When its mailbox is full
/// the lines stay here, and the window closes behind them.
async fn send_lines(shard: Rc<Shard>, post: Post<Lines>) {
    loop {
        shard.lines_ready.wait().await;
        // Calls that are ready now join the same batch.
        give_way().await;
        let batch = {
            let mut state = shard.state.borrow_mut();
            match state.outgoing.has_batch() {
                true => state.outgoing.take_batch(Vec::new()),
                false => continue,
            }
        };
        match post.send(Lines(batch)) {
            Ok(()) => post.ring(),
            Err(PostError::Full(Lines(batch))) => {
                shard.state.borrow_mut().outgoing.put_back(batch);
                monoio::time::sleep(Duration::from_millis(1)).await;
                shard.lines_ready.notify();
            }
            Err(PostError::Gone(_)) => return,
        }
    }
}

async fn tick(shard: Rc<Shard>) {
    loop {
        monoio::time::sleep(Duration::from_millis(TICK_MS)).await;
        shard.tick();
    }
}

async fn accept_when_open(
    shard: Rc<Shard>,
    opening: Rc<Notify>,
    listener: monoio::net::TcpListener,
) {
    opening.wait().await;
    listener::accept(shard, listener).await;
}
