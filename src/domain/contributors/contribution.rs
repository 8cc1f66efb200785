//! [`Contribution`], which the limiter reports to a store, and [`Kept`], the store's reply.

use std::{fmt, sync::Arc, time::Duration};

use super::Span;
use crate::domain::{key::Key, policy::Policy};

/// The contributions to one account in one sixth of a window since the last report: the store adds these differences.
/// For stores; see [`Operation::Contribute`](crate::store::Operation::Contribute).
#[doc(hidden)]
#[derive(Clone)]
pub struct Contribution {
    pub(crate) policy: Policy,
    pub(crate) key: Key,
    pub(crate) span: Span,
    /// The store's time of the newest decision in this report.
    pub(crate) latest_ms: u64,
    pub(crate) units: Vec<(Arc<Key>, i64)>,
    pub(crate) total: i64,
    pub(crate) error: i64,
}

impl Contribution {
    /// Returns the policy of the account.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the key of the account.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns when the sixth of the window begins, in ms since the Unix epoch, by the store's clock.
    #[must_use]
    pub const fn start_ms(&self) -> u64 {
        self.span.start_ms
    }

    /// Returns how long a store still needs the contribution.
    #[must_use]
    pub const fn expires_in(&self) -> Duration {
        let left_ms = self.span.release_ms().saturating_sub(self.latest_ms);
        // A report is sent within a second, so count that second.
        Duration::from_millis(left_ms.saturating_add(1_000))
    }

    /// Returns the contributors, and the units to add to each; negative if more were refunded than charged.
    #[must_use]
    pub fn units(&self) -> impl ExactSizeIterator<Item = (&Key, i64)> {
        self.units.iter().map(|(label, units)| (&**label, *units))
    }

    /// Returns the amount to add to the sum of all contributors, including those without a name here.
    #[must_use]
    pub const fn total(&self) -> i64 {
        self.total
    }

    /// Returns the amount to add to the error: how much too low the units of a contributor may be.
    #[must_use]
    pub const fn error(&self) -> i64 {
        self.error
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.units.is_empty() && self.total == 0 && self.error == 0
    }
}

/// Leaves out the keys: they are data of clients.
impl fmt::Debug for Contribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contribution")
            .field("policy", &self.policy.name())
            .field("start_ms", &self.start_ms())
            .field("labels", &self.units.len())
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

/// The part of a [`Contribution`] that a store has kept.
#[doc(hidden)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub(crate) units: Vec<u64>,
    pub(crate) floor: u64,
}

impl Kept {
    /// Creates the reply. `units` has the units of each label of the contribution after the addition, in the same
    /// order, including those of other processes; 0 for a label that was dropped. `floor` is the number of units below
    /// which a label is not kept, and 0 while there is room.
    #[must_use]
    pub const fn new(units: Vec<u64>, floor: u64) -> Self {
        Self { units, floor }
    }
}
