//! The server as a child process: what it is given, what may come out of it, and how it ends. Nothing that
//! a server writes may harm the gateway, and no server may outlive it, however it ends.

mod support;

use std::os::unix::process::CommandExt;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::gateway::command;
use support::mcp::ping_body;
use support::scripted::send_arguments;
use support::{
    Gateway, Layout, Raw, Scratch, Script, Session, Upstream, hex, on_both_drivers,
    on_every_layout, process_runs, wait_until,
};

fn scripted(layout: Layout) -> Gateway {
    layout.start(&[], Upstream::Python("scripted.py", &[]))
}

/// A server's complaints are the operator's first clue; its bytes must not drive the operator's terminal.
#[test]
fn stderr_is_relayed_line_by_line_and_escaped() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let script = Script::new(&gateway);
        let text =
            b"first line\nesc \x1b[2J bell \x07 nul \x00 cr \r del \x7f end\nbad \xff utf8 mark\n";
        script.tool("stderr", &json!({ "hex": hex(text) }));
        gateway.stderr.wait_for("all three lines", |log| {
            log.contains("first line") && log.contains("esc ") && log.contains("utf8 mark")
        });
        // A line that is not ended yet is still one line; its end comes with the process's or the next part.
        script.tool("stderr", &json!({ "hex": hex(b"half ") }));
        script.tool("stderr", &json!({ "hex": hex(b"and half\n") }));
        let log = gateway
            .stderr
            .wait_for("the joined line", |log| log.contains("half and half"));
        assert!(
            !log.contains(|c: char| c.is_control() && c != '\n' && c != '\t'),
            "control characters in {log:?}"
        );
        let esc = log
            .lines()
            .find(|line| line.contains("esc "))
            .expect("waited for");
        assert!(esc.contains("end"), "one line became several: {esc:?}");
        let first = log
            .lines()
            .find(|line| line.contains("first line"))
            .expect("waited for");
        assert!(!first.contains("esc "), "two lines became one: {first:?}");
    });
}

/// One line may not fill the log.
#[test]
fn long_stderr_line_is_cut() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout);
        let script = Script::new(&gateway);
        let line = format!("start-of-line {}\nnext line\n", "y".repeat(20_000));
        script.tool("stderr", &json!({ "hex": hex(line.as_bytes()) }));
        let log = gateway
            .stderr
            .wait_for("the next line", |log| log.contains("next line"));
        assert!(log.contains("start-of-line"), "{log}");
        let kept = log.matches('y').count();
        assert!(
            (500..=1024 + 64).contains(&kept),
            "{kept} bytes of the line were kept"
        );
        // Nor may a line that never ends.
        let endless = hex("z".repeat(300_000).as_bytes());
        script.tool("stderr", &json!({ "hex": endless }));
        script.tool("stderr", &json!({ "hex": hex(b"\nafter all\n") }));
        let log = gateway
            .stderr
            .wait_for("the line after", |log| log.contains("after all"));
        assert!(log.matches('z').count() <= 1024 + 64);
    });
}

/// A server in a bad loop must not turn the gateway into a log writer, nor block on a full pipe.
#[test]
fn stderr_flood_is_rate_limited_and_blocks_nobody() {
    on_both_drivers(|layout| {
        let gateway = scripted(layout);
        let script = Script::new(&gateway);
        script.tool("flood", &json!({ "lines": 200_000 }));
        let session = Session::open(&gateway);
        assert_eq!(gateway.ask(&session.call("1", "echo", "{}")).status, 200);
        let relayed = gateway.stderr.text().matches("flood line").count();
        assert!(relayed > 0, "none of the lines was relayed");
        assert!(relayed < 50_000, "{relayed} of 200,000 lines were relayed");
    });
}

/// Servers print banners, debug output and worse on stdout: skipped, and the next message still counts.
#[test]
fn lines_that_are_not_json_are_skipped() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let good = br#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#;
        let noise: &[&[u8]] = &[
            b"Listening on port 3000",
            b"",
            b"   \t ",
            b"\r",
            b"\xff\xfe\x00",
            b"{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{\"bad\":\"\xff\"}}",
            b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{}}",
            b"null",
            b"[]",
            b"{}",
            b"\"text\"",
            b"{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":",
            &b"[".repeat(200_000),
            &b"{\"a\":".repeat(60_000),
            &b"x".repeat(1_000_000),
        ];
        for line in noise {
            let arguments = send_arguments(&[line, good]);
            let response = connection.ask(&session.call("1", "send", &arguments));
            let shown = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
            assert_eq!(response.result()["good"], true, "{shown:?}: {response}");
        }
    });
}

/// A line over the limit is skipped without being kept; the call it would have answered is not harmed by
/// the rest of it.
#[test]
fn server_line_over_the_limit_is_skipped() {
    on_every_layout(|layout| {
        let flags = ["--max-message", "100000"];
        let gateway = layout.start(&flags, Upstream::Python("scripted.py", &[]));
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let good = br#"{"jsonrpc":"2.0","id":@ID@,"result":{"good":true}}"#;
        // What follows the limit looks like a reply: it is still part of the long line.
        let over = format!(
            r#"{{"x":"{}"}}{{"jsonrpc":"2.0","id":@ID@,"result":{{"good":false}}}}"#,
            "x".repeat(300_000)
        );
        let arguments = send_arguments(&[over.as_bytes(), good]);
        let response = connection.ask(&session.call("1", "send", &arguments));
        assert_eq!(response.result()["good"], true, "{response}");
        let fits = format!(
            r#"{{"jsonrpc":"2.0","id":@ID@,"result":{{"x":"{}"}}}}"#,
            "x".repeat(90_000)
        );
        let arguments = send_arguments(&[fits.as_bytes()]);
        let response = connection.ask(&session.call("1", "send", &arguments));
        assert_eq!(response.result()["x"].as_str().map(str::len), Some(90_000));
    });
}

/// The server blocks while it writes. If the gateway did not read while it writes, both would wait for
/// ever: each call is larger than a pipe.
#[test]
fn large_calls_at_once_do_not_deadlock() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        for (calls, size) in [(2, 200_000), (8, 1_500_000)] {
            let message = "m".repeat(size);
            std::thread::scope(|scope| {
                for number in 0..calls {
                    let (gateway, session, message) = (&gateway, &session, &message);
                    scope.spawn(move || {
                        let text = format!("{number}{message}");
                        let arguments = json!({ "message": text }).to_string();
                        let response =
                            gateway.ask(&session.call(&number.to_string(), "echo", &arguments));
                        let result = response.result();
                        assert!(
                            result["content"][0]["text"] == text.as_str(),
                            "call {number}"
                        );
                    });
                }
            });
        }
    });
}

/// A large answer that nobody reads must hold up nobody else.
#[test]
fn client_that_does_not_read_holds_up_nobody() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let (greedy, other) = (Session::open(&gateway), Session::open(&gateway));
        let mut lazy = gateway.connect();
        lazy.send(greedy.call("1", "big", r#"{"bytes":30000000}"#).bytes());
        for number in 0..50 {
            let request = other.call(&number.to_string(), "echo", r#"{"message":"m"}"#);
            assert_eq!(gateway.ask(&request).status, 200);
        }
        let result = lazy.response().result();
        assert_eq!(
            result["content"][0]["text"].as_str().map(str::len),
            Some(30_000_000)
        );
    });
}

/// A server that has stopped reading stops only those who need it.
#[test]
fn stalled_server_stalls_only_calls() {
    on_every_layout(|layout| {
        let scratch = Scratch::new();
        let gate = scratch.path("gate");
        let gateway = scripted(layout);
        let session = Session::open(&gateway);
        let mut stalled = gateway.connect();
        let arguments = json!({ "path": gate }).to_string();
        stalled.send(session.call("\"stall\"", "stall", &arguments).bytes());
        // More than the pipe holds, so that the gateway's write stays pending.
        let message = "m".repeat(300_000);
        let mut waiting: Vec<Raw> = (0..6)
            .map(|number| {
                let arguments = json!({ "message": format!("{number}{message}") }).to_string();
                let mut connection = gateway.connect();
                connection.send(
                    session
                        .call(&number.to_string(), "echo", &arguments)
                        .bytes(),
                );
                connection
            })
            .collect();
        for _ in 0..20 {
            let other = Session::open(&gateway);
            assert_eq!(gateway.ask(&other.post(ping_body("1"))).status, 200);
            assert_eq!(gateway.ask(&other.delete()).status, 204);
        }
        std::fs::write(&gate, "").expect("the scratch directory is ours");
        assert_eq!(stalled.response().result()["stalled"], true);
        for (number, connection) in waiting.iter_mut().enumerate() {
            let result = connection.response().result();
            assert!(result["content"][0]["text"] == format!("{number}{message}").as_str());
        }
    });
}

/// What the child is given: its three streams and nothing of ours, neither sockets nor affinity nor masks.
#[test]
fn child_inherits_only_its_streams() {
    on_every_layout(|layout| {
        let gateway = layout.start(&["--pin", "auto"], Upstream::Python("scripted.py", &[]));
        let script = Script::new(&gateway);
        let _open: Vec<Raw> = (0..8).map(|_| gateway.connect()).collect();
        let process = script.tool("process", &json!({}));
        check_process(&process);
    });
}

fn check_process(process: &Value) {
    let descriptors = process["descriptors"].as_object().expect("a map");
    for (number, target) in descriptors {
        let number: u32 = number.parse().expect("a descriptor");
        assert!(number <= 2, "descriptor {number} is inherited: {target}");
    }
    let affinity: Vec<u64> = serde_json::from_value(process["affinity"].clone()).expect("a list");
    let own = rustix::thread::sched_getaffinity(None).expect("Linux");
    let own: Vec<u64> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| own.is_set(cpu))
        .map(|cpu| u64::try_from(cpu).expect("small"))
        .collect();
    assert_eq!(affinity, own, "the child is pinned");
    let blocked = process["blocked_signals"].as_str().expect("hex");
    assert_eq!(
        u64::from_str_radix(blocked, 16),
        Ok(0),
        "signals are blocked: {blocked}"
    );
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    assert_eq!(
        process["files_soft"].as_u64(),
        soft,
        "the limit of open files was not reset"
    );
}

/// The gateway's own settings may hold secrets and would confuse a Ringway behind a Ringway; the rest is
/// how servers are configured.
#[test]
fn child_gets_the_environment_without_the_gateways_own() {
    on_both_drivers(|layout| {
        let mut command = command(&layout.flags(&[]), Upstream::Python("scripted.py", &[]));
        command
            .env("RINGWAY_MAX_BODY", "1234567")
            .env("RINGWAY_UNHEARD_OF", "secret")
            .env("SERVER_TOKEN", "t\u{f6}ken")
            .env("XRINGWAY_A", "kept");
        let gateway = Gateway::start_with(command);
        let environment = Script::new(&gateway).tool("environment", &json!({}));
        let environment = environment.as_object().expect("a map");
        assert_eq!(environment["SERVER_TOKEN"], "t\u{f6}ken");
        assert_eq!(environment["XRINGWAY_A"], "kept");
        assert!(environment.contains_key("PATH"));
        for name in environment.keys() {
            assert!(!name.starts_with("RINGWAY_"), "{name} is passed on");
        }
    });
}

/// The command's words are the operator's: no shell may read them.
#[test]
fn command_words_reach_the_child_as_they_are() {
    on_both_drivers(|layout| {
        let name = "two words; $(echo no) 'q' * --listen";
        let arguments = ["--name", name];
        let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        let body = support::mcp::initialize_body("1", support::mcp::LATEST);
        let result = gateway.ask(&support::Request::post(body)).result();
        assert_eq!(result["serverInfo"]["name"], name);
    });
}

/// What the server's journal holds once the gateway has ended by `signal`.
fn journal_after(layout: Layout, signal: Signal, arguments: &[&str]) -> Vec<String> {
    let scratch = Scratch::new();
    let journal = scratch.path("journal");
    let arguments = [arguments, &["--journal", &journal]].concat();
    let mut gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
    let session = Session::open(&gateway);
    assert_eq!(gateway.ask(&session.call("1", "echo", "{}")).status, 200);
    gateway.signal(signal);
    let status = gateway.wait();
    assert_eq!(
        status.code(),
        Some(0),
        "{signal:?}: {}",
        gateway.stderr.text()
    );
    let text = std::fs::read_to_string(&journal).expect("the server has started");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for line in &lines {
        if let Some((_, pid)) = line.rsplit_once(' ') {
            let pid = pid.parse().expect("a pid");
            wait_until("the server's process is gone", || !process_runs(pid));
        }
    }
    lines
        .into_iter()
        .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
        .collect()
}

/// MCP's own order of ending a server: close its stdin, wait, SIGTERM, wait, SIGKILL.
#[test]
fn server_is_ended_in_the_order_of_the_protocol() {
    on_both_drivers(|layout| {
        for signal in [Signal::TERM, Signal::INT] {
            let journal = journal_after(layout, signal, &[]);
            assert_eq!(journal, ["start", "eof"], "{signal:?}");
        }
        let journal = journal_after(layout, Signal::TERM, &["--ignore-eof"]);
        assert_eq!(journal, ["start", "eof", "sigterm"]);
        let journal = journal_after(layout, Signal::TERM, &["--ignore-eof", "--ignore-term"]);
        assert_eq!(journal, ["start", "eof", "sigterm"]);
        // What a server starts itself (`npx` does) goes with it.
        let journal = journal_after(layout, Signal::TERM, &["--grandchild"]);
        assert_eq!(journal, ["start", "grandchild", "eof"]);
    });
}

/// Ctrl-C in a terminal reaches the whole foreground group: the server must still be ended in order.
#[test]
fn terminal_interrupt_does_not_reach_the_server_directly() {
    on_both_drivers(|layout| {
        let scratch = Scratch::new();
        let journal = scratch.path("journal");
        let arguments = ["--journal", &journal];
        let mut command = command(
            &layout.flags(&[]),
            Upstream::Python("scripted.py", &arguments),
        );
        command.process_group(0);
        let mut gateway = Gateway::start_with(command);
        let group = support::gateway::pid_of(gateway.pid());
        rustix::process::kill_process_group(group, Signal::INT).expect("our own group");
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
        let text = std::fs::read_to_string(&journal).expect("the server has started");
        assert!(
            text.contains("eof"),
            "the server was not ended by its stdin: {text}"
        );
    });
}

/// Clients that wait for a call when the gateway stops must not be left hanging.
#[test]
fn stop_ends_connections_with_calls_in_flight() {
    on_every_layout(|layout| {
        let mut gateway = scripted(layout);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let mut idle = gateway.connect();
        let mut pending = gateway.connect();
        pending.send(session.call("1", "hold", r#"{"key":"k"}"#).bytes());
        script.wait_held("k");
        drop(script);
        gateway.signal(Signal::TERM);
        idle.expect_end();
        // The call is held for ever: the drain would wait for it.
        gateway.signal(Signal::TERM);
        if let Some(response) = pending.next(false) {
            response.expect_error(200, -32603, Some("1"));
        }
        pending.expect_end();
        assert_eq!(gateway.wait().code(), Some(0), "{}", gateway.stderr.text());
    });
}

/// Nothing runs in the gateway when it is killed: the orphans must be caught by what it set up before.
#[test]
fn no_orphan_is_left_when_the_gateway_is_killed() {
    on_every_layout(|layout| {
        let scratch = Scratch::new();
        let journal = scratch.path("journal");
        let arguments = [
            "--journal",
            &journal,
            "--grandchild",
            "--ignore-eof",
            "--ignore-term",
        ];
        let mut gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        let text = std::fs::read_to_string(&journal).expect("the server has started");
        let pids: Vec<u32> = text
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(_, pid)| pid.parse().expect("a pid"))
            .collect();
        assert_eq!(pids.len(), 2, "{text}");
        assert!(pids.iter().all(|&pid| process_runs(pid)));
        gateway.signal(Signal::KILL);
        gateway.wait();
        for pid in pids {
            wait_until("the orphan is gone", || !process_runs(pid));
        }
    });
}

/// A server that dies must not leave its callers waiting, nor take the gateway's sessions with it.
#[test]
fn death_of_the_server_answers_every_call_in_flight() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let script = Script::new(&gateway);
        let sessions: Vec<Session> = (0..4).map(|_| Session::open(&gateway)).collect();
        let mut pending: Vec<Raw> = sessions
            .iter()
            .enumerate()
            .map(|(number, session)| {
                let mut connection = gateway.connect();
                let arguments = json!({ "key": number.to_string() }).to_string();
                connection.send(session.call("\"p\"", "hold", &arguments).bytes());
                script.wait_held(&number.to_string());
                connection
            })
            .collect();
        let fatal = sessions[0].call("\"fatal\"", "exit", r#"{"code":3}"#);
        pending.push(gateway.connect());
        pending.last_mut().expect("just pushed").send(fatal.bytes());
        for connection in &mut pending {
            let response = connection.response();
            assert_eq!(response.status, 200, "{response}");
            let error = &response.message()["error"];
            assert_eq!(error["code"], -32603, "{response}");
            assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
        }
    });
}

/// The server comes back, the sessions were never gone, and the new child is given no client's socket.
#[test]
fn server_is_started_again_and_sessions_live_on() {
    on_every_layout(|layout| {
        let gateway = scripted(layout);
        let script = Script::new(&gateway);
        let session = Session::open(&gateway);
        let first = script.tool("process", &json!({}))["pid"].clone();
        let _open: Vec<Raw> = (0..8).map(|_| gateway.connect()).collect();
        let response = gateway.ask(&session.call("1", "exit", r#"{"code":3}"#));
        let error = response.expect_error(200, -32603, Some("1"));
        assert_eq!(error["data"]["reason"], "upstream_down", "{response}");
        // Until it is back each call is refused at once, and nothing else is refused at all.
        wait_until("the server answers again", || {
            assert_eq!(gateway.ask(&session.post(ping_body("2"))).status, 200);
            let response = gateway.ask(&session.call("1", "echo", "{}"));
            assert_eq!(response.status, 200, "{response}");
            let message = response.message();
            if message["error"].is_object() {
                assert_eq!(
                    message["error"]["data"]["reason"], "upstream_down",
                    "{response}"
                );
            }
            message["result"].is_object()
        });
        let process = script.tool("process", &json!({}));
        assert_ne!(process["pid"], first);
        check_process(&process);
    });
}
