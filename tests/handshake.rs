//! The handshake with clients: minted session ids, the `initialize` result and what is taken out of it, the
//! choice of a protocol version, its header, and the refusal of clients that probe for the modern era.

mod support;

use serde_json::{Value, json};
use support::mcp::{LATEST, LEGACY_VERSIONS, initialize_body, ping_body, request_body};
use support::{Request, Session, Upstream, on_both_drivers, on_every_layout};

/// Session ids are secrets: no two alike, unguessable form, and not for a client to choose.
#[test]
fn session_id_is_minted_by_the_gateway() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let mut connection = gateway.connect();
        let chosen = "11111111-1111-4111-8111-111111111111";
        let mut seen = std::collections::HashSet::new();
        for _ in 0..32 {
            let request = Request::post(initialize_body("1", LATEST)).add("Mcp-Session-Id", chosen);
            let response = connection.ask(&request);
            let id = response
                .field("mcp-session-id")
                .expect("a session id")
                .to_owned();
            assert_ne!(id, chosen);
            assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
            assert!(seen.insert(id), "minted twice");
        }
        let response = connection.ask(&Request::post(ping_body("1")).add("Mcp-Session-Id", chosen));
        response.expect_error(404, -32001, Some("1"));
    });
}

/// A header without a session behind it would make a client believe in one.
#[test]
fn session_id_is_sent_on_success_only() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let mut connection = gateway.connect();
        let refused = [
            Request::post(request_body("1", "initialize", "[]")),
            Request::post(request_body("null", "initialize", "{}")),
            Request::post("{"),
            Request::post(ping_body("1")),
            Request::post(initialize_body("1", LATEST)).set("Content-Type", "text/plain"),
            Request::post(initialize_body("1", LATEST)).set("Origin", "https://evil.example"),
        ];
        for request in refused {
            let response = connection.ask(&request);
            assert_ne!(response.status, 200, "{response}");
            assert_eq!(response.field("mcp-session-id"), None, "{response}");
        }
    });
}

/// The answer to `initialize` promises only what this gateway keeps: no change notifications and no
/// subscriptions where there are no GET streams, tasks in the one version that has them; everything else is the
/// server's own.
#[test]
fn initialize_result_is_the_servers_less_what_is_not_offered() {
    let capabilities = r#"{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true},"logging":{},"completions":{},"experimental":{"x":{"n":1.0}},"tasks":{"list":{},"cancel":{}}}"#;
    on_every_layout(|layout| {
        let arguments = ["--capabilities", capabilities, "--name", "näme \"q\""];
        for streams in ["on", "off"] {
            let flags = ["--get-streams", streams];
            let gateway = layout.start(&flags, Upstream::Python("scripted.py", &arguments));
            for version in LEGACY_VERSIONS {
                let response = gateway.ask(&Request::post(initialize_body("1", version)));
                let result = response.result();
                assert_eq!(result["protocolVersion"], version);
                assert_eq!(result["serverInfo"]["name"], "näme \"q\"");
                assert_eq!(result["instructions"], "Does what it is told.");
                let mut offered: Value = serde_json::from_str(capabilities).expect("JSON");
                if version != LATEST {
                    offered.as_object_mut().expect("ours").remove("tasks");
                }
                if streams == "off" {
                    for kind in ["tools", "resources", "prompts"] {
                        offered[kind] = json!({});
                    }
                }
                assert_eq!(result["capabilities"], offered, "{streams} {version}");
            }
        }
    });
}

/// Old clients must be spoken to in their own version; the server's is the ceiling.
#[test]
fn protocol_version_is_the_clients_when_known_and_not_newer_than_the_servers() {
    on_both_drivers(|layout| {
        for upstream in ["2025-11-25", "2025-06-18"] {
            let arguments = ["--protocol", upstream];
            let gateway = layout.start(&[], Upstream::Python("scripted.py", &arguments));
            assert_eq!(gateway.banner_word("protocol"), Some(upstream));
            let asked = LEGACY_VERSIONS
                .into_iter()
                .chain(["1999-01-01", "2027-01-01", "x"]);
            for version in asked {
                let expected = if LEGACY_VERSIONS.contains(&version) && version <= upstream {
                    version
                } else {
                    upstream
                };
                assert_eq!(
                    Session::open_at(&gateway, version).version,
                    expected,
                    "{version}"
                );
            }
        }
    });
}

/// The header is advice of later versions: it must not lock out a client that does not send it, and the
/// session's own version governs.
#[test]
fn protocol_version_header_is_checked_after_initialize() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let ignored =
            Request::post(initialize_body("1", LATEST)).add("MCP-Protocol-Version", "1.0");
        assert_eq!(connection.ask(&ignored).status, 200);
        let ping = session.post(ping_body("4"));
        assert_eq!(
            connection
                .ask(&ping.clone().without("MCP-Protocol-Version"))
                .status,
            200
        );
        for version in LEGACY_VERSIONS {
            let response = connection.ask(&ping.clone().set("MCP-Protocol-Version", version));
            assert_eq!(response.status, 200, "{version}: {response}");
        }
        for version in ["1.0", "2025-11-26", "2025-11-25x"] {
            let response = connection.ask(&ping.clone().set("MCP-Protocol-Version", version));
            let error = response.expect_error(400, -32600, Some("4"));
            for supported in LEGACY_VERSIONS {
                assert!(
                    error.to_string().contains(supported),
                    "{supported} in {error}"
                );
            }
        }
    });
}

/// SDK clients open with a modern probe and fall back to `initialize` on any error but -32020 to -32022.
#[test]
fn modern_probe_is_refused_so_that_clients_fall_back() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let meta = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#;
        let mut connection = gateway.connect();
        let probes = [
            Request::post(request_body("1", "server/discover", meta)),
            Request::post(request_body("1", "server/discover", meta))
                .add("MCP-Protocol-Version", "2026-07-28")
                .add("Mcp-Method", "server/discover"),
            Request::post(request_body("1", "server/discover", "{}"))
                .add("MCP-Protocol-Version", "2026-07-28"),
            Request::post(request_body("1", "tools/list", meta)),
        ];
        for probe in probes {
            connection.ask(&probe).expect_error(400, -32600, Some("1"));
        }
        // Inside a session, the session's version governs and the modern header is an unsupported one.
        let session = Session::open(&gateway);
        let modern = session
            .post(ping_body("2"))
            .set("MCP-Protocol-Version", "2026-07-28");
        connection.ask(&modern).expect_error(400, -32600, Some("2"));
        let response = connection.ask(&Request::post(initialize_body("3", LATEST)));
        assert_eq!(response.status, 200, "{response}");
        assert!(response.field("mcp-session-id").is_some());
    });
}
