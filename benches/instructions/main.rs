//! The path of a call without sockets, so often and no more: what `run` beside this
//! file has valgrind count. Whoever runs it by hand (`cargo bench --bench
//! instructions`) sees each case checked once and nothing measured.
//!
//! Seeds of hashes and ids of sessions are fixed and there are no threads. The clock
//! is the product's own; besides the deadlines, which are far away, it decides when
//! the `date` field is formatted anew, once a second.

use std::hint::black_box;
use std::process::ExitCode;

use mimalloc::MiMalloc;

use cases::Case;
use path::Path;

mod cases;
mod path;
mod server;

/// As in the product.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["list"] => {
            for case in cases::ALL {
                println!("{} {}", case.name, case.runs);
            }
            ExitCode::SUCCESS
        }
        ["features"] => {
            println!("{}", features().join(" "));
            ExitCode::SUCCESS
        }
        ["count", name, runs] => {
            let case = cases::ALL.iter().find(|case| case.name == name);
            let (Some(case), Ok(runs)) = (case, runs.parse()) else {
                eprintln!("no such case or number: {name} {runs}");
                return ExitCode::from(2);
            };
            run(case, runs);
            ExitCode::SUCCESS
        }
        // `cargo bench` adds a flag.
        [] | ["--bench"] => {
            for case in cases::ALL {
                run(case, 1);
                println!("{}: checked, not measured", case.name);
            }
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: instructions [list | features | count CASE RUNS]");
            ExitCode::from(2)
        }
    }
}

/// Runs a case. Every run must send as many bytes as the first, whose bytes are
/// looked at.
fn run(case: &Case, runs: usize) {
    let mut path = Path::new(case.hub);
    let mut once = (case.begin)(&mut path);
    path.sent = Some(Vec::new());
    let before = path.sent_bytes;
    once(&mut path);
    let bytes = path.sent_bytes - before;
    let sent = path.sent.take().unwrap_or_default();
    (case.check)(&String::from_utf8(sent).expect("UTF-8"));
    for _ in 0..case.warm_up + runs {
        let before = path.sent_bytes;
        once(black_box(&mut path));
        assert_eq!(path.sent_bytes - before, bytes, "{}", case.name);
    }
}

/// What of the processor the libraries that look for it find: it decides which of
/// their code runs.
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look_for {
        ($($feature:tt)*) => {
            $(if std::is_x86_feature_detected!($feature) {
                found.push($feature);
            })*
        };
    }
    #[cfg(target_arch = "x86_64")]
    look_for!("sse4.2" "pclmulqdq" "avx" "avx2" "bmi1" "bmi2" "aes" "avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    found.push(std::env::consts::ARCH);
    found
}
