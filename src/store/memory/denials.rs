//! The denied identities, in the form that the Redis store uses: a table for each sixth of a minute and of an hour.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{Mutex, PoisonError},
};

use crate::domain::{
    contributors::label,
    denials::{DenialReport, DeniedIdentity, KEPT_IDENTITIES, RequestCounts, Span},
    key::Key,
};

#[derive(Default)]
pub(super) struct DenialTables {
    by_span: Mutex<BTreeMap<Span, Table>>,
    /// Hashes the identities that cannot be shown.
    hasher: RandomState,
}

/// Indexed by the policy's name, or `None` for blocks, and by the identity.
type Table = HashMap<(Option<String>, String), RequestCounts>;

impl DenialTables {
    pub(super) fn report(&self, report: &DenialReport, now_ms: u64) {
        let mut by_span = self.by_span.lock().unwrap_or_else(PoisonError::into_inner);
        by_span.retain(|span, _| span.counts_at(now_ms));
        let spans = Span::both(report.start_ms()).into_iter();
        for span in spans.filter(|it| it.counts_at(now_ms)) {
            let table = by_span.entry(span).or_default();
            for (policy, key, counts) in report.counts() {
                let identity = label::text(key, |key| self.hash(key));
                let policy = policy.map(|it| it.name().to_owned());
                let sum = table.entry((policy, identity)).or_default();
                *sum = sum.plus(counts);
            }
            trim(table);
        }
    }

    pub(super) fn denials(&self, now_ms: u64) -> Vec<DeniedIdentity> {
        let by_span = self.by_span.lock().unwrap_or_else(PoisonError::into_inner);
        let last = |length_ms| {
            let spans = Span::last(length_ms, now_ms);
            let tables = spans.filter_map(|span| by_span.get(&span));
            let rows = tables.flatten();
            rows.map(|((policy, identity), counts)| (policy.clone(), identity.clone(), *counts))
        };
        DeniedIdentity::list(last(Span::OF_MINUTE_MS), last(Span::OF_HOUR_MS))
    }

    /// The hash has no meaning outside of this process.
    fn hash(&self, key: &Key) -> String {
        let [first, second] = [0, 1].map(|half| self.hasher.hash_one((half, key)));
        format!("{first:016x}{second:016x}")
    }
}

/// Keeps the identities with the most denials.
fn trim(table: &mut Table) {
    if table.len() > KEPT_IDENTITIES {
        let mut rows: Vec<_> = table.drain().collect();
        rows.sort_unstable_by_key(|(_, it)| Reverse((it.denied(), it.admitted())));
        table.extend(rows.into_iter().take(KEPT_IDENTITIES));
    }
}
