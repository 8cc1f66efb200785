//! A call of several operations: one call of the script for each slot; and an operation with keys in several slots.

use std::{collections::HashMap, mem};

use redis::cluster_routing::Slot;
use tokio::runtime::Handle;

use super::{
    cross_slot::check_batch,
    hash_slots::{Slots, TOO_LATE, answered, in_time, join_usages},
};
use crate::{
    domain::{
        check::{Check, CheckBatch},
        decision::{Decision, Usage},
        error::StoreError,
        operation::{Operation, Reply, answer_of},
        settlement::Settlement,
    },
    store::{
        CallFuture, Store, StoreFuture,
        ext::{ANOTHER_REPLY, read},
        maybe_ready::join_all,
        redis::{RedisStore, error::NO_RUNTIME},
        sent::Sent,
    },
};

type Replies = Vec<Result<Reply, StoreError>>;

/// The operations of each slot, with their positions in the caller's list.
type Calls = HashMap<Slot, Vec<(usize, Operation)>>;

impl RedisStore {
    /// Executes the operations of each slot in one call, in their order, and all calls at the same time. An operation
    /// with keys in several slots waits for all before it, and all after it wait for it.
    pub(in crate::store::redis) fn call_by_slot(&self, operations: Vec<Operation>) -> CallFuture {
        let store = self.clone();
        StoreFuture::pending(async move {
            Handle::try_current().map_err(|_| NO_RUNTIME)?;
            let mut replies: Replies = operations.iter().map(|_| Err(TOO_LATE)).collect();
            let mut calls = Calls::new();
            for (place, operation) in operations.into_iter().enumerate() {
                if let Some(slot) = store.only_slot(&operation) {
                    calls.entry(slot).or_default().push((place, operation));
                } else {
                    store.send(mem::take(&mut calls), &mut replies).await;
                    replies[place] = store.execute(operation).await;
                }
            }
            store.send(calls, &mut replies).await;
            Ok(replies)
        })
    }

    /// Sends these calls at the same time, and puts the replies into their places.
    async fn send(&self, calls: Calls, replies: &mut Replies) {
        let calls = calls.into_values().map(|call| call.into_iter().unzip());
        let (places, operations): (Vec<Vec<usize>>, Vec<_>) = calls.unzip();
        let answers = operations.into_iter().map(|call| self.call_one_slot(call));
        let answers = join_all(answers.map(in_time).map(Box::pin).collect()).await;
        for (places, answer) in places.into_iter().zip(answers) {
            let answers = answer.unwrap_or_else(|error| vec![Err(error); places.len()]);
            for (place, reply) in places.into_iter().zip(answers) {
                replies[place] = reply;
            }
        }
    }

    /// The answer to an operation whose keys are in several slots; `None` where one call will do.
    pub(in crate::store::redis) fn execute_several_slots(
        &self,
        operation: &Operation,
    ) -> Option<StoreFuture<Reply>> {
        let slots = self.several_slots(operation.check()?)?;
        let (store, operation) = (self.clone(), operation.clone());
        let sent = Sent::queued();
        let leaves = Leaves(sent.clone());
        let reply = StoreFuture::pending(async move {
            let Leaves(sent) = &leaves;
            store
                .execute_apart(operation, slots, Some(sent.clone()))
                .await
        });
        Some(reply.queued(Some(sent)))
    }

    /// The same for a check.
    pub(in crate::store::redis) fn check_several_slots(
        &self,
        check: &Check,
    ) -> Option<StoreFuture<Decision>> {
        let slots = self.several_slots(check)?;
        let (store, check) = (self.clone(), check.clone());
        let sent = Sent::queued();
        let leaves = Leaves(sent.clone());
        let decision = StoreFuture::pending(async move {
            let Leaves(sent) = &leaves;
            store
                .check_once_apart(check, slots, Some(sent.clone()))
                .await
        });
        Some(decision.queued(Some(sent)))
    }

    /// Executes an operation on each part of the charges that count.
    pub(super) async fn execute_apart(
        &self,
        operation: Operation,
        slots: Slots,
        sent: Option<Sent>,
    ) -> Result<Reply, StoreError> {
        Ok(match operation {
            Operation::Check(check) => {
                Reply::Check(self.check_once_apart(check, slots, sent).await?)
            }
            Operation::CheckBatch(batch) => {
                Reply::CheckBatch(check_batch(self.clone(), batch, slots, sent).await?)
            }
            Operation::Settle(settlement) => {
                Reply::Settle(self.settle_slots(settlement, slots).await?)
            }
            other => self.execute_alone(other, None).await?,
        })
    }

    async fn check_once_apart(
        &self,
        check: Check,
        slots: Slots,
        sent: Option<Sent>,
    ) -> Result<Decision, StoreError> {
        let batch = CheckBatch::from(&check);
        let mut decisions = check_batch(self.clone(), batch, slots, sent).await?;
        decisions.pop().ok_or(ANOTHER_REPLY)
    }

    async fn settle_slots(
        &self,
        settlement: Settlement,
        slots: Slots,
    ) -> Result<Usage, StoreError> {
        let parts = slots.iter().map(|(_, charges)| settlement.pick(charges));
        let settled = self.execute_parts(parts.map(Operation::Settle), answer_of!(Settle));
        let usages = settled.await?;
        let check = settlement.check();
        let (decided_at_ms, rules) = join_usages(check, &slots, usages.iter());
        Ok(Usage::joined(check, decided_at_ms, rules))
    }

    /// Executes the parts of an operation at the same time, also if the caller leaves. If one fails, others may have been
    /// executed, unless all fail before they are sent.
    async fn execute_parts<T: Send + 'static>(
        &self,
        parts: impl Iterator<Item = Operation>,
        read: fn(Reply) -> Option<T>,
    ) -> Result<Vec<T>, StoreError> {
        let answers = parts.map(|part| Box::pin(in_time(self.execute_one(part, read))));
        let answers = join_all(answers.collect());
        let answered = answered(|caller| async move {
            let _ = caller.send(Ok(answers.await));
        });
        let answers = answered.await?;
        let mut errors = answers.iter().map(|answer| answer.as_ref().err());
        let is_unsent = errors.all(|error| error.is_some_and(StoreError::is_unsent));
        let answers: Result<_, StoreError> = answers.into_iter().collect();
        answers.map_err(|error| error.maybe_sent().unsent_if(is_unsent))
    }

    /// Decides identical checks, unless the caller leaves before one of them, or of those that share the mark, is sent. A
    /// single one can share a call with others.
    pub(super) fn check_batch(
        &self,
        batch: CheckBatch,
        sent: Option<&Sent>,
    ) -> StoreFuture<Vec<Decision>> {
        if batch.count() == 1 {
            let mut decision = self.check(batch.check());
            if let Some(sent) = sent {
                decision.share(sent);
            }
            return decision.map(|decision| vec![decision]);
        }
        read(
            self.execute(Operation::CheckBatch(batch)),
            answer_of!(CheckBatch),
        )
    }
}

/// Notes that the caller of several parts leaves.
struct Leaves(Sent);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
}
