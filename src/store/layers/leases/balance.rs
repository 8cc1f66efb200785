//! [`Balance`]: the units of a lease that are not spent. Many tasks spend from it without a lock.
//!
//! Tests include this file with the atomics of a model checker, so it knows nothing of the crate.

use super::sync::atomic::{AtomicU64, Ordering};

/// The most units of a lease.
pub(super) const MOST: u64 = CLAIM - 1;

/// One claimed unit: claims are counted in the upper half, unspent units in the lower.
const CLAIM: u64 = 1 << 31;

/// More than any balance.
const CLOSED: u64 = u64::MAX;

/// Units that can be spent until it is closed: the caller that closes it gets the units that no other has.
///
/// A claimed unit counts as unspent, but only its claim can spend it.
#[derive(Debug)]
pub(super) struct Balance(AtomicU64);

impl Balance {
    /// A balance of at most [`MOST`] units.
    pub(super) fn new(units: u64) -> Self {
        Self(AtomicU64::new(units))
    }

    /// Takes so many units that are not claimed, all or none; answers how many are unspent then.
    pub(super) fn spend(&self, units: u64) -> Option<u64> {
        self.change(|unspent, claimed| {
            (units <= unspent - claimed).then(|| (unspent - units, claimed))
        })
    }

    /// Claims so many units, all or none, to be [spent](Self::spend_claimed) or [released](Self::release) later.
    pub(super) fn claim(&self, units: u64) -> bool {
        let claim =
            |unspent, claimed| (units <= unspent - claimed).then(|| (unspent, claimed + units));
        self.change(claim).is_some()
    }

    /// Takes units that were claimed; answers how many are unspent then. `None` if it was closed since.
    pub(super) fn spend_claimed(&self, units: u64) -> Option<u64> {
        self.change(|unspent, claimed| Some((unspent - units, claimed - units)))
    }

    /// Gives up a claim, so that others can spend the units. If it was closed since, they have been taken already.
    pub(super) fn release(&self, units: u64) {
        self.change(|unspent, claimed| Some((unspent, claimed - units)));
    }

    /// Takes all units that are unspent, claimed ones too, for good: from now on nothing can be spent.
    pub(super) fn close(&self) -> u64 {
        match self.0.swap(CLOSED, Ordering::AcqRel) {
            CLOSED => 0,
            open => open % CLAIM,
        }
    }

    /// How many units are unspent.
    pub(super) fn unspent(&self) -> u64 {
        match self.0.load(Ordering::Acquire) {
            CLOSED => 0,
            open => open % CLAIM,
        }
    }

    /// Whether so few units are left that another lease is needed. Not while some are claimed: they may be released.
    pub(super) fn is_used_up(&self, units: u64) -> bool {
        match self.0.load(Ordering::Acquire) {
            CLOSED => true,
            open => open < units.min(CLAIM),
        }
    }

    /// Changes unspent and claimed units; answers how many are unspent then.
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
