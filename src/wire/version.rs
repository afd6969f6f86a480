//! The protocol versions that Ringway knows, and the rule by which a session
//! gets one. The source is the version list of the MCP specification.

/// A legacy-era protocol version: `initialize` opens a session of it.
/// The order is the order of publication.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Version {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
}

/// The first version without sessions. Not spoken yet: requests of it are
/// refused in a way that makes clients fall back to `initialize`.
pub const MODERN: &str = "2026-07-28";

impl Version {
    /// Every version that Ringway speaks, oldest first.
    pub const ALL: [Version; 4] = [
        Version::V2024_11_05,
        Version::V2025_03_26,
        Version::V2025_06_18,
        Version::V2025_11_25,
    ];

    /// The newest version, with which Ringway opens its own handshake.
    pub const NEWEST: Version = Version::V2025_11_25;

    /// The supported versions as one line of text, for error messages.
    pub const SUPPORTED: &str = "2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25";

    /// The version as it stands on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V2024_11_05 => "2024-11-05",
            Version::V2025_03_26 => "2025-03-26",
            Version::V2025_06_18 => "2025-06-18",
            Version::V2025_11_25 => "2025-11-25",
        }
    }

    /// Reads a version from the wire; `None` for one that Ringway does not speak.
    pub fn parse(text: &[u8]) -> Option<Version> {
        Version::ALL
            .into_iter()
            .find(|version| version.as_str().as_bytes() == text)
    }

    /// The version of a session: the client's if Ringway knows it and the
    /// upstream is not older, else the upstream's.
    pub fn negotiate(client: &[u8], upstream: Version) -> Version {
        match Version::parse(client) {
            Some(version) if version <= upstream => version,
            _ => upstream,
        }
    }

    /// JSON-RPC batches exist in one version only: 2025-03-26 brought them,
    /// 2025-06-18 took them out.
    pub fn has_batches(self) -> bool {
        self == Version::V2025_03_26
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_version_not_newer_than_upstream_is_the_clients() {
        for version in Version::ALL {
            let text = version.as_str().as_bytes();
            assert_eq!(Version::negotiate(text, Version::NEWEST), version);
        }
    }

    #[test]
    fn an_unknown_or_newer_version_gets_upstreams() {
        let old = Version::V2025_03_26;
        assert_eq!(Version::negotiate(b"2025-11-25", old), old);
        assert_eq!(Version::negotiate(b"1999-01-01", old), old);
        assert_eq!(Version::negotiate(MODERN.as_bytes(), old), old);
    }
}
