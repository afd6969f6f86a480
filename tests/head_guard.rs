//! The head guard and the reading of a head, case by case and by property. Each line of the guard
//! (limits, characters, framing, hosts, repeated fields) has its own test, because each stands for
//! an attack or a crash that was seen with the parser behind it.

use proptest::prelude::*;
use ringway::http::guard::{HeadExtent, HeadGuard, Limits, Refusal};
use ringway::http::head::{self, Framing, Head, Method, SessionHeader};

fn whole(bytes: &[u8]) -> Result<Option<HeadExtent>, Refusal> {
    HeadGuard::new().advance(bytes)
}

/// Feeds growing prefixes that end at `cuts` and then everything.
fn pieces(bytes: &[u8], cuts: impl Iterator<Item = usize>) -> Result<Option<HeadExtent>, Refusal> {
    let mut guard = HeadGuard::new();
    for cut in cuts {
        if let Some(extent) = guard.advance(&bytes[..cut])? {
            return Ok(Some(extent));
        }
    }
    guard.advance(bytes)
}

/// The whole path for complete bytes, checked to be the same when they drip in.
fn read(bytes: impl AsRef<[u8]>) -> Result<Head, Refusal> {
    let bytes = bytes.as_ref();
    let verdict = whole(bytes);
    assert_eq!(verdict, pieces(bytes, 0..=bytes.len()));
    head::read(bytes, verdict?.expect("the head is complete"))
}

fn request(line: &str, fields: &str) -> String {
    format!("{line}\r\nHost: localhost\r\n{fields}\r\n")
}

fn post(fields: &str) -> Result<Head, Refusal> {
    read(request("POST /mcp HTTP/1.1", fields))
}

fn post_10(fields: &str) -> Result<Head, Refusal> {
    read(request("POST /mcp HTTP/1.0", fields))
}

#[track_caller]
fn refused(verdict: Result<Head, Refusal>, status: u16) {
    assert_eq!(verdict.map(|_| ()).unwrap_err().status, status);
}

#[track_caller]
fn refused_early(bytes: impl AsRef<[u8]>, status: u16) {
    let bytes = bytes.as_ref();
    let verdict = whole(bytes);
    assert_eq!(verdict, pieces(bytes, 0..=bytes.len()));
    assert_eq!(verdict.unwrap_err().status, status);
}

// The limits.

#[test]
fn a_head_of_16_kib_passes_and_one_byte_more_does_not() {
    let with_length = |length: usize| {
        let bare = "GET / HTTP/1.1\r\nHost: localhost\r\nX: \r\n\r\n".len();
        request(
            "GET / HTTP/1.1",
            &format!("X: {}\r\n", "a".repeat(length - bare)),
        )
    };
    assert!(read(with_length(Limits::HEAD_BYTES_MAX)).is_ok());
    refused_early(with_length(Limits::HEAD_BYTES_MAX + 1), 431);
}

#[test]
fn a_head_that_never_ends_is_refused_before_it_ends() {
    let mut bytes = b"GET / HTTP/1.1\r\nHost: ".to_vec();
    bytes.resize(Limits::HEAD_BYTES_MAX, b'a');
    assert_eq!(whole(&bytes), Ok(None));
    bytes.push(b'a');
    refused_early(bytes, 431);
}

#[test]
fn sixty_four_fields_pass_and_one_more_does_not() {
    let fields = "A: b\r\n".repeat(Limits::FIELDS_MAX - 1);
    assert!(post(&fields).is_ok());
    refused_early(request("GET / HTTP/1.1", &format!("{fields}A: b\r\n")), 431);
}

#[test]
fn a_name_of_128_bytes_passes_and_one_byte_more_does_not() {
    let name = "n".repeat(Limits::NAME_BYTES_MAX);
    assert!(post(&format!("{name}: x\r\n")).is_ok());
    refused_early(format!("GET / HTTP/1.1\r\n{name}n"), 431);
}

/// The decoder behind the guard panics on such a name.
#[test]
fn a_name_of_over_65535_bytes_is_refused() {
    let name = "n".repeat(70_000);
    assert_eq!(
        whole(request("GET / HTTP/1.1", &name).as_bytes())
            .unwrap_err()
            .status,
        431
    );
}

#[test]
fn a_target_of_8_kib_passes_and_one_byte_more_does_not() {
    let target = format!("/{}", "t".repeat(Limits::TARGET_BYTES_MAX - 1));
    assert!(read(request(&format!("GET {target} HTTP/1.1"), "")).is_ok());
    refused_early(format!("GET {target}t"), 414);
}

#[test]
fn a_method_of_32_bytes_passes_and_one_byte_more_does_not() {
    let method = "M".repeat(Limits::METHOD_BYTES_MAX);
    let head = read(request(&format!("{method} / HTTP/1.1"), "")).unwrap();
    assert_eq!(head.method, Method::Other);
    refused_early(format!("{method}M"), 400);
}

// Line ends and characters.

#[test]
fn a_bare_lf_is_refused() {
    refused_early("GET / HTTP/1.1\nHost: localhost\n\n", 400);
    refused_early("GET / HTTP/1.1\r\nHost: localhost\n\r\n", 400);
    refused_early("GET / HTTP/1.1\r\nHost: localhost\r\n\n", 400);
    refused_early("\nGET / HTTP/1.1\r\n", 400);
}

#[test]
fn a_bare_cr_is_refused() {
    refused_early("GET / HTTP/1.1\rHost: localhost\r\r", 400);
    refused_early("GET / HTTP/1.1\r\nHost: local\rhost\r\n\r\n", 400);
    refused_early("GET / HTTP/1.1\r\nHost: localhost\r\n\rX", 400);
    refused_early("\rGET / HTTP/1.1\r\n", 400);
}

#[test]
fn control_characters_are_refused_in_values_except_tab() {
    for byte in (0..=0x1f_u8).chain([0x7f]) {
        let mut bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a".to_vec();
        bytes.push(byte);
        bytes.extend_from_slice(b"b\r\n\r\n");
        match byte {
            b'\t' => assert!(read(bytes).is_ok()),
            _ => refused_early(bytes, 400),
        }
    }
}

#[test]
fn other_bytes_pass_in_values() {
    assert!(read(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: \x80\xff \"\xc3\xa9\"\r\n\r\n").is_ok());
}

#[test]
fn folded_lines_are_refused() {
    refused_early(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
        400,
    );
    refused_early(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n\tb\r\n\r\n",
        400,
    );
    refused_early("GET / HTTP/1.1\r\n Host: localhost\r\n\r\n", 400);
}

#[test]
fn a_space_before_the_colon_is_refused() {
    refused_early("GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400);
    refused_early("GET / HTTP/1.1\r\nHost\t: localhost\r\n\r\n", 400);
}

#[test]
fn a_name_that_is_no_token_is_refused() {
    for byte in 0..=0xff_u8 {
        let mut bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\nA".to_vec();
        bytes.push(byte);
        bytes.extend_from_slice(b"B: c\r\n\r\n");
        if byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:".contains(&byte) {
            assert!(read(bytes).is_ok(), "{byte:#x}");
        } else {
            refused_early(bytes, 400);
        }
    }
    refused_early("GET / HTTP/1.1\r\nHost\r\n\r\n", 400);
    refused_early("GET / HTTP/1.1\r\n: x\r\n\r\n", 400);
}

#[test]
fn a_target_is_visible_ascii_without_a_fragment() {
    for byte in (0..=0x20_u8).chain([b'#']).chain(0x7f..=0xff) {
        let mut bytes = b"GET /a".to_vec();
        bytes.push(byte);
        bytes.extend_from_slice(b"b HTTP/1.1\r\nHost: localhost\r\n\r\n");
        refused_early(bytes, 400);
    }
}

#[test]
fn a_request_line_has_exactly_two_spaces() {
    for line in [
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET\t/ HTTP/1.1",
        "GET /",
        "GET",
        "GET / ",
        "G\u{c4}T / HTTP/1.1",
    ] {
        refused_early(format!("{line}\r\nHost: localhost\r\n\r\n"), 400);
    }
}

#[test]
fn versions_that_are_well_formed_but_not_served_are_505() {
    for version in ["HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "HTTP/3.0"] {
        refused_early(format!("GET / {version}\r\n"), 505);
    }
    refused_early("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
}

#[test]
fn versions_that_are_malformed_are_400() {
    for version in [
        "HTTP/1",
        "HTTP/1.",
        "HTTP/11",
        "http/1.1",
        "HTTP/1.10",
        "HTTP/1.1x",
        "HTTPS/1.1",
    ] {
        refused_early(format!("GET / {version}\r\n"), 400);
    }
}

#[test]
fn one_empty_line_before_the_request_is_skipped_and_a_second_is_not() {
    let bytes = "\r\nGET /a HTTP/1.0\r\nHost: localhost\r\n\r\nrest";
    let extent = whole(bytes.as_bytes()).unwrap().unwrap();
    assert_eq!(extent.skip, 2);
    assert_eq!(&bytes[extent.len..], "rest");
    assert_eq!(read(bytes).unwrap().path(), "/a");
    refused_early("\r\n\r\nGET / HTTP/1.1\r\n", 400);
}

#[test]
fn a_tls_hello_is_refused_at_its_first_byte() {
    refused_early(b"\x16\x03\x01", 400);
}

// Framing.

#[test]
fn bodies_are_framed_by_length_or_chunks() {
    assert_eq!(post("").unwrap().framing, Framing::None);
    assert_eq!(
        post("Content-Length: 0012\r\n").unwrap().framing,
        Framing::Length(12)
    );
    assert_eq!(
        post("transfer-ENCODING:\tChunkeD \r\n").unwrap().framing,
        Framing::Chunked
    );
}

#[test]
fn transfer_encoding_with_content_length_is_refused() {
    refused(
        post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"),
        400,
    );
    refused(
        post("Content-Length: 3\r\nTransfer-Encoding: gzip\r\n"),
        400,
    );
}

#[test]
fn several_transfer_encodings_are_refused() {
    refused(
        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        400,
    );
    refused(
        post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"),
        400,
    );
    refused(post("Transfer-Encoding: chunked, chunked\r\n"), 400);
}

#[test]
fn an_unknown_transfer_coding_is_501() {
    for coding in [
        "gzip",
        "identity",
        "gzip, chunked",
        "chunked, identity",
        "xchunked",
    ] {
        refused(post(&format!("Transfer-Encoding: {coding}\r\n")), 501);
    }
}

#[test]
fn a_malformed_transfer_encoding_is_400() {
    for coding in [
        "",
        ",",
        "chunked;q=1",
        "\"chunked\"",
        "chunked chunked",
        "chunked,",
    ] {
        refused(post(&format!("Transfer-Encoding: {coding}\r\n")), 400);
    }
}

#[test]
fn transfer_encoding_on_http_10_is_refused() {
    refused(post_10("Transfer-Encoding: chunked\r\n"), 400);
}

#[test]
fn several_content_lengths_are_refused_even_if_equal() {
    refused(post("Content-Length: 3\r\nContent-Length: 3\r\n"), 400);
    refused(post("Content-Length: 3\r\ncontent-length: 4\r\n"), 400);
    refused(post("Content-Length: 3, 3\r\n"), 400);
}

#[test]
fn a_content_length_is_1_to_18_digits() {
    for length in [
        "",
        "+1",
        "-1",
        "1 1",
        "0x1",
        "1,1",
        "1.0",
        "1_0",
        "\u{661}",
        "1000000000000000000",
    ] {
        refused(post(&format!("Content-Length: {length}\r\n")), 400);
    }
    let most = Framing::Length(999_999_999_999_999_999);
    assert_eq!(
        post("Content-Length: 999999999999999999\r\n")
            .unwrap()
            .framing,
        most
    );
}

// Hosts and targets.

#[test]
fn exactly_one_legal_host_is_needed_on_both_versions() {
    refused(read("GET / HTTP/1.1\r\n\r\n"), 400);
    refused(read("GET / HTTP/1.0\r\n\r\n"), 400);
    refused(post("Host: localhost\r\n"), 400);
    for host in [
        "",
        "a@localhost",
        "localhost,evil",
        "local host",
        "localhost:80@evil",
        "a/b",
    ] {
        refused(read(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), 400);
    }
}

#[test]
fn an_absolute_target_gives_its_authority_and_path() {
    let head = read(request("GET http://Other:81/mcp?x=1 HTTP/1.1", "")).unwrap();
    assert_eq!(
        head.absolute_authority.as_ref().unwrap().as_str(),
        "Other:81"
    );
    assert_eq!(head.path(), "/mcp");
    assert_eq!(
        read(request("GET https://other?x HTTP/1.1", ""))
            .unwrap()
            .path(),
        "/"
    );
    for target in [
        "ftp://other/",
        "http://a@other/",
        "http:///mcp",
        "http://",
        "other",
        "other:80",
        "?x",
    ] {
        refused(read(request(&format!("GET {target} HTTP/1.1"), "")), 400);
    }
}

#[test]
fn a_path_comes_without_its_query_and_undecoded() {
    let path = |target: &str| {
        let head = read(request(&format!("GET {target} HTTP/1.1"), "")).unwrap();
        head.path().to_owned()
    };
    assert_eq!(path("/"), "/");
    assert_eq!(path("/mcp?a=/b?c"), "/mcp");
    assert_eq!(path("/m%63p/../x"), "/m%63p/../x");
    assert_eq!(path("//other/mcp"), "//other/mcp");
}

#[test]
fn the_asterisk_is_for_options_only() {
    assert_eq!(read(request("OPTIONS * HTTP/1.1", "")).unwrap().path(), "*");
    refused(read(request("GET * HTTP/1.1", "")), 400);
    refused(read(request("OPTIONS *x HTTP/1.1", "")), 400);
}

#[test]
fn connect_is_405() {
    refused(read(request("CONNECT other:443 HTTP/1.1", "")), 405);
    refused(read(request("CONNECT / HTTP/1.1", "")), 405);
}

// Fields that may come once, and what they mean.

#[test]
fn fields_that_decide_something_may_not_come_twice() {
    for name in [
        "Mcp-Session-Id",
        "MCP-Protocol-Version",
        "Origin",
        "Content-Type",
        "Last-Event-ID",
        "Authorization",
    ] {
        assert!(post(&format!("{name}: x\r\n")).is_ok());
        refused(
            post(&format!(
                "{name}: x\r\n{}: x\r\n",
                name.to_ascii_uppercase()
            )),
            400,
        );
    }
}

#[test]
fn a_session_id_is_a_uuid_in_its_canonical_spelling() {
    let session = |value: &str| {
        post(&format!("Mcp-Session-Id: {value}\r\n"))
            .unwrap()
            .session
    };
    let id = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
    assert_eq!(
        session("01234567-89ab-cdef-0123-456789abcdef"),
        SessionHeader::Id(id)
    );
    assert_eq!(post("").unwrap().session, SessionHeader::Absent);
    for bad in [
        "",
        "x",
        "01234567-89AB-cdef-0123-456789abcdef",
        "0123456789abcdef0123456789abcdef",
        "{01234567-89ab-cdef-0123-456789abcdef}",
        "01234567-89ab-cdef-0123-456789abcdeg",
        "01234567-89ab-cdef-0123-456789abcde-",
        "012345678-9ab-cdef-0123-456789abcdef",
        "01234567-89ab-cdef-0123-456789abcdef0",
        "01234567-89ab-cdef-0123-456789abcdef,01234567-89ab-cdef-0123-456789abcdef",
    ] {
        assert_eq!(session(bad), SessionHeader::Malformed, "{bad}");
    }
}

#[test]
fn several_accept_connection_and_expect_fields_are_lists() {
    let head = post("Accept: application/json\r\nX: y\r\nAccept: text/event-stream\r\n").unwrap();
    assert!(head.accept.json && head.accept.sse);
    assert!(
        post("Connection: upgrade\r\nConnection: x, CLOSE\r\n")
            .unwrap()
            .close
    );
    refused(post("Expect: 100-continue\r\nExpect: x\r\n"), 417);
}

#[test]
fn persistence_is_as_rfc_9112_says() {
    let of = |head: Head| (head.http11, head.close, head.keep_alive_10);
    assert_eq!(of(post("").unwrap()), (true, false, false));
    assert_eq!(
        of(post("Connection: keep-alive, close\r\n").unwrap()),
        (true, true, false)
    );
    assert_eq!(of(post_10("").unwrap()), (false, true, false));
    assert_eq!(
        of(post_10("Connection: Keep-Alive\r\n").unwrap()),
        (false, false, true)
    );
    assert_eq!(
        of(post_10("Connection: keep-alive, close\r\n").unwrap()),
        (false, true, false)
    );
}

#[test]
fn upgrades_are_ignored() {
    let head = post("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n");
    assert!(!head.unwrap().close);
}

#[test]
fn only_a_body_on_http_11_can_wait_for_100() {
    let waits = |head: Result<Head, Refusal>| head.unwrap().expect_continue;
    assert!(waits(post("Expect: 100-Continue\r\nContent-Length: 3\r\n")));
    assert!(waits(post(
        "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n"
    )));
    assert!(!waits(post(
        "Expect: 100-continue\r\nContent-Length: 0\r\n"
    )));
    assert!(!waits(post("Expect: 100-continue\r\n")));
    assert!(!waits(post_10(
        "Expect: 100-continue\r\nContent-Length: 3\r\n"
    )));
    assert!(!waits(post_10("Expect: x\r\nContent-Length: 3\r\n")));
    refused(post("Expect: x\r\n"), 417);
}

#[test]
fn content_type_and_encoding_are_seen() {
    let head = post("Content-Type: application/json\r\nContent-Encoding: identity\r\n").unwrap();
    assert!(head.content_type_present && head.content_type_json && head.content_encoded);
    let head = post("Content-Type: text/plain\r\n").unwrap();
    assert!(head.content_type_present && !head.content_type_json && !head.content_encoded);
    assert!(!post("").unwrap().content_type_present);
}

#[test]
fn a_preflight_is_options_with_origin_and_requested_method() {
    let fields = "Origin: http://a\r\nAccess-Control-Request-Method: POST\r\n";
    let options = |fields: &str| read(request("OPTIONS /mcp HTTP/1.1", fields)).unwrap();
    assert!(options(fields).preflight);
    assert!(!options("Origin: http://a\r\n").preflight);
    assert!(!options("Access-Control-Request-Method: POST\r\n").preflight);
    assert!(!post(fields).unwrap().preflight);
}

#[test]
fn raw_values_are_kept() {
    let head = post(
        "Authorization: Bearer  x \r\nLast-Event-ID: a/1\r\nMCP-Protocol-Version: 2025-06-18\r\n\
         Origin: null\r\n",
    )
    .unwrap();
    assert_eq!(head.authorization.unwrap(), "Bearer  x");
    assert_eq!(head.last_event_id.unwrap(), "a/1");
    assert_eq!(head.protocol_version.unwrap(), "2025-06-18");
    assert_eq!(head.origin.unwrap(), "null");
    assert_eq!(head.host, "localhost");
}

// Properties.

/// Heads that are nearly right: legal pieces in any order, with a few wild bytes.
fn nearly_a_head() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec![
            "GET / HTTP/1.1\r\n", "POST /mcp?x HTTP/1.0\r\n", "OPTIONS * HTTP/1.1\r\n",
            "Host: localhost\r\n", "Host: [::1]:8080\r\n", "X-A:\t b c \r\n", "\r\n", "\r\n\r\n",
            "Transfer-Encoding: chunked\r\n", "Content-Length: 10\r\n", "Accept: */*\r\n",
            "Connection: keep-alive, close\r\n", "Expect: 100-continue\r\n", "HTTP/2.0", " ", ":",
        ]).prop_map(|s| s.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
        1 => (prop::sample::select(b"aA:/ \t\r\n".to_vec()), 0_usize..20_000)
            .prop_map(|(byte, count)| vec![byte; count]),
    ];
    (any::<bool>(), prop::collection::vec(piece, 0..12)).prop_map(|(start, pieces)| {
        let start = if start {
            &b"POST /mcp HTTP/1.1\r\n"[..]
        } else {
            b""
        };
        [start, &pieces.concat()].concat()
    })
}

proptest! {
    #[test]
    fn the_verdict_does_not_depend_on_how_the_stream_was_cut(
        bytes in nearly_a_head(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(whole(&bytes), pieces(&bytes, cuts.into_iter()));
    }

    #[test]
    fn what_is_accepted_is_what_httparse_reads(bytes in nearly_a_head()) {
        let Ok(Some(extent)) = whole(&bytes) else { return Ok(()) };
        let Ok(head) = head::read(&bytes, extent) else { return Ok(()) };
        let mut fields = [httparse::EMPTY_HEADER; 100];
        let mut oracle = httparse::Request::new(&mut fields);
        let end = oracle.parse(&bytes[extent.skip..]).unwrap();
        prop_assert_eq!(end, httparse::Status::Complete(extent.len - extent.skip));
        prop_assert_eq!(oracle.headers.len(), extent.fields);
        prop_assert_eq!(oracle.version, Some(u8::from(head.http11)));
        let host = oracle.headers.iter().find(|f| f.name.eq_ignore_ascii_case("host"));
        prop_assert_eq!(host.unwrap().value, head.host.as_bytes());
    }

    #[test]
    fn an_equal_head_has_an_equal_meaning(bytes in nearly_a_head(), rest in any::<[u8; 8]>()) {
        let Ok(Some(extent)) = whole(&bytes) else { return Ok(()) };
        let longer = [&bytes[..extent.len], &rest].concat();
        prop_assert_eq!(whole(&longer), Ok(Some(extent)));
        let (a, b) = (head::read(&bytes, extent), head::read(&longer, extent));
        prop_assert_eq!(format!("{a:?}"), format!("{b:?}"));
    }
}
