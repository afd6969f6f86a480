//! A shard in small: the real routing state and the real table of connections,
//! with what `http::shard` does between them, on a clock that is handed in. What a
//! run's checks must know is written down as news.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use ringway::http::connections::{Connections, Delivery, Form, Streamed};
use ringway::routing::arrival::{Answered, Progressed};
use ringway::routing::calls::{Call, ReplyTo};
use ringway::routing::event_queue::EventQueue;
use ringway::routing::ledger::Told;
use ringway::routing::letters::{Kind, Lines, ToShard};
use ringway::routing::log_level::Level;
use ringway::routing::marks::TaskNews;
use ringway::routing::outcome::Outcome;
use ringway::routing::shard::{Act, Ended, ShardState};
use ringway::routing::tasks::TaskKey;
use ringway::routing::time::Micros;
use ringway::routing::upstream_id::UpstreamId;
use ringway::wire::reply::Reason;
use ringway::wire::span::Span;
use ringway::wire::splice::{Edit, splice};
use ringway::wire::sse;

use crate::checks::How;
use crate::settings::Settings;

/// Numbers for the order in which things happen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments(Rc<Cell<u64>>);

impl Moments {
    pub(crate) fn next(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// What has happened in a shard.
#[derive(Debug)]
pub(crate) enum News {
    /// A call has ended.
    Ended {
        to: ReplyTo,
        how: How,
    },
    /// A child is there.
    Up {
        epoch: u64,
        is_first: bool,
    },
    Down,
    /// Lists have changed: their names.
    Changed(Vec<&'static str>),
    Updated(String),
    Lost(String),
    /// This message about a task waits for the session's GET stream.
    TaskMarked(Vec<u8>),
    /// Progress was dropped; of this call, if that is known.
    Dropped {
        of: Option<ReplyTo>,
        count: usize,
    },
    /// Connections were closed because the budget is over.
    Evicted(usize),
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) state: ShardState,
    pub(crate) connections: Connections,
    pub(crate) letters: VecDeque<ToShard>,
    /// It takes no letters for a while.
    pub(crate) is_stalled: bool,
    pub(crate) now: Micros,
    pub(crate) news: Vec<(u64, News)>,
    moments: Moments,
    buffered_bytes_max: usize,
    cancel_on_disconnect: bool,
    sent_level: Option<Level>,
}

impl Shard {
    pub(crate) fn new(index: usize, seed: u64, settings: &Settings, moments: Moments) -> Shard {
        let now = Micros(0);
        let hasher = ahash::RandomState::with_seeds(seed, 1, 2, index as u64);
        Shard {
            state: ShardState::new(
                index,
                settings.shards,
                settings.limits,
                hasher,
                now.millis(),
            ),
            connections: Connections::new(now.millis()),
            letters: VecDeque::new(),
            is_stalled: false,
            now,
            news: Vec::new(),
            moments,
            buffered_bytes_max: settings.buffered_bytes_max,
            cancel_on_disconnect: settings.cancel_on_disconnect,
            sent_level: None,
        }
    }

    fn tell_news(&mut self, news: News) {
        self.news.push((self.moments.next(), news));
    }

    /// What is to go to the hub, if anything.
    pub(crate) fn lines(&mut self) -> Option<Lines> {
        let log_level = self.state.log_level();
        let has_news = self.state.outgoing.has_batch() || self.state.has_notes();
        (has_news || log_level != self.sent_level).then(|| Lines {
            epoch: self.state.epoch(),
            bytes: self.state.outgoing.take_batch(Vec::new()),
            log_level,
            notes: self.state.take_notes(),
        })
    }

    pub(crate) fn sent(&mut self, log_level: Option<Level>) {
        self.sent_level = log_level;
    }

    /// The hub's mailbox is full.
    pub(crate) fn put_back(&mut self, lines: Lines) {
        self.state.outgoing.put_back(lines.bytes);
        self.state.put_notes_back(lines.notes);
    }

    pub(crate) fn letter(&mut self, letter: ToShard) {
        match letter {
            ToShard::Up { epoch, handshake } => {
                let is_first = self.state.handshake().is_none();
                self.tell_news(News::Up { epoch, is_first });
                let mut acts = Vec::new();
                self.state.upstream_up(epoch, handshake, &mut acts);
                self.perform(acts);
            }
            ToShard::Told { uri, told } => {
                let news = match &told {
                    Told::Updated => Some(News::Updated(uri.to_string())),
                    Told::Lost => Some(News::Lost(uri.to_string())),
                    Told::Agreed | Told::Refused(_) | Told::Overloaded | Told::TimedOut => None,
                };
                news.into_iter().for_each(|news| self.tell_news(news));
                let mut acts = Vec::new();
                self.state.told(&uri, told, &mut acts);
                self.perform(acts);
            }
            ToShard::Messages(messages) => {
                for (kind, id, span, message) in messages.iter() {
                    self.message(kind, id, span, message);
                }
            }
            ToShard::Large {
                kind,
                id,
                id_span,
                line,
            } => self.message(kind, id, id_span, &line),
            ToShard::Written(bytes) => self.written(bytes),
            ToShard::Down => {
                self.tell_news(News::Down);
                let mut acts = Vec::new();
                self.state.upstream_down(&mut acts);
                self.perform(acts);
            }
        }
    }

    /// Finishes what is in flight, begins nothing new.
    pub(crate) fn drain(&mut self) {
        self.state.drain();
        self.connections.drain();
    }

    pub(crate) fn message(&mut self, kind: Kind, id: UpstreamId, span: Span, message: &[u8]) {
        match kind {
            Kind::Result => self.answer(id, span, message, Outcome::Ok),
            Kind::Error => self.answer(id, span, message, Outcome::Error),
            Kind::Progress => self.progress(id, span, message),
            Kind::TooLong => self.too_long(id),
            Kind::ForeignTask => {
                let answered = self.state.foreign_task(id);
                self.answered_instead(answered);
            }
            Kind::TaskStatus => self.task_status(message),
            Kind::Updated => {
                let uri = std::str::from_utf8(message).expect("the hub has decoded it");
                self.tell_news(News::Updated(uri.to_owned()));
                let mut acts = Vec::new();
                self.state.updated(uri, &mut acts);
                self.perform(acts);
            }
            Kind::Changed(kinds) => {
                let mut frames = Vec::new();
                kinds.frames(&mut frames);
                let frames = String::from_utf8_lossy(&frames);
                let lists = crate::server::LISTS.into_iter();
                let changed = lists.filter(|list| frames.contains(*list)).collect();
                self.tell_news(News::Changed(changed));
                let mut acts = Vec::new();
                self.state.changed(kinds, &mut acts);
                self.perform(acts);
            }
        }
    }

    pub(crate) fn written(&mut self, bytes: usize) {
        self.state.outgoing.written(bytes);
        self.state.refill();
    }

    pub(crate) fn perform(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::End(ended) => self.tell(&ended),
                Act::Answer {
                    call,
                    message,
                    outcome,
                } => self.tell_message(&call, &message, How::Own(outcome)),
                Act::CloseStream(stream) | Act::WakeStream(stream) => {
                    self.connections.wake(stream.into());
                }
                Act::NotFound(_) | Act::LostSubscription => {
                    panic!("sessions share their server here")
                }
            }
        }
    }

    fn enforce_budget(&mut self) {
        let taken = self.state.outgoing.waiting_bytes() + self.connections.body_bytes();
        let room = self.buffered_bytes_max.saturating_sub(taken);
        let count = self.connections.drop_progress_over(room);
        if count > 0 {
            self.tell_news(News::Dropped { of: None, count });
        }
        let evicted = self.connections.evict_over(room);
        if evicted > 0 {
            self.tell_news(News::Evicted(evicted));
        }
    }

    fn answer(&mut self, id: UpstreamId, id_span: Span, line: &[u8], outcome: Outcome) {
        let is_error = outcome == Outcome::Error;
        let answered = self.state.answered(id, line, is_error, self.now.millis());
        match answered {
            Answered::Call(call) => {
                let to = call.reply_to;
                let how = How::Server;
                self.tell_news(News::Ended { to, how });
                let edit = Edit {
                    span: id_span,
                    with: call.client_id.raw(),
                };
                let spliced = |out: &mut Vec<u8>| splice(out, line, &mut [edit]);
                self.deliver(to, spliced);
            }
            other => self.answered_instead(other),
        }
    }

    fn answered_instead(&mut self, answered: Answered) {
        if let Answered::Instead {
            call,
            message,
            outcome,
        } = answered
        {
            self.tell_message(&call, &message, How::Own(outcome));
        }
    }

    /// Without the heads of HTTP: a response is its body here.
    fn deliver(&mut self, to: ReplyTo, write: impl Fn(&mut Vec<u8>)) {
        let make = |form: &Form| {
            let mut message = Vec::new();
            write(&mut message);
            match form {
                Form::Json { .. } => Delivery::Response {
                    status: 200,
                    bytes: message,
                },
                _ => Delivery::Message {
                    part: to.part,
                    message,
                },
            }
        };
        if self
            .connections
            .deliver(to, make, |events| events.reply(&write))
        {
            self.enforce_budget();
        }
    }

    fn tell(&mut self, ended: &Ended) {
        if ended.reason != Reason::Cancelled {
            return self.tell_message(&ended.call, &ended.body(None), How::Failed(ended.reason));
        }
        let to = ended.reply_to();
        let how = How::Failed(ended.reason);
        self.tell_news(News::Ended { to, how });
        let make = |_: &Form| Delivery::Cancelled {
            part: to.part,
            error: ended.body(None),
        };
        if self.connections.deliver(to, make, EventQueue::end) {
            self.enforce_budget();
        }
    }

    fn tell_message(&mut self, call: &Call, message: &[u8], how: How) {
        let to = call.reply_to;
        self.tell_news(News::Ended { to, how });
        self.deliver(to, |out| out.extend_from_slice(message));
    }

    fn too_long(&mut self, id: UpstreamId) {
        if let Some(call) = self.state.unreadable_answer(id) {
            let reason = Reason::TooLarge;
            self.tell(&Ended { call, reason });
        }
    }

    fn progress(&mut self, id: UpstreamId, token_span: Span, line: &[u8]) {
        let spliced = |token, out: &mut Vec<u8>| {
            let span = token_span;
            splice(out, line, &mut [Edit { span, with: token }]);
        };
        let waiting = self.state.outgoing.waiting_bytes();
        match self.state.progressed(id, self.now.millis()) {
            Progressed::Nobody => {}
            Progressed::Call { reply_to, token } => {
                let connections = &mut self.connections;
                let taken = waiting + connections.body_bytes();
                let room = self.buffered_bytes_max.saturating_sub(taken);
                let bytes = line.len() + token.len() + sse::FRAME_BYTES;
                let streamed = connections.deliver_progress(reply_to, room, bytes, |out| {
                    spliced(token, out);
                });
                self.count_streamed(reply_to, streamed);
            }
            Progressed::Task { task, token } => {
                let mut message = Vec::new();
                spliced(token, &mut message);
                self.task_news(task, TaskNews::Progress, &message);
            }
        }
    }

    fn count_streamed(&mut self, to: ReplyTo, streamed: Streamed) {
        let (own, elsewhere) = match streamed {
            Streamed::Taken { own, elsewhere } => (own, elsewhere),
            Streamed::NoRoom => (1, 0),
            Streamed::NoStream | Streamed::Gone => (0, 0),
        };
        for (of, count) in [(Some(to), own), (None, elsewhere)] {
            if count > 0 {
                self.tell_news(News::Dropped { of, count });
            }
        }
    }

    fn task_status(&mut self, line: &[u8]) {
        if let Some(task) = self.state.task_status(line) {
            let mut message = Vec::new();
            splice(&mut message, line, &mut []);
            self.task_news(task, TaskNews::Status, &message);
        }
    }

    fn task_news(&mut self, task: TaskKey, news: TaskNews, message: &[u8]) {
        for reply_to in self.state.task_results(task) {
            let connections = &mut self.connections;
            let taken = self.state.outgoing.waiting_bytes() + connections.body_bytes();
            let room = self.buffered_bytes_max.saturating_sub(taken);
            let bytes = message.len() + sse::FRAME_BYTES;
            let streamed = connections.deliver_progress(reply_to, room, bytes, |out| {
                out.extend_from_slice(message);
            });
            if let Streamed::Taken { .. } = streamed {
                self.count_streamed(reply_to, streamed);
                return;
            }
        }
        let mut frame = Vec::with_capacity(message.len() + sse::FRAME_BYTES);
        sse::frame(&mut frame, message);
        let mut acts = Vec::new();
        if self.state.mark_task(task, news, frame, &mut acts) {
            self.tell_news(News::TaskMarked(message.to_vec()));
        }
        self.perform(acts);
    }

    /// The client of this call is gone.
    pub(crate) fn client_gone(&mut self, id: UpstreamId) {
        if self.cancel_on_disconnect
            && let Some(ended) = self.state.withdraw(id, Reason::Cancelled)
        {
            self.tell(&ended);
        }
    }

    pub(crate) fn tick(&mut self, now: Micros) {
        self.now = now;
        self.connections.tick(now.millis());
        let mut acts = Vec::new();
        self.state.tick(now.millis(), &mut acts);
        self.perform(acts);
    }
}
