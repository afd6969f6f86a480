//! Several upstreams that are one MCP server to clients: what their things are called,
//! who has a session at which of them, what several of them are asked at once. A client's
//! session has a *leg* at each upstream: a session of that upstream's seat on the shard,
//! with which the seat does what it does for any other.

pub mod cursor;
pub mod gathering;
pub mod naming;
mod pattern;
pub mod sessions;

use super::calls::ReplyTo;
use super::upstream_id::UpstreamId;

/// An upstream of a route, by a number that is never used for another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SeatId(pub u32);

impl SeatId {
    /// The upstream of a route that is served as it is.
    pub const ONLY: SeatId = SeatId(0);
}

/// A client's request that is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFlight {
    /// A call at one upstream.
    Call { seat: SeatId, id: UpstreamId },
    /// Something that several upstreams are asked.
    Gathering(Part),
    /// One that hooks look at, by where its answer goes.
    Held(ReplyTo),
}

/// A part of what is asked of several upstreams: whose answer it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub place: u32,
    /// Tells what is asked from what is asked later in the same place.
    pub generation: u32,
    pub part: u16,
}

/// What a part belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inner {
    /// A request of a client's, asked of several upstreams.
    Gathering,
    /// A client's `initialize`.
    Join,
    /// A leg of a session that is there.
    Leg,
    /// What a leg that was opened later is to have.
    Again,
}

/// Connections have numbers below these.
const INNER: [(u32, Inner); 4] = [
    (u32::MAX, Inner::Gathering),
    (u32::MAX - 1, Inner::Join),
    (u32::MAX - 2, Inner::Leg),
    (u32::MAX - 3, Inner::Again),
];

impl Part {
    /// As the place where an answer goes: to no connection, but to what is gathered.
    pub fn reply_to(self, inner: Inner) -> ReplyTo {
        let found = INNER.iter().find(|(_, known)| *known == inner);
        ReplyTo {
            connection: found.map_or(u32::MAX, |(number, _)| *number),
            connection_generation: self.generation,
            exchange: self.place,
            part: self.part,
        }
    }

    /// The part that an answer is of, if it goes to no connection.
    pub fn of(to: ReplyTo) -> Option<(Inner, Part)> {
        let (_, inner) = INNER.iter().find(|(number, _)| *number == to.connection)?;
        let part = Part {
            place: to.exchange,
            generation: to.connection_generation,
            part: to.part,
        };
        Some((*inner, part))
    }
}

/// A server's requests have ids of Ringway's own for clients, and these tell the upstream
/// of a route: the id is a multiple of this and the number of the upstream's seat. Two seats
/// have the same number only when a million others have come and gone between them.
pub const ASKED_STRIDE: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_again_and_a_connection_is_none() {
        let part = Part {
            place: 7,
            generation: 9,
            part: 3,
        };
        for (number, inner) in INNER {
            assert_eq!(part.reply_to(inner).connection, number);
            assert_eq!(Part::of(part.reply_to(inner)), Some((inner, part)));
        }
        let mut to = part.reply_to(Inner::Again);
        to.connection -= 1;
        assert_eq!(Part::of(to), None);
    }
}
