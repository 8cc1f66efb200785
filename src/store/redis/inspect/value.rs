//! [`StoredValue`]: the script's value for one policy and key, in the format that `lua/README.md` describes.

use std::{error::Error, fmt, time::Duration};

use crate::{
    domain::{
        decision::Count,
        rule::{MAX_UNITS, Rule},
        window::{
            self, Bucket, BucketSpec, BucketState, CalendarSpec, PeriodCount, Spec, StepQueue,
            StepSpec,
        },
    },
    store::redis::wire::{VERSION, is_of_a_later_kind, labelled, number},
};

/// The bytes of one label.
const LABEL: usize = 12;

/// The latest time of a server, in ms: later ones could not be stored.
pub(super) const MAX_TIME_MS: u64 = 1 << 48;

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
pub struct Step {
    /// The first millisecond after the step.
    pub end_ms: u64,
    /// The units charged in the step, after settlements.
    pub units: u64,
    /// The first millisecond at which the units no longer count.
    pub release_ms: u64,
}

/// Why the value of a key cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnreadableValue {
    /// The value is no string, so this crate has not written it.
    WrongType,
    /// The value has this version of the layout: another version of this crate wrote it, or something else.
    OtherVersion(u8),
    /// The value has a form that this crate does not write.
    Malformed,
}

impl StoredValue {
    /// Reads a value.
    ///
    /// # Errors
    ///
    /// If the value is not one that this version of the script writes.
    pub fn read(value: &[u8]) -> Result<Self, UnreadableValue> {
        match value.split_last() {
            Some((&VERSION, sections)) => read(sections).ok_or(UnreadableValue::Malformed),
            Some((&version, _)) => Err(UnreadableValue::OtherVersion(version)),
            None => Err(UnreadableValue::Malformed),
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
            Spec::Concurrency(StepSpec {
                step_ms,
                retention_ms,
            }) => Rule::concurrent(limit)
                .expires_after(Duration::from_millis(retention_ms))
                .precision(Duration::from_millis(step_ms)),
            Spec::Calendar(CalendarSpec::Known(calendar)) => Rule::of_calendar(limit, calendar),
            // No rule of this process has this calendar.
            #[cfg(feature = "redis")]
            Spec::Calendar(CalendarSpec::Foreign(_)) => Rule::new(limit, Duration::from_millis(1)),
        }
    }

    /// The steps that count at this time, oldest first; empty for a bucket and for a calendar rule.
    ///
    /// While the clock is before the start of the newest step, time stands still: the same steps count.
    #[must_use]
    pub fn steps(&self, now_ms: u64) -> Vec<Step> {
        let (window::Section::Steps(queue) | window::Section::Concurrency(queue)) = &self.counted
        else {
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
    /// of the latest charge.
    #[must_use]
    pub fn newest_end_ms(&self) -> u64 {
        self.counted.kept().newest_end_ms
    }

    pub(super) const fn counted(&self) -> &window::Section {
        &self.counted
    }
}

fn read(mut bytes: &[u8]) -> Option<StoredValue> {
    let count = usize::try_from(number(&mut bytes, 1)?).ok()?;
    let used: Vec<u64> = numbers(&mut bytes, count, 7)?;
    let dues = numbers(&mut bytes, count, 7)?;
    let _since = number(&mut bytes, 6)?;
    let expires_ms = number(&mut bytes, 6)?;
    // The labels come last, so split them off before reading the sections in front of them.
    let labels_at = bytes.len().checked_sub(count * LABEL)?;
    let (mut bodies, mut labels) = bytes.split_at(labels_at);
    let mut sections = Vec::with_capacity(count);
    for (used, due_ms) in used.into_iter().zip(dues) {
        let label = [number(&mut labels, 6)?, number(&mut labels, 6)?];
        let head = Head::read(&mut bodies)?;
        if is_of_a_later_kind(label) {
            continue;
        }
        let counted = match labelled(label)? {
            Spec::Steps(spec) => window::Section::Steps(queue(spec, used, &head)?),
            Spec::Bucket(spec) => window::Section::Bucket(bucket(spec, used, due_ms, &head)?),
            Spec::Concurrency(spec) => window::Section::Concurrency(queue(spec, used, &head)?),
            Spec::Calendar(spec) => window::Section::Calendar(period(spec, used, &head)?),
        };
        sections.push(Section { counted });
    }
    (count > 0 && bodies.is_empty()).then_some(StoredValue {
        sections,
        expires_ms,
    })
}

/// The head of a section, with the entries of its queue.
struct Head<'a> {
    newest_ms: u64,
    first_ms: u64,
    base: u64,
    width: u64,
    entries: &'a [u8],
}

impl<'a> Head<'a> {
    fn read(bytes: &mut &'a [u8]) -> Option<Self> {
        let newest_ms = number(bytes, 6)?;
        let first_ms = number(bytes, 6)?;
        let base = number(bytes, 7)?;
        let length = usize::try_from(number(bytes, 4)?).ok()?;
        let room = usize::try_from(number(bytes, 4)?).ok()?;
        let width = number(bytes, 1)?;
        let (queue, rest) = bytes.split_at_checked(room)?;
        *bytes = rest;
        Some(Self {
            newest_ms,
            first_ms,
            base,
            width,
            entries: queue.get(..length)?,
        })
    }
}

/// The steps of a section with `used` units.
fn queue(spec: StepSpec, used: u64, head: &Head<'_>) -> Option<StepQueue> {
    if used == 0 {
        return Some(StepQueue::new(spec));
    }
    let newest_ms = head.newest_ms;
    let is_step = newest_ms > 0 && newest_ms.is_multiple_of(spec.step_ms) && used <= MAX_UNITS;
    is_step.then_some(())?;

    // Both numbers of an entry are stored modulo `wrap`: step numbers relative to the newest, totals relative to the
    // base.
    let (half, wrap) = entry_format(head.width)?;
    let mut entries = head.entries;
    let newest = newest_ms / spec.step_ms;
    let mut steps: Vec<(u64, u64)> = Vec::new();
    let mut total_before = 0;
    while !entries.is_empty() {
        let step = number(&mut entries, half)?;
        let total = modulo(number(&mut entries, half)?, head.base, wrap);
        let end_ms = newest.checked_sub(modulo(newest, step, wrap))? * spec.step_ms;
        let units = total.checked_sub(total_before).filter(|units| *units > 0)?;
        let follows = steps.last().is_none_or(|(last_ms, _)| *last_ms < end_ms);
        (follows && 0 < end_ms && end_ms < newest_ms).then_some(())?;
        steps.push((end_ms, units));
        total_before = total;
    }
    let units = used.checked_sub(total_before).filter(|units| *units > 0)?;
    steps.push((newest_ms, units));
    (steps[0].0 == head.first_ms).then(|| StepQueue::from_steps(spec, steps))
}

/// The bucket of a section with this deficit at this time.
fn bucket(spec: BucketSpec, deficit: u64, at_ms: u64, head: &Head<'_>) -> Option<Bucket> {
    let is_bucket = head.entries.is_empty() && deficit <= MAX_UNITS && at_ms <= MAX_TIME_MS;
    is_bucket.then(|| Bucket::from_state(spec, BucketState { deficit, at_ms }))
}

/// The count of a section's period.
fn period(spec: CalendarSpec, used: u64, head: &Head<'_>) -> Option<PeriodCount> {
    let is_count = head.entries.is_empty() && used <= MAX_UNITS && head.newest_ms <= MAX_TIME_MS;
    is_count.then(|| PeriodCount::from_parts(spec, used, head.newest_ms))
}

/// The size in bytes of each of the two numbers of an entry, and their modulus.
const fn entry_format(width: u64) -> Option<(usize, u64)> {
    match width {
        0 | 1 => Some((2, 1 << 16)),
        2 => Some((4, 1 << 32)),
        3 => Some((7, 1 << 53)),
        _ => None,
    }
}

/// How far a number is ahead of an origin.
const fn modulo(number: u64, origin: u64, wrap: u64) -> u64 {
    number.wrapping_sub(origin) % wrap
}

fn numbers(bytes: &mut &[u8], count: usize, size: usize) -> Option<Vec<u64>> {
    (0..count).map(|_| number(bytes, size)).collect()
}

impl fmt::Display for UnreadableValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongType => f.write_str("a value of another type, not written by this crate"),
            Self::OtherVersion(version) => write!(
                f,
                "a value of version {version}, written by another version of this crate or not by it"
            ),
            Self::Malformed => {
                f.write_str("a value that cannot be read, not written by this crate")
            }
        }
    }
}

impl Error for UnreadableValue {}
