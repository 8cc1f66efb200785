//! [`Table`]: finds the entry of a charge.

use std::{sync::Arc, time::Duration};

use super::{
    Entries,
    entry::{HOT, HotIdentity, is_too_large, span},
};
use crate::{
    bounded::Sets,
    domain::{charge::Charge, check::Check, key::Key, policy::Policy, rule::millis},
};

/// The maximum number of identities with leases.
const MAX_ENTRIES: usize = 4_096;

/// More than leases, so that many identities can become hot at the same time.
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
    entries: Sets<Arc<HotIdentity>>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            counts: Sets::new(MAX_COUNTED),
            entries: Sets::new(MAX_ENTRIES),
        }
    }

    /// The entry of a charge, if it is hot.
    fn get(&self, charge: &Charge) -> Option<Arc<HotIdentity>> {
        span(charge.policy())?;
        self.of(charge.policy(), charge.key())
            .filter(|entry| entry.is_of(charge))
    }

    /// The same, and counts the check.
    pub(super) fn find(
        &self,
        charge: &Charge,
        now: impl FnOnce() -> Duration,
    ) -> Option<Arc<HotIdentity>> {
        let span = span(charge.policy())?;
        let hash = self.entries.hash((charge.policy().name(), charge.key()));
        if let Some(entry) = self.entries.read(hash, Arc::clone) {
            // That of other rules cools down, and makes room.
            let entry = Some(entry).filter(|entry| entry.is_of(charge));
            return entry.inspect(|entry| entry.count(charge.cost()));
        }
        if charge.cost() == 0 || is_too_large(charge) {
            return None;
        }
        let now = now();
        if self.count(hash, millis(now), millis(span)) < HOT {
            return None;
        }
        // A full set makes no room: entries leave when they cool down, and until then the store decides about this
        // identity.
        let entry = || Arc::new(HotIdentity::new(charge, span, now));
        let entry = self.entries.get_or_insert(hash, entry)?;
        entry.is_of(charge).then_some(entry)
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

    /// The entries of a check's charges, without counting it.
    pub(super) fn known(&self, check: &Check) -> Entries {
        check.charges().iter().map(|it| self.get(it)).collect()
    }

    /// The entry of an identity under a policy of this name.
    pub(super) fn of(&self, policy: &Policy, key: &Key) -> Option<Arc<HotIdentity>> {
        let hash = self.entries.hash((policy.name(), key));
        self.entries.read(hash, Arc::clone)
    }

    /// The entries that match, in no particular order.
    pub(super) fn all(&self, is_wanted: impl Fn(&HotIdentity) -> bool) -> Vec<Arc<HotIdentity>> {
        let mut wanted = Vec::new();
        self.entries.retain(|entry| {
            if is_wanted(entry) {
                wanted.push(Arc::clone(entry));
            }
            true
        });
        wanted
    }

    /// Drops the entries that do not match. Returns whether any is left.
    pub(super) fn retain(&self, is_kept: impl Fn(&HotIdentity) -> bool) -> bool {
        let mut kept = false;
        self.entries.retain(|entry| {
            let is_kept = is_kept(entry);
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
