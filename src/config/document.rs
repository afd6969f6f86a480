//! TOML text as tables and values that know their places. Keys are taken one by one; what is of
//! another type than it should be, and what is not known, is noted where it stands.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Notes;
use super::schema;

/// Likeness from which on a known key is named for one that is not (0 to 1).
const LIKENESS_MIN: f64 = 0.7;

/// The document's own table. `None`: it is no TOML, which has been noted.
pub(super) fn read<'d>(text: &'d str, notes: &Notes) -> Option<Spanned<DeTable<'d>>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let at = error.span().map_or(0, |span| span.start);
        notes.error(at, error.message().trim_end().replace('\n', ", "));
    }
    // What a broken line would have said is missing; to note that too would mislead.
    errors.is_empty().then_some(table)
}

/// A table whose keys are known.
pub(super) struct Table<'d> {
    notes: &'d Notes,
    /// What comes before the keys in messages.
    path: String,
    entries: &'d DeTable<'d>,
    at: usize,
    known: Cow<'d, [&'d str]>,
    taken: BTreeSet<&'d str>,
}

/// A value and where it stands.
#[derive(Clone)]
pub(super) struct Value<'d> {
    notes: &'d Notes,
    path: String,
    value: &'d DeValue<'d>,
    at: usize,
    key_at: usize,
}

impl<'d> Table<'d> {
    pub(super) fn root(
        notes: &'d Notes,
        entries: &'d DeTable<'d>,
        known: Vec<&'d str>,
    ) -> Table<'d> {
        Table {
            notes,
            path: String::new(),
            entries,
            at: 0,
            known: Cow::Owned(known),
            taken: BTreeSet::new(),
        }
    }

    /// Where the table begins.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn notes(&self) -> &'d Notes {
        self.notes
    }

    /// The value of a known key, if the table has the key.
    pub(super) fn take(&mut self, key: &'d str) -> Option<Value<'d>> {
        debug_assert!(self.known.contains(&key), "{key} is not in the schema");
        self.taken.insert(key);
        let (name, value) = self.entries.get_key_value(key)?;
        Some(Value {
            notes: self.notes,
            path: joined(&self.path, key),
            value: value.get_ref(),
            at: value.span().start,
            key_at: name.span().start,
        })
    }

    /// The same, for a key that must be there.
    pub(super) fn take_required(&mut self, key: &'d str) -> Option<Value<'d>> {
        let value = self.take(key);
        if value.is_none() {
            self.error(format!("{} is missing", joined(&self.path, key)));
        }
        value
    }

    /// Notes something about the whole table.
    pub(super) fn error(&self, message: impl Into<String>) {
        self.notes.error(self.at, message);
    }

    /// Notes all keys that are not known, each with the table that has it, or the known key that
    /// it is most like.
    pub(super) fn finish(self) {
        debug_assert!(
            self.known.iter().all(|key| self.taken.contains(key)),
            "a key of the schema is not read: {:?}",
            self.known
        );
        for key in self.entries.keys() {
            let name: &str = key.get_ref();
            if self.known.contains(&name) {
                continue;
            }
            // To look for what was meant costs more than to say that there is more.
            if self.notes.is_full() {
                self.error("more keys are not known");
                break;
            }
            let mut message = format!("{} is not known", joined(&self.path, name));
            if let Some(table) = schema::table_of(name) {
                message.push_str(&format!(" here: it is a key of {table}"));
            } else if let Some(nearest) = nearest(name, &self.known) {
                message.push_str(&format!(": did you mean {nearest}?"));
            }
            self.notes.error(key.span().start, message);
        }
    }
}

/// A key is shown with quotes where TOML needs them.
fn joined(path: &str, key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let key = match !key.is_empty() && key.bytes().all(is_bare) {
        true => Cow::Borrowed(key),
        false => Cow::Owned(format!("{:?}", shortened(key))),
    };
    match path {
        "" => key.into_owned(),
        _ => format!("{path}.{key}"),
    }
}

/// The beginning of a text that may be long.
pub(super) fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(80) {
        Some((end, _)) => Cow::Owned(format!("{}...", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    // No key is as long; likeness costs the product of both lengths.
    if name.len() > 64 {
        return None;
    }
    let plain = name.to_ascii_lowercase().replace('_', "-");
    let likeness = |key: &&&str| strsim::normalized_damerau_levenshtein(&plain, key);
    let best = known
        .iter()
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    (likeness(&best) >= LIKENESS_MIN).then_some(*best)
}

impl<'d> Value<'d> {
    /// Where the value begins.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The key, with those above it.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn notes(&self) -> &'d Notes {
        self.notes
    }

    /// Notes what is wrong with the value.
    pub(super) fn wrong(&self, message: impl std::fmt::Display) {
        self.notes
            .error(self.at, format!("{}: {message}", self.path));
    }

    /// Notes what is likely not wanted.
    pub(super) fn odd(&self, message: impl std::fmt::Display) {
        self.notes
            .warning(self.at, format!("{}: {message}", self.path));
    }

    /// Notes that the key should not be there.
    pub(super) fn out_of_place(&self, message: impl std::fmt::Display) {
        self.notes
            .error(self.key_at, format!("{} {message}", self.path));
    }

    /// Values are not shown: they may be secrets.
    pub(super) fn expected(&self, what: &str) {
        let found = match self.value {
            DeValue::String(_) => "text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.wrong(format_args!("expected {what}, found {found}"));
    }

    pub(super) fn text(&self) -> Option<&'d str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.expected("text");
        }
        text
    }

    pub(super) fn is_text(&self) -> bool {
        self.value.is_str()
    }

    pub(super) fn flag(&self) -> Option<bool> {
        let flag = self.value.as_bool();
        if flag.is_none() {
            self.expected("true or false");
        }
        flag
    }

    /// Text that `parse` understands.
    pub(super) fn parsed<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let Some(text) = self.value.as_str() else {
            match parse("?") {
                Err(reason) => self.wrong(format_args!("must be text: {reason}")),
                Ok(_) => self.expected("text"),
            }
            return None;
        };
        match parse(text) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.wrong(reason);
                None
            }
        }
    }

    /// A whole number within bounds.
    pub(super) fn count(&self, bounds: RangeInclusive<usize>) -> Option<usize> {
        let number = self.number()?;
        let in_bounds = number.filter(|number| bounds.contains(number));
        if in_bounds.is_none() {
            let (least, most) = bounds.into_inner();
            match most {
                usize::MAX => self.wrong(format_args!("must be at least {least}")),
                _ => self.wrong(format_args!("must be from {least} to {most}")),
            }
        }
        in_bounds
    }

    /// A whole number; inside `None`: it is below 0, or too large.
    pub(super) fn number(&self) -> Option<Option<usize>> {
        let Some(number) = self.value.as_integer() else {
            self.expected("a whole number");
            return None;
        };
        Some(usize::from_str_radix(number.as_str(), number.radix()).ok())
    }

    pub(super) fn is_number(&self) -> bool {
        self.value.is_integer()
    }

    pub(super) fn list(&self) -> Option<Vec<Value<'d>>> {
        let Some(array) = self.value.as_array() else {
            self.expected("a list");
            return None;
        };
        let items = array.iter().enumerate().map(|(index, item)| Value {
            notes: self.notes,
            path: format!("{}[{index}]", self.path),
            value: item.get_ref(),
            at: item.span().start,
            key_at: item.span().start,
        });
        Some(items.collect())
    }

    /// A list of text. Items that are no text are noted and left out.
    pub(super) fn texts(&self, count_max: usize) -> Option<Vec<(&'d str, Value<'d>)>> {
        let items = self.list()?;
        if items.len() > count_max {
            self.wrong(format_args!("has more than {count_max} items"));
            return None;
        }
        let items = items.into_iter();
        Some(
            items
                .filter_map(|item| Some((item.text()?, item)))
                .collect(),
        )
    }

    /// A table of known keys.
    pub(super) fn table(&self, known: &'d [&'d str]) -> Option<Table<'d>> {
        let Some(entries) = self.value.as_table() else {
            self.expected("a table");
            return None;
        };
        Some(Table {
            notes: self.notes,
            path: self.path.clone(),
            entries,
            at: self.at,
            known: Cow::Borrowed(known),
            taken: BTreeSet::new(),
        })
    }

    pub(super) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    /// A table whose keys are free, in the order of the file.
    pub(super) fn entries(&self) -> Option<Vec<(&'d str, Value<'d>)>> {
        let Some(table) = self.value.as_table() else {
            self.expected("a table");
            return None;
        };
        let mut entries: Vec<_> = table
            .iter()
            .map(|(key, value)| {
                let name: &str = key.get_ref();
                let entry = Value {
                    notes: self.notes,
                    path: joined(&self.path, name),
                    value: value.get_ref(),
                    at: value.span().start,
                    key_at: key.span().start,
                };
                (name, entry)
            })
            .collect();
        entries.sort_by_key(|(_, entry)| entry.key_at);
        Some(entries)
    }

    /// Where the key of an entry begins.
    pub(super) fn key_at(&self) -> usize {
        self.key_at
    }
}
