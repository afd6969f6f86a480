//! What comes from the upstreams of a joined route, under the names that its clients know.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use memchr::memmem;

use super::{Joined, Local};
use crate::routing::calls::{About, Call};
use crate::routing::joined::SeatId;
use crate::routing::joined::naming::{Absent, Kind, UpstreamNames};
use crate::routing::outcome::Method;
use crate::routing::session::SessionKey;
use crate::wire::rename::{self, ParamsOf, ResultOf};
use crate::wire::scan;
use crate::wire::span::Span;
use crate::wire::splice::{Edit, splice};
use crate::wire::task;

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
        if call.method == Method::ToolsCall {
            self.learn_task(&local, seat, call, line);
        }
        let naming = &local.settings.naming;
        let of = match (call.method, call.about) {
            (Method::ToolsCall, _) => ResultOf::ToolCall,
            (_, About::TaskResult(_) | About::OwnTaskResult) => ResultOf::ToolCall,
            (Method::PromptsGet, _) => ResultOf::Prompt,
            (Method::ResourcesRead, _) => ResultOf::Read,
            _ => return Vec::new(),
        };
        if naming.keeps_links(place) || !rename::may_hold_uris(line) {
            return Vec::new();
        }
        let Some(result) = scan::scan(line).ok().and_then(|envelope| envelope.result) else {
            return Vec::new();
        };
        rename::edits_of_result(
            line,
            result,
            of,
            &UpstreamNames {
                naming,
                upstream: place,
            },
        )
        .unwrap_or_default()
    }

    /// The answer of a call that asked for a task names it: later requests about it go to
    /// the same upstream.
    fn learn_task(&self, local: &Local, seat: SeatId, call: &Call, line: &[u8]) {
        if memmem::find(line, b"ask").is_none() {
            return;
        }
        let Some(created) = task::created_in(line) else {
            return;
        };
        let Some(key) = self.session_of(local, seat, call.session) else {
            return;
        };
        if let Some(session) = self.sessions.borrow_mut().get_mut(key) {
            session.made_task(&created.task_id, seat);
        }
    }

    /// The session that has this leg.
    fn session_of(&self, local: &Local, seat: SeatId, leg: SessionKey) -> Option<SessionKey> {
        let state = local.seat(seat)?.shard.state.borrow();
        state.sessions.get(leg)?.joined
    }

    /// A message of an upstream to a client, in the names of the route. `None`: it is about a
    /// resource that is denied.
    pub(in crate::http) fn renamed(&self, seat: SeatId, message: Vec<u8>) -> Option<Vec<u8>> {
        let local = self.local();
        let Some(place) = local.place(seat) else {
            return Some(message);
        };
        let naming = &local.settings.naming;
        if naming.is_plain() || !rename::may_hold_uris(&message) {
            return Some(message);
        }
        let Ok(envelope) = scan::scan(&message) else {
            return Some(message);
        };
        let of = match &*envelope.method {
            "notifications/resources/updated" => ParamsOf::Updated,
            "sampling/createMessage" => ParamsOf::Sampling,
            _ => return Some(message),
        };
        let Some(params) = envelope.params else {
            return Some(message);
        };
        if of == ParamsOf::Updated {
            let uri = envelope.uri.as_ref().and_then(|uri| uri.text(&message));
            naming.public(Kind::Resource, place, &uri?)?;
        }
        let names = UpstreamNames {
            naming,
            upstream: place,
        };
        let replacements =
            rename::edits_of_params(&message, params, of, &names).unwrap_or_default();
        let mut edits = edits(&replacements);
        let mut out = Vec::with_capacity(message.len() + 64);
        splice(&mut out, &message, &mut edits);
        Some(out)
    }
}

/// The edits that make replacements.
pub(in crate::http) fn edits(replacements: &Replacements) -> Vec<Edit<'_>> {
    let edits = replacements
        .iter()
        .map(|(span, with)| Edit { span: *span, with });
    edits.collect()
}

/// Longest public name that no client is known to refuse, in characters.
const NAME_CHARACTERS: usize = 64;

/// Names that one thread warns of, each once.
const WARNED_MAX: usize = 1_000;

thread_local! {
    static WARNED: RefCell<HashSet<String>> = RefCell::default();
}

/// Whether this is the first warning of its kind.
fn is_first(what: String) -> bool {
    WARNED.with_borrow_mut(|warned| warned.len() < WARNED_MAX && warned.insert(what))
}

impl Local {
    /// A thing is left out of a list because another one has its name.
    pub(super) fn warn_absent(&self, kind: Kind, place: usize, own: &str, absent: Absent) {
        let Absent::Hidden { by } = absent else {
            return;
        };
        let (route, upstream) = (&self.settings.name, self.name(place));
        if is_first(format!("{kind} {route} {upstream} {own}")) {
            tracing::warn!(
                route,
                upstream,
                name = own,
                by = self.name(by),
                "a {kind} is left out of lists: its name means one of another upstream"
            );
        }
    }

    pub(super) fn warn_long(&self, public: &str) {
        if public.len() > NAME_CHARACTERS
            && public.chars().count() > NAME_CHARACTERS
            && !public.contains("://")
            && is_first(format!("long {} {public}", self.settings.name))
        {
            tracing::warn!(
                route = self.settings.name,
                name = public,
                "a name is longer than 64 characters: some clients refuse it"
            );
        }
    }
}
