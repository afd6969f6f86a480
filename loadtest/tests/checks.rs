//! Each thing that a gateway must not do is done here, and must be noticed: exit code 1, and its name in the summary
//! and in the JSON. A server that does all right must not be accused.

#[path = "support/faulty.rs"]
mod faulty;

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use faulty::Fault;
use serde_json::Value;

/// Runs the load generator. Returns the exit code, the summary and the JSON.
fn load(scenario: &str, url: &str, more: &[&str]) -> (Option<i32>, String, Value) {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!(
        "ringway-loadtest-check-{}-{run}.json",
        std::process::id()
    ));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway-loadtest"));
    command.args([
        scenario,
        "--url",
        url,
        "--concurrency",
        "3",
        "--duration",
        "400ms",
        "--warmup",
        "0s",
        "--json",
    ]);
    let output = command
        .arg(&file)
        .args(more)
        .output()
        .expect("the load generator");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let json = std::fs::read(&file)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let _ = std::fs::remove_file(&file);
    (output.status.code(), text, json.unwrap_or(Value::Null))
}

fn is_noticed(scenario: &str, fault: Fault, name: &str, more: &[&str]) {
    let (code, text, json) = load(scenario, &faulty::start(fault), more);
    assert_eq!(code, Some(1), "{fault:?}: {text}");
    assert!(
        text.contains(name) && text.contains("VIOLATIONS"),
        "{fault:?}: {text}"
    );
    assert!(
        json["violations"][name].as_u64() > Some(0),
        "{fault:?}: {json}"
    );
    let kinds: Vec<&str> = json["evidence"]
        .as_array()
        .expect("evidence")
        .iter()
        .filter_map(|it| it["violation"].as_str())
        .collect();
    assert!(kinds.contains(&name), "{fault:?}: {kinds:?}");
}

#[test]
fn right_server_is_not_accused() {
    for scenario in ["call", "progress", "fanout", "idle", "churn", "mixed"] {
        let (code, text, json) = load(scenario, &faulty::start(Fault::None), &["--sessions", "3"]);
        assert_eq!(code, Some(0), "{scenario}: {text}");
        assert_eq!(json["violations"], serde_json::json!({}), "{scenario}");
        assert_eq!(
            json["failures"],
            serde_json::json!({}),
            "{scenario}: {text}"
        );
        assert!(json["done"].as_u64() > Some(2), "{scenario}: {text}");
    }
}

#[test]
fn answers_of_others_are_noticed() {
    is_noticed("call", Fault::OthersText, "foreign answer", &[]);
    is_noticed("call", Fault::OthersId, "foreign answer", &[]);
    is_noticed(
        "call",
        Fault::EarlierText,
        "crossed answer",
        &["--sessions", "1"],
    );
    is_noticed("call", Fault::NoText, "altered answer", &[]);
    is_noticed("call", Fault::OtherPadding, "altered answer", &[]);
}

#[test]
fn lost_and_doubled_replies_are_noticed() {
    is_noticed("call", Fault::TwoReplies, "doubled reply", &[]);
    is_noticed("call", Fault::NoReply, "lost reply", &[]);
    is_noticed("call", Fault::Accepted, "lost reply", &[]);
    is_noticed(
        "call",
        Fault::Silence,
        "lost reply",
        &["--timeout", "200ms"],
    );
    is_noticed("call", Fault::NotJson, "not a message", &[]);
}

#[test]
fn wrong_progress_is_noticed() {
    is_noticed(
        "progress",
        Fault::ProgressBack,
        "progress out of order",
        &[],
    );
    is_noticed(
        "progress",
        Fault::ProgressAfter,
        "progress after the reply",
        &[],
    );
    is_noticed("progress", Fault::ProgressOfOthers, "foreign progress", &[]);
}

#[test]
fn wrong_events_are_noticed() {
    is_noticed(
        "fanout",
        Fault::EventOfOthers,
        "foreign event",
        &["--timeout", "100ms"],
    );
    is_noticed("fanout", Fault::EventTwice, "doubled event", &[]);
}

/// What is no wrong answer is a failure, by its name, and does not make the run fail.
#[test]
fn failures_are_counted_by_kind() {
    for (scenario, fault, name) in [
        ("progress", Fault::FewSteps, "progress missing"),
        ("fanout", Fault::NoEvent, "change not told"),
        ("call", Fault::Refuses, "error -32603: no"),
    ] {
        // A change that is not told is waited for; what is answered needs no limit that a busy machine could miss.
        let timeout = if fault == Fault::NoEvent {
            "300ms"
        } else {
            "30s"
        };
        let (_, text, json) = load(scenario, &faulty::start(fault), &["--timeout", timeout]);
        assert!(
            json["failures"][name].as_u64() > Some(0),
            "{fault:?}: {text}"
        );
        assert_eq!(
            json["violations"],
            serde_json::json!({}),
            "{fault:?}: {text}"
        );
    }
}

#[test]
fn endpoint_that_is_not_there_and_wrong_flags_have_codes_of_their_own() {
    let (code, text, _) = load("call", "http://127.0.0.1:1/mcp", &[]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("no session could be opened"), "{text}");
    let (code, text, _) = load("call", "https://127.0.0.1:1/mcp", &[]);
    assert_eq!(code, Some(2), "{text}");
    let (code, text, _) = load("call", "http://127.0.0.1:1/mcp", &["--arguments", "[]"]);
    assert_eq!(code, Some(2), "{text}");
    let (code, text, _) = load("mixed", "http://127.0.0.1:1/mcp", &["--sessions", "1"]);
    assert_eq!(code, Some(2), "{text}");
}
