#![doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/blocks.md"))]

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::domain::{rule::ceil_millis, words::words};

mod ban;
mod details;
mod held;
mod stored;

pub use ban::Ban;
#[cfg(feature = "obey")]
pub(crate) use details::MAX_PAUSE;
pub use details::{BlockDetails, BlockRequest};
pub use held::HeldBlock;
pub(crate) use held::Level;

/// Reserved names, under which blocks and strikes are stored: no policy can have such a name.
pub(crate) const BLOCKS: &str = "!block";
pub(crate) const STRIKES: &str = "!strikes";
/// The name of the policy for identities whose blocks are looked up; no store keeps data under this name.
pub(crate) const LOOK_UPS: &str = "!look-ups";

/// In ms since the Unix epoch: the end of a permanent block, and the largest number in six bytes.
const FOR_EVER_MS: u64 = (1 << 48) - 1;

/// The origin of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockedBy {
    /// A person or a program, through [`Limiter::block`](crate::Limiter::block) or the tool.
    Operator,
    /// A policy's [`Ban`].
    Ban,
    /// Another service, which asks us to wait: see [pauses](crate::block#pauses).
    Pause,
}

words!(
    /// Returns one lower-case word: `operator`, `ban`, `pause`.
    BlockedBy: Operator "operator", Ban "ban", Pause "pause"
);

impl BlockedBy {
    /// Returns the byte that is stored.
    pub(crate) const fn code(self) -> u8 {
        self as u8 + 1
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code.checked_sub(1)?)).copied()
    }
}

/// The end of a block. You can pass a `Duration` for [`After`](Self::After), and a `SystemTime` for [`At`](Self::At).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Until {
    /// Block for this long from now, by the store's clock. Fractions of a millisecond are rounded up.
    After(Duration),
    /// Block until this time, rounded up to milliseconds. If the time has passed, the block has no effect.
    At(SystemTime),
    /// Block until someone unblocks the identity.
    Forever,
}

impl Until {
    /// Returns the time until then, by the clock of this process; `None` for a permanent block.
    pub(crate) fn span(self) -> Option<Duration> {
        match self {
            Self::After(span) => Some(span),
            Self::At(time) => Some(time.duration_since(SystemTime::now()).unwrap_or_default()),
            Self::Forever => None,
        }
    }

    /// Returns the time in ms since the Unix epoch, or the time from now in ms.
    pub(crate) fn ms(self) -> UntilMs {
        match self {
            Self::After(span) => UntilMs::After(ceil_millis(span).min(FOR_EVER_MS)),
            Self::At(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                UntilMs::At(ceil_millis(since).min(FOR_EVER_MS))
            }
            Self::Forever => UntilMs::At(FOR_EVER_MS),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UntilMs {
    After(u64),
    At(u64),
}

impl From<Duration> for Until {
    fn from(span: Duration) -> Self {
        Self::After(span)
    }
}

impl From<SystemTime> for Until {
    fn from(time: SystemTime) -> Self {
        Self::At(time)
    }
}

/// A block: the end, and the origin.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// In the stored form, in which a permanent block also has an end.
    pub(crate) until_ms: u64,
    by: BlockedBy,
}

impl Block {
    /// Creates a block until `until_ms`, in ms since the Unix epoch by the store's clock; 2^48 − 1 or more is
    /// permanent. For stores.
    #[must_use]
    pub fn new(until_ms: u64, by: BlockedBy) -> Self {
        let until_ms = until_ms.min(FOR_EVER_MS);
        Self { until_ms, by }
    }

    /// Creates the requested block at the store's time `now_ms`.
    pub(crate) fn begin(until: Until, by: BlockedBy, now_ms: u64) -> Self {
        let until_ms = match until.ms() {
            UntilMs::At(ms) => ms,
            UntilMs::After(ms) => now_ms.saturating_add(ms).min(FOR_EVER_MS),
        };
        Self { until_ms, by }
    }

    /// Returns the end of the block, in ms since the Unix epoch by the store's clock: the first time at which a check
    /// can be admitted. `None` if the block is permanent.
    #[must_use]
    pub const fn until_ms(&self) -> Option<u64> {
        match self.until_ms {
            FOR_EVER_MS.. => None,
            ms => Some(ms),
        }
    }

    /// Returns the origin of the block.
    #[must_use]
    pub const fn source(&self) -> BlockedBy {
        self.by
    }

    /// Returns whether the block applies at this time of the store.
    pub(crate) const fn holds(&self, now_ms: u64) -> bool {
        self.until_ms > now_ms
    }

    /// Returns whether this block ends later.
    pub(crate) const fn outlasts(&self, other: Self) -> bool {
        self.holds(other.until_ms)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.until_ms() {
            Some(ms) => write!(f, "Block({}, until {ms} ms)", self.by.as_str()),
            None => write!(f, "Block({}, for ever)", self.by.as_str()),
        }
    }
}

/// An identity that is blocked, in the form that a store lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedIdentity {
    identity: Box<str>,
    held: HeldBlock,
}

impl BlockedIdentity {
    /// Creates the entry; `identity` is the kind and the value in the stored form. For stores.
    pub(crate) fn new(identity: impl Into<Box<str>>, held: HeldBlock) -> Self {
        let identity = identity.into();
        Self { identity, held }
    }

    /// Returns the identity: the kind and the value, such as `ip=203.0.113.7`. If the value is secret, long or unusual,
    /// it is `#` and a hash, from which you cannot find the value.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the block.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.held.block
    }

    /// Returns the reason, the author and the time of the block.
    #[must_use]
    pub const fn details(&self) -> &BlockDetails {
        &self.held.details
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_never_overflow() {
        assert_eq!(Until::from(Duration::from_nanos(1)).ms(), UntilMs::After(1));
        assert_eq!(
            Until::from(UNIX_EPOCH + Duration::from_micros(1_001)).ms(),
            UntilMs::At(2)
        );
        assert_eq!(
            Until::from(UNIX_EPOCH - Duration::from_secs(1)).ms(),
            UntilMs::At(0)
        );
        let longest = Block::begin(Until::After(Duration::MAX), BlockedBy::Operator, 5);
        assert_eq!(longest.until_ms(), None);
        assert_eq!(
            Block::begin(Until::Forever, BlockedBy::Operator, 5),
            longest
        );
        assert!(longest.holds(u64::MAX >> 17));
    }
}
