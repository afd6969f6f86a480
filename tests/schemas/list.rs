//! The list of what Ringway itself writes, by the places in `src` that write it: each message with the versions
//! in which it can occur. A message that a test provokes and the list lacks fails it, and so does one that the
//! list has and no test sees.
//!
//! Two sentences of `src` are not here, since nothing that a client or a server does brings them about: the
//! refusal of `initialize` inside a session (a batch is refused whole before), and `upstream_down` as the answer
//! to `initialize` (nothing is served before the first handshake).

use crate::definitions::Version::{self, V2025_03_26, V2025_11_25};

const ALL: &[Version] = &Version::ALL;
const NEWEST: &[Version] = &[V2025_11_25];
const BATCHES: &[Version] = &[V2025_03_26];
/// An error without an id fits the newest schema alone: before, an error had to have one.
const NAMELESS: &[Version] = &[V2025_11_25];

/// A message and the versions in which it can occur.
pub(crate) type Entry = (&'static str, &'static [Version]);

/// What goes to clients.
pub(crate) const TO_CLIENTS: &[Entry] = &[
    // Results.
    ("result of initialize", ALL),
    ("result of ping", ALL),
    ("result of logging/setLevel", ALL),
    ("result of resources/subscribe", ALL),
    ("result of resources/unsubscribe", ALL),
    ("result of tasks/list", NEWEST),
    ("batch", BATCHES),
    // Notifications: its own, and those that it rewrites or passes on by its own choice.
    ("notifications/tools/list_changed", ALL),
    ("notifications/resources/list_changed", ALL),
    ("notifications/prompts/list_changed", ALL),
    ("notifications/resources/updated", ALL),
    ("notifications/progress", ALL),
    ("notifications/tasks/status", NEWEST),
    // Errors that name the request: faults of the message.
    ("-32600: jsonrpc must be the string 2.0", ALL),
    (
        "-32600: the message is not exactly one of request, notification and response",
        ALL,
    ),
    ("-32600: method must be a string", ALL),
    ("-32600: params must be an object", ALL),
    ("-32600: params._meta must be an object", ALL),
    (
        "-32600: a member that routing depends on appears more than once",
        ALL,
    ),
    (
        "-32600: a member name differs from a protocol member only in letter case",
        ALL,
    ),
    ("-32602: progressToken must be a string or an integer", ALL),
    ("-32602: progressToken is longer than 1024 bytes", ALL),
    // Session and version.
    (
        "-32600: The Mcp-Session-Id header is missing: open a session with initialize",
        ALL,
    ),
    ("-32001: Session not found", ALL),
    (
        "-32600: Unsupported MCP-Protocol-Version, supported are 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25",
        ALL,
    ),
    (
        "-32600: This gateway speaks protocol versions 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25: open a session with initialize",
        ALL,
    ),
    (
        "-32602: initialize needs params.protocolVersion, a string",
        ALL,
    ),
    // Methods.
    ("-32601: A notification has no id", ALL),
    ("-32601: The server has no logging capability", ALL),
    (
        "-32602: level must be one of debug, info, notice, warning, error, critical, alert, emergency",
        ALL,
    ),
    ("-32601: Resource subscriptions are not offered", ALL),
    ("-32602: params.uri is missing", ALL),
    (
        "-32602: params.uri is longer than the limit (--max-uri)",
        ALL,
    ),
    ("-32602: params.uri must be a string", ALL),
    ("-32002: The server's own words", ALL),
    ("-32603: The upstream server refused", ALL),
    ("-32601: This is not offered", ALL),
    (
        "-32602: Tasks are not offered: send the request without params.task",
        ALL,
    ),
    ("-32602: params.taskId must be a string", NEWEST),
    ("-32602: Task not found", NEWEST),
    ("-32602: Unknown cursor", NEWEST),
    (
        "-32603: The upstream server's list of tasks cannot be read",
        NEWEST,
    ),
    (
        "-32603: The upstream server gave the task an id that is in use",
        NEWEST,
    ),
    // What a gateway has to report.
    (
        "-32603 upstream_down: The upstream server is not available",
        ALL,
    ),
    (
        "-32603 timeout: The upstream server did not answer in time",
        ALL,
    ),
    (
        "-32603 overloaded: The gateway is overloaded, try again later",
        ALL,
    ),
    (
        "-32603 overloaded: The answer of the upstream server is over the limit (--max-message)",
        ALL,
    ),
    ("-32603 session_ended: The session has ended", ALL),
    ("-32603 cancelled: The request was cancelled", ALL),
    ("-32603 draining: The gateway is shutting down", ALL),
    // Errors that name no request.
    ("400, -32700: the body is not valid UTF-8", NAMELESS),
    (
        "400, -32700: the body nests more than 128 levels deep",
        NAMELESS,
    ),
    ("400, -32700: the body is not valid JSON", NAMELESS),
    ("400, -32600: the message is not a JSON object", NAMELESS),
    ("400, -32600: id must be a string or an integer", NAMELESS),
    ("400, -32600: id is longer than 1024 bytes", NAMELESS),
    (
        "400, -32600: The id of this request is in flight already in this session",
        NAMELESS,
    ),
    (
        "400, -32600: JSON-RPC batches exist in protocol version 2025-03-26 only",
        NAMELESS,
    ),
    ("400, -32600: A batch holds 1 to 100 messages", NAMELESS),
    (
        "400, -32600: initialize must not stand in a batch",
        NAMELESS,
    ),
    (
        "400, -32600: The Mcp-Session-Id header is missing: open a session with initialize",
        NAMELESS,
    ),
    ("404, -32001: Session not found", NAMELESS),
    (
        "406, -32600: Not acceptable: the client must take text/event-stream",
        NAMELESS,
    ),
    (
        "406, -32600: Not acceptable: the client must take application/json or text/event-stream",
        NAMELESS,
    ),
    (
        "401, -32600: Unauthorized: send a token as Authorization: Bearer",
        NAMELESS,
    ),
    (
        "401, -32600: Unauthorized: the token is not valid",
        NAMELESS,
    ),
    (
        "403, -32600: this Host is not served here; start Ringway with --allow-host to serve it",
        NAMELESS,
    ),
    (
        "403, -32600: this Origin is not allowed; start Ringway with --allow-origin to allow it",
        NAMELESS,
    ),
    ("404, -32600: There is nothing at this path", NAMELESS),
    ("405, -32600: Method not allowed", NAMELESS),
    ("405, -32600: CONNECT is not served", NAMELESS),
    (
        "408, -32600: the request head did not come in time",
        NAMELESS,
    ),
    (
        "408, -32600: the request body did not come in time",
        NAMELESS,
    ),
    (
        "413, -32600: The body is larger than the limit of 16384 bytes (--max-body)",
        NAMELESS,
    ),
    ("414, -32600: the request target is over 8 KiB", NAMELESS),
    (
        "415, -32600: Content-Type must be application/json",
        NAMELESS,
    ),
    ("415, -32600: Content-Encoding is not supported", NAMELESS),
    // One head and one body that cannot be read, for all of them: one place writes those refusals.
    ("400, -32600: there is no Host header", NAMELESS),
    (
        "400, -32600: a chunk size must be 1 to 16 hexadecimal digits",
        NAMELESS,
    ),
    ("431, -32600: there are over 64 header fields", NAMELESS),
    (
        "505, -32600: only HTTP/1.1 and HTTP/1.0 are served",
        NAMELESS,
    ),
    (
        "503, -32603 draining: The gateway is shutting down",
        NAMELESS,
    ),
    ("503, -32603 overloaded: Too many connections", NAMELESS),
    (
        "503, -32603 overloaded: The gateway is overloaded, try again later",
        NAMELESS,
    ),
];

/// What goes to the server.
pub(crate) const TO_THE_SERVER: &[Entry] = &[
    ("initialize", ALL),
    ("notifications/initialized", ALL),
    ("notifications/cancelled", ALL),
    ("logging/setLevel", ALL),
    ("resources/subscribe", ALL),
    ("resources/unsubscribe", ALL),
    ("tasks/cancel", NEWEST),
    ("result of ping", ALL),
    (
        "-32601: This gateway shares the server between clients and cannot tell whose request this is",
        ALL,
    ),
    // Clients' requests with another id, another progress token, another cursor.
    ("tools/call", ALL),
    ("tools/list", ALL),
    ("resources/read", ALL),
    ("prompts/get", ALL),
    ("completion/complete", ALL),
    ("tasks/get", NEWEST),
    ("tasks/list", NEWEST),
    ("tasks/result", NEWEST),
];
