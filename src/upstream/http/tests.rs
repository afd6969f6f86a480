//! The client against servers on threads, which say exactly what a test wants them to say. On
//! both drivers.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use super::address::Address;
use super::client::{Client, HttpCounters, Settings, Upstream};
use super::exchange::{Abort, End, EndKind, Fault, Listener, Request, Verb};
use super::resolve::Resolver;
use super::response::OddSession;
use super::tls::TlsSettings;
use crate::runtime::driver::{DriverChoice, Loop, RingFlags};
use crate::runtime::fair::give_way;

/// Against hangs only.
const GUARD: Duration = Duration::from_secs(60);

// A server.

struct Server {
    address: SocketAddr,
    open: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// One connection, as its script sees it.
struct Conn {
    stream: TcpStream,
    /// Counted from 0.
    number: usize,
    unread: Vec<u8>,
}

impl Server {
    fn start(script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Server {
        Server::on(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    fn on(listener: TcpListener, script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Server {
        let address = listener.local_addr().unwrap();
        let open = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::new(AtomicUsize::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let script = Arc::new(script);
        let (counts, over) = ((open.clone(), accepted.clone()), is_over.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(GUARD)).unwrap();
                stream.set_write_timeout(Some(GUARD)).unwrap();
                let (open, accepted) = counts.clone();
                let script = script.clone();
                open.fetch_add(1, Ordering::SeqCst);
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let mut conn = Conn {
                        stream,
                        number,
                        unread: Vec::new(),
                    };
                    // Counted also where the script panics.
                    let closed = OnDrop(|| _ = open.fetch_sub(1, Ordering::SeqCst));
                    script(&mut conn);
                    drop(conn);
                    drop(closed);
                });
            }
        });
        Server {
            address,
            open,
            accepted,
            is_over,
            thread: Some(thread),
        }
    }

    /// The same answer to every request.
    fn always(answer: &[u8]) -> Server {
        let answer = answer.to_vec();
        Server::start(move |conn| while conn.request().is_some() && conn.send(&answer) {})
    }

    /// An answer, and the end of the connection.
    fn once(answer: &[u8]) -> Server {
        let answer = answer.to_vec();
        Server::start(move |conn| {
            if conn.request().is_some() {
                conn.send(&answer);
            }
        })
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().unwrap().join();
    }
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

impl Conn {
    /// The next request: its head in text, its body.
    fn request(&mut self) -> Option<(String, Vec<u8>)> {
        read_request(&mut self.stream, &mut self.unread)
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Waits until the client has closed.
    fn wait_for_end(&mut self) {
        let mut bytes = [0; 4096];
        while matches!(self.stream.read(&mut bytes), Ok(n) if n > 0) {}
    }
}

fn read_request(stream: &mut impl Read, unread: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let mut bytes = vec![0; 64 << 10];
    let mut more = |unread: &mut Vec<u8>| match stream.read(&mut bytes) {
        Ok(n) if n > 0 => {
            unread.extend_from_slice(&bytes[..n]);
            Some(())
        }
        _ => None,
    };
    let end = loop {
        if let Some(end) = memchr::memmem::find(unread, b"\r\n\r\n") {
            break end + 4;
        }
        more(unread)?;
    };
    let head = String::from_utf8(unread[..end].to_vec()).unwrap();
    let length = head
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    while unread.len() < end + length {
        more(unread)?;
    }
    let body = unread[end..end + length].to_vec();
    unread.drain(..end + length);
    Some((head, body))
}

fn with_length(fields: &str, body: &[u8]) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 {fields}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(body);
    answer
}

fn json(body: &str) -> Vec<u8> {
    with_length("200 OK\r\ncontent-type: application/json", body.as_bytes())
}

fn chunk(body: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", body.len()).into_bytes();
    chunk.extend_from_slice(body);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

const EVENTS: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

// A client.

/// All threads share it.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Upstream>();
    is_shared::<HttpCounters>();
};

fn settings() -> Settings {
    Settings {
        connections_max: 8,
        connect_timeout_ms: 30_000,
        idle_ms: 30_000,
        message_bytes_max: 4 << 20,
        partial_bytes_max: 64 << 20,
    }
}

fn upstream_of(addresses: Vec<SocketAddr>, settings: Settings) -> Upstream {
    Upstream {
        address: Address::parse("http://server.test:8080/mcp?x=1").unwrap(),
        tls: None,
        resolver: Resolver::fixed(addresses),
        settings,
    }
}

fn client_of(upstream: Upstream) -> Rc<Client> {
    Client::new(Arc::new(upstream), Arc::new(HttpCounters::default()))
}

fn client(server: &Server) -> Rc<Client> {
    client_of(upstream_of(vec![server.address], settings()))
}

fn client_with(server: &Server, change: impl FnOnce(&mut Settings)) -> Rc<Client> {
    let mut settings = settings();
    change(&mut settings);
    client_of(upstream_of(vec![server.address], settings))
}

fn post(body: &[u8]) -> Request {
    Request {
        method: Verb::Post,
        session: None,
        version: None,
        fields: Rc::default(),
        last_event_id: None,
        body: body.into(),
        is_call: true,
        may_repeat: false,
        first_byte_ms: 30_000,
        silence_ms: 30_000,
    }
}

fn get() -> Request {
    Request {
        method: Verb::Get,
        ..post(b"")
    }
}

/// What a listener heard, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Heard {
    Head(Option<Result<String, OddSession>>, bool),
    Message(String),
    Id(String),
    Retry(u64),
}

#[derive(Default)]
struct Ear {
    heard: Vec<Heard>,
    /// Messages, where they are too many or too large to be kept.
    count: Rc<Cell<usize>>,
    bytes: Rc<Cell<usize>>,
    only_counts: bool,
    is_full: Rc<Cell<bool>>,
    /// Full after the first message.
    fills: bool,
    /// Set after so many messages.
    aborts: Option<(usize, Abort)>,
    /// So many messages are all that is waited for.
    enough: Option<usize>,
}

impl Listener for Ear {
    fn head(&mut self, session: Option<Result<&[u8], OddSession>>, is_stream: bool) {
        let session = session.map(|id| id.map(text));
        self.heard.push(Heard::Head(session, is_stream));
    }

    fn message(&mut self, message: &[u8]) {
        self.count.set(self.count.get() + 1);
        self.bytes.set(self.bytes.get() + message.len());
        if !self.only_counts {
            self.heard.push(Heard::Message(text(message)));
        }
        if self.fills && self.count.get() == 1 {
            self.is_full.set(true);
        }
        if let Some((count, abort)) = &self.aborts
            && self.count.get() == *count
        {
            abort.set();
        }
    }

    fn event_id(&mut self, id: &[u8]) {
        self.heard.push(Heard::Id(text(id)));
    }

    fn retry(&mut self, ms: u64) {
        self.heard.push(Heard::Retry(ms));
    }

    fn has_room(&self) -> bool {
        !self.is_full.get()
    }

    fn is_over(&self) -> bool {
        self.enough == Some(self.count.get())
    }
}

impl Ear {
    fn counting() -> Ear {
        Ear {
            only_counts: true,
            ..Ear::default()
        }
    }

    fn messages(&self) -> Vec<&str> {
        let message = |heard: &'_ Heard| matches!(heard, Heard::Message(_));
        let all = self.heard.iter().filter(|heard| message(heard));
        all.map(|heard| match heard {
            Heard::Message(text) => text.as_str(),
            _ => unreachable!(),
        })
        .collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn exchange(client: &Rc<Client>, request: Request) -> (End, Ear) {
    let mut ear = Ear::default();
    let end = client.exchange(request, &Abort::new(), &mut ear).await;
    (end, ear)
}

/// Runs a test on both drivers.
fn on_both<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for choice in [DriverChoice::Auto, DriverChoice::Epoll] {
        let mut event_loop = Loop::new(choice, RingFlags::BEST).unwrap();
        let driver = event_loop.driver();
        event_loop.block_on(async {
            let run = monoio::time::timeout(GUARD, test()).await;
            assert!(run.is_ok(), "no end on {driver}");
        });
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..30_000 {
        if is_so() {
            return;
        }
        monoio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

/// Nothing is left of any exchange but idle connections, and then not even those, neither here
/// nor at the server.
async fn nothing_left(client: &Rc<Client>, server: &Server) {
    let counters = client.counters().clone();
    assert_eq!(client.exchanges(), 0, "exchanges");
    assert_eq!(counters.waiting.get(), 0, "waiting");
    assert_eq!(
        counters.connections.get(),
        counters.idle.get(),
        "open connections"
    );
    let places = client.upstream.settings.connections_max;
    assert_eq!(
        (client.calls.free(), client.streams.free()),
        (places, places),
        "places"
    );
    client.close_idle();
    assert_eq!((counters.connections.get(), counters.idle.get()), (0, 0));
    until("closed at the server", || {
        server.open.load(Ordering::SeqCst) == 0
    })
    .await;
}

fn ended(client: &Client, kind: EndKind) -> u64 {
    client.counters().ends()[kind as usize]
}

// What is sent.

#[test]
fn a_request_is_sent_as_it_should_be() {
    on_both(|| async {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let server = Server::start(move |conn| {
            while let Some(request) = conn.request() {
                log.lock().unwrap().push(request);
                conn.send(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n");
            }
        });
        let client = client(&server);
        let full = Request {
            session: Some(b"s-1".as_slice().into()),
            version: Some("2025-11-25"),
            fields: b"authorization: x\r\nx-a: b\r\n".as_slice().into(),
            last_event_id: Some(b"7 \xc3\xbc".as_slice().into()),
            ..post(b"{}")
        };
        for method in [Verb::Post, Verb::Get, Verb::Delete] {
            let request = Request {
                method,
                ..full.clone()
            };
            assert_eq!(exchange(&client, request).await.0, End::Done);
        }
        for fields in [
            "User-Agent: other\r\n",
            "x: y\r\nuser-agent: other\r\n",
            "x: user-agent:\r\n",
        ] {
            let request = Request {
                fields: fields.as_bytes().into(),
                ..post(b"")
            };
            assert_eq!(exchange(&client, request).await.0, End::Done);
        }
        // What no header can hold is left out, or refused where that would change what is asked.
        let request = Request {
            last_event_id: Some(b"a\x01".as_slice().into()),
            ..get()
        };
        assert_eq!(exchange(&client, request).await.0, End::Done);
        let request = Request {
            session: Some(b"a\r\nb: c".as_slice().into()),
            ..post(b"")
        };
        assert_eq!(
            exchange(&client, request).await.0,
            End::Broken(Fault::Malformed)
        );

        let seen = std::mem::take(&mut *seen.lock().unwrap());
        let agent = concat!("user-agent: ringway/", env!("CARGO_PKG_VERSION"), "\r\n");
        let rest = format!(
            "mcp-session-id: s-1\r\nmcp-protocol-version: 2025-11-25\r\nlast-event-id: 7 ü\r\n\
             authorization: x\r\nx-a: b\r\n{agent}\r\n"
        );
        let json = "accept: application/json, text/event-stream\r\n";
        assert_eq!(
            seen[0].0,
            format!(
                "POST /mcp?x=1 HTTP/1.1\r\nhost: server.test:8080\r\n{json}\
                 content-type: application/json\r\ncontent-length: 2\r\n{rest}"
            )
        );
        assert_eq!(seen[0].1, b"{}");
        assert_eq!(
            seen[1].0,
            format!(
                "GET /mcp?x=1 HTTP/1.1\r\nhost: server.test:8080\r\naccept: text/event-stream\r\n{rest}"
            )
        );
        assert_eq!(
            seen[2].0,
            format!("DELETE /mcp?x=1 HTTP/1.1\r\nhost: server.test:8080\r\n{json}{rest}")
        );
        let agents = |head: &str| head.to_ascii_lowercase().matches("\r\nuser-agent:").count();
        for (head, _) in &seen[3..6] {
            assert_eq!(agents(head), 1, "{head}");
        }
        assert!(seen[5].0.contains(agent));
        assert!(!seen[6].0.contains("last-event-id"));
        assert_eq!((seen.len(), server.accepted()), (7, 1));
        nothing_left(&client, &server).await;
    });
}

#[test]
fn bodies_of_every_size_arrive() {
    on_both(|| async {
        let server = Server::start(|conn| {
            while let Some((_, body)) = conn.request() {
                conn.send(&json(&format!("[{},{}]", body.len(), sum(&body))));
            }
        });
        let client = client_with(&server, |settings| settings.message_bytes_max = 64 << 20);
        for length in [0, 1, 65_535, 65_536, 65_537, 1 << 20, 20 << 20] {
            let body: Vec<u8> = (0..length)
                .map(|n: usize| (n * 7 + n / 251) as u8)
                .collect();
            let (end, ear) = exchange(&client, post(&body)).await;
            assert_eq!(end, End::Done);
            assert_eq!(ear.messages(), [format!("[{length},{}]", sum(&body))]);
        }
        assert_eq!(server.accepted(), 1);
        let sent = client.counters().sent_bytes.get();
        assert!(sent > 21 << 20, "{sent}");
        nothing_left(&client, &server).await;
    });
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, &byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into()) >> 1
    })
}

// What comes back.

#[test]
fn what_counts_as_a_message() {
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "200 OK\r\ncontent-type: application/json",
            "{\"a\":1}",
            &["{\"a\":1}"],
        ),
        (
            "200 OK\r\ncontent-type: Application/JSON; charset=utf-8",
            " {} \r\n",
            &["{}"],
        ),
        (
            "200 OK\r\ncontent-type: application/problem+json",
            "[]",
            &["[]"],
        ),
        (
            "200 OK\r\ncontent-type: application/json",
            "garbage",
            &["garbage"],
        ),
        ("200 OK\r\ncontent-type: application/json", "", &[]),
        ("200 OK\r\ncontent-type: application/json", " \n", &[]),
        ("200 OK\r\ncontent-type: application/json", "null", &[]),
        (
            "202 Accepted\r\ncontent-type: application/json",
            "null\n",
            &[],
        ),
        (
            "202 Accepted\r\ncontent-type: application/json",
            "{}",
            &["{}"],
        ),
        ("202 Accepted", "Accepted", &[]),
        ("202 Accepted\r\ncontent-type: text/plain", "{}", &[]),
        ("200 OK", "", &[]),
        ("200 OK\r\ncontent-type: text/plain", "null", &[]),
        ("200 OK", " {\"b\":2}", &["{\"b\":2}"]),
        ("201 Created\r\ncontent-type: text/plain", "[1]", &["[1]"]),
        (
            "200 OK\r\ncontent-type: text/event-stream",
            "data: x\n\ndata: y",
            &["x"],
        ),
        (
            "200 OK\r\ncontent-type: Text/Event-Stream;x=y",
            "data: x\r\rdata: y\r\n\r\n",
            &["x", "y"],
        ),
        ("200 OK\r\ncontent-type: text/event-stream", "", &[]),
    ];
    on_both(|| async {
        for (fields, body, messages) in cases {
            let mut chunked =
                format!("HTTP/1.1 {fields}\r\ntransfer-encoding: chunked\r\n\r\n").into_bytes();
            if !body.is_empty() {
                chunked.extend(chunk(body.as_bytes()));
            }
            chunked.extend(b"0\r\n\r\n");
            let until_close = format!("HTTP/1.1 {fields}\r\n\r\n{body}").into_bytes();
            let framings = [
                (with_length(fields, body.as_bytes()), true),
                (chunked, true),
                (until_close, false),
            ];
            for (answer, is_kept) in framings {
                let server = Server::once(&answer);
                let client = client(&server);
                let (end, ear) = exchange(&client, post(b"{}")).await;
                assert_eq!(
                    (end, ear.messages()),
                    (End::Done, messages.to_vec()),
                    "{fields} {body}"
                );
                let is_stream = fields.to_ascii_lowercase().contains("event-stream");
                assert_eq!(ear.heard[0], Heard::Head(None, is_stream), "{fields}");
                assert_eq!(
                    client.counters().idle.get(),
                    u64::from(is_kept),
                    "{fields} {body}"
                );
                nothing_left(&client, &server).await;
            }
        }
        let server =
            Server::once(b"HTTP/1.1 204 No Content\r\ncontent-type: text/event-stream\r\n\r\n");
        let (end, ear) = exchange(&client(&server), post(b"{}")).await;
        assert_eq!(
            (end, ear.heard),
            (End::Done, vec![Heard::Head(None, false)])
        );
    });
}

#[test]
fn a_session_is_told_with_the_head() {
    on_both(|| async {
        for (field, session) in [
            ("", None),
            ("mcp-session-id: a-1\r\n", Some(Ok("a-1".to_owned()))),
            ("mcp-session-id: a 1\r\n", Some(Err(OddSession))),
        ] {
            let server = Server::once(
                format!("HTTP/1.1 200 OK\r\n{field}content-length: 0\r\n\r\n").as_bytes(),
            );
            let (end, ear) = exchange(&client(&server), post(b"{}")).await;
            assert_eq!(
                (end, ear.heard),
                (End::Done, vec![Heard::Head(session, false)])
            );
        }
    });
}

#[test]
fn events_that_come_byte_by_byte_are_the_same() {
    let body = "\u{feff}: hello\nid: 7\nretry: 250\ndata: {\"a\":\ndata: 1}\n\nevent: ping\ndata: no\n\n\
                event: message\r\ndata:\u{fc}\r\n\r\nid: 8\ndata\n\nid: 9\n\ndata: cut";
    let expected = vec![
        Heard::Head(None, true),
        Heard::Retry(250),
        Heard::Id("7".into()),
        Heard::Message("{\"a\":\n1}".into()),
        Heard::Message("\u{fc}".into()),
        Heard::Id("8".into()),
        Heard::Id("9".into()),
    ];
    on_both(|| async {
        let server = Server::start(move |conn| {
            while conn.request().is_some() {
                let mut answer = EVENTS.to_vec();
                for piece in body.as_bytes().chunks(3) {
                    answer.extend(chunk(piece));
                }
                answer.extend(b"0\r\nx: y\r\n\r\n");
                for byte in answer.chunks(1) {
                    conn.send(byte);
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
        let client = client(&server);
        for request in [get(), post(b"{}")] {
            let (end, ear) = exchange(&client, request).await;
            assert_eq!((end, ear.heard), (End::Done, expected.clone()));
        }
        assert_eq!(server.accepted(), 1);
        nothing_left(&client, &server).await;
    });
}

#[test]
fn interim_answers_are_skipped() {
    on_both(|| async {
        let mut answer =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".to_vec();
        answer.extend(json("{}"));
        let server = Server::always(&answer);
        let client = client(&server);
        for _ in 0..3 {
            let (end, ear) = exchange(&client, post(b"{}")).await;
            assert_eq!((end, ear.messages()), (End::Done, vec!["{}"]));
        }
        assert_eq!(server.accepted(), 1);
        let server = Server::once(&b"HTTP/1.1 100 Continue\r\n\r\n".repeat(17));
        assert_eq!(
            exchange(&self::client(&server), post(b"{}")).await.0,
            End::Broken(Fault::Malformed)
        );
        let server = Server::once(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n");
        assert_eq!(
            exchange(&self::client(&server), post(b"{}")).await.0,
            End::Broken(Fault::Malformed)
        );
    });
}

#[test]
fn a_large_body_is_read_whole() {
    on_both(|| async {
        let text = format!("\"{}\"", "x".repeat(3_000_000));
        let answer = json(&text);
        let server = Server::start(move |conn| {
            while conn.request().is_some() {
                for piece in answer.chunks(100_000) {
                    conn.send(piece);
                }
            }
        });
        let client = client_with(&server, |settings| settings.message_bytes_max = 3_000_002);
        for _ in 0..2 {
            let (end, ear) = exchange(&client, post(b"{}")).await;
            assert_eq!(end, End::Done);
            assert!(ear.messages() == [text.as_str()]);
        }
        assert_eq!(server.accepted(), 1);
        nothing_left(&client, &server).await;
        let client = client_with(&server, |settings| settings.message_bytes_max = 3_000_001);
        assert_eq!(
            exchange(&client, post(b"{}")).await.0,
            End::Broken(Fault::TooLarge)
        );
        nothing_left(&client, &server).await;
    });
}

#[test]
fn refusals_are_told_with_their_body() {
    on_both(|| async {
        let refused = |status, body: &[u8]| End::Refused {
            status,
            body: body.to_vec(),
        };
        for (fields, body, end) in [
            (
                "400 Bad Request\r\ncontent-type: application/json",
                "{\"e\":1}",
                refused(400, b"{\"e\":1}"),
            ),
            ("404 Not Found", "gone", refused(404, b"gone")),
            ("302 Found\r\nlocation: /x", "", refused(302, b"")),
            ("405 Method Not Allowed", "", refused(405, b"")),
            (
                "500 Oops\r\ncontent-type: text/event-stream",
                "data: x\n\n",
                refused(500, b"data: x\n\n"),
            ),
            ("304 Not Modified", "", refused(304, b"")),
        ] {
            let server = Server::always(&with_length(fields, body.as_bytes()));
            let client = client(&server);
            for _ in 0..2 {
                let (seen, ear) = exchange(&client, post(b"{}")).await;
                assert_eq!((&seen, ear.heard), (&end, Vec::new()), "{fields}");
            }
            assert_eq!(server.accepted(), 1, "{fields}");
            let request = Request {
                session: Some(b"s".as_slice().into()),
                ..post(b"{}")
            };
            let is_gone = fields.starts_with("404");
            let end = if is_gone { End::NoSession } else { end };
            assert_eq!(exchange(&client, request).await.0, end, "{fields}");
            assert_eq!(ended(&client, EndKind::NoSession), u64::from(is_gone));
            assert_eq!(
                ended(&client, EndKind::Refused),
                if is_gone { 2 } else { 3 }
            );
            nothing_left(&client, &server).await;
        }
    });
}

#[test]
fn of_a_refusals_body_so_much_is_kept_as_comes() {
    on_both(|| async {
        let long = [b'x'; 100_000];
        let kept = long[..super::exchange::REFUSAL_BYTES_MAX].to_vec();
        let server = Server::always(&with_length("500 Oops", &long));
        let client = client(&server);
        let end = exchange(&client, post(b"{}")).await.0;
        assert_eq!(
            end,
            End::Refused {
                status: 500,
                body: kept
            }
        );
        nothing_left(&client, &server).await;
        // Cut, malformed, and without an end.
        for (answer, body) in [
            (
                &b"HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\nabc"[..],
                b"abc",
            ),
            (
                b"HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nx",
                b"abc",
            ),
        ] {
            let server = Server::once(answer);
            let end = exchange(&self::client(&server), post(b"{}")).await.0;
            assert_eq!(
                end,
                End::Refused {
                    status: 500,
                    body: body.to_vec()
                }
            );
        }
        let server = Server::start(|conn| {
            conn.request();
            conn.send(b"HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\nabc");
            conn.wait_for_end();
        });
        let client = self::client(&server);
        let request = Request {
            silence_ms: 100,
            ..post(b"{}")
        };
        let end = exchange(&client, request).await.0;
        assert_eq!(
            end,
            End::Refused {
                status: 500,
                body: b"abc".to_vec()
            }
        );
        let request = Request {
            silence_ms: 0,
            ..post(b"{}")
        };
        let end = exchange(&client, request).await.0;
        assert_eq!(
            end,
            End::Refused {
                status: 500,
                body: b"abc".to_vec()
            }
        );
        nothing_left(&client, &server).await;
    });
}

// Connections that are kept.

#[test]
fn a_connection_is_used_again() {
    on_both(|| async {
        let server = Server::always(&json("{}"));
        let client = client(&server);
        for _ in 0..100 {
            assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
        }
        let counters = client.counters();
        assert_eq!(server.accepted(), 1);
        assert_eq!(
            (
                counters.connects.get(),
                counters.reused.get(),
                counters.retries.get()
            ),
            (1, 99, 0)
        );
        assert_eq!((counters.connections.get(), counters.idle.get()), (1, 1));
        assert_eq!(ended(&client, EndKind::Done), 100);
        assert_eq!(counters.received_bytes.get(), 100 * json("{}").len() as u64);
        nothing_left(&client, &server).await;
    });
}

#[test]
fn a_connection_is_kept_only_where_that_is_safe() {
    on_both(|| async {
        for answer in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"[..],
            b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nx",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n",
        ] {
            let server = Server::always(answer);
            let client = client(&server);
            for _ in 0..2 {
                assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
                assert_eq!(client.counters().idle.get(), 0, "{:?}", text(answer));
            }
            assert_eq!(server.accepted(), 2);
            nothing_left(&client, &server).await;
        }
    });
}

#[test]
fn what_a_server_says_or_closes_while_idle_ends_the_connection() {
    on_both(|| async {
        for extra in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"] {
            let (done, is_done) = mpsc::channel();
            let done = Mutex::new(done);
            let go = Arc::new(AtomicBool::new(false));
            let gate = go.clone();
            let server = Server::start(move |conn| {
                while conn.request().is_some() {
                    conn.send(&json(&conn.number.to_string()));
                    if conn.number == 0 {
                        while !gate.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                        if extra.is_empty() {
                            conn.stream.shutdown(Shutdown::Write).unwrap();
                        }
                        conn.send(extra);
                        done.lock().unwrap().send(()).unwrap();
                        conn.wait_for_end();
                    }
                }
            });
            let client = client(&server);
            assert_eq!(exchange(&client, post(b"{}")).await.1.messages(), ["0"]);
            go.store(true, Ordering::SeqCst);
            until("said", || is_done.try_recv().is_ok()).await;
            let (end, ear) = exchange(&client, post(b"{}")).await;
            assert_eq!((end, ear.messages()), (End::Done, vec!["1"]));
            let counters = client.counters();
            assert_eq!((counters.reused.get(), counters.retries.get()), (0, 0));
            nothing_left(&client, &server).await;
        }
    });
}

/// A server that answers the first request of a connection, and ends the first connection when
/// the second one has come.
fn ends_at_the_second_request(
    seen: Arc<AtomicUsize>,
    connections: usize,
    answer: &'static [u8],
) -> Server {
    Server::start(move |conn| {
        let first = conn.number;
        let mut served = 0;
        while conn.request().is_some() {
            seen.fetch_add(1, Ordering::SeqCst);
            served += 1;
            if first < connections && (served > 1 || first > 0) {
                conn.send(answer);
                return;
            }
            conn.send(&json("{}"));
        }
    })
}

#[test]
fn a_stale_connection_is_replaced_once_and_only_where_nothing_can_run_twice() {
    on_both(|| async {
        // May be repeated: it arrives twice, and is answered.
        let seen = Arc::new(AtomicUsize::new(0));
        let server = ends_at_the_second_request(seen.clone(), 1, b"");
        let client = client(&server);
        let repeatable = Request {
            may_repeat: true,
            ..post(b"{}")
        };
        assert_eq!(exchange(&client, repeatable.clone()).await.0, End::Done);
        assert_eq!(exchange(&client, repeatable.clone()).await.0, End::Done);
        assert_eq!(
            (seen.load(Ordering::SeqCst), client.counters().retries.get()),
            (3, 1)
        );
        nothing_left(&client, &server).await;

        // May not: it arrived, so it is not sent again.
        let seen = Arc::new(AtomicUsize::new(0));
        let server = ends_at_the_second_request(seen.clone(), 1, b"");
        let client = self::client(&server);
        assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
        assert_eq!(
            exchange(&client, post(b"{}")).await.0,
            End::Broken(Fault::Closed)
        );
        assert_eq!(
            (seen.load(Ordering::SeqCst), client.counters().retries.get()),
            (2, 0)
        );
        nothing_left(&client, &server).await;

        // Once only.
        let seen = Arc::new(AtomicUsize::new(0));
        let server = ends_at_the_second_request(seen.clone(), 3, b"");
        let client = self::client(&server);
        assert_eq!(exchange(&client, repeatable.clone()).await.0, End::Done);
        assert_eq!(
            exchange(&client, repeatable.clone()).await.0,
            End::Broken(Fault::Closed)
        );
        assert_eq!(
            (seen.load(Ordering::SeqCst), client.counters().retries.get()),
            (3, 1)
        );
        nothing_left(&client, &server).await;

        // A fresh connection is never replaced.
        let seen = Arc::new(AtomicUsize::new(0));
        let log = seen.clone();
        let server = Server::start(move |conn| {
            conn.request();
            log.fetch_add(1, Ordering::SeqCst);
        });
        let client = self::client(&server);
        assert_eq!(
            exchange(&client, repeatable.clone()).await.0,
            End::Broken(Fault::Closed)
        );
        assert_eq!(seen.load(Ordering::SeqCst), 1);

        // A part of an answer is an answer.
        let seen = Arc::new(AtomicUsize::new(0));
        let server = ends_at_the_second_request(seen.clone(), 1, b"HTTP/1.1 20");
        let client = self::client(&server);
        assert_eq!(exchange(&client, repeatable.clone()).await.0, End::Done);
        assert_eq!(
            exchange(&client, repeatable).await.0,
            End::Broken(Fault::Closed)
        );
        assert_eq!(
            (seen.load(Ordering::SeqCst), client.counters().retries.get()),
            (2, 0)
        );
    });
}

#[test]
fn a_request_that_was_not_written_whole_is_sent_again() {
    on_both(|| async {
        // Once by a reset, once by an end of the server's half that is never followed by a read.
        for is_reset in [true, false] {
            let (over, is_over) = mpsc::channel::<()>();
            let is_over = Mutex::new(is_over);
            let server = Server::start(move |conn| {
                conn.request();
                conn.send(&json("{}"));
                if conn.number > 0 {
                    conn.wait_for_end();
                    return;
                }
                let mut some = [0; 100];
                conn.stream.read_exact(&mut some).unwrap();
                if !is_reset {
                    conn.stream.shutdown(Shutdown::Write).unwrap();
                    let _ = is_over.lock().unwrap().recv();
                }
            });
            let client = client(&server);
            assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
            let body = vec![b' '; 64 << 20];
            assert_eq!(
                exchange(&client, post(&body)).await.0,
                End::Done,
                "reset: {is_reset}"
            );
            assert_eq!(client.counters().retries.get(), 1);
            drop(over);
            nothing_left(&client, &server).await;
        }
    });
}

#[test]
fn idle_connections_are_closed_after_their_time() {
    on_both(|| async {
        let server = Server::always(&json("{}"));
        let client = client_with(&server, |settings| settings.idle_ms = 100);
        assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
        let counters = client.counters().clone();
        until("closed", || counters.connections.get() == 0).await;
        assert_eq!(counters.idle.get(), 0);
        until("no ticker", || !client.is_ticking()).await;
        // And it begins again.
        assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
        until("closed", || counters.connections.get() == 0).await;
        nothing_left(&client, &server).await;
    });
}

#[test]
fn further_exchanges_wait_in_turn() {
    on_both(|| async {
        let (allow, allowed) = mpsc::channel::<()>();
        let allowed = Mutex::new(allowed);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let server = Server::start(move |conn| {
            while let Some((_, body)) = conn.request() {
                log.lock().unwrap().push(text(&body));
                let _ = allowed.lock().unwrap().recv();
                conn.send(&json("{}"));
            }
        });
        let client = client_with(&server, |settings| settings.connections_max = 1);
        let done = Rc::new(RefCell::new(Vec::new()));
        let aborts: Vec<_> = (0..6).map(|_| Abort::new()).collect();
        for (n, abort) in aborts.iter().cloned().enumerate() {
            let (client, done) = (client.clone(), done.clone());
            monoio::spawn(async move {
                let request = post(n.to_string().as_bytes());
                let end = client.exchange(request, &abort, &mut Ear::default()).await;
                done.borrow_mut().push((n, end));
            });
        }
        until("waiting", || client.counters().waiting.get() == 5).await;
        aborts[2].set();
        until("aborted", || client.counters().waiting.get() == 4).await;
        // One whose future is dropped.
        {
            let abort = Abort::new();
            let mut ear = Ear::default();
            let mut dropped = pin!(client.exchange(post(b"x"), &abort, &mut ear));
            poll_fn(|cx| {
                assert!(dropped.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            assert_eq!(client.counters().waiting.get(), 5);
        }
        assert_eq!(client.counters().waiting.get(), 4);
        for _ in 0..5 {
            allow.send(()).unwrap();
        }
        until("done", || done.borrow().len() == 6).await;
        assert_eq!(*seen.lock().unwrap(), ["0", "1", "3", "4", "5"]);
        assert_eq!(done.borrow()[0], (2, End::Aborted));
        assert_eq!(server.accepted(), 1);
        nothing_left(&client, &server).await;
    });
}

#[test]
fn no_more_is_kept_than_may_be_open() {
    on_both(|| async {
        let server = Server::start(|conn| {
            while let Some((head, _)) = conn.request() {
                if head.starts_with("GET") {
                    std::thread::sleep(Duration::from_millis(50));
                }
                conn.send(&json("{}"));
            }
        });
        let client = client_with(&server, |settings| settings.connections_max = 1);
        let other = client.clone();
        monoio::spawn(async move { exchange(&other, get()).await });
        give_way().await;
        assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
        until("both", || ended(&client, EndKind::Done) == 2).await;
        assert_eq!((server.accepted(), client.counters().idle.get()), (2, 1));
        nothing_left(&client, &server).await;
    });
}

#[test]
fn streams_have_places_of_their_own() {
    on_both(|| async {
        let server = Server::start(|conn| {
            while let Some((head, _)) = conn.request() {
                if head.starts_with("GET") {
                    conn.send(EVENTS);
                    conn.send(&chunk(b"data: {}\n\n"));
                    conn.wait_for_end();
                } else {
                    conn.send(&json("{}"));
                }
            }
        });
        let client = client_with(&server, |settings| settings.connections_max = 1);
        let abort = Abort::new();
        let count = Rc::new(Cell::new(0));
        for _ in 0..2 {
            let (client, abort, count) = (client.clone(), abort.clone(), count.clone());
            monoio::spawn(async move {
                let mut ear = Ear {
                    count,
                    ..Ear::default()
                };
                client.exchange(get(), &abort, &mut ear).await;
            });
        }
        until("the first stream", || count.get() == 1).await;
        for _ in 0..3 {
            assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
        }
        assert_eq!((client.counters().waiting.get(), count.get()), (1, 1));
        abort.set();
        until("aborted", || ended(&client, EndKind::Aborted) == 2).await;
        nothing_left(&client, &server).await;
    });
}

// Faults.

#[test]
fn every_fault_is_told() {
    on_both(|| async {
        for (answer, fault) in [
            (&b""[..], Fault::Closed),
            (b"HTTP/1.1 200 OK\r\ncontent-le", Fault::Closed),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}", Fault::Cut),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", Fault::Cut),
            (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99\r\n\r\ndata: {}\n\n", Fault::Cut),
            (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n2\r\nda", Fault::Cut),
            (b"SSH-2.0-x\r\n", Fault::Malformed),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", Fault::Malformed),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", Fault::Malformed),
            (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\nx", Fault::Malformed),
            (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>", Fault::Malformed),
            (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}", Fault::Malformed),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n", Fault::TooLarge),
            (b"HTTP/1.1 202 Accepted\r\ncontent-length: 10737418240\r\n\r\n", Fault::TooLarge),
        ] {
            let server = Server::once(answer);
            let client = client_with(&server, |settings| settings.message_bytes_max = 1_000);
            let (end, ear) = exchange(&client, post(b"{}")).await;
            assert_eq!(end, End::Broken(fault), "{:?}", text(answer));
            let is_head_whole = memchr::memmem::find(answer, b"\r\n\r\n").is_some();
            assert!(is_head_whole || ear.heard.is_empty());
            assert_eq!(client.counters().faults()[fault as usize], 1);
            assert_eq!(ended(&client, EndKind::Broken), 1);
            assert_eq!(client.counters().idle.get(), 0);
            nothing_left(&client, &server).await;
        }
        // Up to the limit it is taken.
        let server = Server::once(&with_length(
            "200 OK",
            format!("[{}]", "1".repeat(998)).as_bytes(),
        ));
        let client = client_with(&server, |settings| settings.message_bytes_max = 1_000);
        assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);

        let none = client_of(upstream_of(Vec::new(), settings()));
        assert_eq!(
            exchange(&none, post(b"{}")).await.0,
            End::Broken(Fault::Resolve)
        );
        let closed = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let nobody = client_of(upstream_of(vec![closed], settings()));
        assert_eq!(
            exchange(&nobody, post(b"{}")).await.0,
            End::Broken(Fault::Connect)
        );
        for client in [none, nobody] {
            let counters = client.counters();
            assert_eq!(
                (counters.connect_failures.get(), counters.connections.get()),
                (1, 0)
            );
            assert_eq!((client.exchanges(), client.calls.free()), (0, 8));
        }
        for fault in Fault::ALL {
            assert!(!fault.to_string().is_empty() && !fault.label().is_empty());
            assert_eq!(Fault::ALL[fault as usize], fault);
        }
        for kind in EndKind::ALL {
            assert_eq!(EndKind::ALL[kind as usize], kind);
            assert!(!kind.label().is_empty());
        }
    });
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    on_both(|| async {
        let silent = Server::start(Conn::wait_for_end);
        let dribbles = Server::start(|conn| {
            conn.request();
            while conn.send(b"HTTP/1.1 100 Continue\r\n\r\n".get(..1).unwrap()) {
                std::thread::sleep(Duration::from_millis(10));
                for byte in b"TTP/1.1 200 OK\r\nx: ".iter().chain([b'y'; 60_000].iter()) {
                    if !conn.send(&[*byte]) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        for server in [&silent, &dribbles] {
            let client = client(server);
            let request = Request {
                first_byte_ms: 150,
                ..post(b"{}")
            };
            assert_eq!(
                exchange(&client, request).await.0,
                End::Broken(Fault::FirstByteTimeout)
            );
            nothing_left(&client, server).await;
        }
        // Nor does it take the request.
        let deaf = Server::start(|conn| {
            while !is_gone(&conn.stream) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let client = client(&deaf);
        let request = Request {
            first_byte_ms: 150,
            ..post(&vec![b' '; 64 << 20])
        };
        assert_eq!(
            exchange(&client, request).await.0,
            End::Broken(Fault::FirstByteTimeout)
        );
        nothing_left(&client, &deaf).await;
        // Without a time it waits, and an abort ends it.
        let client = self::client(&silent);
        let abort = Abort::new();
        let request = Request {
            first_byte_ms: 0,
            ..post(b"{}")
        };
        let mut ear = Ear::default();
        let mut waiting = pin!(client.exchange(request, &abort, &mut ear));
        let waited = monoio::time::timeout(Duration::from_millis(300), waiting.as_mut()).await;
        assert!(waited.is_err());
        assert!(!client.is_ticking(), "a ticker without a deadline");
        abort.set();
        assert_eq!(waiting.await, End::Aborted);
        nothing_left(&client, &silent).await;
    });
}

/// The client has closed its half, or all of the connection.
fn is_gone(stream: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let none = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&none)).unwrap() > 0
}

#[test]
fn silence_in_the_middle_is_given_up() {
    on_both(|| async {
        for begin in [
            &b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"[..],
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
            EVENTS,
        ] {
            let server = Server::start(move |conn| {
                conn.request();
                conn.send(begin);
                conn.wait_for_end();
            });
            let client = client(&server);
            let request = Request { silence_ms: 150, ..post(b"{}") };
            assert_eq!(exchange(&client, request).await.0, End::Broken(Fault::Silence));
            nothing_left(&client, &server).await;
        }
        // Comments are no silence on a stream; of anything else all has to be there in time.
        for (request, end) in [
            (get(), End::Done),
            (post(b"{}"), End::Broken(Fault::Silence)),
        ] {
            let server = Server::start(|conn| {
                conn.request();
                conn.send(EVENTS);
                for _ in 0..100 {
                    conn.send(&chunk(b":\n"));
                    std::thread::sleep(Duration::from_millis(20));
                }
                conn.send(b"0\r\n\r\n");
            });
            let client = client(&server);
            let request = Request {
                silence_ms: 1_500,
                ..request
            };
            assert_eq!(exchange(&client, request).await.0, end);
        }
    });
}

/// A listener whose queue of connections is full: further ones are not answered.
fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        held.push(stream);
        assert!(held.len() < 100);
    }
    (listener, held)
}

#[test]
fn a_connect_takes_no_longer_than_its_time() {
    let (full, _held) = full_listener();
    let full = full.local_addr().unwrap();
    on_both(|| async {
        let short = Settings {
            connect_timeout_ms: 200,
            ..settings()
        };
        let client = client_of(upstream_of(vec![full], short.clone()));
        assert_eq!(
            exchange(&client, post(b"{}")).await.0,
            End::Broken(Fault::ConnectTimeout)
        );
        assert_eq!(client.counters().connect_failures.get(), 1);
        let client = client_of(upstream_of(vec![full; 3], short));
        assert_eq!(
            exchange(&client, post(b"{}")).await.0,
            End::Broken(Fault::ConnectTimeout)
        );
        // Aborted meanwhile.
        let client = client_of(upstream_of(vec![full], settings()));
        let abort = Abort::new();
        let mut ear = Ear::default();
        let mut waiting = pin!(client.exchange(post(b"{}"), &abort, &mut ear));
        assert!(
            monoio::time::timeout(Duration::from_millis(100), waiting.as_mut())
                .await
                .is_err()
        );
        abort.set();
        assert_eq!(waiting.await, End::Aborted);
        assert_eq!((client.exchanges(), client.calls.free()), (0, 8));
        assert_eq!(client.counters().connections.get(), 0);
    });
}

#[test]
fn all_addresses_are_tried_and_what_worked_comes_first() {
    let (full, _held) = full_listener();
    let full = full.local_addr().unwrap();
    on_both(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dead = listener.local_addr().unwrap();
        drop(listener);
        let server = Server::once(&with_length("200 OK\r\nconnection: close", b"[1]"));
        let short = Settings {
            connect_timeout_ms: 600,
            ..settings()
        };
        let client = client_of(upstream_of(vec![dead, full, server.address], short));
        for n in 1..=3 {
            assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
            assert_eq!(server.accepted(), n);
        }
        let counters = client.counters();
        assert_eq!(
            (counters.connects.get(), counters.connect_failures.get()),
            (3, 0)
        );
        // The first one lives again, but is not the one that worked last.
        let revived = Server::on(TcpListener::bind(dead).unwrap(), |_| {});
        assert_eq!(exchange(&client, post(b"{}")).await.1.messages(), ["[1]"]);
        assert_eq!((server.accepted(), revived.accepted()), (4, 0));
    });
}

#[test]
fn the_first_look_up_is_waited_for() {
    on_both(|| async {
        let server = Server::always(&json("{}"));
        let (answers, next) = mpsc::channel::<Vec<SocketAddr>>();
        let resolver = Resolver::with(GUARD, Duration::ZERO, move || {
            next.recv().map_err(|_| std::io::ErrorKind::NotFound.into())
        });
        let waits = client_of(Upstream {
            resolver: resolver.unwrap(),
            ..upstream_of(
                Vec::new(),
                Settings {
                    connect_timeout_ms: 300,
                    ..settings()
                },
            )
        });
        // It does not come in time.
        assert_eq!(
            exchange(&waits, post(b"{}")).await.0,
            End::Broken(Fault::Resolve)
        );
        // It finds nothing; and whoever comes then asks for the next one, which does.
        for (addresses, end) in [
            (Vec::new(), End::Broken(Fault::Resolve)),
            (vec![server.address], End::Done),
        ] {
            let abort = Abort::new();
            let mut ear = Ear::default();
            let mut waiting = pin!(waits.exchange(post(b"{}"), &abort, &mut ear));
            poll_fn(|cx| {
                assert!(waiting.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            answers.send(addresses).unwrap();
            assert_eq!(waiting.await, end);
        }
        nothing_left(&waits, &server).await;
    });
}

#[test]
fn what_has_no_end_is_cut_off() {
    on_both(|| async {
        for is_event in [false, true] {
            let sent = Arc::new(AtomicUsize::new(0));
            let count = sent.clone();
            let server = Server::start(move |conn| {
                conn.request();
                match is_event {
                    true => conn.send(EVENTS) && conn.send(&chunk(b"data: ")),
                    false => conn.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"),
                };
                let piece = chunk(&[b'x'; 1 << 20]);
                for _ in 0..10_240 {
                    if !conn.send(&piece) {
                        return;
                    }
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
            let client = client_with(&server, |settings| settings.message_bytes_max = 100_000);
            assert_eq!(
                exchange(&client, post(b"{}")).await.0,
                End::Broken(Fault::TooLarge)
            );
            nothing_left(&client, &server).await;
            let megabytes = sent.load(Ordering::SeqCst);
            assert!(megabytes < 100, "{megabytes} MiB of 10 GiB were sent");
        }
    });
}

#[test]
fn what_comes_behind_the_last_message_is_not_waited_for_long() {
    on_both(|| async {
        // The end comes soon: the connection is used again.
        let server = Server::start(|conn| {
            while conn.request().is_some() {
                conn.send(EVENTS);
                conn.send(&chunk(b"data: {}\n\n"));
                std::thread::sleep(Duration::from_millis(20));
                conn.send(b"0\r\n\r\n");
            }
        });
        let client = client(&server);
        for _ in 0..3 {
            let mut ear = Ear {
                enough: Some(1),
                ..Ear::default()
            };
            let end = client.exchange(post(b"{}"), &Abort::new(), &mut ear).await;
            assert_eq!((end, ear.messages()), (End::Done, vec!["{}"]));
        }
        assert_eq!(server.accepted(), 1);
        nothing_left(&client, &server).await;
        // It does not come, whether the server is silent or not.
        for is_silent in [true, false] {
            let server = Server::start(move |conn| {
                conn.request();
                conn.send(EVENTS);
                conn.send(&chunk(b"data: {}\n\n"));
                if is_silent {
                    conn.wait_for_end();
                }
                while conn.send(&chunk(b":\n")) {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let client = self::client(&server);
            let mut ear = Ear {
                enough: Some(1),
                ..Ear::default()
            };
            let end = client.exchange(post(b"{}"), &Abort::new(), &mut ear).await;
            assert_eq!((end, ear.messages()), (End::Aborted, vec!["{}"]));
            nothing_left(&client, &server).await;
        }
    });
}

// Backpressure and fairness.

#[test]
fn a_listener_without_room_is_waited_for() {
    on_both(|| async {
        let server = Server::start(|conn| {
            conn.request();
            conn.send(EVENTS);
            // More than all socket buffers take.
            let event = format!("data: {}\n\n", "x".repeat(10_000));
            for _ in 0..6_000 {
                conn.send(&chunk(event.as_bytes()));
            }
            conn.send(b"0\r\n\r\n");
            conn.wait_for_end();
        });
        let client = client(&server);
        let is_full = Rc::new(Cell::new(false));
        let count = Rc::new(Cell::new(0));
        let bytes = Rc::new(Cell::new(0));
        let mut ear = Ear {
            bytes: bytes.clone(),
            is_full: is_full.clone(),
            count: count.clone(),
            fills: true,
            ..Ear::counting()
        };
        let abort = Abort::new();
        let request = Request {
            first_byte_ms: 1_000,
            silence_ms: 1_000,
            ..post(b"{}")
        };
        let mut running = pin!(client.exchange(request, &abort, &mut ear));
        // Longer than either time allows: the silence is ours.
        let waited = monoio::time::timeout(Duration::from_millis(1_600), running.as_mut()).await;
        assert!(waited.is_err());
        let heard = count.get();
        assert!(
            (1..10).contains(&heard),
            "{heard} messages were said without room"
        );
        let received = client.counters().received_bytes.get();
        assert!(
            received < 1 << 20,
            "{received} bytes were read without room"
        );
        is_full.set(false);
        assert_eq!(running.await, End::Done);
        assert_eq!(count.get(), 6_000);
        assert_eq!(bytes.get(), 60_000_000);
        nothing_left(&client, &server).await;
    });
}

#[test]
fn a_burst_lets_others_run() {
    on_both(|| async {
        let burst: Vec<u8> = chunk(&b"data:1\n\n".repeat(100_000));
        let server = Server::start(move |conn| {
            conn.request();
            conn.send(EVENTS);
            conn.send(&burst);
            conn.send(b"0\r\n\r\n");
        });
        let client = client(&server);
        let count = Rc::new(Cell::new(0));
        let most = Rc::new(Cell::new(0));
        let (seen, widest) = (count.clone(), most.clone());
        monoio::spawn(async move {
            let mut last = 0;
            while last < 100_000 {
                give_way().await;
                let now = seen.get();
                widest.set(widest.get().max(now - last));
                last = now;
            }
        });
        let mut ear = Ear {
            count: count.clone(),
            ..Ear::counting()
        };
        assert_eq!(
            client.exchange(post(b"{}"), &Abort::new(), &mut ear).await,
            End::Done
        );
        assert_eq!(count.get(), 100_000);
        until("seen", || most.get() > 0).await;
        assert!(most.get() <= 2_000, "{} messages in one turn", most.get());
    });
}

#[test]
fn a_server_that_answers_before_it_has_read_all_is_heard() {
    on_both(|| async {
        for is_closing in [false, true] {
            let server = Server::start(move |conn| {
                let mut some = [0; 100];
                conn.stream.read_exact(&mut some).unwrap();
                conn.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\n{}");
                if is_closing {
                    // The client may have had enough already.
                    let _ = conn.stream.shutdown(Shutdown::Write);
                }
                while !is_gone(&conn.stream) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let client = client(&server);
            let end = exchange(&client, post(&vec![b' '; 64 << 20])).await.0;
            assert_eq!(
                end,
                End::Refused {
                    status: 413,
                    body: b"{}".to_vec()
                }
            );
            assert_eq!(client.counters().idle.get(), 0);
            nothing_left(&client, &server).await;
        }
    });
}

// Aborts and drops.

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A server whose answers take several steps, some of which end in the middle of something.
fn stepwise() -> Server {
    Server::start(|conn| {
        let mut random = Random(conn.number as u64 * 7_919 + 1);
        while conn.request().is_some() {
            let mut answer = match random.below(3) {
                0 => json("{\"a\":[1,2,3]}"),
                1 => with_length("500 Oops", b"no"),
                _ => [
                    EVENTS,
                    &chunk(b"data: {}\n\ndata: 1"),
                    &chunk(b"2\n\n"),
                    b"0\r\n\r\n",
                ]
                .concat(),
            };
            while !answer.is_empty() {
                let length = 1 + random.below(answer.len() as u64) as usize;
                let rest = answer.split_off(length);
                if !conn.send(&answer) {
                    return;
                }
                answer = rest;
                if random.below(2) == 0 {
                    std::thread::sleep(Duration::from_micros(random.below(300)));
                }
            }
            if random.below(8) == 0 {
                return;
            }
        }
    })
}

fn any_request(random: &mut Random) -> Request {
    let body = match random.below(10) {
        0 => vec![b' '; 200_000],
        _ => b"{}".to_vec(),
    };
    Request {
        method: if random.below(4) == 0 {
            Verb::Get
        } else {
            Verb::Post
        },
        may_repeat: random.below(2) == 0,
        ..post(&body)
    }
}

#[test]
fn an_abort_at_any_point_ends_it_at_once() {
    on_both(|| async {
        let server = stepwise();
        let client = client_with(&server, |settings| settings.connections_max = 3);
        let aborted = Rc::new(Cell::new(0));
        let left = Rc::new(Cell::new(400));
        for task in 0..8 {
            let (client, aborted, left) = (client.clone(), aborted.clone(), left.clone());
            monoio::spawn(async move {
                let mut random = Random(task + 1);
                while left.get() > 0 {
                    left.set(left.get() - 1);
                    let abort = Abort::new();
                    let setter = abort.clone();
                    let mut ear = Ear::default();
                    if random.below(4) == 0 {
                        // From within.
                        ear.aborts = Some((1, abort.clone()));
                    } else {
                        let pause = Duration::from_micros(random.below(1_500));
                        monoio::spawn(async move {
                            if !pause.is_zero() {
                                monoio::time::sleep(pause).await;
                            }
                            setter.set();
                        });
                    }
                    let end = client
                        .exchange(any_request(&mut random), &abort, &mut ear)
                        .await;
                    if end == End::Aborted {
                        assert!(abort.is_set());
                        aborted.set(aborted.get() + 1);
                    }
                    if ear.aborts.is_some() {
                        assert!(ear.count.get() <= 1, "heard after the abort");
                    }
                }
            });
        }
        until("done", || left.get() == 0 && client.exchanges() == 0).await;
        assert!(aborted.get() > 50, "{} aborted", aborted.get());
        assert_eq!(ended(&client, EndKind::Aborted), aborted.get());
        nothing_left(&client, &server).await;
    });
}

#[test]
fn an_abort_is_told_to_all_who_wait_and_forgets_who_left() {
    on_both(|| async {
        let abort = Abort::new();
        let woken = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (abort, woken) = (abort.clone(), woken.clone());
            monoio::spawn(async move {
                abort.wait().await;
                woken.set(woken.get() + 1);
            });
        }
        let left = monoio::time::timeout(Duration::from_millis(1), abort.wait()).await;
        assert!(left.is_err() && !abort.is_set());
        assert_eq!(woken.get(), 0);
        abort.clone().set();
        abort.wait().await;
        until("woken", || woken.get() == 3).await;
        // One that is set already begins nothing.
        let server = Server::always(&json("{}"));
        let client = client(&server);
        let end = client
            .exchange(post(b"{}"), &abort, &mut Ear::default())
            .await;
        assert_eq!((end, server.accepted()), (End::Aborted, 0));
    });
}

#[test]
fn dropped_at_random_points_nothing_is_left() {
    on_both(|| async {
        let server = stepwise();
        let client = client_with(&server, |settings| settings.connections_max = 3);
        let left = Rc::new(Cell::new(2_000));
        let dropped = Rc::new(Cell::new(0));
        for task in 0..10 {
            let (client, left, dropped) = (client.clone(), left.clone(), dropped.clone());
            monoio::spawn(async move {
                let mut random = Random(task + 1);
                while left.get() > 0 {
                    left.set(left.get() - 1);
                    let abort = Abort::new();
                    let mut ear = Ear::default();
                    let mut polls = random.below(14);
                    let mut running =
                        Box::pin(client.exchange(any_request(&mut random), &abort, &mut ear));
                    let end = poll_fn(|cx| {
                        if polls == 0 {
                            return Poll::Ready(None);
                        }
                        polls -= 1;
                        match running.as_mut().poll(cx) {
                            Poll::Ready(end) => Poll::Ready(Some(end)),
                            Poll::Pending if polls == 0 => Poll::Ready(None),
                            Poll::Pending => Poll::Pending,
                        }
                    })
                    .await;
                    drop(running);
                    dropped.set(dropped.get() + usize::from(end.is_none()));
                    // On epoll nothing else may wait here.
                    give_way().await;
                }
            });
        }
        until("done", || left.get() == 0 && client.exchanges() == 0).await;
        assert!(dropped.get() > 500, "{} dropped", dropped.get());
        nothing_left(&client, &server).await;
        // And it works as before.
        for _ in 0..20 {
            exchange(&client, post(b"{}")).await;
        }
        assert!(ended(&client, EndKind::Done) > 0);
        nothing_left(&client, &server).await;
    });
}

#[test]
fn a_client_may_go_while_its_ticker_runs() {
    on_both(|| async {
        let server = Server::always(&json("{}"));
        let client = client(&server);
        assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
        assert!(client.is_ticking());
        let counters = client.counters().clone();
        drop(client);
        assert_eq!((counters.connections.get(), counters.idle.get()), (0, 0));
        monoio::time::sleep(Duration::from_millis(120)).await;
        until("closed", || server.open.load(Ordering::SeqCst) == 0).await;
    });
}

#[test]
fn nothing_secret_is_in_debug_texts() {
    let request = Request {
        session: Some(b"secret".as_slice().into()),
        fields: b"authorization: secret\r\n".as_slice().into(),
        last_event_id: Some(b"secret".as_slice().into()),
        ..post(b"secret")
    };
    let upstream = Upstream {
        address: Address::parse("http://h/mcp?secret").unwrap(),
        ..upstream_of(Vec::new(), settings())
    };
    let shown = format!("{request:?} {upstream:?}");
    assert!(
        !shown.contains("secret") && !shown.contains("115, 101, 99"),
        "{shown}"
    );
}

// TLS.

mod tls {
    use std::io;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ServerConfig, ServerConnection, SupportedProtocolVersion};

    use super::*;

    struct Ca {
        issuer: CertifiedIssuer<'static, KeyPair>,
        file: tempfile::Path,
    }

    /// Files of a test, which end with it.
    mod tempfile {
        use std::path::PathBuf;
        use std::sync::atomic::{AtomicUsize, Ordering};

        pub(super) struct Path(pub(super) PathBuf);

        impl Path {
            pub(super) fn with(text: &str) -> Path {
                static NEXT: AtomicUsize = AtomicUsize::new(0);
                let next = NEXT.fetch_add(1, Ordering::SeqCst);
                let name = format!("ringway-test-{}-{next}.pem", std::process::id());
                let path = std::env::temp_dir().join(name);
                std::fs::write(&path, text).unwrap();
                Path(path)
            }
        }

        impl Drop for Path {
            fn drop(&mut self) {
                let _ = std::fs::remove_file(&self.0);
            }
        }
    }

    impl Ca {
        fn new() -> Ca {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let issuer =
                CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            let file = tempfile::Path::with(&issuer.pem());
            Ca { issuer, file }
        }

        fn server_config(
            &self,
            name: &str,
            versions: &[&'static SupportedProtocolVersion],
        ) -> Arc<ServerConfig> {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &self.issuer).unwrap();
            let key = PrivatePkcs8KeyDer::from(key.serialize_der());
            let mut config = ServerConfig::builder_with_provider(Arc::new(
                rustls::crypto::ring::default_provider(),
            ))
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .unwrap();
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            Arc::new(config)
        }

        fn client(&self, server: &Server, host: &str) -> Rc<Client> {
            client_of(Upstream {
                address: Address::parse(&format!("https://{host}/mcp")).unwrap(),
                tls: Some(TlsSettings::new(host, Some(&self.file.0)).unwrap()),
                ..upstream_of(
                    vec![server.address],
                    Settings {
                        message_bytes_max: 16 << 20,
                        ..settings()
                    },
                )
            })
        }
    }

    /// A connection of a server that speaks TLS.
    type Sealed<'a> = rustls::Stream<'a, ServerConnection, TcpStream>;

    fn start(
        config: Arc<ServerConfig>,
        script: impl Fn(&mut Sealed<'_>) + Send + Sync + 'static,
    ) -> Server {
        Server::start(move |conn| {
            let mut tls = ServerConnection::new(config.clone()).unwrap();
            let mut sealed = rustls::Stream::new(&mut tls, &mut conn.stream);
            script(&mut sealed);
        })
    }

    fn request(sealed: &mut Sealed<'_>) -> Option<(String, Vec<u8>)> {
        read_request(sealed, &mut Vec::new())
    }

    fn finish(sealed: &mut Sealed<'_>) {
        sealed.conn.send_close_notify();
        let _ = sealed.flush();
        let _: io::Result<()> = sealed.conn.complete_io(sealed.sock).map(drop);
    }

    const VERSIONS: [&[&SupportedProtocolVersion]; 2] =
        [&[&rustls::version::TLS12], &[&rustls::version::TLS13]];

    #[test]
    fn exchanges_go_through_tls_and_connections_are_used_again() {
        for versions in VERSIONS {
            let ca = Ca::new();
            let config = ca.server_config("server.test", versions);
            on_both(|| async {
                let server = start(config.clone(), |sealed| {
                    while let Some((head, body)) = request(sealed) {
                        assert!(head.contains("host: server.test\r\n"), "{head}");
                        let answer = match head.starts_with("GET") {
                            true => [EVENTS, &chunk(b"data: {}\n\n"), b"0\r\n\r\n"].concat(),
                            false => json(&format!("\"{}\"", "x".repeat(body.len()))),
                        };
                        if sealed.write_all(&answer).is_err() {
                            return;
                        }
                    }
                });
                let client = ca.client(&server, "server.test");
                for length in [0, 10, 65_536, 65_537, 3_000_000] {
                    let (end, ear) = exchange(&client, post(&vec![b' '; length])).await;
                    assert_eq!(end, End::Done);
                    assert_eq!(ear.messages()[0].len(), length + 2);
                    let (end, ear) = exchange(&client, get()).await;
                    assert_eq!((end, ear.messages()), (End::Done, vec!["{}"]));
                }
                assert_eq!(
                    (server.accepted(), client.counters().connects.get()),
                    (1, 1)
                );
                nothing_left(&client, &server).await;
            });
        }
    }

    #[test]
    fn an_unknown_ca_a_wrong_name_and_no_tls_are_refused() {
        on_both(|| async {
            let (ca, other) = (Ca::new(), Ca::new());
            let config = ca.server_config("server.test", VERSIONS[1]);
            let answers = |sealed: &mut Sealed<'_>| {
                request(sealed);
                let _ = sealed.write_all(&json("{}"));
            };
            let server = start(config, answers);
            for (client, end) in [
                (ca.client(&server, "server.test"), End::Done),
                (ca.client(&server, "SERVER.test."), End::Done),
                (ca.client(&server, "other.test"), End::Broken(Fault::Tls)),
                (ca.client(&server, "127.0.0.1"), End::Broken(Fault::Tls)),
                (
                    other.client(&server, "server.test"),
                    End::Broken(Fault::Tls),
                ),
            ] {
                assert_eq!(
                    exchange(&client, post(b"{}")).await.0,
                    end,
                    "{:?}",
                    client.upstream
                );
                nothing_left(&client, &server).await;
            }
            for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
                let plain = Server::start(move |conn| {
                    let mut some = [0; 100];
                    let _ = conn.stream.read(&mut some);
                    conn.send(answer);
                });
                let client = ca.client(&plain, "server.test");
                assert_eq!(
                    exchange(&client, post(b"{}")).await.0,
                    End::Broken(Fault::Tls)
                );
                nothing_left(&client, &plain).await;
            }
            // A handshake without an end.
            let silent = Server::start(Conn::wait_for_end);
            let mut upstream = upstream_of(
                vec![silent.address],
                Settings {
                    connect_timeout_ms: 150,
                    ..settings()
                },
            );
            upstream.tls = Some(TlsSettings::new("server.test", Some(&ca.file.0)).unwrap());
            let client = client_of(upstream);
            assert_eq!(
                exchange(&client, post(b"{}")).await.0,
                End::Broken(Fault::ConnectTimeout)
            );
            nothing_left(&client, &silent).await;
        });
    }

    #[test]
    fn a_body_that_ends_with_the_connection_needs_the_word_of_tls() {
        for versions in VERSIONS {
            let ca = Ca::new();
            let config = ca.server_config("server.test", versions);
            on_both(|| async {
                for is_said in [true, false] {
                    let server = start(config.clone(), move |sealed| {
                        request(sealed);
                        let _ = sealed.write_all(
                            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}",
                        );
                        if is_said {
                            finish(sealed);
                        }
                    });
                    let client = ca.client(&server, "server.test");
                    let end = exchange(&client, post(b"{}")).await.0;
                    let expected = if is_said {
                        End::Done
                    } else {
                        End::Broken(Fault::Cut)
                    };
                    assert_eq!(end, expected);
                    nothing_left(&client, &server).await;
                }
            });
        }
    }

    #[test]
    fn the_end_of_a_connection_is_said_to_the_server() {
        on_both(|| async {
            let ca = Ca::new();
            let (told, is_told) = mpsc::channel();
            let told = Mutex::new(told);
            let server = start(
                ca.server_config("server.test", VERSIONS[1]),
                move |sealed| {
                    request(sealed);
                    let _ = sealed.write_all(&json("{}"));
                    // 0: closed in order; otherwise an error.
                    let _ = told.lock().unwrap().send(sealed.read(&mut [0; 1]).ok());
                },
            );
            let client = ca.client(&server, "server.test");
            assert_eq!(exchange(&client, post(b"{}")).await.0, End::Done);
            client.close_idle();
            let mut told = None;
            until("told", || {
                told = is_told.try_recv().ok();
                told.is_some()
            })
            .await;
            assert_eq!(told, Some(Some(0)));
            nothing_left(&client, &server).await;
        });
    }

    #[test]
    fn files_of_roots_are_checked() {
        use super::super::tls::TlsError;
        let ca = Ca::new();
        assert!(TlsSettings::new("h", Some(&ca.file.0)).is_ok());
        let none = std::path::Path::new("/nonexistent/ca.pem");
        assert!(matches!(
            TlsSettings::new("h", Some(none)),
            Err(TlsError::File(..))
        ));
        let empty = tempfile::Path::with("nothing\n");
        assert!(matches!(
            TlsSettings::new("h", Some(&empty.0)),
            Err(TlsError::NoneInFile(_))
        ));
        let broken =
            tempfile::Path::with("-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n");
        assert!(matches!(
            TlsSettings::new("h", Some(&broken.0)),
            Err(TlsError::Form(_))
        ));
        let odd =
            tempfile::Path::with("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(matches!(
            TlsSettings::new("h", Some(&odd.0)),
            Err(TlsError::NoneInFile(_))
        ));
        // What its text is may be a secret.
        let secret = tempfile::Path::with("-----BEGIN topsecret\n");
        let told = TlsSettings::new("h", Some(&secret.0)).unwrap_err();
        assert!(matches!(told, TlsError::Form(_)), "{told}");
        assert!(!told.to_string().contains("116, 111"), "{told}");
        // These have no end, or none that is near.
        for endless in ["/dev/zero", "/proc/self"] {
            let told = TlsSettings::new("h", Some(endless.as_ref())).unwrap_err();
            assert!(matches!(told, TlsError::NotRegular(_)), "{told}");
        }
        let long = tempfile::Path::with("");
        let file = std::fs::OpenOptions::new().write(true).open(&long.0);
        file.unwrap().set_len(1 << 34).unwrap();
        assert!(matches!(
            TlsSettings::new("h", Some(&long.0)),
            Err(TlsError::TooLarge(_))
        ));
    }
}
