//! Fuzzes the head guard, the reading of a head and the chunked body. Whatever the bytes: no panic;
//! the same verdict for the whole stream, for any cut of it, and byte by byte; what is accepted is
//! what httparse reads; and a chunked body is what a plain reference decoder reads.
//!
//! The first byte picks the part, the next four the cuts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway::http::chunked::{ChunkedBody, Fed};
use ringway::http::guard::{HeadExtent, HeadGuard, Limits, Refusal};
use ringway::http::head::{self, Framing, Head, Method};
use ringway::http::policy::Policy;

fuzz_target!(|data: &[u8]| {
    let Some((&[part, a, b, c, d], bytes)) = data.split_first_chunk::<5>() else {
        return;
    };
    let mut cuts = [
        usize::from(a),
        usize::from(b),
        usize::from(c) * 64,
        usize::from(d) * 64,
    ]
    .map(|cut| cut.min(bytes.len()));
    cuts.sort_unstable();
    if part & 1 == 0 {
        fuzz_head(bytes, &cuts);
    } else {
        fuzz_chunked(bytes, &cuts, usize::from(part) * 4);
    }
});

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

fn fuzz_head(bytes: &[u8], cuts: &[usize]) {
    let verdict = guard(bytes, []);
    assert_eq!(verdict, guard(bytes, cuts.iter().copied()));
    assert_eq!(
        verdict,
        guard(bytes, 0..=bytes.len().min(Limits::HEAD_BYTES_MAX + 1))
    );
    let Ok(Some(extent)) = verdict else { return };
    let alone = head::read(&bytes[..extent.len], extent);
    let verdict = head::read(bytes, extent);
    assert_eq!(format!("{alone:?}"), format!("{verdict:?}"));
    if let Ok(head) = verdict {
        agrees_with_httparse(&bytes[extent.range()], extent, &head);
        let policy = Policy::new(true, &[], &[]).expect("no flags are legal flags");
        let _ = (policy.check(&head), policy.cors_origin(&head));
    }
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

type Read = Result<(Vec<u8>, Fed), Refusal>;

fn chunked(bytes: &[u8], cuts: impl IntoIterator<Item = usize>, limit: usize) -> Read {
    let mut reader = ChunkedBody::new(limit);
    let mut body = Vec::new();
    let mut all = Fed {
        consumed: 0,
        done: false,
    };
    let mut from = 0;
    for to in cuts.into_iter().chain([bytes.len()]) {
        let fed = reader.feed(&bytes[from..to], &mut body)?;
        assert!(fed.done || fed.consumed == to - from);
        all.consumed += fed.consumed;
        all.done = fed.done;
        from = to;
    }
    Ok((body, all))
}

fn fuzz_chunked(bytes: &[u8], cuts: &[usize], limit: usize) {
    let whole = chunked(bytes, [], limit);
    assert_eq!(whole, chunked(bytes, cuts.iter().copied(), limit));
    assert_eq!(whole, chunked(bytes, 0..=bytes.len(), limit));
    let plain = reference(bytes);
    match (whole, plain) {
        (Ok((body, fed)), Some((expected, end))) => {
            assert!(fed.done);
            assert_eq!((body, fed.consumed), (expected, end));
        }
        (Ok((body, fed)), None) => assert!(!fed.done && body.len() <= limit),
        // Only our limits may refuse what the grammar allows.
        (Err(refusal), Some((expected, _))) => {
            assert!(refusal.status != 413 || expected.len() > limit);
            assert!(refusal.status != 400 || bytes.contains(&b';') || bytes.len() > 17);
        }
        (Err(_), None) => {}
    }
}

/// RFC 9112, 7.1, written for the eye: the data and the length of a complete body.
fn reference(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let line = |at: usize| {
        let end = bytes[at..].windows(2).position(|pair| pair == b"\r\n")?;
        Some((&bytes[at..at + end], at + end + 2))
    };
    let visible = |b: &u8| *b == b'\t' || (*b >= b' ' && *b != 0x7f);
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let (size_line, next) = line(at)?;
        at = next;
        let digits = size_line.split(|b| *b == b';').next()?;
        let extension = &size_line[digits.len()..];
        if digits.is_empty()
            || !digits.iter().all(u8::is_ascii_hexdigit)
            || !extension.iter().all(visible)
            || extension.ends_with(b" ")
            || extension.ends_with(b"\t")
        {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        body.extend_from_slice(bytes.get(at..at.checked_add(size)?)?);
        at += size;
        if bytes.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
    loop {
        let (trailer, next) = line(at)?;
        at = next;
        if trailer.is_empty() {
            return Some((body, at));
        }
        if matches!(trailer[0], b' ' | b'\t') || !trailer.iter().all(visible) {
            return None;
        }
    }
}
