//! Groups the charges of a check by slot, and joins the answers of several slots.

use redis::cluster_routing::Slot;
use tokio::time::timeout;

use crate::{
    domain::{
        block::BLOCKS,
        check::Check,
        decision::{RuleUsage, Usage},
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, answer_of},
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
    pub(super) fn settle_slots(&self, settlement: Settlement, slots: Slots) -> StoreFuture<Usage> {
        let store = self.clone();
        StoreFuture::pending(async move {
            let parts = slots.iter().map(|(_, charges)| settlement.pick(charges));
            let settle = |part| store.execute_one(Operation::Settle(part), answer_of!(Settle));
            let answers = parts.map(settle).collect();
            let usages = Self::join(answers).await.into_iter();
            // Other parts may have been settled already.
            let usages: Vec<Usage> = usages
                .collect::<Result<_, _>>()
                .map_err(StoreError::maybe_sent)?;
            let check = settlement.check();
            let (decided_at_ms, rules) = join_usages(check, &slots, &usages);
            Ok(Usage::joined(check, decided_at_ms, rules))
        })
    }

    /// Renews the charges in each slot on their own. They are renewed if all parts are; those of the others that were
    /// renewed can be given back.
    pub(super) fn renew_slots(&self, renewal: Renewal, slots: Slots) -> StoreFuture<Renewed> {
        let store = self.clone();
        StoreFuture::pending(async move {
            let parts = slots.iter().map(|(_, charges)| renewal.pick(charges));
            let renew = |part| store.execute_one(Operation::Renew(part), answer_of!(Renew));
            let answers = Self::join(parts.map(renew).collect()).await.into_iter();
            // Other parts may have been renewed already.
            let renewed: Vec<Renewed> = answers
                .collect::<Result<_, _>>()
                .map_err(StoreError::maybe_sent)?;
            let join = |usage: fn(&Renewed) -> &Usage| {
                let usages: Vec<Usage> = renewed.iter().map(|it| usage(it).clone()).collect();
                let (decided_at_ms, rules) = join_usages(renewal.check(), &slots, &usages);
                Usage::joined(renewal.check(), decided_at_ms, rules)
            };
            let (usage, held) = (join(Renewed::usage), join(Renewed::held));
            Ok(Renewed::joined(&renewed, usage, held))
        })
    }

    /// The slots of the charges that count, if the keys of the check, including shadows, are in several.
    pub(super) fn several_slots(&self, check: &Check) -> Option<Slots> {
        let may_be = self.transport.is_cluster() && check.all_charges().len() > 1;
        (may_be && self.slots_of(check).len() > 1).then(|| self.slots(check))
    }

    fn slots(&self, check: &Check) -> Slots {
        let mut slots = Slots::new();
        for (index, charge) in check.charges().iter().enumerate() {
            let slot = self.slot(charge.policy().name(), charge.key());
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, charges)) => charges.push(index),
                None => slots.push((slot, vec![index])),
            }
        }
        slots
    }

    /// The slots of all keys of a check, including shadows, each once.
    pub(super) fn slots_of(&self, check: &Check) -> Vec<Slot> {
        let mut slots = Vec::new();
        for charge in check.all_charges() {
            let slot = self.slot(charge.policy().name(), charge.key());
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        slots
    }

    /// The slot of an operation; `None` for keys in several.
    pub(super) fn only_slot(&self, operation: &Operation) -> Option<Slot> {
        let check = operation.check();
        let slots = check.filter(|check| check.all_charges().len() > 1);
        match slots.map(|check| self.slots_of(check)).as_deref() {
            None | Some([_]) => self.first_slot(operation),
            Some(_) => None,
        }
    }

    /// The slot of an operation with all keys in one.
    pub(in crate::store::redis) fn first_slot(&self, operation: &Operation) -> Option<Slot> {
        let (policy, key) = match operation {
            Operation::Check(_)
            | Operation::CheckBatch { .. }
            | Operation::Settle(_)
            | Operation::Renew(_) => {
                let first = operation.check()?.all_charges().first()?;
                (first.policy().name(), first.key())
            }
            Operation::Reset { policy, key } => (policy.name(), key),
            Operation::Block { key, .. }
            | Operation::Ban { key, .. }
            | Operation::Unblock { key } => (BLOCKS, key),
            _ => return None,
        };
        Some(self.slot(policy, key))
    }

    pub(super) fn slot(&self, policy: &str, key: &Key) -> Slot {
        Slot::for_key(self.names.name(policy, key))
    }

    /// Starts all at once, and waits for all. If the caller leaves, each continues until the timeout.
    pub(super) fn join<T: Send + 'static>(
        answers: Vec<StoreFuture<T>>,
    ) -> impl Future<Output = Vec<Result<T, StoreError>>> + use<T> {
        let answers = answers.into_iter();
        let tasks: Vec<_> = answers
            .map(|it| tokio::spawn(timeout(PART_TIMEOUT, it)))
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
pub(super) fn join_usages(check: &Check, slots: &Slots, usages: &[Usage]) -> (u64, Vec<RuleUsage>) {
    let mut times = usages.iter().map(Usage::decided_at_ms);
    let decided_at_ms = times.find(|time| *time > 0).unwrap_or(0);
    let mut rules: Vec<&[RuleUsage]> = vec![&[]; check.charges().len()];
    for ((_, charges), usage) in slots.iter().zip(usages) {
        for (index, of_policy) in charges.iter().zip(usage.policies()) {
            rules[*index] = of_policy.rules();
        }
    }
    (decided_at_ms, rules.concat())
}
