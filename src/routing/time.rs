//! Time as the state machines see it: milliseconds since the process started,
//! always handed in.

/// Milliseconds since the process started. Monotonic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Millis(pub u64);

/// Microseconds since the process started, where durations are measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// The same moment, for deadlines.
    pub fn millis(self) -> Millis {
        Millis(self.0 / 1_000)
    }

    /// Microseconds from `earlier` to this moment, 0 if it lies ahead.
    pub fn since(self, earlier: Micros) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Millis {
    /// A moment that never comes.
    pub const NEVER: Millis = Millis(u64::MAX);

    /// The moment `milliseconds` after this one.
    pub fn after(self, milliseconds: u64) -> Millis {
        Millis(self.0.saturating_add(milliseconds))
    }

    /// Milliseconds from `earlier` to this moment, 0 if it lies ahead.
    pub fn since(self, earlier: Millis) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
