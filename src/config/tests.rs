use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::cli::{Cli, Command, HttpServer};
use crate::hooks::{Hook, Point, Points};

const PAGE: &str = include_str!("../../docs/configuration.md");

/// A machine with a few files, on which names with `missing` in them are not there, and what is
/// in files with `bad` in their names cannot be used.
struct Fake;

impl Machine for Fake {
    fn read(&self, path: &Path, _: u64) -> io::Result<String> {
        self.look(path)?;
        Ok(format!("secret of {}\r\n\n", path.display()))
    }

    fn look(&self, path: &Path) -> io::Result<FileKind> {
        let name = path.to_string_lossy();
        match () {
            () if name.contains("missing") => Err(io::ErrorKind::NotFound.into()),
            () if name.ends_with("srv") => Ok(FileKind::Directory),
            () if name.ends_with("pipe") => Ok(FileKind::Other),
            () => Ok(FileKind::File),
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        (!name.contains("MISSING")).then(|| format!("value of {name}"))
    }

    fn check_tokens(&self, path: &Path) -> Result<(), String> {
        is_good(path, "line 3: expected NAME TOKEN")
    }

    fn check_roots(&self, path: &Path) -> Result<(), String> {
        is_good(path, &format!("{} has no certificate", path.display()))
    }

    /// Says where it has looked.
    fn check_program(&self, program: &Program<'_>) -> Result<(), String> {
        is_good(Path::new(program.name), &format!("{program:?}"))
    }
}

fn is_good(path: &Path, fault: &str) -> Result<(), String> {
    match path.to_string_lossy().contains("bad") {
        true => Err(fault.to_owned()),
        false => Ok(()),
    }
}

struct Audit;

impl Hook for Audit {
    fn name(&self) -> &str {
        "audit"
    }

    fn points(&self) -> Points {
        Point::BeforeToolCall.into()
    }
}

fn read(text: &str) -> Result<Loaded, Problems> {
    read_with(text, &[])
}

fn read_with(text: &str, hooks: &[Arc<dyn Hook>]) -> Result<Loaded, Problems> {
    let sources = Sources {
        directory: PathBuf::from("/etc/ringway"),
        machine: &Fake,
        hooks,
    };
    parse(text, &sources)
}

fn good(text: &str) -> File {
    match read(text) {
        Ok(loaded) => loaded.file,
        Err(problems) => panic!("{}\n{text}", problems.shown(Path::new("file"))),
    }
}

/// The problems of a text, without the file's name.
fn problems(text: &str) -> Vec<String> {
    let problems = match read(text) {
        Ok(loaded) => loaded.warnings,
        Err(problems) => problems,
    };
    problems.0.iter().map(Problem::to_string).collect()
}

/// A file whose route begins in line 1, its upstream in line 3.
fn with(top: &str, route: &str, upstream: &str) -> String {
    format!("{top}[[routes]]\npath = \"/mcp\"\n{route}[[routes.upstreams]]\n{upstream}")
}

const ONE: &str = "name = \"one\"\ncommand = [\"server\"]\n";

fn route_of(route: &str) -> Route {
    good(&with("", route, ONE)).routes.remove(0)
}

fn upstream_of(upstream: &str) -> Upstream {
    let text = with("", "", &format!("name = \"one\"\n{upstream}"));
    good(&text).routes.remove(0).upstreams.remove(0)
}

fn http_of(upstream: &str) -> HttpServer {
    match upstream_of(upstream).place {
        ServerPlace::Http(http) => http,
        place => panic!("{place:?}"),
    }
}

#[test]
fn wrong_settings_of_the_process_are_told_with_their_lines() {
    for (top, expected) in [
        (
            "listen = \"x\"",
            "1:10: error: listen: expected an IP address and a port, like 127.0.0.1:8080 or [::1]:8080",
        ),
        (
            "listen = 8080",
            "1:10: error: listen: must be text: expected an IP address and a port, like 127.0.0.1:8080 or [::1]:8080",
        ),
        (
            "listen = \"\"",
            "1:10: error: listen: expected an IP address and a port, like 127.0.0.1:8080 or [::1]:8080",
        ),
        (
            "admin = \"on\"",
            "1:9: error: admin: expected an address with a port, like 127.0.0.1:9464, or off",
        ),
        (
            "path = \"/mcp\"",
            "1:1: error: path is not known here: it is a key of routes",
        ),
        (
            "hub = \"both\"",
            "1:7: error: hub: expected one of auto, own, shard",
        ),
        (
            "get-streams = true",
            "1:15: error: get-streams: must be text: expected one of on, off",
        ),
        (
            "pin = \"x\"",
            "1:7: error: pin: expected auto, off, or a list of cores like 0,2-3",
        ),
        (
            "pin = \"4096\"",
            "1:7: error: pin names core 4096, which this process may not use",
        ),
        (
            "uring-flags = \"defer\"",
            "1:15: error: uring-flags: defer needs single",
        ),
        ("shards = 0", "1:10: error: shards must be from 1 to 255"),
        ("shards = 256", "1:10: error: shards must be from 1 to 255"),
        ("shards = -1", "1:10: error: shards: must be at least 0"),
        (
            "shards = \"2\"",
            "1:10: error: shards: expected a whole number, found text",
        ),
        (
            "shards = 2.0",
            "1:10: error: shards: expected a whole number, found a number",
        ),
        (
            "max-calls = 99999999999999999999999",
            "1:13: error: max-calls: must be at least 0",
        ),
        (
            "shards = 1\nmax-calls = 600_000",
            "2:13: error: max-calls must be from 1 to 524288 for each shard",
        ),
        (
            "max-calls = 0",
            "1:13: error: max-calls must be from 1 to 524288 for each shard",
        ),
        (
            "max-sessions = 0",
            "1:16: error: max-sessions must be at least 1",
        ),
        ("max-body = \"2GiB\"", "1:12: error: max-body: at most 1GiB"),
        (
            "max-body = true",
            "1:12: error: max-body: must be text: expected bytes, like 4194304 or 4MiB",
        ),
        (
            "max-id = \"2KiB\"",
            "1:10: error: max-id must be at most 1024 bytes",
        ),
        (
            "keep-alive = \"10\"",
            "1:14: error: keep-alive: expected a time with its unit, like 500ms, 10s or 5m",
        ),
        (
            "keep-alive = 10",
            "1:14: error: keep-alive: must be text: expected a time with its unit, like 500ms, 10s or 5m",
        ),
        (
            "keep-alive = \"0s\"",
            "1:14: error: keep-alive: must be above 0",
        ),
        (
            "allow-host = \"a\"",
            "1:14: error: allow-host: expected a list, found text",
        ),
        (
            "allow-host = [\n  \"a\",\n  1979-05-27,\n]",
            "3:3: error: allow-host[1]: expected text, found a date or time",
        ),
        (
            "allow-host = [\"a,b\"]",
            "1:15: error: allow-host[0]: must not hold a comma: each has its own place in the list",
        ),
        (
            "allow-host = [\"http://a\"]",
            "1:14: error: allow-host \"http://a\" must be a host, host:port or [IPv6]:port, without scheme or path",
        ),
        (
            "allow-origin = [\"*\"]",
            "1:16: error: allow-origin \"*\" must be one exact origin such as https://app.example:8443, without path or wildcard",
        ),
        (
            "log-level = \"loud\"",
            "1:13: error: log-level: expected one of error, warn, info, debug, trace",
        ),
        (
            "max_body = 1",
            "1:1: error: max_body is not known: did you mean max-body?",
        ),
        (
            "Max-Body = 1",
            "1:1: error: Max-Body is not known: did you mean max-body?",
        ),
        (
            "nothing-like-it = 1",
            "1:1: error: nothing-like-it is not known",
        ),
        ("\"a b\" = 1", "1:1: error: \"a b\" is not known"),
    ] {
        assert_eq!(
            problems(&with(&format!("{top}\n"), "", ONE)),
            [expected],
            "{top}"
        );
    }
}

#[test]
fn wrong_routes_are_told_with_their_lines() {
    for (line, expected) in [
        (
            "name = \"a b\"",
            "3:8: error: routes[0].name: must be 1 to 64 characters of a-z, A-Z, 0-9, -, _ and .",
        ),
        (
            "name = \"\"",
            "3:8: error: routes[0].name: must be 1 to 64 characters of a-z, A-Z, 0-9, -, _ and .",
        ),
        (
            "auth-token-file = \"missing\"",
            "3:19: error: routes[0].auth-token-file: cannot read /etc/ringway/missing: entity not found",
        ),
        (
            "auth-token-file = \"/a/pipe\"",
            "3:19: error: routes[0].auth-token-file: /a/pipe is not a regular file",
        ),
        (
            "auth-token-file = \"\"",
            "3:19: error: routes[0].auth-token-file: must be the path of a file",
        ),
        (
            "auth-token-file = \"bad\"",
            "3:19: error: routes[0].auth-token-file: /etc/ringway/bad: line 3: expected NAME TOKEN",
        ),
        (
            "hooks = [\"audit\"]",
            "3:10: error: routes[0].hooks[0]: there is no hook \"audit\": this program has none, only one that embeds Ringway can",
        ),
        (
            "hook-timeout = \"5\"",
            "3:16: error: routes[0].hook-timeout: expected a time with its unit, like 500ms, 10s or 5m",
        ),
        (
            "limits = 3",
            "3:10: error: routes[0].limits: expected a table, found a whole number",
        ),
        (
            "limits = { max-sessions = 0 }",
            "3:27: error: routes[0].limits.max-sessions: must be at least 1",
        ),
        (
            "limits = { max-session = 1 }",
            "3:12: error: routes[0].limits.max-session is not known: did you mean max-sessions?",
        ),
        (
            "limits = { session-ttl = \"1\" }",
            "3:26: error: routes[0].limits.session-ttl: expected a time with its unit, like 500ms, 10s or 5m",
        ),
        (
            "allow = [\"a\"]",
            "3:9: error: routes[0].allow: expected a table, found a list",
        ),
        (
            "allow = { tools = \"a\" }",
            "3:19: error: routes[0].allow.tools: expected a list, found text",
        ),
        (
            "allow = { tools = [1] }",
            "3:20: error: routes[0].allow.tools[0]: expected text, found a whole number",
        ),
        (
            "deny = { prompts = [\"a\", \"\"] }",
            "3:26: error: routes[0].deny.prompts[1]: a pattern must not be empty",
        ),
        (
            "deny = { tool = [] }",
            "3:10: error: routes[0].deny.tool is not known: did you mean tools?",
        ),
        (
            "listen = 1",
            "3:1: error: routes[0].listen is not known here: it is a key of the top of the file",
        ),
        (
            "command = []",
            "3:1: error: routes[0].command is not known here: it is a key of upstreams",
        ),
        (
            "allows = {}",
            "3:1: error: routes[0].allows is not known: did you mean allow?",
        ),
        (
            "redact = {}",
            "3:10: error: routes[0].redact: expected a list, found a table",
        ),
        (
            "redact = [1]",
            "3:11: error: routes[0].redact[0]: expected a table, found a whole number",
        ),
        (
            "redact = [{ pattern = \"q\" }]",
            "3:11: error: routes[0].redact[0].name is missing",
        ),
        (
            "redact = [{ name = \"a\" }]",
            "3:11: error: routes[0].redact[0].pattern is missing",
        ),
        (
            "redact = [{ name = \"a\", pattern = \"(\" }]",
            "3:35: error: routes[0].redact[0].pattern: is no regular expression: unclosed group",
        ),
        (
            "redact = [{ name = \"a\", pattern = \"a*\" }]",
            "3:35: error: routes[0].redact[0].pattern: the pattern matches empty text, so it would match everywhere",
        ),
        (
            "redact = [{ name = \"a\", pattern = \"q\", in = [] }]",
            "3:45: error: routes[0].redact[0].in: names no place: expected some of arguments, results, progress",
        ),
        (
            "redact = [{ name = \"a\", pattern = \"q\", in = [\"all\"] }]",
            "3:46: error: routes[0].redact[0].in[0]: expected one of arguments, results, progress",
        ),
        (
            "redact = [{ name = \"a\", pattern = \"q\", replacement = 1 }]",
            "3:54: error: routes[0].redact[0].replacement: expected text, found a whole number",
        ),
        (
            "redact = [{ name = \"a\", pattern = \"q\" }, { name = \"a\", pattern = \"b\" }]",
            "3:51: error: routes[0].redact[1].name: \"a\" is also the name of another redaction of the route",
        ),
        (
            "redact = [{ name = \"a\", pattern = \"q\", to = \"\" }]",
            "3:40: error: routes[0].redact[0].to is not known",
        ),
    ] {
        assert_eq!(
            problems(&with("", &format!("{line}\n"), ONE)),
            [expected],
            "{line}"
        );
    }
}

/// A program that embeds Ringway has hooks, and a file may name those only.
#[test]
fn hooks_are_those_that_the_program_has() {
    let hooks: [Arc<dyn Hook>; 1] = [Arc::new(Audit)];
    let told = |line: &str| match read_with(&with("", line, ONE), &hooks) {
        Ok(loaded) => Ok(loaded.file.routes[0].hooks.clone()),
        Err(problems) => Err(problems.0.iter().map(Problem::to_string).collect()),
    };
    assert_eq!(told("hooks = [\"audit\"]\n"), Ok(vec!["audit".to_owned()]));
    let expected: Vec<_> = [
        "3:19: error: routes[0].hooks[1]: there is no hook \"Audit\" in this program",
        "3:28: error: routes[0].hooks[2]: the hook is named twice",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(
        told("hooks = [\"audit\", \"Audit\", \"audit\"]\n"),
        Err(expected)
    );
}

#[test]
fn wrong_upstreams_are_told_with_their_lines() {
    let long = "a".repeat(33);
    let long = format!("name = \"{long}\"");
    let name =
        "must be 1 to 32 characters: a letter of a-z, then a-z, 0-9 and -, and no - at the end";
    let wrong_name = format!("4:8: error: routes[0].upstreams[0].name: {name}");
    for name in [
        "\"\"", "\"A\"", "\"1a\"", "\"-a\"", "\"a-\"", "\"a_b\"", "\"ä\"", "\"a.b\"",
    ] {
        let text = with("", "", &format!("name = {name}\ncommand = [\"x\"]\n"));
        assert_eq!(problems(&text), std::slice::from_ref(&wrong_name), "{name}");
    }
    let text = with("", "", &format!("{long}\ncommand = [\"x\"]\n"));
    assert_eq!(problems(&text), [wrong_name]);
    assert_eq!(
        problems(&with("", "", "command = [\"x\"]\n")),
        ["3:1: error: routes[0].upstreams[0].name is missing"]
    );
    for (lines, expected) in [
        (
            "",
            "3:1: error: routes[0].upstreams[0] needs a command or a url",
        ),
        (
            "command = [\"x\"]\nurl = \"http://h\"",
            "6:1: error: routes[0].upstreams[0].url cannot stand beside command: a server is one or the other",
        ),
        (
            "command = \"x\"",
            "5:11: error: routes[0].upstreams[0].command: expected a list, found text",
        ),
        (
            "command = []",
            "5:11: error: routes[0].upstreams[0].command: names no program",
        ),
        (
            "command = [\"\"]",
            "5:12: error: routes[0].upstreams[0].command[0]: names no program",
        ),
        (
            "command = [\"x\", 1]",
            "5:17: error: routes[0].upstreams[0].command[1]: expected text, found a whole number",
        ),
        (
            "command = [\"x\", \"\\u0000\"]",
            "5:17: error: routes[0].upstreams[0].command[1]: must not hold a NUL character",
        ),
        (
            "command = [\"x\"]\nenvironment = { \"A=B\" = \"\" }",
            "6:17: error: routes[0].upstreams[0].environment.\"A=B\" cannot be the name of a variable",
        ),
        (
            "command = [\"x\"]\nenvironment = { \"\" = \"\" }",
            "6:17: error: routes[0].upstreams[0].environment.\"\" cannot be the name of a variable",
        ),
        (
            "command = [\"x\"]\nenvironment = { RINGWAY_LOG_LEVEL = \"\" }",
            "6:17: error: routes[0].upstreams[0].environment.RINGWAY_LOG_LEVEL is a setting of Ringway, which servers never get",
        ),
        (
            "command = [\"x\"]\nenvironment = { A = \"a\\u0000\" }",
            "6:21: error: routes[0].upstreams[0].environment.A: must not hold a NUL character",
        ),
        (
            "command = [\"x\"]\nenvironment = { A = 1 }",
            "6:21: error: routes[0].upstreams[0].environment.A: expected text, { file = \"...\" } or { env = \"...\" }, found a whole number",
        ),
        (
            "command = [\"x\"]\nenvironment = { A = { file = \"missing\" } }",
            "6:30: error: routes[0].upstreams[0].environment.A.file: cannot read /etc/ringway/missing: entity not found",
        ),
        (
            "command = [\"x\"]\nenvironment = { A = { env = \"MISSING\" } }",
            "6:29: error: routes[0].upstreams[0].environment.A.env: the variable \"MISSING\" is not set, or is not UTF-8",
        ),
        (
            "command = [\"x\"]\nenvironment = { A = {} }",
            "6:21: error: routes[0].upstreams[0].environment.A: needs either file or env",
        ),
        (
            "command = [\"x\"]\nenvironment = { A = { file = \"a\", env = \"A\" } }",
            "6:21: error: routes[0].upstreams[0].environment.A: needs either file or env",
        ),
        (
            "command = [\"x\"]\nenvironment = { A = { env = \"A\", fil = \"a\" } }",
            "6:34: error: routes[0].upstreams[0].environment.A.fil is not known: did you mean file?",
        ),
        (
            "command = [\"x\"]\nworking-directory = \"missing\"",
            "6:21: warning: routes[0].upstreams[0].working-directory: /etc/ringway/missing: entity not found",
        ),
        (
            "command = [\"x\"]\nworking-directory = \"file\"",
            "6:21: warning: routes[0].upstreams[0].working-directory: /etc/ringway/file is not a directory",
        ),
        (
            "command = [\"bad\", \"bad\"]",
            "5:12: warning: routes[0].upstreams[0].command[0]: Program { name: \"bad\", directory: None, path: None }",
        ),
        (
            "command = [\"bad\"]\nworking-directory = \"srv\"\nenvironment = { A = \"/a\", PATH = \"/b\" }",
            "5:12: warning: routes[0].upstreams[0].command[0]: Program { name: \"bad\", directory: Some(\"/etc/ringway/srv\"), path: Some(\"/b\") }",
        ),
        (
            "command = [1, \"bad\"]",
            "5:12: error: routes[0].upstreams[0].command[0]: expected text, found a whole number",
        ),
        (
            "command = [\"x\"]\nshare = false",
            "6:1: error: routes[0].upstreams[0].share is for an upstream with a url",
        ),
        (
            "command = [\"x\"]\nidle-timeout = \"1s\"",
            "6:1: error: routes[0].upstreams[0].idle-timeout is for an upstream with a url",
        ),
        (
            "url = \"http://h\"\nenvironment = {}",
            "6:1: error: routes[0].upstreams[0].environment is for an upstream with a command",
        ),
        (
            "url = \"http://h\"\nworking-directory = \"srv\"",
            "6:1: error: routes[0].upstreams[0].working-directory is for an upstream with a command",
        ),
        (
            "url = \"ftp://h\"",
            "5:7: error: routes[0].upstreams[0].url: the URL of the server must begin with http:// or https://",
        ),
        (
            "url = \"http://u:p@h\"",
            "5:7: error: routes[0].upstreams[0].url: the URL of the server must not name a user or a password: use add-headers",
        ),
        (
            "url = \"http://h\"\nca = \"ca.pem\"",
            "6:1: error: routes[0].upstreams[0].ca is for a url of https://",
        ),
        (
            "url = \"https://h\"\nca = \"missing\"",
            "6:6: error: routes[0].upstreams[0].ca: cannot read /etc/ringway/missing: entity not found",
        ),
        (
            "url = \"https://h\"\nca = \"bad\"",
            "6:6: error: routes[0].upstreams[0].ca: /etc/ringway/bad has no certificate",
        ),
        (
            "url = \"http://h\"\nshare = \"yes\"",
            "6:9: error: routes[0].upstreams[0].share: expected true or false, found text",
        ),
        (
            "url = \"http://h\"\nshare = true\npass-headers = [\"a\"]",
            "7:1: error: routes[0].upstreams[0].pass-headers would do nothing with share: all clients have one session at the server",
        ),
        (
            "url = \"http://h\"\nremove-headers = [\"a\"]",
            "6:1: error: routes[0].upstreams[0].remove-headers would do nothing without pass-headers",
        ),
        (
            "url = \"http://h\"\npass-headers = [\"x\", \"*\"]",
            "6:22: error: routes[0].upstreams[0].pass-headers[1]: headers are passed by name: there is no * for all of them",
        ),
        (
            "url = \"http://h\"\npass-headers = [\"x-*-y\"]",
            "6:17: error: routes[0].upstreams[0].pass-headers[0]: \"x-*-y\" has a * that is not at its end",
        ),
        (
            "url = \"http://h\"\npass-headers = [\"mcp-*\"]",
            "6:17: error: routes[0].upstreams[0].pass-headers[0]: the header mcp- belongs to Ringway's own requests: it can be neither passed nor added",
        ),
        (
            "url = \"http://h\"\npass-headers = [\"x\"]\nremove-headers = [\"a b\"]",
            "7:19: error: routes[0].upstreams[0].remove-headers[0]: \"a b\" is not the name of a header",
        ),
        (
            "url = \"http://h\"\nadd-headers = { host = \"secret\" }",
            "6:24: error: routes[0].upstreams[0].add-headers.host: the header host belongs to Ringway's own requests: it can be neither passed nor added",
        ),
        (
            "url = \"http://h\"\nadd-headers = { a = \"se\\ncret\" }",
            "6:21: error: routes[0].upstreams[0].add-headers.a: the value of the header a has a control character",
        ),
        (
            "url = \"http://h\"\nadd-headers = { a = \"1\", A = \"2\" }",
            "6:26: error: routes[0].upstreams[0].add-headers.A is there twice: names of headers have no capitals",
        ),
        (
            "url = \"http://h\"\nconnections = 0",
            "6:15: error: routes[0].upstreams[0].connections: must be from 1 to 65536",
        ),
        (
            "url = \"http://h\"\nconnections = 65_537",
            "6:15: error: routes[0].upstreams[0].connections: must be from 1 to 65536",
        ),
        (
            "url = \"http://h\"\nconnect-timeout = \"soon\"",
            "6:19: error: routes[0].upstreams[0].connect-timeout: expected a time with its unit, like 500ms, 10s or 5m",
        ),
        (
            "command = [\"x\"]\nprefix = \"sometimes\"",
            "6:10: error: routes[0].upstreams[0].prefix: expected one of auto, always, never",
        ),
        (
            "command = [\"x\"]\nprefix = true",
            "6:10: error: routes[0].upstreams[0].prefix: must be text: expected one of auto, always, never",
        ),
        (
            "command = [\"x\"]\nrequired = 1",
            "6:12: error: routes[0].upstreams[0].required: expected true or false, found a whole number",
        ),
        (
            "command = [\"x\"]\nstart-timeout = \"0s\"",
            "6:17: error: routes[0].upstreams[0].start-timeout: must be above 0",
        ),
        (
            "command = [\"x\"]\nrequest-timeout = \"x\"",
            "6:19: error: routes[0].upstreams[0].request-timeout: expected a time with its unit, like 500ms, 10s or 5m",
        ),
        (
            "command = [\"x\"]\ndeny = { tools = [\"\"] }",
            "6:19: error: routes[0].upstreams[0].deny.tools[0]: a pattern must not be empty",
        ),
        (
            "command = [\"x\"]\ncomand = []",
            "6:1: error: routes[0].upstreams[0].comand is not known: did you mean command?",
        ),
        (
            "command = [\"x\"]\naliases = { a = \"b\" }",
            "6:13: error: routes[0].upstreams[0].aliases.a is not known",
        ),
        (
            "command = [\"x\"]\naliases = { tools = [] }",
            "6:21: error: routes[0].upstreams[0].aliases.tools: expected a table, found a list",
        ),
        (
            "command = [\"x\"]\naliases = { tools = { a = 1 } }",
            "6:27: error: routes[0].upstreams[0].aliases.tools.a: expected text, found a whole number",
        ),
        (
            "command = [\"x\"]\naliases = { tools = { a = \"\" } }",
            "6:27: error: routes[0].upstreams[0].aliases.tools.a: the server's own name must not be empty",
        ),
        (
            "command = [\"x\"]\naliases = { tools = { \"\" = \"a\" } }",
            "6:23: error: routes[0].upstreams[0].aliases.tools.\"\" cannot be an alias: it is empty",
        ),
        (
            "command = [\"x\"]\naliases = { prompts = { \"a\\u0007\" = \"a\" } }",
            "6:25: error: routes[0].upstreams[0].aliases.prompts.\"a\\u{7}\" cannot be an alias: it has a control character",
        ),
        (
            "command = [\"x\"]\naliases = { resources = { readme = \"a\" } }",
            "6:27: error: routes[0].upstreams[0].aliases.resources.readme must be a URI: it begins with no scheme, like doc:",
        ),
        (
            "command = [\"x\"]\naliases = { tools = { a = \"x\", b = \"x\" } }",
            "6:32: error: the tool \"x\" has two aliases: \"a\" and \"b\"",
        ),
    ] {
        let text = with("", "", &format!("name = \"one\"\n{lines}\n"));
        assert_eq!(problems(&text), [expected], "{lines}");
    }
}

#[test]
fn what_is_no_file_of_routes_is_told() {
    for (text, expected) in [
        ("", &["1:1: error: routes is missing"][..]),
        (
            "routes = []",
            &["1:10: error: routes: there must be at least one route"],
        ),
        (
            "routes = 1",
            &["1:10: error: routes: expected a list, found a whole number"],
        ),
        (
            "routes = [1]",
            &["1:11: error: routes[0]: expected a table, found a whole number"],
        ),
        (
            "[[routes]]",
            &[
                "1:1: error: routes[0].path is missing",
                "1:1: error: routes[0].upstreams is missing",
            ],
        ),
        (
            "[[routes]]\npath = \"mcp\"\nupstreams = []",
            &[
                "2:8: error: routes[0].path: a path starts with / and has no query",
                "3:13: error: routes[0].upstreams: there must be at least one upstream",
            ],
        ),
        (
            "[[routes]]\npath = \"/\"\nupstreams = [1]",
            &[
                "1:1: error: routes[0].name is missing: the path gives no name",
                "3:14: error: routes[0].upstreams[0]: expected a table, found a whole number",
            ],
        ),
        (
            "a = 1\na = 2\nb = [",
            &[
                "2:1: error: duplicate key",
                "3:6: error: unclosed array, expected `]`",
            ],
        ),
    ] {
        assert_eq!(problems(text), expected, "{text:?}");
    }
    // The column is that of the character, not of the byte.
    assert_eq!(
        problems("# ä\n\"ä\" = \"ö\" \n\"é\".x = 1\n")[..2],
        [
            "1:1: error: routes is missing",
            "2:1: error: \"ä\" is not known"
        ]
    );
    assert_eq!(
        problems(&with(
            "",
            "name = \"x\" # ä\nlimits = { \"ö\" = 1, z = 2 }\n",
            ONE
        )),
        [
            "4:12: error: routes[0].limits.\"ö\" is not known",
            "4:21: error: routes[0].limits.z is not known",
        ]
    );
}

fn item(name: &str) -> String {
    format!("{{ name = \"{name}\", command = [\"x\"] }}")
}

#[test]
fn counts_of_routes_upstreams_and_redactions_are_bounded() {
    let list = |count: usize, item: &dyn Fn(usize) -> String| {
        let items: Vec<_> = (0..count).map(item).collect();
        items.join(", ")
    };
    let routes = |count| {
        let route = |n| format!("{{ path = \"/p{n}\", upstreams = [{}] }}", item("a"));
        format!("routes = [{}]", list(count, &route))
    };
    assert_eq!(good(&routes(64)).routes.len(), 64);
    assert_eq!(
        problems(&routes(65)),
        ["1:10: error: routes: at most 64 routes can be served"]
    );
    let upstreams = |count| {
        let names = |n| item(&format!("u{n}"));
        format!(
            "routes = [{{ path = \"/p\", upstreams = [{}] }}]",
            list(count, &names)
        )
    };
    assert_eq!(good(&upstreams(64)).routes[0].upstreams.len(), 64);
    assert_eq!(
        problems(&upstreams(65)),
        ["1:38: error: routes[0].upstreams: a route can have at most 64 upstreams"]
    );
    let redactions = |count| {
        let redaction = |n| format!("{{ name = \"r{n}\", pattern = \"x\" }}");
        with(
            "",
            &format!("redact = [{}]\n", list(count, &redaction)),
            ONE,
        )
    };
    assert_eq!(good(&redactions(64)).routes[0].redact.len(), 64);
    assert_eq!(
        problems(&redactions(65)),
        ["3:10: error: routes[0].redact: at most 64 can be used"]
    );
}

#[test]
fn lists_and_problems_are_bounded() {
    let list = |count| vec!["\"a\""; count].join(", ");
    let patterns = |count| {
        with(
            "",
            &format!("deny = {{ tools = [{}] }}\n", list(count)),
            ONE,
        )
    };
    assert_eq!(problems(&patterns(1_024)), [""; 0]);
    let told = "3:18: error: routes[0].deny.tools: has more than 1024 items";
    assert_eq!(problems(&patterns(1_025)), [told]);
    let hosts = |count| with(&format!("allow-host = [{}]\n", list(count)), "", ONE);
    assert_eq!(problems(&hosts(256)), [""; 0]);
    let told = "1:14: error: allow-host: has more than 256 items";
    assert_eq!(problems(&hosts(257)), [told]);
    let pass = |count| {
        let upstream = format!(
            "name = \"a\"\nurl = \"http://h\"\npass-headers = [{}]\n",
            list(count)
        );
        with("", "", &upstream)
    };
    assert_eq!(problems(&pass(64)), [""; 0]);
    let told = "6:16: error: routes[0].upstreams[0].pass-headers: has more than 64 items";
    assert_eq!(problems(&pass(65)), [told]);
    let add = |count| {
        let headers: String = (0..count).map(|n| format!("h{n} = \"\"\n")).collect();
        let upstream =
            format!("name = \"a\"\nurl = \"http://h\"\n[routes.upstreams.add-headers]\n{headers}");
        with("", "", &upstream)
    };
    assert_eq!(problems(&add(64)), [""; 0]);
    let told = "6:1: error: routes[0].upstreams[0].add-headers: has more than 64 headers";
    assert_eq!(problems(&add(65)), [told]);

    let unknown: String = (0..50_000).map(|n| format!("k{n} = 1\n")).collect();
    let told = problems(&with(&unknown, "", ONE));
    assert_eq!(told.len(), 201);
    let last = told.last().map(String::as_str);
    assert!(last.is_some_and(|last| last.ends_with("there are more problems than are shown")));
}

/// However many warnings there are, an error still makes the file useless.
#[test]
fn warnings_do_not_hide_errors() {
    let aliases = |count| {
        let name = |n| format!("\"{n:065}\" = \"{n}\"\n");
        let aliases: String = (0..count).map(name).collect();
        with(
            "",
            "",
            &format!("{ONE}[routes.upstreams.aliases.tools]\n{aliases}"),
        )
    };
    assert_eq!(read(&aliases(300)).unwrap().warnings.0.len(), 201);
    let text = format!("{}[oops]\n", aliases(300));
    let told = read(&text).unwrap_err();
    assert!(told.has_errors());
    let errors = told
        .0
        .iter()
        .filter(|told| told.severity == Severity::Error);
    assert!(errors.count() >= 1);
}

#[test]
fn routes_have_names_and_paths_of_their_own() {
    let route = |keys: &str| format!("[[routes]]\n{keys}\nupstreams = [{}]\n", item("a"));
    let two = |one: &str, other: &str| problems(&format!("{}{}", route(one), route(other)));
    assert_eq!(two("path = \"/a\"", "path = \"/b\""), [""; 0]);
    assert_eq!(
        two("path = \"/a\"", "path = \"/a\""),
        ["5:8: error: routes[1].path: \"/a\" is also the path of routes[0]"]
    );
    assert_eq!(
        two("path = \"/a\"", "path = \"/b\"\nname = \"a\""),
        ["6:8: error: routes[1].name: \"a\" is also the name of routes[0]"]
    );
    assert_eq!(
        two("path = \"/a-b\"", "path = \"/a/b\""),
        ["5:8: error: routes[1].name: \"a-b\" is also the name of routes[0]"]
    );
    assert_eq!(
        two("path = \"/a\"\nname = \"n\"", "path = \"/a\"\nname = \"n\""),
        [
            "6:8: error: routes[1].path: \"/a\" is also the path of routes[0]",
            "7:8: error: routes[1].name: \"n\" is also the name of routes[0]",
        ]
    );
}

/// `upstreams`: the keys of each. In the text each has a line, the first line 4.
fn names(upstreams: &[&str]) -> Vec<String> {
    let items: Vec<_> = upstreams
        .iter()
        .map(|keys| format!("{{ command = [\"x\"], {keys} }},\n"))
        .collect();
    problems(&format!(
        "[[routes]]\npath = \"/a\"\nupstreams = [\n{}]\n",
        items.concat()
    ))
}

#[test]
fn upstreams_whose_names_clash_are_refused() {
    let none: [&str; 0] = [];
    for (upstreams, expected) in [
        (&["name = \"a\"", "name = \"b\""][..], &none[..]),
        (&["name = \"a\"", "name = \"ab\""], &none),
        (
            &["name = \"a\"", "name = \"a\""],
            &["5:27: error: the route has two upstreams of the name \"a\""],
        ),
        (
            &["name = \"a\"", "name = \"a-b\""],
            &[
                "5:27: error: the upstreams \"a\" and \"a-b\" cannot be told apart: the prefix of one begins with that of the other",
            ],
        ),
        (
            &["name = \"a-b-c\"", "name = \"x\"", "name = \"a-b\""],
            &[
                "6:27: error: the upstreams \"a-b-c\" and \"a-b\" cannot be told apart: the prefix of one begins with that of the other",
            ],
        ),
        (
            &["name = \"a\"", "name = \"a-b\", prefix = \"never\""],
            &[
                "5:27: error: the upstreams \"a\" and \"a-b\" cannot be told apart: the prefix of one begins with that of the other",
            ],
        ),
        (
            &[
                "name = \"a\", prefix = \"never\"",
                "name = \"b\", prefix = \"never\"",
            ],
            &[
                "5:27: error: the upstreams \"a\" and \"b\" are both without a prefix: one of a route can be",
            ],
        ),
        (
            &[
                "name = \"a\", prefix = \"never\"",
                "name = \"c\"",
                "name = \"b\", prefix = \"never\"",
                "name = \"d\", prefix = \"never\"",
            ],
            &[
                "6:27: error: the upstreams \"a\" and \"b\" are both without a prefix: one of a route can be",
                "7:27: error: the upstreams \"a\" and \"d\" are both without a prefix: one of a route can be",
            ],
        ),
    ] {
        assert_eq!(names(upstreams), expected, "{upstreams:?}");
    }
}

/// What is to be denied and is not is refused, where the file alone tells; what is allowed and
/// is not there is worth a warning.
#[test]
fn patterns_that_match_nothing_are_told() {
    let told = |route: &str, more: &str| {
        let upstreams = format!(
            "upstreams = [{{ name = \"one\", command = [\"x\"]{more} }}, {{ name = \"two\", command = [\"x\"] }}]"
        );
        problems(&format!(
            "[[routes]]\npath = \"/a\"\n{route}\n{upstreams}\n"
        ))
    };
    let matches_nothing = |place: &str, pattern: &str, kind: &str| {
        format!(
            "{place}: {pattern:?} matches nothing: the public name of a {kind} is its alias if it has one, else it begins with the prefix of its upstream"
        )
    };
    let deny =
        r#"deny = { tools = ["delete", "one-x", "*-delete"], resources = ["", "file:///*"] }"#;
    assert_eq!(
        told(deny, ""),
        [
            matches_nothing("3:19: error: routes[0].deny.tools[0]", "delete", "tool"),
            "3:64: error: routes[0].deny.resources[0]: a pattern must not be empty".to_owned(),
            matches_nothing(
                "3:68: error: routes[0].deny.resources[1]",
                "file:///*",
                "resource"
            ),
        ]
    );
    let allow = r#"allow = { prompts = ["ask*"], tools = ["ask"] }"#;
    assert_eq!(
        told(allow, ""),
        [
            matches_nothing(
                "3:22: warning: routes[0].allow.prompts[0]",
                "ask*",
                "prompt"
            ),
            matches_nothing("3:40: warning: routes[0].allow.tools[0]", "ask", "tool"),
        ]
    );
    // An alias, and names without a prefix.
    let alias = ", aliases = { tools = { ask = \"x\" } }";
    assert_eq!(told(allow, alias).len(), 1);
    assert_eq!(told(allow, ", prefix = \"never\""), [""; 0]);
    let single = format!("{allow}\n");
    assert_eq!(problems(&with("", &single, ONE)), [""; 0]);
    // An upstream's own names are its server's.
    assert_eq!(told("", ", deny = { tools = [\"delete\"] }"), [""; 0]);
    // Names that clash are told, and not what comes of them.
    let clash = r#"[[routes]]
path = "/a"
deny = { tools = ["delete"] }
upstreams = [{ name = "a", command = ["x"] }, { name = "a", command = ["x"] }]
"#;
    assert_eq!(
        problems(clash),
        ["4:56: error: the route has two upstreams of the name \"a\""]
    );
}

#[test]
fn aliases_that_clash_are_refused_and_long_ones_warned_of() {
    let none: [&str; 0] = [];
    let long = "x".repeat(65);
    let fits = "ä".repeat(64);
    for (one, other, expected) in [
        ("tools = { x = \"1\" }", "tools = { y = \"1\" }", vec![]),
        ("tools = { x = \"1\" }", "prompts = { x = \"1\" }", vec![]),
        (
            "tools = { x = \"1\" }",
            "tools = { y = \"1\", x = \"2\" }",
            vec!["5:63: error: the tool alias \"x\" of the upstream \"b\" is also one of \"a\""],
        ),
        (
            "prompts = { x = \"1\", y = \"1\" }",
            "",
            vec!["4:65: error: the prompt \"1\" has two aliases: \"x\" and \"y\""],
        ),
        (
            "resources = { \"a:x\" = \"1\" }",
            "resources = { \"a:x\" = \"1\" }",
            vec![
                "5:58: error: the resource alias \"a:x\" of the upstream \"b\" is also one of \"a\"",
            ],
        ),
        (
            &format!("tools = {{ {long} = \"1\" }}"),
            "",
            vec![
                "4:54: warning: the tool alias has 65 characters: many clients take no names over 64",
            ],
        ),
        (&format!("tools = {{ \"{fits}\" = \"1\" }}"), "", vec![]),
        (
            &format!("resources = {{ \"a:{long}\" = \"1\" }}"),
            "",
            vec![],
        ),
    ] {
        let upstreams = [
            format!("name = \"a\", aliases = {{ {one} }}"),
            format!("name = \"b\", aliases = {{ {other} }}"),
        ];
        let found = names(&upstreams.each_ref().map(String::as_str));
        assert_eq!(found, expected, "{one} {other}");
    }
    assert_eq!(names(&["name = \"a\""]), none);
}

#[test]
fn a_whole_file_is_read() {
    let file = good(
        r#"
        listen = "[::1]:9"
        admin = "off"
        shards = 3
        max-sessions = 9
        max-body = "1KiB"
        max-message = 2048
        allow-host = ["a", "b:1"]
        get-streams = "off"
        on-disconnect = "cancel"
        start-timeout = "7s"
        request-timeout = "8s"
        log-level = "debug"
        max-tasks-per-session = 11

        [[routes]]
        path = "/a/b"
        auth-token-file = "tokens"
        hook-timeout = "1s"
        limits = { max-sessions = 4, session-ttl = "1m", request-timeout = "9s" }
        allow = { tools = ["b", "a*"], resources = [] }
        deny = { prompts = ["p"] }
        redact = [
            { name = "one", pattern = "x+", replacement = "", in = ["progress", "results", "progress"] },
            { name = "two", pattern = "y" },
        ]

        [[routes.upstreams]]
        name = "z"
        command = ["./server", "--flag", ""]
        environment = { Z = "1", A = { env = "HOME" }, B = { file = "b" } }
        working-directory = "srv"
        required = true
        start-timeout = "2s"
        request-timeout = "3s"
        [routes.upstreams.aliases]
        tools = { z = "1", a = "2" }
        resources = { "doc:z" = "" , "doc:a" = "2" }

        [[routes.upstreams]]
        name = "a"
        url = "https://h/x?y"
        prefix = "never"
        share = true
        ca = "/ca"
        connections = 5
        connect-timeout = "1s"
        idle-timeout = "2s"
        deny = { tools = ["t"] }

        [[routes]]
        name = "second"
        path = "/c"
        upstreams = [{ name = "only", url = "http://h" }]
        "#
        .replace("\"doc:z\" = \"\" ,", "\"doc:z\" = \"1\",")
        .as_str(),
    );
    let process = &file.process;
    assert_eq!(process.listen, "[::1]:9".parse().unwrap());
    assert_eq!((process.shards, process.admin.is_some()), (3, false));
    assert_eq!(
        (process.limits.sessions_max, process.face.body_bytes_max),
        (3, 1024)
    );
    assert_eq!(
        (process.line_bytes_max, process.face.get_streams),
        (2048, false)
    );
    assert!(process.face.cancel_on_disconnect);
    assert_eq!(process.limits.request_timeout_ms, 8_000);
    assert_eq!(process.log_level, crate::cli::LogLevel::Debug);
    let [first, second] = &file.routes[..] else {
        panic!("two routes");
    };
    assert_eq!((&*first.name, &*first.path), ("a-b", "/a/b"));
    assert_eq!(first.auth_token_file, Some("/etc/ringway/tokens".into()));
    assert_eq!(first.hook_timeout, Duration::from_secs(1));
    let limits = first.limits;
    assert_eq!((limits.max_sessions, limits.max_tasks_per_session), (4, 11));
    assert_eq!(
        (
            limits.session_ttl.as_secs(),
            limits.request_timeout.as_secs()
        ),
        (60, 9)
    );
    assert_eq!(limits.session_unused_ttl.as_secs(), 60);
    let texts = |list: &[&str]| Some(list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
    let allow = Selection {
        tools: texts(&["b", "a*"]),
        resources: texts(&[]),
        prompts: None,
    };
    assert_eq!(first.allow, allow);
    assert_eq!(first.deny.prompts, texts(&["p"]));
    let [one, two] = &first.redact[..] else {
        panic!("two redactions");
    };
    assert_eq!(
        (&*one.name, &*one.pattern, &*one.replacement),
        ("one", "x+", "")
    );
    assert_eq!(
        one.places,
        [RedactionPlace::Progress, RedactionPlace::Results]
    );
    assert_eq!((&*two.replacement, two.places.len()), ("[redacted]", 3));
    let [z, a] = &first.upstreams[..] else {
        panic!("two upstreams");
    };
    let ServerPlace::Command(command) = &z.place else {
        panic!("a command");
    };
    assert_eq!(
        (&*command.label, command.program.to_str()),
        ("./server", Some("./server"))
    );
    assert_eq!(command.arguments, ["--flag", ""]);
    let environment = [
        ("Z", "1"),
        ("A", "value of HOME"),
        ("B", "secret of /etc/ringway/b"),
    ];
    assert_eq!(
        command.environment,
        environment.map(|(name, value)| (name.into(), value.into()))
    );
    assert_eq!(command.working_directory, Some("/etc/ringway/srv".into()));
    assert_eq!(
        (z.required, z.prefix, z.is_private()),
        (true, Prefix::Auto, false)
    );
    assert_eq!(
        (z.start_timeout.as_secs(), z.request_timeout.as_secs()),
        (2, 3)
    );
    let pairs =
        |list: [(&str, &str); 2]| list.map(|(one, other)| (one.to_owned(), other.to_owned()));
    assert_eq!(z.aliases.tools, pairs([("z", "1"), ("a", "2")]));
    assert_eq!(z.aliases.resources, pairs([("doc:z", "1"), ("doc:a", "2")]));
    assert!(first.has_prefix(z) && !first.has_prefix(a));
    assert_eq!(
        (a.prefix, a.required, a.is_private()),
        (Prefix::Never, false, false)
    );
    assert_eq!(
        (a.start_timeout.as_secs(), a.request_timeout.as_secs()),
        (7, 9)
    );
    assert_eq!(a.deny.tools, texts(&["t"]));
    let ServerPlace::Http(http) = &a.place else {
        panic!("over HTTP");
    };
    assert_eq!(
        (http.address.target(), http.ca.as_deref()),
        ("/x?y", Some(Path::new("/ca")))
    );
    assert_eq!((http.is_shared, http.connections_max), (true, 5));
    assert_eq!(
        (http.connect_timeout.as_secs(), http.idle_timeout.as_secs()),
        (1, 2)
    );
    assert_eq!((&*second.name, second.limits.max_sessions), ("second", 9));
    assert_eq!(second.upstreams[0].request_timeout.as_secs(), 8);
    assert!(second.upstreams[0].is_private() && !second.has_prefix(&second.upstreams[0]));
}

#[test]
fn defaults_are_those_of_the_flags() {
    use clap::Parser;
    let cli = Cli::parse_from(["ringway", "serve", "--upstream", "http://h/"]);
    let Command::Serve { flags, http, .. } = cli.command else {
        panic!("serve");
    };
    let file = good(&with("", "", "name = \"one\"\nurl = \"http://h/\"\n"));
    assert_eq!(file.process, flags.process(false).unwrap());
    let route = &file.routes[0];
    assert_eq!(route.limits, flags.route_limits());
    assert_eq!((&*route.name, route.hook_timeout.as_secs()), ("mcp", 5));
    let upstream = &route.upstreams[0];
    assert_eq!(
        upstream.place,
        ServerPlace::Http(http.server().unwrap().unwrap())
    );
    assert_eq!(upstream.start_timeout, flags.start_timeout());
    assert_eq!(upstream.request_timeout, route.limits.request_timeout);
    assert_eq!(upstream.aliases, Aliases::default());
    assert_eq!(
        (&upstream.allow, &upstream.deny),
        (&route.allow, &route.deny)
    );
    assert_eq!(route.allow, Selection::default());
}

/// Only a shared upstream needs the hub, wherever it stands.
#[test]
fn the_hub_has_a_thread_where_an_upstream_is_shared() {
    let private = "{ name = \"a\", url = \"http://h\" }";
    let shared = "{ name = \"b\", url = \"http://h\", share = true }";
    let hub_is_own = |one: &str, other: &str| {
        let route = |path: &str, upstream: &str| {
            format!("[[routes]]\npath = \"{path}\"\nupstreams = [{upstream}]\n")
        };
        let text = format!("hub = \"own\"\n{}{}", route("/a", one), route("/b", other));
        good(&text).process.hub_is_own
    };
    assert!(!hub_is_own(private, private));
    assert!(hub_is_own(private, shared));
    assert!(hub_is_own(private, &item("c")));
}

#[test]
fn secrets_are_not_shown() {
    let text = |secret: &str| {
        with(
            "",
            "",
            &format!(
                "name = \"one\"\nurl = \"http://h/?{secret}\"\nadd-headers = {{ a = \"{secret}\" }}\n\
                 [[routes.upstreams]]\nname = \"two\"\ncommand = [\"x\"]\nenvironment = {{ A = \"{secret}\" }}\n"
            ),
        )
    };
    let file = good(&text("hidden"));
    assert!(!format!("{file:?}").contains("hidden"), "{file:?}");
    // They count all the same when a file is compared with the one before.
    assert_eq!(file, good(&text("hidden")));
    let other = good(&text("other"));
    let [one, two] = &file.routes[0].upstreams[..] else {
        panic!("two upstreams");
    };
    assert_ne!(*one, other.routes[0].upstreams[0]);
    assert_ne!(*two, other.routes[0].upstreams[1]);
    let header = |value: &str| {
        http_of(&format!(
            "url = \"http://h\"\nadd-headers = {{ a = {value} }}\n"
        ))
    };
    assert_eq!(
        header("{ file = \"/f\" }").fields.added(),
        b"a: secret of /f\r\n"
    );
    assert_eq!(
        header("{ env = \"N\" }").fields.added(),
        b"a: value of N\r\n"
    );
    assert_ne!(header("\"1\"").fields, header("\"2\"").fields);
}

#[test]
fn headers_are_passed_by_patterns() {
    let http = http_of(
        "url = \"http://h\"\npass-headers = [\"Authorization\", \"x-*\"]\nremove-headers = [\"X-Internal\", \"x-p*\"]\n",
    );
    let passes = |name| http.fields.pass(name, b"v", &mut Vec::new());
    assert!(passes("authorization") && passes("X-A"));
    assert!(!passes("x-internal") && !passes("x-private") && !passes("cookie"));
}

#[test]
fn names_of_routes_come_from_their_paths() {
    assert_eq!(route_of("").name, "mcp");
    assert_eq!(route_of("name = \"A.b_c-1\"\n").name, "A.b_c-1");
}

/// Each code block of the page that is a file, and what it says.
fn blocks() -> Vec<&'static str> {
    let parts = PAGE.split("```toml\n").skip(1);
    parts.filter_map(|part| part.split("```").next()).collect()
}

#[test]
fn every_example_of_the_page_can_be_used() {
    let blocks = blocks();
    assert!(blocks.len() >= 4);
    for block in blocks {
        assert_eq!(problems(block), [""; 0], "{block}");
    }
}

/// The first cells of the table behind a mark, with the last ones.
fn page_rows(table: &str) -> Vec<(String, String)> {
    let mark = format!("<!-- keys: {table} -->\n");
    let (_, rest) = PAGE
        .split_once(&mark)
        .unwrap_or_else(|| panic!("no {mark}"));
    let rows = rest
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{row}");
        (cells[0].trim_matches('`').to_owned(), cells[3].to_owned())
    })
    .collect()
}

#[test]
fn the_page_has_the_keys_of_the_code_and_no_others() {
    let mut marks: Vec<_> = PAGE.split("<!-- keys: ").skip(1).collect();
    for TableKeys { table, keys } in tables() {
        marks.retain(|rest| !rest.starts_with(&format!("{table} ")));
        let mut of_page: Vec<_> = page_rows(table).into_iter().map(|(key, _)| key).collect();
        let mut of_code = keys.clone();
        of_page.sort();
        of_code.sort();
        assert_eq!(of_page, of_code, "{table}");
    }
    assert!(marks.is_empty(), "{marks:?}");
}

#[test]
fn the_page_has_the_defaults_of_the_flags() {
    use clap::CommandFactory;
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let default_of = |flag: &str| {
        let flag = serve
            .get_arguments()
            .find(|argument| argument.get_long() == Some(flag));
        let value = flag.and_then(|flag| flag.get_default_values().first().cloned());
        value.map(|value| value.to_string_lossy().into_owned())
    };
    let mut compared = 0;
    let http = [
        ("connections", "upstream-connections"),
        ("connect-timeout", "upstream-connect-timeout"),
        ("idle-timeout", "upstream-idle-timeout"),
    ];
    let rows = page_rows("process").into_iter();
    let upstream_rows: BTreeMap<_, _> = page_rows("upstreams").into_iter().collect();
    let upstream_rows = http
        .iter()
        .map(|(key, flag)| (flag.to_string(), upstream_rows[*key].clone()));
    for (key, cell) in rows.chain(upstream_rows) {
        let Some(default) = default_of(&key) else {
            continue;
        };
        let of_page = cell.split([':', ';']).next().unwrap_or_default();
        // Addresses have colons.
        let is_same = of_page.trim_matches('`') == default || cell.trim_matches('`') == default;
        assert!(is_same, "{key}: {cell}, not {default}");
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn nesting_without_end_is_refused() {
    for text in [
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}", "{ a = ".repeat(100_000)),
        format!("routes{} = 1", ".a".repeat(100_000)),
        format!("[a{}]", ".a".repeat(100_000)),
    ] {
        assert!(read(&text).is_err());
    }
}

#[test]
fn a_problem_is_one_line_of_plain_text() {
    for line in problems("\"a\\nb\\u001b[0m\" = 1\n\"\\u0085\" = 1\n") {
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}

/// Texts that are nearly files: pieces of the examples, cut, doubled and mixed up.
fn near_files() -> impl Strategy<Value = String> {
    let lines: Vec<&str> = blocks().iter().flat_map(|block| block.lines()).collect();
    let line = prop::sample::select(lines);
    let odd = prop::sample::select(vec![
        "",
        "[",
        "]",
        "[[routes]]",
        "[[routes.upstreams]]",
        "\"",
        "=",
        "x = 1",
        "routes = 1",
        "limits = []",
        "[routes]",
        "[routes.upstreams.aliases]",
        "'''",
        "a.b.c = {}",
        "path = \"\\",
        "name = \"\u{0}\"",
        "\u{feff}",
        "in = 1979-05-27",
        "shards = 0xffffffffffffffffff",
        "max-id = -9223372036854775808",
        "pin = \"0-4096\"",
    ]);
    let cut = (line.clone(), 0usize..80).prop_map(|(line, at)| line.chars().take(at).collect());
    let piece = prop_oneof![
        6 => line.prop_map(str::to_owned),
        2 => odd.prop_map(str::to_owned),
        1 => cut,
        1 => ".{0,20}",
    ];
    prop::collection::vec(piece, 0..40).prop_map(|lines| lines.join("\n"))
}

fn is_sound(text: &str) -> Result<(), TestCaseError> {
    let lines = text.split('\n').count();
    let (problems, is_used) = match read(text) {
        Ok(loaded) => (loaded.warnings, true),
        Err(problems) => (problems, false),
    };
    prop_assert_eq!(problems.has_errors(), !is_used);
    for problem in &problems.0 {
        prop_assert!((1..=lines).contains(&problem.line), "{}", problem);
        prop_assert!(problem.column >= 1);
        prop_assert!(!problem.to_string().contains(char::is_control));
    }
    let places: Vec<_> = problems
        .0
        .iter()
        .map(|problem| (problem.line, problem.column))
        .collect();
    prop_assert!(places.is_sorted());
    Ok(())
}

proptest! {
    #[test]
    fn no_text_panics(text in ".*") {
        is_sound(&text)?;
    }

    #[test]
    fn no_near_file_panics(text in near_files()) {
        is_sound(&text)?;
    }

    /// Whatever value a key has, it is used or told.
    #[test]
    fn no_value_panics(
        table in prop::sample::select(tables()),
        key in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![
            "1", "-1", "1.5", "nan", "true", "\"\"", "\"x\"", "[]", "[[]]", "[{}]", "{}", "{ a = {} }", "1979-05-27",
            "[\"\"]", "[\"*\"]", "{ x = \"\" }", "{ x = { file = \"x\" } }", "0b1", "\"\\u0000\"",
        ]),
    ) {
        let line = format!("{} = {value}\n", table.keys[key.index(table.keys.len())]);
        let text = match table.table {
            "process" => line,
            "routes" => format!("[[routes]]\n{line}"),
            "upstreams" => with("", "", &line),
            "limits" => with("", &format!("limits.{line}"), ONE),
            "kinds" => with("", &format!("allow.{line}deny.{line}"), &format!("{ONE}aliases.{line}")),
            "redact" => with("", &format!("redact = [{{ {} }}]\n", line.trim_end()), ONE),
            _ => with("", "", &format!("{ONE}environment.A.{line}")),
        };
        is_sound(&text)?;
    }
}
