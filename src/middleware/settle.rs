use std::{mem, pin::Pin, sync::Arc};

use http::{Response, response::Parts};
use tokio::{runtime::Handle, sync::Semaphore};

use super::Decisions;
use crate::{
    domain::{
        charge::Charge,
        decision::{Decision, Usage},
    },
    limiter::{ActualCost, Limiter},
};

/// More only when thousands of clients leave within one timeout, while the store is slow: then charges stay.
const MAX_IN_BACKGROUND: usize = 1_024;

impl ActualCost {
    /// What the handler has said for the charge's policy, or what was charged if it has said nothing. For
    /// [`RateLimitLayer::settle`](super::RateLimitLayer::settle).
    #[must_use]
    pub fn or_charged(response: &Parts, charge: &Charge) -> u64 {
        let said = response.extensions.get::<Self>();
        said.map_or_else(|| charge.cost(), |cost| cost.under(charge))
    }
}

type CostOf = dyn Fn(&Parts, &Charge) -> u64 + Send + Sync;

/// The future of a settlement, under the limiter's timeout: what is left after it, `None` where it has failed.
pub(super) type Settling = Pin<Box<dyn Future<Output = Option<Usage>> + Send>>;

/// What requests that were admitted finally cost.
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) cost_of: Option<Arc<CostOf>>,
    pub(super) refunds_unanswered: bool,
    /// The places for settlements in the background.
    in_background: Arc<Semaphore>,
}

impl Default for Settle {
    fn default() -> Self {
        Self {
            cost_of: None,
            refunds_unanswered: false,
            in_background: Arc::new(Semaphore::new(MAX_IN_BACKGROUND)),
        }
    }
}

/// A response that waits for its settlement.
pub(super) struct Unsettled<T> {
    pub(super) settling: Settling,
    pub(super) response: T,
    pub(super) admitted: Decisions,
}

impl Settle {
    /// The settlement that a response requires; `None` when it costs what was charged.
    pub(super) fn of_response<B>(
        cost_of: &CostOf,
        limiter: &Limiter,
        response: &mut Response<B>,
        decision: &Decision,
    ) -> Option<Settling> {
        let Decision::Allowed(usage) = decision else {
            return None;
        };
        with_head(response, |head| {
            settling(limiter, usage, |charge| cost_of(head, charge))
        })
    }

    /// Gives back what was charged for a request that has got no response, if that is wanted.
    pub(super) fn unanswered(&self, limiter: &Limiter, decision: &Decision) {
        if self.refunds_unanswered
            && let Decision::Allowed(usage) = decision
            && let Some(settling) = settling(limiter, usage, |_| 0)
        {
            self.in_background(settling);
        }
    }

    /// Carries on with a settlement whose caller has gone; without a runtime, the charge stays.
    pub(super) fn in_background(&self, settling: Settling) {
        let place = Arc::clone(&self.in_background).try_acquire_owned();
        let (Ok(runtime), Ok(place)) = (Handle::try_current(), place) else {
            return;
        };
        runtime.spawn(async move {
            let _place = place;
            settling.await;
        });
    }
}

/// The settlement of what counts and of what shadows charged; `None` when nothing differs.
///
/// What a handler has settled by itself is left as it is.
fn settling(
    limiter: &Limiter,
    usage: &Usage,
    cost_of: impl Fn(&Charge) -> u64,
) -> Option<Settling> {
    let parts = Limiter::changed_parts(usage, cost_of);
    if parts.is_empty() {
        return None;
    }
    let (limiter, usage) = (limiter.clone(), usage.clone());
    Some(Box::pin(async move {
        limiter.settle_parts(&usage, parts).await.ok()
    }))
}

/// Calls back with the head alone: the body's type has no value that could replace it meanwhile.
fn with_head<B, T>(response: &mut Response<B>, look: impl FnOnce(&Parts) -> T) -> T {
    let mut head = Response::new(()).into_parts().0;
    head.status = response.status();
    head.version = response.version();
    mem::swap(&mut head.headers, response.headers_mut());
    mem::swap(&mut head.extensions, response.extensions_mut());
    let seen = look(&head);
    mem::swap(&mut head.headers, response.headers_mut());
    mem::swap(&mut head.extensions, response.extensions_mut());
    seen
}
