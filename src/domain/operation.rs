//! [`Operation`] and [`Reply`]: the requests to a store, and the replies.

use crate::domain::{
    block::{Block, BlockRequest, BlockedIdentity},
    check::{Check, CheckBatch},
    decision::{Decision, Usage},
    error::StoreError,
    key::Key,
    policy::Policy,
    published::PublishedPolicy,
    report::{Account, Ranking, Report},
    rule::Rule,
    settlement::Settlement,
    slots::{HeldSlots, Slots},
};

/// One request to a store; one [call](crate::Store::call) can hold several.
///
/// A store answers an operation that it does not know with [`unsupported`](Self::unsupported).
// Hidden ones are those that limiters do without: only this crate knows what they mean.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Decide a check, and charge it if it is allowed.
    Check(Check),
    /// Decide identical checks, exactly as if they came one after another in one millisecond.
    CheckBatch(CheckBatch),
    /// Give each charge of an admitted check its final cost, whatever the limit: take a difference below 0 from the step
    /// that was charged, if that step still counts, and charge one above 0 now, in the step or period of the settlement.
    Settle(Settlement),
    /// Hold those of these [slots](crate::store::Slots) that are held for a window from now.
    Renew(Slots),
    /// Forget these [slots](crate::store::Slots).
    Return(Slots),
    /// Forget all charges to a key under a policy.
    Reset {
        /// The policy, identified by its name.
        policy: Policy,
        /// The key.
        key: Key,
    },
    /// Block an identity, unless it is blocked for longer.
    ///
    /// Checks that [enforce blocks](Check::enforces_blocks) are then answered [`Decision::Blocked`] if one of their
    /// [keys](Check::keys) is blocked at the store's time, with the latest of their blocks.
    Block {
        /// The identity to block.
        key: Key,
        /// The end of the block, the author and the reason.
        request: BlockRequest,
    },
    /// Block an identity by a [ban](crate::block#bans) and forget its strikes, but only if they still reach the limit
    /// of this rule. Keep the strikes if the request says so.
    ///
    /// [Unblocking](Self::Unblock) comes wholly before it, and then there are no strikes, or wholly after it.
    #[doc(hidden)]
    Ban {
        /// The identity to block.
        key: Key,
        /// The rule that counts the strikes.
        strikes: Rule,
        /// The end of the block, and the policy that bans.
        request: BlockRequest,
    },
    /// End all blocks of an identity, and forget the strikes of its [bans](crate::block#bans).
    Unblock {
        /// The identity to unblock.
        key: Key,
    },
    /// List the identities that are blocked now, in no order. The store may have to read all its keys.
    #[doc(hidden)]
    ListBlocks {
        /// The largest number of identities to list.
        most: usize,
    },
    /// Add the counts of a process: units of [contributors](crate::contributors), and [denials](crate::denials) of
    /// identities.
    ///
    /// For each account and span, the store keeps only the labels with the most units. A report that it cannot add is
    /// lost, without harm to the others; the answer is then the first of the errors. No check waits for it.
    #[doc(hidden)]
    Report(Vec<Report>),
    /// Read what is kept of all reports about this account, in the spans that count now.
    #[doc(hidden)]
    Rankings(Account),
    /// Publish these policies beside those of other services, for operators' tools, and keep them for a day; take back those
    /// that a reload has replaced. Without policies it changes nothing: a limiter asks so whether the store publishes any,
    /// and whether to repeat them.
    #[doc(hidden)]
    Publish(Vec<PublishedPolicy>),
}

impl Operation {
    /// The answer of a store that does not know this operation:
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest), and what the store lacks. Nothing was
    /// [sent](StoreError::is_unsent).
    #[must_use]
    pub const fn unsupported(&self) -> StoreError {
        StoreError::invalid_request(match self {
            Self::Block { .. }
            | Self::Ban { .. }
            | Self::Unblock { .. }
            | Self::ListBlocks { .. } => "the store keeps no blocks",
            Self::Report(_) | Self::Rankings(_) => "the store keeps no contributors and no denials",
            Self::Publish(_) => "the store publishes no policies",
            Self::Renew(_) | Self::Return(_) => "the store does not know concurrency rules",
            Self::Check(_) | Self::CheckBatch(_) | Self::Settle(_) | Self::Reset { .. } => {
                "the store does not know this operation"
            }
        })
        .unsent()
    }

    /// The check that it decides or settles; for slots, one that only looks.
    pub(crate) fn check(&self) -> Option<&Check> {
        match self {
            Self::Check(check) => Some(check),
            Self::CheckBatch(batch) => Some(batch.check()),
            Self::Settle(settlement) => Some(settlement.check()),
            Self::Renew(slots) | Self::Return(slots) => Some(slots.check()),
            _ => None,
        }
    }

    /// Whether it is done on the keys of identities, together with others in one step.
    pub(crate) fn is_of_keys(&self) -> bool {
        self.check().is_some() || self.key().is_some()
    }

    /// The key that it resets, blocks, bans or unblocks.
    pub(crate) const fn key(&self) -> Option<&Key> {
        match self {
            Self::Reset { key, .. }
            | Self::Block { key, .. }
            | Self::Ban { key, .. }
            | Self::Unblock { key } => Some(key),
            _ => None,
        }
    }
}

/// The reply of a store to an [`Operation`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// To [`Operation::Check`].
    Check(Decision),
    /// To [`Operation::CheckBatch`]: a decision for each of its checks, the admitted ones first.
    CheckBatch(Vec<Decision>),
    /// To [`Operation::Settle`]: the usage after the settlement.
    Settle(Usage),
    /// To [`Operation::Renew`].
    Renew(HeldSlots),
    /// To [`Operation::Return`].
    Return(HeldSlots),
    /// To [`Operation::Reset`].
    Reset,
    /// To [`Operation::Block`]: the block that applies now.
    Block(Block),
    /// To [`Operation::Ban`]: the ban; `None` if there are too few strikes, or if a block ends no sooner.
    #[doc(hidden)]
    Ban(Option<Block>),
    /// To [`Operation::Unblock`].
    Unblock,
    /// To [`Operation::ListBlocks`].
    #[doc(hidden)]
    ListBlocks(Vec<BlockedIdentity>),
    /// To [`Operation::Report`].
    #[doc(hidden)]
    Report,
    /// To [`Operation::Rankings`], one of each span.
    #[doc(hidden)]
    Rankings(Vec<Ranking>),
    /// To [`Operation::Publish`]: how often the store has connected again, and so may have lost policies.
    #[doc(hidden)]
    Publish(u64),
}

/// Reads the answer from a reply of one kind; `None` from any other reply.
macro_rules! answer_of {
    ($kind:ident) => {
        |reply| match reply {
            $crate::domain::operation::Reply::$kind(answer) => Some(answer),
            _ => None,
        }
    };
}
pub(crate) use answer_of;
