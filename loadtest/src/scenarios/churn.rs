//! Sessions that come and go: initialize, one call, DELETE.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::{Kind, call, join};
use crate::engine::{Crew, Lane, NoLoad, Thread, Work};
use crate::record::Series;

pub struct Churn {
    pub kind: Kind,
}

impl Work for Churn {
    type Ready = ();

    async fn prepare(&self, thread: &Rc<Thread>, _crew: &Arc<Crew>) -> Result<(), NoLoad> {
        // One session tells whether any can be opened.
        let mut lane = Lane::new(Vec::new());
        let opened = thread.open_session(&mut lane).await;
        let session = opened.map_err(|why| NoLoad(format!("no session could be opened: {why}")))?;
        let _ = thread.close_session(&mut lane, &session).await;
        Ok(())
    }

    async fn run(&self, thread: &Rc<Thread>, _crew: &Arc<Crew>, (): ()) {
        let own = (thread.index..thread.shape.workers).step_by(thread.shape.threads as usize);
        let tasks = own.map(|_| {
            let (thread, kind) = (Rc::clone(thread), self.kind.clone());
            monoio::spawn(async move {
                let mut lane = Lane::new(Vec::new());
                while !thread.over.is_set() {
                    round(&thread, &mut lane, &kind).await;
                }
            })
        });
        join(tasks.collect()).await;
    }
}

async fn round(thread: &Thread, lane: &mut Lane, kind: &Kind) {
    let start = Instant::now();
    let session = match thread.open_session(lane).await {
        Ok(session) => Rc::new(session),
        Err(failure) => {
            thread.fail(failure);
            monoio::time::sleep(std::time::Duration::from_millis(10)).await;
            return;
        }
    };
    lane.sessions = vec![Rc::clone(&session)];
    call(thread, lane, kind, Instant::now()).await;
    let closing = Instant::now();
    match thread.close_session(lane, &session).await {
        Ok(()) => {
            let end = Instant::now();
            let mut recorder = thread.recorder.borrow_mut();
            recorder.time(Series::Delete, closing, end);
            recorder.time(Series::Session, start, end);
        }
        Err(failure) => thread.fail(failure),
    }
}
