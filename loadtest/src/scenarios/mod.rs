//! What is done with an endpoint.

pub mod calls;
pub mod churn;
pub mod mixed;
pub mod streams;

use std::rc::Rc;
use std::time::Instant;

use crate::check;
use crate::connection::Response;
use crate::engine::{Lane, Thread};
use crate::options::Tool;
use crate::record::{Failure, Series};

/// A kind of call.
#[derive(Clone, Debug)]
pub struct Kind {
    pub tool: Tool,
    /// The result must repeat the nonce.
    pub repeats: bool,
    /// With a progress token; so many messages must come, or any number of them.
    pub progress: Option<Option<u64>>,
}

/// Makes one call on a lane and judges its answer. Latency counts from `start`.
pub async fn call(thread: &Thread, lane: &mut Lane, kind: &Kind, start: Instant) {
    let session = lane.session();
    let (id, nonce) = session.next();
    let mut check = check::Call::new(id, nonce, kind.repeats, kind.progress.is_some());
    let mut first = None;
    let response = lane
        .exchange(
            thread,
            |out, body| session.call(out, body, &kind.tool, id, nonce, kind.progress.is_some()),
            |text| {
                first.get_or_insert_with(Instant::now);
                check.message(text, &mut thread.recorder.borrow_mut().totals.violations);
            },
        )
        .await;
    let steps = settle(thread, &response, check, start, Some(Series::Call));
    if let (Some(first), Some(1..)) = (first, steps) {
        thread
            .recorder
            .borrow_mut()
            .time(Series::FirstProgress, start, first);
    }
    if let (Some(steps), Some(Some(expected))) = (steps, kind.progress)
        && steps < expected
    {
        thread.fail(Failure::LostProgress);
    }
}

/// Counts what came of a call, its time under `series`. Returns its steps of progress if it ended with a result.
pub fn settle(
    thread: &Thread,
    response: &Result<Response, Failure>,
    check: check::Call,
    start: Instant,
    series: Option<Series>,
) -> Option<u64> {
    let end = Instant::now();
    let mut recorder = thread.recorder.borrow_mut();
    let response = match response {
        Ok(response) => response,
        Err(failure) => {
            if *failure == Failure::TimedOut {
                // What has not come by now is lost.
                check.end(&mut recorder.totals.violations);
            }
            recorder.fail(failure.clone(), end);
            return None;
        }
    };
    if response.status != 200 {
        recorder.fail(Failure::Status(response.status), end);
        return None;
    }
    let (answer, steps) = check.end(&mut recorder.totals.violations);
    recorder.totals.progress += steps;
    match answer {
        Some(check::Answer::Result) => {
            if let Some(series) = series {
                recorder.time(series, start, end);
            }
            return Some(steps);
        }
        Some(check::Answer::ToolError) => recorder.fail(Failure::ToolError, end),
        Some(check::Answer::Error(code, reason)) => {
            recorder.fail(Failure::Error(code, reason), end)
        }
        None => recorder.fail(Failure::NoReply, end),
    }
    None
}

/// Waits for all tasks of a thread.
pub async fn join<T: 'static>(tasks: Vec<monoio::task::JoinHandle<T>>) -> Vec<T> {
    let mut done = Vec::with_capacity(tasks.len());
    for task in tasks {
        done.push(task.await);
    }
    done
}

/// A request without a tool (`ping`, `tools/list`), judged like a call.
pub async fn request(thread: &Rc<Thread>, lane: &mut Lane, method: &str, params: &str) {
    let session = lane.session();
    let (id, nonce) = session.next();
    let mut check = check::Call::new(id, nonce, false, false);
    let start = Instant::now();
    let response = lane
        .exchange(
            thread,
            |out, _| session.request(out, id, method, params),
            |text| check.message(text, &mut thread.recorder.borrow_mut().totals.violations),
        )
        .await;
    settle(thread, &response, check, start, Some(Series::Call));
}
