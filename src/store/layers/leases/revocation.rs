//! [`Revocation`]: ends leases of an identity that is blocked, or whose counts are reset.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Inner, PATIENCE, transfer::Bar};
use crate::{
    domain::{key::Key, operation::Operation},
    store::StoreFuture,
};

/// Ends the leases of an identity twice: when created, before the call of the store; and when dropped, after the store
/// has answered or the caller has left. Leases that are being fetched at that time are returned on arrival.
pub(super) struct Revocation {
    inner: Arc<Inner>,
    key: Key,
    /// Set for a reset. A bar stops fetches, and the reset is sent after all transfers have ended. So each unit was
    /// charged or returned either before the reset or after it.
    bar: Option<Bar>,
}

impl Revocation {
    pub(super) fn of(inner: &Arc<Inner>, operation: &Operation) -> Option<Self> {
        match operation {
            Operation::Reset { policy, key } => {
                Some(Self::new(inner, key, Some(inner.table.bar(policy, key))))
            }
            Operation::Block { key, .. } | Operation::Ban { key, .. } => {
                Some(Self::new(inner, key, None))
            }
            _ => None,
        }
    }

    fn new(inner: &Arc<Inner>, key: &Key, bar: Option<Bar>) -> Self {
        inner.end(key);
        Self {
            inner: Arc::clone(inner),
            key: key.clone(),
            bar,
        }
    }

    /// Calls the store. If a reset has to wait for transfers, does so first.
    pub(super) fn call<T: Send + 'static>(
        revocations: Vec<Self>,
        call: impl FnOnce() -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let bars = || {
            revocations
                .iter()
                .filter_map(|revocation| revocation.bar.as_ref())
        };
        if !bars().any(Bar::must_wait) {
            return call().holding(revocations);
        }
        StoreFuture::pending(async move {
            for revocation in &revocations {
                revocation.transfers_ended().await;
            }
            call().holding(revocations).await
        })
    }

    /// Waits for at most half of the shortest timeout, to leave the other half for the store, whichever limiter calls.
    async fn transfers_ended(&self) {
        let Some(bar) = &self.bar else {
            return;
        };
        let half = Duration::from_millis(self.inner.shortest_timeout_ms() / 2);
        let has_timers = self.inner.runtime().is_some();
        let ended = async || {
            timeout(half.min(PATIENCE), bar.transfers_ended())
                .await
                .is_ok()
        };
        if !has_timers || !ended().await {
            self.inner.forget_fetches(&self.key);
        }
    }
}

impl Drop for Revocation {
    fn drop(&mut self) {
        self.inner.end(&self.key);
    }
}
