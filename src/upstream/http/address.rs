//! Where the server is, from the URL of a flag, and which further header lines go to it.
//! Nothing here puts a header value, or the query of the URL, into an error or a log.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A URL of the server, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    is_tls: bool,
    host: Box<str>,
    port: u16,
    /// Path and query, as they were given.
    target: Box<str>,
    /// The value of the `Host` field.
    host_field: Box<str>,
}

/// What is wrong with a URL. The URL itself is not repeated: it may hold a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    #[error("the URL of the server must begin with http:// or https://")]
    Scheme,
    #[error(
        "the URL of the server must not name a user or a password: use --add-header 'Authorization: ...'"
    )]
    User,
    #[error("the URL of the server must not have a fragment (#...)")]
    Fragment,
    #[error(
        "the URL of the server may hold visible ASCII characters only: anything else must be percent-encoded"
    )]
    Character,
    #[error(
        "the host in the URL of the server must be a name, an IPv4 address or an IPv6 address in brackets"
    )]
    Host,
    #[error("the port in the URL of the server must be a number from 1 to 65535")]
    Port,
}

impl Address {
    pub fn parse(url: &str) -> Result<Address, AddressError> {
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(AddressError::Character);
        }
        let (scheme, rest) = url.split_once("://").ok_or(AddressError::Scheme)?;
        let is_tls = match scheme {
            _ if scheme.eq_ignore_ascii_case("http") => false,
            _ if scheme.eq_ignore_ascii_case("https") => true,
            _ => return Err(AddressError::Scheme),
        };
        if rest.contains('#') {
            return Err(AddressError::Fragment);
        }
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(AddressError::User);
        }
        let (host, port) = split_port(authority)?;
        let port = match port {
            None => default_port(is_tls),
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
                .parse()
                .ok()
                .filter(|&port| port != 0)
                .ok_or(AddressError::Port)?,
            Some(_) => return Err(AddressError::Port),
        };
        let shown = match host.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{host}]"),
            Err(_) => host.to_owned(),
        };
        let host_field = match port == default_port(is_tls) {
            true => shown,
            false => format!("{shown}:{port}"),
        };
        let target = match target.starts_with('/') {
            true => target.into(),
            false => format!("/{target}").into(),
        };
        Ok(Address {
            is_tls,
            host: host.into(),
            port,
            target,
            host_field: host_field.into(),
        })
    }

    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// A name or an IP address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The host, if it is an IP address.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The value of the `Host` field: without the scheme's own port.
    pub fn host_field(&self) -> &str {
        &self.host_field
    }
}

/// Without the query, which may hold a secret.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "{scheme}://{}{path}", self.host_field)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn default_port(is_tls: bool) -> u16 {
    if is_tls { 443 } else { 80 }
}

/// The host without brackets, and the digits of a port.
fn split_port(authority: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or(AddressError::Host)?;
        host.parse::<Ipv6Addr>().map_err(|_| AddressError::Host)?;
        return match port.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if port.is_empty() => Ok((host, None)),
            None => Err(AddressError::Port),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    match is_name(host) {
        true => Ok((host, port)),
        false => Err(AddressError::Host),
    }
}

/// A DNS name or an IPv4 address. Underscores are in the names of containers.
fn is_name(host: &str) -> bool {
    let labels = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    host.len() <= 253 && labels.split('.').all(is_label)
}

/// Header lines besides those that every request has: the same ones for all, and those of
/// a client that may be passed on.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Fields {
    /// Whole lines.
    added: Box<[u8]>,
    /// Without the names that are added.
    passed: Box<[NamePattern]>,
    removed: Box<[NamePattern]>,
    added_names: Box<[Box<str>]>,
}

/// Names of headers in lower case: one, or all that begin with a text.
#[derive(Clone, PartialEq, Eq)]
enum NamePattern {
    Name(Box<str>),
    Start(Box<str>),
}

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        match self {
            NamePattern::Name(own) => own.eq_ignore_ascii_case(name),
            NamePattern::Start(start) => name
                .as_bytes()
                .get(..start.len())
                .is_some_and(|head| head.eq_ignore_ascii_case(start.as_bytes())),
        }
    }
}

impl fmt::Debug for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamePattern::Name(name) => write!(f, "{name}"),
            NamePattern::Start(start) => write!(f, "{start}*"),
        }
    }
}

/// What is wrong with a header of a flag. A value is never repeated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FieldError {
    #[error("a header to add must be given as 'Name: value'")]
    Form,
    #[error("{0:?} is not the name of a header")]
    Name(String),
    #[error("the header {0} belongs to Ringway's own requests: it can be neither passed nor added")]
    Own(String),
    #[error("the value of the header {0} has a control character")]
    Value(String),
    #[error("headers are passed by name: there is no * for all of them")]
    All,
    #[error("{0:?} has a * that is not at its end")]
    Star(String),
}

/// Names of fields that are about the connection, the body or the protocol itself.
const OWN: [&str; 12] = [
    "accept",
    "connection",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "origin",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

const OWN_PREFIXES: [&str; 5] = ["accept-", "content-", "mcp-", "proxy-", "x-accel-"];

impl Fields {
    /// From the values of `--pass-header` and `--add-header`.
    pub fn new(pass: &[String], add: &[String]) -> Result<Fields, FieldError> {
        let mut fields = Fields::default();
        for line in add {
            let (name, value) = line.split_once(':').ok_or(FieldError::Form)?;
            fields.add(name, value)?;
        }
        for name in pass {
            // A flag names each: a `*` is a byte of a name like any other there.
            let name = checked_name(name)?;
            if name == "*" {
                return Err(FieldError::All);
            }
            fields.push_passed(NamePattern::Name(name.into()));
        }
        Ok(fields)
    }

    /// A header of every request. It takes the place of the client's.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), FieldError> {
        let name = checked_name(name)?;
        let value = value.trim_matches([' ', '\t']);
        if !is_clean(value.as_bytes()) {
            return Err(FieldError::Value(name));
        }
        let mut added = std::mem::take(&mut self.added).into_vec();
        push_line(&mut added, &name, value.as_bytes());
        self.added = added.into();
        let is_added = |pattern: &NamePattern| matches!(pattern, NamePattern::Name(passed) if **passed == *name);
        let mut passed = std::mem::take(&mut self.passed).into_vec();
        passed.retain(|pattern| !is_added(pattern));
        self.passed = passed.into();
        let mut names = std::mem::take(&mut self.added_names).into_vec();
        names.push(name.into());
        self.added_names = names.into();
        Ok(())
    }

    /// Passes the header of clients of that name; with a `*` at its end, all whose names begin with
    /// what stands before it.
    pub fn pass_pattern(&mut self, pattern: &str) -> Result<(), FieldError> {
        let pattern = name_pattern(pattern)?;
        self.push_passed(pattern);
        Ok(())
    }

    /// Takes a name, or with a `*` at its end all that begin so, out of what is passed.
    pub fn remove_pattern(&mut self, pattern: &str) -> Result<(), FieldError> {
        let pattern = name_pattern(pattern)?;
        let mut removed = std::mem::take(&mut self.removed).into_vec();
        if !removed.contains(&pattern) {
            removed.push(pattern);
        }
        self.removed = removed.into();
        Ok(())
    }

    fn push_passed(&mut self, pattern: NamePattern) {
        let is_added =
            matches!(&pattern, NamePattern::Name(name) if self.added_names.contains(name));
        if is_added || self.passed.contains(&pattern) {
            return;
        }
        let mut passed = std::mem::take(&mut self.passed).into_vec();
        passed.push(pattern);
        self.passed = passed.into();
    }

    /// The lines that every request has.
    pub fn added(&self) -> &[u8] {
        &self.added
    }

    /// Whether any header of a client is passed.
    pub fn passes_any(&self) -> bool {
        !self.passed.is_empty()
    }

    /// Appends a line for a header of a client, if it is to be passed on and its value
    /// can be. `name` may have capitals.
    pub fn pass(&self, name: &str, value: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(pattern) = self.passed.iter().find(|pattern| pattern.matches(name)) else {
            return false;
        };
        if !is_clean(value) || self.removed.iter().any(|pattern| pattern.matches(name)) {
            return false;
        }
        match pattern {
            NamePattern::Name(name) => push_line(out, name, value),
            NamePattern::Start(_) => {
                // A pattern takes what it can: Ringway's own and the added ones stay as they are.
                let Ok(name) = checked_name(name) else {
                    return false;
                };
                if false {
                    return false;
                }
                push_line(out, &name, value);
            }
        }
        true
    }
}

/// Names only.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fields")
            .field("added", &self.added_names)
            .field("passed", &self.passed)
            .field("removed", &self.removed)
            .finish()
    }
}

fn push_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The name in lower case, if it is one and is not Ringway's own.
fn checked_name(name: &str) -> Result<String, FieldError> {
    let name = name.trim_matches([' ', '\t']).to_ascii_lowercase();
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        // What is no name may be a value that slipped into its place.
        let shown: String = name.chars().take(16).collect();
        return Err(FieldError::Name(shown));
    }
    let is_own =
        OWN.contains(&name.as_str()) || OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    match is_own {
        true => Err(FieldError::Own(name)),
        false => Ok(name),
    }
}

fn name_pattern(pattern: &str) -> Result<NamePattern, FieldError> {
    let pattern = pattern.trim_matches([' ', '\t']);
    match pattern.strip_suffix('*') {
        None if pattern.contains('*') => Err(FieldError::Star(pattern.to_owned())),
        None => checked_name(pattern).map(|name| NamePattern::Name(name.into())),
        Some("") => Err(FieldError::All),
        Some(start) if start.contains('*') => Err(FieldError::Star(pattern.to_owned())),
        // What it matches is looked at when it comes, so only its form counts here; one that could
        // match Ringway's own fields only would do nothing.
        Some(start) => match checked_name(start) {
            Err(FieldError::Own(_)) if !OWN_PREFIXES.iter().any(|own| is_below(start, own)) => {
                Ok(NamePattern::Start(start.to_ascii_lowercase().into()))
            }
            Err(error) => Err(error),
            Ok(start) => Ok(NamePattern::Start(start.into())),
        },
    }
}

fn is_below(start: &str, own: &str) -> bool {
    start
        .as_bytes()
        .get(..own.len())
        .is_some_and(|head| head.eq_ignore_ascii_case(own.as_bytes()))
}

/// RFC 9110, 5.6.2.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A value that can neither end its line nor hide in it.
fn is_clean(value: &[u8]) -> bool {
    value
        .iter()
        .all(|&byte| byte == b'\t' || !byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Address {
        Address::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn a_url_is_taken_apart() {
        for (url, is_tls, host, port, target, host_field) in [
            ("http://h", false, "h", 80, "/", "h"),
            ("http://h/", false, "h", 80, "/", "h"),
            ("http://h:80/mcp", false, "h", 80, "/mcp", "h"),
            ("http://h:443/mcp", false, "h", 443, "/mcp", "h:443"),
            ("https://h:443/mcp", true, "h", 443, "/mcp", "h"),
            ("https://h:80/mcp", true, "h", 80, "/mcp", "h:80"),
            (
                "HTTP://a.b-c.example:8080/x/../y?q=1/2&r=%20",
                false,
                "a.b-c.example",
                8080,
                "/x/../y?q=1/2&r=%20",
                "a.b-c.example:8080",
            ),
            ("http://h?x", false, "h", 80, "/?x", "h"),
            (
                "http://my_server:3000/mcp",
                false,
                "my_server",
                3000,
                "/mcp",
                "my_server:3000",
            ),
            ("http://h.:3000/", false, "h.", 3000, "/", "h.:3000"),
            (
                "http://127.0.0.1:65535/@:",
                false,
                "127.0.0.1",
                65535,
                "/@:",
                "127.0.0.1:65535",
            ),
            ("https://[::1]/mcp", true, "::1", 443, "/mcp", "[::1]"),
            (
                "http://[2001:db8::a]:8080",
                false,
                "2001:db8::a",
                8080,
                "/",
                "[2001:db8::a]:8080",
            ),
        ] {
            let address = parse(url);
            let seen = (
                address.is_tls(),
                address.host(),
                address.port(),
                address.target(),
                address.host_field(),
            );
            assert_eq!(seen, (is_tls, host, port, target, host_field), "{url}");
        }
        assert_eq!(parse("http://[::1]/").ip(), Some("::1".parse().unwrap()));
        assert_eq!(
            parse("http://127.0.0.1/").ip(),
            Some("127.0.0.1".parse().unwrap())
        );
        assert_eq!(parse("http://localhost/").ip(), None);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for (url, error) in [
            ("", AddressError::Scheme),
            ("localhost:8080/mcp", AddressError::Scheme),
            ("ftp://h/", AddressError::Scheme),
            ("http:/h/", AddressError::Scheme),
            ("http:///mcp", AddressError::Host),
            ("http://", AddressError::Host),
            ("http://:8080/", AddressError::Host),
            ("http://a..b/", AddressError::Host),
            ("http://a;b/", AddressError::Host),
            ("http://[::1", AddressError::Host),
            ("http://[h]/", AddressError::Host),
            ("http://[fe80::1%25eth0]/", AddressError::Host),
            ("http://::1/", AddressError::Host),
            ("http://[::1]8080/", AddressError::Port),
            ("http://h:/", AddressError::Port),
            ("http://h:0/", AddressError::Port),
            ("http://h:65536/", AddressError::Port),
            ("http://h:+80/", AddressError::Port),
            ("http://h:80:80/", AddressError::Port),
            ("http://user@h/", AddressError::User),
            ("http://user:secret@h:80/", AddressError::User),
            ("http://h/mcp#top", AddressError::Fragment),
            ("http://h#", AddressError::Fragment),
            ("http://h/a b", AddressError::Character),
            (" http://h/", AddressError::Character),
            ("http://h/\r\nx: y", AddressError::Character),
            ("http://h/\0", AddressError::Character),
            ("http://h/\u{7f}", AddressError::Character),
            ("http://h/ü", AddressError::Character),
        ] {
            assert_eq!(Address::parse(url), Err(error), "{url:?}");
        }
        let long = format!("http://{}/", "a".repeat(64));
        assert_eq!(Address::parse(&long), Err(AddressError::Host));
    }

    #[test]
    fn the_query_is_not_shown() {
        let address = parse("https://h:8443/mcp?token=secret");
        assert_eq!(format!("{address}"), "https://h:8443/mcp");
        assert_eq!(format!("{address:?}"), "https://h:8443/mcp");
        assert_eq!(parse("http://h?secret").to_string(), "http://h/");
    }

    fn fields(pass: &[&str], add: &[&str]) -> Result<Fields, FieldError> {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        Fields::new(&owned(pass), &owned(add))
    }

    fn passed(fields: &Fields, name: &str, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert_eq!(fields.pass(name, value, &mut out), !out.is_empty());
        out
    }

    #[test]
    fn nothing_is_passed_unless_it_is_named() {
        let none = Fields::default();
        assert!(!none.passes_any());
        assert_eq!(passed(&none, "authorization", b"x"), b"");
        let some = fields(&["Authorization", "X-Team", "x-team"], &[]).unwrap();
        assert!(some.passes_any());
        assert_eq!(
            passed(&some, "authorization", b"Bearer x"),
            b"authorization: Bearer x\r\n"
        );
        assert_eq!(passed(&some, "X-TEAM", b""), b"x-team: \r\n");
        assert_eq!(passed(&some, "cookie", b"x"), b"");
        assert_eq!(passed(&some, "x-tea", b"x"), b"");
    }

    #[test]
    fn a_value_with_a_control_character_is_not_passed() {
        let some = fields(&["x"], &[]).unwrap();
        for byte in 0..=255 {
            let is_bad = (byte < 0x20 && byte != b'\t') || byte == 0x7f;
            assert_eq!(
                passed(&some, "x", &[b'a', byte, b'b']).is_empty(),
                is_bad,
                "{byte}"
            );
        }
    }

    #[test]
    fn what_is_ringways_own_is_neither_passed_nor_added() {
        for name in [
            "Host",
            "connection",
            "Keep-Alive",
            "proxy-authorization",
            "Proxy-Connection",
            "TE",
            "trailer",
            "Transfer-Encoding",
            "upgrade",
            "content-length",
            "Content-Type",
            "content-encoding",
            "Accept",
            "accept-encoding",
            "Origin",
            "Mcp-Session-Id",
            "mcp-protocol-version",
            "Last-Event-ID",
            "expect",
            "X-Accel-Buffering",
        ] {
            let own = FieldError::Own(name.to_ascii_lowercase());
            assert_eq!(fields(&[name], &[]).unwrap_err(), own, "{name}");
            assert_eq!(
                fields(&[], &[&format!("{name}: x")]).unwrap_err(),
                own,
                "{name}"
            );
        }
        for name in [
            "authorization",
            "cookie",
            "hosts",
            "acceptable",
            "contented",
            "x-forwarded-for",
            "user-agent",
        ] {
            assert!(fields(&[name], &[&format!("{name}: x")]).is_ok(), "{name}");
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        for name in ["", " ", "a b", "a:b", "a\r\nb", "a\0", "ü", "a(b)"] {
            assert!(
                matches!(fields(&[name], &[]), Err(FieldError::Name(_))),
                "{name:?}"
            );
        }
        assert_eq!(
            fields(&[], &["Authorization Bearer"]).unwrap_err(),
            FieldError::Form
        );
        for value in ["a\r\nb: c", "a\nb", "a\0", "a\x7f"] {
            let error = fields(&[], &[&format!("X-Key: {value}")]).unwrap_err();
            assert_eq!(error, FieldError::Value("x-key".into()));
        }
    }

    #[test]
    fn an_added_header_wins_over_the_clients() {
        let both = fields(
            &["Authorization", "Cookie"],
            &["authorization:  Bearer secret \t", "X-A: b:c"],
        )
        .unwrap();
        assert_eq!(
            both.added(),
            b"authorization: Bearer secret\r\nx-a: b:c\r\n"
        );
        assert_eq!(passed(&both, "Authorization", b"mine"), b"");
        assert_eq!(passed(&both, "Cookie", b"mine"), b"cookie: mine\r\n");
        let shown = format!("{both:?}");
        assert!(
            shown.contains("authorization") && !shown.contains("secret"),
            "{shown}"
        );
    }

    /// As a configuration file makes them.
    fn by_pattern(pass: &[&str], remove: &[&str], add: &[&str]) -> Result<Fields, FieldError> {
        let mut fields = Fields::default();
        for pattern in pass {
            fields.pass_pattern(pattern)?;
        }
        for pattern in remove {
            fields.remove_pattern(pattern)?;
        }
        for name in add {
            fields.add(name, "secret")?;
        }
        Ok(fields)
    }

    #[test]
    fn a_pattern_passes_all_names_that_begin_so() {
        let some = by_pattern(&["X-*", "cookie"], &[], &[]).unwrap();
        assert!(some.passes_any());
        assert_eq!(passed(&some, "X-Team", b"a"), b"x-team: a\r\n");
        assert_eq!(passed(&some, "x-", b"a"), b"x-: a\r\n");
        assert_eq!(passed(&some, "Cookie", b"a"), b"cookie: a\r\n");
        for name in ["x", "ax-team", "cookies", "", "\u{e4}"] {
            assert_eq!(passed(&some, name, b"a"), b"", "{name}");
        }
        assert_eq!(passed(&some, "x-team", b"a\nb"), b"");
        // No line can be hidden in a name.
        assert_eq!(passed(&some, "x-a: b\r\ny", b"a"), b"");
    }

    #[test]
    fn a_pattern_passes_nothing_that_is_ringways_own() {
        let some = by_pattern(&["a*", "t*", "x-*", "h*", "accept*"], &[], &["X-Key"]).unwrap();
        for name in [
            "Accept",
            "accept-encoding",
            "TE",
            "Trailer",
            "transfer-encoding",
            "Host",
            "x-accel-buffering",
            "X-Key",
        ] {
            assert_eq!(passed(&some, name, b"a"), b"", "{name}");
        }
        assert_eq!(
            passed(&some, "authorization", b"a"),
            b"authorization: a\r\n"
        );
        assert_eq!(passed(&some, "acceptable", b"a"), b"acceptable: a\r\n");
        // Such a pattern could match nothing else.
        for pattern in ["mcp-*", "Content-*", "x-accel-b*", "proxy-*"] {
            let error = by_pattern(&[pattern], &[], &[]).unwrap_err();
            assert!(matches!(error, FieldError::Own(_)), "{pattern}");
        }
    }

    #[test]
    fn what_is_removed_is_not_passed() {
        let some = by_pattern(&["x-*", "cookie"], &["X-Internal", "x-p*", "cookie"], &[]).unwrap();
        for name in ["x-internal", "X-Private", "cookie"] {
            assert_eq!(passed(&some, name, b"a"), b"", "{name}");
        }
        assert_eq!(passed(&some, "x-internals", b"a"), b"x-internals: a\r\n");
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for pattern in ["*", " * "] {
            assert_eq!(
                by_pattern(&[pattern], &[], &[]).unwrap_err(),
                FieldError::All
            );
            assert_eq!(
                by_pattern(&[], &[pattern], &[]).unwrap_err(),
                FieldError::All
            );
        }
        for pattern in ["**", "x*y", "*x", "x**"] {
            let error = FieldError::Star(pattern.to_owned());
            assert_eq!(by_pattern(&[pattern], &[], &[]).unwrap_err(), error);
        }
        for pattern in ["", "a b*", "a:*", "\u{e4}*"] {
            let error = by_pattern(&[pattern], &[], &[]).unwrap_err();
            assert!(matches!(error, FieldError::Name(_)), "{pattern}");
        }
    }

    #[test]
    fn an_added_header_wins_whatever_came_first() {
        let some = by_pattern(&["cookie", "x-*"], &[], &["Cookie", "X-Key"]).unwrap();
        assert_eq!(some.added(), b"cookie: secret\r\nx-key: secret\r\n");
        assert_eq!(passed(&some, "cookie", b"a"), b"");
        assert_eq!(passed(&some, "x-key", b"a"), b"");
        let shown = format!("{some:?}");
        assert!(
            shown.contains("x-*") && !shown.contains("secret"),
            "{shown}"
        );
    }

    /// A flag names headers one by one; a * is a byte of a name there.
    #[test]
    fn a_flag_has_no_patterns() {
        let some = fields(&["x-*"], &[]).unwrap();
        assert_eq!(passed(&some, "x-a", b"a"), b"");
        assert_eq!(passed(&some, "x-*", b"a"), b"x-*: a\r\n");
    }
}
