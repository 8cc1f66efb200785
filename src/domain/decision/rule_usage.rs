//! [`RuleUsage`]: what is left under one rule.

use std::time::Duration;

use super::Count;
use crate::domain::rule::Rule;

/// What is left under one rule.
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
        // Spared a division, if a step is open.
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

    /// With times moved; `None` (never) and zero stay as they are.
    pub(super) fn moved(mut self, moved: impl Fn(u64) -> u64) -> Self {
        if self.reset_after_ms > 0 {
            self.reset_after_ms = moved(self.reset_after_ms);
        }
        if let Some(ms) = self.denied_ms.filter(|ms| *ms != NEVER_MS) {
            self.denied_ms = Some(moved(ms));
        }
        self
    }

    /// As it is so much later, if nothing else was charged.
    pub(super) fn repeated(mut self, age_ms: u64) -> Self {
        if self.reset_after_ms <= age_ms {
            self.remaining = self.rule.limit();
        }
        self.reset_after_ms = self.reset_after_ms.saturating_sub(age_ms);
        self.denied_ms = match self.denied_ms {
            Some(NEVER_MS) => Some(NEVER_MS),
            // One that others deny for longer than may admit by now.
            ms => ms
                .and_then(|ms| ms.checked_sub(age_ms))
                .filter(|ms| *ms > 0),
        };
        self
    }

    /// The same, so much later and with units that were charged and not used.
    pub(crate) fn later_with_unspent(mut self, age_ms: u64, unspent: u64) -> Self {
        self.remaining = self.remaining.saturating_add(unspent);
        self.moved(|ms| ms.saturating_sub(age_ms).max(1))
    }

    /// The rule.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.rule
    }

    /// The units that still fit.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The time until nothing counts any more, whole milliseconds; zero when nothing does.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_millis(self.reset_after_ms)
    }

    /// Whether this rule denied the check.
    #[must_use]
    pub const fn is_exceeded(&self) -> bool {
        self.denied_ms.is_some()
    }

    /// The time until this rule would admit the same check; `None` when it never would, or does not deny it.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.denied_ms {
            None | Some(NEVER_MS) => None,
            Some(ms) => Some(Duration::from_millis(ms)),
        }
    }

    /// How long it denies the check; `None` if it does not, [`NEVER_MS`] if it always will.
    pub(super) const fn denied_ms(&self) -> Option<u64> {
        self.denied_ms
    }

    /// The end of the step that the check was charged to, in ms of the store's clock. For stores, to settle it there.
    #[must_use]
    pub const fn step_end_ms(&self) -> u64 {
        self.step_end_ms
    }
}

/// How long a rule denies a cost, in ms: `None` when it fits, [`NEVER_MS`] when it can never fit.
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
