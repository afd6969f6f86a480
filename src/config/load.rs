//! Reading a whole file: its text, the process, the routes, and what must hold between them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::document::{self, Table, Value};
use super::problem::{Notes, Problems, Severity};
use super::process::{ProcessFlags, process_keys};
use super::route::{self, Defaults, Places};
use super::sources::{Machine, Sources};
use super::{File, Problem, Route};
use crate::hooks::Hook;
use crate::limits::{CONFIG_BYTES_MAX, ROUTES_MAX};

/// A file that can be used, and what is odd about it.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    pub file: File,
    pub warnings: Problems,
}

/// Reads a configuration file, and looks into the files that it names. `hooks` are those that the
/// program has.
///
/// # Errors
/// All problems, warnings among them. A file that cannot be read is a problem of its first line.
pub fn load(
    path: &Path,
    machine: &dyn Machine,
    hooks: &[Arc<dyn Hook>],
) -> Result<Loaded, Problems> {
    let text = machine
        .read(path, CONFIG_BYTES_MAX)
        .map_err(|error| unreadable(&error))?;
    // A bare name has an empty parent, which joins to a path from the current directory.
    let directory = path.parent().unwrap_or(Path::new("")).to_owned();
    let sources = Sources {
        directory,
        machine,
        hooks,
    };
    parse(&text, &sources)
}

fn unreadable(error: &io::Error) -> Problems {
    Problems(vec![Problem {
        line: 1,
        column: 1,
        severity: Severity::Error,
        message: format!("the file cannot be read: {error}"),
    }])
}

/// Reads the text of a configuration file.
///
/// # Errors
/// All problems, warnings among them.
pub fn parse(text: &str, sources: &Sources<'_>) -> Result<Loaded, Problems> {
    let notes = Notes::default();
    let file = document::read(text, &notes).and_then(|document| {
        let keys = process_keys();
        let mut known: Vec<&str> = keys.iter().map(String::as_str).collect();
        known.push("routes");
        let root = Table::root(&notes, document.get_ref(), known);
        read_file(root, &keys, sources)
    });
    let problems = notes.into_problems(text);
    match file {
        Some(file) if !problems.has_errors() => Ok(Loaded {
            file,
            warnings: problems,
        }),
        _ => Err(problems),
    }
}

fn read_file<'d>(mut root: Table<'d>, keys: &'d [String], sources: &Sources<'_>) -> Option<File> {
    let flags = ProcessFlags::read(&mut root, keys);
    let defaults = Defaults {
        limits: flags.flags.route_limits(),
        start_timeout: flags.flags.start_timeout(),
    };
    let items = root.take_required("routes").and_then(|list| {
        let items = list.list()?;
        match items.len() {
            0 => list.wrong("there must be at least one route"),
            count if count > ROUTES_MAX => {
                list.wrong(format_args!("at most {ROUTES_MAX} routes can be served"));
            }
            _ => return Some(items),
        }
        None
    });
    let mut unique = Unique::default();
    let mut routes = Vec::new();
    for item in items.unwrap_or_default() {
        if let Some((route, places)) = route::read(&item, &defaults, sources) {
            unique.check(&item, &route, &places);
            routes.push(route);
        }
    }
    let notes = root.notes();
    root.finish();
    let all = || routes.iter().flat_map(|route: &Route| &route.upstreams);
    let needs_hub = all().any(|upstream| !upstream.is_private());
    let process = flags.process(needs_hub, notes)?;
    Some(File { process, routes })
}

/// Names and paths of routes, each with the route that had it first.
#[derive(Default)]
struct Unique {
    names: BTreeMap<String, String>,
    paths: BTreeMap<String, String>,
}

impl Unique {
    fn check(&mut self, item: &Value<'_>, route: &Route, places: &Places) {
        let path_is_new = note_twice(&mut self.paths, item, &route.path, places.path, "path");
        // A name that comes from the path is there twice with it.
        if path_is_new || places.name.is_some() {
            let at = places.name.unwrap_or(places.path);
            note_twice(&mut self.names, item, &route.name, at, "name");
        }
    }
}

/// Says whether `text` is new. What is empty could not be read, which is noted already.
fn note_twice(
    seen: &mut BTreeMap<String, String>,
    item: &Value<'_>,
    text: &str,
    at: usize,
    what: &str,
) -> bool {
    let path = item.path();
    match seen.get(text) {
        _ if text.is_empty() => false,
        Some(first) => {
            let message = format!("{path}.{what}: {text:?} is also the {what} of {first}");
            item.notes().error(at, message);
            false
        }
        None => seen.insert(text.to_owned(), path.to_owned()).is_none(),
    }
}
