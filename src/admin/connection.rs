//! One connection of the admin listener, with blocking reads and writes: one
//! request, one answer, the end. Every phase has a deadline as a whole, so that
//! a client that sends or takes a byte at a time gains nothing by it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::Source;
use super::answer::Answer;
use crate::http::guard::{HeadGuard, Refusal};
use crate::http::head::{self, Head};
use crate::http::policy::Policy;
use crate::limits::{LINGER_BYTES_MAX, LINGER_MS};

/// How long each phase of a connection may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Until the head of the request is there.
    pub(super) head: Duration,
    /// Until the kernel has taken the answer.
    pub(super) answer: Duration,
    /// Until the client has closed its side after that.
    pub(super) linger: Duration,
}

impl Patience {
    pub(super) const DEFAULT: Patience = Patience {
        head: Duration::from_secs(5),
        answer: Duration::from_secs(5),
        linger: Duration::from_millis(LINGER_MS),
    };
}

/// Serves a connection to its end.
pub(super) fn serve(stream: &TcpStream, policy: &Policy, source: &dyn Source, patience: Patience) {
    let answer = match read_head(stream, patience.head) {
        Ok(Some(head)) => Answer::to(&head, policy, source),
        Ok(None) => return,
        Err(refusal) => Answer::refusal(refusal),
    };
    if write(stream, &answer.bytes(), patience.answer).is_ok() {
        linger(stream, patience.linger);
    }
}

/// Reads one head. `None`: the client sent nothing at all, or is gone.
fn read_head(mut stream: &TcpStream, patience: Duration) -> Result<Option<Head>, Refusal> {
    let deadline = Instant::now() + patience;
    let mut guard = HeadGuard::new();
    // The guard refuses what is over its limit, so this stays below two chunks
    // more than that.
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = within(deadline, |left| {
            stream.set_read_timeout(Some(left))?;
            stream.read(&mut chunk)
        });
        match read {
            Ok(0) => return Ok(None),
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::TimedOut && !bytes.is_empty() => {
                return Err(Refusal::new(408, "the request head took too long"));
            }
            Err(_) => return Ok(None),
        }
        if let Some(extent) = guard.advance(&bytes)? {
            return head::read(&bytes, extent).map(Some);
        }
    }
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    while !bytes.is_empty() {
        let written = within(deadline, |left| {
            stream.set_write_timeout(Some(left))?;
            stream.write(bytes)
        })?;
        if written == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Reads what the client still sends (a body that nobody wanted) until it closes:
/// to close before would be a reset, which may overtake the answer.
fn linger(mut stream: &TcpStream, patience: Duration) {
    let deadline = Instant::now() + patience;
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut chunk = [0; 4096];
    let mut read = 0;
    while read < LINGER_BYTES_MAX {
        let length = within(deadline, |left| {
            stream.set_read_timeout(Some(left))?;
            stream.read(&mut chunk)
        });
        match length {
            Ok(0) | Err(_) => return,
            Ok(length) => read += length,
        }
    }
}

/// Does `step` with the time that is left, and again if a signal came between.
///
/// # Errors
/// `TimedOut` when no time is left; else the error of the step.
fn within<T>(deadline: Instant, mut step: impl FnMut(Duration) -> io::Result<T>) -> io::Result<T> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match step(left) {
            // Linux says this, and not `TimedOut`, when a socket's time is over.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(ErrorKind::TimedOut.into());
            }
            // With a time-out set, not even SA_RESTART restarts the call.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    #[test]
    fn a_client_that_takes_nothing_is_let_go() {
        let (server, client) = pair();
        // More than both socket buffers hold.
        let bytes = vec![b'x'; 64 << 20];
        let error = write(&server, &bytes, Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(client);
    }

    #[test]
    fn a_head_in_single_bytes_has_one_deadline_for_all() {
        let (server, mut client) = pair();
        let feeder = std::thread::spawn(move || {
            // Ends when the other side has given up.
            while client.write_all(b"G").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // Sixteen legal bytes are not over by then: the method may have 32.
        let refusal = read_head(&server, Duration::from_millis(60)).unwrap_err();
        assert_eq!(refusal.status, 408);
        drop(server);
        feeder.join().unwrap();
    }

    #[test]
    fn a_client_that_never_closes_is_not_waited_for() {
        let (server, client) = pair();
        let begun = Instant::now();
        linger(&server, Duration::from_millis(50));
        assert!(begun.elapsed() >= Duration::from_millis(50));
        drop(client);
    }
}
