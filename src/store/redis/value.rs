//! The stored values, in the format that `lua/README.md` describes: the counts of a key under a policy, and a block.
//!
//! This file reads the values that the script and transactions write.

use std::{error::Error, fmt};

use super::{
    error::UNREADABLE,
    reports::units,
    wire::{Places, VERSION, number},
};
use crate::{
    domain::{
        block::HeldBlock,
        error::StoreError,
        rule::MAX_UNITS,
        slot_id::SlotId,
        window::{
            Bucket, BucketSpec, BucketState, CalendarSpec, PeriodCount, Section, SlotSet, Spec,
            StepQueue, StepSpec, is_of_a_later_kind, labelled,
        },
    },
    store::entry::Entry,
};

/// The bytes of one label.
pub(super) const LABEL: usize = 12;

/// The bytes of the number behind a label, which says how long the body is.
pub(super) const BODY_SIZE: usize = 4;

/// The latest time of a server, in ms: later ones could not be stored.
pub(super) const MAX_TIME_MS: u64 = 1 << 48;

/// The counts of one key under one policy.
#[derive(Debug)]
pub(super) struct Counts {
    /// A section for each rule of the process that wrote last, in their order, and then those of other processes.
    pub(super) entry: Entry,
    /// The sections of kinds of rules that a later version has added, which are carried along until the key expires.
    #[cfg_attr(
        not(feature = "bb8"),
        expect(dead_code, reason = "only transactions write values")
    )]
    pub(super) later: Vec<Part>,
    /// When the key expires, in ms of the store's clock.
    pub(super) expires_ms: u64,
}

/// A section as it is stored.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) label: [u64; 2],
    pub(super) used: u64,
    pub(super) newest_ms: u64,
    pub(super) base: u64,
    /// The totals at the ends of the steps before the newest.
    pub(super) body: Vec<u8>,
}

/// Why the value of a key cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnreadableValue {
    /// The value is no string, so this crate has not written it.
    WrongType,
    /// The name says that the counts have the form of this number, which another version of this crate stores.
    OtherForm(u8),
    /// The value has a form that this crate does not write.
    Malformed,
}

impl Counts {
    /// Reads the counts of a key.
    pub(super) fn read(value: &[u8]) -> Result<Self, UnreadableValue> {
        match value.split_last() {
            Some((&VERSION, sections)) => read(sections).ok_or(UnreadableValue::Malformed),
            _ => Err(UnreadableValue::Malformed),
        }
    }
}

/// Reads the slots of a key with this window: the members of a sorted set, and when they expire.
pub(super) fn read_slots(
    window_ms: u64,
    members: Vec<(Vec<u8>, f64)>,
) -> Result<SlotSet, UnreadableValue> {
    let slots = members.into_iter().map(|(member, expiry_ms)| {
        let (id, expiry_ms) = (member.try_into().ok()?, units(expiry_ms));
        (expiry_ms <= MAX_TIME_MS).then(|| (expiry_ms, SlotId::from_bytes(id)))
    });
    let slots: Option<Vec<_>> = slots.collect();
    slots
        .map(|slots| SlotSet::of(window_ms, slots))
        .ok_or(UnreadableValue::Malformed)
}

/// Reads the block of an identity.
pub(super) fn read_block(value: &[u8]) -> Result<HeldBlock, UnreadableValue> {
    HeldBlock::from_bytes(value).ok_or(UnreadableValue::Malformed)
}

fn read(bytes: &[u8]) -> Option<Counts> {
    let (&count, bytes) = bytes.split_last()?;
    let count = usize::from(count);
    let labels_at = bytes.len().checked_sub(count * (LABEL + BODY_SIZE))?;
    let (mut front, mut labels) = bytes.split_at_checked(labels_at)?;
    let [_mark, _since, _due, _others] = [(); 4].map(|()| number(&mut front, 6));
    let expires_ms = number(&mut front, 6)?;
    let first = [number(&mut front, 6)?, number(&mut front, 7)?];
    let used = numbers(&mut front, count, 7)?;
    let mut bodies = front;
    let (mut sections, mut later) = (Vec::with_capacity(count), Vec::new());
    for (place, used) in used.into_iter().enumerate() {
        let [newest_ms, base] = match place {
            0 => first,
            _ => [number(&mut bodies, 6)?, number(&mut bodies, 7)?],
        };
        let label = [number(&mut labels, 6)?, number(&mut labels, 6)?];
        let size = usize::try_from(number(&mut labels, BODY_SIZE)?).ok()?;
        let (body, rest) = bodies.split_at_checked(size)?;
        bodies = rest;
        let part = Part {
            label,
            used,
            newest_ms,
            base,
            body: body.to_vec(),
        };
        if is_of_a_later_kind(part.label) {
            later.push(part);
        } else {
            sections.push(part.section()?);
        }
    }
    (count > 0 && bodies.is_empty()).then(|| Counts {
        entry: Entry::of(sections),
        later,
        expires_ms,
    })
}

impl Part {
    fn section(&self) -> Option<Section> {
        Some(match labelled(self.label)? {
            Spec::Steps(spec) => Section::Steps(self.steps(spec)?),
            Spec::Bucket(spec) => Section::Bucket(self.bucket(spec)?),
            Spec::Concurrency(_) => return None, // slots are a sorted set
            Spec::Calendar(spec) => Section::Calendar(self.period(spec)?),
        })
    }

    fn steps(&self, spec: StepSpec) -> Option<StepQueue> {
        let (used, newest_ms) = (self.used, self.newest_ms);
        if used == 0 {
            return Some(StepQueue::new(spec));
        }
        let is_step = newest_ms > 0 && newest_ms.is_multiple_of(spec.step_ms) && used <= MAX_UNITS;
        is_step.then_some(())?;
        let newest = newest_ms / spec.step_ms;
        let mut steps: Vec<(u64, u64)> = Vec::new();
        let mut total_before = 0;
        for (step, total) in self.totals(spec, newest)? {
            let units = total.checked_sub(total_before)?;
            let follows = steps.last().is_none_or(|(last, _)| *last < step);
            (follows && 0 < step && step < newest).then_some(())?;
            // A step without units is only a place of the ring, or one from which a settlement has taken all.
            if units > 0 {
                steps.push((step, units));
            }
            total_before = total;
        }
        let units = used.checked_sub(total_before).filter(|units| *units > 0)?;
        steps.push((newest, units));
        let steps = steps.into_iter();
        Some(StepQueue::from_steps(
            spec,
            steps.map(|(step, units)| (step * spec.step_ms, units)),
        ))
    }

    /// The numbers of the steps before the newest, and the totals up to their ends.
    fn totals(&self, spec: StepSpec, newest: u64) -> Option<Vec<(u64, u64)>> {
        let mut totals = Vec::new();
        let mut bytes = &*self.body;
        match Places::of(spec) {
            Places::None => {}
            Places::Ring(places) => {
                let size = self.body.len() / usize::try_from(places.get()).ok()?;
                let wrap = wrap(size)?;
                for step in Places::steps(places, newest) {
                    totals.push((step, modulo(number(&mut bytes, size)?, self.base, wrap)));
                }
                totals.sort_unstable();
                totals.retain(|(step, _)| *step > 0);
            }
            Places::Queue => {
                let size = usize::try_from(number(&mut bytes, 1)?).ok()?;
                let wrap = wrap(size)?;
                while !bytes.is_empty() {
                    let step = number(&mut bytes, 6)?;
                    totals.push((step, modulo(number(&mut bytes, size)?, self.base, wrap)));
                }
            }
        }
        bytes.is_empty().then_some(totals)
    }

    fn bucket(&self, spec: BucketSpec) -> Option<Bucket> {
        let (deficit, at_ms) = (self.used, self.newest_ms);
        let is_bucket = self.body.is_empty() && deficit <= MAX_UNITS && at_ms <= MAX_TIME_MS;
        is_bucket.then(|| Bucket::from_state(spec, BucketState { deficit, at_ms }))
    }

    fn period(&self, spec: CalendarSpec) -> Option<PeriodCount> {
        let (used, end_ms) = (self.used, self.newest_ms);
        let is_count = self.body.is_empty() && used <= MAX_UNITS && end_ms <= MAX_TIME_MS;
        is_count.then(|| PeriodCount::from_parts(spec, used, end_ms))
    }
}

/// The modulus of totals of this size in bytes.
const fn wrap(size: usize) -> Option<u64> {
    match size {
        2 => Some(1 << 16),
        7 => Some(1 << 53),
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
            Self::OtherForm(number) => write!(
                f,
                "counts of the stored form {number}, which another version of this crate keeps"
            ),
            Self::Malformed => {
                f.write_str("a value that cannot be read, not written by this crate")
            }
        }
    }
}

impl Error for UnreadableValue {}

impl From<UnreadableValue> for StoreError {
    fn from(error: UnreadableValue) -> Self {
        match error {
            UnreadableValue::WrongType => {
                Self::protocol("a key holds a value of another type, not written by this crate")
                    .unsent()
            }
            UnreadableValue::OtherForm(_) | UnreadableValue::Malformed => UNREADABLE,
        }
    }
}
