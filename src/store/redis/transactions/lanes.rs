//! [`Lanes`]: locks for the names of keys, so that the transactions of a runtime do not disturb each other.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
};

use tokio::sync::{Mutex, MutexGuard};

/// Transactions of the same key run one after the other. Two keys may share a lane.
pub(super) struct Lanes {
    locks: [Mutex<()>; 256],
    hasher: RandomState,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            locks: [(); 256].map(|()| Mutex::new(())),
            hasher: RandomState::new(),
        }
    }

    /// Waits for the lanes of these names, first come, first served. All take them in the same order, so that no two wait
    /// for each other.
    pub(super) async fn take(&self, names: &[Vec<u8>]) -> Vec<MutexGuard<'_, ()>> {
        let hashes = names.iter().map(|name| self.hasher.hash_one(name));
        let lanes: BTreeSet<u8> = hashes.map(|hash| hash.to_le_bytes()[0]).collect();
        let mut taken = Vec::with_capacity(lanes.len());
        for lane in lanes {
            taken.push(self.locks[usize::from(lane)].lock().await);
        }
        taken
    }
}
