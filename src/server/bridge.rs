//! The thread that stands in for a server's process where all sessions share one session at
//! a server over HTTP: the main thread's orders, and one bridge after the other.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crossbeam_channel::Receiver as Letters;

use super::events::Event;
use crate::limits::CHILD_EXIT_MS;
use crate::runtime::bell::{Bell, BellWaiter, Post};
use crate::runtime::driver::Driver;
use crate::runtime::tasks;
use crate::upstream::http::bridge::{self, BridgePipes, Settings};
use crate::upstream::http::{self, Abort, Client, HttpCounters};

/// From the main thread to the bridge's.
#[derive(Debug)]
pub(super) enum BridgeOrder {
    /// Open session number `number` at the server. The sender goes when it has ended.
    Begin {
        number: u64,
        pipes: BridgePipes,
        ended: Sender<()>,
    },
    /// End it at once.
    End { number: u64 },
}

/// What the bridge's thread is made of.
pub(super) struct BridgePlan {
    pub(super) bell: Arc<Bell>,
    pub(super) orders: Letters<BridgeOrder>,
    pub(super) upstream: Arc<http::Upstream>,
    pub(super) counters: Arc<HttpCounters>,
    pub(super) connections_max: usize,
    /// Header lines of every request.
    pub(super) added_fields: Vec<u8>,
    pub(super) start_timeout_ms: u64,
    pub(super) request_timeout_ms: u64,
}

pub(super) async fn run(
    plan: BridgePlan,
    driver: Driver,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let waiter = BellWaiter::new(plan.bell, driver)?;
    let client = Client::new(plan.upstream, plan.counters);
    let settings = Settings {
        connections_max: plan.connections_max,
        added_fields: plan.added_fields.into(),
        start_timeout_ms: plan.start_timeout_ms,
        request_timeout_ms: plan.request_timeout_ms,
    };
    let current = Rc::new(RefCell::new(None::<(u64, Abort)>));
    loop {
        match plan.orders.try_recv() {
            Ok(BridgeOrder::Begin {
                number,
                pipes,
                ended,
            }) => {
                let stop = Abort::new();
                *current.borrow_mut() = Some((number, stop.clone()));
                let (client, settings, events) = (client.clone(), settings.clone(), events.clone());
                monoio::spawn(async move {
                    let how = lead(&client, settings, pipes, &stop, driver).await;
                    let _ = events.send(Event::ServerEnded { number, how });
                    drop(ended);
                });
            }
            Ok(BridgeOrder::End { number }) => {
                if let Some((current, stop)) = &*current.borrow()
                    && *current == number
                {
                    stop.set();
                }
            }
            Err(_) => waiter.wait(|| !plan.orders.is_empty()).await?,
        }
    }
}

/// Leads one session from its handshake to its end. Says how it ended.
async fn lead(
    client: &Rc<Client>,
    settings: Settings,
    pipes: BridgePipes,
    stop: &Abort,
    driver: Driver,
) -> String {
    let serving = bridge::serve(client, settings, pipes, stop, driver);
    match tasks::contained(serving).await {
        Ok(Ok(ended)) => {
            let how = ended.how.clone();
            if let Err(panic) = tasks::contained(ended.say_goodbye(client)).await {
                tracing::error!(panic = tasks::text(&*panic), "the bridge panicked");
            }
            how
        }
        Ok(Err(error)) => format!("its pipes cannot be used: {error}"),
        Err(panic) => {
            let panic = tasks::text(&*panic);
            tracing::error!(panic, "the bridge panicked");
            format!("the bridge to it panicked: {panic}")
        }
    }
}

/// One session at the server, as the main thread holds it. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Session {
    post: Post<BridgeOrder>,
    number: u64,
    ended: Receiver<()>,
}

impl Session {
    /// Has session number `number` opened, at the other ends of these pipes.
    pub(super) fn open(post: &Post<BridgeOrder>, number: u64, pipes: BridgePipes) -> Session {
        let (sender, ended) = channel();
        let order = BridgeOrder::Begin {
            number,
            pipes,
            ended: sender,
        };
        if post.send(order).is_err() {
            tracing::error!("the bridge does not take its orders");
        }
        post.ring();
        Session {
            post: post.clone(),
            number,
            ended,
        }
    }

    /// Waits for the end of the session after the hub has closed its pipe.
    pub(super) fn stop(self, mut ended: impl FnMut(Duration) -> bool) {
        if !ended(Duration::from_millis(2 * CHILD_EXIT_MS)) {
            tracing::warn!("the session at the server did not end in time");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if matches!(
            self.ended.recv_timeout(Duration::ZERO),
            Err(RecvTimeoutError::Disconnected)
        ) {
            return;
        }
        let number = self.number;
        if self.post.send(BridgeOrder::End { number }).is_err() {
            return;
        }
        self.post.ring();
        // The server gets a moment to hear of it, and the next session is not opened before.
        let patience = Duration::from_millis(CHILD_EXIT_MS + CHILD_EXIT_MS / 2);
        let _ = self.ended.recv_timeout(patience);
    }
}
