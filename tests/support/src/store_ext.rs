//! [`StoreExt`]: a method for each operation, for tests that call stores without a limiter.

use std::time::Duration;

use sluicegate::{
    Key, Limiter, Policy, Rule, Store, StoreError, Usage,
    block::{Block, BlockRequest, BlockedIdentity},
    contributors::Contributors,
    denials::DeniedIdentity,
    store::{HeldSlots, Operation, Reply, Settlement, Slots, StoreFuture},
};

/// The answer in a reply of this kind.
macro_rules! answer {
    ($reply:expr, $kind:ident) => {
        $reply.map(|reply| match reply {
            Reply::$kind(answer) => answer,
            other => panic!("the reply to another operation: {other:?}"),
        })
    };
}

/// Executes one operation, and reads its reply.
pub trait StoreExt: Store {
    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        answer!(self.execute(Operation::Settle(settlement.clone())), Settle)
    }

    fn renew(&self, slots: &Slots) -> StoreFuture<HeldSlots> {
        answer!(self.execute(Operation::Renew(slots.clone())), Renew)
    }

    fn give_back(&self, slots: &Slots) -> StoreFuture<HeldSlots> {
        answer!(self.execute(Operation::Return(slots.clone())), Return)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let (policy, key) = (policy.clone(), key.clone());
        self.execute(Operation::Reset { policy, key }).map(drop)
    }

    /// Returns the block that is in force.
    fn block(&self, key: &Key, request: BlockRequest) -> StoreFuture<Block> {
        let key = key.clone();
        answer!(self.execute(Operation::Block { key, request }), Block)
    }

    /// Returns the ban, or `None` if none is made.
    fn ban(&self, key: &Key, strikes: Rule, request: BlockRequest) -> StoreFuture<Option<Block>> {
        let ban = Operation::Ban {
            key: key.clone(),
            strikes,
            request,
        };
        answer!(self.execute(ban), Ban)
    }

    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        let key = key.clone();
        self.execute(Operation::Unblock { key }).map(drop)
    }

    fn blocks(&self, most: usize) -> StoreFuture<Vec<BlockedIdentity>> {
        answer!(self.execute(Operation::ListBlocks { most }), ListBlocks)
    }

    /// The contributors that the store knows: this process has counted none beside them.
    fn contributors(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> impl Future<Output = Result<Contributors, StoreError>>
    where
        Self: Clone + Sized,
    {
        let limiter = reader(self);
        async move { limiter.contributors(policy, key).await }
    }

    fn denials(&self) -> impl Future<Output = Result<Vec<DeniedIdentity>, StoreError>>
    where
        Self: Clone + Sized,
    {
        let limiter = reader(self);
        async move { limiter.denials().await }
    }
}

fn reader(store: &(impl Store + Clone)) -> Limiter {
    Limiter::new(store.clone()).timeout(Duration::from_secs(60))
}

impl<S: Store + ?Sized> StoreExt for S {}
