//! What comes of asking a hook, or all hooks of a chain.

use crate::wire::reply::INTERNAL_ERROR;

/// What a hook, or a whole chain, says about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The message goes on as it is.
    Pass,
    /// These bytes, one raw JSON object, take the place of the given ones.
    Rewrite(Vec<u8>),
    /// The message goes no further.
    Deny(Denial),
}

/// Why a message goes no further, in the words of JSON-RPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    pub code: i32,
    /// For people, as plain text.
    pub message: String,
}

/// Why a message was denied though no hook has said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A hook panicked.
    Panicked,
    /// The chain was not done within its timeout, waiting for a thread included.
    TimedOut,
    /// A hook's rewrite is not one JSON object that can take the place, or it is too long.
    BadRewrite,
    /// The pool was closed first.
    Closed,
}

impl Verdict {
    pub fn deny(code: i32, message: impl Into<String>) -> Verdict {
        Verdict::Deny(Denial {
            code,
            message: message.into(),
        })
    }
}

impl Failure {
    /// What the client is told.
    pub fn denial(self) -> Denial {
        Denial {
            code: INTERNAL_ERROR,
            message: self.sentence().to_owned(),
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Failure::Panicked | Failure::BadRewrite => "A hook failed",
            Failure::TimedOut => "A hook did not answer in time",
            Failure::Closed => "The gateway is shutting down",
        }
    }
}
