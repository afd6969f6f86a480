//! Running the steps, one JSON line for each, and looking at the gateway past the
//! client (raw HTTP, the server's pid). Nothing here knows about rmcp.

use std::future::Future;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

/// A guard against a hang, not an expectation about speed.
const STEP_TIME_MAX: Duration = Duration::from_secs(30);

/// A text that a careless hop would change: astral signs, joiners, line separators, escapes.
pub const FRAGILE: &str = "👩\u{200d}👩\u{200d}👧 \u{a0}\u{2028}\u{2029} \"\\\n\r\t\u{1} 𝔘 \u{7f}";

/// What went wrong in a step, as its line will say it.
pub type Fault = String;

/// Fails the step with a sentence unless the condition holds.
#[macro_export]
macro_rules! must {
    ($holds:expr, $($told:tt)+) => {
        if !$holds {
            return Err(format!($($told)+));
        }
    };
}

/// Runs one step and prints its line. `None` when it failed: later steps run all the
/// same, so that the table shows all that fails, not the first of it.
pub async fn step<T>(
    client: &str,
    name: &str,
    body: impl Future<Output = Result<(String, T), Fault>>,
) -> Option<T> {
    let outcome = tokio::time::timeout(STEP_TIME_MAX, body)
        .await
        .unwrap_or_else(|_| Err(format!("no end after {} s", STEP_TIME_MAX.as_secs())));
    let (ok, detail, value) = match outcome {
        Ok((detail, value)) => (true, detail, Some(value)),
        Err(fault) => (false, fault, None),
    };
    println!(
        "{}",
        json!({ "client": client, "step": name, "ok": ok, "detail": detail })
    );
    value
}

/// Waits for a condition; a step's own guard ends the waiting.
pub async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn required(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: start this through run.py"))
}

/// How often a server of `servers/` has written this line to the file of events.
pub fn events(line: &str) -> usize {
    let said = std::fs::read_to_string(required("INTEROP_EVENTS")).unwrap_or_default();
    said.lines().filter(|said| *said == line).count()
}

/// False: answers are JSON here, and come without the progress of their calls.
pub fn progress_is_sent() -> bool {
    required("INTEROP_PROGRESS") != "none"
}

pub fn kill_server() -> Result<(), Fault> {
    signal_server("KILL")
}

pub fn signal_server(name: &str) -> Result<(), Fault> {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &required("INTEROP_SERVER_PID")])
        .status()
        .map_err(|error| error.to_string())?;
    must!(status.success(), "kill: {status}");
    Ok(())
}

/// Ends a session as somebody else would who knows its id.
pub async fn end_session_elsewhere(session: &str) -> Result<(), Fault> {
    let request = reqwest::Client::new().delete(required("INTEROP_URL"));
    let status = exchange(request.header("mcp-session-id", session)).await?;
    must!(status == 204, "DELETE from elsewhere: {status}");
    Ok(())
}

/// The status that a request inside `session` gets now.
pub async fn status_inside(session: &str) -> Result<u16, Fault> {
    let request = reqwest::Client::new()
        .post(required("INTEROP_URL"))
        .header("mcp-session-id", session)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(r#"{"jsonrpc":"2.0","id":"elsewhere","method":"ping"}"#);
    exchange(request).await
}

async fn exchange(request: reqwest::RequestBuilder) -> Result<u16, Fault> {
    let response = request.send().await.map_err(|error| error.to_string())?;
    Ok(response.status().as_u16())
}
