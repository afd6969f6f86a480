//! The only file of the demo server that touches descriptors and the clock:
//! one thread reads a chunk, lets the state machine answer every line of it and
//! writes all answers at once. It waits in `poll` only while a timer is armed,
//! and never holds more than one chunk of answers.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::dispatch::Demo;
use super::limits::{FLUSH_BYTES, KEEP_BYTES, LINE_BYTES_MAX, PIPE_BYTES};
use super::lines::{Line, LineBuffer};

/// The client no longer reads: the normal end of a stdio server.
struct Gone;

/// Serves until `input` ends or `output` fails.
///
/// # Errors
/// A failed read or poll of `input`.
pub(super) fn serve(input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
    // Not a pipe, or over this user's quota: it works all the same.
    let _ = rustix::pipe::fcntl_setpipe_size(input, PIPE_BYTES);
    let _ = rustix::pipe::fcntl_setpipe_size(output, PIPE_BYTES);
    let mut server = Server {
        demo: Demo::default(),
        lines: LineBuffer::new(LINE_BYTES_MAX),
        out: Vec::with_capacity(FLUSH_BYTES),
        output,
        start: Instant::now(),
    };
    loop {
        // A timer that is already due does not keep input waiting: there may be
        // a cancellation in it.
        let wait = server.until_next_timer();
        let written = match server.read(input, wait)? {
            Input::Bytes => server.answer_lines(),
            Input::Nothing => Ok(()),
            Input::End => {
                let _ = server.answer_remainder();
                return Ok(());
            }
        };
        if written.and_then(|()| server.fire_timers()).is_err() {
            return Ok(());
        }
    }
}

/// What a wait for input brought.
enum Input {
    Bytes,
    /// A timer is due, or the wait was interrupted.
    Nothing,
    End,
}

struct Server<'fd> {
    demo: Demo,
    lines: LineBuffer,
    /// Answers not written yet.
    out: Vec<u8>,
    output: BorrowedFd<'fd>,
    start: Instant,
}

impl Server<'_> {
    /// `None`: no timer is armed.
    fn until_next_timer(&self) -> Option<Duration> {
        let due = self.demo.next_due()?;
        Some(due.saturating_sub(self.start.elapsed()))
    }

    /// Waits for input, at most until the next timer, and reads one chunk.
    fn read(&mut self, input: BorrowedFd<'_>, wait: Option<Duration>) -> io::Result<Input> {
        // Without a timer the read itself is the wait: one system call less.
        if wait.is_some() && !wait_for(input, PollFlags::IN, wait)? {
            return Ok(Input::Nothing);
        }
        match rustix::io::read(input, self.lines.space()) {
            Ok(0) => Ok(Input::End),
            Ok(count) => {
                self.lines.filled(count);
                Ok(Input::Bytes)
            }
            Err(Errno::INTR) => Ok(Input::Nothing),
            // Whoever started the server may have left the descriptor non-blocking.
            Err(Errno::AGAIN) => {
                wait_for(input, PollFlags::IN, wait)?;
                Ok(Input::Nothing)
            }
            // A socket whose peer has died with unread data.
            Err(Errno::CONNRESET) => Ok(Input::End),
            Err(error) => Err(error.into()),
        }
    }

    fn answer_lines(&mut self) -> Result<(), Gone> {
        // One look at the clock serves a chunk; steps are milliseconds apart.
        let now = self.start.elapsed();
        loop {
            match self.lines.next_line() {
                Line::Complete(line) => self.demo.line(line, now, &mut self.out),
                Line::TooLong => Demo::too_long(&mut self.out),
                Line::Partial => return self.flush(),
            }
            if self.out.len() >= FLUSH_BYTES {
                self.flush()?;
            }
        }
    }

    fn answer_remainder(&mut self) -> Result<(), Gone> {
        let now = self.start.elapsed();
        self.demo.line(self.lines.remainder(), now, &mut self.out);
        self.flush()
    }

    fn fire_timers(&mut self) -> Result<(), Gone> {
        if self.demo.next_due().is_none() {
            return Ok(());
        }
        let now = self.start.elapsed();
        while self.demo.fire(now, &mut self.out) {
            if self.out.len() >= FLUSH_BYTES {
                self.flush()?;
            }
        }
        self.flush()
    }

    /// Writes everything that waits. Blocks while the client does not read:
    /// that is the backpressure of a pipe.
    fn flush(&mut self) -> Result<(), Gone> {
        let mut rest = self.out.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(self.output, rest) {
                Ok(0) => return Err(Gone),
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    wait_for(self.output, PollFlags::OUT, None).map_err(|_| Gone)?;
                }
                Err(_) => return Err(Gone),
            }
        }
        self.out.clear();
        if self.out.capacity() > KEEP_BYTES {
            self.out = Vec::with_capacity(FLUSH_BYTES);
        }
        Ok(())
    }
}

/// Waits until `descriptor` is ready or broken. False: `wait` has passed, or a
/// signal came.
fn wait_for(
    descriptor: BorrowedFd<'_>,
    events: PollFlags,
    wait: Option<Duration>,
) -> io::Result<bool> {
    let timeout = wait.map(|wait| Timespec {
        // A wait is at most a minute.
        tv_sec: wait.as_secs() as i64,
        tv_nsec: wait.subsec_nanos().into(),
    });
    let mut descriptors = [PollFd::from_borrowed_fd(descriptor, events)];
    match poll(&mut descriptors, timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
