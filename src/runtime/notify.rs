//! A wake-up between two tasks of one thread: any number of calls of
//! `notify` before the other side looks are one.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// One waiting task at most.
#[derive(Debug, Default)]
pub struct Notify {
    set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Notify {
    pub fn notify(&self) {
        if !self.set.replace(true)
            && let Some(waker) = self.waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Waits until `notify` was called since the last wait.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.set.replace(false) {
                return Poll::Ready(());
            }
            let mut slot = self.waker.borrow_mut();
            match &mut *slot {
                Some(waker) => waker.clone_from(cx.waker()),
                empty => *empty = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await;
    }
}
