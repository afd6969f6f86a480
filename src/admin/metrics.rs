//! A snapshot as Prometheus text (version 0.0.4). Every metric has one line in
//! this file, every label comes from a closed set, and every member of a set is
//! there from the first scrape on, so that rates and alarms see the first event.

use std::fmt;
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::encoding::{EncodeGaugeValue, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::snapshot::{DropCounts, HttpSnapshot, HubSnapshot, ShardSnapshot, Snapshot};
use crate::routing::drops::DropReason;
use crate::routing::joined::naming::Kind;
use crate::routing::outcome::{Method, Outcome};
use crate::runtime::histogram::{BOUNDS_US, Durations};
use crate::runtime::status_counters;

/// The `Content-Type` of what [`render`] makes.
pub(super) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Renders the metrics.
///
/// # Errors
/// Those of the encoder; writing to memory has none.
pub(super) fn render(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("ringway");
    registry.register_collector(Box::new(Scrape(snapshot)));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Picks one number of a shard.
type Number = fn(&ShardSnapshot) -> u64;

/// What a number is of, where there is more than one upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    /// The shard.
    Shard,
    /// One upstream on the shard.
    Upstream,
}

/// A metric with one number a shard: name without prefix, help, what it is of, number.
type OfShard = (&'static str, &'static str, Of, Number);

const GAUGES: [OfShard; 8] = [
    (
        "connections",
        "Connections of clients that are open.",
        Of::Shard,
        |s| s.connections,
    ),
    ("sessions", "Sessions that are alive.", Of::Upstream, |s| {
        s.sessions
    }),
    (
        "calls_in_flight",
        "Calls that wait for the server's answer.",
        Of::Upstream,
        |s| s.calls_in_flight,
    ),
    (
        "buffered_bytes",
        "Bytes held in bodies, queues and replies.",
        Of::Shard,
        |s| s.buffered_bytes,
    ),
    ("streams", "GET streams that are open.", Of::Upstream, |s| {
        s.streams
    }),
    (
        "subscriptions",
        "Resource subscriptions of all sessions.",
        Of::Upstream,
        |s| s.subscriptions,
    ),
    (
        "tasks",
        "Tasks that sessions own, finished ones included until they are forgotten.",
        Of::Upstream,
        |s| s.tasks,
    ),
    (
        "upstream_exchanges",
        "Requests under way at a server that is reached over HTTP, GET streams included.",
        Of::Upstream,
        |s| s.exchanges,
    ),
];

/// The encoder appends `_total` to each name.
const COUNTERS: [OfShard; 13] = [
    (
        "received_bytes",
        "Bytes read from clients.",
        Of::Shard,
        |s| s.received_bytes,
    ),
    ("sent_bytes", "Bytes written to clients.", Of::Shard, |s| {
        s.sent_bytes
    }),
    (
        "handovers",
        "Connections handed over to the shard that owns their session.",
        Of::Shard,
        |s| s.handovers,
    ),
    (
        "evicted_connections",
        "Connections ended because they held the most of what was over the budget.",
        Of::Shard,
        |s| s.evicted_connections,
    ),
    (
        "replaced_streams",
        "GET streams that a newer one of the same session replaced.",
        Of::Upstream,
        |s| s.replaced_streams,
    ),
    (
        "lost_subscriptions",
        "Subscriptions that the restarted server has refused.",
        Of::Upstream,
        |s| s.lost_subscriptions,
    ),
    (
        "lists_left_out",
        "Lists that went to clients of a route without the part of this server.",
        Of::Upstream,
        |s| s.lists_left_out,
    ),
    (
        "progress_events",
        "Progress messages put on the streams of their calls.",
        Of::Upstream,
        |s| s.progress_events,
    ),
    (
        "stream_events",
        "Events put on GET streams: changed lists, updated resources, news of tasks.",
        Of::Upstream,
        |s| s.stream_events,
    ),
    (
        "version_differs",
        "Requests whose MCP-Protocol-Version is supported but not the session's.",
        Of::Shard,
        |s| s.version_differs,
    ),
    (
        "session_renewals",
        "New handshakes with a server over HTTP that had forgotten a session.",
        Of::Upstream,
        |s| s.session_renewals,
    ),
    (
        "stream_overflows",
        "GET streams closed because their client did not read, where messages come in order.",
        Of::Upstream,
        |s| s.stream_overflows,
    ),
    (
        "lost_notices",
        "Notifications and answers of clients that a server over HTTP did not take.",
        Of::Upstream,
        |s| s.lost_notices,
    ),
];

/// A metric with one number for each thread that has an HTTP client.
type OfClient = (&'static str, &'static str, fn(&HttpSnapshot) -> u64);

const CLIENT_GAUGES: [OfClient; 3] = [
    (
        "upstream_connections",
        "Connections to the server over HTTP that are open.",
        |c| c.connections,
    ),
    (
        "upstream_idle_connections",
        "Those of them that no request uses.",
        |c| c.idle,
    ),
    (
        "upstream_waiting",
        "Requests to the server that wait for a connection.",
        |c| c.waiting,
    ),
];

const CLIENT_COUNTERS: [OfClient; 6] = [
    (
        "upstream_connects",
        "Connections made to the server.",
        |c| c.connects,
    ),
    (
        "upstream_connect_failures",
        "Connections to the server that could not be made.",
        |c| c.connect_failures,
    ),
    (
        "upstream_reused",
        "Requests on a connection that was there.",
        |c| c.reused,
    ),
    (
        "upstream_retries",
        "Requests that began again because such a connection had ended.",
        |c| c.retries,
    ),
    (
        "upstream_received_bytes",
        "Bytes read from the server.",
        |c| c.received_bytes,
    ),
    ("upstream_sent_bytes", "Bytes written to the server.", |c| {
        c.sent_bytes
    }),
];

/// The mailboxes of a shard: the label, what it is of, and the number.
const MAILBOXES: [(&str, Of, Number); 3] = [
    ("to_shard", Of::Upstream, |s| s.mailbox_to_shard),
    ("to_hub", Of::Upstream, |s| s.mailbox_to_hub),
    ("handovers", Of::Shard, |s| s.mailbox_handovers),
];

/// The snapshot of one scrape, as the registry wants it.
#[derive(Debug)]
struct Scrape(Snapshot);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.process(encoder)?;
        for metric in GAUGES {
            self.of_shards(encoder, MetricType::Gauge, metric)?;
        }
        for metric in COUNTERS {
            self.of_shards(encoder, MetricType::Counter, metric)?;
        }
        self.calls(encoder)?;
        self.call_durations(encoder)?;
        self.http_requests(encoder)?;
        self.mailboxes(encoder)?;
        self.drops(encoder)?;
        self.upstream(encoder)?;
        self.routes(encoder)?;
        self.clients(encoder)
    }
}

/// The names of an upstream, where it has any.
type Names<'s> = Vec<(&'static str, &'s str)>;

fn names<'s>(route: &'s str, upstream: &'s str) -> Names<'s> {
    vec![("route", route), ("upstream", upstream)]
}

impl Scrape {
    /// The shards, or each upstream's part of each shard. Without names the one upstream is what
    /// the shards serve.
    fn shards(&self, of: Of) -> Vec<((Shard, Names<'_>), &ShardSnapshot)> {
        let rows = match (&self.0.upstreams, of) {
            (Some(upstreams), Of::Upstream) => upstreams
                .iter()
                .map(|one| (names(&one.route, &one.upstream), &one.shards))
                .collect(),
            _ => vec![(Names::new(), &self.0.shards)],
        };
        let rows = rows.into_iter().flat_map(|(names, shards)| {
            let shards = shards.iter().enumerate();
            shards.map(move |(index, shard)| (([("shard", index)], names.clone()), shard))
        });
        rows.collect()
    }

    fn hubs(&self) -> Vec<(Names<'_>, &HubSnapshot)> {
        match &self.0.upstreams {
            None => vec![(Names::new(), &self.0.hub)],
            Some(upstreams) => upstreams
                .iter()
                .map(|one| (names(&one.route, &one.upstream), &one.hub))
                .collect(),
        }
    }

    /// The HTTP clients, with the names of their threads.
    fn http(&self) -> Vec<(Names<'_>, &str, &HttpSnapshot)> {
        let plain = self.0.http.iter();
        let plain = plain.map(|(thread, client)| (Names::new(), thread.as_str(), client));
        let upstreams = self.0.upstreams.iter().flatten().flat_map(|one| {
            let clients = one.http.iter();
            clients
                .map(|(thread, client)| (names(&one.route, &one.upstream), thread.as_str(), client))
        });
        plain.chain(upstreams).collect()
    }

    fn process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        encoder
            .encode_descriptor("build", "The version of Ringway.", None, MetricType::Info)?
            .encode_info(&[("version", self.0.version)])?;
        let help = "What the loops of the shards run on.";
        let mut driver = encoder.encode_descriptor("driver", help, None, MetricType::Info)?;
        if let Some(name) = self.0.driver {
            driver.encode_info(&[("driver", name.to_string())])?;
        }
        let help = "When the process started, seconds since 1970.";
        let since = self.0.started.duration_since(UNIX_EPOCH);
        let seconds = since.unwrap_or_default().as_secs_f64();
        gauge(encoder, "start_time_seconds", help, seconds)
    }

    fn of_shards(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        kind: MetricType,
        (name, help, of, number): OfShard,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, shard) in self.shards(of) {
            let mut sample = metric.encode_family(&labels)?;
            match kind {
                MetricType::Counter => count(&mut sample, number(shard))?,
                _ => sample.encode_gauge(&number(shard))?,
            }
        }
        Ok(())
    }

    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Calls that have ended; error is the server's own, \
                    a tool's result with isError is ok.";
        let mut metric = encoder.encode_descriptor("calls", help, None, MetricType::Counter)?;
        for ((shard_label, names), shard) in self.shards(Of::Upstream) {
            for (method, by_outcome) in Method::ALL.into_iter().zip(shard.calls) {
                for (outcome, number) in Outcome::ALL.into_iter().zip(by_outcome) {
                    let labels = [("method", method.label()), ("outcome", outcome.label())];
                    counted(
                        &mut metric,
                        &(shard_label, (labels, names.as_slice())),
                        number,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn call_durations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "From a call's scanned body to the answer of the server.";
        let name = "call_duration_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, shard) in self.shards(Of::Upstream) {
            durations(&mut metric.encode_family(&labels)?, &shard.call_durations)?;
        }
        Ok(())
    }

    fn http_requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "HTTP requests by the status of their answer.";
        let name = "http_requests";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((shard_label, _), shard) in self.shards(Of::Shard) {
            for (kind, number) in shard.http_requests.into_iter().enumerate() {
                let labels = (shard_label, [("status", status_counters::label(kind))]);
                counted(&mut metric, &labels, number)?;
            }
        }
        Ok(())
    }

    fn mailboxes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Entries that wait in a mailbox: batches from the hub, \
                    batches for the hub, connections from other shards.";
        let name = "mailbox_depth";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (mailbox, of, number) in MAILBOXES {
            for ((shard_label, names), shard) in self.shards(of) {
                let labels = (shard_label, ([("mailbox", mailbox)], names.as_slice()));
                metric
                    .encode_family(&labels)?
                    .encode_gauge(&number(shard))?;
            }
        }
        Ok(())
    }

    fn drops(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Messages of the server that were dropped, by thread and reason.";
        let mut metric = encoder.encode_descriptor("drops", help, None, MetricType::Counter)?;
        for ((shard_label, names), shard) in self.shards(Of::Shard) {
            let thread = format!("shard-{}", index(shard_label));
            dropped(&mut metric, &thread, &names, &shard.drops)?;
        }
        if self.0.upstreams.is_some() {
            for ((shard_label, names), shard) in self.shards(Of::Upstream) {
                let thread = format!("shard-{}", index(shard_label));
                dropped(&mut metric, &thread, &names, &shard.drops)?;
            }
        }
        for (names, hub) in self.hubs() {
            dropped(&mut metric, "hub", &names, &hub.drops)?;
        }
        Ok(())
    }

    /// Nothing, where there are no routes.
    fn routes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.routes.is_empty() {
            return Ok(());
        }
        let help = "Requests refused because the name that they say is unknown or denied.";
        let name = "route_unknown_names";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for route in &self.0.routes {
            for (index, numbers) in route.unknown_names.iter().enumerate() {
                for kind in [Kind::Tool, Kind::Prompt, Kind::Resource] {
                    let name = kind.to_string();
                    let labels = [("kind", name.as_str()), ("route", &route.route)];
                    let labels = ([("shard", index)], labels);
                    counted(&mut metric, &labels, *numbers.of(kind))?;
                }
            }
        }
        Ok(())
    }

    /// Nothing, where no server is reached over HTTP.
    fn clients(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let clients = self.http();
        if clients.is_empty() {
            return Ok(());
        }
        let gauges = CLIENT_GAUGES.map(|metric| (MetricType::Gauge, metric));
        let counters = CLIENT_COUNTERS.map(|metric| (MetricType::Counter, metric));
        for (kind, (name, help, number)) in gauges.into_iter().chain(counters) {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (names, thread, client) in &clients {
                let labels = ([("thread", *thread)], names.as_slice());
                let mut sample = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => count(&mut sample, number(client))?,
                    _ => sample.encode_gauge(&number(client))?,
                }
            }
        }
        let help = "Requests to the server by how they ended.";
        let kind = MetricType::Counter;
        let mut metric = encoder.encode_descriptor("upstream_requests", help, None, kind)?;
        for (names, thread, client) in &clients {
            for (end, number) in &client.ends {
                let labels = ([("thread", *thread), ("end", end)], names.as_slice());
                counted(&mut metric, &labels, *number)?;
            }
        }
        let help = "Requests to the server without a whole answer, by what went wrong.";
        let mut metric = encoder.encode_descriptor("upstream_faults", help, None, kind)?;
        for (names, thread, client) in &clients {
            for (fault, number) in &client.faults {
                let labels = ([("thread", *thread), ("fault", fault)], names.as_slice());
                counted(&mut metric, &labels, *number)?;
            }
        }
        Ok(())
    }

    fn upstream(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Whether the server runs and its handshake is done.";
        let kind = MetricType::Gauge;
        let mut metric = encoder.encode_descriptor("upstream_up", help, None, kind)?;
        for (names, hub) in self.hubs() {
            let is_up = u64::from(hub.upstream_up);
            match names.is_empty() {
                true => metric.encode_gauge(&is_up)?,
                false => metric.encode_family(&names)?.encode_gauge(&is_up)?,
            }
        }
        type Number = fn(&HubSnapshot) -> u64;
        let numbers: [(&str, &str, Number); 2] = [
            (
                "upstream_restarts",
                "Times that the server was started again.",
                |hub| hub.upstream_restarts,
            ),
            (
                "quoted_ids",
                "Answers of the server whose id came as a decimal string.",
                |hub| hub.quoted_ids,
            ),
        ];
        for (name, help, number) in numbers {
            let kind = MetricType::Counter;
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (names, hub) in self.hubs() {
                match names.is_empty() {
                    true => count(&mut metric, number(hub))?,
                    false => counted(&mut metric, &names, number(hub))?,
                }
            }
        }
        Ok(())
    }
}

/// The label of a shard: its index.
type Shard = [(&'static str, usize); 1];

fn index([(_, index)]: Shard) -> usize {
    index
}

/// A gauge without labels.
fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeGaugeValue,
) -> fmt::Result {
    encoder
        .encode_descriptor(name, help, None, MetricType::Gauge)?
        .encode_gauge(&value)
}

/// One sample of a counter.
fn count(sample: &mut MetricEncoder<'_>, number: u64) -> fmt::Result {
    sample.encode_counter::<NoLabelSet, _, u64>(&number, None)
}

/// One sample of a counter with labels.
fn counted(
    metric: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    number: u64,
) -> fmt::Result {
    count(&mut metric.encode_family(labels)?, number)
}

fn dropped(
    metric: &mut MetricEncoder<'_>,
    thread: &str,
    names: &Names<'_>,
    drops: &DropCounts,
) -> fmt::Result {
    for (reason, number) in DropReason::ALL.into_iter().zip(drops) {
        let labels = [("thread", thread), ("reason", reason.label())];
        let labels = (labels, names.as_slice());
        counted(metric, &labels, *number)?;
    }
    Ok(())
}

/// The encoder makes the buckets cumulative.
fn durations(sample: &mut MetricEncoder<'_>, durations: &Durations) -> fmt::Result {
    let bounds = BOUNDS_US.into_iter().map(seconds).chain([f64::INFINITY]);
    let buckets: Vec<_> = bounds.zip(durations.buckets).collect();
    let sum = seconds(durations.sum_us);
    sample.encode_histogram::<NoLabelSet>(sum, durations.count(), &buckets, None)
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::admin::{RouteSnapshot, UpstreamSnapshot, fake};
    use crate::routing::joined::naming::PerKind;
    use crate::runtime::histogram::Histogram;

    fn lines(snapshot: Snapshot) -> Vec<String> {
        let text = render(snapshot).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The value of one sample, written as in the text.
    fn value<'t>(lines: &'t [String], sample: &str) -> Option<&'t str> {
        let mut values = lines
            .iter()
            .filter_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        let value = values.next();
        assert_eq!(values.next(), None, "{sample} is there twice");
        value
    }

    fn names_of(lines: &[String]) -> HashSet<&str> {
        let types = lines.iter().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|line| line.split(' ').next()).collect()
    }

    #[test]
    fn every_number_of_a_snapshot_has_its_sample() {
        let mut snapshot = fake::snapshot(2);
        let shard = &mut snapshot.shards[1];
        shard.connections = 1;
        shard.sessions = 2;
        shard.calls_in_flight = 3;
        shard.buffered_bytes = 4;
        shard.received_bytes = 5;
        shard.sent_bytes = 6;
        shard.handovers = 7;
        shard.evicted_connections = 18;
        shard.version_differs = 8;
        shard.mailbox_to_shard = 9;
        shard.mailbox_to_hub = 10;
        shard.mailbox_handovers = 11;
        shard.calls[Method::ToolsCall as usize][Outcome::Timeout as usize] = 12;
        shard.http_requests[1] = 13;
        shard.drops[DropReason::ClientGone as usize] = 14;
        shard.streams = 19;
        shard.subscriptions = 20;
        shard.tasks = 21;
        shard.replaced_streams = 22;
        shard.progress_events = 23;
        shard.stream_events = 24;
        shard.lost_subscriptions = 25;
        shard.lists_left_out = 26;
        snapshot.hub.drops[DropReason::NotJson as usize] = 15;
        snapshot.hub.quoted_ids = 16;
        snapshot.hub.upstream_restarts = 17;
        snapshot.hub.upstream_up = true;
        let lines = lines(snapshot);
        for (sample, expected) in [
            ("ringway_connections{shard=\"1\"}", "1"),
            ("ringway_connections{shard=\"0\"}", "0"),
            ("ringway_sessions{shard=\"1\"}", "2"),
            ("ringway_calls_in_flight{shard=\"1\"}", "3"),
            ("ringway_buffered_bytes{shard=\"1\"}", "4"),
            ("ringway_received_bytes_total{shard=\"1\"}", "5"),
            ("ringway_sent_bytes_total{shard=\"1\"}", "6"),
            ("ringway_handovers_total{shard=\"1\"}", "7"),
            ("ringway_evicted_connections_total{shard=\"1\"}", "18"),
            ("ringway_version_differs_total{shard=\"1\"}", "8"),
            ("ringway_streams{shard=\"1\"}", "19"),
            ("ringway_subscriptions{shard=\"1\"}", "20"),
            ("ringway_tasks{shard=\"1\"}", "21"),
            ("ringway_replaced_streams_total{shard=\"1\"}", "22"),
            ("ringway_progress_events_total{shard=\"1\"}", "23"),
            ("ringway_stream_events_total{shard=\"1\"}", "24"),
            ("ringway_lists_left_out_total{shard=\"1\"}", "26"),
            ("ringway_lost_subscriptions_total{shard=\"1\"}", "25"),
            (
                "ringway_mailbox_depth{shard=\"1\",mailbox=\"to_shard\"}",
                "9",
            ),
            (
                "ringway_mailbox_depth{shard=\"1\",mailbox=\"to_hub\"}",
                "10",
            ),
            (
                "ringway_mailbox_depth{shard=\"1\",mailbox=\"handovers\"}",
                "11",
            ),
            (
                "ringway_calls_total{shard=\"1\",method=\"tools/call\",outcome=\"timeout\"}",
                "12",
            ),
            (
                "ringway_http_requests_total{shard=\"1\",status=\"202\"}",
                "13",
            ),
            (
                "ringway_drops_total{thread=\"shard-1\",reason=\"client_gone\"}",
                "14",
            ),
            (
                "ringway_drops_total{thread=\"hub\",reason=\"not_json\"}",
                "15",
            ),
            ("ringway_quoted_ids_total", "16"),
            ("ringway_upstream_restarts_total", "17"),
            ("ringway_upstream_up", "1"),
            ("ringway_build_info{version=\"1.2.3\"}", "1"),
            ("ringway_driver_info{driver=\"io_uring\"}", "1"),
            ("ringway_start_time_seconds", "1000.5"),
        ] {
            assert_eq!(value(&lines, sample), Some(expected), "{sample}");
        }
    }

    #[test]
    fn every_member_of_a_label_set_is_there_from_the_start_and_once() {
        let lines = lines(fake::snapshot(3));
        let samples: Vec<_> = lines.iter().filter(|line| !line.starts_with('#')).collect();
        let unique: HashSet<_> = samples.iter().collect();
        assert_eq!(unique.len(), samples.len());
        let of = |name: &str| samples.iter().filter(|line| line.starts_with(name)).count();
        assert_eq!(
            of("ringway_calls_total{"),
            3 * Method::ALL.len() * Outcome::ALL.len()
        );
        assert_eq!(
            of("ringway_http_requests_total{"),
            3 * status_counters::KINDS
        );
        assert_eq!(of("ringway_drops_total{"), 4 * DropReason::ALL.len());
        assert_eq!(of("ringway_mailbox_depth{"), 3 * MAILBOXES.len());
        assert_eq!(of("ringway_call_duration_seconds_bucket{"), 3 * 21);
    }

    #[test]
    fn labels_hold_only_what_needs_no_escape() {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-.+".contains(&byte);
        for line in lines(fake::snapshot(1)) {
            for value in line.split('"').skip(1).step_by(2) {
                assert!(!value.is_empty() && value.bytes().all(allowed), "{line}");
            }
        }
    }

    /// What dashboards and alarms are built on: a name that goes breaks them.
    const NAMES: [&str; 32] = [
        "ringway_buffered_bytes",
        "ringway_build_info",
        "ringway_call_duration_seconds",
        "ringway_calls_in_flight",
        "ringway_calls_total",
        "ringway_connections",
        "ringway_driver_info",
        "ringway_drops_total",
        "ringway_evicted_connections_total",
        "ringway_handovers_total",
        "ringway_http_requests_total",
        "ringway_lists_left_out_total",
        "ringway_lost_notices_total",
        "ringway_lost_subscriptions_total",
        "ringway_mailbox_depth",
        "ringway_progress_events_total",
        "ringway_quoted_ids_total",
        "ringway_received_bytes_total",
        "ringway_replaced_streams_total",
        "ringway_sent_bytes_total",
        "ringway_session_renewals_total",
        "ringway_sessions",
        "ringway_start_time_seconds",
        "ringway_stream_events_total",
        "ringway_stream_overflows_total",
        "ringway_streams",
        "ringway_subscriptions",
        "ringway_tasks",
        "ringway_upstream_exchanges",
        "ringway_upstream_restarts_total",
        "ringway_upstream_up",
        "ringway_version_differs_total",
    ];

    /// The same, where the server is reached over HTTP.
    const HTTP_NAMES: [&str; 11] = [
        "ringway_upstream_connect_failures_total",
        "ringway_upstream_connections",
        "ringway_upstream_connects_total",
        "ringway_upstream_faults_total",
        "ringway_upstream_idle_connections",
        "ringway_upstream_received_bytes_total",
        "ringway_upstream_requests_total",
        "ringway_upstream_retries_total",
        "ringway_upstream_reused_total",
        "ringway_upstream_sent_bytes_total",
        "ringway_upstream_waiting",
    ];

    /// The same, where there are routes.
    const ROUTE_NAMES: [&str; 1] = ["ringway_route_unknown_names_total"];

    fn check_names(snapshot: Snapshot, expected: &[&str]) {
        let lines = lines(snapshot);
        assert_eq!(names_of(&lines), expected.iter().copied().collect());
        for name in expected {
            let help = format!("# HELP {name} ");
            assert!(lines.iter().any(|line| line.starts_with(&help)), "{name}");
            let counter = format!("# TYPE {name} counter");
            assert_eq!(lines.contains(&counter), name.ends_with("_total"), "{name}");
        }
    }

    #[test]
    fn the_metrics_are_these_each_with_help_and_counters_end_in_total() {
        check_names(fake::snapshot(1), &NAMES);
    }

    #[test]
    fn a_thread_with_an_http_client_has_its_own() {
        let mut snapshot = fake::snapshot(1);
        let client = HttpSnapshot {
            waiting: 3,
            ends: vec![("done", 5), ("broken", 7)],
            faults: vec![("cut", 7)],
            ..HttpSnapshot::default()
        };
        snapshot.http = vec![("shard-0".into(), client)];
        check_names(snapshot.clone(), &[&NAMES[..], &HTTP_NAMES].concat());
        let lines = lines(snapshot);
        for line in [
            r#"ringway_upstream_waiting{thread="shard-0"} 3"#,
            r#"ringway_upstream_requests_total{thread="shard-0",end="broken"} 7"#,
            r#"ringway_upstream_faults_total{thread="shard-0",fault="cut"} 7"#,
        ] {
            assert!(lines.contains(&line.to_owned()), "{line}");
        }
    }

    /// Two upstreams of two routes, with numbers of their own on the second of two shards.
    fn routes() -> Snapshot {
        let mut snapshot = fake::snapshot(2);
        snapshot.shards[1].connections = 5;
        snapshot.shards[1].drops[DropReason::SlowReader as usize] = 6;
        // What is of upstreams is not shown of the shards besides.
        snapshot.shards[1].sessions = 99;
        let upstream = |route: &str, upstream: &str, number: u64| {
            let mut shard = ShardSnapshot {
                sessions: number,
                connections: 99,
                mailbox_to_hub: number + 1,
                mailbox_handovers: 99,
                ..ShardSnapshot::default()
            };
            shard.calls[Method::ToolsCall as usize][Outcome::Ok as usize] = number + 2;
            shard.drops[DropReason::Task as usize] = number + 3;
            let client = HttpSnapshot {
                waiting: number + 4,
                ends: vec![("done", number + 5)],
                faults: vec![("cut", number + 6)],
                ..HttpSnapshot::default()
            };
            let mut hub = HubSnapshot {
                upstream_up: number == 10,
                upstream_restarts: number + 7,
                quoted_ids: number + 8,
                ..HubSnapshot::default()
            };
            hub.drops[DropReason::NotJson as usize] = number + 9;
            UpstreamSnapshot {
                route: route.into(),
                upstream: upstream.into(),
                shards: vec![ShardSnapshot::default(), shard],
                hub,
                http: vec![("shard-1".into(), client)],
            }
        };
        snapshot.upstreams = Some(vec![upstream("a", "one", 10), upstream("b", "one", 100)]);
        let route = |route: &str, number| {
            let unknown = PerKind {
                tools: number,
                prompts: number + 1,
                resources: number + 2,
            };
            RouteSnapshot {
                route: route.into(),
                unknown_names: vec![PerKind::default(), unknown],
            }
        };
        snapshot.routes = vec![route("a", 20), route("b", 200)];
        snapshot
    }

    #[test]
    fn each_upstream_has_its_own_numbers_under_its_names() {
        let lines = lines(routes());
        let of = |name: &str, labels: &str| {
            ["a", "b"].map(|route| {
                let labels = match labels {
                    "" => String::new(),
                    labels => format!("{labels},"),
                };
                let sample = format!(r#"{name}{{{labels}route="{route}",upstream="one"}}"#);
                value(&lines, &sample).map(str::to_owned)
            })
        };
        let expect = |one: u64, other: u64| [Some(one.to_string()), Some(other.to_string())];
        let shard = r#"shard="1""#;
        assert_eq!(of("ringway_sessions", shard), expect(10, 100));
        assert_eq!(of("ringway_sessions", r#"shard="0""#), expect(0, 0));
        let mailbox = r#"shard="1",mailbox="to_hub""#;
        assert_eq!(of("ringway_mailbox_depth", mailbox), expect(11, 101));
        let calls = r#"shard="1",method="tools/call",outcome="ok""#;
        assert_eq!(of("ringway_calls_total", calls), expect(12, 102));
        let drops = r#"thread="shard-1",reason="task""#;
        assert_eq!(of("ringway_drops_total", drops), expect(13, 103));
        let thread = r#"thread="shard-1""#;
        assert_eq!(of("ringway_upstream_waiting", thread), expect(14, 104));
        let end = r#"thread="shard-1",end="done""#;
        assert_eq!(of("ringway_upstream_requests_total", end), expect(15, 105));
        let fault = r#"thread="shard-1",fault="cut""#;
        assert_eq!(of("ringway_upstream_faults_total", fault), expect(16, 106));
        assert_eq!(of("ringway_upstream_up", ""), expect(1, 0));
        assert_eq!(of("ringway_upstream_restarts_total", ""), expect(17, 107));
        assert_eq!(of("ringway_quoted_ids_total", ""), expect(18, 108));
        let hub = r#"thread="hub",reason="not_json""#;
        assert_eq!(of("ringway_drops_total", hub), expect(19, 109));
        let count = "ringway_call_duration_seconds_count";
        assert_eq!(of(count, shard), expect(0, 0));
    }

    #[test]
    fn each_route_has_its_own_numbers_under_its_name() {
        let lines = lines(routes());
        let of = |shard: u64, kind: &str, route: &str| {
            let labels = format!(r#"shard="{shard}",kind="{kind}",route="{route}""#);
            let sample = format!("ringway_route_unknown_names_total{{{labels}}}");
            value(&lines, &sample).map(str::to_owned)
        };
        let numbers = [("a", 20), ("b", 200)];
        for (route, number) in numbers {
            for (kind, number) in ["tool", "prompt", "resource"].into_iter().zip(number..) {
                assert_eq!(of(0, kind, route).as_deref(), Some("0"), "{kind}");
                assert_eq!(of(1, kind, route), Some(number.to_string()), "{kind}");
            }
        }
    }

    #[test]
    fn what_is_of_the_shards_has_no_names() {
        let lines = lines(routes());
        for (sample, expected) in [
            (r#"ringway_connections{shard="1"}"#, Some("5")),
            (
                r#"ringway_drops_total{thread="shard-1",reason="slow_reader"}"#,
                Some("6"),
            ),
            (
                r#"ringway_mailbox_depth{shard="1",mailbox="handovers"}"#,
                Some("0"),
            ),
            (r#"ringway_sessions{shard="1"}"#, None),
            (r#"ringway_mailbox_depth{shard="1",mailbox="to_hub"}"#, None),
            ("ringway_upstream_up", None),
        ] {
            assert_eq!(value(&lines, sample), expected, "{sample}");
        }
        let named = lines.iter().filter(|line| line.contains("route="));
        for line in named {
            let names = [
                "http_requests",
                "_bytes",
                "connections{shard",
                "handovers",
                "evicted",
            ];
            let client = line.starts_with("ringway_upstream_");
            assert!(
                client || !names.iter().any(|name| line.contains(name)),
                "{line}"
            );
        }
        check_names(routes(), &[&NAMES[..], &HTTP_NAMES, &ROUTE_NAMES].concat());
    }

    #[test]
    fn a_driver_that_is_not_known_yet_has_no_sample() {
        let mut snapshot = fake::snapshot(1);
        snapshot.driver = None;
        let lines = lines(snapshot);
        assert!(
            !lines
                .iter()
                .any(|line| line.starts_with("ringway_driver_info"))
        );
    }

    #[test]
    fn buckets_are_cumulative_and_the_last_one_is_the_count() {
        let histogram = Histogram::default();
        for us in [50, 100, 240, 1_000_000, 301_000_000] {
            histogram.record(us);
        }
        let mut snapshot = fake::snapshot(1);
        snapshot.shards[0].call_durations = histogram.read();
        let lines = lines(snapshot);
        let name = "ringway_call_duration_seconds";
        let bucket = |le| value(&lines, &format!("{name}_bucket{{shard=\"0\",le=\"{le}\"}}"));
        for (le, expected) in [
            ("0.0001", "2"),
            ("0.00025", "3"),
            ("0.5", "3"),
            ("1", "4"),
            ("300", "4"),
            ("+Inf", "5"),
        ] {
            assert_eq!(bucket(le), Some(expected), "{le}");
        }
        assert_eq!(
            value(&lines, &format!("{name}_count{{shard=\"0\"}}")),
            Some("5")
        );
        assert_eq!(
            value(&lines, &format!("{name}_sum{{shard=\"0\"}}")),
            Some("302.00039")
        );
    }
}
