//! The definitions of the protocol's schemas that messages of the gateway's own are judged by, and what a
//! message must hold to fit one.

/// A protocol version with a schema of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Version {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
}

impl Version {
    pub(crate) const ALL: [Version; 4] = [
        Version::V2024_11_05,
        Version::V2025_03_26,
        Version::V2025_06_18,
        Version::V2025_11_25,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Version::V2024_11_05 => "2024-11-05",
            Version::V2025_03_26 => "2025-03-26",
            Version::V2025_06_18 => "2025-06-18",
            Version::V2025_11_25 => "2025-11-25",
        }
    }

    /// Before this version the definitions of single requests and notifications leave out what all have: the
    /// envelope's own members, and `params._meta`. Those are judged by the envelope's definition.
    pub(crate) fn has_whole_definitions(self) -> bool {
        self == Version::V2025_11_25
    }
}

/// One definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Definition {
    // Envelopes.
    Error,
    ResultResponse,
    Notification,
    Request,
    BatchResponse,
    // Results.
    EmptyResult,
    InitializeResult,
    ListTasksResult,
    // Notifications.
    Cancelled,
    Initialized,
    Progress,
    PromptsChanged,
    ResourcesChanged,
    TaskStatus,
    ToolsChanged,
    Updated,
    // Requests.
    CallTool,
    CancelTask,
    Complete,
    GetPrompt,
    GetTask,
    Initialize,
    ListTasks,
    ListTools,
    ReadResource,
    SetLevel,
    Subscribe,
    TaskResult,
    Unsubscribe,
}

impl Definition {
    /// Its name in the schema of a version.
    pub(crate) fn name(self, version: Version) -> &'static str {
        let is_newest = version == Version::V2025_11_25;
        match self {
            Definition::Error if is_newest => "JSONRPCErrorResponse",
            Definition::Error => "JSONRPCError",
            Definition::ResultResponse if is_newest => "JSONRPCResultResponse",
            Definition::ResultResponse => "JSONRPCResponse",
            Definition::Notification => "JSONRPCNotification",
            Definition::Request => "JSONRPCRequest",
            Definition::BatchResponse => "JSONRPCBatchResponse",
            Definition::EmptyResult => "EmptyResult",
            Definition::InitializeResult => "InitializeResult",
            Definition::ListTasksResult => "ListTasksResult",
            Definition::Cancelled => "CancelledNotification",
            Definition::Initialized => "InitializedNotification",
            Definition::Progress => "ProgressNotification",
            Definition::PromptsChanged => "PromptListChangedNotification",
            Definition::ResourcesChanged => "ResourceListChangedNotification",
            Definition::TaskStatus => "TaskStatusNotification",
            Definition::ToolsChanged => "ToolListChangedNotification",
            Definition::Updated => "ResourceUpdatedNotification",
            Definition::CallTool => "CallToolRequest",
            Definition::CancelTask => "CancelTaskRequest",
            Definition::Complete => "CompleteRequest",
            Definition::GetPrompt => "GetPromptRequest",
            Definition::GetTask => "GetTaskRequest",
            Definition::Initialize => "InitializeRequest",
            Definition::ListTasks => "ListTasksRequest",
            Definition::ListTools => "ListToolsRequest",
            Definition::ReadResource => "ReadResourceRequest",
            Definition::SetLevel => "SetLevelRequest",
            Definition::Subscribe => "SubscribeRequest",
            Definition::TaskResult => "GetTaskPayloadRequest",
            Definition::Unsubscribe => "UnsubscribeRequest",
        }
    }

    /// The definition of a request or a notification, by its method.
    pub(crate) fn of_method(method: &str) -> Option<Definition> {
        Some(match method {
            "completion/complete" => Definition::Complete,
            "initialize" => Definition::Initialize,
            "logging/setLevel" => Definition::SetLevel,
            "notifications/cancelled" => Definition::Cancelled,
            "notifications/initialized" => Definition::Initialized,
            "notifications/progress" => Definition::Progress,
            "notifications/prompts/list_changed" => Definition::PromptsChanged,
            "notifications/resources/list_changed" => Definition::ResourcesChanged,
            "notifications/resources/updated" => Definition::Updated,
            "notifications/tasks/status" => Definition::TaskStatus,
            "notifications/tools/list_changed" => Definition::ToolsChanged,
            "prompts/get" => Definition::GetPrompt,
            "resources/read" => Definition::ReadResource,
            "resources/subscribe" => Definition::Subscribe,
            "resources/unsubscribe" => Definition::Unsubscribe,
            "tasks/cancel" => Definition::CancelTask,
            "tasks/get" => Definition::GetTask,
            "tasks/list" => Definition::ListTasks,
            "tasks/result" => Definition::TaskResult,
            "tools/call" => Definition::CallTool,
            "tools/list" => Definition::ListTools,
            _ => return None,
        })
    }

    /// The definition of a request's result, by the request's method.
    pub(crate) fn of_result(method: &str) -> Option<Definition> {
        Some(match method {
            "initialize" => Definition::InitializeResult,
            "logging/setLevel" | "ping" | "resources/subscribe" | "resources/unsubscribe" => {
                Definition::EmptyResult
            }
            "tasks/list" => Definition::ListTasksResult,
            _ => return None,
        })
    }

    /// Paths (JSON pointers) that a value must have, each of one type. The test of the test takes them out and
    /// puts other types there.
    pub(crate) fn required(self, version: Version) -> &'static [&'static str] {
        let is_newest = version == Version::V2025_11_25;
        match self {
            Definition::Error if is_newest => {
                &["/jsonrpc", "/error", "/error/code", "/error/message"]
            }
            Definition::Error => &["/jsonrpc", "/id", "/error", "/error/code", "/error/message"],
            Definition::ResultResponse => &["/jsonrpc", "/id", "/result"],
            Definition::Notification => &["/jsonrpc", "/method"],
            Definition::Request => &["/jsonrpc", "/id", "/method"],
            Definition::BatchResponse => &["/0/jsonrpc", "/0/id"],
            Definition::EmptyResult => &[],
            Definition::InitializeResult => &[
                "/protocolVersion",
                "/capabilities",
                "/serverInfo",
                "/serverInfo/name",
                "/serverInfo/version",
            ],
            Definition::ListTasksResult => &[
                "/tasks",
                "/tasks/0/taskId",
                "/tasks/0/status",
                "/tasks/0/createdAt",
            ],
            Definition::Cancelled if is_newest => &["/method", "/params"],
            Definition::Cancelled => &["/method", "/params", "/params/requestId"],
            Definition::Initialized
            | Definition::PromptsChanged
            | Definition::ResourcesChanged
            | Definition::ToolsChanged
            | Definition::ListTasks
            | Definition::ListTools => &["/method"],
            Definition::Progress => &[
                "/method",
                "/params",
                "/params/progressToken",
                "/params/progress",
            ],
            Definition::TaskStatus => &["/method", "/params", "/params/taskId", "/params/status"],
            Definition::Updated
            | Definition::Subscribe
            | Definition::Unsubscribe
            | Definition::ReadResource => &["/method", "/params", "/params/uri"],
            Definition::CallTool | Definition::GetPrompt => &["/method", "/params", "/params/name"],
            Definition::CancelTask | Definition::GetTask | Definition::TaskResult => {
                &["/method", "/params", "/params/taskId"]
            }
            Definition::Complete => &["/method", "/params", "/params/ref", "/params/argument/name"],
            Definition::Initialize => &[
                "/method",
                "/params",
                "/params/protocolVersion",
                "/params/capabilities",
                "/params/clientInfo/name",
                "/params/clientInfo/version",
            ],
            Definition::SetLevel => &["/method", "/params", "/params/level"],
        }
    }

    /// Paths that a value may have, each of one type.
    pub(crate) fn optional(self) -> &'static [&'static str] {
        match self {
            Definition::Error => &["/id"],
            Definition::Notification | Definition::Request => &["/params"],
            Definition::Cancelled => &["/params/requestId", "/params/reason"],
            Definition::Progress => &["/params/total"],
            Definition::InitializeResult => &["/instructions", "/capabilities/tools/listChanged"],
            Definition::ListTasksResult => &["/nextCursor"],
            Definition::CallTool => &["/params/arguments"],
            _ => &[],
        }
    }
}
