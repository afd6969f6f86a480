//! What is counted: each case is something that clients and the server do again
//! and again, with what must come of it the first time.

use ringway::http::connections::{ConnectionKey, Delivery, Wake};
use ringway::http::endpoint::Verdict;
use ringway::http::response::Manner;
use ringway::wire::version::Version;

use crate::path::{Hub, LastHead, Path};
use crate::server;

/// Runs the case once more.
pub(crate) type Run = Box<dyn FnMut(&mut Path)>;

pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Where its gateway has the hub.
    pub(crate) hub: Hub,
    /// Runs before the first that counts, so that tables and buffers have their size.
    pub(crate) warm_up: usize,
    /// Runs whose cost is told by the difference between so many and twice as many.
    pub(crate) runs: usize,
    /// Makes the gateway's sessions and connections.
    pub(crate) begin: fn(&mut Path) -> Run,
    /// Looks at what all clients were sent in the first run.
    pub(crate) check: fn(&str),
}

pub(crate) const ALL: &[Case] = &[
    Case {
        name: "call_200_b_json",
        hub: Hub::OnTheShard,
        warm_up: 100,
        runs: 400,
        begin: |path| call(path, result_of(200)),
        check: |sent| expect_json(sent, &message_of(&result_of(200))),
    },
    Case {
        name: "call_200_b_json_new_head",
        hub: Hub::OnTheShard,
        warm_up: 100,
        runs: 400,
        begin: call_with_new_heads,
        check: |sent| expect_json(sent, &message_of(&result_of(200))),
    },
    Case {
        name: "call_200_b_json_hub_apart",
        hub: Hub::Apart,
        warm_up: 100,
        runs: 400,
        begin: |path| call(path, result_of(200)),
        check: |sent| expect_json(sent, &message_of(&result_of(200))),
    },
    Case {
        name: "call_200_b_json_one_of_three",
        hub: Hub::OneOfThree,
        warm_up: 100,
        runs: 400,
        begin: call_one_of_three,
        check: |sent| expect_json(sent, &message_of(&result_of(200))),
    },
    Case {
        name: "call_progress_sse",
        hub: Hub::OnTheShard,
        warm_up: 100,
        runs: 400,
        begin: call_with_progress,
        check: |sent| {
            let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"token-17","progress":1,"total":2,"message":"half of it"}}"#;
            expect_events(sent, &[progress, &message_of(&result_of(200))]);
        },
    },
    Case {
        name: "call_64_kib_json",
        hub: Hub::OnTheShard,
        warm_up: 100,
        runs: 400,
        begin: |path| call(path, result_of(64 << 10)),
        check: |sent| expect_json(sent, &message_of(&result_of(64 << 10))),
    },
    Case {
        name: "batch_of_10",
        hub: Hub::OnTheShard,
        warm_up: 100,
        runs: 400,
        begin: batch,
        check: |sent| {
            let ids = FIRST_ID..FIRST_ID + BATCH as u64;
            let messages: Vec<String> = ids.map(|id| message(id, &result_of(200))).collect();
            expect_json(sent, &format!("[{}]", messages.join(",")));
        },
    },
    Case {
        name: "update_to_100_streams",
        hub: Hub::OnTheShard,
        warm_up: 20,
        runs: 100,
        begin: |path| {
            let line = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"model://thing/7"}}"#;
            tell_streams(path, line)
        },
        check: |sent| {
            let told = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"model://thing/7"}}"#;
            expect_parts(sent, &[told; STREAMS]);
        },
    },
    Case {
        name: "list_changed_to_100_streams",
        hub: Hub::OnTheShard,
        warm_up: 20,
        runs: 100,
        begin: |path| {
            let line = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"more":1}}"#;
            tell_streams(path, line)
        },
        check: |sent| {
            let told = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
            expect_parts(sent, &[told; STREAMS]);
        },
    },
    Case {
        name: "subscribe_and_unsubscribe",
        hub: Hub::OnTheShard,
        warm_up: 100,
        runs: 400,
        begin: subscribe_and_unsubscribe,
        check: |sent| {
            let answers: Vec<&str> = sent.split_inclusive('}').collect();
            assert_eq!(answers.len(), 4, "two answers of two brackets each: {sent}");
            expect_json(&answers[..2].concat(), &message(FIRST_ID, "{}"));
            expect_json(&answers[2..].concat(), &message(FIRST_ID, "{}"));
        },
    },
    // The part of `call_200_b_json_new_head` that the other calls do not have.
    Case {
        name: "head_of_9_fields",
        hub: Hub::OnTheShard,
        warm_up: 100,
        runs: 400,
        begin: |path| {
            let session = path.open_session(Version::NEWEST);
            let mut request = Request::new(&path.session_header(session), &call_body(200, ""));
            Box::new(move |_| {
                request.heads.forget();
                let (_, body) = request.heads.read(&request.bytes);
                assert_eq!(body + 200, request.bytes.len());
            })
        },
        check: |sent| assert_eq!(sent, ""),
    },
];

/// Ids of clients' requests count from here: all have the same length.
const FIRST_ID: u64 = 10_000_001;

/// Where such an id goes.
const ID: &str = "########";

const BATCH: usize = 10;

const STREAMS: usize = 100;

/// The requests of a connection: the same bytes again and again, but for the ids.
struct Request {
    bytes: Vec<u8>,
    ids: Vec<usize>,
    next: u64,
    heads: LastHead,
}

impl Request {
    fn new(session: &str, body: &str) -> Request {
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: application/json, text/event-stream\r\n\
             Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n\
             Mcp-Session-Id: {session}\r\nMcp-Protocol-Version: 2025-11-25\r\nUser-Agent: client/1.0\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let text = head + body;
        let ids = text.match_indices(ID).map(|(place, _)| place).collect();
        Request {
            bytes: text.into_bytes(),
            ids,
            next: FIRST_ID,
            heads: LastHead::default(),
        }
    }

    /// Sends the next one.
    fn post(&mut self, path: &mut Path, key: ConnectionKey) -> (Manner, Verdict) {
        for place in &self.ids {
            let digits = &mut self.bytes[*place..][..ID.len()];
            digits.copy_from_slice(itoa::Buffer::new().format(self.next).as_bytes());
            self.next += 1;
        }
        path.post(key, &mut self.heads, &self.bytes)
    }
}

/// A `tools/call` of so many bytes. `more` follows the arguments.
fn call_body(bytes: usize, more: &str) -> String {
    let with = |text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{ID},"method":"tools/call","params":{{"name":"echo","arguments":{{"message":"{text}"}}{more}}}}}"#
        )
    };
    with(&"a plain word ".repeat(20)[..bytes - with("").len()])
}

/// A result with which the answer to a client has so many bytes.
fn result_of(bytes: usize) -> String {
    let with = |text: &str| {
        format!(r#"{{"content":[{{"type":"text","text":"{text}"}}],"isError":false}}"#)
    };
    let frame = message_of(&with("")).len();
    with(&"a plain word ".repeat(bytes / 13 + 1)[..bytes - frame])
}

fn message(id: u64, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// The answer to the first request.
fn message_of(result: &str) -> String {
    message(FIRST_ID, result)
}

/// A session on a connection of its own, and a request of it.
fn client(path: &mut Path, version: Version, body: &str) -> (ConnectionKey, Request) {
    let session = path.open_session(version);
    let header = path.session_header(session);
    (path.connect(), Request::new(&header, body))
}

fn rests(path: &mut Path, key: ConnectionKey) {
    let wake = path.poll(key);
    assert!(wake.is_none(), "{wake:?}");
}

/// Sends a request whose answer is to come later.
fn ask(path: &mut Path, key: ConnectionKey, request: &mut Request) -> Manner {
    let (manner, verdict) = request.post(path, key);
    assert!(matches!(verdict, Verdict::Call { .. }), "{verdict:?}");
    rests(path, key);
    path.gather();
    manner
}

/// The whole response that has come for a call.
fn take_response(path: &mut Path, key: ConnectionKey) {
    match path.poll(key) {
        Some(Wake::Deliveries(deliveries)) => {
            for delivery in deliveries {
                match delivery {
                    Delivery::Response { bytes, .. } => path.write(bytes),
                    other => panic!("{other:?}"),
                }
            }
        }
        other => panic!("{other:?}"),
    }
    path.end(key);
}

/// A request that the server is asked for, from its bytes to those of its answer.
fn answered_call(
    path: &mut Path,
    key: ConnectionKey,
    request: &mut Request,
    result: &str,
    said: &mut Vec<u8>,
) {
    ask(path, key, request);
    said.clear();
    server::answer(&path.stdin, result, said);
    path.hear(said);
    take_response(path, key);
}

fn call(path: &mut Path, result: String) -> Run {
    let (key, mut request) = client(path, Version::NEWEST, &call_body(200, ""));
    let mut said = Vec::new();
    Box::new(move |path| answered_call(path, key, &mut request, &result, &mut said))
}

fn call_one_of_three(path: &mut Path) -> Run {
    let body = call_body(204, "").replace(r#""name":"echo""#, r#""name":"one-echo""#);
    let (key, mut request) = client(path, Version::NEWEST, &body);
    let result = result_of(200);
    let mut said = Vec::new();
    Box::new(move |path| answered_call(path, key, &mut request, &result, &mut said))
}

fn call_with_new_heads(path: &mut Path) -> Run {
    let (key, mut request) = client(path, Version::NEWEST, &call_body(200, ""));
    let result = result_of(200);
    let mut said = Vec::new();
    Box::new(move |path| {
        request.heads.forget();
        answered_call(path, key, &mut request, &result, &mut said);
    })
}

fn call_with_progress(path: &mut Path) -> Run {
    let body = call_body(200, r#","_meta":{"progressToken":"token-17"}"#);
    let (key, mut request) = client(path, Version::NEWEST, &body);
    let result = result_of(200);
    let mut said = Vec::new();
    Box::new(move |path| {
        let manner = ask(path, key, &mut request);
        for is_last in [false, true] {
            said.clear();
            match is_last {
                false => server::progress(&path.stdin, &mut said),
                true => server::answer(&path.stdin, &result, &mut said),
            }
            path.hear(&said);
            let events = match path.poll(key) {
                Some(Wake::Events(events)) => events,
                other => panic!("{other:?}"),
            };
            let before = match is_last {
                false => path.open_events(&manner),
                true => Vec::new(),
            };
            path.write_events(key, before, events);
            if !is_last {
                rests(path, key);
            }
        }
        path.end(key);
    })
}

fn batch(path: &mut Path) -> Run {
    let body = format!("[{}]", vec![call_body(200, ""); BATCH].join(","));
    let (key, mut request) = client(path, Version::V2025_03_26, &body);
    let result = result_of(200);
    let mut said = Vec::new();
    Box::new(move |path| {
        let (manner, verdict) = request.post(path, key);
        let Verdict::Batch {
            mut ready,
            in_flight,
            sse: false,
        } = verdict
        else {
            panic!("{verdict:?}");
        };
        assert_eq!((ready.len(), in_flight.len()), (0, BATCH));
        rests(path, key);
        path.gather();
        said.clear();
        server::answer(&path.stdin, &result, &mut said);
        path.hear(&said);
        match path.poll(key) {
            Some(Wake::Deliveries(deliveries)) => {
                for delivery in deliveries {
                    match delivery {
                        Delivery::Message { message, .. } => ready.push(message),
                        other => panic!("{other:?}"),
                    }
                }
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(ready.len(), BATCH);
        let mut array = vec![b'['];
        array.extend_from_slice(&ready.join(&b","[..]));
        array.push(b']');
        path.write_message(&manner, &array);
        path.end(key);
    })
}

/// Sessions with a stream each, all of them subscribed to one resource. `line` is
/// something that the server tells all of them.
fn tell_streams(path: &mut Path, line: &str) -> Run {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{ID},"method":"resources/subscribe","params":{{"uri":"model://thing/7"}}}}"#
    );
    let streams: Vec<_> = (0..STREAMS)
        .map(|place| {
            let session = path.open_session(Version::NEWEST);
            let header = path.session_header(session);
            let key = path.connect();
            let mut request = Request::new(&header, &body);
            match place {
                0 => answered_call(path, key, &mut request, "{}", &mut Vec::new()),
                _ => {
                    let (manner, verdict) = request.post(path, key);
                    answer_at_once(path, key, &manner, verdict);
                }
            }
            let stream = path.connect();
            path.open_stream(session, stream);
            (session, stream)
        })
        .collect();
    let line = format!("{line}\n");
    Box::new(move |path| {
        path.hear(line.as_bytes());
        for (session, stream) in &streams {
            assert_eq!(path.run_stream(*session, *stream), 1);
        }
    })
}

fn answer_at_once(path: &mut Path, key: ConnectionKey, manner: &Manner, verdict: Verdict) {
    match verdict {
        Verdict::Message { message, .. } => path.write_message(manner, &message),
        other => panic!("{other:?}"),
    }
    path.end(key);
}

fn subscribe_and_unsubscribe(path: &mut Path) -> Run {
    let session = path.open_session(Version::NEWEST);
    let header = path.session_header(session);
    let key = path.connect();
    let mut requests = ["resources/subscribe", "resources/unsubscribe"].map(|method| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{ID},"method":"{method}","params":{{"uri":"model://thing/7"}}}}"#
        );
        Request::new(&header, &body)
    });
    let mut said = Vec::new();
    Box::new(move |path| {
        let [request, opposite] = &mut requests;
        answered_call(path, key, request, "{}", &mut said);
        let (manner, verdict) = opposite.post(path, key);
        answer_at_once(path, key, &manner, verdict);
        path.gather();
        said.clear();
        server::answer(&path.stdin, "{}", &mut said);
        path.hear(&said);
    })
}

/// One response with this JSON as its body.
fn expect_json(sent: &str, body: &str) {
    let (head, rest) = split_head(sent);
    assert_eq!(head[0], "HTTP/1.1 200 OK");
    assert!(head.contains(&"content-type: application/json"), "{head:?}");
    let length = format!("content-length: {}", body.len());
    assert!(head.contains(&&*length), "{head:?}");
    assert_eq!(rest, body);
}

/// One response with these messages as its events, each in a chunk.
fn expect_events(sent: &str, messages: &[&str]) {
    let (head, rest) = split_head(sent);
    assert_eq!(head[0], "HTTP/1.1 200 OK");
    assert!(
        head.contains(&"content-type: text/event-stream"),
        "{head:?}"
    );
    let rest = rest.strip_suffix("0\r\n\r\n").expect("the last chunk");
    expect_parts(rest, messages);
}

/// Chunks with these messages as their events.
fn expect_parts(sent: &str, messages: &[&str]) {
    let chunk = |message: &&str| {
        let event = format!("event: message\ndata: {message}\n\n");
        format!("{:x}\r\n{event}\r\n", event.len())
    };
    let expected: String = messages.iter().map(chunk).collect();
    assert_eq!(sent, expected);
}

fn split_head(sent: &str) -> (Vec<&str>, &str) {
    let (head, rest) = sent.split_once("\r\n\r\n").expect("a head");
    (head.split("\r\n").collect(), rest)
}
