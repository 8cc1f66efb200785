//! [`Outcome`]: the result of a simulation.

use serde::Serialize;
use serde_json::{Value, json};
use sluicegate::Rule;

use super::bound::Verdict;
use super::jobs::Job;
use super::others::Other;
use super::reading::{Counts, Reading};
use super::replay::PEAK_FACTOR;
use super::tally::{Hit, RuleTally, Tally};
use super::timeline::OverTime;
use crate::{Result, text};

/// The maximum number of spans in a plot.
const MOST_SPANS: u64 = 240;

pub(super) struct Outcome {
    pub(super) tally: Box<Tally>,
    /// The formats of the logs, each with its time.
    pub(super) formats: Vec<String>,
    /// Facts to know about the clients before you trust a verdict.
    pub(super) notes: Vec<String>,
    pub(super) lines: Counts,
    pub(super) policies: Vec<PolicyOutcome>,
    pub(super) over_time: OverTime,
    /// The identities with the most refusals, the greatest first.
    pub(super) hardest_hit: Vec<(String, Hit)>,
    /// A verdict for each `--max-refused`.
    pub(super) verdicts: Vec<Verdict>,
}

#[derive(Serialize)]
pub(super) struct PolicyOutcome {
    pub(super) name: String,
    /// The field that distinguishes clients.
    pub(super) key: String,
    pub(super) shadow: bool,
    /// The requests with a key for this policy.
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) rules: Vec<RuleOutcome>,
    /// Whether the command line names the field.
    #[serde(skip)]
    is_named: bool,
}

impl PolicyOutcome {
    /// Whether the command line names the field, and no line has it.
    pub(super) fn is_mistyped(&self) -> bool {
        self.is_named && self.requests == 0
    }
}

#[derive(Serialize)]
pub(super) struct RuleOutcome {
    pub(super) rule: String,
    /// The requests that this rule refused, alone or together with others.
    pub(super) refused: u64,
    /// The requests that only this rule refused.
    pub(super) alone: u64,
    /// The lowest limit that refuses no request, provided that no other rule refuses one; null if that is above a
    /// hundred times the limit.
    nobody_refused_at: Option<u64>,
    pub(super) limit: u64,
    /// All refusals if this rule had another limit. For a shadow, the requests that it would have refused.
    pub(super) other_limits: Vec<OtherLimit>,
}

impl RuleOutcome {
    /// The outcome of a rule, with its replays.
    fn new<'a>(rule: &Rule, tally: RuleTally, others: impl Iterator<Item = &'a Other>) -> Self {
        let (alone, others): (Vec<&Other>, Vec<&Other>) = others.partition(|it| it.limit.is_none());
        let limits = others.iter().filter_map(|it| {
            let (limit, refused) = (it.limit?, it.refused);
            Some(OtherLimit { limit, refused })
        });
        let alone = alone.into_iter().filter(|peak| peak.refused == 0);
        Self {
            rule: rule.to_string(),
            refused: tally.refused,
            alone: tally.alone,
            nobody_refused_at: alone.map(|peak| peak.peak).next(),
            limit: rule.limit(),
            other_limits: limits.collect(),
        }
    }

    /// The lowest limit that refuses no request, as text.
    pub(super) fn min_limit(&self) -> String {
        let tried = self.limit.max(1).saturating_mul(PEAK_FACTOR);
        self.nobody_refused_at
            .map_or_else(|| format!("> {}", text::grouped(tried)), text::grouped)
    }

    /// The limit itself and the other limits, each with its refusals.
    pub(super) fn limits(&self, now: u64) -> Vec<OtherLimit> {
        let (limit, refused) = (self.limit, now);
        let mut limits = self.other_limits.clone();
        limits.push(OtherLimit { limit, refused });
        limits.sort_by_key(|other| other.limit);
        limits
    }

    /// The change in refusals with another limit, as text.
    pub(super) fn change(&self, other: &OtherLimit, now: u64) -> String {
        match other.refused.checked_sub(now) {
            Some(_) if other.limit == self.limit => "now".to_owned(),
            Some(0) => "=".to_owned(),
            Some(more) => format!("+{}", text::grouped(more)),
            None => format!("−{}", text::grouped(now - other.refused)),
        }
    }
}

#[derive(Clone, Serialize)]
pub(super) struct OtherLimit {
    pub(super) limit: u64,
    pub(super) refused: u64,
}

impl Outcome {
    pub(super) fn new(reading: Reading<'_>, jobs: Vec<Job>, top: usize) -> Result<Self> {
        let mapping = &reading.mapping;
        let (mut tally, mut others) = (None, Vec::new());
        jobs.into_iter().for_each(|job| match job {
            Job::Tally(all) => tally = Some(all),
            Job::Other(other) => others.push(other),
        });
        let Some(mut tally) = tally else {
            unreachable!("it was among the jobs");
        };
        tally.finish()?;
        // The threads return the jobs in another order.
        others.sort_by_key(|other| (other.rule, other.limit));
        let policies = mapping.policies.iter().zip(&tally.policies);
        let policies = policies.map(|(mapped, counts)| {
            let policy = &mapped.policy;
            let rules = (mapped.first_rule..).zip(policy.rules());
            let rules = rules.map(|(place, rule)| {
                let others = others.iter().filter(|other| other.rule == place);
                RuleOutcome::new(rule, tally.rules[place], others)
            });
            PolicyOutcome {
                name: policy.name().to_owned(),
                key: mapping.name(mapped.key).to_owned(),
                shadow: policy.is_shadow(),
                requests: counts.requests,
                refused: counts.refused,
                rules: rules.collect(),
                is_named: mapped.is_named,
            }
        });
        let hits = tally.hits.iter();
        let hits = hits.map(|(key, hit)| (text::identity(key), *hit));
        let mut hardest_hit: Vec<(String, Hit)> = hits.collect();
        hardest_hit.sort_by(|(one, a), (two, b)| b.refused.cmp(&a.refused).then(one.cmp(two)));
        hardest_hit.truncate(top);
        let mut notes = mapping.notes();
        notes.extend(reading.formats.iter().filter_map(|it| it.1.clone()));
        Ok(Self {
            formats: reading.formats.iter().map(|it| it.0.clone()).collect(),
            notes,
            lines: reading.counts,
            policies: policies.collect(),
            over_time: tally.timeline.spans(MOST_SPANS, tally.rules.len()),
            hardest_hit,
            verdicts: Vec::new(),
            tally,
        })
    }

    /// The answer as JSON.
    pub(super) fn document(&self) -> Value {
        let tally = &self.tally;
        let time = |ms| (tally.requests > 0).then(|| text::rfc3339(ms));
        let hit = self.hardest_hit.iter().map(|(identity, hit)| {
            json!({
                "identity": identity, "refused": hit.refused, "first_ms": hit.first_ms, "last_ms": hit.last_ms,
            })
        });
        json!({
            "requests": tally.requests, "refused": tally.refused, "banned": tally.banned,
            "unlimited": tally.unlimited, "from": time(tally.first_ms), "to": time(tally.last_ms),
            "lines": self.lines, "policies": self.policies, "over_time": self.over_time,
            "hardest_hit": hit.collect::<Vec<_>>(), "identities_refused": tally.hits.len(), "full": tally.full,
            "verdicts": self.verdicts, "formats": self.formats, "notes": self.notes,
        })
    }

    /// All rules in the order of their indices.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&PolicyOutcome, &RuleOutcome)> {
        let policies = self.policies.iter();
        policies.flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)))
    }
}
