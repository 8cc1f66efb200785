//! [`CallQueues`]: the shared calls of a store, in each runtime for a server, or for each hash slot of a cluster.

use std::sync::Arc;
#[cfg(feature = "cluster")]
use std::{collections::HashMap, sync::Mutex};

#[cfg(feature = "cluster")]
use redis::cluster_routing::Slot as HashSlot;
use tokio::runtime::Handle;

use super::{SharedCall, SharedCalls, Slab, call_queue::CallQueue, queued::Task};
use crate::{
    domain::error::StoreError,
    store::redis::{RedisStore, by_runtime::ByRuntime, error::NO_RUNTIME},
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
struct OfRuntime {
    /// Those to the server; on a cluster, of no hash slot.
    calls: Arc<SharedCalls>,
    /// Those to each hash slot of a cluster that was used: some hundred bytes each, for at most 16 384 hash slots.
    #[cfg(feature = "cluster")]
    hash_slots: Option<Arc<ByHashSlot>>,
}

#[cfg(feature = "cluster")]
type ByHashSlot = Mutex<HashMap<HashSlot, Arc<SharedCalls>>>;

impl CallQueues {
    pub(in crate::store::redis) fn new(store: RedisStore, in_flight: usize) -> Arc<Self> {
        Arc::new(Self {
            store,
            in_flight,
            runtimes: ByRuntime::new(),
        })
    }

    fn of_runtime(&self, runtime: &Handle) -> OfRuntime {
        OfRuntime {
            calls: Arc::new(SharedCalls {
                store: self.store.clone(),
                transport: self.store.transports.inside(),
                runtime: runtime.clone(),
                routing_key: Box::default(),
                queue: CallQueue::new(self.in_flight, SharedCall::gather),
                slab: Arc::new(Slab::new()),
            }),
            #[cfg(feature = "cluster")]
            hash_slots: self.store.transports.is_cluster().then(Arc::default),
        }
    }

    /// The calls of the current runtime for this task.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "there is one server")
    )]
    pub(super) fn here(&self, task: &Task) -> Result<Arc<SharedCalls>, StoreError> {
        let here = self.runtimes.here(|runtime| self.of_runtime(runtime));
        let here = here.ok_or(NO_RUNTIME)?;
        #[cfg(feature = "cluster")]
        if let Some(hash_slots) = &here.hash_slots {
            // All keys of the task are in one hash slot. One without keys goes to any.
            let of_other = match task {
                Task::Check(_) => None,
                Task::Other(operation) => operation.key(),
            };
            let key = self.store.routing_key(task.check(), of_other);
            let mut known = crate::lock::lock(hash_slots);
            let calls = known.entry(HashSlot::for_key(&key)).or_insert_with(|| {
                Arc::new(SharedCalls {
                    store: self.store.clone(),
                    transport: here.calls.transport.clone(),
                    runtime: here.calls.runtime.clone(),
                    routing_key: key.into(),
                    queue: CallQueue::new(self.in_flight, SharedCall::gather),
                    slab: Arc::clone(&here.calls.slab),
                })
            });
            return Ok(Arc::clone(calls));
        }
        Ok(here.calls)
    }
}
