//! A coarse timing wheel for deadlines that are set often and pass seldom.
//! Setting one again costs a store: an entry that fires early is asked for its
//! real deadline and put back. So an owner has at most one live entry, however
//! often its deadline moves.

use super::time::Millis;

/// What an owner keeps beside itself: when it is due, and where its entry is.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    due: Millis,
    scheduled: Millis,
}

impl Default for Deadline {
    fn default() -> Deadline {
        Deadline {
            due: Millis::NEVER,
            scheduled: Millis::NEVER,
        }
    }
}

impl Deadline {
    /// When it is due; [`Millis::NEVER`] when there is none.
    pub fn due(&self) -> Millis {
        self.due
    }

    /// Takes the deadline away. Its entry in the wheel dies when it fires.
    pub fn clear(&mut self) {
        self.due = Millis::NEVER;
    }
}

/// The wheel. Keys are small and `Copy`; owners check that they still live.
#[derive(Debug)]
pub struct Wheel<K> {
    buckets: Vec<Vec<(K, Millis)>>,
    tick_ms: u64,
    /// The next tick that has not been fired.
    next: u64,
}

const BUCKETS: usize = 1_024;

/// Entries for which a bucket keeps room.
const BUCKET_KEPT: usize = 16;

impl<K: Copy> Wheel<K> {
    /// A wheel whose deadlines fire at most two ticks late and never early.
    pub fn new(tick_ms: u64, now: Millis) -> Wheel<K> {
        Wheel {
            buckets: (0..BUCKETS).map(|_| Vec::new()).collect(),
            tick_ms,
            next: now.0 / tick_ms,
        }
    }

    /// Sets the owner's deadline. Nothing is stored when an entry that fires
    /// no later is there already.
    pub fn set(&mut self, deadline: &mut Deadline, key: K, due: Millis) {
        deadline.due = due;
        if due == Millis::NEVER || deadline.scheduled <= due.after(self.tick_ms) {
            return;
        }
        self.insert(deadline, key, due);
    }

    fn insert(&mut self, deadline: &mut Deadline, key: K, due: Millis) {
        let last = self.next + BUCKETS as u64 - 1;
        let tick = (due.0 / self.tick_ms + 1).clamp(self.next, last);
        let scheduled = Millis(tick * self.tick_ms);
        deadline.scheduled = scheduled;
        self.buckets[(tick % BUCKETS as u64) as usize].push((key, scheduled));
    }

    /// Takes the entries whose tick is over at `now`; each goes to [`Wheel::settle`].
    pub fn fired(&mut self, now: Millis) -> Vec<(K, Millis)> {
        let until = now.0 / self.tick_ms;
        // After a long sleep one turn of the wheel meets every entry.
        self.next = self.next.max((until + 1).saturating_sub(BUCKETS as u64));
        let mut fired = Vec::new();
        while self.next <= until {
            let place = (self.next % BUCKETS as u64) as usize;
            self.next += 1;
            let bucket = &mut self.buckets[place];
            fired.append(bucket);
            // What a rush of short lives has grown is given back.
            if bucket.capacity() > BUCKET_KEPT {
                *bucket = Vec::new();
            }
        }
        fired
    }

    /// Looks at the owner's deadline for an entry that fired: true when it is
    /// due (and cleared by that); else the entry is put back or was dead.
    pub fn settle(
        &mut self,
        deadline: &mut Deadline,
        (key, scheduled): (K, Millis),
        now: Millis,
    ) -> bool {
        if deadline.scheduled != scheduled {
            return false;
        }
        deadline.scheduled = Millis::NEVER;
        if deadline.due == Millis::NEVER {
            return false;
        }
        if deadline.due <= now {
            deadline.due = Millis::NEVER;
            return true;
        }
        let due = deadline.due;
        self.insert(deadline, key, due);
        false
    }

    /// Entries in the wheel, dead ones included.
    pub fn entries(&self) -> usize {
        self.buckets.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Owners(Vec<Deadline>);

    impl Owners {
        fn fire(&mut self, wheel: &mut Wheel<usize>, now: u64) -> Vec<usize> {
            let now = Millis(now);
            let fired = wheel.fired(now);
            let due = fired
                .into_iter()
                .filter(|entry| wheel.settle(&mut self.0[entry.0], *entry, now));
            due.map(|entry| entry.0).collect()
        }
    }

    #[test]
    fn a_deadline_fires_once_and_never_early() {
        let mut wheel = Wheel::new(50, Millis(0));
        let mut owners = Owners(vec![Deadline::default()]);
        wheel.set(&mut owners.0[0], 0, Millis(120));
        for now in (0..=120).step_by(10) {
            assert!(owners.fire(&mut wheel, now).is_empty(), "at {now}");
        }
        assert_eq!(owners.fire(&mut wheel, 220), [0]);
        assert!(owners.fire(&mut wheel, 1_000).is_empty());
    }

    #[test]
    fn moving_a_deadline_a_thousand_times_keeps_one_entry() {
        let mut wheel = Wheel::new(50, Millis(0));
        let mut owners = Owners(vec![Deadline::default()]);
        for later in 0..1_000 {
            wheel.set(&mut owners.0[0], 0, Millis(10_000 + later));
        }
        assert_eq!(wheel.entries(), 1);
        assert!(owners.fire(&mut wheel, 10_500).is_empty());
        assert_eq!(owners.fire(&mut wheel, 11_200), [0]);
    }

    #[test]
    fn a_nearer_deadline_overtakes_and_a_cleared_one_is_silent() {
        let mut wheel = Wheel::new(50, Millis(0));
        let mut owners = Owners(vec![Deadline::default(); 2]);
        wheel.set(&mut owners.0[0], 0, Millis(75_000));
        wheel.set(&mut owners.0[0], 0, Millis(200));
        wheel.set(&mut owners.0[1], 1, Millis(200));
        owners.0[1].clear();
        assert_eq!(owners.fire(&mut wheel, 400), [0]);
        assert!(owners.fire(&mut wheel, 80_000).is_empty());
        assert_eq!(wheel.entries(), 0);
    }

    #[test]
    fn a_rush_leaves_no_room_behind() {
        let mut wheel = Wheel::new(50, Millis(0));
        let mut owners = Owners(vec![Deadline::default(); 1_000]);
        for now in (0..200_000).step_by(50) {
            for (key, owner) in owners.0.iter_mut().enumerate() {
                wheel.set(owner, key, Millis(now + 100));
                owner.clear();
            }
            owners.fire(&mut wheel, now);
        }
        owners.fire(&mut wheel, 300_000);
        assert_eq!(wheel.entries(), 0);
        let room: usize = wheel.buckets.iter().map(Vec::capacity).sum();
        assert!(room <= BUCKETS * BUCKET_KEPT, "{room}");
    }

    #[test]
    fn a_deadline_beyond_the_wheel_and_a_long_sleep_both_work() {
        let mut wheel = Wheel::new(50, Millis(0));
        let mut owners = Owners(vec![Deadline::default()]);
        wheel.set(&mut owners.0[0], 0, Millis(3_600_000));
        let mut now = 0;
        while now < 3_600_000 {
            assert!(owners.fire(&mut wheel, now).is_empty());
            now += 7_000;
        }
        assert_eq!(owners.fire(&mut wheel, 3_700_000), [0]);
        wheel.set(&mut owners.0[0], 0, Millis(3_700_100));
        assert_eq!(owners.fire(&mut wheel, 99_000_000), [0]);
    }
}
