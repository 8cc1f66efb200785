//! The stored values, in the format that `lua/README.md` describes: the counts of a key under a policy, and a block.
//!
//! The script reads the values that this file writes, on its fast path too, and this file reads those of the script.

use std::{error::Error, fmt, num::NonZeroU8};

use super::{
    error::{OTHER_VERSION, UNREADABLE},
    reports::units,
    wire::{Places, VERSION, is_of_a_later_kind, labelled, number},
};
use crate::{
    domain::{
        block::{Block, BlockDetails, BlockedBy, HeldBlock, Level},
        error::StoreError,
        rule::MAX_UNITS,
        slot_id::SlotId,
        window::{
            Bucket, BucketSpec, BucketState, CalendarSpec, PeriodCount, Section, SlotSet, Spec,
            StepQueue, StepSpec,
        },
    },
    store::entry::Entry,
};

/// The bytes of one label.
const LABEL: usize = 12;

/// The bytes of the number behind a label, which says how long the body is.
const BODY_SIZE: usize = 4;

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
    newest_ms: u64,
    base: u64,
    /// The totals at the ends of the steps before the newest.
    body: Vec<u8>,
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
pub(super) fn read_block(value: &[u8]) -> Result<HeldBlock, UnreadableValue> {
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
    let details = read_details(details);
    Ok(HeldBlock { block, details })
}

/// An unknown format, of a block of an older version, is no error, because no check reads the details.
fn read_details(mut bytes: &[u8]) -> BlockDetails {
    let mut read = || {
        let created_ms = number(&mut bytes, 6)?;
        let mut details = BlockDetails::read_texts(created_ms, &mut bytes)?;
        if !bytes.is_empty() {
            details.level = Some(Level {
                number: NonZeroU8::new(number(&mut bytes, 1)?.try_into().ok()?)?,
                ends_ms: number(&mut bytes, 6)?,
                kept_until_ms: number(&mut bytes, 6)?,
            });
        }
        bytes.is_empty().then_some(details)
    };
    read().unwrap_or_default()
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
                let places = places.get();
                let size = self.body.len() / usize::try_from(places).ok()?;
                let wrap = wrap(size)?;
                for place in 0..places {
                    let ago = 1 + (newest + places - 1 - place) % places;
                    let total = modulo(number(&mut bytes, size)?, self.base, wrap);
                    totals.push((newest.saturating_sub(ago), total));
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
    use super::{Counts, Entry, HeldBlock, LABEL, Part};
    use crate::{
        domain::{
            rule::Rule,
            window::{Section, SlotSet, Spec, StepQueue},
        },
        store::redis::wire::{Places, VERSION, label, mark, push_number},
    };

    /// A key may live this much longer than its last section, in ms, so that most new steps need no new expiry.
    const A_MINUTE_MS: u64 = 60_000;

    /// The latest time of six bytes, in ms.
    const LAST_MS: u64 = (1 << 48) - 1;

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
            let is_wide = self.entry.sections().iter().any(needs_wide);
            let mut value = Value::at(now_ms, is_wide);
            let mut others: Vec<&Section> = self.entry.sections().iter().collect();
            for rule in rules {
                let spec = Spec::of(&rule);
                let own = others.iter().position(|it| it.spec() == spec);
                let own = own.map(|place| others.remove(place));
                value.add_section(own.unwrap_or(&Section::new(spec)), Some(&rule));
            }
            let others: Vec<_> = others.into_iter().filter(|it| !it.is_empty()).collect();
            value.has_others = !others.is_empty() || !self.later.is_empty();
            for section in others {
                value.add_section(section, None);
            }
            for part in &self.later {
                value.add(part, Times::default(), (self.expires_ms, 0));
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

    /// When the newest step of a section begins, and when the next step begins or units are released within it.
    #[derive(Clone, Copy, Default)]
    struct Times {
        start_ms: u64,
        due_ms: u64,
    }

    /// The time of `due` where there is no other section.
    const NEVER_MS: u64 = 1 << 47;

    /// Returns whether the totals of a section need wide entries. Then all sections of the value get them.
    fn needs_wide(section: &Section) -> bool {
        matches!(section, Section::Steps(_) | Section::Calendar(_))
            && section.kept().used >= 1 << 16
    }

    /// A value to which sections are added. The fields stand in the order of the bytes.
    struct Value {
        now_ms: u64,
        is_wide: bool,
        has_others: bool,
        since_ms: u64,
        /// When the first section is due, and when any other is.
        dues_ms: [u64; 2],
        used: Vec<u8>,
        bodies: Vec<u8>,
        labels: Vec<[u64; 2]>,
        sizes: Vec<usize>,
        /// The last release, and how much longer the key may live.
        latest: Option<(u64, u64)>,
        first: [u64; 2],
    }

    impl Value {
        const fn at(now_ms: u64, is_wide: bool) -> Self {
            Self {
                now_ms,
                is_wide,
                has_others: false,
                since_ms: 0,
                dues_ms: [NEVER_MS; 2],
                used: Vec::new(),
                bodies: Vec::new(),
                labels: Vec::new(),
                sizes: Vec::new(),
                latest: None,
                first: [0; 2],
            }
        }

        /// `rule` is that of the process that writes, if it has one for this section.
        fn add_section(&mut self, section: &Section, rule: Option<&Rule>) {
            let part = Part::of(section, self.is_wide);
            let newest_ms = part.newest_ms;
            let (times, window_ms) = match (section.spec(), rule) {
                (Spec::Steps(spec), _) => {
                    let start_ms = newest_ms.saturating_sub(spec.step_ms);
                    let release_ms = start_ms + spec.retention_ms % spec.step_ms;
                    let is_ahead = release_ms > self.now_ms.max(start_ms);
                    let due_ms = if is_ahead { release_ms } else { newest_ms };
                    (
                        Times { start_ms, due_ms },
                        spec.retention_ms.max(spec.step_ms),
                    )
                }
                (Spec::Bucket(spec), rule) => {
                    let limit = rule.map_or(0, Rule::limit);
                    let full_ms = limit.saturating_mul(spec.window_ms) / spec.refill;
                    let times = Times {
                        start_ms: newest_ms,
                        due_ms: 0,
                    };
                    (times, full_ms)
                }
                (Spec::Calendar(_) | Spec::Concurrency(_), _) => {
                    let times = Times {
                        start_ms: 0,
                        due_ms: newest_ms,
                    };
                    (times, A_MINUTE_MS)
                }
            };
            self.add(&part, times, (section.release_ms(), window_ms));
        }

        fn add(&mut self, part: &Part, times: Times, latest: (u64, u64)) {
            if self.labels.len() == MOST_SECTIONS {
                return;
            }
            let counts = part.used > 0;
            let newest_ms = if counts { part.newest_ms } else { 0 };
            let due_ms = if counts { times.due_ms } else { 0 };
            if self.labels.is_empty() {
                self.first = [newest_ms, part.base];
                self.dues_ms[0] = due_ms;
            } else {
                push_number(&mut self.bodies, newest_ms, 6);
                push_number(&mut self.bodies, part.base, 7);
                self.dues_ms[1] = self.dues_ms[1].min(due_ms);
            }
            push_number(&mut self.used, part.used, 7);
            self.bodies.extend(&part.body);
            self.labels.push(part.label);
            self.sizes.push(part.body.len());
            if counts {
                self.since_ms = self.since_ms.max(times.start_ms);
                if self.latest.is_none_or(|it| it.0 < latest.0) {
                    self.latest = Some(latest);
                }
            }
        }

        fn join(self, expires_ms: u64) -> Vec<u8> {
            let mark = match self.has_others {
                true => 0,
                false => mark(&self.labels) + u64::from(self.is_wide),
            };
            let mut bytes = Vec::new();
            let [due_ms, others_ms] = self.dues_ms;
            let times = [self.since_ms, due_ms, others_ms, expires_ms];
            for number in [mark].into_iter().chain(times).chain([self.first[0]]) {
                push_number(&mut bytes, number, 6);
            }
            push_number(&mut bytes, self.first[1], 7);
            bytes.extend(self.used);
            bytes.extend(self.bodies);
            for (label, size) in self.labels.iter().zip(self.sizes) {
                push_number(&mut bytes, label[0], LABEL / 2);
                push_number(&mut bytes, label[1], LABEL / 2);
                push_number(&mut bytes, size as u64, 4);
            }
            bytes.push(u8::try_from(self.labels.len()).unwrap_or(u8::MAX)); // never more
            bytes.push(VERSION);
            bytes
        }
    }

    impl Part {
        fn of(section: &Section, is_wide: bool) -> Self {
            let kept = section.kept();
            let body = match section {
                Section::Steps(queue) => body(queue, is_wide),
                _ => Vec::new(),
            };
            Self {
                label: label(section.spec()),
                used: kept.used,
                newest_ms: kept.newest_end_ms,
                base: 0,
                body,
            }
        }
    }

    /// The totals at the ends of the steps before the newest.
    fn body(queue: &StepQueue, is_wide: bool) -> Vec<u8> {
        let spec = queue.spec();
        let size = if is_wide { 7 } else { 2 };
        let mut total = 0;
        let totals = queue.steps().map(|(end_ms, units)| {
            total += units;
            (end_ms / spec.step_ms, total)
        });
        let mut totals: Vec<(u64, u64)> = totals.collect();
        let newest = totals.pop().map_or(0, |(step, _)| step);
        let mut bytes = Vec::new();
        match Places::of(spec) {
            Places::None => {}
            Places::Ring(places) => {
                let places = places.get();
                for place in 0..places {
                    let ago = 1 + (newest + places - 1 - place) % places;
                    let step = newest.saturating_sub(ago);
                    let behind = totals.partition_point(|(end, _)| *end <= step);
                    let total = behind.checked_sub(1).map_or(0, |last| totals[last].1);
                    push_number(&mut bytes, total, size);
                }
            }
            Places::Queue => {
                push_number(&mut bytes, size as u64, 1);
                for (step, total) in totals {
                    push_number(&mut bytes, step, 6);
                    push_number(&mut bytes, total, size);
                }
            }
        }
        bytes
    }

    /// Writes the block of an identity.
    pub(in crate::store::redis) fn write_block(held: &HeldBlock) -> Vec<u8> {
        let (mut bytes, HeldBlock { block, details }) = (Vec::new(), held);
        push_number(&mut bytes, block.stored_until_ms(), 6);
        bytes.extend([block.source().code(), VERSION]);
        push_number(&mut bytes, details.created_ms().unwrap_or(0), 6);
        details.write_texts(&mut bytes);
        if let Some(level) = details.level {
            push_number(&mut bytes, level.number.get().into(), 1);
            push_number(&mut bytes, level.ends_ms, 6);
            push_number(&mut bytes, level.kept_until_ms, 6);
        }
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
        let held = read_block(&[1, 2, 0, 0, 0, 0, 2, VERSION]).unwrap();
        assert_eq!(held.details, BlockDetails::default());
        assert_eq!(held.block, Block::new(513, BlockedBy::Ban));
        let for_ever = read_block(&[255, 255, 255, 255, 255, 255, 1, VERSION]).unwrap();
        assert_eq!(for_ever.block, Block::new(u64::MAX, BlockedBy::Operator));
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
            policy::Policy,
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
            let policy = Policy::parse("login", "10/1m").unwrap();
            let policy = policy.ban("5/10m=1h,1d".parse().unwrap());
            for request in [
                BlockRequest::new(Until::Forever).reason("why"),
                BlockRequest::ban(Until::Forever, &policy, &policy.rules()[0]),
            ] {
                let (_, held) = HeldBlock::request(None, &request, NOW_MS);
                let held = held.unwrap();
                assert_eq!(read_block(&write_block(&held)), Ok(held));
            }
        }

        #[test]
        fn a_section_of_a_later_kind_is_carried_along_as_it_is() {
            let mut value = counts(sections()).write(iter::empty(), NOW_MS).unwrap();
            let label_at = value.len() - 2 - 5 * (LABEL + BODY_SIZE);
            value[label_at + 5] = 3 << 4; // the kind of the second section
            let label = value[label_at..label_at + LABEL + BODY_SIZE].to_vec();
            let mut read = Counts::read(&value).unwrap();
            assert_eq!(read.entry.sections().len(), sections().len() - 1);
            let (rule, expires_ms): (Rule, _) = ("9/1m".parse().unwrap(), read.expires_ms);
            let written = read.write(iter::once(rule), NOW_MS).unwrap();
            assert_eq!(read.expires_ms, expires_ms);
            let last = &written[..written.len() - 2];
            assert!(last.ends_with(&label));
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
