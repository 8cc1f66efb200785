//! [`Settlement`]: the final costs of an admitted check.

use crate::{
    check::{Check, MAX_CHARGES},
    decision::Usage,
    error::StoreError,
    rule::MAX_UNITS,
};

/// The final cost of each charge of an admitted check.
#[derive(Clone, Debug)]
pub struct Settlement {
    usage: Usage,
    costs: Box<[u64]>,
}

impl Settlement {
    /// Creates the settlement of the check that `usage` came from: one final cost for each of its charges, in the order
    /// of [`Usage::policies`]. A cost above 2^53 − 1 counts as 2^53 − 1.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the number of costs is wrong, or when the
    /// check was denied or has been settled: a second settlement would count its difference twice.
    pub fn new(usage: &Usage, costs: impl IntoIterator<Item = u64>) -> Result<Self, StoreError> {
        let costs: Box<[u64]> = costs
            .into_iter()
            .take(MAX_CHARGES + 1)
            .map(|cost| cost.min(MAX_UNITS))
            .collect();
        if costs.len() != usage.check().charges().len() {
            return Err(StoreError::invalid_request(
                "a settlement must name one cost for each charge of its check",
            ));
        }
        if !usage.take_settlement() {
            return Err(StoreError::invalid_request(
                "a check can be settled once, and only if it was admitted",
            ));
        }
        Ok(Self {
            usage: usage.clone(),
            costs,
        })
    }

    /// What was charged, and into which steps.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The check that is settled; its shadows are settled separately, by their own usage.
    #[must_use]
    pub fn check(&self) -> &Check {
        self.usage.check()
    }

    /// The settlement of the charges at these places.
    #[cfg(feature = "cluster")]
    pub(crate) fn pick(&self, places: &[usize]) -> Self {
        Self {
            usage: self.usage.pick(places),
            costs: places.iter().map(|place| self.costs[*place]).collect(),
        }
    }

    /// The final cost of each charge.
    #[must_use]
    pub const fn costs(&self) -> &[u64] {
        &self.costs
    }
}
