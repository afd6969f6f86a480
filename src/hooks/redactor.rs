//! Takes secrets out of what calls carry: whatever matches a pattern gives way to a fixed text.
//!
//! # What is searched
//!
//! Strings are matched as decoded, so a secret that is spelled with escapes is found. A string
//! that is itself the text of a JSON object or array is searched inside as well, as deep as
//! [`NESTED_MAX`] such texts in each other. Every other byte stays as it is: numbers, the order of members,
//! blanks, other escapes, other strings. Numbers are not searched.
//!
//! - **arguments**: `params.arguments` of `tools/call` and `prompts/get`, the names of members
//!   too. The other params stay, since calls are routed by them.
//! - **results**: the whole result of `tools/call` and `prompts/get`. Names of members are
//!   searched too, but for those that the protocol itself gives. Words of the protocol stay where
//!   it puts them (`"type": "text"`, `"role": "user"`, `"audience": ["user"]`), and so does the
//!   `taskId` of a task, which the client asks for it by. Within `structuredContent` and `_meta`
//!   all names and words are the server's own and are searched.
//! - **progress**: the `message`.
//!
//! # What is not
//!
//! - `data` and `blob` in results, if they are base64 of at least [`BASE64_BYTES_MIN`] bytes: text
//!   in there is not found, and a replacement would ruin the picture.
//! - A secret that is spread over several strings, or encoded in another way.
//! - Errors of servers, results of `resources/read`, and everything else that no hook is asked
//!   about.
//!
//! A `uri` in a result is searched; one that was changed cannot be read any more.

mod budget;
mod spelling;
mod walk;

use std::time::Duration;

use budget::Budget;
use regex::{Regex, RegexBuilder};

use super::{Hook, HookCall, Point, Points, Verdict};
use crate::wire::reply::INTERNAL_ERROR;
use walk::{Fault, Zone};

/// Longest pattern, bytes.
pub const PATTERN_BYTES_MAX: usize = 4 << 10;

/// Longest replacement, bytes.
pub const REPLACEMENT_BYTES_MAX: usize = 1 << 10;

/// Memory of a compiled pattern, bytes: it bounds what one step of a slow search costs.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Memory in which a fast search remembers its steps, bytes, a thread.
const SEARCH_CACHE_BYTES: usize = 4 << 20;

/// Texts of JSON in strings of each other that are searched inside.
pub const NESTED_MAX: usize = 4;

/// Shorter base64 is searched like all else: secrets are short, pictures are not.
pub const BASE64_BYTES_MIN: usize = 64;

/// What a text may grow by, bytes.
pub const GROWTH_BYTES_MAX: usize = 1 << 20;

/// What the search of one text may take of the thread's time. Finding all matches can cost a
/// pattern like `BEGIN.*END|KEY` the square of the text's length.
const SEARCH_CPU_MAX: Duration = Duration::from_millis(100);

/// Where a redactor looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    pub arguments: bool,
    pub results: bool,
    pub progress: bool,
}

/// A hook that replaces what matches a pattern.
#[derive(Debug)]
pub struct Redactor {
    name: String,
    places: Places,
    search: Search,
}

/// What is looked for and what takes its place.
#[derive(Debug)]
struct Search {
    pattern: Regex,
    /// As it stands between the quotes of a JSON string.
    spelled: String,
}

/// Why there can be no such redactor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedactorError {
    #[error("the pattern is longer than {PATTERN_BYTES_MAX} bytes")]
    PatternTooLong,
    #[error("the pattern cannot be read: {0}")]
    Pattern(String),
    #[error("the pattern needs too much memory; shorten it or its repetitions")]
    PatternTooLarge,
    #[error("the pattern matches the empty text, which is everywhere")]
    MatchesEmpty,
    #[error("the replacement is longer than {REPLACEMENT_BYTES_MAX} bytes")]
    ReplacementTooLong,
    #[error("the replacement matches the pattern itself")]
    ReplacementMatches,
}

impl Redactor {
    /// `pattern` in the syntax of the regex crate, which searches in linear time. `replacement`
    /// is taken as it is; `$1` means nothing in it.
    ///
    /// # Errors
    /// Where the pattern cannot be used, or not with this replacement.
    pub fn new(
        name: impl Into<String>,
        pattern: &str,
        replacement: &str,
        places: Places,
    ) -> Result<Redactor, RedactorError> {
        Ok(Redactor {
            name: name.into(),
            places,
            search: Search::new(pattern, replacement)?,
        })
    }

    fn redact(&self, text: &[u8], zone: Zone) -> Verdict {
        let text = std::str::from_utf8(text).map_err(|_| Fault::Malformed);
        let mut budget = Budget::new(SEARCH_CPU_MAX);
        match text.and_then(|text| walk::redacted(&self.search, text, zone, &mut budget)) {
            Ok(None) => Verdict::Pass,
            Ok(Some(text)) => Verdict::Rewrite(text.into_bytes()),
            Err(fault) => {
                tracing::warn!(hook = self.name, %fault, "a text could not be searched, it is denied");
                Verdict::deny(INTERNAL_ERROR, "The text could not be searched for secrets")
            }
        }
    }
}

impl Search {
    fn new(pattern: &str, replacement: &str) -> Result<Search, RedactorError> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(RedactorError::PatternTooLong);
        }
        if replacement.len() > REPLACEMENT_BYTES_MAX {
            return Err(RedactorError::ReplacementTooLong);
        }
        let read = regex_syntax::parse(pattern)
            .map_err(|error| RedactorError::Pattern(error.to_string()))?;
        if read.properties().minimum_len() == Some(0) {
            return Err(RedactorError::MatchesEmpty);
        }
        let pattern = RegexBuilder::new(pattern)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(SEARCH_CACHE_BYTES)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => RedactorError::PatternTooLarge,
                error => RedactorError::Pattern(error.to_string()),
            })?;
        if pattern.is_match(replacement) {
            return Err(RedactorError::ReplacementMatches);
        }
        Ok(Search {
            pattern,
            spelled: spelling::spelled(replacement),
        })
    }
}

impl Hook for Redactor {
    fn name(&self) -> &str {
        &self.name
    }

    fn points(&self) -> Points {
        let when = |is_asked: bool, points: &[Point]| {
            let points = points.iter().filter(|_| is_asked);
            points.fold(Points::NONE, |set, point| set.with(*point))
        };
        when(
            self.places.arguments,
            &[Point::BeforeToolCall, Point::BeforePrompt],
        )
        .and(when(
            self.places.results,
            &[Point::AfterToolCall, Point::AfterPrompt, Point::AfterRead],
        ))
        .and(when(self.places.progress, &[Point::Progress]))
    }

    /// It never waits, and it gives up where a text takes long.
    fn is_quick(&self) -> bool {
        true
    }

    fn before_tool_call(&self, _call: &mut HookCall<'_>, params: &[u8]) -> Verdict {
        self.redact(params, Zone::Params)
    }

    fn after_tool_call(&self, _call: &mut HookCall<'_>, result: &[u8]) -> Verdict {
        self.redact(result, Zone::Result)
    }

    fn before_prompt(&self, _call: &mut HookCall<'_>, params: &[u8]) -> Verdict {
        self.redact(params, Zone::Params)
    }

    fn after_prompt(&self, _call: &mut HookCall<'_>, result: &[u8]) -> Verdict {
        self.redact(result, Zone::Result)
    }

    fn progress(&self, _call: &mut HookCall<'_>, params: &[u8]) -> Verdict {
        self.redact(params, Zone::Progress)
    }
}

#[cfg(test)]
mod tests;
