//! Every bound of the demo server, with its reason. The server trusts its
//! client to be well-meaning, not to be bug-free: whatever comes in, memory
//! stays bounded.

/// Room offered to one read of stdin, bytes: a quarter of the pipe, so that the
/// client refills it while a chunk is being answered.
pub(super) const READ_BYTES: usize = 256 * 1024;

/// Wanted capacity of both pipes, bytes (the kernel's unprivileged maximum):
/// large messages then need fewer wake-ups.
pub(super) const PIPE_BYTES: usize = 1024 * 1024;

/// Answers are written at the end of a chunk, or as soon as this many bytes
/// wait: a chunk full of `big` calls must not be answered in memory first.
pub(super) const FLUSH_BYTES: usize = 1024 * 1024;

/// An output buffer that grew beyond this is given back after its write, bytes.
pub(super) const KEEP_BYTES: usize = 4 * 1024 * 1024;

/// Longest line accepted, bytes without its newline: as long as the largest
/// `big` result, and room for its envelope.
pub(super) const LINE_BYTES_MAX: usize = BIG_BYTES_MAX + 1024 * 1024;

/// Longest request id or progress token, bytes of JSON text (the gateway's own
/// limit). A token is repeated in each of up to [`SLOW_STEPS_MAX`] messages.
pub(super) const ID_BYTES_MAX: usize = 1024;

/// Longest URI, bytes (the gateway's own limit).
pub(super) const URI_BYTES_MAX: usize = 8 * 1024;

/// URIs that can be subscribed to at once.
pub(super) const SUBSCRIPTIONS_MAX: usize = 65_536;

/// `slow` calls that wait for their timer at once.
pub(super) const SLOW_CALLS_MAX: usize = 65_536;

/// Most steps of one `slow` call, each at most one progress message.
pub(super) const SLOW_STEPS_MAX: u64 = 1_000;

/// Longest time between two steps of a `slow` call, milliseconds.
pub(super) const SLOW_INTERVAL_MS_MAX: u64 = 60_000;

/// Largest result text of `big`, bytes: the gateway's default limit for a
/// server's line is the same number, so the largest one trips it.
pub(super) const BIG_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Entries that `grow` can add to each list.
pub(super) const EXTRAS_MAX: usize = 1_000;
