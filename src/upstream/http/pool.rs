//! The connections of one thread that are kept for the next exchange, and the places that
//! exchanges take in turn.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::client::HttpCounters;
use super::connect::Link;
use crate::routing::time::Millis;

/// Connections that nobody uses, the longest kept first.
pub(super) struct Pool {
    idle: RefCell<VecDeque<Idle>>,
    connections_max: usize,
    counters: Arc<HttpCounters>,
}

struct Idle {
    link: Link,
    since: Millis,
}

impl Pool {
    pub(super) fn new(connections_max: usize, counters: Arc<HttpCounters>) -> Pool {
        Pool {
            idle: RefCell::default(),
            connections_max,
            counters,
        }
    }

    /// The connection that was used last, if the server has not closed it since.
    pub(super) fn take(&self) -> Option<Link> {
        loop {
            let kept = self.idle.borrow_mut().pop_back()?;
            self.count();
            if kept.link.is_alive() {
                self.counters.reused.add(1);
                return Some(kept.link);
            }
        }
    }

    /// Keeps a connection that is ready for the next request.
    pub(super) fn put(&self, mut link: Link, now: Millis) {
        link.rest();
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.connections_max {
            idle.push_back(Idle { link, since: now });
        }
        drop(idle);
        self.count();
    }

    /// Closes those that nobody has used for so long. True if any are left.
    pub(super) fn expire(&self, now: Millis, idle_ms: u64) -> bool {
        let mut idle = self.idle.borrow_mut();
        while idle
            .front()
            .is_some_and(|kept| kept.since.after(idle_ms) <= now)
        {
            idle.pop_front();
        }
        let any_left = !idle.is_empty();
        drop(idle);
        self.count();
        any_left
    }

    /// Closes all.
    pub(super) fn clear(&self) {
        self.idle.borrow_mut().clear();
        self.count();
    }

    fn count(&self) {
        self.counters.idle.set(self.idle.borrow().len() as u64);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A number of places, given out in the order in which they were asked for.
pub(super) struct Places {
    free: Cell<usize>,
    next: Cell<u64>,
    queue: RefCell<BTreeMap<u64, Rc<Waiting>>>,
    counters: Arc<HttpCounters>,
}

#[derive(Default)]
struct Waiting {
    is_granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// One place; given back when it is dropped.
pub(super) struct Place {
    places: Rc<Places>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.release();
    }
}

/// A place in the queue for one; given up when it is dropped.
pub(super) struct Ticket {
    places: Rc<Places>,
    number: u64,
    waiting: Rc<Waiting>,
}

impl Places {
    pub(super) fn new(count: usize, counters: Arc<HttpCounters>) -> Rc<Places> {
        Rc::new(Places {
            free: Cell::new(count),
            next: Cell::new(0),
            queue: RefCell::default(),
            counters,
        })
    }

    /// A place, or else the end of the queue.
    pub(super) fn ask(self: &Rc<Self>) -> Result<Place, Ticket> {
        // While anybody waits nothing is free.
        if let Some(left) = self.free.get().checked_sub(1) {
            self.free.set(left);
            return Ok(Place {
                places: self.clone(),
            });
        }
        let number = self.next.replace(self.next.get() + 1);
        let waiting = Rc::new(Waiting::default());
        self.queue.borrow_mut().insert(number, waiting.clone());
        self.counters.waiting.set(self.counters.waiting.get() + 1);
        Err(Ticket {
            places: self.clone(),
            number,
            waiting,
        })
    }

    fn release(&self) {
        let Some((_, waiting)) = self.queue.borrow_mut().pop_first() else {
            self.free.set(self.free.get() + 1);
            return;
        };
        self.one_less_waits();
        waiting.is_granted.set(true);
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    fn one_less_waits(&self) {
        let waiting = &self.counters.waiting;
        waiting.set(waiting.get().saturating_sub(1));
    }

    /// Places that nobody has.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.get()
    }
}

impl Ticket {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Place> {
        if self.waiting.is_granted.take() {
            return Poll::Ready(Place {
                places: self.places.clone(),
            });
        }
        let mut waker = self.waiting.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self
            .places
            .queue
            .borrow_mut()
            .remove(&self.number)
            .is_some()
        {
            self.places.one_less_waits();
        } else if self.waiting.is_granted.get() {
            self.places.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(count: usize) -> (Rc<Places>, Arc<HttpCounters>) {
        let counters = Arc::new(HttpCounters::default());
        (Places::new(count, counters.clone()), counters)
    }

    fn poll(ticket: &mut Ticket) -> Option<Place> {
        match ticket.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    fn queued(places: &Rc<Places>) -> Ticket {
        places.ask().err().unwrap()
    }

    #[test]
    fn places_are_given_out_in_turn() {
        let (places, counters) = places(1);
        let place = places.ask().ok().unwrap();
        let mut tickets = [queued(&places), queued(&places), queued(&places)];
        assert_eq!(counters.waiting.get(), 3);
        assert!(tickets.iter_mut().all(|ticket| poll(ticket).is_none()));
        drop(place);
        assert!(poll(&mut tickets[2]).is_none() && poll(&mut tickets[1]).is_none());
        let first = poll(&mut tickets[0]).unwrap();
        // Nobody gets past those who wait.
        let mut last = queued(&places);
        drop(first);
        let second = poll(&mut tickets[1]).unwrap();
        assert!(poll(&mut last).is_none());
        drop(second);
        drop(poll(&mut tickets[2]).unwrap());
        drop(poll(&mut last).unwrap());
        assert_eq!((places.free(), counters.waiting.get()), (1, 0));
    }

    #[test]
    fn a_ticket_that_is_dropped_leaves_nothing() {
        let (places, counters) = places(1);
        let place = places.ask().ok().unwrap();
        let (gone, mut next, granted, mut last) = (
            queued(&places),
            queued(&places),
            queued(&places),
            queued(&places),
        );
        drop(gone);
        drop(place);
        drop(poll(&mut next).unwrap());
        // Granted, and dropped before it looked: it goes to the one behind.
        drop(granted);
        let place = poll(&mut last).unwrap();
        drop(next);
        assert_eq!((places.free(), counters.waiting.get()), (0, 0));
        drop(place);
        drop(last);
        assert_eq!((places.free(), places.queue.borrow().len()), (1, 0));
    }
}
