//! The binary and its configuration file: what `check` says, and what `serve` refuses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of this test, which is gone with it.
struct Written(PathBuf);

impl Written {
    fn new(name: &str, text: &str) -> Written {
        let path = std::env::temp_dir().join(format!("ringway-{}-{name}.toml", std::process::id()));
        fs::write(&path, text).expect("the directory for temporary files can be written to");
        Written(path)
    }

    /// Runs the binary with `--config` and this file.
    fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        run(words, &self.0)
    }
}

/// Runs the binary with `--config` and a file.
fn run(words: &[&str], file: &Path) -> (Option<i32>, String, String) {
    let mut command = bare();
    command.args(words).arg("--config").arg(file);
    ended(command, file)
}

/// How a command ended, and what it said on stdout and stderr, with `FILE` for the file's name.
fn ended(mut command: Command, file: &Path) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    let path = file.to_str().expect("it is text");
    let name = |text: String| text.replace(path, "FILE");
    (status.code(), name(text(stdout)), name(text(stderr)))
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The binary without the settings of whoever runs the tests.
fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"RINGWAY_") {
            command.env_remove(name);
        }
    }
    command
}

const BROKEN: &str = r#"listen = "localhost"
max-cals = 3
keep-alive = "15"

[[routes]]
path = "/mcp"
limits = { max-sessions = 0 }
deny = { tools = [""] }

[[routes.upstreams]]
name = "a"
command = ["ringway-no-server"]
environment = { RINGWAY_PATH = "secret", KEY = 1 }

[[routes.upstreams]]
name = "a-b"
url = "http://h/mcp?secret"
add-headers = { Host = "secret", "X-Key" = { env = "RINGWAY_NOT_SET" } }

[routes.upstreams.aliases.tools]
a-name-that-is-much-too-long-for-the-interfaces-of-most-of-the-models = "x"

[[routes]]
path = "/mcp"
upstreams = []
"#;

const TOLD: &str = r#"FILE:1:10: error: listen: expected an IP address and a port, like 127.0.0.1:8080 or [::1]:8080
FILE:2:1: error: max-cals is not known: did you mean max-calls?
FILE:3:14: error: keep-alive: expected a time with its unit, like 500ms, 10s or 5m
FILE:7:27: error: routes[0].limits.max-sessions: must be at least 1
FILE:8:19: error: routes[0].deny.tools[0]: a pattern must not be empty
FILE:12:12: warning: routes[0].upstreams[0].command[0]: "ringway-no-server" is not found in PATH
FILE:13:17: error: routes[0].upstreams[0].environment.RINGWAY_PATH is a setting of Ringway, which servers never get
FILE:13:48: error: routes[0].upstreams[0].environment.KEY: expected text, { file = "..." } or { env = "..." }, found a whole number
FILE:16:8: error: the upstreams "a" and "a-b" cannot be told apart: the prefix of one begins with that of the other
FILE:18:24: error: routes[0].upstreams[1].add-headers.Host: the header host belongs to Ringway's own requests: it can be neither passed nor added
FILE:18:52: error: routes[0].upstreams[1].add-headers.X-Key.env: the variable "RINGWAY_NOT_SET" is not set, or is not UTF-8
FILE:21:1: warning: the tool alias has 69 characters: many clients take no names over 64
FILE:24:8: error: routes[1].path: "/mcp" is also the path of routes[0]
FILE:25:13: error: routes[1].upstreams: there must be at least one upstream
"#;

const ODD: &str = r#"[[routes]]
path = "/mcp"
[[routes.upstreams]]
name = "a"
command = ["/bin/sh"]
working-directory = "/nonexistent"
"#;

const ODD_TOLD: &str = "FILE:6:21: warning: routes[0].upstreams[0].working-directory: /nonexistent: No such file or directory (os error 2)\n";

/// All problems at once, in their order, each with its place, and no secret among them.
#[test]
fn check_tells_all_that_is_wrong() {
    let file = Written::new("broken", BROKEN);
    assert_eq!(
        file.run(&["check"]),
        (Some(1), TOLD.to_owned(), String::new())
    );
}

/// What is said of a variable that is set for a flag.
fn warning(name: &str) -> String {
    format!("warning: {name} is set, which `ringway serve` refuses beside a file\n")
}

#[test]
fn check_says_that_a_file_is_right() {
    let file = Written::new("right", &ODD.replace("/nonexistent", "/"));
    let right = "FILE is right\n".to_owned();
    assert_eq!(
        file.run(&["check"]),
        (Some(0), right.clone(), String::new())
    );
    // Containers name the file in a variable.
    let mut by_variable = bare();
    by_variable.arg("check").env("RINGWAY_CONFIG", &file.0);
    assert_eq!(
        ended(by_variable, &file.0),
        (Some(0), right.clone(), String::new())
    );
    // What the flags would take from the environment has no part in a file. `serve` would
    // refuse it.
    let mut elsewhere = bare();
    elsewhere
        .args(["check", "--config"])
        .arg(&file.0)
        .env("RINGWAY_SHARDS", "0")
        .env("RINGWAY_LISTEN", "nonsense");
    let warned = ["RINGWAY_LISTEN", "RINGWAY_SHARDS"].map(warning);
    assert_eq!(
        ended(elsewhere, &file.0),
        (Some(0), warned.concat() + &right, String::new())
    );
    let odd = Written::new("odd", ODD);
    let told = format!("{ODD_TOLD}{right}");
    assert_eq!(odd.run(&["check"]), (Some(0), told, String::new()));
}

#[test]
fn check_names_a_file_that_cannot_be_read() {
    let told = "FILE:1:1: error: the file cannot be read: No such file or directory (os error 2)\n";
    assert_eq!(
        run(&["check"], Path::new("/nonexistent/file")),
        (Some(1), told.to_owned(), String::new())
    );
    let (code, stdout, _) = run(&["check"], &std::env::temp_dir());
    assert_eq!(code, Some(1));
    assert!(stdout.contains("it is not a regular file"), "{stdout}");
    let large = Written::new("large", &"#".repeat((1 << 20) + 1));
    let (code, stdout, _) = large.run(&["check"]);
    assert_eq!(code, Some(1));
    assert!(
        stdout.contains("it is larger than 1048576 bytes"),
        "{stdout}"
    );
}

/// What stands in the files that are named is looked at as the start would, and all is told at once.
#[test]
fn check_looks_into_the_files_that_are_named() {
    let tokens = Written::new("tokens", "alice alice-0123456789ab\nbob hidden-word\n");
    let roots = Written::new("roots", "no certificate\n");
    let secret = Written::new("secret", &"x".repeat((64 << 10) + 1));
    let text = |tokens: &Path, roots: &Path, secret: &Path| {
        format!(
            "[[routes]]\npath = \"/mcp\"\nauth-token-file = {tokens:?}\nhooks = [\"audit\"]\n\
             [[routes.upstreams]]\nname = \"a\"\nurl = \"https://h/mcp\"\nca = {roots:?}\n\
             add-headers = {{ X-Key = {{ file = {secret:?} }} }}\n\
             [[routes.upstreams]]\nname = \"b\"\ncommand = [\"./no-server\"]\nworking-directory = \"/\"\n"
        )
    };
    let file = Written::new("names", &text(&tokens.0, &roots.0, &secret.0));
    let told = format!(
        "FILE:3:19: error: routes[0].auth-token-file: {}: line 2: a token is 16 to 4096 letters, digits and -._~+/, with = only at its end\n\
         FILE:4:10: error: routes[0].hooks[0]: there is no hook \"audit\": this program has none, only one that embeds Ringway can\n\
         FILE:8:6: error: routes[0].upstreams[0].ca: {} has no certificate that can be used as a root\n\
         FILE:9:34: error: routes[0].upstreams[0].add-headers.X-Key.file: cannot read {}: it is larger than 65536 bytes\n\
         FILE:12:12: warning: routes[0].upstreams[1].command[0]: /./no-server: No such file or directory (os error 2)\n",
        tokens.0.display(),
        roots.0.display(),
        secret.0.display(),
    );
    assert_eq!(file.run(&["check"]), (Some(1), told.clone(), String::new()));
    let (code, stdout, stderr) = file.run(&["serve"]);
    assert_eq!((code, &*stdout), (Some(2), ""));
    assert!(stderr.starts_with(&told), "{stderr}");
    for fault in [&told, &stderr] {
        assert!(!fault.contains("hidden-word"), "{fault}");
    }
    // The other way round: a file that is right.
    let tokens = Written::new("good-tokens", "alice alice-0123456789ab\n");
    let right = Written::new(
        "right-names",
        &format!(
            "[[routes]]\npath = \"/mcp\"\nauth-token-file = {:?}\nupstreams = [{{ name = \"a\", command = [\"sh\"] }}]\n",
            tokens.0
        ),
    );
    let said = "FILE is right\n".to_owned();
    assert_eq!(right.run(&["check"]), (Some(0), said, String::new()));
}

/// A file that cannot be used is a usage error, as flags are that cannot.
#[test]
fn serve_refuses_a_broken_file() {
    let file = Written::new("served", BROKEN);
    let (code, stdout, stderr) = file.run(&["serve"]);
    assert_eq!((code, &*stdout), (Some(2), ""));
    let told = format!("{TOLD}ringway: the configuration file cannot be used\n");
    assert_eq!(stderr, told);
}

/// The file says it all; a variable that says otherwise must not be ignored.
#[test]
fn serve_refuses_flags_beside_a_file() {
    let file = Written::new("beside", BROKEN);
    for words in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["serve", "--upstream", "http://h/"],
    ] {
        let (code, _, stderr) = file.run(words);
        assert_eq!(code, Some(2));
        assert!(stderr.contains("cannot be used with"), "{stderr}");
    }
    let by_variable = |verb: &str| {
        let mut command = bare();
        command.args([verb, "--config"]).arg(&file.0);
        command.env("RINGWAY_SHARDS", "2").env("RINGWAY_PATH", "/x");
        // This one may stand there.
        command.env("RINGWAY_LOG_LEVEL", "warn");
        ended(command, &file.0)
    };
    let (code, _, stderr) = by_variable("serve");
    assert_eq!(code, Some(2));
    assert!(stderr.contains("cannot be used with"), "{stderr}");
    let named = "\nset in the environment: RINGWAY_PATH, RINGWAY_SHARDS\n";
    assert!(stderr.ends_with(named), "{stderr}");
    // The file may be named by one too; what is wrong without a file is none of theirs.
    let by_both = |file: Option<&Path>, words: &[&str]| {
        let mut command = bare();
        command.arg("serve").args(words).env("RINGWAY_PATH", "/x");
        command.envs(file.map(|file| ("RINGWAY_CONFIG", file)));
        let ended = ended(command, Path::new("FILE"));
        assert_eq!(ended.0, Some(2));
        ended.2
    };
    let stderr = by_both(Some(Path::new("f")), &["--listen", "127.0.0.1:1"]);
    let named = "\nset in the environment: RINGWAY_CONFIG, RINGWAY_PATH\n";
    assert!(stderr.ends_with(named), "{stderr}");
    let twice = [
        "--listen",
        "127.0.0.1:1",
        "--listen",
        "127.0.0.1:2",
        "--",
        "x",
    ];
    let stderr = by_both(None, &twice);
    assert!(stderr.contains("multiple times"), "{stderr}");
    assert!(!stderr.contains("environment"), "{stderr}");
    let (code, stdout, _) = by_variable("check");
    assert_eq!(code, Some(1));
    let warned = ["RINGWAY_PATH", "RINGWAY_SHARDS"].map(warning);
    assert_eq!(stdout, format!("{TOLD}{}", warned.concat()));
}
