//! What a configuration file names and does not hold: secrets in files and variables, and paths
//! that begin at the file's own directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What is outside of the text of the file.
pub struct Sources<'a> {
    /// The directory of the file.
    pub directory: PathBuf,
    pub machine: &'a dyn Machine,
}

/// Where secrets come from.
pub trait Machine {
    /// A text file of at most `bytes_max` bytes.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<String>;
    /// What is at a path. An error too if this process may not read a file that is there.
    fn look(&self, path: &Path) -> io::Result<FileKind>;
    /// A variable of the environment. `None`: it is not set, or is not Unicode.
    fn variable(&self, name: &str) -> Option<String>;
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A regular file.
    File,
    Directory,
    Other,
}

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<String> {
        let file = open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(bytes_max.saturating_add(1))
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(io::Error::other(format!(
                "it is larger than {bytes_max} bytes"
            )));
        }
        String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
    }

    fn look(&self, path: &Path) -> io::Result<FileKind> {
        let metadata = std::fs::metadata(path)?;
        match metadata.is_file() {
            true => open(path).map(|_| FileKind::File),
            false if metadata.is_dir() => Ok(FileKind::Directory),
            false => Ok(FileKind::Other),
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

/// A pipe that nobody writes to does not hold this up.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

impl Sources<'_> {
    /// A path of the file, from the file's directory if it is relative.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }
}
