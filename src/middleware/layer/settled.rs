//! When requests are settled by the heads of their responses, or refunded without one.

use std::sync::Arc;

use http::response::Parts;

use super::RateLimitLayer;
use crate::domain::charge::Charge;
#[cfg(doc)]
use crate::limiter::Limiter;

/// Final costs, by the heads of responses.
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
    /// disconnects, the settlement continues in the background. A response whose request has passed because the store is
    /// late waits for no settlement: its cost is that of the [late answer](crate::limiter#late-answers).
    ///
    /// If you know the cost only at the end of a streaming body, [meter](Self::meter_costs) it. A handler can also
    /// [settle](Limiter::settle) with the [`Decisions`](crate::middleware::Decisions) in the request's extensions; a check
    /// can be settled only once.
    pub fn settle(self, cost: impl Fn(&Parts, &Charge) -> u64 + Send + Sync + 'static) -> Self {
        self.change(|settings| settings.settle.cost_of = Some(Arc::new(cost)))
    }

    /// Refunds requests that get no response: the client disconnected first, or the inner service returned an error or
    /// panicked. By default such requests keep their charge.
    ///
    /// Refunds run in the background. A refund that could not be sent is tried again for a minute; if it fails otherwise,
    /// the charge stays. If the client disconnects before the store has decided, the check is not sent, or the charge is
    /// refunded when the [late answer](crate::limiter#late-answers) comes. The charge stays if that answer is lost with its
    /// connection, or does not come within a minute. A guard of
    /// [`CostMeter::delay_end`](crate::middleware::CostMeter::delay_end) delays the refund, and a metered cost wins over
    /// it.
    ///
    /// **A client that always disconnects early is then never limited**, whatever its requests cost: use this only if
    /// the inner service stops working when its caller is gone.
    pub fn refund_unanswered(self) -> Self {
        self.change(|settings| {
            settings.settle.refunds_unanswered = true;
            let limiter = &mut settings.config.limiter;
            *limiter = limiter.clone().refund_left();
        })
    }
}
