//! JSON read for the eye, or by serde_json: what the targets compare with.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Syntax alone, as serde_json sees it: no limits of depth, numbers and surrogates.
pub fn is_json(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok() && serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// The members of an object in their order, repeated ones too. A key can be a [`RawValue`]
/// as well, which no name is too bad for.
pub struct Members<'a, K = String>(pub Vec<(K, &'a RawValue)>);

impl<'de: 'a, 'a, K: Deserialize<'de>> Deserialize<'de> for Members<'a, K> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct All<K>(PhantomData<K>);
        impl<'de, K: Deserialize<'de>> Visitor<'de> for All<K> {
            type Value = Members<'de, K>;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        source.deserialize_map(All(PhantomData))
    }
}

/// A member as written, and its name as meant.
#[derive(Debug)]
pub struct Member<'a> {
    pub key: &'a str,
    pub name: String,
    pub value: &'a str,
}

/// The members of an object that is known to be JSON. `None` if it is another value,
/// if a name has half a surrogate pair, or if two members have one name.
pub fn members(text: &str) -> Option<Vec<Member<'_>>> {
    let mut rest = text.trim_ascii().strip_prefix('{')?.trim_ascii_start();
    let mut members: Vec<Member<'_>> = Vec::new();
    while !rest.starts_with('}') {
        let (key, value);
        (key, rest) = first_value(rest);
        rest = rest.trim_ascii_start().strip_prefix(':')?;
        (value, rest) = first_value(rest.trim_ascii_start());
        let name = serde_json::from_str(key).ok()?;
        members.push(Member { key, name, value });
        rest = rest.trim_ascii_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_ascii_start();
    }
    let mut names: Vec<_> = members.iter().map(|member| &member.name).collect();
    names.sort_unstable();
    names.dedup();
    (names.len() == members.len()).then_some(members)
}

/// The value of a member.
pub fn find<'a>(members: &[Member<'a>], name: &str) -> Option<&'a str> {
    let member = members.iter().find(|member| member.name == name);
    member.map(|member| member.value)
}

/// The elements of an array that is known to be JSON.
pub fn elements(text: &str) -> Option<Vec<&str>> {
    let mut rest = text.trim_ascii().strip_prefix('[')?.trim_ascii_start();
    let mut elements = Vec::new();
    while !rest.starts_with(']') {
        let element;
        (element, rest) = first_value(rest);
        elements.push(element);
        rest = rest.trim_ascii_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_ascii_start();
    }
    Some(elements)
}

/// The value at the beginning of the text, and the rest.
fn first_value(text: &str) -> (&str, &str) {
    let (mut depth, mut is_string, mut is_escaped) = (0, false, false);
    for (at, byte) in text.bytes().enumerate() {
        if is_string {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => is_string = false,
                _ => continue,
            }
            if !is_string && depth == 0 {
                return text.split_at(at + 1);
            }
            continue;
        }
        match byte {
            b'"' => is_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return text.split_at(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return text.split_at(at + 1);
                }
            }
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return text.split_at(at),
            _ => {}
        }
    }
    text.split_at(text.len())
}

/// Whether a JSON text has something that parsers may refuse without being wrong: half
/// a surrogate pair, a number out of range, more levels than serde_json reads.
pub fn may_be_refused(text: &str) -> bool {
    fn has_huge_number(value: &Value) -> bool {
        match value {
            Value::Number(number) => {
                let is_integer = number.is_i64() || number.is_u64();
                !is_integer && number.as_f64().is_none_or(|number| number.abs() > 9e18)
            }
            Value::Array(values) => values.iter().any(has_huge_number),
            Value::Object(members) => members.values().any(has_huge_number),
            _ => false,
        }
    }
    serde_json::from_str::<Value>(text).map_or(true, |value| has_huge_number(&value))
}

/// Raw line breaks as spaces, as they stand on a line.
pub fn on_one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}
