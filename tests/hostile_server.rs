//! The server as an enemy: floods, garbage, half a line, lines of every size, deaths of every kind. Each
//! time whoever is concerned gets a clear answer, nobody else notices, and memory stays bounded. Stray ids
//! and lines that are not JSON have their place in `server_messages` and `upstream_stdio`.

mod support;

use serde_json::json;
use support::mcp::ping_body;
use support::process::resident_peak_bytes;
use support::{
    Base, Gateway, Layout, Raw, Scratch, Script, Session, Upstream, hex, on_both_drivers,
    on_every_layout, wait_until,
};

const MIB: usize = 1 << 20;

/// Some calls here are never answered: the end of the gateway must not wait for them.
fn scripted(layout: Layout, flags: &[&str]) -> Gateway {
    let flags = [&["--drain-timeout", "500ms"], flags].concat();
    layout.start(&flags, Upstream::Python("scripted.py", &[]))
}

#[track_caller]
fn expect_down(connection: &mut Raw, id: &str) {
    let response = connection.response();
    let error = response.expect_error(200, -32603, Some(id));
    assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
}

fn wait_until_up(gateway: &Gateway, session: &Session) {
    wait_until("the server answers again", || {
        let response = gateway.ask(&session.call("\"up?\"", "echo", "{}"));
        response.message()["result"].is_object()
    });
}

/// An answer of exactly the longest line comes through; one byte more is skipped, and its call is told so.
#[test]
fn line_of_the_longest_size_passes_and_one_byte_more_is_an_error_for_its_call() {
    on_every_layout(|layout| {
        let flags = ["--max-message", "1000000"];
        let gateway = scripted(layout, &flags);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let fits = session.call("1", "pad", r#"{"size":1000000}"#);
        let result = connection.ask(&fits).result();
        assert!(
            result["x"]
                .as_str()
                .is_some_and(|text| text.len() > 999_900)
        );
        let over = session.call("2", "pad", r#"{"size":1000001}"#);
        let response = connection.ask(&over);
        let error = response.expect_error(200, -32603, Some("2"));
        assert_eq!(error["data"]["reason"], "overloaded", "{response}");
        assert_eq!(connection.ask(&session.call("3", "echo", "{}")).status, 200);
    });
}

/// The default takes lines of 64 MiB. A line just under comes through whole and does not stay in memory
/// several times over; a line over it costs nothing.
#[test]
fn line_of_64_mebibytes_passes_by_default_and_a_longer_one_costs_nothing() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &[]);
        let session = Session::open(&gateway);
        assert_eq!(gateway.ask(&session.call("0", "echo", "{}")).status, 200);
        let base = Base::of(&gateway);
        let mut connection = gateway.connect();
        let size = 64 * MIB - 1;
        let arguments = json!({ "size": size }).to_string();
        connection.send(session.call("1", "pad", &arguments).bytes());
        let response = connection.response();
        assert_eq!(response.status, 200);
        // The client's id is shorter than the one that the server was given.
        assert!(
            response.body.len() > size - 20,
            "{} bytes",
            response.body.len()
        );
        let text = response.body.as_slice();
        let text = text.strip_prefix(br#"{"jsonrpc":"2.0","id":1,"result":{"x":""#);
        let text = text.and_then(|text| text.strip_suffix(b"\"}}"));
        assert!(text.is_some_and(|text| text.iter().all(|byte| *byte == b'x')));
        let peak = resident_peak_bytes(gateway.pid());
        println!(
            "figure: an answer of 64 MiB: {} MiB more at the peak, {}",
            peak.saturating_sub(base.resident_bytes) / MIB as u64,
            layout.driver
        );
        let arguments = json!({ "size": 64 * MIB + 1 }).to_string();
        connection.send(session.call("2", "pad", &arguments).bytes());
        let response = connection.response();
        let error = response.expect_error(200, -32603, Some("2"));
        assert_eq!(error["data"]["reason"], "overloaded", "{response}");
        assert_eq!(connection.ask(&session.call("3", "echo", "{}")).status, 200);
        gateway.stderr.wait_for("the line that is too long", |log| {
            log.contains("--max-message")
        });
    });
}

/// Garbage as fast as the server can write it: skipped, bounded, and nobody has to wait for its end.
#[test]
fn garbage_without_end_is_skipped_while_the_others_are_served() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let session = Session::open(&gateway);
        assert_eq!(gateway.ask(&session.call("0", "echo", "{}")).status, 200);
        let base = Base::of(&gateway);
        for (kind, garbage) in [
            ("no newline at all", b"x".to_vec()),
            ("binary", b"\x00\xff\xfe\x80\n".to_vec()),
            ("long lines", [&[b'['; 4_000][..], b"\n"].concat()),
            (
                "almost a message",
                br#"{"jsonrpc":"2.0","id":1,"result":{"a":[[[["#.to_vec(),
            ),
            ("empty lines", b"\n".to_vec()),
        ] {
            let scratch = Scratch::new();
            let until = scratch.path("until");
            let mut babbling = gateway.connect();
            let arguments = json!({ "hex": hex(&garbage), "megabytes_max": 3_000, "until": until });
            let babble = session.call("\"b\"", "babble", &arguments.to_string());
            babbling.send(babble.bytes());
            // What needs no server is answered in the middle of it.
            for turn in 0..20 {
                let other = Session::open(&gateway);
                assert_eq!(gateway.ask(&other.post(ping_body("1"))).status, 200);
                assert_eq!(gateway.ask(&other.delete()).status, 204);
                assert!(
                    !babbling.has_something(),
                    "all of the garbage ({kind}) was read before session {turn} was served"
                );
            }
            std::fs::write(&until, "").expect("ours");
            let megabytes = babbling.response().result()["megabytes"].clone();
            println!(
                "figure: 20 sessions came and went during {megabytes} MB of garbage ({kind}), {layout:?}"
            );
            assert_eq!(gateway.ask(&session.call("1", "echo", "{}")).status, 200);
        }
        let peak = resident_peak_bytes(gateway.pid());
        let more = peak.saturating_sub(base.resident_bytes) / MIB as u64;
        println!("figure: garbage: {more} MiB more at the peak, --max-message 64 MiB, {layout:?}");
        assert!(more < 450, "{more} MiB");
        assert!(gateway.stderr.text().len() < MIB, "the log is flooded too");
    });
}

/// Half an answer and then nothing: the call waits for its time-out, the others for the rest of the line; a
/// server that dies over it answers nobody with that half.
#[test]
fn half_a_line_then_silence_then_death_is_never_an_answer() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut held = script.hold(&session, "1", "k");
        let id = script.upstream_id("k");
        let half = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"half":true"#);
        let mut half_sent = gateway.connect();
        let arguments = json!({ "hex": hex(half.as_bytes()) }).to_string();
        half_sent.send(session.call("2", "write", &arguments).bytes());
        let mut exit = gateway.connect();
        exit.send(session.call("3", "exit", r#"{"code":9}"#).bytes());
        expect_down(&mut held, "1");
        expect_down(&mut half_sent, "2");
        expect_down(&mut exit, "3");
        wait_until_up(&gateway, &session);
        // The rest of the line would have made it a message of the next child.
        let rest = json!({ "hex": hex(b"}}\n") }).to_string();
        let mut connection = gateway.connect();
        connection.send(session.call("4", "write", &rest).bytes());
        assert_eq!(gateway.ask(&session.call("5", "echo", "{}")).status, 200);
        assert!(!connection.has_something());
    });
}

/// A whole answer without a newline before the end is still an answer: the server's last word counts.
#[test]
fn whole_answer_before_death_counts_even_without_its_newline() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut held = script.hold(&session, "1", "k");
        let id = script.upstream_id("k");
        let whole = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"whole":true}}}}"#);
        let arguments = json!({ "hex": hex(whole.as_bytes()) }).to_string();
        let mut write = gateway.connect();
        write.send(session.call("2", "write", &arguments).bytes());
        let mut exit = gateway.connect();
        exit.send(session.call("3", "exit", r#"{"code":0}"#).bytes());
        let response = held.response();
        assert_eq!(response.result()["whole"], true, "{response}");
        expect_down(&mut write, "2");
        expect_down(&mut exit, "3");
    });
}

/// However it ends, its callers are told and it is started again; how it ended is in the log.
#[test]
fn every_way_of_dying_is_survived_and_told_in_the_log() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        for (death, code) in [0, 1, 255].into_iter().enumerate() {
            let mut connection = gateway.connect();
            let arguments = json!({ "code": code }).to_string();
            connection.send(session.call("1", "exit", &arguments).bytes());
            expect_down(&mut connection, "1");
            wait_until_up(&gateway, &session);
            let told = |log: &str| {
                log.lines()
                    .filter(|line| line.contains("started again"))
                    .nth(death)
                    .map(str::to_owned)
            };
            let log = gateway
                .stderr
                .wait_for("this death", |log| told(log).is_some());
            let told = told(&log).expect("waited for");
            assert!(told.contains(&format!("exit status: {code}")), "{log}");
        }
        // By a signal, as when the kernel runs out of memory.
        support::process::kill(script.pid());
        wait_until("its end is noticed", || {
            gateway.stderr.text().lines().any(|line| {
                line.contains("started again") && (line.contains("signal") || line.contains('9'))
            })
        });
        wait_until_up(&gateway, &session);
    });
}

/// A server that asks and never reads its answers must not make the gateway keep them all, nor block it.
#[test]
fn flood_of_questions_from_a_server_that_does_not_read_is_bounded() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let session = Session::open(&gateway);
        assert_eq!(gateway.ask(&session.call("0", "echo", "{}")).status, 200);
        let base = Base::of(&gateway);
        for method in ["ping", "sampling/createMessage", "vendor/x"] {
            let mut flooding = gateway.connect();
            let arguments = json!({ "method": method, "count": 100_000 }).to_string();
            flooding.send(session.call("\"f\"", "ask_flood", &arguments).bytes());
            let other = Session::open(&gateway);
            for _ in 0..10 {
                assert_eq!(gateway.ask(&other.post(ping_body("1"))).status, 200);
            }
            assert_eq!(flooding.response().result()["asked"], 100_000, "{method}");
            assert_eq!(gateway.ask(&session.call("1", "echo", "{}")).status, 200);
        }
        let peak = resident_peak_bytes(gateway.pid());
        let more = peak.saturating_sub(base.resident_bytes) / MIB as u64;
        println!(
            "figure: 300,000 questions that are not heard: {more} MiB more at the peak, {layout:?}"
        );
        assert!(more < 100, "{more} MiB");
    });
}

/// An answer to a call of another session, or to the same call twice in one write, reaches nobody else.
#[test]
fn answers_given_twice_in_one_write_reach_one_call_each() {
    on_every_layout(|layout| {
        let gateway = scripted(layout, &[]);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..20).map(|_| Session::open(&gateway)).collect();
        let mut held: Vec<Raw> = sessions
            .iter()
            .enumerate()
            .map(|(number, session)| script.hold(session, "1", &format!("k{number}")))
            .collect();
        let ids: Vec<String> = (0..20)
            .map(|number| script.upstream_id(&format!("k{number}")))
            .collect();
        let mut lines = String::new();
        for (number, id) in ids.iter().enumerate() {
            for form in [
                format!("{id}.0"),
                format!("-{id}"),
                id.clone(),
                id.clone(),
                format!("\"{id}\""),
            ] {
                lines += &format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{form},\"result\":{{\"of\":{number}}}}}\n"
                );
            }
        }
        let mut write = gateway.connect();
        let arguments = json!({ "hex": hex(lines.as_bytes()) }).to_string();
        write.send(sessions[0].call("2", "write", &arguments).bytes());
        for (number, connection) in held.iter_mut().enumerate() {
            assert_eq!(connection.response().result()["of"], number);
            let next = connection.ask(&sessions[number].call("1", "echo", r#"{"message":"n"}"#));
            assert_eq!(next.result()["content"][0]["text"], "n", "{next}");
            assert!(!connection.has_something());
        }
    });
}
