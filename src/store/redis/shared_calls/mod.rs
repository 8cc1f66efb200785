//! Calls that callers share: while some calls are in flight, operations queue, and travel together when one returns.
//!
//! ```text
//!   check ──▶ fewer than n in flight? ── yes ──▶ call ──▶ server
//!                     │ no                        ▲
//!                     ▼                           │ a call has ended
//!                  CallQueue ──────────────────┘
//! ```
//!
//! Renewals of slots have a queue of their own, where one call is in flight as long as fewer than 256 renewals wait.
//!
//! No operation waits for a timer: while no call is in flight, none waits. Each call runs in a task of its own, in the
//! runtime of its first caller, and starts the next call when it ends, is dropped, or its runtime shuts down. A call in
//! a parked runtime may not end: see [`CallQueue`].

mod call;
mod call_queue;
mod call_queues;
mod sync {
    pub(super) use std::sync::*;
}

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::oneshot::{self, error::RecvError},
    time::{Instant, timeout},
};

use super::{RedisStore, error::SHUT_DOWN};
use crate::{
    domain::error::StoreError,
    domain::sent_call::Journey,
    store::{Operation, Reply, StoreFuture, ext::ANOTHER_REPLY},
};
use call::{MAX_CHARGES, Request, SharedCall, Waiter};
use call_queue::CallQueue;
pub(super) use call_queues::CallQueues;

/// The calls to one server, or to one slot of a cluster.
pub(super) struct SharedCalls {
    /// Sends the calls. This store shares none.
    store: RedisStore,
    queue: CallQueue<Request, SharedCall>,
}

impl fmt::Debug for SharedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedCalls")
    }
}

impl SharedCalls {
    /// `in_flight` is the maximum number of calls at the same time.
    fn new(store: RedisStore, in_flight: usize) -> Arc<Self> {
        let queue = CallQueue::new(in_flight, Instant::now(), SharedCall::gather);
        Arc::new(Self { store, queue })
    }

    /// Calls for operations that no request waits for, and that come many at a time. The first is sent at once; those
    /// that follow share the next call, or several full ones.
    fn in_no_hurry(store: RedisStore, in_flight: usize) -> Arc<Self> {
        let queue = CallQueue::new(in_flight, Instant::now(), SharedCall::gather);
        let queue = queue.gathering(MAX_CHARGES);
        Arc::new(Self { store, queue })
    }

    /// Executes one operation in a call that others may share.
    ///
    /// Cancellation: an operation that was not sent is never executed.
    pub(super) fn execute_one<T: 'static>(
        self: &Arc<Self>,
        operation: Operation,
        read: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        let (this, journey) = (Arc::clone(self), Journey::default());
        let of_waiter = journey.clone();
        let answer = StoreFuture::pending(async move {
            let reply = match Handle::try_current() {
                Ok(runtime) => this.wait(operation, of_waiter, runtime).await?,
                // Outside of any runtime there is no task to run a shared call in.
                Err(_) => Box::pin(this.store.execute_alone(operation)).await?,
            };
            read(reply).ok_or(ANOTHER_REPLY)
        });
        answer.travelling(journey)
    }

    async fn wait(
        self: Arc<Self>,
        operation: Operation,
        journey: Journey,
        runtime: Handle,
    ) -> Result<Reply, StoreError> {
        let is_check = matches!(
            operation,
            Operation::Check(_) | Operation::CheckBatch { .. }
        );
        let (reply, answer) = oneshot::channel();
        let request = Request {
            operation,
            waiter: Waiter {
                reply,
                journey: journey.clone(),
            },
            runtime,
        };
        let (charges, now) = (request.charges(), Instant::now());
        let give_up_after = self.store.transport.give_up_after();
        let (ticket, begun) = self.queue.enter(request, charges, now, give_up_after);
        // If the caller is dropped while it waits, its operation must leave the queue.
        let caller = Caller {
            calls: &self,
            ticket,
            journey,
        };
        if let Some((call, epoch)) = begun {
            self.begin(call, epoch);
        }
        let answer = match is_check {
            true => answer.await,
            false => self.patiently(answer, give_up_after).await,
        };
        answer.unwrap_or_else(|_| {
            let error = SHUT_DOWN.blaming(Some(caller.journey.blame(Duration::ZERO)));
            Err(error.unsent_if(caller.journey.leave()))
        })
    }

    /// Waits for the answer to an operation that has no short timeout, as checks have. The calls in flight may be in a
    /// parked runtime, or wait on a connection that is lost, and no other caller may come: then this one begins the
    /// next call itself.
    async fn patiently<T>(
        self: &Arc<Self>,
        mut answer: oneshot::Receiver<T>,
        give_up_after: Duration,
    ) -> Result<T, RecvError> {
        loop {
            if let Ok(answer) = timeout(give_up_after, &mut answer).await {
                return answer;
            }
            if let Some((call, epoch)) = self.queue.revive(Instant::now(), give_up_after) {
                self.begin(call, epoch);
            }
        }
    }

    fn begin(self: &Arc<Self>, call: SharedCall, epoch: u64) {
        let runtime = call.runtime.clone();
        let place = Place {
            calls: Arc::clone(self),
            epoch,
        };
        runtime.spawn(async move {
            let store = &place.calls.store;
            let returned = call
                .send(|operations| store.execute_together(operations))
                .await;
            // Do this first, so that the next call is under way while the callers of this one get their answers.
            drop(place);
            returned.answer();
        });
    }
}

/// A call's slot among those in flight. The drop of a slot starts the next call, also if the task is dropped.
struct Place {
    calls: Arc<SharedCalls>,
    epoch: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let (calls, epoch) = (&self.calls, self.epoch);
        let begin = |call| calls.begin(call, epoch);
        calls.queue.end(epoch, Instant::now(), begin);
    }
}

/// A caller that waits. If it is dropped before its operation was sent, the operation leaves the queue.
struct Caller<'a> {
    calls: &'a SharedCalls,
    ticket: u64,
    journey: Journey,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if self.journey.leave() {
            self.calls.queue.leave(self.ticket);
        }
    }
}
