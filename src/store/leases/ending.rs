//! [`Ending`]: operations that end leases of an identity in this process.

use std::sync::Arc;

use super::{Inner, entry::HotIdentity};
use crate::domain::{key::Key, operation::Operation, policy::Policy};

/// The leases that some operations end: before the call of the store, and when this is dropped, which is after the answer
/// or when the caller has left.
pub(super) struct Ending {
    inner: Arc<Inner>,
    ended: Vec<Arc<HotIdentity>>,
    /// These may become hot meanwhile.
    reset: Vec<(Policy, Key)>,
}

impl Ending {
    /// Ends the leases.
    pub(super) fn of(inner: &Arc<Inner>, operations: &[Operation]) -> Self {
        let mut ending = Self {
            inner: Arc::clone(inner),
            ended: Vec::new(),
            reset: Vec::new(),
        };
        operations.iter().for_each(|it| ending.add(it));
        ending.end();
        ending
    }

    fn add(&mut self, operation: &Operation) {
        let table = &self.inner.table;
        match operation {
            Operation::Block { key, .. } | Operation::Ban { key, .. } => {
                self.ended.extend(table.all(|entry| entry.is_of_key(key)));
            }
            Operation::Settle(settlement) => {
                let charges = settlement.check().charges().iter();
                let costs = charges.zip(settlement.costs());
                let raised = costs.filter(|(charge, cost)| **cost > charge.cost());
                let leased = raised.filter_map(|(it, _)| table.of(it.policy(), it.key()));
                // The next settlement would end another lease, too.
                let paused = leased.inspect(|entry| entry.pause(self.inner.now()));
                self.ended.extend(paused);
            }
            Operation::Reset { policy, key } => self.reset.push((policy.clone(), key.clone())),
            _ => {}
        }
    }

    fn end(&self) {
        let inner = &self.inner;
        inner.give_back(self.ended.iter().filter_map(HotIdentity::end));
        for (policy, key) in &self.reset {
            if let Some(entry) = inner.table.of(policy, key) {
                entry.forget(inner.now());
            }
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end();
    }
}
