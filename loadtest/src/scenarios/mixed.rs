//! A mixed load: calls, lists, pings, progress, changes, on sessions with streams. As a storm its clients also vanish
//! in the middle of a call, cancel, do not read, end their sessions or leave them behind, and come back.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::streams::{Resource, change, subscribe};
use super::{Kind, call, join, request, settle, turns};
use crate::check::{self, Told};
use crate::engine::{Crew, Lane, NoLoad, Thread, Work, Worker};
use crate::nonce::Dice;
use crate::pace::{Flag, shut_down};
use crate::record::{Failure, Series};
use crate::response::Body;
use crate::session::Session;
use crate::sse::{EVENT_BYTES_MAX, Events};

pub struct Mixed {
    pub echo: Kind,
    /// With progress.
    pub slow: Option<Kind>,
    pub resource: Option<Resource>,
    pub is_storm: bool,
}

/// One of the sessions, with the task that listens to its stream.
struct Member {
    session: Rc<Session>,
    listener: Rc<Listener>,
}

/// What ends a listener from outside.
#[derive(Default)]
struct Listener {
    /// The session has ended.
    gone: Flag,
    socket: std::cell::Cell<Option<std::os::fd::RawFd>>,
}

impl Listener {
    fn end(&self) {
        self.gone.set();
        if let Some(socket) = self.socket.get() {
            shut_down(socket);
        }
    }
}

/// A worker with its members: each lane has one session of its own.
pub struct Actor {
    worker: Worker,
    members: Vec<Member>,
    /// For what is said while a call waits.
    spare: Lane,
    dice: Dice,
}

impl Work for Mixed {
    type Ready = Vec<Actor>;

    async fn prepare(&self, thread: &Rc<Thread>, crew: &Arc<Crew>) -> Result<Vec<Actor>, NoLoad> {
        let mut actors = Vec::new();
        for mut worker in thread.workers().await? {
            let mut spare = Lane::new(Vec::new());
            let mut members = Vec::new();
            for lane in &mut worker.lanes {
                for session in lane.sessions.clone() {
                    let member = self.join(thread, crew, &mut spare, session).await;
                    members.push(
                        member
                            .map_err(|why| NoLoad(format!("no stream could be opened: {why}")))?,
                    );
                }
            }
            let seed = thread.dice.borrow_mut().draw();
            actors.push(Actor {
                worker,
                members,
                spare,
                dice: Dice::new(seed),
            });
        }
        Ok(actors)
    }

    async fn run(&self, thread: &Rc<Thread>, crew: &Arc<Crew>, actors: Vec<Actor>) {
        let mut tasks = Vec::new();
        for mut actor in actors {
            let (thread, crew, mixed) = (Rc::clone(thread), Arc::clone(crew), self.copy());
            tasks.push(monoio::spawn(async move {
                mixed.act(&thread, &crew, &mut actor).await;
                actor
            }));
        }
        let actors = join(tasks).await;
        let mut workers = Vec::new();
        for actor in actors {
            for member in actor.members {
                member.listener.end();
            }
            workers.push(actor.worker);
        }
        thread.close(workers).await;
    }
}

impl Mixed {
    fn copy(&self) -> Mixed {
        Mixed {
            echo: self.echo.clone(),
            slow: self.slow.clone(),
            resource: self.resource.clone(),
            is_storm: self.is_storm,
        }
    }

    /// Subscribes a session and listens to its stream from now on.
    async fn join(
        &self,
        thread: &Rc<Thread>,
        crew: &Arc<Crew>,
        lane: &mut Lane,
        session: Rc<Session>,
    ) -> Result<Member, Failure> {
        let listener = Rc::new(Listener::default());
        if let Some(resource) = &self.resource {
            // One that has begun and not ended may be told of yet.
            let before = crew.shared.ended.load(Relaxed);
            subscribe(thread, lane, &session, &resource.uri).await?;
            let ear = Ear {
                thread: Rc::clone(thread),
                crew: Arc::clone(crew),
                listener: Rc::clone(&listener),
                told: Told::new(session.nonce, [resource.uri.clone()]),
                session: Rc::clone(&session),
                uri: resource.uri.clone(),
                before,
                streams: 0,
                is_storm: self.is_storm,
                dice: Dice::new(thread.dice.borrow_mut().draw()),
            };
            monoio::spawn(ear.listen());
        }
        Ok(Member { session, listener })
    }

    async fn act(&self, thread: &Rc<Thread>, crew: &Arc<Crew>, actor: &mut Actor) {
        let number = actor.worker.number;
        turns(thread, number, async |start| {
            self.turn(thread, crew, actor, start).await;
        })
        .await;
    }

    async fn turn(&self, thread: &Rc<Thread>, crew: &Arc<Crew>, actor: &mut Actor, start: Instant) {
        let chance = actor.dice.below(1_000);
        let lane = actor.worker.lane();
        match chance {
            0..100 => request(thread, lane, "ping", "{}", start).await,
            100..150 => request(thread, lane, "tools/list", "{}", start).await,
            150..300 => match &self.slow {
                Some(slow) => call(thread, lane, slow, start).await,
                None => call(thread, lane, &self.echo, start).await,
            },
            300..310 => {
                if let Some(resource) = &self.resource {
                    crew.shared.begun[0].fetch_add(1, Relaxed);
                    thread.act("change");
                    change(thread, lane, &resource.trigger).await;
                    crew.shared.ended.fetch_add(1, Relaxed);
                }
            }
            310..340 if self.is_storm => self.vanish(thread, actor).await,
            340..370 if self.is_storm => self.cancel(thread, actor).await,
            370..400 if self.is_storm => self.read_late(thread, actor).await,
            400..410 if self.is_storm => self.renew(thread, crew, actor).await,
            _ => call(thread, lane, &self.echo, start).await,
        }
    }

    /// A call that is sent and not yet read. `None`: it could not be sent, which is told.
    async fn begin(
        &self,
        thread: &Thread,
        lane: &mut Lane,
    ) -> Option<(check::Call<'static>, u64, Rc<Session>)> {
        let kind = self.slow.as_ref().unwrap_or(&self.echo);
        let session = lane.session();
        let (id, nonce) = session.next();
        let has_token = kind.progress.is_some();
        let sent = lane
            .send(thread, |out, body| {
                session.call(out, body, &kind.tool, id, nonce, has_token);
            })
            .await;
        match sent {
            Ok(()) => Some((
                check::Call::new(id, nonce, kind.repeats, has_token),
                id,
                session,
            )),
            Err(failure) => {
                thread.fail(failure);
                None
            }
        }
    }

    /// A call whose client is gone before its answer comes.
    async fn vanish(&self, thread: &Thread, actor: &mut Actor) {
        let lane = actor.worker.lane();
        if self.begin(thread, lane).await.is_some() {
            monoio::time::sleep(Duration::from_millis(actor.dice.below(4))).await;
        }
        if let Some(mut connection) = lane.connection.take() {
            connection.vanish();
        }
        thread.act("vanish");
    }

    /// A call that its client cancels. It may have been answered before.
    async fn cancel(&self, thread: &Thread, actor: &mut Actor) {
        let Actor {
            worker,
            spare,
            dice,
            ..
        } = actor;
        let lane = worker.lane();
        let start = Instant::now();
        let Some((mut check, id, session)) = self.begin(thread, lane).await else {
            return;
        };
        monoio::time::sleep(Duration::from_millis(dice.below(4))).await;
        let params = format!(r#"{{"requestId":{id}}}"#);
        let said = spare
            .exchange(
                thread,
                |out, _| session.notification(out, "notifications/cancelled", &params),
                |_| {},
            )
            .await;
        if let Err(failure) = said {
            thread.fail(failure);
        }
        let received = lane
            .receive(thread, |text| {
                check.message(text, &mut thread.recorder.borrow_mut().totals.violations);
            })
            .await;
        thread.act("cancel");
        let (end, mut recorder) = (Instant::now(), thread.recorder.borrow_mut());
        match (received, check.answer()) {
            _ if check.is_wrong() => recorder.wrong(end),
            (Ok(_), Some(check::Answer::Result)) => recorder.time(Series::Call, start, end),
            // No answer is what the protocol asks for; an error is what most give.
            (Ok(_), _) => *recorder.totals.acts.entry("cancelled in time").or_default() += 1,
            (Err(failure), _) => recorder.fail(failure, end),
        }
    }

    /// A call whose client does not read for a while.
    async fn read_late(&self, thread: &Thread, actor: &mut Actor) {
        let Actor { worker, dice, .. } = actor;
        let lane = worker.lane();
        let start = Instant::now();
        let Some((mut check, ..)) = self.begin(thread, lane).await else {
            return;
        };
        monoio::time::sleep(Duration::from_millis(50 + dice.below(200))).await;
        let response = lane
            .receive(thread, |text| {
                check.message(text, &mut thread.recorder.borrow_mut().totals.violations);
            })
            .await;
        thread.act("read late");
        settle(thread, &response, check, start, None);
    }

    /// A session that ends, or is left behind, and a new one in its place.
    async fn renew(&self, thread: &Rc<Thread>, crew: &Arc<Crew>, actor: &mut Actor) {
        if actor.members.is_empty() {
            return;
        }
        let at = actor.dice.below(actor.members.len() as u64) as usize;
        let old = actor.members.swap_remove(at);
        old.listener.end();
        let Some(lane) = actor.worker.lanes.iter_mut().find(|lane| {
            lane.sessions
                .iter()
                .any(|session| Rc::ptr_eq(session, &old.session))
        }) else {
            return;
        };
        if actor.dice.once_in(4) {
            thread.act("leave");
        } else {
            thread.act("end");
            if let Err(failure) = thread.close_session(lane, &old.session).await {
                thread.fail(failure);
            }
        }
        let opened = match thread.open_session(lane).await {
            Ok(session) => Rc::new(session),
            Err(failure) => {
                // The old one stays where it is, and is refused from now on, which is told.
                thread.fail(failure);
                return;
            }
        };
        for session in &mut lane.sessions {
            if Rc::ptr_eq(session, &old.session) {
                *session = Rc::clone(&opened);
            }
        }
        match self.join(thread, crew, &mut actor.spare, opened).await {
            Ok(member) => actor.members.push(member),
            Err(failure) => thread.fail(failure),
        }
    }
}

/// Listens to the stream of a session for as long as it lives.
struct Ear {
    thread: Rc<Thread>,
    crew: Arc<Crew>,
    listener: Rc<Listener>,
    told: Told,
    session: Rc<Session>,
    uri: String,
    /// Changes that had ended when the session was subscribed.
    before: u64,
    /// Streams that were opened.
    streams: u64,
    is_storm: bool,
    dice: Dice,
}

impl Ear {
    fn is_done(&self) -> bool {
        self.thread.over.is_set() || self.listener.gone.is_set()
    }

    async fn listen(mut self) {
        while !self.is_done() {
            let opened = self.thread.open_stream(&self.session).await;
            let (mut connection, framing) = match opened {
                Ok(opened) => opened,
                Err(failure) => {
                    if !self.is_done() {
                        self.thread.fail(failure);
                    }
                    monoio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            self.streams += 1;
            self.listener.socket.set(Some(connection.raw_fd()));
            if self.is_done() {
                connection.vanish();
            }
            let mut body = Body::new(framing);
            let (mut events, mut bytes) = (Events::default(), Vec::new());
            let mut left = false;
            while let Ok(true) = connection.more(&mut body, &mut bytes).await {
                self.hear(&mut events, &bytes);
                bytes.clear();
                if events.waiting() > EVENT_BYTES_MAX {
                    break;
                }
                if self.is_storm {
                    match self.dice.below(40) {
                        0 => {
                            self.thread.act("leave stream");
                            left = true;
                            break;
                        }
                        1 => {
                            self.thread.act("pause stream");
                            monoio::time::sleep(Duration::from_millis(self.dice.below(300))).await;
                        }
                        _ => {}
                    }
                }
            }
            self.listener.socket.set(None);
            drop(connection);
            if !left && !self.is_done() {
                self.thread.fail(Failure::StreamEnded);
                monoio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        self.listener.socket.set(None);
    }

    fn hear(&mut self, events: &mut Events, bytes: &[u8]) {
        // What the old stream was told and did not take may be told again on the next one.
        let again = self.streams - 1;
        let begun = self.crew.shared.begun[0].load(Relaxed) - self.before;
        self.told.begun(&self.uri, begun + again);
        let Ear { thread, told, .. } = self;
        events.feed(bytes, |text| {
            let mut recorder = thread.recorder.borrow_mut();
            if told
                .message(text, &mut recorder.totals.violations)
                .is_some()
            {
                *recorder.totals.acts.entry("told").or_default() += 1;
            }
        });
    }
}
