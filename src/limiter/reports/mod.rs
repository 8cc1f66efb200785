//! Contributors and denials, counted in this process by [`Counts`] and reported to the store.
//!
//! ```text
//!  decision ──▶ tally of its account ──▶ sketch        on the request's path: a lock, no waiting
//!                   │
//!                reporter, once a second ──▶ Operation::Report ──▶ what was kept ──▶ sketch
//! ```

mod counts;
mod hash;
mod sketch;
mod tally;

use std::sync::Arc;

use super::reporter::Reports;
use crate::domain::{
    charge::Charge,
    check::Check,
    decision::{Decision, Usage},
    settlement::Settlement,
};
pub(super) use counts::Counts;

impl Reports {
    /// Counts the final outcome of a request for the list of denials.
    pub(super) fn count(self: &Arc<Self>, decision: &Decision) {
        if self.counts.count(decision) {
            self.ensure_running();
        }
    }

    /// Counts an admission by the store for its contributors.
    pub(super) fn contribute(self: &Arc<Self>, decision: &Decision, check: &Check) {
        let Decision::Allowed(usage) = decision else {
            return;
        };
        if usage.is_local() {
            return;
        }
        self.record(check.charges(), usage);
        if let Some(Decision::Allowed(shadow)) = usage.shadow() {
            self.record(check.shadow_charges(), shadow);
        }
    }

    fn record(self: &Arc<Self>, charges: &[Charge], usage: &Usage) {
        let at_ms = usage.decided_at_ms();
        for charge in charges {
            let units = charge.cost().cast_signed();
            self.counts.contribute(charge, at_ms, units, true);
        }
        self.ensure_running();
    }

    /// Counts the difference that a settlement makes: units that are given back in the span of the original charge, and
    /// further ones in that of `settled`, the usage after the settlement.
    pub(super) fn contribute_settled(self: &Arc<Self>, settlement: &Settlement, settled: &Usage) {
        let usage = settlement.usage();
        if !settlement.check().has_contributors() || usage.is_local() {
            return;
        }
        let charges = settlement.check().charges().iter();
        for (charge, cost) in charges.zip(settlement.costs()) {
            let difference = cost.cast_signed() - charge.cost().cast_signed();
            let is_now = difference > 0;
            let at_ms = if is_now { settled } else { usage }.decided_at_ms();
            self.counts.contribute(charge, at_ms, difference, is_now);
        }
        self.ensure_running();
    }
}
