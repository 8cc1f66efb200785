#![doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/contributors.md"))]

use std::fmt;

#[doc(hidden)]
pub use crate::domain::report::{Account, Ranking, Report};
#[cfg(doc)]
use crate::domain::{charge::Charge, key::Key};

pub(crate) mod label;

/// The result of [`Limiter::contributors`](crate::Limiter::contributors): the contributors to an account in the
/// current window, the largest first.
#[derive(Clone, Debug, Default)]
pub struct Contributors {
    list: Vec<Contributor>,
    total: u64,
}

/// One of the [`Contributors`]. `Debug` does not show the label.
#[derive(Clone, PartialEq, Eq)]
pub struct Contributor {
    label: String,
    units: u64,
}

impl Contributors {
    /// Adds up the rankings of the spans of a window.
    pub(crate) fn of(rankings: Vec<Ranking>) -> Self {
        let totals = rankings.iter().map(|it| it.total);
        let total = totals.fold(0, u64::saturating_add);
        let units = rankings.into_iter().flat_map(|it| it.members);
        let mut by_label = std::collections::HashMap::<String, u64>::new();
        for (label, units) in units {
            let sum = by_label.entry(label).or_default();
            *sum = sum.saturating_add(units);
        }
        let list = by_label.into_iter().filter(|(_, units)| *units > 0);
        let mut list: Vec<_> = list
            .map(|(label, units)| Contributor { label, units })
            .collect();
        list.sort_unstable_by(|a, b| (b.units, &a.label).cmp(&(a.units, &b.label)));
        let known = list.iter().map(Contributor::units);
        let known = known.fold(0, u64::saturating_add);
        Self {
            list,
            total: total.max(known),
        }
    }

    /// Returns the known contributors, the largest first.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Contributor> {
        self.list.iter()
    }

    /// Returns the units charged to all contributors together, including those that are not listed.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }
}

impl Contributor {
    /// Returns the label: the kind and the value of the [key](Charge::with_contributor), or a hash of the value; at
    /// most 44 bytes.
    ///
    /// This is data of a client: do not log it or use it in metrics unless you are allowed to.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the units that were charged in the window, as far as they were counted under this label: the others of
    /// the [total](Contributors::total) may be anyone's.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }
}

impl fmt::Debug for Contributor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.label.split('=').next().unwrap_or_default();
        write!(f, "Contributor({kind}=…: {})", self.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{report::Span, rule::Rule};

    fn of<const N: usize>(members: [(&str, u64); N], total: u64) -> Contributors {
        let ranking = |(label, units): (&str, u64)| Ranking {
            span: Span::at(&Rule::per_minute(1), 0),
            members: vec![(label.to_owned(), units)],
            total: total / N as u64,
        };
        Contributors::of(members.map(ranking).into())
    }

    #[test]
    fn contributors_are_added_up_and_the_greatest_come_first() {
        let contributors = of([("b", 5), ("a", 3), ("c", 0), ("a", 4)], 20);
        let list: Vec<_> = contributors
            .iter()
            .map(|contributor| (contributor.label(), contributor.units()))
            .collect();
        assert_eq!(list, [("a", 7), ("b", 5)]);
        assert_eq!(contributors.total(), 20);
    }

    #[test]
    fn debug_shows_no_label() {
        let text = format!("{:?}", of([("user=alice", 5)], 5));
        assert!(
            text.contains("user=…: 5") && !text.contains("alice"),
            "{text}"
        );
    }
}
