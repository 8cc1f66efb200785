//! The stored values, in the format that `lua/README.md` describes: the counts of a key under a policy, and a block.
//!
//! The script reads what is written here, on its fast path too, and what the script writes is read here.

use std::{error::Error, fmt};

use super::{
    error::{OTHER_VERSION, UNREADABLE},
    wire::{VERSION, is_of_a_later_kind, labelled, number},
};
use crate::{
    domain::{
        block::{Block, BlockDetails, BlockedBy},
        error::StoreError,
        rule::MAX_UNITS,
        window::{
            Bucket, BucketSpec, BucketState, CalendarSpec, PeriodCount, Section, Spec, StepQueue,
            StepSpec,
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
    /// The sections of kinds of rules that a later version has added.
    later: Vec<Later>,
    /// When the key expires, in ms of the store's clock.
    pub(super) expires_ms: u64,
}

/// A section of an unknown kind, which is carried along until the key expires.
#[derive(Debug)]
struct Later {
    label: [u64; 2],
    used: u64,
    due_ms: u64,
    /// The head and the queue.
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
        let body = bodies;
        let head = Head::read(&mut bodies)?;
        if is_of_a_later_kind(label) {
            let body = body[..body.len() - bodies.len()].to_vec();
            later.push(Later {
                label,
                used,
                due_ms,
                body,
            });
            continue;
        }
        sections.push(match labelled(label)? {
            Spec::Steps(spec) => Section::Steps(queue(spec, used, &head)?),
            Spec::Bucket(spec) => Section::Bucket(bucket(spec, used, due_ms, &head)?),
            Spec::Concurrency(spec) => Section::Concurrency(queue(spec, used, &head)?),
            Spec::Calendar(spec) => Section::Calendar(period(spec, used, &head)?),
        });
    }
    (count > 0 && bodies.is_empty()).then(|| Counts {
        entry: Entry::of(sections),
        later,
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

impl From<UnreadableValue> for StoreError {
    fn from(error: UnreadableValue) -> Self {
        match error {
            UnreadableValue::WrongType => StoreError::protocol(
                "a key holds a value of another type, not written by this crate",
            )
            .unsent(),
            UnreadableValue::OtherVersion(_) => OTHER_VERSION,
            UnreadableValue::Malformed => UNREADABLE,
        }
    }
}

/// What the transactions write.
#[cfg(feature = "bb8")]
mod write {
    use super::{BlockDetails, Counts, Entry, Later, entry_format};
    use crate::{
        domain::{
            block::Block,
            rule::Rule,
            window::{Bucket, BucketSpec, BucketState, PeriodCount, Section, Spec, StepQueue},
        },
        store::redis::wire::{VERSION, label, push_number},
    };

    /// A key may live this much longer than its last section, in ms, so that most new steps need no new expiry.
    const A_MINUTE_MS: u64 = 60_000;

    /// The longest time that a key is kept, in ms.
    const FOR_EVER_MS: u64 = 1 << 47;

    /// The latest time of six bytes, in ms.
    const LAST_MS: u64 = (1 << 48) - 1;

    /// The least room of the queue of a rule with a queue, in bytes.
    const ROOM: usize = 32;

    /// The greatest number of sections: sections of other processes beyond are dropped.
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

        /// The value after a change by a process with these rules, and when the key expires; `None` if nothing counts.
        pub(in crate::store::redis) fn write(
            &self,
            rules: &[Rule],
            now_ms: u64,
        ) -> Option<(Vec<u8>, u64)> {
            let mut columns = Columns::default();
            let mut sections: Vec<&Section> = self.entry.sections().iter().collect();
            for rule in rules {
                let spec = Spec::of(rule);
                let own = sections.iter().position(|it| it.spec() == spec);
                let section = own.map(|place| sections.remove(place));
                let new = Section::new(spec);
                columns.push(label(spec), &Part::of(section.unwrap_or(&new), Some(rule)));
            }
            for section in sections.into_iter().filter(|it| !it.is_empty()) {
                columns.push(label(section.spec()), &Part::of(section, None));
            }
            for later in &self.later {
                columns.push(later.label, &later.part(now_ms, self.expires_ms));
            }
            columns.join(self.expires_ms)
        }
    }

    /// The parts of all sections, as they stand side by side.
    #[derive(Default)]
    struct Columns {
        count: u8,
        used: Vec<u8>,
        dues: Vec<u8>,
        bodies: Vec<u8>,
        labels: Vec<u8>,
        since_ms: u64,
        /// The last release, and how much longer the key may live.
        latest: Option<(u64, u64)>,
    }

    impl Columns {
        fn push(&mut self, label: [u64; 2], part: &Part) {
            if usize::from(self.count) == MOST_SECTIONS {
                return;
            }
            let counts = part.used > 0;
            self.count += 1;
            push_number(&mut self.used, part.used, 7);
            push_number(&mut self.dues, if counts { part.due_ms } else { 0 }, 7);
            self.bodies.extend_from_slice(&part.body);
            for number in label {
                push_number(&mut self.labels, number, 6);
            }
            if counts {
                self.since_ms = self.since_ms.max(part.start_ms);
                if self
                    .latest
                    .is_none_or(|(last_ms, _)| part.release_ms > last_ms)
                {
                    self.latest = Some((part.release_ms, part.window_ms));
                }
            }
        }

        fn join(self, expires_ms: u64) -> Option<(Vec<u8>, u64)> {
            let (release_ms, window_ms) = self.latest?;
            let will_do = release_ms..=release_ms.saturating_add(A_MINUTE_MS);
            let expires_ms = match will_do.contains(&expires_ms) {
                true => expires_ms,
                false => release_ms
                    .saturating_add(window_ms.min(A_MINUTE_MS))
                    .min(LAST_MS),
            };
            let mut value = vec![self.count];
            value.extend(self.used);
            value.extend(self.dues);
            push_number(&mut value, self.since_ms, 6);
            push_number(&mut value, expires_ms, 6);
            value.extend(self.bodies);
            value.extend(self.labels);
            value.push(VERSION);
            Some((value, expires_ms))
        }
    }

    /// The parts of one section.
    struct Part {
        used: u64,
        due_ms: u64,
        start_ms: u64,
        release_ms: u64,
        window_ms: u64,
        /// The head and the queue.
        body: Vec<u8>,
    }

    impl Part {
        /// `rule` is that of the process that writes, if it has one for this section.
        fn of(section: &Section, rule: Option<&Rule>) -> Self {
            match section {
                Section::Steps(queue) | Section::Concurrency(queue) => Self::of_steps(queue),
                Section::Bucket(bucket) => Self::of_bucket(bucket, rule),
                Section::Calendar(count) => Self::of_period(count),
            }
        }

        fn of_steps(queue: &StepQueue) -> Self {
            let (spec, newest_ms) = (queue.spec(), queue.kept().newest_end_ms);
            let mut steps = queue.steps();
            let first_ms = steps.next().map_or(0, |(end_ms, _)| end_ms);
            let (width, entries) = entries(queue);
            let least = if spec.retention_ms > 0 { ROOM } else { 0 };
            Self {
                used: queue.kept().used,
                due_ms: newest_ms.min(spec.release(first_ms)),
                start_ms: newest_ms.saturating_sub(spec.step_ms),
                release_ms: spec.release(newest_ms),
                window_ms: spec.retention_ms.max(spec.step_ms),
                body: body(newest_ms, first_ms, width, &entries, least),
            }
        }

        fn of_bucket(bucket: &Bucket, rule: Option<&Rule>) -> Self {
            let BucketSpec { window_ms, refill } = bucket.spec();
            let BucketState { deficit, at_ms } = bucket.state();
            Self {
                used: deficit,
                due_ms: at_ms,
                start_ms: at_ms,
                release_ms: at_ms + deficit.div_ceil(refill).min(FOR_EVER_MS),
                window_ms: rule.map_or(0, |it| it.limit().saturating_mul(window_ms) / refill),
                body: body(at_ms, 0, 0, &[], 0),
            }
        }

        fn of_period(count: &PeriodCount) -> Self {
            let kept = count.kept();
            let end_ms = kept.newest_end_ms;
            Self {
                used: kept.used,
                due_ms: end_ms,
                start_ms: 0,
                release_ms: end_ms,
                window_ms: 0,
                body: body(end_ms, end_ms, 0, &[], 0),
            }
        }
    }

    impl Later {
        fn part(&self, now_ms: u64, expires_ms: u64) -> Part {
            Part {
                used: self.used,
                due_ms: self.due_ms,
                start_ms: now_ms,
                release_ms: expires_ms,
                window_ms: 0,
                body: self.body.clone(),
            }
        }
    }

    /// The width of a queue's entries, and the entries: of all steps before the newest.
    fn entries(queue: &StepQueue) -> (u64, Vec<u8>) {
        let (spec, mut total, mut bytes) = (queue.spec(), 0, Vec::new());
        let Some(older) = queue
            .steps()
            .len()
            .checked_sub(1)
            .filter(|older| *older > 0)
        else {
            return (0, bytes);
        };
        let before: u64 = queue.steps().take(older).map(|(_, units)| units).sum();
        // The numbers of all steps that count span a window and a step.
        let most = before.max(spec.retention_ms / spec.step_ms + 1);
        let formats = (1..).map_while(|width| Some((width, entry_format(width)?)));
        let wide = formats.filter(|(_, (_, wrap))| most < *wrap).next();
        let (width, (half, wrap)) = wide.unwrap_or((3, (7, 1 << 53)));
        for (end_ms, units) in queue.steps().take(older) {
            total += units;
            push_number(&mut bytes, end_ms / spec.step_ms % wrap, half);
            push_number(&mut bytes, total % wrap, half);
        }
        (width, bytes)
    }

    /// A head, and a queue with a room of at least so many bytes, so that the script can add steps in place.
    fn body(newest_ms: u64, first_ms: u64, width: u64, entries: &[u8], least: usize) -> Vec<u8> {
        let length = entries.len();
        let room = match length {
            0 => least,
            _ => length.next_power_of_two().max(ROOM),
        };
        let (mut bytes, base) = (Vec::new(), 0);
        for (number, size) in [
            (newest_ms, 6),
            (first_ms, 6),
            (base, 7),
            (length as u64, 4),
            (room as u64, 4),
            (width, 1),
        ] {
            push_number(&mut bytes, number, size);
        }
        bytes.extend_from_slice(entries);
        bytes.resize(bytes.len() + room - length, 0);
        bytes
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
                Section::Concurrency(queue(1_000, 60_000, &[(1, 2)])),
                Section::Bucket(Bucket::from_state(spec, state)),
                Section::Calendar(PeriodCount::from_parts(foreign, MAX_UNITS, NOW_MS + 9)),
            ]
        }

        #[test]
        fn what_is_written_is_read() {
            let (value, expires_ms) = counts(sections()).write(&[], NOW_MS).unwrap();
            let read = Counts::read(&value).unwrap();
            assert_eq!(read.expires_ms, expires_ms);
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
            let (mut value, _) = counts(sections()).write(&[], NOW_MS).unwrap();
            let label = value.len() - 1 - 6 * LABEL..value.len() - 1 - 5 * LABEL;
            value[label.clone()][5] = 3 << 4; // the kind of the second section
            let label = value[label].to_vec();
            let read = Counts::read(&value).unwrap();
            assert_eq!(read.entry.sections().len(), sections().len() - 1);
            let rule: Rule = "9/1m".parse().unwrap();
            let (written, expires_ms) = read.write(&[rule], NOW_MS).unwrap();
            assert_eq!(expires_ms, read.expires_ms);
            assert_eq!(written[written.len() - 1 - LABEL..][..LABEL], label);
            let again = Counts::read(&written).unwrap();
            assert_eq!(again.later[0].body, read.later[0].body);
            assert_eq!(again.later[0].used, 13);
        }

        #[test]
        fn a_key_in_which_nothing_counts_is_not_kept() {
            let rule: Rule = "9/1m".parse().unwrap();
            assert_eq!(counts(Vec::new()).write(&[rule], NOW_MS), None);
        }
    }
}
