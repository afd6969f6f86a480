//! The server of the cases: it answers each request with a given result. It is
//! counted with the rest, so it does no more than copy.

use memchr::{memchr, memchr_iter};

/// Its result of `initialize`.
pub(crate) const HANDSHAKE: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true}},"serverInfo":{"name":"model","version":"1"}}"#;

/// How each request to it begins.
const REQUEST: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

/// The ids of the requests among these lines, as raw JSON.
fn ids(stdin: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr_iter(b'\n', stdin).filter_map(move |end| {
        let line = &stdin[start..end];
        start = end + 1;
        let rest = line.strip_prefix(REQUEST)?;
        Some(&rest[..memchr(b',', rest)?])
    })
}

/// Answers every request with `result`.
pub(crate) fn answer(stdin: &[u8], result: &str, said: &mut Vec<u8>) {
    for id in ids(stdin) {
        said.extend_from_slice(REQUEST);
        said.extend_from_slice(id);
        said.extend_from_slice(br#","result":"#);
        said.extend_from_slice(result.as_bytes());
        said.extend_from_slice(b"}\n");
    }
}

/// Reports progress of every request.
pub(crate) fn progress(stdin: &[u8], said: &mut Vec<u8>) {
    for id in ids(stdin) {
        said.extend_from_slice(
            br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#,
        );
        said.extend_from_slice(id);
        said.extend_from_slice(br#","progress":1,"total":2,"message":"half of it"}}"#);
        said.push(b'\n');
    }
}
