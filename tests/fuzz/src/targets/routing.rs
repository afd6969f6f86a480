//! The routing core under the simulator of `tests/simulation`, whose dice are the
//! bytes: any order of events of clients, shards, hub, server and time, and after it
//! everything comes to rest. What must hold is what the simulator checks: an answer
//! goes to the call that asked, once, with its id; nothing of a session reaches another
//! one or a closed connection; the server's subscriptions are those of the sessions;
//! tasks are their owner's; nothing is left, and all is bounded.
//!
//! The first byte is the seed, of the theme, the hash keys, and the choices behind the
//! end of the bytes; the second one is how many steps there are, the others are
//! choices. `RINGWAY_FUZZ_TRACE=1` prints every step.

use crate::dice::Dice;
use crate::world::World;

pub fn routing(data: &[u8]) {
    let Some((&[seed, steps], choices)) = data.split_first_chunk::<2>() else {
        return;
    };
    let seed = u64::from(seed);
    let mut dice = Dice::new(seed);
    dice.given = choices.iter().rev().copied().collect();
    let is_traced = std::env::var_os("RINGWAY_FUZZ_TRACE").is_some();
    let mut world = World::with(seed, dice, is_traced);
    world.settings.steps = 2 * usize::from(steps);
    // A hundred thousand calls in a row, payloads of 200 KB: the simulator's own runs
    // have them, here they would be all that there is time for.
    world.settings.storms = false;
    world.settings.is_big = false;
    world.run();
}
