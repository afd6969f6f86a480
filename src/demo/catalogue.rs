//! What the demo server offers besides tools: its handshake, two resources and
//! one prompt, and what `grow` adds to them. Resources change only when they are
//! touched; subscriptions are kept per process, as a shared server keeps them.

use std::collections::HashSet;

use super::answer::json_string;
use super::extras::Extras;
use super::limits::{SUBSCRIPTIONS_MAX, URI_BYTES_MAX};

/// Legacy versions, newest last: the answer to a version that is not known.
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// Levels of `logging/setLevel`, from the schema.
const LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

/// The built-in resources as a JSON list without its closing bracket.
const RESOURCES: &str = concat!(
    r#"{"resources":[{"uri":"demo://clock","name":"clock","description":"A counter that moves when it is touched","mimeType":"text/plain"},"#,
    r#"{"uri":"demo://notes","name":"notes","description":"A page of notes with a revision number","mimeType":"text/plain"}"#
);

pub(super) const RESOURCE_TEMPLATES: &str = r#"{"resourceTemplates":[]}"#;

/// The URI of a resource that `grow` has added is this and its name.
const EXTRA_URI: &str = "demo://";

/// The built-in prompt as a JSON list without its closing bracket.
const PROMPTS: &str = concat!(
    r#"{"prompts":[{"name":"greet","description":"Asks for a greeting","#,
    r#""arguments":[{"name":"name","description":"Who is greeted","required":true}]}"#
);

/// The result of `initialize`: the client's version if it is known.
pub(super) fn handshake(wanted: Option<&str>) -> String {
    let newest = VERSIONS[VERSIONS.len() - 1];
    let version = VERSIONS
        .into_iter()
        .find(|known| Some(*known) == wanted)
        .unwrap_or(newest);
    format!(
        concat!(
            r#"{{"protocolVersion":"{}","capabilities":{{"tools":{{"listChanged":true}},"#,
            r#""resources":{{"subscribe":true,"listChanged":true}},"prompts":{{"listChanged":true}},"logging":{{}}}},"#,
            r#""serverInfo":{{"name":"ringway-demo","version":"{}"}},"#,
            r#""instructions":"A small server to try Ringway with: call echo, add, slow or big, touch demo://clock and read it again."}}"#
        ),
        version,
        env!("CARGO_PKG_VERSION")
    )
}

/// True for a level of the schema.
pub(super) fn is_level(level: &str) -> bool {
    LEVELS.contains(&level)
}

/// The result of `prompts/get` for `greet`.
pub(super) fn greeting(name: &str) -> String {
    let text = json_string(&format!("Please greet {name} in one friendly sentence."));
    format!(
        r#"{{"description":"Asks for a greeting","messages":[{{"role":"user","content":{{"type":"text","text":{text}}}}}]}}"#
    )
}

/// The prompts besides `greet`.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    pub(super) extras: Extras,
}

impl Prompts {
    /// The result of `prompts/list`.
    pub(super) fn list(&self) -> String {
        let mut list = String::from(PROMPTS);
        for name in self.extras.names() {
            list.push_str(&format!(
                r#",{{"name":"{name}","description":"Says its own name"}}"#
            ));
        }
        list.push_str("]}");
        list
    }

    /// The result of `prompts/get` for a prompt that `grow` has added.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.extras.holds(name).then(|| {
            format!(
                r#"{{"messages":[{{"role":"user","content":{{"type":"text","text":"{name}"}}}}]}}"#
            )
        })
    }
}

/// Why a subscription was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SubscribeError {
    #[error("uri is too long")]
    UriTooLong,
    #[error("too many subscriptions")]
    Full,
}

/// The state of the resources, and who wants to hear of it.
#[derive(Debug, Default)]
pub(super) struct Resources {
    clock: u64,
    notes: u64,
    subscribed: HashSet<String>,
    pub(super) extras: Extras,
}

impl Resources {
    /// The result of `resources/list`.
    pub(super) fn list(&self) -> String {
        let mut list = String::from(RESOURCES);
        for name in self.extras.names() {
            list.push_str(&format!(
                r#",{{"uri":"{EXTRA_URI}{name}","name":"{name}","description":"Holds its own name","mimeType":"text/plain"}}"#
            ));
        }
        list.push_str("]}");
        list
    }

    /// The result of `resources/read`; `None` if there is no such resource.
    pub(super) fn read(&self, uri: &str) -> Option<String> {
        let text = match uri {
            "demo://clock" => format!("tick {}", self.clock),
            "demo://notes" => format!("Notes, revision {}.", self.notes),
            _ => uri
                .strip_prefix(EXTRA_URI)
                .filter(|name| self.extras.holds(name))?
                .to_owned(),
        };
        Some(format!(
            r#"{{"contents":[{{"uri":"{uri}","mimeType":"text/plain","text":"{text}"}}]}}"#
        ))
    }

    /// Any URI can be subscribed to, also one that names nothing yet: a client
    /// may wait for a resource that does not exist so far.
    ///
    /// # Errors
    /// [`SubscribeError`]: over a limit.
    pub(super) fn subscribe(&mut self, uri: &str) -> Result<(), SubscribeError> {
        if uri.len() > URI_BYTES_MAX {
            return Err(SubscribeError::UriTooLong);
        }
        if self.subscribed.contains(uri) {
            return Ok(());
        }
        if self.subscribed.len() >= SUBSCRIPTIONS_MAX {
            return Err(SubscribeError::Full);
        }
        self.subscribed.insert(uri.to_owned());
        Ok(())
    }

    /// A URI that is not subscribed to is ignored.
    pub(super) fn unsubscribe(&mut self, uri: &str) {
        self.subscribed.remove(uri);
    }

    /// Changes a resource. True: somebody has subscribed to exactly this URI.
    pub(super) fn touch(&mut self, uri: &str) -> bool {
        match uri {
            "demo://clock" => self.clock += 1,
            "demo://notes" => self.notes += 1,
            _ => {}
        }
        self.subscribed.contains(uri)
    }
}
