//! The arithmetic of rules, without I/O or a clock: the same as the script's.
//!
//! A store keeps a [`Section`] for each rule, labelled by a [`Spec`]: a [queue of steps](steps) for a sliding or a fixed
//! rule, a [bucket](bucket) for a bucket, the [count of a period](calendar) for a calendar rule, a [set of
//! slots](slot_set) for a concurrency rule.

pub(crate) use self::{
    bucket::{Bucket, BucketSpec},
    calendar::PeriodCount,
    label::{is_unknown, label, labelled},
    slot_set::SlotSet,
    steps::{StepQueue, StepSpec},
};
use crate::domain::{
    calendar::Calendar,
    rule::{MAX_UNITS, Rule},
};

mod bucket;
mod calendar;
mod label;
mod slot_set;
mod steps;

/// The count of a store under one rule, from which a [`Usage`](crate::Usage) is computed.
///
/// For a [bucket](Rule::bucket), the missing units are given with their fraction, which shrinks by the refill in each
/// ms.
///
/// ```
/// use sluicegate::store::Count;
///
/// let mut count = Count::default();                      // nothing counts
/// count.used = 3;
/// count.newest_end_ms = 1_700_000_040_000;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// The units that count now, or the slots that are held. For a bucket, the missing units times the window in ms.
    pub used: u64,
    /// The end of the newest step that counts, in ms of the store's clock; 0 when nothing counts. For a bucket, the
    /// time of this count: now, or the time of the newest charge if the clock has stepped back. For a concurrency rule,
    /// the latest expiry of a slot.
    pub newest_end_ms: u64,
    /// For a rule that denies a cost within the limit: when enough units are released, in ms of the store's clock.
    /// Unused for a bucket, where the time follows from the other two fields.
    pub fits_at_ms: u64,
}

impl Count {
    /// A count under which the cost fits, or whose time follows from the rest.
    const fn of(used: u64, newest_end_ms: u64) -> Self {
        Self {
            used,
            newest_end_ms,
            fits_at_ms: 0,
        }
    }

    /// Returns the units that count under this rule; for a bucket, the missing units, rounded up.
    #[must_use]
    pub(crate) fn units(&self, rule: &Rule) -> u64 {
        match BucketSpec::of(rule) {
            None => self.used,
            Some(spec) => self.used.div_ceil(spec.window_ms),
        }
    }

    /// Returns when nothing counts any more, in ms of the store's clock; 0 when nothing counts now.
    pub(crate) fn reset_at_ms(&self, rule: &Rule) -> u64 {
        match BucketSpec::of(rule) {
            _ if self.used == 0 => 0,
            None => rule.release_ms(self.newest_end_ms),
            Some(spec) => spec.full_at(self.newest_end_ms, self.used),
        }
    }

    /// Returns when a cost within the limit that does not fit now will fit, in ms of the store's clock.
    pub(crate) fn fits_at_ms(&self, rule: &Rule, cost: u64) -> u64 {
        let Some(spec) = BucketSpec::of(rule) else {
            return self.fits_at_ms;
        };
        let room = rule.limit().saturating_sub(cost);
        let room = room.saturating_mul(spec.window_ms);
        spec.full_at(self.newest_end_ms, self.used.saturating_sub(room))
    }

    /// Returns the count before these units were charged.
    pub(crate) fn before(self, rule: &Rule, units: u64) -> Self {
        let charged = match BucketSpec::of(rule) {
            None => units,
            Some(spec) => units.saturating_mul(spec.window_ms),
        };
        Self {
            used: self.used.saturating_sub(charged),
            ..self
        }
    }
}

/// How a rule counts, whatever the limit: the label of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Spec {
    Steps(StepSpec),
    Bucket(BucketSpec),
    /// A concurrency rule with this window in ms.
    Concurrency(u64),
    Calendar(Calendar),
}

impl Spec {
    pub(crate) fn of(rule: &Rule) -> Self {
        if let Some(calendar) = rule.in_calendar() {
            Self::Calendar(calendar)
        } else if let Some(spec) = BucketSpec::of(rule) {
            Self::Bucket(spec)
        } else if rule.is_concurrency() {
            Self::Concurrency(rule.window_ms())
        } else {
            Self::Steps(StepSpec::of(rule))
        }
    }
}

/// The data that is kept for one rule of a key.
#[derive(Clone, Debug)]
pub(crate) enum Section {
    Steps(StepQueue),
    Bucket(Bucket),
    Concurrency(SlotSet),
    Calendar(PeriodCount),
}

/// Does the same for a section of any kind.
macro_rules! each {
    ($section:expr, $it:ident => $result:expr) => {
        match $section {
            Self::Steps($it) => $result,
            Self::Concurrency($it) => $result,
            Self::Bucket($it) => $result,
            Self::Calendar($it) => $result,
        }
    };
}

impl Section {
    pub(crate) const fn new(spec: Spec) -> Self {
        match spec {
            Spec::Steps(spec) => Self::Steps(StepQueue::new(spec)),
            Spec::Bucket(spec) => Self::Bucket(Bucket::new(spec)),
            Spec::Concurrency(window_ms) => Self::Concurrency(SlotSet::new(window_ms)),
            Spec::Calendar(calendar) => Self::Calendar(PeriodCount::new(calendar)),
        }
    }

    pub(crate) const fn spec(&self) -> Spec {
        match self {
            Self::Steps(queue) => Spec::Steps(queue.spec()),
            Self::Bucket(bucket) => Spec::Bucket(bucket.spec()),
            Self::Concurrency(slots) => Spec::Concurrency(slots.window_ms()),
            Self::Calendar(count) => Spec::Calendar(count.calendar()),
        }
    }

    /// Returns whether nothing is kept: nothing was charged, or all charges were dropped.
    pub(crate) fn is_empty(&self) -> bool {
        each!(self, it => it.is_empty())
    }

    /// Returns when nothing counts any more; 0 when nothing counts now.
    pub(crate) fn release_ms(&self) -> u64 {
        each!(self, it => it.release_ms())
    }

    /// Returns the units that count now, and when `cost` fits under `limit` if it does not fit yet.
    #[inline]
    pub(crate) fn look(&self, now_ms: u64, limit: u64, cost: u64) -> Count {
        each!(self, it => it.look(now_ms, limit, cost))
    }

    /// Charges `units`, above 0, now. Slots are [taken](SlotSet::take) instead.
    #[inline]
    pub(crate) fn charge(&mut self, now_ms: u64, limit: u64, units: u64) {
        match self {
            Self::Steps(queue) => queue.charge(now_ms, units),
            Self::Bucket(bucket) => bucket.charge(now_ms, limit, units),
            Self::Calendar(count) => count.charge(now_ms, units),
            Self::Concurrency(_) => {}
        }
    }

    /// Returns how much of a settlement's difference changes the count: units are taken from the step or period that
    /// was charged, as far as it has them, and those that are used more are charged now, up to [`MAX_UNITS`]. Slots are
    /// left alone. `end_ms` is the [settlement's](crate::settlement::Settlement::end_ms).
    pub(crate) fn change(&self, now_ms: u64, limit: u64, end_ms: u64, difference: i64) -> i64 {
        let used = self.look(now_ms, limit, 0).used;
        let (used, most, own) = match self {
            Self::Steps(queue) => (used, MAX_UNITS, queue.counting_units(now_ms, end_ms)),
            Self::Concurrency(_) => return 0,
            Self::Bucket(bucket) => {
                let window_ms = bucket.spec().window_ms;
                let own = bucket.taken(now_ms, limit, end_ms, difference.unsigned_abs());
                let (used, own) = (used.div_ceil(window_ms), own.div_ceil(window_ms));
                (used, MAX_UNITS / window_ms, own)
            }
            Self::Calendar(count) => (used, MAX_UNITS, count.counting_units(now_ms, end_ms)),
        };
        let room = most.saturating_sub(used);
        difference.clamp(-own.cast_signed(), room.cast_signed())
    }

    /// Settles a charge by as much of `difference` as [possible](Self::change).
    pub(crate) fn settle(&mut self, now_ms: u64, limit: u64, end_ms: u64, difference: i64) {
        let change = self.change(now_ms, limit, end_ms, difference);
        let units = change.unsigned_abs();
        match self {
            _ if change > 0 => self.charge(now_ms, limit, units),
            Self::Steps(queue) => queue.take(now_ms, end_ms, units),
            Self::Bucket(bucket) => {
                let units = difference.min(0).unsigned_abs(); // before the refill is subtracted
                bucket.take(now_ms, limit, end_ms, units);
            }
            Self::Calendar(count) => count.take(now_ms, units),
            Self::Concurrency(_) => {}
        }
    }

    /// Returns all that is kept: after a write, the units that counted at the time of the write, and the change.
    #[inline]
    pub(crate) fn kept(&self) -> Count {
        each!(self, it => it.kept())
    }

    /// Drops the charges that do not count: those that were released, and those so far ahead of the clock that the
    /// clock must have been wrong. Buckets, periods and slots are not believed when they are read, and stay until then.
    pub(crate) fn prune(&mut self, now_ms: u64) {
        if let Self::Steps(queue) = self {
            queue.prune(now_ms);
        }
    }

    /// Returns the slots of a concurrency rule.
    pub(crate) const fn slots(&self) -> Option<&SlotSet> {
        match self {
            Self::Concurrency(slots) => Some(slots),
            _ => None,
        }
    }
}
