//! An answer in SSE form that is read as it comes: a session's GET stream, or the answer to a POST. What ends
//! must end cleanly (a last chunk; the connection, where it closes), and a barrier shows what did not come.

use std::borrow::BorrowMut;
use std::time::Instant;

use serde_json::Value;

use super::mcp::Event;
use super::{GUARD, Gateway, Raw, Request, Response, Script, Session};

/// The server's line that serves as a barrier, and the same as clients get it.
pub const BARRIER: &str = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Framing {
    Chunked,
    Close,
}

enum Item {
    Event(Event),
    Comment,
    End,
}

/// Sessions, each with an open GET stream.
pub fn open_many(gateway: &Gateway, count: usize) -> (Vec<Session>, Vec<Stream>) {
    let sessions: Vec<Session> = (0..count).map(|_| Session::open(gateway)).collect();
    let streams = sessions
        .iter()
        .map(|session| Stream::open(gateway, session))
        .collect();
    (sessions, streams)
}

/// One stream on one connection.
pub struct Stream {
    /// The answer's head; its body is empty.
    pub head: Response,
    /// Comments so far.
    pub comments: usize,
    raw: Raw,
    framing: Framing,
    text: Vec<u8>,
    /// What stands before this in `text` has been read as lines.
    at: usize,
    ended: bool,
}

impl Stream {
    /// Opens the session's GET stream on a connection of its own.
    pub fn open(gateway: &Gateway, session: &Session) -> Self {
        Self::of(gateway.connect(), &session.get())
    }

    /// Sends a request and reads the head of its answer, which must be a stream.
    pub fn of(mut raw: Raw, request: &Request) -> Self {
        raw.send(request.bytes());
        Self::of_answer(raw)
    }

    /// Reads the head of the next answer on a connection, which must be a stream.
    pub fn of_answer(mut raw: Raw) -> Self {
        let head = raw.next_head().expect("the connection ended, no stream");
        assert_eq!(head.status, 200, "{head}");
        assert!(head.is_sse(), "{head}");
        assert_eq!(head.field("content-length"), None, "{head}");
        let framing = match head.field("transfer-encoding") {
            Some(coding) => {
                assert_eq!(coding, "chunked", "{head}");
                assert_eq!(head.version, "HTTP/1.1", "{head}");
                Framing::Chunked
            }
            None => Framing::Close,
        };
        Self {
            head,
            comments: 0,
            raw,
            framing,
            text: Vec::new(),
            at: 0,
            ended: false,
        }
    }

    /// The next event; `None` at the clean end of the stream. A stream that is cut off fails the test.
    pub fn next(&mut self) -> Option<Event> {
        let start = Instant::now();
        loop {
            match self.item() {
                Item::Event(event) => return Some(event),
                // Each comment gives the read new time, so without this it could wait for ever.
                Item::Comment => assert!(start.elapsed() < GUARD, "only comments came"),
                Item::End => return None,
            }
        }
    }

    /// The message of the next event.
    #[track_caller]
    pub fn message(&mut self) -> String {
        self.next().expect("the stream ended, no event came").data
    }

    #[track_caller]
    pub fn expect(&mut self, message: &str) {
        assert_eq!(self.message(), message);
    }

    /// Reads on until so many comments have come in all, and nothing else.
    pub fn wait_comments(&mut self, count: usize) {
        while self.comments < count {
            match self.item() {
                Item::Comment => {}
                Item::Event(event) => panic!("an event: {event:?}"),
                Item::End => panic!("the stream ended"),
            }
        }
    }

    /// The messages up to the end of the stream.
    pub fn rest(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        while let Some(event) = self.next() {
            messages.push(event.data);
        }
        messages
    }

    /// Checks that nothing more comes but a clean end, and of the connection too where the head said so.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "more came: {rest:?}");
        if self.head.lists("connection", "close") {
            self.raw.expect_end();
        }
    }

    /// The messages of a POST's stream: those before the last, and the last.
    #[track_caller]
    pub fn answer(&mut self) -> (Vec<String>, String) {
        let mut messages = self.rest();
        let last = messages.pop().expect("a stream without a message");
        (messages, last)
    }

    /// The connection, to be used again or ended in some way.
    pub fn into_raw(self) -> Raw {
        self.raw
    }

    /// The connection beneath, to write to it.
    pub fn raw(&mut self) -> &mut Raw {
        &mut self.raw
    }

    fn item(&mut self) -> Item {
        let (mut name, mut data) = (None, None);
        loop {
            let Some(line) = self.line() else {
                assert!(name.is_none() && data.is_none(), "an unfinished event");
                return Item::End;
            };
            if line.is_empty() {
                // A blank line that ends no event would be an odd keep-alive.
                let data = data.expect("an event has data");
                let name = name.expect("an event has a name");
                assert_eq!(name, "message", "{data}");
                return Item::Event(Event {
                    name,
                    data,
                    id: None,
                });
            }
            if let Some(comment) = line.strip_prefix(':') {
                assert_eq!(comment, " ", "a comment that says something");
                assert!(name.is_none(), "a comment inside an event");
                self.comments += 1;
                return Item::Comment;
            }
            let (field, value) = line.split_once(": ").expect("a field and its value");
            let place = match field {
                "event" => &mut name,
                "data" => &mut data,
                _ => panic!("the field {field}"),
            };
            assert!(place.is_none(), "{field} twice in one event");
            *place = Some(value.to_owned());
        }
    }

    /// The next line of the stream's text; `None` at the clean end.
    fn line(&mut self) -> Option<String> {
        loop {
            let rest = &self.text[self.at..];
            if let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                let line = String::from_utf8(rest[..end].to_vec()).expect("SSE is UTF-8");
                assert!(!line.contains('\r'), "{line:?}");
                self.at += end + 1;
                return Some(line);
            }
            self.text.drain(..std::mem::take(&mut self.at));
            if !self.ended {
                let piece = match self.framing {
                    Framing::Chunked => self.raw.read_chunk(),
                    Framing::Close => self.raw.read_some(),
                };
                self.ended = piece.is_none();
                self.text.extend_from_slice(&piece.unwrap_or_default());
            }
            if self.ended {
                assert!(self.text.is_empty(), "an unfinished line");
                return None;
            }
        }
    }
}

/// What GET streams carry before a barrier, each its own list. What the server said before this call has been
/// written to them when it returns.
#[track_caller]
pub fn carried<S: BorrowMut<Stream>>(script: &Script<'_>, streams: &mut [S]) -> Vec<Vec<String>> {
    let mut carried = vec![Vec::new(); streams.len()];
    // Marks that are set together are written in any order: what stood beside the first barrier has come
    // before the second.
    for _ in 0..2 {
        script.say(&[BARRIER]);
        for (stream, carried) in streams.iter_mut().zip(&mut carried) {
            loop {
                let message = stream.borrow_mut().message();
                if message == BARRIER {
                    break;
                }
                carried.push(message);
            }
        }
    }
    carried
}

/// The same for one stream.
#[track_caller]
pub fn carried_by(script: &Script<'_>, stream: &mut Stream) -> Vec<String> {
    carried(script, &mut [stream]).remove(0)
}

/// Checks that the streams carry nothing but the barrier's own.
#[track_caller]
pub fn expect_nothing<S: BorrowMut<Stream>>(script: &Script<'_>, streams: &mut [S]) {
    for carried in carried(script, streams) {
        assert!(carried.is_empty(), "{carried:?}");
    }
}

/// A message as a value.
#[track_caller]
pub fn value(message: &str) -> Value {
    serde_json::from_str(message).unwrap_or_else(|error| panic!("{error}: {message}"))
}
