//! A bucket: the missing amount, in units · ms, which shrinks by the refill in each ms.
//!
//! ```text
//!  missing
//!    │ x 3 units are charged
//!    │ │╲
//!    │ │  ╲      x 1 more
//!    │ │    ╲    │╲
//!    │ │      ╲  │  ╲
//!    │ │        ╲│    ╲
//!  ──┼─┴──────────────────╲──────▶ t
//!    full                  full
//! ```

use super::Count;
use crate::domain::rule::{MAX_UNITS, Rule};

/// How a bucket refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BucketSpec {
    pub(crate) window_ms: u64,
    /// The units that are refilled in each window.
    pub(crate) refill: u64,
}

impl BucketSpec {
    /// Returns `None` if the rule is not a bucket.
    pub(crate) fn of(rule: &Rule) -> Option<Self> {
        Some(Self {
            refill: rule.refill()?,
            window_ms: rule.window_ms(),
        })
    }

    /// Returns when a bucket with this deficit at this time is full.
    pub(crate) const fn full_at(self, at_ms: u64, deficit: u64) -> u64 {
        at_ms.saturating_add(deficit.div_ceil(self.refill))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    spec: BucketSpec,
    /// The missing amount at `at_ms`, in units · ms; at most [`MAX_UNITS`].
    deficit: u64,
    /// The time of the last write.
    at_ms: u64,
}

impl Bucket {
    pub(crate) const fn new(spec: BucketSpec) -> Self {
        Self::from_parts(spec, 0, 0)
    }

    pub(crate) const fn from_parts(spec: BucketSpec, deficit: u64, at_ms: u64) -> Self {
        Self {
            spec,
            deficit,
            at_ms,
        }
    }

    pub(crate) const fn spec(&self) -> BucketSpec {
        self.spec
    }

    /// Returns whether the bucket is full.
    pub(crate) const fn is_empty(&self) -> bool {
        self.deficit == 0
    }

    /// Returns when the bucket is full; 0 if it is full now.
    pub(crate) const fn release_ms(&self) -> u64 {
        match self.deficit {
            0 => 0,
            deficit => self.spec.full_at(self.at_ms, deficit),
        }
    }

    /// The time at which any cost fits follows from the deficit.
    pub(crate) fn look(&self, now_ms: u64, limit: u64, _cost: u64) -> Count {
        let (deficit, at_ms) = self.at(now_ms, limit);
        Count::of(deficit, at_ms)
    }

    /// Charges units.
    pub(crate) fn charge(&mut self, now_ms: u64, limit: u64, units: u64) {
        let (deficit, at_ms) = self.at(now_ms, limit);
        let charged = units.saturating_mul(self.spec.window_ms);
        self.write(deficit.saturating_add(charged), at_ms);
    }

    /// Takes missing units back, as far as they are missing, less the refill since `from_ms`.
    pub(crate) fn take(&mut self, now_ms: u64, limit: u64, from_ms: u64, units: u64) {
        let (deficit, at_ms) = self.at(now_ms, limit);
        self.write(deficit - self.taken(now_ms, limit, from_ms, units), at_ms);
    }

    /// Returns how much this takes, in units · ms.
    pub(crate) fn taken(&self, now_ms: u64, limit: u64, from_ms: u64, units: u64) -> u64 {
        let (deficit, at_ms) = self.at(now_ms, limit);
        let most = MAX_UNITS / self.spec.window_ms;
        let charged = units.min(most) * self.spec.window_ms;
        let left = charged.saturating_sub(self.refill(from_ms, at_ms));
        left.min(deficit)
    }

    /// The refill between two times, in units · ms.
    const fn refill(&self, from_ms: u64, until_ms: u64) -> u64 {
        let ms = until_ms.saturating_sub(from_ms);
        ms.saturating_mul(self.spec.refill)
    }

    pub(crate) const fn kept(&self) -> Count {
        Count::of(self.deficit, self.at_ms)
    }

    /// Ignores a state further ahead than a full refill takes: the clock was wrong then.
    fn is_believed(&self, now_ms: u64, limit: u64) -> bool {
        let full_ms = limit.saturating_mul(self.spec.window_ms) / self.spec.refill;
        self.at_ms <= now_ms.saturating_add(full_ms)
    }

    /// Returns the deficit now, and the time. Time stands still until the clock reaches the time of the last write.
    fn at(&self, now_ms: u64, limit: u64) -> (u64, u64) {
        if self.is_empty() || !self.is_believed(now_ms, limit) {
            return (0, now_ms);
        }
        let refilled = self.refill(self.at_ms, now_ms);
        (
            self.deficit.saturating_sub(refilled),
            now_ms.max(self.at_ms),
        )
    }

    fn write(&mut self, deficit: u64, at_ms: u64) {
        (self.deficit, self.at_ms) = (deficit.min(MAX_UNITS), at_ms);
    }
}
