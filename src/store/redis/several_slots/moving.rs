//! Operations on a slot that is being moved, so that its keys are on two nodes: one call for each key.
//!
//! A node refuses (`TRYAGAIN`) a call of several keys if some of them are on another node. A key that does not exist is
//! missing on both nodes, and most identities have no block, so a call that reads blocks is refused until the slot has
//! moved. A call with one key is always executed, by the node that has the key.
//!
//! So the blocks of a check are read first, one call each, and then each charge is decided in a separate call: all or
//! nothing by rolling back, as for several slots.

use std::time::UNIX_EPOCH;

use super::Parts;
use crate::{
    domain::{
        block::{BLOCKS, STRIKES, Until},
        charge::Charge,
        check::Check,
        decision::Blocked,
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, Reply, answer_of},
    },
    store::{
        CallFuture, StoreFuture,
        redis::{RedisStore, error::store_error},
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
        };
        self.execute_apart(operation, parts, Sent::queued()).await
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
        let mut latest: Option<Blocked> = None;
        let charges = check.charges().iter().filter(|_| check.enforces_blocks());
        for charge in charges {
            let blocked = self.blocked(charge).await?;
            latest = latest.into_iter().chain(blocked).reduce(Blocked::or_later);
        }
        Ok(latest)
    }

    /// Asks for a block that has ended long ago. This changes nothing, and returns the current block.
    async fn blocked(&self, charge: &Charge) -> Result<Option<Blocked>, StoreError> {
        let key = charge.key();
        let long_ago = Until::At(UNIX_EPOCH);
        let block = Operation::Block {
            key: key.clone(),
            request: long_ago.into(),
        };
        let block = self.execute_one(block, answer_of!(Block)).await?;
        if block.until_ms() == Some(0) {
            return Ok(None);
        }
        let look = Check::of_one(charge.clone()).without_cost();
        let now_ms = self.check_one_slot(&look).await?.usage().decided_at_ms();
        Ok(Some(Blocked::new(key.clone(), block, now_ms)))
    }
}

const MOVING: StoreError = StoreError::new(
    StoreErrorKind::Refused,
    "the Redis cluster is moving this identity to another node",
);
