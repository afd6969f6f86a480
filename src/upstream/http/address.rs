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
#[derive(Clone, Default)]
pub struct Fields {
    /// Whole lines.
    added: Box<[u8]>,
    /// Names in lower case, without those that are added.
    passed: Box<[Box<str>]>,
    added_names: Box<[Box<str>]>,
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
        let mut added = Vec::new();
        let mut added_names = Vec::new();
        for line in add {
            let (name, value) = line.split_once(':').ok_or(FieldError::Form)?;
            let name = checked_name(name)?;
            let value = value.trim_matches([' ', '\t']);
            if !is_clean(value.as_bytes()) {
                return Err(FieldError::Value(name));
            }
            push_line(&mut added, &name, value.as_bytes());
            added_names.push(name.into());
        }
        let mut passed: Vec<Box<str>> = Vec::new();
        for name in pass {
            let name = checked_name(name)?.into_boxed_str();
            if &*name == "*" {
                return Err(FieldError::All);
            }
            if !added_names.contains(&name) && !passed.contains(&name) {
                passed.push(name);
            }
        }
        Ok(Fields {
            added: added.into(),
            passed: passed.into(),
            added_names: added_names.into(),
        })
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
        let passed = self
            .passed
            .iter()
            .find(|passed| passed.eq_ignore_ascii_case(name));
        match passed {
            Some(name) if is_clean(value) => {
                push_line(out, name, value);
                true
            }
            _ => false,
        }
    }
}

/// Names only.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fields")
            .field("added", &self.added_names)
            .field("passed", &self.passed)
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
}
