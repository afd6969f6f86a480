//! The bounds that are not flags, in one place, each with its reason. Bounds
//! that users may tune are flags with defaults in `cli`.

use crate::hooks::PoolSettings;

/// Shards at most: the shard takes eight bits of an upstream id, and 0 there
/// means the hub's own requests.
pub const SHARDS_MAX: usize = 255;

/// A shard reuses call slots only once it has this many, oldest first, so that
/// a late answer meets a generation that has moved on and not a fresh call.
pub const SLOTS_BEFORE_REUSE: usize = 4_096;

/// Call slots of one shard at most: a slot has twenty bits in an id.
pub const SLOTS_MAX: usize = 1 << 20;

/// Calls in flight on one shard at most: as many slots may be kept by tasks.
pub const CALLS_MAX: usize = SLOTS_MAX / 2;

/// First read buffer of a connection, bytes: a head and a 200-byte call fit,
/// and ten thousand idle connections cost 20 MiB.
pub const READ_BYTES_MIN: usize = 2 << 10;

/// A read buffer that is filling grows to this, bytes; a larger body grows it
/// to the body's own size.
pub const READ_BYTES_MAX: usize = 64 << 10;

/// Bytes of later requests that are read while a request is being answered: one
/// head. They are outside of the budget, so they are few.
pub const PIPELINED_BYTES_MAX: usize = 16 << 10;

/// Requests of one connection before it lets the others run, where nothing else
/// makes it wait.
pub const REQUESTS_PER_TURN: usize = 16;

/// Bytes of a refused body that are read and thrown away so that the client
/// sees the answer before the reset.
pub const LINGER_BYTES_MAX: usize = 1 << 20;

/// How long that may take, milliseconds.
pub const LINGER_MS: u64 = 1_000;

/// Chunk of one read from the server, bytes (measured: larger ones gain nothing).
pub const UPSTREAM_READ_BYTES: usize = 64 << 10;

/// Bytes gathered into one write to the server: the size asked of the pipe.
pub const UPSTREAM_WRITE_BYTES: usize = 256 << 10;

/// The size asked of both pipes, bytes: 64 KiB echoes took 129 us with the
/// default and 78 us with this.
pub const PIPE_BYTES: usize = 1 << 20;

/// Bytes that a shard may have on their way to the server's pipe; what is
/// over waits in the shard, where it is taken in turns between sessions.
pub const SHARD_WINDOW_BYTES: usize = 256 << 10;

/// Bytes of answers that the hub keeps for one shard that does not take them;
/// over it the hub stops reading the server.
pub const HUB_OVERFLOW_BYTES: usize = 8 << 20;

/// Bytes of the hub's own answers to the server (refused requests, pings) that
/// wait for its pipe; over it they are dropped and counted.
pub const HUB_ANSWERS_BYTES: usize = 1 << 20;

/// An answer of at least this many bytes is moved to its shard whole; smaller
/// ones are copied into one buffer per shard and batch.
pub const LARGE_ANSWER_BYTES: usize = 32 << 10;

/// Messages that a loop handles before it lets the others run.
pub const MESSAGES_PER_TURN: usize = 1_000;

/// Batches in a mailbox at most, either way.
pub const MAILBOX_BATCHES: usize = 256;

/// Letters that a shard takes before it lets its tasks run.
pub const LETTERS_PER_TURN: usize = 16;

/// Connections that a shard takes over before it lets its tasks run.
pub const HANDOVERS_PER_TURN: usize = 64;

/// Connections on their way to one shard at most: a restarted load balancer
/// brings thousands at once, and each costs 64 bytes here.
pub const HANDOVERS_MAX: usize = 16_384;

/// Bytes of events that a GET stream writes at once, about: what a client that
/// does not read keeps is bounded by it.
pub const STREAM_WRITE_BYTES: usize = 16 << 10;

/// Updates of resources below a subscribed one that a session keeps apart while
/// its stream does not take them; further ones are told as an update of the
/// subscribed one.
pub const SUB_RESOURCE_MARKS_MAX: usize = 64;

/// Requests about subscriptions that the server has not answered, at most; over it
/// a subscription is refused. Restored ones are never refused.
pub const LEDGER_REQUESTS_MAX: usize = 16_384;

/// Longest URI of an update that is passed on, bytes: a session may hold some
/// dozens that its client did not choose.
pub const UPDATED_URI_BYTES_MAX: usize = 16 << 10;

/// Bytes of progress that wait for one client, about; over it the older half is
/// dropped. A burst of a thousand messages fits.
pub const PROGRESS_BYTES_MAX: usize = 1 << 20;

/// Progress messages that follow each other share buffers of about this many
/// bytes.
pub const PROGRESS_SEGMENT_BYTES: usize = 64 << 10;

/// An event of at least this many bytes is written from its own buffer, not
/// copied behind others.
pub const LARGE_EVENT_BYTES: usize = 64 << 10;

/// Longest message about a task that is kept as a mark, bytes.
pub const TASK_NEWS_BYTES_MAX: usize = 4 << 10;

/// Bytes of such messages that a session keeps.
pub const SESSION_NEWS_BYTES_MAX: usize = 256 << 10;

/// Longest event of an update below a subscribed resource that is kept apart,
/// bytes.
pub const SUB_RESOURCE_EVENT_BYTES_MAX: usize = 2 << 10;

/// `tasks/result` calls of one task that are told what is new of it: the newest.
pub const TASK_RESULTS_MAX: usize = 8;

/// Boundaries of a URI, from its beginning, at which a subscription may end that
/// covers it: nested subscriptions must not multiply the work of an update.
pub const COVERING_BOUNDARIES_MAX: usize = 64;

/// Longest cursor of a server's list of tasks that is kept, bytes.
pub const TASK_CURSOR_BYTES_MAX: usize = 4 << 10;

/// Longest answer that is looked into for a task or its status, bytes: walking a
/// document costs some dozen times its size for a moment.
pub const TASK_ANSWER_BYTES_MAX: usize = 1 << 20;

/// Longest answer to `tasks/list`, bytes; one over it is refused.
pub const TASK_LIST_BYTES_MAX: usize = 8 << 20;

/// Cursors of `tasks/list` that a session may use: the last ones it was given.
pub const TASK_CURSORS_MAX: usize = 16;

/// Longest answer of one server that goes into a merged list, bytes: it is taken apart at once,
/// and its thread serves nobody meanwhile.
pub const LIST_BYTES_MAX: usize = 8 << 20;

/// Pages of one merged list at most: a server that always has another page must not
/// keep a client asking.
pub const LIST_PAGES_MAX: u32 = 1_000;

/// Longest `nextCursor` of one server's list that goes into a merged one, bytes.
pub const LIST_CURSOR_BYTES_MAX: usize = 16 << 10;

/// Longest cursor of a merged list as clients get it, bytes.
pub const CURSOR_BYTES_MAX: usize = 64 << 10;

/// Calls that asked for a task, were sent, and ended without their answer: what
/// their late answer tells of has no owner and is cancelled.
pub const ORPHANS_MAX: usize = 4_096;

/// Bytes that a client sends on the connection of its GET stream before it is
/// closed; nothing is expected there.
pub const STREAM_IGNORED_BYTES_MAX: usize = 64 << 10;

/// Times that a session's GET stream is replaced before the log says so, once.
pub const REPLACEMENTS_LOGGED: u32 = 10;

/// Longest `initialize` of a client whose session has an upstream of its own, and longest
/// result of it, bytes: the one and what the other says of capabilities are kept for as
/// long as the session lives.
pub const INITIALIZE_BYTES_MAX: usize = 64 << 10;
pub const HANDSHAKE_BYTES_MAX: usize = 256 << 10;

/// Longest log level that is kept, bytes: the longest that there is has 11.
pub const LEVEL_BYTES_MAX: usize = 32;

/// Bytes of messages that wait for a GET stream of a session with an upstream of its
/// own; over it they are lost and the stream is closed.
pub const STREAM_QUEUE_BYTES_MAX: usize = 1 << 20;

/// Requests of a server to its one client that have not been answered, at most.
pub const ASKED_MAX: usize = 1_024;

/// Notifications and answers of one session on their way to its upstream, at most.
pub const NOTICES_MAX: usize = 256;

/// Progress tokens of tasks that a session keeps: the newest.
pub const TASK_TOKENS_MAX: usize = 256;

/// New handshakes of one session at most in so many milliseconds. Beyond it what the server
/// does not know the session of fails.
pub const RENEWALS_MAX: u32 = 8;
pub const RENEWALS_MS: u64 = 10_000;

/// How long what a session sends waits for the upstream stream that its client has just
/// asked for, milliseconds: some servers send a stream's head with its first event.
pub const STREAM_OPEN_MS: u64 = 500;

/// Pause before an upstream stream that has ended is opened again, milliseconds; it
/// doubles with each failure, up to the other.
pub const STREAM_REOPEN_MS: u64 = 1_000;
pub const STREAM_REOPEN_MAX_MS: u64 = 30_000;

/// How long servers may take to hear that their sessions are over when Ringway stops,
/// milliseconds.
pub const FAREWELL_MS: u64 = 3_000;

/// Granularity of every deadline on a shard, milliseconds.
pub const TICK_MS: u64 = 50;

/// Bytes of one line of the server's stderr in the log.
pub const STDERR_LINE_BYTES: usize = 1 << 10;

/// Lines of the server's stderr in the log, per second; the rest is counted.
pub const STDERR_LINES_PER_SECOND: u32 = 200;

/// How long a server may take to end after its stdin was closed, and again
/// after SIGTERM, milliseconds.
pub const CHILD_EXIT_MS: u64 = 2_000;

/// Entries of a submission queue: a full one is flushed in the middle of a
/// turn; 256 already served 10,000 idle streams.
pub const RING_ENTRIES: u32 = 1_024;

/// Pause before an upstream that has no session for a client is asked for one again,
/// milliseconds: at first, and at most.
pub const LEG_RETRY_MS: u64 = 1_000;
pub const LEG_RETRY_MAX_MS: u64 = 30_000;

/// Subscriptions that one session asks an upstream for again at once, which has come in the
/// place of another.
pub const RESUBSCRIBING_MAX: usize = 16;

/// Sessions for which an upstream that works again is asked in one turn of the clock.
pub const LEGS_PER_TICK: usize = 64;

/// Progress of one call that waits for the hooks of its route: messages, and bytes. Over it
/// the oldest goes.
pub const HOOKED_PROGRESS_MAX: usize = 256;
pub const HOOKED_PROGRESS_BYTES_MAX: usize = 1 << 20;

/// Bytes of a configuration file at most: thousands of routes would fit.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a file that holds one secret at most: a header of more would be refused by servers.
pub const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Routes of a configuration file at most.
pub const ROUTES_MAX: usize = 64;

/// Upstreams of one route at most: each list asks all of them.
pub const UPSTREAMS_MAX: usize = 64;

/// Redactions of one route at most: each looks at each text.
pub const REDACTIONS_MAX: usize = 64;

/// Characters of an upstream's name at most: it is the beginning of many names.
pub const UPSTREAM_NAME_CHARACTERS: usize = 32;

/// Characters of a public name from which on it is warned of: the interfaces of models that bound
/// the names of tools do so here.
pub const PUBLIC_NAME_CHARACTERS: usize = 64;

/// The threads of hooks that are not quick, and what waits for them.
pub const HOOK_POOL: PoolSettings = PoolSettings {
    workers: 4,
    waiting_max: 4_096,
    waiting_bytes_max: 64 << 20,
    given_up_max: 64,
};

/// Verdicts of hooks that wait for a shard: as many as jobs can be accepted.
pub const HOOK_VERDICTS_MAX: usize = HOOK_POOL.waiting_max + HOOK_POOL.workers + 64;

/// Bytes of what a hook makes of a message at most.
pub const HOOK_REWRITE_BYTES_MAX: usize = 4 << 20;

/// Patterns of one kind in one list at most: each name is compared with each.
pub const PATTERNS_MAX: usize = 1_024;

/// Values of one key of a configuration file that is a list of hosts or origins, at most: each
/// request is compared with each.
pub const FLAG_VALUES_MAX: usize = 256;

/// Headers at most that an upstream has in one list.
pub const HEADERS_MAX: usize = 64;

/// Errors of one configuration file that are told at most, and as many warnings: more is for nobody
/// to read.
pub const CONFIG_PROBLEMS_MAX: usize = 200;
