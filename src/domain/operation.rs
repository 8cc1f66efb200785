//! [`Operation`] and [`Reply`]: the requests to a store, and the replies.

use crate::domain::{
    block::{Block, BlockRequest},
    check::Check,
    decision::{Decision, Usage},
    key::Key,
    policy::Policy,
    rule::Rule,
    settlement::Settlement,
};

/// A request to a store; one [call](crate::Store::call) can hold several.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Decide a check, and charge it if it is allowed.
    Check(Check),
    /// Decide `count` identical checks, exactly as if they came one after another in one millisecond.
    Fill {
        /// The check.
        check: Check,
        /// The number of identical checks; with 0 the store does nothing.
        count: u16,
    },
    /// Set the final cost of an admitted check.
    Settle(Settlement),
    /// Forget all charges to a key under a policy.
    Reset {
        /// The policy, identified by its name.
        policy: Policy,
        /// The key.
        key: Key,
    },
    /// Block an identity, unless a longer block exists.
    Block {
        /// The identity to block.
        key: Key,
        /// The end of the block, the author and the reason.
        request: BlockRequest,
    },
    /// Block an identity by a [ban](crate::block#bans), if the strikes still reach the limit, and forget the strikes
    /// then.
    Ban {
        /// The identity to block.
        key: Key,
        /// The rule that counts the strikes.
        strikes: Rule,
        /// The end of the block, and the policy that bans.
        request: BlockRequest,
    },
    /// End all blocks of an identity, and forget the strikes.
    Unblock {
        /// The identity to unblock.
        key: Key,
    },
}

#[cfg(feature = "redis")]
impl Operation {
    /// Returns the check that this operation decides or settles.
    pub(crate) fn check(&self) -> Option<&Check> {
        match self {
            Self::Check(check) | Self::Fill { check, .. } => Some(check),
            Self::Settle(settlement) => Some(settlement.check()),
            Self::Reset { .. } | Self::Block { .. } | Self::Ban { .. } | Self::Unblock { .. } => {
                None
            }
        }
    }
}

/// The reply of a store to an [`Operation`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// To [`Operation::Check`].
    Check(Decision),
    /// To [`Operation::Fill`]: a decision for each of its checks, the admitted ones first.
    Fill(Vec<Decision>),
    /// To [`Operation::Settle`]: the usage after the settlement.
    Settle(Usage),
    /// To [`Operation::Reset`].
    Reset,
    /// To [`Operation::Block`]: the block that applies now.
    Block(Block),
    /// To [`Operation::Ban`]: the block that applies now; `None` if there are too few strikes.
    Ban(Option<Block>),
    /// To [`Operation::Unblock`].
    Unblock,
}

impl Reply {
    /// Returns the decision of a check; for a fill, the last one, which is a denial if any check was denied.
    pub(crate) fn last_decision(&self) -> Option<&Decision> {
        match self {
            Self::Check(decision) => Some(decision),
            Self::Fill(decisions) => decisions.last(),
            _ => None,
        }
    }
}

/// Each method returns one kind of reply, or `None` if this is a reply of another kind.
#[cfg(feature = "redis")]
impl Reply {
    pub(crate) fn decision(self) -> Option<Decision> {
        match self {
            Self::Check(decision) => Some(decision),
            _ => None,
        }
    }

    pub(crate) fn usage(self) -> Option<Usage> {
        match self {
            Self::Settle(usage) => Some(usage),
            _ => None,
        }
    }

    pub(crate) fn block(self) -> Option<Block> {
        match self {
            Self::Block(block) => Some(block),
            _ => None,
        }
    }

    pub(crate) fn ban(self) -> Option<Option<Block>> {
        match self {
            Self::Ban(block) => Some(block),
            _ => None,
        }
    }
}
