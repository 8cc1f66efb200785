//! [`Table`]: finds the hot identity of a charge.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::hot::{HOT, HotIdentity, is_too_large, span};
use crate::{
    bounded::Sets,
    domain::{charge::Charge, check::Check, key::Key, policy::Policy, rule::millis},
};

/// The maximum number of identities with leases.
const MAX_HOT: usize = 4_096;

/// The maximum number of counted identities: many can become hot at the same time.
const MAX_COUNTED: usize = 8_192;

/// How often an identity was checked in a span.
#[derive(Debug)]
struct Counted {
    span_ends_ms: u64,
    checks: u64,
}

/// The hot identities, in bounded memory.
#[derive(Debug)]
pub(super) struct Table {
    /// Identities that are not hot yet. In a full set, the rarest of the oldest span leaves.
    counts: Sets<Counted>,
    /// By the policy's name and the key. If two have the same hash, the second is never hot.
    hot: Sets<Arc<HotIdentity>>,
}

/// The hot identity of each charge of a check; `None` for a charge that is not hot.
pub(super) type HotOfCheck = SmallVec<[Option<Arc<HotIdentity>>; 1]>;

impl Table {
    pub(super) fn new() -> Self {
        Self {
            counts: Sets::new(MAX_COUNTED),
            hot: Sets::new(MAX_HOT),
        }
    }

    /// The hot identity of a charge, after this check was counted.
    fn find(&self, charge: &Charge, now: impl FnOnce() -> Duration) -> Option<Arc<HotIdentity>> {
        let span = span(charge.policy())?;
        let hash = self.hot.hash((charge.policy().name(), charge.key()));
        if let Some(hot) = self.hot.read(hash, Arc::clone) {
            // That of other rules cools down, and makes room.
            let hot = Some(hot).filter(|hot| hot.is_of(charge))?;
            hot.count(charge.cost());
            return Some(hot);
        }
        if charge.cost() == 0 || is_too_large(charge) {
            return None;
        }
        let now = now();
        if self.count(hash, millis(now), millis(span)) < HOT {
            return None;
        }
        // A full set makes no room: identities leave when they cool down, and until then the store decides about this
        // one.
        let hot = || Arc::new(HotIdentity::new(charge, span, now));
        let hot = self.hot.get_or_insert(hash, hot);
        hot.filter(|hot| hot.is_of(charge))
    }

    /// Counts a check of an identity. Returns the number of its checks in this span.
    fn count(&self, hash: u64, now_ms: u64, span_ms: u64) -> u64 {
        let span_ms = span_ms.max(1);
        let span_ends_ms = now_ms - now_ms % span_ms + span_ms;
        let mut checks = 1;
        let rank = |counted: &Counted| (counted.span_ends_ms, counted.checks);
        self.counts.update(hash, rank, |last| {
            let same = last.filter(|last| last.span_ends_ms == span_ends_ms);
            checks += same.map_or(0, |last| last.checks);
            Some(Counted {
                span_ends_ms,
                checks,
            })
        });
        checks
    }

    /// Counts a check, and returns its hot identities.
    pub(super) fn find_all(&self, check: &Check, now: impl Fn() -> Duration) -> HotOfCheck {
        let charges = check.charges().iter();
        charges.map(|charge| self.find(charge, &now)).collect()
    }

    /// The hot identity of a key under a policy of this name.
    pub(super) fn of(&self, policy: &Policy, key: &Key) -> Option<Arc<HotIdentity>> {
        let hash = self.hot.hash((policy.name(), key));
        self.hot.read(hash, Arc::clone)
    }

    pub(super) fn all(&self) -> Vec<Arc<HotIdentity>> {
        let mut all = Vec::new();
        self.retain(|hot| {
            all.push(Arc::clone(hot));
            true
        });
        all
    }

    /// Drops the identities that do not match. Returns whether any is left.
    pub(super) fn retain(&self, mut is_kept: impl FnMut(&Arc<HotIdentity>) -> bool) -> bool {
        let mut kept = false;
        self.hot.retain(|hot| {
            let is_kept = is_kept(hot);
            kept |= is_kept;
            is_kept
        });
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_is_counted_on_its_own() {
        let table = Table::new();
        let counted = [1, 500, 999, 1_000, 1_999].map(|ms| table.count(7, ms, 1_000));
        assert_eq!(counted, [1, 2, 3, 1, 2]);
    }

    #[test]
    fn a_hot_identity_is_found_among_any_number_of_others() {
        let table = Table::new();
        let hot = table.counts.hash("hot");
        let mut most = 0;
        for other in 0..200_000_u32 {
            let now_ms = u64::from(other) / 100;
            // From older spans.
            table.count(table.counts.hash(other), now_ms, 100);
            if other % 1_000 == 0 {
                most = most.max(table.count(hot, now_ms, 1_000));
            }
        }
        assert!(most >= HOT, "{most}");
    }
}
