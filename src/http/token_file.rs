//! The file of `--auth-token-file`: reading it, watching it from a thread of its own, and giving
//! what it says to the shards. The shards never wait for it and never write to what they share: each
//! keeps its own set and looks at a generation number. A file that cannot be used changes nothing.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::auth::{Tokens, TokensError, Unauthorized};
use crate::routing::session::TokenId;

/// Bytes of a token file at most.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Between two looks at the file. A change is read at the second look that finds it the same, so it
/// is in force after one second at most, and a file that is being written is left alone.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Why a token file cannot be used. Shows its path, never what stands in it.
#[derive(Debug, thiserror::Error)]
#[error("--auth-token-file {}: {fault}", .path.display())]
pub struct TokenFileError {
    pub path: PathBuf,
    pub fault: FileFault,
}

/// What is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// A directory, or a pipe, which cannot be read again.
    #[error("it is not a regular file")]
    NotRegular,
    #[error("it is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// It was written to while it was read.
    #[error("it is being written to")]
    Unsettled,
    #[error("{0}")]
    Tokens(#[from] TokensError),
}

/// What tells one state of the file from another. The path is followed through links, so that a
/// renamed link far up the path (as in a mounted ConfigMap) shows as another inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The state of the file at a look: there, or why not.
type Sight = Result<Stamp, io::ErrorKind>;

/// What a look at the file found.
#[derive(Debug)]
enum Look {
    /// Nothing new, or nothing that has settled.
    Same,
    /// Other tokens.
    Changed(Tokens),
    /// It has changed and cannot be used.
    Bad(TokenFileError),
}

/// The file, as it was last read.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    /// The state that was last dealt with, for good or bad.
    known: Sight,
    /// What the last look saw.
    seen: Sight,
}

impl TokenFile {
    /// Reads the file for the first time. A file that every user of the machine may read is worth a
    /// warning in the log.
    ///
    /// # Errors
    /// What is wrong with the file, by its path and line.
    pub fn open(path: &Path) -> Result<(TokenFile, Tokens), TokenFileError> {
        TokenFile::open_with(path, Tokens::read)
    }

    /// The same where other tokens were in force before: names that were among them keep their
    /// ids, and no id of theirs becomes that of another name.
    ///
    /// # Errors
    /// As [`TokenFile::open`].
    pub fn open_after(path: &Path, before: &Tokens) -> Result<(TokenFile, Tokens), TokenFileError> {
        TokenFile::open_with(path, |text| before.reread(text))
    }

    fn open_with(
        path: &Path,
        tokens: impl FnOnce(&[u8]) -> Result<Tokens, TokensError>,
    ) -> Result<(TokenFile, Tokens), TokenFileError> {
        let read = read(path).and_then(|(stamp, mode, text)| {
            let tokens = tokens(&text)?;
            Ok((stamp, mode, tokens))
        });
        let (stamp, mode, tokens) = read.map_err(|fault| TokenFileError {
            path: path.to_owned(),
            fault,
        })?;
        if mode & 0o004 != 0 {
            tracing::warn!(
                path = %path.display(),
                "every user of this machine can read the token file: chmod it to 0600"
            );
        }
        let file = TokenFile {
            path: path.to_owned(),
            known: Ok(stamp),
            seen: Ok(stamp),
        };
        Ok((file, tokens))
    }

    /// Watches the file until nobody holds `cell` any more.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn watch(self, cell: &Arc<TokenCell>) -> io::Result<JoinHandle<()>> {
        self.watch_while(cell, &cell.wanted)
    }

    /// The same, and only while somebody besides holds `wanted`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn watch_while(
        mut self,
        cell: &Arc<TokenCell>,
        wanted: &Arc<()>,
    ) -> io::Result<JoinHandle<()>> {
        let cell = Arc::downgrade(cell);
        let wanted = Arc::downgrade(wanted);
        std::thread::Builder::new()
            .name("ringway-tokens".into())
            .spawn(move || {
                loop {
                    std::thread::sleep(LOOK_EVERY);
                    let Some(cell) = Weak::upgrade(&cell).filter(|_| is_held(&wanted)) else {
                        return;
                    };
                    self.look_and_publish(&cell, &wanted);
                }
            })
    }

    fn look_and_publish(&mut self, cell: &TokenCell, wanted: &Weak<()>) {
        let before = cell.current();
        match self.look(&before) {
            Look::Same => {}
            Look::Changed(tokens) => {
                tracing::info!(
                    path = %self.path.display(),
                    tokens = tokens.len(),
                    removed = tokens.removed_since(&before).len(),
                    "the token file has changed and is in force"
                );
                cell.publish_while(wanted, tokens);
            }
            Look::Bad(error) => {
                let error = error.to_string();
                let error = error.strip_prefix("--").unwrap_or(&error);
                tracing::error!(
                    error,
                    "the token file has changed and cannot be used; the tokens before stay in force"
                );
            }
        }
    }

    /// Looks once.
    fn look(&mut self, before: &Tokens) -> Look {
        let now = std::fs::metadata(&self.path)
            .map(|metadata| Stamp::of(&metadata))
            .map_err(|error| error.kind());
        let has_settled = std::mem::replace(&mut self.seen, now) == now;
        if now == self.known || !has_settled {
            return Look::Same;
        }
        let fault = match read(&self.path) {
            // Replaced since: the next looks see that.
            Ok((stamp, ..)) if Ok(stamp) != now => return Look::Same,
            Ok((stamp, _, text)) => {
                self.known = Ok(stamp);
                match before.reread(&text) {
                    Ok(tokens) if tokens.is_same(before) => return Look::Same,
                    Ok(tokens) => return Look::Changed(tokens),
                    Err(error) => error.into(),
                }
            }
            Err(FileFault::Unsettled) => return Look::Same,
            // It may be for want of a descriptor: then the change is not lost, but read later. It
            // is told only once.
            Err(fault @ FileFault::Read(_)) if now.is_ok() => return self.unread(fault),
            Err(fault) => {
                self.known = now;
                fault
            }
        };
        self.bad(fault)
    }

    /// The file is there and cannot be opened or read.
    fn unread(&mut self, fault: FileFault) -> Look {
        let FileFault::Read(error) = &fault else {
            return self.bad(fault);
        };
        let told = Err(error.kind());
        if std::mem::replace(&mut self.known, told) == told {
            return Look::Same;
        }
        self.bad(fault)
    }

    fn bad(&self, fault: FileFault) -> Look {
        Look::Bad(TokenFileError {
            path: self.path.clone(),
            fault,
        })
    }
}

/// Whether the file could be used now.
///
/// # Errors
/// What [`TokenFile::open`] would say is wrong with it.
pub fn check(path: &Path) -> Result<(), FileFault> {
    let (_, _, text) = read(path)?;
    Tokens::read(&text)?;
    Ok(())
}

/// The file's state, its mode, and its text.
fn read(path: &Path) -> Result<(Stamp, u32, Vec<u8>), FileFault> {
    // Opening a pipe would wait for its writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(FileFault::NotRegular);
    }
    if metadata.size() > FILE_BYTES_MAX {
        return Err(FileFault::TooLarge);
    }
    let text = read_bounded(&file)?;
    let stamp = Stamp::of(&metadata);
    match Stamp::of(&file.metadata()?) == stamp {
        true => Ok((stamp, metadata.mode(), text)),
        false => Err(FileFault::Unsettled),
    }
}

fn read_bounded(file: &File) -> Result<Vec<u8>, FileFault> {
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(FileFault::TooLarge),
        false => Ok(text),
    }
}

fn is_held(wanted: &Weak<()>) -> bool {
    wanted.strong_count() > 0
}

/// The tokens in force, as the watching thread gives them to the shards.
#[derive(Debug)]
pub struct TokenCell {
    /// Counts the sets. Written under the lock only.
    generation: AtomicU64,
    current: Mutex<Arc<Tokens>>,
    /// Held for as long as this is.
    wanted: Arc<()>,
}

impl TokenCell {
    pub fn new(tokens: Tokens) -> Arc<TokenCell> {
        Arc::new(TokenCell {
            generation: AtomicU64::new(0),
            current: Mutex::new(Arc::new(tokens)),
            wanted: Arc::default(),
        })
    }

    /// Puts other tokens in force.
    pub fn publish(&self, tokens: Tokens) {
        self.publish_while(&Arc::downgrade(&self.wanted), tokens);
    }

    /// The same, unless nobody holds `wanted` any more: who let go of it and then published is
    /// not overtaken.
    fn publish_while(&self, wanted: &Weak<()>, tokens: Tokens) {
        let mut current = self.lock();
        if !is_held(wanted) {
            return;
        }
        *current = Arc::new(tokens);
        // Under the lock: who sees the number and then takes the lock finds this set or a later one.
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// The tokens in force.
    pub fn current(&self) -> Arc<Tokens> {
        self.lock().clone()
    }

    /// The view of one shard.
    pub fn reader(self: &Arc<TokenCell>) -> TokenReader {
        let current = self.lock();
        TokenReader {
            cell: self.clone(),
            generation: Cell::new(self.generation.load(Ordering::Relaxed)),
            tokens: RefCell::new(current.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Tokens>> {
        // A set is replaced whole: there is no half-made state that a panic could leave.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One shard's own set of tokens.
#[derive(Debug)]
pub struct TokenReader {
    cell: Arc<TokenCell>,
    generation: Cell<u64>,
    tokens: RefCell<Arc<Tokens>>,
}

impl TokenReader {
    /// Takes over the tokens in force, if they are others than before. Returns the ids that are gone:
    /// their sessions must end. Costs one load when nothing has changed.
    #[must_use = "the sessions of the tokens that are gone must end"]
    pub fn refresh(&self) -> Vec<TokenId> {
        if self.cell.generation.load(Ordering::Relaxed) == self.generation.get() {
            return Vec::new();
        }
        let current = self.cell.lock();
        self.generation
            .set(self.cell.generation.load(Ordering::Relaxed));
        let tokens = current.clone();
        drop(current);
        let before = self.tokens.replace(tokens);
        self.tokens.borrow().removed_since(&before)
    }

    /// The name of a token in force.
    pub fn name(&self, id: TokenId) -> Option<Arc<str>> {
        self.tokens.borrow().name(id).map(Arc::from)
    }

    /// Whose token an `Authorization` field carries, by the shard's own set.
    ///
    /// # Errors
    /// [`Unauthorized`], to be answered with 401.
    pub fn check(&self, authorization: Option<&[u8]>) -> Result<TokenId, Unauthorized> {
        self.tokens.borrow().check(authorization)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    const ALICE: &str = "alice alice-0123456789\n";
    const BOTH: &str = "alice alice-0123456789\nbob bob-0123456789abc\n";

    /// A directory of one test, removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let serial = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("ringway-tokens-{}-{serial}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn file(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn whose(tokens: &Tokens, token: &str) -> Option<TokenId> {
        tokens
            .check(Some(format!("Bearer {token}").as_bytes()))
            .ok()
    }

    /// Looks until the file has settled.
    fn settle(file: &mut TokenFile, before: &Tokens) -> Look {
        assert!(matches!(file.look(before), Look::Same));
        file.look(before)
    }

    #[test]
    fn a_change_is_read_once_it_has_settled_and_only_once() {
        let scratch = Scratch::new();
        let path = scratch.file("t", ALICE);
        let (mut file, first) = TokenFile::open(&path).unwrap();
        assert!(matches!(settle(&mut file, &first), Look::Same));
        std::fs::write(&path, BOTH).unwrap();
        let Look::Changed(second) = settle(&mut file, &first) else {
            panic!("the change was not read");
        };
        assert!(whose(&second, "bob-0123456789abc").is_some());
        assert_eq!(
            whose(&first, "alice-0123456789"),
            whose(&second, "alice-0123456789")
        );
        assert!(matches!(settle(&mut file, &second), Look::Same));
    }

    #[test]
    fn a_file_that_is_being_written_is_left_alone() {
        let scratch = Scratch::new();
        let path = scratch.file("t", ALICE);
        let (mut file, first) = TokenFile::open(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(matches!(file.look(&first), Look::Same));
        std::fs::write(&path, "alice alice-0123456789\nbob bob-0123").unwrap();
        assert!(matches!(file.look(&first), Look::Same));
        std::fs::write(&path, BOTH).unwrap();
        assert!(matches!(file.look(&first), Look::Same));
        assert!(matches!(file.look(&first), Look::Changed(_)));
    }

    #[test]
    fn a_bad_change_is_told_once_and_a_good_one_after_it_is_taken() {
        let scratch = Scratch::new();
        let path = scratch.file("t", ALICE);
        let (mut file, first) = TokenFile::open(&path).unwrap();
        for bad in ["alice secret\n", "", "# nobody\n"] {
            std::fs::write(&path, bad).unwrap();
            let Look::Bad(error) = settle(&mut file, &first) else {
                panic!("{bad:?} was taken");
            };
            let text = format!("{error} {error:?}");
            assert!(text.contains(path.to_str().unwrap()), "{text}");
            assert!(!text.contains("secret"), "{text}");
            assert!(matches!(settle(&mut file, &first), Look::Same));
        }
        std::fs::write(&path, BOTH).unwrap();
        assert!(matches!(settle(&mut file, &first), Look::Changed(_)));
    }

    #[test]
    fn a_file_that_is_gone_is_told_once_and_may_come_back() {
        let scratch = Scratch::new();
        let path = scratch.file("t", ALICE);
        let (mut file, first) = TokenFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(settle(&mut file, &first), Look::Bad(_)));
        assert!(matches!(settle(&mut file, &first), Look::Same));
        std::fs::write(&path, ALICE).unwrap();
        assert!(matches!(settle(&mut file, &first), Look::Same));
        std::fs::write(&path, BOTH).unwrap();
        assert!(matches!(settle(&mut file, &first), Look::Changed(_)));
    }

    #[test]
    fn a_rename_and_a_moved_link_are_changes() {
        let scratch = Scratch::new();
        let path = scratch.file("t", ALICE);
        let (mut file, first) = TokenFile::open(&path).unwrap();
        std::fs::rename(scratch.file("new", BOTH), &path).unwrap();
        let Look::Changed(second) = settle(&mut file, &first) else {
            panic!("the rename was not seen");
        };
        assert_eq!(second.len(), 2);

        // As a ConfigMap is mounted: file -> ..data/file, ..data -> a directory of the day.
        for (day, text) in [("monday", ALICE), ("tuesday", BOTH)] {
            std::fs::create_dir(scratch.0.join(day)).unwrap();
            scratch.file(&format!("{day}/tokens"), text);
        }
        let (data, link) = (scratch.0.join("..data"), scratch.0.join("tokens"));
        symlink("monday", &data).unwrap();
        symlink("..data/tokens", &link).unwrap();
        let (mut file, first) = TokenFile::open(&link).unwrap();
        assert_eq!(first.len(), 1);
        symlink("tuesday", scratch.0.join("..new")).unwrap();
        std::fs::rename(scratch.0.join("..new"), &data).unwrap();
        assert!(matches!(settle(&mut file, &first), Look::Changed(_)));
    }

    #[test]
    fn a_token_of_the_same_length_in_place_is_a_change() {
        let scratch = Scratch::new();
        let path = scratch.file("t", ALICE);
        let (mut file, first) = TokenFile::open(&path).unwrap();
        // The clock of the file system ticks every few milliseconds.
        let before = std::fs::metadata(&path).unwrap();
        while Stamp::of(&std::fs::metadata(&path).unwrap()) == Stamp::of(&before) {
            std::fs::write(&path, ALICE.replace('9', "8")).unwrap();
        }
        assert!(matches!(settle(&mut file, &first), Look::Changed(_)));
    }

    #[test]
    fn what_is_no_file_of_tokens_is_refused_at_once() {
        let scratch = Scratch::new();
        let fault = |path: &Path| TokenFile::open(path).unwrap_err();
        assert!(matches!(fault(&scratch.0).fault, FileFault::NotRegular));
        let pipe = scratch.0.join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(matches!(fault(&pipe).fault, FileFault::NotRegular));
        let nothing = scratch.0.join("nothing");
        let error = fault(&nothing);
        assert!(matches!(error.fault, FileFault::Read(_)));
        assert!(error.to_string().contains(nothing.to_str().unwrap()));
        let large = "# x\n".repeat(FILE_BYTES_MAX as usize / 4) + "\n";
        let large = scratch.file("large", &large);
        assert!(matches!(fault(&large).fault, FileFault::TooLarge));
        let bad = scratch.file("bad", "# x\n\nalice short\n");
        let text = fault(&bad).to_string();
        assert!(text.contains("bad: line 3: "), "{text}");
        assert!(!text.contains("short"), "{text}");
    }

    #[test]
    fn a_change_of_mode_changes_no_tokens() {
        let scratch = Scratch::new();
        let path = scratch.file("t", ALICE);
        let (mut file, first) = TokenFile::open(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(settle(&mut file, &first), Look::Same));
    }

    #[test]
    fn a_shard_sees_the_new_set_and_hears_who_is_gone_once() {
        let first = Tokens::read(BOTH.as_bytes()).unwrap();
        let bob = whose(&first, "bob-0123456789abc").unwrap();
        let second = first.reread(ALICE.as_bytes()).unwrap();
        let third = second.reread(BOTH.as_bytes()).unwrap();
        let cell = TokenCell::new(first);
        let (awake, asleep) = (cell.reader(), cell.reader());
        assert!(awake.refresh().is_empty());
        cell.publish(second);
        let bobs = Some(&b"Bearer bob-0123456789abc"[..]);
        assert_eq!(awake.check(bobs), Ok(bob));
        assert_eq!(awake.refresh(), [bob]);
        assert_eq!(awake.check(bobs), Err(Unauthorized::Invalid));
        assert!(awake.refresh().is_empty());
        cell.publish(third);
        assert!(awake.refresh().is_empty());
        // One that missed a set in between ends the same sessions.
        assert_eq!(asleep.refresh(), [bob]);
        assert!(asleep.check(bobs).is_ok_and(|id| id != bob));
    }

    #[test]
    fn the_watching_thread_publishes_and_ends_with_its_cell() {
        let scratch = Scratch::new();
        let path = scratch.file("t", ALICE);
        let (file, tokens) = TokenFile::open(&path).unwrap();
        let cell = TokenCell::new(tokens);
        let reader = cell.reader();
        let thread = file.watch(&cell).unwrap();
        std::fs::write(&path, BOTH).unwrap();
        let start = Instant::now();
        while reader.check(Some(b"Bearer bob-0123456789abc")).is_err() {
            assert!(reader.refresh().is_empty());
            assert!(start.elapsed() < Duration::from_secs(30), "never published");
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("in force after {:?}", start.elapsed());
        drop((cell, reader));
        thread.join().unwrap();
    }
}
