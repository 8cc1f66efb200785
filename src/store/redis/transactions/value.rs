//! The stored values that transactions write. The script reads them, on its fast path too.

use crate::{
    domain::{
        block::HeldBlock,
        rule::Rule,
        window::{Section, SlotSet, Spec, StepQueue},
    },
    store::{
        entry::Entry,
        redis::{
            value::{BODY_SIZE, Counts, LABEL, Part},
            wire::{Places, VERSION, label, mark, push_number},
        },
    },
};

/// A key may live this much longer than its last section, in ms, so that most new steps need no new expiry.
const A_MINUTE_MS: u64 = 60_000;

/// The latest time of six bytes, in ms.
const LAST_MS: u64 = (1 << 48) - 1;

/// The greatest number of sections: those of other processes beyond are dropped.
const MOST_SECTIONS: usize = 255;

impl Counts {
    /// Nothing that counts, in a key that expires at this time; 0 if there is no key.
    pub(super) const fn nothing(expires_ms: u64) -> Self {
        Self {
            entry: Entry::new(),
            later: Vec::new(),
            expires_ms,
        }
    }

    /// The slots of a key.
    pub(super) fn of_slots(slots: SlotSet) -> Self {
        Self {
            entry: Entry::of(vec![Section::Concurrency(slots)]),
            ..Self::nothing(0)
        }
    }

    /// The value after a change by a process with these rules; `None` if nothing counts. Sets the expiry.
    pub(super) fn write(
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
            value.add(part, [0; 2], (self.expires_ms, 0));
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

/// The time of `due` where there is no other section.
const NEVER_MS: u64 = 1 << 47;

/// Returns whether the totals of a section need wide entries. Then all sections of the value get them.
fn needs_wide(section: &Section) -> bool {
    matches!(section, Section::Steps(_) | Section::Calendar(_)) && section.kept().used >= 1 << 16
}

/// A value to which sections are added. The fields stand in the order of the bytes.
#[derive(Default)]
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
    fn at(now_ms: u64, is_wide: bool) -> Self {
        Self {
            now_ms,
            is_wide,
            dues_ms: [NEVER_MS; 2],
            ..Self::default()
        }
    }

    /// `rule` is that of the process that writes, if it has one for this section.
    fn add_section(&mut self, section: &Section, rule: Option<&Rule>) {
        let part = Part::of(section, self.is_wide);
        let newest_ms = part.newest_ms;
        let (start_ms, due_ms, window_ms) = match section.spec() {
            Spec::Steps(spec) => {
                let start_ms = newest_ms.saturating_sub(spec.step_ms);
                let release_ms = start_ms + spec.retention_ms % spec.step_ms;
                let is_ahead = release_ms > self.now_ms.max(start_ms);
                let due_ms = if is_ahead { release_ms } else { newest_ms };
                (start_ms, due_ms, spec.retention_ms.max(spec.step_ms))
            }
            Spec::Bucket(spec) => {
                let limit = rule.map_or(0, Rule::limit);
                let full_ms = limit.saturating_mul(spec.window_ms) / spec.refill;
                (newest_ms, 0, full_ms)
            }
            Spec::Calendar(_) | Spec::Concurrency(_) => (0, newest_ms, A_MINUTE_MS),
        };
        let latest = (section.release_ms(), window_ms);
        self.add(&part, [start_ms, due_ms], latest);
    }

    /// `times` are when the newest step begins, and when the next step begins or units are released within it.
    fn add(&mut self, part: &Part, times: [u64; 2], latest: (u64, u64)) {
        if self.labels.len() == MOST_SECTIONS {
            return;
        }
        let counts = part.used > 0;
        let [newest_ms, start_ms, due_ms] = match counts {
            true => [part.newest_ms, times[0], times[1]],
            false => [0; 3],
        };
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
            self.since_ms = self.since_ms.max(start_ms);
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
            push_number(&mut bytes, size as u64, BODY_SIZE);
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
pub(super) fn write_block(held: &HeldBlock) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::{
        domain::{
            block::{BlockRequest, Until},
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
