//! Waiting on a loop: up to a moment, finely where the kernel allows it, and deadlines of connections, coarsely.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// How often deadlines are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Waits for moments. The loop's own timers know milliseconds only, too coarse for an open loop; a timerfd knows
/// nanoseconds, and io_uring can wait for it.
pub struct Pacer {
    timer: Option<(monoio::fs::File, Vec<u8>)>,
}

impl Pacer {
    pub fn new(is_uring: bool) -> std::io::Result<Pacer> {
        let mut timer = None;
        if is_uring {
            let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
            // SAFETY: the descriptor was just made, and is given away here.
            let file = unsafe { std::fs::File::from_raw_fd(fd.into_raw_fd()) };
            timer = Some((monoio::fs::File::from_std(file)?, vec![0; 8]));
        }
        Ok(Pacer { timer })
    }

    /// Returns at `moment` or, where the loop is busy, after it; at once if it has passed.
    pub async fn until(&mut self, moment: Instant) {
        let wait = moment.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return;
        }
        let Some((file, buffer)) = &mut self.timer else {
            monoio::time::sleep(wait).await;
            return;
        };
        let spec = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: i64::from(wait.subsec_nanos()),
            },
        };
        // SAFETY: the file owns the descriptor and lives on.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(file.as_raw_fd()) };
        if timerfd_settime(fd, TimerfdTimerFlags::empty(), &spec).is_err() {
            monoio::time::sleep(wait).await;
            return;
        }
        let (_, back) = file.read_at(std::mem::take(buffer), 0).await;
        *buffer = back;
    }
}

/// A connection's deadline.
#[derive(Debug)]
pub struct Deadline {
    fd: RawFd,
    at: Cell<Option<Instant>>,
    has_passed: Cell<bool>,
}

impl Deadline {
    pub fn set(&self, at: Option<Instant>) {
        self.at.set(at);
    }

    pub fn has_passed(&self) -> bool {
        self.has_passed.get()
    }
}

/// Shuts sockets down whose deadline has passed, so that what waits for them ends. One look at all of them every
/// 50 ms costs less than a timer for each request.
#[derive(Default)]
pub struct Deadlines {
    all: RefCell<Vec<Weak<Deadline>>>,
}

impl Deadlines {
    /// A deadline for a socket, which must not be closed before it is dropped.
    pub fn add(&self, fd: RawFd) -> Rc<Deadline> {
        let deadline = Rc::new(Deadline {
            fd,
            at: Cell::new(None),
            has_passed: Cell::new(false),
        });
        self.all.borrow_mut().push(Rc::downgrade(&deadline));
        deadline
    }

    /// Looks for ever; `tick` is called at each look.
    pub async fn watch(&self, mut tick: impl FnMut(Instant)) {
        loop {
            monoio::time::sleep(LOOK).await;
            let now = Instant::now();
            self.all.borrow_mut().retain(|deadline| {
                let Some(deadline) = deadline.upgrade() else {
                    return false;
                };
                if deadline.at.get().is_some_and(|at| at <= now) {
                    deadline.at.set(None);
                    deadline.has_passed.set(true);
                    shut_down(deadline.fd);
                }
                true
            });
            tick(now);
        }
    }
}

/// Ends both directions of a socket that somebody else owns: whoever reads it sees its end.
pub fn shut_down(fd: RawFd) {
    // SAFETY: descriptors are shut down by their owners, who keep them open meanwhile.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
}

/// Ends a wait from outside, within a thread.
#[derive(Default, Debug)]
pub struct Flag {
    is_set: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

impl Flag {
    pub fn set(&self) {
        self.is_set.set(true);
        for waker in self.wakers.borrow_mut().drain(..) {
            waker.wake();
        }
    }

    pub fn is_set(&self) -> bool {
        self.is_set.get()
    }

    /// Returns once the flag is set.
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        struct Wait<'a>(&'a Flag);
        impl Future for Wait<'_> {
            type Output = ();
            fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
                if self.0.is_set.get() {
                    return Poll::Ready(());
                }
                self.0.wakers.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        }
        Wait(self)
    }
}
