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
    /// A session's client has opened a GET stream. The one before ends. Returns
    /// how often this session's stream was replaced so far.
    pub fn open_stream(
        &mut self,
        key: SessionKey,
        stream: StreamId,
        now: Millis,
        acts: &mut Vec<Act>,
    ) -> u32 {
        self.touch(key, now);
        let Some(session) = self.sessions.get_mut(key) else {
            acts.push(Act::CloseStream(stream));
            return 0;
        };
        match session.stream.replace(stream) {
            Some(older) => {
                session.replacements += 1;
                acts.push(Act::CloseStream(older));
            }
            None => self.streams += 1,
        }
        session.replacements
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
        }
        self.stream_wrote(key, stream, false, acts);
    }
}
