//! [`Settlement`]: the final costs of an admitted check.

use crate::domain::{
    charge::Charge,
    check::Check,
    decision::{RuleUsage, Usage},
    error::StoreError,
    rule::MAX_UNITS,
};

/// Later than any time of a store.
const NEVER_MS: u64 = (1 << 48) - 1;

/// The final cost of each charge of an admitted check.
#[derive(Clone, Debug)]
pub struct Settlement {
    usage: Usage,
    /// The charges that have rules.
    check: Check,
    costs: Box<[u64]>,
    takes_back: bool,
}

impl Settlement {
    /// Creates the settlement of the check that `usage` came from. `cost` is called with each charge, and returns the
    /// final cost of that charge. A cost above 2^53 − 1 counts as 2^53 − 1.
    ///
    /// Charges with the same policy and key were added up, and are one charge here. Charges under concurrency policies
    /// keep their cost: slots are [returned](crate::store::Slots) instead.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the check was denied or has been settled:
    /// a second settlement would count the difference twice.
    pub fn new(usage: &Usage, cost: impl Fn(&Charge) -> u64) -> Result<Self, StoreError> {
        Self::of(usage, final_costs(usage, |_, charge| cost(charge)))
    }

    /// Returns `None` when no cost differs from the cost charged, or when the check cannot be settled.
    pub(crate) fn of_change(usage: &Usage, cost: impl Fn(&Charge) -> u64) -> Option<Self> {
        Self::of_changed(usage, final_costs(usage, |_, charge| cost(charge)))
    }

    /// The same with the final cost of each charge, in their order.
    pub(crate) fn of_costs(usage: &Usage, costs: &[u64]) -> Option<Self> {
        let cost = |place, charge: &Charge| costs.get(place).map_or(charge.cost(), |cost| *cost);
        Self::of_changed(usage, final_costs(usage, cost))
    }

    fn of_changed(usage: &Usage, costs: Box<[u64]>) -> Option<Self> {
        let mut both = usage.check().ruled().iter().zip(&costs);
        let is_changed = both.any(|(charge, cost)| charge.cost() != *cost);
        is_changed.then(|| Self::of(usage, costs).ok())?
    }

    fn of(usage: &Usage, costs: Box<[u64]>) -> Result<Self, StoreError> {
        if !usage.take_settlement() {
            return Err(StoreError::invalid_request(
                "a check can be settled once, and only if it was admitted",
            ));
        }
        Ok(Self {
            check: usage.check().ruled_alone(),
            usage: usage.clone(),
            costs,
            takes_back: false,
        })
    }

    /// Takes back an admission that has reached no caller. A [bucket](crate::Rule::bucket) gets the units back less
    /// its refill since the check, which may have given them back already: so it never admits more than promised.
    #[must_use]
    #[doc(hidden)]
    pub fn taking_back(mut self) -> Self {
        self.takes_back = true;
        self
    }

    /// Allows another settlement of the check, since this one was not sent.
    pub(crate) fn give_up(&self) {
        self.usage.return_settlement();
    }

    /// Returns the usage of the check: the charges, and the steps that were charged. The check's shadows are settled
    /// separately, with their own usage.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the check of the charges that have rules; its shadows are settled separately, with their own usage.
    pub(crate) const fn check(&self) -> &Check {
        &self.check
    }

    /// Returns the settlement of the charges at these indexes.
    #[cfg(feature = "cluster")]
    pub(crate) fn pick(&self, places: &[usize]) -> Self {
        Self {
            check: self.check.pick(places),
            usage: self.usage.pick(places),
            costs: places.iter().map(|place| self.costs[*place]).collect(),
            takes_back: self.takes_back,
        }
    }

    /// Returns the end of the step or period from which a lower cost takes units, in ms of the store's clock. For a
    /// bucket, it returns the time of the check if the units are [taken back](Self::taking_back): the refill since then is
    /// subtracted from them. Otherwise it returns a time that never comes, so that nothing is subtracted.
    #[must_use]
    pub fn end_ms(&self, usage: &RuleUsage) -> u64 {
        match usage.rule().refill() {
            None => usage.step_end_ms(),
            Some(_) if self.takes_back => self.usage.decided_at_ms(),
            Some(_) => NEVER_MS,
        }
    }

    /// Returns the final cost of each charge that has rules.
    #[must_use]
    pub const fn costs(&self) -> &[u64] {
        &self.costs
    }
}

fn final_costs(usage: &Usage, cost: impl Fn(usize, &Charge) -> u64) -> Box<[u64]> {
    let charges = usage.check().ruled().iter().enumerate();
    let costs = charges.map(|(place, charge)| match charge.policy().is_concurrency() {
        true => charge.cost(),
        false => cost(place, charge).min(MAX_UNITS),
    });
    costs.collect()
}
