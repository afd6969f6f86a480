//! Carries out a shard's orders at the upstreams of its sessions: a task an exchange,
//! which says what comes, and that it is over however it ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::plan::PrivatePlan;
use crate::http::shard::Shard;
use crate::routing::private::{self, ExchangeKey, Order};
use crate::runtime::tasks;
use crate::upstream::http::{Abort, Client, Listener, OddSession, Request, Verb};

/// Has the shard's orders carried out on its thread.
pub(super) fn connect(shard: &Rc<Shard>, plan: PrivatePlan) {
    let carrier = Rc::new(Carrier {
        shard: shard.clone(),
        client: Client::new(plan.upstream, plan.counters),
        under_way: RefCell::default(),
        added_fields: plan.added_fields.into(),
        timeout_ms: plan.handshake_timeout_ms,
    });
    shard.connect_upstream(Box::new(move |order| carrier.carry_out(order)));
}

struct Carrier {
    shard: Rc<Shard>,
    client: Rc<Client>,
    under_way: RefCell<HashMap<ExchangeKey, Abort, ahash::RandomState>>,
    added_fields: Rc<[u8]>,
    /// For everything but calls, whose time the shard counts.
    timeout_ms: u64,
}

impl Carrier {
    fn carry_out(self: &Rc<Self>, order: Order) {
        match order {
            Order::Begin(key, request) => {
                let abort = Abort::new();
                self.under_way.borrow_mut().insert(key, abort.clone());
                let exchange = UnderWay {
                    carrier: self.clone(),
                    key,
                    end: None,
                };
                tasks::spawn("exchange", exchange.run(request, abort));
            }
            Order::Abort(key) => {
                let abort = self.under_way.borrow().get(&key).cloned();
                if let Some(abort) = abort {
                    abort.set();
                }
            }
        }
    }

    fn request(&self, request: private::Request) -> Request {
        let private::Address {
            session,
            version,
            fields,
        } = request.address;
        let fields = match (self.added_fields.is_empty(), fields.is_empty()) {
            (true, _) => fields,
            (false, true) => self.added_fields.clone(),
            (false, false) => [&*self.added_fields, &*fields].concat().into(),
        };
        let is_stream = request.verb == Verb::Get;
        let limited = match request.is_call {
            true => 0,
            false => self.timeout_ms,
        };
        Request {
            method: request.verb,
            session,
            version: version.map(|version| version.as_str()),
            fields,
            last_event_id: request.last_event_id,
            body: request.body.into(),
            is_call: request.is_call,
            may_repeat: request.may_repeat,
            first_byte_ms: limited,
            silence_ms: if is_stream { 0 } else { limited },
        }
    }
}

/// An exchange under way. When it goes, also by a panic, the shard hears of its end.
struct UnderWay {
    carrier: Rc<Carrier>,
    key: ExchangeKey,
    end: Option<private::End>,
}

impl UnderWay {
    async fn run(mut self, request: private::Request, abort: Abort) {
        let carrier = self.carrier.clone();
        let request = carrier.request(request);
        let mut hearing = Hearing {
            shard: &carrier.shard,
            key: self.key,
            is_call: request.is_call,
            is_sound: true,
        };
        let end = carrier.client.exchange(request, &abort, &mut hearing).await;
        self.end = Some(end.into());
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.carrier.under_way.borrow_mut().remove(&self.key);
        let end = self.end.take();
        let end = end.unwrap_or(private::End::Broken(
            "Ringway failed to ask the upstream server",
        ));
        self.carrier.shard.upstream_ended(self.key, end);
    }
}

/// What comes goes to the shard at once.
struct Hearing<'a> {
    shard: &'a Rc<Shard>,
    key: ExchangeKey,
    is_call: bool,
    /// No answer has come that was nobody's.
    is_sound: bool,
}

impl Listener for Hearing<'_> {
    fn head(&mut self, session: Option<Result<&[u8], OddSession>>, _is_stream: bool) {
        let session = session.map(|session| session.map_err(|_| ()));
        self.shard.upstream_head(self.key, session);
    }

    fn message(&mut self, text: &[u8]) {
        self.is_sound &= self.shard.upstream_heard(self.key, text);
    }

    fn event_id(&mut self, id: &[u8]) {
        self.shard.upstream_event_id(self.key, id);
    }

    fn retry(&mut self, ms: u64) {
        self.shard.upstream_retry(self.key, ms);
    }

    fn has_room(&self) -> bool {
        self.shard.has_room()
    }

    fn is_sound(&self) -> bool {
        self.is_sound && (!self.is_call || self.is_over())
    }

    fn is_over(&self) -> bool {
        self.shard.is_exchange_over(self.key)
    }
}
