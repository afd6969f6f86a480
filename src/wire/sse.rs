//! Server-sent events as Ringway writes them: `event: message`, one `data:`
//! line, a blank line. Messages hold no raw CR or LF when they come here
//! (`splice` has folded them), so one line always suffices.

/// What stands before a message in a frame.
pub const FRAME_HEAD: &[u8] = b"event: message\ndata: ";

/// What ends a frame.
pub const FRAME_TAIL: &[u8] = b"\n\n";

/// Bytes that a frame adds to its message.
pub const FRAME_BYTES: usize = FRAME_HEAD.len() + FRAME_TAIL.len();

/// A comment that keeps a quiet stream alive. No blank line: one SSE library
/// takes that for an event once it has seen an id.
pub const KEEP_ALIVE: &[u8] = b": \n";

/// Appends `message` as one event.
pub fn frame(out: &mut Vec<u8>, message: &[u8]) {
    frame_with(out, |out| out.extend_from_slice(message));
}

/// Appends the message that `write` appends as one event.
pub fn frame_with(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(FRAME_HEAD);
    let start = out.len();
    write(out);
    debug_assert!(memchr::memchr2(b'\r', b'\n', &out[start..]).is_none());
    out.extend_from_slice(FRAME_TAIL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_event_with_one_data_line() {
        let mut out = Vec::new();
        frame(&mut out, b"{}");
        assert_eq!(out, b"event: message\ndata: {}\n\n");
        assert_eq!(out.len(), FRAME_BYTES + 2);
    }
}
