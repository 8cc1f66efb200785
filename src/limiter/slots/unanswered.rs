//! Slots that a check may have taken although its caller gets no answer: they are returned.

use super::Limiter;
use crate::clock;
use crate::domain::{check::Check, decision::Decision, error::StoreError};
use crate::store::sent::Sent;

/// A check that takes slots, from before it is sent until its caller has the decision. If this is dropped earlier,
/// because the caller has left or an observer has panicked, the slots are returned.
pub(in crate::limiter) struct Unanswered {
    limiter: Limiter,
    check: Option<Check>,
    asked_at_ms: u64,
    is_local: bool,
    /// The mark of a check that waits to be sent.
    pub(in crate::limiter) sent: Option<Sent>,
}

impl Unanswered {
    pub(in crate::limiter) fn new(limiter: &Limiter, check: &Check) -> Self {
        // The slots may be held outside of this runtime.
        limiter.inner.jobs.background.knows_runtime();
        Self {
            limiter: limiter.clone(),
            check: Some(check.clone()),
            asked_at_ms: clock::now_ms(),
            is_local: false,
            sent: None,
        }
    }

    /// The same for an admission that its caller does not have yet.
    pub(in crate::limiter) fn holding(
        limiter: &Limiter,
        admitted: &Decision,
        check: &Check,
    ) -> Self {
        let mut slots = Self::new(limiter, check);
        slots.is_local = admitted.usage().is_local();
        slots
    }

    /// Sees the store's answer: after an error, the store may have admitted the check. Another decision may follow.
    pub(in crate::limiter) fn see(&mut self, answer: &Result<Decision, StoreError>) {
        match answer {
            Ok(Decision::Allowed(_)) => {}
            Err(error) if !error.is_unsent() => self.give_back(),
            _ => self.answered(),
        }
    }

    /// Notes when the slots of a decision were asked for.
    pub(in crate::limiter) fn note(&mut self, decision: &Decision, check: &Check) {
        let usage = decision.usage();
        usage.asked_at(self.asked_at_ms);
        if usage.is_local() {
            (self.check, self.is_local) = (Some(check.clone()), true);
        }
    }

    /// The caller has the decision, or the check was denied or not sent.
    pub(in crate::limiter) fn answered(&mut self) {
        self.check = None;
    }

    fn give_back(&mut self) {
        let Some(check) = self.check.take() else {
            return;
        };
        if !self.is_local && self.sent.as_ref().is_some_and(Sent::leave) {
            return; // it never was
        }
        let keeper = &self.limiter.inner.jobs.keeper;
        let charges = check.all_charges().iter();
        for charge in charges.filter(|charge| charge.takes_slots()) {
            keeper.give_back(charge, &self.limiter, self.is_local);
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.give_back();
    }
}
