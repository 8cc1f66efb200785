//! The semantics in the simplest form: the model keeps every charge, and each check adds them up.
//!
//! Only for clocks that go forward and rules that stay. The rule itself says when periods of the calendar end.

use std::collections::HashMap;

use sluicegate::{Policy, Rule, rule::MAX_UNITS};

use super::{
    history::{Act, History},
    outcome::{Denied, Left, Outcome, ms},
};

/// A policy, a key and a cost.
type Charge = (usize, usize, u64);

pub struct Model<'a> {
    policies: Vec<&'a Policy>,
    /// The units of each step, by policy, key and rule.
    charged: HashMap<(usize, usize, usize), Vec<(u64, u64)>>,
    /// The times and units of charges and settlements under buckets.
    poured: HashMap<(usize, usize, usize), Vec<(u64, i128)>>,
    open: Vec<(u64, Vec<Charge>)>,
    /// Each charge that has taken slots, and when they expire; 0 if they are returned.
    taken: Vec<(Charge, u64)>,
    /// Those of these that are to be renewed or returned.
    held: Vec<usize>,
}

impl<'a> Model<'a> {
    pub fn new(history: &'a History) -> Self {
        Self {
            policies: history.policies.iter().map(|it| &it[0]).collect(),
            charged: HashMap::new(),
            poured: HashMap::new(),
            open: Vec::new(),
            taken: Vec::new(),
            held: Vec::new(),
        }
    }

    pub fn play(&mut self, now: u64, act: &Act) -> Option<Outcome> {
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
            Act::Renew(_) | Act::GiveBack(_) if self.held.is_empty() => None,
            Act::Renew(check) => {
                let held = self.held.remove(check.index(self.held.len()));
                self.held.push(held);
                Some(self.hold(now, held, |rule| now + ms(rule.window())))
            }
            Act::GiveBack(check) => {
                let held = self.held.remove(check.index(self.held.len()));
                Some(self.hold(now, held, |_| 0))
            }
            Act::Reset(policy, key) => {
                let is_it = |of: &usize, whose: &usize| (of, whose) == (policy, key);
                self.charged.retain(|(of, whose, _), _| !is_it(of, whose));
                self.poured.retain(|(of, whose, _), _| !is_it(of, whose));
                let taken = self.taken.iter_mut();
                let taken = taken.filter(|((of, whose, _), _)| is_it(of, whose));
                taken.for_each(|taken| taken.1 = 0);
                None
            }
            other => panic!("the model does not know {other:?}"),
        }
    }

    /// The steps that count, oldest first: the release time and the units of each.
    pub fn counting(&self, now: u64, policy: usize, key: usize, rule: usize) -> Vec<(u64, u128)> {
        let charged = self.charged.get(&(policy, key, rule)).into_iter().flatten();
        let rule = &self.policies[policy].rules()[rule];
        let mut steps = std::collections::BTreeMap::new();
        let counts = |it: &&(u64, u64)| it.1 > 0 && release(rule, it.0) > now;
        for (step, units) in charged.filter(counts) {
            *steps.entry(release(rule, *step)).or_default() += u128::from(*units);
        }
        steps.into_iter().collect()
    }

    fn check(&mut self, now: u64, charges: &[Charge]) -> Outcome {
        let denied = self.denied(now, charges);
        if denied.is_none() {
            for &(policy, key, cost) in charges {
                for (index, rule) in self.policies[policy].rules().iter().enumerate() {
                    if rule.refill().is_some() {
                        self.pour(now, (policy, key, index), cost.into());
                        continue;
                    }
                    if rule.is_concurrency() {
                        if cost > 0 {
                            self.held.push(self.taken.len());
                            let expiry = now + ms(rule.window());
                            self.taken.push(((policy, key, cost), expiry));
                        }
                        continue;
                    }
                    let charged = self.charged.entry((policy, key, index)).or_default();
                    charged.push((step(rule, now), cost));
                }
            }
            self.open.push((now, charges.to_owned()));
        }
        self.outcome(now, charges, denied)
    }

    fn hold(&mut self, now: u64, held: usize, expiry: impl Fn(&Rule) -> u64) -> Outcome {
        let (charge, expires) = self.taken[held];
        let is_held = expires > now;
        if is_held {
            self.taken[held].1 = expiry(&self.policies[charge.0].rules()[0]);
        }
        Outcome {
            held: Some(is_held),
            ..self.outcome(now, &[charge], None)
        }
    }

    /// The slots of a key: how many, and when they expire.
    fn slots(&self, policy: usize, key: usize) -> impl Iterator<Item = (u64, u64)> {
        let taken = self.taken.iter();
        let of_key = taken.filter(move |((of, whose, _), _)| (*of, *whose) == (policy, key));
        of_key.map(|((_, _, cost), expires)| (*cost, *expires))
    }

    fn denied(&self, now: u64, charges: &[Charge]) -> Option<Denied> {
        let mut worst: Option<Denied> = None;
        for (charge, &(policy, key, cost)) in charges.iter().enumerate() {
            for (index, rule) in self.policies[policy].rules().iter().enumerate() {
                let used = |at| self.used(at, policy, key, index);
                let fits = |at| used(at) + u128::from(cost) <= rule.limit().into();
                if fits(now) {
                    continue;
                }
                let retry_at = if rule.refill().is_some() {
                    first_ms(now, fits).filter(|_| cost <= rule.limit())
                } else {
                    let mut releases = self.releases(policy, key, index);
                    releases.sort_unstable();
                    releases.into_iter().find(|at| *at > now && fits(*at))
                };
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

    /// Takes units from the step that was charged, and adds them to the step of now.
    fn settle(&mut self, now: u64, then: u64, (policy, key, cost): Charge, settled: u64) {
        let difference = i128::from(settled) - i128::from(cost);
        for (index, rule) in self.policies[policy].rules().iter().enumerate() {
            if rule.refill().is_some() {
                self.pour(now, (policy, key, index), difference);
            } else if !rule.is_concurrency() {
                let at = if difference > 0 { now } else { then };
                self.change(now, (policy, key, index), step(rule, at), difference);
            }
        }
    }

    fn change(
        &mut self,
        now: u64,
        (policy, key, index): (usize, usize, usize),
        step: u64,
        difference: i128,
    ) {
        if release(&self.policies[policy].rules()[index], step) <= now {
            return;
        }
        let used = self.used(now, policy, key, index);
        let charged = self.charged.entry((policy, key, index)).or_default();
        let before: u128 = units(charged.iter().filter(|(of, _)| *of == step));
        let after = before.saturating_add_signed(difference);
        let after = after.min(before.max(u128::from(MAX_UNITS) - (used - before)));
        charged.retain(|(of, _)| *of != step);
        charged.push((step, after.try_into().unwrap()));
    }

    fn outcome(&self, now: u64, charges: &[Charge], denied: Option<Denied>) -> Outcome {
        let usage = charges.iter().map(|&(policy, key, _)| {
            let rules = self.policies[policy].rules().iter().enumerate();
            let left = rules.map(|(index, rule)| {
                let used = self.used(now, policy, key, index);
                let last = if rule.refill().is_some() {
                    first_ms(now, |at| self.missing(at, (policy, key, index)) == 0)
                } else {
                    self.releases(policy, key, index).into_iter().max()
                };
                let remaining = u128::from(rule.limit()).saturating_sub(used);
                Left {
                    remaining: remaining.try_into().unwrap(),
                    reset_after_ms: last.unwrap_or(0).saturating_sub(now),
                }
            });
            left.collect()
        });
        Outcome {
            usage: usage.collect(),
            denied,
            blocked: None,
            held: None,
        }
    }

    fn pour(&mut self, now: u64, bucket: (usize, usize, usize), units: i128) {
        self.poured.entry(bucket).or_default().push((now, units));
    }

    /// The deficit of a bucket in units · ms, computed from the whole history.
    fn missing(&self, at: u64, bucket: (usize, usize, usize)) -> i128 {
        let rule = &self.policies[bucket.0].rules()[bucket.2];
        let refill = i128::from(rule.refill().unwrap());
        let window = i128::from(ms(rule.window()));
        let (mut missing, mut last) = (0_i128, 0);
        for (then, units) in self.poured.get(&bucket).into_iter().flatten() {
            missing = (missing - refill * i128::from(then - last)).max(0);
            let largest = i128::from(MAX_UNITS) / window * window;
            let most = (largest - missing) / window;
            missing = (missing + (*units).min(most) * window).max(0);
            last = *then;
        }
        (missing - refill * i128::from(at - last)).max(0)
    }

    pub fn used(&self, at: u64, policy: usize, key: usize, rule: usize) -> u128 {
        let of_bucket = &self.policies[policy].rules()[rule];
        if of_bucket.refill().is_some() {
            let missing = self.missing(at, (policy, key, rule)).unsigned_abs();
            return missing.div_ceil(ms(of_bucket.window()).into());
        }
        if of_bucket.is_concurrency() {
            let held = self.slots(policy, key).filter(|(_, expires)| *expires > at);
            return held.map(|(cost, _)| u128::from(cost)).sum();
        }
        let charged = self.charged.get(&(policy, key, rule)).into_iter().flatten();
        let rule = &self.policies[policy].rules()[rule];
        units(charged.filter(|(step, _)| release(rule, *step) > at))
    }

    fn releases(&self, policy: usize, key: usize, rule: usize) -> Vec<u64> {
        if self.policies[policy].rules()[rule].is_concurrency() {
            let slots = self.slots(policy, key);
            return slots.map(|(_, expires)| expires).collect();
        }
        let charged = self.charged.get(&(policy, key, rule)).into_iter().flatten();
        let rule = &self.policies[policy].rules()[rule];
        let counting = charged.filter(|(_, units)| *units > 0);
        counting.map(|(step, _)| release(rule, *step)).collect()
    }
}

/// The first millisecond from which on this holds.
fn first_ms(now: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    let mut after = 0; // it does not hold so much later
    let until = (0..63).map(|bit| 1_u64 << bit);
    if holds(now) {
        return Some(now);
    }
    let mut holding = until.into_iter().find(|ms| holds(now + ms))?;
    while holding - after > 1 {
        let middle = after + (holding - after) / 2;
        if holds(now + middle) {
            holding = middle;
        } else {
            after = middle;
        }
    }
    Some(now + holding)
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

/// A period of the calendar is named by its end.
fn step(rule: &Rule, at: u64) -> u64 {
    match rule.in_calendar() {
        Some(_) => rule.step_end_ms(at),
        None => at / ms(rule.step()),
    }
}

fn release(rule: &Rule, step: u64) -> u64 {
    let window = ms(rule.window());
    if rule.in_calendar().is_some() {
        step
    } else if rule.is_fixed() {
        (step + 1) * window
    } else {
        (step + 1) * ms(rule.step()) + window
    }
}
