//! [`Report`]: the counts of a process in one span. A store adds up the reports of all processes, keeps the labels with
//! the most units, and lists them as a [`Ranking`].

use std::{fmt, slice};

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

    /// Whether it is the same account, whatever the rules of the policy.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Denials, Self::Denials) => true,
            (
                Self::Contributors { policy, key },
                Self::Contributors {
                    policy: by,
                    key: to,
                },
            ) => policy.name() == by.name() && key == to,
            _ => false,
        }
    }

    /// Returns how many labels a store keeps for a span.
    pub(crate) const fn kept(&self) -> usize {
        match self {
            Self::Contributors { .. } => 16,
            Self::Denials => 512,
        }
    }

    /// Returns the rules with windows that count.
    fn rules(&self) -> &[Rule] {
        match self {
            Self::Contributors { policy, .. } => slice::from_ref(longest(policy)),
            Self::Denials => &DENIED_WITHIN,
        }
    }

    /// Returns the spans that count at this time.
    pub(crate) fn spans(&self, now_ms: u64) -> Vec<Span> {
        let spans = |rule| Span::window(rule, now_ms);
        self.rules().iter().flat_map(spans).collect()
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
    pub(crate) key: Key,
}

/// The units of an account since the last report, in the spans of one time: the store adds them. For stores; see
/// [`Operation::Report`](crate::store::Operation::Report).
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Report {
    /// The account that the units are added to.
    pub account: Account,
    /// The units were charged in the spans that contain this time.
    pub(crate) at_ms: u64,
    /// The store's time of the newest decision in this report.
    pub(crate) latest_ms: u64,
    /// The units to add to each label; negative if more were refunded than charged.
    pub(crate) units: Vec<(Label, i64)>,
    /// The units of labels without a name here.
    pub(crate) others: i64,
}

impl Report {
    /// Returns the spans that the units are added to.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> {
        let rules = self.account.rules().iter();
        rules.map(|rule| Span::at(rule, self.at_ms))
    }

    /// Returns how long, in ms, a store still needs the units in this span.
    #[cfg(feature = "redis")]
    pub(crate) const fn expires_in_ms(&self, span: Span) -> u64 {
        let left_ms = span.release_ms().saturating_sub(self.latest_ms);
        // A report is sent within a second, so count that second.
        left_ms.saturating_add(1_000)
    }

    /// Returns the sum of all labels, including those without a name here.
    pub(crate) fn total(&self) -> i64 {
        let units = self.units.iter().map(|(_, units)| *units);
        units.fold(self.others, i64::saturating_add)
    }
}

/// The labels of an account that a store has kept in one span.
#[doc(hidden)]
#[derive(Clone)]
pub struct Ranking {
    pub(crate) span: Span,
    /// The [text](Account::member) of each label, and its units.
    pub(crate) members: Vec<(String, u64)>,
    /// The units of all labels, also of those that the store has not kept.
    pub(crate) total: u64,
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
