//! Server-sent events: whatever the messages, however the stream is cut into parts,
//! with comments between, a reader that follows the WHATWG's steps gets exactly the
//! messages, one event each, through the chunks of HTTP/1.1 as through bare bytes.
//!
//! The first byte is the version of HTTP and how many bytes of choices follow; messages
//! follow, one a line.

use std::time::UNIX_EPOCH;

use ringway::http::response::{self, Manner};
use ringway::routing::event_queue::EventQueue;
use ringway::wire::notice::updated_frame;
use ringway::wire::splice::fold_newlines;
use ringway::wire::sse;
use serde_json::Value;

use super::chunked::{Outcome, read, reference};

pub fn sse(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let (choices, text) = rest.split_at(usize::from(first >> 1 & 15).min(rest.len()));
    let mut choices = choices.iter().copied().cycle();
    let mut choice = || choices.next().unwrap_or_default();
    let mut manner = Manner::unread();
    manner.http11 = first & 1 != 0;

    let mut out = Vec::new();
    response::sse_head(&mut out, &manner, &response::date_line(UNIX_EPOCH), b"");
    let head = out.len();
    check_head(&out, manner.http11);

    let mut expected = Vec::new();
    let mut queue = EventQueue::default();
    // What waits for the next part.
    let mut waiting = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut message = line.to_vec();
        fold_newlines(&mut message);
        if message.is_empty() {
            continue; // no message is
        }
        let said = String::from_utf8_lossy(&message).into_owned();
        let how = choice();
        // Only what stands in the queue alone may be overtaken by what is written at once.
        if how & 7 < 5 {
            take_all(&mut queue, &mut out, manner.http11);
        }
        if how & 7 > 1 {
            cut_into_parts(&mut out, &mut waiting, how, manner.http11);
        }
        match how & 7 {
            0 => sse::frame(&mut waiting, &message),
            1 => waiting.extend_from_slice(&updated_frame(&said)),
            2 => response::part(&mut out, manner.http11, &updated_frame(&said)),
            3 => {
                let mut event = Vec::new();
                sse::frame_with(&mut event, |event| event.extend_from_slice(&message));
                assert_eq!(event.len(), message.len() + sse::FRAME_BYTES);
                response::part_begins(&mut out, manner.http11, event.len());
                out.extend_from_slice(&event);
                response::part_ends(&mut out, manner.http11);
            }
            4 => response::sse_message(&mut out, &manner, &message),
            5 => queue.reply(|event| event.extend_from_slice(&message)),
            _ => assert_eq!(queue.progress(|event| event.extend_from_slice(&message)), 0),
        }
        expected.push(match how & 7 {
            1 | 2 => Said::Updated(said),
            _ => Said::Message(said),
        });
        if how & 8 != 0 && waiting.is_empty() {
            response::part(&mut out, manner.http11, sse::KEEP_ALIVE);
        }
    }
    cut_into_parts(&mut out, &mut waiting, choice(), manner.http11);
    take_all(&mut queue, &mut out, manner.http11);
    let left = (queue.len(), queue.progress_bytes());
    assert_eq!(left, (0, 0), "bytes that are counted and not there");
    response::end(&mut out, manner.http11);

    let body = &out[head..];
    let body = match manner.http11 {
        true => {
            let whole = reference(body, body.len());
            assert_eq!(whole, read(body, [], body.len()));
            match whole {
                Outcome::Whole(inner, end) if end == body.len() => inner,
                other => panic!("not one chunked body: {other:?}"),
            }
        }
        false => body.to_vec(),
    };
    let got = events(&body);
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        match expected {
            Said::Message(message) => assert_eq!(*got, message),
            Said::Updated(uri) => {
                let got: Value = serde_json::from_str(got).expect("JSON");
                assert_eq!(got["params"]["uri"], uri);
            }
        }
    }
    let mut reader = Reader::default();
    for piece in body.chunks(1 + usize::from(choice())) {
        reader.read(piece);
    }
    assert_eq!(reader.events, got, "in pieces");
}

/// What an event is to say.
enum Said {
    Message(String),
    /// The URI in a message of Ringway's own.
    Updated(String),
}

fn take_all(queue: &mut EventQueue, out: &mut Vec<u8>, http11: bool) {
    while let Some((bytes, start)) = queue.next_part() {
        response::part(out, http11, &bytes[start..]);
    }
}

fn cut_into_parts(out: &mut Vec<u8>, waiting: &mut Vec<u8>, choice: u8, http11: bool) {
    for piece in waiting.chunks(1 + usize::from(choice)) {
        response::part(out, http11, piece);
    }
    waiting.clear();
}

fn check_head(head: &[u8], http11: bool) {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut response = httparse::Response::new(&mut fields);
    let status = response.parse(head).expect("a head");
    assert_eq!(status, httparse::Status::Complete(head.len()));
    assert_eq!(response.code, Some(200));
    let value = |name: &str| {
        let mut named = response.headers.iter().filter(|field| field.name == name);
        let value = named.next().map(|field| field.value);
        assert!(named.next().is_none());
        value
    };
    assert_eq!(value("content-type"), Some(&b"text/event-stream"[..]));
    assert_eq!(value("transfer-encoding").is_some(), http11);
    assert_eq!(value("content-length"), None);
}

/// The data of all events of a whole stream.
pub(super) fn events(stream: &[u8]) -> Vec<String> {
    let mut reader = Reader::default();
    reader.read(stream);
    assert!(reader.line.is_empty(), "ends within a line");
    assert!(reader.data.is_empty(), "ends within an event");
    reader.events
}

/// The steps of "interpreting an event stream" in the HTML standard, but that a field
/// which Ringway never writes is an error.
#[derive(Default)]
struct Reader {
    has_begun: bool,
    line: Vec<u8>,
    is_after_cr: bool,
    kind: String,
    data: String,
    events: Vec<String>,
}

impl Reader {
    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let ends_a_crlf = std::mem::take(&mut self.is_after_cr) && *byte == b'\n';
            match byte {
                b'\n' if ends_a_crlf => {}
                b'\n' => self.line_ends(),
                b'\r' => {
                    self.is_after_cr = true;
                    self.line_ends();
                }
                _ => self.line.push(*byte),
            }
        }
    }

    fn line_ends(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = match std::mem::replace(&mut self.has_begun, true) {
            true => &line,
            false => line.strip_prefix('\u{feff}').unwrap_or(&line),
        };
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => {}
            "event" => self.kind = value.to_owned(),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            other => panic!("the field {other:?}"),
        }
    }

    fn dispatch(&mut self) {
        let kind = std::mem::take(&mut self.kind);
        let mut data = std::mem::take(&mut self.data);
        assert_eq!(data.pop(), Some('\n'), "an event without data");
        assert_eq!(kind, "message");
        self.events.push(data);
    }
}
