//! The stored form of counts: for each section its label, and behind that its numbers.
//!
//! A number has seven bits in each byte, the lowest first, and the highest bit says that another byte follows. A step has its
//! distance from the step before and its units, so that most take two bytes.

use crate::{
    domain::{
        numbers::number as fixed,
        rule::MAX_UNITS,
        slot_id::SlotId,
        window::{
            Bucket, BucketState, PeriodCount, Section, SlotSet, Spec, StepQueue, StepSpec, label,
            labelled,
        },
    },
    store::entry::Entry,
};

/// The number of this form, which is in the names of counts: those of another form are not read.
pub(super) const FORM: u8 = 1;

/// No bytes, if nothing is kept.
pub(super) fn write(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    for section in entry.sections().iter().filter(|it| !it.is_empty()) {
        let mut push_all = |numbers: [u64; 2]| numbers.map(|it| push(&mut bytes, it));
        push_all(label(section.spec()));
        match section {
            Section::Steps(queue) => {
                let (step_ms, mut before) = (queue.spec().step_ms, 0);
                push(&mut bytes, queue.steps().len() as u64);
                for (end_ms, units) in queue.steps() {
                    push(&mut bytes, end_ms / step_ms - before);
                    push(&mut bytes, units);
                    before = end_ms / step_ms;
                }
            }
            Section::Bucket(_) | Section::Calendar(_) => {
                let kept = section.kept();
                push_all([kept.used, kept.newest_end_ms]);
            }
            Section::Concurrency(slots) => {
                push(&mut bytes, slots.slots().len() as u64);
                for (expiry_ms, id) in slots.slots() {
                    push(&mut bytes, *expiry_ms);
                    bytes.extend(id.to_bytes());
                }
            }
        }
    }
    bytes
}

/// Reads the output of [`write`]; `None` for any other bytes.
pub(super) fn read(mut bytes: &[u8]) -> Option<Entry> {
    let (mut sections, bytes) = (Vec::new(), &mut bytes);
    while !bytes.is_empty() {
        let spec = labelled([next(bytes)?, next(bytes)?])?;
        sections.push(match spec {
            Spec::Steps(spec) => Section::Steps(steps(spec, bytes)?),
            Spec::Bucket(spec) => {
                let (deficit, at_ms) = (units(bytes)?, next(bytes)?);
                Section::Bucket(Bucket::from_state(spec, BucketState { deficit, at_ms }))
            }
            Spec::Calendar(spec) => {
                let (used, end_ms) = (units(bytes)?, next(bytes)?);
                Section::Calendar(PeriodCount::from_parts(spec, used, end_ms))
            }
            Spec::Concurrency(window_ms) => {
                let ids = (0..next(bytes)?).map(|_| Some((next(bytes)?, id(bytes)?)));
                Section::Concurrency(SlotSet::of(window_ms, ids.collect::<Option<_>>()?))
            }
        });
    }
    Some(Entry::of(sections))
}

fn steps(spec: StepSpec, bytes: &mut &[u8]) -> Option<StepQueue> {
    let (mut steps, mut step, mut used) = (Vec::new(), 0_u64, 0);
    for _ in 0..next(bytes)? {
        let (distance, units) = (next(bytes)?, units(bytes)?);
        step = step.checked_add(distance)?;
        used += units;
        if distance == 0 || units == 0 || used > MAX_UNITS {
            return None;
        }
        let end_ms = step.checked_mul(spec.step_ms)?;
        end_ms.checked_add(spec.retention_ms)?;
        steps.push((end_ms, units));
    }
    Some(StepQueue::from_steps(spec, steps))
}

fn id(bytes: &mut &[u8]) -> Option<SlotId> {
    let (id, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(SlotId::from_bytes(*id))
}

fn units(bytes: &mut &[u8]) -> Option<u64> {
    next(bytes).filter(|units| *units <= MAX_UNITS)
}

const MORE: u8 = 1 << 7;

fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= MORE.into() {
        bytes.push(number.to_le_bytes()[0] | MORE);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn next(bytes: &mut &[u8]) -> Option<u64> {
    let mut whole = 0;
    for place in 0..9 {
        let byte = fixed(bytes, 1)?;
        let low = byte % u64::from(MORE);
        whole |= low << (7 * place);
        if low == byte {
            return Some(whole);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{policy::Policy, rule::Rule};

    const NOW_MS: u64 = 1_700_000_000_000;

    fn charged(rules: &str) -> Entry {
        let (policy, mut entry) = (Policy::parse("p", rules).unwrap(), Entry::new());
        let mut counts = vec![<_>::default(); policy.rules().len()];
        for later_ms in [0, 999, 1_000, 70_000] {
            entry.charge(&policy, 3, NOW_MS + later_ms, &mut counts);
        }
        entry
    }

    fn is_read_alike(entry: &Entry, rule: &Rule) {
        let read = read(&write(entry)).unwrap();
        for at_ms in [NOW_MS, NOW_MS + 70_000, NOW_MS + 3_600_000] {
            assert_eq!(read.count(rule, at_ms), entry.count(rule, at_ms), "{rule}");
        }
        assert_eq!(read.release_ms(), entry.release_ms());
    }

    #[test]
    fn each_kind_of_section_is_read_as_it_was_written() {
        for rules in ["100/1h,50/1m@exact", "100/1d@fixed", "30+1/1h@bucket"] {
            let policy = Policy::parse("p", rules).unwrap();
            policy
                .rules()
                .iter()
                .for_each(|rule| is_read_alike(&charged(rules), rule));
        }
        let rule: Rule = "5/30s@concurrent".parse().unwrap();
        let ids = [7, 9].map(|byte| (NOW_MS + u64::from(byte), SlotId::from_bytes([byte; 16])));
        let slots = SlotSet::of(30_000, ids.into());
        is_read_alike(&Entry::of(vec![Section::Concurrency(slots)]), &rule);
        #[cfg(feature = "calendar")]
        is_read_alike(&charged("100/month@UTC"), &"100/month@UTC".parse().unwrap());
    }

    #[test]
    fn a_step_takes_two_bytes() {
        let (policy, mut entry) = (Policy::parse("p", "100/1m").unwrap(), Entry::new());
        let mut counts = [<_>::default()];
        for second in 0..60 {
            entry.charge(&policy, 1, NOW_MS + second * 1_000, &mut counts);
        }
        assert!(write(&entry).len() <= 2 * 60 + 12);
    }

    #[test]
    fn cut_or_other_bytes_are_no_counts() {
        let bytes = write(&charged("100/1h"));
        for end in 1..bytes.len() {
            assert!(read(&bytes[..end]).is_none(), "{end}");
        }
        for bytes in [&[255; 40][..], &[0, 0, 0], &[1, 0, 255, 255, 255, 1]] {
            assert!(read(bytes).is_none(), "{bytes:?}");
        }
    }
}
