//! The numbers of a running gateway, as its admin listener shows them.

use std::net::SocketAddr;

use super::{Gateway, Raw, Request, wait_until};

/// What a gateway is started with so that it can be asked.
pub const FLAGS: [&str; 2] = ["--admin", "127.0.0.1:0"];

/// The numbers of one gateway, which was started with [`FLAGS`].
pub struct Metrics(SocketAddr);

impl Metrics {
    pub fn of(gateway: &Gateway) -> Self {
        let said = "admin listener address=";
        let log = gateway
            .stderr
            .wait_for("the admin address", |log| log.contains(said));
        let (_, rest) = log.split_once(said).expect("waited for");
        let address = rest.split_whitespace().next().expect("an address");
        Self(address.parse().expect("an address and a port"))
    }

    /// The sum of all samples of this name whose labels hold `labels`.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let response = Raw::connect(self.0).ask(&Request::new("GET").target("/metrics"));
        assert_eq!(response.status, 200, "{response}");
        let text = String::from_utf8(response.body.clone()).expect("UTF-8");
        let samples = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        });
        let values = samples.map(|line| line.rsplit_once(' ').expect("a value").1);
        values
            .map(|value| value.parse::<f64>().expect("a number"))
            .sum()
    }

    /// Messages of the server that were dropped for this reason.
    pub fn drops(&self, reason: &str) -> f64 {
        self.sum("ringway_drops_total", &[&format!("reason=\"{reason}\"")])
    }

    /// Waits until exactly so many were dropped for this reason: fewer never suffice, more are a fault.
    #[track_caller]
    pub fn wait_for_drops(&self, reason: &str, count: usize) {
        wait_until(&format!("{count} drops are counted as {reason}"), || {
            self.drops(reason) >= count as f64
        });
        assert_eq!(self.drops(reason), count as f64, "{reason}");
    }
}
