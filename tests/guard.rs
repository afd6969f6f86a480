//! The guard process is a process like any other: it may be the one that is killed first.

mod support;

use rustix::process::{Signal, kill_process};
use support::gateway::pid_of;
use support::process::descendants;
use support::{Session, Upstream, on_every_layout, process_runs, wait_until};

fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Without its guard a server would run on unwatched, and a gateway that does not notice would wait for it.
#[test]
fn killed_guard_takes_its_server_along_and_both_are_started_again() {
    on_every_layout(|layout| {
        let gateway = layout.start(&[], Upstream::Demo);
        let session = Session::open(&gateway);
        let echo = session.call("1", "echo", r#"{"message":"m"}"#);
        assert!(gateway.ask(&echo).message()["result"].is_object());
        let before = descendants(gateway.pid());
        let guard = before
            .iter()
            .find(|pid| command_line(**pid).contains("upstream-guard"))
            .expect("the server has a guard");
        kill_process(pid_of(*guard), Signal::KILL).expect("it runs");
        wait_until("nothing of the first server is left", || {
            !before.iter().any(|pid| process_runs(*pid))
        });
        wait_until("another server answers", || {
            gateway.ask(&echo).message()["result"].is_object()
        });
    });
}
