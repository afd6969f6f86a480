//! The settings that hold for the whole process: those of the flags of `serve` but path, tokens and
//! server, checked against each other and the machine.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Args, Command, FromArgMatches};

use super::document::{Table, Value};
use super::problem::Notes;
use crate::cli::{LogFormat, LogLevel, ServeFlags};
use crate::http::ground::FaceConfig;
use crate::http::policy::Policy;
use crate::limits::FLAG_VALUES_MAX;
use crate::routing::shard::ShardLimits;
use crate::runtime::driver::{DriverChoice, RingFlags};

/// What holds for the whole process, validated.
#[derive(Clone, PartialEq, Debug)]
pub struct Process {
    pub listen: SocketAddr,
    /// The admin listener's address, and its Host check.
    pub admin: Option<(SocketAddr, Policy)>,
    pub shards: usize,
    /// The hub has a thread of its own.
    pub hub_is_own: bool,
    /// The core of each shard, then that of an own hub; `None`: not pinned.
    pub cores: Vec<Option<usize>>,
    pub driver: DriverChoice,
    pub ring_flags: RingFlags,
    /// The downstream face of a shard.
    pub face: FaceConfig,
    /// The shares of one shard. A route may have others ([`super::RouteLimits`]).
    pub limits: ShardLimits,
    /// Bytes of a line of a server at most.
    pub line_bytes_max: usize,
    /// For a server to answer the handshake, where its upstream says nothing else.
    pub start_timeout: Duration,
    pub drain_timeout: Duration,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
}

/// Flags that a route says for itself.
const OF_ROUTES: [&str; 2] = ["path", "auth-token-file"];

/// The flags of `serve` as keys: same names, same values, same defaults. Nothing of the
/// environment.
fn command() -> Command {
    let command = Command::new("file")
        .no_binary_name(true)
        .disable_help_flag(true);
    ServeFlags::augment_args(command).mut_args(|flag| flag.env(Resettable::Reset))
}

/// The keys of the process.
pub(super) fn process_keys() -> Vec<String> {
    let command = command();
    let flags = command.get_arguments().filter_map(Arg::get_long);
    let keys = flags.filter(|flag| !OF_ROUTES.contains(flag));
    keys.map(str::to_owned).collect()
}

/// The settings of the process as far as they could be read.
pub(super) struct ProcessFlags {
    pub(super) flags: ServeFlags,
    /// Where each setting stands that the file has.
    places: BTreeMap<String, usize>,
}

impl ProcessFlags {
    /// Takes all keys of the process.
    pub(super) fn read<'d>(root: &mut Table<'d>, keys: &'d [String]) -> ProcessFlags {
        let command = command();
        let mut places = BTreeMap::new();
        let mut arguments = Vec::new();
        for key in keys {
            let Some(value) = root.take(key) else {
                continue;
            };
            places.insert(key.clone(), value.at());
            let flag = command
                .get_arguments()
                .find(|flag| flag.get_long() == Some(key));
            let texts = flag.map(|flag| texts(&command, flag, &value));
            for (item, text) in texts.unwrap_or_default() {
                let argument = format!("--{key}={text}");
                match checked(&command, &argument) {
                    Ok(()) => arguments.push(argument),
                    Err(reason) => item.wrong(reason),
                }
            }
        }
        ProcessFlags {
            flags: flags(&command, arguments),
            places,
        }
    }

    /// Checks the settings against each other and the machine.
    pub(super) fn process(&self, needs_hub: bool, notes: &Notes) -> Option<Process> {
        match self.flags.process(needs_hub) {
            Ok(process) => Some(process),
            Err(errors) => {
                for error in errors {
                    let at = self.places.get(error.flag()).copied();
                    let sentence = error.to_string();
                    let sentence = sentence.strip_prefix("--").unwrap_or(&sentence);
                    notes.error(at.unwrap_or_default(), sentence);
                }
                None
            }
        }
    }
}

/// The values of a key as the flag would have them: several for a list.
fn texts<'d>(command: &Command, flag: &Arg, value: &Value<'d>) -> Vec<(Value<'d>, String)> {
    let is_number = flag.get_value_parser().type_id() == TypeId::of::<usize>();
    let names = flag.get_value_names().unwrap_or_default();
    let is_bytes = names.iter().any(|name| name.as_str() == "BYTES");
    if flag.get_value_delimiter().is_some() {
        let items = value.texts(FLAG_VALUES_MAX).unwrap_or_default().into_iter();
        let items = items.filter(|(text, item)| {
            // The flag would take it for two.
            let is_one = !text.contains(',');
            if !is_one {
                item.wrong("must not hold a comma: each has its own place in the list");
            }
            is_one
        });
        return items.map(|(text, item)| (item, text.to_owned())).collect();
    }
    let text = match is_number && (!is_bytes || value.is_number()) {
        true => value.count(0..=usize::MAX).map(|count| count.to_string()),
        false => value.parsed(|text| match value.is_text() {
            true => Ok(text.to_owned()),
            // Says what the flag expects.
            false => {
                let argument = format!("--{}={text}", flag.get_id().as_str().replace('_', "-"));
                checked(command, &argument).map(|()| String::new())
            }
        }),
    };
    text.map(|text| (value.clone(), text)).into_iter().collect()
}

/// Whether the flag takes the value, and why not.
fn checked(command: &Command, argument: &str) -> Result<(), String> {
    let matches = command.clone().try_get_matches_from([argument]);
    matches.map(|_| ()).map_err(|error| reason(&error))
}

/// Why a flag would refuse its value.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(words)) if !words.is_empty() => {
            format!("expected one of {}", words.join(", "))
        }
        _ => "cannot be used as a value".to_owned(),
    }
}

/// The flags from arguments that have been taken one by one.
fn flags(command: &Command, arguments: Vec<String>) -> ServeFlags {
    let read = |arguments: Vec<String>| {
        let matches = command.clone().try_get_matches_from(arguments)?;
        ServeFlags::from_arg_matches(&matches)
    };
    read(arguments)
        .or_else(|_| read(Vec::new()))
        .expect("no flag is required")
}
