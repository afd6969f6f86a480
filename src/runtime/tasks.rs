//! Spawning on a loop. monoio lets a task's panic unwind out of the loop, which
//! would end the whole shard; here it ends the task and is said in the log.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Spawns `future`; a panic in it stays in it.
pub fn spawn(name: &'static str, future: impl Future<Output = ()> + 'static) {
    monoio::spawn(async move {
        if let Err(panic) = contained(future).await {
            tracing::error!(task = name, panic = text(&*panic), "a task panicked");
        }
    });
}

/// Runs `future`, giving a panic in it back as an error. What the future
/// borrowed is released by the unwinding; shared state stays usable because no
/// cell is left borrowed.
pub async fn contained<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(
        |cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        },
    )
    .await
}

/// What a panic said.
pub fn text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "a panic without a message"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::driver::{DriverChoice, Loop, RingFlags};

    #[test]
    fn a_panicking_task_does_not_take_its_loop_along() {
        let mut event_loop = Loop::new(DriverChoice::Auto, RingFlags::BEST).unwrap();
        event_loop.block_on(async {
            spawn("bad", async { panic!("on purpose") });
            crate::runtime::fair::give_way().await;
            crate::runtime::fair::give_way().await;
        });
    }
}
