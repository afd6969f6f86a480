//! The gateway without its sockets: one shard with the hub, both as they are in
//! the product, and the few lines that tasks and threads put around them (the head
//! of a connection, the hub's gathering and reading, the letters of a shard). What
//! a socket or a pipe would carry is a slice here.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use clap::Parser;
use crossbeam_channel::Receiver;

use ringway::cli::{Cli, Command};
use ringway::http::connections::{ConnectionKey, Delivery, Form, Phase, Wake};
use ringway::http::endpoint::{self, Verdict};
use ringway::http::ground::{Ground, Pass};
use ringway::http::guard::HeadGuard;
use ringway::http::head::{self, Head};
use ringway::http::joined::{Joined, RouteSettings, Seat, UpstreamSettings};
use ringway::http::response::{self, Manner, OriginAnswer};
use ringway::http::route::{Route, Service};
use ringway::http::shard::Shard;
use ringway::limits::{MAILBOX_BATCHES, UPSTREAM_READ_BYTES, UPSTREAM_WRITE_BYTES};
use ringway::routing::calls::ReplyTo;
use ringway::routing::client::Step;
use ringway::routing::event_queue::EventQueue;
use ringway::routing::hub::{Heard, HubState};
use ringway::routing::joined::SeatId;
use ringway::routing::joined::naming::{Naming, Rules, UpstreamNaming};
use ringway::routing::joined::sessions::SessionLimits;
use ringway::routing::letters::{Kind, Lines, Note, ToShard};
use ringway::routing::log_level::Level;
use ringway::routing::outcome::Outcome;
use ringway::routing::session::{SessionId, SessionKey, TokenId};
use ringway::routing::shard::ShardState;
use ringway::routing::stream::Work;
use ringway::routing::upstream_id::UpstreamId;
use ringway::runtime::bell::{Bell, Post, mailbox};
use ringway::runtime::clock;
use ringway::runtime::counters::Counters;
use ringway::runtime::driver::Driver;
use ringway::runtime::notify::Notify;
use ringway::upstream::child::ServerCommand;
use ringway::upstream::links::{Link, Links, LocalShard, Remote};
use ringway::wire::handshake::{Handshake, Offer};
use ringway::wire::lines::{Line, LineBuffer};
use ringway::wire::scan;
use ringway::wire::span::Span;
use ringway::wire::version::Version;

use crate::server;

/// Where the hub lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hub {
    OnTheShard,
    /// On a thread of its own, as far as it can be without one: all goes by mailbox.
    Apart,
    /// On the shard, of the first of three upstreams of a joined route.
    OneOfThree,
}

/// The shard's ends of the mailboxes between it and a hub that is apart.
struct Mail {
    post: Post<Lines>,
    letters: Receiver<ToShard>,
}

pub(crate) struct Path {
    ground: Rc<Ground>,
    route: Rc<Route>,
    shard: Rc<Shard>,
    face: Rc<Face>,
    mail: Option<Mail>,
    hub: HubState,
    links: Links,
    /// The server's stdout.
    stdout: LineBuffer,
    /// The hub's last write to the server's stdin.
    pub(crate) stdin: Vec<u8>,
    notes: Vec<(u64, Vec<Note>)>,
    sessions: u128,
    /// Of sessions of a joined route.
    ids: Vec<uuid::Uuid>,
    /// Bytes that clients were sent.
    pub(crate) sent_bytes: usize,
    /// The same bytes, while somebody wants to see them.
    pub(crate) sent: Option<Vec<u8>>,
}

const SEEDS: ahash::RandomState = ahash::RandomState::with_seeds(1, 2, 3, 4);

impl Path {
    /// A gateway with the default settings, whose server has been started.
    pub(crate) fn new(hub: Hub) -> Path {
        let arguments = ["ringway", "serve", "--shards", "1", "--", "server"];
        let command = Cli::parse_from(arguments).command;
        let Command::Serve { flags, .. } = command else {
            unreachable!("it was told to serve");
        };
        let server = ServerCommand {
            label: String::new(),
            program: "server".into(),
            ..ServerCommand::default()
        };
        let config = flags
            .validate(ringway::cli::ServerPlace::Command(server))
            .expect("the defaults are valid");
        let counters = Arc::new(Counters::default());
        let ground = Ground::new(
            0,
            1,
            Driver::Uring,
            Arc::new(config.process.face),
            Vec::new(),
            counters.clone(),
        );
        let seat = |counters| {
            Shard::new(
                ground.clone(),
                ShardState::new(0, 1, config.process.limits, SEEDS, clock::now()),
                Rc::new(Notify::default()),
                counters,
            )
        };
        let shard = seat(counters);
        let service = match hub {
            Hub::OneOfThree => {
                let others = [seat(Arc::default()), seat(Arc::default())];
                Service::Joined(joined(&ground, shard.clone(), others))
            }
            Hub::OnTheShard | Hub::Apart => Service::Plain(shard.clone()),
        };
        let route = Route::new(config.path.clone(), None, service);
        ground.set_routes(vec![route.clone()], Pass::default());
        let face = Rc::new(Face(shard.clone()));
        let (link, mail) = match hub {
            Hub::OnTheShard | Hub::OneOfThree => (Link::Local(face.clone()), None),
            Hub::Apart => {
                let bell = Bell::new().expect("an eventfd");
                let (to_hub, lines) = mailbox(MAILBOX_BATCHES, &bell);
                let (to_shard, letters) = mailbox(MAILBOX_BATCHES, &bell);
                let mail = Mail {
                    post: to_hub,
                    letters,
                };
                (Link::Remote(Remote::new(to_shard, lines)), Some(mail))
            }
        };
        let offer = Offer {
            get_streams: true,
            tasks: true,
        };
        let mut path = Path {
            ground,
            route,
            shard,
            face,
            mail,
            hub: HubState::new(1, offer, config.process.limits.request_timeout_ms, SEEDS),
            links: Links(vec![link]),
            stdout: LineBuffer::new(UPSTREAM_READ_BYTES, config.process.line_bytes_max),
            stdin: Vec::new(),
            notes: Vec::new(),
            sessions: 0,
            ids: Vec::new(),
            sent_bytes: 0,
            sent: None,
        };
        path.hub.begin();
        path.gather();
        let mut said = Vec::new();
        server::answer(&path.stdin, server::HANDSHAKE, &mut said);
        path.hear(&said);
        path.gather();
        path.use_all_slots();
        path
    }

    /// Brings the table of calls to the size from which on slots are used again, as
    /// it is soon after the start.
    fn use_all_slots(&mut self) {
        let session = self.open_at_seat(Version::NEWEST);
        let text = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let envelope = scan::scan(text).expect("a valid message");
        let nobody = ReplyTo {
            connection: u32::MAX,
            connection_generation: 0,
            exchange: 0,
            part: 0,
        };
        let mut state = self.shard.state.borrow_mut();
        let mut acts = Vec::new();
        for _ in 0..ringway::limits::SLOTS_BEFORE_REUSE {
            let now = clock::precise();
            let step = state.message(session, text, &envelope, nobody, now, &mut acts);
            let Step::InFlight { id, .. } = step else {
                panic!("{step:?}");
            };
            state.answered(id, b"", false, now.millis());
            let batch = state.outgoing.take_batch(Vec::new());
            state.outgoing.written(batch.len());
        }
    }

    /// Opens a session, at the route.
    pub(crate) fn open_session(&mut self, version: Version) -> SessionKey {
        let Service::Joined(joined) = self.route.service.clone() else {
            return self.open_at_seat(version);
        };
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{}"}}}}"#,
            version.as_str()
        );
        let envelope = scan::scan(text.as_bytes()).expect("a valid message");
        let key = self.connect();
        let manner = Manner {
            http11: true,
            close: false,
            keep_alive_10: false,
            head_only: false,
            origin: OriginAnswer::None,
        };
        let form = Form::Opening { manner, sse: false };
        let to = self.ground.begin_exchange(key, form);
        let id = envelope.id.expect("it has one");
        let opening = joined.open(
            text.as_bytes(),
            &envelope,
            &id,
            to,
            TokenId::ANYONE,
            Rc::default(),
        );
        opening.expect("there is room");
        let Some(Wake::Deliveries(answer)) = self.poll(key) else {
            panic!("it is answered at once");
        };
        let Some(Delivery::Response { bytes, .. }) = answer.into_iter().next() else {
            panic!("it is a whole response");
        };
        self.ground.close_connection(key);
        let answer = String::from_utf8(bytes).expect("UTF-8");
        let (_, id) = answer
            .split_once("mcp-session-id: ")
            .expect("a session was opened");
        let id: uuid::Uuid = id[..36].parse().expect("a UUID");
        self.ids.push(id);
        joined
            .find(SessionId(id.as_u128()), TokenId::ANYONE)
            .expect("it is open")
    }

    /// Opens a session under the next of a row of ids.
    fn open_at_seat(&mut self, version: Version) -> SessionKey {
        self.sessions += 1;
        let id = self.sessions << 80 | 0x4000_8000_0000_0000_0000 | self.sessions;
        let opened = self.shard.state.borrow_mut().open_session(
            TokenId::ANYONE,
            version,
            clock::now(),
            || id,
        );
        opened.expect("there is room")
    }

    /// The id of a session as its client writes it.
    pub(crate) fn session_header(&self, session: SessionKey) -> String {
        if let Some(last) = self.ids.last() {
            return last.hyphenated().to_string();
        }
        let state = self.shard.state.borrow();
        let id = state.sessions.get(session).expect("it is open").id;
        uuid::Uuid::from_u128(id.0).hyphenated().to_string()
    }

    pub(crate) fn connect(&mut self) -> ConnectionKey {
        self.ground.open_connection().expect("there is room")
    }

    /// A POST has come on a connection: what is to be answered, and how.
    pub(crate) fn post(
        &mut self,
        key: ConnectionKey,
        heads: &mut LastHead,
        request: &[u8],
    ) -> (Manner, Verdict) {
        let ground = &self.ground;
        let (head, body) = heads.read(request);
        ground.enter(key, Phase::Busy);
        let manner = Manner {
            http11: head.http11,
            close: head.close,
            keep_alive_10: head.keep_alive_10,
            head_only: false,
            origin: OriginAnswer::None,
        };
        let route = ground.route(head.path()).expect("there is a route");
        let owner = route.authorize(&head).expect("there are no tokens");
        let policy = &ground.config.policy;
        policy.check(&head).expect("loopback is allowed");
        let text = &request[body..];
        let service = &route.service;
        let verdict = endpoint::post(ground, service, key, owner, &head, &manner, text);
        ground.release_body(key);
        (manner, verdict)
    }

    fn deadline_in(&self, key: ConnectionKey, milliseconds: u64) {
        let due = clock::now().after(milliseconds);
        self.ground.set_deadline(key, due);
    }

    /// The task of a connection with a call in flight looks for what has come.
    pub(crate) fn poll(&mut self, key: ConnectionKey) -> Option<Wake> {
        self.deadline_in(key, self.ground.config.keep_alive_ms);
        let cx = Context::from_waker(Waker::noop());
        self.ground.poll_connection(key, &cx)
    }

    /// Bytes go to a client.
    pub(crate) fn write(&mut self, bytes: Vec<u8>) {
        self.ground.counters.sent_bytes.add(bytes.len() as u64);
        self.sent_bytes += bytes.len();
        if let Some(sent) = &mut self.sent {
            sent.extend_from_slice(&bytes);
        }
    }

    /// A whole answer of which `message` is the body.
    pub(crate) fn write_message(&mut self, manner: &Manner, message: &[u8]) {
        let date = self.ground.date();
        self.write(response::complete(manner, &date, 200, b"", message));
    }

    /// The answer of a request has been written, and the next one is awaited.
    pub(crate) fn end(&mut self, key: ConnectionKey) {
        self.ground.counters.statuses.count(200);
        self.ground.end_exchange(key);
        self.ground.release_answers(key);
        self.deadline_in(key, self.ground.config.idle_timeout_ms);
        self.ground.enter(key, Phase::Idle);
    }

    /// The head of an SSE answer.
    pub(crate) fn open_events(&mut self, manner: &Manner) -> Vec<u8> {
        let mut bytes = Vec::new();
        response::sse_head(&mut bytes, manner, &self.ground.date(), b"");
        bytes
    }

    /// Events of an SSE answer, behind what is there already.
    pub(crate) fn write_events(
        &mut self,
        key: ConnectionKey,
        mut bytes: Vec<u8>,
        mut events: Box<EventQueue>,
    ) {
        while let Some((event, start)) = events.next_part() {
            bytes.reserve_exact(event.len() + 32);
            response::part(&mut bytes, true, &event[start..]);
        }
        let is_last = events.ended() > 0;
        drop(events);
        if is_last {
            response::end(&mut bytes, true);
        }
        self.write(bytes);
        self.ground.release_answers(key);
    }

    /// A GET opens the stream of a session.
    pub(crate) fn open_stream(&mut self, session: SessionKey, key: ConnectionKey) {
        self.ground.enter(key, Phase::Stream);
        self.shard.open_stream(session, key);
        assert_eq!(self.run_stream(session, key), 0);
    }

    /// The task of a GET stream does what there is to do. Returns the events.
    pub(crate) fn run_stream(&mut self, session: SessionKey, key: ConnectionKey) -> usize {
        let mut written = 0;
        loop {
            let wake = self.poll(key);
            assert!(wake.is_none(), "{wake:?}");
            let mut events = Vec::new();
            match self.shard.stream_work(session, key, &mut events) {
                Work::Rest => return written,
                Work::End => panic!("it is the stream of the session"),
                Work::Write(count) => {
                    let mut bytes = Vec::new();
                    response::part(&mut bytes, true, &events);
                    drop(events);
                    self.write(bytes);
                    self.shard.stream_wrote(session, key, true);
                    written += count;
                }
            }
        }
    }

    /// The lines that are ready go to the server's stdin.
    pub(crate) fn gather(&mut self) {
        self.send_lines();
        let Path {
            hub, links, stdin, ..
        } = self;
        let now = clock::now();
        stdin.clear();
        hub.take_lines(stdin);
        let epoch = hub.epoch();
        let taken = links.0[0].take_lines(stdin, epoch, UPSTREAM_WRITE_BYTES, &mut self.notes);
        for (epoch, notes) in self.notes.drain(..) {
            hub.notes(0, epoch, notes, links, now);
        }
        hub.log_levels(links.0.iter().map(Link::log_level), now);
        hub.take_lines(stdin);
        let link = &mut links.0[0];
        link.written(taken);
        link.flush();
        self.take_letters();
    }

    /// Lines and notes of the shard go to a hub that is apart.
    fn send_lines(&mut self) {
        let Some(mail) = &self.mail else { return };
        let mut state = self.shard.state.borrow_mut();
        if !state.outgoing.has_batch() && !state.has_notes() {
            return;
        }
        let lines = Lines {
            epoch: state.epoch(),
            bytes: state.outgoing.take_batch(Vec::new()),
            log_level: state.log_level(),
            notes: state.take_notes(),
        };
        mail.post.send(lines).expect("there is room");
        mail.post.ring();
    }

    fn take_letters(&mut self) {
        if let Some(mail) = &self.mail {
            mail.letters
                .try_iter()
                .for_each(|letter| self.face.letter(letter));
        }
    }

    /// The server has written these bytes to its stdout.
    pub(crate) fn hear(&mut self, said: &[u8]) {
        for read in said.chunks(UPSTREAM_READ_BYTES) {
            let (mut bytes, filled) = self.stdout.lend();
            bytes.extend_from_slice(read);
            self.stdout.restore(bytes, filled + read.len());
            while let Some(line) = self.stdout.next_line() {
                let Line::Text(text) = line else {
                    panic!("{line:?}");
                };
                let text = text.trim_ascii();
                let heard = self.hub.line(text, &mut self.links, clock::now());
                assert!(matches!(heard, Heard::Routed | Heard::Opened(_)));
            }
        }
        self.hub.flush(&mut self.links);
        self.links.0[0].flush();
        self.take_letters();
    }
}

/// A route with three upstreams, of which the first is the one that is called.
fn joined(ground: &Rc<Ground>, shard: Rc<Shard>, others: [Rc<Shard>; 2]) -> Rc<Joined> {
    let names = ["one", "two", "three"];
    let naming: Vec<_> = names
        .iter()
        .map(|name| UpstreamNaming {
            name: (*name).to_owned(),
            ..UpstreamNaming::default()
        })
        .collect();
    let upstreams = names.iter().map(|name| UpstreamSettings {
        name: (*name).to_owned(),
        required: false,
    });
    let settings = Arc::new(RouteSettings {
        name: "route".to_owned(),
        naming: Naming::new(&naming, &Rules::default()).expect("the names are apart"),
        upstreams: upstreams.collect(),
        limits: SessionLimits {
            sessions_max: 1_000,
            ttl_ms: 1_800_000,
            unused_ms: 60_000,
            calls_max: 8_192,
            subscriptions_max: 1_024,
        },
        cursor_key: [0; 32],
        hooks: None,
    });
    let offer = Offer {
        get_streams: true,
        tasks: true,
    };
    let handshake = Handshake::read(server::HANDSHAKE.as_bytes(), offer).expect("it can be read");
    let handshake = Arc::new(handshake);
    for other in &others {
        other.upstream_up(1, handshake.clone());
    }
    let seats = std::iter::once(shard).chain(others).zip(1..);
    let seats = seats.map(|(shard, id)| Seat {
        id: SeatId(id),
        shard,
    });
    let joined = Joined::new(ground.clone(), settings.clone(), Arc::default());
    joined.configure(settings, seats.collect());
    joined
}

/// The head that came last on a connection: the same bytes need neither guard nor
/// decoder.
#[derive(Default)]
pub(crate) struct LastHead(Option<(Box<[u8]>, Rc<Head>)>);

impl LastHead {
    /// The head of a request, and where its body begins.
    pub(crate) fn read(&mut self, request: &[u8]) -> (Rc<Head>, usize) {
        if let Some((bytes, head)) = &self.0
            && request.starts_with(bytes)
        {
            return (head.clone(), bytes.len());
        }
        let extent = HeadGuard::new().advance(request).expect("a legal head");
        let extent = extent.expect("a whole head");
        let head = head::read(request, extent).expect("a head that can be used");
        let head = Rc::new(head);
        self.0 = Some((request[..extent.len].into(), head.clone()));
        (head, extent.len)
    }

    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

/// The shard as the hub sees it.
struct Face(Rc<Shard>);

impl LocalShard for Face {
    fn letter(&self, letter: ToShard) {
        match letter {
            ToShard::Up { epoch, handshake } => self.0.upstream_up(epoch, handshake),
            ToShard::Told { uri, told } => self.0.told(&uri, told),
            ToShard::Messages(messages) => {
                for (kind, id, span, message) in messages.iter() {
                    self.message(kind, id, span, message);
                }
            }
            ToShard::Large {
                kind,
                id,
                id_span,
                line,
            } => self.message(kind, id, id_span, &line),
            ToShard::Written(bytes) => self.0.written(bytes),
            ToShard::Down => unreachable!("the server stays"),
        }
    }

    fn message(&self, kind: Kind, id: UpstreamId, span: Span, message: &[u8]) {
        match kind {
            Kind::Result => self.0.answer(id, span, message, Outcome::Ok),
            Kind::Progress => self.0.progress(id, span, message),
            Kind::Updated => self.0.updated(message),
            Kind::Changed(kinds) => self.0.changed(kinds),
            other => unreachable!("the server says no such thing: {other:?}"),
        }
    }

    fn take_lines(&self, empty: Vec<u8>) -> Vec<u8> {
        self.0.state.borrow_mut().outgoing.take_batch(empty)
    }

    fn take_notes(&self) -> (u64, Vec<Note>) {
        let mut state = self.0.state.borrow_mut();
        (state.epoch(), state.take_notes())
    }

    fn written(&self, bytes: usize) {
        self.0.written(bytes);
    }

    fn log_level(&self) -> Option<Level> {
        self.0.state.borrow().log_level()
    }
}
