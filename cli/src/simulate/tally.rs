//! [`Tally`]: the counts of a replay under the policies of the file.

use std::collections::HashMap;
use std::path::Path;

use sluicegate::{Decision, Denial, Key};

use super::decisions::Decisions;
use super::replay;
use super::replay::Replay;
use super::request::{Mapped, Request};
use super::timeline::Timeline;
use crate::Result;

#[derive(Clone, Copy, Default)]
pub(super) struct PolicyTally {
    /// The requests with a key for this policy.
    pub(super) requests: u64,
    pub(super) refused: u64,
}

#[derive(Clone, Copy, Default)]
pub(super) struct RuleTally {
    /// The requests that this rule refused, alone or together with others.
    pub(super) refused: u64,
    /// The requests that no other rule refused.
    pub(super) alone: u64,
}

/// The refusals of one identity.
#[derive(Clone, Copy)]
pub(super) struct Hit {
    pub(super) refused: u64,
    pub(super) first_ms: u64,
    pub(super) last_ms: u64,
}

pub(super) struct Tally {
    replay: Replay,
    most_identities: usize,
    decisions: Option<Decisions>,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The refused requests of banned identities.
    pub(super) banned: u64,
    /// The requests without a key for any policy.
    pub(super) unlimited: u64,
    pub(super) first_ms: u64,
    pub(super) last_ms: u64,
    pub(super) policies: Vec<PolicyTally>,
    /// In the order of policies and rules.
    pub(super) rules: Vec<RuleTally>,
    pub(super) timeline: Timeline,
    /// The refusals by identity, for at most `most_identities`.
    pub(super) hits: HashMap<Key, Hit>,
    /// Whether the store may have forgotten counts.
    pub(super) full: bool,
}

impl Tally {
    pub(super) fn new(policies: Vec<Mapped>, capacity: usize, to: Option<&Path>) -> Result<Self> {
        let rules = policies.iter().map(|it| it.policy.rules().len()).sum();
        Ok(Self {
            most_identities: capacity,
            decisions: to.map(Decisions::create).transpose()?,
            requests: 0,
            refused: 0,
            banned: 0,
            unlimited: 0,
            first_ms: 0,
            last_ms: 0,
            policies: vec![PolicyTally::default(); policies.len()],
            rules: vec![RuleTally::default(); rules],
            timeline: Timeline::default(),
            hits: HashMap::new(),
            full: false,
            // Last, because it takes the policies.
            replay: Replay::new(policies, capacity)?,
        })
    }

    pub(super) fn take(&mut self, request: &Request) -> Result<()> {
        let decision = self.replay.decide(request)?;
        if self.requests == 0 {
            self.first_ms = request.ms;
        }
        self.requests += 1;
        self.last_ms = request.ms;
        self.timeline.at(request.ms).requests += 1;
        for (mapped, tally) in self.replay.policies.iter().zip(&mut self.policies) {
            tally.requests += u64::from(request.keys[mapped.key].is_some());
        }
        if let Some(decisions) = &mut self.decisions {
            decisions.write(request, decision.as_ref())?;
        }
        match decision {
            // With a key, a full store had no room for it.
            None => self.unlimited += u64::from(request.keys.iter().all(Option::is_none)),
            Some(Decision::Denied(denial)) => self.refuse(request, &denial),
            Some(Decision::Blocked(blocked)) => {
                self.banned += 1;
                self.count_refusal(request.ms, &[]);
                self.timeline.at(request.ms).banned += 1;
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
        // This locks every shard, which would be too slow for each request.
        if self.requests.is_multiple_of(4_096) {
            self.full |= self.replay.is_full();
        }
        Ok(())
    }

    fn refuse(&mut self, request: &Request, denial: &Denial) {
        let refusing = self.count_rules(denial);
        self.count_refusal(request.ms, &refusing);
        let mut told: Vec<&Key> = Vec::new();
        for policy in denial.usage().policies().filter(replay::refuses) {
            let place = self.replay.place(policy.policy());
            let key =
                place.and_then(|place| request.keys[self.replay.policies[place].key].as_ref());
            let Some(key) = key.filter(|key| !told.contains(key)) else {
                continue;
            };
            told.push(key);
            self.hit(key, request.ms);
        }
    }

    fn count_refusal(&mut self, ms: u64, rules: &[usize]) {
        self.refused += 1;
        let span = self.timeline.at(ms);
        span.refused += 1;
        span.by_rule.resize(self.rules.len(), 0);
        for rule in rules {
            span.by_rule[*rule] += 1;
        }
    }

    fn hit(&mut self, key: &Key, ms: u64) {
        let is_full = self.hits.len() >= self.most_identities;
        if let Some(hit) = self.hits.get_mut(key) {
            hit.refused += 1;
            hit.last_ms = ms;
        } else if is_full {
            self.full = true;
        } else {
            let hit = Hit {
                refused: 1,
                first_ms: ms,
                last_ms: ms,
            };
            self.hits.insert(key.clone(), hit);
        }
    }

    /// Counts the rules that refuse. Returns their indices.
    fn count_rules(&mut self, denial: &Denial) -> Vec<usize> {
        let mut refusing = Vec::new();
        for policy in denial.usage().policies() {
            let Some(place) = self.replay.place(policy.policy()) else {
                continue;
            };
            let rules = (self.replay.policies[place].first_rule..).zip(policy.rules());
            let exceeded = rules.filter(|(_, rule)| rule.is_exceeded());
            let before = refusing.len();
            refusing.extend(exceeded.map(|(place, _)| place));
            self.policies[place].refused += u64::from(refusing.len() > before);
        }
        for rule in &refusing {
            self.rules[*rule].refused += 1;
            self.rules[*rule].alone += u64::from(refusing.len() == 1);
        }
        refusing
    }

    /// Writes buffered lines to the file.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.full |= self.replay.is_full();
        self.decisions.as_mut().map_or(Ok(()), Decisions::flush)
    }
}
