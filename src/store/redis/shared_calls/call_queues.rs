//! [`CallQueues`]: one queue for a server, or one for each slot of a cluster.

use std::sync::Arc;
#[cfg(feature = "cluster")]
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

#[cfg(feature = "cluster")]
use redis::cluster_routing::Slot;

use super::{SharedCalls, Slab};
use crate::store::{queued::Task, redis::RedisStore};

/// The shared calls of a store; cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::store::redis) enum CallQueues {
    Server(Arc<SharedCalls>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<BySlot>),
}

/// The calls of each slot that was ever used: some hundred bytes each, for at most 16 384 slots.
#[cfg(feature = "cluster")]
#[derive(Debug)]
pub(in crate::store::redis) struct BySlot {
    store: RedisStore,
    in_flight: usize,
    slab: Arc<Slab>,
    slots: Mutex<HashMap<Slot, Arc<SharedCalls>>>,
}

impl CallQueues {
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "there is one server")
    )]
    pub(in crate::store::redis) fn new(store: RedisStore, in_flight: usize, by_slot: bool) -> Self {
        let slab = Arc::new(Slab::new());
        #[cfg(feature = "cluster")]
        if by_slot {
            return Self::Cluster(Arc::new(BySlot {
                store,
                in_flight,
                slab,
                slots: Mutex::default(),
            }));
        }
        Self::Server(SharedCalls::new(store, in_flight, &slab))
    }

    /// The calls that an operation of `store` may share; `None` when the operation has no keys. On a cluster, all keys
    /// of the operation are in one slot.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "there is one server")
    )]
    pub(in crate::store::redis) fn of(
        &self,
        store: &RedisStore,
        task: &Task,
    ) -> Option<Arc<SharedCalls>> {
        match self {
            Self::Server(calls) => Some(Arc::clone(calls)),
            #[cfg(feature = "cluster")]
            Self::Cluster(queues) => {
                let slot = match task {
                    Task::Check(check) => store.slot_of_check(check),
                    Task::Other(operation) => store.first_slot(operation),
                }?;
                let mut slots = queues.slots.lock().unwrap_or_else(PoisonError::into_inner);
                let new = || SharedCalls::new(queues.store.clone(), queues.in_flight, &queues.slab);
                let calls = slots.entry(slot).or_insert_with(new);
                Some(Arc::clone(calls))
            }
        }
    }
}
