//! The admin listener over real sockets: hostile and slow clients, and the ones
//! beside them, who must not notice.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::connection::Patience;
use super::fake::Fake;
use super::listener::start_with;
use super::{CONNECTIONS_MAX, Readiness};
use crate::http::policy::Policy;

/// Longer than any test waits for what must come.
const LONG: Duration = Duration::from_secs(20);

fn started(head: Duration) -> (SocketAddr, Arc<Fake>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let source = Arc::new(Fake::new(Readiness::Ready));
    let policy = Policy::new(true, &[], &[]).unwrap();
    let patience = Patience {
        head,
        ..Patience::DEFAULT
    };
    start_with(listener, policy, source.clone(), patience).unwrap();
    (address, source)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// All that comes until the other side closes.
fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    rest(stream)
}

fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ask(address, request.as_bytes())
}

#[test]
fn the_three_paths_are_served() {
    let (address, _) = started(LONG);
    assert!(get(address, "/healthz").ends_with("\r\n\r\nok\n"));
    assert!(get(address, "/readyz").ends_with("\r\n\r\nready\n"));
    assert!(get(address, "/metrics").contains("\nringway_upstream_up 0\n"));
}

#[test]
fn what_is_no_request_is_refused_with_its_status() {
    let (address, _) = started(LONG);
    let large = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\na: {}",
        "x".repeat(17 << 10)
    );
    for (request, status) in [
        (large.as_bytes(), "431"),
        (b"GET / HTTP/2.0\r\n\r\n", "505"),
        (b"\x16\x03\x01\x02\x00", "400"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", "400"),
        (b"GET /healthz HTTP/1.1\nHost: localhost\n\n", "400"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
    ] {
        let response = ask(address, request);
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status} ")),
            "{response}"
        );
    }
    let connect = ask(address, b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n");
    assert!(connect.contains("\r\nallow: GET, HEAD\r\n"), "{connect}");
}

#[test]
fn the_answer_to_a_post_arrives_although_its_body_is_not_read() {
    let (address, _) = started(LONG);
    let mut request =
        b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n".to_vec();
    request.resize(request.len() + 500_000, b'x');
    let response = ask(address, &request);
    assert!(response.starts_with("HTTP/1.1 405 "), "{response}");
}

#[test]
fn a_head_in_two_halves_is_one_head() {
    let (address, _) = started(LONG);
    let mut stream = connect(address);
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHo").unwrap();
    // Another request in between shows that the first half has been taken.
    get(address, "/healthz");
    stream.write_all(b"st: localhost\r\n\r\n").unwrap();
    assert!(rest(stream).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_slow_client_is_told_so_and_a_silent_one_is_closed() {
    let (address, _) = started(Duration::from_millis(100));
    let mut slow = connect(address);
    slow.write_all(b"GET /healthz HT").unwrap();
    let silent = connect(address);
    assert!(rest(slow).starts_with("HTTP/1.1 408 "));
    assert_eq!(rest(silent), "");
}

#[test]
fn clients_that_are_waited_for_do_not_block_others() {
    let (address, _) = started(LONG * 2);
    let mut slow = connect(address);
    slow.write_all(b"GET /healthz HT").unwrap();
    let silent = connect(address);
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    assert!(is_waited_for(&slow) && is_waited_for(&silent));
}

/// Nothing has come, not even the end.
fn is_waited_for(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream
        .read(&mut [0])
        .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn silent_clients_in_every_place_do_not_keep_a_probe_out() {
    let (address, _) = started(LONG * 2);
    let silent: Vec<_> = (0..3 * CONNECTIONS_MAX).map(|_| connect(address)).collect();
    for _ in 0..3 {
        assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    }
    // Each newcomer took the place of the oldest. The probes took one to three,
    // by how soon the one before had left.
    for (index, mut stream) in silent.into_iter().enumerate() {
        if index <= 2 * CONNECTIONS_MAX {
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{index}");
        } else if index >= 2 * CONNECTIONS_MAX + 3 {
            assert!(is_waited_for(&stream), "{index}");
        }
    }
}

#[test]
fn a_panic_costs_its_own_connection_only() {
    let (address, source) = started(LONG);
    for _ in 0..2 * CONNECTIONS_MAX {
        source.panics.store(true, Ordering::Relaxed);
        assert_eq!(get(address, "/metrics"), "");
    }
    assert!(get(address, "/metrics").starts_with("HTTP/1.1 200 "));
}
