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
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    check::Check,
    decision::{Decision, RuleUsage, Usage},
    error::{StoreError, StoreErrorKind},
    settlement::Settlement,
    store::{StoreFuture, redis::RedisStore},
};

/// How long the call for one slot may take. Twice that is how long a part can stay charged that has to be settled back.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a refusal by one slot waits for what the others say, and then for what they admitted to be given back. A node in
/// trouble must not turn the refusal of a healthy one into no decision.
const GRACE: Duration = Duration::from_millis(30);

/// What the parts answer as they do, each with its place.
type Answers = mpsc::UnboundedReceiver<(usize, Result<Decision, StoreError>)>;

/// Which charges of a check share a slot: their indices, slot by slot.
type Slots = Vec<(Slot, Vec<usize>)>;

/// Each answers `None` where one call will do.
impl RedisStore {
    pub(in crate::store::redis) fn check_apart(
        &self,
        check: &Check,
    ) -> Option<StoreFuture<Decision>> {
        let (store, slots) = (self.clone(), self.several_slots(check)?);
        let decision = decide(store, check.clone(), slots);
        Some(StoreFuture::pending(async {
            // A caller who leaves takes nothing along.
            tokio::spawn(decision)
                .await
                .unwrap_or_else(|_| Err(too_late()))
        }))
    }

    pub(in crate::store::redis) fn settle_apart(
        &self,
        settlement: &Settlement,
    ) -> Option<StoreFuture<Usage>> {
        let slots = self.several_slots(settlement.check())?;
        let (store, settlement) = (self.clone(), settlement.clone());
        Some(StoreFuture::pending(async move {
            let parts = slots.iter().map(|(_, charges)| settlement.pick(charges));
            let answers = parts.map(|part| store.settle_at_once(&part)).collect();
            let usages = together(answers).await.into_iter();
            let usages: Vec<Usage> = usages.collect::<Result<_, _>>()?;
            let check = settlement.check();
            Ok(Usage::joined(
                check,
                time_of(&usages),
                in_order(check, &slots, &usages),
            ))
        }))
    }

    pub(in crate::store::redis) fn check_batch_apart(
        &self,
        checks: &[Check],
    ) -> Option<StoreFuture<Vec<Decision>>> {
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
                    calls.push((vec![index], StoreFuture::pending(answer)));
                }
            }
        }
        for indices in at_once.into_values() {
            let checks = indices.iter().map(|index| checks[*index].clone());
            let answer = self.check_batch_at_once(checks.collect());
            calls.push((indices, answer));
        }
        let mut decisions = vec![None; checks.len()];
        Some(StoreFuture::pending(async move {
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

/// What has come of the parts so far, in the order of the slots.
type Parts = Vec<Option<Result<Decision, StoreError>>>;

/// Decides a check of several slots. A refusal by one is the answer, whatever becomes of the others.
async fn decide(store: RedisStore, check: Check, slots: Slots) -> Result<Decision, StoreError> {
    let checks: Vec<Check> = slots.iter().map(|(_, it)| check.pick(it)).collect();
    let mut answers = begin(checks.iter().map(|part| store.check_at_once(part)));
    let (parts, refused) = gather(&mut answers, slots.len()).await;
    if let Some(decisions) = all_admitted(&parts) {
        let usages: Vec<Usage> = decisions.map(|it| it.usage().clone()).collect();
        return Decision::joined(
            &check,
            true,
            time_of(&usages),
            in_order(&check, &slots, &usages),
        );
    }
    // Both begin now, and go on when this has ended.
    let given_back = together(parts.iter().map(|it| give_back(&store, it)).collect());
    tokio::spawn(give_back_the_late(store, answers));
    if !refused {
        let error = parts.into_iter().flatten().find_map(Result::err);
        return Err(error.unwrap_or_else(too_late));
    }
    let given_back = timeout(GRACE, given_back).await;
    let mut given_back = given_back.unwrap_or_default().into_iter();
    let usages = checks.iter().zip(&parts).map(|(check, part)| {
        // What could not be given back is still charged; of what did not answer nothing is known.
        match (given_back.next(), part) {
            (Some(Ok(usage)), _) => usage,
            (_, Some(Ok(decision))) => decision.usage().clone(),
            _ => Usage::unused(check),
        }
    });
    let usages: Vec<Usage> = usages.collect();
    Decision::joined(
        &check,
        false,
        time_of(&usages),
        in_order(&check, &slots, &usages),
    )
}

/// Begins all at once. Each goes on by itself when nobody waits any more, until [`PATIENCE`] ends.
fn begin(parts: impl Iterator<Item = StoreFuture<Decision>>) -> Answers {
    let (sender, answers) = mpsc::unbounded_channel();
    for (index, part) in parts.enumerate() {
        let sender = sender.clone();
        tokio::spawn(async move {
            let answer = timeout(PATIENCE, part).await;
            let _ = sender.send((index, answer.unwrap_or_else(|_| Err(too_late()))));
        });
    }
    answers
}

/// Waits for all, or until [`GRACE`] after one has refused; answers whether one has.
async fn gather(answers: &mut Answers, slots: usize) -> (Parts, bool) {
    let (mut parts, mut until) = (vec![None; slots], None);
    loop {
        let next = match until {
            None => answers.recv().await,
            Some(until) => timeout_at(until, answers.recv()).await.unwrap_or(None),
        };
        let Some((index, answer)) = next else {
            return (parts, until.is_some());
        };
        if matches!(answer, Ok(Decision::Denied(_))) {
            until.get_or_insert_with(|| Instant::now() + GRACE);
        }
        parts[index] = Some(answer);
    }
}

fn all_admitted(parts: &Parts) -> Option<impl Iterator<Item = &Decision>> {
    let admitted = |it: &Option<Result<Decision, _>>| matches!(it, Some(Ok(it)) if it.is_allowed());
    parts
        .iter()
        .all(admitted)
        .then(|| parts.iter().flatten().flatten())
}

async fn give_back_the_late(store: RedisStore, mut answers: Answers) {
    while let Some((_, answer)) = answers.recv().await {
        // What fails stays charged until its steps are released.
        let _ = timeout(PATIENCE, give_back(&store, &Some(answer))).await;
    }
}

/// Settles a part to 0 if it was admitted. Answers its usage.
fn give_back(
    store: &RedisStore,
    part: &Option<Result<Decision, StoreError>>,
) -> StoreFuture<Usage> {
    match part {
        Some(Ok(Decision::Allowed(usage))) => {
            let costs = usage.policies().map(|_| 0);
            match Settlement::new(usage, costs) {
                Ok(settlement) => store.settle_at_once(&settlement),
                Err(error) => StoreFuture::ready(Err(error)),
            }
        }
        Some(Ok(Decision::Denied(denial))) => StoreFuture::ready(Ok(denial.usage().clone())),
        Some(Err(error)) => StoreFuture::ready(Err(error.clone())),
        None => StoreFuture::ready(Err(too_late())),
    }
}

fn time_of(usages: &[Usage]) -> u64 {
    usages.first().map_or(0, Usage::decided_at_ms)
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
    answers: Vec<StoreFuture<T>>,
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
