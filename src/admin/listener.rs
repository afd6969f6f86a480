//! The listener's thread and the threads of its connections: few, counted, and
//! never in each other's way. When all places are taken the oldest connection
//! is cut off: a request takes a millisecond, so it is one that waits for a slow
//! or silent client, and a probe must not wait behind it.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Source;
use super::connection::{self, Patience};
use crate::http::policy::Policy;

/// Connections at most at one time: a scraper or two, a few probes, an operator.
pub const CONNECTIONS_MAX: usize = 8;

/// The pause after a failed accept or a thread that could not be started: the
/// lack of descriptors or memory does not go away by trying at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves `listener` on a thread of its own that ends with the process.
///
/// # Errors
/// The system's, when the thread cannot be started.
pub fn start(
    listener: TcpListener,
    policy: Policy,
    source: Arc<dyn Source>,
) -> io::Result<JoinHandle<()>> {
    start_with(listener, policy, source, Patience::DEFAULT)
}

pub(super) fn start_with(
    listener: TcpListener,
    policy: Policy,
    source: Arc<dyn Source>,
    patience: Patience,
) -> io::Result<JoinHandle<()>> {
    listener.set_nonblocking(false)?;
    let face = Arc::new(Face {
        policy,
        source,
        patience,
    });
    std::thread::Builder::new()
        .name("ringway-admin".into())
        .spawn(move || accept(&listener, &face))
}

/// What all connections share.
struct Face {
    policy: Policy,
    source: Arc<dyn Source>,
    patience: Patience,
}

fn accept(listener: &TcpListener, face: &Arc<Face>) {
    let places = Arc::new(Places::default());
    loop {
        let served = listener
            .accept()
            .and_then(|(stream, _)| serve(&places, stream, face.clone()));
        if let Err(error) = served {
            tracing::warn!(%error, "the admin listener cannot serve a connection");
            std::thread::sleep(PAUSE);
        }
    }
}

fn serve(places: &Arc<Places>, stream: TcpStream, face: Arc<Face>) -> io::Result<()> {
    // Given back when the thread ends, by a panic too, or never starts.
    let place = places.take(stream);
    std::thread::Builder::new()
        .name("ringway-probe".into())
        .spawn(move || {
            connection::serve(&place.stream, &face.policy, &*face.source, face.patience);
        })?;
    Ok(())
}

/// The places of the connections that are open.
#[derive(Debug, Default)]
struct Places {
    /// Oldest first.
    taken: Mutex<VecDeque<Arc<TcpStream>>>,
    given_back: Condvar,
}

impl Places {
    /// Takes a place; if there is none, that of the oldest connection, which is
    /// shut down and awaited.
    fn take(self: &Arc<Self>, stream: TcpStream) -> Place {
        let stream = Arc::new(stream);
        let taken = self.lock();
        if taken.len() >= CONNECTIONS_MAX
            && let Some(oldest) = taken.front()
        {
            // Its thread's read or write ends at once.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let mut taken = self
            .given_back
            .wait_while(taken, |taken| taken.len() >= CONNECTIONS_MAX)
            .unwrap_or_else(PoisonError::into_inner);
        taken.push_back(stream.clone());
        Place {
            places: self.clone(),
            stream,
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<TcpStream>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection and its place, which is given back on drop.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    stream: Arc<TcpStream>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.retain(|stream| !Arc::ptr_eq(stream, &self.stream));
        self.places.given_back.notify_one();
    }
}
