//! What is counted while a log is replayed: [`Tally`] for the policies as they are, [`Variant`] and [`Peaks`] for others.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use sluicegate::{Decision, Denial, Key, Policy, StoreError};

use super::{
    super::{error::Error, text},
    replay::Replay,
    request::Request,
    timeline::Timeline,
};

/// One thing that is counted over the whole log.
pub(super) enum Job {
    Tally(Box<Tally>),
    Variant(Variant),
    Peaks(Peaks),
}

impl Job {
    pub(super) fn take(&mut self, request: &Request) -> Result<(), Error> {
        match self {
            Self::Tally(it) => it.take(request),
            Self::Variant(it) => Ok(it.take(request)?),
            Self::Peaks(it) => Ok(it.take(request)?),
        }
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct PolicyTally {
    /// Requests that had a key for it.
    pub(super) requests: u64,
    pub(super) refused: u64,
}

#[derive(Clone, Copy, Default)]
pub(super) struct RuleTally {
    /// Requests that this rule refused, alone or together with others.
    pub(super) refused: u64,
    /// Requests that no other rule refused.
    pub(super) alone: u64,
}

/// How often somebody was refused.
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
    /// Requests without a key for any policy.
    pub(super) unlimited: u64,
    pub(super) first_ms: u64,
    pub(super) last_ms: u64,
    pub(super) policies: Vec<PolicyTally>,
    /// In the order of policies and rules.
    pub(super) rules: Vec<RuleTally>,
    pub(super) timeline: Timeline,
    /// Who was refused; only those who were, and at most `most_identities`.
    pub(super) hits: HashMap<Key, Hit>,
    /// Whether the store may have forgotten counts.
    pub(super) full: bool,
    /// For each policy the place of its key, the place of its first rule, and whether it is a shadow.
    places: Vec<(Policy, usize, usize)>,
}

impl Tally {
    pub(super) fn new(
        policies: &[(Policy, usize)],
        capacity: usize,
        decisions: Option<&Path>,
    ) -> Result<Self, Error> {
        let mut first_rule = 0;
        let places = policies.iter().map(|(policy, key)| {
            let place = (policy.clone(), *key, first_rule);
            first_rule += policy.rules().len();
            place
        });
        let places: Vec<_> = places.collect();
        Ok(Self {
            replay: Replay::new(policies.to_vec(), capacity),
            most_identities: capacity,
            decisions: decisions.map(Decisions::create).transpose()?,
            requests: 0,
            refused: 0,
            unlimited: 0,
            first_ms: 0,
            last_ms: 0,
            policies: vec![PolicyTally::default(); places.len()],
            rules: vec![RuleTally::default(); first_rule],
            timeline: Timeline::default(),
            hits: HashMap::new(),
            full: false,
            places,
        })
    }

    fn take(&mut self, request: &Request) -> Result<(), Error> {
        let decision = self.replay.decide(request)?;
        if self.requests == 0 {
            self.first_ms = request.ms;
        }
        self.requests += 1;
        self.last_ms = request.ms;
        self.timeline.at(request.ms).requests += 1;
        for ((_, key, _), tally) in self.places.iter().zip(&mut self.policies) {
            tally.requests += u64::from(request.keys[*key].is_some());
        }
        if let Some(decisions) = &mut self.decisions {
            decisions.write(request, decision.as_ref())?;
        }
        match decision {
            // Nobody is blocked in a replay.
            None | Some(Decision::Blocked(_)) => self.unlimited += 1,
            Some(Decision::Denied(denial)) => self.refuse(request, &denial),
            Some(Decision::Allowed(usage)) => {
                // A shadow's refusals are told by policy and rule, and change nothing else.
                if let Some(Decision::Denied(denial)) = usage.shadow() {
                    self.count_rules(denial);
                }
            }
        }
        // Looking at every shard is not for every request.
        if self.requests.is_multiple_of(4_096) {
            self.full |= self.replay.is_full();
        }
        Ok(())
    }

    fn refuse(&mut self, request: &Request, denial: &Denial) {
        self.refused += 1;
        self.timeline.at(request.ms).refused += 1;
        let refusing = self.count_rules(denial);
        let by_rule = &mut self.timeline.at(request.ms).by_rule;
        by_rule.resize(self.rules.len(), 0);
        for rule in refusing {
            by_rule[rule] += 1;
        }
        let mut told: Vec<&Key> = Vec::new();
        for policy in denial.usage().policies() {
            let refuses = policy.rules().iter().any(|it| it.is_exceeded());
            let key = self
                .places
                .iter()
                .find(|it| it.0.name() == policy.policy().name());
            let Some(key) = key
                .and_then(|it| request.keys[it.1].as_ref())
                .filter(|key| refuses && !told.contains(key))
            else {
                continue;
            };
            told.push(key);
            let is_full = self.hits.len() >= self.most_identities;
            if let Some(hit) = self.hits.get_mut(key) {
                hit.refused += 1;
                hit.last_ms = request.ms;
            } else if is_full {
                self.full = true;
            } else {
                self.hits.insert(
                    key.clone(),
                    Hit {
                        refused: 1,
                        first_ms: request.ms,
                        last_ms: request.ms,
                    },
                );
            }
        }
    }

    /// Counts the rules that refuse, and answers their places.
    fn count_rules(&mut self, denial: &Denial) -> Vec<usize> {
        let mut refusing = Vec::new();
        for policy in denial.usage().policies() {
            let Some(place) = self
                .places
                .iter()
                .position(|it| it.0.name() == policy.policy().name())
            else {
                continue;
            };
            let exceeded = policy
                .rules()
                .iter()
                .enumerate()
                .filter(|(_, rule)| rule.is_exceeded());
            let before = refusing.len();
            refusing.extend(exceeded.map(|(rule, _)| self.places[place].2 + rule));
            self.policies[place].refused += u64::from(refusing.len() > before);
        }
        for rule in &refusing {
            self.rules[*rule].refused += 1;
            self.rules[*rule].alone += u64::from(refusing.len() == 1);
        }
        refusing
    }

    /// Writes what is left to write.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        self.full |= self.replay.is_full();
        self.decisions.as_mut().map_or(Ok(()), Decisions::flush)
    }
}

/// The whole log with another limit in one rule.
pub(super) struct Variant {
    replay: Replay,
    /// The place of the rule that is changed.
    pub(super) rule: usize,
    pub(super) limit: u64,
    shadow: bool,
    pub(super) refused: u64,
}

impl Variant {
    pub(super) fn new(
        policies: Vec<(Policy, usize)>,
        capacity: usize,
        rule: usize,
        limit: u64,
        shadow: bool,
    ) -> Self {
        Self {
            replay: Replay::new(policies, capacity),
            rule,
            limit,
            shadow,
            refused: 0,
        }
    }

    fn take(&mut self, request: &Request) -> Result<(), StoreError> {
        let refused = match self.replay.decide(request)? {
            Some(Decision::Denied(_)) => !self.shadow,
            Some(Decision::Allowed(usage)) => {
                self.shadow && matches!(usage.shadow(), Some(Decision::Denied(_)))
            }
            None | Some(Decision::Blocked(_)) => false,
        };
        self.refused += u64::from(refused);
        Ok(())
    }
}

/// The highest use of each rule when the limits are so high that hardly anybody is refused: the lowest limits under
/// which nobody would have been.
pub(super) struct Peaks {
    replay: Replay,
    /// In the order of policies and rules: the highest use, and whether somebody would have used more.
    pub(super) peaks: Vec<(u64, bool)>,
    /// The place of the first rule of each policy.
    places: Vec<(Policy, usize)>,
}

impl Peaks {
    pub(super) fn new(policies: Vec<(Policy, usize)>, capacity: usize) -> Self {
        let mut first_rule = 0;
        let places = policies.iter().map(|(policy, _)| {
            let place = (policy.clone(), first_rule);
            first_rule += policy.rules().len();
            place
        });
        let places = places.collect();
        Self {
            replay: Replay::new(policies, capacity),
            peaks: vec![(0, false); first_rule],
            places,
        }
    }

    fn take(&mut self, request: &Request) -> Result<(), StoreError> {
        if let Some(decision) = self.replay.decide(request)? {
            self.look(&decision);
            if let Some(shadow) = decision.usage().shadow() {
                self.look(shadow);
            }
        }
        Ok(())
    }

    fn look(&mut self, decision: &Decision) {
        for policy in decision.usage().policies() {
            let Some((_, first)) = self
                .places
                .iter()
                .find(|it| it.0.name() == policy.policy().name())
            else {
                continue;
            };
            for (peak, rule) in self.peaks[*first..].iter_mut().zip(policy.rules()) {
                peak.0 = peak.0.max(rule.rule().limit() - rule.remaining());
                peak.1 |= rule.is_exceeded();
            }
        }
    }
}

/// A file with a line of JSON for each request.
struct Decisions {
    path: PathBuf,
    file: BufWriter<File>,
}

#[derive(Serialize)]
struct Line<'a> {
    file: usize,
    line: u64,
    /// As it was replayed.
    time_ms: u64,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    shadow_refused: &'a [String],
}

impl Decisions {
    fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|error| Error::file(path, &error))?;
        Ok(Self {
            path: path.into(),
            file: BufWriter::new(file),
        })
    }

    fn write(&mut self, request: &Request, decision: Option<&Decision>) -> Result<(), Error> {
        let denial = match decision {
            Some(Decision::Denied(denial)) => Some(denial),
            _ => None,
        };
        let shadow = decision.and_then(|it| it.usage().shadow());
        let shadows = shadow.into_iter().flat_map(|it| it.usage().policies());
        let shadows = shadows.filter(|it| it.rules().iter().any(|rule| rule.is_exceeded()));
        let shadows: Vec<String> = shadows.map(|it| it.policy().name().to_owned()).collect();
        let line = Line {
            file: request.file,
            line: request.line,
            time_ms: request.ms,
            allowed: denial.is_none(),
            policy: denial.map(|it| it.policy().name()),
            rule: denial.map(|it| it.rule().rule().to_string()),
            retry_after_ms: { denial.and_then(Denial::retry_after) }.map(text::millis),
            shadow_refused: &shadows,
        };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(Into::into);
        written
            .and_then(|()| self.file.write_all(b"\n"))
            .map_err(|error| Error::file(&self.path, &error))
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file
            .flush()
            .map_err(|error| Error::file(&self.path, &error))
    }
}
