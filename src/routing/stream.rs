//! The GET streams of one shard: a session has one at most, a newer one replaces
//! the older. A stream takes its session's marks, writes them, and says how that
//! went; marks whose write failed are set again for whichever stream is there then.

use super::session::{SessionKey, StreamId};
use super::shard::{Act, ShardState};
use super::time::Millis;

/// What a GET stream has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Nothing now.
    Rest,
    /// This many events were appended: write them, then report it by
    /// [`ShardState::stream_wrote`].
    Write(usize),
    /// It is no longer the stream of a session: end.
    End,
}

impl ShardState {
    /// A session's client has opened a GET stream. If it replaces another one, which
    /// ends: how often that has happened in this session so far.
    pub fn open_stream(
        &mut self,
        key: SessionKey,
        stream: StreamId,
        now: Millis,
        acts: &mut Vec<Act>,
    ) -> Option<u32> {
        self.touch(key, now);
        let Some(session) = self.sessions.get_mut(key) else {
            acts.push(Act::CloseStream(stream));
            return None;
        };
        let replaced = match session.stream.replace(stream) {
            Some(older) => {
                session.replacements = session.replacements.saturating_add(1);
                acts.push(Act::CloseStream(older));
                Some(session.replacements)
            }
            None => {
                self.streams += 1;
                None
            }
        };
        self.stream_opened(key);
        replaced
    }

    /// GET streams that are open.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Whether `stream` is the stream of the session at `key`.
    pub fn is_stream(&self, key: SessionKey, stream: StreamId) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| session.stream == Some(stream))
    }

    /// What `stream`, which writes nothing at the moment, is to do for the session
    /// at `key`.
    pub fn stream_work(&mut self, key: SessionKey, stream: StreamId, out: &mut Vec<u8>) -> Work {
        let session = self.sessions.get_mut(key);
        let Some(session) = session.filter(|session| session.stream == Some(stream)) else {
            return Work::End;
        };
        if let Some(events) = session.private_write(stream, out) {
            return match events {
                0 => Work::Rest,
                _ => Work::Write(events),
            };
        }
        if !session.has_marks() {
            return Work::Rest;
        }
        let marks = session.take_marks();
        marks.frames(out);
        let events = marks.len();
        debug_assert!(session.writing.iter().all(|(writer, _)| *writer != stream));
        session.writing.push((stream, marks));
        Work::Write(events)
    }

    /// The write of `stream` is over. If it failed its marks are set again.
    pub fn stream_wrote(
        &mut self,
        key: SessionKey,
        stream: StreamId,
        is_done: bool,
        acts: &mut Vec<Act>,
    ) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if let Some(bytes) = session.private_wrote(stream, is_done) {
            acts.extend(session.stream.filter(|_| !is_done).map(Act::WakeStream));
            if let Some(exchanges) = &mut self.private {
                exchanges.dequeued(bytes);
            }
            return;
        }
        let place = session
            .writing
            .iter()
            .position(|(writer, _)| *writer == stream);
        let Some(place) = place else { return };
        let (_, marks) = session.writing.swap_remove(place);
        if session.writing.is_empty() {
            session.writing = Vec::new();
        }
        if !is_done {
            let woken = session.mark(|known| known.set_again(marks));
            acts.extend(woken.map(Act::WakeStream));
        }
    }

    /// The connection of `stream` is over.
    pub fn stream_gone(
        &mut self,
        key: SessionKey,
        stream: StreamId,
        now: Millis,
        acts: &mut Vec<Act>,
    ) {
        let session = self.sessions.get_mut(key);
        if let Some(session) = session.filter(|session| session.stream == Some(stream)) {
            session.stream = None;
            session.last_used = now;
            self.streams -= 1;
            self.drop_upward(key);
        }
        self.stream_wrote(key, stream, false, acts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::bench::{Bench, closed, stream, woken};
    use crate::wire::notice::Kinds;

    /// Lists have changed; returns the streams that are woken.
    fn changed(bench: &mut Bench, kinds: Kinds) -> Vec<StreamId> {
        let mut acts = Vec::new();
        bench.state.changed(kinds, &mut acts);
        woken(acts)
    }

    fn gone(bench: &mut Bench, session: SessionKey, stream: StreamId) -> Vec<Act> {
        let mut acts = Vec::new();
        bench
            .state
            .stream_gone(session, stream, bench.now, &mut acts);
        acts
    }

    const TOOLS: &str = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";

    #[test]
    fn a_newer_stream_replaces_the_older_which_ends() {
        let mut bench = Bench::new();
        let session = bench.session();
        assert!(bench.open_stream(session, stream(1)).is_empty());
        assert_eq!(closed(bench.open_stream(session, stream(2))), [stream(1)]);
        assert_eq!(bench.state.streams(), 1);
        assert_eq!(changed(&mut bench, Kinds::TOOLS), [stream(2)]);
        assert_eq!(bench.stream_work(session, stream(1)).0, Work::End);
        assert!(!bench.state.is_stream(session, stream(1)));
        assert!(bench.state.is_stream(session, stream(2)));
        assert!(gone(&mut bench, session, stream(1)).is_empty());
        assert_eq!(bench.state.streams(), 1);
        assert_eq!(
            bench.stream_work(session, stream(2)),
            (Work::Write(1), TOOLS.into())
        );
    }

    #[test]
    fn streams_that_keep_replacing_each_other_are_counted_and_leave_nothing() {
        let mut bench = Bench::new();
        let session = bench.session();
        for n in 0..100 {
            let mut acts = Vec::new();
            let replaced = bench
                .state
                .open_stream(session, stream(n), bench.now, &mut acts);
            assert_eq!(replaced, (n > 0).then_some(n));
            changed(&mut bench, Kinds::TOOLS);
            bench.stream_work(session, stream(n));
            if n > 0 {
                gone(&mut bench, session, stream(n - 1));
            }
        }
        assert_eq!(bench.state.streams(), 1);
        gone(&mut bench, session, stream(99));
        assert_eq!(bench.state.streams(), 0);
        let again = bench
            .state
            .open_stream(session, stream(100), bench.now, &mut Vec::new());
        assert_eq!(again, None, "there was none to replace");
        gone(&mut bench, session, stream(100));
        let session = bench.state.sessions.get(session).unwrap();
        assert_eq!(session.writing.capacity(), 0);
    }

    #[test]
    fn what_happens_often_wakes_the_stream_once_and_is_one_event() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        assert_eq!(bench.stream_work(session, stream(1)).0, Work::Rest);
        assert_eq!(changed(&mut bench, Kinds::TOOLS), [stream(1)]);
        assert!(changed(&mut bench, Kinds::TOOLS).is_empty());
        assert!(changed(&mut bench, Kinds::TOOLS).is_empty());
        assert_eq!(
            bench.stream_work(session, stream(1)),
            (Work::Write(1), TOOLS.into())
        );
        assert!(bench.stream_wrote(session, stream(1), true).is_empty());
        assert_eq!(bench.stream_work(session, stream(1)).0, Work::Rest);
    }

    #[test]
    fn what_happens_during_a_write_is_told_by_the_next() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::PROMPTS);
        bench.stream_work(session, stream(1));
        changed(&mut bench, Kinds::TOOLS);
        bench.stream_wrote(session, stream(1), true);
        assert_eq!(
            bench.stream_work(session, stream(1)),
            (Work::Write(1), TOOLS.into())
        );
    }

    #[test]
    fn a_failed_write_sets_its_marks_again() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::TOOLS);
        bench.stream_work(session, stream(1));
        let acts = bench.stream_wrote(session, stream(1), false);
        assert_eq!(woken(acts), [stream(1)]);
        assert_eq!(
            bench.stream_work(session, stream(1)),
            (Work::Write(1), TOOLS.into())
        );
    }

    #[test]
    fn a_write_that_is_reported_twice_counts_once() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::TOOLS);
        bench.stream_work(session, stream(1));
        bench.stream_wrote(session, stream(1), true);
        assert!(bench.stream_wrote(session, stream(1), false).is_empty());
        assert_eq!(bench.stream_work(session, stream(1)).0, Work::Rest);
    }

    #[test]
    fn what_a_replaced_stream_could_not_write_goes_to_the_newer_one() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::TOOLS);
        bench.stream_work(session, stream(1));
        bench.open_stream(session, stream(2));
        assert_eq!(bench.stream_work(session, stream(2)).0, Work::Rest);
        let acts = bench.stream_wrote(session, stream(1), false);
        assert_eq!(woken(acts), [stream(2)]);
        assert_eq!(
            bench.stream_work(session, stream(2)),
            (Work::Write(1), TOOLS.into())
        );
    }

    #[test]
    fn what_a_replaced_stream_could_not_write_is_one_with_what_came_since() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::TOOLS.with(Kinds::PROMPTS));
        bench.stream_work(session, stream(1));
        bench.open_stream(session, stream(2));
        assert_eq!(changed(&mut bench, Kinds::TOOLS), [stream(2)]);
        assert!(gone(&mut bench, session, stream(1)).is_empty());
        let (work, events) = bench.stream_work(session, stream(2));
        assert_eq!(work, Work::Write(2));
        assert!(events.contains("tools/") && events.contains("prompts/"));
    }

    #[test]
    fn each_of_several_streams_reports_its_own_write() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::PROMPTS);
        bench.stream_work(session, stream(1));
        bench.open_stream(session, stream(2));
        changed(&mut bench, Kinds::TOOLS);
        bench.stream_work(session, stream(2));
        bench.stream_wrote(session, stream(2), false);
        bench.stream_wrote(session, stream(1), true);
        assert_eq!(
            bench.stream_work(session, stream(2)),
            (Work::Write(1), TOOLS.into())
        );
    }

    #[test]
    fn marks_of_a_stream_that_is_gone_wait_for_the_next() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::TOOLS);
        bench.stream_work(session, stream(1));
        assert!(gone(&mut bench, session, stream(1)).is_empty());
        assert_eq!(bench.state.streams(), 0);
        assert!(changed(&mut bench, Kinds::TOOLS).is_empty());
        assert!(bench.open_stream(session, stream(2)).is_empty());
        assert_eq!(
            bench.stream_work(session, stream(2)),
            (Work::Write(1), TOOLS.into())
        );
    }

    #[test]
    fn a_session_that_ends_takes_its_stream_along() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::TOOLS);
        bench.stream_work(session, stream(1));
        assert_eq!(closed(bench.end(session)), [stream(1)]);
        assert_eq!(bench.state.streams(), 0);
        assert_eq!(bench.stream_work(session, stream(1)).0, Work::End);
        assert!(bench.stream_wrote(session, stream(1), false).is_empty());
        assert!(gone(&mut bench, session, stream(1)).is_empty());
        assert_eq!(bench.state.streams(), 0);
        assert_eq!(closed(bench.open_stream(session, stream(2))), [stream(2)]);
        assert_eq!(bench.state.streams(), 0);
    }

    #[test]
    fn a_stream_of_an_ended_session_does_nothing_to_the_session_in_its_place() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        changed(&mut bench, Kinds::TOOLS);
        bench.stream_work(session, stream(1));
        bench.end(session);
        let other = bench.session();
        assert_eq!(other, session, "the place is used again");
        bench.open_stream(other, stream(2));
        assert_eq!(bench.stream_work(session, stream(1)).0, Work::End);
        assert!(bench.stream_wrote(session, stream(1), false).is_empty());
        assert!(gone(&mut bench, session, stream(1)).is_empty());
        assert!(bench.state.is_stream(other, stream(2)));
        assert_eq!(bench.state.streams(), 1);
        assert_eq!(bench.stream_work(other, stream(2)).0, Work::Rest);
    }

    #[test]
    fn a_session_lives_while_its_stream_is_open_and_its_time_counts_from_there() {
        let mut bench = Bench::new();
        let session = bench.session();
        bench.open_stream(session, stream(1));
        bench.tick(350_000);
        assert!(bench.state.is_stream(session, stream(1)));
        gone(&mut bench, session, stream(1));
        bench.tick(445_000);
        assert!(bench.state.sessions.get(session).is_some());
        bench.tick(455_000);
        assert!(bench.state.sessions.get(session).is_none());
    }
}
