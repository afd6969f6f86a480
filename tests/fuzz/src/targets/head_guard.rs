//! The head guard and the reading of a head. Whatever the bytes: no panic; the same
//! verdict for the whole stream, for any cut of it, and byte by byte; nothing before
//! the end of a head decides it; and what is accepted is what httparse reads.
//!
//! The first four bytes are cuts, the next two make one byte many; a head follows.

use ringway::http::guard::{HeadExtent, HeadGuard, Limits, Refusal};
use ringway::http::head::{self, Framing, Head, Method};
use ringway::http::policy::Policy;

use super::inflated;

pub fn head_guard(data: &[u8]) {
    let Some((&[a, b, c, d, place, count], bytes)) = data.split_first_chunk::<6>() else {
        return;
    };
    let bytes = &inflated(bytes, place, count, 80);
    let mut cuts = [
        usize::from(a),
        usize::from(b),
        usize::from(c) * 64,
        usize::from(d) * 64,
    ]
    .map(|cut| cut.min(bytes.len()));
    cuts.sort_unstable();

    let verdict = guard(bytes, []);
    assert_eq!(verdict, guard(bytes, cuts));
    assert_eq!(
        verdict,
        guard(bytes, 0..=bytes.len().min(Limits::HEAD_BYTES_MAX + 1))
    );
    let Ok(Some(extent)) = verdict else { return };
    assert!(extent.len <= Limits::HEAD_BYTES_MAX && extent.fields <= Limits::FIELDS_MAX);
    assert_eq!(guard(&bytes[..extent.len - 1], []), Ok(None));
    is_strict(&bytes[extent.range()], extent);
    let alone = head::read(&bytes[..extent.len], extent);
    let verdict = head::read(bytes, extent);
    assert_eq!(format!("{alone:?}"), format!("{verdict:?}"));
    if let Ok(head) = verdict {
        agrees_with_httparse(&bytes[extent.range()], extent, &head);
        let policy = Policy::new(true, &[], &[]).expect("no flags are legal flags");
        let _ = (policy.check(&head), policy.cors_origin(&head));
    }
}

fn guard(
    bytes: &[u8],
    cuts: impl IntoIterator<Item = usize>,
) -> Result<Option<HeadExtent>, Refusal> {
    let mut guard = HeadGuard::new();
    for cut in cuts {
        if let Some(extent) = guard.advance(&bytes[..cut])? {
            return Ok(Some(extent));
        }
    }
    guard.advance(bytes)
}

/// What httparse would let pass: line ends of another kind, controls, folded lines,
/// blanks before a colon.
fn is_strict(head: &[u8], extent: HeadExtent) {
    let head: String = head.iter().copied().map(char::from).collect();
    let head = head.strip_suffix("\r\n\r\n").expect("its end");
    let mut lines = head.split("\r\n");
    let request: Vec<_> = lines.next().expect("a line").split(' ').collect();
    let [method, target, "HTTP/1.0" | "HTTP/1.1"] = request[..] else {
        panic!("the request line {request:?}");
    };
    let is_token = |text: &str| {
        let is_mark = |c: char| "!#$%&'*+-.^_`|~".contains(c);
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || is_mark(c))
    };
    assert!(is_token(method) && method.len() <= Limits::METHOD_BYTES_MAX);
    assert!(target.chars().all(|c| c.is_ascii_graphic() && c != '#'));
    assert!((1..=Limits::TARGET_BYTES_MAX).contains(&target.len()));
    let mut fields = 0;
    for line in lines {
        let (name, value) = line.split_once(':').expect("a colon");
        assert!(is_token(name) && name.len() <= Limits::NAME_BYTES_MAX);
        assert!(!value.contains(|c: char| c != '\t' && c.is_ascii_control()));
        fields += 1;
    }
    assert_eq!(fields, extent.fields);
}

fn agrees_with_httparse(bytes: &[u8], extent: HeadExtent, head: &Head) {
    let mut fields = [httparse::EMPTY_HEADER; Limits::FIELDS_MAX];
    let mut oracle = httparse::Request::new(&mut fields);
    let status = oracle
        .parse(bytes)
        .expect("httparse refuses what was accepted");
    assert_eq!(status, httparse::Status::Complete(bytes.len()));
    assert_eq!(oracle.headers.len(), extent.fields);
    assert_eq!(oracle.version, Some(u8::from(head.http11)));

    let method = oracle.method.expect("complete");
    let expected = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "DELETE" => Method::Delete,
        "OPTIONS" => Method::Options,
        _ => Method::Other,
    };
    assert_eq!(head.method, expected);
    assert_ne!(method, "CONNECT");

    let target = oracle.path.expect("complete");
    match &head.absolute_authority {
        None => assert_eq!(head.path(), target.split('?').next().expect("one at least")),
        Some(authority) => {
            let (_, rest) = target.split_once("://").expect("absolute");
            assert!(rest.starts_with(authority.as_str()));
        }
    }

    let values = |name: &str| -> Vec<&[u8]> {
        let named = oracle
            .headers
            .iter()
            .filter(|f| f.name.eq_ignore_ascii_case(name));
        named.map(|f| f.value).collect()
    };
    assert_eq!(values("host"), [head.host.as_bytes()]);
    for (name, value) in [
        ("origin", &head.origin),
        ("mcp-protocol-version", &head.protocol_version),
        ("authorization", &head.authorization),
        ("last-event-id", &head.last_event_id),
    ] {
        let ours: Vec<&[u8]> = value.iter().map(|v| v.as_bytes()).collect();
        assert_eq!(values(name), ours);
    }
    let length = values("content-length");
    let coding = values("transfer-encoding");
    match head.framing {
        Framing::None => assert!(length.is_empty() && coding.is_empty()),
        Framing::Length(bytes) => {
            let text = std::str::from_utf8(length[0]).expect("digits");
            assert_eq!(text.parse(), Ok(bytes));
            assert!(length.len() == 1 && coding.is_empty());
        }
        Framing::Chunked => {
            assert!(length.is_empty() && coding.len() == 1 && head.http11);
            assert!(coding[0].eq_ignore_ascii_case(b"chunked"));
        }
    }
}
