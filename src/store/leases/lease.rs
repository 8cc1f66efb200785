//! [`Lease`]: units that are charged together, and spent in this process within the step that they were charged in.
//!
//! ```text
//!   sent ────▶ charged at T0 ────▶ answered                          last spent    end of the step
//!    m0              │                 m1                                │               │
//!  ──┴───────────────┴─────────────────┴─────────── … ───────────────────┴───────────────┴──▶
//!    ├──────────────── (end − T0 − 1 ms) at most, by this process's clock ───┤
//! ```
//!
//! The store decided after m0, and T0 is rounded down to a millisecond. So when `end − T0 − 1 ms` have passed since m0,
//! the step has not ended, whatever the clocks show and however long the answer took.

use std::time::Duration;

use crate::domain::{
    decision::{RuleUsage, Usage},
    operation::Operation,
    rule::millis,
    settlement::Settlement,
};

/// The maximum time of a lease, even in a long step: other processes cannot use its unspent units.
pub(super) const LONGEST: Duration = Duration::from_secs(10);

const MARGIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Lease {
    /// The store's answer to the charge.
    usage: Usage,
    units: u64,
    sent: Duration,
    /// How long the units can be spent, counted from `sent`.
    time: Duration,
    pub(super) unspent: u64,
}

impl Lease {
    /// Makes a lease of `units` from the store's answer to a check with one charge. `sent` is the time when it was
    /// sent.
    pub(super) fn new(usage: Usage, units: u64, sent: Duration) -> Self {
        Self {
            time: spending_time(&usage),
            unspent: units,
            usage,
            units,
            sent,
        }
    }

    /// Whether units can no longer be spent.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.time.is_zero() || now.saturating_sub(self.sent) > self.time
    }

    /// Whether the lease has been over for at least `time`.
    pub(super) fn is_over_for(&self, now: Duration, time: Duration) -> bool {
        now.saturating_sub(self.sent) > self.time + time
    }

    /// Ends the lease. Returns the settlement that gives the unspent units back, if there are any.
    pub(super) fn close(self) -> Option<Operation> {
        if self.unspent == 0 {
            return None;
        }
        let settlement = Settlement::new(&self.usage, |_| self.units - self.unspent);
        settlement.ok().map(Operation::Settle)
    }

    pub(super) fn can_pay(&self, units: u64, now: Duration) -> bool {
        units > 0 && units <= self.unspent && !self.is_over(now)
    }

    /// Spends units that it can pay, and adds the usage under each rule after the charge of the lease: its units count as
    /// used. Returns an upper limit of the store's clock, within the charged step.
    pub(super) fn spend(&mut self, units: u64, now: Duration, rules: &mut Vec<RuleUsage>) -> u64 {
        self.unspent -= units;
        let age_ms = millis(now.saturating_sub(self.sent));
        rules.extend(self.usage.rules().map(|usage| usage.later(age_ms)));
        self.usage.decided_at_ms() + age_ms
    }
}

/// Whether the store's clock had stepped back when the store decided.
pub(super) fn was_behind(usage: &Usage) -> bool {
    let decided_at_ms = usage.decided_at_ms();
    let mut rules = usage.rules();
    rules.any(|usage| usage.rule().step_end_ms(decided_at_ms) != usage.step_end_ms())
}

/// How long the units can be spent, counted from when the charge was sent. Zero if the clock had stepped back: the
/// units were charged to a step that the clock has not reached.
fn spending_time(usage: &Usage) -> Duration {
    if was_behind(usage) {
        return Duration::ZERO;
    }
    let ends = usage.rules().map(RuleUsage::step_end_ms);
    let end_ms = ends.min().unwrap_or(0);
    let rest_ms = end_ms.saturating_sub(usage.decided_at_ms());
    let rest = Duration::from_millis(rest_ms).saturating_sub(MARGIN);
    rest.min(LONGEST)
}
