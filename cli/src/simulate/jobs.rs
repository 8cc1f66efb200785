//! [`Jobs`]: replays of the whole log under the policies of the file and under changed ones, shared by threads; and
//! `--decisions`, a line of JSON for each request.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::{panic, thread};

use serde_json::{Value, json};
use sluicegate::error::ConfigError;
use sluicegate::rule::MAX_UNITS;
use sluicegate::{Decision, Policy};

use super::options::SimulateArgs;
use super::replay::{Replay, limited, refuses};
use super::request::{Mapped, Mapping, Request};
use super::tally::{OtherLimit, PEAK_FACTOR, Tally};
use crate::{Error, Result, text};

/// Each replay has its own store.
pub(super) struct Jobs {
    replay: Replay,
    /// The file of `--decisions`, with a line of JSON for each request.
    decisions: Option<(PathBuf, BufWriter<File>)>,
    tally: Tally,
    others: Vec<Other>,
}

/// A replay under changed policies.
struct Other {
    replay: Replay,
    /// The indices of a policy, and of its rule that has another limit.
    policy: usize,
    rule: usize,
    /// `None`: the rule is replayed alone, with a limit that hardly ever refuses a request, so that no other rule
    /// refuses one first. The highest use is the lowest limit that refuses nothing.
    limit: Option<u64>,
    is_shadow: bool,
    refused: u64,
    /// The highest use of the rules.
    peak: u64,
}

impl Jobs {
    pub(super) fn new(mapping: &Mapping, args: &SimulateArgs) -> Result<Self> {
        let (policies, capacity) = (&mapping.policies, args.keys);
        let mut others = Vec::new();
        for (policy, mapped) in policies.iter().enumerate() {
            for (rule, of) in mapped.policy.rules().iter().enumerate() {
                let limits = other_limits(of.limit(), &args.factors);
                for limit in std::iter::once(None).chain(limits.into_iter().map(Some)) {
                    let changed = match limit {
                        Some(limit) => with_limit(policies, policy, rule, limit),
                        None => peak(mapped, rule),
                    };
                    others.push(Other {
                        replay: Replay::new(changed.map_err(Error::usage)?, capacity)?,
                        policy,
                        rule,
                        limit,
                        is_shadow: limit.is_some() && mapped.policy.is_shadow(),
                        refused: 0,
                        peak: 0,
                    });
                }
            }
        }
        let decisions = args.decisions.as_ref().map(|path| {
            let file = File::create(path).map_err(|error| Error::file(path, &error))?;
            Ok::<_, Error>((path.clone(), BufWriter::new(file)))
        });
        Ok(Self {
            replay: Replay::new(policies.clone(), capacity)?,
            decisions: decisions.transpose()?,
            tally: Tally::new(mapping, capacity),
            others,
        })
    }

    /// Replays the next requests in all jobs.
    pub(super) fn take(&mut self, requests: &[Request]) -> Result<()> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let share = self.others.len().div_ceil(count).max(1);
        let shares = self.others.chunks_mut(share);
        thread::scope(|scope| {
            let others = shares.map(|share| {
                let mut all = share.iter_mut();
                scope.spawn(move || all.try_for_each(|it| it.take(requests)))
            });
            let others: Vec<_> = others.collect();
            for request in requests {
                let decision = self.replay.decide(request)?;
                if let Some((path, file)) = &mut self.decisions {
                    let written = writeln!(file, "{}", line(request, decision.as_ref()));
                    written.map_err(|error| Error::file(path, &error))?;
                }
                self.tally.take(request, decision.as_ref());
            }
            // This locks every shard, which would be too slow for each request.
            self.tally.full |= self.replay.is_full();
            let mut joined = others.into_iter().map(thread::ScopedJoinHandle::join);
            joined.try_for_each(|it| it.unwrap_or_else(|it| panic::resume_unwind(it)))
        })
    }

    /// The counts of all replays.
    pub(super) fn finish(mut self) -> Result<Tally> {
        for other in self.others {
            let rule = &mut self.tally.policies[other.policy].rules[other.rule];
            let refused = other.refused;
            match other.limit {
                Some(limit) => rule.other_limits.push(OtherLimit { limit, refused }),
                None => rule.nobody_refused_at = (refused == 0).then_some(other.peak),
            }
        }
        if let Some((path, mut file)) = self.decisions {
            file.flush().map_err(|error| Error::file(&path, &error))?;
        }
        Ok(self.tally)
    }
}

impl Other {
    fn take(&mut self, requests: &[Request]) -> Result<()> {
        for request in requests {
            let Some(decision) = self.replay.decide(request)? else {
                continue;
            };
            // Refusals by other shadows do not count here.
            let mapped = &self.replay.policies;
            let own = |policy: &Policy| mapped[self.policy].policy.name() == policy.name();
            let mut shadows = decision.usage().shadow().into_iter();
            let is_refused = match self.is_shadow {
                false => !decision.is_allowed(),
                true => shadows.any(|it| {
                    let mut policies = it.usage().policies();
                    policies.any(|it| refuses(&it) && own(it.policy()))
                }),
            };
            self.refused += u64::from(is_refused);
            if self.limit.is_none() {
                let rules = decision.usage().rules();
                let used = rules.map(|it| it.rule().limit() - it.remaining());
                self.peak = used.fold(self.peak, u64::max);
            }
        }
        Ok(())
    }
}

/// The scaled limits: rounded, at least 1, without duplicates and without the limit itself.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "limits that a log can reach are exact; a cast of a float saturates"
)]
fn other_limits(limit: u64, factors: &[f64]) -> Vec<u64> {
    let scaled = |factor: &f64| (limit as f64 * factor).round().max(1.0) as u64;
    let limits = factors.iter().map(|factor| scaled(factor).min(MAX_UNITS));
    let mut limits: Vec<u64> = limits.filter(|other| *other != limit).collect();
    limits.sort_unstable();
    limits.dedup();
    limits
}

/// The same policies with another limit in one rule. Bans stay.
fn with_limit(
    policies: &[Mapped],
    policy: usize,
    rule: usize,
    limit: u64,
) -> Result<Vec<Mapped>, ConfigError> {
    let mut policies = policies.to_vec();
    let policy = &mut policies[policy].policy;
    let mut rules = policy.rules().to_vec();
    rules[rule] = limited(&rules[rule], limit);
    let mut changed = Policy::new(policy.name(), rules)?;
    if policy.is_shadow() {
        changed = changed.shadow();
    }
    if let Some(ban) = policy.ban_config() {
        changed = changed.ban(ban);
    }
    *policy = changed;
    Ok(policies)
}

/// A policy with this rule only, with a limit that hardly ever refuses a request. It is no shadow and has no ban.
fn peak(mapped: &Mapped, rule: usize) -> Result<Vec<Mapped>, ConfigError> {
    let rule = &mapped.policy.rules()[rule];
    let limit = rule.limit().max(1).saturating_mul(PEAK_FACTOR);
    let mut mapped = mapped.clone();
    mapped.policy = Policy::new(mapped.policy.name(), [limited(rule, limit)])?;
    Ok(vec![mapped])
}

/// The line of a request in the file of `--decisions`.
fn line(request: &Request, decision: Option<&Decision>) -> Value {
    let (denial, blocked, retry_after) = match decision {
        Some(Decision::Denied(denial)) => (Some(denial), None, denial.retry_after()),
        Some(Decision::Blocked(blocked)) => (None, Some(blocked), blocked.retry_after()),
        _ => (None, None, None),
    };
    let shadow = decision.and_then(|decision| decision.usage().shadow());
    let shadows = shadow.iter().flat_map(|it| it.usage().policies());
    let shadows = shadows.filter(refuses);
    let shadows: Vec<&str> = shadows.map(|usage| usage.policy().name()).collect();
    let mut line = json!({
        "file": request.file, "line": request.line, "time_ms": request.ms,
        // Without a key for any policy, the middleware lets the request pass.
        "allowed": decision.is_none_or(Decision::is_allowed),
        "policy": denial.map(|denial| denial.policy().name()),
        "rule": denial.map(|denial| denial.rule().rule().to_string()),
        "retry_after_ms": retry_after.map(text::millis),
        "banned": blocked.map(|blocked| text::identity(blocked.key())),
        "shadow_refused": (!shadows.is_empty()).then_some(shadows),
    });
    if let Some(fields) = line.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    line
}
