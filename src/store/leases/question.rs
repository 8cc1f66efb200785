//! [`Question`]: a check that the store decides, and what its answer says about leases.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Entries, entry::Entry, table::Table};
use crate::{
    domain::{
        decision::{Decision, Origin},
        error::{StoreError, StoreErrorKind},
        operation::{Operation, Reply},
    },
    store::sent::Watch,
};

/// The entries of a check before the store was asked.
pub(super) struct Seen {
    entries: Entries,
    moves: SmallVec<[u64; 1]>,
}

impl Seen {
    pub(super) fn new(entries: Entries) -> Self {
        let all = entries.iter().map(Option::as_ref);
        Self {
            moves: all.map(|it| it.map_or(0, |it| it.moves())).collect(),
            entries,
        }
    }

    fn hot(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().flatten()
    }

    pub(super) fn of(operation: &Operation, table: &Table) -> Self {
        let entries = operation.check().map(|check| table.known(check));
        Self::new(entries.unwrap_or_default())
    }

    /// Forbids to repeat a denial if units of this process may make the check fit sooner.
    fn look_at(&self, decision: &mut Decision) {
        if let Decision::Denied(denial) = decision {
            let charges = self.entries.iter().zip(&self.moves);
            let mut denying = charges.zip(denial.usage().policies()).filter(|(_, usage)| {
                let mut rules = usage.rules().iter();
                rules.any(|rule| rule.is_exceeded())
            });
            let may_fit = |entry: &Arc<Entry>, moves| entry.may_have_units(moves);
            let may_fit =
                denying.any(|((it, moves), _)| it.as_ref().is_some_and(|it| may_fit(it, *moves)));
            drop(denying);
            if may_fit {
                decision
                    .usage_mut()
                    .note(|facts| facts.origin = Origin::StoreWithLeases);
            }
        }
    }

    /// Notes the reply to another operation.
    pub(super) fn note(&self, reply: &mut Reply) {
        if let Some(decision) = reply.last_decision() {
            self.look_at(decision);
        }
    }
}

/// The entries of a check whose caller has not waited for the answer, perhaps since the store hangs.
#[derive(Debug)]
pub(super) struct Left(pub(super) Entries);

impl Watch for Left {
    fn left(&self) {
        self.0.iter().flatten().for_each(|it| it.set_failing(true));
    }
}

/// A check that the store decides.
pub(super) struct Question {
    pub(super) sent: Duration,
    pub(super) seen: Seen,
}

impl Question {
    /// Learns from the store's answer.
    pub(super) fn answered(
        &mut self,
        result: &mut Result<Decision, StoreError>,
        now: impl FnOnce() -> Duration,
    ) {
        let decision = match result {
            Ok(decision) => decision,
            Err(error) => {
                use StoreErrorKind::{Refused, Timeout, Unavailable};
                // An error about one request, such as a value that cannot be read, says nothing about the store.
                let kind = error.kind();
                if matches!(kind, Timeout | Unavailable | Refused) {
                    self.set_failing(true);
                }
                return;
            }
        };
        self.set_failing(false);
        let (usage, now) = (decision.usage(), now());
        for (entry, of_policy) in self.seen.entries.iter().zip(usage.policies()) {
            if let Some(entry) = entry {
                entry.learn(of_policy, usage.decided_at_ms(), self.sent, now);
            }
        }
        self.seen.look_at(decision);
    }

    fn set_failing(&self, is_failing: bool) {
        self.seen.hot().for_each(|it| it.set_failing(is_failing));
    }
}
