//! What is wrong with a configuration file, and where.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use crate::limits::CONFIG_PROBLEMS_MAX;

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
pub(super) struct Notes(RefCell<Gathered>);

/// Of each kind only so many are kept that a file of nothing but problems costs little.
#[derive(Debug, Default)]
struct Gathered {
    errors: Vec<(usize, String)>,
    warnings: Vec<(usize, String)>,
    has_more: bool,
}

impl Notes {
    pub(super) fn error(&self, at: usize, message: impl Into<String>) {
        let Gathered {
            errors, has_more, ..
        } = &mut *self.0.borrow_mut();
        push(errors, has_more, at, message.into());
    }

    pub(super) fn warning(&self, at: usize, message: impl Into<String>) {
        let Gathered {
            warnings, has_more, ..
        } = &mut *self.0.borrow_mut();
        push(warnings, has_more, at, message.into());
    }

    /// Whether further errors are only counted as more.
    pub(super) fn is_full(&self) -> bool {
        self.0.borrow().errors.len() >= CONFIG_PROBLEMS_MAX
    }

    /// The problems by their lines in `text`.
    pub(super) fn into_problems(self, text: &str) -> Problems {
        let gathered = self.0.into_inner();
        let of = |list: Vec<(usize, String)>, severity| {
            let list = list.into_iter();
            list.map(move |(at, message)| (at, severity, message))
        };
        let mut notes: Vec<_> = of(gathered.errors, Severity::Error)
            .chain(of(gathered.warnings, Severity::Warning))
            .collect();
        notes.sort_by_key(|(at, ..)| *at);
        if let (true, Some((at, severity, _))) = (gathered.has_more, notes.last()) {
            let message = "there are more problems than are shown".to_owned();
            notes.push((*at, *severity, message));
        }
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

fn push(list: &mut Vec<(usize, String)>, has_more: &mut bool, at: usize, message: String) {
    match list.len() < CONFIG_PROBLEMS_MAX {
        true => list.push((at, message)),
        false => *has_more = true,
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
