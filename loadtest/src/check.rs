//! What must hold of every answer, whatever its speed: it is of its own call, it comes once, its progress comes in
//! order and before it, and nothing of another session is in it. What does not hold is counted and kept as evidence.

use std::collections::BTreeMap;
use std::fmt;

use crate::message::{self, Message};
use crate::nonce::{self, Nonce};

/// How much of a message is kept as evidence, bytes.
const EVIDENCE_BYTES_MAX: usize = 400;

/// How many violations of one kind are kept whole; the others are counted.
const EVIDENCE_KEPT: usize = 5;

/// What a gateway must never do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Violation {
    /// A message holds the nonce of another session, or is the reply to another's id.
    ForeignAnswer,
    /// A message holds the nonce of another call of the same session.
    CrossedAnswer,
    /// The response ended, and the reply was not in it.
    LostReply,
    /// A second reply to one call.
    DoubledReply,
    /// A reply in which the call's nonce, or the padding behind it, is not as it was sent.
    AlteredAnswer,
    /// Progress that does not go up.
    ProgressOrder,
    /// Progress behind the reply.
    ProgressAfterReply,
    /// Progress with a token of nobody here.
    ForeignProgress,
    /// A change of a URI to which the session is not subscribed.
    ForeignEvent,
    /// More events of one change than there were changes.
    DoubledEvent,
    /// A message of a stream or response that is no JSON-RPC message.
    NotMessage,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::ForeignAnswer => "foreign answer",
            Violation::CrossedAnswer => "crossed answer",
            Violation::LostReply => "lost reply",
            Violation::DoubledReply => "doubled reply",
            Violation::AlteredAnswer => "altered answer",
            Violation::ProgressOrder => "progress out of order",
            Violation::ProgressAfterReply => "progress after the reply",
            Violation::ForeignProgress => "foreign progress",
            Violation::ForeignEvent => "foreign event",
            Violation::DoubledEvent => "doubled event",
            Violation::NotMessage => "not a message",
        })
    }
}

/// One violation with what shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evidence {
    pub violation: Violation,
    /// What was waited for.
    pub expected: String,
    /// The message, cut at its 400th byte; empty where there was none.
    pub message: String,
}

/// All violations of a run or of a part of it.
#[derive(Clone, Default, Debug)]
pub struct Violations {
    counts: BTreeMap<Violation, u64>,
    evidence: Vec<Evidence>,
}

impl Violations {
    pub fn add(&mut self, violation: Violation, expected: impl fmt::Display, message: &[u8]) {
        let count = self.counts.entry(violation).or_default();
        *count += 1;
        if *count as usize <= EVIDENCE_KEPT {
            let shown = &message[..message.len().min(EVIDENCE_BYTES_MAX)];
            self.evidence.push(Evidence {
                violation,
                expected: expected.to_string(),
                message: String::from_utf8_lossy(shown).into_owned(),
            });
        }
    }

    pub fn merge(&mut self, other: Violations) {
        for (violation, count) in other.counts {
            *self.counts.entry(violation).or_default() += count;
        }
        for evidence in other.evidence {
            let same = self
                .evidence
                .iter()
                .filter(|it| it.violation == evidence.violation);
            if same.count() < EVIDENCE_KEPT {
                self.evidence.push(evidence);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    pub fn counts(&self) -> impl Iterator<Item = (Violation, u64)> {
        self.counts
            .iter()
            .map(|(violation, count)| (*violation, *count))
    }

    pub fn evidence(&self) -> &[Evidence] {
        &self.evidence
    }
}

/// How a call was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Result,
    /// A result with `isError`.
    ToolError,
    /// A JSON-RPC error with its code and reason.
    Error(i64, String),
}

/// Watches the response to one call.
#[derive(Debug)]
pub struct Call<'a> {
    id: u64,
    nonce: Nonce,
    /// The reply must repeat the nonce, with this behind it.
    repeats: bool,
    padding: &'a str,
    /// The call's progress token is its id.
    has_token: bool,
    progress: f64,
    steps: u64,
    answer: Option<Answer>,
    is_wrong: bool,
}

impl<'a> Call<'a> {
    pub fn new(id: u64, nonce: Nonce, repeats: bool, has_token: bool) -> Call<'a> {
        Call {
            id,
            nonce,
            repeats,
            padding: "",
            has_token,
            progress: f64::NEG_INFINITY,
            steps: 0,
            answer: None,
            is_wrong: false,
        }
    }

    /// What follows the nonce in the call's arguments, and must follow it in the reply.
    pub fn with_padding(self, padding: &'a str) -> Call<'a> {
        Call { padding, ..self }
    }

    fn expected(&self) -> String {
        format!("id {}, nonce {}", self.id, self.nonce)
    }

    /// A message has come in the response to the call.
    pub fn message(&mut self, text: &[u8], violations: &mut Violations) {
        let before = violations.total();
        self.judge(text, violations);
        self.is_wrong |= violations.total() > before;
    }

    /// Something was wrong with the answer.
    pub fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    fn judge(&mut self, text: &[u8], violations: &mut Violations) {
        let mut is_own = false;
        nonce::find(text, |found, rest| {
            if found.session != self.nonce.session {
                violations.add(Violation::ForeignAnswer, self.expected(), text);
            } else if found.call != self.nonce.call {
                violations.add(Violation::CrossedAnswer, self.expected(), text);
            } else {
                is_own |= rest.starts_with(self.padding.as_bytes());
            }
        });
        match message::read(text) {
            None => violations.add(Violation::NotMessage, self.expected(), text),
            Some(Message::Progress { token, progress }) => {
                if !self.has_token || !self.is_own_id(token) {
                    violations.add(Violation::ForeignProgress, self.expected(), text);
                } else if self.answer.is_some() {
                    violations.add(Violation::ProgressAfterReply, self.expected(), text);
                } else if progress <= self.progress {
                    let expected = format!("{}, progress over {}", self.expected(), self.progress);
                    violations.add(Violation::ProgressOrder, expected, text);
                } else {
                    self.progress = progress;
                    self.steps += 1;
                }
            }
            Some(Message::Result { id, is_tool_error }) => {
                if self.takes(id, text, violations) {
                    if self.repeats && !is_own && !is_tool_error {
                        violations.add(Violation::AlteredAnswer, self.expected(), text);
                    }
                    self.answer = Some(if is_tool_error {
                        Answer::ToolError
                    } else {
                        Answer::Result
                    });
                }
            }
            Some(Message::Error { id, code, reason }) => {
                // An error without an id is about the request itself, which is the call's own.
                if id == "null" || self.takes(id, text, violations) {
                    self.answer = Some(Answer::Error(code, reason));
                }
            }
            Some(Message::ResourceUpdated { .. } | Message::Other { .. }) => {}
        }
    }

    fn is_own_id(&self, raw: &str) -> bool {
        raw == itoa::Buffer::new().format(self.id)
    }

    fn takes(&self, id: &str, text: &[u8], violations: &mut Violations) -> bool {
        if !self.is_own_id(id) {
            violations.add(Violation::ForeignAnswer, self.expected(), text);
            return false;
        }
        if self.answer.is_some() {
            violations.add(Violation::DoubledReply, self.expected(), text);
            return false;
        }
        true
    }

    /// The response has ended as HTTP says, or too late.
    pub fn end(&mut self, violations: &mut Violations) {
        if self.answer.is_none() {
            violations.add(Violation::LostReply, self.expected(), b"");
            self.is_wrong = true;
        }
    }

    /// The answer, if one has come.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// Steps of progress that came in order.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

/// Watches what a session is told unasked, on its GET stream.
#[derive(Debug, Default)]
pub struct Told {
    session: u64,
    /// URIs with how many changes of them there have been, and how many were told.
    uris: BTreeMap<String, Changes>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Changes {
    begun: u64,
    told: u64,
}

impl Told {
    pub fn new(session: u64, uris: impl IntoIterator<Item = String>) -> Told {
        Told {
            session,
            uris: uris
                .into_iter()
                .map(|uri| (uri, Changes::default()))
                .collect(),
        }
    }

    /// So many changes of `uri` have begun since the session is subscribed.
    pub fn begun(&mut self, uri: &str, count: u64) {
        if let Some(changes) = self.uris.get_mut(uri) {
            changes.begun = count;
        }
    }

    /// A message has come on the stream. Returns the URI of a change that was due.
    pub fn message<'a>(
        &mut self,
        text: &'a [u8],
        violations: &mut Violations,
    ) -> Option<std::borrow::Cow<'a, str>> {
        nonce::find(text, |found, _| {
            if found.session != self.session {
                violations.add(
                    Violation::ForeignAnswer,
                    format!("session {:x}", self.session),
                    text,
                );
            }
        });
        match message::read(text) {
            None => violations.add(Violation::NotMessage, "a notification", text),
            Some(Message::ResourceUpdated { uri }) => {
                let Some(changes) = self.uris.get_mut(&*uri) else {
                    let expected = format!("one of {:?}", self.uris.keys().collect::<Vec<_>>());
                    violations.add(Violation::ForeignEvent, expected, text);
                    return None;
                };
                if changes.told >= changes.begun {
                    let expected = format!("{} changes, all told", changes.begun);
                    violations.add(Violation::DoubledEvent, expected, text);
                    return None;
                }
                changes.told += 1;
                return Some(uri);
            }
            Some(Message::Result { .. } | Message::Error { .. }) => {
                violations.add(Violation::ForeignAnswer, "a notification, no reply", text);
            }
            Some(Message::Progress { .. }) => {
                violations.add(Violation::ForeignProgress, "no call here", text)
            }
            Some(Message::Other { .. }) => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Nonce = Nonce {
        session: 1,
        call: 2,
    };

    fn judge(repeats: bool, messages: &[String]) -> (Vec<Violation>, Option<Answer>, u64) {
        let mut violations = Violations::default();
        let mut call = Call::new(5, OWN, repeats, true);
        for message in messages {
            call.message(message.as_bytes(), &mut violations);
        }
        call.end(&mut violations);
        assert_eq!(call.is_wrong(), !violations.is_empty());
        let kinds = violations.evidence().iter().map(|it| it.violation);
        (kinds.collect(), call.answer().cloned(), call.steps())
    }

    fn reply(id: u64, nonce: Nonce) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{nonce}"}}]}}}}"#
        )
    }

    fn progress(token: u64, progress: u64) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{progress}}}}}"#
        )
    }

    #[test]
    fn good_answer_is_no_violation() {
        let messages = [progress(5, 1), progress(5, 2), reply(5, OWN)];
        assert_eq!(judge(true, &messages), (vec![], Some(Answer::Result), 2));
    }

    #[test]
    fn each_violation_is_found() {
        let (other, crossed) = (
            Nonce {
                session: 9,
                call: 2,
            },
            Nonce {
                session: 1,
                call: 3,
            },
        );
        let kinds = |messages: &[String]| judge(true, messages).0;
        use Violation::*;
        assert_eq!(kinds(&[reply(5, other)]), [ForeignAnswer, AlteredAnswer]);
        assert_eq!(kinds(&[reply(5, crossed)]), [CrossedAnswer, AlteredAnswer]);
        assert_eq!(kinds(&[reply(6, OWN)]), [ForeignAnswer, LostReply]);
        assert_eq!(kinds(&[]), [LostReply]);
        assert_eq!(kinds(&[reply(5, OWN), reply(5, OWN)]), [DoubledReply]);
        assert_eq!(
            kinds(&[progress(5, 2), progress(5, 1), reply(5, OWN)]),
            [ProgressOrder]
        );
        assert_eq!(
            kinds(&[progress(5, 1), progress(5, 1), reply(5, OWN)]),
            [ProgressOrder]
        );
        assert_eq!(
            kinds(&[reply(5, OWN), progress(5, 1)]),
            [ProgressAfterReply]
        );
        assert_eq!(kinds(&[progress(6, 1), reply(5, OWN)]), [ForeignProgress]);
        assert_eq!(kinds(&["{}".into(), reply(5, OWN)]), [NotMessage]);
        let log = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{other}"}}}}"#
        );
        assert_eq!(kinds(&[log, reply(5, OWN)]), [ForeignAnswer]);
    }

    #[test]
    fn errors_are_answers() {
        let error = |id: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"m"}}}}"#)
        };
        assert_eq!(
            judge(true, &[error("5")]),
            (vec![], Some(Answer::Error(-32603, "m".into())), 0)
        );
        assert_eq!(judge(true, &[error("null")]).0, []);
        assert_eq!(
            judge(true, &[error("6")]).0,
            [Violation::ForeignAnswer, Violation::LostReply]
        );
    }

    #[test]
    fn stream_is_told_of_its_own_changes_once() {
        let updated = |uri: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
            )
        };
        let mut violations = Violations::default();
        let mut told = Told::new(1, ["a:1".to_owned()]);
        told.message(updated("a:1").as_bytes(), &mut violations);
        assert_eq!(violations.evidence()[0].violation, Violation::DoubledEvent);
        told.begun("a:1", 1);
        assert_eq!(
            told.message(updated("a:1").as_bytes(), &mut violations)
                .as_deref(),
            Some("a:1")
        );
        told.message(updated("a:2").as_bytes(), &mut violations);
        told.message(reply(5, OWN).as_bytes(), &mut violations);
        let kinds: Vec<_> = violations.counts().collect();
        assert_eq!(
            kinds,
            [
                (Violation::ForeignAnswer, 1),
                (Violation::ForeignEvent, 1),
                (Violation::DoubledEvent, 1)
            ]
        );
    }

    #[test]
    fn evidence_is_bounded_and_counts_are_not() {
        let mut violations = Violations::default();
        for _ in 0..3 {
            let mut more = Violations::default();
            for _ in 0..EVIDENCE_KEPT + 2 {
                more.add(Violation::LostReply, "x", &[b'a'; 1000]);
            }
            violations.merge(more);
        }
        assert_eq!(violations.total(), 3 * (EVIDENCE_KEPT as u64 + 2));
        assert_eq!(violations.evidence().len(), EVIDENCE_KEPT);
        assert_eq!(violations.evidence()[0].message.len(), EVIDENCE_BYTES_MAX);
    }
}
