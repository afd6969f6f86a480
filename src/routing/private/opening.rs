//! A client's `initialize` on its way: forwarded with the client's own capabilities,
//! answered by what the server says, and only then a session.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use super::exchanges::{Begin, ExchangeKey, What};
use super::queue::Queue;
use super::{Address, End, Phase, Private, Renewals, UpwardStream, Verb};
use crate::limits::HANDSHAKE_BYTES_MAX;
use crate::routing::calls::{ClientId, ReplyTo};
use crate::routing::ending::failure_of;
use crate::routing::session::{SessionKey, TokenId};
use crate::routing::shard::ShardState;
use crate::routing::upstream_id::UpstreamId;
use crate::wire::handshake::Handshake;
use crate::wire::reply;
use crate::wire::scan::{Envelope, Field, Kind};
use crate::wire::splice::{Edit, splice};
use crate::wire::version::Version;

/// An `initialize` that the server has not answered.
#[derive(Debug)]
pub struct Opening {
    /// Under which the server knows it.
    id: UpstreamId,
    pub client_id: ClientId,
    pub reply_to: ReplyTo,
    pub owner: TokenId,
    fields: Rc<[u8]>,
    initialize: Rc<[u8]>,
    /// The session id of the response's head; `Err`: one that cannot be used.
    session: Option<Result<Rc<[u8]>, ()>>,
}

/// What came of an `initialize`.
#[derive(Debug)]
pub enum Opened {
    /// A session may be opened: see [`ShardState::adopt`].
    Session {
        opening: Box<Opening>,
        handshake: Box<Handshake>,
    },
    /// This JSON-RPC message is the answer.
    Refused {
        opening: Box<Opening>,
        message: Vec<u8>,
        why: Unopened,
    },
}

/// Why a server has opened no session, as far as it may be the fault of how it is configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unopened {
    /// It refused `initialize` by this status.
    Status(u16),
    /// What it said is no result of an MCP server. A sentence.
    Odd(String),
    /// Its own error, which is the client's to read, or a fault of the connection.
    Other,
}

impl Opened {
    fn failed(name: Option<&str>, opening: Box<Opening>, sentence: &str) -> Opened {
        let id = Some(opening.client_id.raw());
        Opened::Refused {
            message: reply::upstream_failure(name, id, sentence),
            opening,
            why: Unopened::Odd(sentence.to_owned()),
        }
    }
}

impl ShardState {
    /// Forwards a client's `initialize`, whose id is `id`. Versions that Ringway does
    /// not speak are not offered to the server.
    pub fn open_private(
        &mut self,
        text: &[u8],
        envelope: &Envelope<'_>,
        id: &Field,
        reply_to: ReplyTo,
        owner: TokenId,
        fields: Rc<[u8]>,
    ) -> Option<ExchangeKey> {
        let exchanges = self.private.as_mut()?;
        if !exchanges.has_room(None, text.len()) {
            return None;
        }
        let own = exchanges.own_id();
        let mut buffer = itoa::Buffer::new();
        let mut edits = vec![Edit {
            span: id.span,
            with: own.digits(&mut buffer),
        }];
        let newest = format!("\"{}\"", Version::NEWEST.as_str());
        let asked = envelope.protocol_version.as_ref();
        if let Some(field) = asked
            && let Some(version) = field.text(text)
            && Version::parse(version.as_bytes()).is_none()
        {
            edits.push(Edit {
                span: field.span,
                with: newest.as_bytes(),
            });
        }
        let mut body = Vec::with_capacity(text.len() + 16);
        splice(&mut body, text, &mut edits);
        let body: Rc<[u8]> = body.into();
        let opening = Opening {
            id: own,
            client_id: ClientId::read(id, text),
            reply_to,
            owner,
            fields: fields.clone(),
            initialize: body.clone(),
            session: None,
        };
        let begin = Begin {
            whose: None,
            epoch: 0,
            what: What::Open(Box::new(opening)),
            body,
            may_repeat: false,
            was_replayed: false,
        };
        let address = Address {
            session: None,
            version: None,
            fields,
        };
        Some(exchanges.begin(begin, Verb::Post, address, None))
    }

    /// The client of an opening is gone.
    pub fn abandon_opening(&mut self, key: ExchangeKey) {
        let Some(exchanges) = &mut self.private else {
            return;
        };
        let is_opening = matches!(
            exchanges.get(key).map(|exchange| &exchange.what),
            Some(What::Open(_))
        );
        if is_opening && let Some(exchange) = exchanges.abort(key) {
            self.abandon(exchange.what);
        }
    }

    /// The server may have opened a session for an opening that came to nothing.
    fn abandon(&mut self, what: What) {
        if let What::Open(opening) = what
            && let Some(Ok(session)) = opening.session
        {
            self.forget_upstream(Address {
                session: Some(session),
                version: None,
                fields: opening.fields,
            });
        }
    }

    /// A session that was offered by [`Opened::Session`] cannot be opened here.
    pub fn decline(&mut self, opening: Box<Opening>) {
        self.abandon(What::Open(opening));
    }

    /// The session at `key` was opened for this opening.
    pub fn adopt(&mut self, key: SessionKey, opening: Opening, mut handshake: Box<Handshake>) {
        handshake.forget_results();
        let hasher = self.hasher.clone();
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.private = Some(Box::new(Private {
            address: Address {
                session: opening.session.and_then(Result::ok),
                version: Some(session.version),
                fields: opening.fields,
            },
            epoch: 1,
            phase: Phase::Ready,
            waiting: Vec::new(),
            initialize_id: opening.id,
            initialize: opening.initialize,
            handshake,
            was_initialized: false,
            level: None,
            uris: HashSet::with_hasher(hasher.clone()),
            asked: HashMap::with_hasher(hasher.clone()),
            next_asked: 1,
            task_tokens: VecDeque::new(),
            upward: UpwardStream::default(),
            queue: Queue::default(),
            exchanges: HashSet::with_hasher(hasher),
            notices: 0,
            renewals: Renewals::default(),
        }));
    }

    /// The server has named a session in the head of its answer.
    pub(super) fn opening_head(&mut self, key: ExchangeKey, session: Result<&[u8], ()>) {
        let exchanges = self.private.as_mut();
        let exchange = exchanges.and_then(|exchanges| exchanges.get_mut(key));
        if let Some(What::Open(opening)) = exchange.map(|exchange| &mut exchange.what) {
            opening.session = Some(session.map(Rc::from));
        }
    }

    /// A message came for an opening. `None`: it was not the answer.
    pub(super) fn opening_heard(
        &mut self,
        key: ExchangeKey,
        text: &[u8],
        envelope: &Envelope<'_>,
    ) -> Option<Opened> {
        let offer = self.offer;
        let exchanges = self.private.as_mut()?;
        let What::Open(opening) = &exchanges.get(key)?.what else {
            return None;
        };
        let id = envelope.id.as_ref()?;
        if UpstreamId::read(id.span.of(text)).map(|named| named.id) != Some(opening.id) {
            return None;
        }
        if !matches!(envelope.kind, Kind::Result | Kind::Error) {
            return None;
        }
        let What::Open(opening) = exchanges.abort(key)?.what else {
            return None;
        };
        let Some(result) = envelope.result else {
            self.abandon_session_of(&opening);
            let mut message = Vec::new();
            let edit = Edit {
                span: id.span,
                with: opening.client_id.raw(),
            };
            splice(&mut message, text, &mut [edit]);
            return Some(Opened::Refused {
                opening,
                message,
                why: Unopened::Other,
            });
        };
        if opening.session == Some(Err(())) {
            return Some(Opened::failed(
                self.upstream_name(),
                opening,
                "The upstream server gave a session id that is not visible ASCII",
            ));
        }
        if result.len() > HANDSHAKE_BYTES_MAX {
            self.abandon_session_of(&opening);
            return Some(Opened::failed(
                self.upstream_name(),
                opening,
                "The answer of the upstream server to initialize is too long",
            ));
        }
        Some(match Handshake::read(result.of(text), offer) {
            Ok(handshake) => Opened::Session {
                opening,
                handshake: Box::new(handshake),
            },
            Err(error) => {
                let sentence = format!("The handshake with the upstream server failed: {error}");
                self.abandon_session_of(&opening);
                Opened::failed(self.upstream_name(), opening, &sentence)
            }
        })
    }

    fn abandon_session_of(&mut self, opening: &Opening) {
        if let Some(Ok(session)) = &opening.session {
            self.forget_upstream(Address {
                session: Some(session.clone()),
                version: None,
                fields: opening.fields.clone(),
            });
        }
    }

    /// An opening ended without an answer.
    pub(super) fn opening_ended(&mut self, opening: Box<Opening>, end: End) -> Opened {
        self.abandon_session_of(&opening);
        let id = opening.client_id.raw();
        let why = match &end {
            End::Refused { status, .. } => Unopened::Status(*status),
            End::NoSession => Unopened::Status(404),
            End::Done => Unopened::Odd("It ended its answer to initialize without a reply".into()),
            End::TooLarge | End::Overloaded | End::Late | End::Broken(_) => Unopened::Other,
        };
        let message = failure_of(self.upstream_name(), id, end);
        Opened::Refused {
            opening,
            message,
            why,
        }
    }
}
