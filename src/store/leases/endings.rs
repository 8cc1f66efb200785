//! [`Endings`]: operations that end leases of an identity in this process.

use std::sync::Arc;

use tokio::{runtime::Handle, time::timeout};

use super::{
    Inner, RESET_WAITS,
    entry::{Entry, Turn},
};
use crate::{
    domain::{key::Key, operation::Operation, policy::Policy},
    store::StoreFuture,
};

/// The entries whose leases some operations end.
///
/// They end leases before the call of the store, and when this is dropped: after the answer, or when the caller has left.
/// A reset deletes their units. So nothing should be on its way during a reset: it would be unknown whether that came
/// before or after.
pub(super) struct Endings {
    inner: Arc<Inner>,
    ended: Vec<Arc<Entry>>,
    /// These may become hot meanwhile.
    reset: Vec<(Policy, Key)>,
}

impl Endings {
    pub(super) fn of(inner: &Arc<Inner>, operations: &[Operation]) -> Option<Self> {
        let mut endings = Self {
            inner: Arc::clone(inner),
            ended: Vec::new(),
            reset: Vec::new(),
        };
        for operation in operations {
            endings.add(operation);
        }
        if endings.ended.is_empty() && endings.reset.is_empty() {
            return None;
        }
        endings.end();
        Some(endings)
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
                let paused = leased.inspect(|entry| entry.pause(self.inner.clock.now()));
                self.ended.extend(paused);
            }
            Operation::Reset { policy, key } => self.reset.push((policy.clone(), key.clone())),
            _ => {}
        }
    }

    fn end(&self) {
        let unspent = self.ended.iter().filter_map(Entry::end);
        self.inner.give_back(unspent);
    }

    fn reset(&self) -> Vec<Arc<Entry>> {
        let reset = self.reset.iter();
        reset
            .filter_map(|(policy, key)| self.inner.table.of(policy, key))
            .collect()
    }

    /// Calls the store with the operations.
    pub(super) fn call<T: Send + 'static>(
        self,
        call: impl FnOnce() -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let reset = self.reset();
        let turns = reset.iter().map(Entry::take_turn);
        if let Some(turns) = turns.collect::<Option<Vec<Turn>>>() {
            reset.iter().for_each(|entry| entry.forget());
            return call().holding((self, turns));
        }
        let has_timers = Handle::try_current().is_ok();
        StoreFuture::pending(async move {
            let mut turns = Vec::new();
            for entry in &reset {
                if has_timers {
                    turns.push(timeout(RESET_WAITS, entry.wait_for_turn()).await);
                }
                entry.forget();
            }
            call().holding((self, turns)).await
        })
    }
}

impl Drop for Endings {
    fn drop(&mut self) {
        self.reset().iter().for_each(|entry| entry.forget());
        self.end();
    }
}
