//! A hook that does what a test tells it, and the tests of chains on one thread.

use std::panic::panic_any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;

pub(super) const TOOL: Point = Point::BeforeToolCall;
/// Longer than any test takes.
pub(super) const LONG: Duration = Duration::from_secs(600);
const REWRITE_MAX: usize = 100;

type Answer = Box<dyn Fn(&mut HookCall<'_>, Point, &[u8]) -> Verdict + Send + Sync>;

pub(super) struct Told {
    name: String,
    points: Points,
    is_quick: bool,
    answer: Answer,
}

impl Told {
    pub(super) fn slow(
        answer: impl Fn(&mut HookCall<'_>, Point, &[u8]) -> Verdict + Send + Sync + 'static,
    ) -> Arc<Told> {
        Arc::new(Told {
            name: "told".to_owned(),
            points: Points::ALL,
            is_quick: false,
            answer: Box::new(answer),
        })
    }
}

impl Hook for Told {
    fn name(&self) -> &str {
        &self.name
    }
    fn points(&self) -> Points {
        self.points
    }
    fn is_quick(&self) -> bool {
        self.is_quick
    }
    fn before_tool_call(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.answer)(call, Point::BeforeToolCall, text)
    }
    fn after_tool_call(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.answer)(call, Point::AfterToolCall, text)
    }
    fn before_prompt(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.answer)(call, Point::BeforePrompt, text)
    }
    fn after_prompt(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.answer)(call, Point::AfterPrompt, text)
    }
    fn before_read(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.answer)(call, Point::BeforeRead, text)
    }
    fn after_read(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.answer)(call, Point::AfterRead, text)
    }
    fn before_subscribe(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.answer)(call, Point::BeforeSubscribe, text)
    }
    fn progress(&self, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        (self.answer)(call, Point::Progress, text)
    }
}

pub(super) fn job(point: Point, text: &str) -> Job {
    Job {
        point,
        call: CallContext {
            route: "route".into(),
            upstream: Some("one".into()),
            identity: Some("ann".into()),
            session: 7,
            method: "tools/call",
            name: "tool".into(),
        },
        state: CallState::default(),
        text: text.into(),
    }
}

pub(super) fn chain(hooks: Vec<Arc<Told>>, timeout: Duration) -> Chain {
    let hooks = hooks.into_iter().map(|hook| hook as Arc<dyn Hook>);
    Chain::new(hooks.collect(), timeout, REWRITE_MAX)
}

fn rewrite(text: &str) -> Verdict {
    Verdict::Rewrite(text.into())
}

/// What hooks were asked, as `number text`.
type Heard = Arc<Mutex<Vec<String>>>;

/// A hook that notes what it is given.
fn noting(heard: &Heard, number: u32, verdict: Verdict) -> Arc<Told> {
    let heard = Arc::clone(heard);
    Told::slow(move |_, _, text| {
        let text = String::from_utf8_lossy(text);
        heard.lock().unwrap().push(format!("{number} {text}"));
        verdict.clone()
    })
}

fn passing() -> Arc<Told> {
    Told::slow(|_, _, _| Verdict::Pass)
}

#[test]
fn hooks_are_asked_in_order_and_on_the_way_back_in_reverse() {
    for point in Point::ALL {
        let heard = Heard::default();
        let hooks = (0..3).map(|number| noting(&heard, number, Verdict::Pass));
        let outcome = chain(hooks.collect(), LONG).run_here(job(point, "{\"a\":1}"));
        assert_eq!(outcome.verdict, Verdict::Pass);
        assert_eq!(outcome.text, b"{\"a\":1}");
        let mut expected = ["0 {\"a\":1}", "1 {\"a\":1}", "2 {\"a\":1}"];
        use Point::*;
        if matches!(point, AfterToolCall | AfterPrompt | AfterRead | Progress) {
            expected.reverse();
        }
        assert_eq!(*heard.lock().unwrap(), expected, "{point:?}");
    }
}

#[test]
fn each_point_asks_its_own_method() {
    for point in Point::ALL {
        let hook = Told::slow(move |_, asked, _| {
            assert_eq!(asked, point);
            Verdict::Pass
        });
        let outcome = chain(vec![hook], LONG).run_here(job(point, "{}"));
        assert_eq!(outcome.failure, None, "{point:?}");
    }
}

#[test]
fn a_hook_is_asked_only_where_it_wants_to_be() {
    for point in Point::ALL {
        let heard = Heard::default();
        let mut hook = Arc::into_inner(noting(&heard, 0, Verdict::Pass)).unwrap();
        hook.points = point.into();
        let chain = chain(vec![Arc::new(hook)], LONG);
        for asked in Point::ALL {
            assert_eq!(chain.wants(asked), asked == point);
            assert_eq!(chain.is_quick(asked), asked != point);
            chain.run_here(job(asked, "{}"));
        }
        assert_eq!(heard.lock().unwrap().len(), 1);
    }
}

#[test]
fn a_chain_is_quick_where_all_are_that_are_asked() {
    let told = |points: Points, is_quick| {
        Arc::new(Told {
            name: String::new(),
            points,
            is_quick,
            answer: Box::new(|_, _, _| Verdict::Pass),
        })
    };
    let quick = told(Points::ALL, true);
    let slow = told(Point::BeforeRead.into(), false);
    let chain = chain(vec![Arc::clone(&quick), slow, quick], LONG);
    for point in Point::ALL {
        assert_eq!(chain.is_quick(point), point != Point::BeforeRead);
    }
}

#[test]
fn hooks_that_say_nothing_of_a_point_pass_it() {
    struct Silent;
    impl Hook for Silent {
        fn name(&self) -> &str {
            "silent"
        }
        fn points(&self) -> Points {
            Points::ALL
        }
    }
    let chain = Chain::new(vec![Arc::new(Silent)], LONG, REWRITE_MAX);
    for point in Point::ALL {
        assert!(!chain.is_quick(point));
        assert_eq!(chain.run_here(job(point, "{}")).verdict, Verdict::Pass);
    }
    let empty = Chain::new(Vec::new(), LONG, REWRITE_MAX);
    assert!(!Point::ALL.into_iter().any(|point| empty.wants(point)));
    assert_eq!(empty.run_here(job(TOOL, "{}")).verdict, Verdict::Pass);
}

#[test]
fn a_rewrite_is_what_the_next_hook_gets() {
    let heard = Heard::default();
    let hooks = vec![
        noting(&heard, 0, rewrite("{\"a\":1}")),
        noting(&heard, 1, Verdict::Pass),
        noting(&heard, 2, rewrite(" {\"b\":\n2} ")),
        noting(&heard, 3, Verdict::Pass),
    ];
    let chain = chain(hooks, LONG);
    let outcome = chain.run_here(job(TOOL, "{}"));
    assert_eq!(outcome.verdict, rewrite("{\"b\": 2}"));
    assert_eq!(outcome.text, b"{}");
    let expected = ["0 {}", "1 {\"a\":1}", "2 {\"a\":1}", "3 {\"b\": 2}"];
    assert_eq!(*heard.lock().unwrap(), expected);
    assert_eq!(chain.counters().rewritten(), 1);
}

#[test]
fn the_first_denial_ends_the_chain() {
    let heard = Heard::default();
    let hooks = vec![
        noting(&heard, 0, rewrite("{\"a\":1}")),
        noting(&heard, 1, Verdict::deny(-1, "no")),
        noting(&heard, 2, Verdict::deny(-2, "never")),
    ];
    let chain = chain(hooks, LONG);
    let outcome = chain.run_here(job(TOOL, "{}"));
    assert_eq!(outcome.verdict, Verdict::deny(-1, "no"));
    assert_eq!(outcome.failure, None);
    assert_eq!(heard.lock().unwrap().len(), 2);
    assert_eq!(chain.counters().denied(), 1);
}

#[test]
fn rewrites_that_cannot_be_used_deny() {
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(REWRITE_MAX - 7));
    for bad in ["", "[]", "{", "{},\"x\":1", &long] {
        let heard = Heard::default();
        let hooks = vec![
            noting(&heard, 0, rewrite(bad)),
            noting(&heard, 1, Verdict::Pass),
        ];
        let chain = chain(hooks, LONG);
        let outcome = chain.run_here(job(TOOL, "{}"));
        assert_eq!(
            outcome.verdict,
            Verdict::deny(-32603, "A hook failed"),
            "{bad}"
        );
        assert_eq!(outcome.failure, Some(Failure::BadRewrite));
        assert_eq!(heard.lock().unwrap().len(), 1);
        assert_eq!(chain.counters().bad_rewrites(), 1);
    }
    let chain = chain(vec![Told::slow(move |_, _, _| rewrite(&long[1..]))], LONG);
    assert_eq!(
        chain.run_here(job(TOOL, "{}")).failure,
        Some(Failure::BadRewrite)
    );
}

#[test]
fn a_panic_denies_and_what_that_hook_kept_is_forgotten() {
    let panicking = Told::slow(|call, _, text| {
        if text == b"{}" {
            call.insert(1_u8);
            panic_any("on purpose");
        }
        assert_eq!(call.get::<u8>(), None);
        Verdict::Pass
    });
    let keeping = Told::slow(|call, _, _| {
        let count = call.take::<u32>().unwrap_or_default();
        call.insert(count + 1);
        Verdict::Pass
    });
    let chain = chain(vec![keeping, panicking], LONG);
    let mut first = job(TOOL, "{}");
    let outcome = chain.run_here(first);
    assert_eq!(outcome.verdict, Verdict::deny(-32603, "A hook failed"));
    assert_eq!(outcome.failure, Some(Failure::Panicked));
    first = job(Point::BeforeRead, "{\"a\":1}");
    first.state = outcome.state;
    let outcome = chain.run_here(first);
    assert_eq!(outcome.failure, None);
    assert_eq!(format!("{:?}", outcome.state), "CallState { kept: 1 }");
    assert_eq!(
        (chain.counters().panicked(), chain.counters().passed()),
        (1, 1)
    );
}

#[test]
fn what_a_hook_keeps_is_its_own_and_lasts_for_the_call() {
    let counting = |step: u32| {
        Told::slow(move |call, _, _| {
            assert_eq!(call.get::<String>(), None);
            match call.get_mut::<u32>() {
                Some(count) => *count += step,
                None => *call.insert(0) += step,
            }
            assert_eq!(call.take::<String>(), None);
            let count = *call.get::<u32>().unwrap();
            rewrite(&format!("{{\"{step}\":{count}}}"))
        })
    };
    let texts = |first: &str| {
        let chain = chain(vec![passing(), counting(1), counting(10)], LONG);
        let before = chain.run_here(job(TOOL, first));
        assert_eq!(before.verdict, rewrite("{\"10\":10}"));
        let mut back = job(Point::AfterToolCall, first);
        back.state = before.state;
        let back = chain.run_here(back);
        assert_eq!(back.verdict, rewrite("{\"1\":2}"));
    };
    texts("{}");
    // Another call begins anew.
    texts("{}");
}

#[test]
fn a_hook_is_told_of_the_call() {
    let hook = Told::slow(|call, _, _| {
        assert_eq!(call.route(), "route");
        assert_eq!(call.upstream(), Some("one"));
        assert_eq!(call.identity(), Some("ann"));
        assert_eq!(call.session(), 7);
        assert_eq!((call.method(), call.name()), ("tools/call", "tool"));
        Verdict::Pass
    });
    let outcome = chain(vec![hook], LONG).run_here(job(TOOL, "{}"));
    assert_eq!(outcome.failure, None);
}

#[test]
fn a_chain_counts_on_where_another_ended() {
    let first = chain(vec![passing()], LONG);
    first.run_here(job(TOOL, "{}"));
    let second = chain(vec![passing()], LONG).counting_into(Arc::clone(first.counters()));
    second.run_here(job(TOOL, "{}"));
    assert_eq!(first.counters().passed(), 2);
}

#[test]
fn messages_are_not_shown_where_jobs_are_printed() {
    let shown = format!("{:?}", job(TOOL, "{\"secret\":1}"));
    assert!(
        !shown.contains("115") && !shown.contains("secret"),
        "{shown}"
    );
    let outcome = chain(
        vec![noting(&Heard::default(), 0, rewrite("{\"s\":1}"))],
        LONG,
    )
    .run_here(job(TOOL, "{}"));
    let shown = format!("{outcome:?}");
    assert!(
        !shown.contains("123") && shown.contains("rewrite"),
        "{shown}"
    );
}
