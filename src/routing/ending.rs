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

/// The message that answers a request whose exchange ended without an answer. `upstream`: the
/// server's name, where clients are told it.
pub fn failure_of(upstream: Option<&str>, id: &[u8], end: End) -> Vec<u8> {
    let failure = |reason| reply::failure_at(upstream, Some(id), reason);
    let unusable = |sentence: &str| reply::upstream_failure(upstream, Some(id), sentence);
    match end {
        // The error in the body of a refusal is the server's own answer.
        End::Refused { status, body } => match error_in(&body) {
            Some(error) => reply::raw_error(id, error),
            None => unusable(&format!(
                "The upstream server answered with HTTP status {status}"
            )),
        },
        End::Done => unusable("The upstream server ended its answer without a reply"),
        End::NoSession => unusable("The upstream server does not know the session"),
        End::TooLarge => failure(Reason::TooLarge),
        End::Overloaded => failure(Reason::Overloaded),
        End::Late => failure(Reason::Timeout),
        End::Broken(sentence) => unusable(sentence),
    }
}

/// What it mostly means that an `initialize` is refused by this status.
pub fn hint_of(status: u16) -> Option<&'static str> {
    match status {
        300..=399 => Some("redirects are not followed: use the URL that it names"),
        401 | 403 => Some("it asks for a credential, or does not take the one that it got"),
        404 | 405 | 410 => Some("nothing takes MCP messages there: is the path of the URL right?"),
        500..=599 => Some("the server has failed, or a proxy before it"),
        _ => None,
    }
}

/// The code of the error, if a body is a JSON-RPC error.
pub fn code_of(body: &[u8]) -> Option<i64> {
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
    }
    let error = serde_json::from_slice::<Error>(error_in(body)?);
    error.ok().map(|error| error.code)
}

/// Whether a refusal with status 400 says that the session is not known: an error with the
/// SDKs' own code for it and a word about sessions.
pub fn is_no_session(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
        #[serde(default)]
        message: String,
    }
    let error = error_in(body).and_then(|error| serde_json::from_slice::<Error>(error).ok());
    error.is_some_and(|error| {
        matches!(error.code, -32_000 | -32_001)
            && error.message.to_ascii_lowercase().contains("session")
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_mostly_means_one_thing_has_a_hint() {
        let has_word = |status, word| hint_of(status).is_some_and(|hint| hint.contains(word));
        for (status, word) in [
            (301, "redirects"),
            (401, "credential"),
            (403, "credential"),
            (404, "path"),
            (405, "path"),
            (502, "proxy"),
        ] {
            assert!(has_word(status, word), "{status}");
        }
        assert_eq!(hint_of(429), None);
    }

    #[test]
    fn an_unknown_session_is_told_from_other_refusals() {
        let error = |code: i64, message: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"{message}"}},"id":null}}"#
            )
        };
        let known = error(-32_000, "Bad Request: No valid session ID provided");
        assert!(is_no_session(known.as_bytes()));
        for other in [
            error(-32_000, "Bad Request: Server not initialized"),
            error(-32_602, "no such session of the tool"),
            "session".into(),
            String::new(),
        ] {
            assert!(!is_no_session(other.as_bytes()), "{other}");
        }
        assert_eq!(code_of(error(-32_601, "x").as_bytes()), Some(-32_601));
        assert_eq!(code_of(b"{}"), None);
    }
}
