//! One pass over a JSON text that replaces what matches in its strings. It follows the form of
//! the text without judging numbers and literals, and never recurses but into texts within
//! strings, whose number is bounded.

use std::ops::Range;

use super::budget::Budget;
use super::spelling::{Places, closing_quote, meant, spelled};
use super::{BASE64_BYTES_MIN, GROWTH_BYTES_MAX, NESTED_MAX, Search};
use crate::wire::depth::DEPTH_MAX;

/// Times that a string is searched again after something in it was replaced. Where a replacement
/// has brought about another match each time, it takes the place of the whole string.
const PASSES_MAX: usize = 8;

/// Why a text cannot be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("it is not JSON")]
    Malformed,
    #[error("it would grow too much")]
    TooLarge,
    #[error("it would take too long")]
    TooSlow,
}

/// What an object is, and so which of its members are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zone {
    /// All names and strings are searched.
    Free,
    /// Nothing is.
    Kept,
    /// The params of a call.
    Params,
    /// The params of a progress message.
    Progress,
    /// The result of a call.
    Result,
    /// Something inside of it, in the protocol's own form.
    Inner,
    /// Its `_meta`.
    Meta,
    /// A task, or what relates to one.
    Task,
}

/// A string that stays as it is although strings of its zone are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Never,
    Always,
    Type,
    Role,
    Audience,
    Base64,
}

/// How a member, or an element, is treated.
#[derive(Clone, Copy)]
struct Treatment {
    zone: Zone,
    kept: Kept,
}

#[derive(Clone, Copy)]
struct Frame {
    is_object: bool,
    /// Of an array: that of its elements. Of an object only the zone counts.
    treatment: Treatment,
}

struct Walk<'a> {
    search: &'a Search,
    budget: &'a mut Budget,
    nested: usize,
    text: &'a str,
    at: usize,
    out: String,
    /// What comes before is in `out`, if anything was replaced.
    copied: usize,
}

/// `text`, a whole value of the given zone, with all that matches replaced. `None`: nothing does.
pub(super) fn redacted(
    search: &Search,
    text: &str,
    zone: Zone,
    budget: &mut Budget,
) -> Result<Option<String>, Fault> {
    redacted_nested(search, text, zone, 0, budget)
}

fn redacted_nested(
    search: &Search,
    text: &str,
    zone: Zone,
    nested: usize,
    budget: &mut Budget,
) -> Result<Option<String>, Fault> {
    let mut walk = Walk {
        search,
        budget,
        nested,
        text,
        at: 0,
        out: String::new(),
        copied: 0,
    };
    walk.value(zone)?;
    walk.finish()
}

// === impl Walk ===

impl Walk<'_> {
    fn value(&mut self, zone: Zone) -> Result<(), Fault> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut next = Treatment {
            zone,
            kept: Kept::Never,
        };
        loop {
            let mut is_over = true;
            match self.solid()? {
                open @ (b'{' | b'[') => {
                    if frames.len() >= DEPTH_MAX {
                        return Err(Fault::Malformed);
                    }
                    self.at += 1;
                    let frame = Frame {
                        is_object: open == b'{',
                        treatment: next.of_elements(),
                    };
                    frames.push(frame);
                    if !matches!(self.solid()?, b'}' | b']') {
                        next = self.treatment_of_next(frame)?;
                        is_over = false;
                    }
                }
                b'"' => self.string(next)?,
                _ => self.scalar()?,
            }
            while is_over {
                let Some(frame) = frames.last().copied() else {
                    return self.end();
                };
                match (self.solid()?, frame.is_object) {
                    (b',', _) => {
                        self.at += 1;
                        next = self.treatment_of_next(frame)?;
                        is_over = false;
                    }
                    (b'}', true) | (b']', false) => {
                        self.at += 1;
                        frames.pop();
                    }
                    _ => return Err(Fault::Malformed),
                }
            }
        }
    }

    /// How the next thing in `frame` is treated; in an object after its name is read.
    fn treatment_of_next(&mut self, frame: Frame) -> Result<Treatment, Fault> {
        if !frame.is_object {
            return Ok(frame.treatment);
        }
        let range = self.string_range()?;
        let raw = self.slice(range.clone())?;
        let name = meant(raw).ok_or(Fault::Malformed)?;
        let (is_searched, treatment) = member(frame.treatment.zone, &name);
        if is_searched {
            self.redact(range)?;
        }
        if self.solid()? != b':' {
            return Err(Fault::Malformed);
        }
        self.at += 1;
        Ok(treatment)
    }

    fn string(&mut self, treatment: Treatment) -> Result<(), Fault> {
        let range = self.string_range()?;
        let raw = self.slice(range.clone())?;
        let text = meant(raw).ok_or(Fault::Malformed)?;
        if treatment.zone == Zone::Kept || treatment.kept.covers(&text) {
            return Ok(());
        }
        self.redact(range)
    }

    /// Steps over a number or a literal.
    fn scalar(&mut self) -> Result<(), Fault> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let is_in = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let len = rest.iter().take_while(is_in).count();
        self.at += len;
        if len == 0 {
            return Err(Fault::Malformed);
        }
        Ok(())
    }

    /// The content of the string that begins here, and goes behind it.
    fn string_range(&mut self) -> Result<Range<usize>, Fault> {
        if self.solid()? != b'"' {
            return Err(Fault::Malformed);
        }
        let start = self.at + 1;
        let end = closing_quote(self.text.as_bytes(), start).ok_or(Fault::Malformed)?;
        self.at = end + 1;
        Ok(start..end)
    }

    fn redact(&mut self, range: Range<usize>) -> Result<(), Fault> {
        let raw = self.slice(range.clone())?;
        let string = redacted_string(self.search, raw, self.nested, self.budget)?;
        let Some(string) = string else {
            return Ok(());
        };
        let before = self.slice(self.copied..range.start)?;
        self.out.push_str(before);
        self.out.push_str(&string);
        self.copied = range.end;
        if self.out.len() > range.end.saturating_add(GROWTH_BYTES_MAX) {
            return Err(Fault::TooLarge);
        }
        Ok(())
    }

    /// The next byte that is no blank, and goes to it.
    fn solid(&mut self) -> Result<u8, Fault> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let blanks = rest.iter().take_while(is_blank).count();
        self.at += blanks;
        rest.get(blanks).copied().ok_or(Fault::Malformed)
    }

    fn end(&mut self) -> Result<(), Fault> {
        match self.solid() {
            Ok(_) => Err(Fault::Malformed),
            Err(_) => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Option<String>, Fault> {
        if self.copied == 0 {
            return Ok(None);
        }
        let rest = self.slice(self.copied..self.text.len())?;
        self.out.push_str(rest);
        Ok(Some(self.out))
    }
}

impl<'a> Walk<'a> {
    fn slice(&self, range: Range<usize>) -> Result<&'a str, Fault> {
        self.text.get(range).ok_or(Fault::Malformed)
    }
}

// === strings ===

/// The content of a string with all that matches replaced. `None`: nothing does.
fn redacted_string(
    search: &Search,
    raw: &str,
    nested: usize,
    budget: &mut Budget,
) -> Result<Option<String>, Fault> {
    let bytes_max = raw.len().saturating_add(GROWTH_BYTES_MAX);
    let mut changed: Option<String> = None;
    for _ in 0..PASSES_MAX {
        let raw = changed.as_deref().unwrap_or(raw);
        let text = meant(raw).ok_or(Fault::Malformed)?;
        budget.charge(text.len())?;
        let next = match redacted_inside(search, &text, nested, budget)? {
            Some(next) => Some(next),
            None => replaced(search, raw, &text, bytes_max, budget)?,
        };
        match next {
            None => return Ok(changed),
            Some(next) if next.len() > bytes_max => return Err(Fault::TooLarge),
            Some(next) => changed = Some(next),
        }
    }
    Ok(Some(search.spelled.clone()))
}

/// The same of a string that is itself the text of an object, an array or a string, by what is
/// inside of it.
fn redacted_inside(
    search: &Search,
    text: &str,
    nested: usize,
    budget: &mut Budget,
) -> Result<Option<String>, Fault> {
    let begins_like_json = text.trim_ascii_start().starts_with(['{', '[', '"']);
    if !begins_like_json || nested >= NESTED_MAX {
        return Ok(None);
    }
    match redacted_nested(search, text, Zone::Free, nested + 1, budget) {
        Ok(inside) => Ok(inside.map(|text| spelled(&text))),
        // Just a text.
        Err(Fault::Malformed) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// `raw`, which means `text`, with each match in `text` replaced where it is spelled.
fn replaced(
    search: &Search,
    raw: &str,
    text: &str,
    bytes_max: usize,
    budget: &mut Budget,
) -> Result<Option<String>, Fault> {
    let mut out = String::new();
    let mut places = Places::new(raw);
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = search.pattern.find_at(text, at) {
        let start = places.of(found.start()).ok_or(Fault::Malformed)?;
        let end = places.of(found.end()).ok_or(Fault::Malformed)?;
        out.push_str(raw.get(copied..start).ok_or(Fault::Malformed)?);
        out.push_str(&search.spelled);
        if out.len() > bytes_max {
            return Err(Fault::TooLarge);
        }
        (copied, at) = (end, found.end());
        // A search may look at all that is left, however short the match.
        budget.charge(text.len() - at)?;
    }
    if at == 0 {
        return Ok(None);
    }
    out.push_str(raw.get(copied..).ok_or(Fault::Malformed)?);
    Ok(Some(out))
}

// === what is searched ===

/// Whether the name itself is searched, and how the member's value is treated.
fn member(zone: Zone, name: &str) -> (bool, Treatment) {
    let searched = |zone| (true, Treatment::of(zone));
    let fixed = |zone| (false, Treatment::of(zone));
    let keeping = |kept| {
        let zone = Zone::Inner;
        (false, Treatment { zone, kept })
    };
    match zone {
        Zone::Free => searched(Zone::Free),
        Zone::Kept => fixed(Zone::Kept),
        Zone::Params if folds_to(name, "arguments") => fixed(Zone::Free),
        Zone::Progress if folds_to(name, "message") => fixed(Zone::Free),
        Zone::Params | Zone::Progress => fixed(Zone::Kept),
        Zone::Meta if name == "io.modelcontextprotocol/related-task" => fixed(Zone::Task),
        Zone::Meta => searched(Zone::Free),
        Zone::Result | Zone::Inner | Zone::Task => match name {
            "_meta" if zone == Zone::Result => fixed(Zone::Meta),
            "task" if zone == Zone::Result => fixed(Zone::Task),
            "taskId" if zone == Zone::Task => keeping(Kept::Always),
            "_meta" | "structuredContent" => fixed(Zone::Free),
            "type" => keeping(Kept::Type),
            "role" => keeping(Kept::Role),
            "audience" => keeping(Kept::Audience),
            "data" | "blob" => keeping(Kept::Base64),
            name if NAMES.contains(&name) => fixed(Zone::Inner),
            _ => searched(Zone::Inner),
        },
    }
}

/// Names that the protocol gives to members of results, beside those with a rule of their own.
const NAMES: [&str; 27] = [
    "annotations",
    "content",
    "contents",
    "createdAt",
    "description",
    "icons",
    "isError",
    "lastModified",
    "lastUpdatedAt",
    "messages",
    "mimeType",
    "name",
    "pollInterval",
    "priority",
    "resource",
    "size",
    "sizes",
    "src",
    "status",
    "statusMessage",
    "task",
    "taskId",
    "text",
    "theme",
    "title",
    "ttl",
    "uri",
];

/// Whether a reader that does not tell letter cases apart would take `name` for `word`.
fn folds_to(name: &str, word: &str) -> bool {
    let fold = |character: char| match character {
        'ſ' => 's',
        'K' => 'k',
        other => other.to_ascii_lowercase(),
    };
    name.chars().map(fold).eq(word.chars())
}

impl Treatment {
    fn of(zone: Zone) -> Treatment {
        Treatment {
            zone,
            kept: Kept::Never,
        }
    }

    /// That of the elements of an array which is treated so.
    fn of_elements(self) -> Treatment {
        match self.kept {
            Kept::Audience => self,
            _ => Treatment::of(self.zone),
        }
    }
}

impl Kept {
    fn covers(self, text: &str) -> bool {
        match self {
            Kept::Never => false,
            Kept::Always => true,
            Kept::Type => matches!(
                text,
                "text" | "image" | "audio" | "resource" | "resource_link"
            ),
            Kept::Role | Kept::Audience => matches!(text, "user" | "assistant"),
            Kept::Base64 => text.len() >= BASE64_BYTES_MIN && is_base64(text),
        }
    }
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text.len().is_multiple_of(4) && text.len() - digits.len() <= 2 && digits.bytes().all(is_digit)
}
