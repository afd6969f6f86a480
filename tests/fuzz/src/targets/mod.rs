//! One module for each target.

pub mod chunked;
pub mod documents;
pub mod head_guard;
pub mod lines;
pub mod results;
pub mod routing;
pub mod scan_splice;
pub mod sse;
pub mod upstream_events;
pub mod upstream_response;

/// The bytes with the one at `place` so often in a row as `count` says, which is '0'
/// for none: limits of many kilobytes are reached by inputs of a few bytes.
fn inflated(bytes: &[u8], place: u8, count: u8, unit: usize) -> Vec<u8> {
    let place = usize::from(place).min(bytes.len());
    let (before, after) = bytes.split_at(place);
    let times = usize::from(count.saturating_sub(b'0')) * unit;
    let filling = after.first().map_or(Vec::new(), |byte| vec![*byte; times]);
    [before, &filling, after].concat()
}
