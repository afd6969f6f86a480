//! What happens to a line of a shared server: who gets it, what the hub
//! answers itself, what is dropped. One function, one scan.

use super::drops::DropReason;
use super::upstream_id::{Owner, UpstreamId};
use crate::wire::method::PROGRESS;
use crate::wire::notice::Kinds;
use crate::wire::reply;
use crate::wire::scan::{self, Envelope, Kind};
use crate::wire::span::Span;

/// Where a line goes.
#[derive(Debug)]
pub enum Route {
    /// The answer to a call: to shard `shard`, which splices the client's id
    /// over `id_span` if the call still lives.
    Answer {
        shard: usize,
        id: UpstreamId,
        id_span: Span,
        /// The id came as a decimal string.
        quoted: bool,
        /// The answer is an error.
        is_error: bool,
    },
    /// Progress on a call of shard `shard`, whose token stands at `token_span`.
    Progress {
        shard: usize,
        id: UpstreamId,
        token_span: Span,
    },
    /// `notifications/tasks/status`: to the shard whose session owns the task. Its
    /// id, decoded.
    TaskStatus(Box<str>),
    /// Lists have changed: to every session.
    Changed(Kinds),
    /// A resource was updated: to those who are subscribed to it. The URI, decoded.
    Updated(Box<str>),
    /// The answer to one of the hub's own requests: its raw result, or the raw
    /// error.
    Own {
        id: UpstreamId,
        outcome: Result<Span, Span>,
    },
    /// The server's request is answered at once with this message (no newline).
    Reply(Vec<u8>),
    /// Nobody gets it.
    Drop(DropReason),
}

/// Decides where `line` goes. `shards` is the number of shards that exist.
pub fn route(line: &[u8], shards: usize) -> Route {
    let envelope = match scan::scan(line) {
        Ok(envelope) => envelope,
        Err(error) if error.fault.code() == reply::PARSE_ERROR => {
            return Route::Drop(DropReason::NotJson);
        }
        Err(_) => return Route::Drop(DropReason::NotMessage),
    };
    match envelope.kind {
        Kind::Result | Kind::Error => answer(line, &envelope, shards),
        Kind::Request => Route::Reply(request(line, &envelope)),
        Kind::Notification => notification(line, &envelope, shards),
    }
}

fn answer(line: &[u8], envelope: &Envelope<'_>, shards: usize) -> Route {
    let named = envelope
        .id
        .as_ref()
        .and_then(|field| Some((field.span, UpstreamId::read(field.span.of(line))?)));
    let Some((id_span, named)) = named else {
        return Route::Drop(DropReason::UnknownId);
    };
    match (named.id.owner(), envelope.result, envelope.error) {
        (Owner::Shard(shard), _, _) if shard < shards => Route::Answer {
            shard,
            id: named.id,
            id_span,
            quoted: named.quoted,
            is_error: envelope.kind == Kind::Error,
        },
        (Owner::Hub, Some(result), _) => Route::Own {
            id: named.id,
            outcome: Ok(result),
        },
        (Owner::Hub, None, Some(error)) => Route::Own {
            id: named.id,
            outcome: Err(error),
        },
        _ => Route::Drop(DropReason::UnknownId),
    }
}

/// A server's request cannot be attributed to a session: it is refused, so
/// that the server unblocks. `ping` is for Ringway itself.
fn request(line: &[u8], envelope: &Envelope<'_>) -> Vec<u8> {
    let id = envelope.id.as_ref().map_or(&b""[..], |id| id.span.of(line));
    match envelope.method.as_ref() {
        "ping" => reply::result(id, b"{}"),
        _ => reply::error(
            Some(id),
            reply::METHOD_NOT_FOUND,
            "This gateway shares the server between clients and cannot tell whose request this is",
        ),
    }
}

fn notification(line: &[u8], envelope: &Envelope<'_>, shards: usize) -> Route {
    match envelope.method.as_ref() {
        PROGRESS => progress(line, envelope, shards),
        "notifications/message" => Route::Drop(DropReason::LogMessage),
        "notifications/resources/updated" => {
            let uri = envelope.uri.as_ref().and_then(|field| field.text(line));
            uri.map_or(Route::Drop(DropReason::Change), |uri| {
                Route::Updated(uri.into())
            })
        }
        "notifications/tasks/status" => {
            let task = envelope.task_id.as_ref().and_then(|field| field.text(line));
            task.map_or(Route::Drop(DropReason::Task), |task| {
                Route::TaskStatus(task.into())
            })
        }
        method => Kinds::of(method).map_or(Route::Drop(DropReason::Other), Route::Changed),
    }
}

fn progress(line: &[u8], envelope: &Envelope<'_>, shards: usize) -> Route {
    let Some(token) = &envelope.progress_token else {
        return Route::Drop(DropReason::Progress);
    };
    match UpstreamId::read(token.span.of(line)).map(|named| (named.id, named.id.owner())) {
        Some((id, Owner::Shard(shard))) if shard < shards => Route::Progress {
            shard,
            id,
            token_span: token.span,
        },
        _ => Route::Drop(DropReason::Progress),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_text(id: UpstreamId) -> String {
        String::from_utf8(id.digits(&mut itoa::Buffer::new()).to_vec()).unwrap()
    }

    #[test]
    fn an_answer_goes_to_the_shard_in_its_id() {
        let id = UpstreamId::of_call(1, 5, 3);
        for (text, was_quoted) in [(id_text(id), false), (format!("\"{}\"", id_text(id)), true)] {
            let line = format!(r#"{{"result":{{"id":7}},"id":{text},"jsonrpc":"2.0"}}"#);
            match route(line.as_bytes(), 2) {
                Route::Answer {
                    shard,
                    id: named,
                    id_span,
                    quoted,
                    is_error,
                } => {
                    assert!(!is_error);
                    assert_eq!((shard, named, quoted), (1, id, was_quoted));
                    assert_eq!(id_span.of(line.as_bytes()), text.as_bytes());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn an_answer_for_a_shard_that_does_not_exist_goes_to_nobody() {
        let id = id_text(UpstreamId::of_call(2, 5, 3));
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert!(matches!(
            route(line.as_bytes(), 2),
            Route::Drop(DropReason::UnknownId)
        ));
    }

    #[test]
    fn ids_in_other_forms_name_nobody() {
        let id = id_text(UpstreamId::of_call(0, 5, 3));
        for form in [format!("{id}.0"), "0".into(), "\"x\"".into(), "-1".into()] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{form},"result":{{}}}}"#);
            assert!(
                matches!(route(line.as_bytes(), 1), Route::Drop(_)),
                "{form}"
            );
        }
    }

    #[test]
    fn an_answer_with_two_ids_goes_to_nobody() {
        let one = id_text(UpstreamId::of_call(0, 1, 1));
        let two = id_text(UpstreamId::of_call(0, 2, 1));
        for key in ["id", "ID", r"\u0069d"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{one},"{key}":{two},"result":{{}}}}"#);
            assert!(matches!(
                route(line.as_bytes(), 1),
                Route::Drop(DropReason::NotMessage)
            ));
        }
    }

    #[test]
    fn a_servers_request_is_refused_and_its_ping_answered() {
        let line = br#"{"jsonrpc":"2.0","id":"s-1","method":"sampling/createMessage","params":{}}"#;
        match route(line, 1) {
            Route::Reply(reply) => {
                let value: serde_json::Value = serde_json::from_slice(&reply).unwrap();
                assert_eq!(value["id"], "s-1");
                assert_eq!(value["error"]["code"], -32601);
            }
            other => panic!("{other:?}"),
        }
        match route(br#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#, 1) {
            Route::Reply(reply) => assert_eq!(reply, br#"{"jsonrpc":"2.0","id":9,"result":{}}"#),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn progress_goes_to_the_shard_of_its_token() {
        let id = UpstreamId::of_call(0, 5, 3);
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{},"progress":1}}}}"#,
            id_text(id)
        );
        assert!(
            matches!(route(line.as_bytes(), 1), Route::Progress { id: named, .. } if named == id)
        );
        let hub = id_text(UpstreamId::of_hub(0));
        for token in ["1.5", "\"mine\"", "null", &hub] {
            let line = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
            );
            assert!(
                matches!(route(line.as_bytes(), 1), Route::Drop(_)),
                "{token}"
            );
        }
    }

    #[test]
    fn banners_and_unknown_notifications_are_dropped_by_reason() {
        let drops: [(&[u8], DropReason); 4] = [
            (b"Server running on stdio", DropReason::NotJson),
            (b"[1,2]", DropReason::NotMessage),
            (
                br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"secret"}}"#,
                DropReason::LogMessage,
            ),
            (br#"{"jsonrpc":"2.0","method":"x/y"}"#, DropReason::Other),
        ];
        for (line, expected) in drops {
            match route(line, 1) {
                Route::Drop(reason) => assert_eq!(reason, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
