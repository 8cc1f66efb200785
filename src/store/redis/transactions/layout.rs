//! The layout of the stored values, which is private to this module.
//!
//! ```text
//!   counts   version · for each section: step · retention · number of steps · for each step: distance · units
//!                      or, of a bucket:  0 · window · refill · missing · when
//!                      or, of a concurrency rule:  0 · 0 · 1 · as of steps
//!                      or, of a calendar rule:     0 · 0 · 2 · label · units · end of the period
//!   a block  version · when it ends · by whom · when it was made · texts, as of the script's
//! ```
//!
//! The version is one byte. All other fields are numbers with seven bits per byte, the lowest first, and the highest
//! bit set in all but the last byte. Times are in ms. The distance of a step is measured in steps from its end to the
//! end of the step before, for the first step to 0. *Missing* is in units · ms, at the time *when*.

use std::collections::HashSet;

use crate::{
    domain::{
        block::{Block, BlockDetails, BlockedBy},
        calendar::Calendar,
        error::StoreError,
        rule::MAX_UNITS,
        window::{
            Bucket, BucketSpec, BucketState, CalendarSpec, PeriodCount, Section, StepQueue,
            StepSpec,
        },
    },
    store::{
        entry::Entry,
        redis::error::{OTHER_VERSION, UNREADABLE},
    },
};

/// Raise this with each change of the layout. A value of another version is an error, and is never read as this
/// version.
const VERSION: u8 = 1;

/// The kinds of rules that follow a bucket's window of 0, which no bucket has.
const CONCURRENCY: u64 = 1;
const CALENDAR: u64 = 2;

/// The latest time that can be stored, in ms.
const MAX_TIME_MS: u64 = 1 << 49;

/// Writes the counts of one policy and key.
pub(super) fn write_counts(entry: &Entry) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    for section in entry
        .sections()
        .iter()
        .filter(|section| !section.is_empty())
    {
        match section {
            Section::Steps(queue) => write_queue(&mut bytes, queue),
            Section::Bucket(bucket) => write_bucket(&mut bytes, bucket),
            Section::Concurrency(queue) => {
                put(&mut bytes, [0, 0, CONCURRENCY]);
                write_queue(&mut bytes, queue);
            }
            Section::Calendar(count) => write_count(&mut bytes, count),
        }
    }
    bytes
}

fn write_queue(bytes: &mut Vec<u8>, queue: &StepQueue) {
    let StepSpec {
        step_ms,
        retention_ms,
    } = queue.spec();
    let steps = queue.steps();
    put(bytes, [step_ms, retention_ms, steps.len() as u64]);
    let mut last_ms = 0;
    for (end_ms, units) in steps {
        put(bytes, [(end_ms - last_ms) / step_ms, units]);
        last_ms = end_ms;
    }
}

fn write_bucket(bytes: &mut Vec<u8>, bucket: &Bucket) {
    let BucketSpec { window_ms, refill } = bucket.spec();
    let BucketState { deficit, at_ms } = bucket.state();
    put(bytes, [0, window_ms, refill, deficit, at_ms]);
}

fn write_count(bytes: &mut Vec<u8>, count: &PeriodCount) {
    let label = match count.spec() {
        CalendarSpec::Known(calendar) => calendar.label(),
        CalendarSpec::Foreign(label) => label,
    };
    let kept = count.kept();
    put(
        bytes,
        [0, 0, CALENDAR, label, kept.used, kept.newest_end_ms],
    );
}

/// Reads the bytes of [`write_counts`]. Any other bytes are an error.
pub(super) fn read_counts(value: &[u8]) -> Result<Entry, StoreError> {
    let mut bytes = body(value)?;
    let (mut sections, mut specs) = (Vec::new(), HashSet::new());
    while !bytes.is_empty() {
        let section = read_section(&mut bytes).filter(|section| specs.insert(section.spec()));
        sections.push(section.ok_or(UNREADABLE)?);
    }
    Ok(Entry::of(sections))
}

fn read_section(bytes: &mut &[u8]) -> Option<Section> {
    match take(bytes)? {
        0 => match take(bytes)? {
            0 => read_other(bytes),
            window_ms => read_bucket(window_ms, bytes).map(Section::Bucket),
        },
        step_ms => read_queue(step_ms, bytes).map(Section::Steps),
    }
}

fn read_other(bytes: &mut &[u8]) -> Option<Section> {
    match take(bytes)? {
        CONCURRENCY => match take(bytes)? {
            0 => None,
            step_ms => read_queue(step_ms, bytes).map(Section::Concurrency),
        },
        CALENDAR => read_count(bytes).map(Section::Calendar),
        _ => None,
    }
}

fn read_count(bytes: &mut &[u8]) -> Option<PeriodCount> {
    let label = take(bytes)?;
    let (used, end_ms) = (take(bytes)?, take(bytes)?);
    let calendar = Calendar::labelled(label);
    let spec = calendar.map_or(CalendarSpec::Foreign(label), CalendarSpec::Known);
    let is_count = (1..=MAX_UNITS).contains(&used) && (1..=MAX_TIME_MS).contains(&end_ms);
    is_count.then(|| PeriodCount::from_parts(spec, used, end_ms))
}

fn read_bucket(window_ms: u64, bytes: &mut &[u8]) -> Option<Bucket> {
    let spec = BucketSpec {
        window_ms,
        refill: take(bytes)?,
    };
    let state = BucketState {
        deficit: take(bytes)?,
        at_ms: take(bytes)?,
    };
    let is_of_a_rule = (1..=MAX_UNITS).contains(&spec.refill.saturating_mul(spec.window_ms));
    let is_missing = (1..=MAX_UNITS).contains(&state.deficit);
    let is_in_time = state.at_ms <= MAX_TIME_MS;
    (is_of_a_rule && is_missing && is_in_time).then(|| Bucket::from_state(spec, state))
}

fn read_queue(step_ms: u64, bytes: &mut &[u8]) -> Option<StepQueue> {
    let spec = StepSpec {
        step_ms,
        retention_ms: take(bytes)?,
    };
    let retention_ms = spec.retention_ms;
    let is_of_a_rule = retention_ms == 0 || retention_ms >= step_ms;
    (is_of_a_rule && step_ms.max(retention_ms) <= MAX_TIME_MS).then_some(())?;
    let (mut steps, mut last_ms, mut used) = (Vec::new(), 0, 0_u64);
    for _ in 0..take(bytes)? {
        let (distance, units) = (take(bytes)?, take(bytes)?);
        last_ms += step_ms
            .checked_mul(distance)
            .filter(|distance_ms| (1..=MAX_TIME_MS).contains(distance_ms))?;
        used = used.checked_add(units)?;
        (units > 0 && used <= MAX_UNITS && last_ms <= MAX_TIME_MS).then_some(())?;
        steps.push((last_ms, units));
    }
    (!steps.is_empty()).then(|| StepQueue::from_steps(spec, steps))
}

/// Writes the block of an identity.
pub(super) fn write_block(block: Block, details: &BlockDetails) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    put(
        &mut bytes,
        [
            block.stored_until_ms(),
            block.source().code().into(),
            details.created_ms().unwrap_or(0),
        ],
    );
    details.write_texts(&mut bytes);
    bytes
}

/// Reads the bytes of [`write_block`]. Any other bytes are an error.
pub(super) fn read_block(value: &[u8]) -> Result<(Block, BlockDetails), StoreError> {
    let mut bytes = body(value)?;
    let (until_ms, by) = (take(&mut bytes), take(&mut bytes));
    let by = by.and_then(|by| BlockedBy::of_code(u8::try_from(by).ok()?));
    let details = match bytes {
        [] => Some(BlockDetails::default()), // of an older version
        _ => take(&mut bytes).and_then(|ms| BlockDetails::read_texts(ms, bytes)),
    };
    match (until_ms, by, details) {
        (Some(until_ms), Some(by), Some(details)) => Ok((Block::new(until_ms, by), details)),
        _ => Err(UNREADABLE),
    }
}

fn body(value: &[u8]) -> Result<&[u8], StoreError> {
    match value.split_first() {
        Some((&VERSION, body)) => Ok(body),
        Some(_) => Err(OTHER_VERSION),
        None => Err(UNREADABLE),
    }
}

fn put<const N: usize>(bytes: &mut Vec<u8>, numbers: [u64; N]) {
    for mut number in numbers {
        while number >= 0x80 {
            bytes.push(0x80 | number.to_le_bytes()[0]);
            number >>= 7;
        }
        bytes.push(number.to_le_bytes()[0]);
    }
}

/// Reads a number of at most 63 bits.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..9 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << (7 * place);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::domain::block::{BlockRequest, Until};
    #[cfg(feature = "calendar")]
    use crate::domain::rule::Rule;

    fn steps(
        step_ms: u64,
        retention_ms: u64,
        steps: impl IntoIterator<Item = (u64, u64)>,
    ) -> Section {
        Section::Steps(queue(step_ms, retention_ms, steps))
    }

    fn queue(
        step_ms: u64,
        retention_ms: u64,
        steps: impl IntoIterator<Item = (u64, u64)>,
    ) -> StepQueue {
        let spec = StepSpec {
            step_ms,
            retention_ms,
        };
        StepQueue::from_steps(spec, steps)
    }

    #[cfg(feature = "calendar")]
    fn count(calendar: &str, used: u64, end_ms: u64) -> Section {
        let rule: Rule = format!("1/{calendar}").parse().unwrap();
        let spec = CalendarSpec::Known(rule.in_calendar().unwrap());
        Section::Calendar(PeriodCount::from_parts(spec, used, end_ms))
    }

    fn foreign(label: u64, used: u64, end_ms: u64) -> Section {
        let spec = CalendarSpec::Foreign(label);
        Section::Calendar(PeriodCount::from_parts(spec, used, end_ms))
    }

    fn bucket(window_ms: u64, refill: u64, deficit: u64, at_ms: u64) -> Section {
        let state = BucketState { deficit, at_ms };
        Section::Bucket(Bucket::from_state(BucketSpec { window_ms, refill }, state))
    }

    /// The contents of each section.
    fn shown(entry: &Entry) -> Vec<String> {
        let sections = entry.sections().iter();
        sections.map(|section| format!("{section:?}")).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let entries = [
            #[cfg(feature = "calendar")]
            vec![count("month:15@Europe/Berlin", 7, 1_700_006_400_000)],
            vec![],
            vec![steps(1, 1, [(1, 1), (2, MAX_UNITS - 1)])],
            vec![
                steps(
                    1_000,
                    60_000,
                    [(1_700_000_001_000, 7), (1_700_000_040_000, 300)],
                ),
                steps(86_400_000, 0, [(1_700_006_400_000, 1 << 40)]),
                bucket(1_000, 10, 19_999, 1_700_000_040_000),
                steps(1, 1 << 42, [(1 << 48, 1)]),
                bucket(1, (1 << 48) - 1, MAX_UNITS, 1 << 48),
                Section::Concurrency(queue(1_000, 60_000, [(1_700_000_001_000, 2)])),
                foreign(1 << 60, MAX_UNITS, 1 << 48),
            ],
        ];
        for entry in entries.map(Entry::of) {
            let read = read_counts(&write_counts(&entry)).unwrap();
            assert_eq!(shown(&read), shown(&entry));
        }
        for (until_ms, by) in [(1, BlockedBy::Ban), ((1 << 48) - 1, BlockedBy::Operator)] {
            let block = Block::new(until_ms, by);
            let request = BlockRequest::new(Until::Forever).reason("why");
            let details = request.details().clone().created_at(7);
            let read = read_block(&write_block(block, &details)).unwrap();
            assert_eq!(read, (block, details));
        }
    }

    #[test]
    fn a_queue_without_steps_is_not_kept() {
        assert_eq!(write_counts(&Entry::of(vec![steps(1, 1, [])])), [VERSION]);
    }

    #[test]
    fn an_hour_by_minutes_takes_some_three_bytes_a_step() {
        let minutes = (1..=60).map(|minute| (1_700_000_040_000 + minute * 60_000, 200));
        let value = write_counts(&Entry::of(vec![steps(60_000, 3_600_000, minutes)]));
        assert!(value.len() < 200, "{}", value.len());
    }

    #[test]
    fn other_values_are_errors() {
        for value in [
            &[][..],
            &[0],
            &[2, 1, 1, 1, 1, 1],
            &[VERSION, 1],
            &[VERSION, 0, 1, 1, 1],          // a bucket that is cut off
            &[VERSION, 0, 0, 1, 1, 1],       // a bucket of no window
            &[VERSION, 0, 1, 0, 1, 1],       // a bucket that never refills
            &[VERSION, 0, 1, 1, 0, 1],       // a bucket in which nothing is missing
            &[VERSION, 0, 0, 3, 1, 1],       // a kind that is not known
            &[VERSION, 0, 0, 1, 0, 1, 1, 1], // slots of no step
            &[VERSION, 0, 0, 2, 1, 0, 1],    // a period of no unit
            &[VERSION, 2, 1, 1, 1, 1],       // shorter than a step
            &[VERSION, 1, 1, 0],             // nothing counted
            &[VERSION, 1, 1, 2, 1, 1, 0, 1], // two steps of one end
            &[VERSION, 1, 1, 1, 1, 0],       // no unit
            &[VERSION, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], // one spec twice
            &[
                VERSION, 1, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F,
            ],
        ] {
            assert!(read_counts(value).is_err(), "{value:?}");
            assert!(read_block(value).is_err(), "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_or_counting_panic(body in vec(any::<u8>(), 0..40), now_ms in 0..1_u64 << 48) {
            let value = [vec![VERSION], body].concat();
            let _ = read_block(&value);
            if let Ok(entry) = read_counts(&value) {
                for section in entry.sections() {
                    section.look(now_ms, 10, 3);
                    section.clone().charge(now_ms, 10, 1);
                    section.clone().settle(now_ms, 10, now_ms + 1, -1);
                }
                prop_assert_eq!(shown(&read_counts(&write_counts(&entry)).unwrap()), shown(&entry));
            }
        }
    }
}
