//! A route: a path, who may use it, and what serves it: one upstream as it is, or several
//! joined to one server. What the endpoint asks of either stands here.

use std::rc::Rc;

use super::auth::Unauthorized;
use super::connections::ConnectionKey;
use super::head::Head;
use super::joined::Joined;
use super::shard::Shard;
use super::token_file::TokenReader;
use crate::routing::calls::ReplyTo;
use crate::routing::client::Step;
use crate::routing::joined::{InFlight, SeatId};
use crate::routing::session::{SessionId, SessionKey, TokenId};
use crate::routing::stream::Work;
use crate::wire::scan::Envelope;
use crate::wire::version::Version;

/// One path of the listener.
pub struct Route {
    pub path: String,
    /// There where tokens are configured.
    tokens: Option<Rc<TokenReader>>,
    pub service: Service,
}

/// What serves a route.
#[derive(Clone)]
pub enum Service {
    /// One upstream, as it is.
    Plain(Rc<Shard>),
    /// One or several under names of the route's own.
    Joined(Rc<Joined>),
}

impl Route {
    pub fn new(path: String, tokens: Option<Rc<TokenReader>>, service: Service) -> Rc<Route> {
        if let Service::Joined(joined) = &service {
            joined.tokens.replace(tokens.clone());
        }
        Rc::new(Route {
            path,
            tokens,
            service,
        })
    }

    /// Who sends this request. Without tokens everybody is the same.
    pub fn authorize(&self, head: &Head) -> Result<TokenId, Unauthorized> {
        let Some(tokens) = &self.tokens else {
            return Ok(TokenId::ANYONE);
        };
        self.refresh_tokens();
        tokens.check(head.authorization.as_ref().map(|value| value.as_bytes()))
    }

    /// Takes over tokens that have changed: sessions of those that are gone end.
    /// Also before a check, since a busy shard's timers may be late.
    pub fn refresh_tokens(&self) {
        let gone = self.tokens.as_ref().map(|tokens| tokens.refresh());
        if let Some(gone) = gone.filter(|gone| !gone.is_empty()) {
            match &self.service {
                Service::Plain(shard) => shard.end_sessions_of(&gone),
                Service::Joined(joined) => joined.end_sessions_of(&gone),
            }
        }
    }
}

impl Service {
    /// The session `id` of `owner`; that of another is as unknown as none.
    pub fn find(&self, id: SessionId, owner: TokenId) -> Option<SessionKey> {
        match self {
            Service::Plain(shard) => shard.state.borrow().sessions.find(id, owner),
            Service::Joined(joined) => joined.find(id, owner),
        }
    }

    /// The version that `initialize` has settled.
    pub fn version(&self, session: SessionKey) -> Option<Version> {
        match self {
            Service::Plain(shard) => {
                let state = shard.state.borrow();
                state.sessions.get(session).map(|session| session.version)
            }
            Service::Joined(joined) => joined.version(session),
        }
    }

    /// A request names another version than its session's.
    pub fn count_version_differs(&self) {
        match self {
            Service::Plain(shard) => shard.counters.version_differs.add(1),
            Service::Joined(joined) => joined.ground.counters.version_differs.add(1),
        }
    }

    /// Header lines of this request go upstream with what the session sends.
    pub fn pass_fields(&self, session: SessionKey, head: &Head) {
        match self {
            Service::Plain(shard) => shard.pass_fields(session, head.passed.as_deref()),
            Service::Joined(joined) => joined.pass_fields(session, head.passed.as_deref()),
        }
    }

    /// A message of a client in its session.
    pub fn message(
        &self,
        session: SessionKey,
        text: &[u8],
        envelope: &Envelope<'_>,
        reply_to: ReplyTo,
    ) -> Step<InFlight> {
        match self {
            Service::Plain(shard) => {
                shard
                    .message(session, text, envelope, reply_to, None)
                    .map(|id| InFlight::Call {
                        seat: SeatId::ONLY,
                        id,
                    })
            }
            Service::Joined(joined) => joined.message(session, text, envelope, reply_to),
        }
    }

    /// The client of these calls is gone: with `--on-disconnect cancel` they
    /// end, else they run on and their answers are dropped.
    pub fn client_gone(&self, calls: &[InFlight]) {
        match self {
            Service::Plain(shard) => {
                let ids = calls.iter().filter_map(|call| match call {
                    InFlight::Call { id, .. } => Some(*id),
                    _ => None,
                });
                shard.client_gone(ids);
            }
            Service::Joined(joined) => joined.client_gone(calls),
        }
    }

    pub fn end_session(&self, session: SessionKey) {
        match self {
            Service::Plain(shard) => shard.end_session(session),
            Service::Joined(joined) => joined.end_session(session),
        }
    }

    /// A session's client has opened a GET stream on this connection.
    pub fn open_stream(&self, session: SessionKey, key: ConnectionKey) {
        match self {
            Service::Plain(shard) => shard.open_stream(session, key),
            Service::Joined(joined) => joined.open_stream(session, key),
        }
    }

    /// What the GET stream on this connection has to do now.
    pub fn stream_work(&self, session: SessionKey, key: ConnectionKey, out: &mut Vec<u8>) -> Work {
        match self {
            Service::Plain(shard) => shard.stream_work(session, key, out),
            Service::Joined(joined) => joined.stream_work(session, key, out),
        }
    }

    /// Whether the connection carries the session's GET stream.
    pub fn is_stream(&self, session: SessionKey, key: ConnectionKey) -> bool {
        match self {
            Service::Plain(shard) => shard.is_stream(session, key),
            Service::Joined(joined) => joined.is_stream(session, key),
        }
    }

    /// A write of the GET stream on this connection is over.
    pub fn stream_wrote(&self, session: SessionKey, key: ConnectionKey, is_done: bool) {
        match self {
            Service::Plain(shard) => shard.stream_wrote(session, key, is_done),
            Service::Joined(joined) => joined.stream_wrote(session, key, is_done),
        }
    }

    /// The connection of a GET stream is over.
    pub fn stream_gone(&self, session: SessionKey, key: ConnectionKey) {
        match self {
            Service::Plain(shard) => shard.stream_gone(session, key),
            Service::Joined(joined) => joined.stream_gone(session, key),
        }
    }
}
