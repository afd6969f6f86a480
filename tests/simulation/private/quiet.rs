//! The end of a run: faults stop, everything comes to rest, all sessions end, and
//! nothing may be left.

use ringway::routing::stream::Work;

use crate::checks::{Answer, How};
use crate::private::client::Carries;
use crate::private::world::World;

/// Rounds that a run may take to come to rest.
const ROUNDS_MAX: usize = 5_000;

impl World {
    pub(crate) fn come_to_rest(&mut self) {
        self.is_calm = true;
        self.settle();
        self.is_right_at_rest();
        for client in 0..self.clients.len() {
            if self.dice.chance(80) {
                self.delete(client);
            }
        }
        self.settle();
        // The rest is not used any more.
        for connection in 0..self.connections.len() {
            self.breaks(connection);
        }
        let limits = self.settings.limits;
        self.pass(limits.session_ttl_ms + limits.session_unused_ms + 10_000);
        self.pass(limits.session_ttl_ms + limits.session_unused_ms + 10_000);
        self.settle();
        self.nothing_is_left();
    }

    fn settle(&mut self) {
        let mut rests = 0;
        for _ in 0..ROUNDS_MAX {
            if self.round() {
                continue;
            }
            self.nobody_waits_to_be_woken();
            let calls: usize = self
                .shards
                .iter()
                .map(|it| it.state.calls_in_flight())
                .sum();
            rests = if calls == 0 { rests + 1 } else { 0 };
            if rests > 2 {
                return;
            }
            self.pass(5_000);
        }
        panic!("the run does not come to rest");
    }

    /// One turn of everything. True if something happened.
    fn round(&mut self) -> bool {
        let mut happened = false;
        let mut at = 0;
        while at < self.exchanges.len() {
            let number = self.exchanges[at].number;
            happened |= self.arrive(at);
            if self.owes_answer(at) {
                self.answer(at);
                happened = true;
            }
            happened |= self.is_busy(at);
            while self.exchanges.get(at).is_some_and(|it| it.number == number) && self.is_busy(at) {
                if !self.hear(at) {
                    break;
                }
            }
            if self.exchanges.get(at).is_some_and(|it| it.number == number) {
                at += 1;
            }
        }
        for connection in 0..self.connections.len() {
            while self.go_on(connection) {
                happened = true;
            }
        }
        happened
    }

    fn nobody_waits_to_be_woken(&mut self) {
        for connection in &self.connections {
            if let Carries::Stream { session, .. } = connection.carries {
                let (state, stream) = (&mut self.shards[connection.shard].state, connection.key);
                let work = state.stream_work(session, stream.into(), &mut Vec::new());
                assert_eq!(work, Work::Rest, "a stream that sleeps");
            }
        }
        for shard in &self.shards {
            let held = shard.connections.held_bytes();
            assert_eq!(held, 0, "check 2: an answer and a connection that sleeps");
        }
    }

    fn is_right_at_rest(&mut self) {
        self.record.progress_is_accounted_for();
        for call in &self.record.calls {
            assert!(!call.in_flight, "check 2: in flight for ever: {call:?}");
            assert_ne!(call.answer, Answer::Waiting, "check 2: no reply: {call:?}");
        }
        for (call, run) in self.record.calls.iter().zip(&self.runs) {
            let is_cancelled = matches!(call.ended, Some(How::Failed(_)));
            let is_alive = run.is_some_and(|upstream| self.upstreams[upstream].is_alive);
            let lost = self.shards[call.shard].state.lost_notices;
            // The end of a session takes what still waits along.
            let is_lost = lost > 0 || run.is_some_and(|it| self.upstreams[it].end_was_lost);
            let is_told = call.is_void || is_lost;
            assert!(
                !is_cancelled || !is_alive || is_told,
                "the server does not know that it is cancelled: {call:?}"
            );
        }
        for connection in &self.connections {
            let is_over = matches!(connection.carries, Carries::Stream { .. } | Carries::Closed);
            assert!(
                is_over,
                "check 2: a response that never ends: {connection:?}"
            );
        }
        for asked in &self.asked {
            let upstream = &self.upstreams[asked.upstream];
            let lost = self.shards[self.clients[asked.client].shard]
                .state
                .lost_notices;
            let is_over = !upstream.is_alive || upstream.is_ending;
            let is_excused = is_over || asked.was_lost || asked.is_withdrawn || lost > 0;
            assert!(
                !asked.was_sent || asked.is_answered || is_excused,
                "an answer did not reach the server: {asked:?}"
            );
        }
    }

    /// Check 6.
    fn nothing_is_left(&mut self) {
        for shard in &mut self.shards {
            let state = &mut shard.state;
            assert!(state.sessions.is_empty(), "check 6: sessions");
            assert_eq!(state.calls_in_flight(), 0, "check 6: calls");
            assert_eq!(state.streams(), 0, "check 6: streams");
            assert_eq!(state.waiting_bytes(), 0, "check 6: bytes");
            let exchanges = state.exchanges().expect("upstreams of their own");
            assert!(exchanges.is_empty(), "check 6: exchanges");
            assert_eq!(exchanges.subscriptions(), 0, "check 6: subscriptions");
            assert!(shard.connections.is_empty(), "check 6: connections");
        }
        assert!(self.exchanges.is_empty(), "check 6: exchanges");
        for upstream in &self.upstreams {
            let is_over = !upstream.is_alive || !upstream.is_known || upstream.end_was_lost;
            assert!(is_over, "check 6: the server keeps {upstream:?}");
        }
    }
}
