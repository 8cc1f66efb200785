//! [`ScaledStore`]: one process's share of all limits, counted in its own memory.

use std::num::NonZeroU32;

use super::{CallFuture, ContributeFuture, MemoryStore, Operation, Store, StoreFuture};
use crate::{
    block::{Block, BlockedBy, BlockedIdentity, Until},
    check::Check,
    contributors::{Contribution, Contributors},
    decision::{Decision, Usage},
    key::Key,
    policy::Policy,
    rule::Rule,
    settlement::Settlement,
};

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
    fn scaled(&self, check: &Check) -> Check {
        if self.replicas == NonZeroU32::MIN {
            return check.clone();
        }
        check.with_policies(|policy| policy.share(self.replicas))
    }
}

impl Store for ScaledStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(&self.scaled(check))
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        self.store.settle(settlement)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.store.reset(policy, key)
    }

    fn block(&self, key: &Key, until: Until, by: BlockedBy) -> StoreFuture<Block> {
        self.store.block(key, until, by)
    }

    fn ban(&self, key: &Key, strikes: Rule, until: Until) -> StoreFuture<Option<Block>> {
        self.store.ban(key, strikes, until)
    }

    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        self.store.unblock(key)
    }

    fn blocks(&self, most: usize) -> StoreFuture<Vec<BlockedIdentity>> {
        self.store.blocks(most)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let scaled = operations.into_iter().map(|operation| match operation {
            Operation::Check(check) => Operation::Check(self.scaled(&check)),
            Operation::Fill { check, count } => Operation::Fill {
                check: self.scaled(&check),
                count,
            },
            other => other,
        });
        self.store.call(scaled.collect())
    }

    fn contribute(&self, contributions: &[Contribution]) -> ContributeFuture {
        self.store.contribute(contributions)
    }

    fn contributors(&self, policy: &Policy, key: &Key) -> StoreFuture<Contributors> {
        self.store.contributors(policy, key)
    }
}
