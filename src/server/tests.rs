//! Configuration files for the tests of this module.

use std::path::PathBuf;

use crate::config::{File, Sources, ThisMachine, parse};

/// What a text says.
pub(super) fn file(text: &str) -> File {
    let sources = Sources {
        directory: PathBuf::from("/"),
        machine: &ThisMachine,
        hooks: &[],
    };
    match parse(text, &sources) {
        Ok(loaded) => loaded.file,
        Err(problems) => panic!("{}\n{text}", problems.shown("file".as_ref())),
    }
}
