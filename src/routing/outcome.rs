//! What a call asked for and how it ended, in closed sets: the labels of the
//! metrics, whatever clients and servers send.

use crate::wire::reply::Reason;

/// The method of a call, as far as it is told apart in metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Method {
    ToolsCall,
    ToolsList,
    PromptsGet,
    PromptsList,
    ResourcesRead,
    ResourcesList,
    ResourceTemplatesList,
    CompletionComplete,
    /// Every other one, known to MCP or not.
    Other,
}

impl Method {
    /// In the order of their discriminants.
    pub const ALL: [Method; 9] = [
        Method::ToolsCall,
        Method::ToolsList,
        Method::PromptsGet,
        Method::PromptsList,
        Method::ResourcesRead,
        Method::ResourcesList,
        Method::ResourceTemplatesList,
        Method::CompletionComplete,
        Method::Other,
    ];

    /// Reads a method name, spelled exactly.
    pub fn of(name: &str) -> Method {
        match name {
            "tools/call" => Method::ToolsCall,
            "tools/list" => Method::ToolsList,
            "prompts/get" => Method::PromptsGet,
            "prompts/list" => Method::PromptsList,
            "resources/read" => Method::ResourcesRead,
            "resources/list" => Method::ResourcesList,
            "resources/templates/list" => Method::ResourceTemplatesList,
            "completion/complete" => Method::CompletionComplete,
            _ => Method::Other,
        }
    }

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Method::ToolsCall => "tools/call",
            Method::ToolsList => "tools/list",
            Method::PromptsGet => "prompts/get",
            Method::PromptsList => "prompts/list",
            Method::ResourcesRead => "resources/read",
            Method::ResourcesList => "resources/list",
            Method::ResourceTemplatesList => "resources/templates/list",
            Method::CompletionComplete => "completion/complete",
            Method::Other => "other",
        }
    }
}

/// How a call ended. Each call has exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Outcome {
    /// The server answered with a result, a tool's `isError` included.
    Ok,
    /// The server answered with an error of its own.
    Error,
    Timeout,
    Overloaded,
    Cancelled,
    SessionEnded,
    UpstreamDown,
    Draining,
}

impl Outcome {
    /// In the order of their discriminants.
    pub const ALL: [Outcome; 8] = [
        Outcome::Ok,
        Outcome::Error,
        Outcome::Timeout,
        Outcome::Overloaded,
        Outcome::Cancelled,
        Outcome::SessionEnded,
        Outcome::UpstreamDown,
        Outcome::Draining,
    ];

    /// The label in metrics; for errors of Ringway's own it is the word that
    /// clients see in `data.reason`.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Error => "error",
            Outcome::Timeout => Reason::Timeout.word(),
            Outcome::Overloaded => Reason::Overloaded.word(),
            Outcome::Cancelled => Reason::Cancelled.word(),
            Outcome::SessionEnded => Reason::SessionEnded.word(),
            Outcome::UpstreamDown => Reason::UpstreamDown.word(),
            Outcome::Draining => Reason::Draining.word(),
        }
    }
}

impl From<Reason> for Outcome {
    fn from(reason: Reason) -> Outcome {
        match reason {
            Reason::UpstreamDown => Outcome::UpstreamDown,
            Reason::Timeout => Outcome::Timeout,
            Reason::Overloaded | Reason::TooLarge => Outcome::Overloaded,
            Reason::SessionEnded => Outcome::SessionEnded,
            Reason::Cancelled => Outcome::Cancelled,
            Reason::Draining => Outcome::Draining,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_lists_are_whole_and_in_order() {
        for (index, method) in Method::ALL.into_iter().enumerate() {
            assert_eq!(method as usize, index);
        }
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }

    #[test]
    fn every_label_is_its_own() {
        let methods: HashSet<_> = Method::ALL.map(Method::label).into();
        assert_eq!(methods.len(), Method::ALL.len());
        let outcomes: HashSet<_> = Outcome::ALL.map(Outcome::label).into();
        assert_eq!(outcomes.len(), Outcome::ALL.len());
    }

    #[test]
    fn a_method_is_read_back_from_its_label_and_all_others_are_other() {
        for method in Method::ALL {
            assert_eq!(Method::of(method.label()), method);
        }
        for name in ["", "tools/Call", "tools/call ", "ping", "tasks/get", "\"}"] {
            assert_eq!(Method::of(name), Method::Other);
        }
    }
}
