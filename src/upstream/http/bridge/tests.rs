//! The bridge between real pipes and a server on threads, on both drivers.

use std::future::poll_fn;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::runtime::driver::{DriverChoice, Loop, RingFlags};
use crate::upstream::http::{Address, HttpCounters, Settings as HttpSettings, Upstream};

const RESULT: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#;
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":268435456,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
const READY: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Bytes of the events that `flood` brings.
const FLOOD_BYTES: usize = 48 << 20;

/// The same for `burst`: more than a pipe holds, less than waits.
const BURST_BYTES: usize = 4 << 20;

/// A server whose methods say what they do.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    flooded: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            flooded: Arc::default(),
        };
        let (seen, flooded) = (server.seen.clone(), server.flooded.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, flooded) = (seen.clone(), flooded.clone());
                std::thread::spawn(move || {
                    let _ = serve_connection(stream, &seen, &flooded);
                });
            }
        });
        server
    }

    fn saw(&self, what: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|it| it.contains(what)).count()
    }
}

fn serve_connection(
    stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    flooded: &AtomicUsize,
) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    stream.set_nodelay(true)?;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8(body).unwrap();
        seen.lock().unwrap().push(format!("{head}{body}"));
        let message: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
        let id = &message["id"];
        let json = |text: String| {
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s-1\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )
        };
        let sse = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        let reply = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        match message["method"].as_str() {
            None if head.starts_with("GET") => stream.write_all(sse.as_bytes())?,
            None if head.starts_with("DELETE") => {
                stream.write_all(json(String::new()).as_bytes())?
            }
            Some("initialize") => stream.write_all(json(reply(RESULT)).as_bytes())?,
            Some("never") => {}
            Some("stream") => {
                let events = format!(
                    "data: {{\"jsonrpc\":\"2.0\",\"method\":\"x\"}}\n\ndata: {}\n\n",
                    reply("{}")
                );
                stream.write_all(sse.as_bytes())?;
                for piece in events.as_bytes().chunks(7) {
                    stream.write_all(piece)?;
                }
                return Ok(());
            }
            Some(name @ ("flood" | "burst")) => {
                let limit = match name {
                    "flood" => FLOOD_BYTES,
                    _ => BURST_BYTES,
                };
                stream.write_all(sse.as_bytes())?;
                let text = "f".repeat(10_000);
                let mut number = 0;
                while flooded.load(Ordering::SeqCst) < limit {
                    let event = format!(
                        "data: {{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{{\"number\":{number},\"text\":\"{text}\"}}}}\n\n"
                    );
                    stream.write_all(event.as_bytes())?;
                    flooded.fetch_add(event.len(), Ordering::SeqCst);
                    number += 1;
                }
                stream.write_all(format!("data: {}\n\n", reply("{}")).as_bytes())?;
                return Ok(());
            }
            Some("forgotten") => {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
            }
            Some(name) if name.starts_with("notifications/") => {
                stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")?;
            }
            _ => stream.write_all(json(reply("{}")).as_bytes())?,
        }
    }
}

fn client_of(server: &Server) -> Rc<Client> {
    let address = Address::parse(&format!("http://{}/mcp", server.address)).unwrap();
    let settings = HttpSettings {
        connections_max: 8,
        connect_timeout_ms: 10_000,
        idle_ms: 30_000,
        message_bytes_max: 1 << 20,
        partial_bytes_max: 64 << 20,
    };
    let upstream = Upstream::new(address, None, settings).unwrap();
    Client::new(Arc::new(upstream), Arc::<HttpCounters>::default())
}

fn settings() -> Settings {
    Settings {
        upstream_name: Rc::default(),
        connections_max: 8,
        added_fields: Rc::default(),
        start_timeout_ms: 30_000,
        request_timeout_ms: 300_000,
    }
}

fn call(number: u64, method: &str) -> String {
    let id = 1 | number << 8 | 1 << 28;
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#)
}

fn on_both_drivers(test: impl AsyncFn(Driver)) {
    for choice in [DriverChoice::Uring, DriverChoice::Epoll] {
        let Ok(mut event_loop) = Loop::new(choice, RingFlags::BEST) else {
            eprintln!("{choice:?} is not to be had here");
            continue;
        };
        let driver = event_loop.driver();
        event_loop.block_on(test(driver));
    }
}

fn write(pipes: &ServerPipes, lines: &[&str]) {
    for line in lines {
        rustix::io::write(&pipes.stdin, format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Whether the answer to `initialize` has come; it is read then.
fn is_open(pipes: &ServerPipes) -> bool {
    let mut fds = [PollFd::new(&pipes.stdout, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if poll(&mut fds, Some(&at_once)).unwrap() == 0 {
        return false;
    }
    let mut line = [0; 4096];
    let count = rustix::io::read(&pipes.stdout, &mut line).unwrap();
    // A short write to a pipe comes whole.
    assert!(line[..count].ends_with(b"}\n"));
    true
}

/// Makes the hub's half of the handshake, then writes these lines.
async fn open(pipes: &ServerPipes, lines: &[&str]) {
    write(pipes, &[INITIALIZE]);
    until("the handshake", || is_open(pipes)).await;
    write(pipes, &[READY]);
    write(pipes, lines);
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        monoio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// No exchange is left, and no connection but those that are kept.
async fn expect_nothing_left(client: &Rc<Client>) {
    until("no exchange is left", || client.exchanges() == 0).await;
    let counters = client.counters();
    until("no connection is in use", || {
        counters.connections.get() == counters.idle.get()
    })
    .await;
    assert_eq!(counters.waiting.get(), 0);
}

/// Reads lines on a thread of its own, as the loop is busy.
fn read_lines(stdout: OwnedFd) -> std::sync::mpsc::Receiver<String> {
    let (lines, read) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(std::fs::File::from(stdout)).lines() {
            if lines.send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    read
}

#[test]
fn session_is_opened_used_and_ended() {
    on_both_drivers(async |driver| {
        let server = Server::start();
        let client = client_of(&server);
        let (pipes, bridge_pipes) = pipes().unwrap();
        let stop = Abort::new();
        write(&pipes, &[INITIALIZE]);
        let read = read_lines(pipes.stdout.try_clone().unwrap());
        let talk = async {
            let mut lines = Vec::new();
            let mut count = || {
                lines.extend(read.try_recv());
                lines.len()
            };
            until("the handshake", || count() == 1).await;
            write(
                &pipes,
                &[
                    READY,
                    &call(1, "fast"),
                    &call(2, "stream"),
                    &call(3, "never"),
                ],
            );
            until("both answers", || count() == 4).await;
            until("the GET stream", || {
                server.saw("GET ") == 1 && server.saw("\"never\"") == 1
            })
            .await;
            let ServerPipes { stdin, stdout } = pipes;
            drop(stdin);
            (lines, stdout)
        };
        let serving = serve(&client, settings(), bridge_pipes, &stop, driver);
        let (ended, (mut lines, _stdout)) = both(serving, talk).await;
        let ended = ended.unwrap();
        assert_eq!(ended.how, "its stdin was closed");
        // The thread reads to the end, which is there only if the pipe was closed.
        until("the end of the lines", || match read.try_recv() {
            Ok(line) => {
                lines.push(line);
                false
            }
            Err(error) => error == std::sync::mpsc::TryRecvError::Disconnected,
        })
        .await;
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].contains("serverInfo"), "{lines:?}");
        assert_eq!(server.saw("DELETE "), 0);
        ended.say_goodbye(&client).await;
        assert_eq!(server.saw("DELETE "), 1);
        expect_nothing_left(&client).await;
        assert_eq!(server.saw("mcp-session-id: s-1\r\n"), 6);
    });
}

async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut done_a, mut done_b) = (None, None);
    let mut guard = pin!(monoio::time::sleep(Duration::from_secs(120)));
    poll_fn(|cx| {
        assert!(guard.as_mut().poll(cx).is_pending(), "it does not end");
        if done_a.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(cx)
        {
            done_a = Some(output);
        }
        if done_b.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(cx)
        {
            done_b = Some(output);
        }
        match (&done_a, &done_b) {
            (Some(_), Some(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
    (done_a.unwrap(), done_b.unwrap())
}

#[test]
fn forgotten_session_ends_it_all() {
    on_both_drivers(async |driver| {
        let server = Server::start();
        let client = client_of(&server);
        let (pipes, bridge_pipes) = pipes().unwrap();
        let stop = Abort::new();
        let serving = serve(&client, settings(), bridge_pipes, &stop, driver);
        let (never, forgotten) = (call(1, "never"), call(2, "forgotten"));
        let lines = [&*never, &*forgotten];
        let (ended, ()) = both(serving, open(&pipes, &lines)).await;
        let ended = ended.unwrap();
        assert_eq!(ended.how, "it does not know the session any more");
        ended.say_goodbye(&client).await;
        assert_eq!(server.saw("DELETE "), 0);
        expect_nothing_left(&client).await;
        // Nobody reads any more.
        let line = format!("{READY}\n");
        until("the pipe is closed", || {
            rustix::io::write(&pipes.stdin, line.as_bytes()).is_err()
        })
        .await;
    });
}

#[test]
fn stop_ends_it_at_once_though_nobody_reads() {
    on_both_drivers(async |driver| {
        let server = Server::start();
        let client = client_of(&server);
        let (pipes, bridge_pipes) = pipes().unwrap();
        let stop = Abort::new();
        let stopping = async {
            open(&pipes, &[&call(1, "flood"), &call(2, "never")]).await;
            until("it floods", || {
                server.flooded.load(Ordering::SeqCst) > 4 << 20
            })
            .await;
            stop.set();
        };
        let serving = serve(&client, settings(), bridge_pipes, &stop, driver);
        let (ended, ()) = both(serving, stopping).await;
        expect_nothing_left(&client).await;
        ended.unwrap().say_goodbye(&client).await;
        assert_eq!(server.saw("DELETE "), 1);
    });
}

#[test]
fn hub_that_does_not_read_stops_the_server_and_loses_nothing() {
    on_both_drivers(async |driver| {
        let server = Server::start();
        let client = client_of(&server);
        let (pipes, bridge_pipes) = pipes().unwrap();
        let stop = Abort::new();
        let talk = async {
            open(&pipes, &[&call(1, "flood")]).await;
            // It goes on until everything is full; how much that is the kernel decides.
            let mut before = 0;
            until("it stands still", || {
                std::thread::sleep(Duration::from_millis(1));
                server.flooded.load(Ordering::SeqCst) > 8 << 20
            })
            .await;
            loop {
                monoio::time::sleep(Duration::from_millis(300)).await;
                let now = server.flooded.load(Ordering::SeqCst);
                if now == before {
                    break;
                }
                before = now;
            }
            assert!(before < FLOOD_BYTES, "nothing stopped it");
            let read = read_lines(pipes.stdout.try_clone().unwrap());
            let mut number = 0;
            let mut is_answered = false;
            until("the answer", || {
                while let Ok(line) = read.try_recv() {
                    if line.contains("\"number\"") {
                        assert!(line.contains(&format!("\"number\":{number},")), "{number}");
                        number += 1;
                    }
                    is_answered |= line.contains("\"result\":{}");
                }
                is_answered
            })
            .await;
            assert!(number > FLOOD_BYTES / 11_000, "{number}");
            let ServerPipes { stdin, stdout } = pipes;
            drop(stdin);
            stdout
        };
        let serving = serve(&client, settings(), bridge_pipes, &stop, driver);
        let (ended, _) = both(serving, talk).await;
        assert_eq!(ended.unwrap().how, "its stdin was closed");
        expect_nothing_left(&client).await;
    });
}

#[test]
fn what_waits_for_the_hub_at_the_end_is_written() {
    on_both_drivers(async |driver| {
        let server = Server::start();
        let client = client_of(&server);
        let (pipes, bridge_pipes) = pipes().unwrap();
        let stop = Abort::new();
        let talk = async {
            open(&pipes, &[&call(1, "burst")]).await;
            until("the GET stream", || server.saw("GET ") == 1).await;
            until("the burst", || {
                server.flooded.load(Ordering::SeqCst) >= BURST_BYTES
            })
            .await;
            until("its end", || client.exchanges() == 1).await;
            let ServerPipes { stdin, stdout } = pipes;
            drop(stdin);
            let read = read_lines(stdout);
            let mut lines = 0;
            until("the end", || {
                while let Ok(line) = read.try_recv() {
                    lines += 1;
                    assert!(line.ends_with('}'));
                    if line.contains("\"result\":{}") {
                        return true;
                    }
                }
                false
            })
            .await;
            lines
        };
        let serving = serve(&client, settings(), bridge_pipes, &stop, driver);
        let (ended, lines) = both(serving, talk).await;
        assert_eq!(ended.unwrap().how, "its stdin was closed");
        assert!(lines > BURST_BYTES / 11_000, "{lines}");
    });
}

#[test]
fn dropped_at_any_point_it_leaves_no_exchange() {
    on_both_drivers(async |driver| {
        let server = Server::start();
        let client = client_of(&server);
        let mut opened = 0;
        for round in 0..400_u64 {
            let (pipes, bridge_pipes) = pipes().unwrap();
            let stop = Abort::new();
            let mut was_opened = false;
            {
                let mut talking = pin!(async {
                    open(&pipes, &[]).await;
                    was_opened = true;
                    for number in 0..24 {
                        let method = ["fast", "stream", "never"][(number % 3) as usize];
                        write(&pipes, &[&call(number, method)]);
                    }
                    poll_fn(|_| Poll::<()>::Pending).await;
                });
                let mut serving = pin!(serve(&client, settings(), bridge_pipes, &stop, driver));
                // After so many turns, or after some time.
                let (mut turns, time) = match round % 2 {
                    0 => (u64::MAX, 1 + round / 2 % 20),
                    _ => (round / 2 % 40, 20),
                };
                let mut late = pin!(monoio::time::sleep(Duration::from_millis(time)));
                poll_fn(|cx| {
                    if turns == 0 || late.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(());
                    }
                    turns -= 1;
                    assert!(talking.as_mut().poll(cx).is_pending());
                    assert!(serving.as_mut().poll(cx).is_pending());
                    Poll::Pending
                })
                .await;
            }
            opened += usize::from(was_opened);
            expect_nothing_left(&client).await;
        }
        // Points behind the handshake are among them.
        assert!(opened > 50, "{opened}");
    });
}
