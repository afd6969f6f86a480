//! Bearer tokens: who may come in, whose a session is, and what a change of the file does. All over raw
//! sockets; what the gateway logs is searched for tokens at the end of every test.

mod support;

use std::os::unix::fs::PermissionsExt;

use support::gateway::{command, run_to_end};
use support::mcp::{LATEST, initialize_body, ping_body};
use support::{
    Gateway, Layout, Request, Response, Scratch, Session, Upstream, on_both_drivers,
    on_every_layout, wait_until,
};

const ALICE: &str = "alice-secret-0123456789";
const BOB: &str = "bob/secret+0123456789.~_-==";
const CAROL: &str = "carol-secret-0123456789";

/// A token file that only its owner can read.
struct Tokens {
    scratch: Scratch,
    path: String,
}

impl Tokens {
    fn new(text: &str) -> Self {
        let scratch = Scratch::new();
        let path = scratch.path("tokens");
        let tokens = Self { scratch, path };
        tokens.replace(text);
        tokens
    }

    /// Alice and Bob.
    fn two() -> Self {
        Self::new(&format!("# who may\n\nalice {ALICE}\nbob\t{BOB}\n"))
    }

    /// Puts another file in its place, as deployments do.
    fn replace(&self, text: &str) {
        let new = self.scratch.path("new");
        std::fs::write(&new, text).expect("the scratch directory is ours");
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).expect("our file");
        std::fs::rename(&new, &self.path).expect("the scratch directory is ours");
    }

    fn start(&self, layout: Layout, more: &[&str], upstream: Upstream<'_>) -> Gateway {
        let flags = [&["--auth-token-file", &self.path], more].concat();
        layout.start(&flags, upstream)
    }
}

fn bearer(request: Request, token: &str) -> Request {
    request.set("Authorization", &format!("Bearer {token}"))
}

fn initialize() -> Request {
    Request::post(initialize_body("1", LATEST))
}

/// Opens a session with a token.
fn open(gateway: &Gateway, token: &str) -> Session {
    let response = gateway.ask(&bearer(initialize(), token));
    assert_eq!(response.status, 200, "{response}");
    let id = response.field("mcp-session-id").expect("a session");
    Session {
        id: id.to_owned(),
        version: LATEST.to_owned(),
    }
}

/// Whether the token opens the door, asked without leaving a session.
fn is_let_in(gateway: &Gateway, token: &str) -> bool {
    let response = gateway.ask(&bearer(Request::new("OPTIONS"), token));
    match response.status {
        204 => true,
        401 => false,
        _ => panic!("{response}"),
    }
}

/// The answer to a request without a valid token, its fields and its body.
#[track_caller]
fn expect_unauthorized(response: &Response, challenge: &str) {
    response.expect_error(401, -32600, None);
    assert_eq!(
        response.field("www-authenticate"),
        Some(challenge),
        "{response}"
    );
    assert_eq!(response.field("mcp-session-id"), None, "{response}");
}

const NO_TOKEN: &str = "Bearer";
const BAD_TOKEN: &str = "Bearer error=\"invalid_token\"";

/// No token, and no part of one, is ever logged.
#[track_caller]
fn expect_no_secret(gateway: &Gateway) {
    let log = gateway.stderr.text() + &gateway.stdout.text() + &gateway.banner;
    assert!(!log.contains("secret"), "{log}");
}

/// The door itself: which requests get in, and what the others are told.
#[test]
fn only_a_listed_bearer_token_gets_in() {
    on_every_layout(|layout| {
        let tokens = Tokens::two();
        let gateway = tokens.start(layout, &["--log-level", "trace"], Upstream::Demo);
        let mut connection = gateway.connect();
        for scheme in ["Bearer", "bearer", "BEARER", "bEARER  "] {
            for token in [ALICE, BOB] {
                let request = initialize().add("Authorization", &format!("{scheme} {token}"));
                let response = connection.ask(&request);
                assert_eq!(response.status, 200, "{request:?} {response}");
            }
        }
        expect_unauthorized(&connection.ask(&initialize()), NO_TOKEN);
        for other in [
            "",
            "Bearer",
            "Basic YWxpY2U6c2VjcmV0",
            ALICE,
            "Bearerx secret",
        ] {
            let request = initialize().add("Authorization", other);
            expect_unauthorized(&connection.ask(&request), NO_TOKEN);
        }
        for wrong in [
            CAROL,
            "alice",
            "x-secret",
            &ALICE[1..],
            &ALICE[..ALICE.len() - 1],
            &format!("{ALICE}="),
            &format!("{ALICE} {ALICE}"),
            &format!("{ALICE},{BOB}"),
            &ALICE.to_uppercase(),
            &"secret".repeat(2_000),
        ] {
            expect_unauthorized(&connection.ask(&bearer(initialize(), wrong)), BAD_TOKEN);
        }
        // A refusal costs the connection nothing, and the head before it gives nothing away.
        assert_eq!(
            connection.ask(&bearer(initialize(), ALICE)).status,
            200,
            "the right token on the same connection"
        );
        expect_unauthorized(&connection.ask(&initialize()), NO_TOKEN);
        expect_no_secret(&gateway);
    });
}

/// Two proxies could pick one each: that is a fault of the head, whatever the tokens are.
#[test]
fn two_authorization_fields_are_400() {
    on_both_drivers(|layout| {
        let tokens = Tokens::two();
        let gateway = tokens.start(layout, &[], Upstream::Demo);
        for second in [ALICE, BOB, "x"] {
            let request = bearer(initialize(), ALICE).add("Authorization", second);
            gateway.ask(&request).expect_refusal(400);
        }
        expect_no_secret(&gateway);
    });
}

/// Every method and path asks for the token first: a stranger learns nothing, not even which paths exist.
#[test]
fn token_comes_before_every_later_check() {
    on_every_layout(|layout| {
        let tokens = Tokens::two();
        let gateway = tokens.start(layout, &["--max-body", "1KiB"], Upstream::Demo);
        let session = open(&gateway, ALICE);
        let body = initialize_body("1", LATEST);
        let strangers = [
            initialize().set("Host", "evil.example"),
            initialize().add("Origin", "https://evil.example"),
            initialize().target("/elsewhere"),
            initialize().set("Content-Type", "text/plain"),
            initialize().set("Accept", "text/html"),
            Request::post("{"),
            Request::post("x".repeat(2_000)),
            Request::new("GET"),
            Request::new("PUT"),
            Request::new("OPTIONS"),
            Request::new("OPTIONS").target("*"),
            session.post(ping_body("1")),
            session.delete(),
            session.of(Request::new("GET")),
            session.post(ping_body("1")).set("Mcp-Session-Id", "x"),
            Request::post(body).version("HTTP/1.0"),
        ];
        for request in strangers {
            expect_unauthorized(&gateway.ask(&request), NO_TOKEN);
            expect_unauthorized(&gateway.ask(&bearer(request, CAROL)), BAD_TOKEN);
        }
        let head = gateway.ask(&Request::new("HEAD"));
        assert_eq!(head.status, 401, "{head}");
        // With the token the later checks are there as ever.
        let host = bearer(initialize(), ALICE).set("Host", "evil.example");
        gateway.ask(&host).expect_refusal(403);
        let path = bearer(initialize(), ALICE).target("/elsewhere");
        gateway.ask(&path).expect_refusal(404);
        // The guard comes before.
        let guarded = initialize().version("HTTP/2.0");
        gateway.ask(&guarded).expect_refusal(505);
        // The session that strangers asked for is still there.
        let ping = gateway.ask(&bearer(session.post(ping_body("1")), ALICE));
        assert_eq!(ping.status, 200, "{ping}");
    });
}

/// A browser's preflight cannot carry a token; what follows it must, and its page can read the refusal.
#[test]
fn preflight_needs_no_token() {
    on_every_layout(|layout| {
        let tokens = Tokens::two();
        let gateway = tokens.start(layout, &[], Upstream::Demo);
        let origin = "http://localhost:6274";
        let preflight = Request::new("OPTIONS")
            .add("Origin", origin)
            .add("Access-Control-Request-Method", "POST")
            .add("Access-Control-Request-Headers", "authorization");
        for request in [preflight.clone(), bearer(preflight.clone(), CAROL)] {
            let response = gateway.ask(&request);
            assert_eq!(response.status, 204, "{response}");
            assert_eq!(response.field("access-control-allow-origin"), Some(origin));
            assert!(response.lists("access-control-allow-headers", "authorization"));
        }
        // It is no way around the other checks, nor is what only looks like one.
        let foreign = preflight.clone().set("Origin", "https://evil.example");
        gateway.ask(&foreign).expect_refusal(403);
        let post = initialize()
            .add("Origin", origin)
            .add("Access-Control-Request-Method", "POST");
        let refused = gateway.ask(&post);
        expect_unauthorized(&refused, NO_TOKEN);
        assert_eq!(refused.field("access-control-allow-origin"), Some(origin));
        assert!(refused.lists("vary", "origin"), "{refused}");
        for field in ["Origin", "Access-Control-Request-Method"] {
            let half = preflight.clone().without(field);
            expect_unauthorized(&gateway.ask(&half), NO_TOKEN);
        }
    });
}

/// Knowing a session's id is not enough: to any other token it is as unknown as none.
#[test]
fn session_belongs_to_the_token_that_opened_it() {
    on_every_layout(|layout| {
        let tokens = Tokens::two();
        let gateway = tokens.start(layout, &[], Upstream::Demo);
        let hers = open(&gateway, ALICE);
        let unknown = Session {
            id: "00000000-0000-4000-8000-000000000000".to_owned(),
            version: LATEST.to_owned(),
        };
        let mut connection = gateway.connect();
        for session in [&hers, &unknown] {
            for request in [
                session.post(ping_body("7")),
                session.call("7", "add", r#"{"a":1,"b":2}"#),
            ] {
                let response = connection.ask(&bearer(request, BOB));
                response.expect_error(404, -32001, Some("7"));
            }
            for request in [session.cancel("7"), session.delete()] {
                let response = connection.ask(&bearer(request, BOB));
                response.expect_error(404, -32001, None);
            }
            let get = connection.ask(&bearer(session.of(Request::new("GET")), BOB));
            get.expect_error(404, -32001, None);
        }
        // Hers is unhurt, and only she can end it.
        let call = hers.call("8", "add", r#"{"a":1,"b":2}"#);
        let answer = gateway.ask(&bearer(call, ALICE));
        assert_eq!(answer.result()["content"][0]["text"], "3");
        assert_eq!(gateway.ask(&bearer(hers.delete(), ALICE)).status, 204);
        let gone = gateway.ask(&bearer(hers.post(ping_body("9")), ALICE));
        gone.expect_error(404, -32001, Some("9"));
    });
}

/// A stranger's cancel must not reach a call in flight of somebody else's session.
#[test]
fn call_in_flight_is_out_of_reach_of_other_tokens() {
    on_both_drivers(|layout| {
        let tokens = Tokens::two();
        let gateway = tokens.start(layout, &[], Upstream::Python("scripted.py", &[]));
        let hers = open(&gateway, ALICE);
        let mut waiting = gateway.connect();
        let hold = hers.call("5", "hold", r#"{"key":"k"}"#);
        waiting.send(bearer(hold, ALICE).bytes());
        let held = hers.call("6", "held", "{}");
        wait_until("the server holds the call", || {
            let response = gateway.ask(&bearer(held.clone(), ALICE));
            response.result()["keys"]
                .as_array()
                .is_some_and(|keys| keys.iter().any(|key| key == "k"))
        });
        for request in [hers.cancel("5"), hers.delete()] {
            let response = gateway.ask(&bearer(request, BOB));
            response.expect_error(404, -32001, None);
        }
        let release = hers.call("7", "release", r#"{"key":"k"}"#);
        assert_eq!(
            gateway.ask(&bearer(release, ALICE)).result()["released"],
            true
        );
        assert_eq!(waiting.response().result()["released"], "k");
    });
}

/// The file is the truth while the gateway runs: no restart for a new colleague or a lost laptop.
#[test]
fn reread_adds_changes_and_removes() {
    on_every_layout(|layout| {
        let tokens = Tokens::two();
        let gateway = tokens.start(layout, &[], Upstream::Python("scripted.py", &[]));
        let (hers, his) = (open(&gateway, ALICE), open(&gateway, BOB));
        // Sessions on every shard, so that each of them has some to end.
        let more: Vec<Session> = (0..8).map(|_| open(&gateway, BOB)).collect();
        let mut waiting = gateway.connect();
        let hold = his.call("5", "hold", r#"{"key":"k"}"#);
        waiting.send(bearer(hold, BOB).bytes());
        let held = hers.call("6", "held", "{}");
        wait_until("the server holds his call", || {
            let response = gateway.ask(&bearer(held.clone(), ALICE));
            response.result()["keys"] == serde_json::json!(["k"])
        });

        // Added; the others notice nothing.
        tokens.replace(&format!("carol {CAROL}\nbob {BOB}\nalice {ALICE}\n"));
        wait_until("the new token is in force", || is_let_in(&gateway, CAROL));
        for (session, token) in [(&hers, ALICE), (&his, BOB)] {
            let ping = gateway.ask(&bearer(session.post(ping_body("1")), token));
            assert_eq!(ping.status, 200, "{ping}");
        }

        // Removed: his call is answered, his sessions are gone, he is out. Changed: hers go on.
        let changed = "alice-secret-of-the-new-year";
        tokens.replace(&format!("carol {CAROL}\nalice {changed}\n"));
        let ended = waiting.response().expect_error(200, -32603, Some("5"));
        assert_eq!(ended["data"]["reason"], "session_ended");
        wait_until("the old tokens are out everywhere", || {
            (0..4).all(|_| !is_let_in(&gateway, BOB) && !is_let_in(&gateway, ALICE))
        });
        for session in more.iter().chain([&his]) {
            let out = gateway.ask(&bearer(session.post(ping_body("2")), BOB));
            expect_unauthorized(&out, BAD_TOKEN);
        }
        let ping = gateway.ask(&bearer(hers.post(ping_body("3")), changed));
        assert_eq!(ping.status, 200, "{ping}");

        // He is back, and what was his is not.
        tokens.replace(&format!("bob {BOB}\nalice {changed}\n"));
        wait_until("he is let in again", || {
            (0..4).all(|_| is_let_in(&gateway, BOB))
        });
        for session in more.iter().chain([&his]) {
            let gone = gateway.ask(&bearer(session.post(ping_body("4")), BOB));
            gone.expect_error(404, -32001, Some("4"));
        }
        let fresh = open(&gateway, BOB);
        let ping = gateway.ask(&bearer(fresh.post(ping_body("5")), BOB));
        assert_eq!(ping.status, 200, "{ping}");
        expect_no_secret(&gateway);
    });
}

/// A slip in the file must neither lock everybody out nor let anybody in, and the log says where it is.
#[test]
fn bad_file_keeps_the_tokens_and_is_logged_once() {
    on_both_drivers(|layout| {
        let tokens = Tokens::two();
        let gateway = tokens.start(layout, &[], Upstream::Demo);
        let session = open(&gateway, ALICE);
        let complaints = |log: &str| log.matches("cannot be used").count();
        let bad = [
            (format!("carol {CAROL}\nbob secret\n"), "line 2"),
            (format!("carol {CAROL}\ndave {CAROL}\n"), "line 2"),
            ("# nobody\n".to_owned(), "no token"),
        ];
        for (told, (text, place)) in bad.iter().enumerate() {
            tokens.replace(text);
            gateway.stderr.wait_for("the complaint", |log| {
                complaints(log) == told + 1 && log.contains(place) && log.contains(&tokens.path)
            });
            assert!(!is_let_in(&gateway, CAROL));
            let ping = gateway.ask(&bearer(session.post(ping_body("1")), ALICE));
            assert_eq!(ping.status, 200, "{ping}");
        }
        std::fs::remove_file(&tokens.path).expect("our file");
        gateway
            .stderr
            .wait_for("the last complaint", |log| complaints(log) == bad.len() + 1);
        assert!(is_let_in(&gateway, BOB));
        // Whatever it complained about, it takes the next good file; nothing was told twice till then.
        tokens.replace(&format!("alice {ALICE}\ncarol {CAROL}\n"));
        wait_until("the good file is in force", || is_let_in(&gateway, CAROL));
        assert_eq!(complaints(&gateway.stderr.text()), bad.len() + 1);
        let ping = gateway.ask(&bearer(session.post(ping_body("2")), ALICE));
        assert_eq!(ping.status, 200, "{ping}");
        expect_no_secret(&gateway);
    });
}

/// At start a file that cannot be used is the end, with one sentence that says where to look.
#[test]
fn unusable_file_at_start_is_named() {
    on_both_drivers(|layout| {
        let tokens = Tokens::new("");
        let directory = tokens.scratch.path("");
        let missing = tokens.scratch.path("missing");
        let rows = [
            ("", tokens.path.as_str(), "no token"),
            ("alice secret\n", &tokens.path, "line 1"),
            ("\n\nalice alice secret 123456\n", &tokens.path, "line 3"),
            (
                "x x-secret-0123456789\nx y-secret-0123456789",
                &tokens.path,
                "line 2",
            ),
            ("", &directory, "regular file"),
            ("", &missing, "No such file"),
        ];
        for (text, path, place) in rows {
            tokens.replace(text);
            let flags = layout.flags(&["--auth-token-file", path]);
            let ended = run_to_end(command(&flags, Upstream::Demo));
            assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
            assert_eq!(ended.stdout, "");
            let sentences: Vec<_> = ended
                .stderr
                .lines()
                .filter(|line| line.starts_with("ringway: "))
                .collect();
            assert_eq!(sentences.len(), 1, "{}", ended.stderr);
            for word in ["--auth-token-file", path, place] {
                assert!(sentences[0].contains(word), "{word}: {}", sentences[0]);
            }
            assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
        }
    });
}

/// Secrets that everybody can read are worth a word, but no reason not to start.
#[test]
fn file_that_everybody_can_read_is_warned_about() {
    on_both_drivers(|layout| {
        for (mode, warnings) in [(0o644, 1), (0o640, 0), (0o600, 0)] {
            let tokens = Tokens::two();
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&tokens.path, permissions).expect("our file");
            let gateway = tokens.start(layout, &[], Upstream::Demo);
            assert!(is_let_in(&gateway, ALICE));
            let log = gateway.stderr.text();
            assert_eq!(log.matches("can read the token file").count(), warnings);
        }
    });
}

/// An open port without tokens is what nobody wants by accident.
#[test]
fn open_bind_without_tokens_warns_once() {
    on_every_layout(|layout| {
        let warnings = |gateway: &Gateway| {
            let log = gateway.stderr.text();
            let about = |line: &&str| line.contains("WARN") && line.contains("--auth-token-file");
            log.lines().filter(about).count()
        };
        let tokens = Tokens::two();
        let open_bind = ["--listen", "0.0.0.0:0"];
        let bare = layout.start(&open_bind, Upstream::Demo);
        // The log is written by a thread of its own, in order.
        bare.stderr.wait_for("the shard's line", |log| {
            log.contains("ringway-shard-0 runs")
        });
        for _ in 0..8 {
            Session::open(&bare);
        }
        assert_eq!(warnings(&bare), 1, "{}", bare.stderr.text());
        let guarded = tokens.start(layout, &open_bind, Upstream::Demo);
        let loopback = layout.start(&[], Upstream::Demo);
        for gateway in [guarded, loopback] {
            gateway.stderr.wait_for("the shard's line", |log| {
                log.contains("ringway-shard-0 runs")
            });
            assert_eq!(warnings(&gateway), 0, "{}", gateway.stderr.text());
        }
    });
}

/// Many tokens, many clients: each gets its own session and nobody else's.
#[test]
fn many_tokens_are_told_apart() {
    on_both_drivers(|layout| {
        let token = |n: usize| format!("secret-of-client-{n:06}");
        let text: String = (0..1_024)
            .map(|n| format!("client{n} {}\n", token(n)))
            .collect();
        let tokens = Tokens::new(&text);
        let gateway = tokens.start(layout, &[], Upstream::Demo);
        let places = [0, 1, 511, 512, 1_022, 1_023];
        let sessions: Vec<_> = places.iter().map(|&n| open(&gateway, &token(n))).collect();
        for (owner, session) in sessions.iter().enumerate() {
            for (asker, &place) in places.iter().enumerate() {
                let ping = bearer(session.post(ping_body("1")), &token(place));
                let expected = if owner == asker { 200 } else { 404 };
                assert_eq!(gateway.ask(&ping).status, expected);
            }
        }
    });
}
