//! What clients say, in the words of the server that it is for.

use ringway::routing::joined::naming::{Kind, Target};
use ringway::wire::rename::{self, RefKind};
use ringway::wire::reply::quoted;
use ringway::wire::scan::scan;
use ringway::wire::span::Span;

use super::names::Route;
use super::node::{Node, Parser, folded};
use super::{changed, is_as_expected, message};

/// A request that says in its params what it is for.
pub(super) fn request(route: &Route, method: &str, text: &[u8]) {
    let line = message(&format!(r#""method":"{method}","#), "params", text);
    let Ok(envelope) = scan(&line) else { return };
    let (field, word, kind) = match method {
        "tools/call" => (envelope.name, "name", Some(Kind::Tool)),
        "prompts/get" => (envelope.name, "name", Some(Kind::Prompt)),
        "resources/read" => (envelope.uri, "uri", Some(Kind::Resource)),
        _ => (envelope.task_id, "taskId", None),
    };
    let before = Node::read(std::str::from_utf8(&line).expect("scanned"));
    let asked = |parser: Parser| parser.at(&before, &["params", word])?.string();
    let Some(field) = field else {
        return assert!(Parser::ALL.iter().all(|parser| asked(*parser).is_none()));
    };
    let public = field.text(&line);
    for parser in Parser::ALL {
        assert_eq!(asked(parser).as_deref(), public.as_deref(), "{before:?}");
    }
    let Some(public) = public else { return };
    let target = match kind {
        Some(kind) => route.naming.resolve(kind, &public),
        None => route.naming.task(&public),
    };
    let meant = match kind {
        Some(kind) => route.resolved(kind, &public),
        None => route.task(&public),
    };
    assert_eq!(target.as_ref().map(thing), meant, "{public}");
    let Some(target) = target else { return };
    let again = match kind {
        Some(kind) => route.public(kind, target.upstream, &target.own),
        None => Some(route.with_prefix(target.upstream, &target.own)),
    };
    assert_eq!(again.as_deref(), Some(&*public));
    let found = [(field.span, quoted(&target.own))];
    is_forwarded(&line, &before, &found, &["params", word], &target);
}

/// The params of `completion/complete`. What they ask for is one thing whoever reads them, or
/// they are refused.
pub(super) fn completion(route: &Route, text: &[u8]) {
    let line = message(r#""method":"completion/complete","#, "params", text);
    let Ok(envelope) = scan(&line) else { return };
    let Some(params) = envelope.params else {
        return;
    };
    let found = rename::completion_ref(&line, params);
    let before = Node::read(std::str::from_utf8(&line).expect("scanned"));
    let expected = before.all("params").next().and_then(reference);
    let read = found.as_ref().ok();
    let read = read.map(|found| (found.kind, found.text.clone().into_owned()));
    assert_eq!(read, expected, "{found:?}: {before:?}");
    let Ok(found) = found else { return };
    let (word, kinds) = match found.kind {
        RefKind::Prompt => ("name", &[Kind::Prompt][..]),
        RefKind::Resource => ("uri", &[Kind::Resource, Kind::Template][..]),
    };
    let mut targets = kinds
        .iter()
        .map(|kind| route.naming.resolve(*kind, &found.text));
    let mut meant = kinds.iter().map(|kind| route.resolved(*kind, &found.text));
    let target = targets.find_map(|it| it);
    assert_eq!(target.as_ref().map(thing), meant.find_map(|it| it));
    let Some(target) = target else { return };
    let edits = [(found.value, quoted(&target.own))];
    is_forwarded(&line, &before, &edits, &["params", "ref", word], &target);
}

fn thing(target: &Target<'_>) -> (usize, String) {
    (target.upstream, target.own.clone().into_owned())
}

/// All that has changed is the string at the end of `path`, in which every parser finds the
/// server's own name.
fn is_forwarded(
    line: &[u8],
    before: &Node,
    edits: &[(Span, Vec<u8>)],
    path: &[&str],
    target: &Target<'_>,
) {
    let mut expected = before.clone();
    set(&mut expected, path, &target.own);
    let line_text = std::str::from_utf8(line).expect("scanned");
    let sent = is_as_expected(line_text, &expected, &changed(line, edits));
    for parser in Parser::ALL {
        let own = parser.at(&sent, path).and_then(|own| own.string());
        assert_eq!(
            own.as_deref(),
            Some(&*target.own),
            "{parser:?}: {line_text}"
        );
    }
}

fn set(node: &mut Node, path: &[&str], word: &str) {
    match path {
        [] => *node = Node::Word(word.to_owned()),
        [name, rest @ ..] => node.change(name, |inner| set(inner, rest, word)),
    }
}

/// What is asked for, if there is one reading only.
fn reference(params: &Node) -> Option<(RefKind, String)> {
    let only = |node: &Node, name: &str| {
        let mut all = node.members().iter().filter(|member| {
            let own = member.name.as_deref().unwrap_or_default();
            folded(own) == folded(name)
        });
        let one = all.next();
        let is_certain =
            all.next().is_none() && one.is_none_or(|it| it.name.as_deref() == Some(name));
        is_certain.then(|| one.map(|it| it.value.clone()))
    };
    let asked = only(params, "ref")??;
    let [kind, name, uri] = ["type", "name", "uri"].map(|name| only(&asked, name));
    let (kind, name, uri) = (kind??, name?, uri?);
    match kind.string()?.as_str() {
        "ref/prompt" => Some((RefKind::Prompt, name?.string()?)),
        "ref/resource" => Some((RefKind::Resource, uri?.string()?)),
        _ => None,
    }
}

/// A client's answer to a server that has asked: ids of tasks have the server's own form, and
/// in the client's again it is what the client has said.
pub(super) fn answer(route: &Route, text: &[u8]) {
    let line = message("", "result", text);
    let Some(result) = scan(&line).ok().and_then(|envelope| envelope.result) else {
        return;
    };
    let own = |public: &str| {
        let target = route.naming.task(public)?;
        (target.upstream == route.place).then(|| target.own.into_owned())
    };
    let is_any = route.naming.renames_tasks(route.place) && rename::may_name_tasks(&line);
    let found = match is_any {
        true => rename::task_edits(&line, result, &own).expect("JSON"),
        false => Vec::new(),
    };
    let sent = changed(&line, &found);
    let line = std::str::from_utf8(&line).expect("scanned");
    let mut expected = Node::read(line);
    expected.change("result", |result| {
        let id = |node: &mut Node| {
            node.change("taskId", |id| {
                id.rename(|public| match route.task(public) {
                    Some((place, own)) if place == route.place => own,
                    _ => public.to_owned(),
                })
            });
        };
        id(result);
        result.change("task", id);
        result.change("_meta", |meta| {
            meta.change("io.modelcontextprotocol/related-task", id)
        });
    });
    is_as_expected(line, &expected, &sent);

    let public = |own: &str| Some(route.naming.public_task(route.place, own).into_owned());
    let Some(result) = scan(&sent).expect("as before").result else {
        panic!("no result: {line}");
    };
    let again = rename::task_edits(&sent, result, &public).expect("JSON");
    // Only what was not one of the server's has one prefix more.
    if found.len() == again.len() {
        let again = changed(&sent, &again);
        let before = Node::read(line);
        let mut expected = before.clone();
        expected.change("result", as_words);
        is_as_expected(line, &expected, &again);
    }
}

/// Every string is a word: how it is written does not matter.
fn as_words(node: &mut Node) {
    match node {
        Node::Array(values) => values.iter_mut().for_each(as_words),
        Node::Object(members) => members.iter_mut().for_each(|it| as_words(&mut it.value)),
        Node::Leaf(_) => {
            if let Some(text) = node.string() {
                *node = Node::Word(text);
            }
        }
        Node::Word(_) => {}
    }
}
