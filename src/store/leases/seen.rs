//! [`Seen`]: the leases of a check, as they were before the store was asked.

use std::time::Duration;

use smallvec::SmallVec;

use super::{Entries, table::Table};
use crate::domain::{
    decision::{Decision, Origin},
    operation::{Operation, Reply},
};

/// The entries of a check before the store was asked.
pub(super) struct Seen {
    entries: Entries,
    moves: SmallVec<[u64; 1]>,
}

impl Seen {
    pub(super) fn new(entries: Entries) -> Self {
        let hot = entries.iter().flatten();
        Self {
            moves: hot.map(|it| it.moves()).collect(),
            entries,
        }
    }

    pub(super) fn of(operation: &Operation, table: &Table) -> Self {
        let entries = operation.check().map(|check| table.known(check));
        Self::new(entries.unwrap_or_default())
    }

    /// Learns from the store's decision, and forbids to repeat a denial if units of this process may make the check fit
    /// sooner.
    pub(super) fn decided(&self, decision: &mut Decision, sent: Duration, now: Duration) {
        let usage = decision.usage();
        for (entry, of_policy) in self.entries.iter().zip(usage.policies()) {
            if let Some(entry) = entry {
                entry.learn(of_policy, usage.decided_at_ms(), sent, now);
            }
        }
        self.look_at(decision);
    }

    /// Notes the reply to another operation.
    pub(super) fn note(&self, reply: &mut Reply) {
        if let Some(decision) = reply.last_decision() {
            self.look_at(decision);
        }
    }

    fn look_at(&self, decision: &mut Decision) {
        let mut hot = self.entries.iter().flatten().zip(&self.moves);
        if matches!(decision, Decision::Denied(_))
            && hot.any(|(entry, moves)| entry.may_have_units(*moves))
        {
            decision
                .usage_mut()
                .note(|facts| facts.origin = Origin::StoreWithLeases);
        }
    }
}
