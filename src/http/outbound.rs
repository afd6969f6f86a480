//! The writing side of a connection: all of a buffer in as many steps as the client
//! takes, or until it is not worth waiting for any longer.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use monoio::buf::IoBuf;
use monoio::io::{AsyncWriteRent, OwnedWriteHalf};
use monoio::net::TcpStream;

use crate::runtime::counters::Counter;

/// Writes all of `bytes`, and counts them in `sent`. `begin_step` is called before
/// each step; `gives_up`, which has the task woken when it is to be asked again,
/// says whether the wait is over. False if not all was written: a write that was
/// given up may have been done in part, so the connection must end then.
pub(super) async fn write_all(
    write: &mut OwnedWriteHalf<TcpStream>,
    mut bytes: Vec<u8>,
    sent: &Counter,
    mut begin_step: impl FnMut(),
    mut gives_up: impl FnMut(&Context<'_>) -> bool,
) -> bool {
    let mut from = 0;
    while from < bytes.len() {
        begin_step();
        let mut step = pin!(write.write(bytes.slice(from..)));
        let written = poll_fn(|cx| {
            if let Poll::Ready(written) = step.as_mut().poll(cx) {
                return Poll::Ready(Some(written));
            }
            match gives_up(cx) {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        })
        .await;
        match written {
            Some((Ok(n), slice)) if n > 0 => {
                from += n;
                sent.add(n as u64);
                bytes = slice.into_inner();
            }
            _ => return false,
        }
    }
    true
}
