//! [`Readings`]: what a request has cost so far, by the meter of all policies and by those of single ones.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use crate::domain::rule::MAX_UNITS;

/// More names than a request has policies: a name of its own for each part of a stream must not fill the memory.
const MAX_NAMED: usize = 256;

/// The metered units and 1; 0 if nothing was metered.
#[derive(Debug, Default)]
pub(super) struct Reading(AtomicU64);

/// The readings of a request, which all of its meters and layers share.
#[derive(Clone, Debug, Default)]
pub(in crate::middleware) struct Readings(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    of_all: Reading,
    /// Made when the first policy is named: most requests name none.
    named: OnceLock<Mutex<Vec<Named>>>,
    /// Whether several layers settle these readings, so that none knows all policies.
    is_nested: AtomicBool,
}

type Named = (Cow<'static, str>, Arc<Reading>);

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

impl Readings {
    pub(super) fn of_all(&self) -> &Reading {
        &self.0.of_all
    }

    /// The reading under the policy of this name, which begins when it is first asked for.
    pub(super) fn under(&self, policy: Cow<'static, str>) -> Arc<Reading> {
        let named = self.0.named.get_or_init(Mutex::default);
        let mut named = named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, reading)) = named.iter().find(|(name, _)| *name == policy) {
            return Arc::clone(reading);
        }
        let reading = Arc::<Reading>::default();
        if named.len() < MAX_NAMED {
            named.push((policy, Arc::clone(&reading)));
        }
        reading
    }

    /// The units that were metered under this very policy; `None` if none were.
    pub(super) fn units_under(&self, policy: &str) -> Option<u64> {
        let named = self.0.named.get()?.lock();
        let named = named.unwrap_or_else(PoisonError::into_inner);
        let (_, reading) = named.iter().find(|(name, _)| name == policy)?;
        reading.units()
    }

    /// The policies under which something was metered.
    pub(super) fn names(&self) -> Vec<Cow<'static, str>> {
        let Some(named) = self.0.named.get() else {
            return Vec::new();
        };
        let named = named.lock().unwrap_or_else(PoisonError::into_inner);
        let metered = named
            .iter()
            .filter(|(_, reading)| reading.units().is_some());
        metered.map(|(name, _)| name.clone()).collect()
    }

    /// Notes that another layer settles these readings, too.
    pub(super) fn nest(&self) {
        self.0.is_nested.store(true, Relaxed);
    }

    pub(super) fn is_nested(&self) -> bool {
        self.0.is_nested.load(Relaxed)
    }
}
