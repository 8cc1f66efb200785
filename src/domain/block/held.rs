//! [`HeldBlock`]: the block that a store keeps for an identity, with the [`Level`] of the bans that grow.
//!
//! ```text
//!     ├─ ban 1 ─┤ ····· ▏    ├───── ban 2 ─────┤ ··············· ▏   ├─ ban 1 ─┤
//!                     kept until                             kept until
//! ```

use std::num::NonZeroU8;

use super::{Block, BlockDetails, BlockRequest, FOR_EVER_MS};

/// A block and its details. The block may have ended: the level can be kept for longer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct HeldBlock {
    /// The block.
    pub block: Block,
    /// Its reason, author and origin.
    pub details: BlockDetails,
}

/// How many bans that grow an identity has had in a row. Times are in ms since the Unix epoch, by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Level {
    /// It stops at 255.
    pub(crate) number: NonZeroU8,
    /// The end of the last of these bans.
    pub(crate) ends_ms: u64,
    pub(crate) kept_until_ms: u64,
}

impl HeldBlock {
    /// Decides about a request at the store's time `now_ms`. Returns the block in force, and what to keep instead of
    /// `known`, unless nothing changes: if `known` ends no earlier, or if the requested block has ended already.
    pub(crate) fn request(
        known: Option<&Self>,
        request: &BlockRequest,
        now_ms: u64,
    ) -> (Block, Option<Self>) {
        let level = known.and_then(|known| known.details.level);
        let level = level.filter(|level| level.kept_until_ms > now_ms);
        let (block, level) = request.begin(level, now_ms);
        let known = known.map(|known| known.block);
        if let Some(known) = known.filter(|it| it.holds(now_ms) && !block.outlasts(*it)) {
            return (known, None);
        }
        if !block.holds(now_ms) {
            return (block, None);
        }
        let mut details = BlockDetails::clone(&request.details);
        (details.created_ms, details.level) = (Some(now_ms), level);
        (block, Some(Self { block, details }))
    }

    /// The first time at which a store can forget it.
    pub(crate) fn expires_ms(&self) -> u64 {
        let kept_until_ms = self.details.level.map_or(0, |level| level.kept_until_ms);
        kept_until_ms.max(self.block.until_ms)
    }
}

impl BlockRequest {
    /// The block and the level, if the identity has this level now.
    fn begin(&self, level: Option<Level>, now_ms: u64) -> (Block, Option<Level>) {
        let block = Block::begin(self.until, self.by, now_ms);
        let Some((first_ms, last_ms)) = self.times_ms.first().zip(self.times_ms.last()) else {
            return (block, level);
        };
        let begins_ms = block.until_ms.saturating_sub(*first_ms);
        let number = match level {
            None => NonZeroU8::MIN,
            // Its last strike was before that ban ended, so both punish the same denials.
            Some(level) if begins_ms < level.ends_ms => level.number,
            Some(level) => level.number.saturating_add(1),
        };
        let time_ms = self
            .times_ms
            .get(usize::from(number.get() - 1))
            .unwrap_or(last_ms);
        let ends_ms = (begins_ms + time_ms).min(FOR_EVER_MS);
        let kept_until_ms = (ends_ms + time_ms).min(FOR_EVER_MS);
        let level = Level {
            number,
            ends_ms,
            kept_until_ms,
        };
        (Block::new(ends_ms, self.by), Some(level))
    }
}
