//! Replays under other policies: [`Variant`], and [`Peaks`].

use sluicegate::{Decision, StoreError};

use super::{
    super::error::Result,
    replay::Replay,
    request::{Mapped, Request},
};

/// The whole log with another limit in one rule.
pub(super) struct Variant {
    replay: Replay,
    /// The place of the rule that is changed.
    pub(super) rule: usize,
    pub(super) limit: u64,
    shadow: bool,
    pub(super) refused: u64,
}

impl Variant {
    pub(super) fn new(
        policies: Vec<Mapped>,
        capacity: usize,
        rule: usize,
        limit: u64,
        shadow: bool,
    ) -> Result<Self> {
        Ok(Self {
            replay: Replay::new(policies, capacity)?,
            rule,
            limit,
            shadow,
            refused: 0,
        })
    }

    pub(super) fn take(&mut self, request: &Request) -> Result<(), StoreError> {
        let decision = self.replay.decide(request)?;
        let told = if self.shadow {
            decision.as_ref().and_then(|it| it.usage().shadow())
        } else {
            decision.as_ref()
        };
        self.refused += u64::from(told.is_some_and(|it| !it.is_allowed()));
        Ok(())
    }
}

/// The highest use of each rule when the limits are so high that hardly anybody is refused: the lowest limits under
/// which nobody would have been.
pub(super) struct Peaks {
    replay: Replay,
    /// In the order of policies and rules: the highest use, and whether somebody would have used more.
    pub(super) peaks: Vec<(u64, bool)>,
}

impl Peaks {
    pub(super) fn new(policies: Vec<Mapped>, capacity: usize) -> Result<Self> {
        let rules = policies.iter().map(|it| it.policy.rules().len()).sum();
        Ok(Self {
            replay: Replay::new(policies, capacity)?,
            peaks: vec![(0, false); rules],
        })
    }

    pub(super) fn take(&mut self, request: &Request) -> Result<(), StoreError> {
        if let Some(decision) = self.replay.decide(request)? {
            self.look(&decision);
            if let Some(shadow) = decision.usage().shadow() {
                self.look(shadow);
            }
        }
        Ok(())
    }

    fn look(&mut self, decision: &Decision) {
        for policy in decision.usage().policies() {
            let Some(place) = self.replay.place(policy.policy()) else {
                continue;
            };
            let first = self.replay.policies[place].first_rule;
            for (peak, rule) in self.peaks[first..].iter_mut().zip(policy.rules()) {
                peak.0 = peak.0.max(rule.rule().limit() - rule.remaining());
                peak.1 |= rule.is_exceeded();
            }
        }
    }
}
