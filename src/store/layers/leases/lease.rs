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

use std::{mem, sync::Arc, time::Duration};

use super::{balance::Balance, clock::Moment};
use crate::domain::{
    decision::{RuleUsage, Usage},
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
    sent: Moment,
    /// How long the units can be spent, counted from `sent`.
    time: Duration,
    /// The shortest step among the rules.
    step: Duration,
    balance: Balance,
}

/// Units that were spent, or the state of a lease when none were.
#[derive(Debug)]
pub(super) struct LeasedUnits {
    lease: Arc<Lease>,
    /// The unspent units of the lease at that time.
    unspent: u64,
    now: Moment,
}

/// Units to spend when the store has admitted the rest of the check. A claim takes nothing: a lease that ends first
/// returns the claimed units, too.
#[derive(Debug)]
pub(super) struct Claim {
    lease: Arc<Lease>,
    units: u64,
}

impl Lease {
    /// Makes a lease of `units` from the store's answer to a check with one charge. `sent` is the time when it was
    /// sent.
    pub(super) fn new(usage: Usage, units: u64, sent: Moment) -> Self {
        let steps = usage.rules().map(|usage| usage.rule().step());
        Self {
            time: spending_time(&usage),
            step: steps.min().unwrap_or_default(),
            balance: Balance::new(units),
            usage,
            units,
            sent,
        }
    }

    /// Whether units can no longer be spent.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.time.is_zero() || now.is_past(self.sent, self.time, self.step)
    }

    /// Whether the lease has been over for at least `time`.
    pub(super) fn is_over_for(&self, now: Moment, time: Duration) -> bool {
        now.is_past(self.sent, self.time + time, self.step + time)
    }

    /// Whether another lease is needed to spend this number of units.
    pub(super) fn is_used_up(&self, units: u64) -> bool {
        self.balance.is_used_up(units)
    }

    pub(super) fn unspent(&self) -> u64 {
        self.balance.unspent()
    }

    /// Ends the lease. Returns the settlement that gives the unspent units back: once, and only if there are any.
    pub(super) fn close(&self) -> Option<Settlement> {
        let unspent = self.balance.close();
        if unspent == 0 {
            return None;
        }
        Settlement::new(&self.usage, |_| self.units - unspent).ok()
    }

    /// Read the clock after you found the lease.
    pub(super) fn spend(this: &Arc<Self>, units: u64, now: Moment) -> Option<LeasedUnits> {
        if this.is_over(now) {
            return None;
        }
        let unspent = this.balance.spend(units)?;
        Some(LeasedUnits::new(this, unspent, now))
    }

    pub(super) fn claim(this: &Arc<Self>, units: u64, now: Moment) -> Option<Claim> {
        let is_claimed = !this.is_over(now) && this.balance.claim(units);
        is_claimed.then(|| Claim {
            lease: Arc::clone(this),
            units,
        })
    }
}

impl Claim {
    /// Spends the units, unless the lease has ended.
    pub(super) fn spend(mut self, now: Moment) -> Option<LeasedUnits> {
        if self.lease.is_over(now) {
            return None;
        }
        let unspent = self
            .lease
            .balance
            .spend_claimed(mem::take(&mut self.units))?;
        Some(LeasedUnits::new(&self.lease, unspent, now))
    }

    /// Gives up the claim. Returns the state of the lease.
    pub(super) fn release(self, now: Moment) -> LeasedUnits {
        LeasedUnits::new(&self.lease, self.lease.unspent(), now)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.lease.balance.release(self.units);
    }
}

impl LeasedUnits {
    fn new(lease: &Arc<Lease>, unspent: u64, now: Moment) -> Self {
        Self {
            lease: Arc::clone(lease),
            unspent,
            now,
        }
    }

    /// An upper limit of the store's clock, within the charged step.
    pub(super) fn now_ms(&self) -> u64 {
        self.lease.usage.decided_at_ms() + self.age_ms()
    }

    /// The usage under each rule, as far as this process knows. Other processes may have charged more since.
    pub(super) fn rules(&self) -> impl Iterator<Item = RuleUsage> {
        let (age_ms, unspent) = (self.age_ms(), self.unspent);
        let rules = self.lease.usage.rules();
        rules.map(move |usage| usage.later_with_unspent(age_ms, unspent))
    }

    fn age_ms(&self) -> u64 {
        millis(self.now.since(self.lease.sent))
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
