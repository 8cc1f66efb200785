//! A check whose keys are in several slots: one call for each slot, all or nothing by settling back.
//!
//! ```text
//!   check ──▶ slot 1: admitted ──▶ settled to 0 ─┐
//!         ──▶ slot 2: refused  ─────────────────▶├─▶ denied
//!         ──▶ slot 3: admitted ──▶ settled to 0 ─┘
//! ```
//!
//! What was begun is finished in tasks of its own, whether or not the caller stays, and each call is given up after
//! [`PATIENCE`].

use std::{collections::HashMap, time::Duration};

use redis::cluster_routing::Slot;
use tokio::time::timeout;

use crate::{
    charge::{Check, Settlement},
    decision::{Decision, RuleUsage, Usage},
    error::{StoreError, StoreErrorKind},
    store::{Answer, redis::RedisStore},
};

/// How long the call for one slot may take. Twice that is how long a part can stay charged that has to be settled back.
const PATIENCE: Duration = Duration::from_secs(1);

/// Which charges of a check share a slot: their indices, slot by slot.
type Slots = Vec<(Slot, Vec<usize>)>;

/// Each answers `None` where one call will do.
impl RedisStore {
    pub(in crate::store::redis) fn check_apart(&self, check: &Check) -> Option<Answer<Decision>> {
        let (store, slots) = (self.clone(), self.several_slots(check)?);
        let decision = decide(store, check.clone(), slots);
        Some(Answer::pending(async {
            // A caller who leaves takes nothing along.
            tokio::spawn(decision)
                .await
                .unwrap_or_else(|_| Err(too_late()))
        }))
    }

    pub(in crate::store::redis) fn settle_apart(
        &self,
        settlement: &Settlement,
    ) -> Option<Answer<Usage>> {
        let slots = self.several_slots(settlement.check())?;
        let (store, settlement) = (self.clone(), settlement.clone());
        Some(Answer::pending(async move {
            let parts = slots.iter().map(|(_, charges)| settlement.pick(charges));
            let answers = parts.map(|part| store.settle_at_once(&part)).collect();
            let usages = together(answers).await.into_iter();
            let usages: Vec<Usage> = usages.collect::<Result<_, _>>()?;
            let check = settlement.check();
            Ok(Usage::joined(check, in_order(check, &slots, &usages)))
        }))
    }

    pub(in crate::store::redis) fn check_many_apart(
        &self,
        checks: &[Check],
    ) -> Option<Answer<Vec<Decision>>> {
        if !self.link.is_cluster() {
            return None;
        }
        let mut at_once: HashMap<Option<Slot>, Vec<usize>> = HashMap::new();
        let mut calls = Vec::new();
        for (index, check) in checks.iter().enumerate() {
            match self.check_apart(check) {
                None => at_once
                    .entry(self.slots(check).first().map(|(slot, _)| *slot))
                    .or_default()
                    .push(index),
                Some(answer) => {
                    let answer = async { Ok(vec![answer.await?]) };
                    calls.push((vec![index], Answer::pending(answer)));
                }
            }
        }
        for indices in at_once.into_values() {
            let checks = indices.iter().map(|index| checks[*index].clone());
            let answer = self.check_many_at_once(checks.collect());
            calls.push((indices, answer));
        }
        let mut decisions = vec![None; checks.len()];
        Some(Answer::pending(async move {
            let (indices, answers): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
            for (indices, answer) in indices.into_iter().zip(together(answers).await) {
                for (index, decision) in indices.into_iter().zip(answer?) {
                    decisions[index] = Some(decision);
                }
            }
            Ok(decisions.into_iter().flatten().collect())
        }))
    }

    fn several_slots(&self, check: &Check) -> Option<Slots> {
        let may_be = self.link.is_cluster() && check.charges().len() > 1;
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
}

/// Decides a check of several slots.
async fn decide(store: RedisStore, check: Check, slots: Slots) -> Result<Decision, StoreError> {
    let parts = slots.iter().map(|(_, charges)| check.pick(charges));
    let answers = parts.map(|part| store.check_at_once(&part)).collect();
    let decisions = together(answers).await;
    let admitted = decisions
        .iter()
        .all(|it| it.as_ref().is_ok_and(Decision::is_allowed));
    // Begins now, and goes on when an error ends this.
    let given_back = (!admitted).then(|| {
        let answers = decisions.iter().map(|it| give_back(&store, it));
        together(answers.collect())
    });
    let decisions: Vec<Decision> = decisions.into_iter().collect::<Result<_, _>>()?;
    let mut usages: Vec<Usage> = decisions.iter().map(|it| it.usage().clone()).collect();
    if let Some(given_back) = given_back {
        for (usage, now) in usages.iter_mut().zip(given_back.await) {
            // What could not be given back is still charged.
            *usage = now.unwrap_or_else(|_| usage.clone());
        }
    }
    let rules = in_order(&check, &slots, &usages);
    Decision::joined(&check, admitted, rules)
}

/// Settles a part to 0 if it was admitted. Answers its usage.
fn give_back(store: &RedisStore, part: &Result<Decision, StoreError>) -> Answer<Usage> {
    match part {
        Ok(Decision::Allowed(usage)) => {
            let costs = usage.policies().map(|_| 0);
            match Settlement::new(usage, costs) {
                Ok(settlement) => store.settle_at_once(&settlement),
                Err(error) => Answer::ready(Err(error)),
            }
        }
        Ok(Decision::Denied(denial)) => Answer::ready(Ok(denial.usage().clone())),
        Err(error) => Answer::ready(Err(error.clone())),
    }
}

/// The usage of a whole check: that of its parts, in the order of its charges.
fn in_order(check: &Check, slots: &Slots, usages: &[Usage]) -> Vec<RuleUsage> {
    let mut rules: Vec<&[RuleUsage]> = vec![&[]; check.charges().len()];
    for ((_, charges), usage) in slots.iter().zip(usages) {
        for (index, of_policy) in charges.iter().zip(usage.policies()) {
            rules[*index] = of_policy.rules();
        }
    }
    rules.concat()
}

/// Begins all at once, and waits for all. Each goes on by itself when nobody waits any more, until [`PATIENCE`] ends.
fn together<T: Send + 'static>(
    answers: Vec<Answer<T>>,
) -> impl Future<Output = Vec<Result<T, StoreError>>> {
    let answers = answers.into_iter();
    let tasks: Vec<_> = answers
        .map(|it| tokio::spawn(timeout(PATIENCE, it)))
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

fn too_late() -> StoreError {
    StoreError::new(
        StoreErrorKind::Timeout,
        "a part of the Redis cluster did not answer in time",
    )
}
