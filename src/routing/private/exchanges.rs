//! The exchanges of one shard with its sessions' upstreams: what each is for, and the
//! orders that carry them out. A key names one exchange for ever, so that what comes
//! late finds nobody.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use slab::Slab;

use super::opening::Opening;
use super::{Address, Order, Request, Verb, Whose};
use crate::limits::TICK_MS;
use crate::routing::session::SessionKey;
use crate::routing::time::Millis;
use crate::routing::upstream_id::UpstreamId;
use crate::routing::wheel::Wheel;

/// An exchange's place in the table, with a number that tells it from a later one in
/// the same place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExchangeKey {
    place: u32,
    serial: u32,
}

/// What an exchange is for.
#[derive(Debug)]
pub(super) enum What {
    /// A client's `initialize`: there is no session yet.
    Open(Box<Opening>),
    /// A client's request.
    Call { id: UpstreamId, wish: Option<Wish> },
    /// A notification or an answer of the client's, or one of Ringway's own.
    Notice,
    /// `notifications/initialized` of the client.
    Initialized,
    /// The last word about a call of a session that is ending.
    Farewell { ending: usize },
    /// The upstream GET stream.
    Stream,
    /// Another handshake: `initialize`.
    Renew { id: UpstreamId },
    /// The same: `notifications/initialized`.
    RenewInitialized,
    /// What the forgotten session had is restored in the new one.
    Restore {
        id: UpstreamId,
        uri: Option<Box<str>>,
    },
    /// The end of an upstream session.
    Delete,
    /// Its answer has come: what else comes in its response is nobody's.
    Spent,
}

/// What a session will have when the server agrees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    Subscribe(Box<str>),
    Unsubscribe(Box<str>),
    /// Raw `params.level`.
    Level(Box<[u8]>),
    /// Progress goes on after the answer, under the client's token.
    Task(Box<[u8]>),
}

#[derive(Debug)]
pub(super) struct Exchange {
    serial: u32,
    /// `None` for an opening and a DELETE.
    pub(super) whose: Option<Whose>,
    /// Of the upstream session that it was sent in.
    pub(super) epoch: u32,
    pub(super) what: What,
    /// Kept until the server has taken it: it may have to be sent again.
    pub(super) body: Rc<[u8]>,
    /// Header lines of the client's that it went with.
    pub(super) fields: Rc<[u8]>,
    pub(super) may_repeat: bool,
    /// It was sent again after the server had forgotten the session.
    pub(super) was_replayed: bool,
}

/// An upstream session that ends once the server has been told of its calls.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) address: Address,
    pub(super) left: usize,
}

/// The exchanges of one shard.
#[derive(Debug)]
pub struct Exchanges {
    table: Slab<Exchange>,
    next_serial: u32,
    pub(super) by_call: HashMap<UpstreamId, ExchangeKey, ahash::RandomState>,
    pub(super) endings: Slab<Ending>,
    /// The session that is ending at the moment.
    pub(super) ending: Option<usize>,
    next_own: u32,
    orders: Vec<Order>,
    body_bytes: usize,
    /// The same of each session that has any.
    held_by: HashMap<SessionKey, usize, ahash::RandomState>,
    bytes_max: usize,
    /// Bytes that wait for GET streams, of all sessions.
    pub(super) queued_bytes: usize,
    /// Subscriptions of all sessions.
    pub(super) uris: usize,
    /// When upstream streams are opened again.
    pub(super) wheel: Wheel<SessionKey>,
}

impl Exchanges {
    /// `bytes_max` bounds what is kept of requests that are not answered, and as much
    /// again what waits for GET streams.
    pub fn new(bytes_max: usize, hasher: ahash::RandomState, now: Millis) -> Exchanges {
        Exchanges {
            table: Slab::new(),
            next_serial: 0,
            by_call: HashMap::with_hasher(hasher.clone()),
            endings: Slab::new(),
            ending: None,
            next_own: 0,
            orders: Vec::new(),
            body_bytes: 0,
            held_by: HashMap::with_hasher(hasher),
            bytes_max,
            queued_bytes: 0,
            uris: 0,
            wheel: Wheel::new(TICK_MS, now),
        }
    }

    /// Exchanges under way.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty() && self.endings.is_empty()
    }

    /// Bytes of requests that are kept, and of what waits for GET streams.
    pub fn held_bytes(&self) -> usize {
        self.body_bytes + self.queued_bytes
    }

    pub fn subscriptions(&self) -> usize {
        self.uris
    }

    /// So many bytes no longer wait for a GET stream.
    pub(in crate::routing) fn dequeued(&mut self, bytes: usize) {
        self.queued_bytes -= bytes;
    }

    /// Whether so many bytes may wait for a GET stream. Half of the room is for clients that
    /// have read all so far: those who read nothing do not take it.
    pub(super) fn has_room_in_queues(&self, bytes: usize, reads: bool) -> bool {
        let most = match reads {
            true => 2 * self.bytes_max,
            false => self.bytes_max,
        };
        self.queued_bytes + bytes <= most
    }

    /// Whether a request of so many bytes can be kept. One session gets a quarter of the
    /// room at most, so that it does not keep the others from theirs, but always one request.
    pub(super) fn has_room(&self, session: Option<SessionKey>, bytes: usize) -> bool {
        let held = session.and_then(|session| self.held_by.get(&session));
        let held = held.copied().unwrap_or_default();
        let is_fair = held == 0 || held + bytes <= self.bytes_max / 4;
        is_fair && self.body_bytes + bytes <= self.bytes_max
    }

    /// Counts a request that is kept.
    pub(super) fn hold(&mut self, session: Option<SessionKey>, bytes: usize) {
        self.body_bytes += bytes;
        if let Some(session) = session.filter(|_| bytes > 0) {
            *self.held_by.entry(session).or_default() += bytes;
        }
    }

    /// It is no longer kept.
    pub(super) fn release(&mut self, session: Option<SessionKey>, bytes: usize) {
        self.body_bytes -= bytes;
        if let Some(session) = session.filter(|_| bytes > 0)
            && let Entry::Occupied(mut held) = self.held_by.entry(session)
        {
            *held.get_mut() -= bytes;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }

    /// An id for a request of Ringway's own.
    pub(super) fn own_id(&mut self) -> UpstreamId {
        let id = UpstreamId::of_hub(self.next_own);
        self.next_own = self.next_own.wrapping_add(1);
        id
    }

    /// Takes what is to be done.
    pub fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    #[cfg(test)]
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    pub(super) fn get_mut(&mut self, key: ExchangeKey) -> Option<&mut Exchange> {
        let exchange = self.table.get_mut(key.place as usize);
        exchange.filter(|exchange| exchange.serial == key.serial)
    }

    pub(super) fn get(&self, key: ExchangeKey) -> Option<&Exchange> {
        let exchange = self.table.get(key.place as usize);
        exchange.filter(|exchange| exchange.serial == key.serial)
    }

    /// Begins an exchange.
    pub(super) fn begin(
        &mut self,
        exchange: Begin,
        verb: Verb,
        address: Address,
        last_event_id: Option<Box<[u8]>>,
    ) -> ExchangeKey {
        self.next_serial = self.next_serial.wrapping_add(1);
        let Begin {
            whose,
            epoch,
            what,
            body,
            may_repeat,
            was_replayed,
        } = exchange;
        let fields = address.fields.clone();
        self.hold(whose.map(|whose| whose.key), body.len());
        let is_call = matches!(what, What::Call { .. });
        let call = match &what {
            What::Call { id, .. } => Some(*id),
            _ => None,
        };
        let serial = self.next_serial;
        let place = self.table.insert(Exchange {
            serial,
            whose,
            epoch,
            what,
            body: body.clone(),
            fields,
            may_repeat,
            was_replayed,
        });
        let key = ExchangeKey {
            place: place as u32,
            serial,
        };
        if let Some(id) = call {
            self.by_call.insert(id, key);
        }
        self.orders.push(Order::Begin(
            key,
            Request {
                verb,
                address,
                body,
                may_repeat,
                is_call,
                last_event_id,
            },
        ));
        key
    }

    /// Takes an exchange out of the table: what still comes of it finds nobody.
    pub(super) fn remove(&mut self, key: ExchangeKey) -> Option<Exchange> {
        self.get(key)?;
        let exchange = self.table.remove(key.place as usize);
        let session = exchange.whose.map(|whose| whose.key);
        self.release(session, exchange.body.len());
        if let What::Call { id, .. } = exchange.what {
            self.by_call.remove(&id);
        }
        Some(exchange)
    }

    /// Takes an exchange out of the table and ends it.
    pub(super) fn abort(&mut self, key: ExchangeKey) -> Option<Exchange> {
        let exchange = self.remove(key)?;
        self.orders.push(Order::Abort(key));
        Some(exchange)
    }

    /// The answer of a call has come. Returns what the call wished for.
    pub(super) fn spend(&mut self, key: ExchangeKey) -> Option<Wish> {
        let exchange = self.get_mut(key)?;
        let what = std::mem::replace(&mut exchange.what, What::Spent);
        let What::Call { id, wish } = what else {
            exchange.what = what;
            return None;
        };
        self.by_call.remove(&id);
        wish
    }

    /// Whether nobody waits for more of an exchange.
    pub fn is_over(&self, key: ExchangeKey) -> bool {
        let exchange = self.get(key);
        exchange.is_none_or(|exchange| {
            matches!(
                exchange.what,
                What::Spent | What::Notice | What::Farewell { .. } | What::Delete
            )
        })
    }

    /// The server has taken the request: it will not be sent again.
    pub(super) fn taken(&mut self, key: ExchangeKey) {
        let Some(exchange) = self.get_mut(key) else {
            return;
        };
        let session = exchange.whose.map(|whose| whose.key);
        let body = std::mem::replace(&mut exchange.body, Rc::from([]));
        self.release(session, body.len());
    }
}

/// An exchange that is to begin.
pub(super) struct Begin {
    pub(super) whose: Option<Whose>,
    pub(super) epoch: u32,
    pub(super) what: What,
    pub(super) body: Rc<[u8]>,
    pub(super) may_repeat: bool,
    pub(super) was_replayed: bool,
}
