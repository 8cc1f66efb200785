//! [`Reading`]: what a request costs, as far as its handler has metered it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::domain::rule::MAX_UNITS;

/// The metered units, at most 2^53 − 1.
#[derive(Debug)]
pub(in crate::middleware) struct Reading(AtomicU64);

/// Above every cost.
const NOTHING: u64 = u64::MAX;

impl Default for Reading {
    fn default() -> Self {
        Self(AtomicU64::new(NOTHING))
    }
}

impl Reading {
    pub(super) fn add(&self, units: u64) {
        let add = |reading: u64| {
            let metered = if reading == NOTHING { 0 } else { reading };
            Some(metered.saturating_add(units).min(MAX_UNITS))
        };
        // It never fails, since `add` always returns a number.
        let _ = self.0.fetch_update(Relaxed, Relaxed, add);
    }

    pub(super) fn set(&self, units: u64) {
        self.0.store(units.min(MAX_UNITS), Relaxed);
    }

    /// `None` if nothing was metered.
    pub(super) fn units(&self) -> Option<u64> {
        Some(self.0.load(Relaxed)).filter(|units| *units != NOTHING)
    }
}
