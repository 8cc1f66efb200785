//! [`GivenBack`]: ends the denials that units can end which are given back, and wakes the callers that wait for them.

use smallvec::SmallVec;

use super::Limiter;
use crate::domain::charge::Charge;

/// The charges of which a call gives back units. That counts when this is dropped: after the store's answer, or
/// an error, since the store may have done it; or when the caller has left.
pub(super) struct GivenBack<'a> {
    limiter: &'a Limiter,
    charges: SmallVec<[&'a Charge; 1]>,
    slots: usize,
}

impl Limiter {
    /// Notes that a call gives back units of these charges, or at most so many slots of each.
    pub(super) fn giving_back<'a>(
        &'a self,
        charges: impl IntoIterator<Item = &'a Charge>,
        slots: usize,
    ) -> GivenBack<'a> {
        GivenBack {
            limiter: self,
            charges: charges.into_iter().collect(),
            slots,
        }
    }
}

impl Drop for GivenBack<'_> {
    fn drop(&mut self) {
        let shared = &self.limiter.inner.shared;
        for charge in &self.charges {
            let (policy, key) = (charge.policy(), charge.key());
            shared.refusals.end_denials_of((policy.name(), key));
            shared.queues.wake(policy, key, self.slots);
        }
    }
}
