//! The end of a run: faults stop, everything comes to rest, and what must hold
//! then is checked; all sessions end, and nothing may be left.

use std::collections::BTreeSet;

use crate::checks::{Answer, How};
use crate::face::{Carries, Connection};
use crate::world::World;

/// Rounds that a run may take to come to rest.
const ROUNDS_MAX: usize = 20_000;

impl World {
    pub(crate) fn come_to_rest(&mut self) {
        self.is_calm = true;
        let drains_now = self.settings.drains && self.dice.chance(50);
        if drains_now {
            self.drain();
        }
        let is_left_down = self.dice.chance(20);
        let World {
            server,
            dice,
            record,
            ..
        } = self;
        if server.is_alive {
            server.finish_tasks(dice, record);
        }
        for client in 0..self.clients.len() {
            let wants = self.clients[client].is_open && self.clients[client].stream.is_none();
            if wants && self.dice.chance(70) {
                self.open_stream(client);
            }
        }
        self.settle(!is_left_down);
        self.is_right_at_rest();
        self.settle(true);
        self.is_right_at_rest();
        if self.settings.drains && !drains_now {
            self.drain();
        }
        self.end_sessions();
        self.settle(true);
        self.nothing_is_left();
    }

    /// Goes on until nothing happens any more, however long it takes.
    fn settle(&mut self, restarts: bool) {
        // Nothing is in flight, and whatever the server was asked last has been
        // answered or has timed out.
        let mut rests = 0;
        let mut heard = self.server.heard;
        for _ in 0..ROUNDS_MAX {
            if self.round(restarts) {
                continue;
            }
            if heard != self.server.heard {
                heard = self.server.heard;
                rests = 0;
            }
            self.nobody_waits_to_be_woken();
            let in_flight: usize = self.shards.iter().map(|s| s.state.calls_in_flight()).sum();
            let is_resting = in_flight == 0 && self.hub.state.ledger().requests() == 0;
            rests = if is_resting { rests + 1 } else { 0 };
            if rests > 5 {
                return;
            }
            self.pass(self.settings.limits.request_timeout_ms * 250 + 100_000);
        }
        panic!("the run does not come to rest");
    }

    /// Check 5: nothing is there for a stream or a connection that has not been woken
    /// for it. In time a keep-alive would hide it.
    fn nobody_waits_to_be_woken(&self) {
        for client in self.clients.iter().filter(|client| client.is_open) {
            let sessions = &self.shards[client.shard].state.sessions;
            let key = sessions.find(client.id, client.owner);
            let session = key.and_then(|key| sessions.get(key));
            let session = session.expect("an open session is known");
            assert!(
                client.stream.is_none() || !session.has_marks(),
                "check 5: session {} has marks and a stream that sleeps",
                client.number
            );
            assert!(
                session.writing.is_empty(),
                "check 5: marks that nobody writes"
            );
        }
        for (place, shard) in self.shards.iter().enumerate() {
            let its_own = self.connections.iter();
            let its_own = its_own.filter(|connection| connection.shard == place);
            // The answers of a batch go out together.
            let gathered: usize = its_own.map(Connection::gathered_bytes).sum();
            let held = shard.connections.held_bytes();
            assert_eq!(
                held, gathered,
                "check 2: an answer and a connection that sleeps"
            );
        }
    }

    /// One turn of everything. True if something happened.
    fn round(&mut self, restarts: bool) -> bool {
        let mut happened = restarts && self.restart_if_down();
        for shard in 0..self.shards.len() {
            happened |= self.send(shard);
        }
        happened |= self.gather();
        happened |= self.written();
        while self.hear_one() {
            happened = true;
        }
        if self.server.is_alive {
            let World {
                server,
                dice,
                settings,
                record,
                ..
            } = self;
            happened |= server.answer_all(dice, settings, record);
        }
        happened |= self.read(1_000);
        happened |= self.flush();
        for shard in 0..self.shards.len() {
            happened |= self.take_letters(shard, 1_000);
        }
        for connection in 0..self.connections.len() {
            while self.go_on(connection) {
                happened = true;
            }
        }
        happened
    }

    fn is_right_at_rest(&mut self) {
        self.record.progress_is_accounted_for();
        for call in &self.record.calls {
            assert!(!call.in_flight, "check 2: in flight for ever: {call:?}");
            assert_ne!(call.answer, Answer::Waiting, "check 2: no reply: {call:?}");
        }
        for connection in &self.connections {
            let waits = matches!(connection.carries, Carries::Call(_));
            assert!(
                !waits,
                "check 2: a response that never ends: {connection:?}"
            );
        }
        for (place, shard) in self.shards.iter().enumerate() {
            let own = self
                .clients
                .iter()
                .filter(|client| client.shard == place && client.is_open);
            let own: Vec<_> = own.collect();
            assert_eq!(shard.state.sessions.len(), own.len());
            let held: usize = own.iter().map(|client| client.holds.len()).sum();
            assert_eq!(
                shard.state.subscriptions(),
                held,
                "check 4: what clients know"
            );
            let streams = own.iter().filter(|client| client.stream.is_some()).count();
            assert_eq!(shard.state.streams(), streams);
            assert_eq!(
                shard.connections.held_bytes(),
                0,
                "check 6: bytes that nobody takes"
            );
            assert_eq!(
                shard.state.outgoing.waiting_bytes(),
                0,
                "check 6: lines that wait"
            );
            assert!(
                !self.is_draining || !shard.connections.has_busy(),
                "a drain ends"
            );
        }
        let has_many = self.settings.has_many_resources;
        let forgets = self.settings.forgets_tasks();
        for client in self.clients.iter().filter(|client| client.is_open) {
            if client.stream.is_some() {
                client.was_told_everything(has_many, forgets);
                self.record
                    .tally
                    .count("sessions that were told everything");
            }
        }
        if self.server.is_alive {
            self.server_knows();
        }
    }

    /// Check 4, and the log level.
    fn server_knows(&mut self) {
        let open = || self.clients.iter().filter(|client| client.is_open);
        let wanted: BTreeSet<String> = open()
            .flat_map(|client| client.holds.keys().cloned())
            .collect();
        assert_eq!(
            self.server.subscribed, wanted,
            "check 4: what the server knows"
        );
        let known = self.hub.state.ledger().subscribed();
        let known: BTreeSet<String> = known.map(str::to_owned).collect();
        assert_eq!(known, wanted, "check 4: what the ledger knows");
        let level = open().filter_map(|client| client.level).min().unwrap_or(1);
        if self.server.abilities.logging {
            assert_eq!(self.server.level, level, "the most verbose log level");
            self.record.tally.count("log levels checked");
        }
        self.record
            .tally
            .many("subscriptions checked", wanted.len());
    }

    fn end_sessions(&mut self) {
        for client in 0..self.clients.len() {
            if !self.clients[client].is_open {
                continue;
            }
            match self.dice.chance(50) {
                true => self.delete(client),
                false => self.vanish(client),
            }
        }
        let limits = self.settings.limits;
        for _ in 0..3 {
            self.settle(true);
            self.pass(limits.session_ttl_ms.max(limits.session_unused_ms) * 1_000 + 5_000_000);
        }
    }

    /// Check 6.
    fn nothing_is_left(&mut self) {
        for call in &self.record.calls {
            assert!(!call.in_flight, "check 6: {call:?}");
            let is_ended = call.ended.is_some_and(|how| how != How::Server);
            if is_ended && call.upstream.is_some() && call.replies.is_empty() {
                self.record.tally.count("calls withdrawn from the server");
            }
        }
        for connection in 0..self.connections.len() {
            self.breaks(connection);
        }
        for shard in &self.shards {
            let state = &shard.state;
            assert!(state.sessions.is_empty(), "check 6: sessions");
            assert_eq!(state.calls_in_flight(), 0, "check 6: calls");
            assert_eq!(state.tasks(), 0, "check 6: tasks");
            assert_eq!(state.task_slots(), 0, "check 6: slots that tasks keep");
            assert_eq!(state.subscriptions(), 0, "check 6: subscriptions");
            assert_eq!(state.uris(), 0, "check 6: URIs");
            assert_eq!(state.streams(), 0, "check 6: streams");
            assert!(!state.has_notes(), "check 6: notes");
            assert!(!state.outgoing.has_batch(), "check 6: lines");
            assert_eq!(
                state.outgoing.waiting_bytes(),
                0,
                "check 6: lines that wait"
            );
            assert_eq!(state.log_level(), None, "check 6: a log level");
            assert!(shard.connections.is_empty(), "check 6: connections");
            assert_eq!(shard.connections.held_bytes(), 0, "check 6: bytes");
            assert!(shard.letters.is_empty());
        }
        assert!(self.hub.state.ledger().is_empty(), "check 6: the ledger");
        assert_eq!(
            self.hub.state.ledger().requests(),
            0,
            "check 6: the ledger's requests"
        );
        assert_eq!(
            self.hub.state.tasks(),
            0,
            "check 6: tasks that the hub knows"
        );
        assert!(!self.hub.state.has_lines(), "check 6: the hub's lines");
        assert!(self.hub.links.iter().all(|link| link.is_empty()));
        assert!(
            self.server.subscribed.is_empty(),
            "check 6: the server's subscriptions"
        );
        self.server.has_been_told_of_every_end(&self.record);
        assert!(self.waiting.is_empty());
    }
}
