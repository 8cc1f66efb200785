//! Groups the charges of a check by slot, and joins the answers of several slots.

use redis::cluster_routing::Slot;
use tokio::time::timeout;

use crate::{
    domain::{
        charge::Charge,
        check::Check,
        decision::{RuleUsage, Usage},
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, Reply, answer_of},
        settlement::Settlement,
        slots::{Renewal, Renewed},
    },
    store::{
        StoreFuture,
        redis::{RedisStore, connection::PART_TIMEOUT},
    },
};

/// The charges of a check in each slot: their indices.
pub(super) type Slots = Vec<(Slot, Vec<usize>)>;

impl RedisStore {
    pub(super) async fn settle_slots(
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

    /// Renews the charges in each slot on their own. They are renewed if all parts are; those of the others that were
    /// renewed can be given back.
    pub(super) async fn renew_slots(
        &self,
        renewal: Renewal,
        slots: Slots,
    ) -> Result<Renewed, StoreError> {
        let parts = slots.iter().map(|(_, charges)| renewal.pick(charges));
        let renewed = self.execute_parts(parts.map(Operation::Renew), answer_of!(Renew));
        let renewed = renewed.await?;
        let join = |usage: fn(&Renewed) -> &Usage| {
            let check = renewal.check();
            let (decided_at_ms, rules) = join_usages(check, &slots, renewed.iter().map(usage));
            Usage::joined(check, decided_at_ms, rules)
        };
        let (usage, held) = (join(Renewed::usage), join(Renewed::held));
        Ok(Renewed::joined(&renewed, usage, held))
    }

    /// Executes the parts of an operation at the same time. If one fails, others may have been executed, unless all fail
    /// before they are sent.
    async fn execute_parts<T: Send + 'static>(
        &self,
        parts: impl Iterator<Item = Operation>,
        read: fn(Reply) -> Option<T>,
    ) -> Result<Vec<T>, StoreError> {
        let answers = parts.map(|part| self.execute_one(part, read)).collect();
        let answers: Vec<Result<T, StoreError>> = Self::join(answers).await;
        let mut errors = answers.iter().map(|answer| answer.as_ref().err());
        let is_unsent = errors.all(|error| error.is_some_and(StoreError::is_unsent));
        let answers: Result<_, StoreError> = answers.into_iter().collect();
        answers.map_err(|error| error.maybe_sent().unsent_if(is_unsent))
    }

    /// The charges that count in each slot, if the keys of the check, including shadows, are in several.
    pub(super) fn several_slots(&self, check: &Check) -> Option<Slots> {
        let may_be = self.transport.is_cluster() && check.all_charges().len() > 1;
        if !may_be || self.common_slot(check).is_some() {
            return None;
        }
        let mut slots = Slots::new();
        for (index, charge) in check.charges().iter().enumerate() {
            let slot = self.slot(charge.key());
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, charges)) => charges.push(index),
                None => slots.push((slot, vec![index])),
            }
        }
        Some(slots)
    }

    /// The slot of all keys of a check, including shadows; `None` for keys in several, or no keys.
    fn common_slot(&self, check: &Check) -> Option<Slot> {
        let mut slots = check
            .all_charges()
            .iter()
            .map(|charge| self.slot(charge.key()));
        let first = slots.next()?;
        slots.all(|slot| slot == first).then_some(first)
    }

    /// The slot of an operation; `None` for keys in several, or no keys.
    pub(super) fn only_slot(&self, operation: &Operation) -> Option<Slot> {
        match operation.check() {
            Some(check) => self.common_slot(check),
            None => self.first_slot(operation),
        }
    }

    /// The slot of an operation with all keys in one.
    pub(in crate::store::redis) fn first_slot(&self, operation: &Operation) -> Option<Slot> {
        let first = operation
            .check()
            .and_then(|check| check.all_charges().first());
        let key = first.map(Charge::key).or(operation.key());
        key.map(|key| self.slot(key))
    }

    /// The slot of all keys of an identity, whatever the policy.
    pub(super) fn slot(&self, key: &Key) -> Slot {
        Slot::for_key(self.names.name("", key))
    }

    /// Starts all at once, and waits for all. If the caller leaves, each continues until the timeout.
    pub(super) fn join<T: Send + 'static>(
        answers: Vec<StoreFuture<T>>,
    ) -> impl Future<Output = Vec<Result<T, StoreError>>> + use<T> {
        let answers = answers.into_iter();
        let tasks: Vec<_> = answers
            .map(|answer| tokio::spawn(timeout(PART_TIMEOUT, answer)))
            .collect();
        async {
            let mut results = Vec::with_capacity(tasks.len());
            for task in tasks {
                results.push(match task.await {
                    Ok(Ok(result)) => result,
                    _ => Err(TOO_LATE),
                });
            }
            results
        }
    }
}

pub(super) const TOO_LATE: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "a part of the Redis cluster did not answer in time",
);

/// Returns the first known decision time of the parts, and the usage of the whole check in the order of the charges.
pub(super) fn join_usages<'a>(
    check: &Check,
    slots: &Slots,
    usages: impl Iterator<Item = &'a Usage> + Clone,
) -> (u64, Vec<RuleUsage>) {
    let mut times = usages.clone().map(Usage::decided_at_ms);
    let decided_at_ms = times.find(|time| *time > 0).unwrap_or(0);
    let mut rules: Vec<&[RuleUsage]> = vec![&[]; check.charges().len()];
    for ((_, charges), usage) in slots.iter().zip(usages) {
        for (index, of_policy) in charges.iter().zip(usage.policies()) {
            rules[*index] = of_policy.rules();
        }
    }
    (decided_at_ms, rules.concat())
}
