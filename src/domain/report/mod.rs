//! [`Report`]: the counts of a process in one span. A store adds up the reports of all processes, keeps the labels with
//! the most units, and lists them as a [`Ranking`].

use std::{cmp::Reverse, fmt, sync::Arc};

use crate::domain::{block::BLOCKS, key::Key, policy::Policy, rule::Rule};

mod span;

pub(crate) use span::{Span, longest};

/// Denials are counted in the windows of these rules.
pub(crate) const DENIED_WITHIN: [Rule; 2] = [Rule::per_minute(1), Rule::per_hour(1)];

/// An account that units are added to.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Account {
    /// The contributors to the charges of a key under a policy.
    Contributors {
        /// The policy; its name counts.
        policy: Policy,
        /// The key.
        key: Key,
    },
    /// The identities that were denied, in the last minute and in the last hour.
    Denials,
}

impl Account {
    pub(crate) const fn is_of_denials(&self) -> bool {
        matches!(self, Self::Denials)
    }

    pub(crate) fn is_about(&self, by: &Policy, to: &Key) -> bool {
        match self {
            Self::Contributors { policy, key } => policy.name() == by.name() && key == to,
            Self::Denials => false,
        }
    }

    /// Returns how many labels a store keeps for a span.
    pub(crate) const fn kept(&self) -> usize {
        match self {
            Self::Contributors { .. } => 16,
            Self::Denials => 512,
        }
    }

    /// Returns the spans that count at this time.
    pub(crate) fn spans(&self, now_ms: u64) -> Vec<Span> {
        let spans = |rule| Span::window(rule, now_ms);
        match self {
            Self::Contributors { policy, .. } => spans(longest(policy)).collect(),
            Self::Denials => DENIED_WITHIN.iter().flat_map(spans).collect(),
        }
    }

    /// Returns the text of a label in the store. Pass the text of its key.
    pub(crate) fn member(&self, label: &Label, key: String) -> String {
        match self {
            Self::Contributors { .. } => key,
            Self::Denials => {
                let policy = label.policy.as_ref().map_or(BLOCKS, Policy::name);
                format!("{policy} {key}")
            }
        }
    }
}

/// A contributor, or a denied identity.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Label {
    /// The policy that has denied the identity; `None` for a block, and for a contributor.
    pub(crate) policy: Option<Policy>,
    pub(crate) key: Arc<Key>,
}

/// The units of an account in one span since the last report: the store adds these differences. For stores; see
/// [`Operation::Report`](crate::store::Operation::Report).
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Report {
    /// The account that the units are added to.
    pub account: Account,
    pub(crate) span: Span,
    /// The store's time of the newest decision in this report.
    pub(crate) latest_ms: u64,
    /// The units to add to each label; negative if more were refunded than charged.
    pub(crate) units: Vec<(Label, i64)>,
    /// The amount to add to the sum of all labels, including those without a name here.
    pub(crate) total: i64,
    /// The amount to add to the error: how much too low the units of a label may be.
    pub(crate) error: i64,
}

impl Report {
    /// Returns how long, in ms, a store still needs the report.
    #[cfg(feature = "redis")]
    pub(crate) const fn expires_in_ms(&self) -> u64 {
        let left_ms = self.span.release_ms().saturating_sub(self.latest_ms);
        // A report is sent within a second, so count that second.
        left_ms.saturating_add(1_000)
    }

    /// Adds the units of other labels in this span.
    pub(crate) fn join(&mut self, other: Self) {
        self.latest_ms = self.latest_ms.max(other.latest_ms);
        self.units.extend(other.units);
        self.total = self.total.saturating_add(other.total);
        self.error = self.error.max(other.error);
    }

    /// Leaves out the labels that a store would not keep: those with the fewest units.
    pub(crate) fn trim(&mut self) {
        if self.units.len() > self.account.kept() {
            self.units
                .sort_unstable_by_key(|(_, units)| Reverse(*units));
            self.units.truncate(self.account.kept());
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.units.is_empty() && self.total == 0 && self.error == 0
    }
}

/// The part of a [`Report`] that a store has kept.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The units of each label of the report after the addition, in the same order, including those of other processes;
    /// 0 for a label that was dropped.
    pub(crate) units: Vec<u64>,
    /// The number of units below which a label is not kept, and 0 while there is room.
    pub(crate) floor: u64,
}

/// The labels of an account that a store has kept in one span.
#[doc(hidden)]
#[derive(Clone)]
pub struct Ranking {
    pub(crate) span: Span,
    /// The [text](Account::member) of each label, and its units.
    pub(crate) members: Vec<(String, u64)>,
    pub(crate) total: u64,
    /// How much too low the units of a label can be.
    pub(crate) error: u64,
}

impl Ranking {
    /// Pass the error that was reported.
    pub(crate) fn new(
        account: &Account,
        span: Span,
        members: Vec<(String, u64)>,
        total: u64,
        error: u64,
    ) -> Self {
        // A label that a full set has dropped had no more units than the lowest that is left.
        let floor = members.iter().map(|(_, units)| *units).min();
        let floor = floor.filter(|_| members.len() >= account.kept());
        Self {
            span,
            members,
            total,
            error: error.saturating_add(floor.unwrap_or(0)),
        }
    }
}

/// Leaves out the members: they are data of clients.
impl fmt::Debug for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranking")
            .field("start_ms", &self.span.start_ms)
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}
