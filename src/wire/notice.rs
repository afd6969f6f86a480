//! The notifications that Ringway itself writes to clients: a list has changed,
//! a resource has been updated. They carry nothing of the server's but the URI,
//! because a shared server's own text may hold what belongs to another session.

use super::reply::json_string;
use super::sse;

/// Which of the server's lists have changed, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Kinds(u8);

impl Kinds {
    pub const NONE: Kinds = Kinds(0);
    pub const TOOLS: Kinds = Kinds(1);
    pub const RESOURCES: Kinds = Kinds(2);
    pub const PROMPTS: Kinds = Kinds(4);

    /// The kind that a notification's method names.
    pub fn of(method: &str) -> Option<Kinds> {
        match method {
            "notifications/tools/list_changed" => Some(Kinds::TOOLS),
            "notifications/resources/list_changed" => Some(Kinds::RESOURCES),
            "notifications/prompts/list_changed" => Some(Kinds::PROMPTS),
            _ => None,
        }
    }

    /// The kind whose capability has this name.
    pub fn of_capability(name: &str) -> Kinds {
        match name {
            "tools" => Kinds::TOOLS,
            "resources" => Kinds::RESOURCES,
            "prompts" => Kinds::PROMPTS,
            _ => Kinds::NONE,
        }
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many kinds there are in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn with(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub fn has(self, kind: Kinds) -> bool {
        self.0 & kind.0 != 0
    }

    /// One message for each kind.
    pub fn messages(self) -> impl Iterator<Item = &'static [u8]> {
        let messages = [
            (
                Kinds::TOOLS,
                &br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#[..],
            ),
            (
                Kinds::RESOURCES,
                br#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
            ),
            (
                Kinds::PROMPTS,
                br#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#,
            ),
        ];
        messages
            .into_iter()
            .filter(move |(kind, _)| self.has(*kind))
            .map(|(_, message)| message)
    }

    /// Appends one event for each kind.
    pub fn frames(self, out: &mut Vec<u8>) {
        for message in self.messages() {
            sse::frame(out, message);
        }
    }
}

/// The message that tells of an updated resource.
pub fn updated_message(uri: &str) -> Vec<u8> {
    let mut message = Vec::with_capacity(96 + uri.len());
    message.extend_from_slice(
        br#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"#,
    );
    json_string(&mut message, uri);
    message.extend_from_slice(b"}}");
    message
}

/// The event that tells of an updated resource.
pub fn updated_frame(uri: &str) -> Vec<u8> {
    let message = updated_message(uri);
    let mut out = Vec::with_capacity(message.len() + sse::FRAME_BYTES);
    sse::frame(&mut out, &message);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_a_set_is_one_event() {
        let kinds = Kinds::of("notifications/tools/list_changed").unwrap_or_default();
        let kinds = kinds.with(Kinds::of_capability("prompts")).with(kinds);
        assert_eq!(kinds.len(), 2);
        let mut out = Vec::new();
        kinds.frames(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n\
             event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/prompts/list_changed\"}\n\n"
        );
        assert!(Kinds::of("notifications/tools/list_changed/x").is_none());
    }

    #[test]
    fn an_update_holds_the_uri_as_a_json_string_on_one_line() {
        let frame = String::from_utf8(updated_frame("a:\"\n\u{7f}é")).unwrap();
        let data = frame.strip_prefix("event: message\ndata: ").unwrap();
        let data = data.strip_suffix("\n\n").unwrap();
        assert!(!data.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(value["params"]["uri"], "a:\"\n\u{7f}é");
    }
}
