//! Hooks on real sockets with a real server: those of a program that embeds Ringway, and the redactor of
//! the plain binary. This is a program of its own (no test harness): it is also the program that embeds
//! Ringway, and the guard through which that one starts servers.

mod support;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, mpsc};

use clap::Parser;
use crossbeam_channel::{Receiver, Sender, bounded};
use ringway::cli::{Cli, Command as Subcommand};
use ringway::config::{self, ThisMachine};
use ringway::hooks::{Hook, HookCall, Point, Points, Verdict};
use ringway::server;
use ringway::upstream::guard;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::gateway::{bare, python, server_script};
use support::http::find;
use support::mcp::{call_body, request_body};
use support::scripted::{Script, result_arguments, send_arguments};
use support::{Gateway, Raw, Response, Scratch, Session, wait_until};

/// The first argument of the program that embeds Ringway; a configuration file and the place of a gate follow.
const EMBEDDING: &str = "embedding";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some(guard::SUBCOMMAND) => {
            if let Subcommand::UpstreamGuard(arguments) = Cli::parse().command {
                guard::run(arguments);
            }
            ExitCode::FAILURE
        }
        Some(EMBEDDING) => embedding(arguments[2].as_ref(), arguments[3].as_ref()),
        _ => {
            run_cases();
            ExitCode::SUCCESS
        }
    }
}

fn run_cases() {
    for (name, case) in [
        (
            "words are changed and denied",
            words_are_changed_and_denied as fn(),
        ),
        (
            "a hook that blocks holds up no other call",
            a_hook_that_blocks_holds_up_no_other_call,
        ),
        (
            "hooks that never come back are given up",
            hooks_that_never_come_back_are_given_up,
        ),
        ("a burst is answered", a_burst_is_answered),
        (
            "a gateway ends although a hook blocks",
            a_gateway_ends_although_a_hook_blocks,
        ),
        (
            "a hook that nobody has made is a mistake",
            a_hook_that_nobody_has_made_is_a_mistake,
        ),
        (
            "the redactor finds secrets in calls",
            the_redactor_finds_secrets_in_calls,
        ),
        (
            "the redactor looks where it is told to",
            the_redactor_looks_where_it_is_told_to,
        ),
    ] {
        case();
        println!("{name}: ok");
    }
}

// === the program that embeds Ringway ===

/// Changes, denies and panics by the words of arguments and results.
struct Words;

impl Hook for Words {
    fn name(&self) -> &str {
        "words"
    }

    fn points(&self) -> Points {
        Points::from(Point::BeforeToolCall).with(Point::AfterToolCall)
    }

    fn before_tool_call(&self, call: &mut HookCall<'_>, params: &[u8]) -> Verdict {
        let has = |word: &str| find(params, word.as_bytes()).is_some();
        call.insert(params.len());
        if has("word-deny") {
            return Verdict::deny(-32_050, "that word is not said here");
        }
        if has("word-panic") {
            std::panic::panic_any("on purpose");
        }
        changed(params, "word-change", "word-given")
    }

    fn after_tool_call(&self, call: &mut HookCall<'_>, result: &[u8]) -> Verdict {
        // It has seen the request.
        assert!(call.take::<usize>().is_some());
        changed(result, "word-answer", "word-other")
    }
}

fn changed(text: &[u8], word: &str, with: &str) -> Verdict {
    let text = String::from_utf8_lossy(text);
    match text.contains(word) {
        true => Verdict::Rewrite(text.replace(word, with).into_bytes()),
        false => Verdict::Pass,
    }
}

/// Holds calls that say so until the gate is opened.
struct Gate {
    open: Receiver<()>,
}

impl Hook for Gate {
    fn name(&self) -> &str {
        "gate"
    }

    fn points(&self) -> Points {
        Point::BeforeToolCall.into()
    }

    fn before_tool_call(&self, _call: &mut HookCall<'_>, params: &[u8]) -> Verdict {
        if find(params, b"word-gate").is_some() {
            let _ = self.open.recv();
        }
        Verdict::Pass
    }
}

fn embedding(file: &Path, gate: &Path) -> ExitCode {
    // Panics of hooks are wanted here; any other fails the test.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&"on purpose") {
            report(panic);
        }
    }));
    let (opener, open) = bounded::<()>(0);
    open_at(gate, opener);
    let hooks: Vec<Arc<dyn Hook>> = vec![Arc::new(Words), Arc::new(Gate { open })];
    let loaded = match config::load(file, &ThisMachine, &hooks) {
        Ok(loaded) => loaded,
        Err(problems) => {
            eprintln!("{}", problems.shown(file));
            return ExitCode::from(2);
        }
    };
    match server::run_file(file.to_owned(), loaded.file, hooks) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The gate is open once somebody has connected to this place.
fn open_at(place: &Path, opener: Sender<()>) {
    let listener = UnixListener::bind(place).expect("a place of our own");
    std::thread::spawn(move || {
        let _ = listener.accept();
        drop(opener);
    });
}

// === gateways ===

/// A gateway that is this program, with its gate.
struct Embedded {
    gateway: Gateway,
    gate: PathBuf,
    scratch: Scratch,
}

impl Embedded {
    fn start(route_lines: &str) -> Embedded {
        let scratch = Scratch::new();
        let gate = PathBuf::from(scratch.path("gate"));
        let command = embedding_command(&scratch, &gate, route_lines);
        Embedded {
            gateway: Gateway::start_with(command),
            gate,
            scratch,
        }
    }

    fn open_gate(&self) {
        UnixStream::connect(&self.gate).expect("it listens");
    }
}

fn embedding_command(scratch: &Scratch, gate: &Path, route_lines: &str) -> Command {
    let file = config_file(scratch, route_lines);
    let own = std::env::current_exe().expect("this program");
    let mut command = like_bare(Command::new(own));
    command.arg(EMBEDDING).arg(file).arg(gate);
    command
}

/// As [`bare`] has it, for another program.
fn like_bare(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RINGWAY_") {
            command.env_remove(name);
        }
    }
    command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    command
}

fn config_file(scratch: &Scratch, route_lines: &str) -> String {
    let file = scratch.path("ringway.toml");
    let server = server_script("scripted.py");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nshards = 2\n\n[[routes]]\npath = \"/mcp\"\n{route_lines}\n\n\
         [[routes.upstreams]]\nname = \"one\"\ncommand = [{:?}, \"-S\", {:?}]\nprefix = \"never\"\n",
        python(),
        server.to_str().expect("a UTF-8 path"),
    );
    std::fs::write(&file, text).expect("the scratch directory is ours");
    file
}

fn plain_binary(scratch: &Scratch, route_lines: &str) -> Gateway {
    let file = config_file(scratch, route_lines);
    let mut command = bare();
    // Beside a file no setting of the environment may stand.
    command.env_remove("RINGWAY_ADMIN");
    command.args(["serve", "--config", &file]);
    Gateway::start_with(command)
}

fn echo(session: &Session, id: u32, message: &str) -> Vec<u8> {
    let arguments = json!({ "message": message }).to_string();
    let body = call_body(&id.to_string(), "echo", &arguments);
    session.post(body).bytes()
}

fn said(response: &Response) -> Value {
    response.result()["content"][0]["text"].clone()
}

fn error(response: &Response) -> (i64, Value) {
    assert_eq!(response.status, 200, "{response}");
    let error = response.message()["error"].clone();
    (error["code"].as_i64().expect("a code"), error)
}

const BOTH: &str = "hooks = [\"gate\", \"words\"]\nhook-timeout = \"60s\"";

// === hooks of one's own ===

fn words_are_changed_and_denied() {
    let embedded = Embedded::start(BOTH);
    let gateway = &embedded.gateway;
    let script = Script::new(gateway);
    let session = Session::open(gateway);
    let ask = |id, message: &str| {
        let mut connection = gateway.connect();
        connection.send(echo(&session, id, message));
        connection.response()
    };
    assert_eq!(said(&ask(1, "plain")), "plain");
    assert_eq!(said(&ask(2, "a word-change")), "a word-given");
    assert_eq!(said(&ask(3, "a word-answer")), "a word-other");
    let (code, told) = error(&ask(4, "a word-deny"));
    assert_eq!(
        (code, told["message"].as_str()),
        (-32_050, Some("that word is not said here"))
    );
    let (code, told) = error(&ask(5, "a word-panic"));
    assert_eq!(
        (code, &told["data"]["reason"]),
        (-32_603, &json!("hook_failed"))
    );
    // The server has read what was let through, as it was let through.
    assert_eq!(script.received("word-given").len(), 1);
    for word in ["word-change", "word-deny", "word-panic"] {
        assert!(script.received(word).is_empty(), "{word}");
    }
    // In each session, also after a panic.
    assert_eq!(said(&ask(6, "again word-change")), "again word-given");
    // A file that is read again may name them as well.
    config_file(
        &embedded.scratch,
        &format!("{BOTH}\ndeny = {{ tools = [\"echo\"] }}"),
    );
    gateway.signal(Signal::HUP);
    wait_until("the file is in force", || {
        ask(7, "plain").message()["error"]["code"] == -32_602
    });
}

/// Calls that wait at the gate.
fn at_the_gate(gateway: &Gateway, session: &Session, count: u32) -> Vec<Raw> {
    let begin = |id| {
        let mut connection = gateway.connect();
        connection.send(echo(session, id, "a word-gate"));
        connection
    };
    (1_000..1_000 + count).map(begin).collect()
}

fn a_hook_that_blocks_holds_up_no_other_call() {
    let embedded = Embedded::start(BOTH);
    let gateway = &embedded.gateway;
    let session = Session::open(gateway);
    // One thread of the hooks is left.
    let held = at_the_gate(gateway, &session, 3);
    for id in 1..50 {
        let mut connection = gateway.connect();
        connection.send(echo(&session, id, "word-change"));
        assert_eq!(said(&connection.response()), "word-given");
    }
    // What is not shown to hooks does not wait for them at all.
    let list = session.post(request_body("60", "tools/list", "{}"));
    assert!(gateway.ask(&list).message().is_object());
    embedded.open_gate();
    for mut connection in held {
        assert_eq!(said(&connection.response()), "a word-gate");
    }
}

fn hooks_that_never_come_back_are_given_up() {
    let embedded = Embedded::start("hooks = [\"gate\", \"words\"]\nhook-timeout = \"1s\"");
    let gateway = &embedded.gateway;
    let session = Session::open(gateway);
    // More than there are threads.
    for mut connection in at_the_gate(gateway, &session, 10) {
        let (code, told) = error(&connection.response());
        assert_eq!(code, -32_603);
        assert_eq!(told["message"], "A hook did not answer in time");
        assert_eq!(told["data"]["reason"], "hook_failed");
    }
    // Others have taken their place.
    let mut id = 0;
    wait_until("calls pass again", || {
        id += 1;
        let mut connection = gateway.connect();
        connection.send(echo(&session, id, "word-change"));
        let response = connection.response();
        response.message().get("result").is_some() && said(&response) == "word-given"
    });
    let script = Script::new(gateway);
    assert!(script.received("word-gate").is_empty());
    embedded.open_gate();
}

fn a_burst_is_answered() {
    const CALLS: u32 = 400;
    let embedded = Embedded::start(BOTH);
    let gateway = &embedded.gateway;
    let sessions = [Session::open(gateway), Session::open(gateway)];
    let message = |id: u32| match id % 5 {
        0 => format!("{id} word-deny"),
        1 => format!("{id} word-panic"),
        2 => format!("{id} word-gate"),
        3 => format!("{id} word-answer"),
        _ => format!("{id} word-change"),
    };
    let mut calls: Vec<(u32, Raw)> = (0..CALLS)
        .map(|id| {
            let mut connection = gateway.connect();
            connection.send(echo(&sessions[id as usize % 2], id, &message(id)));
            (id, connection)
        })
        .collect();
    embedded.open_gate();
    for (id, connection) in &mut calls {
        let id = *id;
        let response = connection.response();
        assert_eq!(response.message()["id"], id, "{response}");
        match id % 5 {
            0 => assert_eq!(error(&response).0, -32_050),
            1 => assert_eq!(error(&response).1["data"]["reason"], "hook_failed"),
            2 => assert_eq!(said(&response), format!("{id} word-gate")),
            3 => assert_eq!(said(&response), format!("{id} word-other")),
            _ => assert_eq!(said(&response), format!("{id} word-given")),
        }
    }
    let script = Script::new(gateway);
    assert_eq!(script.received("word-").len(), (CALLS * 3 / 5) as usize);
}

fn a_gateway_ends_although_a_hook_blocks() {
    let embedded = Embedded::start("hooks = [\"gate\"]\nhook-timeout = \"2s\"");
    let gateway = &embedded.gateway;
    let session = Session::open(gateway);
    let mut held = at_the_gate(gateway, &session, 1);
    gateway.signal(rustix::process::Signal::TERM);
    // What is in flight is answered first, as it is without hooks.
    let (code, _) = error(&held.remove(0).response());
    assert_eq!(code, -32_603);
    // That the process ends is looked at where it is dropped.
}

fn a_hook_that_nobody_has_made_is_a_mistake() {
    let scratch = Scratch::new();
    let gate = PathBuf::from(scratch.path("gate"));
    let command = embedding_command(&scratch, &gate, "hooks = [\"words\", \"missing\"]");
    let ended = support::gateway::run_to_end(command);
    assert!(!ended.status.success());
    let told = "error: routes[0].hooks[1]: there is no hook \"missing\" in this program\n";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
}

// === the redactor ===

const KEYS: &str =
    "[[routes.redact]]\nname = \"keys\"\npattern = \"sk-[a-z]{3}[0-9]+\"\nreplacement = \"(gone)\"";

/// In raw JSON, the last two spelled with escapes.
const SECRETS: [&str; 3] = ["sk-abc1", r"sk\u002dabc22", r"\u0073\u006b-\u0061bc333"];

fn the_redactor_finds_secrets_in_calls() {
    let scratch = Scratch::new();
    let gateway = plain_binary(&scratch, KEYS);
    let script = Script::new(&gateway);
    let session = Session::open(&gateway);
    for (id, secret) in (1_u32..).zip(SECRETS) {
        let id = id * 10;
        let arguments = format!(r#"{{"a":"x {secret} y","{secret}":[1.50,{{"b":"{secret}"}}]}}"#);
        let line = gateway
            .ask(&session.call(&id.to_string(), "raw", &arguments))
            .result();
        let line = support::unhex(line["line"].as_str().expect("hex text"));
        let line = String::from_utf8(line).expect("the gateway sends UTF-8");
        assert!(
            line.contains(r#"{"a":"x (gone) y","(gone)":[1.50,{"b":"(gone)"}]}"#),
            "{line}"
        );
        // Results: text, JSON within text, and what is structured.
        let nested = secret.replace('\\', "\\\\");
        let result = format!(
            r#"{{"content":[{{"type":"text","text":"{secret}"}},{{"type":"text","text":"{{\"k\":\"{nested}\"}}"}}],"structuredContent":{{"k":{{"{secret}":"{secret}"}},"n":1.50}}}}"#
        );
        let answer = |arguments: &str| {
            let request = session.call(&(id + 1).to_string(), "result", arguments);
            gateway.ask(&request).text()
        };
        let text = answer(&result_arguments(result.as_bytes()));
        assert!(
            text.ends_with(
                r#""result":{"content":[{"type":"text","text":"(gone)"},{"type":"text","text":"{\"k\":\"(gone)\"}"}],"structuredContent":{"k":{"(gone)":"(gone)"},"n":1.50}}}"#
            ),
            "{text}"
        );
        // Reads and prompts.
        let read = format!(
            r#"{{"contents":[{{"uri":"file:///a","text":"{secret}"}},{{"uri":"file:///{secret}","blob":"AAAA"}}]}}"#
        );
        script.answer_method("resources/read", &read);
        let ask = |method: &str, params: &str| {
            gateway.ask(&session.post(request_body(&(id + 2).to_string(), method, params)))
        };
        let result = ask("resources/read", r#"{"uri":"file:///a"}"#).result();
        assert_eq!(result["contents"][0]["text"], "(gone)");
        assert_eq!(result["contents"][1]["uri"], "file:///(gone)");
        let prompt = format!(
            r#"{{"messages":[{{"role":"user","content":{{"type":"text","text":"{secret}"}}}}]}}"#
        );
        script.answer_method("prompts/get", &prompt);
        let params = format!(r#"{{"name":"p","arguments":{{"a":"{secret}"}}}}"#);
        let result = ask("prompts/get", &params).result();
        assert_eq!(result["messages"][0]["content"]["text"], "(gone)");
        assert!(script.received(secret).is_empty(), "{secret}");
        script.forget_rules();
        // Progress: the message of it, and nothing else.
        let progress = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":@TOKEN@,"progress":1.50,"message":"at {secret}"}}}}"#
        );
        let last = r#"{"jsonrpc":"2.0","id":@ID@,"result":{}}"#;
        let arguments = send_arguments(&[progress.as_bytes(), last.as_bytes()]);
        let token = "\"sk-abc4\"";
        let request = session.call_with_token(&(id + 3).to_string(), "send", &arguments, token);
        let response = gateway.ask(&request);
        let messages = response.messages();
        assert_eq!(messages.len(), 2, "{response}");
        assert_eq!(messages[0]["params"]["message"], "at (gone)");
        assert_eq!(messages[0]["params"]["progressToken"], "sk-abc4");
        assert!(find(&response.body, b"1.50").is_some(), "{response}");
    }
    // What routes a call is not touched.
    let held = "sk-abc9";
    let refused = gateway.ask(&session.call("\"sk-abc5\"", held, "{}"));
    assert_eq!(refused.message()["id"], "sk-abc5");
    assert_eq!(script.received(held).len(), 1);
}

fn the_redactor_looks_where_it_is_told_to() {
    let scratch = Scratch::new();
    let gateway = plain_binary(&scratch, &format!("{KEYS}\nin = [\"results\"]"));
    let session = Session::open(&gateway);
    let arguments = json!({ "message": "sk-abc1" }).to_string();
    let response = gateway.ask(&session.call("1", "echo", &arguments));
    assert_eq!(said(&response), "(gone)");
    let line = gateway.ask(&session.call("2", "raw", &arguments)).result();
    let line = support::unhex(line["line"].as_str().expect("hex text"));
    assert!(find(&line, b"sk-abc1").is_some());
    // Many at a time, over both shards.
    let (answers, all) = mpsc::channel();
    std::thread::scope(|scope| {
        for client in 0..8_u32 {
            let (gateway, answers) = (&gateway, answers.clone());
            scope.spawn(move || {
                let session = Session::open(gateway);
                let mut connection = gateway.connect();
                for id in 0..50 {
                    let message = format!("{client} sk-abc{id}");
                    connection.send(echo(&session, id, &message));
                    answers
                        .send((client, said(&connection.response())))
                        .expect("it is read");
                }
            });
        }
        drop(answers);
    });
    let all: Vec<(u32, Value)> = all.into_iter().collect();
    assert_eq!(all.len(), 400);
    for (client, text) in all {
        assert_eq!(text, format!("{client} (gone)"));
    }
}
