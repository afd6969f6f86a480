//! How a gateway starts whose one session at a server over HTTP cannot be had, or not yet.

mod support;

use support::gateway::{command, run_to_end};
use support::http_server::{Exchange, HttpServer, expect_echo};
use support::{Layout, Session, Upstream, on_both_drivers, wait_until};

/// What the server does instead of an answer.
type Fault = fn(Exchange);

/// Starts a gateway that must end by itself, with exit code 1 and one sentence, which holds `words`.
fn fails(layout: Layout, server: &HttpServer, flags: &[&str], words: &[&str]) {
    let flags = layout.flags(&[&["--share", "--log-level", "error"], flags].concat());
    let ended = run_to_end(command(&flags, Upstream::Url(&server.url())));
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert_eq!(ended.stdout, "");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", ended.stderr);
    for word in words {
        assert!(lines[0].contains(word), "{word}: {}", ended.stderr);
    }
    assert!(!lines[0].contains("secret"), "{}", ended.stderr);
}

/// A server that starts a moment later than the gateway is none the worse for it.
#[test]
fn server_that_comes_up_later_is_waited_for() {
    on_both_drivers(|layout| {
        let server = HttpServer::new();
        server.down();
        let flags = layout.flags(&["--share"]);
        let url = server.url();
        std::thread::scope(|scope| {
            let starting = scope.spawn(|| support::Gateway::start(&flags, Upstream::Url(&url)));
            std::thread::sleep(std::time::Duration::from_millis(700));
            assert!(!starting.is_finished());
            server.up();
            let gateway = starting.join().expect("it starts");
            let session = Session::open(&gateway);
            expect_echo(&gateway, &session);
            assert_eq!(gateway.banner_word("upstream-version"), Some("\"1.0\""));
        });
        assert_eq!(server.given().len(), 1);
    });
}

/// The same behind a reverse proxy, and behind one that closes connections.
#[test]
fn proxy_whose_server_comes_up_later_is_waited_for() {
    let ways: [Fault; 3] = [
        |x| x.status("502 Bad Gateway", None, ""),
        |x| x.status("503 Service Unavailable", Some("text/html"), "<p>soon</p>"),
        Exchange::close,
    ];
    on_both_drivers(|layout| {
        for way in ways {
            let server = HttpServer::new();
            let left = std::sync::atomic::AtomicUsize::new(3);
            server.on(
                move |seen| {
                    let down = |left: usize| left.checked_sub(1);
                    let order = std::sync::atomic::Ordering::SeqCst;
                    seen.is("initialize") && left.fetch_update(order, order, down).is_ok()
                },
                way,
            );
            let gateway = support::http_server::start(layout, &["--share"], &server);
            expect_echo(&gateway, &Session::open(&gateway));
            assert_eq!(server.count(|seen| seen.is("initialize")), 4);
        }
    });
}

#[test]
fn handshake_that_cannot_be_had_ends_the_start() {
    let faults: [(Fault, &[&str]); 6] = [
        (
            |x| x.status("404 Not Found", None, ""),
            &[
                "no session at the server",
                "status 404",
                "the path of the URL",
            ],
        ),
        (
            |x| x.status("401 Unauthorized", Some("text/plain"), "who?"),
            &["no session at the server", "status 401"],
        ),
        (
            |x| x.message("null"),
            &["no session at the server", "with nothing"],
        ),
        (
            |x| x.fail(r#"{"code":-1,"message":"go away"}"#),
            &["handshake", "go away"],
        ),
        (
            |x| {
                x.status(
                    "400 Bad Request",
                    Some("application/json"),
                    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"go away"}}"#,
                )
            },
            &["no session at the server", "status 400", "go away"],
        ),
        (
            |mut x| {
                x.raw("garbage\r\n\r\n");
                x.close();
            },
            &["no session at the server", "not well-formed"],
        ),
    ];
    on_both_drivers(|layout| {
        for (fault, words) in faults {
            let server = HttpServer::new();
            server.on(|seen| seen.is("initialize"), fault);
            fails(layout, &server, &[], words);
            assert_eq!(server.count(|seen| seen.is("initialize")), 1);
        }
        let server = HttpServer::new();
        server.speak("1999-01-01");
        fails(layout, &server, &[], &["1999-01-01"]);
        // It was given a session, and ends it.
        wait_until("the session is ended", || server.live().is_empty());
        server.down();
        let words = ["no session at the server", "cannot be connected to"];
        fails(layout, &server, &["--start-timeout", "1s"], &words);
        let server = HttpServer::new();
        server.hold(|seen| seen.is("initialize"));
        fails(
            layout,
            &server,
            &["--start-timeout", "1s"],
            &["did not answer initialize"],
        );
    });
}
