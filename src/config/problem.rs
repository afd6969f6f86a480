//! What is wrong with a configuration file, and where.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

/// Whether a file with a problem can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    Error,
    /// It can be used, and does something that is likely not wanted.
    Warning,
}

/// One thing that is wrong. Never repeats a value that may be a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub severity: Severity,
    pub message: String,
}

/// All problems of one file, in the order of their places.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Whether the file cannot be used.
    pub fn has_errors(&self) -> bool {
        let mut all = self.0.iter();
        all.any(|problem| problem.severity == Severity::Error)
    }

    /// One line a problem: `FILE:LINE:COLUMN: error: MESSAGE`.
    pub fn shown(&self, file: &Path) -> String {
        let lines = self.0.iter().map(|problem| problem.shown(file));
        lines.collect()
    }
}

impl Problem {
    /// A line with its end.
    pub fn shown(&self, file: &Path) -> String {
        format!("{}:{self}\n", file.display())
    }
}

/// Without the file's name.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { line, column, .. } = self;
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        // A file may hold any character in its keys; a problem is one line of plain text.
        write!(f, "{line}:{column}: {severity}: ")?;
        for character in self.message.chars() {
            match character.is_control() {
                true => write!(f, "{}", character.escape_default())?,
                false => write!(f, "{character}")?,
            }
        }
        Ok(())
    }
}

/// Where problems are gathered while a file is read. Places are offsets in the text.
#[derive(Debug, Default)]
pub(super) struct Notes(RefCell<Vec<(usize, Severity, String)>>);

impl Notes {
    pub(super) fn error(&self, at: usize, message: impl Into<String>) {
        self.push(at, Severity::Error, message.into());
    }

    pub(super) fn warning(&self, at: usize, message: impl Into<String>) {
        self.push(at, Severity::Warning, message.into());
    }

    fn push(&self, at: usize, severity: Severity, message: String) {
        self.0.borrow_mut().push((at, severity, message));
    }

    /// The problems by their lines in `text`.
    pub(super) fn into_problems(self, text: &str) -> Problems {
        let mut notes = self.0.into_inner();
        notes.sort_by_key(|(at, ..)| *at);
        let mut place = Place::default();
        let problems = notes.into_iter().map(|(at, severity, message)| {
            place.go_to(text, at);
            Problem {
                line: place.line + 1,
                column: place.column + 1,
                severity,
                message,
            }
        });
        Problems(problems.collect())
    }
}

/// Goes over a text once, however many places are asked for.
#[derive(Default)]
struct Place {
    at: usize,
    line: usize,
    column: usize,
}

impl Place {
    fn go_to(&mut self, text: &str, at: usize) {
        let rest = text.get(self.at..).unwrap_or_default();
        for character in rest.chars() {
            if self.at >= at {
                return;
            }
            self.at += character.len_utf8();
            match character {
                '\n' => (self.line, self.column) = (self.line + 1, 0),
                _ => self.column += 1,
            }
        }
    }
}
