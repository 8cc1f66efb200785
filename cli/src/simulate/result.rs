//! [`Outcome`]: the result of a simulation, in the form of `--json`. Fields are only ever added.

use serde::Serialize;
use sluicegate::Rule;

use super::{
    super::{error::Result, text},
    jobs::Job,
    others::{Peak, Variant},
    reading::Counts,
    replay::PEAK_FACTOR,
    request::Mapping,
    tally::{RuleTally, Tally},
    timeline::Span,
};

/// The maximum number of spans in a plot.
const MOST_SPANS: u64 = 240;

/// The maximum number of spans in a chart of text.
const FEW_SPANS: u64 = 24;

#[derive(Serialize)]
pub(super) struct Outcome {
    /// The replayed requests.
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The refused requests of banned identities.
    pub(super) banned: u64,
    /// The requests without a key for any policy.
    pub(super) unlimited: u64,
    /// RFC 3339; null without requests.
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) lines: Counts,
    pub(super) policies: Vec<PolicyOutcome>,
    pub(super) over_time: OverTime,
    /// The identities with the most refusals, the greatest first.
    pub(super) hardest_hit: Vec<Identity>,
    /// The number of identities with at least one refusal.
    pub(super) identities_refused: usize,
    /// Whether a store or the list of identities was full. Then counts are too low: see --keys.
    pub(super) full: bool,
    /// A verdict for each `--max-refused`.
    pub(super) verdicts: Vec<Verdict>,
    #[serde(skip)]
    pub(super) few: OverTime,
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
    pub(super) nobody_refused_at: Option<u64>,
    pub(super) limit: u64,
    /// All refusals if this rule had another limit. For a shadow, the requests that it would have refused.
    pub(super) other_limits: Vec<OtherLimit>,
}

impl RuleOutcome {
    fn new<'a>(
        rule: &Rule,
        counts: RuleTally,
        peak: &Peak,
        others: impl Iterator<Item = &'a Variant>,
    ) -> Self {
        let others = others.map(|variant| OtherLimit {
            limit: variant.limit,
            refused: variant.refused,
        });
        Self {
            rule: rule.to_string(),
            refused: counts.refused,
            alone: counts.alone,
            nobody_refused_at: (!peak.is_more).then_some(peak.units),
            limit: rule.limit(),
            other_limits: others.collect(),
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
        let own = OtherLimit {
            limit: self.limit,
            refused: now,
        };
        let mut limits = self.other_limits.clone();
        limits.push(own);
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

#[derive(Serialize)]
pub(super) struct OverTime {
    /// The length of each span.
    pub(super) seconds: u64,
    pub(super) spans: Vec<Span>,
}

impl OverTime {
    /// The highest number of requests in one span.
    pub(super) fn most_requests(&self) -> u64 {
        let requests = self.spans.iter().map(|span| span.requests);
        requests.max().unwrap_or(0)
    }
}

#[derive(Serialize)]
pub(super) struct Identity {
    pub(super) identity: String,
    pub(super) refused: u64,
    /// The times of the first and the last refusal, in ms since the Unix epoch.
    pub(super) first_ms: u64,
    pub(super) last_ms: u64,
}

/// A bound, compared with the outcome.
#[derive(Serialize)]
pub(super) struct Verdict {
    /// Null: all requests.
    pub(super) policy: Option<String>,
    /// As you wrote it.
    pub(super) max_refused: String,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The most refusals that the bound allows.
    pub(super) most: u64,
    pub(super) kept: bool,
}

impl Outcome {
    /// All rules in the order of their indices.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&PolicyOutcome, &RuleOutcome)> {
        let policies = self.policies.iter();
        policies.flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)))
    }

    /// The refused requests and all requests that another limit of this policy could change.
    pub(super) fn counts_with(&self, policy: &PolicyOutcome) -> (u64, u64) {
        if policy.shadow {
            (policy.refused, policy.requests)
        } else {
            (self.refused, self.requests)
        }
    }

    pub(super) fn new(
        mapping: &Mapping,
        jobs: Vec<Job>,
        lines: Counts,
        top: usize,
    ) -> Result<Self> {
        let (mut tally, mut peaks, mut variants) = (None, Vec::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Tally(all) => tally = Some(all),
                Job::Peak(peak) => peaks.push(peak),
                Job::Variant(variant) => variants.push(variant),
            }
        }
        let Some(mut tally) = tally else {
            unreachable!("it was among the jobs");
        };
        tally.finish()?;
        // The threads return the jobs in another order.
        peaks.sort_by_key(|peak| peak.rule);
        variants.sort_by_key(|variant| (variant.rule, variant.limit));
        let policies = mapping.policies.iter().zip(&tally.policies);
        let policies = policies.map(|(mapped, counts)| {
            let policy = &mapped.policy;
            let rules = (mapped.first_rule..).zip(policy.rules());
            let rules = rules.map(|(place, rule)| {
                let others = variants.iter().filter(|variant| variant.rule == place);
                RuleOutcome::new(rule, tally.rules[place], &peaks[place], others)
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
        let time = |ms| (tally.requests > 0).then(|| text::rfc3339(ms));
        Ok(Self {
            requests: tally.requests,
            refused: tally.refused,
            banned: tally.banned,
            unlimited: tally.unlimited,
            from: time(tally.first_ms),
            to: time(tally.last_ms),
            lines,
            policies: policies.collect(),
            over_time: over_time(&tally, MOST_SPANS),
            few: over_time(&tally, FEW_SPANS),
            hardest_hit: hardest_hit(&tally, top),
            identities_refused: tally.hits.len(),
            full: tally.full,
            verdicts: Vec::new(),
        })
    }
}

fn over_time(tally: &Tally, most: u64) -> OverTime {
    let (seconds, mut spans) = tally.timeline.spans(most);
    for span in &mut spans {
        span.by_rule.resize(tally.rules.len(), 0);
    }
    OverTime { seconds, spans }
}

fn hardest_hit(tally: &Tally, top: usize) -> Vec<Identity> {
    let mut hits: Vec<_> = tally.hits.iter().collect();
    hits.sort_by(|(one, a), (two, b)| {
        let by_count = b.refused.cmp(&a.refused);
        by_count.then_with(|| (one.kind(), one.value()).cmp(&(two.kind(), two.value())))
    });
    let hits = hits.into_iter().take(top).map(|(key, hit)| Identity {
        identity: text::identity(key),
        refused: hit.refused,
        first_ms: hit.first_ms,
        last_ms: hit.last_ms,
    });
    hits.collect()
}
