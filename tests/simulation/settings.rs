//! What is drawn once for a run: its size, its limits, its faults, how often
//! each thing happens.

use ringway::http::ground::ResponseMode;
use ringway::routing::shard::ShardLimits;

use crate::dice::Dice;

/// What a run is mostly about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Theme {
    Calls,
    Subscriptions,
    Streams,
    Tasks,
    Mixed,
}

impl Theme {
    pub(crate) const ALL: [Theme; 5] = [
        Theme::Calls,
        Theme::Subscriptions,
        Theme::Streams,
        Theme::Tasks,
        Theme::Mixed,
    ];

    /// The theme of a seed.
    pub(crate) fn of(seed: u64) -> Theme {
        Theme::ALL[(seed % 5) as usize]
    }
}

/// One thing that may happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A client opens a session.
    Open,
    /// A client does something in its session.
    Act,
    /// A shard's lines and notes move to the hub's mailbox.
    Send,
    /// The hub gathers its next write.
    Gather,
    /// The hub's write is done.
    Written,
    /// The server reads some lines.
    Hear,
    /// The server says something.
    Speak,
    /// The hub reads some of the server's lines.
    Read,
    /// The hub tells the shards what has changed, and fills their mailboxes.
    Flush,
    /// A shard takes letters.
    Letters,
    /// A connection goes on.
    Connection,
    /// A connection breaks.
    Break,
    /// Time passes.
    Time,
    /// A mailbox or the server's stdin is stuck for a while, or no longer.
    Stall,
    /// The server dies.
    Kill,
    /// Another server is started.
    Restart,
}

/// Percentages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Writes to a client that fail.
    pub(crate) write_fails: usize,
    /// Requests that the server never answers.
    pub(crate) silent: usize,
    /// Answers that come twice.
    pub(crate) twice: usize,
    /// Subscribes that the server refuses.
    pub(crate) refused: usize,
    /// Restarts after which the server can do less.
    pub(crate) shrinks: usize,
    /// Answers that are over the limit of a line.
    pub(crate) too_long: usize,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) theme: Theme,
    pub(crate) shards: usize,
    /// The hub lives on shard 0's thread and reaches it directly.
    pub(crate) hub_is_local: bool,
    /// Sessions at once.
    pub(crate) clients_max: usize,
    pub(crate) steps: usize,
    pub(crate) limits: ShardLimits,
    pub(crate) buffered_bytes_max: usize,
    /// Letters in a mailbox at most, either way.
    pub(crate) mailbox_max: usize,
    /// Bytes of a shard's overflow in the hub, above which it stops reading.
    pub(crate) overflow_bytes_max: usize,
    /// Messages of this size travel alone.
    pub(crate) large_bytes: usize,
    pub(crate) cancel_on_disconnect: bool,
    pub(crate) response_mode: ResponseMode,
    pub(crate) keep_alive_ms: u64,
    pub(crate) write_timeout_ms: u64,
    pub(crate) faults: Faults,
    /// Its limits are small.
    pub(crate) is_small: bool,
    /// Payloads of many kilobytes.
    pub(crate) is_big: bool,
    /// More resources below a subscribed one than a session has marks for.
    pub(crate) has_many_resources: bool,
    /// The run ends with a drain.
    pub(crate) drains: bool,
    /// In the middle so many calls come and go that slots are used again.
    pub(crate) storms: bool,
    pub(crate) weights: Vec<(usize, Step)>,
}

impl Settings {
    /// Whether a session has so few tasks that old ones make room for new ones.
    pub(crate) fn forgets_tasks(&self) -> bool {
        self.limits.tasks_per_session_max < 10
    }

    pub(crate) fn draw(seed: u64, dice: &mut Dice) -> Settings {
        let theme = Theme::of(seed);
        let is_small = dice.chance(20);
        let is_pressed = dice.chance(20);
        let request_timeout_ms = dice.pick(&[5_000, 20_000, 100_000]);
        let request_timeout_max_ms = request_timeout_ms * dice.pick(&[1, 3]);
        let lasts = dice.chance(70);
        let storms = theme == Theme::Calls && !is_small && dice.chance(15);
        let limits = ShardLimits {
            sessions_max: if is_small { 3 } else { 64 },
            calls_max: if is_small { dice.between(1, 6) } else { 1_000 },
            calls_per_session_max: if is_small { dice.between(1, 4) } else { 200 },
            subscriptions_per_session_max: match storms {
                true => 10_000,
                false if is_small => 2,
                false => 100,
            },
            tasks_per_session_max: if is_small { dice.between(1, 2) } else { 1_000 },
            uri_bytes_max: 120,
            waiting_bytes_max: if is_small { 300 << 10 } else { 16 << 20 },
            request_timeout_ms,
            request_timeout_max_ms,
            session_ttl_ms: if lasts {
                100_000_000
            } else {
                dice.pick(&[2_000, 30_000])
            },
            session_unused_ms: if lasts { 50_000_000 } else { 1_000 },
        };
        let faults = Faults {
            write_fails: dice.pick(&[0, 0, 5, 25]),
            silent: dice.pick(&[0, 0, 5, 15]),
            twice: dice.pick(&[0, 5, 20]),
            refused: dice.pick(&[0, 10, 40]),
            shrinks: 15,
            too_long: dice.pick(&[0, 0, 3]),
        };
        Settings {
            theme,
            shards: dice.between(1, 4),
            hub_is_local: dice.chance(50),
            clients_max: dice.between(2, 10),
            steps: dice.pick(&[400, 1_500, 4_000]),
            limits,
            buffered_bytes_max: if is_pressed {
                dice.between(500, 6_000)
            } else {
                64 << 20
            },
            mailbox_max: dice.pick(&[1, 2, 5, 256]),
            overflow_bytes_max: if is_pressed { 2_000 } else { 8 << 20 },
            large_bytes: dice.pick(&[250, 32 << 10]),
            cancel_on_disconnect: dice.chance(30),
            response_mode: dice.weighted(&[
                (6, ResponseMode::Auto),
                (1, ResponseMode::Json),
                (1, ResponseMode::Sse),
            ]),
            keep_alive_ms: dice.pick(&[300, 15_000]),
            write_timeout_ms: 30_000,
            faults,
            is_big: dice.chance(if theme == Theme::Calls { 12 } else { 3 }),
            has_many_resources: theme == Theme::Streams && dice.chance(20),
            drains: dice.chance(15),
            storms,
            is_small,
            weights: weights(theme, dice),
        }
    }
}

/// How often each thing happens. What is rare in one run is common in another.
fn weights(theme: Theme, dice: &mut Dice) -> Vec<(usize, Step)> {
    let mut some = |choices: &[usize]| dice.pick(choices);
    let kills = match theme {
        Theme::Subscriptions | Theme::Mixed => some(&[0, 4, 10]),
        _ => some(&[0, 0, 3]),
    };
    let breaks = match theme {
        Theme::Streams => some(&[5, 15, 30]),
        _ => some(&[0, 2, 6]),
    };
    vec![
        (some(&[6, 15]), Step::Open),
        (some(&[150, 300]), Step::Act),
        (some(&[30, 100, 200]), Step::Send),
        (some(&[40, 100]), Step::Gather),
        (some(&[40, 100]), Step::Written),
        (some(&[60, 150]), Step::Hear),
        (some(&[100, 250]), Step::Speak),
        (some(&[40, 150]), Step::Read),
        (some(&[20, 60]), Step::Flush),
        (some(&[30, 100, 200]), Step::Letters),
        (some(&[50, 300]), Step::Connection),
        (breaks, Step::Break),
        (some(&[10, 60]), Step::Time),
        (some(&[0, 10]), Step::Stall),
        (kills, Step::Kill),
        (some(&[10, 40]), Step::Restart),
    ]
}
