//! Calls that callers share: while some calls are in flight, operations queue, and travel together when one returns.
//!
//! ```text
//!   check ──▶ fewer than n in flight? ── yes ──▶ call ──▶ server
//!                     │ no                        ▲
//!                     ▼                           │ a call has ended
//!                  CallQueue ──────────────────┘
//! ```
//!
//! No operation waits for a timer: while no call is in flight, none waits. Each runtime has calls of its own. A call runs
//! in a task, and starts the next call when it ends, is dropped, or its runtime shuts down.

mod call;
mod call_queue;
mod call_queues;
mod deadlines;
pub(in crate::store) mod queued;
mod slab;
mod sync {
    pub(super) use std::sync::*;
}

use std::{sync::Arc, task::Waker, time::Duration};

use tokio::{runtime::Handle, time::Instant};

use super::{
    RedisStore, background,
    transport::{Transport, unreached},
};
use crate::{
    domain::error::StoreError,
    store::{Reply, sent::Sent},
};
use call::{Request, Seat, SharedCall, Waiter};
use call_queue::CallQueue;
pub(super) use call_queues::CallQueues;
use queued::Task;

/// How long a call keeps its place among those in flight, and is waited for when its callers have left: time to connect,
/// and to lose that connection.
const LONGEST: Duration = Duration::from_secs(1);

/// The seats of all callers of a store in one runtime.
type Slab = slab::Slab<Result<Reply, StoreError>>;

/// The calls to one server, or to one slot of a cluster, in one runtime.
pub(super) struct SharedCalls {
    /// Sends the calls. This store shares none.
    store: RedisStore,
    transport: Transport,
    runtime: Handle,
    /// A key of the slot.
    routing_key: Box<[u8]>,
    queue: CallQueue<Request, SharedCall>,
    slab: Arc<Slab>,
}

impl SharedCalls {
    fn begin(self: &Arc<Self>, call: SharedCall) {
        let calls = Arc::clone(self);
        let place = InFlight(Arc::clone(self));
        // In a box: a task is moved several times before it runs, and this one takes more than 2 kB.
        let task = Box::pin(async move {
            let connect = async {
                let route = calls.transport.reach(&calls.routing_key).await;
                route.map_err(|error| unreached(&error))
            };
            let execute = |route, operations| calls.store.execute_over(route, operations);
            let returned = call.send(place, LONGEST, connect, execute).await;
            returned.answer();
        });
        background::spawn_in(&self.runtime, task);
    }

    /// Lets an operation in, and returns the seat of its caller, which the end of the wait wakes.
    fn enter(
        self: &Arc<Self>,
        task: Task,
        sent: Option<Sent>,
        deadline: Option<Instant>,
        caller: &Waker,
    ) -> usize {
        let (seat, begins_keeper) = self.slab.enter(caller.clone(), deadline);
        if begins_keeper {
            deadlines::keep(&self.slab, &self.runtime);
        }
        let waiter = Waiter {
            seat: Seat::new(&self.slab, seat),
            sent,
            check: None,
        };
        let request = Request { task, waiter };
        let charges = request.charges();
        if let Some(call) = self.queue.enter(request, charges) {
            self.begin(call);
        }
        seat
    }
}

/// A call's place among those in flight. The drop of a place starts the next call, also if the task is dropped.
struct InFlight(Arc<SharedCalls>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.queue.end(|call| self.0.begin(call));
    }
}
