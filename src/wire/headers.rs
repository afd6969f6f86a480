//! The rules of the HTTP header values that a gateway has to judge: `Accept`, media types, `Host`
//! and `Origin`, comma-separated lists and the fixed CORS answers. Pure functions over bytes that
//! a hostile client wrote: no state, no I/O, no allocation. Nothing here panics on any input, and
//! a value that cannot be read is never taken for an allowed one.
#![forbid(unsafe_code)]

use std::net::Ipv6Addr;

/// `Access-Control-Allow-Methods`: the methods of Streamable HTTP.
pub const CORS_ALLOW_METHODS: &str = "GET, POST, DELETE, OPTIONS";
/// `Access-Control-Allow-Headers`: what MCP clients in a browser send.
pub const CORS_ALLOW_HEADERS: &str = "Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, \
     Last-Event-ID, Authorization, Content-Type, Accept";
/// `Access-Control-Expose-Headers`: what a browser script may read of an answer.
pub const CORS_EXPOSE_HEADERS: &str = "Mcp-Session-Id";
/// `Vary` on every answer whose CORS fields depend on the request.
pub const CORS_VARY: &str = "Origin";
/// `Access-Control-Max-Age`, seconds. Browsers cap it at two hours or less.
pub const CORS_MAX_AGE: &str = "7200";

/// What a request's `Accept` fields let the answer be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// `application/json` is acceptable.
    pub json: bool,
    /// `text/event-stream` is acceptable.
    pub sse: bool,
    /// `application/json` was named itself, not only covered by a wildcard or by silence.
    pub json_named: bool,
    /// `text/event-stream` was named itself.
    pub sse_named: bool,
}

impl Accept {
    /// A request without `Accept` takes anything (RFC 9110, 12.5.1).
    pub const ANY: Self = Self {
        json: true,
        sse: true,
        json_named: false,
        sse_named: false,
    };
}

/// The best rule seen so far for one media type: how specific it is, and whether its weight was
/// above zero.
#[derive(Clone, Copy, Default)]
struct Rule {
    specificity: u8,
    allowed: bool,
}

impl Rule {
    fn offer(&mut self, specificity: u8, allowed: bool) {
        if specificity > self.specificity {
            *self = Self {
                specificity,
                allowed,
            };
        } else if specificity == self.specificity {
            self.allowed |= allowed;
        }
    }
}

const ANY_TYPE: u8 = 1;
const ANY_SUBTYPE: u8 = 2;
const EXACT: u8 = 3;

/// Reads all `Accept` fields of a request as one list. No field, or only empty ones, counts as
/// [`Accept::ANY`]; the most specific range that covers a type decides about it, `q=0` excludes.
/// A range that cannot be read is skipped.
pub fn accept<'a>(values: impl Iterator<Item = &'a [u8]>) -> Accept {
    let (mut json, mut sse) = (Rule::default(), Rule::default());
    let mut empty = true;
    for element in values.flat_map(list) {
        empty = false;
        let Some((range, allowed)) = media_range(element) else {
            continue;
        };
        if range == b"*/*" {
            json.offer(ANY_TYPE, allowed);
            sse.offer(ANY_TYPE, allowed);
        } else if range.eq_ignore_ascii_case(b"application/*") {
            json.offer(ANY_SUBTYPE, allowed);
        } else if range.eq_ignore_ascii_case(b"text/*") {
            sse.offer(ANY_SUBTYPE, allowed);
        } else if range.eq_ignore_ascii_case(b"application/json") {
            json.offer(EXACT, allowed);
        } else if range.eq_ignore_ascii_case(b"text/event-stream") {
            sse.offer(EXACT, allowed);
        }
    }
    if empty {
        return Accept::ANY;
    }
    Accept {
        json: json.allowed,
        sse: sse.allowed,
        json_named: json.allowed && json.specificity == EXACT,
        sse_named: sse.allowed && sse.specificity == EXACT,
    }
}

/// The bare range of a list element, and whether its weight is above zero.
fn media_range(element: &[u8]) -> Option<(&[u8], bool)> {
    let mut parts = split_unquoted(element, b';');
    let range = trim(parts.next()?);
    let mut allowed = true;
    for parameter in parts {
        let (name, value) = split_once(trim(parameter), b'=');
        if trim(name).eq_ignore_ascii_case(b"q") {
            allowed = weight_above_zero(trim(value?))?;
            break;
        }
    }
    Some((range, allowed))
}

/// RFC 9110, 12.4.2: `0` or `1` with at most three decimals.
fn weight_above_zero(value: &[u8]) -> Option<bool> {
    let (whole, decimals) = split_once(value, b'.');
    let decimals = decimals.unwrap_or_default();
    if decimals.len() > 3 || !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let fraction = decimals.iter().any(|digit| *digit != b'0');
    match whole {
        b"0" => Some(fraction),
        b"1" if !fraction => Some(true),
        _ => None,
    }
}

/// Whether a `Content-Type` says JSON: `application/json`, any parameters, but a `charset` only
/// if it is UTF-8 (the body is checked as UTF-8, whatever the header says).
pub fn is_json_media_type(value: &[u8]) -> bool {
    let mut parts = split_unquoted(value, b';');
    let Some(essence) = parts.next() else {
        return false;
    };
    if !trim(essence).eq_ignore_ascii_case(b"application/json") {
        return false;
    }
    parts.map(trim).filter(|p| !p.is_empty()).all(|parameter| {
        let (name, value) = split_once(parameter, b'=');
        let Some(value) = value.and_then(parameter_value) else {
            return false;
        };
        is_token(name)
            && (!name.eq_ignore_ascii_case(b"charset")
                || value.eq_ignore_ascii_case(b"utf-8")
                || value.eq_ignore_ascii_case(b"utf8"))
    })
}

/// A token, or the inside of a quoted string (escapes are left in place: no value that matters
/// here needs one).
fn parameter_value(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', inside @ .., b'"'] => Some(inside),
        _ => is_token(value).then_some(value),
    }
}

/// The elements of a comma-separated field value: trimmed, empty ones left out, commas inside
/// quoted strings not counted as separators (RFC 9110, 5.6.1).
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    split_unquoted(value, b',')
        .map(trim)
        .filter(|element| !element.is_empty())
}

/// Splits at `separator` outside of quoted strings. An unterminated quote runs to the end.
fn split_unquoted(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let value = rest?;
        let (mut quoted, mut escaped) = (false, false);
        let end = value.iter().position(|&byte| {
            if escaped {
                escaped = false;
            } else if byte == b'"' {
                quoted = !quoted;
            } else if quoted {
                escaped = byte == b'\\';
            } else {
                return byte == separator;
            }
            false
        });
        match end {
            Some(at) => {
                rest = Some(&value[at + 1..]);
                Some(&value[..at])
            }
            None => rest.take(),
        }
    })
}

fn split_once(value: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    match value.iter().position(|&byte| byte == separator) {
        Some(at) => (&value[..at], Some(&value[at + 1..])),
        None => (value, None),
    }
}

/// Optional white space of HTTP is space and tab, nothing else.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// RFC 9110, 5.6.2: one or more token characters.
pub fn is_token(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|&byte| is_token_byte(byte))
}

/// RFC 9110, 5.6.2.
pub const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// The host of an authority. Names compare without case; a name with a trailing dot is another
/// name, so it matches nothing that was configured without one.
#[derive(Debug, Clone, Copy)]
pub enum Host<'a> {
    /// A DNS name or an IPv4 address, as written.
    Name(&'a [u8]),
    /// The inside of `[...]`, so that every spelling of one address is equal.
    V6(Ipv6Addr),
}

impl PartialEq for Host<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(a), Self::Name(b)) => a.eq_ignore_ascii_case(b),
            (Self::V6(a), Self::V6(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Host<'_> {}

impl Host<'_> {
    /// `localhost`, `127.0.0.1` or `::1`; no other spelling and no other address of 127/8.
    pub fn is_loopback(&self) -> bool {
        *self == Host::Name(b"localhost")
            || *self == Host::Name(b"127.0.0.1")
            || *self == Host::V6(Ipv6Addr::LOCALHOST)
    }
}

/// `host[:port]`, without user information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authority<'a> {
    /// The host.
    pub host: Host<'a>,
    /// The port; `None` where it is missing or empty (`localhost:` is legal).
    pub port: Option<u16>,
}

/// Reads a `Host` value or the authority of an absolute-form target. `None` for anything but
/// unreserved characters (RFC 3986, 2.3) or a bracketed IPv6 address, and a port up to 65,535:
/// user information, commas, spaces, percent signs and zone ids are all refused.
pub fn authority(value: &[u8]) -> Option<Authority<'_>> {
    let (host, after) = if let [b'[', rest @ ..] = value {
        let (inside, after) = split_once(rest, b']');
        let text = std::str::from_utf8(inside).ok()?;
        (Host::V6(text.parse().ok()?), after?)
    } else {
        let end = value.iter().position(|&b| b == b':').unwrap_or(value.len());
        let (name, after) = value.split_at(end);
        let plain = |&b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
        if name.is_empty() || !name.iter().all(plain) {
            return None;
        }
        (Host::Name(name), after)
    };
    let port = match after {
        [] | [b':'] => None,
        [b':', digits @ ..] => Some(port(digits)?),
        _ => return None,
    };
    Some(Authority { host, port })
}

fn port(digits: &[u8]) -> Option<u16> {
    if digits.len() > 5 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// `scheme://host[:port]` as a browser sends it in `Origin`.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The scheme as written; compares without case.
    pub scheme: &'a [u8],
    /// Host, and the port where it is not the scheme's own.
    pub authority: Authority<'a>,
}

impl PartialEq for Origin<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.scheme.eq_ignore_ascii_case(other.scheme) && self.authority == other.authority
    }
}

impl Eq for Origin<'_> {}

impl Origin<'_> {
    /// Whether it is an http or https page of this machine, on any port.
    pub fn is_loopback(&self) -> bool {
        (self.scheme.eq_ignore_ascii_case(b"http") || self.scheme.eq_ignore_ascii_case(b"https"))
            && self.authority.host.is_loopback()
    }
}

/// Reads one origin. `None` for `null`, a list, a path, a missing scheme, user information, or an
/// empty port. `https://a.example:443` and `https://a.example` are the same origin.
pub fn origin(value: &[u8]) -> Option<Origin<'_>> {
    let (scheme, rest) = split_once(value, b':');
    let [b'/', b'/', rest @ ..] = rest? else {
        return None;
    };
    let letter = scheme.first()?.is_ascii_alphabetic();
    let legal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    if !letter || !scheme.iter().all(legal) || rest.ends_with(b":") {
        return None;
    }
    let mut authority = authority(rest)?;
    let own_port = if scheme.eq_ignore_ascii_case(b"http") {
        Some(80)
    } else if scheme.eq_ignore_ascii_case(b"https") {
        Some(443)
    } else {
        None
    };
    if authority.port == own_port {
        authority.port = None;
    }
    Some(Origin { scheme, authority })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(values: &[&str]) -> (bool, bool) {
        let read = accept(values.iter().map(|v| v.as_bytes()));
        (read.json, read.sse)
    }

    #[test]
    fn a_missing_or_empty_accept_takes_everything() {
        assert_eq!(accepts(&[]), (true, true));
        assert_eq!(accepts(&["", " , "]), (true, true));
    }

    #[test]
    fn wildcards_count_for_the_types_they_cover() {
        assert_eq!(accepts(&["*/*"]), (true, true));
        assert_eq!(accepts(&["application/*"]), (true, false));
        assert_eq!(accepts(&["TEXT/*"]), (false, true));
        assert_eq!(accepts(&["image/*, text/html"]), (false, false));
    }

    #[test]
    fn several_accept_fields_are_one_list() {
        let types = ["application/json", "Text/Event-Stream;q=0.5"];
        assert_eq!(accepts(&types), (true, true));
        let read = accept(types.iter().map(|v| v.as_bytes()));
        assert!(read.json_named && read.sse_named);
        assert!(!accept([&b"*/*"[..]].into_iter()).json_named);
    }

    #[test]
    fn weight_zero_excludes_and_the_most_specific_range_wins() {
        assert_eq!(accepts(&["application/json;q=0, */*"]), (false, true));
        assert_eq!(
            accepts(&["*/*;q=0, text/event-stream ; Q=0.001"]),
            (false, true)
        );
        assert_eq!(
            accepts(&["application/*;q=0.000, application/json"]),
            (true, false)
        );
        assert_eq!(
            accepts(&["application/json;q=0, application/json;q=1.000"]),
            (true, false)
        );
    }

    #[test]
    fn a_range_with_a_weight_that_cannot_be_read_is_skipped() {
        for weight in ["2", "1.001", "0.0000", "-1", "", "x", "0,5"] {
            let value = format!("application/json;q={weight}");
            assert_eq!(accepts(&[&value]), (false, false), "{value}");
        }
        assert_eq!(accepts(&["application/json;q"]), (false, false));
    }

    #[test]
    fn commas_in_quoted_strings_do_not_split() {
        assert_eq!(
            accepts(&["text/plain;a=\"\\\", application/json,\""]),
            (false, false)
        );
        let elements: Vec<_> = list(b"a, \"b,c\" ,, d\"e,").collect();
        assert_eq!(elements, [&b"a"[..], b"\"b,c\"", b"d\"e,"]);
    }

    #[test]
    fn json_content_types() {
        for yes in [
            "application/json",
            "Application/JSON ; charset=UTF-8",
            "application/json;charset=\"utf-8\"",
            "application/json; version=1;",
            "application/json;charset=utf8",
        ] {
            assert!(is_json_media_type(yes.as_bytes()), "{yes}");
        }
        for no in [
            "",
            "text/json",
            "application/jsonx",
            "application/json, text/plain",
            "application/json;charset=latin1",
            "application/json;charset",
            "application/json;charset=\"utf-8",
            "application/json;=x",
            "application/json-rpc",
        ] {
            assert!(!is_json_media_type(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn authorities_that_are_legal() {
        let read = |text: &'static str| authority(text.as_bytes()).unwrap();
        assert_eq!(read("LocalHost:80").port, Some(80));
        assert!(read("LocalHost:80").host.is_loopback());
        assert!(read("127.0.0.1:").host.is_loopback());
        assert!(read("[::1]").host.is_loopback());
        assert!(read("[0:0:0:0:0:0:0:1]:8080").host.is_loopback());
        assert!(!read("[::2]").host.is_loopback());
        assert_eq!(read("a_b-c.example:65535").port, Some(65535));
    }

    #[test]
    fn authorities_that_are_refused() {
        for bad in [
            "",
            ":80",
            "user@localhost",
            "localhost:80@evil.example",
            "localhost,evil.example",
            "local host",
            "localhost:65536",
            "localhost:000080",
            "localhost:+80",
            "localhost:80:80",
            "localhost/",
            "%6cocalhost",
            "::1",
            "[::1",
            "[::1]x",
            "[::1%25lo]",
            "[localhost]",
            "[]",
            "loc\u{e4}lhost",
        ] {
            assert!(authority(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    #[test]
    fn look_alikes_are_not_loopback() {
        for other in [
            "localhost.",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.2",
            "127.1",
            "evil-localhost",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(
                !authority(other.as_bytes()).unwrap().host.is_loopback(),
                "{other}"
            );
        }
    }

    #[test]
    fn origins_that_are_legal() {
        let read = |text: &'static str| origin(text.as_bytes()).unwrap();
        assert!(read("http://localhost:5173").is_loopback());
        assert!(read("HTTPS://[::1]").is_loopback());
        assert!(!read("ftp://localhost").is_loopback());
        assert_eq!(
            read("https://a.example:443"),
            read("https://A.example"),
            "a scheme's own port is no other origin"
        );
        assert_ne!(read("http://a.example:443"), read("http://a.example"));
        assert_eq!(read("chrome-extension://abc").authority.port, None);
    }

    #[test]
    fn origins_that_are_refused() {
        for bad in [
            "",
            "null",
            "localhost",
            "http:localhost",
            "http://",
            "http://localhost/",
            "http://localhost:",
            "http://localhost http://localhost",
            "http://localhost,http://localhost",
            "http://a@localhost",
            "1http://localhost",
            "://localhost",
        ] {
            assert!(origin(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
