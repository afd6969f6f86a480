//! Why a message of the server's was dropped: a closed set, so that a counter
//! per reason stays bounded whatever the server sends.

/// A reason for dropping something that the server sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum DropReason {
    /// A line that is not JSON: banners and log lines on stdout.
    NotJson,
    /// JSON that is not a message of the protocol.
    NotMessage,
    /// A line over `--max-message`.
    TooLong,
    /// An answer to an id that Ringway never used, or in a form that names nobody.
    UnknownId,
    /// An answer to a call that has ended: late, repeated, cancelled.
    LateAnswer,
    /// Progress without a call in flight that asked for it.
    Progress,
    /// A log message: not attributable to a session.
    LogMessage,
    /// A change that nobody is subscribed to, or that no stream carries.
    Change,
    /// Progress whose client does not read.
    SlowReader,
    /// News of a task that no session owns, or too long to be kept.
    Task,
    /// Any other notification.
    Other,
    /// An answer whose client's connection is gone.
    ClientGone,
    /// An answer to the server that its full pipe did not take.
    AnswerOverflow,
    /// Progress that a hook has denied.
    Hook,
}

impl DropReason {
    pub const ALL: [DropReason; 14] = [
        DropReason::NotJson,
        DropReason::NotMessage,
        DropReason::TooLong,
        DropReason::UnknownId,
        DropReason::LateAnswer,
        DropReason::Progress,
        DropReason::LogMessage,
        DropReason::Change,
        DropReason::SlowReader,
        DropReason::Task,
        DropReason::Other,
        DropReason::ClientGone,
        DropReason::AnswerOverflow,
        DropReason::Hook,
    ];

    /// The label in logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            DropReason::NotJson => "not_json",
            DropReason::NotMessage => "not_message",
            DropReason::TooLong => "too_long",
            DropReason::UnknownId => "unknown_id",
            DropReason::LateAnswer => "late_answer",
            DropReason::Progress => "progress",
            DropReason::LogMessage => "log_message",
            DropReason::Change => "change",
            DropReason::SlowReader => "slow_reader",
            DropReason::Task => "task",
            DropReason::Other => "other",
            DropReason::ClientGone => "client_gone",
            DropReason::AnswerOverflow => "answer_overflow",
            DropReason::Hook => "hook",
        }
    }
}
