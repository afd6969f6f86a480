//! Chunked bodies against a reader of whole texts that was written from RFC 9112,
//! 7.1, and the documented limits: the same verdict, body and end, however the stream
//! is cut.
//!
//! The first byte is the limit of the body, the next four are cuts, the next two make
//! one byte many; a chunked body follows.

use ringway::http::chunked::{
    ChunkedBody, EXTENSION_BYTES_MAX, EXTENSION_BYTES_TOTAL_MAX, Fed, TRAILER_BYTES_MAX,
};

use super::inflated;

pub fn chunked(data: &[u8]) {
    let Some((&[limit, a, b, c, d, place, count], bytes)) = data.split_first_chunk::<7>() else {
        return;
    };
    let bytes = &inflated(bytes, place, count, 80);
    let limit = usize::from(limit) * 16;
    let mut cuts = [
        usize::from(a),
        usize::from(b),
        usize::from(c) * 64,
        usize::from(d) * 64,
    ]
    .map(|cut| cut.min(bytes.len()));
    cuts.sort_unstable();

    let expected = reference(bytes, limit);
    assert_eq!(expected, read(bytes, [], limit), "in one piece");
    assert_eq!(expected, read(bytes, cuts, limit), "cut at {cuts:?}");
    assert_eq!(expected, read(bytes, 0..=bytes.len(), limit), "in bytes");
}

/// What becomes of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A whole body, and where it ends.
    Whole(Vec<u8>, usize),
    /// The whole chunks so far.
    Partial(Vec<u8>),
    Refused(u16),
}

pub(super) fn read(bytes: &[u8], cuts: impl IntoIterator<Item = usize>, limit: usize) -> Outcome {
    let mut reader = ChunkedBody::new(limit);
    let mut body = Vec::new();
    let (mut from, mut end) = (0, 0);
    for to in cuts.into_iter().chain([bytes.len()]) {
        match reader.feed(&bytes[from..to], &mut body) {
            Ok(Fed { consumed, done }) => {
                end += consumed;
                if done {
                    let more = reader.feed(b"0\r\n\r\n", &mut body);
                    assert_eq!(more.map(|fed| fed.consumed), Ok(0), "a body has one end");
                    return Outcome::Whole(body, end);
                }
                assert_eq!(consumed, to - from);
            }
            Err(refusal) => return Outcome::Refused(refusal.status),
        }
        from = to;
    }
    assert!(body.len() <= limit);
    Outcome::Partial(body)
}

/// Why a text has no whole part at its beginning.
enum Stop {
    More,
    Refused(u16),
}

/// The body that the text is, read for the eye.
pub(super) fn reference(bytes: &[u8], limit: usize) -> Outcome {
    let mut body = Vec::new();
    match whole(bytes, limit, &mut body) {
        Ok(rest) => Outcome::Whole(body, bytes.len() - rest.len()),
        Err(Stop::More) => Outcome::Partial(body),
        Err(Stop::Refused(status)) => Outcome::Refused(status),
    }
}

fn whole<'a>(mut rest: &'a [u8], limit: usize, body: &mut Vec<u8>) -> Result<&'a [u8], Stop> {
    let mut extensions = 0;
    loop {
        let size;
        (size, rest) = size_line(rest, limit - body.len(), &mut extensions)?;
        if size == 0 {
            break;
        }
        let data = rest.get(..size).ok_or(Stop::More)?;
        rest = line_end(&rest[size..])?;
        body.extend_from_slice(data);
    }
    let mut trailers = 0;
    loop {
        let end = rest.iter().position(|byte| !is_visible(*byte));
        let line = &rest[..end.unwrap_or(rest.len())];
        let is_folded = line.first().is_some_and(|byte| is_blank(*byte));
        // One byte after another: what comes first decides.
        if is_folded && trailers < TRAILER_BYTES_MAX {
            return Err(Stop::Refused(400));
        }
        trailers += line.len() + usize::from(end.is_some());
        if trailers > TRAILER_BYTES_MAX {
            return Err(Stop::Refused(431));
        }
        rest = line_end(&rest[line.len()..])?;
        if line.is_empty() {
            return Ok(rest);
        }
    }
}

/// A line with the size of a chunk, and what follows it.
fn size_line<'a>(
    bytes: &'a [u8],
    room: usize,
    extensions: &mut usize,
) -> Result<(usize, &'a [u8]), Stop> {
    let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
    let count = bytes.iter().take_while(|byte| is_digit(byte)).count();
    let mut size = 0;
    for digits in 1..=count {
        if digits > 16 {
            return Err(Stop::Refused(400));
        }
        let text = std::str::from_utf8(&bytes[..digits]).expect("digits");
        size = u64::from_str_radix(text, 16).expect("at most 16 digits") as usize;
        if size > room {
            return Err(Stop::Refused(413));
        }
    }
    let rest = &bytes[count..];
    let Some(next) = rest.first() else {
        return Err(Stop::More);
    };
    if count == 0 || !matches!(next, b';' | b'\r') {
        return Err(Stop::Refused(400));
    }
    let extension = match rest {
        [b';', extension @ ..] => extension,
        _ => return Ok((size, line_end(rest)?)),
    };
    let end = extension.iter().position(|byte| !is_visible(*byte));
    let line = &extension[..end.unwrap_or(extension.len())];
    *extensions += line.len();
    let is_over = line.len() > EXTENSION_BYTES_MAX || *extensions > EXTENSION_BYTES_TOTAL_MAX;
    if is_over || (end.is_some() && line.last().is_some_and(|byte| is_blank(*byte))) {
        return Err(Stop::Refused(400));
    }
    Ok((size, line_end(&extension[line.len()..])?))
}

fn line_end(bytes: &[u8]) -> Result<&[u8], Stop> {
    match bytes {
        [b'\r', b'\n', rest @ ..] => Ok(rest),
        [] | [b'\r'] => Err(Stop::More),
        _ => Err(Stop::Refused(400)),
    }
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn is_visible(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
