//! The fuzz targets, each a function over bytes that panics where something does
//! not hold. Two things run them: libFuzzer (`fuzz_targets/`, started by `run` or by
//! cargo-fuzz), and a property test over seeds and mutations of them
//! (`tests/corpus.rs`), which needs nothing but Cargo.

pub mod json;
pub mod mutate;
pub mod reference;
pub mod targets;

// The simulator of `tests/simulation`, which the target `routing` drives. What only
// its own tests use is dead here.
#[allow(dead_code)]
#[path = "../../simulation/acts.rs"]
mod acts;
#[allow(dead_code)]
#[path = "../../simulation/checks.rs"]
mod checks;
#[allow(dead_code)]
#[path = "../../simulation/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "../../simulation/dice.rs"]
mod dice;
#[allow(dead_code)]
#[path = "../../simulation/face.rs"]
mod face;
#[allow(dead_code)]
#[path = "../../simulation/hub.rs"]
mod hub;
#[allow(dead_code)]
#[path = "../../simulation/quiet.rs"]
mod quiet;
#[allow(dead_code)]
#[path = "../../simulation/server.rs"]
mod server;
#[allow(dead_code)]
#[path = "../../simulation/settings.rs"]
mod settings;
#[allow(dead_code)]
#[path = "../../simulation/shard.rs"]
mod shard;
#[allow(dead_code)]
#[path = "../../simulation/text.rs"]
mod text;
#[allow(dead_code)]
#[path = "../../simulation/world.rs"]
mod world;

/// A fuzz target, a line of `targets.txt`.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// The file with the words of its language.
    pub dictionary: Option<&'static str>,
    /// The longest input that is worth its time.
    pub bytes_max: usize,
    /// Mutations of each seed in the property test.
    pub mutations: usize,
}

/// Every target, in the order of their names.
pub fn targets() -> Vec<Target> {
    let lines = include_str!("../targets.txt").lines();
    let lines = lines.filter(|line| !line.starts_with('#'));
    lines.map(Target::of_line).collect()
}

impl Target {
    fn of_line(line: &'static str) -> Target {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [name, dictionary, bytes_max, mutations] = fields[..] else {
            panic!("not four fields: {line}");
        };
        let number = |field: &str| field.parse().expect("a number");
        Target {
            name,
            run: match name {
                "chunked" => targets::chunked::chunked,
                "documents" => targets::documents::documents,
                "head_guard" => targets::head_guard::head_guard,
                "lines" => targets::lines::lines,
                "results" => targets::results::results,
                "routing" => targets::routing::routing,
                "scan_splice" => targets::scan_splice::scan_splice,
                "sse" => targets::sse::sse,
                "upstream_events" => targets::upstream_events::upstream_events,
                "upstream_response" => targets::upstream_response::upstream_response,
                _ => panic!("no target: {line}"),
            },
            dictionary: (dictionary != "-").then_some(dictionary),
            bytes_max: number(bytes_max),
            mutations: number(mutations),
        }
    }
}
