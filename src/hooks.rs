//! Hooks: code that looks at the calls of a route, and may rewrite or deny them. Here are the
//! interface and its execution, on the thread that serves the call or on threads of its own.
//! Nothing in this module knows of HTTP, of event loops or of routing.
//!
//! A route has one [`Chain`]. For each message that one of its hooks wants to see there is one
//! [`Job`], and for each job one [`Outcome`].

mod call;
mod chain;
mod counters;
mod panics;
mod point;
mod pool;
pub mod redactor;
mod rewrite;
mod verdict;

pub use call::{CallContext, CallState, HookCall};
pub use chain::{Chain, Job, Outcome};
pub use counters::HookCounters;
pub use point::{Point, Points};
pub use pool::{Full, Pool, PoolSettings};
pub use redactor::{Redactor, RedactorError};
pub use verdict::{Denial, Failure, Verdict};

/// Something that looks at calls of a route.
///
/// Texts are raw JSON objects: the `params` of a request or of a progress message, or the
/// `result` of an answer. A method is called only for the points that [`Hook::points`] names.
/// One hook serves all sessions, from several threads at once; what it wants to remember of one
/// call goes into [`HookCall`]. A panic denies the message and nothing else.
pub trait Hook: Send + Sync + 'static {
    /// For logs. Asked once, when the chain is made, as are the next two.
    fn name(&self) -> &str;

    /// Where it wants to be asked; other points cost nothing.
    fn points(&self) -> Points;

    /// Whether it is done within microseconds and never waits: it then runs on the thread that
    /// serves the call. Others run on threads of their own, within the chain's timeout.
    fn is_quick(&self) -> bool {
        false
    }

    /// The `params` of `tools/call`, on their way to the server.
    fn before_tool_call(&self, _call: &mut HookCall<'_>, _params: &[u8]) -> Verdict {
        Verdict::Pass
    }

    /// The `result` of `tools/call`, on its way to the client.
    fn after_tool_call(&self, _call: &mut HookCall<'_>, _result: &[u8]) -> Verdict {
        Verdict::Pass
    }

    /// The `params` of `prompts/get`.
    fn before_prompt(&self, _call: &mut HookCall<'_>, _params: &[u8]) -> Verdict {
        Verdict::Pass
    }

    /// The `result` of `prompts/get`.
    fn after_prompt(&self, _call: &mut HookCall<'_>, _result: &[u8]) -> Verdict {
        Verdict::Pass
    }

    /// The `params` of `resources/read`.
    fn before_read(&self, _call: &mut HookCall<'_>, _params: &[u8]) -> Verdict {
        Verdict::Pass
    }

    /// The `result` of `resources/read`.
    fn after_read(&self, _call: &mut HookCall<'_>, _result: &[u8]) -> Verdict {
        Verdict::Pass
    }

    /// The `params` of `resources/subscribe`.
    fn before_subscribe(&self, _call: &mut HookCall<'_>, _params: &[u8]) -> Verdict {
        Verdict::Pass
    }

    /// The `params` of a progress message of the call, on its way to the client.
    fn progress(&self, _call: &mut HookCall<'_>, _params: &[u8]) -> Verdict {
        Verdict::Pass
    }
}

#[cfg(test)]
mod tests;
