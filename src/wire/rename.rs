//! The URIs in what servers say, in the form that clients know them by: links
//! and embedded resources of results, of sampling requests, and the URI of an
//! update. And the other way, the name or URI that a completion is asked for.
//! What is found are places and what to put there; all other bytes stay as they
//! were written. URIs in arguments, structured content or plain text are nobody's
//! but the server's and the client's.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memchr_iter;
use memchr::memmem::Finder;

use super::reply::quoted;
use super::scan::names::{Match, classify};
use super::span::Span;
use super::views;
pub use super::walk::Malformed;
use super::walk::Walk;

/// The public forms of what one server calls its resources, all as decoded text.
pub trait Names {
    /// A URI that the server mentions, of whatever there is or is not.
    fn link<'a>(&'a self, own: &'a str) -> Cow<'a, str>;

    /// The `name` of a resource link.
    fn resource_name<'a>(&'a self, own: &'a str) -> Cow<'a, str>;

    /// The URI of what is shown with a tool. `None`: clients cannot read it.
    fn view<'a>(&'a self, own: &'a str) -> Option<Cow<'a, str>>;
}

/// Which request a result answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultOf {
    /// `tools/call`, or `tasks/result` of one.
    ToolCall,
    /// `prompts/get`
    Prompt,
    /// `resources/read`
    Read,
}

/// What a server's request or notification is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamsOf {
    /// `notifications/resources/updated`
    Updated,
    /// `sampling/createMessage`
    Sampling,
}

/// A string of a text, and the raw JSON string to put in its place.
pub type Replacement = (Span, Vec<u8>);

/// Made once: each answer is searched.
static URI: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(br#""uri""#));
static TASK_ID: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(br#""taskId""#));
pub(super) static ESCAPE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(br"\u00"));

/// Whether there is any use in [`edits_of_result`] or [`edits_of_params`] for links: none
/// is replaced without a member `uri`. Fast, and wrong only in saying yes.
pub fn may_hold_uris(json: &[u8]) -> bool {
    URI.find(json).is_some() || may_spell_uri(json)
}

/// Whether there is any use in [`edits_of_result`] for the view of a tool. Fast, and wrong
/// only in saying yes.
pub fn may_name_views(json: &[u8]) -> bool {
    views::may_name_views(json)
}

/// Whether one of the letters of `uri` is written as an escape.
fn may_spell_uri(json: &[u8]) -> bool {
    memchr_iter(b'\\', json).any(|at| {
        let escape = json.get(at + 1..at + 6);
        matches!(escape, Some(b"u0075" | b"u0072" | b"u0069"))
    })
}

/// What to replace in a result: `result` is its place in `text`, a scanned message.
///
/// That is, in content blocks of the type `resource_link` their `uri` and `name`, in
/// those of the type `resource` the `uri` of their resource, and in what was read the
/// `uri` of each part. Of a call also the URI of the tool's view in `_meta`. Of a member
/// that stands twice both are replaced, since a reader may take either. A string with half
/// a surrogate pair stays as it is.
///
/// # Errors
/// The text is not JSON there.
pub fn edits_of_result(
    text: &[u8],
    result: Span,
    of: ResultOf,
    names: &dyn Names,
) -> Result<Vec<Replacement>, Malformed> {
    let mut walk = Walk::new(text, result);
    let mut edits = Edits::new(names);
    walk.object(|walk, name| match (of, name) {
        (ResultOf::ToolCall, Some("content")) => edits.blocks(walk),
        (ResultOf::ToolCall, name) if views::is_meta(name) => {
            views::edits_of_meta(walk, edits.names, &mut edits.found)
        }
        (ResultOf::Prompt, Some("messages")) => edits.messages(walk),
        (ResultOf::Read, Some("contents")) => walk.one_or_many(|walk| edits.uris(walk)),
        _ => walk.skip(),
    })?;
    Ok(edits.found)
}

/// The same for the params of a request or notification of the server's. The results
/// of tools that a sampling request tells of are looked into as well.
///
/// # Errors
/// The text is not JSON there.
pub fn edits_of_params(
    text: &[u8],
    params: Span,
    of: ParamsOf,
    names: &dyn Names,
) -> Result<Vec<Replacement>, Malformed> {
    let mut walk = Walk::new(text, params);
    let mut edits = Edits::new(names);
    match of {
        ParamsOf::Updated => edits.uris(&mut walk)?,
        ParamsOf::Sampling => walk.object(|walk, name| match name {
            Some("messages") => edits.messages(walk),
            _ => walk.skip(),
        })?,
    }
    Ok(edits.found)
}

/// The member of `_meta` that names the task which a message belongs to.
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// Whether there is any use in [`task_edits`]. Fast, and wrong only in saying yes.
pub fn may_name_tasks(json: &[u8]) -> bool {
    TASK_ID.find(json).is_some() || ESCAPE.find(json).is_some()
}

/// What to replace in a result or in params, whose place in `text` is `span`, so that tasks
/// have the ids that `named` gives them: `taskId`, `task.taskId`, and the related task in
/// `_meta`.
///
/// # Errors
/// The text is not JSON there.
pub fn task_edits(
    text: &[u8],
    span: Span,
    named: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Replacement>, Malformed> {
    let mut found = Vec::new();
    let mut walk = Walk::new(text, span);
    walk.object(|walk, name| match name {
        Some("taskId") => task_id(walk, named, &mut found),
        Some("task") => task_ids(walk, named, &mut found),
        Some("_meta") => walk.object(|walk, name| match name {
            Some(RELATED_TASK) => task_ids(walk, named, &mut found),
            _ => walk.skip(),
        }),
        _ => walk.skip(),
    })?;
    Ok(found)
}

/// The members `taskId` of an object.
fn task_ids(
    walk: &mut Walk<'_>,
    named: &dyn Fn(&str) -> Option<String>,
    found: &mut Vec<Replacement>,
) -> Result<(), Malformed> {
    walk.object(|walk, name| match name {
        Some("taskId") => task_id(walk, named, found),
        _ => walk.skip(),
    })
}

fn task_id(
    walk: &mut Walk<'_>,
    named: &dyn Fn(&str) -> Option<String>,
    found: &mut Vec<Replacement>,
) -> Result<(), Malformed> {
    let (span, id) = walk.string()?;
    let edit = id.and_then(|id| replaced(span, &id, &named(&id)?));
    found.extend(edit);
    Ok(())
}

struct Edits<'n> {
    names: &'n dyn Names,
    found: Vec<Replacement>,
}

/// What of a content block counts if it has the type for it.
#[derive(Default)]
struct Block {
    is_link: bool,
    is_resource: bool,
    uris: Vec<Replacement>,
    link_names: Vec<Replacement>,
    resource: Vec<Replacement>,
    has_uri: bool,
}

impl<'n> Edits<'n> {
    fn new(names: &'n dyn Names) -> Edits<'n> {
        Edits {
            names,
            found: Vec::new(),
        }
    }

    /// Messages of a prompt or of a sampling request.
    fn messages(&mut self, walk: &mut Walk<'_>) -> Result<(), Malformed> {
        walk.one_or_many(|walk| {
            walk.object(|walk, name| match name {
                Some("content") => self.blocks(walk),
                _ => walk.skip(),
            })
        })
    }

    /// Content: one block, or an array of them.
    fn blocks(&mut self, walk: &mut Walk<'_>) -> Result<(), Malformed> {
        walk.one_or_many(|walk| self.block(walk, true))
    }

    /// `may_nest`: results of tools have blocks of their own, which nest no further.
    fn block(&mut self, walk: &mut Walk<'_>, may_nest: bool) -> Result<(), Malformed> {
        let mut block = Block::default();
        let mut is_tool_result = false;
        let mut inner = Edits::new(self.names);
        walk.object(|walk, name| match name {
            Some("type") => {
                match walk.string()?.1.as_deref() {
                    Some("resource_link") => block.is_link = true,
                    Some("resource") => block.is_resource = true,
                    Some("tool_result") => is_tool_result = true,
                    _ => {}
                }
                Ok(())
            }
            Some("uri") => {
                let (span, own) = walk.string()?;
                block.has_uri |= own.is_some();
                let edit = own.and_then(|own| replaced(span, &own, &self.names.link(&own)));
                block.uris.extend(edit);
                Ok(())
            }
            Some("name") => {
                let (span, own) = walk.string()?;
                let edit =
                    own.and_then(|own| replaced(span, &own, &self.names.resource_name(&own)));
                block.link_names.extend(edit);
                Ok(())
            }
            Some("resource") => {
                let mut resource = Edits::new(self.names);
                resource.uris(walk)?;
                block.resource.append(&mut resource.found);
                Ok(())
            }
            Some("content") if may_nest => walk.one_or_many(|walk| inner.block(walk, false)),
            _ => walk.skip(),
        })?;
        if block.is_link && block.has_uri {
            self.found.append(&mut block.uris);
            self.found.append(&mut block.link_names);
        }
        if block.is_resource {
            self.found.append(&mut block.resource);
        }
        if is_tool_result {
            self.found.append(&mut inner.found);
        }
        Ok(())
    }

    /// The members `uri` of an object.
    fn uris(&mut self, walk: &mut Walk<'_>) -> Result<(), Malformed> {
        walk.object(|walk, name| {
            if name != Some("uri") {
                return walk.skip();
            }
            let (span, own) = walk.string()?;
            let edit = own.and_then(|own| replaced(span, &own, &self.names.link(&own)));
            self.found.extend(edit);
            Ok(())
        })
    }
}

pub(super) fn replaced(span: Span, own: &str, public: &str) -> Option<Replacement> {
    (own != public).then(|| (span, quoted(public)))
}

/// What a completion is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ref<'t> {
    pub kind: RefKind,
    /// The place of the string that says it.
    pub value: Span,
    /// The name, or the URI or URI template, decoded.
    pub text: Cow<'t, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefKind {
    /// By `name`.
    Prompt,
    /// By `uri`, which may be a template.
    Resource,
}

/// Why a completion cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefError {
    #[error("params.ref must be a ref/prompt with a name or a ref/resource with a uri")]
    Form,
    #[error("a member of params.ref appears more than once")]
    Twice,
    #[error("a member name differs from one of params.ref only in letter case")]
    Folded,
}

/// What the params of `completion/complete` ask for. No second member that a server
/// might read in its place is let through.
///
/// # Errors
/// There is no such reference, or more than one way to read it.
pub fn completion_ref(text: &[u8], params: Span) -> Result<Ref<'_>, RefError> {
    const OUTER: [&str; 1] = ["ref"];
    const INNER: [&str; 3] = ["type", "name", "uri"];
    let mut is_found = false;
    let mut fault = None;
    let mut inner: [Option<(Span, Option<Cow<'_, str>>)>; 3] = [None, None, None];
    let walked = Walk::new(text, params).object(|walk, name| {
        match classify(&OUTER, name.unwrap_or_default()) {
            Match::Unknown => return walk.skip(),
            Match::Folded(_) => drop(fault.get_or_insert(RefError::Folded)),
            Match::Known(_) if is_found => drop(fault.get_or_insert(RefError::Twice)),
            Match::Known(_) => is_found = true,
        }
        walk.object(|walk, name| {
            let known = match classify(&INNER, name.unwrap_or_default()) {
                Match::Unknown => return walk.skip(),
                Match::Folded(_) => {
                    fault.get_or_insert(RefError::Folded);
                    return walk.skip();
                }
                Match::Known(known) => known,
            };
            let value = walk.string()?;
            if let Some(slot) = inner.get_mut(known)
                && slot.replace(value).is_some()
            {
                fault.get_or_insert(RefError::Twice);
            }
            Ok(())
        })
    });
    walked.map_err(|Malformed| RefError::Form)?;
    if let Some(fault) = fault {
        return Err(fault);
    }
    let [kind, name, uri] = inner.map(|it| it.and_then(|(span, text)| Some((span, text?))));
    let (kind, value) = match kind.as_ref().map(|(_, kind)| kind.as_ref()) {
        Some("ref/prompt") => (RefKind::Prompt, name),
        Some("ref/resource") => (RefKind::Resource, uri),
        _ => return Err(RefError::Form),
    };
    let (value, text) = value.ok_or(RefError::Form)?;
    Ok(Ref { kind, value, text })
}

#[cfg(test)]
mod tests;
