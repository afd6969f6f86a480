//! Calls in a closed or an open loop, with or without progress.

use std::rc::Rc;
use std::sync::Arc;

use super::{Kind, call, join, turns};
use crate::engine::{Crew, NoLoad, Thread, Work, Worker};

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
                let number = worker.number;
                turns(&thread, number, async |start| {
                    call(&thread, worker.lane(), &kind, start).await;
                })
                .await;
                worker
            }));
        }
        thread.close(join(tasks).await).await;
    }
}
