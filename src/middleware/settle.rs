//! Settles admitted requests at the cost of their responses, and refunds those without a response.

use std::sync::Arc;

use http::response::Parts;

use crate::{domain::charge::Charge, limiter::ActualCost};

impl ActualCost {
    /// Returns the cost that the handler has set for the charge's policy, or the charged cost by default. Use this with
    /// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle).
    #[must_use]
    pub fn or_charged(response: &Parts, charge: &Charge) -> u64 {
        let said = response.extensions.get::<Self>();
        said.map_or_else(|| charge.cost(), |cost| cost.under(charge))
    }
}

type CostOf = dyn Fn(&Parts, &Charge) -> u64 + Send + Sync;

/// How admitted requests are settled.
#[derive(Clone, Default)]
pub(super) struct Settle {
    pub(super) cost_of: Option<Arc<CostOf>>,
    pub(super) refunds_unanswered: bool,
}
