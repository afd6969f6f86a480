//! The third kind of world: a route joins one to three upstreams, shared ones and ones where
//! each session has its own, on one thread. It is run with the real objects of `http`
//! (`Ground`, `Shard`, `Joined`); only sockets, the hub and the servers are played. Servers
//! answer in any order, twice, late, under ids of others, with errors; they die, come again,
//! can do less than before, forget sessions, ask clients, change lists; clients call, list,
//! cancel, use an id twice, subscribe, open and lose streams, and vanish; the route is
//! configured again meanwhile. What must hold is the same as ever, and: a request reaches
//! the server that its name means and no other; what a server says has the name that the
//! route gives it; an answer of a client reaches the server that asked, once; a session ends
//! for a reason only; every upstream session of which the gateway knows is ended.
//!
//! | file | has |
//! |---|---|
//! | `world` | the parts, the scheduler, the configuration |
//! | `server` | the model servers and what they check |
//! | `client` | clients, what they do and what they make of it |
//! | `quiet` | how a run comes to rest and ends |
//!
//! A failing seed says how to replay it:
//! `RINGWAY_SIMULATION_SEED=n cargo test --test simulation joined_routes -- --nocapture`.
//!
//! Faults that were put into the code on purpose, each alone, and how many of 250 seeds
//! failed (the unit tests of `http::joined` have these too, and others):
//!
//! | fault | seeds |
//! |---|---|
//! | an id in flight at another leg is not seen | 117 |
//! | servers of several upstreams ask under the same ids | 12 |
//! | an upstream session that nobody wants is not ended | 58 |
//! | a leg goes to the session that is in the place of the one that wanted it | 8 |
//! | legs at upstreams that are taken away stay | 160 |
//! | the end of a session leaves its legs | 238 |
//! | the bytes of lists stay counted | 209 |
//! | a client that vanishes leaves its list | 6 |
//! | legs go on being opened at an upstream that is taken away | 35 |
//! | a cancel goes to the first leg only | 85 |
//! | the answer to an `initialize` is for nobody | 133 |
//! | tools, completions, subscriptions go upstream under their public names | 213, 116, 79 |
//!
//! What is left out: tasks, batches, the ledger and restarts that restore subscriptions,
//! budgets. Time passes only in turns: in some seeds every call is late then.

mod client;
mod quiet;
mod server;
mod world;

pub(crate) use world::World;
