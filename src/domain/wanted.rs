//! Bits of one word, which says whether anything is wanted of a decision. Those of a check come from its charges.

/// A policy bans: a denial is a strike.
pub(crate) const BAN: u8 = 1;

/// A charge names a contributor.
pub(crate) const CONTRIBUTORS: u8 = 1 << 1;

/// The limiter has not seen a policy since it published its policies.
pub(crate) const UNSEEN: u8 = 1 << 2;

/// The limiter has an observer.
pub(crate) const OBSERVER: u8 = 1 << 3;

/// The limiter gives notice before a limit.
pub(crate) const NOTICES: u8 = 1 << 4;

/// The limiter counts denials.
pub(crate) const COUNTS: u8 = 1 << 5;

/// The store could not decide a moment ago.
pub(crate) const OUTAGE: u8 = 1 << 6;

/// This process has known a block, or the decision is one.
pub(crate) const BLOCKS: u8 = 1 << 7;

/// The bits that matter to an admission.
pub(crate) const BY_ADMISSIONS: u8 = CONTRIBUTORS | UNSEEN | OBSERVER | NOTICES | OUTAGE | BLOCKS;

/// The bits that matter to a denial.
pub(crate) const BY_DENIALS: u8 = BAN | UNSEEN | OBSERVER | COUNTS | OUTAGE | BLOCKS;
