//! [`Reading`]: what a request has cost so far.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::domain::rule::MAX_UNITS;

/// The metered units and 1; 0 if nothing was metered.
#[derive(Clone, Debug, Default)]
pub(in crate::middleware) struct Reading(Arc<AtomicU64>);

impl Reading {
    pub(super) fn add(&self, units: u64) {
        let add = |reading: u64| Some(reading.max(1).saturating_add(units).min(MAX_UNITS + 1));
        // It never fails, since `add` always returns a number.
        let _ = self.0.fetch_update(Relaxed, Relaxed, add);
    }

    pub(super) fn set(&self, units: u64) {
        self.0.store(units.min(MAX_UNITS) + 1, Relaxed);
    }

    /// `None` if nothing was metered.
    pub(super) fn units(&self) -> Option<u64> {
        self.0.load(Relaxed).checked_sub(1)
    }
}
