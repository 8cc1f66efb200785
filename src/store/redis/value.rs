//! The stored values, in the format that `lua/README.md` describes: the counts of a key under a policy, and a block.
//!
//! The script reads the values that this file writes, on its fast path too, and this file reads those of the script.

use std::{error::Error, fmt};

use super::{
    error::{OTHER_VERSION, UNREADABLE},
    reports::units,
    wire::{VERSION, is_of_a_later_kind, labelled, number},
};
use crate::{
    domain::{
        block::{Block, BlockDetails, BlockedBy},
        error::StoreError,
        rule::MAX_UNITS,
        slots::SlotId,
        window::{
            Bucket, BucketSpec, BucketState, CalendarSpec, PeriodCount, Section, SlotSet, Spec,
            StepQueue, StepSpec,
        },
    },
    store::entry::Entry,
};

/// The bytes of one label.
const LABEL: usize = 12;

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
    later: Vec<Part>,
    /// When the key expires, in ms of the store's clock.
    pub(super) expires_ms: u64,
}

/// A section as it is stored.
#[derive(Debug)]
struct Part {
    label: [u64; 2],
    used: u64,
    due_ms: u64,
    newest_ms: u64,
    first_ms: u64,
    base: u64,
    width: u64,
    /// The bytes of the queue, and for how many there is room.
    queue: Vec<u8>,
    #[cfg_attr(
        not(feature = "bb8"),
        expect(dead_code, reason = "only transactions write values")
    )]
    room: usize,
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

impl Counts {
    /// Reads the counts of a key.
    pub(super) fn read(value: &[u8]) -> Result<Self, UnreadableValue> {
        match value.split_last() {
            Some((&VERSION, sections)) => read(sections).ok_or(UnreadableValue::Malformed),
            Some((&version, _)) => Err(UnreadableValue::OtherVersion(version)),
            None => Err(UnreadableValue::Malformed),
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
pub(super) fn read_block(value: &[u8]) -> Result<(Block, BlockDetails), UnreadableValue> {
    let Some((&[a, b, c, d, e, f, by, version], details)) = value.split_first_chunk() else {
        return Err(UnreadableValue::Malformed);
    };
    // A block has no details, or at least the time and the lengths of the texts.
    if !details.is_empty() && details.len() < 10 {
        return Err(UnreadableValue::Malformed);
    }
    if version != VERSION {
        return Err(UnreadableValue::OtherVersion(version));
    }
    let Some(by) = BlockedBy::of_code(by) else {
        return Err(UnreadableValue::Malformed);
    };
    let block = Block::new(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), by);
    Ok((block, read_details(details)))
}

/// An unknown format, of a block of an older version, is no error, because no check reads the details.
fn read_details(mut bytes: &[u8]) -> BlockDetails {
    match number(&mut bytes, 6) {
        Some(created_ms) => BlockDetails::read_texts(created_ms, bytes).unwrap_or_default(),
        None => BlockDetails::default(),
    }
}

fn read(mut bytes: &[u8]) -> Option<Counts> {
    let count = usize::try_from(number(&mut bytes, 1)?).ok()?;
    let used: Vec<u64> = numbers(&mut bytes, count, 7)?;
    let dues = numbers(&mut bytes, count, 7)?;
    let _since = number(&mut bytes, 6)?;
    let expires_ms = number(&mut bytes, 6)?;
    // The labels come last, so split them off before reading the sections in front of them.
    let labels_at = bytes.len().checked_sub(count * LABEL)?;
    let (mut bodies, mut labels) = bytes.split_at(labels_at);
    let (mut sections, mut later) = (Vec::with_capacity(count), Vec::new());
    for (used, due_ms) in used.into_iter().zip(dues) {
        let label = [number(&mut labels, 6)?, number(&mut labels, 6)?];
        let part = Part::read(label, used, due_ms, &mut bodies)?;
        if is_of_a_later_kind(label) {
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
    /// Reads a head, and the queue behind it.
    fn read(label: [u64; 2], used: u64, due_ms: u64, bytes: &mut &[u8]) -> Option<Self> {
        let [newest_ms, first_ms] = [number(bytes, 6)?, number(bytes, 6)?];
        let base = number(bytes, 7)?;
        let length = usize::try_from(number(bytes, 4)?).ok()?;
        let room = usize::try_from(number(bytes, 4)?).ok()?;
        let width = number(bytes, 1)?;
        let (queue, rest) = bytes.split_at_checked(room)?;
        *bytes = rest;
        Some(Self {
            label,
            used,
            due_ms,
            newest_ms,
            first_ms,
            base,
            width,
            queue: queue.get(..length)?.to_vec(),
            room,
        })
    }

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

        // Both numbers of an entry are stored modulo `wrap`: step numbers relative to the newest, totals relative to
        // the base.
        let (half, wrap) = entry_format(self.width)?;
        let mut entries = &*self.queue;
        let newest = newest_ms / spec.step_ms;
        let mut steps: Vec<(u64, u64)> = Vec::new();
        let mut total_before = 0;
        while !entries.is_empty() {
            let step = number(&mut entries, half)?;
            let total = modulo(number(&mut entries, half)?, self.base, wrap);
            let end_ms = newest.checked_sub(modulo(newest, step, wrap))? * spec.step_ms;
            let units = total.checked_sub(total_before).filter(|units| *units > 0)?;
            let follows = steps.last().is_none_or(|(last_ms, _)| *last_ms < end_ms);
            (follows && 0 < end_ms && end_ms < newest_ms).then_some(())?;
            steps.push((end_ms, units));
            total_before = total;
        }
        let units = used.checked_sub(total_before).filter(|units| *units > 0)?;
        steps.push((newest_ms, units));
        (steps[0].0 == self.first_ms).then(|| StepQueue::from_steps(spec, steps))
    }

    fn bucket(&self, spec: BucketSpec) -> Option<Bucket> {
        let (deficit, at_ms) = (self.used, self.due_ms);
        let is_bucket = self.queue.is_empty() && deficit <= MAX_UNITS && at_ms <= MAX_TIME_MS;
        is_bucket.then(|| Bucket::from_state(spec, BucketState { deficit, at_ms }))
    }

    fn period(&self, spec: CalendarSpec) -> Option<PeriodCount> {
        let (used, end_ms) = (self.used, self.newest_ms);
        let is_count = self.queue.is_empty() && used <= MAX_UNITS && end_ms <= MAX_TIME_MS;
        is_count.then(|| PeriodCount::from_parts(spec, used, end_ms))
    }
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

impl From<UnreadableValue> for StoreError {
    fn from(error: UnreadableValue) -> Self {
        match error {
            UnreadableValue::WrongType => {
                Self::protocol("a key holds a value of another type, not written by this crate")
                    .unsent()
            }
            UnreadableValue::OtherVersion(_) => OTHER_VERSION,
            UnreadableValue::Malformed => UNREADABLE,
        }
    }
}

/// The values that transactions write.
#[cfg(feature = "bb8")]
mod write {
    use super::{BlockDetails, Counts, Entry, Part, entry_format};
    use crate::{
        domain::{
            block::Block,
            rule::Rule,
            window::{Section, SlotSet, Spec, StepQueue},
        },
        store::redis::wire::{VERSION, label, push_number},
    };

    /// A key may live this much longer than its last section, in ms, so that most new steps need no new expiry.
    const A_MINUTE_MS: u64 = 60_000;

    /// The latest time of six bytes, in ms.
    const LAST_MS: u64 = (1 << 48) - 1;

    /// The least room for the steps of a sliding rule, in bytes.
    const ROOM: usize = 32;

    /// The greatest number of sections: those of other processes beyond are dropped.
    const MOST_SECTIONS: usize = 255;

    impl Counts {
        /// Nothing that counts, in a key that expires at this time; 0 if there is no key.
        pub(in crate::store::redis) const fn nothing(expires_ms: u64) -> Self {
            Self {
                entry: Entry::new(),
                later: Vec::new(),
                expires_ms,
            }
        }

        /// The slots of a key.
        pub(in crate::store::redis) fn of_slots(slots: SlotSet) -> Self {
            Self {
                entry: Entry::of(vec![Section::Concurrency(slots)]),
                ..Self::nothing(0)
            }
        }

        /// The value after a change by a process with these rules; `None` if nothing counts. Sets the expiry.
        pub(in crate::store::redis) fn write(
            &mut self,
            rules: impl Iterator<Item = Rule>,
            now_ms: u64,
        ) -> Option<Vec<u8>> {
            let mut value = Value::default();
            let mut others: Vec<&Section> = self.entry.sections().iter().collect();
            for rule in rules {
                let spec = Spec::of(&rule);
                let own = others.iter().position(|it| it.spec() == spec);
                let own = own.map(|place| others.remove(place));
                value.add_section(own.unwrap_or(&Section::new(spec)), Some(&rule));
            }
            for section in others.into_iter().filter(|it| !it.is_empty()) {
                value.add_section(section, None);
            }
            for part in &self.later {
                value.add(part, now_ms, (self.expires_ms, 0));
            }
            let Some((release_ms, window_ms)) = value.latest else {
                *self = Self::nothing(0);
                return None;
            };
            if !(release_ms..=release_ms.saturating_add(A_MINUTE_MS)).contains(&self.expires_ms) {
                let expires_ms = release_ms.saturating_add(window_ms.min(A_MINUTE_MS));
                self.expires_ms = expires_ms.min(LAST_MS);
            }
            Some(value.join(self.expires_ms))
        }
    }

    /// A value to which sections are added. Each field is written for all sections side by side.
    #[derive(Default)]
    struct Value {
        count: u8,
        used: Vec<u8>,
        dues: Vec<u8>,
        since_ms: u64,
        bodies: Vec<u8>,
        labels: Vec<u8>,
        /// The last release, and how much longer the key may live.
        latest: Option<(u64, u64)>,
    }

    impl Value {
        /// `rule` is that of the process that writes, if it has one for this section.
        fn add_section(&mut self, section: &Section, rule: Option<&Rule>) {
            let part = Part::of(section);
            let (start_ms, window_ms) = match (section.spec(), rule) {
                (Spec::Steps(spec), _) => (
                    part.newest_ms.saturating_sub(spec.step_ms),
                    spec.retention_ms.max(spec.step_ms),
                ),
                (Spec::Bucket(spec), Some(rule)) => {
                    let full_ms = rule.limit().saturating_mul(spec.window_ms) / spec.refill;
                    (part.newest_ms, full_ms)
                }
                (Spec::Bucket(_), None) => (part.newest_ms, 0),
                (Spec::Calendar(_) | Spec::Concurrency(_), _) => (0, 0),
            };
            self.add(&part, start_ms, (section.release_ms(), window_ms));
        }

        fn add(&mut self, part: &Part, start_ms: u64, latest: (u64, u64)) {
            if usize::from(self.count) == MOST_SECTIONS {
                return;
            }
            let counts = part.used > 0;
            self.count += 1;
            push_number(&mut self.used, part.used, 7);
            push_number(&mut self.dues, if counts { part.due_ms } else { 0 }, 7);
            part.push_body(&mut self.bodies);
            for number in part.label {
                push_number(&mut self.labels, number, 6);
            }
            if counts {
                self.since_ms = self.since_ms.max(start_ms);
                if self.latest.is_none_or(|it| it.0 < latest.0) {
                    self.latest = Some(latest);
                }
            }
        }

        fn join(self, expires_ms: u64) -> Vec<u8> {
            let mut times = Vec::new();
            push_number(&mut times, self.since_ms, 6);
            push_number(&mut times, expires_ms, 6);
            let (count, version) = (vec![self.count], vec![VERSION]);
            let (used, dues) = (self.used, self.dues);
            [count, used, dues, times, self.bodies, self.labels, version].concat()
        }
    }

    impl Part {
        fn of(section: &Section) -> Self {
            let kept = section.kept();
            let mut part = Self {
                label: label(section.spec()),
                used: kept.used,
                due_ms: kept.newest_end_ms,
                newest_ms: kept.newest_end_ms,
                first_ms: 0,
                base: 0,
                width: 0,
                queue: Vec::new(),
                room: 0,
            };
            match section {
                Section::Steps(queue) => part.set_steps(queue),
                Section::Calendar(_) => part.first_ms = part.newest_ms,
                Section::Bucket(_) | Section::Concurrency(_) => {}
            }
            part
        }

        /// Leaves room for more steps, so that the script can add some in place.
        fn set_steps(&mut self, queue: &StepQueue) {
            let (spec, steps) = (queue.spec(), queue.steps().collect::<Vec<_>>());
            self.room = if spec.retention_ms > 0 { ROOM } else { 0 };
            let Some((&(newest_ms, units), older)) = steps.split_last() else {
                return;
            };
            self.first_ms = steps[0].0;
            self.due_ms = newest_ms.min(spec.release(self.first_ms));
            if older.is_empty() {
                return;
            }
            // The totals of entries, and the numbers of steps that count, which span a window and a step.
            let most = (self.used - units).max(spec.retention_ms / spec.step_ms + 1);
            self.width = 1 + u64::from(most >= 1 << 16) + u64::from(most >= 1 << 32);
            let (half, wrap) = entry_format(self.width).unwrap_or((7, 1 << 53));
            let mut total = 0;
            for (end_ms, units) in older {
                total += units;
                push_number(&mut self.queue, end_ms / spec.step_ms % wrap, half);
                push_number(&mut self.queue, total % wrap, half);
            }
            self.room = self.queue.len().next_power_of_two().max(ROOM);
        }

        fn push_body(&self, bytes: &mut Vec<u8>) {
            push_number(bytes, self.newest_ms, 6);
            push_number(bytes, self.first_ms, 6);
            push_number(bytes, self.base, 7);
            push_number(bytes, self.queue.len() as u64, 4);
            push_number(bytes, self.room as u64, 4);
            push_number(bytes, self.width, 1);
            bytes.extend_from_slice(&self.queue);
            bytes.resize(bytes.len() + self.room - self.queue.len(), 0);
        }
    }

    /// Writes the block of an identity.
    pub(in crate::store::redis) fn write_block(block: Block, details: &BlockDetails) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_number(&mut bytes, block.stored_until_ms(), 6);
        bytes.extend([block.source().code(), VERSION]);
        push_number(&mut bytes, details.created_ms().unwrap_or(0), 6);
        details.write_texts(&mut bytes);
        bytes
    }
}

#[cfg(feature = "bb8")]
pub(super) use write::write_block;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_script_writes_is_a_block() {
        let (block, details) = read_block(&[1, 2, 0, 0, 0, 0, 2, VERSION]).unwrap();
        assert_eq!(details, BlockDetails::default());
        assert_eq!(
            (block.until_ms(), block.source()),
            (Some(513), BlockedBy::Ban)
        );
        let (for_ever, _) = read_block(&[255, 255, 255, 255, 255, 255, 1, VERSION]).unwrap();
        assert_eq!(
            (for_ever.until_ms(), for_ever.source()),
            (None, BlockedBy::Operator)
        );
        assert_eq!(
            read_block(&[1, 2, 0, 0, 0, 0, 2, 9]),
            Err(UnreadableValue::OtherVersion(9))
        );
        for bytes in [
            &[][..],
            &[VERSION],
            &[0; 8],
            &[0, 0, 0, 0, 0, 2, VERSION],
            &[1, 2, 0, 0, 0, 0, 9, VERSION],
        ] {
            assert!(read_block(bytes).is_err(), "{bytes:?}");
        }
    }

    #[cfg(feature = "bb8")]
    mod of_transactions {
        use std::iter;

        use super::*;
        use crate::domain::{
            block::{BlockRequest, Until},
            rule::Rule,
        };

        const NOW_MS: u64 = 1_700_000_040_000;

        fn queue(step_ms: u64, retention_ms: u64, steps: &[(u64, u64)]) -> StepQueue {
            let spec = StepSpec {
                step_ms,
                retention_ms,
            };
            let first = NOW_MS / step_ms;
            let steps = steps.iter();
            StepQueue::from_steps(
                spec,
                steps.map(|(step, units)| ((first + step) * step_ms, *units)),
            )
        }

        fn counts(sections: Vec<Section>) -> Counts {
            Counts {
                entry: Entry::of(sections),
                ..Counts::nothing(0)
            }
        }

        fn sections() -> Vec<Section> {
            let spec = BucketSpec {
                window_ms: 1_000,
                refill: 10,
            };
            let state = BucketState {
                deficit: 19_999,
                at_ms: NOW_MS,
            };
            let foreign = CalendarSpec::Foreign(1 << 60);
            vec![
                Section::Steps(queue(1_000, 60_000, &[(0, 7), (2, 300), (40, 1)])),
                Section::Steps(queue(1, 70_000, &[(0, 7), (66_000, 3), (66_001, 3)])),
                Section::Steps(queue(2, 6, &[(0, 1 << 16), (1, 1 << 32), (2, 3), (3, 1)])),
                Section::Steps(queue(86_400_000, 0, &[(1, 1 << 40)])),
                Section::Bucket(Bucket::from_state(spec, state)),
                Section::Calendar(PeriodCount::from_parts(foreign, MAX_UNITS, NOW_MS + 9)),
            ]
        }

        #[test]
        fn what_is_written_is_read() {
            let mut counts = counts(sections());
            let value = counts.write(iter::empty(), NOW_MS).unwrap();
            let read = Counts::read(&value).unwrap();
            assert_eq!(read.expires_ms, counts.expires_ms);
            for (read, written) in read.entry.sections().iter().zip(sections()) {
                assert_eq!(format!("{read:?}"), format!("{written:?}"));
            }
            assert_eq!(read.entry.sections().len(), sections().len());
            let request = BlockRequest::new(Until::Forever).reason("why");
            let block = Block::begin(request.until(), request.source(), NOW_MS);
            let details = request.details().clone().created_at(7);
            let read = read_block(&write_block(block, &details)).unwrap();
            assert_eq!(read, (block, details));
        }

        #[test]
        fn a_section_of_a_later_kind_is_carried_along_as_it_is() {
            let mut value = counts(sections()).write(iter::empty(), NOW_MS).unwrap();
            let label = value.len() - 1 - 5 * LABEL..value.len() - 1 - 4 * LABEL;
            value[label.clone()][5] = 3 << 4; // the kind of the second section
            let label = value[label].to_vec();
            let mut read = Counts::read(&value).unwrap();
            assert_eq!(read.entry.sections().len(), sections().len() - 1);
            let (rule, expires_ms): (Rule, _) = ("9/1m".parse().unwrap(), read.expires_ms);
            let written = read.write(iter::once(rule), NOW_MS).unwrap();
            assert_eq!(read.expires_ms, expires_ms);
            assert_eq!(written[written.len() - 1 - LABEL..][..LABEL], label);
            let again = Counts::read(&written).unwrap();
            assert_eq!(format!("{:?}", again.later), format!("{:?}", read.later));
            assert_eq!(again.later[0].used, 13);
        }

        #[test]
        fn a_key_in_which_nothing_counts_is_not_kept() {
            let rule: Rule = "9/1m".parse().unwrap();
            let written = counts(Vec::new()).write(iter::once(rule), NOW_MS);
            assert_eq!(written, None);
        }
    }
}
