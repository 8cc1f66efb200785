use crate::{
    charge::Charge,
    decision::{Count, PolicyUsage, RuleUsage},
    policy::Policy,
    window::{Section, Span},
};

/// What is kept for one policy's name and one key: a section for each span that somebody's rules have.
#[derive(Debug)]
pub(super) struct Entry {
    sections: Vec<Section>,
}

impl Entry {
    pub(super) const fn new() -> Self {
        Self {
            sections: Vec::new(),
        }
    }

    /// Counts under each rule of a charge, and answers whether its cost fits all.
    pub(super) fn look(&self, charge: &Charge, now_ms: u64, counts: &mut [Count]) -> bool {
        let cost = charge.cost();
        let mut fits = true;
        for (rule, count) in charge.policy().rules().iter().zip(counts) {
            *count = self.with_section(Span::of(rule), |section| {
                section.look(now_ms, rule.limit(), cost)
            });
            fits &= count.used + cost <= rule.limit();
        }
        fits
    }

    /// Adds a cost above 0 under each rule, and counts again.
    pub(super) fn charge(&mut self, charge: &Charge, now_ms: u64, counts: &mut [Count]) {
        for (rule, count) in charge.policy().rules().iter().zip(counts) {
            let section = self.section_mut(Span::of(rule));
            section.charge(now_ms, charge.cost());
            *count = section.kept();
        }
        self.tidy(charge.policy(), now_ms);
    }

    /// Whether adding `difference` to the steps that were charged would change anything.
    pub(super) fn would_settle(
        &self,
        usage: PolicyUsage<'_>,
        now_ms: u64,
        difference: i64,
    ) -> bool {
        usage.rules().iter().any(|rule| {
            self.with_section(span(rule), |section| {
                section.change(now_ms, rule.step_end_ms(), difference) != 0
            })
        })
    }

    /// Adds `difference` to the steps that were charged, and counts.
    pub(super) fn settle(
        &mut self,
        usage: PolicyUsage<'_>,
        now_ms: u64,
        difference: i64,
        counts: &mut [Count],
    ) {
        for (rule, count) in usage.rules().iter().zip(counts) {
            let section = self.section_mut(span(rule));
            section.settle(now_ms, rule.step_end_ms(), difference);
            *count = section.kept();
        }
        self.tidy(usage.policy(), now_ms);
    }

    /// When the last unit of all is released; 0 when there is none.
    pub(super) fn release_ms(&self) -> u64 {
        let releases = self.sections.iter().map(Section::release_ms);
        releases.max().unwrap_or(0)
    }

    /// Calls `read` with the section of this span, an empty one if there is none.
    fn with_section<T>(&self, span: Span, read: impl FnOnce(&Section) -> T) -> T {
        let known = self.sections.iter().find(|section| section.span() == span);
        match known {
            Some(section) => read(section),
            None => read(&Section::new(span)),
        }
    }

    fn section_mut(&mut self, span: Span) -> &mut Section {
        let known = self
            .sections
            .iter()
            .position(|section| section.span() == span);
        let index = known.unwrap_or_else(|| {
            self.sections.push(Section::new(span));
            self.sections.len() - 1
        });
        &mut self.sections[index]
    }

    /// Drops the sections that hold nothing, and of those that `policy` does not know the ones that count no more.
    fn tidy(&mut self, policy: &Policy, now_ms: u64) {
        self.sections.retain(|section| {
            let is_own = || {
                let mut rules = policy.rules().iter();
                rules.any(|rule| Span::of(rule) == section.span())
            };
            !section.is_empty() && (section.release_ms() > now_ms || is_own())
        });
    }
}

fn span(usage: &RuleUsage) -> Span {
    Span::of(&usage.rule())
}
