//! The loop of a thread: io_uring with the ring flags that measured best, or
//! epoll where io_uring is not to be had (containers often forbid it). Which
//! one it became is said in the log; both are first class.

use std::fmt;
use std::future::Future;
use std::io;

use monoio::time::TimeDriver;
use monoio::{FusionDriver, FusionRuntime, IoUringDriver, LegacyDriver, RuntimeBuilder};

use crate::limits::RING_ENTRIES;

/// What was asked for by `--driver`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum DriverChoice {
    /// io_uring, else epoll.
    Auto,
    /// io_uring or nothing.
    Uring,
    /// epoll.
    Epoll,
}

/// What a loop really runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    Uring,
    Epoll,
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Driver::Uring => "io_uring",
            Driver::Epoll => "epoll",
        })
    }
}

/// The ring set-up flags that `--uring-flags` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingFlags {
    /// Completions are handled when the thread enters the kernel anyway
    /// (Linux 5.19): 10 to 30 % less CPU a call than without.
    pub coop_taskrun: bool,
    /// Only one thread submits (Linux 6.0); true of every loop here.
    pub single_issuer: bool,
    /// Completions are handled only when the loop waits for them (Linux 6.1).
    /// Not in the default: with monoio 0.2.4 they are not reaped while any task
    /// is ready.
    pub defer_taskrun: bool,
}

impl RingFlags {
    /// The default: what measured best.
    pub const BEST: RingFlags = RingFlags {
        coop_taskrun: true,
        single_issuer: true,
        defer_taskrun: false,
    };

    fn builder(self) -> io_uring::Builder {
        let mut builder = io_uring::IoUring::builder();
        if self.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        if self.single_issuer {
            builder.setup_single_issuer();
        }
        if self.defer_taskrun {
            builder.setup_defer_taskrun();
        }
        builder
    }
}

/// A loop that has been set up on the calling thread.
pub struct Loop {
    runtime: FusionRuntime<TimeDriver<IoUringDriver>, TimeDriver<LegacyDriver>>,
}

impl Loop {
    /// Sets a loop up. `Auto` falls back from the flags to no flags (older
    /// kernels) and from there to epoll.
    pub fn new(choice: DriverChoice, flags: RingFlags) -> io::Result<Loop> {
        let runtime = match choice {
            DriverChoice::Epoll => epoll()?,
            DriverChoice::Uring => uring(flags).map_err(|error| {
                let text = format!(
                    "io_uring is not to be had here ({error}): try --driver epoll or auto, or other --uring-flags"
                );
                io::Error::new(error.kind(), text)
            })?,
            DriverChoice::Auto => RuntimeBuilder::<FusionDriver>::new()
                .with_entries(RING_ENTRIES)
                .uring_builder(flags.builder())
                .enable_timer()
                .build()
                .or_else(|_| uring(RingFlags::default()))
                .or_else(|_| epoll())?,
        };
        Ok(Loop { runtime })
    }

    /// What the loop really runs on.
    pub fn driver(&self) -> Driver {
        match &self.runtime {
            FusionRuntime::Uring(_) => Driver::Uring,
            FusionRuntime::Legacy(_) => Driver::Epoll,
        }
    }

    /// Runs `future` and all that it spawns until it is done.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

type Runtime = FusionRuntime<TimeDriver<IoUringDriver>, TimeDriver<LegacyDriver>>;

fn uring(flags: RingFlags) -> io::Result<Runtime> {
    let builder = RuntimeBuilder::<IoUringDriver>::new().with_entries(RING_ENTRIES);
    let runtime = builder
        .uring_builder(flags.builder())
        .enable_timer()
        .build()?;
    Ok(runtime.into())
}

fn epoll() -> io::Result<Runtime> {
    Ok(RuntimeBuilder::<LegacyDriver>::new()
        .enable_timer()
        .build()?
        .into())
}
