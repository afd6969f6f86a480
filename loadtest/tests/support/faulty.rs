//! A small MCP server that does one thing wrong, as told, so that it can be seen whether that is noticed. A thread a
//! connection; it ends with the test's process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// What is done wrong, now and then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    /// The text of another session's call.
    OthersText,
    /// The text of the session's call before.
    EarlierText,
    /// Another call's id.
    OthersId,
    /// A text without the nonce.
    NoText,
    /// The text's last byte changed.
    OtherPadding,
    TwoReplies,
    NoReply,
    /// The call is accepted, and that is all.
    Accepted,
    /// The response does not come at all.
    Silence,
    NotJson,
    ProgressBack,
    ProgressAfter,
    ProgressOfOthers,
    FewSteps,
    EventOfOthers,
    EventTwice,
    NoEvent,
    Refuses,
}

struct World {
    fault: Fault,
    calls: AtomicU64,
    /// The last text of each session.
    texts: Mutex<Vec<(String, String)>>,
    streams: Mutex<Vec<(TcpStream, String)>>,
}

/// Starts one. Returns its URL.
pub(crate) fn start(fault: Fault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let world = Arc::new(World {
        fault,
        calls: AtomicU64::new(0),
        texts: Mutex::default(),
        streams: Mutex::default(),
    });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let world = Arc::clone(&world);
            std::thread::spawn(move || world.serve(stream));
        }
    });
    url
}

struct Asked {
    method: String,
    session: String,
    body: Vec<u8>,
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut asked = Asked {
        method: line.split(' ').next()?.to_owned(),
        session: String::new(),
        body: Vec::new(),
    };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "mcp-session-id" => asked.session = value.trim().to_owned(),
            "content-length" => asked.body = vec![0; value.trim().parse().ok()?],
            _ => {}
        }
    }
    reader.read_exact(&mut asked.body).ok()?;
    Some(asked)
}

fn event(message: &Value) -> String {
    format!("data: {message}\n\n")
}

impl World {
    fn serve(&self, stream: TcpStream) {
        let mut writer = stream.try_clone().expect("a socket");
        let mut reader = BufReader::new(stream);
        while let Some(asked) = read(&mut reader) {
            if asked.method == "GET" {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
                writer.write_all(head.as_bytes()).expect("written");
                let copy = writer.try_clone().expect("a socket");
                self.streams
                    .lock()
                    .expect("streams")
                    .push((copy, asked.session));
                continue;
            }
            let Some((kind, session, body)) = self.answer(&asked) else {
                continue;
            };
            let session = session.map_or(String::new(), |id| format!("Mcp-Session-Id: {id}\r\n"));
            let (status, length) = (
                if body.is_empty() {
                    "202 Accepted"
                } else {
                    "200 OK"
                },
                body.len(),
            );
            let response = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{session}Content-Length: {length}\r\n\r\n{body}"
            );
            if writer.write_all(response.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// The media type, the id of a new session, and the body.
    fn answer(&self, asked: &Asked) -> Option<(&'static str, Option<String>, String)> {
        const JSON: &str = "application/json";
        let message: Value = serde_json::from_slice(&asked.body).unwrap_or(Value::Null);
        let reply =
            |result: Value| json!({"jsonrpc":"2.0","id":message["id"],"result":result}).to_string();
        match message["method"].as_str() {
            Some("initialize") => {
                let session = format!("s{}", self.calls.fetch_add(1, Ordering::Relaxed));
                Some((
                    JSON,
                    Some(session),
                    reply(json!({"protocolVersion":"2025-11-25"})),
                ))
            }
            Some("tools/call") if self.fault == Fault::Refuses => Some((
                JSON,
                None,
                json!({"jsonrpc":"2.0","id":message["id"],"error":{"code":-32603,"message":"no"}})
                    .to_string(),
            )),
            Some("tools/call") => match message["params"]["name"].as_str() {
                Some("slow") => Some(("text/event-stream", None, self.slow(&message))),
                Some("touch") => {
                    self.touch(&message);
                    Some((JSON, None, reply(json!({"content":[]}))))
                }
                _ => self.echo(asked, &message),
            },
            Some(_) if message.get("id").is_some() => Some((JSON, None, reply(json!({})))),
            _ => Some((JSON, None, String::new())),
        }
    }

    fn echo(
        &self,
        asked: &Asked,
        message: &Value,
    ) -> Option<(&'static str, Option<String>, String)> {
        let text = message["params"]["arguments"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let is_turn = self.calls.fetch_add(1, Ordering::Relaxed) % 5 == 4;
        let fault = if is_turn { self.fault } else { Fault::None };
        let mut texts = self.texts.lock().expect("texts");
        let same = texts
            .iter()
            .rev()
            .find(|(session, _)| *session == asked.session);
        let other = texts
            .iter()
            .rev()
            .find(|(session, _)| *session != asked.session);
        let mut said = text.clone();
        match fault {
            Fault::OthersText => said = other.map_or(text.clone(), |(_, text)| text.clone()),
            Fault::EarlierText => said = same.map_or(text.clone(), |(_, text)| text.clone()),
            Fault::NoText => said = "nothing".into(),
            Fault::OtherPadding => said.replace_range(said.len() - 1.., "y"),
            _ => {}
        }
        texts.push((asked.session.clone(), text));
        drop(texts);
        let mut id = message["id"].clone();
        if fault == Fault::OthersId {
            id = json!(id.as_u64().unwrap_or_default() + 1);
        }
        let reply =
            json!({"jsonrpc":"2.0","id":id,"result":{"content":[{"type":"text","text":said}]}});
        match fault {
            Fault::TwoReplies => Some(("text/event-stream", None, event(&reply) + &event(&reply))),
            Fault::NoReply => Some(("text/event-stream", None, ": nothing\n\n".into())),
            Fault::Accepted => Some(("application/json", None, String::new())),
            Fault::Silence => None,
            Fault::NotJson => Some(("application/json", None, "{".into())),
            _ => Some(("application/json", None, reply.to_string())),
        }
    }

    fn slow(&self, message: &Value) -> String {
        let steps = message["params"]["arguments"]["steps"]
            .as_u64()
            .unwrap_or_default();
        let mut token = message["params"]["_meta"]["progressToken"].clone();
        if self.fault == Fault::ProgressOfOthers {
            token = json!("another");
        }
        let progress = |step: u64| {
            event(
                &json!({"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":token,"progress":step}}),
            )
        };
        let mut steps: Vec<u64> = (1..=steps).collect();
        match self.fault {
            Fault::ProgressBack => steps.swap(0, 1),
            Fault::FewSteps => drop(steps.pop()),
            _ => {}
        }
        let mut out: String = steps.iter().map(|step| progress(*step)).collect();
        out += &event(&json!({"jsonrpc":"2.0","id":message["id"],"result":{"content":[]}}));
        if self.fault == Fault::ProgressAfter {
            out += &progress(1_000);
        }
        out
    }

    fn touch(&self, message: &Value) {
        let mut uri = message["params"]["arguments"]["uri"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if self.fault == Fault::EventOfOthers {
            uri += "/other";
        }
        let said = event(
            &json!({"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":uri}}),
        );
        let times = match self.fault {
            Fault::EventTwice => 2,
            Fault::NoEvent => 0,
            _ => 1,
        };
        for (stream, _) in self.streams.lock().expect("streams").iter_mut() {
            let _ = stream.write_all(said.repeat(times).as_bytes());
        }
    }
}
