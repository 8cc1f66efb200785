//! [`Account`]: the contributors to one account, as counted by this process.

use std::sync::Arc;

use super::sketch::{Label, Sketch, Unsent};
use crate::domain::{
    contributors::{Contribution, KEPT_LABELS, Kept, Span},
    key::Key,
    policy::Policy,
};

/// How many finished spans can wait for the next report.
const MAX_LATE: usize = 4;

pub(super) struct Account {
    policy: Policy,
    key: Key,
    span: Span,
    sketch: Sketch,
    /// Contributions of earlier spans.
    late: Vec<Contribution>,
    latest_ms: u64,
    /// The number of the flush at its last use.
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

    /// Starts over if the store's clock was set back: the account would be so far ahead of `now_ms`, the store's time,
    /// that nothing counted.
    pub(super) fn be_at(&mut self, policy: &Policy, now_ms: u64) {
        if self.latest_ms >= Span::at(policy, now_ms).release_ms() {
            let late = std::mem::take(&mut self.late);
            *self = Self {
                late,
                ..Self::new(policy, &self.key, now_ms)
            };
        }
    }

    /// Adds units to the span at this store time.
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

    /// Takes all contributions since the last report, the newest span last, and marks them as reported.
    pub(super) fn take_unsent(&mut self) -> Vec<Contribution> {
        let mut unsent = std::mem::take(&mut self.late);
        for late in &mut unsent {
            late.latest_ms = self.latest_ms;
        }
        let newest = self.sketch.take_unsent();
        unsent.push(self.contribution(newest));
        unsent.retain(|contribution| !contribution.is_empty());
        unsent
    }

    /// Notes how much of a contribution the store has kept.
    pub(super) fn note<'a>(
        &mut self,
        sent: &Contribution,
        labels: impl Iterator<Item = Label<'a>>,
        kept: &Kept,
    ) {
        if sent.span == self.span {
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

    /// Keeps the unreported contributions for the next flush, with no more labels than a store keeps.
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

    /// Adds units to an earlier span, from a slow request, or as a refund (below 0).
    fn add_late(&mut self, span: Span, label: Label<'_>, units: i64) {
        if self.latest_ms >= span.release_ms() {
            return;
        }
        let place = match self.late.iter().position(|late| late.span == span) {
            Some(place) => place,
            None => {
                let empty = self.contribution(Unsent::default());
                self.push_late(Contribution { span, ..empty });
                self.late.len() - 1
            }
        };
        let late = &mut self.late[place];
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Has spans of ten seconds.
    fn policy() -> Policy {
        Policy::parse("api", "1000/1m").unwrap()
    }

    fn user(number: u64) -> Arc<Key> {
        Arc::new(Key::new("user", number.to_string()))
    }

    fn account() -> Account {
        Account::new(&policy(), &Key::new("account", "acme"), 25_000)
    }

    fn add(account: &mut Account, policy: &Policy, number: u64, at_ms: u64, units: i64) {
        let (key, hash) = (&user(number), number);
        account.add(policy, Label { key, hash }, at_ms, units);
    }

    /// For each span: the start, the sum, and the number of labels.
    fn reported(account: &mut Account) -> Vec<(u64, i64, usize)> {
        let unsent = account.take_unsent().into_iter();
        let reported = unsent.map(|contribution| {
            (
                contribution.start_ms(),
                contribution.total,
                contribution.units.len(),
            )
        });
        reported.collect()
    }

    #[test]
    fn units_are_reported_under_the_span_that_they_were_charged_in() {
        let mut account = account();
        for (at_ms, units) in [
            (25_000, 1),
            (14_000, 2),
            (19_999, 3),
            (29_999, 4),
            (30_000, 5),
        ] {
            add(&mut account, &policy(), 7, at_ms, units);
        }
        let expected = [(10_000, 5, 1), (20_000, 5, 1), (30_000, 5, 1)];
        assert_eq!(reported(&mut account), expected);
        assert_eq!(reported(&mut account), []);
        // Too old to be part of a window.
        add(&mut account, &policy(), 7, 100_000, 1);
        add(&mut account, &policy(), 7, 39_999, 1);
        add(&mut account, &policy(), 7, 40_000, 1);
        let expected = [(40_000, 1, 1), (100_000, 1, 1)];
        assert_eq!(reported(&mut account), expected);
    }

    #[test]
    fn of_a_span_that_is_over_as_many_labels_are_named_as_a_store_keeps() {
        let mut account = account();
        for number in 0..30 {
            add(&mut account, &policy(), number, 15_000, 2);
            add(&mut account, &policy(), number, 25_000, 1);
        }
        add(&mut account, &policy(), 0, 30_000, 1);
        let expected = [
            (10_000, 60, KEPT_LABELS),
            (20_000, 30, KEPT_LABELS),
            (30_000, 1, 1),
        ];
        assert_eq!(reported(&mut account), expected);
    }

    #[test]
    fn a_policy_with_another_window_begins_a_span_of_its_own() {
        let mut account = account();
        add(&mut account, &policy(), 7, 25_000, 1);
        let longer = Policy::parse("api", "1000/2m").unwrap();
        add(&mut account, &longer, 7, 31_000, 2);
        let unsent = account.take_unsent();
        let spans = unsent.iter().map(|contribution| {
            (
                contribution.start_ms(),
                contribution.span.length_ms,
                contribution.total,
            )
        });
        assert_eq!(
            spans.collect::<Vec<_>>(),
            [(20_000, 10_000, 1), (20_000, 20_000, 2)]
        );
    }

    #[test]
    fn what_the_store_has_dropped_is_reported_again_but_not_of_another_span() {
        let mut account = account();
        let kept = |units| Kept::new(vec![units], 0);
        let key = &user(7);
        let label = || [Label { key, hash: 7 }].into_iter();
        add(&mut account, &policy(), 7, 25_000, 5);
        let first = account.take_unsent().remove(0);
        account.note(&first, label(), &kept(2));
        assert_eq!(account.take_unsent()[0].units[0].1, 3);
        add(&mut account, &policy(), 7, 35_000, 1);
        assert_eq!(reported(&mut account), [(30_000, 1, 1)]);
        account.note(&first, label(), &kept(0));
        assert_eq!(reported(&mut account), []);
    }
}
