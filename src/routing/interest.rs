//! The subscriptions of one shard: which of its sessions want which URI. The
//! ledger in the hub knows of them only that this shard wants a URI or no longer
//! does; the first session asks it, the last one releases it.

use std::rc::Rc;

use indexmap::IndexSet;

use super::marks::Update;
use super::session::{SessionId, SessionKey};
use super::upstream_id::UpstreamId;
use super::uri_index::{UriIndex, UriKey};

/// A `resources/subscribe` that waits for the ledger's word. Whether its call
/// still lives says whether its session still wants the URI.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub call: UpstreamId,
    pub session: SessionKey,
    /// Tells the session from a later one in the same place.
    pub session_id: SessionId,
    /// The session has unsubscribed meanwhile: it is answered, and not recorded.
    pub is_void: bool,
}

type Holders = IndexSet<SessionKey, ahash::RandomState>;

#[derive(Debug)]
enum Interest {
    /// The ledger has been asked.
    Asking(Vec<Waiter>),
    /// The server is subscribed, or was when it went down and will be again.
    Held {
        sessions: Holders,
        update: Rc<Update>,
    },
}

/// How clients know the URIs of a server; by default as the server writes them.
#[derive(Clone, Default)]
pub struct ShownUris(pub Option<Rc<ShowUri>>);

/// From a URI as the server writes it to the form that clients know.
/// `None`: they are not told of it.
pub type ShowUri = dyn Fn(&str) -> Option<String>;

impl ShownUris {
    fn update(&self, uri: &str, hasher: &ahash::RandomState) -> Rc<Update> {
        match &self.0 {
            Some(shown) => Update::shown_as(uri, shown(uri).as_deref(), hasher),
            None => Update::shown_as(uri, Some(uri), hasher),
        }
    }
}

impl std::fmt::Debug for ShownUris {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ShownUris").field(&self.0.is_some()).finish()
    }
}

/// What becomes of a session's subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// The ledger need not know.
    Silently,
    /// No session of the shard holds the URI any more: it is to be released.
    Last,
}

/// The URIs that the sessions of a shard want.
#[derive(Debug)]
pub struct Interests {
    /// How URIs are written for clients.
    names: ShownUris,
    index: UriIndex<Interest>,
    hasher: ahash::RandomState,
    /// Scratch of [`Interests::each_update`].
    covering: Vec<UriKey>,
    /// Subscriptions: pairs of a session and a URI that it holds.
    held: usize,
    /// Those who wait, their calls still in flight or not.
    waiting: usize,
    /// Bytes of all URIs on the book.
    uri_bytes: usize,
}

/// Bytes that a URI or a waiter takes besides its text, about.
const ENTRY_BYTES: usize = 256;

/// Bytes that a session's subscription takes, about.
const HELD_BYTES: usize = 48;

impl Interests {
    pub fn new(hasher: ahash::RandomState) -> Interests {
        let secret = hasher.hash_one(0u64);
        Interests {
            names: ShownUris::default(),
            index: UriIndex::new(secret),
            hasher,
            covering: Vec::new(),
            held: 0,
            waiting: 0,
            uri_bytes: 0,
        }
    }

    /// URIs are written like this from now on, also those that are held.
    pub fn set_names(&mut self, names: ShownUris) {
        self.names = names;
        let keys: Vec<UriKey> = self.index.iter().map(|(key, _, _)| key).collect();
        for key in keys {
            let uri: Box<str> = self.index.uri(key).into();
            if let Some(Interest::Held { update, .. }) = self.index.get_mut(key) {
                *update = self.names.update(&uri, &self.hasher);
            }
        }
    }

    /// How clients know a URI of the server; `None`: they are not told of it.
    pub fn shown(&self, uri: &str) -> Option<String> {
        match &self.names.0 {
            Some(shown) => shown(uri),
            None => Some(uri.to_owned()),
        }
    }

    /// A URI that is held.
    pub fn uri(&self, key: UriKey) -> &str {
        self.index.uri(key)
    }

    /// URIs on the book.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Subscriptions of all sessions.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Bytes that the book takes, about.
    pub fn bytes(&self) -> usize {
        self.uri_bytes + (self.len() + self.waiting) * ENTRY_BYTES + self.held * HELD_BYTES
    }

    /// Whether the server is subscribed to `uri` for a session of this shard:
    /// a further one need not wait.
    pub fn is_held(&self, uri: &str) -> bool {
        let entry = self.index.find(uri).and_then(|key| self.index.get(key));
        matches!(entry, Some(Interest::Held { .. }))
    }

    /// Whether `session` holds `uri`.
    pub fn holds(&self, session: SessionKey, uri: &str) -> bool {
        let entry = self.index.find(uri).and_then(|key| self.index.get(key));
        matches!(entry, Some(Interest::Held { sessions, .. }) if sessions.contains(&session))
    }

    /// The update of the longest URI that `session` holds and that covers `uri`.
    pub fn covered_by(&mut self, session: SessionKey, uri: &str) -> Option<Rc<Update>> {
        let mut covering = std::mem::take(&mut self.covering);
        self.index.covering(uri, &mut covering);
        let mut entries = covering.iter().rev();
        let update = entries.find_map(|key| match self.index.get(*key)? {
            Interest::Held { sessions, update } if sessions.contains(&session) => {
                Some(update.clone())
            }
            _ => None,
        });
        self.covering = covering;
        update
    }

    /// A session joins those that hold `uri`. Returns its place, `None` if nobody
    /// holds it or the session does so already.
    pub fn join(&mut self, session: SessionKey, uri: &str) -> Option<UriKey> {
        let key = self.index.find(uri)?;
        let Some(Interest::Held { sessions, .. }) = self.index.get_mut(key) else {
            return None;
        };
        let is_new = sessions.insert(session);
        self.held += usize::from(is_new);
        is_new.then_some(key)
    }

    /// A call waits for `uri`, which nobody holds. True if the ledger is to be
    /// asked.
    pub fn wait(&mut self, waiter: Waiter, uri: &str) -> bool {
        self.waiting += 1;
        let known = self.index.find(uri).and_then(|key| self.index.get_mut(key));
        match known {
            Some(Interest::Asking(waiters)) => {
                waiters.push(waiter);
                false
            }
            Some(Interest::Held { .. }) => {
                debug_assert!(false, "a held URI is joined");
                false
            }
            None => {
                self.insert(uri, Interest::Asking(vec![waiter]));
                true
            }
        }
    }

    fn insert(&mut self, uri: &str, interest: Interest) -> UriKey {
        self.uri_bytes += uri.len();
        self.index.insert(uri, interest)
    }

    fn remove(&mut self, key: UriKey) -> Option<(Box<str>, Interest)> {
        let removed = self.index.remove(key)?;
        self.uri_bytes -= removed.0.len();
        if let Interest::Asking(waiters) = &removed.1 {
            self.waiting -= waiters.len();
        }
        Some(removed)
    }

    /// A session unsubscribes. Returns the place that it held, if it did, and
    /// whether the URI is to be released.
    pub fn unsubscribe(&mut self, session: SessionKey, uri: &str) -> (Option<UriKey>, Left) {
        let Some(key) = self.index.find(uri) else {
            return (None, Left::Silently);
        };
        match self.index.get_mut(key) {
            Some(Interest::Asking(waiters)) => {
                let its_own = waiters.iter_mut().filter(|w| w.session == session);
                its_own.for_each(|waiter| waiter.is_void = true);
                (None, Left::Silently)
            }
            Some(Interest::Held { sessions, .. }) if sessions.contains(&session) => (
                Some(key),
                self.leave(session, key)
                    .map_or(Left::Silently, |_| Left::Last),
            ),
            _ => (None, Left::Silently),
        }
    }

    /// A session that holds the URI at `key` leaves. Returns the URI if it is to
    /// be released.
    pub fn leave(&mut self, session: SessionKey, key: UriKey) -> Option<Box<str>> {
        let Some(Interest::Held { sessions, .. }) = self.index.get_mut(key) else {
            return None;
        };
        self.held -= usize::from(sessions.swap_remove(&session));
        match sessions.is_empty() {
            true => self.remove(key).map(|(uri, _)| uri),
            false => None,
        }
    }

    /// Those who wait for `uri`; the entry is gone then.
    pub fn take_waiters(&mut self, uri: &str) -> Option<Vec<Waiter>> {
        let key = self.index.find(uri)?;
        match self.index.get(key) {
            Some(Interest::Asking(_)) => match self.remove(key) {
                Some((_, Interest::Asking(waiters))) => Some(waiters),
                _ => None,
            },
            _ => None,
        }
    }

    /// The server is subscribed for these sessions, of which there is at least
    /// one. Nobody waited for or held the URI before.
    pub fn hold(&mut self, uri: &str, sessions: &[SessionKey]) -> UriKey {
        let mut holders = Holders::with_hasher(self.hasher.clone());
        holders.extend(sessions.iter().copied());
        self.held += holders.len();
        let update = self.names.update(uri, &self.hasher);
        let sessions = holders;
        self.insert(uri, Interest::Held { sessions, update })
    }

    /// The subscription is lost. Returns its place and who held it.
    pub fn lose(&mut self, uri: &str) -> Option<(UriKey, Vec<SessionKey>)> {
        let key = self.index.find(uri)?;
        let Some(Interest::Held { sessions, .. }) = self.index.get(key) else {
            return None;
        };
        let sessions: Vec<_> = sessions.iter().copied().collect();
        self.remove(key);
        self.held -= sessions.len();
        Some((key, sessions))
    }

    /// The server is gone: nobody is told what the ledger was asked. Returns those
    /// who waited.
    pub fn forget_waiters(&mut self) -> Vec<Waiter> {
        let asking = self.index.iter().filter_map(|(key, _, interest)| {
            matches!(interest, Interest::Asking(_)).then_some(key)
        });
        let asking: Vec<_> = asking.collect();
        let mut waiters = Vec::new();
        for key in asking {
            if let Some((_, Interest::Asking(of_uri))) = self.remove(key) {
                waiters.extend(of_uri);
            }
        }
        waiters
    }

    /// Who is to be told that `uri` was updated: each holder of a URI that covers
    /// it, with the update, and with the update of the holder's own URI if that
    /// is another one; the longest first. A session with several such subscriptions
    /// is named for each.
    pub fn each_update(
        &mut self,
        uri: &str,
        mut tell: impl FnMut(SessionKey, &Rc<Update>, Option<&Rc<Update>>),
    ) {
        let mut covering = std::mem::take(&mut self.covering);
        self.index.covering(uri, &mut covering);
        let mut below = None;
        for key in covering.iter().rev() {
            let Some(Interest::Held { sessions, update }) = self.index.get(*key) else {
                continue;
            };
            if update.is_hidden() {
                continue;
            }
            if self.index.uri(*key) == uri {
                sessions
                    .iter()
                    .for_each(|session| tell(*session, update, None));
            } else {
                let below = below.get_or_insert_with(|| self.names.update(uri, &self.hasher));
                if below.is_hidden() {
                    continue;
                }
                sessions
                    .iter()
                    .for_each(|session| tell(*session, below, Some(update)));
            }
        }
        self.covering = covering;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionKey = SessionKey(1);
    const TWO: SessionKey = SessionKey(2);

    fn waiter(session: SessionKey) -> Waiter {
        Waiter {
            call: UpstreamId::of_call(0, 1, 1),
            session,
            session_id: SessionId(7),
            is_void: false,
        }
    }

    fn interests() -> Interests {
        Interests::new(ahash::RandomState::with_seeds(1, 2, 3, 4))
    }

    fn told(interests: &mut Interests, uri: &str) -> Vec<(SessionKey, bool)> {
        let mut told = Vec::new();
        interests.each_update(uri, |session, _, below| {
            told.push((session, below.is_some()));
        });
        told
    }

    #[test]
    fn the_first_asks_and_others_join_while_it_waits() {
        let mut interests = interests();
        assert!(interests.wait(waiter(ONE), "a:b"));
        assert!(!interests.wait(waiter(TWO), "a:b"));
        assert!(told(&mut interests, "a:b").is_empty(), "not agreed yet");
        assert_eq!(interests.bytes(), 3 + 3 * ENTRY_BYTES);
        assert_eq!(interests.take_waiters("a:b").unwrap().len(), 2);
        assert_eq!((interests.len(), interests.bytes()), (0, 0));
    }

    #[test]
    fn the_last_one_out_releases() {
        let mut interests = interests();
        let key = interests.hold("a:b", &[ONE]);
        assert_eq!(interests.join(TWO, "a:b"), Some(key));
        assert_eq!(interests.join(TWO, "a:b"), None, "once each");
        assert_eq!(interests.held(), 2);
        assert_eq!(
            interests.unsubscribe(ONE, "a:b"),
            (Some(key), Left::Silently)
        );
        assert_eq!(interests.unsubscribe(ONE, "a:b"), (None, Left::Silently));
        assert_eq!(interests.unsubscribe(TWO, "a:b"), (Some(key), Left::Last));
        assert!(interests.is_empty());
        assert_eq!(interests.held(), 0);
    }

    #[test]
    fn an_update_reaches_holders_of_what_covers_it_and_nobody_else() {
        let mut interests = interests();
        interests.hold("file:///a", &[ONE]);
        interests.hold("file:///a/b", &[TWO]);
        interests.hold("file:///ab", &[SessionKey(3)]);
        assert_eq!(
            told(&mut interests, "file:///a/b"),
            [(TWO, false), (ONE, true)]
        );
        assert_eq!(told(&mut interests, "file:///a"), [(ONE, false)]);
        assert!(told(&mut interests, "file:///").is_empty());
    }

    #[test]
    fn unsubscribing_while_it_is_asked_for_leaves_the_waiter_void() {
        let mut interests = interests();
        interests.wait(waiter(ONE), "a:b");
        assert_eq!(interests.unsubscribe(ONE, "a:b"), (None, Left::Silently));
        assert!(interests.take_waiters("a:b").unwrap()[0].is_void);
    }

    #[test]
    fn a_lost_subscription_and_a_server_that_is_gone_leave_no_trace() {
        let mut interests = interests();
        interests.hold("a:b", &[ONE, TWO]);
        interests.wait(waiter(ONE), "c:d");
        interests.forget_waiters();
        assert_eq!(interests.len(), 1);
        assert_eq!(interests.lose("a:b").unwrap().1, [ONE, TWO]);
        assert_eq!(interests.lose("a:b"), None);
        assert!(interests.is_empty());
        assert_eq!((interests.held(), interests.bytes()), (0, 0));
    }
}
