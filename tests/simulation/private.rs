//! The other kind of world: each session has an upstream session of its own at a model
//! HTTP server. Requests arrive in any order, responses come in pieces, several at a
//! time; exchanges break at any point, the server forgets sessions, answers with ids of
//! others, asks its clients, and reports progress; clients call, cancel, answer, open and
//! lose streams, and vanish. What must hold is the same as ever, and: nothing overtakes
//! `initialized`, the server runs each call once, an answer of a client reaches the
//! request that it answers once, and every upstream session of which the gateway knows
//! is ended.
//!
//! | file | has |
//! |---|---|
//! | `world` | the parts, the scheduler, what shards send |
//! | `server` | the model server and its responses |
//! | `client` | clients and their connections |
//! | `quiet` | how a run comes to rest and ends |
//! | `shard` | the glue of `http::upstream`, written again in small |
//! | `settings` | what is drawn for a run |
//!
//! A failing seed says how to replay it:
//! `RINGWAY_SIMULATION_SEED=n cargo test --test simulation upstreams_of_their_own -- --nocapture`.
//!
//! What is left out: servers without session ids, tasks, what is restored after a
//! handshake. The unit tests of `routing::private` have these.
//!
//! Faults that were put into the code on purpose, each alone, and how many of 1,000
//! seeds failed:
//!
//! | fault | seeds |
//! |---|---|
//! | an exchange is found without a look at its serial number | 673 |
//! | the answer of another session's call is taken | 152 |
//! | an id of another shard's call is taken | 124 |
//! | an answer of a client goes to the server more than once | 229 |
//! | an answer does not get the server's own id back | 271 |
//! | each 404 begins a handshake | 269 |
//! | requests of a forgotten session can be answered in the next | 31 |
//! | answers for a forgotten session go to the next | 9 |
//! | messages overtake `initialized` | 746 |
//! | a failed `initialized` blocks the session | 60 |
//! | the exchange of a cancelled call goes on | 824 |
//! | the server is not told of a cancel | 522 |
//! | a cancelled call that waits is sent | 504 |
//! | DELETE overtakes the cancels | 319 |
//! | exchanges of an ended session go on | 718 |
//! | the server's stream stays open without the client's | 260 |
//! | an abandoned `initialize` leaves its upstream session | 67 |
//! | a failed one does | 97 |
//! | the client's token goes upstream | 929 |
//! | the bytes of a request stay counted | 974 |
//! | those of an ended session's queue do | 272 |
//! | what waits for the server's stream never goes | 75 |

mod client;
mod quiet;
mod server;
mod settings;
mod shard;
mod world;

pub(crate) use world::World;
