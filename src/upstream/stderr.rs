//! The server's stderr goes to the log, line by line: bounded in length,
//! control characters escaped, so many lines a second and no more. It runs on a
//! thread of its own and ends when the last writer has closed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::limits::{STDERR_LINE_BYTES, STDERR_LINES_PER_SECOND};

/// Starts the relay. What it returns is closed when the relay has ended. `span` is around what
/// it logs.
pub fn relay(stderr: OwnedFd, span: tracing::Span) -> std::io::Result<Receiver<()>> {
    let (alive, ended) = channel();
    std::thread::Builder::new()
        .name("ringway-stderr".into())
        .spawn(move || {
            let _alive: Sender<()> = alive;
            span.in_scope(|| read_lines(BufReader::new(File::from(stderr))));
        })?;
    Ok(ended)
}

fn read_lines(mut reader: impl BufRead) {
    let mut line = Vec::new();
    let mut rate = Rate::new(Instant::now());
    loop {
        line.clear();
        let mut bounded = (&mut reader).take(STDERR_LINE_BYTES as u64);
        match bounded.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let cut = line.last() != Some(&b'\n') && line.len() == STDERR_LINE_BYTES;
        if cut && reader.skip_until(b'\n').is_err() {
            return;
        }
        let (allowed, skipped) = rate.next(Instant::now());
        if skipped > 0 {
            tracing::warn!(target: "upstream", skipped, "lines of the server's stderr were left out");
        }
        if allowed {
            tracing::info!(target: "upstream", cut, "{}", printable(&line));
        }
    }
}

/// So many lines a second.
struct Rate {
    window: Instant,
    lines: u32,
    skipped: u64,
}

impl Rate {
    fn new(now: Instant) -> Rate {
        Rate {
            window: now,
            lines: 0,
            skipped: 0,
        }
    }

    /// Whether this line may be logged, and how many were skipped in the
    /// second before, told once.
    fn next(&mut self, now: Instant) -> (bool, u64) {
        let mut told = 0;
        if now.duration_since(self.window) >= Duration::from_secs(1) {
            self.window = now;
            self.lines = 0;
            told = std::mem::take(&mut self.skipped);
        }
        self.lines += 1;
        let allowed = self.lines <= STDERR_LINES_PER_SECOND;
        if !allowed {
            self.skipped += 1;
        }
        (allowed, told)
    }
}

/// Text from a server for a log line: at most 1 KiB, without its newline,
/// control characters escaped.
pub fn printable(line: &[u8]) -> String {
    let line = &line[..line.len().min(STDERR_LINE_BYTES)];
    let text = String::from_utf8_lossy(line);
    let mut out = String::with_capacity(text.len());
    for character in text.trim_end_matches(['\r', '\n']).chars() {
        match character {
            '\t' => out.push('\t'),
            // Also the ones that turn text around on a terminal.
            c if c.is_control()
                || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}') =>
            {
                out.extend(c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_log() {
        assert_eq!(printable(b"a\x1b[31mb\r\n"), "a\\u{1b}[31mb");
        assert_eq!(printable("x\u{202e}y".as_bytes()), "x\\u{202e}y");
        assert_eq!(printable(b"\xff"), "\u{fffd}");
    }

    #[test]
    fn a_long_line_is_cut() {
        assert_eq!(printable(&[b'a'; 5_000]).len(), STDERR_LINE_BYTES);
    }

    #[test]
    fn a_flood_is_counted_and_told_once() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let mut allowed = 0;
        for _ in 0..STDERR_LINES_PER_SECOND + 7 {
            allowed += u32::from(rate.next(start).0);
        }
        assert_eq!(allowed, STDERR_LINES_PER_SECOND);
        let later = start + Duration::from_secs(2);
        assert_eq!(rate.next(later), (true, 7));
        assert_eq!(rate.next(later), (true, 0));
    }
}
