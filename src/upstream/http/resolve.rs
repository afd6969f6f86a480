//! The server's addresses. A name is looked up on a thread of its own, because that blocks;
//! whoever connects takes what is known under a short lock.
#![forbid(unsafe_code)]

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::address::Address;

/// While the server is in use its name is looked up again after this.
const REFRESH: Duration = Duration::from_secs(30);

/// Between the end of a look-up and the next one that a failed connect asks for, at least.
const PAUSE: Duration = Duration::from_secs(1);

/// The addresses of one host, shared by all threads.
#[derive(Debug)]
pub struct Resolver {
    shared: Arc<Shared>,
}

/// What is known now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Addresses {
    /// In the order in which they are to be tried.
    Known(Vec<SocketAddr>),
    /// None yet; a look-up is under way.
    Coming,
    /// The last look-up has found none.
    None,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    asked: Condvar,
    in_use: AtomicBool,
    refresh: Duration,
    pause: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// Those of the last look-up that found any.
    known: Vec<SocketAddr>,
    /// The one that worked last.
    worked: Option<SocketAddr>,
    /// A look-up is wanted or under way.
    is_looking: bool,
    finished: Option<Instant>,
    /// There is no thread that looks, or it is to end.
    is_fixed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and every state is a valid one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants a look-up, unless one is under way or has only just ended.
    fn ask(&self, state: &mut State) {
        let is_recent = state.finished.is_some_and(|at| at.elapsed() < self.pause);
        if !state.is_fixed && !state.is_looking && !is_recent {
            state.is_looking = true;
            self.asked.notify_one();
        }
    }
}

impl Resolver {
    /// For the host of `address`. A name is looked up at once, on a thread of its own.
    pub fn new(address: &Address) -> io::Result<Resolver> {
        if let Some(ip) = address.ip() {
            return Ok(Resolver::fixed(vec![SocketAddr::new(ip, address.port())]));
        }
        let host = address.host().to_owned();
        let port = address.port();
        Resolver::with(REFRESH, PAUSE, move || {
            Ok((host.as_str(), port).to_socket_addrs()?.collect())
        })
    }

    /// These, and no look-up.
    pub fn fixed(addresses: Vec<SocketAddr>) -> Resolver {
        let state = State {
            known: addresses,
            is_fixed: true,
            ..State::default()
        };
        Resolver {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                ..Shared::default()
            }),
        }
    }

    /// `look_up` runs on the thread, now and whenever it is asked for.
    pub(super) fn with(
        refresh: Duration,
        pause: Duration,
        look_up: impl Fn() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Resolver> {
        let state = State {
            is_looking: true,
            ..State::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            refresh,
            pause,
            ..Shared::default()
        });
        let thread = shared.clone();
        std::thread::Builder::new()
            .name("ringway-resolve".into())
            .spawn(move || run(&thread, look_up))?;
        Ok(Resolver { shared })
    }

    /// What is known. `may_ask`: where nothing is, look again.
    pub fn addresses(&self, may_ask: bool) -> Addresses {
        let mut state = self.shared.lock();
        if !state.known.is_empty() {
            let mut known = state.known.clone();
            if let Some(at) = known.iter().position(|&one| Some(one) == state.worked) {
                known[..=at].rotate_right(1);
            }
            return Addresses::Known(known);
        }
        if may_ask {
            self.shared.ask(&mut state);
        }
        match state.is_looking {
            true => Addresses::Coming,
            false => Addresses::None,
        }
    }

    /// The server is in use: its name is to be looked up now and then.
    pub fn used(&self) {
        // A plain look first, so that threads do not take the line from each other.
        if !self.shared.in_use.load(Ordering::Relaxed) {
            self.shared.in_use.store(true, Ordering::Relaxed);
        }
    }

    /// A connection to this address was made: it is tried first from now on.
    pub fn worked(&self, address: SocketAddr) {
        self.shared.lock().worked = Some(address);
    }

    /// No address could be connected to: the name may have moved.
    pub fn failed(&self) {
        let mut state = self.shared.lock();
        self.shared.ask(&mut state);
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.shared.lock().is_fixed = true;
        self.shared.asked.notify_one();
    }
}

/// The thread that looks up. It ends with its resolver, after a look-up that is under way.
fn run(shared: &Shared, look_up: impl Fn() -> io::Result<Vec<SocketAddr>>) {
    let mut had_failed = false;
    let mut state = shared.lock();
    loop {
        while !state.is_looking && !state.is_fixed {
            let waited = shared.asked.wait_timeout(state, shared.refresh);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() && shared.in_use.swap(false, Ordering::Relaxed) {
                state.is_looking = true;
            }
        }
        if state.is_fixed {
            return;
        }
        drop(state);
        let found = look_up();
        state = shared.lock();
        state.is_looking = false;
        state.finished = Some(Instant::now());
        had_failed = match found {
            Ok(mut found) if !found.is_empty() => {
                let mut seen = Vec::with_capacity(found.len());
                found.retain(|one| {
                    !seen.contains(one) && {
                        seen.push(*one);
                        true
                    }
                });
                state.known = found;
                false
            }
            failed => {
                if !had_failed {
                    let error = failed.err().map(|error| error.to_string());
                    let error = error.as_deref().unwrap_or("it has no address");
                    let keeps = !state.known.is_empty();
                    tracing::warn!(
                        error,
                        keeps,
                        "the name of the HTTP server cannot be looked up"
                    );
                }
                true
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Waits for what another thread does.
    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    type Answer = io::Result<Vec<SocketAddr>>;

    /// A resolver whose look-ups are answered by the test.
    fn scripted(
        refresh: Duration,
        pause: Duration,
    ) -> (Resolver, mpsc::Sender<Answer>, mpsc::Receiver<()>) {
        let (answers, next) = mpsc::channel::<Answer>();
        let (begin, begun) = mpsc::channel();
        let resolver = Resolver::with(refresh, pause, move || {
            let _ = begin.send(());
            next.recv()
                .unwrap_or_else(|_| Err(io::Error::other("the test is over")))
        });
        (resolver.unwrap(), answers, begun)
    }

    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn an_address_needs_no_look_up() {
        let resolver = Resolver::new(&Address::parse("http://127.0.0.1:7/").unwrap()).unwrap();
        assert_eq!(resolver.addresses(true), Addresses::Known(vec![at(7)]));
        resolver.failed();
        assert_eq!(resolver.addresses(false), Addresses::Known(vec![at(7)]));
        let none = Resolver::fixed(Vec::new());
        assert_eq!(none.addresses(true), Addresses::None);
    }

    #[test]
    fn a_name_is_looked_up_by_the_system() {
        let resolver = Resolver::new(&Address::parse("http://localhost:7/").unwrap()).unwrap();
        until("found", || {
            matches!(resolver.addresses(false), Addresses::Known(_))
        });
        let Addresses::Known(known) = resolver.addresses(false) else {
            unreachable!()
        };
        assert!(
            known
                .iter()
                .all(|one| one.ip().is_loopback() && one.port() == 7),
            "{known:?}"
        );
    }

    #[test]
    fn the_first_look_up_begins_at_once_and_the_last_good_addresses_are_kept() {
        let (resolver, answers, begun) = scripted(LONG, Duration::ZERO);
        begun.recv().unwrap();
        assert_eq!(resolver.addresses(true), Addresses::Coming);
        answers.send(Ok(vec![at(1), at(2), at(1)])).unwrap();
        until("found", || {
            resolver.addresses(false) == Addresses::Known(vec![at(1), at(2)])
        });
        for answer in [Err(io::Error::other("no")), Ok(Vec::new())] {
            resolver.failed();
            begun.recv().unwrap();
            answers.send(answer).unwrap();
            until("ended", || !resolver.shared.lock().is_looking);
            assert_eq!(
                resolver.addresses(true),
                Addresses::Known(vec![at(1), at(2)])
            );
        }
        resolver.failed();
        begun.recv().unwrap();
        answers.send(Ok(vec![at(3)])).unwrap();
        until("found", || {
            resolver.addresses(false) == Addresses::Known(vec![at(3)])
        });
    }

    #[test]
    fn what_worked_last_is_tried_first() {
        let resolver = Resolver::fixed(vec![at(1), at(2), at(3)]);
        resolver.worked(at(2));
        assert_eq!(
            resolver.addresses(false),
            Addresses::Known(vec![at(2), at(1), at(3)])
        );
        resolver.worked(at(3));
        assert_eq!(
            resolver.addresses(false),
            Addresses::Known(vec![at(3), at(1), at(2)])
        );
        resolver.worked(at(9));
        assert_eq!(
            resolver.addresses(false),
            Addresses::Known(vec![at(1), at(2), at(3)])
        );
    }

    #[test]
    fn a_failed_look_up_is_not_repeated_at_once() {
        let (resolver, answers, begun) = scripted(LONG, LONG);
        begun.recv().unwrap();
        answers.send(Err(io::Error::other("no"))).unwrap();
        until("ended", || resolver.addresses(true) == Addresses::None);
        resolver.failed();
        assert_eq!(resolver.addresses(true), Addresses::None);
        assert!(begun.try_recv().is_err());

        let (resolver, answers, begun) = scripted(LONG, Duration::ZERO);
        begun.recv().unwrap();
        answers.send(Err(io::Error::other("no"))).unwrap();
        until("ended", || resolver.addresses(false) == Addresses::None);
        assert_eq!(resolver.addresses(true), Addresses::Coming);
        begun.recv().unwrap();
        answers.send(Ok(vec![at(4)])).unwrap();
        until("found", || {
            resolver.addresses(false) == Addresses::Known(vec![at(4)])
        });
    }

    #[test]
    fn it_is_looked_up_again_only_while_it_is_in_use() {
        let (resolver, answers, begun) = scripted(Duration::from_millis(5), Duration::ZERO);
        begun.recv().unwrap();
        answers.send(Ok(vec![at(1)])).unwrap();
        // Many refreshes later nothing has happened.
        assert!(begun.recv_timeout(Duration::from_millis(100)).is_err());
        resolver.used();
        begun.recv_timeout(Duration::from_secs(30)).unwrap();
        answers.send(Ok(vec![at(2)])).unwrap();
        until("found", || {
            resolver.addresses(false) == Addresses::Known(vec![at(2)])
        });
        assert!(begun.recv_timeout(Duration::from_millis(100)).is_err());
    }

    #[test]
    fn the_thread_ends_with_its_resolver() {
        let (resolver, answers, begun) = scripted(LONG, Duration::ZERO);
        begun.recv().unwrap();
        answers.send(Ok(vec![at(1)])).unwrap();
        drop(resolver);
        // The look-up, and with it its end of the channel, is gone.
        assert!(
            begun.recv_timeout(Duration::from_secs(30))
                == Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }
}
