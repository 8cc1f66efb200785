//! [`Tally`]: the units of one account, as counted by this process.

use super::sketch::{Sketch, Unsent};
use crate::domain::{
    key::Key,
    policy::Policy,
    report::{Account, Kept, Label, Report, Span},
    rule::Rule,
};

/// How many contributors to an account are counted, and how many denied identities.
const CONTRIBUTORS: usize = 40;
const IDENTITIES: usize = 16;

/// How many finished spans can wait for the next report, and how many labels of each.
const MAX_LATE: usize = 4;
const LATE_LABELS: usize = 16;

/// How long admissions of an identity count after its latest denial.
pub(super) const REMEMBERED_MS: u64 = 3_600_000;

pub(super) struct Tally {
    pub(super) account: Account,
    span: Span,
    sketch: Sketch,
    /// Units of earlier spans.
    late: Vec<Report>,
    latest_ms: u64,
    /// Whether anything was added since the last report.
    has_news: bool,
    /// The number of the flush at its last use.
    pub(super) used: u64,
}

impl Tally {
    pub(super) fn of_contributors(policy: &Policy, key: &Key, rule: &Rule, at_ms: u64) -> Self {
        let (policy, key) = (policy.clone(), key.clone());
        let account = Account::Contributors { policy, key };
        Self::new(account, CONTRIBUTORS, rule, at_ms)
    }

    pub(super) fn of_denials(rule: &Rule, at_ms: u64) -> Self {
        Self::new(Account::Denials, IDENTITIES, rule, at_ms)
    }

    fn new(account: Account, most: usize, rule: &Rule, at_ms: u64) -> Self {
        Self {
            account,
            span: Span::at(rule, at_ms),
            sketch: Sketch::new(most),
            late: Vec::new(),
            latest_ms: at_ms,
            has_news: false,
            used: 0,
        }
    }

    pub(super) const fn has_news(&self) -> bool {
        self.has_news
    }

    /// The hashes of the labels that are counted.
    pub(super) fn hashes(&self) -> &[u64] {
        self.sketch.hashes()
    }

    /// Begins a later span with its first time. Begins again if the store's clock was set back: the tally would be so far
    /// ahead of `now_ms`, the store's time, that nothing counted.
    pub(super) fn be_at(&mut self, rule: &Rule, now_ms: u64) {
        if now_ms >= self.latest_ms {
            self.go_on(rule, now_ms);
        } else if self.latest_ms >= Span::at(rule, now_ms).release_ms() {
            self.sketch.clear();
            (self.span, self.latest_ms) = (Span::at(rule, now_ms), now_ms);
        }
    }

    pub(super) fn knows(&self, hash: u64) -> bool {
        self.sketch.knows(hash)
    }

    /// Adds units to the label with this hash, in the span at this store time.
    pub(super) fn add(
        &mut self,
        rule: &Rule,
        at_ms: u64,
        hash: u64,
        units: i64,
        label: impl FnOnce() -> Label,
    ) {
        self.go_on(rule, at_ms);
        self.has_news = true;
        if self.span.contains(at_ms) {
            self.latest_ms = self.latest_ms.max(at_ms);
            self.sketch.add(hash, units, label);
        } else {
            self.add_late(Span::at(rule, at_ms), label(), units);
        }
    }

    /// Takes all units since the last report, the newest span last, and marks them as reported.
    pub(super) fn take_unsent(&mut self) -> Vec<Report> {
        self.has_news = false;
        let mut unsent = std::mem::take(&mut self.late);
        for late in &mut unsent {
            late.latest_ms = self.latest_ms;
        }
        let newest = self.sketch.take_unsent();
        unsent.push(self.report(self.span, newest));
        unsent.retain(|report| !report.is_empty());
        unsent
    }

    /// Notes how much of a report the store has kept.
    pub(super) fn note(&mut self, sent: &Report, hashes: impl Iterator<Item = u64>, kept: &Kept) {
        if sent.span == self.span {
            self.sketch.note(hashes, kept);
        }
    }

    fn report(&self, span: Span, unsent: Unsent) -> Report {
        Report {
            account: self.account.clone(),
            span,
            latest_ms: self.latest_ms,
            units: unsent.units,
            total: unsent.total,
            error: unsent.error,
        }
    }

    /// Begins a later span with its first time, and keeps the unreported units for the next flush.
    fn go_on(&mut self, rule: &Rule, at_ms: u64) {
        if self.span.contains(at_ms) || at_ms < self.span.start_ms {
            return;
        }
        let mut unsent = self.sketch.take_unsent();
        unsent
            .units
            .sort_unstable_by_key(|(_, units)| std::cmp::Reverse(units.unsigned_abs()));
        unsent.units.truncate(LATE_LABELS);
        unsent.units.shrink_to_fit();
        let late = self.report(self.span, unsent);
        if !late.is_empty() {
            self.push_late(late);
        }
        let ended_ms = self.span.start_ms;
        self.span = Span::at(rule, at_ms);
        match self.account {
            Account::Contributors { .. } => self.sketch.clear(),
            Account::Denials => {
                let oldest_ms = self.span.start_ms.saturating_sub(REMEMBERED_MS);
                self.sketch.go_on(ended_ms, oldest_ms);
            }
        }
    }

    /// Adds units to an earlier span, from a slow request, or as a refund (below 0).
    fn add_late(&mut self, span: Span, label: Label, units: i64) {
        if self.latest_ms >= span.release_ms() {
            return;
        }
        let place = match self.late.iter().position(|late| late.span == span) {
            Some(place) => place,
            None => {
                let empty = self.report(span, Unsent::default());
                self.push_late(empty);
                self.late.len() - 1
            }
        };
        let late = &mut self.late[place];
        late.total = late.total.saturating_add(units);
        if let Some((_, sum)) = late.units.iter_mut().find(|(known, _)| *known == label) {
            *sum = sum.saturating_add(units);
        } else if late.units.len() < LATE_LABELS {
            late.units.push((label, units));
        }
    }

    fn push_late(&mut self, late: Report) {
        if self.late.len() == MAX_LATE {
            self.late.remove(0);
        }
        self.late.push(late);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::report::longest;

    /// Has spans of ten seconds.
    fn policy() -> Policy {
        Policy::parse("api", "1000/1m").unwrap()
    }

    fn user(number: u64) -> Label {
        Label {
            policy: None,
            key: Arc::new(Key::new("user", number.to_string())),
        }
    }

    fn tally() -> Tally {
        let policy = policy();
        let acme = Key::new("account", "acme");
        Tally::of_contributors(&policy, &acme, longest(&policy), 25_000)
    }

    fn add(tally: &mut Tally, policy: &Policy, number: u64, at_ms: u64, units: i64) {
        tally.add(longest(policy), at_ms, number, units, || user(number));
    }

    /// For each span: the start, the sum, and the number of labels.
    fn reported(tally: &mut Tally) -> Vec<(u64, i64, usize)> {
        let unsent = tally.take_unsent().into_iter();
        let reported =
            unsent.map(|report| (report.span.start_ms, report.total, report.units.len()));
        reported.collect()
    }

    #[test]
    fn units_are_reported_under_the_span_that_they_were_charged_in() {
        let mut tally = tally();
        for (at_ms, units) in [
            (25_000, 1),
            (14_000, 2),
            (19_999, 3),
            (29_999, 4),
            (30_000, 5),
        ] {
            add(&mut tally, &policy(), 7, at_ms, units);
        }
        let expected = [(10_000, 5, 1), (20_000, 5, 1), (30_000, 5, 1)];
        assert_eq!(reported(&mut tally), expected);
        assert_eq!(reported(&mut tally), []);
        // Too old to be part of a window.
        add(&mut tally, &policy(), 7, 100_000, 1);
        add(&mut tally, &policy(), 7, 39_999, 1);
        add(&mut tally, &policy(), 7, 40_000, 1);
        let expected = [(40_000, 1, 1), (100_000, 1, 1)];
        assert_eq!(reported(&mut tally), expected);
    }

    #[test]
    fn a_span_that_is_over_names_as_many_labels_as_a_store_keeps() {
        let mut tally = tally();
        for number in 0..30 {
            add(&mut tally, &policy(), number, 15_000, 2);
            add(&mut tally, &policy(), number, 25_000, 1);
        }
        add(&mut tally, &policy(), 0, 30_000, 1);
        let expected = [
            (10_000, 60, LATE_LABELS),
            (20_000, 30, LATE_LABELS),
            (30_000, 1, 1),
        ];
        assert_eq!(reported(&mut tally), expected);
    }

    #[test]
    fn a_policy_with_another_window_begins_a_span_of_its_own() {
        let mut tally = tally();
        add(&mut tally, &policy(), 7, 25_000, 1);
        let longer = Policy::parse("api", "1000/2m").unwrap();
        add(&mut tally, &longer, 7, 31_000, 2);
        let unsent = tally.take_unsent();
        let spans = unsent
            .iter()
            .map(|report| (report.span.start_ms, report.span.length_ms, report.total));
        assert_eq!(
            spans.collect::<Vec<_>>(),
            [(20_000, 10_000, 1), (20_000, 20_000, 2)]
        );
    }

    #[test]
    fn what_the_store_has_dropped_is_reported_again_but_not_of_another_span() {
        let mut tally = tally();
        let kept = |units| Kept {
            units: vec![units],
            floor: 0,
        };
        add(&mut tally, &policy(), 7, 25_000, 5);
        let first = tally.take_unsent().remove(0);
        tally.note(&first, [7].into_iter(), &kept(2));
        assert_eq!(tally.take_unsent()[0].units[0].1, 3);
        add(&mut tally, &policy(), 7, 35_000, 1);
        assert_eq!(reported(&mut tally), [(30_000, 1, 1)]);
        tally.note(&first, [7].into_iter(), &kept(0));
        assert_eq!(reported(&mut tally), []);
    }
}
