//! Which settings of the whole process a file that was read again would change. They are as at
//! the start until the next one.

use crate::config::{File, Process};
use crate::http::ground::FaceConfig;

/// The keys whose values are others than at the start, where `process` and `needs_hub` are from.
pub(super) fn changed(process: &Process, needs_hub: bool, file: &File) -> Vec<&'static str> {
    let Process {
        listen,
        admin,
        shards,
        hub_is_own,
        cores,
        driver,
        ring_flags,
        face,
        limits,
        line_bytes_max,
        // What upstreams have that say nothing else: it is theirs, and changes with them.
        start_timeout: _,
        drain_timeout,
        log_format,
        log_level,
    } = process;
    let FaceConfig {
        policy,
        response_mode,
        body_bytes_max,
        id_bytes_max,
        connections_max,
        header_timeout_ms,
        body_timeout_ms,
        idle_timeout_ms,
        write_timeout_ms,
        buffered_bytes_max,
        cancel_on_disconnect,
        get_streams,
        keep_alive_ms,
    } = face;
    let new = &file.process;
    let new_face = &new.face;
    // A file without shared upstreams needs no hub, so where it is says nothing then.
    let is_hub_known = needs_hub == self::needs_hub(file);
    let shards_differ = *shards != new.shards;
    let keys = [
        ("listen", *listen != new.listen),
        ("admin", *admin != new.admin),
        ("shards", shards_differ),
        ("hub", is_hub_known && *hub_is_own != new.hub_is_own),
        (
            "pin",
            is_hub_known && cores.len() == new.cores.len() && *cores != new.cores,
        ),
        ("driver", *driver != new.driver),
        ("uring-flags", *ring_flags != new.ring_flags),
        ("allow-origin, allow-host", *policy != new_face.policy),
        ("response-mode", *response_mode != new_face.response_mode),
        ("max-body", *body_bytes_max != new_face.body_bytes_max),
        ("max-id", *id_bytes_max != new_face.id_bytes_max),
        (
            "max-connections",
            !shards_differ && *connections_max != new_face.connections_max,
        ),
        (
            "header-timeout",
            *header_timeout_ms != new_face.header_timeout_ms,
        ),
        ("body-timeout", *body_timeout_ms != new_face.body_timeout_ms),
        ("idle-timeout", *idle_timeout_ms != new_face.idle_timeout_ms),
        (
            "write-timeout",
            *write_timeout_ms != new_face.write_timeout_ms,
        ),
        (
            "max-buffered",
            *buffered_bytes_max != new_face.buffered_bytes_max,
        ),
        (
            "on-disconnect",
            *cancel_on_disconnect != new_face.cancel_on_disconnect,
        ),
        ("get-streams", *get_streams != new_face.get_streams),
        ("keep-alive", *keep_alive_ms != new_face.keep_alive_ms),
        // The other limits are what routes have that say nothing else.
        (
            "max-calls",
            !shards_differ && limits.calls_max != new.limits.calls_max,
        ),
        ("max-uri", limits.uri_bytes_max != new.limits.uri_bytes_max),
        ("max-message", *line_bytes_max != new.line_bytes_max),
        ("drain-timeout", *drain_timeout != new.drain_timeout),
        ("log-format", *log_format != new.log_format),
        ("log-level", *log_level != new.log_level),
    ];
    let changed = keys.into_iter().filter(|(_, is_changed)| *is_changed);
    changed.map(|(key, _)| key).collect()
}

/// Whether some upstream is shared by sessions.
pub(super) fn needs_hub(file: &File) -> bool {
    let mut all = file.routes.iter().flat_map(|route| &route.upstreams);
    all.any(|upstream| !upstream.is_private())
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    const ROUTE: &str = "[[routes]]\npath = \"/a\"\n[[routes.upstreams]]\nname = \"u\"\n";
    const COMMAND: &str = "command = [\"x\"]\n";
    const OVER_HTTP: &str = "url = \"http://127.0.0.1:1/mcp\"\n";

    fn changes(before: &str, after: &str) -> Vec<&'static str> {
        let before = file(&format!("{before}\n{ROUTE}{COMMAND}"));
        let after = file(&format!("{after}\n{ROUTE}{COMMAND}"));
        changed(&before.process, needs_hub(&before), &after)
    }

    #[test]
    fn each_setting_of_the_process_is_named() {
        for (key, value) in [
            ("listen", "\"127.0.0.1:9\""),
            ("admin", "\"off\""),
            ("shards", "7"),
            ("hub", "\"own\""),
            ("driver", "\"epoll\""),
            ("uring-flags", "\"none\""),
            ("response-mode", "\"sse\""),
            ("max-body", "\"1MiB\""),
            ("max-id", "9"),
            ("max-connections", "9"),
            ("header-timeout", "\"9s\""),
            ("body-timeout", "\"9s\""),
            ("idle-timeout", "\"9s\""),
            ("write-timeout", "\"9s\""),
            ("max-buffered", "\"9MiB\""),
            ("on-disconnect", "\"cancel\""),
            ("get-streams", "\"off\""),
            ("keep-alive", "\"9s\""),
            ("max-calls", "9"),
            ("max-uri", "9"),
            ("max-message", "\"9MiB\""),
            ("drain-timeout", "\"9s\""),
            ("log-format", "\"json\""),
            ("log-level", "\"error\""),
        ] {
            // What the machine decides is said where it is not what changes.
            let first = [("shards", "shards = 1\n"), ("hub", "hub = \"shard\"\n")];
            let before: String = first.iter().map(|(_, line)| *line).collect();
            let rest = first.iter().filter(|(name, _)| *name != key);
            let after: String = rest.map(|(_, line)| *line).collect();
            let after = format!("{after}{key} = {value}\n");
            assert_eq!(changes(&before, &after), [key]);
        }
        let policy = "allow-origin, allow-host";
        assert_eq!(
            changes("", "allow-origin = [\"http://a.example\"]"),
            [policy]
        );
        let found = changes("", "allow-host = [\"a.example\"]");
        assert_eq!(found, ["admin", policy]);
    }

    #[test]
    fn what_routes_and_upstreams_have_for_themselves_is_not() {
        for line in [
            "",
            "max-sessions = 9",
            "max-calls-per-session = 9",
            "request-timeout = \"9s\"",
            "session-ttl = \"9s\"",
            "start-timeout = \"9s\"",
        ] {
            assert_eq!(changes("", line), [""; 0], "{line}");
        }
    }

    #[test]
    fn a_first_shared_upstream_changes_no_setting() {
        let before = file(&format!("hub = \"own\"\n{ROUTE}{OVER_HTTP}"));
        let after = file(&format!("hub = \"own\"\n{ROUTE}{COMMAND}"));
        assert_eq!(
            changed(&before.process, needs_hub(&before), &after),
            [""; 0]
        );
    }
}
