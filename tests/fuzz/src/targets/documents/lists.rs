//! Pages of the lists of several servers, made into one.

use std::collections::BTreeSet;

use ringway::limits::LIST_CURSOR_BYTES_MAX;
use ringway::routing::joined::naming::Kind;
use ringway::wire::listing::{Item, ListFault, ListKind, Page, Shown, merged, take_page};
use ringway::wire::scan::scan;

use super::message;
use super::names::Route;
use super::node::{Node, Parser, blanks, folded};
use super::said::{change_meta, has_public_views};
use crate::json::{Members, elements, is_json, on_one_line};

struct Words {
    list: &'static str,
    key: &'static str,
    has_name: bool,
    kind: Option<Kind>,
}

fn words(kind: ListKind) -> Words {
    let (list, key, has_name, kind) = match kind {
        ListKind::Tools => ("tools", "name", false, Some(Kind::Tool)),
        ListKind::Prompts => ("prompts", "name", false, Some(Kind::Prompt)),
        ListKind::Resources => ("resources", "uri", true, Some(Kind::Resource)),
        ListKind::Templates => (
            "resourceTemplates",
            "uriTemplate",
            true,
            Some(Kind::Template),
        ),
        ListKind::Tasks => ("tasks", "taskId", false, None),
    };
    Words {
        list,
        key,
        has_name,
        kind,
    }
}

/// A thing that is shown: whose it is, as it was written, and as it is expected.
struct Thing {
    place: usize,
    text: String,
    before: Node,
    own: String,
    public: String,
    expected: Node,
}

/// The pages are those of the route's upstreams in turn, the one that speaks first.
pub(super) fn check(route: &Route, kind: ListKind, pages: &[&[u8]]) {
    let words = words(kind);
    let mut out = Vec::new();
    let mut things = Vec::new();
    for (turn, page) in pages.iter().enumerate() {
        let place = (route.place + turn) % route.upstreams();
        let line = message("", "result", page);
        let Some(result) = scan(&line).ok().and_then(|envelope| envelope.result) else {
            continue;
        };
        let page = std::str::from_utf8(result.of(&line)).expect("scanned");
        let mut asked = Vec::new();
        let mut show = |item: &Item<'_>| {
            asked.push((item.key.to_owned(), item.name.map(str::to_owned)));
            shown(route, words.kind, place, item)
        };
        let before = out.clone();
        let taken = take_page(
            kind,
            page.as_bytes(),
            &mut show,
            &route.names(place),
            &mut out,
        );
        let mut all = Vec::new();
        let mut readable = Vec::new();
        let expected = expected(route, &words, place, page, &mut readable, &mut all);
        assert_eq!(taken, expected, "{page}");
        if taken.is_err() {
            assert_eq!(out, before);
        } else {
            assert_eq!(asked, readable, "{page}");
            things.append(&mut all);
        }
    }
    for cursor in [None, Some("a\"\n\u{0}\u{e9}")] {
        check_merged(route, kind, &words, &out, &things, cursor);
    }
}

/// As `http/joined/gather.rs` asks the naming.
fn shown(route: &Route, kind: Option<Kind>, place: usize, item: &Item<'_>) -> Option<Shown> {
    if let Some(kind) = kind {
        return route.naming.shown(kind, place, item).ok();
    }
    let public = route.naming.public_task(place, item.key);
    let key = (*public != *item.key).then(|| public.into_owned());
    Some(Shown { key, name: None })
}

fn expected(
    route: &Route,
    words: &Words,
    place: usize,
    text: &str,
    readable: &mut Vec<(String, Option<String>)>,
    all: &mut Vec<Thing>,
) -> Result<Page, ListFault> {
    let page = Node::read(text);
    let Node::Object(members) = &page else {
        return Err(ListFault::Form);
    };
    if members.iter().any(|member| member.name.is_none()) {
        return Err(ListFault::Form);
    }
    if has_any_twice(&page) {
        return Err(ListFault::Twice);
    }
    let mut told = Page {
        next_cursor: match page.all("nextCursor").next() {
            None => None,
            Some(Node::Leaf(raw)) if raw == "null" => None,
            Some(cursor) => Some(cursor.string().ok_or(ListFault::Cursor)?),
        },
        ..Page::default()
    };
    match told.next_cursor.as_ref().map(String::len) {
        Some(0) => told.next_cursor = None,
        Some(1..=LIST_CURSOR_BYTES_MAX) | None => {}
        Some(_) => return Err(ListFault::CursorTooLong),
    }
    let Some(Node::Array(list)) = page.all(words.list).next() else {
        return Err(ListFault::Array);
    };
    let Members(members) = serde_json::from_str::<Members<'_>>(text).expect("an object");
    let raw = members.iter().find(|(name, _)| name == words.list);
    let texts = raw.and_then(|(_, raw)| elements(raw.get()));
    for (thing, text) in list.iter().zip(texts.expect("an array")) {
        let Some((own, name)) = names(words, thing) else {
            told.unreadable += 1;
            continue;
        };
        readable.push((own.clone(), name));
        let public = match words.kind {
            Some(kind) => route.public(kind, place, &own),
            None => Some(route.with_prefix(place, &own)),
        };
        let Some(public) = public else { continue };
        told.shown += 1;
        let mut expected = thing.clone();
        expected.change(words.key, |key| key.rename(|_| public.clone()));
        if words.has_name {
            expected.change("name", |name| {
                name.rename(|own| route.with_prefix(place, own))
            });
        }
        if words.kind == Some(Kind::Tool) {
            change_meta(route, place, &mut expected);
        }
        let (text, before) = (text.to_owned(), thing.clone());
        all.push(Thing {
            place,
            text,
            before,
            own,
            public,
            expected,
        });
    }
    Ok(told)
}

/// What a thing is called, if every parser reads the same.
fn names(words: &Words, thing: &Node) -> Option<(String, Option<String>)> {
    if thing.members().iter().any(|it| it.name.is_none()) || has_any_twice(thing) {
        return None;
    }
    let is_taken_for = |name: &str, known: &str| name != known && folded(name) == folded(known);
    let is_dubious =
        |name: &str| is_taken_for(name, words.key) || words.has_name && is_taken_for(name, "name");
    let mut members = thing.members().iter().filter_map(|it| it.name.as_deref());
    if members.any(is_dubious) {
        return None;
    }
    let key = thing.all(words.key).next()?.string()?;
    let name = thing.all("name").next().filter(|_| words.has_name);
    Some((key, name.and_then(Node::string)))
}

fn has_any_twice(node: &Node) -> bool {
    let names: BTreeSet<_> = node.members().iter().map(|it| &it.name).collect();
    names.len() < node.members().len()
}

fn check_merged(
    route: &Route,
    kind: ListKind,
    words: &Words,
    out: &[u8],
    things: &[Thing],
    cursor: Option<&str>,
) {
    let answer = merged(b"7", kind, out, cursor);
    assert!(is_json(&answer), "{}", String::from_utf8_lossy(&answer));
    let answer = String::from_utf8(answer).expect("text");
    assert!(!answer.contains(['\r', '\n']), "{answer}");
    let result = Node::read(&answer);
    let result = result.all("result").next().expect("a result");
    let said: Vec<_> = result.members().iter().map(|it| it.key.as_str()).collect();
    let list = format!("\"{}\"", words.list);
    match cursor {
        Some(_) => assert_eq!(said, [&*list, "\"nextCursor\""]),
        None => assert_eq!(said, [&*list]),
    }
    let told = result.all("nextCursor").next().and_then(Node::string);
    assert_eq!(told.as_deref(), cursor);
    let Some(Node::Array(shown)) = result.all(words.list).next() else {
        panic!("no list: {answer}");
    };
    let written = format!("[{}]", String::from_utf8_lossy(out));
    let written = elements(&written).expect("an array");
    assert_eq!(
        (shown.len(), written.len()),
        (things.len(), things.len()),
        "{answer}"
    );
    for ((shown, text), thing) in shown.iter().zip(written).zip(things) {
        assert!(
            thing.expected.is_written_as(shown),
            "{answer}\n{:?}",
            thing.expected
        );
        if thing.before.count() == shown.count() {
            assert_eq!(blanks(&on_one_line(&thing.text)), blanks(text), "{text}");
        }
        check_read(route, words, thing, shown);
    }
}

/// Whoever reads a thing finds its public name, and asked for by it there is the thing again.
fn check_read(route: &Route, words: &Words, thing: &Thing, shown: &Node) {
    let own = Some((thing.place, thing.own.clone()));
    let (meant, expected) = match words.kind {
        Some(kind) => (route.naming.resolve(kind, &thing.public), own),
        // The id of a task of an upstream without prefix may be one of another's.
        None => (route.naming.task(&thing.public), route.task(&thing.public)),
    };
    let meant = meant.map(|target| (target.upstream, target.own.into_owned()));
    assert_eq!(meant, expected);
    for parser in Parser::ALL {
        let key = parser.find(shown, words.key).and_then(|key| key.string());
        assert_eq!(key.as_ref(), Some(&thing.public), "{parser:?}: {shown:?}");
        if words.kind == Some(Kind::Tool) {
            has_public_views(route, thing.place, &thing.before, shown, parser);
        }
    }
}
