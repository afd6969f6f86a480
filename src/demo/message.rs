//! One line of JSON, read in one pass into the few values the demo server
//! looks at, each kept as its raw JSON text. Borrowed from the line, no I/O, no
//! recursion that the input controls: serde_json skips and captures values
//! with a loop, so deep nesting cannot exhaust the stack.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

/// Why a line is not a message; it names the JSON-RPC error to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not JSON, or not UTF-8: -32700.
    Syntax,
    /// JSON, but not one object with each known key at most once: -32600.
    Shape,
}

/// A value's JSON text, or nothing where the key is absent. `null` is not
/// absent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Raw<'a>(pub(super) Option<&'a str>);

/// A value that should be an object.
#[derive(Debug, Default)]
pub(super) enum Shape<T> {
    #[default]
    Absent,
    Object(T),
    Other,
}

/// A request, notification or response.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) jsonrpc: Raw<'a>,
    #[serde(borrow)]
    pub(super) id: Raw<'a>,
    #[serde(borrow)]
    pub(super) method: Raw<'a>,
    #[serde(borrow)]
    pub(super) params: Shape<Params<'a>>,
    #[serde(borrow)]
    pub(super) result: Raw<'a>,
    #[serde(borrow)]
    pub(super) error: Raw<'a>,
}

/// `params` of any method.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Params<'a> {
    #[serde(borrow)]
    pub(super) name: Raw<'a>,
    #[serde(borrow)]
    pub(super) uri: Raw<'a>,
    #[serde(borrow)]
    pub(super) level: Raw<'a>,
    #[serde(borrow)]
    pub(super) request_id: Raw<'a>,
    #[serde(borrow)]
    pub(super) protocol_version: Raw<'a>,
    #[serde(borrow)]
    pub(super) arguments: Shape<Arguments<'a>>,
    #[serde(borrow, rename = "_meta")]
    pub(super) meta: Shape<Meta<'a>>,
}

/// `params._meta`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta<'a> {
    #[serde(borrow)]
    pub(super) progress_token: Raw<'a>,
}

/// The arguments of all tools and prompts together. Reading them in the same
/// pass spares a second scan of a large `echo`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Arguments<'a> {
    #[serde(borrow)]
    pub(super) message: Raw<'a>,
    #[serde(borrow)]
    pub(super) a: Raw<'a>,
    #[serde(borrow)]
    pub(super) b: Raw<'a>,
    #[serde(borrow)]
    pub(super) steps: Raw<'a>,
    #[serde(borrow)]
    pub(super) interval_ms: Raw<'a>,
    #[serde(borrow)]
    pub(super) bytes: Raw<'a>,
    #[serde(borrow)]
    pub(super) uri: Raw<'a>,
    #[serde(borrow)]
    pub(super) name: Raw<'a>,
    #[serde(borrow)]
    pub(super) list: Raw<'a>,
}

impl<'a> Message<'a> {
    /// Reads one line without its newline.
    ///
    /// # Errors
    /// [`Fault`], which says what to answer.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, Fault> {
        let text = simdutf8::basic::from_utf8(line).map_err(|_| Fault::Syntax)?;
        match serde_json::from_str(text) {
            Ok(Shape::Object(message)) => Ok(message),
            Ok(Shape::Absent | Shape::Other) => Err(Fault::Shape),
            Err(error) if error.classify() == Category::Data => Err(Fault::Shape),
            Err(_) => Err(Fault::Syntax),
        }
    }
}

impl<'a> Raw<'a> {
    /// The value of a JSON string; `None` for an absent value, another type or
    /// an escape that is not Unicode (a lone surrogate).
    pub(super) fn text(self) -> Option<Cow<'a, str>> {
        string_value(self.0?)
    }

    /// The JSON text of a string, quotes and escapes included.
    pub(super) fn string_json(self) -> Option<&'a str> {
        self.0.filter(|raw| raw.starts_with('"'))
    }

    /// The JSON text of a number.
    pub(super) fn number_json(self) -> Option<&'a str> {
        self.0
            .filter(|raw| raw.starts_with(|c: char| c == '-' || c.is_ascii_digit()))
    }
}

/// The characters that a JSON string stands for.
fn string_value(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

/// One spelling for all spellings of an id, so that a cancellation that escapes
/// its id differently still finds the call. Types stay apart: `1` is not `"1"`.
pub(super) fn canonical_id(raw: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', raw.as_bytes()).is_none() {
        return Cow::Borrowed(raw);
    }
    match string_value(raw) {
        Some(value) => Cow::Owned(serde_json::Value::from(value).to_string()),
        None => Cow::Borrowed(raw),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Self(Some(raw.get())))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shape<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor(PhantomData))
    }
}

/// Takes an object apart and lets everything else pass as [`Shape::Other`]: a
/// derived struct alone would also read an array as its fields in order.
struct ShapeVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ShapeVisitor<T> {
    type Value = Shape<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Shape::Object)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Shape::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Shape::Other)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Shape::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Shape::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Shape::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Shape::Other)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Shape::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_spelling() {
        let line = br#" {"jsonrpc":"2.0","id":"a-\u0041","m\u0065thod":"p\u0069ng","params":{"_meta":{"progressToken":1.50e1}}} "#;
        let message = Message::parse(line).expect("valid");
        assert_eq!(message.id.0, Some(r#""a-\u0041""#));
        assert_eq!(message.method.text().as_deref(), Some("ping"));
        let Shape::Object(params) = message.params else {
            panic!("params is an object")
        };
        let Shape::Object(meta) = params.meta else {
            panic!("_meta is an object")
        };
        assert_eq!(meta.progress_token.0, Some("1.50e1"));
    }

    #[test]
    fn null_is_not_absent_and_an_array_is_not_an_object() {
        let message = Message::parse(br#"{"id":null,"params":["echo"]}"#).expect("valid");
        assert_eq!(message.id.0, Some("null"));
        assert!(message.method.0.is_none());
        assert!(matches!(message.params, Shape::Other));
        assert_eq!(Message::parse(b"[]").err(), Some(Fault::Shape));
        assert_eq!(Message::parse(b"null").err(), Some(Fault::Shape));
    }

    #[test]
    fn broken_input_is_a_fault_and_never_a_panic() {
        let deep = [b"{\"params\":".as_slice(), &[b'['; 200_000]].concat();
        let mut deep_closed = [b"{\"x\":".as_slice(), &[b'['; 200_000]].concat();
        deep_closed.extend_from_slice(&[b']'; 200_000]);
        deep_closed.push(b'}');
        assert_eq!(Message::parse(&deep).err(), Some(Fault::Syntax));
        assert!(Message::parse(&deep_closed).is_ok());
        for line in [
            &b"{"[..],
            b"{\"id\":1} x",
            b"{\"id\":\"\xff\"}",
            b"{\"id\":01}",
        ] {
            assert_eq!(Message::parse(line).err(), Some(Fault::Syntax));
        }
        assert_eq!(
            Message::parse(br#"{"id":1,"\u0069d":2}"#).err(),
            Some(Fault::Shape)
        );
    }

    #[test]
    fn a_truncated_line_is_never_read_as_a_message() {
        let line = br#"{"jsonrpc":"2.0","id":"\u0041","params":{"_meta":{"progressToken":1},"arguments":[true]}}"#;
        assert!(Message::parse(line).is_ok());
        for length in 0..line.len() {
            assert_eq!(Message::parse(&line[..length]).err(), Some(Fault::Syntax));
        }
    }

    #[test]
    fn ids_compare_by_value_and_type() {
        assert_eq!(canonical_id(r#""a-\u0041""#), canonical_id(r#""a-A""#));
        assert_ne!(canonical_id("1"), canonical_id("\"1\""));
    }
}
