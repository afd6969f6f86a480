//! Documents that are looked at whole: a task, a list. They are walked with
//! simd-json, which works in place on a copy. What is to be kept as it was written
//! is taken apart with serde_json, which knows where a value begins and ends.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use simd_json::tape::{Object, Value};
use simd_json::{Buffers, Tape};

use super::walk::decoded;

/// What simd-json works with, kept from one text to the next.
#[derive(Default)]
pub(super) struct Reader {
    copy: Vec<u8>,
    buffers: Buffers,
}

impl Reader {
    /// Walks a whole text. `None` if there is something in it that simd-json
    /// refuses, such as a number out of range or half a surrogate pair.
    pub(super) fn walk(&mut self, text: &[u8]) -> Option<Tape<'_>> {
        self.copy.clear();
        self.copy.extend_from_slice(text);
        simd_json::to_tape_with_buffers(&mut self.copy, &mut self.buffers).ok()
    }
}

/// `value` as an object in which no name appears twice.
pub(super) fn object<'tape, 'text>(value: Value<'tape, 'text>) -> Option<Object<'tape, 'text>> {
    let object = value.as_object()?;
    (!is_any_twice(object.keys().collect())).then_some(object)
}

/// Sorted, since the names of a hostile text may be many and made to collide.
fn is_any_twice(mut names: Vec<&str>) -> bool {
    names.sort_unstable();
    names
        .windows(2)
        .any(|pair| matches!(pair, [one, next] if one == next))
}

/// A member of an object: its key and value as written, its name as meant.
pub(super) struct Member<'a> {
    pub(super) key: &'a str,
    pub(super) name: Cow<'a, str>,
    pub(super) value: &'a str,
}

/// Why an object cannot be taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MembersError {
    /// It is none, or has a name that no Rust string can hold.
    Form,
    /// It has a name twice.
    Twice,
}

/// The members of an object in their order.
pub(super) fn members(text: &[u8]) -> Result<Vec<Member<'_>>, MembersError> {
    struct Members;
    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(&'de RawValue, &'de RawValue)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(member) = map.next_entry()? {
                members.push(member);
            }
            Ok(members)
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let raw = (&mut reader)
        .deserialize_map(Members)
        .map_err(|_| MembersError::Form)?;
    reader.end().map_err(|_| MembersError::Form)?;
    let mut members = Vec::with_capacity(raw.len());
    for (key, value) in raw {
        members.push(Member {
            key: key.get(),
            name: decoded(key.get().as_bytes()).ok_or(MembersError::Form)?,
            value: value.get(),
        });
    }
    if is_any_twice(members.iter().map(|member| member.name.as_ref()).collect()) {
        return Err(MembersError::Twice);
    }
    Ok(members)
}

/// The raw value of the member `name`.
pub(super) fn find<'a>(members: &[Member<'a>], name: &str) -> Option<&'a str> {
    let member = members.iter().find(|member| member.name == name)?;
    Some(member.value)
}

/// Gives the raw elements of an array to `element`. `None`, maybe after some of them:
/// it is not an array.
pub(super) fn elements(array: &str, element: impl FnMut(&str)) -> Option<()> {
    struct Elements<F>(F);
    impl<'de, F: FnMut(&str)> Visitor<'de> for Elements<F> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON array")
        }
        fn visit_seq<A: SeqAccess<'de>>(mut self, mut all: A) -> Result<(), A::Error> {
            while let Some(element) = all.next_element::<&RawValue>()? {
                self.0(element.get());
            }
            Ok(())
        }
    }
    let mut reader = serde_json::Deserializer::from_str(array);
    reader.deserialize_seq(Elements(element)).ok()
}
