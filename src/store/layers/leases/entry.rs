//! [`Entry`]: a hot identity under one policy, with its lease.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    balance::MOST,
    clock::Moment,
    lease::{Claim, LONGEST, Lease, LeasedUnits, was_behind},
    transfer::{Transfer, Transfers, Unspent},
};
use crate::domain::{
    charge::Charge,
    check::Check,
    decision::{PolicyUsage, Usage},
    key::Key,
    policy::Policy,
    rule::millis,
    settlement::Settlement,
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
pub(super) struct Entry {
    policy: Policy,
    key: Key,
    span: Duration,
    /// The requests since `State::since`, decided here or in the store.
    checks: AtomicU64,
    units: AtomicU64,
    lease: RwLock<Option<Arc<Lease>>>,
    /// Whether the last check could not reach the store. Then no units are spent, so that the caller notices the
    /// failure.
    is_failing: AtomicBool,
    transfers: Arc<Transfers>,
    slot: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Moment,
    known: Option<Known>,
    /// A pause in which no lease is fetched, because the last fetch failed.
    pause: Option<(Moment, Duration)>,
    /// The fate of the lease that is being fetched.
    fetching: Option<OnArrival>,
    /// Whether the table has dropped this entry. Checks that still hold it fetch no lease.
    is_dropped: bool,
}

/// The fate of a lease that is being fetched; later variants prevail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OnArrival {
    Install,
    /// All leases have been revoked.
    Return,
    /// The counts have been reset in the meantime, perhaps with the units of this lease.
    Forget,
}

/// The last report of the store about this identity.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The smallest number of remaining units among the rules.
    room: u64,
    decided_at_ms: u64,
    sent: Moment,
    round_trip: Duration,
}

/// The span of a policy's leases: its shortest step, or [`LONGEST`]. `None` if its charges are never leased: the steps
/// of `@exact` rules and buckets are too short, a small limit never leaves enough room, and slots stay in their steps.
pub(super) fn span(charge: &Charge) -> Option<Duration> {
    let few = charge.cost().saturating_mul(FEWEST * PART_OF_ROOM);
    let mut span = LONGEST;
    for rule in charge.policy().rules() {
        let is_too_fine = rule.step() <= Duration::from_millis(1);
        if rule.limit() < few || is_too_fine || rule.is_concurrency() {
            return None;
        }
        span = span.min(rule.step());
    }
    (charge.cost() > 0).then_some(span)
}

impl Entry {
    pub(super) fn new(
        charge: &Charge,
        span: Duration,
        now: Moment,
        transfers: &Arc<Transfers>,
        slot: usize,
    ) -> Self {
        Self {
            policy: charge.policy().clone(),
            key: charge.key().clone(),
            span,
            // The count that made the identity hot, so that the first sweep does not find the entry cold.
            checks: AtomicU64::new(HOT),
            units: AtomicU64::new(HOT.saturating_mul(charge.cost())),
            lease: RwLock::default(),
            is_failing: AtomicBool::new(false),
            transfers: Arc::clone(transfers),
            slot,
            state: Mutex::new(State {
                since: now,
                known: None,
                pause: None,
                fetching: None,
                is_dropped: false,
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

    /// Counts a check with this cost.
    pub(super) fn count(&self, cost: u64) {
        self.checks.fetch_add(1, Relaxed);
        self.units.fetch_add(cost, Relaxed);
    }

    /// Spends units of the lease, if there are enough.
    pub(super) fn spend(&self, cost: u64, now: impl FnOnce() -> Moment) -> Option<LeasedUnits> {
        Lease::spend(self.spendable()?.as_ref()?, cost, now())
    }

    /// Claims units of the lease, if there are enough.
    pub(super) fn claim(&self, cost: u64, now: impl FnOnce() -> Moment) -> Option<Claim> {
        Lease::claim(self.spendable()?.as_ref()?, cost, now())
    }

    pub(super) fn set_failing(&self, is_failing: bool) {
        self.is_failing.store(is_failing, Relaxed);
    }

    /// Remembers the store's report about this charge.
    pub(super) fn learn(
        &self,
        usage: PolicyUsage<'_>,
        decided_at_ms: u64,
        sent: Moment,
        now: Moment,
    ) {
        let room = usage.rules().iter().map(|rule| rule.remaining()).min();
        let mut state = self.state();
        state.known = Some(Known {
            room: room.unwrap_or(0),
            decided_at_ms,
            sent,
            round_trip: now.since(sent),
        });
        // With a round trip longer than a span, a lease would be over on arrival.
        if now.since(sent) >= self.span {
            state.pause = Some((now, LONGEST));
        }
    }

    /// Fetches no lease for a span.
    pub(super) fn pause(&self, now: Moment) {
        self.state().pause = Some((now, self.span));
    }

    /// Begins to fetch a lease that is large enough for `cost`. `None` if another fetch is under way, or a lease is not
    /// worth a call.
    pub(super) fn begin(self: &Arc<Self>, cost: u64, now: Moment) -> Option<Fetch> {
        // Until the fate is set: a reset stops fetches before it looks for one, so it either stops this one or finds
        // it.
        let mut state = self.state();
        let units = self.plan(&state, cost, now)?;
        let transfer = self.transfers.begin_fetch(self.slot)?;
        state.fetching = Some(OnArrival::Install);
        Some(Fetch {
            entry: Arc::clone(self),
            units,
            sent: now,
            _transfer: transfer,
        })
    }

    /// The units to lease: the rate times the rest of the step, plus a quarter, but at most a fraction of the remaining
    /// units.
    fn plan(&self, state: &State, cost: u64, now: Moment) -> Option<u64> {
        let paused = |(since, time): (Moment, Duration)| now.since(since) < time;
        // Another task may have fetched a lease since the caller found too few units.
        let is_enough = |lease: &Arc<Lease>| !lease.is_over(now) && !lease.is_used_up(cost);
        if self.is_failing.load(Relaxed)
            || state.is_dropped
            || state.fetching.is_some()
            || state.pause.is_some_and(paused)
            || self.lease().as_ref().is_some_and(is_enough)
        {
            return None;
        }
        let known = state.known?;
        let store_now_ms = known.decided_at_ms + millis(now.since(known.sent));
        let ends = self
            .policy
            .rules()
            .iter()
            .map(|rule| rule.step_end_ms(store_now_ms));
        let rest_ms = ends.min()?.saturating_sub(store_now_ms);
        let rest_ms = rest_ms.min(millis(LONGEST));
        if rest_ms <= SHORT_REST_MS + 2 * millis(known.round_trip) {
            return None;
        }
        // A newly hot identity has too little history to trust a high rate.
        let elapsed = now.since(state.since).max(self.span / 8);
        let seen = u128::from(self.units.load(Relaxed));
        let wanted = seen * u128::from(rest_ms) * 5 / 4 / u128::from(millis(elapsed).max(1));
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let units = wanted.min(known.room / PART_OF_ROOM).min(MOST);
        (units >= cost.saturating_mul(FEWEST)).then_some(units)
    }

    /// Ends the lease. A lease that is being fetched is returned on arrival. Returns the settlement that gives the
    /// unspent units back.
    pub(super) fn end(&self) -> Option<Unspent> {
        self.on_arrival(OnArrival::Return);
        self.close()
    }

    /// Neither spends nor returns the lease that is being fetched.
    pub(super) fn forget_fetch(&self) {
        self.on_arrival(OnArrival::Forget);
    }

    fn on_arrival(&self, then: OnArrival) {
        let mut state = self.state();
        state.fetching = state.fetching.max(state.fetching.and(Some(then)));
    }

    /// Ends the lease. Returns the settlement that gives the unspent units back.
    pub(super) fn close(&self) -> Option<Unspent> {
        let transfer = self.transfers.begin(self.slot);
        let mut lease = self.lease.write().unwrap_or_else(PoisonError::into_inner);
        Some(Unspent {
            settlement: lease.take()?.close()?,
            _transfer: transfer,
        })
    }

    /// Like [`close`](Self::close), but only if the lease has been over for so long that its successor should have
    /// arrived.
    pub(super) fn close_overdue(&self, now: Moment) -> Option<Unspent> {
        let is_overdue = |lease: &Arc<Lease>| lease.is_over_for(now, self.span / 4);
        let is_overdue = self.lease().as_ref().is_some_and(is_overdue);
        is_overdue.then(|| self.close()).flatten()
    }

    /// Whether charged units can be spent here. They leave the lease after a transfer has begun, and arrive before the
    /// transfer ends. So call this first, and look for [`Transfers`] afterwards.
    pub(super) fn has_units(&self) -> bool {
        let lease = self.lease();
        lease.as_ref().is_some_and(|lease| lease.unspent() > 0)
    }

    /// The charged units that can be spent here.
    pub(super) fn unspent(&self, now: Moment) -> u64 {
        let lease = self.lease();
        let lease = lease.as_ref().filter(|lease| !lease.is_over(now));
        lease.map_or(0, |lease| lease.unspent())
    }

    /// Whether the entry has no lease and is not worth one. Each span halves the weight of older checks.
    pub(super) fn cool(&self, now: Moment) -> bool {
        let mut state = self.state();
        let elapsed = now.since(state.since);
        if elapsed < self.span {
            return false;
        }
        let checks = self.checks.load(Relaxed);
        let per_span = u128::from(checks) * self.span.as_nanos() / elapsed.as_nanos().max(1);
        self.checks.fetch_sub(checks / 2, Relaxed);
        let units = self.units.load(Relaxed);
        self.units.fetch_sub(units / 2, Relaxed);
        state.since.monotonic += elapsed / 2;
        let is_cold = per_span < u128::from(HOT / 2);
        let lease = self.lease();
        let is_idle = lease.is_none() && !self.transfers.is_under_way(self.slot);
        state.is_dropped = is_cold && is_idle;
        state.is_dropped
    }

    /// The lease, unless the store is failing.
    fn spendable(&self) -> Option<RwLockReadGuard<'_, Option<Arc<Lease>>>> {
        (!self.is_failing.load(Relaxed)).then(|| self.lease())
    }

    fn lease(&self) -> RwLockReadGuard<'_, Option<Arc<Lease>>> {
        self.lease.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that is being fetched. An entry has at most one.
#[derive(Debug)]
pub(super) struct Fetch {
    entry: Arc<Entry>,
    units: u64,
    sent: Moment,
    _transfer: Transfer,
}

impl Fetch {
    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The check that charges all units of the lease.
    pub(super) fn check(&self) -> Check {
        let entry = self.entry();
        let charge = Charge::new(&entry.policy, entry.key.clone(), self.units);
        // A blocked identity gets no lease.
        Check::of_one(charge).enforce_blocks(true)
    }

    /// Turns the charged units into a lease. Returns a settlement that gives them back if they cannot be spent: the
    /// answer came too late, the store's clock had stepped back, or all leases have been revoked in the meantime.
    pub(super) fn install(&self, usage: &Usage, now: Moment) -> Option<Settlement> {
        let entry = self.entry();
        if let Some(of_policy) = usage.policies().next() {
            entry.learn(of_policy, usage.decided_at_ms(), self.sent, now);
        }
        let lease = Lease::new(usage.clone(), self.units, self.sent);
        if was_behind(usage) {
            entry.pause(now);
        }
        let state = entry.state();
        match state.fetching {
            Some(OnArrival::Forget) => None,
            Some(OnArrival::Install) if !lease.is_over(now) => {
                let mut place = entry.lease.write().unwrap_or_else(PoisonError::into_inner);
                *place = Some(Arc::new(lease));
                None
            }
            _ => lease.close(),
        }
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.entry.state().fetching = None;
    }
}

#[cfg(test)]
mod tests {
    use std::{hint, sync::atomic::Ordering::SeqCst, thread};

    use super::*;

    const ZERO: Moment = Moment {
        monotonic: Duration::ZERO,
        date: Duration::ZERO,
    };

    fn entry() -> Arc<Entry> {
        let policy = Policy::parse("api", "100000/1h").unwrap();
        let charge = Charge::new(&policy, Key::new("user", "alice"), 1);
        let entry = Entry::new(&charge, LONGEST, ZERO, &Arc::new(Transfers::new()), 0);
        entry.state().known = Some(Known {
            room: 100_000,
            decided_at_ms: 0,
            sent: ZERO,
            round_trip: Duration::ZERO,
        });
        Arc::new(entry)
    }

    /// Spins, because a thread that sleeps comes too late for the race; but not for ever, in case there is one core.
    fn wait_for(round: u64, counter: &AtomicU64) {
        let mut turns = 0_u32;
        while counter.load(SeqCst) < round {
            hint::spin_loop();
            turns += 1;
            if turns.is_multiple_of(512) {
                thread::yield_now();
            }
        }
    }

    /// Many rounds, in each of which a fetch and a reset begin at nearly the same time.
    #[test]
    fn a_reset_stops_or_finds_each_fetch() {
        const ROUNDS: u64 = 20_000;
        let entry = entry();
        let (begun, reset, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    begun.store(round, SeqCst);
                    (0..round % 128).for_each(|_| hint::spin_loop());
                    let _bar = entry.transfers.bar(0);
                    entry.end();
                    reset.store(round, SeqCst);
                    wait_for(round, &done);
                }
            });
            let mut lost = 0;
            for round in 1..=ROUNDS {
                wait_for(round, &begun);
                let fetch = entry.begin(1, ZERO);
                wait_for(round, &reset);
                lost += u32::from(entry.state().fetching == Some(OnArrival::Install));
                drop(fetch);
                done.store(round, SeqCst);
            }
            assert_eq!(lost, 0);
        });
    }
}
