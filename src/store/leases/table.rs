//! [`Table`]: finds the entry of a charge.

use std::sync::Arc;

use super::{
    Entries,
    clock::Clock,
    entry::{Entry, HOT, is_too_large, span},
    hot::HotCounts,
};
use crate::{
    bounded::Sets,
    domain::{charge::Charge, check::Check, key::Key, policy::Policy, rule::millis},
};

/// The maximum number of identities with leases.
const MAX_ENTRIES: usize = 4_096;

/// The hot identities, in bounded memory.
#[derive(Debug)]
pub(super) struct Table {
    counts: HotCounts,
    /// By the policy's name and the key. If two have the same hash, the second is never hot.
    entries: Sets<Arc<Entry>>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            counts: HotCounts::new(),
            entries: Sets::new(MAX_ENTRIES),
        }
    }

    /// The entry of a charge, if it is hot.
    fn get(&self, charge: &Charge) -> Option<Arc<Entry>> {
        span(charge.policy())?;
        self.of(charge.policy(), charge.key())
            .filter(|entry| entry.is_of(charge))
    }

    /// The same, and counts the check. Creates an entry only if `may_lease`.
    pub(super) fn find(
        &self,
        charge: &Charge,
        clock: &Clock,
        may_lease: impl FnOnce() -> bool,
    ) -> Option<Arc<Entry>> {
        let span = span(charge.policy())?;
        let hash = self.entries.hash((charge.policy().name(), charge.key()));
        if let Some(entry) = self.entries.read(hash, Arc::clone) {
            entry.count(charge.cost());
            return entry.is_of(charge).then_some(entry);
        }
        if charge.cost() == 0 || is_too_large(charge) {
            return None;
        }
        let now = clock.now();
        let number = millis(now.monotonic) / millis(span).max(1);
        if self.counts.count(hash, number) < HOT || !may_lease() {
            return None;
        }
        // A full set makes no room: entries leave when they cool down, and until then the store decides about this
        // identity.
        let entry = || Arc::new(Entry::new(charge, span, now));
        let entry = self.entries.get_or_insert(hash, entry)?;
        entry.is_of(charge).then_some(entry)
    }

    /// The entries of a check's charges, without counting it.
    pub(super) fn known(&self, check: &Check) -> Entries {
        check.charges().iter().map(|it| self.get(it)).collect()
    }

    /// The entry of an identity under a policy of this name.
    pub(super) fn of(&self, policy: &Policy, key: &Key) -> Option<Arc<Entry>> {
        let hash = self.entries.hash((policy.name(), key));
        self.entries.read(hash, Arc::clone)
    }

    /// The entries that match, in no particular order.
    pub(super) fn all(&self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<Arc<Entry>> {
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
    pub(super) fn retain(&self, is_kept: impl Fn(&Entry) -> bool) -> bool {
        let mut kept = false;
        self.entries.retain(|entry| {
            let is_kept = is_kept(entry);
            kept |= is_kept;
            is_kept
        });
        kept
    }
}
