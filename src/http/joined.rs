//! A route that joins one or several upstreams to one server, on one thread: what the
//! routing state decides is done here.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::connections::ConnectionKey;
use super::ground::Ground;
use super::shard::Shard;
use crate::routing::calls::ReplyTo;
use crate::routing::client::Step;
use crate::routing::joined::{InFlight, SeatId};
use crate::routing::session::{SessionId, SessionKey, TokenId};
use crate::routing::stream::Work;
use crate::routing::time::Millis;
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{Envelope, Field};
use crate::wire::version::Version;

/// What a route is, the same on every thread.
#[derive(Debug)]
pub struct RouteSettings {
    pub name: String,
}

/// An upstream of a joined route on this thread.
#[derive(Clone)]
pub struct Seat {
    pub id: SeatId,
    pub shard: Rc<Shard>,
}

/// A joined route on one thread.
pub struct Joined {
    pub ground: Rc<Ground>,
    seats: RefCell<Vec<Seat>>,
}

/// An `initialize` that is being answered.
#[derive(Debug)]
pub struct PendingJoin;

impl Joined {
    pub fn new(ground: Rc<Ground>) -> Rc<Joined> {
        Rc::new(Joined {
            ground,
            seats: RefCell::default(),
        })
    }

    /// The route is this from now on, with these upstreams in the order of its settings.
    pub fn configure(self: &Rc<Self>, _settings: Arc<RouteSettings>, seats: Vec<Seat>) {
        self.seats.replace(seats);
    }

    /// The route is served no longer: all its sessions end.
    pub fn close(&self) {}

    pub fn find(&self, _id: SessionId, _owner: TokenId) -> Option<SessionKey> {
        None
    }

    pub fn version(&self, _session: SessionKey) -> Option<Version> {
        None
    }

    pub fn pass_fields(&self, _session: SessionKey, _passed: Option<&[u8]>) {}

    pub fn message(
        &self,
        _session: SessionKey,
        _text: &[u8],
        _envelope: &Envelope<'_>,
        _reply_to: ReplyTo,
    ) -> Step<InFlight> {
        Step::Failed(
            Reason::SessionEnded,
            reply::failure(None, Reason::SessionEnded),
        )
    }

    pub fn open(
        self: &Rc<Self>,
        _text: &[u8],
        _envelope: &Envelope<'_>,
        _id: &Field,
        _reply_to: ReplyTo,
        _owner: TokenId,
        _fields: Rc<[u8]>,
    ) -> Option<PendingJoin> {
        None
    }

    pub fn client_gone(&self, _calls: &[InFlight]) {}

    pub fn end_session(&self, _session: SessionKey) {}

    pub fn end_sessions_of(&self, _gone: &[TokenId]) {}

    pub fn open_stream(&self, _session: SessionKey, _key: ConnectionKey) {}

    pub fn stream_work(
        &self,
        _session: SessionKey,
        _key: ConnectionKey,
        _out: &mut Vec<u8>,
    ) -> Work {
        Work::End
    }

    pub fn is_stream(&self, _session: SessionKey, _key: ConnectionKey) -> bool {
        false
    }

    pub fn stream_wrote(&self, _session: SessionKey, _key: ConnectionKey, _is_done: bool) {}

    pub fn stream_gone(&self, _session: SessionKey, _key: ConnectionKey) {}

    pub fn tick(&self, _now: Millis) {}
}
