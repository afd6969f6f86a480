//! Mailboxes between threads: bounded lock-free queues, and one bell per
//! receiving thread that is rung once a batch and only when the thread sleeps.
//!
//! The receiver says that it sleeps, looks once more, and then waits; the
//! sender pushes, then looks whether the receiver sleeps. With a full fence on
//! both sides one of them always sees the other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rustix::event::{EventfdFlags, eventfd};

use super::driver::Driver;
use super::fd::StreamFd;
use super::has_own_lines;

/// Wakes one thread. Shared by every sender to that thread.
#[derive(Debug)]
pub struct Bell {
    sleeping: Line,
    event: OwnedFd,
}

/// Keeps the flag on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicBool);

// A sender looks at the flag once a batch; the descriptor beside it is only read.
const _: () = assert!(has_own_lines::<Line>() && has_own_lines::<Bell>());

impl Bell {
    /// A bell that nobody waits for yet.
    pub fn new() -> io::Result<Arc<Bell>> {
        Ok(Arc::new(Bell {
            sleeping: Line::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
        }))
    }

    /// Wakes the receiver if it sleeps. Call once after a batch of pushes.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.0.load(Ordering::Relaxed) && self.sleeping.0.swap(false, Ordering::SeqCst)
        {
            // An eventfd takes a write of 1 unless its count is near 2^64.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// The receiving side of a bell, on the loop of its thread.
pub struct BellWaiter {
    bell: Arc<Bell>,
    event: StreamFd,
}

impl BellWaiter {
    /// Must be called on the receiving thread.
    pub fn new(bell: Arc<Bell>, driver: Driver) -> io::Result<BellWaiter> {
        let event = StreamFd::new(bell.event.try_clone()?, driver)?;
        Ok(BellWaiter { bell, event })
    }

    /// Waits until the bell is rung, or returns at once if `has_mail`.
    pub async fn wait(&self, has_mail: impl Fn() -> bool) -> io::Result<()> {
        self.bell.sleeping.0.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if has_mail() && self.bell.sleeping.0.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        // Either there is no mail, or a sender has claimed the flag and its
        // ring is on its way: then this read returns soon.
        let (result, _) = self.event.read(Vec::with_capacity(8)).await;
        result.map(drop)
    }
}

/// The sending side of a mailbox. Never waits.
#[derive(Debug)]
pub struct Post<T> {
    queue: Sender<T>,
    bell: Arc<Bell>,
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Post<T> {
        Post {
            queue: self.queue.clone(),
            bell: self.bell.clone(),
        }
    }
}

/// Why a letter was not taken; it comes back.
#[derive(Debug)]
pub enum PostError<T> {
    Full(T),
    /// The receiving thread has ended.
    Gone(T),
}

impl<T> Post<T> {
    /// Puts a letter into the mailbox. The receiver is not woken: see [`Post::ring`].
    pub fn send(&self, letter: T) -> Result<(), PostError<T>> {
        self.queue.try_send(letter).map_err(|error| match error {
            TrySendError::Full(letter) => PostError::Full(letter),
            TrySendError::Disconnected(letter) => PostError::Gone(letter),
        })
    }

    /// Wakes the receiver if it sleeps.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Letters that wait.
    pub fn depth(&self) -> usize {
        self.queue.len()
    }
}

/// A mailbox of `capacity` letters for the thread that waits for `bell`.
pub fn mailbox<T>(capacity: usize, bell: &Arc<Bell>) -> (Post<T>, Receiver<T>) {
    let (queue, letters) = bounded(capacity);
    let post = Post {
        queue,
        bell: bell.clone(),
    };
    (post, letters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::driver::{DriverChoice, Loop, RingFlags};

    /// Every letter arrives, in order, on both drivers, with the receiver
    /// falling asleep over and over: a lost wake-up would hang here.
    #[test]
    fn no_letter_is_lost_between_falling_asleep_and_ringing() {
        for choice in [DriverChoice::Auto, DriverChoice::Epoll] {
            let bell = Bell::new().unwrap();
            let (post, letters) = mailbox::<u64>(64, &bell);
            let sender = std::thread::spawn(move || {
                for n in 0..20_000 {
                    let mut letter = n;
                    while let Err(PostError::Full(back)) = post.send(letter) {
                        letter = back;
                        post.ring();
                        std::thread::yield_now();
                    }
                    if n % 3 == 0 {
                        post.ring();
                    }
                    if n % 97 == 0 {
                        std::thread::yield_now();
                    }
                }
                post.ring();
            });
            let mut event_loop = Loop::new(choice, RingFlags::BEST).unwrap();
            let driver = event_loop.driver();
            event_loop.block_on(async {
                let waiter = BellWaiter::new(bell, driver).unwrap();
                let mut expected = 0;
                while expected < 20_000 {
                    while let Ok(letter) = letters.try_recv() {
                        assert_eq!(letter, expected);
                        expected += 1;
                    }
                    if expected < 20_000 {
                        waiter.wait(|| !letters.is_empty()).await.unwrap();
                    }
                }
            });
            sender.join().unwrap();
        }
    }
}
