//! One call of the store: through the breaker, under the timeout.

use super::{Limiter, breaker::Pass, failing::circuit_open, timeout::WithTimeout};
use crate::{
    check::Check,
    decision::Decision,
    error::StoreError,
    store::{Store, StoreFuture},
};

/// What is to come of a call, and the breaker's leave to make it.
pub(crate) type Asked<T> = (Option<Pass>, StoreFuture<T>);

/// What has come of it.
pub(super) type Answered<T> = (Option<Pass>, Result<T, StoreError>);

impl Limiter {
    /// Whether nobody watches.
    pub(crate) fn is_plain(&self) -> bool {
        self.observer.is_none()
    }

    /// Asks the store, if the breaker lets it be asked; a check of nothing is allowed without asking.
    pub(crate) fn ask(&self, check: &Check) -> Asked<Decision> {
        if check.is_empty() {
            return (None, StoreFuture::ready(Decision::new(check, true, 0, &[])));
        }
        self.through(|store| store.check(check))
    }

    /// Calls the store, if the breaker lets it be called.
    pub(super) fn through<T>(&self, call: impl FnOnce(&dyn Store) -> StoreFuture<T>) -> Asked<T> {
        match self.breaker.pass() {
            Some(pass) => (Some(pass), call(&*self.store)),
            None => (None, StoreFuture::ready(Err(circuit_open()))),
        }
    }

    pub(super) async fn answer<T>(&self, (pass, answer): Asked<T>) -> Answered<T> {
        (pass, self.with_timeout(answer).await)
    }

    pub(crate) const fn with_timeout<T>(&self, answer: StoreFuture<T>) -> WithTimeout<T> {
        WithTimeout::new(answer, self.timeout)
    }
}
