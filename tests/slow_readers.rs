//! Clients that have opened a stream and do not read it: what waits for them is bounded, what must not be lost
//! is kept, and nobody else notices.

mod support;

use std::sync::{Mutex, MutexGuard};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::mcp::call_with_token_body;
use support::metrics::{self, Metrics};
use support::process::{descriptors, raise_open_files, resident_peak_bytes};
use support::stream::{BARRIER, carried_by, value};
use support::{
    Base, Gateway, Layout, Raw, Script, Session, Stream, Upstream, hex, on_both_drivers,
    on_every_way, on_layouts, wait_until,
};

const MIB: u64 = 1 << 20;
const TOOLS: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    layout.start(flags, Upstream::Python("scripted.py", &[]))
}

/// The crowds share this process's descriptors and the machine's memory: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static CROWD: Mutex<()> = Mutex::new(());
    CROWD.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// A session that works beside the others: its calls are answered and its stream tells what happens.
struct Bystander<'g> {
    gateway: &'g Gateway,
    session: Session,
    connection: Raw,
    stream: Stream,
}

impl<'g> Bystander<'g> {
    fn new(gateway: &'g Gateway) -> Self {
        let session = Session::open(gateway);
        Self {
            gateway,
            connection: gateway.connect(),
            stream: Stream::open(gateway, &session),
            session,
        }
    }

    fn works(&mut self, script: &Script<'_>) {
        let echo = self.session.call("1", "echo", r#"{"message":"m"}"#);
        let answer = self.connection.ask(&echo);
        assert_eq!(answer.result()["content"][0]["text"], "m", "{answer}");
        script.say(&[TOOLS]);
        let carried = carried_by(script, &mut self.stream);
        assert!(carried.contains(&TOOLS.to_owned()), "{carried:?}");
        let reports = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN@,"progress":1}}"#;
        let reply = r#"{"jsonrpc":"2.0","id":@ID@,"result":{}}"#;
        let arguments = json!({ "lines": [hex(reports.as_bytes()), hex(reply.as_bytes())] });
        let call = self
            .session
            .call_with_token("2", "send", &arguments.to_string(), "\"t\"");
        let answer = self.gateway.ask(&call);
        assert_eq!(answer.messages().len(), 2, "{answer}");
    }
}

/// A GET stream on a connection that takes as little as can be, and is not read.
fn lazy_stream(gateway: &Gateway, session: &Session) -> Raw {
    let mut connection = Raw::connect_lazily(gateway.address);
    connection.send(session.get().bytes());
    connection
}

/// A thousand streams that nobody reads while the server changes its lists all the time.
#[test]
fn thousand_unread_get_streams_hurt_nobody() {
    let _alone = alone();
    let count = 1_000.min(raise_open_files().saturating_sub(500));
    on_layouts(&[1, 2], |layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let mut bystander = Bystander::new(&gateway);
        bystander.works(&script);
        let base = Base::of(&gateway);
        let sessions: Vec<Session> = (0..count).map(|_| Session::open(&gateway)).collect();
        let mut unread: Vec<Raw> = sessions
            .iter()
            .map(|session| lazy_stream(&gateway, session))
            .collect();
        for _ in 0..20 {
            for _ in 0..20 {
                script.say(&[TOOLS, BARRIER, TOOLS]);
            }
            bystander.works(&script);
        }
        let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
        println!(
            "figure: {count} unread streams: {} MiB more at the peak, {layout:?}",
            more / MIB
        );
        assert!(more < 200 * MIB, "{} MiB", more / MIB);
        // Each session works, although its stream is not read.
        for session in sessions.iter().step_by(50) {
            let echo = session.call("1", "echo", r#"{"message":"m"}"#);
            assert_eq!(gateway.ask(&echo).result()["content"][0]["text"], "m");
        }
        // Those who read on are told of the last change.
        script.say(&[r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#]);
        for connection in unread.drain(..).step_by(50) {
            let mut stream = Stream::of_answer(connection);
            while !stream.message().contains("resources/list_changed") {}
        }
        base.wait_until_back(&gateway);
        bystander.works(&script);
    });
}

/// The URIs of a session whose stream is stuck: long ones, so that few of them fill its socket.
fn long_uris(count: usize) -> Vec<String> {
    let padding = "u".repeat(6_000);
    (0..count)
        .map(|number| format!("a:{number}:{padding}"))
        .collect()
}

fn update(uri: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
    )
}

/// Subscribes to all of them and fills the stream's socket with updates, far more than any socket takes.
fn get_stuck(gateway: &Gateway, script: &Script<'_>, session: &Session, uris: &[String]) -> Raw {
    let mut connection = gateway.connect();
    for uri in uris {
        let response = connection.ask(&session.subscribe("1", uri));
        assert_eq!(response.result(), json!({}), "{response}");
    }
    let unread = lazy_stream(gateway, session);
    flood(script, uris, ROUNDS);
    unread
}

const ROUNDS: usize = 60;

/// Lets the server tell all of them, one after the other, so many times.
fn flood(script: &Script<'_>, uris: &[String], rounds: usize) {
    let lines: Vec<String> = uris.iter().map(|uri| update(uri)).collect();
    let last = br#"{"jsonrpc":"2.0","id":@ID@,"result":{}}"#;
    let line = hex(lines.join("\n").as_bytes());
    script.tool(
        "repeat",
        &json!({ "count": rounds, "line": line, "last": hex(last) }),
    );
}

/// A stream that is not read is the trouble of nobody, its own session's calls included; what it has missed
/// becomes one event for each thing when it is read again.
#[test]
fn unread_get_stream_does_not_block_its_own_session_and_is_told_what_it_missed() {
    let _alone = alone();
    on_every_way(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let mut bystander = Bystander::new(&gateway);
        let session = Session::open(&gateway);
        let uris = long_uris(100);
        let unread = get_stuck(&gateway, &script, &session, &uris);
        bystander.works(&script);
        let mut connection = gateway.connect();
        for id in 0..50 {
            let echo = session.call(&id.to_string(), "echo", r#"{"message":"m"}"#);
            let accept = ["application/json", "text/event-stream"][id % 2];
            let answer = connection.ask(&echo.set("Accept", accept));
            assert_eq!(answer.result()["content"][0]["text"], "m", "{answer}");
        }
        // It can take subscriptions back and make others, too.
        let response = connection.ask(&session.unsubscribe("1", &uris[0]));
        assert_eq!(response.result(), json!({}));
        let response = connection.ask(&session.subscribe("1", "a:last"));
        assert_eq!(response.result(), json!({}));
        script.say(&[&update("a:last")]);
        let mut stream = Stream::of_answer(unread);
        let mut carried = Vec::new();
        while carried.last().is_none_or(|last| *last != update("a:last")) {
            carried.push(stream.message());
        }
        carried.extend(carried_by(&script, &mut stream));
        for uri in &uris[1..] {
            let count = carried.iter().filter(|one| **one == update(uri)).count();
            assert!((1..ROUNDS).contains(&count), "{count} of {ROUNDS}");
        }
        println!(
            "figure: a stuck stream told {} of {} updates, {layout:?}",
            carried.len(),
            uris.len() * ROUNDS
        );
        // Once it reads, it is as good as any.
        script.say(&[&update(&uris[5])]);
        assert_eq!(carried_by(&script, &mut stream), [update(&uris[5])]);
    });
}

/// The text of an answer that was cut off, its head and the lines that frame its chunks left out.
fn without_chunks(answer: &str) -> String {
    let (_, mut rest) = answer.split_once("\r\n\r\n").expect("a head");
    let mut text = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        let chunk = after.get(..size).unwrap_or(after);
        text.push_str(chunk);
        rest = after.get(size + 2..).unwrap_or("");
    }
    text
}

/// What a stream had begun to write when it was cut off is told on the next one: of the one and the other
/// together a client has everything.
#[test]
fn what_a_stream_could_not_write_is_told_on_the_next_one() {
    const COUNT: usize = 800;
    let _alone = alone();
    on_every_way(|layout| {
        let flags = ["--max-subscriptions-per-session", "1000"];
        let gateway = scripted(layout, &flags);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let uris = long_uris(COUNT);
        let mut connection = gateway.connect();
        for uri in &uris {
            let response = connection.ask(&session.subscribe("1", uri));
            assert_eq!(response.result(), json!({}), "{response}");
        }
        let mut unread = lazy_stream(&gateway, &session);
        // Each once: more than a socket takes, and nothing comes behind it that would be told anyway.
        for some in uris.chunks(200) {
            flood(&script, some, 1);
        }
        let with_one = Base::of(&gateway).descriptors;
        let mut newer = Stream::open(&gateway, &session);
        wait_until("the older stream is cut off", || {
            descriptors(gateway.pid()) <= with_one
        });
        let older = String::from_utf8(unread.rest()).expect("SSE is UTF-8");
        let newer = carried_by(&script, &mut newer);
        let older = without_chunks(&older);
        let mut by_the_older = 0;
        for uri in &uris {
            let update = update(uri);
            let is_whole = older.contains(&format!("{update}\n\n"));
            by_the_older += usize::from(is_whole);
            assert!(
                is_whole || newer.contains(&update),
                "told by neither: {}",
                &uri[..8]
            );
        }
        assert!(
            (1..COUNT).contains(&by_the_older),
            "{by_the_older} by the older"
        );
    });
}

/// A stuck stream ends with its session, and another GET takes its place, although nothing can be written to it.
#[test]
fn stuck_stream_ends_with_its_session_and_can_be_replaced() {
    let _alone = alone();
    on_every_way(|layout| {
        let gateway = scripted(layout, &["--write-timeout", "1s"]);
        let script = Script::new(&gateway);
        let mut bystander = Bystander::new(&gateway);
        bystander.works(&script);
        let base = Base::of(&gateway);
        let session = Session::open(&gateway);
        let uris = long_uris(100);
        let _unread = get_stuck(&gateway, &script, &session, &uris);
        let mut newer = Stream::open(&gateway, &session);
        script.say(&[&update(&uris[5])]);
        while newer.message() != update(&uris[5]) {}
        let _newer = {
            let connection = lazy_stream(&gateway, &session);
            flood(&script, &uris, ROUNDS);
            connection
        };
        assert_eq!(gateway.ask(&session.delete()).status, 204);
        drop(newer);
        // Both clients still hold their ends.
        base.wait_until_back(&gateway);
        bystander.works(&script);
    });
}

/// The operator's end does not wait for a client that does not read.
#[test]
fn stuck_stream_does_not_hold_up_the_drain() {
    let _alone = alone();
    on_both_drivers(|layout| {
        let mut gateway = scripted(layout, &["--drain-timeout", "2s"]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let _unread = get_stuck(&gateway, &script, &session, &long_uris(100));
        drop(script);
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
    });
}

/// The number of a report.
fn step(message: &Value) -> Option<usize> {
    let step = message["params"]["progress"].as_u64()?;
    usize::try_from(step).ok()
}

/// As many calls with a token as there are keys, on connections that nobody reads.
fn hold_unread(gateway: &Gateway, script: &Script<'_>, keys: &[String]) -> Vec<Raw> {
    let sessions: Vec<Session> = (0..8).map(|_| Session::open(gateway)).collect();
    let unread = keys.iter().enumerate().map(|(number, key)| {
        let mut connection = Raw::connect_lazily(gateway.address);
        let arguments = json!({ "key": key }).to_string();
        let session = &sessions[number % sessions.len()];
        let call = session.call_with_token(&number.to_string(), "hold", &arguments, "\"t\"");
        connection.send(call.add("Connection", "close").bytes());
        connection
    });
    let unread = unread.collect();
    script.wait_held_count(keys.len());
    unread
}

/// Lets the server report `count` steps of 8 KB of each of these calls, from `first` on.
fn report(script: &Script<'_>, keys: &[String], first: usize, count: usize) {
    let line = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN@,"progress":@N@,"message":"@PAD@"}}"#;
    let arguments = json!({
        "first": first,
        "count": count,
        "keys": keys,
        "pad": 8_000,
        "line": hex(line.as_bytes()),
        "last": hex(br#"{"jsonrpc":"2.0","id":@ID@,"result":{}}"#),
    });
    script.tool("repeat", &arguments);
}

/// Hundreds of calls report much and nobody reads: the oldest reports go, and are counted; the newest and the
/// answer are there when the client reads on; and others work all the time.
#[test]
fn unread_post_streams_lose_old_progress_but_never_their_answer() {
    // More than a socket keeps for its client, 4 MiB here, and Ringway for its connection.
    report_to_unread(200, 28, &[], 600);
}

/// The same with a thousand, whose reports are far more than the shards may keep: the oldest of the largest
/// backlogs go, so that everybody's newest are there, and somebody who reads loses nothing.
#[test]
fn thousand_unread_post_streams_share_the_budget_and_hurt_nobody() {
    // Two shards may keep 256 MiB; what the allocator holds besides is a few times that at worst.
    report_to_unread(1_000, 12, &["--max-buffered", "128MiB"], 900);
}

fn report_to_unread(count: usize, portions: usize, flags: &[&str], mebibytes_max: u64) {
    const STEPS: usize = 40;
    let _alone = alone();
    assert!(raise_open_files() > count + 500, "too few descriptors");
    on_layouts(&[2], |layout| {
        let gateway = scripted(layout, &[flags, &metrics::FLAGS[..]].concat());
        let metrics = Metrics::of(&gateway);
        let script = Script::new(&gateway);
        let mut bystander = Bystander::new(&gateway);
        bystander.works(&script);
        let base = Base::of(&gateway);
        let keys: Vec<String> = (0..count).map(|number| format!("k{number}")).collect();
        let unread = hold_unread(&gateway, &script, &keys);
        for portion in 0..portions {
            report(&script, &keys, portion * STEPS, STEPS);
            bystander.works(&script);
        }
        let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
        assert_eq!(script.tool("release_all", &json!({}))["released"], count);
        bystander.works(&script);
        let lost = metrics.drops("slow_reader");
        let mut told = 0;
        for (number, connection) in unread.into_iter().enumerate() {
            let (before, last) = Stream::of_answer(connection).answer();
            let last = value(&last);
            assert_eq!(last["id"], number, "{last}");
            assert_eq!(last["result"]["released"], keys[number].as_str());
            let steps: Vec<usize> = before
                .iter()
                .map(|message| step(&value(message)).expect("a report"))
                .collect();
            assert!(steps.is_sorted_by(|one, next| one < next), "{steps:?}");
            assert_eq!(steps.last(), Some(&(portions * STEPS - 1)), "the newest");
            told += steps.len();
        }
        println!(
            "figure: {count} unread streams were told {told} of {} reports, {} MiB more at the peak, {layout:?}",
            count * portions * STEPS,
            more / MIB
        );
        assert!(lost > 0.0, "nothing was lost: the sockets took it all");
        assert_eq!(told + lost as usize, count * portions * STEPS);
        assert!(more < mebibytes_max * MIB, "{} MiB", more / MIB);
        base.wait_until_back(&gateway);
        bystander.works(&script);
    });
}

/// The answer of one call of a batch is older than much of what the other reports, and stays all the same.
#[test]
fn answer_in_front_of_much_progress_is_not_lost() {
    let _alone = alone();
    on_every_way(|layout| {
        let gateway = scripted(layout, &metrics::FLAGS);
        let metrics = Metrics::of(&gateway);
        let script = Script::new(&gateway);
        let session = Session::open_at(&gateway, "2025-03-26");
        let held = |id: &str, key: &str| {
            let arguments = json!({ "key": key }).to_string();
            call_with_token_body(id, "hold", &arguments, "\"t\"")
        };
        let batch = session.post(format!("[{},{}]", held("1", "quick"), held("2", "slow")));
        let mut unread = Raw::connect_lazily(gateway.address);
        unread.send(batch.set("Accept", "text/event-stream").bytes());
        script.wait_held_count(2);
        let slow = ["slow".to_owned()];
        // Before it is stuck, while it is stuck, and with the answer in between.
        report(&script, &slow, 0, 500);
        script.release("quick");
        report(&script, &slow, 500, 500);
        script.release("slow");
        assert!(metrics.drops("slow_reader") > 0.0, "it was not stuck");
        let messages = Stream::of_answer(unread).rest();
        let answers: Vec<Value> = messages.iter().map(|message| value(message)).collect();
        let answers: Vec<&Value> = answers
            .iter()
            .filter(|message| message["result"].is_object())
            .collect();
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0]["result"]["released"], "quick");
        assert_eq!(answers[1]["result"]["released"], "slow");
    });
}

/// With less room than that, progress goes first, and if need be the largest backlogs with their connections;
/// who is not cut off has the whole answer, and nobody else notices.
#[test]
fn unread_post_streams_cost_no_more_than_the_budget() {
    const STREAMS: usize = 60;
    let _alone = alone();
    on_both_drivers(|layout| {
        let flags = [&["--max-buffered", "24MiB"], &metrics::FLAGS[..]].concat();
        let gateway = scripted(layout, &flags);
        let metrics = Metrics::of(&gateway);
        let script = Script::new(&gateway);
        let mut bystander = Bystander::new(&gateway);
        bystander.works(&script);
        let base = Base::of(&gateway);
        let keys: Vec<String> = (0..STREAMS).map(|number| format!("k{number}")).collect();
        let unread = hold_unread(&gateway, &script, &keys);
        for portion in 0..12 {
            report(&script, &keys, portion * 40, 40);
            bystander.works(&script);
        }
        let more = resident_peak_bytes(gateway.pid()).saturating_sub(base.resident_bytes);
        assert!(more < 200 * MIB, "{} MiB", more / MIB);
        script.tool("release_all", &json!({}));
        bystander.works(&script);
        let mut whole = 0;
        for (number, mut connection) in unread.into_iter().enumerate() {
            // Cut off, or all there.
            let text = connection.rest();
            let reply = format!(r#""id":{number},"result":{{"released":"k{number}"}}"#);
            let is_whole = text.ends_with(b"\r\n0\r\n\r\n");
            assert_eq!(
                is_whole,
                support::http::find(&text, reply.as_bytes()).is_some()
            );
            whole += usize::from(is_whole);
        }
        println!(
            "figure: {whole} of {STREAMS} unread streams were kept in 24 MiB, {} MiB more at the peak, {layout:?}",
            more / MIB
        );
        assert!(whole >= STREAMS / 2, "only {whole} were kept");
        assert!(metrics.drops("slow_reader") > 0.0);
        base.wait_until_back(&gateway);
        bystander.works(&script);
    });
}
