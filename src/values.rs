//! The text of flags and of the configuration file to values: times and sizes with their units,
//! addresses, paths, cores. One parser each, so that both say the same.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::Duration;

use bytesize::ByteSize;

use crate::cli::{Admin, Pin};
use crate::runtime::driver::RingFlags;

/// Connections of a shard to one server at most.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;

/// An IP address and a port.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    let expected = "expected an IP address and a port, like 127.0.0.1:8080 or [::1]:8080";
    text.parse().map_err(|_| expected.to_owned())
}

/// An address with a port, or `off`.
pub(crate) fn admin(text: &str) -> Result<Admin, String> {
    match text {
        "off" => Ok(Admin::Off),
        _ => text
            .parse()
            .map(Admin::At)
            .map_err(|_| "expected an address with a port, like 127.0.0.1:9464, or off".to_owned()),
    }
}

/// A path: begins with `/`, has neither query nor fragment.
pub(crate) fn path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/')
        && text.bytes().all(|byte| byte.is_ascii_graphic())
        && !text.contains(['?', '#']);
    match is_path {
        true => Ok(text.to_owned()),
        false => Err("a path starts with / and has no query".to_owned()),
    }
}

/// Bytes, with or without a unit, up to 1 GiB.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let size: ByteSize = text
        .parse()
        .map_err(|_| "expected bytes, like 4194304 or 4MiB".to_owned())?;
    // Offsets in a message are 32 bits.
    match usize::try_from(size.as_u64()) {
        Ok(size) if size <= 1 << 30 => Ok(size),
        _ => Err("at most 1GiB".to_owned()),
    }
}

/// A number of connections to a server.
pub(crate) fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=CONNECTIONS_MAX) => Ok(count),
        _ => Err(format!("a number from 1 to {CONNECTIONS_MAX}")),
    }
}

/// A time above 0 with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| "expected a time with its unit, like 500ms, 10s or 5m".to_owned())?;
    match duration {
        Duration::ZERO => Err("must be above 0".to_owned()),
        _ => Ok(duration),
    }
}

/// `auto`, `off`, or cores.
pub(crate) fn pin(text: &str) -> Result<Pin, String> {
    match text {
        "auto" => return Ok(Pin::Auto),
        "off" => return Ok(Pin::Off),
        _ => {}
    }
    let wrong = || "expected auto, off, or a list of cores like 0,2-3".to_owned();
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.parse().map_err(|_| wrong())?;
        let last: usize = last.parse().map_err(|_| wrong())?;
        if first > last || last > 4_096 {
            return Err(wrong());
        }
        list.extend(first..=last);
    }
    Ok(Pin::List(list))
}

/// Set-up flags of io_uring, or `none`.
pub(crate) fn ring_flags(text: &str) -> Result<RingFlags, String> {
    let mut flags = RingFlags::default();
    for part in text.split(',').filter(|part| *part != "none") {
        match part {
            "coop" => flags.coop_taskrun = true,
            "single" => flags.single_issuer = true,
            "defer" => flags.defer_taskrun = true,
            _ => return Err("expected a list of coop, single, defer; or none".to_owned()),
        }
    }
    if flags.defer_taskrun && !flags.single_issuer {
        return Err("defer needs single".to_owned());
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_units() {
        assert_eq!(bytes("4MiB"), Ok(4 << 20));
        assert_eq!(bytes("1000"), Ok(1_000));
        assert!(bytes("2GiB").is_err());
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("10").is_err());
        assert!(duration("0s").is_err());
        assert_eq!(pin("0,2-3"), Ok(Pin::List(vec![0, 2, 3])));
        assert!(pin("3-1").is_err());
        assert!(path("mcp").is_err());
        assert_eq!(ring_flags("none"), Ok(RingFlags::default()));
        assert!(ring_flags("defer").is_err());
    }
}
