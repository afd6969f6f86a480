//! The thread that stands in for a server's process where all sessions share one session at
//! a server over HTTP: the main thread's orders, and one bridge after the other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crossbeam_channel::Receiver as Letters;
use tracing::{Instrument, Span};

use super::events::Event;
use super::upstream::{Number, has_closed, send_surely};
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
        number: Number,
        pipes: BridgePipes,
        ended: Sender<()>,
    },
    /// End it at once.
    End { number: Number },
    /// Clients are told of its failures under this name from now on.
    Name(Option<Arc<str>>),
    /// There are no more: the thread ends with the last session.
    Close,
}

/// The main thread's end of the bridge's mailbox. When it goes, the thread ends.
#[derive(Debug)]
pub(super) struct BridgeHandle(pub(super) Post<BridgeOrder>);

impl BridgeHandle {
    /// Clients are told of the server's failures under this name from now on.
    pub(super) fn set_upstream_name(&self, name: Option<Arc<str>>) {
        send_surely(&self.0, BridgeOrder::Name(name));
    }
}

impl Drop for BridgeHandle {
    fn drop(&mut self) {
        send_surely(&self.0, BridgeOrder::Close);
    }
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
    /// What the log says of the upstream stands in this.
    pub(super) span: Span,
}

pub(super) async fn run(
    plan: BridgePlan,
    driver: Driver,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let bell = plan.bell.clone();
    let waiter = BellWaiter::new(plan.bell, driver)?;
    let client = Client::new(plan.upstream, plan.counters);
    let settings = Settings {
        upstream_name: Rc::default(),
        connections_max: plan.connections_max,
        added_fields: plan.added_fields.into(),
        start_timeout_ms: plan.start_timeout_ms,
        request_timeout_ms: plan.request_timeout_ms,
    };
    let current = RefCell::new(None::<(Number, Abort)>);
    let sessions = Rc::new(Cell::new(0_usize));
    let mut is_closing = false;
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
                let (sessions, bell) = (sessions.clone(), bell.clone());
                sessions.set(sessions.get() + 1);
                monoio::spawn(
                    async move {
                        let how = lead(&client, settings, pipes, &stop, driver).await;
                        let _ = events.send(Event::ServerEnded { number, how });
                        drop(ended);
                        sessions.set(sessions.get() - 1);
                        bell.ring();
                    }
                    .instrument(plan.span.clone()),
                );
            }
            Ok(BridgeOrder::End { number }) => {
                if let Some((current, stop)) = &*current.borrow()
                    && *current == number
                {
                    stop.set();
                }
            }
            Ok(BridgeOrder::Name(name)) => *settings.upstream_name.borrow_mut() = name,
            Ok(BridgeOrder::Close) => is_closing = true,
            Err(_) if is_closing && sessions.get() == 0 => return Ok(()),
            Err(_) => {
                let is_done = || is_closing && sessions.get() == 0;
                waiter.wait(|| !plan.orders.is_empty() || is_done()).await?;
            }
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
    number: Number,
    ended: Receiver<()>,
}

impl Session {
    /// Has session number `number` opened, at the other ends of these pipes.
    pub(super) fn open(bridge: &BridgeHandle, number: Number, pipes: BridgePipes) -> Session {
        let (sender, ended) = channel();
        let order = BridgeOrder::Begin {
            number,
            pipes,
            ended: sender,
        };
        send_surely(&bridge.0, order);
        Session {
            post: bridge.0.clone(),
            number,
            ended,
        }
    }

    /// Waits for the end of the session after the hub has closed its pipe.
    pub(super) fn stop(self) {
        if !has_closed(&self.ended, Duration::from_millis(2 * CHILD_EXIT_MS)) {
            tracing::warn!("the session at the server did not end in time");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if has_closed(&self.ended, Duration::ZERO) {
            return;
        }
        let number = self.number;
        send_surely(&self.post, BridgeOrder::End { number });
        // The server gets a moment to hear of it, and the next session is not opened before.
        let patience = Duration::from_millis(CHILD_EXIT_MS + CHILD_EXIT_MS / 2);
        has_closed(&self.ended, patience);
    }
}
