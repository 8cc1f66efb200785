//! Calls that callers share: while some calls are in flight, operations queue, and travel together when one returns.
//!
//! ```text
//!   check ──▶ fewer than n in flight? ── yes ──▶ call ──▶ server
//!                     │ no                        ▲
//!                     ▼                           │ a call has ended
//!                  CallQueue ──────────────────┘
//! ```
//!
//! No operation waits for a timer: while no call is in flight, none waits. Each call runs in a task of its own, in the
//! runtime of its first caller, and starts the next call when it ends, is dropped, or its runtime shuts down.

mod call;
mod call_queue;
mod call_queues;
mod sync {
    pub(super) use std::sync::*;
}

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Once},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    RedisStore, background,
    error::{NO_RUNTIME, SHUT_DOWN},
};
use crate::{
    domain::error::StoreError,
    store::{Operation, Reply, StoreFuture, ext::ANOTHER_REPLY, sent::Sent},
    warning,
};
use call::{Request, SharedCall, Waiter};
use call_queue::CallQueue;
pub(super) use call_queues::CallQueues;

/// The calls to one server, or to one slot of a cluster.
pub(super) struct SharedCalls {
    /// Sends the calls. This store shares none.
    store: RedisStore,
    queue: CallQueue<Request, SharedCall>,
    warned: Once,
}

/// Added to the time after which a call gives its place back: no runtime that is driven is so busy.
const PATIENCE: Duration = Duration::from_secs(1);

impl fmt::Debug for SharedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedCalls")
    }
}

impl SharedCalls {
    /// `in_flight` is the maximum number of calls at the same time.
    fn new(store: RedisStore, in_flight: usize) -> Arc<Self> {
        Arc::new(Self {
            store,
            queue: CallQueue::new(in_flight, SharedCall::gather),
            warned: Once::new(),
        })
    }

    /// Executes one operation in a call that others may share.
    ///
    /// Cancellation: an operation that was not sent is never executed.
    pub(super) fn execute_one<T: 'static>(
        self: &Arc<Self>,
        operation: Operation,
        read: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        let (this, sent) = (Arc::clone(self), Sent::queued());
        let of_waiter = sent.clone();
        let answer = StoreFuture::pending(async move {
            let runtime = Handle::try_current().map_err(|_| NO_RUNTIME)?;
            let reply = this.wait(operation, of_waiter, runtime).await?;
            read(reply).ok_or(ANOTHER_REPLY)
        });
        answer.queued(Some(sent))
    }

    async fn wait(
        self: Arc<Self>,
        operation: Operation,
        sent: Sent,
        runtime: Handle,
    ) -> Result<Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        let request = Request {
            operation,
            waiter: Waiter {
                reply,
                sent: sent.clone(),
                check: None,
            },
            runtime,
        };
        let charges = request.charges();
        let (ticket, begun) = self.queue.enter(request, charges);
        // If the caller is dropped while it waits, its operation must leave the queue.
        let caller = Caller {
            calls: &self,
            ticket,
            sent,
        };
        if let Some(call) = begun {
            self.begin(call);
        }
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(SHUT_DOWN.unsent_if(caller.sent.leave())))
    }

    fn begin(self: &Arc<Self>, call: SharedCall) {
        let (runtime, calls) = (call.runtime.clone(), Arc::clone(self));
        let place = Place(Arc::clone(self));
        background::spawn_in(&runtime, async move {
            let store = &calls.store;
            let mut returned = pin!(call.send(|operations| store.execute_together(operations)));
            // Time to connect, and to lose that connection. Then other calls go over another one, while the callers of
            // this one may wait for longer.
            let lost_after = 2 * store.transport.give_up_after();
            let in_time = timeout(lost_after, &mut returned).await;
            // Do this first, so that the next call is under way while the callers of this one get their answers.
            drop(place);
            match in_time {
                Ok(returned) => returned.answer(),
                Err(_) => returned.await.answer(),
            }
        });
    }
}

/// A call's place among those in flight. The drop of a place starts the next call, also if the task is dropped.
struct Place(Arc<SharedCalls>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.queue.end(|call| self.0.begin(call));
    }
}

/// A caller that waits. If it is dropped before its operation was sent, the operation leaves the queue.
struct Caller<'a> {
    calls: &'a SharedCalls,
    ticket: u64,
    sent: Sent,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if self.sent.leave() {
            let calls = self.calls;
            let stands = calls.queue.leave(self.ticket, Instant::now());
            if stands > 2 * calls.store.transport.give_up_after() + PATIENCE {
                calls.warned.call_once(warning::runtime_not_driven);
            }
        }
    }
}
