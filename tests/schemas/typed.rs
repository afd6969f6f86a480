//! The first validator: Rust types that others have generated from the official schemas. A message is read into
//! the exact type of its definition and written again; whatever the type does not know is lost on that way, and
//! seen. So it also refuses members that a definition does not have, which a JSON schema lets pass.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::definitions::{Definition, Version};

/// Checks a value against a definition of that version.
///
/// # Errors
/// What the type says, or how the value differs after the way through it.
pub(crate) fn check(version: Version, definition: Definition, value: &Value) -> Result<(), String> {
    match version {
        Version::V2024_11_05 => v2024_11_05(definition, value),
        Version::V2025_03_26 => v2025_03_26(definition, value),
        Version::V2025_06_18 => v2025_06_18(definition, value),
        Version::V2025_11_25 => v2025_11_25(definition, value),
    }
}

/// The types of one version. The envelopes have other names in the newest one, and each version has some
/// definitions of its own.
macro_rules! types {
    ($name:ident, $types:ident, $error:ident, $result:ident $(, $own:ident => $own_type:ty)*) => {
        fn $name(definition: Definition, value: &Value) -> Result<(), String> {
            use $types::$types as types;
            match definition {
                Definition::Error => through::<types::$error>(value),
                Definition::ResultResponse => through::<types::$result>(value),
                Definition::Notification => through::<types::JsonrpcNotification>(value),
                Definition::Request => through::<types::JsonrpcRequest>(value),
                Definition::EmptyResult => through::<types::EmptyResult>(value),
                Definition::InitializeResult => through::<types::InitializeResult>(value),
                Definition::Cancelled => through::<types::CancelledNotification>(value),
                Definition::Initialized => through::<types::InitializedNotification>(value),
                Definition::Progress => through::<types::ProgressNotification>(value),
                Definition::PromptsChanged => {
                    through::<types::PromptListChangedNotification>(value)
                }
                Definition::ResourcesChanged => {
                    through::<types::ResourceListChangedNotification>(value)
                }
                Definition::ToolsChanged => through::<types::ToolListChangedNotification>(value),
                Definition::Updated => through::<types::ResourceUpdatedNotification>(value),
                Definition::Initialize => through::<types::InitializeRequest>(value),
                Definition::SetLevel => through::<types::SetLevelRequest>(value),
                Definition::Subscribe => through::<types::SubscribeRequest>(value),
                Definition::Unsubscribe => through::<types::UnsubscribeRequest>(value),
                Definition::CallTool => through::<types::CallToolRequest>(value),
                Definition::Complete => through::<types::CompleteRequest>(value),
                Definition::GetPrompt => through::<types::GetPromptRequest>(value),
                Definition::ListTools => through::<types::ListToolsRequest>(value),
                Definition::ReadResource => through::<types::ReadResourceRequest>(value),
                $(Definition::$own => through::<$own_type>(value),)*
                #[allow(unreachable_patterns, reason = "one version has every definition")]
                other => Err(format!("this version has no {other:?}")),
            }
        }
    };
}

types!(v2024_11_05, mcp_2024_11_05, JsonrpcError, JsonrpcResponse);
types!(
    v2025_03_26, mcp_2025_03_26, JsonrpcError, JsonrpcResponse,
    BatchResponse => mcp_2025_03_26::mcp_2025_03_26::JsonrpcBatchResponse
);
types!(v2025_06_18, mcp_2025_06_18, JsonrpcError, JsonrpcResponse);
types!(
    v2025_11_25, mcp_2025_11_25, JsonrpcErrorResponse, JsonrpcResultResponse,
    CancelTask => mcp_2025_11_25::mcp_2025_11_25::CancelTaskRequest,
    GetTask => mcp_2025_11_25::mcp_2025_11_25::GetTaskRequest,
    TaskResult => mcp_2025_11_25::mcp_2025_11_25::GetTaskPayloadRequest,
    ListTasks => mcp_2025_11_25::mcp_2025_11_25::ListTasksRequest,
    ListTasksResult => mcp_2025_11_25::mcp_2025_11_25::ListTasksResult,
    TaskStatus => mcp_2025_11_25::mcp_2025_11_25::TaskStatusNotification
);

fn through<T: DeserializeOwned + Serialize>(value: &Value) -> Result<(), String> {
    let typed: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    let back = serde_json::to_value(typed).map_err(|error| error.to_string())?;
    match same(value, &back) {
        true => Ok(()),
        false => Err(format!("the type makes {back} of it")),
    }
}

/// Equal as JSON: 1 and 1.0 are one number, as types with floating-point members write them.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, one)| other.get(key).is_some_and(|other| same(one, other)))
        }
        _ => one == other,
    }
}
