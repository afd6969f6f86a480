//! Very many calls at once through hooks that are slow: what waits is bounded, nothing is lost
//! but what is counted, and every call is answered once.

use std::collections::HashMap;

use super::*;
use crate::limits::HOOK_POOL;

/// Calls that are in flight at the same time, and how often.
const AT_ONCE: u32 = 5_000;
const ROUNDS: u32 = 2;
const PROGRESS: u32 = 3;

/// Where hooks wait: until its other side is dropped.
type Gate = Arc<Mutex<crossbeam_channel::Receiver<()>>>;

struct Burst {
    bench: Bench,
    session: SessionKey,
    /// Where the hooks wait now.
    gate: Gate,
}

impl Burst {
    fn new() -> Burst {
        let gate: Gate = Arc::new(Mutex::new(crossbeam_channel::never()));
        let at = gate.clone();
        let points = Points::from(Point::BeforeToolCall)
            .with(Point::Progress)
            .with(Point::AfterToolCall);
        let hook = Told::new(points, false, move |call, point, _| {
            let gate = at.lock().expect("no panic").clone();
            let _ = gate.recv();
            let count = call.take::<u32>().unwrap_or_default() + 1;
            call.insert(count);
            // Every eighth call is denied.
            match call.name().ends_with("no") && point == Point::BeforeToolCall {
                true => Verdict::deny(-7, "no"),
                false => Verdict::Pass,
            }
        });
        let hooks = Hooks {
            chain: Arc::new(Chain::new(vec![hook], HANG * 10, 1 << 20)),
            pool: Arc::new(Pool::new(HOOK_POOL)),
        };
        let mut bench = Bench::with(&[], 1 << 28, false);
        bench.calls_max = 20_000;
        bench.configure(&[shared("one"), shared("two")]);
        bench.servers.iter().for_each(|server| server.up());
        bench.take_verdicts();
        bench.set_hooks(&[shared("one"), shared("two")], Some(hooks));
        let session = bench.client();
        Burst {
            bench,
            session,
            gate,
        }
    }

    /// Hooks wait until what is returned is dropped.
    fn close_gate(&self) -> crossbeam_channel::Sender<()> {
        let (open, closed) = crossbeam_channel::bounded(0);
        *self.gate.lock().expect("no panic") = closed;
        open
    }
}

#[test]
fn a_burst_is_bounded_and_each_call_is_answered_once() {
    let burst = Burst::new();
    let (bench, session) = (&burst.bench, burst.session);
    let mut answered = 0;
    let mut sent_progress = 0;
    let mut seen_progress = 0;
    for round in 0..ROUNDS {
        let closed = burst.close_gate();
        let mut calls = HashMap::new();
        let mut overloaded = 0;
        for number in 0..AT_ONCE {
            let upstream = ["one", "two"][number as usize % 2];
            let name = match number % 8 {
                0 => format!("{upstream}-no"),
                _ => format!("{upstream}-x"),
            };
            let params = json!({"name": name, "_meta": {"progressToken": number}});
            match bench.ask(session, number, "tools/call", &params) {
                Sent::Call(call) => drop(calls.insert(number, call)),
                sent => {
                    assert_eq!(sent.now()["error"]["data"]["reason"], "overloaded");
                    overloaded += 1;
                }
            }
            assert!(bench.ground.verdicts_owed() <= HOOK_VERDICTS_MAX);
        }
        // As many as may wait, and those that the threads have taken.
        let held = calls.len();
        assert!(held >= HOOK_POOL.waiting_max, "{held}");
        assert!(held <= HOOK_POOL.waiting_max + HOOK_POOL.workers, "{held}");
        answered += overloaded;
        drop(closed);
        bench.verdicts();
        // Progress and answers arrive while hooks are busy with others.
        let closed = burst.close_gate();
        for server in &bench.servers {
            for asked in &all_asked(server) {
                for number in 1..=PROGRESS {
                    server.progress(asked, number);
                    sent_progress += 1;
                }
                server.result(asked, json!({"round": round}));
                assert!(bench.ground.verdicts_owed() <= HOOK_VERDICTS_MAX);
            }
        }
        drop(closed);
        bench.verdicts();
        for (number, call) in calls {
            let messages = bench.answers(call);
            let (answer, progress) = messages.split_last().expect("an answer");
            assert_eq!(answer["id"], number);
            match number % 8 {
                0 => assert_eq!(code(answer), -7),
                _ => {
                    let is_overloaded = answer["error"]["data"]["reason"] == "overloaded";
                    assert!(
                        is_overloaded || answer["result"]["round"] == round,
                        "{answer}"
                    );
                }
            }
            let numbers: Vec<_> = progress
                .iter()
                .map(|message| {
                    assert_eq!(message["params"]["progressToken"], number);
                    message["params"]["progress"].as_u64().expect("a number")
                })
                .collect();
            assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
            seen_progress += numbers.len() as u64;
            answered += 1;
        }
        bench.is_quiet();
        assert_eq!(bench.ground.calls_in_flight(), 0);
        assert_eq!(bench.ground.buffered_bytes(), 0);
    }
    assert_eq!(answered, ROUNDS * AT_ONCE);
    let dropped = bench.dropped(DropReason::Hook) + bench.dropped(DropReason::SlowReader);
    assert_eq!(seen_progress + dropped, sent_progress);
}

#[test]
fn verdicts_that_nobody_takes_do_not_overflow_their_mailbox() {
    let burst = Burst::new();
    drop(burst.close_gate());
    let (bench, session) = (&burst.bench, burst.session);
    let mut calls = Vec::new();
    let mut refused = 0;
    // The hooks answer at once, but this thread is busy and takes no verdict.
    for number in 0..AT_ONCE {
        let params = json!({"name": "one-x"});
        loop {
            match bench.ask(session, number, "tools/call", &params) {
                Sent::Call(call) => {
                    calls.push(call);
                    break;
                }
                // The pool is full at the moment, or the mailbox would be.
                sent => {
                    sent.now();
                    if bench.ground.verdicts_owed() == HOOK_VERDICTS_MAX {
                        refused += 1;
                        break;
                    }
                    std::thread::yield_now();
                }
            }
        }
    }
    assert_eq!(calls.len(), HOOK_VERDICTS_MAX);
    assert_eq!(calls.len() + refused, AT_ONCE as usize);
    bench.verdicts();
    let one = bench.server("one");
    for asked in all_asked(&one) {
        one.result(&asked, json!({}));
        // For the answers there is no more room than for the requests.
        bench.verdicts();
    }
    bench.verdicts();
    for call in calls {
        assert_eq!(bench.answers(call).len(), 1);
    }
    bench.is_quiet();
}

/// All that a server was asked, however much it is.
fn all_asked(server: &Server) -> Vec<Asked> {
    let batches = std::iter::repeat_with(|| server.asked());
    batches
        .take_while(|batch| !batch.is_empty())
        .flatten()
        .collect()
}
