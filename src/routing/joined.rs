//! Routes that join one or several upstreams to one server.

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
    /// Something that several upstreams are asked, by its place and its generation.
    Gathering { place: u32, generation: u32 },
}
