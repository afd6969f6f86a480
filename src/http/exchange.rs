//! One request and its answer: the checks that need only the head, the body,
//! the verdict of the endpoint, and the wait for what is in flight.

use super::auth::Unauthorized;
use super::chunked::ChunkedBody;
use super::connection::{Came, Connection, Event};
use super::connections::{Delivery, Form, Phase};
use super::endpoint::{self, Opening, Verdict};
use super::guard::{HeadExtent, Refusal};
use super::head::{Framing, Head, Method, SessionHeader};
use super::response::{self, Manner, OriginAnswer};
use super::route::Service;
use super::stream::OpenStream;
use crate::limits::LARGE_EVENT_BYTES;
use crate::routing::event_queue::EventQueue;
use crate::routing::joined::InFlight;
use crate::routing::session::{SessionId, TokenId};
use crate::wire::headers::{CORS_ALLOW_HEADERS, CORS_ALLOW_METHODS, CORS_MAX_AGE};
use crate::wire::reply::{self, Reason};
use crate::wire::sse;

/// What becomes of the connection after a request.
pub enum After {
    /// The next request may come.
    Next,
    /// Answered, and to be closed.
    Close,
    /// Broken, or to be ended without a word.
    Drop,
    /// Nothing was answered: the session belongs to this shard.
    HandOver(usize),
    /// From now on the connection carries this GET stream.
    Stream { open: OpenStream, manner: Manner },
}

/// The methods that the endpoint knows, as a field.
pub fn allowed(get_streams: bool) -> &'static [u8] {
    match get_streams {
        true => b"allow: GET, POST, DELETE, OPTIONS\r\n",
        false => b"allow: POST, DELETE, OPTIONS\r\n",
    }
}

/// Serves the request whose head stands first in the unread bytes.
pub async fn exchange(connection: &mut Connection, head: &Head, extent: HeadExtent) -> After {
    let manner = manner(connection, head);
    let (owner, service) = match admit(connection, head) {
        Ok(admitted) => admitted,
        Err(early) => {
            connection.inbound.consume(extent.len);
            return answer_early(connection, head, manner, early).await;
        }
    };
    if let Some(owner) = owner_elsewhere(connection, head) {
        return After::HandOver(owner);
    }
    connection.inbound.consume(extent.len);
    connection.service = Some(service.clone());
    match head.method {
        Method::Delete => delete(connection, head, manner, owner, service).await,
        Method::Get => get(connection, head, manner, owner, service).await,
        _ => post(connection, head, manner, owner, service).await,
    }
}

fn manner(connection: &Connection, head: &Head) -> Manner {
    let policy = &connection.ground.config.policy;
    let origin = match (&head.origin, policy.cors_origin(head)) {
        (None, _) => OriginAnswer::None,
        (Some(_), None) => OriginAnswer::Refused,
        (Some(origin), Some(_)) => OriginAnswer::Allowed(origin.clone()),
    };
    let close = head.close || connection.ground.is_draining();
    Manner {
        http11: head.http11,
        close,
        keep_alive_10: head.keep_alive_10 && !close,
        head_only: head.method == Method::Head,
        origin,
    }
}

/// An answer that needs nothing but the head.
struct Early {
    status: u16,
    fields: Vec<u8>,
    body: Vec<u8>,
}

impl Early {
    fn error(status: u16, message: &str) -> Early {
        Early {
            status,
            fields: Vec::new(),
            body: reply::error(None, reply::INVALID_REQUEST, message),
        }
    }
}

impl From<Unauthorized> for Early {
    fn from(refused: Unauthorized) -> Early {
        Early {
            status: 401,
            fields: refused.fields().to_vec(),
            body: refused.body(),
        }
    }
}

/// The checks on the head, in the order of the contract. The token comes first;
/// a browser's preflight cannot carry one. `Ok`: go on, with POST or DELETE.
fn admit(connection: &Connection, head: &Head) -> Result<(TokenId, Service), Early> {
    let ground = &connection.ground;
    let route = ground.route(head.path());
    let is_known = route.is_some();
    let nothing = || Early::error(404, "There is nothing at this path");
    // Where there is nothing, who may not use the first route does not learn of it.
    let route = route.or_else(|| ground.first_route()).ok_or_else(nothing)?;
    let owner = match head.preflight {
        true => TokenId::ANYONE,
        false => route.authorize(head)?,
    };
    early(connection, head, is_known).map_or_else(|| Ok((owner, route.service.clone())), Err)
}

/// The checks behind the token.
fn early(connection: &Connection, head: &Head, is_known: bool) -> Option<Early> {
    let config = &connection.ground.config;
    if let Err(forbidden) = config.policy.check(head) {
        return Some(Early::error(403, &forbidden.to_string()));
    }
    if !(is_known || head.method == Method::Options && head.path() == "*") {
        return Some(Early::error(404, "There is nothing at this path"));
    }
    match head.method {
        Method::Post => post_head(config.body_bytes_max, head),
        Method::Delete => body_size(config.body_bytes_max, head),
        Method::Options => Some(options(head, config.get_streams)),
        Method::Get if config.get_streams => body_size(config.body_bytes_max, head),
        Method::Get | Method::Head | Method::Other => {
            let mut early = Early::error(405, "Method not allowed");
            early.fields = allowed(config.get_streams).to_vec();
            Some(early)
        }
    }
}

fn post_head(body_bytes_max: usize, head: &Head) -> Option<Early> {
    if !head.content_type_json {
        return Some(Early::error(415, "Content-Type must be application/json"));
    }
    if head.content_encoded {
        return Some(Early::error(415, "Content-Encoding is not supported"));
    }
    body_size(body_bytes_max, head)
}

fn body_size(body_bytes_max: usize, head: &Head) -> Option<Early> {
    match head.framing {
        Framing::Length(bytes) if bytes > body_bytes_max as u64 => Some(too_large(body_bytes_max)),
        _ => None,
    }
}

fn too_large(body_bytes_max: usize) -> Early {
    Early::error(
        413,
        &format!("The body is larger than the limit of {body_bytes_max} bytes (--max-body)"),
    )
}

fn options(head: &Head, get_streams: bool) -> Early {
    let mut fields = allowed(get_streams).to_vec();
    if head.preflight {
        let methods = CORS_ALLOW_METHODS.as_bytes();
        response::field(&mut fields, "access-control-allow-methods", methods);
        let names = CORS_ALLOW_HEADERS.as_bytes();
        response::field(&mut fields, "access-control-allow-headers", names);
        response::field(
            &mut fields,
            "access-control-max-age",
            CORS_MAX_AGE.as_bytes(),
        );
    }
    Early {
        status: 204,
        fields,
        body: Vec::new(),
    }
}

/// The shard that owns the session that this request speaks for, if it is
/// another one.
fn owner_elsewhere(connection: &Connection, head: &Head) -> Option<usize> {
    let ground = &connection.ground;
    match head.session {
        SessionHeader::Id(bits) => {
            let owner = SessionId(bits).owner(ground.shards);
            (owner != ground.index).then_some(owner)
        }
        SessionHeader::Absent | SessionHeader::Malformed => None,
    }
}

/// Answers before the body was read. A body that is here already is thrown
/// away; for one that is still to come the connection ends.
async fn answer_early(
    connection: &mut Connection,
    head: &Head,
    mut manner: Manner,
    early: Early,
) -> After {
    match head.framing {
        Framing::None => {}
        Framing::Length(bytes) if bytes <= connection.inbound.unread().len() as u64 => {
            connection.inbound.consume(bytes as usize);
        }
        Framing::Length(_) | Framing::Chunked => manner.close = true,
    }
    let date = connection.ground.date();
    let response = response::complete(&manner, &date, early.status, &early.fields, &early.body);
    finish(connection, &manner, early.status, response).await
}

/// Writes the (rest of the) answer of a request and counts it by its status.
async fn finish(
    connection: &mut Connection,
    manner: &Manner,
    status: u16,
    response: Vec<u8>,
) -> After {
    connection.ground.counters.statuses.count(status);
    if !connection.write(response).await {
        return After::Drop;
    }
    // A client that has ended may have sent further requests before.
    let is_done = connection.inbound.has_ended() && connection.inbound.unread().is_empty();
    match manner.close || is_done {
        true => After::Close,
        false => After::Next,
    }
}

/// A body that has been read.
enum Body {
    /// It stands first in the unread bytes.
    InPlace(usize),
    /// It was put together from chunks.
    Own(Vec<u8>),
}

/// Why a body was not read.
enum NoBody {
    Refused(Refusal),
    Broken,
}

async fn read_body(connection: &mut Connection, head: &Head) -> Result<Body, NoBody> {
    let limit = connection.ground.config.body_bytes_max;
    let is_here = match head.framing {
        Framing::None => true,
        Framing::Length(bytes) => connection.inbound.unread().len() as u64 >= bytes,
        Framing::Chunked => false,
    };
    if !is_here {
        connection.body_deadline();
        let goes_on = head.expect_continue && connection.inbound.unread().is_empty();
        if goes_on
            && !connection
                .write(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec())
                .await
        {
            return Err(NoBody::Broken);
        }
        if goes_on {
            connection.body_deadline();
        }
    }
    match head.framing {
        Framing::None => Ok(Body::InPlace(0)),
        Framing::Length(bytes) => read_length(connection, bytes as usize).await,
        Framing::Chunked => read_chunked(connection, limit).await,
    }
}

async fn read_length(connection: &mut Connection, bytes: usize) -> Result<Body, NoBody> {
    while connection.inbound.unread().len() < bytes {
        let missing = bytes - connection.inbound.unread().len();
        more(connection, missing, 0).await?;
    }
    Ok(Body::InPlace(bytes))
}

async fn read_chunked(connection: &mut Connection, limit: usize) -> Result<Body, NoBody> {
    let mut decoder = ChunkedBody::new(limit);
    let mut body = Vec::new();
    loop {
        let fed = decoder
            .feed(connection.inbound.unread(), &mut body)
            .map_err(NoBody::Refused)?;
        connection.inbound.consume(fed.consumed);
        if fed.done {
            return Ok(Body::Own(body));
        }
        // The decoder holds an unfinished chunk besides.
        more(connection, 0, 2 * body.capacity()).await?;
    }
}

async fn more(connection: &mut Connection, expected: usize, decoded: usize) -> Result<(), NoBody> {
    if !connection.hold_body(decoded) {
        return Err(NoBody::Refused(Refusal::new(
            503,
            "the gateway has no room for this body, try again later",
        )));
    }
    match connection.read(expected).await {
        Came::Bytes => Ok(()),
        Came::End => Err(NoBody::Refused(Refusal::bad(
            "the request ended in the middle of its body",
        ))),
        Came::Late => Err(NoBody::Refused(Refusal::new(
            408,
            "the request body did not come in time",
        ))),
        Came::Broken => Err(NoBody::Broken),
    }
}

async fn refuse_body(connection: &mut Connection, mut manner: Manner, no_body: NoBody) -> After {
    let NoBody::Refused(refusal) = no_body else {
        return After::Drop;
    };
    manner.close = true;
    let early = match refusal.status {
        413 => too_large(connection.ground.config.body_bytes_max),
        503 => Early {
            status: 503,
            fields: b"retry-after: 1\r\n".to_vec(),
            body: reply::failure(None, Reason::Overloaded),
        },
        status => Early::error(status, refusal.reason),
    };
    let date = connection.ground.date();
    let response = response::complete(&manner, &date, early.status, &early.fields, &early.body);
    finish(connection, &manner, early.status, response).await
}

/// Reads a body that means nothing.
async fn skip_body(connection: &mut Connection, head: &Head) -> Result<(), NoBody> {
    if let Body::InPlace(bytes) = read_body(connection, head).await? {
        connection.inbound.consume(bytes);
    }
    Ok(())
}

async fn get(
    connection: &mut Connection,
    head: &Head,
    manner: Manner,
    owner: TokenId,
    service: Service,
) -> After {
    if let Err(no_body) = skip_body(connection, head).await {
        return refuse_body(connection, manner, no_body).await;
    }
    let refused = match endpoint::get(&connection.ground, &service, head, owner) {
        Ok(session) if connection.ground.enter(connection.key, Phase::Stream) => {
            let open = OpenStream::new(connection.ground.clone(), service, session, connection.key);
            return After::Stream { open, manner };
        }
        Ok(_) => return After::Drop,
        Err(refused) => refused,
    };
    answer(connection, head, manner, refused).await
}

async fn delete(
    connection: &mut Connection,
    head: &Head,
    manner: Manner,
    owner: TokenId,
    service: Service,
) -> After {
    if let Err(no_body) = skip_body(connection, head).await {
        return refuse_body(connection, manner, no_body).await;
    }
    let verdict = match endpoint::session(&service, head, owner, None) {
        Ok(session) => {
            service.pass_fields(session, head);
            service.end_session(session);
            Verdict::Now {
                status: 204,
                fields: Vec::new(),
                body: Vec::new(),
            }
        }
        Err(refused) => refused,
    };
    answer(connection, head, manner, verdict).await
}

async fn post(
    connection: &mut Connection,
    head: &Head,
    manner: Manner,
    owner: TokenId,
    service: Service,
) -> After {
    let verdict = match read_body(connection, head).await {
        Ok(Body::InPlace(bytes)) => {
            let text = &connection.inbound.unread()[..bytes];
            let verdict = endpoint::post(
                &connection.ground,
                &service,
                connection.key,
                owner,
                head,
                &manner,
                text,
            );
            connection.inbound.consume(bytes);
            verdict
        }
        Ok(Body::Own(text)) => endpoint::post(
            &connection.ground,
            &service,
            connection.key,
            owner,
            head,
            &manner,
            &text,
        ),
        Err(no_body) => return refuse_body(connection, manner, no_body).await,
    };
    connection.ground.release_body(connection.key);
    let after = answer(connection, head, manner, verdict).await;
    connection.ground.end_exchange(connection.key);
    after
}

async fn answer(
    connection: &mut Connection,
    head: &Head,
    manner: Manner,
    verdict: Verdict,
) -> After {
    let manner = now(connection, manner);
    let date = connection.ground.date();
    let sse = endpoint::wants_sse(head, connection.ground.config.response_mode) == Some(true);
    match verdict {
        Verdict::Now {
            status,
            fields,
            body,
        } => {
            let response = response::complete(&manner, &date, status, &fields, &body);
            finish(connection, &manner, status, response).await
        }
        Verdict::Message { fields, message } if sse => {
            let mut stream = Stream::open(connection, manner, &fields);
            stream.message(&message);
            stream.finish(connection).await
        }
        Verdict::Message { fields, message } => {
            let response = response::complete(&manner, &date, 200, &fields, &message);
            finish(connection, &manner, 200, response).await
        }
        Verdict::Opening(opening) => await_opening(connection, manner, opening).await,
        Verdict::Call { id, .. } if sse => {
            await_stream(connection, manner, Vec::new(), &[id]).await
        }
        Verdict::Call { id, may_stream } => {
            await_json(connection, head, manner, id, may_stream).await
        }
        Verdict::Batch {
            ready,
            in_flight,
            sse: true,
        } => await_stream(connection, manner, ready, &in_flight).await,
        Verdict::Batch {
            ready, in_flight, ..
        } => await_array(connection, manner, ready, &in_flight).await,
    }
}

/// The manner of an answer that is about to begin: a drain may have begun since
/// the request did.
fn now(connection: &Connection, mut manner: Manner) -> Manner {
    if connection.ground.is_draining() {
        manner.close();
    }
    manner
}

/// The client is gone while these calls are in flight.
fn gone(connection: &Connection, calls: &[InFlight]) -> After {
    if let Some(service) = &connection.service {
        service.client_gone(calls);
    }
    After::Drop
}

/// Waits for the answer of one call, as JSON; with SSE if progress comes before it
/// and the client takes that. A client that has sent its last byte still gets it.
async fn await_json(
    connection: &mut Connection,
    head: &Head,
    manner: Manner,
    call: InFlight,
    may_stream: bool,
) -> After {
    let mut kept = KeptJson::new(manner);
    loop {
        connection.keep_alive_deadline();
        let deliveries = match connection.event().await {
            Event::Deliveries(deliveries) => deliveries,
            Event::Events(events) => {
                let mut stream = Stream::open(connection, kept.manner, b"");
                let missing = 1usize.saturating_sub(events.ended());
                return match stream.events(connection, events).await {
                    true => stream_on(connection, stream, missing, &[call]).await,
                    false => gone(connection, &[call]),
                };
            }
            Event::End => continue,
            Event::Quiet => {
                // Progress that comes later would be lost behind a JSON head.
                if may_stream && !kept.is_open && may_be_sse(connection, head) {
                    connection.ground.set_form(connection.key, Form::Stream);
                    let mut stream = Stream::open(connection, kept.manner, b"");
                    stream.keep_alive();
                    return stream_on(connection, stream, 1, &[call]).await;
                }
                if !kept.keep_alive(connection).await {
                    return gone(connection, &[call]);
                }
                continue;
            }
            Event::Broken => return gone(connection, &[call]),
        };
        let Some(delivery) = deliveries.into_iter().next() else {
            continue;
        };
        return match delivery {
            Delivery::Response { status, bytes } => {
                let manner = now(connection, kept.manner);
                finish(connection, &manner, status, bytes).await
            }
            Delivery::Message { message, .. } => kept.finish(connection, &message).await,
            Delivery::Cancelled { .. } if head.accept.sse && !kept.is_open => {
                let stream = Stream::open(connection, kept.manner, b"");
                stream.finish(connection).await
            }
            Delivery::Cancelled { error, .. } => kept.finish(connection, &error).await,
        };
    }
}

/// Waits for the answer to an `initialize` that was forwarded. It is not kept alive:
/// its head names the session, which is known at the end.
async fn await_opening(connection: &mut Connection, manner: Manner, opening: Opening) -> After {
    loop {
        connection.keep_alive_deadline();
        let deliveries = match connection.event().await {
            Event::Deliveries(deliveries) => deliveries,
            Event::End | Event::Quiet | Event::Events(_) => continue,
            Event::Broken => return After::Drop,
        };
        drop(opening);
        return match deliveries.into_iter().next() {
            Some(Delivery::Response { status, bytes }) => {
                let manner = now(connection, manner);
                finish(connection, &manner, status, bytes).await
            }
            _ => After::Drop,
        };
    }
}

fn may_be_sse(connection: &Connection, head: &Head) -> bool {
    endpoint::may_turn_into_stream(head, connection.ground.config.response_mode)
}

/// Waits for all answers of a batch, as one array.
async fn await_array(
    connection: &mut Connection,
    manner: Manner,
    mut answers: Vec<Vec<u8>>,
    calls: &[InFlight],
) -> After {
    let mut kept = KeptJson::new(manner);
    let mut missing = calls.len();
    while missing > 0 {
        connection.keep_alive_deadline();
        let deliveries = match connection.event().await {
            Event::Deliveries(deliveries) => deliveries,
            Event::End | Event::Events(_) => continue,
            Event::Quiet => match kept.keep_alive(connection).await {
                true => continue,
                false => return gone(connection, calls),
            },
            Event::Broken => return gone(connection, calls),
        };
        for delivery in deliveries {
            missing = missing.saturating_sub(1);
            match delivery {
                Delivery::Message { message, .. } => answers.push(message),
                Delivery::Cancelled { error, .. } => answers.push(error),
                Delivery::Response { .. } => {} // only single calls have this form
            }
        }
    }
    let mut array = vec![b'['];
    array.extend_from_slice(&answers.join(&b","[..]));
    array.push(b']');
    kept.finish(connection, &array).await
}

/// A JSON answer that is being waited for. While nothing comes it is kept alive by
/// blanks, which JSON allows before a value; for them its head goes out first.
struct KeptJson {
    manner: Manner,
    /// The head has gone out.
    is_open: bool,
}

impl KeptJson {
    fn new(manner: Manner) -> KeptJson {
        KeptJson {
            manner,
            is_open: false,
        }
    }

    /// Sends a blank. False if the client is gone.
    async fn keep_alive(&mut self, connection: &mut Connection) -> bool {
        let mut bytes = Vec::new();
        if !self.is_open {
            self.is_open = true;
            self.manner = now(connection, self.manner.clone());
            if !self.manner.http11 {
                self.manner.close();
            }
            // From now on the answer comes as a bare message.
            connection.ground.set_form(connection.key, Form::Bare);
            response::json_head_open(&mut bytes, &self.manner, &connection.ground.date());
        }
        response::part(&mut bytes, self.manner.http11, b" ");
        connection.write(bytes).await
    }

    /// Sends the answer.
    async fn finish(self, connection: &mut Connection, message: &[u8]) -> After {
        let date = connection.ground.date();
        if !self.is_open {
            let manner = now(connection, self.manner);
            let response = response::complete(&manner, &date, 200, b"", message);
            return finish(connection, &manner, 200, response).await;
        }
        let mut bytes = Vec::new();
        response::part(&mut bytes, self.manner.http11, message);
        response::end(&mut bytes, self.manner.http11);
        finish(connection, &self.manner, 200, bytes).await
    }
}

/// Waits for the answers of one or more calls, each sent as an event when it
/// comes, behind the progress that came before it. The head goes out at once; a
/// client that ends is gone.
async fn await_stream(
    connection: &mut Connection,
    manner: Manner,
    ready: Vec<Vec<u8>>,
    calls: &[InFlight],
) -> After {
    let mut stream = Stream::open(connection, manner, b"");
    ready.iter().for_each(|message| stream.message(message));
    stream_on(connection, stream, calls.len(), calls).await
}

/// Goes on with a stream until `missing` more calls have ended.
async fn stream_on(
    connection: &mut Connection,
    mut stream: Stream,
    mut missing: usize,
    calls: &[InFlight],
) -> After {
    while missing > 0 {
        if !stream.flush(connection).await {
            return gone(connection, calls);
        }
        connection.ground.release_answers(connection.key);
        connection.keep_alive_deadline();
        match connection.event().await {
            Event::Events(events) => {
                missing = missing.saturating_sub(events.ended());
                if !stream.events(connection, events).await {
                    return gone(connection, calls);
                }
            }
            Event::Quiet => stream.keep_alive(),
            Event::Deliveries(_) => {} // these are for other forms
            Event::End | Event::Broken => return gone(connection, calls),
        }
    }
    stream.finish(connection).await
}

/// An SSE answer under construction; what has gathered goes out in one write.
struct Stream {
    manner: Manner,
    bytes: Vec<u8>,
}

impl Stream {
    /// An answer that begins now, with its head. `fields` are whole lines.
    fn open(connection: &Connection, manner: Manner, fields: &[u8]) -> Stream {
        let mut manner = now(connection, manner);
        // Without chunks only the close tells where the answer ends.
        if !manner.http11 {
            manner.close();
        }
        let mut bytes = Vec::new();
        response::sse_head(&mut bytes, &manner, &connection.ground.date(), fields);
        Stream { manner, bytes }
    }

    fn message(&mut self, message: &[u8]) {
        response::sse_message(&mut self.bytes, &self.manner, message);
    }

    /// Adds events; large ones are written from their own buffers. False if the
    /// client is gone.
    async fn events(&mut self, connection: &mut Connection, mut events: Box<EventQueue>) -> bool {
        let http11 = self.manner.http11;
        while let Some((bytes, start)) = events.next_part() {
            // Not by doubling: a thousand of these may wait for slow readers.
            self.bytes
                .reserve_exact(bytes.len().min(LARGE_EVENT_BYTES) + 32);
            if bytes.len() < LARGE_EVENT_BYTES || start > 0 {
                response::part(&mut self.bytes, http11, &bytes[start..]);
                continue;
            }
            response::part_begins(&mut self.bytes, http11, bytes.len());
            if !self.flush(connection).await || !connection.write(bytes).await {
                return false;
            }
            response::part_ends(&mut self.bytes, http11);
        }
        true
    }

    fn keep_alive(&mut self) {
        response::part(&mut self.bytes, self.manner.http11, sse::KEEP_ALIVE);
    }

    async fn flush(&mut self, connection: &mut Connection) -> bool {
        connection.write(std::mem::take(&mut self.bytes)).await
    }

    async fn finish(mut self, connection: &mut Connection) -> After {
        response::end(&mut self.bytes, self.manner.http11);
        finish(connection, &self.manner, 200, self.bytes).await
    }
}
