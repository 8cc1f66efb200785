//! The arithmetic of rules, without I/O or a clock: the same as the script's.
//!
//! A store keeps a [`Section`] for each rule, labelled by a [`Spec`]: a [queue of steps](steps) for a sliding or a
//! fixed rule, a [bucket](bucket) for a bucket.

#[cfg(feature = "redis")]
pub(crate) use self::bucket::BucketState;
pub(crate) use self::{
    bucket::{Bucket, BucketSpec},
    steps::{StepQueue, StepSpec},
};
use crate::domain::rule::Rule;

mod bucket;
mod steps;

/// The count of a store under one rule, from which a [`Usage`](crate::Usage) is computed.
///
/// For a [bucket](Rule::bucket), the missing units are given with their fraction, which shrinks by the refill in each
/// ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The units that count now. For a bucket, the missing units times the window in ms.
    pub used: u64,
    /// The end of the newest step that counts, in ms of the store's clock; 0 when nothing counts. For a bucket, the
    /// time of this count: now, or the time of the newest charge if the clock has stepped back.
    pub newest_end_ms: u64,
    /// For a rule that denies a cost within the limit: when enough units are released, in ms of the store's clock.
    /// Unused for a bucket, where the time follows from the other two fields.
    pub fits_at_ms: u64,
}

impl Count {
    /// Returns the units that count under this rule; for a bucket, the missing units, rounded up.
    #[must_use]
    pub fn units(&self, rule: &Rule) -> u64 {
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
}

impl Spec {
    pub(crate) fn of(rule: &Rule) -> Self {
        BucketSpec::of(rule).map_or_else(|| Self::Steps(StepSpec::of(rule)), Self::Bucket)
    }
}

/// The data that is kept for one rule of a key.
#[derive(Clone, Debug)]
pub(crate) enum Section {
    Steps(StepQueue),
    Bucket(Bucket),
}

impl Section {
    pub(crate) const fn new(spec: Spec) -> Self {
        match spec {
            Spec::Steps(spec) => Self::Steps(StepQueue::new(spec)),
            Spec::Bucket(spec) => Self::Bucket(Bucket::new(spec)),
        }
    }

    pub(crate) const fn spec(&self) -> Spec {
        match self {
            Self::Steps(queue) => Spec::Steps(queue.spec()),
            Self::Bucket(bucket) => Spec::Bucket(bucket.spec()),
        }
    }

    /// Returns whether nothing is kept: nothing was charged, or all charges were dropped.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Steps(queue) => queue.is_empty(),
            Self::Bucket(bucket) => bucket.is_full(),
        }
    }

    /// Returns when nothing counts any more; 0 when nothing counts now.
    pub(crate) fn release_ms(&self) -> u64 {
        match self {
            Self::Steps(queue) => queue.release_ms(),
            Self::Bucket(bucket) => bucket.full_at(),
        }
    }

    /// Returns the units that count now, and when `cost` fits under `limit` if it does not fit yet.
    pub(crate) fn look(&self, now_ms: u64, limit: u64, cost: u64) -> Count {
        match self {
            Self::Steps(queue) => queue.look(now_ms, limit, cost),
            Self::Bucket(bucket) => bucket.look(now_ms, limit),
        }
    }

    /// Charges `units`, above 0, that fit under `limit`.
    pub(crate) fn charge(&mut self, now_ms: u64, limit: u64, units: u64) {
        match self {
            Self::Steps(queue) => queue.charge(now_ms, units),
            Self::Bucket(bucket) => bucket.charge(now_ms, limit, units),
        }
    }

    /// Returns whether a settlement would change the count.
    pub(crate) fn would_settle(
        &self,
        now_ms: u64,
        limit: u64,
        step_end_ms: u64,
        difference: i64,
    ) -> bool {
        match self {
            Self::Steps(queue) => queue.change(now_ms, step_end_ms, difference) != 0,
            Self::Bucket(bucket) => bucket.would_settle(now_ms, limit, difference),
        }
    }

    /// Adds as much of `difference` as possible: to the step that was charged, or to the missing units of a bucket.
    pub(crate) fn settle(&mut self, now_ms: u64, limit: u64, step_end_ms: u64, difference: i64) {
        match self {
            Self::Steps(queue) => queue.settle(now_ms, step_end_ms, difference),
            Self::Bucket(bucket) => bucket.settle(now_ms, limit, difference),
        }
    }

    /// Returns all that is kept: after a write, the units that counted at the time of the write, and the change.
    pub(crate) fn kept(&self) -> Count {
        match self {
            Self::Steps(queue) => queue.kept(),
            Self::Bucket(bucket) => bucket.kept(),
        }
    }

    /// Drops charges so far ahead of the clock that the clock must have been wrong. A bucket drops them when it is
    /// read, since that needs the limit.
    pub(crate) fn drop_unbelieved(&mut self, now_ms: u64) {
        if let Self::Steps(queue) = self {
            queue.drop_unbelieved(now_ms);
        }
    }
}
