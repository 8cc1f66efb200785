//! Slots that a check may have taken although its caller gets no answer: they are returned.

use std::{num::NonZeroU64, time::Duration};

use super::Limiter;
use crate::domain::{check::Check, decision::Decision, error::StoreError};

/// A check that takes slots, from before it is sent until its caller has the decision. If this is dropped earlier,
/// because an observer has panicked or the caller of several tries has left, the slots are returned.
pub(in crate::limiter) struct Unanswered {
    limiter: Limiter,
    /// `None` if there is nothing to return.
    check: Option<Check>,
    asked_at_ms: u64,
    is_local: bool,
    /// Whether the store has admitted the check: otherwise a return may overtake it.
    is_known: bool,
}

impl Unanswered {
    pub(in crate::limiter) fn new(limiter: &Limiter, check: &Check, asked_at_ms: u64) -> Self {
        Self {
            limiter: limiter.clone(),
            check: Some(check.clone()),
            asked_at_ms,
            is_local: false,
            is_known: false,
        }
    }

    /// Sees the answer: after an error, the store may have admitted the check.
    pub(in crate::limiter) fn see(&mut self, answer: Result<&Decision, &StoreError>) {
        match answer {
            Ok(Decision::Allowed(_)) => self.is_known = true,
            Err(error) if !error.is_unsent() => {}
            _ => self.answered(),
        }
    }

    /// Sees a decision, and notes there when its slots were asked for.
    pub(in crate::limiter) fn note(&mut self, decision: &mut Decision) {
        self.see(Ok(decision));
        let asked_at_ms = Some(NonZeroU64::new(self.asked_at_ms).unwrap_or(NonZeroU64::MIN));
        let usage = decision.usage_mut();
        usage.note(|facts| facts.asked_at_ms = asked_at_ms);
        self.is_local = usage.is_local();
    }

    /// The caller has the decision, or the check was denied or not sent.
    pub(in crate::limiter) fn answered(&mut self) {
        self.check = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(check) = self.check.take() {
            let limiter = &self.limiter;
            let known_after = match self.is_known {
                true => Duration::ZERO,
                false => limiter.inner.caller.timeout(),
            };
            limiter.return_unheld(&check, self.is_local, known_after);
        }
    }
}
