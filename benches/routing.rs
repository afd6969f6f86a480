//! What the decisions cost: ids, calls in tables of several sizes, lines of the
//! server, the ledger of subscriptions, the events that wait for a client; and the
//! mailbox that carries them between threads.
//!
//! `cargo bench --bench routing`

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_channel::Receiver;
use ringway::limits::MAILBOX_BATCHES;
use ringway::routing::arrival::{Answered, Progressed};
use ringway::routing::calls::ReplyTo;
use ringway::routing::client::Step;
use ringway::routing::event_queue::EventQueue;
use ringway::routing::ledger::{Act, Ledger, ShardSet};
use ringway::routing::letters::ToShard;
use ringway::routing::server_line::{Route, route};
use ringway::routing::session::{SessionKey, TokenId};
use ringway::routing::shard::{ShardLimits, ShardState};
use ringway::routing::time::{Micros, Millis};
use ringway::routing::upstream_id::{Owner, UpstreamId};
use ringway::routing::uri_index::UriIndex;
use ringway::runtime::bell::{Bell, BellWaiter, Post, PostError, mailbox};
use ringway::runtime::driver::{Driver, DriverChoice, Loop, RingFlags};
use ringway::wire::handshake::{Handshake, Offer};
use ringway::wire::scan::scan;
use ringway::wire::version::Version;

const SEEDS: ahash::RandomState = ahash::RandomState::with_seeds(1, 2, 3, 4);

const NOW: Millis = Millis(1_000);

fn bench_ids(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("upstream id");
    group.bench_function("mint and write", |bencher| {
        let mut buffer = itoa::Buffer::new();
        bencher.iter(|| {
            let id = UpstreamId::of_call(black_box(3), black_box(4_095), black_box(20_000_000));
            id.digits(&mut buffer).len()
        });
    });
    let id = UpstreamId::of_call(3, 4_095, 20_000_000);
    let digits = id.digits(&mut itoa::Buffer::new()).to_vec();
    group.bench_function("read and find the owner", |bencher| {
        bencher.iter(|| {
            let named = UpstreamId::read(black_box(&digits)).expect("it was minted");
            (named.id.owner(), named.id.slot(), named.id.generation())
        });
    });
    assert_eq!(id.owner(), Owner::Shard(3));
    group.finish();
}

/// A shard with its server there and nothing else.
fn shard() -> ShardState {
    let limits = ShardLimits {
        sessions_max: 1_000,
        calls_max: 100_000,
        calls_per_session_max: 1_000,
        subscriptions_per_session_max: 1_000,
        tasks_per_session_max: 1_000,
        uri_bytes_max: 1_000,
        waiting_bytes_max: 1 << 20,
        request_timeout_ms: 300_000,
        request_timeout_max_ms: 3_600_000,
        session_ttl_ms: 1_800_000,
        session_unused_ms: 60_000,
    };
    let mut state = ShardState::new(0, 1, limits, SEEDS, NOW);
    let offer = Offer {
        get_streams: true,
        tasks: true,
    };
    let result = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#;
    let handshake = Handshake::read(result, offer).expect("a valid result");
    state.upstream_up(1, Arc::new(handshake), &mut Vec::new());
    state
}

/// Where no connection is.
const NOWHERE: ReplyTo = ReplyTo {
    connection: 0,
    connection_generation: 0,
    exchange: 0,
    part: 0,
};

/// From the scanned request to the line for the server, and from the server's answer
/// to the call: the newest call begins, the oldest ends. The scans are not in it.
fn bench_calls(criterion: &mut Criterion) {
    const SESSIONS: usize = 64;
    let mut group = criterion.benchmark_group("call, begin and answered");
    for in_flight in [1, 64, 8_192] {
        let mut state = shard();
        let sessions: Vec<SessionKey> = (0..SESSIONS as u128)
            .map(|id| {
                let opened = state.open_session(TokenId::ANYONE, Version::NEWEST, NOW, || id);
                opened.expect("there is room")
            })
            .collect();
        let texts: Vec<String> = (0..in_flight + 1)
            .map(|n| {
                format!(
                    r#"{{"jsonrpc":"2.0","id":"request-{n}","method":"tools/call","params":{{"name":"echo","arguments":{{"message":"a plain word a plain word a plain word a plain word a plain word"}},"_meta":{{"progressToken":{n}}}}}}}"#
                )
            })
            .collect();
        let envelopes: Vec<_> = texts
            .iter()
            .map(|text| scan(text.as_bytes()).expect("a valid message"))
            .collect();
        let mut batch = Vec::new();
        let mut next = 0;
        let mut begin = |state: &mut ShardState| {
            let now = Micros(NOW.0 * 1_000);
            let text = texts[next].as_bytes();
            let session = sessions[next % SESSIONS];
            let envelope = &envelopes[next];
            next = (next + 1) % texts.len();
            let step = state.message(session, text, envelope, NOWHERE, now, &mut Vec::new());
            batch = state.outgoing.take_batch(std::mem::take(&mut batch));
            state.outgoing.written(batch.len());
            match step {
                Step::InFlight { id, .. } => id,
                other => panic!("{other:?}"),
            }
        };
        let mut calls: VecDeque<UpstreamId> = (1..in_flight).map(|_| begin(&mut state)).collect();
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("in flight", in_flight), |bencher| {
            bencher.iter(|| {
                calls.push_back(begin(&mut state));
                let oldest = calls.pop_front().expect("one has just begun");
                match state.answered(black_box(oldest), b"", false, NOW) {
                    Answered::Call(call) => call.client_id.raw().len(),
                    other => panic!("{other:?}"),
                }
            });
        });
        assert_eq!(state.calls_in_flight(), in_flight - 1);
        calls.push_back(begin(&mut state));
        group.bench_function(
            BenchmarkId::new("progress, in flight", in_flight),
            |bencher| {
                bencher.iter(|| {
                    calls.rotate_left(1);
                    match state.progressed(black_box(calls[0]), NOW) {
                        Progressed::Call { token, .. } => token.len(),
                        other => panic!("{other:?}"),
                    }
                });
            },
        );
    }
    group.finish();
}

/// The scan of a line of the server and the decision where it goes.
fn bench_route(criterion: &mut Criterion) {
    let id = UpstreamId::of_call(1, 4_095, 20_000_000);
    let digits = String::from_utf8(id.digits(&mut itoa::Buffer::new()).to_vec());
    let digits = digits.expect("decimal digits");
    let text = "a plain word ".repeat(10);
    let lines = [
        (
            "answer",
            format!(
                r#"{{"jsonrpc":"2.0","id":{digits},"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#
            ),
        ),
        (
            "progress",
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{digits},"progress":1,"total":2}}}}"#
            ),
        ),
        (
            "resource updated",
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a/resource"}}"#
                .to_owned(),
        ),
        (
            "list changed",
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#.to_owned(),
        ),
    ];
    let mut group = criterion.benchmark_group("route a line");
    for (name, line) in &lines {
        let line = line.as_bytes();
        assert!(!matches!(route(line, 2), Route::Drop(_)), "{name}");
        group.bench_function(*name, |bencher| {
            bencher.iter(|| !matches!(route(black_box(line), 2), Route::Drop(_)));
        });
    }
    group.finish();
}

fn uri(n: usize) -> String {
    format!("file:///a/project/with/some/depth/{n:06}")
}

/// The ledger with the ids of the requests that it makes.
struct Book {
    ledger: Ledger,
    sequence: u32,
    acts: Vec<Act>,
}

impl Book {
    /// Shard 0 holds so many URIs.
    fn holding(uris: usize) -> Book {
        let mut book = Book {
            ledger: Ledger::new(7, 300_000),
            sequence: 0,
            acts: Vec::new(),
        };
        book.ledger.up(
            true,
            NOW,
            &mut || unreachable!("it is empty"),
            &mut book.acts,
        );
        for n in 0..uris {
            book.want(0, &uri(n));
            book.answer();
        }
        assert_eq!(book.ledger.len(), uris);
        book
    }

    fn want(&mut self, shard: usize, uri: &str) {
        let sequence = &mut self.sequence;
        let mut next_id = || {
            *sequence += 1;
            UpstreamId::of_hub(*sequence)
        };
        self.acts.clear();
        self.ledger
            .want(shard, uri, NOW, &mut next_id, &mut self.acts);
    }

    fn release(&mut self, shard: usize, uri: &str) {
        let sequence = &mut self.sequence;
        let mut next_id = || {
            *sequence += 1;
            UpstreamId::of_hub(*sequence)
        };
        self.acts.clear();
        self.ledger
            .release(shard, uri, NOW, &mut next_id, &mut self.acts);
    }

    /// The server agrees to what it was just asked.
    fn answer(&mut self) {
        let asked = self.acts.iter().find_map(|act| match act {
            Act::Send { id, .. } => Some(*id),
            _ => None,
        });
        let id = asked.expect("the server was asked");
        let mut next_id = || unreachable!("it asks no more");
        self.acts.clear();
        let is_known = self
            .ledger
            .answered(id, Ok(()), NOW, &mut next_id, &mut self.acts);
        assert!(is_known);
    }
}

fn bench_ledger(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger");
    for uris in [1, 1_000, 100_000] {
        let mut book = Book::holding(uris);
        let mut next = 0;
        let mut known = || {
            // A prime step: not in the order in which they were stored.
            next = (next + 7_919) % uris;
            uri(next)
        };
        group.bench_function(
            BenchmarkId::new("want, agreed, release, agreed", uris),
            |bencher| {
                let another = uri(999_999);
                bencher.iter(|| {
                    book.want(0, black_box(&another));
                    book.answer();
                    book.release(0, black_box(&another));
                    book.answer();
                });
            },
        );
        group.bench_function(BenchmarkId::new("join and leave", uris), |bencher| {
            bencher.iter_batched(
                &mut known,
                |uri| {
                    book.want(1, &uri);
                    book.release(1, &uri);
                    uri
                },
                BatchSize::SmallInput,
            );
        });
        assert_eq!((book.ledger.len(), book.ledger.requests()), (uris, 0));
        let mut shard_0 = ShardSet::default();
        shard_0.insert(0);
        group.bench_function(BenchmarkId::new("holders", uris), |bencher| {
            bencher.iter_batched(
                &mut known,
                |uri| {
                    assert_eq!(book.ledger.holders(&uri), shard_0);
                    uri
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function(
            BenchmarkId::new("holders of a sub-resource", uris),
            |bencher| {
                bencher.iter_batched(
                    || known() + "/a/part?of=it",
                    |uri| {
                        assert_eq!(book.ledger.holders(&uri), shard_0);
                        uri
                    },
                    BatchSize::SmallInput,
                );
            },
        );
    }
    group.finish();
}

fn bench_uri_index(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("uri index");
    for uris in [1, 1_000, 100_000] {
        let mut index = UriIndex::new(7);
        for n in 0..uris {
            index.insert(&uri(n), n);
        }
        let known = uri(uris / 2);
        let part = uri(uris / 2) + "/a/part?of=it";
        let mut found = Vec::new();
        group.bench_function(BenchmarkId::new("find", uris), |bencher| {
            bencher.iter(|| index.find(black_box(&known)).is_some());
        });
        group.bench_function(
            BenchmarkId::new("covering a sub-resource", uris),
            |bencher| {
                bencher.iter(|| {
                    index.covering(black_box(&part), &mut found);
                    found.len()
                });
            },
        );
        assert_eq!(found.len(), 1);
    }
    group.finish();
}

/// An answer's events from an empty queue to the bytes for the wire.
fn bench_event_queue(criterion: &mut Criterion) {
    let message = [b'x'; 120];
    let mut group = criterion.benchmark_group("event queue, push and take");
    for progress in [0, 1, 64, 1_000] {
        group.throughput(Throughput::Elements(progress + 1));
        group.bench_function(
            BenchmarkId::new("progress and the reply", progress),
            |bencher| {
                bencher.iter(|| {
                    let mut events = EventQueue::default();
                    for _ in 0..progress {
                        let dropped =
                            events.progress(|out| out.extend_from_slice(black_box(&message)));
                        assert_eq!(dropped, 0);
                    }
                    events.reply(|out| out.extend_from_slice(black_box(&message)));
                    let mut bytes = 0;
                    while let Some((part, start)) = events.next_part() {
                        bytes += part.len() - start;
                    }
                    bytes
                });
            },
        );
    }
    group.finish();
}

/// What ends the thread behind a mailbox.
const LAST: usize = usize::MAX;

/// Takes letters until the last; `take` gets the others.
async fn take_letters(
    bell: Arc<Bell>,
    driver: Driver,
    letters: Receiver<ToShard>,
    mut take: impl FnMut(usize),
) {
    let waiter = BellWaiter::new(bell, driver).expect("a waiter");
    loop {
        for letter in letters.try_iter() {
            match letter {
                ToShard::Written(LAST) => return,
                ToShard::Written(n) => take(n),
                other => panic!("{other:?}"),
            }
        }
        let waited = waiter.wait(|| !letters.is_empty()).await;
        waited.expect("the bell can be waited for");
    }
}

fn event_loop(choice: DriverChoice) -> Loop {
    Loop::new(choice, RingFlags::BEST).expect("a loop")
}

/// Sends a letter, with the receiver awake and busy if there is no room.
fn send(post: &Post<ToShard>, n: usize) {
    let mut letter = ToShard::Written(n);
    loop {
        match post.send(letter) {
            Ok(()) => return,
            Err(PostError::Full(back)) => letter = back,
            Err(PostError::Gone(_)) => panic!("the receiver is there"),
        }
        post.ring();
        std::thread::yield_now();
    }
}

/// There and back between two threads that sleep in between: two mailboxes, two
/// bells.
fn ping_pong(choice: DriverChoice, rounds: u64) -> Duration {
    let (bell, far_bell) = (Bell::new().expect("a bell"), Bell::new().expect("a bell"));
    let (post, far_letters) = mailbox(MAILBOX_BATCHES, &far_bell);
    let (far_post, letters) = mailbox(MAILBOX_BATCHES, &bell);
    let far = std::thread::spawn(move || {
        let mut event_loop = event_loop(choice);
        let driver = event_loop.driver();
        event_loop.block_on(take_letters(far_bell, driver, far_letters, |n| {
            send(&far_post, n);
            far_post.ring();
        }));
    });
    let mut event_loop = event_loop(choice);
    let driver = event_loop.driver();
    let time = event_loop.block_on(async {
        let waiter = BellWaiter::new(bell, driver).expect("a waiter");
        let round = async |n: usize| {
            send(&post, n);
            post.ring();
            loop {
                match letters.try_recv() {
                    Ok(ToShard::Written(back)) => return assert_eq!(back, n),
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => {}
                }
                let waited = waiter.wait(|| !letters.is_empty()).await;
                waited.expect("the bell can be waited for");
            }
        };
        // The other thread has started when this one is back.
        round(0).await;
        let start = Instant::now();
        for n in 0..rounds {
            round(n as usize).await;
        }
        start.elapsed()
    });
    send(&post, LAST);
    post.ring();
    far.join().expect("the thread ends");
    time
}

/// One way, from the first letter to the last that is taken: `batches` times
/// `letters` and a ring.
fn one_way(choice: DriverChoice, batches: u64, letters: usize) -> Duration {
    let bell = Bell::new().expect("a bell");
    let (post, mail) = mailbox(MAILBOX_BATCHES, &bell);
    let (taken, all_taken) = mpsc::channel();
    let expected = batches as usize * letters;
    let far = std::thread::spawn(move || {
        let mut event_loop = event_loop(choice);
        let driver = event_loop.driver();
        let mut next = 0;
        taken.send(()).expect("it is waited for");
        event_loop.block_on(take_letters(bell, driver, mail, |n| {
            assert_eq!(n, next, "in order, none lost");
            next += 1;
            if next == expected {
                taken.send(()).expect("it is waited for");
            }
        }));
    });
    all_taken.recv().expect("the thread has started");
    let start = Instant::now();
    for n in 0..expected {
        send(&post, n);
        if (n + 1) % letters == 0 {
            post.ring();
        }
    }
    all_taken.recv().expect("all arrive");
    let time = start.elapsed();
    send(&post, LAST);
    post.ring();
    far.join().expect("the thread ends");
    time
}

fn bench_mailbox(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mailbox");
    group.bench_function("send, ring the awake, take, on one thread", |bencher| {
        let bell = Bell::new().expect("a bell");
        let (post, letters) = mailbox(MAILBOX_BATCHES, &bell);
        bencher.iter(|| {
            send(&post, black_box(7));
            post.ring();
            letters.try_recv().is_ok()
        });
    });
    for choice in [DriverChoice::Auto, DriverChoice::Epoll] {
        let driver = event_loop(choice).driver();
        if choice == DriverChoice::Auto && driver == Driver::Epoll {
            println!("mailbox: io_uring is not to be had here, epoll only");
            continue;
        }
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("there and back", driver), |bencher| {
            bencher.iter_custom(|rounds| ping_pong(choice, rounds));
        });
        for letters in [1, 64] {
            group.throughput(Throughput::Elements(letters as u64));
            let name = format!("one way, {letters} a ring");
            group.bench_function(BenchmarkId::new(name, driver), |bencher| {
                bencher.iter_custom(|batches| one_way(choice, batches, letters));
            });
        }
    }
    group.finish();
}

criterion_group!(
    benches,
    bench_ids,
    bench_calls,
    bench_route,
    bench_ledger,
    bench_uri_index,
    bench_event_queue,
    bench_mailbox
);
criterion_main!(benches);
