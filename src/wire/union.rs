//! The `initialize` result of several servers that are one to clients: what any of them
//! can do, what each of them says about its use.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::version::Version;

/// One server's share.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    pub name: &'a str,
    /// Its `initialize` result.
    pub result: &'a [u8],
}

/// The result for a session of `version`. `server` is the name that clients see, also while
/// one server alone is there. `tells`: of lists that can be had a change is told, because
/// another server may come, whether any of these says that it does so. What a share's result
/// does not hold in the form that the protocol gives it, counts as not there.
pub fn union(version: Version, server: &str, tells: bool, shares: &[Share<'_>]) -> Vec<u8> {
    let results: Vec<(&str, Map<String, Value>)> = shares
        .iter()
        .filter_map(|share| match serde_json::from_slice(share.result) {
            Ok(Value::Object(result)) => Some((share.name, result)),
            _ => None,
        })
        .collect();
    let mut capabilities = Map::new();
    for (_, result) in &results {
        if let Some(Value::Object(more)) = result.get("capabilities") {
            add(&mut capabilities, more);
        }
    }
    for kind in ["tools", "prompts", "resources"] {
        if let (true, Some(Value::Object(known))) = (tells, capabilities.get_mut(kind)) {
            known.insert("listChanged".into(), true.into());
        }
    }
    let mut out = Map::new();
    out.insert("protocolVersion".into(), version.as_str().into());
    out.insert("capabilities".into(), Value::Object(capabilities));
    let info = serde_json::json!({ "name": server, "version": env!("CARGO_PKG_VERSION") });
    out.insert("serverInfo".into(), info);
    let instructions = instructions(&results);
    if !instructions.is_empty() {
        out.insert("instructions".into(), instructions.into());
    }
    serde_json::to_vec(&Value::Object(out)).unwrap_or_default()
}

/// What is true or there in either is so in both together.
fn add(known: &mut Map<String, Value>, more: &Map<String, Value>) {
    for (name, value) in more {
        match (known.get_mut(name), value) {
            (None, _) => {
                known.insert(name.clone(), value.clone());
            }
            (Some(Value::Object(known)), Value::Object(more)) => add(known, more),
            (Some(known @ (Value::Bool(false) | Value::Null)), _) => *known = value.clone(),
            (Some(_), _) => {}
        }
    }
}

/// Each server's own, under its name where there are several.
fn instructions(results: &[(&str, Map<String, Value>)]) -> String {
    let own = |result: &Map<String, Value>| match result.get("instructions") {
        Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
        _ => None,
    };
    let all: Vec<Cow<'_, str>> = results
        .iter()
        .filter_map(|(name, result)| {
            let text = own(result)?;
            Some(match results.len() {
                1 => text.into(),
                _ => format!("{name}:\n{text}").into(),
            })
        })
        .collect();
    all.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(tells: bool, results: &[(&str, &str)]) -> Value {
        let shares: Vec<_> = results
            .iter()
            .map(|(name, result)| Share {
                name,
                result: result.as_bytes(),
            })
            .collect();
        let text = union(Version::V2025_06_18, "all", tells, &shares);
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn what_one_can_do_all_can() {
        let one = r#"{"protocolVersion":"x","capabilities":{"tools":{"listChanged":false},"logging":{}},
            "serverInfo":{"name":"one","version":"1"},"instructions":"First."}"#;
        let two = r#"{"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true},
            "tasks":{"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"two","version":"2"},"instructions":"Second."}"#;
        let three = r#"{"capabilities":{"tools":{"listChanged":false},"tasks":{"list":{}}},"instructions":" "}"#;
        let value = joined(false, &[("a", one), ("b", two), ("c", three)]);
        assert_eq!(value["protocolVersion"], "2025-06-18");
        assert_eq!(
            value["capabilities"],
            serde_json::json!({
                "tools": {"listChanged": true}, "logging": {}, "resources": {"subscribe": true},
                "tasks": {"requests": {"tools": {"call": {}}}, "list": {}},
            })
        );
        assert_eq!(value["serverInfo"]["name"], "all");
        assert_eq!(value["instructions"], "a:\nFirst.\n\nb:\nSecond.");
    }

    #[test]
    fn one_alone_keeps_its_words() {
        let one = r#"{"capabilities":{"prompts":{}},"serverInfo":{"name":"one","title":"One"},"instructions":"Do."}"#;
        let value = joined(false, &[("a", one)]);
        assert_eq!(value["serverInfo"]["name"], "all");
        assert!(value["serverInfo"].get("title").is_none());
        assert_eq!(value["instructions"], "Do.");
        assert_eq!(value["protocolVersion"], "2025-06-18");
    }

    #[test]
    fn that_lists_change_is_said_of_those_that_there_are() {
        let one = r#"{"capabilities":{"tools":{},"prompts":{"listChanged":false}}}"#;
        let capabilities = |tells| joined(tells, &[("a", one)])["capabilities"].clone();
        let changes = serde_json::json!({"listChanged": true});
        assert_eq!(
            capabilities(true),
            serde_json::json!({"tools": changes, "prompts": changes})
        );
        assert_eq!(
            capabilities(false),
            serde_json::json!({"tools": {}, "prompts": {"listChanged": false}})
        );
    }

    #[test]
    fn what_is_no_result_adds_nothing() {
        let value = joined(
            true,
            &[
                ("a", "[1]"),
                ("b", r#"{"capabilities":7,"instructions":[]}"#),
            ],
        );
        assert_eq!(value["capabilities"], serde_json::json!({}));
        assert!(value.get("instructions").is_none());
    }
}
