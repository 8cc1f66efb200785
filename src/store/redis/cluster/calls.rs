//! A call of several operations: one call of the script for each slot.

use std::collections::HashMap;

use redis::cluster_routing::Slot;

use super::cross_slot::too_late;
use crate::{
    check::Check,
    decision::Decision,
    error::StoreError,
    store::{CallFuture, Operation, Reply, Store, StoreFuture, redis::RedisStore},
};

type Replies = Vec<Result<Reply, StoreError>>;

/// Operations that go in one call, and their places among all.
struct SlotCall {
    /// `None` for one operation whose keys are in several slots.
    slot: Option<Slot>,
    places: Vec<usize>,
    operations: Vec<Operation>,
}

/// The rounds of calls in which a slot was last used.
#[derive(Clone, Copy, Default)]
struct LastUse {
    /// By an operation of this slot alone. Others of the slot can join its call.
    alone: usize,
    /// After the round of an operation of several slots.
    free: usize,
}

impl RedisStore {
    /// Does the operations of each slot in one call, in their order, and those of several slots on their own. All at
    /// the same time, but for operations that have to wait for one before them which has the same slot.
    pub(in crate::store::redis) fn call_by_slot(&self, operations: Vec<Operation>) -> CallFuture {
        let mut replies: Replies = operations.iter().map(|_| Err(too_late())).collect();
        let rounds = self.rounds(operations);
        let store = self.clone();
        StoreFuture::pending(async move {
            for round in rounds {
                let (places, calls): (Vec<_>, Vec<_>) =
                    round.into_iter().map(|call| store.begin_call(call)).unzip();
                for (places, answer) in places.into_iter().zip(store.join(calls).await) {
                    put_in_places(&mut replies, &places, answer);
                }
            }
            Ok(replies)
        })
    }

    fn begin_call(&self, call: SlotCall) -> (Vec<usize>, CallFuture) {
        let answer = match call.slot {
            Some(_) => self.call_one_slot(call.operations),
            None => self.one_by_one(call.operations),
        };
        (call.places, answer)
    }

    /// Does operations of several slots, one after the other.
    fn one_by_one(&self, operations: Vec<Operation>) -> CallFuture {
        let store = self.clone();
        StoreFuture::pending(async move {
            let mut results = Vec::with_capacity(operations.len());
            for operation in operations {
                results.push(match operation {
                    Operation::Check(check) => store.check(&check).await.map(Reply::Check),
                    Operation::Fill { check, count } => {
                        store.fill(check, count).await.map(Reply::Fill)
                    }
                    Operation::Settle(it) => store.settle(&it).await.map(Reply::Settle),
                    Operation::Reset { policy, key } => {
                        store.reset(&policy, &key).await.map(|()| Reply::Reset)
                    }
                });
            }
            Ok(results)
        })
    }

    /// Decides identical checks of several slots: after the first denial all are denied as it was.
    async fn fill(&self, check: Check, count: u16) -> Result<Vec<Decision>, StoreError> {
        let mut decisions: Vec<Decision> = Vec::with_capacity(count.into());
        while decisions.len() < count.into() {
            let decision = match decisions.last() {
                Some(denied @ Decision::Denied(_)) => denied.clone(),
                _ => self.check(&check).await?,
            };
            decisions.push(decision);
        }
        Ok(decisions)
    }

    /// Which calls are made at the same time, round by round.
    fn rounds(&self, operations: Vec<Operation>) -> Vec<Vec<SlotCall>> {
        let mut rounds: Vec<Vec<SlotCall>> = Vec::new();
        let mut last_uses: HashMap<Slot, LastUse> = HashMap::new();
        for (place, operation) in operations.into_iter().enumerate() {
            let slots = self.slots_of(&operation);
            let uses = slots.iter().filter_map(|slot| last_uses.get(slot));
            let only_slot = match slots[..] {
                [slot] => Some(slot),
                _ => None,
            };
            let round = uses.map(|last| match only_slot {
                Some(_) => last.alone.max(last.free),
                None => (last.alone + 1).max(last.free),
            });
            let round = round.max().unwrap_or(0);
            for slot in slots {
                let last = last_uses.entry(slot).or_default();
                match only_slot {
                    Some(_) => last.alone = round,
                    None => last.free = round + 1,
                }
            }
            rounds.resize_with(rounds.len().max(round + 1), Vec::new);
            add(&mut rounds[round], only_slot, place, operation);
        }
        rounds
    }

    /// The slots of an operation's keys, each once.
    fn slots_of(&self, operation: &Operation) -> Vec<Slot> {
        let check = match operation {
            Operation::Reset { policy, key } => return vec![self.slot(policy.name(), key)],
            Operation::Check(check) | Operation::Fill { check, .. } => check,
            Operation::Settle(settlement) => settlement.check(),
        };
        let mut slots = Vec::new();
        for charge in check.charges().iter().chain(check.shadow_charges()) {
            let slot = self.slot(charge.policy().name(), charge.key());
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        slots
    }
}

/// Adds an operation to the call of its slot.
fn add(round: &mut Vec<SlotCall>, slot: Option<Slot>, place: usize, operation: Operation) {
    let call = round
        .iter_mut()
        .find(|it| slot.is_some() && it.slot == slot);
    match call {
        Some(call) => {
            call.places.push(place);
            call.operations.push(operation);
        }
        None => round.push(SlotCall {
            slot,
            places: vec![place],
            operations: vec![operation],
        }),
    }
}

fn put_in_places(replies: &mut Replies, places: &[usize], answer: Result<Replies, StoreError>) {
    match answer {
        Ok(answers) => {
            for (place, reply) in places.iter().zip(answers) {
                replies[*place] = reply;
            }
        }
        Err(error) => {
            for place in places {
                replies[*place] = Err(error.clone());
            }
        }
    }
}
