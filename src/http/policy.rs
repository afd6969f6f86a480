//! Who may talk to this listener from a browser: the check of `Host` against DNS rebinding and of
//! `Origin` against foreign pages, and the origin that CORS answers name. Built once from the
//! flags and never changed; what cannot be read or compared is refused.
#![forbid(unsafe_code)]

use super::head::Head;
use crate::wire::headers::{self, Authority};

/// A flag that cannot be used, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// `--allow-host` is no authority.
    #[error("--allow-host {0:?} must be a host, host:port or [IPv6]:port, without scheme or path")]
    Host(String),
    /// `--allow-origin` is no origin.
    #[error(
        "--allow-origin {0:?} must be one exact origin such as https://app.example:8443, \
         without path or wildcard"
    )]
    Origin(String),
}

/// Why a request is answered with 403. The text is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// `Host`, or the authority of an absolute-form target.
    #[error("this Host is not served here; start Ringway with --allow-host to serve it")]
    Host,
    /// `Origin`.
    #[error("this Origin is not allowed; start Ringway with --allow-origin to allow it")]
    Origin,
}

/// The rules of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    loopback: bool,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Policy {
    /// `loopback`: the listener is bound to a loopback address only. `allow_hosts`: `host` (any
    /// port) or `host:port`. `allow_origins`: exact origins.
    ///
    /// # Errors
    /// The first entry that is not of that form.
    pub fn new(
        loopback: bool,
        allow_hosts: &[String],
        allow_origins: &[String],
    ) -> Result<Self, PolicyError> {
        // `host:` would be read as any port; it is more likely a slip.
        let host_ok = |h: &str| !h.ends_with(':') && headers::authority(h.as_bytes()).is_some();
        if let Some(bad) = allow_hosts.iter().find(|h| !host_ok(h)) {
            return Err(PolicyError::Host(bad.clone()));
        }
        let origin_ok = |o: &str| headers::origin(o.as_bytes()).is_some();
        if let Some(bad) = allow_origins.iter().find(|o| !origin_ok(o)) {
            return Err(PolicyError::Origin(bad.clone()));
        }
        Ok(Self {
            loopback,
            hosts: allow_hosts.to_vec(),
            origins: allow_origins.to_vec(),
        })
    }

    /// Whether the request may go on.
    ///
    /// # Errors
    /// [`Forbidden`], to be answered with 403.
    pub fn check(&self, head: &Head) -> Result<(), Forbidden> {
        let target = head.absolute_authority.as_ref();
        if !self.host_allowed(head.host.as_bytes())
            || target.is_some_and(|a| !self.host_allowed(a.as_str().as_bytes()))
        {
            return Err(Forbidden::Host);
        }
        match &head.origin {
            Some(origin) if !self.origin_allowed(origin.as_bytes()) => Err(Forbidden::Origin),
            _ => Ok(()),
        }
    }

    /// The value for `Access-Control-Allow-Origin`: the request's own `Origin`, if it is allowed.
    pub fn cors_origin<'h>(&self, head: &'h Head) -> Option<&'h [u8]> {
        let origin = head.origin.as_ref()?.as_bytes();
        self.origin_allowed(origin).then_some(origin)
    }

    fn host_allowed(&self, value: &[u8]) -> bool {
        let Some(host) = headers::authority(value) else {
            return false;
        };
        if self.loopback && host.host.is_loopback() {
            return true;
        }
        if !self.loopback && self.hosts.is_empty() {
            return true;
        }
        self.hosts
            .iter()
            .filter_map(|entry| headers::authority(entry.as_bytes()))
            .any(|entry| entry.host == host.host && port_allowed(entry, host))
    }

    fn origin_allowed(&self, value: &[u8]) -> bool {
        let Some(origin) = headers::origin(value) else {
            return false;
        };
        (self.loopback && origin.is_loopback())
            || self
                .origins
                .iter()
                .any(|entry| headers::origin(entry.as_bytes()) == Some(origin))
    }
}

/// An entry without a port allows all of them. A client leaves out the port of its scheme, and
/// behind a TLS terminator that is 443, so a missing port stands for 80 and for 443.
fn port_allowed(entry: Authority<'_>, host: Authority<'_>) -> bool {
    match (entry.port, host.port) {
        (None, _) => true,
        (Some(80 | 443), None) => true,
        (wanted, port) => wanted == port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{guard::HeadGuard, head};

    fn policy(loopback: bool, hosts: &[&str], origins: &[&str]) -> Policy {
        let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        Policy::new(loopback, &owned(hosts), &owned(origins)).unwrap()
    }

    fn head(text: &str) -> Head {
        let extent = HeadGuard::new().advance(text.as_bytes()).unwrap().unwrap();
        head::read(text.as_bytes(), extent).unwrap()
    }

    fn host(policy: &Policy, host: &str) -> bool {
        let head = head(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        policy.check(&head).is_ok()
    }

    fn origin(policy: &Policy, origin: &str) -> bool {
        let head = head(&format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n"
        ));
        let allowed = policy.check(&head) == Ok(());
        assert_eq!(policy.cors_origin(&head).is_some(), allowed);
        allowed
    }

    #[test]
    fn a_loopback_listener_serves_loopback_names_on_any_port() {
        let policy = policy(true, &[], &[]);
        for yes in ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:65535"] {
            assert!(host(&policy, yes), "{yes}");
        }
        for no in [
            "localhost.",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "evil.com",
            "0.0.0.0",
            "[::]",
        ] {
            assert!(!host(&policy, no), "{no}");
        }
    }

    #[test]
    fn allowed_hosts_are_added_on_loopback_and_exclusive_elsewhere() {
        let local = policy(true, &["mcp.example", "b.example:443"], &[]);
        for yes in ["localhost", "MCP.example:99", "b.example", "b.example:443"] {
            assert!(host(&local, yes), "{yes}");
        }
        assert!(!host(&local, "b.example:444"));
        assert!(!host(&local, "mcp.example."));

        let open = policy(false, &[], &[]);
        assert!(host(&open, "anything.example"));
        let listed = policy(false, &["mcp.example:8080"], &[]);
        assert!(host(&listed, "mcp.example:8080"));
        assert!(!host(&listed, "mcp.example"));
        assert!(!host(&listed, "localhost"));
    }

    #[test]
    fn an_absolute_target_must_pass_the_host_check_too() {
        let policy = policy(true, &[], &[]);
        let good = head("GET http://127.0.0.1/ HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(policy.check(&good), Ok(()));
        let bad = head("GET http://evil.com/ HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(policy.check(&bad), Err(Forbidden::Host));
    }

    #[test]
    fn a_loopback_listener_takes_loopback_origins_and_exact_others() {
        let policy = policy(true, &[], &["https://app.example:8443"]);
        for yes in [
            "http://localhost:5173",
            "https://127.0.0.1",
            "http://[::1]:80",
            "https://APP.example:8443",
        ] {
            assert!(origin(&policy, yes), "{yes}");
        }
        for no in [
            "null",
            "",
            "https://app.example",
            "http://app.example:8443",
            "https://app.example:8443.evil.com",
            "http://localhost.evil.com",
            "http://localhost:80@evil.com",
            "ftp://localhost",
            "http://localhost/",
            "http://localhost, http://localhost",
            "localhost",
        ] {
            assert!(!origin(&policy, no), "{no}");
        }
    }

    #[test]
    fn other_listeners_refuse_every_origin_that_is_not_listed() {
        let bare = policy(false, &[], &[]);
        assert!(!origin(&bare, "http://localhost"));
        let listed = policy(false, &[], &["https://app.example"]);
        assert!(origin(&listed, "https://app.example"));
        assert!(!origin(&listed, "http://localhost"));
    }

    #[test]
    fn flags_that_cannot_be_used_are_refused_at_start() {
        for bad in [
            "",
            "http://a.example",
            "a.example/",
            "*",
            "*.a.example",
            "a.example:",
        ] {
            let error = Policy::new(true, &[bad.to_string()], &[]).unwrap_err();
            assert_eq!(error, PolicyError::Host(bad.to_string()));
        }
        for bad in [
            "*",
            "null",
            "app.example",
            "https://a.example/",
            "https://*.a",
        ] {
            let error = Policy::new(true, &[], &[bad.to_string()]).unwrap_err();
            assert_eq!(error, PolicyError::Origin(bad.to_string()));
        }
    }
}
