//! The `initialize` result of several servers.

use ringway::wire::union::{Share, union};
use ringway::wire::version::Version;
use serde_json::{Map, Value, json};

use crate::json::is_json;

const NAMES: [&str; 4] = ["one", "two", "three", "four"];

/// The bits of `choice`: whether changes of lists are told of, and which version it is.
pub(super) fn check(choice: u8, results: &[&[u8]]) {
    let tells = choice & 1 != 0;
    let version = Version::ALL[usize::from(choice >> 1) % Version::ALL.len()];
    let shares = NAMES.into_iter().zip(results);
    let shares: Vec<_> = shares
        .map(|(name, result)| Share { name, result })
        .collect();
    let told = union(version, "route \"r\"", tells, &shares);
    assert!(is_json(&told) && !told.contains(&b'\n') && !told.contains(&b'\r'));
    let told: Value = serde_json::from_slice(&told).expect("JSON");

    let read = shares.iter().filter_map(|share| {
        let result: Value = serde_json::from_slice(share.result).ok()?;
        result.is_object().then_some((share.name, result))
    });
    let read: Vec<_> = read.collect();
    let all = read.iter().map(|(_, result)| &result["capabilities"]);
    let all: Vec<_> = all.filter(|it| it.is_object()).collect();
    let mut capabilities = if all.is_empty() {
        json!({})
    } else {
        joined(&all)
    };
    for kind in ["tools", "prompts", "resources"] {
        if tells && capabilities[kind].is_object() {
            capabilities[kind]["listChanged"] = true.into();
        }
    }
    let info = json!({ "name": "route \"r\"", "version": told["serverInfo"]["version"] });
    let mut expected = json!({
        "protocolVersion": version.as_str(), "capabilities": capabilities, "serverInfo": info,
    });
    let words = read.iter().filter_map(|(name, result)| {
        let text = result["instructions"]
            .as_str()
            .filter(|it| !it.trim().is_empty())?;
        Some(if read.len() == 1 {
            text.to_owned()
        } else {
            format!("{name}:\n{text}")
        })
    });
    let words: Vec<_> = words.collect();
    if !words.is_empty() {
        expected["instructions"] = words.join("\n\n").into();
    }
    assert!(told["serverInfo"]["version"].is_string());
    assert_eq!(told, expected);
}

/// What any of them has, in the words of the first that says more than no; objects are joined
/// with those behind them.
fn joined(all: &[&Value]) -> Value {
    let says_no = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
    let Some(first) = all.iter().position(|value| !says_no(value)) else {
        return all.last().map_or(Value::Null, |value| (*value).clone());
    };
    if !all[first].is_object() {
        return all[first].clone();
    }
    let objects: Vec<_> = all[first..]
        .iter()
        .filter_map(|it| it.as_object())
        .collect();
    let mut out = Map::new();
    for name in objects.iter().flat_map(|object| object.keys()) {
        let values: Vec<_> = objects
            .iter()
            .filter_map(|object| object.get(name))
            .collect();
        out.insert(name.clone(), joined(&values));
    }
    Value::Object(out)
}
