//! What is done with an endpoint.

pub mod calls;
pub mod churn;
pub mod mixed;
pub mod streams;

use std::time::{Duration, Instant};

use crate::check;
use crate::connection::Response;
use crate::engine::{Lane, Thread};
use crate::options::Tool;
use crate::pace::Pacer;
use crate::record::{Failure, Series};

/// From when on a start counts as late.
const LATE: Duration = Duration::from_millis(1);

/// A kind of call.
#[derive(Clone, Debug)]
pub struct Kind {
    pub tool: Tool,
    /// The result must repeat the nonce, with the padding behind it.
    pub repeats: bool,
    pub padding: Box<str>,
    /// With a progress token; so many messages must come, or any number of them.
    pub progress: Option<Option<u64>>,
}

/// Makes one call on a lane and judges its answer. Latency counts from `start`.
pub async fn call(thread: &Thread, lane: &mut Lane, kind: &Kind, start: Instant) {
    let session = lane.session();
    let (id, nonce) = session.next();
    let mut check = check::Call::new(id, nonce, kind.repeats, kind.progress.is_some())
        .with_padding(&kind.padding);
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
    mut check: check::Call<'_>,
    start: Instant,
    series: Option<Series>,
) -> Option<u64> {
    let end = Instant::now();
    let mut recorder = thread.recorder.borrow_mut();
    match response {
        // What has not come by now is lost.
        Err(Failure::TimedOut) => check.end(&mut recorder.totals.violations),
        // Who accepts a call has to answer it.
        Ok(response) if (200..300).contains(&response.status) => {
            check.end(&mut recorder.totals.violations)
        }
        _ => {}
    }
    if check.is_wrong() {
        recorder.wrong(end);
        return None;
    }
    let failure = match (response, check.answer()) {
        (Err(failure), _) => failure.clone(),
        (Ok(response), _) if response.status != 200 => Failure::Status(response.status),
        (Ok(_), Some(check::Answer::Result)) => {
            recorder.totals.progress += check.steps();
            if let Some(series) = series {
                recorder.time(series, start, end);
            }
            return Some(check.steps());
        }
        (Ok(_), Some(check::Answer::ToolError)) => Failure::ToolError,
        (Ok(_), Some(check::Answer::Error(code, reason))) => Failure::Error(*code, reason.clone()),
        (Ok(_), None) => Failure::NoReply,
    };
    recorder.fail(failure, end);
    None
}

/// Takes one turn after another until the load is over; each is told when it began. In a closed loop that is when the
/// last one had ended. In an open loop each worker has its share of a grid of starts over the whole run; a late one
/// begins at once, and is told when it was to begin.
pub async fn turns(thread: &Thread, number: u32, mut turn: impl AsyncFnMut(Instant)) {
    let Some(rate) = thread.common.rate else {
        while !thread.over.is_set() {
            turn(Instant::now()).await;
        }
        return;
    };
    let Ok(mut pacer) = Pacer::new(thread.is_uring) else {
        return;
    };
    let window = thread.window();
    let workers = f64::from(thread.shape.workers);
    for count in 0u64.. {
        #[expect(clippy::cast_precision_loss, reason = "turns stay far below 2^52")]
        let after = (count as f64 * workers + f64::from(number)) / rate;
        let intended = window.start + Duration::from_secs_f64(after);
        // Far behind the end there is nothing more to learn.
        if intended >= window.to || window.to.elapsed() > thread.common.timeout {
            return;
        }
        pacer.until(intended).await;
        if intended.elapsed() > LATE {
            thread.recorder.borrow_mut().totals.late += 1;
        }
        turn(intended).await;
    }
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
pub async fn request(thread: &Thread, lane: &mut Lane, method: &str, params: &str, start: Instant) {
    let session = lane.session();
    let (id, nonce) = session.next();
    let mut check = check::Call::new(id, nonce, false, false);
    let response = lane
        .exchange(
            thread,
            |out, _| session.request(out, id, method, params),
            |text| check.message(text, &mut thread.recorder.borrow_mut().totals.violations),
        )
        .await;
    settle(thread, &response, check, start, Some(Series::Request));
}
