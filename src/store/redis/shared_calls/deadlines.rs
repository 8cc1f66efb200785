//! [`keep`]: looks after the deadlines of all callers of a [`Slab`].

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Weak},
    task::Poll,
};

use tokio::{
    runtime::{Handle, Id},
    task::yield_now,
    time::{Instant, sleep_until},
};

use super::slab::Slab;
use crate::store::redis::background;

/// How often a deadline that has passed lets ready tasks run first: those of the connection, of a shared call, and of
/// the caller that gets the answer.
const LAST_LOOKS: u8 = 3;

/// Looks after the deadlines in this runtime, until none is left.
pub(super) fn keep<A: Send + 'static>(slab: &Arc<Slab<A, Id>>, runtime: &Handle) {
    let mut keeping = Keeping {
        slab: Arc::downgrade(slab),
        is_over: false,
    };
    background::spawn_in(runtime, async move {
        let mut sleep = pin!(sleep_until(Instant::now()));
        while !keeping.is_over {
            poll_fn(|cx| {
                let slab = keeping.slab.upgrade();
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
            let slab = keeping.slab.upgrade();
            keeping.is_over = slab.is_none_or(|slab| !slab.look(Instant::now()));
        }
    });
}

/// The keeper of a slab, which tells the callers when its runtime ends.
struct Keeping<A: Send + 'static> {
    slab: Weak<Slab<A, Id>>,
    is_over: bool,
}

impl<A: Send + 'static> Drop for Keeping<A> {
    fn drop(&mut self) {
        if let Some(slab) = self.slab.upgrade().filter(|_| !self.is_over) {
            slab.end_looks();
        }
    }
}
