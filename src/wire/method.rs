//! The vocabulary of MCP as far as routing depends on it: which request is
//! answered here, which is forwarded, which is refused. A method that is not
//! listed is forwarded; its label in logs and counters is `other`.

/// What a client's request asks for, as far as the gateway cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// `initialize`: opens a session, answered from the upstream handshake.
    Initialize,
    /// `ping`: answered here.
    Ping,
    /// `logging/setLevel`: recorded per session.
    SetLevel,
    /// `resources/subscribe`.
    Subscribe,
    /// `resources/unsubscribe`.
    Unsubscribe,
    /// `tasks/get`, `tasks/result`, `tasks/list`, `tasks/cancel` and whatever
    /// else stands under `tasks/`.
    Tasks,
    /// `server/discover` and `subscriptions/listen`: the modern era.
    Modern,
    /// A notification's name on a request: a server that looks only at the name
    /// would take it for one, with ids that are not the server's.
    Notification,
    /// Every other method.
    Forwarded,
}

impl Request {
    /// Reads a method name.
    pub fn of(method: &str) -> Request {
        match method {
            "initialize" => Request::Initialize,
            "ping" => Request::Ping,
            "logging/setLevel" => Request::SetLevel,
            "resources/subscribe" => Request::Subscribe,
            "resources/unsubscribe" => Request::Unsubscribe,
            "server/discover" | "subscriptions/listen" => Request::Modern,
            _ if method.starts_with("tasks/") => Request::Tasks,
            _ if method.starts_with("notifications/") => Request::Notification,
            _ => Request::Forwarded,
        }
    }
}

/// The log levels of `logging/setLevel` (RFC 5424), most verbose first.
pub const LOG_LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

/// The notification by which either side withdraws a request.
pub const CANCELLED: &str = "notifications/cancelled";

/// The notification by which a client says that it is ready.
pub const INITIALIZED: &str = "notifications/initialized";

/// Whether it does no harm that a request of this method arrives twice.
pub fn may_repeat(method: &str) -> bool {
    matches!(
        method,
        "tools/list"
            | "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
            | "resources/subscribe"
            | "resources/unsubscribe"
            | "completion/complete"
            | "logging/setLevel"
            | "tasks/get"
            | "tasks/list"
            | "tasks/result"
    )
}

/// Whether it does no harm that a client's notification of this method arrives twice.
pub fn is_harmless_twice(method: &str) -> bool {
    matches!(
        method,
        INITIALIZED | CANCELLED | PROGRESS | "notifications/roots/list_changed"
    )
}

/// The notification that reports progress on a request.
pub const PROGRESS: &str = "notifications/progress";
