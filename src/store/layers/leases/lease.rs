//! [`Lease`]: units that were charged at once, to be spent here in the step that they were charged to.
//!
//! ```text
//!   sent ────▶ charged at T0 ────▶ answered                          last spent    end of the step
//!    m0              │                 m1                                │               │
//!  ──┴───────────────┴─────────────────┴─────────── … ───────────────────┴───────────────┴──▶
//!    ├──────────────── (end − T0 − 1 ms) at most, by this process's clock ───┤
//! ```
//!
//! The charge was decided after m0, and T0 is rounded down to a millisecond. So when `end − T0 − 1 ms` have passed
//! since m0, the step has not ended, whatever the clocks show and however long the answer took.

use std::{mem, sync::Arc, time::Duration};

use super::{balance::Balance, clock::Moment};
use crate::domain::{
    decision::{RuleUsage, Usage},
    rule::millis,
    settlement::Settlement,
};

/// How long units lie here at most, however long the step is: what is unspent is missing elsewhere.
pub(super) const LONGEST: Duration = Duration::from_secs(10);

const MARGIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Lease {
    /// What the store answered to the charge.
    usage: Usage,
    units: u64,
    sent: Moment,
    /// How long units can be spent, from `sent` on.
    time: Duration,
    /// The shortest step.
    step: Duration,
    balance: Balance,
}

/// Units that were spent, or what a lease shows where none were.
#[derive(Debug)]
pub(super) struct LeasedUnits {
    lease: Arc<Lease>,
    /// The units of the lease that are unspent then.
    unspent: u64,
    now: Moment,
}

/// Units that are to be spent when the store has admitted the rest of the check. It takes nothing: a lease that ends
/// meanwhile returns them.
#[derive(Debug)]
pub(super) struct Claim {
    lease: Arc<Lease>,
    units: u64,
}

impl Lease {
    /// A lease by the answer to a check of one charge of so many units, which was sent at that moment.
    pub(super) fn new(usage: Usage, units: u64, sent: Moment) -> Self {
        let steps = usage.rules().map(|it| it.rule().step());
        Self {
            time: spending_time(&usage),
            step: steps.min().unwrap_or_default(),
            balance: Balance::new(units),
            usage,
            units,
            sent,
        }
    }

    /// Whether nothing may be spent any more.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.time.is_zero() || now.is_past(self.sent, self.time, self.step)
    }

    /// Whether it has been over for so long.
    pub(super) fn is_over_for(&self, now: Moment, time: Duration) -> bool {
        now.is_past(self.sent, self.time + time, self.step + time)
    }

    /// Whether another is needed to spend so many units.
    pub(super) fn is_used_up(&self, units: u64) -> bool {
        self.balance.is_used_up(units)
    }

    pub(super) fn unspent(&self) -> u64 {
        self.balance.unspent()
    }

    /// Ends it, and answers the settlement that returns the unspent units: once, and only if there are any.
    pub(super) fn close(&self) -> Option<Settlement> {
        let unspent = self.balance.close();
        if unspent == 0 {
            return None;
        }
        Settlement::new(&self.usage, |_| self.units - unspent).ok()
    }

    /// The clock is to be read after the lease was found.
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

    /// The units that are left if these are not spent.
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

    /// The store's clock, at the latest; within the step that was charged.
    pub(super) fn now_ms(&self) -> u64 {
        self.lease.usage.decided_at_ms() + self.age_ms()
    }

    /// What is left under each rule, as far as it is known here: other processes may have charged more since the units
    /// were leased.
    pub(super) fn rules(&self) -> impl Iterator<Item = RuleUsage> {
        let (age_ms, unspent) = (self.age_ms(), self.unspent);
        let rules = self.lease.usage.rules();
        rules.map(move |it| it.later_with_unspent(age_ms, unspent))
    }

    fn age_ms(&self) -> u64 {
        millis(self.now.since(self.lease.sent))
    }
}

/// Whether the store's clock had stepped back when it decided.
pub(super) fn was_behind(usage: &Usage) -> bool {
    let decided_at_ms = usage.decided_at_ms();
    let mut rules = usage.rules();
    rules.any(|it| it.rule().step_end_ms(decided_at_ms) != it.step_end_ms())
}

/// How long units can be spent from when the charge was sent: not at all where the clock had stepped back, so that they
/// were charged to a step that it has not reached.
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
