//! The semantics in the simplest form: every charge is kept, and each check adds all of them up.
//!
//! For clocks that go forward and rules that stay.

use std::collections::HashMap;

use sluicegate::{Policy, Rule, rule::MAX_UNITS};

use super::{
    history::{Act, History},
    outcome::{Denied, Left, Outcome, ms},
};

/// Of policy and key.
type Charge = (usize, usize, u64);

pub(crate) struct Model<'a> {
    policies: Vec<&'a Policy>,
    /// The units of each step, by policy, key and rule.
    charged: HashMap<(usize, usize, usize), Vec<(u64, u64)>>,
    open: Vec<(u64, Vec<Charge>)>,
}

impl<'a> Model<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        Self {
            policies: history
                .policies
                .iter()
                .map(|versions| &versions[0])
                .collect(),
            charged: HashMap::new(),
            open: Vec::new(),
        }
    }

    pub(crate) fn play(&mut self, now: u64, act: &Act) -> Option<Outcome> {
        match act {
            Act::Check(charges) => Some(self.check(now, &added_up(charges))),
            Act::Settle(_, _) if self.open.is_empty() => None,
            Act::Settle(check, costs) => {
                let (then, charges) = self.open.remove(check.index(self.open.len()));
                for (charge, cost) in charges.iter().zip(costs.iter().cycle()) {
                    self.settle(now, then, *charge, (*cost).min(MAX_UNITS));
                }
                Some(self.outcome(now, &charges, None))
            }
            Act::Reset(policy, key) => {
                self.charged
                    .retain(|(of, whose, _), _| (of, whose) != (policy, key));
                None
            }
            other => panic!("the model does not know {other:?}"),
        }
    }

    /// The steps that count, oldest first: when each is released, and its units.
    pub(crate) fn counting(
        &self,
        now: u64,
        policy: usize,
        key: usize,
        rule: usize,
    ) -> Vec<(u64, u128)> {
        let charged = self.charged.get(&(policy, key, rule)).into_iter().flatten();
        let rule = &self.policies[policy].rules()[rule];
        let mut steps = std::collections::BTreeMap::new();
        for (step, units) in
            charged.filter(|(step, units)| *units > 0 && release(rule, *step) > now)
        {
            *steps.entry(release(rule, *step)).or_default() += u128::from(*units);
        }
        steps.into_iter().collect()
    }

    fn check(&mut self, now: u64, charges: &[Charge]) -> Outcome {
        let denied = self.denied(now, charges);
        if denied.is_none() {
            for &(policy, key, cost) in charges {
                for (index, rule) in self.policies[policy].rules().iter().enumerate() {
                    let charged = self.charged.entry((policy, key, index)).or_default();
                    charged.push((step(rule, now), cost));
                }
            }
            self.open.push((now, charges.to_owned()));
        }
        self.outcome(now, charges, denied)
    }

    fn denied(&self, now: u64, charges: &[Charge]) -> Option<Denied> {
        let mut worst: Option<Denied> = None;
        for (charge, &(policy, key, cost)) in charges.iter().enumerate() {
            for (index, rule) in self.policies[policy].rules().iter().enumerate() {
                let fits = |at| {
                    self.used(at, policy, key, index) + u128::from(cost) <= rule.limit().into()
                };
                if fits(now) {
                    continue;
                }
                let mut releases = self.releases(policy, key, index);
                releases.sort_unstable();
                let retry_at = releases.into_iter().find(|at| *at > now && fits(*at));
                let retry_after_ms = retry_at.map(|at| at - now);
                let never = |retry: Option<u64>| retry.unwrap_or(u64::MAX);
                if worst.is_none_or(|worst| never(retry_after_ms) > never(worst.retry_after_ms)) {
                    worst = Some(Denied {
                        charge,
                        rule: index,
                        retry_after_ms,
                    });
                }
            }
        }
        worst
    }

    fn settle(&mut self, now: u64, then: u64, (policy, key, cost): Charge, settled: u64) {
        for (index, rule) in self.policies[policy].rules().iter().enumerate() {
            let step = step(rule, then);
            if release(rule, step) <= now {
                continue;
            }
            let used = self.used(now, policy, key, index);
            let charged = self.charged.entry((policy, key, index)).or_default();
            let before: u128 = units(charged.iter().filter(|(of, _)| *of == step));
            let after = (before + u128::from(settled)).saturating_sub(cost.into());
            let after = after.min(before.max(u128::from(MAX_UNITS) - (used - before)));
            charged.retain(|(of, _)| *of != step);
            charged.push((step, after.try_into().unwrap()));
        }
    }

    fn outcome(&self, now: u64, charges: &[Charge], denied: Option<Denied>) -> Outcome {
        let usage = charges.iter().map(|&(policy, key, _)| {
            let rules = self.policies[policy].rules().iter().enumerate();
            let left = rules.map(|(index, rule)| {
                let used = self.used(now, policy, key, index);
                let last = self.releases(policy, key, index).into_iter().max();
                Left {
                    remaining: u128::from(rule.limit())
                        .saturating_sub(used)
                        .try_into()
                        .unwrap(),
                    reset_after_ms: last.unwrap_or(0).saturating_sub(now),
                }
            });
            left.collect()
        });
        Outcome {
            usage: usage.collect(),
            denied,
            blocked: None,
        }
    }

    fn used(&self, at: u64, policy: usize, key: usize, rule: usize) -> u128 {
        let charged = self.charged.get(&(policy, key, rule)).into_iter().flatten();
        let rule = &self.policies[policy].rules()[rule];
        units(charged.filter(|(step, _)| release(rule, *step) > at))
    }

    fn releases(&self, policy: usize, key: usize, rule: usize) -> Vec<u64> {
        let charged = self.charged.get(&(policy, key, rule)).into_iter().flatten();
        let rule = &self.policies[policy].rules()[rule];
        charged
            .filter(|(_, units)| *units > 0)
            .map(|(step, _)| release(rule, *step))
            .collect()
    }
}

fn units<'a>(charged: impl Iterator<Item = &'a (u64, u64)>) -> u128 {
    charged.map(|(_, units)| u128::from(*units)).sum()
}

fn added_up(charges: &[Charge]) -> Vec<Charge> {
    let mut sums: Vec<Charge> = Vec::new();
    for &(policy, key, cost) in charges {
        match sums.iter_mut().find(|sum| (sum.0, sum.1) == (policy, key)) {
            Some(sum) => sum.2 = sum.2.saturating_add(cost),
            None => sums.push((policy, key, cost)),
        }
    }
    sums
}

fn step(rule: &Rule, at: u64) -> u64 {
    at / ms(rule.step())
}

fn release(rule: &Rule, step: u64) -> u64 {
    let window = ms(rule.window());
    if rule.is_fixed() {
        (step + 1) * window
    } else {
        (step + 1) * ms(rule.step()) + window
    }
}
