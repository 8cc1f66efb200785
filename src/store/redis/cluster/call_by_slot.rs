//! A call of several operations: one call of the script for each slot; and an operation with keys in several slots.

use std::{collections::HashMap, mem};

use redis::cluster_routing::Slot;
use tokio::{runtime::Handle, time::timeout};

use super::{
    cross_slot::{self, GRACE, roll_back},
    hash_slots::{Slots, TOO_LATE},
};
use crate::{
    domain::{
        check::Check,
        decision::Decision,
        error::StoreError,
        operation::{Operation, Reply, answer_of},
    },
    store::{
        CallFuture, Store, StoreFuture,
        ext::{ANOTHER_REPLY, read},
        redis::RedisStore,
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
        let answers = Self::join(answers.collect()).await;
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
        Some(StoreFuture::pending(async move {
            store.execute_apart(operation, slots).await
        }))
    }

    /// The same for a check.
    pub(in crate::store::redis) fn check_several_slots(
        &self,
        check: &Check,
    ) -> Option<StoreFuture<Decision>> {
        let slots = self.several_slots(check)?;
        let (store, check) = (self.clone(), check.clone());
        Some(StoreFuture::pending(async move {
            store.check_once_apart(check, slots).await
        }))
    }

    /// Executes an operation on each part of the charges that count.
    pub(super) async fn execute_apart(
        &self,
        operation: Operation,
        slots: Slots,
    ) -> Result<Reply, StoreError> {
        Ok(match operation {
            Operation::Check(check) => Reply::Check(self.check_once_apart(check, slots).await?),
            Operation::CheckBatch { check, count } => {
                Reply::CheckBatch(self.check_apart(check, count, slots).await?)
            }
            Operation::Settle(settlement) => {
                Reply::Settle(self.settle_slots(settlement, slots).await?)
            }
            Operation::Renew(renewal) => Reply::Renew(self.renew_slots(renewal, slots).await?),
            other => self.execute_alone(other).await?,
        })
    }

    async fn check_once_apart(&self, check: Check, slots: Slots) -> Result<Decision, StoreError> {
        let mut decisions = self.check_apart(check, 1, slots).await?;
        decisions.pop().ok_or(ANOTHER_REPLY)
    }

    /// Decides the charges that count, then the shadows of the admitted checks in separate calls. An error of the
    /// shadows is dropped, and so is an answer that is late.
    async fn check_apart(
        &self,
        check: Check,
        count: u16,
        slots: Slots,
    ) -> Result<Vec<Decision>, StoreError> {
        let shadows = check.shadow_check();
        let counting = check.without_shadows();
        let decisions = cross_slot::check_batch(self.clone(), counting, count, slots).await?;
        let admitted = decisions.iter().filter(|decision| decision.is_allowed());
        let (Some(shadows), Ok(admitted @ 1..)) = (shadows, u16::try_from(admitted.count())) else {
            return Ok(decisions);
        };
        let decisions = Unanswered::new(self, decisions);
        let shadows = timeout(GRACE, self.check_batch(shadows, admitted)).await;
        let mut shadows = shadows.into_iter().flatten().flatten();
        let with_shadow = |decision: Decision| match shadows.next() {
            Some(shadow) => decision.with_shadow(shadow),
            None => decision,
        };
        Ok(decisions.take().into_iter().map(with_shadow).collect())
    }

    /// Decides identical checks. A single one can share a call with others.
    pub(super) fn check_batch(&self, check: Check, count: u16) -> StoreFuture<Vec<Decision>> {
        if count == 1 {
            return self.check(&check).map(|decision| vec![decision]);
        }
        let batch = self.execute(Operation::CheckBatch { check, count });
        read(batch, answer_of!(CheckBatch))
    }
}

/// Decisions that wait for those of their shadows. If the callers leave meanwhile, the admitted checks are rolled back.
struct Unanswered {
    store: RedisStore,
    /// The admitted ones first.
    decisions: Vec<Decision>,
    runtime: Handle,
}

impl Unanswered {
    fn new(store: &RedisStore, decisions: Vec<Decision>) -> Self {
        Self {
            store: store.clone(),
            decisions,
            runtime: Handle::current(),
        }
    }

    fn take(mut self) -> Vec<Decision> {
        mem::take(&mut self.decisions)
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut admitted = self
            .decisions
            .iter()
            .filter(|decision| decision.is_allowed());
        let count = admitted.clone().count();
        let Some(Ok(all)) = admitted
            .next_back()
            .map(|last| roll_back(last.usage(), count))
        else {
            return;
        };
        let store = self.store.clone();
        self.runtime
            .spawn(async move { drop(store.execute(Operation::Settle(all)).await) });
    }
}
