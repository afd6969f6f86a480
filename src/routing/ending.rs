//! How an exchange with an upstream over HTTP ended, and what a request is answered whose
//! exchange ended without an answer.

use crate::wire::reply::{self, Reason};
use crate::wire::scan::{self, Envelope, Kind};

/// How an exchange ended.
#[derive(Debug)]
pub enum End {
    /// The response was read to its end, with a status of success.
    Done,
    /// The server does not know the session (404).
    NoSession,
    /// Another status, and the beginning of the body.
    Refused { status: u16, body: Vec<u8> },
    /// An answer over `--max-message`.
    TooLarge,
    /// There was no room for it, or no connection.
    Overloaded,
    /// The time for it was over.
    Late,
    /// No whole answer came. The sentence says why.
    Broken(&'static str),
}

/// The message that answers a request whose exchange ended without an answer.
pub fn failure_of(id: &[u8], end: End) -> Vec<u8> {
    match end {
        End::Refused { status, body } => refusal_of(id, status, &body),
        End::Done => reply::upstream_failure(
            Some(id),
            "The upstream server ended its answer without a reply",
        ),
        End::NoSession => {
            reply::upstream_failure(Some(id), "The upstream server does not know the session")
        }
        End::TooLarge => reply::failure(Some(id), Reason::TooLarge),
        End::Overloaded => reply::failure(Some(id), Reason::Overloaded),
        End::Late => reply::failure(Some(id), Reason::Timeout),
        End::Broken(sentence) => reply::upstream_failure(Some(id), sentence),
    }
}

/// A refusal by status: the error in its body is the server's own answer.
fn refusal_of(id: &[u8], status: u16, body: &[u8]) -> Vec<u8> {
    if let Some(error) = error_in(body) {
        return reply::raw_error(id, error);
    }
    let sentence = format!("The upstream server answered with HTTP status {status}");
    reply::upstream_failure(Some(id), &sentence)
}

/// The raw error, if a body is a JSON-RPC error.
pub fn error_in(body: &[u8]) -> Option<&[u8]> {
    let body = body.trim_ascii();
    match scan::scan(body) {
        Ok(Envelope {
            kind: Kind::Error,
            error,
            ..
        }) => error.map(|error| error.of(body)),
        _ => None,
    }
}
