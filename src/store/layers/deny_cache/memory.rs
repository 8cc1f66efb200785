//! [`Memory`]: the cached refusals, and the events that end them.

use std::{collections::hash_map::RandomState, hash::BuildHasher, sync::Arc, time::Duration};

use super::{
    subject::hash_of_check,
    table::{Entry, Table},
    validity::Validity,
};
use crate::{
    domain::{check::Check, decision::Decision, key::Key, policy::Policy, settlement::Settlement},
    store::{Operation, layers::refund_epochs::RefundEpochs},
};

/// Enough that a refund to one identity rarely drops the refusals of another.
const SLOTS: usize = 16_384;

/// The clones of a cache share this.
pub(super) struct Memory {
    hasher: RandomState,
    table: Table,
    refund_epochs: RefundEpochs,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            table: Table::new(),
            refund_epochs: RefundEpochs::new(SLOTS),
        }
    }

    /// See [`RefundEpochs::last`].
    pub(super) fn given_back(&self) -> u64 {
        self.refund_epochs.last()
    }

    /// The cached refusal of a check, and its age in ms.
    pub(super) fn of_check(&self, check: &Check, now: Duration) -> Option<(Decision, u64)> {
        let hash = hash_of_check(&self.hasher, check);
        self.table.read(hash, check, |entry| {
            let mut slots = entry.slots.iter();
            let holds = entry.validity.holds(now)
                && slots.all(|slot| self.refund_epochs.none_since(entry.given_back, *slot));
            holds.then(|| (entry.refusal.clone(), entry.validity.age_ms(now)))
        })
    }

    /// Caches a refusal of this check. Read `given_back` before you send the check.
    pub(super) fn insert(
        &self,
        check: &Check,
        refusal: &Decision,
        validity: Validity,
        given_back: u64,
    ) {
        self.table.insert(Entry {
            hash: hash_of_check(&self.hasher, check),
            check: check.clone(),
            refusal: refusal.clone(),
            validity,
            given_back,
            slots: self.slots_that_end(check, refusal),
        });
    }

    /// The slots of the charges that do not fit, and of the blocks of all keys. Any of these can end the refusal early.
    fn slots_that_end(&self, check: &Check, refusal: &Decision) -> Box<[usize]> {
        let usage = refusal.usage();
        let charges = usage.check().charges().iter().zip(usage.policies());
        let denying = charges
            .filter(|(_, usage)| usage.rules().iter().any(|rule| rule.is_exceeded()))
            .map(|(charge, _)| self.charge_slot(charge.policy(), charge.key()));
        let keys = check.keys().filter(|_| check.enforces_blocks());
        denying
            .chain(keys.map(|key| self.block_slot(key)))
            .collect()
    }

    fn charge_slot(&self, policy: &Policy, key: &Key) -> usize {
        let hash = self.hasher.hash_one((policy.name(), key));
        self.refund_epochs.slot(hash)
    }

    fn block_slot(&self, key: &Key) -> usize {
        self.refund_epochs.slot(self.hasher.hash_one(key))
    }
}

/// The units and blocks that a call gives back or changes. They are recorded on drop: after the store's answer or
/// error, or when the caller has left.
pub(super) struct GivenBack {
    memory: Arc<Memory>,
    slots: Vec<usize>,
}

impl GivenBack {
    pub(super) fn new<'a>(
        memory: &Arc<Memory>,
        operations: impl IntoIterator<Item = &'a Operation>,
    ) -> Self {
        let mut given_back = Self {
            memory: Arc::clone(memory),
            slots: Vec::new(),
        };
        operations
            .into_iter()
            .for_each(|operation| given_back.add(operation));
        given_back
    }

    fn add(&mut self, operation: &Operation) {
        match operation {
            Operation::Settle(settlement) => self.add_settlement(settlement),
            Operation::Reset { policy, key } => {
                self.slots.push(self.memory.charge_slot(policy, key));
            }
            Operation::Block { key, .. }
            | Operation::Ban { key, .. }
            | Operation::Unblock { key } => self.slots.push(self.memory.block_slot(key)),
            _ => {}
        }
    }

    fn add_settlement(&mut self, settlement: &Settlement) {
        let charges = settlement.check().charges().iter();
        for (charge, cost) in charges.zip(settlement.costs()) {
            if *cost < charge.cost() {
                let slot = self.memory.charge_slot(charge.policy(), charge.key());
                self.slots.push(slot);
            }
        }
    }
}

impl Drop for GivenBack {
    fn drop(&mut self) {
        for slot in &self.slots {
            self.memory.refund_epochs.note(*slot);
        }
    }
}
