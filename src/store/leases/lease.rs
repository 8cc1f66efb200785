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

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
    time::Duration,
};

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
    /// Many tasks spend from these without a lock.
    unspent: AtomicU64,
}

/// Units that were spent.
#[derive(Debug)]
pub(super) struct LeasedUnits<'a> {
    lease: &'a Lease,
    now: Duration,
}

impl Lease {
    /// Makes a lease of `units` from the store's answer to a check with one charge. `sent` is the time when it was
    /// sent.
    pub(super) fn new(usage: Usage, units: u64, sent: Duration) -> Self {
        Self {
            time: spending_time(&usage),
            unspent: AtomicU64::new(units),
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

    pub(super) fn unspent(&self) -> u64 {
        self.unspent.load(Acquire)
    }

    /// Ends the lease. Returns the settlement that gives the unspent units back, if there are any.
    pub(super) fn close(self) -> Option<Operation> {
        let unspent = self.unspent();
        if unspent == 0 {
            return None;
        }
        let settlement = Settlement::new(&self.usage, |_| self.units - unspent);
        settlement.ok().map(Operation::Settle)
    }

    /// Takes this number of units, all or none. Read the clock after you found the lease.
    pub(super) fn spend(&self, units: u64, now: Duration) -> Option<LeasedUnits<'_>> {
        if units == 0 || self.is_over(now) {
            return None;
        }
        let take = |unspent: u64| unspent.checked_sub(units);
        self.unspent.fetch_update(AcqRel, Acquire, take).ok()?;
        Some(LeasedUnits { lease: self, now })
    }

    /// Puts units back that were spent.
    pub(super) fn put_back(&self, units: u64) {
        self.unspent.fetch_add(units, AcqRel);
    }
}

impl LeasedUnits<'_> {
    /// An upper limit of the store's clock, within the charged step.
    pub(super) fn now_ms(&self) -> u64 {
        self.lease.usage.decided_at_ms() + self.age_ms()
    }

    /// The usage under each rule after the charge of the lease: its units count as used.
    pub(super) fn rules(&self) -> impl Iterator<Item = RuleUsage> {
        let age_ms = self.age_ms();
        let rules = self.lease.usage.rules();
        rules.map(move |usage| usage.later(age_ms))
    }

    fn age_ms(&self) -> u64 {
        millis(self.now.saturating_sub(self.lease.sent))
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
