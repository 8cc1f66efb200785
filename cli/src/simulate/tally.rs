//! [`Tally`]: the counts of a replay under the policies of the file.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use sluicegate::{Decision, Denial, Key, Policy};

use super::request::{Mapping, Request};
use super::timeline::Timeline;

/// Higher than you would raise a limit. The factor bounds the number of steps of a key.
pub(super) const PEAK_FACTOR: u64 = 100;

/// The decisions that the store of a replay may have made.
pub(super) const FULL: &str = "a store was full and may have forgotten counts: give it more --keys";

/// The counts of a policy as JSON.
#[derive(Serialize)]
pub(super) struct PolicyTally {
    pub(super) name: String,
    /// The field that distinguishes clients.
    pub(super) key: String,
    pub(super) shadow: bool,
    /// The requests with a key for this policy.
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) rules: Vec<RuleTally>,
    /// The index of the field, and of the first rule among those of all policies.
    #[serde(skip)]
    field: usize,
    #[serde(skip)]
    first_rule: usize,
}

#[derive(Default, Serialize)]
pub(super) struct RuleTally {
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

#[derive(Clone, Serialize)]
pub(super) struct OtherLimit {
    pub(super) limit: u64,
    pub(super) refused: u64,
}

/// The refusals of one identity.
#[derive(Clone, Copy, Default)]
pub(super) struct Hit {
    pub(super) refused: u64,
    pub(super) first_ms: u64,
    pub(super) last_ms: u64,
}

#[derive(Default)]
pub(super) struct Tally {
    most_identities: usize,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The refused requests of banned identities.
    pub(super) banned: u64,
    /// The requests without a key for any policy.
    pub(super) unlimited: u64,
    pub(super) first_ms: u64,
    pub(super) last_ms: u64,
    pub(super) policies: Vec<PolicyTally>,
    pub(super) timeline: Timeline,
    /// The refusals by identity, for at most `most_identities`.
    pub(super) hits: HashMap<Key, Hit>,
    /// Whether the store may have forgotten counts.
    pub(super) full: bool,
}

impl Tally {
    pub(super) fn new(mapping: &Mapping, most_identities: usize) -> Self {
        let mut count = 0;
        let policies = mapping.policies.iter().map(|mapped| {
            let rules = mapped.policy.rules().iter().map(|rule| RuleTally {
                rule: rule.to_string(),
                limit: rule.limit(),
                ..RuleTally::default()
            });
            count += rules.len();
            PolicyTally {
                name: mapped.policy.name().to_owned(),
                key: mapping.fields[mapped.key].to_owned(),
                shadow: mapped.policy.is_shadow(),
                requests: 0,
                refused: 0,
                field: mapped.key,
                first_rule: count - rules.len(),
                rules: rules.collect(),
            }
        });
        Self {
            policies: policies.collect(),
            timeline: Timeline::new(count),
            most_identities,
            ..Self::default()
        }
    }

    pub(super) fn take(&mut self, request: &Request, decision: Option<&Decision>) {
        if self.requests == 0 {
            self.first_ms = request.ms;
        }
        self.requests += 1;
        self.last_ms = request.ms;
        self.timeline.at(request.ms).requests += 1;
        for policy in &mut self.policies {
            policy.requests += u64::from(request.keys[policy.field].is_some());
        }
        match decision {
            // With a key, a full store had no room for it.
            None => self.unlimited += u64::from(request.keys.iter().all(Option::is_none)),
            Some(Decision::Denied(denial)) => self.deny(request, denial),
            Some(Decision::Blocked(blocked)) => {
                self.refused += 1;
                self.banned += 1;
                let span = self.timeline.at(request.ms);
                span.refused += 1;
                span.banned += 1;
                self.hit(blocked.key(), request.ms);
            }
            Some(Decision::Allowed(usage)) => {
                // Refusals of a shadow count for its policy and rules, and change nothing else.
                if let Some(Decision::Denied(denial)) = usage.shadow() {
                    self.count_rules(denial);
                }
            }
            // The replay's memory store has no other decisions.
            Some(_) => {}
        }
    }

    fn deny(&mut self, request: &Request, denial: &Denial) {
        self.refused += 1;
        let refusing = self.count_rules(denial);
        let span = self.timeline.at(request.ms);
        span.refused += 1;
        for (policy, rule) in &refusing {
            span.by_rule[self.policies[*policy].first_rule + rule] += 1;
        }
        let fields = refusing.iter().map(|it| self.policies[it.0].field);
        let keys = fields.filter_map(|field| request.keys[field].as_ref());
        for key in keys.collect::<HashSet<&Key>>() {
            self.hit(key, request.ms);
        }
    }

    fn hit(&mut self, key: &Key, ms: u64) {
        if !self.hits.contains_key(key) && self.hits.len() >= self.most_identities {
            self.full = true;
            return;
        }
        let hit = self.hits.entry(key.clone()).or_default();
        if hit.refused == 0 {
            hit.first_ms = ms;
        }
        hit.refused += 1;
        hit.last_ms = ms;
    }

    /// Counts the rules that refuse. Returns the indices of their policies and their own.
    fn count_rules(&mut self, denial: &Denial) -> Vec<(usize, usize)> {
        let mut refusing = Vec::new();
        for usage in denial.usage().policies() {
            let Some(place) = self.place(usage.policy()) else {
                continue;
            };
            let rules = (0..).zip(usage.rules()).filter(|it| it.1.is_exceeded());
            let before = refusing.len();
            refusing.extend(rules.map(|(rule, _)| (place, rule)));
            self.policies[place].refused += u64::from(refusing.len() > before);
        }
        for (policy, rule) in &refusing {
            let rule = &mut self.policies[*policy].rules[*rule];
            rule.refused += 1;
            rule.alone += u64::from(refusing.len() == 1);
        }
        refusing
    }

    fn place(&self, policy: &Policy) -> Option<usize> {
        let mut policies = self.policies.iter();
        policies.position(|it| it.name == policy.name())
    }

    /// All rules, each with its policy.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&PolicyTally, &RuleTally)> {
        let policies = self.policies.iter();
        policies.flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)))
    }
}
