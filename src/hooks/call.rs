//! What a hook is told of a call, and what it may keep of it until the call's end.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What hooks are told of a call. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CallContext {
    pub route: Arc<str>,
    /// The upstream that the call goes to, if it has a name.
    pub upstream: Option<Arc<str>>,
    /// The name of the token that the client came with.
    pub identity: Option<Arc<str>>,
    /// Equal for calls of one session, different for two sessions of one process. It must not
    /// tell the session's id, which is a secret of its client.
    pub session: u64,
    /// Such as `tools/call`.
    pub method: &'static str,
    /// The tool, the prompt or the URI, as the client said it.
    pub name: Arc<str>,
}

/// What the hooks of a chain keep of one call: for each a place of its own. It belongs to the
/// call and to the chain that it was first used with; a job takes it and its outcome brings it
/// back. Where a job's time is over while a hook holds it, it is lost, and the call's next job
/// begins with an empty one.
#[derive(Default)]
pub struct CallState {
    places: Vec<Place>,
}

type Place = Option<Box<dyn Any + Send>>;

/// A call as one hook sees it.
pub struct HookCall<'a> {
    context: &'a CallContext,
    place: &'a mut Place,
}

impl CallState {
    /// The place of one hook.
    pub(super) fn place(&mut self, hook: usize) -> &mut Option<Box<dyn Any + Send>> {
        if self.places.len() <= hook {
            self.places.resize_with(hook + 1, || None);
        }
        &mut self.places[hook]
    }
}

impl fmt::Debug for CallState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.places.iter().flatten().count();
        f.debug_struct("CallState").field("kept", &kept).finish()
    }
}

impl<'a> HookCall<'a> {
    pub(super) fn new(context: &'a CallContext, place: &'a mut Place) -> HookCall<'a> {
        HookCall { context, place }
    }

    pub fn route(&self) -> &str {
        &self.context.route
    }

    /// The upstream that the call goes to, if it has a name.
    pub fn upstream(&self) -> Option<&str> {
        self.context.upstream.as_deref()
    }

    /// The name of the token that the client came with.
    pub fn identity(&self) -> Option<&str> {
        self.context.identity.as_deref()
    }

    /// A number that is equal for calls of one session.
    pub fn session(&self) -> u64 {
        self.context.session
    }

    /// Such as `tools/call`.
    pub fn method(&self) -> &str {
        self.context.method
    }

    /// The tool, the prompt or the URI, as the client said it.
    pub fn name(&self) -> &str {
        &self.context.name
    }

    /// What this hook has kept of this call, if it is a `T`.
    pub fn get<T: Any + Send>(&self) -> Option<&T> {
        self.place.as_ref()?.downcast_ref()
    }

    /// The same, to be changed.
    pub fn get_mut<T: Any + Send>(&mut self) -> Option<&mut T> {
        self.place.as_mut()?.downcast_mut()
    }

    /// Keeps `value` until the call's end, in place of whatever was kept before.
    pub fn insert<T: Any + Send>(&mut self, value: T) -> &mut T {
        let kept = self.place.insert(Box::new(value));
        match kept.downcast_mut() {
            Some(value) => value,
            None => unreachable!("a box holds what was just put into it"),
        }
    }

    /// Takes out what this hook has kept, if it is a `T`.
    pub fn take<T: Any + Send>(&mut self) -> Option<T> {
        match self.place.take()?.downcast() {
            Ok(value) => Some(*value),
            Err(other) => {
                *self.place = Some(other);
                None
            }
        }
    }
}
