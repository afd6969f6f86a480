use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::*;
use crate::hooks::tests::{LONG, TOOL, Told, chain, job};
use crate::hooks::{HookCounters, Verdict};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(30);
/// Short enough to wait for.
const SHORT: Duration = Duration::from_millis(10);

fn settings(workers: usize) -> PoolSettings {
    PoolSettings {
        workers,
        ..PoolSettings::default()
    }
}

fn passing(timeout: Duration) -> Arc<Chain> {
    Arc::new(chain(vec![Told::slow(|_, _, _| Verdict::Pass)], timeout))
}

/// A chain whose hook says that it was entered, and comes back when it is told to, or when the
/// other end is gone.
struct Held {
    chain: Arc<Chain>,
    entered: Receiver<()>,
    release: Sender<()>,
}

fn held(timeout: Duration) -> Held {
    let (enter, entered) = unbounded();
    let (release, released) = unbounded::<()>();
    let hook = Told::slow(move |_, _, _| {
        let _ = enter.send(());
        let _ = released.recv();
        Verdict::Pass
    });
    Held {
        chain: Arc::new(chain(vec![hook], timeout)),
        entered,
        release,
    }
}

/// Submits a job, and gives what its outcome comes through.
fn submitted(pool: &Pool, chain: &Arc<Chain>) -> Receiver<Outcome> {
    let (done, outcome) = unbounded();
    let accepted = pool.submit(chain, job(TOOL, "{}"), move |outcome| {
        let _ = done.send(outcome);
    });
    accepted.expect("there is room");
    outcome
}

#[track_caller]
fn failure(outcome: &Receiver<Outcome>) -> Option<Failure> {
    outcome.recv_timeout(PATIENCE).expect("an outcome").failure
}

/// Has the hook hold a job beyond its time. On a busy machine a job may be over before a worker
/// has entered the hook; then another is tried. The outcome, and what it came through.
fn stuck(pool: &Pool, held: &Held) -> (Outcome, Receiver<Outcome>) {
    loop {
        let before = pool.given_up();
        let outcomes = submitted(pool, &held.chain);
        let outcome = outcomes.recv_timeout(PATIENCE).expect("an outcome");
        assert_eq!(outcome.failure, Some(Failure::TimedOut));
        until(|| !held.entered.is_empty() || pool.given_up() == before);
        if held.entered.try_recv().is_ok() {
            assert!(outcome.text.is_empty());
            return (outcome, outcomes);
        }
    }
}

/// Waits for what other threads are about to bring about.
#[track_caller]
fn until(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "it does not come about");
        thread::yield_now();
    }
}

/// Nothing is left of any job.
#[track_caller]
fn assert_empty(pool: &Pool) {
    until(|| {
        let state = pool.shared.lock();
        state.stuck == 0 && state.idle == state.active && state.starting == 0
    });
    let state = pool.shared.lock();
    assert!(state.open.is_empty() && state.waiting.is_empty());
    assert_eq!(state.waiting_bytes, 0);
    assert!(state.active <= pool.shared.settings.workers);
}

fn total(counters: &HookCounters) -> u64 {
    counters.passed() + counters.timed_out() + counters.closed()
}

#[test]
fn hooks_run_on_threads_of_the_pool_and_so_does_what_comes_then() {
    let (tell, told) = unbounded();
    let tell_too = tell.clone();
    let name = || thread::current().name().unwrap_or_default().to_owned();
    let hook = Told::slow(move |call, _, _| {
        let _ = tell.send(name());
        call.insert(5_u8);
        Verdict::Rewrite(b"{\"a\":1}".to_vec())
    });
    let chain = Arc::new(chain(vec![hook], LONG));
    let pool = Pool::new(settings(1));
    assert_eq!(pool.shared.lock().started, 0);
    let (done, outcome) = bounded(1);
    pool.submit(&chain, job(TOOL, "{}"), move |outcome| {
        let _ = tell_too.send(name());
        let _ = done.send(outcome);
    })
    .expect("there is room");
    let outcome: Outcome = outcome.recv_timeout(PATIENCE).expect("an outcome");
    assert_eq!(outcome.verdict, Verdict::Rewrite(b"{\"a\":1}".to_vec()));
    assert_eq!(outcome.text, b"{}");
    assert_eq!(format!("{:?}", outcome.state), "CallState { kept: 1 }");
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["ringway-hook-0"; 2]);
    assert_eq!(chain.counters().rewritten(), 1);
    assert_empty(&pool);
}

#[test]
fn a_burst_is_done_by_as_many_threads_as_there_may_be() {
    for workers in [1, 4] {
        let pool = Pool::new(settings(workers));
        let chain = passing(LONG);
        let (done, outcomes) = unbounded();
        for number in 0..10_000 {
            let done = done.clone();
            let accepted = pool.submit(&chain, job(TOOL, "{}"), move |outcome| {
                let _ = done.send((number, outcome.verdict));
            });
            accepted.expect("there is room");
        }
        drop(done);
        let mut numbers: Vec<u32> = outcomes
            .iter()
            .map(|(number, verdict)| {
                assert_eq!(verdict, Verdict::Pass);
                number
            })
            .collect();
        if workers == 1 {
            assert!(numbers.is_sorted(), "first come, first served");
        }
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..10_000));
        assert_eq!(chain.counters().passed(), 10_000);
        assert_empty(&pool);
        assert!(pool.shared.lock().started <= workers as u64);
    }
}

#[test]
fn threads_are_started_for_what_waits_and_no_more_than_allowed() {
    let pool = Pool::new(settings(3));
    let held = held(LONG);
    let outcomes: Vec<_> = (0..5).map(|_| submitted(&pool, &held.chain)).collect();
    for _ in 0..3 {
        held.entered
            .recv_timeout(PATIENCE)
            .expect("three are entered");
    }
    assert_eq!(pool.waiting(), 2);
    assert_eq!(pool.shared.lock().started, 3);
    drop(held.release);
    assert!(outcomes.iter().all(|outcome| failure(outcome).is_none()));
    assert_empty(&pool);
}

#[test]
fn a_hook_that_does_not_come_back_is_answered_for_and_its_late_verdict_is_lost() {
    let pool = Pool::new(settings(1));
    let held = held(SHORT);
    let (first, outcome) = stuck(&pool, &held);
    assert_eq!(
        first.verdict,
        Verdict::deny(-32603, "A hook did not answer in time")
    );
    assert_eq!(pool.given_up(), 1);
    // Others are served meanwhile.
    assert_eq!(failure(&submitted(&pool, &passing(LONG))), None);
    drop(held.release);
    until(|| pool.given_up() == 0);
    assert_empty(&pool);
    assert!(outcome.recv().is_err(), "done was called once and is gone");
    let counters = held.chain.counters();
    assert_ne!(counters.timed_out(), 0);
    assert_eq!(counters.passed(), 0);
}

#[test]
fn no_further_hook_is_asked_when_the_time_is_over() {
    let (release, released) = unbounded::<()>();
    let (tell, told) = unbounded();
    let first = Told::slow(move |_, _, _| {
        let _ = released.recv();
        Verdict::Pass
    });
    let second = Told::slow(move |_, _, _| {
        let _ = tell.send(());
        Verdict::Pass
    });
    let chain = Arc::new(chain(vec![first, second], SHORT));
    let pool = Pool::new(settings(1));
    assert_eq!(failure(&submitted(&pool, &chain)), Some(Failure::TimedOut));
    drop(release);
    assert_empty(&pool);
    assert!(told.is_empty());
}

#[test]
fn a_short_timeout_is_kept_beside_a_long_one() {
    let pool = Pool::new(settings(2));
    let (long, short) = (held(LONG), held(SHORT));
    let long_outcome = submitted(&pool, &long.chain);
    // The watchdog sleeps until the long one.
    until(|| {
        matches!(
            pool.shared.lock().watchdog,
            Watchdog::Asleep { until: Some(_) }
        )
    });
    let short_outcome = submitted(&pool, &short.chain);
    assert_eq!(failure(&short_outcome), Some(Failure::TimedOut));
    assert!(long_outcome.is_empty());
    drop(long.release);
    assert_eq!(failure(&long_outcome), None);
}

#[test]
fn what_waits_too_long_is_answered_with_its_text_and_leaves_the_queue() {
    let pool = Pool::new(PoolSettings {
        waiting_max: 1,
        ..settings(1)
    });
    let held = held(LONG);
    let blocked = submitted(&pool, &held.chain);
    held.entered
        .recv_timeout(PATIENCE)
        .expect("the hook is entered");
    for _ in 0..3 {
        let outcome = submitted(&pool, &passing(SHORT));
        let outcome = outcome.recv_timeout(PATIENCE).expect("an outcome");
        assert_eq!(outcome.failure, Some(Failure::TimedOut));
        assert_eq!(outcome.text, b"{}");
    }
    assert_eq!((pool.waiting(), pool.given_up()), (0, 0));
    drop(held.release);
    assert_eq!(failure(&blocked), None);
    assert_empty(&pool);
}

#[test]
fn threads_are_replaced_up_to_the_limit_and_come_back() {
    let pool = Pool::new(PoolSettings {
        given_up_max: 2,
        ..settings(1)
    });
    let held = held(SHORT);
    for count in 1..=3 {
        // Each is taken by the thread that replaced the one before.
        stuck(&pool, &held);
        assert_eq!(pool.given_up(), count);
    }
    // Now there is no thread left, and none may be started.
    assert_eq!(pool.shared.lock().started, 3);
    let waits = submitted(&pool, &passing(SHORT));
    assert_eq!(failure(&waits), Some(Failure::TimedOut));
    assert_eq!(pool.shared.lock().started, 3);
    let patient = submitted(&pool, &passing(LONG));
    assert!(patient.is_empty());
    // One that comes back works again; the others are not needed.
    held.release.send(()).expect("three hooks listen");
    assert_eq!(failure(&patient), None);
    assert_eq!(pool.given_up(), 2);
    drop(held.release);
    assert_empty(&pool);
    assert_eq!(pool.shared.lock().active, 1);
}

#[test]
fn what_waits_behind_stuck_hooks_is_taken_by_their_replacements() {
    let pool = Pool::new(settings(1));
    let held = held(SHORT);
    let outcome = submitted(&pool, &held.chain);
    let behind = submitted(&pool, &passing(LONG));
    assert_eq!(failure(&outcome), Some(Failure::TimedOut));
    assert_eq!(failure(&behind), None);
}

#[test]
fn what_is_refused_comes_back_and_is_never_done() {
    let pool = Pool::new(PoolSettings {
        waiting_max: 2,
        waiting_bytes_max: 10,
        ..settings(1)
    });
    let held = held(LONG);
    let first = submitted(&pool, &held.chain);
    held.entered
        .recv_timeout(PATIENCE)
        .expect("the hook is entered");
    let submit = |text: &str| {
        let (done, outcome) = bounded::<()>(1);
        let accepted = pool.submit(&held.chain, job(TOOL, text), move |_| {
            let _ = done.send(());
        });
        (accepted.map_err(|Full(job)| job.text), outcome)
    };
    let (accepted, second) = submit("123456");
    assert_eq!(accepted, Ok(()));
    let (refused, never) = submit("12345");
    assert_eq!(refused, Err(b"12345".to_vec()), "too many bytes");
    assert!(never.recv().is_err());
    let (accepted, third) = submit("1234");
    assert_eq!(accepted, Ok(()));
    let (refused, never) = submit("");
    assert_eq!(refused, Err(Vec::new()), "too many jobs");
    assert!(never.recv().is_err());
    assert_eq!(held.chain.counters().rejected_full(), 2);
    for _ in 0..3 {
        held.release.send(()).expect("the hook listens");
    }
    assert_eq!(failure(&first), None);
    assert!(second.recv_timeout(PATIENCE).is_ok() && third.recv_timeout(PATIENCE).is_ok());
    assert_empty(&pool);
    // However long one is, it is taken where nothing else waits.
    let (accepted, long) = submit(&"1".repeat(11));
    assert_eq!(accepted, Ok(()));
    held.release.send(()).expect("the hook listens");
    assert!(long.recv_timeout(PATIENCE).is_ok());
}

#[test]
fn panics_of_hooks_and_of_callers_end_no_thread() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !thread::panicking() {
                std::panic::panic_any("on purpose");
            }
        }
    }
    let pool = Pool::new(settings(1));
    let hook = Told::slow(|_, _, _| std::panic::panic_any("on purpose"));
    let panicking = Arc::new(chain(vec![hook], LONG));
    assert_eq!(
        failure(&submitted(&pool, &panicking)),
        Some(Failure::Panicked)
    );
    assert_eq!(panicking.counters().panicked(), 1);
    pool.submit(&passing(LONG), job(TOOL, "{}"), |_| {
        std::panic::panic_any("on purpose");
    })
    .expect("there is room");
    assert_eq!(failure(&submitted(&pool, &passing(LONG))), None);
    // A late verdict, whose state cannot be dropped in peace, and a chain that cannot either.
    let (release, released) = unbounded::<()>();
    let bomb = Bomb;
    let hook = Told::slow(move |call, _, _| {
        let _ = &bomb;
        call.insert(Bomb);
        let _ = released.recv();
        Verdict::Pass
    });
    let late = Arc::new(chain(vec![hook], SHORT));
    assert_eq!(failure(&submitted(&pool, &late)), Some(Failure::TimedOut));
    until(|| Arc::strong_count(&late) <= 2);
    let weak = Arc::downgrade(&late);
    let _ = caught(|| drop(late));
    drop(release);
    until(|| weak.strong_count() == 0);
    assert_empty(&pool);
    assert_eq!(failure(&submitted(&pool, &passing(LONG))), None);
    // The watchdog goes on too.
    let held = held(SHORT);
    pool.submit(&held.chain, job(TOOL, "{}"), |_| {
        std::panic::panic_any("on purpose");
    })
    .expect("there is room");
    until(|| held.chain.counters().timed_out() == 1);
    assert_eq!(
        failure(&submitted(&pool, &held.chain)),
        Some(Failure::TimedOut)
    );
    drop(held.release);
    assert_empty(&pool);
}

#[test]
fn whatever_is_open_when_the_pool_ends_is_denied_once() {
    let pool = Pool::new(settings(1));
    let shared = Arc::clone(&pool.shared);
    let held = held(LONG);
    let running = submitted(&pool, &held.chain);
    held.entered
        .recv_timeout(PATIENCE)
        .expect("the hook is entered");
    let waiting = submitted(&pool, &held.chain);
    drop(pool);
    for outcome in [&running, &waiting] {
        let outcome = outcome.recv().expect("an outcome at once");
        assert_eq!(
            outcome.verdict,
            Verdict::deny(-32603, "The gateway is shutting down")
        );
        assert_eq!(outcome.failure, Some(Failure::Closed));
    }
    drop(held.release);
    // The threads end: the last reference is ours.
    until(|| Arc::strong_count(&shared) == 1);
    assert!(running.recv().is_err() && waiting.recv().is_err());
    let counters = held.chain.counters();
    assert_eq!((counters.closed(), counters.passed()), (2, 0));
    assert!(held.entered.is_empty(), "what waited was never begun");
    let state = shared.lock();
    assert_eq!((state.active, state.stuck, state.waiting_bytes), (0, 0, 0));
}

#[test]
fn a_closed_pool_accepts_nothing() {
    let pool = Pool::new(settings(1));
    assert_eq!(failure(&submitted(&pool, &passing(LONG))), None);
    pool.close();
    let chain = passing(LONG);
    let refused = pool.submit(&chain, job(TOOL, "{}"), |_| panic!("never done"));
    assert_eq!(refused.map_err(|Full(job)| job.text), Err(b"{}".to_vec()));
    assert_eq!(chain.counters().rejected_full(), 1);
    pool.close();
    until(|| Arc::strong_count(&pool.shared) == 1);
}

/// Hooks that come back about when their time is over, from several threads, and a pool that is
/// closed among them: each accepted job is done exactly once, and counted once.
#[test]
fn each_job_is_done_exactly_once_however_the_race_ends() {
    for round in 0..200_u64 {
        let pool = Pool::new(PoolSettings {
            waiting_max: 50,
            ..settings(2)
        });
        let counters = Arc::new(HookCounters::default());
        let spins = Told::slow(move |call, _, _| {
            let begin = Instant::now();
            let for_long = Duration::from_micros(call.session() * 13 % 120);
            while begin.elapsed() < for_long {
                std::hint::spin_loop();
            }
            Verdict::Pass
        });
        let chain = chain(vec![spins], Duration::from_micros(round * 7 % 300));
        let chain = Arc::new(chain.counting_into(Arc::clone(&counters)));
        let done: Vec<Arc<AtomicU32>> = (0..120).map(|_| Arc::default()).collect();
        let mut accepted = vec![false; done.len()];
        thread::scope(|scope| {
            for (done, accepted) in done.chunks(40).zip(accepted.chunks_mut(40)) {
                let (pool, chain) = (&pool, &chain);
                scope.spawn(move || {
                    for (number, (done, accepted)) in (0..).zip(done.iter().zip(accepted)) {
                        let done = Arc::clone(done);
                        let mut job = job(TOOL, "{}");
                        job.call.session = number;
                        let submitted = pool.submit(chain, job, move |_| {
                            done.fetch_add(1, Ordering::SeqCst);
                        });
                        *accepted = submitted.is_ok();
                    }
                });
            }
            if round % 3 == 0 {
                pool.close();
            }
        });
        if round % 3 == 1 {
            pool.close();
        }
        let expected = accepted.iter().filter(|accepted| **accepted).count() as u64;
        until(|| total(&counters) == expected);
        let shared = Arc::clone(&pool.shared);
        drop(pool);
        until(|| Arc::strong_count(&shared) == 1);
        for (done, accepted) in done.iter().zip(accepted) {
            assert_eq!(done.load(Ordering::SeqCst), u32::from(accepted));
        }
        assert_eq!(total(&counters), expected);
        assert_eq!(counters.rejected_full(), 120 - expected);
        let state = shared.lock();
        assert_eq!((state.active, state.stuck, state.starting), (0, 0, 0));
        assert!(state.open.is_empty() && state.waiting.is_empty());
    }
}
