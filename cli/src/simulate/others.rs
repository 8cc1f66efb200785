//! Replays under changed policies: [`Variant`] and [`Peak`].

use sluicegate::{Decision, StoreError};

use super::{
    super::error::Result,
    replay::{self, Replay},
    request::{Mapped, Request},
};

/// A replay of the whole log with another limit in one rule.
pub(super) struct Variant {
    replay: Replay,
    /// The index of the changed rule.
    pub(super) rule: usize,
    pub(super) limit: u64,
    /// The index of the policy if it is a shadow, because refusals by other shadows do not count here.
    shadow: Option<usize>,
    pub(super) refused: u64,
}

impl Variant {
    pub(super) fn new(
        policies: Vec<Mapped>,
        capacity: usize,
        rule: usize,
        limit: u64,
        shadow: Option<usize>,
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
        if let Some(decision) = self.replay.decide(request)? {
            self.refused += u64::from(self.is_refused(&decision));
        }
        Ok(())
    }

    fn is_refused(&self, decision: &Decision) -> bool {
        let Some(place) = self.shadow else {
            return !decision.is_allowed();
        };
        let shadows = decision.usage().shadow();
        let shadows = shadows
            .into_iter()
            .flat_map(|decision| decision.usage().policies());
        let mut refusing = shadows.filter(replay::refuses);
        refusing.any(|usage| self.replay.place(usage.policy()) == Some(place))
    }
}

/// The highest use of one rule, replayed alone so that no other rule refuses a request first. This is the lowest limit
/// that refuses nothing.
pub(super) struct Peak {
    replay: Replay,
    /// The index of the rule.
    pub(super) rule: usize,
    pub(super) units: u64,
    /// Whether the limit of the replay was reached, so that the highest use is greater.
    pub(super) is_more: bool,
}

impl Peak {
    pub(super) fn new(policy: Mapped, capacity: usize, rule: usize) -> Result<Self> {
        Ok(Self {
            replay: Replay::new(vec![policy], capacity)?,
            rule,
            units: 0,
            is_more: false,
        })
    }

    pub(super) fn take(&mut self, request: &Request) -> Result<(), StoreError> {
        let decision = self.replay.decide(request)?;
        let usage = decision
            .iter()
            .flat_map(|decision| decision.usage().policies());
        for rule in usage.flat_map(|policy| policy.rules()) {
            self.units = self.units.max(rule.rule().limit() - rule.remaining());
            self.is_more |= rule.is_exceeded();
        }
        Ok(())
    }
}
