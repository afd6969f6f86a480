//! The log level of the shared server: the most verbose that a live session has asked for, lowered again
//! when that session ends, and told anew to a server that was started again.

mod support;

use serde_json::Value;
use support::mcp::request_body;
use support::{Script, Session, Upstream, on_every_layout, wait_until};

/// The levels that the server of this script has been told, in order.
fn told(script: &Script<'_>) -> Vec<String> {
    let lines = script.received("logging/setLevel");
    let level = |line: &String| {
        let message: Value = serde_json::from_str(line).expect("a line is JSON");
        message["params"]["level"].as_str().map(str::to_owned)
    };
    lines.iter().filter_map(level).collect()
}

/// One client's `debug` must not cost all others their quiet for ever, nor a restart lose it.
#[test]
fn server_is_told_the_most_verbose_level_of_live_sessions() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Python("scripted.py", &[]));
        let script = Script::new(&gateway);
        let (loud, quiet) = (Session::open(&gateway), Session::open(&gateway));
        let set = |session: &Session, level: &str| {
            let params = format!(r#"{{"level":"{level}"}}"#);
            let request = session.post(request_body("1", "logging/setLevel", &params));
            assert_eq!(gateway.ask(&request).result(), serde_json::json!({}));
        };
        set(&quiet, "error");
        wait_until("the first wish is told", || told(&script) == ["error"]);
        set(&loud, "debug");
        wait_until("the louder wish is told", || {
            told(&script) == ["error", "debug"]
        });
        set(&quiet, "critical");
        assert_eq!(gateway.ask(&loud.delete()).status, 204);
        wait_until("it is lowered to what is left", || {
            told(&script) == ["error", "debug", "critical"]
        });

        let mut dying = gateway.connect();
        dying.send(quiet.call("\"x\"", "exit", r#"{"code":3}"#).bytes());
        dying.response();
        wait_until("the new server is told", || {
            let up = gateway.ask(&quiet.call("\"up?\"", "echo", "{}")).message();
            up["error"].is_null() && told(&Script::new(&gateway)) == ["critical"]
        });
        assert_eq!(gateway.ask(&quiet.delete()).status, 204);
        let script = Script::new(&gateway);
        wait_until("without wishes it is info", || {
            told(&script) == ["critical", "info"]
        });
    });
}
