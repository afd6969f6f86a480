//! The threads of a load: each has a loop and its share of workers, connections and sessions; nothing is shared on
//! the way of a call. They prepare, begin together, and end together.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use monoio::{FusionDriver, IoUringDriver, LegacyDriver, RuntimeBuilder};

use crate::check;
use crate::connection::{Connection, Response};
use crate::nonce::{Dice, Nonce};
use crate::options::{Common, Driver, Shape};
use crate::pace::{Deadlines, Flag};
use crate::record::{Failure, Recorder, Series, Slot, Totals, Window};
use crate::response::Media;
use crate::session::{Profile, Session};

/// Entries of a ring. What does not fit waits.
const RING_ENTRIES: u32 = 4096;

/// How many pieces a run is cut into over time, at most.
const SLOTS_MAX: u32 = 240;
/// And how short they may be.
const SLOT_MIN: Duration = Duration::from_millis(100);

/// How long a lane waits when it gets no connection, so that a dead endpoint is not hammered.
const AFTER_REFUSAL: Duration = Duration::from_millis(10);

/// How often the threads' end is looked for.
const LISTEN: Duration = Duration::from_millis(50);

/// Why a load ended before it began.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoLoad(pub String);

type SendSlot = Box<dyn FnMut(Slot)>;

/// What the tasks of one thread share.
pub struct Thread {
    pub index: u32,
    pub shape: Shape,
    pub common: Common,
    pub profile: Profile,
    pub recorder: RefCell<Recorder<SendSlot>>,
    pub deadlines: Deadlines,
    pub is_uring: bool,
    /// The load is over: no new call.
    pub over: Flag,
    pub dice: RefCell<Dice>,
}

/// One connection of a worker, with the sessions that take turns on it.
pub struct Lane {
    pub connection: Option<Connection>,
    pub sessions: Vec<Rc<Session>>,
    turn: usize,
    request: Vec<u8>,
    body: Vec<u8>,
}

/// What makes calls, one after another.
pub struct Worker {
    /// Its number among those of all threads.
    pub number: u32,
    pub lanes: Vec<Lane>,
    turn: usize,
}

impl Worker {
    /// The next connection.
    pub fn lane(&mut self) -> &mut Lane {
        self.turn = (self.turn + 1) % self.lanes.len();
        &mut self.lanes[self.turn]
    }
}

impl Lane {
    pub fn new(sessions: Vec<Rc<Session>>) -> Lane {
        Lane {
            connection: None,
            sessions,
            turn: 0,
            request: Vec::new(),
            body: Vec::new(),
        }
    }

    /// The next session.
    pub fn session(&mut self) -> Rc<Session> {
        self.turn = (self.turn + 1) % self.sessions.len();
        Rc::clone(&self.sessions[self.turn])
    }

    /// A request, written by `write` into a buffer that is used again, and the response to it.
    ///
    /// # Errors
    /// When there is no connection, or the response does not come whole.
    pub async fn exchange(
        &mut self,
        thread: &Thread,
        write: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>),
        on: impl FnMut(&[u8]),
    ) -> Result<Response, Failure> {
        self.send(thread, write).await?;
        self.receive(thread, on).await
    }

    /// The first half: after it the connection is there.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn send(
        &mut self,
        thread: &Thread,
        write: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<(), Failure> {
        let connection = match &mut self.connection {
            Some(connection) if connection.is_usable() => connection,
            unusable => {
                *unusable = None;
                let opened = Connection::open(&thread.profile.endpoint, &thread.deadlines).await;
                if opened.is_err() {
                    monoio::time::sleep(AFTER_REFUSAL).await;
                }
                let opened = opened?;
                thread.recorder.borrow_mut().totals.connections += 1;
                unusable.insert(opened)
            }
        };
        connection.set_deadline(Some(Instant::now() + thread.common.timeout));
        let mut request = std::mem::take(&mut self.request);
        write(&mut request, &mut self.body);
        let (sent, request) = connection.send(request).await;
        self.request = request;
        sent
    }

    /// The second half.
    ///
    /// # Errors
    /// When the response does not come whole.
    pub async fn receive(
        &mut self,
        thread: &Thread,
        on: impl FnMut(&[u8]),
    ) -> Result<Response, Failure> {
        let connection = self.connection.as_mut().ok_or(Failure::Closed)?;
        let received = connection.receive(on).await;
        connection.set_deadline(None);
        if let Ok(response) = &received {
            thread.recorder.borrow_mut().totals.bytes += response.bytes;
        }
        received
    }
}

impl Thread {
    /// Opens a session on a lane's connection.
    ///
    /// # Errors
    /// When the server does not open one.
    pub async fn open_session(&self, lane: &mut Lane) -> Result<Session, Failure> {
        let nonce = self.dice.borrow_mut().draw();
        let request = self.profile.initialize(Nonce {
            session: nonce,
            call: 0,
        });
        let mut check = check::Call::new(
            0,
            Nonce {
                session: nonce,
                call: 0,
            },
            false,
            false,
        );
        let start = Instant::now();
        let response = lane
            .exchange(
                self,
                |out, _| out.extend_from_slice(&request),
                |text| check.message(text, &mut self.recorder.borrow_mut().totals.violations),
            )
            .await?;
        if response.status != 200 {
            return Err(Failure::Status(response.status));
        }
        match check.answer() {
            Some(check::Answer::Result) => {}
            Some(check::Answer::Error(code, reason)) => {
                return Err(Failure::Error(*code, reason.clone()));
            }
            _ => return Err(Failure::NoReply),
        }
        self.recorder
            .borrow_mut()
            .time(Series::Initialize, start, Instant::now());
        let session = self.profile.session(response.session.as_deref(), nonce);
        let said = lane
            .exchange(
                self,
                |out, _| session.notification(out, "notifications/initialized", "{}"),
                |_| {},
            )
            .await?;
        match said.status {
            200..=299 => Ok(session),
            status => Err(Failure::Status(status)),
        }
    }

    /// Ends a session. What it was is forgotten whatever comes of it.
    pub async fn close_session(&self, lane: &mut Lane, session: &Session) -> Result<(), Failure> {
        if !session.has_id {
            return Ok(());
        }
        let response = lane
            .exchange(
                self,
                |out, _| out.extend_from_slice(&session.delete()),
                |_| {},
            )
            .await?;
        match response.status {
            200..=299 => Ok(()),
            // A server may keep its sessions.
            405 => Ok(()),
            status => Err(Failure::Status(status)),
        }
    }

    /// The stream of a session, opened on a connection of its own.
    ///
    /// # Errors
    /// When the server opens none.
    pub async fn open_stream(
        &self,
        session: &Session,
    ) -> Result<(Connection, crate::response::Framing), Failure> {
        let mut connection = Connection::open(&self.profile.endpoint, &self.deadlines).await?;
        self.recorder.borrow_mut().totals.connections += 1;
        connection.set_deadline(Some(Instant::now() + self.common.timeout));
        let (sent, _) = connection.send(session.get()).await;
        sent?;
        let head = connection.head().await?;
        connection.set_deadline(None);
        match (head.status, head.media) {
            (200, Media::EventStream) => Ok((connection, head.framing)),
            (status, _) => Err(Failure::Status(status)),
        }
    }

    /// The workers of this thread, each with its connections and sessions.
    ///
    /// # Errors
    /// When a session cannot be opened.
    pub async fn workers(self: &Rc<Self>) -> Result<Vec<Worker>, NoLoad> {
        let Shape {
            workers,
            connections,
            sessions,
            threads,
        } = self.shape;
        let lanes_of = |worker: u32| (worker..connections).step_by(workers as usize).count();
        let numbers: Vec<u32> = (self.index..workers).step_by(threads as usize).collect();
        let lanes_all: usize = numbers.iter().map(|worker| lanes_of(*worker)).sum();
        let own = (self.index..sessions).step_by(threads as usize).count();
        // Sessions are opened by the lanes that will use them, all lanes at once.
        let mut opening = Vec::new();
        for lane in 0..lanes_all {
            let thread = Rc::clone(self);
            let count = (lane..own).step_by(lanes_all).count();
            opening.push(monoio::spawn(async move {
                let mut lane = Lane::new(Vec::new());
                for _ in 0..count {
                    let session = thread.open_session(&mut lane).await?;
                    lane.sessions.push(Rc::new(session));
                }
                Ok::<Lane, Failure>(lane)
            }));
        }
        let mut lanes = Vec::new();
        for lane in opening {
            let opened: Result<Lane, Failure> = lane.await;
            lanes.push(opened.map_err(|why| NoLoad(format!("no session could be opened: {why}")))?);
        }
        // Fewer sessions than connections: they are shared.
        for lane in own..lanes.len() {
            let shared = lanes[lane % own].sessions.clone();
            lanes[lane].sessions = shared;
        }
        let mut lanes = lanes.into_iter();
        let workers = numbers.into_iter().map(|number| Worker {
            number,
            lanes: lanes.by_ref().take(lanes_of(number)).collect(),
            turn: 0,
        });
        Ok(workers.collect())
    }

    /// Ends all sessions of workers, once the load is over.
    pub async fn close(&self, workers: Vec<Worker>) {
        for lane in workers.into_iter().flat_map(|worker| worker.lanes) {
            let Lane {
                sessions,
                connection,
                ..
            } = lane;
            let mut lane = Lane::new(Vec::new());
            lane.connection = connection;
            for session in sessions {
                // A shared session is ended by the last that has it.
                if Rc::strong_count(&session) == 1 {
                    let _ = self.close_session(&mut lane, &session).await;
                }
            }
        }
    }

    pub fn fail(&self, failure: Failure) {
        self.recorder.borrow_mut().fail(failure, Instant::now());
    }

    pub fn act(&self, name: &'static str) {
        *self
            .recorder
            .borrow_mut()
            .totals
            .acts
            .entry(name)
            .or_default() += 1;
    }

    pub fn window(&self) -> Window {
        self.recorder.borrow().window()
    }
}

/// What the threads of a run share.
pub struct Crew {
    together: Barrier,
    window: Mutex<Option<Window>>,
    failed: Mutex<Option<String>>,
    is_failed: AtomicBool,
    pub seed: u64,
    /// For scenarios that act over all threads.
    pub shared: Shared,
}

/// Counts over all threads.
#[derive(Default)]
pub struct Shared {
    /// Changes of each resource that have begun.
    pub begun: Vec<AtomicU64>,
    /// No more changes will be made.
    pub has_changed_all: AtomicBool,
    /// Changes of the one resource of a mixed load that have ended.
    pub ended: AtomicU64,
    /// When the last of them began: nanoseconds since `epoch`.
    pub begun_at: Vec<AtomicU64>,
    /// Streams that were told of the last one.
    pub told: AtomicU64,
    pub epoch: Option<Instant>,
    /// Streams that are open.
    pub streams: AtomicU64,
}

impl Crew {
    fn fail(&self, why: &NoLoad) {
        self.is_failed.store(true, Ordering::Relaxed);
        let mut failed = self
            .failed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        failed.get_or_insert_with(|| why.to_string());
    }
}

/// A scenario's work on one thread.
pub trait Work: Send + Sync {
    /// What is prepared before the load begins.
    type Ready;
    /// Opens what is needed.
    fn prepare(
        &self,
        thread: &Rc<Thread>,
        crew: &Arc<Crew>,
    ) -> impl Future<Output = Result<Self::Ready, NoLoad>>;
    /// Makes the load until `thread.over`, then tidies up.
    fn run(
        &self,
        thread: &Rc<Thread>,
        crew: &Arc<Crew>,
        ready: Self::Ready,
    ) -> impl Future<Output = ()>;
}

/// What came of a load.
pub struct Outcome {
    pub totals: Totals,
    pub window: Window,
    pub driver: &'static str,
    pub seed: u64,
    /// Streams that were open in the end.
    pub streams: u64,
}

/// What is told while a load runs.
pub enum News {
    /// All is prepared; measuring goes by this.
    Begun(Window),
    Slot(Slot),
}

/// Runs `work` on all threads; `on` hears of each slot, on the calling thread.
///
/// # Errors
/// When the load could not begin.
pub fn run<W: Work>(
    work: &W,
    common: &Common,
    shape: Shape,
    profile: &Profile,
    resources: usize,
    mut on: impl FnMut(News),
) -> Result<Outcome, NoLoad> {
    let seed = common.seed.unwrap_or_else(chance);
    let crew = Arc::new(Crew {
        together: Barrier::new(shape.threads as usize + 1),
        window: Mutex::new(None),
        failed: Mutex::new(None),
        is_failed: AtomicBool::new(false),
        seed,
        shared: Shared {
            begun: (0..resources).map(|_| AtomicU64::new(0)).collect(),
            begun_at: (0..resources).map(|_| AtomicU64::new(0)).collect(),
            epoch: Some(Instant::now()),
            ..Shared::default()
        },
    });
    let (send, slots) = mpsc::channel::<Slot>();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for index in 0..shape.threads {
            let (crew, send) = (Arc::clone(&crew), send.clone());
            let start = move || thread_main(work, index, common, shape, profile, &crew, send);
            let named = std::thread::Builder::new().name(format!("load-{index}"));
            let spawned = named.spawn_scoped(scope, start);
            threads.push(spawned.map_err(|error| NoLoad(format!("no thread: {error}")))?);
        }
        drop(send);
        crew.together.wait();
        if !crew.is_failed.load(Ordering::Relaxed) {
            let start = Instant::now();
            let from = start + common.warmup;
            let window = Window {
                start,
                from,
                to: from + common.duration,
                slot: (common.duration / SLOTS_MAX).max(SLOT_MIN),
            };
            *crew
                .window
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(window);
            on(News::Begun(window));
        }
        crew.together.wait();
        // Tasks that a loop leaves behind hold their sender, so its end is not the threads' end.
        loop {
            let is_over = threads
                .iter()
                .all(std::thread::ScopedJoinHandle::is_finished);
            match slots.recv_timeout(LISTEN) {
                Ok(slot) => on(News::Slot(slot)),
                Err(_) if is_over => break,
                Err(_) => {}
            }
        }
        let mut totals = Totals::default();
        let mut driver = "";
        for thread in threads {
            let (more, used) = thread
                .join()
                .map_err(|_| NoLoad("a thread broke down".into()))?;
            totals.merge(more);
            driver = used;
        }
        let failed = crew
            .failed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        if let Some(why) = failed {
            return Err(NoLoad(why));
        }
        let window = *crew
            .window
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let window = window.ok_or_else(|| NoLoad("the load did not begin".into()))?;
        let streams = crew.shared.streams.load(Ordering::Relaxed);
        Ok(Outcome {
            totals,
            window,
            driver,
            seed,
            streams,
        })
    })
}

fn chance() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

fn thread_main<W: Work>(
    work: &W,
    index: u32,
    common: &Common,
    shape: Shape,
    profile: &Profile,
    crew: &Arc<Crew>,
    send: mpsc::Sender<Slot>,
) -> (Totals, &'static str) {
    if let Some(core) = common.pin.get(index as usize % common.pin.len().max(1)) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(*core);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            crew.fail(&NoLoad(format!("--pin {core}: {error}")));
        }
    }
    let body = |is_uring: bool| async move {
        let sender: SendSlot = Box::new(move |slot| {
            // Nobody listens any more only when the run is over.
            let _ = send.send(slot);
        });
        let thread = Rc::new(Thread {
            index,
            shape,
            common: common.clone(),
            profile: profile.clone(),
            recorder: RefCell::new(Recorder::new(Window::never(), sender)),
            deadlines: Deadlines::default(),
            is_uring,
            over: Flag::default(),
            dice: RefCell::new(Dice::new(
                crew.seed ^ u64::from(index).wrapping_mul(0x9e37_79b9),
            )),
        });
        let watcher = Rc::clone(&thread);
        monoio::spawn(async move {
            let tick = |now: Instant| watcher.recorder.borrow_mut().tick(now);
            watcher.deadlines.watch(tick).await;
        });
        let prepared = work.prepare(&thread, crew).await;
        if let Err(why) = &prepared {
            crew.fail(why);
        }
        crew.together.wait();
        crew.together.wait();
        let window = *crew
            .window
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let (Ok(ready), Some(window)) = (prepared, window) {
            thread.recorder.borrow_mut().begin(window);
            let timer = Rc::clone(&thread);
            monoio::spawn(async move {
                monoio::time::sleep(window.to.saturating_duration_since(Instant::now())).await;
                timer.over.set();
            });
            work.run(&thread, crew, ready).await;
        }
        thread.recorder.borrow_mut().finish()
    };
    let mut uring = io_uring::IoUring::builder();
    uring.setup_coop_taskrun().setup_single_issuer();
    match common.driver {
        Driver::Epoll => {
            let built = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build();
            match built {
                Ok(mut runtime) => (runtime.block_on(body(false)), "epoll"),
                Err(error) => give_up(crew, &format!("no epoll: {error}")),
            }
        }
        Driver::Uring => {
            let builder = RuntimeBuilder::<IoUringDriver>::new().with_entries(RING_ENTRIES);
            match builder.uring_builder(uring).enable_timer().build() {
                Ok(mut runtime) => (runtime.block_on(body(true)), "io_uring"),
                Err(error) => give_up(crew, &format!("no io_uring: {error}; try --driver epoll")),
            }
        }
        Driver::Auto => {
            let builder = RuntimeBuilder::<FusionDriver>::new().with_entries(RING_ENTRIES);
            match builder.uring_builder(uring).enable_timer().build() {
                Ok(monoio::FusionRuntime::Uring(mut runtime)) => {
                    (runtime.block_on(body(true)), "io_uring")
                }
                Ok(monoio::FusionRuntime::Legacy(mut runtime)) => {
                    (runtime.block_on(body(false)), "epoll")
                }
                Err(error) => give_up(crew, &format!("no loop: {error}")),
            }
        }
    }
}

/// A thread without a loop: the others wait for it at the barrier.
fn give_up(crew: &Crew, why: &str) -> (Totals, &'static str) {
    crew.fail(&NoLoad(why.to_owned()));
    crew.together.wait();
    crew.together.wait();
    (Totals::default(), "none")
}
