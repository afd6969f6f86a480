//! The contract of the MCP endpoint for POST: from a body to a verdict, in the
//! order of its checks (scan, session, version, the method's own rules). No
//! waiting happens here; what is in flight afterwards is awaited by `exchange`.

use std::rc::Rc;

use super::connections::{ConnectionKey, Form};
use super::ground::{Ground, ResponseMode};
use super::head::{Head, SessionHeader};
use super::joined::PendingJoin;
use super::response::{self, Manner};
use super::route::Service;
use super::shard::Shard;
use super::upstream::PendingOpening;
use crate::limits::INITIALIZE_BYTES_MAX;
use crate::routing::calls::ReplyTo;
use crate::routing::client::{Step, unsupported_era};
use crate::routing::joined::InFlight;
use crate::routing::session::{SessionId, SessionKey, TokenId};
use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Envelope, Fault, Kind, ScanError};
use crate::wire::version::{MODERN, Version};

/// What to answer.
#[derive(Debug)]
pub enum Verdict {
    /// This, at once. `fields` are whole lines.
    Now {
        status: u16,
        fields: Vec<u8>,
        body: Vec<u8>,
    },
    /// One message with status 200, in the form that the client takes.
    Message { fields: Vec<u8>, message: Vec<u8> },
    /// This call is in flight.
    Call {
        id: InFlight,
        /// Messages may come before the answer.
        may_stream: bool,
    },
    /// An `initialize` has been forwarded.
    Opening(Opening),
    /// A batch: these answers are there already, these calls are in flight. `sse`:
    /// each goes out as an event, else all as one array.
    Batch {
        ready: Vec<Vec<u8>>,
        in_flight: Vec<InFlight>,
        sse: bool,
    },
}

/// An `initialize` that is being answered. If its client goes before, what was asked
/// upstream is given up.
#[derive(Debug)]
pub enum Opening {
    Plain(PendingOpening),
    Joined(PendingJoin),
}

impl Verdict {
    /// An error that breaks the contract of the transport: a status of its own
    /// and a JSON body.
    pub fn error(status: u16, id: Option<&[u8]>, code: i32, message: &str) -> Verdict {
        Verdict::Now {
            status,
            fields: Vec::new(),
            body: reply::error(id, code, message),
        }
    }

    fn refused(body: Vec<u8>) -> Verdict {
        Verdict::Now {
            status: 400,
            fields: Vec::new(),
            body,
        }
    }

    fn message(message: Vec<u8>) -> Verdict {
        Verdict::Message {
            fields: Vec::new(),
            message,
        }
    }

    fn accepted() -> Verdict {
        Verdict::Now {
            status: 202,
            fields: Vec::new(),
            body: Vec::new(),
        }
    }
}

/// Whether a call's answer goes out as SSE; `None` if the client takes neither.
pub fn wants_sse(head: &Head, mode: ResponseMode) -> Option<bool> {
    match (head.accept.json, head.accept.sse) {
        (false, false) => None,
        (true, false) => Some(false),
        (false, true) => Some(true),
        (true, true) => Some(mode == ResponseMode::Sse),
    }
}

/// Whether an answer that begins as JSON may become SSE.
pub fn may_turn_into_stream(head: &Head, mode: ResponseMode) -> bool {
    head.accept.sse && mode == ResponseMode::Auto
}

/// Decides about a GET: the session whose stream it opens.
pub fn get(
    ground: &Ground,
    service: &Service,
    head: &Head,
    owner: TokenId,
) -> Result<SessionKey, Verdict> {
    if !head.accept.sse {
        return Err(Verdict::error(
            406,
            None,
            reply::INVALID_REQUEST,
            "Not acceptable: the client must take text/event-stream",
        ));
    }
    let key = session(service, head, owner, None)?;
    service.pass_fields(key, head);
    if ground.is_draining() {
        return Err(Verdict::Now {
            status: 503,
            fields: b"retry-after: 1\r\n".to_vec(),
            body: reply::failure(None, Reason::Draining),
        });
    }
    Ok(key)
}

/// One POST on its way through the checks.
struct Post<'a> {
    ground: &'a Rc<Ground>,
    service: &'a Service,
    connection: ConnectionKey,
    owner: TokenId,
    head: &'a Head,
    manner: &'a Manner,
}

/// Decides about a POST whose body is `text`.
pub fn post(
    ground: &Rc<Ground>,
    service: &Service,
    connection: ConnectionKey,
    owner: TokenId,
    head: &Head,
    manner: &Manner,
    text: &[u8],
) -> Verdict {
    let post = Post {
        ground,
        service,
        connection,
        owner,
        head,
        manner,
    };
    if scan::is_batch(text) {
        return post.batch(text).unwrap_or_else(|refused| refused);
    }
    match scan::scan(text) {
        Ok(envelope) => post.message(text, &envelope),
        Err(error) => post.unscannable(text, &error),
    }
    .unwrap_or_else(|refused| refused)
}

/// Finds the session that a head names, if it is `owner`'s, and checks the
/// version header.
pub fn session(
    service: &Service,
    head: &Head,
    owner: TokenId,
    id: Option<&[u8]>,
) -> Result<SessionKey, Verdict> {
    let session_id = match head.session {
        SessionHeader::Absent => {
            return Err(Verdict::error(
                400,
                id,
                reply::INVALID_REQUEST,
                "The Mcp-Session-Id header is missing: open a session with initialize",
            ));
        }
        SessionHeader::Malformed => None,
        SessionHeader::Id(bits) => Some(SessionId(bits)),
    };
    let key = session_id.and_then(|id| service.find(id, owner));
    let Some(key) = key else {
        return Err(Verdict::error(
            404,
            id,
            reply::SESSION_NOT_FOUND,
            "Session not found",
        ));
    };
    check_version(service, head, key, id)?;
    Ok(key)
}

/// The session's version governs; a header that names another supported one is
/// counted, one that names none is refused.
fn check_version(
    service: &Service,
    head: &Head,
    key: SessionKey,
    id: Option<&[u8]>,
) -> Result<(), Verdict> {
    let Some(header) = &head.protocol_version else {
        return Ok(());
    };
    if header.as_bytes() == MODERN.as_bytes() {
        return Err(Verdict::refused(unsupported_era(id)));
    }
    let Some(version) = Version::parse(header.as_bytes()) else {
        return Err(Verdict::error(
            400,
            id,
            reply::INVALID_REQUEST,
            &format!(
                "Unsupported MCP-Protocol-Version, supported are {}",
                Version::SUPPORTED
            ),
        ));
    };
    if service.version(key) != Some(version) {
        service.count_version_differs();
    }
    Ok(())
}

/// The error that tells a fault, with the id where it was readable.
fn fault_body(text: &[u8], fault: Fault, id: Option<&scan::Field>) -> Vec<u8> {
    let id = id.map(|field| field.span.of(text));
    reply::error(id, fault.code(), fault.sentence())
}

/// There is no room for another session.
fn unavailable(id: Option<&[u8]>) -> Verdict {
    Verdict::Now {
        status: 503,
        fields: b"retry-after: 1\r\n".to_vec(),
        body: reply::failure(id, Reason::Overloaded),
    }
}

fn not_acceptable() -> Verdict {
    Verdict::error(
        406,
        None,
        reply::INVALID_REQUEST,
        "Not acceptable: the client must take application/json or text/event-stream",
    )
}

impl Post<'_> {
    fn sse(&self) -> Option<bool> {
        wants_sse(self.head, self.ground.config.response_mode)
    }

    /// Whether the message speaks the modern era, which is not built yet.
    fn is_modern(&self, text: &[u8], envelope: &Envelope<'_>) -> bool {
        let header = self.head.protocol_version.as_ref();
        let meta = envelope.meta_protocol_version.as_ref();
        header.is_some_and(|version| version.as_bytes() == MODERN.as_bytes())
            || meta.is_some_and(|field| {
                let version = field.text(text);
                version
                    .and_then(|text| Version::parse(text.as_bytes()))
                    .is_none()
            })
    }

    /// An id or a token over `--max-id`.
    fn too_long(&self, envelope: &Envelope<'_>) -> Option<Fault> {
        let is_over = |field: &Option<scan::Field>| {
            let bytes = field.as_ref().map_or(0, |field| field.span.len());
            bytes > self.ground.config.id_bytes_max
        };
        match (
            is_over(&envelope.id),
            is_over(&envelope.meta_progress_token),
        ) {
            (true, _) => Some(Fault::IdTooLong),
            (false, true) => Some(Fault::TokenTooLong),
            (false, false) => None,
        }
    }

    fn begin(&self, form: Form) -> ReplyTo {
        self.ground.begin_exchange(self.connection, form)
    }

    fn unscannable(&self, text: &[u8], error: &ScanError) -> Result<Verdict, Verdict> {
        if self.sse().is_none() {
            return Err(not_acceptable());
        }
        let id = error.id.as_ref().map(|field| field.span.of(text));
        let code = error.fault.code();
        if code == reply::INVALID_PARAMS {
            session(self.service, self.head, self.owner, id)?;
            return Ok(Verdict::message(reply::error(
                id,
                code,
                error.fault.sentence(),
            )));
        }
        Err(Verdict::error(400, id, code, error.fault.sentence()))
    }

    fn message(&self, text: &[u8], envelope: &Envelope<'_>) -> Result<Verdict, Verdict> {
        let is_request = envelope.kind == Kind::Request;
        let sse = self.sse();
        if is_request && sse.is_none() {
            return Err(not_acceptable());
        }
        if let Some(fault) = self.too_long(envelope) {
            let id = envelope.id.filter(|_| fault == Fault::TokenTooLong);
            return self.unscannable(text, &ScanError { fault, id });
        }
        let id = envelope.id.as_ref().map(|field| field.span.of(text));
        if is_request
            && envelope.method == "initialize"
            && let Some(field) = &envelope.id
        {
            return match self.service {
                Service::Plain(shard) if !shard.is_private() => {
                    self.initialize(shard, text, envelope, field.span.of(text))
                }
                _ => self.open(text, envelope, field),
            };
        }
        if self.is_modern(text, envelope) {
            return Err(Verdict::refused(unsupported_era(id)));
        }
        let session = session(self.service, self.head, self.owner, id)?;
        self.service.pass_fields(session, self.head);
        let form = match sse {
            Some(false) if is_request => Form::Json {
                manner: self.manner.clone(),
                streams: may_turn_into_stream(self.head, self.ground.config.response_mode),
            },
            _ => Form::Stream,
        };
        let reply_to = self.begin(form);
        Ok(
            match self.service.message(session, text, envelope, reply_to) {
                Step::Accepted => Verdict::accepted(),
                Step::Answer(message) | Step::Failed(_, message) => Verdict::message(message),
                Step::Refused(body) => Verdict::refused(body),
                Step::InFlight { id, may_stream } => Verdict::Call { id, may_stream },
            },
        )
    }

    /// Forwards an `initialize`: the session is opened when the server has answered.
    fn open(
        &self,
        text: &[u8],
        envelope: &Envelope<'_>,
        id: &scan::Field,
    ) -> Result<Verdict, Verdict> {
        let raw = Some(id.span.of(text));
        if self.ground.is_draining() {
            return Ok(Verdict::message(reply::failure(raw, Reason::Draining)));
        }
        if text.len() > INITIALIZE_BYTES_MAX {
            return Ok(Verdict::message(reply::error(
                raw,
                reply::INVALID_PARAMS,
                "initialize is longer than 64 KiB",
            )));
        }
        let form = Form::Opening {
            manner: self.manner.clone(),
            sse: self.sse() == Some(true),
        };
        let reply_to = self.begin(form);
        let fields = self.head.passed.clone().unwrap_or_else(|| [][..].into());
        match self.service {
            Service::Plain(shard) => shard
                .open_upstream(text, envelope, id, reply_to, self.owner, fields)
                .map(Opening::Plain),
            Service::Joined(joined) => joined
                .open(text, envelope, id, reply_to, self.owner, fields)
                .map(Opening::Joined),
        }
        .map(Verdict::Opening)
        .ok_or_else(|| unavailable(raw))
    }

    /// Opens a session of a server that all share: its handshake is the answer.
    fn initialize(
        &self,
        shard: &Shard,
        text: &[u8],
        envelope: &Envelope<'_>,
        id: &[u8],
    ) -> Result<Verdict, Verdict> {
        let asked = envelope
            .protocol_version
            .as_ref()
            .and_then(|field| field.text(text));
        let Some(asked) = asked else {
            return Ok(Verdict::message(reply::error(
                Some(id),
                reply::INVALID_PARAMS,
                "initialize needs params.protocolVersion, a string",
            )));
        };
        if self.ground.is_draining() {
            return Ok(Verdict::message(reply::failure(Some(id), Reason::Draining)));
        }
        let handshake = shard.state.borrow().handshake().cloned();
        let Some(handshake) = handshake else {
            return Ok(Verdict::message(reply::failure(
                Some(id),
                Reason::UpstreamDown,
            )));
        };
        let version = Version::negotiate(asked.as_bytes(), handshake.version);
        let Ok(key) = shard.open_session(self.owner, version) else {
            return Err(unavailable(Some(id)));
        };
        let state = shard.state.borrow();
        let fields = state.sessions.get(key).map(response::session_field);
        Ok(Verdict::Message {
            fields: fields.unwrap_or_default(),
            message: reply::result(id, handshake.result_for(version)),
        })
    }

    fn batch(&self, text: &[u8]) -> Result<Verdict, Verdict> {
        let spans = scan::batch(text)
            .map_err(|fault| Verdict::error(400, None, fault.code(), fault.sentence()))?;
        let session = session(self.service, self.head, self.owner, None)?;
        let refuse = |sentence| Verdict::error(400, None, reply::INVALID_REQUEST, sentence);
        let version = self.service.version(session);
        if !version.is_some_and(Version::has_batches) {
            return Err(refuse(
                "JSON-RPC batches exist in protocol version 2025-03-26 only",
            ));
        }
        if spans.is_empty() || spans.len() > scan::BATCH_MESSAGES_MAX {
            return Err(refuse("A batch holds 1 to 100 messages"));
        }
        let messages: Vec<_> = spans
            .iter()
            .map(|span| {
                let text = span.of(text);
                (text, scan::scan(text))
            })
            .collect();
        let is_initialize = |envelope: &Envelope<'_>| {
            envelope.kind == Kind::Request && envelope.method == "initialize"
        };
        if messages
            .iter()
            .any(|(_, scanned)| scanned.as_ref().is_ok_and(is_initialize))
        {
            return Err(refuse("initialize must not stand in a batch"));
        }
        let asks = |scanned: &Result<Envelope<'_>, ScanError>| match scanned {
            Ok(envelope) => envelope.kind == Kind::Request,
            Err(_) => true,
        };
        if self.sse().is_none() && messages.iter().any(|(_, scanned)| asks(scanned)) {
            return Err(not_acceptable());
        }
        self.service.pass_fields(session, self.head);
        Ok(self.route_batch(session, &messages))
    }

    fn route_batch(
        &self,
        session: SessionKey,
        messages: &[(&[u8], Result<Envelope<'_>, ScanError>)],
    ) -> Verdict {
        // An array has no place for progress, and its head goes out with its end.
        let asks_for_progress = |scanned: &Result<Envelope<'_>, ScanError>| {
            let envelope = scanned.as_ref().ok();
            envelope.is_some_and(|envelope| envelope.meta_progress_token.is_some())
        };
        let may_turn = may_turn_into_stream(self.head, self.ground.config.response_mode);
        let sse = self.sse() == Some(true)
            || may_turn
                && messages
                    .iter()
                    .any(|(_, scanned)| asks_for_progress(scanned));
        let mut reply_to = self.begin(match sse {
            true => Form::Stream,
            false => Form::Bare,
        });
        let mut ready = Vec::new();
        let mut in_flight = Vec::new();
        for (part, (text, scanned)) in messages.iter().enumerate() {
            reply_to.part = part as u16;
            match scanned {
                Err(error) => ready.push(fault_body(text, error.fault, error.id.as_ref())),
                Ok(envelope) if self.too_long(envelope).is_some() => {
                    let fault = self.too_long(envelope).unwrap_or(Fault::IdTooLong);
                    let id = envelope.id.filter(|_| fault == Fault::TokenTooLong);
                    ready.push(fault_body(text, fault, id.as_ref()));
                }
                Ok(envelope) if self.is_modern(text, envelope) => {
                    let id = envelope.id.as_ref().map(|field| field.span.of(text));
                    ready.push(unsupported_era(id));
                }
                Ok(envelope) => match self.service.message(session, text, envelope, reply_to) {
                    Step::Accepted => {}
                    Step::Answer(message) | Step::Refused(message) | Step::Failed(_, message) => {
                        ready.push(message)
                    }
                    Step::InFlight { id, .. } => in_flight.push(id),
                },
            }
        }
        match ready.is_empty() && in_flight.is_empty() {
            true => Verdict::accepted(),
            false => Verdict::Batch {
                ready,
                in_flight,
                sse,
            },
        }
    }
}
