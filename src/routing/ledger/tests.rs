use proptest::prelude::*;

use super::*;

const TIMEOUT: u64 = 100;

fn no() -> Refusal {
    Refusal {
        code: -32002,
        message: "No such resource".into(),
    }
}

/// The number under which the desk below gave out an id.
fn number(id: UpstreamId) -> u32 {
    id.generation() - 1
}

fn shown(act: &Act) -> String {
    match act {
        Act::Send { id, ask, uri } => format!("{ask:?} {uri} #{}", number(*id)),
        Act::Withdraw { id } => format!("Withdraw #{}", number(*id)),
        Act::Tell { shard, uri, told } => match told {
            Told::Refused(refusal) => format!("{shard} {uri} Refused: {refusal}"),
            told => format!("{shard} {uri} {told:?}"),
        },
    }
}

/// A ledger with what it is handed: the time and ids from 0.
struct Desk {
    ledger: Ledger,
    now: u64,
    ids: u32,
}

impl Desk {
    fn empty() -> Desk {
        Desk {
            ledger: Ledger::new(7, TIMEOUT),
            now: 0,
            ids: 0,
        }
    }

    /// With a child that has the capability.
    fn new() -> Desk {
        let mut desk = Desk::empty();
        assert_eq!(desk.up(true), [""; 0]);
        desk
    }

    fn acts(
        &mut self,
        event: impl FnOnce(&mut Ledger, Millis, &mut dyn FnMut() -> UpstreamId, &mut Vec<Act>),
    ) -> Vec<Act> {
        let (ids, mut acts) = (&mut self.ids, Vec::new());
        let mut next_id = || {
            *ids += 1;
            UpstreamId::of_hub(*ids - 1)
        };
        event(&mut self.ledger, Millis(self.now), &mut next_id, &mut acts);
        acts
    }

    fn shown(
        &mut self,
        event: impl FnOnce(&mut Ledger, Millis, &mut dyn FnMut() -> UpstreamId, &mut Vec<Act>),
    ) -> Vec<String> {
        self.acts(event).iter().map(shown).collect()
    }

    fn want(&mut self, shard: usize, uri: &str) -> Vec<String> {
        self.shown(|ledger, now, ids, acts| ledger.want(shard, uri, now, ids, acts))
    }

    fn release(&mut self, shard: usize, uri: &str) -> Vec<String> {
        self.shown(|ledger, now, ids, acts| ledger.release(shard, uri, now, ids, acts))
    }

    fn up(&mut self, subscribe: bool) -> Vec<String> {
        self.shown(|ledger, now, ids, acts| ledger.up(subscribe, now, ids, acts))
    }

    fn answer(&mut self, number: u32, outcome: Result<(), Refusal>) -> Vec<String> {
        let id = UpstreamId::of_hub(number);
        self.shown(|ledger, now, ids, acts| {
            assert!(ledger.answered(id, outcome, now, ids, acts));
        })
    }

    fn ok(&mut self, number: u32) -> Vec<String> {
        self.answer(number, Ok(()))
    }

    fn refuse(&mut self, number: u32) -> Vec<String> {
        self.answer(number, Err(no()))
    }

    /// An answer to nothing that is in flight.
    fn stray(&mut self, number: u32) {
        let id = UpstreamId::of_hub(number);
        let acts = self.acts(|ledger, now, ids, acts| {
            assert!(!ledger.answered(id, Ok(()), now, ids, acts));
        });
        assert_eq!(acts, []);
    }

    fn wait(&mut self, milliseconds: u64) -> Vec<String> {
        self.now += milliseconds;
        self.shown(|ledger, now, ids, acts| ledger.tick(now, ids, acts))
    }

    fn holders(&self, uri: &str) -> Vec<usize> {
        self.ledger.holders(uri).iter().collect()
    }

    fn subscribed(&self) -> Vec<&str> {
        self.ledger.subscribed().collect()
    }

    fn is_idle(&self) -> bool {
        self.ledger.is_empty() && self.ledger.requests() == 0
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_set_of_shards_is_one() {
    let mut set = ShardSet::default();
    for shard in [254, 0, 63, 64, 128] {
        assert!(!set.contains(shard));
        assert!(set.insert(shard) && !set.insert(shard));
    }
    assert!(set.iter().eq([0, 63, 64, 128, 254]));
    assert!(set.remove(64) && !set.remove(64));
    assert!(!set.contains(64) && set.contains(63) && !set.contains(1_000));
    let mut taken = set.take();
    assert!(set.is_empty() && !taken.is_empty());
    set.insert(1);
    set.insert(63);
    taken.add(set);
    assert!(taken.iter().eq([0, 1, 63, 128, 254]));
}

#[test]
fn the_first_asks_the_server_and_the_last_out_unsubscribes() {
    let mut desk = Desk::new();
    assert_eq!(desk.want(0, "a"), ["Subscribe a #0"]);
    assert_eq!(desk.want(1, "a"), NOTHING);
    assert_eq!(desk.holders("a"), [0; 0], "nobody has agreed yet");
    assert_eq!(desk.ok(0), ["0 a Agreed", "1 a Agreed"]);
    assert_eq!(desk.want(2, "a"), ["2 a Agreed"]);
    assert_eq!(desk.want(2, "a"), ["2 a Agreed"]);
    assert_eq!(
        (desk.holders("a"), desk.subscribed()),
        (vec![0, 1, 2], vec!["a"])
    );
    assert_eq!(desk.release(0, "a"), NOTHING);
    assert_eq!(desk.release(0, "a"), NOTHING);
    assert_eq!(desk.release(2, "a"), NOTHING);
    assert_eq!(desk.release(1, "a"), ["Unsubscribe a #1"]);
    assert_eq!(desk.subscribed(), NOTHING);
    assert_eq!(desk.ok(1), NOTHING);
    assert!(desk.is_idle());
}

#[test]
fn a_refusal_is_shared_and_leaves_no_trace() {
    let mut desk = Desk::new();
    desk.want(0, "a");
    desk.want(1, "a");
    assert_eq!(
        desk.refuse(0),
        [
            "0 a Refused: No such resource (-32002)",
            "1 a Refused: No such resource (-32002)"
        ]
    );
    assert!(desk.is_idle());
    assert_eq!(desk.want(0, "a"), ["Subscribe a #1"]);
}

#[test]
fn who_asks_while_the_server_unsubscribes_is_subscribed_anew() {
    for answer in [Ok(()), Err(no())] {
        let mut desk = Desk::new();
        desk.want(0, "a");
        desk.ok(0);
        desk.release(0, "a");
        assert_eq!(desk.want(0, "a"), NOTHING);
        assert_eq!(desk.want(1, "a"), NOTHING);
        assert_eq!(desk.answer(1, answer), ["Subscribe a #2"]);
        assert_eq!(desk.ok(2), ["0 a Agreed", "1 a Agreed"]);
    }
}

#[test]
fn a_refused_unsubscribe_ends_it_as_well() {
    let mut desk = Desk::new();
    desk.want(0, "a");
    desk.ok(0);
    desk.release(0, "a");
    assert_eq!(desk.refuse(1), NOTHING);
    assert!(desk.is_idle());
}

#[test]
fn only_what_is_held_is_released() {
    let mut desk = Desk::new();
    assert_eq!(desk.release(0, "a"), NOTHING);
    desk.want(0, "a");
    assert_eq!(desk.release(0, "a"), NOTHING);
    assert_eq!(desk.ok(0), ["0 a Agreed"]);
    assert_eq!(desk.release(1, "a"), NOTHING);
    assert_eq!(desk.holders("a"), [0]);
}

#[test]
fn a_silent_server_is_given_up_and_told_to_unsubscribe() {
    let mut desk = Desk::new();
    desk.want(0, "a");
    assert_eq!(desk.wait(TIMEOUT - 1), NOTHING);
    desk.want(1, "b");
    assert_eq!(
        desk.wait(1),
        ["Withdraw #0", "0 a TimedOut", "Unsubscribe a #2"]
    );
    desk.stray(0);
    assert_eq!(desk.want(1, "a"), NOTHING);
    assert_eq!(desk.ok(1), ["1 b Agreed"]);
    assert_eq!(desk.wait(TIMEOUT), ["Withdraw #2", "Subscribe a #3"]);
    desk.stray(2);
    assert_eq!(desk.ok(3), ["1 a Agreed"]);
    assert_eq!(desk.wait(9 * TIMEOUT), NOTHING, "an answer in time ends it");
    desk.release(1, "a");
    desk.release(1, "b");
    assert_eq!(desk.wait(TIMEOUT), ["Withdraw #4", "Withdraw #5"]);
    assert!(desk.is_idle());
}

#[test]
fn while_the_child_is_gone_nobody_is_heard() {
    let mut desk = Desk::empty();
    assert_eq!(desk.want(0, "a"), NOTHING);
    assert!(desk.is_idle());
    desk.up(true);
    desk.want(0, "a");
    desk.want(1, "b");
    desk.ok(0);
    desk.release(0, "a");
    desk.want(1, "a");
    desk.ledger.down();
    assert!(desk.is_idle(), "nobody held anything");
    desk.stray(1);
    assert_eq!(desk.wait(9 * TIMEOUT), NOTHING);
    assert_eq!(desk.up(true), NOTHING);
}

#[test]
fn what_is_held_is_restored_in_the_next_child() {
    let mut desk = Desk::new();
    for uri in ["a", "b", "c"] {
        desk.want(0, uri);
        desk.want(1, uri);
        desk.ok(desk.ids - 1);
    }
    desk.ledger.down();
    assert_eq!((desk.holders("a"), desk.subscribed()), (vec![], vec![]));
    assert_eq!(desk.release(0, "c"), NOTHING);
    assert_eq!(desk.ledger.len(), 3);
    assert_eq!(desk.release(1, "c"), NOTHING);
    assert_eq!(desk.ledger.len(), 2);
    assert_eq!(desk.up(true), ["Subscribe a #3", "Subscribe b #4"]);
    assert_eq!(desk.holders("a"), [0, 1], "it may have agreed already");
    assert_eq!(desk.want(0, "a"), ["0 a Agreed"], "it holds it already");
    assert_eq!(desk.want(2, "a"), NOTHING);
    assert_eq!(desk.release(1, "a"), NOTHING);
    assert_eq!(desk.ok(3), ["2 a Agreed", "0 a Updated"]);
    assert_eq!(desk.holders("a"), [0, 2]);
    assert_eq!(desk.want(2, "b"), NOTHING);
    assert_eq!(
        desk.refuse(4),
        [
            "2 b Refused: No such resource (-32002)",
            "0 b Lost",
            "1 b Lost"
        ]
    );
    assert_eq!((desk.ledger.len(), desk.ledger.requests()), (1, 0));
}

#[test]
fn a_restored_uri_that_everybody_has_left_is_unsubscribed() {
    let mut desk = Desk::new();
    desk.want(0, "a");
    desk.ok(0);
    desk.ledger.down();
    desk.up(true);
    assert_eq!(desk.release(0, "a"), NOTHING);
    assert_eq!(desk.ok(1), ["Unsubscribe a #2"]);
    assert_eq!(desk.ok(2), NOTHING);
    assert!(desk.is_idle());
}

#[test]
fn a_silent_restore_is_lost() {
    let mut desk = Desk::new();
    desk.want(0, "a");
    desk.ok(0);
    desk.ledger.down();
    desk.up(true);
    desk.want(1, "a");
    assert_eq!(
        desk.wait(TIMEOUT),
        [
            "Withdraw #1",
            "1 a TimedOut",
            "0 a Lost",
            "Unsubscribe a #2"
        ]
    );
    assert_eq!(desk.holders("a"), [0; 0]);
    desk.ok(2);
    assert!(desk.is_idle());
}

#[test]
fn a_child_that_dies_again_leaves_what_is_held_for_the_next() {
    let mut desk = Desk::new();
    desk.want(0, "a");
    desk.ok(0);
    desk.ledger.down();
    desk.up(true);
    desk.want(1, "a");
    assert_eq!(desk.up(true), ["Subscribe a #2"]);
    desk.stray(1);
    assert_eq!(desk.ok(2), ["0 a Updated"], "who asked has been forgotten");
    assert_eq!(desk.holders("a"), [0]);
}

#[test]
fn a_child_without_the_capability_loses_all_and_refuses_all() {
    let mut desk = Desk::new();
    desk.want(0, "a");
    desk.want(1, "a");
    desk.ok(0);
    desk.ledger.down();
    assert_eq!(desk.up(false), ["0 a Lost", "1 a Lost"]);
    assert!(desk.is_idle());
    assert_eq!(
        desk.want(0, "a"),
        ["0 a Refused: The server has no resource subscriptions (-32601)"]
    );
    assert!(desk.is_idle());
}

#[test]
fn an_update_of_a_sub_resource_is_for_all_who_hold_a_covering_uri() {
    let mut desk = Desk::new();
    for (shard, uri) in ["a:/b", "a:/b/c", "a:/bc", "a:/"].into_iter().enumerate() {
        desk.want(shard, uri);
        desk.ok(desk.ids - 1);
    }
    assert_eq!(desk.holders("a:/b/c?d"), [0, 1, 3]);
    assert_eq!(desk.holders("a:/b"), [0, 3]);
    desk.release(3, "a:/");
    assert_eq!(desk.holders("a:/bcd"), [0; 0]);
}

const SHARDS: usize = 3;
const URIS: [&str; 4] = ["a", "a/b", "a/b?c", "d"];

/// What a shard knows of a URI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knows {
    Nothing,
    Asking,
    /// With `restoring` its child is a new one that has not agreed yet.
    Holding {
        restoring: bool,
    },
}

#[derive(Clone, Debug)]
enum Event {
    Want(usize, usize),
    Release(usize, usize),
    /// The server does what it is asked for, and answers later, if ever.
    Work(usize),
    /// The server answers a request, whether it has worked on it or not.
    Answer(usize, bool),
    /// An answer to a request that has been withdrawn.
    Late(usize),
    Wait(u64),
    Down,
    Up(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let place = (0..SHARDS, 0..URIS.len());
    prop_oneof![
        8 => place.clone().prop_map(|(shard, uri)| Event::Want(shard, uri)),
        6 => place.prop_map(|(shard, uri)| Event::Release(shard, uri)),
        2 => (0..9_usize).prop_map(Event::Work),
        8 => (0..9_usize, prop::bool::weighted(0.8))
            .prop_map(|(which, ok)| Event::Answer(which, ok)),
        1 => (0..9_usize).prop_map(Event::Late),
        3 => (1..TIMEOUT).prop_map(Event::Wait),
        1 => Just(Event::Down),
        2 => prop::bool::weighted(0.8).prop_map(Event::Up),
    ]
}

/// A request that the server has not answered.
#[derive(Debug)]
struct Pending {
    id: UpstreamId,
    ask: Ask,
    uri: usize,
    since: u64,
    is_done: bool,
}

/// The ledger between shards that keep the contract and a server of any mood.
struct World {
    desk: Desk,
    /// `None`: there is no child. Else whether it has the capability.
    child: Option<bool>,
    shards: [[Knows; URIS.len()]; SHARDS],
    pending: Vec<Pending>,
    withdrawn: Vec<UpstreamId>,
    /// What the server is subscribed to.
    set: [bool; URIS.len()],
    /// An unsubscribe was withdrawn before the server did it, and none has
    /// been done since: the server's set is not the ledger's to know.
    unknown: [bool; URIS.len()],
    /// The last request that was not refused was a subscribe.
    open: [bool; URIS.len()],
}

fn place(uri: &str) -> usize {
    URIS.iter().position(|known| *known == uri).unwrap()
}

impl World {
    fn new() -> World {
        World {
            desk: Desk::empty(),
            child: None,
            shards: [[Knows::Nothing; URIS.len()]; SHARDS],
            pending: Vec::new(),
            withdrawn: Vec::new(),
            set: [false; URIS.len()],
            unknown: [false; URIS.len()],
            open: [false; URIS.len()],
        }
    }

    fn holds(&self, shard: usize, uri: usize) -> bool {
        matches!(self.shards[shard][uri], Knows::Holding { .. })
    }

    fn is_held(&self, uri: usize) -> bool {
        (0..SHARDS).any(|shard| self.holds(shard, uri))
    }

    fn is_asked_for(&self, uri: usize) -> bool {
        (0..SHARDS).any(|shard| self.shards[shard][uri] == Knows::Asking)
    }

    fn work(set: &mut bool, unknown: &mut bool, ask: Ask) {
        *set = ask == Ask::Subscribe;
        *unknown = false;
    }

    fn hear(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Send { id, ask, uri } => self.receive(id, ask, place(&uri)),
                Act::Withdraw { id } => self.withdraw(id),
                Act::Tell { shard, uri, told } => self.tell(shard, place(&uri), told),
            }
        }
    }

    fn receive(&mut self, id: UpstreamId, ask: Ask, uri: usize) {
        assert_eq!(self.child, Some(true), "a server that can is there");
        assert!(
            self.pending.iter().all(|other| other.uri != uri),
            "two requests for one URI overlap"
        );
        assert_ne!(self.open[uri], ask == Ask::Subscribe, "they alternate");
        self.open[uri] = ask == Ask::Subscribe;
        self.pending.push(Pending {
            id,
            ask,
            uri,
            since: self.desk.now,
            is_done: false,
        });
    }

    fn withdraw(&mut self, id: UpstreamId) {
        let at = self.pending.iter().position(|other| other.id == id);
        let request = self.pending.remove(at.expect("it is in flight"));
        assert!(self.desk.now >= request.since + TIMEOUT, "not too early");
        if request.ask == Ask::Unsubscribe && !request.is_done {
            self.unknown[request.uri] = true;
        }
        self.withdrawn.push(id);
    }

    fn tell(&mut self, shard: usize, uri: usize, told: Told) {
        let knows = &mut self.shards[shard][uri];
        *knows = match (told, *knows) {
            (Told::Agreed, Knows::Asking) => Knows::Holding { restoring: false },
            (Told::Refused(_) | Told::TimedOut, Knows::Asking) => Knows::Nothing,
            (Told::Updated, Knows::Holding { restoring: true }) => {
                Knows::Holding { restoring: false }
            }
            (Told::Lost, Knows::Holding { restoring: true }) => Knows::Nothing,
            (told, knows) => panic!("{told:?} to a shard that knows {knows:?}"),
        };
    }

    fn answer(&mut self, at: usize, ok: bool) {
        let request = self.pending.remove(at);
        let uri = request.uri;
        if !ok && request.ask == Ask::Subscribe {
            // It says that it is not subscribed, and it is right.
            self.open[uri] = false;
            if request.is_done {
                self.set[uri] = false;
            }
        } else if !request.is_done {
            World::work(&mut self.set[uri], &mut self.unknown[uri], request.ask);
        }
        let outcome = if ok { Ok(()) } else { Err(no()) };
        let acts = self.desk.acts(|ledger, now, ids, acts| {
            assert!(ledger.answered(request.id, outcome, now, ids, acts));
        });
        self.hear(acts);
    }

    fn want(&mut self, shard: usize, uri: usize) {
        if self.shards[shard][uri] != Knows::Nothing {
            return;
        }
        if self.child.is_some() {
            self.shards[shard][uri] = Knows::Asking;
        }
        let acts = self.desk.acts(|ledger, now, ids, acts| {
            ledger.want(shard, URIS[uri], now, ids, acts);
        });
        assert!(self.child.is_some() || acts.is_empty());
        self.hear(acts);
    }

    fn release(&mut self, shard: usize, uri: usize) {
        if !self.holds(shard, uri) {
            return;
        }
        self.shards[shard][uri] = Knows::Nothing;
        let acts = self.desk.acts(|ledger, now, ids, acts| {
            ledger.release(shard, URIS[uri], now, ids, acts);
        });
        self.hear(acts);
    }

    fn down(&mut self) {
        self.child = None;
        self.withdrawn
            .extend(self.pending.drain(..).map(|other| other.id));
        self.set = [false; URIS.len()];
        self.unknown = [false; URIS.len()];
        self.open = [false; URIS.len()];
        for knows in self.shards.as_flattened_mut() {
            *knows = match knows {
                Knows::Nothing | Knows::Asking => Knows::Nothing,
                Knows::Holding { .. } => Knows::Holding { restoring: true },
            };
        }
        self.desk.ledger.down();
    }

    fn up(&mut self, subscribe: bool) {
        if self.child.is_some() {
            self.down();
        }
        self.child = Some(subscribe);
        let acts = self
            .desk
            .acts(|ledger, now, ids, acts| ledger.up(subscribe, now, ids, acts));
        self.hear(acts);
    }

    fn wait(&mut self, milliseconds: u64) {
        self.desk.now += milliseconds;
        let acts = self
            .desk
            .acts(|ledger, now, ids, acts| ledger.tick(now, ids, acts));
        self.hear(acts);
        for request in &self.pending {
            assert!(self.desk.now < request.since + TIMEOUT, "not too late");
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Want(shard, uri) => self.want(shard, uri),
            Event::Release(shard, uri) => self.release(shard, uri),
            Event::Work(which) => {
                let many = self.pending.len().max(1);
                let request = self.pending.get_mut(which % many);
                if let Some(request) = request.filter(|request| !request.is_done) {
                    let uri = request.uri;
                    request.is_done = true;
                    World::work(&mut self.set[uri], &mut self.unknown[uri], request.ask);
                }
            }
            Event::Answer(which, ok) => {
                if !self.pending.is_empty() {
                    self.answer(which % self.pending.len(), ok);
                }
            }
            Event::Late(which) => {
                if let Some(id) = self.withdrawn.get(which) {
                    self.desk.stray(number(*id));
                }
            }
            Event::Wait(milliseconds) => self.wait(milliseconds),
            Event::Down => self.down(),
            Event::Up(subscribe) => self.up(subscribe),
        }
    }

    /// What holds after every event.
    fn check(&self) {
        let ledger = &self.desk.ledger;
        assert_eq!(ledger.requests(), self.pending.len());
        assert_eq!(ledger.deadlines.len(), self.pending.len());
        for (uri, name) in URIS.iter().enumerate() {
            let is_pending = self.pending.iter().any(|request| request.uri == uri);
            let is_restoring = (0..SHARDS)
                .any(|shard| self.shards[shard][uri] == Knows::Holding { restoring: true });
            if self.child.is_some() && (self.is_asked_for(uri) || is_restoring) {
                assert!(is_pending, "it waits for a request about {name} alone");
            }
            assert_eq!(
                ledger.book.find(name).is_some(),
                is_pending || self.is_held(uri),
                "{name} is on the book exactly while it matters"
            );
            let is_subscribed = self.child.is_some() && !is_pending && self.is_held(uri);
            assert_eq!(ledger.subscribed().any(|uri| uri == *name), is_subscribed);
            let covering = (0..URIS.len()).filter(|other| {
                let rest = name.strip_prefix(URIS[*other]);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
            });
            let covering: Vec<usize> = covering.collect();
            let expected = (0..SHARDS).filter(|shard| {
                let holds = |uri: &usize| self.holds(*shard, *uri);
                self.child.is_some() && covering.iter().any(holds)
            });
            assert!(ledger.holders(name).iter().eq(expected));
        }
    }

    /// The server answers whatever it is asked until there is nothing left.
    fn quiet(&mut self) {
        while !self.pending.is_empty() {
            self.answer(0, true);
            self.check();
        }
        for (uri, name) in URIS.iter().enumerate() {
            let is_held = self.is_held(uri);
            assert!(!self.is_asked_for(uri), "everybody has been told");
            assert_eq!(
                self.desk.ledger.subscribed().any(|uri| uri == *name),
                is_held
            );
            assert!(self.unknown[uri] || self.set[uri] == is_held, "{name}");
        }
    }

    fn release_all(&mut self) {
        for shard in 0..SHARDS {
            for uri in 0..URIS.len() {
                self.release(shard, uri);
                self.check();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, ..ProptestConfig::default() })]

    #[test]
    fn shards_server_and_book_agree_whatever_happens(
        events in prop::collection::vec(event(), 0..150),
        is_silent_in_the_end: bool,
    ) {
        let mut world = World::new();
        world.up(true);
        for event in events {
            world.happen(event);
            world.check();
        }
        if world.child != Some(true) {
            world.up(true);
        }
        if !is_silent_in_the_end {
            world.quiet();
        }
        world.release_all();
        if is_silent_in_the_end {
            // At most an unsubscribe, a subscribe for who has asked, and its opposite.
            for _ in 0..4 {
                world.wait(TIMEOUT);
                world.release_all();
            }
        } else {
            world.quiet();
        }
        prop_assert!(world.desk.is_idle());
    }
}
