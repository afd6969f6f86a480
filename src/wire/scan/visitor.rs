//! One pass of sonic-rs over a message that keeps byte ranges. The whole text is validated by it;
//! the visitor runs to the end whatever it meets, so that a syntax error anywhere wins over every
//! fault of meaning. Ranges come from where sonic-rs's own slices lie in the text: nothing is
//! searched for, and a slice that does not lie in the text is an error, never a guess.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::names::{self, Level, Match, MessageName, MetaName, ParamsName};
use super::{Fault, Field, Shape};
use crate::wire::depth::after_string;
use crate::wire::span::Span;

/// The newtype name by which sonic-rs hands out the raw text of a value to any visitor. Its own
/// `LazyValue` copies strings that have an escape; a visitor gets the slice of the text itself.
/// Should a later release rename it, every scan fails, and with it every test of this module.
const RAW_TEXT: &str = "$sonic_rs::LazyValue";

/// What stands at the three levels of one message.
pub(super) struct Reading<'t> {
    text: &'t str,
    /// Everything before this offset has been read.
    at: usize,
    message: [Option<Field>; MessageName::COUNT],
    params: [Option<Field>; ParamsName::COUNT],
    meta: [Option<Field>; MetaName::COUNT],
    /// The first of [`Fault::DuplicateKey`] and [`Fault::FoldedKey`].
    pub(super) name_fault: Option<Fault>,
    /// The message has two ids, or a second member that some servers take for one.
    pub(super) id_is_doubtful: bool,
}

impl<'t> Reading<'t> {
    pub(super) fn message(&self, name: MessageName) -> Option<Field> {
        self.message[name as usize]
    }

    pub(super) fn params(&self, name: ParamsName) -> Option<Field> {
        self.params[name as usize]
    }

    pub(super) fn meta(&self, name: MetaName) -> Option<Field> {
        self.meta[name as usize]
    }

    fn new(text: &'t str) -> Self {
        Self {
            text,
            at: 0,
            message: [None; MessageName::COUNT],
            params: [None; ParamsName::COUNT],
            meta: [None; MetaName::COUNT],
            name_fault: None,
            id_is_doubtful: false,
        }
    }

    fn slot(&mut self, level: Level, name: usize) -> &mut Option<Field> {
        match level {
            Level::Message => &mut self.message[name],
            Level::Params => &mut self.params[name],
            Level::Meta => &mut self.meta[name],
        }
    }

    fn keep(&mut self, level: Level, name: usize, field: Field) {
        if self.slot(level, name).replace(field).is_some() {
            self.note_name_fault(level, name, Fault::DuplicateKey);
        }
    }

    fn note_name_fault(&mut self, level: Level, name: usize, fault: Fault) {
        self.name_fault.get_or_insert(fault);
        self.id_is_doubtful |= level == Level::Message && name == MessageName::Id as usize;
    }

    fn skip_blanks(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| is_blank(**byte)).count();
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn step_over(&mut self, byte: u8) -> Option<()> {
        (self.byte()? == byte).then(|| self.at += 1)
    }

    /// Moves from the end of one member (or the opening brace) to the value of the next. sonic-rs
    /// has read the name and the colon by then; `None` means that it and this disagree.
    fn step_to_value(&mut self) -> Option<()> {
        self.skip_blanks();
        if self.byte()? == b',' {
            self.at += 1;
            self.skip_blanks();
        }
        self.step_over(b'"')?;
        self.at = after_string(self.text.as_bytes(), self.at).min(self.text.len());
        self.skip_blanks();
        self.step_over(b':')?;
        self.skip_blanks();
        Some(())
    }
}

pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Reads one message. `text` must have passed the depth check.
///
/// # Errors
/// [`Fault::NotJson`], or [`Fault::NotObject`] for JSON of another kind.
pub(super) fn read(text: &str) -> Result<Reading<'_>, Fault> {
    let mut reading = Reading::new(text);
    let mut source = sonic_rs::Deserializer::from_str(text);
    reading.skip_blanks();
    let is_object = reading.byte() == Some(b'{');
    let parsed = if is_object {
        let object = Object {
            reading: &mut reading,
            level: Level::Message,
        };
        object.deserialize(&mut source).map(drop)
    } else {
        source.deserialize_ignored_any(IgnoredAny).map(drop)
    };
    parsed
        .and_then(|()| source.end())
        .map_err(|_| Fault::NotJson)?;
    if is_object {
        Ok(reading)
    } else {
        Err(Fault::NotObject)
    }
}

/// Reads an array of messages and keeps the ranges of at most `kept_max` of them.
///
/// # Errors
/// As [`read`], with an array in place of the object.
pub(super) fn read_array(text: &str, kept_max: usize) -> Result<Vec<Span>, Fault> {
    let mut reading = Reading::new(text);
    let mut source = sonic_rs::Deserializer::from_str(text);
    reading.skip_blanks();
    let is_array = reading.byte() == Some(b'[');
    let mut spans = Vec::new();
    let parsed = if is_array {
        let elements = Elements {
            reading: &mut reading,
            spans: &mut spans,
            kept_max,
        };
        source.deserialize_seq(elements)
    } else {
        source.deserialize_ignored_any(IgnoredAny).map(drop)
    };
    parsed
        .and_then(|()| source.end())
        .map_err(|_| Fault::NotJson)?;
    if is_array {
        Ok(spans)
    } else {
        Err(Fault::NotObject)
    }
}

// === impl Object ===

/// An object at one of the three levels, its opening brace at `reading.at`.
struct Object<'r, 't> {
    reading: &'r mut Reading<'t>,
    level: Level,
}

impl<'de> DeserializeSeed<'de> for Object<'_, '_> {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Field, D::Error> {
        let Self { reading, level } = self;
        let start = reading.at;
        reading.at += 1;
        source.deserialize_map(Object {
            reading: &mut *reading,
            level,
        })?;
        reading.skip_blanks();
        reading.step_over(b'}').ok_or_else(lost)?;
        let span = Span::new(start, reading.at).ok_or_else(lost)?;
        Ok(Field {
            span,
            shape: Shape::Object,
        })
    }
}

impl<'de> Visitor<'de> for Object<'_, '_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self { reading, level } = self;
        while let Some(name) = members.next_key_seed(Name { level })? {
            let value = Value {
                inside: match name {
                    Match::Known(name) => level.inside(name),
                    _ => None,
                },
                reading: &mut *reading,
            };
            let field = members.next_value_seed(value)?;
            match name {
                Match::Known(name) => reading.keep(level, name, field),
                Match::Folded(name) => reading.note_name_fault(level, name, Fault::FoldedKey),
                Match::Unknown => {}
            }
        }
        Ok(())
    }
}

// === impl Name ===

/// A member name, compared as decoded: `"\u0069d"` is `id`.
struct Name {
    level: Level,
}

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Match;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Match, D::Error> {
        source.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Match;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a member name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Match, E> {
        Ok(names::classify(self.level.names(), name))
    }
}

// === impl Value ===

/// The value of a member: looked into if it is an object at one of the three levels, skipped
/// (and validated) as raw text if not.
struct Value<'r, 't> {
    reading: &'r mut Reading<'t>,
    inside: Option<Level>,
}

impl<'de> DeserializeSeed<'de> for Value<'_, '_> {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Field, D::Error> {
        let Self { reading, inside } = self;
        if let Some(level) = inside {
            reading.step_to_value().ok_or_else(lost)?;
            if reading.byte() == Some(b'{') {
                return Object { reading, level }.deserialize(source);
            }
        }
        Raw { reading }.deserialize(source)
    }
}

// === impl Raw ===

/// A value as it stands in the text.
struct Raw<'r, 't> {
    reading: &'r mut Reading<'t>,
}

impl Raw<'_, '_> {
    fn found<E: de::Error>(self, raw: &str, escaped: bool) -> Result<Field, E> {
        let text = self.reading.text;
        // Both are addresses of live slices, so a raw text whose distance and length fit into
        // the text is a part of it.
        let start = raw.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
        let end = start
            .checked_add(raw.len())
            .filter(|end| *end <= text.len());
        let end = end.ok_or_else(lost)?;
        self.reading.at = end;
        let span = Span::new(start, end).ok_or_else(lost)?;
        Ok(Field {
            span,
            shape: Shape::of_raw(raw.as_bytes(), escaped),
        })
    }
}

impl<'de> DeserializeSeed<'de> for Raw<'_, '_> {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Field, D::Error> {
        source.deserialize_newtype_struct(RAW_TEXT, self)
    }
}

impl<'de> Visitor<'de> for Raw<'_, '_> {
    type Value = Field;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the raw text of a value")
    }

    fn visit_borrowed_str<E: de::Error>(self, raw: &'de str) -> Result<Field, E> {
        self.found(raw, false)
    }

    // sonic-rs takes this way for strings that have an escape; the slice is the text's all the
    // same.
    fn visit_str<E: de::Error>(self, raw: &str) -> Result<Field, E> {
        self.found(raw, true)
    }
}

// === impl Elements ===

struct Elements<'r, 't> {
    reading: &'r mut Reading<'t>,
    spans: &'r mut Vec<Span>,
    kept_max: usize,
}

impl<'de> Visitor<'de> for Elements<'_, '_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let Self {
            reading,
            spans,
            kept_max,
        } = self;
        while let Some(field) = elements.next_element_seed(Raw {
            reading: &mut *reading,
        })? {
            if spans.len() < kept_max {
                spans.push(field.span);
            }
        }
        Ok(())
    }
}

#[cold]
fn lost<E: de::Error>() -> E {
    E::custom("the raw text of a value does not lie where it should")
}
