//! Settles admitted requests at the cost of their responses, and refunds those without a response.

use std::{mem, pin::Pin, sync::Arc};

use http::{Response, response::Parts};
use tokio::{runtime::Handle, sync::Semaphore};

use super::{Decisions, Ending, RateLimitLayer};
use crate::{
    domain::{
        charge::Charge,
        decision::{Decision, Usage},
    },
    limiter::{ActualCost, Limiter},
};

/// Reached if more clients disconnect within a timeout while the store is slow, or within a minute while it is away.
/// Further charges then stay. Returned slots and metered costs need no place: at most one comes for each request that
/// was admitted.
const MAX_IN_BACKGROUND: usize = 1_024;

impl ActualCost {
    /// Returns the cost that the handler has set for the charge's policy, or the charged cost by default. Use this with
    /// [`RateLimitLayer::settle`].
    #[must_use]
    pub fn or_charged(response: &Parts, charge: &Charge) -> u64 {
        let said = response.extensions.get::<Self>();
        said.map_or_else(|| charge.cost(), |cost| cost.under(charge))
    }
}

impl<R, E> RateLimitLayer<R, E> {
    /// Sets the final cost of an admitted request, from the head of its response. The layer calls this once for each
    /// charge. The default is the cost charged before.
    ///
    /// ```
    /// # use http::StatusCode;
    /// # use sluicegate::{Charge, MemoryStore, RateLimitLayer};
    /// # let layer = RateLimitLayer::new(MemoryStore::new());
    /// // Count wrong passwords only; other policies of the layer count every request.
    /// let layer = layer.settle(|response: &http::response::Parts, charge: &Charge| {
    ///     match (charge.policy().name(), response.status) {
    ///         ("wrong-passwords", StatusCode::UNAUTHORIZED) => charge.cost(),
    ///         ("wrong-passwords", _) => 0,
    ///         _ => charge.cost(),
    ///     }
    /// });
    /// # let _ = layer;
    /// ```
    ///
    /// The request is charged on arrival and settled after the response, so requests in progress count: out of a
    /// hundred simultaneous password guesses, no more than the limit are served. A caller with as many good requests in
    /// progress may be denied.
    ///
    /// A response waits for its settlement, within the timeout, and its headers show the quota afterwards; if the cost
    /// is unchanged, the store is not called. Charges of [shadows](crate::Policy::shadow) are settled at the same time.
    /// If the settlement fails or times out, the response goes out unchanged and **the charge stays**. If the client
    /// disconnects, the settlement continues in the background, in one of the 1024 places of
    /// [refunds](Self::refund_unanswered).
    ///
    /// If you know the cost only at the end of a streaming body, [settle](Limiter::settle) in the handler, with the
    /// [`Decisions`](super::Decisions) in the request's extensions; a check can be settled only once.
    #[must_use]
    pub fn settle(self, cost: impl Fn(&Parts, &Charge) -> u64 + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.settle.cost_of = Some(Arc::new(cost)))
    }

    /// Refunds requests that get no response: the client disconnected first, or the inner service returned an error or
    /// panicked. By default such requests keep their charge.
    ///
    /// Refunds run in the background, at most 1024 at a time: while all these places are taken, the charges of further
    /// requests stay. Slots need no such place, and are returned all the same. A refund that could not be sent is
    /// tried again for a minute; if it fails otherwise, the charge stays. The charge also stays if the client
    /// disconnects before the store has decided. A guard of [`CostMeter::hold`](super::CostMeter::hold) delays the
    /// refund, and a metered cost wins over it.
    ///
    /// **A client that always disconnects early is then never limited**, whatever its requests cost: use this only if
    /// the inner service stops working when its caller is gone.
    #[must_use]
    pub fn refund_unanswered(self) -> Self {
        self.change(|shared| shared.settle.refunds_unanswered = true)
    }
}

type CostOf = dyn Fn(&Parts, &Charge) -> u64 + Send + Sync;

/// A settlement under the limiter's timeout; resolves to the usage afterwards, or `None` after a failure.
pub(super) type Settling = Pin<Box<dyn Future<Output = Option<Usage>> + Send>>;

/// How admitted requests are settled.
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) cost_of: Option<Arc<CostOf>>,
    pub(super) refunds_unanswered: bool,
    /// Permits for settlements in the background.
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
    pub(super) ending: Option<Ending>,
}

impl Settle {
    /// The settlement that a response requires; `None` if the cost is unchanged.
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

    /// The places of refunds, if the layer refunds requests without a response.
    pub(super) fn refund_places(&self) -> Option<&Arc<Semaphore>> {
        self.refunds_unanswered.then_some(&self.in_background)
    }

    /// Continues a settlement after its caller has gone. Without a runtime, the charge stays.
    pub(super) fn in_background(
        &self,
        limiter: &Limiter,
        settling: impl Future<Output = ()> + Send + 'static,
    ) {
        let place = Arc::clone(&self.in_background).try_acquire_owned();
        let (Ok(runtime), Ok(place)) = (Handle::try_current(), place) else {
            return;
        };
        limiter.in_background(&runtime, async move {
            let _place = place;
            settling.await;
        });
    }
}

/// The settlement of counting charges and of shadows; `None` if the cost is unchanged.
///
/// Checks that a handler has settled are left alone.
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
        limiter.settle_parts(&usage, &parts).await.ok()
    }))
}

/// Lends the head to a closure. A response cannot be split, since its body type has no placeholder value.
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
