//! [`Entry`]: the counts of one policy and one key, with which the [engine](super::engine) decides.

use smallvec::SmallVec;

use crate::domain::{
    charge::Charge,
    decision::{Count, PolicyUsage, RuleUsage},
    policy::Policy,
    rule::Rule,
    window::{Section, Spec},
};

/// The counts for one policy's name and one key: a section for each spec among the rules that use this name.
#[derive(Debug)]
pub(super) struct Entry {
    /// A single section lies in the map's own memory, because each pointer costs another cache miss.
    sections: SmallVec<[Section; 1]>,
}

#[cfg(feature = "redis")]
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
}

impl Entry {
    pub(super) const fn new() -> Self {
        Self {
            sections: SmallVec::new_const(),
        }
    }

    /// Counts under each rule of a charge. Returns how many times the cost fits under all of them.
    pub(super) fn look(&self, charge: &Charge, now_ms: u64, counts: &mut [Count]) -> u16 {
        let cost = charge.cost();
        let mut fitting = u64::MAX;
        for (rule, count) in charge.policy().rules().iter().zip(counts) {
            *count = self.with_section(Spec::of(rule), |section| {
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

    /// Adds units under each rule, and counts again. `units` is more than 0.
    pub(super) fn charge(
        &mut self,
        policy: &Policy,
        units: u64,
        now_ms: u64,
        counts: &mut [Count],
    ) {
        for (rule, count) in policy.rules().iter().zip(counts) {
            let section = self.section_mut(Spec::of(rule));
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
        usage: PolicyUsage<'_>,
        now_ms: u64,
        difference: i64,
    ) -> bool {
        usage.rules().iter().any(|rule| {
            self.with_section(spec(rule), |section| {
                section.change(now_ms, rule.rule().limit(), rule.step_end_ms(), difference) != 0
            })
        })
    }

    /// Settles a charge by `difference`, and counts again.
    pub(super) fn settle(
        &mut self,
        usage: PolicyUsage<'_>,
        now_ms: u64,
        difference: i64,
        counts: &mut [Count],
    ) {
        for (rule, count) in usage.rules().iter().zip(counts) {
            let section = self.section_mut(spec(rule));
            let limit = rule.rule().limit();
            section.settle(now_ms, limit, rule.step_end_ms(), difference);
            *count = section.kept();
        }
        self.tidy(usage.policy(), now_ms);
    }

    /// Whether each step that holds the slots has at least `units` that count.
    pub(super) fn has(&self, usage: PolicyUsage<'_>, now_ms: u64, units: u64) -> bool {
        usage.rules().iter().all(|rule| {
            self.with_section(spec(rule), |section| {
                section.has(now_ms, rule.step_end_ms(), units)
            })
        })
    }

    /// Moves slots that steps [have](Self::has) to the step of now, and counts.
    pub(super) fn renew(
        &mut self,
        usage: PolicyUsage<'_>,
        now_ms: u64,
        units: u64,
        counts: &mut [Count],
    ) {
        for (rule, count) in usage.rules().iter().zip(counts) {
            let section = self.section_mut(spec(rule));
            section.renew(now_ms, rule.step_end_ms(), units);
            *count = section.kept();
        }
        self.tidy(usage.policy(), now_ms);
    }

    /// The count under a rule at this time, for a charge of one unit.
    pub(super) fn count(&self, rule: &Rule, at_ms: u64) -> Count {
        self.with_section(Spec::of(rule), |it| it.look(at_ms, rule.limit(), 1))
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
    fn with_section<T>(&self, spec: Spec, read: impl FnOnce(&Section) -> T) -> T {
        let known = self.sections.iter().find(|section| section.spec() == spec);
        match known {
            Some(section) => read(section),
            None => read(&Section::new(spec)),
        }
    }

    fn section_mut(&mut self, spec: Spec) -> &mut Section {
        let mut sections = self.sections.iter();
        let index = sections
            .position(|section| section.spec() == spec)
            .unwrap_or_else(|| {
                self.sections.push(Section::new(spec));
                self.sections.len() - 1
            });
        &mut self.sections[index]
    }

    /// Drops the empty sections. From the sections that `policy` does not know, also drops steps that do not count, so
    /// that they stay released when the clock steps back, and the sections that no longer count.
    fn tidy(&mut self, policy: &Policy, now_ms: u64) {
        self.sections.retain_mut(|section| {
            let mut rules = policy.rules().iter();
            if rules.any(|rule| Spec::of(rule) == section.spec()) {
                return !section.is_empty();
            }
            section.prune(now_ms);
            section.release_ms() > now_ms
        });
    }
}

fn spec(usage: &RuleUsage) -> Spec {
    Spec::of(&usage.rule())
}
