//! Which charges of a check share a slot, and what several slots answer together.

use std::collections::HashMap;

use redis::cluster_routing::Slot;
use tokio::time::timeout;

use super::cross_slot::{self, too_late};
use crate::{
    charge::{Check, Settlement},
    decision::{Decision, RuleUsage, Usage},
    error::StoreError,
    store::{StoreFuture, redis::RedisStore},
};

/// The charges of a check in each slot: their indices.
pub(super) type Slots = Vec<(Slot, Vec<usize>)>;

/// Each answers `None` where one call will do.
impl RedisStore {
    pub(in crate::store::redis) fn check_several_slots(
        &self,
        check: &Check,
    ) -> Option<StoreFuture<Decision>> {
        let slots = self.several_slots(check)?;
        Some(cross_slot::check(self.clone(), check.clone(), slots))
    }

    pub(in crate::store::redis) fn settle_several_slots(
        &self,
        settlement: &Settlement,
    ) -> Option<StoreFuture<Usage>> {
        let slots = self.several_slots(settlement.check())?;
        let (store, settlement) = (self.clone(), settlement.clone());
        Some(StoreFuture::pending(async move {
            let parts = slots.iter().map(|(_, charges)| settlement.pick(charges));
            let answers = parts.map(|part| store.settle_one_slot(&part)).collect();
            let usages = store.join(answers).await.into_iter();
            let usages: Vec<Usage> = usages.collect::<Result<_, _>>()?;
            let check = settlement.check();
            Ok(Usage::joined(check, in_order(check, &slots, &usages)))
        }))
    }

    pub(in crate::store::redis) fn check_batch_several_slots(
        &self,
        checks: &[Check],
    ) -> Option<StoreFuture<Vec<Decision>>> {
        if !self.transport.is_cluster() {
            return None;
        }
        let mut one_slot: HashMap<Option<Slot>, Vec<usize>> = HashMap::new();
        let mut calls = Vec::new();
        for (index, check) in checks.iter().enumerate() {
            match self.check_several_slots(check) {
                None => one_slot
                    .entry(self.slots(check).first().map(|(slot, _)| *slot))
                    .or_default()
                    .push(index),
                Some(answer) => {
                    let answer = async { Ok(vec![answer.await?]) };
                    calls.push((vec![index], StoreFuture::pending(answer)));
                }
            }
        }
        for indices in one_slot.into_values() {
            let checks = indices.iter().map(|index| checks[*index].clone());
            let answer = self.check_batch_one_slot(checks.collect());
            calls.push((indices, answer));
        }
        let (store, mut decisions) = (self.clone(), vec![None; checks.len()]);
        Some(StoreFuture::pending(async move {
            let (indices, answers): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
            for (indices, answer) in indices.into_iter().zip(store.join(answers).await) {
                for (index, decision) in indices.into_iter().zip(answer?) {
                    decisions[index] = Some(decision);
                }
            }
            Ok(decisions.into_iter().flatten().collect())
        }))
    }

    fn several_slots(&self, check: &Check) -> Option<Slots> {
        let may_be = self.transport.is_cluster() && check.charges().len() > 1;
        may_be
            .then(|| self.slots(check))
            .filter(|slots| slots.len() > 1)
    }

    fn slots(&self, check: &Check) -> Slots {
        let mut slots = Slots::new();
        for (index, charge) in check.charges().iter().enumerate() {
            let slot = Slot::for_key(self.names.name(charge.policy().name(), charge.key()));
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, charges)) => charges.push(index),
                None => slots.push((slot, vec![index])),
            }
        }
        slots
    }

    /// Begins all at once, and waits for all. Each goes on by itself when nobody waits any more, until its time has passed.
    fn join<T: Send + 'static>(
        &self,
        answers: Vec<StoreFuture<T>>,
    ) -> impl Future<Output = Vec<Result<T, StoreError>>> + use<T> {
        let part_timeout = self.part_timeout();
        let answers = answers.into_iter();
        let tasks: Vec<_> = answers
            .map(|it| tokio::spawn(timeout(part_timeout, it)))
            .collect();
        async {
            let mut results = Vec::with_capacity(tasks.len());
            for task in tasks {
                results.push(match task.await {
                    Ok(Ok(result)) => result,
                    _ => Err(too_late()),
                });
            }
            results
        }
    }
}

/// The usage of a whole check: that of its parts, in the order of its charges.
pub(super) fn in_order(check: &Check, slots: &Slots, usages: &[Usage]) -> Vec<RuleUsage> {
    let mut rules: Vec<&[RuleUsage]> = vec![&[]; check.charges().len()];
    for ((_, charges), usage) in slots.iter().zip(usages) {
        for (index, of_policy) in charges.iter().zip(usage.policies()) {
            rules[*index] = of_policy.rules();
        }
    }
    rules.concat()
}
