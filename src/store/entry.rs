//! [`Entry`]: the counts of one policy and one key, with which the [engine](super::engine) decides.

use smallvec::SmallVec;

use crate::domain::{
    charge::Charge,
    decision::{Count, PolicyUsage},
    policy::Policy,
    rule::Rule,
    settlement::Settlement,
    slot_id::SlotId,
    window::{Section, SlotSet, Spec},
};

/// The counts for one policy's name and one key: a section for each spec among the rules that use this name.
#[derive(Debug)]
pub(super) struct Entry {
    /// A single section lies in the map's own memory, because each pointer costs another cache miss.
    sections: SmallVec<[Section; 1]>,
}

impl Entry {
    /// An entry with these sections. Each has another spec.
    pub(super) fn of(sections: Vec<Section>) -> Self {
        Self {
            sections: sections.into(),
        }
    }

    pub(super) fn sections(&self) -> &[Section] {
        &self.sections
    }

    pub(super) const fn new() -> Self {
        Self {
            sections: SmallVec::new_const(),
        }
    }

    /// Counts under each rule of a charge. Returns how many times the cost fits under all of them.
    pub(super) fn look(&self, charge: &Charge, now_ms: u64, counts: &mut [Count]) -> u16 {
        let cost = charge.cost();
        let mut fitting = u64::MAX;
        for ((place, rule), count) in charge.policy().rules().iter().enumerate().zip(counts) {
            *count = self.with_section(place, Spec::of(rule), |section| {
                section.look(now_ms, rule.limit(), cost)
            });
            let fits = match rule.limit().checked_sub(count.units(rule)) {
                // A cost of 0 fits any number of times, unless the count is above the limit.
                Some(left) => left.checked_div(cost).unwrap_or(u64::MAX),
                None => 0,
            };
            fitting = fitting.min(fits);
        }
        u16::try_from(fitting).unwrap_or(u16::MAX)
    }

    /// Returns how many of these charges fit one after another. They differ in the ids of their slots alone, and an id that
    /// is held needs no room.
    pub(super) fn fitting_slots<'a>(
        &self,
        charges: impl Iterator<Item = &'a Charge>,
        now_ms: u64,
    ) -> u16 {
        let (mut fitting, mut taken) = (0, 0);
        for charge in charges {
            let Some(rule) = charge.policy().rules().first() else {
                break;
            };
            let (new, held) = self.with_section(0, Spec::of(rule), |section| {
                let Some(slots) = section.slots() else {
                    return (charge.cost(), 0);
                };
                // A charge above the limit has no ids.
                let known = charge.slots().filter(|id| slots.holds(now_ms, *id)).count();
                (charge.cost() - known as u64, slots.held(now_ms).len())
            });
            if new > 0 && held as u64 + taken + new > rule.limit() {
                break;
            }
            taken += new;
            fitting += 1;
        }
        fitting
    }

    /// Changes the slots under a concurrency policy, and counts again.
    pub(super) fn change_slots(
        &mut self,
        policy: &Policy,
        now_ms: u64,
        counts: &mut [Count],
        change: impl FnOnce(&mut SlotSet),
    ) {
        if let Some(rule) = policy.rules().first() {
            let section = self.section_mut(0, Spec::of(rule));
            if let Section::Concurrency(slots) = section {
                change(slots);
            }
            counts[0] = section.look(now_ms, rule.limit(), 0);
        }
        self.tidy(policy, now_ms);
    }

    /// Forgets the slots under a concurrency policy, or else all counts. As in Redis, slots with another expiry stay.
    pub(super) fn forget(&mut self, policy: &Policy) {
        let slots = policy.rules().iter().find(|rule| rule.is_concurrency());
        self.sections.retain(|section| match slots {
            Some(rule) => section.spec() != Spec::of(rule),
            None => section.slots().is_some(),
        });
    }

    /// Whether each of these slots is held under a concurrency policy.
    pub(super) fn holds(&self, policy: &Policy, ids: &[SlotId], now_ms: u64) -> Vec<bool> {
        let rule = policy.rules().first();
        let held = rule.and_then(|rule| {
            self.with_section(0, Spec::of(rule), |section| {
                let slots = section.slots()?;
                Some(ids.iter().map(|id| slots.holds(now_ms, *id)).collect())
            })
        });
        held.unwrap_or_else(|| vec![false; ids.len()])
    }

    /// The latest expiry of a slot that is held.
    #[inline]
    pub(super) fn slots_held_until(&self, now_ms: u64) -> Option<u64> {
        let sets = self.sections.iter().filter_map(Section::slots);
        let latest = sets.filter_map(|slots| slots.held(now_ms).next_back());
        latest.map(|slot| slot.0).max()
    }

    /// Adds units under each rule, and counts again. `units` is more than 0.
    pub(super) fn charge(
        &mut self,
        policy: &Policy,
        units: u64,
        now_ms: u64,
        counts: &mut [Count],
    ) {
        for ((place, rule), count) in policy.rules().iter().enumerate().zip(counts) {
            let section = self.section_mut(place, Spec::of(rule));
            section.charge(now_ms, rule.limit(), units);
            *count = section.kept();
        }
        // The sections of this policy hold the new units. Only sections of other rules may have to go.
        if self.sections.len() > policy.rules().len() {
            self.tidy(policy, now_ms);
        }
    }

    /// Whether a settlement by `difference` would change a section.
    pub(super) fn would_settle(
        &self,
        settlement: &Settlement,
        usage: PolicyUsage<'_>,
        now_ms: u64,
        difference: i64,
    ) -> bool {
        usage.rules().iter().any(|rule| {
            let (limit, end_ms) = (rule.rule().limit(), settlement.end_ms(rule));
            self.with_section(0, Spec::of(&rule.rule()), |section| {
                section.change(now_ms, limit, end_ms, difference) != 0
            })
        })
    }

    /// Settles a charge by `difference`, and counts again.
    pub(super) fn settle(
        &mut self,
        settlement: &Settlement,
        usage: PolicyUsage<'_>,
        now_ms: u64,
        difference: i64,
        counts: &mut [Count],
    ) {
        for (rule, count) in usage.rules().iter().zip(counts) {
            let section = self.section_mut(0, Spec::of(&rule.rule()));
            let limit = rule.rule().limit();
            section.settle(now_ms, limit, settlement.end_ms(rule), difference);
            *count = section.kept();
        }
        self.tidy(usage.policy(), now_ms);
    }

    /// The count under a rule at this time, for a charge of one unit.
    pub(super) fn count(&self, rule: &Rule, at_ms: u64) -> Count {
        self.with_section(0, Spec::of(rule), |it| it.look(at_ms, rule.limit(), 1))
    }

    /// Whether no section holds a unit that can ever count.
    pub(super) fn is_empty(&self) -> bool {
        self.sections.iter().all(Section::is_empty)
    }

    /// The time when the last unit is released; 0 if there are no units.
    pub(super) fn release_ms(&self) -> u64 {
        let releases = self.sections.iter().map(Section::release_ms);
        releases.max().unwrap_or(0)
    }

    /// Calls `read` with the section of this spec, or with an empty section.
    fn with_section<T>(&self, place: usize, spec: Spec, read: impl FnOnce(&Section) -> T) -> T {
        let is_of = |section: &&Section| section.spec() == spec;
        // Mostly the sections are in the order of the policy's rules.
        let probable = self.sections.get(place).filter(is_of);
        match probable.or_else(|| self.sections.iter().find(is_of)) {
            Some(section) => read(section),
            None => read(&Section::new(spec)),
        }
    }

    fn section_mut(&mut self, place: usize, spec: Spec) -> &mut Section {
        let is_of = |section: &Section| section.spec() == spec;
        if self.sections.get(place).is_some_and(is_of) {
            return &mut self.sections[place];
        }
        let place = self.sections.iter().position(is_of).unwrap_or_else(|| {
            self.sections.push(Section::new(spec));
            self.sections.len() - 1
        });
        &mut self.sections[place]
    }

    /// Drops the empty sections. From the sections that `policy` does not know, also drops steps that do not count, so
    /// that they stay released when the clock steps back, and the sections that no longer count.
    fn tidy(&mut self, policy: &Policy, now_ms: u64) {
        self.sections.retain_mut(|section| {
            let mut rules = policy.rules().iter();
            // Slots of another expiry are another key in Redis, which stays.
            if rules.any(|rule| Spec::of(rule) == section.spec()) || section.slots().is_some() {
                return !section.is_empty();
            }
            section.prune(now_ms);
            section.release_ms() > now_ms
        });
    }
}
