//! The stored form of counts, as `lua/README.md` describes it: in Redis, and in the [`Values`](super::Values) of other
//! stores.
//!
//! A value that is written here lacks the marks of the script's fast path, so the script's plain part reads it, and adds the
//! marks when it writes.

use super::places::Places;
use crate::{
    domain::{
        calendar::Calendar,
        numbers::{number, push_number},
        rule::MAX_UNITS,
        window::{
            Bucket, BucketSpec, PeriodCount, Section, SlotSet, Spec, StepQueue, StepSpec,
            is_unknown, label, labelled,
        },
    },
    store::entry::Entry,
};

/// The number of the stored form, which is in the names of counts and behind the labels of a value: those of another form
/// are not read.
pub(in crate::store) const FORM: u8 = 1;

/// The bytes of one label.
const LABEL: usize = 12;

/// The bytes of the number behind a label, which says how long the body is.
const BODY_SIZE: usize = 4;

/// The latest time of six bytes, in ms: later ones could not be stored.
const LAST_MS: u64 = (1 << 48) - 1;

/// The greatest number of sections: the oldest beyond are dropped.
const MOST_SECTIONS: usize = 255;

/// The bytes of what only the fast path reads.
const MARKS: usize = 24;

/// The counts of one key under one policy.
#[derive(Debug)]
pub(in crate::store) struct Counts {
    /// A section for each rule of the process that wrote last, in their order, and then those of other processes.
    pub(in crate::store) entry: Entry,
    /// The sections of rules that this process cannot have, which are carried along until the key expires.
    unknown: Vec<StoredSection>,
    /// When the key expires, in ms of the store's clock.
    pub(in crate::store) expires_ms: u64,
}

/// A section in its stored form.
#[derive(Debug)]
struct StoredSection {
    label: [u64; 2],
    used: u64,
    newest_ms: u64,
    base: u64,
    /// The totals at the ends of the steps before the newest.
    body: Vec<u8>,
}

impl Counts {
    pub(in crate::store) const fn nothing() -> Self {
        Self {
            entry: Entry::new(),
            unknown: Vec::new(),
            expires_ms: 0,
        }
    }

    /// The slots of a key.
    pub(in crate::store) fn of_slots(slots: SlotSet) -> Self {
        Self {
            entry: Entry::of(vec![Section::Concurrency(slots)]),
            ..Self::nothing()
        }
    }

    /// Reads the counts of a key; `None` for a value of another form.
    pub(in crate::store) fn read(value: &[u8]) -> Option<Self> {
        match value.split_last()? {
            (&FORM, sections) => read(sections),
            _ => None,
        }
    }

    /// The value after a change, and when it expires; `None` if nothing counts.
    pub(in crate::store) fn write(&self) -> Option<(Vec<u8>, u64)> {
        let sections = self.entry.sections().iter().filter(|it| !it.is_empty());
        let unknown_ms = (!self.unknown.is_empty()).then_some(self.expires_ms);
        let expires_ms = sections.clone().map(Section::release_ms).chain(unknown_ms);
        let expires_ms = expires_ms.max()?.min(LAST_MS);
        let own: Vec<StoredSection> = sections.map(StoredSection::of).collect();
        let parts: Vec<&StoredSection> = self.unknown.iter().chain(&own).collect();
        let parts = &parts[parts.len().saturating_sub(MOST_SECTIONS)..];
        let (mut front, [mut used, mut bodies, mut labels]) =
            (vec![0; MARKS], [(); 3].map(|()| Vec::new()));
        push_number(&mut front, expires_ms, 6);
        for (place, part) in parts.iter().enumerate() {
            let head = if place == 0 { &mut front } else { &mut bodies };
            push_number(head, part.newest_ms, 6);
            push_number(head, part.base, 7);
            push_number(&mut used, part.used, 7);
            bodies.extend(&part.body);
            for number in part.label {
                push_number(&mut labels, number, LABEL / 2);
            }
            push_number(&mut labels, part.body.len() as u64, BODY_SIZE);
        }
        push_number(&mut labels, parts.len() as u64, 1);
        labels.push(FORM);
        Some(([front, used, bodies, labels].concat(), expires_ms))
    }
}

fn read(bytes: &[u8]) -> Option<Counts> {
    let (&count, bytes) = bytes.split_last()?;
    let count = usize::from(count);
    let labels_at = bytes.len().checked_sub(count * (LABEL + BODY_SIZE))?;
    let (mut front, mut labels) = bytes.split_at_checked(labels_at)?;
    let [_mark, _since, _due, _others] = [(); 4].map(|()| number(&mut front, 6));
    let expires_ms = number(&mut front, 6)?;
    let first = [number(&mut front, 6)?, number(&mut front, 7)?];
    let used = (0..count).map(|_| number(&mut front, 7));
    let used = used.collect::<Option<Vec<_>>>()?;
    // The bodies are next; the labels at the end have the size of each.
    let mut bodies = front;
    let (mut sections, mut unknown) = (Vec::with_capacity(count), Vec::new());
    for (place, used) in used.into_iter().enumerate() {
        let [newest_ms, base] = match place {
            0 => first,
            _ => [number(&mut bodies, 6)?, number(&mut bodies, 7)?],
        };
        let label = [number(&mut labels, 6)?, number(&mut labels, 6)?];
        let size = usize::try_from(number(&mut labels, BODY_SIZE)?).ok()?;
        let (body, rest) = bodies.split_at_checked(size)?;
        bodies = rest;
        let part = StoredSection {
            label,
            used,
            newest_ms,
            base,
            body: body.to_vec(),
        };
        match labelled(part.label) {
            Some(spec) => sections.push(part.section(spec)?),
            // Another process counts under such a rule, so the next write has to keep the section.
            None if is_unknown(part.label) => unknown.push(part),
            None => return None,
        }
    }
    (count > 0 && bodies.is_empty()).then(|| Counts {
        entry: Entry::of(sections),
        unknown,
        expires_ms,
    })
}

impl StoredSection {
    fn of(section: &Section) -> Self {
        let kept = section.kept();
        Self {
            label: label(section.spec()),
            used: kept.used,
            newest_ms: kept.newest_end_ms,
            base: 0,
            body: match section {
                Section::Steps(queue) => body(queue, kept.used),
                _ => Vec::new(),
            },
        }
    }

    fn section(&self, spec: Spec) -> Option<Section> {
        Some(match spec {
            Spec::Steps(spec) => Section::Steps(self.steps(spec)?),
            Spec::Bucket(spec) => Section::Bucket(self.bucket(spec)?),
            Spec::Concurrency(_) => return None, // slots are a sorted set
            Spec::Calendar(calendar) => Section::Calendar(self.period(calendar)?),
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
        let is_bucket = self.body.is_empty() && deficit <= MAX_UNITS && at_ms <= LAST_MS;
        is_bucket.then(|| Bucket::from_parts(spec, deficit, at_ms))
    }

    fn period(&self, calendar: Calendar) -> Option<PeriodCount> {
        let (used, end_ms) = (self.used, self.newest_ms);
        let is_count = self.body.is_empty() && used <= MAX_UNITS && end_ms <= LAST_MS;
        is_count.then(|| PeriodCount::from_parts(calendar, used, end_ms))
    }
}

/// The totals at the ends of the steps before the newest.
fn body(queue: &StepQueue, used: u64) -> Vec<u8> {
    let spec = queue.spec();
    let (size, mut total) = (if used < 1 << 16 { 2 } else { 7 }, 0);
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
            for step in Places::steps(places, newest) {
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

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "calendar")]
    use crate::domain::rule::Rule;
    use crate::domain::window::{Bucket, BucketSpec, StepSpec};

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
            ..Counts::nothing()
        }
    }

    fn sections() -> Vec<Section> {
        let spec = BucketSpec {
            window_ms: 1_000,
            refill: 10,
        };
        vec![
            Section::Steps(queue(1_000, 60_000, &[(0, 7), (2, 300), (40, 1)])),
            Section::Steps(queue(1, 70_000, &[(0, 7), (66_000, 3), (66_001, 3)])),
            Section::Steps(queue(2, 6, &[(0, 1 << 16), (1, 1 << 32), (2, 3), (3, 1)])),
            Section::Steps(queue(86_400_000, 0, &[(1, 1 << 40)])),
            Section::Bucket(Bucket::from_parts(spec, 19_999, NOW_MS)),
            #[cfg(feature = "calendar")]
            {
                let rule: Rule = "9/month:15@Europe/Berlin".parse().unwrap();
                let month = rule.in_calendar().unwrap();
                Section::Calendar(PeriodCount::from_parts(month, MAX_UNITS, NOW_MS + 9))
            },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let (value, expires_ms) = counts(sections()).write().unwrap();
        let read = Counts::read(&value).unwrap();
        assert_eq!(read.expires_ms, expires_ms);
        for (read, written) in read.entry.sections().iter().zip(sections()) {
            assert_eq!(format!("{read:?}"), format!("{written:?}"));
        }
        assert_eq!(read.entry.sections().len(), sections().len());
    }

    #[test]
    fn a_section_of_a_later_kind_or_of_an_unknown_time_zone_is_carried_along_as_it_is() {
        let (value, expires_ms) = counts(sections()).write().unwrap();
        let all = sections().len() * (LABEL + BODY_SIZE);
        let label_at = value.len() - 2 - (all - LABEL - BODY_SIZE);
        for kind in [3 << 4, 2 << 4] {
            let mut value = value.clone();
            value[label_at + 5] = kind; // of the second section
            let label = value[label_at..label_at + LABEL + BODY_SIZE].to_vec();
            let read = Counts::read(&value).unwrap();
            assert_eq!(read.entry.sections().len(), sections().len() - 1);
            let (written, still_ms) = read.write().unwrap();
            assert_eq!(still_ms, expires_ms);
            let labels = &written[written.len() - 2 - all..];
            assert!(labels.starts_with(&label));
            let again = Counts::read(&written).unwrap();
            assert_eq!(
                format!("{:?}", again.unknown),
                format!("{:?}", read.unknown)
            );
            assert_eq!(again.unknown[0].used, 13);
        }
    }

    #[test]
    fn of_too_many_sections_the_oldest_are_dropped() {
        let fixed = |step: u64| Section::Steps(queue(step, 0, &[(1, step)]));
        let (value, _) = counts((1..=300).map(fixed).collect()).write().unwrap();
        let sections = Counts::read(&value).unwrap().entry;
        let used: Vec<_> = sections
            .sections()
            .iter()
            .map(|it| it.kept().used)
            .collect();
        assert_eq!(used, (46..=300).collect::<Vec<_>>());
    }

    #[test]
    fn a_key_in_which_nothing_counts_is_not_kept() {
        let empty = Section::Steps(queue(1_000, 0, &[]));
        assert_eq!(counts(vec![empty]).write(), None);
    }
}
