//! Calls in a closed or an open loop, with or without progress.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Kind, call, join};
use crate::engine::{Crew, NoLoad, Thread, Work, Worker};
use crate::pace::Pacer;

/// One kind of call, all the time.
pub struct Calls {
    pub kind: Kind,
}

impl Work for Calls {
    type Ready = Vec<Worker>;

    async fn prepare(&self, thread: &Rc<Thread>, _crew: &Arc<Crew>) -> Result<Vec<Worker>, NoLoad> {
        thread.workers().await
    }

    async fn run(&self, thread: &Rc<Thread>, _crew: &Arc<Crew>, workers: Vec<Worker>) {
        let mut tasks = Vec::new();
        for mut worker in workers {
            let (thread, kind) = (Rc::clone(thread), self.kind.clone());
            tasks.push(monoio::spawn(async move {
                match thread.common.rate {
                    None => closed(&thread, &mut worker, &kind).await,
                    Some(rate) => open(&thread, &mut worker, &kind, rate).await,
                }
                worker
            }));
        }
        thread.close(join(tasks).await).await;
    }
}

/// How long a worker waits after a call that failed at once, so that a dead endpoint is not hammered.
const AFTER_FAILURE: Duration = Duration::from_millis(10);

async fn closed(thread: &Thread, worker: &mut Worker, kind: &Kind) {
    while !thread.over.is_set() {
        let lane = worker.lane();
        call(thread, lane, kind, Instant::now()).await;
        if lane.connection.is_none() {
            monoio::time::sleep(AFTER_FAILURE).await;
        }
    }
}

/// Each worker has its share of a grid of starts over the whole run; a late one begins at once, and its latency
/// counts from when it was to begin.
async fn open(thread: &Thread, worker: &mut Worker, kind: &Kind, rate: f64) {
    let window = thread.window();
    let workers = f64::from(thread.shape.workers);
    let Ok(mut pacer) = Pacer::new(thread.is_uring) else {
        return;
    };
    for turn in 0u64.. {
        #[expect(clippy::cast_precision_loss, reason = "turns stay far below 2^52")]
        let after = (turn as f64 * workers + f64::from(worker.number)) / rate;
        let intended = window.start + Duration::from_secs_f64(after);
        if intended >= window.to {
            return;
        }
        pacer.until(intended).await;
        if intended.elapsed() > Duration::from_millis(1) {
            thread.recorder.borrow_mut().totals.late += 1;
        }
        call(thread, worker.lane(), kind, intended).await;
        // Far behind the end there is nothing more to learn.
        if window.to.elapsed() > thread.common.timeout {
            return;
        }
    }
}
