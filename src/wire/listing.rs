//! Lists of several servers made into one: the pages that they give, with the
//! things that are to be shown under the names that clients know, and the answer
//! that is made of them. A thing stays as its server wrote it, byte for byte, but
//! for its name or URI, the URI of a tool's view, and raw line breaks. Of the other members of a page
//! only `nextCursor` is read.

use std::borrow::Cow;

use simd_json::prelude::ValueIntoString;

use super::document::{Member, MembersError, Reader, elements, find, members, object};
use super::rename::Names;
use super::reply::{self, json_string, quoted};
use super::scan::names::{Match, classify};
use super::span::Span;
use super::splice::{Edit, splice};
use super::views;
use super::walk::{Walk, decoded};
use crate::limits::LIST_CURSOR_BYTES_MAX;

/// The lists that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListKind {
    Tools,
    Prompts,
    Resources,
    /// `resources/templates/list`
    Templates,
    Tasks,
}

impl ListKind {
    pub const ALL: [ListKind; 5] = [
        ListKind::Tools,
        ListKind::Prompts,
        ListKind::Resources,
        ListKind::Templates,
        ListKind::Tasks,
    ];

    /// The list that a request of this method asks for.
    pub fn of_method(method: &str) -> Option<ListKind> {
        ListKind::ALL.into_iter().find(|it| it.method() == method)
    }

    pub fn method(self) -> &'static str {
        match self {
            ListKind::Tools => "tools/list",
            ListKind::Prompts => "prompts/list",
            ListKind::Resources => "resources/list",
            ListKind::Templates => "resources/templates/list",
            ListKind::Tasks => "tasks/list",
        }
    }

    /// The member of a result that is the list.
    fn member(self) -> &'static str {
        match self {
            ListKind::Tools => "tools",
            ListKind::Prompts => "prompts",
            ListKind::Resources => "resources",
            ListKind::Templates => "resourceTemplates",
            ListKind::Tasks => "tasks",
        }
    }

    /// The member of a thing by which it is asked for.
    fn key(self) -> &'static str {
        match self {
            ListKind::Tools | ListKind::Prompts => "name",
            ListKind::Resources => "uri",
            ListKind::Templates => "uriTemplate",
            ListKind::Tasks => "taskId",
        }
    }

    /// Whether things have a `name` that is not what they are asked for by.
    fn has_name(self) -> bool {
        matches!(self, ListKind::Resources | ListKind::Templates)
    }
}

/// A thing of a list as its server calls it, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The name of a tool or prompt, the URI, the URI template, the id of a task.
    pub key: &'a str,
    /// The `name` of a resource or template, if it has one.
    pub name: Option<&'a str>,
}

/// What a shown thing is called in place of its own words; `None` leaves them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub key: Option<String>,
    pub name: Option<String>,
}

/// What a page of one server's list had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Things that are shown.
    pub shown: usize,
    /// Things that nobody was asked about: they are no objects, have a name twice or one that
    /// some clients take for one that is replaced, or have no string to be asked for by.
    pub unreadable: usize,
    /// Where the server has more to tell. An empty one is none: servers write it so,
    /// and asked for it they would begin again.
    pub next_cursor: Option<String>,
}

/// Why a page of a server's list cannot be used at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListFault {
    #[error("the server's list is not an object that can be read")]
    Form,
    #[error("the server's list has a name twice")]
    Twice,
    #[error("the server's list has no array of things")]
    Array,
    #[error("the server's list has a nextCursor that is no readable string")]
    Cursor,
    #[error("the server's list has a nextCursor of more than {LIST_CURSOR_BYTES_MAX} bytes")]
    CursorTooLong,
}

impl From<MembersError> for ListFault {
    fn from(error: MembersError) -> ListFault {
        match error {
            MembersError::Form => ListFault::Form,
            MembersError::Twice => ListFault::Twice,
        }
    }
}

/// Takes what is to be shown of one page, the raw `result` of a server's answer, and
/// appends it to `out`: things with commas between them, and one before them if `out`
/// has some already. `show` is asked about each in turn, `names` about the views of tools.
///
/// # Errors
/// Nothing of the page can be used; `out` is as it was.
pub fn take_page(
    kind: ListKind,
    result: &[u8],
    show: &mut dyn FnMut(&Item<'_>) -> Option<Shown>,
    names: &dyn Names,
    out: &mut Vec<u8>,
) -> Result<Page, ListFault> {
    let members = members(result)?;
    let mut page = Page {
        next_cursor: next_cursor(&members)?,
        ..Page::default()
    };
    let list = find(&members, kind.member()).ok_or(ListFault::Array)?;
    let before = out.len();
    let mut reader = Reader::default();
    let taken = elements(list, |text| {
        let shown = match read(&mut reader, kind, text) {
            Some(item) => show(&item.as_item()),
            None => {
                page.unreadable += 1;
                None
            }
        };
        if let Some(shown) = shown {
            page.shown += 1;
            if !out.is_empty() {
                out.push(b',');
            }
            write(out, kind, text.as_bytes(), &shown, names);
        }
    });
    if taken.is_none() {
        out.truncate(before);
        return Err(ListFault::Array);
    }
    Ok(page)
}

/// The answer to the request `id` with these things, as [`take_page`] wrote them.
pub fn merged(id: &[u8], kind: ListKind, items: &[u8], next_cursor: Option<&str>) -> Vec<u8> {
    let more = next_cursor.map_or(0, str::len);
    let mut list = Vec::with_capacity(items.len() + more + 64);
    list.push(b'{');
    json_string(&mut list, kind.member());
    list.extend_from_slice(b":[");
    list.extend_from_slice(items);
    list.push(b']');
    if let Some(cursor) = next_cursor {
        list.extend_from_slice(br#","nextCursor":"#);
        json_string(&mut list, cursor);
    }
    list.push(b'}');
    reply::result(id, &list)
}

fn next_cursor(members: &[Member<'_>]) -> Result<Option<String>, ListFault> {
    let cursor = match find(members, "nextCursor") {
        None | Some("null") => return Ok(None),
        Some(raw) => decoded(raw.as_bytes()).ok_or(ListFault::Cursor)?,
    };
    if cursor.len() > LIST_CURSOR_BYTES_MAX {
        return Err(ListFault::CursorTooLong);
    }
    Ok(Some(cursor.into_owned()).filter(|cursor| !cursor.is_empty()))
}

/// An item that owns what had to be decoded.
struct ReadItem<'a> {
    key: Cow<'a, str>,
    name: Option<Cow<'a, str>>,
}

impl ReadItem<'_> {
    fn as_item(&self) -> Item<'_> {
        Item {
            key: &self.key,
            name: self.name.as_deref(),
        }
    }
}

/// What a thing is called. `None`: nobody could ask for it.
fn read<'a>(reader: &'a mut Reader, kind: ListKind, text: &'a str) -> Option<ReadItem<'a>> {
    let Some(tape) = reader.walk(text.as_bytes()) else {
        return read_plainly(kind, text);
    };
    let thing = object(tape.as_value())?;
    if thing.keys().any(|name| is_dubious(kind, name)) {
        return None;
    }
    let key = thing.get(kind.key())?.into_string()?;
    let name = match kind.has_name() {
        true => thing.get("name").and_then(|name| name.into_string()),
        false => None,
    };
    let name: Option<&'a str> = name;
    Some(ReadItem {
        key: key.into(),
        name: name.map(Into::into),
    })
}

/// The same without a look at what is inside the members: a number that simd-json
/// cannot hold, such as a bound in a schema, must not hide a tool.
fn read_plainly(kind: ListKind, text: &str) -> Option<ReadItem<'_>> {
    let members = members(text.as_bytes()).ok()?;
    if members.iter().any(|it| is_dubious(kind, &it.name)) {
        return None;
    }
    let string = |name| decoded(find(&members, name)?.as_bytes());
    Some(ReadItem {
        key: string(kind.key())?,
        name: kind.has_name().then(|| string("name")).flatten(),
    })
}

/// Whether a name only folds to one that is replaced: who reads it so would find the server's
/// own word there, which may be the public name of another server's thing.
fn is_dubious(kind: ListKind, name: &str) -> bool {
    let known = [kind.key(), "name"];
    let known = if kind.has_name() {
        &known[..]
    } else {
        &known[..1]
    };
    matches!(classify(known, name), Match::Folded(_))
}

/// Appends a thing, which is valid JSON, with the words of `shown` in it.
fn write(out: &mut Vec<u8>, kind: ListKind, text: &[u8], shown: &Shown, names: &dyn Names) {
    let raw = |word: &Option<String>| word.as_deref().map(quoted);
    let words = [
        (kind.key(), raw(&shown.key)),
        ("name", raw(&shown.name).filter(|_| kind.has_name())),
    ];
    let has_view = kind == ListKind::Tools && views::may_name_views(text);
    let mut found = Vec::new();
    let mut edits = Vec::new();
    if let (true, Some(whole)) = (
        has_view || words.iter().any(|(_, word)| word.is_some()),
        Span::new(0, text.len()),
    ) {
        // It has been read: there is nothing in it that the walk stops at.
        let _ = Walk::new(text, whole).object(|walk, member| {
            if has_view && views::is_meta(member) {
                return views::edits_of_meta(walk, names, &mut found);
            }
            let word = words.iter().find(|(name, _)| member == Some(name));
            let (span, is) = walk.string()?;
            if let (Some((_, Some(with))), Some(_)) = (word, is) {
                edits.push(Edit { span, with });
            }
            Ok(())
        });
    }
    edits.extend(found.iter().map(|(span, with)| Edit { span: *span, with }));
    splice(out, text, &mut edits);
}

#[cfg(test)]
mod tests;
