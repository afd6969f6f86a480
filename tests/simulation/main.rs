//! The routing core under a deterministic simulator: TODO
mod acts;
mod checks;
mod client;
mod dice;
mod face;
mod hub;
mod quiet;
mod server;
mod settings;
mod shard;
mod text;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use checks::Tally;
use settings::Theme;
use world::World;

/// Seeds of one theme in an ordinary run.
const SEEDS: u64 = 500;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// Runs all seeds of a theme. Returns what happened in them; `None` if one seed was
/// asked for.
fn simulate(theme: Theme) -> Option<Tally> {
    let only = number("RINGWAY_SIMULATION_SEED");
    let runs = number("RINGWAY_SIMULATION_SEEDS").map_or(SEEDS, |all| all.div_ceil(5));
    let place = Theme::ALL.iter().position(|known| *known == theme);
    let first = place.expect("a theme") as u64;
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => first..first + 5 * runs,
    };
    let mut tally = Tally::default();
    let mut count = 0;
    let mut failed = Vec::new();
    for seed in seeds.step_by(5).filter(|seed| Theme::of(*seed) == theme) {
        count += 1;
        let run = || World::new(seed, only.is_some()).run();
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(record) => tally.add(&record.tally),
            Err(_) => {
                println!("seed {seed} ({theme:?}) fails, see above");
                failed.push(seed);
            }
        }
    }
    println!("{theme:?}: {count} runs");
    for (what, times) in tally.iter() {
        println!("{times:>10} {what}");
    }
    if let Some(first) = failed.first() {
        panic!(
            "{} of {count} seeds fail: {failed:?}\nreplay the first: RINGWAY_SIMULATION_SEED={first} cargo test --test simulation -- --nocapture",
            failed.len()
        );
    }
    only.is_none().then_some(tally)
}

#[test]
fn calls_and_progress() {
    simulate(Theme::Calls);
}

#[test]
fn subscriptions_and_restarts() {
    simulate(Theme::Subscriptions);
}

#[test]
fn streams_and_marks() {
    simulate(Theme::Streams);
}

#[test]
fn tasks() {
    simulate(Theme::Tasks);
}

#[test]
fn everything() {
    simulate(Theme::Mixed);
}
