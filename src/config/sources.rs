//! What a configuration file names and does not hold: secrets in files and variables, and paths
//! that begin at the file's own directory.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Access;

use crate::hooks::Hook;
use crate::http::token_file;
use crate::upstream::http::tls;

/// What is outside of the text of the file.
pub struct Sources<'a> {
    /// The directory of the file.
    pub directory: PathBuf,
    pub machine: &'a dyn Machine,
    /// Those that the program has, which the file may name.
    pub hooks: &'a [Arc<dyn Hook>],
}

/// Where secrets come from, and what becomes of the files that are named.
pub trait Machine {
    /// A text file of at most `bytes_max` bytes.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<String>;
    /// What is at a path. An error too if this process may not read a file that is there.
    fn look(&self, path: &Path) -> io::Result<FileKind>;
    /// A variable of the environment. `None`: it is not set, or is not Unicode.
    fn variable(&self, name: &str) -> Option<String>;
    /// Says why a file of tokens cannot be used, without what stands in it.
    fn check_tokens(&self, path: &Path) -> Result<(), String>;
    /// Says why a file of root certificates cannot be used.
    fn check_roots(&self, path: &Path) -> Result<(), String>;
    /// Says why a server's program cannot be run.
    fn check_program(&self, program: &Program<'_>) -> Result<(), String>;
}

/// How a server's program is found.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    pub name: &'a OsStr,
    /// Where the server runs. `None`: where Ringway does.
    pub directory: Option<&'a Path>,
    /// The server's own `PATH`. `None`: it has Ringway's.
    pub path: Option<&'a OsStr>,
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

    fn check_tokens(&self, path: &Path) -> Result<(), String> {
        token_file::check(path).map_err(|fault| fault.to_string())
    }

    fn check_roots(&self, path: &Path) -> Result<(), String> {
        tls::check_file(path).map_err(|error| error.to_string())
    }

    fn check_program(&self, program: &Program<'_>) -> Result<(), String> {
        let own = std::env::var_os("PATH");
        program.find(own.as_deref())
    }
}

/// Where programs are looked for without a `PATH`.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

impl Program<'_> {
    /// Looks where a shell would that has gone to the directory.
    fn find(&self, own_path: Option<&OsStr>) -> Result<(), String> {
        let directory = self.directory.unwrap_or(Path::new(""));
        if self.name.as_bytes().contains(&b'/') {
            let place = directory.join(self.name);
            return can_run(&place).map_err(|error| format!("{}: {error}", place.display()));
        }
        let path = self.path.or(own_path).unwrap_or(PATH_DEFAULT.as_ref());
        let mut places = std::env::split_paths(path);
        match places.any(|place| can_run(&directory.join(place).join(self.name)).is_ok()) {
            true => Ok(()),
            false => Err(format!("{:?} is not found in PATH", self.name)),
        }
    }
}

fn can_run(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    rustix::fs::access(path, Access::EXEC_OK).map_err(io::Error::from)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A directory of this test with a program `run`, a file `read` that is none, and a
    /// directory `both`.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let name = format!("ringway-sources-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(path.join("bin/both")).unwrap();
            for (name, mode) in [("run", 0o755), ("read", 0o644)] {
                let file = path.join("bin").join(name);
                std::fs::write(&file, "").unwrap();
                std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            }
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn programs_are_found_as_a_shell_would() {
        let scratch = Scratch::new();
        let (top, bin) = (&scratch.0, scratch.0.join("bin"));
        let bin_text = bin.to_str().unwrap();
        let find = |name: &str, directory: Option<&Path>, path: Option<&str>, own: Option<&str>| {
            let program = Program {
                name: name.as_ref(),
                directory,
                path: path.map(OsStr::new),
            };
            program.find(own.map(OsStr::new))
        };
        let nowhere = Some("/nonexistent");
        // By name: the server's own PATH, else that of Ringway, else the default.
        assert_eq!(find("run", None, None, Some(bin_text)), Ok(()));
        assert_eq!(find("run", None, Some(bin_text), nowhere), Ok(()));
        assert!(find("run", None, nowhere, Some(bin_text)).is_err());
        assert_eq!(find("sh", None, None, None), Ok(()));
        // Relative entries begin at the directory.
        assert_eq!(
            find("run", Some(top), Some("/nonexistent:bin"), None),
            Ok(())
        );
        assert_eq!(find("run", Some(&bin), Some(""), None), Ok(()));
        assert!(find("run", Some(top), Some(""), None).is_err());
        // By path: PATH does not matter.
        assert_eq!(
            find(&format!("{bin_text}/run"), None, nowhere, None),
            Ok(())
        );
        assert_eq!(find("./run", Some(&bin), nowhere, None), Ok(()));
        assert!(find("./run", Some(top), Some(bin_text), None).is_err());
        for name in ["read", "both", "absent"] {
            assert_eq!(
                find(name, None, None, Some(bin_text)),
                Err(format!("{name:?} is not found in PATH"))
            );
            let told = find(&format!("bin/{name}"), Some(top), None, None).unwrap_err();
            assert!(told.starts_with(&format!("{bin_text}/{name}: ")), "{told}");
        }
    }
}
