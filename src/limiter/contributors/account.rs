//! [`Account`]: what this process knows of the contributors to one account.

use std::sync::Arc;

use super::sketch::{Label, Sketch, Unsent};
use crate::{
    contributors::{Contribution, KEPT_LABELS, Kept, Span},
    key::Key,
    policy::Policy,
};

/// How many spans that are over wait to be told, at most.
const MAX_LATE: usize = 4;

pub(super) struct Account {
    policy: Policy,
    key: Key,
    span: Span,
    sketch: Sketch,
    /// What belongs to spans before this one.
    late: Vec<Contribution>,
    latest_ms: u64,
    /// When it was last used, in flushes.
    pub(super) used: u64,
}

impl Account {
    pub(super) fn new(policy: &Policy, key: &Key, at_ms: u64) -> Self {
        Self {
            policy: policy.clone(),
            key: key.clone(),
            span: Span::at(policy, at_ms),
            sketch: Sketch::default(),
            late: Vec::new(),
            latest_ms: at_ms,
            used: 0,
        }
    }

    pub(super) fn is(&self, policy: &Policy, key: &Key) -> bool {
        self.policy.name() == policy.name() && self.key == *key
    }

    /// Begins anew if what it knows is of a time so far ahead of this one, which is now, that nothing would be added:
    /// the store's clock was ahead.
    pub(super) fn be_at(&mut self, policy: &Policy, now_ms: u64) {
        if self.latest_ms >= Span::at(policy, now_ms).release_ms() {
            let late = std::mem::take(&mut self.late);
            *self = Self {
                late,
                used: self.used,
                ..Self::new(policy, &self.key, now_ms)
            };
        }
    }

    /// Adds units to the span of this time, by the store's clock.
    pub(super) fn add(&mut self, policy: &Policy, label: Label<'_>, at_ms: u64, units: i64) {
        if !self.span.contains(at_ms) {
            let span = Span::at(policy, at_ms);
            if span.start_ms < self.span.start_ms {
                return self.add_late(span, label, units);
            }
            self.end_span();
            self.span = span;
            self.policy = policy.clone();
        }
        self.latest_ms = self.latest_ms.max(at_ms);
        self.sketch.add(label, units);
    }

    /// What the store was not told yet, and marks it as told: the newest span last.
    pub(super) fn take_unsent(&mut self) -> Vec<Contribution> {
        let mut unsent = std::mem::take(&mut self.late);
        for late in &mut unsent {
            late.latest_ms = self.latest_ms;
        }
        let newest = self.sketch.take_unsent();
        unsent.push(self.contribution(newest));
        unsent.retain(|it| !it.is_empty());
        unsent
    }

    /// Notes what the store has kept of what it was told.
    pub(super) fn note<'a>(
        &mut self,
        told: &Contribution,
        labels: impl Iterator<Item = Label<'a>>,
        kept: &Kept,
    ) {
        if told.span == self.span {
            self.sketch.note(labels, kept);
        }
    }

    fn contribution(&self, unsent: Unsent) -> Contribution {
        Contribution {
            policy: self.policy.clone(),
            key: self.key.clone(),
            span: self.span,
            latest_ms: self.latest_ms,
            units: unsent.units,
            total: unsent.total,
            error: unsent.error,
        }
    }

    /// Keeps what was not told for the next flush; of the labels as many as a store would keep.
    fn end_span(&mut self) {
        let unsent = std::mem::take(&mut self.sketch).take_unsent();
        let mut late = self.contribution(unsent);
        late.units
            .sort_unstable_by_key(|(_, units)| std::cmp::Reverse(units.unsigned_abs()));
        late.units.truncate(KEPT_LABELS);
        late.units.shrink_to_fit();
        if !late.is_empty() {
            self.push_late(late);
        }
    }

    /// A request that took long, or was settled late.
    fn add_late(&mut self, span: Span, label: Label<'_>, units: i64) {
        if self.latest_ms >= span.release_ms() {
            return;
        }
        if !self.late.iter().any(|it| it.span == span) {
            let empty = self.contribution(Unsent::default());
            self.push_late(Contribution { span, ..empty });
        }
        let Some(late) = self.late.iter_mut().find(|it| it.span == span) else {
            return;
        };
        late.total = late.total.saturating_add(units);
        let known = late.units.iter_mut().find(|(key, _)| *key == *label.key);
        if let Some((_, sum)) = known {
            *sum = sum.saturating_add(units);
        } else if late.units.len() < KEPT_LABELS {
            late.units.push((Arc::clone(label.key), units));
        }
    }

    fn push_late(&mut self, late: Contribution) {
        if self.late.len() == MAX_LATE {
            self.late.remove(0);
        }
        self.late.push(late);
    }
}
