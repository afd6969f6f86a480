//! Who may talk to the gateway and by which methods: Host and Origin, CORS, paths, methods, and the limits
//! on connections and sessions. All over raw sockets, since the point is what hostile clients send.

mod support;

use support::mcp::{LATEST, initialize_body, ping_body};
use support::{Request, Session, Upstream, on_both_drivers, on_every_layout, wait_until};

/// A page in a browser that rebinds its name to 127.0.0.1 sends its own name as Host.
#[test]
fn loopback_bind_serves_loopback_hosts_only() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let mut connection = gateway.connect();
        let ask = Request::post(initialize_body("1", LATEST));
        for good in [
            "localhost",
            "LocalHost",
            "localhost:1",
            "127.0.0.1",
            "127.0.0.1:65535",
            "[::1]",
            "[::1]:8080",
        ] {
            let response = connection.ask(&ask.clone().set("Host", good));
            assert_eq!(response.status, 200, "{good}: {response}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil-localhost",
            "localhost.",
            "127.0.0.2",
            "0.0.0.0",
            "[::2]",
            "xn--localhost",
        ] {
            let response = gateway.ask(&ask.clone().set("Host", bad));
            response.expect_refusal(403);
        }
        // Not a host at all: a fault of the head rather than of policy, but never served.
        for broken in [
            "",
            "localhost:80@evil.example",
            "localhost, evil.example",
            "local host",
        ] {
            let response = gateway.ask(&ask.clone().set("Host", broken));
            assert!(
                matches!(response.status, 400 | 403),
                "{broken:?}: {response}"
            );
        }
    });
}

/// Any page in the user's browser can reach a loopback port: its Origin gives it away.
#[test]
fn loopback_bind_serves_loopback_origins_only() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        for good in [
            "http://localhost",
            "http://localhost:6274",
            "https://localhost",
            "http://127.0.0.1:3000",
            "http://[::1]:3000",
        ] {
            for request in [session.post(ping_body("1")), session.post("{")] {
                // Errors need the CORS fields as well, or a page cannot read them.
                let response = gateway.ask(&request.add("Origin", good));
                assert!(matches!(response.status, 200 | 400), "{good}: {response}");
                assert_eq!(response.field("access-control-allow-origin"), Some(good));
                assert!(response.lists("vary", "origin"), "{response}");
                assert!(response.lists("access-control-expose-headers", "mcp-session-id"));
            }
        }
        for bad in [
            "null",
            "",
            "https://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://evil.example:80",
            "localhost",
            "http://localhost:80@evil.example",
            "http://localhost http://evil.example",
            "ftp://localhost",
            "http://localhost/path",
        ] {
            let response = gateway.ask(&session.post(ping_body("1")).add("Origin", bad));
            response.expect_refusal(403);
            assert_eq!(
                response.field("access-control-allow-origin"),
                None,
                "{bad}: {response}"
            );
        }
        let two = session
            .post(ping_body("1"))
            .add("Origin", "http://localhost")
            .add("Origin", "http://localhost");
        let response = gateway.ask(&two);
        assert!(matches!(response.status, 400 | 403), "{response}");
        assert_eq!(
            response.field("access-control-allow-origin"),
            None,
            "{response}"
        );
    });
}

/// Bound to every address the gateway cannot know its names, but a browser page is still not welcome
/// unless it was named.
#[test]
fn open_bind_serves_any_host_and_no_origin() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&["--listen", "0.0.0.0:0"], Upstream::Demo);
        let ask = Request::post(initialize_body("1", LATEST));
        for host in ["example.test", "10.0.0.1:80", "localhost"] {
            let response = gateway.ask(&ask.clone().set("Host", host));
            assert_eq!(response.status, 200, "{host}: {response}");
        }
        for origin in ["http://localhost", "https://example.test", "null"] {
            let response = gateway.ask(&ask.clone().add("Origin", origin));
            response.expect_refusal(403);
        }
    });
}

/// What an operator names is served, and only exactly that.
#[test]
fn named_hosts_and_origins_are_exact() {
    on_both_drivers(|layout| {
        let flags = [
            "--listen",
            "0.0.0.0:0",
            "--allow-host",
            "gate.example",
            "--allow-host",
            "gate.example.org:8443",
            "--allow-origin",
            "https://app.example,http://other.example:81",
        ];
        let gateway = layout.start(&flags, Upstream::Demo);
        let ask = Request::post(initialize_body("1", LATEST)).set("Host", "gate.example");
        for (host, status) in [
            ("gate.example", 200),
            ("GATE.example:9", 200),
            ("gate.example.org:8443", 200),
            ("gate.example.org", 403),
            ("gate.example.org:8444", 403),
            ("sub.gate.example", 403),
            ("gate.example.evil", 403),
            ("127.0.0.1", 403),
        ] {
            let response = gateway.ask(&ask.clone().set("Host", host));
            assert_eq!(response.status, status, "{host}: {response}");
        }
        for (origin, status) in [
            ("https://app.example", 200),
            ("http://other.example:81", 200),
            ("http://app.example", 403),
            ("https://app.example:444", 403),
            ("https://sub.app.example", 403),
            ("http://other.example", 403),
            ("http://localhost", 403),
            ("null", 403),
        ] {
            let response = gateway.ask(&ask.clone().add("Origin", origin));
            assert_eq!(response.status, status, "{origin}: {response}");
            let allowed = (status == 200).then_some(origin);
            assert_eq!(
                response.field("access-control-allow-origin"),
                allowed,
                "{response}"
            );
        }
    });
}

/// A preflight is all that a browser asks before it sends the real request.
#[test]
fn preflight_names_methods_and_headers_for_exact_origins() {
    on_every_layout(|layout| {
        let gateway = layout.start(&["--allow-origin", "https://app.example"], Upstream::Demo);
        let preflight = |origin: &str| {
            Request::new("OPTIONS")
                .add("Origin", origin)
                .add("Access-Control-Request-Method", "POST")
                .add(
                    "Access-Control-Request-Headers",
                    "content-type,mcp-session-id",
                )
        };
        let mut connection = gateway.connect();
        for origin in ["https://app.example", "http://localhost:6274"] {
            let response = connection.ask(&preflight(origin));
            assert_eq!(response.status / 100, 2, "{response}");
            assert!(response.body.is_empty(), "{response}");
            assert_eq!(response.field("access-control-allow-origin"), Some(origin));
            assert!(response.lists("vary", "origin"), "{response}");
            for method in ["GET", "POST", "DELETE"] {
                assert!(
                    response.lists("access-control-allow-methods", method),
                    "{response}"
                );
            }
            for name in [
                "Mcp-Session-Id",
                "MCP-Protocol-Version",
                "Mcp-Method",
                "Mcp-Name",
                "Last-Event-ID",
                "Authorization",
                "Content-Type",
                "Accept",
            ] {
                assert!(
                    response.lists("access-control-allow-headers", name),
                    "{name}: {response}"
                );
            }
        }
        let refused = gateway.ask(&preflight("https://evil.example"));
        refused.expect_refusal(403);
        assert_eq!(refused.field("access-control-allow-origin"), None);
        // OPTIONS that is no preflight tells the methods.
        let response = gateway.ask(&Request::new("OPTIONS"));
        assert_eq!(response.status / 100, 2, "{response}");
        assert!(response.lists("allow", "POST"), "{response}");
        // A stranger's answer and nobody's answer must not be mixed up by a cache.
        let plain = gateway.ask(&Request::post(initialize_body("1", LATEST)));
        assert_eq!(plain.field("access-control-allow-origin"), None, "{plain}");
    });
}

/// What is allowed is said, and GET only where there are streams: clients know 405 to mean exactly that there
/// are none. HEAD must not grow a body.
#[test]
fn other_methods_are_405_with_the_allowed_ones() {
    on_every_layout(|layout| {
        let others = ["HEAD", "PUT", "PATCH", "TRACE", "BREW"];
        for (flags, refused, allow) in [
            (&[][..], &others[..], "GET, POST, DELETE, OPTIONS"),
            (
                &["--get-streams", "off"],
                &[&["GET"], &others[..]].concat(),
                "POST, DELETE, OPTIONS",
            ),
        ] {
            let gateway = layout.start(flags, Upstream::Demo);
            let session = Session::open(&gateway);
            let mut connection = gateway.connect();
            for method in refused {
                let request = session
                    .of(Request::new(method))
                    .add("Accept", "text/event-stream");
                let response = connection.ask(&request);
                assert_eq!(response.status, 405, "{method}: {response}");
                assert_eq!(response.field("allow"), Some(allow), "{method}: {response}");
                if response.lists("connection", "close") {
                    connection = gateway.connect();
                }
            }
            let response = gateway.ask(&Request::new("CONNECT").target("localhost:80"));
            assert_eq!(response.status, 405, "{response}");
            // The session outlives all of that.
            assert_eq!(gateway.ask(&session.post(ping_body("1"))).status, 200);
        }
    });
}

/// A gateway behind a path prefix must not answer for its neighbours.
#[test]
fn other_paths_are_404() {
    on_both_drivers(|layout| {
        for (flag, served) in [(None, "/mcp"), (Some("/a/b"), "/a/b")] {
            let flags: Vec<&str> = flag.map_or(vec![], |path| vec!["--path", path]);
            let gateway = layout.start(&flags, Upstream::Demo);
            assert!(
                gateway.banner.contains(&format!("{served} ")),
                "{}",
                gateway.banner
            );
            let ask = Request::post(initialize_body("1", LATEST));
            let mut connection = gateway.connect();
            for target in [
                served.to_owned(),
                format!("{served}?key=value"),
                format!("http://localhost{served}"),
            ] {
                let response = connection.ask(&ask.clone().target(&target));
                assert_eq!(response.status, 200, "{target}: {response}");
            }
            for target in [
                "/".to_owned(),
                format!("{served}/"),
                format!("{served}x"),
                format!("/x{served}"),
                served.to_uppercase(),
                format!("/..{served}"),
                "/?/mcp".to_owned(),
                "http://localhost/".to_owned(),
            ] {
                let response = connection.ask(&ask.clone().target(&target));
                assert_eq!(response.status, 404, "{target}: {response}");
                assert_eq!(response.field("mcp-session-id"), None);
                if response.lists("connection", "close") {
                    connection = gateway.connect();
                }
            }
        }
    });
}

/// An absolute target's own authority is what counts, so a good Host beside it must not help.
#[test]
fn absolute_target_must_pass_the_host_check() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let ask = Request::post(initialize_body("1", LATEST));
        let response = gateway.ask(&ask.clone().target("http://127.0.0.1:80/mcp"));
        assert_eq!(response.status, 200, "{response}");
        for target in [
            "http://evil.example/mcp",
            "http://localhost@evil.example/mcp",
        ] {
            let response = gateway.ask(&ask.clone().target(target));
            assert!(matches!(response.status, 400 | 403), "{target}: {response}");
        }
    });
}

/// Order of checks: a page that may not talk learns nothing about paths, methods or sessions.
#[test]
fn forbidden_comes_before_every_later_check() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let evil = |request: Request| request.add("Origin", "https://evil.example");
        for request in [
            evil(Request::post("{").target("/elsewhere")),
            evil(Request::new("GET")),
            evil(Request::post("{").set("Content-Type", "text/plain")),
            evil(Request::new("DELETE")),
        ] {
            let response = gateway.ask(&request);
            response.expect_refusal(403);
        }
        // And further down: path before method, method before media types, those before size.
        let response = gateway.ask(&Request::new("GET").target("/elsewhere"));
        assert_eq!(response.status, 404, "{response}");
        let response = gateway.ask(
            &Request::post("{")
                .set("Content-Type", "text/plain")
                .set("Accept", "x/y"),
        );
        assert!(matches!(response.status, 415 | 406), "{response}");
        let mut connection = gateway.connect();
        connection.send(
            Request::new("POST")
                .add("Content-Type", "text/plain")
                .add("Content-Length", "99999999999")
                .head(),
        );
        connection.response().expect_refusal(415);
    });
}

/// Over the limit a client must be told to come back, not be left hanging; and it must get in later.
#[test]
fn connections_over_the_limit_get_503_and_room_is_given_back() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&["--max-connections", "2"], Upstream::Demo);
        let ask = Request::post(initialize_body("1", LATEST));
        let (mut first, mut second) = (gateway.connect(), gateway.connect());
        assert_eq!(first.ask(&ask).status, 200);
        assert_eq!(second.ask(&ask).status, 200);
        let mut third = gateway.connect();
        third.send_to_the_wary(ask.bytes());
        let response = third.response();
        assert_eq!(response.status, 503, "{response}");
        assert!(response.field("retry-after").is_some(), "{response}");
        third.expect_end();
        assert_eq!(first.ask(&ask).status, 200);
        drop(second);
        wait_until("a closed connection makes room", || {
            let mut connection = gateway.connect();
            connection.send_to_the_wary(ask.bytes());
            connection
                .next(false)
                .is_some_and(|response| response.status == 200)
        });
    });
}

/// Sessions cost memory; an ended one must give its place back.
#[test]
fn sessions_over_the_limit_get_503_and_room_is_given_back() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&["--max-sessions", "2"], Upstream::Demo);
        let (first, second) = (Session::open(&gateway), Session::open(&gateway));
        let ask = Request::post(initialize_body("9", LATEST));
        let response = gateway.ask(&ask);
        assert_eq!(response.status, 503, "{response}");
        assert!(response.field("retry-after").is_some(), "{response}");
        assert_eq!(response.field("mcp-session-id"), None, "{response}");
        assert_eq!(gateway.ask(&first.delete()).status, 204);
        assert_eq!(gateway.ask(&ask).status, 200);
        assert_eq!(gateway.ask(&second.post(ping_body("1"))).status, 200);
    });
}
