//! The end of a run: faults stop, everything comes to rest, all sessions end, and nothing
//! may be left.

use ringway::routing::private::End;
use ringway::routing::time::Millis;

use crate::joined::client::State;
use crate::joined::world::{LONG, World};

/// Rounds that a run may take to come to rest.
const ROUNDS_MAX: usize = 500;

impl World {
    pub(crate) fn come_to_rest(&mut self) {
        self.is_calm = true;
        self.may_end = true;
        self.revive();
        self.settle();
        self.sessions_end_for_a_reason();
        for call in &self.calls {
            assert_ne!(call.state, State::Waiting, "check 2: no reply: {call:?}");
        }
        assert!(self.openings.is_empty(), "an initialize without an answer");
        self.is_quiet();
        for client in 0..self.clients.len() {
            self.delete(client);
        }
        self.settle();
        // Of sessions whose clients went before they knew of them.
        self.joined.tick(Millis(3 * LONG));
        self.settle();
        self.nothing_is_left();
    }

    /// Everything that can happen happens.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut happened = false;
            self.pump();
            for at in 0..self.servers.len() {
                while self.servers[at].is_up && !self.servers[at].pending.is_empty() {
                    self.answer(at, 0);
                    happened = true;
                }
                while self.decide(at) {
                    happened = true;
                }
            }
            self.pump();
            let mut at = 0;
            while at < self.openings.len() {
                match self.look_at_opening(at) {
                    true => happened = true,
                    false => at += 1,
                }
            }
            for client in 0..self.clients.len() {
                self.drain_calls(client);
                while self.read_stream(client) {
                    happened = true;
                }
            }
            if !happened {
                self.tick();
                self.pump();
                let is_over = self
                    .servers
                    .iter()
                    .all(|it| it.pending.is_empty() || !it.is_up);
                if is_over {
                    return;
                }
            }
        }
        panic!("the run does not come to rest");
    }

    /// Sessions, streams and subscriptions are all there is.
    fn is_quiet(&self) {
        assert_eq!(self.joined.waiting(), 0, "check 6: what several are asked");
        assert_eq!(self.joined.waiting_bytes(), 0, "check 6: bytes that wait");
        for server in &self.servers {
            let state = server.shard().state.borrow();
            let name = &server.name;
            assert_eq!(
                state.calls_in_flight(),
                0,
                "check 6: calls of {} {name}",
                server.place()
            );
        }
    }

    /// Check 6.
    fn nothing_is_left(&mut self) {
        for at in 0..self.servers.len() {
            for (key, _) in self.servers[at].streams.clone() {
                self.end(at, key, End::Done);
            }
        }
        self.pump();
        self.is_quiet();
        assert_eq!(self.joined.sessions(), 0, "check 6: sessions");
        for server in &self.servers {
            let (place, name) = (server.place(), &server.name);
            let mut state = server.shard().state.borrow_mut();
            assert!(state.sessions.is_empty(), "check 6: legs at {place} {name}");
            assert_eq!(state.streams(), 0, "check 6: streams");
            assert_eq!(state.subscriptions(), 0, "check 6: subscriptions");
            assert_eq!(state.uris(), 0, "check 6: URIs");
            assert_eq!(state.waiting_bytes(), 0, "check 6: bytes");
            let is_empty = state.exchanges().is_none_or(|it| it.is_empty());
            assert!(is_empty, "check 6: exchanges with {place} {name}");
            drop(state);
            assert!(
                server.under_way.is_empty(),
                "check 6: exchanges with {place} {name}"
            );
            assert!(
                server.held.is_empty(),
                "check 4: {:?} at {place} {name}",
                server.held
            );
            for (session, upstream) in &server.sessions {
                assert!(
                    !upstream.is_alive,
                    "check 6: {place} {name} keeps {session}"
                );
            }
        }
        assert_eq!(
            self.ground.buffered_bytes(),
            0,
            "check 6: bytes that nobody takes"
        );
    }
}
