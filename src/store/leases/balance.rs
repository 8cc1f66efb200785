//! [`Balance`]: the units of a lease that nobody has spent. Many tasks spend from it without a lock.
//!
//! Tests include this file with the atomics of a model checker, so it knows nothing of the crate.

use super::sync::atomic::{AtomicU64, Ordering};

/// Above any number of units.
const CLOSED: u64 = 1 << 63;

/// Units that can be spent until it is closed. Whoever closes it has what nobody else has.
#[derive(Debug)]
pub(super) struct Balance(AtomicU64);

impl Balance {
    pub(super) fn new(units: u64) -> Self {
        Self(AtomicU64::new(units))
    }

    /// Takes so many units, all or none; answers how many are left.
    pub(super) fn spend(&self, units: u64) -> Option<u64> {
        self.change(|left| left.checked_sub(units))
    }

    /// Puts units back that were spent and not used; answers whether they can be spent again. Once it is closed they
    /// cannot: what was unspent then has been taken, and nothing more may be.
    pub(super) fn put_back(&self, units: u64) -> bool {
        self.change(|left| Some(left + units)).is_some()
    }

    /// Takes all units that are left, for good: from now on nothing can be spent.
    pub(super) fn close(&self) -> u64 {
        match self.0.swap(CLOSED, Ordering::AcqRel) {
            CLOSED => 0,
            left => left,
        }
    }

    /// How many units are left.
    pub(super) fn left(&self) -> u64 {
        match self.0.load(Ordering::Acquire) {
            CLOSED => 0,
            left => left,
        }
    }

    fn change(&self, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut known = self.0.load(Ordering::Acquire);
        loop {
            if known == CLOSED {
                return None;
            }
            let next = change(known)?;
            let exchanged =
                self.0
                    .compare_exchange_weak(known, next, Ordering::AcqRel, Ordering::Acquire);
            match exchanged {
                Ok(_) => return Some(next),
                Err(other) => known = other,
            }
        }
    }
}
