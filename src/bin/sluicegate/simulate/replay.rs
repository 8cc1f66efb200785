//! [`Replay`]: one set of policies with a store of its own, by the log's clock.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use sluicegate::{
    Charge, Decision, MemoryStore, Policy, Rule, Store, StoreError, error::PolicyError,
    store::Check, test_util::TestClock,
};

use super::request::Request;

pub(super) struct Replay {
    clock: TestClock,
    store: MemoryStore,
    capacity: usize,
    /// With the place of each one's key.
    policies: Vec<(Policy, usize)>,
}

impl Replay {
    pub(super) fn new(policies: Vec<(Policy, usize)>, capacity: usize) -> Self {
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
        let charges = self.policies.iter().filter_map(|(policy, key)| {
            let key = request.keys[*key].as_ref()?;
            Some(Charge::new(policy, key.clone(), 1))
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

    /// Whether it is so full that it may have dropped keys that count: its parts fill unevenly.
    pub(super) fn is_full(&self) -> bool {
        self.store.len() >= self.capacity - self.capacity / 10
    }
}

/// The same policies, with another limit in one rule of one of them.
pub(super) fn with_limit(
    policies: &[(Policy, usize)],
    policy: usize,
    rule: usize,
    limit: u64,
) -> Result<Vec<(Policy, usize)>, PolicyError> {
    let mut policies = policies.to_vec();
    let changed = &mut policies[policy].0;
    let rules = changed.rules().iter().enumerate();
    let rules: Vec<Rule> = rules
        .map(|(at, it)| if at == rule { limited(it, limit) } else { *it })
        .collect();
    *changed = with_rules(changed, rules)?;
    Ok(policies)
}

/// The same policies, with each limit so many times as high.
pub(super) fn times(
    policies: &[(Policy, usize)],
    factor: u64,
) -> Result<Vec<(Policy, usize)>, PolicyError> {
    let raised = policies.iter().map(|(policy, key)| {
        let rules = policy.rules().iter();
        let rules = rules.map(|it| {
            limited(
                it,
                it.limit()
                    .max(1)
                    .saturating_mul(factor)
                    .min(sluicegate::rule::MAX_UNITS),
            )
        });
        Ok((with_rules(policy, rules.collect())?, *key))
    });
    raised.collect()
}

fn limited(rule: &Rule, limit: u64) -> Rule {
    let changed = Rule::new(limit, rule.window());
    if rule.is_fixed() {
        changed.fixed()
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
