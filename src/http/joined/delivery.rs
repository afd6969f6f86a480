//! What comes from the upstreams of a joined route, under the names that its clients know.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::Hash;
use std::rc::Rc;

use super::{Joined, Local};
use crate::limits::PUBLIC_NAME_CHARACTERS;
use crate::routing::calls::{About, Call};
use crate::routing::joined::SeatId;
use crate::routing::joined::cursor::CursorLimit;
use crate::routing::joined::naming::{Absent, Kind, Naming, UpstreamNames};
use crate::routing::outcome::Method;
use crate::wire::listing::ListKind;
use crate::wire::rename::{self, ParamsOf, ResultOf};
use crate::wire::scan;
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};

/// Values that take the place of others.
pub(in crate::http) type Replacements = Vec<(Span, Vec<u8>)>;

impl Joined {
    /// An upstream has answered a call with `line`: what of it has to be said in other
    /// words.
    pub(in crate::http) fn renames(
        self: &Rc<Self>,
        seat: SeatId,
        call: &Call,
        line: &[u8],
    ) -> Replacements {
        let local = self.local();
        let Some(place) = local.place(seat) else {
            return Vec::new();
        };
        let naming = &local.settings.naming;
        let of = match (call.method, call.about) {
            (Method::ToolsCall, _) => Some(ResultOf::ToolCall),
            (_, About::TaskResult(_) | About::OwnTaskResult) => Some(ResultOf::ToolCall),
            (Method::PromptsGet, _) => Some(ResultOf::Prompt),
            (Method::ResourcesRead, _) => Some(ResultOf::Read),
            _ => None,
        };
        let of = of.filter(|of| {
            let may_link = !naming.keeps_links(place) && rename::may_hold_uris(line);
            may_link
                || *of == ResultOf::ToolCall && !naming.is_plain() && rename::may_name_views(line)
        });
        // Requests about tasks have no label of their own.
        let may_be_about_tasks = matches!(call.method, Method::ToolsCall | Method::Other)
            && naming.renames_tasks(place)
            && rename::may_name_tasks(line);
        if of.is_none() && !may_be_about_tasks {
            return Vec::new();
        }
        let Some(result) = scan::scan(line).ok().and_then(|envelope| envelope.result) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        if let Some(of) = of {
            let names = UpstreamNames {
                naming,
                upstream: place,
            };
            found = rename::edits_of_result(line, result, of, &names).unwrap_or_default();
        }
        if may_be_about_tasks {
            found.extend(tasks_renamed(naming, place, line, result));
        }
        found
    }

    /// A message of an upstream to a client, in the names of the route. `None`: it is about a
    /// resource that is denied.
    pub(in crate::http) fn renamed(&self, seat: SeatId, message: Vec<u8>) -> Option<Vec<u8>> {
        let local = self.local();
        let Some(place) = local.place(seat) else {
            return Some(message);
        };
        let naming = &local.settings.naming;
        let names_tasks = naming.renames_tasks(place) && rename::may_name_tasks(&message);
        let holds_uris = !naming.is_plain() && rename::may_hold_uris(&message);
        if !names_tasks && !holds_uris {
            return Some(message);
        }
        let Ok(envelope) = scan::scan(&message) else {
            return Some(message);
        };
        let Some(params) = envelope.params else {
            return Some(message);
        };
        let of = match &*envelope.method {
            _ if !holds_uris => None,
            "notifications/resources/updated" => Some(ParamsOf::Updated),
            "sampling/createMessage" => Some(ParamsOf::Sampling),
            _ => None,
        };
        if of == Some(ParamsOf::Updated) {
            let uri = envelope.uri.as_ref().and_then(|uri| uri.text(&message));
            naming.public(Kind::Resource, place, &uri?)?;
        }
        let mut found = Vec::new();
        if let Some(of) = of {
            let names = UpstreamNames {
                naming,
                upstream: place,
            };
            found = rename::edits_of_params(&message, params, of, &names).unwrap_or_default();
        }
        if names_tasks {
            found.extend(tasks_renamed(naming, place, &message, params));
        }
        let mut out = Vec::with_capacity(message.len() + 64);
        splice(&mut out, &message, &mut edits(&found));
        Some(out)
    }
}

/// Where an upstream names tasks, with the ids that clients know.
fn tasks_renamed(naming: &Naming, place: usize, text: &[u8], span: Span) -> Replacements {
    let public = |own: &str| Some(naming.public_task(place, own).into_owned());
    rename::task_edits(text, span, &public).unwrap_or_default()
}

/// The edits that make replacements.
pub(in crate::http) fn edits(replacements: &Replacements) -> Vec<Edit<'_>> {
    let edits = replacements
        .iter()
        .map(|(span, with)| Edit { span: *span, with });
    edits.collect()
}

/// Names of servers' things that one thread warns of, each once.
const NAMES_WARNED_MAX: usize = 1_000;

/// Other warnings of one thread, each once.
const KINDS_WARNED_MAX: usize = 100_000;

/// Characters of a name in the log and in errors at most.
const SHOWN_CHARACTERS: usize = 128;

thread_local! {
    /// By hashes: names may be long. What servers choose the names of is apart, so that none of
    /// them uses up what there is for the rest.
    static WARNED: RefCell<[HashSet<u64>; 2]> = RefCell::default();
    static KEYS: ahash::RandomState = ahash::RandomState::new();
}

/// Whether this is the first warning of its kind. There are as many kinds as the
/// configuration has upstreams, a few times.
fn is_first(what: &impl Hash) -> bool {
    let what = KEYS.with(|keys| keys.hash_one(what));
    WARNED.with_borrow_mut(|[warned, _]| warned.len() < KINDS_WARNED_MAX && warned.insert(what))
}

/// The same for a thing whose name a server has chosen.
fn is_first_name(what: &impl Hash) -> bool {
    let what = KEYS.with(|keys| keys.hash_one(what));
    WARNED.with_borrow_mut(|[_, warned]| warned.len() < NAMES_WARNED_MAX && warned.insert(what))
}

/// The beginning of a name, which somebody else has chosen.
pub(super) fn shortened(name: &str) -> &str {
    match name.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}

impl Local {
    /// A thing is left out of a list because another one has its name.
    pub(super) fn warn_absent(&self, kind: Kind, place: usize, own: &str, absent: Absent) {
        let Absent::Hidden { by } = absent else {
            return;
        };
        let (route, upstream) = (&self.settings.name, self.name(place));
        if is_first_name(&(kind, route, upstream, own)) {
            tracing::warn!(
                parent: None,
                route,
                upstream,
                name = shortened(own),
                by = self.name(by),
                "a {kind} is left out of lists: its name means one of another upstream"
            );
        }
    }

    /// Things are left out of a list because not every client would read the same of them: told
    /// once for each list of a server, with how many they were the first time.
    pub(super) fn warn_unreadable(&self, place: usize, kind: ListKind, count: usize) {
        let (route, upstream) = (&self.settings.name, self.name(place));
        if count > 0 && is_first(&("unreadable", route, upstream, kind.method())) {
            tracing::warn!(
                parent: None,
                route,
                upstream,
                count,
                "things are left out of {}: they cannot be read, or not every client would read the same",
                kind.method()
            );
        }
    }

    /// An upstream is left out of a list: told once for each reason, with what it was the first
    /// time. The counter has them all.
    pub(super) fn left_out(&self, place: usize, kind: ListKind, reason: &str, why: &str) {
        if let Some(seat) = self.seats.get(place) {
            seat.shard.counters.lists_left_out.add(1);
        }
        let (route, upstream) = (&self.settings.name, self.name(place));
        if is_first(&("left out", route, upstream, kind.method(), reason)) {
            tracing::warn!(
                parent: None,
                route,
                upstream,
                why = shortened(why),
                "an upstream is left out of {}",
                kind.method()
            );
        }
    }

    /// A server that took the place of another does not take a subscription: told once for
    /// each server. The counter has them all.
    pub(super) fn warn_lost(&self, seat: SeatId, uri: &str) {
        let upstream = self.place(seat).map_or("", |place| self.name(place));
        let route = &self.settings.name;
        if is_first(&("lost", route, seat)) {
            tracing::warn!(
                parent: None,
                route,
                upstream,
                uri = shortened(uri),
                "the server that took the place of another does not take a subscription"
            );
        }
    }

    /// A list ends before those of the servers do.
    pub(super) fn warn_short(&self, kind: ListKind, limit: CursorLimit) {
        let route = &self.settings.name;
        if is_first(&("short", route, kind.method(), limit.to_string())) {
            tracing::warn!(
                parent: None,
                route,
                %limit,
                "{} ends before the servers' lists do",
                kind.method()
            );
        }
    }

    pub(super) fn warn_long(&self, public: &str) {
        if public.len() > PUBLIC_NAME_CHARACTERS
            && public.chars().count() > PUBLIC_NAME_CHARACTERS
            && !public.contains("://")
            && is_first_name(&("long", &self.settings.name, public))
        {
            tracing::warn!(
                parent: None,
                route = self.settings.name,
                name = shortened(public),
                "a name is longer than {PUBLIC_NAME_CHARACTERS} characters: some clients refuse it"
            );
        }
    }
}
