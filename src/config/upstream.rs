//! One upstream of a route.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::document::{Table, Value, shortened};
use super::route::{Defaults, choice, existing_file, file_path, selection};
use super::schema::{KINDS, SECRET, UPSTREAM};
use super::sources::{FileKind, Program, Sources};
use super::{Aliases, Prefix, RouteLimits, Upstream};
use crate::cli::{HttpServer, ServerPlace};
use crate::limits::{HEADERS_MAX, SECRET_BYTES_MAX, UPSTREAM_NAME_CHARACTERS};
use crate::routing::joined::naming::{Kind, PerKind, is_upstream_name};
use crate::upstream::child::ServerCommand;
use crate::upstream::http::address::{Address, AddressError, Fields};
use crate::values;

/// Keys that only a server that is a process has.
const OF_COMMANDS: [&str; 2] = ["environment", "working-directory"];

/// Keys that only a server over HTTP has.
const OF_HTTP: [&str; 8] = [
    "share",
    "ca",
    "add-headers",
    "pass-headers",
    "remove-headers",
    "connections",
    "connect-timeout",
    "idle-timeout",
];

/// The defaults of the flags `--upstream-connections` and the like.
const CONNECTIONS: usize = 1_024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

const PREFIXES: [(&str, Prefix); 3] = [
    ("auto", Prefix::Auto),
    ("always", Prefix::Always),
    ("never", Prefix::Never),
];

/// Where the names of an upstream stand.
#[derive(Default)]
pub(super) struct UpstreamPlaces {
    pub(super) name: usize,
    aliases: PerKind<Vec<usize>>,
}

impl UpstreamPlaces {
    /// Where an alias stands.
    pub(super) fn alias(&self, kind: Kind, index: usize) -> usize {
        let place = self.aliases.of(kind).get(index);
        place.copied().unwrap_or(self.name)
    }
}

/// Reads an upstream. What cannot be read is noted and replaced. `None`: it is no table.
pub(super) fn read<'d>(
    value: &Value<'d>,
    defaults: &Defaults,
    limits: &RouteLimits,
    sources: &Sources<'_>,
) -> Option<(Upstream, UpstreamPlaces)> {
    let mut table = value.table(&UPSTREAM)?;
    let name = table.take_required("name");
    let mut places = UpstreamPlaces {
        name: name.as_ref().map_or(table.at(), Value::at),
        ..UpstreamPlaces::default()
    };
    let name = name.and_then(|name| name.parsed(upstream_name));
    let name = name.unwrap_or_default();
    let place = read_place(&mut table, value, sources);
    let prefix = table.take("prefix");
    let prefix = prefix.and_then(|value| value.parsed(|text| choice(text, &PREFIXES)));
    let required = table.take("required").and_then(|value| value.flag());
    let mut time = |key, default| {
        let value = table.take(key);
        let time = value.and_then(|value| value.parsed(values::duration));
        time.unwrap_or(default)
    };
    let start_timeout = time("start-timeout", defaults.start_timeout);
    let request_timeout = time("request-timeout", limits.request_timeout);
    let aliases = table.take("aliases");
    let aliases = aliases.and_then(|value| read_aliases(&value, &mut places));
    let upstream = Upstream {
        name,
        place,
        prefix: prefix.unwrap_or_default(),
        required: required.unwrap_or(false),
        start_timeout,
        request_timeout,
        aliases: aliases.unwrap_or_default(),
        allow: selection(&mut table, "allow").0,
        deny: selection(&mut table, "deny").0,
    };
    table.finish();
    Some((upstream, places))
}

fn upstream_name(text: &str) -> Result<String, String> {
    match is_upstream_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "must be 1 to {UPSTREAM_NAME_CHARACTERS} characters: a letter of a-z, then a-z, 0-9 and -, and no - at the end"
        )),
    }
}

/// A server that stands for one that could not be read.
fn no_place() -> ServerPlace {
    ServerPlace::Command(ServerCommand::default())
}

fn read_place(table: &mut Table<'_>, value: &Value<'_>, sources: &Sources<'_>) -> ServerPlace {
    let command = table.take("command");
    let url = table.take("url");
    let of_commands = OF_COMMANDS.map(|key| table.take(key));
    let of_http = OF_HTTP.map(|key| table.take(key));
    match (command, url) {
        (Some(command), None) => {
            for key in of_http.iter().flatten() {
                key.out_of_place("is for an upstream with a url");
            }
            read_command(&command, of_commands, sources)
        }
        (None, Some(url)) => {
            for key in of_commands.iter().flatten() {
                key.out_of_place("is for an upstream with a command");
            }
            read_http(&url, of_http, sources).unwrap_or_else(no_place)
        }
        (Some(_), Some(url)) => {
            url.out_of_place("cannot stand beside command: a server is one or the other");
            no_place()
        }
        (None, None) => {
            table.error(format!("{} needs a command or a url", value.path()));
            no_place()
        }
    }
}

fn read_command(
    value: &Value<'_>,
    [environment, directory]: [Option<Value<'_>>; 2],
    sources: &Sources<'_>,
) -> ServerPlace {
    let mut words = Vec::new();
    let items = value.list();
    if let Some(items) = &items {
        match items.is_empty() {
            true => value.wrong("names no program"),
            false => words.extend(items.iter().enumerate().map(command_word)),
        }
    }
    let mut words = words.into_iter();
    let environment = environment.and_then(|table| table.entries());
    let variables = environment.unwrap_or_default().into_iter();
    let program = words.next().flatten().unwrap_or_default();
    let command = ServerCommand {
        label: program.to_string_lossy().into_owned(),
        program,
        arguments: words.flatten().collect(),
        environment: variables
            .filter_map(|(name, value)| variable(name, &value, sources))
            .collect(),
        working_directory: directory.and_then(|value| working_directory(&value, sources)),
    };
    if let Some(item) = items.as_ref().and_then(|items| items.first()) {
        note_program(item, &command, sources);
    }
    ServerPlace::Command(command)
}

/// A program that is not there may still come: its server is down until then.
fn note_program(item: &Value<'_>, command: &ServerCommand, sources: &Sources<'_>) {
    // It could not be read, which has been noted.
    if command.program.is_empty() {
        return;
    }
    let mut variables = command.environment.iter();
    let path = variables.find(|(name, _)| name == "PATH");
    let program = Program {
        name: &command.program,
        directory: command.working_directory.as_deref(),
        path: path.map(|(_, value)| value.as_os_str()),
    };
    if let Err(fault) = sources.machine.check_program(&program) {
        item.odd(fault);
    }
}

/// A directory that is not there may still come: its server is down until then.
fn working_directory(value: &Value<'_>, sources: &Sources<'_>) -> Option<PathBuf> {
    let path = file_path(value, sources)?;
    let shown = path.display();
    match sources.machine.look(&path) {
        Ok(FileKind::Directory) => {}
        Ok(_) => value.odd(format_args!("{shown} is not a directory")),
        Err(error) => value.odd(format_args!("{shown}: {error}")),
    }
    Some(path)
}

fn command_word((index, item): (usize, &Value<'_>)) -> Option<OsString> {
    let text = item.text()?;
    if text.contains('\0') {
        item.wrong("must not hold a NUL character");
        return None;
    }
    if index == 0 && text.is_empty() {
        item.wrong("names no program");
        return None;
    }
    Some(text.into())
}

fn variable(name: &str, value: &Value<'_>, sources: &Sources<'_>) -> Option<(OsString, OsString)> {
    if name.is_empty() || name.contains(['=', '\0']) {
        value.out_of_place("cannot be the name of a variable");
        return None;
    }
    if name.starts_with("RINGWAY_") {
        value.out_of_place("is a setting of Ringway, which servers never get");
        return None;
    }
    let text = secret(value, sources)?;
    if text.contains('\0') {
        value.wrong("must not hold a NUL character");
        return None;
    }
    Some((name.into(), text.into()))
}

/// Text, or where it is to be found.
fn secret(value: &Value<'_>, sources: &Sources<'_>) -> Option<String> {
    if !value.is_table() {
        if !value.is_text() {
            value.expected("text, { file = \"...\" } or { env = \"...\" }");
        }
        return value.is_text().then(|| value.text().map(str::to_owned))?;
    }
    let mut table = value.table(&SECRET)?;
    let file = table.take("file");
    let variable = table.take("env");
    table.finish();
    match (file, variable) {
        (Some(file), None) => {
            let path = file_path(&file, sources)?;
            match sources.machine.read(&path, SECRET_BYTES_MAX) {
                Ok(text) => Some(text.trim_end_matches(['\r', '\n']).to_owned()),
                Err(error) => {
                    file.wrong(format_args!("cannot read {}: {error}", path.display()));
                    None
                }
            }
        }
        (None, Some(variable)) => {
            let name = variable.text()?;
            let found = sources.machine.variable(name);
            if found.is_none() {
                let name = shortened(name);
                variable.wrong(format_args!(
                    "the variable {name:?} is not set, or is not UTF-8"
                ));
            }
            found
        }
        _ => {
            value.wrong("needs either file or env");
            None
        }
    }
}

fn read_http(
    url: &Value<'_>,
    [share, ca, add, pass, remove, connections, connect, idle]: [Option<Value<'_>>; 8],
    sources: &Sources<'_>,
) -> Option<ServerPlace> {
    let address = url.parsed(|text| {
        Address::parse(text).map_err(|error| match error {
            AddressError::User => {
                "the URL of the server must not name a user or a password: use add-headers"
                    .to_owned()
            }
            other => other.to_string(),
        })
    });
    let is_shared = share.and_then(|share| share.flag()).unwrap_or(false);
    if let Some(ca) = &ca
        && address.as_ref().is_some_and(|address| !address.is_tls())
    {
        ca.out_of_place("is for a url of https://");
    }
    if let Some(pass) = &pass
        && is_shared
    {
        pass.out_of_place(
            "would do nothing with share: all clients have one session at the server",
        );
    }
    if let (Some(remove), None) = (&remove, &pass) {
        remove.out_of_place("would do nothing without pass-headers");
    }
    let mut fields = Fields::default();
    add_headers(add.as_ref(), &mut fields, sources);
    for (list, set) in [
        (pass, Fields::pass_pattern as fn(&mut Fields, &str) -> _),
        (remove, Fields::remove_pattern),
    ] {
        let patterns = list.and_then(|list| list.texts(HEADERS_MAX));
        for (pattern, item) in patterns.unwrap_or_default() {
            if let Err(error) = set(&mut fields, pattern) {
                item.wrong(error);
            }
        }
    }
    let time = |value: Option<Value<'_>>, default| {
        let time = value.and_then(|value| value.parsed(values::duration));
        time.unwrap_or(default)
    };
    let ca =
        ca.and_then(|ca| existing_file(&ca, sources, |path| sources.machine.check_roots(path)));
    let connections = connections
        .and_then(|count| count.count(1..=values::CONNECTIONS_MAX))
        .unwrap_or(CONNECTIONS);
    let connect_timeout = time(connect, CONNECT_TIMEOUT);
    let idle_timeout = time(idle, IDLE_TIMEOUT);
    Some(ServerPlace::Http(HttpServer {
        address: address?,
        ca,
        fields,
        is_shared,
        connections_max: connections,
        connect_timeout,
        idle_timeout,
    }))
}

fn add_headers(table: Option<&Value<'_>>, fields: &mut Fields, sources: &Sources<'_>) {
    let Some((table, headers)) = table.and_then(|table| Some((table, table.entries()?))) else {
        return;
    };
    if headers.len() > HEADERS_MAX {
        table.wrong(format_args!("has more than {HEADERS_MAX} headers"));
        return;
    }
    let mut names = Vec::new();
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        if names.contains(&lower) {
            value.out_of_place("is there twice: names of headers have no capitals");
            continue;
        }
        names.push(lower);
        if let Some(text) = secret(&value, sources)
            && let Err(error) = fields.add(name, &text)
        {
            value.wrong(error);
        }
    }
}

fn read_aliases(value: &Value<'_>, places: &mut UpstreamPlaces) -> Option<Aliases> {
    let mut table = value.table(&KINDS)?;
    let mut aliases = Aliases::default();
    let at = &mut places.aliases;
    for (kind, key, list, places) in [
        (Kind::Tool, "tools", &mut aliases.tools, &mut at.tools),
        (
            Kind::Prompt,
            "prompts",
            &mut aliases.prompts,
            &mut at.prompts,
        ),
        (
            Kind::Resource,
            "resources",
            &mut aliases.resources,
            &mut at.resources,
        ),
    ] {
        let entries = table.take(key).and_then(|value| value.entries());
        for (public, entry) in entries.unwrap_or_default() {
            let Some(own) = entry.text() else { continue };
            if own.is_empty() {
                entry.wrong("the server's own name must not be empty");
            }
            match alias_fault(kind, public) {
                Some(fault) => entry.out_of_place(fault),
                None => {
                    list.push((public.to_owned(), own.to_owned()));
                    places.push(entry.key_at());
                }
            }
        }
    }
    table.finish();
    Some(aliases)
}

/// What is wrong with a public name, for the end of a sentence.
fn alias_fault(kind: Kind, public: &str) -> Option<&'static str> {
    if public.is_empty() {
        return Some("cannot be an alias: it is empty");
    }
    if public.chars().any(char::is_control) {
        return Some("cannot be an alias: it has a control character");
    }
    let is_uri = kind != Kind::Resource || has_scheme(public);
    (!is_uri).then_some("must be a URI: it begins with no scheme, like doc:")
}

/// RFC 3986, 3.1.
fn has_scheme(uri: &str) -> bool {
    uri.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}
