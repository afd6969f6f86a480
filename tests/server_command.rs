//! Where and with what environment a server's process runs. This is a program of its own (no test harness):
//! servers are started through a guard, which is the running program once more.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use clap::Parser;
use ringway::cli::{Cli, Command};
use ringway::upstream::child::{ServerCommand, StartError, start};
use ringway::upstream::guard;

fn main() {
    let is_guard = std::env::args().nth(1).as_deref() == Some(guard::SUBCOMMAND);
    if is_guard && let Command::UpstreamGuard(arguments) = Cli::parse().command {
        guard::run(arguments);
    }
    let place = std::env::temp_dir().join(format!("ringway-server-command-{}", std::process::id()));
    fs::create_dir_all(place.join("bin")).unwrap();
    let place = place.canonicalize().unwrap();
    for (name, case) in [
        (
            "server runs in its directory",
            runs_in_its_directory as fn(&Path),
        ),
        ("server runs where Ringway does", runs_where_ringway_does),
        (
            "relative program starts at the directory",
            relative_program_starts_at_the_directory,
        ),
        (
            "plain name is looked up in the server's PATH",
            plain_name_is_looked_up,
        ),
        (
            "environment is added and wins",
            environment_is_added_and_wins,
        ),
        (
            "settings of Ringway are never passed on",
            settings_are_never_passed_on,
        ),
        ("missing directory is named", missing_directory_is_named),
    ] {
        case(&place);
        println!("{name}: ok");
    }
    fs::remove_dir_all(place).unwrap();
}

fn shell(script: &str) -> ServerCommand {
    ServerCommand {
        label: "one".into(),
        program: "sh".into(),
        arguments: ["-c", script].map(OsString::from).to_vec(),
        ..ServerCommand::default()
    }
}

/// What the server writes to its stderr until it ends.
fn said(command: &ServerCommand) -> String {
    let started = start(command, 1_024).expect("it can be started");
    let mut text = String::new();
    let mut stderr = fs::File::from(started.stderr);
    stderr.read_to_string(&mut text).expect("it is text");
    started.end.wait();
    text
}

fn runs_in_its_directory(place: &Path) {
    let command = ServerCommand {
        working_directory: Some(place.into()),
        ..shell("pwd -P >&2")
    };
    assert_eq!(said(&command).trim_end(), place.to_str().unwrap());
}

fn runs_where_ringway_does(_: &Path) {
    let own = std::env::current_dir().unwrap().canonicalize().unwrap();
    assert_eq!(said(&shell("pwd -P >&2")).trim_end(), own.to_str().unwrap());
}

/// A script that says where it lies.
fn script(file: &Path) {
    fs::write(file, "#!/bin/sh\necho \"$0\" >&2\n").unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn relative_program_starts_at_the_directory(place: &Path) {
    script(&place.join("bin/server"));
    for program in ["bin/server", "./bin/server"] {
        let command = ServerCommand {
            program: program.into(),
            working_directory: Some(place.into()),
            ..ServerCommand::default()
        };
        assert_eq!(said(&command).trim_end(), program);
        let elsewhere = ServerCommand {
            working_directory: None,
            ..command
        };
        assert!(matches!(
            start(&elsewhere, 1_024),
            Err(StartError::Command { .. })
        ));
    }
}

fn plain_name_is_looked_up(place: &Path) {
    script(&place.join("bin/ringway-test-server"));
    let path = std::env::var("PATH").unwrap_or_default();
    for (added, is_found) in [("bin", true), ("nowhere", false)] {
        let command = ServerCommand {
            program: "ringway-test-server".into(),
            working_directory: Some(place.into()),
            environment: vec![("PATH".into(), format!("{added}:{path}").into())],
            ..ServerCommand::default()
        };
        match is_found {
            true => assert_eq!(said(&command).trim_end(), "bin/ringway-test-server"),
            false => assert!(matches!(
                start(&command, 1_024),
                Err(StartError::Command { .. })
            )),
        }
    }
}

fn environment_is_added_and_wins(_: &Path) {
    let command = ServerCommand {
        environment: vec![
            ("RINGS".into(), "a b=c".into()),
            ("HOME".into(), "/other".into()),
        ],
        ..shell("echo \"$RINGS|$HOME|${PATH:+path}\" >&2")
    };
    assert_eq!(said(&command).trim_end(), "a b=c|/other|path");
}

fn settings_are_never_passed_on(_: &Path) {
    let command = ServerCommand {
        environment: vec![("RINGWAY_AUTH_TOKEN_FILE".into(), "x".into())],
        ..shell("env | grep -c RINGWAY_ >&2")
    };
    assert_eq!(said(&command).trim_end(), "0");
}

fn missing_directory_is_named(place: &Path) {
    let missing = place.join("missing");
    let file = place.join("bin/server");
    for directory in [&missing, &file] {
        let command = ServerCommand {
            working_directory: Some(directory.clone()),
            ..shell("true")
        };
        let error = start(&command, 1_024).expect_err("there is no such directory");
        assert!(matches!(error, StartError::Directory { .. }), "{error}");
        let sentence = error.to_string();
        assert!(sentence.contains(directory.to_str().unwrap()), "{sentence}");
        assert!(sentence.contains("\"one\""), "{sentence}");
    }
}
