//! [`ScaledStore`]: one process's share of all limits, counted in its own memory.

use std::num::NonZeroU32;

use super::{MemoryStore, Store, StoreFuture};
use crate::{check::Check, decision::Decision};

/// A memory store that checks each policy with a share of its limits, `1/replicas`.
///
/// The share is rounded down, but a limit above 0 never becomes 0: so all processes together admit no more than the
/// limit, or one unit each where the limit is smaller than their number. Answers are known at once, and name the
/// policies with the limits that were applied; a settlement of such an answer is one of the store within.
#[derive(Clone, Debug)]
pub(crate) struct ScaledStore {
    pub(crate) store: MemoryStore,
    pub(crate) replicas: NonZeroU32,
}

impl ScaledStore {
    pub(crate) fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(&self.scaled(check))
    }

    fn scaled(&self, check: &Check) -> Check {
        if self.replicas == NonZeroU32::MIN {
            return check.clone();
        }
        check.with_policies(|policy| policy.share(self.replicas))
    }
}
