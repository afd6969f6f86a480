//! What is drawn once for a run of this kind.

use ringway::routing::shard::ShardLimits;

use crate::dice::Dice;

/// One thing that may happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A client begins a session.
    Open,
    /// A client does something in its session.
    Act,
    /// A request arrives at the server.
    Arrive,
    /// The server writes more of a response.
    Speak,
    /// A piece of a response arrives.
    Hear,
    /// An exchange breaks.
    Break,
    /// The server forgets a session.
    Forget,
    /// A client's connection goes on.
    Connection,
    /// A client's connection breaks.
    Vanish,
    Time,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) shards: usize,
    pub(crate) clients_max: usize,
    pub(crate) steps: usize,
    pub(crate) limits: ShardLimits,
    pub(crate) buffered_bytes_max: usize,
    pub(crate) cancel_on_disconnect: bool,
    /// Percent of writes to a client that fail.
    pub(crate) write_fails: usize,
    /// Percent of answers of the server that are none, or wrong.
    pub(crate) refuses: usize,
    /// The server has no GET streams.
    pub(crate) has_no_streams: bool,
    /// Messages are long: queues and budgets fill.
    pub(crate) is_big: bool,
    pub(crate) weights: Vec<(usize, Step)>,
}

impl Settings {
    pub(crate) fn draw(dice: &mut Dice) -> Settings {
        let is_small = dice.chance(20);
        let lasts = dice.chance(80);
        let request_timeout_ms = dice.pick(&[5_000, 20_000, 100_000]);
        let limits = ShardLimits {
            sessions_max: if is_small { 3 } else { 64 },
            calls_max: if is_small { dice.between(2, 6) } else { 1_000 },
            calls_per_session_max: if is_small { dice.between(1, 4) } else { 200 },
            subscriptions_per_session_max: if is_small { 2 } else { 100 },
            tasks_per_session_max: 10,
            uri_bytes_max: 120,
            waiting_bytes_max: if is_small { 20_000 } else { 16 << 20 },
            request_timeout_ms,
            request_timeout_max_ms: request_timeout_ms * dice.pick(&[1, 3]),
            session_ttl_ms: if lasts { 100_000_000 } else { 30_000 },
            session_unused_ms: if lasts { 50_000_000 } else { 1_000 },
        };
        Settings {
            shards: dice.between(1, 3),
            clients_max: dice.between(2, 8),
            steps: dice.pick(&[300, 800, 2_000]),
            limits,
            buffered_bytes_max: match dice.chance(15) {
                true => dice.between(2_000, 9_000),
                false => 64 << 20,
            },
            cancel_on_disconnect: dice.chance(30),
            write_fails: dice.pick(&[0, 0, 5, 25]),
            refuses: dice.pick(&[0, 3, 15]),
            has_no_streams: dice.chance(15),
            is_big: dice.chance(8),
            weights: weights(dice),
        }
    }
}

fn weights(dice: &mut Dice) -> Vec<(usize, Step)> {
    let mut some = |choices: &[usize]| dice.pick(choices);
    vec![
        (some(&[8, 20]), Step::Open),
        (some(&[100, 200]), Step::Act),
        (some(&[60, 200]), Step::Arrive),
        (some(&[150, 300]), Step::Speak),
        (some(&[150, 300]), Step::Hear),
        (some(&[0, 2, 10]), Step::Break),
        (some(&[0, 1, 4]), Step::Forget),
        (some(&[100, 300]), Step::Connection),
        (some(&[0, 1, 4]), Step::Vanish),
        (some(&[3, 15]), Step::Time),
    ]
}
