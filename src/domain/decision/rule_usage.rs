//! [`RuleUsage`]: the usage under one rule.

use std::time::Duration;

use super::Count;
use crate::domain::rule::Rule;

/// The usage under one rule: the remaining units, and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleUsage {
    rule: Rule,
    remaining: u64,
    reset_after_ms: u64,
    step_end_ms: u64,
    denied_ms: Option<u64>,
}

impl RuleUsage {
    pub(super) fn new(rule: Rule, now_ms: u64, count: Count, denied_ms: Option<u64>) -> Self {
        // An open step is the answer, which saves a division.
        let step_end_ms = if count.newest_end_ms > now_ms {
            count.newest_end_ms
        } else {
            rule.step_end_ms(now_ms)
        };
        Self {
            rule,
            remaining: rule.limit().saturating_sub(count.units(&rule)),
            reset_after_ms: count.reset_at_ms(&rule).saturating_sub(now_ms),
            step_end_ms,
            denied_ms,
        }
    }

    /// Returns the usage with changed times; `None` (never) and zero stay unchanged.
    pub(super) fn moved(mut self, moved: impl Fn(u64) -> u64) -> Self {
        if self.reset_after_ms > 0 {
            self.reset_after_ms = moved(self.reset_after_ms);
        }
        if let Some(ms) = self.denied_ms.filter(|ms| *ms != NEVER_MS) {
            self.denied_ms = Some(moved(ms));
        }
        self
    }

    /// Returns the usage with this wait for a slot, if there is none. A slot may be returned at any time.
    pub(super) fn with_slot_wait(mut self, wait_ms: u64) -> Self {
        let waits = self.denied_ms.is_some_and(|ms| ms != NEVER_MS);
        if waits && self.rule.is_concurrency() {
            self.denied_ms = Some(wait_ms);
        }
        self
    }

    /// Returns the usage this much later, if no other check came in between.
    pub(super) fn repeated(mut self, age_ms: u64) -> Self {
        if self.reset_after_ms <= age_ms {
            self.remaining = self.rule.limit();
        }
        self.reset_after_ms = self.reset_after_ms.saturating_sub(age_ms);
        self.denied_ms = match self.denied_ms {
            Some(NEVER_MS) => Some(NEVER_MS),
            // If another rule denies for longer, this one may have room by now.
            ms => ms
                .and_then(|ms| ms.checked_sub(age_ms))
                .filter(|ms| *ms > 0),
        };
        self
    }

    /// Returns the usage this much later, while units count.
    pub(crate) fn later(self, age_ms: u64) -> Self {
        self.moved(|ms| ms.saturating_sub(age_ms).max(1))
    }

    /// Returns the rule.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.rule
    }

    /// Returns the units that still fit.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the time until nothing counts any more, in whole milliseconds; zero when nothing counts now.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_millis(self.reset_after_ms)
    }

    /// Returns whether this rule denied the check.
    #[must_use]
    pub const fn is_exceeded(&self) -> bool {
        self.denied_ms.is_some()
    }

    /// Returns the time until this rule would admit the same check; `None` if the rule never would, or does not deny.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.denied_ms {
            None | Some(NEVER_MS) => None,
            Some(ms) => Some(Duration::from_millis(ms)),
        }
    }

    /// Returns the time of [`reset_after`](Self::reset_after) that clients may see: none for slots, which may be returned
    /// at any time, and none after more than a year.
    pub(crate) fn shown_reset_after(&self) -> Option<Duration> {
        let is_shown = self.rule.shows_times() && !self.rule.is_concurrency();
        is_shown.then(|| self.reset_after())
    }

    /// Returns the time of [`retry_after`](Self::retry_after) that clients may see.
    pub(crate) fn shown_retry_after(&self) -> Option<Duration> {
        self.retry_after().filter(|_| self.rule.shows_times())
    }

    /// Returns how long the rule denies the check, in ms; `None` if it does not, [`NEVER_MS`] if it always will.
    pub(super) const fn denied_ms(&self) -> Option<u64> {
        self.denied_ms
    }

    /// Returns the end of the step that the check was charged to, in ms of the store's clock.
    #[must_use]
    #[doc(hidden)]
    pub const fn step_end_ms(&self) -> u64 {
        self.step_end_ms
    }
}

/// Returns how long a rule denies a cost, in ms: `None` when the cost fits, [`NEVER_MS`] when it can never fit.
pub(super) fn denial_ms(rule: &Rule, cost: u64, now_ms: u64, count: Count) -> Option<u64> {
    match rule.limit().checked_sub(cost) {
        None => Some(NEVER_MS),
        Some(room) if count.units(rule) > room => {
            Some(count.fits_at_ms(rule, cost).saturating_sub(now_ms))
        }
        Some(_) => None,
    }
}

pub(super) const NEVER_MS: u64 = u64::MAX;
