#![doc = include_str!("../../../docs/guide/contributors.md")]

use std::fmt;

#[cfg(doc)]
use crate::domain::{charge::Charge, key::Key};

mod contribution;
pub(crate) mod label;
mod span;

pub use contribution::{Contribution, Kept};
pub(crate) use span::Span;

/// How many labels a store keeps for a sixth of a window.
pub(crate) const KEPT_LABELS: usize = 16;

/// The result of [`Limiter::contributors`](crate::Limiter::contributors): the contributors to an account in the
/// current window, the largest first.
#[derive(Clone, Debug, Default)]
pub struct Contributors {
    list: Vec<Contributor>,
    total: u64,
    error: u64,
}

/// One of the [`Contributors`]. `Debug` does not show the label.
#[derive(Clone, PartialEq, Eq)]
pub struct Contributor {
    label: String,
    units: u64,
}

impl Contributors {
    /// Creates the result from the units of each label; units with the same label are added up. For stores.
    ///
    /// `total` is the sum of all contributors, and `error` the largest part of that sum that may belong to one
    /// contributor although it is not in `units`.
    #[must_use]
    pub fn new(units: impl IntoIterator<Item = (String, u64)>, total: u64, error: u64) -> Self {
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
        let known = list
            .iter()
            .fold(0_u64, |sum, it| sum.saturating_add(it.units));
        Self {
            list,
            total: total.max(known),
            // The known units of one contributor cannot be those of another.
            error: error.min(total.saturating_sub(known)),
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

    /// Returns how much too low the listed units of a contributor can be; a contributor that is not listed has at most
    /// this number of units. 0 when the units are exact.
    #[must_use]
    pub const fn error(&self) -> u64 {
        self.error
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

    /// Returns the units that were charged in the window: at least this number, and at most [`Contributors::error`]
    /// more.
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

    #[test]
    fn contributors_are_added_up_and_the_greatest_come_first() {
        let units = [("b", 5), ("a", 3), ("c", 0), ("a", 4)];
        let units = units.map(|(label, units)| (label.to_owned(), units));
        let contributors = Contributors::new(units, 20, 100);
        let list: Vec<_> = contributors
            .iter()
            .map(|contributor| (contributor.label(), contributor.units()))
            .collect();
        assert_eq!(list, [("a", 7), ("b", 5)]);
        assert_eq!((contributors.total(), contributors.error()), (20, 8));
    }

    #[test]
    fn debug_shows_no_label() {
        let units = [("user=alice".to_owned(), 5)];
        let text = format!("{:?}", Contributors::new(units, 5, 0));
        assert!(
            text.contains("user=…: 5") && !text.contains("alice"),
            "{text}"
        );
    }
}
