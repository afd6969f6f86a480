use std::process::ExitCode;

use clap::Parser;
use ringway_loadtest::options::Options;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ringway_loadtest::command::main(&Options::parse())
}
