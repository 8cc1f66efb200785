//! [`Other`]: a replay of the whole log under changed policies.

use sluicegate::StoreError;

use super::replay;
use super::replay::Replay;
use super::request::{Mapped, Request};
use crate::Result;

pub(super) struct Other {
    replay: Replay,
    /// The index of the rule that has another limit.
    pub(super) rule: usize,
    /// `None`: the rule is replayed alone, with a limit that hardly ever refuses a request, so that no other rule
    /// refuses one first. The highest use is the lowest limit that refuses nothing.
    pub(super) limit: Option<u64>,
    /// The index of the policy if it is a shadow, because refusals by other shadows do not count here.
    shadow: Option<usize>,
    pub(super) refused: u64,
    /// The highest use of the rules.
    pub(super) peak: u64,
}

impl Other {
    pub(super) fn new(
        policies: Vec<Mapped>,
        capacity: usize,
        (rule, limit): (usize, Option<u64>),
        shadow: Option<usize>,
    ) -> Result<Self> {
        Ok(Self {
            replay: Replay::new(policies, capacity)?,
            rule,
            limit,
            shadow,
            refused: 0,
            peak: 0,
        })
    }

    pub(super) fn take(&mut self, request: &Request) -> Result<(), StoreError> {
        let Some(decision) = self.replay.decide(request)? else {
            return Ok(());
        };
        let shadows = decision.usage().shadow().into_iter();
        let mut refusing = { shadows.flat_map(|it| it.usage().policies()) }.filter(replay::refuses);
        let is_refused = match self.shadow {
            None => !decision.is_allowed(),
            shadow => refusing.any(|usage| self.replay.place(usage.policy()) == shadow),
        };
        self.refused += u64::from(is_refused);
        if self.limit.is_none() {
            let rules = decision.usage().rules();
            let used = rules.map(|it| it.rule().limit() - it.remaining());
            self.peak = used.fold(self.peak, u64::max);
        }
        Ok(())
    }
}
