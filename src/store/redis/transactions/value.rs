//! The stored values that transactions write. They lack the marks of the script's fast path, so its plain part reads them,
//! and adds the marks when it writes.

use crate::{
    domain::window::{Section, SlotSet, StepQueue, label},
    store::{
        entry::Entry,
        redis::{
            value::{BODY_SIZE, Counts, LABEL, Part},
            wire::{Places, VERSION, push_number},
        },
    },
};

/// The latest time of six bytes, in ms.
const LAST_MS: u64 = (1 << 48) - 1;

/// The greatest number of sections: the oldest beyond are dropped.
const MOST_SECTIONS: usize = 255;

/// The bytes of what only the fast path reads.
const MARKS: usize = 24;

impl Counts {
    pub(super) const fn nothing() -> Self {
        Self {
            entry: Entry::new(),
            later: Vec::new(),
            expires_ms: 0,
        }
    }

    /// The slots of a key.
    pub(super) fn of_slots(slots: SlotSet) -> Self {
        Self {
            entry: Entry::of(vec![Section::Concurrency(slots)]),
            ..Self::nothing()
        }
    }

    /// The value after a change, and when it expires; `None` if nothing counts.
    pub(super) fn write(&self) -> Option<(Vec<u8>, u64)> {
        let sections = self.entry.sections().iter().filter(|it| !it.is_empty());
        let later_ms = (!self.later.is_empty()).then_some(self.expires_ms);
        let expires_ms = sections.clone().map(Section::release_ms).chain(later_ms);
        let expires_ms = expires_ms.max()?.min(LAST_MS);
        let own: Vec<Part> = sections.map(Part::of).collect();
        let parts: Vec<&Part> = self.later.iter().chain(&own).collect();
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
        labels.push(VERSION);
        Some(([front, used, bodies, labels].concat(), expires_ms))
    }
}

impl Part {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{
            block::{BlockRequest, HeldBlock, Until},
            policy::Policy,
            rule::MAX_UNITS,
            window::{Bucket, BucketSpec, BucketState, CalendarSpec, PeriodCount, StepSpec},
        },
        store::redis::value::read_block,
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
            ..Counts::nothing()
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
        let (value, expires_ms) = counts(sections()).write().unwrap();
        let read = Counts::read(&value).unwrap();
        assert_eq!(read.expires_ms, expires_ms);
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
            assert_eq!(read_block(&held.to_bytes()), Ok(held));
        }
    }

    #[test]
    fn a_section_of_a_later_kind_is_carried_along_as_it_is() {
        let (mut value, expires_ms) = counts(sections()).write().unwrap();
        let label_at = value.len() - 2 - 5 * (LABEL + BODY_SIZE);
        value[label_at + 5] = 3 << 4; // the kind of the second section
        let label = value[label_at..label_at + LABEL + BODY_SIZE].to_vec();
        let read = Counts::read(&value).unwrap();
        assert_eq!(read.entry.sections().len(), sections().len() - 1);
        let (written, still_ms) = read.write().unwrap();
        assert_eq!(still_ms, expires_ms);
        let labels = &written[written.len() - 2 - 6 * (LABEL + BODY_SIZE)..];
        assert!(labels.starts_with(&label));
        let again = Counts::read(&written).unwrap();
        assert_eq!(format!("{:?}", again.later), format!("{:?}", read.later));
        assert_eq!(again.later[0].used, 13);
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
