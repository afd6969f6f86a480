//! Carries out a shard's orders at the upstreams of its sessions: a task an exchange,
//! which says what comes, and that it is over however it ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tracing::{Instrument, Span};

use super::seat::PrivatePlan;
use crate::http::shard::Shard;
use crate::routing::private::{self, ExchangeKey, Order};
use crate::runtime::tasks;
use crate::upstream::http::{Abort, Client, Fields, Listener, OddSession, Request, Verb};

/// Has the shard's orders carried out on its thread, for as long as what is returned is held.
pub(super) fn connect(shard: &Rc<Shard>, plan: PrivatePlan, span: Span) -> Rc<Carrier> {
    let address = plan.upstream.address().to_string();
    let carrier = Rc::new(Carrier {
        shard: shard.clone(),
        client: Client::new(plan.upstream, plan.counters),
        under_way: RefCell::default(),
        added_fields: plan.added_fields.into(),
        passed: plan.passed,
        timeout_ms: plan.handshake_timeout_ms,
        span,
    });
    // Exchanges under way hold the carrier too, so that what they end with is carried out.
    let held = Rc::downgrade(&carrier);
    let carry_out = move |order| {
        if let Some(carrier) = held.upgrade() {
            carrier.carry_out(order);
        }
    };
    shard.connect_upstream(address, Box::new(carry_out));
    carrier
}

/// Who carries a shard's orders out.
pub(super) struct Carrier {
    shard: Rc<Shard>,
    client: Rc<Client>,
    under_way: RefCell<HashMap<ExchangeKey, Abort, ahash::RandomState>>,
    added_fields: Rc<[u8]>,
    /// Which of the header lines of clients this upstream gets, if others may get others.
    passed: Option<Fields>,
    /// For everything but calls, whose time the shard counts.
    timeout_ms: u64,
    span: Span,
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
                let running = exchange.run(request, abort);
                tasks::spawn("exchange", running.instrument(self.span.clone()));
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
        let fields = match &self.passed {
            Some(passed) if !fields.is_empty() => own_lines(passed, &fields),
            _ => fields,
        };
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

/// Of whole header lines those that `passed` lets through.
fn own_lines(passed: &Fields, lines: &[u8]) -> Rc<[u8]> {
    let mut out = Vec::with_capacity(lines.len());
    for line in lines.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut parts = line.splitn(2, |byte| *byte == b':');
        if let (Some(name), Some(value)) = (parts.next(), parts.next())
            && let Ok(name) = std::str::from_utf8(name)
        {
            passed.pass(name, value.trim_ascii_start(), &mut out);
        }
    }
    out.into()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Another upstream of the route may get what is not for this one.
    #[test]
    fn an_upstream_gets_its_own_lines_only() {
        let mut fields = Fields::default();
        fields.pass_pattern("x-*").unwrap();
        fields.remove_pattern("x-secret").unwrap();
        let lines = b"authorization: Bearer t\r\nx-one: 1:2\r\nx-secret: 3\r\nx-two: \r\n";
        let own = own_lines(&fields, lines);
        assert_eq!(std::str::from_utf8(&own), Ok("x-one: 1:2\r\nx-two: \r\n"));
        assert!(own_lines(&Fields::default(), lines).is_empty());
        assert!(own_lines(&fields, b"").is_empty());
    }
}
