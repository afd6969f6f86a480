//! Running code that may panic. It is logged by the process's panic hook; here it is only kept
//! from going further.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `work` returns; `None` if it panicked.
///
/// Whatever it has touched may be half done then, and must not be used again.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // What a panic carries is code of the same hook, and may panic when it is dropped.
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(second);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_panics_when_dropped_is_survived() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::panic_any(Bomb);
            }
        }
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| -> u8 { std::panic::panic_any("plain") }), None);
        assert_eq!(caught(|| -> u8 { std::panic::panic_any(Bomb) }), None);
    }
}
