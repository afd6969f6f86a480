//! Sessions with open streams: idle, or told of changes.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{join, settle};
use crate::check::{self, Told};
use crate::connection::Connection;
use crate::engine::{Crew, Lane, NoLoad, Thread, Work};
use crate::options::Tool;
use crate::pace::{Pacer, shut_down};
use crate::record::{Failure, Series};
use crate::response::{Body, Framing};
use crate::session::Session;
use crate::sse::{EVENT_BYTES_MAX, Events};

/// Sessions with streams. Without resources they are idle; with some each session subscribes to one of them, and the
/// first thread changes one after another.
pub struct Streams {
    pub resources: Vec<Resource>,
}

/// A resource and the call that changes it.
#[derive(Clone)]
pub struct Resource {
    pub uri: String,
    pub trigger: Tool,
}

/// A session's stream with what reads it.
pub struct Stream {
    pub session: Rc<Session>,
    pub connection: Connection,
    pub framing: Framing,
    /// Which resource the session is subscribed to.
    pub resource: Option<usize>,
    /// Changes of it before the subscription, which are none of the session's.
    pub before: u64,
}

/// What is there when the load begins.
pub struct Ready {
    lanes: Vec<Lane>,
    streams: Vec<Stream>,
    trigger: Option<Lane>,
}

impl Work for Streams {
    type Ready = Ready;

    async fn prepare(&self, thread: &Rc<Thread>, crew: &Arc<Crew>) -> Result<Ready, NoLoad> {
        let own: Vec<u32> = (thread.index..thread.shape.sessions)
            .step_by(thread.shape.threads as usize)
            .collect();
        let lanes = (thread.shape.workers / thread.shape.threads).clamp(1, 64) as usize;
        let mut opening = Vec::new();
        for at in 0..lanes.min(own.len()) {
            let (thread, crew) = (Rc::clone(thread), Arc::clone(crew));
            let numbers: Vec<u32> = own.iter().copied().skip(at).step_by(lanes).collect();
            let uris: Vec<String> = self
                .resources
                .iter()
                .map(|resource| resource.uri.clone())
                .collect();
            opening.push(monoio::spawn(async move {
                let mut lane = Lane::new(Vec::new());
                let mut streams = Vec::new();
                for number in numbers {
                    let resource = (!uris.is_empty()).then(|| number as usize % uris.len());
                    let uri = resource.map(|at| uris[at].as_str());
                    streams.push(open(&thread, &crew, &mut lane, uri, resource).await?);
                }
                Ok::<_, Failure>((lane, streams))
            }));
        }
        let mut ready = Ready {
            lanes: Vec::new(),
            streams: Vec::new(),
            trigger: None,
        };
        for opened in join(opening).await {
            let (lane, streams) =
                opened.map_err(|why| NoLoad(format!("no stream could be opened: {why}")))?;
            ready.lanes.push(lane);
            ready.streams.extend(streams);
        }
        crew.shared
            .streams
            .fetch_add(ready.streams.len() as u64, Relaxed);
        if thread.index == 0 && !self.resources.is_empty() {
            let mut lane = Lane::new(Vec::new());
            let opened = thread.open_session(&mut lane).await;
            let session =
                opened.map_err(|why| NoLoad(format!("no session could be opened: {why}")))?;
            lane.sessions.push(Rc::new(session));
            ready.trigger = Some(lane);
        }
        Ok(ready)
    }

    async fn run(&self, thread: &Rc<Thread>, crew: &Arc<Crew>, ready: Ready) {
        let Ready {
            mut lanes,
            streams,
            trigger,
        } = ready;
        let sessions: Vec<Rc<Session>> = streams
            .iter()
            .map(|stream| Rc::clone(&stream.session))
            .collect();
        let sockets: Vec<_> = streams
            .iter()
            .map(|stream| stream.connection.raw_fd())
            .collect();
        let mut listeners = Vec::new();
        for stream in streams {
            let (thread, crew) = (Rc::clone(thread), Arc::clone(crew));
            let uri = stream.resource.map(|at| self.resources[at].uri.clone());
            listeners.push(monoio::spawn(async move {
                listen(&thread, &crew, stream, uri).await
            }));
        }
        if let Some(mut lane) = trigger {
            self.trigger(thread, crew, &mut lane).await;
            let session = lane.session();
            let _ = thread.close_session(&mut lane, &session).await;
            crew.shared.has_changed_all.store(true, Relaxed);
        }
        thread.over.wait().await;
        // The last change may be on its way to streams of other threads than the one that made it.
        let is_waiting =
            || !self.resources.is_empty() && !crew.shared.has_changed_all.load(Relaxed);
        let deadline = thread.window().to + 2 * thread.common.timeout;
        while is_waiting() && Instant::now() < deadline {
            monoio::time::sleep(Duration::from_millis(5)).await;
        }
        // The load is over: what the listeners wait for ends.
        for socket in sockets {
            shut_down(socket);
        }
        join(listeners).await;
        let count = lanes.len();
        for (at, session) in sessions.iter().enumerate() {
            let _ = thread.close_session(&mut lanes[at % count], session).await;
        }
    }
}

/// Opens a session, its stream, and its subscription.
async fn open(
    thread: &Thread,
    crew: &Crew,
    lane: &mut Lane,
    uri: Option<&str>,
    resource: Option<usize>,
) -> Result<Stream, Failure> {
    let session = Rc::new(thread.open_session(lane).await?);
    let (connection, framing) = thread.open_stream(&session).await?;
    let before = resource.map_or(0, |at| crew.shared.begun[at].load(Relaxed));
    if let Some(uri) = uri {
        subscribe(thread, lane, &session, uri).await?;
    }
    Ok(Stream {
        session,
        connection,
        framing,
        resource,
        before,
    })
}

/// Subscribes a session to a URI.
pub async fn subscribe(
    thread: &Thread,
    lane: &mut Lane,
    session: &Session,
    uri: &str,
) -> Result<(), Failure> {
    let (id, nonce) = session.next();
    let mut check = check::Call::new(id, nonce, false, false);
    let params = format!(r#"{{"uri":{}}}"#, serde_json::Value::from(uri));
    let response = lane
        .exchange(
            thread,
            |out, _| session.request(out, id, "resources/subscribe", &params),
            |text| check.message(text, &mut thread.recorder.borrow_mut().totals.violations),
        )
        .await?;
    match (response.status, check.answer()) {
        (200, Some(check::Answer::Result)) => Ok(()),
        (200, Some(check::Answer::Error(code, reason))) => {
            Err(Failure::Error(*code, reason.clone()))
        }
        (200, _) => Err(Failure::NoReply),
        (status, _) => Err(Failure::Status(status)),
    }
}

/// Reads a stream to its end.
async fn listen(thread: &Thread, crew: &Crew, stream: Stream, uri: Option<String>) {
    let Stream {
        session,
        mut connection,
        framing,
        resource,
        before,
    } = stream;
    let shared = &crew.shared;
    let mut told = Told::new(session.nonce, uri.clone());
    let (mut body, mut events, mut bytes) = (Body::new(framing), Events::default(), Vec::new());
    while let Ok(true) = connection.more(&mut body, &mut bytes).await {
        if let (Some(at), Some(uri)) = (resource, &uri) {
            told.begun(uri, shared.begun[at].load(Relaxed) - before);
        }
        let end = Instant::now();
        events.feed(&bytes, |text| {
            let mut recorder = thread.recorder.borrow_mut();
            if told
                .message(text, &mut recorder.totals.violations)
                .is_none()
            {
                return;
            }
            if let (Some(at), Some(epoch)) = (resource, shared.epoch) {
                let begun = epoch + Duration::from_nanos(shared.begun_at[at].load(Relaxed));
                recorder.time(Series::Delivery, begun, end);
                shared.told.fetch_add(1, Relaxed);
            }
        });
        bytes.clear();
        if events.waiting() > EVENT_BYTES_MAX {
            break;
        }
    }
    if !thread.over.is_set() {
        shared.streams.fetch_sub(1, Relaxed);
        thread.fail(Failure::StreamEnded);
    }
}

impl Streams {
    /// Changes one resource after another, each when all that listen to it were told of the last change or the time
    /// for that is over.
    async fn trigger(&self, thread: &Rc<Thread>, crew: &Crew, lane: &mut Lane) {
        let Ok(mut pacer) = Pacer::new(thread.is_uring) else {
            return;
        };
        let (shared, window) = (&crew.shared, thread.window());
        for turn in 0u64.. {
            if let Some(rate) = thread.common.rate {
                #[expect(clippy::cast_precision_loss, reason = "turns stay far below 2^52")]
                pacer
                    .until(window.start + Duration::from_secs_f64(turn as f64 / rate))
                    .await;
            }
            if thread.over.is_set() {
                return;
            }
            let at = (turn % self.resources.len() as u64) as usize;
            // Streams take the resources in turn.
            let listening = (u64::from(thread.shape.sessions)
                + (self.resources.len() - 1 - at) as u64)
                / self.resources.len() as u64;
            shared.told.store(0, Relaxed);
            let now = shared
                .epoch
                .map_or(0, |epoch| epoch.elapsed().as_nanos() as u64);
            shared.begun_at[at].store(now, Relaxed);
            shared.begun[at].fetch_add(1, Relaxed);
            thread.act("change");
            change(thread, lane, &self.resources[at].trigger).await;
            let deadline = Instant::now() + thread.common.timeout;
            while shared.told.load(Relaxed) < listening {
                if Instant::now() > deadline {
                    for _ in shared.told.load(Relaxed)..listening {
                        thread.fail(Failure::NotTold);
                    }
                    break;
                }
                pacer
                    .until(Instant::now() + Duration::from_micros(200))
                    .await;
            }
        }
    }
}

/// Makes a change, whose own time is not what is measured.
pub async fn change(thread: &Thread, lane: &mut Lane, trigger: &Tool) {
    let session = lane.session();
    let (id, nonce) = session.next();
    let mut check = check::Call::new(id, nonce, false, false);
    let start = Instant::now();
    let response = lane
        .exchange(
            thread,
            |out, body| session.call(out, body, trigger, id, nonce, false),
            |text| check.message(text, &mut thread.recorder.borrow_mut().totals.violations),
        )
        .await;
    settle(thread, &response, check, start, None);
}
