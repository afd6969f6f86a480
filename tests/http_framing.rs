//! HTTP/1.1 framing over raw sockets: smuggling, malformed heads and chunks, limits, noise. Every refused
//! message is followed by a second request in the same write, which must never be read as one: that is
//! what request smuggling is. What happens on a connection over time is in `http_connection`.

mod support;

use support::mcp::{LATEST, initialize_body, ping_body};
use support::{Gateway, Request, Response, Session, Upstream, on_both_drivers, on_every_layout};

/// Sends `bytes`, then a valid ping in the same write; the answer must be a refusal and the last word.
#[track_caller]
fn refused(gateway: &Gateway, name: &str, bytes: &[u8], statuses: &[u16]) -> Response {
    let mut connection = gateway.connect();
    let mut wire = bytes.to_vec();
    wire.extend_from_slice(&Request::post(ping_body("666")).bytes());
    connection.send_to_the_wary(&wire);
    let response = connection
        .next(false)
        .unwrap_or_else(|| panic!("{name}: closed without an answer"));
    assert!(statuses.contains(&response.status), "{name}: {response}");
    assert!(response.lists("connection", "close"), "{name}: {response}");
    response.expect_refusal(response.status);
    connection.expect_end();
    response
}

/// A POST head from lines, with a body that would be harmless.
fn post(lines: &[&str]) -> Vec<u8> {
    let mut head = "POST /mcp HTTP/1.1\r\n".to_owned();
    for line in lines {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

fn with_body(mut head: Vec<u8>, body: &str) -> Vec<u8> {
    head.extend_from_slice(body.as_bytes());
    head
}

const HOST: &str = "Host: localhost";

const JSON: &str = "Content-Type: application/json";

/// Whoever stands in front must not be able to read the message's end elsewhere than we do.
#[test]
fn two_ways_of_telling_the_length_are_refused() {
    let chunks = "1\r\n{\r\n0\r\n\r\n";
    let rows: &[(&str, &[&str], &str, &[u16])] = &[
        (
            "length and coding",
            &["Content-Length: 4", "Transfer-Encoding: chunked"],
            chunks,
            &[400],
        ),
        (
            "coding and length",
            &["Transfer-Encoding: chunked", "Content-Length: 4"],
            chunks,
            &[400],
        ),
        (
            "two equal codings",
            &["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
            chunks,
            &[400, 501],
        ),
        (
            "two codings",
            &["Transfer-Encoding: identity", "Transfer-Encoding: chunked"],
            chunks,
            &[400, 501],
        ),
        (
            "a list of codings",
            &["Transfer-Encoding: gzip, chunked"],
            chunks,
            &[400, 501],
        ),
        (
            "chunked twice",
            &["Transfer-Encoding: chunked, chunked"],
            chunks,
            &[400, 501],
        ),
        (
            "unknown coding",
            &["Transfer-Encoding: gzip"],
            chunks,
            &[501],
        ),
        ("identity", &["Transfer-Encoding: identity"], chunks, &[501]),
        (
            "coding with a tail",
            &["Transfer-Encoding: chunkedx"],
            chunks,
            &[501],
        ),
        (
            "quoted coding",
            &["Transfer-Encoding: \"chunked\""],
            chunks,
            &[400, 501],
        ),
        ("empty coding", &["Transfer-Encoding:"], chunks, &[400, 501]),
        (
            "vertical tab",
            &["Transfer-Encoding: \x0bchunked"],
            chunks,
            &[400, 501],
        ),
        (
            "two lengths",
            &["Content-Length: 2", "Content-Length: 3"],
            "{}",
            &[400],
        ),
        (
            "two equal lengths",
            &["Content-Length: 2", "Content-Length: 2"],
            "{}",
            &[400],
        ),
        ("a list of lengths", &["Content-Length: 2, 2"], "{}", &[400]),
        ("signed length", &["Content-Length: +2"], "{}", &[400]),
        ("negative length", &["Content-Length: -2"], "{}", &[400]),
        ("hex length", &["Content-Length: 0x2"], "{}", &[400]),
        ("length with a gap", &["Content-Length: 1 2"], "{}", &[400]),
        ("fraction", &["Content-Length: 2.0"], "{}", &[400]),
        ("empty length", &["Content-Length:"], "{}", &[400]),
        (
            "length beyond 64 bits",
            &["Content-Length: 18446744073709551618"],
            "{}",
            &[400, 413],
        ),
        (
            "length of a novel",
            &["Content-Length: 99999999999999999999999999"],
            "{}",
            &[400, 413],
        ),
    ];
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        for (name, lines, body, statuses) in rows {
            let lines: Vec<&str> = [HOST, JSON].iter().chain(*lines).copied().collect();
            refused(&gateway, name, &with_body(post(&lines), body), statuses);
        }
        let old =
            b"POST /mcp HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        refused(&gateway, "coding on 1.0", old, &[400]);
        still_serves(&gateway);
    });
}

/// Bytes that parsers read differently: each must be a fault, not a matter of taste.
#[test]
fn malformed_heads_are_refused() {
    let body = "Content-Length: 0";
    let long_name = format!("{}: x", "n".repeat(129));
    let rows: &[(&str, Vec<u8>, &[u16])] = &[
        ("no host", post(&[JSON, body]), &[400]),
        ("two hosts", post(&[HOST, HOST, body]), &[400]),
        (
            "two hosts that differ",
            post(&[HOST, "Host: evil.example", body]),
            &[400],
        ),
        ("folded field", post(&[HOST, "X-A: b", " c", body]), &[400]),
        (
            "tab-folded field",
            post(&[HOST, "X-A: b", "\tc", body]),
            &[400],
        ),
        ("folded first field", post(&[" X-A: b", HOST, body]), &[400]),
        (
            "space before colon",
            post(&[HOST, "Content-Length : 5"]),
            &[400],
        ),
        (
            "tab before colon",
            post(&[HOST, "Transfer-Encoding\t: chunked"]),
            &[400],
        ),
        ("no colon", post(&[HOST, "nonsense", body]), &[400]),
        ("empty name", post(&[HOST, ": x", body]), &[400]),
        ("name with a slash", post(&[HOST, "a/b: x", body]), &[400]),
        (
            "name beyond ASCII",
            post(&[HOST, "n\u{e4}me: x", body]),
            &[400],
        ),
        ("long name", post(&[HOST, &long_name, body]), &[431]),
        ("NUL in a value", post(&[HOST, "X-A: a\0b", body]), &[400]),
        (
            "control in a value",
            post(&[HOST, "X-A: a\x01b", body]),
            &[400],
        ),
        ("DEL in a value", post(&[HOST, "X-A: a\x7fb", body]), &[400]),
        (
            "bare CR in a value",
            post(&[HOST, "X-A: a\rContent-Length: 5", body]),
            &[400],
        ),
        (
            "bare LF after a field",
            b"POST /mcp HTTP/1.1\r\nHost: localhost\nContent-Length: 0\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "bare LF everywhere",
            b"POST /mcp HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n".to_vec(),
            &[400],
        ),
        (
            "LF ends the head",
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n\n".to_vec(),
            &[400],
        ),
        (
            "CR CR LF",
            b"POST /mcp HTTP/1.1\r\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "two spaces",
            b"POST  /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "tab in the request line",
            b"POST\t/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "space in the target",
            b"POST /mcp x HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "target beyond ASCII",
            b"POST /mcp\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "fragment",
            b"POST /mcp#a HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "no target",
            b"POST HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "relative target",
            b"POST mcp HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "HTTP/0.9",
            b"POST /mcp\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "lower-case version",
            b"POST /mcp http/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "version with a tail",
            b"POST /mcp HTTP/1.1x\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "version 1.10",
            b"POST /mcp HTTP/1.10\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400, 505],
        ),
        (
            "version 2.0",
            b"POST /mcp HTTP/2.0\r\nHost: localhost\r\n\r\n".to_vec(),
            &[505],
        ),
        (
            "version 0.9",
            b"POST /mcp HTTP/0.9\r\nHost: localhost\r\n\r\n".to_vec(),
            &[505],
        ),
        (
            "HTTP/2 preface",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            &[400, 505],
        ),
        (
            "method with a slash",
            b"PO/ST /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "space first",
            b" POST /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "TLS hello",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "1.0 without host",
            b"POST /mcp HTTP/1.0\r\nContent-Length: 0\r\n\r\n".to_vec(),
            &[400],
        ),
        (
            "unknown expectation",
            post(&[HOST, "Expect: 200-maybe", body]),
            &[417],
        ),
        (
            "asterisk target",
            b"POST * HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400],
        ),
    ];
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        for (name, bytes, statuses) in rows {
            refused(&gateway, name, bytes, statuses);
        }
        still_serves(&gateway);
    });
}

/// Two values of one such field: we and the next reader could each believe another one.
#[test]
fn fields_that_must_be_single_are_refused_when_repeated() {
    on_both_drivers(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        for (name, value) in [
            ("Mcp-Session-Id", session.id.as_str()),
            ("MCP-Protocol-Version", LATEST),
            ("Origin", "http://localhost"),
            ("Content-Type", "application/json"),
            ("Last-Event-ID", "1"),
            ("Authorization", "Bearer x"),
        ] {
            let request = session
                .post(ping_body("1"))
                .set(name, value)
                .add(name, value);
            refused(&gateway, name, &request.bytes(), &[400]);
        }
        still_serves(&gateway);
    });
}

/// Limits hold while the head is still coming: a sender that never ends must not fill memory.
#[test]
fn head_limits_hold_before_the_head_is_whole() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let start = "POST /mcp HTTP/1.1\r\nHost: localhost\r\n";
        let unfinished = |bytes: String, statuses: &[u16]| {
            let mut connection = gateway.connect();
            connection.send_to_the_wary(bytes);
            let response = connection.response();
            assert!(statuses.contains(&response.status), "{response}");
            connection.expect_end();
        };
        unfinished(format!("{start}X-A: {}", "a".repeat(17 * 1024)), &[431]);
        unfinished(format!("{start}{}", "n".repeat(17 * 1024)), &[431]);
        unfinished(format!("{start}{}", "a: b\r\n".repeat(3000)), &[431]);
        unfinished(format!("POST /{}", "p".repeat(9 * 1024)), &[414]);
        unfinished("M".repeat(17 * 1024), &[400, 414, 431]);
        unfinished(format!("{start}{}: x\r\n", "n".repeat(70_000)), &[431]);
        // Just within: 64 fields, a name of 128 bytes, a value that nearly fills the head.
        let mut request = Request::post(initialize_body("1", LATEST));
        for number in 0..58 {
            request = request.add(&format!("X-{number}"), "v");
        }
        assert_eq!(gateway.ask(&request).status, 200);
        let request = Request::post(initialize_body("1", LATEST))
            .add(&"n".repeat(128), "v")
            .add("X-Long", &"v".repeat(15 * 1024));
        assert_eq!(gateway.ask(&request).status, 200);
        let mut request = Request::post(initialize_body("1", LATEST));
        for number in 0..65 {
            request = request.add(&format!("X-{number}"), "v");
        }
        refused(&gateway, "too many fields", &request.bytes(), &[431]);
        still_serves(&gateway);
    });
}

/// The chunk's size line decides where the next request begins.
#[test]
fn malformed_chunks_are_refused() {
    let rows: &[(&str, &str, &[u16])] = &[
        ("no digits", "\r\n{}\r\n0\r\n\r\n", &[400]),
        ("not hex", "x\r\n{}\r\n0\r\n\r\n", &[400]),
        ("prefix", "0x2\r\n{}\r\n0\r\n\r\n", &[400]),
        ("sign", "+2\r\n{}\r\n0\r\n\r\n", &[400]),
        ("negative", "-2\r\n{}\r\n0\r\n\r\n", &[400]),
        ("space before", " 2\r\n{}\r\n0\r\n\r\n", &[400]),
        ("space after", "2 \r\n{}\r\n0\r\n\r\n", &[400]),
        ("bare LF after the size", "2\n{}\r\n0\r\n\r\n", &[400]),
        ("bare CR after the size", "2\r{}\r\n0\r\n\r\n", &[400]),
        ("LF in an extension", "2;a\n{}\r\n0\r\n\r\n", &[400]),
        ("longer than its size", "2\r\n{}}\r\n0\r\n\r\n", &[400]),
        ("LF after the data", "2\r\n{}\n0\r\n\r\n", &[400]),
        (
            "17 digits",
            "00000000000000002\r\n{}\r\n0\r\n\r\n",
            &[400, 413],
        ),
        (
            "wraps to 2",
            "10000000000000002\r\n{}\r\n0\r\n\r\n",
            &[400, 413],
        ),
        (
            "all of 64 bits",
            "ffffffffffffffff\r\n{}\r\n0\r\n\r\n",
            &[400, 413],
        ),
        ("underscore", "1_0\r\n{}\r\n0\r\n\r\n", &[400]),
        (
            "endless extension",
            &format!("2;{}", "x".repeat(70_000)),
            &[400, 413, 431],
        ),
        (
            "endless trailers",
            &format!("0\r\n{}", "t: v\r\n".repeat(20_000)),
            &[400, 413, 431],
        ),
    ];
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        for (name, body, statuses) in rows {
            let head = post(&[HOST, JSON, "Transfer-Encoding: chunked"]);
            refused(&gateway, name, &with_body(head, body), statuses);
        }
        still_serves(&gateway);
    });
}

/// What RFC 9112 asks a server to take: trailers, upper-case hex, leading zeros, one empty line first.
#[test]
fn unusual_but_valid_framing_is_served() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let mut connection = gateway.connect();
        let head = session.post(ping_body("1")).chunked(&[]).head();
        let body = ping_body("1");
        let (first, rest) = body.split_at(10);
        for framed in [
            format!(
                "{:X}\r\n{body}\r\n0\r\nX-Trailer: v\r\nContent-Length: 9\r\n\r\n",
                body.len()
            ),
            format!("00{:x}\r\n{body}\r\n000\r\n\r\n", body.len()),
            format!("a\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\n\r\n", rest.len()),
        ] {
            connection.send([&head[..], framed.as_bytes()].concat());
            let response = connection.response();
            assert_eq!(response.status, 200, "{framed:?}: {response}");
        }
        connection.send([b"\r\n", &session.post(ping_body("1")).bytes()[..]].concat());
        assert_eq!(connection.response().status, 200);
        // Names in any case, values with blanks around them.
        let shouting = String::from_utf8(session.post(ping_body("1")).bytes()).expect("ASCII");
        let (head, body) = shouting.split_once("\r\n\r\n").expect("a head");
        let (line, fields) = head.split_once("\r\n").expect("fields");
        let fields: Vec<String> = fields
            .split("\r\n")
            .map(|field| {
                let (name, value) = field.split_once(": ").expect("a field");
                format!("{}:\t {value} \t", name.to_uppercase())
            })
            .collect();
        connection.send(format!("{line}\r\n{}\r\n\r\n{body}", fields.join("\r\n")));
        assert_eq!(connection.response().status, 200);
    });
}

/// Any sequence of bytes is somebody's request: the gateway must survive each, and so must its neighbours.
#[test]
fn noise_never_harms_the_gateway() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let valid = session
            .call("1", "echo", r#"{"message":"m"}"#)
            .chunked(&[9])
            .bytes();
        // A fixed generator: a failure can be repeated.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).expect("31 bits") % bound
        };
        for round in 0..300 {
            let mut wire = valid.clone();
            for _ in 0..=random(3) {
                let at = random(wire.len());
                match random(3) {
                    0 => wire[at] = u8::try_from(random(256)).expect("a byte"),
                    1 => drop(wire.drain(at..wire.len().min(at + random(20)))),
                    _ => wire.insert(at, *b"\r\n\0: \t,;"[random(8)..].first().expect("within")),
                }
            }
            let mut connection = gateway.connect();
            connection.send_to_the_wary(&wire);
            if round % 2 == 0 {
                connection.half_close();
                // Where the noise left only SSE acceptable, the end is that of
                // a stream whose client is gone: anywhere.
                connection.drain();
            } else {
                connection.reset();
            }
        }
        still_serves(&gateway);
    });
}

#[track_caller]
fn still_serves(gateway: &Gateway) {
    let response = gateway.ask(&Request::post(initialize_body("1", LATEST)));
    assert_eq!(response.status, 200, "{response}");
}
