//! Operations on a hash slot that is being moved, so that its keys are on two nodes: one call for each key.
//!
//! A node refuses (`TRYAGAIN`) a call of several keys if some of them are on another node. A key that does not exist is
//! missing on both nodes, and most identities have no block, so a call that reads blocks is refused until the hash slot has
//! moved. A call with one key is always executed, by the node that has the key.
//!
//! So the blocks of a check are read first, one call each, and then each charge is decided in a separate call: all or
//! nothing by rolling back, as for several hash slots.

use super::Parts;
use crate::{
    domain::{
        block::{BLOCKS, HeldBlock, STRIKES},
        check::Check,
        decision::Blocked,
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, Reply},
    },
    store::{
        CallFuture, StoreFuture,
        redis::{RedisStore, error::store_error, reports::look},
        sent::Sent,
    },
};

impl RedisStore {
    /// Executes operations that were refused together, one after another.
    pub(in crate::store::redis) fn call_by_key(&self, operations: Vec<Operation>) -> CallFuture {
        let store = self.clone();
        StoreFuture::pending(async move {
            let mut replies = Vec::with_capacity(operations.len());
            for operation in operations {
                replies.push(store.do_by_key(operation).await);
            }
            Ok(replies)
        })
    }

    async fn do_by_key(&self, operation: Operation) -> Result<Reply, StoreError> {
        match &operation {
            Operation::Unblock { key } => return self.unblock_by_key(key).await,
            // A ban needs both keys in one call. The next strike asks for the ban again.
            Operation::Ban { .. } => return Err(MOVING),
            _ => {}
        }
        let charges = operation.check().map_or(0, |check| check.charges().len());
        let parts = Parts {
            charges: (0..charges).map(|index| vec![index]).collect(),
            are_keys: true,
            job: None,
        };
        self.execute_apart(operation, parts, &Sent::queued()).await
    }

    async fn unblock_by_key(&self, key: &Key) -> Result<Reply, StoreError> {
        for name in [BLOCKS, STRIKES] {
            let name = self.names.name(name, key);
            let mut delete = redis::cmd("DEL");
            let deleted = self.transports.send(delete.arg(&name), &name);
            deleted.await.map_err(|error| store_error(&error))?;
        }
        Ok(Reply::Unblock)
    }

    /// The block that ends last among those of the check's keys.
    pub(super) async fn blocked_by_key(
        &self,
        check: &Check,
    ) -> Result<Option<Blocked>, StoreError> {
        let (inspector, mut latest) = (self.inspector(), None::<Blocked>);
        for key in check.keys().filter(|_| check.enforces_blocks()) {
            if let Some(HeldBlock { block, .. }) = inspector.block(key).await?? {
                let look = self.check_one_hash_slot(&look(key.clone())).await?;
                let now_ms = look.usage().decided_at_ms();
                let holds = block.holds(now_ms);
                let blocked = holds.then(|| Blocked::new(key.clone(), block, now_ms));
                latest = latest.into_iter().chain(blocked).reduce(Blocked::or_later);
            }
        }
        Ok(latest)
    }
}

const MOVING: StoreError = StoreError::new(
    StoreErrorKind::Refused,
    "the Redis cluster is moving this identity to another node",
);
