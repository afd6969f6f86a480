//! A JSON-RPC message of a server, as far as the checks look into it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<WireError<'a>>,
}

#[derive(Deserialize)]
struct WireError<'a> {
    code: i64,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ProgressParams<'a> {
    #[serde(borrow, rename = "progressToken")]
    token: &'a RawValue,
    progress: f64,
}

#[derive(Deserialize)]
struct UriParams<'a> {
    #[serde(borrow)]
    uri: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ToolResult {
    #[serde(default, rename = "isError")]
    is_error: bool,
}

#[derive(Deserialize)]
struct ErrorData<'a> {
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
}

/// What a message is.
#[derive(Clone, PartialEq, Debug)]
pub enum Message<'a> {
    /// A result, with the raw id.
    Result {
        id: &'a str,
        is_tool_error: bool,
    },
    Error {
        id: &'a str,
        code: i64,
        /// `data.reason`, or nothing.
        reason: String,
    },
    /// Progress with the raw token.
    Progress {
        token: &'a str,
        progress: f64,
    },
    ResourceUpdated {
        uri: Cow<'a, str>,
    },
    /// Another notification or a request.
    Other {
        method: Cow<'a, str>,
    },
}

/// Reads a message. `None`: it is not one.
pub fn read(text: &[u8]) -> Option<Message<'_>> {
    let wire: Wire<'_> = serde_json::from_slice(text).ok()?;
    let id = wire.id.map_or("null", RawValue::get);
    if let Some(method) = wire.method {
        let params = wire.params.map_or("{}", RawValue::get);
        return Some(match &*method {
            "notifications/progress" => {
                let params: ProgressParams<'_> = serde_json::from_str(params).ok()?;
                Message::Progress {
                    token: params.token.get(),
                    progress: params.progress,
                }
            }
            "notifications/resources/updated" => {
                let params: UriParams<'_> = serde_json::from_str(params).ok()?;
                Message::ResourceUpdated { uri: params.uri }
            }
            _ => Message::Other { method },
        });
    }
    match (wire.result, wire.error) {
        (Some(result), None) => Some(Message::Result {
            id,
            is_tool_error: serde_json::from_str(result.get())
                .is_ok_and(|it: ToolResult| it.is_error),
        }),
        (None, Some(error)) => {
            let data = error.data.map_or("{}", RawValue::get);
            let reason = serde_json::from_str(data)
                .ok()
                .and_then(|data: ErrorData<'_>| data.reason);
            let reason =
                reason.map_or_else(|| error.message.chars().take(60).collect(), Cow::into_owned);
            Some(Message::Error {
                id,
                code: error.code,
                reason,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","id":7,"result":{"content":[],"isError":true}}"#),
            Some(Message::Result {
                id: "7",
                is_tool_error: true
            })
        );
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","id":"a","result":{}}"#),
            Some(Message::Result {
                id: r#""a""#,
                is_tool_error: false
            })
        );
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"m","data":{"reason":"timeout"}}}"#),
            Some(Message::Error { id: "7", code: -32603, reason: "timeout".into() })
        );
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#),
            Some(Message::Error {
                id: "null",
                code: -32600,
                reason: "no".into()
            })
        );
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}"#),
            Some(Message::Progress { token: r#""t""#, progress: 1.0 })
        );
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:\u002f"}}"#),
            Some(Message::ResourceUpdated { uri: "a:/".into() })
        );
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","method":"ping","id":1}"#),
            Some(Message::Other {
                method: "ping".into()
            })
        );
        for bad in [
            "",
            "{",
            "[]",
            r#"{"id":1}"#,
            r#"{"id":1,"result":{},"error":{"code":1}}"#,
        ] {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
    }
}
