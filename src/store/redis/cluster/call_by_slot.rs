//! A call of several operations: one call of the script for each slot.

use std::mem;

use redis::cluster_routing::Slot;
use tokio::runtime::Handle;

use super::{cross_slot, hash_slots::TOO_LATE};
use crate::{
    domain::{check::Check, decision::Decision, error::StoreError, settlement::Settlement},
    store::{CallFuture, Operation, Reply, Store, StoreFuture, one_by_one, redis::RedisStore},
};

type Replies = Vec<Result<Reply, StoreError>>;

/// Operations that share a call, with their positions in the caller's list.
struct SlotCall {
    /// `None` for one operation with keys in several slots.
    slot: Option<Slot>,
    places: Vec<usize>,
    operations: Vec<Operation>,
}

impl RedisStore {
    /// Executes the operations of each slot in one call, in their order, and all calls at the same time. An operation
    /// with keys in several slots waits for all before it, and all after it wait for it.
    pub(in crate::store::redis) fn call_by_slot(&self, operations: Vec<Operation>) -> CallFuture {
        let mut replies: Replies = operations.iter().map(|_| Err(TOO_LATE)).collect();
        let rounds = self.rounds(operations);
        let store = self.clone();
        StoreFuture::pending(async move {
            for round in rounds {
                let (places, calls): (Vec<_>, Vec<_>) =
                    round.into_iter().map(|call| store.begin_call(call)).unzip();
                for (places, answer) in places.into_iter().zip(Self::join(calls).await) {
                    let answers = answer.unwrap_or_else(|error| vec![Err(error); places.len()]);
                    for (place, reply) in places.into_iter().zip(answers) {
                        replies[place] = reply;
                    }
                }
            }
            Ok(replies)
        })
    }

    fn begin_call(&self, call: SlotCall) -> (Vec<usize>, CallFuture) {
        let answer = match call.slot {
            None => one_by_one(self, call.operations),
            Some(_) => self.call_one_slot(call.operations),
        };
        (call.places, answer)
    }

    /// Decides identical checks of several slots one after the other. The first denial is the decision of all that
    /// follow. If one fails, or the caller leaves, those that were admitted are rolled back.
    pub(super) fn check_batch(&self, check: Check, count: u16) -> StoreFuture<Vec<Decision>> {
        let store = self.clone();
        StoreFuture::pending(async move {
            let mut filled = PartlyFilled {
                store,
                runtime: Handle::current(),
                decisions: Vec::with_capacity(count.into()),
            };
            while filled.decisions.len() < count.into() {
                let decision = match filled.decisions.last() {
                    Some(denied) if !denied.is_allowed() => denied.clone(),
                    _ => {
                        let decision = filled.store.check(&check).await;
                        decision.map_err(StoreError::maybe_sent)?
                    }
                };
                filled.decisions.push(decision);
            }
            Ok(mem::take(&mut filled.decisions))
        })
    }

    /// The answer to an operation whose keys are in several slots; `None` where one call will do.
    pub(in crate::store::redis) fn execute_several_slots(
        &self,
        operation: &Operation,
    ) -> Option<StoreFuture<Reply>> {
        match operation {
            Operation::Check(check) => Some(self.check_several_slots(check)?.map(Reply::Check)),
            Operation::CheckBatch { check, count } => {
                self.several_slots(check)?;
                Some(
                    self.check_batch(check.clone(), *count)
                        .map(Reply::CheckBatch),
                )
            }
            Operation::Settle(settlement) => {
                let slots = self.several_slots(settlement.check())?;
                let settled = self.settle_slots(settlement.clone(), slots);
                Some(settled.map(Reply::Settle))
            }
            Operation::Renew(renewal) => {
                let slots = self.several_slots(renewal.check())?;
                let renewed = self.renew_slots(renewal.clone(), slots);
                Some(renewed.map(Reply::Renew))
            }
            _ => None,
        }
    }

    /// The same for a check.
    pub(in crate::store::redis) fn check_several_slots(
        &self,
        check: &Check,
    ) -> Option<StoreFuture<Decision>> {
        let slots = self.several_slots(check)?;
        Some(match check.shadow_check() {
            Some(shadows) => self.check_then_shadows(check.without_shadows(), shadows),
            None => cross_slot::check(self.clone(), check.clone(), slots),
        })
    }

    /// Decides the charges that count, then the shadows in a separate call. An error of the shadows is dropped.
    pub(super) fn check_then_shadows(
        &self,
        counting: Check,
        shadows: Check,
    ) -> StoreFuture<Decision> {
        let store = self.clone();
        StoreFuture::pending(async move {
            let decision = store.check(&counting).await?;
            if !decision.is_allowed() {
                return Ok(decision);
            }
            Ok(match store.check(&shadows).await {
                Ok(shadow) => decision.with_shadow(shadow),
                Err(_) => decision,
            })
        })
    }

    /// The calls of each round. Calls of the same round run at the same time.
    fn rounds(&self, operations: Vec<Operation>) -> Vec<Vec<SlotCall>> {
        let mut rounds: Vec<Vec<SlotCall>> = Vec::new();
        for (place, operation) in operations.into_iter().enumerate() {
            let slot = self.only_slot(&operation);
            match rounds.last_mut() {
                Some(round) if slot.is_some() && round.iter().all(|call| call.slot.is_some()) => {
                    add(round, slot, place, operation);
                }
                _ => rounds.push(vec![SlotCall::new(slot, place, operation)]),
            }
        }
        rounds
    }
}

/// The first decisions of a batch. If this is dropped, they are rolled back in the background.
struct PartlyFilled {
    store: RedisStore,
    /// That of the caller, which may drop this outside of any.
    runtime: Handle,
    decisions: Vec<Decision>,
}

impl Drop for PartlyFilled {
    fn drop(&mut self) {
        let admitted = self.decisions.iter().filter(|it| it.is_allowed());
        let both = admitted.flat_map(|it| [Some(it), it.usage().shadow()]);
        let usages = both.flatten().map(Decision::usage);
        // All at the same time, as a node may hang. If a rollback fails, its units stay charged until they are
        // released.
        for settlement in usages.filter_map(|usage| Settlement::roll_back(usage).ok()) {
            let settle = Operation::Settle(settlement);
            self.runtime.spawn(self.store.execute(settle));
        }
    }
}

impl SlotCall {
    fn new(slot: Option<Slot>, place: usize, operation: Operation) -> Self {
        Self {
            slot,
            places: vec![place],
            operations: vec![operation],
        }
    }
}

/// Adds an operation to the call of its slot.
fn add(round: &mut Vec<SlotCall>, slot: Option<Slot>, place: usize, operation: Operation) {
    match round.iter_mut().find(|call| call.slot == slot) {
        Some(call) => {
            call.places.push(place);
            call.operations.push(operation);
        }
        None => round.push(SlotCall::new(slot, place, operation)),
    }
}
