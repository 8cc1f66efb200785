//! [`Operation`] and [`Reply`]: what a store is asked to do, and what it answers.

use crate::domain::{
    block::{Block, BlockRequest},
    check::Check,
    decision::{Decision, Usage},
    key::Key,
    policy::Policy,
    rule::Rule,
    settlement::Settlement,
};

/// One thing that a store is asked to do; one [call](crate::Store::call) can hold several.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Decide a check, and charge it if it is allowed.
    Check(Check),
    /// Decide `count` identical checks, exactly as if they came one after another in one millisecond.
    Fill {
        /// The check that each of them is.
        check: Check,
        /// How many there are; with 0 nothing is done.
        count: u16,
    },
    /// Give an admitted check its final cost.
    Settle(Settlement),
    /// Forget everything that was charged to a key under a policy.
    Reset {
        /// The policy; its name counts.
        policy: Policy,
        /// The key.
        key: Key,
    },
    /// Block an identity, unless it is blocked for longer.
    Block {
        /// Who is blocked.
        key: Key,
        /// Until when, by whom and why.
        request: BlockRequest,
    },
    /// Block an identity by a [ban](crate::block#bans), if its strikes still reach the limit; then they are forgotten.
    Ban {
        /// Who is blocked.
        key: Key,
        /// Counts the strikes.
        strikes: Rule,
        /// Until when, and by which policy.
        request: BlockRequest,
    },
    /// End all blocks of an identity, and forget its strikes.
    Unblock {
        /// Who is no longer blocked.
        key: Key,
    },
}

#[cfg(feature = "redis")]
impl Operation {
    /// The check that it decides or settles.
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

/// What a store answers to an [`Operation`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// To [`Operation::Check`].
    Check(Decision),
    /// To [`Operation::Fill`]: a decision for each of its checks, the admitted ones first.
    Fill(Vec<Decision>),
    /// To [`Operation::Settle`]: what is left after it.
    Settle(Usage),
    /// To [`Operation::Reset`].
    Reset,
    /// To [`Operation::Block`]: the block that holds now.
    Block(Block),
    /// To [`Operation::Ban`]: the block that holds now; `None` if there are too few strikes.
    Ban(Option<Block>),
    /// To [`Operation::Unblock`].
    Unblock,
}

impl Reply {
    /// Of a check; of a fill, one that is refused if any is.
    pub(crate) fn last_decision(&self) -> Option<&Decision> {
        match self {
            Self::Check(decision) => Some(decision),
            Self::Fill(decisions) => decisions.last(),
            _ => None,
        }
    }
}

/// What one operation was asked for; `None` if it is the reply to another.
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
