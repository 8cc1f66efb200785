//! [`RedisStore`] as a [`Store`]: which way each operation takes.

use super::{RedisStore, connection::reconnects};
#[cfg(feature = "cluster")]
use crate::domain::operation::answer_of;
#[cfg(doc)]
use crate::store::redis::deployment;
use crate::{
    domain::{check::Check, decision::Decision},
    store::{CallFuture, Operation, Reply, Store, StoreFuture, one_by_one, sent::Sent},
};

/// A call of several operations is one call of the script, sent at once and not shared with others. The server does
/// nothing else meanwhile, for some 4 to 8 µs a check: hundreds in a call are welcome, tens of thousands are better
/// split.
///
/// They are executed one by one instead if [on a cluster](deployment#cluster) their keys are in several hash slots, or if one
/// of them is not about keys to charge, block or reset, such as [`Operation::ListBlocks`].
impl Store for RedisStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        #[cfg(feature = "cluster")]
        if let Some(reply) =
            self.in_several_hash_slots(Some(check), || Operation::Check(check.clone()))
        {
            return reply.read(answer_of!(Check));
        }
        self.check_one_hash_slot(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        #[cfg(feature = "cluster")]
        if let Some(reply) = self.in_several_hash_slots(operation.check(), || operation.clone()) {
            return reply;
        }
        match operation {
            Operation::ListBlocks { most } => {
                let inspector = self.inspector();
                StoreFuture::pending(async move {
                    inspector.all_blocked(most).await.map(Reply::ListBlocks)
                })
            }
            Operation::Report(reports) => self.add_reports(&reports),
            Operation::Rankings(account) => self.read_rankings(account).map(Reply::Rankings),
            Operation::Publish(policies) => self
                .publish_all(policies)
                .map(|()| Reply::Publish(reconnects())),
            blocks @ (Operation::Block { .. }
            | Operation::Ban { .. }
            | Operation::Unblock { .. }) => self.call(vec![blocks]).only(),
            of_keys => self.execute_one(of_keys, None, Some),
        }
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        if !operations.iter().all(Operation::is_of_keys) {
            return one_by_one(self, operations);
        }
        #[cfg(feature = "cluster")]
        if self.transports.is_cluster() && !self.are_in_one_hash_slot(&operations) {
            return one_by_one(self, operations);
        }
        let index = Self::index_update(&operations, |look| self.check_one_hash_slot(look));
        let sent = Sent::queued();
        let replies = self.execute_together(operations, Some(sent.clone()));
        let replies = StoreFuture::pending(replies).queued(Some(sent));
        self.with_index(index, replies)
    }

    fn fails_apart(&self) -> bool {
        self.transports.is_cluster()
    }
}
