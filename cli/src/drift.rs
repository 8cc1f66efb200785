//! Stored rules that the file of policies does not have. If the file is not that of the service, a denied identity
//! seems to pass.

use std::io::Write;

use serde::Serialize;
use sluicegate::{
    Policy,
    store::redis::inspect::{Section, StoredValue},
};

use super::{
    error::Result,
    output::{Output, WARN},
    published::Source,
    text::{grouped, millis, without_limit},
};

/// A rule that is stored, but not in the file. Fields are only ever added.
#[derive(Serialize)]
pub(crate) struct OtherRule {
    /// The rule without its limit, which is not stored: `?/10s`.
    pub(crate) rule: String,
    pub(crate) used: u64,
    /// Whether the last charge added units to this rule. If not, a former rule left them.
    pub(crate) is_charged: bool,
}

impl OtherRule {
    /// The rules of a stored value that none of the policies has, and whose units count at this time.
    pub(crate) fn of(value: &StoredValue, policies: &[Policy], now_ms: u64) -> Vec<Self> {
        let sections = value.sections().iter();
        let others = sections.filter(|section| {
            let mut rules = policies.iter().flat_map(Policy::rules);
            let is_known = rules.any(|rule| section.is_of(rule));
            !is_known && section.used(now_ms) > 0
        });
        let others = others.map(|section| Self {
            rule: without_limit(&section.rule(0)),
            used: section.used(now_ms),
            is_charged: is_charged(section, value),
        });
        others.collect()
    }

    /// `?/10s under ip, with 96 used`
    pub(crate) fn text(&self, policy: &str) -> String {
        format!(
            "{} under {policy}, with {} used",
            self.rule,
            grouped(self.used)
        )
    }
}

/// Names the other policies with a stored value for an identity.
pub(crate) fn write_other_policies(
    policies: &[String],
    source: Source,
    output: &mut Output,
) -> Result<()> {
    if !policies.is_empty() {
        let (policies, lacks) = (policies.join(", "), source.lacks());
        writeln!(
            output,
            "{WARN}counts are stored under policies that {lacks}: {policies}{WARN:#}"
        )?;
    }
    Ok(())
}

/// Whether the last charge wrote this section. Each charge adds to all rules of a policy and writes the first section,
/// so compare with that one.
fn is_charged(section: &Section, value: &StoredValue) -> bool {
    let first = value.sections().first().map(newest_step);
    first.is_some_and(|first| {
        let step = newest_step(section);
        step.start < first.end && first.start < step.end
    })
}

/// The time in which the newest units were charged.
fn newest_step(section: &Section) -> std::ops::Range<u64> {
    let (rule, end_ms) = (section.rule(0), section.newest_end_ms());
    match rule.refill() {
        Some(_) => end_ms..end_ms + 1,
        None => end_ms.saturating_sub(millis(rule.step()))..end_ms,
    }
}
