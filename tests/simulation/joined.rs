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
//! What is left out: tasks, batches, the ledger and restarts that restore subscriptions,
//! budgets. Time passes only in turns: in some seeds every call is late then.

mod client;
mod quiet;
mod server;
mod world;

pub(crate) use world::World;
