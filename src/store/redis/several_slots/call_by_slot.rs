//! A call of several operations: one call of the script for each slot; and an operation with keys in several slots.

use std::{collections::HashMap, mem};

use redis::cluster_routing::Slot;
use tokio::runtime::Handle;

use super::hash_slots::{Parts, TOO_LATE, answered, in_time};
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
        ext::read,
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
        let parts = self.several_slots(operation.check()?)?;
        Some(self.execute_parts(operation.clone(), parts))
    }

    /// The same for a check.
    pub(in crate::store::redis) fn check_several_slots(
        &self,
        check: &Check,
    ) -> Option<StoreFuture<Decision>> {
        let parts = self.several_slots(check)?;
        let reply = self.execute_parts(Operation::Check(check.clone()), parts);
        Some(read(reply, answer_of!(Check)))
    }

    fn execute_parts(&self, operation: Operation, parts: Parts) -> StoreFuture<Reply> {
        let (store, sent) = (self.clone(), Sent::queued());
        let leaves = Leaves(sent.clone());
        let reply = StoreFuture::pending(async move {
            let Leaves(sent) = &leaves;
            store.execute_apart(operation, parts, sent.clone()).await
        });
        reply.queued(Some(sent))
    }

    /// Executes an operation on each part of the charges that count. `sent` is for all parts.
    pub(super) async fn execute_apart(
        &self,
        operation: Operation,
        parts: Parts,
        sent: Sent,
    ) -> Result<Reply, StoreError> {
        let store = self.clone();
        let work = async move {
            Ok(match operation {
                Operation::Check(check) => {
                    Reply::Check(store.check_apart(&check, &parts, &sent).await?)
                }
                Operation::CheckBatch(batch) => {
                    Reply::CheckBatch(store.check_one_by_one(&batch, &parts, &sent).await?)
                }
                Operation::Settle(settlement) => {
                    Reply::Settle(store.settle_apart(&settlement, &parts, &sent).await?)
                }
                other => store.execute_alone(other, None).await?,
            })
        };
        answered(work).await
    }

    /// Decides the checks of a batch one after another. Behind the first that is not admitted, none is.
    async fn check_one_by_one(
        &self,
        batch: &CheckBatch,
        parts: &Parts,
        sent: &Sent,
    ) -> Result<Vec<Decision>, StoreError> {
        let mut decisions = Vec::new();
        for place in 0..batch.count() {
            let decision = self.check_apart(batch.nth(place), parts, sent).await?;
            if !decision.is_allowed() {
                decisions.resize(batch.count().into(), decision);
                break;
            }
            decisions.push(decision);
        }
        Ok(decisions)
    }

    /// Settles all parts at the same time. If one fails, others may have been settled, unless all fail before they are
    /// sent.
    async fn settle_apart(
        &self,
        settlement: &Settlement,
        parts: &Parts,
        sent: &Sent,
    ) -> Result<Usage, StoreError> {
        let settle = |charges: &Vec<usize>| {
            let part = Operation::Settle(settlement.pick(charges));
            Box::pin(in_time(self.execute_part(part, sent, answer_of!(Settle))))
        };
        let answers = join_all(parts.charges.iter().map(settle).collect()).await;
        let mut errors = answers.iter().map(|answer| answer.as_ref().err());
        let is_unsent = errors.all(|error| error.is_some_and(StoreError::is_unsent));
        let usages: Result<Vec<_>, _> = answers.into_iter().collect();
        let usages = usages.map_err(|error| error.maybe_sent().unsent_if(is_unsent))?;
        let check = settlement.check();
        let (decided_at_ms, rules) = parts.join(check, &usages);
        Ok(Usage::joined(check, decided_at_ms, rules))
    }
}

/// Notes that the caller of several parts leaves.
struct Leaves(Sent);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
}
