//! Slots that a check takes although its caller has left, or has had its timeout: they are returned at once.

use std::time::Duration;

use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use super::Limiter;
use crate::{
    domain::{
        check::Check,
        decision::Decision,
        error::{StoreError, StoreErrorKind},
    },
    limiter::FOR_EVER,
    store::StoreFuture,
};

/// The decision about a check that takes slots. Dropping it before the caller has it returns them.
struct Unclaimed {
    limiter: Limiter,
    decision: Option<Decision>,
    /// That of the check: the caller may be dropped outside of any.
    runtime: Handle,
}

impl Unclaimed {
    fn claim(mut self) -> Option<Decision> {
        self.decision.take()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(decision) = &self.decision {
            let _within = self.runtime.enter();
            drop(self.limiter.hold(decision));
        }
    }
}

impl Limiter {
    /// Waits for the store's answer in a task, which goes on when the caller leaves. Without a runtime, slots then
    /// expire.
    pub(in crate::limiter) fn claimed(
        &self,
        answer: StoreFuture<Decision>,
        check: &Check,
        asked_at_ms: u64,
    ) -> StoreFuture<Decision> {
        let Ok(runtime) = Handle::try_current() else {
            return answer;
        };
        let (limiter, patience) = (self.clone(), self.patience_for(check));
        answer.relayed(|answer| {
            let (sender, receiver) = oneshot::channel();
            let own_runtime = runtime.clone();
            runtime.spawn(async move {
                let answer = timeout(patience, answer).await.unwrap_or(Err(STOPPED));
                let unclaimed = answer.map(|decision| {
                    decision.usage().asked_at(asked_at_ms);
                    Unclaimed {
                        limiter,
                        decision: Some(decision),
                        runtime: own_runtime,
                    }
                });
                // A decision that is not received is dropped.
                let _ = sender.send(unclaimed);
            });
            async {
                let claimed = receiver.await.unwrap_or(Err(STOPPED))?;
                claimed.claim().ok_or(STOPPED)
            }
        })
    }

    /// Slots that were asked for longer ago have expired.
    fn patience_for(&self, check: &Check) -> Duration {
        let charges = check.all_charges().iter();
        let rules = charges.flat_map(|charge| charge.policy().rules());
        let slots = rules.filter(|rule| rule.is_concurrency());
        let longest = slots.map(|rule| rule.window()).max().unwrap_or_default();
        longest.max(self.inner.timeout).min(FOR_EVER)
    }
}

const STOPPED: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "the runtime stopped while a check was under way",
);
