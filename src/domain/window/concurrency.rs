//! Concurrency rules: a sliding rule whose units are slots. A slot that is returned is refunded in its step, and one
//! that is renewed moves to the step of now.
//!
//! ```text
//!    taken           renewed         renewed               if neither renewed nor returned,
//!      ▼                ▼               ▼                  released here
//! ──┬──x───────┬────────x─┬─────────────x───┬────────  …  ────────┬──▶ t
//!   │ no slot  │  no slot │     the slot    │◀───── window ───────┘
//! ```
//!
//! Steps know no holders: so a holder neither renews nor returns a slot that may be in another step than it knows.

use super::StepQueue;

impl StepQueue {
    /// Returns whether a step has this many units that count.
    pub(super) fn has(&self, now_ms: u64, end_ms: u64, units: u64) -> bool {
        self.counting_units(now_ms, end_ms) >= units
    }

    /// Moves units that a step [has](Self::has) to the step of now, or to the newest if the clock has stepped back.
    /// They are charged first: otherwise, if no others count, they would move back with the clock.
    pub(super) fn renew(&mut self, now_ms: u64, end_ms: u64, units: u64) {
        self.charge(now_ms, units);
        self.take(now_ms, end_ms, units);
    }
}
