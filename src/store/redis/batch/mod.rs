//! Calls that callers share: while some are in flight, operations gather, and go together when one returns.
//!
//! ```text
//!   check ──▶ fewer than n in flight? ── yes ──▶ call ──▶ server
//!                     │ no                        ▲
//!                     ▼                           │ a call has ended
//!                   Line ─────────────────────────┘
//! ```
//!
//! There is no timer: with nothing in flight nobody waits. Each call runs in a task of its own, in the runtime of those
//! who wait for it, and gives its place to the next when it ends, however it ends: also when that runtime is shut down.
//! Where that runtime is parked it may not end: see [`Line`].

mod call;
mod line;
mod lines;
mod sync {
    pub(super) use std::sync::*;
}

use std::{fmt, sync::Arc};

use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{
    calls::Executor,
    error::{ANOTHER_REPLY, SHUT_DOWN},
};
use crate::{
    error::StoreError,
    store::{CallId, Operation, Reply, StoreFuture},
};
use call::{Request, SharedCall, Waiter};
use line::Line;
pub(super) use lines::Lines;

/// The calls to one server, or to one slot of a cluster.
pub(super) struct SharedCalls {
    executor: Executor,
    line: Line<Request>,
}

impl fmt::Debug for SharedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedCalls")
    }
}

impl SharedCalls {
    /// With at most so many in flight.
    fn new(executor: Executor, in_flight: usize) -> Arc<Self> {
        Arc::new(Self {
            executor,
            line: Line::new(in_flight, Instant::now()),
        })
    }

    /// Does one operation in a call that others may share.
    ///
    /// Cancellation: an operation that was not sent is never done.
    pub(super) fn execute_one<T: 'static>(
        self: &Arc<Self>,
        operation: Operation,
        read: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        let (this, call) = (Arc::clone(self), CallId::unsent());
        let waiter_call = call.clone();
        let answer = StoreFuture::pending(async move {
            let reply = match Handle::try_current() {
                Ok(runtime) => this.wait(operation, waiter_call, runtime).await?,
                // Outside of any runtime there is nobody to share with.
                Err(_) => Box::pin(this.executor.execute_alone(operation)).await?,
            };
            read(reply).ok_or(ANOTHER_REPLY)
        });
        answer.in_call(call)
    }

    async fn wait(
        self: Arc<Self>,
        operation: Operation,
        call: CallId,
        runtime: Handle,
    ) -> Result<Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        let waiter = Waiter { reply, call };
        let call = waiter.call.clone();
        let mut caller = Caller {
            calls: &self,
            answer,
            call,
        };
        let request = Request {
            operation,
            waiter,
            runtime,
        };
        let patience = self.executor.patience();
        let now = Instant::now();
        let begun = self.line.enter(request, now, patience, SharedCall::gather);
        if let Some((call, epoch)) = begun {
            self.begin(call, epoch);
        }
        match (&mut caller.answer).await {
            Ok(reply) => reply,
            Err(_) => Err(SHUT_DOWN.in_call(Some(caller.call.get()))),
        }
    }

    fn begin(self: &Arc<Self>, call: SharedCall, epoch: u64) {
        let runtime = call.runtime.clone();
        let place = Place {
            calls: Arc::clone(self),
            epoch,
        };
        runtime.spawn(async move {
            let executor = &place.calls.executor;
            let returned = call.send(|it| executor.execute(it)).await;
            // First, so that the next call is under way while those of this one are answered.
            drop(place);
            returned.answer();
        });
    }
}

/// The place of a call among those in flight, given to the next when the call has ended or was dropped.
struct Place {
    calls: Arc<SharedCalls>,
    epoch: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let (calls, epoch) = (&self.calls, self.epoch);
        calls
            .line
            .end(epoch, Instant::now(), SharedCall::gather, |call| {
                calls.begin(call, epoch);
            });
    }
}

/// Somebody who waits.
struct Caller<'a> {
    calls: &'a SharedCalls,
    answer: oneshot::Receiver<Result<Reply, StoreError>>,
    call: CallId,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if !self.call.is_sent() {
            self.calls.line.leave(Request::has_left);
        }
    }
}
