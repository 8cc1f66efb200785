//! [`HotIdentity`]: an identity under one policy that is checked often, with its lease.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::lease::{LONGEST, Lease, was_behind};
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        decision::{PolicyUsage, Usage},
        key::Key,
        operation::Operation,
        policy::Policy,
        rule::millis,
    },
    lock::lock,
};

/// This many checks in one span make an identity hot.
pub(super) const HOT: u64 = 8;

/// With fewer checks than this, a lease costs more than deciding them separately.
const FEWEST: u64 = 4;

/// A lease takes at most this fraction of the remaining units. So leases shrink before they could cause a denial, and
/// near the limit there are none.
const PART_OF_ROOM: u64 = 8;

/// If less than this (ms), plus two round trips, remains of the step, do not fetch a lease.
const SHORT_REST_MS: u64 = 2;

/// An identity that is hot under a policy.
#[derive(Debug)]
pub(super) struct HotIdentity {
    policy: Policy,
    key: Key,
    span: Duration,
    units: Mutex<Units>,
}

/// The units of a hot identity in this process, and the numbers that the next lease follows from.
#[derive(Debug, Default)]
pub(super) struct Units {
    lease: Option<Lease>,
    /// The fate of the lease that is being fetched; `None` if none is.
    fetched: Option<Arrival>,
    /// The requests since `since`, decided here or in the store.
    checks: u64,
    charged: u64,
    since: Duration,
    known: Option<Known>,
    /// No lease is fetched before, because the last fetch failed.
    paused_until: Duration,
    /// Whether the table has dropped this identity. Checks that still hold it fetch no lease.
    is_dropped: bool,
}

/// The fate of a lease on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arrival {
    Spent,
    Returned,
    /// It is not even returned: a reset may have deleted its units.
    Forgotten,
}

/// The last report of the store about this identity.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The smallest number of remaining units among the rules.
    room: u64,
    decided_at_ms: u64,
    sent: Duration,
    round_trip: Duration,
}

/// The span of a policy's leases: its shortest step, or [`LONGEST`]. `None` if its charges are never leased: the steps
/// of `@exact` rules and buckets are too short, a small limit never leaves enough room, and slots stay in their steps.
pub(super) fn span(policy: &Policy) -> Option<Duration> {
    let mut span = LONGEST;
    for rule in policy.rules() {
        let is_too_fine = rule.step() <= Duration::from_millis(1);
        if rule.limit() < FEWEST * PART_OF_ROOM || is_too_fine || rule.is_concurrency() {
            return None;
        }
        span = span.min(rule.step());
    }
    Some(span)
}

/// Whether a limit never leaves enough room for a lease that pays this charge.
pub(super) fn is_too_large(charge: &Charge) -> bool {
    let few = charge.cost().saturating_mul(FEWEST * PART_OF_ROOM);
    let mut rules = charge.policy().rules().iter();
    rules.any(|rule| rule.limit() < few)
}

impl HotIdentity {
    pub(super) fn new(charge: &Charge, span: Duration, now: Duration) -> Self {
        Self {
            policy: charge.policy().clone(),
            key: charge.key().clone(),
            span,
            units: Mutex::new(Units {
                // The count that made the identity hot, so that the first sweep does not find it cold.
                checks: HOT,
                charged: HOT.saturating_mul(charge.cost()),
                since: now,
                ..Units::default()
            }),
        }
    }

    /// Rules of the same name with other steps need another lease.
    pub(super) fn is_of(&self, charge: &Charge) -> bool {
        self.is_of_key(charge.key()) && self.policy.is_same(charge.policy())
    }

    pub(super) fn is_of_key(&self, key: &Key) -> bool {
        self.key == *key
    }

    /// Counts a check with this cost, unless it is a look.
    pub(super) fn count(&self, cost: u64) {
        let mut units = lock(&self.units);
        units.checks += cost.min(1);
        units.charged = units.charged.saturating_add(cost);
    }

    /// The units, for a check that spends some. If it holds those of another identity, it does not wait for these.
    pub(super) fn spendable(&self, holds_others: bool) -> Option<MutexGuard<'_, Units>> {
        match holds_others {
            true => self.units.try_lock().ok(),
            false => Some(lock(&self.units)),
        }
    }

    /// Remembers the store's report about this charge.
    pub(super) fn learn(
        &self,
        usage: PolicyUsage<'_>,
        decided_at_ms: u64,
        sent: Duration,
        now: Duration,
    ) {
        let room = usage.rules().iter().map(|rule| rule.remaining()).min();
        let round_trip = now.saturating_sub(sent);
        let mut units = lock(&self.units);
        units.known = Some(Known {
            room: room.unwrap_or(0),
            decided_at_ms,
            sent,
            round_trip,
        });
        // With a round trip longer than a span, a lease would be over on arrival.
        if round_trip >= self.span {
            units.paused_until = now + LONGEST;
        }
    }

    pub(super) fn is_paused(&self, now: Duration) -> bool {
        now < lock(&self.units).paused_until
    }

    /// Fetches no lease for a span.
    pub(super) fn pause(&self, now: Duration) {
        lock(&self.units).paused_until = now + self.span;
    }

    /// Begins to fetch a lease that is large enough for `cost`. `None` if one is on its way, or a lease is not worth a
    /// call.
    pub(super) fn begin(self: &Arc<Self>, cost: u64, now: Duration) -> Option<Fetch> {
        let mut units = lock(&self.units);
        let wanted = self.plan(&mut units, cost, now)?;
        units.fetched = Some(Arrival::Spent);
        Some(Fetch {
            units: wanted,
            sent: now,
            last: units.lease.take().and_then(Lease::close),
            of: Arc::clone(self),
        })
    }

    /// The units to lease: the rate times the rest of the step, plus a quarter, but at most a fraction of the remaining
    /// units.
    fn plan(&self, units: &mut Units, cost: u64, now: Duration) -> Option<u64> {
        // Another task may have fetched a lease since the caller found too few units.
        if units.is_dropped || units.fetched.is_some() || units.lease_for(cost, now).is_some() {
            return None;
        }
        let known = units.known?;
        let store_now_ms = known.decided_at_ms + millis(now.saturating_sub(known.sent));
        let rules = self.policy.rules().iter();
        let ends = rules.map(|rule| rule.step_end_ms(store_now_ms));
        let rest_ms = ends.min()?.saturating_sub(store_now_ms);
        let rest_ms = rest_ms.min(millis(LONGEST));
        if rest_ms <= SHORT_REST_MS + 2 * millis(known.round_trip) {
            return None;
        }
        // A newly hot identity has too little history to trust a high rate.
        let elapsed = now.saturating_sub(units.since).max(self.span / 8);
        let seen = u128::from(units.charged);
        let wanted = seen * u128::from(rest_ms) * 5 / 4 / u128::from(millis(elapsed).max(1));
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let units = wanted.min(known.room / PART_OF_ROOM);
        (units >= cost.saturating_mul(FEWEST)).then_some(units)
    }

    /// Ends the lease. A lease that is being fetched is returned on arrival. Returns the settlement that gives the
    /// unspent units back.
    pub(super) fn end(&self) -> Option<Operation> {
        let mut units = lock(&self.units);
        units.fetched = units.fetched.map(|it| it.max(Arrival::Returned));
        units.lease.take()?.close()
    }

    /// Ends the lease, and forgets its units and those of a lease that is being fetched, since a reset deletes them. No
    /// other is fetched for a span, because it could be charged before the reset.
    pub(super) fn forget(&self, now: Duration) {
        let mut units = lock(&self.units);
        units.fetched = units.fetched.and(Some(Arrival::Forgotten));
        units.paused_until = now + self.span;
        units.lease = None;
    }

    /// Closes the lease if it has been over for so long that its successor should have arrived.
    pub(super) fn close_overdue(&self, now: Duration) -> Option<Operation> {
        let lease = &mut lock(&self.units).lease;
        let is_overdue = |lease: &mut Lease| lease.is_over_for(now, self.span / 4);
        lease.take_if(is_overdue)?.close()
    }

    /// Whether the identity has no lease and is not worth one. Each span halves the weight of older checks.
    pub(super) fn cool(&self, now: Duration) -> bool {
        let mut units = lock(&self.units);
        let elapsed = now.saturating_sub(units.since);
        if elapsed < self.span {
            return false;
        }
        let per_span = u128::from(units.checks) * self.span.as_nanos() / elapsed.as_nanos().max(1);
        units.checks -= units.checks / 2;
        units.charged -= units.charged / 2;
        units.since += elapsed / 2;
        let is_cold = per_span < u128::from(HOT / 2);
        units.is_dropped = is_cold && units.lease.is_none() && units.fetched.is_none();
        units.is_dropped
    }
}

impl Units {
    /// The lease, if it can pay this cost.
    pub(super) fn lease_for(&mut self, cost: u64, now: Duration) -> Option<&mut Lease> {
        self.lease.as_mut().filter(|it| it.can_pay(cost, now))
    }
}

/// A lease that is being fetched. Until this is dropped, no other is fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    units: u64,
    sent: Duration,
    /// Gives the unspent units of the last lease back.
    last: Option<Operation>,
    pub(super) of: Arc<HotIdentity>,
}

impl Fetch {
    /// Returns the units of the last lease, and charges all units of this one. They are never returned twice: if the call
    /// fails, they stay charged.
    pub(super) fn operations(&self) -> Vec<Operation> {
        let charge = Charge::new(&self.of.policy, self.of.key.clone(), self.units);
        // A blocked identity gets no lease.
        let check = Check::counting([charge]).enforce_blocks(true);
        let returned = self.last.iter().cloned();
        returned.chain([Operation::Check(check)]).collect()
    }

    /// Turns the charged units into a lease. Returns a settlement that gives them back if they cannot be spent: the
    /// answer came too late, the store's clock had stepped back, or all leases have been ended in the meantime.
    pub(super) fn install(&self, usage: &Usage, now: Duration) -> Option<Operation> {
        let of = &self.of;
        if let Some(of_policy) = usage.policies().next() {
            of.learn(of_policy, usage.decided_at_ms(), self.sent, now);
        }
        if was_behind(usage) {
            of.pause(now);
        }
        let lease = Lease::new(usage.clone(), self.units, self.sent);
        let mut units = lock(&of.units);
        let is_spent = units.fetched? == Arrival::Spent && !lease.is_over(now);
        units.lease = (units.fetched? < Arrival::Forgotten).then_some(lease);
        if is_spent {
            return None;
        }
        units.lease.take()?.close()
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        lock(&self.of.units).fetched = None;
    }
}
