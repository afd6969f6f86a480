//! What servers say: results, notifications, requests.

use ringway::routing::joined::naming::Kind;
use ringway::wire::rename::{self, ParamsOf, ResultOf};
use ringway::wire::scan::scan;

use super::names::Route;
use super::node::{Node, Parser, folded};
use super::{changed, is_as_expected, message};

/// The result of a call, as it is renamed on its way to the client.
pub(super) fn result(route: &Route, of: ResultOf, text: &[u8]) {
    let line = message("", "result", text);
    let Some(result) = scan(&line).ok().and_then(|envelope| envelope.result) else {
        return;
    };
    let (naming, names) = (&route.naming, route.names(route.place));
    let may_link = !naming.keeps_links(route.place) && rename::may_hold_uris(&line);
    let is_call = of == ResultOf::ToolCall;
    let may_have_views = is_call && !naming.is_plain() && rename::may_name_views(&line);
    let mut found = Vec::new();
    if may_link || may_have_views {
        found = rename::edits_of_result(&line, result, of, &names).expect("JSON");
    }
    if is_call && naming.renames_tasks(route.place) && rename::may_name_tasks(&line) {
        let public = |own: &str| Some(naming.public_task(route.place, own).into_owned());
        found.extend(rename::task_edits(&line, result, &public).expect("JSON"));
    }
    let shown = changed(&line, &found);

    let line = std::str::from_utf8(&line).expect("scanned");
    let before = Node::read(line);
    let mut expected = before.clone();
    expected.change("result", |result| {
        match of {
            // Where there is nothing to rename, nothing is looked at.
            ResultOf::ToolCall if route.is_plain() => {}
            ResultOf::ToolCall => {
                result.change("content", |content| blocks(route, content));
                change_meta(route, route.place, result);
                tasks(route, result);
            }
            ResultOf::Prompt => result.change("messages", |messages| in_messages(route, messages)),
            ResultOf::Read => result.change("contents", |contents| {
                contents.change_each(|part| uris(route, part));
            }),
        };
    });
    let shown = is_as_expected(line, &expected, &shown);
    for parser in Parser::ALL {
        let (before, shown) = (
            parser.at(&before, &["result"]),
            parser.at(&shown, &["result"]),
        );
        let (before, shown) = (before.expect("a result"), shown.expect("a result"));
        if is_call && !route.is_plain() {
            has_public_views(route, route.place, &before, &shown, parser);
        }
        // What only folds to `uri` stays as it was written.
        if !parser.folds {
            let owns = links(of, &before, parser);
            let public = owns.iter().map(|own| route.link(route.place, own));
            assert!(public.eq(links(of, &shown, parser)), "{parser:?}: {line}");
        }
    }
}

/// A notification or a request of a server, as clients get it.
pub(super) fn params(route: &Route, method: &str, text: &[u8]) {
    let line = message(&format!(r#""method":"{method}","#), "params", text);
    let Ok(envelope) = scan(&line) else { return };
    let Some(params) = envelope.params else {
        return;
    };
    let (naming, names) = (&route.naming, route.names(route.place));
    let mut found = Vec::new();
    if !naming.is_plain() && rename::may_hold_uris(&line) {
        let of = match method {
            "notifications/resources/updated" => Some(ParamsOf::Updated),
            "sampling/createMessage" => Some(ParamsOf::Sampling),
            _ => None,
        };
        if let Some(of) = of {
            found = rename::edits_of_params(&line, params, of, &names).expect("JSON");
        }
    }
    if naming.renames_tasks(route.place) && rename::may_name_tasks(&line) {
        let public = |own: &str| Some(naming.public_task(route.place, own).into_owned());
        found.extend(rename::task_edits(&line, params, &public).expect("JSON"));
    }
    let shown = changed(&line, &found);

    let line = std::str::from_utf8(&line).expect("scanned");
    let mut expected = Node::read(line);
    expected.change("params", |params| {
        match method {
            "notifications/resources/updated" => uris(route, params),
            "sampling/createMessage" => {
                params.change("messages", |messages| in_messages(route, messages));
            }
            _ => {}
        }
        tasks(route, params);
    });
    let shown = is_as_expected(line, &expected, &shown);
    // Of an update there is one URI only, whoever reads it.
    if method == "notifications/resources/updated" {
        let before = Node::read(line);
        for parser in Parser::ALL {
            let uri = |of| {
                parser
                    .at(of, &["params", "uri"])
                    .and_then(|uri| uri.string())
            };
            let public = uri(&before).map(|own| route.link(route.place, &own));
            assert_eq!(uri(&shown), public, "{parser:?}: {line}");
        }
    }
}

fn uris(route: &Route, node: &mut Node) {
    node.change("uri", |uri| uri.rename(|own| route.link(route.place, own)));
}

fn in_messages(route: &Route, messages: &mut Node) {
    messages.change_each(|message| message.change("content", |content| blocks(route, content)));
}

fn blocks(route: &Route, content: &mut Node) {
    content.change_each(|it| block(route, it, true));
}

/// Of members that stand twice each counts, since each is what some parser takes.
fn block(route: &Route, block: &mut Node, may_nest: bool) {
    let types: Vec<String> = block.all("type").filter_map(Node::string).collect();
    let has = |of: &str| types.iter().any(|it| it == of);
    if has("resource_link") && block.all("uri").any(|uri| uri.string().is_some()) {
        uris(route, block);
        block.change("name", |name| {
            name.rename(|own| route.with_prefix(route.place, own))
        });
    }
    if has("resource") {
        block.change("resource", |resource| uris(route, resource));
    }
    if has("tool_result") && may_nest {
        block.change("content", |content| {
            content.change_each(|it| self::block(route, it, false))
        });
    }
}

fn tasks(route: &Route, node: &mut Node) {
    let id = |node: &mut Node| {
        node.change("taskId", |id| {
            id.rename(|own| route.with_prefix(route.place, own))
        });
    };
    id(node);
    node.change("task", id);
    node.change("_meta", |meta| {
        meta.change("io.modelcontextprotocol/related-task", id)
    });
}

/// The links that a parser finds in a result.
fn links(of: ResultOf, result: &Node, parser: Parser) -> Vec<String> {
    let inside = |node: &Node, name: &str| {
        let found = parser.find(node, name);
        found.map_or(Vec::new(), |found| found.one_or_many().to_vec())
    };
    let uri = |node: &Node| parser.find(node, "uri").and_then(|uri| uri.string());
    let holders = match of {
        ResultOf::Read => return inside(result, "contents").iter().filter_map(uri).collect(),
        ResultOf::Prompt => inside(result, "messages"),
        ResultOf::ToolCall => vec![result.clone()],
    };
    let blocks = holders.iter().flat_map(|holder| inside(holder, "content"));
    let links = blocks.filter_map(|block| {
        let kind = parser.find(&block, "type").and_then(|kind| kind.string());
        match kind.as_deref() {
            Some("resource_link") => uri(&block),
            Some("resource") => parser.find(&block, "resource").and_then(|it| uri(&it)),
            _ => None,
        }
    });
    links.collect()
}

/// The view of a tool is what clients can read it by, or is not there.
pub(super) fn change_meta(route: &Route, place: usize, node: &mut Node) {
    let stays = |value: &mut Node| {
        let public = value
            .string()
            .and_then(|own| route.public(Kind::Resource, place, &own));
        if let Some(public) = &public {
            value.rename(|_| public.clone());
        }
        public.is_some()
    };
    let Node::Object(members) = node else { return };
    for member in members {
        if folded(member.name.as_deref().unwrap_or_default()) != "_meta" {
            continue;
        }
        let names = ["ui", "ui/resourceUri"];
        thin_out(&mut member.value, &names, |name, value| match name {
            "ui" => {
                thin_out(value, &["resourceUri"], |_, value| stays(value));
                true
            }
            _ => stays(value),
        });
    }
}

/// Leaves out of an object what only folds to one of these names, and what is not to stay.
fn thin_out(node: &mut Node, names: &[&str], mut stays: impl FnMut(&str, &mut Node) -> bool) {
    let Node::Object(members) = node else { return };
    members.retain_mut(|member| {
        let name = member.name.as_deref().unwrap_or_default();
        match names.iter().find(|known| folded(known) == folded(name)) {
            Some(known) if *known == name => stays(known, &mut member.value),
            Some(_) => false,
            None => true,
        }
    });
}

/// Whichever view a parser finds, it has the public URI of one that there was.
pub(super) fn has_public_views(
    route: &Route,
    place: usize,
    before: &Node,
    shown: &Node,
    parser: Parser,
) {
    let mut strings = Vec::new();
    strings_in(before, &mut strings);
    let public = |uri: &String| {
        let own = |own: &String| route.public(Kind::Resource, place, own).as_ref() == Some(uri);
        strings.iter().any(own)
    };
    for path in [
        &["_meta", "ui", "resourceUri"][..],
        &["_meta", "ui/resourceUri"],
    ] {
        if let Some(view) = parser.at(shown, path) {
            let uri = view.string();
            assert!(uri.as_ref().is_some_and(public), "{parser:?}: {shown:?}");
        }
    }
}

fn strings_in(node: &Node, found: &mut Vec<String>) {
    match node {
        Node::Array(values) => values.iter().for_each(|it| strings_in(it, found)),
        Node::Object(members) => members.iter().for_each(|it| strings_in(&it.value, found)),
        leaf => found.extend(leaf.string()),
    }
}
