use serde_json::{Value, json};

use super::*;
use crate::routing::bench::{digits, id_of};
use crate::routing::upstream_id::TASK_SLOTS_FROM;

const EVERYTHING: Offer = Offer {
    get_streams: true,
    tasks: true,
};

const TIMEOUT: u64 = 100;

const SUBSCRIBE: &str = r#"{"resources":{"subscribe":true},"logging":{}}"#;

/// What the shards get, as text, in order.
#[derive(Default)]
struct Post {
    sent: Vec<String>,
    is_full: bool,
}

impl Shards for Post {
    fn message(
        &mut self,
        shard: usize,
        kind: Kind,
        id: UpstreamId,
        span: Span,
        text: &[u8],
    ) -> bool {
        let text = match kind {
            Kind::Result | Kind::Error | Kind::Progress => {
                assert_eq!(UpstreamId::read(span.of(text)).unwrap().id, id);
                String::new()
            }
            Kind::ForeignTask => String::new(),
            Kind::Changed(kinds) => kinds.len().to_string(),
            _ => String::from_utf8(text.to_vec()).unwrap(),
        };
        let kind = match kind {
            Kind::Changed(_) => "Changed".into(),
            kind => format!("{kind:?}"),
        };
        self.sent
            .push(format!("{shard} {kind} {text}").trim_end().into());
        kind != "Progress" || !self.is_full
    }

    fn letter(&mut self, shard: usize, letter: ToShard) {
        self.sent.push(match letter {
            ToShard::Up { epoch, handshake } => {
                format!("{shard} Up {epoch} {}", handshake.version.as_str())
            }
            ToShard::Down => format!("{shard} Down"),
            ToShard::Told { uri, told } => match told {
                Told::Refused(refusal) => format!("{shard} {uri} refused: {refusal}"),
                told => format!("{shard} {uri} {told:?}"),
            },
            other => panic!("{other:?}"),
        });
    }
}

/// A hub of two shards with a server that is played by hand.
struct Desk {
    hub: HubState,
    post: Post,
    now: Millis,
}

impl Desk {
    fn new(offer: Offer) -> Desk {
        let seeds = ahash::RandomState::with_seeds(1, 2, 3, 4);
        Desk {
            hub: HubState::new(2, offer, TIMEOUT, seeds),
            post: Post::default(),
            now: Millis(0),
        }
    }

    /// With a child that has opened.
    fn open(capabilities: &str) -> Desk {
        let mut desk = Desk::new(EVERYTHING);
        desk.start(capabilities);
        desk.lines();
        desk.sent();
        desk
    }

    /// A child starts and answers the handshake, whose lines are taken.
    fn start(&mut self, capabilities: &str) -> Heard {
        self.hub.begin();
        let id = id_of(&self.lines()[0]);
        let result = format!(r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities}}}"#);
        self.result(id, &result)
    }

    fn end(&mut self) {
        self.hub.end(&mut self.post);
    }

    fn line(&mut self, text: &str) -> Heard {
        self.hub.line(text.as_bytes(), &mut self.post, self.now)
    }

    fn result(&mut self, id: UpstreamId, result: &str) -> Heard {
        let id = digits(id);
        self.line(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
        ))
    }

    fn error(&mut self, id: UpstreamId, error: &str) -> Heard {
        let id = digits(id);
        self.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#))
    }

    fn notification(&mut self, method: &str, params: &str) -> Heard {
        self.line(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}"#
        ))
    }

    fn updated(&mut self, uri: &str) -> Heard {
        self.notification("resources/updated", &format!(r#"{{"uri":"{uri}"}}"#))
    }

    fn note(&mut self, shard: usize, epoch: u64, note: Note) {
        self.hub
            .notes(shard, epoch, vec![note], &mut self.post, self.now);
    }

    fn want(&mut self, shard: usize, uri: &str) {
        let epoch = self.hub.epoch();
        self.note(shard, epoch, Note::Want(uri.into()));
    }

    fn release(&mut self, shard: usize, uri: &str) {
        let epoch = self.hub.epoch();
        self.note(shard, epoch, Note::Release(uri.into()));
    }

    /// A shard has this URI.
    fn hold(&mut self, shard: usize, uri: &str) {
        self.want(shard, uri);
        for line in self.lines() {
            self.result(id_of(&line), "{}");
        }
        assert_eq!(self.sent(), [format!("{shard} {uri} Agreed")]);
    }

    fn levels(&mut self, levels: [Option<Level>; 2]) -> Vec<Value> {
        self.hub.log_levels(levels.into_iter(), self.now);
        self.lines()
    }

    fn tick(&mut self, now: u64) {
        self.now = Millis(now);
        self.hub.tick(self.now, &mut self.post);
    }

    fn flush(&mut self) -> Vec<String> {
        self.hub.flush(&mut self.post);
        self.sent()
    }

    fn sent(&mut self) -> Vec<String> {
        std::mem::take(&mut self.post.sent)
    }

    /// The lines that the server gets.
    fn lines(&mut self) -> Vec<Value> {
        let mut bytes = Vec::new();
        assert_eq!(self.hub.has_lines(), {
            self.hub.take_lines(&mut bytes);
            !bytes.is_empty()
        });
        assert!(!self.hub.has_lines());
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn methods(lines: &[Value]) -> Vec<&str> {
    let methods = lines.iter().map(|line| line["method"].as_str().unwrap());
    methods.collect()
}

fn is_dropped(heard: &Heard, expected: DropReason) -> bool {
    matches!(heard, Heard::Dropped(reason) if *reason == expected)
}

#[test]
fn the_handshake_is_made_and_every_shard_is_told() {
    let mut desk = Desk::new(EVERYTHING);
    desk.hub.begin();
    let lines = desk.lines();
    assert_eq!(methods(&lines), ["initialize"]);
    let params = &lines[0]["params"];
    assert_eq!(params["protocolVersion"], "2025-11-25");
    assert_eq!(params["capabilities"], json!({}));
    assert_eq!(params["clientInfo"]["name"], "ringway");
    assert!(desk.sent().is_empty());
    let result = r#"{"protocolVersion":"2025-06-18","capabilities":{}}"#;
    let id = id_of(&lines[0]);
    assert!(matches!(desk.result(id, result), Heard::Opened(_)));
    assert_eq!(desk.sent(), ["0 Up 1 2025-06-18", "1 Up 1 2025-06-18"]);
    let lines = desk.lines();
    assert_eq!(methods(&lines), ["notifications/initialized"]);
    assert!(lines[0].get("id").is_none());
    let again = desk.result(id, result);
    assert!(is_dropped(&again, DropReason::UnknownId));
    assert!(desk.sent().is_empty());
}

#[test]
fn a_handshake_that_fails_says_why_and_tells_no_shard() {
    let mut desk = Desk::new(EVERYTHING);
    desk.hub.begin();
    let id = id_of(&desk.lines()[0]);
    match desk.error(id, r#"{"code":-32600,"message":"never"}"#) {
        Heard::Failed(OpenError::Refused(text)) => assert!(text.contains("never")),
        other => panic!("{other:?}"),
    }
    for result in ["[]", "{}", r#"{"protocolVersion":"2026-07-28"}"#] {
        desk.hub.begin();
        let id = id_of(&desk.lines()[0]);
        let heard = desk.result(id, result);
        assert!(
            matches!(heard, Heard::Failed(OpenError::Handshake(_))),
            "{result}"
        );
    }
    desk.hub.begin();
    let id = id_of(&desk.lines()[0]);
    let long = format!(r#"{{"code":1,"message":"{}"}}"#, "x".repeat(10_000));
    match desk.error(id, &long) {
        Heard::Failed(OpenError::Refused(text)) => assert!(text.len() <= 500),
        other => panic!("{other:?}"),
    }
    assert!(desk.sent().is_empty());
    assert!(desk.lines().is_empty());
}

#[test]
fn an_answer_of_the_child_before_opens_nothing() {
    let mut desk = Desk::new(EVERYTHING);
    desk.hub.begin();
    let first = id_of(&desk.lines()[0]);
    desk.end();
    desk.sent();
    let result = r#"{"protocolVersion":"2025-11-25"}"#;
    assert!(is_dropped(
        &desk.result(first, result),
        DropReason::UnknownId
    ));
    desk.hub.begin();
    assert!(is_dropped(
        &desk.result(first, result),
        DropReason::UnknownId
    ));
    assert!(desk.sent().is_empty());
}

#[test]
fn answers_and_progress_go_to_the_shard_that_their_id_names() {
    let mut desk = Desk::open("{}");
    let (zero, one) = (UpstreamId::of_call(0, 5, 3), UpstreamId::of_call(1, 5, 3));
    assert!(matches!(desk.result(zero, "{}"), Heard::Routed));
    assert!(matches!(
        desk.error(one, r#"{"code":1,"message":""}"#),
        Heard::Routed
    ));
    let quoted = format!(
        r#"{{"jsonrpc":"2.0","id":"{}","result":{{}}}}"#,
        digits(one)
    );
    assert!(matches!(desk.line(&quoted), Heard::Quoted));
    let params = format!(r#"{{"progressToken":{},"progress":1}}"#, digits(one));
    assert!(matches!(
        desk.notification("progress", &params),
        Heard::Routed
    ));
    desk.post.is_full = true;
    let heard = desk.notification("progress", &params);
    assert!(is_dropped(&heard, DropReason::SlowReader));
    assert_eq!(
        desk.sent(),
        [
            "0 Result",
            "1 Error",
            "1 Result",
            "1 Progress",
            "1 Progress"
        ]
    );
}

/// A shard's call that asks for a task is answered with this one.
fn create(desk: &mut Desk, shard: usize, task: &str) -> Vec<String> {
    let id = UpstreamId::of_call(shard, TASK_SLOTS_FROM, 1);
    desk.result(
        id,
        &format!(r#"{{"task":{{"taskId":"{task}","status":"working"}}}}"#),
    );
    desk.sent()
}

#[test]
fn the_status_of_a_task_goes_to_the_shard_of_its_owner_as_the_server_wrote_it() {
    let mut desk = Desk::open("{}");
    assert_eq!(create(&mut desk, 1, "a"), ["1 Result"]);
    let line = r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"\u0061", "x":1.0}}"#;
    assert!(matches!(desk.line(line), Heard::Routed));
    assert_eq!(desk.sent(), [format!("1 TaskStatus {line}")]);
    for params in [r#"{"status":"working"}"#, r#"{"taskId":"b"}"#] {
        let heard = desk.notification("tasks/status", params);
        assert!(is_dropped(&heard, DropReason::Task));
    }
    assert!(desk.sent().is_empty());
}

#[test]
fn a_task_of_one_shard_cannot_become_anothers() {
    let mut desk = Desk::open("{}");
    assert_eq!(create(&mut desk, 0, "a"), ["0 Result"]);
    assert_eq!(create(&mut desk, 1, "a"), ["1 ForeignTask"]);
    assert_eq!(create(&mut desk, 0, "a"), ["0 Result"], "its shard knows");
    let epoch = desk.hub.epoch();
    desk.note(1, epoch, Note::ForgetTask("a".into()));
    assert_eq!(create(&mut desk, 1, "a"), ["1 ForeignTask"]);
    desk.note(0, epoch, Note::ForgetTask("a".into()));
    assert_eq!(
        create(&mut desk, 1, "a"),
        ["1 ForeignTask"],
        "claimed again"
    );
    desk.note(0, epoch, Note::ForgetTask("a".into()));
    assert_eq!(desk.hub.tasks(), 0);
    assert_eq!(create(&mut desk, 1, "a"), ["1 Result"]);
    desk.end();
    assert_eq!(desk.hub.tasks(), 0);
}

#[test]
fn what_other_calls_are_answered_with_claims_no_task() {
    let mut desk = Desk::open("{}");
    let id = UpstreamId::of_call(0, TASK_SLOTS_FROM - 1, 1);
    desk.result(id, r#"{"task":{"taskId":"a"}}"#);
    assert_eq!(desk.hub.tasks(), 0);
}

#[test]
fn lists_that_change_often_are_told_once_a_flush() {
    let mut desk = Desk::open("{}");
    for kind in ["tools", "prompts", "tools", "tools"] {
        let heard = desk.notification(&format!("{kind}/list_changed"), "{}");
        assert!(matches!(heard, Heard::Routed));
    }
    assert!(desk.sent().is_empty());
    assert_eq!(desk.flush(), ["0 Changed 2", "1 Changed 2"]);
    assert!(desk.flush().is_empty());
    desk.notification("resources/list_changed", "{}");
    assert_eq!(desk.flush(), ["0 Changed 1", "1 Changed 1"]);
}

#[test]
fn an_update_goes_only_to_the_shards_that_hold_what_covers_it() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.hold(1, "f:/a");
    desk.hold(0, "f:/b");
    for _ in 0..3 {
        assert!(matches!(desk.updated("f:/a/x"), Heard::Routed));
    }
    assert!(matches!(desk.updated(r"f:/\u0061"), Heard::Routed));
    for uri in ["f:/", "f:/ab", "g:/a"] {
        assert!(is_dropped(&desk.updated(uri), DropReason::Change), "{uri}");
    }
    assert!(desk.sent().is_empty());
    assert_eq!(desk.flush(), ["1 Updated f:/a/x", "1 Updated f:/a"]);
    assert!(desk.flush().is_empty());
    let longest = format!("f:/a/{}", "x".repeat(UPDATED_URI_BYTES_MAX - 5));
    assert!(matches!(desk.updated(&longest), Heard::Routed));
    let longer = format!("{longest}x");
    assert!(is_dropped(&desk.updated(&longer), DropReason::Change));
    assert_eq!(desk.flush().len(), 1);
}

#[test]
fn who_lets_go_before_the_flush_is_not_told_of_the_update() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.hold(0, "a:b");
    desk.hold(1, "a:c");
    desk.updated("a:b");
    desk.release(0, "a:b");
    assert!(desk.flush().is_empty());
}

#[test]
fn without_get_streams_changes_and_updates_are_dropped() {
    let mut desk = Desk::new(Offer {
        get_streams: false,
        tasks: true,
    });
    desk.start(SUBSCRIBE);
    desk.lines();
    desk.sent();
    for method in ["tools/list_changed", "prompts/list_changed"] {
        let heard = desk.notification(method, "{}");
        assert!(is_dropped(&heard, DropReason::Change));
    }
    assert!(is_dropped(&desk.updated("a:b"), DropReason::Change));
    desk.want(0, "a:b");
    let sent = desk.sent();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].starts_with("0 a:b refused:") && sent[0].contains("-32601"));
    assert!(desk.lines().is_empty());
    assert!(desk.flush().is_empty());
    assert!(desk.hub.ledger().is_empty());
}

#[test]
fn the_server_is_asked_for_a_uri_alone() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.want(0, "a:\"\\");
    desk.want(1, "a:\"\\");
    let lines = desk.lines();
    assert_eq!(methods(&lines), ["resources/subscribe"]);
    assert_eq!(lines[0]["params"], json!({"uri": "a:\"\\"}));
    assert!(desk.sent().is_empty());
    desk.result(id_of(&lines[0]), r#"{"secret":1}"#);
    assert_eq!(desk.sent(), ["0 a:\"\\ Agreed", "1 a:\"\\ Agreed"]);
    desk.release(0, "a:\"\\");
    assert!(desk.lines().is_empty());
    desk.release(1, "a:\"\\");
    let lines = desk.lines();
    assert_eq!(methods(&lines), ["resources/unsubscribe"]);
    assert_eq!(lines[0]["params"], json!({"uri": "a:\"\\"}));
    desk.result(id_of(&lines[0]), "{}");
    assert!(desk.hub.ledger().is_empty());
    assert!(desk.sent().is_empty());
}

#[test]
fn a_refusal_carries_code_and_message_and_nothing_else() {
    let mut desk = Desk::open(SUBSCRIBE);
    for (error, shown) in [
        (
            r#"{"code":-32002,"message":"no","data":{"secret":1},"x":"secret"}"#,
            "no (-32002)",
        ),
        (
            r#"{"code":"secret","message":"no"}"#,
            "The upstream server refused (-32603)",
        ),
        (
            r#"{"code":1.5,"message":"secret"}"#,
            "The upstream server refused (-32603)",
        ),
        (
            r#"{"message":"secret"}"#,
            "The upstream server refused (-32603)",
        ),
        (r#""secret""#, "The upstream server refused (-32603)"),
    ] {
        desk.want(0, "a:b");
        let id = id_of(&desk.lines()[0]);
        desk.error(id, error);
        assert_eq!(desk.sent(), [format!("0 a:b refused: {shown}")]);
    }
    desk.want(0, "a:b");
    let id = id_of(&desk.lines()[0]);
    let long = "é".repeat(REFUSAL_CHARACTERS_MAX + 1);
    desk.error(id, &format!(r#"{{"code":7,"message":"{long}"}}"#));
    assert_eq!(desk.sent()[0].matches('é').count(), REFUSAL_CHARACTERS_MAX);
    assert!(desk.hub.ledger().is_empty());
}

#[test]
fn a_silent_server_is_told_to_forget_and_the_shard_that_it_took_too_long() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.want(0, "a:b");
    let asked = id_of(&desk.lines()[0]);
    desk.tick(TIMEOUT - 1);
    assert!(desk.sent().is_empty() && desk.lines().is_empty());
    desk.tick(TIMEOUT);
    assert_eq!(desk.sent(), ["0 a:b TimedOut"]);
    let lines = desk.lines();
    assert_eq!(
        methods(&lines),
        ["notifications/cancelled", "resources/unsubscribe"]
    );
    assert_eq!(lines[0]["params"]["requestId"].to_string(), digits(asked));
    assert_eq!(lines[0]["params"]["reason"], "timeout");
    assert!(is_dropped(&desk.result(asked, "{}"), DropReason::UnknownId));
    assert!(desk.sent().is_empty());
}

#[test]
fn over_the_bound_of_requests_a_subscription_is_refused() {
    let mut desk = Desk::open(SUBSCRIBE);
    for n in 0..LEDGER_REQUESTS_MAX {
        desk.want(0, &format!("a:{n}"));
    }
    assert!(desk.sent().is_empty());
    desk.want(1, "b:c");
    assert_eq!(desk.sent(), ["1 b:c Overloaded"]);
    let lines = desk.lines();
    assert_eq!(lines.len(), LEDGER_REQUESTS_MAX);
    desk.result(id_of(&lines[0]), "{}");
    desk.want(1, "b:c");
    assert_eq!(desk.lines()[0]["params"]["uri"], "b:c");
}

#[test]
fn what_is_wanted_of_a_child_before_is_not_asked_of_this_one() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.end();
    desk.start(SUBSCRIBE);
    desk.lines();
    desk.sent();
    assert_eq!(desk.hub.epoch(), 2);
    for epoch in [0, 1, 3] {
        desk.note(0, epoch, Note::Want("a:b".into()));
        desk.note(0, epoch, Note::CancelTask("t".into()));
    }
    assert!(desk.lines().is_empty() && desk.sent().is_empty());
    assert!(desk.hub.ledger().is_empty());
    assert_eq!(desk.hub.cancels(), 0);
    desk.note(0, 2, Note::Want("a:b".into()));
    desk.note(0, 2, Note::CancelTask("t".into()));
    let lines = desk.lines();
    assert_eq!(methods(&lines), ["resources/subscribe", "tasks/cancel"]);
    assert_eq!(lines[1]["params"], json!({"taskId": "t"}));
}

#[test]
fn what_is_wanted_while_no_child_is_there_is_not_asked() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.end();
    desk.sent();
    desk.want(0, "a:b");
    desk.hub.begin();
    desk.lines();
    desk.want(1, "a:b");
    assert!(desk.lines().is_empty() && desk.sent().is_empty());
    assert!(desk.hub.ledger().is_empty());
}

#[test]
fn what_is_released_counts_whichever_child_was_there() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.hold(0, "a:1");
    desk.hold(0, "a:2");
    desk.hold(0, "a:3");
    desk.end();
    desk.note(0, 1, Note::Release("a:1".into()));
    desk.start(SUBSCRIBE);
    let restored = desk.lines();
    assert_eq!(restored.len(), 3, "initialized, and a:2 and a:3");
    desk.note(0, 1, Note::Release("a:2".into()));
    for line in &restored[1..] {
        desk.result(id_of(line), "{}");
    }
    desk.note(0, 1, Note::Release("a:3".into()));
    let lines = desk.lines();
    assert_eq!(methods(&lines), ["resources/unsubscribe"; 2]);
    for line in &lines {
        desk.result(id_of(line), "{}");
    }
    assert!(desk.hub.ledger().is_empty());
}

#[test]
fn subscriptions_are_restored_with_a_new_child_or_lost() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.hold(0, "a:b");
    desk.hold(1, "c:d");
    desk.end();
    desk.sent();
    desk.start(SUBSCRIBE);
    assert_eq!(desk.sent(), ["0 Up 2 2025-11-25", "1 Up 2 2025-11-25"]);
    let lines = desk.lines();
    assert_eq!(
        methods(&lines),
        [
            "notifications/initialized",
            "resources/subscribe",
            "resources/subscribe"
        ]
    );
    for line in &lines[1..] {
        match line["params"]["uri"].as_str() {
            Some("a:b") => desk.result(id_of(line), "{}"),
            _ => desk.error(id_of(line), r#"{"code":1,"message":"no"}"#),
        };
    }
    let mut sent = desk.sent();
    sent.sort();
    assert_eq!(sent, ["0 a:b Updated", "1 c:d Lost"]);
    desk.end();
    desk.sent();
    desk.start("{}");
    let lost = ["0 Up 3 2025-11-25", "1 Up 3 2025-11-25", "0 a:b Lost"];
    assert_eq!(desk.sent(), lost);
    assert!(desk.hub.ledger().is_empty());
}

#[test]
fn the_log_level_is_told_one_at_a_time_and_only_if_it_is_another() {
    let mut desk = Desk::open(SUBSCRIBE);
    assert!(desk.levels([None, None]).is_empty());
    assert!(desk.levels([Some(1), None]).is_empty(), "it is at info");
    let lines = desk.levels([Some(4), Some(0)]);
    assert_eq!(methods(&lines), ["logging/setLevel"]);
    assert_eq!(lines[0]["params"], json!({"level": "debug"}));
    assert!(
        desk.levels([Some(4), None]).is_empty(),
        "it has not answered"
    );
    let id = id_of(&lines[0]);
    assert!(matches!(desk.result(id, "{}"), Heard::Routed));
    assert!(is_dropped(&desk.result(id, "{}"), DropReason::UnknownId));
    let lines = desk.levels([Some(4), None]);
    assert_eq!(lines[0]["params"], json!({"level": "error"}));
    let refused = desk.error(id_of(&lines[0]), r#"{"code":1,"message":"no"}"#);
    assert!(matches!(refused, Heard::Routed));
    assert!(
        desk.levels([Some(4), None]).is_empty(),
        "not again the same"
    );
    assert_eq!(desk.levels([None, None])[0]["params"]["level"], "info");
    assert!(desk.sent().is_empty());
}

#[test]
fn a_server_that_does_not_answer_for_its_log_level_is_told_the_next_after_a_while() {
    let mut desk = Desk::open(SUBSCRIBE);
    let told = id_of(&desk.levels([Some(0), None])[0]);
    desk.tick(TIMEOUT - 1);
    assert!(desk.levels([Some(2), None]).is_empty());
    desk.tick(TIMEOUT);
    let lines = desk.levels([Some(2), None]);
    assert_eq!(lines[0]["params"]["level"], "notice");
    assert!(is_dropped(&desk.result(told, "{}"), DropReason::UnknownId));
    assert!(desk.levels([None, None]).is_empty(), "notice is unanswered");
    desk.result(id_of(&lines[0]), "{}");
    assert_eq!(desk.levels([None, None]).len(), 1);
}

#[test]
fn a_server_without_logging_is_told_no_level() {
    let mut desk = Desk::open("{}");
    assert!(desk.levels([Some(0), None]).is_empty());
    desk.end();
    desk.start(SUBSCRIBE);
    desk.lines();
    assert_eq!(desk.levels([Some(0), None]).len(), 1);
    desk.end();
    desk.hub.begin();
    desk.lines();
    assert!(desk.levels([Some(5), None]).is_empty(), "not opened yet");
    desk.end();
    desk.start(SUBSCRIBE);
    desk.lines();
    let lines = desk.levels([Some(0), None]);
    assert_eq!(
        lines[0]["params"]["level"], "debug",
        "a new child knows none"
    );
}

#[test]
fn requests_to_cancel_tasks_are_known_until_they_are_answered_and_bounded() {
    let mut desk = Desk::open("{}");
    let cancel = |desk: &mut Desk| desk.note(0, 1, Note::CancelTask("a\"".into()));
    cancel(&mut desk);
    cancel(&mut desk);
    let lines = desk.lines();
    assert_eq!(methods(&lines), ["tasks/cancel"; 2]);
    assert_eq!(lines[0]["params"], json!({"taskId": "a\""}));
    assert!(matches!(desk.result(id_of(&lines[0]), "{}"), Heard::Routed));
    let again = desk.result(id_of(&lines[0]), "{}");
    assert!(is_dropped(&again, DropReason::UnknownId));
    let refused = desk.error(id_of(&lines[1]), r#"{"code":-32602,"message":"no"}"#);
    assert!(matches!(refused, Heard::Routed));
    assert_eq!(desk.hub.cancels(), 0);
    for _ in 0..ORPHANS_MAX {
        cancel(&mut desk);
    }
    assert_eq!(desk.hub.cancels(), ORPHANS_MAX);
    for _ in 0..ORPHANS_MAX {
        cancel(&mut desk);
        assert!(desk.hub.cancels() <= ORPHANS_MAX);
    }
    assert_eq!(desk.lines().len(), 2 * ORPHANS_MAX, "all are asked");
    assert!(desk.sent().is_empty());
}

#[test]
fn a_servers_requests_are_answered_but_not_without_bound() {
    let mut desk = Desk::open("{}");
    let ping = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
    let sample = r#"{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage"}"#;
    assert!(matches!(desk.line(ping), Heard::Routed));
    assert!(matches!(desk.line(sample), Heard::Routed));
    let lines = desk.lines();
    assert_eq!(lines[0], json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    assert_eq!(
        (&lines[1]["id"], &lines[1]["error"]["code"]),
        (&json!("s"), &json!(-32601))
    );
    let mut answered = 0;
    while let Heard::Routed = desk.line(ping) {
        answered += 1;
        assert!(answered < HUB_ANSWERS_BYTES);
    }
    assert!(is_dropped(&desk.line(sample), DropReason::AnswerOverflow));
    desk.note(0, 1, Note::CancelTask("t".into()));
    let mut bytes = Vec::new();
    desk.hub.take_lines(&mut bytes);
    assert!(bytes.len() > HUB_ANSWERS_BYTES - 100);
    assert!(
        bytes.len() < HUB_ANSWERS_BYTES + 200,
        "but for its own requests"
    );
    assert!(String::from_utf8_lossy(&bytes).contains("tasks/cancel"));
    assert!(matches!(desk.line(ping), Heard::Routed));
    assert!(desk.sent().is_empty());
}

#[test]
fn a_child_that_ends_leaves_nothing_but_what_is_held() {
    let mut desk = Desk::open(SUBSCRIBE);
    desk.hold(1, "a:b");
    desk.want(0, "c:d");
    desk.levels([Some(0), None]);
    desk.note(0, 1, Note::CancelTask("t".into()));
    desk.notification("tools/list_changed", "{}");
    desk.updated("a:b");
    desk.line(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    desk.end();
    assert_eq!(
        desk.sent(),
        [
            "0 Changed 1",
            "1 Changed 1",
            "1 Updated a:b",
            "0 Down",
            "1 Down"
        ]
    );
    assert!(desk.lines().is_empty());
    assert_eq!((desk.hub.cancels(), desk.hub.ledger().requests()), (0, 0));
    assert_eq!(desk.hub.ledger().len(), 1);
    assert!(desk.flush().is_empty());
    desk.tick(9 * TIMEOUT);
    assert!(desk.sent().is_empty() && desk.lines().is_empty());
}

#[test]
fn a_child_that_begins_is_told_nothing_of_what_was_for_the_one_before() {
    let mut desk = Desk::open(SUBSCRIBE);
    let cancel = Note::CancelTask("t".into());
    desk.note(0, 1, cancel.clone());
    let before = id_of(&desk.lines()[0]);
    desk.end();
    desk.hub.log_levels([Some(3), None].into_iter(), desk.now);
    desk.note(0, 1, cancel);
    assert!(desk.hub.has_lines());
    desk.hub.begin();
    assert_eq!(methods(&desk.lines()), ["initialize"]);
    assert_eq!(desk.hub.cancels(), 0);
    assert!(is_dropped(
        &desk.result(before, "{}"),
        DropReason::UnknownId
    ));
    desk.tick(9 * TIMEOUT);
    assert!(desk.lines().is_empty());
}

#[test]
fn an_answer_about_its_log_level_from_the_child_before_is_unknown() {
    let mut desk = Desk::open(SUBSCRIBE);
    let before = id_of(&desk.levels([Some(0), None])[0]);
    desk.end();
    desk.start(SUBSCRIBE);
    desk.lines();
    assert!(is_dropped(
        &desk.result(before, "{}"),
        DropReason::UnknownId
    ));
    let lines = desk.levels([Some(0), None]);
    assert_eq!(lines[0]["params"]["level"], "debug");
    desk.tick(0);
    assert!(desk.levels([None, None]).is_empty(), "debug is unanswered");
}
