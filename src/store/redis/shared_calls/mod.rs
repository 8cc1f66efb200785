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
mod deadlines;
mod slab;
mod sync {
    pub(super) use std::sync::*;
}

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Once},
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    time::{Instant, timeout},
};

use super::{
    RedisStore, background,
    error::{NO_RUNTIME, SHUT_DOWN},
};
use crate::{
    domain::error::StoreError,
    store::{
        Reply, StoreFuture,
        queued::{Asked, Line, Place, Queued, Task, Waited},
    },
    warning,
};
use call::{Request, Seat, SharedCall, Waiter};
use call_queue::CallQueue;
pub(super) use call_queues::CallQueues;
use slab::{End, Watch};

/// The seats of all callers of a store.
type Slab = slab::Slab<Result<Reply, StoreError>, Id>;

/// The calls to one server, or to one slot of a cluster.
pub(super) struct SharedCalls {
    /// Sends the calls. This store shares none.
    store: RedisStore,
    queue: CallQueue<Request, SharedCall>,
    slab: Arc<Slab>,
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
    fn new(store: RedisStore, in_flight: usize, slab: &Arc<Slab>) -> Arc<Self> {
        Arc::new(Self {
            store,
            queue: CallQueue::new(in_flight, SharedCall::gather),
            slab: Arc::clone(slab),
            warned: Once::new(),
        })
    }

    /// Executes one operation in a call that others may share.
    ///
    /// Cancellation: an operation that was not sent is never executed.
    pub(super) fn execute_one<T>(
        self: Arc<Self>,
        task: Task,
        read: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        StoreFuture::in_line(Queued::new(self, task, read))
    }

    fn begin(self: &Arc<Self>, call: SharedCall) {
        let (runtime, calls) = (call.runtime.clone(), Arc::clone(self));
        let place = Turn(Arc::clone(self));
        // In a box: a task is moved several times before it runs, and this one takes more than 2 kB.
        let task = Box::pin(async move {
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
        background::spawn_in(&runtime, task);
    }

    /// Removes the operation of a caller that has left, and was not sent.
    fn remove(&self, ticket: u64) {
        let stands = self.queue.leave(ticket, Instant::now());
        if stands > 2 * self.store.transport.give_up_after() + PATIENCE {
            self.warned.call_once(warning::runtime_not_driven);
        }
    }
}

impl Line for SharedCalls {
    fn enter(self: Arc<Self>, asked: Asked, caller: &Waker) -> Result<Place, StoreError> {
        let runtime = Handle::try_current().map_err(|_| NO_RUNTIME)?;
        let deadline = asked.timeout.map(|timeout| Instant::now() + timeout);
        let timed = deadline.map(|deadline| (deadline, runtime.id()));
        let (seat, watch) = self.slab.enter(caller.clone(), timed);
        if watch == Watch::Begin {
            deadlines::keep(&self.slab, &runtime);
        }
        let waiter = Waiter {
            seat: Seat::new(&self.slab, seat),
            sent: asked.sent,
            check: None,
        };
        let request = Request {
            task: asked.task,
            waiter,
            runtime,
        };
        let charges = request.charges();
        let (ticket, begun) = self.queue.enter(request, charges);
        if let Some(call) = begun {
            self.begin(call);
        }
        let is_timed = watch != Watch::No;
        Ok(Place {
            seat,
            ticket,
            deadline,
            is_timed,
        })
    }

    fn poll(&self, place: &mut Place, caller: &Waker) -> Poll<Waited> {
        Poll::Ready(match self.slab.poll(place.seat, caller) {
            Err(is_timed) => {
                place.is_timed = is_timed;
                return Poll::Pending;
            }
            Ok(End::Answered(reply)) => Waited::Answered(reply),
            Ok(End::Lost { is_unsent }) => Waited::Answered(Err(SHUT_DOWN.unsent_if(is_unsent))),
            Ok(End::Late { is_unsent }) => {
                if is_unsent {
                    self.remove(place.ticket);
                }
                Waited::Late { is_unsent }
            }
        })
    }

    fn leave(&self, place: &Place) -> bool {
        let is_unsent = self.slab.leave(place.seat);
        if is_unsent {
            self.remove(place.ticket);
        }
        is_unsent
    }
}

/// A call's place among those in flight. The drop of a place starts the next call, also if the task is dropped.
struct Turn(Arc<SharedCalls>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.queue.end(|call| self.0.begin(call));
    }
}
