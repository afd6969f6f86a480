//! Start-up: one line on stdout when all is well; otherwise an exit code and one clear sentence on stderr,
//! at once. Never a hang, never exit 0, and never a child left behind.

mod support;

use std::net::TcpListener;
use std::process::Command;

use support::gateway::{Ended, bare, command, run_to_end};
use support::mcp::ping_body;
use support::{
    Gateway, Scratch, Session, Upstream, hex, on_both_drivers, on_every_layout, process_runs,
    wait_until,
};

/// Runs a command that must fail to start: exit 1 and exactly one sentence, which names `about`.
#[track_caller]
fn fails_with_one_sentence(command: Command, about: &[&str]) -> Ended {
    let ended = run_to_end(command);
    let Ended {
        status,
        stdout,
        stderr,
    } = &ended;
    assert_eq!(
        status.code(),
        Some(1),
        "stdout:\n{stdout}\nstderr:\n{stderr}"
    );
    assert_eq!(stdout, "", "nothing has started, so nothing may say so");
    let sentences: Vec<&str> = stderr
        .lines()
        .filter(|line| line.starts_with("ringway: "))
        .collect();
    assert_eq!(sentences.len(), 1, "{stderr}");
    for word in about {
        assert!(
            sentences[0].contains(word),
            "{word:?} is not in {:?}",
            sentences[0]
        );
    }
    assert!(!stderr.contains("panicked at"), "{stderr}");
    ended
}

/// Scripts and people read that line: its form is a promise.
#[test]
fn start_up_line_tells_what_runs() {
    on_every_layout(|layout| {
        let arguments = [
            "--name",
            "some server",
            "--server-version",
            "4.2",
            "--protocol",
            "2025-06-18",
        ];
        let gateway = layout.start(
            &["--path", "/a"],
            Upstream::Python("scripted.py", &arguments),
        );
        let port = gateway.address.port();
        assert_ne!(port, 0);
        let driver = if layout.driver == "uring" {
            "io_uring"
        } else {
            "epoll"
        };
        let expected = format!(
            "ringway {} listening on http://127.0.0.1:{port}/a shards={} hub=shard driver={driver} upstream=\"some server\" upstream-version=\"4.2\" protocol=2025-06-18",
            env!("CARGO_PKG_VERSION"),
            layout.shards,
        );
        let hub = gateway.banner_word("hub").expect("a hub").to_owned();
        assert!(
            matches!(hub.as_str(), "own" | "shard"),
            "{}",
            gateway.banner
        );
        assert_eq!(gateway.banner.replace("hub=own", "hub=shard"), expected);
        // And it is the only one.
        assert_eq!(gateway.stdout.text(), "");
    });
}

/// A server's name is the server's text: it must not be able to forge lines or terminal commands.
#[test]
fn hostile_server_name_cannot_forge_the_line() {
    on_both_drivers(|layout| {
        let name = "a\" protocol=9\nringway 9 listening on http://evil/\u{1b}[2J\r";
        let arguments = ["--name", name, "--server-version", "\u{7}\u{0085}"];
        let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        assert!(
            !gateway.banner.contains(char::is_control),
            "{:?}",
            gateway.banner
        );
        assert!(
            gateway.banner.ends_with(" protocol=2025-11-25"),
            "{}",
            gateway.banner
        );
        assert_eq!(gateway.stdout.text(), "");
    });
}

/// SO_REUSEPORT would let a second instance bind silently and take half of the connections.
#[test]
fn taken_port_is_refused() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let address = gateway.address.to_string();
        let second = command(&layout.flags(&["--listen", &address]), Upstream::Demo);
        fails_with_one_sentence(second, &[&address]);
        // The first one has noticed nothing.
        let session = Session::open(&gateway);
        for _ in 0..20 {
            assert_eq!(gateway.ask(&session.post(ping_body("1"))).status, 200);
        }
        let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = other.local_addr().expect("bound").to_string();
        let third = command(&layout.flags(&["--listen", &address]), Upstream::Demo);
        fails_with_one_sentence(third, &[&address]);
    });
}

/// An address that this machine does not have cannot be listened on.
#[test]
fn foreign_address_is_refused() {
    on_both_drivers(|layout| {
        let foreign = command(
            &layout.flags(&["--listen", "192.0.2.1:8080"]),
            Upstream::Demo,
        );
        fails_with_one_sentence(foreign, &["192.0.2.1:8080"]);
    });
}

/// The most common mistakes in a service file: each must name the command.
#[test]
fn command_that_cannot_run_is_named() {
    let scratch = Scratch::new();
    let plain = scratch.path("plain.txt");
    std::fs::write(&plain, "no program").expect("the scratch directory is ours");
    on_both_drivers(|layout| {
        let directory = std::env::temp_dir();
        let directory = directory.to_str().expect("a UTF-8 path");
        for program in [
            "/nonexistent/server",
            "no-such-command-here",
            &plain,
            directory,
        ] {
            let start = command(&layout.flags(&[]), Upstream::Command(&[program]));
            fails_with_one_sentence(start, &[program]);
        }
    });
}

/// A server that is not an MCP server, or not yet, must not leave the gateway waiting.
#[test]
fn server_that_ends_before_its_handshake_is_reported() {
    on_both_drivers(|layout| {
        let flags = layout.flags(&[]);
        for arguments in [
            &["--exit-at-start", "0"][..],
            &["--exit-at-start", "3"],
            &["--exit-on-initialize", "0"],
            &["--exit-on-initialize", "9"],
        ] {
            let start = command(&flags, Upstream::Python("scripted.py", arguments));
            fails_with_one_sentence(start, &[]);
        }
        for program in [&["true"][..], &["false"], &["echo", "hello"]] {
            fails_with_one_sentence(command(&flags, Upstream::Command(program)), &[program[0]]);
        }
        // What it complained about before it died is what the operator needs to see.
        let complaint = hex(b"no token configured\n");
        let arguments = ["--complain", &complaint, "--exit-at-start", "1"];
        let start = command(&flags, Upstream::Python("scripted.py", &arguments));
        let ended = fails_with_one_sentence(start, &[]);
        assert!(
            ended.stderr.contains("no token configured"),
            "{}",
            ended.stderr
        );
    });
}

/// A server that runs but never answers; also one that answers something else, and one that ignores all
/// requests to end. None may survive the gateway.
#[test]
fn server_that_stays_silent_is_reported_and_ended() {
    let wrong_id = hex(br#"{"jsonrpc":"2.0","id":"not-@ID@","result":{}}"#);
    let noise = hex(&[&b"[".repeat(30_000)[..], b"\n\xff\xfe\nhello\n{}\n"].concat());
    on_both_drivers(|layout| {
        let scratch = Scratch::new();
        let flags = layout.flags(&["--start-timeout", "1500ms"]);
        for (number, arguments) in [
            &["--silent"][..],
            &["--initialize", &wrong_id],
            &["--silent", "--before", &noise],
            &["--silent", "--ignore-eof", "--ignore-term"],
        ]
        .into_iter()
        .enumerate()
        {
            let journal = scratch.path(&format!("journal{number}"));
            let arguments = [arguments, &["--journal", &journal]].concat();
            let start = command(&flags, Upstream::Python("scripted.py", &arguments));
            fails_with_one_sentence(start, &[]);
            let text = std::fs::read_to_string(&journal).expect("the server has started");
            let pid = text
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("start "));
            let pid = pid
                .expect("a journal begins with the pid")
                .parse()
                .expect("a pid");
            wait_until("the silent server is gone", || !process_runs(pid));
        }
    });
}

/// Handshakes that cannot be built on.
#[test]
fn server_that_refuses_the_handshake_is_reported() {
    let answers: &[&str] = &[
        r#"{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32603,"message":"broken"}}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32022,"message":"modern only","data":{"supported":["2026-07-28"],"requested":"2025-11-25"}}}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"protocolVersion":"2026-07-28","capabilities":{},"serverInfo":{"name":"n","version":"1"}}}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"protocolVersion":"1999-01-01","capabilities":{},"serverInfo":{"name":"n","version":"1"}}}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"result":null}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"result":[]}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{}}"#,
    ];
    on_both_drivers(|layout| {
        for answer in answers {
            let line = hex(answer.as_bytes());
            let arguments = ["--initialize", &line];
            let flags = layout.flags(&["--start-timeout", "10s"]);
            let start = command(&flags, Upstream::Python("scripted.py", &arguments));
            fails_with_one_sentence(start, &[]);
        }
    });
}

/// Banners and log lines on stdout ahead of the handshake are common: they must not spoil it.
#[test]
fn noise_before_the_handshake_is_skipped() {
    // All of it must fit into one word of a command line: the suite of the running server has larger ones.
    let noise = [
        &b"Starting server v1...\n\n   \n{\"not\":\"rpc\"}\n[1,2]\nnull\n\xff\xfe\n"[..],
        &b"[".repeat(20_000),
        b"\n",
        &b"x".repeat(20_000),
        b"\n\r\n",
        br#"{"jsonrpc":"2.0","id":12345,"result":{"protocolVersion":"2025-11-25"}}"#,
        b"\n",
    ]
    .concat();
    let noise = hex(&noise);
    on_every_layout(|layout| {
        let arguments = ["--before", &noise];
        let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
        let session = Session::open(&gateway);
        assert_eq!(gateway.ask(&session.call("1", "echo", "{}")).status, 200);
    });
}

/// Usage errors are told apart from failures, and each names what is wrong.
#[test]
fn bad_flag_is_a_usage_error() {
    let rows: &[(&[&str], &str)] = &[
        (&["demo", "--no-such-flag"], "--no-such-flag"),
        (&["demo", "--listen", "nonsense"], "--listen"),
        (&["demo", "--listen", "127.0.0.1:99999"], "--listen"),
        (&["demo", "--shards", "0"], "--shards"),
        (&["demo", "--shards", "256"], "--shards"),
        (&["demo", "--shards", "two"], "--shards"),
        (&["demo", "--hub", "moon"], "--hub"),
        (&["demo", "--pin", "x"], "--pin"),
        (&["demo", "--driver", "kqueue"], "--driver"),
        (&["demo", "--path", "mcp"], "--path"),
        (&["demo", "--max-body", "-1"], "--max-body"),
        (&["demo", "--max-body", "lots"], "--max-body"),
        (
            &["demo", "--request-timeout", "5parsecs"],
            "--request-timeout",
        ),
        (&["demo", "--request-timeout=-1s"], "--request-timeout"),
        (&["demo", "--start-timeout", ""], "--start-timeout"),
        (
            &["demo", "--allow-origin", "not an origin"],
            "--allow-origin",
        ),
        (
            &["demo", "--allow-origin", "https://a.example/path"],
            "--allow-origin",
        ),
        (
            &["demo", "--allow-host", "http://a.example"],
            "--allow-host",
        ),
        (&["demo", "--response-mode", "xml"], "--response-mode"),
        (&["demo", "--log-format", "yaml"], "--log-format"),
        (&["demo", "--log-level", "loud"], "--log-level"),
        (&["demo", "--max-sessions", "many"], "--max-sessions"),
        (&["demo", "stray"], "stray"),
        (&["serve"], "COMMAND"),
        (&["serve", "--"], "COMMAND"),
        (&["nonsense"], "nonsense"),
        (&[], "Usage"),
    ];
    for (arguments, named) in rows {
        let mut command = bare();
        command.args(*arguments);
        let ended = run_to_end(command);
        assert_eq!(
            ended.status.code(),
            Some(2),
            "{arguments:?}: {}",
            ended.stderr
        );
        assert_eq!(ended.stdout, "", "{arguments:?}");
        assert!(
            ended.stderr.contains(named),
            "{arguments:?}: {}",
            ended.stderr
        );
    }
}

/// A bad environment variable is a bad flag: it must not be ignored.
#[test]
fn bad_environment_variable_is_a_usage_error() {
    let mut command = bare();
    command.arg("demo").env("RINGWAY_SHARDS", "two");
    let ended = run_to_end(command);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert_eq!(ended.stdout, "");
}

/// Containers are configured by environment; a flag on the command line still has the last word.
#[test]
fn environment_sets_flags_and_flags_win() {
    let mut command = command(&["--shards", "2"], Upstream::Demo);
    command
        .env("RINGWAY_SHARDS", "1")
        .env("RINGWAY_PATH", "/from-env")
        .env("RINGWAY_DRIVER", "epoll");
    let gateway = Gateway::start_with(command);
    assert!(gateway.banner.contains("/from-env "), "{}", gateway.banner);
    assert_eq!(gateway.banner_word("shards"), Some("2"));
    assert_eq!(gateway.banner_word("driver"), Some("epoll"));
}

/// Help is the reference of the flags: each is there, with its variable.
#[test]
fn help_and_version_are_printed() {
    let mut version = bare();
    version.arg("--version");
    let ended = run_to_end(version);
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(
        ended.stdout.trim(),
        format!("ringway {}", env!("CARGO_PKG_VERSION"))
    );
    for mode in ["demo", "serve"] {
        let mut help = bare();
        help.args([mode, "--help"]);
        let ended = run_to_end(help);
        assert_eq!(ended.status.code(), Some(0));
        for flag in [
            "listen",
            "path",
            "shards",
            "hub",
            "pin",
            "max-body",
            "max-message",
            "request-timeout",
            "request-timeout-max",
            "header-timeout",
            "body-timeout",
            "idle-timeout",
            "write-timeout",
            "start-timeout",
            "allow-origin",
            "allow-host",
            "response-mode",
            "get-streams",
            "keep-alive",
            "driver",
            "uring-flags",
            "log-format",
            "log-level",
            "max-connections",
            "max-sessions",
            "max-calls",
            "max-calls-per-session",
            "max-subscriptions-per-session",
            "max-tasks-per-session",
        ] {
            let variable = format!("RINGWAY_{}", flag.to_uppercase().replace('-', "_"));
            assert!(
                ended.stdout.contains(&format!("--{flag}")),
                "{mode}: --{flag}"
            );
            assert!(ended.stdout.contains(&variable), "{mode}: {variable}");
        }
    }
}

/// Both places of the hub must serve, with any number of shards.
#[test]
fn hub_serves_from_its_own_thread_and_from_a_shards() {
    on_every_layout(|layout| {
        for hub in ["own", "shard", "auto"] {
            let gateway = layout.start(&["--hub", hub], Upstream::Demo);
            if hub != "auto" {
                assert_eq!(gateway.banner_word("hub"), Some(hub));
            }
            let session = Session::open(&gateway);
            let response = gateway.ask(&session.call("1", "add", r#"{"a":1,"b":2}"#));
            assert_eq!(response.result()["content"][0]["text"], "3");
        }
    });
}

/// A log that is to be read by machines must be so in every line, the server's own included.
#[test]
fn json_log_is_json_in_every_line() {
    on_both_drivers(|layout| {
        let complaint = hex(b"plain \"text\" \x1b[31m of the server\nsecond line\n");
        let arguments = ["--complain", complaint.as_str()];
        let flags = ["--log-format", "json", "--log-level", "debug"];
        let gateway = layout.start(&flags, Upstream::Python("scripted.py", &arguments));
        let session = Session::open(&gateway);
        assert_eq!(gateway.ask(&session.call("1", "echo", "{}")).status, 200);
        let log = gateway.stderr.wait_for("the server's line", |log| {
            log.contains("second line") && log.ends_with('\n')
        });
        for line in log.lines() {
            let parsed: Result<serde_json::Value, _> = serde_json::from_str(line);
            assert!(parsed.is_ok_and(|value| value.is_object()), "{line}");
        }
    });
}
