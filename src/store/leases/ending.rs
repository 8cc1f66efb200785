//! [`EndsLeases`]: operations that end leases of an identity in this process.

use std::sync::Arc;

use super::LeasesCore;
use crate::{
    domain::{charge::Charge, operation::Operation, settlement::Settlement},
    store::StoreFuture,
};

/// Ends the leases of some operations: before the call of the store, and when this is dropped, which is after the answer
/// or when the caller has left. Identities may become hot meanwhile.
pub(super) struct EndsLeases {
    core: Arc<LeasesCore>,
    operations: Vec<Operation>,
}

impl EndsLeases {
    pub(super) fn of(core: &Arc<LeasesCore>, operations: &[Operation]) -> Self {
        let ends = |operation: &&Operation| match operation {
            Operation::Block { .. } | Operation::Ban { .. } | Operation::Reset { .. } => true,
            Operation::Settle(settlement) => raised(settlement).next().is_some(),
            _ => false,
        };
        let ending = Self {
            core: Arc::clone(core),
            operations: operations.iter().filter(ends).cloned().collect(),
        };
        ending.end();
        ending
    }

    /// Ends the leases once more when this answer is there.
    pub(super) fn until<T: Send + 'static>(self, answer: StoreFuture<T>) -> StoreFuture<T> {
        if self.operations.is_empty() {
            return answer;
        }
        answer.map(move |it| {
            drop(self);
            it
        })
    }

    fn end(&self) {
        let (table, now) = (&self.core.table, || self.core.now());
        for operation in &self.operations {
            match operation {
                Operation::Block { key, .. } | Operation::Ban { key, .. } => {
                    let all = table.all().into_iter();
                    self.core.end(all.filter(|hot| hot.is_of_key(key)));
                }
                Operation::Settle(settlement) => {
                    let raised = raised(settlement);
                    let leased = raised.filter_map(|it| table.of(it.policy(), it.key()));
                    // The next settlement would end another lease, too.
                    self.core.end(leased.inspect(|hot| hot.pause(now())));
                }
                Operation::Reset { policy, key } => {
                    if let Some(hot) = table.of(policy, key) {
                        hot.forget(now());
                    }
                }
                _ => {}
            }
        }
    }
}

/// The charges that cost more in the end.
fn raised(settlement: &Settlement) -> impl Iterator<Item = &Charge> {
    let charges = settlement.check().charges().iter();
    let costs = charges.zip(settlement.costs());
    costs.filter_map(|(charge, cost)| (*cost > charge.cost()).then_some(charge))
}

impl Drop for EndsLeases {
    fn drop(&mut self) {
        self.end();
    }
}
