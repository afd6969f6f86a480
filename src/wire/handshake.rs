//! The upstream's `initialize` result, read once, and the answers that clients
//! get from it: the same bytes with the session's `protocolVersion`, without
//! the capabilities that Ringway does not carry to clients.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::notice::Kinds;
use super::reply::json_string;
use super::splice::fold_newlines;
use super::version::Version;

/// What the gateway offers of what the upstream offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Whether clients can open GET streams: without them `listChanged` and
    /// `subscribe` would be promises that nobody keeps.
    pub get_streams: bool,
    /// Whether `tasks/*` is served (to sessions of 2025-11-25).
    pub tasks: bool,
}

/// The outcome of the handshake with the upstream.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The version that the upstream speaks with Ringway.
    pub version: Version,
    /// `serverInfo.name`, empty if there is none.
    pub server_name: String,
    /// `serverInfo.version`, empty if there is none.
    pub server_version: String,
    /// The upstream has the `logging` capability.
    pub logging: bool,
    /// The upstream has `resources.subscribe`, and Ringway offers it.
    pub subscribe: bool,
    pub tasks: TasksOffer,
    /// The lists that the upstream has.
    pub kinds: Kinds,
    /// What the upstream can do, as `group` and `group.flag`.
    abilities: BTreeSet<String>,
    /// The `initialize` result for each version, in the order of [`Version::ALL`].
    results: [Box<[u8]>; Version::ALL.len()],
}

/// What of tasks is offered to sessions of 2025-11-25.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TasksOffer {
    pub is_offered: bool,
    /// `tasks/list`
    pub list: bool,
    /// `tasks/cancel`
    pub cancel: bool,
}

/// Characters that are told of a version that Ringway does not speak; the rest is cut.
pub const UNKNOWN_VERSION_CHARACTERS_MAX: usize = 64;

/// Why an `initialize` result cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("its initialize result is not an object of the expected form: {0}")]
    Form(String),
    #[error(
        "it answered initialize with protocol version {version:?}, which Ringway does not speak (supported: {})",
        Version::SUPPORTED
    )]
    Version {
        /// Up to [`UNKNOWN_VERSION_CHARACTERS_MAX`] characters.
        version: String,
    },
}

impl Handshake {
    /// Reads the raw `result` of the upstream's answer to `initialize`.
    pub fn read(result: &[u8], offer: Offer) -> Result<Handshake, HandshakeError> {
        let members = members(result)?;
        let version = read_version(&members)?;
        let capabilities = match find(&members, "capabilities") {
            Some(raw) => self::members(raw.get().as_bytes())?,
            None => Vec::new(),
        };
        let info = match find(&members, "serverInfo") {
            Some(raw) => self::members(raw.get().as_bytes())?,
            None => Vec::new(),
        };
        let subscribe = offer.get_streams && has_true(&capabilities, "resources", "subscribe");
        let results = Version::ALL.map(|session| {
            let shown = shown_capabilities(&capabilities, offer, session);
            rebuilt_result(&members, session, &shown).into_boxed_slice()
        });
        Ok(Handshake {
            version,
            server_name: string_member(&info, "name"),
            server_version: string_member(&info, "version"),
            logging: find(&capabilities, "logging").is_some(),
            subscribe,
            tasks: tasks_offer(&capabilities, offer),
            kinds: capabilities
                .iter()
                .map(|(name, _)| Kinds::of_capability(name))
                .fold(Kinds::NONE, Kinds::with),
            abilities: abilities(&capabilities),
            results,
        })
    }

    /// Whether sessions that were opened under `earlier` rely on something that
    /// this upstream does not have: an older version, or less abilities.
    pub fn is_less_than(&self, earlier: &Handshake) -> bool {
        self.version < earlier.version || !self.abilities.is_superset(&earlier.abilities)
    }

    /// Keeps only what another handshake is compared with.
    pub fn forget_results(&mut self) {
        self.results = Default::default();
    }

    /// The `initialize` result, as raw JSON, for a session of `version`.
    pub fn result_for(&self, version: Version) -> &[u8] {
        let place = Version::ALL.iter().position(|known| *known == version);
        &self.results[place.unwrap_or(Version::ALL.len() - 1)]
    }
}

type Members<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

/// The members of an object in their order, values as raw text.
fn members(text: &[u8]) -> Result<Members<'_>, HandshakeError> {
    struct Object;
    impl<'de> Visitor<'de> for Object {
        type Value = Members<'de>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members: Members<'de> = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                if members.iter().any(|(known, _)| *known == key) {
                    return Err(serde::de::Error::custom(format!("duplicate key {key:?}")));
                }
                members.push((Cow::Owned(key), value));
            }
            Ok(members)
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let members = (&mut reader)
        .deserialize_map(Object)
        .map_err(|error| HandshakeError::Form(error.to_string()))?;
    reader
        .end()
        .map_err(|error| HandshakeError::Form(error.to_string()))?;
    Ok(members)
}

fn find<'a>(members: &Members<'a>, key: &str) -> Option<&'a RawValue> {
    members
        .iter()
        .find(|(known, _)| known == key)
        .map(|(_, value)| *value)
}

fn string_member(members: &Members<'_>, key: &str) -> String {
    find(members, key)
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default()
}

fn has_true(capabilities: &Members<'_>, group: &str, flag: &str) -> bool {
    find(capabilities, group)
        .and_then(|raw| members(raw.get().as_bytes()).ok())
        .and_then(|group| find(&group, flag).map(|raw| raw.get() == "true"))
        .unwrap_or(false)
}

fn tasks_offer(capabilities: &Members<'_>, offer: Offer) -> TasksOffer {
    let Some(tasks) = find(capabilities, "tasks").filter(|_| offer.tasks) else {
        return TasksOffer::default();
    };
    let flags = members(tasks.get().as_bytes()).unwrap_or_default();
    let has = |name| find(&flags, name).is_some_and(|flag| !is_off(flag.get()));
    TasksOffer {
        is_offered: true,
        list: has("list"),
        cancel: has("cancel"),
    }
}

/// Whether a capability's value says that it is not there.
fn is_off(value: &str) -> bool {
    matches!(value, "false" | "null")
}

fn read_version(members: &Members<'_>) -> Result<Version, HandshakeError> {
    let raw = find(members, "protocolVersion")
        .ok_or_else(|| HandshakeError::Form("protocolVersion is missing".into()))?;
    let text: String = serde_json::from_str(raw.get())
        .map_err(|_| HandshakeError::Form("protocolVersion is not a string".into()))?;
    Version::parse(text.as_bytes()).ok_or_else(|| HandshakeError::Version {
        // The server may have written anything.
        version: (text.chars())
            .take(UNKNOWN_VERSION_CHARACTERS_MAX)
            .collect(),
    })
}

/// The groups of capabilities, and in each the flags that are not off.
fn abilities(capabilities: &Members<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (group, value) in capabilities {
        found.insert(group.to_string());
        for (flag, value) in members(value.get().as_bytes()).unwrap_or_default() {
            if !is_off(value.get()) {
                found.insert(format!("{group}.{flag}"));
            }
        }
    }
    found
}

/// The flags of a capability that mean messages on a GET stream.
const STREAM_FLAGS: [&str; 2] = ["listChanged", "subscribe"];

fn shown_capabilities(capabilities: &Members<'_>, offer: Offer, session: Version) -> Vec<u8> {
    let shown = capabilities
        .iter()
        .filter(|(key, _)| key != "tasks" || (offer.tasks && session == Version::V2025_11_25));
    object(shown.map(|(key, value)| {
        let value = match members(value.get().as_bytes()) {
            Ok(flags) if !offer.get_streams && flags.iter().any(|(flag, _)| is_stream(flag)) => {
                let kept = flags.iter().filter(|(flag, _)| !is_stream(flag));
                object(kept.map(|(flag, value)| (flag.as_ref(), value.get().as_bytes().into())))
                    .into()
            }
            _ => value.get().as_bytes().into(),
        };
        (key.as_ref(), value)
    }))
}

fn is_stream(flag: &str) -> bool {
    STREAM_FLAGS.contains(&flag)
}

fn rebuilt_result(members: &Members<'_>, session: Version, capabilities: &[u8]) -> Vec<u8> {
    let version = format!("\"{}\"", session.as_str());
    object(members.iter().map(|(key, value)| {
        let value: Cow<'_, [u8]> = match key.as_ref() {
            "protocolVersion" => version.as_bytes().into(),
            "capabilities" => capabilities.into(),
            _ => value.get().as_bytes().into(),
        };
        (key.as_ref(), value)
    }))
}

/// Writes an object from keys and raw values, on one line.
fn object<'a>(members: impl Iterator<Item = (&'a str, Cow<'a, [u8]>)>) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (key, value) in members {
        if out.len() > 1 {
            out.push(b',');
        }
        json_string(&mut out, key);
        out.push(b':');
        out.extend_from_slice(&value);
    }
    out.push(b'}');
    fold_newlines(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &[u8] = br#"{ "protocolVersion":"2025-11-25",
        "capabilities":{"tools":{"listChanged":true,"x":1.0},"resources":{"subscribe":true},
            "logging":{},"tasks":{"list":{}}},
        "serverInfo":{"name":"s\u0041","version":"1e0","n":9007199254740993},"instructions":"hi"}"#;

    const PLAIN: Offer = Offer {
        get_streams: false,
        tasks: false,
    };

    fn value(bytes: &[u8]) -> serde_json::Value {
        serde_json::from_slice(bytes).expect("an answer is JSON")
    }

    #[test]
    fn the_sessions_version_replaces_upstreams() {
        let handshake = Handshake::read(RESULT, PLAIN).unwrap();
        for version in Version::ALL {
            let answer = value(handshake.result_for(version));
            assert_eq!(answer["protocolVersion"], version.as_str());
            assert_eq!(answer["instructions"], "hi");
        }
        assert_eq!(handshake.server_name, "sA");
        assert!(handshake.logging);
    }

    #[test]
    fn without_get_streams_nothing_promises_notifications() {
        let handshake = Handshake::read(RESULT, PLAIN).unwrap();
        let answer = value(handshake.result_for(Version::NEWEST));
        assert_eq!(
            answer["capabilities"]["tools"],
            serde_json::json!({"x": 1.0})
        );
        assert_eq!(answer["capabilities"]["resources"], serde_json::json!({}));
        assert_eq!(answer["capabilities"]["logging"], serde_json::json!({}));
        assert!(answer["capabilities"].get("tasks").is_none());
        assert!(!handshake.subscribe);
    }

    #[test]
    fn with_everything_offered_capabilities_pass_and_tasks_only_at_their_version() {
        let all = Offer {
            get_streams: true,
            tasks: true,
        };
        let handshake = Handshake::read(RESULT, all).unwrap();
        let newest = value(handshake.result_for(Version::V2025_11_25));
        assert_eq!(newest["capabilities"], value(RESULT)["capabilities"]);
        let older = value(handshake.result_for(Version::V2025_06_18));
        assert!(older["capabilities"].get("tasks").is_none());
        assert!(handshake.subscribe);
    }

    #[test]
    fn what_the_gateway_does_not_own_keeps_its_bytes_on_one_line() {
        let handshake = Handshake::read(RESULT, PLAIN).unwrap();
        let answer = handshake.result_for(Version::NEWEST);
        let kept: &[u8] =
            br#""serverInfo":{"name":"s\u0041","version":"1e0","n":9007199254740993}"#;
        assert!(answer.windows(kept.len()).any(|window| window == kept));
        assert!(!answer.contains(&b'\n'));
    }

    #[test]
    fn an_upstream_is_less_only_when_something_is_gone() {
        let read = |capabilities: &str, version: &str| {
            let text =
                format!(r#"{{"protocolVersion":"{version}","capabilities":{capabilities}}}"#);
            Handshake::read(text.as_bytes(), PLAIN).unwrap()
        };
        let tools = r#"{"tools":{"listChanged":true}}"#;
        let before = read(tools, "2025-06-18");
        assert!(!read(tools, "2025-06-18").is_less_than(&before));
        assert!(
            !read(
                r#"{"tools":{"listChanged":true},"logging":{}}"#,
                "2025-11-25"
            )
            .is_less_than(&before)
        );
        assert!(read(tools, "2025-03-26").is_less_than(&before));
        assert!(read(r#"{"tools":{"listChanged":false}}"#, "2025-06-18").is_less_than(&before));
        assert!(read("{}", "2025-06-18").is_less_than(&before));
    }

    #[test]
    fn a_version_that_ringway_does_not_speak_is_named() {
        let error = Handshake::read(br#"{"protocolVersion":"2026-07-28"}"#, PLAIN).unwrap_err();
        assert_eq!(
            error,
            HandshakeError::Version {
                version: "2026-07-28".into()
            }
        );
    }

    #[test]
    fn a_result_with_a_key_twice_or_of_another_form_is_refused() {
        for bad in [
            &br#"{"protocolVersion":"2025-11-25","protocolVersion":"2025-06-18"}"#[..],
            b"[]",
            b"{}",
            br#"{"protocolVersion":1}"#,
            br#"{"protocolVersion":"2025-11-25","capabilities":[]}"#,
        ] {
            assert!(matches!(
                Handshake::read(bad, PLAIN),
                Err(HandshakeError::Form(_))
            ));
        }
    }
}
