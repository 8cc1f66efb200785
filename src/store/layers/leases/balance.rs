//! [`Balance`]: the unspent units of a lease. Many tasks spend from a balance without a lock.
//!
//! Tests include this file with the atomics of a model checker, so the file uses nothing else of the crate.

use super::sync::atomic::{AtomicU64, Ordering};

/// The maximum number of units of a lease.
pub(super) const MOST: u64 = CLAIM - 1;

/// One claimed unit. The upper half of the number counts claims, the lower half unspent units.
const CLAIM: u64 = 1 << 31;

/// More than any balance.
const CLOSED: u64 = u64::MAX;

/// Units to spend until the balance is closed. The caller that closes it receives the unspent units.
///
/// A claimed unit counts as unspent, but only its claim can spend it.
#[derive(Debug)]
pub(super) struct Balance(AtomicU64);

impl Balance {
    /// A balance of at most [`MOST`] units.
    pub(super) fn new(units: u64) -> Self {
        Self(AtomicU64::new(units))
    }

    /// Takes this number of unclaimed units, all or none. Returns the number of unspent units afterwards.
    pub(super) fn spend(&self, units: u64) -> Option<u64> {
        self.change(|unspent, claimed| {
            (units <= unspent - claimed).then(|| (unspent - units, claimed))
        })
    }

    /// Claims this number of units, all or none. You [spend](Self::spend_claimed) or [release](Self::release) them
    /// later.
    pub(super) fn claim(&self, units: u64) -> bool {
        let claim =
            |unspent, claimed| (units <= unspent - claimed).then(|| (unspent, claimed + units));
        self.change(claim).is_some()
    }

    /// Takes claimed units. Returns the number of unspent units afterwards, or `None` if the balance has been closed.
    pub(super) fn spend_claimed(&self, units: u64) -> Option<u64> {
        self.change(|unspent, claimed| Some((unspent - units, claimed - units)))
    }

    /// Releases a claim, so that others can spend the units. After closing, there is nothing to release.
    pub(super) fn release(&self, units: u64) {
        self.change(|unspent, claimed| Some((unspent, claimed - units)));
    }

    /// Closes the balance, and takes all unspent units, including claimed ones.
    pub(super) fn close(&self) -> u64 {
        match self.0.swap(CLOSED, Ordering::AcqRel) {
            CLOSED => 0,
            open => open % CLAIM,
        }
    }

    /// The number of unspent units.
    pub(super) fn unspent(&self) -> u64 {
        match self.0.load(Ordering::Acquire) {
            CLOSED => 0,
            open => open % CLAIM,
        }
    }

    /// Whether too few units remain, so that another lease is needed. Claimed units count, since they may be released.
    pub(super) fn is_used_up(&self, units: u64) -> bool {
        match self.0.load(Ordering::Acquire) {
            CLOSED => true,
            open => open < units.min(CLAIM),
        }
    }

    /// Changes unspent and claimed units. Returns the number of unspent units afterwards.
    fn change(&self, change: impl Fn(u64, u64) -> Option<(u64, u64)>) -> Option<u64> {
        let mut known = self.0.load(Ordering::Acquire);
        loop {
            if known == CLOSED {
                return None;
            }
            let (unspent, claimed) = change(known % CLAIM, known / CLAIM)?;
            let next = claimed * CLAIM + unspent;
            let exchanged =
                self.0
                    .compare_exchange_weak(known, next, Ordering::AcqRel, Ordering::Acquire);
            match exchanged {
                Ok(_) => return Some(unspent),
                Err(other) => known = other,
            }
        }
    }
}
