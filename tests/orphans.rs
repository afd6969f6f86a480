//! What the server has started itself, and what stands between it and the gateway: shells, launchers, daemons.
//! None may outlive the gateway, however that ends, as far as the kernel allows it.

mod support;

use rustix::process::Signal;
use support::gateway::{python, server_script};
use support::life::Life;
use support::process::kill;
use support::{Upstream, on_both_drivers, on_every_layout, process_runs, wait_until};

/// Nothing of Ringway runs after kill -9: shells and launchers (`npx`) between it and the server must not
/// let the server live on.
#[test]
fn nothing_of_a_wrapped_server_outlives_a_killed_gateway() {
    on_every_layout(|layout| {
        let life = Life::new();
        let server = format!(
            "'{}' -S '{}' --journal '{}' --ignore-eof --ignore-term",
            python(),
            server_script("scripted.py").display(),
            life.journal
        );
        for (number, wrapped) in [
            // A shell that waits for its background job.
            format!("exec 3<&0; {server} <&3 & wait"),
            // A launcher that starts a shell that starts the server, which starts one of its own.
            format!("exec 3<&0; sh -c \"exec 4<&3; {server} --grandchild <&4 & wait\" & wait"),
            // A double fork: the parent between is gone, the server belongs to nobody.
            format!(
                "exec 3<&0; (sh -c \"{server} --grandchild\" <&3 &); while :; do sleep 1; done"
            ),
        ]
        .iter()
        .enumerate()
        {
            let _ = std::fs::remove_file(&life.journal);
            let mut gateway = layout.start(&[], Upstream::Command(&["sh", "-c", wrapped]));
            let mut pids = support::process::descendants(gateway.pid());
            pids.extend(life.pids("start"));
            pids.extend(life.pids("grandchild"));
            assert!(pids.iter().all(|&pid| process_runs(pid)), "case {number}");
            gateway.signal(Signal::KILL);
            gateway.wait();
            for pid in pids {
                wait_until(&format!("the orphan of case {number} is gone"), || {
                    !process_runs(pid)
                });
            }
        }
    });
}

/// A daemon leaves its group on purpose. When the gateway ends in order it is found all the same; after
/// kill -9 nobody is left who could: that is said, not hidden.
#[test]
fn daemon_of_the_server_ends_with_the_gateway_in_order() {
    on_both_drivers(|layout| {
        let life = Life::new();
        let mut gateway = life.start(layout, &[], &["--grandchild-session"], &[]);
        let daemon = life.pids("grandchild")[0];
        assert!(process_runs(daemon));
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.wait().code(), Some(0));
        wait_until("the daemon is gone", || !process_runs(daemon));

        let life = Life::new();
        let mut gateway = life.start(layout, &[], &["--grandchild-session"], &[]);
        let (server, daemon) = (life.pids("start")[0], life.pids("grandchild")[0]);
        gateway.signal(Signal::KILL);
        gateway.wait();
        wait_until("the server is gone", || !process_runs(server));
        println!(
            "figure: a grandchild in a session of its own outlives kill -9 of the gateway: {}",
            process_runs(daemon)
        );
        kill(daemon);
    });
}
