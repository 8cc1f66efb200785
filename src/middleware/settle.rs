//! Settles admitted requests at the cost of their responses, and refunds those without a response.

use std::sync::Arc;

use http::response::Parts;
use tokio::sync::Semaphore;

use crate::{domain::charge::Charge, limiter::ActualCost};

/// Reached if more clients disconnect within a timeout while the store is slow, or within a minute while it is away.
/// Further charges then stay. Returned slots and metered costs need no place: at most one comes for each request that
/// was admitted.
const MAX_IN_BACKGROUND: usize = 1_024;

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
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) cost_of: Option<Arc<CostOf>>,
    pub(super) refunds_unanswered: bool,
    /// Permits for settlements in the background.
    pub(super) places: Arc<Semaphore>,
}

impl Default for Settle {
    fn default() -> Self {
        Self {
            cost_of: None,
            refunds_unanswered: false,
            places: Arc::new(Semaphore::new(MAX_IN_BACKGROUND)),
        }
    }
}
