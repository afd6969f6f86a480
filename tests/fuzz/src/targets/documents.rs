//! What routes that serve several servers as one make of their documents, against a reading
//! with serde_json: pages of lists, URIs and ids of tasks in results, in requests and in
//! notifications, the views of tools, what clients ask for, and the union of handshakes. Only
//! names change, each into what the rules of the route say. And no parser finds one that is not
//! public, whichever of several members it takes; in things of lists, in views and in what
//! clients ask for neither does one that reads names in any case.
//!
//! The first byte picks the kind of document, the second one the names of the route
//! ([`Route::new`]); a JSON text follows. Of lists and handshakes there may be several, with a
//! zero between them.

mod asked;
mod lists;
mod names;
mod node;
mod said;
mod unions;

use ringway::wire::listing::{Item, ListKind, Shown, take_page};
use ringway::wire::rename::{self, ParamsOf, ResultOf};
use ringway::wire::span::Span;
use ringway::wire::splice::{Edit, splice};

use crate::json::{is_json, on_one_line};
use names::Route;
use node::{Node, blanks};

pub fn documents(data: &[u8]) {
    let Some((&[kind, names], text)) = data.split_first_chunk::<2>() else {
        return;
    };
    let route = Route::new(names);
    no_bytes_are_too_bad(&route, text);
    let texts: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    match kind % 18 {
        0 => lists::check(&route, ListKind::Tools, &texts),
        1 => lists::check(&route, ListKind::Prompts, &texts),
        2 => lists::check(&route, ListKind::Resources, &texts),
        3 => lists::check(&route, ListKind::Templates, &texts),
        4 => lists::check(&route, ListKind::Tasks, &texts),
        5 => said::result(&route, ResultOf::ToolCall, text),
        6 => said::result(&route, ResultOf::Prompt, text),
        7 => said::result(&route, ResultOf::Read, text),
        8 => said::params(&route, "notifications/resources/updated", text),
        9 => said::params(&route, "sampling/createMessage", text),
        10 => said::params(&route, "notifications/tasks/status", text),
        11 => asked::request(&route, "tools/call", text),
        12 => asked::request(&route, "prompts/get", text),
        13 => asked::request(&route, "resources/read", text),
        14 => asked::request(&route, "tasks/get", text),
        15 => asked::completion(&route, text),
        16 => asked::answer(&route, text),
        _ => unions::check(names, &texts),
    }
}

/// Nothing panics, whatever the bytes are and wherever the document is said to be in them.
fn no_bytes_are_too_bad(route: &Route, text: &[u8]) {
    let names = route.names(route.place);
    let end = text.len() as u32;
    for span in [
        (0, end),
        (end / 2, end),
        (0, end / 2),
        (1, end + 7),
        (end + 1, end + 2),
    ] {
        let (start, end) = span;
        let span = Span { start, end };
        for of in [ResultOf::ToolCall, ResultOf::Prompt, ResultOf::Read] {
            let _ = rename::edits_of_result(text, span, of, &names);
        }
        for of in [ParamsOf::Updated, ParamsOf::Sampling] {
            let _ = rename::edits_of_params(text, span, of, &names);
        }
        let _ = rename::task_edits(text, span, &|own| Some(own.to_owned()));
        let _ = rename::completion_ref(text, span);
    }
    for kind in ListKind::ALL {
        let show = &mut |_: &Item<'_>| Some(Shown::default());
        let _ = take_page(kind, text, show, &names, &mut Vec::new());
    }
}

/// A message with a document under a name, as `scan` takes it.
fn message(before: &str, name: &str, text: &[u8]) -> Vec<u8> {
    let before = format!(r#"{{"jsonrpc":"2.0","id":7,{before}"{name}":"#);
    [before.as_bytes(), text, b"}"].concat()
}

fn changed(text: &[u8], found: &[(Span, Vec<u8>)]) -> Vec<u8> {
    let edits = found.iter();
    let mut edits: Vec<_> = edits
        .map(|(span, with)| Edit { span: *span, with })
        .collect();
    let mut out = Vec::new();
    splice(&mut out, text, &mut edits);
    out
}

/// What is written of `before` is JSON on one line and says what is expected; with all its
/// members there, the blanks are those that were there too.
fn is_as_expected(before: &str, expected: &Node, shown: &[u8]) -> Node {
    assert!(
        is_json(shown),
        "{before}\n{}",
        String::from_utf8_lossy(shown)
    );
    let shown = std::str::from_utf8(shown).expect("text");
    assert!(!shown.contains(['\r', '\n']), "{shown}");
    let node = Node::read(shown);
    assert!(
        expected.is_written_as(&node),
        "{before}\n{shown}\n{expected:?}"
    );
    let were = Node::read(before).count();
    if were == node.count() {
        assert_eq!(
            blanks(&on_one_line(before.trim_ascii())),
            blanks(shown),
            "{before}"
        );
    }
    node
}
