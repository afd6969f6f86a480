//! A response of an upstream against the reference, which knows no parser of heads: the
//! same meaning and end of the head, the same bytes and end of the body, the same
//! verdict, however the stream is cut.
//!
//! The first four bytes are cuts, the next two make one byte many; a response follows.

use ringway::upstream::http::response::{BodyReader, Content, Framing, Head, HeadReader};

use super::inflated;
use crate::reference::response::{self as reference, Verdict};

pub fn upstream_response(data: &[u8]) {
    let Some((&[a, b, c, d, place, count], bytes)) = data.split_first_chunk::<6>() else {
        return;
    };
    let bytes = &inflated(bytes, place, count, 400);
    let mut cuts = [
        usize::from(a),
        usize::from(b),
        usize::from(c) * 256,
        usize::from(d) * 256,
    ]
    .map(|cut| cut.min(bytes.len()));
    cuts.sort_unstable();

    let expected = expected(bytes);
    assert_eq!(expected, read(bytes, []), "in one piece");
    assert_eq!(expected, read(bytes, cuts), "cut at {cuts:?}");
    assert_eq!(expected, read(bytes, 0..=bytes.len()), "in bytes");
}

/// What becomes of a stream.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    head: Verdict<reference::Head>,
    body: Vec<u8>,
    end: Verdict<()>,
    /// The body is whole if the connection ends here.
    may_end: bool,
}

impl Outcome {
    fn without_head(head: Verdict<reference::Head>) -> Self {
        Self {
            head,
            body: Vec::new(),
            end: Verdict::More,
            may_end: false,
        }
    }
}

fn expected(bytes: &[u8]) -> Outcome {
    let head = reference::head(bytes);
    let Verdict::Whole(ref meaning, used) = head else {
        return Outcome::without_head(head);
    };
    let (body, end) = reference::body(&meaning.body, &bytes[used..]);
    let may_end = match end {
        Verdict::Whole(..) => true,
        Verdict::More => meaning.body == reference::Framing::UntilClose,
        Verdict::Refused => false,
    };
    Outcome {
        head,
        body,
        end,
        may_end,
    }
}

/// As a client does it: what has been read is kept until the head is whole, the rest
/// goes to the reader of the body.
fn read(bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> Outcome {
    let mut reader = HeadReader::new();
    let mut cuts = cuts.into_iter().chain([bytes.len()]);
    let (head, mut used, first) = loop {
        let Some(cut) = cuts.next() else {
            return Outcome::without_head(Verdict::More);
        };
        match reader.read(&bytes[..cut]) {
            Ok(Some((head, used))) => break (head, used, cut),
            Ok(None) => {}
            Err(_) => return Outcome::without_head(Verdict::Refused),
        }
    };
    let start = used;
    let mut reader = BodyReader::new(head.body);
    let mut body = Vec::new();
    let mut is_refused = false;
    for cut in std::iter::once(first).chain(cuts) {
        let piece = &bytes[used..cut];
        let fed = reader.feed(piece, |bytes| {
            assert!(!bytes.is_empty(), "an empty piece");
            body.extend_from_slice(bytes);
        });
        let Ok(fed) = fed else {
            is_refused = true;
            break;
        };
        used += fed;
        if reader.is_done() {
            break;
        }
        assert_eq!(fed, piece.len(), "bytes are left");
    }
    let end = match (is_refused, reader.is_done()) {
        (true, _) => Verdict::Refused,
        (false, true) => {
            let more = reader.feed(b"0\r\n\r\n", |_| panic!("more of a body that is done"));
            assert_eq!(more, Ok(0), "a body has one end");
            Verdict::Whole((), used - start)
        }
        (false, false) => Verdict::More,
    };
    Outcome {
        head: Verdict::Whole(meaning(head), start),
        body,
        end,
        may_end: !is_refused && reader.end(),
    }
}

fn meaning(head: Head) -> reference::Head {
    reference::Head {
        status: head.status,
        keeps_alive: head.keeps_alive,
        body: match head.body {
            Framing::None => reference::Framing::None,
            Framing::Length(length) => reference::Framing::Length(length),
            Framing::Chunked => reference::Framing::Chunked,
            Framing::UntilClose => reference::Framing::UntilClose,
        },
        content: match head.content {
            Content::Json => reference::Content::Json,
            Content::Events => reference::Content::Events,
            Content::Other => reference::Content::Other,
            Content::Missing => reference::Content::Missing,
        },
        is_encoded: head.is_encoded,
        session: head.session.map(|id| id.ok().map(Vec::from)),
    }
}
