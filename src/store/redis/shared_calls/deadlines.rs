//! [`keep`]: looks after the deadlines of all callers of a [`Slab`].

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, sleep_until},
};

use super::slab::Slab;
use crate::store::redis::background;

/// How often a deadline that has passed lets ready tasks run first: those of the connection, of a shared call, and of
/// the caller that gets the answer.
const LAST_LOOKS: u8 = 3;

/// Looks after the deadlines in this runtime, until none is left.
pub(super) fn keep<A: Send + 'static>(slab: &Arc<Slab<A>>, runtime: &Handle) {
    let slab = Arc::downgrade(slab);
    background::spawn_in(runtime, async move {
        let mut sleep = pin!(sleep_until(Instant::now()));
        loop {
            poll_fn(|cx| {
                let slab = slab.upgrade();
                let Some(at) = slab.and_then(|slab| slab.next_look(cx.waker())) else {
                    return Poll::Ready(());
                };
                if sleep.deadline() != at {
                    sleep.as_mut().reset(at);
                }
                sleep.as_mut().poll(cx)
            })
            .await;
            for _ in 0..LAST_LOOKS {
                yield_now().await;
            }
            let slab = slab.upgrade();
            if slab.is_none_or(|slab| !slab.look(Instant::now())) {
                return;
            }
        }
    });
}
