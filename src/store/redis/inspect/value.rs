//! [`StoredValue`]: the stored value of one policy and key, for operators.

use std::time::Duration;

use crate::{
    domain::{
        decision::Count,
        rule::{MAX_UNITS, Rule},
        slot_id::SlotId,
        window::{self, BucketSpec, Spec, StepSpec},
    },
    store::{
        engine::Counts,
        redis::value::{MAX_TIME_MS, UnreadableValue},
    },
};

/// The value of one key under one policy, with a section for each rule.
///
/// A value holds no limits: each process uses its own, and they may differ during a rollout. So a value may also hold
/// sections for rules that you do not know.
#[derive(Clone, Debug)]
pub struct StoredValue {
    sections: Vec<Section>,
    expires_ms: u64,
}

/// The state of one rule: the units of its steps, or the deficit of a bucket.
///
/// All times are in ms of the store's clock. You pass the time for which to count, which should be
/// [the server's](super::Inspector::now_ms).
#[derive(Clone, Debug)]
pub struct Section {
    counted: window::Section,
}

/// The units that were charged in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Step {
    /// The first millisecond after the step.
    pub end_ms: u64,
    /// The units charged in the step, after settlements.
    pub units: u64,
    /// The first millisecond at which the units no longer count.
    pub release_ms: u64,
}

impl StoredValue {
    /// Reads a value.
    ///
    /// # Errors
    ///
    /// If the value is not one that this version of the script writes.
    pub fn read(value: &[u8]) -> Result<Self, UnreadableValue> {
        let counts = Counts::read(value).ok_or(UnreadableValue::Malformed)?;
        let sections = counts.entry.sections().iter().cloned();
        Ok(Self {
            sections: sections.map(|counted| Section { counted }).collect(),
            expires_ms: counts.expires_ms,
        })
    }

    pub(super) fn of_slots(slots: window::SlotSet) -> Self {
        let counted = window::Section::Concurrency(slots);
        Self {
            expires_ms: counted.release_ms(),
            sections: vec![Section { counted }],
        }
    }

    /// The sections: first those of the process that wrote last, in the order of its rules, then those of other
    /// processes that still counted.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The section of this rule, whatever its limit.
    #[must_use]
    pub fn section(&self, rule: &Rule) -> Option<&Section> {
        self.sections.iter().find(|section| section.is_of(rule))
    }

    /// When the key expires, in ms of the store's clock: when nothing counts any more, or up to a minute later.
    #[must_use]
    pub const fn expires_ms(&self) -> u64 {
        self.expires_ms
    }
}

impl Section {
    /// Whether this section holds the counts of this rule.
    #[must_use]
    pub fn is_of(&self, rule: &Rule) -> bool {
        Spec::of(rule) == self.counted.spec()
    }

    /// The rule whose counts this section holds, with this limit.
    #[must_use]
    pub const fn rule(&self, limit: u64) -> Rule {
        match self.counted.spec() {
            Spec::Steps(StepSpec {
                step_ms,
                retention_ms: 0,
            }) => Rule::new(limit, Duration::from_millis(step_ms)).fixed(),
            Spec::Steps(StepSpec {
                step_ms,
                retention_ms,
            }) => Rule::new(limit, Duration::from_millis(retention_ms))
                .precision(Duration::from_millis(step_ms)),
            Spec::Bucket(BucketSpec { window_ms, refill }) => {
                Rule::new(refill, Duration::from_millis(window_ms)).bucket(limit)
            }
            Spec::Concurrency(window_ms) => {
                Rule::concurrent(limit).expires_after(Duration::from_millis(window_ms))
            }
            Spec::Calendar(calendar) => Rule::of_calendar(limit, calendar),
        }
    }

    /// The slots that are held at this time under a concurrency rule: when each expires, in ms, and its id, in the order
    /// in which they expire.
    pub fn slots(&self, now_ms: u64) -> impl Iterator<Item = &(u64, SlotId)> {
        let slots = self.counted.slots().into_iter();
        slots.flat_map(move |slots| slots.held(now_ms.min(MAX_TIME_MS)))
    }

    /// The steps that count at this time, oldest first; empty for rules of other kinds than sliding and fixed ones.
    ///
    /// While the clock is before the start of the newest step, time stands still: the same steps count.
    #[must_use]
    pub fn steps(&self, now_ms: u64) -> Vec<Step> {
        let window::Section::Steps(queue) = &self.counted else {
            return Vec::new();
        };
        let steps = queue.counting(now_ms.min(MAX_TIME_MS)).into_iter();
        let steps = steps.map(|(end_ms, units)| Step {
            end_ms,
            units,
            release_ms: queue.spec().release(end_ms),
        });
        steps.collect()
    }

    /// How many units count at this time.
    ///
    /// The stored time of a bucket is trusted, however far ahead: only the limit could show that the time is too far.
    #[must_use]
    pub fn used(&self, now_ms: u64) -> u64 {
        self.count(now_ms, MAX_UNITS, 0).units(&self.rule(0))
    }

    /// When `cost` will fit under `limit`, in ms; 0 if the cost fits at this time, or is above the limit.
    #[must_use]
    pub fn fits_at_ms(&self, now_ms: u64, limit: u64, cost: u64) -> u64 {
        let rule = self.rule(limit);
        let count = self.count(now_ms, limit, cost);
        let room = limit.checked_sub(cost);
        match room.filter(|room| count.units(&rule) > *room) {
            Some(_) => count.fits_at_ms(&rule, cost),
            None => 0,
        }
    }

    /// When nothing counts any more, in ms; 0 if nothing counts at this time.
    #[must_use]
    pub fn reset_at_ms(&self, now_ms: u64) -> u64 {
        self.count(now_ms, MAX_UNITS, 0).reset_at_ms(&self.rule(0))
    }

    fn count(&self, now_ms: u64, limit: u64, cost: u64) -> Count {
        self.counted.look(now_ms.min(MAX_TIME_MS), limit, cost)
    }

    /// The end of the newest stored step, even if the step no longer counts; 0 if there is none. For a bucket, the time
    /// of the latest charge; for slots, the latest expiry.
    #[must_use]
    pub fn newest_end_ms(&self) -> u64 {
        self.counted.kept().newest_end_ms
    }

    pub(super) const fn counted(&self) -> &window::Section {
        &self.counted
    }
}
