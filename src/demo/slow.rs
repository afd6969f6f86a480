//! The `slow` calls that wait for their next step: one queue ordered by time,
//! and an index by request id for cancellation. No clock and no I/O: time comes
//! in as the duration since the server's start. Each call gets all its progress
//! before its result, and nothing once it is cancelled.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::answer;
use super::limits::SLOW_CALLS_MAX;
use super::message::canonical_id;

/// One call of the `slow` tool. `id` and `token` are raw JSON text.
#[derive(Debug)]
pub(super) struct SlowCall {
    pub(super) id: Box<str>,
    /// Without one the call reports no progress.
    pub(super) token: Option<Box<str>>,
    pub(super) steps: u64,
    /// Steps taken so far, at most `steps`.
    pub(super) done: u64,
    /// Zero: everything at once.
    pub(super) interval: Duration,
}

/// Why a call was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum StartError {
    #[error("a call with this id is already running")]
    DuplicateId,
    #[error("too many slow calls are running; try again later")]
    Full,
}

/// Due time, then order of arrival.
type Place = (Duration, u64);

/// All calls that wait. Both maps hold exactly the same calls.
#[derive(Debug, Default)]
pub(super) struct SlowCalls {
    queue: BTreeMap<Place, SlowCall>,
    places: HashMap<Box<str>, Place>,
    arrivals: u64,
}

impl SlowCalls {
    /// Starts a call, or plays it whole into `out` if its interval is zero.
    ///
    /// # Errors
    /// [`StartError`]; nothing was written then.
    pub(super) fn start(
        &mut self,
        mut call: SlowCall,
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Result<(), StartError> {
        let key = canonical_id(&call.id);
        if self.places.contains_key(&*key) {
            return Err(StartError::DuplicateId);
        }
        if call.interval.is_zero() {
            while !call.step(out) {}
            return Ok(());
        }
        if self.queue.len() >= SLOW_CALLS_MAX {
            return Err(StartError::Full);
        }
        let place = (now + call.interval, self.arrivals);
        self.arrivals += 1;
        self.places.insert(key.into(), place);
        self.queue.insert(place, call);
        Ok(())
    }

    /// Ends a call without a reply; an id that is not running is ignored.
    pub(super) fn cancel(&mut self, id: &str) {
        if let Some(place) = self.places.remove(&*canonical_id(id)) {
            self.queue.remove(&place);
        }
    }

    /// When [`Self::fire`] has something to do next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.queue.keys().next().map(|place| place.0)
    }

    /// Takes one step that is due. False: nothing is due at `now`.
    pub(super) fn fire(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        let Some(entry) = self.queue.first_entry().filter(|e| e.key().0 <= now) else {
            return false;
        };
        let ((due, arrival), mut call) = entry.remove_entry();
        let is_over = call.step(out);
        let key = canonical_id(&call.id);
        if is_over {
            self.places.remove(&*key);
            return true;
        }
        // Steps keep to the schedule, but a server that was held up (a client
        // that did not read) goes on from now instead of catching up in a burst.
        let next = due + call.interval;
        let place = (
            if next < now {
                now + call.interval
            } else {
                next
            },
            arrival,
        );
        if let Some(known) = self.places.get_mut(&*key) {
            *known = place;
        }
        self.queue.insert(place, call);
        true
    }

    /// Calls that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.queue.len(), self.places.len());
        self.queue.len()
    }
}

impl SlowCall {
    /// One step, and the result after the last one. True: the call is over.
    fn step(&mut self, out: &mut Vec<u8>) -> bool {
        self.done += 1;
        if let Some(token) = &self.token {
            answer::progress(out, token, self.done, self.steps);
        }
        if self.done < self.steps {
            return false;
        }
        answer::tool_text(out, &self.id, &format!("done after {} steps", self.steps));
        true
    }
}
