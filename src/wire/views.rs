//! The views of tools (MCP Apps, SEP-1865): a tool in a list, and the result of one, may name in
//! `_meta` a resource of its own server that hosts read and show. Of it clients are told the URI
//! that they can read it by, and nothing at all if they cannot: the member is left out then, so
//! that the host takes the tool for one without a view.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::rename::{ESCAPE, Names, Replacement, replaced};
use super::scan::names::{Match, classify};
use super::span::Span;
use super::walk::{Malformed, Walk};

/// Made once: each answer to a call is searched. Few names begin so.
static UNDERSCORE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(br#""_"#));

/// Whether there is any use in [`edits_of_meta`]. Fast, and wrong only in saying yes.
pub(super) fn may_name_views(json: &[u8]) -> bool {
    let is_meta = |at: usize| {
        let name = json.get(at..at + 7);
        name.is_some_and(|name| name.eq_ignore_ascii_case(br#""_meta""#))
    };
    UNDERSCORE.find_iter(json).any(is_meta) || ESCAPE.find(json).is_some()
}

/// Whether a member is looked into for views: also where its name only folds to `_meta`, since
/// some hosts read it.
pub(super) fn is_meta(name: Option<&str>) -> bool {
    name.is_some_and(|name| classify(&["_meta"], name) != Match::Unknown)
}

/// Steps over the value of a member `_meta`: what to replace in `ui.resourceUri`, and in
/// `ui/resourceUri`, which is the older place. Members that stand twice are all looked at; those
/// whose names only fold to these are left out, because some hosts read them.
pub(super) fn edits_of_meta(
    walk: &mut Walk<'_>,
    names: &dyn Names,
    found: &mut Vec<Replacement>,
) -> Result<(), Malformed> {
    thin_out(walk, found, |walk, name, found| {
        match classify(&["ui/resourceUri", "ui"], name.unwrap_or_default()) {
            Match::Known(0) => view(walk, names, found),
            Match::Known(_) => {
                let inside = thin_out(walk, found, |walk, name, found| {
                    match classify(&["resourceUri"], name.unwrap_or_default()) {
                        Match::Known(_) => view(walk, names, found),
                        Match::Folded(_) => walk.skip().map(|()| false),
                        Match::Unknown => walk.skip().map(|()| true),
                    }
                });
                inside.map(|()| true)
            }
            Match::Folded(_) => walk.skip().map(|()| false),
            Match::Unknown => walk.skip().map(|()| true),
        }
    })
}

/// Steps over the URI of a view. `false`: clients must not be told of it, nor of what is no string, or
/// none that Rust can hold: who reads it otherwise would read a name that nobody has looked at.
fn view(
    walk: &mut Walk<'_>,
    names: &dyn Names,
    found: &mut Vec<Replacement>,
) -> Result<bool, Malformed> {
    let (span, own) = walk.string()?;
    let Some(own) = own else { return Ok(false) };
    let Some(public) = names.view(&own) else {
        return Ok(false);
    };
    found.extend(replaced(span, &own, &public));
    Ok(true)
}

/// Steps over an object and leaves members out, each with one comma beside it. `stays` steps over
/// the value of each and says whether it stays.
fn thin_out(
    walk: &mut Walk<'_>,
    found: &mut Vec<Replacement>,
    mut stays: impl FnMut(&mut Walk<'_>, Option<&str>, &mut Vec<Replacement>) -> Result<bool, Malformed>,
) -> Result<(), Malformed> {
    // Where the first member begins, while none has stayed.
    let mut first = None;
    let mut has_stayed = false;
    let mut end = 0;
    let without = |found: &mut Vec<Replacement>, start, end| {
        found.extend(Span::new(start, end).map(|span| (span, Vec::new())));
    };
    walk.object_with_places(|walk, name, place| {
        let start = place.start as usize;
        let stays = stays(walk, name, found)?;
        let before = std::mem::replace(&mut end, walk.end());
        match (stays, has_stayed) {
            (true, false) => {
                has_stayed = true;
                if let Some(first) = first {
                    without(found, first, start);
                }
            }
            (false, true) => without(found, before, end),
            (false, false) => drop(first.get_or_insert(start)),
            (true, true) => {}
        }
        Ok(())
    })?;
    if let (Some(first), false) = (first, has_stayed) {
        without(found, first, end);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
