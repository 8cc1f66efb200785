//! [`Replay`]: decides requests under one set of policies, with its own store and the log's clock.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sluicegate::decision::{PolicyUsage, RuleUsage};
use sluicegate::error::StoreErrorKind;
use sluicegate::manual_clock::ManualClock;
use sluicegate::rule::MAX_UNITS;
use sluicegate::{Charge, Decision, Limiter, MemoryStore, Rule, StoreError};
use tokio::runtime::{Builder, Runtime};

use super::request::{Mapped, Request};
use crate::{Error, Result};

pub(super) struct Replay {
    clock: ManualClock,
    store: MemoryStore,
    limiter: Limiter,
    /// The limiter counts strikes in a separate task, which needs a runtime.
    runtime: Runtime,
    capacity: usize,
    pub(super) policies: Vec<Mapped>,
}

impl Replay {
    pub(super) fn new(policies: Vec<Mapped>, capacity: usize) -> Result<Self> {
        let clock = ManualClock::new(0);
        let store = MemoryStore::new().capacity(capacity).clock(clock.clone());
        let runtime = Builder::new_current_thread().enable_time().build();
        Ok(Self {
            limiter: Limiter::new(store.clone()),
            runtime: runtime.map_err(Error::usage)?,
            store,
            capacity,
            clock,
            policies,
        })
    }

    /// Decides one request as the middleware would: one check of all policies that have a key for the request. `None`
    /// if there are none. The strikes of a denial are counted before the next request.
    pub(super) fn decide(&self, request: &Request) -> Result<Option<Decision>, StoreError> {
        let charges = self.policies.iter().filter_map(|mapped| {
            let key = request.keys[mapped.key].as_ref()?;
            Some(Charge::new(&mapped.policy, key.clone(), 1))
        });
        let mut charges = charges.peekable();
        if charges.peek().is_none() {
            return Ok(None);
        }
        self.clock.set(request.ms);
        let _context = self.runtime.enter();
        let answer = pin!(self.limiter.check(charges));
        let Poll::Ready(decision) = answer.poll(&mut Context::from_waker(Waker::noop())) else {
            unreachable!("memory answers at once");
        };
        let decision = match decision {
            // The request passes uncounted, and `is_full` reports this.
            Err(error) if error.kind() == StoreErrorKind::Full => return Ok(None),
            decision => decision?,
        };
        if !decision.is_allowed() {
            self.runtime.block_on(self.limiter.strikes_counted());
        }
        Ok(Some(decision))
    }

    /// Whether the store may have dropped keys that count, or had no room for others. Its parts fill unevenly, so it
    /// counts as full before it is.
    pub(super) fn is_full(&self) -> bool {
        self.store.len() >= self.capacity - self.capacity / 10
    }
}

/// Whether a rule of this policy refuses the request.
pub(super) fn refuses(policy: &PolicyUsage<'_>) -> bool {
    policy.rules().iter().any(RuleUsage::is_exceeded)
}

/// The rule with another limit, as far as it can have one.
pub(super) fn limited(rule: &Rule, limit: u64) -> Rule {
    let most = match rule.refill() {
        Some(_) => MAX_UNITS / u64::try_from(rule.window().as_millis()).unwrap_or(u64::MAX),
        None => MAX_UNITS,
    };
    rule.with_limit(limit.min(most))
}
