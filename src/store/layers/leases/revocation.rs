//! [`Revocation`]: ends leases of an identity that is blocked, whose counts are reset, or which is settled to more.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Inner, PATIENCE, entry::Entry, transfer::Bar};
use crate::{
    domain::{key::Key, operation::Operation},
    store::StoreFuture,
};

/// Ends the leases of an identity twice: when created, before the call of the store; and when dropped, after the store
/// has answered or the caller has left. Leases that are being fetched at that time are returned on arrival.
pub(super) struct Revocation {
    inner: Arc<Inner>,
    target: Target,
    /// Set for a reset. A bar stops fetches, and the reset is sent after all transfers have ended. So each unit was
    /// charged or returned either before the reset or after it.
    bar: Option<Bar>,
}

/// The leases to end.
pub(super) enum Target {
    All(Key),
    /// Of a charge that is settled to more than its cost, perhaps beyond the limit.
    Metered(Arc<Entry>),
}

impl Revocation {
    pub(super) fn of(inner: &Arc<Inner>, operation: &Operation) -> Vec<Self> {
        let all = |key: &Key, bar| vec![Self::new(inner, Target::All(key.clone()), bar)];
        match operation {
            Operation::Reset { policy, key } => all(key, Some(inner.table.bar(policy, key))),
            Operation::Block { key, .. } | Operation::Ban { key, .. } => all(key, None),
            Operation::Settle(settlement) => {
                let charges = settlement.check().charges().iter();
                let costs = charges.zip(settlement.costs());
                let raised = costs.filter(|(charge, cost)| **cost > charge.cost());
                let leased = raised.filter_map(|(charge, _)| inner.table.of(charge));
                let metered = leased.map(Target::Metered);
                metered.map(|it| Self::new(inner, it, None)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn new(inner: &Arc<Inner>, target: Target, bar: Option<Bar>) -> Self {
        inner.end(&target);
        Self {
            inner: Arc::clone(inner),
            target,
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
        let (Some(bar), Target::All(key)) = (&self.bar, &self.target) else {
            return;
        };
        let half = Duration::from_millis(self.inner.shortest_timeout_ms() / 2);
        let has_timers = self.inner.has_timers();
        let ended = async || {
            timeout(half.min(PATIENCE), bar.transfers_ended())
                .await
                .is_ok()
        };
        if !has_timers || !ended().await {
            self.inner.forget_fetches(key);
        }
    }
}

impl Drop for Revocation {
    fn drop(&mut self) {
        self.inner.end(&self.target);
    }
}
