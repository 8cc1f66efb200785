//! [`CallQueues`]: the shared calls of a store, in each runtime for a server, or for each slot of a cluster.

#[cfg(feature = "cluster")]
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};
use std::{fmt, sync::Arc};

#[cfg(feature = "cluster")]
use redis::cluster_routing::Slot;
use tokio::runtime::Handle;

use super::{SharedCall, SharedCalls, Slab, call_queue::CallQueue};
use crate::{
    domain::error::StoreError,
    store::{
        redis::queued::{Line, Lines, Task},
        redis::{RedisStore, by_runtime::ByRuntime, error::NO_RUNTIME, transport::Transport},
    },
};

/// The shared calls of a store with these settings.
pub(in crate::store::redis) struct CallQueues {
    /// Shares none.
    store: RedisStore,
    /// The maximum number of calls at the same time.
    in_flight: usize,
    runtimes: ByRuntime<OfRuntime>,
}

/// The calls of one runtime.
#[derive(Clone)]
enum OfRuntime {
    Server(Arc<SharedCalls>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<BySlot>),
}

/// The calls to each slot that was used: some hundred bytes each, for at most 16 384 slots.
#[cfg(feature = "cluster")]
struct BySlot {
    runtime: Handle,
    transport: Transport,
    slab: Arc<Slab>,
    slots: Mutex<HashMap<Slot, Arc<SharedCalls>>>,
}

impl fmt::Debug for CallQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallQueues")
    }
}

impl CallQueues {
    pub(in crate::store::redis) fn new(store: RedisStore, in_flight: usize) -> Arc<Self> {
        Arc::new(Self {
            store,
            in_flight,
            runtimes: ByRuntime::new(),
        })
    }

    fn of_runtime(&self, runtime: &Handle) -> OfRuntime {
        let slab = Arc::new(Slab::new());
        let transport = self.store.transports.inside();
        #[cfg(feature = "cluster")]
        if transport.is_cluster() {
            return OfRuntime::Cluster(Arc::new(BySlot {
                runtime: runtime.clone(),
                transport,
                slab,
                slots: Mutex::default(),
            }));
        }
        OfRuntime::Server(self.calls(runtime, &transport, &slab, Box::default()))
    }

    fn calls(
        &self,
        runtime: &Handle,
        transport: &Transport,
        slab: &Arc<Slab>,
        routing_key: Box<[u8]>,
    ) -> Arc<SharedCalls> {
        Arc::new(SharedCalls {
            store: self.store.clone(),
            transport: transport.clone(),
            runtime: runtime.clone(),
            routing_key,
            queue: CallQueue::new(self.in_flight, SharedCall::gather),
            slab: Arc::clone(slab),
        })
    }
}

impl Lines for CallQueues {
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "there is one server")
    )]
    fn here(&self, task: &Task) -> Result<Arc<dyn Line>, StoreError> {
        let here = self.runtimes.here(|runtime| self.of_runtime(runtime));
        let here = here.ok_or(NO_RUNTIME)?;
        match here {
            OfRuntime::Server(calls) => Ok(calls as _),
            #[cfg(feature = "cluster")]
            OfRuntime::Cluster(by_slot) => {
                let BySlot {
                    runtime,
                    transport,
                    slab,
                    slots,
                } = &*by_slot;
                // All keys of the task are in one slot. One without keys goes to any.
                let key = match task {
                    Task::Check(check) => self.store.routing_key_of_check(check),
                    Task::Other(operation) => self.store.routing_key(Some(operation)),
                };
                let slot = Slot::for_key(&key);
                let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
                let new = || self.calls(runtime, transport, slab, key.into());
                let calls = slots.entry(slot).or_insert_with(new);
                Ok(Arc::clone(calls) as _)
            }
        }
    }
}
