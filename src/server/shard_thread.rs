//! The thread of a shard: its mailboxes, its tasks, and the hub if it lives here.

use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crossbeam_channel::Receiver as Letters;

use super::events::Event;
use super::events::spawn_vital;
use super::hub_thread::{self, HubMail};
use super::plan::{HubPlan, ShardPlan};
use super::private;
use crate::http::ground::{Ground, Handover};
use crate::http::listener;
use crate::http::route::{Route, Service};
use crate::http::shard::Shard;
use crate::limits::{FAREWELL_MS, HANDOVERS_PER_TURN, LETTERS_PER_TURN, TICK_MS};
use crate::routing::letters::{Kind, Lines, Messages, Note, ToShard};
use crate::routing::log_level::Level;
use crate::routing::outcome::Outcome;
use crate::routing::shard::ShardState;
use crate::routing::upstream_id::UpstreamId;
use crate::runtime::bell::{BellWaiter, Post, PostError};
use crate::runtime::clock;
use crate::runtime::driver::Driver;
use crate::runtime::fair::give_way;
use crate::runtime::notify::Notify;
use crate::upstream::links::LocalShard;
use crate::wire::handshake::Offer;
use crate::wire::span::Span;

/// Runs a shard, and the hub with it if it has no thread of its own.
pub(super) async fn run(
    plan: ShardPlan,
    hub: Option<HubPlan>,
    driver: Driver,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let lines_ready = Rc::new(Notify::default());
    let seeds = ahash::RandomState::new();
    let now = clock::now();
    let mut limits = plan.limits;
    if let Some(private) = &plan.private {
        // One session must not take all connections to the server.
        let share = (private.upstream.connections_max() * 3 / 4).max(1);
        limits.calls_per_session_max = limits.calls_per_session_max.min(share);
    }
    let mut state = ShardState::new(plan.index, plan.shards, limits, seeds, now);
    if plan.private.is_some() {
        let offer = Offer {
            get_streams: plan.face.get_streams,
            tasks: true,
        };
        state = state.with_private(offer, now);
    }
    let ground = Ground::new(
        plan.index,
        plan.shards,
        driver,
        plan.face,
        plan.peers,
        plan.counters.clone(),
    );
    let shard = Shard::new(ground.clone(), state, lines_ready.clone(), plan.counters);
    let route = Route::new(plan.path, plan.tokens, Service::Plain(shard.clone()));
    ground.set_routes(vec![route], plan.pass);
    let waiter = BellWaiter::new(plan.bell, driver)?;
    let listener = listener::adopt(plan.listener, driver)?;
    let face = Rc::new(Face {
        shard: shard.clone(),
        opening: Notify::default(),
    });
    let mail = Rc::new(ShardMail {
        face: face.clone(),
        letters: plan.letters,
        handovers: plan.handovers,
    });
    let hub = match (hub, plan.private) {
        (_, Some(private)) => {
            private::connect(&shard, private);
            face.opening.notify();
            None
        }
        (Some(plan), None) => {
            let local = face.clone();
            Some(hub_thread::start(
                plan,
                Some(local),
                lines_ready,
                driver,
                events.clone(),
            ))
        }
        (None, None) => {
            spawn_vital("lines", &events, send_lines(shard.clone(), plan.lines));
            None
        }
    };
    spawn_vital("tick", &events, tick(shard, mail.clone(), events.clone()));
    spawn_vital("accept", &events, accept_when_open(face, listener));
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

/// A shard as the hub sees it, whether letters come directly or by mail.
struct Face {
    shard: Rc<Shard>,
    /// Rung when the first handshake is done: clients may come.
    opening: Notify,
}

impl LocalShard for Face {
    fn letter(&self, letter: ToShard) {
        let shard = &self.shard;
        match letter {
            ToShard::Up { epoch, handshake } => {
                shard.upstream_up(epoch, handshake);
                self.opening.notify();
            }
            ToShard::Told { uri, told } => shard.told(&uri, told),
            ToShard::Messages(messages) => self.messages(&messages),
            ToShard::Large {
                kind,
                id,
                id_span,
                line,
            } => self.message(kind, id, id_span, &line),
            ToShard::Written(bytes) => shard.written(bytes),
            ToShard::Down => shard.upstream_down(),
            ToShard::Drain => shard.ground.drain(),
        }
    }

    fn message(&self, kind: Kind, id: UpstreamId, span: Span, message: &[u8]) {
        match kind {
            Kind::Result => self.shard.answer(id, span, message, Outcome::Ok),
            Kind::Error => self.shard.answer(id, span, message, Outcome::Error),
            Kind::Progress => self.shard.progress(id, span, message),
            Kind::TooLong => self.shard.too_long(id),
            Kind::ForeignTask => self.shard.foreign_task(id),
            Kind::TaskStatus => self.shard.task_status(message),
            Kind::Updated => self.shard.updated(message),
            Kind::Changed(kinds) => self.shard.changed(kinds),
        }
    }

    fn take_lines(&self, empty: Vec<u8>) -> Vec<u8> {
        self.shard.state.borrow_mut().outgoing.take_batch(empty)
    }

    fn take_notes(&self) -> (u64, Vec<Note>) {
        let mut state = self.shard.state.borrow_mut();
        (state.epoch(), state.take_notes())
    }

    fn written(&self, bytes: usize) {
        self.shard.written(bytes);
    }

    fn log_level(&self) -> Option<Level> {
        self.shard.state.borrow().log_level()
    }
}

impl Face {
    fn messages(&self, messages: &Messages) {
        for (kind, id, span, message) in messages.iter() {
            self.message(kind, id, span, message);
        }
    }
}

/// The mailboxes of a shard.
struct ShardMail {
    face: Rc<Face>,
    letters: Letters<ToShard>,
    handovers: Letters<Handover>,
}

impl ShardMail {
    /// Takes a bounded number of letters. True if there were any.
    fn take(&self) -> bool {
        let mut taken = false;
        for letter in self.letters.try_iter().take(LETTERS_PER_TURN) {
            taken = true;
            self.face.letter(letter);
        }
        for handover in self.handovers.try_iter().take(HANDOVERS_PER_TURN) {
            taken = true;
            listener::take_over(&self.face.shard.ground, handover);
        }
        taken
    }

    fn has_mail(&self) -> bool {
        !self.letters.is_empty() || !self.handovers.is_empty()
    }
}

/// Hands a shard's lines to a hub on another thread. When its mailbox is full
/// the lines stay here, and the window closes behind them.
async fn send_lines(shard: Rc<Shard>, post: Post<Lines>) {
    let mut sent_level = None;
    loop {
        shard.lines_ready.wait().await;
        // Calls that are ready now join the same batch.
        give_way().await;
        let lines = {
            let mut state = shard.state.borrow_mut();
            let log_level = state.log_level();
            let has_news = state.outgoing.has_batch() || state.has_notes();
            if !has_news && log_level == sent_level {
                continue;
            }
            Lines {
                epoch: state.epoch(),
                bytes: state.outgoing.take_batch(Vec::new()),
                log_level,
                notes: state.take_notes(),
            }
        };
        let log_level = lines.log_level;
        match post.send(lines) {
            Ok(()) => {
                sent_level = log_level;
                post.ring();
                shard.counters.mailbox_to_hub.set(post.depth() as u64);
            }
            Err(PostError::Full(lines)) => {
                {
                    let mut state = shard.state.borrow_mut();
                    state.outgoing.put_back(lines.bytes);
                    state.put_notes_back(lines.notes);
                }
                monoio::time::sleep(Duration::from_millis(1)).await;
                shard.lines_ready.notify();
            }
            Err(PostError::Gone(_)) => return,
        }
    }
}

async fn tick(shard: Rc<Shard>, mail: Rc<ShardMail>, events: Sender<Event>) {
    let mut has_reported = false;
    let mut drained = None;
    loop {
        monoio::time::sleep(Duration::from_millis(TICK_MS)).await;
        let ground = &shard.ground;
        ground.tick();
        let counters = &ground.counters;
        counters.mailbox_to_shard.set(mail.letters.len() as u64);
        counters.mailbox_handovers.set(mail.handovers.len() as u64);
        if !has_reported && ground.is_drained() {
            // Servers are told that their sessions are over, if they listen.
            let since = *drained.get_or_insert_with(|| {
                ground.end_own_sessions();
                clock::now()
            });
            if ground.is_upstream_quiet() || clock::now().since(since) > FAREWELL_MS {
                has_reported = true;
                let _ = events.send(Event::Drained);
            }
        }
    }
}

async fn accept_when_open(face: Rc<Face>, listener: monoio::net::TcpListener) {
    face.opening.wait().await;
    listener::accept(face.shard.ground.clone(), listener).await;
}
