//! HTTP/1.1 as bytes: a request that can be built wrong on purpose, a connection that writes what it is
//! told, and a strict reader of responses. The reader refuses an answer that no HTTP client should get
//! (two lengths, a body on 204), so that every test checks the framing of what it reads.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use super::mcp::{self, raw_member};
use super::{GUARD, wait_until};

#[derive(Clone, Debug)]
enum Body {
    None,
    Whole(Vec<u8>),
    Chunks(Vec<Vec<u8>>),
}

/// A request under construction. Valid unless a test makes it otherwise.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    version: String,
    fields: Vec<(String, String)>,
    body: Body,
}

impl Request {
    pub fn new(method: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: "/mcp".to_owned(),
            version: "HTTP/1.1".to_owned(),
            fields: vec![("Host".to_owned(), "localhost".to_owned())],
            body: Body::None,
        }
    }

    /// A POST as an MCP client sends it.
    pub fn post(body: impl Into<Vec<u8>>) -> Self {
        let mut request = Self::new("POST")
            .add("Content-Type", "application/json")
            .add("Accept", "application/json, text/event-stream");
        request.body = Body::Whole(body.into());
        request
    }

    pub fn add(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.fields
            .retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    pub fn set(self, name: &str, value: &str) -> Self {
        self.without(name).add(name, value)
    }

    pub fn target(mut self, target: &str) -> Self {
        target.clone_into(&mut self.target);
        self
    }

    pub fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.version);
        self
    }

    /// Sends the body in chunks of these sizes; the rest in a last one.
    pub fn chunked(mut self, sizes: &[usize]) -> Self {
        let Body::Whole(body) = &self.body else {
            panic!("only a whole body can be cut");
        };
        let mut rest = body.as_slice();
        let mut chunks = Vec::new();
        for &size in sizes {
            let (chunk, after) = rest.split_at(size.min(rest.len()));
            chunks.push(chunk.to_vec());
            rest = after;
        }
        chunks.push(rest.to_vec());
        chunks.retain(|chunk| !chunk.is_empty());
        self.body = Body::Chunks(chunks);
        self
    }

    /// The head's bytes, with the field that frames the body, and the empty line.
    pub fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} {}\r\n", self.method, self.target, self.version);
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        match &self.body {
            Body::None => {}
            Body::Whole(body) => head.push_str(&format!("Content-Length: {}\r\n", body.len())),
            Body::Chunks(_) => head.push_str("Transfer-Encoding: chunked\r\n"),
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        match &self.body {
            Body::None => {}
            Body::Whole(body) => bytes.extend_from_slice(body),
            Body::Chunks(chunks) => {
                for chunk in chunks {
                    bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        bytes
    }

    fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

/// A whole response.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub version: String,
    /// Names in lower case, in the order received.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body ended with the connection, not with a length or a last chunk.
    pub close_delimited: bool,
}

impl Response {
    /// The value of a field; `None` when it is absent. Several of one name fail the test.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(known, _)| known == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "several {name} fields: {self}");
        value
    }

    /// Whether a comma-separated field lists `item`, whatever its case.
    pub fn lists(&self, name: &str, item: &str) -> bool {
        self.field(name).is_some_and(|value| {
            value
                .split(',')
                .any(|part| part.trim().eq_ignore_ascii_case(item))
        })
    }

    pub fn is_sse(&self) -> bool {
        self.media_type() == Some("text/event-stream")
    }

    pub fn media_type(&self) -> Option<&str> {
        self.field("content-type")
            .map(|value| value.split(';').next().unwrap_or(value).trim())
    }

    /// The body as one JSON value.
    pub fn json(&self) -> Value {
        assert_eq!(self.media_type(), Some("application/json"), "{self}");
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// The JSON-RPC messages of the response, in JSON or in SSE form.
    pub fn messages(&self) -> Vec<Value> {
        if self.is_sse() {
            let events = mcp::events(&self.body);
            return events
                .iter()
                .map(|event| {
                    assert_eq!(event.name, "message", "{self}");
                    serde_json::from_str(&event.data).expect("an event's data is one JSON text")
                })
                .collect();
        }
        match self.json() {
            Value::Array(messages) => messages,
            message => vec![message],
        }
    }

    /// The single message of the response.
    pub fn message(&self) -> Value {
        let mut messages = self.messages();
        assert_eq!(messages.len(), 1, "{self}");
        messages.remove(0)
    }

    /// The result of the single message of a successful call.
    pub fn result(&self) -> Value {
        assert_eq!(self.status, 200, "{self}");
        let message = self.message();
        assert!(message.get("error").is_none(), "{self}");
        message
            .get("result")
            .unwrap_or_else(|| panic!("{self}"))
            .clone()
    }

    /// The raw text of the answer's `id`; `None` when the key is absent.
    pub fn raw_id(&self) -> Option<String> {
        raw_member(&self.text(), "id")
    }

    /// The JSON text of a response of one message.
    pub fn text(&self) -> String {
        if self.is_sse() {
            let mut events = mcp::events(&self.body);
            assert_eq!(events.len(), 1, "{self}");
            return events.remove(0).data;
        }
        String::from_utf8(self.body.clone()).expect("a body is UTF-8")
    }

    /// Checks status, JSON-RPC code and the raw id (`None`: the key is left out); returns the error object.
    #[track_caller]
    pub fn expect_error(&self, status: u16, code: i64, id: Option<&str>) -> Value {
        assert_eq!(self.status, status, "{self}");
        let message = self.message();
        assert_eq!(message["jsonrpc"], "2.0", "{self}");
        assert_eq!(message["error"]["code"], code, "{self}");
        assert!(message["error"]["message"].is_string(), "{self}");
        assert_eq!(self.raw_id().as_deref(), id, "{self}");
        message["error"].clone()
    }

    /// Checks a refusal of the transport: its status, and a JSON body, if there is one, without an id.
    #[track_caller]
    pub fn expect_refusal(&self, status: u16) {
        assert_eq!(self.status, status, "{self}");
        if !self.body.is_empty() {
            assert!(self.json().get("id").is_none(), "{self}");
        }
    }
}

impl std::fmt::Display for Response {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        let shown: String = body.chars().take(600).collect();
        write!(out, "{} {:?} {shown}", self.status, self.fields)
    }
}

/// A client's connection as bytes.
pub struct Raw {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the gateway accepts");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_read_timeout(Some(GUARD)).expect("not zero");
        stream.set_write_timeout(Some(GUARD)).expect("not zero");
        Self {
            stream,
            unread: Vec::new(),
        }
    }

    /// Connects with a small receive buffer, so that most of what the client does not read stays with the
    /// gateway and the kernel's send buffer.
    pub fn connect_lazily(address: SocketAddr) -> Self {
        use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("one is free");
        sockopt::set_socket_recv_buffer_size(&fd, 4_096).expect("a socket");
        connect(&fd, &address).expect("the gateway accepts");
        let stream = TcpStream::from(fd);
        stream.set_read_timeout(Some(GUARD)).expect("not zero");
        stream.set_write_timeout(Some(GUARD)).expect("not zero");
        Self {
            stream,
            unread: Vec::new(),
        }
    }

    /// Reads on until more than `bytes` have come, and keeps none of it. `None`: the connection ended first.
    pub fn count_to_end(&mut self, bytes: usize) -> Option<usize> {
        let mut seen = 0;
        while seen <= bytes {
            match self.fill() {
                0 => return None,
                count => seen += count,
            }
            self.unread.clear();
        }
        Some(seen)
    }

    /// A second handle on the same connection, to write while the first one reads.
    pub fn twin(&self) -> Self {
        Self {
            stream: self.stream.try_clone().expect("a descriptor is free"),
            unread: Vec::new(),
        }
    }

    pub fn local_port(&self) -> u16 {
        self.stream.local_addr().expect("connected").port()
    }

    /// Writes bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream
            .write_all(bytes.as_ref())
            .expect("the gateway reads");
    }

    /// Writes bytes to a peer that may already have given up on the connection.
    pub fn send_to_the_wary(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    pub fn ask(&mut self, request: &Request) -> Response {
        self.send(request.bytes());
        self.next(request.is_head())
            .unwrap_or_else(|| panic!("the connection ended without an answer to {request:?}"))
    }

    /// The next response on the connection, an interim one (1xx) included.
    pub fn response(&mut self) -> Response {
        self.next(false)
            .expect("the connection ended without an answer")
    }

    /// The next response, or `None` when the connection ends first.
    pub fn next(&mut self, to_head: bool) -> Option<Response> {
        let mut response = self.next_head()?;
        self.read_body(&mut response, to_head);
        Some(response)
    }

    /// The head of the next response, whose body is left unread.
    pub fn next_head(&mut self) -> Option<Response> {
        let head_end = loop {
            if let Some(at) = find(&self.unread, b"\r\n\r\n") {
                break at + 4;
            }
            if self.fill() == 0 {
                assert!(
                    self.unread.is_empty(),
                    "the connection ended inside a head: {:?}",
                    String::from_utf8_lossy(&self.unread)
                );
                return None;
            }
        };
        let head: Vec<u8> = self.unread.drain(..head_end).collect();
        Some(parse_head(&head))
    }

    fn read_body(&mut self, response: &mut Response, to_head: bool) {
        let length = response.field("content-length").map(str::to_owned);
        let coding = response.field("transfer-encoding").map(str::to_owned);
        assert!(
            length.is_none() || coding.is_none(),
            "two framings: {response}"
        );
        let bodiless = response.status / 100 == 1 || response.status == 204;
        if bodiless {
            assert!(length.is_none() && coding.is_none(), "a body on {response}");
        }
        if bodiless || to_head {
            return;
        }
        if let Some(length) = length {
            let length = length.parse().expect("a decimal length");
            response.body = self.take(length);
        } else if let Some(coding) = coding {
            assert_eq!(coding, "chunked", "{response}");
            assert_eq!(response.version, "HTTP/1.1", "{response}");
            response.body = self.read_chunks();
        } else {
            while self.fill() > 0 {}
            response.body = std::mem::take(&mut self.unread);
            response.close_delimited = true;
        }
    }

    fn read_chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while let Some(chunk) = self.read_chunk() {
            body.extend_from_slice(&chunk);
        }
        body
    }

    /// The next chunk of a body; `None` for the last one, which is empty.
    pub fn read_chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.take_line();
        let size = usize::from_str_radix(&line, 16).expect("a chunk's size");
        let chunk = self.take(size);
        assert_eq!(
            self.take_line(),
            "",
            "a chunk ends with CRLF, without trailers"
        );
        (size > 0).then_some(chunk)
    }

    /// What has come or comes next of a body that ends with the connection; `None` at its end.
    pub fn read_some(&mut self) -> Option<Vec<u8>> {
        if self.unread.is_empty() && self.fill() == 0 {
            return None;
        }
        Some(std::mem::take(&mut self.unread))
    }

    fn take_line(&mut self) -> String {
        let at = loop {
            if let Some(at) = find(&self.unread, b"\r\n") {
                break at;
            }
            assert!(
                self.fill() > 0,
                "the connection ended inside a chunk's line"
            );
        };
        let line = self.take(at + 2);
        String::from_utf8(line[..at].to_vec()).expect("ASCII")
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            assert!(
                self.fill() > 0,
                "the connection ended inside a body ({} of {count} bytes)",
                self.unread.len()
            );
        }
        self.unread.drain(..count).collect()
    }

    /// Reads once; 0 at the end of the connection, a reset included.
    fn fill(&mut self) -> usize {
        let mut chunk = vec![0_u8; 64 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(count) => {
                    self.unread.extend_from_slice(&chunk[..count]);
                    return count;
                }
                // A read with a time-out is not restarted by the kernel.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return 0,
                Err(error) => panic!("no answer came: {error}"),
            }
        }
    }

    /// Whether a read would not wait: something has come, or the end.
    pub fn has_something(&self) -> bool {
        !self.unread.is_empty() || self.stream_has_something()
    }

    fn stream_has_something(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&at_once)).expect("one descriptor") > 0
    }

    /// Reads what has come, and says whether it is a head and so many blanks of its body, each a chunk of its
    /// own or a byte of a body that ends with the connection.
    pub fn has_blanks(&mut self, count: usize) -> bool {
        while self.stream_has_something() && self.fill() > 0 {}
        let Some(head_end) = find(&self.unread, b"\r\n\r\n") else {
            return false;
        };
        let body = self.unread[head_end..].iter();
        body.filter(|&&byte| byte == b' ').count() >= count
    }

    /// Whether the gateway has taken all that was sent out of its socket.
    pub fn is_all_read(&self) -> bool {
        let (ours, theirs) = self.queues();
        // Nothing on the way from us and nothing waiting for them; no row at all means closed.
        ours.is_none_or(|(sending, _)| sending == 0)
            && theirs.is_none_or(|(_, waiting)| waiting == 0)
    }

    /// What comes up to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill() > 0 {}
        std::mem::take(&mut self.unread)
    }

    /// Reads to the end of the connection, whatever comes.
    pub fn drain(&mut self) {
        while self.fill() > 0 {}
    }

    /// Checks that nothing more comes but the end of the connection.
    #[track_caller]
    pub fn expect_end(&mut self) {
        while self.fill() > 0 {}
        assert!(
            self.unread.is_empty(),
            "more came than was expected: {:?}",
            String::from_utf8_lossy(&self.unread)
        );
    }

    /// Ends the sending half.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).expect("connected");
    }

    /// Ends the connection with a reset, as a client that was killed.
    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(std::time::Duration::ZERO))
            .expect("a TCP socket");
    }

    /// Waits until the gateway has taken all that was sent out of its socket. It waits for the kernel's
    /// acknowledgement, which may come 40 ms late.
    pub fn wait_until_read(&self) {
        wait_until("the gateway reads what was sent", || self.is_all_read());
    }

    /// Lets the gateway read what was sent, so that what is sent next comes with a read of its own. Data
    /// sent over loopback is normally in the peer's queue at once, so only that queue is looked at: quick
    /// enough for every byte of a request, and at worst two parts come in one read.
    pub fn let_it_read(&self) {
        wait_until("the gateway reads what was sent", || {
            self.queues().1.is_none_or(|(_, waiting)| waiting == 0)
        });
    }

    /// The queues of our end and of the gateway's end.
    fn queues(&self) -> (Option<Queues>, Option<Queues>) {
        let local = self.local_port();
        let peer = self.stream.peer_addr().expect("connected").port();
        let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
        (
            find_socket(&table, local, peer),
            find_socket(&table, peer, local),
        )
    }
}

/// Bytes that a socket has yet to send (or see acknowledged) and to hand to its reader.
type Queues = (u64, u64);

/// The queues (to send, to read) of the IPv4 socket with these ports in `/proc/net/tcp`.
fn find_socket(table: &str, local: u16, remote: u16) -> Option<Queues> {
    let (local, remote) = (format!(":{local:04X}"), format!(":{remote:04X}"));
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (from, to) = (words.next()?, words.next()?);
        if !from.ends_with(&local) || !to.ends_with(&remote) {
            return None;
        }
        let (send, receive) = words.nth(1)?.split_once(':')?;
        let count = |text| u64::from_str_radix(text, 16).expect("hex");
        Some((count(send), count(receive)))
    })
}

fn parse_head(head: &[u8]) -> Response {
    let head = std::str::from_utf8(head).expect("a response head is ASCII");
    let mut lines = head.trim_end_matches("\r\n").split("\r\n");
    let status_line = lines.next().expect("split gives one part at least");
    let (version, rest) = status_line.split_once(' ').expect("a status line");
    assert!(matches!(version, "HTTP/1.1" | "HTTP/1.0"), "{status_line}");
    let fields = lines
        .map(|line| {
            assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
            let (name, value) = line.split_once(':').expect("a field");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        })
        .collect();
    Response {
        status: rest[..3].parse().expect("a status of three digits"),
        version: version.to_owned(),
        fields,
        body: Vec::new(),
        close_delimited: false,
    }
}

pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}
