//! A layer that has only what every layer must have, and changes nothing.

use sluicegate::{
    Decision, Store,
    store::{Check, Operation, Reply, StoreFuture},
};

#[derive(Debug)]
pub struct Plain<S>(pub S);

impl<S: Store> Store for Plain<S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.0.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.0.execute(operation)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.0)
    }
}
