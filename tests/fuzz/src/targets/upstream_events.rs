//! Server-sent events of an upstream against the reference: the same events, ids and
//! waits, and the same verdict on the limit, however the stream is cut.
//!
//! The first byte is the limit, the next four are cuts, the next two make one byte
//! many; a stream follows.

use ringway::upstream::http::events::{EventReader, Item};

use super::inflated;
use crate::reference::events::{Outcome, Said, events};

pub fn upstream_events(data: &[u8]) {
    let Some((&[limit, a, b, c, d, place, count], stream)) = data.split_first_chunk::<7>() else {
        return;
    };
    let stream = &inflated(stream, place, count, 40);
    let limit = usize::from(limit) * usize::from(limit);
    let mut cuts = [
        usize::from(a),
        usize::from(b),
        usize::from(c) * 64,
        usize::from(d) * 64,
    ]
    .map(|cut| cut.min(stream.len()));
    cuts.sort_unstable();

    let expected = events(stream, limit);
    assert_eq!(expected, read(stream, [], limit), "in one piece");
    assert_eq!(expected, read(stream, cuts, limit), "cut at {cuts:?}");
    assert_eq!(expected, read(stream, 0..=stream.len(), limit), "in bytes");
}

fn read(stream: &[u8], cuts: impl IntoIterator<Item = usize>, limit: usize) -> Outcome {
    let mut reader = EventReader::new(limit);
    let mut outcome = Outcome {
        said: Vec::new(),
        is_too_large: false,
        last_id: Vec::new(),
    };
    let mut from = 0;
    for to in cuts.into_iter().chain([stream.len()]) {
        let fed = reader.feed(&stream[from..to], |item| {
            if let Item::Event(event) = item {
                let bytes = event.data.len() + event.id.map_or(0, <[u8]>::len);
                assert!(bytes <= limit, "an event over the limit");
            }
            outcome.said.push(said(item));
        });
        if fed.is_err() {
            outcome.is_too_large = true;
            break;
        }
        let nothing = reader.feed(b"", |item| panic!("{item:?} of nothing"));
        assert!(nothing.is_ok());
        from = to;
    }
    let last_id = outcome.said.iter().rev().find_map(|said| match said {
        Said::Event { id, .. } => id.clone(),
        Said::Id(id) => Some(id.clone()),
        Said::Retry(_) => None,
    });
    outcome.last_id = last_id.unwrap_or_default();
    outcome
}

fn said(item: Item<'_>) -> Said {
    match item {
        Item::Event(event) => Said::Event {
            data: event.data.to_vec(),
            id: event.id.map(<[u8]>::to_vec),
            is_message: event.is_message,
        },
        Item::Id(id) => Said::Id(id.to_vec()),
        Item::Retry(ms) => Said::Retry(ms),
    }
}
