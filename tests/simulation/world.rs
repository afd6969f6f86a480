//! The world of a run: the parts, the scheduler that picks what happens next, and
//! the steps of shards, hub, server and time. What clients do is in `acts`, what
//! their connections do in `face`, how a run ends in `quiet`.

use std::collections::{BTreeMap, BTreeSet};

use ringway::routing::calls::ReplyTo;
use ringway::routing::drops::DropReason;
use ringway::routing::hub::{Heard, Shards};
use ringway::routing::letters::Kind;
use ringway::routing::time::{Micros, Millis};
use ringway::routing::upstream_id::Owner;
use ringway::wire::reply::Reason;
use ringway::wire::span::Span;

use crate::checks::{Answer, Ask, How, Record};
use crate::client::{Client, Subject};
use crate::dice::Dice;
use crate::face::Connection;
use crate::hub::Hub;
use crate::server::{Abilities, About, LISTS, Server};
use crate::settings::{Settings, Step};
use crate::shard::{Moments, News, Shard};

/// The place of an answer: shard, connection, its generation, exchange, part.
pub(crate) type Place = (usize, u32, u32, u32, u16);

/// The place that a shard knows as `to`.
pub(crate) fn place(shard: usize, to: ReplyTo) -> Place {
    let ReplyTo {
        connection,
        connection_generation: generation,
        exchange,
        part,
    } = to;
    (shard, connection, generation, exchange, part)
}

pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) settings: Settings,
    pub(crate) record: Record,
    pub(crate) moments: Moments,
    pub(crate) now: Micros,
    pub(crate) shards: Vec<Shard>,
    pub(crate) hub: Hub,
    pub(crate) server: Server,
    /// Every session that ever was, by its number.
    pub(crate) clients: Vec<Client>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) waiting: BTreeMap<Place, usize>,
    /// The abilities of each child, by its number from 1.
    abilities: Vec<Abilities>,
    /// The ones that each shard knows.
    pub(crate) known: Vec<Option<Abilities>>,
    /// The URIs that sessions of each shard held when its child came, and hold
    /// still: only these may be lost.
    may_lose: Vec<BTreeSet<String>>,
    /// The server takes nothing from its stdin for a while.
    is_stuck: bool,
    /// Faults have ended, the run is to come to rest.
    pub(crate) is_calm: bool,
    pub(crate) is_draining: bool,
    pub(crate) steps: u64,
    is_traced: bool,
}

impl World {
    pub(crate) fn new(seed: u64, is_traced: bool) -> World {
        World::with(seed, Dice::new(seed), is_traced)
    }

    pub(crate) fn with(seed: u64, mut dice: Dice, is_traced: bool) -> World {
        let settings = Settings::draw(seed, &mut dice);
        let moments = Moments::default();
        let shards = (0..settings.shards)
            .map(|index| Shard::new(index, seed, &settings, moments.clone()))
            .collect::<Vec<_>>();
        let abilities = Abilities::draw(&mut dice);
        let record = Record {
            dropped_somewhere: vec![0; shards.len()],
            missing: vec![0; shards.len()],
            ..Record::default()
        };
        if is_traced {
            eprintln!("{settings:#?}");
        }
        World {
            hub: Hub::new(seed, &settings),
            known: vec![None; shards.len()],
            may_lose: vec![BTreeSet::new(); shards.len()],
            record,
            moments,
            now: Micros(0),
            shards,
            server: Server::none(abilities),
            clients: Vec::new(),
            connections: Vec::new(),
            waiting: BTreeMap::new(),
            abilities: Vec::new(),
            is_stuck: false,
            is_calm: false,
            is_draining: false,
            steps: 0,
            dice,
            settings,
            is_traced,
        }
    }

    /// A whole run.
    pub(crate) fn run(mut self) -> Record {
        self.restart();
        let storm_at = self.settings.steps / 2;
        for step in 0..self.settings.steps {
            if self.settings.storms && step == storm_at {
                self.storm();
                continue;
            }
            let what = self.dice.weighted(&self.settings.weights);
            self.trace(|| format!("{what:?}"));
            self.step(what);
            self.is_bounded();
            self.steps += 1;
        }
        self.come_to_rest();
        let steps = self.steps as usize;
        self.record.tally.many("steps", steps);
        self.record
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            eprintln!("{:>6} {:>9} ms  {}", self.steps, self.now.0 / 1_000, what());
        }
    }

    fn step(&mut self, what: Step) {
        match what {
            Step::Open => self.open_session(),
            Step::Act => self.act(),
            Step::Send => {
                let shard = self.dice.below(self.shards.len());
                self.send(shard);
            }
            Step::Gather => {
                self.gather();
            }
            Step::Written if !self.is_stuck => {
                self.written();
            }
            Step::Hear => {
                for _ in 0..self.dice.between(1, 6) {
                    self.hear_one();
                }
            }
            Step::Speak if self.server.is_alive => {
                let World {
                    server,
                    dice,
                    settings,
                    record,
                    ..
                } = self;
                for _ in 0..dice.between(1, 4) {
                    server.speak(dice, settings, record);
                }
            }
            Step::Read => {
                let most = self.dice.between(1, 12);
                self.read(most);
                if self.dice.chance(70) {
                    self.flush();
                }
            }
            Step::Flush => {
                self.flush();
            }
            Step::Letters => {
                let shard = self.dice.below(self.shards.len());
                let most = self.dice.between(1, 8);
                self.take_letters(shard, most);
            }
            Step::Connection if !self.connections.is_empty() => {
                // Few of many connections have something to do.
                let count = self.connections.len();
                let first = self.dice.below(count);
                let most = self.dice.between(1, 5);
                let places = (first..first + count.min(12)).map(|place| place % count);
                places.filter(|place| self.go_on(*place)).take(most).count();
            }
            Step::Break => self.break_one(),
            Step::Time => {
                let micros = self.dice.weighted(&[
                    (60, 5_000),
                    (30, 60_000),
                    (8, 1_000_000),
                    (2, 30_000_000),
                ]);
                let micros = self.dice.below(micros) as u64;
                self.pass(micros);
            }
            Step::Stall => self.stall(),
            Step::Kill if self.server.is_alive => {
                self.record.tally.count("servers killed");
                self.server.die(&mut self.dice);
            }
            Step::Restart => {
                self.restart_if_down();
            }
            Step::Written | Step::Speak | Step::Connection | Step::Kill => {}
        }
        self.hear_news();
    }

    /// A shard's batch moves to the hub's mailbox, as `send_lines` does it.
    pub(crate) fn send(&mut self, shard: usize) -> bool {
        if self.hub.is_local(shard) {
            return false;
        }
        let Some(lines) = self.shards[shard].lines() else {
            return false;
        };
        let log_level = lines.log_level;
        match self.hub.post(shard, lines) {
            Ok(()) => {
                self.shards[shard].sent(log_level);
                true
            }
            Err(lines) => {
                self.record.tally.count("mailbox of the hub full");
                self.shards[shard].put_back(lines);
                false
            }
        }
    }

    pub(crate) fn gather(&mut self) -> bool {
        // Between two children nobody writes.
        if !self.server.is_alive {
            return false;
        }
        let most = if self.is_calm {
            1_000
        } else {
            self.dice.between(1, 3)
        };
        let now = self.now.millis();
        let is_new = self.hub.gather(&mut self.shards, now, most);
        self.hear_news();
        is_new
    }

    pub(crate) fn written(&mut self) -> bool {
        let Some(writing) = self.hub.writing.take() else {
            return false;
        };
        if !self.server.is_alive {
            return true; // the write fails, and nobody hears of it
        }
        for line in writing.bytes.split(|byte| *byte == b'\n') {
            if !line.is_empty() {
                self.trace(|| format!("> {}", String::from_utf8_lossy(line)));
                self.record.has_seen(line);
                self.server.stdin.push_back(line.to_vec());
            }
        }
        assert_eq!(
            writing.bytes.last(),
            Some(&b'\n'),
            "whole lines are written"
        );
        self.hub.acknowledge(writing, &mut self.shards);
        true
    }

    pub(crate) fn hear_one(&mut self) -> bool {
        let World {
            server,
            dice,
            settings,
            record,
            ..
        } = self;
        server.is_alive && server.hear(dice, settings, record)
    }

    /// The hub reads lines, or the end of the server's stdout.
    pub(crate) fn read(&mut self, most: usize) -> bool {
        let mut has_read = false;
        for _ in 0..most {
            if self.hub.is_over() {
                self.record.tally.count("reading waits for a shard");
                break;
            }
            let Some(said) = self.server.stdout.pop_front() else {
                if !self.server.is_alive && self.hub.state.epoch() == self.server.epoch {
                    has_read |= self.end_of_stdout();
                }
                break;
            };
            has_read = true;
            self.trace(|| format!("< {}", String::from_utf8_lossy(&said.line)));
            self.record.has_seen(&said.line);
            self.read_line(&said.line, &said.about);
        }
        self.hear_news();
        has_read
    }

    /// The server's stdout has ended.
    fn end_of_stdout(&mut self) -> bool {
        if self.hub_has_ended() {
            return false;
        }
        self.hub.writing = None;
        let World { hub, shards, .. } = self;
        hub.with(shards, |state, doors| state.end(doors));
        hub.ended = Some(self.server.epoch);
        true
    }

    fn hub_has_ended(&self) -> bool {
        self.hub.ended == Some(self.server.epoch)
    }

    fn read_line(&mut self, line: &[u8], about: &About) {
        let moment = self.moments.next();
        let now = self.now.millis();
        let World { hub, shards, .. } = self;
        if let About::TooLong(call, id) = about {
            if let Owner::Shard(shard) = id.owner() {
                let nothing = Span { start: 0, end: 0 };
                hub.with(shards, |_, doors| {
                    doors.message(shard, Kind::TooLong, *id, nothing, b"")
                });
            }
            let call = &mut self.record.calls[*call];
            call.is_too_long_read |= call.reply_read.is_none();
            return;
        }
        let line = line.trim_ascii();
        let heard = hub.with(shards, |state, doors| state.line(line, doors, now));
        let record = &mut self.record;
        match about {
            About::Reply(call, number) => {
                let call = &mut record.calls[*call];
                if !call.is_too_long_read {
                    call.reply_read.get_or_insert(*number);
                }
            }
            About::Progress(call) => {
                let call = &mut record.calls[*call];
                if call.reply_read.is_none() && !call.is_too_long_read {
                    call.progress_read += 1;
                }
                if matches!(heard, Heard::Dropped(DropReason::SlowReader)) {
                    call.dropped += 1;
                    record.tally.count("progress dropped by the hub");
                }
            }
            About::Changed(list) => self.is_owed(&Subject::List((*list).into()), moment),
            // Before the handshake is done the subscriptions are yet to be restored,
            // and an update follows then.
            About::Updated(_) if !self.hub.has_opened => {}
            About::Updated(uri) => self.is_owed(&Subject::Updated(uri.clone()), moment),
            About::Nothing | About::TooLong(..) => {}
        }
        match heard {
            Heard::Failed(error) => panic!("the handshake failed: {error}"),
            Heard::Dropped(_) => self.record.tally.count("lines dropped"),
            Heard::Opened(_) => self.hub.has_opened = true,
            _ => {}
        }
    }

    /// Check 5: the hub has read of a change. Whoever is entitled must be told.
    fn is_owed(&mut self, subject: &Subject, moment: u64) {
        for client in self.clients.iter_mut().filter(|client| client.is_open) {
            let is_entitled = match subject {
                Subject::Updated(uri) => client.wants(uri),
                _ => true,
            };
            if is_entitled {
                client.is_owed(subject.clone(), moment);
            }
        }
    }

    pub(crate) fn flush(&mut self) -> bool {
        let World { hub, shards, .. } = self;
        hub.with(shards, |state, doors| state.flush(doors));
        let sent = hub.fill_mailboxes(shards);
        self.hear_news();
        sent
    }

    pub(crate) fn take_letters(&mut self, shard: usize, most: usize) -> bool {
        let mut has_taken = false;
        let now = self.now;
        let shard = &mut self.shards[shard];
        if shard.is_stalled && !self.is_calm {
            return false;
        }
        shard.now = now;
        for _ in 0..most {
            let Some(letter) = shard.letters.pop_front() else {
                break;
            };
            has_taken = true;
            shard.letter(letter);
        }
        self.hear_news();
        has_taken
    }

    pub(crate) fn pass(&mut self, micros: u64) {
        self.now = Micros(self.now.0 + micros);
        let now = self.now;
        for shard in &mut self.shards {
            shard.tick(now);
        }
        let World { hub, shards, .. } = self;
        hub.with(shards, |state, doors| state.tick(now.millis(), doors));
        self.hear_news();
    }

    fn stall(&mut self) {
        let shard = self.dice.below(self.shards.len());
        match self.dice.chance(70) {
            true => {
                let shard = &mut self.shards[shard];
                shard.is_stalled = !shard.is_stalled;
                self.record.tally.count("mailbox stalled");
            }
            false => self.is_stuck = !self.is_stuck,
        }
    }

    pub(crate) fn restart_if_down(&mut self) -> bool {
        let is_down = !self.server.is_alive && self.hub_has_ended();
        if is_down {
            self.restart();
        }
        is_down
    }

    fn restart(&mut self) {
        let before = self.server.abilities.clone();
        let abilities =
            match self.server.epoch > 0 && self.dice.chance(self.settings.faults.shrinks) {
                true => before.less(&mut self.dice),
                false => before,
            };
        if self.server.epoch > 0 {
            self.record.tally.count("servers started again");
        }
        self.server = self.server.start(abilities.clone());
        self.abilities.push(abilities);
        self.hub.state.begin();
        self.hub.has_opened = false;
        assert_eq!(self.hub.state.epoch(), self.server.epoch);
    }

    /// What has happened in the shards.
    pub(crate) fn hear_news(&mut self) {
        for shard in 0..self.shards.len() {
            for (moment, news) in std::mem::take(&mut self.shards[shard].news) {
                self.record.has_seen(&moment.to_le_bytes());
                self.trace(|| format!("shard {shard}: {news:?}"));
                self.hear_of(shard, moment, news);
            }
        }
        self.sessions_end();
        for shard in 0..self.shards.len() {
            if !self.may_lose[shard].is_empty() {
                let held = self.held_in(shard);
                self.may_lose[shard].retain(|uri| held.contains(uri));
            }
        }
    }

    /// Check 7: what has a bound is within it.
    fn is_bounded(&self) {
        let limits = &self.settings.limits;
        for shard in &self.shards {
            let state = &shard.state;
            assert!(state.sessions.len() <= limits.sessions_max);
            assert!(state.calls_in_flight() <= limits.calls_max);
            assert!(state.task_slots() <= limits.calls_max);
            assert!(state.outgoing.waiting_bytes() <= limits.waiting_bytes_max);
            assert!(shard.connections.held_bytes() <= self.settings.buffered_bytes_max);
            let sessions = state.sessions.len();
            assert!(state.subscriptions() <= sessions * limits.subscriptions_per_session_max);
            assert!(state.tasks() <= sessions * 2 * limits.tasks_per_session_max);
        }
    }

    fn hear_of(&mut self, shard: usize, moment: u64, news: News) {
        let has_many = self.settings.has_many_resources;
        let open = |client: &&mut Client| client.shard == shard && client.is_open;
        match news {
            News::Ended { to, how } => {
                let call = self.waiting.remove(&place(shard, to));
                self.call_ends(call.expect("check 2: a call ends once"), how, moment);
            }
            News::Up { epoch, is_first } => {
                let abilities = self.abilities[epoch as usize - 1].clone();
                let before = self.known[shard].replace(abilities.clone());
                assert_eq!(before.is_none(), is_first);
                self.may_lose[shard] = self.held_in(shard);
                let is_less = before.is_some_and(|before| before.has_more_than(&abilities));
                for client in self.clients.iter_mut().filter(open) {
                    if is_less {
                        client.closes();
                        self.record.tally.count("sessions ended by a lesser server");
                    } else if !is_first {
                        for list in &abilities.lists {
                            client.is_due(Subject::List((*list).into()), moment);
                        }
                    }
                }
            }
            News::Down => {
                self.clients
                    .iter_mut()
                    .filter(open)
                    .for_each(Client::forgets_tasks);
            }
            News::Changed(lists) => {
                assert!(lists.iter().all(|list| LISTS.contains(list)));
                for client in self.clients.iter_mut().filter(open) {
                    for list in &lists {
                        client.is_due(Subject::List((*list).into()), moment);
                    }
                }
            }
            News::Updated(uri) => {
                for client in self.clients.iter_mut().filter(open) {
                    client.update_is_due(&uri, has_many, moment);
                }
            }
            News::Lost(uri) => {
                let is_held = self.held_in(shard).contains(&uri);
                let may = self.may_lose[shard].remove(&uri);
                assert!(may || !is_held, "check 4: {uri} is lost without a reason");
                for client in self.clients.iter_mut().filter(open) {
                    if client.holds.contains_key(&uri) {
                        client.lets_go(&uri, moment);
                        self.record.tally.count("subscriptions lost");
                    }
                }
            }
            News::TaskMarked(message) => {
                let nonce = crate::text::Nonce::all(&message)[0];
                let client = &mut self.clients[nonce.session];
                assert!(client.is_open, "check 6: a task outlives its session");
                client.task_is_due(&message, moment);
                self.record.tally.count("task news on GET streams");
            }
            News::Dropped { of, count } => {
                self.record.tally.many("progress dropped by a shard", count);
                match of.and_then(|to| self.waiting.get(&place(shard, to))) {
                    // A batch has one queue: whose progress it was is not known.
                    Some(call) if !self.record.calls[*call].is_in_batch => {
                        self.record.calls[*call].dropped += count;
                    }
                    _ => self.record.dropped_somewhere[shard] += count,
                }
            }
            News::Evicted(count) => self.record.tally.many("connections evicted", count),
        }
    }

    /// The URIs that sessions of a shard hold.
    fn held_in(&self, shard: usize) -> BTreeSet<String> {
        let own = self.clients.iter().filter(|client| client.shard == shard);
        own.flat_map(|client| client.holds.keys().cloned())
            .collect()
    }

    fn call_ends(&mut self, number: usize, how: How, moment: u64) {
        let now = self.now.millis();
        let call = &mut self.record.calls[number];
        assert!(call.in_flight, "check 2: a call ends once");
        call.in_flight = false;
        call.ended = Some(how);
        let client = &mut self.clients[call.nonce.session];
        client.last_heard_ms = now.0;
        match how {
            How::Server => {
                let is_task = call.has_task && call.ask == Ask::MakeTask;
                if is_task && client.is_open {
                    client.tasks.push(number);
                }
            }
            How::Own(outcome) => {
                self.record.tally.count("calls that the gateway answers");
                if matches!(call.ask, Ask::TaskList(_)) {
                    client.lists += 1;
                    call.owned_then = client.tasks.clone();
                    call.deaths_then = client.deaths;
                }
                if let Ask::Subscribe(uri) = &call.ask
                    && outcome == ringway::routing::outcome::Outcome::Ok
                    && !call.is_void
                    && client.is_open
                {
                    client.is_granted(uri, moment);
                    self.record.tally.count("subscriptions");
                }
            }
            How::Failed(reason) => self.call_fails(number, reason),
        }
    }

    /// Check 2: a call fails for a reason that there is.
    fn call_fails(&mut self, number: usize, reason: Reason) {
        let limits = &self.settings.limits;
        let call = &self.record.calls[number];
        let age = self.now.millis().0 - call.begun_ms;
        let is_subscribe = matches!(call.ask, Ask::Subscribe(_));
        let (is_so, what) = match reason {
            Reason::Timeout => {
                let least = limits.request_timeout_ms.min(limits.request_timeout_max_ms);
                (is_subscribe || age >= least, "calls that timed out")
            }
            Reason::Cancelled => {
                let is_gone = self.settings.cancel_on_disconnect && call.answer == Answer::Gone;
                (call.is_cancelled || is_gone, "calls cancelled")
            }
            Reason::TooLarge => (call.is_too_long_read, "calls with an answer too long"),
            Reason::SessionEnded => (true, "calls that a session's end ended"),
            Reason::UpstreamDown => (true, "calls that a server's end ended"),
            Reason::Overloaded => (is_subscribe, "subscribes over the limit"),
            Reason::Draining => (false, ""),
        };
        assert!(is_so, "check 2: {call:?} ended for {reason:?}");
        self.record.tally.count(what);
    }

    /// Sessions end by a request, a lesser server, or for want of use; nothing else.
    fn sessions_end(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.is_open) {
            let sessions = &self.shards[client.shard].state.sessions;
            if sessions.find(client.id, client.owner).is_some() {
                continue;
            }
            let limits = &self.settings.limits;
            let allowed = match client.is_used {
                true => limits.session_ttl_ms,
                false => limits.session_unused_ms.min(limits.session_ttl_ms),
            };
            let silence = self.now.millis().0 - client.last_heard_ms;
            assert!(
                silence >= allowed && client.stream.is_none(),
                "session {} ended after {silence} ms",
                client.number
            );
            client.closes();
            self.record.tally.count("sessions expired");
        }
    }

    pub(crate) fn now_ms(&self) -> Millis {
        self.now.millis()
    }

    /// Every shard finishes what is in flight.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
        for shard in &mut self.shards {
            shard.drain();
        }
        self.hear_news();
    }
}
