//! Nothing of one session ever reaches another. Many sessions use the same ids and tokens at once over
//! connections of their own and over connections that speak for many sessions in turn; every payload
//! carries its session's nonce, and every answer must be the asking session's own.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use support::mcp::request_body;
use support::{Gateway, Layout, Raw, Request, Response, Session, Upstream, on_layouts};

const SESSIONS: usize = 64;
/// Connections that belong to one session; its ids are dealt out to them so that none is in flight twice.
const OWN_CONNECTIONS: usize = 3;
const CALLS_PER_CONNECTION: usize = 24;
/// Connections that speak for all sessions in turn.
const ROAMERS: usize = 6;
const ROAMER_ROUNDS: usize = 3;

/// A call that is about to be made: what must come back is known before it is sent.
struct Call {
    request: Request,
    id: String,
    nonce: String,
}

impl Call {
    /// The call `serial` of session `owner`: every session uses the same ids and tokens.
    fn new(session: &Session, owner: usize, serial: usize) -> Self {
        let id = if serial.is_multiple_of(3) {
            format!("\"{serial}\"")
        } else {
            serial.to_string()
        };
        let nonce = format!("owner {owner} {} call {serial}", session.id);
        // Sizes on both sides of what may be copied and what is moved whole.
        let padding = "p".repeat([0, 10, 700, 5_000, 40_000][(owner + serial) % 5]);
        let meta = if serial.is_multiple_of(2) {
            format!(r#","_meta":{{"progressToken":{id}}}"#)
        } else {
            String::new()
        };
        let params =
            format!(r#"{{"name":"echo","arguments":{{"message":"{nonce} {padding}"}}{meta}}}"#);
        let mut request = session.post(request_body(&id, "tools/call", &params));
        if serial.is_multiple_of(4) {
            request = request.set("Accept", "text/event-stream");
        }
        if serial.is_multiple_of(5) {
            request = request.chunked(&[17, 300]);
        }
        Self { request, id, nonce }
    }

    #[track_caller]
    fn check(&self, response: &Response) {
        let asked = &self.nonce;
        let result = response.result();
        let text = result["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("{response}"));
        assert!(
            text.starts_with(&format!("{asked} ")),
            "asked as {asked:?}, answered {:?}",
            text.get(..120).unwrap_or(text)
        );
        assert_eq!(
            response.raw_id().as_deref(),
            Some(self.id.as_str()),
            "asked as {asked:?}"
        );
    }
}

/// Ids of one session's own connections start where its roamers' end.
fn own_serial(connection: usize, call: usize) -> usize {
    1_000 + call * OWN_CONNECTIONS + connection
}

/// One session's own connection, some calls pipelined.
fn speak_for_one(gateway: &Gateway, session: &Session, owner: usize, connection: usize) -> usize {
    let calls: Vec<Call> = (0..CALLS_PER_CONNECTION)
        .map(|call| Call::new(session, owner, own_serial(connection, call)))
        .collect();
    let mut raw = gateway.connect();
    for burst in calls.chunks(4) {
        ask_pipelined(&mut raw, burst);
    }
    calls.len()
}

/// A connection that changes its session with every request, one by one and pipelined.
fn speak_for_all(gateway: &Gateway, sessions: &[Session], roamer: usize) -> usize {
    let mut raw = gateway.connect();
    let mut made = 0;
    for round in 0..ROAMER_ROUNDS {
        let calls: Vec<Call> = (0..sessions.len())
            .map(|step| {
                // Each roamer walks the sessions in another order.
                let owner = (step * (2 * roamer + 1) + round) % sessions.len();
                Call::new(&sessions[owner], owner, roamer * ROAMER_ROUNDS + round)
            })
            .collect();
        for burst in calls.chunks(if round == 0 { 1 } else { 8 }) {
            ask_pipelined(&mut raw, burst);
        }
        made += calls.len();
    }
    made
}

fn ask_pipelined(raw: &mut Raw, calls: &[Call]) {
    let wire: Vec<u8> = calls.iter().flat_map(|call| call.request.bytes()).collect();
    // Written from another thread: a burst may be larger than the sockets' buffers, and the gateway is
    // right to stop reading while its answers are not taken.
    let mut writer = raw.twin();
    std::thread::scope(|scope| {
        scope.spawn(move || writer.send(wire));
        for call in calls {
            call.check(&raw.response());
        }
    });
}

fn every_session_gets_its_own(layout: Layout, upstream: Upstream<'_>) {
    let gateway = layout.start(&[], upstream);
    let sessions: Vec<Session> = (0..SESSIONS).map(|_| Session::open(&gateway)).collect();
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (owner, session) in sessions.iter().enumerate() {
            for connection in 0..OWN_CONNECTIONS {
                let (gateway, made) = (&gateway, &made);
                scope.spawn(move || {
                    let count = speak_for_one(gateway, session, owner, connection);
                    made.fetch_add(count, Ordering::Relaxed);
                });
            }
        }
        for roamer in 0..ROAMERS {
            let (gateway, sessions, made) = (&gateway, &sessions, &made);
            scope.spawn(move || {
                let count = speak_for_all(gateway, sessions, roamer);
                made.fetch_add(count, Ordering::Relaxed);
            });
        }
    });
    let expected =
        SESSIONS * OWN_CONNECTIONS * CALLS_PER_CONNECTION + ROAMERS * ROAMER_ROUNDS * SESSIONS;
    assert_eq!(made.into_inner(), expected);
}

/// The promise of the whole gateway, at the speed of a fast server.
#[test]
fn every_answer_is_the_sessions_own() {
    on_layouts(&[1, 2, 4], |layout| {
        every_session_gets_its_own(layout, Upstream::Demo)
    });
}

/// The same with a server that answers in a random order, so that order cannot stand in for ids.
#[test]
fn every_answer_is_the_sessions_own_when_the_server_reorders() {
    on_layouts(&[1, 2, 4], |layout| {
        let arguments = ["--shuffle", "7"];
        every_session_gets_its_own(layout, Upstream::Python("scripted.py", &arguments));
    });
}

/// Sessions come and go while others work, call slots and session places are used again and again, and
/// cancels cut calls short: no reply may outlive its session into the next one.
#[test]
fn every_answer_is_the_sessions_own_while_sessions_come_and_go() {
    on_layouts(&[1, 2, 4], |layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        std::thread::scope(|scope| {
            for owner in 0..16 {
                let gateway = &gateway;
                scope.spawn(move || come_and_go(gateway, owner));
            }
        });
    });
}

fn come_and_go(gateway: &Gateway, owner: usize) {
    let mut raw = gateway.connect();
    for round in 0..12 {
        let session = Session::open(gateway);
        // A slow call on another connection is cut off by the cancel, by the end of the session, or by the
        // end of the connection.
        let mut aside = gateway.connect();
        let slow = session.call("1", "slow", r#"{"steps":1000,"interval_ms":20}"#);
        aside.send(slow.set("Accept", "application/json").bytes());
        aside.wait_until_read();
        for serial in 2..8 {
            let call = Call::new(&session, owner * 100 + round, serial);
            call.check(&raw.ask(&call.request));
        }
        match round % 3 {
            0 => {
                // The cancel may come before the call it names: then the end of the session ends it.
                assert_eq!(raw.ask(&session.cancel("1")).status, 202);
                assert_eq!(raw.ask(&session.delete()).status, 204);
                check_cut(&aside.response());
            }
            1 => {
                assert_eq!(raw.ask(&session.delete()).status, 204);
                check_cut(&aside.response());
            }
            _ => {
                aside.reset();
                assert_eq!(raw.ask(&session.delete()).status, 204);
            }
        }
        let late = Call::new(&session, owner, 3);
        assert_eq!(raw.ask(&late.request).status, 404);
    }
}

/// The slow call was cancelled, ended with its session, or came after it: never answered with a result.
fn check_cut(response: &Response) {
    let message: Value = response.message();
    assert!(message.get("result").is_none(), "{response}");
    match response.status {
        200 => {
            let reason = message["error"]["data"]["reason"].as_str();
            assert!(
                matches!(reason, Some("cancelled" | "session_ended")),
                "{response}"
            );
        }
        404 => {}
        _ => panic!("{response}"),
    }
}

/// A connection that moves to another session's shard takes its unread bytes along, wherever they are cut.
#[test]
fn connection_changes_sessions_in_the_middle_of_a_read() {
    on_layouts(&[2, 4], |layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let sessions: Vec<Session> = (0..12).map(|_| Session::open(&gateway)).collect();
        let calls: Vec<Call> = (0..36)
            .map(|step| Call::new(&sessions[step % 12], step % 12, 10 * (step / 12) + 1))
            .collect();
        let wire: Vec<u8> = calls.iter().flat_map(|call| call.request.bytes()).collect();
        // Step sizes that never fall in with the requests' sizes.
        for size in [1_009, 4_099, 65_537] {
            let mut raw = gateway.connect();
            let mut writer = raw.twin();
            let wire = &wire;
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for part in wire.chunks(size) {
                        writer.send(part);
                    }
                });
                for call in &calls {
                    call.check(&raw.response());
                }
            });
        }
    });
}
