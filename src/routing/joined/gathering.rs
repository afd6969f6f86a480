//! What several upstreams are asked at once for one request of a client: who has still to
//! answer, and what the others said. Pure bookkeeping: what the answers are made into is
//! decided by who asked.

use slab::Slab;

use super::{InFlight, Part, SeatId};
use crate::routing::calls::ReplyTo;
use crate::routing::session::{SessionId, SessionKey};
use crate::routing::upstream_id::UpstreamId;
use crate::wire::listing::ListKind;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A page of a list; how many pages the client has had.
    List { kind: ListKind, pages: u32 },
    /// `logging/setLevel`.
    Level,
}

/// How far one upstream is with its answer.
#[derive(Debug)]
pub enum Progress {
    /// Asked, under this id.
    Waiting(UpstreamId),
    /// This message, under whatever id.
    Answered(Vec<u8>),
    /// It will not answer, for this reason.
    Failed(&'static str),
}

/// A request that several upstreams are asked.
#[derive(Debug)]
pub struct Gathering {
    generation: u32,
    pub session: SessionKey,
    pub session_id: SessionId,
    pub reply_to: ReplyTo,
    /// The client's id, raw.
    pub client_id: Box<[u8]>,
    pub question: Question,
    /// In the order of the route, those that are not there last.
    pub parts: Vec<(SeatId, Progress)>,
    missing: usize,
}

/// All that is being gathered on one shard for one route.
#[derive(Default, Debug)]
pub struct Gatherings {
    table: Slab<Gathering>,
    next_generation: u32,
    /// Bytes of answers that wait for others.
    bytes: usize,
}

/// What began; see [`Gatherings::begin`].
#[derive(Debug)]
pub struct Begun {
    pub session: SessionKey,
    pub session_id: SessionId,
    pub reply_to: ReplyTo,
    pub client_id: Box<[u8]>,
    pub question: Question,
    pub seats: Vec<SeatId>,
    /// Those that would be asked if they were there.
    pub absent: Vec<SeatId>,
}

impl Gatherings {
    /// Begins with all failed: each of `seats` is to be reported by [`Gatherings::asked`] or
    /// [`Gatherings::answered`], then [`Gatherings::finish_if_done`] called once.
    pub fn begin(&mut self, begun: Begun) -> Part {
        self.next_generation = self.next_generation.wrapping_add(1);
        let generation = self.next_generation;
        let failed = |why| move |seat| (seat, Progress::Failed(why));
        let seats = begun.seats.into_iter().map(failed("it cannot be asked"));
        let absent = begun.absent.into_iter().map(failed("it is not there"));
        let place = self.table.insert(Gathering {
            generation,
            session: begun.session,
            session_id: begun.session_id,
            reply_to: begun.reply_to,
            client_id: begun.client_id,
            question: begun.question,
            parts: seats.chain(absent).collect(),
            missing: 0,
        });
        Part {
            place: place as u32,
            generation,
            part: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of answers that wait for others.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn get(&self, part: Part) -> Option<&Gathering> {
        let gathering = self.table.get(part.place as usize)?;
        (gathering.generation == part.generation).then_some(gathering)
    }

    fn get_mut(&mut self, part: Part) -> Option<&mut Gathering> {
        let gathering = self.table.get_mut(part.place as usize)?;
        (gathering.generation == part.generation).then_some(gathering)
    }

    /// The upstream of this part has been asked.
    pub fn asked(&mut self, part: Part, id: UpstreamId) {
        if let Some(gathering) = self.get_mut(part)
            && let Some((_, progress)) = gathering.parts.get_mut(usize::from(part.part))
        {
            gathering.missing += usize::from(!matches!(progress, Progress::Waiting(_)));
            *progress = Progress::Waiting(id);
        }
    }

    /// The upstream of this part has answered, or never will, for a reason. False if nobody
    /// waits for it.
    pub fn answered(&mut self, part: Part, message: Result<Vec<u8>, &'static str>) -> bool {
        let Some(gathering) = self.get_mut(part) else {
            return false;
        };
        let Some((_, progress)) = gathering.parts.get_mut(usize::from(part.part)) else {
            return false;
        };
        if matches!(progress, Progress::Answered(_)) {
            return false;
        }
        if matches!(progress, Progress::Waiting(_)) {
            gathering.missing -= 1;
        }
        let mut bytes = 0;
        *progress = match message {
            Ok(message) => {
                bytes = message.len();
                Progress::Answered(message)
            }
            Err(why) => Progress::Failed(why),
        };
        self.bytes += bytes;
        true
    }

    /// Takes it out if nobody has still to answer.
    pub fn finish_if_done(&mut self, part: Part) -> Option<Gathering> {
        if self.get(part)?.missing > 0 {
            return None;
        }
        self.take(part)
    }

    /// Takes it out as it is.
    pub fn take(&mut self, part: Part) -> Option<Gathering> {
        self.get(part)?;
        let gathering = self.table.try_remove(part.place as usize)?;
        let answers = gathering.parts.iter().map(|(_, progress)| match progress {
            Progress::Answered(message) => message.len(),
            Progress::Waiting(_) | Progress::Failed(_) => 0,
        });
        self.bytes -= answers.sum::<usize>();
        Some(gathering)
    }

    /// All that is gathered for a session.
    pub fn of_session(&self, session: SessionKey) -> Vec<Part> {
        let theirs = self
            .table
            .iter()
            .filter(|(_, gathering)| gathering.session == session);
        let parts = theirs.map(|(place, gathering)| Part {
            place: place as u32,
            generation: gathering.generation,
            part: 0,
        });
        parts.collect()
    }
}

impl Gathering {
    /// The calls that are under way for it.
    pub fn calls(&self) -> impl Iterator<Item = (SeatId, UpstreamId)> {
        self.parts
            .iter()
            .filter_map(|(seat, progress)| match progress {
                Progress::Waiting(id) => Some((*seat, *id)),
                Progress::Answered(_) | Progress::Failed(_) => None,
            })
    }
}

impl From<Part> for InFlight {
    fn from(part: Part) -> InFlight {
        InFlight::Gathering(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SeatId = SeatId(1);
    const B: SeatId = SeatId(2);
    const C: SeatId = SeatId(3);

    fn begin(gatherings: &mut Gatherings) -> Part {
        gatherings.begin(Begun {
            session: SessionKey(1),
            session_id: SessionId(2),
            reply_to: ReplyTo {
                connection: 1,
                connection_generation: 2,
                exchange: 3,
                part: 0,
            },
            client_id: b"7"[..].into(),
            question: Question::Level,
            seats: vec![A, B],
            absent: vec![C],
        })
    }

    fn id(slot: u32) -> UpstreamId {
        UpstreamId::of_call(0, slot, 1)
    }

    #[test]
    fn it_is_done_when_nobody_has_still_to_answer() {
        let mut gatherings = Gatherings::default();
        let first = begin(&mut gatherings);
        let second = Part { part: 1, ..first };
        gatherings.asked(first, id(0));
        gatherings.asked(second, id(1));
        assert!(gatherings.finish_if_done(first).is_none());
        assert!(gatherings.answered(second, Ok(b"abc".to_vec())));
        assert!(!gatherings.answered(second, Ok(b"x".to_vec())), "once");
        assert_eq!(gatherings.bytes(), 3);
        assert!(gatherings.finish_if_done(first).is_none());
        let waiting: Vec<_> = gatherings.get(first).unwrap().calls().collect();
        assert_eq!(waiting, [(A, id(0))]);
        assert!(gatherings.answered(first, Err("why")));
        let done = gatherings.finish_if_done(first).unwrap();
        assert!(matches!(done.parts[0].1, Progress::Failed("why")));
        assert!(matches!(&done.parts[1].1, Progress::Answered(text) if text == b"abc"));
        assert!(matches!(done.parts[2], (C, Progress::Failed(_))));
        assert_eq!((gatherings.bytes(), gatherings.len()), (0, 0));
    }

    #[test]
    fn what_is_late_finds_nobody_in_the_same_place() {
        let mut gatherings = Gatherings::default();
        let old = begin(&mut gatherings);
        gatherings.asked(old, id(0));
        assert_eq!(gatherings.of_session(SessionKey(1)), [old]);
        assert!(gatherings.take(old).is_some());
        let new = begin(&mut gatherings);
        assert_eq!(new.place, old.place);
        assert!(!gatherings.answered(old, Err("why")));
        assert!(gatherings.take(old).is_none());
        assert!(gatherings.finish_if_done(new).is_some(), "nobody was asked");
    }
}
