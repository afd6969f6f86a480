//! Line framing of a server's stdout against a plain split: the same lines however the
//! bytes come, of over-long ones length and ends; memory as documented; and the call
//! that an over-long answer names by its ends is the one that it answers.
//!
//! The first two bytes are the least room of a read and the longest line, the next two
//! make one byte many, the next says how many bytes of choices follow; a stream follows.

use ringway::routing::long_line::answered_call;
use ringway::routing::upstream_id::UpstreamId;
use ringway::wire::lines::{ENDS_BYTES, Line, LineBuffer};
use ringway::wire::scan::{Kind, scan};

use super::inflated;

pub fn lines(data: &[u8]) {
    let Some((&[room, longest, place, count, choices], rest)) = data.split_first_chunk::<5>()
    else {
        return;
    };
    let (choices, stream) = rest.split_at(usize::from(choices & 15).min(rest.len()));
    let stream = inflated(stream, place, count, 16);
    let room = 1 + usize::from(room);
    // Up to well over both ends of a line together.
    let longest = usize::from(longest) * 4;

    let expected = reference(&stream, longest);
    assert_eq!(
        expected,
        framed(&stream, room, longest, choices),
        "in pieces"
    );
    assert_eq!(expected, framed(&stream, room, longest, &[1]), "in bytes");
    for line in stream.split(|byte| *byte == b'\n') {
        check_answered_call(line);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Text(Vec<u8>),
    TooLong(usize, Vec<u8>, Vec<u8>),
}

/// What the lines of a whole stream are.
fn reference(stream: &[u8], longest: usize) -> Vec<Taken> {
    let mut lines: Vec<_> = stream.split(|byte| *byte == b'\n').collect();
    // Behind the last line end is no line.
    if lines.last().is_some_and(|rest| rest.is_empty()) {
        lines.pop();
    }
    let taken = lines.iter().map(|line| {
        if line.len() > longest {
            let (head, tail) = ends(line);
            return Taken::TooLong(line.len(), head.to_vec(), tail.to_vec());
        }
        Taken::Text(line.strip_suffix(b"\r").unwrap_or(line).to_vec())
    });
    taken.collect()
}

fn ends(line: &[u8]) -> (&[u8], &[u8]) {
    let kept = line.len().min(ENDS_BYTES);
    (&line[..kept], &line[line.len() - kept..])
}

/// The lines that the buffer gives. Each choice is the size of a piece, whether lines
/// are taken behind it, and whether the reader leaves more behind than it has filled.
fn framed(stream: &[u8], room: usize, longest: usize, choices: &[u8]) -> Vec<Taken> {
    let mut buffer = LineBuffer::new(room, longest);
    let mut lines = Vec::new();
    let mut choices = choices.iter().copied().cycle();
    let mut rest = stream;
    let mut leaves_none = true;
    while !rest.is_empty() {
        let choice = choices.next().unwrap_or(room.min(63) as u8);
        let (mut bytes, filled) = buffer.lend();
        assert_eq!(bytes.len(), filled);
        assert!(bytes.capacity() - filled >= room, "room for a read");
        if leaves_none {
            assert!(bytes.capacity() <= 4 * (room + longest), "bounded");
        }
        let most = usize::from(choice & 63).max(1);
        let (piece, after) = rest.split_at(most.min(room).min(rest.len()));
        rest = after;
        let memory = bytes.as_ptr();
        bytes.extend_from_slice(piece);
        assert_eq!(memory, bytes.as_ptr(), "nothing moves under a read");
        let filled = bytes.len();
        if choice & 128 != 0 {
            bytes.resize(bytes.capacity(), b'\n');
        }
        buffer.restore(bytes, filled);
        match choice & 64 == 0 {
            true => take(&mut buffer, &mut lines),
            false => leaves_none = false,
        }
    }
    take(&mut buffer, &mut lines);
    lines.extend(buffer.at_end().map(taken));
    assert_eq!(buffer.at_end(), None);
    lines
}

fn take(buffer: &mut LineBuffer, lines: &mut Vec<Taken>) {
    while let Some(line) = buffer.next_line() {
        lines.push(taken(line));
    }
}

fn taken(line: Line<'_>) -> Taken {
    match line {
        Line::Text(text) => Taken::Text(text.to_vec()),
        Line::TooLong { bytes, head, tail } => Taken::TooLong(bytes, head.to_vec(), tail.to_vec()),
    }
}

/// As if the line were over-long: what its ends name is what the whole of it names.
fn check_answered_call(line: &[u8]) {
    let (head, tail) = ends(line);
    let named = answered_call(head, tail);
    let (Some(named), Ok(envelope)) = (named, scan(line)) else {
        return;
    };
    assert!(matches!(envelope.kind, Kind::Result | Kind::Error));
    let id = envelope
        .id
        .and_then(|id| UpstreamId::read(id.span.of(line)));
    assert_eq!(Some(named), id.map(|id| id.id));
}
