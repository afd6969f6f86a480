//! Where the upstreams of routes are in their lives, and what that means for a route.

use std::fmt::Write;

/// A route and its upstreams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteHealth {
    pub name: String,
    /// In the order of the configuration.
    pub upstreams: Vec<UpstreamHealth>,
}

/// One upstream of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpstreamHealth {
    pub name: String,
    /// The route does not serve without it.
    pub is_required: bool,
    pub state: UpstreamState,
}

/// Where an upstream is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpstreamState {
    /// Its server is being started.
    Starting,
    /// The handshake with it is done.
    Up,
    /// It has ended or did not come up; it will be started again.
    Down,
    /// Each client session goes to it by itself.
    PerSession,
}

impl UpstreamState {
    pub const ALL: [UpstreamState; 4] = [
        UpstreamState::Starting,
        UpstreamState::Up,
        UpstreamState::Down,
        UpstreamState::PerSession,
    ];

    /// The word in answers.
    pub fn word(self) -> &'static str {
        match self {
            UpstreamState::Starting => "starting",
            UpstreamState::Up => "up",
            UpstreamState::Down => "down",
            UpstreamState::PerSession => "per-session",
        }
    }

    /// Whether clients can be served with it, as far as is known.
    pub fn serves(self) -> bool {
        matches!(self, UpstreamState::Up | UpstreamState::PerSession)
    }
}

impl RouteHealth {
    /// Whether clients of the route can be served: with all upstreams that it needs, and with one
    /// at least.
    pub fn can_serve(&self) -> bool {
        let mut all = self.upstreams.iter();
        let has_required = all.all(|upstream| !upstream.is_required || upstream.state.serves());
        let mut all = self.upstreams.iter();
        has_required && all.any(|upstream| upstream.state.serves())
    }

    /// One line an upstream, behind one of the route's own.
    pub(super) fn write(&self, out: &mut String) {
        let word = match self.can_serve() {
            true => "ready",
            false => "upstream_down",
        };
        let _ = writeln!(out, "route={} {word}", self.name);
        for upstream in &self.upstreams {
            let state = upstream.state.word();
            let _ = writeln!(
                out,
                "route={} upstream={} {state}",
                self.name, upstream.name
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(upstreams: &[(bool, UpstreamState)]) -> RouteHealth {
        let upstreams = upstreams.iter().enumerate();
        RouteHealth {
            name: "r".into(),
            upstreams: upstreams
                .map(|(index, (is_required, state))| UpstreamHealth {
                    name: format!("u{index}"),
                    is_required: *is_required,
                    state: *state,
                })
                .collect(),
        }
    }

    #[test]
    fn a_route_serves_with_all_that_it_needs_and_one_at_least() {
        use UpstreamState::{Down, PerSession, Starting, Up};
        for (upstreams, expected) in [
            (&[][..], false),
            (&[(false, Up)], true),
            (&[(false, PerSession)], true),
            (&[(false, Starting)], false),
            (&[(false, Down)], false),
            (&[(false, Down), (false, Up)], true),
            (&[(true, Down), (false, Up)], false),
            (&[(true, Starting), (false, PerSession)], false),
            (&[(true, Up), (false, Down)], true),
            (&[(true, PerSession), (true, Up)], true),
        ] {
            assert_eq!(route(upstreams).can_serve(), expected, "{upstreams:?}");
        }
    }

    #[test]
    fn each_upstream_has_its_line() {
        let mut out = String::new();
        route(&[(true, UpstreamState::Down), (false, UpstreamState::Up)]).write(&mut out);
        let expected = "route=r upstream_down\nroute=r upstream=u0 down\nroute=r upstream=u1 up\n";
        assert_eq!(out, expected);
    }
}
