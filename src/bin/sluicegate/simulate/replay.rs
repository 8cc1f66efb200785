//! [`Replay`]: one set of policies with a store of its own, by the log's clock.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use sluicegate::{
    Charge, Decision, MemoryStore, Policy, Rule, Store, StoreError, error::PolicyError,
    rule::MAX_UNITS, store::Check, test_util::TestClock,
};

use super::request::{Mapped, Request};

pub(super) struct Replay {
    clock: TestClock,
    store: MemoryStore,
    capacity: usize,
    pub(super) policies: Vec<Mapped>,
}

impl Replay {
    pub(super) fn new(policies: Vec<Mapped>, capacity: usize) -> Self {
        let clock = TestClock::new(0);
        Self {
            store: MemoryStore::new().capacity(capacity).clock(clock.clone()),
            capacity,
            clock,
            policies,
        }
    }

    /// Decides one request, as the middleware would: all policies for which it has a key in one check. `None` if there
    /// are none.
    pub(super) fn decide(&self, request: &Request) -> Result<Option<Decision>, StoreError> {
        let charges = self.policies.iter().filter_map(|it| {
            let key = request.keys[it.key].as_ref()?;
            Some(Charge::new(&it.policy, key.clone(), 1))
        });
        let check = Check::new(charges)?;
        if check.charges().is_empty() && check.shadow_charges().is_empty() {
            return Ok(None);
        }
        self.clock.set(request.ms);
        let mut answer = self.store.check(&check);
        match Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision.map(Some),
            Poll::Pending => unreachable!("memory answers at once"),
        }
    }

    /// The place of a policy.
    pub(super) fn place(&self, policy: &Policy) -> Option<usize> {
        let mut policies = self.policies.iter();
        policies.position(|it| it.policy.name() == policy.name())
    }

    /// Whether it is so full that it may have dropped keys that count: its parts fill unevenly.
    pub(super) fn is_full(&self) -> bool {
        self.store.len() >= self.capacity - self.capacity / 10
    }
}

/// The same policies, with another limit in one rule of one of them.
pub(super) fn with_limit(
    policies: &[Mapped],
    policy: usize,
    rule: usize,
    limit: u64,
) -> Result<Vec<Mapped>, PolicyError> {
    let mut policies = policies.to_vec();
    let changed = &mut policies[policy].policy;
    let mut rules = changed.rules().to_vec();
    rules[rule] = limited(&rules[rule], limit);
    *changed = with_rules(changed, rules)?;
    Ok(policies)
}

/// The same policies, with each limit so many times as high.
pub(super) fn times(policies: &[Mapped], factor: u64) -> Result<Vec<Mapped>, PolicyError> {
    let mut policies = policies.to_vec();
    for Mapped { policy, .. } in &mut policies {
        let rules = policy.rules().iter().map(|rule| {
            let limit = rule.limit().max(1).saturating_mul(factor);
            limited(rule, limit.min(MAX_UNITS))
        });
        *policy = with_rules(policy, rules.collect())?;
    }
    Ok(policies)
}

fn limited(rule: &Rule, limit: u64) -> Rule {
    let changed = Rule::new(limit, rule.window());
    if rule.is_fixed() {
        changed.fixed()
    } else if rule.refill().is_some() {
        let most = MAX_UNITS / u64::try_from(rule.window().as_millis()).unwrap_or(u64::MAX);
        rule.bucket(limit.min(most))
    } else {
        changed.precision(rule.step())
    }
}

fn with_rules(policy: &Policy, rules: Vec<Rule>) -> Result<Policy, PolicyError> {
    let changed = Policy::new(policy.name(), rules)?;
    Ok(if policy.is_shadow() {
        changed.shadow()
    } else {
        changed
    })
}
